//! Packet level: every packet crosses every link (Datacast section 7.2, Blast section VI).
