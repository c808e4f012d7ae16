//! Finds out that a link has failed: every end of a link runs the machine that nodes run
//! ([`Neighbour`]), and its greetings share the links with all else (Datacast, sections 5 and 6).

use super::Datagram;
use super::world::port_of;
use crate::packet::{LinkId, Network, NodeId};
use alloc::vec::Vec;
use polycast_protocol::pull::{Neighbour, NeighbourConfig, NeighbourOutput};
use polycast_types::Time;

/// Timers of neighbours; those of nodes and connections have other tokens.
pub(super) const TOKEN: u64 = u64::MAX;

/// Report of one end about its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkNews {
    /// The link from the end that says it.
    pub link: LinkId,
    /// Set if the link works.
    pub up: bool,
}

/// The neighbours of all nodes.
pub(super) struct Watch {
    /// By node and port, and when each node's timer comes.
    nodes: Vec<(Vec<Neighbour>, Time)>,
    greeting_bytes: u32,
    news: Vec<LinkNews>,
}

impl Watch {
    /// Lets every end of every link begin.
    pub(super) fn new(net: &mut Network<Datagram>, config: NeighbourConfig, greeting_bytes: u32) -> Self {
        let now = net.now();
        let nodes = (0..net.node_count()).map(NodeId).map(|node| {
            let ports = net.links_from(node).len();
            ((0..ports).map(|_| Neighbour::new(config, now)).collect(), Time(u64::MAX))
        });
        let mut watch = Watch { nodes: nodes.collect(), greeting_bytes, news: Vec::new() };
        for node in 0..watch.nodes.len() as u32 {
            watch.arm(net, NodeId(node));
        }
        watch
    }

    /// A packet has come by a link; if it is a greeting, whether the neighbour hears.
    pub(super) fn arrived(
        &mut self,
        net: &mut Network<Datagram>,
        node: NodeId,
        link: LinkId,
        greeting: Option<bool>,
    ) {
        let port = port_of(net, node, link);
        let neighbour = &mut self.nodes[node.index()].0[usize::from(port)];
        neighbour.heard(net.now());
        if let Some(heard) = greeting {
            neighbour.greeted(heard);
            self.drive(net, node);
        }
    }

    /// The interface at the far end of a link sees that something comes in by it, or no longer.
    pub(super) fn carrier(&mut self, net: &mut Network<Datagram>, link: LinkId, up: bool) {
        let (_, node) = net.ends(link);
        let port = port_of(net, node, link);
        self.nodes[node.index()].0[usize::from(port)].set_carrier(up);
        self.drive(net, node);
    }

    pub(super) fn timer(&mut self, net: &mut Network<Datagram>, node: NodeId) {
        let armed = &mut self.nodes[node.index()].1;
        if net.now() >= *armed {
            *armed = Time(u64::MAX);
            self.drive(net, node);
        }
    }

    /// Takes the reports made since the last call.
    pub(super) fn take_news(&mut self) -> Vec<LinkNews> {
        core::mem::take(&mut self.news)
    }

    fn drive(&mut self, net: &mut Network<Datagram>, node: NodeId) {
        let links = net.links_from(node).to_vec();
        for (neighbour, link) in self.nodes[node.index()].0.iter_mut().zip(links) {
            while let Some(output) = neighbour.poll(net.now()) {
                match output {
                    NeighbourOutput::Greet { heard } => {
                        net.send(link, Datagram::Greeting { heard, whole: true }, self.greeting_bytes, 0);
                    }
                    NeighbourOutput::Link { up } => {
                        self.news.push(LinkNews { link, up });
                        net.stop();
                    }
                }
            }
        }
        self.arm(net, node);
    }

    fn arm(&mut self, net: &mut Network<Datagram>, node: NodeId) {
        let (neighbours, armed) = &mut self.nodes[node.index()];
        let Some(at) = neighbours.iter().map(Neighbour::deadline).min() else { return };
        let at = at.max(net.now());
        if at < *armed {
            *armed = at;
            net.set_timer(node, at, TOKEN);
        }
    }
}
