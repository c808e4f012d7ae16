//! Texts of other machines, as they may be printed.

use core::fmt::{self, Write as _};

/// Largest part of a text that is printed, in bytes of the text: the longest sentence that a frame carries.
const PRINTED_MAX: usize = 1_024;

/// A text that comes from another machine, for terminals, logs and reports: `Printable(name)` prints like the
/// text, but control characters, line breaks and characters that turn the direction of writing are escaped as
/// `\u{1b}`, and what exceeds 1,024 bytes is left out, with `…` in its place.
///
/// ```
/// # use polycast_types::Printable;
/// assert_eq!(Printable("b\u{1b}[2J").to_string(), r"b\u{1b}[2J");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Printable<'a>(
    /// The text as it came.
    pub &'a str,
);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, rest) = self.0.split_at(self.0.floor_char_boundary(PRINTED_MAX));
        for c in shown.chars() {
            if is_plain(c) { f.write_char(c)? } else { write!(f, "{}", c.escape_unicode())? }
        }
        if rest.is_empty() { Ok(()) } else { f.write_char('…') }
    }
}

/// Returns true if a character only shows itself.
fn is_plain(c: char) -> bool {
    // Separators of lines and paragraphs, marks and overrides of direction, and the byte order mark.
    let turns = matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    !c.is_control() && !turns
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};
    use proptest::prelude::*;

    #[test]
    fn what_moves_the_cursor_is_escaped_and_the_rest_is_not() {
        assert_eq!(Printable("modell ä 模型 (2).tar").to_string(), "modell ä 模型 (2).tar");
        assert_eq!(Printable("\u{1b}]0;pwn\u{7}").to_string(), r"\u{1b}]0;pwn\u{7}");
        assert_eq!(Printable("a\nb\u{9b}2J\u{202e}c").to_string(), r"a\u{a}b\u{9b}2J\u{202e}c");
    }

    #[test]
    fn long_texts_end_at_a_character() {
        let long: String = core::iter::repeat_n('模', 1_000).collect();
        let printed = Printable(&long).to_string();
        assert_eq!(printed, long.chars().take(341).chain(['…']).collect::<String>());
    }

    proptest! {
        #[test]
        fn no_text_prints_more_than_itself(text: String) {
            let printed = Printable(&text).to_string();
            prop_assert!(printed.chars().all(is_plain), "{printed:?}");
            prop_assert!(printed.len() <= 10 * PRINTED_MAX);
            prop_assert!(!text.chars().all(is_plain) || text.len() > PRINTED_MAX || printed == text);
        }
    }
}
