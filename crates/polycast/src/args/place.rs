//! Where an object goes: the same words for every command that puts one somewhere.

use clap::Args as Arguments;
use std::path::PathBuf;

/// Where the object goes.
#[derive(Arguments, Clone, Debug, Default)]
pub struct PlaceArgs {
    /// The object's path: a file, or for a directory the directory itself; - is standard output
    #[arg(long, short, value_name = "PATH", conflicts_with = "into")]
    pub out: Option<PathBuf>,
    /// A directory that gets the object under its own name [default: this one]
    #[arg(long, value_name = "DIR")]
    pub into: Option<PathBuf>,
    /// Replace what is there already
    #[arg(long)]
    pub force: bool,
    /// Bring what is there already up to date: what is equal is not sent
    #[arg(long, conflicts_with = "force")]
    pub update: bool,
}
