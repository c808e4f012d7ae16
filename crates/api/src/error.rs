//! Refusals: a sentence, and a kind for programs. On the wire a refusal is a gRPC status.

#[cfg(feature = "cluster")]
mod status;

use crate::PROTOCOL_VERSION;
#[cfg(feature = "cluster")]
pub use status::{KIND_KEY, LEADER_KEY};

/// Kind of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The process has not registered.
    NotRegistered,
    /// No such object here.
    ObjectUnknown,
    /// An object of this id is here already.
    ObjectTaken,
    /// The object is being sent or received.
    ObjectBusy,
    /// The manager knows no agent of this name.
    ReceiverUnknown,
    /// A receiver is named twice, or is the source itself.
    ReceiverTwice,
    /// There is no receiver.
    NoReceivers,
    /// There is no request or transfer to change or withdraw.
    RequestUnknown,
    /// There is no stream of this name.
    StreamUnknown,
    /// There is a stream of this name already.
    StreamTaken,
    /// There is no group of this name.
    GroupUnknown,
    /// There is a group of this name already.
    GroupTaken,
    /// The topic belongs to another application.
    TopicTaken,
    /// The bytes of an object cannot be got from where they are from at first, or are not those that its key
    /// names.
    OriginFailed,
    /// The manager cannot be reached.
    ManagerUnreachable,
    /// The manager does not lend a path.
    Denied,
    /// The manager's policy does not allow it.
    NotAllowed,
    /// The agent has not joined the manager, or the manager has forgotten it.
    NotJoined,
    /// Another manager leads: [`Refusal::leader`], where it is known.
    NotLeader,
    /// Another agent has this name.
    NameTaken,
    /// The path cannot be read.
    Path,
    /// No room in the store.
    StoreFull,
    /// It took longer than the caller wanted.
    TimedOut,
    /// The transfer failed as a whole.
    TransferFailed,
    /// It was cancelled.
    Cancelled,
    /// A limit is reached.
    Full,
    /// The peer has another protocol version.
    Version,
    /// The request makes no sense.
    Invalid,
    /// Something unexpected.
    Internal,
}

/// Kinds with their names on the wire.
const KINDS: [(Kind, &str); 29] = [
    (Kind::NotRegistered, "not-registered"),
    (Kind::ObjectUnknown, "object-unknown"),
    (Kind::ObjectTaken, "object-taken"),
    (Kind::ObjectBusy, "object-busy"),
    (Kind::ReceiverUnknown, "receiver-unknown"),
    (Kind::ReceiverTwice, "receiver-twice"),
    (Kind::NoReceivers, "no-receivers"),
    (Kind::RequestUnknown, "request-unknown"),
    (Kind::StreamUnknown, "stream-unknown"),
    (Kind::StreamTaken, "stream-taken"),
    (Kind::GroupUnknown, "group-unknown"),
    (Kind::GroupTaken, "group-taken"),
    (Kind::TopicTaken, "topic-taken"),
    (Kind::OriginFailed, "origin-failed"),
    (Kind::ManagerUnreachable, "manager-unreachable"),
    (Kind::Denied, "denied"),
    (Kind::NotAllowed, "not-allowed"),
    (Kind::NotJoined, "not-joined"),
    (Kind::NotLeader, "not-leader"),
    (Kind::NameTaken, "name-taken"),
    (Kind::Path, "path"),
    (Kind::StoreFull, "store-full"),
    (Kind::TimedOut, "timed-out"),
    (Kind::TransferFailed, "transfer-failed"),
    (Kind::Cancelled, "cancelled"),
    (Kind::Full, "full"),
    (Kind::Version, "version"),
    (Kind::Invalid, "invalid"),
    (Kind::Internal, "internal"),
];

impl Kind {
    /// Its name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|entry| entry.0 == self).unwrap_or(&KINDS[KINDS.len() - 1]).1
    }

    /// The kind of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        KINDS.iter().find(|entry| entry.1 == name).map(|entry| entry.0)
    }
}

/// A refusal: a kind and one sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// For programs.
    pub kind: Kind,
    /// For people.
    pub message: String,
    /// Address of the leading manager, `HOST:PORT`, as it advertises itself. Only beside [`Kind::NotLeader`].
    pub leader: Option<String>,
}

impl Refusal {
    /// A refusal of this kind.
    #[must_use]
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Refusal { kind, message: message.into(), leader: None }
    }

    /// The refusal of a manager that does not lead; `leader` is the address of the one that does, where it is
    /// known.
    #[must_use]
    pub fn not_leader(leader: Option<&str>) -> Self {
        let message = match leader {
            Some(leader) => format!("another manager leads, the one at {leader}"),
            None => "no manager leads now".into(),
        };
        Refusal { kind: Kind::NotLeader, message, leader: leader.map(str::to_string) }
    }

    /// The refusal of a manager that sees that none can lead, and why.
    #[must_use]
    pub fn no_leader(why: &str) -> Self {
        Refusal::new(Kind::NotLeader, format!("no manager leads now: {why}"))
    }
}

/// Turns down a peer of another protocol version.
///
/// # Errors
/// It has another one.
pub fn check_version(theirs: u32) -> Result<(), Refusal> {
    if theirs == PROTOCOL_VERSION {
        return Ok(());
    }
    Err(Refusal::new(
        Kind::Version,
        format!(
            "the peer speaks protocol version {theirs}, this program version {PROTOCOL_VERSION}: install the same on both"
        ),
    ))
}

/// The message at the end of a chain of errors: the system's own words.
#[must_use]
pub fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// An error of the system as part of a sentence: `permission denied`.
#[must_use]
pub fn plain(error: &std::io::Error) -> String {
    without_numbers(error.to_string())
}

/// Takes out ` (os error 13)`, since the words before it say the same, and the capital of these words: they
/// stand within a sentence.
#[must_use]
pub fn without_numbers(mut text: String) -> String {
    const MARK: &str = " (os error ";
    while let Some(start) = text.find(MARK) {
        let Some(len) = text[start..].find(')') else { break };
        let number = text[start + MARK.len()..start + len].parse().ok();
        text.replace_range(start..=start + len, "");
        let Some(error) = number.map(std::io::Error::from_raw_os_error) else { continue };
        let words = error.to_string();
        let words = words.find(MARK).map_or(words.as_str(), |end| &words[..end]);
        // Not the capitals of an abbreviation.
        let is_word = words.chars().nth(1).is_some_and(char::is_lowercase);
        if let Some(at) = text[..start].strip_suffix(words).map(str::len).filter(|_| is_word) {
            let first: String = words.chars().take(1).flat_map(char::to_lowercase).collect();
            text.replace_range(at..at + first.len(), &first);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_stand_within_a_sentence() {
        for (text, said) in [
            ("b: Connection refused (os error 111); c", "b: connection refused; c"),
            ("No such file or directory (os error 2)", "no such file or directory"),
            (
                "a: Input/output error (os error 5), Permission denied (os error 13)",
                "a: input/output error, permission denied",
            ),
            ("RPC struct is bad (os error 72)", "RPC struct is bad"),
            ("The peer's word (os error 2)", "The peer's word"),
            ("Connection refused", "Connection refused"),
            ("odd (os error x) (os error", "odd (os error"),
        ] {
            assert_eq!(without_numbers(text.into()), said);
        }
    }

    #[test]
    fn other_versions_are_named() {
        assert!(check_version(PROTOCOL_VERSION).is_ok());
        assert!(check_version(7).unwrap_err().to_string().contains("version 7"));
    }
}
