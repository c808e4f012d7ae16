//! Fetching over TCP from candidates (`protocol::push::overlay`): the connections around the machine that
//! chooses.

use super::super::assembler::Check;
use super::super::bell::Bell;
use super::super::error::TransferError;
use super::super::fresh::fresh_number;
use super::{FETCH_WITHIN, Input as ReceiverInput, Landing, Run, UNHASHED_MAX, ticket_for};
use polycast_net::frames::{Block, FrameError, FrameStream};
use polycast_protocol::push::overlay::{
    Candidate, UpstreamId, Upstreams, UpstreamsConfig, UpstreamsInput as Input, UpstreamsOutput as Output,
};
use polycast_types::{Duration, RangeSet, Time};
use polycast_wire::control::{CAME_MAX, CameFrom, Control, ENTER_RANGES_MAX, Fault, NOWHERE, Overlay, Share};
use rustix::event::{PollFd, PollFlags};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

/// A connection is read until nothing is left, or so many bytes have come: a hash group.
const READ_AT_ONCE: u64 = 256 << 10;

/// This end was late itself where it comes so long after a tick was due, as behind its disk.
const LATE: Duration = Duration::from_millis(50);

/// Bytes of a range of groups in a frame, and of the frame's length and kind.
const RANGE_LEN: u64 = 16;
const HEAD_LEN: u64 = 5;

/// Address, port and name of a candidate, and the groups that may be requested there.
type NamedEnd = (IpAddr, u16, Option<String>, Share);

/// A connection that was to be made.
type Opened = (UpstreamId, Result<FrameStream, FrameError>);

/// The candidates of a receiver.
pub(super) struct Exchange {
    machine: Upstreams,
    streams: BTreeMap<UpstreamId, FrameStream>,
    /// Ends of the connections, and the bytes of groups that have come from each end; the source is
    /// [`NOWHERE`].
    ends: BTreeMap<UpstreamId, (IpAddr, u16)>,
    given: BTreeMap<(IpAddr, u16), u64>,
    /// Number that the source is shown.
    entry: u64,
    opening: mpsc::Sender<Opened>,
    opened: mpsc::Receiver<Opened>,
    /// Rings when a connection is there.
    bell: Bell,
    tick_at: Option<Time>,
}

/// Next message of a candidate.
enum Said {
    Group(u64, Block),
    Holds(Vec<Range<u64>>),
    Wrong(Fault),
    Nothing,
}

/// Takes the next frame of a candidate. Groups that come one by one are not copied.
fn next_of(stream: &mut FrameStream, spare: impl FnOnce() -> Vec<u8>) -> Said {
    match stream.next_block(spare) {
        Ok(Some((group, block))) => return Said::Group(group, block),
        Ok(None) => {}
        Err(_) => return Said::Wrong(Fault::Foreign),
    }
    match stream.next_frame() {
        Ok(Some(Control::Group { index, payload })) => Said::Group(index, Block::of(payload.to_vec())),
        Ok(Some(Control::Overlay(Overlay::Holds(ranges)))) => Said::Holds(ranges),
        Ok(Some(Control::Refuse(why))) => {
            tracing::debug!(%why, "a candidate turns this end away");
            Said::Wrong(Fault::Unreachable)
        }
        Ok(Some(_)) | Err(_) => Said::Wrong(Fault::Foreign),
        Ok(None) => Said::Nothing,
    }
}

impl Exchange {
    fn new(config: UpstreamsConfig) -> std::io::Result<Self> {
        let (opening, opened) = mpsc::channel();
        Ok(Exchange {
            machine: Upstreams::new(config),
            streams: BTreeMap::new(),
            ends: BTreeMap::new(),
            given: BTreeMap::new(),
            entry: 0,
            opening,
            opened,
            bell: Bell::new()?,
            tick_at: None,
        })
    }

    /// Counts the bytes of a group that has come.
    fn count(&mut self, id: UpstreamId, bytes: usize) {
        if let Some(end) = self.ends.get(&id) {
            let given = self.given.entry(*end).or_default();
            *given = given.saturating_add(bytes as u64);
        }
    }

    /// Returns the time at which [`Run::turn_exchange`] is to be called, if nothing comes before.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.tick_at
    }

    /// Adds the descriptors to wait on: the bell and every connection; connections are not read where there
    /// is no room for what they bring.
    pub(super) fn descriptors<'a>(&'a self, has_room: bool, fds: &mut Vec<PollFd<'a>>) {
        fds.push(self.bell.descriptor());
        for stream in self.streams.values() {
            let reading = if has_room { PollFlags::IN } else { PollFlags::empty() };
            let writing = if stream.queued() > 0 { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), reading | writing));
        }
    }

    /// Returns the connections that have something, by the descriptors that [`Exchange::descriptors`] gave.
    pub(super) fn ready(&self, fds: &[PollFd<'_>]) -> Vec<UpstreamId> {
        let has = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        if has(0) {
            self.bell.clear();
        }
        self.streams.keys().enumerate().filter(|(at, _)| has(at + 1)).map(|(_, id)| *id).collect()
    }
}

impl Run {
    /// The source names candidates.
    pub(super) fn take_candidates(
        &mut self,
        entry: Option<u64>,
        (is_behind_head, ends): (bool, Vec<NamedEnd>),
    ) {
        let (now, groups) = (self.clock.now(), self.offer.geometry.groups());
        if self.exchange.is_none() {
            self.machine.handle(now, ReceiverInput::Chained);
            let config =
                UpstreamsConfig { groups, group_len: self.offer.geometry.group_len, seed: fresh_number() };
            match Exchange::new(config) {
                Ok(exchange) => self.exchange = Some(exchange),
                Err(error) => return tracing::warn!(%error, "cannot fetch from others"),
            }
            tracing::info!(candidates = ends.len(), "fetching over TCP from those that the source has named");
            (0..groups).filter(|group| self.machine.is_verified(*group)).for_each(|group| {
                let exchange = self.exchange.as_mut().expect("just made");
                exchange.machine.handle(now, Input::Verified(group));
            });
        }
        let Some(source) = self.link.source_end() else { return };
        let own = (self.spec.interface, self.strangers.port());
        let mut candidates = Vec::new();
        for (address, port, name, share) in ends {
            let candidate = Candidate { address, port, name, is_source: false, share };
            match candidate.check(own, source.ip()) {
                Ok(()) => candidates.push(candidate),
                Err(why) => {
                    let end = SocketAddr::from((address, port));
                    tracing::warn!(%end, %why, "the source names a candidate that cannot be one");
                }
            }
        }
        let (address, port, share) = (source.ip(), source.port(), Share::ALL);
        let source = Candidate { address, port, name: None, is_source: true, share };
        candidates.extend(entry.map(|_| source));
        let Some(exchange) = &mut self.exchange else { return };
        exchange.entry = entry.unwrap_or(0);
        exchange.machine.handle(now, Input::Candidates { all: &candidates, is_behind_head });
    }

    /// A group is verified, wherever it came from.
    pub(super) fn note_verified(&mut self, group: u64) {
        if let Some(exchange) = &mut self.exchange {
            exchange.machine.handle(self.clock.now(), Input::Verified(group));
        }
    }

    /// A group that came from a candidate is not what it should be.
    fn note_wrong(&mut self, id: UpstreamId, group: u64) {
        if let Some(exchange) = &mut self.exchange {
            exchange.machine.handle(self.clock.now(), Input::Wrong(id, group));
        }
    }

    /// Reads what has come from candidates, and does what the machine orders.
    pub(super) fn turn_exchange(&mut self, ready: &[UpstreamId]) -> Result<(), TransferError> {
        if self.exchange.is_none() {
            return Ok(());
        }
        self.take_opened();
        let now = self.clock.now();
        // What has come in part wakes this end when it is whole. That it comes is a sign of life.
        let has_room = self.unhashed.len() < UNHASHED_MAX;
        let is_due = |exchange: &Exchange| exchange.tick_at.is_none_or(|at| now >= at);
        let all = self.exchange.as_ref().filter(|exchange| has_room && is_due(exchange));
        let all: Option<Vec<UpstreamId>> = all.map(|exchange| exchange.streams.keys().copied().collect());
        let was_late = |exchange: &&mut Exchange| exchange.tick_at.is_some_and(|at| now.since(at) >= LATE);
        if let Some(exchange) = self.exchange.as_mut().filter(was_late) {
            // What has come meanwhile was not read: that is no fault of theirs.
            exchange.machine.handle(now, Input::HeldUp);
        }
        for id in all.as_deref().unwrap_or(ready) {
            self.read_candidate(*id)?;
        }
        let now = self.clock.now();
        if let Some(exchange) = self.exchange.as_mut().filter(|_| self.unhashed.len() >= UNHASHED_MAX) {
            exchange.machine.handle(now, Input::HeldUp);
        }
        if let Some(exchange) = self.exchange.as_mut().filter(|e| e.tick_at.is_none_or(|at| now >= at)) {
            exchange.machine.handle(now, Input::Tick);
            exchange.tick_at = exchange.machine.deadline(now);
        }
        self.obey_exchange();
        Ok(())
    }

    /// Takes in connections that have been made, or could not be.
    fn take_opened(&mut self) {
        let now = self.clock.now();
        let Some(exchange) = &mut self.exchange else { return };
        while let Ok((id, opened)) = exchange.opened.try_recv() {
            match opened {
                // It may have been given up meanwhile.
                Ok(stream) if exchange.machine.is_open(id) => {
                    exchange.streams.insert(id, stream);
                    exchange.machine.handle(now, Input::Opened(id));
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "a candidate cannot be reached");
                    exchange.machine.handle(now, Input::Closed(id, Fault::Unreachable));
                }
            }
        }
    }

    /// Reads what a candidate has said and given.
    fn read_candidate(&mut self, id: UpstreamId) -> Result<(), TransferError> {
        let Some(mut stream) = self.exchange.as_mut().and_then(|exchange| exchange.streams.remove(&id))
        else {
            return Ok(());
        };
        let before = stream.received();
        let mut filled = stream.flush().and_then(|()| stream.fill());
        let now = self.clock.now();
        let hear = |run: &mut Self, input: Input<'_>| {
            if let Some(exchange) = &mut run.exchange {
                exchange.machine.handle(now, input);
            }
        };
        // What it says of groups is nothing that it gives.
        let mut said = 0;
        let fault = loop {
            match next_of(&mut stream, || self.served.spare()) {
                Said::Group(group, block) => {
                    if let Some(exchange) = &mut self.exchange {
                        exchange.count(id, block.bytes().len());
                    }
                    hear(self, Input::Came(id, group));
                    if !self.is_candidate(id) || !self.take_group(id, group, block)? {
                        break None;
                    }
                }
                Said::Holds(ranges) => {
                    said += RANGE_LEN * ranges.len() as u64 + HEAD_LEN;
                    hear(self, Input::Has(id, &ranges));
                }
                Said::Wrong(fault) => break Some(fault),
                Said::Nothing => match filled {
                    // Sealed bytes come in small pieces.
                    Ok(true) if stream.received() - before < READ_AT_ONCE => filled = stream.fill(),
                    Ok(_) => break None,
                    Err(_) => break Some(Fault::Ended),
                },
            }
        };
        let came = stream.received() - before;
        if came > said {
            hear(self, Input::Heard(id, came - said));
        }
        if let Some(fault) = fault {
            hear(self, Input::Closed(id, fault));
        }
        if let Some(exchange) = self.exchange.as_mut().filter(|exchange| exchange.machine.is_open(id)) {
            stream.wait_for_whole();
            exchange.streams.insert(id, stream);
        }
        Ok(())
    }

    fn is_candidate(&self, id: UpstreamId) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| exchange.machine.is_open(id))
    }

    /// A group that came from a candidate; false where nothing more is to be taken from it.
    fn take_group(&mut self, id: UpstreamId, group: u64, block: Block) -> Result<bool, TransferError> {
        match &self.assembler {
            // It came from another one as well.
            Some(assembler) if !assembler.lacks(group) => Ok(true),
            Some(_) => self.accept(group, block, id),
            None => Ok(false),
        }
    }

    /// Takes a group in as soon as its hash is known; false where it came from a candidate that gives wrong
    /// bytes, and is given up.
    pub(super) fn accept(
        &mut self,
        group: u64,
        block: Block,
        from: UpstreamId,
    ) -> Result<bool, TransferError> {
        let Some(assembler) = &mut self.assembler else { return Ok(true) };
        if group >= self.offer.geometry.groups() {
            return Ok(true);
        }
        match assembler.accept(group, block.bytes())? {
            Check::Intact => {
                self.served.keep(group, block);
                self.mark(group);
                self.machine.handle(self.clock.now(), ReceiverInput::Fetched { group });
                self.drain(Landing::Nowhere)?;
            }
            Check::Corrupt => {
                tracing::warn!(group, "a candidate has given wrong bytes");
                self.note_wrong(from, group);
                return Ok(false);
            }
            Check::Later => {
                self.unhashed.insert(group, (from, block));
            }
        }
        Ok(true)
    }

    /// Does what the machine orders.
    fn obey_exchange(&mut self) {
        let now = self.clock.now();
        while let Some(output) = self.exchange.as_mut().and_then(|exchange| exchange.machine.poll()) {
            match output {
                Output::Open(id, candidate) => self.open(id, candidate),
                Output::Ask(id, groups) => {
                    let Some(exchange) = &mut self.exchange else { return };
                    let stream = exchange.streams.get_mut(&id);
                    let sent = stream.map(|stream| stream.send(&Control::Overlay(Overlay::Want(groups))));
                    if !matches!(sent, Some(Ok(()))) {
                        exchange.machine.handle(now, Input::Closed(id, Fault::Ended));
                    }
                }
                Output::Close(id) => {
                    let Some(exchange) = &mut self.exchange else { return };
                    exchange.streams.remove(&id);
                    exchange.ends.remove(&id);
                }
                Output::Finish(id) => {
                    let stream = self.exchange.as_mut().and_then(|exchange| exchange.streams.get_mut(&id));
                    stream.into_iter().for_each(FrameStream::finish);
                }
                Output::Lost(candidate, why) => {
                    let Candidate { address, port, .. } = candidate;
                    tracing::info!(candidate = %SocketAddr::from((address, port)), %why, "fetching from another one");
                    self.link.say(&Control::Overlay(Overlay::Fault { address, port, why }));
                }
                Output::Lacks(ranges) => self.link.say(&Control::Overlay(Overlay::Lacks(ranges))),
            }
        }
    }

    /// Tells the source where the bytes came from, if it has asked: it knows the zones of the others.
    pub(super) fn tell_came(&mut self) {
        let is_asked = self.link.guest.is_asked_for_ends();
        let Some(exchange) = self.exchange.as_ref().filter(|_| is_asked) else { return };
        let came = exchange.given.iter();
        let came =
            came.map(|((address, port), bytes)| CameFrom { address: *address, port: *port, bytes: *bytes });
        let mut ends: Vec<CameFrom> = came.collect();
        // The largest, should there ever be more than fit.
        ends.sort_by_key(|end| std::cmp::Reverse(end.bytes));
        ends.truncate(CAME_MAX);
        if !ends.is_empty() {
            self.link.say(&Control::Overlay(Overlay::Came(ends)));
        }
    }

    /// Opens a connection to a candidate: in a thread, since one that does not answer takes a while.
    fn open(&mut self, id: UpstreamId, candidate: Candidate) {
        let Some(exchange) = &mut self.exchange else { return };
        let end = if candidate.is_source { NOWHERE } else { (candidate.address, candidate.port) };
        exchange.ends.insert(id, end);
        let groups = self.offer.geometry.groups();
        let verified =
            (0..groups).filter(|group| self.machine.is_verified(*group)).map(|group| group..group + 1);
        let have: Vec<_> = verified.collect::<RangeSet>().iter().take(ENTER_RANGES_MAX).collect();
        let entry = if candidate.is_source { exchange.entry } else { 0 };
        let address = SocketAddr::from((candidate.address, candidate.port));
        let (expected, security) = (self.spec.named(candidate.name), self.security.clone());
        let (secret, handle, cancel) = (self.secret.clone(), self.handle, Arc::clone(&self.spec.cancel));
        let (within, opening, bell) =
            (self.link.patience(FETCH_WITHIN), exchange.opening.clone(), exchange.bell.clone());
        let work = move || {
            let ends = || cancel.load(Ordering::Relaxed);
            let connected =
                FrameStream::connect_unless(address, within, (security.as_ref(), &expected), &ends);
            let opened = connected.and_then(|mut stream| {
                let ticket = ticket_for(&mut stream, secret.as_ref(), within)?;
                stream.send(&Control::Overlay(Overlay::Enter { handle, ticket, entry, have }))?;
                Ok(stream)
            });
            // Nothing waits for it where the transfer has ended.
            let _ = opening.send((id, opened));
            bell.ring();
        };
        let begun = std::thread::Builder::new().name("polycast-open".into()).spawn(work);
        if let (Err(_), Some(exchange)) = (begun, &mut self.exchange) {
            exchange.machine.handle(self.clock.now(), Input::Closed(id, Fault::Unreachable));
        }
    }
}
