//! Encodings of labels.

use polycast_types::LabelKind;
use serde::{Deserialize, Serialize};

/// Way in which labels name leafs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum Encoding {
    /// The paper's filter, with entries at spines.
    #[default]
    Filter,
    /// Exact bitmaps of pods, without entries.
    Pods,
}

impl Encoding {
    /// Returns the kind that stands beside source labels.
    #[must_use]
    pub fn kind(self) -> LabelKind {
        match self {
            Encoding::Filter => LabelKind::Filter,
            Encoding::Pods => LabelKind::Pods,
        }
    }
}
