//! Files in parts: what one host has read of a file is with the others while it reads on.
//!
//! The host that reads a file from its origin brings what has come as objects of their own, too, one after
//! the other. Hosts that wait for the file ask for these, put the file together, and compare its digest: it
//! is an object like any other then. Where no part comes they wait for the whole file, as for one of an agent
//! that gives none.
//!
//! The digest of a part is not known before, so that clients get bytes of parts only if they begin anew where
//! the whole turns out to be another file.

use crate::asked::Asked;
use crate::coming::{Arrived, Kept, Stretch};
use polycast_api::agent::fetch_event::Event;
use polycast_api::agent::{FetchWaiting, Object, ObjectKind};
use polycast_api::client::{AgentClient, ClientError, Fetching, Piece, Session, ToPut, Wanted};
use polycast_api::convert;
use polycast_types::{DataId, Duration as Span};
use ring::digest::{Context, SHA256};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// Files of this length and more, in bytes, are given in parts.
const PARTED_LEN: u64 = 16 << 20;
/// A part has so many bytes, and has come for so long, at least: it is sent with some 0.1 s of its own.
const PART_LEN: u64 = 8 << 20;
const PART_TIME: Duration = Duration::from_secs(1);
/// A part ends after this time, however short it is: those that wait hear nothing before that.
const PART_TIME_MAX: Duration = Duration::from_secs(5);
/// The whole file is waited for alone so long: another host may have it.
const PARTS_AFTER: Duration = Duration::from_millis(500);
/// Parts that are asked for ahead.
const AHEAD: usize = 2;
/// A file of which no further part comes for so long is waited for as a whole.
const PATIENCE: Duration = Duration::from_secs(15);
/// The longest time that a part may be waited for.
const WAIT_MAX: Span = Span::from_millis(86_400_000);
/// Time for the agent to say that this process is to bring a part.
const LEASE_WITHIN: Duration = Duration::from_secs(10);
/// A host that has read a file keeps its parts so long, for those that are late.
pub(crate) const LINGER: Duration = Duration::from_secs(30);
/// Pause before a part that is still on its way is removed, and how often that is tried.
const REMOVE_AGAIN: Duration = Duration::from_secs(2);
const REMOVALS_MAX: usize = 15;
/// Pieces on their way into the store.
const PIECES_MAX: usize = 8;
const PIECE_LEN: usize = 1 << 20;
/// Parts on their way into the store.
const FILLINGS_MAX: usize = 4;
/// The beginning of the names of all parts.
const NAME: &str = "polycast-part-";

/// Returns true if a file comes in parts.
pub(crate) fn is_parted(asked: &Asked) -> bool {
    asked.size >= PARTED_LEN && hex_of(asked).is_some()
}

/// The digits of the digest by which all of it is checked.
fn hex_of(asked: &Asked) -> Option<&str> {
    asked.key.strip_prefix("sha256:")
}

/// Key of a part. Parts of a try that has failed are not mixed with those of the next.
fn key_of(asked: &Asked, attempt: u32, number: u64) -> String {
    format!("part:{}/{attempt}/{number}", asked.key)
}

fn name_of(asked: &Asked, number: u64) -> String {
    format!("{NAME}{number}-{}", hex_of(asked).unwrap_or_default())
}

/// Parts of a file that are on this host, and what clients are told of them.
pub(crate) struct Early {
    pub arrived: watch::Sender<Option<Arrived>>,
    size: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Every one that has come.
    parts: Vec<Object>,
    /// Parts that clients have been told of.
    told: Arc<Vec<Stretch>>,
    until: u64,
    /// Set when they have not led to the file: clients hear of no more.
    is_left: bool,
}

impl Early {
    pub(crate) fn new(size: u64) -> Self {
        Early { arrived: watch::Sender::new(None), size, state: Mutex::default() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, part: Object, begin: u64) {
        let mut state = self.state();
        if !state.is_left {
            let kept = Kept::At(PathBuf::from(&part.path).into());
            Arc::make_mut(&mut state.told).push(Stretch { kept, begin });
            // The last byte waits for the digest of all.
            state.until = (begin + part.length).min(self.size - 1);
            let (stretches, until) = (Arc::clone(&state.told), state.until);
            self.arrived.send_replace(Some(Arrived { stretches, until, is_checked: false }));
        }
        state.parts.push(part);
    }

    /// Parts that have come so far belong to a try that has failed.
    pub(crate) fn leave(&self) {
        self.state().is_left = true;
    }

    /// Returns true if clients may have bytes that were not checked.
    pub(crate) fn was_handed_out(&self) -> bool {
        !self.state().told.is_empty()
    }

    /// Returns true if what clients may have of it already is how this file begins.
    pub(crate) fn is_beginning_of(&self, file: &File) -> io::Result<bool> {
        let (told, until, is_left) = {
            let state = self.state();
            (Arc::clone(&state.told), state.until, state.is_left)
        };
        if !is_left {
            return Ok(true);
        }
        let whole = Kept::Open(Arc::new(file.try_clone()?));
        for (number, stretch) in told.iter().enumerate() {
            let end = told.get(number + 1).map_or(until, |next| next.begin).min(until);
            for at in (stretch.begin..end).step_by(PIECE_LEN) {
                let len = (end - at).min(PIECE_LEN as u64);
                if stretch.kept.read(at - stretch.begin, len)? != whole.read(at, len)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Removes the parts from the store after this time.
    pub(crate) fn remove_after(&self, agent: &Path, pause: Duration) {
        let parts = std::mem::take(&mut self.state().parts);
        let agent = agent.to_path_buf();
        if !parts.is_empty() {
            tokio::spawn(async move {
                sleep(pause).await;
                if let Ok(agent) = AgentClient::connect(&agent).await {
                    for part in &parts {
                        remove(&agent, part).await;
                    }
                }
            });
        }
    }
}

async fn remove(agent: &AgentClient, part: &Object) {
    for _ in 0..REMOVALS_MAX {
        let removed: Result<(), ClientError> = async {
            let session = registered(agent, &part.app_id).await?;
            let removed = session.delete(DataId(part.data_id)).await;
            session.unregister().await?;
            removed
        }
        .await;
        match removed {
            Err(error) if error.kind() == Some(polycast_api::error::Kind::ObjectBusy) => {
                sleep(REMOVE_AGAIN).await;
            }
            _ => return,
        }
    }
}

/// Removes parts that an earlier process has left in the store.
pub(crate) async fn remove_left(agent: &Path, before: SystemTime) {
    let Ok(agent) = AgentClient::connect(agent).await else { return };
    let before = before.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_millis());
    let listed = agent.list(None).await.unwrap_or_default();
    let is_old = |part: &&Object| part.name.starts_with(NAME) && u128::from(part.since_unix_ms) < before;
    for part in listed.iter().filter(is_old) {
        remove(&agent, part).await;
    }
}

async fn registered(agent: &AgentClient, app: &[u8]) -> Result<Session, ClientError> {
    agent.register(convert::app_id(app)?, u64::from(std::process::id())).await
}

/// A wish that ends with this.
struct Wish(JoinHandle<Result<Object, ClientError>>);

impl Drop for Wish {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn wish(session: &Session, key: String) -> Wish {
    let session = session.clone();
    Wish(tokio::spawn(async move {
        let mut fetching = session.fetch(Wanted::Key(key), false, Some(WAIT_MAX)).await?;
        loop {
            match fetching.next().await? {
                Some(Event::Object(part)) => return Ok(part),
                Some(_) => {}
                None => return Err(ClientError::Lost("it has ended the call".into())),
            }
        }
    }))
}

/// Waits for the first part of a file that another host reads.
pub(crate) async fn first(session: Session, key: String) -> Option<Object> {
    sleep(PARTS_AFTER).await;
    let mut wish = wish(&session, key);
    (&mut wish.0).await.ok()?.ok()
}

/// The key of the first part.
pub(crate) fn first_key(asked: &Asked, attempt: u32) -> String {
    key_of(asked, attempt, 0)
}

/// A file that is put together from parts.
pub(crate) struct Gathering<'a> {
    pub agent: &'a AgentClient,
    pub session: &'a Session,
    pub asked: &'a Asked,
    pub attempt: u32,
    pub early: &'a Early,
}

impl Gathering<'_> {
    /// Puts the file into the store, beginning with this part.
    ///
    /// # Errors
    /// No further part comes, or they make another file.
    pub(crate) async fn run(&self, to: &FetchWaiting, first: Object) -> Result<Object, String> {
        let said = |error: ClientError| error.to_string();
        let own = registered(self.agent, &to.app_id).await.map_err(said)?;
        let (pieces, incoming) = mpsc::channel(PIECES_MAX);
        let (session, data, asked) = (own.clone(), DataId(to.data_id), self.asked);
        let what = ToPut {
            name: asked.name.clone(),
            kind: ObjectKind::File,
            length: asked.size,
            mode: 0,
            modified: None,
            private: false,
        };
        let put = tokio::spawn(async move { session.put(data, what, incoming).await });
        let passed = self.pass_all(first, &pieces).await;
        if let Err(why) = &passed {
            let _ = pieces.send(Err(why.clone())).await;
        }
        drop(pieces);
        let put = put.await.map_err(|error| error.to_string())?;
        let _ = own.unregister().await;
        passed.and_then(|()| put.map_err(said))
    }

    async fn pass_all(&self, first: Object, pieces: &mpsc::Sender<Piece>) -> Result<(), String> {
        let key = |number| key_of(self.asked, self.attempt, number);
        let (mut sum, mut at, mut part) = (Context::new(&SHA256), 0, first);
        let mut ahead = VecDeque::new();
        for number in 1.. {
            while ahead.len() < AHEAD {
                ahead.push_back(wish(self.session, key(number + ahead.len() as u64)));
            }
            self.early.add(part.clone(), at);
            at += part.length;
            let (path, to) = (PathBuf::from(&part.path), pieces.clone());
            let passing = tokio::task::spawn_blocking(move || pass(&path, sum, &to));
            sum = passing.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
            if at >= self.asked.size {
                break;
            }
            let Some(mut next) = ahead.pop_front() else { break };
            let late = |_| format!("no part has come for {} s", PATIENCE.as_secs());
            let next = timeout(PATIENCE, &mut next.0).await.map_err(late)?;
            part = next.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        }
        let found: String = sum.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        if at != self.asked.size || Some(&*found) != hex_of(self.asked) {
            return Err(format!("the parts make {at} bytes with the SHA-256 {found}"));
        }
        // These were all.
        pieces.send(Ok(Vec::new())).await.map_err(|_| "the store takes no more".to_string())
    }
}

fn pass(path: &Path, mut sum: Context, to: &mpsc::Sender<Piece>) -> io::Result<Context> {
    let mut part = File::open(path)?;
    loop {
        let mut piece = Vec::with_capacity(PIECE_LEN);
        part.by_ref().take(PIECE_LEN as u64).read_to_end(&mut piece)?;
        if piece.is_empty() {
            return Ok(sum);
        }
        sum.update(&piece);
        to.blocking_send(Ok(piece)).map_err(|_| io::Error::other("the store takes no more"))?;
    }
}

/// A file that this host reads from its origin, brought in parts for the others.
pub(crate) struct Giving {
    pub session: Session,
    pub asked: Asked,
    pub attempt: u32,
    pub early: Arc<Early>,
}

/// A part that is on its way into the store.
struct Filling {
    begin: u64,
    fill: JoinHandle<Result<Object, ClientError>>,
}

/// The word that this process is to bring a part.
type Lease = JoinHandle<Result<Option<Fetching>, ClientError>>;

impl Giving {
    /// Brings what is read, until it ends. Where that fails the others wait for the whole file.
    pub(crate) async fn run(self, mut read: mpsc::Receiver<Vec<u8>>) {
        let (filling, mut filled) = mpsc::channel::<Filling>(FILLINGS_MAX);
        let early = Arc::clone(&self.early);
        // What is read does not wait until a part has been entered into the store.
        let entering = tokio::spawn(async move {
            while let Some(Filling { begin, fill }) = filled.recv().await {
                match fill.await {
                    Ok(Ok(part)) => early.add(part, begin),
                    _ => return,
                }
            }
        });
        if let Err(error) = self.give(&mut read, &filling).await {
            tracing::debug!(%error, "no more parts of a file are given");
        }
        // What reads the file ends its parts with that, too.
        drop((read, filling));
        let _ = entering.await;
    }

    async fn give(
        &self,
        read: &mut mpsc::Receiver<Vec<u8>>,
        filling: &mpsc::Sender<Filling>,
    ) -> Result<(), ClientError> {
        let mut begin = 0;
        let mut lease = self.lease(0);
        for number in 0.. {
            let Some(first) = read.recv().await else { return Ok(()) };
            let lost = |error: tokio::task::JoinError| ClientError::Lost(error.to_string());
            let Some(fetching) = (&mut lease).await.map_err(lost)?? else { return Ok(()) };
            // The next one is asked for meanwhile.
            lease = self.lease(number + 1);
            let (pieces, incoming) = mpsc::channel(PIECES_MAX);
            let (session, name) = (self.session.clone(), name_of(&self.asked, number));
            let key = key_of(&self.asked, self.attempt, number);
            let fill = tokio::spawn(async move {
                let filled = session.fill(&key, None, &name, incoming).await;
                drop(fetching);
                filled
            });
            let Some(len) = self.pass(begin, first, read, &pieces).await else { return Ok(()) };
            if filling.send(Filling { begin, fill }).await.is_err() {
                return Ok(());
            }
            begin += len;
        }
        Ok(())
    }

    /// Passes on one part; gives its length, or nothing where the rest does not come.
    async fn pass(
        &self,
        begin: u64,
        mut piece: Vec<u8>,
        read: &mut mpsc::Receiver<Vec<u8>>,
        pieces: &mpsc::Sender<Piece>,
    ) -> Option<u64> {
        let (began, mut len) = (Instant::now(), 0);
        loop {
            len += piece.len() as u64;
            pieces.send(Ok(piece)).await.ok()?;
            let (is_last, time) = (begin + len >= self.asked.size, began.elapsed());
            // One part alone would be there no sooner than the whole.
            let is_half = begin == 0 && len >= self.asked.size / 2;
            if is_last || is_half || len >= PART_LEN && time >= PART_TIME || time >= PART_TIME_MAX {
                pieces.send(Ok(Vec::new())).await.ok()?;
                return Some(len);
            }
            piece = read.recv().await?;
        }
    }

    /// Asks to be the one that brings a part; what is here already is another's.
    fn lease(&self, number: u64) -> Lease {
        let (session, key) = (self.session.clone(), key_of(&self.asked, self.attempt, number));
        tokio::spawn(async move {
            let mut fetching = session.fetch(Wanted::Key(key), true, None).await?;
            let told = async {
                loop {
                    match fetching.next().await? {
                        Some(Event::Fill(_)) => return Ok::<_, ClientError>(true),
                        Some(Event::Object(_)) | None => return Ok(false),
                        Some(_) => {}
                    }
                }
            };
            let told = timeout(LEASE_WITHIN, told).await.unwrap_or(Ok(false))?;
            Ok(told.then_some(fetching))
        })
    }
}
