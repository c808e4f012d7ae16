//! Monitoring page of the agent, which the setting `http` switches on.

mod view;

use super::catalog::Snapshot;
use super::counters::{counted, ended};
use super::manager_link::LinkState;
use super::objects::Objects;
use super::sends::Sends;
use super::shared::Shared;
use polycast_api::http::{Kind, Metric, Watched};
use std::sync::Arc;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The agent's page.
pub(super) struct Page {
    pub shared: Arc<Shared>,
    pub sends: Arc<Sends>,
    pub objects: Arc<Objects>,
    pub more: Vec<More>,
}

/// Metrics of what else runs in the agent's process.
pub(super) type More = Box<dyn Fn() -> Vec<Metric> + Send + Sync>;

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
            Metric {
                name: "polycast_agent_info",
                help: "The agent's name, and the version of its program.",
                kind: Kind::Gauge,
                values: vec![(vec![("name", shared.name.clone()), ("version", VERSION.to_string())], 1.0)],
            },
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
        let security = shared.sealing.security();
        metrics.push(Metric::certificate(security.and_then(|own| own.certificate_ends_unix_s())));
        metrics.extend(counted(&shared.counters));
        metrics.extend(ended(&shared.counters));
        metrics.extend(self.more.iter().flat_map(|more| more()));
        metrics
    }

    fn view(&self, is_shown: bool) -> serde_json::Value {
        view::view(self, is_shown)
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

fn gauge(name: &'static str, help: &'static str, value: f64) -> Metric {
    Metric::one(name, Kind::Gauge, help, value)
}
