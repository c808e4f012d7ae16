//! Cases with an attacker: sealed transfers by push and by pull, with all that fails in the others.
//!
//! What must hold, whatever it does: no source seals two contents with one key and nonce; one that has left
//! is not told the key of what is first sent later; no receiver keeps, or takes part in, what its source has
//! not said; a packet of one that has no keys gets to no machine; and when it stops, every receiver gets the
//! object. Of eight seeds one is about time: a single forged packet changes nothing, and as many as the
//! source sends make a transfer at most 1.3 times as long.

mod pulled;

use super::coverage as named;
use super::draw::{self, Random};
use super::{Coverage, Plant, Verdict, push};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_simulator::packet::tcp::TcpConfig;
use polycast_simulator::packet::world::{Attack, Cluster, Datagram, Happening, PushConfig};
use polycast_simulator::packet::{Builder, Faults, LinkConfig, Network, NodeId, Outcome};
use polycast_topology::{Graph, Network as Topology};
use polycast_types::{Duration, Rate, Time};

/// One in this number of seeds is by pull, chosen by its number.
const PULLED_ONE_IN: u64 = 4;
const PULLED: u64 = 2;
/// One in this number of seeds by push is about time.
const TIMED_ONE_IN: u64 = 8;
const NETWORKS: [&str; 4] = ["leaf-spine:1,1,5", "leaf-spine:2,2,4", "fat-tree:4,2", "bcube:4,1"];
/// A transfer is over within this time.
const LIVENESS: Duration = Duration::from_secs(60);
/// By how much a flood may lengthen a short transfer, beside its share of a long one.
const MOMENT: Duration = Duration::from_millis(2);

pub(super) fn run(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    if seed % PULLED_ONE_IN == PULLED {
        return pulled::run(seed, random, plant);
    }
    if random.one_in(TIMED_ONE_IN) {
        return timed(seed, random, plant);
    }
    let mut attacks = Draw(Random::new(seed ^ 0x0b5e_55ed));
    push::run(seed, random, plant, Some(&mut attacks))
}

/// Draws what the attacker of a case does.
pub(super) struct Draw(Random);

impl Draw {
    /// Packets are sealed. Whether the attacker has a receiver is drawn when that is known.
    pub(super) fn settle(&mut self, config: &mut PushConfig) {
        config.sealed = true;
        // What members do to each other they do over TCP.
        config.multicast &= !self.0.one_in(4);
        // A member's word in a rack counts for others, and counted receivers have no names: neither is told
        // apart.
        (config.counted, config.rack) = (false, 0);
    }

    /// The attacker begins.
    pub(super) fn begin(
        &mut self,
        (seed, until): (u64, Time),
        net: &mut Network<Datagram>,
        cluster: &mut Cluster,
        (coverage, summary): (&mut Coverage, &mut String),
    ) {
        let random = &mut self.0;
        let receivers = cluster.push(0).receivers().len() as u64;
        let insider = random.one_in(2).then(|| random.below(receivers) as u32);
        let mut share = |most: u64| if random.one_in(2) { random.magnitude(100..=most) } else { 0 };
        let shares_ppm = [share(50_000), share(100_000), share(50_000), share(50_000)];
        let acts = random.magnitude(1..=200) as u32;
        let floods = random.one_in(8);
        summary.push_str(", attacked");
        if insider.is_some() {
            summary.push_str(" from inside");
            coverage.hit(named::ATTACK_INSIDE);
        }
        if let Some(receiver) = insider.filter(|_| random.one_in(3)) {
            let at = random.time_below(until);
            cluster.plan(net, at, Happening::RemoveReceiver { transfer: 0, receiver });
            coverage.hit(named::ATTACK_REMOVED);
        }
        cluster.set_attack(net, seed, Attack { until, insider, shares_ppm, acts, floods });
    }
}

/// A transfer without faults.
struct Case {
    seed: u64,
    topology: Topology,
    hosts: Vec<NodeId>,
    link: LinkConfig,
    bytes: u64,
    config: PushConfig,
}

/// Forged packets that an attacker sends in a timed transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forgeries {
    None,
    One,
    AsMany,
}

/// Duration of a run, and its counters.
struct Ran {
    took: Duration,
    forged: u64,
    trace: (u64, u64),
    coverage: Coverage,
}

fn timed(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    let (name, topology) = draw::topology(random, &NETWORKS);
    let hosts = draw::hosts(random, topology.server_count(), 6);
    let rate = Rate(random.magnitude(300_000_000..=10_000_000_000));
    let link = LinkConfig {
        queue_bytes: random.magnitude(64 << 10..=512 << 10),
        ..LinkConfig::new(rate, Duration(random.magnitude(1_000..=50_000)))
    };
    let bytes = random.magnitude(20_000..=4_000_000);
    let fragment_bytes = random.within(1_000..=8_900) as u32;
    let config = PushConfig { fragment_bytes, sealed: true, ..PushConfig::default() };
    // A receiver takes packets at four to sixteen times the rate at which they come.
    let service = rate.time_for(u64::from(config.packet_bytes())) / random.within(4..=16);
    let config = PushConfig { service, ..config };
    let hosts: Vec<NodeId> = hosts.into_iter().map(NodeId).collect();
    let summary = format!("attacked in time on {name}, {} receivers, {bytes} bytes", hosts.len() - 1);
    let case = Case { seed, topology, hosts, link, bytes, config };
    let (mut coverage, mut trace) = (Coverage::default(), (0, 0));
    let mut play = |case: &Case, forgeries| {
        let ran = case.play(forgeries, plant)?;
        coverage.merge(&ran.coverage);
        trace = (trace.0 ^ ran.trace.0, trace.1 + ran.trace.1);
        Ok(ran)
    };
    let failure = compare(&case, &mut play).err();
    Verdict { seed, case: summary, failure, trace_hash: trace.0, events: trace.1, coverage }
}

/// Checks the cost of forged packets.
fn compare(
    case: &Case,
    play: &mut impl FnMut(&Case, Forgeries) -> Result<Ran, String>,
) -> Result<(), String> {
    let (usually, many) = (play(case, Forgeries::None)?, play(case, Forgeries::AsMany)?);
    if many.forged == 0 {
        return Err(String::from("no packet of a flood came"));
    }
    if many.took > usually.took + usually.took * 3 / 10 + MOMENT {
        let (took, usually) = (many.took, usually.took);
        return Err(format!("it takes {took} beside as many forged packets, and {usually} without"));
    }
    // Where packets take a receiver no time, one that is forged changes nothing at all.
    let quick = Case {
        config: PushConfig { service: Duration::ZERO, ..case.config.clone() },
        topology: case.topology,
        hosts: case.hosts.clone(),
        ..*case
    };
    let (usually, one) = (play(&quick, Forgeries::None)?, play(&quick, Forgeries::One)?);
    if one.took != usually.took {
        let (took, usually) = (one.took, usually.took);
        return Err(format!("it takes {took} beside one forged packet, and {usually} without"));
    }
    Ok(())
}

impl Case {
    fn play(&self, forgeries: Forgeries, plant: Option<Plant>) -> Result<Ran, String> {
        let mut net: Network<Datagram> =
            Builder::from_graph(&self.topology, |_, _| LinkConfig { faults: Faults::NONE, ..self.link })
                .build(self.seed);
        let mut cluster = Cluster::new(self.seed, TcpConfig::default());
        let (seen, hooks) = crate::hooks(plant);
        cluster.set_hooks(hooks);
        cluster.add_push(&net, self.hosts[0], &self.hosts[1..], self.bytes, self.config.clone(), None);
        cluster.plan(&mut net, Time::ZERO, Happening::StartTransfer { transfer: 0 });
        let (acts, floods) = (u32::from(forgeries == Forgeries::One), forgeries == Forgeries::AsMany);
        let until = if forgeries == Forgeries::None { Time::ZERO } else { Time::ZERO + LIVENESS };
        let attack = Attack { until, insider: None, shares_ppm: [0; 4], acts: 0, floods };
        cluster.set_attack(&mut net, self.seed, attack);
        if acts > 0 {
            cluster.forge_one(&mut net, self.link.rate.time_for(self.bytes) / 2);
        }
        let outcome = net.run(&mut cluster, Time::ZERO + LIVENESS);
        if let Some(breach) = cluster.breaches().into_iter().next() {
            return Err(breach);
        }
        if outcome != Outcome::Stopped {
            return Err(format!("the transfer was not over within {LIVENESS}"));
        }
        let push = cluster.push(0);
        if let Some(wrong) = push.receivers().iter().find_map(|host| host.check_object().err()) {
            return Err(wrong);
        }
        let finished: Option<Vec<Time>> = push.receivers().iter().map(|host| host.finished_at()).collect();
        let last = finished.and_then(|times| times.into_iter().max());
        let took = last.ok_or_else(|| String::from("a receiver did not get the object"))?.since(Time::ZERO);
        let forged = push.receivers().iter().map(|host| host.forged()).sum();
        Ok(Ran { took, forged, trace: (net.trace_hash(), net.events()), coverage: seen.coverage() })
    }
}

#[cfg(test)]
mod tests;
