//! Table II: the parts of the time from a request to its path, measured in a lab with an emulated circuit
//! switch.

use crate::Row;
use crate::lab::{Seen, quantile};
use crate::report::{Axis, BarSeries, Figure, Outcome};

/// The steps of Table II and how long the paper's took, in milliseconds; the last is the whole.
const STEPS: [(&str, f64); 5] = [
    ("messages", 1.747),
    ("scheduling", 8.553),
    ("rules of the last rack", 8.711),
    ("circuits", 14.172),
    ("total, from the request to the path", 33.183),
];
/// Limit that the paper expects for the whole where rules and circuits are set at the same time, as ours are.
const SIDE_BY_SIDE_MS: f64 = 25.0;

/// Measurements of a lab.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlSeen {
    /// Time that the circuit switch itself takes for a circuit, in milliseconds.
    pub circuit_ms: u32,
    /// Time of each step, in milliseconds, one value per request: messages, scheduling, rules, circuits, and
    /// the whole.
    pub steps: [Vec<f64>; 5],
}

/// Table II.
#[must_use]
pub fn table_2(seen: &Seen<ControlSeen>) -> Outcome {
    let mut rows = Vec::new();
    let mut medians = Vec::new();
    let side_by_side = "total, rules and circuits at the same time";
    let missing = |name: &str, paper, why: &str| Row::missing(name, Some(paper), "ms", why);
    for (at, (name, paper)) in STEPS.into_iter().enumerate() {
        let of_step = seen.as_ref().map(|seen| quantile(&seen.steps[at], 0.5));
        rows.push(match of_step {
            Ok(Some(ms)) => Row::new(name, Some(paper), ms, "ms").note(made(seen, at)),
            Ok(None) => missing(name, paper, "no request of this lab had such a step"),
            Err(why) => missing(name, paper, why),
        });
        medians.push(of_step.ok().flatten());
    }
    let whole = medians[4];
    rows.push(match (whole, seen) {
        (Some(ms), _) => Row::new(side_by_side, Some(SIDE_BY_SIDE_MS), ms, "ms")
            .at_most(SIDE_BY_SIDE_MS)
            .place("section V-B")
            .note("the paper expects less than 25 ms of it"),
        (None, Err(why)) => missing(side_by_side, SIDE_BY_SIDE_MS, why).place("section V-B"),
        (None, Ok(_)) => missing(side_by_side, SIDE_BY_SIDE_MS, "no path was made").place("section V-B"),
    });
    let outcome = Outcome::from(rows);
    if seen.is_err() {
        return outcome;
    }
    let groups = ["messages", "scheduling", "rules", "circuits", "total"].map(String::from).to_vec();
    let papers = STEPS.map(|(_, ms)| Some(ms)).to_vec();
    outcome.figure(Figure::bars(
        "table-2",
        "The parts of the time from a request to its path",
        "",
        Axis::linear("time", "ms"),
        groups,
        vec![BarSeries::ours("ours", medians), BarSeries::paper("ours", papers)],
    ))
}

/// Describes how a step was measured.
fn made(seen: &Seen<ControlSeen>, at: usize) -> String {
    let Ok(seen) = seen else { return String::new() };
    let requests = format!("median of {} requests", seen.steps[at].len());
    match at {
        0 | 1 => format!("{requests}; programs of this machine, without a network between"),
        2 => format!("{requests}; Open vSwitch in user space"),
        3 => format!("{requests}; the emulated switch takes {} ms for a circuit", seen.circuit_ms),
        _ => format!("{requests}; rules and circuits at the same time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_stand_beside_the_papers_parts() {
        let steps = [vec![0.5, 0.1, 0.4], vec![0.1], vec![2.0], vec![15.0], vec![26.0, 24.0, 30.0]];
        let outcome = table_2(&Ok(ControlSeen { circuit_ms: 14, steps }));
        let ours: Vec<f64> = outcome.rows.iter().map(|row| row.ours).collect();
        assert_eq!(ours, [0.4, 0.1, 2.0, 15.0, 26.0, 26.0]);
        assert_eq!(outcome.rows[5].is_within(), Some(false), "26 is not less than 25");
        let parts: f64 = outcome.rows[..4].iter().filter_map(|row| row.paper).sum();
        assert!((parts - STEPS[4].1).abs() < 1e-9, "the paper's parts are its total");
        assert_eq!(outcome.figures.len(), 1);
    }

    #[test]
    fn what_was_not_measured_is_not_there() {
        let mut seen = ControlSeen { circuit_ms: 14, steps: Default::default() };
        seen.steps[4] = vec![9.0];
        let some = table_2(&Ok(seen)).rows;
        assert!(some[0].is_missing && !some[4].is_missing && !some[5].is_missing);
        let none = table_2(&Err("it takes root".into()));
        assert!(none.rows.iter().all(|row| row.is_missing && row.note == "it takes root"));
        assert_eq!(none.rows.iter().filter_map(|row| row.paper).next_back(), Some(25.0));
        assert!(none.figures.is_empty());
    }
}
