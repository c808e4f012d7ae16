//! Figure 6 (a), (d), (e): throughput of multicast on a 2,2-Shufflecast with 16 servers.
//!
//! Groups run our transport in virtual time, packet by packet ([`super::bed`]). What MPI and a swarm could do
//! over the packet core at best is computed at flow level: their software needs machines. Power and cost,
//! figure 6 (b) and (c), are arithmetic and are in the module above.

use polycast_planning::relays::fair_shares;
use polycast_simulator::flow::torrent::{TorrentConfig, download};
use polycast_simulator::flow::{Flow, FlowError, Run};
use polycast_types::Time;

use super::bed::{Bed, LINE, Over, SERVERS};
use super::network;
use crate::report::{Axis, Figure, ItemError, Mark, Options, Outcome, Series};
use crate::{Kind, Row};

/// The same as [`LINE`], for arithmetic.
const LINE_BPS: f64 = LINE.0 as f64;
/// Throughput that counts as the line rate, in percent of it: headers and the beginning take some.
const NEAR_LINE_PERCENT: f64 = 95.0;

fn up(server: u32) -> u32 {
    2 * server
}

fn down(server: u32) -> u32 {
    2 * server + 1
}

/// Lets all flows end and gives the seconds.
fn finish(run: &mut Run) -> f64 {
    while run.advance(None).is_some() {}
    run.now().since(Time::ZERO).as_secs_f64()
}

/// One flow after the other between servers of a network without bottlenecks inside, in rounds.
fn rounds(rounds: &[Vec<(u32, u32, u64)>]) -> Result<f64, FlowError> {
    let mut run = Run::new(vec![LINE_BPS; 2 * SERVERS as usize])?;
    for round in rounds {
        for &(from, to, bytes) in round {
            run.start(Flow::over([up(from), down(to)]), 8 * bytes)?;
        }
        while run.advance(None).is_some() {}
    }
    Ok(finish(&mut run))
}

/// MPI's binomial tree: each server that has the data hands it to one more.
fn binomial(bytes: u64, _: u64) -> Result<f64, ItemError> {
    let doubling = (0..SERVERS.ilog2()).map(|round| {
        let have = 1 << round;
        (0..have).map(|from| (from, from + have, bytes)).collect()
    });
    Ok(rounds(&doubling.collect::<Vec<_>>())?)
}

/// MPI's way for large data: scatter by halves, then gather from all servers round a ring.
fn scatter_gather(bytes: u64, _: u64) -> Result<f64, ItemError> {
    let part = bytes.div_ceil(SERVERS.into());
    let mut plan: Vec<Vec<(u32, u32, u64)>> = Vec::new();
    let mut span = SERVERS;
    while span > 1 {
        let half = span / 2;
        let holders = (0..SERVERS).step_by(span as usize);
        plan.push(holders.map(|from| (from, from + half, u64::from(half) * part)).collect());
        span = half;
    }
    for _ in 1..SERVERS {
        plan.push((0..SERVERS).map(|from| (from, (from + 1) % SERVERS, part)).collect());
    }
    Ok(rounds(&plan)?)
}

/// Spark's Cornet as the swarm that it is like, in blocks of 4 MB.
fn swarm(bytes: u64, seed: u64) -> Result<f64, ItemError> {
    const BLOCK_BYTES: u64 = 4 << 20;
    let config = TorrentConfig::new(SERVERS, bytes.div_ceil(BLOCK_BYTES) as u32, BLOCK_BYTES, seed);
    let torrent =
        download(vec![LINE_BPS; 2 * SERVERS as usize], &config, |from, to| vec![up(from), down(to)])?;
    Ok(torrent.finished_at.iter().map(|at| at.since(Time::ZERO).as_secs_f64()).fold(0.0, f64::max))
}

fn push(over: Over, bytes: u64, seed: u64) -> Result<f64, ItemError> {
    let mut bed = Bed::new(seed);
    bed.add(0, over, bytes, Some(LINE), Time::ZERO);
    bed.finish()
}

/// A way of delivering so many bytes to 15 servers, in seconds, by a seed.
type Way = fn(u64, u64) -> Result<f64, ItemError>;

/// The ways of figure 6 (a): name, way, what the paper prints, kind of model, and note.
const WAYS: [(&str, Way, Option<f64>, &str); 5] = [
    (
        "Shufflecast",
        |bytes, seed| push(Over::Splitters, bytes, seed),
        None,
        "packet by packet; the paper: line rate",
    ),
    (
        "IP multicast, full bisection",
        |bytes, seed| push(Over::Core, bytes, seed),
        None,
        "packet by packet, the same transport; the paper: line rate",
    ),
    (
        "MPI_Bcast, scatter and gather",
        scatter_gather,
        Some(35.0),
        "a model of the network's bound alone; MPI's software is what holds the paper's back",
    ),
    ("MPI_Bcast, binomial tree", binomial, None, "a model: the network's bound"),
    (
        "Spark Cornet",
        swarm,
        Some(20.0),
        "a model: a swarm with blocks of 4 MB and no software; finding blocks is what holds the paper's back",
    ),
];

/// Figure 6 (a): throughput over the size of the data.
///
/// # Errors
/// If a transfer does not end.
pub(super) fn fig_6a(options: &Options) -> Result<Outcome, ItemError> {
    let megabytes: &[u64] = if options.quick { &[50, 200] } else { &[200, 600, 1000, 1400] };
    let mut rows = Vec::new();
    let mut series = Vec::new();
    for (at, (name, way, paper, note)) in WAYS.into_iter().enumerate() {
        let mut points = Vec::new();
        for &size in megabytes {
            let bytes = size * 1_000_000;
            points.push((size as f64, 8.0 * bytes as f64 / way(bytes, options.seed)? / 1e9));
        }
        let last = points[points.len() - 1].1;
        let percent = 100.0 * 1e9 * last / LINE_BPS;
        let row = Row::new(format!("{name}, part of the line rate"), paper, percent, "%").note(note);
        rows.push(if at < 2 { row.at_least(NEAR_LINE_PERCENT) } else { row });
        series.push(Series::ours(name, points));
    }
    let ends = [megabytes[0], megabytes[megabytes.len() - 1]].map(|size| size as f64);
    let flat = |percent: f64| ends.map(|end| (end, percent / 10.0)).to_vec();
    series.push(Series::paper("MPI_Bcast, scatter and gather", flat(35.0)).mark(Mark::Line));
    series.push(Series::paper("Spark Cornet", flat(20.0)).mark(Mark::Line));
    let figure = Figure::lines(
        "fig-6a",
        "One source, 15 receivers",
        Axis::linear("size of the data", "MB").range(0.0, ends[1]),
        Axis::linear("throughput", "Gbit/s").range(0.0, 11.0),
        series,
    );
    Ok(Outcome::from(rows).figure(figure).note(
        "The first two run our transport packet by packet. The paper's MPI_Bcast and Spark Cornet are held back by software: 35 and \
        20 % of the line rate at most. What a network alone would allow them is a model here.",
    ))
}

/// Returns the time that groups share the test bed, in seconds: in a full run as long as it takes to see
/// whether they are fair.
fn shared_s(options: &Options) -> f64 {
    if options.quick { 0.06 } else { FAIR_FROM_S + 2.0 * WINDOW_S }
}

/// Results of groups that share links.
struct Concurrent {
    /// Mean throughput of a group in the second half of the time, in Gbit/s.
    gbps: f64,
    /// Packets lost, in percent.
    lost_percent: f64,
    fairness: Fairness,
}

fn concurrent(groups: u32, options: &Options) -> Concurrent {
    let mut bed = Bed::new(options.seed);
    let until_s = shared_s(options);
    // More than a link carries in that time, so that no transfer ends early.
    let bytes = (1.2 * until_s * LINE_BPS / 8.0) as u64;
    // The servers in turn, one of each rack first.
    let sources = (0..groups).map(|at| (at % 8) * 2 + at / 8);
    let transfers: Vec<u32> =
        sources.map(|source| bed.add(source, Over::Splitters, bytes, None, Time::ZERO)).collect();
    let all: Vec<u32> = (0..SERVERS).collect();
    let had = |bed: &Bed| transfers.iter().map(|&transfer| bed.delivered(transfer)).sum::<f64>();
    let carried =
        |bed: &Bed| transfers.iter().map(|&transfer| bed.carried(transfer, &all)).collect::<Vec<f64>>();
    // Two windows, which are the second half.
    let mut seen = Vec::new();
    for part in [0.5, 0.75, 1.0] {
        bed.until(Time((part * 1e9 * until_s) as u64));
        seen.push((had(&bed), carried(&bed)));
    }
    let mut fairness = Fairness::default();
    for pair in seen.windows(2) {
        fairness.window(&pair[1].1.iter().zip(&pair[0].1).map(|(to, from)| to - from).collect::<Vec<f64>>());
    }
    let bits = 8.0 * (seen[2].0 - seen[0].0) / f64::from(groups);
    Concurrent { gbps: bits / (0.5 * until_s) / 1e9, lost_percent: bed.loss_percent(), fairness }
}

/// Time that groups have to find their shares: the paper says that they do quickly.
const FAIR_FROM_S: f64 = 1.0;
/// Time over which a share is counted.
const WINDOW_S: f64 = 0.5;
/// Least share of a flow, in percent of its fair share, and least index of Jain that count as the paper's
/// "close to fair-share": a flow that has lost a fifth is not close.
const FAIR: (f64, f64) = (80.0, 0.95);

/// Evenness of the shares of links, over windows.
#[derive(Clone, Copy, Debug)]
struct Fairness {
    /// Least share of a flow in a window, of its fair share.
    least: f64,
    /// Least index of Jain of a window: 1 where all have the same, one over their number where one has all.
    jain: f64,
}

impl Default for Fairness {
    fn default() -> Self {
        Fairness { least: f64::INFINITY, jain: 1.0 }
    }
}

impl Fairness {
    /// Adds a window in which each flow has had so many bytes.
    fn window(&mut self, bytes: &[f64]) {
        let (count, sum) = (bytes.len() as f64, bytes.iter().sum::<f64>());
        let squares: f64 = bytes.iter().map(|bytes| bytes * bytes).sum();
        if sum > 0.0 {
            self.least = self.least.min(bytes.iter().copied().fold(f64::INFINITY, f64::min) * count / sum);
            self.jain = self.jain.min(sum * sum / (count * squares));
        }
    }

    /// The two rows of flows that are named so. Only a full run has the paper's times, and is tested.
    fn rows(&self, flows: &str, options: &Options) -> [Row; 2] {
        let windows = "from 1 s after the last begin, in windows of 500 ms, by what links carried";
        let note = match options.quick {
            true => format!("{windows}; times are a part of these in a quick run, and not tested"),
            false => format!("{windows}; the paper: they achieve their fair share quickly"),
        };
        let least =
            Row::new(format!("least share of {flows}, of its fair share"), None, 100.0 * self.least, "%");
        let jain = Row::new(format!("least index of Jain of {flows}"), None, self.jain, "");
        let rows = [least.note(note.clone()), jain.note(note)];
        if options.quick {
            return rows;
        }
        let [least, jain] = rows;
        [least.at_least(FAIR.0), jain.at_least(FAIR.1)]
    }
}

/// Returns the rate that links allow each of `groups` groups, in Gbit/s: a server receives all groups but its
/// own.
fn fair_gbps(groups: u32) -> f64 {
    LINE_BPS / 1e9 / f64::from(groups.min(SERVERS - 1))
}

/// Figure 6 (d): throughput of each of many groups at the same time.
///
/// # Errors
/// None.
pub(super) fn fig_6d(options: &Options) -> Result<Outcome, ItemError> {
    let counts: &[u32] = if options.quick { &[1, 4, 16] } else { &[1, 2, 4, 8, 12, 16] };
    let mut rows = Vec::new();
    let mut points = Vec::new();
    let mut most_lost = 0.0f64;
    for &groups in counts {
        let Concurrent { gbps, lost_percent: lost, fairness } = concurrent(groups, options);
        points.push((f64::from(groups), gbps));
        most_lost = most_lost.max(lost);
        let name = format!("throughput of each of {groups} groups of all 16 servers");
        let note = format!("links allow {:.3} Gbit/s; {lost:.3} % of the packets lost", fair_gbps(groups));
        rows.push(Row::new(name, None, gbps, "Gbit/s").note(note));
        let name = format!("the same, of what links allow {groups} groups");
        rows.push(
            Row::new(name, None, 100.0 * gbps / fair_gbps(groups), "%").note("the paper: almost all of it"),
        );
        if groups > 1 {
            rows.extend(fairness.rows(&format!("{groups} groups"), options));
        }
    }
    let lost = Row::new("packets lost, most of all", Some(0.28), most_lost, "%").at_most(0.28);
    rows.push(lost.note("the paper's is an upper bound, of NORM; ours is our transport's"));
    for (p, k) in [(4, 3), (6, 2), (8, 2)] {
        rows.extend(parallel_groups(p, k));
    }
    let fair = (1..=SERVERS).map(|n| (f64::from(n), fair_gbps(n))).collect();
    let figure = Figure::lines(
        "fig-6d",
        "Concurrent groups of 16 servers on a 2,2-Shufflecast",
        Axis::linear("groups", "").range(0.0, 17.0).whole(),
        Axis::linear("mean throughput of a group", "Gbit/s").range(0.0, 11.0),
        vec![
            Series::ours("simulated", points).mark(Mark::Points),
            Series::ours("what links allow", fair).mark(Mark::Line),
        ],
    );
    Ok(Outcome::from(rows).figure(figure).note(
        "Every server is in every group, so that the servers' links decide and the fabric never does. Groups run our \
        transport with its congestion control, as on shared paths; the paper's ran NORM. A source does not receive its own group, so \
        that 16 groups share a link in fifteen.",
    ))
}

/// Lemmas 3 and 4: groups whose receivers are not the bottleneck share relays.
fn parallel_groups(p: u32, k: u32) -> Vec<Row> {
    let network = network(p, k);
    let slowest = |active: &[u32]| {
        fair_shares(&network, active).into_iter().fold(f64::INFINITY, f64::min) * LINE_BPS / 1e9
    };
    // One source in each partition, every digit of the row moved on by one.
    let ones = (network.rows() - 1) / (p - 1);
    let disjoint: Vec<u32> = (0..p).map(|j| network.tor(0, j * ones)).collect();
    let column: Vec<u32> = (0..network.rows()).map(|row| network.tor(0, row)).collect();
    let all: Vec<u32> = (0..network.tors()).collect();
    let line = LINE_BPS / 1e9;
    let size = f64::from(network.partition_size());
    let rows = [
        ("sources with disjoint relays", disjoint, line),
        ("all ToRs of a column at once", column, line / size),
        ("all ToRs at once", all, line / (size * f64::from(k))),
    ];
    rows.into_iter()
        .map(|(name, active, lemma)| {
            let name = format!("{p},{k}-Shufflecast, {} {name}, rate of each", active.len());
            let row = Row::new(name, None, slowest(&active), "Gbit/s").kind(Kind::Computed);
            row.note("relay by relay; lemmas 3 and 4 as a test").between(0.999 * lemma, 1.001 * lemma)
        })
        .collect()
}

/// The sources of figure 6 (e), one in each quarter of the ToRs, and the time from one begin to the next.
const STAGGERED: [u32; 4] = [0, 4, 8, 12];
const STAGGER_S: f64 = 1.5;
/// Time between two points of the curves.
const STEP_S: f64 = 0.1;

/// Rates of each flow over the links to servers that are no source, by step of the paper's time, in Gbit/s;
/// and the bed after it.
fn staggered(scale: f64, options: &Options) -> Result<(Bed, Vec<[f64; 4]>), ItemError> {
    let (bytes, step_s) = ((4e9 / scale) as u64, STEP_S / scale);
    let mut bed = Bed::new(options.seed);
    let begin = |at: usize| Time((1e9 * STAGGER_S / scale * at as f64) as u64);
    for (at, source) in STAGGERED.into_iter().enumerate() {
        bed.add(source, Over::Splitters, bytes, None, begin(at));
    }
    let servers: Vec<u32> = (0..SERVERS).filter(|server| !STAGGERED.contains(server)).collect();
    let (mut rates, mut before): (Vec<[f64; 4]>, _) = (Vec::new(), [0.0; 4]);
    loop {
        let outcome = bed.until(Time((1e9 * step_s * (rates.len() + 1) as f64) as u64));
        let now = [0, 1, 2, 3].map(|transfer| bed.carried(transfer, &servers));
        let mut each = [0.0; 4];
        for (rate, (now, before)) in each.iter_mut().zip(now.into_iter().zip(before)) {
            *rate = 8.0 * (now - before) / step_s / 1e9;
        }
        rates.push(each);
        before = now;
        if outcome == polycast_simulator::packet::Outcome::Stopped {
            return Ok((bed, rates));
        }
        if rates.len() as f64 * STEP_S > 120.0 {
            return Err(ItemError::Refused("four flows of 4 GB are not over after two minutes".into()));
        }
    }
}

/// Part of its bits up to which a flow counts: what comes behind that may be patches alone, and some of it
/// comes over connections.
const GOES_ON: f64 = 0.9;

/// Shares of the flows that go on through a window, from a second after the last has begun; one alone has
/// all.
fn shares(rates: &[[f64; 4]], flow_gbits: f64) -> Fairness {
    let steps = |seconds: f64| (seconds / STEP_S).round() as usize;
    let gbits = |rates: &[[f64; 4]], flow: usize| STEP_S * rates.iter().map(|rates| rates[flow]).sum::<f64>();
    let mut fairness = Fairness::default();
    let (from, window) = (steps(3.0 * STAGGER_S + FAIR_FROM_S), steps(WINDOW_S));
    for begin in (from..).step_by(window).take_while(|begin| begin + window <= rates.len()) {
        let until = begin + window;
        let going_on = (0..4).filter(|&flow| gbits(&rates[..until], flow) < GOES_ON * flow_gbits);
        fairness.window(&going_on.map(|flow| gbits(&rates[begin..until], flow)).collect::<Vec<f64>>());
    }
    fairness
}

/// Figure 6 (e): four flows of 4 GB that start one after the other.
///
/// # Errors
/// If a flow does not end.
pub(super) fn fig_6e(options: &Options) -> Result<Outcome, ItemError> {
    // Sizes and times in proportion; times are given for the whole.
    let scale = if options.quick { 80.0 } else { 1.0 };
    let (bed, rates) = staggered(scale, options)?;
    let end_s = |transfer: u32| {
        let ends =
            bed.cluster.push(transfer).receivers().iter().filter_map(|receiver| receiver.finished_at());
        scale * ends.max().unwrap_or(Time::ZERO).since(Time::ZERO).as_secs_f64()
    };
    let mut rows: Vec<Row> = (0..4)
        .map(|transfer| Row::new(format!("end of flow {}", transfer + 1), None, end_s(transfer), "s"))
        .collect();
    let last = (0..4).map(end_s).fold(0.0, f64::max);
    let used = 100.0 * 4.0 * 32e9 / (last * LINE_BPS);
    let row = Row::new("mean use of the line rate until the last end", None, used, "%").at_least(90.0);
    rows.push(row.note("the paper: close to line rate"));
    rows.extend(shares(&rates, 32.0).rows("four flows", options));
    rows.push(
        Row::new("packets lost", Some(0.28), bed.loss_percent(), "%")
            .at_most(0.28)
            .note("the paper's is an upper bound, of NORM and of figure 6(d); ours is our transport's"),
    );
    let curve = |of: &dyn Fn(&[f64; 4]) -> f64| -> Vec<(f64, f64)> {
        rates.iter().enumerate().map(|(at, rates)| ((at + 1) as f64 * STEP_S, of(rates))).collect()
    };
    let mut series: Vec<Series> =
        (0..4).map(|flow| Series::ours(&format!("flow {}", flow + 1), curve(&|rates| rates[flow]))).collect();
    series.push(Series::ours("all together", curve(&|rates| rates.iter().sum())));
    let figure = Figure::lines(
        "fig-6e",
        "Four flows of 4 GB, 1.5 s apart",
        Axis::linear("time", "s"),
        Axis::linear("what links carry", "Gbit/s").range(0.0, 11.0),
        series.into_iter().map(|one| one.mark(Mark::Line)).collect(),
    );
    let outcome = Outcome::from(rows).figure(figure).note(
        "Curves are what the links to the twelve servers that are no source have brought of each flow, on average. Together \
         they are never more than a link carries.",
    );
    let quick = "Sizes and times are an 80th of the paper's in the simulator, and are given times 80.";
    Ok(if options.quick { outcome.note(quick) } else { outcome })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: Options = Options { quick: true, seed: 1, threads: 1 };

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-3 * b
    }

    #[test]
    fn ways_of_delivering_take_what_arithmetic_says() {
        let second = (LINE_BPS / 8.0) as u64;
        assert!(close(binomial(second, 1).unwrap(), 4.0));
        assert!(close(scatter_gather(second, 1).unwrap(), 2.0 * 15.0 / 16.0));
        // No way is faster than the last bit's way over the source's link.
        assert!(swarm(second, 1).unwrap() > 1.0);
        for over in [Over::Splitters, Over::Core] {
            let seconds = push(over, 12_500_000, 1).unwrap();
            assert!(seconds > 0.010 && seconds < 0.011, "{over:?}: {seconds} s");
        }
    }

    #[test]
    fn a_lossy_splitter_costs_throughput_in_the_simulation() {
        use polycast_simulator::packet::Faults;
        let mut bed = Bed::new(1);
        let lossy = bed.tree(0, Over::Splitters)[16];
        bed.net.set_faults(lossy, Faults { loss_ppm: 100_000, ..Faults::NONE });
        bed.add(0, Over::Splitters, 12_500_000, Some(LINE), Time::ZERO);
        assert!(bed.finish().unwrap() > 0.0108, "a row of figure 6 (a) can fail");
    }

    #[test]
    fn concurrent_groups_share_what_links_allow() {
        let Concurrent { gbps, lost_percent, .. } = concurrent(4, &OPTIONS);
        assert!(gbps < fair_gbps(4) && gbps > 0.7 * fair_gbps(4), "{gbps} {lost_percent}");
        assert_eq!((fair_gbps(15), fair_gbps(16)), (LINE_BPS / 15e9, LINE_BPS / 15e9));
        for row in [(4, 3), (6, 2), (8, 2)].into_iter().flat_map(|(p, k)| parallel_groups(p, k)) {
            assert_eq!(row.is_within(), Some(true), "{row:?}");
        }
    }

    /// By hand: of 2 flows one has 3 of 4, and later both have the same.
    #[test]
    fn fairness_is_that_of_the_worst_window() {
        let mut fairness = Fairness::default();
        fairness.window(&[5.0, 5.0]);
        assert_eq!((fairness.least, fairness.jain), (1.0, 1.0));
        fairness.window(&[3.0, 1.0]);
        assert_eq!((fairness.least, fairness.jain), (0.5, 16.0 / 20.0));
        fairness.window(&[7.0]);
        assert_eq!((fairness.least, fairness.jain), (0.5, 16.0 / 20.0));
        let full = Options { quick: false, ..OPTIONS };
        assert!(fairness.rows("two", &full).iter().all(|row| row.is_within() == Some(false)));
        assert!(
            fairness.rows("two", &OPTIONS).iter().all(|row| row.test.is_none()),
            "a quick run is no test"
        );
    }

    /// A flow that starves a second after the last begin is seen, one that has ended is not missed, and what
    /// was before does not count.
    #[test]
    fn shares_are_counted_from_a_second_after_the_last_begin() {
        let until = |end_s: f64, rates: [f64; 4]| vec![rates; (end_s / STEP_S).round() as usize];
        let hungry = until(5.5, [4.0, 1.0, 1.0, 4.0]);
        let fair = [hungry.clone(), until(1.0, [2.5; 4]), until(1.0, [0.0, 5.0, 5.0, 0.0])].concat();
        assert!((shares(&fair, 27.0).least - 1.0).abs() < 1e-9, "{:?}", shares(&fair, 27.0));
        let starved = [hungry, until(1.0, [2.4, 2.5, 2.5, 0.1])].concat();
        assert!(shares(&starved, 27.0).least < 0.06, "{:?}", shares(&starved, 27.0));
    }

    /// Curves are what a link carries: together no more than its rate, but for a packet at each end of a
    /// step.
    #[test]
    fn curves_together_never_exceed_the_line() {
        let scale = 400.0;
        let (bed, rates) = staggered(scale, &OPTIONS).unwrap();
        let packet = 8.0 * 9_000.0 / (STEP_S / scale) / 1e9;
        let most = rates.iter().map(|rates| rates.iter().sum::<f64>()).fold(0.0, f64::max);
        assert!(most > 0.8 * LINE_BPS / 1e9 && most <= LINE_BPS / 1e9 + packet, "{most} Gbit/s");
        // And all of it: what was carried is what was sent, and what was sent again.
        let gigabits = rates.iter().flatten().sum::<f64>() * STEP_S / scale;
        assert!(gigabits > 4.0 * 32.0 / scale && bed.cluster.is_done(), "{gigabits}");
    }
}
