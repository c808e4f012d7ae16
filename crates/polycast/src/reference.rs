//! The page that describes all JSON, and the check that what is printed is what it says.
//!
//! The page, docs/reference/json.md, is the only list of fields there is. A build with assertions reads it
//! and stops where it prints a field that the page lacks, or leaves out one that the page promises; tests run
//! such a build.

use serde_json::Value;

/// The version of the page: what is printed says it.
pub(crate) const VERSION: u32 = 1;

/// Holds a document against the page.
pub(crate) fn check_document(value: &Value) {
    if cfg!(debug_assertions) {
        page::check(value, false);
    }
}

/// Holds an event against the page.
pub(crate) fn check_event(value: &Value) {
    if cfg!(debug_assertions) {
        page::check(value, true);
    }
}

/// Titles of the page's sections.
#[cfg(debug_assertions)]
pub fn titles() -> Vec<&'static str> {
    page::sections().keys().map(String::as_str).collect()
}

#[cfg(not(debug_assertions))]
mod page {
    pub(super) fn check(_: &super::Value, _: bool) {}
}

#[cfg(debug_assertions)]
mod page {
    use serde_json::Value;
    use std::collections::BTreeMap;
    use std::sync::OnceLock;

    const TEXT: &str = include_str!("../../../docs/reference/json.md");

    /// Content of a field.
    #[derive(Clone, Debug, PartialEq)]
    pub(super) struct Kind {
        what: String,
        is_null: bool,
        is_optional: bool,
    }

    /// The fields of a document by their paths.
    pub(super) type Fields = BTreeMap<String, Kind>;

    /// The sections of the page by their titles.
    pub(super) fn sections() -> &'static BTreeMap<String, Fields> {
        static SECTIONS: OnceLock<BTreeMap<String, Fields>> = OnceLock::new();
        SECTIONS.get_or_init(|| read(TEXT))
    }

    pub(super) fn read(text: &str) -> BTreeMap<String, Fields> {
        let mut sections: BTreeMap<String, Fields> = BTreeMap::new();
        let mut title = String::new();
        for line in text.lines() {
            if let Some(next) = line.strip_prefix("## ") {
                title = next.to_string();
            } else if line.starts_with("Has the fields of [a report](#a-report)") {
                let report = sections.get("A report").cloned().expect("it comes first");
                sections.entry(title.clone()).or_default().extend(report);
            } else if let Some(row) = line.strip_prefix("| `") {
                let mut cells = row.split(" | ");
                let path = cells.next().unwrap_or_default().trim_end_matches('`').to_string();
                let kind = cells.next().unwrap_or_default();
                let (kind, is_optional) =
                    kind.strip_suffix(", optional").map_or((kind, false), |rest| (rest, true));
                let (kind, is_null) =
                    kind.strip_suffix(" or null").map_or((kind, false), |rest| (rest, true));
                let kind = Kind { what: kind.to_string(), is_null, is_optional };
                let meaning = cells.next().unwrap_or_default();
                assert!(meaning.len() > 4, "{title}: `{path}` has no meaning in docs/reference/json.md");
                let twice = sections.entry(title.clone()).or_default().insert(path.clone(), kind);
                assert!(twice.is_none(), "{title}: `{path}` is described twice");
            }
        }
        sections
    }

    /// Stops unless the value is as one of the sections says that the command line may mean.
    pub(super) fn check(value: &Value, is_event: bool) {
        if let Err(wrong) = errors_have_kinds(value) {
            panic!("{wrong}");
        }
        let typed: Vec<String> = std::env::args().skip(1).collect();
        let is_meant = |title: &str| {
            let mut words = title.split(' ');
            match words.next() {
                Some("Event") => is_event && value["event"].as_str() == words.next(),
                Some("Errors") => !is_event,
                Some("polycast") if !is_event => {
                    let mut typed = typed.iter();
                    words.all(|word| typed.any(|other| other == word))
                }
                _ => false,
            }
        };
        let meant = sections().iter().filter(|(title, _)| is_meant(title));
        let mut why = String::new();
        for (title, fields) in meant {
            match fits(value, fields) {
                Ok(()) => return,
                Err(wrong) => why += &format!("\n{title}: {wrong}"),
            }
        }
        panic!("docs/reference/json.md does not describe this document: {value}{why}");
    }

    /// Checks that all that has failed says of what kind that is: programs go by it, and not by sentences.
    /// What a device has last answered is a state of it.
    pub(super) fn errors_have_kinds(value: &Value) -> Result<(), String> {
        if let Value::Array(entries) = value {
            return entries.iter().try_for_each(errors_have_kinds);
        }
        let Some(object) = value.as_object() else { return Ok(()) };
        let has_failed = object.get("error").is_some_and(Value::is_string) && !object.contains_key("state");
        if has_failed && !object.get("kind").is_some_and(Value::is_string) {
            return Err(format!("{value} has an `error` without a `kind`"));
        }
        object.values().try_for_each(errors_have_kinds)
    }

    /// Checks that a document, or each of a list of documents, has the fields of a section.
    pub(super) fn fits(value: &Value, fields: &Fields) -> Result<(), String> {
        match value {
            Value::Array(entries) => entries.iter().try_for_each(|entry| is_object(entry, fields, "")),
            value => is_object(value, fields, ""),
        }
    }

    fn is_object(value: &Value, fields: &Fields, prefix: &str) -> Result<(), String> {
        let Some(object) = value.as_object() else { return Err(format!("`{prefix}` is no object")) };
        let any_name = format!("{prefix}*");
        if fields.contains_key(&any_name) {
            return object.values().try_for_each(|value| is_kind(value, fields, &any_name));
        }
        for (name, value) in object {
            let is_version = prefix.is_empty() && name == "version" && !fields.contains_key(name);
            if !is_version {
                is_kind(value, fields, &format!("{prefix}{name}"))?;
            }
        }
        let own = fields.iter().filter_map(|(path, kind)| Some((path.strip_prefix(prefix)?, kind)));
        let missing = own
            .filter(|(name, kind)| !kind.is_optional && !name.contains(['.', '[']))
            .find(|(name, _)| !object.contains_key(*name));
        match missing {
            Some((name, _)) => Err(format!("`{prefix}{name}` is missing, and is not said to be optional")),
            None => Ok(()),
        }
    }

    fn is_kind(value: &Value, fields: &Fields, path: &str) -> Result<(), String> {
        let Some(kind) = fields.get(path) else { return Err(format!("`{path}` has no description")) };
        if value.is_null() && kind.is_null {
            return Ok(());
        }
        let each = |is: fn(&Value) -> bool| value.as_array().is_some_and(|entries| entries.iter().all(is));
        let fits = match kind.what.as_str() {
            "any" => true,
            "text" => value.is_string(),
            "number" => value.is_number(),
            "bool" => value.is_boolean(),
            "list of any" => value.is_array(),
            "list of texts" => each(Value::is_string),
            "list of numbers" => each(Value::is_number),
            "list of lists" => each(Value::is_array),
            "object" => return is_object(value, fields, &format!("{path}.")),
            "list of objects" => {
                let entries = value.as_array().ok_or_else(|| format!("`{path}` is no list"))?;
                return entries.iter().try_for_each(|entry| is_object(entry, fields, &format!("{path}[].")));
            }
            other => return Err(format!("`{path}`: '{other}' is no type of the page")),
        };
        if fits { Ok(()) } else { Err(format!("`{path}` is {value}, and should be {}", kind.what)) }
    }
}

#[cfg(test)]
#[cfg(debug_assertions)]
mod tests {
    use super::page::{errors_have_kinds, fits, read, sections};
    use crate::args::{Args, elsewhere};
    use clap::CommandFactory;
    use serde_json::json;

    #[test]
    fn a_field_without_a_description_is_found() {
        let page = "## A\n| `a` | number | Some a. |\n| `l` | list of objects, optional | Some l. |\n\
                    | `l[].t` | text or null | Some t. |\n| `o` | object, optional | Some o. |\n| `o.*` | bool | Some. |\n";
        let fields = &read(page)["A"];
        for fine in [
            json!({ "a": 1 }),
            json!({ "a": 1.5, "l": [{ "t": "x" }, { "t": null }], "o": { "p": true, "q": false }, "version": 1 }),
            json!([{ "a": 1 }, { "a": 2 }]),
        ] {
            assert_eq!(fits(&fine, fields), Ok(()), "{fine}");
        }
        for (wrong, said) in [
            (json!({ "a": 1, "b": 2 }), "`b` has no description"),
            (json!({ "a": 1, "l": [{ "t": "x", "u": 1 }] }), "`l[].u` has no description"),
            (json!({ "l": [] }), "`a` is missing"),
            (json!({ "a": 1, "l": [{}] }), "`l[].t` is missing"),
            (json!({ "a": "1" }), "`a` is \"1\", and should be number"),
            (json!({ "a": null }), "`a` is null"),
            (json!({ "a": 1, "o": { "p": 1 } }), "`o.*` is 1"),
        ] {
            let why = fits(&wrong, fields).unwrap_err();
            assert!(why.contains(said), "{wrong}: {why}");
        }
    }

    #[test]
    fn an_error_without_a_kind_is_found() {
        for fine in [
            json!({ "error": "x", "kind": "path" }),
            json!({ "receivers": [{ "error": null }, { "error": "x", "kind": "path" }] }),
            json!([{ "devices": [{ "error": "x", "state": "not reached" }] }]),
        ] {
            assert_eq!(errors_have_kinds(&fine), Ok(()), "{fine}");
        }
        for wrong in [json!({ "error": "x" }), json!({ "objects": [{ "error": "x", "kind": null }] })] {
            assert!(errors_have_kinds(&wrong).is_err(), "{wrong}");
        }
    }

    /// Each command has a section; those that another program runs are in the test of that one.
    #[test]
    fn the_page_has_the_commands_that_there_are() {
        fn paths(command: &clap::Command, prefix: &str, into: &mut Vec<String>) {
            let is_own = |name: &str| name != "help" && elsewhere::Command::of(name).is_none();
            for inner in command.get_subcommands().filter(|inner| is_own(inner.get_name())) {
                let path = format!("{prefix} {}", inner.get_name());
                if inner.get_subcommands().next().is_none() {
                    into.push(path.clone());
                }
                paths(inner, &path, into);
            }
        }
        let mut commands = Vec::new();
        paths(&Args::command(), "polycast", &mut commands);
        let titles: Vec<&String> = sections().keys().filter(|title| title.starts_with("polycast ")).collect();
        let is_within = |inner: &str, outer: &str| inner == outer || inner.starts_with(&format!("{outer} "));
        for command in &commands {
            assert!(titles.iter().any(|title| is_within(command, title)), "{command} has no section");
        }
    }
}
