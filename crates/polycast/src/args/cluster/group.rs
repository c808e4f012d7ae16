//! What can be typed for `polycast group`.

use super::local::{Destinations, LocalArgs, destinations};
use crate::args::help;
use crate::args::values::rate_with_unit;
use clap::{Args as Arguments, Subcommand};
use polycast_types::Rate;

/// `polycast group`
#[derive(Arguments, Debug)]
pub(crate) struct GroupArgs {
    #[command(subcommand)]
    pub command: GroupCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum GroupCommand {
    /// Make a group that this machine and others send to, and print its address
    #[command(after_long_help = help::GROUP_CREATE_MORE)]
    Create(CreateArgs),
    /// Take machines into a group that was made here, or out of it; its address stays
    Change(ChangeArgs),
    /// List the groups of the cluster, with members that are away
    Ls(LocalArgs),
    /// Give a group back that was made here
    Rm(NameArgs),
}

#[derive(Arguments, Debug)]
pub(crate) struct NameArgs {
    /// The group's name
    #[arg(value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub local: LocalArgs,
}

#[derive(Arguments, Debug)]
pub(crate) struct CreateArgs {
    /// The group's name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The agents' names of the machines that receive
    #[arg(long, value_name = "NAME,NAME", value_parser = members)]
    pub to: Destinations,
    /// The agents' names of the machines that send, this one among them [default: this one alone]
    #[arg(long = "source", value_name = "NAME,NAME", value_parser = members)]
    pub sources: Vec<Destinations>,
    /// The fabric that carries it, by its name in the manager's settings [default: the best that can]
    #[arg(long, value_name = "NAME")]
    pub fabric: Option<String>,
    /// The rate that the path must have (500mbit, 5gbit); your program keeps to what is printed
    #[arg(long, value_name = "RATE", value_parser = rate_with_unit)]
    pub rate: Option<Rate>,
    #[command(flatten)]
    pub local: LocalArgs,
}

#[derive(Arguments, Debug)]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub(crate) struct ChangeArgs {
    /// The group's name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Agents' names of further machines that receive
    #[arg(long, value_name = "NAME,NAME", value_parser = members, group = "change")]
    pub add: Option<Destinations>,
    /// Agents' names of further machines that send
    #[arg(long = "source", value_name = "NAME,NAME", value_parser = members, group = "change")]
    pub sources: Vec<Destinations>,
    /// Agents' names of machines that neither receive nor send any more
    #[arg(long, value_name = "NAME,NAME", value_parser = members, group = "change")]
    pub remove: Option<Destinations>,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// Reads the names of members.
fn members(text: &str) -> Result<Destinations, String> {
    match destinations(text)? {
        Destinations::All => Err("a group names its hosts, with commas between them".into()),
        named @ Destinations::Named(_) => Ok(named),
    }
}
