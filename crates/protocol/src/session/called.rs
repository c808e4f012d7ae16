//! Transfer that a receiver was called for: what comes is compared with it.

use super::Offer;
use alloc::string::String;
use core::fmt;
use core::net::IpAddr;
use polycast_types::{ObjectId, Printable};
use polycast_wire::control::Hash;

/// Transfer that a source has called this end for. All that comes has to match it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// The object.
    pub object: ObjectId,
    /// Its length in bytes.
    pub object_len: u64,
    /// Its root hash, where the source knew it when it called.
    pub root: Option<Hash>,
    /// Further contents of the permit of the call, where agents prove who they are.
    pub permitted: Option<Permitted>,
}

/// Properties of a transfer that a permit names, and INVITE does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permitted {
    /// The source's name.
    pub source: String,
    /// The object's file or directory name.
    pub name: String,
    /// Multicast group and port of its path; zeros where that has none.
    pub channel: (IpAddr, u16),
}

/// Difference between what comes and what was called for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCalledFor {
    /// Another object.
    #[error("it called for {called} and sends object {sent}")]
    Object {
        /// The one that was named.
        called: ObjectId,
        /// The one that is offered.
        sent: ObjectId,
    },
    /// Another length.
    #[error("it called for {called} bytes of object {object} and sends {sent}")]
    Length {
        /// The object.
        object: ObjectId,
        /// The bytes that were named.
        called: u64,
        /// The bytes that are offered.
        sent: u64,
    },
    /// Another name.
    #[error("its permit is for another name than '{}'", Printable(.0))]
    Name(String),
    /// Other bytes.
    #[error("it called for the object with the root hash {} and sends {}", Hex(.called), Hex(.sent))]
    Root {
        /// The hash that was named.
        called: Hash,
        /// The hash of what is sent.
        sent: Hash,
    },
}

/// A hash in hexadecimal digits.
struct Hex<'a>(&'a Hash);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Called {
    /// Holds what the source offers against it.
    ///
    /// # Errors
    /// It is something else.
    pub fn check(&self, offer: &Offer) -> Result<(), NotCalledFor> {
        let (object, sent) = (self.object, offer.geometry.object_len);
        if offer.object != object {
            return Err(NotCalledFor::Object { called: object, sent: offer.object });
        }
        if sent != self.object_len {
            return Err(NotCalledFor::Length { object, called: self.object_len, sent });
        }
        match &self.permitted {
            Some(permitted) if permitted.name != offer.name => Err(NotCalledFor::Name(offer.name.clone())),
            _ => Ok(()),
        }
    }

    /// Holds the root hash that the source has said, or that all hashes give, against it.
    ///
    /// # Errors
    /// It is another one.
    pub fn check_root(&self, root: &Hash) -> Result<(), NotCalledFor> {
        match self.root {
            Some(called) if called != *root => Err(NotCalledFor::Root { called, sent: *root }),
            _ => Ok(()),
        }
    }

    /// Returns true if this end may listen to that group: one of a path leased to another transfer is not for
    /// this one.
    #[must_use]
    pub fn has_channel(&self, channel: (IpAddr, u16)) -> bool {
        self.permitted.as_ref().is_none_or(|permitted| permitted.channel == channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::Geometry;
    use alloc::string::ToString;
    use polycast_types::{AppId, DataId, Duration};
    use polycast_wire::control::Form;

    fn called() -> Called {
        let permitted =
            Permitted { source: "a".into(), name: "model".into(), channel: ([239, 1, 2, 3].into(), 5) };
        let object = ObjectId { app: AppId([1; 16]), data: DataId(7) };
        Called { object, object_len: 5, root: Some([4; 32]), permitted: Some(permitted) }
    }

    fn offer() -> Offer {
        Offer {
            object: called().object,
            name: "model".into(),
            form: Form::File,
            mode: 0o644,
            modified: None,
            geometry: Geometry { object_len: 5, fragment_len: 1_000, group_len: 1 << 18 },
            data_len: 5,
            channel: ([239, 1, 2, 3].into(), 5),
            outer_len: 0,
            stall: Duration::from_secs(1),
            salt: [0; 32],
        }
    }

    /// Each thing that a call or its permit names is compared with what comes.
    #[test]
    fn what_comes_is_what_was_called_for() {
        let called = called();
        called.check(&offer()).unwrap();
        let said = |offer: Offer| called.check(&offer).unwrap_err().to_string();
        let object = ObjectId { data: DataId(8), ..called.object };
        assert!(said(Offer { object, ..offer() }).contains("and sends object"));
        let geometry = Geometry { object_len: 6, ..offer().geometry };
        assert!(said(Offer { geometry, ..offer() }).contains("it called for 5 bytes of"));
        let renamed = said(Offer { name: "evil".into(), ..offer() });
        assert!(renamed.contains("its permit is for another name than 'evil'"), "{renamed}");
        let open = Called { permitted: None, root: None, ..called.clone() };
        open.check(&Offer { name: "any".into(), ..offer() }).unwrap();

        called.check_root(&[4; 32]).unwrap();
        open.check_root(&[5; 32]).unwrap();
        let other = called.check_root(&[5; 32]).unwrap_err().to_string();
        assert!(other.contains("it called for the object with the root hash 0404"), "{other}");

        assert!(called.has_channel(offer().channel) && open.has_channel(([239, 9, 9, 9].into(), 9)));
        assert!(!called.has_channel(([239, 1, 2, 4].into(), 5)), "it is another transfer's");
    }
}
