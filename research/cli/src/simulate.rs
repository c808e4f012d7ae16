//! `polycast simulate`: transfers at packet level, in virtual time, or the same ones with other values of
//! some keys.

mod rows;
mod series;
mod sweep;

use std::fmt::Write as _;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use polycast_api::settings;
use polycast_experiments::scenario::{self, ScenarioError};
use polycast_simulator::packet::scenario::{
    Change, Layout, LinkReport, Probe, Report, Scenario, TransferPlan, TransferReport,
};
use polycast_types::{Duration, Time, format_bytes, format_rate};
use serde_json::{Value, json};

use self::rows::Rows;
use self::series::Series;
use self::sweep::{Choice, Sweep};
use super::plan::names;
use polycast::exit::{Exit, Failure};
use polycast::output::{self, Format};
use polycast::report::seconds;
use polycast::table::Table;

/// The most links in each of the tables for people.
const LINKS_SHOWN: usize = 8;

/// `polycast simulate`
#[derive(Args, Clone, Debug)]
pub(crate) struct SimulateArgs {
    /// The scenario
    #[arg(value_name = "SCENARIO.toml")]
    pub scenario: PathBuf,
    /// In place of the scenario's seed
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Write what each receiver has, and what each link has carried, queued and dropped, at every interval
    #[arg(long, value_name = "FILE.csv", conflicts_with = "sweep")]
    pub series: Option<PathBuf>,
    /// Virtual time between two samples of --series
    #[arg(long, value_name = "TIME", default_value = "1ms", requires = "series", value_parser = interval)]
    pub interval: Duration,
    /// Run it once for each of these values of a key of the scenario; several --sweep give each value with
    /// each
    #[arg(long, value_name = "KEY=V1,V2")]
    pub sweep: Vec<Sweep>,
    /// Write the table of a sweep as CSV too
    #[arg(long, short, value_name = "FILE.csv", requires = "sweep")]
    pub out: Option<PathBuf>,
}

fn interval(text: &str) -> Result<Duration, String> {
    match scenario::parse_span(text)? {
        Duration::ZERO => Err("write a time above zero, such as 1ms".into()),
        span => Ok(span),
    }
}

/// A run that is over.
struct Run {
    report: Report,
    layout: Layout,
    /// Time that each transfer's bytes alone take on the source's link, or over its trees.
    ideals_s: Vec<f64>,
    seed: u64,
    wall_s: f64,
}

/// Reads the scenario, runs it and prints what it has shown.
pub(crate) fn run(args: &SimulateArgs, format: Format) -> Result<Exit, Failure> {
    let path = &args.scenario;
    let text = settings::read_text(path).map_err(|error| Failure::path("read", path, &error))?;
    if !args.sweep.is_empty() {
        return run_sweep(args, &text, format);
    }
    let named = |error: ScenarioError| match error {
        ScenarioError::Read { path, error } => Failure::path("read", &path, &error),
        line => Failure::input(format!("{} {line}", path.display())),
    };
    let scenario = scenario::parse(&text).map_err(named)?;
    let seed = args.seed.unwrap_or(scenario.seed);
    let mut series = match &args.series {
        Some(path) => Some(Series::new(BufWriter::new(create(path)?))),
        None => None,
    };
    let mut look = |sample: &_| series.iter_mut().for_each(|series| series.add(sample));
    let probe = args.series.as_ref().map(|_| Probe::new(args.interval, &mut look));
    let begun = Instant::now();
    let report =
        scenario.run_with(seed, probe).map_err(|problem| named(scenario::locate(&text, &problem)))?;
    let run = finish(&scenario, report, seed, begun)?;
    if let (Some(series), Some(path)) = (series, &args.series) {
        series.end().map_err(|error| Failure::path("write", path, &error))?;
    }
    output::result(format, &run.document(), &run.people())?;
    Ok(run.exit())
}

fn create(path: &Path) -> Result<std::fs::File, Failure> {
    std::fs::File::create(path).map_err(|error| Failure::path("create", path, &error))
}

fn finish(scenario: &Scenario, report: Report, seed: u64, begun: Instant) -> Result<Run, Failure> {
    if let Some(breach) = report.breaches.first() {
        return Err(Failure::unexpected(format!("seed {seed}: {breach}")));
    }
    let transfers = scenario.transfers.iter().zip(&report.transfers);
    let ideals_s = transfers.map(|(plan, told)| match told.trees {
        Some(trees) => trees.rate.time_for(plan.bytes).as_secs_f64(),
        None => ideal_s(scenario, plan),
    });
    let ideals_s = ideals_s.collect();
    Ok(Run { report, layout: scenario.layout, ideals_s, seed, wall_s: begun.elapsed().as_secs_f64() })
}

/// Returns the time that the bytes of a transfer alone take on the source's link, the fastest where it has
/// several.
fn ideal_s(scenario: &Scenario, plan: &TransferPlan) -> f64 {
    let of_source =
        |change: &&Change| change.from == plan.source || (change.to == plan.source && !change.one_way);
    let own = scenario.changes.iter().filter(of_source).map(|change| change.config.rate);
    let usual = (!matches!(scenario.layout, Layout::Nodes(_))).then_some(scenario.links.rate);
    let rate = own.chain(usual).max().unwrap_or(scenario.links.rate);
    rate.time_for(plan.bytes).as_secs_f64()
}

/// Runs the scenario with each choice of values.
fn run_sweep(args: &SimulateArgs, text: &str, format: Format) -> Result<Exit, Failure> {
    let path = args.scenario.display();
    if args.seed.is_some() && args.sweep.iter().any(|sweep| sweep.key == "seed") {
        return Err(Failure::input("--seed and --sweep seed both choose the seed: leave one out"));
    }
    let table: toml::Table = match toml::from_str(text) {
        Ok(table) => table,
        Err(error) => {
            let line = scenario::parse(text).err().map_or(error.to_string(), |error| error.to_string());
            return Err(Failure::input(format!("{path} {line}")));
        }
    };
    let choices = sweep::choices(&args.sweep)?;
    let mut rows = Rows::new(args, &choices, format)?;
    for (number, choice) in (1..).zip(&choices) {
        let named = |why: String| Failure::input(format!("{path} with {}: {why}", sweep::describe(choice)));
        // Lines are counted in the text that was put together, and are no lines of a file.
        let plain = |error: ScenarioError| match error {
            ScenarioError::Line { message, .. } => named(message),
            other => named(other.to_string()),
        };
        output::say(&format!("run {number} of {}: {}", choices.len(), sweep::describe(choice)));
        let text = sweep::apply(&table, choice).map_err(named)?;
        let scenario = scenario::parse(&text).map_err(plain)?;
        let seed = args.seed.unwrap_or(scenario.seed);
        let begun = Instant::now();
        let report = scenario.run(seed).map_err(|problem| named(problem.to_string()))?;
        rows.add(choice, &finish(&scenario, report, seed, begun)?)?;
    }
    rows.end()
}

fn since_start(at: Time) -> f64 {
    at.since(Time::ZERO).as_secs_f64()
}

impl Run {
    fn exit(&self) -> Exit {
        if self.report.finished_at.is_some() { Exit::Done } else { Exit::Failed }
    }

    fn done(&self) -> usize {
        self.report.receivers.iter().filter(|receiver| receiver.finished_at.is_some()).count()
    }

    fn first_and_last(&self) -> (Option<Time>, Option<Time>) {
        let times = || self.report.receivers.iter().filter_map(|receiver| receiver.finished_at);
        (times().min(), times().max())
    }

    fn name(&self, node: u32) -> String {
        match &self.layout {
            Layout::Topology(network) => names::node(network, node),
            Layout::Shufflecast { fabric, hosts_per_tor } => {
                let (hosts, tors) = (fabric.tors() * hosts_per_tor, fabric.tors());
                match node.checked_sub(hosts) {
                    None => format!("h{node}"),
                    Some(tor) if tor < tors => format!("tor{tor}"),
                    Some(at) if at < 2 * tors => format!("splitter{}", at - tors),
                    Some(_) => "switch".into(),
                }
            }
            Layout::Blast { racks, hosts_per_rack } => {
                let hosts = racks * hosts_per_rack;
                match node.checked_sub(hosts) {
                    None => format!("h{node}"),
                    Some(tor) if tor < *racks => format!("tor{tor}"),
                    Some(at) if at == *racks => "circuits".into(),
                    Some(_) => "switch".into(),
                }
            }
            Layout::Nodes(_) => format!("n{node}"),
        }
    }

    /// The document of a run of a sweep.
    fn of(&self, choice: &Choice) -> Value {
        let mut document = self.document();
        let values = choice.iter().map(|(key, value)| (key.clone(), value.as_str().into()));
        document["sweep"] = Value::Object(values.collect());
        document
    }

    fn document(&self) -> Value {
        let report = &self.report;
        let receivers: Vec<Value> = report
            .receivers
            .iter()
            .map(|receiver| {
                let finish_s = receiver.finished_at.map(since_start);
                let mut document =
                    json!({ "transfer": receiver.transfer, "id": receiver.id, "finish_s": finish_s });
                if let Some(failure) = &receiver.failure {
                    document["failure"] = failure.as_str().into();
                }
                document
            })
            .collect();
        let link = |link: &LinkReport| {
            json!({
                "from": link.from,
                "to": link.to,
                "bytes": link.bytes,
                "drops": link.drops(),
                "queue_drops": link.queue_drops,
                "losses": link.losses,
                "down_drops": link.down_drops,
                "queue_peak_bytes": link.queue_peak_bytes,
            })
        };
        let transfer = |(transfer, ideal_s): (&TransferReport, &f64)| {
            json!({
                "ideal_s": ideal_s,
                "source": transfer.source,
                "start_s": since_start(transfer.started_at),
                "finish_s": transfer.finished_at.map(since_start),
            })
        };
        json!({
            "finish_s": report.finished_at.map(since_start),
            "transfers": report.transfers.iter().zip(&self.ideals_s).map(transfer).collect::<Vec<_>>(),
            "receivers": receivers,
            "bytes_on_links": report.bytes_on_links,
            "links": report.links.iter().map(link).collect::<Vec<_>>(),
            "drops": report.drops,
            "duplicates": report.duplicates,
            "events": report.events,
            "packet_hops": report.packet_hops,
            "trace_hash": format!("{:016x}", report.trace_hash),
            "seed": self.seed,
            "wall_s": self.wall_s,
        })
    }

    fn people(&self) -> String {
        let report = &self.report;
        let mut text = format!("{} of {} receivers have the object\n", self.done(), report.receivers.len());
        if let (Some(first), Some(last)) = self.first_and_last() {
            let span = |at: Time| seconds(since_start(at));
            let _ = writeln!(text, "the first after {}, the last after {}", span(first), span(last));
        }
        match self.ideals_s.as_slice() {
            [ideal_s] => {
                let over = match report.transfers[0].trees {
                    Some(trees) if trees.count > 1 => format!("over its {} trees at once", trees.count),
                    Some(_) => "over its tree".to_string(),
                    None => "on the source's link".to_string(),
                };
                let _ = writeln!(text, "the ideal is {}: the bytes alone, {over}", seconds(*ideal_s));
            }
            _ => text += &self.transfers(),
        }
        for receiver in report.receivers.iter().filter(|receiver| receiver.failure.is_some()) {
            let failure = receiver.failure.as_deref().unwrap_or_default();
            let transfer = match report.transfers.len() {
                1 => String::new(),
                _ => format!(" of transfer {}", receiver.transfer),
            };
            let _ = writeln!(text, "{}{transfer}: {failure}", self.name(receiver.id));
        }
        let (bytes, drops, duplicates) = (report.bytes_on_links, report.drops, report.duplicates);
        let _ = writeln!(
            text,
            "{} on {} links, {drops} packets dropped, {duplicates} duplicates",
            format_bytes(bytes),
            report.links.len()
        );
        let wall = seconds(self.wall_s);
        let _ = writeln!(text, "{} events in {wall}; trace {:016x}", report.events, report.trace_hash);
        text + &self.busiest() + &self.dropping()
    }

    /// The transfers side by side.
    fn transfers(&self) -> String {
        let report = &self.report;
        let mut table =
            Table::new(&[">transfer", "source", ">have it", ">began", ">last", ">took", ">ideal"]);
        for ((transfer, ideal_s), number) in report.transfers.iter().zip(&self.ideals_s).zip(0u32..) {
            let of = || report.receivers.iter().filter(|receiver| receiver.transfer == number);
            let done = of().filter(|receiver| receiver.finished_at.is_some()).count();
            let last = transfer.finished_at;
            let span = |at: Option<f64>| at.map_or("-".into(), seconds);
            table.row([
                number.to_string(),
                self.name(transfer.source),
                format!("{done} of {}", of().count()),
                seconds(since_start(transfer.started_at)),
                span(last.map(since_start)),
                span(last.map(|at| at.since(transfer.started_at).as_secs_f64())),
                seconds(*ideal_s),
            ]);
        }
        format!("\n{}\n", table.text())
    }

    /// The links that have carried most.
    fn busiest(&self) -> String {
        let mut links: Vec<&LinkReport> = self.report.links.iter().collect();
        links.sort_by_key(|link| std::cmp::Reverse(link.bytes));
        let mut table =
            Table::new(&["from", "to", ">carried", ">mean rate", ">fullest queue", ">dropped"]).named_by(2);
        let ran_s = since_start(self.report.ended_at);
        for link in links.iter().take(LINKS_SHOWN) {
            let rate_bps = if ran_s > 0.0 { link.bytes as f64 * 8.0 / ran_s } else { 0.0 };
            table.row([
                self.name(link.from),
                self.name(link.to),
                format_bytes(link.bytes),
                format_rate(rate_bps),
                format_bytes(link.queue_peak_bytes),
                link.drops().to_string(),
            ]);
        }
        format!("\nBusiest links\n{}", table.text())
    }

    /// The links that have dropped most.
    fn dropping(&self) -> String {
        let mut links: Vec<&LinkReport> = self.report.links.iter().filter(|link| link.drops() > 0).collect();
        let on_links: u64 = links.iter().map(|link| link.drops()).sum();
        let elsewhere = self.report.drops - on_links;
        let mut text = String::new();
        if !links.is_empty() {
            let _ = writeln!(text, "\nLinks that dropped packets: {}", links.len());
        }
        links.sort_by_key(|link| std::cmp::Reverse(link.drops()));
        let mut table =
            Table::new(&["from", "to", ">dropped", ">queue full", ">lost", ">link down"]).named_by(2);
        for link in links.iter().take(LINKS_SHOWN) {
            let counts = [link.drops(), link.queue_drops, link.losses, link.down_drops];
            let mut cells = vec![self.name(link.from), self.name(link.to)];
            cells.extend(counts.iter().map(u64::to_string));
            table.row(cells);
        }
        if !table.is_empty() {
            text += &table.text();
        }
        if elsewhere > 0 {
            let _ = writeln!(text, "{elsewhere} were dropped in receivers' sockets and optical switches");
        }
        text
    }
}
