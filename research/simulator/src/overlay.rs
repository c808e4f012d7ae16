//! Receivers that bring an object to each other: hosts with a rate up and a rate down, in virtual time,
//! around the machines of [`polycast_protocol::push::overlay`].
//!
//! A host sends to those that it serves in turn, a piece each, and no more than a window ahead of what has
//! come out of the other end's path down, as TCP does. Requests and what is said of groups take the latency
//! alone. Where hosts are in zones and racks, what passes between two of them also goes through the joints of
//! these, each of which has a rate in each direction.

use alloc::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::IpAddr;
use core::ops::Range;
use polycast_protocol::push::PeerId;
use polycast_protocol::push::overlay::{
    Candidate, Candidates, Mesh, Requests, Seeding, UpstreamId, Upstreams, UpstreamsConfig,
    UpstreamsInput as Input, UpstreamsOutput as Output,
};
use polycast_types::{Duration, Location, RangeSet, Time};
use polycast_wire::control::{Fault, Share};

/// Bytes of a hash group.
pub const GROUP_LEN: u64 = 256 << 10;
const PIECE_LEN: u64 = 64 << 10;
const WINDOW_LEN: u64 = 256 << 10;
const LATENCY: Duration = Duration::from_micros(50);
/// A piece of a group every four hundred milliseconds: no upstream seems to stall that gives something so
/// often.
const DRIPPED_BYTES_PER_S: u64 = 160 << 10;
const TICK: Duration = Duration::from_millis(50);
/// The source itself.
const SOURCE: usize = 0;

/// Behaviour of a receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mood {
    /// As it should.
    Honest,
    /// It does nothing between these times.
    Stops(Time, Time),
    /// It is gone from then on.
    Dies(Time),
    /// It says that it has everything, and gives nothing.
    Boasts,
    /// It gives wrong bytes.
    Spoils,
    /// It says that it has everything, and gives of what it has so much in a second that it seems to live.
    Drips,
    /// None of the others can connect to it.
    Hidden,
    /// It comes when the others have begun.
    Comes(Time),
}

/// The number of the receiver at this address.
fn number_of(address: IpAddr) -> usize {
    let IpAddr::V4(address) = address else { unreachable!("no receiver has {address}") };
    (address.to_bits() & 0xffff) as usize
}

impl Mood {
    /// Returns true if the receiver gets the object in the end.
    #[must_use]
    pub fn is_served(self) -> bool {
        matches!(self, Mood::Honest | Mood::Stops(..) | Mood::Hidden | Mood::Comes(_))
    }
}

/// Properties of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Bytes a second that it sends.
    pub up: u64,
    /// Bytes a second that it takes.
    pub down: u64,
    /// Behaviour of the receiver.
    pub mood: Mood,
}

/// Zone and rack of a host, by numbers.
pub type Spot = (u8, u8);

/// Joint of a zone or, with its number, of a rack in it, and whether bytes leave by it.
pub type Joint = (u8, Option<u8>, bool);

/// Zones and racks of the hosts.
#[derive(Clone, Debug, Default)]
pub struct Spots {
    /// That of the source.
    pub source: Spot,
    /// Spots of the receivers; the source's where there are fewer.
    pub receivers: Vec<Spot>,
    /// Bytes a second of each zone's joint, in each direction; `None` for no limit.
    pub zone_rate: Option<u64>,
    /// The same of each rack's.
    pub rack_rate: Option<u64>,
}

impl Spots {
    /// The spot of a host; the source is number 0.
    fn of(&self, at: usize) -> Spot {
        let own = at.checked_sub(1).and_then(|receiver| self.receivers.get(receiver));
        own.copied().unwrap_or(self.source)
    }

    fn location(&self, at: usize) -> Location {
        let (zone, rack) = self.of(at);
        Location { zone: format!("z{zone}"), rack: format!("r{rack}") }
    }

    /// Joints from one host to another, in order, with their rates.
    fn between(&self, from: usize, to: usize) -> Vec<(Joint, Option<u64>)> {
        let ((from_zone, from_rack), (to_zone, to_rack)) = (self.of(from), self.of(to));
        let mut joints = Vec::new();
        if self.of(from) != self.of(to) {
            joints.push(((from_zone, Some(from_rack), true), self.rack_rate));
            if from_zone != to_zone {
                joints.push(((from_zone, None, true), self.zone_rate));
                joints.push(((to_zone, None, false), self.zone_rate));
            }
            joints.push(((to_zone, Some(to_rack), false), self.rack_rate));
        }
        joints
    }
}

/// A bug that is put in on purpose, around the machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tamper {
    /// The source never hears what a receiver lacks.
    DropLacks,
    /// Receivers hear of their first candidates only.
    DropCandidates,
    /// A group with wrong bytes counts as right.
    SkipHash,
}

struct Conn {
    server: usize,
    client: usize,
    id: UpstreamId,
    requests: Requests,
    /// Groups that are being sent, and how much of each is left.
    out: VecDeque<(u64, u64)>,
    in_flight: u64,
    is_open: bool,
    /// Its client is to be told later what its server has.
    has_news: bool,
    /// Its client takes no more by it than what was sent.
    is_ending: bool,
    /// Nothing goes out by it before this, where each flow has a limit.
    due: Time,
}

struct Node {
    host: Host,
    is_sending: bool,
    is_taking: bool,
    next_served: usize,
    served: Vec<usize>,
    incoming: VecDeque<(usize, u64, Option<u64>)>,
    upstreams: Upstreams,
    conns: BTreeMap<UpstreamId, usize>,
    order: Vec<u64>,
    first_at: Option<Time>,
    done_at: Option<Time>,
    is_gone: bool,
    is_told: bool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Told(usize, Vec<(u32, Share)>, (bool, bool)),
    Connected(usize, UpstreamId, usize),
    Asked(usize, Vec<u64>),
    Holds(usize, Vec<(u64, u64)>),
    News(usize),
    Sent(usize, u64, Option<u64>),
    Crossed(usize, u64, Option<u64>, usize),
    Taken(usize, u64, Option<u64>),
    Arrived(usize, u64, Option<u64>),
    Finished(usize),
    Due(usize),
    Ended(usize),
    Lost(usize, usize, Fault),
    Lacks(usize, Vec<(u64, u64)>),
    Tick(usize),
    Comes(usize),
    Resumes(usize),
    Dies(usize),
}

/// The receivers that others have named, and for what.
pub type Named = BTreeMap<usize, BTreeSet<&'static str>>;

/// Result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Time at which each receiver had its first group.
    pub first: Vec<Option<Time>>,
    /// Time at which each receiver had all groups.
    pub done: Vec<Option<Time>>,
    /// Receivers that the source takes for keeping back the groups that they are given.
    pub keepers: Vec<u32>,
    /// Number of objects that the source has sent.
    pub objects: f64,
    /// Of these, what one beside it got that stands apart, as none fetches from it.
    pub objects_apart: f64,
    /// The receivers that others have named, and for what.
    pub named: Named,
    /// Groups that came to one that had them.
    pub twice: u64,
    /// Number of times that receivers have reported missing groups.
    pub lacking: u64,
    /// Groups with wrong bytes that came.
    pub wrong: u64,
    /// Most connections from one host to another, and of one host to all that it fetches from.
    pub most_lanes: (usize, usize),
    /// Bytes that went through each joint.
    pub crossed: BTreeMap<Joint, u64>,
    /// Events of the run, and a hash of all in order.
    pub events: u64,
    /// The hash.
    pub hash: u64,
    /// Breach of a rule that must always hold, if any.
    pub breach: Option<String>,
}

/// A source and its receivers.
pub struct World {
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    number: u64,
    groups: u64,
    nodes: Vec<Node>,
    conns: Vec<Conn>,
    mesh: Mesh,
    seeding: Seeding,
    spots: Spots,
    /// Bytes a second of each connection at most.
    flow_rate: Option<u64>,
    /// Most connections between two hosts, and of a host to all others that it fetches from.
    most_lanes: (usize, usize),
    /// Time at which each joint is free, and the bytes that went through it.
    joints: BTreeMap<Joint, (Time, u64)>,
    twice: u64,
    lacking: u64,
    wrong: u64,
    named: Named,
    tamper: Option<Tamper>,
    hash: u64,
    breach: Option<String>,
}

fn name_of(fault: Fault) -> &'static str {
    match fault {
        Fault::Unreachable => "unreachable",
        Fault::Ended => "ended",
        Fault::Stalled => "stalled",
        Fault::NeverGave => "never gave",
        Fault::WrongBytes => "wrong bytes",
        Fault::Foreign => "foreign",
    }
}

impl World {
    /// A source with this rate up, and receivers that want so many groups.
    #[must_use]
    pub fn new(seed: u64, groups: u64, up: u64, receivers: &[Host]) -> Self {
        Self::with_spots(seed, groups, (up, receivers), Spots::default())
    }

    /// The same where hosts are in zones and racks.
    #[must_use]
    pub fn with_spots(seed: u64, groups: u64, (up, receivers): (u64, &[Host]), spots: Spots) -> Self {
        let source = Host { up, down: up, mood: Mood::Honest };
        let all = core::iter::once(&source).chain(receivers);
        let node = |(at, host): (usize, &Host)| Node {
            host: *host,
            is_sending: false,
            is_taking: false,
            next_served: 0,
            served: Vec::new(),
            incoming: VecDeque::new(),
            upstreams: Upstreams::new(UpstreamsConfig {
                groups,
                group_len: GROUP_LEN as u32,
                seed: seed ^ at as u64,
            }),
            conns: BTreeMap::new(),
            order: Vec::new(),
            first_at: None,
            done_at: None,
            is_gone: false,
            is_told: false,
        };
        let mut seeding = Seeding::new(groups);
        (0..groups).for_each(|group| seeding.make_ready(group));
        let mut world = World {
            now: Time::ZERO,
            events: BinaryHeap::new(),
            number: 0,
            groups,
            nodes: all.enumerate().map(node).collect(),
            conns: Vec::new(),
            mesh: Mesh::new(seed, spots.location(SOURCE)),
            seeding,
            joints: BTreeMap::new(),
            spots,
            flow_rate: None,
            most_lanes: (0, 0),
            twice: 0,
            lacking: 0,
            wrong: 0,
            named: BTreeMap::new(),
            tamper: None,
            hash: seed | 1,
            breach: None,
        };
        let all = 1..world.nodes.len();
        let is_there = |at: &usize| !matches!(world.nodes[*at].host.mood, Mood::Comes(_));
        let there: Vec<usize> = all.clone().filter(is_there).collect();
        let told = world.mesh.join(there.into_iter().map(|at| (PeerId(at as u32), world.spots.location(at))));
        world.tell(told);
        for at in all {
            match world.nodes[at].host.mood {
                Mood::Comes(when) => {
                    world.at(when, Event::Comes(at));
                    continue;
                }
                Mood::Stops(_, until) => world.at(until, Event::Resumes(at)),
                Mood::Dies(when) => world.at(when, Event::Dies(at)),
                Mood::Honest | Mood::Boasts | Mood::Spoils | Mood::Drips | Mood::Hidden => {}
            }
            world.after(TICK, Event::Tick(at));
        }
        world
    }

    /// The same where the network limits the rate of each connection.
    #[must_use]
    pub fn policed(self, flow_rate: Option<u64>) -> Self {
        World { flow_rate, ..self }
    }

    /// The same with a bug.
    #[must_use]
    pub fn with(self, tamper: Option<Tamper>) -> Self {
        World { tamper, ..self }
    }

    fn at(&mut self, time: Time, event: Event) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, event)));
    }

    fn after(&mut self, span: Duration, event: Event) {
        self.at(self.now + span, event);
    }

    fn tell(&mut self, told: impl IntoIterator<Item = Candidates>) {
        for Candidates { peer, from, takes, is_apart, is_behind_head } in told {
            self.seeding.set_apart(peer, is_apart);
            let from = from.into_iter().map(|(peer, share)| (peer.0, share)).collect();
            self.after(LATENCY, Event::Told(peer.0 as usize, from, (takes, is_behind_head)));
        }
    }

    /// Runs until all that can be done are, or this time is over.
    #[must_use]
    pub fn run(mut self, until: Time) -> Outcome {
        let counts = |node: &Node| node.host.mood.is_served();
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            assert!(now >= self.now, "time goes back");
            self.now = now;
            self.hash = (self.hash ^ now.0).wrapping_mul(0x0000_0100_0000_01b3);
            if now > until || self.nodes[1..].iter().all(|node| !counts(node) || node.done_at.is_some()) {
                break;
            }
            self.happen(event);
            if self.number.is_multiple_of(1_024) {
                self.mesh.check();
                self.seeding.check();
            }
        }
        Outcome {
            first: self.nodes.iter().map(|node| node.first_at).collect(),
            done: self.nodes.iter().map(|node| node.done_at).collect(),
            keepers: self.seeding.keepers().map(|peer| peer.0).collect(),
            objects: self.seeding.given() as f64 / self.groups as f64,
            objects_apart: self.seeding.given_apart() as f64 / self.groups as f64,
            named: self.named,
            twice: self.twice,
            lacking: self.lacking,
            wrong: self.wrong,
            most_lanes: self.most_lanes,
            crossed: self.joints.into_iter().map(|(joint, (_, bytes))| (joint, bytes)).collect(),
            events: self.number,
            hash: self.hash,
            breach: self.breach,
        }
    }

    fn stands_still(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        let stops =
            matches!(node.host.mood, Mood::Stops(from, until) if self.now >= from && self.now < until);
        node.is_gone || stops
    }

    /// Returns the time until which the receiver of an event stands still, if it does.
    fn sleeper(&self, event: &Event) -> Option<Time> {
        let at = match event {
            Event::Told(at, ..) | Event::Connected(at, ..) => *at,
            Event::Holds(conn, _) | Event::Arrived(conn, ..) | Event::Ended(conn) => self.conns[*conn].client,
            Event::Asked(conn, _) | Event::News(conn) => self.conns[*conn].server,
            _ => return None,
        };
        match self.nodes[at].host.mood {
            Mood::Stops(from, until) if self.now >= from && self.now < until => Some(until),
            _ => None,
        }
    }

    fn happen(&mut self, event: Event) {
        if let Some(until) = self.sleeper(&event) {
            return self.at(until, event);
        }
        match event {
            Event::Told(at, ..) if self.tamper == Some(Tamper::DropCandidates) && self.nodes[at].is_told => {}
            Event::Lacks(..) if self.tamper == Some(Tamper::DropLacks) => {}
            Event::Told(at, from, flags) => self.told(at, from, flags),
            Event::Connected(client, id, server) => self.connect(client, id, server),
            Event::Asked(conn, groups) => {
                let Conn { server, is_open, .. } = self.conns[conn];
                let boasts = self.nodes[server].host.mood == Mood::Boasts;
                if is_open && !boasts {
                    let Node { order, host, .. } = &self.nodes[server];
                    let says = |group| host.mood == Mood::Drips || order.contains(&group);
                    let asked = self.conns[conn].requests.ask(&groups, says);
                    if let Err(misuse) = asked {
                        self.breach.get_or_insert(format!("an honest receiver breaks the rules: {misuse}"));
                    }
                    self.send(server);
                }
            }
            Event::Holds(conn, ranges) => {
                let Conn { client, id, is_open, .. } = self.conns[conn];
                let ranges: Vec<Range<u64>> = ranges.into_iter().map(|(start, end)| start..end).collect();
                if is_open {
                    self.hear(client, Input::Has(id, &ranges));
                }
            }
            Event::News(conn) => {
                self.conns[conn].has_news = false;
                self.tell_news(conn);
            }
            Event::Sent(conn, bytes, whole) => self.sent(conn, bytes, whole),
            Event::Crossed(conn, bytes, whole, passed) => self.cross(conn, bytes, whole, passed),
            Event::Taken(conn, bytes, whole) => self.taken(conn, bytes, whole),
            Event::Finished(conn) => self.finish(conn),
            Event::Due(server) => self.send(server),
            Event::Arrived(conn, bytes, whole) => self.arrive(conn, bytes, whole),
            Event::Ended(conn) => self.ended(conn),
            Event::Lost(at, other, fault) => self.lost(at, other, fault),
            Event::Lacks(at, ranges) => self.lacks(at, ranges),
            Event::Tick(at) => {
                if !self.stands_still(at) {
                    self.hear(at, Input::Tick);
                }
                // A group that was given again a while ago may be given once more.
                self.send(SOURCE);
                if self.nodes[at].done_at.is_none() && !self.nodes[at].is_gone {
                    self.after(TICK, Event::Tick(at));
                }
            }
            Event::Comes(at) => {
                let told = self.mesh.join([(PeerId(at as u32), self.spots.location(at))]);
                self.tell(told);
                self.after(TICK, Event::Tick(at));
            }
            Event::Resumes(at) => {
                self.take(at);
                self.send(at);
            }
            Event::Dies(at) => self.die(at),
        }
    }

    /// A receiver hears of its candidates.
    fn told(&mut self, at: usize, from: Vec<(u32, Share)>, (takes, is_behind_head): (bool, bool)) {
        self.nodes[at].is_told = true;
        let candidate = |peer: usize, share: Share| Candidate {
            address: [10, 0, (peer >> 8) as u8, peer as u8].into(),
            port: 7,
            name: None,
            is_source: peer == SOURCE,
            share,
        };
        let members = from.into_iter().map(|(peer, share)| candidate(peer as usize, share));
        let all: Vec<Candidate> = members.chain(takes.then(|| candidate(SOURCE, Share::ALL))).collect();
        self.hear(at, Input::Candidates { all: &all, is_behind_head });
    }

    fn sent(&mut self, conn: usize, bytes: u64, whole: Option<u64>) {
        let Conn { server, .. } = self.conns[conn];
        self.nodes[server].is_sending = false;
        self.cross(conn, bytes, whole, 0);
        self.send(server);
    }

    /// Takes bytes that have come through so many joints through the next one, or to their host.
    fn cross(&mut self, conn: usize, bytes: u64, whole: Option<u64>, passed: usize) {
        let Conn { server, client, .. } = self.conns[conn];
        let Some((joint, rate)) = self.spots.between(server, client).get(passed).copied() else {
            self.nodes[client].incoming.push_back((conn, bytes, whole));
            return self.take(client);
        };
        let (free_at, crossed) = self.joints.entry(joint).or_insert((Time::ZERO, 0));
        let took = rate.map_or(Duration::ZERO, |rate| Duration(bytes * 1_000_000_000 / rate));
        *free_at = self.now.max(*free_at) + took;
        *crossed += bytes;
        let at = *free_at;
        self.at(at, Event::Crossed(conn, bytes, whole, passed + 1));
    }

    fn taken(&mut self, conn: usize, bytes: u64, whole: Option<u64>) {
        let Conn { server, client, .. } = self.conns[conn];
        self.nodes[client].is_taking = false;
        self.conns[conn].in_flight -= bytes;
        self.after(LATENCY, Event::Arrived(conn, bytes, whole));
        self.end_if_sent(conn);
        self.take(client);
        self.send(server);
    }

    /// The source hears that a candidate was of no use.
    fn lost(&mut self, at: usize, other: usize, fault: Fault) {
        let (by, about) = (PeerId(at as u32), PeerId(other as u32));
        if fault.is_a_complaint() {
            self.seeding.complain(by, about);
        }
        if other != SOURCE {
            let told = self.mesh.lose(by, about, fault.is_for_good());
            self.tell(told);
        }
    }

    /// The source hears what a receiver lacks.
    fn lacks(&mut self, at: usize, ranges: Vec<(u64, u64)>) {
        let ranges: Vec<Range<u64>> = ranges.into_iter().map(|(start, end)| start..end).collect();
        self.seeding.lack(self.now, PeerId(at as u32), &ranges);
        let told = self.mesh.let_take(PeerId(at as u32));
        self.tell(told);
        self.send(SOURCE);
    }

    fn connect(&mut self, client: usize, id: UpstreamId, server: usize) {
        // It may have been given up meanwhile.
        if self.nodes[client].is_gone || !self.nodes[client].upstreams.is_open(id) {
            return;
        }
        let conn = self.conns.len();
        let is_hidden = self.nodes[server].host.mood == Mood::Hidden;
        let may = !self.nodes[server].is_gone
            && !is_hidden
            && (server != SOURCE || self.seeding.come(PeerId(client as u32), RangeSet::new()));
        if !may {
            return self.hear(client, Input::Closed(id, Fault::Unreachable));
        }
        self.conns.push(Conn {
            server,
            client,
            id,
            requests: Requests::new(self.groups),
            out: VecDeque::new(),
            in_flight: 0,
            is_open: true,
            has_news: false,
            is_ending: false,
            due: Time::ZERO,
        });
        self.nodes[server].served.push(conn);
        self.nodes[client].conns.insert(id, conn);
        let to_server = self.nodes[client].conns.values().filter(|conn| self.conns[**conn].server == server);
        let (lanes, all) = (to_server.count(), self.nodes[client].conns.len());
        self.most_lanes = (self.most_lanes.0.max(lanes), self.most_lanes.1.max(all));
        self.hear(client, Input::Opened(id));
        self.tell_news(conn);
        self.send(server);
    }

    /// Says what a server has that its client was not told of, or will when the client may be told again.
    fn tell_news(&mut self, conn: usize) {
        let server = self.conns[conn].server;
        if server == SOURCE || !self.conns[conn].is_open {
            return;
        }
        if matches!(self.nodes[server].host.mood, Mood::Boasts | Mood::Drips) {
            let all = vec![(0, self.groups)];
            return self.after(LATENCY, Event::Holds(conn, all));
        }
        let now = self.now;
        let Conn { requests, has_news, .. } = &mut self.conns[conn];
        let news = requests.news(now, &self.nodes[server].order);
        let at = requests.news_at();
        if news.is_empty() && now < at && !core::mem::replace(has_news, true) {
            return self.at(at, Event::News(conn));
        }
        if !news.is_empty() {
            let ranges = news.into_iter().map(|range| (range.start, range.end)).collect();
            self.after(LATENCY, Event::Holds(conn, ranges));
        }
    }

    /// The client of a connection takes no more by it than what was sent.
    fn finish(&mut self, conn: usize) {
        self.conns[conn].is_ending = true;
        self.end_if_sent(conn);
    }

    /// A connection has ended: its client learns of it.
    fn ended(&mut self, conn: usize) {
        let Conn { client, id, .. } = self.conns[conn];
        if self.nodes[client].conns.get(&id) == Some(&conn) {
            self.hear(client, Input::Closed(id, Fault::Ended));
        }
    }

    /// Ends a connection by which nothing more is to come, when all of it has.
    fn end_if_sent(&mut self, conn: usize) {
        let Conn { is_ending, in_flight, out, .. } = &self.conns[conn];
        if *is_ending && *in_flight == 0 && out.is_empty() {
            self.after(LATENCY, Event::Ended(conn));
        }
    }

    /// Sends the next piece, if the path up is free and one of those that are served has room.
    fn send(&mut self, at: usize) {
        if self.nodes[at].is_sending || self.stands_still(at) {
            return;
        }
        let served = self.nodes[at].served.len();
        for step in 0..served {
            let turn = (self.nodes[at].next_served + step) % served;
            let number = self.nodes[at].served[turn];
            let conn = &self.conns[number];
            if !conn.is_open || conn.in_flight + PIECE_LEN > WINDOW_LEN || conn.due > self.now {
                continue;
            }
            if conn.out.is_empty() && !conn.requests.is_idle() {
                self.tell_news(number);
            }
            let conn = &mut self.conns[number];
            if conn.out.is_empty() {
                let next = match at {
                    SOURCE if conn.is_ending => None,
                    SOURCE => self.seeding.take(self.now, PeerId(conn.client as u32)),
                    _ => conn.requests.take(),
                };
                conn.out.extend(next.map(|group| (group, GROUP_LEN)));
            }
            let Some((group, left)) = conn.out.front_mut() else { continue };
            let bytes = PIECE_LEN.min(*left);
            *left -= bytes;
            let whole = (*left == 0).then_some(*group);
            if whole.is_some() {
                conn.out.pop_front();
            }
            conn.in_flight += bytes;
            if let Some(rate) = self.flow_rate {
                conn.due = self.now + Duration(bytes * 1_000_000_000 / rate);
                let due = conn.due;
                self.number += 1;
                self.events.push(Reverse((due, self.number, Event::Due(at))));
            }
            let node = &mut self.nodes[at];
            // A group goes out as a whole where its connection has room.
            (node.is_sending, node.next_served) = (true, turn + usize::from(whole.is_some()));
            let rate = if node.host.mood == Mood::Drips { DRIPPED_BYTES_PER_S } else { node.host.up };
            let took = Duration(bytes * 1_000_000_000 / rate);
            return self.after(took, Event::Sent(number, bytes, whole));
        }
    }

    /// Takes the next piece out of the path down.
    fn take(&mut self, at: usize) {
        if self.nodes[at].is_taking || self.stands_still(at) {
            return;
        }
        let node = &mut self.nodes[at];
        let Some((conn, bytes, whole)) = node.incoming.pop_front() else { return };
        node.is_taking = true;
        let took = Duration(bytes * 1_000_000_000 / node.host.down);
        self.after(took, Event::Taken(conn, bytes, whole));
    }

    fn arrive(&mut self, conn: usize, bytes: u64, whole: Option<u64>) {
        let Conn { server, client, id, is_open, .. } = self.conns[conn];
        if !is_open || self.nodes[client].is_gone {
            return;
        }
        self.hear(client, Input::Heard(id, bytes));
        let Some(group) = whole else { return };
        self.hear(client, Input::Came(id, group));
        if self.nodes[server].host.mood == Mood::Drips && !self.nodes[server].order.contains(&group) {
            // It sent what it does not have.
            self.wrong += 1;
            return self.hear(client, Input::Wrong(id, group));
        }
        if self.nodes[server].host.mood == Mood::Spoils && self.tamper != Some(Tamper::SkipHash) {
            self.wrong += 1;
            return self.hear(client, Input::Wrong(id, group));
        }
        if self.nodes[server].host.mood == Mood::Spoils {
            self.breach.get_or_insert(format!("receiver {client} keeps a wrong group {group}"));
        }
        if self.nodes[client].order.contains(&group) {
            self.twice += 1;
            return;
        }
        let now = self.now;
        let node = &mut self.nodes[client];
        node.order.push(group);
        node.first_at.get_or_insert(now);
        if node.order.len() as u64 == self.groups {
            node.done_at = Some(now);
        }
        self.hear(client, Input::Verified(group));
        for conn in self.nodes[client].served.clone() {
            self.tell_news(conn);
        }
    }

    fn die(&mut self, at: usize) {
        self.nodes[at].is_gone = true;
        for conn in 0..self.conns.len() {
            let Conn { server, client, is_open, .. } = self.conns[conn];
            if is_open && (server == at || client == at) {
                self.conns[conn].is_open = false;
                self.after(LATENCY, Event::Ended(conn));
            }
        }
        self.seeding.forget(PeerId(at as u32));
        let told = self.mesh.leave(PeerId(at as u32));
        self.tell(told);
    }

    /// A receiver hears something, and does what follows.
    fn hear(&mut self, at: usize, input: Input<'_>) {
        if self.nodes[at].is_gone {
            return;
        }
        self.nodes[at].upstreams.handle(self.now, input);
        while let Some(output) = self.nodes[at].upstreams.poll() {
            match output {
                Output::Open(id, candidate) => {
                    let server = number_of(candidate.address);
                    let server = if candidate.is_source { SOURCE } else { server };
                    self.after(LATENCY * 2, Event::Connected(at, id, server));
                }
                Output::Ask(id, groups) => {
                    let conn = self.nodes[at].conns[&id];
                    self.after(LATENCY, Event::Asked(conn, groups));
                }
                Output::Close(id) => {
                    let Some(conn) = self.nodes[at].conns.remove(&id) else { continue };
                    self.conns[conn].is_open = false;
                    if self.conns[conn].server == SOURCE {
                        self.seeding.leave(PeerId(at as u32));
                    }
                }
                Output::Finish(id) => {
                    if let Some(conn) = self.nodes[at].conns.get(&id).copied() {
                        self.after(LATENCY, Event::Finished(conn));
                    }
                }
                Output::Lost(candidate, fault) => {
                    let other = number_of(candidate.address);
                    self.named.entry(other).or_default().insert(name_of(fault));
                    let other = if candidate.is_source { SOURCE } else { other };
                    self.after(LATENCY, Event::Lost(at, other, fault));
                }
                Output::Lacks(ranges) => {
                    self.lacking += 1;
                    let ranges = ranges.into_iter().map(|range| (range.start, range.end)).collect();
                    self.after(LATENCY, Event::Lacks(at, ranges));
                }
            }
        }
    }
}
