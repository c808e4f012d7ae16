//! The one port of an agent, which all its transfers share.

use super::bell::Bell;
use polycast_net::frames::FrameStream;
use polycast_types::Handle;
use polycast_wire::control::{Control, Hello, Overlay};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limit on the visitors that have named their transfer, and that it has not taken in yet.
const WAITING_MAX: usize = 256;

/// End of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// It has the object.
    Source,
    /// It gets it, and serves others.
    Receiver,
}

/// The one port of an agent.
#[derive(Clone, Debug)]
pub struct Door(Arc<Hall>);

#[derive(Debug)]
struct Hall {
    address: Mutex<SocketAddr>,
    desks: Mutex<BTreeMap<(Handle, Side), Arc<Queue>>>,
}

impl PartialEq for Door {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Door {}

/// Visitors that wait for one transfer.
#[derive(Debug)]
struct Queue {
    visitors: Mutex<VecDeque<Visitor>>,
    bell: Bell,
}

/// An end that has come for a transfer.
#[derive(Debug)]
pub(crate) struct Visitor {
    pub(crate) stream: FrameStream,
    /// The first frame, as it was.
    pub(crate) first: Vec<u8>,
}

/// For which transfer it comes, and to which of the transfer's ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visit {
    handle: Handle,
    sides: &'static [Side],
}

impl Visit {
    /// Returns the visit that a first frame asks for; `None` where it is for no transfer that runs.
    pub(crate) fn of(frame: &Control<'_>) -> Option<Self> {
        let (handle, sides): (Handle, &[Side]) = match frame {
            Control::Hello(Hello { handle, .. }) => (*handle, &[Side::Source]),
            // Both ends serve those who fetch.
            Control::Overlay(Overlay::Enter { handle, .. }) => (*handle, &[Side::Source, Side::Receiver]),
            Control::Member { handle, .. } => (*handle, &[Side::Receiver]),
            _ => return None,
        };
        Some(Visit { handle, sides })
    }
}

impl Door {
    /// The door of an agent that listens there.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Door(Arc::new(Hall { address: Mutex::new(address), desks: Mutex::default() }))
    }

    /// The agent listens there from now on. Transfers that run have told the address before.
    pub(crate) fn move_to(&self, address: SocketAddr) {
        *self.0.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }

    pub(super) fn address(&self) -> SocketAddr {
        *self.0.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn desks(&self) -> MutexGuard<'_, BTreeMap<(Handle, Side), Arc<Queue>>> {
        self.0.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn desk(&self, handle: Handle, side: Side) -> io::Result<Desk> {
        let queue = Arc::new(Queue { visitors: Mutex::default(), bell: Bell::new()? });
        // A transfer that is begun again takes the place of the one before, which is about to end.
        self.desks().insert((handle, side), Arc::clone(&queue));
        Ok(Desk { door: self.clone(), handle, side, queue })
    }

    /// Passes a visitor on to the transfer; gives the connection back where no such transfer runs here, or
    /// where too many wait.
    pub(crate) fn pass(&self, visit: Visit, visitor: Visitor) -> Result<(), Box<FrameStream>> {
        let desks = self.desks();
        let queue = visit.sides.iter().find_map(|side| desks.get(&(visit.handle, *side)));
        let Some(queue) = queue else { return Err(Box::new(visitor.stream)) };
        let mut visitors = queue.lock();
        if visitors.len() >= WAITING_MAX {
            return Err(Box::new(visitor.stream));
        }
        visitors.push_back(visitor);
        queue.bell.ring();
        Ok(())
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Visitor>> {
        self.visitors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one transfer at the agent's door, until it is dropped.
#[derive(Debug)]
pub(crate) struct Desk {
    door: Door,
    handle: Handle,
    side: Side,
    queue: Arc<Queue>,
}

impl Desk {
    /// Returns the bell that rings when a visitor has come.
    pub(crate) fn bell(&self) -> &Bell {
        &self.queue.bell
    }

    /// The port of the door.
    pub(crate) fn port(&self) -> u16 {
        self.door.address().port()
    }

    /// Takes the visitors that have come since the last call.
    pub(crate) fn take(&self) -> VecDeque<Visitor> {
        self.queue.bell.clear();
        std::mem::take(&mut self.queue.lock())
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let mut desks = self.door.desks();
        let own = desks.get(&(self.handle, self.side)).is_some_and(|queue| Arc::ptr_eq(queue, &self.queue));
        if own {
            desks.remove(&(self.handle, self.side));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    fn visitor() -> Visitor {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Visitor { stream: FrameStream::new(stream).unwrap(), first: Vec::new() }
    }

    fn enter(handle: u64) -> Visit {
        let enter = Overlay::Enter { handle: Handle(handle), ticket: [0; 32], entry: 0, have: Vec::new() };
        Visit::of(&Control::Overlay(enter)).unwrap()
    }

    #[test]
    fn who_comes_is_passed_on_to_the_transfer() {
        let door = Door::new("127.0.0.1:9".parse().unwrap());
        let receiver = door.desk(Handle(1), Side::Receiver).unwrap();
        let source = door.desk(Handle(2), Side::Source).unwrap();
        let hello = Hello { handle: Handle(1), name: "a", window_bytes: 1, serve_port: 1, location: [""; 2] };
        let hello = Visit::of(&Control::Hello(hello)).unwrap();
        assert!(door.pass(hello, visitor()).is_err(), "a receiver takes no other");
        assert!(door.pass(enter(1), visitor()).is_ok() && door.pass(enter(2), visitor()).is_ok());
        assert!(door.pass(enter(3), visitor()).is_err(), "no transfer knows it");
        assert_eq!((receiver.take().len(), source.take().len(), receiver.take().len()), (1, 1, 0));
        let again = door.desk(Handle(1), Side::Receiver).unwrap();
        drop(receiver);
        assert!(door.pass(enter(1), visitor()).is_ok(), "the end of the one before closes nothing");
        drop(again);
        assert!(door.pass(enter(1), visitor()).is_err(), "it has ended");
    }

    #[test]
    fn a_transfer_that_takes_no_end_in_is_not_waited_for() {
        let door = Door::new("127.0.0.1:9".parse().unwrap());
        let desk = door.desk(Handle(1), Side::Source).unwrap();
        for _ in 0..WAITING_MAX {
            desk.queue.lock().push_back(visitor());
        }
        assert!(door.pass(enter(1), visitor()).is_err());
    }
}
