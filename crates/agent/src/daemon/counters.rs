//! Counts of the agent since it began, and their metrics.

use crate::transfer::{ReceiverReport, Report};
use polycast_api::error::Kind as ErrorKind;
use polycast_api::http::{Kind, Metric};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Upper bounds of the times of transfers, in seconds: three a decade are enough to see a change.
const SECONDS_UP_TO: [f64; 10] = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0];

/// Fabrics whose bytes are counted from 0 on: a series that begins with its first transfer shows no increase
/// by it.
const FABRICS: [&str; 6] = ["datacast", "ip-multicast", "ocs", "orca", "shufflecast", "tcp-chain"];

/// Counts of the agent since it began.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    sends: [AtomicU64; 2],
    patched_bytes: AtomicU64,
    forged_packets: AtomicU64,
    receives: [AtomicU64; 2],
    received_bytes: AtomicU64,
    corrupt_groups: AtomicU64,
    ends: Mutex<Ends>,
}

/// Counts by what has a name.
#[derive(Debug, Default)]
struct Ends {
    /// Transfers from here by their time, the last those above all bounds, and the sum of their seconds.
    took: [u64; SECONDS_UP_TO.len() + 1],
    took_s: f64,
    /// Receivers that have failed, by the API's words.
    failures: BTreeMap<&'static str, u64>,
    /// Bytes that were put on the wire, by the fabric.
    sent_bytes: BTreeMap<String, u64>,
    /// Transfers that have lost the path that they began over, by its fabric.
    lost: BTreeMap<String, u64>,
    /// Bytes of transfers from here that went from one zone to another.
    zones: BTreeMap<(String, String), u64>,
}

impl Counters {
    /// A transfer from here has ended.
    pub(crate) fn sent(&self, report: &Report) {
        add(&self.patched_bytes, report.patched_bytes);
        add(&self.forged_packets, report.forged_packets);
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        // Where a transfer has gone on over another one, it counts as the first's.
        let fabric = report.fabric.split('+').next().unwrap_or_default().to_string();
        *ends.sent_bytes.entry(fabric).or_default() += report.sent_bytes;
        for zone in &report.zones {
            *ends.zones.entry((zone.from.clone(), zone.to.clone())).or_default() += zone.bytes;
        }
        // To those that are left another transfer goes.
        let is_left = |receiver: &&ReceiverReport| report.left.contains(&receiver.name);
        let own: Vec<_> = report.receivers.iter().filter(|receiver| !is_left(receiver)).collect();
        if own.is_empty() && !report.left.is_empty() {
            return;
        }
        let complete = own.iter().all(|receiver| receiver.verified);
        add(&self.sends[usize::from(complete)], 1);
        let at = SECONDS_UP_TO.iter().position(|most| report.seconds <= *most);
        ends.took[at.unwrap_or(SECONDS_UP_TO.len())] += 1;
        ends.took_s += report.seconds;
        for receiver in own.iter().filter(|receiver| !receiver.verified) {
            let kind = receiver.kind.as_deref().and_then(ErrorKind::from_name);
            *ends.failures.entry(kind.map_or("unknown", ErrorKind::name)).or_default() += 1;
        }
        if report.path_lost.is_some() {
            let fabric = report.fabric.split('+').next().unwrap_or_default().to_string();
            *ends.lost.entry(fabric).or_default() += 1;
        }
    }

    /// Returns what counts the groups of one transfer that came with wrong bytes: it is told of all, again
    /// and again.
    pub(crate) fn corrupt(&self) -> impl FnMut(u64) + '_ {
        let mut before = 0;
        move |all: u64| {
            add(&self.corrupt_groups, all.saturating_sub(before));
            before = before.max(all);
        }
    }

    /// An object has been received.
    pub(crate) fn received(&self, bytes: u64) {
        add(&self.receives[1], 1);
        add(&self.received_bytes, bytes);
    }

    /// One could not be received.
    pub(crate) fn not_received(&self) {
        add(&self.receives[0], 1);
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Returns the totals as metrics.
pub(super) fn counted(counters: &Counters) -> Vec<Metric> {
    let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    let ended = |[failed, complete]: &[AtomicU64; 2]| {
        [("complete".to_string(), value(complete)), ("failed".into(), value(failed))]
    };
    let total = |name, help, counter| Metric::one(name, Kind::Counter, help, value(counter));
    vec![
        Metric::by(
            "polycast_sends_total",
            Kind::Counter,
            "Transfers from here that have ended; failed where a receiver has not got everything.",
            "outcome",
            ended(&counters.sends),
        ),
        Metric::by(
            "polycast_receives_total",
            Kind::Counter,
            "Objects that have come, and that have failed to.",
            "outcome",
            ended(&counters.receives),
        ),
        total("polycast_patched_bytes_total", "Of these bytes of patches.", &counters.patched_bytes),
        total("polycast_received_bytes_total", "Bytes of objects that have come.", &counters.received_bytes),
        total(
            "polycast_verify_failures_total",
            "Groups of 256 KiB that came here with wrong bytes, and were asked for again.",
            &counters.corrupt_groups,
        ),
        total(
            "polycast_forged_packets_total",
            "Packets that reached receivers of transfers from here and were not this source's.",
            &counters.forged_packets,
        ),
    ]
}

/// Returns the counts of what has a name as metrics.
pub(super) fn ended(counters: &Counters) -> [Metric; 5] {
    let ends = counters.ends.lock().unwrap_or_else(PoisonError::into_inner);
    let failures = ends.failures.iter().map(|(kind, count)| ((*kind).to_string(), *count as f64));
    let mut sent: BTreeMap<String, f64> =
        FABRICS.into_iter().map(|fabric| (fabric.to_string(), 0.0)).collect();
    sent.extend(ends.sent_bytes.iter().map(|(fabric, bytes)| (fabric.clone(), *bytes as f64)));
    let lost = ends.lost.iter().map(|(fabric, count)| (fabric.clone(), *count as f64));
    [
        Metric::histogram(
            "polycast_transfer_seconds",
            "Time of transfers from here, from the start to the last receiver's end.",
            &SECONDS_UP_TO,
            &ends.took,
            ends.took_s,
        ),
        Metric::by(
            "polycast_sent_bytes_total",
            Kind::Counter,
            "Payload bytes that were put on the wire, repetitions and patches included.",
            "fabric",
            sent,
        ),
        Metric::by(
            "polycast_receiver_failures_total",
            Kind::Counter,
            "Receivers of transfers from here that have failed, by the kind of failure.",
            "reason",
            failures,
        ),
        Metric::by(
            "polycast_path_lost_total",
            Kind::Counter,
            "Transfers from here that have lost their path and gone on without it.",
            "fabric",
            lost,
        ),
        Metric {
            name: "polycast_zone_bytes_total",
            help: "Bytes of transfers from here that went from one zone to another over TCP.",
            kind: Kind::Counter,
            values: ends.zones.iter().map(zone_bytes).collect(),
        },
    ]
}

/// The bytes between two zones, with their labels.
fn zone_bytes(((from, to), bytes): (&(String, String), &u64)) -> (Vec<(&'static str, String)>, f64) {
    (vec![("from", from.clone()), ("to", to.clone())], *bytes as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_api::report::ZoneBytes;

    fn report(receivers: &[(&str, Option<ErrorKind>)], left: &[&str]) -> Report {
        let receivers = receivers.iter().map(|(name, failure)| {
            let verified = failure.is_none();
            let report = ReceiverReport { name: (*name).to_string(), verified, ..ReceiverReport::default() };
            report.failing(failure.map(|kind| (kind, "why".to_string())))
        });
        let text = serde_json::json!({
            "object": "7", "bytes": 1_000, "seconds": 2.0, "fabric": "ocs+tcp-chain", "sent_bytes": 9,
            "patched_bytes": 0, "receivers": [],
        });
        let report: Report = serde_json::from_value(text).unwrap();
        let left = left.iter().map(ToString::to_string).collect();
        Report { receivers: receivers.collect(), left, path_lost: Some("cut".into()), ..report }
    }

    /// A delta that was of no use to its receivers is no failure: the object itself follows.
    #[test]
    fn failures_are_counted_once_and_by_their_kinds() {
        let counters = Counters::default();
        counters.sent(&report(&[("a", Some(ErrorKind::Internal)), ("b", None)], &[]));
        counters.sent(&report(&[("a", Some(ErrorKind::Internal)), ("b", None)], &["a"]));
        counters.sent(&report(&[("a", Some(ErrorKind::Internal))], &["a"]));
        let [seconds, sent, failures, lost, _] = ended(&counters);
        assert_eq!(failures.values, [(vec![("reason", "internal".to_string())], 1.0)]);
        assert_eq!(lost.values, [(vec![("fabric", "ocs".to_string())], 2.0)]);
        assert_eq!(seconds.values.last().unwrap().1, 2.0);
        let sends: Vec<u64> = counters.sends.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        assert_eq!(sends, [1, 1]);
        let counted = sent.values.iter().filter(|(_, bytes)| *bytes > 0.0);
        assert_eq!(counted.collect::<Vec<_>>(), [&(vec![("fabric", "ocs".to_string())], 27.0)]);
        assert_eq!(sent.values.len(), FABRICS.len(), "each begins at 0");
    }

    #[test]
    fn groups_with_wrong_bytes_are_counted_once_each() {
        let counters = Counters::default();
        for told in [vec![0, 2, 2, 3], vec![1]] {
            let mut count = counters.corrupt();
            told.into_iter().for_each(&mut count);
        }
        assert_eq!(counters.corrupt_groups.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn bytes_between_zones_are_added_up() {
        let counters = Counters::default();
        let zone = |to: &str, bytes| ZoneBytes { from: "a".into(), to: to.into(), bytes };
        for zones in [vec![zone("b", 7), zone("c", 1)], vec![zone("b", 11)], Vec::new()] {
            counters.sent(&Report { zones, ..report(&[("r", None)], &[]) });
        }
        let labels = |to: &str| vec![("from", "a".to_string()), ("to", to.to_string())];
        let [.., zones] = ended(&counters);
        assert_eq!(zones.values, [(labels("b"), 18.0), (labels("c"), 1.0)]);
    }
}
