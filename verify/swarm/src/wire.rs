//! The network behind a manager: transfers by push over the paths that agents were lent.
//!
//! A path that is granted carries a transfer, and is given back when that is over. A lease that is lost takes
//! the data channel away in mid-transfer; hosts crash and come back; a host that lacks something is served
//! again over a new path.

use super::coverage::Seen;
use super::draw::{self, Random};
use super::{Coverage, Plant};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_planning::PlanId;
use polycast_simulator::packet::scenario::Layout;
use polycast_simulator::packet::tcp::TcpConfig;
use polycast_simulator::packet::world::{Cluster, Datagram, Happening, Phase, PushConfig};
use polycast_simulator::packet::{Faults, LinkConfig, LinkId, Network, NodeId};
use polycast_types::{Duration, Rate, Time};

/// One object on its way from a host to others.
struct Delivery {
    source: usize,
    receivers: Vec<usize>,
}

/// The network and what is sent over it.
pub(super) struct Wire {
    net: Network<Datagram>,
    cluster: Cluster,
    seen: Rc<Seen>,
    deliveries: Vec<Delivery>,
    /// The transfer that uses a lease.
    over: BTreeMap<PlanId, u32>,
    /// Requests for the rest of a transfer that some receivers did not get.
    resumes: BTreeMap<u64, u32>,
    down: BTreeSet<usize>,
}

impl Wire {
    /// Hosts at one switch, or at two with a third above.
    pub(super) fn new(random: &mut Random, hosts: usize, seed: u64, plant: Option<Plant>) -> Wire {
        let each = hosts.div_ceil(2);
        let name = if random.one_in(2) {
            format!("leaf-spine:1,1,{hosts}")
        } else {
            format!("leaf-spine:2,1,{each}")
        };
        let layout: Layout = name.parse().expect("this is the name of a network");
        let faults = draw::faults(random);
        let rate = Rate(random.magnitude(5_000_000..=1_000_000_000));
        let delay = Duration(random.magnitude(1_000..=500_000));
        let link = LinkConfig { queue_bytes: 256 << 10, faults, ..LinkConfig::new(rate, delay) };
        let mut cluster = Cluster::new(seed, TcpConfig::default());
        cluster.set_stop_when_done(false);
        let (seen, hooks) = crate::hooks(plant);
        cluster.set_hooks(hooks);
        let net = layout.build(link, &[], seed).expect("nothing is changed");
        let (deliveries, over) = (Vec::new(), BTreeMap::new());
        Wire { net, cluster, seen, deliveries, over, resumes: BTreeMap::new(), down: BTreeSet::new() }
    }

    /// Lets everything happen until then.
    pub(super) fn advance(&mut self, now: Time) -> Result<(), String> {
        self.net.run(&mut self.cluster, now);
        self.cluster.breaches().into_iter().next().map_or(Ok(()), Err)
    }

    /// A path was granted: a transfer begins on it, or the rest of one.
    pub(super) fn start(
        &mut self,
        random: &mut Random,
        now: Time,
        (request, plan): (u64, PlanId),
        (source, receivers): (usize, Vec<usize>),
        multicast: bool,
    ) {
        let transfer = self.resumes.remove(&request).unwrap_or_else(|| {
            let config = PushConfig {
                fragment_bytes: random.magnitude(500..=8_900) as u32,
                group_bytes: 1 << random.within(12..=17),
                ..PushConfig::default()
            };
            let nodes: Vec<NodeId> = receivers.iter().map(|&host| NodeId(host as u32)).collect();
            let bytes = random.magnitude(2_000..=1_000_000);
            self.deliveries.push(Delivery { source, receivers });
            self.cluster.add_push(&self.net, NodeId(source as u32), &nodes, bytes, config, None)
        });
        self.over.insert(plan, transfer);
        self.cluster.set_way(transfer, multicast);
        self.cluster.plan(&mut self.net, now, Happening::StartTransfer { transfer });
        for (&host, receiver) in self.deliveries[transfer as usize].receivers.iter().zip(0..) {
            if self.down.contains(&host) {
                self.cluster.plan(&mut self.net, now, Happening::CrashReceiver { transfer, receiver });
            }
        }
    }

    /// Returns true once the transfer that uses this lease is over.
    pub(super) fn is_over(&self, plan: PlanId) -> bool {
        let source = self.over.get(&plan).map(|&transfer| self.cluster.push(transfer).source());
        source.is_none_or(|source| source.is_crashed() || source.finished_at().is_some())
    }

    /// A lease was given back.
    pub(super) fn release(&mut self, plan: PlanId) {
        self.over.remove(&plan);
    }

    /// A lease was lost: its data channel may not be used any more.
    pub(super) fn lose(&mut self, now: Time, plan: PlanId) {
        if let Some(transfer) = self.over.remove(&plan) {
            self.cluster.plan(&mut self.net, now, Happening::LosePath { transfer });
        }
    }

    /// A host crashes.
    pub(super) fn crash(&mut self, now: Time, host: usize) {
        self.down.insert(host);
        for (delivery, transfer) in self.deliveries.iter().zip(0..) {
            if delivery.source == host {
                self.cluster.plan(&mut self.net, now, Happening::CrashSource { transfer });
            }
            if let Some(receiver) = delivery.receivers.iter().position(|&receiver| receiver == host) {
                let receiver = receiver as u32;
                if self.cluster.push(transfer).receivers()[receiver as usize].phase() != Phase::Done {
                    self.cluster.plan(&mut self.net, now, Happening::CrashReceiver { transfer, receiver });
                }
            }
        }
        let deliveries = &self.deliveries;
        self.over.retain(|_, transfer| deliveries[*transfer as usize].source != host);
    }

    /// A host is up; if it was not, it joins the transfers again that are meant for it.
    pub(super) fn is_up(&mut self, now: Time, host: usize) {
        if !self.down.remove(&host) {
            return;
        }
        for (delivery, transfer) in self.deliveries.iter().zip(0..) {
            if let Some(receiver) = delivery.receivers.iter().position(|&receiver| receiver == host) {
                let receiver = receiver as u32;
                self.cluster.plan(&mut self.net, now, Happening::JoinReceiver { transfer, receiver });
            }
        }
    }

    /// A transfer of this host that is over, or has crashed, though a receiver lacks something; `request` is
    /// for the rest. Gives those that lack it.
    pub(super) fn resume(&mut self, host: usize, request: u64) -> Option<Vec<usize>> {
        let (at, lacking) =
            (self.deliveries.iter().enumerate()).filter(|(_, d)| d.source == host).find_map(|(at, d)| {
                let push = self.cluster.push(at as u32);
                let rests = push.source().is_crashed() || push.source().finished_at().is_some();
                let lacking: Vec<usize> =
                    push.lacking().map(|receiver| d.receivers[receiver as usize]).collect();
                (rests && !lacking.is_empty() && !self.over.values().any(|&t| t as usize == at))
                    .then_some((at, lacking))
            })?;
        // What is asked for before is not asked for any more.
        self.resumes.retain(|_, transfer| *transfer as usize != at);
        self.resumes.insert(request, at as u32);
        Some(lacking)
    }

    /// Nothing goes wrong with packets any more.
    pub(super) fn heal(&mut self) {
        for link in (0..self.net.link_count()).map(LinkId) {
            self.net.set_faults(link, Faults::NONE);
        }
    }

    /// Returns true once every receiver has the object that was sent to it.
    pub(super) fn is_done(&self) -> bool {
        (0..self.deliveries.len() as u32)
            .all(|transfer| self.cluster.push(transfer).lacking().next().is_none())
    }

    /// Returns the number of times that each event has happened.
    pub(super) fn coverage(&self) -> Coverage {
        self.seen.coverage()
    }

    /// Returns the hash and the number of the network's events, for the trace.
    pub(super) fn trace(&self) -> (u64, u64) {
        (self.net.trace_hash(), self.net.events())
    }

    /// Every object is what was sent.
    pub(super) fn check(&self) -> Result<(), String> {
        for (delivery, transfer) in self.deliveries.iter().zip(0..) {
            let push = self.cluster.push(transfer);
            for (receiver, host) in push.receivers().iter().zip(&delivery.receivers) {
                if receiver.phase() != Phase::Done {
                    let phase = receiver.phase();
                    return Err(format!(
                        "host {host} did not get an object from host {}: {phase:?}",
                        delivery.source
                    ));
                }
                receiver.check_object()?;
            }
        }
        Ok(())
    }
}
