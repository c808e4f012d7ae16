//! The items that are measured in labs, which only the command line can start. Where a lab cannot be made,
//! their rows say why in a sentence.

use crate::bench::{self, control, replication, streams};
use polycast::exit::Failure;
use polycast_experiments::lab::{
    ControlSeen, KillsSeen, LeafSeen, ManagerSeen, ReplicationLab, ReplicationSeen, Seen, figure_5d,
    figure_6a, figure_8d, manager_response, rule_update, sockets, table_2,
};
use polycast_experiments::report::{Item, ItemError, Load, Options, Outcome};
use polycast_lab::leaf;
use polycast_lab::measure::Replicated;
use polycast_lab::spec::Spec;
use polycast_types::Duration;

/// The time that the paper's circuit switch takes, in milliseconds.
const CIRCUIT_MS: u32 = 14;
/// The lab of Table II.
const TABLE_2: &str = "blast:racks=3,hosts=2,circuit-ms=14";
/// The lab of figure 8(d): eight ToRs with a server each, and its numbers of acceptors.
const FIGURE_8D: &str = "shufflecast:2,2,hosts=1";
const ACCEPTORS: [u32; 3] = [3, 5, 7];
/// The lab of figure 6a, and its times T.
const FIGURE_6A: &str = "orca:4";
const TIMEOUTS_MS: [u64; 3] = [1, 10, 100];
/// Sizes of packets in figure 5d, and the size that has many sessions.
const SIZES: [u32; 5] = [leaf::FRAME_MIN, 256, 512, 1_024, 1_500];
const SIZE_OF_MANY: u32 = 1_024;

type Run = fn(&Options) -> Result<Outcome, ItemError>;

/// Functions that run these items here.
const RUNS: [(&str, &str, Run); 6] = [
    ("blast", "table-2", |options| Ok(table_2(&control_times(options)))),
    ("orca", "fig-5d", |options| Ok(figure_5d(&leaf_times(options)))),
    ("orca", "fig-6a", |options| Ok(figure_6a(&kills(options)))),
    ("republic", "response", |options| Ok(manager_response(&responses(options)))),
    ("shufflecast", "rules", |options| Ok(rule_update(&rule_times(options)))),
    ("shufflecast", "fig-8d", |options| Ok(figure_8d(&latencies(options)))),
];

/// Has the items that need a lab measured in one.
pub(super) fn give_labs(items: &mut [Item]) {
    for item in items.iter_mut().filter(|item| item.load == Load::Lab) {
        let run = RUNS.into_iter().find(|(paper, name, _)| (*paper, *name) == (item.paper, item.name));
        item.run = run.expect("every item that needs a lab is run here").2;
    }
}

fn spec(text: &str) -> Spec {
    text.parse().expect("the lab can be asked for")
}

fn why(failure: Failure) -> String {
    failure.message
}

fn control_times(options: &Options) -> Seen<ControlSeen> {
    let requests = if options.quick { 10 } else { 50 };
    let steps = control::table_2(&spec(TABLE_2), requests).map_err(why)?;
    Ok(ControlSeen { circuit_ms: CIRCUIT_MS, steps })
}

fn leaf_times(options: &Options) -> Seen<Vec<LeafSeen>> {
    let (sessions, packets): (&[u32], _) = if options.quick {
        (&[1_000, 100_000], 2_000)
    } else {
        (&[1_000, 10_000, 100_000, 1_000_000], 20_000)
    };
    let times = leaf::measure(&SIZES, sessions, SIZE_OF_MANY, packets).map_err(|error| error.to_string())?;
    let seen = |of: leaf::LeafTimes| LeafSeen {
        bytes: of.bytes,
        sessions: of.sessions,
        latency_us: of.latency_ns.into_iter().map(|ns| ns as f64 / 1e3).collect(),
    };
    Ok(times.into_iter().map(seen).collect())
}

fn kills(options: &Options) -> Vec<(f64, Seen<KillsSeen>)> {
    let kills = if options.quick { 5 } else { 50 };
    let of = |timeout_ms: u64| -> Seen<KillsSeen> {
        let (gaps, flow) =
            streams::killed(&spec(FIGURE_6A), Duration::from_millis(timeout_ms), kills).map_err(why)?;
        if gaps.is_empty() {
            return Err("no message was lost: other agents took over in time".to_string());
        }
        Ok(KillsSeen {
            gaps_ms: gaps.iter().map(|gap| gap.gap_ns as f64 / 1e6).collect(),
            lost: flow.lost,
            messages: flow.received + flow.lost,
        })
    };
    TIMEOUTS_MS.into_iter().map(|timeout_ms| (timeout_ms as f64, of(timeout_ms))).collect()
}

fn responses(options: &Options) -> Seen<ManagerSeen> {
    let seconds = if options.quick { 1.0 } else { 10.0 };
    let rate_per_s = 100.0;
    let answers = |rate| {
        bench::answers(sockets::AGENTS as usize, sockets::RECEIVERS as usize, seconds, rate).map_err(why)
    };
    let (response_ms, _) = answers(Some(rate_per_s))?;
    let (_, requests_per_s) = answers(None)?;
    Ok(ManagerSeen { rate_per_s, response_ms, requests_per_s })
}

fn rule_times(options: &Options) -> Seen<Vec<f64>> {
    let requests = if options.quick { 10 } else { 50 };
    control::rule_times(&spec(FIGURE_8D), requests).map_err(why)
}

fn latencies(options: &Options) -> Vec<ReplicationLab> {
    let requests = if options.quick { 300 } else { 3_000 };
    let of = |spec: &str, bytes| -> Seen<Vec<ReplicationSeen>> {
        let ways = replication::replicate(&self::spec(spec), &ACCEPTORS, requests, bytes).map_err(why)?;
        let micros = |way: &Replicated| way.latency_ns.iter().map(|ns| *ns as f64 / 1e3).collect();
        let seen = ways.chunks_exact(4).map(|ways| ReplicationSeen {
            acceptors: ways[0].acceptors,
            connections_us: micros(&ways[0]),
            stream_us: micros(&ways[1]),
            unicast_us: micros(&ways[2]),
            group_us: micros(&ways[3]),
        });
        Ok(seen.collect())
    };
    // With the paper's one byte the wait is that of the switches' processors; here the source's link is what
    // copies wait for.
    let wide = ReplicationLab { differs: String::new(), seen: of(FIGURE_8D, 1) };
    let differs = "values of 1,000 bytes over links of 10 Mbit/s".to_string();
    let seen = of(&format!("{FIGURE_8D},rate=10mbit"), 1_000);
    vec![wide, ReplicationLab { differs, seen }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_experiments::catalogue;

    #[test]
    fn every_item_that_needs_a_lab_gets_one_and_the_labs_can_be_asked_for() {
        let mut items = catalogue::select(None, None).unwrap();
        assert_eq!(items.iter().filter(|item| item.load == Load::Lab).count(), RUNS.len());
        give_labs(&mut items);
        assert!(spec(TABLE_2).to_string().contains(&format!("circuit-ms={CIRCUIT_MS}")));
        assert!(spec(FIGURE_8D).network.hosts() > ACCEPTORS[2]);
    }
}
