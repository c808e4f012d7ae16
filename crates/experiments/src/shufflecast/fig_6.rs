//! Figure 6 (a), (d), (e): throughput of multicast on a 2,2-Shufflecast with 16 servers, at flow level.
//!
//! What the paper measures on its test bed includes transport protocols and software; here the network alone
//! limits the flows. Power and cost, figure 6 (b) and (c), are arithmetic and are in the module above.

use polycast_planning::relays::{self, fair_shares};
use polycast_simulator::flow::{Flow, FlowError, FlowId, Link, Run, max_min};
use polycast_topology::Shufflecast;
use polycast_types::Time;

use super::network;
use crate::Row;
use crate::report::{Axis, Figure, ItemError, Mark, Options, Outcome, Series};

/// Rate of every link of the test bed in bit/s.
const LINE_BPS: f64 = 10e9;
/// Its servers.
const SERVERS: u32 = 16;

/// Links of servers below ToRs that are joined by splitters: each server's up and down, then the fibre from
/// each ToR into its splitter.
struct Fabric {
    network: Shufflecast,
    servers: u32,
}

impl Fabric {
    fn papers() -> Self {
        Fabric { network: network(2, 2), servers: SERVERS }
    }

    fn capacities_bps(&self) -> Vec<f64> {
        vec![LINE_BPS; (2 * self.servers + self.network.tors()) as usize]
    }

    fn tor(&self, server: u32) -> u32 {
        server * self.network.tors() / self.servers
    }

    fn up(server: u32) -> Link {
        2 * server
    }

    fn down(server: u32) -> Link {
        2 * server + 1
    }

    /// The tree from a server to all others over the relays of its ToR.
    fn tree(&self, source: u32) -> Flow {
        let splitters = relays::relay_set(&self.network, self.tor(source));
        let down = (0..self.servers).filter(move |&server| server != source).map(Self::down);
        let fibres = splitters.into_iter().map(|tor| 2 * self.servers + tor);
        Flow::over([Self::up(source)].into_iter().chain(fibres).chain(down))
    }
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
            run.start(Flow::over([Fabric::up(from), Fabric::down(to)]), 8 * bytes)?;
        }
        while run.advance(None).is_some() {}
    }
    Ok(finish(&mut run))
}

/// MPI's binomial tree: whoever has it hands it to one more.
fn binomial(bytes: u64) -> Result<f64, FlowError> {
    let doubling = (0..SERVERS.ilog2()).map(|round| {
        let have = 1 << round;
        (0..have).map(|from| (from, from + have, bytes)).collect()
    });
    rounds(&doubling.collect::<Vec<_>>())
}

/// MPI's way for large data: scatter by halves, then gather from everybody round a ring.
fn scatter_gather(bytes: u64) -> Result<f64, FlowError> {
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
    rounds(&plan)
}

/// One tree on a network without bottlenecks inside: IP multicast at its best.
fn ip_multicast(bytes: u64) -> Result<f64, FlowError> {
    let mut run = Run::new(vec![LINE_BPS; 2 * SERVERS as usize])?;
    let links = [Fabric::up(0)].into_iter().chain((1..SERVERS).map(Fabric::down));
    run.start(Flow::over(links), 8 * bytes)?;
    Ok(finish(&mut run))
}

fn shufflecast(bytes: u64) -> Result<f64, FlowError> {
    let fabric = Fabric::papers();
    let mut run = Run::new(fabric.capacities_bps())?;
    run.start(fabric.tree(0), 8 * bytes)?;
    Ok(finish(&mut run))
}

/// Figure 6 (a): throughput over the size of the data.
///
/// # Errors
/// If a flow is not valid.
pub fn fig_6a(_: &Options) -> Result<Outcome, ItemError> {
    type Way = fn(u64) -> Result<f64, FlowError>;
    let ways: [(&str, Way, Option<f64>, &str); 4] = [
        ("Shufflecast", shufflecast, Some(100.0), ""),
        ("IP multicast, full bisection", ip_multicast, Some(100.0), ""),
        (
            "MPI_Bcast, scatter and gather",
            scatter_gather,
            Some(35.0),
            "ours is the network's bound; the paper measured MPI's software",
        ),
        ("MPI_Bcast, binomial tree", binomial, None, "the network's bound"),
    ];
    let sizes = [200, 400, 600, 800, 1000, 1200, 1400].map(|mb: u64| mb * 1_000_000);
    let mut rows = Vec::new();
    let mut series = Vec::new();
    for (name, way, paper, note) in ways {
        let mut points = Vec::new();
        for bytes in sizes {
            points.push((bytes as f64 / 1e6, 8.0 * bytes as f64 / way(bytes)? / 1e9));
        }
        let last = points[points.len() - 1].1;
        let percent = 100.0 * 1e9 * last / LINE_BPS;
        rows.push(Row::new(format!("{name}, part of the line rate"), paper, percent, "%").note(note));
        series.push(Series::ours(name, points));
    }
    let flat = |percent: f64| vec![(200.0, percent / 10.0), (1400.0, percent / 10.0)];
    series.push(Series::paper("MPI_Bcast, at most", flat(35.0)).mark(Mark::Line));
    series.push(Series::paper("Spark Cornet, at most", flat(20.0)).mark(Mark::Line));
    let figure = Figure::lines(
        "fig-6a",
        "One source, 15 receivers",
        Axis::linear("size of the data", "MB").range(200.0, 1400.0),
        Axis::linear("throughput", "Gbit/s").range(0.0, 11.0),
        series,
    );
    Ok(Outcome::from(rows).figure(figure).note(
        "The paper's MPI_Bcast and Spark Cornet are held back by software: 35 and 20 % of the line rate at \
        most. That takes real machines. What a network alone would allow them is computed here.",
    ))
}

/// Figure 6 (d): throughput of each of many groups at the same time.
///
/// # Errors
/// If a flow is not valid.
pub fn fig_6d(_: &Options) -> Result<Outcome, ItemError> {
    let fabric = Fabric::papers();
    let mut rows = Vec::new();
    let mut points = Vec::new();
    for groups in 1..=SERVERS {
        let flows: Vec<Flow> = (0..groups).map(|source| fabric.tree(source)).collect();
        let rates = max_min(&fabric.capacities_bps(), &flows)?;
        let mean = rates.iter().sum::<f64>() / f64::from(groups) / 1e9;
        points.push((f64::from(groups), mean));
        if groups.is_power_of_two() {
            let fair = LINE_BPS / 1e9 / f64::from(groups);
            let name = format!("throughput of each of {groups} groups of all 16 servers");
            let note = match groups {
                SERVERS => "a source does not receive its own group, so that 15 share a link",
                _ => "the paper: the line rate shared fairly; its measurements are close to it",
            };
            rows.push(Row::new(name, Some(fair), mean, "Gbit/s").note(note));
        }
    }
    for (p, k) in [(4, 3), (6, 2), (8, 2)] {
        rows.extend(parallel_groups(p, k));
    }
    let fair = (1..=SERVERS).map(|n| (f64::from(n), LINE_BPS / 1e9 / f64::from(n))).collect();
    let figure = Figure::lines(
        "fig-6d",
        "Concurrent groups of 16 servers on a 2,2-Shufflecast",
        Axis::linear("groups", "").range(0.0, 17.0),
        Axis::linear("mean throughput of a group", "Gbit/s").range(0.0, 11.0),
        vec![Series::ours("fair share", points), Series::paper("fair share", fair)],
    );
    Ok(Outcome::from(rows).figure(figure).note(
        "Every server is in every group, so that the servers' links decide and the fabric never does. The \
        loss of 0.28 % with NORM and the 0.6 ms of a rule update need real machines and are left to the lab.",
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
        ("sources with disjoint relays", disjoint, Some(line)),
        ("all ToRs of a column at once", column, Some(line / size)),
        ("all ToRs at once", all, Some(line / (size * f64::from(k)))),
    ];
    rows.into_iter()
        .map(|(name, active, paper)| {
            let name = format!("{p},{k}-Shufflecast, {} {name}, rate of each", active.len());
            Row::new(name, paper, slowest(&active), "Gbit/s")
        })
        .collect()
}

/// Figure 6 (e): four flows of 4 GB that start one after the other.
///
/// # Errors
/// If a flow is not valid.
pub fn fig_6e(_: &Options) -> Result<Outcome, ItemError> {
    const STAGGER_NS: u64 = 1_500_000_000;
    let fabric = Fabric::papers();
    let mut run = Run::new(fabric.capacities_bps())?;
    let mut flows: Vec<FlowId> = Vec::new();
    let mut curves: Vec<Vec<(f64, f64)>> = vec![Vec::new(); 5];
    let mut ends = Vec::new();
    let mut record = |run: &mut Run, flows: &[FlowId]| {
        let at = run.now().since(Time::ZERO).as_secs_f64();
        let rates: Vec<f64> =
            (0..4).map(|i| flows.get(i).and_then(|&id| run.rate_bps(id)).unwrap_or(0.0) / 1e9).collect();
        for (curve, rate) in curves.iter_mut().zip(rates.iter().copied().chain([rates.iter().sum()])) {
            let before = curve.last().map_or(0.0, |point| point.1);
            curve.extend([(at, before), (at, rate)]);
        }
    };
    while ends.len() < 4 {
        if flows.len() < 4 && run.now() >= Time(STAGGER_NS * flows.len() as u64) {
            // One source in each quarter of the ToRs.
            flows.push(run.start(fabric.tree(4 * flows.len() as u32), 8 * 4_000_000_000)?);
            record(&mut run, &flows);
        }
        let until = (flows.len() < 4).then(|| Time(STAGGER_NS * flows.len() as u64));
        if let Some(completion) = run.advance(until) {
            ends.extend(completion.flows.iter().map(|_| completion.at.since(Time::ZERO).as_secs_f64()));
            record(&mut run, &flows);
        }
    }
    let mut rows: Vec<Row> = ends
        .iter()
        .enumerate()
        .map(|(i, &end)| Row::new(format!("end of flow {}", i + 1), None, end, "s"))
        .collect();
    let last = ends.last().copied().unwrap_or(0.0);
    let used = 100.0 * 4.0 * 32e9 / (last * LINE_BPS);
    let note = "the paper: close to line rate";
    rows.push(Row::new("mean use of the line rate", Some(100.0), used, "%").note(note));
    let names = ["flow 1", "flow 2", "flow 3", "flow 4", "all together"];
    let series =
        names.iter().zip(curves).map(|(name, curve)| Series::ours(name, curve).mark(Mark::Line)).collect();
    let figure = Figure::lines(
        "fig-6e",
        "Four flows of 4 GB, 1.5 s apart",
        Axis::linear("time", "s"),
        Axis::linear("throughput", "Gbit/s").range(0.0, 11.0),
        series,
    );
    Ok(Outcome::from(rows).figure(figure))
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
        assert!(close(shufflecast(second).unwrap(), 1.0));
        assert!(close(ip_multicast(second).unwrap(), 1.0));
        assert!(close(binomial(second).unwrap(), 4.0));
        assert!(close(scatter_gather(second).unwrap(), 2.0 * 15.0 / 16.0));
    }

    #[test]
    fn concurrent_groups_get_fair_shares() {
        for row in fig_6d(&OPTIONS).unwrap().rows {
            let fair = if row.name.contains("of 16 groups") { 10.0 / 15.0 } else { row.paper.unwrap() };
            assert!(close(row.ours, fair), "{row:?}");
        }
    }

    #[test]
    fn staggered_flows_keep_the_line_busy() {
        let rows = fig_6e(&OPTIONS).unwrap().rows;
        assert_eq!(rows.len(), 5);
        assert!(close(rows[4].ours, 100.0), "{rows:?}");
        assert!(close(rows[3].ours, 12.8), "{rows:?}");
    }
}
