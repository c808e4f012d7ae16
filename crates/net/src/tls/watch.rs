//! Connections outlive the lists by which their ends were judged: now and then it is looked whether the other
//! end's certificate has been revoked meanwhile.

use super::{SealError, Security, Shown};
use rustls::CommonState;
use std::time::{Duration, Instant};

/// Interval at which it is checked that the other end is still one that this end accepts.
const LOOK: Duration = Duration::from_secs(1);

/// Looks at the other end of one connection.
#[derive(Debug)]
pub(super) struct Watch {
    security: Security,
    /// Certificates that the other end has shown, once it has.
    shown: Option<Shown>,
    changes: u64,
    next: Instant,
}

impl Watch {
    /// Creates the watch of a connection whose other end is judged by this from now on: the watch is made
    /// before that, or a list that comes between would be checked by neither.
    pub(super) fn new(security: &Security) -> Self {
        let changes = security.changes();
        Watch { security: security.clone(), shown: None, changes, next: Instant::now() + LOOK }
    }

    /// Notes what the other end has shown, once the two have shaken hands.
    pub(super) fn show(&mut self, tls: &CommonState) {
        if self.shown.is_none() && !tls.is_handshaking() {
            self.shown = Some(Shown::now(tls.peer_certificates()));
        }
    }

    /// Looks, where a second has passed and something has changed.
    pub(super) fn look(&mut self) -> Result<(), SealError> {
        let Some(shown) = self.shown.as_ref().filter(|_| Instant::now() >= self.next) else { return Ok(()) };
        self.next = Instant::now() + LOOK;
        let changes = self.security.changes();
        if changes == self.changes {
            return Ok(());
        }
        self.changes = changes;
        self.security.check_again(shown)
    }
}
