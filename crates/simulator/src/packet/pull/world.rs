//! A world of pull nodes alone: every node of a graph is a caching forwarder.

use super::{Group, PullNode, PullPacket};
use crate::packet::{LinkId, Network, NodeId, World};
use alloc::vec::Vec;
use polycast_protocol::pull::{ForwarderConfig, ReceiverInput};
use polycast_topology::{Graph, Node};
use polycast_types::Handle;

/// Every node of a graph as a caching forwarder, with the groups among them.
pub struct PullWorld {
    nodes: Vec<PullNode>,
    /// Receivers that do not have everything.
    missing: u32,
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
        PullWorld { nodes: (0..graph.node_count()).map(node).collect(), missing: 0 }
    }

    /// Puts a group's source and receivers in place and lets the receivers begin.
    pub fn start(&mut self, net: &mut Network<PullPacket>, group: &Group) {
        self.nodes[group.source as usize].add_source(group.source_config());
        for (at, &receiver) in group.receivers.iter().enumerate() {
            self.nodes[receiver as usize].add_receiver(group.receiver_config(at));
            self.missing += 1;
        }
        for &receiver in &group.receivers {
            self.tell(net, receiver, group.transfer, ReceiverInput::Begin);
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

    /// How many receivers do not have everything.
    #[must_use]
    pub fn missing(&self) -> u32 {
        self.missing
    }

    /// Something happens to a receiver.
    pub fn tell(
        &mut self,
        net: &mut Network<PullPacket>,
        node: Node,
        transfer: Handle,
        input: ReceiverInput,
    ) {
        let finished = self.nodes[node as usize].tell_receiver(net, NodeId(node), transfer, input);
        self.finished(net, finished);
    }

    /// A receiver and its forwarder crash and come back at once; of its packets it has kept `held`.
    pub fn restart_receiver(
        &mut self,
        net: &mut Network<PullPacket>,
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
        self.tell(net, node, group.transfer, ReceiverInput::Held { sns: held });
        self.tell(net, node, group.transfer, ReceiverInput::Begin);
    }

    fn finished(&mut self, net: &mut Network<PullPacket>, receivers: u32) {
        self.missing -= receivers;
        if receivers > 0 && self.missing == 0 {
            net.stop();
        }
    }
}

impl World for PullWorld {
    type Packet = PullPacket;

    #[inline]
    fn arrive(&mut self, net: &mut Network<PullPacket>, node: NodeId, link: LinkId, packet: PullPacket) {
        let port = port_of(net, node, link);
        let finished = self.nodes[node.index()].arrive(net, node, port, packet);
        if finished > 0 {
            self.finished(net, finished);
        }
    }

    fn timer(&mut self, net: &mut Network<PullPacket>, node: NodeId, _token: u64) {
        if node == NodeId::CONTROL {
            net.stop();
            return;
        }
        let finished = self.nodes[node.index()].timer(net, node);
        self.finished(net, finished);
    }
}

/// The port of `node` at which a link arrives.
#[inline]
pub(super) fn port_of<P: crate::packet::Packet>(net: &Network<P>, node: NodeId, link: LinkId) -> u8 {
    let back = net.reverse(link).expect("the links of a graph go both ways");
    (back.0 - net.links_from(node)[0].0) as u8
}
