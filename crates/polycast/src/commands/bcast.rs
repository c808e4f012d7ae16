//! `polycast bcast`: a file to the nodes of a Slurm job.
//!
//! One job step starts this program on each node, and its standard input carries the code. Then all run
//! `polycast accept`, or `polycast get` where agents have delivered.

#[cfg(feature = "cluster")]
mod agents;
mod jobs;
mod libraries;
mod step;

use super::ends::{self, Delivered, Offer};
use super::push::{self, Program};
use crate::args::bcast::{BcastArgs, Consent};
use crate::args::place::{ChoiceArgs, ReadArgs};
use crate::args::{Args, Command};
use crate::cancel;
use crate::exit::{Exit, Failure};
use crate::object::{self, Named, Reading};
use crate::output::{self, Format};
use crate::progress::Progress;
use clap::Parser;
use jobs::Job;
use libraries::Libraries;
use polycast_agent::transfer::OfferCode;
use polycast_api::error::Kind;
use polycast_types::Printable;
use std::path::{Path, PathBuf};
use std::time::Duration;
use step::{Means, Step, Target};

/// Time for nodes to begin, unless the user names another one.
const BEGIN_WITHIN_S: u32 = 60;

/// Delivers to the nodes.
pub(super) fn run(args: &BcastArgs, format: Format) -> Result<Exit, Failure> {
    if let Some(note) = args.ignored.note() {
        output::say(&format!("note: {note}"));
    }
    if args.no_allocation {
        return over_ssh(args, format);
    }
    if jobs::in_prolog() {
        return in_prolog(args, format);
    }
    if jobs::is_other_task() {
        output::say("task 0 of this step delivers it");
        return Ok(Exit::Done);
    }
    let _signals = cancel::on_signals()?;
    let (job, program) = (Job::find(args)?, Program::open(args.program.as_deref())?);
    let source = object_of(&args.source, false, None)?;
    let (mode, times) = step::look(&args.source, args.preserve)
        .map_err(|error| Failure::path("read", &args.source, &error))?;
    let set = jobs::Parameters::read();
    let dest = match set.folder.filter(|_| args.dest.is_relative()) {
        Some(folder) => folder.join(&args.dest),
        None => absolute(&args.dest)?,
    };
    let target = Target {
        path: dest.clone(),
        name: Some(source.name.clone()),
        force: args.force,
        mode: Some(mode),
        times,
    };
    let mut delivered = deliver(args, (&job, &program), source, &target)?;
    if args.send_libs.map_or(set.send_libs, |consent| consent == Consent::Yes)
        && delivered.0.report.receivers.iter().all(|receiver| receiver.verified)
    {
        let lacking = bring_libraries(args, (&job, &program), dest)?;
        for receiver in &mut delivered.0.report.receivers {
            if let Some((_, why)) = lacking.iter().find(|(node, _)| *node == receiver.name) {
                let why = format!("its libraries: {why}");
                *receiver = std::mem::take(receiver).failing(Some((Kind::TransferFailed, why)));
            }
        }
    }
    delivered.conclude(format)
}

/// Delivers the libraries of the program; gives the nodes that lack them, with the reasons.
fn bring_libraries(
    args: &BcastArgs,
    ends: (&Job, &Program),
    program: PathBuf,
) -> Result<Vec<(String, String)>, Failure> {
    let Some(found) = Libraries::of(&args.source, &jobs::excluded(args.exclude.as_deref()))? else {
        output::say("note: no library needs to be brought");
        return Ok(Vec::new());
    };
    // They lie beside the program, as sbcast puts them.
    let mut path = program.into_os_string();
    path.push("_libs");
    let target = Target { path: path.into(), name: None, force: args.force, mode: None, times: None };
    let Delivered(delivery, _) = deliver(args, ends, object_of(&found.0, true, Some("libs"))?, &target)?;
    let failed = delivery.report.receivers.into_iter().filter(|receiver| !receiver.verified);
    Ok(failed
        .map(|receiver| (receiver.name, receiver.error.unwrap_or_else(|| "they did not come".into())))
        .collect())
}

/// Other commands do a part of this one: they are called as if they were typed.
fn typed(words: &[&str]) -> Result<Command, Failure> {
    let words = ["polycast"].iter().chain(words);
    Args::try_parse_from(words)
        .map(|args| args.command)
        .map_err(|error| Failure::unexpected(error.to_string()))
}

fn text(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| Failure::input("the path is not text"))
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::path("find", path, &error))
}

fn object_of(path: &Path, follow: bool, name: Option<&str>) -> Result<Named, Failure> {
    let read = ReadArgs { follow, retry_changed: 0 };
    let name = name.map(str::to_string);
    object::open_chosen(
        &ChoiceArgs { paths: vec![path.to_path_buf()], exclude: Vec::new(), name, read },
        Reading::AsItIs,
    )
}

/// Without a job: what `polycast push` does.
fn over_ssh(args: &BcastArgs, format: Format) -> Result<Exit, Failure> {
    let target =
        format!("{}:{}", args.nodelist.as_deref().unwrap_or_default(), text(&absolute(&args.dest)?)?);
    let mut words = vec!["push", text(&args.source)?, &target];
    words.extend(args.force.then_some("--force"));
    if let Some(interface) = &args.network.interface {
        words.extend(["--interface", interface]);
    }
    if let Some(program) = &args.program {
        words.extend(["--program", text(program)?]);
    }
    match typed(&words)? {
        Command::Push(args) => push::run(&args, format),
        _ => Err(Failure::unexpected("push is another command")),
    }
}

/// In a Prolog: through the agent of each node, which does it for itself alone.
#[cfg(feature = "cluster")]
fn in_prolog(args: &BcastArgs, format: Format) -> Result<Exit, Failure> {
    agents::fetch(args, format)
}

#[cfg(not(feature = "cluster"))]
fn in_prolog(_: &BcastArgs, _: Format) -> Result<Exit, Failure> {
    Err(Failure::input("in a Prolog the file comes through an agent, which this build lacks"))
}

/// Delivers one object: through agents where each node has one, or else by an offer.
fn deliver(
    args: &BcastArgs,
    (job, program): (&Job, &Program),
    object: Named,
    target: &Target,
) -> Result<Delivered, Failure> {
    let within = Duration::from_secs(args.timeout.unwrap_or(BEGIN_WITHIN_S).into());
    #[cfg(feature = "cluster")]
    if target.name.is_some() && agents::are_there(args, job) {
        return agents::deliver(args, (job, program), (target, within));
    }
    let interface = job.interface(args)?;
    let progress = Progress::start(&format!("starting {}", output::counted(job.nodes.len(), "node")));
    let step = Step::open(job, (program, target, &Means::Accept), within);
    progress.finish();
    let mut step = step?;
    let failures = step.failures();
    if failures.len() == job.nodes.len() {
        return Err(none_began(&failures));
    }
    let (code, mut port) = (OfferCode::drawn(), None);
    let offer = Offer { interface: &interface, rate: None, port: None, again: false, code: &code };
    let delivered = ends::deliver(&offer, object, &job.nodes, (&mut step, &failures), &mut port)?;
    Ok(with_the_last_word(delivered, &mut step))
}

/// Nodes that have every byte and cannot keep it, or not with its mode, have failed.
fn with_the_last_word(Delivered(mut delivery, copies): Delivered, step: &mut Step) -> Delivered {
    for receiver in &mut delivery.report.receivers {
        if let (true, Err(why)) = (receiver.verified, ends::Ends::end(step, &receiver.name)) {
            *receiver = std::mem::take(receiver).failing(Some((Kind::TransferFailed, why)));
        }
    }
    Delivered(delivery, copies)
}

fn none_began(failures: &[(String, String)]) -> Failure {
    let (node, why) = &failures[0];
    let message = format!(
        "none of {} began: {}: {}",
        output::counted(failures.len(), "node"),
        Printable(node),
        Printable(why)
    );
    Failure::of(Kind::ReceiverUnknown, message)
}
