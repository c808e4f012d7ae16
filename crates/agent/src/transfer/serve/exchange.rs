//! Members of a mesh, at the end that serves them (`protocol::push::overlay`): a source gives each of its groups away, a receiver gives what it is
//! asked for.

use super::super::bell::Bell;
use super::super::clock::{Clock, wait};
use super::super::control::fresh_number;
use super::{LOOK_INTERVAL, PEER_TIMEOUT, Served};
use polycast_net::frames::{FrameError, FrameStream};
use polycast_protocol::push::PeerId;
use polycast_protocol::push::overlay::{Requests, Seeding};
use polycast_types::{Duration, RangeSet, Time};
use polycast_wire::WireError;
use polycast_wire::control::{Control, Overlay};
use rustix::event::{PollFd, PollFlags};
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A source looks so often whether it may give a group again.
const GIVE_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);

/// A member is told no more often what is here: each time wakes both ends.
const NEWS_INTERVAL: Duration = Duration::from_millis(2);

/// What a source gives away.
pub(super) struct Giving {
    clock: Clock,
    seeding: Mutex<Seeding>,
    takers: Mutex<Takers>,
}

/// Receivers that may take.
#[derive(Default)]
struct Takers {
    /// What each shows.
    entries: BTreeMap<u64, PeerId>,
    /// Which of its connections counts: the last one.
    connections: BTreeMap<PeerId, u64>,
}

impl Giving {
    pub(super) fn new(groups: u64) -> Self {
        Giving { clock: Clock::start(), seeding: Mutex::new(Seeding::new(groups)), takers: Mutex::default() }
    }

    pub(super) fn seeding(&self) -> MutexGuard<'_, Seeding> {
        // The machine asserts what it needs between two inputs.
        self.seeding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn takers(&self) -> MutexGuard<'_, Takers> {
        self.takers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a connection of the receiver that shows this; gives which of its connections it is.
    fn come(&self, entry: u64, have: RangeSet) -> Result<(PeerId, u64), &'static str> {
        // One of the same receiver that leaves at this moment comes before or after.
        let mut takers = self.takers();
        let Some(peer) = takers.entries.get(&entry).copied() else {
            return Err("this source has not told it to take what it gives");
        };
        if !self.seeding().come(peer, have) {
            return Err("as many take what this source gives as there may be");
        }
        let number = takers.connections.entry(peer).or_default();
        *number += 1;
        Ok((peer, *number))
    }

    /// A receiver takes no more by this connection. It may have come by another one.
    fn leave(&self, peer: PeerId, number: u64) {
        let takers = self.takers();
        if takers.connections.get(&peer) == Some(&number) {
            self.seeding().leave(peer);
        }
    }

    fn is_last(&self, peer: PeerId, number: u64) -> bool {
        self.takers().connections.get(&peer) == Some(&number)
    }
}

impl Served {
    /// What a receiver shows that takes what this source gives.
    pub(crate) fn entry_of(&self, peer: PeerId) -> u64 {
        let Some(giving) = &self.giving else { return 0 };
        let mut takers = giving.takers();
        if let Some((entry, _)) = takers.entries.iter().find(|(_, known)| **known == peer) {
            return *entry;
        }
        let entry = fresh_number().max(1);
        takers.entries.insert(entry, peer);
        entry
    }

    /// A receiver lacks groups that none of its candidates has.
    pub(crate) fn lack(&self, peer: PeerId, ranges: &[Range<u64>]) {
        let Some(giving) = &self.giving else { return };
        giving.seeding().lack(giving.clock.now(), peer, ranges);
        self.changed.notify_all();
    }

    /// A receiver has got wrong bytes, or nothing, from another one.
    pub(crate) fn complain(&self, by: PeerId, about: PeerId) {
        if let Some(giving) = &self.giving {
            giving.seeding().complain(by, about);
        }
    }

    /// A receiver comes no more.
    pub(crate) fn forget_taker(&self, peer: PeerId) {
        let Some(giving) = &self.giving else { return };
        giving.seeding().forget(peer);
        let mut takers = giving.takers();
        takers.entries.retain(|_, known| *known != peer);
        takers.connections.remove(&peer);
    }

    /// There is something new for those who serve members.
    pub(super) fn ring(&self) {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Bell::ring);
    }

    /// Serves a member of the mesh.
    pub(super) fn exchange_with(self: &Arc<Self>, mut stream: FrameStream, entry: u64, have: RangeSet) {
        stream.trust();
        let Some(giving) = &self.giving else {
            self.in_thread(stream, |served, stream| served.serve_requests(stream));
            return;
        };
        let (peer, number) = match giving.come(entry, have) {
            Ok(came) => came,
            Err(why) => return refuse(stream, why),
        };
        let is_served = self.in_thread(stream, move |served, stream| {
            let given = served.give(stream, peer, number);
            served.giving.iter().for_each(|giving| giving.leave(peer, number));
            given
        });
        if !is_served {
            giving.leave(peer, number);
        }
    }

    /// Gives groups to a member, as the machine chooses them.
    fn give(&self, stream: &mut FrameStream, peer: PeerId, number: u64) -> Result<(), FrameError> {
        let Some(giving) = &self.giving else { return Ok(()) };
        let mut due = Time::ZERO;
        while !self.stop.load(Ordering::Relaxed) && giving.is_last(peer, number) {
            let next = giving.seeding().take(giving.clock.now(), peer);
            match next {
                Some(group) => self.send_group(stream, group, &mut due)?,
                None => {
                    // It says nothing here, and closes when it needs nothing more.
                    if stream.fill()? {
                        return Err(FrameError::Wire(WireError::Malformed));
                    }
                    drop(self.changed.wait_timeout(self.lock(), GIVE_INTERVAL));
                }
            }
        }
        Ok(())
    }

    /// Gives a member what it asks for, and says what is here.
    fn serve_requests(&self, stream: &mut FrameStream) -> Result<(), FrameError> {
        let bell = Bell::new()?;
        self.bells.lock().unwrap_or_else(PoisonError::into_inner).push(bell.clone());
        let served = self.serve_until_it_leaves(stream, &bell);
        self.bells.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| !other.is(&bell));
        served
    }

    fn serve_until_it_leaves(&self, stream: &mut FrameStream, bell: &Bell) -> Result<(), FrameError> {
        let mut requests = Requests::new(self.geometry.groups());
        let (clock, mut due) = (Clock::start(), Time::ZERO);
        // When there may be news again, and since when what was said waits.
        let (mut news_at, mut waits_since) = (Time::ZERO, None);
        while !self.stop.load(Ordering::Relaxed) {
            let is_due = clock.now() >= news_at && stream.queued() == 0;
            if is_due {
                bell.clear();
                let news = requests.news(&self.lock().order);
                if !news.is_empty() {
                    stream.queue(&Control::Overlay(Overlay::Holds(news)));
                    news_at = clock.now() + NEWS_INTERVAL;
                }
            }
            stream.fill()?;
            if let Some(why) = self.hear(stream, &mut requests)? {
                tracing::debug!(%why, "a member of the mesh is turned away");
                stream.send(&Control::Refuse(&why))?;
                stream.finish();
                return Ok(());
            }
            if let Some(group) = requests.take() {
                self.send_group(stream, group, &mut due)?;
                continue;
            }
            stream.flush()?;
            waits_since = (stream.queued() > 0).then(|| waits_since.unwrap_or_else(|| clock.now()));
            let patience = Duration::from(stream.patience(PEER_TIMEOUT));
            if waits_since.is_some_and(|since| clock.now().since(since) >= patience) {
                return Err(FrameError::Closed);
            }
            let writing = if stream.queued() > 0 { PollFlags::OUT } else { PollFlags::empty() };
            let own = PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN | writing);
            let now = clock.now();
            let waits = (now < news_at).then_some(news_at);
            let mut fds = [own, bell.descriptor()];
            let listens = if waits.is_some() { &mut fds[..1] } else { &mut fds[..] };
            wait(listens, now, waits, Duration::from(LOOK_INTERVAL))?;
        }
        Ok(())
    }

    /// Takes in what a member asks for; gives why it is turned away, if it is.
    fn hear(&self, stream: &mut FrameStream, requests: &mut Requests) -> Result<Option<String>, FrameError> {
        loop {
            match stream.next_frame()? {
                None => return Ok(None),
                Some(Control::Overlay(Overlay::Want(groups))) => {
                    let verified = self.lock();
                    let is_here = |group: u64| verified.is.get(group as usize) == Some(&true);
                    if let Err(misuse) = requests.ask(&groups, is_here) {
                        return Ok(Some(misuse.to_string()));
                    }
                }
                Some(_) => return Err(FrameError::Wire(WireError::Malformed)),
            }
        }
    }
}

/// One that does not hear this notices that the connection ends.
fn refuse(mut stream: FrameStream, why: &str) {
    let _ = stream.send(&Control::Refuse(why));
    stream.finish();
}
