//! Tables 1 and 2, figures 11, 12 and 14, and appendix B.2: the transport alone.

use polycast_protocol::pull::{RateConfig, Replacement};
use polycast_types::{Duration, Time};

use super::bed::{Loss, RECEIVERS, Setting};
use crate::Row;
use crate::report::{Axis, Figure, ItemError, Mark, Options, Outcome, Series};

/// Seconds of a full run that a quick one's seconds stand for.
fn scale(options: &Options) -> f64 {
    if options.quick { 10.0 } else { 1.0 }
}

fn sizes_note(options: &Options) -> Option<&'static str> {
    options
        .quick
        .then_some("Objects and blocks are a tenth of the paper's; times and bytes are given times ten.")
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
        let setting =
            Setting { store, slow_bps: Some(200_000_000), ..Setting::testbed(options.quick, options.seed) };
        let run = setting.run()?;
        let wire = setting.packet_bytes() as f64 / f64::from(setting.payload);
        // A tree is measured while it carries blocks; the slow one ends later than the other.
        let rate = |tree: usize| run.trees[tree].first_bytes as f64 * 8.0 * wire / run.finish_s / 1e6;
        let total = setting.bytes as f64 * 8.0 / run.finish_s / 1e6;
        let ours = [total, rate(0), run.duplicates_percent(0), rate(1), run.duplicates_percent(1)];
        let names = ["goodput", "Tree A", "Tree A, duplicates", "Tree B", "Tree B, duplicates"];
        for ((name, paper), ours) in names.into_iter().zip(paper).zip(ours) {
            let unit = if name.ends_with("duplicates") { "%" } else { "Mb/s" };
            outcome.rows.push(Row::new("", format!("store of {store}: {name}"), Some(paper), ours, unit));
        }
    }
    let note = "The paper's Tree B runs at 870 Mb/s because its servers forward by software; here links are the only \
                limit. Rates are means over the whole transfer, whose last block a tree may have to wait for.";
    Ok(outcome.note(note))
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
        let note = format!("duplicates: {:.2} % of interests", run.duplicates_percent(0));
        let finish = Row::new("", format!("{name}: finish"), Some(seconds), run.finish_s * scale, "s");
        outcome.rows.push(finish.note(note));
        outcome.rows.push(Row::new(
            "",
            format!("{name}: bytes on all links"),
            Some(gb),
            run.gb * scale,
            "GB",
        ));
    }
    let lru = Setting { replacement: Replacement::LeastRecentlyUsed, ..base }.run()?;
    let name = "T = 1 ms, δ = 50 Mb/s, stores forget the least recently used: bytes";
    let note = "packets that the slow receiver has used stay, and those that it will ask for go";
    outcome.rows.push(Row::new("", name, None, lru.gb * scale, "GB").note(note));
    outcome.rows.push(Row::new("", "ideal: finish", Some(42.0), base.ideal_s(200e6) * scale, "s"));
    outcome.rows.push(Row::new("", "ideal: bytes", Some(14.311), base.ideal_gb() * scale, "GB"));
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
    let vary = |store| Setting { store, ..base };
    let labels = |store: u32| (f64::from(store), format!("store of {store} packets"));
    sweep(options, &base, &stores, vary, labels, ("fig-11", "packets in the content store"))
}

/// Figure 12: finish time and bytes by loss on the link to the slow receiver.
///
/// # Errors
/// If a transfer does not end.
pub fn figure_12(options: &Options) -> Result<Outcome, ItemError> {
    let base = Setting::slow_receiver(options.quick, options.seed);
    let losses = [1e-6, 1e-5, 1e-4, 1e-3, 0.003, 0.01, 0.03, 0.1];
    let vary = |loss| Setting { loss: Loss::BeforeQueue(loss), ..base };
    let labels = |loss: f64| (100.0 * loss, format!("{} % lost", 100.0 * loss));
    let mut outcome = sweep(options, &base, &losses, vary, labels, ("fig-12", "data packets lost (%)"))?;
    let limits = [("finish", 0.9, 0.0), ("bytes", 1.4, 1.0)];
    let lossy = vary(0.01).run()?;
    let over = [lossy.finish_s / base.ideal_s(200e6), lossy.gb / base.ideal_gb()];
    for ((name, paper, _), over) in limits.into_iter().zip(over) {
        let name = format!("1 % lost before the queue: {name} above the ideal");
        outcome.rows.push(Row::new("", name, Some(paper), 100.0 * (over - 1.0), "%"));
    }
    let wire = Setting { loss: Loss::OnWire(0.01), ..base }.run()?;
    let over = 100.0 * (wire.finish_s / base.ideal_s(200e6) - 1.0);
    let note = "the link sends each lost packet twice, so 1.01 % is the least";
    outcome
        .rows
        .push(Row::new("", "1 % lost on the wire: finish above the ideal", None, over, "%").note(note));
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
        outcome.rows.push(Row::new("", format!("{label}: finish"), None, run.finish_s * scale, "s"));
        outcome.rows.push(Row::new("", format!("{label}: bytes"), None, run.gb * scale, "GB"));
    }
    let ends = [finish[0].0, finish[finish.len() - 1].0];
    let ideal =
        |value: f64| Series::paper("ideal", ends.map(|end| (end, value * scale)).to_vec()).mark(Mark::Line);
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
        Row::new("", "two trees: finish", Some(4.205), run.finish_s, "s"),
        Row::new("", "two trees: ideal finish", Some(4.202), both.ideal_s(2e9), "s"),
        Row::new(
            "",
            "two trees: finish above the ideal",
            Some(0.1),
            100.0 * (run.finish_s / both.ideal_s(2e9) - 1.0),
            "%",
        ),
        Row::new("", "two trees: bytes on all links", Some(14.311), run.gb, "GB"),
    ];
    let speed = run.packet_hops as f64 / run.wall_s / 1e6;
    let note = format!("{} packet-hops in {:.2} s on one core", run.packet_hops, run.wall_s);
    rows.push(Row::new("", "speed of the simulator", None, speed, "M packet-hops/s").note(note));
    let last = Setting { decide_ahead: 1, ..both }.run()?;
    let name = "two trees, the next block decided with the last packet: finish";
    rows.push(Row::new("", name, Some(4.205), last.finish_s, "s").note("as the paper says"));
    let one = Setting { trees: 1, ..both }.run()?;
    rows.push(Row::new("", "one tree: finish", None, one.finish_s, "s"));
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
            outcome
                .rows
                .push(Row::new("", format!("{title}, {label}: median"), None, median, "us").note(note));
            series.push(distribution(&label, &counts));
        }
        let y = Axis::linear("fraction", "").range(0.0, 1.0);
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
            points.push((value, below));
            drawn = below;
        }
    }
    Series::ours(label, points).mark(Mark::Line)
}
