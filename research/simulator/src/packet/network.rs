//! The engine: links, timers, the loop over events and the hash of all of them.

use super::events::EventQueue;
use super::link::{Classes, DropCause, Faults, LinkConfig, LinkCounters, LinkState};
use super::{LinkId, NodeId};
use alloc::vec::Vec;
use polycast_topology::{CompactGraph, Graph};
use polycast_types::{Duration, Rate, Time};
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;

const NONE: u32 = u32::MAX;

/// Packet of a network: small and cheap to clone, since a payload is never carried.
pub trait Packet: Clone {
    /// A number that stands for the packet in the trace hash.
    fn digest(&self) -> u64;

    /// Changes the packet as a fault of a link would; `draw` is a random number.
    fn corrupt(&mut self, draw: u64);
}

/// Behaviour of the nodes.
pub trait World {
    /// Packet that the nodes send to each other.
    type Packet: Packet;

    /// A packet has arrived at `node` over `link`.
    fn arrive(&mut self, net: &mut Network<Self::Packet>, node: NodeId, link: LinkId, packet: Self::Packet);

    /// A timer that was set with [`Network::set_timer`] has come. Timers are not cancelled: a world that
    /// has changed its mind ignores them.
    fn timer(&mut self, net: &mut Network<Self::Packet>, node: NodeId, token: u64);

    /// The link that leaves `node` has nothing more to send; asked for with [`Network::notify_idle`].
    fn idle(&mut self, net: &mut Network<Self::Packet>, node: NodeId, link: LinkId) {
        let _ = (net, node, link);
    }

    /// A packet that was sent on `link` will not arrive.
    fn dropped(&mut self, net: &mut Network<Self::Packet>, link: LinkId, cause: DropCause) {
        let _ = (net, link, cause);
    }
}

enum Event<P> {
    Arrive { link: u32, epoch: u32, packet: P },
    Timer { node: u32, token: u64 },
    Idle { link: u32 },
    Sent { link: u32, epoch: u32 },
    Drop { link: u32, cause: DropCause },
}

/// Reason for the return of [`Network::run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No event is left.
    Quiet,
    /// The next event lies after the time asked for.
    Until,
    /// The world called [`Network::stop`].
    Stopped,
}

/// Lays out a network before it runs.
pub struct Builder {
    nodes: u32,
    links: Vec<(NodeId, NodeId, u32, LinkConfig)>,
}

impl Builder {
    /// A network of so many nodes, without links.
    #[must_use]
    pub fn new(nodes: u32) -> Self {
        Builder { nodes, links: Vec::new() }
    }

    /// All links of a graph, in both directions; a link's id is the graph's arc.
    ///
    /// `config` is asked for each direction with its two ends.
    ///
    /// # Panics
    /// If a rate is zero, or settings have no priority or more than eight.
    #[must_use]
    pub fn from_graph<G: Graph + ?Sized>(
        graph: &G,
        mut config: impl FnMut(NodeId, NodeId) -> LinkConfig,
    ) -> Self {
        let compact = CompactGraph::new(graph);
        let mut builder = Builder::new(compact.node_count());
        for node in 0..compact.node_count() {
            for arc in compact.arcs(node) {
                let to = compact.target(arc);
                let settings = config(NodeId(node), NodeId(to));
                check(&settings);
                builder.links.push((NodeId(node), NodeId(to), compact.reverse(arc), settings));
            }
        }
        builder
    }

    /// Adds one direction of a link.
    ///
    /// # Panics
    /// If a node does not exist, the rate is zero, or the settings have no priority or more than eight.
    pub fn add_link(&mut self, from: NodeId, to: NodeId, config: LinkConfig) -> LinkId {
        assert!(from.0 < self.nodes && to.0 < self.nodes, "a link needs two nodes that exist");
        check(&config);
        self.links.push((from, to, NONE, config));
        LinkId(self.links.len() as u32 - 1)
    }

    /// Adds both directions of a link with the same settings.
    ///
    /// # Panics
    /// As [`Builder::add_link`].
    pub fn add_both_ways(&mut self, from: NodeId, to: NodeId, config: LinkConfig) -> (LinkId, LinkId) {
        let there = self.add_link(from, to, config);
        let back = self.add_link(to, from, config);
        self.pair(there, back);
        (there, back)
    }

    /// Makes two links the two directions of one.
    ///
    /// # Panics
    /// If they do not lead back and forth between the same nodes.
    pub fn pair(&mut self, there: LinkId, back: LinkId) {
        let ends = |link: LinkId| (self.links[link.index()].0, self.links[link.index()].1);
        assert!(ends(there) == (ends(back).1, ends(back).0), "the two directions have the same ends");
        self.links[there.index()].2 = back.0;
        self.links[back.index()].2 = there.0;
    }

    /// The network, at time zero. All of its randomness comes from `seed`.
    #[must_use]
    pub fn build<P: Packet>(self, seed: u64) -> Network<P> {
        let mut net = Network {
            now: Time::ZERO,
            events: EventQueue::new(),
            links: Vec::with_capacity(self.links.len()),
            faults: Vec::new(),
            classes: Vec::new(),
            first_out: Vec::new(),
            out: Vec::new(),
            random: Pcg64Mcg::new(u128::from(seed) << 64 | u128::from(seed) << 1 | 1),
            hash: seed ^ 0x9e37_79b9_7f4a_7c15,
            handled: 0,
            packet_hops: 0,
            stopped: false,
        };
        for (from, to, reverse, config) in &self.links {
            net.add(from.0, to.0, *reverse, config);
        }
        net.index_outgoing(self.nodes);
        net
    }
}

/// A network in virtual time; see the [module](super).
pub struct Network<P> {
    now: Time,
    events: EventQueue<Event<P>>,
    links: Vec<LinkState>,
    /// Beside `links`, as long as it once a link has faults.
    faults: Vec<Faults>,
    classes: Vec<Classes<P>>,
    /// The links that leave node `n` are `out[first_out[n]..first_out[n + 1]]`.
    first_out: Vec<u32>,
    out: Vec<LinkId>,
    random: Pcg64Mcg,
    hash: u64,
    handled: u64,
    packet_hops: u64,
    stopped: bool,
}

impl<P: Packet> Network<P> {
    fn add(&mut self, from: u32, to: u32, reverse: u32, config: &LinkConfig) {
        let classes = if config.priorities > 1 {
            self.classes.push(Classes::new(config));
            self.classes.len() as u32 - 1
        } else {
            NONE
        };
        self.links.push(LinkState {
            free_at: Time::ZERO,
            rate: config.rate,
            delay: config.delay,
            queue_time: config.rate.time_for(config.queue_bytes),
            from,
            to,
            reverse,
            epoch: 0,
            classes,
            up: true,
            faulty: false,
            watched: false,
            queue_peak: Duration::ZERO,
            counters: LinkCounters::default(),
        });
        if config.faults != Faults::NONE {
            self.set_faults(LinkId(self.links.len() as u32 - 1), config.faults);
        }
    }

    fn index_outgoing(&mut self, nodes: u32) {
        self.first_out = alloc::vec![0; nodes as usize + 1];
        for link in &self.links {
            self.first_out[link.from as usize + 1] += 1;
        }
        for node in 1..self.first_out.len() {
            self.first_out[node] += self.first_out[node - 1];
        }
        let mut next = self.first_out.clone();
        self.out = alloc::vec![LinkId(0); self.links.len()];
        for (index, link) in self.links.iter().enumerate() {
            let at = &mut next[link.from as usize];
            self.out[*at as usize] = LinkId(index as u32);
            *at += 1;
        }
    }

    /// The virtual time.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn node_count(&self) -> u32 {
        self.first_out.len() as u32 - 1
    }

    /// Returns the number of directed links.
    #[must_use]
    pub fn link_count(&self) -> u32 {
        self.links.len() as u32
    }

    /// Returns the nodes at which a link begins and ends.
    #[must_use]
    pub fn ends(&self, link: LinkId) -> (NodeId, NodeId) {
        let state = &self.links[link.index()];
        (NodeId(state.from), NodeId(state.to))
    }

    /// The same link in the other direction, if there is one.
    #[must_use]
    #[inline]
    pub fn reverse(&self, link: LinkId) -> Option<LinkId> {
        let reverse = self.links[link.index()].reverse;
        (reverse != NONE).then_some(LinkId(reverse))
    }

    /// The links that leave a node, in the order in which they were added: its ports.
    #[must_use]
    #[inline]
    pub fn links_from(&self, node: NodeId) -> &[LinkId] {
        &self.out[self.first_out[node.index()] as usize..self.first_out[node.index() + 1] as usize]
    }

    /// The first link from one node to another.
    #[must_use]
    pub fn link_between(&self, from: NodeId, to: NodeId) -> Option<LinkId> {
        self.links_from(from).iter().copied().find(|link| self.links[link.index()].to == to.0)
    }

    /// Returns the counters of a link.
    #[must_use]
    pub fn counters(&self, link: LinkId) -> &LinkCounters {
        &self.links[link.index()].counters
    }

    /// A link's rate.
    #[must_use]
    pub fn rate(&self, link: LinkId) -> Rate {
        self.links[link.index()].rate
    }

    /// The priority of a link that has to wait for all others; 0 if there is one.
    #[must_use]
    #[inline]
    pub fn last_priority(&self, link: LinkId) -> u8 {
        match self.links[link.index()].classes {
            NONE => 0,
            classes => self.classes[classes as usize].queues.len() as u8 - 1,
        }
    }

    /// Events handled so far: arrivals, timers, ends of sending and drops.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.handled
    }

    /// Arrivals so far: packets times links that they crossed.
    #[must_use]
    pub fn packet_hops(&self) -> u64 {
        self.packet_hops
    }

    /// Events that wait.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.events.len()
    }

    /// A hash of every event so far, in order: what, when, where and which packet.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.hash
    }

    /// A random number from the run's seed.
    pub fn draw(&mut self) -> u64 {
        self.random.next_u64()
    }

    /// Until when the link has something to send; `now` or before if it is idle. With several
    /// priorities it is the end of the packet that is being sent.
    #[must_use]
    #[inline]
    pub fn busy_until(&self, link: LinkId) -> Time {
        self.links[link.index()].free_at
    }

    /// The bytes that wait on the link or are being sent; with one priority, as bits that have not left.
    #[must_use]
    pub fn queued_bytes(&self, link: LinkId) -> u64 {
        let state = &self.links[link.index()];
        if state.classes == NONE {
            state.rate.bytes_in(state.free_at.since(self.now))
        } else {
            self.classes[state.classes as usize].queued_bytes.iter().sum()
        }
    }

    /// The most bytes that have waited on the link or were being sent at a time.
    #[must_use]
    pub fn queue_peak_bytes(&self, link: LinkId) -> u64 {
        let state = &self.links[link.index()];
        match state.classes {
            NONE => state.rate.bytes_in(state.queue_peak),
            classes => self.classes[classes as usize].queue_peak_bytes,
        }
    }

    /// Sends a packet of `bytes` on a link; false if it was dropped at once, since the queue had no room
    /// or the link is down. Whether it gets lost later is not told here.
    ///
    /// # Panics
    /// If the link has no such priority.
    #[inline]
    pub fn send(&mut self, link: LinkId, packet: P, bytes: u32, priority: u8) -> bool {
        self.offer(link, packet, bytes, priority, true)
    }

    /// Sends a packet of the host's own, which its queue never drops: a host asks [`Network::has_room`]
    /// before it hands over more, and waits with [`Network::notify_idle`].
    ///
    /// # Panics
    /// If the link has no such priority.
    #[inline]
    pub fn send_own(&mut self, link: LinkId, packet: P, bytes: u32, priority: u8) -> bool {
        self.offer(link, packet, bytes, priority, false)
    }

    /// Returns true if a host may hand over more packets of its own: half of the queue is free. The other
    /// half is for packets that it passes on. A link that is down takes all packets, and loses them.
    #[must_use]
    #[inline]
    pub fn has_room(&self, link: LinkId, priority: u8) -> bool {
        let state = &self.links[link.index()];
        if !state.up {
            return true;
        }
        if state.classes != NONE {
            let classes = &self.classes[state.classes as usize];
            return classes.queued_bytes[usize::from(priority)] < classes.queue_bytes / 2;
        }
        state.free_at.since(self.now) < state.queue_time / 2
    }

    #[inline]
    fn offer(&mut self, link: LinkId, packet: P, bytes: u32, priority: u8, bounded: bool) -> bool {
        let state = &mut self.links[link.index()];
        if !state.up {
            self.drop_soon(link.0, DropCause::Down);
            return false;
        }
        if state.classes != NONE {
            return self.enqueue(link, packet, bytes, priority, bounded);
        }
        assert!(priority == 0, "the link has one priority");
        let start = state.free_at.max(self.now);
        let end = start + time_for(state.rate, bytes);
        let wait = end.since(self.now);
        if bounded && wait > state.queue_time {
            self.drop_soon(link.0, DropCause::Queue);
            return false;
        }
        state.queue_peak = state.queue_peak.max(wait);
        state.free_at = end;
        state.counters.packets += 1;
        state.counters.bytes += u64::from(bytes);
        let at = end + state.delay;
        let (epoch, faulty) = (state.epoch, state.faulty);
        self.launch(link.0, epoch, at, packet, faulty);
        true
    }

    /// Lets a packet arrive at a time, or what the link's faults make of it.
    #[inline]
    fn launch(&mut self, link: u32, epoch: u32, at: Time, packet: P, faulty: bool) {
        if faulty {
            self.launch_with_faults(link, epoch, at, packet);
        } else {
            self.events.push(at, Event::Arrive { link, epoch, packet });
        }
    }

    #[cold]
    fn launch_with_faults(&mut self, link: u32, epoch: u32, mut at: Time, mut packet: P) {
        let faults = self.faults[link as usize];
        if self.chance(faults.loss_ppm) {
            self.events.push(at, Event::Drop { link, cause: DropCause::Loss });
            return;
        }
        let counters = &mut self.links[link as usize].counters;
        if chance(&mut self.random, faults.corruption_ppm) {
            counters.corruptions += 1;
            packet.corrupt(self.random.next_u64());
        }
        if chance(&mut self.random, faults.reordering_ppm) {
            counters.reorderings += 1;
            let span = u128::from(faults.reordering_delay.0) + 1;
            at += Duration(((u128::from(self.random.next_u64()) * span) >> 64) as u64);
        }
        if chance(&mut self.random, faults.duplication_ppm) {
            counters.duplications += 1;
            self.events.push(at, Event::Arrive { link, epoch, packet: packet.clone() });
        }
        self.events.push(at, Event::Arrive { link, epoch, packet });
    }

    /// Returns true with this chance in a million.
    pub fn chance(&mut self, ppm: u32) -> bool {
        chance(&mut self.random, ppm)
    }

    fn drop_soon(&mut self, link: u32, cause: DropCause) {
        self.events.push(self.now, Event::Drop { link, cause });
    }

    fn enqueue(&mut self, link: LinkId, packet: P, bytes: u32, priority: u8, bounded: bool) -> bool {
        let state = &mut self.links[link.index()];
        let classes = &mut self.classes[state.classes as usize];
        let class = usize::from(priority);
        assert!(class < classes.queues.len(), "the link has no priority {priority}");
        if bounded && classes.queued_bytes[class] + u64::from(bytes) > classes.queue_bytes {
            self.drop_soon(link.0, DropCause::Queue);
            return false;
        }
        classes.queued_bytes[class] += u64::from(bytes);
        classes.queue_peak_bytes = classes.queue_peak_bytes.max(classes.queued_bytes.iter().sum());
        state.counters.packets += 1;
        state.counters.bytes += u64::from(bytes);
        classes.queues[class].push_back((bytes, packet));
        if classes.sending.is_none() {
            self.send_next(link.0);
        }
        true
    }

    /// Starts the next packet of a link with several priorities, if one waits.
    fn send_next(&mut self, link: u32) {
        let state = &mut self.links[link as usize];
        let classes = &mut self.classes[state.classes as usize];
        let Some((priority, bytes, packet)) = classes.next() else { return };
        classes.sending = Some((priority, bytes));
        state.free_at = self.now + time_for(state.rate, bytes);
        let (end, epoch, faulty) = (state.free_at, state.epoch, state.faulty);
        let at = end + state.delay;
        self.events.push(end, Event::Sent { link, epoch });
        self.launch(link, epoch, at, packet, faulty);
    }

    /// Sets a timer; it comes at `at`, or now if that is past.
    #[inline]
    pub fn set_timer(&mut self, node: NodeId, at: Time, token: u64) {
        self.events.push(at.max(self.now), Event::Timer { node: node.0, token });
    }

    /// Asks for one call of [`World::idle`] as soon as the link has nothing more to send; a host that
    /// sends a packet for each call is clocked by its network card.
    pub fn notify_idle(&mut self, link: LinkId) {
        let state = &mut self.links[link.index()];
        if state.watched {
            return;
        }
        state.watched = true;
        let busy = state.classes != NONE && self.classes[state.classes as usize].sending.is_some();
        if !busy {
            self.events.push(state.free_at.max(self.now), Event::Idle { link: link.0 });
        }
    }

    /// Takes a link down or up again. What waits or is on the way when it goes down is lost.
    pub fn set_up(&mut self, link: LinkId, up: bool) {
        let state = &mut self.links[link.index()];
        if state.up && !up {
            state.epoch += 1;
            state.free_at = self.now;
            if state.classes != NONE {
                let waited = self.classes[state.classes as usize].clear();
                if state.watched {
                    self.events.push(self.now, Event::Idle { link: link.0 });
                }
                (0..waited).for_each(|_| self.drop_soon(link.0, DropCause::Down));
            }
        }
        self.links[link.index()].up = up;
    }

    /// Returns true if a link is up.
    #[must_use]
    pub fn is_up(&self, link: LinkId) -> bool {
        self.links[link.index()].up
    }

    /// Changes what goes wrong on a link from now on.
    pub fn set_faults(&mut self, link: LinkId, faults: Faults) {
        if self.faults.len() < self.links.len() {
            self.faults.resize(self.links.len(), Faults::NONE);
        }
        self.faults[link.index()] = faults;
        self.links[link.index()].faulty = faults != Faults::NONE;
    }

    /// Returns the faults of a link.
    #[must_use]
    pub fn faults(&self, link: LinkId) -> Faults {
        self.faults.get(link.index()).copied().unwrap_or(Faults::NONE)
    }

    /// Changes a link's rate for what is sent from now on; its queue keeps its size in bytes.
    ///
    /// # Panics
    /// If the rate is zero: take the link down instead.
    pub fn set_rate(&mut self, link: LinkId, rate: Rate) {
        assert!(rate.0 > 0, "a link's rate is above zero");
        let state = &mut self.links[link.index()];
        let queue_bytes = state.rate.bytes_in(state.queue_time);
        let peak_bytes = state.rate.bytes_in(state.queue_peak);
        state.rate = rate;
        state.queue_peak = rate.time_for(peak_bytes);
        state.queue_time = rate.time_for(queue_bytes);
    }

    /// Ends the run after the event that is being handled.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Lets time pass if nothing is planned: a run ends with its last event.
    pub fn pass_until(&mut self, at: Time) {
        if self.events.len() == 0 {
            self.now = self.now.max(at);
        }
    }

    /// Handles events in order until none is left, the next lies after `until`, or the world stops.
    pub fn run<W: World<Packet = P>>(&mut self, world: &mut W, until: Time) -> Outcome {
        self.stopped = false;
        while let Some((at, event)) = self.events.pop(until) {
            self.now = at;
            self.handled += 1;
            self.handle(world, event);
            if self.stopped {
                return Outcome::Stopped;
            }
        }
        if self.events.len() == 0 {
            return Outcome::Quiet;
        }
        self.now = self.now.max(until);
        Outcome::Until
    }

    #[inline]
    fn handle<W: World<Packet = P>>(&mut self, world: &mut W, event: Event<P>) {
        match event {
            Event::Arrive { link, epoch, packet } => {
                let state = &mut self.links[link as usize];
                if state.epoch != epoch {
                    self.handle_drop(world, link, DropCause::Down);
                    return;
                }
                let node = NodeId(state.to);
                self.packet_hops += 1;
                self.mix(1, link, packet.digest());
                world.arrive(self, node, LinkId(link), packet);
            }
            Event::Timer { node, token } => {
                self.mix(2, node, token);
                world.timer(self, NodeId(node), token);
            }
            Event::Idle { link } => self.handle_idle(world, link),
            Event::Sent { link, epoch } => self.handle_sent(world, link, epoch),
            Event::Drop { link, cause } => self.handle_drop(world, link, cause),
        }
    }

    fn handle_drop<W: World<Packet = P>>(&mut self, world: &mut W, link: u32, cause: DropCause) {
        self.mix(3, link, cause as u64);
        self.links[link as usize].counters.add_drop(cause);
        world.dropped(self, LinkId(link), cause);
    }

    fn handle_idle<W: World<Packet = P>>(&mut self, world: &mut W, link: u32) {
        self.mix(4, link, 0);
        let state = &mut self.links[link as usize];
        if !state.watched {
            return;
        }
        if state.classes != NONE {
            if self.classes[state.classes as usize].sending.is_some() {
                return;
            }
        } else if state.free_at > self.now {
            // More was sent since: look again when that has left.
            self.events.push(state.free_at, Event::Idle { link });
            return;
        }
        state.watched = false;
        let node = NodeId(state.from);
        world.idle(self, node, LinkId(link));
    }

    fn handle_sent<W: World<Packet = P>>(&mut self, world: &mut W, link: u32, epoch: u32) {
        self.mix(5, link, u64::from(epoch));
        let state = &mut self.links[link as usize];
        if state.epoch != epoch {
            return;
        }
        let classes = &mut self.classes[state.classes as usize];
        if let Some((priority, bytes)) = classes.sending.take() {
            classes.queued_bytes[usize::from(priority)] -= u64::from(bytes);
        }
        self.send_next(link);
        let state = &mut self.links[link as usize];
        if state.watched && self.classes[state.classes as usize].sending.is_none() {
            state.watched = false;
            let node = NodeId(state.from);
            world.idle(self, node, LinkId(link));
        }
    }

    /// Adds an event to the trace hash.
    #[inline]
    fn mix(&mut self, kind: u64, place: u32, what: u64) {
        let first = fold(self.hash ^ self.now.0, 0x9e37_79b9_7f4a_7c15 ^ kind);
        self.hash =
            fold(first ^ u64::from(place) << 32 ^ kind, 0xd6e8_feb8_6659_fd93) ^ fold(what, MULTIPLIER);
    }
}

fn check(config: &LinkConfig) {
    assert!(config.rate.0 > 0, "a link's rate is above zero");
    assert!((1..=8).contains(&config.priorities), "a link has 1 to 8 priorities");
}

const MULTIPLIER: u64 = 0xa076_1d64_78bd_642f;

/// Both halves of a product, as one number.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x2545_f491_4f6c_dd1d) * u128::from(b | 1);
    (product ^ product >> 64) as u64
}

#[inline]
fn chance(random: &mut Pcg64Mcg, ppm: u32) -> bool {
    ppm > 0 && ((u128::from(random.next_u64()) * 1_000_000) >> 64) < u128::from(ppm)
}

/// As `Rate::time_for`, in 64 bits: 2^32 bytes times 8 * 10^9 do not fit, packets do.
#[inline]
fn time_for(rate: Rate, bytes: u32) -> Duration {
    if rate.0 == 0 || bytes > 1 << 31 {
        return rate.time_for(u64::from(bytes));
    }
    Duration((u64::from(bytes) * 8_000_000_000).div_ceil(rate.0))
}

#[cfg(test)]
mod tests;
