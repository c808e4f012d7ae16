//! `polycast-research`: planners, simulator, lab and the papers' figures.
//!
//! `polycast plan`, `simulate`, `lab` and `reproduce` start it. It has all other commands of `polycast` too:
//! the hosts of a lab run them, so that all of a lab is of one build.

mod args;
mod bench;
#[cfg(test)]
mod documents;
mod lab;
mod plan;
#[cfg(test)]
mod reference;
mod reproduce;
mod simulate;

use args::Command;
use clap::{ArgMatches, FromArgMatches, Subcommand};
use exit::{Exit, Failure};
use output::Format;
use polycast::{Added, exit, object, output, report};

/// The commands of this program alone.
const ADDED: Added = Added { name: "polycast-research", tree, run };

fn tree() -> clap::Command {
    Command::augment_subcommands(clap::Command::new("polycast"))
}

fn run(typed: &ArgMatches, format: Format) -> Result<Exit, Failure> {
    let command = Command::from_arg_matches(typed).map_err(|error| Failure::unexpected(error.to_string()))?;
    match &command {
        Command::Plan(args) => plan::run(args, format),
        Command::Reproduce(args) => reproduce::run(args, format),
        Command::Lab(args) => lab::run(args, format),
        Command::Bench(args) => bench::run(args, format),
        Command::Simulate(args) => simulate::run(args, format),
    }
}

fn main() -> std::process::ExitCode {
    polycast::main(Some(&ADDED))
}
