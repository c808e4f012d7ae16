//! Acts of an attacker of its own accord: it sends packets that it has seen or made, and speaks where it may
//! and may not.

use super::attacker::{Author, from_nothing, retagged};
use super::frames::{Body, Frame, address_of, receiver_port};
use super::keys::{Secret, salt_of};
use super::permits::{Allowed, Manager, unix_s};
use super::receiver::content_of;
use super::streams::StreamId;
use super::{Cluster, Datagram, Fragment, Happening, Owner};
use crate::packet::Network;
use crate::packet::hooks::{Act, Event, Step};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_types::{DataId, Handle, ObjectId, Time};
use polycast_wire::control::{Control, Fault, Hello, Overlay, WANT_MAX};
use polycast_wire::data::{CodedHeader, FLAG_PATCH, FLAG_REPORT, Header};

impl Cluster {
    /// One thing that it may do at any time.
    pub(super) fn act(&mut self, net: &mut Network<Datagram>) {
        let receivers = self.push(0).receivers.len() as u64;
        let guard = self.guard.as_deref_mut().expect("there is an attacker");
        let (kind, to) = (guard.random.below(12), guard.random.below(receivers) as u32);
        let is_inside = guard.attack.insider.is_some();
        match kind {
            0 | 1 => self.send_seen(net, to),
            2 => self.plan_lie(net, to),
            3 => self.send_made(net, to),
            4 => self.call_without_permit(net, to),
            5 | 6 if is_inside => self.forge_as_member(net, to),
            7 if is_inside => self.forge_patch(net, to),
            8 if is_inside => self.speak_as(net, to),
            9 | 10 if is_inside => self.lie(net),
            11.. if is_inside => self.enter_as(net, to),
            5 => self.cut_in(net, to),
            _ => self.send_seen(net, to),
        }
    }

    /// A packet that it has seen comes again, as it was or changed; also one of an earlier transfer.
    fn send_seen(&mut self, net: &mut Network<Datagram>, to: u32) {
        let (handle, channel) =
            (self.push(0).source.run.as_ref().map(|run| run.handle), self.push(0).source.channel());
        let guard = self.guard.as_deref_mut().expect("there is an attacker");
        let Some(seen) = guard.seen() else { return };
        let (mut fragment, mut name) = (seen.clone(), Act::Replays);
        if let Some(handle) = handle.filter(|handle| *handle != seen.handle || seen.transfer != 0) {
            // The name on the wire of the transfer that runs, as if it were one of its packets.
            let mut bytes = seen.datagram.as_deref().unwrap_or_default().to_vec();
            bytes[8..16].copy_from_slice(&u64::from(handle).to_be_bytes());
            fragment = Fragment { transfer: 0, handle, channel, ..guard.made(&seen, bytes) };
            name = Act::ReplaysEarlier;
        } else if guard.random.one_in(2) {
            fragment = guard.changed(&seen);
            name = Act::SendsChanged;
        }
        if fragment.transfer == 0 {
            self.hooks.see(Event::Attack(name));
            self.take_in(net, (0, to), fragment);
        }
    }

    /// Its only packet: one that it has seen, with another position.
    pub(super) fn send_one(&mut self, net: &mut Network<Datagram>) {
        let guard = self.guard.as_deref_mut().expect("there is an attacker");
        let Some(seen) = guard.seen() else { return };
        let forged = guard.changed(&seen);
        if forged.author == Author::Stranger {
            self.hooks.see(Event::Attack(Act::ForgesOne));
            self.take_in(net, (0, 0), forged);
        }
    }

    /// A packet that no source has sent.
    fn send_made(&mut self, net: &mut Network<Datagram>, to: u32) {
        let like = self.new_fragment(0);
        let guard = self.guard.as_deref_mut().expect("there is an attacker");
        let round = *guard.random.pick(&[0, 0, 1, u32::MAX]);
        let (sn, content) = (guard.random.magnitude(0..=1 << 16), guard.random.below(u64::MAX));
        let fragment = guard.made(&like, from_nothing(like.handle, round, sn, content));
        self.hooks.see(Event::Attack(Act::Injects));
        self.take_in(net, (0, to), fragment);
    }

    /// A member with the keys sends a fragment with another content, or with its own content far ahead.
    fn forge_as_member(&mut self, net: &mut Network<Datagram>, to: u32) {
        let (fragments, object) = {
            let push = self.push(0);
            (push.config.geometry(push.object_len).fragments(), push.object)
        };
        let like = self.new_fragment(0);
        let guard = self.guard.as_deref_mut().expect("there is an attacker");
        let Some(keys) = guard.known.get(&like.handle).cloned() else { return };
        let sn = guard.random.below(fragments);
        let jumps = guard.random.one_in(2);
        let round = if jumps { *guard.random.pick(&[1, 2, 1 << 16, u32::MAX]) } else { 0 };
        let flags = *guard.random.pick(&[0, FLAG_REPORT, FLAG_PATCH]);
        let content = if jumps { content_of(object, sn) } else { guard.random.below(u64::MAX) };
        let change = |header: &mut polycast_wire::data::FragmentHeader| {
            (header.round, header.sn, header.flags) = (round, sn, flags);
        };
        let bytes = from_nothing(like.handle, 0, 0, 0);
        let Some(datagram) = retagged(&keys, &bytes, change, content) else { return };
        self.note_made(&datagram);
        let fragment = Fragment { author: Author::Member, datagram: Some(datagram), ..like };
        self.hooks.see(Event::Attack(if jumps { Act::MemberJumps } else { Act::MemberForges }));
        self.take_in(net, (0, to), fragment);
    }

    /// A member with the keys sends a coded patch of something else.
    fn forge_patch(&mut self, net: &mut Network<Datagram>, to: u32) {
        let push = self.push(0);
        let fragments = push.config.geometry(push.object_len).fragments();
        let like = self.new_fragment(0);
        let guard = self.guard.as_deref_mut().expect("there is an attacker");
        let Some(keys) = guard.known.get(&like.handle).cloned() else { return };
        let first = guard.random.below(fragments);
        let sns: Vec<u64> = (first..fragments.min(first + guard.random.within(2..=8))).collect();
        let content = guard.random.below(u64::MAX);
        let header = CodedHeader::new(Handle(like.handle.into()), &sns).and_then(CodedHeader::sealed);
        let packet = header.and_then(|header| keys.packet(&Header::Coded(header), &sns, content));
        let Some(datagram) = packet else { return };
        self.note_made(&datagram);
        let fragment = Fragment { author: Author::Member, datagram: Some(datagram), ..like };
        self.hooks.see(Event::Attack(Act::MemberPatches));
        self.take_in(net, (0, to), fragment);
    }

    /// A connection of others gets the attacker's bytes in between, which do not open at the other end.
    fn cut_in(&mut self, net: &mut Network<Datagram>, to: u32) {
        let host = &self.push(0).receivers[to as usize];
        let streams: Vec<StreamId> = host.control.into_iter().chain(host.to_candidates()).collect();
        if streams.is_empty() {
            return;
        }
        let stream = *self.guard.as_deref_mut().expect("there is an attacker").random.pick(&streams);
        self.hooks.see(Event::Attack(Act::CutsIn));
        self.break_both(net, stream);
    }

    /// Its receiver says to the source what is not so.
    fn lie(&mut self, net: &mut Network<Datagram>) {
        let push = self.push(0);
        let geometry = push.config.geometry(push.object_len);
        let nodes: Vec<_> = push.receivers.iter().map(|host| host.node).collect();
        let guard = self.guard.as_deref_mut().expect("there is an attacker");
        let Some(insider) = guard.attack.insider else { return };
        let random = &mut guard.random;
        let sn = random.below(geometry.fragments());
        let (position, count) = (random.below(u64::MAX), random.within(1..=64));
        let (control, name) = match random.below(9) {
            0 | 1 => {
                // A proof of another time, or none.
                let proof = if random.one_in(2) { [0; 32] } else { salt_of(position) };
                (Control::DataRcvd { patched_bytes: 0, proof }, Act::Unproven)
            }
            2 => {
                let lie = Control::Progress {
                    position,
                    received: random.below(1 << 20),
                    lost: random.below(1 << 20),
                    verified_bytes: position,
                    arrived_ns: random.below(1 << 40),
                    waited_ns: random.below(1 << 30),
                };
                (lie, Act::LiesProgress)
            }
            3 | 4 => {
                let asked = core::iter::once(sn..geometry.fragments().min(sn + count)).collect();
                (Control::PtchReq(asked), Act::Asks)
            }
            5 => (Control::Forged { packets: position }, Act::Complains),
            6 => {
                let groups = geometry.groups();
                let first = random.below(groups);
                let until = groups.min(first + random.magnitude(1..=4_096));
                let lacks = Overlay::Lacks(core::iter::once(first..until).collect());
                (Control::Overlay(lacks), Act::Lacks)
            }
            7 => {
                let why =
                    *random.pick(&[Fault::Unreachable, Fault::NeverGave, Fault::WrongBytes, Fault::Foreign]);
                let fault =
                    Overlay::Fault { address: address_of(*random.pick(&nodes)), port: receiver_port(0), why };
                (Control::Overlay(fault), Act::Blames)
            }
            _ => (Control::IntlSeq { position }, Act::LiesPosition),
        };
        if self.push(0).receivers[insider as usize].begun {
            self.hooks.see(Event::Attack(name));
            self.say(net, 0, insider, &control);
        }
    }

    /// The attacker opens a connection and says HELLO in the name of a receiver that is not its own.
    fn speak_as(&mut self, net: &mut Network<Datagram>, victim: u32) {
        let push = self.push(0);
        let (source, geometry) = (push.source.node, push.config.geometry(push.object_len));
        let guard = self.guard.as_deref().expect("there is an attacker");
        let Some(insider) = guard.attack.insider.filter(|insider| *insider != victim) else { return };
        let (Some(run), host) = (&push.source.run, &push.receivers[victim as usize]) else { return };
        let (node, name) = (push.receivers[insider as usize].node, host.name.clone());
        let handle = Handle(run.handle.into());
        let location = [""; 2];
        let hello = Hello { handle, name: &name, window_bytes: 1 << 20, serve_port: 0, location };
        let hello = Control::Hello(hello);
        let body = Body::of(&hello);
        let len = body.len(&geometry);
        let stream = self.open(net, node, source, Owner::Control { transfer: 0, receiver: victim });
        self.guard.as_deref_mut().expect("there is an attacker").impostors.insert(stream);
        self.hooks.see(Event::Attack(Act::SpeaksAs));
        self.streams.write(stream, 0, Frame { body, channel: 0 }, len);
        self.streams.pump(net, stream, 0);
    }

    /// The attacker opens a connection to an end of the transfer and asks for what that has, or for what it
    /// need not have: with a ticket of a secret that its receiver was told, which may be an earlier one, with
    /// one that it has made for another connection, or with none.
    fn enter_as(&mut self, net: &mut Network<Datagram>, to: u32) {
        let push = self.push(0);
        let geometry = push.config.geometry(push.object_len);
        let Some(run) = &push.source.run else { return };
        let (handle, source) = (run.handle, push.source.node);
        let guard = self.guard.as_deref_mut().expect("there is an attacker");
        let Some(insider) = guard.attack.insider else { return };
        let random = &mut guard.random;
        let upstream = (to != insider && !random.one_in(4)).then_some(to);
        let (kind, stays) = (random.below(4), random.one_in(2));
        let known = guard.known.get(&handle).into_iter().flat_map(|known| known.epochs());
        let known: Vec<Secret> = known.map(|(_, secret)| *secret).collect();
        let secret = (!known.is_empty()).then(|| *random.pick(&known));
        let (asks_all, entry) = (random.one_in(2), random.below(4));
        let any: Vec<u64> = (0..random.below(100)).map(|_| random.below(geometry.groups() + 1)).collect();
        let (until, push) = (guard.attack.until, self.push(0));
        let own = &push.receivers[insider as usize];
        let asked_of = upstream.map(|to| &push.receivers[to as usize]);
        let asked: Vec<u64> = match asked_of.filter(|_| asks_all) {
            Some(host) => host.intact.iter().copied().take(WANT_MAX).collect(),
            None => any,
        };
        // What its receiver was told to show the source.
        let told = own.exchange.as_ref().map_or(0, |exchange| exchange.entry);
        let entry = if entry == 0 { told } else { entry };
        let (node, at) = (own.node, asked_of.map_or(source, |host| host.node));
        let stream = self.open(net, node, at, Owner::Mesh { transfer: 0, receiver: insider, upstream });
        let ticket = match (kind, secret) {
            (0, _) | (_, None) => [0; 32],
            (1, Some(secret)) => secret.ticket(stream.0 ^ 1),
            (_, Some(secret)) => secret.ticket(stream.0),
        };
        self.hooks.see(Event::Attack(Act::Fetches));
        let enter = Overlay::Enter { handle: Handle(handle.into()), ticket, entry, have: Vec::new() };
        let wants = asked.chunks(WANT_MAX).map(|groups| Overlay::Want(groups.to_vec()));
        for word in core::iter::once(enter).chain(wants) {
            let body = Body::of(&Control::Overlay(word));
            let len = body.len(&geometry);
            self.streams.write(stream, 0, Frame { body, channel: 0 }, len);
        }
        self.streams.pump(net, stream, 0);
        if stays {
            self.plan(net, until, Happening::Broken { stream, end: 1 });
        } else {
            self.finish(net, stream, 0);
        }
    }

    /// A receiver is called by one whom the manager has not allowed it.
    fn call_without_permit(&mut self, net: &Network<Datagram>, to: u32) {
        let push = self.push(0);
        let name = push.receivers[to as usize].name.clone();
        let honest = Allowed {
            source: String::from("an honest one"),
            address: [10, 0, 0, 1].into(),
            object: ObjectId { data: DataId(push.object), ..ObjectId::default() },
            object_len: push.object_len,
            root: None,
            pulled: false,
            receivers: push.receivers.iter().map(|host| host.name.clone()).collect(),
            from_unix_s: unix_s(Time::ZERO),
        };
        let manager = Manager(push.object);
        let guard = self.guard.as_deref_mut().expect("there is an attacker");
        let lets = manager.lets_attacker(&mut guard.random, &honest, net.now(), &name);
        let takes_part = self.hooks.leaves_out(Step::CheckPermit) || lets;
        self.hooks.see(Event::Attack(Act::Calls));
        if takes_part {
            self.breaches.push(format!("receiver {to} takes part in what was not permitted"));
        }
    }

    /// Returns true if an end of a transfer is the attacker's receiver, and cheats this time.
    pub(super) fn cheats(&mut self, now: Time, (transfer, server): (u32, Option<u32>)) -> bool {
        let Some(guard) = self.guard.as_deref_mut() else { return false };
        let is_its = transfer == 0 && server.is_some() && server == guard.attack.insider;
        is_its && now < guard.attack.until && guard.random.one_in(4)
    }

    /// Its receiver serves other bytes than it has.
    pub(super) fn spoil(
        &mut self,
        now: Time,
        (transfer, server): (u32, Option<u32>),
        writes: &mut [(StreamId, Body)],
    ) {
        let Some(guard) = self.guard.as_deref_mut() else { return };
        if transfer != 0 || server.is_none() || server != guard.attack.insider || now >= guard.attack.until {
            return;
        }
        for (_, body) in writes {
            if let Body::Group(group) = *body
                && guard.random.one_in(2)
            {
                *body = Body::Spoiled(group);
                self.hooks.see(Event::Attack(Act::ServesWrong));
            }
        }
    }
}
