//! Sets of files: adding one, taking one in, sending one, and telling which of its files are here.
//!
//! What travels first is the list, and then each file as an object of its own: [`Delivery`] decides in which
//! order and to whom. A receiver has the set when it has the list and every file of it, with the bytes that
//! the list names.

use super::catalog::{
    self, Available, Coming, Following, Lacking, Part, Receive, Set, Snapshot, part_id, printable,
};
use super::choice::Choice;
use super::objects::{Outcomes, Shape, store_bytes};
use super::sends::{Sends, Watcher, Wish, open};
use super::shared::Shared;
use super::store::{Description, Found, Store};
use super::users::User;
use polycast_api::agent::send_event::Event;
use polycast_api::agent::{FilesEvent, SendEvent, SetFile};
use polycast_api::client::Receivers;
use polycast_api::error::{Kind, Refusal};
use polycast_api::report::Report;
use polycast_net::archive::{Listed, MANIFEST_LEN_MAX, Manifest, TreeSource};
use polycast_net::hash::{hash_of, hex};
use polycast_net::object::{FileSource, MODE_USUAL, ObjectKind, ObjectSource};
use polycast_net::store::check_name;
use polycast_protocol::sets::Delivery;
use polycast_types::{Duration as Span, ObjectId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Status;

/// A set of which no file is on its way is given up after this long; its files stay. The source sends the
/// list once more after the last file, so one that was given up is taken in then.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// The longest time without a look at whether the agent ends.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Files that one event names.
const FILES_AN_EVENT: usize = 256;

/// A directory that becomes a set.
pub(super) struct ToAdd {
    pub id: ObjectId,
    pub path: PathBuf,
    pub choice: Choice,
    pub name: String,
    pub user: User,
    pub private: bool,
}

/// Makes a directory known as a set: every file is read once, and lies where it is.
///
/// # Errors
/// It is no directory, a file cannot be read, or there are too many.
pub(super) async fn add(shared: &Arc<Shared>, to_add: ToAdd) -> Result<Available, Refusal> {
    let (here, id, user) = (Arc::clone(shared), to_add.id, to_add.user);
    let added = tokio::task::spawn_blocking(move || add_here(&here, to_add));
    added.await.map_err(|error| Refusal::new(Kind::Internal, error.to_string()))??;
    shared.catalog.wait(id, user, None, true).await
}

fn add_here(shared: &Arc<Shared>, to_add: ToAdd) -> Result<(), Refusal> {
    let ToAdd { id, path, choice, name, user, private } = to_add;
    let failed = |error: polycast_net::archive::ArchiveError| Refusal::new(Kind::Path, error.to_string());
    let tree = choice.open(&path).map_err(failed)?;
    let mut lies: BTreeMap<ObjectId, (PathBuf, FileSource)> = BTreeMap::new();
    let manifest = Manifest::of(&tree, |path, len| {
        let source = FileSource::open(path)?;
        if source.len() != len {
            return Err(std::io::Error::other("its length has changed"));
        }
        let root = hash_of(&source)?;
        source.check()?;
        lies.entry(part_id(id.app, &root)).or_insert_with(|| (path.to_path_buf(), source));
        Ok(root)
    });
    let manifest = manifest.map_err(failed)?;
    let bytes = manifest.to_bytes();
    let root = hex(blake3::hash(&bytes).as_bytes());
    let set = Arc::new(Set::of(id, manifest)?);
    let enter = |part: &Part| {
        let Some((path, source)) = lies.get(&part.id) else {
            return Err(Refusal::new(Kind::Internal, format!("a file of set {id} is nowhere")));
        };
        shared.catalog.add_part(part, available(part, path, source, user.holder(private)), is_fresh)
    };
    // The same once more changes nothing but where its files lie. It is not removed meanwhile.
    if let Ok(there) = shared.catalog.begin_send(id)
        && (there.object.kind, &there.object.root) == (ObjectKind::Set, &root)
    {
        return set.parts().iter().try_for_each(enter);
    }
    let receive = shared.catalog.begin_bring(id, user, user.holder_in_place(private))?;
    shared.catalog.list_files(id, Arc::clone(&set));
    let entered = set.parts().iter().try_for_each(enter);
    if let Err(refusal) = entered {
        receive.fail(refusal.clone());
        forget_files(shared, &set, User::agent());
        return Err(refusal);
    }
    let shape = Shape { name, kind: ObjectKind::Set, mode: MODE_USUAL, modified: None };
    store_bytes(shared, receive, shape, (bytes, user))
        .inspect_err(|_| forget_files(shared, &set, User::agent()))?;
    tracing::info!(object = %id, files = set.parts().len(), bytes = set.bytes(), "added");
    Ok(())
}

fn available(part: &Part, path: &Path, source: &FileSource, holder: super::users::Holder) -> Available {
    let since = SystemTime::now();
    Available {
        name: name_of(part),
        kind: ObjectKind::File,
        length: part.len,
        mode: source.mode(),
        modified: source.modified(),
        stamp: source.stamp(),
        root: hex(&part.root),
        added_from: Some(path.to_path_buf()),
        choice: Arc::default(),
        since,
        used: since,
        pinned: false,
        superseded: false,
        holder: Some(holder),
    }
}

/// Returns true if a file that was added is unchanged.
fn is_fresh(object: &Available) -> bool {
    object.added_from.as_deref().is_some_and(|path| open(object, path).is_ok())
}

/// Refuses files that were added, and are not what they were any more.
fn check_unchanged(files: &BTreeMap<ObjectId, Available>) -> Result<(), Refusal> {
    let mut lie = files.values().filter_map(|object| Some((object, object.added_from.as_deref()?)));
    lie.try_for_each(|(object, path)| open(object, path).map(drop))
}

/// The same, without holding up others meanwhile.
async fn unchanged(files: &BTreeMap<ObjectId, Available>) -> Result<(), Refusal> {
    let lie = files.iter().filter(|(_, object)| object.added_from.is_some());
    let lie: BTreeMap<_, _> = lie.map(|(id, object)| (*id, object.clone())).collect();
    if lie.is_empty() {
        return Ok(());
    }
    let checking = tokio::task::spawn_blocking(move || check_unchanged(&lie));
    checking.await.map_err(|error| Refusal::new(Kind::Internal, error.to_string()))?
}

/// Returns the name of a file as an object: the end of its path, by which a later version of it is found.
fn name_of(part: &Part) -> String {
    let last = part.name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name = String::from_utf8_lossy(last).into_owned();
    if check_name(&name).is_ok() { name } else { "file".into() }
}

/// The sets among what an earlier run has left, with what they are made of. The list of one that is not whole
/// is checked again when the set comes once more.
pub(super) fn whole(store: &Store, found: Vec<Found>) -> (Vec<Found>, BTreeMap<ObjectId, Arc<Set>>) {
    let mut sets = BTreeMap::new();
    let files: BTreeMap<ObjectId, (u64, String)> = found
        .iter()
        .map(|found| (found.id, (found.description.length, found.description.root.clone())))
        .collect();
    let is_here = |part: &Part| {
        files.get(&part.id).is_some_and(|(length, root)| *length == part.len && *root == hex(&part.root))
    };
    // Bytes that lie here and are not among what was found: what they are cannot be read just now.
    let may_be_here = |part: &Part| {
        let is_unread = || !files.contains_key(&part.id) && store.path(part.id).try_exists().unwrap_or(true);
        is_here(part) || is_unread()
    };
    let mut is_whole = |found: &Found| {
        if found.description.kind != ObjectKind::Set {
            return true;
        }
        match read(store, found.id) {
            Ok(set) if set.parts().iter().all(is_here) => {
                sets.insert(found.id, Arc::new(set));
                true
            }
            Ok(set) if set.parts().iter().all(may_be_here) => {
                tracing::warn!(set = %found.id, "stays in the store unused: what its files are cannot be read");
                false
            }
            _ => {
                tracing::warn!(set = %found.id, "not all of its files are here: they stay, and it comes once more");
                if let Err(error) = store.set_back(found.id) {
                    tracing::warn!(set = %found.id, %error, "its list stays in the store unused");
                }
                false
            }
        }
    };
    let found = found.into_iter().filter(|found| is_whole(found)).collect();
    (found, sets)
}

/// Reads the list of a set in the store.
fn read(store: &Store, id: ObjectId) -> Result<Set, Refusal> {
    let path = store.path(id);
    let failed = |error: String| Refusal::new(Kind::TransferFailed, format!("the list of set {id}: {error}"));
    let len = std::fs::metadata(&path).map_err(|error| failed(error.to_string()))?.len();
    if len > MANIFEST_LEN_MAX {
        return Err(failed(format!("it has {len} bytes, and {MANIFEST_LEN_MAX} are the most")));
    }
    let bytes = std::fs::read(&path).map_err(|error| failed(error.to_string()))?;
    Set::of(id, Manifest::parse(&bytes).map_err(|error| failed(error.to_string()))?)
}

/// Takes in a set whose list is here: waits for its files, and enters it when all are.
pub(super) async fn gather(shared: Arc<Shared>, receive: Receive, description: Description) {
    let id = receive.id();
    match await_files(&shared, &receive, id).await {
        Ok(set) => {
            tracing::info!(set = %id, files = set.parts().len(), bytes = set.bytes(), "all of its files are here");
            receive.complete(description);
        }
        Err(refusal) => {
            tracing::warn!(set = %id, %refusal, "not received");
            shared.counters.not_received();
            if let Err(error) = shared.store.remove(id) {
                tracing::warn!(set = %id, %error, "cannot be removed from the store");
            }
            receive.fail(refusal);
        }
    }
}

async fn await_files(shared: &Arc<Shared>, receive: &Receive, id: ObjectId) -> Result<Arc<Set>, Refusal> {
    let mut changes = shared.catalog.changes();
    let here = Arc::clone(shared);
    let reading = tokio::task::spawn_blocking(move || read(&here.store, id)).await;
    let set = Arc::new(reading.map_err(|error| Refusal::new(Kind::Internal, error.to_string()))??);
    // What is here already belongs to other users or sets, whatever this list says of it.
    let before_it = shared.catalog.present(&set);
    shared.catalog.list_files(id, Arc::clone(&set));
    let cancelled =
        || Refusal::new(Kind::Cancelled, format!("the files of set {id} are not waited for any more"));
    let (mut moved, mut before, mut lacking) = (Instant::now(), None, Lacking::default());
    loop {
        // Seen before looking, so that a change in between is not missed.
        if changes.borrow_and_update().is_none() || receive.progress().cancel.load(Ordering::Relaxed) {
            return Err(cancelled());
        }
        if let Err((part, refusal)) = shared.catalog.look(&set, &mut lacking) {
            if !before_it.contains(&part) {
                forget_part(shared, part, id);
            }
            return Err(refusal);
        }
        if lacking.count() == 0 {
            unchanged(&shared.catalog.files_of(id)?.1).await?;
            return Ok(set);
        }
        if lacking.comes() || before != Some(lacking.count()) {
            (moved, before) = (Instant::now(), Some(lacking.count()));
        }
        if moved.elapsed() > IDLE_MAX {
            let (lacking, all) = (lacking.count(), set.parts().len());
            let why =
                format!("{lacking} of the {all} files of set {id} have not come, and no source sends them");
            return Err(Refusal::new(Kind::TransferFailed, why));
        }
        let _ = tokio::time::timeout(LOOK_INTERVAL, changes.changed()).await;
    }
}

/// Removes an object that has come in the place of a file of the set: it would be in the way of the right
/// one.
fn forget_part(shared: &Shared, part: ObjectId, set: ObjectId) {
    if matches!(shared.catalog.get(part), Some(Snapshot::Available(object)) if object.added_from.is_some()) {
        return;
    }
    shared.catalog.forget_list(set);
    match shared.catalog.delete_part(part, User::agent(), || shared.store.remove(part)) {
        Ok(()) => tracing::warn!(object = %part, %set, "removed: it is not the file that the set names"),
        Err(refusal) => {
            tracing::warn!(object = %part, %set, %refusal, "not the file that the set names; it stays")
        }
    }
}

/// Removes a set, and with it the files that no other set needs.
///
/// # Errors
/// It is in use, or not this user's.
pub(super) fn delete(
    shared: &Shared,
    id: ObjectId,
    user: User,
    remove: impl FnOnce() -> std::io::Result<bool>,
) -> Result<(), Refusal> {
    let set = shared.catalog.set(id);
    shared.catalog.delete(id, user, remove)?;
    if let Some(set) = set {
        forget_files(shared, &set, user);
    }
    Ok(())
}

/// Lets go of an object whose bytes were in the memory of a process that has ended: they are nowhere now, and
/// a script that runs again takes the same number, or another host sends what has it. Gives whether there was
/// one.
pub(super) fn forget_what_has_gone(shared: &Shared, id: ObjectId, user: User) -> bool {
    let Some(Snapshot::Available(object)) = shared.catalog.get(id) else { return false };
    // It may be far away, so the catalog is not held meanwhile. One that cannot be looked at may be there.
    let has_gone = |path: &Path| path.starts_with("/proc") && path.try_exists().is_ok_and(|there| !there);
    if !object.added_from.as_deref().is_some_and(has_gone) {
        return false;
    }
    // One that is another user's, or is still being sent, stays: then the number is taken.
    let forgotten = shared.catalog.delete_gone(id, user, &object, || shared.store.remove(id));
    forgotten.is_ok()
}

/// Removes the files of a set that has gone which no other set needs, and that no user has pinned or brought
/// by themselves; one that is in use goes when others need its room.
pub(super) fn forget_files(shared: &Shared, set: &Set, user: User) {
    for part in shared.catalog.unlisted(set) {
        if let Err(refusal) = shared.catalog.delete_part(part, user, || shared.store.remove(part))
            && refusal.kind != Kind::ObjectUnknown
        {
            tracing::info!(object = %part, %refusal, "stays");
        }
    }
}

/// The bytes of a set as the stream of its directory; it stays while they are read.
pub(super) struct Whole {
    tree: TreeSource,
    /// Its files; those that were added have to stay what they are.
    files: BTreeMap<ObjectId, Available>,
    _guard: catalog::Send,
}

impl Whole {
    /// # Errors
    /// It is no set.
    pub(super) fn of(shared: &Shared, guard: catalog::Send) -> Result<Self, Refusal> {
        let app = guard.id().app;
        let (set, files) = shared.catalog.files_of(guard.id())?;
        check_unchanged(&files)?;
        let tree = set.manifest.source(|root| {
            let id = part_id(app, root);
            files.get(&id).and_then(|file| file.added_from.clone()).unwrap_or_else(|| shared.store.path(id))
        });
        Ok(Whole { tree, files, _guard: guard })
    }
}

impl ObjectSource for Whole {
    fn len(&self) -> u64 {
        self.tree.len()
    }

    fn is_checked_quickly(&self) -> bool {
        self.tree.is_checked_quickly()
    }

    fn check(&self) -> std::io::Result<()> {
        check_unchanged(&self.files).map_err(|refusal| std::io::Error::other(refusal.message))
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.tree.read_exact_at(buffer, offset)
    }
}

type Events<T> = mpsc::Sender<Result<T, Status>>;

/// Tells of the files of a set as they come.
pub(super) async fn files(
    shared: Arc<Shared>,
    (id, user): (ObjectId, User),
    timeout: Option<Duration>,
    events: Events<FilesEvent>,
) {
    let following = follow_files(&shared, (id, user), &events);
    let late = || Refusal::new(Kind::TimedOut, format!("not all files of set {id} are here"));
    let outcome = match timeout {
        None => following.await,
        Some(span) => tokio::time::timeout(span, following).await.unwrap_or_else(|_| Err(late())),
    };
    if let Err(refusal) = outcome {
        // A caller that has gone need not hear it.
        let _ = events.send(Err(refusal.into())).await;
    }
}

async fn follow_files(
    shared: &Shared,
    (id, user): (ObjectId, User),
    events: &Events<FilesEvent>,
) -> Result<(), Refusal> {
    let mut changes = shared.catalog.changes();
    let (mut told, mut following): (Option<BTreeSet<ObjectId>>, _) = (None, Following::default());
    loop {
        // Seen before looking, so that a change in between is not missed.
        if changes.borrow_and_update().is_none() {
            return Err(Refusal::new(Kind::Cancelled, "the agent is shutting down"));
        }
        shared.catalog.check_for(id, user)?;
        let coming = shared.catalog.coming(id);
        if let Some(Coming::Here(object)) = &coming
            && object.kind != ObjectKind::Set
        {
            return Err(Refusal::new(Kind::Invalid, format!("object {id} is no set of files")));
        }
        if told.is_some() && coming.is_none() {
            return Err(shared.catalog.absent(id));
        }
        if let Ok((set, here)) = shared.catalog.files_since(id, &mut following) {
            let complete = matches!(coming, Some(Coming::Here(_)));
            unchanged(&here).await?;
            if complete {
                // Those that were told before, too.
                unchanged(&shared.catalog.files_of(id)?.1).await?;
                shared.used(id);
            }
            let known = told.get_or_insert_default();
            let is_first = known.is_empty();
            let fresh: Vec<_> = match is_first {
                true => {
                    let listed = set.manifest.files().map(|file| (part_id(id.app, &file.root), file));
                    listed
                        .map(|(part, file)| (part, named(shared, part, user, &file, here.get(&part))))
                        .collect()
                }
                false => here
                    .iter()
                    .filter(|(part, _)| !known.contains(part))
                    .flat_map(|(part, object)| set.files_of(*part).map(move |file| (*part, object, file)))
                    .map(|(part, object, file)| (part, named(shared, part, user, &file, Some(object))))
                    .collect(),
            };
            // Once the list was told, a set of no files is not told again.
            known.insert(id);
            known.extend(fresh.iter().filter(|(_, file)| file.here).map(|(part, _)| *part));
            if !tell_files(
                fresh.into_iter().map(|(_, file)| file).collect(),
                set.bytes(),
                (complete, is_first),
                events,
            )
            .await
            {
                return Ok(());
            }
            if complete {
                return Ok(());
            }
        }
        tokio::select! {
            changed = changes.changed() => changed.map_err(|_| shared.catalog.absent(id))?,
            () = events.closed() => return Ok(()),
        }
    }
}

/// A file of a set, as its object.
fn named(
    shared: &Shared,
    part: ObjectId,
    user: User,
    file: &Listed<'_>,
    here: Option<&Available>,
) -> SetFile {
    let is_told = user.shares_paths() || !user.is_other();
    let lies = here.map(|object| object.added_from.clone().unwrap_or_else(|| shared.store.path(part)));
    // One that is not UTF-8 cannot be told.
    let path = lies.filter(|_| is_told).and_then(|path| path.to_str().map(str::to_string));
    SetFile {
        name: file.name.to_vec(),
        data_id: part.data.0,
        length: file.len,
        root: hex(&file.root),
        mode: file.mode.into(),
        here: here.is_some(),
        path: path.unwrap_or_default(),
    }
}

/// Tells of files; gives whether the caller is still there.
async fn tell_files(
    files: Vec<SetFile>,
    total_bytes: u64,
    (complete, is_first): (bool, bool),
    events: &Events<FilesEvent>,
) -> bool {
    let mut files = files.into_iter().peekable();
    if files.peek().is_none() && !complete && !is_first {
        return true;
    }
    loop {
        let some: Vec<SetFile> = files.by_ref().take(FILES_AN_EVENT).collect();
        let is_last = files.peek().is_none();
        let event = FilesEvent { files: some, total_bytes, complete: complete && is_last };
        if events.send(Ok(event)).await.is_err() {
            return false;
        }
        if is_last {
            return true;
        }
    }
}

/// Sends the files of set `id` to those who have its list: `one` sends one of them. Then these are sent the
/// list once more: a receiver that has the set says so, and one that has given it up while others got their
/// files takes it in now.
pub(super) async fn deliver<F, R>(id: ObjectId, set: &Set, receivers: Vec<String>, one: F) -> Outcomes
where
    F: Fn(ObjectId, Vec<String>) -> R,
    R: Future<Output = Outcomes> + Send + 'static,
{
    let mut delivery = Delivery::new(set.parts().len(), receivers);
    let mut running = JoinSet::new();
    loop {
        while let Some((file, to)) = delivery.poll() {
            let sending = one(set.parts()[file].id, to);
            running.spawn(async move { (file, sending.await) });
        }
        match running.join_next().await {
            Some(Ok((file, outcomes))) => delivery.ended(
                file,
                outcomes.into_iter().map(|(name, outcome)| {
                    (name, outcome.map_err(|why| named_file(&set.parts()[file], &why)))
                }),
            ),
            // Our own mistake.
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            None => break,
        }
    }
    let (have, mut outcomes): (Outcomes, Outcomes) =
        delivery.outcomes().partition(|(_, outcome)| outcome.is_ok());
    if !have.is_empty() && !set.parts().is_empty() {
        let have = have.into_iter().map(|(name, _)| name).collect();
        let confirmed = one(id, have).await.into_iter();
        outcomes.extend(confirmed.map(|(name, outcome)| {
            (name, outcome.map_err(|why| format!("it has the files, but not the set: {why}")))
        }));
    } else {
        outcomes.extend(have);
    }
    outcomes
}

fn named_file(part: &Part, why: &str) -> String {
    format!("the file '{}' did not get there: {why}", printable(&part.name))
}

/// Sends a set as its caller wishes, and tells how it goes.
pub(super) async fn send(
    sends: Arc<Sends>,
    set: Arc<Set>,
    wish: Wish,
    list: Watcher,
    events: Events<SendEvent>,
) {
    let detached = wish.detached;
    let sending = send_all(sends, set, wish, list, events.clone());
    if detached {
        // It goes on when no caller listens any more.
        tokio::spawn(sending);
        return;
    }
    tokio::select! {
        () = sending => {}
        () = events.closed() => {}
    }
}

async fn send_all(
    sends: Arc<Sends>,
    set: Arc<Set>,
    wish: Wish,
    mut list: Watcher,
    events: Events<SendEvent>,
) {
    let began = Instant::now();
    let tell = |event| events.send(Ok(SendEvent { event: Some(event), added: None }));
    let report = match follow_list(&mut list, &events).await {
        Ok(report) => report,
        Err(refusal) => {
            let _ = events.send(Err(refusal.into())).await;
            return;
        }
    };
    let have = report.receivers.iter().filter(|receiver| receiver.verified);
    let have: Vec<String> = have.map(|receiver| receiver.name.clone()).collect();
    let sums = Arc::new(Mutex::new(Sums::of(&report, set.bytes())));
    let list = wish.object;
    let one = |object: ObjectId, to: Vec<String>| {
        let mut options = wish.options.clone();
        options.deadline = options.deadline.map(|deadline| deadline - Span::from(began.elapsed()));
        options.first_byte = 0;
        let wish = Wish { object, receivers: Receivers::Named(to.clone()), options, ..wish.clone() };
        let (sends, sums, events) = (Arc::clone(&sends), Arc::clone(&sums), events.clone());
        async move {
            let (outcomes, report) = match sends.start(wish) {
                Ok(watcher) => outcomes(watcher, to).await,
                Err(refusal) => (all_failed(to, &refusal), None),
            };
            // The list is counted already.
            if let Some(report) = report.filter(|_| object != list) {
                let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
                sums.add(&report);
                // A caller that does not read is told the next time, and delays nothing.
                if let Ok(place) = events.try_reserve() {
                    let so_far = sums.report(began.elapsed(), None);
                    let event = Some(Event::Progress((&so_far).into()));
                    place.send(Ok(SendEvent { event, added: None }));
                }
            }
            outcomes
        }
    };
    let outcomes = deliver(list, &set, have, one).await;
    let report = sums.lock().unwrap_or_else(PoisonError::into_inner).report(began.elapsed(), Some(&outcomes));
    let _ = tell(Event::Finished((&report).into())).await;
}

/// Waits for the end of the list's transfer, and tells what happens before.
async fn follow_list(list: &mut Watcher, events: &Events<SendEvent>) -> Result<Arc<Report>, Refusal> {
    let (mut waits, mut granted) = (None, false);
    loop {
        let standing = list.standing.borrow_and_update().clone();
        if let Some(outcome) = standing.outcome {
            return outcome;
        }
        let event = match &standing.granted {
            Some(path) if !std::mem::replace(&mut granted, true) => {
                Some(Event::Granted(super::convert::granted(path)))
            }
            None if waits.as_ref() != Some(&standing.waiting) => {
                Some(Event::Waiting(super::convert::waiting(standing.waiting.as_ref())))
            }
            _ => None,
        };
        waits = Some(standing.waiting);
        if let Some(event) = event {
            let _ = events.send(Ok(SendEvent { event: Some(event), added: None })).await;
        }
        if list.standing.changed().await.is_err() {
            return Err(Refusal::new(Kind::Internal, "the transfer broke down"));
        }
    }
}

/// Results of the transfers of a set so far, as one report.
struct Sums {
    report: Report,
    /// Index of each receiver in the report.
    places: BTreeMap<String, usize>,
}

impl Sums {
    /// The list was sent; the set's files have so many bytes.
    fn of(list: &Report, bytes: u64) -> Self {
        let places = list.receivers.iter().enumerate();
        let places = places.map(|(place, receiver)| (receiver.name.clone(), place)).collect();
        // What was estimated is the list alone.
        let (bytes, estimate_s, took_s) = (list.bytes + bytes, None, None);
        Sums { report: Report { bytes, estimate_s, took_s, ..list.clone() }, places }
    }

    /// One of the files was sent.
    fn add(&mut self, file: &Report) {
        let report = &mut self.report;
        report.sent_bytes += file.sent_bytes;
        report.patched_bytes += file.patched_bytes;
        report.spared_bytes += file.spared_bytes;
        report.coded_bytes += file.coded_bytes;
        report.heard += file.heard;
        report.sealed &= file.sealed;
        report.forged_packets += file.forged_packets;
        report.add_zones(&file.zones);
        if !report.fabric.split('+').any(|fabric| fabric == file.fabric) {
            report.fabric = format!("{}+{}", report.fabric, file.fabric);
        }
        for own in &file.receivers {
            let Some(place) = self.places.get(&own.name) else { continue };
            let receiver = &mut report.receivers[*place];
            receiver.bytes += own.bytes;
            receiver.patched_bytes += own.patched_bytes;
            receiver.spared_bytes += own.spared_bytes;
            receiver.came_bytes += own.came_bytes;
            receiver.slow |= own.slow;
        }
    }

    fn report(&self, took: Duration, outcomes: Option<&Outcomes>) -> Report {
        let mut report = self.report.clone();
        report.seconds = took.as_secs_f64();
        let ended: BTreeMap<&str, &Result<(), String>> =
            outcomes.into_iter().flatten().map(|(name, outcome)| (name.as_str(), outcome)).collect();
        for receiver in &mut report.receivers {
            receiver.seconds = report.seconds;
            receiver.rate_bps = polycast_api::report::goodput_bps(receiver.came_bytes, receiver.seconds);
            if outcomes.is_none() {
                receiver.verified = false;
            } else if let Some(Err(why)) = ended.get(receiver.name.as_str()) {
                (receiver.verified, receiver.error) = (false, Some(why.clone()));
            }
            // A receiver that did not get the list has its reason already.
        }
        report
    }
}

pub(super) fn all_failed(receivers: Vec<String>, refusal: &Refusal) -> Outcomes {
    receivers.into_iter().map(|name| (name, Err(refusal.message.clone()))).collect()
}

/// Waits for the end of a transfer, and gives what has become of these.
pub(super) async fn outcomes(
    mut watcher: Watcher,
    receivers: Vec<String>,
) -> (Outcomes, Option<Arc<Report>>) {
    let ended = watcher.standing.wait_for(|standing| standing.outcome.is_some()).await;
    let outcome = ended.ok().and_then(|standing| standing.outcome.clone());
    let report = match outcome {
        Some(Ok(report)) => report,
        Some(Err(refusal)) => return (all_failed(receivers, &refusal), None),
        None => {
            let broken = Refusal::new(Kind::Internal, "the transfer broke down");
            return (all_failed(receivers, &broken), None);
        }
    };
    let of = |name: String| {
        let found = report.receivers.iter().find(|receiver| receiver.name == name);
        let outcome = match found {
            Some(receiver) if receiver.verified => Ok(()),
            Some(receiver) => {
                Err(receiver.error.clone().unwrap_or_else(|| "it did not get all of it".into()))
            }
            None => Err("the transfer was over before it could take part".into()),
        };
        (name, outcome)
    };
    let outcomes = receivers.into_iter().map(of).collect();
    (outcomes, Some(report))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_types::{AppId, DataId};
    use std::fs;

    /// A set stays in the store while the bytes of its files do, also where it cannot be read just now what
    /// these are.
    #[test]
    fn a_set_whose_files_cannot_be_read_just_now_stays() {
        let (folder, tree) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(tree.path().join("a"), b"abc").unwrap();
        let root_of = |path: &Path, _| Ok(*blake3::hash(&fs::read(path)?).as_bytes());
        let manifest = Manifest::of(&TreeSource::open(tree.path()).unwrap(), root_of).unwrap();
        let id = ObjectId { app: AppId::default(), data: DataId(1) };
        let list = manifest.to_bytes();
        let set = Set::of(id, manifest).unwrap();
        let part = &set.parts()[0];
        let open = || Store::open(folder.path()).unwrap();
        let (store, _) = open();
        let enter = |id: ObjectId, bytes: &[u8], kind| {
            fs::write(store.path(id), bytes).unwrap();
            let (name, root) = ("a".to_string(), hex(blake3::hash(bytes).as_bytes()));
            let (length, mode) = (bytes.len() as u64, MODE_USUAL);
            let modified = None;
            let description =
                Description { name, kind, length, mode, modified, root, holder: None, pinned: false };
            store.describe(id, &description).unwrap();
        };
        enter(id, &list, ObjectKind::Set);
        enter(part.id, b"abc", ObjectKind::File);
        let described = store.path(part.id).with_extension("toml");
        let text = fs::read_to_string(&described).unwrap();
        drop(store);
        // As it was, unreadable, as it was, and gone.
        for (written, is_whole, stays) in [
            (Some(&*text), true, true),
            (Some("?"), false, true),
            (Some(&*text), true, true),
            (None, false, false),
        ] {
            match written {
                Some(text) => fs::write(&described, text).unwrap(),
                None => fs::remove_file(&described).unwrap(),
            }
            let (store, found) = open();
            let (found, sets) = whole(&store, found);
            assert_eq!(sets.contains_key(&id), is_whole, "{written:?}");
            assert_eq!(found.iter().any(|one| one.id == id), is_whole);
            assert_eq!(store.path(id).exists(), stays, "{written:?}");
            let lies = if stays { store.path(id) } else { polycast_net::store::part_path(&store.path(id)) };
            assert_eq!(
                fs::read(lies).unwrap(),
                list,
                "a list that does not count is checked by its next transfer"
            );
        }
    }
}
