//! A world of pull nodes: every node of a graph is a caching forwarder, and TCP may share its links.

use super::{Datagram, Flow, FlowConfig, Group, PullNode};
use crate::packet::{LinkId, Network, NodeId, World};
use alloc::vec::Vec;
use core::ops::Range;
use polycast_protocol::pull::{ForwarderConfig, ReceiverInput};
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

    /// Opens a TCP connection and begins to send; gives its number, or `None` if two nodes of its path are not
    /// joined by a link.
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

    /// How many receivers do not have everything.
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

    /// A receiver and its forwarder crash. Gives the packets that it had, which it has stored; `None` if that was
    /// everything. One that does not come back is not waited for.
    pub fn crash_receiver(
        &mut self,
        group: &Group,
        at: usize,
        config: ForwarderConfig,
        comes_back: bool,
    ) -> Option<Vec<Range<u64>>> {
        let place = &mut self.nodes[group.receivers[at] as usize];
        let (machine, _) = place.receiver(group.transfer)?;
        if machine.is_complete() {
            return None;
        }
        let packets = 0..group.blocks.packets();
        let held: RangeSet = packets.filter(|&sn| machine.has(sn)).map(|sn| sn..sn + 1).collect();
        place.crash(config);
        self.missing -= u32::from(!comes_back);
        Some(held.iter().collect())
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
        let packet = match packet {
            Datagram::Pull(packet) => packet,
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
pub(in crate::packet) fn port_of<P: crate::packet::Packet>(
    net: &Network<P>,
    node: NodeId,
    link: LinkId,
) -> u8 {
    let back = net.reverse(link).expect("the links of a graph go both ways");
    (back.0 - net.links_from(node)[0].0) as u8
}
