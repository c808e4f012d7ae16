//! Cases of the manager's core: agents that ask for paths and give them back, crashes of agents and of the
//! manager, and calls that are lost in one direction or both (Republic section III-B). In half of the cases the paths
//! carry transfers ([`Wire`]); in the others a transfer is a time.

use super::draw::Random;
use super::wire::Wire;
use super::{Plant, Verdict};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Write;
use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{Channel, Fabric, Fabrics, Fcfs, PlanId, Resource};
use polycast_protocol::leases::{
    AgentKey, Denial, Grant, HeldLease, Input, Join, Leases, LeasesConfig, OnDeviceFailure, Output,
    PathRequest, Receivers,
};
use polycast_types::{AppId, DataId, Duration, ObjectId, Time};

const LEASE: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_secs(3);
const BEAT: Duration = Duration::from_secs(1);
/// An agent that has no answer to its request asks again.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// After healing everybody has been answered within this time: leases that nobody names have expired by then.
const LIVENESS: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(250);

/// An agent as it sees itself.
struct Agent {
    incarnation: u64,
    /// Down until then.
    down_until: Time,
    joined: bool,
    /// Calls to the manager, and its answers, are lost until then.
    calls_cut: Time,
    answers_cut: Time,
    next_beat: Time,
    /// What it asks for: number, receivers, and when it asks again.
    asks: Option<(u64, Vec<String>, Time)>,
    held: BTreeMap<PlanId, HeldLease>,
    /// When each of its transfers is over.
    ends: BTreeMap<PlanId, Time>,
    /// When a heartbeat of its own got through last, and the one before that.
    beats: [Time; 2],
}

struct World {
    leases: Option<Leases>,
    manager_down_until: Time,
    addresses: u32,
    chain: bool,
    runs: u64,
    agents: Vec<Agent>,
    next_request: u64,
    /// Every lease that was ever granted, by its number: two must never share one.
    granted: BTreeMap<PlanId, String>,
    /// When each address was seen to be lent last, and for which lease.
    lent: BTreeMap<Resource, BTreeMap<PlanId, Time>>,
    plant: Option<Plant>,
    /// What the paths carry, where that is simulated too.
    wire: Option<Wire>,
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

pub(super) fn run(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    let count = random.within(2..=6) as usize;
    let (addresses, chain) = (random.within(1..=4) as u32, random.one_in(3));
    let wire = random.one_in(2).then(|| Wire::new(random, count, seed, plant));
    let case = format!(
        "manager of {count} agents, {addresses} addresses{}{}",
        if chain { ", a chain behind them" } else { "" },
        if wire.is_some() { ", transfers over the paths" } else { "" }
    );
    let agent = |_| Agent {
        incarnation: 1,
        down_until: Time::ZERO,
        joined: false,
        calls_cut: Time::ZERO,
        answers_cut: Time::ZERO,
        next_beat: Time::ZERO,
        asks: None,
        held: BTreeMap::new(),
        ends: BTreeMap::new(),
        beats: [Time::ZERO; 2],
    };
    let mut world = World {
        leases: None,
        manager_down_until: Time::ZERO,
        addresses,
        chain,
        runs: 0,
        agents: (0..count).map(agent).collect(),
        next_request: 0,
        granted: BTreeMap::new(),
        lent: BTreeMap::new(),
        plant,
        wire,
        events: 0,
        trace: Trace(seed | 1),
    };
    let failure = world.live(random).err();
    let (hash, events) = world.wire.as_ref().map_or((0, 0), Wire::trace);
    let coverage = world.wire.as_ref().map(Wire::coverage).unwrap_or_default();
    Verdict { seed, case, failure, trace_hash: world.trace.0 ^ hash, events: world.events + events, coverage }
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
        self.manager_down_until = now;
        self.wire.iter_mut().for_each(Wire::heal);
        let end = now + LIVENESS;
        while now < end {
            self.step(random, now, false)?;
            now += STEP;
            let idle = self.agents.iter().all(|agent| agent.asks.is_none() && agent.held.is_empty());
            if idle && self.wire.as_ref().is_none_or(Wire::is_done) {
                break;
            }
        }
        if let Some(at) = self.agents.iter().position(|agent| agent.asks.is_some()) {
            return Err(format!("{} was not answered within {LIVENESS} of healing", name(at)));
        }
        // What was lent to those who crashed has expired, and every address can be lent again.
        now += LEASE;
        self.step(random, now, false)?;
        if let Some(wire) = &self.wire {
            wire.check()?;
        }
        self.check_all_is_back()
    }

    fn fail_something(&mut self, random: &mut Random, now: Time, heal_at: Time) {
        if !random.one_in(12) {
            return;
        }
        let until = now + Duration(random.magnitude(100_000_000..=40_000_000_000));
        let until = until.min(heal_at);
        let at = random.below(self.agents.len() as u64) as usize;
        match random.below(6) {
            0 => {
                self.leases = None;
                self.manager_down_until = until;
            }
            1 => {
                let agent = &mut self.agents[at];
                agent.incarnation += 1;
                agent.down_until = until;
                (agent.joined, agent.asks) = (false, None);
                agent.held.clear();
                agent.ends.clear();
                self.wire.iter_mut().for_each(|wire| wire.crash(now, at));
            }
            2 => self.agents[at].calls_cut = until,
            3 => self.agents[at].answers_cut = until,
            4 => (self.agents[at].calls_cut, self.agents[at].answers_cut) = (until, until),
            _ => {
                if let Some(agent) = self.agents.get(at).filter(|agent| agent.joined) {
                    let key = AgentKey { name: name(at), incarnation: agent.incarnation };
                    self.call(now, at, Input::Leave { agent: key });
                    let agent = &mut self.agents[at];
                    agent.incarnation += 1;
                    (agent.joined, agent.asks, agent.down_until) = (false, None, until);
                    agent.held.clear();
                    agent.ends.clear();
                    self.wire.iter_mut().for_each(|wire| wire.crash(now, at));
                }
            }
        }
    }

    /// Everybody does what it is time for.
    fn step(&mut self, random: &mut Random, now: Time, new_requests: bool) -> Result<(), String> {
        if self.leases.is_none() && now >= self.manager_down_until {
            self.leases = Some(self.manager());
            self.runs += 1;
        }
        if let Some(wire) = &mut self.wire {
            wire.advance(now)?;
        }
        self.answers(random, now)?;
        for at in 0..self.agents.len() {
            if now < self.agents[at].down_until {
                continue;
            }
            self.wire.iter_mut().for_each(|wire| wire.is_up(now, at));
            if now >= self.agents[at].next_beat {
                self.agents[at].next_beat = now + BEAT;
                self.beat(now, at);
                self.answers(random, now)?;
            }
            let wire = self.wire.as_ref();
            let is_over = |plan: PlanId, end: Time| wire.map_or(now >= end, |wire| wire.is_over(plan));
            let ends = self.agents[at].ends.iter();
            let over: Vec<PlanId> =
                ends.filter(|(plan, end)| is_over(**plan, **end)).map(|(plan, _)| *plan).collect();
            for plan in over {
                self.agents[at].ends.remove(&plan);
                self.wire.iter_mut().for_each(|wire| wire.release(plan));
                if let Some(held) = self.agents[at].held.remove(&plan) {
                    let request = self.key(at).request(held.request);
                    self.call(now, at, Input::Release { request, plan });
                }
            }
            self.ask_for_the_rest(now, at);
            if new_requests && self.agents[at].asks.is_none() && random.one_in(6) {
                self.next_request += 1;
                let others = (0..self.agents.len()).filter(|&other| other != at);
                let mut receivers: Vec<String> = others.filter(|_| random.one_in(2)).map(name).collect();
                if receivers.is_empty() {
                    receivers = vec![name((at + 1) % self.agents.len())];
                }
                self.agents[at].asks = Some((self.next_request, receivers, now));
            }
            self.ask(now, at);
            self.answers(random, now)?;
            // How long the transfers take that have begun.
            let fresh: Vec<PlanId> = {
                let agent = &self.agents[at];
                agent.held.keys().filter(|plan| !agent.ends.contains_key(plan)).copied().collect()
            };
            for plan in fresh {
                let takes = Duration(random.magnitude(100_000_000..=20_000_000_000));
                self.agents[at].ends.insert(plan, now + takes);
            }
        }
        self.check(now)
    }

    /// What somebody did not get is sent again.
    fn ask_for_the_rest(&mut self, now: Time, at: usize) {
        let Some(wire) = self.wire.as_mut().filter(|_| self.agents[at].asks.is_none()) else { return };
        if let Some(lacking) = wire.resume(at, self.next_request + 1) {
            self.next_request += 1;
            let receivers = lacking.into_iter().map(name).collect();
            self.agents[at].asks = Some((self.next_request, receivers, now));
        }
    }

    fn manager(&self) -> Leases {
        let pool = AddressPool::new([239, 255, 64, 0], self.addresses, 7410).expect("these are addresses");
        let mut fabrics: Vec<Box<dyn Fabric>> = vec![Box::new(IpMulticast::new(pool))];
        if self.chain {
            fabrics.push(Box::new(TcpChain));
        }
        let config = LeasesConfig {
            lease: LEASE,
            silence: SILENCE,
            pending_max: 64,
            leases_max: 64,
            grant_bytes_max: u64::MAX,
            agents_max: 8,
            on_device_failure: OnDeviceFailure::Fallback,
            kept_max: 0,
            claims: None,
            recorded: false,
            // A real one takes the time of day.
            first_plan: PlanId(1 + self.runs * 1_000_000),
        };
        Leases::new(config, Fabrics::new(fabrics), Box::new(Fcfs))
    }

    fn key(&self, at: usize) -> AgentKey {
        AgentKey { name: name(at), incarnation: self.agents[at].incarnation }
    }

    /// A call from an agent, if it gets through.
    fn call(&mut self, now: Time, at: usize, input: Input) {
        let cut = now < self.agents[at].calls_cut;
        if let Some(leases) = self.leases.as_mut().filter(|_| !cut) {
            self.events += 1;
            if matches!(input, Input::Heartbeat { .. } | Input::Join(_)) {
                self.agents[at].beats = [now, self.agents[at].beats[0]];
            }
            leases.handle(now, input);
        }
    }

    fn beat(&mut self, now: Time, at: usize) {
        let agent = self.key(at);
        let held = &self.agents[at].held;
        let input = if self.agents[at].joined {
            Input::Heartbeat { agent, leases: held.keys().copied().collect() }
        } else {
            let forgets = self.plant == Some(Plant::ForgetLease);
            let leases = if forgets { Vec::new() } else { held.values().cloned().collect() };
            Input::Join(Join { agent, address: ([10, 0, 0, at as u8], 7401), leases })
        };
        self.call(now, at, input);
    }

    fn ask(&mut self, now: Time, at: usize) {
        let agent = self.key(at);
        if !self.agents[at].joined {
            return;
        }
        let Some((request, receivers, when)) = &mut self.agents[at].asks else { return };
        if now < *when {
            return;
        }
        *when = now + ASK_AGAIN;
        let request = PathRequest {
            agent,
            request: *request,
            object: ObjectId { app: AppId::default(), data: DataId(*request) },
            object_bytes: 1_000,
            remaining_bytes: 1_000,
            receivers: Receivers::Named(receivers.clone()),
            divisible: false,
            lease: None,
        };
        self.call(now, at, Input::Request(request));
    }

    /// What the manager says gets to the agents, where nothing is cut.
    fn answers(&mut self, random: &mut Random, now: Time) -> Result<(), String> {
        let Some(mut leases) = self.leases.take() else { return Ok(()) };
        while let Some(output) = leases.poll(now) {
            self.events += 1;
            write!(self.trace, "{now:?}{output:?}").expect("a hash takes everything");
            self.hear(random, now, output)?;
        }
        self.leases = Some(leases);
        Ok(())
    }

    fn hear(&mut self, random: &mut Random, now: Time, output: Output) -> Result<(), String> {
        if let Output::Granted { plan_id, plan, .. } = &output {
            if let Some(before) = self.granted.insert(*plan_id, format!("{plan:?}")) {
                return Err(format!("the lease {plan_id:?} was granted twice: {before} and {plan:?}"));
            }
            return Ok(());
        }
        let key = match &output {
            Output::Join { agent, .. } | Output::Heartbeat { agent, .. } => agent,
            Output::Response { request, .. } => &request.agent,
            _ => return Ok(()),
        };
        let at = index(&key.name);
        let Some(agent) = self.agents.get_mut(at) else { return Err(format!("nobody is called {key:?}")) };
        if agent.incarnation != key.incarnation || now < agent.down_until || now < agent.answers_cut {
            return Ok(());
        }
        let before = agent.beats[1];
        match output {
            Output::Join { result, .. } => agent.joined = result.is_ok(),
            Output::Heartbeat { result: Err(_), .. } => agent.joined = false,
            Output::Heartbeat { result: Ok(lost), .. } => {
                for plan in lost {
                    let named = agent.ends.remove(&plan).is_some();
                    let lost = agent.held.remove(&plan).filter(|_| named);
                    self.wire.iter_mut().for_each(|wire| wire.lose(now, plan));
                    if lost.is_some() && !is_explained(&self.lent, plan, now) && now.since(before) < LEASE {
                        let who = name(at);
                        return Err(format!("{who} lost {plan:?} though nobody else was lent its address"));
                    }
                }
            }
            Output::Response { request, response } => {
                let asked = agent.asks.as_ref().filter(|(number, ..)| *number == request.request);
                let Some((number, receivers, _)) = asked else { return Ok(()) };
                if let Ok(grant) = &response {
                    if self.plant == Some(Plant::LoseGrant) {
                        return Ok(());
                    }
                    let held = held(*number, receivers, grant);
                    if agent.held.insert(grant.plan_id, held).is_none()
                        && let Some(wire) = &mut self.wire
                    {
                        let to = receivers.iter().map(|receiver| index(receiver)).collect();
                        let multicast = matches!(grant.plan.channel, Channel::Multicast { .. });
                        wire.start(random, now, (*number, grant.plan_id), (at, to), multicast);
                    }
                }
                // Who is not known asks again when it has joined, and so does one whose receivers are away.
                if !matches!(response, Err(Denial::NotMember(_) | Denial::UnknownReceiver(_))) {
                    agent.asks = None;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// No address is lent twice, and no lease was made up by anybody.
    fn check(&mut self, now: Time) -> Result<(), String> {
        let Some(leases) = &self.leases else { return Ok(()) };
        let mut lent: BTreeSet<Resource> = BTreeSet::new();
        for lease in leases.leases() {
            for resource in &lease.grant.plan.resources {
                if !lent.insert(*resource) {
                    return Err(format!("{resource:?} is lent twice at the same time"));
                }
                self.lent.entry(*resource).or_default().insert(lease.grant.plan_id, now);
            }
            if !self.granted.contains_key(&lease.grant.plan_id) {
                return Err(format!("nobody ever granted {:?}", lease.grant.plan_id));
            }
        }
        Ok(())
    }

    /// Everything has come back: nothing has leaked.
    fn check_all_is_back(&mut self) -> Result<(), String> {
        let Some(leases) = self.leases.as_mut() else { return Err("the manager is not there".into()) };
        let left: Vec<PlanId> = leases.leases().map(|lease| lease.grant.plan_id).collect();
        if !left.is_empty() {
            return Err(format!("{left:?} are lent to nobody {LEASE} after the last release"));
        }
        Ok(())
    }
}

/// Whether one of the addresses of a lease has lately been lent to somebody else; a lease that holds none
/// needs no other reason than a manager that does not know it.
fn is_explained(lent: &BTreeMap<Resource, BTreeMap<PlanId, Time>>, plan: PlanId, now: Time) -> bool {
    let mut own = lent.values().filter(|plans| plans.contains_key(&plan)).peekable();
    let lately = |(other, at): (&PlanId, &Time)| *other != plan && now.since(*at) < Duration::from_secs(10);
    own.peek().is_none() || own.any(|plans| plans.iter().any(lately))
}

fn held(request: u64, receivers: &[String], grant: &Grant) -> HeldLease {
    HeldLease {
        request,
        plan: grant.plan_id,
        object: ObjectId { app: AppId::default(), data: DataId(request) },
        receivers: receivers.to_vec(),
        bytes: grant.accepted_bytes,
        fabric: grant.plan.fabric.into(),
        channel: grant.plan.channel.clone(),
        kept: None,
        left: None,
    }
}
