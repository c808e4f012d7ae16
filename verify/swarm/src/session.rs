//! Sessions of push transfers as they are drawn: receivers that are added and removed while they run, hosts
//! that cannot or may not take part, racks, paths that another one follows, and connections that break.

use super::draw::{self, Random};
use alloc::format;
use alloc::string::String;
use polycast_protocol::session::End;
use polycast_simulator::packet::world::{Cluster, Datagram, Happening, Mood, Phase, PushConfig, Transfer};
use polycast_simulator::packet::{Faults, LinkId, Network, NodeId};
use polycast_types::{Duration, Time};

/// Settings of a session: counted receivers, racks, and a path that is granted part by part.
pub(super) fn config(
    random: &mut Random,
    bytes: u64,
    config: PushConfig,
    summary: &mut String,
) -> PushConfig {
    let mut config = PushConfig {
        join_timeout: Duration(random.magnitude(1_000_000_000..=10_000_000_000)),
        counted: random.one_in(10),
        ..config
    };
    if config.counted {
        summary.push_str(", counted");
    }
    if random.one_in(3) {
        config.rack = random.within(2..=4) as u32;
        summary.push_str(", in racks");
    }
    if config.multicast && random.one_in(5) {
        let least = (bytes / 5).max(4 * u64::from(config.fragment_bytes));
        config.allowance = Some(random.magnitude(least..=least.max(bytes)));
        config.next_path = Duration(random.magnitude(100_000..=300_000_000));
        summary.push_str(", granted in parts");
    }
    config
}

/// Plans what happens to the session of a transfer before a time. To be called before the transfer is planned
/// to start.
pub(super) fn plan(
    random: &mut Random,
    net: &mut Network<Datagram>,
    cluster: &mut Cluster,
    (transfer, end): (u32, Time),
    config: &PushConfig,
    summary: &mut String,
) {
    let receivers = cluster.push(transfer).receivers().len() as u32;
    for receiver in 0..receivers {
        plan_receiver(random, net, cluster, (transfer, receiver, end), config, summary);
    }
    if config.multicast && random.one_in(4) {
        for _ in 0..random.within(1..=2) {
            let (at, ready) = span(random, end);
            cluster.plan(net, at, Happening::SwitchPath { transfer, handle: None, allowance: None });
            if random.one_in(2) {
                cluster.plan(net, at, Happening::PathWaits { transfer, waits: true });
                cluster.plan(net, ready, Happening::PathWaits { transfer, waits: false });
            }
        }
        summary.push_str(", another path");
    }
    if config.multicast && random.one_in(8) {
        let at = random.time_below(end);
        cluster.plan(net, at, Happening::LosePath { transfer });
        summary.push_str(", the path is lost");
    }
    if config.rack > 1 && random.one_in(2) {
        // The first of a rack speaks for it.
        let (down, up) = span(random, end);
        cluster.plan(net, down, Happening::CrashReceiver { transfer, receiver: 0 });
        cluster.plan(net, up, Happening::JoinReceiver { transfer, receiver: 0 });
        summary.push_str(", a speaker crashes");
    }
    if random.one_in(6) {
        let link = LinkId(random.below(net.link_count().into()) as u32);
        let (worse, better) = span(random, end);
        let faults = draw::faults(random);
        cluster.plan(net, worse, Happening::Faults { link, faults });
        cluster.plan(net, better, Happening::Faults { link, faults: Faults::NONE });
    }
    if random.one_in(10) {
        let (down, up) = span(random, end);
        cluster.plan(net, down, Happening::CancelSource { transfer });
        cluster.plan(net, up, Happening::StartTransfer { transfer });
        summary.push_str(", cancelled");
    }
}

fn plan_receiver(
    random: &mut Random,
    net: &mut Network<Datagram>,
    cluster: &mut Cluster,
    (transfer, receiver, end): (u32, u32, Time),
    config: &PushConfig,
    summary: &mut String,
) {
    if !config.counted && receiver > 0 && random.one_in(6) {
        cluster.leave_out(transfer, receiver);
        let at = random.time_below(end);
        cluster.plan(net, at, Happening::AddReceiver { transfer, receiver });
        summary.push_str(", one is added");
    }
    if !config.counted && random.one_in(8) {
        let (gone, back) = span(random, end);
        cluster.plan(net, gone, Happening::RemoveReceiver { transfer, receiver });
        if random.one_in(3) {
            cluster.plan(net, back, Happening::AddReceiver { transfer, receiver });
        }
        summary.push_str(", one is taken out");
    }
    if random.one_in(8) {
        let mood = *random.pick(&[Mood::Unwilling, Mood::Full, Mood::Foreign, Mood::Lying]);
        cluster.plan(net, Time::ZERO, Happening::Mood { transfer, receiver, mood: Some(mood) });
        if !matches!(mood, Mood::Foreign | Mood::Lying) && random.one_in(2) {
            let at = random.time_below(end);
            cluster.plan(net, at, Happening::Mood { transfer, receiver, mood: None });
            cluster.plan(net, at, Happening::JoinReceiver { transfer, receiver });
        }
        summary.push_str(&format!(", one is {mood:?}"));
    }
    if random.one_in(8) {
        let (broken, again) = span(random, end);
        cluster.plan(net, broken, Happening::BreakControl { transfer, receiver });
        cluster.plan(net, again, Happening::JoinReceiver { transfer, receiver });
    }
    // Where all fetch from each other, some of their connections break.
    for _ in 0..if config.multicast { random.below(2) } else { 3 } {
        let at = random.time_below(end);
        cluster.plan(net, at, Happening::BreakMesh { transfer, receiver });
    }
    if random.one_in(24) {
        let at = random.time_below(end);
        cluster.plan(net, at, Happening::CutOff { transfer, receiver });
        summary.push_str(", one is cut off");
    }
}

/// A source beside the first one, with receivers of its own choice; its number.
pub(super) fn second_source(
    random: &mut Random,
    net: &Network<Datagram>,
    cluster: &mut Cluster,
    hosts: &[u32],
    (bytes, config): (u64, PushConfig),
) -> u32 {
    let nodes: alloc::vec::Vec<NodeId> = hosts.iter().map(|&host| NodeId(host)).collect();
    let source = random.below(nodes.len() as u64) as usize;
    let mut receivers = nodes;
    let source = receivers.remove(source);
    cluster.add_push(net, source, &receivers, bytes, config, None)
}

/// Checks the rules for hosts that were out of order when everything is about to be healed.
pub(super) fn check_moods(cluster: &Cluster) -> Result<(), String> {
    for transfer in cluster.transfers() {
        let Transfer::Push(push) = transfer else { continue };
        for host in push.receivers().iter().filter(|host| host.mood() == Some(Mood::Foreign)) {
            let foreign = |end: &End| matches!(end, End::Refused(words) if !words.contains("version"));
            if matches!(host.phase(), Phase::Running | Phase::Done) || host.ends().iter().any(foreign) {
                let (node, ends) = (host.node().0, host.ends());
                return Err(format!("host {node} has another version, and its ends are {ends:?}"));
            }
        }
    }
    Ok(())
}

/// Hosts are in order from now on, and paths are there.
pub(super) fn heal(net: &mut Network<Datagram>, cluster: &mut Cluster) {
    let now = net.now();
    for transfer in 0..cluster.transfers().len() as u32 {
        cluster.plan(net, now, Happening::PathWaits { transfer, waits: false });
        for receiver in 0..cluster.push(transfer).receivers().len() as u32 {
            cluster.plan(net, now, Happening::Mood { transfer, receiver, mood: None });
        }
    }
}

/// A time in the safety phase and a later one.
fn span(random: &mut Random, end: Time) -> (Time, Time) {
    let (a, b) = (random.time_below(end), random.time_below(end));
    (a.min(b), a.max(b) + Duration(1))
}

#[cfg(test)]
mod tests {
    use crate::{KINDS, PULL, Plant, Random, run};

    /// The first seed that finds a planted bug and says so in these words. Other seeds may find what follows
    /// from it.
    fn found(plant: Plant, words: &str) -> u64 {
        let by_push = |seed: &u64| Random::new(*seed).below(KINDS) >= PULL.end;
        let mut runs = (0..2_000)
            .filter(by_push)
            .filter_map(|seed| run(seed, Some(plant)).failure.map(|what| (seed, what)));
        let found = runs.find(|(_, what)| what.contains(words));
        found.unwrap_or_else(|| panic!("{plant:?} was not found: {words}")).0
    }

    #[test]
    fn bugs_of_sessions_are_found() {
        for (plant, words) in [
            (Plant::ForgetRemoval, "was taken out, and the report says"),
            (Plant::ForgetReady, "is not settled"),
            (Plant::ForgetLacks, "not over"),
            (Plant::SilentSwitch, "it was not told"),
            (Plant::IgnoreAllowance, "not over"),
            (Plant::ForeignRack, "are said of receiver"),
        ] {
            found(plant, words);
        }
    }
}
