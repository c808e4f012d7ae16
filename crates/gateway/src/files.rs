//! Files of other servers in the agent's store: there already, from another agent, or read here for all.

pub(crate) use crate::asked::Asked;
use crate::coming::{Arrived, Coming, Kept, Outcome, Stretch};
use crate::counts::{Counts, CountsOf, Source};
use crate::parts::{self, Early, Gathering, Giving};
use crate::trouble::Trouble;
use crate::upstream::read;
use axum::http::{Request, StatusCode};
use polycast_api::agent::fetch_event::Event;
use polycast_api::agent::{FetchWaiting, Object, ObjectState};
use polycast_api::client::{AgentClient, ClientError, Fetching, Piece, Session, Wanted};
use polycast_api::convert;
use polycast_api::error::{Kind, plain};
use polycast_types::{AppId, DataId, ObjectId, Printable, RangeSet};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex as Turn, Semaphore, mpsc, watch};
use tokio::task::AbortHandle;

/// Files that are asked for at a time; the agent's door has places for 200 calls, and a file takes five.
const FILES_MAX: usize = 36;
/// Pieces that are read ahead.
const PIECES_MAX: usize = 8;
/// Time without news of a file after which the agent is asked whether any can come.
const LOOK_AFTER: Duration = Duration::from_secs(15);
/// Time for the agent to answer the second of two calls.
const SAID_WITHIN: Duration = Duration::from_secs(2);
/// A client that cannot be served now may ask again after so many seconds.
const AGAIN_S: u32 = 10;
/// Bytes from which on a file is worth two more calls, to be given while it comes.
const FOLLOWED_LEN: u64 = 8 << 20;

/// Endpoints that files are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Endpoint {
    Hub,
    Images,
}

/// The agent, as far as it keeps files of other servers.
pub(crate) struct Files {
    agent: PathBuf,
    session: Turn<Option<(AgentClient, Session)>>,
    endpoint: Endpoint,
    counts: Arc<Counts>,
    /// Files that are on their way, by their keys.
    coming: Mutex<HashMap<String, Coming>>,
    /// Failures by the keys of files: what clients have of these they cannot go on from.
    failures: Mutex<HashMap<String, Failures>>,
    places: Semaphore,
}

/// Number of times that a file has not come, and whether clients had bytes of it then.
#[derive(Clone, Copy, Default, Debug)]
struct Failures {
    count: u32,
    were_handed_out: bool,
}

/// Ends what was begun for a file when that is here, or does not come.
struct Following(AbortHandle);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Files {
    pub(crate) fn new(agent: &Path, endpoint: Endpoint, counts: Arc<Counts>) -> Self {
        Files {
            agent: agent.to_path_buf(),
            session: Turn::new(None),
            endpoint,
            counts,
            coming: Mutex::default(),
            failures: Mutex::default(),
            places: Semaphore::new(FILES_MAX),
        }
    }

    fn counts(&self) -> &CountsOf {
        match self.endpoint {
            Endpoint::Hub => &self.counts.hub,
            Endpoint::Images => &self.counts.images,
        }
    }

    /// Returns true if an object is on this host as a whole; not, if the agent does not say.
    pub(crate) async fn has(&self, object: &ObjectId) -> bool {
        self.whole(Some(object.app)).await.contains(object)
    }

    /// All objects that are on this host as a whole, as far as the agent says.
    pub(crate) async fn all(&self) -> HashSet<ObjectId> {
        self.whole(None).await
    }

    async fn whole(&self, app: Option<AppId>) -> HashSet<ObjectId> {
        let Ok((agent, _)) = self.session().await else { return HashSet::new() };
        let objects = match agent.list(app).await {
            Ok(objects) => objects,
            Err(error) => {
                // The agent has begun anew, perhaps.
                tracing::debug!(%error, "the agent does not say what it has");
                *self.session.lock().await = None;
                return HashSet::new();
            }
        };
        let whole = objects.iter().filter(|object| is_whole(object));
        whole.filter_map(|object| object.id().ok()).collect()
    }

    /// Has the file come, for all that ask for it now. It comes also where none of them waits any more.
    pub(crate) fn get(self: &Arc<Self>, asked: Asked) -> Coming {
        let key = asked.key.clone();
        let mut coming = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(coming) = coming.get(&key) {
            return coming.clone();
        }
        let (early, outcome) = (Arc::new(Early::new(asked.size)), watch::Sender::new(None));
        let (arrived, outcome_told) = (early.arrived.subscribe(), outcome.subscribe());
        let one = Coming { arrived, outcome: outcome_told, takes_unchecked: false };
        coming.insert(key.clone(), one.clone());
        let files = Arc::clone(self);
        tokio::spawn(async move {
            let forget = Forget { files: Arc::clone(&files), key };
            // The semaphore is never closed.
            let _place = files.places.acquire().await;
            let came = files.bring(&asked, &early).await;
            // Those that ask from now on ask anew.
            drop(forget);
            outcome.send_replace(Some(came));
        });
        one
    }

    /// Gets the file into the store, and says in the log how.
    async fn bring(self: &Arc<Self>, asked: &Asked, early: &Arc<Early>) -> Outcome {
        let began = Instant::now();
        let outcome = match self.object_telling(asked, early).await {
            Ok((object, source)) => opened(object).await.map(|file| (file, source)),
            Err(trouble) => Err(trouble),
        };
        let outcome = match outcome {
            Ok((file, source)) => begins_so(early, &file).await.map(|()| (file, source)),
            Err(trouble) => Err(trouble),
        };
        self.put_away(early, outcome.as_ref().ok().map(|(_, source)| *source));
        if outcome.is_err() && early.was_handed_out() {
            self.failures_of(&asked.key, |failures| failures.were_handed_out = true);
        }
        let reason = match self.failures_of(&asked.key, |failures| failures.count) {
            0 => "no agent had it".to_string(),
            tries => format!("no agent had it, and it had not come {tries} times before"),
        };
        match outcome {
            Ok((file, source)) => {
                let (bytes, seconds) = (asked.size, began.elapsed().as_secs_f64());
                tracing::info!(target: "polycast::done", bytes, seconds = format!("{seconds:.2}"), "{}: {}",
                    Printable(&asked.shown), source.name());
                self.counts().ended(asked, Some(source), &reason);
                Ok(file)
            }
            Err(trouble) => {
                self.counts().ended(asked, None, "");
                Err(trouble)
            }
        }
    }

    /// Gets the file into the store.
    pub(crate) async fn object(self: &Arc<Self>, asked: &Asked) -> Result<(Object, Source), Trouble> {
        let early = Arc::new(Early::new(asked.size));
        let outcome = self.object_telling(asked, &early).await;
        self.put_away(&early, outcome.as_ref().ok().map(|(_, source)| *source));
        outcome
    }

    /// The bytes of a small file that has been brought.
    pub(crate) async fn small(&self, object: &Object) -> Result<Vec<u8>, ClientError> {
        let id = object.id()?;
        let (agent, _) = self.session().await?;
        let session = agent.register(id.app, u64::from(std::process::id())).await?;
        let (mut taking, mut bytes) = (session.take(id).await?, Vec::new());
        while let Some(piece) = taking.next().await? {
            bytes.extend_from_slice(&piece);
        }
        session.unregister().await?;
        Ok(bytes)
    }

    /// Removes parts: those of the host that has read the file are there for others for a while.
    fn put_away(&self, early: &Early, source: Option<Source>) {
        let pause = if source == Some(Source::Origin) { parts::LINGER } else { Duration::ZERO };
        early.remove_after(&self.agent, pause);
    }

    /// Returns true if clients have the beginning of a file that did not come: it may be another one's.
    pub(crate) fn was_handed_out_wrongly(&self, key: &str) -> bool {
        self.failures_of(key, |failures| failures.were_handed_out)
    }

    fn failures_of<T>(&self, key: &str, change: impl FnOnce(&mut Failures) -> T) -> T {
        let mut all = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let mut failures = all.get(key).copied().unwrap_or_default();
        let changed = change(&mut failures);
        if failures.count > 0 || failures.were_handed_out {
            all.insert(key.to_string(), failures);
        }
        changed
    }

    /// Notes that what has come so far belongs to a try that has failed.
    fn leave(&self, asked: &Asked, early: &Early) {
        early.leave();
        self.failures_of(&asked.key, |failures| failures.count += 1);
    }

    async fn object_telling(
        self: &Arc<Self>,
        asked: &Asked,
        early: &Arc<Early>,
    ) -> Result<(Object, Source), Trouble> {
        let mut outcome = self.fetch(asked, early).await;
        if !matches!(outcome, Ok(Ok(_))) {
            self.leave(asked, early);
        }
        if let Err(error) = &outcome {
            match error.kind() {
                // Others could not read it, or an earlier try here; this one has not been told to yet.
                Some(Kind::OriginFailed | Kind::ObjectUnknown) => {}
                // The agent has begun anew, perhaps.
                None => *self.session.lock().await = None,
                Some(_) => return outcome.map_err(|error| in_words(&error)).flatten(),
            }
            outcome = self.fetch(asked, early).await;
            if !matches!(outcome, Ok(Ok(_))) {
                self.leave(asked, early);
            }
        }
        outcome.map_err(|error| in_words(&error)).flatten()
    }

    async fn fetch(
        self: &Arc<Self>,
        asked: &Asked,
        early: &Arc<Early>,
    ) -> Result<Result<(Object, Source), Trouble>, ClientError> {
        let (agent, session) = self.session().await?;
        let mut fetching = session.fetch(Wanted::Key(asked.key.clone()), true, None).await?;
        let (mut source, mut reading, mut following) = (Source::Peer, None, None);
        let mut object = None;
        let mut first = self.first_part(asked, &session);
        loop {
            let event = tokio::select! {
                event = next(&mut fetching) => event,
                part = come(&mut first) => {
                    first = None;
                    if let (Some(part), Some(to)) = (part, &object) {
                        // Of the whole one that reads it sends nothing to who takes its parts.
                        drop(fetching);
                        if let Some(whole) = self.gathered((&agent, &session), asked, early, to, part).await {
                            return Ok(Ok((whole, Source::Peer)));
                        }
                        fetching = session.fetch(Wanted::Key(asked.key.clone()), true, None).await?;
                    }
                    continue;
                }
            };
            let Some(event) = event else {
                match is_cut_off(&agent).await? {
                    Some(trouble) if reading.is_none() => return Ok(Err(trouble)),
                    _ => continue,
                }
            };
            match event {
                Ok(Some(Event::Waiting(waiting))) => {
                    if is_here(&agent, &waiting).await? {
                        (source, first) = (Source::Store, None);
                    }
                    object = Some(waiting);
                }
                Ok(Some(Event::Fill(_))) => {
                    (source, first) = (Source::Origin, None);
                    reading = Some(self.read(&session, asked.clone(), early));
                }
                Ok(Some(Event::Progress(at))) => {
                    first = None;
                    let is_worth = reading.is_none() && at.total >= FOLLOWED_LEN && !early.was_handed_out();
                    if let (true, None, Some(object)) = (is_worth, &following, &object) {
                        let task = follow(agent.clone(), object.clone(), asked.size, early.arrived.clone());
                        following = Some(Following(tokio::spawn(task).abort_handle()));
                    }
                }
                Ok(Some(Event::Object(object))) => {
                    return Ok(Ok((object, source)));
                }
                Ok(None) => return Err(ClientError::Lost("it has ended the call".into())),
                Err(error) => {
                    // What went wrong here says more than what others made of it.
                    return own_trouble(reading).await.map_or(Err(error), |trouble| Ok(Err(trouble)));
                }
            }
        }
    }

    /// The first part of a file that another host reads, if that comes in parts.
    fn first_part(&self, asked: &Asked, session: &Session) -> Option<FirstPart> {
        if !parts::is_parted(asked) || session.is_other_user() {
            return None;
        }
        let attempt = self.failures_of(&asked.key, |failures| failures.count);
        Some(Box::pin(parts::first(session.clone(), parts::first_key(asked, attempt))))
    }

    /// Puts a file together from its parts, where they come.
    async fn gathered(
        &self,
        (agent, session): (&AgentClient, &Session),
        asked: &Asked,
        early: &Early,
        to: &FetchWaiting,
        first: Object,
    ) -> Option<Object> {
        let attempt = self.failures_of(&asked.key, |failures| failures.count);
        let gathering = Gathering { agent, session, asked, attempt, early };
        match gathering.run(to, first).await {
            Ok(whole) => Some(whole),
            Err(why) => {
                tracing::info!("{}: not put together from parts: {why}", Printable(&asked.shown));
                self.leave(asked, early);
                None
            }
        }
    }

    /// The process as the agent knows it.
    async fn session(&self) -> Result<(AgentClient, Session), ClientError> {
        let mut known = self.session.lock().await;
        if let Some(known) = known.as_ref() {
            return Ok(known.clone());
        }
        let agent = AgentClient::connect(&self.agent).await?;
        let session = agent.register(AppId::default(), u64::from(std::process::id())).await?;
        Ok(known.insert((agent, session)).clone())
    }

    /// Begins to read a file from its origin for all who ask; gives where it says what has gone wrong.
    fn read(
        self: &Arc<Self>,
        session: &Session,
        asked: Asked,
        early: &Arc<Early>,
    ) -> watch::Receiver<Option<Trouble>> {
        let (sender, pieces) = mpsc::channel::<Piece>(PIECES_MAX);
        let given = self.give(session, &asked, early);
        let failed = Arc::new(watch::Sender::new(None));
        let trouble = failed.subscribe();
        let (files, reading, size) = (Arc::clone(self), Arc::clone(&failed), asked.size);
        let request = asked.request.clone();
        std::thread::spawn(move || {
            if let Err(trouble) = files.copy(&request, size, &sender, given) {
                reading.send_replace(Some(trouble.clone()));
                let _ = sender.blocking_send(Err(trouble.message));
            }
        });
        let session = session.clone();
        tokio::spawn(async move {
            let filled = session.fill(&asked.key, Some(size), &asked.name, pieces).await;
            if let Err(error) = filled {
                tracing::info!("{}: not read from its origin: {error}", Printable(&asked.shown));
                failed.send_modify(|known| *known = known.take().or(Some(in_words(&error))));
            }
        });
        trouble
    }

    /// Gives what is read to other hosts in parts, if it is long; gives the way to them.
    fn give(&self, session: &Session, asked: &Asked, early: &Arc<Early>) -> Option<mpsc::Sender<Vec<u8>>> {
        if !parts::is_parted(asked) || session.is_other_user() {
            return None;
        }
        let (given, read) = mpsc::channel(PIECES_MAX);
        let (session, asked, early) = (session.clone(), asked.clone(), Arc::clone(early));
        let attempt = self.failures_of(&asked.key, |failures| failures.count);
        tokio::spawn(Giving { session, asked, attempt, early }.run(read));
        Some(given)
    }

    fn copy(
        &self,
        request: &Request<Vec<u8>>,
        size: u64,
        pieces: &mpsc::Sender<Piece>,
        given: Option<mpsc::Sender<Vec<u8>>>,
    ) -> Result<(), Trouble> {
        read(request, size, |piece| {
            self.counts().read(piece.len() as u64);
            if let Some(given) = &given {
                // Parts end where they are of no use.
                let _ = given.blocking_send(piece.clone());
            }
            pieces.blocking_send(Ok(piece)).is_ok()
        })?;
        // These were all.
        let _ = pieces.blocking_send(Ok(Vec::new()));
        Ok(())
    }
}

/// Forgets that a file is on its way.
struct Forget {
    files: Arc<Files>,
    key: String,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.files.coming.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// The next event; `None` where it does not come for a while.
async fn next(fetching: &mut Fetching) -> Option<Result<Option<Event>, ClientError>> {
    tokio::time::timeout(LOOK_AFTER, fetching.next()).await.ok()
}

/// Tells which bytes of a file have come from another agent, and are those that it has. The last one is held
/// back until the agent has checked the digest of all.
async fn follow(
    agent: AgentClient,
    object: FetchWaiting,
    size: u64,
    arrived: watch::Sender<Option<Arrived>>,
) {
    let followed: Result<(), ClientError> = async {
        let app = convert::app_id(&object.app_id)?;
        let session = agent.register(app, u64::from(std::process::id())).await?;
        let mut watching = session.watch(DataId(object.data_id), &[], None).await?;
        let (mut here, mut path, mut open) = (RangeSet::new(), String::new(), None);
        while let Some(event) = watching.next().await? {
            for range in event.verified {
                here.insert(range.offset..range.offset + range.length);
            }
            if path != event.path {
                open = File::open(&event.path).ok().map(Arc::new);
                path = event.path;
            }
            if let Some(file) = &open {
                let stretches = Arc::new(vec![Stretch { kept: Kept::Open(Arc::clone(file)), begin: 0 }]);
                let until = here.first_missing(0).min(size - 1);
                arrived.send_replace(Some(Arrived { stretches, until, is_checked: true }));
            }
        }
        session.unregister().await
    }
    .await;
    if let Err(error) = followed {
        tracing::debug!(%error, "a file cannot be followed as it comes");
    }
}

/// Describes what has gone wrong where this process was told to read the file. The agent answers both of its
/// calls at the same time.
async fn own_trouble(reading: Option<watch::Receiver<Option<Trouble>>>) -> Option<Trouble> {
    let mut reading = reading?;
    let said = tokio::time::timeout(SAID_WITHIN, reading.wait_for(Option::is_some)).await.ok()?.ok()?;
    said.clone()
}

/// A first part that is waited for.
type FirstPart = Pin<Box<dyn Future<Output = Option<Object>> + Send>>;

async fn come(first: &mut Option<FirstPart>) -> Option<Object> {
    match first {
        Some(first) => first.await,
        None => std::future::pending().await,
    }
}

/// Compares a file with what clients have of it from a try that has failed.
async fn begins_so(early: &Arc<Early>, file: &Arc<File>) -> Result<(), Trouble> {
    let (early, file) = (Arc::clone(early), Arc::clone(file));
    let compared = tokio::task::spawn_blocking(move || early.is_beginning_of(&file)).await;
    match compared.map_err(io::Error::other).flatten() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Trouble::upstream("the bytes that came at first were not those of the file")),
        Err(error) => Err(Trouble::upstream(format!(
            "the bytes that came at first cannot be compared: {}",
            plain(&error)
        ))),
    }
}

/// Opens a file in the store: from then on it stays, even where it has to make room.
async fn opened(object: Object) -> Result<Arc<File>, Trouble> {
    let opening = tokio::task::spawn_blocking(move || File::open(&object.path));
    let file = opening.await.map_err(io::Error::other).flatten();
    file.map(Arc::new).map_err(|error| {
        let why = format!("the file cannot be read from the store: {}", plain(&error));
        Trouble::new(StatusCode::INTERNAL_SERVER_ERROR, why)
    })
}

/// Returns true if the object is on this host already.
async fn is_here(agent: &AgentClient, waiting: &FetchWaiting) -> Result<bool, ClientError> {
    let objects = agent.list(Some(convert::app_id(&waiting.app_id)?)).await?;
    Ok(objects.iter().any(|object| object.data_id == waiting.data_id && is_whole(object)))
}

fn is_whole(object: &Object) -> bool {
    matches!(object.state(), ObjectState::Added | ObjectState::Received)
}

/// Describes why nothing can come, where that is so.
async fn is_cut_off(agent: &AgentClient) -> Result<Option<Trouble>, ClientError> {
    let status = agent.status().await?;
    if status.manager_connected {
        return Ok(None);
    }
    let why = format!("the agent is not at its manager: {}", status.manager_error);
    Ok(Some(Trouble::new(StatusCode::SERVICE_UNAVAILABLE, why).again_after(AGAIN_S)))
}

/// The agent's refusal as an answer to a client.
fn in_words(error: &ClientError) -> Trouble {
    let status = match error.kind() {
        Some(Kind::StoreFull) => StatusCode::INSUFFICIENT_STORAGE,
        Some(Kind::OriginFailed | Kind::ObjectUnknown) => StatusCode::BAD_GATEWAY,
        Some(Kind::Full | Kind::ManagerUnreachable | Kind::NotJoined) | None => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Some(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    Trouble::new(status, error.to_string())
}
