//! The managers: one without records, or several with a store of which one leads (`manager::{core, leader,
//! store}`).
//!
//! What a leader tells agents and devices waits until the change behind it is written. A manager may crash,
//! be paused with calls that wait for it, or be cut off from the store; it may believe that it leads when it
//! does not any more.

use super::choice::{self, Choose};
use super::external;
use super::store::{Changes, Outcome, Store};
use crate::coverage::{self, Coverage};
use crate::{Plant, draw::Random};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_planning::estimate::Estimator;
use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::ocs::{Ocs, OcsConfig};
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{
    DeviceCommand, Fabric, Fabrics, Failure, Fcfs, GreedyMatching, HostId, PartName, PlanId, Scheduler,
};
use polycast_protocol::leases::{
    AgentKey, Asked, Input, JoinRefusal, Leases, LeasesConfig, OnDeviceFailure, Output, PathRequest,
    Receivers, Record, ReleaseReason, RequestKey, SessionsConfig, host_numbers,
};
use polycast_topology::Hybrid;
use polycast_topology::optics::{PowerBudget, splitter_loss_db};
use polycast_types::{Duration, Rate, Time};

/// Lifetime of a leader's key.
const TTL: Duration = Duration::from_secs(2);
/// An answer of the store that has not come by then is lost.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings that all managers of a case have in common.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) agents: usize,
    pub(super) addresses: u32,
    pub(super) chain: bool,
    pub(super) choose: Choose,
    pub(super) circuits: bool,
    pub(super) kept_max: usize,
    pub(super) grant_bytes_max: u64,
    /// Number of transfers that a receiver takes at once.
    pub(super) places: usize,
    pub(super) on_device_failure: OnDeviceFailure,
    pub(super) managers: usize,
    pub(super) recorded: bool,
    /// Set if managers ask an external scheduler: what its answers depend on.
    pub(super) external: Option<u64>,
}

impl Settings {
    /// A core that knows no agent. Settings name the hosts in another order each time, and others beside
    /// them.
    fn core(&self, run: u64, plant: Option<Plant>, records: &[Record]) -> Leases {
        let pool =
            AddressPool::new([239, 255, 64, 0].into(), self.addresses, 7410).expect("these are addresses");
        let names: Vec<String> = (0..self.agents).map(super::name).collect();
        let others = format!("elsewhere-{}", run % 3);
        let mut in_settings: Vec<&str> = names.iter().map(String::as_str).chain([others.as_str()]).collect();
        let turns = run as usize % in_settings.len();
        in_settings.rotate_left(turns);
        let numbers = host_numbers(in_settings, records);
        let places: Vec<_> = names.iter().map(|name| numbers[name]).zip(0..).collect();
        let mut fabrics: Vec<Box<dyn Fabric>> = Vec::new();
        if self.circuits {
            let ocs = Ocs::new(self.circuits(), places.clone(), pool);
            fabrics.push(Box::new(ocs.expect("every host has a place")));
        }
        fabrics.push(Box::new(IpMulticast::new(pool)));
        if self.chain {
            fabrics.push(Box::new(TcpChain));
        }
        let scheduler: Box<dyn Scheduler> =
            if self.circuits { Box::new(GreedyMatching::new(places)) } else { Box::new(Fcfs) };
        // A real one takes the time of day.
        let first = if plant == Some(Plant::ReuseNumbers) { 1 } else { 1 + run * 1_000_000 };
        let config = LeasesConfig {
            lease: super::LEASE,
            silence: super::SILENCE,
            sessions: SessionsConfig { reconnect: super::RECONNECT, ..SessionsConfig::default() },
            pending_max: 64,
            leases_max: 64,
            agent_leases_max: 64,
            receiver_leases_max: self.places,
            grant_bytes_max: self.grant_bytes_max,
            agents_max: 8,
            on_device_failure: self.on_device_failure,
            kept_max: self.kept_max,
            patience: super::PATIENCE,
            claims: (self.circuits && !self.recorded).then_some(super::PATIENCE),
            recorded: self.recorded,
            first_plan: PlanId(first),
        };
        let fabrics = Fabrics::new(fabrics).estimating(Estimator::default());
        let fabrics = match self.choose {
            Choose::Time { waits } if plant != Some(Plant::TakeSlower) => fabrics.choosing_by_time(waits),
            Choose::Time { .. } | Choose::Order => fabrics,
        };
        let mut leases = Leases::new(config, fabrics, scheduler);
        for (name, number) in &numbers {
            leases.know_host_as(name, *number).expect("each name has a number of its own");
        }
        leases
    }

    /// Racks of one host each, with one fibre.
    fn circuits(&self) -> OcsConfig {
        let hybrid = Hybrid {
            racks: self.agents as u32,
            servers_per_rack: 1,
            ports_per_rack: 1,
            splitters: 2,
            splitter_fanout: 2,
        };
        let splitter_loss_db = splitter_loss_db(2);
        let budget =
            PowerBudget { budget_db: 20.0, switch_loss_db: 1.0, splitter_loss_db, amplifier_gain_db: 0.0 };
        let attempt_interval = Duration::from_millis(1);
        OcsConfig { hybrid, cascade_max: 2, budget, rate: Rate(1_000_000_000), attempt_interval }
    }
}

/// Something that may only be done when the change behind it is written.
#[derive(Clone, Debug)]
pub(super) struct Act {
    /// The manager and its run.
    pub(super) by: (usize, u64),
    /// The session of the agent that it is for, if it is for one.
    pub(super) session: Option<u64>,
    pub(super) output: Output,
}

/// A session of an agent with a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) manager: usize,
    run: u64,
    pub(super) number: u64,
}

/// A call on its way from an agent.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) agent: AgentKey,
    pub(super) session: Session,
    pub(super) input: Input,
}

#[derive(Debug)]
struct Writing {
    answer_at: Option<Time>,
    timeout_at: Time,
    acts: Vec<Act>,
}

/// A manager that leads, or believes that it does.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) leases: Leases,
    run: u64,
    term: u64,
    /// Time of the last request to the store that has confirmed the lead.
    kept_at: Time,
    /// Time from which it treats paths that it cannot read as free.
    sure_at: Option<Time>,
    commits: VecDeque<(Changes, Vec<Act>)>,
    writing: Option<Writing>,
    /// Times at which devices answer, each with the path.
    pub(super) set_ups: Vec<(Time, PlanId)>,
    /// Answers of the external scheduler on their way.
    advice: Vec<(Time, Input)>,
    /// Outcomes of its answers when they were last counted.
    counted: Asked,
    /// Failures that it knows.
    known_failed: Vec<Failure>,
}

#[derive(Debug, Default)]
struct Manager {
    core: Option<Core>,
    down_until: Time,
    paused_until: Time,
    /// Calls that came while it was paused.
    inbox: VecDeque<Call>,
    /// The store does not hear it until then, nor it the store.
    cut_until: Time,
}

/// All managers.
#[derive(Debug)]
pub(super) struct Office {
    settings: Settings,
    plant: Option<Plant>,
    managers: Vec<Manager>,
    pub(super) store: Option<Store>,
    runs: u64,
    /// Acts to be done, in their order.
    pub(super) acts: VecDeque<Act>,
    pub(super) coverage: Coverage,
    /// Failures, as the managers see them when they check.
    pub(super) failed: Vec<Failure>,
    /// Commands that the circuit switch holds.
    pub(super) switch: Vec<DeviceCommand>,
    /// Every lease that was ever granted, and by which run: two must never have one number.
    pub(super) granted: BTreeMap<PlanId, u64>,
    /// Size in bytes of the objects that paths were requested for.
    asked: BTreeMap<RequestKey, u64>,
    /// Reasons for which leases have ended, also where that was never written.
    pub(super) ended: BTreeMap<PlanId, ReleaseReason>,
    /// First breach that was found here.
    pub(super) breach: Option<String>,
    /// Nothing fails any more.
    is_healed: bool,
}

impl Office {
    pub(super) fn new(settings: Settings, plant: Option<Plant>) -> Self {
        Office {
            managers: (0..settings.managers).map(|_| Manager::default()).collect(),
            store: settings.recorded.then(Store::default),
            settings,
            plant,
            runs: 0,
            acts: VecDeque::new(),
            coverage: Coverage::default(),
            failed: Vec::new(),
            switch: Vec::new(),
            granted: BTreeMap::new(),
            asked: BTreeMap::new(),
            ended: BTreeMap::new(),
            breach: None,
            is_healed: false,
        }
    }

    /// Returns the number of managers.
    pub(super) fn count(&self) -> usize {
        self.managers.len()
    }

    /// Returns true if a session is with this run of this manager.
    pub(super) fn is_run(&self, session: Option<Session>, by: (usize, u64)) -> bool {
        session.is_some_and(|session| (session.manager, session.run) == by)
    }

    /// The managers that lead, or believe so.
    pub(super) fn cores(&self) -> impl Iterator<Item = &Core> {
        self.managers.iter().filter_map(|manager| manager.core.as_ref())
    }

    /// The manager that leads.
    pub(super) fn leading(&self, now: Time) -> Option<&Core> {
        match &self.store {
            Some(store) => self.managers[store.leader(now)?].core.as_ref(),
            None => self.managers[0].core.as_ref(),
        }
    }

    /// The core of a manager in this run.
    pub(super) fn core_mut(&mut self, (manager, run): (usize, u64)) -> Option<&mut Core> {
        self.managers[manager].core.as_mut().filter(|core| core.run == run)
    }

    /// One of the managers fails in some way until then.
    pub(super) fn fail(&mut self, random: &mut Random, now: Time, until: Time) {
        let leader = self.store.as_ref().and_then(|store| store.leader(now));
        let any = random.below(self.managers.len() as u64) as usize;
        let at = leader.filter(|_| random.one_in(2)).unwrap_or(any);
        let leads = leader == Some(at);
        let short = until.min(now + Duration::from_secs(6));
        match random.below(4) {
            0 if self.store.is_some() => {
                self.managers[at].paused_until = short;
                self.coverage.hit(coverage::LEADER_PAUSES);
            }
            1 if self.store.is_some() => {
                self.managers[at].cut_until = short;
                self.coverage.hit(coverage::MANAGER_CUT_OFF);
            }
            2 if random.one_in(3) => match &mut self.store {
                Some(store) if random.one_in(2) => {
                    store.full_until = short;
                    self.coverage.hit(coverage::STORE_FULL);
                }
                Some(store) => {
                    store.silent_until = short;
                    self.coverage.hit(coverage::STORE_SILENT);
                }
                None => {}
            },
            _ => {
                if let Some(store) = self.store.as_mut().filter(|_| leads) {
                    store.spoil(random);
                }
                let manager = &mut self.managers[at];
                if let Some(core) = &manager.core {
                    let waits = core.leases.pending().len() > 0;
                    self.coverage.hit(coverage::MANAGER_CRASHES);
                    if waits {
                        self.coverage.hit(coverage::MANAGER_CRASHES_WITH_WAITING);
                    }
                    if leads {
                        self.coverage.hit(coverage::LEADER_CRASHES);
                    }
                }
                *manager = Manager { down_until: until, ..Manager::default() };
            }
        }
    }

    pub(super) fn heal(&mut self, now: Time) {
        self.is_healed = true;
        for manager in &mut self.managers {
            for until in [&mut manager.down_until, &mut manager.paused_until, &mut manager.cut_until] {
                *until = now.min(*until);
            }
        }
        if let Some(store) = &mut self.store {
            store.silent_until = now.min(store.silent_until);
            store.full_until = now.min(store.full_until);
        }
    }

    /// Everything that managers do by themselves.
    pub(super) fn advance(&mut self, random: &mut Random, now: Time) {
        self.store_advances(random, now);
        for at in 0..self.managers.len() {
            let manager = &self.managers[at];
            if now < manager.down_until || now < manager.paused_until {
                continue;
            }
            // A manager that goes on after a pause may look first whether it still leads, or only later.
            let looks_first = random.one_in(2);
            if looks_first {
                self.look(now, at);
            }
            while let Some(call) = self.managers[at].inbox.pop_front() {
                self.take(now, call);
            }
            self.serve(random, now, at);
            if !looks_first {
                self.look(now, at);
            }
            self.begin(now, at);
            self.serve(random, now, at);
        }
    }

    fn store_advances(&mut self, random: &mut Random, now: Time) {
        let Some(store) = &mut self.store else { return };
        // Whatever is written, another manager has to be able to go on from it.
        if now >= store.silent_until && store.advance(now) && random.one_in(8) {
            let (load, records) = (store.load(), store.records());
            let mut core = self.settings.core(0, None, &load);
            self.breach = self.breach.take().or_else(|| restores(&mut core, now, load, &records).err());
        }
    }

    fn reaches_store(&self, now: Time, at: usize) -> bool {
        let silent = self.store.as_ref().is_none_or(|store| now < store.silent_until);
        !silent && now >= self.managers[at].cut_until
    }

    /// A leader keeps its key alive, or finds that it leads no more.
    fn look(&mut self, now: Time, at: usize) {
        let reaches = self.reaches_store(now, at);
        let Some(store) = &mut self.store else { return };
        let Some(core) = &mut self.managers[at].core else { return };
        if reaches {
            // One that leads no more may have said so on its way.
            if store.forget(now) {
                self.coverage.hit(coverage::STORE_FORGETS);
            }
            if store.keep(now, core.term, TTL) {
                core.kept_at = now;
                return;
            }
        } else if now.since(core.kept_at) < TTL {
            return;
        }
        self.coverage.hit(coverage::LEADER_SUPERSEDED);
        self.step_down(now, at);
    }

    fn step_down(&mut self, now: Time, at: usize) {
        let reaches = self.reaches_store(now, at);
        let Some(core) = self.managers[at].core.take() else { return };
        self.managers[at].inbox.clear();
        if let Some(store) = self.store.as_mut().filter(|_| reaches) {
            store.revoke(core.term);
        }
    }

    /// A manager begins, or becomes the leader and goes on from the records.
    fn begin(&mut self, now: Time, at: usize) {
        if self.managers[at].core.is_some() {
            return;
        }
        let reaches = self.reaches_store(now, at);
        let (mut term, mut records) = (0, None);
        if let Some(store) = &mut self.store {
            let Some(new) = Some(()).filter(|()| reaches).and_then(|()| store.campaign(now, at, TTL)) else {
                return;
            };
            (term, records) = (new, Some((store.load(), store.records())));
        }
        self.runs += 1;
        let written = records.as_ref().map_or(&[][..], |(load, _)| load);
        let mut leases = self.settings.core(self.runs, self.plant, written);
        if self.settings.external.is_some() {
            leases = leases.asking(now, external::SETTINGS);
        }
        if let Some((mut load, records)) = records {
            self.forget(&mut load);
            let forgets = self.plant == Some(Plant::ForgetLent);
            // That what is restored is not what was written is left for what comes of it.
            if let Err(breach) = restores(&mut leases, now, load, &records)
                && !forgets
            {
                self.breach.get_or_insert(breach);
            }
            let spoilt = self.store.as_ref().is_some_and(Store::lacks_leases);
            if spoilt && self.plant != Some(Plant::LendInDoubt) {
                self.coverage.hit(coverage::RECORD_LOST);
                leases.await_holders(now);
            }
        }
        self.managers[at].core = Some(Core {
            leases,
            run: self.runs,
            term,
            kept_at: now,
            sure_at: Some(now + super::PATIENCE),
            commits: VecDeque::new(),
            writing: None,
            set_ups: Vec::new(),
            advice: Vec::new(),
            counted: Asked::default(),
            known_failed: Vec::new(),
        });
        if self.settings.circuits && self.store.is_none() {
            let circuits = |command: &&DeviceCommand| matches!(command, DeviceCommand::CrossConnect { .. });
            let commands = self.switch.iter().filter(circuits).cloned().collect();
            self.handle(now, at, Input::Found { commands });
        }
    }

    /// Notes the records that a leader goes on from; plants forget a part of them.
    fn forget(&mut self, load: &mut Vec<Record>) {
        if self.plant == Some(Plant::ForgetWaiting) {
            load.retain(|record| !matches!(record, Record::Pending { .. }));
        }
        if !load.is_empty() {
            self.coverage.hit(coverage::RESTORED);
        }
        let is_learned = |record: &Record| matches!(record, Record::Learned { .. });
        if load.iter().any(is_learned) {
            self.coverage.hit(coverage::LEARNED_RESTORED);
        }
        match self.plant {
            Some(Plant::ForgetLearned) => load.retain(|record| !is_learned(record)),
            Some(Plant::ForgetLent) => load.retain(|record| !matches!(record, Record::Lease { .. })),
            _ => {}
        }
    }

    /// A leader sees what has failed and what works again.
    fn see(&mut self, now: Time, at: usize) {
        let Some(core) = &mut self.managers[at].core else { return };
        let known = core::mem::replace(&mut core.known_failed, self.failed.clone());
        let repaired: Vec<Failure> =
            known.iter().filter(|failure| !self.failed.contains(failure)).copied().collect();
        let failed: Vec<Failure> =
            self.failed.iter().filter(|failure| !known.contains(failure)).copied().collect();
        if !repaired.is_empty() {
            self.handle(now, at, Input::Repaired { failures: repaired });
        }
        if !failed.is_empty() {
            self.handle(now, at, Input::Failed { failures: failed });
        }
    }

    /// A path's receivers miss its light, or an operator takes a part or a host out of use or back.
    pub(super) fn doubt(&mut self, random: &mut Random, now: Time) {
        for at in 0..self.managers.len() {
            let Some(core) = &self.managers[at].core else { continue };
            let leases: Vec<(PlanId, usize)> = core
                .leases
                .leases()
                .map(|lease| (lease.grant.plan_id, lease.grant.receivers.len()))
                .collect();
            let input = if !leases.is_empty() && random.one_in(2) {
                let (plan, _) = leases[random.below(leases.len() as u64) as usize];
                let receivers = (0..self.settings.agents as u32).filter(|_| random.one_in(2)).map(HostId);
                Input::Unlit { plan, receivers: receivers.collect() }
            } else {
                let (number, kind) = (random.below(3) as u32, random.below(4));
                let is_out = random.one_in(2);
                match kind {
                    0 => Input::Drain { part: PartName::Port(number + 1), is_out },
                    1 => Input::Drain { part: PartName::Tor(number), is_out },
                    2 if number == 0 => Input::Drain { part: PartName::CircuitSwitch, is_out },
                    2 => Input::DrainHost { name: super::name(number as usize), is_out },
                    _ => Input::Drain { part: PartName::Splitter(number), is_out },
                }
            };
            self.handle(now, at, input);
        }
    }

    /// Operators take back what they have taken out.
    fn take_back(&mut self, now: Time, at: usize) {
        let Some(core) = self.managers[at].core.as_ref().filter(|_| self.is_healed) else { return };
        let hosts = core.leases.drained_hosts().into_iter().map(|(name, _)| String::from(name));
        let parts = core.leases.parts().0.into_iter();
        let back = parts.map(|part| Input::Drain { part, is_out: false });
        let back = back.chain(hosts.map(|name| Input::DrainHost { name, is_out: false }));
        for input in back.collect::<Vec<_>>() {
            self.handle(now, at, input);
        }
    }

    /// Does the work of a leader: takes answers of devices, and writes.
    fn serve(&mut self, random: &mut Random, now: Time, at: usize) {
        self.see(now, at);
        self.take_back(now, at);
        let reaches = self.reaches_store(now, at);
        let Some(core) = &mut self.managers[at].core else { return };
        if reaches
            && let Some(store) = &mut self.store
            && core.sure_at.take_if(|sure_at| *sure_at <= now).is_some()
        {
            store.forget_spoilt(now, core.term);
        }
        let answered: Vec<(Time, PlanId)> = core.set_ups.extract_if(.., |(due, _)| *due <= now).collect();
        for (_, plan) in answered {
            let fails = !self.is_healed && random.one_in(4);
            if fails {
                self.coverage.hit(coverage::DEVICE_FAILS);
            }
            let result = if fails { Err(String::from("a switch does not answer")) } else { Ok(()) };
            self.handle(now, at, Input::SetUp { plan, result });
        }
        self.hear_external(now, at);
        self.drain(now, at);
        self.write(random, now, at);
    }

    /// A leader hears what the external scheduler has answered.
    fn hear_external(&mut self, now: Time, at: usize) {
        let Some(core) = &mut self.managers[at].core else { return };
        let due: Vec<(Time, Input)> = core.advice.extract_if(.., |(due, _)| *due <= now).collect();
        for (_, input) in due {
            self.handle(now, at, input);
        }
    }

    fn handle(&mut self, now: Time, at: usize, input: Input) {
        let Some(core) = &mut self.managers[at].core else { return };
        self.coverage.hit(coverage::of_leases(&input));
        core.leases.handle(now, input);
        self.drain(now, at);
    }

    /// Queues the orders of the core until their record is written; without records they are done at once.
    fn drain(&mut self, now: Time, at: usize) {
        self.drain_after(now, at, Vec::new());
    }

    fn drain_after(&mut self, now: Time, at: usize, mut acts: Vec<Act>) {
        let Some(core) = &mut self.managers[at].core else { return };
        while let Some(output) = core.leases.poll(now) {
            let session = listener(&output).and_then(|agent| core.leases.session_of(agent));
            acts.push(Act { by: (at, core.run), session, output });
        }
        if let Some((asked, _)) = core.leases.external() {
            external::count(&mut self.coverage, core::mem::replace(&mut core.counted, asked), asked);
        }
        for act in &acts {
            match &act.output {
                Output::Granted { plan_id, plan, .. } => {
                    if let Some(before) = self.granted.insert(*plan_id, act.by.1) {
                        let run = act.by.1;
                        self.breach.get_or_insert(format!(
                            "the number {plan_id:?} was given twice, by runs {before} and {run}: {plan:?}"
                        ));
                    }
                    let (asked, coverage) = (&self.asked, &mut self.coverage);
                    let chosen =
                        choice::check_grant(&core.leases, &self.settings, now, *plan_id, asked, coverage);
                    self.breach = self.breach.take().or(chosen.err());
                }
                Output::Released { plan_id, reason, .. } => drop(self.ended.insert(*plan_id, *reason)),
                Output::Ask { question } => {
                    let draws = (self.settings.external.unwrap_or_default(), act.by.1);
                    core.advice.extend(external::answers(question, now, draws, self.is_healed));
                }
                _ => {}
            }
        }
        if self.store.is_none() {
            self.acts.extend(acts);
            return;
        }
        let changes: Changes = core.leases.changes().into_iter().collect();
        if self.plant == Some(Plant::WordsFirst) {
            self.acts.extend(core::mem::take(&mut acts));
        }
        if !changes.is_empty() || !acts.is_empty() {
            core.commits.push_back((changes, acts));
        }
    }

    /// One transaction at a time, of all that waits.
    fn write(&mut self, random: &mut Random, now: Time, at: usize) {
        let reaches = self.reaches_store(now, at);
        let (Some(store), Some(core)) = (&mut self.store, &mut self.managers[at].core) else { return };
        if let Some(writing) = &core.writing {
            if writing.answer_at.is_some_and(|answer_at| answer_at <= now) && reaches {
                let made = store.outcome(core.term);
                let Some(writing) = core.writing.take() else { return };
                if made == Some(Outcome::Refused) {
                    self.coverage.hit(coverage::WRITE_REFUSED);
                }
                let takes_it = self.plant == Some(Plant::TakeRefused) && made == Some(Outcome::Refused);
                if made == Some(Outcome::Made) || takes_it {
                    self.acts.extend(writing.acts);
                } else {
                    self.coverage.hit(coverage::LEADER_SUPERSEDED);
                    return self.step_down(now, at);
                }
            } else if writing.timeout_at <= now {
                self.coverage.hit(coverage::WRITE_UNANSWERED);
                return self.step_down(now, at);
            } else {
                return;
            }
        }
        let Some(core) = &mut self.managers[at].core else { return };
        let (mut changes, mut acts) = (Changes::new(), Vec::new());
        for (more, later) in core.commits.drain(..) {
            changes.extend(more);
            acts.extend(later);
        }
        if changes.is_empty() {
            // Nothing is written, and so nothing is waited for.
            self.acts.extend(acts);
            return;
        }
        let slow = |random: &mut Random| match random.below(12) {
            0 => Duration(random.magnitude(100_000_000..=1_900_000_000)),
            _ => Duration::ZERO,
        };
        let apply_at = now + slow(random);
        let timeout_at = now + WRITE_TIMEOUT;
        let mut answer_at = Some(apply_at + slow(random));
        if self.is_healed {
            // A write that is given up is a failure too: the next leader takes what the dead hold for
            // renewed.
            answer_at = answer_at.min(Some(timeout_at));
        } else if random.one_in(100) {
            answer_at = None;
        }
        if answer_at > Some(now) {
            self.coverage.hit(coverage::WRITE_SLOW);
        }
        // What does not reach the store is lost.
        if reaches {
            store.submit(apply_at, core.term, changes);
        }
        core.writing = Some(Writing { answer_at: answer_at.filter(|_| reaches), timeout_at, acts });
        self.store_advances(random, now);
        if answer_at == Some(now) && reaches {
            self.write(random, now, at);
        }
    }

    /// An agent joins at a manager, if one takes it: its session, or why not.
    pub(super) fn join(
        &mut self,
        now: Time,
        at: usize,
        join: polycast_protocol::leases::Join,
    ) -> Option<Result<Session, JoinRefusal>> {
        if now < self.managers[at].paused_until {
            return None;
        }
        let core = self.managers[at].core.as_mut()?;
        let input = Input::Join(join);
        self.coverage.hit(coverage::of_leases(&input));
        core.leases.handle(now, input);
        let outputs: Vec<Output> = core::iter::from_fn(|| core.leases.poll(now)).collect();
        let result = outputs.iter().find_map(|output| match output {
            Output::Join { result, .. } => Some(result.clone()),
            _ => None,
        });
        let run = core.run;
        // Its session is there before the rest is done, among which are words for it.
        let joined = result.map(|result| result.map(|number| Session { manager: at, run, number }));
        let mut acts = Vec::new();
        for output in outputs.into_iter().filter(|output| !matches!(output, Output::Join { .. })) {
            let session = listener(&output).and_then(|agent| core.leases.session_of(agent));
            acts.push(Act { by: (at, core.run), session, output });
        }
        self.drain_after(now, at, acts);
        joined
    }

    /// Returns true if a session still exists, as far as an agent can see.
    pub(super) fn is_there(&self, agent: &AgentKey, session: Session) -> bool {
        let core = self.managers[session.manager].core.as_ref();
        let is_its = |core: &Core| core.leases.session_of(agent) == Some(session.number);
        core.is_some_and(|core| core.run == session.run && is_its(core))
    }

    /// A manager sees that a session has ended.
    pub(super) fn hang_up(&mut self, now: Time, agent: &AgentKey, session: Session) {
        if self.is_there(agent, session)
            && let Some(core) = &mut self.managers[session.manager].core
        {
            core.leases.handle(now, Input::Parted { agent: agent.clone(), session: session.number });
        }
    }

    /// A call has come to its manager.
    pub(super) fn call(&mut self, now: Time, call: Call) {
        let manager = &mut self.managers[call.session.manager];
        if now < manager.paused_until {
            manager.inbox.push_back(call);
        } else {
            self.take(now, call);
        }
    }

    fn take(&mut self, now: Time, call: Call) {
        if !self.is_there(&call.agent, call.session) {
            return;
        }
        let at = call.session.manager;
        if let Some(core) = &mut self.managers[at].core {
            let heard = core.leases.hear(now, &call.agent, call.session.number);
            heard.expect("its session was there just now");
        }
        let mut refused = None;
        if let Input::Request(request) = &call.input {
            let key = request.agent.request(request.request);
            self.asked.insert(key.clone(), request.object_bytes);
            let core = self.managers[at].core.as_ref();
            refused = core.filter(|core| names_drained(&core.leases, &key, request)).map(|_| key);
        }
        self.handle(now, at, call.input);
        if let (Some(key), Some(core)) = (refused, &self.managers[at].core) {
            self.coverage.hit(coverage::DRAINED_NAMED);
            if is_known(&core.leases, &key) {
                self.breach.get_or_insert(format!("{key:?} is for a host that is drained, and was let in"));
            }
        }
    }
}

/// Returns true if a request waits or has its path.
fn is_known(leases: &Leases, key: &RequestKey) -> bool {
    leases.leases().any(|lease| lease.key == key) || leases.pending().any(|pending| pending.key == key)
}

/// Returns true if a request is new, of a whole object, and for a host that is drained.
fn names_drained(leases: &Leases, key: &RequestKey, request: &PathRequest) -> bool {
    let Receivers::Named(names) = &request.receivers else { return false };
    let is_whole = request.remaining_bytes >= request.object_bytes && !key.is_stream();
    let drained = leases.drained_hosts();
    is_whole
        && !is_known(leases, key)
        && names.iter().any(|name| drained.iter().any(|(host, _)| host == name))
}

/// Checks that a core that has nothing goes on from the written records, and then knows just those.
fn restores(core: &mut Leases, now: Time, load: Vec<Record>, records: &[Record]) -> Result<(), String> {
    let aside = core.restore(now, load);
    if !aside.is_empty() {
        return Err(format!("no manager can go on from all that is written: {aside:?}"));
    }
    let is_state = |record: &&Record| !matches!(record, Record::Host { .. });
    let known = core.records();
    if known.iter().filter(is_state).ne(records.iter().filter(is_state)) {
        return Err(format!("a manager that goes on from {records:?} knows {known:?}"));
    }
    Ok(())
}

/// The agent that is told.
pub(super) fn listener(output: &Output) -> Option<&AgentKey> {
    match output {
        Output::Join { agent, .. } | Output::Heartbeat { agent, .. } => Some(agent),
        Output::Response { request, .. }
        | Output::Waiting { request, .. }
        | Output::Extended { request, .. }
        | Output::Path { request, .. }
        | Output::Replanned { request, .. } => Some(&request.agent),
        // As `manager::convert::end_reason`: a holder that has not given the path back itself is told.
        Output::Released { request, reason, .. } => match reason {
            ReleaseReason::Failed | ReleaseReason::TimeOver | ReleaseReason::Expired => Some(&request.agent),
            ReleaseReason::Released | ReleaseReason::HolderGone | ReleaseReason::Withdrawn => None,
        },
        Output::Granted { .. }
        | Output::Again { .. }
        | Output::Forgotten { .. }
        | Output::Gone { .. }
        | Output::Ask { .. }
        | Output::External { .. }
        | Output::Suspected { .. }
        | Output::Acquitted { .. }
        | Output::Drained { .. }
        | Output::DrainedHost { .. } => None,
    }
}
