//! Figure 8(d): small requests of a leader to acceptors, of which it waits for a majority, by unicast and as
//! messages of a stream over Shufflecast. It is what costs in the paper's Paxos: one round of requests and
//! answers. There is no proposer's first phase, no learner and no disk here.

use crate::Row;
use crate::lab::{Seen, quantile};
use crate::report::{Axis, Figure, Outcome, Series};

/// Factors by which the paper's slowest tenth and hundredth of requests are answered sooner: from the least
/// to the most, over the numbers of acceptors.
const SOONER: [(&str, f64, (f64, f64)); 2] = [("90 %", 0.9, (2.21, 2.93)), ("99 %", 0.99, (1.39, 2.13))];
/// The numbers of acceptors where nothing was measured.
pub(crate) const ACCEPTORS: [u32; 3] = [3, 5, 7];

/// The latencies of both ways with so many acceptors, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicationSeen {
    /// Number of acceptors.
    pub acceptors: u32,
    /// Each request by unicast.
    pub unicast_us: Vec<f64>,
    /// Each request over the stream.
    pub stream_us: Vec<f64>,
}

fn name(acceptors: u32, part: &str) -> String {
    format!("{acceptors} acceptors: {part} latency, unicast against Shufflecast")
}

/// Figure 8(d).
#[must_use]
pub fn figure_8d(seen: &Seen<Vec<ReplicationSeen>>) -> Outcome {
    let words =
        |(least, most): (f64, f64)| format!("the paper: {least} to {most}, over all numbers of acceptors");
    let seen = match seen {
        Ok(seen) => seen,
        Err(why) => {
            let of = |acceptors| {
                SOONER.map(|(part, _, (_, most))| Row::missing(name(acceptors, part), Some(most), "x", why))
            };
            return ACCEPTORS.into_iter().flat_map(of).collect::<Vec<_>>().into();
        }
    };
    let mut rows = Vec::new();
    let mut lines = SOONER.map(|(part, ..)| (part, Vec::new()));
    for ReplicationSeen { acceptors, unicast_us, stream_us } in seen {
        for ((part, fraction, papers), (_, points)) in SOONER.into_iter().zip(&mut lines) {
            let [unicast, stream] =
                [unicast_us, stream_us].map(|us| quantile(us, fraction).unwrap_or(f64::NAN));
            let row = Row::new(name(*acceptors, part), Some(papers.1), unicast / stream, "x");
            rows.push(row.between(papers.0, papers.1).note(words(papers)));
            points.push((f64::from(*acceptors), unicast / stream));
        }
        for (way, us) in [("unicast", unicast_us), ("Shufflecast", stream_us)] {
            for (part, fraction) in [("median", 0.5), ("99 %", 0.99)] {
                let latency = quantile(us, fraction).unwrap_or(f64::NAN);
                rows.push(Row::new(format!("{acceptors} acceptors, {way}: {part}"), None, latency, "us"));
            }
        }
    }
    let most = lines.iter().flat_map(|(_, points)| points).map(|point| point.1).fold(1.0, f64::max);
    let series = lines.into_iter().map(|(part, points)| Series::ours(part, points)).collect();
    Outcome::from(rows).figure(Figure::lines(
        "fig-8d",
        "Unicast's latency in proportion to that of a stream over Shufflecast",
        Axis::linear("acceptors", "").whole(),
        Axis::linear("unicast against Shufflecast", "x").range(0.0, 1.1 * most),
        series,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_tenth_and_hundredth_are_compared() {
        let us = |scale: f64| (1..=100).map(|at| scale * f64::from(at)).collect::<Vec<_>>();
        let seen = vec![ReplicationSeen { acceptors: 3, unicast_us: us(5.0), stream_us: us(2.0) }];
        let rows = figure_8d(&Ok(seen)).rows;
        assert_eq!(rows[0].ours, 2.5);
        assert_eq!((rows[0].is_within(), rows[1].is_within()), (Some(true), Some(false)));
        assert_eq!(rows[2..].iter().map(|row| row.ours).collect::<Vec<_>>(), [250.0, 495.0, 100.0, 198.0]);
        let none = figure_8d(&Err("it takes root".into())).rows;
        assert_eq!(none.len(), 6);
        assert!(none.iter().all(|row| row.is_missing && row.paper.is_some()));
    }
}
