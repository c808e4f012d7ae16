//! Planners, the simulator and labs.

mod bench;
pub(crate) mod lab;
pub(crate) mod plan;
pub(crate) mod reproduce;
pub(crate) mod simulate;

use crate::args::research::Command;
use crate::exit::{Exit, Failure};
use crate::output::Format;

/// Plans, reproduces, runs a lab or simulates.
pub(super) fn run(command: &Command, format: Format) -> Result<Exit, Failure> {
    match command {
        Command::Plan(args) => plan::run(args, format),
        Command::Reproduce(args) => reproduce::run(args, format),
        Command::Lab(args) => lab::run(args, format),
        Command::Bench(args) => bench::run(args, format),
        Command::Simulate(args) => simulate::run(args, format),
    }
}
