//! Orca, figures 6a and 6b: how long messages stop when the active agent of a rack is killed, and how many
//! are lost, in a lab.

use crate::Row;
use crate::lab::Seen;
use crate::report::{Axis, Figure, Outcome, Series};

/// The paper's T, in milliseconds, for which it prints numbers.
const PAPERS_T_MS: f64 = 1.0;
/// Figures that it prints: the time until messages come again, and the part of them that is lost.
const FAILOVER_MS: f64 = 1.04;
const LOST_PERCENT: f64 = 0.18;

/// Killed agents with one T.
#[derive(Clone, Debug, PartialEq)]
pub struct KillsSeen {
    /// Time without a message at each receiver of each kill.
    pub gaps_ms: Vec<f64>,
    /// Messages that were lost, of all of the run.
    pub lost: u64,
    /// All messages of the run.
    pub messages: u64,
}

/// Figures 6a and 6b: for each T, the time in milliseconds after which a silent agent is replaced, what was
/// seen.
#[must_use]
pub fn figure_6a(seen: &[(f64, Seen<KillsSeen>)]) -> Outcome {
    let mut rows = Vec::new();
    let (mut gaps, mut losses) = (Vec::new(), Vec::new());
    for (timeout_ms, of_timeout) in seen {
        let is_papers = *timeout_ms == PAPERS_T_MS;
        let [failover, lost] = ["time without messages, mean", "messages lost"]
            .map(|what| format!("T = {timeout_ms} ms: {what}"));
        let papers = [FAILOVER_MS, LOST_PERCENT].map(|number| Some(number).filter(|_| is_papers));
        let both = match of_timeout {
            Ok(KillsSeen { gaps_ms, lost: lost_messages, messages }) => {
                let mean = gaps_ms.iter().sum::<f64>() / gaps_ms.len() as f64;
                let percent = 100.0 * *lost_messages as f64 / (*messages).max(1) as f64;
                gaps.push((*timeout_ms, mean));
                losses.push((*timeout_ms, percent));
                [
                    Row::new(failover, papers[0], mean, "ms").note(format!("{} gaps", gaps_ms.len())),
                    Row::new(lost, papers[1], percent, "%").note("of all messages, those between kills too"),
                ]
            }
            Err(why) => {
                [Row::missing(failover, papers[0], "ms", why), Row::missing(lost, papers[1], "%", why)]
            }
        };
        let [failover, lost] = both;
        rows.extend(match is_papers {
            true => [failover.at_most(FAILOVER_MS), lost.at_most(LOST_PERCENT).place("section 5.3, Fig. 6b")],
            false => [failover, lost],
        });
    }
    let outcome = Outcome::from(rows);
    if gaps.is_empty() {
        return outcome;
    }
    let figure = |name, title, y, series| Figure::lines(name, title, Axis::log("T", "ms"), y, series);
    let paper = |value| Series::paper("orca", vec![(PAPERS_T_MS, value)]);
    let title = "Time without messages after an agent was killed, mean";
    let series = vec![Series::ours("orca", gaps), paper(FAILOVER_MS)];
    let outcome = outcome.figure(figure("fig-6a", title, Axis::log("time", "ms"), series));
    let series = vec![Series::ours("orca", losses), paper(LOST_PERCENT)];
    outcome.figure(figure("fig-6b", "Messages lost while agents are killed", Axis::log("lost", "%"), series))
}

/// The paper's T alone, without a lab.
#[must_use]
pub(crate) fn without_a_lab(why: &str) -> Outcome {
    figure_6a(&[(PAPERS_T_MS, Err(why.into()))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_papers_timeout_is_compared_and_can_fail() {
        let of = |timeout_ms, gap_ms, lost| {
            let gaps_ms = vec![gap_ms, gap_ms + 0.2];
            (timeout_ms, Ok(KillsSeen { gaps_ms, lost, messages: 10_000 }))
        };
        let rows = figure_6a(&[of(1.0, 0.9, 30), of(10.0, 10.5, 300)]).rows;
        assert_eq!(
            rows.iter().map(|row| row.paper).collect::<Vec<_>>(),
            [Some(1.04), Some(0.18), None, None]
        );
        let ours: Vec<f64> = rows.iter().map(|row| (row.ours * 1e6).round() / 1e6).collect();
        assert_eq!(ours, [1.0, 0.3, 10.6, 3.0]);
        assert_eq!((rows[0].is_within(), rows[1].is_within()), (Some(true), Some(false)));
        let none = without_a_lab("it takes root");
        assert!(none.rows.iter().all(|row| row.is_missing && row.paper.is_some()) && none.rows.len() == 2);
        assert!(none.figures.is_empty());
        // Where one T shows nothing, the others do.
        let rows = figure_6a(&[(1.0, Err("no message was lost".into())), of(10.0, 10.5, 300)]).rows;
        let missing: Vec<bool> = rows.iter().map(|row| row.is_missing).collect();
        assert_eq!(missing, [true, true, false, false]);
    }
}
