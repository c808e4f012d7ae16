//! One module a command: it calls the libraries and reports.

mod accept;
mod bcast;
mod cast;
#[cfg(feature = "cluster")]
pub(crate) mod cluster;
pub(crate) mod code;
mod destination;
mod doctor;
pub(crate) mod elsewhere;
mod ends;
mod kept_code;
mod key;
mod meeting;
pub(crate) mod network;
mod offer;
#[cfg(feature = "pages")]
mod pages;
mod push;
pub(crate) mod spool;

use crate::Added;
use crate::args::{Args, Command, Typed};
use crate::exit::{Exit, Failure};
use crate::logging;
use crate::output;
use polycast_agent::transfer::TransferError;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Below this the run-time itself cannot begin.
const FILES_MIN: u64 = 32;

/// No more files than these are asked for.
const FILES_MAX: u64 = 1 << 20;

/// Asks for as many files as this user may have open: shells and services are given few at first. Gives how
/// many it may have; `None` is no limit.
fn allow_files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(FILES_MAX).min(FILES_MAX);
    if limit.current.is_none_or(|current| current >= most) {
        return limit.current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit }) {
        Ok(()) => Some(most),
        Err(_) => limit.current,
    }
}

/// Checks that a program may open as many files as it needs to begin.
fn check_files() -> Result<(), Failure> {
    match allow_files() {
        Some(files) if files < FILES_MIN => {
            let message = format!("a program may open {files} files here, and needs {FILES_MIN} to begin");
            Err(Failure::input(message).hint("allow more before it starts, as with: ulimit -n 1024"))
        }
        _ => Ok(()),
    }
}

/// Runs the command that was typed.
pub(crate) fn run(typed: Typed, added: Option<&Added>) -> Exit {
    let (told, is_daemon) = match &typed {
        Typed::Own(args) => (&args.told, args.command.is_daemon()),
        Typed::Added(told, _) => (told, false),
    };
    let format = told.format();
    output::begin(format, told.logging.quiet);
    let outcome =
        check_files().and_then(|()| logging::start(&told.logging, is_daemon)).and_then(|()| match &typed {
            Typed::Own(args) => own(args, added),
            Typed::Added(_, matches) => {
                let added = added.expect("a command that was added is of what was added");
                elsewhere::check_version().and_then(|()| (added.run)(matches, format))
            }
        });
    #[cfg(feature = "otel")]
    crate::otel::finish();
    outcome.unwrap_or_else(|failure| output::failure(format, &failure))
}

fn own(
    args: &Args,
    #[allow(unused_variables, reason = "pages alone need it")] added: Option<&Added>,
) -> Result<Exit, Failure> {
    let format = args.told.format();
    match &args.command {
        Command::Cast(args) => cast::run(args, format),
        Command::Offer(args) => offer::run(args, format),
        Command::Accept(args) => accept::run(args, format),
        Command::Push(args) => push::run(args, format),
        Command::Bcast(args) => bcast::run(args, format),
        #[cfg(feature = "cluster")]
        Command::Cluster(command) => cluster::run(command, format),
        Command::Doctor(args) => doctor::run(args, format),
        Command::Key(args) => key::run(&args.command, format),
        #[cfg(feature = "cluster")]
        Command::Admission(command) => cluster::admission(command, format),
        #[cfg(feature = "pages")]
        Command::Pages(command) => pages::run(command, added, format),
        Command::Elsewhere(command) => elsewhere::run(command.name()),
    }
}

/// Hint for a file that changes while it is sent.
const RETRY_HINT: &str = "--retry-changed 3 begins again by itself, three times at most";
/// Remedy where no offer was found.
const FIND_HINT: &str = "see that the offer still stands, that the code is the one that it shows, and that multicast passes between the two \
                         machines: otherwise accept CODE --from HOST";

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Self {
        let failure = Failure::of(error.kind(), error.to_string());
        match error {
            TransferError::Changed(_) => failure.hint(RETRY_HINT),
            TransferError::NothingOffered(_) => failure.hint(FIND_HINT),
            _ => failure,
        }
    }
}
