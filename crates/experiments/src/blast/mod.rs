//! Blast: how good and how fast the greedy scheduler is (section III-C, Table I), and the simulations of
//! section VI.

pub mod cluster;
pub(crate) mod control;
mod fig_4;
pub mod schemes;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use polycast_planning::circuits::{self, CircuitGroup, CircuitNetwork};

use crate::random::Random;
use crate::report::{Axis, Figure, Item, ItemError, Load, Options, Outcome, Series};
use crate::{Kind, Row, exact, lab};

/// The items of this paper.
pub const ITEMS: &[Item] = &[
    Item {
        paper: "blast",
        name: "table-1",
        title: "Table I and section III-C: how good and how fast the scheduler is",
        place: "Table I",
        kind: Kind::Measured,
        differs: "another processor, and the paper does not say how its traffic is drawn",
        load: Load::Alone,
        run: table_1,
    },
    Item {
        paper: "blast",
        name: "table-2",
        title: "Table II: the parts of the time from a request to its path, in a lab (Linux, root)",
        place: "section V-B, Table II",
        kind: Kind::Measured,
        differs: "another processor, devices that are emulated, and rules and circuits at the same time",
        load: Load::Lab,
        run: |_| Ok(control::table_2(&Err(lab::NOT_HERE.into()))),
    },
    Item {
        paper: "blast",
        name: "fig-4",
        title: "Figure 4: completion times of seven schemes under three backgrounds",
        place: "section VI-B, Fig. 4",
        kind: Kind::Simulated,
        differs: "where replicas are and how the overlay shares links is open in the paper",
        load: Load::Shared,
        run: fig_4::fig_4,
    },
    Item {
        paper: "blast",
        name: "fig-4-cores",
        title: "Beyond figure 4: every scheme on both cores, with and without priority",
        place: "section VI-B, Fig. 4",
        kind: Kind::Simulated,
        differs: "beyond the paper",
        load: Load::Shared,
        run: fig_4::both_cores,
    },
];

/// Optimality and time as rows, and the time over the number of racks beside other systems' times.
fn table_1(options: &Options) -> Result<Outcome, ItemError> {
    let rows = scheduling(if options.quick { 2 } else { 20 }, options.seed)?;
    let mut points = Vec::new();
    for racks in [80, 128, 200, 500, 1000, 2000] {
        points.push((f64::from(racks), worst_ms(racks, if options.quick { 10 } else { 100 }, options.seed)?));
    }
    let others = [
        ("Blast", 1000.0, 166.0),
        ("c-Through", 1000.0, 640.0),
        ("Helios", 128.0, 118.0),
        ("OSA", 80.0, 48.0),
    ];
    let mut series = vec![Series::ours("Blast", points)];
    series.extend(others.map(|(name, racks, ms)| Series::paper(name, vec![(racks, ms)])));
    let figure = Figure::lines(
        "table-1",
        "Time to schedule as many groups as there are racks",
        Axis::log("racks", ""),
        Axis::log("computation time", "ms"),
        series,
    );
    Ok(Outcome::from(rows).figure(figure).note(
        "The paper's times are of a core of 2.83 GHz from 2008, and those of the other systems of their own \
        papers; the systems solve different problems.",
    ).note(
        "The paper says over 99 % in all cases, and neither how many fibres a rack has nor how many splitters there are. Where as many \
        large groups fit at once as there are fibres, the greedy choice is near the optimum. Where groups compete that need some of \
        the same racks, it is not: it takes those of most volume a rack, and one of them can keep several others out.",
    ))
}

/// 300 MB to groups of 100 to 1000 servers, in racks of `servers_per_rack`, side by side as schedulers
/// of clusters place them.
pub fn requests(racks: u32, servers_per_rack: u32, count: u32, random: &mut Random) -> Vec<CircuitGroup> {
    (0..count)
        .map(|id| {
            let receivers = 100 + random.below(901);
            let spanned = (receivers + 1).div_ceil(servers_per_rack).clamp(2, racks);
            let first = random.below(racks);
            let racks = (first..first + spanned).map(|rack| rack % racks).collect();
            CircuitGroup { id: id.into(), racks, bytes: 300_000_000, receivers }
        })
        .collect()
}

/// Multicast to groups of `size` servers anywhere in the cluster, and unicast between racks of 1 KB to
/// 100 MB, each order of magnitude equally likely.
pub fn mixture(racks: u32, servers_per_rack: u32, size: u32, random: &mut Random) -> Vec<CircuitGroup> {
    let mut servers: Vec<u32> = (0..racks * servers_per_rack).collect();
    let mut groups = Vec::new();
    for id in 0..10 {
        random.choose_first(&mut servers, size as usize);
        let spanned: BTreeSet<u32> =
            servers[..size as usize].iter().map(|server| server / servers_per_rack).collect();
        let racks = spanned.into_iter().collect();
        groups.push(CircuitGroup { id, racks, bytes: 300_000_000, receivers: size - 1 });
    }
    for id in 10..10 + u64::from(racks) {
        let from = random.below(racks);
        let to = (from + 1 + random.below(racks - 1)) % racks;
        let bytes = 10f64.powf(3.0 + 5.0 * random.fraction()) as u64;
        groups.push(CircuitGroup { id, racks: vec![from, to], bytes, receivers: 1 });
    }
    groups
}

/// The paper's optical network, for any number of racks: one splitter for every three racks.
#[must_use]
pub fn optical(racks: u32) -> CircuitNetwork {
    CircuitNetwork { racks, ports_per_rack: 1, splitters: racks / 3, splitter_fanout: 4, cascade_max: 20 }
}

/// The paper's words on the greedy choice: over 99 % in all cases.
const PAPERS_PERCENT: f64 = 99.0;

/// Optimality on 200 racks by fibres a rack and splitters, and the time for 1000.
///
/// # Errors
/// If the solver fails.
pub fn scheduling(runs: u32, seed: u64) -> Result<Vec<Row>, exact::ExactError> {
    let mut rows = Vec::new();
    // Groups anywhere span most racks: with splitters enough they do not decide, with those of the paper they
    // do.
    for (splitters, said) in [(200, ""), (66, ", 66 splitters")] {
        for ports_per_rack in 1..=4 {
            for size in [100, 200, 500, 1000] {
                let mut random = Random::new(seed);
                let network = CircuitNetwork { ports_per_rack, splitters, cascade_max: 100, ..optical(200) };
                let draw = |random: &mut Random| mixture(200, 40, size, random);
                let fibres = if ports_per_rack == 1 { "fibre" } else { "fibres" };
                let name = format!(
                    "optimality, 200 racks with {ports_per_rack} {fibres}{said}, groups of {size} anywhere and unicast"
                );
                rows.push(optimality(&network, runs, name, &mut random, draw)?);
            }
        }
    }
    for waiting in [20, 40, 80] {
        let mut random = Random::new(seed);
        let draw = |random: &mut Random| requests(200, 40, waiting, random);
        let name = format!("optimality, 200 racks, {waiting} groups side by side");
        rows.push(optimality(&optical(200), runs, name, &mut random, draw)?);
    }
    let worst = worst_ms(1000, 100, seed)?;
    rows.push(
        Row::new("greedy, 1000 racks, 1000 groups, worst of 100", Some(166.0), worst, "ms").at_most(166.0),
    );
    Ok(rows)
}

/// The worst time of so many schedules of as many groups as there are racks.
fn worst_ms(racks: u32, runs: u32, seed: u64) -> Result<f64, exact::ExactError> {
    let network = optical(racks);
    let groups = requests(racks, 40, racks, &mut Random::new(seed));
    let mut worst = 0.0f64;
    for _ in 0..runs {
        let start = Instant::now();
        let schedule = circuits::schedule(&network, &groups, &BTreeSet::new())?;
        worst = worst.max(start.elapsed().as_secs_f64() * 1e3);
        assert!(!schedule.granted.is_empty());
    }
    Ok(worst)
}

fn optimality(
    network: &CircuitNetwork,
    runs: u32,
    name: String,
    random: &mut Random,
    draw: impl Fn(&mut Random) -> Vec<CircuitGroup>,
) -> Result<Row, exact::ExactError> {
    let (mut sum, mut worst, mut proven, mut solver_s) = (0.0, 1.0f64, 0, 0.0);
    for _ in 0..runs {
        let groups = draw(random);
        let greedy = circuits::schedule(network, &groups, &BTreeSet::new())?;
        let start = Instant::now();
        let best = exact::schedule(network, &groups, &BTreeSet::new(), Duration::from_secs(20))?;
        solver_s += start.elapsed().as_secs_f64();
        proven += u32::from(best.proven);
        let optimality = greedy.volume as f64 / best.schedule.volume as f64;
        sum += optimality;
        worst = worst.min(optimality);
    }
    let (mean, each_s) = (100.0 * sum / f64::from(runs), solver_s / f64::from(runs));
    let note = format!("worst {:.1} %, {proven} of {runs} proven, solver {each_s:.2} s each", 100.0 * worst);
    let row = Row::new(name, Some(PAPERS_PERCENT), mean, "%").kind(Kind::Computed).place("section III-C");
    Ok(row.at_least(PAPERS_PERCENT).note(note))
}
