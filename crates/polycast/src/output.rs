//! Output of commands: text for people, or one JSON document.

use crate::exit::{Exit, Failure, without_numbers};
use crate::{reference, screen};
use polycast_types::Printable;
use serde::Serialize;
use serde_json::Value;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Format of results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Text for people.
    Text,
    /// One JSON document.
    Json,
}

/// Writes a command's result to standard output: the value as JSON, or the text in lines that fit a
/// terminal.
pub fn result(format: Format, value: &impl Serialize, text: &str) -> Result<(), Failure> {
    verbatim(format, value, &screen::fit_result(&without_numbers(text.to_string())))
}

/// The same with a text that is for other programs, such as a shell: its lines stay as they are.
pub fn verbatim(format: Format, value: &impl Serialize, text: &str) -> Result<(), Failure> {
    match format {
        Format::Text => write(text),
        Format::Json => {
            let document = serde_json::to_value(value)
                .map_err(|error| Failure::unexpected(format!("cannot write JSON: {error}")))?;
            reference::check_document(&document);
            write(&versioned(&document))
        }
    }
}

/// A document with its version, which each entry of a list has; a document that has another field of that
/// name keeps it.
fn versioned(document: &Value) -> String {
    match document {
        Value::Array(entries) => {
            let entries: Vec<String> = entries.iter().map(versioned).collect();
            format!("[{}]", entries.join(","))
        }
        Value::Object(fields) if !fields.contains_key("version") => {
            let fields =
                fields.iter().map(|(name, value)| format!("{}:{value},", Value::from(name.as_str())));
            format!("{{{}\"version\":{}}}", fields.collect::<String>(), reference::VERSION)
        }
        other => other.to_string(),
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
            let failure = Failure::input("--json and --out - both write to standard output");
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

/// Set if the user asks for errors only; the second one, if progress is reported as lines of JSON.
static QUIET: AtomicBool = AtomicBool::new(false);
static EVENTS: AtomicBool = AtomicBool::new(false);

/// Notes what the user asks to hear.
pub fn begin(format: Format, quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
    EVENTS.store(format == Format::Json, Ordering::Relaxed);
}

/// Returns true if the user asks for errors only.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Returns true if progress is reported as lines of JSON.
pub fn tells_events() -> bool {
    EVENTS.load(Ordering::Relaxed)
}

/// Says something to the person at the terminal, unless only errors are wanted. Much of it has come from
/// other machines.
pub fn say(message: &str) {
    if !is_quiet() || message.starts_with("error: ") || message.starts_with("hint: ") {
        tell(message);
    }
}

/// `1 receiver`, or `2 receivers`.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Says what has to be known in any case.
pub fn tell(message: &str) {
    // If this fails, the user cannot be told.
    let message = without_numbers(message.to_string());
    let lines: Vec<String> =
        message.lines().map(|line| screen::toned(&Printable(line).to_string())).collect();
    let text = screen::fit_note(&lines.join("\n"));
    let _ = screen::above(|| writeln!(io::stderr(), "{text}"));
}

/// Tells of something while a command runs: with JSON a line of JSON on standard error, which begins with
/// `{"event":`; for people what `text` says.
pub fn event(format: Format, value: &serde_json::Value, text: impl FnOnce()) {
    match format {
        // If this fails, the user cannot be told.
        Format::Json => {
            reference::check_event(value);
            drop(screen::above(|| writeln!(io::stderr(), "{}", event_line(value))));
        }
        Format::Text => text(),
    }
}

/// The line of an event: its kind comes first, so that it is known from other lines by how it begins.
fn event_line(value: &serde_json::Value) -> String {
    let kind = &value["event"];
    let others = value.as_object().into_iter().flatten().filter(|(key, _)| *key != "event");
    let line = others
        .fold(format!("{{\"event\":{kind}"), |line, (key, value)| line + &format!(",\"{key}\":{value}"));
    line + &format!(",\"version\":{}}}", reference::VERSION)
}

/// Says why a command failed; with JSON, standard output says it too.
pub fn failure(format: Format, failure: &Failure) -> Exit {
    say(&format!("error: {}", failure.message));
    if let Some(hint) = &failure.hint {
        say(&format!("hint: {hint}"));
    }
    if format == Format::Json {
        let mut document = serde_json::json!({ "error": failure.message, "kind": failure.kind });
        if let Some(hint) = &failure.hint {
            document["hint"] = hint.as_str().into();
        }
        reference::check_document(&document);
        let _ = write(&versioned(&document));
    }
    failure.exit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_known_by_how_it_begins() {
        let value = serde_json::json!({ "address": "10.0.0.1", "event": "offer", "name": "a\"b" });
        let line = event_line(&value);
        assert_eq!(line, r#"{"event":"offer","address":"10.0.0.1","name":"a\"b","version":1}"#);
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["name"], value["name"]);
    }

    #[test]
    fn each_document_says_its_version() {
        let one = serde_json::json!({ "b": [1, { "c": 2 }], "a\"": "x" });
        assert_eq!(versioned(&one), r#"{"a\"":"x","b":[1,{"c":2}],"version":1}"#);
        assert_eq!(versioned(&serde_json::json!([{}, { "a": 1 }])), r#"[{"version":1},{"a":1,"version":1}]"#);
        let own = serde_json::json!({ "version": "0.1.0" });
        assert_eq!(versioned(&own), own.to_string());
    }
}
