//! What can be typed for `polycast hf`.

use super::local::{Destinations, LocalArgs, destinations};
use clap::{Args as Arguments, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `polycast hf`
#[derive(Arguments, Debug)]
pub(crate) struct HfArgs {
    #[command(subcommand)]
    pub command: HfCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum HfCommand {
    /// Get a repository's files into the cache of the Hub's clients
    Pull(PullArgs),
}

/// Kinds of repositories.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Kind {
    Model,
    Dataset,
    Space,
}

/// `polycast hf pull`
#[derive(Arguments, Debug)]
pub(crate) struct PullArgs {
    /// The repository, and the revision if it is not main
    #[arg(value_name = "ORG/NAME[@REVISION]", value_parser = repository)]
    pub repository: (String, String),
    /// Kind of the repository
    #[arg(long, value_name = "KIND", value_enum, default_value = "model")]
    pub repo_type: Kind,
    /// Only files with such a path: * stands for any letters, ? for one; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,
    /// No files with such a path; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Put the files into the stores of these agents, too: their names, or all
    #[arg(long, value_name = "NAME,NAME|all", value_parser = destinations)]
    pub to: Option<Destinations>,
    /// The folder of the cache [default: that of the Hub's clients]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// The hub
    #[arg(long, value_name = "URL", default_value = "https://huggingface.co")]
    pub upstream: String,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// A repository and its revision.
fn repository(text: &str) -> Result<(String, String), String> {
    let (name, revision) = text.split_once('@').unwrap_or((text, "main"));
    let is_name = |name: &str| {
        let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !name.is_empty() && name.chars().all(is_known) && !name.starts_with('.')
    };
    if name.split('/').count() > 2 || !name.split('/').all(is_name) || revision.is_empty() {
        return Err("write ORG/NAME, or ORG/NAME@REVISION".into());
    }
    // It becomes a path in the cache.
    if revision.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(format!("'{revision}' is no revision"));
    }
    Ok((name.to_string(), revision.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_read() {
        let of = |text| repository(text).map(|(name, revision)| format!("{name} {revision}"));
        assert_eq!(of("org/model").as_deref(), Ok("org/model main"));
        assert_eq!(of("gpt2@refs/pr/1").as_deref(), Ok("gpt2 refs/pr/1"));
        for wrong in ["", "a/b/c", "../x", "org/..", "a@", "org/model@../../x", "org/mo del"] {
            of(wrong).unwrap_err();
        }
    }
}
