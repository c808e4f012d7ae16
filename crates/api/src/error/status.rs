//! Refusals as gRPC statuses.

use super::{Kind, Refusal};
use tonic::metadata::{MetadataValue, errors::InvalidMetadataValue};
use tonic::{Code, Status};

/// Metadata entry that names the kind of a refusal.
pub const KIND_KEY: &str = "polycast-error";
/// The longest sentence of a refusal, in bytes: it travels as a header, of which peers take 16 KiB, with up
/// to three bytes for each.
const MESSAGE_LEN_MAX: usize = 4_096;
/// Metadata entry with the address of the manager that leads, beside the kind `not-leader`.
pub const LEADER_KEY: &str = "polycast-leader";

impl Kind {
    /// The gRPC code of a refusal of this kind.
    fn code(self) -> Code {
        match self {
            Kind::NotRegistered | Kind::ObjectBusy | Kind::NotJoined | Kind::NotLeader | Kind::Version => {
                Code::FailedPrecondition
            }
            Kind::ObjectUnknown
            | Kind::ReceiverUnknown
            | Kind::RequestUnknown
            | Kind::StreamUnknown
            | Kind::GroupUnknown => Code::NotFound,
            Kind::ObjectTaken | Kind::StreamTaken | Kind::GroupTaken | Kind::NameTaken => Code::AlreadyExists,
            Kind::ReceiverTwice | Kind::NoReceivers | Kind::Path | Kind::Invalid => Code::InvalidArgument,
            Kind::TopicTaken | Kind::NotAllowed => Code::PermissionDenied,
            Kind::OriginFailed | Kind::TransferFailed => Code::Aborted,
            Kind::ManagerUnreachable => Code::Unavailable,
            Kind::Denied | Kind::StoreFull | Kind::Full => Code::ResourceExhausted,
            Kind::TimedOut => Code::DeadlineExceeded,
            Kind::Cancelled => Code::Cancelled,
            Kind::Internal => Code::Internal,
        }
    }
}

impl Refusal {
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
        let (name, code) = (refusal.kind.name(), refusal.kind.code());
        let mut message = refusal.message;
        if message.len() > MESSAGE_LEN_MAX {
            message.truncate(message.floor_char_boundary(MESSAGE_LEN_MAX));
            message.push('…');
        }
        let mut status = Status::new(code, message);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::KINDS;

    #[test]
    fn refusals_survive_the_wire() {
        for (kind, name) in KINDS {
            let refusal = Refusal::new(kind, format!("a sentence about {name}"));
            let status = Status::from(refusal.clone());
            assert_eq!(status.code(), kind.code());
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
}
