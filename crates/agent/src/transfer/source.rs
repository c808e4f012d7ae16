//! Driver of the push sender: sockets, the object's bytes and the clock around the machine.

mod path;
mod racks;

use super::channel::{Channel, Work, batch_of};
use super::clock::{Clock, wait};
use super::entrance::{Calls, Entrance};
use super::error::TransferError;
use super::serve::{Served, Supply as ServeSupply};
use super::supply::Supply;
use super::{
    CHAIN, Change, ControlStep, MULTICAST, Path, PathNews, ReceiverReport, Receivers, Report, SourceSpec,
    discovery,
};
use polycast_net::frames::{FrameError, FrameStream};
use polycast_net::hash::{GROUP_LEN, hex};
use polycast_net::interface::{Interface, of_address};
use polycast_net::object::ObjectKind;
use polycast_net::udp::{Beacon, DataSender};
use polycast_protocol::push::{
    AttemptInterval, Geometry, Pace, PeerId, Sender, SenderConfig, SenderInput as Input,
    SenderOutput as Output,
};
use polycast_protocol::session::Why;
use polycast_types::{Duration, Handle, RangeSet, Time};
use polycast_wire::control::{Control, HASHES_MAX, Welcome};
use polycast_wire::data::fragment_len_for_mtu;
use polycast_wire::discovery::{Announcement, Discovery};
use rustix::event::{PollFd, PollFlags};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Frames longer than this gain nothing with segmentation offload, and fewer fit the buffers.
const MTU_MAX: u32 = 9_000;
/// Sends between two looks at the control channel.
const SENDS_MAX: usize = 8;
/// Patches are queued to a connection while it has less than this to send.
const PATCH_QUEUE_LEN: usize = 512 << 10;
/// Fragments in one PTCH_DATA.
const PATCH_FRAGMENTS: u64 = 16;
/// A receiver hears something at least this often.
const ALIVE_INTERVAL: Duration = Duration::from_millis(500);
/// Announcements, when nobody asks.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(500);
/// Connections that have not said HELLO yet.
const STRANGERS_MAX: usize = 256;

/// Sends one object to its receivers; blocks until each is done or has failed.
///
/// # Errors
/// No transfer was possible at all; receivers that failed are in the report.
pub fn deliver(spec: SourceSpec, on_event: &mut dyn FnMut(&Report)) -> Result<Report, TransferError> {
    prepare(spec)?.run(on_event)
}

/// Opens the source's end of a transfer, so that its control address and handle can be told to receivers.
///
/// # Errors
/// The interface, the multicast group or a port cannot be used.
pub fn prepare(spec: SourceSpec) -> Result<Prepared, TransferError> {
    let interface = of_address(spec.interface)?;
    let entrance = Entrance::open(spec.interface)?;
    let sender = match &spec.path {
        // Paths over trees are for the pull transport; here the chain does what can be done.
        Path::Chain | Path::Trees(_) => None,
        Path::Multicast { group, outer, .. } => Some(
            DataSender::open(spec.interface, *group)
                .map(|sender| sender.with_outer(outer.clone()))
                .map_err(|source| TransferError::Multicast { interface: spec.interface, source })?,
        ),
    };
    let beacon = match spec.receivers {
        Receivers::Count(_) => Some(discovery::beacon(spec.interface)?),
        _ => None,
    };
    Ok(Prepared { spec, interface, entrance, sender, beacon })
}

/// The source's end of a transfer, before it runs.
pub struct Prepared {
    spec: SourceSpec,
    interface: Interface,
    entrance: Entrance,
    sender: Option<DataSender>,
    beacon: Option<Beacon>,
}

impl Prepared {
    /// Where receivers connect to.
    #[must_use]
    pub fn control_address(&self) -> SocketAddr {
        self.entrance.address
    }

    /// The transfer's handle.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.entrance.handle
    }

    /// Delivers; blocks until each receiver is done or has failed.
    ///
    /// # Errors
    /// No transfer was possible at all; receivers that failed are in the report.
    pub fn run(self, on_event: &mut dyn FnMut(&Report)) -> Result<Report, TransferError> {
        Run::new(self).run(on_event)
    }
}

/// Why one is not a receiver any more that was to be one.
const TAKEN_OUT: &str = "taken out of the transfer";

/// A receiver's control connection.
struct Conn {
    /// `None` once it is closed.
    stream: Option<FrameStream>,
    name: String,
    serve: Option<SocketAddr>,
    /// Bytes of datagrams that its socket holds.
    window_bytes: u64,
    /// Whether it has said HAVE.
    joined: bool,
    /// Fragments to send as PTCH_DATA when the connection has room.
    patches: RangeSet,
    heard_of_us_at: Time,
    settled: Option<Settled>,
}

/// How a receiver's transfer ended.
struct Settled {
    seconds: f64,
    /// What carried its last bytes.
    fabric: String,
    failure: Option<String>,
}

/// A transfer that is being sent.
struct Run {
    spec: SourceSpec,
    clock: Clock,
    handle: Handle,
    address: SocketAddr,
    geometry: Geometry,
    machine: Sender,
    channel: Option<Channel>,
    supply: Supply,
    served: Arc<Served>,
    listener: TcpListener,
    beacon: Option<Beacon>,
    strangers: Vec<(FrameStream, Time)>,
    conns: BTreeMap<PeerId, Conn>,
    next_peer: u32,
    /// Receivers that could not be invited, and why.
    absent: Vec<(String, String)>,
    calls: Calls,
    expected: usize,
    started_at: Option<Time>,
    finished: bool,
    next_announce: Time,
    unicast_bytes: u64,
    /// Messages of receivers since the start.
    heard: u64,
    /// The fabric of the path, and those of all paths that carried something.
    fabric: String,
    used: Vec<String>,
    multicast_used: bool,
    chain_used: bool,
    path_lost: Option<String>,
    /// Whoever was on the path goes on over the chain.
    without_path: bool,
    events: Vec<(f64, String)>,
    control: Vec<ControlStep>,
    /// Receivers have been added: until when they may take to join.
    open_until: Option<Time>,
}

impl Run {
    fn new(prepared: Prepared) -> Self {
        let Prepared { spec, interface, entrance, sender, beacon } = prepared;
        let calls = Calls::start(entrance.invitation(spec.object, false), &spec.receivers);
        let Entrance { listener, address, handle } = entrance;
        let outer_len = sender.as_ref().map_or(0, DataSender::outer_len) as u32;
        let fragment_len = fragment_len_for_mtu(interface.mtu.min(MTU_MAX).saturating_sub(outer_len));
        let geometry = Geometry { object_len: spec.source.len(), fragment_len, group_len: GROUP_LEN };
        let (rate, attempts) = match &spec.path {
            Path::Multicast { rate, attempts, .. } => (*rate, *attempts),
            Path::Chain | Path::Trees(_) => (None, None),
        };
        let (fabric, allowed) = (spec.steering.fabric(), spec.steering.allowed());
        let machine = Sender::new(SenderConfig {
            allowance: allowed.map(|bytes| bytes.div_ceil(u64::from(fragment_len)).max(1)),
            handle,
            geometry,
            batch: batch_of(outer_len + fragment_len),
            rate,
            multicast: sender.is_some(),
            attempt_interval: attempts.map_or(AttemptInterval::Adaptive, AttemptInterval::AdaptiveUpTo),
            path_timeout: Duration::from_millis(1_000),
            stall_timeout: spec.options.stall_timeout,
            deadline: spec.options.deadline,
            slow: spec.options.slow,
            patch_delay: Duration::from_millis(10),
        });
        let expected = match &spec.receivers {
            Receivers::Count(n) | Receivers::Told(n) => *n,
            Receivers::Named(named) => named.len(),
        };
        Run {
            channel: sender.map(|sender| Channel::new(sender, handle, geometry)),
            supply: Supply::new(Arc::clone(&spec.source), geometry),
            served: Served::new(handle, geometry, ServeSupply::Object(Arc::clone(&spec.source))),
            machine,
            clock: Clock::start(),
            handle,
            address,
            geometry,
            listener,
            beacon,
            strangers: Vec::new(),
            conns: BTreeMap::new(),
            next_peer: 0,
            absent: Vec::new(),
            calls,
            expected,
            started_at: None,
            finished: false,
            next_announce: Time::ZERO,
            unicast_bytes: 0,
            heard: 0,
            fabric: fabric.unwrap_or_else(|| MULTICAST.into()),
            used: Vec::new(),
            multicast_used: false,
            chain_used: false,
            path_lost: None,
            without_path: false,
            events: Vec::new(),
            control: Vec::new(),
            open_until: None,
            spec,
        }
    }

    fn run(&mut self, on_event: &mut dyn FnMut(&Report)) -> Result<Report, TransferError> {
        let result = self.deliver(on_event);
        let goodbye = match &result {
            Ok(()) => Control::Finished,
            Err(TransferError::Cancelled) => Control::Refuse("the source was cancelled"),
            Err(_) => Control::Refuse("the source failed"),
        };
        for conn in self.conns.values_mut() {
            if let Some(mut stream) = conn.stream.take() {
                // Whoever does not hear this notices that the connection ends.
                let _ = stream.send(&goodbye);
                stream.finish();
            }
        }
        self.served.stop();
        for change in self.spec.steering.take() {
            if let Change::Add(name, _) = change {
                self.absent.push((name, "the transfer had ended when it was added".into()));
            }
        }
        result.map(|()| self.report())
    }

    fn deliver(&mut self, on_event: &mut dyn FnMut(&Report)) -> Result<(), TransferError> {
        let mut next_event = self.clock.now();
        while !self.finished {
            if self.spec.cancel.load(Ordering::Relaxed) {
                return Err(TransferError::Cancelled);
            }
            self.steer();
            self.start_when_ready()?;
            let busy = self.drain()? | self.hash_when_idle()?;
            self.patch_conns()?;
            self.wait(busy)?;
            let now = self.clock.now();
            if now >= next_event {
                next_event = now + Duration::from_millis(100);
                on_event(&self.report());
                self.keep_alive(now);
                let Pace { window, cuts, follows_loss, round_trip, queue, packets, slow } =
                    self.machine.pace();
                tracing::debug!(window, cuts, follows_loss, %round_trip, %queue, packets, slow, "under way");
            }
        }
        let Pace { window, cuts, round_trip, .. } = self.machine.pace();
        tracing::info!(window, cuts, %round_trip, "transfer over");
        on_event(&self.report());
        Ok(())
    }

    /// Takes in what has changed since the start.
    fn steer(&mut self) {
        let now = self.clock.now();
        if !self.without_path
            && self.channel.is_some()
            && let Some(reason) = self.spec.steering.lost()
        {
            tracing::warn!(%reason, "going on without the path");
            self.events.push((now.since(Time::ZERO).as_secs_f64(), reason.clone()));
            self.go_without_path(now, reason);
        }
        if let Some(next) = self.spec.steering.next_path() {
            self.take_path(now, next);
        }
        if let Some(channel) = &mut self.channel
            && let Some(outer) = self.spec.steering.take_outer()
        {
            channel.set_outer(outer);
        }
        for PathNews { waits, event, steps } in self.spec.steering.take_news() {
            if let Some(waits) = waits {
                self.machine.handle(now, Input::PathWaits(waits));
            }
            self.events.extend(event.map(|event| (now.since(Time::ZERO).as_secs_f64(), event)));
            self.control.extend(steps);
        }
        for change in self.spec.steering.take() {
            match change {
                Change::Add(name, address) => self.add(now, name, address),
                Change::Remove(name) => self.take_out(now, &name),
            }
        }
    }

    /// A receiver that comes late.
    fn add(&mut self, now: Time, name: String, address: SocketAddr) {
        let Receivers::Named(named) = &mut self.spec.receivers else { return };
        named.push((name.clone(), address));
        self.absent.retain(|(absent, _)| *absent != name);
        self.expected += 1;
        self.machine.handle(now, Input::Open);
        self.open_until = Some(now + self.spec.options.join_timeout);
        self.calls.call(vec![(name, address)]);
    }

    fn take_out(&mut self, now: Time, name: &str) {
        let named = self.conns.iter().find(|(_, conn)| conn.name == name);
        match named.map(|(peer, conn)| (*peer, conn.joined, conn.settled.is_some())) {
            Some((_, _, true)) => {}
            Some((peer, true, _)) => {
                self.machine.handle(now, Input::Left { peer, why: Why::TakenOut });
            }
            // It has not said yet what it has, or not come: nobody waits for it.
            early => {
                if let Some(mut stream) = early.and_then(|(peer, ..)| self.conns.remove(&peer)?.stream) {
                    let _ = stream.send(&Control::Refuse(TAKEN_OUT));
                    stream.finish();
                }
                if !self.absent.iter().any(|(absent, _)| absent == name) {
                    self.absent.push((name.into(), TAKEN_OUT.into()));
                }
            }
        }
    }

    /// Starts when all expected receivers are ready, or with those there are when the time is over.
    fn start_when_ready(&mut self) -> Result<(), TransferError> {
        while let Some(refused) = self.calls.refused() {
            self.absent.push(refused);
        }
        let now = self.clock.now();
        if self.started_at.is_some() {
            let came = self.conns.values().filter(|conn| conn.joined).count() + self.absent.len();
            if self.open_until.take_if(|until| came >= self.expected || now >= *until).is_some() {
                self.machine.handle(now, Input::Close);
            }
            return Ok(());
        }
        let joined = self.conns.values().filter(|c| c.joined && c.settled.is_none()).count();
        let late = now.since(Time::ZERO) >= self.spec.options.join_timeout;
        if joined + self.absent.len() < self.expected && !late {
            return Ok(());
        }
        if joined == 0 {
            if !self.absent.is_empty() && !late {
                // Nobody is coming: the report says why for each.
                self.finished = true;
                return Ok(());
            }
            return Err(TransferError::NobodyJoined(self.spec.options.join_timeout.0 / 1_000_000_000));
        }
        self.started_at = Some(now);
        self.gather_racks();
        self.machine.handle(now, Input::Start);
        self.machine.handle(now, Input::Close);
        Ok(())
    }

    /// Does what the machine wants done; gives whether there may be more at once.
    fn drain(&mut self) -> Result<bool, TransferError> {
        let mut sends = 0;
        if let Some(channel) = &mut self.channel {
            let limited = channel.limit_queue(self.machine.host_queue_bytes());
            limited.map_err(|source| self.channel_error(source))?;
        }
        loop {
            if self.channel.as_ref().is_some_and(Channel::is_blocked) || sends >= SENDS_MAX {
                return Ok(sends >= SENDS_MAX);
            }
            let now = self.clock.now();
            let Some(output) = self.machine.poll(now) else { return Ok(false) };
            match output {
                Output::Send { round, sn, count, flags } => {
                    sends += 1;
                    self.send_run(round, sn, count, flags)?;
                }
                Output::SendPatch(sns) => {
                    sends += 1;
                    self.on_channel(Work::Patch(sns))?;
                }
                Output::Patch { peer, sns } => {
                    if let Some(conn) = self.conns.get_mut(&peer) {
                        conn.patches.insert(sns);
                    }
                }
                Output::AllowanceUsed { remaining_bytes } => self.ask_for_more(now, remaining_bytes),
                Output::Control { peer, control } => self.tell(peer, &control),
                Output::Chain(link) => self.link(link.peer, link.upstream),
                Output::Settled { peer, failure } => self.settled(peer, failure.map(|f| f.to_string())),
                Output::Finished => self.finished = true,
            }
        }
    }

    fn send_run(&mut self, round: u32, sn: u64, count: u32, flags: u8) -> Result<(), TransferError> {
        // Receivers need a group's hash when the group is whole: it goes ahead of the bytes.
        let groups = self.geometry.groups_of_fragments(sn..sn + u64::from(count));
        while (self.supply.hashes().len() as u64) < groups.end {
            self.hash_batch()?;
        }
        if !std::mem::replace(&mut self.multicast_used, true) && !self.used.contains(&self.fabric) {
            self.used.push(self.fabric.clone());
        }
        self.on_channel(Work::Run { round, sn, count, flags })
    }

    fn on_channel(&mut self, work: Work) -> Result<(), TransferError> {
        let channel = self.channel.as_mut().expect("the machine sends only where there is a channel");
        channel.send(work, &mut self.supply).map_err(|source| self.channel_error(source))
    }

    /// An error of the channel's socket, or of reading the object.
    fn channel_error(&self, source: std::io::Error) -> TransferError {
        if source.raw_os_error().is_some() {
            TransferError::Multicast { interface: self.spec.interface, source }
        } else {
            TransferError::Read(source)
        }
    }

    /// Hashes ahead when there is nothing else to do; gives whether there was something to hash.
    fn hash_when_idle(&mut self) -> Result<bool, TransferError> {
        let whole = self.supply.hashes().len() as u64 == self.geometry.groups();
        let sending = self.started_at.is_some() && self.channel.is_some() && !self.chain_used;
        // While the stream runs it hashes what it needs, just before it is sent and while it is warm.
        let waits_for_hashes = self.conns.values().any(|c| c.settled.is_none() && !c.joined);
        if whole || (sending && !waits_for_hashes) {
            return Ok(false);
        }
        self.hash_batch()?;
        Ok(true)
    }

    fn hash_batch(&mut self) -> Result<(), TransferError> {
        let groups = self.supply.hash_more().map_err(TransferError::Read)?;
        let hashes = self.supply.hashes()[groups.start as usize..groups.end as usize].to_vec();
        groups.clone().for_each(|group| self.served.mark(group));
        let frame = Control::Hashes { first: groups.start, hashes };
        let root = self.supply.root().map(Control::Root);
        let peers: Vec<PeerId> = self.conns.keys().copied().collect();
        for peer in peers {
            self.tell(peer, &frame);
            if let Some(root) = &root {
                self.tell(peer, root);
            }
        }
        Ok(())
    }

    /// Sends a frame to a receiver; one that cannot be reached any more has left.
    fn tell(&mut self, peer: PeerId, control: &Control<'_>) {
        let now = self.clock.now();
        let Some(conn) = self.conns.get_mut(&peer) else { return };
        conn.heard_of_us_at = now;
        let result = conn.stream.as_mut().map_or(Ok(()), |stream| stream.send(control));
        if let Err(error) = result {
            self.left(peer, &error);
        }
    }

    fn left(&mut self, peer: PeerId, error: &FrameError) {
        let Some(conn) = self.conns.get_mut(&peer) else { return };
        conn.stream = None;
        conn.patches.clear();
        let why = match error {
            FrameError::Closed => Why::WentAway,
            other => Why::Broken(other.to_string()),
        };
        if conn.joined {
            self.machine.handle(self.clock.now(), Input::Left { peer, why });
        } else if conn.settled.is_none() {
            self.conns.remove(&peer);
        }
    }

    fn settled(&mut self, peer: PeerId, failure: Option<String>) {
        let seconds = self.elapsed();
        let chained = self.machine.status(peer).is_some_and(|s| s.chained);
        let Some(conn) = self.conns.get_mut(&peer) else { return };
        if let Some(why) = &failure {
            tracing::warn!(receiver = %conn.name, %why, "a receiver failed");
        }
        conn.patches.clear();
        let failed = failure.as_deref().map(|why| format!("given up: {why}"));
        let fabric = if chained { CHAIN.to_string() } else { self.fabric.clone() };
        conn.settled = Some(Settled { seconds, fabric, failure });
        match failed {
            Some(why) => {
                if let Some(mut stream) = conn.stream.take() {
                    // It may be unable to hear it.
                    let _ = stream.send(&Control::Refuse(&why));
                    stream.finish();
                }
            }
            // Those of a chain stay: others may fetch from them.
            None if !chained => self.tell(peer, &Control::Finished),
            None => {}
        }
    }

    /// Tells a receiver where to fetch from.
    fn link(&mut self, peer: PeerId, upstream: Option<PeerId>) {
        self.chain_used = true;
        let serve = match upstream {
            None => Some(self.address),
            Some(id) => self.conns.get(&id).and_then(|c| c.serve),
        };
        if let Some(SocketAddr::V4(address)) = serve {
            let control = Control::Upstream { address: address.ip().octets(), port: address.port() };
            self.tell(peer, &control);
        }
    }

    /// Turns queued patches into frames where connections have room.
    fn patch_conns(&mut self) -> Result<(), TransferError> {
        let now = self.clock.now();
        let mut broken = Vec::new();
        for (id, conn) in &mut self.conns {
            let Some(stream) = &mut conn.stream else { continue };
            while stream.queued() < PATCH_QUEUE_LEN {
                let Some(first) = conn.patches.first() else { break };
                let run = conn.patches.run_at(first).expect("its first fragment");
                let run = run.start..run.end.min(run.start + PATCH_FRAGMENTS);
                let payload = self.supply.fragments(run.clone()).map_err(TransferError::Read)?;
                self.unicast_bytes += payload.len() as u64;
                conn.heard_of_us_at = now;
                let sent = stream.send(&Control::PtchData { sn: run.start, payload });
                conn.patches.remove(run);
                if let Err(error) = sent {
                    broken.push((*id, error));
                    break;
                }
            }
        }
        broken.iter().for_each(|(peer, error)| self.left(*peer, error));
        Ok(())
    }

    fn keep_alive(&mut self, now: Time) {
        let quiet = self.conns.iter().filter(|(_, c)| now.since(c.heard_of_us_at) >= ALIVE_INTERVAL);
        let quiet: Vec<PeerId> = quiet.map(|(id, _)| *id).collect();
        quiet.into_iter().for_each(|peer| self.tell(peer, &Control::Alive));
        self.strangers.retain(|(_, since)| now.since(*since) < Duration::from_secs(5));
    }

    /// Waits for something to happen, and handles it.
    fn wait(&mut self, busy: bool) -> Result<(), TransferError> {
        let now = self.clock.now();
        self.announce(now)?;
        let mut fds = vec![PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN)];
        if let Some(beacon) = &self.beacon {
            fds.push(PollFd::from_borrowed_fd(beacon.as_fd(), PollFlags::IN));
        }
        let blocked = self.channel.as_ref().filter(|c| c.is_blocked());
        if let Some(channel) = blocked {
            fds.push(PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::OUT));
        }
        let first = fds.len();
        let mut who = Vec::with_capacity(self.conns.len());
        for (id, conn) in &self.conns {
            if let Some(stream) = &conn.stream {
                let out = if stream.queued() > 0 { PollFlags::OUT } else { PollFlags::empty() };
                fds.push(PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN | out));
                who.push(*id);
            }
        }
        let strangers = fds.len();
        for (stream, _) in &self.strangers {
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN));
        }
        let deadline =
            if busy { Some(Time::ZERO) } else { self.machine.deadline().filter(|_| blocked.is_none()) };
        let longest = if self.calls.have_begun() && self.started_at.is_none() { 5 } else { 50 };
        wait(&mut fds, now, deadline, Duration::from_millis(longest))?;
        let ready: Vec<PeerId> = who
            .iter()
            .zip(&fds[first..])
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(id, _)| *id)
            .collect();
        let accept = !fds[0].revents().is_empty();
        let hello = fds[strangers..].iter().any(|fd| !fd.revents().is_empty());
        drop(fds);
        if let Some(channel) = self.channel.as_mut().filter(|c| c.is_blocked()) {
            let flushed = channel.flush(&mut self.supply);
            flushed.map_err(|source| self.channel_error(source))?;
        }
        ready.into_iter().for_each(|peer| self.read(peer));
        if accept {
            self.accept();
        }
        if accept || hello {
            self.meet_strangers();
        }
        Ok(())
    }

    /// Announces the offer now and then, and at once to those who ask.
    fn announce(&mut self, now: Time) -> Result<(), TransferError> {
        let Some(beacon) = &self.beacon else { return Ok(()) };
        let mut asked = false;
        let mut buffer = [0; 2_048];
        while let Some(datagram) = beacon.receive(&mut buffer) {
            asked |= Discovery::parse(datagram) == Ok(Discovery::Solicit);
        }
        let present =
            self.conns.values().filter(|c| c.settled.as_ref().is_none_or(|s| s.failure.is_none())).count();
        let places = self.expected.saturating_sub(present);
        let SocketAddr::V4(address) = self.address else { return Ok(()) };
        if places == 0 || (!asked && now < self.next_announce) {
            return Ok(());
        }
        self.next_announce = now + ANNOUNCE_INTERVAL;
        let name = self.spec.name.chars().take(200).collect();
        let announcement = Announcement {
            handle: self.handle,
            address: address.ip().octets(),
            port: address.port(),
            places: places as u32,
            name,
        };
        beacon
            .send(&Discovery::Announce(announcement).emit())
            .map_err(|source| TransferError::Multicast { interface: self.spec.interface, source })
    }

    fn accept(&mut self) {
        while self.strangers.len() < STRANGERS_MAX {
            let Ok((stream, _)) = self.listener.accept() else { break };
            if let Ok(stream) = FrameStream::new(stream) {
                self.strangers.push((stream, self.clock.now()));
            }
        }
    }

    /// Reads the first frame of new connections: HELLO of a receiver, or FETCH of a chain member.
    fn meet_strangers(&mut self) {
        for (mut stream, since) in std::mem::take(&mut self.strangers) {
            if stream.fill().is_err() {
                continue;
            }
            match stream.next_frame() {
                Ok(None) => self.strangers.push((stream, since)),
                Ok(Some(Control::Hello(hello))) => {
                    let (name, handle) = (hello.name.to_string(), hello.handle);
                    let (window_bytes, serve_port) = (hello.window_bytes, hello.serve_port);
                    self.welcome(stream, name, handle, window_bytes, serve_port);
                }
                Ok(Some(frame)) => match self.served.fetched(&frame) {
                    Some(have) => self.served.serve_stream(stream, Some(have)),
                    None => tracing::debug!("a connection that is not of this transfer"),
                },
                Err(error) => {
                    // A peer of another version is told so.
                    let _ = stream.send(&Control::Refuse(&error.to_string()));
                    stream.finish();
                }
            }
        }
    }

    fn welcome(
        &mut self,
        mut stream: FrameStream,
        name: String,
        handle: Handle,
        window_bytes: u64,
        serve_port: u16,
    ) {
        let live = |c: &Conn| c.settled.as_ref().is_none_or(|s| s.failure.is_none());
        let refusal = if handle != self.handle {
            Some("there is no such transfer here")
        } else if self.absent.iter().any(|(absent, why)| *absent == name && why == TAKEN_OUT) {
            Some(TAKEN_OUT)
        } else if self.conns.values().filter(|c| live(c)).count() >= self.expected {
            Some("all its receivers have joined")
        } else {
            None
        };
        if let Some(why) = refusal {
            let _ = stream.send(&Control::Refuse(why));
            stream.finish();
            return;
        }
        let channel = match &self.spec.path {
            Path::Multicast { group, .. } => (group.ip().octets(), group.port()),
            Path::Chain | Path::Trees(_) => ([0; 4], 0),
        };
        let outer_len = match &self.spec.path {
            Path::Multicast { outer, .. } => outer.first().map_or(0, Vec::len) as u8,
            Path::Chain | Path::Trees(_) => 0,
        };
        let welcome = Control::Welcome(Welcome {
            object: self.spec.object,
            directory: self.spec.kind == ObjectKind::Directory,
            name: &self.spec.name,
            object_len: self.geometry.object_len,
            fragment_len: self.geometry.fragment_len,
            group_len: self.geometry.group_len,
            channel,
            outer_len,
            stall_ns: self.spec.options.stall_timeout.0,
        });
        let hashes = self.supply.hashes();
        let mut sent = stream.send(&welcome);
        for (i, part) in hashes.chunks(HASHES_MAX).enumerate() {
            let first = (i * HASHES_MAX) as u64;
            sent = sent.and_then(|()| stream.send(&Control::Hashes { first, hashes: part.to_vec() }));
        }
        if let Some(root) = self.supply.root() {
            sent = sent.and_then(|()| stream.send(&Control::Root(root)));
        }
        if sent.is_err() {
            return;
        }
        let serve = stream.peer().map(|peer| SocketAddr::from((peer.ip(), serve_port)));
        let peer = PeerId(self.next_peer);
        self.next_peer += 1;
        let now = self.clock.now();
        // Several receivers of one host call themselves alike: the report tells them apart.
        let taken = |name: &str| self.conns.values().any(|c| live(c) && c.name == name);
        let mut unique = name.clone();
        for number in 2.. {
            if !taken(&unique) {
                break;
            }
            unique = format!("{name}#{number}");
        }
        let name = unique;
        // The machine is told when the receiver says HAVE.
        let conn = Conn {
            stream: Some(stream),
            name,
            serve,
            window_bytes,
            joined: false,
            patches: RangeSet::new(),
            heard_of_us_at: now,
            settled: None,
        };
        self.conns.insert(peer, conn);
    }

    fn read(&mut self, peer: PeerId) {
        let now = self.clock.now();
        let Some(mut stream) = self.conns.get_mut(&peer).and_then(|c| c.stream.take()) else { return };
        let flushed = stream.flush();
        let filled = stream.fill();
        let result = loop {
            match stream.next_frame() {
                Ok(Some(control)) => self.frame(now, peer, &control),
                Ok(None) => break flushed.and(filled.map(drop)),
                Err(error) => break Err(error),
            }
        };
        let Some(conn) = self.conns.get_mut(&peer) else { return };
        match result {
            // One that was given up meanwhile has been told; its connection ends here.
            Ok(()) if conn.settled.as_ref().is_none_or(|s| s.failure.is_none()) => conn.stream = Some(stream),
            Ok(()) => {}
            Err(error) => self.left(peer, &error),
        }
    }

    fn frame(&mut self, now: Time, peer: PeerId, control: &Control<'_>) {
        let Some(conn) = self.conns.get_mut(&peer) else { return };
        self.heard += u64::from(self.started_at.is_some());
        match control {
            Control::Have(ranges) if !conn.joined => {
                conn.joined = true;
                let have: RangeSet = ranges.iter().cloned().collect();
                let window_bytes = conn.window_bytes;
                self.machine.handle(now, Input::Ready { peer, window_bytes, have });
            }
            Control::Refuse(reason) if !conn.joined => {
                // It cannot take the object: nobody waits for it.
                let name = conn.name.clone();
                tracing::warn!(receiver = %name, %reason, "cannot receive");
                self.absent.push((name, (*reason).to_string()));
                self.conns.remove(&peer);
            }
            Control::Refuse(reason) => {
                let why = Why::Said((*reason).to_string());
                self.machine.handle(now, Input::Left { peer, why });
            }
            control if conn.joined => self.machine.handle(now, Input::Control { peer, control }),
            _ => {}
        }
    }

    fn elapsed(&self) -> f64 {
        self.started_at.map_or(0.0, |at| self.clock.now().since(at).as_secs_f64())
    }

    fn report(&self) -> Report {
        let mut receivers = Vec::new();
        for (id, conn) in &self.conns {
            let status = self.machine.status(*id);
            let status = status.as_ref();
            let settled = conn.settled.as_ref();
            let verified = settled.is_some_and(|s| s.failure.is_none());
            receivers.push(ReceiverReport {
                name: conn.name.clone(),
                verified,
                seconds: settled.map_or_else(|| self.elapsed(), |s| s.seconds),
                bytes: status.map_or(0, |s| s.verified_bytes),
                patched_bytes: status.map_or(0, |s| s.patched_bytes),
                fabric: settled.map_or_else(
                    || if status.is_some_and(|s| s.chained) { CHAIN } else { &self.fabric }.to_string(),
                    |settled| settled.fabric.clone(),
                ),
                error: settled.and_then(|s| s.failure.clone()),
            });
        }
        let absent = self.absent.iter().cloned();
        let missing = self.missing().into_iter().map(|name| (name, "never joined".to_string()));
        receivers.extend(absent.chain(missing).map(|(name, why)| ReceiverReport {
            name,
            verified: false,
            seconds: self.elapsed(),
            bytes: 0,
            patched_bytes: 0,
            fabric: "none".into(),
            error: Some(why),
        }));
        let channel = self.channel.as_ref();
        let patched = self.unicast_bytes + channel.map_or(0, |c| c.patched_bytes);
        let fabric = match (!self.used.is_empty() && !self.only_chain(), self.chain_used) {
            (true, true) => format!("{}+{CHAIN}", self.used.join("+")),
            (false, true) => CHAIN.to_string(),
            _ if self.channel.is_none() => CHAIN.to_string(),
            (true, false) => self.used.join("+"),
            (false, false) => self.fabric.clone(),
        };
        Report {
            object: self.spec.object,
            bytes: self.geometry.object_len,
            root: self.supply.root().map(|root| hex(&root)),
            seconds: receivers.iter().map(|r| r.seconds).fold(0.0, f64::max),
            sent_bytes: self.unicast_bytes + channel.map_or(0, |c| c.sent_bytes) + self.served.sent_bytes(),
            patched_bytes: patched,
            heard: self.heard,
            fabric,
            path_lost: self.path_lost.clone(),
            events: self.events.clone(),
            control: self.control.clone(),
            receivers,
            trees: Vec::new(),
            left: Vec::new(),
        }
    }

    /// Receivers that were expected and never came, once the transfer has begun without them.
    fn missing(&self) -> Vec<String> {
        if self.started_at.is_none() {
            return Vec::new();
        }
        let came = |name: &String| self.conns.values().any(|c| c.joined && c.name == *name);
        let absent = |name: &String| self.absent.iter().any(|(other, _)| other == name);
        match &self.spec.receivers {
            Receivers::Named(named) => {
                let names = named.iter().map(|(name, _)| name);
                names.filter(|name| !came(name) && !absent(name)).cloned().collect()
            }
            Receivers::Count(_) | Receivers::Told(_) => {
                let joined = self.conns.values().filter(|c| c.joined).count();
                (joined + 1..=self.expected).map(|i| format!("receiver {i}")).collect()
            }
        }
    }

    /// Whether multicast carried nothing to anybody.
    fn only_chain(&self) -> bool {
        self.conns.keys().all(|id| self.machine.status(*id).is_none_or(|s| s.chained && !s.streamed))
    }
}
