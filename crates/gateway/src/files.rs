//! Files of other servers in the agent's store: there already, from another agent, or read here for all.

use crate::coming::{Arrived, Coming, Outcome};
use crate::counts::{Counts, CountsOf, Source};
use crate::trouble::Trouble;
use crate::upstream::read;
use axum::http::{Request, StatusCode};
use polycast_api::agent::fetch_event::Event;
use polycast_api::agent::{FetchWaiting, Object, ObjectState};
use polycast_api::client::{AgentClient, ClientError, Fetching, Piece, Session, Wanted};
use polycast_api::convert;
use polycast_api::error::{Kind, plain};
use polycast_types::{AppId, DataId, Printable, RangeSet};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex as Turn, Semaphore, mpsc, watch};
use tokio::task::AbortHandle;

/// Files that are asked for at a time; the agent's door has places for 200 calls, and a file takes three.
const FILES_MAX: usize = 60;
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

/// A file that a client may have.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// `org/model file`.
    pub shown: String,
    /// Name that a copy gets.
    pub name: String,
    /// The key by which agents know it.
    pub key: String,
    pub size: u64,
    /// The question by which its bytes are got from its origin.
    pub request: Request<Vec<u8>>,
}

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
    places: Semaphore,
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
            places: Semaphore::new(FILES_MAX),
        }
    }

    fn counts(&self) -> &CountsOf {
        match self.endpoint {
            Endpoint::Hub => &self.counts.hub,
            Endpoint::Images => &self.counts.images,
        }
    }

    /// Has the file come, for all that ask for it now. It comes also where none of them waits any more.
    pub(crate) fn get(self: &Arc<Self>, asked: Asked) -> Coming {
        let key = asked.key.clone();
        let mut coming = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(coming) = coming.get(&key) {
            return coming.clone();
        }
        let (arrived, outcome) = (watch::Sender::new(None), watch::Sender::new(None));
        let one = Coming { arrived: arrived.subscribe(), outcome: outcome.subscribe() };
        coming.insert(key.clone(), one.clone());
        let files = Arc::clone(self);
        tokio::spawn(async move {
            let forget = Forget { files: Arc::clone(&files), key };
            // The semaphore is never closed.
            let _place = files.places.acquire().await;
            let came = files.bring(&asked, &arrived).await;
            // Those that ask from now on ask anew.
            drop(forget);
            outcome.send_replace(Some(came));
        });
        one
    }

    /// Gets the file into the store, and says in the log how.
    async fn bring(self: &Arc<Self>, asked: &Asked, arrived: &watch::Sender<Option<Arrived>>) -> Outcome {
        let began = Instant::now();
        let outcome = match self.object_telling(asked, arrived).await {
            Ok((object, source)) => opened(object).await.map(|file| (file, source)),
            Err(trouble) => Err(trouble),
        };
        match outcome {
            Ok((file, source)) => {
                let (bytes, seconds) = (asked.size, began.elapsed().as_secs_f64());
                tracing::info!(target: "polycast::done", bytes, seconds = format!("{seconds:.2}"), "{}: {}",
                    Printable(&asked.shown), source.name());
                self.counts().answered(source);
                Ok(file)
            }
            Err(trouble) => {
                self.counts().failed();
                Err(trouble)
            }
        }
    }

    /// Gets the file into the store.
    pub(crate) async fn object(self: &Arc<Self>, asked: &Asked) -> Result<(Object, Source), Trouble> {
        self.object_telling(asked, &watch::Sender::new(None)).await
    }

    async fn object_telling(
        self: &Arc<Self>,
        asked: &Asked,
        arrived: &watch::Sender<Option<Arrived>>,
    ) -> Result<(Object, Source), Trouble> {
        let mut outcome = self.fetch(asked, arrived).await;
        if let Err(error) = &outcome {
            match error.kind() {
                // Others could not read it, or an earlier try here; this one has not been told to yet.
                Some(Kind::OriginFailed | Kind::ObjectUnknown) => {}
                // The agent has begun anew, perhaps.
                None => *self.session.lock().await = None,
                Some(_) => return outcome.map_err(|error| in_words(&error)).flatten(),
            }
            outcome = self.fetch(asked, arrived).await;
        }
        outcome.map_err(|error| in_words(&error)).flatten()
    }

    async fn fetch(
        self: &Arc<Self>,
        asked: &Asked,
        arrived: &watch::Sender<Option<Arrived>>,
    ) -> Result<Result<(Object, Source), Trouble>, ClientError> {
        let (agent, session) = self.session().await?;
        let mut fetching = session.fetch(Wanted::Key(asked.key.clone()), true, None).await?;
        let (mut source, mut reading, mut following) = (Source::Peer, None, None);
        let mut object = None;
        loop {
            let Some(event) = next(&mut fetching).await else {
                match is_cut_off(&agent).await? {
                    Some(trouble) if reading.is_none() => return Ok(Err(trouble)),
                    _ => continue,
                }
            };
            match event {
                Ok(Some(Event::Waiting(waiting))) => {
                    if is_here(&agent, &waiting).await? {
                        source = Source::Store;
                    }
                    object = Some(waiting);
                }
                Ok(Some(Event::Fill(_))) => {
                    source = Source::Origin;
                    reading = Some(self.read(&session, asked.clone()));
                }
                Ok(Some(Event::Progress(at))) => {
                    let is_worth = reading.is_none() && at.total >= FOLLOWED_LEN;
                    if let (true, None, Some(object)) = (is_worth, &following, &object) {
                        let task = follow(agent.clone(), object.clone(), asked.size, arrived.clone());
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
    fn read(self: &Arc<Self>, session: &Session, asked: Asked) -> watch::Receiver<Option<Trouble>> {
        let (sender, pieces) = mpsc::channel::<Piece>(PIECES_MAX);
        let failed = Arc::new(watch::Sender::new(None));
        let trouble = failed.subscribe();
        let (files, reading, size) = (Arc::clone(self), Arc::clone(&failed), asked.size);
        let request = asked.request.clone();
        std::thread::spawn(move || {
            if let Err(trouble) = files.copy(&request, size, &sender) {
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

    fn copy(
        &self,
        request: &Request<Vec<u8>>,
        size: u64,
        pieces: &mpsc::Sender<Piece>,
    ) -> Result<(), Trouble> {
        read(request, size, |piece| {
            self.counts().read(piece.len() as u64);
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
                let one = Arrived { file: Arc::clone(file), until: here.first_missing(0).min(size - 1) };
                arrived.send_replace(Some(one));
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
    let is_whole = |state| matches!(state, ObjectState::Added | ObjectState::Received);
    Ok(objects.iter().any(|object| object.data_id == waiting.data_id && is_whole(object.state())))
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
