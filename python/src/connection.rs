//! A registered process at the agent, and its transfers.

use crate::runtime::{spawn, wait};
use crate::values;
use polycast_api::agent::Object;
use polycast_api::client::{
    AgentClient, ClientError, Piece, Receivers, Selected, SendOptions, Session, Slow, Wait, Wanted,
    default_socket as usual_socket,
};
use polycast_api::error::Kind;
use polycast_types::{AppId, DataId, Duration};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Mutex as Turn, Notify, mpsc};
use tokio::task::JoinHandle;

/// Pieces of an object that wait for the agent.
const PIECES_MAX: usize = 4;

/// A connection to the agent, with the process that made it: one that was forked connects again.
#[pyclass(frozen, module = "polycast._native")]
pub struct Connection {
    socket: PathBuf,
    app: AppId,
    inner: Mutex<Option<(u32, AgentClient, Session)>>,
}

/// Events of a call, in the process that began it. Letting go of them, or `cancel`, ends the call.
struct Events<T> {
    process: u32,
    events: Arc<Turn<Option<T>>>,
    cancelled: Arc<Notify>,
}

/// A call that gives one event after the other.
trait Source: Send + 'static {
    type Event: Send;

    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Event>, ClientError>> + Send;
}

impl<T: Source> Events<T> {
    fn new(events: T) -> Self {
        Events {
            process: std::process::id(),
            events: Arc::new(Turn::new(Some(events))),
            cancelled: Arc::default(),
        }
    }

    /// The next event; `None` after the last one. Raises `TimedOut` when none comes in time.
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<T::Event>> {
        if self.process != std::process::id() {
            return Err(values::raise(py, "invalid", "the call belongs to the process that was forked"));
        }
        let timeout = timeout.map(|seconds| span(py, seconds)).transpose()?;
        let (events, cancelled) = (Arc::clone(&self.events), Arc::clone(&self.cancelled));
        let next = async move {
            let mut events = events.lock().await;
            let Some(source) = events.as_mut() else { return Ok(None) };
            let outcome = tokio::select! {
                event = source.next() => event,
                () = cancelled.notified() => {
                    *events = None;
                    return Ok(None);
                }
            };
            if !matches!(outcome, Ok(Some(_))) {
                *events = None;
            }
            outcome
        };
        let limited = async move {
            match timeout {
                None => Some(next.await),
                Some(timeout) => tokio::time::timeout(timeout.into(), next).await.ok(),
            }
        };
        match wait(py, limited)? {
            // The package knows by these words that nothing has ended.
            None => Err(values::raise(py, "timed-out", "nothing has come in this time")),
            Some(outcome) => outcome.map_err(|error| values::error(py, &error)),
        }
    }

    fn cancel(&self) {
        // One permit stays for a call that comes.
        self.cancelled.notify_one();
        if let Ok(mut events) = self.events.try_lock() {
            *events = None;
        }
    }
}

impl Source for polycast_api::client::Sending {
    type Event = polycast_api::agent::send_event::Event;

    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Event>, ClientError>> + Send {
        polycast_api::client::Sending::next(self)
    }
}

impl Source for polycast_api::client::Fetching {
    type Event = polycast_api::agent::fetch_event::Event;

    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Event>, ClientError>> + Send {
        polycast_api::client::Fetching::next(self)
    }
}

impl Source for polycast_api::client::Versions {
    type Event = polycast_api::agent::TopicEvent;

    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Event>, ClientError>> + Send {
        polycast_api::client::Versions::next(self)
    }
}

impl Source for polycast_api::client::Watching {
    type Event = polycast_api::agent::WatchEvent;

    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Event>, ClientError>> + Send {
        polycast_api::client::Watching::next(self)
    }
}

impl Source for polycast_api::client::Files {
    type Event = polycast_api::agent::FilesEvent;

    fn next(&mut self) -> impl Future<Output = Result<Option<Self::Event>, ClientError>> + Send {
        polycast_api::client::Files::next(self)
    }
}

/// A transfer that is watched. Letting go of it, or `cancel`, ends the transfer unless others watch it.
#[pyclass(frozen, module = "polycast._native")]
pub struct Sending {
    name: String,
    events: Events<polycast_api::client::Sending>,
}

/// An object that was asked for.
#[pyclass(frozen, module = "polycast._native")]
pub struct Fetching(Events<polycast_api::client::Fetching>);

/// The versions of a topic.
#[pyclass(frozen, module = "polycast._native")]
pub struct Versions(Events<polycast_api::client::Versions>);

/// The verified bytes of an object, as they come.
#[pyclass(frozen, module = "polycast._native")]
pub struct Watching(Events<polycast_api::client::Watching>);

/// The files of a set, as they come.
#[pyclass(frozen, module = "polycast._native")]
pub struct Files(Events<polycast_api::client::Files>);

/// An object whose bytes are brought from elsewhere.
#[pyclass(frozen, module = "polycast._native")]
pub struct Filling {
    pieces: Mutex<Option<mpsc::Sender<Piece>>>,
    filled: Turn<Option<JoinHandle<Result<Object, ClientError>>>>,
}

/// Ends a call that waits in another thread.
#[pyclass(frozen, module = "polycast._native")]
#[derive(Default)]
pub struct Cancel {
    asked: Arc<Notify>,
}

#[pymethods]
impl Cancel {
    #[new]
    fn new() -> Self {
        Cancel::default()
    }

    /// Ends the call, also one that begins later.
    fn set(&self) {
        self.asked.notify_one();
    }
}

/// Returns the path where the agent of this user listens unless told otherwise.
#[pyfunction]
pub fn default_socket() -> PathBuf {
    usual_socket()
}

impl Connection {
    /// The session of this process.
    fn session(&self, py: Python<'_>) -> PyResult<(AgentClient, Session)> {
        let own = std::process::id();
        {
            let held = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((process, client, session)) = &*held
                && *process == own
            {
                return Ok((client.clone(), session.clone()));
            }
        }
        self.register(py, own)
    }

    /// Makes a session of this process, which takes the place of the one before.
    fn register(&self, py: Python<'_>, own: u32) -> PyResult<(AgentClient, Session)> {
        let (socket, app) = (self.socket.clone(), self.app);
        let made = wait(py, async move {
            let client = AgentClient::connect(&socket).await?;
            let session = client.register(app, a_number(own)).await?;
            Ok::<_, ClientError>((client, session))
        })?;
        let (client, session) = made.map_err(|error| values::error(py, &error))?;
        let mut held = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let before = held.replace((own, client.clone(), session.clone()));
        if before.as_ref().is_some_and(|(process, ..)| *process != own) {
            // The parent's connection belongs to threads that are not here.
            std::mem::forget(before);
        }
        Ok((client, session))
    }

    /// Does work with the session. An agent that has begun anew knows no process: then this one registers,
    /// and the work is done again.
    fn call<T: Send>(&self, py: Python<'_>, work: impl AsyncFnOnceSend<T> + Clone) -> PyResult<T> {
        self.call_until(py, None, work)
    }

    /// The same, until the caller cancels it.
    fn call_until<T: Send>(
        &self,
        py: Python<'_>,
        cancel: Option<&Cancel>,
        work: impl AsyncFnOnceSend<T> + Clone,
    ) -> PyResult<T> {
        let (_, session) = self.session(py)?;
        match self.attempt(py, cancel, work.clone().run(session))? {
            Err(error) if error.kind() == Some(Kind::NotRegistered) => {
                let (_, session) = self.register(py, std::process::id())?;
                self.attempt(py, cancel, work.run(session))?.map_err(|error| values::error(py, &error))
            }
            done => done.map_err(|error| values::error(py, &error)),
        }
    }

    fn attempt<T: Send>(
        &self,
        py: Python<'_>,
        cancel: Option<&Cancel>,
        work: impl Future<Output = Result<T, ClientError>> + Send,
    ) -> PyResult<Result<T, ClientError>> {
        let cancelled = cancel.map(|cancel| Arc::clone(&cancel.asked));
        let asked = async {
            match cancelled {
                Some(cancelled) => cancelled.notified().await,
                None => std::future::pending().await,
            }
        };
        let limited = async {
            tokio::select! {
                done = work => Some(done),
                () = asked => None,
            }
        };
        match wait(py, limited)? {
            Some(done) => Ok(done),
            None => Err(values::raise(py, "cancelled", "the call was cancelled")),
        }
    }
}

/// Work with a session. (A closure that returns a future that is `Send`.)
trait AsyncFnOnceSend<T> {
    fn run(self, session: Session) -> impl Future<Output = Result<T, ClientError>> + Send;
}

impl<T, F, R> AsyncFnOnceSend<T> for F
where
    F: FnOnce(Session) -> R,
    R: Future<Output = Result<T, ClientError>> + Send,
{
    fn run(self, session: Session) -> impl Future<Output = Result<T, ClientError>> + Send {
        self(session)
    }
}

/// A number that no other connection of the application has: neither of this process, nor of one in another
/// container that has the same number there.
fn a_number(process: u32) -> u64 {
    static MADE: AtomicU64 = AtomicU64::new(0);
    RandomState::new().hash_one((process, MADE.fetch_add(1, Ordering::Relaxed)))
}

/// An object's number.
#[derive(Clone, Copy)]
struct Number(u64);

impl FromPyObject<'_, '_> for Number {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let outside = |error: PyErr| match error.is_instance_of::<PyOverflowError>(given.py()) {
            true => {
                let said = format!("{} is no number of an object: those are from 0 to 2**64 - 1", &*given);
                values::raise(given.py(), "invalid", &said)
            }
            false => error,
        };
        given.extract().map(Number).map_err(outside)
    }
}

/// Seconds as Python has them.
fn span(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    if !seconds.is_finite() || seconds < 0.0 {
        let said = format!("{seconds} is no time in seconds: give None for no limit");
        return Err(values::raise(py, "invalid", &said));
    }
    Ok(Duration::from_nanos((seconds * 1e9).min(u64::MAX as f64) as u64))
}

#[pymethods]
impl Connection {
    #[new]
    fn new(py: Python<'_>, socket: PathBuf, app: [u8; 16]) -> PyResult<Self> {
        let made = Connection { socket, app: AppId(app), inner: Mutex::new(None) };
        made.session(py)?;
        Ok(made)
    }

    fn agent_name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.session(py)?.1.agent_name().to_string())
    }

    #[expect(clippy::too_many_arguments, reason = "Python's keywords")]
    fn add(
        &self,
        py: Python<'_>,
        data: Number,
        paths: Vec<PathBuf>,
        name: String,
        exclude: Vec<String>,
        files: bool,
        follow: bool,
    ) -> PyResult<String> {
        let added = self.call(py, |session: Session| async move {
            let selected = Selected { exclude, follow, ..Selected::default() };
            match files {
                true => session.add_set(DataId(data.0), &paths, &name, &selected).await,
                false => session.add_all(DataId(data.0), &paths, &name, &selected).await,
            }
        })?;
        Ok(values::object(&added).to_string())
    }

    #[pyo3(signature = (data, timeout, known_only, cancel=None))]
    fn read(
        &self,
        py: Python<'_>,
        data: Number,
        timeout: Option<f64>,
        known_only: bool,
        cancel: Option<&Cancel>,
    ) -> PyResult<String> {
        let timeout = timeout.map(|seconds| span(py, seconds)).transpose()?;
        let until = if known_only { Wait::WhileComing(timeout) } else { Wait::UntilReady(timeout) };
        let read = self.call_until(py, cancel, |session: Session| async move {
            session.read(DataId(data.0), until).await
        })?;
        Ok(values::object(&read).to_string())
    }

    fn delete(&self, py: Python<'_>, data: Number) -> PyResult<()> {
        self.call(py, |session: Session| async move { session.delete(DataId(data.0)).await })
    }

    fn withdraw(&self, py: Python<'_>, data: Number) -> PyResult<()> {
        self.call(py, |session: Session| async move { session.withdraw(DataId(data.0)).await })
    }

    /// The objects of the application here.
    fn objects(&self, py: Python<'_>, all: bool) -> PyResult<Vec<String>> {
        let (client, _) = self.session(py)?;
        let app = (!all).then_some(self.app);
        let listed = wait(py, async move { client.list(app).await })?;
        let listed = listed.map_err(|error| values::error(py, &error))?;
        Ok(listed.iter().map(|object| values::object(object).to_string()).collect())
    }

    fn status(&self, py: Python<'_>) -> PyResult<String> {
        let (client, _) = self.session(py)?;
        let status = wait(py, async move { client.status().await })?;
        Ok(values::status(&status.map_err(|error| values::error(py, &error))?).to_string())
    }

    /// Removes an object at other agents (`None`: all), and gives the agents that still have it, and why.
    fn remove(&self, py: Python<'_>, data: Number, at: Option<Vec<String>>) -> PyResult<Vec<(String, String)>> {
        let at = at.map_or(Receivers::All, Receivers::Named);
        let removed = self.call(py, |session: Session| async move {
            session.remove(&at, &[DataId(data.0)], &[], None).await
        })?;
        let failed = removed.removed.into_iter().filter(|one| !one.error.is_empty());
        let failed = failed.map(|one| (one.agent, one.error));
        let silent = removed.silent.into_iter().map(|name| (name, "it did not answer in time".to_string()));
        let absent =
            removed.absent.into_iter().map(|name| (name, "it is not at the manager now".to_string()));
        Ok(failed.chain(silent).chain(absent).collect())
    }

    #[expect(clippy::too_many_arguments, reason = "Python's keywords")]
    fn send(
        &self,
        py: Python<'_>,
        data: Number,
        name: String,
        to: Option<Vec<String>>,
        deadline: Option<f64>,
        slow: &str,
        detached: bool,
    ) -> PyResult<Sending> {
        let to = to.map_or(Receivers::All, Receivers::Named);
        let slow = match slow {
            "wait" => Slow::Wait,
            "drop" => Slow::Drop { after: None },
            "catch-up" => Slow::CatchUp { after: None },
            other => {
                let said = format!("'{other}' is no way to treat slow receivers: wait, drop or catch-up");
                return Err(values::raise(py, "invalid", &said));
            }
        };
        let deadline = deadline.map(|seconds| span(py, seconds)).transpose()?;
        let options = SendOptions { deadline, slow: Some(slow), detached, ..SendOptions::default() };
        let events =
            self.call(py, |session: Session| async move { session.send(DataId(data.0), &to, &options).await })?;
        Ok(Sending { name, events: Events::new(events) })
    }

    /// Asks for an object by its key or its number.
    fn fetch(
        &self,
        py: Python<'_>,
        key: Option<String>,
        data: Number,
        can_fill: bool,
        deadline: Option<f64>,
    ) -> PyResult<Fetching> {
        let wanted = key.map_or(Wanted::Id(DataId(data.0)), Wanted::Key);
        let deadline = deadline.map(|seconds| span(py, seconds)).transpose()?;
        let events =
            self.call(py, |session: Session| async move { session.fetch(wanted, can_fill, deadline).await })?;
        Ok(Fetching(Events::new(events)))
    }

    /// Begins to bring the bytes of an object that a fetch was told to get.
    fn fill(&self, py: Python<'_>, key: String, length: Option<u64>, name: String) -> PyResult<Filling> {
        let (_, session) = self.session(py)?;
        let (pieces, queue) = mpsc::channel(PIECES_MAX);
        let filled = async move { session.fill(&key, length, &name, queue).await };
        Ok(Filling { pieces: Mutex::new(Some(pieces)), filled: Turn::new(Some(spawn(filled)?)) })
    }

    #[pyo3(signature = (topic, version, data, deadline, cancel=None))]
    fn publish(
        &self,
        py: Python<'_>,
        topic: String,
        version: Option<u64>,
        data: Number,
        deadline: Option<f64>,
        cancel: Option<&Cancel>,
    ) -> PyResult<String> {
        let deadline = deadline.map(|seconds| span(py, seconds)).transpose()?;
        let published = self.call_until(py, cancel, |session: Session| async move {
            session.publish(&topic, version, DataId(data.0), deadline).await
        })?;
        Ok(values::published(&published).to_string())
    }

    fn subscribe(&self, py: Python<'_>, topic: String) -> PyResult<Versions> {
        let events = self.call(py, |session: Session| async move { session.subscribe(&topic).await })?;
        Ok(Versions(Events::new(events)))
    }

    /// The verified bytes of these ranges of an object as they come: pairs of where one begins and its
    /// length; none mean all.
    fn watch(
        &self,
        py: Python<'_>,
        data: Number,
        ranges: Vec<(u64, u64)>,
        timeout: Option<f64>,
    ) -> PyResult<Watching> {
        let timeout = timeout.map(|seconds| span(py, seconds)).transpose()?;
        let ranges: Vec<_> = ranges.into_iter().map(|(at, length)| at..at.saturating_add(length)).collect();
        let events =
            self.call(
                py,
                |session: Session| async move { session.watch(DataId(data.0), &ranges, timeout).await },
            )?;
        Ok(Watching(Events::new(events)))
    }

    /// The files of a set as they come.
    fn files(&self, py: Python<'_>, data: Number, timeout: Option<f64>) -> PyResult<Files> {
        let timeout = timeout.map(|seconds| span(py, seconds)).transpose()?;
        let events =
            self.call(py, |session: Session| async move { session.files(DataId(data.0), timeout).await })?;
        Ok(Files(Events::new(events)))
    }

    /// Ends the registration. The agent does so by itself when the process has gone.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let held = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((process, _, session)) = held else { return Ok(()) };
        if process != std::process::id() {
            std::mem::forget(session);
            return Ok(());
        }
        // An agent that has gone has forgotten the process.
        let _ = wait(py, async move { session.unregister().await })?;
        Ok(())
    }
}

#[pymethods]
impl Sending {
    /// The next event as JSON; `None` after the last one.
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<String>> {
        let Some(event) = self.events.next(py, timeout)? else { return Ok(None) };
        let event = values::event(event, &self.name).map_err(|error| values::error(py, &error))?;
        Ok(Some(event.to_string()))
    }

    /// Stops watching: the transfer ends unless others watch it or it is detached.
    fn cancel(&self) {
        self.events.cancel();
    }
}

#[pymethods]
impl Fetching {
    /// The next event as JSON; `None` after the last one.
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<String>> {
        Ok(self.0.next(py, timeout)?.map(|event| values::fetched(&event).to_string()))
    }

    fn cancel(&self) {
        self.0.cancel();
    }
}

#[pymethods]
impl Versions {
    /// The next event as JSON; `None` when the agent ends.
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<String>> {
        Ok(self.0.next(py, timeout)?.map(|event| values::version(&event).to_string()))
    }

    fn cancel(&self) {
        self.0.cancel();
    }
}

#[pymethods]
impl Watching {
    /// The next event as JSON; `None` after the last one.
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<String>> {
        Ok(self.0.next(py, timeout)?.map(|event| values::watched(&event).to_string()))
    }

    fn cancel(&self) {
        self.0.cancel();
    }
}

#[pymethods]
impl Files {
    /// The next event as JSON; `None` after the last one.
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<String>> {
        Ok(self.0.next(py, timeout)?.map(|event| values::files(&event).to_string()))
    }

    fn cancel(&self) {
        self.0.cancel();
    }
}

#[pymethods]
impl Filling {
    /// Brings the next bytes, at most 1 MiB; gives false when the agent takes no more: `finish` says why.
    fn write(&self, py: Python<'_>, bytes: Vec<u8>) -> PyResult<bool> {
        if bytes.is_empty() {
            // To the agent an empty piece would be the last one.
            return Ok(true);
        }
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(pieces) = pieces else { return Ok(false) };
        wait(py, async move { pieces.send(Ok(bytes)).await.is_ok() })
    }

    /// Says that these were all bytes, or, with a reason, that they cannot be got; gives the object as JSON.
    fn finish(&self, py: Python<'_>, failed: Option<String>) -> PyResult<String> {
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner).take();
        let filled = wait(py, async {
            if let Some(pieces) = pieces {
                // An agent that has gone says so below.
                let _ = pieces.send(failed.map_or(Ok(Vec::new()), Err)).await;
            }
            match self.filled.lock().await.take() {
                Some(filled) => filled.await.map_err(|error| ClientError::Lost(error.to_string())).flatten(),
                None => Err(ClientError::Lost("the call has ended".into())),
            }
        })?;
        filled.map(|object| values::object(&object).to_string()).map_err(|error| values::error(py, &error))
    }
}
