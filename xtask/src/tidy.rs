//! Rules of style that the compiler and clippy do not hold.

use crate::code::{has_word, without_comments_and_strings};
use crate::workspace::Source;

/// No source file is longer.
const LINES_MAX: usize = 1_000;
/// Where unsafe code may be; each block there says why it is sound.
const UNSAFE_FOLDER: &str = "crates/net/";
/// Macros that mark unfinished work.
const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Every breach, one sentence each.
pub fn check(sources: &[Source]) -> Vec<String> {
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

fn check_code(path: &str, text: &str, problems: &mut Vec<String>) {
    let code = without_comments_and_strings(text);
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
