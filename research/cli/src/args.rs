//! What can be typed for planners, the simulator and labs.

pub(crate) mod bench;
pub(crate) mod help;

use crate::{lab::LabArgs, plan::PlanArgs, reproduce::ReproduceArgs, simulate::SimulateArgs};
use clap::Subcommand;

/// Planners, simulator and lab.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Ask a planner: which way to deliver, relays, trees, labels, circuits, costs (no network needed)
    Plan(PlanArgs),
    /// Compute the papers' figures and tables, ours beside theirs (no network needed)
    #[command(long_about = help::REPRODUCE, after_long_help = help::REPRODUCE_MORE)]
    Reproduce(ReproduceArgs),
    /// Run a whole data center on this machine, in network namespaces (Linux, root)
    #[command(long_about = help::LAB, after_long_help = help::LAB_MORE)]
    Lab(LabArgs),
    /// Measure parts of the service
    #[command(hide = true)]
    Bench(bench::BenchArgs),
    /// Simulate transfers packet by packet, in virtual time (no network needed)
    #[command(long_about = help::SIMULATE, after_long_help = help::SIMULATE_MORE)]
    Simulate(SimulateArgs),
}
