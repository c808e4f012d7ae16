//! Modules in circles: two modules of one crate that use each other, directly or through others, can only be
//! understood together. Each crate may have as many as it has today, and never more.
//!
//! A module uses another one where it imports from it (`use`), or names a path that begins with `crate` or
//! `super`. A re-export (`pub use`) uses nothing, a path that begins with the name of a child is not looked
//! at, and tests may use anything.

use crate::code::{lines_outside_tests, without_comments_and_strings};
use crate::workspace::{Member, Source};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Modules in circles of each crate that has any. The list only gets shorter.
const IN_CIRCLES: &[(&str, &str)] = &[
    (
        "crates/agent",
        "daemon::manager_link daemon::manager_link::directory daemon::manager_link::permits \
         daemon::manager_link::table daemon::objects daemon::objects::digests daemon::objects::fetch \
         daemon::objects::topics daemon::sends daemon::sends::deliver daemon::sends::delta \
         label_switch::orders label_switch::switches transfer::discovery transfer::discovery::tries \
         transfer::link transfer::pairing transfer::receiver transfer::receiver::exchange \
         transfer::receiver::intake transfer::receiver::rack transfer::serve transfer::serve::exchange \
         transfer::serve::giving transfer::source transfer::source::account transfer::source::mesh",
    ),
    (
        "crates/manager",
        "config core core::fail_over core::hear core::obey core::permits core::readiness core::seats \
         core::streams fabrics fabrics::ocs fabrics::switch_ports fabrics::tors store store::history \
         store::room",
    ),
    ("crates/net", "frames frames::block store store::room tls tls::files"),
    (
        "crates/protocol",
        "directory directory::editions directory::objects directory::topics leases leases::changes \
         push::overlay::upstreams push::overlay::upstreams::lanes push::sender push::sender::sent \
         push::sender::window session::roster session::roster::away",
    ),
    ("research/cli", "simulate simulate::rows"),
    ("research/experiments", "report::draw report::page report::truth"),
    (
        "research/simulator",
        "packet::hooks packet::pull packet::pull::flow packet::pull::watch packet::pull::world \
         packet::scenario packet::world packet::world::attacker packet::world::lies packet::world::mesh \
         packet::world::pages packet::world::racks packet::world::receiver packet::world::streams",
    ),
    (
        "verify/swarm",
        "attacker attacker::pulled::attack attacker::pulled::node attacker::pulled::world manager \
         manager::agent manager::choice manager::office push",
    ),
];

/// A module's path below its crate; empty for the crate's root.
type Name = Vec<String>;
/// The modules of a crate, each with those that it uses.
type Arrows = BTreeMap<Name, BTreeSet<Name>>;

/// Every crate with another module in a circle than those on the list, or without one of these, one sentence
/// each.
pub(crate) fn check(members: &[Member], sources: &[Source]) -> Vec<String> {
    let folders = members.iter().map(|member| format!("{}/{}", member.wing, member.folder));
    let known =
        |folder: &str| IN_CIRCLES.iter().find(|(name, _)| *name == folder).map_or("", |(_, known)| known);
    folders.filter_map(|folder| check_crate(&folder, known(&folder), sources)).collect()
}

fn check_crate(folder: &str, known: &str, sources: &[Source]) -> Option<String> {
    let arrows = arrows(&modules(folder, sources));
    let around: BTreeMap<String, Vec<String>> =
        arrows.keys().filter_map(|name| Some((in_words(name), around(&arrows, name)?))).collect();
    let known: BTreeSet<&str> = known.split_whitespace().collect();
    let new = around.iter().filter(|(name, _)| !known.contains(name.as_str())).map(|(_, way)| way);
    if let Some(way) = new.min_by_key(|way| way.len()) {
        let (now, most, way) = (around.len(), known.len(), way.join(" -> "));
        return Some(format!(
            "{folder} has {now} modules in circles, and {most} are the most: {way} is new, so move what a lower one \
             of them needs of a higher one below both"
        ));
    }
    let gone: Vec<&str> = known.into_iter().filter(|name| !around.contains_key(*name)).collect();
    let gone = (!gone.is_empty()).then(|| gone.join(", "))?;
    Some(format!("{folder} has {gone} in no circle any more: take it off IN_CIRCLES in xtask/src/circles.rs"))
}

/// The modules of a crate with their code outside tests, those in folders and files of tests left out.
fn modules(folder: &str, sources: &[Source]) -> BTreeMap<Name, String> {
    let inside = format!("{folder}/src/");
    let mut modules: BTreeMap<Name, String> = BTreeMap::new();
    for source in sources {
        let below = source.path.strip_prefix(&inside).and_then(|path| path.strip_suffix(".rs"));
        let Some(below) = below else { continue };
        let mut name: Name = below.split('/').map(String::from).collect();
        if name.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
            name.pop();
        }
        let is_of_tests = name.iter().any(|part| part == "tests" || part.ends_with("_tests"));
        if is_of_tests || name.first().is_some_and(|first| first == "bin") {
            continue;
        }
        let code = without_comments_and_strings(&source.text);
        let text = modules.entry(name).or_default();
        for (_, line) in lines_outside_tests(&code) {
            text.push_str(line);
            text.push('\n');
        }
    }
    modules
}

fn arrows(modules: &BTreeMap<Name, String>) -> Arrows {
    let of_module = |(name, code): (&Name, &String)| {
        let used = paths(code).into_iter().filter_map(|path| resolved(name, &path, modules));
        (name.clone(), used.filter(|used| used != name).collect())
    };
    modules.iter().map(of_module).collect()
}

/// The module that a path in the code of a module leads to, if that is one of its crate.
fn resolved(from: &Name, path: &Name, modules: &BTreeMap<Name, String>) -> Option<Name> {
    let mut steps = path.iter().map(String::as_str).peekable();
    let mut whole = match *steps.peek()? {
        "crate" => {
            steps.next();
            Name::new()
        }
        "self" | "super" => from.clone(),
        first => {
            let child = from.iter().map(String::as_str).chain([first]).map(String::from).collect::<Name>();
            if !modules.contains_key(&child) {
                return None;
            }
            from.clone()
        }
    };
    while let Some(step) = steps.next_if(|step| matches!(*step, "self" | "super")) {
        if step == "super" {
            whole.pop();
        }
    }
    whole.extend(steps.map(String::from));
    while !modules.contains_key(&whole) {
        whole.pop()?;
    }
    Some(whole)
}

/// The paths that code imports or names, from inside its modules in braces as if these were the file's own.
fn paths(code: &str) -> Vec<Name> {
    let words = words(code);
    let (mut found, mut at) = (Vec::new(), 0);
    // Modules in braces around the place, each with the depth of braces outside it.
    let (mut within, mut depth): (Vec<(String, usize)>, usize) = (Vec::new(), 0);
    while at < words.len() {
        let before = at.checked_sub(1).map_or("", |before| words[before]);
        let mut here = Vec::new();
        match words[at] {
            "use" if before.ends_with(')') || before == "pub" => at = end_of(&words, at),
            // `impl Trait + use<'a>` imports nothing.
            "use" if words.get(at + 1) == Some(&"<") => {}
            "use" => {
                let end = end_of(&words, at);
                imports(&words[at + 1..end], &mut Name::new(), &mut here);
                at = end;
            }
            "mod" if words.get(at + 2) == Some(&"{") => {
                within.push((words[at + 1].to_string(), depth));
                (depth, at) = (depth + 1, at + 2);
            }
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                within.retain(|(_, outside)| *outside < depth);
            }
            "crate" | "super" if before != "$" && before != "::" && words.get(at + 1) == Some(&"::") => {
                let mut path = vec![words[at].to_string()];
                while words.get(at + 1) == Some(&"::") && words.get(at + 2).is_some_and(|word| is_name(word))
                {
                    path.push(words[at + 2].to_string());
                    at += 2;
                }
                here.push(path);
            }
            _ => {}
        }
        found.extend(here.into_iter().filter_map(|path| from_file(&within, path)));
        at += 1;
    }
    found
}

/// A path as the file's own module would write it.
fn from_file(within: &[(String, usize)], path: Name) -> Option<Name> {
    let supers = path.iter().take_while(|step| *step == "super").count();
    match path.first()?.as_str() {
        "super" if supers <= within.len() => {
            let outer = within[..within.len() - supers].iter().map(|(name, _)| name.clone());
            Some(["self".to_string()].into_iter().chain(outer).chain(path.into_iter().skip(supers)).collect())
        }
        "super" => Some(path.into_iter().skip(within.len()).collect()),
        _ => Some(path),
    }
}

fn end_of(words: &[&str], from: usize) -> usize {
    words[from..].iter().position(|word| *word == ";").map_or(words.len(), |end| from + end)
}

/// Adds the paths of an import: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn imports(words: &[&str], prefix: &mut Name, found: &mut Vec<Name>) {
    let (mut at, own) = (0, prefix.len());
    let mut is_open = false;
    while at < words.len() {
        match words[at] {
            "{" => {
                let end = at + closing(&words[at..]);
                imports(&words[at + 1..end], prefix, found);
                (at, is_open) = (end, false);
                prefix.truncate(own);
            }
            "," => {
                found.extend(is_open.then(|| prefix.clone()));
                is_open = false;
                prefix.truncate(own);
            }
            "as" => at += 1,
            word if is_name(word) => {
                prefix.push(word.to_string());
                is_open = true;
            }
            _ => {}
        }
        at += 1;
    }
    found.extend(is_open.then(|| prefix.clone()));
    prefix.truncate(own);
}

/// Index of the brace that closes the one that the words begin with.
fn closing(words: &[&str]) -> usize {
    let mut depth = 0_usize;
    for (at, word) in words.iter().enumerate() {
        match *word {
            "{" => depth += 1,
            "}" if depth == 1 => return at,
            "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    words.len()
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The words and signs of code: names and numbers whole, `::` as one, `(crate)` and the like as one.
fn words(code: &str) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), code.trim_start());
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let len = if is_word(first) {
            rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else if ["(crate)", "(super)", "(in "].iter().any(|start| rest.starts_with(start)) {
            rest.find(')').map_or(1, |end| end + 1)
        } else {
            first.len_utf8()
        };
        words.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    words
}

/// All modules that one leads to, each with the one before it on a shortest way.
fn ways(arrows: &Arrows, from: &Name) -> BTreeMap<Name, Name> {
    let (mut before, mut pending) = (BTreeMap::new(), VecDeque::from([from.clone()]));
    while let Some(at) = pending.pop_front() {
        for next in arrows.get(&at).into_iter().flatten() {
            if !before.contains_key(next) {
                before.insert(next.clone(), at.clone());
                pending.push_back(next.clone());
            }
        }
    }
    before
}

fn in_words(name: &Name) -> String {
    if name.is_empty() { "crate".to_string() } else { name.join("::") }
}

/// A shortest way from a module back to it, in words; none where it lies in no circle.
fn around(arrows: &Arrows, from: &Name) -> Option<Vec<String>> {
    let before = ways(arrows, from);
    let mut way = vec![in_words(from)];
    let mut at = before.get(from)?;
    while at != from {
        way.push(in_words(at));
        at = before.get(at)?;
    }
    way.push(in_words(from));
    way.reverse();
    Some(way)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: format!("crates/new/src/{path}"), text: text.to_string() }
    }

    fn problem(files: &[(&str, &str)]) -> Option<String> {
        beside("", files)
    }

    /// The same where these modules are in circles already.
    fn beside(known: &str, files: &[(&str, &str)]) -> Option<String> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| source(path, text)).collect();
        check_crate("crates/new", known, &sources)
    }

    #[test]
    fn no_crate_has_more_modules_in_circles_than_before() {
        let workspace = crate::workspace::load();
        assert_eq!(check(&workspace.members, &workspace.sources), Vec::<String>::new());
    }

    #[test]
    fn a_circle_is_named() {
        let found = problem(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\n"),
            ("a.rs", "use crate::b::{self, c::D as E};\npub struct A;\n"),
            ("b/mod.rs", "pub(crate) mod c;\n"),
            (
                "b/c.rs",
                "use core::fmt;\nuse super::super::d::Other;\nfn f() -> crate::a::A { crate::a::A }\n",
            ),
        ]);
        let found = found.unwrap();
        assert!(found.contains("crates/new has 2 modules in circles, and 0 are the most"), "{found}");
        assert!(
            found.contains("a -> b::c -> a is new") || found.contains("b::c -> a -> b::c is new"),
            "{found}"
        );
    }

    #[test]
    fn a_parent_that_uses_its_child_is_in_a_circle_with_it() {
        let found = problem(&[
            ("lib.rs", "mod store;\n"),
            ("store.rs", "mod room;\nuse room::Room;\nstruct Error;\n"),
            ("store/room.rs", "use super::Error;\npub struct Room;\n"),
        ]);
        assert!(found.unwrap().contains("store -> store::room -> store"));
    }

    #[test]
    fn the_list_only_gets_shorter() {
        let circle = [("a.rs", "use crate::b::B;\n"), ("b.rs", "use crate::a::A;\n"), ("c.rs", "")];
        assert_eq!(beside("a b", &circle), None);
        let larger =
            [circle[0], circle[1], ("a/d.rs", "use super::A;\n"), ("b/e.rs", "use crate::a::d::D;\n")];
        let larger = [&larger[..], &[("a/f.rs", ""), ("b.rs", "use crate::a::A;\nuse e::E;\n")]].concat();
        let found = beside("a b", &larger).unwrap();
        assert!(found.contains("4 modules in circles, and 2 are the most"), "{found}");
        let found = beside("a b c", &circle).unwrap();
        assert!(found.contains("c in no circle any more: take it off IN_CIRCLES"), "{found}");
    }

    #[test]
    fn what_leads_one_way_only_is_fine() {
        for files in [
            [("a.rs", "use crate::b::B;\n"), ("b.rs", "//! As [`crate::a::A`].\npub struct B;\n")],
            // Re-exports, tests and words in strings use nothing.
            [("a.rs", "use crate::b::B;\n"), ("b.rs", "pub use crate::a::A;\npub(crate) use super::a::C;\n")],
            [("a.rs", "use super::b;\n"), ("b.rs", "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n")],
            [("a.rs", "use super::b;\n"), ("b.rs", "const WORDS: &str = \"use crate::a::A;\";\n")],
            [("a.rs", "use super::b;\n"), ("b/tests.rs", "use crate::a::A;\n")],
            // What a macro names is its caller's.
            [("a.rs", "use super::b;\n"), ("b.rs", "macro_rules! m { () => { $crate::a::A } }\n")],
        ] {
            assert_eq!(problem(&files), None, "{files:?}");
        }
    }

    #[test]
    fn modules_in_braces_count_for_their_file() {
        let inner =
            "mod inner {\n    use super::super::a::A;\n    mod most {\n        use super::C;\n    }\n}\n";
        let found = problem(&[("a.rs", "use crate::b::B;\n"), ("b.rs", inner)]);
        assert!(found.unwrap().contains("2 modules in circles"));
        let own = "mod inner {\n    use super::B;\n}\nuse crate::c::C;\n";
        assert_eq!(problem(&[("a.rs", "use crate::b::B;\n"), ("b.rs", own), ("c.rs", "")]), None);
    }

    #[test]
    fn imports_are_taken_apart() {
        let found: Vec<String> = paths("use a::{b, c::{d, e as f}, self, g::*};\nuse h;\n")
            .iter()
            .map(|path| path.join("::"))
            .collect();
        assert_eq!(found, ["a::b", "a::c::d", "a::c::e", "a::self", "a::g", "h"]);
    }
}
