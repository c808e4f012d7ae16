//! Histories of a manager: whatever agents and devices do, and whichever manager leads, what the outside has
//! seen is true.

use super::{LEASE, agent, apply, ask, config, drain, held_lease, join, object, request, with_config};
use polycast_planning::{Channel, Failure, Fcfs, PlanId, Resource};
use polycast_protocol::leases::{
    AgentKey, GROUPS_FROM, Grant, HeldLease, Input, Join, Leases, LeasesConfig, Output, Record,
    ReleaseReason, RequestKey, host_numbers,
};
use polycast_types::{Duration, Time};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of paths in a history.
const LEASES_MAX: usize = 6;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Join(u8),
    Restart(u8),
    Leave(u8),
    Request(u8, u8, u8),
    Repeat(u8, u64),
    Release(usize),
    /// An agent gives a path back that may be another one's.
    Steal(u8, usize),
    Withdraw(u8, u64),
    /// An agent says that it lives, and names none of the leases or all that there are.
    Beat(u8, bool),
    /// An agent joins and names a lease that it may have, or have had, or that is another one's; by another
    /// number, or of another request of its.
    Claim(u8, usize, u64, u64),
    Fail(u8),
    Repair(u8),
    Extend(u8, u64, Option<u64>, u8, u8),
    /// Another manager goes on with what this one has written.
    TakeOver,
    Pass(u64),
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let number = 0u8..5;
    prop_oneof![
        3 => number.clone().prop_map(Step::Join),
        1 => number.clone().prop_map(Step::Restart),
        1 => number.clone().prop_map(Step::Leave),
        8 => (number.clone(), number.clone(), number.clone()).prop_map(|(a, b, c)| Step::Request(a, b, c)),
        2 => (number.clone(), 0u64..30).prop_map(|(a, r)| Step::Repeat(a, r)),
        4 => (0usize..8).prop_map(Step::Release),
        1 => (number.clone(), 0usize..8).prop_map(|(a, index)| Step::Steal(a, index)),
        1 => (number.clone(), 0u64..30).prop_map(|(a, r)| Step::Withdraw(a, r)),
        1 => number.clone().prop_map(Step::Fail),
        1 => number.clone().prop_map(Step::Repair),
        3 => (number.clone(), 0u64..30, proptest::option::of(0u64..9_000), number.clone(), number.clone())
            .prop_map(|(a, r, time, add, remove)| Step::Extend(a, r, time, add, remove)),
        6 => (number.clone(), any::<bool>()).prop_map(|(a, named)| Step::Beat(a, named)),
        3 => (number, 0usize..16, 0u64..3, 0u64..2).prop_map(|(a, index, plan, r)| Step::Claim(a, index, plan, r)),
        1 => Just(Step::TakeOver),
        4 => (0u64..800).prop_map(Step::Pass),
        1 => (0u64..20_000).prop_map(Step::Pass),
    ]
}

/// The number of an agent's request: every third one is for a group.
fn numbered(number: u64) -> u64 {
    if number.is_multiple_of(3) { GROUPS_FROM + number } else { number }
}

fn address_failure(number: u8) -> Failure {
    Failure::Resource(Resource::MulticastAddress { address: [239, 255, 64, number].into(), port: 7410 })
}

/// A path as the outside knows it.
struct Held {
    key: RequestKey,
    grant: Grant,
    expires_at: Time,
}

/// A manager, and what the outside has seen of it.
pub(crate) struct World {
    addresses: u32,
    chain: bool,
    pub manager: Leases,
    pub now: Time,
    incarnations: BTreeMap<u8, u64>,
    next_request: u64,
    held: BTreeMap<PlanId, Held>,
    /// All paths that ever were, for those who name them again.
    lent: Vec<(RequestKey, Grant)>,
    granted: BTreeSet<PlanId>,
    failed: BTreeSet<u8>,
    /// Content of a store.
    written: BTreeMap<String, String>,
}

impl World {
    pub(crate) fn new(addresses: u32, chain: bool) -> Self {
        World {
            addresses,
            chain,
            manager: manager(addresses, chain),
            now: Time(1),
            incarnations: BTreeMap::new(),
            next_request: 0,
            held: BTreeMap::new(),
            lent: Vec::new(),
            granted: BTreeSet::new(),
            failed: BTreeSet::new(),
            written: BTreeMap::new(),
        }
    }

    fn key(&self, number: u8) -> AgentKey {
        agent(number, self.incarnations.get(&number).copied().unwrap_or(1))
    }

    fn input(&mut self, step: &Step) -> Option<Input> {
        Some(match step {
            Step::Join(number) => join(*number, self.key(*number).incarnation),
            Step::Restart(number) => {
                *self.incarnations.entry(*number).or_insert(1) += 1;
                join(*number, self.key(*number).incarnation)
            }
            Step::Leave(number) => Input::Leave { agent: self.key(*number), keeps: false },
            Step::Request(source, a, b) => {
                self.next_request += 1;
                let names = [format!("host-{a}"), format!("host-{b}")];
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                Input::Request(request(self.key(*source), numbered(self.next_request), &names))
            }
            Step::Repeat(source, number) => {
                Input::Request(request(self.key(*source), numbered(*number), &["host-0", "host-1"]))
            }
            Step::Release(index) => {
                let (plan, held) = self.held.iter().nth(*index)?;
                Input::Release { request: held.key.clone(), plan: *plan }
            }
            Step::Steal(number, index) => {
                let (plan, held) = self.held.iter().nth(*index)?;
                Input::Release { request: self.key(*number).request(held.key.request), plan: *plan }
            }
            Step::Withdraw(source, number) => {
                Input::Withdraw { request: self.key(*source).request(numbered(*number)) }
            }
            Step::Beat(number, named) => Input::Heartbeat {
                agent: self.key(*number),
                leases: if *named { self.held.keys().copied().collect() } else { Vec::new() },
            },
            Step::Claim(number, index, plan, other) => {
                let (key, grant) = self.lent.iter().rev().nth(*index)?;
                let plan = PlanId(grant.plan_id.0 + plan * 500);
                let lease = held_lease(key.request + other, grant, plan);
                let address = ([10, 0, 0, *number].into(), 7401);
                Input::Join(Join { agent: self.key(*number), address, from: address.0, leases: vec![lease] })
            }
            Step::Fail(number) => {
                self.failed.insert(*number);
                Input::Failed { failures: vec![address_failure(*number)] }
            }
            Step::Repair(number) => {
                self.failed.remove(number);
                Input::Repaired { failures: vec![address_failure(*number)] }
            }
            Step::Extend(source, number, millis, add, remove) => Input::Extend {
                request: self.key(*source).request(numbered(*number)),
                time: millis.map(Duration::from_millis),
                add: vec![format!("host-{add}")],
                remove: vec![format!("host-{remove}")],
                sources: Vec::new(),
            },
            Step::TakeOver | Step::Pass(_) => return None,
        })
    }

    /// Does one step, and looks at everything.
    pub(crate) fn perform(&mut self, step: &Step) {
        match step {
            Step::Pass(millis) => {
                self.now += Duration::from_millis(*millis);
                // Between two events time stands at every deadline once.
                while let Some(at) = self.manager.deadline().filter(|at| *at <= self.now) {
                    let outputs = drain(&mut self.manager, at);
                    assert!(!outputs.is_empty(), "nothing happens at the deadline");
                    self.see(at, None, &outputs);
                }
            }
            Step::TakeOver => self.take_over(),
            _ => {}
        }
        let input = self.input(step);
        self.apply(input);
        self.look();
    }

    fn apply(&mut self, input: Option<Input>) {
        if let Some(input) = input.clone() {
            self.manager.handle(self.now, input);
        }
        let outputs = drain(&mut self.manager, self.now);
        self.see(self.now, input.as_ref(), &outputs);
        self.manager.check();
        for (key, record) in self.manager.changes() {
            match record {
                Some(record) => self.written.insert(key.to_string(), serde_json::to_string(&record).unwrap()),
                None => self.written.remove(&key.to_string()),
            };
        }
    }

    /// A manager that takes over goes on where the one before has ended, and finds what has failed by itself.
    fn take_over(&mut self) {
        let restored = self.restored();
        assert_eq!(restored.records(), self.manager.records());
        self.manager = restored;
        // Numbers are known only as far as their leases are there.
        let last = self.held.keys().next_back().copied();
        self.granted.retain(|id| Some(*id) <= last);
        for held in self.held.values_mut() {
            held.expires_at = self.now + LEASE;
        }
        let failures = self.failed.iter().map(|number| address_failure(*number)).collect();
        self.apply(Some(Input::Failed { failures }));
    }

    /// A new manager that has read what was written, in the order in which a store gives it.
    fn restored(&self) -> Leases {
        let records = self.written.values().map(|text| serde_json::from_str::<Record>(text).unwrap());
        let mut restored = manager(self.addresses, self.chain);
        assert_eq!(restored.restore(self.now, records), []);
        restored
    }

    pub(crate) fn records(&self) -> Vec<Record> {
        self.written.values().map(|text| serde_json::from_str::<Record>(text).unwrap()).collect()
    }

    fn see(&mut self, now: Time, input: Option<&Input>, outputs: &[Output]) {
        for output in outputs {
            match output {
                Output::Granted { plan_id, .. } => {
                    assert!(self.granted.insert(*plan_id), "{plan_id:?} again")
                }
                Output::Response { request, response: Ok(grant) } => {
                    let (key, grant, expires_at) = (request.clone(), grant.clone(), now + LEASE);
                    self.lent.push((key.clone(), grant.clone()));
                    let fresh = Held { key, grant: grant.clone(), expires_at };
                    let held = self.held.entry(grant.plan_id).or_insert(fresh);
                    assert_eq!((&held.key, &held.grant), (request, &grant), "the answer is another one's");
                    // An agent that is told of it a second time has all of its time, too.
                    held.expires_at = expires_at;
                }
                Output::Replanned { plan_id, before, plan, .. } => {
                    let held = self.held.get_mut(plan_id).expect("planned anew but not held");
                    assert_eq!(held.grant.plan, *before);
                    assert_ne!(plan, before, "nothing has changed");
                    held.grant.plan = plan.clone();
                }
                Output::Extended { request, result: Ok(Some(changed)) } => {
                    let held = self.held.get_mut(&changed.plan_id).expect("changed but not held");
                    assert_eq!((&held.key, &held.grant.plan), (request, &changed.plan));
                    held.grant = changed.clone();
                }
                Output::Released { plan_id, reason, .. } => {
                    let held = self.held.remove(plan_id).expect("released but not held");
                    assert!(is_due(now, input, *reason, &held), "{reason:?} of {:?} by {input:?}", held.key);
                }
                Output::Heartbeat { agent, result: Ok(lost) } => self.see_heartbeat(now, agent, input, lost),
                Output::Join { agent, result: Ok(_) } => self.see_join(now, agent, input),
                _ => {}
            }
        }
    }

    /// A heartbeat renews what its sender holds, and nothing else.
    fn see_heartbeat(&mut self, now: Time, agent: &AgentKey, input: Option<&Input>, lost: &[PlanId]) {
        let Some(Input::Heartbeat { leases, .. }) = input else { panic!("{input:?} is no heartbeat") };
        for id in leases {
            match self.held.get_mut(id).filter(|held| held.key.is_of(agent)) {
                Some(held) => held.expires_at = now + LEASE,
                None => assert!(lost.contains(id), "{id:?} is said to be {agent:?}'s"),
            }
        }
        assert!(lost.iter().all(|id| leases.contains(id)));
    }

    /// So does a join, and it may bring paths that this manager has not lent.
    fn see_join(&mut self, now: Time, agent: &AgentKey, input: Option<&Input>) {
        let Some(Input::Join(join)) = input else { panic!("{input:?} is no join") };
        for lease in &join.leases {
            let key = agent.request(lease.request);
            if let Some(held) = self.held.get_mut(&lease.plan) {
                // Another run of its agent goes on with a group, unless it has another path for that already.
                let its = self.manager.leases().find(|view| view.grant.plan_id == lease.plan);
                if held.key == key || held.key.is_continued_by(&key) && its.is_some_and(|its| *its.key == key)
                {
                    (held.key, held.expires_at) = (key, now + LEASE);
                }
            } else if let Some(view) = self.manager.leases().find(|view| view.grant.plan_id == lease.plan) {
                assert_eq!((view.key, &view.grant.plan.channel), (&key, &lease.channel));
                self.held
                    .insert(lease.plan, Held { key, grant: view.grant.clone(), expires_at: now + LEASE });
            }
        }
    }

    /// The outside and the manager agree, and nothing is lent twice.
    fn look(&self) {
        let views: Vec<_> =
            self.manager.leases().map(|view| (view.grant.plan_id, view.key, view.expires_at)).collect();
        let known: Vec<_> = self.held.iter().map(|(id, held)| (*id, &held.key, held.expires_at)).collect();
        assert_eq!(views, known);
        assert!(known.len() <= LEASES_MAX, "{} paths are lent", known.len());
        let lent: Vec<Resource> =
            self.held.values().flat_map(|held| held.grant.plan.resources.clone()).collect();
        assert_eq!(lent.iter().collect::<BTreeSet<_>>().len(), lent.len(), "lent twice: {lent:?}");
        assert!(self.manager.deadline().is_none_or(|at| at > self.now));
    }
}

/// Returns true if a path may end for this reason.
fn is_due(now: Time, input: Option<&Input>, reason: ReleaseReason, held: &Held) -> bool {
    match (reason, input) {
        (ReleaseReason::Released, Some(Input::Release { request, plan })) => {
            (request, plan) == (&held.key, &held.grant.plan_id)
        }
        (ReleaseReason::Withdrawn, Some(Input::Withdraw { request })) => *request == held.key,
        (ReleaseReason::Expired, _) => held.expires_at <= now,
        (ReleaseReason::TimeOver, _) => held.grant.lease.is_some(),
        (ReleaseReason::HolderGone, _) if held.key.is_group() => false,
        (ReleaseReason::HolderGone, Some(Input::Leave { agent, .. })) => held.key.is_of(agent),
        (ReleaseReason::HolderGone, Some(Input::Join(join))) => {
            held.key.agent.name == join.agent.name && !held.key.is_of(&join.agent)
        }
        (ReleaseReason::Failed, Some(Input::Failed { .. })) => true,
        // Its holder has missed where the path goes now.
        (ReleaseReason::Failed, Some(Input::Join(join))) => {
            let plan = &held.grant.plan;
            let is_it = |lease: &HeldLease| lease.plan == held.grant.plan_id && lease.channel != plan.channel;
            let its = join.agent.request(held.key.request);
            held.key.is_continued_by(&its) && join.leases.iter().any(is_it)
        }
        _ => false,
    }
}

/// As in the other tests, with fewer paths than agents could ask for.
fn manager(addresses: u32, chain: bool) -> Leases {
    let config = LeasesConfig { leases_max: LEASES_MAX, ..config() };
    with_config(config, addresses, chain, Box::new(Fcfs))
}

proptest! {
    /// Whatever happens: no address is lent twice at the same time, the outside and the manager agree on
    /// what is held, and in the end everything has come back and can be lent again.
    #[test]
    fn addresses_are_lent_once_and_come_back(
        steps in proptest::collection::vec(step(), 1..120), addresses in 1u32..5, chain: bool,
    ) {
        let mut world = World::new(addresses, chain);
        steps.iter().for_each(|step| world.perform(step));
        for _ in 0..2 {
            world.now += LEASE;
            world.apply(None);
        }
        prop_assert!(world.held.is_empty(), "never returned: {:?}", world.held.keys());
        prop_assert_eq!(world.manager.pending().len(), 0);
        let (mut manager, now) = (world.manager, world.now);
        for number in 0..5 {
            apply(&mut manager, now, Input::Repaired { failures: vec![address_failure(number)] });
        }
        for number in 0..2 {
            apply(&mut manager, now, join(number, 100));
        }
        let lent: BTreeSet<_> = (0..u64::from(addresses))
            .map(|n| ask(&mut manager, now, request(agent(0, 100), 1_000 + n, &["host-1"])).unwrap())
            .map(|grant| matches!(grant.plan.channel, Channel::Multicast { .. }).then(|| grant.plan.resources))
            .collect();
        prop_assert_eq!(lent.len(), addresses as usize, "not all can be lent again");
    }

    /// Another manager that has read what was written goes on where the first one has ended: after any
    /// history its state is the same, and so is what it writes.
    #[test]
    fn a_restored_manager_is_like_the_original(
        steps in proptest::collection::vec(step(), 1..100), addresses in 1u32..4, chain: bool,
    ) {
        let mut world = World::new(addresses, chain);
        steps.iter().for_each(|step| world.perform(step));
        let now = world.now;
        let mut restored = world.restored();
        prop_assert_eq!(restored.records(), world.manager.records());
        prop_assert!(restored.leases().all(|lease| lease.expires_at == now + LEASE), "leases are renewed");
        let failures: Vec<_> = world.failed.iter().map(|number| address_failure(*number)).collect();
        apply(&mut restored, now, Input::Failed { failures });
        // What is free is the same too: both lend as much, and nothing twice.
        let mut original = world.manager;
        for number in 0..2 {
            for manager in [&mut original, &mut restored] {
                apply(manager, now, join(number, 100));
            }
        }
        for number in 0..8 {
            let wanted = request(agent(0, 100), 1_000 + number, &["host-1"]);
            let [first, second] = [&mut original, &mut restored].map(|manager| {
                let outputs = apply(manager, now, Input::Request(wanted.clone()));
                let granted = outputs.iter().any(|output| {
                    matches!(output, Output::Response { request, response: Ok(_) } if request.request == 1_000 + number)
                });
                (granted, manager.leases().count(), manager.pending().len())
            });
            prop_assert_eq!(first, second);
            for manager in [&original, &restored] {
                let held: Vec<Resource> = manager.leases().flat_map(|l| l.grant.plan.resources.clone()).collect();
                prop_assert_eq!(held.iter().collect::<BTreeSet<_>>().len(), held.len());
            }
        }
    }

    /// The same inputs give the same outputs.
    #[test]
    fn the_machine_is_deterministic(steps in proptest::collection::vec(step(), 1..60)) {
        let run = || {
            let mut world = World::new(2, true);
            let mut all = Vec::new();
            for step in &steps {
                world.perform(step);
                all.push((world.manager.records(), world.manager.deadline()));
            }
            (all, world.written, world.lent)
        };
        prop_assert_eq!(run(), run());
    }

    /// Records that another program has changed, or that are of several managers: those that do not fit are
    /// named, and the others make a state that agrees with itself.
    #[test]
    fn records_that_contradict_each_other_are_set_aside(
        steps in proptest::collection::vec(step(), 1..60),
        changes in proptest::collection::vec((0usize..40, 0usize..40, 0u8..6, any::<bool>()), 1..6),
        known in proptest::collection::vec(0u8..6, 0..4),
    ) {
        let mut world = World::new(3, true);
        steps.iter().for_each(|step| world.perform(step));
        let mut records = world.records();
        for (which, other, kind, copy) in changes {
            if records.is_empty() {
                break;
            }
            let (which, other) = (which % records.len(), other % records.len());
            let from = records[other].clone();
            let mut record = records[which].clone();
            change(&mut record, &from, kind);
            if copy { records.push(record) } else { records[which] = record }
        }
        let mut manager = manager(3, true);
        let known: BTreeSet<String> = known.into_iter().map(|number| format!("host-{number}")).collect();
        for (name, number) in host_numbers(known.iter().map(String::as_str), &records) {
            manager.know_host_as(&name, number).unwrap();
        }
        let (count, kept) = (records.len(), |record: &Record| matches!(record, Record::Kept { .. }));
        let kept = records.iter().filter(|record| kept(record)).count();
        let aside = manager.restore(world.now, records);
        manager.check();
        // Whatever was not named is there, but for requests that have a path, and known hosts that were not
        // in records.
        let there = manager.members().count() + manager.leases().count() + manager.pending().len();
        prop_assert!(aside.len() + there <= count && aside.len() + there + kept + 6 >= count);
        drain(&mut manager, world.now);
        apply(&mut manager, world.now, join(5, 1));
        apply(&mut manager, world.now, Input::Request(request(agent(5, 1), 1, &["host-0"])));
        manager.check();
    }
}

/// Puts something of one record into another.
fn change(record: &mut Record, from: &Record, kind: u8) {
    match (record, from) {
        (Record::Member { host, .. }, Record::Member { host: other, .. }) if kind < 3 => *host = *other,
        (Record::Member { host, .. }, _) if kind == 3 => host.0 = u32::MAX,
        (Record::Member { agent, .. }, Record::Member { agent: other, .. }) => *agent = other.clone(),
        (
            Record::Lease { key, .. },
            Record::Lease { key: other, .. } | Record::Pending { key: other, .. },
        ) if kind < 2 => {
            *key = other.clone();
        }
        (Record::Lease { grant, .. }, Record::Lease { grant: other, .. }) if kind < 4 => {
            grant.plan_id = other.plan_id;
        }
        (Record::Lease { grant, .. }, _) => grant.plan_id = PlanId(u64::MAX),
        (
            Record::Pending { key, .. },
            Record::Lease { key: other, .. } | Record::Pending { key: other, .. },
        ) if kind < 2 => {
            *key = other.clone();
        }
        (Record::Pending { pending, .. }, Record::Pending { pending: other, .. }) if kind < 4 => {
            pending.id = other.id;
        }
        (Record::Pending { pending, .. }, _) if kind == 4 => pending.id.0 = u64::MAX,
        (Record::Pending { pending, .. }, _) => pending.group.receivers.clear(),
        _ => {}
    }
}

/// Part of what a manager has written is lost in the middle of one change: what it has lent is not lent
/// again, and nothing is asked for twice.
#[test]
fn a_grant_that_was_written_halfway_is_a_grant() {
    let mut world = World::new(1, false);
    [Step::Join(0), Step::Join(1), Step::Request(0, 1, 2)].iter().for_each(|step| world.perform(step));
    world.perform(&Step::Join(2));
    world.perform(&Step::Request(0, 1, 2));
    world.perform(&Step::Request(1, 0, 2));
    let waits = world.records().into_iter().find(|record| matches!(record, Record::Pending { .. }));
    let key = agent(1, 1).request(numbered(3));
    assert!(matches!(&waits, Some(Record::Pending { key: of, .. }) if *of == key));
    world.perform(&Step::Release(0));
    let lent = |record: &Record| matches!(record, Record::Lease { key: of, .. } if *of == key);
    assert!(world.records().iter().any(lent));
    let mut restored = manager(1, false);
    assert_eq!(restored.restore(world.now, world.records().into_iter().chain(waits)), []);
    assert_eq!((restored.pending().len(), restored.leases().count()), (0, 1));
    assert_eq!(object(numbered(3)), restored.leases().next().unwrap().object);
}
