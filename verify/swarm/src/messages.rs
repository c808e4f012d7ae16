//! Cases of streams of messages (Orca section 4): the manager's table of streams on real leases, sources that
//! come and go, receivers that join and leave, sessions that break, a manager that begins anew, and packets
//! that are lost, doubled and overtaken.
//!
//! A host on the network records pieces, and plays them to receivers, also to those that join later.
//!
//! In some cases one of the streams is shared: every host that joins sends, too, with a handle of its own.
//!
//! At a receiver the numbers of a sender's messages only rise, every gap is said, a message that lacks a
//! piece is never delivered, and none that was sent before the receiver has joined. In the end a path has the
//! receivers that have joined, and all of them hear what is sent.

use super::coverage::{self, Coverage};
use super::draw::Random;
use super::{Plant, Verdict};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{Channel, Fabric, Fabrics, Failure, Fcfs, PlanId, Resource};
use polycast_protocol::leases::{
    AgentKey, HeldLease, Input, Join, Leases, LeasesConfig, OnDeviceFailure, Output, Record, RecordKey,
    STREAMS_FROM, SessionsConfig,
};
use polycast_protocol::stream::{
    OrderConfig, OrderInput, OrderOutput, Senders, SendersConfig, SendersOutput, StreamRefusal, StreamWord,
    Streams, StreamsConfig, StreamsInput, StreamsOutput,
};
use polycast_simulator::Agenda;
use polycast_types::{Duration, Handle, Time};

const TICK: Duration = Duration::from_millis(100);
/// After healing every receiver hears what is sent within this time: a path that its source has never heard
/// of has expired, and is asked for again.
const LIVENESS: Duration = Duration::from_secs(40);
/// The bytes of a piece.
const PIECE: usize = 1_000;
/// Pieces that the host on the network keeps.
const RECORDED_MAX: usize = 256;

/// A stream as its source has it.
struct Sends {
    name: String,
    request: u64,
    handle: Handle,
    next: u64,
    /// The lease, and where it sends.
    lent: Option<(PlanId, Channel)>,
    lease: Option<HeldLease>,
}

/// A stream as a receiver has it.
struct Hears {
    /// Channel on which it listens, and the handle that it listens for.
    told: Option<(Channel, Handle)>,
    /// The orders of senders: of the one that it listens for, or listened for last, and in a shared stream of
    /// the others.
    senders: Senders,
    sender: Option<Handle>,
    /// The other members of a shared stream that it listens for, by name.
    others: BTreeMap<String, Handle>,
    kept: BTreeMap<(Handle, u64), BTreeSet<u16>>,
    /// The last message of each sender that was delivered.
    last: BTreeMap<Handle, u64>,
    /// The handle with which it sends itself, and the number of its next message, in a shared stream.
    own: Option<(Handle, u64)>,
    /// Number drawn for this join, and the position of each source at that time.
    ask: u64,
    begun: BTreeMap<Handle, u64>,
}

struct Host {
    incarnation: u64,
    up: bool,
    /// Set while it has a session with the manager.
    session: bool,
    /// Time at which it comes back, or its session does.
    back_at: Time,
    requests: u64,
    sends: Option<Sends>,
    hears: BTreeMap<String, Hears>,
}

struct Manager {
    leases: Leases,
    streams: Streams,
}

impl Hears {
    /// Hears another member no more.
    fn forget(&mut self, gone: Handle) {
        self.senders.leave(gone);
        self.kept.retain(|(of, _), _| *of != gone);
        self.last.remove(&gone);
    }
}

/// A piece on its way: to whom, of which source's run, and which of which message.
#[derive(Clone)]
struct Piece {
    to: usize,
    channel: Channel,
    handle: Handle,
    number: u64,
    piece: u16,
    pieces: u16,
}

struct World<'r> {
    random: &'r mut Random,
    plant: Option<Plant>,
    now: Time,
    hosts: Vec<Host>,
    manager: Option<Manager>,
    manager_back_at: Time,
    /// Written records, where there are any.
    records: Option<BTreeMap<RecordKey, Record>>,
    addresses: u32,
    /// Set if the second stream is shared.
    shared: bool,
    runs: u64,
    failed: Option<Failure>,
    pieces: Agenda<Piece>,
    /// Pieces that the host on the network has recorded; none where there is no such host.
    recorded: Option<Vec<Piece>>,
    /// Joins so far, and handles of shared streams.
    asks: u64,
    /// Number of pieces of each message of each run of a source.
    sent: BTreeMap<(Handle, u64), u16>,
    loss: u64,
    duplication: u64,
    /// Pieces overtake each other by so much.
    jitter: Duration,
    order: OrderConfig,
    hash: u64,
    coverage: Coverage,
}

fn name(host: usize) -> String {
    format!("host-{host}")
}

fn index(name: &str) -> usize {
    name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(usize::MAX)
}

pub(super) fn run(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    let count = random.within(3..=6) as usize;
    let addresses = random.within(1..=4) as u32;
    let recorded = random.one_in(2);
    let plays = random.one_in(2);
    let shared = random.one_in(2);
    let case = format!(
        "streams among {count} hosts, {addresses} addresses{}{}{}",
        if shared { ", one of them shared" } else { "" },
        if recorded { ", a manager with records" } else { "" },
        if plays { ", pieces played again" } else { "" }
    );
    let host = |_| Host {
        incarnation: 1,
        up: true,
        session: false,
        back_at: Time::ZERO,
        requests: 0,
        sends: None,
        hears: BTreeMap::new(),
    };
    let share = |random: &mut Random| if random.one_in(2) { random.magnitude(1..=200) } else { 0 };
    let mut world = World {
        plant,
        now: Time(1),
        hosts: (0..count).map(host).collect(),
        manager: None,
        manager_back_at: Time::ZERO,
        records: recorded.then(BTreeMap::new),
        addresses,
        shared,
        runs: 0,
        failed: None,
        pieces: Agenda::default(),
        recorded: plays.then(Vec::new),
        asks: 0,
        sent: BTreeMap::new(),
        loss: share(random),
        duplication: share(random),
        jitter: Duration(random.magnitude(10_000..=400_000_000)),
        order: OrderConfig {
            hold: Duration(random.magnitude(100_000..=300_000_000)),
            messages_max: random.magnitude(1..=64) as usize,
            bytes_max: random.magnitude(8_000..=1_000_000) as usize,
        },
        random,
        hash: seed | 1,
        coverage: Coverage::default(),
    };
    let failure = world.live().err();
    let World { hash, pieces, coverage, .. } = world;
    Verdict { seed, case, failure, trace_hash: hash, events: pieces.planned(), coverage }
}

impl World<'_> {
    fn live(&mut self) -> Result<(), String> {
        let heal_at = Time(self.random.magnitude(2_000_000_000..=40_000_000_000));
        while self.now < heal_at {
            self.fail_something(heal_at);
            self.wish();
            self.tick()?;
        }
        (self.loss, self.duplication, self.jitter, self.recorded) = (0, 0, Duration(1), None);
        self.manager_back_at = self.now;
        self.repair();
        for host in &mut self.hosts {
            host.back_at = self.now;
        }
        let end = self.now + LIVENESS;
        while self.now < end {
            self.tick()?;
        }
        self.check_paths()?;
        let sent = self.positions();
        for _ in 0..10 {
            self.tick()?;
        }
        self.check_heard(&sent)
    }

    fn sources(&self) -> impl Iterator<Item = &Sends> {
        self.hosts.iter().filter_map(|host| host.sends.as_ref())
    }

    /// The number of each sender's next message, by stream and handle.
    fn positions(&self) -> BTreeMap<(String, Handle), u64> {
        let sources = self.sources().map(|sends| ((sends.name.clone(), sends.handle), sends.next));
        let hears = self.hosts.iter().flat_map(|host| &host.hears);
        let members = hears.filter_map(|(name, hears)| {
            let (handle, next) = hears.own.filter(|_| hears.told.is_some())?;
            Some(((name.clone(), handle), next))
        });
        sources.chain(members).collect()
    }

    fn fail_something(&mut self, heal_at: Time) {
        if !self.random.one_in(25) {
            return;
        }
        let until = self.now + Duration(self.random.magnitude(100_000_000..=10_000_000_000));
        let until = until.min(heal_at);
        let at = self.random.below(self.hosts.len() as u64) as usize;
        match self.random.below(5) {
            0 => {
                self.coverage.hit(coverage::STREAM_MANAGER_CRASHES);
                self.manager = None;
                self.manager_back_at = until;
                self.hosts.iter_mut().for_each(|host| host.session = false);
            }
            1 => {
                self.coverage.hit(coverage::STREAM_SOURCE_CRASHES);
                self.hang_up(at);
                let host = &mut self.hosts[at];
                (host.up, host.back_at) = (false, until);
                host.incarnation += 1;
                host.sends = None;
                host.hears.clear();
            }
            2 | 3 => {
                self.coverage.hit(coverage::STREAM_SESSION_BREAKS);
                self.hang_up(at);
                self.hosts[at].back_at = self.hosts[at].back_at.max(until.min(self.now + TICK * 30));
            }
            _ if self.failed.is_some() => self.repair(),
            _ => {
                let address = [239, 255, 64, self.random.below(self.addresses.into()) as u8].into();
                self.coverage.hit(coverage::STREAM_PATH_FAILS);
                self.failed = Some(Failure::Resource(Resource::MulticastAddress { address, port: 7474 }));
                let failures = Vec::from_iter(self.failed);
                self.lease(Input::Failed { failures });
            }
        }
    }

    fn repair(&mut self) {
        let failures = Vec::from_iter(self.failed.take());
        self.lease(Input::Repaired { failures });
    }

    fn agent(&self, at: usize) -> AgentKey {
        AgentKey { name: name(at), incarnation: self.hosts[at].incarnation }
    }

    /// A session ends, and the manager sees it.
    fn hang_up(&mut self, at: usize) {
        let agent = self.agent(at);
        let leases = self.manager.as_ref().map(|manager| &manager.leases);
        if core::mem::take(&mut self.hosts[at].session)
            && let Some(session) = leases.and_then(|leases| leases.session_of(&agent))
        {
            self.lease(Input::Parted { agent, session });
        }
    }

    /// A host asks for something else of a stream.
    fn wish(&mut self) {
        if !self.random.one_in(3) {
            return;
        }
        let at = self.random.below(self.hosts.len() as u64) as usize;
        if !self.hosts[at].up {
            return;
        }
        let stream = format!("stream-{}", self.random.below(2));
        let agent = self.agent(at);
        let shared = self.is_shared(&stream);
        self.asks += u64::from(shared);
        let own = shared.then_some((Handle(1 << 63 | (at as u64) << 48 | self.asks), 0));
        let host = &mut self.hosts[at];
        let hears = host.hears.contains_key(&stream);
        match self.random.below(12) {
            0 | 1 if host.sends.is_none() && !hears => {
                host.requests += 1;
                let (request, incarnation) = (STREAMS_FROM + host.requests, host.incarnation);
                let handle = Handle((at as u64) << 48 | incarnation << 24 | host.requests);
                let sends = Sends { name: stream, request, handle, next: 0, lent: None, lease: None };
                host.sends = Some(sends);
                self.create(at);
            }
            2 if host.sends.is_some() && self.random.one_in(3) => {
                if let Some(sends) = host.sends.take() {
                    self.stream(at, StreamsInput::End { agent, name: sends.name });
                }
            }
            3 if hears => {
                host.hears.remove(&stream);
                self.stream(at, StreamsInput::Leave { agent, name: stream });
            }
            4.. if !hears && host.sends.as_ref().is_none_or(|sends| sends.name != stream) => {
                let own_handle = own.map(|(handle, _)| handle);
                let senders = SendersConfig { order: self.order, senders_max: 8, own: own_handle };
                let hears = Hears {
                    told: None,
                    senders: Senders::new(senders),
                    sender: None,
                    others: BTreeMap::new(),
                    kept: BTreeMap::new(),
                    last: BTreeMap::new(),
                    own,
                    ask: 0,
                    begun: BTreeMap::new(),
                };
                host.hears.insert(stream.clone(), hears);
                self.ask_to_hear(at, stream);
            }
            _ => {}
        }
    }

    fn is_shared(&self, stream: &str) -> bool {
        self.shared && stream == "stream-1"
    }

    /// A process begins to listen: its agent draws a number for that.
    fn ask_to_hear(&mut self, at: usize, name: String) {
        let hears = self.hosts.iter().flat_map(|host| host.hears.values());
        let members = hears.filter_map(|hears| hears.own);
        let begun = self.sources().map(|sends| (sends.handle, sends.next)).chain(members).collect();
        self.asks += 1;
        let (agent, ask) = (self.agent(at), self.asks);
        let mut sends = None;
        if let Some(hears) = self.hosts[at].hears.get_mut(&name) {
            (hears.ask, hears.begun) = (ask, begun);
            sends = hears.own.map(|(handle, _)| handle);
        }
        self.stream(at, StreamsInput::Join { agent, name, ask, sends });
    }

    /// An agent says something in its session, if it has one; a new one begins with all that matters.
    fn stream(&mut self, at: usize, input: StreamsInput) {
        if self.hosts[at].session {
            self.table(input);
        }
    }

    fn table(&mut self, input: StreamsInput) {
        let Some(manager) = &mut self.manager else { return };
        self.coverage.hit(coverage::of_streams(&input));
        manager.streams.handle(self.now, input);
        self.drain();
    }

    fn lease(&mut self, input: Input) {
        let Some(manager) = &mut self.manager else { return };
        self.coverage.hit(coverage::of_leases(&input));
        manager.leases.handle(self.now, input);
        self.drain();
    }

    fn create(&mut self, at: usize) {
        let agent = self.agent(at);
        let Some(sends) = &self.hosts[at].sends else { return };
        let key = agent.request(sends.request);
        let manager = self.manager.as_ref();
        let lease = manager.and_then(|manager| manager.leases.leases().find(|lease| *lease.key == key));
        let held =
            lease.map(|lease| (lease.grant.plan.clone(), lease.grant.receiver_names().cloned().collect()));
        let (name, request, handle) = (sends.name.clone(), sends.request, sends.handle);
        let shared = self.is_shared(&name);
        self.stream(at, StreamsInput::Create { agent, name, request, handle, shared, held });
    }

    fn tick(&mut self) -> Result<(), String> {
        self.now += TICK;
        if self.manager.is_none() && self.now >= self.manager_back_at {
            self.begin()?;
        }
        for at in 0..self.hosts.len() {
            let host = &mut self.hosts[at];
            if self.now >= host.back_at {
                host.up = true;
            }
            if host.up && !host.session && self.now >= host.back_at && self.manager.is_some() {
                self.join(at);
            }
            self.beat(at);
            self.retry(at);
            self.send(at);
            self.speak(at);
        }
        self.play();
        self.drain();
        self.arrive()
    }

    /// A manager begins, and goes on from records if there are any.
    fn begin(&mut self) -> Result<(), String> {
        let pool =
            AddressPool::new([239, 255, 64, 0].into(), self.addresses, 7474).expect("these are addresses");
        let fabrics: Vec<Box<dyn Fabric>> = vec![Box::new(TcpChain), Box::new(IpMulticast::new(pool))];
        self.runs += 1;
        let config = LeasesConfig {
            lease: Duration::from_secs(30),
            silence: Duration::from_secs(4),
            sessions: SessionsConfig::default(),
            pending_max: 8,
            leases_max: 100,
            agent_leases_max: 100,
            receiver_leases_max: 1_000,
            grant_bytes_max: u64::MAX,
            agents_max: 64,
            on_device_failure: OnDeviceFailure::Fallback,
            kept_max: 0,
            patience: Duration::from_secs(4),
            claims: None,
            recorded: self.records.is_some(),
            first_plan: PlanId(self.runs * 1_000_000),
        };
        let mut leases = Leases::new(config, Fabrics::new(fabrics), Box::new(Fcfs));
        for host in 0..self.hosts.len() {
            leases.know_host(&name(host));
        }
        if let Some(records) = &self.records {
            let aside = leases.restore(self.now, records.values().cloned());
            if !aside.is_empty() {
                return Err(format!("no manager can go on from all that is written: {aside:?}"));
            }
        }
        let streams = Streams::new(StreamsConfig::default(), self.now);
        self.manager = Some(Manager { leases, streams });
        let failures = Vec::from_iter(self.failed);
        if !failures.is_empty() {
            self.lease(Input::Failed { failures });
        }
        Ok(())
    }

    /// A session begins: the agent says again what it has and what it asks for.
    fn join(&mut self, at: usize) {
        let agent = self.agent(at);
        let leases = self.hosts[at].sends.iter().filter_map(|sends| sends.lease.clone()).collect();
        self.hosts[at].session = true;
        let from = [10, 0, 0, at as u8].into();
        self.lease(Input::Join(Join { agent: agent.clone(), address: (from, 7401), from, leases }));
        self.table(StreamsInput::Arrived { agent: agent.clone() });
        self.create(at);
        let hears = self.hosts[at].hears.iter();
        let wanted: Vec<_> =
            hears.map(|(name, hears)| (name.clone(), hears.ask, hears.own.map(|own| own.0))).collect();
        for (name, ask, sends) in wanted {
            self.stream(at, StreamsInput::Join { agent: agent.clone(), name, ask, sends });
        }
    }

    fn beat(&mut self, at: usize) {
        if !self.hosts[at].session || self.now.0 / TICK.0 % 10 != at as u64 {
            return;
        }
        let held = self.hosts[at].sends.iter().filter_map(|sends| Some(sends.lent.as_ref()?.0)).collect();
        let agent = self.agent(at);
        self.lease(Input::Heartbeat { agent, leases: held });
    }

    /// A receiver that was refused, or whose stream has ended, asks again.
    fn retry(&mut self, at: usize) {
        if !self.hosts[at].session || !self.random.one_in(20) {
            return;
        }
        let host = &self.hosts[at];
        let lost = host.hears.iter().find(|(_, hears)| hears.told.is_none()).map(|(name, _)| name.clone());
        if let Some(name) = lost {
            self.ask_to_hear(at, name);
        }
    }

    /// A source sends messages, each in some pieces.
    fn send(&mut self, at: usize) {
        let Some(sends) = &mut self.hosts[at].sends else { return };
        let Some((_, channel)) = sends.lent.clone() else { return };
        let handle = sends.handle;
        let numbers = sends.next..sends.next + self.random.below(3);
        sends.next = numbers.end;
        self.spread(at, &channel, handle, numbers);
    }

    /// A member of a shared stream sends messages where it listens.
    fn speak(&mut self, at: usize) {
        if !self.hosts[at].up {
            return;
        }
        for hears in self.hosts[at].hears.values_mut() {
            let (Some((channel, _)), Some((handle, next))) = (hears.told.clone(), &mut hears.own) else {
                continue;
            };
            let (handle, numbers) = (*handle, *next..*next + self.random.below(3));
            *next = numbers.end;
            return self.spread(at, &channel, handle, numbers);
        }
    }

    /// Messages go to all other hosts that listen to a channel.
    fn spread(&mut self, at: usize, channel: &Channel, handle: Handle, numbers: core::ops::Range<u64>) {
        let mut copies = Vec::new();
        for number in numbers {
            let pieces = self.random.within(1..=4) as u16;
            self.sent.insert((handle, number), pieces);
            copies.extend((0..pieces).map(|piece| (number, piece, pieces)));
        }
        let listens =
            |hears: &Hears| hears.told.as_ref().is_some_and(|(told, _)| told.is_heard_like(channel));
        let to: Vec<usize> = (0..self.hosts.len())
            .filter(|&host| host != at && self.hosts[host].up && self.hosts[host].hears.values().any(listens))
            .collect();
        for (number, piece, pieces) in copies {
            for &to in &to {
                let lost = self.random.below(1_000) < self.loss;
                let doubled = self.random.below(1_000) < self.duplication;
                if lost {
                    self.coverage.hit(coverage::PIECE_LOST);
                }
                if doubled {
                    self.coverage.hit(coverage::PIECE_DOUBLED);
                }
                for _ in 0..u32::from(!lost) + u32::from(doubled) {
                    let delay = self.random.below(self.jitter.0);
                    if delay > 1_000_000 {
                        self.coverage.hit(coverage::PIECE_LATE);
                    }
                    let channel = channel.clone();
                    let piece = Piece { to, channel, handle, number, piece, pieces };
                    if let Some(recorded) = &mut self.recorded
                        && recorded.len() < RECORDED_MAX
                    {
                        recorded.push(piece.clone());
                    }
                    self.pieces.plan(self.now + Duration(delay), piece);
                }
            }
        }
    }

    /// The host on the network plays some of what it has recorded to a receiver, one piece after the other,
    /// the oldest or some later ones.
    fn play(&mut self) {
        if !self.random.one_in(8) {
            return;
        }
        let Some(recorded) = self.recorded.as_mut().filter(|recorded| !recorded.is_empty()) else { return };
        let to = self.random.below(self.hosts.len() as u64) as usize;
        let first = self.random.below(recorded.len() as u64) as usize;
        let count = self.random.within(1..=16) as usize;
        for piece in recorded.iter().skip(first).take(count) {
            self.coverage.hit(coverage::PIECE_PLAYED);
            self.pieces.plan(self.now, Piece { to, ..piece.clone() });
        }
        if self.random.one_in(16) {
            recorded.clear();
        }
    }

    /// Pieces come to those who listen.
    fn arrive(&mut self) -> Result<(), String> {
        while let Some((at, piece)) = self.pieces.next_until(self.now) {
            let forgets = self.plant == Some(Plant::LosePiece) && piece.number % 8 == 5;
            let listens = |hears: &Hears| {
                let is_other = hears.others.values().any(|handle| *handle == piece.handle);
                hears.told.as_ref().is_some_and(|(channel, handle)| {
                    channel.is_heard_like(&piece.channel) && (*handle == piece.handle || is_other)
                })
            };
            let host = &mut self.hosts[piece.to];
            if let Some(hears) = host.hears.values_mut().find(|hears| listens(hears)) {
                let Piece { number, piece, pieces, handle, .. } = piece;
                let input = OrderInput::Piece { number, piece, pieces, len: PIECE };
                self.coverage.hit(coverage::of_order(&input));
                if hears.senders.handle(at, handle, input) && !(forgets && piece > 0) {
                    hears.kept.entry((handle, number)).or_default().insert(piece);
                }
            }
            self.deliver(piece.to, at)?;
        }
        (0..self.hosts.len()).try_for_each(|host| self.deliver(host, self.now))
    }

    /// Messages that can be delivered are; each after the one before, with the gap between them.
    fn deliver(&mut self, at: usize, now: Time) -> Result<(), String> {
        for (stream, hears) in &mut self.hosts[at].hears {
            while let Some(SendersOutput { sender: handle, output }) = hears.senders.poll(now) {
                let (number, lost) = match output {
                    OrderOutput::Forget { number } => {
                        self.coverage.hit(coverage::MESSAGE_FORGOTTEN);
                        hears.kept.remove(&(handle, number));
                        continue;
                    }
                    OrderOutput::Deliver { number, lost } => (number, lost),
                };
                let lost = if self.plant == Some(Plant::HideGap) { 0 } else { lost };
                if lost > 0 {
                    self.coverage.hit(coverage::MESSAGES_GIVEN_UP);
                }
                self.hash = (self.hash ^ number ^ now.0).wrapping_mul(0x0000_0100_0000_01b3);
                if hears.told.is_none() {
                    continue;
                }
                let has = hears.kept.remove(&(handle, number)).map_or(0, |pieces| pieces.len());
                let pieces = self.sent.get(&(handle, number)).copied();
                if pieces.map(usize::from) != Some(has) {
                    return Err(format!(
                        "message {number} of {stream} was delivered with {has} of {pieces:?} pieces"
                    ));
                }
                if let Some(next) = hears.begun.get(&handle).filter(|next| number < **next) {
                    return Err(format!(
                        "message {number} of {stream} was sent before its receiver joined, at {next}"
                    ));
                }
                let gap = match hears.last.get(&handle).copied() {
                    Some(last) if number <= last => {
                        return Err(format!("message {number} of {stream} was delivered after {last}"));
                    }
                    Some(last) => number - last - 1,
                    None => 0,
                };
                if gap != lost {
                    return Err(format!(
                        "{gap} messages before {number} of {stream} are missing, and {lost} are said"
                    ));
                }
                hears.last.insert(handle, number);
            }
        }
        Ok(())
    }

    /// As the manager's core does it: what leases and streams ask of each other, and of agents.
    fn drain(&mut self) {
        let now = self.now;
        loop {
            while let Some(output) = self.manager.as_mut().and_then(|manager| manager.leases.poll(now)) {
                self.obey(output);
            }
            let output = self.manager.as_mut().and_then(|manager| manager.streams.poll(now));
            match output {
                None => break,
                Some(StreamsOutput::Lease(input)) => {
                    self.coverage.hit(coverage::of_leases(&input));
                    if let Some(manager) = &mut self.manager {
                        manager.leases.handle(now, input);
                    }
                }
                Some(StreamsOutput::Tell { agent, name, word }) => {
                    if let Some(input) = self.hear(&agent, &name, word)
                        && let Some(manager) = &mut self.manager
                    {
                        self.coverage.hit(coverage::of_streams(&input));
                        manager.streams.handle(now, input);
                    }
                }
            }
        }
        if let (Some(manager), Some(records)) = (&mut self.manager, &mut self.records) {
            for (key, record) in manager.leases.changes() {
                match record {
                    Some(record) => drop(records.insert(key, record)),
                    None => drop(records.remove(&key)),
                }
            }
        }
    }

    fn obey(&mut self, output: Output) {
        let heard = match &output {
            Output::Response { request, response } if request.is_stream() => {
                Some(StreamsInput::Response { request: request.clone(), response: response.clone() })
            }
            Output::Extended { request, result } if request.is_stream() => {
                Some(StreamsInput::Changed { request: request.clone(), result: result.clone() })
            }
            Output::Replanned { request, plan, .. } if request.is_stream() => {
                Some(StreamsInput::Replanned { request: request.clone(), plan: plan.clone() })
            }
            Output::Released { request, .. } if request.is_stream() => {
                Some(StreamsInput::Ended { request: request.clone() })
            }
            Output::Gone { agent, .. } => {
                // Its session ends with it.
                let host = self.hosts.get_mut(index(&agent.name));
                let is_its = |host: &&mut Host| host.incarnation == agent.incarnation;
                host.filter(is_its).into_iter().for_each(|host| host.session = false);
                Some(StreamsInput::Gone { agent: agent.clone() })
            }
            _ => None,
        };
        if let Some(input) = heard {
            self.coverage.hit(coverage::of_streams(&input));
            if let Some(manager) = &mut self.manager {
                manager.streams.handle(self.now, input);
            }
        }
        self.tell(output);
    }

    /// Delivers an output of the leases to a source's agent, in its session.
    fn tell(&mut self, output: Output) {
        let agent = match &output {
            Output::Response { request, .. }
            | Output::Extended { request, .. }
            | Output::Replanned { request, .. } => &request.agent,
            Output::Heartbeat { agent, .. } => agent,
            _ => return,
        };
        let Some(host) = self.hosts.get_mut(index(&agent.name)) else { return };
        if !host.session || host.incarnation != agent.incarnation {
            return;
        }
        if let Output::Heartbeat { result: Err(_), .. } = output {
            // It has to join again.
            host.session = false;
            return;
        }
        let Some(sends) = &mut host.sends else { return };
        match output {
            Output::Response { request, response: Ok(grant) } if request.request == sends.request => {
                sends.lent = Some((grant.plan_id, grant.plan.channel.clone()));
                sends.lease = Some(HeldLease {
                    request: sends.request,
                    plan: grant.plan_id,
                    object: polycast_types::ObjectId {
                        app: polycast_types::AppId::default(),
                        data: polycast_types::DataId(sends.handle.0),
                    },
                    further_sources: grant.further_sources.clone(),
                    receivers: grant.receiver_names().cloned().collect(),
                    bytes: grant.accepted_bytes,
                    fabric: grant.plan.fabric.into(),
                    channel: grant.plan.channel,
                    left: None,
                    kept: None,
                    only: false,
                });
            }
            Output::Extended { request, result: Ok(Some(grant)) } if request.request == sends.request => {
                if let Some(lease) = &mut sends.lease {
                    lease.receivers = grant.receiver_names().cloned().collect();
                    lease.further_sources = grant.further_sources;
                }
            }
            Output::Replanned { request, plan, plan_id, .. } if request.request == sends.request => {
                if let Some(lease) = &mut sends.lease {
                    (lease.channel, lease.fabric) = (plan.channel.clone(), plan.fabric.into());
                }
                sends.lent = Some((plan_id, plan.channel));
            }
            Output::Heartbeat { result: Ok(lost), .. }
                if sends.lent.as_ref().is_some_and(|(plan, _)| lost.contains(plan)) =>
            {
                (sends.lent, sends.lease) = (None, None);
            }
            _ => {}
        }
    }

    /// Delivers a message of the table of streams to an agent, in its session; returns its answer.
    fn hear(&mut self, agent: &AgentKey, name: &str, word: StreamWord) -> Option<StreamsInput> {
        let host = self.hosts.get_mut(index(&agent.name))?;
        if !host.session || host.incarnation != agent.incarnation {
            return None;
        }
        match word {
            StreamWord::Created => {}
            StreamWord::Where { receiver, ask } => {
                let source = host.sends.as_ref().filter(|sends| sends.name == name).map(|sends| sends.next);
                let member = || host.hears.get(name).and_then(|hears| hears.own).map(|(_, next)| next);
                let next = source.or_else(member)?;
                let (agent, name) = (agent.clone(), name.into());
                return Some(StreamsInput::At { agent, name, receiver, ask, next });
            }
            StreamWord::Refused(StreamRefusal::Taken { .. }) => {
                host.sends.take_if(|sends| sends.name == name);
            }
            StreamWord::Refused(_) | StreamWord::Ended => {
                if let Some(hears) = host.hears.get_mut(name) {
                    hears.told = None;
                    // Listening ends; who asks again hears the other members anew.
                    for gone in core::mem::take(&mut hears.others).into_values() {
                        hears.forget(gone);
                    }
                }
            }
            StreamWord::Joined { channel, handle, ask, from, others, .. } => {
                let hears = host.hears.get_mut(name).filter(|hears| hears.ask == ask)?;
                let is_new = hears.told.as_ref().is_none_or(|(_, before)| *before != handle);
                if is_new {
                    let from = if self.plant == Some(Plant::TakeRecorded) { 0 } else { from };
                    if let Some(before) = hears.sender.replace(handle) {
                        hears.senders.leave(before);
                        while hears.senders.poll(self.now).is_some() {}
                    }
                    hears.senders.join(handle, from).ok()?;
                    hears.last.remove(&handle);
                    hears.kept.retain(|(of, _), _| *of != handle);
                }
                let others = others.unwrap_or_default();
                let goes_on = |name: &String, handle: &mut Handle| {
                    let told = others.iter().find(|other| other.name == *name);
                    told.is_some_and(|told| told.handle.is_none_or(|told| told == *handle))
                };
                let gone: Vec<_> =
                    hears.others.extract_if(.., |name, handle| !goes_on(name, handle)).collect();
                gone.into_iter().for_each(|(_, gone)| hears.forget(gone));
                for other in others {
                    let (Some(handle), Some(from)) = (other.handle, other.from) else { continue };
                    let from = if self.plant == Some(Plant::TakeRecorded) { 0 } else { from };
                    hears.senders.join(handle, from).ok()?;
                    hears.others.insert(other.name, handle);
                }
                hears.told = Some((channel, handle));
            }
        }
        None
    }

    /// Every stream's path has the receivers that ask for it and no others.
    fn check_paths(&self) -> Result<(), String> {
        let Some(manager) = &self.manager else { return Err("there is no manager".into()) };
        for (at, host) in self.hosts.iter().enumerate() {
            let Some(sends) = &host.sends else { continue };
            let key = self.agent(at).request(sends.request);
            let has: BTreeSet<String> = (manager.leases.records().into_iter())
                .filter_map(|record| match record {
                    Record::Lease { key: of, group, .. } if of == key => Some(group.receivers),
                    _ => None,
                })
                .flat_map(|receivers| receivers.into_iter().map(|host| name(host.0 as usize)))
                .collect();
            let told = |hears: &Hears| hears.told.as_ref().is_some_and(|(_, handle)| *handle == sends.handle);
            let wants: BTreeSet<String> = (0..self.hosts.len())
                .filter(|&other| self.hosts[other].hears.get(&sends.name).is_some_and(told))
                .map(name)
                .collect();
            if has != wants {
                return Err(format!("the path of {} has {has:?}, and {wants:?} were let in", sends.name));
            }
        }
        Ok(())
    }

    /// A receiver that was let in has heard all that was sent.
    fn check_heard(&self, sent: &BTreeMap<(String, Handle), u64>) -> Result<(), String> {
        for (at, host) in self.hosts.iter().enumerate() {
            for (stream, hears) in &host.hears {
                let Some((_, told)) = &hears.told else { continue };
                let own = hears.own.map(|(handle, _)| handle);
                // A shared stream is heard of all that have joined it, and another one of its source.
                let is_meant = |handle: &Handle| {
                    Some(*handle) != own
                        && (own.is_some() && sent.contains_key(&(stream.clone(), *told)) || told == handle)
                };
                for ((_, handle), next) in
                    sent.iter().filter(|((of, handle), _)| of == stream && is_meant(handle))
                {
                    let last = hears.last.get(handle).copied();
                    if *next == 0 || last.is_some_and(|last| last + 1 >= *next) {
                        continue;
                    }
                    return Err(format!("{} has heard {stream} up to {last:?}, not to {next}", name(at)));
                }
            }
        }
        Ok(())
    }
}
