//! What a refusal looks like on the wire: a gRPC status, a sentence, and a kind for programs.

use crate::PROTOCOL_VERSION;
use tonic::metadata::{MetadataValue, errors::InvalidMetadataValue};
use tonic::{Code, Status};

/// Metadata entry that names the kind of a refusal.
pub const KIND_KEY: &str = "polycast-error";
/// The longest sentence of a refusal, in bytes: it travels as a header, of which peers take 16 KiB, with up to three bytes for each.
const MESSAGE_LEN_MAX: usize = 4_096;
/// Metadata entry with the address of the manager that leads, beside the kind `not-leader`.
pub const LEADER_KEY: &str = "polycast-leader";

/// What kind of refusal it is.
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
    /// The topic belongs to another application.
    TopicTaken,
    /// The bytes of an object cannot be got from where they are from at first, or are not those that its key names.
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

/// Kinds with their names on the wire and their gRPC codes.
const KINDS: [(Kind, &str, Code); 27] = [
    (Kind::NotRegistered, "not-registered", Code::FailedPrecondition),
    (Kind::ObjectUnknown, "object-unknown", Code::NotFound),
    (Kind::ObjectTaken, "object-taken", Code::AlreadyExists),
    (Kind::ObjectBusy, "object-busy", Code::FailedPrecondition),
    (Kind::ReceiverUnknown, "receiver-unknown", Code::NotFound),
    (Kind::ReceiverTwice, "receiver-twice", Code::InvalidArgument),
    (Kind::NoReceivers, "no-receivers", Code::InvalidArgument),
    (Kind::RequestUnknown, "request-unknown", Code::NotFound),
    (Kind::StreamUnknown, "stream-unknown", Code::NotFound),
    (Kind::StreamTaken, "stream-taken", Code::AlreadyExists),
    (Kind::TopicTaken, "topic-taken", Code::PermissionDenied),
    (Kind::OriginFailed, "origin-failed", Code::Aborted),
    (Kind::ManagerUnreachable, "manager-unreachable", Code::Unavailable),
    (Kind::Denied, "denied", Code::ResourceExhausted),
    (Kind::NotAllowed, "not-allowed", Code::PermissionDenied),
    (Kind::NotJoined, "not-joined", Code::FailedPrecondition),
    (Kind::NotLeader, "not-leader", Code::FailedPrecondition),
    (Kind::NameTaken, "name-taken", Code::AlreadyExists),
    (Kind::Path, "path", Code::InvalidArgument),
    (Kind::StoreFull, "store-full", Code::ResourceExhausted),
    (Kind::TimedOut, "timed-out", Code::DeadlineExceeded),
    (Kind::TransferFailed, "transfer-failed", Code::Aborted),
    (Kind::Cancelled, "cancelled", Code::Cancelled),
    (Kind::Full, "full", Code::ResourceExhausted),
    (Kind::Version, "version", Code::FailedPrecondition),
    (Kind::Invalid, "invalid", Code::InvalidArgument),
    (Kind::Internal, "internal", Code::Internal),
];

impl Kind {
    /// Its name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// The kind of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        KINDS.iter().find(|entry| entry.1 == name).map(|entry| entry.0)
    }

    fn entry(self) -> &'static (Kind, &'static str, Code) {
        KINDS.iter().find(|entry| entry.0 == self).unwrap_or(&KINDS[KINDS.len() - 1])
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
    /// Where the manager that leads is reached, `HOST:PORT`, as it advertises itself. Only beside [`Kind::NotLeader`].
    pub leader: Option<String>,
}

impl Refusal {
    /// A refusal of this kind.
    #[must_use]
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Refusal { kind, message: message.into(), leader: None }
    }

    /// The refusal of a manager that does not lead; `leader` is the address of the one that does, where it is known.
    #[must_use]
    pub fn not_leader(leader: Option<&str>) -> Self {
        let message = match leader {
            Some(leader) => format!("another manager leads, the one at {leader}"),
            None => "no manager leads now".into(),
        };
        Refusal { kind: Kind::NotLeader, message, leader: leader.map(str::to_string) }
    }

    /// The refusal that a status from a Polycast service carries; `None` if it comes from elsewhere.
    #[must_use]
    pub fn from_status(status: &Status) -> Option<Self> {
        let name = status.metadata().get(KIND_KEY)?.to_str().ok()?;
        // A kind that a later version has added is still a refusal with a sentence.
        let kind = Kind::from_name(name).unwrap_or(Kind::Internal);
        let leader = status.metadata().get(LEADER_KEY).and_then(|leader| leader.to_str().ok());
        let leader = leader.filter(|_| kind == Kind::NotLeader).map(str::to_string);
        Some(Refusal { kind, message: status.message().to_string(), leader })
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let (_, name, code) = refusal.kind.entry();
        let mut message = refusal.message;
        if message.len() > MESSAGE_LEN_MAX {
            message.truncate(message.floor_char_boundary(MESSAGE_LEN_MAX));
            message.push('…');
        }
        let mut status = Status::new(*code, message);
        let mut insert = |key: &'static str, text: &str| {
            let value: Result<MetadataValue<_>, InvalidMetadataValue> = text.parse();
            // The kinds are plain ASCII. An address that is not names no host that could be reached.
            if let Ok(value) = value {
                status.metadata_mut().insert(key, value);
            }
        };
        insert(KIND_KEY, name);
        if let Some(leader) = &refusal.leader {
            insert(LEADER_KEY, leader);
        }
        status
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_survive_the_wire() {
        for (kind, name, code) in KINDS {
            let refusal = Refusal::new(kind, format!("a sentence about {name}"));
            let status = Status::from(refusal.clone());
            assert_eq!(status.code(), code);
            assert_eq!(Refusal::from_status(&status), Some(refusal));
        }
    }

    #[test]
    fn a_long_sentence_is_cut() {
        let status = Status::from(Refusal::new(Kind::Invalid, "ü".repeat(100_000)));
        let refusal = Refusal::from_status(&status).unwrap();
        assert!(refusal.message.len() <= MESSAGE_LEN_MAX + 3 && refusal.message.ends_with("ü…"));
        let short = "x".repeat(MESSAGE_LEN_MAX);
        assert_eq!(Status::from(Refusal::new(Kind::Invalid, short.as_str())).message(), short);
    }

    #[test]
    fn the_leader_is_a_field_and_survives_the_wire() {
        for leader in [Some("11.0.0.1:7000"), None] {
            let refusal = Refusal::not_leader(leader);
            assert_eq!((refusal.kind, refusal.leader.as_deref()), (Kind::NotLeader, leader));
            assert_eq!(Refusal::from_status(&Status::from(refusal.clone())), Some(refusal));
        }
        // Another kind has no leader, whatever the metadata say.
        let mut status = Status::from(Refusal::new(Kind::Denied, "no path"));
        status.metadata_mut().insert(LEADER_KEY, "11.0.0.1:7000".parse().unwrap());
        assert_eq!(Refusal::from_status(&status).unwrap().leader, None);
    }

    #[test]
    fn a_foreign_status_is_no_refusal() {
        assert_eq!(Refusal::from_status(&Status::unavailable("gone")), None);
    }

    #[test]
    fn other_versions_are_named() {
        assert!(check_version(PROTOCOL_VERSION).is_ok());
        assert!(check_version(7).unwrap_err().to_string().contains("version 7"));
    }
}
