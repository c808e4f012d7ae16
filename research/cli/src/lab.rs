//! `polycast lab`: a data center on this machine, with real daemons, switches and devices.

mod compare;
mod soak;

use crate::args::help;
use clap::{Args as Arguments, Subcommand};
use polycast::exit::{Exit, Failure};
use polycast::object;
use polycast::output::{self, Format};
use polycast::progress::Progress;
use polycast::report::{self, Copies};
use polycast_api::report::{ControlStep, Delivery, Report};
use polycast_lab::compare::Way;
use polycast_lab::failure::Failure as Broken;
use polycast_lab::light;
use polycast_lab::ocs::{self, OcsOptions};
use polycast_lab::spec::Spec;
use polycast_lab::traffic::{Flow, Readings};
use polycast_lab::{CastOptions, CastOutcome, Join, LabError, LinkBytes, NoReport, registry, supervisor};
use polycast_net::devices::circuits::dialect as dialect_of;
use polycast_types::{format_bytes, format_rate};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `polycast lab`
#[derive(Arguments, Debug)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand, Debug)]
enum LabCommand {
    /// Bring a lab up, deliver in it, and take it down
    #[command(after_long_help = help::LAB_CAST_MORE)]
    Cast(CastArgs),
    /// Deliver the same by several ways, one after the other, and compare what they cost
    #[command(after_long_help = help::LAB_COMPARE_MORE)]
    Compare(compare::CompareArgs),
    /// Deliver something small many times, and look at what that leaves behind
    Soak(soak::SoakArgs),
    /// Bring a lab up and leave it running
    Up(UpArgs),
    /// List the labs that run
    List,
    /// Run a command on a host of a lab
    #[command(after_long_help = help::LAB_EXEC_MORE)]
    Exec(ExecArgs),
    /// Take a lab down, and everything in it
    Down(DownArgs),
    /// The process in which a lab lives
    #[command(hide = true)]
    Supervise {
        /// Its folder
        folder: PathBuf,
        /// Its specification
        spec: Spec,
    },
    /// A device of a lab
    #[command(hide = true)]
    Device(DeviceArgs),
}

/// `polycast lab cast`
#[derive(Arguments, Debug)]
struct CastArgs {
    /// The lab, such as bridge:8 or blast:racks=8,hosts=2
    #[arg(value_name = "SPEC")]
    spec: Spec,
    /// The file or directory to deliver
    #[arg(value_name = "FILE|DIR")]
    path: PathBuf,
    /// The host that sends, by name or number
    #[arg(long, value_name = "H", default_value = "h0")]
    source: String,
    /// The hosts that receive, by name or number
    #[arg(long, value_name = "all|A,B", default_value = "all", value_parser = receivers)]
    receivers: Receivers,
    /// What breaks, and how many seconds after the transfer was asked for (0: just before): agent:h3@2.5,
    /// link:tor1@1, manager@0.5, ocs:refuse@0, ocs:late=500@0, ocs:hangup@0, ocs:lie@0, ocs:dark@0,
    /// ocs:dark=5@0, link:s19-h14@2, rate:s23-h11=20mbit@0, rack-agent:h4@1, silent:core2@1
    #[arg(long = "fail", value_name = "WHAT@SECONDS")]
    failures: Vec<Broken>,
    /// A host that becomes a receiver while the transfer runs: h9@1.5
    #[arg(long = "join", value_name = "HOST@SECONDS")]
    joins: Vec<Join>,
    #[command(flatten)]
    traffic: Traffic,
}

/// Traffic and readings beside a delivery.
#[derive(Arguments, Clone, Debug)]
struct Traffic {
    /// A TCP connection between two hosts meanwhile, in seconds after the transfer was asked for, and how
    /// many bytes it may have on its way: h8-h7@2..6=64KiB
    #[arg(long = "flow", value_name = "FROM-TO@BEGIN..END[=WINDOW]")]
    flows: Vec<Flow>,
    /// Read the rates of the source's links and of the flows so often
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(10..=60_000))]
    sample: Option<u32>,
}

#[derive(Clone, Debug)]
enum Receivers {
    All,
    Named(Vec<String>),
}

fn receivers(text: &str) -> Result<Receivers, String> {
    if text == "all" {
        return Ok(Receivers::All);
    }
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_string()).collect();
    if names.iter().any(String::is_empty) {
        return Err("write hosts with commas between them, or all".into());
    }
    Ok(Receivers::Named(names))
}

#[derive(Arguments, Debug)]
struct UpArgs {
    /// The lab, such as bridge:8 or blast:racks=8,hosts=2
    #[arg(value_name = "SPEC")]
    spec: Spec,
    /// Its name [default: its kind]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

#[derive(Arguments, Debug)]
struct ExecArgs {
    /// The lab
    #[arg(value_name = "NAME")]
    name: String,
    /// The host: h0, h1 and so on, manager, tor0, optics, or network for the packet core
    #[arg(value_name = "HOST")]
    host: String,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, last = true)]
    command: Vec<String>,
}

#[derive(Arguments, Debug)]
#[group(required = true, multiple = false)]
struct DownArgs {
    /// The lab
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// All labs
    #[arg(long)]
    all: bool,
}

#[derive(Arguments, Debug)]
struct DeviceArgs {
    #[command(subcommand)]
    device: Device,
}

#[derive(Subcommand, Debug)]
enum Device {
    /// An optical circuit switch between the interfaces p1, p2 and so on of this namespace
    Ocs {
        /// Where it listens for its managers
        #[arg(long, value_name = "ADDR")]
        listen: SocketAddr,
        /// Its ports
        #[arg(long, value_name = "N")]
        ports: u32,
        /// What it speaks, by its name in the settings
        #[arg(long, value_name = "NAME", default_value = "glimmerglass")]
        dialect: String,
        /// The user who may manage it; without this every client may
        #[arg(long, value_name = "USER:PASSWORD")]
        login: Option<String>,
        /// How long a circuit takes, in milliseconds
        #[arg(long, value_name = "MS", default_value = "25")]
        circuit_ms: u64,
        /// The lab whose ports have light only where there is some
        #[arg(long, value_name = "SPEC")]
        light: Option<Spec>,
    },
    /// Tells the ports of a lab without a circuit switch whether they have light, in the namespace of the
    /// optics
    Light {
        /// The lab
        spec: Spec,
    },
}

/// The failure of a command whose lab has failed so.
pub(crate) fn failed(error: LabError) -> Failure {
    match error {
        LabError::System { .. } => Failure::unexpected(error.to_string()),
        _ => Failure::input(error.to_string()),
    }
}

/// Report of `lab cast`.
#[derive(Serialize)]
struct LabDelivery {
    #[serde(flatten)]
    delivery: Delivery,
    lab: String,
    setup_s: f64,
    links: Vec<LinkBytes>,
    control: Vec<ControlStep>,
    #[serde(skip_serializing_if = "Value::is_null")]
    nodes: Value,
    wall_s: f64,
    source_cpu_s: f64,
    source_user_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    readings: Option<Readings>,
}

/// Runs a command of the lab.
pub(crate) fn run(args: &LabArgs, format: Format) -> Result<Exit, Failure> {
    match &args.command {
        LabCommand::Cast(args) => cast(args, format),
        LabCommand::Compare(args) => compare::run(args, format),
        LabCommand::Soak(args) => soak::run(args, format),
        LabCommand::Up(args) => up(args, format),
        LabCommand::List => list(format),
        LabCommand::Exec(args) => exec(args),
        LabCommand::Down(args) => down(args, format),
        LabCommand::Supervise { folder, spec } => supervisor::run(folder, spec, &program()?),
        LabCommand::Device(args) => device(&args.device, format),
    }
}

/// This program, for the daemons of a lab.
fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::unexpected(format!("cannot find this program: {error}")))
}

/// Returns the options of a delivery, once it is sure that its object can be read.
fn options_of(
    path: &Path,
    source: &str,
    receivers: &Receivers,
    failures: &[Broken],
    traffic: &Traffic,
) -> Result<CastOptions, Failure> {
    drop(object::open(path, false, object::Reading::InPlace)?);
    Ok(CastOptions {
        path: path.canonicalize().map_err(|error| Failure::path("read", path, &error))?,
        source: Some(source.to_string()),
        receivers: match receivers {
            Receivers::All => None,
            Receivers::Named(names) => Some(names.clone()),
        },
        failures: failures.to_vec(),
        way: Way::Polycast,
        joins: Vec::new(),
        flows: traffic.flows.clone(),
        sample_ms: traffic.sample,
    })
}

/// Returns the report of `send`, if it delivered anything.
fn delivery_of(outcome: &CastOutcome) -> Result<&Delivery, Failure> {
    outcome.delivery.as_ref().map_err(|NoReport { error, hint }| {
        let failure = if outcome.exit == 1 { Failure::input(error) } else { Failure::unexpected(error) };
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })
}

fn cast(args: &CastArgs, format: Format) -> Result<Exit, Failure> {
    let mut options = options_of(&args.path, &args.source, &args.receivers, &args.failures, &args.traffic)?;
    options.joins.clone_from(&args.joins);
    registry::check(&args.spec).map_err(failed)?;
    let progress = Progress::start(&format!("delivering in {}", args.spec));
    let outcome = registry::cast(&args.spec, &options, &program()?);
    progress.finish();
    let (outcome, setup_s) = outcome.map_err(failed)?;
    let mut delivery = delivery_of(&outcome)?.clone();
    let CastOutcome { said, exit, links, control, nodes, source_cpu, readings, wall_s, .. } = outcome;
    let mut text = cast_text(&delivery, setup_s, &links, &control);
    // Times of receivers count from the start of the transfer, readings from the request.
    text.push_str(&rates_text(&delivery.report, &readings, (wall_s - delivery.report.seconds).max(0.0)));
    // They are among the lab's.
    delivery.report.control.clear();
    let verified = delivery.report.receivers.iter().all(|receiver| receiver.verified);
    let readings = (!readings.samples.is_empty()).then_some(readings);
    let document = LabDelivery {
        delivery,
        lab: args.spec.to_string(),
        setup_s,
        links,
        control,
        nodes,
        wall_s,
        source_cpu_s: source_cpu.total_s(),
        source_user_s: source_cpu.user_s,
        readings,
    };
    output::result(format, &document, &text)?;
    say_notes(&said, format);
    Ok(if exit == 0 && verified { Exit::Done } else { Exit::Failed })
}

/// Says what the lab's `send` has noted: progress to programs only, and nothing of what to type on receivers
/// that are gone with the lab.
fn say_notes(said: &str, format: Format) {
    notes(said, format).for_each(output::say);
}

fn notes(said: &str, format: Format) -> impl Iterator<Item = &str> {
    said.lines().filter(move |line| match line.starts_with("{\"event\":") {
        true => format == Format::Json,
        false => !(line.starts_with("on ") && line.contains(": polycast get ")),
    })
}

/// Describes the work of trees and flows, and their rates until each receiver ended.
fn rates_text(report: &Report, readings: &Readings, started_s: f64) -> String {
    let mut text = String::new();
    for tree in &report.trees {
        let percent = 100.0 * tree.duplicates as f64 / tree.interests.max(1) as f64;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "tree {}: {} in {} interests, {} of them duplicates ({percent:.2} %)",
            tree.tree,
            format_bytes(tree.sent_bytes),
            tree.interests,
            tree.duplicates
        );
    }
    let mut ends: Vec<(f64, &str)> = report.receivers.iter().map(|r| (r.seconds, r.name.as_str())).collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut from = started_s;
    let Some(last) = readings.samples.last().map(|sample| sample.at_s) else { return text };
    for (seconds, name) in ends {
        let until = (started_s + seconds).min(last);
        let Some((links, flows)) = readings.mean(from, until) else { continue };
        let of = |names: &[String], rates: Vec<u64>| {
            let each =
                names.iter().zip(rates).map(|(name, rate)| format!("{name} {}", format_rate(rate as f64)));
            each.collect::<Vec<_>>().join(", ")
        };
        let _ = write!(
            text,
            "until {name} was done at {}: to {}",
            report::seconds(seconds),
            of(&readings.links, links)
        );
        if !flows.is_empty() {
            let _ = write!(text, "; {}", of(&readings.flows, flows));
        }
        text.push('\n');
        from = until;
    }
    text
}

/// The report, and the cables that carried most.
fn cast_text(delivery: &Delivery, setup_s: f64, links: &[LinkBytes], control: &[ControlStep]) -> String {
    let bytes = delivery.report.bytes;
    let mut text = report::text(delivery, &Copies::new());
    let _ = writeln!(text, "set up in {}", report::seconds(setup_s));
    for ControlStep { step, micros } in control {
        let _ = writeln!(text, "  {:>9}  {step}", report::seconds(*micros as f64 / 1e6));
    }
    for link in links.iter().filter(|link| bytes > 0 && link.bytes > bytes / 2) {
        let (times, crossed) = (link.bytes as f64 / bytes as f64, format_bytes(link.bytes));
        let _ = writeln!(text, "  {} -> {}: {crossed} ({times:.2} times the object)", link.from, link.to);
    }
    text
}

fn up(args: &UpArgs, format: Format) -> Result<Exit, Failure> {
    let made = registry::up(args.name.as_deref(), &args.spec, &program()?).map_err(failed)?;
    let mut text = format!("{} is up after {}: {}\n", made.name, report::seconds(made.setup_s), made.spec);
    let _ = writeln!(text, "hosts {}", made.hosts.join(" "));
    let _ = writeln!(text, "try: polycast lab exec {} h0 -- polycast send FILE --to all", made.name);
    output::result(format, &made, &text)?;
    Ok(Exit::Done)
}

fn list(format: Format) -> Result<Exit, Failure> {
    let notes = registry::list().map_err(failed)?;
    let mut text = String::new();
    for note in &notes {
        let _ = writeln!(text, "{:20}  {:4} hosts  {}", note.name, note.hosts, note.spec);
    }
    let document: Vec<Value> = notes
        .iter()
        .map(|note| json!({ "name": note.name, "spec": note.spec, "hosts": note.hosts, "pid": note.pid }))
        .collect();
    output::result(format, &document, if text.is_empty() { "no labs" } else { &text })?;
    Ok(Exit::Done)
}

/// The command's own exit status, as far as ours can say it.
fn exec(args: &ExecArgs) -> Result<Exit, Failure> {
    let status = registry::exec(&args.name, &args.host, &args.command).map_err(failed)?;
    // The status of the command is more than our three.
    std::process::exit(status.code().unwrap_or(2))
}

fn down(args: &DownArgs, format: Format) -> Result<Exit, Failure> {
    let names = match &args.name {
        Some(name) => {
            registry::down(name).map_err(failed)?;
            vec![name.clone()]
        }
        None => registry::down_all().map_err(failed)?,
    };
    let text = if names.is_empty() { "no labs".into() } else { format!("{} down", names.join(", ")) };
    output::result(format, &json!({ "down": names }), &text)?;
    Ok(Exit::Done)
}

fn device(device: &Device, format: Format) -> Result<Exit, Failure> {
    match device {
        Device::Light { spec } => {
            light::run(spec, || {
                let document = json!({ "listening": format!("the light of {spec}") });
                let _ = output::result(format, &document, &format!("the light of {spec}"));
            })
            .map_err(failed)?;
            Ok(Exit::Done)
        }
        Device::Ocs { listen, ports, dialect, login, circuit_ms, light } => {
            let (listen, ports, circuit_time) = (*listen, *ports, Duration::from_millis(*circuit_ms));
            let dialect = dialect_of(dialect, ports).map_err(|error| Failure::input(error.to_string()))?;
            let login = match login.as_ref().map(|login| login.split_once(':')) {
                None => None,
                Some(Some((user, password))) => Some((user.to_string(), password.to_string())),
                Some(None) => return Err(Failure::input("--login must be USER:PASSWORD")),
            };
            ocs::run(
                OcsOptions { dialect, listen, ports, circuit_time, login, light: light.clone() },
                |address| {
                    // The program that started the device may not read it.
                    let document = json!({ "listening": address.to_string() });
                    let words = format!("circuit switch of {ports} ports at {address}");
                    let _ = output::result(format, &document, &words);
                },
            )
            .map_err(failed)?;
            Ok(Exit::Done)
        }
    }
}
