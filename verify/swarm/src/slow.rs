//! Cases of one receiver behind a narrow path: the others have the object as soon as they would without it.
//!
//! The same seed is run twice, the second time with all paths alike. What the others may lose is a tenth, and
//! the time in which it is found out that one is slow. Paths of less than 300 Mbit/s are not drawn: there so
//! few packets come between two looks that chance is taken for a slow path at times.

use super::draw::{self, Random};
use super::{Coverage, Plant, Verdict};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_protocol::push::SlowPolicy;
use polycast_simulator::packet::tcp::TcpConfig;
use polycast_simulator::packet::world::{Cluster, Datagram, Happening, PushConfig};
use polycast_simulator::packet::{Builder, LinkConfig, Network, NodeId, Outcome};
use polycast_topology::{Graph, Network as Topology};
use polycast_types::{Duration, Rate, Time};

const NETWORKS: [&str; 4] = ["leaf-spine:1,1,5", "leaf-spine:2,2,4", "fat-tree:4,2", "bcube:4,1"];
/// Time that it may take until a receiver is found to be slow.
const FOUND: Duration = Duration::from_secs(1);
/// A transfer is over within this time, with the slowest path that is drawn.
const LIVENESS: Duration = Duration::from_secs(600);

struct Case {
    seed: u64,
    topology: Topology,
    hosts: Vec<NodeId>,
    link: LinkConfig,
    bytes: u64,
    config: PushConfig,
}

/// A transfer that is over: when each receiver had everything, and whether the first is said to be slow.
struct Ran {
    finished: Vec<Time>,
    slow: bool,
    trace: (u64, u64),
    coverage: Coverage,
}

pub(super) fn run(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    let (name, topology) = draw::topology(random, &NETWORKS);
    let mut hosts = draw::hosts(random, topology.server_count(), 6);
    if let [source, slow] = hosts[..] {
        hosts.extend((0..).find(|host| ![source, slow].contains(host)));
    }
    let rate = Rate(random.magnitude(300_000_000..=1_000_000_000));
    let link = LinkConfig {
        queue_bytes: random.magnitude(64 << 10..=512 << 10),
        ..LinkConfig::new(rate, Duration(random.magnitude(1_000..=50_000)))
    };
    let narrow = Rate(rate.0 / random.within(4..=20));
    let bytes = rate.bytes_in(Duration::from_millis(random.within(1_500..=2_500)));
    let fragment_bytes = random.within(4_000..=8_900) as u32;
    let slow = if plant == Some(Plant::WaitForAll) { SlowPolicy::Wait } else { SlowPolicy::SHIPPED };
    let config = PushConfig { fragment_bytes, slow, ..PushConfig::default() };
    let hosts = hosts.into_iter().map(NodeId).collect::<Vec<_>>();
    let others = hosts.len() - 2;
    let summary = format!("one behind {narrow} of {rate} on {name}, {others} others, {bytes} bytes");
    let case = Case { seed, topology, hosts, link, bytes, config };
    let (mut coverage, mut trace) = (Coverage::default(), (0, 0));
    let mut play = |narrow| {
        let ran = case.play(narrow)?;
        coverage.merge(&ran.coverage);
        trace = (trace.0 ^ ran.trace.0, trace.1 + ran.trace.1);
        Ok(ran)
    };
    let failure = play(Some(narrow)).and_then(|ran| compare(&ran, &play(None)?)).err();
    Verdict { seed, case: summary, failure, trace_hash: trace.0, events: trace.1, coverage }
}

/// The first receiver is behind the narrow path; what it costs the others.
fn compare(ran: &Ran, alike: &Ran) -> Result<(), String> {
    let last = |ran: &Ran| ran.finished[1..].iter().copied().max().unwrap_or_default().since(Time::ZERO);
    let (took, usually) = (last(ran), last(alike));
    if took > usually + usually / 10 + FOUND {
        return Err(format!("the others take {took} beside a slow one, and {usually} without"));
    }
    if !ran.slow {
        return Err(String::from("one behind a narrow path is not said to be slow"));
    }
    Ok(())
}

impl Case {
    fn play(&self, narrow: Option<Rate>) -> Result<Ran, String> {
        let slow = self.hosts[1];
        let link = |from: NodeId, to: NodeId| {
            let rate = narrow.filter(|_| from == slow || to == slow).unwrap_or(self.link.rate);
            LinkConfig { rate, ..self.link }
        };
        let mut net: Network<Datagram> = Builder::from_graph(&self.topology, link).build(self.seed);
        let mut cluster = Cluster::new(self.seed, TcpConfig::default());
        let (seen, hooks) = crate::hooks(None);
        cluster.set_hooks(hooks);
        cluster.add_push(&net, self.hosts[0], &self.hosts[1..], self.bytes, self.config.clone(), None);
        cluster.plan(&mut net, Time::ZERO, Happening::StartTransfer { transfer: 0 });
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
        let Some(finished) = finished else {
            return Err(String::from("a receiver did not get the object"));
        };
        let slow = push.slow_of(0).is_some();
        let trace = (net.trace_hash(), net.events());
        Ok(Ran { finished, slow, trace, coverage: seen.coverage() })
    }
}
