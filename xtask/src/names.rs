//! Modules, items and tests that documents name: they are in the code.
//!
//! A document writes `planning::labels::Session` for a crate of ours without its prefix, and several at once
//! as `planning::{labels, relays}`; or the command that runs a test, `cargo test -p PACKAGE --test NAME`.

use crate::code::without_comments_and_strings;
use crate::workspace::Source;
use std::collections::BTreeMap;

/// Prefix of the names of our packages, which documents leave out of paths.
const PREFIX: &str = "polycast-";
/// Words that make an item of the name behind them.
const ITEMS: [&str; 9] = ["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "union"];

/// Every package's name with its folder.
pub(crate) fn packages() -> BTreeMap<String, String> {
    let name = |(folder, manifest): (String, toml::Table)| {
        let name = manifest.get("package")?.get("name")?.as_str()?;
        Some((name.to_string(), folder))
    };
    crate::workspace::packages().into_iter().filter_map(name).collect()
}

/// Every name in a document that is not there, one sentence each. `packages` are the names of our packages
/// with their folders.
pub(crate) fn check(
    documents: &[Source],
    sources: &[Source],
    packages: &BTreeMap<String, String>,
) -> Vec<String> {
    let code: BTreeMap<&str, &str> =
        sources.iter().map(|source| (source.path.as_str(), source.text.as_str())).collect();
    let crates: BTreeMap<String, &str> = packages
        .iter()
        .map(|(name, folder)| (name.strip_prefix(PREFIX).unwrap_or(name).replace('-', "_"), folder.as_str()))
        .collect();
    let mut problems = Vec::new();
    for document in documents {
        for (number, line) in document.text.lines().enumerate() {
            let at = format!("{}:{}", document.path, number + 1);
            for word in line.split('`').skip(1).step_by(2) {
                if let Some(test) = test_of(word) {
                    if !has_test(test, packages, &code) {
                        problems.push(format!("{at} names the test '{word}', which is not there"));
                    }
                    continue;
                }
                let missing = paths(word).into_iter().filter(|path| is_missing(path, &crates, &code));
                problems.extend(missing.map(|path| format!("{at} names {path}, which is not in the code")));
            }
        }
    }
    problems
}

/// The package and the name of the test that a command runs.
fn test_of(word: &str) -> Option<(&str, &str)> {
    let words: Vec<&str> = word.split_whitespace().collect();
    let behind = |flags: [&str; 2]| {
        let at = words.iter().position(|word| flags.contains(word))?;
        words.get(at + 1).copied()
    };
    if !words.starts_with(&["cargo", "test"]) {
        return None;
    }
    Some((behind(["-p", "--package"])?, behind(["--test", "--test"])?))
}

fn has_test(
    (package, test): (&str, &str),
    packages: &BTreeMap<String, String>,
    code: &BTreeMap<&str, &str>,
) -> bool {
    let Some(folder) = packages.get(package) else { return false };
    // A package of tests alone may have them beside its manifest.
    ["tests/", ""].iter().any(|below| {
        let one = format!("{folder}/{below}{test}");
        code.contains_key(format!("{one}.rs").as_str())
            || code.contains_key(format!("{one}/main.rs").as_str())
    }) || manifest_names(folder, test)
}

/// Returns true if the package's manifest gives this name to a test.
fn manifest_names(folder: &str, test: &str) -> bool {
    let manifest = crate::workspace::root().join(folder).join("Cargo.toml");
    std::fs::read_to_string(manifest).is_ok_and(|text| text.contains(&format!("name = \"{test}\"")))
}

/// The paths that a word names, without braces; none if it is no path.
fn paths(word: &str) -> Vec<String> {
    let is_path =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '{' | '}' | ',' | ' ' | '(' | ')');
    if !word.contains("::") || !word.chars().all(is_path) || word.contains(' ') && !word.contains('{') {
        return Vec::new();
    }
    expand(word.trim_end_matches("()"))
}

/// Writes each part in braces out.
fn expand(word: &str) -> Vec<String> {
    let Some(open) = word.find('{') else { return vec![word.trim().to_string()] };
    let (mut depth, mut from, mut parts, mut close) = (0, open + 1, Vec::new(), word.len());
    for (at, c) in word.char_indices().skip(open) {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => {
                parts.push(&word[from..at]);
                close = at + 1;
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 1 => {
                parts.push(&word[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    let behind = word.get(close..).unwrap_or_default();
    let all = parts.into_iter().map(|part| format!("{}{}{behind}", &word[..open], part.trim()));
    all.flat_map(|part| expand(&part)).collect()
}

/// Returns true if a path begins with a crate of ours and leads nowhere.
fn is_missing(path: &str, crates: &BTreeMap<String, &str>, code: &BTreeMap<&str, &str>) -> bool {
    let mut segments = path.split("::");
    let first = segments.next().unwrap_or_default();
    let Some(folder) = crates.get(first.strip_prefix("polycast_").unwrap_or(first)) else { return false };
    let mut module = format!("{folder}/src");
    let mut files = vec![format!("{module}/lib.rs"), format!("{module}/main.rs")];
    for segment in segments {
        let below = format!("{module}/{segment}");
        let own = [format!("{below}.rs"), format!("{below}/mod.rs")];
        if own.iter().any(|file| code.contains_key(file.as_str())) {
            (module, files) = (below, own.to_vec());
            continue;
        }
        // What is not a file is an item of the module, of one below it that it names onwards, or of a type.
        let within = format!("{module}/");
        let mut texts =
            code.iter().filter(|(file, _)| files.iter().any(|own| own == *file) || file.starts_with(&within));
        return !texts.any(|(_, text)| has_item(text, segment));
    }
    false
}

fn has_item(text: &str, name: &str) -> bool {
    let code = without_comments_and_strings(text);
    let words: Vec<&str> = code
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect();
    words.windows(2).any(|pair| ITEMS.contains(&pair[0]) && pair[1] == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    #[test]
    fn names_that_lead_nowhere_are_found() {
        let sources = [
            source("crates/planning/src/lib.rs", "pub mod labels;\npub use labels::Session;\n"),
            source("crates/planning/src/labels.rs", "mod deep;\npub struct Session;\n// fn ghost\n"),
            source("crates/planning/src/labels/deep.rs", "pub fn found() {}\n"),
            source("crates/planning/tests/many.rs", ""),
        ];
        let packages = [("polycast-planning".to_string(), "crates/planning".to_string())].into();
        let problems = |text: &str| check(&[source("docs/a.md", text)], &sources, &packages);
        for right in [
            "`planning::labels::Session`, `planning::{labels, labels::deep}`, `planning::labels::found()`",
            "`polycast_planning::Session`",
            "`std::io::Read`, `not a path`, `a: b`",
            "`cargo test -p polycast-planning --test many`",
        ] {
            assert_eq!(problems(right), Vec::<String>::new(), "{right}");
        }
        for wrong in [
            "`planning::ghosts`",
            "`planning::labels::ghost`",
            "`planning::{labels, relays}`",
            "`planning::{labels::{deep, none}}`",
            "`cargo test -p polycast-planning --test few`",
            "`cargo test -p polycast-plan --test many`",
        ] {
            assert_eq!(problems(wrong).len(), 1, "{wrong}");
        }
    }
}
