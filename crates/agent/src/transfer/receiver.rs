//! Driver of the push receiver: sockets, part file and clock around the machine.

mod rack;

use super::assembler::{Assembler, Check, xor};
use super::clock::{Clock, wait};
use super::error::TransferError;
use super::serve::{Served, Supply};
use super::{Received, ReceiverProgress, ReceiverSpec, Rendezvous, Sink, discovery};
use polycast_net::archive;
use polycast_net::frames::{FrameError, FrameStream};
use polycast_net::hash::{hex, root_hash};
use polycast_net::object::ObjectKind;
use polycast_net::store::PartFile;
use polycast_net::udp::{Arrival, DataReceiver, SEGMENTS_MAX};
use polycast_protocol::push::{
    Geometry, Receiver, ReceiverConfig, ReceiverInput as Input, ReceiverOutput as Output,
};
use polycast_types::{Duration, Handle, ObjectId, RangeSet, Time};
use polycast_wire::control::{Control, Hash, Hello, RANGES_MAX, Welcome};
use polycast_wire::data::{CodedHeader, FLAG_PATCH, HEADER_LEN, Header};
use rack::Rack;
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, VecDeque};
use std::io::IoSliceMut;
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Room for what follows the expected fragments in one receive.
const OVERFLOW_LEN: usize = 64 << 10;
/// Receives between two looks at the control channel.
const RECEIVES_MAX: usize = 32;
/// A nap lasts this long,
const NAP: std::time::Duration = std::time::Duration::from_micros(1_000);
/// follows a burst of at most so many batches,
const NAP_BATCHES_MAX: usize = 8;
/// and never comes near the beginning or the end, where it would delay somebody.
const NAP_AFTER_BATCHES: u64 = 32;
/// Groups from the chain that may wait for their hashes.
const UNHASHED_MAX: usize = 16;
/// Coded patches that wait until they can be decoded.
const UNDECODED_MAX: usize = 64;
/// How long a receiver that is done waits for the source's FINISHED.
const GOODBYE: Duration = Duration::from_secs(3);

/// Receives one object; blocks until it is stored, or has failed.
///
/// # Errors
/// The source cannot be found or reached or goes away, or the object cannot be stored.
pub fn receive(
    spec: ReceiverSpec,
    on_event: &mut dyn FnMut(&ReceiverProgress),
) -> Result<Received, TransferError> {
    let mut refused = Vec::new();
    loop {
        let (address, handle) = match &spec.rendezvous {
            Rendezvous::At(address, handle) => (*address, *handle),
            Rendezvous::Pull(..) => {
                return Err(TransferError::Refused("an object that is pulled needs a node".into()));
            }
            Rendezvous::Discover => discovery::find_source(spec.interface, None, &refused, &spec.cancel)?,
        };
        let clock = Clock::start();
        match join(&spec, address, handle, clock) {
            // Another receiver took the last place meanwhile: wait for another offer.
            Err(TransferError::Refused(reason)) if matches!(spec.rendezvous, Rendezvous::Discover) => {
                tracing::info!(%reason, "turned down, waiting for another offer");
                refused.push(handle);
            }
            Err(error) => return Err(error),
            Ok(mut run) => return run.run(on_event),
        }
    }
}

/// What WELCOME said, without borrowed parts.
pub(super) struct Offer {
    pub(super) object: ObjectId,
    pub(super) name: String,
    pub(super) kind: ObjectKind,
    pub(super) geometry: Geometry,
    channel: SocketAddrV4,
    outer_len: usize,
    pub(super) stall: Duration,
}

/// Opens everything and says HELLO.
fn join(
    spec: &ReceiverSpec,
    address: SocketAddr,
    handle: Handle,
    clock: Clock,
) -> Result<Run, TransferError> {
    let data = DataReceiver::open()?;
    let listen = SocketAddr::from((spec.interface, 0));
    let listening = |source| TransferError::Listen { address: listen, source };
    let listener = TcpListener::bind(listen).map_err(listening)?;
    listener.set_nonblocking(true).map_err(listening)?;
    let mut source = FrameStream::connect(address, std::time::Duration::from_secs(5))
        .map_err(|source| TransferError::Unreachable { address, source })?;
    let hello = Hello {
        handle,
        name: &spec.name,
        window_bytes: data.window_bytes(),
        serve_port: listener.local_addr()?.port(),
    };
    source.send(&Control::Hello(hello)).map_err(|e| TransferError::source_lost(e, 0, 0))?;
    let offer = await_welcome(&mut source, spec, clock)?;
    let (target, part) = match open_store(spec, &offer, &data) {
        Ok(store) => store,
        Err(error) => {
            // The source need not wait for this end, and its report can say why.
            let _ = source.send(&Control::Refuse(&error.to_string()));
            source.part(std::time::Duration::from_secs(1));
            return Err(error);
        }
    };
    let ends = Ends { data, source, listener };
    Ok(Run::new(spec.clone(), offer, handle, clock, ends, target, part))
}

/// Joins the data channel and makes room for the object.
fn open_store(
    spec: &ReceiverSpec,
    offer: &Offer,
    data: &DataReceiver,
) -> Result<(PathBuf, PartFile), TransferError> {
    let target = target_of(&spec.sink, &offer.name)?;
    let part = PartFile::open(&target, offer.geometry.object_len)?;
    if offer.channel.port() != 0 {
        let multicast = |source| TransferError::Multicast { interface: spec.interface, source };
        data.join(spec.interface, offer.channel).map_err(multicast)?;
    }
    Ok((target, part))
}

/// The sockets of a transfer.
struct Ends {
    data: DataReceiver,
    source: FrameStream,
    listener: TcpListener,
}

pub(super) fn await_welcome(
    source: &mut FrameStream,
    spec: &ReceiverSpec,
    clock: Clock,
) -> Result<Offer, TransferError> {
    let lost = |error| TransferError::source_lost(error, 0, 0);
    loop {
        if spec.cancel.load(Ordering::Relaxed) {
            return Err(TransferError::Cancelled);
        }
        let open = source.fill();
        match source.next_frame().map_err(lost)? {
            Some(Control::Welcome(welcome)) => return Ok(Offer::from(welcome)),
            Some(Control::Refuse(reason)) => return Err(TransferError::Refused(reason.to_string())),
            Some(_) => return Err(polycast_wire::WireError::Malformed.into()),
            None => {}
        }
        open.map_err(lost)?;
        if clock.seconds() > spec.options.stall_timeout.as_secs_f64() {
            return Err(TransferError::Refused("no answer to HELLO".into()));
        }
        source.wait(std::time::Duration::from_millis(100))?;
    }
}

impl From<Welcome<'_>> for Offer {
    fn from(welcome: Welcome<'_>) -> Self {
        Offer {
            object: welcome.object,
            name: welcome.name.to_string(),
            kind: if welcome.directory { ObjectKind::Directory } else { ObjectKind::File },
            geometry: Geometry {
                object_len: welcome.object_len,
                fragment_len: welcome.fragment_len,
                group_len: welcome.group_len,
            },
            channel: SocketAddrV4::new(welcome.channel.0.into(), welcome.channel.1),
            outer_len: welcome.outer_len.into(),
            stall: Duration(welcome.stall_ns),
        }
    }
}

/// A transfer that is being received.
struct Run {
    spec: ReceiverSpec,
    offer: Offer,
    handle: Handle,
    clock: Clock,
    machine: Receiver,
    /// `None` once the object is committed.
    assembler: Option<Assembler>,
    target: PathBuf,
    data: DataReceiver,
    source: FrameStream,
    listener: TcpListener,
    served: Arc<Served>,
    upstream: Option<FrameStream>,
    rack: Rack,
    /// When to tell the source that the upstream is lost.
    complain_at: Option<Time>,
    chained: bool,
    /// Groups that came over the chain before their hash.
    unhashed: BTreeMap<u64, Vec<u8>>,
    root: Option<Hash>,
    begun: bool,
    resuming: bool,
    finished: bool,
    source_gone: bool,
    committed_at: Option<Time>,
    /// That of which the caller has been told.
    told_committed: Option<Time>,
    heard_at: Time,
    loss: Option<(Pcg64Mcg, u64)>,
    /// Buffers of the receive path, taken out while in use.
    headers: Vec<[u8; HEADER_LEN]>,
    outers: Vec<u8>,
    overflow: Vec<u8>,
    linear: Vec<u8>,
    sum: Vec<u8>,
    expected: usize,
    /// Datagram batches taken from the data channel so far.
    batches: u64,
    /// Coded patches of which more than one fragment was missing when they came.
    undecoded: VecDeque<(CodedHeader, Vec<u8>)>,
}

/// Where the bytes of the fragments being handled are.
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
        handle: Handle,
        clock: Clock,
        ends: Ends,
        target: PathBuf,
        part: PartFile,
    ) -> Self {
        let Ends { data, source, listener } = ends;
        let geometry = offer.geometry;
        let packet_len = u64::from(geometry.fragment_len) + (offer.outer_len + HEADER_LEN) as u64;
        let machine = Receiver::new(ReceiverConfig {
            geometry,
            // Within one datagram batch nothing is reordered; between batches a few may be.
            reorder_packets: 3 * SEGMENTS_MAX as u64,
            reorder_delay: Duration::from_millis(1),
            gather_delay: Duration::from_millis(12),
            retry_delay: Duration::from_millis(40),
            report_packets: (data.window_bytes() / packet_len / 2).max(1),
            heartbeat: Duration::from_millis(50),
        });
        let loss = (spec.options.loss > 0.0).then(|| {
            let seed = name_seed(spec.options.seed, &spec.name);
            (Pcg64Mcg::new(u128::from(seed) << 1 | 1), (spec.options.loss * u64::MAX as f64) as u64)
        });
        let resuming = part.is_resumed();
        let served = Served::new(handle, geometry, Supply::Part(part.file()));
        Run {
            machine,
            served,
            target,
            assembler: Some(Assembler::new(geometry, part)),
            data,
            source,
            listener,
            upstream: None,
            rack: Rack::Alone,
            complain_at: None,
            chained: false,
            unhashed: BTreeMap::new(),
            root: None,
            begun: false,
            resuming,
            finished: false,
            source_gone: false,
            committed_at: None,
            told_committed: None,
            heard_at: clock.now(),
            loss,
            headers: vec![[0; HEADER_LEN]; SEGMENTS_MAX],
            outers: vec![0; offer.outer_len * SEGMENTS_MAX],
            overflow: vec![0; OVERFLOW_LEN],
            linear: Vec::new(),
            sum: Vec::new(),
            expected: SEGMENTS_MAX,
            batches: 0,
            undecoded: VecDeque::new(),
            spec,
            offer,
            handle,
            clock,
        }
    }

    fn run(&mut self, on_event: &mut dyn FnMut(&ReceiverProgress)) -> Result<Received, TransferError> {
        let result = self.run_inner(on_event);
        self.served.stop();
        if let Err(error) = &result
            && !self.source_gone
        {
            // The source's report can say why.
            let _ = self.source.send(&Control::Refuse(&error.to_string()));
            self.source.part(std::time::Duration::from_millis(500));
        }
        if let (Err(TransferError::SourceLost { .. }), Some(assembler)) = (&result, &mut self.assembler)
            && self.machine.verified_bytes() > 0
        {
            assembler.part_mut().keep_for_later();
        }
        result
    }

    fn run_inner(&mut self, on_event: &mut dyn FnMut(&ReceiverProgress)) -> Result<Received, TransferError> {
        let mut next_event = self.clock.now();
        if !self.resuming {
            self.begin()?;
        }
        loop {
            if self.spec.cancel.load(Ordering::Relaxed) {
                return Err(TransferError::Cancelled);
            }
            let ready = self.wait()?;
            if ready.source {
                self.read_source()?;
            }
            if ready.upstream {
                self.read_upstream()?;
            }
            if ready.listener {
                self.served.accept(&self.listener);
            }
            if ready.data {
                self.read_burst()?;
            }
            self.drain(Landing::Nowhere)?;
            let now = self.clock.now();
            self.rack_turn(now, ready.rack)?;
            if self.complain_at.take_if(|at| now >= *at).is_some() {
                self.say(&Control::UpstreamLost)?;
            }
            if now >= next_event {
                next_event = now + Duration::from_millis(100);
                on_event(&ReceiverProgress {
                    bytes: self.machine.verified_bytes(),
                    total: self.offer.geometry.object_len,
                    received: None,
                });
            }
            if self.told_committed.is_none() && self.committed_at.is_some() {
                self.told_committed = self.committed_at;
                let total = self.offer.geometry.object_len;
                on_event(&ReceiverProgress { bytes: total, total, received: self.received() });
            }
            if let Some(received) = self.ended(now)? {
                return Ok(received);
            }
        }
    }

    /// Whether there is nothing more to do here.
    fn ended(&mut self, now: Time) -> Result<Option<Received>, TransferError> {
        let lost = |reason: String, run: &Self| TransferError::SourceLost {
            verified: run.machine.verified_bytes(),
            total: run.offer.geometry.object_len,
            reason,
        };
        let Some(committed_at) = self.committed_at else {
            if self.source_gone {
                return Err(lost("the connection was closed".into(), self));
            }
            if now.since(self.heard_at) >= self.offer.stall {
                return Err(lost(format!("no sign of life for {}", self.offer.stall), self));
            }
            return Ok(None);
        };
        // One of a chain serves those behind it until the source says that all are done.
        let needed = self.chained || self.served.active() > 0;
        let over = self.finished || self.source_gone || (!needed && now.since(committed_at) >= GOODBYE);
        Ok(if over { self.received() } else { None })
    }

    /// What was received, once it is where it belongs.
    fn received(&self) -> Option<Received> {
        Some(Received {
            object: self.offer.object,
            name: self.offer.name.clone(),
            kind: self.offer.kind,
            bytes: self.offer.geometry.object_len,
            root: self.root.map(|root| hex(&root)).unwrap_or_default(),
            path: self.target.clone(),
            seconds: Duration(self.committed_at?.0).as_secs_f64(),
            patched_bytes: self.machine.patched_bytes(),
        })
    }

    /// Says what is held already (nothing, unless an earlier try left some) and that data may come.
    fn begin(&mut self) -> Result<(), TransferError> {
        self.begun = true;
        self.machine.handle(self.clock.now(), Input::Begin);
        self.drain(Landing::Nowhere)
    }

    /// All hashes are there: what an earlier try left can be verified.
    fn resume(&mut self) -> Result<(), TransferError> {
        for group in 0..self.offer.geometry.groups() {
            let assembler = self.assembler.as_mut().expect("not committed before it begins");
            if assembler.check_held(group)? {
                self.served.mark(group);
                self.machine.handle(self.clock.now(), Input::Held { group });
            }
            // Verifying may take a while: the source is to see that this end lives.
            if group % 256 == 255 {
                let _ = self.source.send(&Control::Alive);
            }
        }
        tracing::info!(bytes = self.machine.verified_bytes(), "resumed from an earlier try");
        self.begin()
    }

    fn wait(&mut self) -> Result<Ready, TransferError> {
        let now = self.clock.now();
        let deadline = self.machine.deadline().into_iter().chain(self.rack.deadline()).min();
        let writing = if self.source.queued() > 0 { PollFlags::OUT } else { PollFlags::empty() };
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.data.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
        ];
        let source_at = fds.len();
        if !self.source_gone {
            fds.push(PollFd::from_borrowed_fd(self.source.as_fd(), PollFlags::IN | writing));
        }
        let upstream_at = fds.len();
        if let Some(upstream) = &self.upstream
            && self.unhashed.len() < UNHASHED_MAX
        {
            fds.push(PollFd::from_borrowed_fd(upstream.as_fd(), PollFlags::IN));
        }
        let rack_at = fds.len().max(upstream_at + 1);
        fds.resize_with(rack_at, || PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::empty()));
        fds.extend(self.rack.descriptors());
        wait(&mut fds, now, deadline, Duration::from_millis(100))?;
        let is = |i: usize| fds.get(i).is_some_and(|fd| !fd.revents().is_empty());
        Ok(Ready {
            data: is(0),
            listener: is(1),
            source: !self.source_gone && is(source_at),
            upstream: is(upstream_at),
            rack: fds[rack_at..].iter().any(|fd| !fd.revents().is_empty()),
        })
    }

    /// Takes what has come on the data channel. A stream that comes slower than it is handled would wake this
    /// end for every batch: a short nap lets some gather, which costs a millisecond and saves a third of the work.
    fn read_burst(&mut self) -> Result<(), TransferError> {
        let mut batches = 0;
        while batches < RECEIVES_MAX && self.read_data()? {
            batches += 1;
        }
        self.batches += batches as u64;
        let streaming = self.batches > NAP_AFTER_BATCHES
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
        let run = self.machine.missing_run(sn, self.expected as u64);
        let (handle, geometry, outer_len) = (self.handle, self.offer.geometry, self.offer.outer_len);
        let Some(assembler) = self.assembler.as_mut().filter(|_| self.begun) else {
            // Not needed (any more): keep the socket empty.
            let mut parts = [IoSliceMut::new(&mut self.overflow)];
            return Ok(self.data.receive(&mut parts)?.is_some());
        };
        let mut parts = Vec::with_capacity(3 * run as usize + 8);
        let (headers, outers) = (&mut self.headers, &mut self.outers);
        let scattered = assembler.scatter(sn, run as usize, headers, outers, &mut parts)?;
        parts.push(IoSliceMut::new(&mut self.overflow));
        let Some(arrival) = self.data.receive(&mut parts)? else { return Ok(false) };
        let segments = arrival.len.div_ceil(arrival.segment_len);
        self.expected = segments.clamp(1, SEGMENTS_MAX);
        let landed = if segments <= scattered {
            in_place(&parts, sn, arrival, handle, &geometry, outer_len)
        } else {
            None
        };
        let now = self.clock.now();
        let arrived = Time(now.0.saturating_sub(arrival.waited.as_nanos() as u64));
        if let Some((round, flags)) = landed {
            drop(parts);
            for run in self.survivors(sn..sn + segments as u64) {
                let count = (run.end - run.start) as u32;
                self.machine.handle(now, Input::Data { round, sn: run.start, count, flags, arrived });
                self.drain(Landing::InPlace)?;
            }
            return Ok(true);
        }
        let mut linear = std::mem::take(&mut self.linear);
        linear.clear();
        for part in &parts {
            let take = part.len().min(arrival.len - linear.len());
            linear.extend_from_slice(&part[..take]);
        }
        drop(parts);
        for datagram in linear.chunks(arrival.segment_len) {
            // The last fragment may have completed the object.
            if let Some(inner) = datagram.get(outer_len..).filter(|_| self.assembler.is_some()) {
                self.datagram(now, arrived, inner)?;
            }
        }
        self.linear = linear;
        Ok(true)
    }

    /// Whether the next datagram falls to the loss that was asked for.
    fn loses(&mut self) -> bool {
        self.loss.as_mut().is_some_and(|(rng, threshold)| rng.next_u64() < *threshold)
    }

    /// The runs that the loss that was asked for leaves of fragments.
    fn survivors(&mut self, sns: Range<u64>) -> Vec<Range<u64>> {
        if self.loss.is_none() {
            return vec![sns];
        }
        let mut left = RangeSet::new();
        for sn in sns {
            if !self.loses() {
                left.insert(sn..sn + 1);
            }
        }
        left.iter().collect()
    }

    /// One datagram that is not where it belongs.
    fn datagram(&mut self, now: Time, arrived: Time, datagram: &[u8]) -> Result<(), TransferError> {
        if self.loses() {
            return Ok(());
        }
        let Ok((header, header_len)) = Header::parse(datagram) else { return Ok(()) };
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
                let missing = self.machine.missing_of(header.sns());
                if missing > 1 && payload.len() <= geometry.fragment_len as usize {
                    // Other patches may bring all but one of them.
                    if self.undecoded.len() == UNDECODED_MAX {
                        self.undecoded.pop_front();
                    }
                    self.undecoded.push_back((header, payload.to_vec()));
                    return Ok(());
                }
                self.decode(now, header.sns(), payload)?;
                self.decode_earlier(now)
            }
            Header::Coded(_) => Ok(()),
        }
    }

    /// Tries earlier coded patches again that lacked too much then.
    fn decode_earlier(&mut self, now: Time) -> Result<(), TransferError> {
        while self.assembler.is_some()
            && let Some(at) = self.undecoded.iter().position(|(h, _)| self.machine.missing_of(h.sns()) < 2)
        {
            if let Some((header, payload)) = self.undecoded.remove(at) {
                self.decode(now, header.sns(), &payload)?;
            }
        }
        Ok(())
    }

    /// Takes the missing fragment out of a coded patch, if exactly one is missing.
    fn decode(&mut self, now: Time, sns: &[u64], payload: &[u8]) -> Result<(), TransferError> {
        let geometry = self.offer.geometry;
        let Some(sn) = self.machine.decodable(sns) else { return Ok(()) };
        if payload.len() > geometry.fragment_len as usize {
            return Ok(());
        }
        let mut sum = std::mem::take(&mut self.sum);
        sum.clear();
        sum.resize(geometry.fragment_len as usize, 0);
        xor(&mut sum[..payload.len()], payload);
        let assembler = self.assembler.as_mut().expect("the caller has it");
        for other in sns.iter().filter(|other| **other != sn) {
            assembler.add_to(&mut sum, *other)?;
        }
        let bytes = geometry.fragment_bytes(sn);
        self.machine.handle(now, Input::Patched { sn, count: 1 });
        self.drain(Landing::At(sn, &sum[..(bytes.end - bytes.start) as usize]))?;
        self.sum = sum;
        Ok(())
    }

    /// Does what the machine wants done.
    fn drain(&mut self, landing: Landing<'_>) -> Result<(), TransferError> {
        while let Some(output) = self.machine.poll(self.clock.now()) {
            match output {
                Output::Keep { sn, count } => match landing {
                    Landing::InPlace => {}
                    Landing::At(first, bytes) => self.keep(sn, count, first, bytes)?,
                    Landing::Nowhere => unreachable!("fragments are kept while they are handled"),
                },
                Output::Check { group } => self.check(group)?,
                Output::Control(control) => self.say_in_rack(&control)?,
                Output::Repeat(control) => self.say(&control)?,
                Output::Complete => self.commit()?,
            }
        }
        Ok(())
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
            self.served.mark(group);
        } else {
            tracing::warn!(group, "wrong bytes arrived: asking for them again");
        }
        self.machine.handle(self.clock.now(), Input::Checked { group, intact });
        Ok(())
    }

    fn say(&mut self, control: &Control<'_>) -> Result<(), TransferError> {
        if self.source_gone {
            return Ok(());
        }
        let sent = self.source.send(control);
        self.note_source(sent.map(|()| true))
    }

    /// Puts the object where it belongs.
    fn commit(&mut self) -> Result<(), TransferError> {
        let root = root_hash(self.assembler.as_ref().expect("committed once").hashes());
        if self.root.is_some_and(|announced| announced != root) {
            return Err(TransferError::Refused("its hashes contradict its root hash".into()));
        }
        self.root = Some(root);
        let part = self.assembler.take().expect("committed once").into_part();
        put_in_place(part, &self.target, &self.spec.sink, self.offer.kind)?;
        let now = self.clock.now();
        self.committed_at = Some(now);
        self.upstream = None;
        self.leave_rack();
        self.machine.handle(now, Input::Committed);
        Ok(())
    }

    fn read_source(&mut self) -> Result<(), TransferError> {
        let flushed = self.source.flush().map(|()| true);
        self.note_source(flushed)?;
        let filled = self.source.fill();
        // What came before the end still counts.
        self.source_frames()?;
        self.note_source(filled)
    }

    /// Notes a source that is gone; only an end that does not speak our protocol is an error at once.
    fn note_source(&mut self, result: Result<bool, FrameError>) -> Result<(), TransferError> {
        match result {
            Ok(_) => Ok(()),
            Err(FrameError::Wire(error)) => Err(error.into()),
            Err(_) => {
                self.source_gone = true;
                Ok(())
            }
        }
    }

    fn source_frames(&mut self) -> Result<(), TransferError> {
        loop {
            let now = self.clock.now();
            let frame = match self.source.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(error) => return self.note_source(Err(error)),
            };
            self.heard_at = now;
            match frame {
                Control::Hashes { first, hashes } => self.add_hashes(first, &hashes)?,
                Control::Root(root) => self.root = Some(root),
                Control::PtchData { sn, payload } => {
                    // The frame is borrowed from the stream: its bytes are few enough to be moved.
                    let payload = payload.to_vec();
                    self.patch(now, sn, &payload)?;
                }
                control @ Control::DataFnsd { .. } => self.machine.handle(now, Input::Control(&control)),
                Control::Channel { channel: (address, port), outer_len } => {
                    self.change_channel(SocketAddrV4::new(address.into(), port), outer_len.into())?;
                }
                Control::Upstream { address, port } => self.fetch_from((address, port).into())?,
                Control::Gather { own, members } => self.gather(own, &members),
                Control::Speaker { member, address, port } => self.follow(member, (address, port).into()),
                Control::Finished => self.finished = true,
                Control::Refuse(reason) => return Err(TransferError::Refused(reason.to_string())),
                _ => {}
            }
            if self.resuming && !self.begun && self.all_hashes() {
                self.resume()?;
            }
        }
    }

    /// Listens on another data channel from now on. What waits on the one before is taken first.
    fn change_channel(&mut self, channel: SocketAddrV4, outer_len: usize) -> Result<(), TransferError> {
        let mut batches = 0;
        while batches < RECEIVES_MAX && self.read_data()? {
            batches += 1;
        }
        let opened = DataReceiver::open().and_then(|data| {
            data.join(self.spec.interface, channel)?;
            Ok(data)
        });
        match opened {
            Ok(data) => self.data = data,
            // The source notices that nothing comes here, and serves this end over TCP.
            Err(error) => tracing::warn!(%channel, %error, "cannot listen on the new data channel"),
        }
        (self.offer.channel, self.offer.outer_len) = (channel, outer_len);
        self.outers = vec![0; outer_len * SEGMENTS_MAX];
        Ok(())
    }

    fn all_hashes(&self) -> bool {
        let known = self.assembler.as_ref().map_or(0, |a| a.hashes().len() as u64);
        known == self.offer.geometry.groups()
    }

    fn add_hashes(&mut self, first: u64, hashes: &[Hash]) -> Result<(), TransferError> {
        let Some(assembler) = &mut self.assembler else { return Ok(()) };
        for group in assembler.add_hashes(first, hashes) {
            self.check(group)?;
        }
        let known = self.assembler.as_ref().map_or(0, |a| a.hashes().len() as u64);
        while let Some(entry) = self.unhashed.first_entry().filter(|e| *e.key() < known) {
            let (group, payload) = entry.remove_entry();
            self.accept(group, &payload)?;
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
        if fits && self.assembler.is_some() {
            self.machine.handle(now, Input::Patched { sn, count: count as u32 });
            self.drain(Landing::At(sn, payload))?;
        }
        Ok(())
    }

    /// Begins to fetch over TCP what is still missing.
    fn fetch_from(&mut self, address: SocketAddr) -> Result<(), TransferError> {
        self.chained = true;
        self.leave_rack();
        self.complain_at = None;
        self.machine.handle(self.clock.now(), Input::Chained);
        if self.assembler.is_none() {
            return Ok(());
        }
        tracing::info!(%address, "fetching over the TCP chain");
        let groups = self.offer.geometry.groups();
        let verified = (0..groups).filter(|g| self.machine.is_verified(*g)).map(|g| g..g + 1);
        // Beyond the frame's room some groups come twice; they are recognised.
        let have = verified.collect::<RangeSet>().iter().take(RANGES_MAX).collect();
        let connected =
            FrameStream::connect(address, std::time::Duration::from_secs(1)).map_err(FrameError::from);
        let fetching = connected.and_then(|mut stream| {
            stream.send(&Control::Fetch { handle: self.handle, have })?;
            Ok(stream)
        });
        match fetching {
            Ok(stream) => self.upstream = Some(stream),
            Err(error) => self.upstream_lost(&error),
        }
        Ok(())
    }

    /// Asks for another upstream, but not in a tight circle.
    fn upstream_lost(&mut self, error: &FrameError) {
        tracing::info!(%error, "the upstream is gone");
        self.upstream = None;
        self.complain_at = Some(self.clock.now() + Duration::from_millis(50));
    }

    fn read_upstream(&mut self) -> Result<(), TransferError> {
        let Some(mut upstream) = self.upstream.take() else { return Ok(()) };
        let filled = upstream.fill();
        loop {
            match upstream.next_frame() {
                Ok(Some(Control::Group { index, payload })) => {
                    let payload = payload.to_vec();
                    self.accept(index, &payload)?;
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    self.upstream_lost(&error);
                    return Ok(());
                }
            }
        }
        match filled {
            Err(error) if self.assembler.is_some() => self.upstream_lost(&error),
            Ok(_) if self.assembler.is_some() && self.complain_at.is_none() => self.upstream = Some(upstream),
            _ => {}
        }
        Ok(())
    }

    /// A group that came over the chain.
    fn accept(&mut self, group: u64, payload: &[u8]) -> Result<(), TransferError> {
        let Some(assembler) = &mut self.assembler else { return Ok(()) };
        if group >= self.offer.geometry.groups() {
            return Ok(());
        }
        match assembler.accept(group, payload)? {
            Check::Intact => {
                self.served.mark(group);
                self.machine.handle(self.clock.now(), Input::Fetched { group });
                self.drain(Landing::Nowhere)
            }
            Check::Corrupt => {
                tracing::warn!(group, "the upstream served wrong bytes");
                self.upstream_lost(&FrameError::Wire(polycast_wire::WireError::Malformed));
                Ok(())
            }
            Check::Later => {
                self.unhashed.insert(group, payload.to_vec());
                Ok(())
            }
        }
    }
}

/// What can be read.
struct Ready {
    data: bool,
    listener: bool,
    source: bool,
    upstream: bool,
    rack: bool,
}

/// Whether the datagrams in `parts` are the expected fragments, one after the other, so that their bytes
/// are where they belong already; their round and flags if so.
fn in_place(
    parts: &[IoSliceMut<'_>],
    sn: u64,
    arrival: Arrival,
    handle: Handle,
    geometry: &Geometry,
    outer_len: usize,
) -> Option<(u32, u8)> {
    let packet_len = outer_len + HEADER_LEN + geometry.fragment_len as usize;
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
            let Ok((Header::Fragment(header), HEADER_LEN)) = Header::parse(part) else { return None };
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
    let want = (segments - 1) * packet_len + outer_len + HEADER_LEN + (last.end - last.start) as usize;
    found.filter(|_| arrival.len == want && next == sn + segments as u64)
}

/// Gives a verified object its place; a directory is unpacked where the sink wants one.
pub(super) fn put_in_place(
    part: PartFile,
    target: &std::path::Path,
    sink: &Sink,
    kind: ObjectKind,
) -> Result<PathBuf, TransferError> {
    match (sink, kind) {
        (Sink::Path(_), ObjectKind::Directory) => {
            let file = std::fs::File::open(part.path())?;
            let reader = std::io::BufReader::with_capacity(1 << 20, file);
            archive::unpack(reader, target).map_err(|e| TransferError::Unpack(e.to_string()))?;
            Ok(target.to_path_buf())
        }
        _ => Ok(part.commit()?),
    }
}

/// Where the object goes. Into a folder that exists it goes under its own name.
pub(super) fn target_of(sink: &Sink, name: &str) -> Result<PathBuf, TransferError> {
    let path = match sink {
        Sink::Raw(path) => return Ok(path.clone()),
        Sink::Path(path) => path,
    };
    if !path.is_dir() {
        return Ok(path.clone());
    }
    // The name comes from another machine: it must not lead anywhere else.
    let safe = !name.is_empty() && !matches!(name, "." | "..") && !name.contains(['/', '\0']);
    if safe {
        Ok(path.join(name))
    } else {
        Err(TransferError::Refused(format!("'{name}' is not a file name")))
    }
}

/// Every receiver loses other packets, and the same ones again with the same seed.
fn name_seed(seed: u64, name: &str) -> u64 {
    name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
