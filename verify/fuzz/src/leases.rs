//! The manager's core, which hears agents, devices, and the records of a manager before it.

use crate::words::{INPUTS_MAX, Words, drain};
use polycast_planning::ip_multicast::{AddressPool, IpMulticast};
use polycast_planning::labels::Encoding;
use polycast_planning::ocs::{Ocs, OcsConfig};
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{
    Channel, DeviceCommand, FabricName, Fabrics, Failure, Fcfs, HostId, Plan, PlanId, PullTuning, Pulling,
    RackPort, Resource, Wish,
};
use polycast_protocol::leases::{
    AgentKey, HeldLease, Input, Join, Leases, LeasesConfig, OnDeviceFailure, Output, PathRequest, Receivers,
    Record, RequestKey, STREAMS_FROM, SessionsConfig, known_hosts,
};
use polycast_topology::Hybrid;
use polycast_topology::optics::{PowerBudget, splitter_loss_db};
use polycast_types::{Duration, Rate, Time};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr};

const NAMES: [&str; 5] = ["host-0", "host-1", "host-2", "host-3", "host-4"];
const AGENTS_MAX: usize = 4;
const LEASES_MAX: usize = 5;
const PENDING_MAX: usize = 4;
/// Another manager may have lent more, and had other limits.
const RECORDS_MAX: usize = 64;

/// Four racks of one host and one fibre, then addresses, then a chain.
fn manager(on_device_failure: OnDeviceFailure) -> Leases {
    let hybrid =
        Hybrid { racks: 4, servers_per_rack: 1, ports_per_rack: 1, splitters: 1, splitter_fanout: 2 };
    let (switch_loss_db, splitter_loss_db) = (1.0, splitter_loss_db(2));
    let budget = PowerBudget { budget_db: 14.0, switch_loss_db, splitter_loss_db, amplifier_gain_db: 0.0 };
    let attempt_interval = Duration::from_millis(1);
    let circuits = OcsConfig { hybrid, cascade_max: 1, budget, rate: Rate(1_000_000_000), attempt_interval };
    let pool = |third| AddressPool::new([239, 255, third, 0].into(), 2, 7410).expect("a multicast address");
    let places: Vec<_> = known_hosts(NAMES).map(|(_, host)| host).zip(0..4).collect();
    let ocs = Ocs::new(circuits, places, pool(64)).expect("a small network");
    let config = LeasesConfig {
        lease: Duration::from_secs(30),
        silence: Duration::from_secs(60),
        sessions: SessionsConfig::default(),
        pending_max: PENDING_MAX,
        leases_max: LEASES_MAX,
        agent_leases_max: LEASES_MAX,
        receiver_leases_max: 1_000,
        grant_bytes_max: 500,
        agents_max: AGENTS_MAX,
        on_device_failure,
        kept_max: 2,
        claims: Some(Duration::from_secs(4)),
        patience: Duration::from_secs(4),
        recorded: true,
        first_plan: PlanId(1),
    };
    let fabrics = Fabrics::new(vec![Box::new(ocs), Box::new(IpMulticast::new(pool(65))), Box::new(TcpChain)]);
    let mut manager = Leases::new(config, fabrics, Box::new(Fcfs));
    for name in NAMES {
        manager.know_host(name);
    }
    manager
}

fn key(words: &mut Words<'_>) -> AgentKey {
    let incarnation = if words.below(8) == 0 { words.number(2) } else { 1 };
    AgentKey { name: words.name(), incarnation }
}

fn request_number(words: &mut Words<'_>) -> u64 {
    if words.below(4) == 0 { STREAMS_FROM + words.below(3) } else { words.below(4) }
}

fn asked(words: &mut Words<'_>) -> RequestKey {
    key(words).request(request_number(words))
}

fn resource(words: &mut Words<'_>) -> Resource {
    match words.below(3) {
        0 => Resource::CircuitPort { port: words.small(6) },
        1 => Resource::Splitter { splitter: words.small(2) },
        _ => Resource::MulticastAddress {
            address: [239, 255, 64 + words.below(2) as u8, words.below(3) as u8].into(),
            port: 7410,
        },
    }
}

fn command(words: &mut Words<'_>) -> DeviceCommand {
    let from = match words.below(3) {
        0 => RackPort::Host(HostId(words.small(6))),
        1 => RackPort::Circuit(words.small(6)),
        _ => RackPort::FromSplitters,
    };
    if words.below(4) > 0 {
        return DeviceCommand::CrossConnect { from: words.small(6), to: words.small(6) };
    }
    let (rack, group) = (words.small(4), [239, 255, 64, words.below(2) as u8].into());
    DeviceCommand::RackRule { rack, group, from, to: vec![from] }
}

/// Draws a group of one of two pools, or any address.
fn group(words: &mut Words<'_>) -> IpAddr {
    match words.below(8) {
        0 => words.address(),
        _ => [239, 255, 64 + words.below(2) as u8, words.below(3) as u8].into(),
    }
}

/// Draws a channel for data, as an agent or a record may name it.
pub fn channel(words: &mut Words<'_>) -> Channel {
    let rate = words.flip().then(|| Rate(words.number(9)));
    match words.below(8) {
        0..=3 => Channel::Multicast { group: (group(words), 7410), rate, attempt_interval: words.span() },
        4 | 5 => Channel::Chain { order: (0..words.below(4)).map(|_| HostId(words.small(6))).collect() },
        6 => {
            let (label, further) = (words.bytes(9).to_vec(), Vec::new());
            let group = (words.address(), 7410);
            let encoding = if words.flip() { Encoding::Filter } else { Encoding::Pods };
            Channel::Label {
                encoding,
                group,
                session: words.small(4),
                label,
                further,
                racks: Vec::new(),
                left_out: Vec::new(),
                rate,
            }
        }
        _ => {
            let pulling =
                Pulling { payload_bytes: 0, credits: 0, link_rate: Rate(0), tuning: PullTuning::default() };
            Channel::SourceRoutes { tree_count: words.small(4), pulling, trees: Vec::new() }
        }
    }
}

/// A plan, as an agent or a record may tell it.
pub fn plan(words: &mut Words<'_>) -> Plan {
    let fabric = ["ocs", "ip-multicast", "tcp-chain", "orca"][words.below(4) as usize];
    Plan {
        fabric: FabricName::new(fabric),
        resources: (0..words.below(4)).map(|_| resource(words)).collect(),
        uses: Default::default(),
        commands: (0..words.below(3)).map(|_| command(words)).collect(),
        channel: channel(words),
    }
}

fn held(words: &mut Words<'_>) -> HeldLease {
    let (request, fabric) = (request_number(words), ["ocs", "ip-multicast", "tcp-chain", "elsewhere"]);
    let kept = words.flip().then(|| plan(words));
    // Some plans are told as a whole.
    let told = kept.as_ref().filter(|_| words.flip()).map(|plan| plan.channel.clone());
    HeldLease {
        request,
        plan: PlanId(words.number(6)),
        object: words.object(),
        receivers: words.names(),
        bytes: words.number(9),
        fabric: fabric[words.below(4) as usize].to_string(),
        channel: told.unwrap_or_else(|| channel(words)),
        left: words.flip().then(|| words.span()),
        kept,
        only: words.flip(),
        further_sources: further_sources(words),
    }
}

/// Sources beside the one that asks, which few paths have.
fn further_sources(words: &mut Words<'_>) -> Vec<String> {
    if words.below(4) == 0 { words.names() } else { Vec::new() }
}

fn failures(words: &mut Words<'_>) -> Vec<Failure> {
    let failure = |words: &mut Words<'_>| match words.below(5) {
        0 => Failure::Host(HostId(words.small(6))),
        _ => Failure::Resource(resource(words)),
    };
    (0..words.below(3)).map(|_| failure(words)).collect()
}

fn request(words: &mut Words<'_>) -> PathRequest {
    let object_bytes = words.number(1_000);
    PathRequest {
        agent: key(words),
        request: request_number(words),
        object: words.object(),
        object_bytes,
        remaining_bytes: if words.below(4) == 0 { words.number(1_000) } else { object_bytes },
        receivers: if words.below(4) == 0 { Receivers::All } else { Receivers::Named(words.names()) },
        divisible: words.flip(),
        lease: words.flip().then(|| words.span()),
        wish: Wish { or_fail: words.flip(), ..Wish::default() },
        further_sources: further_sources(words),
    }
}

fn input(words: &mut Words<'_>) -> Input {
    match words.below(16) {
        0..=3 => {
            let (agent, address) =
                (key(words), ([10, 0, 0, words.below(2) as u8].into(), words.below(2) as u16));
            let leases = (0..words.below(3)).map(|_| held(words)).collect();
            Input::Join(Join { agent, address, from: Ipv4Addr::LOCALHOST.into(), leases })
        }
        4 => {
            let leases = (0..words.below(6)).map(|_| PlanId(words.number(4))).collect();
            Input::Heartbeat { agent: key(words), leases }
        }
        5 => Input::Leave { agent: key(words), keeps: false },
        6 => {
            let result = if words.flip() { Ok(()) } else { Err(words.text()) };
            Input::SetUp { plan: PlanId(words.number(4)), result }
        }
        7 => Input::Failed { failures: failures(words) },
        8 => Input::Repaired { failures: failures(words) },
        9 => Input::Found { commands: (0..words.below(4)).map(|_| command(words)).collect() },
        10..=12 => Input::Request(request(words)),
        13 => Input::Extend {
            request: asked(words),
            time: words.flip().then(|| words.span()),
            add: words.names(),
            remove: words.names(),
            sources: words.names(),
        },
        14 => Input::Release { request: asked(words), plan: PlanId(words.number(4)) },
        _ => match words.below(3) {
            0 => Input::Parted { agent: key(words), session: words.number(4) },
            _ => Input::Withdraw { request: asked(words) },
        },
    }
}

/// Takes what the manager has to say; what it grants can be written down and read again.
fn rest(manager: &mut Leases, now: Time, limits: (usize, usize)) {
    manager.check();
    drain(
        manager,
        |manager| manager.poll(now),
        |_, output| {
            if let Output::Granted { plan, .. } | Output::Replanned { plan, .. } = output {
                let text = serde_json::to_vec(&plan).expect("a plan is data");
                assert_eq!(serde_json::from_slice::<Plan>(&text).ok().as_ref(), Some(&plan));
            }
        },
    );
    manager.check();
    assert!(manager.leases().count() <= limits.0, "{} leases", manager.leases().count());
    assert!(manager.pending().len() <= limits.1, "{} requests wait", manager.pending().len());
    assert!(manager.deadline().is_none_or(|at| at > now), "drained, yet due at {now:?}");
}

fn drive(manager: &mut Leases, now: &mut Time, words: &mut Words<'_>, limits: (usize, usize)) {
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(now);
        manager.handle(*now, input(words));
        rest(manager, *now, limits);
    }
}

/// Whatever agents and devices say, the manager keeps to its bounds; one that goes on from its records is
/// like it, and one that goes on from damaged records refuses them, or keeps to its bounds too.
pub fn leases(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let on_device_failure = if words.flip() { OnDeviceFailure::Wait } else { OnDeviceFailure::Fallback };
    let damages: Vec<(u64, u64)> = (0..words.below(4)).map(|_| (words.below(200), words.number(4))).collect();
    let mut manager = manager(on_device_failure);
    let mut now = Time(1);
    drive(&mut manager, &mut now, &mut words, (LEASES_MAX, PENDING_MAX));
    assert!(manager.members().count() <= AGENTS_MAX);
    let records = manager.records();
    let mut restored = self::manager(on_device_failure);
    assert_eq!(restored.restore(now, records.clone()), [], "our own records");
    assert_eq!(restored.records(), records);
    // Another program has changed values in the store.
    let mut values = serde_json::to_value(&records).expect("records are data");
    for (at, number) in damages {
        damage(&mut values, &mut (at as usize), number);
    }
    if let Ok(records) = serde_json::from_value::<Vec<Record>>(values) {
        go_on(records, now, &mut Words::new(bytes));
    }
}

/// Puts another number in the place of one of those in a value.
fn damage(value: &mut Value, at: &mut usize, number: u64) {
    match value {
        Value::Number(_) if *at == 0 => {
            *value = number.into();
            *at = usize::MAX;
        }
        Value::Number(_) => *at -= 1,
        Value::Array(values) => values.iter_mut().for_each(|value| damage(value, at, number)),
        Value::Object(fields) => fields.values_mut().for_each(|value| damage(value, at, number)),
        _ => {}
    }
}

/// A manager that goes on from records which it did not write.
fn go_on(records: Vec<Record>, mut now: Time, words: &mut Words<'_>) {
    let limits = (LEASES_MAX + records.len(), PENDING_MAX + records.len());
    let mut manager = manager(OnDeviceFailure::Fallback);
    // What does not fit is left out, and the manager leads.
    manager.restore(now, records);
    rest(&mut manager, now, limits);
    drive(&mut manager, &mut now, words, limits);
}

/// Records as a store may hold them, one a line: what is read as records can be gone on from, or is refused.
pub fn manager_records(bytes: &[u8]) {
    let (text, after) = bytes.split_at(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).take(RECORDS_MAX);
    let Ok(records) = lines.map(serde_json::from_slice::<Record>).collect::<Result<Vec<_>, _>>() else {
        return;
    };
    go_on(records, Time(1_000_000_000_000), &mut Words::new(after));
}

/// A plan as an agent tells it to a new manager: what is read as a plan is written as the same.
pub fn plan_record(bytes: &[u8]) {
    if let Ok(plan) = serde_json::from_slice::<Plan>(bytes) {
        let text = serde_json::to_vec(&plan).expect("a plan is data");
        assert_eq!(serde_json::from_slice::<Plan>(&text).ok(), Some(plan));
    }
}

/// Records of a manager that agents have joined: one has a path, and one waits for it.
#[cfg(test)]
pub(crate) fn recorded() -> Vec<Record> {
    let mut manager = manager(OnDeviceFailure::Fallback);
    let agent = |number: usize| AgentKey { name: NAMES[number].to_string(), incarnation: 1 };
    let mut say = |input| {
        manager.handle(Time(1), input);
        while manager.poll(Time(1)).is_some() {}
    };
    for number in 0..4 {
        let address = ([10, 0, 0, number as u8].into(), 7401);
        let from = Ipv4Addr::LOCALHOST.into();
        say(Input::Join(Join { agent: agent(number), address, from, leases: Vec::new() }));
    }
    say(Input::Found { commands: Vec::new() });
    for (source, receiver) in [(0, 1), (2, 3)] {
        let receivers = Receivers::Named(vec![NAMES[receiver].to_string()]);
        let (agent, object) = (agent(source), Words::new(&[]).object());
        let (object_bytes, remaining_bytes, lease) = (1_000, 1_000, Some(Duration::from_secs(60)));
        say(Input::Request(PathRequest {
            agent,
            request: 1,
            object,
            object_bytes,
            remaining_bytes,
            receivers,
            further_sources: Vec::new(),
            divisible: true,
            lease,
            wish: Wish::default(),
        }));
    }
    manager.records()
}
