//! Time of a file's last change.

/// A modification time: whole seconds since 1970, rounded down, and the nanoseconds after them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct ModificationTime {
    /// Seconds since the beginning of 1970; negative before.
    pub seconds: i64,
    /// Nanoseconds after them, less than [`ModificationTime::NANOS`].
    pub nanos: u32,
}

impl ModificationTime {
    /// Nanoseconds of a second.
    pub const NANOS: u32 = 1_000_000_000;

    /// A time that another program has told; nothing where the nanoseconds are a second or more.
    #[must_use]
    pub fn new(seconds: i64, nanos: u32) -> Option<Self> {
        (nanos < Self::NANOS).then_some(ModificationTime { seconds, nanos })
    }
}
