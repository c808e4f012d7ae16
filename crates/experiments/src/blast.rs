//! Blast, section III-C: how good and how fast the greedy scheduler is.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use polycast_planning::circuits::{self, CircuitGroup, CircuitNetwork};

use crate::random::Random;
use crate::{Row, exact};

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

/// The paper's optical network, for any number of racks: one splitter for every three racks.
#[must_use]
pub fn optical(racks: u32) -> CircuitNetwork {
    CircuitNetwork { racks, ports_per_rack: 1, splitters: racks / 3, splitter_fanout: 4, cascade_max: 20 }
}

/// Optimality on 200 racks, and the time for 1000.
///
/// # Errors
/// If the solver fails.
pub fn scheduling(runs: u32) -> Result<Vec<Row>, exact::ExactError> {
    let item = "blast III-C";
    let mut rows = Vec::new();
    for waiting in [20, 40, 80] {
        let mut random = Random::new(1);
        let (mut sum, mut worst, mut proven, mut solver_seconds) = (0.0, 1.0f64, 0, 0.0);
        for _ in 0..runs {
            let network = optical(200);
            let groups = requests(200, 40, waiting, &mut random);
            let greedy = circuits::schedule(&network, &groups, &BTreeSet::new())?;
            let start = Instant::now();
            let best = exact::schedule(&network, &groups, &BTreeSet::new(), Duration::from_secs(20))?;
            solver_seconds += start.elapsed().as_secs_f64();
            proven += u32::from(best.proven);
            let optimality = greedy.volume as f64 / best.schedule.volume as f64;
            sum += optimality;
            worst = worst.min(optimality);
        }
        let mean = 100.0 * sum / f64::from(runs);
        let name = format!("optimality, 200 racks, {waiting} groups");
        let note = format!(
            "worst {:.1} %, {proven} of {runs} proven, solver {:.2} s each",
            100.0 * worst,
            solver_seconds / f64::from(runs)
        );
        rows.push(Row::new(item, name, Some(99.0), mean, "%").note(note));
    }
    let network = optical(1000);
    let groups = requests(1000, 40, 1000, &mut Random::new(2));
    let mut worst = 0.0f64;
    for _ in 0..100 {
        let start = Instant::now();
        let schedule = circuits::schedule(&network, &groups, &BTreeSet::new())?;
        worst = worst.max(start.elapsed().as_secs_f64() * 1e3);
        assert!(!schedule.granted.is_empty());
    }
    rows.push(Row::new(item, "greedy, 1000 racks, 1000 groups, worst of 100", Some(166.0), worst, "ms"));
    Ok(rows)
}
