//! The key of a cluster, in a file: 32 random bytes as 64 hexadecimal digits in a line.

use crate::hash::{hex, parse_hex};
use crate::seal::Secret;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// A longer file is none.
const LEN_MAX: u64 = 1 << 10;

/// A key file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It cannot be read.
    #[error("the key file {} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Reason for the failure.
        source: io::Error,
    },
    /// Others can read or change it.
    #[error("others can read the key file {} (its mode is {mode:o}): chmod 600 {}", path.display(), path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Another user can change it.
    #[error("the key file {} belongs to another user: chown it to the one who runs this", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// It holds something else.
    #[error(
        "{} is no key file: it holds {found}, and a key is a line of 64 hexadecimal digits, as 'polycast key new FILE' writes it",
        path.display()
    )]
    Other {
        /// The file.
        path: PathBuf,
        /// Description of its contents.
        found: String,
    },
}

impl Secret {
    /// Reads a cluster's key.
    ///
    /// # Errors
    /// The file cannot be read, others can read it too, or it holds no key.
    pub fn read(path: &Path) -> Result<Secret, KeyFileError> {
        Self::read_of(path, None)
    }

    /// Reads a cluster's key that may also be another user's: root does, who looks after that one's files.
    ///
    /// # Errors
    /// As those of [`Secret::read`].
    pub fn read_of(path: &Path, owner: Option<u32>) -> Result<Secret, KeyFileError> {
        let failed = |source| KeyFileError::Read { path: path.into(), source };
        // A pipe must not hold us.
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(failed(io::Error::other("it is no regular file")));
        }
        let own = rustix::process::geteuid().as_raw();
        if ![Some(0), Some(own), owner].contains(&Some(metadata.uid())) {
            return Err(KeyFileError::Foreign { path: path.into() });
        }
        let mode = metadata.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyFileError::Open { path: path.into(), mode });
        }
        let mut bytes = Zeroizing::new(Vec::new());
        file.take(LEN_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        let text = std::str::from_utf8(&bytes).ok().map(str::trim);
        let key = text.and_then(parse_hex).filter(|key| key.iter().any(|byte| *byte != key[0]));
        key.map(Secret::new).ok_or_else(|| KeyFileError::Other {
            path: path.into(),
            found: match text {
                _ if bytes.len() as u64 > LEN_MAX => format!("more than {LEN_MAX} bytes"),
                Some(text) if parse_hex(text).is_some() => "the same byte again and again".into(),
                Some(text) => format!("{} characters", text.chars().count()),
                None => format!("{} bytes that are no text", bytes.len()),
            },
        })
    }

    /// Writes it to a new file that only its owner can read.
    ///
    /// # Errors
    /// There is such a file already, or it cannot be written.
    pub fn write_new(&self, path: &Path) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let written = file.write_all(self.to_line().as_bytes()).and_then(|()| file.sync_all());
        written.inspect_err(|_| {
            // Half a key is none.
            let _ = std::fs::remove_file(path);
        })
    }

    /// It as a line of text.
    #[must_use]
    pub fn to_line(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{}\n", *Zeroizing::new(hex(self.reveal()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_comes_back_and_what_is_none_is_refused_in_a_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let key = Secret::fresh();
        key.write_new(&path).unwrap();
        assert!(Secret::read(&path).unwrap() == key);
        assert_eq!(key.write_new(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let said = |path: &Path| Secret::read(path).unwrap_err().to_string();
        set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert!(said(&path).contains("its mode is 640") && said(&path).contains("chmod 600"));
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        for (bytes, holds) in [
            (&b"abc"[..], "3 characters"),
            (b"", "0 characters"),
            (&[b'x'; 64], "64 characters"),
            (&[0xff; 9], "9 bytes that are no text"),
            (&[b'0'; 2_000], "more than 1024 bytes"),
            (&[b'0'; 64], "the same byte again and again"),
        ] {
            write(&path, bytes).unwrap();
            assert!(said(&path).contains(holds), "{}", said(&path));
        }
        assert!(said(&dir.path().join("none")).contains("cannot be read"));
    }
}
