//! Groups at the same time over one bottleneck, in virtual time: their shares, what the queue loses, and how
//! much of the link they use. The results are kept in a table, `tests/golden/fairness.txt`.
//!
//! What is wanted of groups: Jain's index of at least 0.95 in each window, no group below 0.7 of its share,
//! at most 0.28 % lost (the bound of Shufflecast's figure 6 (d)), at least 0.97 of the link used. What is
//! wanted beside a connection: 0.5 to 2 times a group's rate. The last column says where this is reached.
//!
//! After a change that moves the table, write it anew, and look at what became better or worse:
//!
//! ```text
//! POLYCAST_GOLDEN=write cargo test -p polycast-simulator --test fairness
//! ```

use polycast_simulator::packet::tcp::TcpConfig;
use polycast_simulator::packet::world::{Cluster, Flow, Happening, PushConfig};
use polycast_simulator::packet::{Builder, LinkConfig, LinkId, Network, NodeId};
use polycast_types::{Duration, Rate, Time};
use std::fmt::Write;
use std::path::PathBuf;

/// Variable and value with which the table is written rather than compared.
const WRITE: (&str, &str) = ("POLYCAST_GOLDEN", "write");
/// Shares are looked at over windows of this length, so many of them, ..
const WINDOW: Duration = Duration::from_millis(500);
const WINDOWS: u64 = 8;
/// .. from so long after the last begin.
const SETTLED: Duration = Duration::from_secs(1);
/// From one begin to the next.
const STAGGER: Duration = Duration::from_millis(500);
/// From one end of a link to the other.
const HOP: Duration = Duration::from_micros(5);

/// A connection beside the groups.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// CUBIC that begins a second before the first group.
    Older,
    /// CUBIC that begins a second after the last group.
    Younger,
}

/// Groups over one link.
#[derive(Clone, Copy)]
struct Case {
    groups: u32,
    /// Round trips of the first group and of the last; those between are in proportion.
    trips: (Duration, Duration),
    line: Rate,
    fragment_bytes: u32,
    queue_bytes: u64,
    /// Loss on the way to each receiver.
    loss_ppm: u32,
    beside: Beside,
}

/// The worst window of a run, but for the last two.
struct Seen {
    jain: f64,
    least_share: f64,
    used: f64,
    /// Of all packets that came to the queue.
    lost_percent: f64,
    /// Rate of the connection over that of the groups, in the mean of all windows.
    beside: f64,
}

impl Seen {
    fn is_as_wanted(&self, case: &Case) -> bool {
        if case.beside != Beside::Nothing {
            return (0.5..=2.0).contains(&self.beside);
        }
        self.jain >= 0.95 && self.least_share >= 0.7 && self.lost_percent <= 0.28 && self.used >= 0.97
    }
}

impl Case {
    fn trip(&self, at: u32) -> Duration {
        let (first, last) = (self.trips.0.0 as f64, self.trips.1.0 as f64);
        let part = f64::from(at) / f64::from((self.groups - 1).max(1));
        Duration((first + (last - first) * part) as u64)
    }

    /// Receivers of a group: 1 to 5; a connection has one.
    fn receivers(&self, at: u32) -> u32 {
        if at < self.groups { 1 + 3 * at % 5 } else { 1 }
    }
}

/// The network of a case, its transfers, and the links that are looked at.
struct Bed {
    net: Network<polycast_simulator::packet::world::Datagram>,
    cluster: Cluster,
    bottleneck: LinkId,
    /// To the first receiver of each.
    downs: Vec<LinkId>,
    /// Time of the last begin.
    last: Time,
}

impl Bed {
    /// Sources, a switch, the bottleneck, a switch, and the receivers of each source.
    fn new(case: &Case) -> Self {
        let ends = case.groups + u32::from(case.beside != Beside::Nothing);
        let all: u32 = (0..ends).map(|at| case.receivers(at)).sum();
        let (near, far) = (NodeId(ends), NodeId(ends + 1));
        let mut builder = Builder::new(ends + 2 + all);
        let wide = LinkConfig { queue_bytes: 8 << 20, ..LinkConfig::new(case.line, HOP) };
        let mut to_receiver = wide;
        to_receiver.faults.loss_ppm = case.loss_ppm;
        let narrow = LinkConfig { queue_bytes: case.queue_bytes, ..wide };
        let (bottleneck, _) = builder.add_both_ways(near, far, narrow);
        let (mut downs, mut receivers, mut next) = (Vec::new(), Vec::new(), ends + 2);
        for at in 0..ends {
            let delay = case.trip(at.min(case.groups - 1)) / 2 - HOP * 2;
            builder.add_both_ways(NodeId(at), near, LinkConfig { delay, ..wide });
            let own: Vec<NodeId> = (next..next + case.receivers(at)).map(NodeId).collect();
            next += case.receivers(at);
            let mut down = |&to: &NodeId| {
                let (there, back) = (builder.add_link(far, to, to_receiver), builder.add_link(to, far, wide));
                builder.pair(there, back);
                there
            };
            downs.push(own.iter().map(&mut down).collect::<Vec<_>>()[0]);
            receivers.push(own);
        }
        let (net, cluster) = (builder.build(1), Cluster::new(1, TcpConfig::default()));
        let mut bed = Bed { net, cluster, bottleneck, downs, last: Time::ZERO };
        bed.plan(case, &receivers);
        bed
    }

    fn plan(&mut self, case: &Case, receivers: &[Vec<NodeId>]) {
        let first = if case.beside == Beside::Older { SETTLED } else { Duration::ZERO };
        let begin = |at: u32| Time::ZERO + first + STAGGER * u64::from(at);
        self.last = begin(case.groups - 1);
        if case.beside != Beside::Nothing {
            let at = if case.beside == Beside::Older { Time::ZERO } else { self.last + SETTLED };
            let to = receivers[case.groups as usize][0];
            let flow = self.cluster.add_flow(Flow::new(NodeId(case.groups), to, u64::MAX));
            self.cluster.plan(&mut self.net, at, Happening::StartFlow { flow });
            self.last = self.last.max(at);
        }
        // As much as the link carries, so that no group ends early.
        let bytes = case.line.bytes_in((self.last + SETTLED + WINDOW * WINDOWS).since(Time::ZERO));
        let fragment_bytes = case.fragment_bytes;
        for (at, to) in (0..case.groups).zip(receivers) {
            let config = PushConfig { fragment_bytes, window_bytes: 8 << 20, ..PushConfig::default() };
            let transfer = self.cluster.add_push(&self.net, NodeId(at), to, bytes, config, None);
            self.cluster.plan(&mut self.net, begin(at), Happening::StartTransfer { transfer });
        }
    }

    /// Bytes to each so far.
    fn bytes(&self) -> Vec<u64> {
        self.downs.iter().map(|&link| self.net.counters(link).bytes).collect()
    }
}

fn run(case: &Case) -> Seen {
    let mut bed = Bed::new(case);
    let from = bed.last + SETTLED;
    bed.net.run(&mut bed.cluster, from);
    let (begun, first) = (*bed.net.counters(bed.bottleneck), bed.bytes());
    let mut seen = Seen { jain: 1.0, least_share: 1.0, used: 1.0, lost_percent: 0.0, beside: 0.0 };
    let (mut had, mut carried) = (first.clone(), begun.bytes);
    let count = case.groups as usize;
    for window in 1..=WINDOWS {
        bed.net.run(&mut bed.cluster, from + WINDOW * window);
        let (now, link) = (bed.bytes(), bed.net.counters(bed.bottleneck).bytes);
        let got: Vec<f64> = now.iter().zip(&had).take(count).map(|(now, had)| (now - had) as f64).collect();
        let (sum, squares) = (got.iter().sum::<f64>(), got.iter().map(|got| got * got).sum::<f64>());
        seen.jain = seen.jain.min(sum * sum / (count as f64 * squares));
        let fair = sum / count as f64;
        seen.least_share = got.iter().fold(seen.least_share, |least, got| least.min(got / fair));
        seen.used = seen.used.min((link - carried) as f64 / case.line.bytes_in(WINDOW) as f64);
        (had, carried) = (now, link);
    }
    let ended = bed.net.counters(bed.bottleneck);
    let (lost, passed) = (ended.queue_drops - begun.queue_drops, ended.packets - begun.packets);
    seen.lost_percent = 100.0 * lost as f64 / (lost + passed) as f64;
    let all: Vec<f64> = had.iter().zip(&first).map(|(had, first)| (had - first) as f64).collect();
    seen.beside = all[count..].iter().sum::<f64>() * count as f64 / all[..count].iter().sum::<f64>();
    assert_eq!(bed.cluster.breaches(), Vec::<String>::new());
    seen
}

fn us(us: u64) -> (Duration, Duration) {
    (Duration::from_micros(us), Duration::from_micros(us))
}

/// The cases, by name.
fn cases() -> Vec<(String, Case)> {
    let line = Rate(200_000_000);
    let base = Case {
        groups: 1,
        trips: us(2_000),
        line,
        fragment_bytes: 1_448,
        queue_bytes: 250_000,
        loss_ppm: 0,
        beside: Beside::Nothing,
    };
    let mut cases = Vec::new();
    let trips = (Duration::from_millis(1), Duration::from_millis(10));
    for groups in [1, 2, 3, 8] {
        for tenths in [1, 5, 20] {
            // In parts of what the longest round trip holds.
            let queue_bytes = line.bytes_in(trips.1) * tenths / 10;
            let name =
                format!("200 Mbit/s, 1 to 10 ms, queue of {}.{}, groups {groups}", tenths / 10, tenths % 10);
            cases.push((name, Case { groups, trips, queue_bytes, ..base }));
        }
    }
    for loss_ppm in [10_000, 30_000] {
        let name = format!("200 Mbit/s, 2 ms, loss of {} %, groups 2", loss_ppm / 10_000);
        cases.push((name, Case { groups: 2, loss_ppm, ..base }));
    }
    for (groups, gbps) in [(2, 1), (3, 1), (8, 1), (2, 10), (3, 10)] {
        let line = Rate(gbps * 1_000_000_000);
        let (fragment_bytes, queue_bytes, trips) = (8_692, 1 << 20, us(30));
        let name = format!("{gbps} Gbit/s, 30 us, queue of 1 MiB, groups {groups}");
        cases.push((name, Case { groups, line, fragment_bytes, queue_bytes, trips, ..base }));
    }
    for (word, beside) in [("older", Beside::Older), ("younger", Beside::Younger)] {
        for (mbps, fragment_bytes, kilobytes) in
            [(1_000, 8_692, 1_000), (1_000, 8_692, 300), (200, 1_448, 1_000), (200, 1_448, 60)]
        {
            let (line, queue_bytes) = (Rate(mbps * 1_000_000), kilobytes * 1_000);
            let name = format!("{mbps} Mbit/s, queue of {kilobytes} kB, {word} CUBIC beside");
            let trips = us(200);
            cases.push((name, Case { line, fragment_bytes, queue_bytes, trips, beside, ..base }));
        }
    }
    cases
}

#[test]
fn shares_are_as_they_were() {
    let mut table = String::new();
    let (mut wanted, cases) = (0, cases());
    for (name, case) in &cases {
        let seen = run(case);
        let beside = if case.beside == Beside::Nothing { "-".into() } else { format!("{:.2}", seen.beside) };
        let is_as_wanted = seen.is_as_wanted(case);
        wanted += u32::from(is_as_wanted);
        writeln!(
            table,
            "{name:52} jain {:.3}  least {:.2}  lost {:6.3} %  used {:.3}  beside {beside:>5}  {}",
            seen.jain,
            seen.least_share,
            seen.lost_percent,
            seen.used,
            if is_as_wanted { "reached" } else { "no" },
        )
        .unwrap();
        // A group that is alone has the link, and loses nothing on it once it has found its capacity.
        assert!(case.groups > 1 || case.beside != Beside::Nothing || is_as_wanted, "{table}");
    }
    writeln!(table, "reached: {wanted} of {}", cases.len()).unwrap();
    print!("{table}");
    let file = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/fairness.txt"));
    if std::env::var(WRITE.0).is_ok_and(|value| value == WRITE.1) {
        std::fs::write(&file, table).unwrap();
        panic!("wrote {}: look at it, and run the test without {}", file.display(), WRITE.0);
    }
    let kept = std::fs::read_to_string(&file).unwrap();
    assert_eq!(table, kept, "shares have changed: {}", file.display());
}
