//! Costs of many agents at the manager's core: the time to plan a path from one to all others, a heartbeat of
//! each, and the memory of the objects that they have.
//!
//! `cargo bench -p polycast-manager --bench agents -- [AGENTS] [HOLDINGS]`; it prints one line of JSON. Each
//! object is at four agents. All is in one thread and without a network. Memory is what the process has
//! resident (`VmRSS`), less what it had before; times are of the processor (`/proc/self/schedstat`).

use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{Fabric, Fabrics, Fcfs, PlanId};
use polycast_protocol::directory::{Directory, DirectoryConfig, DirectoryInput};
use polycast_protocol::leases::{
    AgentKey, Input, Join, Leases, LeasesConfig, OnDeviceFailure, Output, PathRequest, Receivers,
    SessionsConfig,
};
use polycast_types::{AppId, DataId, Duration, ObjectId, Time};
use std::hint::black_box;

const AGENTS: u64 = 15_000;
const HOLDINGS: u64 = 1_000_000;
/// Agents that have an object.
const COPIES: u64 = 4;
/// So often a path to all is planned.
const PATHS: u64 = 20;
const NOW: Time = Time(1);

fn agent(number: u64) -> AgentKey {
    AgentKey { name: format!("h{number}"), incarnation: 1 }
}

fn object(number: u64) -> ObjectId {
    ObjectId { app: AppId::default(), data: DataId(number) }
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

fn manager() -> Leases {
    let pool = AddressPool::parse("239.255.64.0/24", 7410).expect("these are addresses");
    let fabrics: Vec<Box<dyn Fabric>> = vec![Box::new(IpMulticast::new(pool)), Box::new(TcpChain)];
    let day = Duration::from_secs(86_400);
    let config = LeasesConfig {
        lease: day,
        silence: day,
        sessions: SessionsConfig { of_address_max: usize::MAX, ..SessionsConfig::default() },
        pending_max: 1_024,
        leases_max: 10_000,
        agent_leases_max: 64,
        receiver_leases_max: 1_000,
        grant_bytes_max: u64::MAX,
        agents_max: usize::MAX,
        on_device_failure: OnDeviceFailure::Fallback,
        kept_max: 0,
        claims: None,
        patience: Duration::ZERO,
        recorded: false,
        first_plan: PlanId(1),
    };
    Leases::new(config, Fabrics::new(fabrics), Box::new(Fcfs))
}

/// Says something to the manager, and gives how many receivers were granted a path.
fn say(manager: &mut Leases, input: Input) -> usize {
    manager.handle(NOW, input);
    let mut granted = 0;
    while let Some(output) = manager.poll(NOW) {
        if let Output::Response { response, .. } = &output {
            granted = response.as_ref().expect("there is a path").receivers.len();
        }
        black_box(output);
    }
    granted
}

fn to_all(from: u64, agents: u64) -> Input {
    Input::Request(PathRequest {
        agent: agent(from % agents),
        request: from,
        object: object(from),
        object_bytes: 1 << 30,
        remaining_bytes: 1 << 30,
        further_sources: Vec::new(),
        receivers: Receivers::All,
        divisible: false,
        lease: None,
        wish: Default::default(),
    })
}

/// Returns the milliseconds of the processor that each of these takes.
fn each_ms(count: u64, mut act: impl FnMut(u64)) -> f64 {
    let before = processor_ns();
    (0..count).for_each(&mut act);
    (processor_ns() - before) as f64 / count as f64 / 1e6
}

/// Returns the bytes that the directory has for each holding.
fn bytes_per_holding(agents: u64, holdings: u64) -> u64 {
    let config = DirectoryConfig {
        holds_max: usize::try_from(holdings).unwrap_or(usize::MAX).saturating_mul(2),
        ..DirectoryConfig::default()
    };
    let before = resident_bytes();
    let mut directory = Directory::new(config, Time::ZERO, 1);
    for number in 0..holdings {
        let has = DirectoryInput::Have {
            agent: agent(number % agents),
            object: object(number / COPIES),
            length: 1_000,
            root: Some([7; 32]),
            age: Duration::ZERO,
        };
        directory.handle(NOW, has);
        while let Some(output) = directory.poll(NOW) {
            black_box(output);
        }
    }
    let bytes = resident_bytes().saturating_sub(before) / holdings.max(1);
    black_box(directory);
    bytes
}

fn main() {
    let mut given = std::env::args().skip(1).filter_map(|argument| argument.parse::<u64>().ok());
    let (agents, holdings) = (given.next().unwrap_or(AGENTS).max(2), given.next().unwrap_or(HOLDINGS));
    let mut manager = manager();
    let join_ms = each_ms(agents, |number| {
        let address = ([10, (number >> 16) as u8, (number >> 8) as u8, number as u8].into(), 7401);
        let join = Join { agent: agent(number), address, from: address.0, leases: Vec::new() };
        say(&mut manager, Input::Join(join));
    });
    let beat_ms = each_ms(agents, |number| {
        say(&mut manager, Input::Heartbeat { agent: agent(number), leases: Vec::new() });
    });
    let plan_ms = each_ms(PATHS, |number| {
        let receivers = say(&mut manager, to_all(number, agents));
        assert_eq!(receivers as u64, agents - 1, "it leads to all others");
    });
    println!(
        "{{\"agents\": {agents}, \"join_us\": {:.1}, \"heartbeat_us\": {:.2}, \"to_all_ms\": {plan_ms:.1}, \
         \"holdings\": {holdings}, \"bytes_per_holding\": {}, \"assertions\": {}}}",
        join_ms * 1e3,
        beat_ms * 1e3,
        bytes_per_holding(agents, holdings),
        cfg!(debug_assertions)
    );
}
