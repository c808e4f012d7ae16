//! Cases by push: trees, labels that change, and the TCP chain.

use super::draw::{self, Random};
use super::{Plant, Verdict};
use crate::packet::tcp::{Growth, TcpConfig};
use crate::packet::world::forward::{Forwarding, LabelSwitches};
use crate::packet::world::{Cluster, Datagram, Happening, Phase, PushConfig, Transfer};
use crate::packet::{Builder, Faults, LinkId, Network, NodeId, Outcome};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_planning::labels::LabelPlanner;
use polycast_protocol::push::SlowPolicy;
use polycast_topology::{Failures, Graph, Network as Topology};
use polycast_types::{Duration, Rate, Time};

const NETWORKS: [&str; 9] = [
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
/// How often those who were given up while things failed are served anew; once is enough.
const ROUNDS: u32 = 2;

struct Case {
    name: String,
    topology: Topology,
    source: u32,
    receivers: Vec<u32>,
    heal_at: Time,
}

pub(super) fn run(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    let (name, topology) = draw::topology(random, &NETWORKS);
    let mut hosts = draw::hosts(random, topology.server_count(), 9);
    let source = hosts.remove(0);
    let labels = topology.as_clos().is_some() && random.one_in(2);
    let faults = draw::faults(random);
    let link = draw::link(random, faults);
    let bytes = if random.one_in(20) { random.below(2) } else { random.magnitude(2_000..=2_000_000) };
    // So that what fails meets a transfer, and not only its end.
    let span = link.rate.time_for(bytes) * 3 + link.delay * 20 + Duration::from_millis(3);
    let heal_at = Time(random.magnitude(500_000..=span.0));
    let case = Case { name, topology, source, receivers: hosts, heal_at };
    let mut net: Network<Datagram> = Builder::from_graph(&topology, |_, _| link).build(seed);
    let growth = if random.one_in(2) { Growth::Reno } else { Growth::Cubic };
    let mut cluster = Cluster::new(seed, TcpConfig { growth, ..TcpConfig::default() });
    cluster.set_plant(plant);
    let config = config(random, &case);
    let summary = format!(
        "push{} on {}, {} receivers, {bytes} bytes{}",
        if labels { " by labels" } else { "" },
        case.name,
        case.receivers.len(),
        if config.multicast { "" } else { ", chained" },
    );
    let nodes: Vec<NodeId> = case.receivers.iter().map(|&host| NodeId(host)).collect();
    let forwarding = labels.then(|| label_switches(&case, &case.receivers)).flatten();
    let by_labels = forwarding.is_some();
    cluster.add_push(&net, NodeId(source), &nodes, bytes, config, forwarding);
    if by_labels {
        cluster.set_members(0, &nodes);
    }
    cluster.plan(&mut net, Time::ZERO, Happening::StartTransfer { transfer: 0 });
    plan_storm(random, &mut net, &mut cluster, &case, by_labels);
    let failure = live(&mut net, &mut cluster, &case, by_labels).err();
    Verdict { seed, case: summary, failure, trace_hash: net.trace_hash(), events: net.events() }
}

fn config(random: &mut Random, case: &Case) -> PushConfig {
    let after = Duration(random.magnitude(50_000_000..=2_000_000_000));
    PushConfig {
        fragment_bytes: random.magnitude(100..=8_900) as u32,
        group_bytes: 1 << random.within(10..=17),
        rate: random.one_in(3).then(|| Rate(random.magnitude(50_000_000..=5_000_000_000))),
        window_bytes: random.magnitude(64 << 10..=4 << 20),
        service: if random.one_in(4) { Duration(random.magnitude(100..=50_000)) } else { Duration::ZERO },
        stall_timeout: Duration(random.magnitude(1_000_000_000..=10_000_000_000)),
        slow: if random.one_in(3) { SlowPolicy::Wait } else { SlowPolicy::DropToPatches { after } },
        multicast: !random.one_in(12),
        open_until: Some(case.heal_at + Duration::from_millis(20)),
        ..PushConfig::default()
    }
}

/// The switches of a session to these hosts; `None` if the planner has no way.
fn label_switches(case: &Case, hosts: &[u32]) -> Option<Forwarding> {
    let mut planner = LabelPlanner::new(case.topology.as_clos()?, 24).ok()?;
    let plan = planner.plan(1, case.source, hosts, &Failures::none()).ok()?;
    Some(Forwarding::Labels(Box::new(LabelSwitches::new(planner, &plan))))
}

/// Plans what fails in the safety phase; everything is repaired at its end.
fn plan_storm(
    random: &mut Random,
    net: &mut Network<Datagram>,
    cluster: &mut Cluster,
    case: &Case,
    by_labels: bool,
) {
    let (transfer, end) = (0, case.heal_at);
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
    let switches = net.node_count() - case.topology.server_count();
    if switches > 0 && random.one_in(5) {
        let node = NodeId(case.topology.server_count() + random.below(switches.into()) as u32);
        let (down, up) = span(random, end);
        cluster.plan(net, down, Happening::Node { node, up: false });
        cluster.plan(net, up, Happening::Node { node, up: true });
        cluster.plan(net, down + Duration::from_millis(2), Happening::Reroute);
    }
    for receiver in 0..case.receivers.len() as u32 {
        if random.one_in(5) {
            let (down, up) = span(random, end);
            cluster.plan(net, down, Happening::CrashReceiver { transfer, receiver });
            cluster.plan(net, up, Happening::JoinReceiver { transfer, receiver });
            if by_labels {
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
        if let Some(forwarding) = label_switches(case, hosts) {
            let members = hosts.iter().map(|&host| NodeId(host)).collect();
            cluster.plan(net, at, Happening::Relabel { transfer: 0, forwarding: forwarding.into(), members });
        }
    }
}

/// Runs both phases; what went wrong.
fn live(
    net: &mut Network<Datagram>,
    cluster: &mut Cluster,
    case: &Case,
    by_labels: bool,
) -> Result<(), String> {
    cluster.set_stop_when_done(false);
    net.run(cluster, case.heal_at);
    heal(net, cluster, case, by_labels);
    cluster.set_stop_when_done(true);
    for round in 0..=ROUNDS {
        let end = net.now() + LIVENESS;
        let outcome = if cluster.is_done() { Outcome::Stopped } else { net.run(cluster, end) };
        if let Some(breach) = cluster.breaches().into_iter().next() {
            return Err(breach);
        }
        let Transfer::Push(push) = &cluster.transfers()[0] else { return Ok(()) };
        if outcome != Outcome::Stopped {
            let phases: Vec<Phase> = push.receivers().iter().map(|receiver| receiver.phase()).collect();
            return Err(format!(
                "the transfer was not over {LIVENESS} after everything was healed: {phases:?}"
            ));
        }
        if let Some(lacking) = push.receivers().iter().find_map(|receiver| receiver.check_object().err()) {
            return Err(lacking);
        }
        let lacking: Vec<u32> = push.lacking().collect();
        if lacking.is_empty() {
            return Ok(());
        }
        if round == ROUNDS {
            return Err(format!(
                "receivers {lacking:?} did not get the object though nothing failed any more"
            ));
        }
        // Those who were given up are served once more, as an operator would.
        let now = net.now();
        cluster.plan(net, now, Happening::StartTransfer { transfer: 0 });
        net.run(cluster, now);
    }
    Ok(())
}

/// Everything works from now on, and who is not there comes back.
fn heal(net: &mut Network<Datagram>, cluster: &mut Cluster, case: &Case, by_labels: bool) {
    for link in (0..net.link_count()).map(LinkId) {
        net.set_up(link, true);
        net.set_faults(link, Faults::NONE);
    }
    let now = net.now();
    cluster.plan(net, now, Happening::Reroute);
    if by_labels && let Some(forwarding) = label_switches(case, &case.receivers) {
        let members = case.receivers.iter().map(|&host| NodeId(host)).collect();
        cluster.plan(net, now, Happening::Relabel { transfer: 0, forwarding: forwarding.into(), members });
    }
    let Transfer::Push(push) = &cluster.transfers()[0] else { return };
    let lacking: Vec<u32> = push.lacking().collect();
    let absent: Vec<u32> = lacking
        .iter()
        .copied()
        .filter(|&receiver| {
            !matches!(push.receivers()[receiver as usize].phase(), Phase::Running | Phase::Joining)
        })
        .collect();
    let crashed = push.source().is_crashed();
    for receiver in lacking {
        let service = Duration::ZERO;
        cluster.plan(net, now, Happening::Service { transfer: 0, receiver, service });
    }
    if crashed {
        cluster.plan(net, now, Happening::StartTransfer { transfer: 0 });
        return;
    }
    for receiver in absent {
        cluster.plan(net, now, Happening::JoinReceiver { transfer: 0, receiver });
    }
}
