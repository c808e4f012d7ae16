//! Driving the machines of a [`Cluster`]: what they say, what they are told, and what is planned.

use super::forward::Forwarding;
use super::frames::Frame;
use super::receiver::{Phase, Serving, Wish, content_of};
use super::source::{PeerSlot, have_of};
use super::streams::{End, StreamId};
use super::{BROKEN_AFTER, Cluster, Datagram, Flow, Fragment, Happening, Owner, Token, Transfer};
use crate::packet::swarm::Plant;
use crate::packet::{LinkId, Network, NodeId};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use polycast_protocol::push::{PeerId, ReceiverInput, SenderInput, SenderOutput};
use polycast_protocol::session::Why;
use polycast_types::RangeSet;
use polycast_wire::control::Control;
use polycast_wire::data::{FLAG_ATTEMPT, FLAG_PATCH};

/// A source writes to its network card as long as so many batches wait there.
const BATCHES_QUEUED_MAX: u64 = 2;

impl Cluster {
    /// Polls a source until it has nothing to say, or its network card has enough to do.
    pub(super) fn drive_source(&mut self, net: &mut Network<Datagram>, transfer: u32) {
        loop {
            let push = self.push_mut(transfer);
            if push.source.waits_for.is_some() || push.source.machine.is_none() {
                return;
            }
            if let Some(link) = self.busy_link(net, transfer) {
                self.push_mut(transfer).source.waits_for = Some(link);
                net.notify_idle(link);
                return;
            }
            let source = &mut self.push_mut(transfer).source;
            let Some(machine) = source.machine.as_mut() else { return };
            let Some(output) = machine.poll(net.now()) else { break };
            self.source_output(net, transfer, output);
        }
        let source = &mut self.push_mut(transfer).source;
        let deadline = source.machine.as_ref().and_then(|machine| machine.deadline());
        let node = source.node;
        source.alarm.set(net, node, Token::Source(transfer), deadline);
    }

    /// A link of the source that has enough to send for now.
    fn busy_link(&mut self, net: &Network<Datagram>, transfer: u32) -> Option<LinkId> {
        let push = self.push(transfer);
        let batch = u64::from(push.config.batch()) * u64::from(push.config.packet_bytes());
        let mut out = core::mem::take(&mut self.out);
        out.clear();
        let push = self.push(transfer);
        push.forwarding.next(net, push.source.node, None, 0, &mut out);
        let busy = out.iter().map(|&(link, _)| link).find(|&link| {
            let ahead = net.busy_until(link).since(net.now());
            ahead > net.rate(link).time_for(batch * BATCHES_QUEUED_MAX)
        });
        self.out = out;
        busy
    }

    fn source_output(&mut self, net: &mut Network<Datagram>, transfer: u32, output: SenderOutput) {
        if self.plant == Some(Plant::DropPatch) && is_patch_of(&output, |sn| sn % 8 == 5) {
            return;
        }
        match output {
            SenderOutput::Send { round, sn, count, flags } => {
                if flags & FLAG_ATTEMPT == 0 {
                    let now = net.now();
                    self.push_mut(transfer).source.full_rate_at.get_or_insert(now);
                }
                for i in 0..u64::from(count) {
                    let last = i + 1 == u64::from(count);
                    let flags = if last { flags } else { flags & FLAG_ATTEMPT };
                    self.multicast(net, transfer, round, &[sn + i], flags);
                }
            }
            SenderOutput::SendPatch(sns) => {
                self.push_mut(transfer).source.patches_sent += 1;
                self.multicast(net, transfer, 0, &sns, FLAG_PATCH);
            }
            SenderOutput::Patch { peer, sns } => {
                self.push_mut(transfer).source.unicast_fragments += sns.end - sns.start;
                self.tell(net, transfer, peer, Frame::PatchData(sns));
            }
            SenderOutput::Control { peer, control } => self.tell(net, transfer, peer, Frame::of(&control)),
            SenderOutput::Chain(link) => {
                let peers = &self.push(transfer).source.peers;
                let upstream = link.upstream.and_then(|up| peers.get(&up)).map(|slot| slot.receiver);
                self.tell(net, transfer, link.peer, Frame::Upstream(upstream));
            }
            SenderOutput::Settled { peer, failure } => {
                self.settled(net, transfer, peer, failure.map(|f| f.to_string()))
            }
            SenderOutput::AllowanceUsed { .. } => unreachable!("paths are granted whole"),
            SenderOutput::Finished => {
                self.push_mut(transfer).source.finished_at = Some(net.now());
                let peers: Vec<PeerId> = self.push(transfer).source.peers.keys().copied().collect();
                peers.into_iter().for_each(|peer| self.tell(net, transfer, peer, Frame::Finished));
                self.check_done(net);
            }
        }
    }

    /// Sends one packet on the data channel: a fragment, or a patch of several.
    fn multicast(&mut self, net: &mut Network<Datagram>, transfer: u32, round: u32, sns: &[u64], flags: u8) {
        let mut fragment = self.new_fragment(transfer);
        let push = self.push_mut(transfer);
        push.source.fragments_sent += u64::from(flags & FLAG_PATCH == 0);
        let content = sns.iter().fold(0, |content, sn| content ^ content_of(push.object, *sn));
        let node = push.source.node;
        fragment = Fragment { round, sn: sns[0], flags, content, ..fragment };
        if sns.len() > 1 {
            fragment.coded = Some(sns.into());
        }
        self.forward(net, node, None, &fragment);
    }

    /// Writes a frame from the source to a receiver.
    fn tell(&mut self, net: &mut Network<Datagram>, transfer: u32, peer: PeerId, frame: Frame) {
        let push = self.push(transfer);
        let Some(stream) = push.source.peers.get(&peer).map(|slot| slot.stream) else { return };
        let len = frame.len(&push.config.geometry(push.object_len));
        self.streams.write(stream, 1, frame, len);
        self.streams.pump(net, stream, 1);
    }

    fn settled(&mut self, net: &mut Network<Datagram>, transfer: u32, peer: PeerId, failure: Option<String>) {
        let push = self.push_mut(transfer);
        let Some(slot) = push.source.peers.get(&peer) else { return };
        let (receiver, stream) = (slot.receiver, slot.stream);
        match failure {
            Some(reason) => {
                push.source.failures.insert(receiver, reason);
                self.break_stream(net, stream, 0);
            }
            None => {
                push.source.failures.remove(&receiver);
                if push.receivers[receiver as usize].phase != Phase::Done {
                    self.breaches.push(format!("receiver {receiver} was settled as done, but is not"));
                }
            }
        }
    }

    /// Polls a receiver until it has nothing to say.
    pub(super) fn drive_receiver(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32) {
        let now = net.now();
        let mut verified = false;
        let skips_checks = self.plant == Some(Plant::SkipCheck);
        loop {
            let host = &mut self.push_mut(transfer).receivers[receiver as usize];
            host.skips_checks = skips_checks;
            let Some(wish) = host.poll(now) else {
                if host.decode_earlier(now) {
                    continue;
                }
                break;
            };
            let control = host.control;
            match wish {
                Some(Wish::Say(control_frame)) => {
                    let frame = Frame::of(&control_frame);
                    let len = frame.len(&host.geometry);
                    if let Some(stream) = control {
                        self.streams.write(stream, 0, frame, len);
                    }
                }
                Some(Wish::Verified | Wish::Completed) => verified = true,
                None => {}
            }
        }
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        let deadline = host.machine.as_ref().and_then(|machine| machine.deadline());
        let (node, control) = (host.node, host.control);
        host.alarm.set(net, node, Token::Receiver(transfer, receiver), deadline);
        if let Some(stream) = control {
            self.streams.pump(net, stream, 0);
        }
        if verified {
            self.serve(net, transfer, Some(receiver));
        }
    }

    /// Sends those who fetch from a host what it has and they lack.
    fn serve(&mut self, net: &mut Network<Datagram>, transfer: u32, server: Option<u32>) {
        let push = self.push_mut(transfer);
        let geometry = push.config.geometry(push.object_len);
        let (serving, groups): (&mut Vec<Serving>, Vec<u64>) = match server {
            None => (&mut push.source.serving, (0..geometry.groups()).collect()),
            Some(receiver) => {
                let host = &mut push.receivers[receiver as usize];
                (&mut host.serving, host.intact.iter().copied().collect())
            }
        };
        let mut writes = Vec::new();
        for fetcher in serving {
            for &group in &groups {
                if fetcher.sent.insert(group..group + 1) > 0 {
                    writes.push((fetcher.stream, Frame::Group(group)));
                }
            }
        }
        let mut streams = BTreeSet::new();
        for (stream, frame) in writes {
            let len = frame.len(&geometry);
            self.streams.write(stream, 1, frame, len);
            streams.insert(stream);
        }
        streams.into_iter().for_each(|stream| self.streams.pump(net, stream, 1));
    }

    /// Takes in what has come whole to one end of a connection.
    pub(super) fn take_frames(&mut self, net: &mut Network<Datagram>, id: StreamId, end: End) {
        match self.owners[id.0 as usize] {
            Owner::Bulk { transfer, receiver } => self.bulk_arrived(net, id, transfer, receiver),
            Owner::Flow { flow } => {
                let delivered = self.streams.delivered(id, 0);
                let flow = &mut self.flows[flow as usize];
                if flow.finished_at.is_none() && delivered >= flow.bytes {
                    flow.finished_at = Some(net.now());
                }
            }
            Owner::Control { transfer, receiver } => {
                while let Some(frame) = self.streams.next_frame(id, 1 - end) {
                    if end == 0 {
                        self.frame_to_receiver(net, transfer, receiver, frame);
                    } else {
                        self.frame_to_source(net, transfer, receiver, id, frame);
                    }
                }
                if end == 0 {
                    self.drive_receiver(net, transfer, receiver);
                } else {
                    self.drive_source(net, transfer);
                }
            }
            Owner::Chain { transfer, receiver, upstream } => {
                while let Some(frame) = self.streams.next_frame(id, 1 - end) {
                    match frame {
                        Frame::Fetch(have) => self.fetch(net, transfer, upstream, id, have),
                        Frame::Group(group) => {
                            let host = &mut self.push_mut(transfer).receivers[receiver as usize];
                            host.fetched(net.now(), group);
                            self.drive_receiver(net, transfer, receiver);
                            self.serve(net, transfer, Some(receiver));
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    fn bulk_arrived(&mut self, net: &mut Network<Datagram>, id: StreamId, transfer: u32, receiver: u32) {
        let delivered = self.streams.delivered(id, 0);
        let Transfer::Tcp(tcp) = &mut self.transfers[transfer as usize] else { return };
        let (_, finished_at) = &mut tcp.receivers[receiver as usize];
        if finished_at.is_none() && delivered >= tcp.bytes {
            *finished_at = Some(net.now());
            self.check_done(net);
        }
    }

    fn frame_to_receiver(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32, frame: Frame) {
        let now = net.now();
        let push = self.push_mut(transfer);
        let handle = push.source.handle;
        let host = &mut push.receivers[receiver as usize];
        match frame {
            Frame::Welcome if host.phase == Phase::Joining => {
                host.handle = handle;
                host.begin(now);
            }
            Frame::Control(bytes) => match Control::parse(&bytes) {
                Ok(control) => {
                    if let Some(machine) = host.machine.as_mut() {
                        machine.handle(now, ReceiverInput::Control(&control));
                    }
                }
                Err(error) => self.breaches.push(format!("the source wrote a frame that is none: {error}")),
            },
            Frame::PatchData(sns) => host.patch_data(now, sns),
            Frame::Upstream(upstream) => self.follow(net, transfer, receiver, upstream),
            _ => {}
        }
    }

    /// A receiver is told to fetch from `upstream`.
    fn follow(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32, upstream: Option<u32>) {
        let now = net.now();
        let push = self.push_mut(transfer);
        let to = upstream.map_or(push.source.node, |up| push.receivers[up as usize].node);
        let geometry = push.config.geometry(push.object_len);
        let host = &mut push.receivers[receiver as usize];
        let Some(machine) = host.machine.as_mut() else { return };
        machine.handle(now, ReceiverInput::Chained);
        let have: RangeSet = host.intact.iter().map(|&group| group..group + 1).collect();
        let (node, old) = (host.node, host.upstream.take());
        if let Some(old) = old {
            self.streams.close(old);
        }
        let stream = self.open(net, node, to, Owner::Chain { transfer, receiver, upstream });
        self.push_mut(transfer).receivers[receiver as usize].upstream = Some(stream);
        let frame = Frame::Fetch(have.iter().collect());
        let len = frame.len(&geometry);
        self.streams.write(stream, 0, frame, len);
        self.streams.pump(net, stream, 0);
    }

    fn fetch(
        &mut self,
        net: &mut Network<Datagram>,
        transfer: u32,
        server: Option<u32>,
        stream: StreamId,
        have: Vec<core::ops::Range<u64>>,
    ) {
        let serving = Serving { stream, sent: have.into_iter().collect() };
        let push = self.push_mut(transfer);
        match server {
            None => push.source.serving.push(serving),
            Some(server) => push.receivers[server as usize].serving.push(serving),
        }
        self.serve(net, transfer, server);
    }

    fn frame_to_source(
        &mut self,
        net: &mut Network<Datagram>,
        transfer: u32,
        receiver: u32,
        stream: StreamId,
        frame: Frame,
    ) {
        let now = net.now();
        let peer = PeerId(stream.0);
        let source = &mut self.push_mut(transfer).source;
        let Some(machine) = source.machine.as_mut() else { return };
        match frame {
            Frame::Hello if source.finished_at.is_some() => self.break_stream(net, stream, 0),
            Frame::Hello => {
                source.peers.insert(peer, PeerSlot { receiver, stream, ready: false });
                self.tell(net, transfer, peer, Frame::Welcome);
            }
            Frame::Control(bytes) => {
                let Ok(control) = Control::parse(&bytes) else {
                    self.breaches.push(String::from("a receiver wrote a frame that is none"));
                    return;
                };
                let Some(slot) = source.peers.get_mut(&peer) else { return };
                if slot.ready {
                    machine.handle(now, SenderInput::Control { peer, control: &control });
                } else if let Some(have) = have_of(&control) {
                    slot.ready = true;
                    source.ready += 1;
                    let window_bytes = self.push(transfer).receivers[receiver as usize].window_bytes;
                    let source = &mut self.push_mut(transfer).source;
                    let machine = source.machine.as_mut().expect("looked at above");
                    machine.handle(now, SenderInput::Ready { peer, window_bytes, have });
                    self.start_if_ready(net, transfer);
                }
            }
            _ => {}
        }
    }

    fn start_if_ready(&mut self, net: &mut Network<Datagram>, transfer: u32) {
        let now = net.now();
        let push = self.push_mut(transfer);
        let open = push.config.open_until.is_some_and(|until| now < until);
        let source = &mut push.source;
        let Some(machine) = source.machine.as_mut() else { return };
        if !source.started && source.ready >= source.expected {
            source.started = true;
            machine.handle(now, SenderInput::Start);
        }
        if source.started && !source.closed && !open {
            source.closed = true;
            machine.handle(now, SenderInput::Close);
        }
    }

    /// Ends a connection; the given end learns of it.
    fn break_stream(&mut self, net: &mut Network<Datagram>, stream: StreamId, told: End) {
        if self.streams.is_open(stream) {
            self.streams.close(stream);
            let at = net.now() + BROKEN_AFTER;
            self.plan(net, at, Happening::Broken { stream, end: told });
        }
    }

    /// Ends all connections of a receiver's or the source's host; the other ends learn of it.
    fn break_all(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: Option<u32>) {
        for index in 0..self.owners.len() {
            let id = StreamId(index as u32);
            let told = match self.owners[index] {
                Owner::Control { transfer: t, receiver: r } if t == transfer => match receiver {
                    None => Some(0),
                    Some(receiver) => (receiver == r).then_some(1),
                },
                Owner::Chain { transfer: t, receiver: r, upstream } if t == transfer => {
                    if receiver == Some(r) { Some(1) } else { (upstream == receiver).then_some(0) }
                }
                _ => None,
            };
            if let Some(told) = told {
                self.break_stream(net, id, told);
            }
        }
    }

    fn broken(&mut self, net: &mut Network<Datagram>, stream: StreamId, end: End) {
        let now = net.now();
        match (self.owners[stream.0 as usize], end) {
            (Owner::Control { transfer, .. }, 1) => {
                let source = &mut self.push_mut(transfer).source;
                let peer = PeerId(stream.0);
                let ready = source.peers.get(&peer).is_some_and(|slot| slot.ready);
                match source.machine.as_mut() {
                    Some(machine) if ready => {
                        machine.handle(now, SenderInput::Left { peer, why: Why::WentAway });
                    }
                    // It has left before it was ready: nobody waits for it.
                    Some(_) => source.expected = source.expected.saturating_sub(u32::from(!source.started)),
                    None => return,
                }
                self.start_if_ready(net, transfer);
                self.drive_source(net, transfer);
            }
            (Owner::Control { transfer, receiver }, _) => {
                let host = &mut self.push_mut(transfer).receivers[receiver as usize];
                if host.control == Some(stream) {
                    host.control = None;
                    host.forget(Phase::Failed);
                }
            }
            (Owner::Chain { transfer, receiver, .. }, 0) => {
                let host = &mut self.push_mut(transfer).receivers[receiver as usize];
                if host.upstream == Some(stream) && host.phase == Phase::Running {
                    host.upstream = None;
                    let frame = Frame::of(&Control::UpstreamLost);
                    let len = frame.len(&host.geometry);
                    if let Some(control) = host.control {
                        self.streams.write(control, 0, frame, len);
                        self.streams.pump(net, control, 0);
                    }
                }
            }
            _ => {}
        }
    }

    /// Does what was planned.
    pub(super) fn happen(&mut self, net: &mut Network<Datagram>, happening: Happening) {
        match happening {
            Happening::Link { link, up } => net.set_up(link, up),
            Happening::Node { node, up } => {
                for link in net.links_from(node).to_vec() {
                    net.set_up(link, up);
                    if let Some(back) = net.reverse(link) {
                        net.set_up(back, up);
                    }
                }
            }
            Happening::Faults { link, faults } => net.set_faults(link, faults),
            Happening::Turn { node, ready_at, loss_ppm } => self.set_turning(node, ready_at, loss_ppm),
            Happening::Reroute => self.reroute(net),
            Happening::CrashReceiver { transfer, receiver } => {
                self.break_all(net, transfer, Some(receiver));
                let host = &mut self.push_mut(transfer).receivers[receiver as usize];
                (host.control, host.upstream) = (None, None);
                host.forget(Phase::Absent);
            }
            Happening::JoinReceiver { transfer, receiver } => self.join(net, transfer, receiver),
            Happening::CrashSource { transfer } => {
                self.break_all(net, transfer, None);
                let source = &mut self.push_mut(transfer).source;
                source.machine = None;
                source.waits_for = None;
            }
            Happening::StartTransfer { transfer } => self.start_transfer(net, transfer),
            Happening::CloseTransfer { transfer } => {
                self.start_if_ready(net, transfer);
                self.drive_source(net, transfer);
            }
            Happening::Service { transfer, receiver, service } => {
                self.push_mut(transfer).receivers[receiver as usize].service = service;
            }
            Happening::StartFlow { flow } => {
                let Flow { from, to, bytes, .. } = self.flows[flow as usize];
                let stream = self.open(net, from, to, Owner::Flow { flow });
                self.flows[flow as usize].stream = Some(stream);
                self.streams.write_bytes(stream, 0, bytes);
                self.streams.pump(net, stream, 0);
            }
            Happening::Relabel { transfer, forwarding, members } => {
                let stale = match *forwarding {
                    Forwarding::Relays(_) => Plant::StaleRelays,
                    _ => Plant::StaleLabel,
                };
                if self.plant != Some(stale) {
                    self.push_mut(transfer).forwarding = forwarding;
                }
                self.set_members(transfer, &members);
            }
            Happening::LosePath { transfer } => {
                if let Some(machine) = &mut self.push_mut(transfer).source.machine {
                    machine.handle(net.now(), SenderInput::PathLost);
                    self.drive_source(net, transfer);
                }
            }
            Happening::Broken { stream, end } => self.broken(net, stream, end),
        }
    }

    fn start_transfer(&mut self, net: &mut Network<Datagram>, transfer: u32) {
        if let Transfer::Tcp(tcp) = &self.transfers[transfer as usize] {
            let (source, bytes) = (tcp.source, tcp.bytes);
            let nodes: Vec<NodeId> = tcp.receivers.iter().map(|(node, _)| *node).collect();
            for (node, receiver) in nodes.into_iter().zip(0..) {
                let stream = self.open(net, source, node, Owner::Bulk { transfer, receiver });
                self.streams.write_bytes(stream, 0, bytes);
                self.streams.pump(net, stream, 0);
            }
            return;
        }
        let (machine, handle) = self.new_sender(transfer);
        let push = self.push_mut(transfer);
        let lacking: Vec<u32> = (0..push.receivers.len() as u32)
            .filter(|r| push.receivers[*r as usize].phase != Phase::Done)
            .collect();
        push.source.begin(machine, handle, lacking.len() as u32);
        if let Some(until) = push.config.open_until {
            self.plan(net, until, Happening::CloseTransfer { transfer });
        }
        lacking.into_iter().for_each(|receiver| self.join(net, transfer, receiver));
        self.start_if_ready(net, transfer);
        self.drive_source(net, transfer);
    }

    /// A receiver opens its control connection, unless it is there already, or done.
    fn join(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32) {
        let push = self.push_mut(transfer);
        let source = push.source.node;
        let host = &mut push.receivers[receiver as usize];
        if host.phase == Phase::Done || push.source.machine.is_none() {
            return;
        }
        if let Some(old) = host.control.take() {
            self.streams.close(old);
        }
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        host.forget(Phase::Joining);
        let (node, geometry) = (host.node, host.geometry);
        let stream = self.open(net, node, source, Owner::Control { transfer, receiver });
        self.push_mut(transfer).receivers[receiver as usize].control = Some(stream);
        let frame = Frame::Hello;
        let len = frame.len(&geometry);
        self.streams.write(stream, 0, frame, len);
        self.streams.pump(net, stream, 0);
    }
}

/// Whether a sender wants to patch such a fragment.
fn is_patch_of(output: &SenderOutput, mut wanted: impl FnMut(u64) -> bool) -> bool {
    match output {
        SenderOutput::SendPatch(sns) => sns.iter().copied().any(wanted),
        SenderOutput::Patch { sns, .. } => sns.clone().any(&mut wanted),
        _ => false,
    }
}
