//! The mesh: receivers that fetch groups from candidates among which each chooses
//! (`protocol::push::overlay`), and those that serve them.

use super::frames::{Body, Frame, address_of, node_at, receiver_port, source_port};
use super::receiver::{Part, PushReceiver, Serving};
use super::streams::StreamId;
use super::{Cluster, Datagram, Happening, Owner, Token};
use crate::packet::Network;
use crate::packet::hooks::{Act, Event, Step};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::Range;
use polycast_protocol::push::overlay::{
    Candidate, Candidates, Refused, Requests, UpstreamId, Upstreams, UpstreamsConfig, UpstreamsInput,
    UpstreamsOutput,
};
use polycast_protocol::push::{PeerId, ReceiverInput, SenderInput};
use polycast_protocol::session::GuestInput;
use polycast_types::{Duration, Handle, RangeSet, Time};
use polycast_wire::control::{CandidateEnd, Control, ENTER_RANGES_MAX, End, Fault, Overlay, Share};

/// A candidate to which no way leads is given up after this long.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// A source looks so often whether it may give a group again.
pub(super) const GIVE_INTERVAL: Duration = Duration::from_millis(20);

/// The candidates of a receiver.
pub(super) struct Exchange {
    machine: Upstreams,
    streams: BTreeMap<UpstreamId, StreamId>,
    /// Candidates whose connection is open.
    opened: BTreeSet<UpstreamId>,
    /// Number that is shown to the source.
    pub(super) entry: u64,
    tick_at: Option<Time>,
    /// Bytes that had come by each connection when it was looked at last.
    heard: BTreeMap<StreamId, u64>,
}

impl Exchange {
    fn id_of(&self, stream: StreamId) -> Option<UpstreamId> {
        self.streams.iter().find(|(_, other)| **other == stream).map(|(id, _)| *id)
    }

    /// Returns the time at which something is to be done even if nothing arrives.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.tick_at
    }
}

impl PushReceiver {
    /// Its connections to its candidates.
    pub(super) fn to_candidates(&self) -> impl Iterator<Item = StreamId> {
        self.exchange.iter().flat_map(|exchange| exchange.streams.values().copied())
    }

    /// Tells the machine that chooses something, if there is one.
    pub(super) fn tell_upstreams(&mut self, now: Time, input: UpstreamsInput<'_>) {
        let Some(exchange) = &mut self.exchange else { return };
        self.hooks.see(Event::Upstreams(&input));
        exchange.machine.handle(now, input);
    }
}

impl Cluster {
    /// Returns the time at which a receiver may report its groups to a peer that waits for nothing. A peer to
    /// which something is on its way receives the report with the data that comes next.
    pub(super) fn news_at(&self, transfer: u32, receiver: u32) -> Option<Time> {
        let host = &self.push(transfer).receivers[receiver as usize];
        let streams = &self.streams;
        let hears = |peer: &&Serving| streams.is_open(peer.stream) && streams.waiting(peer.stream, 1) == 0;
        let asks = host.serving.iter().filter(hears).filter_map(|peer| match &peer.part {
            Part::Asked(requests) if requests.has_news(host.order.len()) => Some(requests.news_at()),
            _ => None,
        });
        asks.min()
    }

    /// Makes sure that those who wait for nothing are told in time.
    pub(super) fn wake_for_news(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32) {
        let at = self.news_at(transfer, receiver);
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        host.alarm.set(net, host.node, Token::Receiver(transfer, receiver), at);
    }

    /// Tells a receiver whom it may fetch from.
    pub(super) fn tell_candidates(&mut self, net: &mut Network<Datagram>, transfer: u32, told: &Candidates) {
        let entry = if told.takes { super::keys::mix(self.seed, told.peer.0.into()) | 1 } else { 0 };
        let push = self.push_mut(transfer);
        let run = push.source.run.as_deref_mut().expect("it has just spoken");
        run.seeding.set_apart(told.peer, told.is_apart);
        if told.takes {
            run.entries.insert(entry, told.peer);
        }
        run.candidates.insert(told.peer, told.from.iter().map(|(peer, _)| *peer).collect());
        if let Some(conn) = run.conns.get_mut(&StreamId(told.peer.0)) {
            // It fetches them there.
            conn.patches = RangeSet::new();
        }
        let mut ends: Vec<CandidateEnd<'_>> = Vec::new();
        for (peer, share) in &told.from {
            let Some(conn) = run.conns.get(&StreamId(peer.0)) else { continue };
            let address = address_of(push.receivers[conn.receiver as usize].node);
            let end = End { address, port: conn.serve_port, name: None };
            // Two behind one address cannot be told apart.
            if end.port != 0 && !ends.iter().any(|known| known.end == end) {
                ends.push(CandidateEnd { end, share: *share });
            }
        }
        let frame =
            Control::Overlay(Overlay::Candidates { entry, is_behind_head: told.is_behind_head, ends });
        self.tell(net, transfer, StreamId(told.peer.0), &frame);
    }

    /// A receiver says something of the mesh to its source.
    pub(super) fn hear_of_mesh(
        &mut self,
        net: &mut Network<Datagram>,
        transfer: u32,
        by: PeerId,
        word: &Overlay<'_>,
    ) {
        let now = net.now();
        match word {
            Overlay::Lacks(groups) => {
                if let Some(run) = self.run_mut(transfer) {
                    run.seeding.lack(now, by, groups);
                }
                let control = Control::Overlay(Overlay::Lacks(groups.clone()));
                self.tell_sender(now, transfer, SenderInput::Control { peer: by, control: &control });
                self.serve(net, transfer, None);
            }
            Overlay::Fault { address, port: _, why } => {
                let push = self.push_mut(transfer);
                let Some(run) = push.source.run.as_deref_mut() else { return };
                let node = node_at(*address);
                let is_there = |peer: &&PeerId| {
                    let conn = run.conns.get(&StreamId(peer.0));
                    conn.is_some_and(|conn| push.receivers[conn.receiver as usize].node == node)
                };
                let known = run.candidates.get(&by).into_iter().flatten();
                let Some(candidate) = { known }.find(is_there).copied() else { return };
                if why.is_a_complaint() {
                    run.seeding.complain(by, candidate);
                }
                let input = SenderInput::Useless { peer: by, candidate, for_good: why.is_for_good() };
                self.tell_sender(now, transfer, input);
            }
            _ => {}
        }
    }

    /// A receiver takes nothing more of what the source gives.
    pub(super) fn forget_taker(&mut self, transfer: u32, peer: PeerId) {
        if let Some(run) = self.run_mut(transfer) {
            run.seeding.forget(peer);
            run.entries.retain(|_, other| *other != peer);
        }
    }

    /// A receiver hears whom it may fetch from.
    pub(super) fn take_candidates(
        &mut self,
        net: &mut Network<Datagram>,
        (transfer, receiver): (u32, u32),
        entry: Option<u64>,
        (is_behind_head, ends): (bool, &[(IpAddr, u16, Share)]),
    ) {
        let (now, seed) = (net.now(), super::keys::mix(self.seed, receiver.into()));
        let push = self.push_mut(transfer);
        let source = address_of(push.source.node);
        let host = &mut push.receivers[receiver as usize];
        let own = (address_of(host.node), receiver_port(transfer));
        if host.exchange.is_none() {
            host.handle(now, ReceiverInput::Chained);
            let (groups, group_len) = (host.geometry.groups(), host.geometry.group_len);
            host.exchange = Some(Exchange {
                machine: Upstreams::new(UpstreamsConfig { groups, group_len, seed }),
                streams: BTreeMap::new(),
                opened: BTreeSet::new(),
                entry: 0,
                tick_at: None,
                heard: BTreeMap::new(),
            });
            for group in host.intact.clone() {
                host.tell_upstreams(now, UpstreamsInput::Verified(group));
            }
        }
        let member = |(address, port, share): &(IpAddr, u16, Share)| Candidate {
            address: *address,
            port: *port,
            name: None,
            is_source: false,
            share: *share,
        };
        let mut candidates: Vec<Candidate> = Vec::new();
        for candidate in ends.iter().map(member) {
            match candidate.check(own, source) {
                Ok(()) => candidates.push(candidate),
                // An earlier connection of its own, whose end the source has not seen yet.
                Err(Refused::Oneself) => {}
                Err(why) => host.breach(&format!("its source names a candidate that cannot be one: {why}")),
            }
        }
        let (port, share) = (source_port(transfer), Share::ALL);
        let at_source = Candidate { address: source, port, name: None, is_source: true, share };
        candidates.extend(entry.map(|_| at_source));
        if let Some(exchange) = &mut host.exchange {
            exchange.entry = entry.unwrap_or(0);
        }
        host.tell_upstreams(now, UpstreamsInput::Candidates { all: &candidates, is_behind_head });
    }

    /// Does what the machine that chooses orders.
    pub(super) fn drive_exchange(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32) {
        let now = net.now();
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        let Some(exchange) = &host.exchange else { return };
        let is_due = exchange.tick_at.is_none_or(|at| now >= at);
        if is_due {
            host.tell_upstreams(now, UpstreamsInput::Tick);
            let exchange = host.exchange.as_mut().expect("looked at above");
            exchange.tick_at = exchange.machine.deadline(now);
        }
        loop {
            let host = &mut self.push_mut(transfer).receivers[receiver as usize];
            let Some(output) = host.exchange.as_mut().and_then(|exchange| exchange.machine.poll()) else {
                return;
            };
            self.obey(net, (transfer, receiver), output);
        }
    }

    fn obey(
        &mut self,
        net: &mut Network<Datagram>,
        (transfer, receiver): (u32, u32),
        output: UpstreamsOutput,
    ) {
        let forgets_lacks = self.hooks.leaves_out(Step::ReportLacks);
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        let geometry = host.geometry;
        let Some(exchange) = &mut host.exchange else { return };
        match output {
            UpstreamsOutput::Open(id, candidate) => {
                self.open_candidate(net, (transfer, receiver), id, &candidate)
            }
            UpstreamsOutput::Ask(id, groups) => {
                let Some(stream) = exchange.streams.get(&id).copied() else { return };
                let body = Body::of(&Control::Overlay(Overlay::Want(groups)));
                let len = body.len(&geometry);
                self.streams.write(stream, 0, Frame { body, channel: 0 }, len);
                self.streams.pump(net, stream, 0);
            }
            UpstreamsOutput::Close(id) => {
                exchange.opened.remove(&id);
                if let Some(stream) = exchange.streams.remove(&id) {
                    exchange.heard.remove(&stream);
                    self.finish(net, stream, 0);
                }
            }
            UpstreamsOutput::Finish(id) => {
                if let Some(stream) = exchange.streams.get(&id).copied() {
                    self.finish(net, stream, 0);
                }
            }
            UpstreamsOutput::Lost(Candidate { address, port, .. }, why) => {
                let fault = Control::Overlay(Overlay::Fault { address, port, why });
                self.say(net, transfer, receiver, &fault);
            }
            UpstreamsOutput::Lacks(_) if forgets_lacks => {}
            UpstreamsOutput::Lacks(ranges) => {
                self.say(net, transfer, receiver, &Control::Overlay(Overlay::Lacks(ranges)));
            }
        }
    }

    fn open_candidate(
        &mut self,
        net: &mut Network<Datagram>,
        (transfer, receiver): (u32, u32),
        id: UpstreamId,
        candidate: &Candidate,
    ) {
        let now = net.now();
        let place = self.place(transfer, (candidate.address, candidate.port));
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        let Some((to, upstream)) = place else {
            host.breach(&format!("is sent to {:?}, where no receiver is", candidate.address));
            return host.tell_upstreams(now, UpstreamsInput::Closed(id, Fault::Unreachable));
        };
        let (node, handle, geometry) = (host.node, Handle(host.handle.into()), host.geometry);
        let held: RangeSet = host.intact.iter().map(|&group| group..group + 1).collect();
        let have: Vec<Range<u64>> = held.iter().take(ENTER_RANGES_MAX).collect();
        let exchange = host.exchange.as_ref().expect("its machine has just spoken");
        let entry = if candidate.is_source { exchange.entry } else { 0 };
        let stream = self.open(net, node, to, Owner::Mesh { transfer, receiver, upstream });
        let (listens, has_path) = (self.listens(transfer, upstream), self.streams.has_path(stream));
        let secret = self.newest_secret(transfer, Some(receiver));
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        let exchange = host.exchange.as_mut().expect("looked at above");
        exchange.streams.insert(id, stream);
        if !listens {
            return self.break_stream(net, stream, 0);
        }
        if !has_path {
            self.streams.close(stream);
            return self.plan(net, now + CONNECT_WITHIN, Happening::Broken { stream, end: 0 });
        }
        exchange.opened.insert(id);
        host.tell_upstreams(now, UpstreamsInput::Opened(id));
        let ticket = secret.map_or([0; 32], |secret| secret.ticket(stream.0));
        let body = Body::of(&Control::Overlay(Overlay::Enter { handle, ticket, entry, have }));
        let len = body.len(&geometry);
        self.streams.write(stream, 0, Frame { body, channel: 0 }, len);
        self.streams.pump(net, stream, 0);
    }

    /// Notes how many bytes have come from a candidate; `said` of them say what it has.
    pub(super) fn hear_candidate(&mut self, now: Time, owner: Owner, stream: StreamId, said: u64) {
        let Owner::Mesh { transfer, receiver, .. } = owner else { return };
        let delivered = self.streams.delivered(stream, 1);
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        let Some(exchange) = &mut host.exchange else { return };
        let Some(id) = exchange.id_of(stream) else { return };
        let heard = exchange.heard.entry(stream).or_default();
        let came = delivered.saturating_sub(core::mem::replace(heard, delivered)).saturating_sub(said);
        if came > 0 {
            host.tell_upstreams(now, UpstreamsInput::Heard(id, came));
        }
    }

    /// A frame of a candidate; gives how many bytes of it say what the candidate has, or `None` where it is
    /// none.
    pub(super) fn candidate_frame(
        &mut self,
        net: &mut Network<Datagram>,
        (transfer, receiver): (u32, u32),
        stream: StreamId,
        body: &Body,
    ) -> Option<u64> {
        let now = net.now();
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        let id = host.exchange.as_ref()?.id_of(stream)?;
        let mut said = 0;
        match body.control() {
            Some(Control::Group { index, .. }) => {
                host.tell_upstreams(now, UpstreamsInput::Came(id, index));
                let is_open = host.exchange.as_ref().is_some_and(|exchange| exchange.machine.is_open(id));
                // Its source has said all hashes before it has named candidates.
                if is_open {
                    host.take_group(now, id, index, matches!(body, Body::Spoiled(_)));
                }
            }
            Some(Control::Overlay(Overlay::Holds(ranges))) => {
                said = body.len(&host.geometry);
                host.tell_upstreams(now, UpstreamsInput::Has(id, &ranges));
            }
            Some(Control::Refuse(_)) => {
                host.tell_upstreams(now, UpstreamsInput::Closed(id, Fault::Unreachable))
            }
            _ => host.tell_upstreams(now, UpstreamsInput::Closed(id, Fault::Foreign)),
        }
        self.drive_receiver(net, transfer, receiver);
        self.serve(net, transfer, Some(receiver));
        Some(said)
    }

    /// The connection to a candidate has ended; gives whether it was one.
    pub(super) fn candidate_gone(
        &mut self,
        now: Time,
        (transfer, receiver): (u32, u32),
        stream: StreamId,
    ) -> bool {
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        let Some(exchange) = &mut host.exchange else { return false };
        let Some(id) = exchange.id_of(stream) else { return false };
        exchange.streams.remove(&id);
        exchange.heard.remove(&stream);
        let fault = if exchange.opened.remove(&id) { Fault::Ended } else { Fault::Unreachable };
        host.tell_upstreams(now, UpstreamsInput::Closed(id, fault));
        true
    }

    /// One enters that will ask an end of the transfer for groups, or takes what its source gives.
    pub(super) fn enter(
        &mut self,
        net: &mut Network<Datagram>,
        (transfer, server): (u32, Option<u32>),
        stream: StreamId,
        (entry, have): (u64, Vec<Range<u64>>),
    ) {
        let secret = self.newest_secret(transfer, server);
        let push = self.push_mut(transfer);
        let groups = push.config.geometry(push.object_len).groups();
        let Some(server) = server else {
            let run = push.source.run.as_deref_mut().expect("it listens");
            let peer = run.entries.get(&entry).copied();
            let peer = peer.filter(|_| have.iter().all(|range| range.end <= groups));
            let came = peer.filter(|peer| run.seeding.come(*peer, have.into_iter().collect()));
            let Some(peer) = came else { return self.turn_away(net, stream, "it was not told to take") };
            run.serving.push(Serving { stream, secret, part: Part::Given(peer) });
            self.serve(net, transfer, None);
            return self.drive_source(net, transfer);
        };
        let serving = Serving { stream, secret, part: Part::Asked(Requests::new(groups)) };
        push.receivers[server as usize].serving.push(serving);
        self.tell_guest(net.now(), transfer, server, GuestInput::Serves(true));
        self.serve(net, transfer, Some(server));
        self.drive_receiver(net, transfer, server);
    }

    fn turn_away(&mut self, net: &mut Network<Datagram>, stream: StreamId, why: &str) {
        let body = Body::of(&Control::Refuse(why));
        let Body::Bytes(bytes) = &body else { unreachable!("it has bytes") };
        let len = bytes.len() as u64;
        self.streams.write(stream, 1, Frame { body, channel: 0 }, len);
        self.finish(net, stream, 1);
    }

    /// One asks a receiver for groups.
    pub(super) fn wanted(
        &mut self,
        net: &mut Network<Datagram>,
        (transfer, server, client): (u32, Option<u32>, u32),
        stream: StreamId,
        groups: &[u64],
    ) {
        let insider = self.guard.as_ref().and_then(|guard| guard.attack.insider);
        if self.cheats(net.now(), (transfer, server)) {
            return self.hooks.see(Event::Attack(Act::Keeps));
        }
        let Some(server) = server else { return };
        let host = &mut self.push_mut(transfer).receivers[server as usize];
        let PushReceiver { serving, intact, .. } = host;
        let Some(peer) = serving.iter_mut().find(|peer| peer.stream == stream) else { return };
        let Part::Asked(requests) = &mut peer.part else { return };
        if let Err(misuse) = requests.ask(groups, |group| intact.contains(&group)) {
            // One that says that it has everything is asked for it.
            let is_attackers = transfer == 0 && (insider == Some(client) || insider == Some(server));
            if !is_attackers {
                self.breaches.push(format!("receiver {client} breaks the rules of the exchange: {misuse}"));
            }
            self.turn_away(net, stream, &misuse.to_string());
            return self.unserve(net, transfer, Some(server), stream);
        }
        self.serve(net, transfer, Some(server));
    }

    /// Writes the next message to a peer that chooses, or that is given what its source chooses; nothing
    /// while something waits to be sent to it.
    pub(super) fn next_for_member(
        &mut self,
        now: Time,
        (transfer, server): (u32, Option<u32>),
        peer: &mut Serving,
        writes: &mut Vec<(StreamId, Body)>,
    ) {
        // One whose connection has broken is not served until that is noticed.
        if !self.streams.is_open(peer.stream) || self.streams.waiting(peer.stream, 1) > 0 {
            return;
        }
        if matches!(peer.part, Part::Asked(_)) && self.cheats(now, (transfer, server)) {
            let groups = self.push(transfer).config.geometry(self.push(transfer).object_len).groups();
            let all = Overlay::Holds(core::iter::once(0..groups).collect());
            writes.push((peer.stream, Body::of(&Control::Overlay(all))));
            return self.hooks.see(Event::Attack(Act::Boasts));
        }
        let group = match (&mut peer.part, server) {
            (Part::Asked(requests), Some(server)) => {
                let host = &self.push(transfer).receivers[server as usize];
                let news = requests.news(now, &host.order);
                if !news.is_empty() {
                    writes.push((peer.stream, Body::of(&Control::Overlay(Overlay::Holds(news)))));
                }
                requests.take()
            }
            (Part::Given(to), None) => self.run_mut(transfer).and_then(|run| run.seeding.take(now, *to)),
            _ => None,
        };
        writes.extend(group.map(|group| (peer.stream, Body::Group(group))));
    }
}

impl PushReceiver {
    /// A group of a candidate whose hash is known.
    fn take_group(&mut self, now: Time, id: UpstreamId, group: u64, is_wrong: bool) {
        if self.intact.contains(&group) {
            // It came from another one as well.
        } else if is_wrong {
            self.tell_upstreams(now, UpstreamsInput::Wrong(id, group));
        } else {
            self.fetched(now, group);
        }
    }
}
