//! Serving hash groups over TCP, from the source or from a receiver's part file: to the next in a chain, or to those who have this end as a candidate.

mod exchange;
mod giving;
mod recent;

use super::clock::Clock;
use super::pacing::Pacing;
use super::strangers::Strangers;
use exchange::Hall;
use giving::Giving;
use polycast_net::frames::{Block, FrameError, FrameStream};
use polycast_net::object::ObjectSource;
use polycast_net::seal::Secret;
use polycast_net::store::Held;
use polycast_net::tls::Binding;
use polycast_protocol::push::{Geometry, Relay};
use polycast_protocol::session::{Admission, Ticket, Tickets};
use polycast_types::{Handle, RangeSet, Time};
use polycast_wire::WireError;
use polycast_wire::control::{Control, MEMBERS_MAX, Overlay};
use recent::Recent;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How many peers are served at the same time.
const PEERS_MAX: usize = 16;
/// How many of them at one address: several receivers may share a host.
const PEERS_OF_ONE_MAX: usize = 8;
/// A peer that takes nothing of what it was sent for this long is dropped, and so is one that has all and stays. One that meant
/// it comes again: the source shows it where. One that is far away has longer.
const PEER_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest time without a look at whether serving has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Where the bytes are read.
pub(crate) enum Supply {
    /// What a receiver has of it.
    Part(Arc<Held>),
    /// The object at its source.
    Object(Arc<dyn ObjectSource>),
}

/// What can be served, shared by the thread that receives or hashes and the threads that serve.
pub(crate) struct Served {
    geometry: Geometry,
    supply: Supply,
    /// What tickets are made of; none are asked for where connections are not sealed.
    secret: Option<Secret>,
    tickets: Mutex<Tickets>,
    /// The rate of a source; a receiver that serves others has none.
    pacing: Option<Arc<Pacing>>,
    /// The groups that may be served, in the order in which they became so: each peer reads on where it is.
    verified: Mutex<Verified>,
    changed: Condvar,
    stop: AtomicBool,
    /// Where the peers are that are served.
    peers: Mutex<Vec<Option<IpAddr>>>,
    sent_bytes: AtomicU64,
    /// Receivers of the same rack that have come here, by their numbers.
    newcomers: Mutex<Vec<(u32, FrameStream)>>,
    /// What a source gives away to the members of a mesh.
    giving: Option<Giving>,
    /// Groups that have just come.
    recent: Mutex<Recent>,
    /// Members that choose, on their way to the thread that serves them.
    hall: Mutex<Hall>,
    /// That thread is to be woken when another group may be served.
    wants_news: AtomicBool,
}

/// Groups that may be served.
struct Verified {
    is: Vec<bool>,
    order: Vec<u64>,
}

/// What a peer has, and how far it has read in the order.
struct Reader {
    has: Vec<bool>,
    lacks: usize,
    read: usize,
}

impl Reader {
    fn new(has: Vec<bool>) -> Self {
        let lacks = has.iter().filter(|has| !**has).count();
        Reader { has, lacks, read: 0 }
    }

    /// The next group that it lacks, of those that are there: it has it then.
    fn take(&mut self, order: &[u64]) -> Option<u64> {
        while let Some(&group) = order.get(self.read) {
            self.read += 1;
            if !std::mem::replace(&mut self.has[group as usize], true) {
                self.lacks -= 1;
                return Some(group);
            }
        }
        None
    }
}

/// What a connection is for.
pub(crate) enum Wish {
    /// Groups; its end has these.
    Groups(Vec<bool>),
    /// Groups among which its end chooses, or which a source gives to the one that it knows by this number.
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
        relay: Relay,
    ) -> Arc<Self> {
        let gives = matches!(supply, Supply::Object(_)) && relay == Relay::Mesh;
        Arc::new(Served {
            giving: gives.then(|| Giving::new(geometry.groups())),
            recent: Mutex::default(),
            hall: Mutex::default(),
            wants_news: AtomicBool::new(false),
            supply,
            secret,
            tickets: Mutex::new(Tickets::new(handle)),
            pacing,
            verified: Mutex::new(Verified { is: vec![false; geometry.groups() as usize], order: Vec::new() }),
            changed: Condvar::new(),
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
        if self.active() > 0 {
            self.changed.notify_all();
        }
        if self.wants_news.swap(false, Ordering::SeqCst) {
            self.ring();
        }
    }

    /// Ends all serving.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.changed.notify_all();
        self.ring();
    }

    /// How many peers are being served.
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

    /// Takes in connections and what they ask for: each that fetches is served in a thread of its own.
    pub(crate) fn meet(self: &Arc<Self>, strangers: &mut Strangers) {
        for (stream, wish) in strangers.meet(|frame, binding| self.wish(frame, binding)) {
            self.take_in(stream, wish);
        }
    }

    /// Does what a connection is for.
    pub(crate) fn take_in(self: &Arc<Self>, stream: FrameStream, wish: Wish) {
        match wish {
            Wish::Groups(have) => {
                self.in_thread(stream, |served, stream| served.serve(stream, have));
            }
            Wish::Exchange(entry, have) => self.exchange_with(stream, entry, have),
            Wish::Speaker(member) => self.come(member, stream),
        }
    }

    /// What a connection is for, if it is for this transfer.
    pub(crate) fn wish(&self, frame: &Control<'_>, binding: Option<Binding>) -> Option<Wish> {
        let groups = self.geometry.groups();
        let wish = match frame {
            Control::Member { member, .. } => Wish::Speaker(*member),
            Control::Fetch { have, .. } => {
                let mut has = vec![false; groups as usize];
                for range in have {
                    has.get_mut(range.start as usize..range.end as usize)?.fill(true);
                }
                Wish::Groups(has)
            }
            Control::Overlay(Overlay::Enter { entry, have, .. }) => {
                let is_within = have.iter().all(|range| range.end <= groups);
                Wish::Exchange(*entry, is_within.then(|| have.iter().cloned().collect())?)
            }
            _ => return None,
        };
        self.lets_in(frame, binding).then_some(wish)
    }

    /// Whether the other end of a connection takes part in this transfer.
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

    /// Serves a connection in a thread of its own; gives whether there is room for it.
    fn in_thread(
        self: &Arc<Self>,
        mut stream: FrameStream,
        serve: impl FnOnce(&Self, &mut FrameStream) -> Result<(), FrameError> + Send + 'static,
    ) -> bool {
        let address = stream.peer().map(|peer| peer.ip());
        if !self.has_room_for(address) {
            return false;
        }
        let served = Arc::clone(self);
        let work = move || {
            if let Err(error) = serve(&served, &mut stream) {
                tracing::debug!(%error, "a peer that fetches left");
            }
            served.forget(address);
        };
        let is_begun = std::thread::Builder::new().name("polycast-serve".into()).spawn(work).is_ok();
        if !is_begun {
            self.forget(address);
        }
        is_begun
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

    fn serve(&self, stream: &mut FrameStream, has: Vec<bool>) -> Result<(), FrameError> {
        let (mut reader, mut due) = (Reader::new(has), Time::ZERO);
        while let Some(group) = self.next(&mut reader) {
            self.send_group(stream, group, &mut due)?;
        }
        // The peer closes when it needs nothing more. It says nothing here.
        let clock = Clock::start();
        while !self.stop.load(Ordering::Relaxed)
            && clock.seconds() < stream.patience(PEER_TIMEOUT).as_secs_f64()
        {
            stream.wait(LOOK_INTERVAL)?;
            if stream.fill()? {
                return Err(FrameError::Wire(WireError::Malformed));
            }
        }
        Ok(())
    }

    /// Sends a group from where it is, and waits until it is sent.
    fn send_group(&self, stream: &mut FrameStream, group: u64, due: &mut Time) -> Result<(), FrameError> {
        let block = self.queue_group(stream, group)?;
        self.drain(stream, due)?;
        block.into_iter().for_each(|block| self.recent().give_back(block));
        Ok(())
    }

    /// A group that has just come is sent on from where it is, while it is among the last ones. What goes on from the file needs none.
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

    /// Sends what is queued, at the source's rate where it has one: no more goes out before `due`.
    fn drain(&self, stream: &mut FrameStream, due: &mut Time) -> Result<(), FrameError> {
        let clock = Clock::start();
        let mut moved_at = 0.0;
        while stream.queued() > 0 {
            if self.stop.load(Ordering::Relaxed) {
                return Err(FrameError::Closed);
            }
            let pause = self.pacing.as_ref().map_or(Duration::ZERO, |pacing| pacing.until(*due));
            if !pause.is_zero() {
                std::thread::sleep(pause.min(LOOK_INTERVAL));
                moved_at = clock.seconds();
                continue;
            }
            let left = stream.queued();
            let most = self.pacing.as_ref().map_or(usize::MAX, |pacing| pacing.piece_len());
            let sent = stream.flush_some(most)? as u64;
            if let Some(pacing) = self.pacing.as_ref().filter(|_| sent > 0) {
                *due = pacing.spend(sent);
            }
            if stream.queued() < left {
                moved_at = clock.seconds();
            } else if clock.seconds() - moved_at > stream.patience(PEER_TIMEOUT).as_secs_f64() {
                return Err(FrameError::Closed);
            } else {
                // One that says something meanwhile is heard when it has what it was sent.
                stream.wait_for_room(LOOK_INTERVAL)?;
            }
        }
        Ok(())
    }

    /// Waits for the next group that the peer lacks; `None` when it has all, or serving ends.
    fn next(&self, reader: &mut Reader) -> Option<u64> {
        let mut verified = self.lock();
        loop {
            if self.stop.load(Ordering::Relaxed) || reader.lacks == 0 {
                return None;
            }
            if let Some(group) = reader.take(&verified.order) {
                return Some(group);
            }
            let wait = self.changed.wait_timeout(verified, Duration::from_millis(100));
            verified = wait.unwrap_or_else(PoisonError::into_inner).0;
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
    use proptest::prelude::*;

    proptest! {
        /// Whenever groups come, a peer gets each that it lacks once, as soon as it is there, and none that it has.
        #[test]
        fn a_peer_gets_each_group_that_it_lacks_once(
            has in proptest::collection::vec(any::<bool>(), 1..40),
            come in proptest::collection::vec((0usize..40, any::<bool>()), 0..80),
        ) {
            let geometry = Geometry { object_len: has.len() as u64 * 10, fragment_len: 10, group_len: 10 };
            let object = Supply::Object(Arc::new(vec![0; has.len() * 10]));
            let served = Served::new(Handle(5), geometry, object, (None, None), Relay::Chain);
            let (mut reader, mut got) = (Reader::new(has.clone()), Vec::new());
            let mut there = std::collections::BTreeSet::new();
            for (group, reads) in come {
                let group = group % has.len();
                served.mark(group as u64);
                there.insert(group);
                while reads && let Some(group) = reader.take(&served.lock().order) {
                    got.push(group as usize);
                }
                let waits = there.iter().filter(|group| !has[**group] && !got.contains(group)).count();
                prop_assert!(!reads || waits == 0, "{waits} are there and wait");
            }
            let once: std::collections::BTreeSet<usize> = got.iter().copied().collect();
            prop_assert_eq!(once.len(), got.len());
            prop_assert!(once.iter().all(|group| !has[*group] && there.contains(group)));
            prop_assert_eq!(reader.lacks, has.iter().filter(|has| !**has).count() - got.len());
        }
    }
    use polycast_testing::until;
    use std::io::Write as _;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    /// Peers that take nothing leave room for others of the same address, and soon for all.
    #[test]
    fn idle_peers_do_not_stay() {
        let object = vec![7u8; 96 << 20];
        let geometry = Geometry { object_len: object.len() as u64, fragment_len: 1_400, group_len: 1 << 18 };
        let served =
            Served::new(Handle(5), geometry, Supply::Object(Arc::new(object)), (None, None), Relay::Chain);
        (0..geometry.groups()).for_each(|group| served.mark(group));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let mut strangers = Strangers::new(listener, None);
        let mut fetch = Vec::new();
        Control::Fetch { handle: Handle(5), ticket: [0; 32], have: Vec::new() }.emit(&mut fetch);
        let all = std::iter::once(0..geometry.groups()).collect();
        let mut has_all = Vec::new();
        Control::Fetch { handle: Handle(5), ticket: [0; 32], have: all }.emit(&mut has_all);
        let peers: Vec<TcpStream> = (0..PEERS_OF_ONE_MAX + 4)
            .map(|at| {
                let mut peer = TcpStream::connect(address).unwrap();
                peer.write_all(if at == 0 { &has_all } else { &fetch }).unwrap();
                peer
            })
            .collect();
        peers.iter().for_each(|peer| peer.set_nonblocking(true).unwrap());
        let mut most = 0;
        until("each is served or turned away", || {
            served.meet(&mut strangers);
            most = most.max(served.active());
            // The first one has everything, and hears nothing.
            let waits =
                |peer: &TcpStream| peer.peek(&mut [0]).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
            !peers[1..].iter().any(waits)
        });
        assert_eq!(most, PEERS_OF_ONE_MAX, "of one address");
        until("none that takes nothing stays", || served.active() == 0);
        drop(peers);
    }
}
