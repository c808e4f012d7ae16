//! A registered process at the agent, and its transfers.

use crate::runtime::wait;
use crate::values;
use polycast_api::client::{
    AgentClient, ClientError, Receivers, SendOptions, Session, Slow, Wait, default_socket as usual_socket,
};
use polycast_types::{AppId, DataId, Duration};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Mutex as Turn;

/// A connection to the agent, with the process that made it: one that was forked connects again.
#[pyclass(frozen, module = "polycast._native")]
pub struct Connection {
    socket: PathBuf,
    app: AppId,
    inner: Mutex<Option<(u32, AgentClient, Session)>>,
}

/// A transfer that is watched. Letting go of it, or `cancel`, ends the transfer unless others watch it.
#[pyclass(frozen, module = "polycast._native")]
pub struct Sending {
    process: u32,
    name: String,
    events: Arc<Turn<Option<polycast_api::client::Sending>>>,
    cancelled: Arc<tokio::sync::Notify>,
}

/// Ends a call that waits in another thread.
#[pyclass(frozen, module = "polycast._native")]
#[derive(Default)]
pub struct Cancel {
    asked: Arc<tokio::sync::Notify>,
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

/// Where the agent of this user listens unless told otherwise.
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
        let (socket, app) = (self.socket.clone(), self.app);
        let made = wait(py, async move {
            let client = AgentClient::connect(&socket).await?;
            let session = client.register(app, u64::from(own)).await?;
            Ok::<_, ClientError>((client, session))
        })?;
        let (client, session) = made.map_err(|error| values::error(py, &error))?;
        let mut held = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // The parent's connection belongs to threads that are not here.
        std::mem::forget(held.replace((own, client.clone(), session.clone())));
        Ok((client, session))
    }

    fn call<T: Send>(&self, py: Python<'_>, work: impl AsyncFnOnceSend<T>) -> PyResult<T> {
        let (_, session) = self.session(py)?;
        wait(py, work.run(session))?.map_err(|error| values::error(py, &error))
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

/// Seconds as Python has them.
fn span(seconds: f64) -> PyResult<Duration> {
    if !seconds.is_finite() || seconds < 0.0 {
        return Err(PyValueError::new_err(format!("{seconds} is no time in seconds")));
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

    fn add(
        &self,
        py: Python<'_>,
        data: u64,
        paths: Vec<PathBuf>,
        name: String,
        exclude: Vec<String>,
    ) -> PyResult<String> {
        let added = self.call(py, |session: Session| async move {
            session.add_all(DataId(data), &paths, &name, &exclude).await
        })?;
        Ok(values::object(&added).to_string())
    }

    #[pyo3(signature = (data, timeout, known_only, cancel=None))]
    fn read(
        &self,
        py: Python<'_>,
        data: u64,
        timeout: Option<f64>,
        known_only: bool,
        cancel: Option<&Cancel>,
    ) -> PyResult<String> {
        let timeout = timeout.map(span).transpose()?;
        let until = if known_only { Wait::WhileComing(timeout) } else { Wait::UntilReady(timeout) };
        let cancelled = cancel.map(|cancel| Arc::clone(&cancel.asked));
        let read = self.call(py, |session: Session| async move {
            let asked = async {
                match cancelled {
                    Some(cancelled) => cancelled.notified().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                read = session.read(DataId(data), until) => read.map(Some),
                () = asked => Ok(None),
            }
        })?;
        match read {
            Some(read) => Ok(values::object(&read).to_string()),
            None => Err(values::raise(py, "cancelled", "the call was cancelled")),
        }
    }

    fn delete(&self, py: Python<'_>, data: u64) -> PyResult<()> {
        self.call(py, |session: Session| async move { session.delete(DataId(data)).await })
    }

    fn withdraw(&self, py: Python<'_>, data: u64) -> PyResult<()> {
        self.call(py, |session: Session| async move { session.withdraw(DataId(data)).await })
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

    /// Removes an object at other agents (`None`: all), and gives who still has it and why.
    fn remove(&self, py: Python<'_>, data: u64, at: Option<Vec<String>>) -> PyResult<Vec<(String, String)>> {
        let at = at.map_or(Receivers::All, Receivers::Named);
        let removed = self.call(py, |session: Session| async move {
            session.remove(&at, &[DataId(data)], &[], None).await
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
        data: u64,
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
                return Err(PyValueError::new_err(said));
            }
        };
        let deadline = deadline.map(span).transpose()?;
        let options = SendOptions { deadline, slow: Some(slow), detached, ..SendOptions::default() };
        let events =
            self.call(py, |session: Session| async move { session.send(DataId(data), &to, &options).await })?;
        Ok(Sending {
            process: std::process::id(),
            name,
            events: Arc::new(Turn::new(Some(events))),
            cancelled: Arc::default(),
        })
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
    /// The next event as JSON; `None` after the last one. Raises `TimedOut` when none comes in time.
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<String>> {
        if self.process != std::process::id() {
            return Err(values::raise(py, "invalid", "the transfer belongs to the process that was forked"));
        }
        let timeout = timeout.map(span).transpose()?;
        let (events, cancelled) = (Arc::clone(&self.events), Arc::clone(&self.cancelled));
        let next = async move {
            let mut events = events.lock().await;
            let Some(sending) = events.as_mut() else { return Ok(None) };
            let outcome = tokio::select! {
                event = sending.next() => event,
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
            None => Err(values::raise(py, "timed-out", "the transfer has not ended yet")),
            Some(Ok(None)) => Ok(None),
            Some(Ok(Some(event))) => {
                let event = values::event(event, &self.name).map_err(|error| values::error(py, &error))?;
                Ok(Some(event.to_string()))
            }
            Some(Err(error)) => Err(values::error(py, &error)),
        }
    }

    /// Stops watching: the transfer ends unless others watch it or it is detached.
    fn cancel(&self) {
        // One permit stays for a call that comes.
        self.cancelled.notify_one();
        if let Ok(mut events) = self.events.try_lock() {
            *events = None;
        }
    }
}
