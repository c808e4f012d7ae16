//! Objects that are made from others in the store, such as what was got from an origin by its key: they get
//! another name in the file system, and no byte is copied where that has hard links.

use super::catalog::{Available, Part, Receive, Send, Set, Snapshot};
use super::convert;
use super::objects::{Shape, store_bytes};
use super::sends::open;
use super::sets::forget_files;
use super::shared::Shared;
use super::store::{Arrived, Description, check_bytes};
use super::users::User;
use polycast_api::agent::{AssembleRequest, AssembledFile, Object};
use polycast_api::convert::app_id;
use polycast_api::error::{Kind, Refusal, plain};
use polycast_net::archive::Manifest;
use polycast_net::hash::{hex, parse_hex};
use polycast_net::object::{MODE_USUAL, ObjectKind};
use polycast_net::store::{check_name, part_path};
use polycast_types::{DataId, ModificationTime, ObjectId, Printable};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

/// An object in the store, which stays there while this lives.
struct Held {
    id: ObjectId,
    held: Send,
}

/// Makes an object from others.
///
/// # Errors
/// One of them is not in the store, the id is taken by something else, or the paths make no directory.
pub(super) async fn assemble(
    shared: &Arc<Shared>,
    (id, user): (ObjectId, User),
    request: AssembleRequest,
) -> Result<Object, Refusal> {
    if user.is_other() {
        let why = "objects in the store are put together for the agent's own user alone: fetch them, and add the copy";
        return Err(Refusal::new(Kind::NotAllowed, why));
    }
    let AssembleRequest { name, files, single, .. } = request;
    let odd = |why| Refusal::new(Kind::Invalid, format!("'{}' {why}", Printable(&name)));
    check_name(&name).map_err(odd)?;
    let here = Arc::clone(shared);
    let done = tokio::task::spawn_blocking(move || {
        let kind = if single { ObjectKind::File } else { ObjectKind::Set };
        // The same command once more, or another one at the same time.
        if matches!(here.catalog.get(id), Some(Snapshot::Available(there)) if there.kind == kind) {
            return Ok(());
        }
        if single { file(&here, id, name, files) } else { set(&here, (id, user), name, files) }
    });
    done.await.map_err(|error| Refusal::new(Kind::Internal, error.to_string()))??;
    let object = shared.catalog.wait(id, user, None, true).await?;
    Ok(convert::available(id, object, &shared.store.path(id), user))
}

/// The object that has a file's bytes; `None` for one that has none.
fn hold(shared: &Shared, file: &AssembledFile) -> Result<Option<Held>, Refusal> {
    if file.app_id.is_empty() && file.data_id == 0 {
        return Ok(None);
    }
    let id = ObjectId { app: app_id(&file.app_id)?, data: DataId(file.data_id) };
    let held = shared.catalog.begin_send(id)?;
    let why = match &held.object {
        object if object.kind != ObjectKind::File => format!("object {id} is no file"),
        object if object.is_private() => format!("object {id} is private"),
        object if object.added_from.is_some() => {
            format!("object {id} lies where it was added, and not in the store")
        }
        _ => {
            check_bytes(&shared.store.path(id))?;
            return Ok(Some(Held { id, held }));
        }
    };
    Err(Refusal::new(Kind::Invalid, why))
}

/// Makes a file.
fn file(shared: &Arc<Shared>, id: ObjectId, name: String, files: Vec<AssembledFile>) -> Result<(), Refusal> {
    let [from] = &files[..] else {
        return Err(Refusal::new(
            Kind::Invalid,
            format!("a single file is made from one object, and not {}", files.len()),
        ));
    };
    let from = hold(shared, from)?;
    let from = from.ok_or_else(|| Refusal::new(Kind::Invalid, "a file without bytes is no object"))?;
    let receive = shared.catalog.begin_receive(id)?;
    enter(shared, receive, name, &from)
}

/// Makes a set.
fn set(
    shared: &Arc<Shared>,
    (id, user): (ObjectId, User),
    name: String,
    files: Vec<AssembledFile>,
) -> Result<(), Refusal> {
    let mut from: BTreeMap<[u8; 32], Held> = BTreeMap::new();
    let mut listed = Vec::with_capacity(files.len());
    for file in files {
        let Some(held) = hold(shared, &file)? else {
            listed.push((file.path, 0, None));
            continue;
        };
        let root = parse_hex(&held.held.object.root);
        let root = root
            .ok_or_else(|| Refusal::new(Kind::Internal, format!("the root of object {} is none", held.id)))?;
        listed.push((file.path, held.held.object.length, Some(root)));
        from.insert(root, held);
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let modified = ModificationTime::new(since.as_secs() as i64, 0).unwrap_or_default();
    let manifest = Manifest::of_files(listed, modified);
    let manifest = manifest.map_err(|error| Refusal::new(Kind::Invalid, error.to_string()))?;
    let bytes = manifest.to_bytes();
    let set = Arc::new(Set::of(id, manifest)?);
    let receive = shared.catalog.begin_receive(id)?;
    shared.catalog.list_files(id, Arc::clone(&set));
    let one = |part: &Part| match from.get(&part.root) {
        Some(held) => enter_part(shared, part, held),
        None => Err(Refusal::new(Kind::Internal, format!("a file of set {id} is nowhere"))),
    };
    let entered = set.parts().iter().try_for_each(one);
    if let Err(refusal) = entered {
        receive.fail(refusal.clone());
        forget_files(shared, &set, User::agent());
        return Err(refusal);
    }
    let shape = Shape { name, kind: ObjectKind::Set, mode: MODE_USUAL, modified: None };
    store_bytes(shared, receive, shape, (bytes, user))
        .inspect_err(|_| forget_files(shared, &set, User::agent()))?;
    tracing::info!(object = %id, files = set.parts().len(), bytes = set.bytes(), "put together");
    Ok(())
}

/// Makes a file of a set, unless its bytes are there under that id already.
fn enter_part(shared: &Arc<Shared>, part: &Part, from: &Held) -> Result<(), Refusal> {
    let end = part.name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name = String::from_utf8_lossy(end).into_owned();
    let name = if check_name(&name).is_ok() { name } else { "file".into() };
    match shared.catalog.begin_receive(part.id) {
        Ok(receive) => enter(shared, receive, name, from),
        Err(refusal) if refusal.kind == Kind::ObjectTaken => match shared.catalog.get(part.id) {
            Some(Snapshot::Available(there)) if is_part(&there, part) => Ok(()),
            _ => Err(refusal),
        },
        Err(refusal) => Err(refusal),
    }
}

/// Returns true if an object has the bytes of a set's file; one that lies elsewhere may have others by now.
fn is_part(there: &Available, part: &Part) -> bool {
    let is_unchanged = there.added_from.as_deref().is_none_or(|path| open(there, path).is_ok());
    is_unchanged && there.length == part.len && there.root == hex(&part.root)
}

/// Gives an object the bytes of another one.
fn enter(shared: &Shared, receive: Receive, name: String, from: &Held) -> Result<(), Refusal> {
    let id = receive.id();
    let Available { length, mode, modified, root, .. } = from.held.object.clone();
    let kind = ObjectKind::File;
    let description = Description { name, kind, length, mode, modified, root, holder: None, pinned: false };
    let part = part_path(&shared.store.path(id));
    let failed =
        |error: io::Error| Refusal::new(Kind::StoreFull, format!("it cannot be stored: {}", plain(&error)));
    let kept = link(shared, id, from).and_then(|()| {
        let file = File::open(&part).map_err(failed)?;
        shared.store.keep(id, &Arrived { part: &part, file: &file }, &description).map_err(failed)
    });
    match kept {
        Ok(()) => {
            receive.complete(description);
            Ok(())
        }
        Err(refusal) => {
            let _ = fs::remove_file(&part);
            receive.fail(refusal.clone());
            Err(refusal)
        }
    }
}

/// Makes the part file of an object from the bytes of another one: another name for them, or a copy.
fn link(shared: &Shared, id: ObjectId, from: &Held) -> Result<(), Refusal> {
    let failed =
        |error: io::Error| Refusal::new(Kind::StoreFull, format!("it cannot be stored: {}", plain(&error)));
    let (bytes, part) = (shared.store.path(from.id), part_path(&shared.store.path(id)));
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    if fs::hard_link(&bytes, &part).is_ok() {
        return Ok(());
    }
    shared.limits.make_room(&shared.catalog, &shared.store, id, from.held.object.length)?;
    fs::copy(&bytes, &part).map(drop).map_err(failed)
}
