//! A caching forwarder: what every switch and server on a tree runs (Datacast, section 6.2).

use alloc::collections::VecDeque;

use polycast_types::{Duration, Time};

use super::packet::{Data, Face, Interest, Packet, Payload};
use super::pending::{PendingTable, Verdict};
use super::store::{ContentStore, Replacement};

/// Settings of a forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwarderConfig {
    /// Number of ports of the node.
    pub ports: u8,
    /// The most packets in the content store; a tenth of it is for retransmissions.
    pub store_packets: u32,
    /// Choice of the packet that a full content store forgets.
    pub replacement: Replacement,
    /// The most pending interests.
    pub pending_interests: u32,
    /// Time that an interest is pending before it may give way to another, or is sent on again.
    pub interest_lifetime: Duration,
    /// A random number that no other machine knows: it keeps strangers from choosing names that collide.
    pub secret: u64,
}

impl ForwarderConfig {
    /// The paper's figures: a store of 2048 packets, 64k pending interests, 20 ms.
    #[must_use]
    pub fn for_ports(ports: u8) -> Self {
        ForwarderConfig {
            ports,
            store_packets: 2048,
            replacement: Replacement::default(),
            pending_interests: 1 << 16,
            interest_lifetime: Duration::from_millis(20),
            secret: 0x5bd1_e995_97f4_a7c5,
        }
    }
}

/// Events that a forwarder handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A packet came.
    Packet {
        /// Origin: a port, or the node's own receiver.
        from: Face,
        /// The packet.
        packet: Packet,
    },
}

/// Actions for the driver, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a packet.
    Send {
        /// The port to send it by.
        port: u8,
        /// The packet.
        packet: Packet,
        /// Location of its payload.
        payload: Payload,
    },
    /// Put the payload that has arrived into this slot of the store; what was there is forgotten.
    Keep {
        /// The slot, below the size of the store.
        slot: u32,
    },
    /// Give data to the node's own receiver.
    Deliver {
        /// The packet.
        data: Data,
        /// Location of its payload.
        payload: Payload,
    },
    /// An interest has come to the end of its route: give it to the node's own source.
    Serve {
        /// The port it came by.
        port: u8,
        /// The interest; its route is the way back now.
        interest: Interest,
    },
}

/// Counters of a forwarder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Interests answered from the store.
    pub hits: u64,
    /// Interests that joined a pending one.
    pub joined: u64,
    /// Interests sent on by a node that keeps packets.
    pub forwarded: u64,
    /// Packets passed on as a non-branching node.
    pub passed: u64,
    /// Packets dropped: their route leads to no port of this node, or back to the port they came by.
    pub bad_routes: u64,
    /// Data dropped that was not asked for.
    pub unsolicited: u64,
    /// Interests dropped because the table of pending ones was full.
    pub full: u64,
}

/// The forwarder's machine: `handle` a packet, then `poll` until `None`.
#[derive(Clone, Debug)]
pub struct Forwarder {
    config: ForwarderConfig,
    pending: PendingTable,
    store: ContentStore,
    outputs: VecDeque<Output>,
    counters: Counters,
}

impl Forwarder {
    /// A forwarder with empty tables. They grow up to their bounds as they fill.
    #[must_use]
    pub fn new(config: ForwarderConfig) -> Self {
        Forwarder {
            pending: PendingTable::new(config.pending_interests, config.interest_lifetime, config.secret),
            store: ContentStore::new(config.store_packets, config.replacement, config.secret),
            outputs: VecDeque::new(),
            counters: Counters::default(),
            config,
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the number of packets that it keeps.
    #[must_use]
    pub fn kept(&self) -> u32 {
        self.store.len()
    }

    /// Returns the number of pending names.
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.pending.len()
    }

    /// Forgets interests that were sent on before `then` and were not answered or repeated. They would give
    /// way when their place is needed; this leaves nothing of transfers that have ended.
    pub fn forget_pending_before(&mut self, then: Time) {
        self.pending.forget_before(then);
    }

    /// Takes in what happened.
    #[inline]
    pub fn handle(&mut self, now: Time, input: Input) {
        let Input::Packet { from, packet } = input;
        match packet {
            Packet::Interest(interest) => self.interest(now, from, interest),
            Packet::Data(data) => self.data(from, data),
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// Panics if the machine contradicts itself: that is a bug of ours, never a peer's fault. Called after
    /// every input in debug builds.
    ///
    /// # Panics
    /// If something that always holds does not.
    pub fn check(&self) {
        self.pending.check();
        self.store.check();
    }

    /// Returns the next action, or `None` until the next input.
    #[inline]
    pub fn poll(&mut self, _now: Time) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Never: pending interests give way when their place is needed.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        None
    }

    fn interest(&mut self, now: Time, from: Face, interest: Interest) {
        let came_by = match from {
            Face::Port(port) => port,
            Face::Local => 0,
        };
        let Some(port) = interest.route.port() else {
            match from {
                Face::Port(port) => {
                    let route = interest.route.way_back(port);
                    self.outputs.push_back(Output::Serve { port, interest: Interest { route, ..interest } });
                }
                Face::Local => self.counters.bad_routes += 1,
            }
            return;
        };
        if port >= self.config.ports || from == Face::Port(port) {
            self.counters.bad_routes += 1;
            return;
        }
        let route = interest.route.turned(came_by);
        let onward = Packet::Interest(Interest { route, ..interest });
        if from != Face::Local && interest.route.is_non_branching() {
            self.counters.passed += 1;
            self.send(port, onward, Payload::None);
            return;
        }
        let back = interest.route.way_back(came_by);
        if !interest.fresh
            && let Some((held, slot)) = self.store.get(interest.name)
        {
            self.counters.hits += 1;
            let data = Data {
                name: interest.name,
                route: back,
                decision: held.decision,
                length: held.length,
                tree: interest.tree,
                again: held.again,
            };
            self.answer(from, data, Payload::Slot(slot));
            return;
        }
        let verdict = self.pending.ask(now, interest.name, from, back);
        let for_source = interest.fresh && self.pending.ask_source(now, interest.name);
        match verdict {
            Verdict::Full => self.counters.full += 1,
            Verdict::Joined if !for_source => self.counters.joined += 1,
            Verdict::Joined | Verdict::Forward => {
                self.counters.forwarded += 1;
                self.send(port, onward, Payload::None);
            }
        }
    }

    fn data(&mut self, from: Face, data: Data) {
        if let Some(port) = data.route.port() {
            if port >= self.config.ports || from == Face::Port(port) {
                self.counters.bad_routes += 1;
                return;
            }
            self.counters.passed += 1;
            let route = data.route.stepped();
            self.send(port, Packet::Data(Data { route, ..data }), Payload::Arrived);
            return;
        }
        let Some(mut waiters) = self.pending.satisfy(data.name) else {
            self.counters.unsolicited += 1;
            return;
        };
        while let Some(waiter) = self.pending.next_waiter(&mut waiters) {
            self.answer(waiter.face, Data { route: waiter.back, ..data }, Payload::Arrived);
        }
        if let Some(slot) = self.store.put(&data) {
            self.outputs.push_back(Output::Keep { slot });
        }
    }

    /// Sends data to whom it was asked by; its route begins at this node.
    fn answer(&mut self, face: Face, data: Data, payload: Payload) {
        match face {
            Face::Local => self.outputs.push_back(Output::Deliver { data, payload }),
            Face::Port(port) => {
                let route = data.route.stepped();
                self.send(port, Packet::Data(Data { route, ..data }), payload);
            }
        }
    }

    fn send(&mut self, port: u8, packet: Packet, payload: Payload) {
        self.outputs.push_back(Output::Send { port, packet, payload });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull::{Decision, Digest, Hop, Name, Route};
    use alloc::vec::Vec;
    use polycast_types::Handle;

    fn forwarder(ports: u8) -> Forwarder {
        Forwarder::new(ForwarderConfig { store_packets: 4, ..ForwarderConfig::for_ports(ports) })
    }

    fn route(hops: &[(u8, bool)]) -> Route {
        let hops: Vec<_> = hops.iter().map(|&(port, non_branching)| Hop { port, non_branching }).collect();
        Route::new(&hops).unwrap()
    }

    fn interest(sn: u64, route: Route) -> Interest {
        Interest { name: Name::new(Handle(9), sn), route, tree: 1, fresh: false }
    }

    fn data(sn: u64, route: Route) -> Data {
        Data {
            name: Name::new(Handle(9), sn),
            route,
            decision: Decision::Next(4),
            length: 100,
            tree: 1,
            again: false,
        }
    }

    fn take(forwarder: &mut Forwarder, now: u64, from: Face, packet: Packet) -> Vec<Output> {
        forwarder.handle(Time(now), Input::Packet { from, packet });
        core::iter::from_fn(|| forwarder.poll(Time(now))).collect()
    }

    /// A two-hop route at its second node, entered by the first.
    fn at_second(port: u8, non_branching: bool) -> Route {
        route(&[(0, false), (port, non_branching)]).turned(0)
    }

    #[test]
    fn a_non_branching_node_passes_interests_and_data_and_keeps_nothing() {
        let mut node = forwarder(4);
        let out = take(&mut node, 0, Face::Port(2), Packet::Interest(interest(5, at_second(1, true))));
        let Output::Send { port: 1, packet: Packet::Interest(sent), payload: Payload::None } = out[0] else {
            panic!("{out:?}");
        };
        assert!(sent.route.is_at_end());
        assert_eq!(sent.route.way_back(3).bytes(), [3, 2], "over this node by the port it came by");
        let way = sent.route.way_back(3).stepped();
        let out = take(&mut node, 1, Face::Port(1), Packet::Data(data(5, way)));
        let [Output::Send { port: 2, packet: Packet::Data(sent), payload: Payload::Arrived }] = out[..]
        else {
            panic!("{out:?}");
        };
        assert_eq!(sent, data(5, way.stepped()), "the next node finds its own hop");
        assert_eq!((node.kept(), node.pending(), node.counters().passed), (0, 0, 2));
    }

    #[test]
    fn a_branching_node_joins_interests_answers_both_and_then_from_its_store() {
        let mut node = forwarder(4);
        let ask = |port| Packet::Interest(interest(5, at_second(port, false)));
        assert_eq!(take(&mut node, 0, Face::Port(2), ask(1)).len(), 1);
        assert_eq!(take(&mut node, 1, Face::Port(3), ask(1)), []);
        let arrived = at_second(0, false).stepped();
        let out = take(&mut node, 2, Face::Port(1), Packet::Data(data(5, arrived)));
        let ports: Vec<_> = out
            .iter()
            .filter_map(|output| match output {
                Output::Send { port, payload: Payload::Arrived, .. } => Some(*port),
                _ => None,
            })
            .collect();
        assert_eq!((ports.len(), ports.contains(&2), ports.contains(&3)), (2, true, true));
        assert_eq!(out[2], Output::Keep { slot: 0 });
        let out = take(&mut node, 3, Face::Port(0), ask(1));
        let [Output::Send { port: 0, packet: Packet::Data(sent), payload: Payload::Slot(0) }] = out[..]
        else {
            panic!("{out:?}");
        };
        assert_eq!((sent.decision, sent.length), (Decision::Next(4), 100));
        assert!(sent.route.is_at_end());
        let counters = node.counters();
        assert_eq!((counters.hits, counters.joined, counters.forwarded), (1, 1, 1));
    }

    #[test]
    fn a_fresh_interest_passes_the_store_and_renews_it() {
        let mut node = forwarder(4);
        let ask = interest(5, at_second(1, false));
        take(&mut node, 0, Face::Port(2), Packet::Interest(ask));
        let arrived = at_second(0, false).stepped();
        take(&mut node, 1, Face::Port(1), Packet::Data(data(5, arrived)));
        let fresh = Packet::Interest(Interest { fresh: true, ..ask });
        let out = take(&mut node, 2, Face::Port(2), fresh);
        assert!(matches!(out[..], [Output::Send { port: 1, packet: Packet::Interest(_), .. }]));
        let out = take(&mut node, 3, Face::Port(1), Packet::Data(data(5, arrived)));
        assert_eq!(out[1], Output::Keep { slot: 0 }, "in the place of the old one");
    }

    /// The way that the others' interest took may have failed; one of a kind is enough.
    #[test]
    fn a_fresh_interest_goes_on_though_others_wait_for_its_name() {
        let mut node = forwarder(4);
        let ask = interest(5, at_second(1, false));
        let fresh = Packet::Interest(Interest { fresh: true, ..ask });
        assert_eq!(take(&mut node, 0, Face::Port(2), Packet::Interest(ask)).len(), 1);
        assert_eq!(take(&mut node, 1, Face::Port(3), fresh).len(), 1);
        assert_eq!(take(&mut node, 2, Face::Port(0), fresh), []);
        let arrived = at_second(0, false).stepped();
        let out = take(&mut node, 3, Face::Port(1), Packet::Data(data(5, arrived)));
        let sent = out.iter().filter(|output| matches!(output, Output::Send { .. }));
        assert_eq!((sent.count(), node.pending()), (3, 0));
        // The next one for this name is the first again.
        assert_eq!(take(&mut node, 4, Face::Port(2), fresh).len(), 1);
        assert_eq!(take(&mut node, 5, Face::Port(3), fresh), []);
    }

    #[test]
    fn interests_without_an_answer_are_forgotten() {
        let mut node = forwarder(4);
        for (now, sn) in [(10, 1), (20, 2)] {
            take(&mut node, now, Face::Port(2), Packet::Interest(interest(sn, at_second(1, false))));
        }
        node.forget_pending_before(Time(15));
        assert_eq!(node.pending(), 1);
        let late = Packet::Data(data(1, at_second(0, false).stepped()));
        assert_eq!(take(&mut node, 21, Face::Port(1), late), []);
        node.forget_pending_before(Time(21));
        assert_eq!((node.pending(), node.counters().unsolicited), (0, 1));
    }

    #[test]
    fn another_digest_is_another_name() {
        let mut node = forwarder(4);
        let ask = |port, digest| {
            let plain = interest(5, at_second(1, false));
            let name = plain.name.with_digest(Digest([digest; 16]));
            (Face::Port(port), Packet::Interest(Interest { name, ..plain }))
        };
        let (from, packet) = ask(2, 7);
        take(&mut node, 0, from, packet);
        let arrived = data(5, at_second(0, false).stepped());
        let of =
            |digest| Packet::Data(Data { name: arrived.name.with_digest(Digest([digest; 16])), ..arrived });
        assert_eq!(take(&mut node, 1, Face::Port(1), of(8)), [], "that was not asked for");
        assert_eq!((node.counters().unsolicited, node.kept(), node.pending()), (1, 0, 1));
        assert_eq!(take(&mut node, 2, Face::Port(1), of(7)).len(), 2);
        let (from, packet) = ask(3, 8);
        let out = take(&mut node, 3, from, packet);
        assert!(matches!(out[..], [Output::Send { port: 1, packet: Packet::Interest(_), .. }]), "{out:?}");
    }

    #[test]
    fn its_own_receiver_is_a_face_like_any_other() {
        let mut node = forwarder(2);
        let own = interest(7, route(&[(1, false), (0, false)]));
        let out = take(&mut node, 0, Face::Local, Packet::Interest(own));
        assert!(matches!(out[..], [Output::Send { port: 1, .. }]));
        assert_eq!(take(&mut node, 0, Face::Port(0), Packet::Interest(interest(7, at_second(1, false)))), []);
        let arrived = at_second(0, false).stepped();
        let out = take(&mut node, 1, Face::Port(1), Packet::Data(data(7, arrived)));
        assert_eq!(out.len(), 3, "delivered, sent on, kept: {out:?}");
        assert!(out.iter().any(|output| matches!(output, Output::Deliver { payload: Payload::Arrived, .. })));
    }

    #[test]
    fn an_interest_that_comes_again_by_another_way_is_answered_by_that() {
        let mut node = forwarder(4);
        let by = |below: u8| {
            let way = route(&[(0, false), (2, true), (1, false)]).turned(below).turned(below);
            Packet::Interest(interest(5, way))
        };
        take(&mut node, 0, Face::Port(3), by(4));
        assert_eq!(take(&mut node, 1, Face::Port(3), by(6)), [], "it waits already");
        let arrived = at_second(0, false).stepped();
        let out = take(&mut node, 2, Face::Port(1), Packet::Data(data(5, arrived)));
        let Output::Send { port: 3, packet: Packet::Data(sent), .. } = out[0] else { panic!("{out:?}") };
        assert_eq!(sent.route.bytes(), [3, 6], "over the node that passes packets on, as the last one came");
    }

    #[test]
    fn the_end_of_a_route_is_the_source() {
        let mut node = forwarder(2);
        let at_end = at_second(1, true).turned(3);
        let out = take(&mut node, 0, Face::Port(1), Packet::Interest(interest(2, at_end)));
        let [Output::Serve { port: 1, interest: served }] = out[..] else { panic!("{out:?}") };
        assert_eq!(served.route.bytes(), [1, 3]);
    }

    #[test]
    fn what_makes_no_sense_is_dropped_and_counted() {
        let mut node = forwarder(2);
        let nothing = |out: Vec<Output>| assert_eq!(out, []);
        nothing(take(&mut node, 0, Face::Port(0), Packet::Interest(interest(1, at_second(2, false)))));
        nothing(take(&mut node, 0, Face::Port(1), Packet::Interest(interest(1, at_second(1, true)))));
        nothing(take(&mut node, 0, Face::Port(0), Packet::Data(data(1, at_second(9, false)))));
        let at_end = at_second(0, false).stepped();
        nothing(take(&mut node, 0, Face::Local, Packet::Interest(interest(1, at_end))));
        assert_eq!(node.counters().bad_routes, 4);
        nothing(take(&mut node, 0, Face::Port(0), Packet::Data(data(1, at_end))));
        assert_eq!((node.counters().unsolicited, node.kept()), (1, 0));
    }
}
