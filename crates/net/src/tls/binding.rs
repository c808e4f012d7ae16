//! Values that tell one connection from all others.

use std::fmt;

/// Label with which it is exported.
pub(super) const EXPORTER: &[u8] = b"EXPORTER-Channel-Binding";
/// Bytes of it.
pub const BINDING_LEN: usize = 32;

/// Value that no other connection has, and that its two ends alone know: its exporter (RFC 9266).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Binding(pub [u8; BINDING_LEN]);

/// It must not get into a log.
impl fmt::Debug for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Binding(..)")
    }
}
