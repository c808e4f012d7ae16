//! Exit status and failures of the program.

use crate::asked;
use polycast_api::error::Kind;
pub(crate) use polycast_api::error::{plain, without_numbers};
use polycast_net::archive::ArchiveError;
use polycast_net::store::is_full;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Kind of a failure whose agent has ended in mid-call.
pub const AGENT_LOST: &str = "agent-lost";

/// The exit status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// All was done.
    Done = 0,
    /// The user's input was wrong, or a receiver failed.
    Failed = 1,
    /// Something unexpected.
    Unexpected = 2,
    /// A time limit that the user has set, or takes for granted, has passed.
    Late = 3,
    /// The user or the system has ended it.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Reason why a command could not do its work: one sentence, and what to do about it where that is known.
#[derive(Debug)]
pub struct Failure {
    /// Kind of failure, for programs: those of the API, and three of the way to the agent.
    pub kind: &'static str,
    /// The sentence.
    pub message: String,
    /// Remedy for the user.
    pub hint: Option<String>,
}

impl Failure {
    /// The user can do something about it.
    pub fn input(message: impl Into<String>) -> Self {
        Failure::of(Kind::Invalid, message)
    }

    /// A failure that was not expected.
    pub fn unexpected(message: impl Into<String>) -> Self {
        Failure::of(Kind::Internal, message)
    }

    /// A failure of this kind.
    pub fn of(kind: Kind, message: impl Into<String>) -> Self {
        Failure { kind: kind.name(), message: without_numbers(message.into()), hint: None }
    }

    /// Something that is wrong with a path.
    pub fn place(message: impl Into<String>) -> Self {
        Failure::of(Kind::Path, message)
    }

    /// Returns the failure of a write: its kind shows if the cause is a full disk.
    pub fn writing(error: &(dyn std::error::Error + 'static)) -> Self {
        Failure::of(if is_full(error) { Kind::StoreFull } else { Kind::Path }, error.to_string())
    }

    /// The user or the system has ended the command.
    pub fn cancelled() -> Self {
        Failure::of(Kind::Cancelled, "cancelled")
    }

    /// The exit status that it ends the program with.
    pub fn exit(&self) -> Exit {
        match Kind::from_name(self.kind) {
            Some(Kind::Internal) => Exit::Unexpected,
            Some(Kind::TimedOut) => Exit::Late,
            Some(Kind::Cancelled) if asked::is_asked() => Exit::Interrupted,
            None if self.kind == AGENT_LOST => Exit::Unexpected,
            _ => Exit::Failed,
        }
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The system refused something that the user asked to do with a path.
    pub fn path(action: &str, path: &Path, error: &io::Error) -> Self {
        let message = format!("cannot {action} {}: {}", path.display(), plain(error));
        Failure::of(if is_full(error) { Kind::StoreFull } else { Kind::Path }, message)
    }
}

impl From<ArchiveError> for Failure {
    fn from(error: ArchiveError) -> Self {
        Failure::writing(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_like_sentences() {
        let missing = io::Error::from_raw_os_error(2);
        let failure = Failure::path("read", Path::new("a/b"), &missing);
        assert_eq!(failure.message, "cannot read a/b: no such file or directory");
        assert_eq!((failure.exit(), failure.kind), (Exit::Failed, "path"));
        assert_eq!(plain(&io::Error::other("TCP is gone")), "TCP is gone");
        let nested = Failure::input("a: No such file or directory (os error 2); b (os error 13)");
        assert_eq!(nested.message, "a: no such file or directory; b");
    }
}
