//! `polycast plan advise`: which way to deliver in a data center, what it costs and what it saves.

use super::{Answer, PlanError, dot, parts};
use clap::Args;
use polycast::report::seconds;
use polycast::table::{Table, paragraph};
use polycast_experiments::advice::{Advice, Site, WAYS, Way};
use polycast_experiments::report::draw;
use polycast_experiments::report::{Axis, BarSeries, Figure};
use polycast_types::{Rate, format_bytes, parse_bytes};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

pub(super) const EXAMPLES: &str = "\
Examples:
  polycast plan advise --hosts 512 --rack 32 --rate 100g --object 140GB --groups 4 --times-a-day 50
  polycast plan advise --hosts 512 --rack 32 --rate 10g --object 20GB --without ip-multicast,orca,datacast
  polycast plan advise --hosts 2000 --rack 40 --rate 400g --object 1TB --parts parts.toml --svg advice.svg

Times are formulas, held against the simulator: docs/planning.md has them, and the keys of a parts file.";

/// Arguments of `plan advise`.
#[derive(Args, Clone, Debug)]
pub(crate) struct AdviseArgs {
    /// Hosts of the data center
    #[arg(long)]
    pub hosts: u32,
    /// Hosts of a rack
    #[arg(long, value_name = "HOSTS")]
    pub rack: u32,
    /// Rate of a host's link, and of each fibre: 10g to 800g
    #[arg(long, value_parser = gbps)]
    pub rate: u32,
    /// Size of an object
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub object: u64,
    /// Groups that transfer at the same time. The hosts are divided among them, and each has its own source
    /// and object
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub groups: u32,
    /// How often a day each group has a transfer
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    pub times_a_day: f64,
    /// How many times faster a rack's hosts are together than its uplinks
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    pub oversubscription: f64,
    /// Bytes of the largest packet that the network takes
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    pub mtu: u32,
    /// Ways that are out of the question: ip-multicast, tcp-chain, orca, datacast, shufflecast, ocs
    #[arg(long, value_name = "WAY,WAY", value_delimiter = ',')]
    pub without: Vec<String>,
    /// Prices and powers of parts, instead of the built-in ones, which end at 100g
    #[arg(long, value_name = "FILE.toml")]
    pub parts: Option<PathBuf>,
    /// Draw times and costs as bars
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
}

/// A whole number of Gbit/s.
fn gbps(text: &str) -> Result<u32, String> {
    let wrong =
        || format!("'{text}' is not a line rate: write whole Gbit/s, such as 10g, 100g, 400g or 800g");
    let bare = text.chars().all(|c| c.is_ascii_digit());
    let rate: Rate = if bare { format!("{text}g").parse() } else { text.parse() }.map_err(|_| wrong())?;
    let gbps = u32::try_from(rate.0 / 1_000_000_000).map_err(|_| wrong())?;
    let is_whole = rate.0.is_multiple_of(1_000_000_000);
    if is_whole { Ok(gbps) } else { Err(wrong()) }
}

pub(super) fn plan(args: &AdviseArgs) -> Result<Answer, PlanError> {
    let catalogue = parts::catalogue(args.parts.as_deref())?;
    let without: Vec<&str> = args.without.iter().map(|name| name.trim()).collect();
    if let Some(unknown) = without.iter().find(|name| !WAYS.contains(name)) {
        return Err(PlanError::UnknownWay((*unknown).into()));
    }
    let site = Site {
        hosts: args.hosts,
        hosts_per_rack: args.rack,
        gbps: args.rate,
        mtu_bytes: args.mtu,
        oversubscription: args.oversubscription,
        groups: args.groups,
        object_bytes: args.object,
        times_a_day: args.times_a_day,
    };
    let advice = site.advise(&catalogue, &without)?;
    if let Some(path) = &args.svg {
        draw(&site, &advice, path)?;
    }
    Ok(Answer { document: document(&site, &advice), text: people(&site, &advice) })
}

fn document(site: &Site, advice: &Advice) -> Value {
    let way = |way: &Way| {
        let mut document = json!({
            "name": way.name,
            "seconds": way.seconds(),
            "set_up_s": way.span.map(|span| span.set_up_s),
            "extra_cost_usd": way.extra_cost_usd,
            "power_w": way.power_w,
            "core_copies": way.core_copies,
            "needs": way.needs,
        });
        if let Some(why) = &way.refused {
            document["refused"] = why.as_str().into();
        }
        document
    };
    json!({
        "ways": advice.ways.iter().map(way).collect::<Vec<_>>(),
        "recommended": advice.recommended,
        "why": advice.why,
        "racks": advice.racks,
        "receivers": advice.receivers,
        "ideal_s": advice.ideal_s,
        "today_s": advice.way("file-server").and_then(Way::seconds),
        "saved_hours_a_day": advice.saved_hours_a_day,
        "saved_core_bytes_a_day": advice.saved_core_bytes_a_day,
        "times_a_day": site.times_a_day,
    })
}

fn people(site: &Site, advice: &Advice) -> String {
    let each = match site.groups {
        1 => String::new(),
        groups => format!(" of {groups} objects at the same time, each"),
    };
    let head = format!(
        "{} hosts in {} racks at {} Gbit/s;{each} {} to {} receivers. The ideal is {}: the bytes over one link.",
        site.hosts,
        advice.racks,
        site.gbps,
        size(site.object_bytes as f64),
        advice.receivers,
        span(advice.ideal_s)
    );
    let mut text = paragraph(&head.replace("; of", ";"), 0);
    let mut table = Table::new(&["way", ">extra USD", ">power W", ">last after", ">copies", "needs"]);
    let known = |value: Option<f64>| value.map_or("?".into(), grouped);
    for way in advice.ways.iter().filter(|way| way.span.is_some()) {
        let mark = if way.name == advice.recommended { "*" } else { "" };
        table.row([
            format!("{}{mark}", way.name),
            known(way.extra_cost_usd),
            known(way.power_w),
            way.seconds().map_or("-".into(), span),
            grouped(way.core_copies),
            way.needs.clone(),
        ]);
    }
    text += &table.text();
    for way in &advice.ways {
        if let Some(why) = &way.refused {
            text += &paragraph(&format!("{}: {why}", way.name), 0);
        }
    }
    text += "copies: how often an object goes through the core; * is recommended\n";
    if !advice.is_priced {
        text += "?: prices that are built in end at 100g; --parts FILE takes yours\n";
    }
    text += "\n";
    text += &paragraph(&savings(site, advice), 0);
    text + &paragraph(&format!("Recommended: {}. {}", advice.recommended, advice.why), 0)
}

fn savings(site: &Site, advice: &Advice) -> String {
    let today = advice.way("file-server");
    let (today_s, copies) = today.map_or((0.0, 0.0), |way| (way.seconds().unwrap_or(0.0), way.core_copies));
    let core_bytes = copies * f64::from(site.groups) * site.object_bytes as f64;
    let mut text = format!(
        "Today, each from the file server: {} a time, {} through the core.",
        span(today_s),
        size(core_bytes)
    );
    if advice.recommended != "file-server" && site.times_a_day > 0.0 {
        let plural = if site.times_a_day == 1.0 { "" } else { "s" };
        text += &format!(
            " With {} each group waits {} less a day ({} transfer{plural}), and the core carries {} less.",
            advice.recommended,
            span(advice.saved_hours_a_day * 3_600.0),
            site.times_a_day,
            size(advice.saved_core_bytes_a_day)
        );
    }
    text
}

/// A span for people, also where it is hours.
fn span(of_s: f64) -> String {
    if of_s < 600.0 {
        return seconds(of_s);
    }
    let minutes = (of_s / 60.0).round();
    if minutes < 120.0 { format!("{minutes:.0} min") } else { format!("{:.1} h", of_s / 3_600.0) }
}

/// A size in decimal units, in which storage and transfers are sold.
fn size(bytes: f64) -> String {
    for (unit, name) in [(1e18, "EB"), (1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB")] {
        if bytes >= unit {
            let number = format!("{:.2}", bytes / unit);
            let number = number.trim_end_matches('0').trim_end_matches('.');
            return format!("{number} {name}");
        }
    }
    format_bytes(bytes as u64)
}

/// A number without its fraction, in groups of three digits.
pub(super) fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Times and costs as two charts, one above the other.
fn draw(site: &Site, advice: &Advice, path: &Path) -> Result<(), PlanError> {
    let built: Vec<&Way> = advice.ways.iter().filter(|way| way.span.is_some()).collect();
    let names = || built.iter().map(|way| way.name.to_string()).collect::<Vec<_>>();
    let title = format!(
        "{} to {} receivers at {} Gbit/s: {} is recommended",
        size(site.object_bytes as f64),
        advice.receivers,
        site.gbps,
        advice.recommended
    );
    let times = built.iter().map(|way| way.seconds()).collect();
    let times = Figure::bars(
        "time",
        &title,
        "way",
        Axis::log("time to the last receiver", "s"),
        names(),
        vec![BarSeries::ours("seconds", times)],
    );
    let costs = built.iter().map(|way| way.extra_cost_usd).collect();
    let costs = Figure::bars(
        "cost",
        "Extra cost of parts, beside the network that is there; none is drawn where no price is known",
        "way",
        Axis::linear("extra cost", "USD"),
        names(),
        vec![BarSeries::ours("US dollars", costs)],
    );
    let text = draw::stacked(&[times, costs]).map_err(|error| PlanError::Picture(error.to_string()))?;
    dot::write(path, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_whole_gigabits() {
        for (text, expected) in [("10g", 10), ("100G", 100), ("400gbit", 400), ("800", 800), ("1t", 1_000)] {
            assert_eq!(gbps(text), Ok(expected), "{text}");
        }
        for text in ["", "fast", "10m", "1.5g", "-10g", "99999999999g"] {
            assert!(gbps(text).unwrap_err().contains("such as 10g, 100g, 400g or 800g"), "{text}");
        }
    }

    #[test]
    fn spans_and_sizes_read_well() {
        let spans = [(11.62, "11.6 s"), (5_724.0, "95 min"), (284_000.0, "78.9 h")];
        assert!(spans.iter().all(|(of_s, text)| span(*of_s) == *text), "{spans:?}");
        let sizes = [(140e9, "140 GB"), (71.54e12, "71.54 TB"), (3.577e15, "3.58 PB"), (512.0, "512 B")];
        assert!(sizes.iter().all(|(bytes, text)| size(*bytes) == *text), "{sizes:?}");
        assert_eq!(grouped(1_234_567.4), "1,234,567");
    }
}
