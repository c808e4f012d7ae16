//! Streams of messages in a lab: killed agents of racks, and joins under load (Orca section 5.3).

use crate::args::bench::{BenchJoinArgs, BenchKillArgs, BenchLabArgs};
use crate::lab::failed;
use polycast::exit::{Exit, Failure};
use polycast::output::{self, Format};
use polycast_lab::measure::{Flow, Gap, Joining, Load, Measured, Measurement};
use polycast_lab::registry;
use polycast_lab::spec::{Network, Spec};
use polycast_types::Duration;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The largest message that is worth sending this way.
const BYTES_MAX: usize = 65_536;

fn load(args: &BenchLabArgs) -> Result<Load, Failure> {
    if !(args.rate >= 1.0 && args.rate <= 10e6) {
        return Err(Failure::input("the rate must be 1 to 10 million messages a second"));
    }
    if args.bytes > BYTES_MAX {
        return Err(Failure::input(format!("a message can have at most {BYTES_MAX} bytes here")));
    }
    Ok(Load { rate: args.rate, bytes: args.bytes })
}

pub(super) fn measure(spec: &Spec, what: &Measurement) -> Result<Measured, Failure> {
    let wrong = |error: std::io::Error| Failure::unexpected(format!("cannot find this program: {error}"));
    let program = std::env::current_exe().map_err(wrong)?;
    registry::check(spec).map_err(failed)?;
    registry::measure(spec, what, &program).map_err(failed)
}

/// Median, percentiles and extremes of many values, in one unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) min: f64,
    pub(super) median: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Returns the spread of some values; `None` if there are none.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        // The smallest value that is not below so many of them.
        let at =
            |fraction: f64| values[((values.len() as f64 * fraction).ceil() as usize).clamp(1, last + 1) - 1];
        Some(Spread { min: values[0], median: at(0.5), p90: at(0.9), p99: at(0.99), max: values[last] })
    }

    fn text(&self, unit: &str) -> String {
        let Spread { min, median, p90, p99, max } = self;
        format!("min {min:.3}, median {median:.3}, p90 {p90:.3}, p99 {p99:.3}, max {max:.3} {unit}")
    }
}

fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

/// `polycast bench rack-kill`
pub(super) fn kills(args: &BenchKillArgs, format: Format) -> Result<Exit, Failure> {
    let (load, kills) = (load(&args.lab)?, args.kills);
    let mut specs = Vec::new();
    for timeout in &args.timeout {
        specs.push(with_timeout(&args.lab.spec, *timeout)?);
    }
    if specs.is_empty() {
        specs.push(args.lab.spec.clone());
    }
    let (mut documents, mut text) = (Vec::new(), String::new());
    for spec in specs {
        output::say(&format!("killing agents in {spec}"));
        let measured = measure(&spec, &Measurement::Kills { kills, load })?;
        let Measured::Kills { gaps, idle, wrongly_lost, flow } = measured else {
            return Err(Failure::unexpected("the lab has measured something else"));
        };
        let (document, lines) = kill_report(&spec, &gaps, (idle, wrongly_lost), &flow)?;
        documents.push(document);
        text += &lines;
    }
    output::result(format, &documents, &text)?;
    Ok(Exit::Done)
}

/// Kills agents of a lab with this T, under 10,000 messages of 1,000 bytes a second; gives the gaps, and what
/// came of all messages.
pub(crate) fn killed(spec: &Spec, timeout: Duration, kills: u32) -> Result<(Vec<Gap>, Flow), Failure> {
    let load = Load { rate: 10_000.0, bytes: 1_000 };
    match measure(&with_timeout(spec, timeout)?, &Measurement::Kills { kills, load })? {
        Measured::Kills { gaps, flow, .. } => Ok((gaps, flow)),
        _ => Err(Failure::unexpected("the lab has measured something else")),
    }
}

/// The same lab with another T.
fn with_timeout(spec: &Spec, timeout: Duration) -> Result<Spec, Failure> {
    let micros = u32::try_from(timeout.0 / 1_000).ok().filter(|micros| *micros > 0);
    let micros = micros.ok_or_else(|| Failure::input("a time-out must be one microsecond to an hour"))?;
    let mut spec = spec.clone();
    let Network::Orca { timeout_us, .. } = &mut spec.network else {
        return Err(Failure::input("only a lab such as orca:4 has agents of racks"));
    };
    *timeout_us = micros;
    // What can be written can be read again, or is refused here.
    spec.to_string().parse::<Spec>().map_err(failed)
}

fn kill_report(
    spec: &Spec,
    gaps: &[Gap],
    (idle, wrongly_lost): (u32, u64),
    flow: &Flow,
) -> Result<(Value, String), Failure> {
    let Network::Orca { timeout_us, .. } = spec.network else {
        return Err(Failure::unexpected("the lab has no agents of racks"));
    };
    let timeout_ms = f64::from(timeout_us) / 1e3;
    let nothing = || Failure::unexpected("no gap was seen");
    let spread = |of: &dyn Fn(&Gap) -> f64| Spread::of(gaps.iter().map(of)).ok_or_else(nothing);
    let gap_ms = spread(&|gap| millis(gap.gap_ns))?;
    let quiet_ms = spread(&|gap| millis(gap.quiet_ns))?;
    let ratio = spread(&|gap| millis(gap.gap_ns) / timeout_ms)?;
    let lost = spread(&|gap| gap.lost as f64)?;
    let share = spread(&|gap| gap.lost as f64 / gap.watched.max(1) as f64)?;
    let count = gaps.iter().map(|gap| gap.kill).max().map_or(0, |last| last + 1);
    let quiet_lost: u64 = gaps.iter().map(|gap| gap.quiet_lost).sum();
    let total = flow.received + flow.lost;
    let loss_rate = flow.lost as f64 / total.max(1) as f64;
    let document = json!({
        "lab": spec.to_string(), "kills": count, "idle_kills": idle, "timeout_ms": timeout_ms, "gap_ms": gap_ms,
        "gap_by_timeout": ratio, "quiet_gap_ms": quiet_ms, "lost_messages": lost, "lost_share_while_watched": share,
        "lost_in_quiet_times": quiet_lost, "living_agents_replaced": wrongly_lost, "loss_rate": loss_rate, "flow": flow, "gaps": gaps,
    });
    let mut text = format!(
        "{spec}: {count} kills, each seen by {} receivers, T = {timeout_ms} ms, {:.0} messages a second\n",
        gaps.len() as u32 / count.max(1),
        flow.messages as f64 / flow.seconds.max(1e-9),
    );
    let _ = writeln!(text, "  gap              {}", gap_ms.text("ms"));
    let _ = writeln!(text, "  gap by T         {}", ratio.text("T"));
    let _ = writeln!(text, "  without a kill   {}", quiet_ms.text("ms"));
    let _ = writeln!(text, "  lost             {}", lost.text("messages"));
    let _ = writeln!(text, "  lost before      {quiet_lost} messages in the quiet times before all kills");
    let _ = writeln!(text, "  taken for dead   {wrongly_lost} times a living agent, in all racks");
    let _ = writeln!(text, "  lost of all      {:.4} % of {total} messages", loss_rate * 100.0);
    if idle > 0 {
        let _ = writeln!(
            text,
            "  {idle} more kills cost nothing: another agent had taken over before the packets stopped"
        );
    }
    Ok((document, text))
}

/// `polycast bench join`
pub(super) fn joins(args: &BenchJoinArgs, format: Format) -> Result<Exit, Failure> {
    let (load, joins) = (load(&args.lab)?, args.joins);
    let spec = &args.lab.spec;
    output::say(&format!("joining in {spec}"));
    let measured = measure(spec, &Measurement::Joins { joins, load })?;
    let Measured::Joins { joins, flow } = measured else {
        return Err(Failure::unexpected("the lab has measured something else"));
    };
    let nothing = || Failure::unexpected("no receiver has joined");
    let spread = |of: &dyn Fn(&Joining) -> f64| Spread::of(joins.iter().map(of)).ok_or_else(nothing);
    let heard = spread(&|join| millis(join.heard_ns))?;
    let arrived = spread(&|join| millis(join.arrived_ns))?;
    let joined = spread(&|join| millis(join.joined_ns))?;
    let of_rack = |known: bool| {
        Spread::of(joins.iter().filter(|join| join.known_rack == known).map(|join| millis(join.heard_ns)))
    };
    let document = json!({
        "lab": spec.to_string(), "joins": joins.len(), "first_message_ms": heard, "first_arrival_ms": arrived,
        "joined_ms": joined, "first_message_ms_in_a_rack_with_receivers": of_rack(true),
        "first_message_ms_in_another_rack": of_rack(false), "flow": flow, "each": joins,
    });
    let mut text = format!(
        "{spec}: {} joins, {:.0} messages a second\n",
        joins.len(),
        flow.messages as f64 / flow.seconds.max(1e-9)
    );
    let _ = writeln!(text, "  first message in hand      {}", heard.text("ms"));
    let _ = writeln!(text, "  first message at the host  {}", arrived.text("ms"));
    let _ = writeln!(text, "  the agent says: joined     {}", joined.text("ms"));
    for (known, what) in [(true, "in a rack with receivers   "), (false, "in a rack without          ")] {
        if let Some(spread) = of_rack(known) {
            let _ = writeln!(text, "  {what}{}", spread.text("ms"));
        }
    }
    let lost = flow.lost as f64 / (flow.received + flow.lost).max(1) as f64 * 100.0;
    let _ = writeln!(text, "  the receiver that stayed lost {lost:.4} % of {}", flow.received + flow.lost);
    output::result(format, &document, &text)?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_those_of_the_sorted_values() {
        assert_eq!(Spread::of([]), None);
        let one = Spread::of([7.0]).unwrap();
        assert_eq!((one.min, one.median, one.p90, one.p99, one.max), (7.0, 7.0, 7.0, 7.0, 7.0));
        let many = Spread::of((1..=200).rev().map(f64::from)).unwrap();
        assert_eq!((many.min, many.median, many.p90, many.p99, many.max), (1.0, 100.0, 180.0, 198.0, 200.0));
    }

    #[test]
    fn a_lab_gets_another_time_out() {
        let spec: Spec = "orca:4,timeout-us=5000".parse().unwrap();
        let other = with_timeout(&spec, Duration::from_millis(10)).unwrap();
        assert!(matches!(other.network, Network::Orca { timeout_us: 10_000, .. }), "{other}");
        assert!(with_timeout(&"bridge:4".parse().unwrap(), Duration::from_millis(10)).is_err());
    }
}
