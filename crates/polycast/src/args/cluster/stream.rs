//! What can be typed for `polycast stream`.

use super::local::LocalArgs;
use crate::args::help;
use crate::args::values::duration;
use clap::{Args as Arguments, Subcommand};
use polycast_types::Duration;

/// `polycast stream`
#[derive(Arguments, Debug)]
pub(crate) struct StreamArgs {
    #[command(subcommand)]
    pub command: StreamCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum StreamCommand {
    /// Make a stream that this machine sends and others can join
    Create(CreateArgs),
    /// Send every line of standard input as a message; to a shared stream from any machine
    Send(NameArgs),
    /// Join a stream, and print its messages as lines
    Recv(RecvArgs),
    /// Leave a stream: all who receive it on this machine end
    Leave(NameArgs),
    /// End a stream that was made here
    End(NameArgs),
    /// List the streams of the cluster
    Ls(LocalArgs),
}

#[derive(Arguments, Debug)]
pub(crate) struct CreateArgs {
    /// The stream's name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Let every machine that joins send, too: each gets what all others send
    #[arg(long)]
    pub shared: bool,
    #[command(flatten)]
    pub local: LocalArgs,
}

#[derive(Arguments, Debug)]
pub(crate) struct NameArgs {
    /// The stream's name
    #[arg(value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub local: LocalArgs,
}

#[derive(Arguments, Debug)]
#[command(after_long_help = help::STREAM_RECV_MORE)]
pub(crate) struct RecvArgs {
    /// The stream's name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// End after so many messages [default: when the stream ends, or at Ctrl-C]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// How long a message waits for those before it (500ms, 1s), where packets may overtake each other
    #[arg(long, value_name = "T", value_parser = duration)]
    pub hold: Option<Duration>,
    /// Begin each line with the name of its sender and a tab
    #[arg(long)]
    pub names: bool,
    #[command(flatten)]
    pub local: LocalArgs,
}
