//! Driver of the push receiver: sockets, part file and clock around the machine.

mod exchange;
mod intake;
mod look;
mod origins;
mod rack;

use super::assembler::{Assembler, Check, prove, xor};
use super::clock::{Clock, wait};
use super::door::Side;
use super::error::TransferError;
use super::link::{Link, error_of};
use super::older::{InPart, Looking};
use super::place::{kind_of, leave, make_room, present, put_in_place, verified};
use super::serve::{Served, Supply};
use super::strangers::Strangers;
use super::{Received, ReceiverProgress, ReceiverSpec, Rendezvous, trace};
use exchange::Exchange;
use intake::Intake;
use polycast_net::frames::{Block, FrameError, FrameStream};
use polycast_net::hash::{hex, root_hash};
use polycast_net::object::ObjectKind;
use polycast_net::port_in_use::PortInUse;
use polycast_net::seal::{Seal, Secret};
use polycast_net::store::PartFile;
use polycast_net::tls::Security;
use polycast_net::udp::{Arrival, DataReceiver, Only, Outer, SEGMENTS_MAX};
use polycast_protocol::push::coded::Coded;
use polycast_protocol::push::overlay::UpstreamId;
use polycast_protocol::push::{
    Geometry, Receiver, ReceiverConfig, ReceiverInput as Input, ReceiverOutput as Output,
};
use polycast_protocol::session::{End, GuestInput, GuestOutput, Offer};
use polycast_types::{Duration, Handle, RangeSet, Time};
use polycast_wire::control::NOWHERE;
use polycast_wire::control::{Control, Form, Hash};
use polycast_wire::data::{FLAG_PATCH, FRAGMENT_TAGS_LEN, HEADER_LEN, HEADER_TAG_LEN, Header};
use polycast_wire::seal;
use rack::Rack;
use rustix::event::{PollFd, PollFlags};
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Receives between two looks at the control channel.
const RECEIVES_MAX: usize = 32;
/// Length of a nap.
const NAP: std::time::Duration = std::time::Duration::from_micros(1_000);
/// Largest burst, in batches, that a nap follows.
const NAP_BATCHES_MAX: usize = 8;
/// Batches at the beginning and at the end without a nap, where it would delay the transfer.
const NAP_AFTER_BATCHES: u64 = 32;
/// Groups from candidates that may wait for their hashes.
const UNHASHED_MAX: usize = 16;
/// Forged packets are spoken of this often at most.
const FORGED_INTERVAL: Duration = Duration::from_secs(1);
/// Time for another end to take a connection, where the source is near.
const FETCH_WITHIN: std::time::Duration = std::time::Duration::from_secs(1);
/// The caller hears of the transfer this often, and it is seen whether it was cancelled.
const EVENT_INTERVAL: Duration = Duration::from_millis(100);

/// Receives one object; blocks until it is stored, or has failed.
///
/// # Errors
/// The source cannot be found or reached or goes away, or the object cannot be stored.
pub fn receive(
    spec: ReceiverSpec,
    on_event: &mut dyn FnMut(&ReceiverProgress),
) -> Result<Received, TransferError> {
    let (address, handle) = match &spec.rendezvous {
        Rendezvous::At(address, handle) => (*address, *handle),
        Rendezvous::Announced(announced) => (announced.address, announced.handle),
        Rendezvous::Pull(..) => {
            return Err(TransferError::Unusable("an object that is pulled needs a node".into()));
        }
    };
    let end = trace::Receiver::begin(handle, &spec);
    let outcome = join(&spec, address, handle, Clock::start()).and_then(|mut run| run.run(on_event));
    end.told(&outcome);
    outcome
}

/// Opens everything and says HELLO.
fn join(
    spec: &ReceiverSpec,
    address: SocketAddr,
    handle: Handle,
    clock: Clock,
) -> Result<Run, TransferError> {
    let data = DataReceiver::open(spec.interface)?;
    let security = spec.security()?;
    let listen = &spec.options.listen;
    let (strangers, listens) = listen.open(spec.interface, handle, Side::Receiver, security.clone())?;
    let own = (data.window_bytes(), listens.port());
    let (mut link, offer) = Link::join(spec, address, handle, own, clock)?;
    if let Rendezvous::Announced(announced) = &spec.rendezvous {
        announced.check(&offer).inspect_err(|error| link.fail(error))?;
    }
    let secret = link.await_secret(spec)?;
    let only = only_of(link.source(), handle, offer.outer_len);
    let made = make_room(&spec.sink, &offer, spec.options.update);
    let (target, part) = made.inspect_err(|error| link.fail(error))?;
    take_channel(spec, &offer, &data, only);
    let present = match spec.options.update {
        true => present(&target, &offer).inspect_err(|error| link.fail(error))?,
        false => None,
    };
    let in_part = InPart::of(&part, &spec.options.older);
    let older = (present, spec.options.older.of(&offer));
    let looking = Looking::at(&offer, in_part, older, true);
    link.handle(GuestInput::Stored { resumes: looking.is_some() });
    let ends = Ends { data, link, strangers };
    let run = Run::new(spec.clone(), offer, (handle, secret), clock, ends, target, part);
    Ok(Run { looking, security, ..run })
}

/// Joins the data channel. Where that cannot be, the source notices that nothing comes here, and serves this
/// end over TCP.
fn take_channel(spec: &ReceiverSpec, offer: &Offer, data: &DataReceiver, only: Only) {
    let channel = channel_of(offer.channel);
    if channel.port() == 0 {
        return;
    }
    if spec.called.as_ref().is_some_and(|called| !called.has_channel(offer.channel)) {
        tracing::warn!(%channel, "the manager has permitted another data channel: the object comes over TCP");
        return;
    }
    if let Err(error) = data.join(spec.interface, channel, only) {
        let why = match PortInUse::of(channel.port(), &error) {
            Some(in_use) => format!("{in_use}; offer --udp-port takes another one"),
            None => error.to_string(),
        };
        tracing::warn!(%channel, %why, "no multicast here: the object comes over TCP");
    }
}

/// The sockets of a transfer.
struct Ends {
    data: DataReceiver,
    link: Link,
    strangers: Strangers,
}

fn channel_of((address, port): (IpAddr, u16)) -> SocketAddr {
    SocketAddr::new(address, port)
}

/// Returns the filter for this transfer's packets: they come from where the control connection goes to, since
/// a source opens both with one address. Nothing on the way changes it: labels stand behind it, and splitters
/// and switches do not look at it.
fn only_of(source: Option<IpAddr>, handle: Handle, outer_len: u8) -> Only {
    Only { source, handle: Some(handle), outer: Outer::Bytes(outer_len) }
}

/// Returns the form in which WELCOME reports a kind.
pub(super) fn form_of(kind: ObjectKind) -> Form {
    match kind {
        ObjectKind::File => Form::File,
        ObjectKind::Directory => Form::Directory,
        ObjectKind::Set => Form::Set,
    }
}

/// A transfer that is being received.
struct Run {
    spec: ReceiverSpec,
    offer: Offer,
    handle: Handle,
    clock: Clock,
    machine: Receiver,
    link: Link,
    /// `None` once the object is committed.
    assembler: Option<Assembler>,
    target: PathBuf,
    root: Option<Hash>,
    intake: Intake,
    /// Coded patches of which more than one fragment was missing when they came.
    coded: Coded<Vec<u8>>,
    /// Connections that come to fetch groups, or to be spoken for.
    strangers: Strangers,
    served: Arc<Served>,
    /// The candidates among which it chooses.
    exchange: Option<Exchange>,
    /// Groups that came over TCP before their hash, and from which candidate.
    unhashed: BTreeMap<u64, (UpstreamId, Block)>,
    rack: Rack,
    begun: bool,
    /// Time when something of the object first came.
    came_at: Option<Time>,
    committed_at: Option<Time>,
    /// Data that is here already, until it has been checked.
    looking: Option<Looking>,
    /// Bytes that need not be sent, since they were here.
    spared_bytes: u64,
    /// Bytes that need not be sent, since they are holes.
    holes_len: u64,
    /// Groups that what is at the object's place has where the object has them.
    in_place: u64,
    /// Security of the connections to others.
    security: Option<Security>,
    /// Secret that shows others that this end takes part.
    secret: Option<Secret>,
    /// It is the object.
    unchanged: bool,
}

/// Place of the bytes of the fragments being handled.
#[derive(Clone, Copy)]
enum Landing<'a> {
    /// In their slots already.
    InPlace,
    /// Here, from the start of this fragment on.
    At(u64, &'a [u8]),
    /// Nothing is being handled.
    Nowhere,
}

impl Run {
    fn new(
        spec: ReceiverSpec,
        offer: Offer,
        (handle, secret): (Handle, Option<Secret>),
        clock: Clock,
        ends: Ends,
        target: PathBuf,
        part: PartFile,
    ) -> Self {
        let Ends { data, link, strangers } = ends;
        let geometry = offer.geometry;
        let window_bytes = data.window_bytes();
        let machine = Receiver::new(ReceiverConfig::new(geometry, window_bytes, offer.outer_len.into()));
        let seal = secret.as_ref().map(|secret| Seal::new(secret, handle));
        let keys = (secret.clone(), None);
        let served = Served::new(handle, geometry, Supply::Part(part.held()), keys);
        Run {
            machine,
            link,
            served,
            target,
            assembler: Some(Assembler::new(geometry, part)),
            root: None,
            intake: Intake::new(&spec, data, offer.outer_len.into(), seal),
            coded: Coded::default(),
            strangers,
            exchange: None,
            unhashed: BTreeMap::new(),
            rack: Rack::Alone,
            begun: false,
            came_at: None,
            committed_at: None,
            looking: None,
            spared_bytes: 0,
            holes_len: 0,
            in_place: 0,
            security: None,
            secret,
            unchanged: false,
            spec,
            offer,
            handle,
            clock,
        }
    }

    fn run(&mut self, on_event: &mut dyn FnMut(&ReceiverProgress)) -> Result<Received, TransferError> {
        let result = self.run_inner(on_event);
        self.served.stop();
        let Err(error) = result else { return result };
        on_event(&self.progress());
        self.link.fail(&error);
        Err(self.leave_part(error))
    }

    /// Keeps what is verified, however the transfer has ended: another try goes on from there. What an
    /// earlier one has left, and has not been checked by now, stays as it is.
    fn leave_part(&mut self, error: TransferError) -> TransferError {
        let verified = self.machine.verified_bytes();
        let Some(assembler) = &mut self.assembler else { return error };
        let part = assembler.part_mut();
        let unchecked = part.is_resumed() && !self.begun;
        if !error.keeps_part() || (verified == 0 && !unchecked) {
            part.discard();
            return error;
        }
        part.keep_for_later();
        error.interrupted(verified, self.offer.geometry.object_len)
    }

    /// Returns the state of the transfer, as far as the object is not here yet.
    fn progress(&self) -> ReceiverProgress {
        ReceiverProgress {
            name: self.offer.name.clone(),
            bytes: self.machine.verified_bytes(),
            spared_bytes: self.unsent_bytes(),
            total: self.offer.geometry.object_len,
            corrupt_groups: self.machine.corrupt_groups(),
            received: None,
        }
    }

    fn run_inner(&mut self, on_event: &mut dyn FnMut(&ReceiverProgress)) -> Result<Received, TransferError> {
        let mut next_event = self.clock.now();
        let mut told_committed = false;
        // Frames that came with WELCOME are here already.
        let mut ready = Ready { source: true, ..Ready::default() };
        loop {
            if self.spec.cancel.load(Ordering::Relaxed) {
                return Err(TransferError::Cancelled);
            }
            if ready.source {
                self.read_source()?;
            }
            self.note_first(&ready);
            let looks = self.look()?;
            self.turn_exchange(&ready.candidates)?;
            if ready.strangers {
                self.served.meet(&mut self.strangers);
            }
            if ready.data {
                self.read_burst()?;
            }
            self.drain(Landing::Nowhere)?;
            let now = self.clock.now();
            self.rack_turn(now, ready.rack);
            if now >= next_event {
                next_event = now + EVENT_INTERVAL;
                // Those who never say anything are sent away now and then.
                self.served.meet(&mut self.strangers);
                on_event(&self.progress());
            }
            if self.committed_at.is_some() && !std::mem::replace(&mut told_committed, true) {
                let (bytes, received) = (self.offer.geometry.object_len, self.received());
                on_event(&ReceiverProgress { bytes, received, ..self.progress() });
            }
            self.link.handle(GuestInput::Serves(self.served.active() > 0));
            if let Some(received) = self.turn_session()? {
                return Ok(received);
            }
            ready = self.wait(looks)?;
        }
    }

    /// Returns the number of verified bytes that did not have to be sent. Until this end has said what it
    /// has, these are all.
    fn unsent_bytes(&self) -> u64 {
        if self.begun { self.spared_bytes + self.holes_len } else { self.machine.verified_bytes() }
    }

    /// Notes when the first bytes come.
    fn note_first(&mut self, ready: &Ready) {
        let is_some = || ready.data || !ready.candidates.is_empty() || self.machine.verified_bytes() > 0;
        if self.begun && self.came_at.is_none() && is_some() {
            self.came_at = Some(self.clock.now());
        }
    }

    /// Does what the session asks for; gives what was received when it has ended.
    fn turn_session(&mut self) -> Result<Option<Received>, TransferError> {
        while let Some(output) = self.link.poll() {
            match output {
                GuestOutput::Begin => self.begin()?,
                GuestOutput::Resume => self.looked(),
                GuestOutput::Channel { channel, outer_len } => self.change_channel(channel, outer_len)?,
                GuestOutput::Candidates { entry, is_behind_head, ends } => {
                    self.take_candidates(entry, (is_behind_head, ends));
                }
                GuestOutput::Speak { own, members } => self.gather(own, &members),
                GuestOutput::Follow { member, address, port, name } => {
                    self.follow(member, (address, port).into(), &self.spec.named(name));
                }
                GuestOutput::Alone => self.leave_rack(),
                GuestOutput::Ended(End::Done) => return Ok(self.received()),
                GuestOutput::Ended(end) => {
                    let (verified, total) = (self.machine.verified_bytes(), self.offer.geometry.object_len);
                    return Err(error_of(end, verified, total));
                }
                GuestOutput::Offer(_) => unreachable!("an offer is taken before the transfer runs"),
                GuestOutput::Hello | GuestOutput::Say(_) | GuestOutput::Refuse(_) => {
                    unreachable!("the link says these itself")
                }
            }
        }
        Ok(None)
    }

    /// Returns the received object, once it is where it belongs.
    fn received(&self) -> Option<Received> {
        Some(Received {
            object: self.offer.object,
            name: self.offer.name.clone(),
            kind: kind_of(&self.offer),
            bytes: self.offer.geometry.object_len,
            mode: self.offer.mode,
            modified: self.offer.modified,
            root: self.root.map(|root| hex(&root)).unwrap_or_default(),
            path: self.target.clone(),
            seconds: Duration(self.committed_at?.0).as_secs_f64(),
            waited: self.came_at.map_or(0.0, |at| Duration(at.0).as_secs_f64()),
            patched_bytes: self.machine.patched_bytes(),
            spared_bytes: self.spared_bytes,
            came_bytes: self.offer.geometry.object_len.saturating_sub(self.unsent_bytes()),
            corrupt_groups: self.machine.corrupt_groups(),
            sealed: self.intake.seal.is_some(),
            forged_packets: self.intake.forged.packets,
            unchanged: self.unchanged,
        })
    }

    /// Says what is held already (nothing, unless an earlier try left some) and that data may come.
    fn begin(&mut self) -> Result<(), TransferError> {
        self.begun = true;
        self.machine.handle(self.clock.now(), Input::Begin);
        self.drain(Landing::Nowhere)
    }

    /// Waits for something to happen, or only looks whether something has where there is more to do.
    fn wait(&mut self, busy: bool) -> Result<Ready, TransferError> {
        let now = self.clock.now();
        let own = self.machine.deadline().into_iter().chain(self.link.guest.deadline());
        let busy = busy || self.intake.was_held_up(now);
        let others =
            self.rack.deadline().into_iter().chain(self.exchange.as_ref().and_then(Exchange::deadline));
        let deadline = if busy { Some(Time::ZERO) } else { own.chain(others).min() };
        let idle = || PollFd::from_borrowed_fd(self.intake.data.as_fd(), PollFlags::empty());
        let has_room = self.unhashed.len() < UNHASHED_MAX;
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.intake.data.as_fd(), PollFlags::IN),
            self.link.descriptor().unwrap_or_else(idle),
        ];
        let rack_at = fds.len();
        fds.extend(self.rack.descriptors());
        let candidates_at = fds.len();
        if let Some(exchange) = &self.exchange {
            exchange.descriptors(has_room, &mut fds);
        }
        let strangers_at = fds.len();
        self.strangers.descriptors(&mut fds);
        wait(&mut fds, now, deadline, EVENT_INTERVAL)?;
        let is = |i: usize| !fds[i].revents().is_empty();
        let looked_at = self.clock.now();
        if !is(0) {
            self.machine.handle(looked_at, Input::NothingWaits);
        }
        self.intake.looked_at = looked_at;
        Ok(Ready {
            data: is(0),
            source: is(1),
            rack: (rack_at..candidates_at).any(is),
            candidates: self
                .exchange
                .as_ref()
                .map_or_else(Vec::new, |exchange| exchange.ready(&fds[candidates_at..strangers_at])),
            strangers: (strangers_at..fds.len()).any(is),
        })
    }

    /// Takes what has come on the data channel. A stream that comes slower than it is handled would wake this
    /// end for every batch: a short nap lets some gather, which costs a millisecond and saves a third of the
    /// work.
    fn read_burst(&mut self) -> Result<(), TransferError> {
        let mut batches = 0;
        while batches < RECEIVES_MAX && self.read_data()? {
            batches += 1;
        }
        self.intake.batches += batches as u64;
        let streaming = self.intake.batches > NAP_AFTER_BATCHES
            && self.machine.expects_more(NAP_AFTER_BATCHES * SEGMENTS_MAX as u64);
        if streaming && (1..=NAP_BATCHES_MAX).contains(&batches) {
            self.drain(Landing::Nowhere)?;
            std::thread::sleep(NAP);
        }
        Ok(())
    }

    /// Takes one datagram batch from the data channel; gives whether there was one.
    fn read_data(&mut self) -> Result<bool, TransferError> {
        let sn = self.machine.next_sn();
        let run = self.machine.missing_run(sn, self.intake.expected as u64);
        let (handle, geometry, outer_len) =
            (self.handle, self.offer.geometry, usize::from(self.offer.outer_len));
        let Some(assembler) = self.assembler.as_mut().filter(|_| self.begun) else {
            // Not needed (any more): keep the socket empty.
            let mut parts = [IoSliceMut::new(&mut self.intake.overflow)];
            return Ok(self.intake.data.receive(&mut parts)?.is_some());
        };
        let mut parts = Vec::with_capacity(3 * run as usize + 8);
        let header_len = HEADER_LEN + self.intake.seal.as_ref().map_or(0, |_| FRAGMENT_TAGS_LEN);
        let (headers, outers) = ((&mut self.intake.headers[..], header_len), &mut self.intake.outers);
        let scattered = assembler.scatter(sn, run as usize, headers, outers, &mut parts)?;
        parts.push(IoSliceMut::new(&mut self.intake.overflow));
        let Some(arrival) = self.intake.data.receive(&mut parts)? else { return Ok(false) };
        let segments = arrival.len.div_ceil(arrival.segment_len);
        self.intake.origins.came(arrival.from, segments as u64);
        self.intake.expected = segments.clamp(1, SEGMENTS_MAX);
        let landed = if segments <= scattered {
            in_place(&parts, sn, arrival, (handle, self.intake.seal.as_ref()), &geometry, outer_len)
        } else {
            None
        };
        let now = self.clock.now();
        self.intake.looked_at = now;
        let arrived = Time(now.0.saturating_sub(arrival.waited.as_nanos() as u64));
        if let Some((round, flags)) = landed {
            let packet = Packet { outer_len, header_len, payload_len: geometry.fragment_len as usize };
            let ours = match &self.intake.seal {
                Some(seal) => open_in_place(&mut parts, sn, arrival.len, packet, seal),
                None => core::iter::once(sn..sn + segments as u64).collect(),
            };
            drop(parts);
            (ours.len()..segments as u64).for_each(|_| self.intake.forged.came(now));
            for run in ours.iter().flat_map(|run| self.survivors(run)).collect::<Vec<_>>() {
                let count = (run.end - run.start) as u32;
                self.machine.handle(now, Input::Data { round, sn: run.start, count, flags, arrived });
                self.drain(Landing::InPlace)?;
            }
            return Ok(true);
        }
        let mut linear = std::mem::take(&mut self.intake.linear);
        linear.clear();
        for part in &parts {
            let take = part.len().min(arrival.len - linear.len());
            linear.extend_from_slice(&part[..take]);
        }
        drop(parts);
        for datagram in linear.chunks_mut(arrival.segment_len) {
            // The last fragment may have completed the object.
            if let Some(inner) = datagram.get_mut(outer_len..).filter(|_| self.assembler.is_some()) {
                self.datagram(now, arrived, inner)?;
            }
        }
        self.intake.linear = linear;
        Ok(true)
    }

    /// The runs that the loss that was asked for leaves of fragments.
    fn survivors(&mut self, sns: Range<u64>) -> Vec<Range<u64>> {
        if self.intake.loss.is_none() {
            return vec![sns];
        }
        let mut left = RangeSet::new();
        for sn in sns {
            if !self.intake.loses() {
                left.insert(sn..sn + 1);
            }
        }
        left.iter().collect()
    }

    /// One datagram that is not where it belongs.
    fn datagram(&mut self, now: Time, arrived: Time, datagram: &mut [u8]) -> Result<(), TransferError> {
        if self.intake.loses() {
            return Ok(());
        }
        let Ok((header, header_len)) = Header::parse(datagram) else { return Ok(()) };
        if let Some(keys) = &self.intake.seal
            && !seal::admit(keys, &header, datagram, header_len)
        {
            self.intake.forged.came(now);
            return Ok(());
        }
        let payload = &datagram[header_len..];
        let geometry = self.offer.geometry;
        match header {
            Header::Fragment(header) => {
                let ours = header.handle == self.handle && header.sn < geometry.fragments();
                let bytes = geometry.fragment_bytes(header.sn.min(geometry.fragments() - 1));
                if !ours || payload.len() as u64 != bytes.end - bytes.start {
                    return Ok(());
                }
                let (round, sn, flags) = (header.round, header.sn, header.flags);
                self.machine.handle(now, Input::Data { round, sn, count: 1, flags, arrived });
                self.drain(Landing::At(sn, payload))
            }
            Header::Coded(header) if header.handle == self.handle => {
                if payload.len() > geometry.fragment_len as usize {
                    return Ok(());
                }
                if let Some(sn) = self.coded.came(&self.machine, header.sns(), || payload.to_vec()) {
                    self.decode(now, header.sns(), sn, payload)?;
                }
                // Other patches may have lacked just this one.
                while self.assembler.is_some()
                    && let Some(earlier) = self.coded.next_decodable(&self.machine)
                {
                    self.decode(now, &earlier.sns, earlier.sn, &earlier.payload)?;
                }
                Ok(())
            }
            Header::Coded(_) => Ok(()),
        }
    }

    /// Takes the one missing fragment out of a coded patch.
    fn decode(&mut self, now: Time, sns: &[u64], sn: u64, payload: &[u8]) -> Result<(), TransferError> {
        let geometry = self.offer.geometry;
        let mut sum = std::mem::take(&mut self.intake.sum);
        sum.clear();
        sum.resize(geometry.fragment_len as usize, 0);
        xor(&mut sum[..payload.len()], payload);
        let assembler = self.assembler.as_mut().expect("the caller has it");
        for other in sns.iter().filter(|other| **other != sn) {
            assembler.add_to(&mut sum, *other)?;
        }
        let bytes = geometry.fragment_bytes(sn);
        // What is here is open, and the patch is of fragments as they are sent.
        for sn in sns.iter().filter(|_| self.intake.seal.is_some()) {
            let bytes = geometry.fragment_bytes(*sn);
            let seal = self.intake.seal.as_ref().expect("just looked at");
            seal.turn(*sn, 0, &mut sum[..(bytes.end - bytes.start) as usize]);
        }
        self.machine.handle(now, Input::Patched { sn, count: 1 });
        self.drain(Landing::At(sn, &sum[..(bytes.end - bytes.start) as usize]))?;
        self.intake.sum = sum;
        Ok(())
    }

    /// Does what the machine orders.
    fn drain(&mut self, landing: Landing<'_>) -> Result<(), TransferError> {
        loop {
            let now = self.clock.now();
            if self.intake.was_held_up(now) {
                self.machine.handle(now, Input::HeldUp);
            }
            let Some(output) = self.machine.poll(now) else { return Ok(()) };
            match output {
                Output::Keep { sn, count } => match landing {
                    Landing::InPlace => {}
                    Landing::At(first, bytes) => self.keep(sn, count, first, bytes)?,
                    Landing::Nowhere => unreachable!("fragments are kept while they are handled"),
                },
                Output::Check { group } => self.check(group)?,
                Output::Control(control) => self.say_in_rack(&control),
                Output::Repeat(control) => self.link.say(&control),
                Output::Complete => self.commit()?,
            }
        }
    }

    fn keep(&mut self, sn: u64, count: u32, first: u64, bytes: &[u8]) -> Result<(), TransferError> {
        let geometry = self.offer.geometry;
        let origin = geometry.fragment_bytes(first).start;
        let assembler = self.assembler.as_mut().expect("nothing is kept after the commit");
        for sn in sn..sn + u64::from(count) {
            let at = geometry.fragment_bytes(sn);
            assembler.store(sn, &bytes[(at.start - origin) as usize..(at.end - origin) as usize])?;
        }
        Ok(())
    }

    fn check(&mut self, group: u64) -> Result<(), TransferError> {
        let assembler = self.assembler.as_mut().expect("nothing is checked after the commit");
        let intact = match assembler.check(group)? {
            Check::Intact => true,
            Check::Corrupt => false,
            Check::Later => return Ok(()),
        };
        if intact {
            self.mark(group);
        } else {
            self.intake.origins.spoiled(self.clock.now(), group);
        }
        self.machine.handle(self.clock.now(), Input::Checked { group, intact });
        Ok(())
    }

    /// Puts the object where it belongs. DATA_RCVD follows only when it would survive what may happen there.
    fn commit(&mut self) -> Result<(), TransferError> {
        let root = root_hash(self.assembler.as_ref().expect("committed once").hashes());
        if self.root.is_some_and(|announced| announced != root) {
            return Err(TransferError::Contradiction("its hashes do not give its root hash".into()));
        }
        self.spec.check_root(&root)?;
        self.root = Some(root);
        let part = self.assembler.take().expect("committed once").into_part();
        let proof = prove(&part, &self.offer.geometry, &self.offer.salt)?;
        if self.unchanged {
            leave(part, &self.target, &self.offer)?;
        } else {
            let object = verified(&self.offer, hex(&root));
            put_in_place(part, &self.target, &self.spec.sink, &object, &mut self.link)?;
        }
        let now = self.clock.now();
        self.committed_at = Some(now);
        if self.intake.forged.packets > 0 {
            self.link.say(&Control::Forged { packets: self.intake.forged.packets });
        }
        self.tell_came();
        self.exchange = None;
        self.link.handle(GuestInput::Committed);
        self.machine.handle(now, Input::Committed { proof });
        Ok(())
    }

    fn read_source(&mut self) -> Result<(), TransferError> {
        self.link.fill();
        // What came before the end still counts.
        while let Some(frame) = self.link.next_frame() {
            match frame {
                Control::Hashes { first, hashes } => self.add_hashes(first, &hashes)?,
                Control::Sums { first, sums } => self.add_sums(first, &sums)?,
                Control::Root(root) => {
                    self.spec.check_root(&root)?;
                    self.root = Some(root);
                }
                Control::PtchData { sn, payload } => {
                    // The frame is borrowed from the stream: its bytes are few enough to be moved.
                    let payload = payload.to_vec();
                    self.patch(self.clock.now(), sn, &payload)?;
                }
                Control::DataFnsd { position } => {
                    let control = Control::DataFnsd { position };
                    self.machine.handle(self.clock.now(), Input::Control(&control));
                }
                _ => {}
            }
        }
        self.link.note_end();
        Ok(())
    }

    /// Listens on another data channel from now on. What waits on the one before is taken first.
    fn change_channel(&mut self, channel: (IpAddr, u16), outer_len: u8) -> Result<(), TransferError> {
        let mut batches = 0;
        while batches < RECEIVES_MAX && self.read_data()? {
            batches += 1;
        }
        // One that is slower than the others leaves, so that their packets do not fill its path.
        let leaves = channel == NOWHERE;
        if leaves {
            tracing::info!("the others take more than the path here: the rest comes over TCP");
        }
        let opened = DataReceiver::open(self.spec.interface).and_then(|data| {
            if !leaves {
                let only = only_of(self.link.source(), self.handle, outer_len);
                data.join(self.spec.interface, channel_of(channel), only)?;
            }
            Ok(data)
        });
        match opened {
            Ok(data) => self.intake.data = data,
            // The source notices that nothing comes here, and serves this end over TCP.
            Err(error) => {
                tracing::warn!(channel = %channel_of(channel), %error, "cannot listen on the new data channel")
            }
        }
        (self.offer.channel, self.offer.outer_len) = (channel, outer_len);
        self.intake.outers = vec![0; usize::from(outer_len) * SEGMENTS_MAX];
        Ok(())
    }

    fn add_hashes(&mut self, first: u64, hashes: &[Hash]) -> Result<(), TransferError> {
        let Some(assembler) = &mut self.assembler else { return Ok(()) };
        for group in assembler.add_hashes(first, hashes) {
            self.check(group)?;
        }
        let known = self.assembler.as_ref().map_or(0, |a| a.hashes().len() as u64);
        while let Some(entry) = self.unhashed.first_entry().filter(|e| *e.key() < known) {
            let (group, (from, block)) = entry.remove_entry();
            self.accept(group, block, from)?;
        }
        Ok(())
    }

    /// PTCH_DATA: fragments over the control channel.
    fn patch(&mut self, now: Time, sn: u64, payload: &[u8]) -> Result<(), TransferError> {
        let geometry = self.offer.geometry;
        let count = (payload.len() as u64).div_ceil(u64::from(geometry.fragment_len)).max(1);
        let fits = sn.checked_add(count).is_some_and(|end| end <= geometry.fragments())
            && geometry.fragment_bytes(sn + count - 1).end - geometry.fragment_bytes(sn).start
                == payload.len() as u64;
        // Before it has said what it has, no honest source sends it anything.
        if fits && self.begun && self.assembler.is_some() {
            self.machine.handle(now, Input::Sent { sn, count: count as u32 });
            self.drain(Landing::At(sn, payload))?;
        }
        Ok(())
    }
}

/// Returns the ticket that shows the other end of a connection that this one takes part; zeros where
/// connections are not sealed.
fn ticket_for(
    stream: &mut FrameStream,
    secret: Option<&Secret>,
    within: std::time::Duration,
) -> Result<Hash, FrameError> {
    let Some(secret) = secret else { return Ok([0; 32]) };
    stream.shake_hands(within)?;
    Ok(stream.binding().map_or([0; 32], |binding| secret.ticket(&binding)))
}

/// Lengths of the parts of a packet.
#[derive(Clone, Copy)]
struct Packet {
    outer_len: usize,
    header_len: usize,
    payload_len: usize,
}

/// Opens the fragments that lie where they belong, from `sn` on; gives those that are the source's. The
/// others are worth nothing, and are missing as before.
fn open_in_place(parts: &mut [IoSliceMut<'_>], sn: u64, len: usize, packet: Packet, seal: &Seal) -> RangeSet {
    let Packet { outer_len, header_len, payload_len } = packet;
    let (mut left, mut next, mut at) = (len, sn, 0);
    let mut ours = RangeSet::new();
    while left > 0 {
        at += usize::from(outer_len > 0);
        let tag =
            *parts[at][..header_len - HEADER_TAG_LEN].last_chunk().expect("a header with tags is longer");
        at += 1;
        left -= outer_len + header_len;
        let want = payload_len.min(left);
        left -= want;
        let is_ours = if parts[at].len() >= want {
            at += 1;
            seal.open(next, &mut parts[at - 1][..want], &tag)
        } else {
            // It lies in several hash groups.
            let first = at;
            let mut whole = Vec::with_capacity(want);
            while whole.len() < want {
                let take = parts[at].len().min(want - whole.len());
                whole.extend_from_slice(&parts[at][..take]);
                at += 1;
            }
            let is_ours = seal.open(next, &mut whole, &tag);
            let mut opened = &whole[..];
            for part in &mut parts[first..at] {
                let (piece, rest) = opened.split_at(part.len().min(opened.len()));
                part[..piece.len()].copy_from_slice(piece);
                opened = rest;
            }
            is_ours
        };
        if is_ours {
            ours.insert(next..next + 1);
        }
        next += 1;
    }
    ours
}

/// Packets that came for the transfer and were not its source's.
#[derive(Clone, Copy, Debug, Default)]
struct Forged {
    packets: u64,
    /// Time at which they were last reported in the log.
    said_at: Option<Time>,
}

impl Forged {
    fn came(&mut self, now: Time) {
        self.packets += 1;
        if self.said_at.is_none_or(|at| now.since(at) >= FORGED_INTERVAL) {
            self.said_at = Some(now);
            tracing::warn!(packets = self.packets, "packets come that are not of the source: dropped");
        }
    }
}

/// Descriptors that can be read.
#[derive(Clone, Debug, Default)]
struct Ready {
    data: bool,
    strangers: bool,
    source: bool,
    rack: bool,
    candidates: Vec<UpstreamId>,
}

/// Checks that the datagrams in `parts` are the expected fragments, one after the other, so that their bytes
/// are where they belong already; returns their round and flags if so.
fn in_place(
    parts: &[IoSliceMut<'_>],
    sn: u64,
    arrival: Arrival,
    (handle, keys): (Handle, Option<&Seal>),
    geometry: &Geometry,
    outer_len: usize,
) -> Option<(u32, u8)> {
    let header_len = HEADER_LEN + keys.map_or(0, |_| FRAGMENT_TAGS_LEN);
    let packet_len = outer_len + header_len + geometry.fragment_len as usize;
    let segments = arrival.len.div_ceil(arrival.segment_len);
    if segments > 1 && arrival.segment_len != packet_len {
        return None;
    }
    let mut found: Option<(u32, u8)> = None;
    let (mut offset, mut next) = (0, sn);
    for part in parts {
        if offset >= arrival.len {
            break;
        }
        if offset % packet_len == outer_len {
            let Ok((header, len)) = Header::parse(part) else { return None };
            if keys.is_some_and(|keys| !seal::vouches(keys, &header, part, len)) {
                return None;
            }
            let Header::Fragment(header) = header else { return None };
            if len != header_len {
                return None;
            }
            let (round, flags) = found.unwrap_or((header.round, 0));
            let same = header.handle == handle && header.sn == next && header.round == round;
            if !same || header.flags & FLAG_PATCH != 0 {
                return None;
            }
            found = Some((round, flags | header.flags));
            next += 1;
        }
        offset += part.len();
    }
    // Only the object's last fragment is shorter, and it must be as short as it should.
    let last = geometry.fragment_bytes(next.checked_sub(1).filter(|last| *last >= sn)?);
    let want = (segments - 1) * packet_len + outer_len + header_len + (last.end - last.start) as usize;
    found.filter(|_| arrival.len == want && next == sn + segments as u64)
}

#[cfg(test)]
mod intake_tests;
