//! Bytes that pass over the socket, for users who do not see the same paths as the agent.

use super::convert;
use super::objects::{Digest, Expected, Shape, store};
use super::shared::Shared;
use super::users::User;
use polycast_api::agent::{Object, ObjectKind as Kinds, PutRequest, TakeResponse};
use polycast_api::error::{Kind, Refusal};
use polycast_net::object::{MODE_USUAL, ObjectKind, ObjectSource};
use polycast_net::store::check_name;
use polycast_types::{ModificationTime, ObjectId, Printable};
use std::sync::Arc;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

/// Bytes that are read at a time.
const PIECE_LEN: u64 = 1 << 20;
/// Pieces that wait for a caller.
const PIECES_MAX: usize = 2;
/// Permissions that a file can have.
const MODE_MAX: u32 = 0o777;

/// Makes an object of what a caller brings.
///
/// # Errors
/// The request makes no sense, the id is taken, or there is no room.
pub(super) async fn put(
    shared: &Arc<Shared>,
    (id, user): (ObjectId, User),
    first: PutRequest,
    mut requests: Streaming<PutRequest>,
) -> Result<Object, Refusal> {
    let shape = shape(&first)?;
    let expected = Expected { length: Some(first.length), digest: Digest::None, user };
    super::sets::forget_what_has_gone(shared, id, user);
    let receive = shared.catalog.begin_bring(id, user, user.holder(first.private))?;
    store(shared, receive, shape, expected, first, &mut requests).await?;
    let object = shared.catalog.wait(id, user, None, true).await?;
    Ok(convert::available(id, object, &shared.store.path(id), user))
}

fn shape(first: &PutRequest) -> Result<Shape, Refusal> {
    let name = first.name.clone();
    let odd = |why| Refusal::new(Kind::Invalid, format!("'{}' {why}", Printable(&name)));
    check_name(&name).map_err(odd)?;
    let kind = match first.kind() {
        Kinds::Directory => ObjectKind::Directory,
        Kinds::File | Kinds::Unspecified => ObjectKind::File,
        Kinds::Set => {
            let why =
                "a set is added by its path, which only the agent's user can: put the directory as a stream";
            return Err(Refusal::new(Kind::Invalid, why));
        }
    };
    if first.mode > MODE_MAX {
        let why = format!("{:o} are no permissions of a file: 0 to 777", first.mode);
        return Err(Refusal::new(Kind::Invalid, why));
    }
    let mode = u16::try_from(first.mode).ok().filter(|mode| *mode != 0).unwrap_or(MODE_USUAL);
    let modified =
        first.modified_seconds.and_then(|seconds| ModificationTime::new(seconds, first.modified_nanos));
    if modified.is_none() && first.modified_seconds.is_some() {
        let why =
            format!("{} nanoseconds are no part of a second: at most 999,999,999", first.modified_nanos);
        return Err(Refusal::new(Kind::Invalid, why));
    }
    Ok(Shape { name, kind, mode, modified })
}

/// Gives the bytes of an object.
///
/// # Errors
/// It is not here, not for this user, or cannot be read.
pub(super) async fn take(
    shared: &Arc<Shared>,
    (id, user): (ObjectId, User),
) -> Result<mpsc::Receiver<Result<TakeResponse, Status>>, Refusal> {
    let internal = |error: tokio::task::JoinError| Refusal::new(Kind::Internal, error.to_string());
    let unknown = || Refusal::new(Kind::ObjectUnknown, format!("there is no object {id} here"));
    // It is not removed while it is being opened; what is open stays.
    let held = shared.catalog.begin_send(id)?;
    if !held.object.is_for(user) {
        return Err(unknown());
    }
    let path = held.object.added_from.clone().unwrap_or_else(|| shared.store.path(id));
    let here = Arc::clone(shared);
    let opened = tokio::task::spawn_blocking(move || match held.object.kind {
        ObjectKind::Set => Ok(Arc::new(super::sets::Whole::of(&here, held)?) as Arc<dyn ObjectSource>),
        ObjectKind::File | ObjectKind::Directory => super::sends::open(&held.object, &path),
    });
    let source = opened.await.map_err(internal)??;
    let (pieces, stream) = mpsc::channel(PIECES_MAX);
    tokio::spawn(give(source, pieces));
    Ok(stream)
}

/// Reads an object piece by piece as a caller takes them; one that takes none holds no thread.
async fn give(source: Arc<dyn ObjectSource>, pieces: mpsc::Sender<Result<TakeResponse, Status>>) {
    let mut at = 0;
    let failed =
        |error: std::io::Error| Refusal::new(Kind::Path, format!("it cannot be read: {error}")).into();
    while at < source.len() {
        // A place first: what is read for a caller that has gone would lie in memory.
        let Ok(place) = pieces.reserve().await else { return };
        let (reading, len) = (Arc::clone(&source), PIECE_LEN.min(source.len() - at));
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
            reading.read_exact_at(&mut bytes, at)?;
            // With the last bytes a caller has all of them.
            if at + len == reading.len() {
                reading.check()?;
            }
            Ok(bytes)
        });
        let read = read.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        let is_read = read.is_ok();
        place.send(read.map(|bytes| TakeResponse { bytes }).map_err(failed));
        if !is_read {
            return;
        }
        at += len;
    }
}
