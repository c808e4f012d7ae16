//! Page of the manager for monitoring, which the setting `http` switches on.

use crate::core::{Around, NetworkSnapshot, SECONDS_UP_TO, Snapshot};
use crate::leader::Role;
use crate::leader::standbys::{Lookout, Standing};
use crate::service::status_response;
use polycast_api::documents::{Node, nodes, status_of_manager};
use polycast_api::http::{Kind, Metric, Watched};
use polycast_net::tls::Security;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

/// Nodes that the view tells of, first those that are not ready: about 300 bytes each.
const NODES_MAX: usize = 2_048;
/// Names of receivers of one lease that it tells of.
const NAMES_MAX: usize = 16;
/// Leases and requests that it tells of, each.
const ENTRIES_MAX: usize = 256;

/// The manager's page.
pub(crate) struct Page {
    role: watch::Receiver<Role>,
    started: Instant,
    /// Address where agents reach this manager.
    address: String,
    /// Security that it shows itself with.
    security: Option<Security>,
    /// Managers agree in an etcd.
    has_etcd: bool,
    lookout: Arc<Lookout>,
}

impl Page {
    /// The page of a manager that begins now.
    pub(crate) fn new(role: &watch::Receiver<Role>, address: &str, around: &Around, has_etcd: bool) -> Self {
        let (role, address, started) = (role.clone(), address.to_string(), Instant::now());
        let (security, lookout) = (around.security().cloned(), around.lookout());
        Page { role, started, address, security, has_etcd, lookout }
    }
}

impl Watched for Page {
    fn ready(&self) -> Result<(), String> {
        match &*self.role.borrow() {
            // One that follows serves too: it says which manager leads, and takes over.
            Role::Leader(_) | Role::Follower(Some(_)) => Ok(()),
            Role::Follower(None) => Err("no manager leads".into()),
            Role::Leaderless(why) => Err(format!("no manager leads: {why}")),
        }
    }

    fn metrics(&self) -> Vec<Metric> {
        let snapshot = match &*self.role.borrow() {
            Role::Leader(core) => Some(core.snapshot()),
            Role::Follower(_) | Role::Leaderless(_) => None,
        };
        let mut metrics = vec![
            gauge(
                "polycast_uptime_seconds",
                "Time since the manager began.",
                self.started.elapsed().as_secs_f64(),
            ),
            gauge(
                "polycast_manager_leads",
                "Whether this manager leads; one that does not has no counts of agents and paths.",
                f64::from(u8::from(snapshot.is_some())),
            ),
        ];
        let answers = !matches!(&*self.role.borrow(), Role::Leaderless(_));
        metrics.push(Metric {
            values: self.has_etcd.then(|| (Vec::new(), f64::from(u8::from(answers)))).into_iter().collect(),
            ..gauge("polycast_etcd_answers", "Whether etcd answers this manager and takes changes.", 0.0)
        });
        let leads_by_etcd = self.has_etcd && snapshot.is_some();
        let standbys = leads_by_etcd.then(|| (Vec::new(), self.lookout.standing().standbys.len() as f64));
        metrics.push(Metric {
            values: standbys.into_iter().collect(),
            ..gauge(
                "polycast_standbys",
                "Other managers that would take over from this one, which leads.",
                0.0,
            )
        });
        let security = self.security.as_ref();
        metrics.push(Metric::certificate(security.and_then(Security::certificate_ends_unix_s)));
        metrics.extend(snapshot.iter().flat_map(counts));
        metrics
    }

    fn view(&self, _: bool) -> Value {
        let (daemon, program_version) = ("manager", env!("CARGO_PKG_VERSION"));
        let about = |leader: Option<&String>, why: Option<String>| {
            json!({
                "daemon": daemon, "program_version": program_version, "manager": self.address,
                "leader": leader, "not_ready": why,
            })
        };
        let role = self.role.borrow().clone();
        match &role {
            Role::Leader(core) => {
                let mut document = about(Some(&self.address), None);
                describe(&mut document, core.snapshot(), &self.address, self.lookout.standing());
                document
            }
            Role::Follower(leader) => about(leader.as_ref(), self.ready().err()),
            Role::Leaderless(_) => about(None, self.ready().err()),
        }
    }
}

/// Adds what the manager that leads knows. Where that is much, the counts tell how much is left out.
fn describe(document: &mut Value, snapshot: Snapshot, address: &str, standing: Standing) {
    let mut status = status_response(snapshot, address.to_string(), standing);
    let mut nodes = nodes(&status);
    document["nodes_all"] = nodes.len().into();
    document["leases_all"] = status.leases.len().into();
    document["queue_all"] = status.pending.len().into();
    nodes.sort_by_key(|node| node.state == "ready");
    nodes.truncate(NODES_MAX);
    status.leases.truncate(ENTRIES_MAX);
    status.pending.truncate(ENTRIES_MAX);
    let receivers: Vec<usize> = status.leases.iter().map(|lease| lease.receivers.len()).collect();
    status.leases.iter_mut().for_each(|lease| lease.receivers.truncate(NAMES_MAX));
    let mut told = status_of_manager(address, &status);
    for (at, count) in receivers.into_iter().enumerate() {
        told["leases"][at]["receivers_all"] = count.into();
    }
    document["nodes"] = nodes.iter().map(Node::document).collect();
    document["status"] = told;
}

/// Returns the metrics of the manager that leads.
fn counts(snapshot: &Snapshot) -> Vec<Metric> {
    let mut leases = BTreeMap::new();
    for lease in &snapshot.leases {
        *leases.entry(lease.grant.plan.fabric.to_string()).or_insert(0.0) += 1.0;
    }
    let mut counts = vec![
        gauge("polycast_agents", "Agents that are here.", snapshot.agents.len() as f64),
        gauge("polycast_agents_lost", "Agents that have not come back.", snapshot.lost.len() as f64),
        Metric::by("polycast_leases", Kind::Gauge, "Paths that are lent.", "fabric", leases),
        gauge("polycast_requests_waiting", "Requests that wait for a path.", snapshot.pending.len() as f64),
        gauge("polycast_streams", "Streams of messages.", snapshot.streams.len() as f64),
        Metric::histogram(
            "polycast_grant_seconds",
            "Time that requests have waited at this manager for their paths.",
            &SECONDS_UP_TO,
            &snapshot.waits.counts,
            snapshot.waits.sum_s,
        ),
        devices(&snapshot.network),
    ];
    if let Some(external) = &snapshot.external {
        let asked = &external.asked;
        let answers = [
            ("followed", asked.followed),
            ("late", asked.late),
            ("wrong", asked.wrong),
            ("unreached", asked.unreached),
        ];
        counts.push(gauge(
            "polycast_scheduler_followed",
            "Whether the external scheduler decides; otherwise the built-in one does.",
            f64::from(u8::from(external.trouble.is_none())),
        ));
        counts.push(Metric::by(
            "polycast_scheduler_questions_total",
            Kind::Counter,
            "Questions to the external scheduler, by what became of them.",
            "outcome",
            answers.map(|(outcome, count)| (outcome.to_string(), count as f64)),
        ));
    }
    counts
}

/// The devices that were asked for something at least once.
fn devices(network: &NetworkSnapshot) -> Metric {
    let tried = network.devices.iter().filter(|(_, state, _)| *state != "unknown");
    let values = tried.map(|(name, state, _)| (name.clone(), f64::from(u8::from(*state == "reached"))));
    Metric::by("polycast_device_up", Kind::Gauge, "Whether a device is reached.", "device", values)
}

fn gauge(name: &'static str, help: &'static str, value: f64) -> Metric {
    Metric::one(name, Kind::Gauge, help, value)
}
