//! Cases by push: trees, labels and relays that change, circuits that turn, TCP beside it, and receivers that
//! fetch over TCP.

use super::draw::{self, Random};
use super::{Coverage, Plant, Verdict, attacker, session as sessions};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_planning::labels::LabelPlanner;
use polycast_planning::relays::recover_source;
use polycast_protocol::push::SlowPolicy;
use polycast_simulator::packet::scenario::Layout;
use polycast_simulator::packet::tcp::{Growth, TcpConfig};
use polycast_simulator::packet::world::forward::{Forwarding, LabelSwitches, Relays};
use polycast_simulator::packet::world::{
    Cluster, Datagram, Flow, Happening, OPENS_WITHIN, Phase, PushConfig, Reader,
};
use polycast_simulator::packet::{Faults, LinkId, Network, NodeId, Outcome};
use polycast_topology::Failures;
use polycast_types::{Duration, Rate, Time};

const NETWORKS: [&str; 12] = [
    "shufflecast:2,2,1",
    "shufflecast:2,2,2",
    "shufflecast:3,2,1",
    "leaf-spine:1,1,4",
    "leaf-spine:2,1,3",
    "leaf-spine:3,2,3",
    "fat-tree:4,3",
    "clos:2,2,2,3,2",
    "bcube:2,2",
    "bcube:4,2",
    "torus:3,2",
    "torus:3,3",
];
/// After healing a transfer is over within this time.
const LIVENESS: Duration = Duration::from_secs(30);
/// Number of times that receivers given up while things failed are served again; once is enough.
const ROUNDS: u32 = 2;

struct Case {
    name: String,
    layout: Layout,
    source: u32,
    receivers: Vec<u32>,
    heal_at: Time,
    /// Set if labels of a session or rules of relays forward the packets.
    planned: bool,
    /// A ToR whose splitter fails and is never repaired: the others relay in its place.
    dead_relay: Option<u32>,
}

/// Runs a case; with an attacker where `attacks` draws one.
pub(super) fn run(
    seed: u64,
    random: &mut Random,
    plant: Option<Plant>,
    mut attacks: Option<&mut attacker::Draw>,
) -> Verdict {
    let name = String::from(*random.pick(&NETWORKS));
    let layout: Layout = name.parse().expect("the names are those of networks");
    let mut hosts = draw::hosts(random, layout.hosts(), 9);
    let (source, labels) = (hosts.remove(0), layout.clos().is_some() && random.one_in(2));
    let faults = draw::faults(random);
    let link = draw::link(random, faults);
    let mut coverage = Coverage::of(&faults);
    let bytes = if random.one_in(20) { random.below(2) } else { random.magnitude(2_000..=2_000_000) };
    // So that what fails meets a transfer, and not only its end.
    let span = link.rate.time_for(bytes) * 3 + link.delay * 20 + Duration::from_millis(3);
    let heal_at = Time(random.magnitude(500_000..=span.0));
    let mut case = Case { name, layout, source, receivers: hosts, heal_at, planned: false, dead_relay: None };
    let mut net: Network<Datagram> = layout.build(link, &[], seed).expect("nothing is changed");
    let growth = if random.one_in(2) { Growth::Reno } else { Growth::Cubic };
    let mut cluster = Cluster::new(seed, TcpConfig { growth, ..TcpConfig::default() });
    let (seen, hooks) = crate::hooks(plant);
    cluster.set_hooks(hooks);
    let (config, mut drawn) = (config_of(random), String::new());
    let mut config = sessions::config(random, bytes, config, &mut drawn);
    if let Some(attacks) = &mut attacks {
        attacks.settle(&mut config);
    }
    let mut summary = format!(
        "push{} on {}, {} receivers, {bytes} bytes{}",
        if labels { " by labels" } else { "" },
        case.name,
        case.receivers.len(),
        if config.multicast { "" } else { ", chained" },
    ) + &drawn;
    let nodes: Vec<NodeId> = case.receivers.iter().map(|&host| NodeId(host)).collect();
    let plans = labels || layout.shufflecast().is_some();
    let forwarding = if plans { session(&case, &case.receivers, false) } else { None };
    case.planned = forwarding.is_some();
    cluster.add_push(&net, NodeId(source), &nodes, bytes, config.clone(), forwarding);
    older_versions(seed, &mut cluster, &mut summary);
    hold_up(seed, &mut net, &mut cluster, &case);
    if case.planned {
        cluster.set_members(0, &nodes);
    }
    sessions::plan(random, &mut net, &mut cluster, (0, heal_at), &config, &mut summary);
    if random.one_in(4) {
        let hosts = draw::hosts(random, case.layout.hosts(), 6);
        summary.push_str(", beside another source");
        let bytes = random.magnitude(2_000..=1_000_000);
        let config = config_of(random);
        let mut config = sessions::config(random, bytes, config, &mut summary);
        config.sealed = attacks.is_some();
        let both = (bytes, config.clone());
        let second = sessions::second_source(random, &net, &mut cluster, &hosts, both);
        sessions::plan(random, &mut net, &mut cluster, (second, heal_at), &config, &mut summary);
    }
    for transfer in 0..cluster.transfers().len() as u32 {
        cluster.plan(&mut net, Time::ZERO, Happening::StartTransfer { transfer });
        plan_hosts(random, &mut net, &mut cluster, &case, transfer);
    }
    if let Some(attacks) = attacks {
        attacks.begin((seed, heal_at), &mut net, &mut cluster, (&mut coverage, &mut summary));
    }
    plan_storm(random, &mut net, &mut cluster, &case);
    plan_more(random, &mut net, &mut cluster, &mut case, &mut summary);
    let failure = live(&mut net, &mut cluster, &case).err();
    coverage.merge(&seen.coverage());
    Verdict { seed, case: summary, failure, trace_hash: net.trace_hash(), events: net.events(), coverage }
}

/// Some receivers have an older version. Drawn apart, so that what else a seed draws stays what it was.
fn older_versions(seed: u64, cluster: &mut Cluster, summary: &mut String) {
    let mut random = Random::new(seed ^ 0x6f6c_6465_7200);
    let mut readers = Random::new(seed ^ 0x7061_6765_7300);
    for receiver in 0..cluster.push(0).receivers().len() as u32 {
        if random.one_in(6) {
            let one_in = random.magnitude(2..=100);
            cluster.give_older(0, receiver, |_| random.one_in(one_in));
            summary.push_str(", one has an older version");
            if readers.one_in(2) {
                cluster.give_readers(0, receiver, readers_of(&mut readers));
                summary.push_str(" whose pages may be taken");
            }
        }
    }
}

/// Some receivers are held up by their disks. Drawn apart as well.
fn hold_up(seed: u64, net: &mut Network<Datagram>, cluster: &mut Cluster, case: &Case) {
    let mut random = Random::new(seed ^ 0x6865_6c64_7570_0000);
    for receiver in 0..cluster.push(0).receivers().len() as u32 {
        if random.one_in(8) {
            let span = Duration(random.magnitude(500_000..=2_000_000_000));
            let at = random.time_below(case.heal_at);
            cluster.plan(net, at, Happening::Hold { transfer: 0, receiver, span });
        }
    }
}

/// Processes that read an older version: some have it open when the object begins to come, some find it just
/// then.
fn readers_of(random: &mut Random) -> Vec<Reader> {
    let reader = |random: &mut Random| {
        let (finds_at, opens_at) = match random.one_in(2) {
            true => (Time::ZERO, Time::ZERO),
            false => {
                let finds_at = Time(random.magnitude(10_000..=50_000_000));
                (finds_at, finds_at + Duration(random.below(OPENS_WITHIN.0)))
            }
        };
        let reads = Duration(random.magnitude(1_000_000..=2_000_000_000));
        Reader { finds_at, opens_at, closes_at: opens_at + reads }
    };
    (0..random.below(3)).map(|_| reader(random)).collect()
}

fn config_of(random: &mut Random) -> PushConfig {
    let after = Duration(random.magnitude(50_000_000..=2_000_000_000));
    PushConfig {
        fragment_bytes: random.magnitude(100..=8_900) as u32,
        group_bytes: 1 << random.within(10..=17),
        rate: random.one_in(3).then(|| Rate(random.magnitude(50_000_000..=5_000_000_000))),
        window_bytes: random.magnitude(64 << 10..=4 << 20),
        service: if random.one_in(4) { Duration(random.magnitude(100..=50_000)) } else { Duration::ZERO },
        stall_timeout: Duration(random.magnitude(1_000_000_000..=10_000_000_000)),
        slow: match random.below(6) {
            0 | 1 => SlowPolicy::Wait,
            2 | 3 => SlowPolicy::SHIPPED,
            _ => SlowPolicy::CatchUp { after },
        },
        multicast: !random.one_in(8),
        ..PushConfig::default()
    }
}

/// The switches of a session to these hosts, or the relays of the source, after the failure of a relay or
/// before; `None` if the planner has no way.
fn session(case: &Case, hosts: &[u32], failed: bool) -> Option<Forwarding> {
    if let Some((fabric, hosts_per_tor)) = case.layout.shufflecast() {
        let source_tor = case.source / hosts_per_tor;
        let dead: BTreeSet<u32> = case.dead_relay.filter(|_| failed).into_iter().collect();
        let recovery = recover_source(&fabric, &dead, source_tor);
        return Some(Forwarding::Relays(Relays {
            hosts_per_tor,
            tors: fabric.tors(),
            source_tor,
            relays: recovery.relay_set(&fabric, source_tor).into_iter().collect(),
            members: hosts.iter().map(|&host| NodeId(host)).collect(),
        }));
    }
    let mut planner = LabelPlanner::new(case.layout.clos()?, 24).ok()?;
    let plan = planner.plan(1, case.source, hosts, &Failures::none()).ok()?;
    Some(Forwarding::Labels(Box::new(LabelSwitches::new(planner, &plan))))
}

/// Plans what fails in the safety phase; everything is repaired at its end.
fn plan_storm(random: &mut Random, net: &mut Network<Datagram>, cluster: &mut Cluster, case: &Case) {
    let end = case.heal_at;
    for _ in 0..random.below(4) {
        let link = LinkId(random.below(net.link_count().into()) as u32);
        let back = net.reverse(link).filter(|_| random.one_in(2));
        let (down, up) = span(random, end);
        for link in [Some(link), back].into_iter().flatten() {
            cluster.plan(net, down, Happening::Link { link, up: false });
            cluster.plan(net, up, Happening::Link { link, up: true });
        }
        if random.one_in(2) {
            cluster.plan(net, down + Duration::from_millis(1), Happening::Reroute);
        }
    }
    let switches = net.node_count() - case.layout.hosts();
    if switches > 0 && random.one_in(5) {
        let node = NodeId(case.layout.hosts() + random.below(switches.into()) as u32);
        let (down, up) = span(random, end);
        cluster.plan(net, down, Happening::Node { node, up: false });
        cluster.plan(net, up, Happening::Node { node, up: true });
        cluster.plan(net, down + Duration::from_millis(2), Happening::Reroute);
    }
}

/// Plans crashes of the hosts of a transfer, and slow ones.
fn plan_hosts(
    random: &mut Random,
    net: &mut Network<Datagram>,
    cluster: &mut Cluster,
    case: &Case,
    transfer: u32,
) {
    let end = case.heal_at;
    let receivers = cluster.push(transfer).receivers().len() as u32;
    for receiver in 0..receivers {
        if random.one_in(5) {
            let (down, up) = span(random, end);
            cluster.plan(net, down, Happening::CrashReceiver { transfer, receiver });
            cluster.plan(net, up, Happening::JoinReceiver { transfer, receiver });
            if transfer == 0 && case.planned && case.layout.clos().is_some() {
                relabel(net, cluster, case, receiver, down, up);
            }
        }
        if random.one_in(8) {
            let service = Duration(random.magnitude(1_000..=500_000));
            let at = random.time_below(end);
            cluster.plan(net, at, Happening::Service { transfer, receiver, service });
        }
    }
    if random.one_in(6) {
        let (down, up) = span(random, end);
        cluster.plan(net, down, Happening::CrashSource { transfer });
        cluster.plan(net, up, Happening::StartTransfer { transfer });
    }
}

/// Circuits that turn, other traffic, and a relay that fails for good.
fn plan_more(
    random: &mut Random,
    net: &mut Network<Datagram>,
    cluster: &mut Cluster,
    case: &mut Case,
    summary: &mut String,
) {
    let (hosts, end) = (case.layout.hosts(), case.heal_at);
    let switches = net.node_count() - hosts;
    if switches > 0 && random.one_in(4) {
        // Dark while it turns, and then a time in which only part gets through.
        let node = NodeId(hosts + random.below(switches.into()) as u32);
        let mut times = [random.time_below(end), random.time_below(end), random.time_below(end)];
        times.sort_unstable();
        let [begin, light, ready_at] = times;
        let loss_ppm = random.within(50_000..=950_000) as u32;
        cluster.plan(net, begin, Happening::Turn { node, ready_at: light, loss_ppm: 1_000_000 });
        cluster.plan(net, light, Happening::Turn { node, ready_at, loss_ppm });
        summary.push_str(", a switch turns");
    }
    if random.one_in(3) {
        for _ in 0..random.within(1..=3) {
            let from = random.below(hosts.into()) as u32;
            let to = (from + 1 + random.below(u64::from(hosts) - 1) as u32) % hosts;
            let bytes = random.magnitude(10_000..=3_000_000);
            let flow = cluster.add_flow(Flow::new(NodeId(from), NodeId(to), bytes));
            let at = random.time_below(end);
            cluster.plan(net, at, Happening::StartFlow { flow });
        }
        summary.push_str(", beside TCP");
    }
    if let Some((fabric, hosts_per_tor)) = case.layout.shufflecast()
        && random.one_in(2)
    {
        let relay = random.below(fabric.tors().into()) as u32;
        let at = random.time_below(end);
        // The splitter of the source's own rack has no mirror: nothing could be done.
        if relay != case.source / hosts_per_tor {
            case.dead_relay = Some(relay);
            let from = NodeId(hosts + relay);
            let link =
                net.link_between(from, NodeId(hosts + fabric.tors() + relay)).expect("each has a splitter");
            cluster.plan(net, at, Happening::Link { link, up: false });
            let after = at + Duration(random.magnitude(100_000..=5_000_000));
            replan(net, cluster, case, after, &case.receivers);
            summary.push_str(", a relay fails");
        }
    }
}

/// The session is planned for these hosts, and around what has failed.
fn replan(net: &mut Network<Datagram>, cluster: &mut Cluster, case: &Case, at: Time, hosts: &[u32]) {
    if let Some(forwarding) = session(case, hosts, true) {
        let members = hosts.iter().map(|&host| NodeId(host)).collect();
        cluster.plan(net, at, Happening::Relabel { transfer: 0, forwarding: forwarding.into(), members });
    }
}

/// Follows a packet over the links that are up: every receiver gets it once, or what is wrong.
fn walk(net: &Network<Datagram>, cluster: &Cluster, case: &Case) -> Result<(), String> {
    let forwarding = cluster.push(0).forwarding();
    let mut copies: BTreeMap<u32, u32> = BTreeMap::new();
    let mut ways: Vec<(NodeId, Option<LinkId>, u8)> = Vec::from([(NodeId(case.source), None, 0)]);
    let mut steps = 0;
    while let Some((node, from, stage)) = ways.pop() {
        steps += 1;
        if steps > 64 * net.link_count() {
            return Err("a packet goes round in a loop".into());
        }
        let mut out = Vec::new();
        if forwarding.next(net, node, from, stage, &mut out) && from.is_some() {
            *copies.entry(node.0).or_default() += 1;
        }
        let live = out.into_iter().filter(|(link, _)| net.is_up(*link));
        ways.extend(live.map(|(link, stage)| (net.ends(link).1, Some(link), stage)));
    }
    match case.receivers.iter().find(|host| copies.get(host) != Some(&1)) {
        Some(host) => {
            let count = copies.get(host).copied().unwrap_or(0);
            Err(format!("receiver {host} gets {count} copies of a packet after everything was planned anew"))
        }
        None => Ok(()),
    }
}

/// A time in the safety phase and a later one.
fn span(random: &mut Random, end: Time) -> (Time, Time) {
    let (a, b) = (random.time_below(end), random.time_below(end));
    (a.min(b), a.max(b) + Duration(1))
}

/// The session is planned anew without a receiver, and later with it again.
fn relabel(
    net: &mut Network<Datagram>,
    cluster: &mut Cluster,
    case: &Case,
    receiver: u32,
    down: Time,
    up: Time,
) {
    let left = case.receivers[receiver as usize];
    let others: Vec<u32> = case.receivers.iter().copied().filter(|&host| host != left).collect();
    for (at, hosts) in [(down, &others), (up, &case.receivers)] {
        replan(net, cluster, case, at, hosts);
    }
}

/// Runs both phases; what went wrong.
fn live(net: &mut Network<Datagram>, cluster: &mut Cluster, case: &Case) -> Result<(), String> {
    cluster.set_stop_when_done(false);
    net.run(cluster, case.heal_at);
    sessions::check_moods(cluster)?;
    heal(net, cluster, case);
    // What is planned for now happens first.
    net.run(cluster, net.now());
    if case.planned {
        walk(net, cluster, case)?;
    }
    cluster.set_stop_when_done(true);
    for round in 0..=ROUNDS {
        let end = net.now() + LIVENESS;
        let outcome = if cluster.is_done() { Outcome::Stopped } else { net.run(cluster, end) };
        if let Some(breach) = cluster.breaches().into_iter().next() {
            return Err(breach);
        }
        let pushes = || (0..cluster.transfers().len() as u32).map(|transfer| cluster.push(transfer));
        if outcome != Outcome::Stopped {
            let phases: Vec<Phase> =
                pushes().flat_map(|push| push.receivers().iter().map(|receiver| receiver.phase())).collect();
            return Err(format!(
                "the transfer was not over {LIVENESS} after everything was healed: {phases:?}"
            ));
        }
        let mut receivers = pushes().flat_map(|push| push.receivers());
        if let Some(wrong) = receivers.find_map(|receiver| receiver.check_object().err()) {
            return Err(wrong);
        }
        let lacking: Vec<Vec<u32>> = pushes().map(|push| push.lacking().collect()).collect();
        if lacking.iter().all(Vec::is_empty) {
            return Ok(());
        }
        if round == ROUNDS {
            return Err(format!(
                "receivers {lacking:?} did not get the object though nothing failed any more"
            ));
        }
        // Those who were given up are served once more, as an operator would.
        let now = net.now();
        for (_, transfer) in lacking.iter().zip(0..).filter(|(lacking, _)| !lacking.is_empty()) {
            cluster.plan(net, now, Happening::StartTransfer { transfer });
        }
        net.run(cluster, now);
    }
    Ok(())
}

/// Everything works from now on, and hosts that are down come back.
fn heal(net: &mut Network<Datagram>, cluster: &mut Cluster, case: &Case) {
    let hosts = case.layout.hosts();
    let dead = case.dead_relay.map(|relay| NodeId(hosts + relay));
    for link in (0..net.link_count()).map(LinkId) {
        let (from, _) = net.ends(link);
        // Of a ToR's links only the one to its splitter has no way back.
        let is_dead = Some(from) == dead && net.reverse(link).is_none();
        net.set_up(link, !is_dead);
        net.set_faults(link, Faults::NONE);
    }
    let now = net.now();
    cluster.plan(net, now, Happening::Reroute);
    if case.planned {
        replan(net, cluster, case, now, &case.receivers);
    }
    sessions::heal(net, cluster);
    for transfer in 0..cluster.transfers().len() as u32 {
        let push = cluster.push(transfer);
        let lacking: Vec<u32> = push.lacking().collect();
        let is_absent = |receiver: &u32| {
            !matches!(push.receivers()[*receiver as usize].phase(), Phase::Running | Phase::Joining)
        };
        let absent: Vec<u32> = lacking.iter().copied().filter(is_absent).collect();
        let crashed = push.source().is_crashed();
        for receiver in lacking {
            let service = Duration::ZERO;
            cluster.plan(net, now, Happening::Service { transfer, receiver, service });
        }
        if crashed {
            cluster.plan(net, now, Happening::StartTransfer { transfer });
            continue;
        }
        for receiver in absent {
            cluster.plan(net, now, Happening::JoinReceiver { transfer, receiver });
        }
    }
}
