//! Republic, sections III-A and VI-C.

use crate::report::Item;

/// The items of this paper.
pub const ITEMS: &[Item] = &[];
