//! A directory as one object: a tar stream that is never stored anywhere.
//!
//! [`TreeSource`] walks a directory once and then answers reads at any offset of the tar stream that the tree
//! would make, opening files as they are needed. [`unpack`] turns such a stream into a directory again. The
//! stream is the GNU dialect, with a PAX record where a modification time is not a whole number of seconds,
//! so that `tar` can read it too.
//!
//! Kept: names (any bytes), permissions, modification times, symbolic links (as links, unless they are
//! followed), hard links within the tree, empty directories, and at the receiver's holes for long runs of
//! zeros. Not kept: owners, extended attributes, the set-user-id and set-group-id bits. Sockets, pipes and
//! devices are left out, and named; links that lead out of the tree are named.

mod format;
mod glob;
mod growing;
mod links;
mod manifest;
mod publish;
mod tree;
mod unpack;

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;

pub use glob::{Glob, GlobError};
pub(crate) use growing::{Growing, Waiting, Whereabouts, put_back};
pub use links::{LinkOut, LinksOut, links_out_of};
pub use manifest::{ENTRIES_MAX, Listed, MANIFEST_LEN_MAX, Manifest, Root};
pub use publish::{check_target, is_free, present};
pub use tree::{Selection, Skipped, TreeSource};
pub use unpack::{Unpacked, unpack};

use crate::object::Changed;
use polycast_types::Printable;
use std::io;
use std::path::PathBuf;

/// Reason that a directory could not be read as an object, or that an object could not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The path to read as a tree is something else.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// Two of several paths have the same last name.
    #[error("two of the paths are called '{}': only one of them can have that name", Printable(name))]
    SameName {
        /// The name.
        name: String,
    },
    /// The system refused an operation.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Operation that was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Reason for the failure.
        source: io::Error,
    },
    /// A file of the tree is not what it was when the tree was walked.
    #[error(transparent)]
    Changed(#[from] Changed),
    /// A path below the directory is longer than the system opens one.
    #[error(
        "a path below {} is longer than the 4,095 bytes by which the system opens one: send a directory further down by itself",
        path.display()
    )]
    TooDeep {
        /// The directory.
        path: PathBuf,
    },
    /// A link cannot be followed.
    #[error("cannot follow the link {}: {why}", path.display())]
    Unfollowed {
        /// Path of the link.
        path: PathBuf,
        /// Problem with the link.
        why: &'static str,
    },
    /// Links lead out of a directory that is to be a list of its files.
    #[error(
        "{0}: a set is made of files that lie in it; say --follow to take what they lead to, or leave out --files"
    )]
    LeadOut(LinksOut),
    /// A directory that is no list of files.
    #[error("'{}' cannot be in a set: {why}; without --files the directory is one object", Printable(entry))]
    Unlisted {
        /// The entry's name, as far as it can be shown.
        entry: String,
        /// Problem with the entry.
        why: &'static str,
    },
    /// The stream to unpack cannot be read.
    #[error("cannot read the directory's stream: {0}")]
    Read(#[source] io::Error),
    /// The stream to unpack is not one that [`TreeSource`] makes.
    #[error("the directory's stream is damaged at byte {offset}: {what}")]
    Malformed {
        /// Offset in the stream.
        offset: u64,
        /// Problem at that offset.
        what: &'static str,
    },
    /// An entry of the stream would reach outside the target, or is of a kind that is never unpacked.
    #[error("refused to unpack the entry '{}': {why}", Printable(entry))]
    Refused {
        /// The entry's name, as far as it can be shown.
        entry: String,
        /// Problem with the entry.
        why: &'static str,
    },
    /// Two entries have names that are one name to the file system here.
    #[error("'{}' and {} are one file here: the file system of {} takes the names for the same", Printable(entry), other_name(other.as_deref()), place.display())]
    OneNameHere {
        /// The entry that came second, with its path.
        entry: String,
        /// The name of the one that came first, where the file system tells it.
        other: Option<String>,
        /// The directory that was being unpacked.
        place: PathBuf,
    },
    /// Something other than an empty directory is in the way.
    #[error("{} is there already: say --update to bring it up to date, or --force to replace it", path.display())]
    TargetExists {
        /// Path at which the directory was to appear.
        path: PathBuf,
    },
}

impl ArchiveError {
    /// Returns true if another try with the same stream may do what this one could not: once there is room,
    /// once a name is free, or once the user may write there.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        use io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, ResourceBusy, StorageFull};
        match self {
            ArchiveError::TargetExists { .. } => true,
            ArchiveError::Io { source, .. } => {
                [PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, ResourceBusy, StorageFull]
                    .contains(&source.kind())
            }
            _ => false,
        }
    }
}

fn other_name(name: Option<&str>) -> String {
    name.map_or_else(|| "an earlier name".into(), |name| format!("'{}'", Printable(name)))
}

impl From<ArchiveError> for io::Error {
    fn from(error: ArchiveError) -> Self {
        let kind = match error {
            // It stays what it is: those who read ask for it.
            ArchiveError::Changed(changed) => return changed.into(),
            ArchiveError::Io { ref source, .. } | ArchiveError::Read(ref source) => source.kind(),
            ArchiveError::Malformed { .. } | ArchiveError::Refused { .. } => io::ErrorKind::InvalidData,
            ArchiveError::NotADirectory { .. } => io::ErrorKind::NotADirectory,
            ArchiveError::TargetExists { .. } => io::ErrorKind::AlreadyExists,
            ArchiveError::SameName { .. }
            | ArchiveError::TooDeep { .. }
            | ArchiveError::Unfollowed { .. }
            | ArchiveError::LeadOut(_)
            | ArchiveError::Unlisted { .. }
            | ArchiveError::OneNameHere { .. } => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
