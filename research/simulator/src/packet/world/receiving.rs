//! Driving a receiver: what its end of the session and its machine order.

use super::frames::{Body, Frame, change_version, channel_at, group_len_of, location_of, receiver_port};
use super::keys::Secret;
use super::mesh::Exchange;
use super::receiver::{Mood, Phase, Wish};
use super::streams::StreamId;
use super::{Cluster, Datagram, Owner, Token};
use crate::packet::Network;
use crate::packet::hooks::{Event, Step};
use alloc::format;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use polycast_protocol::push::{Geometry, ReceiverInput};
use polycast_protocol::session::{End, Guest, GuestConfig, GuestInput, GuestOutput};
use polycast_types::{Handle, Time};
use polycast_wire::control::{Control, Share};

impl Cluster {
    /// A receiver opens its control connection, unless it is done.
    pub(super) fn join(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32) {
        let (called, seed) = (self.called_for(transfer), self.seed);
        let checks_offer = !self.hooks.leaves_out(Step::CheckOffer);
        let push = self.push_mut(transfer);
        let (source, stall_timeout) = (push.source.node, push.config.stall_timeout);
        let Some(handle) = push.source.run.as_ref().map(|run| run.handle) else { return };
        let counted = push.config.counted;
        let host = &mut push.receivers[receiver as usize];
        if host.phase == Phase::Done {
            return;
        }
        if host.guest.is_some() {
            self.break_all(net, transfer, Some(receiver));
        }
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        host.forget(Phase::Joining);
        host.handle = handle;
        let config = GuestConfig {
            handle: Handle(handle.into()),
            // Receivers that come by themselves may be called alike.
            name: if counted { "one of them".into() } else { host.name.clone() },
            window_bytes: host.window_bytes,
            serve_port: receiver_port(transfer),
            location: location_of(seed, host.node),
            answer_timeout: stall_timeout,
            called: checks_offer.then_some(called),
        };
        host.guest = Some(Guest::new(net.now(), config));
        let node = host.node;
        let stream = self.open(net, node, source, Owner::Control { transfer, receiver });
        self.push_mut(transfer).receivers[receiver as usize].control = Some(stream);
        self.drive_receiver(net, transfer, receiver);
    }

    pub(super) fn tell_guest(&mut self, now: Time, transfer: u32, receiver: u32, input: GuestInput<'_>) {
        self.hooks.see(Event::Guest(&input));
        let checks = self.checks && !cfg!(debug_assertions);
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        let Some(guest) = host.guest.as_mut() else { return };
        guest.handle(now, input);
        if checks {
            guest.check();
        }
    }

    /// Does what a receiver's end of the session orders.
    fn drive_guest(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32) {
        let now = net.now();
        if self.push(transfer).receivers[receiver as usize].is_held {
            return;
        }
        loop {
            let host = &mut self.push_mut(transfer).receivers[receiver as usize];
            let Some(guest) = host.guest.as_mut() else { return };
            let due = guest.deadline().is_some_and(|at| at <= now);
            let Some(output) = due.then(|| guest.poll(now)).flatten() else { return };
            self.guest_output(net, transfer, receiver, output);
        }
    }

    fn guest_output(
        &mut self,
        net: &mut Network<Datagram>,
        transfer: u32,
        receiver: u32,
        output: GuestOutput,
    ) {
        let now = net.now();
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        match output {
            GuestOutput::Hello => {
                let Some(guest) = &host.guest else { return };
                let mut hello = Body::of(&guest.hello());
                if host.mood == Some(Mood::Foreign) {
                    change_version(&mut hello);
                }
                self.say_body(net, transfer, receiver, hello);
            }
            GuestOutput::Offer(offer) => {
                self.check_offer(transfer, receiver, &offer);
                let host = &mut self.push_mut(transfer).receivers[receiver as usize];
                if host.mood == Some(Mood::Full) {
                    let full = GuestInput::Failed("no room for the object".into());
                    return self.tell_guest(now, transfer, receiver, full);
                }
                let group_len = group_len_of(host.geometry.group_len);
                let foreign = offer.geometry != Geometry { group_len, ..host.geometry };
                host.channel = channel_at(offer.channel);
                host.salt = offer.salt;
                host.prepare(now, offer.outer_len.into());
                let resumes = host.looks();
                if foreign {
                    self.breaches.push(format!("receiver {receiver} was offered {offer:?}"));
                }
                self.tell_guest(now, transfer, receiver, GuestInput::Stored { resumes });
            }
            GuestOutput::Resume => {
                self.tell_guest(now, transfer, receiver, GuestInput::Checked);
            }
            GuestOutput::Begin => {
                (host.begun, host.phase) = (true, Phase::Running);
                host.handle(now, ReceiverInput::Begin);
                if host.mood == Some(Mood::Lying) {
                    self.say(net, transfer, receiver, &Control::Have(Vec::new()));
                    let lie = Control::DataRcvd { patched_bytes: 0, proof: [0; 32] };
                    self.say(net, transfer, receiver, &lie);
                }
            }
            GuestOutput::Say(control) => self.say(net, transfer, receiver, &control),
            GuestOutput::Refuse(reason) => self.say(net, transfer, receiver, &Control::Refuse(&reason)),
            GuestOutput::Channel { channel, .. } => host.channel = channel_at(channel),
            GuestOutput::Candidates { entry, is_behind_head, ends } => {
                let ends: Vec<(IpAddr, u16, Share)> =
                    ends.into_iter().map(|(address, port, _, share)| (address, port, share)).collect();
                self.take_candidates(net, (transfer, receiver), entry, (is_behind_head, &ends));
            }
            GuestOutput::Speak { own, members } => self.speak(net, transfer, receiver, (own, members)),
            GuestOutput::Follow { member, address, port, .. } => {
                self.follow(net, transfer, receiver, (member, address, port));
            }
            GuestOutput::Alone => self.leave_rack(net, transfer, receiver),
            GuestOutput::Ended(end) => self.ended(net, transfer, receiver, end),
        }
    }

    /// A receiver's session is over: its process ends.
    fn ended(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32, end: End) {
        self.leave_rack(net, transfer, receiver);
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        if (end == End::Done) != (host.phase == Phase::Done) {
            let what = format!("receiver {receiver} ends with {end:?} at {:?}", host.phase);
            host.breaches.push(what);
        }
        host.ends.push(end);
        let own = host.control.into_iter().chain(host.to_candidates());
        let ends: alloc::vec::Vec<(StreamId, u8)> =
            own.map(|stream| (stream, 0)).chain(host.serving.iter().map(|peer| (peer.stream, 1))).collect();
        host.forget(Phase::Failed);
        ends.into_iter().for_each(|(stream, end)| self.finish(net, stream, end));
    }

    /// A receiver that was held up goes on, if it is time, before anything else comes to it.
    pub(super) fn release(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32) {
        let host = &self.push(transfer).receivers[receiver as usize];
        if host.is_held && net.now() >= host.held_until {
            self.drive_receiver(net, transfer, receiver);
        }
    }

    /// Returns true while a receiver does nothing. One that goes on has not checked what has come meanwhile.
    fn is_held(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32) -> bool {
        let now = net.now();
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        let was_held = core::mem::replace(&mut host.is_held, now < host.held_until);
        if host.is_held {
            host.alarm.set(net, host.node, Token::Receiver(transfer, receiver), Some(host.held_until));
        } else if was_held {
            host.handle(now, ReceiverInput::HeldUp);
            if host.socket.is_empty() {
                host.handle(now, ReceiverInput::NothingWaits);
            }
            for (stream, end) in core::mem::take(&mut host.unread) {
                self.take_frames(net, stream, end);
            }
            return false;
        }
        host.is_held
    }

    /// Polls a receiver until it has nothing to say.
    pub(super) fn drive_receiver(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32) {
        let now = net.now();
        if self.is_held(net, transfer, receiver) {
            return;
        }
        let mut verified = false;
        loop {
            self.drive_guest(net, transfer, receiver);
            let host = &mut self.push_mut(transfer).receivers[receiver as usize];
            let Some(wish) = host.poll(now) else {
                if host.decode_earlier(now) {
                    continue;
                }
                break;
            };
            match wish {
                Some(Wish::Say(control)) => self.say_in_rack(net, transfer, receiver, &control),
                Some(Wish::Repeat(control)) => self.say(net, transfer, receiver, &control),
                Some(Wish::Verified) => verified = true,
                Some(Wish::Completed) => {
                    verified = true;
                    let candidates: Vec<StreamId> = host.to_candidates().collect();
                    host.exchange = None;
                    candidates.into_iter().for_each(|stream| self.finish(net, stream, 0));
                    self.tell_guest(now, transfer, receiver, GuestInput::Committed);
                }
                None => {}
            }
        }
        self.drive_exchange(net, transfer, receiver);
        self.drive_rack(net, transfer, receiver);
        if verified || self.news_at(transfer, receiver).is_some_and(|at| now >= at) {
            self.serve(net, transfer, Some(receiver));
        }
        let news_at = self.news_at(transfer, receiver);
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        let deadlines = [
            host.machine.as_ref().and_then(|machine| machine.deadline()),
            host.guest.as_ref().and_then(|guest| guest.deadline()),
            host.rack.deadline(),
            host.exchange.as_ref().and_then(Exchange::deadline),
            news_at,
        ];
        let deadline = deadlines.into_iter().flatten().min();
        let (node, control) = (host.node, host.control);
        host.alarm.set(net, node, Token::Receiver(transfer, receiver), deadline);
        if let Some(stream) = control {
            self.streams.pump(net, stream, 0);
        }
    }

    /// Says something to the source.
    pub(super) fn say(
        &mut self,
        net: &mut Network<Datagram>,
        transfer: u32,
        receiver: u32,
        control: &Control<'_>,
    ) {
        self.say_body(net, transfer, receiver, Body::of(control));
    }

    fn say_body(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32, body: Body) {
        let host = &self.push(transfer).receivers[receiver as usize];
        let Some(stream) = host.control else { return };
        let len = body.len(&host.geometry);
        self.streams.write(stream, 0, Frame { body, channel: 0 }, len);
        self.streams.pump(net, stream, 0);
    }

    /// A receiver is told what fragments are sealed with.
    fn hear_secret(&mut self, net: &mut Network<Datagram>, (transfer, receiver): (u32, u32), secret: Secret) {
        let push = self.push_mut(transfer);
        let (handle, host) = (&push.source.run, &mut push.receivers[receiver as usize]);
        let Some(run) = handle.as_ref().filter(|run| run.handle == host.handle) else { return };
        let Some((sns, _)) = run.keys.epochs().iter().find(|(_, known)| *known == secret) else { return };
        let sns = Arc::clone(sns);
        host.keys.learn(Arc::clone(&sns), secret);
        host.keys.reuses_nonces = run.keys.reuses_nonces;
        let (handle, reuses_nonces) = (host.handle, run.keys.reuses_nonces);
        if let Some(guard) = self.guard.as_deref_mut()
            && (transfer, guard.attack.insider) == (0, Some(receiver))
        {
            let known = guard.known.entry(handle).or_default();
            known.learn(sns, secret);
            known.reuses_nonces = reuses_nonces;
        }
        self.drop_fetchers(net, transfer, Some(receiver));
    }

    /// A frame came from the source.
    pub(super) fn frame_to_receiver(
        &mut self,
        net: &mut Network<Datagram>,
        (transfer, receiver): (u32, u32),
        stream: StreamId,
        frame: &Frame,
    ) {
        let now = net.now();
        let host = &self.push(transfer).receivers[receiver as usize];
        if host.control != Some(stream) {
            return;
        }
        let Some(control) = frame.body.control() else {
            self.breaches.push(format!("the source wrote a frame that is none: {frame:?}"));
            return;
        };
        if let Control::Seal(secret) = &control {
            return self.hear_secret(net, (transfer, receiver), Secret::in_frame(secret));
        }
        self.tell_guest(now, transfer, receiver, GuestInput::Frame(&control));
        if let Body::Hashes(hashes) = &frame.body {
            let host = &mut self.push_mut(transfer).receivers[receiver as usize];
            if host.look(now, hashes.end) {
                self.tell_guest(now, transfer, receiver, GuestInput::Verifiable);
            }
        }
        self.drive_guest(net, transfer, receiver);
        self.check_root((transfer, receiver), stream, &control);
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        // One that is slower than the others has left.
        if host.machine.is_some() && host.channel != 0 && host.channel != frame.channel {
            let (has, needs) = (host.channel, frame.channel);
            let what = format!("listens on data channel {has}, and {needs} is in use: it was not told");
            host.breach(&what);
        }
        match &frame.body {
            Body::Patch(sns) => host.patch_data(now, sns.clone()),
            _ if matches!(control, Control::DataFnsd { .. }) => {
                host.handle(now, ReceiverInput::Control(&control));
            }
            _ => {}
        }
        // What a patch brings is kept before the next one comes.
        self.drive_receiver(net, transfer, receiver);
    }
}

impl super::PushReceiver {
    /// The words in which its last session was refused, if it was.
    #[must_use]
    pub fn refusal(&self) -> Option<alloc::string::String> {
        match self.ends.last()? {
            End::Refused(words) => Some(words.to_string()),
            _ => None,
        }
    }
}
