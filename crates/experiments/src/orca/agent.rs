//! Orca, figure 5c: how long an agent's work on a packet takes, and what of figures 4 to 6 needs a test bed.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use polycast_planning::labels::{LabelPlanner, switches};

use super::papers_network;
use crate::Row;
use crate::random::Random;
use crate::report::{Options, Outcome};

/// The frequency of the paper's agent: its 375 cycles are 99 ns.
const PAPER_NS: f64 = 99.0;

/// Looks leaf labels up by session and puts them in, for 1 thousand to 1 million active sessions.
///
/// # Panics
/// Never: the network has labels.
#[must_use]
pub fn figure_5c(options: &Options) -> Outcome {
    let planner = LabelPlanner::new(papers_network(), 69).expect("labels for this network");
    let format = planner.format();
    let packets = if options.quick { 200_000u32 } else { 2_000_000 };
    let source_label = planner_label(&planner);
    let mut rows = Vec::new();
    for sessions in [1_000u32, 10_000, 100_000, 1_000_000] {
        let mut random = Random::new(options.seed);
        let state: HashMap<u32, u128> = (0..sessions)
            .map(|session| (session.wrapping_mul(2_654_435_761), 1 + u128::from(session % 7)))
            .collect();
        let drawn: Vec<u32> =
            (0..packets).map(|_| random.below(sessions).wrapping_mul(2_654_435_761)).collect();
        let start = Instant::now();
        for session in &drawn {
            let hosts = state.get(session).copied();
            black_box(switches::agent(format, black_box(&source_label), hosts));
        }
        let each_ns = 1e9 * start.elapsed().as_secs_f64() / f64::from(packets);
        let paper = (sessions == 100_000).then_some(PAPER_NS);
        let name = format!("5c: look up and replace a label, {sessions} active sessions");
        rows.push(Row::new(name, paper, each_ns, "ns").note("in memory, without receiving and sending"));
    }
    Outcome::from(rows).note(
        "Left to a test bed: figures 4a and 4b (communication time of an application), 5a and 5b (throughput of a \
         NetFPGA switch and of agents at 40 Gbit/s), 5d (latency), 6a and 6b (failover of agents), 6c (delay of a join) \
         and 6d (messages of the controller over gRPC). They measure network cards, switches and kernels.",
    )
}

fn planner_label(planner: &LabelPlanner) -> polycast_planning::labels::Label {
    let mut planner = planner.clone();
    let plan = planner.plan(1, 0, &[5, 600, 27_000], &polycast_topology::Failures::none());
    plan.expect("hosts of the network").label
}
