//! `polycast lab compare`: the same object to the same hosts of one lab by several ways, and what each of
//! them costs (Datacast, section 7, the comparison study).

use super::failed;
use super::{
    Broken, CastOptions, Receivers, Spec, Traffic, Way, delivery_of, options_of, program, receivers,
    registry, say_notes,
};
use clap::Args as Arguments;
use polycast::exit::{Exit, Failure};
use polycast::output::{self, Format};
use polycast::progress::Progress;
use polycast::report;
use polycast::table::Table;
use polycast_lab::compare::{Stress, group_of, stress};
use polycast_types::format_bytes;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::PathBuf;

/// `polycast lab compare`
#[derive(Arguments, Debug)]
pub(super) struct CompareArgs {
    /// The lab, such as datacast:bcube:4,2 or bridge:8
    #[arg(value_name = "SPEC")]
    spec: Spec,
    /// The file to deliver
    #[arg(value_name = "FILE")]
    path: PathBuf,
    /// The ways to compare with: tcp, scp, rsync, nfs, bittorrent, single-tree
    #[arg(long, value_name = "WAY,WAY", value_delimiter = ',', required = true)]
    with: Vec<Way>,
    /// The host that sends, by name or number
    #[arg(long, value_name = "H", default_value = "h0")]
    source: String,
    /// The hosts that receive, by name or number
    #[arg(long, value_name = "all|A,B", default_value = "all", value_parser = receivers)]
    receivers: Receivers,
    /// Only the first so many of them, one number after the other, each in a lab of its own
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    counts: Vec<u32>,
    /// How often each way is taken, in turn
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// What breaks in each delivery, as for 'lab cast'
    #[arg(long = "fail", value_name = "WHAT@SECONDS")]
    failures: Vec<Broken>,
    #[command(flatten)]
    traffic: Traffic,
}

/// One delivery.
#[derive(Serialize, Clone, Debug)]
struct Row {
    way: Way,
    round: u32,
    /// From the start, when all ends are ready, to the last receiver's end.
    seconds: f64,
    /// From the request to the end.
    wall_s: f64,
    goodput_bps: f64,
    verified: bool,
    /// `None` where nothing crossed the network.
    stress: Option<Stress>,
    source_cpu_s: f64,
    /// Without the kernel's work in its time, which is that of the lab's switches, too.
    source_user_s: f64,
    /// Times as long as Polycast in this round.
    slower: Option<f64>,
    /// Bytes in the network, times those of Polycast in this round.
    network_ratio: Option<f64>,
    /// The paper's figures for `slower` and `network_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    paper: Option<Paper>,
}

/// Datacast, section 7: what other ways took in its BCube(4,2), in proportion to its own.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
struct Paper {
    slower: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    network_ratio: Option<f64>,
}

#[derive(Serialize)]
struct Comparison {
    lab: String,
    bytes: u64,
    source: String,
    receivers: Vec<String>,
    ideal_links: u64,
    setup_s: f64,
    runs: Vec<Row>,
}

fn paper(spec: &Spec, way: Way) -> Option<Paper> {
    if spec.network.kind() != "datacast" {
        return None;
    }
    match way {
        Way::Bittorrent => Some(Paper { slower: 2.3, network_ratio: Some(1.35) }),
        Way::SingleTree => Some(Paper { slower: 1.7, network_ratio: None }),
        Way::Polycast | Way::Tcp | Way::Scp | Way::Rsync | Way::Nfs => None,
    }
}

pub(super) fn run(args: &CompareArgs, format: Format) -> Result<Exit, Failure> {
    let mut ways = vec![Way::Polycast];
    for way in &args.with {
        way.check(&args.spec).map_err(failed)?;
        if !ways.contains(way) {
            ways.push(*way);
        }
    }
    let options = options_of(&args.path, &args.source, &args.receivers, &args.failures, &args.traffic)?;
    let all = group_of(&args.spec, &args.source, options.receivers.as_deref()).map_err(failed)?.receivers;
    registry::check(&args.spec).map_err(failed)?;
    if let Some(count) = args.counts.iter().find(|count| **count as usize > all.len()) {
        return Err(Failure::input(format!("{count} hosts cannot receive: {} are named", all.len())));
    }
    let first = |count: &u32| all[..*count as usize].to_vec();
    let groups: Vec<Vec<String>> = match args.counts.is_empty() {
        true => vec![all.clone()],
        false => args.counts.iter().map(first).collect(),
    };
    let (mut documents, mut text, mut said) = (Vec::new(), String::new(), String::new());
    for receivers in groups {
        let options = CastOptions { receivers: Some(receivers), ..options.clone() };
        let (comparison, heard) = compare_in_one(args, &options, &ways)?;
        text.push_str(&text_of(&comparison));
        said.push_str(&heard);
        documents.push(comparison);
    }
    match &documents[..] {
        [one] if args.counts.is_empty() => output::result(format, one, &text)?,
        several => output::result(format, &several, &text)?,
    }
    say_notes(&said, format);
    let verified = documents.iter().flat_map(|comparison| &comparison.runs).all(|row| row.verified);
    Ok(if verified { Exit::Done } else { Exit::Failed })
}

/// Delivers to one group by all ways, in one lab; gives what the deliveries said, too.
fn compare_in_one(
    args: &CompareArgs,
    options: &CastOptions,
    ways: &[Way],
) -> Result<(Comparison, String), Failure> {
    let group = group_of(&args.spec, &args.source, options.receivers.as_deref()).map_err(failed)?;
    let progress = Progress::start(&format!("delivering in {}", args.spec));
    let mut heard = |done: &registry::Compared| {
        progress.waiting(&format!("{} took {}; going on", done.way, report::seconds(done.outcome.wall_s)));
    };
    let outcome = registry::compare(&args.spec, options, ways, args.rounds, &program()?, &mut heard);
    progress.finish();
    let (compared, setup_s) = outcome.map_err(failed)?;
    let mut rows: Vec<Row> = Vec::new();
    let mut bytes = 0;
    for done in &compared {
        let delivery = delivery_of(&done.outcome)?;
        let told = &delivery.report;
        bytes = told.bytes;
        for receiver in told.receivers.iter().filter(|receiver| !receiver.verified) {
            let why = report::why(receiver);
            output::say(&format!("error: {}: {} failed: {why}", done.way, receiver.name));
        }
        let mut row = Row {
            way: done.way,
            round: done.round,
            seconds: told.seconds,
            wall_s: done.outcome.wall_s,
            goodput_bps: delivery.goodput_bps,
            verified: told.receivers.iter().all(|receiver| receiver.verified),
            stress: stress(&args.spec, &group.source, group.ideal_links, told.bytes, &done.outcome.links),
            source_cpu_s: done.outcome.source_cpu.total_s(),
            source_user_s: done.outcome.source_cpu.user_s,
            slower: None,
            network_ratio: None,
            paper: paper(&args.spec, done.way),
        };
        if let Some(ours) = rows.iter().find(|ours| ours.way == Way::Polycast && ours.round == row.round) {
            row.slower = Some(row.seconds / ours.seconds);
            let network = |row: &Row| row.stress.as_ref().map(|stress| stress.network_bytes as f64);
            row.network_ratio = network(&row).zip(network(ours)).map(|(theirs, ours)| theirs / ours);
        }
        rows.push(row);
    }
    let said = compared.iter().map(|done| done.outcome.said.as_str()).collect();
    let comparison = Comparison {
        lab: args.spec.to_string(),
        bytes,
        source: group.source,
        receivers: group.receivers,
        ideal_links: group.ideal_links,
        setup_s,
        runs: rows,
    };
    Ok((comparison, said))
}

fn text_of(comparison: &Comparison) -> String {
    let Comparison { receivers, runs, bytes, setup_s, ideal_links, .. } = comparison;
    let mut text = format!(
        "{} to {} over {ideal_links} links of an ideal tree; lab set up in {}\n",
        format_bytes(*bytes),
        output::counted(receivers.len(), "receiver"),
        report::seconds(*setup_s),
    );
    let heads = ["way", ">finish", ">in all", ">slower", ">source", ">network", ">CPU", ">busiest", "link"];
    let mut table = Table::new(&heads);
    let mut papers = String::new();
    for row in runs {
        let times = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
        let stress = row.stress.as_ref();
        let stressed = |of: fn(&Stress) -> f64| {
            stress.map_or_else(|| "-".to_string(), |stress| format!("{:.3}", of(stress)))
        };
        table.row([
            if row.verified { row.way.to_string() } else { format!("{} FAILED", row.way) },
            report::seconds(row.seconds),
            report::seconds(row.wall_s),
            times(row.slower),
            stressed(|stress| stress.source),
            stressed(|stress| stress.network),
            report::seconds(row.source_cpu_s),
            stressed(|stress| stress.link),
            stress.map_or_else(String::new, |s| format!("{}-{}", s.busiest.from, s.busiest.to)),
        ]);
        if let Some(paper) = row.paper {
            // Writing to a string cannot fail.
            let _ = write!(papers, "{} in the paper: {} times as long", row.way, paper.slower);
            if let Some(ratio) = paper.network_ratio {
                let _ = write!(papers, ", {ratio} times the bytes; here {}", times(row.network_ratio));
            }
            papers.push('\n');
        }
    }
    text += &table.text();
    text += "source, busiest: bytes there over the object's; network: over those of an ideal multicast\n";
    text + &papers
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_lab::LinkBytes;

    #[test]
    fn the_comparison_fits_a_terminal_of_80_columns() {
        let stress = Stress {
            link: 3.009,
            busiest: LinkBytes { from: "h0".into(), to: "switch".into(), bytes: 90_270_000 },
            source: 3.009,
            network: 1.506,
            network_bytes: 180_720_000,
        };
        let row = |way, verified| Row {
            way,
            round: 1,
            seconds: 9.99,
            wall_s: 123.4,
            goodput_bps: 1e9,
            verified,
            stress: Some(stress.clone()),
            source_cpu_s: 0.08,
            source_user_s: 0.04,
            slower: Some(12.34),
            network_ratio: Some(1.45),
            paper: None,
        };
        let comparison = Comparison {
            lab: "bridge:4".into(),
            bytes: 30_000_000,
            source: "h0".into(),
            receivers: vec!["h1".into(), "h2".into(), "h3".into()],
            ideal_links: 4,
            setup_s: 1.63,
            runs: vec![row(Way::Polycast, true), row(Way::Tcp, true)],
        };
        let text = text_of(&comparison);
        let table: Vec<&str> = text.lines().skip(1).take(3).collect();
        assert!(table.iter().all(|line| line.len() <= 80), "{text}");
        assert!(table[2].starts_with("tcp ") && table[2].ends_with("h0-switch"), "{text}");
        let failed = Comparison { runs: vec![row(Way::Tcp, false)], ..comparison };
        assert!(text_of(&failed).contains("tcp FAILED"));
    }
}
