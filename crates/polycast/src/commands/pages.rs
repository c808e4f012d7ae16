//! `polycast completions` and `polycast man`: what shells and `man` need, written from the command line's own
//! definition.

use crate::args::Args;
use crate::args::pages::{Command, CompletionsArgs, ManArgs};
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use clap::{Arg, CommandFactory};
use clap_complete::Shell;
use serde_json::json;
use std::fs;

/// Prints or writes pages.
pub(super) fn run(command: &Command, format: Format) -> Result<Exit, Failure> {
    match command {
        Command::Completions(args) => completions(args, format),
        Command::Man(args) => man(args, format),
    }
}

/// Prints the completions for a shell.
fn completions(args: &CompletionsArgs, format: Format) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "polycast", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if args.shell == Shell::Fish {
        script += &values_for_fish();
    }
    output::verbatim(format, &json!({ "shell": args.shell.to_string(), "script": script }), &script)?;
    Ok(Exit::Done)
}

/// The words that a command takes in a place of its own, such as the shells here: `clap_complete` tells fish
/// of those after options alone.
fn values_for_fish() -> String {
    let mut lines = String::new();
    for command in Args::command().get_subcommands().filter(|command| !command.has_subcommands()) {
        let values = command.get_positionals().flat_map(Arg::get_possible_values);
        let values: Vec<String> = values.map(|value| value.get_name().to_string()).collect();
        if !values.is_empty() {
            let (name, values) = (command.get_name(), values.join(" "));
            lines += &format!(
                "complete -c polycast -n \"__fish_polycast_using_subcommand {name}\" -f -a \"{values}\"\n"
            );
        }
    }
    lines
}

/// Writes a page for every command into a folder, or prints the first one.
fn man(args: &ManArgs, format: Format) -> Result<Exit, Failure> {
    let Some(folder) = &args.folder else {
        let mut page = Vec::new();
        let wrong = |error: std::io::Error| Failure::unexpected(format!("cannot write the page: {error}"));
        clap_mangen::Man::new(Args::command()).render(&mut page).map_err(wrong)?;
        let page = String::from_utf8_lossy(&page);
        output::verbatim(format, &json!({ "page": page }), &page)?;
        return Ok(Exit::Done);
    };
    fs::create_dir_all(folder).map_err(|error| Failure::path("make", folder, &error))?;
    clap_mangen::generate_to(Args::command(), folder)
        .map_err(|error| Failure::path("write into", folder, &error))?;
    let mut pages: Vec<String> = fs::read_dir(folder)
        .map_err(|error| Failure::path("read", folder, &error))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("polycast") && name.ends_with(".1"))
        .collect();
    pages.sort();
    let text = format!(
        "{} pages in {}; read one with: man -l {}/polycast.1",
        pages.len(),
        folder.display(),
        folder.display()
    );
    output::result(format, &json!({ "folder": folder, "pages": pages }), &text)?;
    Ok(Exit::Done)
}

#[cfg(all(test, feature = "research"))]
mod tests {
    use super::*;
    use std::path::Path;

    /// The page of all commands is made from the command line's own definition: one that is old fails here,
    /// and `POLYCAST_GOLDEN=write cargo test -p polycast --bin polycast page_of_commands` writes it anew.
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
             POLYCAST_GOLDEN=write cargo test -p polycast --bin polycast page_of_commands"
        );
    }

    fn page_of_commands() -> String {
        let options = clap_markdown::MarkdownOptions::new()
            .title("The command line".to_string())
            .show_footer(false)
            .show_table_of_contents(true);
        let page = clap_markdown::help_markdown_command_custom(&Args::command(), &options);
        let lines: Vec<&str> = page.lines().map(str::trim_end).collect();
        let mut text = lines.join("\n");
        // One empty line between paragraphs is enough.
        while text.contains("\n\n\n") {
            text = text.replace("\n\n\n", "\n\n");
        }
        format!("{}\n", text.trim())
    }
}
