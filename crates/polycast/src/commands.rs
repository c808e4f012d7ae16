//! One module a command: it calls the libraries and reports.

mod accept;
mod cast;
mod destination;
mod network;
mod offer;

use crate::args::{Args, Command};
use crate::exit::{Exit, Failure};
use crate::logging;
use crate::output::{self, Format};
use polycast_agent::transfer::TransferError;

/// Runs the command that was typed.
pub fn run(args: Args) -> Exit {
    let format = if args.json { Format::Json } else { Format::Text };
    let outcome = logging::start(&args.logging).and_then(|()| match &args.command {
        Command::Cast(args) => cast::run(args, format),
        Command::Offer(args) => offer::run(args, format),
        Command::Accept(args) => accept::run(args, format),
        _ => Err(Failure::unexpected("this command is not there yet")),
    });
    outcome.unwrap_or_else(|failure| output::failure(format, &failure))
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::System(_) => Failure::unexpected(error.to_string()),
            _ => Failure::input(error.to_string()),
        }
    }
}
