//! `polycast completions` and `polycast man`: what shells and `man` want to know, written from the command line's own
//! definition.

use crate::args::{Args, CompletionsArgs, ManArgs};
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use clap::CommandFactory;
use serde_json::json;
use std::fs;

/// Prints the completions for a shell.
pub fn completions(args: &CompletionsArgs, format: Format) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "polycast", &mut script);
    let script = String::from_utf8_lossy(&script);
    output::result(format, &json!({ "shell": args.shell.to_string(), "script": script }), &script)?;
    Ok(Exit::Done)
}

/// Writes a page for every command into a folder, or prints the first one.
pub fn man(args: &ManArgs, format: Format) -> Result<Exit, Failure> {
    let Some(folder) = &args.folder else {
        let mut page = Vec::new();
        let wrong = |error: std::io::Error| Failure::unexpected(format!("cannot write the page: {error}"));
        clap_mangen::Man::new(Args::command()).render(&mut page).map_err(wrong)?;
        let page = String::from_utf8_lossy(&page);
        output::result(format, &json!({ "page": page }), &page)?;
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
