//! Rules for doc comments of Rust: they begin with a noun or a verb, are sentences of their own, and fit into
//! a line's width.
//!
//! A fifth of them once began with a question word ("What a receiver lacks."), which says what the item
//! answers and not what it is; the code bases of this field that we read have 0 to 2 %.

use crate::workspace::Source;

/// Words that no doc comment begins with. The item is named by the noun behind them, or by a verb.
const QUESTION_WORDS: [&str; 10] =
    ["What", "Whether", "How", "Where", "Which", "Whom", "Whose", "When", "Why", "Those"];
/// Width of a line that is nothing but a comment, in characters; rustfmt holds that of code.
const WIDTH_MAX: usize = 110;
/// Folders whose doc comments are the help texts of the command line: these are read in a terminal, behind
/// the option's name.
const HELP_TEXTS: [&str; 2] = ["crates/polycast/src/args", "research/cli/src/args"];
/// Attributes that make the comment before them a help text.
const HELP_ATTRIBUTES: [&str; 2] = ["#[arg", "#[command"];

/// Every breach, one sentence each.
pub(crate) fn check(sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for Source { path, text } in sources.iter().filter(|source| source.path.ends_with(".rs")) {
        let lines: Vec<&str> = text.lines().collect();
        let mut is_drawn = false;
        for (i, line) in lines.iter().enumerate() {
            let at = format!("{path}:{}", i + 1);
            let doc = doc_comment(line);
            // Code, drawings and rows of tables cannot be wrapped.
            is_drawn = doc.is_some_and(|(_, words)| is_drawn != words.starts_with("```"));
            let is_row = doc.is_some_and(|(_, words)| words.starts_with('|'));
            let is_comment = line.trim_start().starts_with("//");
            if is_comment && line.chars().count() > WIDTH_MAX && !is_drawn && !is_row {
                problems.push(format!("{at} has a comment wider than {WIDTH_MAX} characters: wrap it"));
            }
            let Some((kind, words)) = doc else { continue };
            let is_first = i == 0 || doc_comment(lines[i - 1]).is_none_or(|(before, _)| before != kind);
            if is_first && !HELP_TEXTS.iter().any(|folder| path.starts_with(folder)) && !is_help(&lines[i..])
            {
                check_beginning(&at, words, &mut problems);
            }
        }
    }
    problems
}

/// Checks the first line of a doc comment.
fn check_beginning(at: &str, words: &str, problems: &mut Vec<String>) {
    let first = words.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    if QUESTION_WORDS.contains(&first) {
        problems
            .push(format!("{at} begins with \"{first}\": begin with the noun that it is, or with a verb"));
    } else if words.starts_with(|c: char| c.is_lowercase()) {
        problems.push(format!("{at} begins with \"{first}\": a doc comment is a sentence of its own"));
    }
}

/// Returns the mark and the words of a line that is a doc comment.
fn doc_comment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let mark = ["///", "//!"].into_iter().find(|mark| line.starts_with(mark))?;
    let words = &line[mark.len()..];
    // A row of slashes is a rule, and no documentation.
    (words.is_empty() || words.starts_with(' ')).then(|| (mark, words.trim()))
}

/// Returns true if the comment that these lines begin with is a help text.
fn is_help(lines: &[&str]) -> bool {
    let item = lines.iter().find(|line| doc_comment(line).is_none());
    item.is_some_and(|item| HELP_ATTRIBUTES.iter().any(|attribute| item.trim_start().starts_with(attribute)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> Vec<String> {
        check(&[Source { path: path.to_string(), text: text.to_string() }])
    }

    #[test]
    fn doc_comments_of_the_workspace_begin_with_nouns_and_verbs() {
        let workspace = crate::workspace::load();
        assert!(workspace.sources.len() > 10, "no sources were found");
        assert_eq!(check(&workspace.sources), Vec::<String>::new());
    }

    #[test]
    fn question_words_are_found_at_the_beginning_alone() {
        let found = problems("crates/a/src/a.rs", "    /// Whether it is done.\n    done: bool,\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/a/src/a.rs:1 begins with \"Whether\""), "{found:?}");
        assert_eq!(problems("a.rs", "//! What a module is.\n").len(), 1);
        for fine in [
            "/// Set once it is done, whether\n/// or not all have it.\n/// Where not, it is red.\ndone: bool,\n",
            "// Whether it is done.\n",
            "//// What is a rule\n",
            "/// Whatever came first.\nfn f() {}\n",
            "/// What to send.\n#[arg(long)]\nwhat: String,\n",
        ] {
            assert_eq!(problems("a.rs", fine), Vec::<String>::new(), "{fine}");
        }
        assert!(problems("crates/polycast/src/args/a.rs", "/// What to send\n").is_empty());
        assert!(problems("a.py", "/// What\n").is_empty());
    }

    #[test]
    fn fragments_and_wide_comments_are_found() {
        assert_eq!(problems("a.rs", "/// A key,\na: u8,\n/// and a lock.\nb: u8,\n").len(), 1);
        assert!(problems("a.rs", "/// `a` and b.\n").is_empty());
        let wide = |length: usize| format!("    // {}\n", "é".repeat(length - 7));
        assert!(problems("a.rs", &wide(110)).is_empty());
        assert_eq!(problems("a.rs", &wide(111)).len(), 1);
        assert!(problems("a.rs", &format!("let a = \"{}\";", "a".repeat(120))).is_empty());
        let drawn = |end: &str| format!("//! A drawing\n//!\n//! ```text\n//! {}\n{end}", "-".repeat(120));
        assert!(problems("a.rs", &drawn("//! ```\n")).is_empty());
        assert_eq!(problems("a.rs", &drawn(&format!("//! ```\n//! {}\n", "-".repeat(120)))).len(), 1);
        assert!(problems("a.rs", &format!("/// | {} |\n", "a".repeat(120))).is_empty());
    }
}
