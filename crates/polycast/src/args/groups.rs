//! The first page's list of commands: by what a user is about to do, the daily ones first.

use clap::{Command, Subcommand};
use std::fmt::Write;

/// Columns of the names.
const NAME_WIDTH: usize = 12;
/// Columns of the page at most.
const WIDTH_MAX: usize = 100;

/// Headings, and the commands below each in their order.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Deliver, without daemons", &["offer", "accept", "push", "bcast", "cast"]),
    (
        "Deliver on a cluster",
        &[
            "send",
            "datacast",
            "get",
            "fetch",
            "hf",
            "image",
            "warm",
            "publish",
            "subscribe",
            "stream",
            "group",
            "ls",
            "rm",
            "pin",
            "unpin",
            "status",
            "why",
            "transfers",
        ],
    ),
    ("Change transfers that wait or run", &["extend", "withdraw"]),
    (
        "Run a cluster",
        &["setup", "manager", "agent", "nodes", "key", "token", "audit", "drain", "undrain", "doctor"],
    ),
    ("Research fabrics", &["forwarder", "label-switch", "rack-agent"]),
    ("Plan and study", &["plan", "simulate", "lab", "reproduce"]),
    ("This program", &["completions", "man", "help"]),
];

/// What `help` is for; clap adds that command itself.
const HELP: &str = "Print this page, or that of a command";

/// The template of the first page.
pub(crate) fn template() -> String {
    let all = super::Command::augment_subcommands(Command::new("polycast"));
    let width = crate::screen::width().min(WIDTH_MAX);
    let mut text = "{before-help}{about-with-newline}\n{usage-heading} {usage}\n".to_string();
    for (heading, names) in GROUPS {
        let about = |name: &&str| match *name {
            "help" => Some(HELP.to_string()),
            name => Some(all.find_subcommand(name)?.get_about()?.to_string()),
        };
        // A build has some of them.
        let here: Vec<(&&str, String)> = names.iter().filter_map(|name| Some((name, about(name)?))).collect();
        if here.is_empty() {
            continue;
        }
        let _ = write!(text, "\n{heading}:\n");
        for (name, about) in here {
            let lines = folded(&about, width.saturating_sub(NAME_WIDTH + 4));
            let indent = format!("\n{}", " ".repeat(NAME_WIDTH + 4));
            let _ = writeln!(text, "  {name:NAME_WIDTH$}  {}", lines.join(&indent));
        }
    }
    text + "\nOptions:\n{options}{after-help}"
}

/// The words of a text in lines of so many columns; a word that is longer has a line of its own.
fn folded(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;
    use clap::CommandFactory;

    #[test]
    fn each_command_is_in_one_group() {
        let listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        for command in Args::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let times = listed.iter().filter(|name| **name == command.get_name()).count();
            assert_eq!(times, 1, "{}", command.get_name());
        }
        assert!(listed.iter().all(|name| name.len() <= NAME_WIDTH));
    }

    #[test]
    fn words_are_folded() {
        assert_eq!(folded("a bc def ghijkl m", 6), ["a bc", "def", "ghijkl", "m"]);
        assert_eq!(folded("", 6), [""; 0]);
    }
}
