//! A receiver's end of a pull transfer: it hears what there is and where, lets its node pull, and stores the object.

use super::super::assembler::Assembler;
use super::super::clock::Clock;
use super::super::error::TransferError;
use super::super::receiver::{Offer, await_welcome, put_in_place, target_of};
use super::super::{Received, ReceiverProgress, ReceiverSpec, Rendezvous};
use crate::forwarder::{NodeHandle, ReceiverEnd, ReceiverEvent};
use polycast_net::frames::{FrameError, FrameStream};
use polycast_net::hash::{hex, root_hash};
use polycast_net::store::PartFile;
use polycast_protocol::pull::{Blocks, Digest, ReceiverConfig, RetryTime, Route};
use polycast_types::{Duration, Handle};
use polycast_wire::WireError;
use polycast_wire::control::{Control, Hash, Hello};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

/// Before the first round trip, a packet is asked for again after this.
const RETRY_INITIAL: Duration = Duration::from_millis(100);
/// Never earlier than this (the paper's RTO).
const RETRY_LEAST: Duration = Duration::from_millis(20);
/// A tree in which nothing comes for so long is reported.
const STALLED_AFTER: Duration = Duration::from_secs(1);
/// How often the source hears how far this receiver is.
const PROGRESS_INTERVAL: f64 = 0.1;
/// How long a receiver that is done waits for the source's FINISHED, in seconds.
const GOODBYE: f64 = 3.0;
/// Digests of more packets than this are not taken.
const PACKETS_MAX: u64 = 1 << 28;

/// Receives one object by way of `node`; blocks until it is stored, or has failed.
///
/// # Errors
/// The source cannot be reached or goes away, or the object cannot be stored.
pub fn fetch(
    spec: &ReceiverSpec,
    node: &NodeHandle,
    on_event: &mut dyn FnMut(&ReceiverProgress),
) -> Result<Received, TransferError> {
    let clock = Clock::start();
    let Rendezvous::Pull(address, handle) = spec.rendezvous else {
        return Err(TransferError::Refused("only what is offered over trees can be pulled".into()));
    };
    let mut source = FrameStream::connect(address, std::time::Duration::from_secs(5))
        .map_err(|source| TransferError::Unreachable { address, source })?;
    let hello = Hello { handle, name: &spec.name, window_bytes: 0, serve_port: 0 };
    source.send(&Control::Hello(hello)).map_err(|error| TransferError::source_lost(error, 0, 0))?;
    let offer = await_welcome(&mut source, spec, clock)?;
    let mut run = Run { spec, node, clock, handle, offer, source, routes: Vec::new(), trees: None };
    let result = run.receive(on_event);
    // Another path, or another try, may bring the rest.
    node.end_keeping(handle, !matches!(result, Ok(_) | Err(TransferError::Cancelled)));
    if let Err(error) = &result {
        // The source need not wait for this end, and its report can say why.
        let _ = run.source.send(&Control::Refuse(&error.to_string()));
        run.source.part(std::time::Duration::from_secs(1));
    }
    result
}

/// What the source has announced.
#[derive(Clone, Copy)]
struct Trees {
    count: u8,
    block_bytes: u64,
    credits: u32,
}

#[derive(Default)]
struct Sums {
    hashes: Vec<Hash>,
    root: Option<Hash>,
    digests: Vec<Digest>,
}

struct Run<'a> {
    spec: &'a ReceiverSpec,
    node: &'a NodeHandle,
    clock: Clock,
    handle: Handle,
    offer: Offer,
    source: FrameStream,
    /// A route for every tree, as far as the source has said.
    routes: Vec<Option<Option<Route>>>,
    trees: Option<Trees>,
}

impl Run<'_> {
    fn receive(&mut self, on_event: &mut dyn FnMut(&ReceiverProgress)) -> Result<Received, TransferError> {
        let target = target_of(&self.spec.sink, &self.offer.name)?;
        let part = PartFile::open(&target, self.offer.geometry.object_len)?;
        let sums = self.hear_sums()?;
        let root = hex(&root_hash(&sums.hashes));
        let mut assembler = Assembler::new(self.offer.geometry, part);
        assembler.add_hashes(0, &sums.hashes);
        let verified = self.check_held(&mut assembler)?;
        self.say(&Control::Have(Vec::new()))?;
        let Trees { block_bytes, credits, .. } = self.hear_routes()?;
        let geometry = self.offer.geometry;
        let blocks = u16::try_from(geometry.fragment_len)
            .ok()
            .and_then(|payload| Blocks::new(geometry.object_len, payload, block_bytes))
            .ok_or(WireError::Malformed)?;
        let config = ReceiverConfig {
            transfer: self.handle,
            blocks,
            routes: self.routes.iter().map(|route| route.flatten()).collect(),
            credits,
            retry: RetryTime::Adaptive { initial: RETRY_INITIAL, least: RETRY_LEAST },
            stalled_after: STALLED_AFTER,
        };
        let (sender, events) = mpsc::channel();
        let progress = Arc::new(AtomicU64::new(0));
        let digests = sums.digests;
        self.node.fetch(ReceiverEnd::new(
            config,
            geometry,
            assembler,
            verified,
            digests,
            sender,
            Arc::clone(&progress),
        ));
        let part = self.pull(&events, &progress, on_event)?;
        self.finish(part, target, root)
    }

    fn lost(&self, error: FrameError) -> TransferError {
        TransferError::source_lost(error, 0, self.offer.geometry.object_len)
    }

    fn say(&mut self, control: &Control<'_>) -> Result<(), TransferError> {
        self.source.send(control).map_err(|error| self.lost(error))
    }

    /// Takes frames until `done` says that all is there.
    fn hear<T>(
        &mut self,
        state: &mut T,
        mut take: impl FnMut(
            &mut T,
            &mut Vec<Option<Option<Route>>>,
            &mut Option<Trees>,
            Control<'_>,
        ) -> Result<(), TransferError>,
        done: impl Fn(&T, &[Option<Option<Route>>], Option<Trees>) -> bool,
        patience: Option<f64>,
    ) -> Result<(), TransferError> {
        let begun = self.clock.seconds();
        let total = self.offer.geometry.object_len;
        let lost = |error| TransferError::source_lost(error, 0, total);
        loop {
            self.check_cancelled()?;
            let open = self.source.fill();
            while let Some(frame) = self.source.next_frame().map_err(lost)? {
                match frame {
                    Control::Refuse(reason) => return Err(TransferError::Refused(reason.to_string())),
                    Control::Finished => return Err(TransferError::Refused("it is over".into())),
                    frame => take(state, &mut self.routes, &mut self.trees, frame)?,
                }
            }
            if done(state, &self.routes, self.trees) {
                return Ok(());
            }
            open.map_err(lost)?;
            if patience.is_some_and(|patience| self.clock.seconds() - begun > patience) {
                return Err(TransferError::Refused("it never began".into()));
            }
            self.source.flush().map_err(lost)?;
            self.source.wait(std::time::Duration::from_millis(100))?;
        }
    }

    fn check_cancelled(&self) -> Result<(), TransferError> {
        if self.spec.cancel.load(Ordering::Relaxed) { Err(TransferError::Cancelled) } else { Ok(()) }
    }

    /// Takes TREES, ROOT, HASHES and DIGESTS.
    fn hear_sums(&mut self) -> Result<Sums, TransferError> {
        let (groups, packets) = (self.offer.geometry.groups(), self.offer.geometry.fragments());
        if packets > PACKETS_MAX {
            return Err(TransferError::Refused(format!("{packets} packets are more than {PACKETS_MAX}")));
        }
        let mut sums = Sums::default();
        let take = |sums: &mut Sums, _: &mut Vec<_>, trees: &mut Option<Trees>, frame: Control<'_>| {
            match frame {
                Control::Trees { count, block_bytes, credits } => {
                    *trees = Some(Trees { count, block_bytes, credits });
                }
                Control::Root(root) => sums.root = Some(root),
                Control::Hashes { first, hashes } if first == sums.hashes.len() as u64 => {
                    sums.hashes.extend(hashes);
                }
                Control::Digests { first, digests } if first == sums.digests.len() as u64 => {
                    sums.digests.extend(digests);
                }
                Control::Alive => {}
                _ => return Err(WireError::Malformed.into()),
            }
            let fits = sums.hashes.len() as u64 <= groups && sums.digests.len() as u64 <= packets;
            if fits { Ok(()) } else { Err(WireError::Malformed.into()) }
        };
        let done = |sums: &Sums, _: &[Option<Option<Route>>], trees: Option<Trees>| {
            let whole = sums.hashes.len() as u64 == groups && sums.digests.len() as u64 == packets;
            trees.is_some() && sums.root.is_some() && whole
        };
        self.hear(&mut sums, take, done, None)?;
        if sums.root != Some(root_hash(&sums.hashes)) {
            return Err(TransferError::Refused("its hashes do not give its root hash".into()));
        }
        Ok(sums)
    }

    /// Takes a ROUTE for every tree: the word to begin.
    fn hear_routes(&mut self) -> Result<Trees, TransferError> {
        let take = |_: &mut (),
                    routes: &mut Vec<Option<Option<Route>>>,
                    trees: &mut Option<Trees>,
                    frame: Control<'_>| {
            match frame {
                Control::Route { tree, hops, .. } => {
                    let count = trees.map_or(0, |trees| usize::from(trees.count));
                    routes.resize(count, None);
                    let route = read_route(hops)?;
                    *routes.get_mut(usize::from(tree)).ok_or(WireError::Malformed)? = Some(route);
                    Ok(())
                }
                Control::Alive => Ok(()),
                _ => Err(WireError::Malformed.into()),
            }
        };
        let done = |_: &(), routes: &[Option<Option<Route>>], _: Option<Trees>| {
            !routes.is_empty() && routes.iter().all(Option::is_some)
        };
        let patience = self.spec.options.join_timeout.as_secs_f64() + self.offer.stall.as_secs_f64();
        self.hear(&mut (), take, done, Some(patience))?;
        self.trees.ok_or(WireError::Malformed.into())
    }

    /// Which groups an earlier try has left whole.
    fn check_held(&self, assembler: &mut Assembler) -> Result<Vec<bool>, TransferError> {
        let groups = self.offer.geometry.groups();
        if !assembler.part_mut().is_resumed() {
            return Ok(vec![false; groups as usize]);
        }
        (0..groups).map(|group| Ok(assembler.check_held(group)?)).collect()
    }

    /// Lets the node pull until every byte is verified.
    fn pull(
        &mut self,
        events: &mpsc::Receiver<ReceiverEvent>,
        progress: &AtomicU64,
        on_event: &mut dyn FnMut(&ReceiverProgress),
    ) -> Result<PartFile, TransferError> {
        let total = self.offer.geometry.object_len;
        let mut said_at = 0.0;
        loop {
            self.check_cancelled()?;
            match events.recv_timeout(std::time::Duration::from_millis(5)) {
                Ok(ReceiverEvent::Done(part)) => return Ok(part),
                Ok(ReceiverEvent::Failed(error)) => return Err(error.into()),
                Ok(ReceiverEvent::Stalled { tree }) => self.say(&Control::Stalled { tree })?,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(TransferError::Refused("the node has ended".into()));
                }
            }
            let verified_bytes = progress.load(Ordering::Relaxed);
            if self.clock.seconds() - said_at > PROGRESS_INTERVAL {
                said_at = self.clock.seconds();
                self.say(&Control::Progress {
                    position: 0,
                    received: 0,
                    lost: 0,
                    verified_bytes,
                    arrived_ns: 0,
                    waited_ns: 0,
                })?;
                on_event(&ReceiverProgress { bytes: verified_bytes, total, received: None });
            }
            let open = self.source.flush().and_then(|()| self.source.fill().map(drop));
            let lost = |error| TransferError::source_lost(error, verified_bytes, total);
            while let Some(frame) = self.source.next_frame().map_err(lost)? {
                match frame {
                    Control::Route { tree, begins, hops } => {
                        self.node.reroute(self.handle, tree, read_route(hops)?, begins);
                    }
                    Control::Refuse(reason) => return Err(TransferError::Refused(reason.to_string())),
                    _ => {}
                }
            }
            open.map_err(lost)?;
        }
    }

    fn finish(&mut self, part: PartFile, target: PathBuf, root: String) -> Result<Received, TransferError> {
        let path = put_in_place(part, &target, &self.spec.sink, self.offer.kind)?;
        let seconds = self.clock.seconds();
        self.say(&Control::DataRcvd { patched_bytes: 0 })?;
        let begun = self.clock.seconds();
        // The object is there, whatever the source says now.
        while self.clock.seconds() - begun < GOODBYE {
            if self.source.flush().is_err() || self.source.fill().is_err() {
                break;
            }
            if matches!(self.source.next_frame(), Ok(Some(Control::Finished)) | Err(_)) {
                break;
            }
            self.source.wait(std::time::Duration::from_millis(20))?;
        }
        Ok(Received {
            object: self.offer.object,
            name: self.offer.name.clone(),
            kind: self.offer.kind,
            bytes: self.offer.geometry.object_len,
            root,
            path,
            seconds,
            patched_bytes: 0,
        })
    }
}

fn read_route(hops: &[u8]) -> Result<Option<Route>, TransferError> {
    if hops.is_empty() {
        return Ok(None);
    }
    Route::from_bytes(hops, 0).map(Some).map_err(|error| TransferError::Refused(error.to_string()))
}
