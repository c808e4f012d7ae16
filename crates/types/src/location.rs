//! Zone and rack of a host.

use alloc::format;
use alloc::string::String;

/// Longest name of a zone or a rack, in bytes.
pub const LOCATION_LEN_MAX: u16 = 64;

/// Zone and rack of a host, in the words of its settings; empty where these do not name them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The zone, such as a room or a site.
    pub zone: String,
    /// The rack within it.
    pub rack: String,
}

/// Refuses a name of a zone or rack that the wire or a list of names would not carry.
///
/// # Errors
/// The name is empty, too long, or has a space or a comma: a sentence says so.
pub fn check_location_name(name: &str) -> Result<(), String> {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || c == ',';
    if name.is_empty() || name.len() > usize::from(LOCATION_LEN_MAX) || name.contains(is_odd) {
        return Err(format!(
            "'{name}' cannot be one: take 1 to {LOCATION_LEN_MAX} letters without spaces or commas"
        ));
    }
    Ok(())
}

impl Location {
    /// Returns the location with these names, from the widest to the narrowest.
    #[must_use]
    pub fn of([zone, rack]: [&str; 2]) -> Self {
        Location { zone: zone.into(), rack: rack.into() }
    }

    /// Returns the names from the widest to the narrowest.
    #[must_use]
    pub fn names(&self) -> [&str; 2] {
        [&self.zone, &self.rack]
    }
}
