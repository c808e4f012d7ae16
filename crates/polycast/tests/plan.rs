//! What the planners answer on the command line, byte for byte: other programs read it.

mod common;

use common::polycast;

const INPUTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

/// A document in which all times are 0: they differ from run to run.
fn without_times(text: &str) -> String {
    const FIELD: &str = "\"micros\":";
    let mut pieces = text.split(FIELD);
    let mut plain = pieces.next().unwrap_or_default().to_string();
    for piece in pieces {
        let rest = piece.trim_start_matches(|c: char| c.is_ascii_digit() || "+-.e".contains(c));
        assert!(rest.len() < piece.len(), "there is no time: {text}");
        plain.extend([FIELD, "0", rest]);
    }
    plain
}

/// In the file, a command follows a `$`, and the line behind it is the exit status and the document. `{}` is the folder
/// of its inputs.
#[test]
fn answers_are_as_they_were() {
    let file = std::fs::read_to_string(format!("{INPUTS}/plan.txt")).unwrap();
    let lines: Vec<&str> = file.lines().collect();
    assert_eq!(lines.len() % 2, 0);
    for pair in lines.chunks(2) {
        let line = pair[0].strip_prefix("$ ").unwrap();
        let words: Vec<String> = line.split(' ').map(|word| word.replace("{}", INPUTS)).collect();
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        words.push("--json");
        let ran = polycast(&words);
        let said = without_times(ran.stdout.trim_end()).replace(INPUTS, "{}");
        assert_eq!(format!("{} {said}", ran.status), pair[1], "{line}");
    }
}

/// People get the same document, indented.
#[test]
fn people_read_the_same_document() {
    let line = ["plan", "cost", "--tors", "8", "--rate", "10g"];
    let (people, programs) = (polycast(&line), polycast(&[&line[..], &["--json"]].concat()));
    assert!(people.stdout.lines().count() > 10, "{}", people.stdout);
    assert_eq!((people.status, people.json()), (0, programs.json()));
}
