//! Orca, figures 5b and 5c: what an agent's work on a packet takes, by the code that agents run.

use std::hint::black_box;
use std::time::Instant;

use polycast_protocol::switch::RackLabels;
use polycast_types::LabelKind;
use polycast_wire::label::Header;

use crate::random::Random;
use crate::report::{Axis, Figure, Options, Outcome, Series};
use crate::{Row, side_by_side};

/// The frequency of the paper's agent: its 375 cycles are 99 ns.
const PAPER_NS: f64 = 99.0;
/// The paper's label.
const LABEL_LEN: usize = 19;
/// Packets that wait in a receive queue, and their bytes.
const QUEUE: usize = 1_024;
const PACKET_LEN: usize = 1_024;
/// The least packet with which one of the paper's cores keeps up with 40 Gbit/s.
const PAPER_LEAST_BYTES: f64 = 560.0;

/// Numbers without order, each different.
fn session(at: u32) -> u32 {
    at.wrapping_mul(2_654_435_761) ^ 0x5bd1_e995
}

/// Labels of so many sessions.
fn labels(sessions: u32) -> RackLabels {
    let mut leaf_label = [0; LABEL_LEN];
    leaf_label[..3].copy_from_slice(&[0x80, 0x55, 0xaa]);
    let mut labels = RackLabels::new(LABEL_LEN, sessions as usize);
    (0..sessions).for_each(|at| labels.set(session(at), &leaf_label).expect("there is room"));
    labels
}

/// Nanoseconds a packet, the median of many queues, so that what else runs on the machine hardly counts; what
/// writes the packets does not count.
fn each_ns(labels: &RackLabels, active: u32, packets: u32, seed: u64) -> f64 {
    let mut random = Random::new(seed);
    let mut queue = vec![vec![0u8; PACKET_LEN]; QUEUE];
    let mut each = Vec::new();
    for _ in 0..packets.div_ceil(QUEUE as u32).max(1) {
        for packet in &mut queue {
            let mut header = Vec::with_capacity(2 * LABEL_LEN);
            Header {
                kind: LabelKind::Filter,
                session: session(random.below(active)),
                label: &[0; LABEL_LEN],
            }
            .emit(&mut header);
            packet[..header.len()].copy_from_slice(&header);
        }
        let start = Instant::now();
        for packet in &mut queue {
            assert!(labels.relabel(black_box(packet)).is_ok(), "every session has a label");
        }
        each.push(1e9 * start.elapsed().as_secs_f64() / QUEUE as f64);
    }
    each.sort_unstable_by(f64::total_cmp);
    each[each.len() / 2]
}

fn packets(options: &Options) -> u32 {
    if options.quick { 200_000 } else { 2_000_000 }
}

/// Sessions that the paper's agent has labels of. A quick run has no fewer: fewer labels are nearer to the
/// processor, and would stand beside the paper's number for another size.
const SESSIONS: u32 = 1_000_000;

/// Looks leaf labels of a million sessions up and puts them in, where some of the sessions are active.
#[must_use]
pub(super) fn figure_5c(options: &Options) -> Outcome {
    let labels = labels(SESSIONS);
    let mut rows = Vec::new();
    let mut points = Vec::new();
    for active in [1_000u32, 10_000, 100_000, SESSIONS] {
        let ns = each_ns(&labels, active, packets(options), options.seed);
        let paper = (active == 100_000).then_some(PAPER_NS);
        let name = format!("5c: {active} of {SESSIONS} sessions active: time of a packet");
        let row = Row::new(name, paper, ns, "ns").note("in memory, without receiving and sending");
        rows.push(if paper.is_some() { row.at_most(PAPER_NS) } else { row });
        points.push((f64::from(active), ns));
    }
    let figure = Figure::lines(
        "fig-5c",
        "Time of an agent for one packet",
        Axis::log("active sessions", ""),
        Axis::linear("time", "ns").range(0.0, 120.0),
        vec![Series::ours("agent", points), Series::paper("agent", vec![(100_000.0, PAPER_NS)])],
    );
    Outcome::from(rows).figure(figure).note(format!(
        "The agent has the labels of {SESSIONS} sessions. It takes {} bytes for them.",
        labels.memory_bytes()
    ))
}

/// Packets a second by cores; each core has a queue of its own, and all have the same labels.
#[must_use]
pub(super) fn figure_5b(options: &Options) -> Outcome {
    let labels = labels(SESSIONS);
    let active = 100_000;
    let mut rows = Vec::new();
    let mut points = Vec::new();
    let mut cores = 1;
    while cores <= options.threads.max(1) {
        let each = side_by_side::each(cores, cores, |core| {
            each_ns(&labels, active, packets(options), options.seed + core as u64)
        });
        let a_second = each.iter().map(|ns| 1e9 / ns).sum::<f64>();
        let plural = if cores == 1 { "core" } else { "cores" };
        rows.push(Row::new(
            format!("packets relabelled a second, {cores} {plural}"),
            None,
            a_second / 1e6,
            "M/s",
        ));
        if cores == 1 {
            let bytes = 40e9 / 8.0 / a_second;
            let row = Row::new("least packet at 40 Gbit/s, 1 core", Some(PAPER_LEAST_BYTES), bytes, "B");
            rows.push(
                row.at_most(PAPER_LEAST_BYTES)
                    .note("relabelling alone; the paper's agent receives and sends too"),
            );
        }
        points.push((cores as f64, a_second / 1e6));
        cores *= 2;
    }
    let most = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let figure = Figure::lines(
        "fig-5b",
        "Packets that an agent relabels a second",
        Axis::linear("cores", "").whole(),
        Axis::linear("packets", "M/s").range(0.0, 1.1 * most),
        vec![Series::ours("agent", points)],
    );
    Outcome::from(rows).figure(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every packet is given its label by the agent's own code: one without a label would be refused.
    #[test]
    fn the_agents_own_code_is_measured() {
        let rows = figure_5c(&Options { quick: true, seed: 1, threads: 1 }).rows;
        assert_eq!(rows.len(), 4);
        assert!(rows.iter().all(|row| row.ours > 0.0));
        let compared = rows.iter().find(|row| row.paper == Some(PAPER_NS) && row.test.is_some()).unwrap();
        assert!(
            compared.name.contains("of 1000000 sessions"),
            "{}: the paper's number is for a million",
            compared.name
        );
    }
}
