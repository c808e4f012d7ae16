//! Entrance for receivers at a source, whatever transport the transfer has: the control listener, the
//! transfer's handle, and the calls to the agents that are to join.

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
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// Agents that are called at the same time.
const CALLS_MAX: usize = 16;
/// Calls that wait for agents which take their time, and whose places others have. Each is a thread that
/// sleeps.
const WAITING_MAX: usize = 256;

/// The door of a transfer.
pub(super) struct Entrance {
    pub(super) strangers: Strangers,
    /// Address that receivers connect to.
    pub(super) address: SocketAddr,
    pub(super) handle: Handle,
    /// The host of those who know the offer's code, where it has one.
    pub(super) host: Option<Host>,
    /// Security of the connections.
    pub(super) security: Option<Security>,
}

/// This machine's name, for those who are to see whose offer it is.
pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

impl Entrance {
    /// Draws the handle of a transfer, and listens.
    pub(super) fn open(interface: IpAddr, options: &Options) -> Result<Self, TransferError> {
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

    /// Builds the invitation for agents.
    pub(super) fn invitation(&self, spec: &SourceSpec, pulled: bool) -> Invitation {
        let (object, object_len, root) = (spec.object, spec.source.len(), spec.root);
        let delta = spec.options.delta;
        Invitation { source: self.address, handle: self.handle, object, pulled, object_len, root, delta }
    }
}

/// Answer of an invited agent.
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

/// Calls agents one after the other.
#[derive(Clone)]
struct Caller {
    sender: mpsc::Sender<Answer>,
    queue: Arc<Mutex<Vec<(String, SocketAddr)>>>,
    invitation: Invitation,
    bell: Bell,
    security: Option<Security>,
    steering: Arc<Steering>,
    /// Number of callers that have given their places to others.
    waiting: Arc<AtomicUsize>,
}

impl Caller {
    fn begin(&self) {
        let caller = self.clone();
        std::thread::spawn(move || caller.run());
    }

    /// Calls the next one until none is left, or another caller has its place.
    fn run(self) {
        let mut has_place = true;
        while has_place {
            let next = self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some((name, address)) = next else { return };
            let permission = self.steering.permission();
            let shown = permission.as_ref().map(|permission| permission.show(&name)).transpose();
            let answer = shown.map_err(NotJoining::Refuses).and_then(|shown| {
                let to = (name.as_str(), address);
                invite(to, &self.invitation, shown, self.security.as_ref(), &mut || {
                    has_place = !self.gives_place()
                })
            });
            if !has_place {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            if self.sender.send((name, answer)).is_err() {
                return;
            }
            self.bell.ring();
        }
    }

    /// An agent takes its time: another caller calls the next one meanwhile, unless too many wait already.
    fn gives_place(&self) -> bool {
        let gives = self.waiting.fetch_add(1, Ordering::Relaxed) < WAITING_MAX;
        if gives {
            self.begin();
        } else {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        gives
    }
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

    /// Returns the receivers whose agents could not be reached at the last call, and those whose agents have
    /// answered.
    pub(super) fn reached(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        (self.unreachable.clone(), self.reachable.clone())
    }

    /// Calls these agents, in threads because some may not answer.
    pub(super) fn call(&mut self, named: Vec<(String, SocketAddr)>) {
        let threads = named.len().min(CALLS_MAX);
        let caller = Caller {
            sender: self.sender.clone(),
            queue: Arc::new(Mutex::new(named)),
            invitation: self.invitation,
            bell: self.bell.clone(),
            security: self.security.clone(),
            steering: Arc::clone(&self.steering),
            waiting: Arc::default(),
        };
        (0..threads).for_each(|_| caller.begin());
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
                    match self.invitation.delta {
                        Some(_) => tracing::info!(receiver = %name, %why, "takes no delta"),
                        None => tracing::warn!(receiver = %name, %why, "not joining"),
                    }
                    self.answered(&name);
                    return Some((name, why));
                }
                Ok((name, Ok(()))) => self.answered(&name),
                Err(_) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_net::frames::FrameStream;
    use polycast_testing::until;
    use polycast_types::ObjectId;
    use polycast_wire::control::Control;
    use std::net::Ipv4Addr;
    use std::net::TcpListener;

    /// Agents that take their time without an end hold no other one up, however many they are.
    #[test]
    fn agents_that_take_their_time_hold_no_other_one_up() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let slow = CALLS_MAX + 3;
        let agents = std::thread::spawn(move || {
            // All but the last one that comes take their time.
            let mut waiting = Vec::new();
            for _ in 0..slow {
                let mut stream = FrameStream::stranger(listener.accept().unwrap().0, None).unwrap();
                stream.send(&Control::Alive).unwrap();
                waiting.push(stream);
            }
            let mut last = FrameStream::stranger(listener.accept().unwrap().0, None).unwrap();
            last.send(&Control::Joining).unwrap();
            last.finish();
            waiting
        });
        let invitation = Invitation {
            source: SocketAddr::from((Ipv4Addr::LOCALHOST, 7)),
            handle: Handle(3),
            object: ObjectId::default(),
            pulled: false,
            object_len: 1,
            root: None,
            delta: None,
        };
        let mut calls = Calls::new(invitation, None, Arc::default(), Bell::new().unwrap());
        calls.call((0..=slow).map(|at| (format!("host-{at}"), address)).collect());
        until("one has joined", || {
            assert_eq!(calls.refused(), None);
            calls.reached().1.len() == 1
        });
        drop(agents.join().unwrap());
    }
}
