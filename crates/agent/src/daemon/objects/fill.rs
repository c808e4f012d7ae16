//! Taking in the bytes that a process here gets from an object's origin.

use super::super::catalog::Receive;
use super::super::catalog::Snapshot;
use super::super::convert;
use super::super::sets;
use super::super::shared::Shared;
use super::super::store::{Arrived, Description};
use super::super::users::User;
use super::digests::{git_digest, hex};
use super::fetch::{FILL_PATIENCE, Process};
use super::key::Digest;
use super::{Key, Objects};
use polycast_api::agent::{FillRequest, Object, PutRequest};
use polycast_api::error::{Kind, Refusal};
use polycast_net::object::{MODE_USUAL, ObjectKind};
use polycast_net::store::{check_name, part_path};
use polycast_types::{ModificationTime, ObjectId, Printable, format_bytes, without_secrets};
use ring::digest::{Context, SHA256};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Streaming;

/// Pieces on their way to the file.
const PIECES_MAX: usize = 8;
/// The longest piece, in bytes.
const PIECE_LEN_MAX: usize = 1 << 20;
/// The longest word of why bytes do not come, in bytes.
const ERROR_LEN_MAX: usize = 1_024;
/// So much more room is taken at a time where the object's length is not known.
const ROOM_STEP: u64 = 64 << 20;

/// The next bytes that a caller brings, and whether they are the last.
pub(crate) struct Piece {
    bytes: Vec<u8>,
    error: String,
    done: bool,
}

/// Requests that bring pieces.
pub(crate) trait Brought: Into<Piece> + Send {
    /// Origin of the bytes, as a part of a sentence.
    const WHENCE: &'static str;
}

impl Brought for FillRequest {
    const WHENCE: &'static str = "from its origin";
}

impl Brought for PutRequest {
    const WHENCE: &'static str = "from the process that brings it";
}

impl From<FillRequest> for Piece {
    fn from(FillRequest { bytes, error, done, .. }: FillRequest) -> Self {
        Piece { bytes, error, done }
    }
}

impl From<PutRequest> for Piece {
    fn from(PutRequest { bytes, error, done, .. }: PutRequest) -> Self {
        Piece { bytes, error, done }
    }
}

/// Name of an object, and the form that it unpacks to.
pub(crate) struct Shape {
    pub name: String,
    pub kind: ObjectKind,
    pub mode: u16,
    pub modified: Option<ModificationTime>,
}

/// Interval of the checks whether a caller still waits.
const AWAITED_INTERVAL: Duration = Duration::from_millis(250);

/// Held while room is promised to what a user brings.
static ROOM: Mutex<()> = Mutex::new(());

/// Requirements that the supplied bytes have to meet.
pub(crate) struct Expected {
    pub length: Option<u64>,
    pub digest: Digest,
    /// The user who brings them.
    pub user: User,
}

/// Result of writing the part file.
pub(super) struct Written {
    length: u64,
    root: String,
    part: PathBuf,
    file: File,
}

/// A fill that has begun; if it is dropped without an end it has failed.
struct Begun {
    objects: Arc<Objects>,
    object: ObjectId,
    ended: bool,
}

impl Begun {
    fn end(&mut self, outcome: Result<(), &str>) {
        if !std::mem::replace(&mut self.ended, true) {
            self.objects.end_fill(self.object, outcome);
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.end(Err("the process that got it has gone"));
    }
}

/// Takes in an object from a process that was told to get it.
pub(crate) async fn fill(
    objects: &Arc<Objects>,
    (process, user): (Process, User),
    first: FillRequest,
    mut requests: Streaming<FillRequest>,
) -> Result<Object, Refusal> {
    let key = Key::parse(&first.key)?;
    let name = if first.name.is_empty() { key.name() } else { first.name.clone() };
    let odd = |why| Refusal::new(Kind::Invalid, format!("'{}' {why}", Printable(&name)));
    check_name(&name).map_err(odd)?;
    let id = key.object;
    objects.begin_fill(id, &key.text, process)?;
    let mut begun = Begun { objects: Arc::clone(objects), object: id, ended: false };
    let outcome = take_in(objects, (&key, user), name, first, &mut requests).await;
    begun.end(outcome.as_ref().map(drop).map_err(|refusal| refusal.message.as_str()));
    outcome?;
    match objects.shared.catalog.get(id) {
        Some(Snapshot::Available(object)) if object.is_for(user) => {
            Ok(convert::available(id, object, &objects.shared.store.path(id), user))
        }
        _ => Err(Refusal::new(Kind::ObjectUnknown, format!("object {id} has gone already"))),
    }
}

async fn take_in(
    objects: &Objects,
    (key, user): (&Key, User),
    name: String,
    first: FillRequest,
    requests: &mut Streaming<FillRequest>,
) -> Result<(), Refusal> {
    let Some(receive) = begin(objects, key.object, user).await? else { return Ok(()) };
    let expected = Expected { length: first.length, digest: key.digest.clone(), user };
    let shape = Shape { name, kind: ObjectKind::File, mode: MODE_USUAL, modified: None };
    let root = store(&objects.shared, receive, shape, expected, first, requests).await?;
    objects.checked.insert(key.object, root);
    Ok(())
}

/// Begins to take in an object, unless it is here. Another agent may have begun to send it since this one was
/// told to fill: then the bytes of the origin are needed only where that fails. That is waited for as long as
/// the caller waits for the object.
async fn begin(objects: &Objects, id: ObjectId, user: User) -> Result<Option<Receive>, Refusal> {
    let shared = &objects.shared;
    loop {
        sets::forget_what_has_gone(shared, id, user);
        // What a key names is for all, and counts for the user who has brought it.
        let begun = match user.is_other() {
            true => shared.catalog.begin_bring(id, user, user.holder(false)),
            false => shared.catalog.begin_receive(id),
        };
        match begun {
            Ok(receive) => return Ok(Some(receive)),
            Err(refusal) if refusal.kind == Kind::ObjectBusy => {
                let over = tokio::time::timeout(AWAITED_INTERVAL, shared.catalog.settled(id)).await;
                match over {
                    Ok(settled) => settled?,
                    Err(_) if objects.fill_is_awaited(id) => {}
                    Err(_) => {
                        let why = format!(
                            "object {id} is on its way from another agent, and nothing here waits for it any more"
                        );
                        return Err(Refusal::new(Kind::TimedOut, why));
                    }
                }
            }
            Err(refusal) if refusal.kind == Kind::ObjectTaken => return Ok(None),
            Err(refusal) => return Err(refusal),
        }
    }
}

/// Writes what a caller brings into the store; gives its root.
pub(crate) async fn store<R: Brought>(
    shared: &Arc<Shared>,
    receive: Receive,
    shape: Shape,
    expected: Expected,
    first: R,
    requests: &mut Streaming<R>,
) -> Result<String, Refusal> {
    let _ = receive.progress().name.set(shape.name.clone());
    let (pieces, incoming) = mpsc::channel(PIECES_MAX);
    let here = Arc::clone(shared);
    let writing = tokio::task::spawn_blocking(move || {
        let written = write(&here, &receive, &expected, incoming);
        enter(&here, receive, shape, written)
    });
    let passed = pass(first, requests, &pieces).await;
    if let Err(refusal) = &passed {
        // The writer throws away what has come.
        let _ = pieces.send(Err(refusal.clone())).await;
    }
    drop(pieces);
    let written = writing.await.map_err(|error| Refusal::new(Kind::Internal, error.to_string()))?;
    // What the writer says comes first: it may be why nothing could be passed on.
    let root = written?;
    passed.map(|()| root)
}

/// Writes bytes that are at hand into the store, for this user.
pub(crate) fn store_bytes(
    shared: &Arc<Shared>,
    receive: Receive,
    shape: Shape,
    (bytes, user): (Vec<u8>, User),
) -> Result<(), Refusal> {
    let _ = receive.progress().name.set(shape.name.clone());
    // The last piece says that these were all.
    let (pieces, incoming) = mpsc::channel(2);
    let expected = Expected { length: Some(bytes.len() as u64), digest: Digest::None, user };
    let queued = pieces.try_send(Ok(bytes)).and_then(|()| pieces.try_send(Ok(Vec::new())));
    queued.map_err(|error| Refusal::new(Kind::Internal, error.to_string()))?;
    let written = write(shared, &receive, &expected, incoming);
    enter(shared, receive, shape, written).map(drop)
}

type Pieces = mpsc::Sender<Result<Vec<u8>, Refusal>>;

/// Passes on the pieces of a caller until it says that these were all.
async fn pass<R: Brought>(first: R, requests: &mut Streaming<R>, pieces: &Pieces) -> Result<(), Refusal> {
    let failed = |why: String| Refusal::new(Kind::OriginFailed, why);
    let mut request = first;
    loop {
        let Piece { bytes, error, done } = request.into();
        if !error.is_empty() {
            // It is logged, and told to others, as it is.
            let mut error = without_secrets(&error).into_owned();
            error.truncate(error.floor_char_boundary(ERROR_LEN_MAX));
            return Err(failed(error));
        }
        if bytes.len() > PIECE_LEN_MAX {
            let why = format!("a piece of {} bytes is longer than {PIECE_LEN_MAX}", bytes.len());
            return Err(Refusal::new(Kind::Invalid, why));
        }
        if !bytes.is_empty() && pieces.send(Ok(bytes)).await.is_err() {
            return Err(failed("it cannot be written".into()));
        }
        if done {
            // An empty piece is the end: that the channel closes may also mean that the caller has gone.
            let _ = pieces.send(Ok(Vec::new())).await;
            return Ok(());
        }
        let next = timeout(FILL_PATIENCE, requests.message()).await;
        let silent = format!("nothing has come {} for {} seconds", R::WHENCE, FILL_PATIENCE.as_secs());
        let next = next.map_err(|_| failed(silent))?;
        let gone = || failed("the process that brought it has gone".into());
        request = next.map_err(|_| gone())?.ok_or_else(gone)?;
    }
}

/// Writes the part file, and gives what it came to if that is what it has to be.
fn write(
    shared: &Shared,
    receive: &Receive,
    Expected { length, digest, user }: &Expected,
    mut incoming: mpsc::Receiver<Result<Vec<u8>, Refusal>>,
) -> Result<Written, Refusal> {
    let (id, length) = (receive.id(), *length);
    let make_room = |bytes: u64| -> Result<(), Refusal> {
        // What several bring at once counts for each other.
        let _one = ROOM.lock().unwrap_or_else(PoisonError::into_inner);
        check_share(shared, *user, id, bytes)?;
        shared.limits.make_room(&shared.catalog, &shared.store, id, bytes)?;
        receive.progress().total.store(bytes, Ordering::Relaxed);
        Ok(())
    };
    let mut room = length.unwrap_or(0);
    make_room(room)?;
    let path = part_path(&shared.store.path(id));
    let failed = |error: io::Error| Refusal::new(Kind::StoreFull, format!("it cannot be stored: {error}"));
    let file = new_part(&path).map_err(failed)?;
    let (mut hasher, mut sha256, mut at) = (blake3::Hasher::new(), Context::new(&SHA256), 0u64);
    let mut is_whole = false;
    while let Some(piece) = incoming.blocking_recv() {
        let piece = piece?;
        if piece.is_empty() {
            is_whole = true;
            break;
        }
        let end = at + piece.len() as u64;
        if let Some(length) = length.filter(|length| end > *length) {
            let why = format!("more bytes came than the {length} that were said");
            return Err(Refusal::new(Kind::OriginFailed, why));
        }
        if end > room {
            room = end + ROOM_STEP;
            make_room(room)?;
        }
        match file.write_all_at(&piece, at) {
            // Other programs have filled the disk meanwhile.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                make_room(room.max(end))?;
                file.write_all_at(&piece, at).map_err(failed)?;
            }
            outcome => outcome.map_err(failed)?,
        }
        hasher.update(&piece);
        if matches!(digest, Digest::Sha256(_)) {
            sha256.update(&piece);
        }
        at = end;
        receive.progress().bytes.store(at, Ordering::Relaxed);
    }
    if !is_whole {
        return Err(Refusal::new(Kind::OriginFailed, "the process that brought it has gone"));
    }
    if let Some(length) = length.filter(|length| at < *length) {
        let why = format!("{at} bytes came of the {length} that were said");
        return Err(Refusal::new(Kind::OriginFailed, why));
    }
    check(digest, sha256, &path, at)?;
    receive.progress().total.store(at, Ordering::Relaxed);
    Ok(Written { length: at, root: hasher.finalize().to_hex().to_string(), part: path, file })
}

/// Makes an empty part file. A process that has mapped what an earlier try has left keeps that.
fn new_part(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = rustix::fs::OFlags::NOFOLLOW.bits();
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    options.custom_flags(flags as i32).open(path)
}

/// Checks that a user has room for this number of bytes in its part of the store.
fn check_share(shared: &Shared, user: User, id: ObjectId, bytes: u64) -> Result<(), Refusal> {
    if !user.is_other() {
        return Ok(());
    }
    let brought = shared.catalog.brought_bytes(user, id);
    let free = || shared.store.free_bytes().unwrap_or(0).saturating_add(brought);
    let share = user.share_bytes(shared.limits.most().unwrap_or_else(free));
    if brought.saturating_add(bytes) <= share {
        return Ok(());
    }
    let why = format!(
        "user {} has {} in the store, and with the {} of this object it would be more than a user's part of it, {}",
        user.uid(),
        format_bytes(brought),
        format_bytes(bytes),
        format_bytes(share)
    );
    Err(Refusal::new(Kind::StoreFull, why))
}

/// Checks that the bytes are the ones that the key names.
fn check(digest: &Digest, sha256: Context, path: &Path, length: u64) -> Result<(), Refusal> {
    let (wanted, found, what) = match digest {
        Digest::None => return Ok(()),
        Digest::Sha256(wanted) => (wanted, hex(sha256), "SHA-256"),
        Digest::Git(wanted) => {
            let found = git_digest(path, length);
            let found = found.map_err(|error| Refusal::new(Kind::Internal, error.to_string()))?;
            (wanted, found, "git digest")
        }
    };
    if *wanted == found {
        return Ok(());
    }
    let why = format!("the bytes from its origin have the {what} {found}, and not {wanted}");
    Err(Refusal::new(Kind::OriginFailed, why))
}

/// Enters what was written into the store, and gives its root, or removes it.
fn enter(
    shared: &Shared,
    receive: Receive,
    Shape { name, kind, mode, modified }: Shape,
    written: Result<Written, Refusal>,
) -> Result<String, Refusal> {
    let id = receive.id();
    let kept = written.and_then(|Written { length, root, part, file }| {
        let holder = receive.progress().holder;
        let description = Description { name, kind, length, mode, modified, root, holder, pinned: false };
        let kept = shared.store.keep(id, &Arrived { part: &part, file: &file }, &description);
        kept.map_err(|error| Refusal::new(Kind::StoreFull, format!("it cannot be stored: {error}")))?;
        Ok(description)
    });
    match kept {
        Ok(description) => {
            tracing::info!(object = %id, bytes = description.length, "brought");
            let root = description.root.clone();
            receive.complete(description);
            Ok(root)
        }
        Err(refusal) => {
            tracing::warn!(object = %id, %refusal, "not brought");
            let _ = shared.store.remove(id);
            receive.fail(refusal.clone());
            Err(refusal)
        }
    }
}
