//! Codes of offers as users give them: as an argument, which other users of the machine can read while the
//! command runs, in the environment, or as a line of standard input, which they cannot.

use crate::exit::Failure;
use crate::output;
use polycast_agent::transfer::Code;
use std::io::{self, BufRead, IsTerminal, Write};
use std::str::FromStr;

/// The variable of the environment that has the code.
pub(crate) const VARIABLE: &str = "POLYCAST_CODE";
/// Bits that a code of the user's own has at least. A host that has heard an offer can try codes on it for as
/// long as it stands, each by a connection of its own: the source looks at no more than 64 wrong ones a
/// second.
const BITS_MIN: u32 = 40;
/// Words of a code, where each is an argument, at most.
pub(crate) const WORDS_MAX: usize = 16;
/// A longer line has no code.
const LINE_LEN_MAX: u64 = 1 << 10;

/// Way in which a code is given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CodeArg {
    /// It is this one.
    Said(Code),
    /// It is the next line of standard input.
    Asked,
}

impl FromStr for CodeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "-" { Ok(CodeArg::Asked) } else { text.parse().map(CodeArg::Said) }
    }
}

impl CodeArg {
    /// The code that these words are, which were typed one by one or together; `None` where there are none.
    pub(super) fn of_words(words: &[String]) -> Result<Option<Self>, Failure> {
        match words {
            [] => Ok(None),
            // A word of a code has neither: it is a path.
            [_, _, ..] if words.iter().any(|word| word.contains(['.', '_', '/'])) => {
                Err(Failure::input("more than a code was typed").hint("a path goes behind --out or --into"))
            }
            _ if words.len() > WORDS_MAX => Err(Failure::input("a code has no more than 16 words")),
            // What was typed is not repeated: a word may be wrong, and the others are secret.
            words => words.join("-").parse().map(Some).map_err(|why: String| {
                Failure::input(why).hint("polycast offer prints the code, and the whole command to type")
            }),
        }
    }

    /// The code; a terminal is asked for it.
    pub(super) fn code(&self) -> Result<Code, Failure> {
        match self {
            CodeArg::Said(code) => Ok(code.clone()),
            CodeArg::Asked => {
                let input = io::stdin();
                if input.is_terminal() {
                    let mut terminal = io::stderr();
                    // A user that does not see it types all the same.
                    let _ = write!(terminal, "code: ").and_then(|()| terminal.flush());
                }
                read(input.lock())
            }
        }
    }
}

/// The code in the first line of this.
fn read(input: impl BufRead) -> Result<Code, Failure> {
    let mut line = String::new();
    let read = input.take(LINE_LEN_MAX).read_line(&mut line);
    read.map_err(|error| Failure::input(format!("the code cannot be read from standard input: {error}")))?;
    if line.trim().is_empty() {
        return Err(Failure::input("standard input has no code in its first line"));
    }
    line.trim().parse().map_err(|why: String| Failure::input(why))
}

/// Refuses a code of the user's own that is guessed soon even if its letters were drawn, unless that does not
/// matter; says so of one that is if they were not.
pub(super) fn check_strength(code: &Code, may_be_weak: bool) -> Result<(), Failure> {
    let (bits, most) = (code.bits(), code.bits_at_most());
    if may_be_weak || bits >= BITS_MIN {
        return Ok(());
    }
    if most >= BITS_MIN {
        output::say(&format!(
            "note: a host that tries words and dates guesses this code in about 2^{bits} tries: leave out --code and one is drawn"
        ));
        return Ok(());
    }
    let message = format!(
        "this code can be guessed: it counts {most} bits at most, and an offer needs {BITS_MIN} (a letter counts 4.7, a digit 3.3)"
    );
    let hint = "leave out --code and take the code that is drawn, take four words, or say --weak-code";
    Err(Failure::input(message).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_comes_from_the_first_line() {
        let code = read(&b" Lusab babad-gutih\r\nrest"[..]).unwrap();
        assert_eq!(code.to_string(), "lusab-babad-gutih");
        for (text, says) in [
            (&b""[..], "no code"),
            (b"\nlusab-babad-gutih", "no code"),
            (b"abc\n", "6 to 64"),
            (&[0xff; 9], "read"),
        ] {
            let failure = read(text).unwrap_err();
            assert!(failure.message.contains(says), "{}", failure.message);
        }
        assert_eq!("-".parse(), Ok(CodeArg::Asked));
        assert_eq!("lusab-babad-gutih".parse(), Ok(CodeArg::Said(code)));
    }

    #[test]
    fn codes_that_are_guessed_soon_need_a_word() {
        let (weak, good) = ("summer2026".parse().unwrap(), "four words of it river".parse().unwrap());
        let failure = check_strength(&weak, false).unwrap_err();
        assert!(failure.message.contains("29 bits at most"), "{}", failure.message);
        assert!(failure.hint.unwrap().contains("--weak-code"));
        assert!(check_strength(&weak, true).is_ok() && check_strength(&good, false).is_ok());
        assert!(check_strength(&"bugs-bugs".parse().unwrap(), false).is_ok(), "only told of");
    }
}
