//! Counts of what endpoints have answered.

use polycast_api::http::{Kind, Metric};
use std::sync::atomic::{AtomicU64, Ordering};

/// Origin of the bytes of a file that a client has asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// They were on this host.
    Store,
    /// Another agent had them, or read them from their origin.
    Peer,
    /// This host has read them from their origin.
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

/// Counts of an agent's endpoints since it began.
#[derive(Debug, Default)]
pub struct Counts {
    /// Files of the hub.
    pub(crate) hub: CountsOf,
    /// Manifests and layers of images.
    pub(crate) images: CountsOf,
}

/// Counts of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct CountsOf {
    answers: [AtomicU64; 3],
    failures: AtomicU64,
    origin_bytes: AtomicU64,
}

impl CountsOf {
    pub(crate) fn answered(&self, source: Source) {
        self.answers[source as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, bytes: u64) {
        self.origin_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn results(&self) -> Vec<(&'static str, f64)> {
        let answers = Source::ALL.map(|source| (source.name(), value(&self.answers[source as usize])));
        answers.into_iter().chain([("failed", value(&self.failures))]).collect()
    }
}

fn value(count: &AtomicU64) -> f64 {
    count.load(Ordering::Relaxed) as f64
}

impl Counts {
    /// They as metrics.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        let kinds = [("hub", &self.hub), ("oci", &self.images)];
        let results = kinds.iter().flat_map(|(kind, counts)| {
            let labels = move |result: &str| vec![("kind", kind.to_string()), ("result", result.to_string())];
            counts.results().into_iter().map(move |(result, value)| (labels(result), value))
        });
        let requests = Metric {
            name: "polycast_cache_requests_total",
            help: "Files that clients have asked for, by where their bytes were.",
            kind: Kind::Counter,
            values: results.collect(),
        };
        let read = Metric::by(
            "polycast_origin_bytes_total",
            Kind::Counter,
            "Bytes that this host has read from where they are from at first.",
            "kind",
            kinds.map(|(kind, counts)| (kind.to_string(), value(&counts.origin_bytes))),
        );
        vec![requests, read]
    }
}
