//! A code that is tried with several offers at a time: any host can announce an offer, and need not answer
//! then.

use super::Announced;
use crate::transfer::bell::Bell;
use crate::transfer::code::Code;
use crate::transfer::pairing::{NotPaired, Pairing, pair};
use polycast_types::{Duration, Handle};
use rustix::event::PollFd;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

/// Offers with which the code is tried at the same time. Where there are more, the oldest is given up: a
/// source that is there answers at once, and is the youngest when it is heard.
const AT_ONCE_MAX: usize = 16;

/// Result of a try.
type Outcome = (Announced, Result<Pairing, NotPaired>);

/// The tries that run.
pub(super) struct Tries {
    sender: mpsc::Sender<Outcome>,
    outcomes: mpsc::Receiver<Outcome>,
    bell: Bell,
    running: VecDeque<(Handle, SocketAddr, Arc<AtomicBool>)>,
}

impl Tries {
    /// None runs yet.
    pub(super) fn new() -> io::Result<Self> {
        let (sender, outcomes) = mpsc::channel();
        Ok(Tries { sender, outcomes, bell: Bell::new()?, running: VecDeque::new() })
    }

    /// Returns true while the code is being tried with this offer.
    pub(super) fn is_trying(&self, offer: &Announced) -> bool {
        self.running.iter().any(|(handle, address, _)| (*handle, *address) == (offer.handle, offer.address))
    }

    /// Tries it, in a thread since the source may not answer, and rings when that is done.
    pub(super) fn begin(&mut self, offer: Announced, code: Code, within: Duration) {
        if self.running.len() == AT_ONCE_MAX
            && let Some((.., ends)) = self.running.pop_front()
        {
            ends.store(true, Ordering::Relaxed);
        }
        let ends = Arc::new(AtomicBool::new(false));
        self.running.push_back((offer.handle, offer.address, Arc::clone(&ends)));
        let (sender, bell) = (self.sender.clone(), self.bell.clone());
        std::thread::spawn(move || {
            let outcome = pair((offer.address, offer.handle), &code, (within, &ends));
            // Where it was given up, no other end is left to hear of it.
            if !ends.load(Ordering::Relaxed) && sender.send((offer, outcome)).is_ok() {
                bell.ring();
            }
        });
    }

    /// Takes the results of the tries that are done.
    pub(super) fn take(&mut self) -> Vec<Outcome> {
        self.bell.clear();
        let outcomes: Vec<Outcome> = self.outcomes.try_iter().collect();
        for (offer, _) in &outcomes {
            self.running.retain(|(handle, address, _)| (*handle, *address) != (offer.handle, offer.address));
        }
        outcomes
    }

    /// Returns the descriptor to wait on.
    pub(super) fn descriptor(&self) -> PollFd<'_> {
        self.bell.descriptor()
    }
}

/// Ends the tries that still run.
impl Drop for Tries {
    fn drop(&mut self) {
        self.running.iter().for_each(|(.., ends)| ends.store(true, Ordering::Relaxed));
    }
}
