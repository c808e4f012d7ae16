//! The manager's core with 100,000 sessions at once: leases, labels, and a pool of addresses beyond a /24.
//! The rate of requests while it holds so many, and the bytes of memory that a session has.
//!
//! `cargo bench -p polycast-manager --bench sessions -- [SESSIONS] [RECEIVERS] [FABRIC]`; it prints one line
//! of JSON. The fabric is `orca`, or `ip-multicast`, whose paths hold an address and nothing else. All is in
//! one thread and without a network: what the core itself can. Memory is what the process has resident
//! (`VmRSS`) with the sessions, less what it had without. Requests are counted by the second of processor
//! time too (`/proc/self/schedstat`): another process that runs beside takes none of it.

use polycast_planning::estimate::{Assumed, Estimator};
use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::labels::Encoding;
use polycast_planning::labels::LabelOptions;
use polycast_planning::orca::{Orca, OrcaConfig};
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{Fabric, FabricName, Fabrics, Fcfs, HostId, PlanId};
use polycast_protocol::leases::{
    AgentKey, Input, Join, Leases, LeasesConfig, OnDeviceFailure, Output, PathRequest, Receivers,
    SessionsConfig,
};
use polycast_topology::Clos;
use polycast_types::{AppId, DataId, Duration, ObjectId, Time};
use std::hint::black_box;
use std::time::Instant;

const SESSIONS: u64 = 100_000;
const RECEIVERS: u64 = 8;
/// So many sessions end and others begin while all are held.
const CHURN: u64 = 20_000;
/// All happens at once.
const NOW: Time = Time(1);

/// Numbers that look as if they were drawn (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// A manager and its sessions.
struct World {
    manager: Leases,
    random: Random,
    hosts: u64,
    receivers: u64,
    fabric: FabricName,
    held: Vec<(u64, u64, PlanId)>,
}

fn name(host: u64) -> String {
    format!("h{host}")
}

fn agent(host: u64) -> AgentKey {
    AgentKey { name: name(host), incarnation: 1 }
}

/// Run time of the process, by the clock and by the processor.
struct Watch(Instant, u64);

impl Watch {
    fn start() -> Self {
        Watch(Instant::now(), processor_ns())
    }

    /// Returns the rate per second for this count, by the clock and by the processor.
    fn per_second(&self, count: u64) -> [f64; 2] {
        let busy_s = (processor_ns() - self.1) as f64 / 1e9;
        [self.0.elapsed().as_secs_f64(), busy_s].map(|seconds| count as f64 / seconds)
    }
}

fn processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux says how long a process ran");
    let first = text.split_whitespace().next().expect("it begins with that time");
    first.parse().expect("it is a number of nanoseconds")
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux says what a process has");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it says VmRSS");
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().expect("it is a number of KiB");
    kib << 10
}

/// Addresses for more than a million sessions.
fn pool(sessions: u64) -> AddressPool {
    let pool = AddressPool::parse("239.0.0.0/8", 7410).expect("these are addresses");
    assert!(u64::from(pool.count()) > sessions, "there are more addresses than sessions");
    pool
}

/// Labels for a fat-tree of 16 ports: 1,024 hosts, 128 leafs.
fn orca(clos: Clos, sessions: u64) -> Orca {
    let config = OrcaConfig {
        clos,
        labels: LabelOptions::new(69),
        encoding: Some(Encoding::Filter),
        // Each session has its entries at some of the spines; none is to be turned down for room.
        entries_max: u32::try_from(sessions).unwrap_or(u32::MAX),
        trees: 1,
        rack_feedback: true,
        rate: None,
    };
    let places = (0..clos.hosts()).map(|host| (HostId(host), host));
    Orca::new(config, places, pool(sessions)).expect("the network has labels")
}

impl World {
    fn new(sessions: u64, receivers: u64, fabric: FabricName) -> Self {
        let clos = Clos::new(16, 8, 8, 8, 8).expect("this is a fat-tree");
        let best: Box<dyn Fabric> = if fabric == Orca::NAME {
            Box::new(orca(clos, sessions))
        } else {
            Box::new(IpMulticast::new(pool(sessions)))
        };
        let fabrics: Vec<Box<dyn Fabric>> = vec![best, Box::new(TcpChain)];
        let fabrics =
            Fabrics::new(fabrics).estimating(Estimator::new(Assumed::default())).choosing_by_time(true);
        let day = Duration::from_secs(86_400);
        let config = LeasesConfig {
            lease: day,
            silence: day,
            sessions: SessionsConfig::default(),
            pending_max: 1_024,
            leases_max: usize::MAX,
            agent_leases_max: usize::MAX,
            receiver_leases_max: usize::MAX,
            grant_bytes_max: u64::MAX,
            agents_max: 100_000,
            on_device_failure: OnDeviceFailure::Fallback,
            kept_max: 0,
            claims: None,
            patience: Duration::ZERO,
            recorded: false,
            first_plan: PlanId(1),
        };
        let hosts = u64::from(clos.hosts());
        let mut manager = Leases::new(config, fabrics, Box::new(Fcfs));
        for host in 0..hosts {
            manager.know_host(&name(host));
        }
        let random = Random(0x9e37_79b9_7f4a_7c15);
        let mut world =
            World { manager, random, hosts, receivers, fabric, held: Vec::with_capacity(sessions as usize) };
        for host in 0..hosts {
            let address = ([10, 0, (host >> 8) as u8, host as u8].into(), 7401);
            let from = std::net::Ipv4Addr::LOCALHOST.into();
            world.say(Input::Join(Join { agent: agent(host), address, from, leases: Vec::new() }));
        }
        world
    }

    /// Says something to the manager, and gives the number of the path that was granted.
    fn say(&mut self, input: Input) -> Option<PlanId> {
        self.manager.handle(NOW, input);
        let mut granted = None;
        while let Some(output) = self.manager.poll(NOW) {
            if let Output::Response { response, .. } = &output {
                let grant = response.as_ref().expect("every request has a path");
                assert_eq!(grant.plan.fabric, self.fabric, "it goes over the fabric that is measured");
                granted = Some(grant.plan_id);
            }
            black_box(output);
        }
        granted
    }

    /// A session from a host to others.
    fn begin(&mut self, number: u64) {
        let source = self.random.below(self.hosts);
        let mut members = vec![source];
        while members.len() as u64 <= self.receivers {
            let host = self.random.below(self.hosts);
            if !members.contains(&host) {
                members.push(host);
            }
        }
        let request = PathRequest {
            agent: agent(source),
            request: number,
            object: ObjectId { app: AppId::default(), data: DataId(number) },
            object_bytes: 1_000_000,
            remaining_bytes: 1_000_000,
            further_sources: Vec::new(),
            receivers: Receivers::Named(members[1..].iter().copied().map(name).collect()),
            divisible: false,
            lease: None,
            wish: Default::default(),
        };
        let plan = self.say(Input::Request(request)).expect("it is answered at once");
        self.held.push((source, number, plan));
    }

    /// One of the sessions ends.
    fn end_one(&mut self) {
        let at = self.random.below(self.held.len() as u64) as usize;
        let (source, request, plan) = self.held.swap_remove(at);
        self.say(Input::Release { request: agent(source).request(request), plan });
    }
}

fn main() {
    let mut given = std::env::args().skip(1).filter_map(|argument| argument.parse::<u64>().ok());
    let (sessions, receivers) = (given.next().unwrap_or(SESSIONS), given.next().unwrap_or(RECEIVERS));
    let by_address = std::env::args().any(|argument| argument == IpMulticast::NAME.as_str());
    let fabric = if by_address { IpMulticast::NAME } else { Orca::NAME };
    let mut world = World::new(sessions, receivers, fabric);
    let (before, watch) = (resident_bytes(), Watch::start());
    (0..sessions).for_each(|number| world.begin(number));
    let filling = watch.per_second(sessions);
    assert_eq!(world.manager.leases().count() as u64, sessions, "all are held at the same time");
    let bytes = resident_bytes().saturating_sub(before);
    let (churn, watch) = (CHURN.min(sessions), Watch::start());
    for turn in 0..churn {
        world.end_one();
        world.begin(sessions + turn);
    }
    let full = watch.per_second(churn);
    println!(
        "{{\"fabric\": \"{fabric}\", \"sessions\": {sessions}, \"receivers\": {receivers}, \"hosts\": {}, \"requests_per_s_while_filling\": {:.0}, \
         \"requests_per_s_when_full\": {:.0}, \"per_processor_s_while_filling\": {:.0}, \"per_processor_s_when_full\": {:.0}, \
         \"bytes_per_session\": {}, \"assertions\": {}}}",
        world.hosts,
        filling[0],
        full[0],
        filling[1],
        full[1],
        bytes / sessions.max(1),
        cfg!(debug_assertions)
    );
}
