//! Rules of style that the compiler and clippy do not hold.

use crate::code::{functions, has_word, without_comments_and_strings};
use crate::workspace::Source;

/// No source file is longer.
const LINES_MAX: usize = 1_000;
/// No function is longer, so that one screen shows it.
const FUNCTION_LINES_MAX: usize = 70;
/// Functions that were longer when this rule was made. The list only ever gets shorter.
const LONG_FUNCTIONS: [(&str, &str); 8] = [
    ("research/lab/src/spec.rs", "network"),
    ("research/lab/tests/label_switches.rs", "compare"),
    ("crates/net/src/devices/openflow/mod.rs", "emit_body"),
    ("crates/planning/tests/fabrics.rs", "plans_are_disjoint_and_reach_everybody"),
    ("crates/protocol/tests/push/world.rs", "apply"),
    ("crates/protocol/tests/push/world.rs", "drain_receiver"),
    ("crates/wire/src/control.rs", "emit_body"),
    ("crates/wire/src/control.rs", "parse_body"),
];
/// Folder where unsafe code may be; each block there says why it is sound.
const UNSAFE_FOLDER: &str = "crates/net/";
/// Macros that mark unfinished work.
const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Every breach, one sentence each.
pub(crate) fn check(sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for Source { path, text } in sources {
        let lines = text.lines().count();
        if lines > LINES_MAX {
            problems.push(format!("{path} has {lines} lines: split it, {LINES_MAX} are the most"));
        }
        if path.ends_with(".rs") {
            check_code(path, text, &mut problems);
        }
    }
    problems
}

/// Functions on the list of long ones that are not long any more.
pub(crate) fn check_list(sources: &[Source]) -> Vec<String> {
    let is_long = |path: &str, name: &str| {
        let source = sources.iter().find(|source| source.path == path);
        let code = source.map(|source| without_comments_and_strings(&source.text)).unwrap_or_default();
        functions(&code).iter().any(|(found, _, lines)| *found == name && *lines > FUNCTION_LINES_MAX)
    };
    let shorter = LONG_FUNCTIONS.iter().filter(|(path, name)| !is_long(path, name));
    shorter
        .map(|(path, name)| {
            format!("{name} in {path} is short now: take it off LONG_FUNCTIONS in xtask/src/tidy.rs")
        })
        .collect()
}

fn check_code(path: &str, text: &str, problems: &mut Vec<String>) {
    let code = without_comments_and_strings(text);
    for (name, at, lines) in functions(&code) {
        if lines > FUNCTION_LINES_MAX && !LONG_FUNCTIONS.contains(&(path, name)) {
            problems.push(format!(
                "{path}:{at} {name} has {lines} lines: split it, {FUNCTION_LINES_MAX} are the most"
            ));
        }
    }
    check_allowances(path, text, &code, problems);
    for (i, line) in code.lines().enumerate() {
        let at = format!("{path}:{}", i + 1);
        if has_word(line, "unsafe") && !path.starts_with(UNSAFE_FOLDER) {
            problems.push(format!("{at} has unsafe code, which belongs into {UNSAFE_FOLDER}"));
        }
        for name in UNFINISHED {
            if has_word(line, name) && line.contains(&format!("{name}!")) {
                problems.push(format!("{at} is unfinished: {name}!"));
            }
        }
    }
}

/// Warnings are silenced with a reason. Unsafe code has its reason in the comment that clippy asks for.
fn check_allowances(path: &str, text: &str, code: &str, problems: &mut Vec<String>) {
    let lines: Vec<&str> = text.lines().collect();
    for (i, line) in code.lines().enumerate() {
        let opens =
            ["#[allow(", "#![allow(", "#[expect(", "#![expect("].iter().any(|word| line.contains(word));
        if !opens {
            continue;
        }
        let end = lines[i..].iter().position(|line| line.trim_end().ends_with(']')).unwrap_or_default();
        let attribute = lines[i..=i + end].concat();
        if !attribute.contains("reason = ") && !attribute.contains("(unsafe_code)") {
            problems.push(format!("{path}:{} silences a warning: say why with reason = \"...\"", i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> Vec<String> {
        check(&[Source { path: path.to_string(), text: text.to_string() }])
    }

    #[test]
    fn the_workspace_is_tidy() {
        let workspace = crate::workspace::load();
        assert!(workspace.sources.len() > 10, "no sources were found");
        assert_eq!(check(&workspace.sources), Vec::<String>::new());
        assert_eq!(check_list(&workspace.sources), Vec::<String>::new());
    }

    #[test]
    fn long_functions_are_found_and_those_on_the_list_get_shorter() {
        let function = |lines: usize| format!("fn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2));
        assert!(problems("crates/a/src/a.rs", &function(70)).is_empty());
        assert!(problems("crates/a/src/a.rs", &function(71))[0].contains("a.rs:1 f has 71 lines"));
        let (path, name) = LONG_FUNCTIONS[0];
        let long = function(71).replace("fn f", &format!("fn {name}"));
        assert!(problems(path, &long).is_empty());
        let list = |text: &str| check_list(&[Source { path: path.to_string(), text: text.to_string() }]);
        assert_eq!(list(&long).len() + 1, list("").len());
    }

    #[test]
    fn silent_warnings_are_found() {
        let path = "crates/a/src/a.rs";
        assert_eq!(problems(path, "#[allow(dead_code)]\nfn f() {}").len(), 1);
        assert_eq!(problems(path, "#![expect(\n    dead_code\n)]\n").len(), 1);
        assert!(problems(path, "#[allow(dead_code, reason = \"why\")]\nfn f() {}").is_empty());
        assert!(problems(path, "#![allow(\n    dead_code,\n    reason = \"why\"\n)]\n").is_empty());
        assert!(problems(path, "#[allow(unsafe_code)]\nfn f() {}").is_empty());
        assert!(problems(path, "// #[allow(dead_code)]\n").is_empty());
    }

    #[test]
    fn long_files_are_found() {
        assert!(problems("crates/a/src/a.rs", &"\n".repeat(1_000)).is_empty());
        assert!(problems("crates/a/src/a.rs", &"\n".repeat(1_001))[0].contains("1001 lines"));
        assert_eq!(problems("python/a.py", &"\n".repeat(1_001)).len(), 1);
    }

    #[test]
    fn unsafe_code_is_found() {
        let found = problems("crates/agent/src/a.rs", "fn f() {\n    unsafe { g() }\n}");
        assert!(found[0].starts_with("crates/agent/src/a.rs:2 has unsafe code"), "{found:?}");
        assert!(problems("crates/net/src/a.rs", "unsafe { g() }").is_empty());
        assert!(
            problems("crates/agent/src/a.rs", "// unsafe\n#![deny(unsafe_code)]\nlet a = \"unsafe\";")
                .is_empty()
        );
    }

    #[test]
    fn unfinished_work_is_found() {
        for name in UNFINISHED {
            assert_eq!(problems("crates/a/src/a.rs", &format!("fn f() {{ {name}!() }}")).len(), 1, "{name}");
            assert!(problems("crates/a/src/a.rs", &format!("// {name}!()\nmy_{name}!();")).is_empty());
        }
    }
}
