//! Kinds of Orca labels, which define the meaning of their bits.

/// Kind of a label; it stands beside the label in the packet's header. A leaf label, whose first bit is set,
/// is the same in all encodings, and has the first kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LabelKind {
    /// A source label with a filter, or a leaf label.
    #[default]
    Filter = 0,
    /// A source label with the leafs of pods.
    Pods = 1,
    /// The same on its way from a spine to an agent of its pod, which is to put the pod's spine label in.
    Asks = 2,
    /// A spine label.
    Spine = 3,
}

impl LabelKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [LabelKind; 4] = [LabelKind::Filter, LabelKind::Pods, LabelKind::Asks, LabelKind::Spine];

    /// The kind with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}
