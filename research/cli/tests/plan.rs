//! Answers of the planners on the command line, byte for byte: other programs read them.

#[path = "../../../crates/polycast/tests/common/mod.rs"]
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

#[test]
fn the_program_says_its_own_name_with_its_version() {
    let ran = polycast(&["--version"]);
    let version = env!("CARGO_PKG_VERSION");
    let expected =
        format!("polycast-research {version} (kernel programs: orca_switch, orca_agent, datacast)\n");
    assert_eq!((ran.status, ran.stdout), (0, expected));
}

/// In the file, a command follows a `$`, and the line behind it is the exit status and the document. `{}` is
/// the folder of its inputs.
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

/// Output for people, without the times: each command behind a `$`, and its lines. None is longer than a
/// terminal is wide.
#[test]
fn people_read_tables_with_names() {
    let path = format!("{INPUTS}/plan-people.txt");
    let expected = std::fs::read_to_string(&path).unwrap();
    let mut said = String::new();
    for line in expected.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let words: Vec<String> = line.split(' ').map(|word| word.replace("{}", INPUTS)).collect();
        let ran = polycast(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{line}");
        said += &format!("$ {line}\n");
        for row in ran.stdout.lines() {
            assert!(row.chars().count() <= 80, "{line}: {row}");
            said += if row.starts_with("planned in ") { "planned in 0\n" } else { row };
            said += if row.starts_with("planned in ") { "" } else { "\n" };
        }
    }
    if std::env::var("POLYCAST_GOLDEN").is_ok_and(|value| value == "write") {
        std::fs::write(&path, &said).unwrap();
        panic!("{path} was written: look at it, and test again without POLYCAST_GOLDEN");
    }
    assert_eq!(said, expected);
}
