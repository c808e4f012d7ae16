//! Cases of objects that are asked for, and of topics: the manager's directory and its table of agents, agents that crash and are
//! back before, at and after the time that they have for it, that freeze and go on, sessions that break with what was on its
//! way, a manager that begins anew, origins that fail, and transfers that some do not get.
//!
//! A run of an agent that has ended has nothing and asks for nothing; no receiver is named twice. No origin is read while a living
//! host has the object or reads it already. Several hosts publish, and each goes by the numbers that it knows: a version is
//! committed when every subscriber has it or is named, and no number twice. In the end every wish has its answer, and every
//! subscriber the last version.

use super::coverage::Coverage;
use super::draw::Random;
use super::{Plant, Verdict};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{Fabrics, Fcfs, PlanId};
use polycast_protocol::directory::{
    Directory, DirectoryConfig, DirectoryInput as Input, DirectoryOutput as Output, Version, Wish,
};
use polycast_protocol::leases::{
    AgentKey, Going, Input as Happens, Join, Leases, LeasesConfig, OnDeviceFailure, Output as Said,
    SessionsConfig,
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
const TOPIC: &str = "t";
const APP: AppId = AppId([0; 16]);

fn object(data: u64) -> ObjectId {
    ObjectId { app: APP, data: DataId(data) }
}

struct Sending {
    object: ObjectId,
    receivers: Vec<String>,
    ends_at: Time,
}

struct Host {
    incarnation: u64,
    up: bool,
    /// It does and hears nothing until then.
    frozen_until: Time,
    session: bool,
    /// When it comes back, or its session does.
    back_at: Time,
    has: BTreeSet<ObjectId>,
    wants: BTreeMap<ObjectId, Wish>,
    /// What it reads from an origin, and when that ends.
    filling: BTreeMap<ObjectId, Time>,
    sending: BTreeMap<u64, Vec<Sending>>,
    subscribed: bool,
    /// Whether the manager of now has heard so.
    subscription_heard: Option<Time>,
    last: Option<Version>,
    publishing: Option<Version>,
    /// When it is said again under another number.
    publishes_at: Option<Time>,
    up_words: VecDeque<(Time, Input)>,
    /// Something happened here that no manager was told.
    unsaid: bool,
    down_words: VecDeque<(Time, Output)>,
}

/// What a manager knows, as `manager::core` has it: which agents are there, and what they have.
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
    versions: u64,
    /// What this manager has committed.
    committed: BTreeMap<u64, ObjectId>,
    healed: bool,
    hash: u64,
    events: u64,
    runs: u64,
}

pub(super) fn run(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    let count = random.within(2..=6) as usize;
    let host = |_| Host {
        incarnation: 1,
        up: true,
        frozen_until: Time::ZERO,
        session: false,
        back_at: Time::ZERO,
        has: BTreeSet::new(),
        wants: BTreeMap::new(),
        filling: BTreeMap::new(),
        sending: BTreeMap::new(),
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
        versions: 0,
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
            self.hear(host);
        }
        self.drain_members();
        self.speak()?;
        for host in (0..self.hosts.len()).filter(|host| !self.is_frozen(*host)).collect::<Vec<_>>() {
            self.obey(host)?;
        }
        Ok(())
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

    /// What the table of agents says is done: all that depends on a run that has ended ends with it.
    fn drain_members(&mut self) {
        let now = self.now;
        while let Some(output) = self.manager.as_mut().and_then(|manager| manager.members.poll(now)) {
            let Said::Gone { agent, how } = output else { continue };
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
                (one.publishing, one.publishes_at, one.subscribed, one.last) = (None, None, false, None);
                one.incarnation += 1;
                // A supervisor restarts most of them at once.
                if self.random.one_in(2) {
                    self.hosts[host].back_at = self.now + Duration(self.random.below(300_000_000));
                }
            }
            5 => {
                let until = self.now + Duration(self.random.below(9_000_000_000));
                self.hosts[host].frozen_until = until;
            }
            _ => self.break_session(host),
        }
    }

    /// What was on its way is lost.
    fn break_session(&mut self, host: usize) {
        let key = self.key(host);
        let back_at = self.now + Duration(self.random.below(BACK_WITHIN.0));
        // One that is on its way back comes as soon as before: what is away for longer counts as dead, and its origins are read again.
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

    /// What was on its way is lost; gives whether there was a session.
    fn forget_session(&mut self, host: usize) -> bool {
        let one = &mut self.hosts[host];
        one.unsaid |= !one.up_words.is_empty();
        one.up_words.clear();
        one.down_words.clear();
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
            self.manager = Some(Manager { members: members(), directory });
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
            }
        }
    }

    /// An agent's session begins; what the run before had is forgotten only then: this one may be about to say it again.
    fn join(&mut self, host: usize) -> bool {
        let (agent, now) = (self.key(host), self.now);
        let address = ([10, 0, 0, host as u8], 7401);
        let join = Join { agent: agent.clone(), address, from: address.0.into(), leases: Vec::new() };
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
        let agent = self.key(host);
        let one = &mut self.hosts[host];
        one.unsaid = false;
        let mut words = Vec::new();
        if self.plant != Some(Plant::ForgetHave) {
            words.extend(one.has.iter().map(|object| have(&agent, *object)));
        }
        let serves = one.sending.keys().copied().collect();
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
                if !self.hosts[host].has.contains(&wanted) {
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
                let is_sent = one.sending.values().flatten().any(|sending| sending.object == wanted);
                if !is_sent && one.has.remove(&wanted) {
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
                let version = Version { number, object: object(1_000 + self.versions) };
                let one = &mut self.hosts[host];
                one.has.insert(version.object);
                one.publishing = Some(version.clone());
                self.say(host, have(&agent, version.object));
                self.say(host, publish(&agent, version));
            }
            _ => {}
        }
    }

    /// What a host does by itself: transfers and readings end.
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
            } else {
                self.receive(host, object);
            }
        }
        let serves: Vec<u64> = self.hosts[host].sending.keys().copied().collect();
        for serve in serves {
            let sendings = self.hosts[host].sending.remove(&serve).unwrap_or_default();
            let (ended, going_on): (Vec<_>, Vec<_>) = sendings.into_iter().partition(|s| s.ends_at <= now);
            if !going_on.is_empty() {
                self.hosts[host].sending.insert(serve, going_on);
            }
            for Sending { object, receivers, .. } in ended {
                let is_here = self.hosts[host].has.contains(&object);
                let outcomes = receivers.into_iter().map(|name| {
                    let receiver = index(&name);
                    let gets = is_here && self.hosts[receiver].up && !self.random.one_in(8);
                    if gets {
                        self.receive(receiver, object);
                    }
                    (name, if gets { Ok(()) } else { Err("it was lost on the way".to_string()) })
                });
                let outcomes = outcomes.collect();
                self.say(host, Input::Served { agent: agent.clone(), serve, outcomes });
            }
        }
    }

    fn receive(&mut self, host: usize, object: ObjectId) {
        let agent = self.key(host);
        let one = &mut self.hosts[host];
        one.wants.remove(&object);
        one.filling.remove(&object);
        if one.has.insert(object) {
            self.say(host, have(&agent, object));
        }
    }

    /// The manager hears what a host has said.
    fn hear(&mut self, host: usize) {
        let now = self.now;
        while let Some((at, _)) = self.hosts[host].up_words.front()
            && *at <= now
            && let Some((_, word)) = self.hosts[host].up_words.pop_front()
            && let Some(manager) = &mut self.manager
        {
            if matches!(word, Input::Subscribe { .. }) {
                self.hosts[host].subscription_heard.get_or_insert(now);
            }
            self.events += 1;
            manager.directory.handle(now, word);
        }
    }

    /// What the manager says goes on its way.
    fn speak(&mut self) -> Result<(), String> {
        let now = self.now;
        while let Some(output) = self.manager.as_mut().and_then(|manager| manager.directory.poll(now)) {
            self.events += 1;
            self.hash = (self.hash ^ now.0 ^ self.events).wrapping_mul(0x0100_0000_01b3);
            if let Output::Fill { agent, object } = &output {
                self.check_origin(index(&agent.name), *object)?;
            }
            if let Output::Published { agent, have, missing, number, .. } = &output {
                let publisher = self.hosts.get(index(&agent.name)).and_then(|host| host.publishing.clone());
                if let Some(version) = publisher.filter(|version| version.number == *number) {
                    self.check_commit(&version, have, missing)?;
                }
            }
            if let Output::Serve { receivers, .. } = &output {
                check_names(receivers)?;
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
            if is_known && (other.filling.contains_key(&object) || other.has.contains(&object)) {
                let data = object.data.0;
                return Err(format!(
                    "the origin of {data} is read twice: by host {host}, and host {at} has it"
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
        missing: &[(String, String)],
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
            if !self.hosts[index(name)].has.contains(&version) {
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
                Output::News { version, committed: true, .. } => {
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

    /// A version has a number that it cannot have: it takes the next one, as one that its publisher has not chosen.
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
        let ends_at = self.now + Duration(self.random.magnitude(20_000_000..=3_000_000_000));
        if self.plant == Some(Plant::EarlyHave) {
            for name in &receivers {
                let receiver = index(name);
                let agent = self.key(receiver);
                self.say(receiver, have(&agent, object));
            }
        }
        let sending = Sending { object, receivers, ends_at };
        self.hosts[host].sending.entry(serve).or_default().push(sending);
    }

    /// Reads an origin.
    fn fill(&mut self, host: usize, object: ObjectId) {
        let one = &self.hosts[host];
        if one.filling.contains_key(&object) || one.has.contains(&object) {
            return;
        }
        let agent = self.key(host);
        if !one.wants.contains_key(&object) {
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
                last.as_ref().filter(|last| self.hosts.iter().any(|one| one.has.contains(&last.object)));
            if let Some(last) = held
                && host.subscribed
                && !host.has.contains(&last.object)
                && self.healed
                && host.last.as_ref().is_some_and(|known| known.number > last.number)
            {
                return Err(format!("host {at} has a version above {}, the last", last.number));
            }
        }
        Ok(())
    }
}

/// A table of agents that knows none yet.
fn members() -> Leases {
    let config = LeasesConfig {
        lease: Duration::from_secs(30),
        silence: SILENCE,
        sessions: SessionsConfig { reconnect: RECONNECT, ..SessionsConfig::default() },
        pending_max: 8,
        leases_max: 8,
        agent_leases_max: 8,
        receiver_leases_max: 1_000,
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

fn have(agent: &AgentKey, object: ObjectId) -> Input {
    Input::Have { agent: agent.clone(), object, length: 1, root: Some([object.data.0 as u8; 32]) }
}

fn publish(agent: &AgentKey, version: Version) -> Input {
    let patience = Some(Duration::from_millis(8_000));
    Input::Publish { agent: agent.clone(), app: APP, topic: TOPIC.to_string(), version, patience }
}
