//! Cases of the manager's core: agents that ask for paths and give them back, one manager without records or
//! several of which one leads, and what may fail of all of them (Republic section III-B). In some cases the
//! paths carry transfers ([`Wire`]); in the others a transfer is a time.
//!
//! Checked over all managers that there ever are: no resource is lent to two agents that both use it by what
//! they were told, nothing is told that is not written, numbers never repeat, a path is taken away only for a
//! reason, every receiver that was asked for has the path or is named, and after healing every request is
//! answered and everything comes back.

mod agent;
mod choice;
mod external;
mod named;
mod office;
mod store;

use super::coverage::{self, Coverage};
use super::draw::Random;
use super::wire::Wire;
use super::{Plant, Verdict};
use agent::{Agent, Ask, held, key, names, object};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use choice::Choose;
use core::fmt::Write;
use office::{Act, Call, Office, Settings};
use polycast_planning::{Channel, DeviceCommand, Failure, Plan, PlanId, Resource};
use polycast_protocol::leases::{
    AgentKey, Denial, Grant, HeldLease, Input, Join, OnDeviceFailure, Output, PathRequest, Receivers,
    ReleaseReason,
};
use polycast_types::{Duration, Time};

const LEASE: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_secs(4);
const BEAT: Duration = Duration::from_secs(1);
/// An agent that lost its session has so long to come back, and so long where there is a new leader.
const RECONNECT: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(4);
/// An agent whose heartbeat has no answer by then looks for a manager.
const ANSWER: Duration = Duration::from_secs(3);
/// After healing every agent has been answered within this time: leases that no agent names have expired by
/// then.
const LIVENESS: Duration = Duration::from_secs(120);
/// Age that information may have when it reaches an agent.
const LATELY: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(250);

struct World {
    office: Office,
    /// Set if managers choose fabrics by time.
    by_time: bool,
    agents: Vec<Agent>,
    next_request: u64,
    /// Time at which each address was last seen to be leased, by lease.
    lent: BTreeMap<Resource, BTreeMap<PlanId, Time>>,
    /// Time at which managers took back a resource of a lease, because it failed or its time was over.
    revoked: BTreeMap<(PlanId, Resource), Time>,
    /// Channel over which the leading manager leads each path, and the time since when.
    ways: BTreeMap<PlanId, (Channel, Time)>,
    /// Time at which each resource was last out of use.
    failed_at: BTreeMap<Resource, Time>,
    plant: Option<Plant>,
    /// Transfers over the paths, where they are simulated too.
    wire: Option<Wire>,
    coverage: Coverage,
    events: u64,
    trace: Trace,
}

/// A hash of everything that was said.
struct Trace(u64);

impl Write for Trace {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}

fn name(agent: usize) -> String {
    format!("host-{agent}")
}

fn index(name: &str) -> usize {
    name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(usize::MAX)
}

fn settings(seed: u64, random: &mut Random) -> Settings {
    let recorded = random.one_in(2);
    Settings {
        agents: random.within(2..=6) as usize,
        addresses: random.within(1..=4) as u32,
        chain: random.one_in(3),
        choose: Choose::draw(seed),
        circuits: random.one_in(3),
        kept_max: random.below(3) as usize,
        grant_bytes_max: if random.one_in(2) { 400 } else { u64::MAX },
        places: places(seed),
        on_device_failure: if random.one_in(2) { OnDeviceFailure::Wait } else { OnDeviceFailure::Fallback },
        managers: if recorded { random.within(1..=3) as usize } else { 1 },
        recorded,
        external: external::draw(seed),
    }
}

/// Draws the number of transfers that a receiver takes at once: few in half of all cases. None of the other
/// draws depends on it.
fn places(seed: u64) -> usize {
    let mut random = Random::new(seed.rotate_left(32));
    if random.one_in(2) { random.within(1..=3) as usize } else { 1_000 }
}

pub(super) fn run(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    let settings = settings(seed, random);
    let count = settings.agents;
    let wire = random.one_in(3).then(|| Wire::new(random, count, seed, plant));
    let case = format!(
        "manager of {count} agents{}, {} addresses{}{}{}{}",
        if settings.recorded {
            format!(", one of {} with records", settings.managers)
        } else {
            String::new()
        },
        settings.addresses,
        if settings.chain { ", a chain behind them" } else { "" },
        if settings.circuits { ", circuits" } else { "" },
        if settings.choose.is_by_time() { ", chosen by time" } else { "" },
        if wire.is_some() { ", transfers over the paths" } else { "" }
    );
    let mut world = World {
        by_time: settings.choose.is_by_time(),
        office: Office::new(settings, plant),
        agents: (0..count).map(|_| Agent::new()).collect(),
        next_request: 0,
        lent: BTreeMap::new(),
        revoked: BTreeMap::new(),
        ways: BTreeMap::new(),
        failed_at: BTreeMap::new(),
        plant,
        wire,
        coverage: Coverage::default(),
        events: 0,
        trace: Trace(seed | 1),
    };
    let failure = world.live(random).err();
    let (hash, events) = world.wire.as_ref().map_or((0, 0), Wire::trace);
    let mut coverage = world.coverage;
    world.wire.iter().for_each(|wire| coverage.merge(&wire.coverage()));
    coverage.merge(&world.office.coverage);
    let (trace_hash, events) = (world.trace.0 ^ hash, world.events + events);
    Verdict { seed, case, failure, trace_hash, events, coverage }
}

impl World {
    fn live(&mut self, random: &mut Random) -> Result<(), String> {
        let heal_at = Time(random.magnitude(5_000_000_000..=90_000_000_000));
        let mut now = Time(1);
        while now < heal_at {
            self.fail_something(random, now, heal_at);
            self.step(random, now, true)?;
            now += STEP;
        }
        for agent in &mut self.agents {
            (agent.down_until, agent.calls_cut, agent.answers_cut) = (now, now, now);
        }
        for failure in core::mem::take(&mut self.office.failed) {
            if let Failure::Resource(resource) = failure {
                self.failed_at.insert(resource, now);
            }
        }
        self.office.heal(now);
        self.wire.iter_mut().for_each(Wire::heal);
        let end = now + LIVENESS;
        while now < end {
            self.step(random, now, false)?;
            now += STEP;
            let idle = self.agents.iter().all(|agent| agent.ask.is_none() && agent.held.is_empty());
            if idle && self.wire.as_ref().is_none_or(Wire::is_done) {
                break;
            }
        }
        if let Some(at) = self.agents.iter().position(|agent| agent.ask.is_some()) {
            return Err(format!("{} was not answered within {LIVENESS} of healing", name(at)));
        }
        // What was lent to those who crashed expires, and every address can be lent again.
        let end = now + LEASE + STEP * 8;
        while now < end {
            self.step(random, now, false)?;
            now += STEP;
        }
        if let Some(wire) = &self.wire {
            wire.check()?;
        }
        self.check_all_is_back(now)
    }

    fn fail_something(&mut self, random: &mut Random, now: Time, heal_at: Time) {
        if !random.one_in(12) {
            return;
        }
        let until = now + Duration(random.magnitude(100_000_000..=40_000_000_000));
        let until = until.min(heal_at);
        let at = random.below(self.agents.len() as u64) as usize;
        match random.below(9) {
            0 => self.office.fail(random, now, until),
            1 => {
                self.coverage.hit(coverage::AGENT_CRASHES);
                self.crash(random, now, at, until);
            }
            2 => {
                self.agents[at].calls_cut = until;
                self.coverage.hit(coverage::CALLS_CUT);
            }
            3 => {
                self.agents[at].answers_cut = until;
                self.coverage.hit(coverage::ANSWERS_CUT);
            }
            4 => (self.agents[at].calls_cut, self.agents[at].answers_cut) = (until, until),
            5 => {
                if self.agents[at].session.is_some() {
                    self.coverage.hit(coverage::SESSION_BREAKS);
                    self.hang_up(now, at);
                }
            }
            6 if random.one_in(3) => self.office.doubt(random, now),
            6 | 7 => self.fail_resource(random, now),
            _ => {
                if self.agents[at].session.is_some() && now >= self.agents[at].down_until {
                    self.coverage.hit(coverage::AGENT_LEAVES);
                    let agent = self.key(at);
                    self.call(at, Input::Leave { agent, keeps: false });
                    self.deliver(now, at);
                    self.crash(random, now, at, until);
                }
            }
        }
    }

    /// An agent crashes; its manager may see that at once.
    fn crash(&mut self, random: &mut Random, now: Time, at: usize, until: Time) {
        if random.one_in(2)
            && let Some(session) = self.agents[at].session
        {
            let agent = self.key(at);
            self.office.hang_up(now, &agent, session);
        }
        self.agents[at].restart(until);
        self.wire.iter_mut().for_each(|wire| wire.crash(now, at));
    }

    /// Something fails, or works again.
    fn fail_resource(&mut self, random: &mut Random, now: Time) {
        if !self.office.failed.is_empty() && random.one_in(2) {
            let at = random.below(self.office.failed.len() as u64) as usize;
            if let Failure::Resource(resource) = self.office.failed.remove(at) {
                self.failed_at.insert(resource, now);
            }
            return;
        }
        let used = self.used_longest(now).filter(|_| random.one_in(2));
        let resource =
            used.map(|resources| *random.pick(&resources)).unwrap_or_else(|| match random.below(3) {
                0 => Resource::CircuitPort { port: random.below(self.agents.len() as u64) as u32 },
                1 => Resource::Splitter { splitter: random.below(2) as u32 },
                _ => {
                    let address = [239, 255, 64, random.below(4) as u8].into();
                    Resource::MulticastAddress { address, port: 7410 }
                }
            });
        let failure = Failure::Resource(resource);
        if !self.office.failed.contains(&failure) {
            self.coverage.hit(coverage::RESOURCE_FAILS);
            self.office.failed.push(failure);
            self.miss_where_it_goes(random, now, resource);
        }
    }

    /// Returns the resources of the path whose transfer takes longest yet. A failure of resources that are
    /// not leased asks little of a manager.
    fn used_longest(&self, now: Time) -> Option<Vec<Resource>> {
        let lives = self.agents.iter().filter(|agent| now >= agent.down_until);
        let held = lives.flat_map(|agent| agent.held.iter().map(|(plan, held)| (agent.ends.get(plan), held)));
        let needs = held.filter(|(_, held)| !held.plan.resources.is_empty());
        needs.max_by_key(|(end, _)| *end).map(|(_, held)| held.plan.resources.to_vec())
    }

    /// The holder of a path may miss where it goes now, and may lose its session over that while its transfer
    /// goes on.
    fn miss_where_it_goes(&mut self, random: &mut Random, now: Time, resource: Resource) {
        let has = |held: &agent::Held| held.plan.resources.contains(&resource);
        let mut agents = self.agents.iter_mut();
        let holder = agents.find_map(|agent| {
            let plan = agent.held.iter().find(|(_, held)| has(held)).map(|(plan, _)| *plan);
            plan.map(|plan| (agent, plan))
        });
        let Some((agent, plan)) = holder.filter(|_| random.one_in(2)) else { return };
        self.coverage.hit(coverage::ANSWERS_CUT);
        let cut = Duration(random.magnitude(1_000_000_000..=8_000_000_000));
        agent.answers_cut = now + if random.one_in(2) { cut } else { ANSWER + cut };
        let more = Duration(random.magnitude(1_000_000_000..=8_000_000_000));
        let until = agent.answers_cut + more;
        agent.ends.entry(plan).and_modify(|end| *end = until.max(*end));
    }

    /// All agents and managers do what it is time for.
    fn step(&mut self, random: &mut Random, now: Time, new_requests: bool) -> Result<(), String> {
        self.office.advance(random, now);
        if let Some(wire) = &mut self.wire {
            wire.advance(now)?;
        }
        self.answers(random, now)?;
        for at in 0..self.agents.len() {
            if now < self.agents[at].down_until {
                continue;
            }
            self.wire.iter_mut().for_each(|wire| wire.is_up(now, at));
            self.keep_session(now, at);
            self.answers(random, now)?;
            self.end_transfers(now, at);
            self.ask_for_the_rest(now, at);
            if new_requests {
                self.wish(random, now, at);
            }
            self.ask(now, at);
            self.deliver(now, at);
            self.answers(random, now)?;
            // How long the transfers take that have begun.
            let agent = &mut self.agents[at];
            for plan in agent.held.keys() {
                let takes = Duration(random.magnitude(100_000_000..=20_000_000_000));
                agent.ends.entry(*plan).or_insert(now + takes);
            }
        }
        self.office.advance(random, now);
        self.answers(random, now)?;
        self.check_claims(now)?;
        self.check_ways(now)?;
        self.check(now)
    }

    /// Joins a manager, says that it lives, and gives up a session that is none any more.
    fn keep_session(&mut self, now: Time, at: usize) {
        let agent = self.key(at);
        let waits = self.agents[at].beats.front().is_some_and(|sent| now.since(*sent) >= ANSWER);
        let is_cut = now < self.agents[at].calls_cut || now < self.agents[at].answers_cut;
        if let Some(session) = self.agents[at].session
            && (waits || !is_cut && !self.office.is_there(&agent, session))
        {
            self.hang_up(now, at);
        }
        if self.agents[at].session.is_none() {
            self.join(now, at);
        }
        if self.agents[at].session.is_some() && now >= self.agents[at].next_beat {
            self.agents[at].next_beat = now + BEAT;
            self.agents[at].beats.push_back(now);
            let leases = self.agents[at].held.keys().copied().collect();
            self.call(at, Input::Heartbeat { agent, leases });
        }
        self.deliver(now, at);
    }

    fn hang_up(&mut self, now: Time, at: usize) {
        let agent = self.key(at);
        if let Some(session) = self.agents[at].session.filter(|_| now >= self.agents[at].calls_cut) {
            self.office.hang_up(now, &agent, session);
        }
        self.agents[at].hang_up();
    }

    fn join(&mut self, now: Time, at: usize) {
        if now < self.agents[at].calls_cut {
            return;
        }
        let forgets = self.plant == Some(Plant::ForgetLease);
        let held = self.agents[at].held.values();
        let leases = if forgets { Vec::new() } else { held.map(|held| held.named(now)).collect() };
        let from = [10, 0, 0, at as u8].into();
        let mut join = Join { agent: self.key(at), address: (from, 7401), from, leases };
        if self.plant == Some(Plant::MissReplan) {
            self.name_as_lent(now, &mut join);
        }
        let manager = self.agents[at].tries % self.office.count();
        let joined = self.office.join(now, manager, join);
        let agent = &mut self.agents[at];
        // An answer that does not get here is none.
        match joined.filter(|_| now >= agent.answers_cut) {
            // Its first heartbeat tells what it has lost.
            Some(Ok(session)) => (agent.session, agent.next_beat) = (Some(session), now),
            Some(Err(_)) | None => agent.tries += 1,
        }
        if agent.session.is_some() {
            let owed = agent.owed.clone();
            owed.into_iter().for_each(|(request, plan, _)| self.say_owed(at, request, plan));
        }
    }

    /// The plant: the manager cannot see that the holder of a path has not heard where it goes now.
    fn name_as_lent(&self, now: Time, join: &mut Join) {
        let Some(core) = self.office.leading(now) else { return };
        for held in &mut join.leases {
            if let Some(lease) = core.leases.leases().find(|lease| lease.grant.plan_id == held.plan) {
                held.channel = lease.grant.plan.channel.clone();
            }
        }
    }

    fn say_owed(&mut self, at: usize, request: u64, plan: Option<PlanId>) {
        let request = self.key(at).request(request);
        self.call(
            at,
            match plan {
                Some(plan) => Input::Release { request, plan },
                None => Input::Withdraw { request },
            },
        );
    }

    /// Gives something back, and says so until that is confirmed.
    fn owe(&mut self, now: Time, at: usize, request: u64, plan: Option<PlanId>) {
        self.agents[at].owed.push((request, plan, now));
        self.say_owed(at, request, plan);
    }

    fn end_transfers(&mut self, now: Time, at: usize) {
        let wire = self.wire.as_ref();
        let is_over = |plan: PlanId, end: Time| wire.map_or(now >= end, |wire| wire.is_over(plan));
        let ends = self.agents[at].ends.iter();
        let over: Vec<PlanId> =
            ends.filter(|(plan, end)| is_over(**plan, **end)).map(|(plan, _)| *plan).collect();
        for plan in over {
            self.agents[at].ends.remove(&plan);
            self.wire.iter_mut().for_each(|wire| wire.release(plan));
            let Some(held) = self.agents[at].held.remove(&plan) else { continue };
            self.say_how_it_fared(at, &held.lease, plan);
            self.owe(now, at, held.lease.request, Some(plan));
            // What the path was not granted for needs another one.
            if held.rest > 0 && self.agents[at].ask.is_none() {
                self.next_request += 1;
                let receivers = Receivers::Named(held.lease.receivers);
                let ask = self.new_ask(now, receivers);
                self.agents[at].ask = Some(Ask { bytes: held.rest, divisible: true, ..ask });
            }
        }
    }

    /// Some transfers have not reached all receivers, and some have.
    fn say_how_it_fared(&mut self, at: usize, lease: &HeldLease, plan: PlanId) {
        let unreached: Vec<String> = match plan.0 % 4 {
            0 => lease.receivers.clone(),
            1 => lease.receivers.iter().take(1).cloned().collect(),
            _ => Vec::new(),
        };
        let (request, reached_all) = (self.key(at).request(lease.request), plan.0 % 4 == 2);
        // Some have looked at no clock, and some lie.
        let took = match plan.0 / 4 % 4 {
            _ if !self.by_time => None,
            0 => None,
            1 => Some(Duration::ZERO),
            2 => Some(Duration(u64::MAX)),
            _ => Some(Duration::from_millis(plan.0 % 1_000)),
        };
        let (agent, all) = (self.key(at), lease.receivers.iter());
        let reachable = all.filter(|name| !unreached.contains(name)).cloned().collect();
        let unreachable = unreached.clone();
        self.call(at, Input::Fared { request, plan, unreached, reached_all, took });
        self.call(at, Input::Reached { agent, unreachable, reachable });
    }

    fn new_ask(&self, now: Time, receivers: Receivers) -> Ask {
        Ask {
            number: self.next_request,
            receivers,
            object_bytes: 1_000,
            bytes: 1_000,
            divisible: false,
            lease: None,
            said: None,
            asked_at: None,
            not_before: now,
        }
    }

    /// Asks for a path, or for something else of what it has.
    fn wish(&mut self, random: &mut Random, now: Time, at: usize) {
        if self.agents[at].ask.is_none() {
            if random.one_in(6) {
                self.next_request += 1;
                let others = (0..self.agents.len()).filter(|&other| other != at);
                let mut receivers: Vec<String> = others.filter(|_| random.one_in(2)).map(name).collect();
                if receivers.is_empty() {
                    receivers = vec![name((at + 1) % self.agents.len())];
                }
                let all = self.wire.is_none() && random.one_in(6);
                let receivers = if all { Receivers::All } else { Receivers::Named(receivers) };
                let mut ask = self.new_ask(now, receivers);
                ask.divisible = self.wire.is_none() && random.one_in(2);
                if self.by_time {
                    ask.object_bytes = *random.pick(&[1_000, 1_000_000, 100_000_000]);
                    ask.bytes = if ask.divisible { 1_000 } else { ask.object_bytes };
                }
                ask.lease =
                    random.one_in(6).then(|| Duration(random.magnitude(500_000_000..=20_000_000_000)));
                self.agents[at].ask = Some(ask);
            }
        } else if self.wire.is_none() && random.one_in(40) {
            // The agent does not wait for it any more.
            if let Some(ask) = self.agents[at].ask.take().filter(|ask| ask.asked_at.is_some()) {
                self.owe(now, at, ask.number, None);
            }
        }
        if self.wire.is_none() && random.one_in(16) {
            self.extend(random, now, at);
        }
    }

    /// Changes the time or the group of what it asks for, or has.
    fn extend(&mut self, random: &mut Random, now: Time, at: usize) {
        if self.agents[at].session.is_none() {
            return;
        }
        let waits = self.agents[at].ask.as_ref().filter(|ask| ask.asked_at.is_some()).map(|ask| ask.number);
        let held = self.agents[at].held.values().next().map(|held| held.lease.request);
        let Some(request) = held.or(waits) else { return };
        let time = random.one_in(3).then(|| Duration(random.magnitude(500_000_000..=20_000_000_000)));
        let mut someone = || {
            let host = name(random.below(self.agents.len() as u64) as usize);
            if random.one_in(2) { vec![host] } else { Vec::new() }
        };
        let (add, remove) = (someone(), someone());
        if let Some(time) = time {
            let agent = &mut self.agents[at];
            for held in agent.held.values_mut().filter(|held| held.lease.request == request) {
                // Until there is an answer both may be true.
                held.until = Some(held.until.map_or(now + time, |until| until.min(now + time)));
            }
            if let Some(ask) = agent.ask.as_mut().filter(|ask| ask.number == request) {
                ask.lease = Some(ask.lease.map_or(time, |lease| lease.min(time)));
            }
        }
        let request = self.key(at).request(request);
        self.call(at, Input::Extend { request, time, add, remove, sources: Vec::new() });
    }

    /// Requests a path to send again the data that receivers did not get.
    fn ask_for_the_rest(&mut self, now: Time, at: usize) {
        let Some(wire) = self.wire.as_mut().filter(|_| self.agents[at].ask.is_none()) else { return };
        if let Some(lacking) = wire.resume(at, self.next_request + 1) {
            self.next_request += 1;
            let receivers = Receivers::Named(lacking.into_iter().map(name).collect());
            self.agents[at].ask = Some(self.new_ask(now, receivers));
        }
    }

    fn key(&self, at: usize) -> AgentKey {
        key(name(at), &self.agents[at])
    }

    /// A call from an agent in its session; one without a session says it in the next, if it matters then.
    fn call(&mut self, at: usize, input: Input) {
        let agent = self.key(at);
        if let Some(session) = self.agents[at].session {
            self.agents[at].calls.push_back(Call { agent, session, input });
        }
    }

    /// Delivers the calls of an agent to its manager, where nothing is cut.
    fn deliver(&mut self, now: Time, at: usize) {
        if now < self.agents[at].calls_cut {
            return;
        }
        while let Some(call) = self.agents[at].calls.pop_front() {
            self.events += 1;
            self.office.call(now, call);
        }
    }

    /// Asks once in a session.
    fn ask(&mut self, now: Time, at: usize) {
        let agent = self.key(at);
        let session = self.agents[at].session;
        let Some(ask) = &mut self.agents[at].ask else { return };
        if session.is_none() || ask.said == session || now < ask.not_before {
            return;
        }
        ask.said = session;
        ask.asked_at.get_or_insert(now);
        let request = PathRequest {
            agent,
            request: ask.number,
            object: object(ask.number),
            object_bytes: ask.object_bytes,
            remaining_bytes: ask.bytes,
            further_sources: Vec::new(),
            receivers: ask.receivers.clone(),
            divisible: ask.divisible,
            lease: ask.lease,
            wish: Default::default(),
        };
        self.call(at, Input::Request(request));
    }

    /// Delivers the messages of managers to devices and agents, where nothing is cut.
    fn answers(&mut self, random: &mut Random, now: Time) -> Result<(), String> {
        while let Some(act) = self.office.acts.pop_front() {
            self.events += 1;
            write!(self.trace, "{now:?}{act:?}").expect("a hash takes everything");
            self.perform(random, now, act)?;
        }
        for at in 0..self.agents.len() {
            if now < self.agents[at].down_until || now < self.agents[at].answers_cut {
                continue;
            }
            while let Some(output) = self.agents[at].inbox.pop_front() {
                self.hear(random, now, at, output)?;
            }
        }
        self.office.breach.take().map_or(Ok(()), Err)
    }

    /// Carries out what a manager orders.
    fn perform(&mut self, random: &mut Random, now: Time, act: Act) -> Result<(), String> {
        self.devices(random, now, &act);
        match &act.output {
            Output::Response { response: Ok(grant), request } => {
                if self.office.store.as_ref().is_some_and(|store| !store.was_written(grant.plan_id)) {
                    let (plan, agent) = (grant.plan_id, &request.agent.name);
                    return Err(format!("{agent} was told of {plan:?}, which is not written"));
                }
                if grant.accepted_bytes < 1_000 {
                    self.coverage.hit(coverage::PART_GRANTED);
                }
                self.check_named(request, grant)?;
            }
            Output::Granted { plan_id, plan, .. } => {
                // It may have come back before it is looked at what is lent.
                for resource in &plan.resources {
                    self.lent.entry(*resource).or_default().insert(*plan_id, now);
                }
            }
            Output::Replanned { plan_id, before, plan, .. } => {
                self.coverage.hit(coverage::PATH_REPLANNED);
                self.revoke(now, *plan_id, before, Some(plan));
            }
            Output::Released { plan_id, plan, reason, kept, request } => {
                if *kept {
                    self.coverage.hit(coverage::PATH_KEPT);
                }
                self.released(now, *plan_id, plan, *reason, &request.agent)?;
            }
            _ => {}
        }
        let Some((session, listener)) = act.session.zip(office::listener(&act.output)) else { return Ok(()) };
        let at = index(&listener.name);
        let Some(agent) = self.agents.get_mut(at) else {
            return Err(format!("no agent is called {listener:?}"));
        };
        let is_ours = agent.session.is_some_and(|own| (own.manager, own.number) == (act.by.0, session));
        if is_ours && agent.incarnation == listener.incarnation && self.office.is_run(agent.session, act.by) {
            agent.inbox.push_back(act.output);
        }
        Ok(())
    }

    /// Notes the resources that a lease held and no longer holds.
    fn revoke(&mut self, now: Time, id: PlanId, before: &Plan, after: Option<&Plan>) {
        let stays = |resource: &&Resource| after.is_some_and(|plan| plan.resources.contains(resource));
        for resource in before.resources.iter().filter(|resource| !stays(resource)) {
            self.revoked.insert((id, *resource), now);
        }
    }

    /// A path was taken back: from an agent that uses it only for a reason.
    fn released(
        &mut self,
        now: Time,
        id: PlanId,
        plan: &Plan,
        reason: ReleaseReason,
        holder: &AgentKey,
    ) -> Result<(), String> {
        let agent = &self.agents[index(&holder.name)];
        let lives = agent.incarnation == holder.incarnation && now >= agent.down_until;
        let uses = lives && agent.held.contains_key(&id);
        let silent = now.since(agent.contact);
        match reason {
            ReleaseReason::HolderGone if uses && silent < RECONNECT => {
                Err(format!("{holder:?} lost {id:?} as if it were gone, {silent} after it was answered"))
            }
            ReleaseReason::Expired if uses && silent + BEAT < LEASE => {
                Err(format!("{id:?} expired {silent} after its holder {holder:?} was answered"))
            }
            ReleaseReason::Released | ReleaseReason::Withdrawn if uses => {
                Err(format!("{id:?} was taken back from {holder:?}, which uses it"))
            }
            ReleaseReason::Failed | ReleaseReason::TimeOver => {
                if reason == ReleaseReason::TimeOver {
                    self.coverage.hit(coverage::TIME_OVER);
                }
                self.revoke(now, id, plan, None);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Devices are told, and answer in a while.
    fn devices(&mut self, random: &mut Random, now: Time, act: &Act) {
        let switch = &mut self.office.switch;
        let mut told = None;
        match &act.output {
            Output::Granted { plan_id, plan, instead_of, .. } => {
                switch.retain(|command| !instead_of.contains(command));
                told = Some((*plan_id, plan));
            }
            Output::Again { plan_id, plan } => told = Some((*plan_id, plan)),
            Output::Replanned { plan_id, before, plan, displaced, .. } => {
                switch.retain(|command| !before.commands.contains(command) && !displaced.contains(command));
                told = Some((*plan_id, plan));
            }
            Output::Released { plan, kept: false, .. } | Output::Forgotten { plan } => {
                switch.retain(|command| !plan.commands.contains(command));
            }
            _ => {}
        }
        let Some((id, plan)) = told.filter(|(_, plan)| !plan.commands.is_empty()) else { return };
        for command in &plan.commands {
            if let DeviceCommand::CrossConnect { from, to } = command {
                // A port that is connected anew has nothing else any more.
                switch.retain(|other| !shares(other, *from, *to));
            }
            if !switch.contains(command) {
                switch.push(command.clone());
            }
        }
        let answer_at = now + Duration(random.below(1_000_000_000));
        if let Some(core) = self.office.core_mut(act.by) {
            core.set_ups.push((answer_at, id));
        }
    }

    fn hear(&mut self, random: &mut Random, now: Time, at: usize, output: Output) -> Result<(), String> {
        match output {
            Output::Heartbeat { result: Err(_), .. } => self.agents[at].hang_up(),
            Output::Heartbeat { result: Ok(lost), .. } => {
                let agent = &mut self.agents[at];
                let sent = agent.beats.pop_front().unwrap_or(now);
                let silent = sent.since(agent.contact);
                agent.contact = sent;
                agent.owed.retain(|(.., said)| *said >= sent);
                lost.into_iter().try_for_each(|plan| self.lose(now, at, plan, silent))?;
            }
            Output::Response { request, response } => {
                self.answered(random, now, at, request.request, response)?;
            }
            Output::Replanned { plan_id, plan, before, .. } => {
                if plan.channel != before.channel {
                    self.wire.iter_mut().for_each(|wire| wire.lose(now, plan_id));
                }
                if let Some(held) = self.agents[at].held.get_mut(&plan_id) {
                    held.follow(&plan);
                }
            }
            Output::Released { plan_id, .. } => self.lose(now, at, plan_id, Duration::ZERO)?,
            Output::Extended { result: Ok(Some(grant)), .. } => {
                if let Some(held) = self.agents[at].held.get_mut(&grant.plan_id) {
                    held.lease.receivers = names(&grant);
                    held.follow(&grant.plan);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// An agent is told that it has lost a path.
    fn lose(&mut self, now: Time, at: usize, plan: PlanId, silent: Duration) -> Result<(), String> {
        let agent = &mut self.agents[at];
        agent.ends.remove(&plan);
        let lost = agent.held.remove(&plan);
        self.wire.iter_mut().for_each(|wire| wire.lose(now, plan));
        let Some(lost) = lost else { return Ok(()) };
        // What has taken its place may have been lent in this very step.
        self.note_lent(now);
        let ended = self.office.ended.contains_key(&plan);
        let over = lost.until.is_some_and(|until| until <= now);
        let lately = |at: &Time| now.since(*at) < LATELY;
        let failed = |resource: &Resource| {
            self.office.failed.contains(&Failure::Resource(*resource))
                || self.failed_at.get(resource).is_some_and(lately)
        };
        // Without records another one may have been quicker.
        let alone = self.office.store.is_none();
        let explained = alone && is_explained(&self.lent, plan, now);
        // Of a path whose record is lost its holder has to come in time.
        let unread = self.office.store.as_ref().is_some_and(|store| store.lost.contains(&plan));
        // A manager that does not know a path cannot lead it around what has failed.
        let broken = (alone || unread) && lost.plan.resources.iter().any(failed);
        if ended || over || explained || broken || silent >= LEASE || unread && silent >= PATIENCE {
            return Ok(());
        }
        Err(format!("{} lost {plan:?} though no other was lent its address", name(at)))
    }

    /// An agent hears what becomes of its request.
    fn answered(
        &mut self,
        random: &mut Random,
        now: Time,
        at: usize,
        number: u64,
        response: Result<Grant, Denial>,
    ) -> Result<(), String> {
        let Some(ask) = self.agents[at].ask.clone().filter(|ask| ask.number == number) else { return Ok(()) };
        let grant = match response {
            Ok(grant) => grant,
            // An agent that is not known asks again when it has joined, and so does one whose receivers are
            // away.
            Err(Denial::NotMember(_) | Denial::UnknownReceiver(_) | Denial::Lost(_) | Denial::NobodyElse) => {
                if let Some(ask) = &mut self.agents[at].ask {
                    (ask.said, ask.not_before) = (None, now + Duration::from_secs(2));
                }
                return Ok(());
            }
            Err(_) => {
                self.agents[at].ask = None;
                return Ok(());
            }
        };
        if self.plant == Some(Plant::LoseGrant) {
            return Ok(());
        }
        let bytes = grant.accepted_bytes;
        if bytes > ask.bytes || bytes == 0 || !ask.divisible && bytes < ask.bytes {
            return Err(format!("{} asked for {ask:?} and was granted {bytes} bytes", name(at)));
        }
        let plan = grant.plan_id;
        self.agents[at].held.insert(plan, held(&ask, &grant));
        self.agents[at].ask = None;
        if let Some(wire) = &mut self.wire {
            let to = grant.receivers.iter().map(|(receiver, _)| index(receiver)).collect();
            let multicast = matches!(grant.plan.channel, Channel::Multicast { .. });
            wire.start(random, now, (number, plan), (at, to), multicast);
        }
        Ok(())
    }

    /// Nothing is used by two agents by what they were told, as far as both can know.
    fn check_claims(&self, now: Time) -> Result<(), String> {
        let mut claims: BTreeMap<Resource, (usize, PlanId)> = BTreeMap::new();
        for (at, agent) in self.agents.iter().enumerate() {
            // An agent that was not answered for so long may have been taken for dead.
            if now < agent.down_until || now.since(agent.contact) >= RECONNECT {
                continue;
            }
            for (&id, held) in &agent.held {
                let is_over = held.until.is_some_and(|until| until <= now);
                for &resource in held.plan.resources.iter().filter(|_| !is_over) {
                    if !self.can_claim(now, at, id, resource) {
                        continue;
                    }
                    if let Some((other, other_id)) = claims.insert(resource, (at, id)) {
                        let (one, two) = (name(other), name(at));
                        return Err(format!(
                            "{resource:?} is lent twice: {one} has it with {other_id:?}, and {two} with {id:?}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// An agent that was answered since its path was led another way has heard of that, or that the path is
    /// lost.
    fn check_ways(&mut self, now: Time) -> Result<(), String> {
        let Some(core) = self.office.leading(now) else { return Ok(()) };
        for lease in core.leases.leases() {
            let (id, at) = (lease.grant.plan_id, index(&lease.key.agent.name));
            let leads = &lease.grant.plan.channel;
            let (way, since) = self.ways.entry(id).or_insert((leads.clone(), now));
            if way != leads {
                (*way, *since) = (leads.clone(), now);
            }
            let Some(held) = self.agents[at].held.get(&id) else { continue };
            if *since < self.agents[at].contact && !leads.is_heard_like(&held.plan.channel) {
                let uses = &held.plan.channel;
                return Err(format!("{} goes on with {uses:?} on {id:?}, which has {leads:?}", name(at)));
            }
        }
        Ok(())
    }

    /// Returns true if no other lease may have this, and its holder could know if that were not so.
    fn can_claim(&self, now: Time, at: usize, id: PlanId, resource: Resource) -> bool {
        let revoked = self.revoked.get(&(id, resource)).is_some_and(|when| *when >= self.agents[at].contact);
        if is_of_circuits(&resource) {
            return !revoked && !self.is_led_elsewhere(now, id, &resource);
        }
        // A manager without records may be quicker than those who use addresses; circuits it has found.
        !revoked && self.office.store.is_some()
    }

    /// Returns true if a path that stays no longer needs this circuit: devices know that, its holder need
    /// not.
    fn is_led_elsewhere(&self, now: Time, id: PlanId, resource: &Resource) -> bool {
        let lease =
            self.office.leading(now).and_then(|core| core.leases.leases().find(|l| l.grant.plan_id == id));
        lease.is_some_and(|lease| !lease.grant.plan.resources.contains(resource))
    }

    /// No manager lends anything twice by what it knows itself, and no lease was made up.
    fn check(&mut self, now: Time) -> Result<(), String> {
        self.note_lent(now);
        for core in self.office.cores() {
            choice::check_factors(&core.leases)?;
            let mut lent: BTreeSet<Resource> = BTreeSet::new();
            for lease in core.leases.leases() {
                for resource in &lease.grant.plan.resources {
                    if !lent.insert(*resource) {
                        return Err(format!("{resource:?} is lent twice at the same time"));
                    }
                }
                if !self.office.granted.contains_key(&lease.grant.plan_id) {
                    return Err(format!("no manager ever granted {:?}", lease.grant.plan_id));
                }
            }
        }
        Ok(())
    }

    /// Notes what is lent now, and to which lease.
    fn note_lent(&mut self, now: Time) {
        for lease in self.office.cores().flat_map(|core| core.leases.leases()) {
            for resource in &lease.grant.plan.resources {
                self.lent.entry(*resource).or_default().insert(lease.grant.plan_id, now);
            }
        }
    }

    /// Everything has come back: nothing has leaked.
    fn check_all_is_back(&self, now: Time) -> Result<(), String> {
        let Some(core) = self.office.leading(now) else {
            return Err("no manager leads though nothing fails any more".into());
        };
        let left: Vec<PlanId> = core.leases.leases().map(|lease| lease.grant.plan_id).collect();
        if !left.is_empty() {
            return Err(format!("{left:?} are still lent {LEASE} after the last release"));
        }
        let waiting = core.leases.pending().len();
        if waiting > 0 {
            return Err(format!("{waiting} requests wait that no agent has made"));
        }
        Ok(())
    }
}

/// Returns true if a command uses one of these ports.
fn shares(command: &DeviceCommand, from: u32, to: u32) -> bool {
    matches!(command, DeviceCommand::CrossConnect { from: other_from, to: other_to }
        if *other_from == from || *other_to == to)
}

fn is_of_circuits(resource: &Resource) -> bool {
    matches!(resource, Resource::CircuitPort { .. } | Resource::Splitter { .. })
}

/// Returns true if one of the addresses of a lease has lately been leased to another agent; a lease that
/// holds none needs no other reason than a manager that does not know it.
fn is_explained(lent: &BTreeMap<Resource, BTreeMap<PlanId, Time>>, plan: PlanId, now: Time) -> bool {
    let mut own = lent.values().filter(|plans| plans.contains_key(&plan)).peekable();
    let lately = |(other, at): (&PlanId, &Time)| *other != plan && now.since(*at) < LATELY;
    own.peek().is_none() || own.any(|plans| plans.iter().any(lately))
}
