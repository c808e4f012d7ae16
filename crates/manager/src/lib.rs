//! The Polycast manager: lends paths to transfers.
