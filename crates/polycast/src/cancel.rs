//! Ending early without leaving anything half-written.

use crate::exit::{Exit, Failure};
use crate::output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{SignalKind, signal};

/// A flag that SIGINT (Ctrl-C) and SIGTERM set; the second one ends the program at once.
pub(crate) fn on_signals() -> Result<Arc<AtomicBool>, Failure> {
    let cancel = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cancel);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(|error| Failure::unexpected(format!("cannot watch for signals: {error}")))?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        let watched = signal(SignalKind::interrupt())
            .and_then(|interrupt| Ok((interrupt, signal(SignalKind::terminate())?)));
        watched.map_err(|error| Failure::unexpected(format!("cannot watch for signals: {error}")))?
    };
    std::thread::spawn(move || {
        runtime.block_on(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if flag.swap(true, Ordering::Relaxed) {
                    std::process::exit(Exit::Failed as i32);
                }
                output::say("stopping; once more to stop at once");
            }
        });
    });
    Ok(cancel)
}
