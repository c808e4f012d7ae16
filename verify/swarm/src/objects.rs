//! Cases of objects that are asked for, and of topics: the manager's directory and its table of agents,
//! agents that crash and are back before, at and after the time that they have for it, that freeze and go on,
//! sessions that break with what was on its way, a manager that begins anew, origins that fail, and transfers
//! that some do not get. Objects are replaced while some that have them are away. Crowds ask for many objects
//! at one moment; each transfer asks for its path first, and waits where a receiver takes no more. Stores are
//! full: what is not being sent goes, or what comes finds no room.
//!
//! A run of an agent that has ended has nothing and asks for nothing; no receiver is named twice. No origin
//! is read while a living host has the object or reads it already, and none sends an edition while one that
//! is known has a younger one. Several hosts publish, and each goes by the numbers that it knows: a version
//! is committed when every subscriber has it or is named, and no number twice. In the end every wish has its
//! answer, and every subscriber the last version.

use super::coverage::Coverage;
use super::draw::Random;
use super::{Plant, Verdict};
use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{Channel, Fabrics, Fcfs, HostId, PlanId};
use polycast_protocol::directory::{
    Directory, DirectoryConfig, DirectoryInput as Input, DirectoryOutput as Output, Missed, Version, Wish,
};
use polycast_protocol::leases::{
    AgentKey, Denial, Going, Grant, Input as Happens, Join, Leases, LeasesConfig, OnDeviceFailure,
    Output as Said, PathRequest, Receivers, SessionsConfig,
};
use polycast_types::{AppId, DataId, Duration, ObjectId, Time};

const TICK: Duration = Duration::from_millis(10);
/// The longest time that a word takes.
const DELAY: Duration = Duration::from_millis(60);
/// An agent without a session is dead after this.
const RECONNECT: Duration = Duration::from_millis(2_000);
/// An agent that was not heard of for so long is gone.
const SILENCE: Duration = Duration::from_millis(4_000);
/// A session that breaks comes back within this.
const BACK_WITHIN: Duration = Duration::from_millis(1_200);
const SETTLE: Duration = Duration::from_millis(3_000);
/// After healing everything has an answer within this time.
const LIVENESS: Duration = Duration::from_secs(80);
/// A publisher looks again after this whether the version before its own is committed.
const AGAIN: Duration = Duration::from_millis(100);
const OBJECTS: u64 = 4;
/// Objects that crowds ask for have numbers from here on.
const CROWD: u64 = 100;
/// Versions of the topic have numbers from here on; they stay where they are.
const VERSIONS: u64 = 1_000;
const TOPIC: &str = "t";
const APP: AppId = AppId([0; 16]);

fn object(data: u64) -> ObjectId {
    ObjectId { app: APP, data: DataId(data) }
}

/// An object at a host.
#[derive(Clone, Copy)]
struct Held {
    /// Number of times that it was replaced anywhere before these bytes existed.
    edition: u64,
    since: Time,
    /// It came when there was a younger one, or was heard of late: the manager cannot know how old it is.
    is_late: bool,
}

/// A transfer that waits for its path, or has it.
struct Sending {
    serve: u64,
    object: ObjectId,
    receivers: Vec<String>,
    /// Receivers that were absent when the path was granted.
    missed: Vec<String>,
    /// Its path, and when it ends.
    path: Option<(PlanId, Time)>,
}

struct Host {
    incarnation: u64,
    up: bool,
    /// It does and hears nothing until then.
    frozen_until: Time,
    session: bool,
    /// Time at which it comes back, or its session does.
    back_at: Time,
    has: BTreeMap<ObjectId, Held>,
    /// Edition that takes the place of an object that was here, and when.
    awaits: BTreeMap<ObjectId, (u64, Time)>,
    /// Number of objects that the store has room for, beside versions.
    room: usize,
    wants: BTreeMap<ObjectId, Wish>,
    /// Objects that it reads from an origin, and the time at which that ends.
    filling: BTreeMap<ObjectId, Time>,
    /// By the numbers of their requests for paths.
    sending: BTreeMap<u64, Sending>,
    /// Answers of the manager about paths, on their way.
    answers: VecDeque<(Time, u64, Result<Grant, Denial>)>,
    subscribed: bool,
    /// Time at which the current manager received its subscription.
    subscription_heard: Option<Time>,
    last: Option<Version>,
    publishing: Option<Version>,
    /// Time at which it is published again under another number.
    publishes_at: Option<Time>,
    up_words: VecDeque<(Time, Input)>,
    /// Something happened here that no manager was told.
    unsaid: bool,
    down_words: VecDeque<(Time, Output)>,
}

/// State of a manager, as `manager::core` has it: the agents that are there, and the objects that they have.
struct Manager {
    members: Leases,
    directory: Directory,
}

struct World<'r> {
    random: &'r mut Random,
    plant: Option<Plant>,
    now: Time,
    hosts: Vec<Host>,
    manager: Option<Manager>,
    manager_back_at: Time,
    /// Number of transfers that a receiver takes at once.
    places: usize,
    versions: u64,
    /// Number of times that objects were replaced, and the time at which a host first had an edition.
    editions: BTreeMap<ObjectId, u64>,
    births: BTreeMap<(ObjectId, u64), Time>,
    requests: u64,
    /// Versions that this manager has committed.
    committed: BTreeMap<u64, ObjectId>,
    healed: bool,
    hash: u64,
    events: u64,
    runs: u64,
}

pub(super) fn run(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    let count = random.within(2..=6) as usize;
    let places = if random.one_in(2) { random.within(1..=4) as usize } else { 1_000 };
    let rooms: Vec<usize> = (0..count).map(|_| room(random)).collect();
    let host = |at: usize| Host {
        incarnation: 1,
        up: true,
        frozen_until: Time::ZERO,
        session: false,
        back_at: Time::ZERO,
        has: BTreeMap::new(),
        awaits: BTreeMap::new(),
        room: rooms[at],
        wants: BTreeMap::new(),
        filling: BTreeMap::new(),
        sending: BTreeMap::new(),
        answers: VecDeque::new(),
        subscribed: false,
        subscription_heard: None,
        last: None,
        publishing: None,
        publishes_at: None,
        up_words: VecDeque::new(),
        unsaid: false,
        down_words: VecDeque::new(),
    };
    let mut world = World {
        random,
        plant,
        now: Time(1),
        hosts: (0..count).map(host).collect(),
        manager: None,
        manager_back_at: Time::ZERO,
        places,
        versions: 0,
        editions: BTreeMap::new(),
        births: BTreeMap::new(),
        requests: 0,
        committed: BTreeMap::new(),
        healed: false,
        hash: seed | 1,
        events: 0,
        runs: 0,
    };
    let failure = world.live().err();
    let (trace_hash, events) = (world.hash, world.events);
    let case = format!("objects asked for among {count} hosts");
    Verdict { seed, case, failure, trace_hash, events, coverage: Coverage::default() }
}

impl World<'_> {
    fn live(&mut self) -> Result<(), String> {
        let heal_at = Time(self.random.magnitude(2_000_000_000..=30_000_000_000));
        while self.now < heal_at {
            self.fail_something();
            self.wish();
            self.tick()?;
        }
        self.healed = true;
        self.manager_back_at = self.manager_back_at.min(self.now);
        for host in &mut self.hosts {
            host.back_at = host.back_at.min(self.now);
            host.frozen_until = host.frozen_until.min(self.now);
        }
        let end = self.now + LIVENESS;
        while self.now < end {
            self.tick()?;
        }
        self.check_answers()
    }

    fn key(&self, host: usize) -> AgentKey {
        AgentKey { name: format!("host-{host}"), incarnation: self.hosts[host].incarnation }
    }

    fn tick(&mut self) -> Result<(), String> {
        self.now += TICK;
        self.come_back();
        for host in (0..self.hosts.len()).filter(|host| !self.is_frozen(*host)).collect::<Vec<_>>() {
            self.beat(host);
            self.work(host);
            self.hear(host)?;
        }
        self.drain_members();
        self.speak()?;
        for host in (0..self.hosts.len()).filter(|host| !self.is_frozen(*host)).collect::<Vec<_>>() {
            self.obey(host)?;
        }
        self.check_places()
    }

    fn is_frozen(&self, host: usize) -> bool {
        self.now < self.hosts[host].frozen_until
    }

    /// The manager hears that an agent lives.
    fn beat(&mut self, host: usize) {
        let (agent, now) = (self.key(host), self.now);
        let Some(manager) = self.manager.as_mut().filter(|_| self.hosts[host].session) else { return };
        let session = manager.members.session_of(&agent).expect("a session that ends does so at both ends");
        manager.members.hear(now, &agent, session).expect("it has a session");
    }

    /// Obeys the table of agents: all that depends on a run that has ended ends with it.
    fn drain_members(&mut self) {
        let now = self.now;
        while let Some(output) = self.manager.as_mut().and_then(|manager| manager.members.poll(now)) {
            let (agent, how) = match output {
                Said::Gone { agent, how } => (agent, how),
                Said::Response { request, response } => {
                    self.answer(&request.agent, request.request, response);
                    continue;
                }
                _ => continue,
            };
            let host = index(&agent.name);
            if self.hosts[host].incarnation == agent.incarnation && self.hosts[host].session {
                // One that only was silent finds its session ended.
                let back_at = self.hosts[host].frozen_until.max(now);
                self.forget_session(host);
                let one = &mut self.hosts[host];
                (one.unsaid, one.back_at) = (true, back_at);
            }
            let is_forgotten = self.plant == Some(Plant::KeepGhosts) && how == Going::Restarted;
            if let Some(manager) = self.manager.as_mut().filter(|_| !is_forgotten) {
                manager.directory.handle(now, Input::Gone { agent });
            }
        }
    }

    fn fail_something(&mut self) {
        if !self.random.one_in(120) {
            return;
        }
        let host = self.random.below(self.hosts.len() as u64) as usize;
        match self.random.below(9) {
            0..=2 => {
                self.manager = None;
                self.committed.clear();
                self.manager_back_at = self.now + Duration(self.random.below(2_000_000_000));
                (0..self.hosts.len()).for_each(|host| self.break_session(host));
            }
            3 | 4 => {
                // Its store stays, and what it was about to do does not.
                self.break_session(host);
                let back_at = self.now + Duration(self.random.below(5_000_000_000));
                let one = &mut self.hosts[host];
                (one.up, one.back_at) = (false, back_at);
                one.wants.clear();
                one.filling.clear();
                one.sending.clear();
                one.awaits.clear();
                (one.publishing, one.publishes_at, one.subscribed, one.last) = (None, None, false, None);
                one.incarnation += 1;
                // A supervisor restarts most of them at once.
                if self.random.one_in(2) {
                    self.hosts[host].back_at = self.now + Duration(self.random.below(300_000_000));
                }
            }
            5 => {
                let until = self.now + Duration(self.random.below(9_000_000_000));
                let one = &mut self.hosts[host];
                one.frozen_until = until;
                one.unsaid |= !one.session;
            }
            _ => self.break_session(host),
        }
    }

    /// Breaks a session: messages on their way are lost.
    fn break_session(&mut self, host: usize) {
        let key = self.key(host);
        let back_at = self.now + Duration(self.random.below(BACK_WITHIN.0));
        // One that is on its way back comes as soon as before: what is away for longer counts as dead, and
        // its origins are read again.
        if self.forget_session(host) {
            self.hosts[host].back_at = back_at;
            let now = self.now;
            if let Some(Manager { members, .. }) = &mut self.manager
                && let Some(session) = members.session_of(&key)
            {
                members.handle(now, Happens::Parted { agent: key, session });
            }
        }
    }

    /// Forgets a session: messages on their way are lost; returns true if there was a session.
    fn forget_session(&mut self, host: usize) -> bool {
        let is_frozen = self.is_frozen(host);
        let one = &mut self.hosts[host];
        // One that is frozen may come back after it has counted as dead.
        one.unsaid |= !one.up_words.is_empty() || is_frozen;
        one.up_words.clear();
        one.down_words.clear();
        one.answers.clear();
        one.subscription_heard = None;
        core::mem::replace(&mut one.session, false)
    }

    fn come_back(&mut self) {
        if self.manager.is_none() && self.now >= self.manager_back_at {
            self.runs += 1;
            let config = DirectoryConfig {
                window: Duration::from_millis(50),
                settle: if self.plant == Some(Plant::NoSettling) { Duration(1) } else { SETTLE },
                ..DirectoryConfig::default()
            };
            let directory = Directory::new(config, self.now, self.runs << 32);
            let places = if self.plant == Some(Plant::NoPlaces) { 1_000 } else { self.places };
            self.manager = Some(Manager { members: members(places), directory });
        }
        for host in 0..self.hosts.len() {
            let one = &mut self.hosts[host];
            if one.session || self.now < one.back_at || self.now < one.frozen_until || self.manager.is_none()
            {
                continue;
            }
            one.up = true;
            if self.join(host) {
                self.say_all(host);
                let waiting = self.hosts[host].sending.iter().filter(|(_, sending)| sending.path.is_none());
                let waiting: Vec<u64> = waiting.map(|(request, _)| *request).collect();
                if self.plant != Some(Plant::AskOnce) {
                    waiting.into_iter().for_each(|request| self.ask(host, request));
                }
            }
        }
    }

    /// An agent's session begins; what the run before had is forgotten only then: this one may be about to
    /// say it again.
    fn join(&mut self, host: usize) -> bool {
        let (agent, now) = (self.key(host), self.now);
        let from = [10, 0, 0, host as u8].into();
        let join = Join { agent: agent.clone(), address: (from, 7401), from, leases: Vec::new() };
        let Some(manager) = &mut self.manager else { return false };
        manager.members.handle(now, Happens::Join(join));
        if manager.members.session_of(&agent).is_none() {
            return false;
        }
        manager.directory.handle(now, Input::Arrived { agent });
        self.hosts[host].session = true;
        self.drain_members();
        true
    }

    fn say(&mut self, host: usize, input: Input) {
        let delay = Duration(self.random.below(DELAY.0));
        let one = &mut self.hosts[host];
        if one.session {
            // In order.
            let at = one.up_words.back().map_or(Time::ZERO, |(at, _)| *at).max(self.now + delay);
            one.up_words.push_back((at, input));
        } else {
            one.unsaid = true;
        }
    }

    fn say_all(&mut self, host: usize) {
        let (agent, now) = (self.key(host), self.now);
        let is_ageless = self.plant == Some(Plant::NoAges);
        let one = &mut self.hosts[host];
        one.unsaid = false;
        let mut words = Vec::new();
        if self.plant != Some(Plant::ForgetHave) {
            let age = |held: &Held| if is_ageless { Duration::ZERO } else { now.since(held.since) };
            words.extend(one.has.iter().map(|(object, held)| have(&agent, *object, held.edition, age(held))));
        }
        let serves = one.sending.values().map(|sending| sending.serve).collect();
        words.push(Input::Serving { agent: agent.clone(), serves });
        for (object, wish) in &one.wants {
            let wish = Wish { fills: one.filling.contains_key(object), ..*wish };
            words.push(Input::Want { agent: agent.clone(), object: *object, wish });
        }
        if let Some(version) = one.last.clone() {
            let topic = TOPIC.to_string();
            words.push(Input::Committed { agent: agent.clone(), app: APP, topic, version });
        }
        if one.subscribed {
            words.push(Input::Subscribe { agent: agent.clone(), app: APP, topic: TOPIC.to_string() });
        }
        if let Some(version) = one.publishing.clone() {
            words.push(publish(&agent, version));
        }
        words.push(Input::Told { agent });
        words.into_iter().for_each(|word| self.say(host, word));
    }

    /// A host asks for something, or has it no more.
    fn wish(&mut self) {
        if self.random.one_in(1_500) {
            self.crowd();
        }
        if self.random.one_in(400) {
            self.replace();
        }
        if !self.random.one_in(20) {
            return;
        }
        let host = self.random.below(self.hosts.len() as u64) as usize;
        if !self.hosts[host].up {
            return;
        }
        let (agent, wanted) = (self.key(host), object(self.random.below(OBJECTS)));
        match self.random.below(10) {
            0..5 => {
                let wish = Wish {
                    can_fill: !self.random.one_in(3),
                    waits: self.random.one_in(4),
                    fills: self.hosts[host].filling.contains_key(&wanted),
                };
                if !self.hosts[host].has.contains_key(&wanted) {
                    self.hosts[host].wants.insert(wanted, wish);
                    self.say(host, Input::Want { agent, object: wanted, wish });
                }
            }
            5 => {
                let one = &mut self.hosts[host];
                if !one.filling.contains_key(&wanted) && one.wants.remove(&wanted).is_some() {
                    self.say(host, Input::Unwant { agent, object: wanted });
                }
            }
            6 => {
                let one = &mut self.hosts[host];
                if !one.sends(wanted) && one.has.remove(&wanted).is_some() {
                    self.say(host, Input::Lost { agent, object: wanted });
                }
            }
            7 | 8 => {
                let was_subscribed = core::mem::replace(&mut self.hosts[host].subscribed, true);
                if !was_subscribed {
                    self.say(host, Input::Subscribe { agent, app: APP, topic: TOPIC.to_string() });
                }
            }
            _ if self.hosts[host].publishing.is_none() => {
                // Each goes by what it knows; others may publish at the same moment.
                self.versions += 1;
                let number = self.hosts[host].last.as_ref().map_or(1, |last| last.number + 1);
                let version = Version { number, object: object(VERSIONS + self.versions) };
                let one = &mut self.hosts[host];
                one.has.insert(version.object, Held { edition: 0, since: self.now, is_late: false });
                one.publishing = Some(version.clone());
                self.say(host, have(&agent, version.object, 0, Duration::ZERO));
                self.say(host, publish(&agent, version));
            }
            _ => {}
        }
    }

    /// Does the work of a host by itself: transfers and reads end.
    fn work(&mut self, host: usize) {
        let (agent, now) = (self.key(host), self.now);
        if self.hosts[host].publishes_at.take_if(|at| *at <= now).is_some()
            && let Some(version) = self.hosts[host].publishing.clone()
        {
            self.say(host, publish(&agent, version));
        }
        let done: Vec<ObjectId> = self.hosts[host]
            .filling
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(object, _)| *object)
            .collect();
        for object in done {
            self.hosts[host].filling.remove(&object);
            if self.random.one_in(4) {
                let reason = "no such page".to_string();
                self.say(host, Input::FillFailed { agent: agent.clone(), object, reason });
            } else if !self.receive(host, object, self.editions.get(&object).copied().unwrap_or(0)) {
                let reason = "its store is full".to_string();
                self.say(host, Input::FillFailed { agent: agent.clone(), object, reason });
            }
        }
        let come = self.hosts[host].awaits.iter().filter(|(_, (_, at))| *at <= now);
        let come: Vec<(ObjectId, u64)> = come.map(|(object, (edition, _))| (*object, *edition)).collect();
        for (object, edition) in come {
            self.hosts[host].awaits.remove(&object);
            self.receive(host, object, edition);
        }
        self.hear_of_paths(host);
        let over = |sending: &Sending| sending.path.is_some_and(|(_, ends_at)| ends_at <= now);
        let ended = self.hosts[host].sending.iter().filter(|(_, sending)| over(sending));
        let ended: Vec<u64> = ended.map(|(request, _)| *request).collect();
        ended.into_iter().for_each(|request| self.end(host, request));
    }

    /// A transfer is over: each receiver has the object, or it was lost on its way.
    fn end(&mut self, host: usize, request: u64) {
        let (agent, now) = (self.key(host), self.now);
        let Some(Sending { serve, object, receivers, missed, path }) =
            self.hosts[host].sending.remove(&request)
        else {
            return;
        };
        let edition = self.hosts[host].has.get(&object).map(|held| held.edition);
        let outcomes = receivers.into_iter().map(|name| {
            let receiver = index(&name);
            let comes = path.is_some() && self.hosts[receiver].up && !missed.contains(&name);
            let edition = edition.filter(|_| comes && !self.random.one_in(8));
            let gets = edition.is_some_and(|edition| self.receive(receiver, object, edition));
            (name, if gets { Ok(()) } else { Err("it was lost on the way".to_string()) })
        });
        let outcomes = outcomes.collect();
        self.say(host, Input::Served { agent: agent.clone(), serve, outcomes });
        if let Some((plan, _)) = path
            && self.hosts[host].session
            && let Some(manager) = &mut self.manager
        {
            manager.members.handle(now, Happens::Release { request: agent.request(request), plan });
        }
    }

    /// An object has come; gives whether the store had room for it.
    fn receive(&mut self, host: usize, object: ObjectId, edition: u64) -> bool {
        let (agent, since) = (self.key(host), self.now);
        let is_late = self.editions.get(&object).is_some_and(|last| edition < *last);
        let one = &mut self.hosts[host];
        if !one.has.contains_key(&object) && one.is_full() && object.data.0 < VERSIONS {
            // What is being sent, or comes to be a version, stays.
            let goes = one.has.keys().find(|other| other.data.0 < VERSIONS && !one.sends(**other)).copied();
            let Some(goes) = goes else { return false };
            one.has.remove(&goes);
            self.say(host, Input::Lost { agent: agent.clone(), object: goes });
        }
        let one = &mut self.hosts[host];
        one.wants.remove(&object);
        one.filling.remove(&object);
        one.awaits.remove(&object);
        self.births.entry((object, edition)).or_insert(since);
        if let Entry::Vacant(place) = one.has.entry(object) {
            place.insert(Held { edition, since, is_late });
            self.say(host, have(&agent, object, edition, Duration::ZERO));
        }
        true
    }

    /// The manager hears what a host has said.
    fn hear(&mut self, host: usize) -> Result<(), String> {
        let now = self.now;
        while let Some((at, _)) = self.hosts[host].up_words.front()
            && *at <= now
            && let Some((_, word)) = self.hosts[host].up_words.pop_front()
            && let Some(manager) = &mut self.manager
        {
            if let Input::Have { object, age, .. } = &word
                && let Some(held) = self.hosts[host].has.get_mut(object)
            {
                // The word has waited, as in one that was frozen, and says an age of before.
                let is_late = now.since(held.since) > *age + DELAY + DELAY;
                held.is_late |= is_late && self.plant != Some(Plant::NoAges);
            }
            if matches!(word, Input::Subscribe { .. }) {
                self.hosts[host].subscription_heard.get_or_insert(now);
            }
            self.events += 1;
            manager.directory.handle(now, word);
            self.speak()?;
        }
        Ok(())
    }

    /// Sends the messages of the manager on their way.
    fn speak(&mut self) -> Result<(), String> {
        let now = self.now;
        while let Some(output) = self.manager.as_mut().and_then(|manager| manager.directory.poll(now)) {
            self.events += 1;
            self.hash = (self.hash ^ now.0 ^ self.events).wrapping_mul(0x0100_0000_01b3);
            if let Output::Fill { agent, object } = &output {
                self.check_origin(index(&agent.name), *object)?;
            }
            if let Output::Published { agent, have, missing, number, .. } = &output {
                let publisher = self.hosts.get(index(&agent.name));
                // The run before may have had another version of this number.
                let publisher = publisher.filter(|host| host.incarnation == agent.incarnation);
                let publisher = publisher.and_then(|host| host.publishing.clone());
                if let Some(version) = publisher.filter(|version| version.number == *number) {
                    self.check_commit(&version, have, missing)?;
                }
            }
            if let Output::Serve { holder, receivers, object, .. } = &output {
                check_names(receivers)?;
                self.check_edition(index(&holder.name), *object)?;
            }
            let (Output::Serve { holder: agent, .. }
            | Output::Fill { agent, .. }
            | Output::Denied { agent, .. }
            | Output::News { agent, .. }
            | Output::Published { agent, .. }
            | Output::TopicRefused { agent, .. }) = &output;
            let host = index(&agent.name);
            let delay = Duration(self.random.below(DELAY.0));
            let one = &mut self.hosts[host];
            if one.session && one.incarnation == agent.incarnation {
                let at = one.down_words.back().map_or(Time::ZERO, |(at, _)| *at).max(now + delay);
                one.down_words.push_back((at, output));
            }
        }
        Ok(())
    }

    /// No living host has an object, or reads its origin, when another one is told to.
    fn check_origin(&self, host: usize, object: ObjectId) -> Result<(), String> {
        for (at, other) in self.hosts.iter().enumerate().filter(|(at, other)| *at != host && other.up) {
            // What is on its way to the manager, or was lost on it, no manager can know.
            let is_known = !other.unsaid && other.up_words.is_empty();
            if is_known && (other.filling.contains_key(&object) || other.has.contains_key(&object)) {
                let data = object.data.0;
                return Err(format!(
                    "the origin of {data} is read twice: by host {host}, and host {at} has it"
                ));
            }
        }
        Ok(())
    }

    /// No host sends an edition of an object while another one that is known has had a younger one for some
    /// time.
    fn check_edition(&self, host: usize, object: ObjectId) -> Result<(), String> {
        // What it had when it was told may have gone since.
        let Some(sent) = self.hosts[host].has.get(&object).filter(|sent| !sent.is_late) else {
            return Ok(());
        };
        for (at, other) in self.hosts.iter().enumerate().filter(|(_, other)| other.up && other.session) {
            let is_known = !other.unsaid && other.up_words.is_empty();
            let younger = other.has.get(&object).filter(|held| held.edition > sent.edition);
            let is_younger = |held: &&Held| self.births[&(object, held.edition)] > sent.since + DELAY + DELAY;
            if let Some(held) = younger.filter(is_younger).filter(|_| is_known) {
                let (data, old, new) = (object.data.0, sent.edition, held.edition);
                return Err(format!(
                    "host {host} is to send edition {old} of object {data}, and host {at} has edition {new}"
                ));
            }
        }
        Ok(())
    }

    /// Every host that is said to have a version has it, and every subscriber is in one of the lists.
    fn check_commit(
        &mut self,
        version: &Version,
        have: &[String],
        missing: &[(String, Missed)],
    ) -> Result<(), String> {
        let Version { number, object: version } = *version;
        if self.committed.insert(number, version).is_some_and(|before| before != version) {
            return Err(format!("version {number} is committed twice, as two objects"));
        }
        if self.committed.keys().next_back().is_some_and(|last| *last > number) {
            return Err(format!("version {number} is committed after a later one"));
        }
        if let Some(name) = have.iter().find(|name| missing.iter().any(|(other, _)| other == *name)) {
            return Err(format!("version {number} is at {name}, and is not"));
        }
        for name in have {
            if !self.hosts[index(name)].has.contains_key(&version) {
                return Err(format!("version {number} is committed before {name} has it"));
            }
        }
        for (at, host) in self.hosts.iter().enumerate() {
            let name = format!("host-{at}");
            let is_named = have.contains(&name) || missing.iter().any(|(other, _)| *other == name);
            // What the manager has heard at this very moment may have come behind the commit.
            let is_subscriber = host.subscription_heard.is_some_and(|at| at < self.now);
            if host.session && is_subscriber && !is_named {
                return Err(format!("version {number} is committed, and {name} is forgotten"));
            }
        }
        Ok(())
    }

    /// A host does what it is told.
    fn obey(&mut self, host: usize) -> Result<(), String> {
        let now = self.now;
        while let Some((at, _)) = self.hosts[host].down_words.front()
            && *at <= now
            && let Some((_, word)) = self.hosts[host].down_words.pop_front()
        {
            match word {
                Output::Serve { serve, object, receivers, .. } => self.serve(host, serve, object, receivers),
                Output::Fill { object, .. } => self.fill(host, object),
                Output::Denied { object, .. } => {
                    self.hosts[host].wants.remove(&object);
                }
                Output::News { version: Some(version), committed: true, .. } => {
                    let one = &mut self.hosts[host];
                    if one.last.as_ref().is_none_or(|last| last.number < version.number) {
                        one.last = Some(version);
                    }
                }
                Output::News { .. } => {}
                Output::Published { number, .. } => {
                    self.hosts[host].publishing.take_if(|version| version.number == number);
                }
                Output::TopicRefused { number: Some(number), why, .. } => {
                    self.publish_again(host, number, why.next_number());
                }
                Output::TopicRefused { why, .. } => return Err(format!("host {host} is refused: {why}")),
            }
        }
        Ok(())
    }

    /// A version has a number that it cannot have: it takes the next one, as one that its publisher has not
    /// chosen.
    fn publish_again(&mut self, host: usize, number: u64, next: Option<u64>) {
        let at = self.now + AGAIN;
        let one = &mut self.hosts[host];
        let Some(version) = one.publishing.as_mut().filter(|version| version.number == number) else {
            return;
        };
        match next {
            Some(next) => (version.number, one.publishes_at) = (next, Some(at)),
            None => one.publishing = None,
        }
    }

    fn serve(&mut self, host: usize, serve: u64, object: ObjectId, receivers: Vec<String>) {
        if self.plant == Some(Plant::EarlyHave) {
            for name in &receivers {
                let receiver = index(name);
                let agent = self.key(receiver);
                self.say(receiver, have(&agent, object, 0, Duration::ZERO));
            }
        }
        if !self.hosts[host].has.contains_key(&object) {
            // It has made room since it was told.
            let outcome = |name| (name, Err("it has gone".to_string()));
            let outcomes = receivers.into_iter().map(outcome).collect();
            let agent = self.key(host);
            return self.say(host, Input::Served { agent, serve, outcomes });
        }
        self.requests += 1;
        let request = self.requests;
        let sending = Sending { serve, object, receivers, missed: Vec::new(), path: None };
        self.hosts[host].sending.insert(request, sending);
        self.ask(host, request);
    }

    /// Asks for the path of a transfer, once in a session.
    fn ask(&mut self, host: usize, request: u64) {
        let (agent, now) = (self.key(host), self.now);
        let one = &self.hosts[host];
        let Some(sending) = one.sending.get(&request).filter(|_| one.session) else { return };
        let request = PathRequest {
            agent,
            request,
            object: sending.object,
            object_bytes: 1,
            remaining_bytes: 1,
            further_sources: Vec::new(),
            receivers: Receivers::Named(sending.receivers.clone()),
            divisible: false,
            lease: None,
            wish: Default::default(),
        };
        if let Some(manager) = &mut self.manager {
            manager.members.handle(now, Happens::Request(request));
        }
    }

    /// The manager says what becomes of a request for a path.
    fn answer(&mut self, agent: &AgentKey, request: u64, response: Result<Grant, Denial>) {
        let delay = Duration(self.random.below(DELAY.0));
        let at = self.now + delay;
        let Some(one) = self.hosts.get_mut(index(&agent.name)) else { return };
        if one.session && one.incarnation == agent.incarnation {
            one.answers.push_back((at, request, response));
        }
    }

    /// A host hears of the paths that it has asked for.
    fn hear_of_paths(&mut self, host: usize) {
        let now = self.now;
        while let Some((at, ..)) = self.hosts[host].answers.front()
            && *at <= now
            && let Some((_, request, response)) = self.hosts[host].answers.pop_front()
        {
            match response {
                Ok(grant) => {
                    let ends_at = now + Duration(self.random.magnitude(20_000_000..=3_000_000_000));
                    if let Some(sending) = self.hosts[host].sending.get_mut(&request) {
                        sending.path = Some((grant.plan_id, ends_at));
                        sending.missed = grant.missed;
                    }
                }
                // It asks again when it has joined.
                Err(Denial::NotMember(_)) => {}
                Err(_) => self.end(host, request),
            }
        }
    }

    /// Every host asks for many objects at one moment.
    fn crowd(&mut self) {
        // Where receivers take one at a time, more would take longer than is waited for.
        let many = self.random.within(2..=10 * self.places.min(4) as u64);
        for host in (0..self.hosts.len()).filter(|host| self.hosts[*host].up).collect::<Vec<_>>() {
            for data in CROWD..CROWD + many {
                let (agent, wanted) = (self.key(host), object(data));
                let wish = Wish { can_fill: true, waits: false, fills: false };
                let one = &mut self.hosts[host];
                if !one.has.contains_key(&wanted) && !one.wants.contains_key(&wanted) {
                    one.wants.insert(wanted, wish);
                    self.say(host, Input::Want { agent, object: wanted, wish });
                }
            }
        }
    }

    /// A host replaces an object at itself and at others: those that are there give up what they have, and
    /// get the new one a little later.
    fn replace(&mut self) {
        let source = self.random.below(self.hosts.len() as u64) as usize;
        let replaced = object(self.random.below(OBJECTS));
        // While one takes its place no other one does.
        if self.hosts.iter().any(|host| host.awaits.contains_key(&replaced)) {
            return;
        }
        let edition = self.editions.entry(replaced).or_default();
        *edition += 1;
        let edition = *edition;
        for host in 0..self.hosts.len() {
            let is_meant = host == source || self.random.one_in(2);
            let one = &self.hosts[host];
            if !is_meant || !one.up || !one.session || self.is_frozen(host) || one.sends(replaced) {
                continue;
            }
            let agent = self.key(host);
            let comes_at = self.now + Duration(self.random.magnitude(TICK.0..=2_000_000_000));
            let one = &mut self.hosts[host];
            one.awaits.insert(replaced, (edition, comes_at));
            if one.has.remove(&replaced).is_some() {
                self.say(host, Input::Lost { agent, object: replaced });
            }
        }
    }

    /// No receiver has more transfers than it takes. A run of one that has ended is another receiver.
    fn check_places(&self) -> Result<(), String> {
        let mut taken: BTreeMap<HostId, usize> = BTreeMap::new();
        for lease in self.manager.iter().flat_map(|manager| manager.members.leases()) {
            let Channel::Chain { order } = &lease.grant.plan.channel else { continue };
            for receiver in order {
                let count = taken.entry(*receiver).or_default();
                *count += 1;
                if *count > self.places {
                    let names: Vec<&String> = lease.grant.receiver_names().collect();
                    return Err(format!("one of {names:?} has more transfers at once than {}", self.places));
                }
            }
        }
        Ok(())
    }

    /// Reads an origin.
    fn fill(&mut self, host: usize, object: ObjectId) {
        let one = &self.hosts[host];
        if one.filling.contains_key(&object) || one.has.contains_key(&object) {
            return;
        }
        let agent = self.key(host);
        if !one.wants.get(&object).is_some_and(|wish| wish.can_fill) {
            let reason = "no process here asks for it".to_string();
            return self.say(host, Input::FillFailed { agent, object, reason });
        }
        let ends_at = self.now + Duration(self.random.magnitude(20_000_000..=4_000_000_000));
        self.hosts[host].filling.insert(object, ends_at);
    }

    fn check_answers(&self) -> Result<(), String> {
        let last = self.manager.as_ref().and_then(|manager| manager.directory.committed(TOPIC)).cloned();
        for (at, host) in self.hosts.iter().enumerate() {
            let waits_on = |wish: &Wish| !wish.waits;
            if let Some((object, _)) = host.wants.iter().find(|(_, wish)| waits_on(wish)) {
                return Err(format!("host {at} was not answered about object {}", object.data.0));
            }
            if let Some(version) = &host.publishing {
                return Err(format!("host {at} was not answered about version {}", version.number));
            }
            let held =
                last.as_ref().filter(|last| self.hosts.iter().any(|one| one.has.contains_key(&last.object)));
            if let Some(last) = held
                && host.subscribed
                && !host.has.contains_key(&last.object)
                && self.healed
                && host.last.as_ref().is_some_and(|known| known.number > last.number)
            {
                return Err(format!("host {at} has a version above {}, the last", last.number));
            }
        }
        Ok(())
    }
}

impl Host {
    /// Returns true if it sends an object, or is about to.
    fn sends(&self, object: ObjectId) -> bool {
        self.sending.values().any(|sending| sending.object == object)
    }

    fn is_full(&self) -> bool {
        self.has.keys().filter(|object| object.data.0 < VERSIONS).count() >= self.room
    }
}

/// Draws the number of objects that a store has room for.
fn room(random: &mut Random) -> usize {
    if random.one_in(3) { random.within(1..=4) as usize } else { usize::MAX }
}

/// A table of agents that knows none yet; a receiver takes so many transfers at once.
fn members(places: usize) -> Leases {
    let config = LeasesConfig {
        lease: Duration::from_secs(30),
        silence: SILENCE,
        sessions: SessionsConfig { reconnect: RECONNECT, ..SessionsConfig::default() },
        pending_max: 256,
        leases_max: 64,
        agent_leases_max: 16,
        receiver_leases_max: places,
        grant_bytes_max: u64::MAX,
        agents_max: 64,
        on_device_failure: OnDeviceFailure::Fallback,
        kept_max: 0,
        patience: SILENCE,
        claims: None,
        recorded: false,
        first_plan: PlanId(1),
    };
    Leases::new(config, Fabrics::new(vec![Box::new(TcpChain)]), Box::new(Fcfs))
}

/// No receiver is named twice: the path that is asked for would be denied.
fn check_names(receivers: &[String]) -> Result<(), String> {
    let names: BTreeSet<&String> = receivers.iter().collect();
    if names.len() < receivers.len() {
        return Err(format!("an object is to go to {receivers:?}, some of whom are named twice"));
    }
    Ok(())
}

fn index(name: &str) -> usize {
    name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(usize::MAX)
}

fn have(agent: &AgentKey, object: ObjectId, edition: u64, age: Duration) -> Input {
    let root = Some([(object.data.0 ^ edition << 4) as u8; 32]);
    Input::Have { agent: agent.clone(), object, length: 1, root, age }
}

fn publish(agent: &AgentKey, version: Version) -> Input {
    let patience = Some(Duration::from_millis(8_000));
    Input::Publish { agent: agent.clone(), app: APP, topic: TOPIC.to_string(), version, patience }
}
