//! Files of the hub in the agent's store: there already, from another agent, or read here for all.

use crate::counts::{Counts, Source};
use crate::trouble::Trouble;
use crate::upstream::{Meta, Upstream};
use axum::http::{HeaderValue, Method, Request, StatusCode};
use polycast_api::agent::fetch_event::Event;
use polycast_api::agent::{FetchWaiting, ObjectState};
use polycast_api::client::{AgentClient, ClientError, Piece, Session, Wanted};
use polycast_api::convert;
use polycast_api::error::Kind;
use polycast_types::{AppId, Printable};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex as Turn, Semaphore, mpsc, watch};

/// Files that are asked for at a time; the agent's door has places for 200 calls, and a file takes two.
const FILES_MAX: usize = 64;
/// Pieces that are read ahead.
const PIECES_MAX: usize = 8;
/// Time without news of a file after which the agent is asked whether any can come.
const LOOK_AFTER: Duration = Duration::from_secs(15);
/// A client that cannot be served now may ask again after so many seconds.
const AGAIN_S: u32 = 10;

/// A file that a client may have.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// `org/model file`.
    pub shown: String,
    /// The file's path at the hub.
    pub path: String,
    pub meta: Meta,
    pub token: Option<HeaderValue>,
}

/// A file that is here.
#[derive(Clone, Debug)]
pub(crate) struct Here {
    pub path: PathBuf,
    pub source: Source,
}

type Outcome = Result<Here, Trouble>;

/// The agent, as far as it keeps files of the hub.
pub(crate) struct Files {
    agent: PathBuf,
    session: Turn<Option<(AgentClient, Session)>>,
    upstream: Arc<Upstream>,
    counts: Arc<Counts>,
    /// Files that are on their way, by their keys.
    coming: Mutex<HashMap<String, watch::Receiver<Option<Outcome>>>>,
    places: Semaphore,
}

impl Files {
    pub(crate) fn new(agent: &Path, upstream: Arc<Upstream>, counts: Arc<Counts>) -> Self {
        Files {
            agent: agent.to_path_buf(),
            session: Turn::new(None),
            upstream,
            counts,
            coming: Mutex::default(),
            places: Semaphore::new(FILES_MAX),
        }
    }

    /// Waits until the file is here and verified. If this is dropped the file still comes.
    pub(crate) async fn get(self: &Arc<Self>, asked: Asked) -> Outcome {
        let mut outcome = self.begin(asked);
        let gone = || Trouble::new(StatusCode::INTERNAL_SERVER_ERROR, "what was to get it has gone");
        let here = outcome.wait_for(Option::is_some).await.map_err(|_| gone())?;
        here.clone().unwrap_or_else(|| Err(gone()))
    }

    fn begin(self: &Arc<Self>, asked: Asked) -> watch::Receiver<Option<Outcome>> {
        let key = asked.meta.key();
        let mut coming = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outcome) = coming.get(&key) {
            return outcome.clone();
        }
        let (sender, outcome) = watch::channel(None);
        coming.insert(key.clone(), outcome.clone());
        let files = Arc::clone(self);
        tokio::spawn(async move {
            let forget = Forget { files: Arc::clone(&files), key };
            // The semaphore is never closed.
            let _place = files.places.acquire().await;
            let outcome = files.bring(&asked).await;
            // Those that ask from now on ask anew.
            drop(forget);
            let _ = sender.send(Some(outcome));
        });
        outcome
    }

    /// Gets the file into the store, and says in the log how.
    async fn bring(self: &Arc<Self>, asked: &Asked) -> Outcome {
        let began = Instant::now();
        let mut outcome = self.fetch(asked).await;
        if let Err(ClientError::Lost(_) | ClientError::Unreachable { .. }) = &outcome {
            // The agent has begun anew, perhaps.
            *self.session.lock().await = None;
            outcome = self.fetch(asked).await;
        }
        let outcome = outcome.map_err(|error| in_words(&error))?;
        match &outcome {
            Ok(here) => {
                let (bytes, seconds) = (asked.meta.size, began.elapsed().as_secs_f64());
                tracing::info!(target: "polycast::done", bytes, seconds = format!("{seconds:.2}"), "{}: {}",
                    Printable(&asked.shown), here.source.name());
                self.counts.answered(here.source);
            }
            Err(_) => self.counts.failed(),
        }
        outcome
    }

    async fn fetch(self: &Arc<Self>, asked: &Asked) -> Result<Outcome, ClientError> {
        let (agent, session) = self.session().await?;
        let mut fetching = session.fetch(Wanted::Key(asked.meta.key()), true, None).await?;
        let (mut source, mut reading) = (Source::Peer, None);
        loop {
            let event = match tokio::time::timeout(LOOK_AFTER, fetching.next()).await {
                Ok(event) => event,
                Err(_) if reading.is_some() => continue,
                Err(_) => match is_cut_off(&agent).await? {
                    Some(trouble) => return Ok(Err(trouble)),
                    None => continue,
                },
            };
            match event {
                Ok(Some(Event::Waiting(waiting))) if is_here(&agent, &waiting).await? => {
                    source = Source::Store
                }
                Ok(Some(Event::Waiting(_) | Event::Progress(_))) => {}
                Ok(Some(Event::Fill(_))) => {
                    source = Source::Origin;
                    reading = Some(self.read(&session, asked.clone()));
                }
                Ok(Some(Event::Object(object))) => {
                    return Ok(Ok(Here { path: object.path.into(), source }));
                }
                Ok(None) => return Err(ClientError::Lost("it has ended the call".into())),
                Err(error) => {
                    // What went wrong here says more than what others made of it.
                    let own = reading.and_then(|reading| reading.borrow().clone());
                    return own.map_or(Err(error), |trouble| Ok(Err(trouble)));
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

    /// Begins to read a file from the hub for all who ask; gives where it says what has gone wrong.
    fn read(self: &Arc<Self>, session: &Session, asked: Asked) -> watch::Receiver<Option<Trouble>> {
        let (sender, pieces) = mpsc::channel::<Piece>(PIECES_MAX);
        let (failed, trouble) = watch::channel(None);
        let failed = Arc::new(failed);
        let request = self.upstream.request(Method::GET, &asked.path, asked.token.as_ref());
        let (files, reading, size) = (Arc::clone(self), Arc::clone(&failed), asked.meta.size);
        std::thread::spawn(move || {
            if let Err(trouble) = request.and_then(|request| files.copy(&request, size, &sender)) {
                reading.send_replace(Some(trouble.clone()));
                let _ = sender.blocking_send(Err(trouble.message));
            }
        });
        let session = session.clone();
        tokio::spawn(async move {
            let name = asked.path.rsplit('/').next().unwrap_or_default().to_string();
            let filled = session.fill(&asked.meta.key(), Some(size), &name, pieces).await;
            if let Err(error) = filled {
                tracing::info!("{}: not read from the hub: {error}", Printable(&asked.shown));
                let said = Trouble::upstream(format!("the hub's bytes are not taken: {error}"));
                failed.send_modify(|known| *known = known.take().or(Some(said)));
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
        self.upstream.read(request, size, |piece| {
            self.counts.read(piece.len() as u64);
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
