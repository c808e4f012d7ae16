//! What can be typed for planners, the simulator and labs, which the program `polycast-research` runs: all
//! that follows the name of such a command is that program's.

use clap::{Args as Arguments, Subcommand};
use std::ffi::OsString;

/// Planners, simulator and lab.
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    /// Ask a planner: which way to deliver, relays, trees, labels, circuits, costs (no network needed)
    #[command(disable_help_flag = true)]
    Plan(Words),
    /// Compute the papers' figures and tables, ours beside theirs (no network needed)
    #[command(disable_help_flag = true)]
    Reproduce(Words),
    /// Run a whole data center on this machine, in network namespaces (Linux, root)
    #[command(disable_help_flag = true)]
    Lab(Words),
    /// Measure parts of the service
    #[command(hide = true, disable_help_flag = true)]
    Bench(Words),
    /// Simulate transfers packet by packet, in virtual time (no network needed)
    #[command(disable_help_flag = true)]
    Simulate(Words),
}

/// Words that the other program reads.
#[derive(Arguments, Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Words {
    /// Its own arguments and options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub words: Vec<OsString>,
}

impl Command {
    /// The command of this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let words = Words::default();
        Some(match name {
            "plan" => Command::Plan(words),
            "reproduce" => Command::Reproduce(words),
            "lab" => Command::Lab(words),
            "bench" => Command::Bench(words),
            "simulate" => Command::Simulate(words),
            _ => return None,
        })
    }

    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Command::Plan(_) => "plan",
            Command::Reproduce(_) => "reproduce",
            Command::Lab(_) => "lab",
            Command::Bench(_) => "bench",
            Command::Simulate(_) => "simulate",
        }
    }
}
