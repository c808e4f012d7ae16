//! A receiver's end of a pull transfer: it hears what there is and where, lets its node pull, and stores the
//! object.

use super::super::assembler::{Assembler, prove};
use super::super::bell::Bell;
use super::super::clock::{Clock, wait};
use super::super::error::TransferError;
use super::super::link::{Link, error_of};
use super::super::older::{InPart, Looking};
use super::super::place::kind_of;
use super::super::place::{make_room, put_in_place, verified};
use super::super::{Received, ReceiverProgress, ReceiverSpec, Rendezvous, trace};
use crate::forwarder::{NodeHandle, ReceiverEnd, ReceiverEvent};
use polycast_net::hash::{hex, root_hash};
use polycast_net::seal::Seal;
use polycast_net::store::PartFile;
use polycast_protocol::pull::{Blocks, Digest, ReceiverConfig, RetryTime, Route};
use polycast_protocol::session::{End, GuestInput, GuestOutput, Offer};
use polycast_types::{Duration, Handle, Time};
use polycast_wire::WireError;
use polycast_wire::control::{Control, Hash};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

/// Before the first round trip, a packet is asked for again after this.
const RETRY_INITIAL: Duration = Duration::from_millis(100);
/// Never earlier than this (the paper's RTO).
const RETRY_LEAST: Duration = Duration::from_millis(20);
/// A tree in which nothing comes for so long is reported.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// The longest time without a look at whether the caller has asked to end it.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which the caller is notified of this receiver's progress.
const EVENT_INTERVAL: Duration = Duration::from_millis(100);
/// Names of more packets than this are not taken.
const PACKETS_MAX: u64 = 1 << 28;
/// Packets that are asked for at a time in all trees together, whatever the source says: as many as a node
/// usually remembers. The node has other transfers to pass on, too.
const CREDITS_MAX: u32 = 1 << 16;

/// Receives one object by way of `node`; blocks until it is stored, or has failed.
///
/// # Errors
/// The source cannot be reached or goes away, or the object cannot be stored.
pub fn fetch(
    spec: &ReceiverSpec,
    node: &NodeHandle,
    on_event: &mut dyn FnMut(&ReceiverProgress),
) -> Result<Received, TransferError> {
    let Rendezvous::Pull(address, handle) = spec.rendezvous else {
        return Err(TransferError::Unusable("only what is offered over trees can be pulled".into()));
    };
    let end = trace::Receiver::begin(handle, spec);
    let outcome = pull((address, handle), spec, node, on_event);
    end.told(&outcome);
    outcome
}

fn pull(
    (address, handle): (SocketAddr, Handle),
    spec: &ReceiverSpec,
    node: &NodeHandle,
    on_event: &mut dyn FnMut(&ReceiverProgress),
) -> Result<Received, TransferError> {
    let clock = Clock::start();
    // It serves no others and has no data channel.
    let (mut link, offer) = Link::join(spec, address, handle, (0, 0), clock)?;
    let seal = link.await_secret(spec)?.map(|secret| Seal::new(&secret, handle));
    // The source hears why there is none.
    let _place = node.place(handle).inspect_err(|error| link.fail(error))?;
    let mut run = Run {
        spec,
        node,
        clock,
        handle,
        offer,
        link,
        bell: Bell::new()?,
        trees: None,
        ways: Vec::new(),
        hashes: Vec::new(),
        root: None,
        seal,
        list_roots: Vec::new(),
        list_roots_heard: 0,
        pulling: false,
        verified_bytes: 0,
        spared_bytes: 0,
    };
    let result = run.receive(on_event);
    // Another path, or another try, may bring the rest.
    node.end_keeping(handle, result.as_ref().is_err_and(TransferError::keeps_part));
    if let Err(error) = &result {
        run.link.fail(error);
    }
    result
}

/// Trees that the source has announced.
#[derive(Clone, Copy)]
struct Trees {
    count: u8,
    block_bytes: u64,
    credits: u32,
    retry: RetryTime,
    overtaken: u32,
    /// Interval at which this receiver reports its progress to the source.
    progress: Duration,
}

/// The way in a tree, and for one that has begun before: the block that it carries.
#[derive(Clone, Copy)]
struct Way {
    route: Option<Route>,
    begins: Option<u32>,
}

/// A frame of the source, read.
enum Word {
    Trees(Trees),
    Root(Hash),
    Hashes(u64, Vec<Hash>),
    Roots(u64, Vec<Digest>),
    Way(u8, Way),
    /// The session's own.
    Other,
}

impl Word {
    fn of(frame: Control<'_>) -> Result<Self, TransferError> {
        Ok(match frame {
            Control::Trees { count, block_bytes, credits, retry_ms, overtaken, progress_ms } => {
                let retry = match retry_ms {
                    0 => RetryTime::Adaptive { initial: RETRY_INITIAL, least: RETRY_LEAST },
                    ms => RetryTime::Fixed(Duration::from_millis(ms.into())),
                };
                let progress = Duration::from_millis(progress_ms.into());
                let credits = credits.min(CREDITS_MAX / u32::from(count.max(1)));
                Word::Trees(Trees { count, block_bytes, credits, retry, overtaken, progress })
            }
            Control::Root(root) => Word::Root(root),
            Control::Hashes { first, hashes } => Word::Hashes(first, hashes),
            Control::Roots { first, digests } => Word::Roots(first, digests),
            Control::Route { tree, begins, hops } => {
                Word::Way(tree, Way { route: read_route(hops)?, begins })
            }
            Control::Refuse(_) | Control::Finished | Control::Alive => Word::Other,
            _ => return Err(WireError::Malformed.into()),
        })
    }
}

struct Run<'a> {
    spec: &'a ReceiverSpec,
    node: &'a NodeHandle,
    clock: Clock,
    handle: Handle,
    offer: Offer,
    link: Link,
    /// The node rings it when it has something for us.
    bell: Bell,
    trees: Option<Trees>,
    /// A way for every tree, as far as the source has said.
    ways: Vec<Option<Way>>,
    hashes: Vec<Hash>,
    root: Option<Hash>,
    /// Seal of the packets' payloads.
    seal: Option<Seal>,
    /// Roots of lists of names that the node has not been told, and how many have come at all.
    list_roots: Vec<Digest>,
    list_roots_heard: u64,
    /// The node pulls.
    pulling: bool,
    /// Bytes that are verified, once that is all of them: nothing before.
    verified_bytes: u64,
    /// Bytes that need not be sent.
    spared_bytes: u64,
}

impl Run<'_> {
    fn receive(&mut self, on_event: &mut dyn FnMut(&ReceiverProgress)) -> Result<Received, TransferError> {
        let packets = self.offer.geometry.fragments();
        if packets > PACKETS_MAX {
            return Err(TransferError::Unusable(format!("{packets} packets are more than {PACKETS_MAX}")));
        }
        let (target, part) = make_room(&self.spec.sink, &self.offer, false)?;
        let older = self.spec.options.older.of(&self.offer);
        let in_part = InPart::of(&part, &self.spec.options.older);
        let looking = Looking::at(&self.offer, in_part, (None, older), false);
        self.link.handle(GuestInput::Stored { resumes: looking.is_some() });
        let mut assembler = Assembler::new(self.offer.geometry, part);
        if looking.is_some() {
            self.link.say(&Control::AskHashes);
        }
        let verified = match looking {
            Some(looking) => self.look(looking, &mut assembler)?,
            None => vec![false; self.offer.geometry.groups() as usize],
        };
        self.await_begin()?;
        self.link.say(&Control::Have(Vec::new()));
        let patience = self.spec.options.join_timeout.as_secs_f64() + self.offer.stall.as_secs_f64();
        let told = |run: &Self| !run.ways.is_empty() && run.ways.iter().all(Option::is_some);
        self.hear_until(told, Some(patience))?;
        let Some(Trees { block_bytes, credits, retry, overtaken, progress, .. }) = self.trees else {
            return Err(WireError::Malformed.into());
        };
        let geometry = self.offer.geometry;
        let blocks = u16::try_from(geometry.fragment_len)
            .ok()
            .and_then(|payload| Blocks::new(geometry.object_len, payload, block_bytes))
            .and_then(|blocks| blocks.with_lists(geometry.group_len))
            .ok_or(WireError::Malformed)?;
        let config = ReceiverConfig {
            transfer: self.handle,
            blocks,
            routes: self.ways.iter().map(|way| way.and_then(|way| way.route)).collect(),
            credits,
            retry,
            overtaken: (overtaken > 0).then_some(overtaken),
            stalled_after: STALLED_AFTER,
        };
        let (sender, events) = mpsc::channel();
        let verified_bytes = Arc::new(AtomicU64::new(0));
        let known = assembler.hashes().len();
        assembler.add_hashes(known as u64, &self.hashes[known..]);
        let roots = std::mem::take(&mut self.list_roots);
        self.node.fetch(ReceiverEnd::new(
            config,
            geometry,
            (assembler, self.seal.clone()),
            verified,
            &roots,
            (sender, self.bell.clone()),
            Arc::clone(&verified_bytes),
        ));
        self.pulling = true;
        for (tree, way) in (0u8..).zip(self.ways.iter().flatten()).filter(|(_, way)| way.begins.is_some()) {
            self.node.reroute(self.handle, tree, way.route, way.begins);
        }
        let pulled = self.pull(&events, &verified_bytes, progress, on_event);
        let (mut part, hashes) = pulled.inspect_err(|error| self.stop_pulling(&events, error))?;
        // All groups are verified; now the hashes themselves.
        let root = self.confirm(&hashes).inspect_err(|error| leave(&mut part, error))?;
        self.finish(part, target, hex(&root))
    }

    /// Takes the receiver away from its node. The node lets go of a part that is whole: it may be on its way.
    fn stop_pulling(&self, events: &mpsc::Receiver<ReceiverEvent>, error: &TransferError) {
        self.node.end_keeping(self.handle, error.keeps_part());
        for event in events.try_iter() {
            if let ReceiverEvent::Done(mut part, _) = event {
                leave(&mut part, error);
            }
        }
    }

    /// Waits for the root hash, and holds the verified hashes against it. The source looks at its object
    /// before it says it, and a large directory takes a while: what counts is that the source lives, and it
    /// hears the same of this end.
    fn confirm(&mut self, hashes: &[Hash]) -> Result<Hash, TransferError> {
        let total = self.offer.geometry.object_len;
        self.verified_bytes = total;
        self.say_progress(total);
        self.hear_until(|run| run.root.is_some(), None).map_err(|error| error.interrupted(total, total))?;
        let root = root_hash(hashes);
        if self.root != Some(root) {
            return Err(TransferError::Contradiction("its hashes do not give its root hash".into()));
        }
        Ok(root)
    }

    fn say_progress(&mut self, verified_bytes: u64) {
        self.link.say(&Control::Progress {
            position: 0,
            received: 0,
            lost: 0,
            verified_bytes,
            arrived_ns: 0,
            waited_ns: 0,
        });
    }

    /// Looks at what is here as hashes come; gives which groups are right.
    fn look(&mut self, mut looking: Looking, assembler: &mut Assembler) -> Result<Vec<bool>, TransferError> {
        let geometry = self.offer.geometry;
        let mut verified = vec![false; geometry.groups() as usize];
        let mut more = false;
        while !looking.is_done() {
            let known = assembler.hashes().len();
            if !more {
                self.hear_until(|run| run.hashes.len() > known || run.knows_all(), None)?;
            }
            assembler.add_hashes(known as u64, &self.hashes[known..]);
            let turn = looking.turn(assembler)?;
            more = turn.more;
            for group in turn.held {
                verified[group as usize] = true;
                let bytes = geometry.group_bytes(group);
                self.spared_bytes += bytes.end - bytes.start;
            }
            self.link.sign();
            self.check_cancelled()?;
            self.hear()?;
            if let Some(end) = self.end() {
                return Err(self.error(end, 0));
            }
        }
        self.link.handle(GuestInput::Verifiable);
        Ok(verified)
    }

    /// Does what the session asks for until it may begin.
    fn await_begin(&mut self) -> Result<(), TransferError> {
        while let Some(output) = self.link.poll() {
            match output {
                GuestOutput::Resume => self.link.handle(GuestInput::Checked),
                GuestOutput::Begin => break,
                GuestOutput::Ended(end) => return Err(self.error(end, 0)),
                _ => {}
            }
        }
        Ok(())
    }

    fn error(&self, end: End, verified_bytes: u64) -> TransferError {
        error_of(end, verified_bytes, self.offer.geometry.object_len)
    }

    /// Every hash is there.
    fn knows_all(&self) -> bool {
        self.hashes.len() as u64 == self.offer.geometry.groups() && self.root.is_some()
    }

    /// Takes all frames that have come.
    fn hear(&mut self) -> Result<(), TransferError> {
        self.link.fill();
        while let Some(frame) = self.link.next_frame() {
            let word = Word::of(frame)?;
            self.take(word)?;
        }
        self.link.note_end();
        if self.pulling && !self.list_roots.is_empty() {
            self.node.learn(self.handle, std::mem::take(&mut self.list_roots));
        }
        Ok(())
    }

    /// Returns the end of the session, if it has ended.
    fn end(&mut self) -> Option<End> {
        while let Some(output) = self.link.poll() {
            if let GuestOutput::Ended(end) = output {
                return Some(end);
            }
        }
        None
    }

    fn take(&mut self, word: Word) -> Result<(), TransferError> {
        let groups = self.offer.geometry.groups();
        match word {
            Word::Trees(trees) if self.trees.is_none() => {
                self.trees = Some(trees);
                self.ways = vec![None; trees.count.into()];
            }
            Word::Root(root) => {
                self.spec.check_root(&root)?;
                self.root = Some(root);
            }
            Word::Hashes(first, hashes) if first == self.hashes.len() as u64 => self.hashes.extend(hashes),
            Word::Roots(first, digests) if first == self.list_roots_heard => {
                self.list_roots_heard += digests.len() as u64;
                self.list_roots.extend(digests);
            }
            Word::Way(tree, way) => {
                *self.ways.get_mut(usize::from(tree)).ok_or(WireError::Malformed)? = Some(way);
                if self.pulling {
                    self.node.reroute(self.handle, tree, way.route, way.begins);
                }
            }
            Word::Other => {}
            Word::Trees(_) | Word::Hashes(..) | Word::Roots(..) => return Err(WireError::Malformed.into()),
        }
        // There are no more sections than groups.
        let fits = self.hashes.len() as u64 <= groups && self.list_roots_heard <= groups;
        if fits { Ok(()) } else { Err(WireError::Malformed.into()) }
    }

    /// Takes frames until `done` says that all is there.
    fn hear_until(
        &mut self,
        done: impl Fn(&Self) -> bool,
        patience: Option<f64>,
    ) -> Result<(), TransferError> {
        let begun = self.clock.seconds();
        loop {
            self.check_cancelled()?;
            self.hear()?;
            if done(self) {
                return Ok(());
            }
            if let Some(end) = self.end() {
                return Err(self.error(end, self.verified_bytes));
            }
            self.link.sign();
            if let Some(patience) = patience.filter(|patience| self.clock.seconds() - begun > *patience) {
                return Err(TransferError::NoAnswer(Duration((patience * 1e9) as u64)));
            }
            self.wait(self.clock.now() + LOOK_INTERVAL)?;
        }
    }

    /// Waits until the source or the node has something, or until then.
    fn wait(&self, until: Time) -> Result<(), TransferError> {
        let now = self.clock.now();
        let mut fds = vec![self.bell.descriptor()];
        fds.extend(self.link.descriptor());
        let deadline = self.link.guest.deadline().into_iter().chain([until]).min();
        Ok(wait(&mut fds, now, deadline, LOOK_INTERVAL)?)
    }

    fn check_cancelled(&self) -> Result<(), TransferError> {
        if self.spec.cancel.load(Ordering::Relaxed) { Err(TransferError::Cancelled) } else { Ok(()) }
    }

    /// Lets the node pull until every byte is verified.
    fn pull(
        &mut self,
        events: &mpsc::Receiver<ReceiverEvent>,
        progress: &AtomicU64,
        interval: Duration,
        on_event: &mut dyn FnMut(&ReceiverProgress),
    ) -> Result<(PartFile, Vec<Hash>), TransferError> {
        let total = self.offer.geometry.object_len;
        let (mut say_at, mut event_at) = (self.clock.now(), self.clock.now());
        loop {
            self.check_cancelled()
                .map_err(|error| error.interrupted(progress.load(Ordering::Relaxed), total))?;
            self.bell.clear();
            match events.try_recv() {
                Ok(ReceiverEvent::Done(part, hashes)) => return Ok((part, hashes)),
                Ok(ReceiverEvent::Failed(error)) => return Err(error.into()),
                Ok(ReceiverEvent::Stalled { tree }) => self.link.say(&Control::Stalled { tree }),
                Err(mpsc::TryRecvError::Empty) => self.wait(say_at.min(event_at))?,
                Err(mpsc::TryRecvError::Disconnected) => {
                    return Err(TransferError::Unusable("this agent's node has ended".into()));
                }
            }
            let verified_bytes = progress.load(Ordering::Relaxed);
            let now = self.clock.now();
            if now >= say_at {
                say_at = now + interval;
                self.say_progress(verified_bytes);
            }
            if now >= event_at {
                event_at = now + EVENT_INTERVAL;
                let name = self.offer.name.clone();
                let (bytes, spared_bytes) = (verified_bytes, self.spared_bytes);
                let (corrupt_groups, received) = (0, None);
                on_event(&ReceiverProgress { name, bytes, spared_bytes, total, corrupt_groups, received });
            }
            self.hear()?;
            if let Some(end) = self.end() {
                return Err(self.error(end, verified_bytes));
            }
        }
    }

    fn finish(&mut self, part: PartFile, target: PathBuf, root: String) -> Result<Received, TransferError> {
        let proof = prove(&part, &self.offer.geometry, &self.offer.salt)?;
        let object = verified(&self.offer, root);
        let path = put_in_place(part, &target, &self.spec.sink, &object, &mut self.link)?;
        let seconds = self.clock.seconds();
        self.link.handle(GuestInput::Committed);
        self.link.say(&Control::DataRcvd { patched_bytes: 0, proof });
        // The object is there, whatever the source says now.
        while self.end().is_none() {
            self.wait(self.clock.now() + LOOK_INTERVAL)?;
            self.hear()?;
        }
        Ok(Received {
            object: self.offer.object,
            name: self.offer.name.clone(),
            kind: kind_of(&self.offer),
            bytes: self.offer.geometry.object_len,
            mode: self.offer.mode,
            modified: self.offer.modified,
            root: object.root,
            path,
            seconds,
            // The trees are asked at once.
            waited: 0.0,
            patched_bytes: 0,
            spared_bytes: self.spared_bytes,
            came_bytes: self.offer.geometry.object_len.saturating_sub(self.spared_bytes),
            // Packets with wrong bytes are dropped one by one, by the first node that hashes them.
            corrupt_groups: 0,
            sealed: self.seal.is_some(),
            forged_packets: 0,
            unchanged: false,
        })
    }
}

/// Keeps a part whose bytes are all verified for another try, unless they are what is wrong.
fn leave(part: &mut PartFile, error: &TransferError) {
    match error.keeps_part() {
        true => part.keep_for_later(),
        false => part.discard(),
    }
}

fn read_route(hops: &[u8]) -> Result<Option<Route>, TransferError> {
    if hops.is_empty() {
        return Ok(None);
    }
    Route::from_bytes(hops, 0).map(Some).map_err(|error| TransferError::Contradiction(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receiver does in one tree what settings allow in one tree; a source that states the same for many
    /// trees gets no more of its memory.
    #[test]
    fn credits_of_all_trees_together_are_bounded() {
        for (count, said, taken) in
            [(1, 16, 16), (1, 65_536, 65_536), (4, 65_536, 16_384), (8, 100, 100), (255, 65_536, 257)]
        {
            let (block_bytes, retry_ms, overtaken, progress_ms) = (1_000, 0, 0, 100);
            let word = Control::Trees { count, block_bytes, credits: said, retry_ms, overtaken, progress_ms };
            let Ok(Word::Trees(trees)) = Word::of(word) else { panic!("these are trees") };
            assert_eq!((trees.count, trees.credits), (count, taken));
        }
    }
}
