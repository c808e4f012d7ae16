//! What can be typed for what shells and `man` need.

use super::help;
use clap::{Args as Arguments, Subcommand};
use std::path::PathBuf;

/// What is written from the command line's own definition.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Print the completions for a shell
    #[command(after_long_help = help::COMPLETIONS_MORE)]
    Completions(CompletionsArgs),
    /// Print the manual page, or write one for every command
    #[command(after_long_help = help::MAN_MORE)]
    Man(ManArgs),
}

/// `polycast completions`
#[derive(Arguments, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `polycast man`
#[derive(Arguments, Debug)]
pub(crate) struct ManArgs {
    /// Where a page for every command is written, such as /usr/local/share/man/man1
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
}
