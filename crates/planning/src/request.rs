//! Requests that wait for a path.

use crate::fabric_name::FabricName;
use crate::plan::Group;
use polycast_types::Time;
use serde::{Deserialize, Serialize};

/// A request that waits, by the number under which the manager keeps it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// A request that waits for a path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pending {
    /// Its number; a later request has a higher one.
    pub id: RequestId,
    /// Group that the path is for.
    pub group: Group,
    /// Length of the object in bytes.
    pub object_bytes: u64,
    /// Bytes of it that are still to be sent.
    pub remaining_bytes: u64,
    /// True if part of the remaining bytes may be accepted; otherwise it is all or nothing.
    pub divisible: bool,
    /// Time of its arrival.
    pub since: Time,
    /// Fabric that is to carry it.
    #[serde(default)]
    pub wish: Wish,
}

/// Fabric that a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Wish {
    /// This one before all others.
    pub fabric: Option<FabricName>,
    /// No other one.
    pub or_fail: bool,
    /// Set if the path is for packets that an application sends itself: not every fabric carries them.
    #[serde(default)]
    pub any_packets: bool,
}
