//! Driving a source: what its end of the session and its sender order.

use super::frames::{Body, Frame, address_of, channel_address, group_len_of, location_of, receiver_port};
use super::keys::{Keyring, mix, proof_of, salt_of};
use super::lies::Lie;
use super::mesh::GIVE_INTERVAL;
use super::receiver::{Phase, content_of};
use super::source::{Conn, Sending};
use super::streams::StreamId;
use super::{Cluster, Datagram, Fragment, Happening, Owner, Token};
use crate::packet::hooks::{Event, Step};
use crate::packet::{LinkId, Network};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use polycast_protocol::push::overlay::Seeding;
use polycast_protocol::push::{PeerId, SenderConfig, SenderInput, SenderOutput, Slower};
use polycast_protocol::session::{Expected, Gone, Goodbye, GuestId, Roster, RosterInput, RosterOutput, Why};
use polycast_types::{Duration, Handle, Location, RangeSet, Time};
use polycast_wire::control::{Control, Form, HASHES_MAX, Hash, Salt, Welcome, proven_group};
use polycast_wire::data::{CodedHeader, FLAG_ATTEMPT, FLAG_PATCH, FragmentHeader, Header};

/// A source writes to its network card as long as so many batches wait there.
const BATCHES_QUEUED_MAX: u64 = 2;
/// Patches are queued to a connection while it has less than this to send.
const PATCH_QUEUE_LEN: u64 = 512 << 10;
/// Fragments in one PTCH_DATA.
const PATCH_FRAGMENTS: u64 = 16;
/// Time that an unsuccessful call takes.
const CALLED_AFTER: Duration = Duration::from_millis(1);

impl Cluster {
    /// A source begins a transfer, for all that lack the object and are to have it.
    pub(super) fn begin_push(&mut self, net: &mut Network<Datagram>, transfer: u32) {
        if self.run_mut(transfer).is_some() {
            self.break_all(net, transfer, None);
        }
        self.next_handle += 1;
        let (now, handle) = (net.now(), self.next_handle);
        let keys = self.first_keys(transfer);
        let seed = self.seed;
        let push = self.push_mut(transfer);
        let lacking: Vec<u32> = push.lacking().collect();
        let expected = if push.config.counted {
            Expected::Count(lacking.len() as u32)
        } else {
            Expected::Named(lacking.iter().map(|at| push.receivers[*at as usize].name.clone()).collect())
        };
        push.channels += u32::from(push.config.multicast);
        push.dark = false;
        let (config, object_len) = (&push.config, push.object_len);
        let (sender, location) = (config.sender(handle, object_len), location_of(seed, push.source.node));
        let run = Sending {
            handle,
            roster: Roster::new(now, config.roster(handle, object_len, expected)),
            machine: polycast_protocol::push::Sender::new(SenderConfig { location, ..sender }),
            conns: BTreeMap::new(),
            serving: Vec::new(),
            seeding: seeding_of(config.geometry(object_len).groups()),
            entries: BTreeMap::new(),
            give_at: Time::ZERO,
            candidates: BTreeMap::new(),
            waits_for: None,
            channel: if config.multicast { push.channels } else { 0 },
            without_path: false,
            granted: config.fragments_of(config.allowance),
            spent: 0,
            removed: BTreeSet::new(),
            over: false,
            keys,
            members: BTreeSet::new(),
            ever_sent: RangeSet::new(),
        };
        push.source.run = Some(Box::new(run));
        push.source.finished_at = None;
        push.source.full_rate_at = None;
        if push.config.counted {
            let is_up = |at: &u32| !push.receivers[*at as usize].down;
            let unwilling = |at: &u32| push.receivers[*at as usize].mood == Some(super::Mood::Unwilling);
            let (unwilling, coming): (Vec<u32>, Vec<u32>) =
                lacking.into_iter().filter(is_up).partition(unwilling);
            for receiver in unwilling {
                self.plan(net, now + CALLED_AFTER, Happening::NotComing { transfer, receiver, handle });
            }
            coming.into_iter().for_each(|receiver| self.join(net, transfer, receiver));
        }
        self.drive_source(net, transfer);
    }

    pub(super) fn run_mut(&mut self, transfer: u32) -> Option<&mut Sending> {
        self.push_mut(transfer).source.run.as_deref_mut()
    }

    pub(super) fn tell_roster(&mut self, now: Time, transfer: u32, input: RosterInput<'_>) {
        self.hooks.see(Event::Roster(&input));
        let checks = self.checks && !cfg!(debug_assertions);
        let Some(run) = self.run_mut(transfer) else { return };
        run.roster.handle(now, input);
        if checks {
            run.roster.check();
        }
    }

    pub(super) fn tell_sender(&mut self, now: Time, transfer: u32, input: SenderInput<'_>) {
        self.hooks.see(Event::Sender(&input));
        let Some(run) = self.run_mut(transfer) else { return };
        run.machine.handle(now, input);
    }

    /// Polls a source until it has nothing to say, or its network card has enough to do.
    pub(super) fn drive_source(&mut self, net: &mut Network<Datagram>, transfer: u32) {
        let now = net.now();
        let gives = |run: &&mut Sending| !run.over && run.gives() && now >= run.give_at;
        if let Some(run) = self.run_mut(transfer).filter(gives) {
            run.give_at = now + GIVE_INTERVAL;
            self.serve(net, transfer, None);
        }
        loop {
            let Some(run) = self.run_mut(transfer) else { return };
            // What the session says comes first: which receivers join, which have left, whether more will
            // come.
            if let Some(output) = run.roster.poll(now) {
                self.roster_output(net, transfer, output);
                continue;
            }
            if run.over || run.waits_for.is_some() {
                break;
            }
            if let Some(link) = self.busy_link(net, transfer) {
                self.run_mut(transfer).expect("looked at above").waits_for = Some(link);
                net.notify_idle(link);
                break;
            }
            let run = self.run_mut(transfer).expect("looked at above");
            let Some(output) = run.machine.poll(now) else { break };
            self.sender_output(net, transfer, output);
        }
        let source = &mut self.push_mut(transfer).source;
        let Some(run) = &source.run else { return };
        let sender = (!run.over && run.waits_for.is_none()).then(|| run.machine.deadline()).flatten();
        let gives = (!run.over && run.gives()).then_some(run.give_at);
        let deadline = run.roster.deadline().into_iter().chain(sender).chain(gives).min();
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

    fn roster_output(&mut self, net: &mut Network<Datagram>, transfer: u32, output: RosterOutput) {
        let now = net.now();
        match output {
            RosterOutput::Call(name) => self.call(net, transfer, &name),
            RosterOutput::Welcome(guest) => self.welcome(net, transfer, StreamId(guest.0)),
            RosterOutput::Ready { guest, have, late } => {
                if late && self.hooks.leaves_out(Step::NameReady) {
                    return;
                }
                let run = self.run_mut(transfer).expect("it has just spoken");
                let Some(conn) = run.conns.get(&StreamId(guest.0)) else { return };
                let (peer, window_bytes) = (PeerId(guest.0), conn.window_bytes);
                let location = conn.location.clone();
                self.tell_sender(now, transfer, SenderInput::Ready { peer, window_bytes, have, location });
            }
            RosterOutput::Start => {
                self.gather_racks(net, transfer);
                self.tell_sender(now, transfer, SenderInput::Start);
            }
            RosterOutput::Open => self.tell_sender(now, transfer, SenderInput::Open),
            RosterOutput::Close => self.tell_sender(now, transfer, SenderInput::Close),
            RosterOutput::Left { guest, why } => {
                self.forget_taker(transfer, PeerId(guest.0));
                self.tell_sender(now, transfer, SenderInput::Left { peer: PeerId(guest.0), why });
            }
            RosterOutput::Unawaited(guest) => {
                self.tell_sender(now, transfer, SenderInput::Unawaited { peer: PeerId(guest.0) });
            }
            RosterOutput::Forget(guest) => {
                self.forget_taker(transfer, PeerId(guest.0));
                self.tell_sender(now, transfer, SenderInput::Forget { peer: PeerId(guest.0) });
            }
            RosterOutput::Alive(guest) => self.tell(net, transfer, StreamId(guest.0), &Control::Alive),
            RosterOutput::Goodbye(guest, word) => self.dismiss(net, transfer, StreamId(guest.0), &word),
            RosterOutput::NoneCame => self.end(net, transfer, Goodbye::Refuse(Why::SourceFailed)),
            RosterOutput::Finished => self.end(net, transfer, Goodbye::Finished),
        }
    }

    /// A receiver's agent is called; one that is away or unwilling does not come.
    fn call(&mut self, net: &mut Network<Datagram>, transfer: u32, name: &str) {
        let push = self.push(transfer);
        let Some(&receiver) = push.by_name.get(name) else {
            self.breaches.push(format!("'{name}' is called, and is no receiver"));
            return;
        };
        let host = &push.receivers[receiver as usize];
        if host.down || host.mood == Some(super::Mood::Unwilling) {
            let handle = push.source.run.as_ref().map_or(0, |run| run.handle);
            self.plan(net, net.now() + CALLED_AFTER, Happening::NotComing { transfer, receiver, handle });
        } else {
            self.join(net, transfer, receiver);
        }
    }

    fn welcome(&mut self, net: &mut Network<Datagram>, transfer: u32, stream: StreamId) {
        let salt = salt_of(mix(self.seed, u64::from(stream.0)));
        if let Some(conn) = self.run_mut(transfer).and_then(|run| run.conns.get_mut(&stream)) {
            conn.salt = salt;
        }
        let push = self.push(transfer);
        let geometry = push.config.geometry(push.object_len);
        let lie = self.lie_for(net.now(), transfer, stream);
        let called = self.called_for(transfer);
        let (object, name, object_len, root) = Lie::told(lie, &called);
        let push = self.push(transfer);
        let welcome = Control::Welcome(Welcome {
            object,
            form: Form::File,
            mode: 0o644,
            name,
            object_len,
            fragment_len: geometry.fragment_len,
            group_len: group_len_of(geometry.group_len),
            channel: channel_address(push.source.channel()),
            outer_len: 0,
            stall_ns: push.config.stall_timeout.0,
            salt,
            modified: None,
            data_len: None,
        });
        self.tell(net, transfer, stream, &welcome);
        self.join_members(net, transfer, stream);
        let mut first = 0;
        while first < geometry.groups() {
            let end = geometry.groups().min(first + HASHES_MAX as u64);
            self.write(net, transfer, stream, Body::Hashes(first..end));
            first = end;
        }
        self.tell(net, transfer, stream, &Control::Root(root));
        self.tell_roster(net.now(), transfer, RosterInput::Informed { guest: GuestId(stream.0) });
    }

    /// Returns the keys that a transfer that begins is sealed with, where it is.
    fn first_keys(&mut self, transfer: u32) -> Keyring {
        let mut keys = Keyring::default();
        let push = self.push(transfer);
        if push.config.sealed {
            let all = core::iter::once(0..push.config.geometry(push.object_len).fragments()).collect();
            keys.learn(Arc::new(all), self.fresh_secret());
            keys.reuses_nonces = self.hooks.leaves_out(Step::ChangeNonce);
        }
        keys
    }

    /// A receiver that was welcomed is told all secrets.
    fn join_members(&mut self, net: &mut Network<Datagram>, transfer: u32, stream: StreamId) {
        let Some(run) = self.run_mut(transfer).filter(|run| !run.keys.epochs().is_empty()) else { return };
        run.members.insert(stream);
        let secrets: Vec<_> = run.keys.epochs().iter().map(|(_, secret)| *secret).collect();
        let receiver = run.conns[&stream].receiver;
        for secret in secrets {
            self.note_told(secret, receiver);
            self.tell(net, transfer, stream, &Control::Seal(secret.frame()));
        }
    }

    /// A receiver has left, or was taken out: what was never sent before is sealed with something else from
    /// now on.
    pub(super) fn leave_members(&mut self, net: &mut Network<Datagram>, transfer: u32, stream: StreamId) {
        let keeps = self.hooks.leaves_out(Step::ChangeKey);
        let push = self.push_mut(transfer);
        let fragments = push.config.geometry(push.object_len).fragments();
        let Some(run) = push.source.run.as_deref_mut() else { return };
        if !run.members.remove(&stream) || run.over || keeps {
            return;
        }
        let has_it = push.receivers[run.conns[&stream].receiver as usize].is_done();
        let unsent: RangeSet = run.ever_sent.gaps(0..fragments).into_iter().collect();
        if has_it || unsent.is_empty() {
            return;
        }
        let secret = self.fresh_secret();
        let run = self.run_mut(transfer).expect("looked at above");
        run.keys.learn(Arc::new(unsent), secret);
        let members: Vec<(StreamId, u32)> =
            run.members.iter().map(|stream| (*stream, run.conns[stream].receiver)).collect();
        self.drop_fetchers(net, transfer, None);
        for (stream, receiver) in members {
            self.note_told(secret, receiver);
            self.tell(net, transfer, stream, &Control::Seal(secret.frame()));
        }
    }

    /// Returns the proof that a receiver with the object has to show.
    fn right_proof(&self, transfer: u32, salt: &Salt) -> Hash {
        let push = self.push(transfer);
        let geometry = push.config.geometry(push.object_len);
        let group = proven_group(salt, geometry.groups());
        proof_of(salt, geometry.fragments_of_group(group).map(|sn| content_of(push.object, sn)))
    }

    /// Says the last word to a connection.
    fn dismiss(&mut self, net: &mut Network<Datagram>, transfer: u32, stream: StreamId, word: &Goodbye) {
        let run = self.run_mut(transfer).expect("it has just spoken");
        let Some(conn) = run.conns.get_mut(&stream) else { return };
        conn.patches = RangeSet::new();
        if core::mem::replace(&mut conn.dismissed, true) {
            let receiver = conn.receiver;
            self.breaches.push(format!("receiver {receiver} is told the end of one connection twice"));
        }
        match word {
            Goodbye::Finished => self.tell(net, transfer, stream, &Control::Finished),
            Goodbye::Refuse(why) => {
                self.tell(net, transfer, stream, &Control::Refuse(&why.to_string()));
                self.leave_members(net, transfer, stream);
            }
        }
        self.finish(net, stream, 1);
    }

    /// The transfer is over, in this way.
    pub(super) fn end(&mut self, net: &mut Network<Datagram>, transfer: u32, word: Goodbye) {
        self.tell_roster(net.now(), transfer, RosterInput::Over(word));
        self.push_mut(transfer).source.finished_at = Some(net.now());
        let Some(run) = self.run_mut(transfer) else { return };
        run.over = true;
        let mut wrong = Vec::new();
        for entry in run.roster.entries() {
            if !entry.is_settled() {
                wrong.push(format!("the transfer is over, and '{}' has no end", entry.name));
            }
        }
        for name in &run.removed {
            let failure = run.roster.named(name).and_then(|entry| entry.failure());
            if failure != Some(&Why::TakenOut) {
                wrong.push(format!("'{name}' was taken out, and the report says {failure:?}"));
            }
        }
        self.breaches.extend(wrong);
        self.check_done(net);
    }

    fn sender_output(&mut self, net: &mut Network<Datagram>, transfer: u32, output: SenderOutput) {
        if self.hooks.leaves_out(Step::SendPatch) && is_patch_of(&output, |sn| sn % 8 == 5) {
            return;
        }
        match output {
            SenderOutput::Send { round, sn, count, flags } => {
                if flags & FLAG_ATTEMPT == 0 {
                    let now = net.now();
                    self.push_mut(transfer).source.full_rate_at.get_or_insert(now);
                    self.spend(transfer, count.into());
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
                let run = self.run_mut(transfer).expect("it has just spoken");
                if let Some(conn) = run.conns.get_mut(&StreamId(peer.0)) {
                    conn.patches.insert(sns);
                    self.patch(net, transfer, StreamId(peer.0));
                }
            }
            SenderOutput::Control { peer, control } => {
                self.tell(net, transfer, StreamId(peer.0), &control);
            }
            SenderOutput::Candidates(told) => self.tell_candidates(net, transfer, &told),
            SenderOutput::Settled { peer, failure } => self.settled(net.now(), transfer, peer, failure),
            SenderOutput::AllowanceUsed { .. } => {
                if !self.hooks.leaves_out(Step::RequestPath) {
                    let push = self.push(transfer);
                    let handle = push.source.run.as_ref().map(|run| run.handle);
                    let (after, allowance) = (push.config.next_path, push.config.allowance);
                    let next = Happening::SwitchPath { transfer, handle, allowance };
                    self.plan(net, net.now() + after, next);
                }
            }
            SenderOutput::Finished => {
                let run = self.run_mut(transfer).expect("it has just spoken");
                let open = run.roster.entries().find(|entry| !entry.is_settled());
                let open =
                    open.map(|entry| format!("the sender is done, and '{}' is not settled", entry.name));
                self.breaches.extend(open);
                self.end(net, transfer, Goodbye::Finished);
            }
        }
    }

    /// Fragments go out at full rate: no more than the path was granted for.
    fn spend(&mut self, transfer: u32, fragments: u64) {
        let run = self.run_mut(transfer).expect("it has just spoken");
        run.spent += fragments;
        if run.granted.is_some_and(|granted| run.spent > granted) {
            let (spent, granted) = (run.spent, run.granted.take());
            self.breaches
                .push(format!("{spent} fragments went over a path that was granted for {granted:?}"));
        }
    }

    /// Sends one packet on the data channel: a fragment, or a patch of several.
    fn multicast(&mut self, net: &mut Network<Datagram>, transfer: u32, round: u32, sns: &[u64], flags: u8) {
        let mut fragment = self.new_fragment(transfer);
        let push = self.push_mut(transfer);
        push.source.fragments_sent += u64::from(flags & FLAG_PATCH == 0);
        if push.dark {
            return;
        }
        let object = push.object;
        let content = sns.iter().fold(0, |content, sn| content ^ content_of(object, *sn));
        let node = push.source.node;
        fragment = Fragment { round, sn: sns[0], flags, content, ..fragment };
        if sns.len() > 1 {
            fragment.coded = Some(sns.into());
        }
        if push.config.sealed {
            sns.iter().for_each(|sn| self.check_sealed(transfer, *sn, content_of(object, *sn)));
            let datagram = self.sealed(transfer, &fragment, sns, content);
            self.note_made(&datagram);
            fragment.datagram = Some(datagram);
        }
        self.forward(net, node, None, &fragment);
    }

    /// The bytes of a sealed packet.
    fn sealed(&self, transfer: u32, fragment: &Fragment, sns: &[u64], content: u64) -> Arc<[u8]> {
        let push = self.push(transfer);
        let handle = Handle(fragment.handle.into());
        let header = match sns {
            [sn] => Header::Fragment(FragmentHeader {
                handle,
                round: fragment.round,
                sn: *sn,
                flags: fragment.flags,
                object_len: (*sn == 0).then_some(push.object_len),
                sealed: true,
            }),
            many => {
                let header = CodedHeader::new(handle, many).and_then(CodedHeader::sealed);
                Header::Coded(header.expect("combinations fit one header"))
            }
        };
        let run = push.source.run.as_ref().expect("it has just spoken");
        run.keys.packet(&header, sns, content).expect("a source has its keys")
    }

    /// Writes a frame from the source to a receiver.
    pub(super) fn tell(
        &mut self,
        net: &mut Network<Datagram>,
        transfer: u32,
        stream: StreamId,
        control: &Control<'_>,
    ) {
        self.write(net, transfer, stream, Body::of(control));
    }

    fn write(&mut self, net: &mut Network<Datagram>, transfer: u32, stream: StreamId, body: Body) {
        let push = self.push(transfer);
        let len = body.len(&push.config.geometry(push.object_len));
        let channel = push.source.channel();
        self.tell_roster(net.now(), transfer, RosterInput::Told { guest: GuestId(stream.0) });
        self.streams.write(stream, 1, Frame { body, channel }, len);
        self.streams.pump(net, stream, 1);
    }

    /// Turns queued patches into frames where the connection has room.
    pub(super) fn patch(&mut self, net: &mut Network<Datagram>, transfer: u32, stream: StreamId) {
        while self.streams.waiting(stream, 1) < PATCH_QUEUE_LEN {
            let conn = self.run_mut(transfer).and_then(|run| run.conns.get_mut(&stream));
            let Some(patches) = conn.map(|conn| &mut conn.patches) else { return };
            let Some(run) = patches.first().and_then(|first| patches.run_at(first)) else { return };
            let run = run.start..run.end.min(run.start + PATCH_FRAGMENTS);
            patches.remove(run.clone());
            self.write(net, transfer, stream, Body::Patch(run));
        }
    }

    fn settled(&mut self, now: Time, transfer: u32, peer: PeerId, failure: Option<Why>) {
        let push = self.push_mut(transfer);
        let Some(run) = push.source.run.as_deref_mut() else { return };
        let serves = run.machine.status(peer).is_some_and(|status| status.chained);
        let Some(conn) = run.conns.get_mut(&StreamId(peer.0)) else { return };
        let (twice, receiver) = (core::mem::replace(&mut conn.settled, true), conn.receiver);
        conn.patches = RangeSet::new();
        let lacks = failure.is_none() && push.receivers[receiver as usize].phase != Phase::Done;
        let guest = GuestId(peer.0);
        if failure.is_some() {
            self.forget_taker(transfer, peer);
        }
        self.tell_roster(now, transfer, RosterInput::Settled { guest, failure, serves });
        if twice {
            self.breaches.push(format!("receiver {receiver} was settled twice"));
        }
        if lacks {
            self.breaches.push(format!("receiver {receiver} was settled as done, but is not"));
        }
    }

    /// A frame came from a receiver.
    pub(super) fn frame_to_source(
        &mut self,
        net: &mut Network<Datagram>,
        transfer: u32,
        stream: StreamId,
        body: &Body,
    ) {
        let (now, guest) = (net.now(), GuestId(stream.0));
        let hooks = self.hooks.clone();
        let is_impostor = self.guard.as_ref().is_some_and(|guard| guard.impostors.contains(&stream));
        let Owner::Control { receiver, .. } = self.owners[stream.0 as usize] else { return };
        let Some(run) = self.push_mut(transfer).source.run.as_deref_mut() else { return };
        let Body::Bytes(bytes) = body else { return };
        let is_stranger = !run.conns.contains_key(&stream);
        let parsed = Control::parse(bytes);
        let salt = run.conns.get(&stream).map(|conn| conn.salt).filter(|_| run.roster.is_ready(guest));
        let is_unproven = match (&parsed, salt) {
            (Ok(Control::DataRcvd { proof, .. }), Some(salt)) if !hooks.leaves_out(Step::CheckProof) => {
                *proof != self.right_proof(transfer, &salt)
            }
            _ => false,
        };
        let Some(run) = self.run_mut(transfer) else { return };
        match parsed {
            // Its certificate has another name.
            Ok(Control::Hello(_)) if is_impostor && !hooks.leaves_out(Step::CheckName) => {
                self.finish(net, stream, 1);
            }
            Ok(Control::Hello(hello)) if is_stranger => {
                let conn = Conn {
                    receiver,
                    window_bytes: hello.window_bytes,
                    serve_port: hello.serve_port,
                    location: Location::of(hello.location),
                    salt: [0; 32],
                    patches: RangeSet::new(),
                    dismissed: false,
                    settled: false,
                };
                run.conns.insert(stream, conn);
                self.tell_roster(now, transfer, RosterInput::Hello { guest, hello: &hello });
                let is_there = |run: &mut Sending| run.roster.entry(guest).is_some();
                if is_impostor && self.run_mut(transfer).is_some_and(is_there) {
                    self.breaches.push(format!("another host has the place of receiver {receiver}"));
                }
            }
            Ok(Control::DataRcvd { .. }) if is_unproven => {
                self.tell_roster(now, transfer, RosterInput::Unproven { guest });
            }
            Ok(control) => {
                let is_ready = run.roster.is_ready(guest);
                self.tell_roster(now, transfer, RosterInput::Frame { guest, control: &control });
                match control {
                    Control::Overlay(word) if is_ready => {
                        self.hear_of_mesh(net, transfer, PeerId(guest.0), &word)
                    }
                    control if is_ready => self.hear(now, transfer, PeerId(guest.0), &control),
                    _ => {}
                }
            }
            // One of another version is told so.
            Err(error) if is_stranger => {
                self.tell(net, transfer, stream, &Control::Refuse(&error.to_string()));
                self.finish(net, stream, 1);
            }
            Err(error) => {
                self.tell_roster(now, transfer, RosterInput::Gone { guest, how: Gone::Foreign(error) });
            }
        }
    }

    /// A receiver that is served says something.
    fn hear(&mut self, now: Time, transfer: u32, peer: PeerId, control: &Control<'_>) {
        let everyone = match control {
            Control::Rack(_) if self.hooks.leaves_out(Step::KeepToRack) => {
                let run = self.run_mut(transfer).expect("looked at by the caller");
                let others = run.conns.keys().map(|stream| stream.0).filter(|other| *other != peer.0);
                Some(Control::Rack(others.collect()))
            }
            _ => None,
        };
        let control = everyone.as_ref().unwrap_or(control);
        self.tell_sender(now, transfer, SenderInput::Control { peer, control });
        let push = self.push(transfer);
        let Some(run) = push.source.run.as_ref() else { return };
        if push.config.rack < 2 || !matches!(control, Control::Progress { .. }) {
            return;
        }
        // A report that counts for others must not say more than they have.
        let known = run.conns.iter().filter(|(stream, _)| run.roster.is_ready(GuestId(stream.0)));
        let wrong = known.into_iter().find_map(|(stream, conn)| {
            let said = run.machine.status(PeerId(stream.0))?.verified_bytes;
            let has = push.receivers[conn.receiver as usize].verified_bytes;
            (said > has)
                .then(|| format!("{said} bytes are said of receiver {}, who has {has}", conn.receiver))
        });
        self.breaches.extend(wrong);
    }

    /// A further receiver, or one that needs nothing any more.
    pub(super) fn change_group(
        &mut self,
        net: &mut Network<Datagram>,
        (transfer, receiver): (u32, u32),
        wanted: bool,
    ) {
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        host.wanted = wanted;
        let (now, name) = (net.now(), host.name.clone());
        let Some(run) = self.run_mut(transfer) else { return };
        if wanted {
            run.removed.remove(&name);
            self.tell_roster(now, transfer, RosterInput::Add(&name));
        } else {
            if run.roster.named(&name).is_some_and(|entry| !entry.is_settled()) {
                run.removed.insert(name.clone());
            }
            if !self.hooks.leaves_out(Step::EndRemoved) {
                self.tell_roster(now, transfer, RosterInput::Remove(&name));
            }
        }
        self.drive_source(net, transfer);
    }

    /// Another data channel takes the place of the one that there is.
    pub(super) fn switch_path(
        &mut self,
        net: &mut Network<Datagram>,
        transfer: u32,
        handle: Option<u32>,
        allowance: Option<u64>,
    ) {
        let push = self.push_mut(transfer);
        let (rate, attempt_interval) = (push.config.rate, push.config.attempt_interval);
        let allowance = push.config.fragments_of(allowance);
        let Some(run) = push.source.run.as_deref_mut() else { return };
        // Receivers that fetch over TCP by now stay there.
        let other = handle.is_some_and(|handle| handle != run.handle);
        if run.over || run.without_path || run.channel == 0 || other {
            return;
        }
        push.channels += 1;
        run.channel = push.channels;
        if allowance.is_some() {
            (run.granted, run.spent) = (allowance, 0);
        }
        // A receiver that is slower than the others has left the data channel for good.
        let stays = |stream: &StreamId| {
            !run.machine
                .status(PeerId(stream.0))
                .is_some_and(|status| status.slow.is_some() && status.chained)
        };
        let streams: Vec<StreamId> = run.conns.keys().copied().filter(stays).collect();
        let told = Control::Channel { channel: channel_address(run.channel), outer_len: 0 };
        for stream in streams {
            if !self.hooks.leaves_out(Step::SendChannel) {
                self.tell(net, transfer, stream, &told);
            }
        }
        let input = SenderInput::Path { rate, attempt_interval, allowance };
        self.tell_sender(net.now(), transfer, input);
        self.drive_source(net, transfer);
    }

    /// Receivers of one rack, as far as they are ready, hear that one of them may speak for the others.
    fn gather_racks(&mut self, net: &mut Network<Datagram>, transfer: u32) {
        let push = self.push(transfer);
        let size = push.config.rack;
        let Some(run) = push.source.run.as_ref().filter(|_| size > 1) else { return };
        let mut of_rack: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (stream, conn) in &run.conns {
            if run.roster.is_ready(GuestId(stream.0)) {
                of_rack.entry(conn.receiver / size).or_default().push(stream.0);
            }
        }
        let everyone: BTreeSet<PeerId> = of_rack.values().flatten().map(|peer| PeerId(*peer)).collect();
        for peers in of_rack.into_values() {
            let Some((&own, others)) = peers.split_first() else { continue };
            if others.is_empty() {
                continue;
            }
            let speaker = PeerId(own);
            let mut members: BTreeSet<PeerId> = others.iter().map(|peer| PeerId(*peer)).collect();
            if self.hooks.leaves_out(Step::KeepToRack) {
                members = everyone.iter().copied().filter(|peer| *peer != speaker).collect();
            }
            self.tell_sender(net.now(), transfer, SenderInput::Rack { speaker, members });
            let push = self.push(transfer);
            let receiver = push.source.run.as_ref().expect("looked at above").conns[&StreamId(own)].receiver;
            let address = address_of(push.receivers[receiver as usize].node);
            let gather = Control::Gather { own, members: others.to_vec() };
            self.tell(net, transfer, StreamId(own), &gather);
            for &member in others {
                let told = Control::Speaker { member, address, port: receiver_port(transfer), name: None };
                self.tell(net, transfer, StreamId(member), &told);
            }
        }
    }
}

impl super::PushTransfer {
    /// Returns the reason that a receiver was given up, if it was.
    #[must_use]
    pub fn failure_of(&self, receiver: u32) -> Option<String> {
        let run = self.source.run.as_ref()?;
        let name = &self.receivers[receiver as usize].name;
        let of_it =
            |guest: GuestId| run.conns.get(&StreamId(guest.0)).is_some_and(|conn| conn.receiver == receiver);
        let entry = run.roster.entries().find(|entry| match entry.guest {
            Some(guest) => of_it(guest),
            None => !self.config.counted && entry.name == *name,
        });
        entry?.failure().map(ToString::to_string)
    }

    /// Returns how much slower than the others a receiver is, if they do not wait for it.
    #[must_use]
    pub fn slow_of(&self, receiver: u32) -> Option<Slower> {
        let run = self.source.run.as_ref()?;
        let (stream, _) = run.conns.iter().find(|(_, conn)| conn.receiver == receiver)?;
        run.machine.status(PeerId(stream.0))?.slow
    }
}

/// Returns the groups that a source may give: all hashes are known.
fn seeding_of(groups: u64) -> Seeding {
    let mut seeding = Seeding::new(groups);
    (0..groups).for_each(|group| seeding.make_ready(group));
    seeding
}

/// Returns true if a sender orders a patch of a wanted fragment.
fn is_patch_of(output: &SenderOutput, mut wanted: impl FnMut(u64) -> bool) -> bool {
    match output {
        SenderOutput::SendPatch(sns) => sns.iter().copied().any(wanted),
        SenderOutput::Patch { sns, .. } => sns.clone().any(&mut wanted),
        _ => false,
    }
}
