//! Settings files of the daemons: TOML, and one sentence for what is wrong with them.

use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// Settings that are wrong, in one sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read the settings {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Not TOML, or not the settings of this daemon.
    #[error("line {line} of the settings: {message}")]
    Syntax {
        /// Where.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A setting has a value that cannot be.
    #[error("the setting '{setting}' is wrong: {reason}")]
    Value {
        /// Which.
        setting: &'static str,
        /// Why.
        reason: String,
    },
}

/// The text of a settings file.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> Result<String, SettingsError> {
    std::fs::read_to_string(path)
        .map_err(|error| SettingsError::Read { path: path.to_path_buf(), reason: error.to_string() })
}

/// The settings that a text holds; values that types alone do not check are left to the caller.
///
/// # Errors
/// They are not TOML, or not settings of this kind.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, SettingsError> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().map_or("", |span| text.get(..span.start).unwrap_or(text));
        let message = error.message().replace('\n', " ");
        SettingsError::Syntax { line: before.matches('\n').count() + 1, message }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let good: BTreeMap<String, u32> = parse("a = 1\nb = 2").unwrap();
        assert_eq!(good["b"], 2);
        let bad = parse::<BTreeMap<String, u32>>("a = 1\nb = 'x'").unwrap_err().to_string();
        assert!(bad.starts_with("line 2 of the settings: invalid type"), "{bad}");
        let missing = read(Path::new("no/such/file")).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read the settings no/such/file: No such file"), "{missing}");
    }
}
