//! Where receivers come in at a source, whatever transport the transfer has: the control listener, the transfer's
//! handle, and the calls to the agents that are to join.

use super::bell::Bell;
use super::door::Side;
use super::error::TransferError;
use super::invite::{Invitation, NotJoining, invite};
use super::pairing::Host;
use super::steering::Steering;
use super::strangers::Strangers;
use super::{Options, Sealing, SourceSpec};
use polycast_net::tls::Security;
use polycast_types::Handle;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// Agents that are called at the same time.
const CALLS_MAX: usize = 16;

/// The door of a transfer.
pub(super) struct Entrance {
    pub(super) strangers: Strangers,
    /// Where receivers connect to.
    pub(super) address: SocketAddr,
    pub(super) handle: Handle,
    /// The host of those who know the offer's code, where it has one.
    pub(super) host: Option<Host>,
    /// How connections are sealed.
    pub(super) security: Option<Security>,
}

/// This machine's name, for those who are to see whose offer it is.
pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl Entrance {
    /// Draws the handle of a transfer, and listens.
    pub(super) fn open(interface: Ipv4Addr, options: &Options) -> Result<Self, TransferError> {
        // A handle only has to differ from those of other transfers: the hasher's keys are random.
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        let handle = Handle(hasher.finish().max(1));
        let host = options.code.as_ref().map(Host::new);
        let security = match &options.sealing {
            Sealing::Plain => None,
            Sealing::By(security) => Some(security.clone()),
            Sealing::ByCode => match &host {
                Some(host) => Some(host.pairing().security()),
                None => return Err(TransferError::Unusable("there is no code to seal with".into())),
            },
        };
        let (strangers, address) = options.listen.open(interface, handle, Side::Source, security.clone())?;
        Ok(Entrance { strangers, address, handle, host, security })
    }

    /// What agents are told.
    pub(super) fn invitation(&self, spec: &SourceSpec, pulled: bool) -> Invitation {
        let (object, object_len, root) = (spec.object, spec.source.len(), spec.root);
        Invitation { source: self.address, handle: self.handle, object, pulled, object_len, root }
    }
}

/// What an invited agent has said.
type Answer = (String, Result<(), NotJoining>);

/// Calls to agents that are to join.
pub(super) struct Calls {
    invitation: Invitation,
    security: Option<Security>,
    /// Has the permit, where there is one.
    steering: Arc<Steering>,
    sender: mpsc::Sender<Answer>,
    answers: mpsc::Receiver<Answer>,
    bell: Bell,
    /// Names of those whose agents could not be reached, and of those whose agents have answered.
    unreachable: BTreeSet<String>,
    reachable: BTreeSet<String>,
}

impl Calls {
    /// Calls to this transfer; each answer rings the bell.
    pub(super) fn new(
        invitation: Invitation,
        security: Option<Security>,
        steering: Arc<Steering>,
        bell: Bell,
    ) -> Self {
        let (sender, answers) = mpsc::channel();
        let (unreachable, reachable) = Default::default();
        Calls { invitation, security, steering, sender, answers, bell, unreachable, reachable }
    }

    fn answered(&mut self, name: &str) {
        self.unreachable.remove(name);
        self.reachable.insert(name.to_string());
    }

    /// Those whose agents could not be reached at the last call, and those whose agents have answered.
    pub(super) fn reached(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        (self.unreachable.clone(), self.reachable.clone())
    }

    /// Calls these agents, in threads because some may not answer.
    pub(super) fn call(&mut self, named: Vec<(String, SocketAddr)>) {
        let threads = named.len().min(CALLS_MAX);
        let queue = Arc::new(Mutex::new(named));
        for _ in 0..threads {
            let (sender, queue, invitation) = (self.sender.clone(), Arc::clone(&queue), self.invitation);
            let (bell, security) = (self.bell.clone(), self.security.clone());
            let steering = Arc::clone(&self.steering);
            std::thread::spawn(move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
                    let Some((name, address)) = next else { return };
                    let permission = steering.permission();
                    let shown = permission.as_ref().map(|permission| permission.show(&name)).transpose();
                    let answer = shown
                        .map_err(NotJoining::Refuses)
                        .and_then(|shown| invite((&name, address), &invitation, shown, security.as_ref()));
                    if sender.send((name, answer)).is_err() {
                        return;
                    }
                    bell.ring();
                }
            });
        }
    }

    /// The next agent that does not join, and why.
    pub(super) fn refused(&mut self) -> Option<(String, String)> {
        loop {
            match self.answers.try_recv() {
                Ok((name, Err(NotJoining::Unreachable(why)))) => {
                    tracing::warn!(receiver = %name, %why, "not joining");
                    self.reachable.remove(&name);
                    self.unreachable.insert(name.clone());
                    return Some((name, why));
                }
                Ok((name, Err(NotJoining::Refuses(why)))) => {
                    tracing::warn!(receiver = %name, %why, "not joining");
                    self.answered(&name);
                    return Some((name, why));
                }
                Ok((name, Ok(()))) => self.answered(&name),
                Err(_) => return None,
            }
        }
    }
}
