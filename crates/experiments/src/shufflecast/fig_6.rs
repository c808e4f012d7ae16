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

/// Returns the time that groups share the test bed, in seconds.
fn shared_s(options: &Options) -> f64 {
    if options.quick { 0.06 } else { 0.4 }
}

/// The mean throughput of a group in the second half of the time, in Gbit/s, and the packets lost, in
/// percent.
fn concurrent(groups: u32, options: &Options) -> (f64, f64) {
    let mut bed = Bed::new(options.seed);
    let until_s = shared_s(options);
    // More than a link carries in that time, so that no transfer ends early.
    let bytes = (1.2 * until_s * LINE_BPS / 8.0) as u64;
    // The servers in turn, one of each rack first.
    let sources = (0..groups).map(|at| (at % 8) * 2 + at / 8);
    let transfers: Vec<u32> =
        sources.map(|source| bed.add(source, Over::Splitters, bytes, None, Time::ZERO)).collect();
    let had = |bed: &Bed| transfers.iter().map(|&transfer| bed.delivered(transfer)).sum::<f64>();
    bed.until(Time((0.5e9 * until_s) as u64));
    let before = had(&bed);
    bed.until(Time((1e9 * until_s) as u64));
    let bits = 8.0 * (had(&bed) - before) / f64::from(groups);
    (bits / (0.5 * until_s) / 1e9, bed.loss_percent())
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
        let (gbps, lost) = concurrent(groups, options);
        points.push((f64::from(groups), gbps));
        most_lost = most_lost.max(lost);
        let name = format!("throughput of each of {groups} groups of all 16 servers");
        let note = format!("links allow {:.3} Gbit/s; {lost:.3} % of the packets lost", fair_gbps(groups));
        rows.push(Row::new(name, None, gbps, "Gbit/s").note(note));
        let name = format!("the same, of what links allow {groups} groups");
        rows.push(
            Row::new(name, None, 100.0 * gbps / fair_gbps(groups), "%").note("the paper: almost all of it"),
        );
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

/// Figure 6 (e): four flows of 4 GB that start one after the other.
///
/// # Errors
/// If a flow does not end.
pub(super) fn fig_6e(options: &Options) -> Result<Outcome, ItemError> {
    // Sizes and times in proportion; times are given for the whole.
    let scale = if options.quick { 80.0 } else { 8.0 };
    let (bytes, stagger_s) = ((4e9 / scale) as u64, 1.5 / scale);
    let mut bed = Bed::new(options.seed);
    let begin = |at: u32| Time((1e9 * stagger_s * f64::from(at)) as u64);
    // One source in each quarter of the ToRs.
    let transfers: Vec<u32> =
        (0..4).map(|at| bed.add(4 * at, Over::Splitters, bytes, None, begin(at))).collect();
    let step_s = 0.2 / scale;
    let mut curves: Vec<Vec<(f64, f64)>> = vec![Vec::new(); 5];
    let mut before = [0.0; 4];
    let mut at_s = 0.0;
    loop {
        at_s += step_s;
        let outcome = bed.until(Time((1e9 * at_s) as u64));
        let mut rates = Vec::new();
        for (&transfer, before) in transfers.iter().zip(&mut before) {
            let had = bed.delivered(transfer);
            rates.push(8.0 * (had - *before) / step_s / 1e9);
            *before = had;
        }
        let all = rates.iter().sum::<f64>();
        curves
            .iter_mut()
            .zip(rates.into_iter().chain([all]))
            .for_each(|(curve, rate)| curve.push((at_s * scale, rate)));
        if outcome == polycast_simulator::packet::Outcome::Stopped {
            break;
        }
        if at_s * scale > 120.0 {
            return Err(ItemError::Refused("four flows of 4 GB are not over after two minutes".into()));
        }
    }
    let end_s = |transfer: u32| {
        let ends =
            bed.cluster.push(transfer).receivers().iter().filter_map(|receiver| receiver.finished_at());
        scale * ends.max().unwrap_or(Time::ZERO).since(Time::ZERO).as_secs_f64()
    };
    let mut rows: Vec<Row> = transfers
        .iter()
        .map(|&transfer| Row::new(format!("end of flow {}", transfer + 1), None, end_s(transfer), "s"))
        .collect();
    let last = transfers.iter().map(|&transfer| end_s(transfer)).fold(0.0, f64::max);
    let used = 100.0 * 4.0 * 32e9 / (last * LINE_BPS);
    let row = Row::new("mean use of the line rate until the last end", None, used, "%").at_least(90.0);
    rows.push(row.note("the paper: close to line rate"));
    rows.push(
        Row::new("packets lost", Some(0.28), bed.loss_percent(), "%")
            .at_most(0.28)
            .note("the paper's is an upper bound, of NORM and of figure 6(d); ours is our transport's"),
    );
    let names = ["flow 1", "flow 2", "flow 3", "flow 4", "all together"];
    let series =
        names.iter().zip(curves).map(|(name, curve)| Series::ours(name, curve).mark(Mark::Line)).collect();
    let figure = Figure::lines(
        "fig-6e",
        "Four flows of 4 GB, 1.5 s apart",
        Axis::linear("time", "s"),
        Axis::linear("throughput", "Gbit/s"),
        series,
    );
    Ok(Outcome::from(rows).figure(figure).note(format!(
        "Sizes and times are a {scale:.0}th of the paper's in the simulator, and are given times {scale:.0}."
    )))
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
        let (gbps, lost) = concurrent(4, &OPTIONS);
        assert!(gbps < fair_gbps(4) && gbps > 0.7 * fair_gbps(4), "{gbps} {lost}");
        assert_eq!((fair_gbps(15), fair_gbps(16)), (LINE_BPS / 15e9, LINE_BPS / 15e9));
        for row in [(4, 3), (6, 2), (8, 2)].into_iter().flat_map(|(p, k)| parallel_groups(p, k)) {
            assert_eq!(row.is_within(), Some(true), "{row:?}");
        }
    }
}
