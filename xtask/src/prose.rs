//! Words that documents, comments and what programs say do without: a sentence names its receiver, agent,
//! host or user.

use crate::code::{comments_alone, strings};
use crate::workspace::Source;

/// This file names the words that it refuses.
const NAMES_THE_WORDS: &str = "xtask/src/prose.rs";
/// Files that are not free of these words yet. The list only ever gets shorter.
const NOT_YET: [&str; 1] = ["crates/protocol/src/push/sender/slow.rs"];
/// Beginnings of lines that are nothing but a comment, in sources that are not Rust.
const COMMENTS: [(&str, &[&str]); 3] =
    [(".proto", &["//"]), (".java", &["//", "/*", "*"]), (".py", &["#", "\"\"\""])];
/// Refused in any case of letters, also where a line ends between two words. The second text says what to
/// write.
const REFUSED: [(&str, &str); 9] = [
    ("whoever", NAME_IT),
    ("whomever", NAME_IT),
    ("nobody", NAME_IT),
    ("somebody", NAME_IT),
    ("who is", NAME_IT),
    ("for ever", SAY_HOW_LONG),
    ("forever", SAY_HOW_LONG),
    ("thinks", SAY_WHAT_IT_DOES),
    ("wants", SAY_WHAT_IT_DOES),
];
const NAME_IT: &str = "name the receiver, agent, host or user";
const SAY_HOW_LONG: &str = "say how long, or what ends it";
const SAY_WHAT_IT_DOES: &str = "say what the machine does";
/// Characters that open a span of code, and those that open or begin a quotation.
const CODE_AND_QUOTES: [char; 3] = ['`', '"', '>'];
/// Refused at the beginning of a sentence, which is where it has a capital.
const SUBJECT: &str = "Who";

/// Every breach in documents, one sentence each.
pub(crate) fn check(documents: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for Source { path, text } in documents {
        check_prose(path, 1, &without_code_and_quotes(text), &mut problems);
    }
    problems
}

/// Every breach in comments, and in the strings of Rust, one sentence each.
pub(crate) fn check_sources(sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for Source { path, text } in sources.iter().filter(|source| !NOT_YET.contains(&source.path.as_str())) {
        check_source(path, text, &mut problems);
    }
    problems
}

/// Files on the list of those that are not free of these words, and that are.
pub(crate) fn check_list(sources: &[Source]) -> Vec<String> {
    let is_free = |path: &&&str| {
        let mut problems = Vec::new();
        sources.iter().filter(|source| source.path == **path).for_each(|source| {
            check_source(&source.path, &source.text, &mut problems);
        });
        problems.is_empty()
    };
    let free = NOT_YET.iter().filter(is_free);
    free.map(|path| format!("{path} names its subjects now: take it off NOT_YET in {NAMES_THE_WORDS}"))
        .collect()
}

fn check_source(path: &str, text: &str, problems: &mut Vec<String>) {
    if !path.ends_with(".rs") {
        if let Some((_, begins)) = COMMENTS.iter().find(|(ending, _)| path.ends_with(ending)) {
            check_prose(path, 1, &without_code_and_quotes(&commented_lines(text, begins)), problems);
        }
        return;
    }
    check_prose(path, 1, &without_code_and_quotes(&comments_alone(text)), problems);
    if path != NAMES_THE_WORDS {
        for (line, content) in strings(text) {
            check_prose(path, line, &without_code_and_quotes(&content), problems);
        }
    }
}

/// The lines that are nothing but comments, without the marks; the others are empty.
fn commented_lines(text: &str, begins: &[&str]) -> String {
    let words = |line: &str| {
        let begin = begins.iter().find(|begin| line.trim_start().starts_with(**begin));
        begin.map_or(String::new(), |begin| line.replacen(begin, " ", 1).replace("\"\"\"", " "))
    };
    text.lines().map(words).collect::<Vec<_>>().join("\n")
}

/// Looks through a text whose first line has this number.
fn check_prose(path: &str, first: usize, prose: &str, problems: &mut Vec<String>) {
    let words = words(prose);
    for (i, word) in words.iter().enumerate() {
        let at = first + word.line - 1;
        if word.text == SUBJECT {
            problems.push(format!("{path}:{at} begins a sentence with \"{SUBJECT}\": {NAME_IT}"));
        }
        for (refused, advice) in REFUSED {
            if begins_with(&words[i..], refused) {
                problems.push(format!("{path}:{at} says \"{refused}\": {advice}"));
            }
        }
    }
}

/// A word of a text. A name with underscores is one word.
struct Word<'a> {
    text: &'a str,
    /// Counted from 1.
    line: usize,
    /// Only white space is between it and the word before.
    follows: bool,
}

fn words(prose: &str) -> Vec<Word<'_>> {
    let mut words: Vec<Word> = Vec::new();
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut follows = false;
    for (i, line) in prose.lines().enumerate() {
        follows &= !line.trim().is_empty();
        let mut rest = line;
        while let Some(start) = rest.find(is_part) {
            follows &= rest[..start].trim().is_empty();
            let word = &rest[start..];
            let end = word.find(|c: char| !is_part(c)).unwrap_or(word.len());
            words.push(Word { text: word[..end].trim_matches('_'), line: i + 1, follows });
            rest = &word[end..];
            follows = true;
        }
        follows &= rest.trim().is_empty();
    }
    words
}

/// Returns true if the words of `phrase` come first, with nothing but white space between them.
fn begins_with(words: &[Word], phrase: &str) -> bool {
    let mut found = words.iter();
    phrase.split(' ').enumerate().all(|(i, wanted)| {
        found.next().is_some_and(|word| word.text.eq_ignore_ascii_case(wanted) && (i == 0 || word.follows))
    })
}

/// A text without code and without what others said.
fn without_code_and_quotes(text: &str) -> String {
    without(text, &CODE_AND_QUOTES)
}

/// The document with white space in place of fenced blocks, and of the spans and lines that these marks open:
/// '`' code, '"' text in quotation marks, '>' quoted lines. Lines stay where they are.
pub(crate) fn without(text: &str, marks: &[char]) -> String {
    let mut prose = String::with_capacity(text.len());
    let mut paragraph = String::new();
    let mut fence: Option<&str> = None;
    for line in text.lines() {
        let begin = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| begin.starts_with(mark));
        let is_prose = fence.is_none() && mark.is_none() && !(marks.contains(&'>') && begin.starts_with('>'));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            _ => (),
        }
        if is_prose && !begin.is_empty() {
            paragraph.push_str(line);
            paragraph.push('\n');
        } else {
            prose.push_str(&without_spans(&paragraph, marks));
            paragraph.clear();
            prose.push('\n');
        }
    }
    prose.push_str(&without_spans(&paragraph, marks));
    prose
}

/// A paragraph without what stands between backticks or quotation marks. A mark without an end is a letter
/// like others.
fn without_spans(paragraph: &str, marks: &[char]) -> String {
    let mut prose = String::with_capacity(paragraph.len());
    let mut rest = paragraph;
    while let Some(start) = rest.find(|c| c != '>' && marks.contains(&c)) {
        prose.push_str(&rest[..start]);
        rest = &rest[start..];
        let letter = &rest[..1];
        let mark = &rest[..rest.len() - rest.trim_start_matches(letter).len()];
        let Some(length) = rest[mark.len()..].find(mark) else {
            prose.push_str(mark);
            rest = &rest[mark.len()..];
            continue;
        };
        let end = mark.len() + length + mark.len();
        // A mark of its own keeps the words around it apart.
        prose.push('|');
        prose.extend(rest[..end].chars().filter(|c| *c == '\n'));
        rest = &rest[end..];
    }
    prose.push_str(rest);
    prose
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        check(&[Source { path: "docs/a.md".to_string(), text: text.to_string() }])
    }

    #[test]
    fn the_documents_name_their_subjects() {
        let documents = crate::workspace::load().documents;
        for path in ["README.md", ".github/PULL_REQUEST_TEMPLATE.md", "docs/howto/tls.md", "python/README.md"]
        {
            assert!(documents.iter().any(|document| document.path == path), "{path} was not found");
        }
        assert_eq!(check(&documents), Vec::<String>::new());
    }

    #[test]
    fn comments_and_strings_name_their_subjects() {
        let sources = crate::workspace::load().sources;
        for ending in [".rs", ".proto", ".java", ".py"] {
            assert!(sources.iter().any(|source| source.path.ends_with(ending)), "{ending} was not found");
        }
        assert_eq!(check_sources(&sources), Vec::<String>::new());
        assert_eq!(check_list(&sources), Vec::<String>::new());
    }

    fn problems_of(path: &str, text: &str) -> Vec<String> {
        check_sources(&[Source { path: path.to_string(), text: text.to_string() }])
    }

    #[test]
    fn comments_of_rust_are_found_and_names_are_not() {
        let found = problems_of("crates/a/src/a.rs", "fn f() {}\n\n    // It goes to\n    // nobody.\n");
        assert_eq!(found, ["crates/a/src/a.rs:4 says \"nobody\": name the receiver, agent, host or user"]);
        for text in [
            "/// Nobody has it.",
            "//! Who has it",
            "let a = 1; // for ever",
            "/* It waits\n * for\n * ever. */",
            "/// It waits for\n/// ever.",
            "f(\"a\"); // nobody",
            "// 19\" wide\nf();\n// nobody, 2\" high",
        ] {
            assert_eq!(problems_of("a.rs", text).len(), 1, "{text}");
        }
        for text in [
            "let nobody = Who::Nobody;",
            "/// See `nobody` and [`Peer::Nobody`], and who_is, nobody_asks.",
            "f(); // for\nf(); // ever",
            "for ever in x {}",
            "// what it is for\n\n// ever more",
        ] {
            assert!(problems_of("a.rs", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn strings_of_rust_are_found_with_their_line() {
        let found = problems_of("a.rs", "f(\n    \"It is for \\\n    ever\",\n);\n");
        assert_eq!(found, ["a.rs:2 says \"for ever\": say how long, or what ends it"]);
        for text in ["f(\"nobody\")", "f(r#\"a \" nobody\"#)", "f(br\"nobody\")", "f(\"a\\nnobody \\\" b\")"]
        {
            assert_eq!(problems_of("a.rs", text).len(), 1, "{text}");
        }
        for text in [
            "f(\"{nobody} {nobody:?}\")",
            "f(\"a_nobody\")",
            "f(\"see `nobody`\")",
            "f('\"', nobody, '\"')",
            "f(\"for\", \"ever\")",
        ] {
            assert!(problems_of("a.rs", text).is_empty(), "{text}");
        }
        assert_eq!(problems_of("a.rs", "f(\"{{nobody and {a} {b:?}\")").len(), 1);
        assert!(problems_of(NAMES_THE_WORDS, "f(\"nobody\")").is_empty());
        assert_eq!(problems_of(NAMES_THE_WORDS, "// nobody").len(), 1);
    }

    #[test]
    fn comments_of_other_sources_are_found() {
        for (path, text) in [
            ("a.proto", "  // Nobody has it."),
            ("a.java", "  /** Nobody has it. */"),
            ("a.java", "  /*\n   * Nobody has it.\n   */"),
            ("a.py", "x = 1\n# nobody"),
            ("a.py", "def f():\n    \"\"\"Nobody has it.\"\"\""),
        ] {
            assert_eq!(problems_of(path, text).len(), 1, "{path}: {text}");
        }
        assert!(problems_of("a.proto", "  Want nobody = 3;").is_empty());
        assert!(problems_of("a.py", "nobody = 3").is_empty());
        assert!(problems_of("a.v", "// nobody").is_empty());
    }

    #[test]
    fn the_list_of_files_that_are_not_free_gets_shorter() {
        let path = NOT_YET[0];
        let list = |text: &str| check_list(&[Source { path: path.to_string(), text: text.to_string() }]);
        assert!(problems_of(path, "// nobody").is_empty());
        assert_eq!(list("// nobody").len() + 1, list("").len());
    }

    #[test]
    fn refused_words_are_found_with_their_line() {
        let found = problems("A line.\n\nIt goes to whoever asks.\n");
        assert_eq!(found, ["docs/a.md:3 says \"whoever\": name the receiver, agent, host or user"]);
        for (refused, _) in REFUSED {
            assert_eq!(problems(&format!("It is {refused}.")).len(), 1, "{refused}");
            assert_eq!(problems(&format!("{}'s", refused.to_uppercase())).len(), 1, "{refused}");
            assert_eq!(problems(&format!("It is {refused}x.")).len(), 0, "{refused}");
        }
    }

    #[test]
    fn phrases_are_found_over_the_end_of_a_line() {
        assert_eq!(problems("It stays for\n  ever, and more.").len(), 1);
        assert_eq!(problems("What is it for? Ever more.").len(), 0);
        assert_eq!(problems("What it is for\n\never more").len(), 0);
        assert_eq!(problems("What is it for?\nEver more.").len(), 0);
    }

    #[test]
    fn sentences_that_begin_with_who_are_found() {
        for text in
            ["Who has it may go.", "- Who has it", "It ends. Who has it", "## Who has it", "| a | Who |"]
        {
            assert_eq!(problems(text).len(), 1, "{text}");
        }
        assert!(problems("It shows who has it. Whole files. [link](a.md#who-is-it)").is_empty());
    }

    #[test]
    fn code_and_quotes_are_passed_over() {
        assert!(problems("```console\n$ a\nnobody\n```\n").is_empty());
        assert!(problems("  ~~~\nnobody\n```\nnobody\n~~~").is_empty());
        assert!(problems("It says `nobody is\nhere`, ``a ` nobody``, and \"nobody\".").is_empty());
        assert!(problems("> nobody").is_empty());
        // After it, and where a mark has no end, words count.
        assert_eq!(problems("```\na\n```\nnobody").len(), 1);
        assert_eq!(problems("It says `a\nb` and nobody")[0].split_once(' ').unwrap().0, "docs/a.md:2");
        assert_eq!(problems("A 19\" rack, nobody.\n\nA \" b").len(), 1);
        assert_eq!(problems("It is for `x` ever").len(), 0);
    }
}
