//! External schedulers against built-in ones, over circuits in virtual time: how long objects
//! take to get there, from their requests to the ends of their transfers.

use polycast_experiments::exact::{Claim, choose};
use polycast_experiments::random::Random;
use polycast_planning::ip_multicast::AddressPool;
use polycast_planning::ocs::{Ocs, OcsConfig};
use polycast_planning::{Fabrics, Fcfs, GreedyMatching, PlanId, Ruling, Scheduler};
use polycast_protocol::leases::{
    Advice, AgentKey, ExternalConfig, Input, Join, Leases, LeasesConfig, OnDeviceFailure, Output,
    PathRequest, Question, Receivers, RequestKey, SessionsConfig, known_hosts,
};
use polycast_topology::Hybrid;
use polycast_topology::optics::{PowerBudget, splitter_loss_db};
use polycast_types::{AppId, DataId, Duration, ObjectId, Rate, Time};
use std::collections::{BTreeMap, BTreeSet};

const RACKS: u32 = 16;
const REQUESTS: u64 = 64;
/// Requests come one after the other within this time, which is short beside their transfers.
const ARRIVALS_NS: u32 = 100_000_000;

/// Answers questions.
type External = fn(&Question) -> Advice;

const ALL: Ruling = Ruling::Accept { bytes: None, fabric: None, if_free: true };

/// As `examples/python/scheduler.py` does, where nothing waits for a minute.
fn shortest(question: &Question) -> Advice {
    let mut free: BTreeMap<&String, u64> = question.free.iter().map(|(kind, count)| (kind, *count)).collect();
    let mut order: Vec<_> = question.requests.iter().collect();
    order.sort_by_key(|request| (request.remaining_bytes, request.id));
    let mut rulings = Vec::new();
    for request in order {
        let takes = &request.needs.as_ref().expect("circuits are known").takes;
        if takes.iter().all(|(kind, count)| free.get(kind).is_some_and(|free| free >= count)) {
            takes.iter().for_each(|(kind, count)| *free.entry(kind).or_default() -= count);
            rulings.push((request.id, ALL));
        }
    }
    Advice { rulings, ask_again: Some(Duration::from_secs(60)) }
}

/// As `examples/exact-scheduler.rs` does.
fn exact(question: &Question) -> Advice {
    let free = question.free.iter().cloned().collect();
    let claim = |request: &polycast_protocol::leases::AskedRequest| Claim {
        takes: request.needs.as_ref().expect("circuits are known").takes.clone(),
        volume: u128::from(request.remaining_bytes) * request.receivers.len() as u128,
    };
    let claims: Vec<Claim> = question.requests.iter().map(claim).collect();
    let chosen = choose(&free, &claims, std::time::Duration::from_secs(20)).unwrap();
    let rulings = chosen.into_iter().map(|at| (question.requests[at].id, ALL)).collect();
    Advice { rulings, ask_again: Some(Duration::from_secs(60)) }
}

fn name(host: u32) -> String {
    format!("h{host}")
}

fn manager(built_in: impl FnOnce(Vec<(polycast_planning::HostId, u32)>) -> Box<dyn Scheduler>) -> Leases {
    let names: Vec<String> = (0..RACKS).map(name).collect();
    let places: Vec<_> =
        known_hosts(names.iter().map(String::as_str)).map(|(_, host)| host).zip(0..).collect();
    let hybrid =
        Hybrid { racks: RACKS, servers_per_rack: 1, ports_per_rack: 2, splitters: 8, splitter_fanout: 4 };
    let budget = PowerBudget {
        budget_db: 20.0,
        switch_loss_db: 1.0,
        splitter_loss_db: splitter_loss_db(4),
        amplifier_gain_db: 0.0,
    };
    let (rate, attempt_interval) = (Rate(10_000_000_000), Duration::from_millis(1));
    let config = OcsConfig { hybrid, cascade_max: 2, budget, rate, attempt_interval };
    let pool = AddressPool::new([239, 255, 64, 0].into(), 256, 7410).unwrap();
    let ocs = Ocs::new(config, places.clone(), pool).unwrap();
    let forever = Duration::from_secs(1 << 20);
    let leases = LeasesConfig {
        lease: forever,
        silence: forever,
        sessions: SessionsConfig::default(),
        pending_max: 1_024,
        leases_max: 1_024,
        agent_leases_max: 64,
        receiver_leases_max: 64,
        grant_bytes_max: u64::MAX,
        agents_max: 64,
        on_device_failure: OnDeviceFailure::Fallback,
        kept_max: 0,
        patience: Duration::ZERO,
        claims: None,
        recorded: false,
        first_plan: PlanId(1),
    };
    let mut manager = Leases::new(leases, Fabrics::new(vec![Box::new(ocs)]), built_in(places));
    for name in &names {
        manager.know_host(name);
    }
    manager
}

/// A request: when it comes, source, receivers and bytes.
struct Demand {
    at: Time,
    source: u32,
    receivers: BTreeSet<u32>,
    bytes: u64,
}

/// Groups of a source and 1 to 6 receivers, and sizes from 1 MB to 10 GB, each magnitude as likely.
fn demands(seed: u64) -> Vec<Demand> {
    let mut random = Random::new(seed);
    let one = |_| {
        let source = random.below(RACKS);
        let count = 1 + random.below(6) as usize;
        let mut receivers = BTreeSet::new();
        while receivers.len() < count {
            receivers.insert(random.below(RACKS));
            receivers.remove(&source);
        }
        let bytes = 1_000_000 * 10_u64.pow(random.below(4)) * u64::from(1 + random.below(9));
        Demand { at: Time(random.below(ARRIVALS_NS).into()), source, receivers, bytes }
    };
    let mut demands: Vec<Demand> = (0..REQUESTS).map(one).collect();
    demands.sort_by_key(|demand| demand.at);
    demands
}

/// The cluster in virtual time.
struct World {
    manager: Leases,
    external: Option<External>,
    /// Transfers that run, by their ends.
    running: BTreeSet<(Time, u64, PlanId, u32)>,
    asked_at: Vec<Time>,
    took_ns: Vec<u64>,
}

impl World {
    fn key(host: u32) -> AgentKey {
        AgentKey { name: name(host), incarnation: 1 }
    }

    /// Hands something in, and carries out what follows. Answers come at once.
    fn apply(&mut self, now: Time, input: Option<Input>) {
        input.into_iter().for_each(|input| self.manager.handle(now, input));
        while let Some(output) = self.manager.poll(now) {
            match output {
                Output::Ask { question } => {
                    let advice = Ok(self.external.expect("there is one")(&question));
                    self.manager.handle(now, Input::Advised { number: question.number, advice });
                }
                Output::External { trouble } => assert_eq!(trouble, None),
                Output::Response { request: RequestKey { agent, request }, response } => {
                    let grant = response.expect("every group can have circuits");
                    let ends = now + grant.service.expect("circuits have a rate");
                    let source = agent.name[1..].parse().unwrap();
                    self.running.insert((ends, request, grant.plan_id, source));
                }
                _ => {}
            }
        }
    }

    fn end_first(&mut self) {
        let (now, request, plan, source) =
            self.running.pop_first().expect("something runs as long as something waits");
        self.took_ns.push(now.since(self.asked_at[request as usize]).0);
        let request = Self::key(source).request(request);
        self.apply(now, Some(Input::Release { request, plan }));
    }

    /// The mean time from a request to its end, in seconds.
    fn run(mut self, demands: &[Demand]) -> f64 {
        for host in 0..RACKS {
            let address = [10, 0, 0, host as u8].into();
            let join =
                Join { agent: Self::key(host), address: (address, 7401), from: address, leases: Vec::new() };
            self.apply(Time(0), Some(Input::Join(join)));
        }
        for (number, demand) in (0..).zip(demands) {
            while self.running.first().is_some_and(|(ends, ..)| *ends <= demand.at) {
                self.end_first();
            }
            self.asked_at.push(demand.at);
            let request = PathRequest {
                agent: Self::key(demand.source),
                request: number,
                object: ObjectId { app: AppId::default(), data: DataId(number) },
                object_bytes: demand.bytes,
                remaining_bytes: demand.bytes,
                further_sources: Vec::new(),
                receivers: Receivers::Named(demand.receivers.iter().map(|host| name(*host)).collect()),
                divisible: false,
                lease: None,
                wish: Default::default(),
            };
            self.apply(demand.at, Some(Input::Request(request)));
        }
        while self.took_ns.len() < demands.len() {
            self.end_first();
        }
        self.took_ns.iter().sum::<u64>() as f64 / self.took_ns.len() as f64 / 1e9
    }
}

fn mean_s(manager: Leases, external: Option<External>, demands: &[Demand]) -> f64 {
    let manager = match external {
        Some(_) => manager.asking(Time(0), ExternalConfig { deadline: Duration::from_millis(200) }),
        None => manager,
    };
    World { manager, external, running: BTreeSet::new(), asked_at: Vec::new(), took_ns: Vec::new() }
        .run(demands)
}

#[test]
fn external_ones_beat_first_come_first_served() {
    println!("seed    fcfs  greedy-matching   exact  shortest   (mean seconds from the request to the end)");
    let mut all = Vec::new();
    for seed in 1..=8 {
        let demands = demands(seed);
        let fcfs = mean_s(manager(|_| Box::new(Fcfs)), None, &demands);
        let greedy = mean_s(manager(|places| Box::new(GreedyMatching::new(places))), None, &demands);
        let of = |external: External| mean_s(manager(|_| Box::new(Fcfs)), Some(external), &demands);
        let (exact, shortest) = (of(exact), of(shortest));
        println!("{seed:4}  {fcfs:6.2}  {greedy:15.2}  {exact:6.2}  {shortest:8.2}");
        all.push([fcfs, greedy, exact, shortest]);
    }
    for [fcfs, _, _, shortest] in &all {
        assert!(*shortest < fcfs * 0.8, "{all:?}");
    }
    // Most volume first is not the shortest first: it is ahead over all seeds, and not at each.
    let sum = |at: usize| all.iter().map(|means| means[at]).sum::<f64>();
    assert!(sum(2) < sum(0) * 0.8, "{all:?}");
}
