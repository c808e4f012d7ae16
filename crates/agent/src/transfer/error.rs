//! Reasons why a transfer as a whole fails, in a sentence each.

use polycast_api::error::Kind;
use polycast_net::archive::ArchiveError;
use polycast_net::interface::InterfaceError;
use polycast_net::object::{Changed, changed_in};
use polycast_net::port_in_use::PortInUse;
use polycast_net::store::StoreError;
use polycast_net::store::is_full;
use polycast_protocol::session::{Goodbye, NotCalledFor, Why};
use polycast_types::{Duration, Printable, format_bytes};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Several offers, in a line.
#[derive(Debug)]
pub struct Offers(pub(super) String);

impl fmt::Display for Offers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A transfer that failed as a whole; single receivers that failed are in the report.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The interface cannot be used.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The object cannot be stored.
    #[error(transparent)]
    Store(StoreError),
    /// The object's name is none that a file here may get.
    #[error("the offered name '{}' {}: say with --out what to call it", Printable(.0), .1)]
    Name(String, &'static str),
    /// A directory object does not unpack.
    #[error("the directory cannot be unpacked: {0}")]
    Unpack(ArchiveError),
    /// The source's bytes cannot be read.
    #[error("cannot read the object: {0}")]
    Read(io::Error),
    /// The source's bytes are not what they were when it began.
    #[error("{0}")]
    Changed(Changed),
    /// The interface does not send or receive multicast.
    #[error("no multicast on {interface}: {source}; {}", advice(source))]
    Multicast {
        /// Its address.
        interface: IpAddr,
        /// The cause.
        source: io::Error,
    },
    /// Another program has the port of announcements for itself.
    #[error(
        "{0}, so offers are not found by multicast on this machine: say accept --from HOST, or end that program"
    )]
    PortInUse(PortInUse),
    /// The address that the transfer began with is no interface's any more.
    #[error("the address {0} is no interface's here any more: begin again at this machine's new address")]
    AddressGone(IpAddr),
    /// A local socket cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The source does not answer.
    #[error("the source at {address} cannot be reached: {source}")]
    Unreachable {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The source turned us down.
    #[error("the source refused: {}", Printable(.0))]
    Refused(String),
    /// This end was asked to do something that cannot be done here.
    #[error("{0}")]
    Unusable(String),
    /// The source's statements about its object do not fit together.
    #[error("the source contradicts itself: {}", Printable(.0))]
    Contradiction(String),
    /// The end there does not answer with an offer.
    #[error("what is there is no offer ({0})")]
    NoOffer(String),
    /// The source does not say what it has.
    #[error("the source did not answer within {}", in_seconds(.0))]
    NoAnswer(Duration),
    /// The connection to the source ended in mid-transfer.
    #[error(
        "the source went away with {} of {} verified: {}; what is verified is kept for another try",
        format_bytes(*verified), format_bytes(*total), Printable(reason)
    )]
    SourceLost {
        /// Bytes verified by then.
        verified: u64,
        /// Bytes of the object.
        total: u64,
        /// Reason for the end.
        reason: String,
    },
    /// No offer was found in time.
    #[error("nothing that could be taken was offered within {}", in_seconds(.0))]
    NothingOffered(Duration),
    /// The source ended it in mid-transfer: it was told to, or gives this receiver up.
    #[error(
        "the source ended it with {} of {} verified: {}; what is verified is kept for another try",
        format_bytes(*verified), format_bytes(*total), Printable(reason)
    )]
    Ended {
        /// Bytes verified by then.
        verified: u64,
        /// Bytes of the object.
        total: u64,
        /// The reason.
        reason: String,
    },
    /// The user ended it in mid-transfer.
    #[error(
        "cancelled with {} of {} verified, which are kept: the same command goes on from there",
        format_bytes(*verified), format_bytes(*total)
    )]
    Interrupted {
        /// Bytes verified by then.
        verified: u64,
        /// Bytes of the object.
        total: u64,
    },
    /// Nothing says which of several offers is meant.
    #[error("{0}: say with --handle which one")]
    SeveralOffers(Offers),
    /// No receiver joined in time.
    #[error("no receiver joined within {0} s")]
    NobodyJoined(u64),
    /// A peer that does not speak our protocol.
    #[error("{0}")]
    Protocol(#[from] polycast_wire::WireError),
    /// The user ended it.
    #[error("cancelled")]
    Cancelled,
    /// The kernel fails us.
    #[error("system error: {0}")]
    System(#[from] io::Error),
}

/// Returns the kind of a receiver's failure, for programs. A reason in the receiver's own words counts as a
/// failed transfer.
pub(super) fn kind_of(why: &Why) -> Kind {
    match why {
        Why::NeverJoined
        | Why::NotReady(_)
        | Why::Stalled(_)
        | Why::Starved(_)
        | Why::NoProgress(_)
        | Why::Deadline => Kind::TimedOut,
        Why::NeedsCode | Why::WrongCode | Why::TooManyCodes | Why::NotListed => Kind::NotAllowed,
        Why::TakenOut | Why::SourceCancelled => Kind::Cancelled,
        Why::Foreign(_) => Kind::Version,
        _ => Kind::TransferFailed,
    }
}

impl From<NotCalledFor> for TransferError {
    fn from(error: NotCalledFor) -> Self {
        TransferError::Contradiction(error.to_string())
    }
}

impl From<StoreError> for TransferError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unpack(error) => TransferError::Unpack(error),
            error => TransferError::Store(error),
        }
    }
}

/// Returns advice on a possible cause where multicast is refused.
fn advice(refused: &io::Error) -> &'static str {
    match refused.kind() {
        io::ErrorKind::PermissionDenied => "a firewall or a sandbox of this host forbids it",
        _ => "check that the interface is up and has a multicast route",
    }
}

/// A time limit for a sentence, such as `0.5 s`.
fn in_seconds(limit: &Duration) -> String {
    format!("{} s", limit.0 as f64 / 1e9)
}

impl TransferError {
    /// The offer has no place any more, or is gone: there may be another one.
    pub(super) fn is_turned_down(&self) -> bool {
        match self {
            TransferError::Refused(_) => true,
            _ => self.is_silence(),
        }
    }

    /// The source has not been heard: it may be far away, have too much to do, or be gone, and another try
    /// may reach it.
    pub(super) fn is_silence(&self) -> bool {
        match self {
            TransferError::NoAnswer(_) | TransferError::NoOffer(_) | TransferError::Unreachable { .. } => {
                true
            }
            TransferError::SourceLost { total, .. } => *total == 0,
            _ => false,
        }
    }

    /// The same for programs.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            TransferError::Store(StoreError::Full { .. }) => Kind::StoreFull,
            TransferError::Store(StoreError::Io { source, .. }) | TransferError::System(source)
                if is_full(source) =>
            {
                Kind::StoreFull
            }
            TransferError::Unpack(error) if is_full(error) => Kind::StoreFull,
            TransferError::Store(StoreError::Busy(_)) => Kind::ObjectBusy,
            TransferError::Store(_) | TransferError::Unpack(_) | TransferError::Read(_) => Kind::Path,
            TransferError::Cancelled | TransferError::Interrupted { .. } => Kind::Cancelled,
            TransferError::NobodyJoined(_)
            | TransferError::NothingOffered(_)
            | TransferError::NoAnswer(_) => Kind::TimedOut,
            TransferError::Name(..)
            | TransferError::SeveralOffers(_)
            | TransferError::Interface(_)
            | TransferError::PortInUse(_)
            | TransferError::Listen { .. }
            | TransferError::Unusable(_) => Kind::Invalid,
            TransferError::System(_) => Kind::Internal,
            TransferError::Changed(_)
            | TransferError::Multicast { .. }
            | TransferError::AddressGone(_)
            | TransferError::Unreachable { .. }
            | TransferError::Refused(_)
            | TransferError::Contradiction(_)
            | TransferError::NoOffer(_)
            | TransferError::SourceLost { .. }
            | TransferError::Ended { .. }
            | TransferError::Protocol(_) => Kind::TransferFailed,
        }
    }

    /// Returns true if another try can go on from the verified bytes: neither they nor the place for them
    /// caused the failure.
    #[must_use]
    pub fn keeps_part(&self) -> bool {
        match self {
            TransferError::Store(_)
            | TransferError::Name(..)
            | TransferError::Unpack(_)
            | TransferError::Read(_)
            | TransferError::Changed(_)
            | TransferError::Contradiction(_) => false,
            TransferError::Interface(_)
            | TransferError::Multicast { .. }
            | TransferError::PortInUse(_)
            | TransferError::AddressGone(_)
            | TransferError::NoOffer(_)
            | TransferError::Listen { .. }
            | TransferError::Unreachable { .. }
            | TransferError::Refused(_)
            | TransferError::Unusable(_)
            | TransferError::NoAnswer(_)
            | TransferError::SourceLost { .. }
            | TransferError::Ended { .. }
            | TransferError::Interrupted { .. }
            | TransferError::NothingOffered(_)
            | TransferError::SeveralOffers(_)
            | TransferError::NobodyJoined(_)
            | TransferError::Protocol(_)
            | TransferError::Cancelled
            | TransferError::System(_) => true,
        }
    }

    /// Returns the reason why a source could not read its object.
    pub(crate) fn reading(error: io::Error) -> Self {
        match changed_in(&error) {
            Some(changed) => TransferError::Changed(changed.clone()),
            None => TransferError::Read(error),
        }
    }

    /// The source's last word to its receivers; `again` where it offers the object again if it was changed.
    pub(crate) fn goodbye(&self, again: bool) -> Goodbye {
        Goodbye::Refuse(match self {
            TransferError::Cancelled => Why::SourceCancelled,
            TransferError::Changed(_) if again => Why::ChangedAndAgain,
            TransferError::Changed(_) => Why::Changed,
            _ => Why::SourceFailed,
        })
    }

    /// Returns true if the source has announced that it offers the object again.
    pub(super) fn comes_again(&self) -> bool {
        match self {
            TransferError::Refused(reason) | TransferError::Ended { reason, .. } => {
                *reason == Why::ChangedAndAgain.to_string()
            }
            _ => false,
        }
    }

    /// The same, of an end whose part is kept with so many verified bytes.
    pub(crate) fn interrupted(self, verified: u64, total: u64) -> Self {
        match self {
            TransferError::Cancelled if verified > 0 => TransferError::Interrupted { verified, total },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_said_in_seconds() {
        for (millis, said) in [(3_000, "within 3 s"), (500, "within 0.5 s"), (90_000, "within 90 s")] {
            let limit = Duration(millis * 1_000_000);
            for error in [TransferError::NothingOffered(limit), TransferError::NoAnswer(limit)] {
                assert!(error.to_string().ends_with(said), "{error}");
            }
        }
    }
}
