//! Counts of what the hub endpoint has answered.

use polycast_api::http::{Kind, Metric};
use std::sync::atomic::{AtomicU64, Ordering};

/// Origin of the bytes of a file that a client has asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// They were on this host.
    Store,
    /// Another agent had them, or read them from the hub.
    Peer,
    /// This host has read them from the hub.
    Origin,
}

impl Source {
    pub(crate) const ALL: [Source; 3] = [Source::Store, Source::Peer, Source::Origin];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Source::Store => "store",
            Source::Peer => "peer",
            Source::Origin => "origin",
        }
    }
}

/// Counts of a hub endpoint since it began.
#[derive(Debug, Default)]
pub struct Counts {
    answers: [AtomicU64; 3],
    failures: AtomicU64,
    origin_bytes: AtomicU64,
}

impl Counts {
    pub(crate) fn answered(&self, source: Source) {
        self.answers[source as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, bytes: u64) {
        self.origin_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// They as metrics.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let results = Source::ALL.map(|source| (source.name(), value(&self.answers[source as usize])));
        let results = results.into_iter().chain([("failed", value(&self.failures))]);
        let labelled = |(name, value): (&str, f64)| {
            (vec![("kind", "hub".to_string()), ("result", name.to_string())], value)
        };
        let requests = Metric {
            name: "polycast_cache_requests_total",
            help: "Files that clients have asked for, by where their bytes were.",
            kind: Kind::Counter,
            values: results.map(labelled).collect(),
        };
        let read = Metric::by(
            "polycast_origin_bytes_total",
            Kind::Counter,
            "Bytes that this host has read from where they are from at first.",
            "kind",
            [("hub".to_string(), value(&self.origin_bytes))],
        );
        vec![requests, read]
    }
}
