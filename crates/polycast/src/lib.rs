//! The command line of `polycast`, which `polycast-research` has too, with more commands.
//!
//! It parses what was typed, calls the libraries, and prints. Data goes to standard output, everything else
//! to standard error.
#![cfg_attr(
    not(feature = "cluster"),
    allow(dead_code, reason = "much of what commands share is for those that this build lacks")
)]

mod args;
mod asked;
pub mod cancel;
mod commands;
pub mod commit;
pub mod exit;
mod fold;
mod hostlist;
mod logging;
pub mod object;
#[cfg(feature = "otel")]
mod otel;
pub mod output;
pub mod progress;
pub mod reference;
pub mod report;
mod screen;
#[cfg(feature = "cluster")]
pub mod table;

pub use args::values::{duration, rate_with_unit};

use exit::{Exit, Failure};
use output::Format;
use std::process::ExitCode;

/// Commands that a program has in place of those for which `polycast` starts it.
#[derive(Clone, Copy)]
pub struct Added {
    /// The program's name, which it says with its version.
    pub name: &'static str,
    /// Returns a command that has them as subcommands.
    pub tree: fn() -> clap::Command,
    /// Runs the one that was typed.
    pub run: fn(&clap::ArgMatches, Format) -> Result<Exit, Failure>,
}

/// Returns the definition of the command line.
pub fn tree(added: Option<&Added>) -> clap::Command {
    args::tree(added)
}

/// Runs the command that was typed.
pub fn main(added: Option<&Added>) -> ExitCode {
    let outcome = match args::parse(added) {
        Ok(typed) => commands::run(typed, added),
        Err(outcome) => outcome,
    };
    outcome.into()
}
