//! Actions of the search, which its driver takes.

/// A version that has had less than one group in this number is left alone then.
pub(super) const WORTH: u64 = 16;

/// A group that is to be looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// In which version, by its number in the list.
    pub version: usize,
    /// The group.
    pub group: u64,
    /// Offset of its bytes in the version.
    pub at: u64,
}

/// Places of a version where a group that lacks may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seek {
    /// In which version, by its number in the list.
    pub version: usize,
    /// The first place.
    pub from: u64,
    /// Behind the last one.
    pub to: u64,
}

/// Actions for the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Look at a group.
    Look(Look),
    /// Ask the source for the sums of the groups.
    AskSums,
    /// Find the first of these places where the sum is that of a group which is not here yet.
    Seek(Seek),
}
