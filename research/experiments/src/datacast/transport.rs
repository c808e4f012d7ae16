//! Tables 1 and 2, figures 11, 12 and 14, and appendix B.2: the transport alone.

use polycast_protocol::pull::{RateConfig, Replacement};
use polycast_types::{Duration, Time};

use super::bed::{Loss, Measured, RECEIVERS, Setting, stored};
use crate::report::{Axis, Figure, ItemError, Mark, Options, Outcome, Series};
use crate::{Kind, Row};

/// Seconds of a full run that a quick one's seconds stand for.
pub(super) fn scale(options: &Options) -> f64 {
    if options.quick { 10.0 } else { 1.0 }
}

fn sizes_note(options: &Options) -> Option<&'static str> {
    options.quick.then_some(
        "Objects, blocks and stores are a tenth of the paper's; times and bytes are given times ten.",
    )
}

/// Table 1: rates and duplicates of both trees by size of the content store.
///
/// # Errors
/// If a transfer does not end.
pub fn table_1(options: &Options) -> Result<Outcome, ItemError> {
    let mut outcome = Outcome::default();
    let papers = [
        (128, [1093.0, 197.0, 2.97, 870.0, 0.0002]),
        (512, [1091.0, 196.0, 2.33, 869.0, 0.0004]),
        (2048, [1100.0, 196.0, 2.36, 877.0, 0.0]),
        (8192, [1095.0, 196.0, 2.45, 873.0, 0.0]),
        (16384, [1084.0, 196.0, 2.30, 862.0, 0.0002]),
    ];
    for (store, paper) in papers {
        let testbed = Setting::testbed(options.quick, options.seed);
        let setting = Setting { store: stored(store, options.quick), slow_bps: Some(200_000_000), ..testbed };
        let (run, mbps) = steady_rates(&setting)?;
        let total = (mbps[0] + mbps[1]) * f64::from(setting.payload) / setting.packet_bytes() as f64;
        let ours = [total, mbps[0], run.duplicates_percent(0), mbps[1], run.duplicates_percent(1)];
        let names = ["goodput", "Tree A", "Tree A, duplicates", "Tree B", "Tree B, duplicates"];
        for ((name, paper), ours) in names.into_iter().zip(paper).zip(ours) {
            let unit = if name.ends_with("duplicates") { "%" } else { "Mb/s" };
            outcome.rows.push(Row::new(format!("store of {store}: {name}"), Some(paper), ours, unit));
        }
    }
    let note = "The paper's Tree B runs at 870 Mb/s because its servers forward by software; here links are the only \
                limit. Rates are those of the middle of the transfer, while both trees have blocks.";
    outcome.notes.extend(sizes_note(options).map(String::from));
    Ok(outcome.note(note))
}

/// Runs a transfer to its end, and gives the rate on the wire at which the source sent new packets in each
/// tree from a quarter of the least time to half of it, in Mb/s.
fn steady_rates(setting: &Setting) -> Result<(Measured, [f64; 2]), ItemError> {
    let mut bed = setting.bed()?;
    bed.start();
    let least_s = setting.ideal_s(2.0 * setting.link_bps as f64);
    let mut bytes = [[0; 2]; 2];
    for (bytes, part) in bytes.iter_mut().zip([0.25, 0.5]) {
        bed.until(Time((part * least_s * 1e9) as u64));
        *bytes = [bed.source(0).first_bytes, bed.source(1).first_bytes];
    }
    let wire = setting.packet_bytes() as f64 / f64::from(setting.payload);
    let mbps =
        [0, 1].map(|tree| (bytes[1][tree] - bytes[0][tree]) as f64 * 8.0 * wire / (0.25 * least_s) / 1e6);
    Ok((bed.finish()?, mbps))
}

/// Table 2: three pairs of δ and T.
///
/// # Errors
/// If a transfer does not end.
pub fn table_2(options: &Options) -> Result<Outcome, ItemError> {
    let mut outcome = Outcome::default();
    let base = Setting::slow_receiver(options.quick, options.seed);
    let scale = scale(options);
    let pairs = [(100.0, 5, 62.407, 14.312), (1.0, 50, 42.017, 14.469), (0.1, 100, 42.018, 16.348)];
    for (interval_ms, delta_mbps, seconds, gb) in pairs {
        let rate = RateConfig {
            increase_bps: delta_mbps * 1_000_000,
            interval: Duration((interval_ms * 1e6) as u64),
            ..base.rate
        };
        let run = Setting { rate, ..base }.run()?;
        let name = format!("T = {interval_ms} ms, δ = {delta_mbps} Mb/s");
        let duplicates = format!("duplicates: {:.2} % of interests", run.duplicates_percent(0));
        let note = match interval_ms {
            100.0 => format!(
                "{duplicates}; here only duplicates that come after the last halving halve the rate again, so that with steps so rare it is \
                 halved less often than in the paper"
            ),
            _ => duplicates,
        };
        let finish = Row::new(format!("{name}: finish"), Some(seconds), run.finish_s * scale, "s");
        outcome.rows.push(finish.note(note));
        outcome.rows.push(Row::new(format!("{name}: bytes on all links"), Some(gb), run.gb * scale, "GB"));
    }
    let lru = Setting { replacement: Replacement::LeastRecentlyUsed, ..base }.run()?;
    let name = "T = 1 ms, δ = 50 Mb/s, stores forget the least recently used: bytes";
    let note = "packets that the slow receiver has used stay, and those that it will ask for go";
    outcome.rows.push(Row::new(name, None, lru.gb * scale, "GB").note(note));
    outcome.rows.push(Row::new("ideal: finish", Some(42.0), base.ideal_s(200e6) * scale, "s"));
    outcome.rows.push(Row::new("ideal: bytes", Some(14.311), base.ideal_gb() * scale, "GB").within(0.001));
    outcome.notes.extend(sizes_note(options).map(String::from));
    Ok(outcome)
}

/// Figure 11: finish time and bytes by size of the content store.
///
/// # Errors
/// If a transfer does not end.
pub fn figure_11(options: &Options) -> Result<Outcome, ItemError> {
    let base = Setting::slow_receiver(options.quick, options.seed);
    let stores = [16, 64, 256, 1024, 2048, 4096, 16_384, 65_536, 262_144, 1_048_576];
    let vary = |store| Setting { store: stored(store, options.quick), ..base };
    let labels = |store: u32| (f64::from(store), format!("store of {store} packets"));
    sweep(options, &base, &stores, vary, labels, ("fig-11", "packets in the content store"))
}

/// Figure 12: finish time and bytes by loss on the link to the slow receiver.
///
/// # Errors
/// If a transfer does not end.
pub fn figure_12(options: &Options) -> Result<Outcome, ItemError> {
    let base = Setting::slow_receiver(options.quick, options.seed);
    let losses_ppm = [1, 10, 100, 1000, 3000, 10_000, 30_000, 100_000];
    let vary = |ppm| Setting { loss: Loss::BeforeQueue(ppm), ..base };
    let labels = |ppm: u32| (f64::from(ppm) / 1e4, format!("{} % lost", f64::from(ppm) / 1e4));
    let mut outcome = sweep(options, &base, &losses_ppm, vary, labels, ("fig-12", "data packets lost (%)"))?;
    let limits = [("finish", 0.9), ("bytes", 1.4)];
    let lossy = vary(10_000).run()?;
    let over = [lossy.finish_s / base.ideal_s(200e6), lossy.gb / base.ideal_gb()];
    for ((name, paper), over) in limits.into_iter().zip(over) {
        let name = format!("1 % lost before the queue: {name} above the ideal");
        outcome.rows.push(Row::new(name, Some(paper), 100.0 * (over - 1.0), "%").at_most(paper));
    }
    let wire = Setting { loss: Loss::OnWire(10_000), ..base }.run()?;
    let over = 100.0 * (wire.finish_s / base.ideal_s(200e6) - 1.0);
    let note = "the link sends each lost packet twice, so 1.01 % is the least";
    outcome.rows.push(Row::new("1 % lost on the wire: finish above the ideal", None, over, "%").note(note));
    let note = "The paper's 0.9 % for 1 % of loss is less than the link would need to send what was lost, so its \
                losses come before the queue, as those of ns-2's error models do.";
    Ok(outcome.note(note))
}

/// Runs settings one after the other, and draws finish time and bytes beside the ideal.
fn sweep<T: Copy>(
    options: &Options,
    base: &Setting,
    values: &[T],
    vary: impl Fn(T) -> Setting,
    label: impl Fn(T) -> (f64, String),
    (name, x): (&str, &str),
) -> Result<Outcome, ItemError> {
    let scale = scale(options);
    let mut outcome = Outcome::default();
    let (mut finish, mut bytes) = (Vec::new(), Vec::new());
    for &value in values {
        let run = vary(value).run()?;
        let (at, label) = label(value);
        finish.push((at, run.finish_s * scale));
        bytes.push((at, run.gb * scale));
        outcome.rows.push(Row::new(format!("{label}: finish"), None, run.finish_s * scale, "s"));
        outcome.rows.push(Row::new(format!("{label}: bytes"), None, run.gb * scale, "GB"));
    }
    let ends = [finish[0].0, finish[finish.len() - 1].0];
    let ideal =
        |value: f64| Series::ours("ideal", ends.map(|end| (end, value * scale)).to_vec()).mark(Mark::Line);
    for (part, title, unit, points, ideal) in [
        ("a", "Finish time", "s", finish, ideal(base.ideal_s(200e6))),
        ("b", "Bytes on all links", "GB", bytes, ideal(base.ideal_gb())),
    ] {
        let most = points.iter().map(|point| point.1).fold(0.0, f64::max);
        let y = Axis::linear(&title.to_lowercase(), unit).range(0.0, most * 1.1);
        let series = vec![Series::ours("pull", points), ideal];
        outcome.figures.push(Figure::lines(&format!("{name}{part}"), title, Axis::log(x, ""), y, series));
    }
    outcome.notes.extend(sizes_note(options).map(String::from));
    Ok(outcome)
}

/// Appendix B.2: one and two trees over links of 1 Gb/s, always at full size.
///
/// # Errors
/// If a transfer does not end.
pub fn two_trees(options: &Options) -> Result<Outcome, ItemError> {
    let both = Setting { trees: 2, ..Setting::appendix_b(false, options.seed).gigabit() };
    let run = both.run()?;
    let mut rows = vec![
        Row::new("two trees: finish", Some(4.205), run.finish_s, "s").within(0.01),
        Row::new("two trees: ideal finish", Some(4.202), both.ideal_s(2e9), "s").within(0.001),
        Row::new(
            "two trees: finish above the ideal",
            Some(0.1),
            100.0 * (run.finish_s / both.ideal_s(2e9) - 1.0),
            "%",
        )
        .at_most(0.15)
        .note("the paper rounds to a tenth of a percent"),
        Row::new("two trees: bytes on all links", Some(14.311), run.gb, "GB").within(0.001),
    ];
    let speed = run.packet_hops as f64 / run.wall_s / 1e6;
    let note = format!("{} packet-hops in {:.2} s on one core", run.packet_hops, run.wall_s);
    let row = Row::new("speed of the simulator", None, speed, "M packet-hops/s").note(note);
    rows.push(row.kind(Kind::Measured));
    let last = Setting { decide_ahead: 1, ..both }.run()?;
    let name = "two trees, the next block decided with the last packet: finish";
    rows.push(Row::new(name, Some(4.205), last.finish_s, "s").note("as the paper says"));
    let one = Setting { trees: 1, ..both }.run()?;
    rows.push(Row::new("one tree: finish", None, one.finish_s, "s"));
    let note = "The paper's header size of '72 packets' is 72 bytes. Rates begin at 500 Mb/s a tree, and the rise to \
                1 Gb/s is most of what is above the ideal.";
    Ok(Outcome::from(rows).note(note))
}

/// Figure 14: round trips of every receiver, with and without a slow one.
///
/// # Errors
/// If the bed cannot be made.
pub fn figure_14(options: &Options) -> Result<Outcome, ItemError> {
    let mut outcome = Outcome::default();
    let free = Setting::appendix_b(options.quick, options.seed).gigabit();
    let slow = Setting { slow_bps: Some(200_000_000), ..free };
    let cases = [("fig-14a", "without congestion", free), ("fig-14b", "with a slow link to server 23", slow)];
    for (name, title, setting) in cases {
        let mut bed = Setting { round_trips: true, ..setting }.bed()?;
        bed.start();
        bed.until(Time(3_600_000_000_000));
        let mut series = Vec::new();
        for receiver in RECEIVERS {
            let (_, log) = bed.world.node(receiver).receiver(bed.group.transfer).expect("it is a receiver");
            let counts: Vec<(f64, f64)> = log
                .round_trips
                .iter()
                .flatten()
                .map(|(&micros, &count)| (micros as f64, count as f64))
                .collect();
            let label = format!("server {}{}", receiver / 4, receiver % 4);
            let median = quantile(&counts, 0.5);
            let note = format!("99 %: {} us", quantile(&counts, 0.99));
            outcome.rows.push(Row::new(format!("{title}, {label}: median"), None, median, "us").note(note));
            series.push(distribution(&label, &counts));
        }
        let y = Axis::linear("part of the packets", "").range(0.0, 1.0);
        let title = format!("Round trips {title}");
        outcome.figures.push(Figure::lines(name, &title, Axis::linear("round trip", "us"), y, series));
    }
    Ok(outcome
        .note("Links of 1 Gb/s and 10 us, Tree A, w = 32. A packet that was asked for twice is not counted."))
}

/// The least value below which this part of the counted ones lies.
fn quantile(counts: &[(f64, f64)], part: f64) -> f64 {
    let total: f64 = counts.iter().map(|entry| entry.1).sum();
    let mut below = 0.0;
    for &(value, count) in counts {
        below += count;
        if below >= part * total {
            return value;
        }
    }
    0.0
}

/// A cumulative distribution of counted values, thinned out to what can be seen.
fn distribution(label: &str, counts: &[(f64, f64)]) -> Series {
    let total: f64 = counts.iter().map(|entry| entry.1).sum();
    let (mut below, mut drawn) = (0.0, 0.0);
    let mut points = Vec::new();
    for &(value, count) in counts {
        if points.is_empty() {
            points.push((value, 0.0));
        }
        below += count / total;
        if below - drawn >= 0.002 || below > 0.999_999 {
            // A step: between two values there is none.
            points.extend([(value, drawn), (value, below)]);
            drawn = below;
        }
    }
    Series::ours(label, points).mark(Mark::Line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_rises_only_at_its_values() {
        let series = distribution("x", &[(1.0, 1.0), (5.0, 1e6), (9.0, 1e6)]);
        let heights: Vec<f64> =
            series.points.iter().filter(|point| point.0 == 5.0).map(|point| point.1).collect();
        assert!(heights[0] < 0.001 && (heights[1] - 0.5).abs() < 0.001, "{:?}", series.points);
        assert!(series.points.windows(2).all(|pair| pair[0].0 == pair[1].0 || pair[0].1 == pair[1].1));
    }

    /// A quick run is the full one at a tenth: the slow link decides the rate of its tree, however large the
    /// paper's store is.
    #[test]
    fn in_a_quick_run_stores_are_as_small_as_the_object() {
        let options = Options { quick: true, seed: 1, threads: 1 };
        let rows = table_1(&options).unwrap().rows;
        for store in [128, 512, 2048, 8192, 16_384] {
            let name = format!("store of {store}: Tree A");
            let row = rows.iter().find(|row| row.name == name).unwrap();
            assert!((row.ours / 200.0 - 1.0).abs() < 0.05, "{row:?}");
        }
    }

    #[test]
    fn a_slow_receiver_keeps_its_link_busy_at_little_cost() {
        let setting = Setting::slow_receiver(true, 3);
        for store in [16, 2048] {
            let run = Setting { store, ..setting }.run().unwrap();
            assert!(
                run.finish_s < 1.001 * setting.ideal_s(200e6),
                "{} s with a store of {store}",
                run.finish_s
            );
            assert!(run.gb < 1.011 * setting.ideal_gb(), "{} GB with a store of {store}", run.gb);
        }
    }

    #[test]
    fn loss_of_one_percent_costs_less_than_one_percent() {
        let setting = Setting::slow_receiver(true, 4);
        let run = Setting { loss: Loss::BeforeQueue(10_000), ..setting }.run().unwrap();
        // A tenth of the object: the wait for the last lost packet weighs ten times as much.
        assert!(run.finish_s < 1.015 * setting.ideal_s(200e6), "{} s", run.finish_s);
        assert!(run.gb < 1.014 * setting.ideal_gb(), "{} GB", run.gb);
    }

    #[test]
    fn two_trees_carry_twice_as_much_without_a_duplicate() {
        let setting = Setting { trees: 2, ..Setting::appendix_b(true, 5).gigabit() };
        let run = setting.run().unwrap();
        // The rise from 500 Mb/s takes 2.5 ms in all.
        assert!(run.finish_s < setting.ideal_s(2e9) + 0.003, "{} s", run.finish_s);
        assert!((run.gb / setting.ideal_gb() - 1.0).abs() < 1e-4, "{} GB", run.gb);
    }

    #[test]
    fn the_slower_the_rate_recovers_the_later_the_end() {
        let setting = Setting::slow_receiver(true, 6);
        let slow =
            RateConfig { increase_bps: 5_000_000, interval: Duration::from_millis(100), ..setting.rate };
        let hasty =
            RateConfig { increase_bps: 100_000_000, interval: Duration::from_micros(100), ..setting.rate };
        let (run, slow, hasty) = (
            setting.run().unwrap(),
            Setting { rate: slow, ..setting }.run().unwrap(),
            Setting { rate: hasty, ..setting }.run().unwrap(),
        );
        assert!(slow.finish_s > 1.05 * run.finish_s && hasty.gb > 1.1 * run.gb);
    }
}
