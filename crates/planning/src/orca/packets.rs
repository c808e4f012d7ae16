//! Sessions for packets that programs send themselves, to the session's address and without a label.
//!
//! The leafs put the labels on and take them off ([`DeviceCommand::LeafDoor`]), so programs and hosts stay as
//! they are, and a leaf drops what comes from a host that may not send. All hosts of a rack send with one
//! label. A group with several sources is a session in which every member may send ([`ManySession`]).

use super::{Orca, OrcaConfig, Reach, failures_of, session_of, used_by};
use crate::ip_multicast::resource;
use crate::labels::{Encoding, LabelError, LabelPlan, LeafHosts, ManySession, SpineState};
use crate::network_state::{NetworkState, Running};
use crate::plan::{Channel, DeviceCommand, Group, Plan, PlanId, Refusal};
use alloc::borrow::Cow;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;
use core::iter;
use core::net::IpAddr;
use polycast_topology::{Failures, Node};
use polycast_types::Duration;

/// Doors by leaf: the ports of the hosts that may send, and the label before their packets.
type Doors = BTreeMap<Node, (Vec<u32>, Vec<u8>)>;

impl Orca {
    /// The plan of a group for programs' packets at this address.
    pub(super) fn packets_at(
        &self,
        network: &NetworkState,
        group: &Group,
        address: (IpAddr, u16),
        reach: Reach,
    ) -> Result<Plan, Refusal> {
        if group.further_sources.is_empty() {
            self.packets_of_one(network, group, address, reach)
        } else {
            self.packets_of_many(network, group, address, reach)
        }
    }

    /// The session of one source, as for a transfer, but by one tree: no leaf takes turns among labels.
    fn packets_of_one(
        &self,
        network: &NetworkState,
        group: &Group,
        address: (IpAddr, u16),
        reach: Reach,
    ) -> Result<Plan, Refusal> {
        let one_tree = match self.config.trees {
            0 | 1 => Cow::Borrowed(self),
            _ => Cow::Owned(Orca { config: OrcaConfig { trees: 1, ..self.config }, ..self.clone() }),
        };
        let any = (self.config.encoding, None, |_: &LabelPlan| true);
        let plan = one_tree.plan_at(network, group, address, reach, any)?;
        let Channel::Label { encoding, label, .. } = &plan.channel else { return Ok(plan) };
        let (encoding, label) = (*encoding, label.clone());
        let (source, _) = self.places.of_group(Self::NAME, group)?;
        let (leaf, port) = self.place(source);
        let doors = Doors::from([(leaf, ([port].into(), label))]);
        Ok(self.with_doors(plan, address, encoding, doors))
    }

    /// The session in which all hosts of the group may send, of whom some do.
    fn packets_of_many(
        &self,
        network: &NetworkState,
        group: &Group,
        address: (IpAddr, u16),
        reach: Reach,
    ) -> Result<Plan, Refusal> {
        if self.config.encoding == Some(Encoding::Pods) {
            return Err(Refusal::Impossible(
                "labels with the leafs of pods lead from one source alone: set orca.encoding = \"auto\" or \"filter\" \
                 for groups with several"
                    .into(),
            ));
        }
        let (sources, receivers) = self.places.of_sources(Self::NAME, group)?;
        let members: Vec<Node> = sources.iter().chain(&receivers).map(|(_, server)| *server).collect();
        let failures = failures_of(Self::NAME, network, &self.config.clos);
        let session = session_of(address.0);
        let mut planner = self.planner.borrow_mut();
        planner.count_anew(network.entries_held());
        let impossible = |error: LabelError| Refusal::Impossible(format!("{error}"));
        let many = ManySession::new(&planner, session.into(), &members, &failures).map_err(impossible)?;
        let is_received = |server: &Node| receivers.iter().any(|(_, receiver)| receiver == server);
        let mut cut: Vec<u32> = Vec::new();
        for &(host, server) in &sources {
            let left_out = many.left_out(&planner, server);
            let is_missed = |server: &Node| {
                is_received(server) && (reach == Reach::All || !self.is_cut_off(*server, &failures))
            };
            let is_alone = reach == Reach::Connected && self.is_cut_off(server, &failures);
            if !is_alone && left_out.iter().any(is_missed) {
                cut.push(host.0);
            }
        }
        if !cut.is_empty() {
            return Err(Refusal::Impossible(format!(
                "failures leave no labels by which what the hosts {cut:?} send reaches all others"
            )));
        }
        let slots =
            self.slots(network, many.spine_state()).ok_or_else(|| self.full(network, many.spine_state()))?;
        let (mut doors, mut uses, mut seen) = (Doors::new(), BTreeSet::new(), BTreeSet::new());
        for &(_, server) in &sources {
            let Some(label) = many.label(&planner, server) else { continue };
            let (leaf, port) = self.place(server);
            doors.entry(leaf).or_insert_with(|| (Vec::new(), label.0.clone())).0.push(port);
            // Those with the same label have the same way, which leads to all members and so to themselves.
            if seen.insert(&label.0)
                && let Some(plan) = many.plan_of(&planner, server)
            {
                uses.extend(used_by(&self.config.clos, server, &self.reached(plan, &failures)));
            }
        }
        let entry =
            |entry: &SpineState| DeviceCommand::SpineEntry { spine: entry.spine, session, leaf: entry.leaf };
        let entries = many.spine_state().iter().map(entry);
        let label = |entry: &LeafHosts| {
            let (leaf, label) = (self.config.clos.leaf(entry.leaf), self.format.leaf_label(entry.hosts).0);
            DeviceCommand::LeafLabel { leaf, session, label }
        };
        let labels = many.leaf_hosts().iter().map(label);
        let plan = Plan {
            fabric: Self::NAME,
            resources: iter::once(resource(address)).chain(slots).collect(),
            uses: uses.into_iter().collect(),
            commands: entries.chain(labels).collect(),
            channel: self.to_address(address),
        };
        Ok(self.with_doors(plan, address, Encoding::Filter, doors))
    }

    /// The plan without the members that it does not reach.
    fn reached(&self, mut plan: LabelPlan, failures: &Failures) -> LabelPlan {
        let clos = &self.config.clos;
        let is_reached = |leaf: u32| {
            let (pod, at) = (leaf / clos.leafs_per_pod(), leaf % clos.leafs_per_pod());
            plan.tree.pods.iter().any(|of| of.pod == pod && of.leafs >> at & 1 == 1)
        };
        plan.leaf_hosts.retain(|entry| is_reached(entry.leaf));
        for entry in &mut plan.leaf_hosts {
            let works = |port: &u32| failures.link_works(clos, clos.leaf(entry.leaf), *port);
            let ports = (0..clos.hosts_per_leaf()).filter(works);
            entry.hosts &= ports.fold(0, |ports, port| ports | 1 << port);
        }
        plan
    }

    /// Returns the plans that leave out a host of their group, and lead to more hosts now.
    pub(super) fn packets_improved(&self, network: &NetworkState) -> Vec<(PlanId, Plan)> {
        let is_partial = |running: &Running| {
            let uses = |server: Node| running.plan.uses.contains(&Orca::link(server, self.place(server).0));
            let mut servers = running.group.hosts().filter_map(|host| self.places.get(host));
            running.plan.fabric == Self::NAME
                && matches!(running.plan.channel, Channel::Multicast { .. })
                && servers.any(|server| !uses(server))
        };
        let partial: Vec<PlanId> =
            network.running().filter(|(_, running)| is_partial(running)).map(|(id, _)| id).collect();
        if partial.is_empty() {
            return Vec::new();
        }
        let mut draft = network.clone();
        let mut better = Vec::new();
        for id in partial {
            let Some(Running { group, plan: old }) = draft.release(id) else { continue };
            let Channel::Multicast { group: address, .. } = old.channel else { continue };
            let plan = self.packets_at(&draft, &group, address, Reach::Connected).ok();
            let plan = plan.filter(|plan| *plan != old);
            // What is out of use by now is the old plan's loss, and not another one's.
            let _is_held = draft.hold(id, group, plan.clone().unwrap_or(old));
            better.extend(plan.map(|plan| (id, plan)));
        }
        better
    }

    /// The leaf of a server, and its port there.
    fn place(&self, server: Node) -> (Node, u32) {
        let clos = &self.config.clos;
        (clos.leaf(clos.leaf_index_of(server)), server % clos.hosts_per_leaf())
    }

    fn to_address(&self, address: (IpAddr, u16)) -> Channel {
        Channel::Multicast { group: address, rate: self.config.rate, attempt_interval: Duration::ZERO }
    }

    /// The plan with a door at each leaf that agents name hosts for, and at those of the sources.
    fn with_doors(
        &self,
        mut plan: Plan,
        address: (IpAddr, u16),
        encoding: Encoding,
        mut doors: Doors,
    ) -> Plan {
        for command in &plan.commands {
            if let DeviceCommand::LeafLabel { leaf, .. } = command {
                doors.entry(*leaf).or_default();
            }
        }
        let session = session_of(address.0);
        let doors = doors.into_iter().map(|(leaf, (mut ports, label))| {
            ports.sort_unstable();
            DeviceCommand::LeafDoor { leaf, session, ports, encoding, label }
        });
        plan.commands.change(|commands| commands.extend(doors));
        plan.channel = self.to_address(address);
        plan
    }
}
