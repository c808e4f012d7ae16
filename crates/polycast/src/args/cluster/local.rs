//! Words that many commands of a cluster share: the way to the local agent, and names of agents.

use clap::Args as Arguments;
use std::path::PathBuf;

/// How to reach the local agent.
#[derive(Arguments, Debug)]
pub(crate) struct LocalArgs {
    /// The agent's Unix socket [default: in the user's run-time folder]
    #[arg(long, value_name = "PATH", env = "POLYCAST_SOCKET")]
    pub socket: Option<PathBuf>,
}

/// Whom `send` sends to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Destinations {
    /// All agents that the manager knows.
    All,
    /// These.
    Named(Vec<String>),
}

pub(crate) fn destinations(text: &str) -> Result<Destinations, String> {
    if text == "all" {
        return Ok(Destinations::All);
    }
    let mut names: Vec<String> = Vec::new();
    for name in text.split(',').map(str::trim) {
        if name.is_empty() {
            return Err("write names with commas between them, or all".into());
        }
        if names.iter().any(|known| known == name) {
            return Err(format!("'{name}' is named twice"));
        }
        names.push(name.to_string());
    }
    Ok(Destinations::Named(names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_names_or_all() {
        assert_eq!(destinations("all"), Ok(Destinations::All));
        assert_eq!(destinations("a, b"), Ok(Destinations::Named(vec!["a".into(), "b".into()])));
        assert!(destinations("a,b,a").unwrap_err().contains("'a' is named twice"));
        assert!(destinations("a,,b").is_err());
    }
}
