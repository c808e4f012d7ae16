//! Files on their way to clients: what has been verified goes out while the rest comes.

use crate::trouble::Trouble;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use futures_util::stream;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tokio::sync::watch;

/// Bytes of a file that are read at a time.
const PIECE_LEN: u64 = 1 << 20;

/// The whole file, or why it does not come.
pub(crate) type Outcome = Result<Arc<File>, Trouble>;

/// The beginning of a file: verified up to here, with the rest on its way from another agent.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub file: Arc<File>,
    pub until: u64,
}

/// A file that is on its way.
#[derive(Clone, Debug)]
pub(crate) struct Coming {
    pub arrived: watch::Receiver<Option<Arrived>>,
    pub outcome: watch::Receiver<Option<Outcome>>,
}

impl Coming {
    /// The file with bytes from `at` on, when such are here: up to where they are verified.
    pub(crate) async fn from(&mut self, at: u64) -> Result<(Arc<File>, u64), Trouble> {
        loop {
            if let Some(outcome) = self.outcome.borrow_and_update().clone() {
                return outcome.map(|file| (file, u64::MAX));
            }
            if let Some(Arrived { file, until }) = self.arrived.borrow_and_update().clone()
                && until > at
            {
                return Ok((file, until));
            }
            let gone = || Trouble::new(StatusCode::INTERNAL_SERVER_ERROR, "what was to get it has gone");
            tokio::select! {
                changed = self.outcome.changed() => changed.map_err(|_| gone())?,
                // What told of the arrival ends before the outcome is there.
                Ok(()) = self.arrived.changed() => {}
            }
        }
    }

    /// A part of the file, as it comes and as it is taken. Each piece is read in a thread of those for that,
    /// and none is held.
    pub(crate) fn body(self, range: Range<u64>) -> Body {
        let pieces = stream::unfold((self, range), |(mut coming, left)| async move {
            if left.is_empty() {
                return None;
            }
            let piece = coming.piece(&left).await;
            let next = piece.as_ref().map_or(left.end, |piece| left.start + piece.len() as u64);
            Some((piece, (coming, next..left.end)))
        });
        Body::from_stream(pieces)
    }

    async fn piece(&mut self, left: &Range<u64>) -> io::Result<Bytes> {
        let (file, until) =
            self.from(left.start).await.map_err(|trouble| io::Error::other(trouble.message))?;
        let (at, len) = (left.start, PIECE_LEN.min(left.end.min(until) - left.start));
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; len as usize];
            file.read_exact_at(&mut piece, at).map(|()| Bytes::from(piece))
        });
        read.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;
    use std::io::Write;

    fn file(bytes: &[u8]) -> Arc<File> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Arc::new(file)
    }

    #[tokio::test]
    async fn what_is_verified_goes_out_and_the_rest_follows() {
        let (arrived, outcome) = (watch::Sender::new(None), watch::Sender::new(None));
        let mut coming = Coming { arrived: arrived.subscribe(), outcome: outcome.subscribe() };
        let body = tokio::spawn(to_bytes(coming.clone().body(1..9), 100));
        // Bytes that lie in the part file, and are not verified, are another's.
        arrived.send_replace(Some(Arrived { file: file(b"0123xxxxxx"), until: 4 }));
        assert_eq!(coming.from(3).await.unwrap().1, 4);
        let mut later = coming.clone();
        let later = tokio::spawn(async move { later.from(4).await.map(|(_, until)| until) });
        drop(arrived);
        outcome.send_replace(Some(Ok(file(b"0123456789"))));
        assert_eq!(later.await.unwrap().unwrap(), u64::MAX);
        assert_eq!(body.await.unwrap().unwrap(), "12345678");
    }

    #[tokio::test]
    async fn what_does_not_come_ends_the_body() {
        let (arrived, outcome) = (watch::Sender::new(None), watch::Sender::new(None));
        let coming = Coming { arrived: arrived.subscribe(), outcome: outcome.subscribe() };
        arrived.send_replace(Some(Arrived { file: file(b"0123"), until: 4 }));
        let body = tokio::spawn(to_bytes(coming.body(0..9), 100));
        tokio::task::yield_now().await;
        outcome.send_replace(Some(Err(Trouble::upstream("it ends"))));
        assert!(body.await.unwrap().is_err());
    }
}
