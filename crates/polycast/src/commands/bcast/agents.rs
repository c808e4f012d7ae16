//! Delivery through the agents of the job's nodes.

use super::jobs::Job;
use super::step::{self, Means, Step, Target};
use super::{absolute, none_began, text, typed, with_the_last_word};
use crate::args::bcast::BcastArgs;
use crate::args::{Command, cluster};
use crate::commands::cluster as commands;
use crate::commands::ends::{self, Delivered};
use crate::commands::push::Program;
use crate::exit::{Exit, Failure};
use crate::output::Format;
use polycast_api::report::ReceiverReport;
use std::time::Duration;

/// Words that name the agent's socket.
fn socket(args: &BcastArgs) -> Result<Vec<&str>, Failure> {
    match &args.local.socket {
        Some(socket) => Ok(vec!["--socket", text(socket)?]),
        None => Ok(Vec::new()),
    }
}

/// Gets the file through this node's agent: one of those that ask reads it.
pub(super) fn fetch(args: &BcastArgs, format: Format) -> Result<Exit, Failure> {
    let (mode, times) = step::look(&args.source, args.preserve)
        .map_err(|error| Failure::path("read", &args.source, &error))?;
    let (source, mut dest) = (absolute(&args.source)?, absolute(&args.dest)?);
    if let (true, Some(name)) = (dest.is_dir(), source.file_name()) {
        dest.push(name);
    }
    let url = format!("file://{}", text(&source)?);
    let mut words = vec!["fetch", &url, "--out", text(&dest)?];
    words.extend(args.force.then_some("--force"));
    words.extend(socket(args)?);
    let Command::Cluster(command) = typed(&words)? else {
        return Err(Failure::unexpected("fetch is another command"));
    };
    let exit = commands::run(&command, format)?;
    step::dress(&dest, mode, times.as_ref()).map_err(|error| Failure::path("change", &dest, &error))?;
    Ok(exit)
}

/// Returns true if there is an agent here, and one under the name of each node of the job.
pub(super) fn are_there(args: &BcastArgs, job: &Job) -> bool {
    let Ok(runtime) = commands::runtime() else { return false };
    let peers = runtime.block_on(async { Ok(commands::connect(&args.local).await?.status().await?.peers) });
    let Ok::<_, Failure>(peers) = peers else { return false };
    let is_known = |node: &String| peers.iter().any(|peer| peer.name == *node);
    let own = commands::own_name(&args.local);
    job.nodes.len() > 1
        && own.is_ok_and(|own| {
            job.nodes.iter().all(|node| *node == own || is_known(node)) && job.nodes.contains(&own)
        })
}

/// Sends the file to the other nodes, then lets each get it from its agent.
pub(super) fn deliver(
    args: &BcastArgs,
    (job, program): (&Job, &Program),
    (target, within): (&Target, Duration),
) -> Result<Delivered, Failure> {
    let own = commands::own_name(&args.local)?;
    let others: Vec<&str> = job.nodes.iter().map(String::as_str).filter(|node| *node != own).collect();
    let others = others.join(",");
    let mut words = vec!["send", text(&args.source)?, "--to", &others];
    words.extend(socket(args)?);
    let Command::Cluster(cluster::Command::Send(send)) = typed(&words)? else {
        return Err(Failure::unexpected("send is another command"));
    };
    let (id, mut delivery) = commands::sent(&send)?;
    delivery.report.receivers.push(ReceiverReport {
        name: own,
        fabric: "none".into(),
        verified: true,
        ..ReceiverReport::default()
    });
    let means = Means::Get(id.to_string());
    let mut step = Step::open(job, (program, target, &means), within)?;
    let failures = step.failures();
    if failures.len() == job.nodes.len() {
        return Err(none_began(&failures));
    }
    step.go();
    let delivered = ends::complete(delivery, &job.nodes, (&mut step, &failures));
    Ok(with_the_last_word(delivered, &mut step))
}
