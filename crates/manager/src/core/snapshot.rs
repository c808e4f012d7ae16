//! The manager's state at one moment, for those who ask how it stands.

use super::Inner;
use super::waits::Waits;
use polycast_api::manager::NodeReport;
use polycast_planning::{DeviceCommand, FabricName, PartName, PlanId};
use polycast_protocol::directory::OnlyThere;
use polycast_protocol::leases::{Asked, Grant, Member, RequestKey, Suspect, Unreachable, Wait};
use polycast_protocol::stream::StreamView;
use polycast_types::{Duration, ObjectId, Time};
use std::collections::BTreeMap;

/// The manager's state at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub agents: Vec<(String, Member)>,
    /// Their last accounts of their hosts.
    pub nodes: BTreeMap<String, NodeReport>,
    /// Agents that others could not reach.
    pub unreachable: BTreeMap<String, Unreachable>,
    /// Agents that have not come back, and the time of the last message from each.
    pub lost: Vec<(String, Time)>,
    pub leases: Vec<LeaseSnapshot>,
    pub pending: Vec<PendingSnapshot>,
    pub streams: Vec<StreamView>,
    /// Hosts that are drained.
    pub drained: Vec<DrainedHost>,
    pub fabrics: Vec<FabricName>,
    pub network: NetworkSnapshot,
    pub scheduler: &'static str,
    pub external: Option<ExternalSnapshot>,
    /// Times that requests have waited for their paths, since this manager has begun to lead.
    pub waits: Waits,
    pub now: Time,
    pub uptime: std::time::Duration,
}

/// The external scheduler at one moment.
#[derive(Debug)]
pub(crate) struct ExternalSnapshot {
    pub address: String,
    pub asked: Asked,
    /// Reason why the built-in one decides, if it does.
    pub trouble: Option<String>,
}

/// Devices, circuits and parts at one moment.
#[derive(Debug)]
pub(crate) struct NetworkSnapshot {
    /// Name, state and error.
    pub devices: Vec<(String, &'static str, String)>,
    /// From one port of the circuit switch to another, from 1, and for which lease.
    pub circuits: Vec<(u32, u32, Option<PlanId>)>,
    pub splitters: Vec<(u32, &'static str, Option<PlanId>)>,
    pub dark: Vec<String>,
    pub drained: Vec<PartName>,
    /// Each with how long it still rests.
    pub suspected: Vec<(Suspect, Duration)>,
}

/// A host that is drained, at one moment.
#[derive(Debug)]
pub(crate) struct DrainedHost {
    pub name: String,
    /// Number of paths to it or from it, and of requests that wait for one.
    pub transfers: usize,
    pub only_there: OnlyThere,
}

/// A lease at one moment.
#[derive(Debug)]
pub(crate) struct LeaseSnapshot {
    pub source: String,
    pub object: ObjectId,
    pub grant: Grant,
    pub expires_in: Duration,
    pub ends_in: Option<Duration>,
}

/// A request that waits at one moment.
#[derive(Debug)]
pub(crate) struct PendingSnapshot {
    pub key: RequestKey,
    pub object: ObjectId,
    pub bytes: u64,
    pub receivers: usize,
    pub waited: Duration,
    pub wait: Wait,
}

impl Inner {
    fn network_snapshot(&self, now: Time) -> NetworkSnapshot {
        let circuit = |plan: Option<PlanId>| {
            move |command: &DeviceCommand| match command {
                DeviceCommand::CrossConnect { from, to } => Some((from + 1, to + 1, plan)),
                _ => None,
            }
        };
        let mut circuits: Vec<_> = self
            .machine
            .leases()
            .flat_map(|lease| {
                let plan = &lease.grant.plan;
                plan.commands.iter().filter_map(circuit(Some(lease.grant.plan_id))).collect::<Vec<_>>()
            })
            .collect();
        circuits.extend(self.machine.kept_commands().filter_map(circuit(None)));
        circuits.sort_unstable();
        let (drained, suspects) = self.machine.parts();
        let suspected = suspects.into_iter().map(|suspect| {
            let rests = if suspect.is_resting { suspect.until.since(now) } else { Duration::ZERO };
            (suspect, rests)
        });
        NetworkSnapshot {
            devices: self.networks.devices_now(),
            circuits,
            splitters: self.machine.splitters(),
            dark: self.networks.health.iter().flat_map(|health| health.dark()).collect(),
            drained,
            suspected: suspected.collect(),
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let now = self.now();
        Snapshot {
            agents: self.machine.members().map(|(name, member)| (name.to_string(), member.clone())).collect(),
            nodes: self.seats.nodes(),
            unreachable: self
                .machine
                .members()
                .filter_map(|(name, _)| Some((name.to_string(), self.machine.unreachable(name)?.clone())))
                .collect(),
            lost: self.machine.lost().map(|(name, heard_at)| (name.to_string(), heard_at)).collect(),
            leases: self
                .machine
                .leases()
                .map(|lease| LeaseSnapshot {
                    source: lease.key.agent.name.clone(),
                    object: lease.object,
                    grant: lease.grant.clone(),
                    expires_in: lease.expires_at.since(now),
                    ends_in: lease.ends_at.map(|at| at.since(now)),
                })
                .collect(),
            pending: self
                .machine
                .pending()
                .map(|pending| PendingSnapshot {
                    key: pending.key.clone(),
                    object: pending.object,
                    bytes: pending.bytes,
                    receivers: pending.receivers,
                    waited: now.since(pending.since),
                    wait: pending.wait,
                })
                .collect(),
            streams: self.streams.streams().collect(),
            drained: self
                .machine
                .drained_hosts()
                .into_iter()
                .map(|(name, transfers)| DrainedHost {
                    name: name.to_string(),
                    transfers,
                    only_there: self.directory.only_at(name),
                })
                .collect(),
            fabrics: self.machine.fabrics().collect(),
            network: self.network_snapshot(now),
            scheduler: self.machine.scheduler(),
            external: self.machine.external().map(|(asked, trouble)| ExternalSnapshot {
                address: self.external.as_ref().map(|(address, _)| address.clone()).unwrap_or_default(),
                asked,
                trouble: trouble.map(String::from),
            }),
            waits: self.set_ups.waits.clone(),
            now,
            uptime: self.clock.start.elapsed(),
        }
    }
}
