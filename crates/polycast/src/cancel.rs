//! Ending early without leaving anything half-written.

pub use crate::asked::{ask, is_asked};
use crate::exit::{Exit, Failure};
use crate::output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGHUP, which comes when the terminal is closed, unless whatever has started this program has it ignored,
/// as nohup does.
pub struct Hangup(Option<Signal>);

impl Hangup {
    /// Needs a runtime around it.
    pub fn watch() -> std::io::Result<Self> {
        let ignored = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| is_ignored(&status, 1));
        Ok(Hangup(if ignored { None } else { Some(signal(SignalKind::hangup())?) }))
    }

    /// Waits until the user or the system ends the command.
    pub async fn recv(&mut self) {
        match &mut self.0 {
            Some(signal) => drop(signal.recv().await),
            None => std::future::pending().await,
        }
    }
}

/// Returns true if the process with this `/proc/PID/status` ignores a signal.
fn is_ignored(status: &str, signal: u32) -> bool {
    let mask =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Flags to set then; `None` until signals are watched.
static FLAGS: Mutex<Option<Vec<Weak<AtomicBool>>>> = Mutex::new(None);

/// A flag that SIGINT (Ctrl-C), SIGTERM and SIGHUP set; the second one ends the program at once.
pub fn on_signals() -> Result<Arc<AtomicBool>, Failure> {
    // What panicked while it was locked has left a list all the same.
    let mut flags = FLAGS.lock().unwrap_or_else(PoisonError::into_inner);
    let cancel = Arc::new(AtomicBool::new(is_asked()));
    if let Some(flags) = flags.as_mut() {
        flags.retain(|flag| flag.strong_count() > 0);
        flags.push(Arc::downgrade(&cancel));
        return Ok(cancel);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(|error| Failure::unexpected(format!("cannot watch for signals: {error}")))?;
    let (mut interrupt, mut terminate, mut hangup) = {
        let _inside = runtime.enter();
        let watched = signal(SignalKind::interrupt())
            .and_then(|interrupt| Ok((interrupt, signal(SignalKind::terminate())?, Hangup::watch()?)));
        watched.map_err(|error| Failure::unexpected(format!("cannot watch for signals: {error}")))?
    };
    *flags = Some(vec![Arc::downgrade(&cancel)]);
    std::thread::spawn(move || {
        runtime.block_on(async move {
            loop {
                // A terminal that is closed may say so twice.
                let is_asked = tokio::select! {
                    _ = interrupt.recv() => true,
                    _ = terminate.recv() => true,
                    () = hangup.recv() => false,
                };
                if ask() {
                    if is_asked {
                        std::process::exit(Exit::Interrupted as i32);
                    }
                    continue;
                }
                tell_all();
                output::say("stopping; once more to stop at once");
            }
        });
    });
    Ok(cancel)
}

fn tell_all() {
    let flags = FLAGS.lock().unwrap_or_else(PoisonError::into_inner);
    flags.iter().flatten().filter_map(Weak::upgrade).for_each(|flag| flag.store(true, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_are_ignored_are_known() {
        let status = |mask: &str| format!("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(is_ignored(&status("0000000000000001"), 1));
        assert!(is_ignored(&status("0000000000001003"), 1));
        assert!(!is_ignored(&status("0000000000001002"), 1));
        assert!(is_ignored(&status("0000000000001002"), 2));
        assert!(!is_ignored("", 1));
    }
}
