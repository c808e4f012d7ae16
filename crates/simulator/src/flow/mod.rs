//! Flow level: rates by max-min fairness, for unicast flows and multicast trees (Blast section VI-A).
