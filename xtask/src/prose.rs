//! Words that documents do without: a sentence names its receiver, agent, host or user.

use crate::workspace::Source;

/// Pages that hold what programs say; the words of those are changed in the programs.
const SPOKEN_BY_PROGRAMS: [&str; 2] = ["docs/reference/cli.md", "docs/reference/json.md"];
/// Refused in any case of letters, also where a line ends between two words. The second text says what to write.
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
/// What opens a span of code, and what opens and begins what others said.
pub const CODE_AND_QUOTES: [char; 3] = ['`', '"', '>'];
/// Refused at the beginning of a sentence, which is where it has a capital.
const SUBJECT: &str = "Who";

/// Every breach in documents, one sentence each.
pub fn check(documents: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for Source { path, text } in documents {
        if !SPOKEN_BY_PROGRAMS.contains(&path.as_str()) {
            check_document(path, text, &mut problems);
        }
    }
    problems
}

fn check_document(path: &str, text: &str, problems: &mut Vec<String>) {
    let prose = without(text, &CODE_AND_QUOTES);
    let words = words(&prose);
    for (i, word) in words.iter().enumerate() {
        if word.text == SUBJECT {
            problems.push(format!("{path}:{} begins a sentence with \"{SUBJECT}\": {NAME_IT}", word.line));
        }
        for (refused, advice) in REFUSED {
            if begins_with(&words[i..], refused) {
                problems.push(format!("{path}:{} says \"{refused}\": {advice}", word.line));
            }
        }
    }
}

/// A word of a document.
struct Word<'a> {
    text: &'a str,
    /// Counted from 1.
    line: usize,
    /// Only white space is between it and the word before.
    follows: bool,
}

fn words(prose: &str) -> Vec<Word<'_>> {
    let mut words: Vec<Word> = Vec::new();
    let mut follows = false;
    for (i, line) in prose.lines().enumerate() {
        follows &= !line.trim().is_empty();
        let mut rest = line;
        while let Some(start) = rest.find(char::is_alphanumeric) {
            follows &= rest[..start].trim().is_empty();
            let word = &rest[start..];
            let end = word.find(|c: char| !c.is_alphanumeric()).unwrap_or(word.len());
            words.push(Word { text: &word[..end], line: i + 1, follows });
            rest = &word[end..];
            follows = true;
        }
        follows &= rest.trim().is_empty();
    }
    words
}

/// Whether the words of `phrase` come first, with nothing but white space between them.
fn begins_with(words: &[Word], phrase: &str) -> bool {
    let mut found = words.iter();
    phrase.split(' ').enumerate().all(|(i, wanted)| {
        found.next().is_some_and(|word| word.text.eq_ignore_ascii_case(wanted) && (i == 0 || word.follows))
    })
}

/// The document with white space in place of fenced blocks, and of the spans and lines that these marks open: '`' code, '"' text in
/// quotation marks, '>' quoted lines. Lines stay where they are.
pub fn without(text: &str, marks: &[char]) -> String {
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

/// A paragraph without what stands between backticks or quotation marks. A mark without an end is a letter like others.
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
        for path in SPOKEN_BY_PROGRAMS {
            assert!(documents.iter().any(|document| document.path == path), "{path} is not there any more");
        }
        assert_eq!(check(&documents), Vec::<String>::new());
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

    #[test]
    fn pages_of_programs_are_passed_over() {
        let source = |path: &str| Source { path: path.to_string(), text: "nobody".to_string() };
        assert!(check(&SPOKEN_BY_PROGRAMS.map(source)).is_empty());
        assert_eq!(check(&[source("docs/reference/other.md")]).len(), 1);
    }
}
