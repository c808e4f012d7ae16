//! The word that the view asks of those who come from other machines.

use crate::settings::SettingsError;
use std::fmt;
use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The setting that names the token's file.
const SETTING: &str = "view-token-file";
/// Shorter words can be guessed: 16 hexadecimal digits are 64 bits.
const LEN_MIN: usize = 16;
/// A longer word is none.
const LEN_MAX: usize = 128;

/// A word that is shown to see a daemon's view.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Reads the token in a file: a line of letters, digits, `-` and `_`.
    ///
    /// # Errors
    /// The file cannot be read, other users can read it too, or it holds no token.
    pub fn read(path: &Path) -> Result<Self, SettingsError> {
        let wrong = |reason: String| SettingsError::Value { setting: SETTING, reason };
        let unread =
            |error: std::io::Error| wrong(format!("the file {} cannot be read: {error}", path.display()));
        let mut file = File::open(path).map_err(unread)?;
        let mode = file.metadata().map_err(unread)?.mode() & 0o777;
        if mode & 0o077 != 0 {
            let path = path.display();
            return Err(wrong(format!(
                "others can read the file {path} (its mode is {mode:o}): chmod 600 {path}"
            )));
        }
        let mut text = String::new();
        file.by_ref().take(LEN_MAX as u64 + 2).read_to_string(&mut text).map_err(unread)?;
        Self::new(text.trim_end_matches(['\n', '\r'])).map_err(|reason| {
            wrong(format!(
                "the file {} holds no token: {reason}; openssl rand -hex 16 makes one",
                path.display()
            ))
        })
    }

    /// Checks that a word can be a token.
    ///
    /// # Errors
    /// It cannot: why.
    fn new(word: &str) -> Result<Self, String> {
        if !(LEN_MIN..=LEN_MAX).contains(&word.len()) {
            return Err(format!("one has {LEN_MIN} to {LEN_MAX} letters"));
        }
        if !word.bytes().all(is_letter) {
            return Err("one has letters, digits, '-' and '_' only".into());
        }
        Ok(Token(word.to_string()))
    }

    /// Returns true if this is the token. The time it takes tells nothing of the letters.
    #[must_use]
    pub fn is(&self, shown: &str) -> bool {
        let differ = self.0.bytes().zip(shown.bytes()).fold(0, |differ, (a, b)| black_box(differ | (a ^ b)));
        self.0.len() == shown.len() && differ == 0
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn file(name: &str, text: &str, mode: u32) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("polycast-token-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn only_the_token_itself_is_it() {
        let token = Token::new("0123456789abcdef").unwrap();
        assert!(token.is("0123456789abcdef"));
        for other in ["", "0123456789abcdeF", "0123456789abcdef0", "0123456789abcde", "1123456789abcdef"] {
            assert!(!token.is(other), "{other}");
        }
        assert_eq!(format!("{token:?}"), "Token(..)");
    }

    #[test]
    fn a_file_holds_one_token_that_nobody_else_reads() {
        let good = file("good", "0123456789abcdef\n", 0o600);
        assert!(Token::read(&good).unwrap().is("0123456789abcdef"));
        for (name, text, mode, says) in [
            ("open", "0123456789abcdef\n", 0o640, "its mode is 640"),
            ("short", "0123456789abcde\n", 0o600, "16 to 128 letters"),
            ("long", &"a".repeat(200), 0o600, "16 to 128 letters"),
            ("odd", "0123456789abcdef ghi\n", 0o600, "letters, digits"),
            ("two", "0123456789abcdef\n0123456789abcdef\n", 0o600, "letters, digits"),
        ] {
            let path = file(name, text, mode);
            let error = Token::read(&path).unwrap_err().to_string();
            assert!(
                error.starts_with("the setting 'view-token-file' is wrong") && error.contains(says),
                "{error}"
            );
            assert!(!error.contains("0123456789"), "a message tells no token: {error}");
            fs::remove_file(path).unwrap();
        }
        fs::remove_file(&good).unwrap();
        assert!(Token::read(&good).unwrap_err().to_string().contains("cannot be read"));
    }
}
