//! Datacast's pull transport (sections 5 and 6): source, receiver and caching forwarder.
