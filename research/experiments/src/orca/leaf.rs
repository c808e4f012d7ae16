//! Orca, figure 5d: what a leaf and the agent of its rack add to a packet, by the kernel's programs that
//! switches and hosts run.

use crate::Row;
use crate::lab::{Seen, quantile};
use crate::report::{Axis, Figure, Outcome, Series};

/// The smallest packets: 64 bytes in the paper. One with a label of 19 bytes over UDP has 69.
const SMALLEST: u32 = 72;
/// The paper's median of packets of 64 bytes.
const MEDIAN_US: f64 = 11.3;
/// Size of the packets whose jitter the paper has, mean and most.
const OF_JITTER: u32 = 1_024;
const JITTER_US: (f64, f64) = (1.135, 3.3);
/// Sessions whose labels the agent has where sizes are compared.
pub(crate) const SESSIONS: u32 = 1_000;

/// Packets of one size that came from above to a leaf, went to its agent and back, and out to a receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct LeafSeen {
    /// Bytes of a packet.
    pub bytes: u32,
    /// Sessions whose labels the agent has; each packet is of another one.
    pub sessions: u32,
    /// From before the leaf was handed a packet until a receiver had it, in the order in which they were
    /// sent, in microseconds.
    pub latency_us: Vec<f64>,
}

impl LeafSeen {
    /// By how much each packet's latency differs from that of the one before.
    fn jitter_us(&self) -> Vec<f64> {
        self.latency_us.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect()
    }

    /// Packets a second where each is sent when the one before has come.
    fn packets_per_s(&self) -> f64 {
        self.latency_us.len() as f64 / (self.latency_us.iter().sum::<f64>() / 1e6)
    }
}

/// Figure 5d.
#[must_use]
pub fn figure_5d(seen: &Seen<Vec<LeafSeen>>) -> Outcome {
    let smallest = format!("packets of {SMALLEST} bytes: latency, median");
    let jitter = |what: &str| format!("packets of {OF_JITTER} bytes: jitter, {what}");
    let seen = match seen {
        Ok(seen) => seen,
        Err(why) => {
            let rows = [(smallest, MEDIAN_US), (jitter("mean"), JITTER_US.0), (jitter("most"), JITTER_US.1)];
            return rows.map(|(name, paper)| Row::missing(name, Some(paper), "us", why)).to_vec().into();
        }
    };
    let note = "system calls that hand the packet over and take it back included";
    let mut rows = Vec::new();
    let (mut medians, mut tails) = (Vec::new(), Vec::new());
    for of_size in seen.iter().filter(|of_size| of_size.sessions == SESSIONS) {
        let (bytes, at) = (of_size.bytes, |part| quantile(&of_size.latency_us, part).unwrap_or(f64::NAN));
        let paper = (bytes == SMALLEST).then_some(MEDIAN_US);
        let row = |what: &str, paper, us| {
            Row::new(format!("packets of {bytes} bytes: {what}"), paper, us, "us").note(note)
        };
        rows.push(row("latency, median", paper, at(0.5)));
        rows.push(row("latency, 99 %", None, at(0.99)));
        medians.push((f64::from(bytes), at(0.5)));
        tails.push((f64::from(bytes), at(0.99)));
        if bytes == OF_JITTER {
            let between = of_size.jitter_us();
            let mean = between.iter().sum::<f64>() / between.len().max(1) as f64;
            rows.push(row("jitter, mean", Some(JITTER_US.0), mean));
            rows.push(row(
                "jitter, most",
                Some(JITTER_US.1),
                between.iter().fold(0.0, |most, us| most.max(*us)),
            ));
        }
    }
    for of_many in seen.iter().filter(|of_size| of_size.bytes == OF_JITTER) {
        let name = format!(
            "packets of {OF_JITTER} bytes, labels of {} sessions: packets a second, one after the other",
            of_many.sessions
        );
        rows.push(Row::new(name, None, of_many.packets_per_s(), "1/s").note(note));
    }
    let most = tails.iter().map(|point| point.1).fold(0.0, f64::max);
    Outcome::from(rows).figure(Figure::lines(
        "fig-5d",
        "What a leaf and its agent take for a packet, in the kernel",
        Axis::linear("packet", "B"),
        Axis::linear("latency", "us").range(0.0, 1.1 * most),
        vec![
            Series::ours("median", medians),
            Series::ours("99 %", tails),
            Series::paper("median", vec![(64.0, MEDIAN_US)]),
        ],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_compared_with_few_sessions_and_rates_by_sessions() {
        let of = |bytes, sessions, latency_us| LeafSeen { bytes, sessions, latency_us };
        let seen = vec![
            of(SMALLEST, SESSIONS, vec![10.0, 12.0, 30.0]),
            of(OF_JITTER, SESSIONS, vec![10.0, 14.0, 12.0]),
            of(OF_JITTER, 100_000, vec![20.0, 20.0]),
        ];
        let outcome = figure_5d(&Ok(seen));
        let ours: Vec<f64> = outcome.rows.iter().map(|row| row.ours).collect();
        assert_eq!(ours[..6], [12.0, 30.0, 12.0, 14.0, 3.0, 4.0]);
        assert!((ours[6] - 3.0 / 36e-6).abs() < 1.0 && (ours[7] - 50_000.0).abs() < 1.0, "{ours:?}");
        let papers: Vec<f64> = outcome.rows.iter().filter_map(|row| row.paper).collect();
        assert_eq!(papers, [11.3, 1.135, 3.3]);
        assert_eq!(outcome.figures.len(), 1);
    }

    #[test]
    fn without_a_lab_the_papers_numbers_stand_alone() {
        let rows = figure_5d(&Err("it takes root".into())).rows;
        assert_eq!(
            rows.iter().map(|row| (row.is_missing, row.paper)).collect::<Vec<_>>(),
            [(true, Some(11.3)), (true, Some(1.135)), (true, Some(3.3))]
        );
    }
}
