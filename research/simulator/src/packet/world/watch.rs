//! Finds out that a link between switches has failed: every switch probes its neighbours with the machine
//! that label switches run ([`Probes`], Orca section 3.4), and sees where nothing comes in any more.

use super::{Cluster, Datagram, Token};
use crate::packet::{LinkId, Network, NodeId};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use polycast_protocol::switch::{ProbeConfig, ProbeOutput, Probes};
use polycast_types::{Duration, Time};
use polycast_wire::label::Probe;

/// Bytes of a probe's packet.
const PROBE_BYTES: u32 = 64;
/// So many probes in a row decide whether a neighbour works.
const PROBES_IN_A_ROW: u32 = 4;

/// Sign by which a switch knows the state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sense {
    Light,
    Answers,
}

/// Report of a switch about a link of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchNews {
    /// The link, from the switch that says it.
    pub link: LinkId,
    /// Set if the link works.
    pub up: bool,
}

struct Switch {
    probes: Probes,
    armed: Time,
}

/// State of links as the switches see it.
pub(super) struct Watch {
    switches: BTreeMap<NodeId, Switch>,
    /// Links from switches that see no light there, or hear no answer.
    dark: BTreeSet<(LinkId, Sense)>,
    carrier: bool,
    news: Vec<SwitchNews>,
}

impl Watch {
    fn note(&mut self, net: &mut Network<Datagram>, link: LinkId, sense: Sense, works: bool) {
        let is_dark =
            |watch: &Self| [Sense::Light, Sense::Answers].iter().any(|s| watch.dark.contains(&(link, *s)));
        let before = is_dark(self);
        if works {
            self.dark.remove(&(link, sense));
        } else {
            self.dark.insert((link, sense));
        }
        if is_dark(self) != before {
            self.news.push(SwitchNews { link, up: before });
            net.stop();
        }
    }

    fn drive(&mut self, net: &mut Network<Datagram>, node: NodeId) {
        let Some(switch) = self.switches.get_mut(&node) else { return };
        let mut found = Vec::new();
        while let Some(output) = switch.probes.poll(net.now()) {
            match output {
                ProbeOutput::Send { port, probe } => {
                    net.send(LinkId(port), Datagram::Probe(probe), PROBE_BYTES, 0);
                }
                ProbeOutput::Neighbour { port, works } => found.push((LinkId(port), works)),
            }
        }
        if let Some(at) = switch.probes.deadline()
            && at < switch.armed
        {
            switch.armed = at;
            net.set_timer(node, at, Token::Watch(node.0).pack());
        }
        for (link, works) in found {
            self.note(net, link, Sense::Answers, works);
        }
    }
}

impl Cluster {
    /// Lets the switches, which are all nodes from this one on, probe each other from now on. The run stops
    /// when one has something to say of a link.
    pub fn watch(
        &mut self,
        net: &mut Network<Datagram>,
        first_switch: NodeId,
        period: Duration,
        carrier: bool,
    ) {
        let config = ProbeConfig { period, in_a_row: PROBES_IN_A_ROW };
        let now = net.now();
        let nodes = (first_switch.0..net.node_count()).map(NodeId);
        let switches = nodes.map(|node| {
            // A port is named by its link: a switch has one to each neighbour.
            let links = net.links_from(node).iter().filter(|&&link| net.ends(link).1 >= first_switch);
            let probes = Probes::new(config, links.map(|link| link.0), now);
            (node, Switch { probes, armed: Time(u64::MAX) })
        });
        let switches: BTreeMap<NodeId, Switch> = switches.collect();
        let mut watch = Watch { switches, dark: BTreeSet::new(), carrier, news: Vec::new() };
        let nodes: Vec<NodeId> = watch.switches.keys().copied().collect();
        nodes.into_iter().for_each(|node| watch.drive(net, node));
        self.watch = Some(watch);
    }

    /// Takes the reports that switches have made since the last call.
    pub fn take_news(&mut self) -> Vec<SwitchNews> {
        self.watch.as_mut().map(|watch| core::mem::take(&mut watch.news)).unwrap_or_default()
    }

    /// A link has gone down or come up: the switch at its far end sees that at its own link back.
    pub(super) fn see_light(&mut self, net: &mut Network<Datagram>, link: LinkId, up: bool) {
        let (Some(watch), Some(back)) = (&mut self.watch, net.reverse(link)) else { return };
        let (node, far) = net.ends(back);
        if watch.carrier && watch.switches.contains_key(&node) && watch.switches.contains_key(&far) {
            watch.note(net, back, Sense::Light, up);
        }
    }

    /// A probe comes to a switch, whose data path sends it back; or an answer to one of its own.
    pub(super) fn probed(&mut self, net: &mut Network<Datagram>, node: NodeId, link: LinkId, probe: Probe) {
        let Some(back) = net.reverse(link) else { return };
        if !probe.is_answer {
            let answer = Probe { is_answer: true, ..probe };
            net.send(back, Datagram::Probe(answer), PROBE_BYTES, 0);
            return;
        }
        if let Some(switch) = self.watch.as_mut().and_then(|watch| watch.switches.get_mut(&node)) {
            switch.probes.answered(back.0, probe);
        }
    }

    pub(super) fn watch_timer(&mut self, net: &mut Network<Datagram>, node: NodeId) {
        let Some(watch) = &mut self.watch else { return };
        if let Some(switch) = watch.switches.get_mut(&node)
            && net.now() >= switch.armed
        {
            switch.armed = Time(u64::MAX);
            watch.drive(net, node);
        }
    }
}
