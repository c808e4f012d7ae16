//! Sets of files: adding one, taking one in, sending one, and telling which of its files are here.
//!
//! What travels first is the list, and then each file as an object of its own: [`Delivery`] decides in which order and to whom. A
//! receiver has the set when it has the list and every file of it, with the bytes that the list names.

use super::Shared;
use super::catalog::{self, Available, Coming, Part, Receive, Set, Snapshot, part_id, printable};
use super::choice::Choice;
use super::objects::{Outcomes, Shape, store_bytes};
use super::sends::{Sends, Watcher, Wish, open};
use super::store::{Description, Found, Store};
use super::users::User;
use polycast_api::agent::send_event::Event;
use polycast_api::agent::{FilesEvent, SendEvent, SetFile};
use polycast_api::client::Receivers;
use polycast_api::error::{Kind, Refusal};
use polycast_api::report::{ReceiverReport, Report};
use polycast_net::archive::{MANIFEST_LEN_MAX, Manifest, TreeSource};
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

/// A set whose files do not come any more is given up after this long; its files stay.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// The longest time without a look at whether the agent ends.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Files that one event names.
const FILES_AN_EVENT: usize = 256;

/// A directory that becomes a set.
pub struct ToAdd {
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
pub async fn add(shared: &Arc<Shared>, to_add: ToAdd) -> Result<Available, Refusal> {
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
        lies.entry(part_id(id.app, &root)).or_insert_with(|| (path.to_path_buf(), source));
        Ok(root)
    });
    let manifest = manifest.map_err(failed)?;
    let bytes = manifest.to_bytes();
    let root = hex(blake3::hash(&bytes).as_bytes());
    // The same once more changes nothing.
    if let Some(Snapshot::Available(there)) = shared.catalog.get(id)
        && (there.kind, &there.root) == (ObjectKind::Set, &root)
    {
        return Ok(());
    }
    let set = Arc::new(Set::of(id, manifest)?);
    let receive = shared.catalog.begin_bring(id, user, private)?;
    shared.catalog.list_files(id, Arc::clone(&set));
    let entered = set.parts().iter().try_for_each(|part| {
        let Some((path, source)) = lies.get(&part.id) else {
            return Err(Refusal::new(Kind::Internal, format!("a file of set {id} is nowhere")));
        };
        shared.catalog.add_part(part, available(part, path, source, user.holder(private)), is_fresh)
    });
    if let Err(refusal) = entered {
        receive.fail(refusal.clone());
        forget_files(shared, &set, User::agent());
        return Err(refusal);
    }
    let shape = Shape { name, kind: ObjectKind::Set, mode: MODE_USUAL };
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

/// Whether a file that was added is still what it was.
fn is_fresh(object: &Available) -> bool {
    object.added_from.as_deref().is_some_and(|path| open(object, path).is_ok())
}

/// What a file is called as an object: the end of its path, by which a later version of it is found.
fn name_of(part: &Part) -> String {
    let last = part.name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name = String::from_utf8_lossy(last).into_owned();
    if check_name(&name).is_ok() { name } else { "file".into() }
}

/// The sets among what an earlier run has left, with what they are made of; those that are not whole any more are removed.
pub fn whole(store: &Store, found: Vec<Found>) -> (Vec<Found>, BTreeMap<ObjectId, Arc<Set>>) {
    let mut sets = BTreeMap::new();
    let files: BTreeMap<ObjectId, (u64, String)> = found
        .iter()
        .map(|found| (found.id, (found.description.length, found.description.root.clone())))
        .collect();
    let is_here = |part: &Part| {
        files.get(&part.id).is_some_and(|(length, root)| *length == part.len && *root == hex(&part.root))
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
            _ => {
                tracing::warn!(set = %found.id, "removed from the store: not all of its files are here");
                let _ = store.remove(found.id);
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
pub async fn gather(shared: Arc<Shared>, receive: Receive, description: Description) {
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
    shared.catalog.list_files(id, Arc::clone(&set));
    let cancelled =
        || Refusal::new(Kind::Cancelled, format!("the files of set {id} are not waited for any more"));
    let (mut moved, mut before) = (Instant::now(), None);
    loop {
        // Seen before looking, so that a change in between is not missed.
        if changes.borrow_and_update().is_none() || receive.progress().cancel.load(Ordering::Relaxed) {
            return Err(cancelled());
        }
        let (lacking, comes) = match shared.catalog.lacking(&set) {
            Ok(found) => found,
            Err((part, refusal)) => {
                // It would be in the way of the right one.
                let _ = forget_part(shared, part, id);
                return Err(refusal);
            }
        };
        if lacking.is_empty() {
            return Ok(set);
        }
        if comes || before != Some(lacking.len()) {
            (moved, before) = (Instant::now(), Some(lacking.len()));
        }
        if moved.elapsed() > IDLE_MAX {
            let (lacking, all) = (lacking.len(), set.parts().len());
            let why =
                format!("{lacking} of the {all} files of set {id} have not come, and nobody sends them");
            return Err(Refusal::new(Kind::TransferFailed, why));
        }
        let _ = tokio::time::timeout(LOOK_INTERVAL, changes.changed()).await;
    }
}

/// Removes a received object that is in the place of a file of the set.
fn forget_part(shared: &Shared, part: ObjectId, set: ObjectId) -> Result<(), Refusal> {
    let Some(Snapshot::Available(object)) = shared.catalog.get(part) else { return Ok(()) };
    if object.added_from.is_some() {
        return Ok(());
    }
    tracing::warn!(object = %part, %set, "removed: it is not the file that the set names");
    shared.catalog.forget_list(set);
    shared.catalog.delete(part, User::agent(), || shared.store.remove(part))
}

/// Removes a set, and with it the files that no other set needs.
///
/// # Errors
/// It is in use, or not this user's.
pub fn delete(
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

/// Removes the files of a set that has gone which no other set needs; one that is in use goes when others need its room.
fn forget_files(shared: &Shared, set: &Set, user: User) {
    for part in shared.catalog.unlisted(set) {
        if let Err(refusal) = shared.catalog.delete(part, user, || shared.store.remove(part))
            && refusal.kind != Kind::ObjectUnknown
        {
            tracing::info!(object = %part, %refusal, "stays");
        }
    }
}

/// The bytes of a set as the stream of its directory; it stays while they are read.
pub struct Whole {
    tree: TreeSource,
    _guard: catalog::Send,
}

impl Whole {
    /// # Errors
    /// It is no set.
    pub fn of(shared: &Shared, guard: catalog::Send) -> Result<Self, Refusal> {
        let app = guard.id().app;
        let (set, files) = shared.catalog.files_of(guard.id())?;
        let tree = set.manifest.source(|root| {
            let id = part_id(app, root);
            files.get(&id).and_then(|file| file.added_from.clone()).unwrap_or_else(|| shared.store.path(id))
        });
        Ok(Whole { tree, _guard: guard })
    }
}

impl ObjectSource for Whole {
    fn len(&self) -> u64 {
        self.tree.len()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.tree.read_exact_at(buffer, offset)
    }
}

type Events<T> = mpsc::Sender<Result<T, Status>>;

/// Tells of the files of a set as they come.
pub async fn files(
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
    let mut told: Option<BTreeSet<ObjectId>> = None;
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
        if let Ok((set, here)) = shared.catalog.files_of(id) {
            let complete = matches!(coming, Some(Coming::Here(_)));
            if complete {
                shared.used(id);
            }
            let known = told.get_or_insert_default();
            let is_first = known.is_empty();
            let listed = named(shared, &set, (id, user), &here);
            let fresh = listed.filter(|(part, file)| is_first || (file.here && !known.contains(part)));
            let fresh: Vec<_> = fresh.collect();
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

/// The files of a set, each with its object.
fn named(
    shared: &Shared,
    set: &Set,
    (id, user): (ObjectId, User),
    here: &BTreeMap<ObjectId, Available>,
) -> impl Iterator<Item = (ObjectId, SetFile)> {
    let is_told = user.shares_paths() || !user.is_other();
    set.manifest.files().map(move |file| {
        let part = part_id(id.app, &file.root);
        let found = here.get(&part);
        let lies = found.map(|object| object.added_from.clone().unwrap_or_else(|| shared.store.path(part)));
        let path = lies.filter(|_| is_told).map(|path| path.to_string_lossy().into_owned());
        let file = SetFile {
            name: file.name.to_vec(),
            data_id: part.data.0,
            length: file.len,
            root: hex(&file.root),
            mode: file.mode.into(),
            here: found.is_some(),
            path: path.unwrap_or_default(),
        };
        (part, file)
    })
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

/// Sends the files of a set to those who have its list: `one` sends one of them.
pub async fn deliver<F, R>(set: &Set, receivers: Vec<String>, one: F) -> Outcomes
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
    delivery.outcomes().collect()
}

fn named_file(part: &Part, why: &str) -> String {
    format!("the file '{}' did not get there: {why}", printable(&part.name))
}

/// Sends a set as somebody wishes, and tells how it goes.
pub async fn send(sends: Arc<Sends>, set: Arc<Set>, wish: Wish, list: Watcher, events: Events<SendEvent>) {
    let detached = wish.detached;
    let sending = send_all(sends, set, wish, list, events.clone());
    if detached {
        // It goes on when nobody listens any more.
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
    let tell = |event| events.send(Ok(SendEvent { event: Some(event) }));
    let report = match follow_list(&mut list, &events).await {
        Ok(report) => report,
        Err(refusal) => {
            let _ = events.send(Err(refusal.into())).await;
            return;
        }
    };
    let have = report.receivers.iter().filter(|receiver| receiver.verified);
    let have: Vec<String> = have.map(|receiver| receiver.name.clone()).collect();
    let files: Arc<Mutex<Vec<Arc<Report>>>> = Arc::default();
    let one = |object: ObjectId, to: Vec<String>| {
        let mut options = wish.options.clone();
        options.deadline = options.deadline.map(|deadline| deadline - Span::from(began.elapsed()));
        options.first_byte = 0;
        let wish = Wish { object, receivers: Receivers::Named(to.clone()), options, ..wish.clone() };
        let (sends, files, events, total) =
            (Arc::clone(&sends), Arc::clone(&files), events.clone(), Arc::clone(&set));
        let list = Arc::clone(&report);
        async move {
            let (outcomes, report) = match sends.start(wish) {
                Ok(watcher) => outcomes(watcher, to).await,
                Err(refusal) => (all_failed(to, &refusal), None),
            };
            if let Some(report) = report {
                let so_far = {
                    let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
                    files.push(report);
                    together(&list, &files, total.bytes(), began.elapsed(), None)
                };
                let _ = events.send(Ok(SendEvent { event: Some(Event::Progress((&so_far).into())) })).await;
            }
            outcomes
        }
    };
    let outcomes = deliver(&set, have, one).await;
    let files = files.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let report = together(&report, &files, set.bytes(), began.elapsed(), Some(&outcomes));
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
            let _ = events.send(Ok(SendEvent { event: Some(event) })).await;
        }
        if list.standing.changed().await.is_err() {
            return Err(Refusal::new(Kind::Internal, "the transfer broke down"));
        }
    }
}

/// What the transfers of a set came to, as one report.
fn together(
    list: &Report,
    files: &[Arc<Report>],
    bytes: u64,
    took: Duration,
    outcomes: Option<&Outcomes>,
) -> Report {
    let mut report = list.clone();
    report.bytes += bytes;
    report.seconds = took.as_secs_f64();
    for file in files {
        report.sent_bytes += file.sent_bytes;
        report.patched_bytes += file.patched_bytes;
        report.spared_bytes += file.spared_bytes;
        report.heard += file.heard;
        report.sealed &= file.sealed;
        report.forged_packets += file.forged_packets;
        if !report.fabric.split('+').any(|fabric| fabric == file.fabric) {
            report.fabric = format!("{}+{}", report.fabric, file.fabric);
        }
    }
    for receiver in &mut report.receivers {
        let own = files.iter().flat_map(|file| file.receivers.iter().filter(|own| own.name == receiver.name));
        let own: Vec<&ReceiverReport> = own.collect();
        receiver.bytes += own.iter().map(|file| file.bytes).sum::<u64>();
        receiver.patched_bytes += own.iter().map(|file| file.patched_bytes).sum::<u64>();
        receiver.spared_bytes += own.iter().map(|file| file.spared_bytes).sum::<u64>();
        receiver.slow |= own.iter().any(|file| file.slow);
        receiver.seconds = report.seconds;
        receiver.rate_bps = polycast_api::report::goodput_bps(receiver.bytes, receiver.seconds);
        match outcomes.map(|all| all.iter().find(|(name, _)| *name == receiver.name)) {
            None => receiver.verified = false,
            Some(Some((_, Err(why)))) => (receiver.verified, receiver.error) = (false, Some(why.clone())),
            // Who did not get the list has its reason already.
            Some(_) => {}
        }
    }
    report
}

pub fn all_failed(receivers: Vec<String>, refusal: &Refusal) -> Outcomes {
    receivers.into_iter().map(|name| (name, Err(refusal.message.clone()))).collect()
}

/// Waits for the end of a transfer, and gives what has become of these.
pub async fn outcomes(mut watcher: Watcher, receivers: Vec<String>) -> (Outcomes, Option<Arc<Report>>) {
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
