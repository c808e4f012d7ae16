//! Figure 8(d): Paxos with small values, whose proposer reaches the acceptors by unicast or over a leased
//! group of Shufflecast, by plain UDP in both cases. Beside it small requests of a leader to acceptors as
//! messages of a stream, which go through agents, against connections of its own.

use crate::Row;
use crate::lab::{Seen, quantile};
use crate::report::{Axis, Figure, Outcome, Series};

/// Factors by which the paper's slowest tenth and hundredth of values are accepted sooner: from the least to
/// the most, over the numbers of acceptors.
const SOONER: [(&str, f64, (f64, f64)); 2] = [("90 %", 0.9, (2.21, 2.93)), ("99 %", 0.99, (1.39, 2.13))];
/// The numbers of acceptors where nothing was measured.
pub(crate) const ACCEPTORS: [u32; 3] = [3, 5, 7];

/// Latencies of all ways with so many acceptors, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicationSeen {
    /// Number of acceptors.
    pub acceptors: u32,
    /// Each value of Paxos by unicast.
    pub unicast_us: Vec<f64>,
    /// Each value of Paxos over the group.
    pub group_us: Vec<f64>,
    /// Each request over connections.
    pub connections_us: Vec<f64>,
    /// Each request over the stream.
    pub stream_us: Vec<f64>,
}

/// Latencies in one lab.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicationLab {
    /// Way in which it differs from the paper's, in words; empty where values have the paper's one byte.
    /// Beside others the paper has no number.
    pub differs: String,
    /// The numbers of acceptors, or why there are none.
    pub seen: Seen<Vec<ReplicationSeen>>,
}

/// A lab's part of a row's name.
fn place(differs: &str) -> String {
    if differs.is_empty() { String::new() } else { format!(", {differs}") }
}

fn name(acceptors: u32, part: &str, differs: &str) -> String {
    format!("{acceptors} acceptors: {part} latency, unicast against Shufflecast{}", place(differs))
}

/// Figure 8(d), in these labs.
#[must_use]
pub fn figure_8d(labs: &[ReplicationLab]) -> Outcome {
    let (mut rows, mut series, mut most) = (Vec::new(), Vec::new(), 1.0_f64);
    for ReplicationLab { differs, seen } in labs {
        let mut lines = SOONER.map(|(part, ..)| (format!("{part}{}", place(differs)), Vec::new()));
        match seen {
            Ok(seen) => seen.iter().for_each(|seen| rows.extend(compared(seen, differs, &mut lines))),
            Err(why) => rows.extend(ACCEPTORS.into_iter().flat_map(|acceptors| {
                let of = |(part, _, (_, most))| {
                    let paper = differs.is_empty().then_some(most);
                    Row::missing(name(acceptors, part, differs), paper, "x", why)
                };
                SOONER.map(of)
            })),
        }
        for (part, points) in lines.into_iter().filter(|(_, points)| !points.is_empty()) {
            most = points.iter().map(|(_, ratio)| *ratio).fold(most, f64::max);
            series.push(Series::ours(&part, points));
        }
    }
    if series.is_empty() {
        return rows.into();
    }
    Outcome::from(rows).figure(Figure::lines(
        "fig-8d",
        "Latency of Paxos by unicast in proportion to that over a group of Shufflecast",
        Axis::linear("acceptors", "").whole(),
        Axis::linear("unicast against Shufflecast", "x").range(0.0, 1.1 * most),
        series,
    ))
}

/// The rows of one number of acceptors; the ratios go to the drawing's lines, too.
fn compared(seen: &ReplicationSeen, differs: &str, lines: &mut [(String, Vec<(f64, f64)>)]) -> Vec<Row> {
    let ReplicationSeen { acceptors, unicast_us, group_us, connections_us, stream_us } = seen;
    let of = |us: &[f64], fraction| quantile(us, fraction).unwrap_or(f64::NAN);
    let mut rows = Vec::new();
    for ((part, fraction, papers), (_, points)) in SOONER.into_iter().zip(lines) {
        let ratio = of(unicast_us, fraction) / of(group_us, fraction);
        let note = format!("the paper: {} to {}, over all numbers of acceptors", papers.0, papers.1);
        let paper = differs.is_empty().then_some(papers.1);
        let row = Row::new(name(*acceptors, part, differs), paper, ratio, "x");
        rows.push(if paper.is_some() { row.between(papers.0, papers.1).note(note) } else { row });
        points.push((f64::from(*acceptors), ratio));
    }
    let ways = [
        ("Paxos by unicast", unicast_us),
        ("Paxos over a group", group_us),
        ("requests over connections", connections_us),
        ("requests as messages of a stream", stream_us),
    ];
    // What is not Paxos stands beside the paper's values alone.
    let shown = if differs.is_empty() { &ways[..] } else { &ways[..2] };
    for (way, us) in shown {
        for (part, fraction) in [("median", 0.5), ("99 %", 0.99)] {
            let name = format!("{acceptors} acceptors, {way}{}: {part}", place(differs));
            rows.push(Row::new(name, None, of(us, fraction), "us"));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_tenth_and_hundredth_are_compared() {
        let us = |scale: f64| (1..=100).map(|at| scale * f64::from(at)).collect::<Vec<_>>();
        let seen = ReplicationSeen {
            acceptors: 3,
            unicast_us: us(5.0),
            group_us: us(2.0),
            connections_us: us(4.0),
            stream_us: us(8.0),
        };
        let lab = |differs: &str, seen| ReplicationLab { differs: differs.into(), seen };
        let rows = figure_8d(&[lab("", Ok(vec![seen.clone()]))]).rows;
        assert_eq!(rows[0].ours, 2.5);
        assert_eq!((rows[0].is_within(), rows[1].is_within()), (Some(true), Some(false)));
        let rest = [250.0, 495.0, 100.0, 198.0, 200.0, 396.0, 400.0, 792.0];
        assert_eq!(rows[2..].iter().map(|row| row.ours).collect::<Vec<_>>(), rest);
        let of_others = figure_8d(&[lab("values of 9 bytes", Ok(vec![seen]))]).rows;
        assert!(of_others.iter().all(|row| row.paper.is_none() && row.is_within().is_none()));
        assert_eq!(of_others.len(), 6, "two ratios, and two ways");
        assert!(of_others[0].name.ends_with(", values of 9 bytes") && of_others[0].ours == 2.5);
        let none = figure_8d(&[lab("", Err("it takes root".into()))]).rows;
        assert_eq!(none.len(), 6);
        assert!(none.iter().all(|row| row.is_missing && row.paper.is_some()));
    }
}
