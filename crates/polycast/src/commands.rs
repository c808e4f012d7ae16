//! One module a command: it calls the libraries and reports.

mod accept;
mod audit;
#[cfg(feature = "research")]
mod bench;
mod bytes;
mod cast;
mod cluster;
mod destination;
mod doctor;
mod fetch;
mod forwarder;
mod key;
#[cfg(feature = "research")]
pub(crate) mod lab;
mod labels;
mod manager_status;
mod manual;
mod meeting;
pub(crate) mod names;
pub(crate) mod network;
mod offer;
mod pin;
#[cfg(feature = "research")]
pub(crate) mod plan;
mod removal;
#[cfg(feature = "research")]
pub(crate) mod reproduce;
#[cfg(feature = "research")]
pub(crate) mod simulate;
pub(crate) mod spool;
pub(crate) mod stream;
mod token;
mod topic;

use crate::args::{Args, Command};
use crate::exit::{Exit, Failure};
use crate::logging;
use crate::output::{self, Format};
use polycast_agent::transfer::TransferError;

/// Below this the run-time itself cannot begin.
const FILES_MIN: u64 = 32;

/// Whether a program may open as many files as it needs to begin.
fn check_files() -> Result<(), Failure> {
    match rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        Some(files) if files < FILES_MIN => {
            let message = format!("a program may open {files} files here, and needs {FILES_MIN} to begin");
            Err(Failure::input(message).hint("allow more before it starts, as with: ulimit -n 1024"))
        }
        _ => Ok(()),
    }
}

/// Runs the command that was typed.
pub(crate) fn run(args: Args) -> Exit {
    let format = if args.json { Format::Json } else { Format::Text };
    if matches!(args.command, Command::Manager(_) | Command::Agent(_) | Command::Forwarder(_)) {
        // They run for months.
        polycast_net::heap::share_heaps();
    }
    output::begin(format, args.logging.quiet);
    let outcome =
        check_files().and_then(|()| logging::start(&args.logging)).and_then(|()| match &args.command {
            Command::Cast(args) => cast::run(args, format),
            Command::Offer(args) => offer::run(args, format),
            Command::Accept(args) => accept::run(args, format),
            Command::Manager(args) => cluster::manager(args, format),
            Command::Agent(args) => cluster::agent(args, format),
            Command::Forwarder(args) => forwarder::run(args, format),
            Command::LabelSwitch(args) => labels::switch(args, format),
            Command::RackAgent(args) => labels::rack_agent(args, format),
            Command::Send(args) => cluster::send(args, format),
            Command::Extend(args) => cluster::extend(args, format),
            Command::Withdraw(args) => cluster::withdraw(args, format),
            Command::Stream(args) => stream::run(args, format),
            #[cfg(feature = "research")]
            Command::Bench(args) => bench::run(args, format),
            Command::Get(args) => cluster::get(args, format),
            Command::Fetch(args) => fetch::run(args, format),
            Command::Publish(args) => topic::publish(args, format),
            Command::Subscribe(args) => topic::subscribe(args, format),
            Command::Ls(args) => cluster::ls(args, format),
            Command::Rm(args) => removal::rm(args, format),
            Command::Pin(args) => pin::run(args, true, format),
            Command::Unpin(args) => pin::run(args, false, format),
            Command::Status(args) if args.manager => manager_status::run(&args.local, format),
            Command::Status(args) => cluster::status(&args.local, format),
            Command::Drain(args) => manager_status::drain(args, false, format),
            Command::Undrain(args) => manager_status::drain(args, true, format),
            Command::Key(args) => key::run(&args.command, format),
            Command::Token(args) => token::run(&args.command, format),
            Command::Audit(args) => audit::run(&args.command, format),
            Command::Doctor(args) => doctor::run(args, format),
            Command::Completions(args) => manual::completions(args, format),
            Command::Man(args) => manual::man(args, format),
            #[cfg(feature = "research")]
            Command::Plan(args) => plan::run(args, format),
            #[cfg(feature = "research")]
            Command::Reproduce(args) => reproduce::run(args, format),
            #[cfg(feature = "research")]
            Command::Lab(args) => lab::run(args, format),
            #[cfg(feature = "research")]
            Command::Simulate(args) => simulate::run(args, format),
            #[cfg(not(feature = "research"))]
            Command::Absent(words) => Err(absent(words)),
        });
    outcome.unwrap_or_else(|failure| output::failure(format, &failure))
}

/// Commands of a build with the feature `research`.
#[cfg(not(feature = "research"))]
const RESEARCH: [&str; 5] = ["plan", "reproduce", "lab", "bench", "simulate"];

/// Says what a command needs that this build lacks.
#[cfg(not(feature = "research"))]
fn absent(words: &[std::ffi::OsString]) -> Failure {
    let name = words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    if RESEARCH.contains(&name.as_str()) {
        let hint = "build it with planners, simulator and lab: cargo build --release -p polycast";
        return Failure::input(format!("this build has no '{name}'")).hint(hint);
    }
    Failure::input(format!("there is no command '{name}'")).hint("polycast --help names those there are")
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::System(_) => Failure::unexpected(error.to_string()),
            _ => Failure::input(error.to_string()),
        }
    }
}
