//! Machines, planners and formats know no sockets, clocks, threads or randomness of the system.
//!
//! The compiler keeps them out of a `no_std` crate; this keeps the crates `no_std`.

use crate::arrows;
use crate::code::{has_word, lines_outside_tests, without_comments_and_strings};
use crate::workspace::{Member, Source, Workspace};
use toml::{Table, Value};

/// The crates that must stay pure, as far as they are there.
pub(crate) const PURE: [&str; 6] = ["types", "topology", "planning", "wire", "protocol", "simulator"];
/// Packages that never use the standard library by default.
const NO_STD: [&str; 3] = ["libm", "rand_core", "rand_pcg"];
/// Packages that do without the standard library if their default features are off. Hash tables are looked up
/// by name only: code that goes through one in the table's own order is not deterministic.
const NO_STD_WITHOUT_DEFAULTS: [&str; 3] = ["hashbrown", "serde", "thiserror"];

/// Every breach of purity, one sentence each.
pub(crate) fn check(workspace: &Workspace) -> Vec<String> {
    let pure = workspace.members.iter().filter(|member| PURE.contains(&member.folder.as_str()));
    pure.flat_map(|member| {
        let mut problems = check_dependencies(member, &workspace.manifest);
        problems.extend(check_sources(member.wing, &member.folder, &workspace.sources));
        problems
    })
    .collect()
}

fn check_dependencies(member: &Member, root: &Table) -> Vec<String> {
    let mut problems = Vec::new();
    for package in arrows::dependencies(&member.manifest) {
        let package = package.as_str();
        let own = package.strip_prefix("polycast-").is_some_and(|folder| PURE.contains(&folder));
        if own || NO_STD.contains(&package) {
            continue;
        }
        let folder = &member.folder;
        if !NO_STD_WITHOUT_DEFAULTS.contains(&package) {
            problems.push(format!("{folder} must not use {package}: it is not known to do without std"));
        } else if !defaults_are_off(package, &member.manifest, root) {
            problems.push(format!("{folder} uses {package} with its default features, which need std"));
        }
    }
    problems
}

/// Returns true if a dependency's default features are off, here or in the workspace's table.
fn defaults_are_off(package: &str, manifest: &Table, root: &Table) -> bool {
    let off = |value: &Value| value.get("default-features").and_then(Value::as_bool) == Some(false);
    let Some(here) = manifest.get("dependencies").and_then(|table| table.get(package)) else {
        return false;
    };
    if here.get("workspace").and_then(Value::as_bool) == Some(true) {
        let shared = root.get("workspace").and_then(|table| table.get("dependencies")?.get(package));
        return shared.is_some_and(off)
            && here.get("default-features").and_then(Value::as_bool) != Some(true);
    }
    off(here)
}

fn check_sources(wing: &str, folder: &str, sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    let inside = format!("{wing}/{folder}/src/");
    let root_path = format!("{inside}lib.rs");
    let root = sources.iter().find(|source| source.path == root_path);
    if !root.is_some_and(|source| begins_with_no_std(&source.text)) {
        problems.push(format!("{root_path} does not begin with #![no_std]"));
    }
    for source in sources.iter().filter(|source| source.path.starts_with(&inside)) {
        let code = without_comments_and_strings(&source.text);
        for (number, line) in lines_outside_tests(&code) {
            if line.contains("extern crate") && has_word(line, "std") {
                problems.push(format!("{}:{number} brings std into a pure crate", source.path));
            }
        }
    }
    problems
}

/// Returns true if `#![no_std]` stands, unconditionally, before the first item.
fn begins_with_no_std(text: &str) -> bool {
    let code = without_comments_and_strings(text);
    let mut lines = code.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.by_ref().take_while(|line| line.starts_with("#![")).any(|line| line == "#![no_std]")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "[workspace.dependencies]\nthiserror = { version = \"2\", default-features = false }";

    fn workspace(folder: &str, dependencies: &str, sources: &[(&str, &str)], root: &str) -> Workspace {
        let source = |(name, text): &(&str, &str)| Source {
            path: format!("crates/{folder}/src/{name}"),
            text: (*text).to_string(),
        };
        Workspace {
            manifest: root.parse().unwrap(),
            members: vec![Member {
                wing: "crates",
                folder: folder.to_string(),
                manifest: format!("[dependencies]\n{dependencies}").parse().unwrap(),
            }],
            sources: sources.iter().map(source).collect(),
            documents: Vec::new(),
        }
    }

    fn problems(dependencies: &str, lib: &str) -> Vec<String> {
        check(&workspace("wire", dependencies, &[("lib.rs", lib)], ROOT))
    }

    #[test]
    fn the_workspace_is_pure_where_it_must_be() {
        assert_eq!(check(&crate::workspace::load()), Vec::<String>::new());
    }

    #[test]
    fn a_pure_crate_is_fine() {
        let lib = "//! Words.\n#![no_std]\nextern crate alloc;\n#[cfg(test)]\nextern crate std;\n";
        assert!(
            problems("thiserror.workspace = true\npolycast-types.workspace = true\nlibm = \"1\"", lib)
                .is_empty()
        );
        assert!(problems("", "// #![x]\n#![warn(missing_docs)]\n#![no_std]\nmod a;").is_empty());
    }

    #[test]
    fn a_crate_without_no_std_is_found() {
        for lib in
            ["", "mod a;\n", "// #![no_std]\nmod a;", "#![cfg_attr(x, no_std)]\nmod a;", "mod a;\n#![no_std]"]
        {
            assert!(problems("", lib)[0].contains("does not begin"), "{lib}");
        }
        assert!(!check(&workspace("wire", "", &[], ROOT)).is_empty());
    }

    #[test]
    fn std_by_the_back_door_is_found() {
        let lib = "#![no_std]\nmod a;";
        let inner = "mod b {\n    extern crate std;\n}\n";
        let found = check(&workspace("types", "", &[("lib.rs", lib), ("a.rs", inner)], ROOT));
        assert_eq!(found, ["crates/types/src/a.rs:2 brings std into a pure crate"]);
        assert_eq!(problems("", "#![no_std]\n#[macro_use]\nextern crate std as alloc;\n").len(), 1);
    }

    #[test]
    fn dependencies_that_bring_std_are_found() {
        let lib = "#![no_std]";
        for dependencies in
            ["tokio = \"1\"", "libc = \"1\"", "polycast-net.workspace = true", "blake3 = \"1\""]
        {
            assert!(problems(dependencies, lib)[0].contains("must not use"), "{dependencies}");
        }
        assert!(problems("thiserror = \"2\"", lib)[0].contains("default features"));
        assert!(problems("thiserror = { workspace = true, default-features = true }", lib).len() == 1);
        let root = "[workspace.dependencies]\nthiserror = \"2\"";
        let found = check(&workspace("wire", "thiserror.workspace = true", &[("lib.rs", lib)], root));
        assert!(found[0].contains("default features"), "{found:?}");
    }

    #[test]
    fn other_crates_may_do_as_they_like() {
        assert!(check(&workspace("net", "tokio = \"1\"", &[("lib.rs", "use std::net;")], ROOT)).is_empty());
    }
}
