//! Settings files of the daemons: TOML, and one sentence for what is wrong with them.

mod hub;
mod images;

pub use hub::{HubConfig, Network};
pub use images::OciConfig;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest text that is read.
const TEXT_LEN_MAX: usize = 64 << 20;
/// Bytes that are read at a time.
const READ_LEN: u64 = 1 << 20;
/// A program that writes to a pipe has to have done so by then.
const PIPE_WITHIN: Duration = Duration::from_secs(10);

/// Settings that are wrong, in one sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read the settings {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// Not TOML, or not the settings of this daemon.
    #[error("line {line} of the settings: {message}")]
    Syntax {
        /// Line number.
        line: usize,
        /// Fault.
        message: String,
    },
    /// A setting has a value that cannot be.
    #[error("the setting '{setting}' is wrong: {reason}")]
    Value {
        /// Name of the setting.
        setting: &'static str,
        /// Reason.
        reason: String,
    },
}

/// The text of a file that the user has named: settings, a scenario, a plan. Files and pipes can be read;
/// what is no text, never ends or never begins is refused.
///
/// # Errors
/// It cannot be read.
pub fn read_text(path: &Path) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::Error::other("it is a directory"));
    }
    if !kind.is_file() && !kind.is_fifo() && !kind.is_char_device() {
        return Err(io::Error::other("it is neither a file nor a pipe"));
    }
    let until = Instant::now() + PIPE_WITHIN;
    let mut bytes = Vec::new();
    loop {
        if !kind.is_file() {
            await_pipe(&file, until)?;
        }
        let room = (TEXT_LEN_MAX + 1 - bytes.len()) as u64;
        match (&file).take(room.min(READ_LEN)).read_to_end(&mut bytes) {
            Ok(0) => break,
            Ok(_) if bytes.len() > TEXT_LEN_MAX => {
                return Err(io::Error::other(format!("it is longer than {} MiB", TEXT_LEN_MAX >> 20)));
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not text in UTF-8"))
}

/// Waits until a pipe has something, or has ended.
fn await_pipe(file: &File, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
    let mut fds = [PollFd::new(file, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout))? {
        0 => Err(io::Error::other("no program writes to it")),
        _ => Ok(()),
    }
}

/// The text of a settings file.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> Result<String, SettingsError> {
    read_text(path)
        .map_err(|error| SettingsError::Read { path: path.to_path_buf(), reason: error.to_string() })
}

/// The settings that a text holds; values that types alone do not check are left to the caller. Texts that
/// are empty are refused: an empty path would be the current folder.
///
/// # Errors
/// They are not TOML, or not settings of this kind.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, SettingsError> {
    let line = |at: usize| text.get(..at).unwrap_or(text).matches('\n').count() + 1;
    let wrong = |error: toml::de::Error| {
        let message = error.message().replace('\n', " ");
        SettingsError::Syntax { line: line(error.span().map_or(0, |span| span.start)), message }
    };
    let parsed = toml::from_str(text).map_err(wrong)?;
    let table = toml::de::DeTable::parse(text).map_err(wrong)?;
    if let Some((at, setting)) = empty_text(table.get_ref()) {
        let message = format!("'{setting}' is empty: give it a value, or leave the line out");
        return Err(SettingsError::Syntax { line: line(at), message });
    }
    Ok(parsed)
}

/// The first setting whose value is a text without a letter, and where that is.
fn empty_text(table: &toml::de::DeTable<'_>) -> Option<(usize, String)> {
    let found =
        |(key, value): (&toml::Spanned<toml::de::DeString<'_>>, &toml::Spanned<toml::de::DeValue<'_>>)| {
            let key = key.get_ref();
            match value.get_ref() {
                toml::de::DeValue::String(text) if text.trim().is_empty() => {
                    Some((value.span().start, key.to_string()))
                }
                toml::de::DeValue::Table(inner) => {
                    empty_text(inner).map(|(at, name)| (at, format!("{key}.{name}")))
                }
                toml::de::DeValue::Array(entries) => entries.iter().find_map(|entry| match entry.get_ref() {
                    toml::de::DeValue::Table(inner) => {
                        empty_text(inner).map(|(at, name)| (at, format!("{key}.{name}")))
                    }
                    _ => None,
                }),
                _ => None,
            }
        };
    table.iter().filter_map(found).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Write;

    #[test]
    fn texts_come_from_files_and_pipes_and_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
        writer.write_all(b"a = ").unwrap();
        let slow = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            writer.write_all(b"1").unwrap();
        });
        assert_eq!(read_text(Path::new(&path)).unwrap(), "a = 1");
        slow.join().unwrap();
        let says = |path: &str| read_text(Path::new(path)).unwrap_err().to_string();
        assert_eq!(says("/dev/zero"), "it is longer than 64 MiB");
        assert_eq!(read_text(Path::new("/dev/null")).unwrap(), "");
        assert_eq!(says("/"), "it is a directory");
        assert_eq!(says("/proc/self/exe"), "it is not text in UTF-8");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let good: BTreeMap<String, u32> = parse("a = 1\nb = 2").unwrap();
        assert_eq!(good["b"], 2);
        let bad = parse::<BTreeMap<String, u32>>("a = 1\nb = 'x'").unwrap_err().to_string();
        assert!(bad.starts_with("line 2 of the settings: invalid type"), "{bad}");
        for (text, expected) in [
            (
                "b = 'x'\na = ''",
                "line 2 of the settings: 'a' is empty: give it a value, or leave the line out",
            ),
            ("z = ' '\na = ''", "line 1 of the settings: 'z' is empty"),
            ("[t]\nb = \"\"", "line 2 of the settings: 't.b' is empty"),
            ("[[t]]\nb = 'x'\n[[t]]\nb = ''", "line 4 of the settings: 't.b' is empty"),
        ] {
            let bad = parse::<toml::Table>(text).unwrap_err().to_string();
            assert!(bad.starts_with(expected), "{bad}");
        }
        parse::<toml::Table>("a = 'x'\nb = []\nc = ['']\n[d]").unwrap();
        let missing = read(Path::new("no/such/file")).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read the settings no/such/file: No such file"), "{missing}");
    }
}
