//! Files on their way to clients: what is here goes out while the rest comes.

use crate::trouble::Trouble;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use futures_util::stream;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::watch;

/// Bytes of a file that are read at a time.
const PIECE_LEN: u64 = 1 << 20;

/// The whole file, or why it does not come.
pub(crate) type Outcome = Result<Arc<File>, Trouble>;

/// A file that has bytes of another one.
#[derive(Clone, Debug)]
pub(crate) enum Kept {
    Open(Arc<File>),
    /// It is opened when it is read: a file has very many parts.
    At(Arc<Path>),
}

impl Kept {
    pub(crate) fn read(&self, at: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut piece = vec![0; len as usize];
        match self {
            Kept::Open(file) => file.read_exact_at(&mut piece, at)?,
            Kept::At(path) => File::open(path)?.read_exact_at(&mut piece, at)?,
        }
        Ok(piece)
    }
}

/// Bytes of a file from one place on.
#[derive(Clone, Debug)]
pub(crate) struct Stretch {
    pub kept: Kept,
    /// The place of its first byte in the whole file.
    pub begin: u64,
}

/// The beginning of a file: up to here it has come, and the rest is on its way.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    /// One after the other, the first at 0.
    pub stretches: Arc<Vec<Stretch>>,
    pub until: u64,
    /// These bytes are those of the file, for certain.
    pub is_checked: bool,
}

/// A file that is on its way.
#[derive(Clone, Debug)]
pub(crate) struct Coming {
    pub arrived: watch::Receiver<Option<Arrived>>,
    pub outcome: watch::Receiver<Option<Outcome>>,
    /// It is for a client that begins anew where the end does not come.
    pub takes_unchecked: bool,
}

impl Coming {
    /// A file with bytes from `at` on, when such are here: up to where they are.
    pub(crate) async fn from(&mut self, at: u64) -> Result<(Stretch, u64), Trouble> {
        loop {
            if let Some(outcome) = self.outcome.borrow_and_update().clone() {
                return outcome.map(|file| (Stretch { kept: Kept::Open(file), begin: 0 }, u64::MAX));
            }
            if let Some(Arrived { stretches, until, is_checked }) = self.arrived.borrow_and_update().clone()
                && until > at
                && (is_checked || self.takes_unchecked)
            {
                let next = stretches.partition_point(|stretch| stretch.begin <= at);
                let end = stretches.get(next).map_or(until, |stretch| stretch.begin);
                if let Some(stretch) = next.checked_sub(1).and_then(|one| stretches.get(one)) {
                    return Ok((stretch.clone(), end.min(until)));
                }
            }
            let gone = || Trouble::new(StatusCode::INTERNAL_SERVER_ERROR, "what was to get it has gone");
            tokio::select! {
                changed = self.outcome.changed() => changed.map_err(|_| gone())?,
                // What told of the arrival ends before the outcome is there.
                Ok(()) = self.arrived.changed() => {}
            }
        }
    }

    /// The file, when all of it is here and verified.
    pub(crate) async fn whole(mut self) -> Outcome {
        let gone = || Trouble::new(StatusCode::INTERNAL_SERVER_ERROR, "what was to get it has gone");
        let outcome = self.outcome.wait_for(Option::is_some).await.map_err(|_| gone())?;
        outcome.clone().unwrap_or_else(|| Err(gone()))
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
        loop {
            let (Stretch { kept, begin }, until) =
                self.from(left.start).await.map_err(|trouble| io::Error::other(trouble.message))?;
            let (at, len) = (left.start - begin, PIECE_LEN.min(left.end.min(until) - left.start));
            let is_part = matches!(kept, Kept::At(_));
            let read = tokio::task::spawn_blocking(move || kept.read(at, len).map(Bytes::from));
            match read.await.map_err(io::Error::other)? {
                // Parts go when the whole file is here.
                Err(error) if is_part && error.kind() == io::ErrorKind::NotFound => {
                    self.outcome.wait_for(Option::is_some).await.map_err(io::Error::other)?;
                }
                read => return read,
            }
        }
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

    type Told = (watch::Sender<Option<Arrived>>, watch::Sender<Option<Outcome>>);

    fn coming(takes_unchecked: bool) -> (Told, Coming) {
        let (arrived, outcome) = (watch::Sender::new(None), watch::Sender::new(None));
        let coming = Coming { arrived: arrived.subscribe(), outcome: outcome.subscribe(), takes_unchecked };
        ((arrived, outcome), coming)
    }

    fn arrived_in(kept: Kept, until: u64, is_checked: bool) -> Option<Arrived> {
        Some(Arrived { stretches: Arc::new(vec![Stretch { kept, begin: 0 }]), until, is_checked })
    }

    #[tokio::test]
    async fn what_is_verified_goes_out_and_the_rest_follows() {
        let ((arrived, outcome), mut coming) = coming(false);
        let body = tokio::spawn(to_bytes(coming.clone().body(1..9), 100));
        // Bytes that lie in the part file, and are not verified, are another's.
        arrived.send_replace(arrived_in(Kept::Open(file(b"0123xxxxxx")), 4, true));
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
        let ((arrived, outcome), coming) = coming(false);
        arrived.send_replace(arrived_in(Kept::Open(file(b"0123")), 4, true));
        let body = tokio::spawn(to_bytes(coming.body(0..9), 100));
        tokio::task::yield_now().await;
        outcome.send_replace(Some(Err(Trouble::upstream("it ends"))));
        assert!(body.await.unwrap().is_err());
    }

    #[tokio::test]
    async fn parts_go_out_one_after_the_other_to_those_who_take_them() {
        let folder = tempfile::tempdir().unwrap();
        let part = |name: &str, begin: u64, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            Stretch { kept: Kept::At(path.into()), begin }
        };
        let ((arrived, outcome), taking) = coming(true);
        let mut waiting = Coming { takes_unchecked: false, ..taking.clone() };
        let parts = Arc::new(vec![part("a", 0, b"012"), part("b", 3, b"3456")]);
        arrived.send_replace(Some(Arrived { stretches: Arc::clone(&parts), until: 6, is_checked: false }));
        let mut first = taking.clone();
        assert_eq!(first.from(2).await.unwrap().1, 3);
        assert_eq!(first.from(3).await.unwrap().1, 6);
        let body = tokio::spawn(to_bytes(taking.clone().body(0..9), 100));
        let later = tokio::spawn(async move { waiting.from(0).await.map(|(_, until)| until) });
        // The parts go when the whole is here, and a client in the middle of them goes on.
        std::fs::remove_file(folder.path().join("a")).unwrap();
        let slow = tokio::spawn(to_bytes(taking.body(0..9), 100));
        tokio::task::yield_now().await;
        outcome.send_replace(Some(Ok(file(b"012345678"))));
        assert_eq!(later.await.unwrap().unwrap(), u64::MAX, "the whole alone");
        assert_eq!(body.await.unwrap().unwrap(), "012345678");
        assert_eq!(slow.await.unwrap().unwrap(), "012345678");
    }
}
