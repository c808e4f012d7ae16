//! Ways in which connections end.

use polycast_net::frames::FrameError;
use polycast_protocol::session::Gone;
use std::io;

/// Returns the way in which a connection has ended.
pub(super) fn gone(error: FrameError) -> Gone {
    match error {
        FrameError::Closed => Gone::Closed,
        FrameError::Wire(error) => Gone::Foreign(error),
        FrameError::Io(error) => broken(&error),
        FrameError::Seal(error) => Gone::Broken(error.to_string()),
    }
}

/// A process that was killed is told from one that closed its connection by nothing but what it had not read:
/// then it is reset.
fn broken(error: &io::Error) -> Gone {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe => {
            Gone::Closed
        }
        _ => Gone::Broken(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_was_killed_went_away_whatever_it_had_not_read() {
        for kind in
            [io::ErrorKind::ConnectionReset, io::ErrorKind::ConnectionAborted, io::ErrorKind::BrokenPipe]
        {
            assert_eq!(gone(FrameError::Io(kind.into())), Gone::Closed);
        }
        assert!(matches!(gone(FrameError::Io(io::ErrorKind::TimedOut.into())), Gone::Broken(_)));
    }
}
