//! A node, as the agents' are: what comes is looked at before its forwarder hears of it.

use super::world::{Datagram, World};
use crate::{Plant, coverage};
use alloc::collections::VecDeque;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use polycast_protocol::pull::{
    Data, Face, Forwarder, ForwarderConfig, ForwarderInput, ForwarderOutput, HOPS_MAX, Interest, Name,
    Packet, Payload, ReceiverInput, ReceiverOutput,
};
use polycast_simulator::packet::world::keys;
use polycast_simulator::packet::{Network, NodeId};
use polycast_types::{Duration, Time};
use polycast_wire::pull as wire;

/// No timer is set.
const NEVER: Time = Time(u64::MAX);
/// The timer of a node that has looked at a packet; that of its machines is 0.
const SERVED: u64 = 1;
/// Packets that wait to be looked at; further ones are lost, as at a socket.
const INBOX_MAX: usize = 256;
/// A packet that is looked at for as long as so many.
const DEAR: u64 = 30;

/// A forwarder with its store, and what waits at it.
pub(in super::super) struct Node {
    forwarder: Forwarder,
    config: ForwarderConfig,
    slots: Vec<Arc<[u8]>>,
    asks: VecDeque<Interest>,
    inbox: VecDeque<(u8, Arc<[u8]>)>,
    armed: Time,
}

impl Node {
    pub(in super::super) fn new(config: ForwarderConfig) -> Self {
        Node {
            forwarder: Forwarder::new(config),
            config,
            slots: Vec::new(),
            asks: VecDeque::new(),
            inbox: VecDeque::new(),
            armed: NEVER,
        }
    }

    /// It forgets all. Its host goes on, and the timer that the host waits for is set.
    pub(in super::super) fn crash(&mut self) {
        *self = Node { armed: self.armed, ..Node::new(self.config) };
    }
}

impl World {
    pub(in super::super) fn node_mut(&mut self, node: u32) -> &mut Node {
        &mut self.nodes[node as usize]
    }

    /// A packet is at a node; it is looked at when those before it have been.
    pub(super) fn take(&mut self, net: &mut Network<Datagram>, node: u32, port: u8, bytes: Arc<[u8]>) {
        if self.service == Duration::ZERO {
            return self.look_at(net, node, port, &bytes);
        }
        let cost = self.cost(&bytes);
        let inbox = &mut self.nodes[node as usize].inbox;
        if inbox.len() >= INBOX_MAX {
            return;
        }
        inbox.push_back((port, bytes));
        if inbox.len() == 1 {
            net.set_timer(NodeId(node), net.now() + cost, SERVED);
        }
    }

    /// Returns the time that a node takes to check a packet.
    fn cost(&self, bytes: &[u8]) -> Duration {
        let is_dear = self.plant == Some(Plant::DearForgeries) && doubt(bytes).is_some();
        self.service * if is_dear { DEAR } else { 1 }
    }

    /// A timer of a node has come.
    pub(super) fn wake(&mut self, net: &mut Network<Datagram>, node: u32, token: u64) {
        if token != SERVED {
            if net.now() >= self.nodes[node as usize].armed {
                self.nodes[node as usize].armed = NEVER;
                self.drive(net, node);
            }
            return;
        }
        let Some((port, bytes)) = self.nodes[node as usize].inbox.pop_front() else { return };
        self.look_at(net, node, port, &bytes);
        if let Some((_, next)) = self.nodes[node as usize].inbox.front() {
            net.set_timer(NodeId(node), net.now() + self.cost(next), SERVED);
        }
    }

    fn look_at(&mut self, net: &mut Network<Datagram>, node: u32, port: u8, bytes: &[u8]) {
        let Ok(wire::Packet::Transfer(header, payload)) = wire::Packet::parse(bytes) else { return };
        match doubt(bytes) {
            None => {}
            Some(wire::Doubt::TooFar) => return,
            Some(wire::Doubt::Poisoned) => {
                self.coverage.hit(coverage::NODE_DOUBTS);
                if self.plant == Some(Plant::ForgetWaiters) {
                    let forwarder = &mut self.nodes[node as usize].forwarder;
                    forwarder.forget_pending_before(net.now() + Duration(1));
                }
                if self.plant != Some(Plant::SkipDigest) {
                    return;
                }
            }
        }
        let packet = Packet::from_wire(&header, payload.len() as u16);
        self.forward(net, node, Face::Port(port), packet, payload);
        self.ask(net, node);
        self.drive(net, node);
    }

    /// Gives receivers' interests to the forwarder; packets in its store lead to further ones.
    fn ask(&mut self, net: &mut Network<Datagram>, node: u32) {
        while let Some(interest) = self.nodes[node as usize].asks.pop_front() {
            self.forward(net, node, Face::Local, Packet::Interest(interest), &[]);
        }
    }

    fn forward(
        &mut self,
        net: &mut Network<Datagram>,
        node: u32,
        from: Face,
        packet: Packet,
        arrived: &[u8],
    ) {
        let now = net.now();
        let at = node as usize;
        self.nodes[at].forwarder.handle(now, ForwarderInput::Packet { from, packet });
        while let Some(output) = self.nodes[at].forwarder.poll(now) {
            match output {
                ForwarderOutput::Send { port, packet, payload } => {
                    let payload = self.payload_of(at, payload, arrived);
                    self.send(net, node, port, &packet, &payload);
                }
                ForwarderOutput::Keep { slot } => {
                    if let Packet::Data(data) = &packet {
                        self.check_taken(node, &data.name, arrived);
                    }
                    let (slots, slot) = (&mut self.nodes[at].slots, slot as usize);
                    if slots.len() <= slot {
                        slots.resize_with(slot + 1, || Arc::from([]));
                    }
                    slots[slot] = arrived.into();
                }
                ForwarderOutput::Deliver { data, payload } => {
                    let payload = self.payload_of(at, payload, arrived);
                    self.deliver(net, node, data, &payload);
                }
                ForwarderOutput::Serve { port, interest } => {
                    if node == self.group.source {
                        self.serve(now, port, interest);
                    }
                }
            }
        }
    }

    fn payload_of(&self, node: usize, payload: Payload, arrived: &[u8]) -> Arc<[u8]> {
        match payload {
            Payload::None => Arc::from([]),
            Payload::Arrived => arrived.into(),
            Payload::Slot(slot) => Arc::clone(&self.nodes[node].slots[slot as usize]),
        }
    }

    /// Checks that a payload that a node keeps, or gives to its receiver, belongs under its name.
    fn check_taken(&mut self, node: u32, name: &Name, payload: &[u8]) {
        if !self.truth.is_right(name, payload) {
            self.breaches.push(format!("node {node} takes other bytes for packet {}", name.sn));
        }
    }

    fn deliver(&mut self, net: &mut Network<Datagram>, node: u32, data: Data, payload: &[u8]) {
        let Some(&at) = self.host_at.get(&node) else { return };
        let Some(end) = self.hosts[at].end.as_mut().filter(|end| end.handle == data.name.transfer) else {
            return;
        };
        end.machine.handle(net.now(), ReceiverInput::Data(data));
        self.check_taken(node, &data.name, payload);
        if !self.truth.has_named(&data.name) {
            let sn = data.name.sn;
            self.breaches
                .push(format!("receiver {at} takes packet {sn} by a name that its source has not given"));
        }
        self.poll_receiver(net, node, payload);
    }

    /// Does what the receiver at this node says.
    fn poll_receiver(&mut self, net: &mut Network<Datagram>, node: u32, payload: &[u8]) {
        let Some(&at) = self.host_at.get(&node) else { return };
        let (now, skips) = (net.now(), self.plant == Some(Plant::SkipCheck));
        while let Some(output) = self.hosts[at].end.as_mut().and_then(|end| end.machine.poll(now)) {
            let host = &mut self.hosts[at];
            match output {
                ReceiverOutput::Ask(mut interest) => {
                    let named = host.end.as_ref().and_then(|end| end.names.digest(interest.name.sn));
                    interest.name.digest = named.expect("only what is named is asked for");
                    self.nodes[node as usize].asks.push_back(interest);
                }
                ReceiverOutput::Keep { sn, .. } => {
                    let damages = self.damages_one_in > 0 && net.draw().is_multiple_of(self.damages_one_in);
                    let damage = damages.then(|| net.draw());
                    host.keep(now, &self.geometry, (sn, payload), damage, skips);
                }
                ReceiverOutput::Listed { section } => host.listed(now, &self.geometry, section, skips),
                // What counts is that all groups are verified.
                ReceiverOutput::Complete | ReceiverOutput::Stalled { .. } => {}
            }
        }
        let host = &mut self.hosts[at];
        if host.end.is_some() && host.is_whole() {
            (host.end, host.done_at) = (None, Some(now));
            if host.bytes != self.object {
                self.breaches.push(format!("receiver {at} has other content than its source has said"));
            }
            self.say_done(net, at);
        }
    }

    /// Lets the machines of a node do what is to be done now.
    pub(super) fn drive(&mut self, net: &mut Network<Datagram>, node: u32) {
        self.poll_receiver(net, node, &[]);
        self.ask(net, node);
        let mut deadline = None;
        if node == self.group.source {
            self.drive_source(net);
            deadline = self.source_deadline();
        }
        let host = self.host_at.get(&node).and_then(|at| self.hosts[*at].end.as_ref());
        let deadlines = deadline.into_iter().chain(host.and_then(|end| end.machine.deadline()));
        let armed = &mut self.nodes[node as usize].armed;
        if let Some(at) = deadlines.min().filter(|at| at < armed) {
            *armed = at.max(net.now());
            net.set_timer(NodeId(node), *armed, 0);
        }
    }
}

/// Returns the doubt of a node about a packet, if any.
pub(super) fn doubt(bytes: &[u8]) -> Option<wire::Doubt> {
    let Ok(wire::Packet::Transfer(header, payload)) = wire::Packet::parse(bytes) else { return None };
    wire::admit(&header, HOPS_MAX, || keys::hash_of(header.handle, header.sn, payload)).err()
}
