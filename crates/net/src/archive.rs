//! A directory as one object: a tar stream that is never stored anywhere.
//!
//! [`TreeSource`] walks a directory once and then answers reads at any offset of the tar stream
//! that the tree would make, opening files as they are needed. [`unpack`] turns such a stream into
//! a directory again. The stream is the GNU dialect, with a PAX record where a modification time is
//! not a whole number of seconds, so that `tar` can read it too.
//!
//! Kept: names (any bytes), permissions, modification times, symbolic links (as links), empty
//! directories. Not kept: owners, extended attributes, hard links (each becomes a file of its own),
//! the set-user-id and set-group-id bits. Sockets, pipes and devices are refused.

mod format;
mod tree;
mod unpack;

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;

pub use tree::TreeSource;
pub use unpack::{Unpacked, check_target, unpack};

use polycast_types::Printable;
use std::io;
use std::path::PathBuf;

/// Why a directory could not be read as an object, or an object not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The path to read as a tree is something else.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// The tree holds something that has no bytes to deliver.
    #[error("{} is {what}: only files, directories and symbolic links can be delivered", path.display())]
    SpecialFile {
        /// Its path.
        path: PathBuf,
        /// What it is, such as `a socket`.
        what: &'static str,
    },
    /// The system refused an operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A file of the tree is not what it was when the tree was walked.
    #[error("{} {how} while it was being sent", path.display())]
    Changed {
        /// Its path.
        path: PathBuf,
        /// What became of it.
        how: &'static str,
    },
    /// The stream to unpack cannot be read.
    #[error("cannot read the directory's stream: {0}")]
    Read(#[source] io::Error),
    /// The stream to unpack is not one that [`TreeSource`] makes.
    #[error("the directory's stream is damaged at byte {offset}: {what}")]
    Malformed {
        /// Where in the stream.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// An entry of the stream would reach outside the target, or is of a kind that is never unpacked.
    #[error("refused to unpack the entry '{}': {why}", Printable(entry))]
    Refused {
        /// The entry's name, as far as it can be shown.
        entry: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Something other than an empty directory is in the way.
    #[error("{} is there already: remove it, or say --force to replace it", path.display())]
    TargetExists {
        /// Where the directory was to appear.
        path: PathBuf,
    },
}

impl From<ArchiveError> for io::Error {
    fn from(error: ArchiveError) -> Self {
        let kind = match &error {
            ArchiveError::Io { source, .. } | ArchiveError::Read(source) => source.kind(),
            ArchiveError::Malformed { .. } | ArchiveError::Refused { .. } => io::ErrorKind::InvalidData,
            ArchiveError::NotADirectory { .. } => io::ErrorKind::NotADirectory,
            ArchiveError::TargetExists { .. } => io::ErrorKind::AlreadyExists,
            ArchiveError::SpecialFile { .. } | ArchiveError::Changed { .. } => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
