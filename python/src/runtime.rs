//! The threads that calls run on: one runtime a process, made when it is first needed.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// Interval at which a call that waits checks whether a signal has come.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The runtime, and the process that it was made in. Only ever locked by the thread that has the interpreter,
/// and a fork takes the interpreter too: no fork leaves it locked.
static RUNTIME: Mutex<Option<(u32, Arc<Runtime>)>> = Mutex::new(None);

/// The runtime of this process.
fn runtime() -> PyResult<Arc<Runtime>> {
    let mut held = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    let own = std::process::id();
    if let Some((process, runtime)) = &*held
        && *process == own
    {
        return Ok(Arc::clone(runtime));
    }
    let made = Builder::new_multi_thread().worker_threads(1).thread_name("polycast").enable_all().build();
    let made = made.map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
    let made = Arc::new(made);
    // The parent's has no threads here, and would wait for them.
    std::mem::forget(held.replace((own, Arc::clone(&made))));
    Ok(made)
}

/// Runs something to its end without the interpreter; a signal's handler that raises ends it.
pub fn wait<T: Send>(py: Python<'_>, work: impl Future<Output = T> + Send) -> PyResult<T> {
    let runtime = runtime()?;
    let mut work = std::pin::pin!(work);
    loop {
        let turn = py
            .detach(|| runtime.block_on(async { tokio::time::timeout(LOOK_INTERVAL, work.as_mut()).await }));
        match turn {
            Ok(outcome) => return Ok(outcome),
            Err(_) => py.check_signals()?,
        }
    }
}

/// Begins something that goes on beside the interpreter.
pub fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> PyResult<JoinHandle<T>> {
    Ok(runtime()?.spawn(work))
}
