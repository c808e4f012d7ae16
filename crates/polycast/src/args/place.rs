//! Where an object goes: the same words for every command that puts one somewhere.

use clap::Args as Arguments;
use polycast_net::archive::Glob;
use polycast_net::store::check_name;
use std::path::PathBuf;

/// Where the object goes.
#[derive(Arguments, Clone, Debug, Default)]
pub(crate) struct PlaceArgs {
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

/// How files are read that are delivered.
#[derive(Arguments, Clone, Debug, Default)]
pub(crate) struct ReadArgs {
    /// Send what links lead to in their place [default: links stay links, which at receivers may lead to
    /// nothing]
    #[arg(long, short = 'L')]
    pub follow: bool,
    /// Begin again where a program changes what is sent, so many times at most [default: end with an error]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u32).range(..=1_000))]
    pub retry_changed: u32,
}

/// What is delivered.
#[derive(Arguments, Clone, Debug)]
pub(crate) struct ChoiceArgs {
    /// The file or directory; several become one directory; - is standard input
    #[arg(value_name = "FILE|DIR", required = true)]
    pub paths: Vec<PathBuf>,
    /// Leave out what this pattern matches, such as '*.tmp', 'cache/' or '/build'; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<Glob>,
    /// What to call it: receivers find it under this name [default: as it is called here]
    #[arg(long = "as", alias = "name", short, value_name = "NAME", value_parser = object_name)]
    pub name: Option<String>,
    #[command(flatten)]
    pub read: ReadArgs,
}

/// Whether this can be an object's name: one of a file, that is no option.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains('/') && !text.starts_with('-') && text != "." && text != ".."
}

fn object_name(text: &str) -> Result<String, String> {
    match check_name(text) {
        Ok(()) if is_name(text) => Ok(text.to_string()),
        Ok(()) => Err("it begins with a dash".into()),
        Err(why) => Err(format!("it {why}")),
    }
}
