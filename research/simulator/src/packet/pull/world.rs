//! A world of pull nodes: every node of a graph is a caching forwarder, and TCP may share its links.

use super::watch::{TOKEN, Watch};
use super::{Datagram, Flow, FlowConfig, Group, LinkNews, PullNode};
use crate::packet::hooks::Hooks;
use crate::packet::{LinkId, Network, NodeId, World};
use alloc::vec::Vec;
use core::ops::Range;
use polycast_protocol::pull::{ForwarderConfig, NeighbourConfig, ReceiverInput};
use polycast_topology::{Graph, Node};
use polycast_types::{Handle, RangeSet};

/// Every node of a graph as a caching forwarder, with the groups among them.
pub struct PullWorld {
    nodes: Vec<PullNode>,
    flows: Vec<Flow>,
    /// Receivers that do not have everything.
    missing: u32,
    /// Sections of which receivers know the roots of the lists, where names travel in lists.
    roots: u64,
    /// The ends of links where they greet each other.
    watch: Option<Watch>,
    header_bytes: u16,
}

impl PullWorld {
    /// Forwarders at all nodes of a graph. `config` is asked for each with its number of ports.
    #[must_use]
    pub fn new<G: Graph + ?Sized>(
        graph: &G,
        header_bytes: u16,
        mut config: impl FnMut(Node, u8) -> ForwarderConfig,
    ) -> Self {
        let node = |node| {
            let ports = graph.port_count(node).min(255) as u8;
            PullNode::new(config(node, ports), header_bytes)
        };
        PullWorld {
            nodes: (0..graph.node_count()).map(node).collect(),
            flows: Vec::new(),
            missing: 0,
            roots: u64::MAX,
            watch: None,
            header_bytes,
        }
    }

    /// Tells the hooks of each input of the nodes' machines from now on.
    pub fn set_hooks(&mut self, hooks: &Hooks) {
        self.nodes.iter_mut().for_each(|node| node.set_hooks(hooks.clone()));
    }

    /// Lets the ends of all links greet each other from now on. The run stops when one has something to say
    /// of its link.
    pub fn greet(&mut self, net: &mut Network<Datagram>, config: NeighbourConfig) {
        self.watch = Some(Watch::new(net, config, self.header_bytes.into()));
    }

    /// Takes the reports that the ends of links have made since the last call.
    pub fn take_news(&mut self) -> Vec<LinkNews> {
        self.watch.as_mut().map(Watch::take_news).unwrap_or_default()
    }

    /// The interface at the far end of a link sees that something comes in by it, or no longer.
    pub fn set_carrier(&mut self, net: &mut Network<Datagram>, link: LinkId, up: bool) {
        if let Some(watch) = &mut self.watch {
            watch.carrier(net, link, up);
        }
    }

    /// Puts a group's source and receivers in place and lets the receivers begin.
    pub fn start(&mut self, net: &mut Network<Datagram>, group: &Group) {
        self.nodes[group.source as usize].add_source(group.source_config());
        for (at, &receiver) in group.receivers.iter().enumerate() {
            self.nodes[receiver as usize].add_receiver(group.receiver_config(at));
            self.missing += 1;
            self.tell_roots(net, group, receiver);
        }
        for &receiver in &group.receivers {
            self.tell(net, receiver, group.transfer, ReceiverInput::Begin);
        }
    }

    /// From now on receivers know the roots of the lists of so many sections.
    pub fn know_roots(&mut self, net: &mut Network<Datagram>, group: &Group, until: u64) {
        self.roots = until;
        group.receivers.iter().for_each(|&receiver| self.tell_roots(net, group, receiver));
    }

    fn tell_roots(&mut self, net: &mut Network<Datagram>, group: &Group, receiver: Node) {
        if group.blocks.sections() > 0 {
            self.tell(net, receiver, group.transfer, ReceiverInput::Roots { until: self.roots });
        }
    }

    /// A node.
    #[must_use]
    pub fn node(&self, node: Node) -> &PullNode {
        &self.nodes[node as usize]
    }

    /// A node, to change it.
    pub fn node_mut(&mut self, node: Node) -> &mut PullNode {
        &mut self.nodes[node as usize]
    }

    /// Opens a TCP connection and begins to send; gives its number, or `None` if two nodes of its path are
    /// not joined by a link.
    pub fn open_flow(&mut self, net: &mut Network<Datagram>, config: &FlowConfig) -> Option<usize> {
        let number = u16::try_from(self.flows.len()).ok()?;
        let mut flow = Flow::new(net, number, config)?;
        flow.drive(net);
        self.flows.push(flow);
        Some(usize::from(number))
    }

    /// A connection.
    #[must_use]
    pub fn flow(&self, number: usize) -> &Flow {
        &self.flows[number]
    }

    /// Nothing more is sent on a connection.
    pub fn end_flow(&mut self, number: usize) {
        self.flows[number].end();
    }

    /// Returns the number of receivers that do not have everything.
    #[must_use]
    pub fn missing(&self) -> u32 {
        self.missing
    }

    /// Something happens to a receiver.
    pub fn tell(&mut self, net: &mut Network<Datagram>, node: Node, transfer: Handle, input: ReceiverInput) {
        let finished = self.nodes[node as usize].tell_receiver(net, NodeId(node), transfer, input);
        self.finished(net, finished);
    }

    /// A receiver and its forwarder crash and come back at once; of its packets it has kept `held`.
    pub fn restart_receiver(
        &mut self,
        net: &mut Network<Datagram>,
        group: &Group,
        at: usize,
        config: ForwarderConfig,
        held: core::ops::Range<u64>,
    ) {
        let node = group.receivers[at];
        let place = &mut self.nodes[node as usize];
        let was_complete = place.receiver(group.transfer).is_some_and(|(machine, _)| machine.is_complete());
        self.missing += u32::from(was_complete);
        place.crash(config);
        place.add_receiver(group.receiver_config(at));
        self.tell_roots(net, group, node);
        self.tell(net, node, group.transfer, ReceiverInput::Held { sns: held });
        self.tell(net, node, group.transfer, ReceiverInput::Begin);
    }

    /// A host crashes: its forwarder, and its receivers at these places of these groups. Gives for each the
    /// packets that it had, which it has stored; `None` if that was everything, or nothing had begun. A host
    /// none of whose receivers lacks anything stays. One that does not come back is not waited for.
    pub fn crash_host(
        &mut self,
        groups: &[Group],
        places: &[(usize, usize)],
        config: ForwarderConfig,
        comes_back: bool,
    ) -> Vec<Option<Vec<Range<u64>>>> {
        let held = |world: &Self, &(group, at): &(usize, usize)| {
            let group = &groups[group];
            let (machine, _) = world.nodes[group.receivers[at] as usize].receiver(group.transfer)?;
            let packets = 0..group.blocks.packets();
            let held: RangeSet = packets.filter(|&sn| machine.has(sn)).map(|sn| sn..sn + 1).collect();
            (!machine.is_complete()).then(|| held.iter().collect())
        };
        let stored: Vec<Option<Vec<Range<u64>>>> = places.iter().map(|place| held(self, place)).collect();
        let lacking = stored.iter().flatten().count() as u32;
        if let (1.., Some(&(group, at))) = (lacking, places.first()) {
            let node = groups[group].receivers[at] as usize;
            self.nodes[node].crash_receivers(config);
            self.missing -= if comes_back { 0 } else { lacking };
        }
        stored
    }

    /// A receiver that has crashed comes back with what it had stored.
    pub fn rejoin_receiver(
        &mut self,
        net: &mut Network<Datagram>,
        group: &Group,
        at: usize,
        held: &[Range<u64>],
    ) {
        let node = group.receivers[at];
        if self.nodes[node as usize].receiver(group.transfer).is_some() {
            return;
        }
        self.nodes[node as usize].add_receiver(group.receiver_config(at));
        self.tell_roots(net, group, node);
        for sns in held {
            self.tell(net, node, group.transfer, ReceiverInput::Held { sns: sns.clone() });
        }
        self.tell(net, node, group.transfer, ReceiverInput::Begin);
    }

    /// The source's host crashes and comes back at once; it has the object, and nothing else is left.
    pub fn restart_source(&mut self, group: &Group, config: ForwarderConfig) {
        let place = &mut self.nodes[group.source as usize];
        place.crash(config);
        place.add_source(group.source_config());
    }

    fn finished(&mut self, net: &mut Network<Datagram>, receivers: u32) {
        self.missing -= receivers;
        if receivers > 0 && self.missing == 0 {
            net.stop();
        }
    }
}

impl World for PullWorld {
    type Packet = Datagram;

    #[inline]
    fn arrive(&mut self, net: &mut Network<Datagram>, node: NodeId, link: LinkId, packet: Datagram) {
        if let Some(watch) = &mut self.watch {
            let greeting = match packet {
                Datagram::Greeting { whole: false, .. } => return,
                Datagram::Greeting { heard, .. } => Some(heard),
                _ => None,
            };
            watch.arrived(net, node, link, greeting);
        }
        let packet = match packet {
            Datagram::Pull(packet) => packet,
            Datagram::Greeting { .. } => return,
            Datagram::Segment(segment) => {
                self.flows[usize::from(segment.flow)].arrive(net, segment);
                return;
            }
        };
        let port = port_of(net, node, link);
        let finished = self.nodes[node.index()].arrive(net, node, port, packet);
        if finished > 0 {
            self.finished(net, finished);
        }
    }

    fn timer(&mut self, net: &mut Network<Datagram>, node: NodeId, token: u64) {
        if token == TOKEN {
            self.watch.iter_mut().for_each(|watch| watch.timer(net, node));
            return;
        }
        if let Some(flow) = token.checked_sub(1) {
            self.flows[flow as usize].timer(net);
            return;
        }
        let finished = self.nodes[node.index()].timer(net, node);
        self.finished(net, finished);
    }
}

/// The port of `node` at which a link arrives.
#[inline]
pub fn port_of<P: crate::packet::Packet>(net: &Network<P>, node: NodeId, link: LinkId) -> u8 {
    let back = net.reverse(link).expect("the links of a graph go both ways");
    (back.0 - net.links_from(node)[0].0) as u8
}
