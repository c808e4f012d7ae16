//! Parts of networks that plans share.

use crate::fabric_name::FabricName;
use serde::{Deserialize, Serialize};

/// Something of a network that many plans use at the same time and that can fail. Its numbers are those of
/// the fabric's own network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Part {
    /// A server or switch.
    Node {
        /// The fabric's name.
        fabric: FabricName,
        /// The node.
        node: u32,
    },
    /// A link.
    Link {
        /// The fabric's name.
        fabric: FabricName,
        /// Its two ends, the lower number first.
        ends: (u32, u32),
    },
}

impl Part {
    /// The link between two nodes.
    #[must_use]
    pub fn link(fabric: FabricName, one: u32, other: u32) -> Self {
        Part::Link { fabric, ends: (one.min(other), one.max(other)) }
    }

    /// The fabric's name.
    #[must_use]
    pub fn fabric(&self) -> FabricName {
        match *self {
            Part::Node { fabric, .. } | Part::Link { fabric, .. } => fabric,
        }
    }
}
