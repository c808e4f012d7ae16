//! Drivers: they tell devices what to do, in the devices' own languages.
//!
//! - [`circuits`]: optical circuit switches, each make in its dialect of [`tl1`] over [`telnet`] or of
//!   [`scpi`] (Blast section IV-B, Republic section IV).
//! - [`openflow`]: ToR switches, OpenFlow 1.3.
//!
//! Each has a codec and a machine without I/O, and a client on tokio. [`at_once`] lets all devices of a plan
//! work at the same time.

pub mod circuits;
mod conversation;
pub mod openflow;
mod restraint;
pub mod scpi;
pub mod telnet;
pub mod tl1;

pub use restraint::{Damped, Pauses, Remarks};

use polycast_types::Printable;
use std::future::Future;
use std::time::{Duration, Instant};

/// Limit on the bytes of a device's text that are kept and passed on.
const SAID_LEN_MAX: usize = 400;

/// Returns a device's text as it may be kept, logged and shown: it is short, and moves no cursor.
fn said(text: &str) -> String {
    let (shown, rest) = text.split_at(text.floor_char_boundary(SAID_LEN_MAX));
    let mut said = Printable(shown).to_string();
    if !rest.is_empty() {
        said.push('…');
    }
    said
}

/// Outcome of one device's work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome<T> {
    /// The device's name.
    pub device: String,
    /// Result of the work.
    pub result: T,
    /// From the common start to this device's end.
    pub took: Duration,
}

/// Lets all devices work at the same time and waits for all of them: one that fails stops no other. The
/// outcomes are in the order of the work. Needs a tokio runtime around it.
pub async fn at_once<T, F>(work: impl IntoIterator<Item = (String, F)>) -> Vec<Outcome<T>>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let begun = Instant::now();
    let spawn = |(device, work): (String, F)| {
        tokio::spawn(async move {
            let result = work.await;
            Outcome { device, result, took: begun.elapsed() }
        })
    };
    let tasks: Vec<_> = work.into_iter().map(spawn).collect();
    let mut outcomes = Vec::with_capacity(tasks.len());
    for task in tasks {
        match task.await {
            Ok(outcome) => outcomes.push(outcome),
            // Tasks are never cancelled here, so it panicked: that is our own mistake, and goes on.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn devices_work_at_the_same_time_and_keep_their_order() {
        // Each waits for all the others: one after the other they would never end.
        let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(5));
        let work = (0..5).map(|number| {
            let barrier = std::sync::Arc::clone(&barrier);
            (format!("device-{number}"), async move {
                barrier.wait().await;
                number
            })
        });
        let outcomes = at_once(work).await;
        assert_eq!(outcomes.iter().map(|outcome| outcome.result).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!(outcomes[3].device, "device-3");
    }
}
