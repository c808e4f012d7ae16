//! Monitoring page of the agent, which the setting `http` switches on.

use super::Shared;
use super::catalog::Snapshot;
use super::manager_link::LinkState;
use super::sends::Sends;
use crate::transfer::Report;
use polycast_api::http::{Kind, Metric, Watched};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of the agent since it began.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    sends: [AtomicU64; 2],
    sent_bytes: AtomicU64,
    patched_bytes: AtomicU64,
    forged_packets: AtomicU64,
    receives: [AtomicU64; 2],
    received_bytes: AtomicU64,
}

impl Counters {
    /// A transfer from here has ended.
    pub(crate) fn sent(&self, report: &Report) {
        let complete = report.receivers.iter().all(|receiver| receiver.verified);
        add(&self.sends[usize::from(complete)], 1);
        add(&self.sent_bytes, report.sent_bytes);
        add(&self.patched_bytes, report.patched_bytes);
        add(&self.forged_packets, report.forged_packets);
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

/// The agent's page.
pub(super) struct Page {
    pub shared: Arc<Shared>,
    pub sends: Arc<Sends>,
}

impl Watched for Page {
    fn ready(&self) -> Result<(), String> {
        match self.shared.link.state() {
            LinkState::Joined => Ok(()),
            LinkState::Away { reason, .. } => Err(format!("the agent is not at its manager: {reason}")),
        }
    }

    fn metrics(&self) -> Vec<Metric> {
        let shared = &self.shared;
        let mut metrics = vec![
            Metric::by(
                "polycast_agent_info",
                Kind::Gauge,
                "The agent's name.",
                "name",
                [(shared.name.clone(), 1.0)],
            ),
            gauge(
                "polycast_uptime_seconds",
                "Time since the agent began.",
                shared.started.elapsed().as_secs_f64(),
            ),
            gauge(
                "polycast_manager_connected",
                "Whether the agent is at its manager.",
                f64::from(u8::from(shared.link.state() == LinkState::Joined)),
            ),
            gauge(
                "polycast_processes",
                "Processes of applications that are registered.",
                shared.processes.count() as f64,
            ),
            gauge(
                "polycast_store_used_bytes",
                "Bytes that received objects have in the store, and those that come.",
                shared.catalog.stored_bytes(None) as f64,
            ),
            gauge(
                "polycast_store_free_bytes",
                "Bytes that the store's file system has left.",
                shared.store.free_bytes().unwrap_or(0) as f64,
            ),
        ];
        if let Some(most) = shared.limits.most() {
            metrics.push(gauge("polycast_store_max_bytes", "Bytes that the store may hold.", most as f64));
        }
        metrics.push(self.objects());
        metrics.push(Metric::by(
            "polycast_transfers",
            Kind::Gauge,
            "Transfers that wait or run.",
            "direction",
            [("sending".to_string(), self.sends.list().len() as f64), ("receiving".into(), self.receiving())],
        ));
        metrics.extend(counted(&shared.counters));
        metrics
    }
}

impl Page {
    fn receiving(&self) -> f64 {
        let objects = self.shared.catalog.list(None);
        objects.iter().filter(|(_, snapshot)| matches!(snapshot, Snapshot::Receiving { .. })).count() as f64
    }

    fn objects(&self) -> Metric {
        let (mut added, mut received) = (0.0, 0.0);
        for (_, snapshot) in self.shared.catalog.list(None) {
            match snapshot {
                Snapshot::Available(object) if object.added_from.is_some() => added += 1.0,
                Snapshot::Available(_) => received += 1.0,
                Snapshot::Receiving { .. } => {}
            }
        }
        Metric::by(
            "polycast_objects",
            Kind::Gauge,
            "Objects that are here.",
            "state",
            [("added".to_string(), added), ("received".into(), received)],
        )
    }
}

fn counted(counters: &Counters) -> Vec<Metric> {
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
        total(
            "polycast_sent_bytes_total",
            "Payload bytes that were put on the wire, repetitions and patches included.",
            &counters.sent_bytes,
        ),
        total("polycast_patched_bytes_total", "Of these bytes of patches.", &counters.patched_bytes),
        total("polycast_received_bytes_total", "Bytes of objects that have come.", &counters.received_bytes),
        total(
            "polycast_forged_packets_total",
            "Packets that reached receivers of transfers from here and were not this source's.",
            &counters.forged_packets,
        ),
    ]
}

fn gauge(name: &'static str, help: &'static str, value: f64) -> Metric {
    Metric::one(name, Kind::Gauge, help, value)
}
