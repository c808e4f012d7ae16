//! Orca, figure 7 and appendix A.5: Orca beside Elmo.
//!
//! Orca runs on fat-tree(48, 3), Elmo on the network of its own program (12 pods of 48 leafs and 4 spines),
//! with the same tenants and groups. Elmo encodes a tenth of the groups, which takes most of the time; its
//! entries are shown in proportion. Tables are unlimited, as in the paper's figure.

use super::data_set::{SIZE_STEP, SizeBin, plan_data_set};
use super::elmo::{ELMO_SPINES, ElmoResult, ElmoRun, elmo_run, elmo_updates};
use super::updates::events_of;
use super::{DATA_SETS, compared, papers_network};
use crate::random::Random;
use crate::report::{Axis, Figure, Mark, Options, Outcome, Series};
use crate::tenants::{self, Placement, Sizes};
use crate::{Row, side_by_side};
use polycast_planning::labels::LabelOptions;

/// Name, rules in a header, redundancy limit; the paper's 99 % and most entries, mean and longest label.
type ElmoSetting = (&'static str, u32, u32, Option<(f64, f64)>, Option<f64>, Option<f64>);

pub(super) const ELMO: [ElmoSetting; 4] = [
    ("Elmo-1", 10, 0, Some((47_700.0, 53_500.0)), Some(100.0), None),
    ("Elmo-2", 10, 12, None, None, None),
    ("Elmo-3", 30, 0, None, None, None),
    ("Elmo-4", 30, 12, Some((24_000.0, 30_000.0)), Some(211.0), Some(368.0)),
];

/// Elmo's four settings on a data set, a thread each.
fn elmo_settings(
    (placement, sizes): (Placement, Sizes),
    sessions: u32,
    options: &Options,
) -> Vec<ElmoResult> {
    side_by_side::each(ELMO.len(), options.threads, |at| {
        let (_, rules_max, redundancy_max, ..) = ELMO[at];
        let table_size = Some(u32::MAX);
        elmo_run(&ElmoRun { placement, sizes, rules_max, redundancy_max, table_size }, sessions, options.seed)
    })
}

const UNI_S: (Placement, Sizes) = (Placement::ScatteredAsRun, Sizes::Uniform);

/// Every switch's entries, those of leafs and cores included.
fn at_all_switches(spines: &[u32], others: u32, scale: f64) -> Vec<f64> {
    let zeros = std::iter::repeat_n(0.0, others as usize);
    spines.iter().map(|&entries| scale * f64::from(entries)).chain(zeros).collect()
}

fn quantile(samples: &[f64], fraction: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = (fraction * sorted.len() as f64).ceil() as usize;
    sorted.get(at.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

/// Figures 7a to 7d.
#[must_use]
pub(super) fn figure_7(sessions: u32, options: &Options) -> Outcome {
    let elmo_sessions = sessions / 10;
    let elmo = elmo_settings(UNI_S, elmo_sessions, options);
    let mut rows = Vec::new();
    let (mut state, by_size) = orca_state(sessions, options, &mut rows);
    let scale = 1e6 / f64::from(elmo_sessions);
    for ((name, _, _, paper, ..), result) in ELMO.iter().zip(&elmo) {
        let spines = result.pod_entries.iter().flat_map(|&entries| [entries; ELMO_SPINES as usize]);
        let switches: Vec<u32> = result.leaf_entries.iter().copied().chain(spines).collect();
        let samples = at_all_switches(&switches, ELMO_SPINES, scale);
        let note = "on the network of Elmo's own program, 12 pods; the paper does not say on which ports it ran Elmo";
        rows.extend(most_entries(&format!("{name}, Uni-S"), *paper, &samples).map(|row| row.note(note)));
        state.push(((*name).into(), samples));
    }
    sizes(&by_size, &elmo, &mut rows);
    labels(&elmo, elmo_sessions, options, &mut rows);
    redundant(&elmo, &mut rows);
    updates(sessions, options, &mut rows);
    let mean = |bins: &[SizeBin]| -> Vec<(f64, f64)> {
        let filled = bins.iter().enumerate().filter(|(_, bin)| bin.sessions > 0);
        filled
            .map(|(at, bin)| ((at * SIZE_STEP) as f64 + 125.0, bin.switches as f64 / bin.sessions as f64))
            .collect()
    };
    let mut series = vec![Series::ours("Orca, ours", mean(&by_size))];
    series.extend(
        ELMO.iter().zip(&elmo).map(|(setting, result)| Series::ours(setting.0, mean(&result.by_size))),
    );
    let mut rows = compared(rows, options);
    rows.push(Row::new("7c: Orca, label", Some(19.0), f64::from(orca_label_bytes()), "B").within(0.0));
    let mut cdf = Figure::cdf(
        "fig-7a",
        &cdf_title(sessions, elmo_sessions),
        Axis::log("entries of a switch", ""),
        "part of the switches",
        state,
    );
    if let (crate::report::Plot::Lines(lines), false) = (&mut cdf.plot, options.quick) {
        let points = vec![(253.0, 0.99), (437.0, 1.0)];
        lines.push(Series::paper("Orca, plain filter, Uni-S as run", points).mark(Mark::Points));
    }
    Outcome { rows, ..Outcome::default() }
        .figure(cdf)
        .figure(Figure::lines(
            "fig-7b",
            "Switches with state for a session, Uni-S, mean",
            Axis::linear("receivers", ""),
            Axis::linear("switches", ""),
            series,
        ))
        .note(
            "Placement is that of Elmo's published program, which the paper says it used; the items switch-state and \
             readings have the other readings.",
        )
        .note("The logarithmic axis has no place for switches without entries; the curves begin at their fraction.")
}

/// The entries of the switch that has more than 99 % of all, and of the one that has most.
fn most_entries(name: &str, paper: Option<(f64, f64)>, samples: &[f64]) -> [Row; 2] {
    let row = |what: &str, fraction, paper| {
        Row::new(
            format!("7a: {name}, entries of a switch, {what}"),
            paper,
            quantile(samples, fraction),
            "entries",
        )
    };
    [row("99 %", 0.99, paper.map(|p| p.0)), row("most", 1.0, paper.map(|p| p.1))]
}

/// Returns a title with the number of sessions drawn, and the note that entries are in proportion to a
/// million.
fn cdf_title(sessions: u32, elmo_sessions: u32) -> String {
    let drawn = format!("State in switches: all switches, {} sessions", grouped(sessions));
    format!("{drawn} ({} for Elmo), in proportion to a million", grouped(elmo_sessions))
}

/// A number with commas between thousands.
fn grouped(number: u32) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> =
        digits.as_bytes().rchunks(3).map(|part| str::from_utf8(part).unwrap_or_default()).collect();
    parts.into_iter().rev().collect::<Vec<_>>().join(",")
}

/// Entries at all switches of fat-tree(48, 3) for the four data sets, and Uni-S by the size of sessions.
fn orca_state(
    sessions: u32,
    options: &Options,
    rows: &mut Vec<Row>,
) -> (Vec<(String, Vec<f64>)>, Vec<SizeBin>) {
    let clos = papers_network();
    let plain = ("plain filter", LabelOptions::plain(69), DATA_SETS[0]);
    let ours = DATA_SETS.iter().take(4).map(|&set| ("ours", LabelOptions::new(69), set));
    let runs: Vec<_> = [plain].into_iter().chain(ours).collect();
    let sets = side_by_side::each(runs.len(), options.threads, |at| {
        let (_, labels, (_, placement, sizes, _)) = runs[at];
        let tenants = tenants::tenants(&clos, placement, sessions, &mut Random::new(options.seed));
        plan_data_set(&clos, &tenants, sizes, labels, options.seed, u64::MAX)
    });
    let (mut state, mut by_size) = (Vec::new(), Vec::new());
    for ((how, _, (name, _, _, paper)), set) in runs.iter().zip(sets) {
        let samples = at_all_switches(&set.entries, clos.leafs() + clos.cores(), 1e6 / f64::from(sessions));
        let note = match *how {
            "ours" => "links of a spine in a row, and the best of several paths: beyond the paper",
            _ => "a Bloom filter with one hash, as the paper describes it; readings has others",
        };
        rows.extend(most_entries(&format!("{how}, {name}"), *paper, &samples).map(|row| row.note(note)));
        if by_size.is_empty() && *how == "ours" {
            by_size = set.by_size;
        }
        state.push((format!("Orca, {how}, {name}"), samples));
    }
    (state, by_size)
}

/// Figure 7b.
fn sizes(orca: &[SizeBin], elmo: &[ElmoResult], rows: &mut Vec<Row>) {
    let bin = 2500 / SIZE_STEP;
    let most = |bins: &[SizeBin]| bins.get(bin).map_or(0.0, |bin| f64::from(bin.most));
    let name = |who: &str| format!("7b: {who}, Uni-S, most switches with state, 2500 to 2749 receivers");
    rows.push(Row::new(name("ours"), Some(2.0), most(orca), "switches").at_most(2.0));
    for ((who, ..), result) in ELMO.iter().zip(elmo) {
        let paper = (*who == "Elmo-1").then_some(110.0);
        rows.push(Row::new(name(who), paper, most(&result.by_size), "switches"));
    }
}

/// Figure 7c.
fn labels(elmo: &[ElmoResult], sessions: u32, options: &Options, rows: &mut Vec<Row>) {
    let note = "Elmo's own network, 576 leafs of 48 ports";
    for ((who, _, _, _, mean, longest), result) in ELMO.iter().zip(elmo) {
        let ours = result.header_mean();
        rows.push(Row::new(format!("7c: {who}, Uni-S, label, mean"), *mean, ours, "B").note(note));
        let ours = f64::from(result.header_most);
        rows.push(Row::new(format!("7c: {who}, Uni-S, label, longest"), *longest, ours, "B").note(note));
    }
    // Elmo-4 on the other data sets.
    let (_, rules_max, redundancy_max, ..) = ELMO[3];
    let others = [
        (Placement::ClusteredAsRun, Sizes::Uniform),
        (Placement::ScatteredAsRun, Sizes::Wve),
        (Placement::ClusteredAsRun, Sizes::Wve),
    ];
    let means = side_by_side::each(others.len(), options.threads, |at| {
        let (placement, sizes) = others[at];
        let run = ElmoRun { placement, sizes, rules_max, redundancy_max, table_size: Some(u32::MAX) };
        elmo_run(&run, sessions, options.seed).header_mean()
    });
    let uni_s = elmo[3].header_mean();
    for (name, mean) in ["Uni-C", "WVE-S", "WVE-C"].into_iter().zip(&means) {
        rows.push(Row::new(format!("7c: Elmo-4, {name}, label, mean"), None, *mean, "B"));
    }
    let grows = |name: &str, paper, from: f64| {
        let name = format!("7c: Elmo-4, mean label from {name}");
        Row::new(name, Some(paper), 100.0 * (uni_s / from - 1.0), "% more").note(note)
    };
    rows.push(grows("clustered to scattered, Uni", 148.0, means[0]));
    rows.push(grows("WVE to Uni, scattered", 42.0, means[1]));
}

/// Section 6.2: what Elmo sends to hosts that are not in the group.
fn redundant(elmo: &[ElmoResult], rows: &mut Vec<Row>) {
    for (at, quarter, most) in [(1, Some(67.0), 172.0), (3, None, 113.0)] {
        let samples: Vec<f64> = elmo[at].redundant.iter().map(|&share| 100.0 * f64::from(share)).collect();
        let row = |what: &str, paper, fraction| {
            let name = format!("section 6.2: {}, Uni-S, redundant hosts a session, {what}", ELMO[at].0);
            Row::new(name, paper, quantile(&samples, fraction), "%")
        };
        rows.push(row("a quarter has more", quarter, 0.75));
        rows.push(row("most", Some(most), 1.0));
    }
}

fn orca_label_bytes() -> u32 {
    let planner = polycast_planning::labels::LabelPlanner::new(papers_network(), 69);
    planner.expect("labels for this network").format().bytes()
}

/// Figure 7d: messages of Orca's controller.
fn updates(sessions: u32, options: &Options, rows: &mut Vec<Row>) {
    let events = if options.quick { 20_000 } else { 200_000 };
    for (name, placement, sizes, _) in DATA_SETS.iter().take(4).copied() {
        let (messages, _) = events_of((placement, sizes), sessions / 10, events, options.seed);
        let paper = name.starts_with("WVE-S").then_some(1889.0);
        let name = format!("7d: ours, {name}, messages a second at 1,000 joins and leaves a second");
        rows.push(Row::new(name, paper, messages, "messages"));
    }
    let groups = (sessions / 100).max(1_000);
    let papers = [19_900.0, 10_000.0, 9_500.0, 615.0];
    let each = side_by_side::each(ELMO.len(), options.threads, |at| {
        elmo_updates((ELMO[at].1, ELMO[at].2), groups, events / 10, options.seed)
    });
    for ((setting, messages), paper) in ELMO.iter().zip(each).zip(papers) {
        let name = format!("7d: {}, WVE-S, messages a second at 1,000 joins and leaves a second", setting.0);
        let note = "every event encodes its group anew; a message for each switch that gains, loses or changes an entry";
        rows.push(Row::new(name, Some(paper), 1_000.0 * messages, "messages").note(note));
    }
}

/// Appendix A.5.
#[must_use]
pub(super) fn running_times(sessions: u32, options: &Options) -> Vec<Row> {
    let clos = papers_network();
    let random = &mut Random::new(options.seed);
    let tenants = tenants::tenants(&clos, Placement::ScatteredAsRun, sessions, random);
    let mut rows = Vec::new();
    for (how, labels) in [("plain filter", LabelOptions::plain(69)), ("ours", LabelOptions::new(69))] {
        let set = plan_data_set(&clos, &tenants, Sizes::Uniform, labels, options.seed, u64::MAX);
        let each = 1e6 * set.planning_s / set.sessions.max(1) as f64;
        let name = format!("{how}, Uni-S, time to plan a session, mean");
        rows.push(Row::new(name, Some(340.0), each, "us").at_most(340.0));
    }
    let papers = [6100.0, 5500.0, 7286.0, 6500.0];
    let single = Options { threads: 1, ..*options };
    let elmo = elmo_settings(UNI_S, sessions / 10, &single);
    for (((name, ..), result), paper) in ELMO.iter().zip(elmo).zip(papers) {
        let ours = 1e6 * result.seconds / result.groups.max(1) as f64;
        let row = Row::new(format!("{name}, Uni-S, time to encode a group, mean"), Some(paper), ours, "us");
        rows.push(row.note("both layers, our encoder; Elmo's own logs say 0.1 ms for the leafs"));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same seed gives the same numbers, however many cores the machine has.
    #[test]
    fn rows_do_not_depend_on_the_number_of_threads() {
        let of = |threads| {
            let options = Options { quick: true, seed: 3, threads };
            let rows = [super::super::switch_state(150, &options), super::super::readings(150, &options)];
            let counted = rows.concat().into_iter().filter(|row| row.kind != Some(crate::Kind::Measured));
            counted.map(|row| (row.name, row.ours.to_bits())).collect::<Vec<_>>()
        };
        let one = of(1);
        assert!(one.len() > 100);
        assert_eq!(one, of(3));
    }

    #[test]
    fn the_title_says_what_was_drawn() {
        let title = cdf_title(20_000, 2_000);
        assert!(title.contains("20,000 sessions (2,000 for Elmo)"), "{title}");
        assert!(cdf_title(1_000_000, 100_000).contains("1,000,000 sessions (100,000 for Elmo)"));
        assert_eq!((grouped(7), grouped(999), grouped(1_000)), ("7".into(), "999".into(), "1,000".into()));
    }
}
