//! Counts of what endpoints have answered.

use crate::asked::Asked;
use polycast_api::agent::{EndpointUse, OriginRead};
use polycast_api::http::{Kind, Metric};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Repositories and images of an endpoint that are counted by their names.
const NAMES_MAX: usize = 256;
/// Reads from the origin that are kept of each.
const READS_MAX: usize = 64;

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
    uses: Mutex<BTreeMap<String, EndpointUse>>,
}

impl CountsOf {
    /// Counts a file that has come, or has not; `reason` is why it was read from its origin, if it was.
    pub(crate) fn ended(&self, asked: &Asked, source: Option<Source>, reason: &str) {
        match source {
            Some(source) => self.answers[source as usize].fetch_add(1, Ordering::Relaxed),
            None => self.failures.fetch_add(1, Ordering::Relaxed),
        };
        let name = asked.shown.split(' ').next().unwrap_or_default();
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        if !uses.contains_key(name) && uses.len() >= NAMES_MAX {
            return;
        }
        let one = uses.entry(name.to_string()).or_default();
        match source {
            Some(Source::Store) => one.store += 1,
            Some(Source::Peer) => one.peers += 1,
            Some(Source::Origin) => one.origin += 1,
            None => one.failed += 1,
        }
        if source == Some(Source::Origin) {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let at_unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
            let (key, file, bytes) = (asked.key.clone(), asked.shown.clone(), asked.size);
            one.reads.truncate(READS_MAX - 1);
            one.reads.insert(0, OriginRead { key, file, bytes, at_unix_ms, reason: reason.into() });
        }
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
    /// They by the names of repositories and images.
    #[must_use]
    pub fn uses(&self) -> Vec<EndpointUse> {
        let kinds = [("hub", &self.hub), ("oci", &self.images)];
        let of = |(kind, counts): (&str, &CountsOf)| {
            let uses = counts.uses.lock().unwrap_or_else(PoisonError::into_inner);
            let named = |(name, one): (&String, &EndpointUse)| EndpointUse {
                kind: kind.into(),
                name: name.clone(),
                ..one.clone()
            };
            uses.iter().map(named).collect::<Vec<_>>()
        };
        kinds.into_iter().flat_map(of).collect()
    }

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
