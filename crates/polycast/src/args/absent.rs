//! Commands that not every build has: each says how to get a build that has it.

use crate::exit::Failure;
use clap::error::{ContextKind, ContextValue};

/// Commands that come together, with a feature of this crate.
pub(crate) struct Part {
    /// Whether this build has them.
    is_here: bool,
    /// What the first page says of them where they are not here.
    said: &'static str,
    /// How they are built.
    build: &'static str,
    /// Their names, in the order in which they are listed.
    names: &'static [&'static str],
}

/// All that a build can lack.
pub(crate) const PARTS: [Part; 2] = [
    Part {
        is_here: cfg!(feature = "cluster"),
        said: "manager, agent, send, get, status, and all else of a cluster",
        build: "cargo build --release -p polycast --no-default-features --features cluster",
        names: &[
            "manager",
            "agent",
            "forwarder",
            "label-switch",
            "rack-agent",
            "send",
            "datacast",
            "extend",
            "withdraw",
            "stream",
            "group",
            "get",
            "fetch",
            "hf",
            "image",
            "warm",
            "publish",
            "subscribe",
            "ls",
            "rm",
            "pin",
            "unpin",
            "status",
            "why",
            "transfers",
            "nodes",
            "drain",
            "undrain",
            "token",
            "audit",
            "setup",
        ],
    },
    Part {
        is_here: cfg!(feature = "pages"),
        said: "completions, man",
        build: "cargo build --release -p polycast --no-default-features --features cluster,pages",
        names: &["completions", "man"],
    },
];

/// Why there is no command of this name, if other builds have it.
fn missing(name: &str) -> Option<Failure> {
    let part = PARTS.iter().find(|part| !part.is_here && part.names.contains(&name))?;
    let failure = Failure::input(format!("this build of polycast has no command '{name}'"));
    Some(failure.hint(format!("build one that has it: {}", part.build)))
}

/// Why a command line is wrong, if that is since this build lacks the command.
pub(super) fn explain(error: &clap::Error) -> Option<Failure> {
    match error.get(ContextKind::InvalidSubcommand)? {
        ContextValue::String(name) => missing(name),
        _ => None,
    }
}

/// What the first page says of commands that are not here; nothing in a build that has all.
pub(super) fn note() -> Option<String> {
    let absent = PARTS.iter().filter(|part| !part.is_here);
    let lines: String = absent.map(|part| format!("\n  {}:\n      {}", part.said, part.build)).collect();
    (!lines.is_empty()).then(|| format!("Not in this build:{lines}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;
    use clap::{CommandFactory, Parser};
    use std::collections::BTreeSet;

    /// The commands that every build has, those among them that another program runs.
    const ALWAYS: [&str; 12] = [
        "cast",
        "offer",
        "accept",
        "push",
        "bcast",
        "doctor",
        "key",
        "plan",
        "reproduce",
        "lab",
        "bench",
        "simulate",
    ];

    /// A command that a build lacks is in the table: a user never hears only that there is none of that name.
    #[test]
    fn each_command_is_here_or_says_how_to_get_it() {
        let here: BTreeSet<String> =
            Args::command().get_subcommands().map(|command| command.get_name().to_string()).collect();
        let present = PARTS.iter().filter(|part| part.is_here).flat_map(|part| part.names);
        let expected: BTreeSet<String> =
            ALWAYS.iter().chain(present).map(|name| (*name).to_string()).collect();
        assert_eq!(here, expected);
        for part in &PARTS {
            for name in part.names {
                let error = Args::try_parse_from(["polycast", name, "--no-such-option"]).unwrap_err();
                let failure = explain(&error);
                assert_eq!(failure.is_none(), part.is_here, "{name}");
                let Some(failure) = failure else { continue };
                assert_eq!(failure.message, format!("this build of polycast has no command '{name}'"));
                assert!(failure.hint.unwrap().ends_with(part.build), "{name}");
                let asked = Args::try_parse_from(["polycast", "help", name]).unwrap_err();
                assert!(explain(&asked).is_some(), "help {name}");
                assert!(note().unwrap().contains(part.build), "{name}");
            }
        }
        let none = Args::try_parse_from(["polycast", "sned"]).unwrap_err();
        assert!(explain(&none).is_none(), "no build has that");
    }

    /// The table has the commands of each feature, in their order, so that a build without it names all of
    /// them.
    #[test]
    #[cfg(all(feature = "pages", feature = "cluster"))]
    fn the_table_has_the_commands_of_each_feature() {
        use crate::args::{cluster, pages};

        fn add<C: clap::Subcommand>(to: clap::Command) -> clap::Command {
            C::augment_subcommands(to)
        }
        let start = || clap::Command::new("polycast");
        let groups =
            [add::<cluster::Admission>(add::<cluster::Command>(start())), add::<pages::Command>(start())];
        for (group, part) in groups.iter().zip(&PARTS) {
            let names: Vec<&str> = group.get_subcommands().map(clap::Command::get_name).collect();
            assert_eq!(names, part.names);
        }
    }
}
