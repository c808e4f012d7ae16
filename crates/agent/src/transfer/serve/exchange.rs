//! Members of a mesh, at the end that serves them (`protocol::push::overlay`): a source gives each of its
//! groups away, a receiver gives what it is asked for.
//!
//! One thread serves all of them. It is woken when there is room on a connection, when a member says
//! something, and when there is news for a member that is to hear of it at once; with a thread for each
//! member they would wake each other for each group.

use super::super::bell::Bell;
use super::super::clock::{Clock, wait};
use super::{LOOK_INTERVAL, PEER_TIMEOUT, Served, Supply};
use polycast_net::frames::{Block, FrameError, FrameStream};
use polycast_protocol::push::PeerId;
use polycast_protocol::push::overlay::Requests;
use polycast_types::{Duration, RangeSet, Time};
use polycast_wire::WireError;
use polycast_wire::control::{Control, Overlay};
use rustix::event::{PollFd, PollFlags};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

/// A source looks so often whether it may give a group again.
const GIVE_INTERVAL: Duration = Duration::from_millis(20);

/// Members that are about to be served, and the bell that wakes the thread that serves them.
#[derive(Default)]
pub(super) struct Hall {
    came: Vec<Member>,
    /// There while the thread runs.
    bell: Option<Bell>,
}

/// One that is served.
struct Member {
    stream: FrameStream,
    address: Option<IpAddr>,
    part: Part,
    /// A group that is being sent, if it is in memory: its buffer takes another one afterwards.
    block: Option<Arc<Block>>,
    /// No more goes out before this, where the source has a rate.
    due: Time,
    /// Time at which something went out, or began to wait.
    moved_at: Time,
    /// It may have said something; and there may be room on its connection.
    may_have_said: bool,
    may_have_room: bool,
}

/// Role of a member.
enum Part {
    /// It asks for what it needs.
    Asks(Requests),
    /// It takes what the source gives it.
    Takes(PeerId),
    /// It takes what is on its way to it, and then no more by this connection.
    TakesTheRest(PeerId),
}

/// Event that a member waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Nothing: there is more to send.
    Nothing,
    /// Room on its connection.
    Room,
    /// The time at which its source may send again.
    Due(Time),
    /// News, or that it asks; there may be news from then on.
    News(Time),
    /// A group that it may be given.
    Group,
}

impl Served {
    /// There is something new for the thread that serves members.
    pub(super) fn ring(&self) {
        self.hall().bell.iter().for_each(Bell::ring);
    }

    fn hall(&self) -> MutexGuard<'_, Hall> {
        // Nothing here panics between two changes that belong together.
        self.hall.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a member of the mesh.
    pub(super) fn exchange_with(self: &Arc<Self>, mut stream: FrameStream, entry: u64, have: RangeSet) {
        stream.trust();
        let part = match &self.giving {
            None => Part::Asks(Requests::new(self.geometry.groups())),
            Some(giving) => match giving.come(entry, have) {
                Ok(peer) => Part::Takes(peer),
                Err(why) => return refuse(stream, why),
            },
        };
        let address = stream.peer().map(|peer| peer.ip());
        let (due, moved_at) = (Time::ZERO, Time::ZERO);
        let (may_have_said, may_have_room) = (true, true);
        let member =
            Member { stream, address, part, block: None, due, moved_at, may_have_said, may_have_room };
        if !self.has_room_for(address) {
            return self.leave(&member);
        }
        self.seat(member);
    }

    /// Hands a member to the thread that serves them, and begins that where it does not run.
    fn seat(self: &Arc<Self>, member: Member) {
        let mut hall = self.hall();
        hall.came.push(member);
        if let Some(bell) = &hall.bell {
            return bell.ring();
        }
        let begun = Bell::new().and_then(|bell| {
            hall.bell = Some(bell.clone());
            let served = Arc::clone(self);
            let work = move || {
                let mut members = Vec::new();
                let serve = || served.serve_members(&bell, &mut members);
                let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(serve));
                // Those that come later have a thread of their own again, and the places of these.
                if ran.is_err() {
                    served.hall().bell = None;
                    members.iter().for_each(|member| served.see_off(member));
                }
            };
            std::thread::Builder::new().name("polycast-serve".into()).spawn(work)
        });
        if let Err(error) = begun {
            tracing::warn!(%error, "cannot serve the others");
            hall.bell = None;
            let came = std::mem::take(&mut hall.came);
            drop(hall);
            came.iter().for_each(|member| self.see_off(member));
        }
    }

    /// A member is served no more.
    fn see_off(&self, member: &Member) {
        self.forget(member.address);
        self.leave(member);
    }

    fn leave(&self, member: &Member) {
        if let (Part::Takes(peer) | Part::TakesTheRest(peer), Some(giving)) = (&member.part, &self.giving) {
            giving.leave(*peer);
        }
    }

    /// Serves members until there are none, or serving ends. Those that are served are in `members`.
    fn serve_members(&self, bell: &Bell, members: &mut Vec<Member>) {
        let clock = Clock::start();
        loop {
            bell.clear();
            {
                let mut hall = self.hall();
                let moved_at = clock.now();
                members.extend(hall.came.drain(..).map(|member| Member { moved_at, ..member }));
                if members.is_empty() || self.stop.load(Ordering::Relaxed) {
                    hall.bell = None;
                    break;
                }
            }
            let (seen, looked_at) = (self.lock().order.len(), clock.now());
            let mut waits = Vec::with_capacity(members.len());
            members.retain_mut(|member| match self.turn(member, &clock) {
                Ok(next) => {
                    waits.push(next);
                    true
                }
                Err(error) => {
                    tracing::debug!(%error, "a member of the mesh has left");
                    self.see_off(member);
                    false
                }
            });
            if let Err(error) = self.wait_for(members, &waits, (bell, seen, looked_at), &clock) {
                tracing::warn!(%error, "cannot wait for the others");
                let mut hall = self.hall();
                hall.bell = None;
                members.append(&mut hall.came);
                break;
            }
        }
        members.drain(..).for_each(|member| self.see_off(&member));
    }

    /// Waits until one of the members can go on. `seen` is how many groups were here before they were looked
    /// at, and `looked_at` when that was.
    fn wait_for(
        &self,
        members: &mut [Member],
        waits: &[Next],
        (bell, seen, looked_at): (&Bell, usize, Time),
        clock: &Clock,
    ) -> std::io::Result<()> {
        let now = clock.now();
        let until = waits.iter().filter_map(|next| match next {
            Next::Nothing => Some(now),
            Next::Due(at) => Some(*at),
            Next::News(at) => (*at > looked_at).then_some(*at),
            Next::Group => Some(now + GIVE_INTERVAL),
            Next::Room => None,
        });
        let mut until = until.min();
        let hears =
            |next: &Next| matches!(next, Next::Group) || matches!(next, Next::News(at) if *at <= looked_at);
        if waits.iter().any(hears) {
            // What comes from here on rings; what has come meanwhile has not.
            self.wants_news.store(true, Ordering::SeqCst);
            if self.lock().order.len() > seen {
                until = Some(now);
            }
        }
        let own = members.iter().zip(waits).map(|(member, next)| {
            let flags = match next {
                Next::Room => PollFlags::OUT,
                // One whose connection ends meanwhile is seen off later.
                Next::Nothing | Next::Due(_) => return bell.descriptor(),
                Next::News(_) | Next::Group => PollFlags::IN,
            };
            PollFd::from_borrowed_fd(member.stream.as_fd(), flags)
        });
        let mut fds: Vec<PollFd<'_>> = std::iter::once(bell.descriptor()).chain(own).collect();
        wait(&mut fds, now, until, Duration::from(LOOK_INTERVAL))?;
        let ended = PollFlags::HUP | PollFlags::ERR;
        let came: Vec<PollFlags> = fds[1..].iter().map(PollFd::revents).collect();
        drop(fds);
        for (member, came) in members.iter_mut().zip(came) {
            member.may_have_said |= came.intersects(PollFlags::IN | ended);
            member.may_have_room |= came.intersects(PollFlags::OUT | ended);
        }
        Ok(())
    }

    /// Does for a member what can be done now: at most one group, so that each has its turn.
    fn turn(&self, member: &mut Member, clock: &Clock) -> Result<Next, FrameError> {
        if let Some(next) = self.push(member, clock)? {
            return Ok(next);
        }
        if std::mem::take(&mut member.may_have_said)
            && let Some(why) = self.hear(member)?
        {
            tracing::debug!(%why, "a member of the mesh is turned away");
            member.stream.send(&Control::Refuse(&why))?;
            member.stream.finish();
            return Err(FrameError::Closed);
        }
        let now = clock.now();
        let group = match (&mut member.part, &self.giving) {
            (Part::Asks(requests), _) => {
                let news = requests.news(now, &self.lock().order);
                if !news.is_empty() {
                    member.stream.queue(&Control::Overlay(Overlay::Holds(news)));
                }
                requests.take()
            }
            (Part::Takes(peer), Some(giving)) => giving.take(*peer)?,
            // All that was on its way has gone out.
            (Part::TakesTheRest(_), _) => return Err(FrameError::Closed),
            (Part::Takes(_), None) => unreachable!("only a source gives"),
        };
        if let Some(group) = group {
            member.block = self.queue_group(&mut member.stream, group)?;
        }
        // It may have taken a while to read it.
        member.moved_at = clock.now();
        member.may_have_room = true;
        if let Some(next) = self.push(member, clock)? {
            return Ok(next);
        }
        Ok(match &member.part {
            _ if group.is_some() => Next::Nothing,
            Part::Asks(requests) => Next::News(requests.news_at()),
            Part::Takes(_) | Part::TakesTheRest(_) => Next::Group,
        })
    }

    /// Sends what is queued for a member, at the source's rate where it has one; gives what it waits for,
    /// `None` where all is sent.
    fn push(&self, member: &mut Member, clock: &Clock) -> Result<Option<Next>, FrameError> {
        let Member { stream, block, due, moved_at, may_have_said, may_have_room, .. } = member;
        let queued = stream.queued();
        if queued == 0 {
            return Ok(None);
        }
        let is_late = clock.now().since(*moved_at) >= Duration::from(PEER_TIMEOUT);
        if !std::mem::take(may_have_room) && !is_late {
            return Ok(Some(Next::Room));
        }
        let pause = self.pacing.as_ref().map_or(std::time::Duration::ZERO, |pacing| pacing.until(*due));
        let now = clock.now();
        if !pause.is_zero() {
            (*moved_at, *may_have_room) = (now, true);
            return Ok(Some(Next::Due(now + Duration::from(pause))));
        }
        let most = self.pacing.as_ref().map_or(usize::MAX, |pacing| pacing.piece_len());
        let sent = stream.flush_some(most)? as u64;
        if let Some(pacing) = self.pacing.as_ref().filter(|_| sent > 0) {
            *due = pacing.spend(sent);
        }
        if stream.queued() == 0 {
            // What it asks for next has waited.
            *may_have_said = true;
            block.take().into_iter().for_each(|block| self.recent().give_back(block));
            return Ok(None);
        }
        if stream.queued() < queued {
            *moved_at = now;
        } else if now.since(*moved_at) >= Duration::from(stream.patience(PEER_TIMEOUT)) {
            return Err(FrameError::Closed);
        }
        *may_have_room = sent == most as u64;
        Ok(Some(if *may_have_room { Next::Nothing } else { Next::Room }))
    }

    /// Takes in what a member says; gives why it is turned away, if it is.
    fn hear(&self, member: &mut Member) -> Result<Option<String>, FrameError> {
        let filled = member.stream.fill();
        let requests = match &mut member.part {
            Part::Asks(requests) => requests,
            // It says nothing here, and ends what it says when it is to get nothing more.
            Part::Takes(peer) | Part::TakesTheRest(peer) => {
                let peer = *peer;
                return match filled {
                    Ok(true) => Err(FrameError::Wire(WireError::Malformed)),
                    Ok(false) => Ok(None),
                    Err(FrameError::Closed) => {
                        member.part = Part::TakesTheRest(peer);
                        Ok(None)
                    }
                    Err(error) => Err(error),
                };
            }
        };
        filled?;
        loop {
            match member.stream.next_frame()? {
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

    /// Queues a group from where it is; gives it where that is in memory.
    fn queue_group(&self, stream: &mut FrameStream, group: u64) -> Result<Option<Arc<Block>>, FrameError> {
        let bytes = self.geometry.group_bytes(group);
        let len = bytes.end - bytes.start;
        if let Supply::Part(held) = &self.supply
            && stream.queue_held(group, held, bytes.clone())
        {
            self.sent_bytes.fetch_add(len, Ordering::Relaxed);
            return Ok(None);
        }
        let kept = self.recent().find(group);
        let block = match kept {
            Some(block) => block,
            None => {
                let mut buffer = self.spare();
                buffer.resize(len as usize, 0);
                self.read(&mut buffer, bytes.start)?;
                Arc::new(Block::of(buffer))
            }
        };
        self.sent_bytes.fetch_add(len, Ordering::Relaxed);
        stream.queue_block(group, Arc::clone(&block));
        Ok(Some(block))
    }
}

/// One that does not hear this notices that the connection ends.
fn refuse(mut stream: FrameStream, why: &str) {
    let _ = stream.send(&Control::Refuse(why));
    stream.finish();
}
