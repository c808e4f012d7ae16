//! One node: it moves packets between the engine and the machines.

use super::{PullPacket, content_of};
use crate::packet::hooks::{Event, Hooks};
use crate::packet::{LinkId, Network, NodeId, Packet};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_protocol::pull::{
    self, Data, Face, Forwarder, ForwarderConfig, ForwarderInput, ForwarderOutput, Interest, Payload,
    Receiver, ReceiverConfig, ReceiverInput, ReceiverOutput, Source, SourceConfig, SourceInput, SourceOutput,
};
use polycast_types::{Duration, Handle, Time};

/// No timer is set.
const NEVER: Time = Time(u64::MAX);

/// Observations of a receiver from outside.
#[derive(Clone, Debug, Default)]
pub struct ReceiverLog {
    /// Time at which the receiver had everything.
    pub finished_at: Option<Time>,
    /// Packets that came with the wrong content.
    pub corrupt: u64,
    /// Packets whose content, as it was kept last, is not the object's.
    pub wrong: BTreeSet<u64>,
    /// Number of times that the receiver found a tree silent.
    pub stalls: u64,
    /// Number of packets by round trip in microseconds; kept if requested.
    pub round_trips: Option<BTreeMap<u64, u64>>,
}

impl ReceiverLog {
    /// A packet is kept with this content.
    fn note(&mut self, transfer: Handle, sn: u64, content: u32) {
        if content == content_of(transfer, sn) {
            self.wrong.remove(&sn);
        } else {
            self.wrong.insert(sn);
        }
    }

    /// Returns the reason that a receiver's packets are not the object, if so: a receiver that is done must
    /// have the exact object.
    #[must_use]
    pub fn breach(&self, machine: &Receiver) -> Option<String> {
        let kept = self.wrong.iter().find(|sn| machine.has(**sn))?;
        Some(format!("packet {kept} was kept with the wrong content"))
    }
}

struct ReceiverAt {
    transfer: Handle,
    machine: Receiver,
    log: ReceiverLog,
}

/// The machines of one node.
pub struct PullNode {
    header_bytes: u16,
    forwarder: Forwarder,
    /// Number that stands for the payload in each slot of the forwarder's store.
    contents: Vec<u32>,
    receivers: Vec<ReceiverAt>,
    sources: Vec<(Handle, Source)>,
    /// The earliest timer that is set.
    armed: Time,
    /// Data lost before it comes to a port's queue, in parts of a million.
    entry_losses: Vec<(u8, u32)>,
    hooks: Hooks,
}

impl PullNode {
    /// A forwarder alone; a packet has `header_bytes` beside its payload, and an interest has nothing else.
    #[must_use]
    pub fn new(config: ForwarderConfig, header_bytes: u16) -> Self {
        PullNode {
            header_bytes,
            forwarder: Forwarder::new(config),
            contents: Vec::new(),
            receivers: Vec::new(),
            sources: Vec::new(),
            armed: NEVER,
            entry_losses: Vec::new(),
            hooks: Hooks::default(),
        }
    }

    /// Tells the hooks of each input of its machines from now on.
    pub fn set_hooks(&mut self, hooks: Hooks) {
        self.hooks = hooks;
    }

    /// Puts a receiver behind the local face, in place of an earlier one of the same transfer.
    pub fn add_receiver(&mut self, config: ReceiverConfig) {
        let transfer = config.transfer;
        self.receivers.retain(|other| other.transfer != transfer);
        let (machine, log) = (Receiver::new(config), ReceiverLog::default());
        self.receivers.push(ReceiverAt { transfer, machine, log });
    }

    /// Puts a source behind the local face, in place of an earlier one of the same transfer.
    pub fn add_source(&mut self, config: SourceConfig) {
        self.sources.retain(|(transfer, _)| *transfer != config.transfer);
        self.sources.push((config.transfer, Source::new(config)));
    }

    /// A crash: forwarder, receivers and sources forget everything and are gone.
    pub fn crash(&mut self, config: ForwarderConfig) {
        *self = PullNode {
            entry_losses: core::mem::take(&mut self.entry_losses),
            hooks: core::mem::take(&mut self.hooks),
            ..Self::new(config, self.header_bytes)
        };
    }

    /// The forwarder and the receivers that lack something forget everything and are gone; what this host
    /// sends goes on.
    pub fn crash_receivers(&mut self, config: ForwarderConfig) {
        let sources = core::mem::take(&mut self.sources);
        let armed = if sources.is_empty() { NEVER } else { self.armed };
        let mut receivers = core::mem::take(&mut self.receivers);
        receivers.retain(|receiver| receiver.log.finished_at.is_some());
        self.crash(config);
        (self.sources, self.receivers, self.armed) = (sources, receivers, armed);
    }

    /// Loses data that is sent by a port before it comes to the queue, as the error models of ns-2 do: it
    /// takes no time of the link.
    pub fn set_entry_loss(&mut self, port: u8, ppm: u32) {
        self.entry_losses.retain(|(other, _)| *other != port);
        if ppm > 0 {
            self.entry_losses.push((port, ppm));
        }
    }

    /// The forwarder.
    #[must_use]
    pub fn forwarder(&self) -> &Forwarder {
        &self.forwarder
    }

    /// The receiver of a transfer and what was seen of it.
    #[must_use]
    pub fn receiver(&self, transfer: Handle) -> Option<(&Receiver, &ReceiverLog)> {
        let found = self.receivers.iter().find(|receiver| receiver.transfer == transfer)?;
        Some((&found.machine, &found.log))
    }

    /// The source of a transfer.
    #[must_use]
    pub fn source(&self, transfer: Handle) -> Option<&Source> {
        self.sources.iter().find(|(other, _)| *other == transfer).map(|(_, source)| source)
    }

    /// Counts the round trips of a receiver from now on.
    pub fn log_round_trips(&mut self, transfer: Handle) {
        for receiver in self.receivers.iter_mut().filter(|receiver| receiver.transfer == transfer) {
            receiver.log.round_trips.get_or_insert_default();
        }
    }

    /// A packet has come by `port`. Returns how many receivers have got their last packet with it.
    pub fn arrive<P>(&mut self, net: &mut Network<P>, node: NodeId, port: u8, packet: PullPacket) -> u32
    where
        P: Packet + From<PullPacket>,
    {
        let input = ForwarderInput::Packet { from: Face::Port(port), packet: packet.packet };
        self.hooks.see(Event::Forwarder(&input));
        self.forwarder.handle(net.now(), input);
        self.drive(net, node, packet.content)
    }

    /// Something happens to a receiver.
    pub fn tell_receiver<P>(
        &mut self,
        net: &mut Network<P>,
        node: NodeId,
        transfer: Handle,
        input: ReceiverInput,
    ) -> u32
    where
        P: Packet + From<PullPacket>,
    {
        for receiver in self.receivers.iter_mut().filter(|receiver| receiver.transfer == transfer) {
            self.hooks.see(Event::PullReceiver(&input));
            receiver.machine.handle(net.now(), input.clone());
        }
        self.drive(net, node, 0)
    }

    /// Something happens to a source.
    pub fn tell_source<P>(&mut self, net: &mut Network<P>, node: NodeId, transfer: Handle, input: SourceInput)
    where
        P: Packet + From<PullPacket>,
    {
        if let Some((_, source)) = self.sources.iter_mut().find(|(other, _)| *other == transfer) {
            self.hooks.see(Event::PullSource(&input));
            source.handle(net.now(), input);
        }
        self.drive(net, node, 0);
    }

    /// A timer of this node has come, with this token for the next one.
    pub fn timer<P>(&mut self, net: &mut Network<P>, node: NodeId) -> u32
    where
        P: Packet + From<PullPacket>,
    {
        if net.now() < self.armed {
            return 0;
        }
        self.armed = NEVER;
        self.drive(net, node, 0)
    }

    /// Polls the machines until none has anything to say, and sets a timer for the earliest deadline.
    fn drive<P>(&mut self, net: &mut Network<P>, node: NodeId, arrived: u32) -> u32
    where
        P: Packet + From<PullPacket>,
    {
        let mut finished = 0;
        self.drain_forwarder(net, node, arrived);
        for at in 0..self.receivers.len() {
            while let Some(output) = self.receivers[at].machine.poll(net.now()) {
                match output {
                    ReceiverOutput::Ask(interest) => self.ask(net, node, interest),
                    ReceiverOutput::Complete => finished += self.complete(net.now(), at),
                    ReceiverOutput::Stalled { .. } => self.receivers[at].log.stalls += 1,
                    // There are no bytes to look into: the machine says what it may ask for.
                    ReceiverOutput::Listed { .. } => {}
                    ReceiverOutput::Keep { .. } => unreachable!("data is kept when it is delivered"),
                }
            }
        }
        for at in 0..self.sources.len() {
            while let Some(SourceOutput::Send { port, data }) = self.sources[at].1.poll(net.now()) {
                let content = content_of(data.name.transfer, data.name.sn);
                let packet = pull::Packet::Data(data);
                self.send(net, node, port, PullPacket { packet, content });
            }
        }
        self.arm(net, node);
        finished
    }

    fn ask<P>(&mut self, net: &mut Network<P>, node: NodeId, interest: Interest)
    where
        P: Packet + From<PullPacket>,
    {
        let packet = pull::Packet::Interest(interest);
        self.forwarder.handle(net.now(), ForwarderInput::Packet { from: Face::Local, packet });
        self.drain_forwarder(net, node, 0);
    }

    fn complete(&mut self, now: Time, at: usize) -> u32 {
        let ReceiverAt { machine, log, .. } = &mut self.receivers[at];
        // The checker is not the driver: one whose content is wrong is not done, whatever the machine was
        // told.
        if !machine.is_complete() || log.finished_at.is_some() || log.breach(machine).is_some() {
            return 0;
        }
        log.finished_at = Some(now);
        1
    }

    fn drain_forwarder<P>(&mut self, net: &mut Network<P>, node: NodeId, arrived: u32)
    where
        P: Packet + From<PullPacket>,
    {
        while let Some(output) = self.forwarder.poll(net.now()) {
            match output {
                ForwarderOutput::Send { port, packet, payload } => {
                    let content = self.content(payload, arrived);
                    self.send(net, node, port, PullPacket { packet, content });
                }
                ForwarderOutput::Keep { slot } => {
                    let slot = slot as usize;
                    if self.contents.len() <= slot {
                        self.contents.resize(slot + 1, 0);
                    }
                    self.contents[slot] = arrived;
                }
                ForwarderOutput::Deliver { data, payload } => {
                    let content = self.content(payload, arrived);
                    self.deliver(net.now(), data, content);
                }
                ForwarderOutput::Serve { port, interest } => {
                    let transfer = interest.name.transfer;
                    if let Some((_, source)) = self.sources.iter_mut().find(|(other, _)| *other == transfer) {
                        let input = SourceInput::Interest { port, interest };
                        self.hooks.see(Event::PullSource(&input));
                        source.handle(net.now(), input);
                    }
                }
            }
        }
    }

    fn content(&self, payload: Payload, arrived: u32) -> u32 {
        match payload {
            Payload::None => 0,
            Payload::Arrived => arrived,
            Payload::Slot(slot) => self.contents[slot as usize],
        }
    }

    fn deliver(&mut self, now: Time, data: Data, content: u32) {
        let transfer = data.name.transfer;
        let Some(receiver) = self.receivers.iter_mut().find(|receiver| receiver.transfer == transfer) else {
            return;
        };
        let sn = data.name.sn;
        let before = receiver.machine.has(sn);
        let input = ReceiverInput::Data(data);
        self.hooks.see(Event::PullReceiver(&input));
        receiver.machine.handle(now, input);
        if before || !receiver.machine.has(sn) {
            return;
        }
        let round_trip = loop {
            match receiver.machine.poll(now) {
                Some(ReceiverOutput::Keep { round_trip, .. }) => break round_trip,
                Some(ReceiverOutput::Stalled { .. }) => receiver.log.stalls += 1,
                other => unreachable!("a new packet is kept before anything is asked for: {other:?}"),
            }
        };
        if let (Some(counts), Some(Duration(nanos))) = (&mut receiver.log.round_trips, round_trip) {
            *counts.entry(nanos / 1000).or_default() += 1;
        }
        receiver.log.note(transfer, sn, content);
        if content != content_of(transfer, sn) {
            receiver.log.corrupt += 1;
            let input = ReceiverInput::Corrupt { sns: sn..sn + 1 };
            self.hooks.see(Event::PullReceiver(&input));
            receiver.machine.handle(now, input);
        }
    }

    fn send<P>(&mut self, net: &mut Network<P>, node: NodeId, port: u8, packet: PullPacket)
    where
        P: Packet + From<PullPacket>,
    {
        let payload = match &packet.packet {
            pull::Packet::Interest(_) => 0,
            pull::Packet::Data(data) => {
                let loss = self.entry_losses.iter().find(|(lossy, _)| *lossy == port);
                if let Some(&(_, ppm)) = loss
                    && net.chance(ppm)
                {
                    return;
                }
                data.length
            }
        };
        let Some(&LinkId(first)) = net.links_from(node).first() else { return };
        let link = LinkId(first + u32::from(port));
        net.send(link, packet.into(), u32::from(payload) + u32::from(self.header_bytes), 0);
    }

    fn arm<P: Packet>(&mut self, net: &mut Network<P>, node: NodeId) {
        if self.receivers.is_empty() && self.sources.is_empty() {
            return;
        }
        let receivers = self.receivers.iter().filter_map(|receiver| receiver.machine.deadline());
        let sources = self.sources.iter().filter_map(|(_, source)| source.deadline());
        if let Some(at) = receivers.chain(sources).min()
            && at < self.armed
        {
            self.armed = at.max(net.now());
            net.set_timer(node, at, 0);
        }
    }
}
