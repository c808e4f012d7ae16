//! Where receivers come in at a source, whatever transport the transfer has: the control listener, the transfer's
//! handle, and the calls to the agents that are to join.

use super::Receivers;
use super::error::TransferError;
use super::invite::{Invitation, invite};
use polycast_types::{Handle, ObjectId};
use std::hash::{BuildHasher, Hasher};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// Agents that are called at the same time.
const CALLS_MAX: usize = 16;

/// The door of a transfer.
pub(super) struct Entrance {
    pub(super) listener: TcpListener,
    /// Where receivers connect to.
    pub(super) address: SocketAddr,
    pub(super) handle: Handle,
}

impl Entrance {
    /// Listens on a port that the system chooses.
    pub(super) fn open(interface: Ipv4Addr) -> Result<Self, TransferError> {
        let listen = SocketAddr::from((interface, 0));
        let listening = |source| TransferError::Listen { address: listen, source };
        let listener = TcpListener::bind(listen).map_err(listening)?;
        listener.set_nonblocking(true).map_err(listening)?;
        let address = listener.local_addr()?;
        // A handle only has to differ from those of other transfers: the hasher's keys are random.
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        Ok(Entrance { listener, address, handle: Handle(hasher.finish().max(1)) })
    }

    /// What agents are told.
    pub(super) fn invitation(&self, object: ObjectId, pulled: bool) -> Invitation {
        Invitation { source: self.address, handle: self.handle, object, pulled }
    }
}

/// What an invited agent has said.
type Answer = (String, Result<(), String>);

/// Calls to agents that are to join.
pub(super) struct Calls {
    invitation: Invitation,
    sender: mpsc::Sender<Answer>,
    answers: mpsc::Receiver<Answer>,
    begun: bool,
}

impl Calls {
    /// Calls every receiver that is named.
    pub(super) fn start(invitation: Invitation, receivers: &Receivers) -> Self {
        let (sender, answers) = mpsc::channel();
        let mut calls = Calls { invitation, sender, answers, begun: false };
        if let Receivers::Named(named) = receivers {
            calls.call(named.clone());
        }
        calls
    }

    /// Calls these agents, in threads because some may not answer.
    pub(super) fn call(&mut self, named: Vec<(String, SocketAddr)>) {
        self.begun = true;
        let threads = named.len().min(CALLS_MAX);
        let queue = Arc::new(Mutex::new(named));
        for _ in 0..threads {
            let (sender, queue, invitation) = (self.sender.clone(), Arc::clone(&queue), self.invitation);
            std::thread::spawn(move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
                    let Some((name, address)) = next else { return };
                    if sender.send((name, invite(address, &invitation))).is_err() {
                        return;
                    }
                }
            });
        }
    }

    /// Whether anybody was called.
    pub(super) fn have_begun(&self) -> bool {
        self.begun
    }

    /// The next agent that does not join, and why.
    pub(super) fn refused(&mut self) -> Option<(String, String)> {
        loop {
            match self.answers.try_recv() {
                Ok((name, Err(why))) => {
                    tracing::warn!(receiver = %name, %why, "not joining");
                    return Some((name, why));
                }
                Ok((_, Ok(()))) => {}
                Err(_) => return None,
            }
        }
    }
}
