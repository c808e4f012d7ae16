//! What is printed: text for people, or one JSON document.

use crate::exit::{Exit, Failure};
use polycast_types::Printable;
use serde::Serialize;
use std::io::{self, Write};

/// How results are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Text for people.
    Text,
    /// One JSON document.
    Json,
}

/// Writes a command's result to standard output: the value as JSON, or the text.
pub fn result(format: Format, value: &impl Serialize, text: &str) -> Result<(), Failure> {
    match format {
        Format::Text => write(text),
        Format::Json => {
            let document = serde_json::to_string(value)
                .map_err(|error| Failure::unexpected(format!("cannot write JSON: {error}")))?;
            write(&document)
        }
    }
}

/// Writes a command's result where standard output belongs to an object: to standard error.
pub fn beside(text: &str) {
    say(text.trim_end());
}

/// Refuses two documents on standard output, before anything is done.
pub fn check_alone(format: Format, object_there: bool) -> Result<(), Failure> {
    match format {
        Format::Json if object_there => {
            let failure = Failure::input("--json and --out - both want standard output");
            Err(failure.hint("say with --out a path for the object"))
        }
        _ => Ok(()),
    }
}

/// Writes to standard output. A reader that has gone away is no failure: it has seen enough.
fn write(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{}", text.trim_end()).and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::unexpected(format!("cannot write the result: {error}")))
        }
        _ => Ok(()),
    }
}

/// Says something to the person at the terminal. Much of it has come from other machines.
pub fn say(message: &str) {
    // There is nobody to tell if this fails.
    let mut lines = message.lines().map(|line| Printable(line).to_string());
    let text = lines.next().unwrap_or_default();
    let _ = writeln!(io::stderr(), "{}", lines.fold(text, |text, line| text + "\n" + &line));
}

/// Tells of something while a command runs: with JSON a line of JSON on standard error, which begins with `{"event":`; for
/// people what `text` says.
pub fn event(format: Format, value: &serde_json::Value, text: impl FnOnce()) {
    match format {
        // There is nobody to tell if this fails.
        Format::Json => drop(writeln!(io::stderr(), "{value}")),
        Format::Text => text(),
    }
}

/// Says why a command failed; with JSON, standard output says it too.
pub fn failure(format: Format, failure: &Failure) -> Exit {
    say(&format!("error: {}", failure.message));
    if let Some(hint) = &failure.hint {
        say(&format!("hint: {hint}"));
    }
    if format == Format::Json {
        let mut document = serde_json::json!({ "error": failure.message });
        if let Some(hint) = &failure.hint {
            document["hint"] = hint.as_str().into();
        }
        let _ = write(&document.to_string());
    }
    failure.exit
}
