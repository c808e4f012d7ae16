//! The pages of all commands, those of `polycast` and of this program: they are held to the definitions.

use crate::ADDED;
use std::fs;
use std::path::Path;

/// The page of all commands is made from the command line's own definition: one that is old fails here,
/// and `POLYCAST_GOLDEN=write cargo test -p polycast-research page_of_commands` writes it anew.
#[test]
fn the_page_of_commands_is_of_this_command_line() {
    let page = page_of_commands();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    if std::env::var("POLYCAST_GOLDEN").as_deref() == Ok("write") {
        fs::write(&path, page).unwrap();
        panic!("{} was written: look at it, and test again without POLYCAST_GOLDEN", path.display());
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let differs = kept.lines().zip(page.lines()).position(|(kept, now)| kept != now);
    let line = differs.unwrap_or(kept.lines().count().min(page.lines().count())) + 1;
    assert!(
        kept == page,
        "docs/reference/cli.md is not of this command line from line {line} on: write it anew with \
         POLYCAST_GOLDEN=write cargo test -p polycast-research page_of_commands"
    );
}

fn page_of_commands() -> String {
    let options = clap_markdown::MarkdownOptions::new()
        .title("The command line".to_string())
        .show_footer(false)
        .show_table_of_contents(true);
    let page = clap_markdown::help_markdown_command_custom(&polycast::tree(Some(&ADDED)), &options);
    let lines: Vec<&str> = page.lines().map(str::trim_end).collect();
    let mut text = lines.join("\n");
    // One empty line between paragraphs is enough.
    while text.contains("\n\n\n") {
        text = text.replace("\n\n\n", "\n\n");
    }
    format!("{}\n", text.trim())
}

fn paths(command: &clap::Command, prefix: &str, into: &mut Vec<String>) {
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        let path = format!("{prefix} {}", inner.get_name());
        if inner.get_subcommands().next().is_none() {
            into.push(path.clone());
        }
        paths(inner, &path, into);
    }
}

/// Each command has a section of the page of JSON, and each section a command.
#[test]
fn the_page_of_json_has_the_commands_that_there_are() {
    let mut commands = Vec::new();
    paths(&polycast::tree(Some(&ADDED)), "polycast", &mut commands);
    let titles: Vec<&str> =
        polycast::reference::titles().into_iter().filter(|title| title.starts_with("polycast ")).collect();
    let is_within = |inner: &str, outer: &str| inner == outer || inner.starts_with(&format!("{outer} "));
    // What another program prints, or what users do not call.
    let silent = ["polycast lab exec", "polycast lab supervise"];
    for command in commands.iter().filter(|command| !silent.contains(&command.as_str())) {
        assert!(titles.iter().any(|title| is_within(command, title)), "{command} has no section");
    }
    // What a command prints with a flag has a section of its own.
    for title in titles.iter().map(|title| title.split(" --").next().unwrap_or(title)) {
        assert!(commands.iter().any(|command| is_within(command, title)), "there is no {title}");
    }
}

/// The first page says of a command what its own page says, whichever program prints either.
#[test]
fn both_programs_say_the_same_of_a_command() {
    let all = polycast::tree(Some(&ADDED));
    for command in polycast::tree(None).get_subcommands() {
        let other = all.find_subcommand(command.get_name()).expect("this program has all commands");
        let about = |of: &clap::Command| of.get_about().map(ToString::to_string);
        assert_eq!(about(command), about(other), "{}", command.get_name());
        assert_eq!(command.is_hide_set(), other.is_hide_set(), "{}", command.get_name());
    }
    all.debug_assert();
}
