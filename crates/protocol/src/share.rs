//! Shares of the tables that all agents of a manager fill together.

/// So many of a table an agent may have, however small the table is.
const SHARE_MIN: usize = 16;

/// Returns true if a table has room for one more entry of an agent. An agent that has a quarter of the table
/// gets no more while half of it is taken, so that one agent alone leaves room for the others.
pub(crate) fn has_room(taken: usize, own: usize, max: usize) -> bool {
    taken < max && (taken < max.div_ceil(2) || own < (max / 4).max(SHARE_MIN))
}
