//! Serving hash groups over TCP, from the source or from a receiver's part file, to those who have this end
//! as a candidate.

mod exchange;
mod giving;
mod recent;

use super::pacing::Pacing;
use super::strangers::Strangers;
use exchange::Hall;
use giving::Giving;
use polycast_net::frames::{Block, FrameStream};
use polycast_net::object::ObjectSource;
use polycast_net::seal::Secret;
use polycast_net::store::Held;
use polycast_net::tls::Binding;
use polycast_protocol::push::Geometry;
use polycast_protocol::session::{Admission, Ticket, Tickets};
use polycast_types::{Handle, RangeSet};
use polycast_wire::control::{Control, MEMBERS_MAX, Overlay};
use recent::Recent;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Limit on the connections that are served at the same time: a source's eight takers have eight lanes each.
const PEERS_MAX: usize = 64;
/// Limit on those of one address among them: several receivers may share a host, and each has up to 16 lanes.
const PEERS_OF_ONE_MAX: usize = 32;
/// A peer that takes nothing of what it was sent for this long is dropped. One that meant it is told of
/// another candidate by its source. One that is far away has longer.
const PEER_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest time without a look at whether serving has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Place that the bytes are read from.
pub(crate) enum Supply {
    /// The part that a receiver has of it.
    Part(Arc<Held>),
    /// The object at its source.
    Object(Arc<dyn ObjectSource>),
}

/// State of the groups that can be served, shared by the thread that receives or hashes and the threads that
/// serve.
pub(crate) struct Served {
    geometry: Geometry,
    supply: Supply,
    /// Secret that tickets are made of; none are asked for where connections are not sealed.
    secret: Option<Secret>,
    tickets: Mutex<Tickets>,
    /// The rate of a source; a receiver that serves others has none.
    pacing: Option<Arc<Pacing>>,
    /// The groups that may be served, in the order in which they became so: each peer reads on where it is.
    verified: Mutex<Verified>,
    stop: AtomicBool,
    /// Addresses of the peers that are served.
    peers: Mutex<Vec<Option<IpAddr>>>,
    sent_bytes: AtomicU64,
    /// Receivers of the same rack that have come here, by their numbers.
    newcomers: Mutex<Vec<(u32, FrameStream)>>,
    /// Groups that a source gives away; a receiver gives what it is asked for.
    giving: Option<Giving>,
    /// Groups that have just come.
    recent: Mutex<Recent>,
    /// Members on their way to the thread that serves them.
    hall: Mutex<Hall>,
    /// Set if that thread is to be woken when another group may be served.
    wants_news: AtomicBool,
}

/// Groups that may be served.
struct Verified {
    is: Vec<bool>,
    order: Vec<u64>,
}

/// Purpose of a connection.
pub(crate) enum Wish {
    /// Groups that its end asks for, or that a source gives to the one that it knows by this number and that
    /// has these.
    Exchange(u64, RangeSet),
    /// A receiver that speaks for the rack.
    Speaker(u32),
}

impl Served {
    pub(crate) fn new(
        handle: Handle,
        geometry: Geometry,
        supply: Supply,
        (secret, pacing): (Option<Secret>, Option<Arc<Pacing>>),
    ) -> Arc<Self> {
        let is_source = matches!(supply, Supply::Object(_));
        Arc::new(Served {
            giving: is_source.then(|| Giving::new(geometry.groups())),
            recent: Mutex::default(),
            hall: Mutex::default(),
            wants_news: AtomicBool::new(false),
            supply,
            secret,
            tickets: Mutex::new(Tickets::new(handle)),
            pacing,
            verified: Mutex::new(Verified { is: vec![false; geometry.groups() as usize], order: Vec::new() }),
            stop: AtomicBool::new(false),
            peers: Mutex::default(),
            sent_bytes: AtomicU64::new(0),
            newcomers: Mutex::default(),
            geometry,
        })
    }

    /// A group may be served from now on.
    pub(crate) fn mark(&self, group: u64) {
        {
            let mut verified = self.lock();
            if std::mem::replace(&mut verified.is[group as usize], true) {
                return;
            }
            if let Some(giving) = &self.giving {
                giving.seeding().make_ready(group);
            }
            verified.order.push(group);
        }
        if self.wants_news.swap(false, Ordering::SeqCst) {
            self.ring();
        }
    }

    /// Ends all serving.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.ring();
    }

    /// Returns the number of peers being served.
    pub(crate) fn active(&self) -> usize {
        self.peers().len()
    }

    /// Payload bytes served so far.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    fn peers(&self) -> MutexGuard<'_, Vec<Option<IpAddr>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in connections and what they ask for.
    pub(crate) fn meet(self: &Arc<Self>, strangers: &mut Strangers) {
        for (stream, wish) in strangers.meet(|frame, binding| self.wish(frame, binding)) {
            self.take_in(stream, wish);
        }
    }

    /// Does what a connection is for.
    pub(crate) fn take_in(self: &Arc<Self>, stream: FrameStream, wish: Wish) {
        match wish {
            Wish::Exchange(entry, have) => self.exchange_with(stream, entry, have),
            Wish::Speaker(member) => self.come(member, stream),
        }
    }

    /// Returns the purpose of a connection, if it is for this transfer.
    pub(crate) fn wish(&self, frame: &Control<'_>, binding: Option<Binding>) -> Option<Wish> {
        let groups = self.geometry.groups();
        let wish = match frame {
            Control::Member { member, .. } => Wish::Speaker(*member),
            Control::Overlay(Overlay::Enter { entry, have, .. }) => {
                let is_within = have.iter().all(|range| range.end <= groups);
                Wish::Exchange(*entry, is_within.then(|| have.iter().cloned().collect())?)
            }
            _ => return None,
        };
        self.lets_in(frame, binding).then_some(wish)
    }

    /// Returns true if the other end of a connection takes part in this transfer.
    fn lets_in(&self, frame: &Control<'_>, binding: Option<Binding>) -> bool {
        let needed = match &self.secret {
            None => Ticket::NotNeeded,
            Some(secret) => Ticket::Needed(binding.map(|binding| secret.ticket(&binding))),
        };
        match self.tickets.lock().unwrap_or_else(PoisonError::into_inner).judge(frame, needed) {
            Admission::In => true,
            Admission::Elsewhere => false,
            Admission::Foreign { so_far, is_told } => {
                if is_told {
                    tracing::warn!(so_far, "one that has no ticket for this transfer was turned away");
                }
                false
            }
        }
    }

    /// Takes a place for one that is to be served, if there is one for that address.
    fn has_room_for(&self, address: Option<IpAddr>) -> bool {
        let mut peers = self.peers();
        let of_one = peers.iter().filter(|other| **other == address).count();
        let has_room = peers.len() < PEERS_MAX && of_one < PEERS_OF_ONE_MAX;
        if has_room {
            peers.push(address);
        } else {
            tracing::warn!(?address, "too many peers fetch from here: turned one away");
        }
        has_room
    }

    fn forget(&self, address: Option<IpAddr>) {
        let mut peers = self.peers();
        let at = peers.iter().position(|other| *other == address).expect("it was put there");
        peers.swap_remove(at);
    }

    /// Receivers of the rack that have come since the last call.
    pub(crate) fn newcomers(&self) -> Vec<(u32, FrameStream)> {
        std::mem::take(&mut *self.newcomers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn come(&self, member: u32, mut stream: FrameStream) {
        stream.trust();
        let mut newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        if newcomers.len() < MEMBERS_MAX {
            newcomers.push((member, stream));
        }
    }

    /// A group that has just come is sent on from where it is, while it is among the last ones. What goes on
    /// from the file needs none.
    pub(crate) fn keep(&self, group: u64, block: Block) {
        let goes_from_file = matches!(&self.supply, Supply::Part(held) if !held.unpacks());
        if goes_from_file {
            self.recent().give_back(Arc::new(block));
        } else {
            self.recent().keep(group, block);
        }
    }

    /// A buffer for a group.
    pub(crate) fn spare(&self) -> Vec<u8> {
        self.recent().spare.pop().unwrap_or_default()
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        // Nothing here panics between two changes that belong together.
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, payload: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.supply {
            Supply::Part(held) => held.read_exact_at(payload, offset),
            Supply::Object(object) => object.read_exact_at(payload, offset),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Verified> {
        // A thread that panicked while holding it leaves out one group at most, which it says it has.
        self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_net::store::{PartFile, Placing, Size};
    use polycast_protocol::push::PeerId;
    use polycast_testing::{folder_in_memory, until};
    use polycast_wire::control::WANT_MAX;
    use std::io::Write as _;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

    /// A member that asks for as many groups as it may, and takes none of them.
    fn idle_peer(address: SocketAddr) -> TcpStream {
        let enter = Overlay::Enter { handle: Handle(5), ticket: [0; 32], entry: 0, have: Vec::new() };
        let want = Overlay::Want((0..WANT_MAX as u64).collect());
        let mut words = Vec::new();
        [enter, want].map(Control::Overlay).iter().for_each(|word| word.emit(&mut words));
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(&words).unwrap();
        peer.set_nonblocking(true).unwrap();
        peer
    }

    /// An object whose bytes cannot be read for a fault of ours.
    struct Breaks;

    impl ObjectSource for Breaks {
        fn len(&self) -> u64 {
            1 << 20
        }

        fn read_exact_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
            panic!("the fault that the test plants");
        }
    }

    /// A fault ends the thread that serves all members: their places are free for those who come later.
    #[test]
    fn members_whose_thread_has_ended_keep_no_place() {
        let geometry = Geometry { object_len: 1 << 20, fragment_len: 1_400, group_len: 1 << 18 };
        let served = Served::new(Handle(5), geometry, Supply::Object(Arc::new(Breaks)), (None, None));
        (0..geometry.groups()).for_each(|group| served.mark(group));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let mut strangers = Strangers::new(listener, None);
        for number in 0..3 {
            let entry = served.entry_of(PeerId(number));
            let enter = Overlay::Enter { handle: Handle(5), ticket: [0; 32], entry, have: Vec::new() };
            let mut words = Vec::new();
            Control::Overlay(enter).emit(&mut words);
            let mut peer = TcpStream::connect(address).unwrap();
            peer.write_all(&words).unwrap();
            peer.set_nonblocking(true).unwrap();
            until("its connection has ended", || {
                served.meet(&mut strangers);
                !peer.peek(&mut [0]).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
            });
            until("its place is free", || served.active() == 0);
        }
        served.stop();
    }

    /// Peers that take nothing leave room for others, also of the same address, and soon for all.
    #[test]
    fn idle_peers_do_not_stay() {
        let folder = folder_in_memory();
        // They ask for far more than the system keeps for one that takes nothing: all of it a hole.
        let len = (WANT_MAX as u64) << 20;
        let geometry = Geometry { object_len: len, fragment_len: 1_400, group_len: 1 << 20 };
        let (target, size) = (folder.path().join("object"), Size { len, data_len: 0 });
        let part = PartFile::open_with(&target, size, Placing::default(), None).unwrap();
        let served = Served::new(Handle(5), geometry, Supply::Part(part.held()), (None, None));
        (0..geometry.groups()).for_each(|group| served.mark(group));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let mut strangers = Strangers::new(listener, None);
        let peers: Vec<TcpStream> = (0..PEERS_OF_ONE_MAX + 4).map(|_| idle_peer(address)).collect();
        let mut most = 0;
        until("each is served or turned away", || {
            served.meet(&mut strangers);
            most = most.max(served.active());
            let waits =
                |peer: &TcpStream| peer.peek(&mut [0]).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
            !peers.iter().any(waits)
        });
        assert_eq!(most, PEERS_OF_ONE_MAX, "of one address");
        until("none that takes nothing stays", || served.active() == 0);
        let later = idle_peer(address);
        until("one that comes later is served", || {
            served.meet(&mut strangers);
            matches!(later.peek(&mut [0]), Ok(1))
        });
        served.stop();
        drop(peers);
    }
}
