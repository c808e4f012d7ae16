//! Names with wild cards, for what of a directory is left out.

use std::fmt;
use std::str::FromStr;

/// The longest pattern, in bytes.
const LEN_MAX: usize = 1_024;

/// A pattern such as `*.tmp`, `cache/`, `/build` or `logs/**/*.gz`.
///
/// `*` is any part of a name, `**` also of a path, `?` one letter, `[a-z]` one of these and `[!a-z]` one of
/// the others. Without a slash it is a name anywhere; with one it is a path from the directory's root on. A
/// slash at its end makes it one of directories only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Glob {
    text: String,
    tokens: Vec<Token>,
    /// It is of a whole path.
    anchored: bool,
    directories: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    Letter(char),
    Any,
    Star,
    DoubleStar,
    /// Any number of them, also none.
    Directories,
    Class {
        ranges: Vec<(char, char)>,
        negated: bool,
    },
}

/// A pattern that means nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{pattern}' is no pattern: {why}")]
pub struct GlobError {
    pattern: String,
    why: &'static str,
}

impl FromStr for Glob {
    type Err = GlobError;

    fn from_str(text: &str) -> Result<Self, GlobError> {
        let wrong = |why| GlobError { pattern: text.to_string(), why };
        let (inner, directories) = text.strip_suffix('/').map_or((text, false), |inner| (inner, true));
        let (inner, rooted) = inner.strip_prefix('/').map_or((inner, false), |inner| (inner, true));
        if inner.is_empty() {
            return Err(wrong("it has no name in it"));
        }
        if text.len() > LEN_MAX {
            return Err(wrong("it is longer than 1,024 bytes"));
        }
        let mut tokens = Vec::new();
        let mut letters = inner.chars().peekable();
        while let Some(letter) = letters.next() {
            tokens.push(match letter {
                '*' if letters.next_if_eq(&'*').is_some() => {
                    let own = matches!(tokens.last(), None | Some(Token::Letter('/')));
                    if own && letters.next_if_eq(&'/').is_some() {
                        Token::Directories
                    } else {
                        Token::DoubleStar
                    }
                }
                '*' => Token::Star,
                '?' => Token::Any,
                '[' => class(&mut letters).ok_or_else(|| wrong("its [ has no ]"))?,
                '\\' => Token::Letter(letters.next().ok_or_else(|| wrong("nothing follows its \\"))?),
                letter => Token::Letter(letter),
            });
        }
        Ok(Glob { text: text.to_string(), tokens, anchored: rooted || inner.contains('/'), directories })
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Parses the inside of a bracket expression, after its first bracket.
fn class(letters: &mut impl Iterator<Item = char>) -> Option<Token> {
    let mut inside = Vec::new();
    for letter in letters {
        // As the first one it is a letter.
        if letter == ']' && !matches!(inside[..], [] | ['!']) {
            let negated = inside.first() == Some(&'!');
            let inside = &inside[usize::from(negated)..];
            let mut ranges = Vec::new();
            let mut at = 0;
            while at < inside.len() {
                if let [from, '-', to, ..] = inside[at..] {
                    ranges.push((from, to));
                    at += 3;
                } else {
                    ranges.push((inside[at], inside[at]));
                    at += 1;
                }
            }
            return Some(Token::Class { ranges, negated });
        }
        inside.push(letter);
    }
    None
}

impl Glob {
    /// Returns true if the pattern matches the entry at this path below the root.
    #[must_use]
    pub fn matches(&self, path: &[u8], is_directory: bool) -> bool {
        if self.directories && !is_directory {
            return false;
        }
        let text = String::from_utf8_lossy(path);
        let name = if self.anchored { &text } else { text.rsplit('/').next().unwrap_or(&text) };
        // All places in the pattern at once: no pattern takes long.
        let mut at = vec![false; self.tokens.len() + 1];
        at[0] = true;
        self.skip_stars(&mut at, true);
        for letter in name.chars() {
            let mut next = vec![false; at.len()];
            for (place, token) in self.tokens.iter().enumerate().filter(|(place, _)| at[*place]) {
                match token {
                    Token::Letter(own) => next[place + 1] |= *own == letter,
                    Token::Any => next[place + 1] |= letter != '/',
                    Token::Star => next[place] |= letter != '/',
                    Token::DoubleStar | Token::Directories => next[place] = true,
                    Token::Class { ranges, negated } => {
                        let inside = ranges.iter().any(|(from, to)| (*from..=*to).contains(&letter));
                        next[place + 1] |= letter != '/' && inside != *negated;
                    }
                }
            }
            self.skip_stars(&mut next, letter == '/');
            at = next;
        }
        at[self.tokens.len()]
    }

    /// Stars may be nothing; directories end where a name begins.
    fn skip_stars(&self, at: &mut [bool], name_begins: bool) {
        for (place, token) in self.tokens.iter().enumerate() {
            let may_end = match token {
                Token::Star | Token::DoubleStar => true,
                Token::Directories => name_begins,
                Token::Letter(_) | Token::Any | Token::Class { .. } => false,
            };
            if at[place] && may_end {
                at[place + 1] = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_people_expect() {
        for (pattern, path, is_directory, means) in [
            ("*.tmp", "a.tmp", false, true),
            ("*.tmp", "sub/a.tmp", false, true),
            ("*.tmp", "a.tmp.keep", false, false),
            ("cache/", "sub/cache", true, true),
            ("cache/", "cache", false, false),
            ("/build", "build", true, true),
            ("/build", "sub/build", true, false),
            ("logs/*.gz", "logs/a.gz", false, true),
            ("logs/*.gz", "logs/old/a.gz", false, false),
            ("logs/**/*.gz", "logs/old/older/a.gz", false, true),
            ("logs/**/*.gz", "logs/a.gz", false, true),
            ("logs/**/b", "logs/ab", false, false),
            ("logs/**/b", "logs/a/b", false, true),
            ("**/b", "a/c/b", false, true),
            ("ckpt-??", "ckpt-07", true, true),
            ("ckpt-??", "ckpt-7", true, false),
            ("[a-c]?[!0-9]", "bxx", false, true),
            ("[a-c]?[!0-9]", "bx1", false, false),
            ("[]]", "]", false, true),
            ("\\*", "*", false, true),
            ("\\*", "a", false, false),
            ("ä?", "äö", false, true),
        ] {
            let glob: Glob = pattern.parse().unwrap();
            assert_eq!(glob.matches(path.as_bytes(), is_directory), means, "{pattern} {path}");
        }
        for pattern in ["", "/", "[a", "a\\"] {
            assert!(pattern.parse::<Glob>().is_err(), "{pattern}");
        }
    }

    #[test]
    fn no_pattern_takes_long() {
        let glob: Glob = "*a".repeat(300).parse().unwrap();
        assert!(glob.matches("a".repeat(4_000).as_bytes(), false));
        assert!(!glob.matches("b".repeat(4_000).as_bytes(), false));
    }
}
