//! Bytes that pass over the agent's socket, where the agent runs as another user and sees other paths.

use crate::exit::Failure;
use polycast_api::agent::{Object, ObjectKind as Kinds};
use polycast_api::client::{ClientError, Piece, Session, Taking, ToPut, Wait};
use polycast_api::error::Kind;
use polycast_net::object::{ObjectKind, ObjectSource};
use polycast_types::DataId;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Bytes of a piece.
const PIECE_LEN: u64 = 1 << 20;
/// Pieces that are read ahead.
const PIECES_MAX: usize = 4;

/// Object that this process can read, and the agent perhaps not.
pub(super) struct Bytes {
    /// File or directory.
    pub kind: ObjectKind,
    /// Its bytes.
    pub source: Arc<dyn ObjectSource>,
}

impl Bytes {
    /// Brings them to the agent. An id that was not `chosen` is that of these very bytes: where this user has
    /// brought them before, they are there.
    pub(super) async fn put(
        &self,
        session: &Session,
        data: DataId,
        name: &str,
        private: bool,
        chosen: bool,
    ) -> Result<Object, ClientError> {
        let kind = match self.kind {
            ObjectKind::File => Kinds::File,
            ObjectKind::Directory | ObjectKind::Set => Kinds::Directory,
        };
        let (length, mode) = (self.source.len(), self.source.mode().into());
        let modified = self.source.modified();
        let what = ToPut { name: name.to_string(), kind, length, mode, modified, private };
        let (sender, pieces) = mpsc::channel(PIECES_MAX);
        let source = Arc::clone(&self.source);
        let reading = tokio::task::spawn_blocking(move || read(&*source, &sender));
        let put = session.put(data, what, pieces).await;
        // It ends where the agent takes no more of what it reads.
        let _ = reading.await;
        match put {
            Err(error) if error.kind() == Some(Kind::ObjectTaken) && !chosen => {
                let there = session.read(data, Wait::WhileComing(None)).await?;
                let is_ours = there.brought_by == Some(rustix::process::geteuid().as_raw());
                let is_same = (there.length, there.private, there.name.as_str()) == (length, private, name);
                if is_ours && is_same { Ok(there) } else { Err(error) }
            }
            put => put,
        }
    }
}

/// Refuses to make a set of what has no files.
pub(super) fn check_set(kind: ObjectKind) -> Result<(), Failure> {
    if kind == ObjectKind::Directory {
        return Ok(());
    }
    Err(Failure::input("--files is for directories: one file is an object of its own in any case"))
}

/// Refuses to make a set where the agent cannot open this user's files.
pub(super) fn check_paths(session: &Session) -> Result<(), Failure> {
    if !session.is_other_user() {
        return Ok(());
    }
    let message = "--files needs an agent of your own: the files of a set stay where they are, and the agent opens them";
    Err(Failure::input(message).hint("without --files the directory is sent as one object"))
}

/// Bytes of an object: of a set those of its files.
pub(super) async fn len_of(session: &Session, object: &Object) -> Result<u64, Failure> {
    let id = object.id().map_err(ClientError::from)?;
    if object.kind() != Kinds::Set || id.app != session.app() {
        return Ok(object.length);
    }
    let mut files = session.files(id.data, None).await?;
    Ok(files.next().await?.map_or(0, |event| event.total_bytes))
}

/// Reads piece by piece, as they are taken; an empty one says that these were all.
fn read(source: &dyn ObjectSource, pieces: &mpsc::Sender<Piece>) {
    let mut at = 0;
    while at < source.len() {
        let len = PIECE_LEN.min(source.len() - at);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let is_last = at + len == source.len();
        let read =
            source.read_exact_at(&mut bytes, at).and_then(|()| if is_last { source.check() } else { Ok(()) });
        let piece = read.map(|()| bytes).map_err(|error| error.to_string());
        let is_read = piece.is_ok();
        if pieces.blocking_send(piece).is_err() || !is_read {
            return;
        }
        at += len;
    }
    let _ = pieces.blocking_send(Ok(Vec::new()));
}

/// An object's bytes, as they come from the agent; read where waiting is allowed.
pub(super) struct Taken {
    pieces: mpsc::Receiver<io::Result<Vec<u8>>>,
    piece: Vec<u8>,
    at: usize,
    /// Bytes that have to come; not known of the stream of a set, which says itself where it ends.
    left: Option<u64>,
}

/// Begins to take an object where the agent does not say where its bytes lie.
pub(super) async fn take(session: &Session, object: &Object) -> Result<Option<Taken>, Failure> {
    let is_set = object.kind() == Kinds::Set;
    if !object.path.is_empty() && !is_set && !is_descriptor(Path::new(&object.path)) {
        return Ok(None);
    }
    let id = object.id().map_err(ClientError::from)?;
    let taking = session.take(id).await?;
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    tokio::spawn(pass(taking, sender));
    Ok(Some(Taken { pieces, piece: Vec::new(), at: 0, left: (!is_set).then_some(object.length) }))
}

/// Returns true if a path is a descriptor of some process, whose number may be another file's by now. The
/// agent checks whether it is.
fn is_descriptor(path: &Path) -> bool {
    let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
    matches!(parts.as_slice(), ["/", "proc", _, "fd", _])
}

async fn pass(mut taking: Taking, pieces: mpsc::Sender<io::Result<Vec<u8>>>) {
    loop {
        let piece = match taking.next().await {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => return,
            Err(error) => Err(io::Error::other(error.to_string())),
        };
        let is_last = piece.is_err();
        if pieces.send(piece).await.is_err() || is_last {
            return;
        }
    }
}

impl Read for Taken {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() {
            match self.pieces.blocking_recv() {
                Some(piece) => (self.piece, self.at) = (piece?, 0),
                None if self.left.is_none_or(|left| left == 0) => return Ok(0),
                None => return Err(io::Error::other("the agent has given a part of it only")),
            }
        }
        let len = buffer.len().min(self.piece.len() - self.at);
        let more = || io::Error::other("the agent has given more than the object has");
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(len as u64).ok_or_else(more)?;
        }
        buffer[..len].copy_from_slice(&self.piece[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}
