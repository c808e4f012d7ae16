//! `polycast completions` and `polycast man`: what shells and `man` need, written from the command line's own
//! definition.

use crate::Added;
use crate::args::pages::{Command, CompletionsArgs, ManArgs};
use crate::commands::elsewhere;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use clap::Arg;
use clap_complete::Shell;
use serde_json::json;
use std::fs;

/// Prints or writes pages.
pub(super) fn run(command: &Command, added: Option<&Added>, format: Format) -> Result<Exit, Failure> {
    if added.is_none() {
        elsewhere::run_if_beside()?;
    }
    let tree = crate::tree(added);
    match command {
        Command::Completions(args) => completions(args, tree, format),
        Command::Man(args) => man(args, tree, format),
    }
}

/// Prints the completions for a shell.
fn completions(args: &CompletionsArgs, mut tree: clap::Command, format: Format) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut tree, "polycast", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if args.shell == Shell::Fish {
        script += &values_for_fish(&tree);
    }
    output::verbatim(format, &json!({ "shell": args.shell.to_string(), "script": script }), &script)?;
    Ok(Exit::Done)
}

/// The words that a command takes in a place of its own, such as the shells here: `clap_complete` tells fish
/// of those after options alone.
fn values_for_fish(tree: &clap::Command) -> String {
    let mut lines = String::new();
    for command in tree.get_subcommands().filter(|command| !command.has_subcommands()) {
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
fn man(args: &ManArgs, tree: clap::Command, format: Format) -> Result<Exit, Failure> {
    let Some(folder) = &args.folder else {
        let mut page = Vec::new();
        let wrong = |error: std::io::Error| Failure::unexpected(format!("cannot write the page: {error}"));
        clap_mangen::Man::new(tree).render(&mut page).map_err(wrong)?;
        let page = String::from_utf8_lossy(&page);
        output::verbatim(format, &json!({ "page": page }), &page)?;
        return Ok(Exit::Done);
    };
    fs::create_dir_all(folder).map_err(|error| Failure::path("make", folder, &error))?;
    clap_mangen::generate_to(tree, folder).map_err(|error| Failure::path("write into", folder, &error))?;
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
