//! What can be typed for `polycast datacast`.

use super::local::{Destinations, LocalArgs, destinations};
use crate::args::values::duration;
use clap::Args as Arguments;
use polycast_types::Duration;

/// `polycast datacast`
#[derive(Arguments, Debug)]
pub(crate) struct DatacastArgs {
    /// The host that has the file or directory, and the path there. Where HOST is the name of this machine's
    /// agent no shell is needed
    #[arg(long, value_name = "[USER@]HOST:PATH")]
    pub source: String,
    /// The receiving agents' names, or all
    #[arg(long, value_name = "NAME,NAME|all", value_parser = destinations)]
    pub to: Destinations,
    /// A directory on each receiver that gets the object under its own name [default: it stays in the stores
    /// of their agents]
    #[arg(long, value_name = "DIR")]
    pub out: Option<String>,
    /// Replace what is in the directory already
    #[arg(long, requires = "out", conflicts_with = "update")]
    pub force: bool,
    /// Bring what is in the directory already up to date
    #[arg(long, requires = "out")]
    pub update: bool,
    /// The fabric that is to carry it, if it can, by its name in the manager's settings
    #[arg(long, value_name = "NAME", default_value = "datacast")]
    pub fabric: String,
    /// No other fabric is to carry it: without it the command fails
    #[arg(long)]
    pub or_fail: bool,
    /// Receivers that are not done by then have failed (30s, 10m)
    #[arg(long, value_name = "T", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// The command that opens a shell on a host, with its options; HOST and a script are put behind it
    #[arg(long, short = 'e', value_name = "COMMAND", default_value = "ssh", allow_hyphen_values = true)]
    pub ssh: String,
    /// This program on the hosts
    #[arg(long, value_name = "FILE", default_value = "polycast")]
    pub program: String,
    #[command(flatten)]
    pub local: LocalArgs,
}
