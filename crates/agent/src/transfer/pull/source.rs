//! The source's end of a pull transfer: it sets the group up and hears how receivers fare.

use super::super::clock::{Clock, wait};
use super::super::error::TransferError;
use super::super::supply::Supply;
use super::super::{Options, ReceiverReport, Report};
use crate::forwarder::{FRAME_HEADERS_LEN, NodeHandle, SourceEnd, TreeStatus, digest_of};
use polycast_net::frames::FrameStream;
use polycast_net::hash::{GROUP_LEN, hex};
use polycast_net::object::{ObjectKind, ObjectSource};
use polycast_protocol::pull::{Blocks, Digest, RateConfig, Route, SourceConfig};
use polycast_protocol::push::Geometry;
use polycast_types::{Duration, Handle, ObjectId, Time};
use polycast_wire::control::{Control, DIGESTS_MAX, HASHES_MAX, Hash, Welcome};
use polycast_wire::pull::HEADER_LEN;
use rustix::event::{PollFd, PollFlags};
use std::hash::{BuildHasher, Hasher};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

/// What may wait to be sent to one receiver before more hashes and digests are queued.
const SETUP_QUEUE_LEN: usize = 1 << 20;
/// Connections that have not said HELLO yet.
const STRANGERS_MAX: usize = 256;
/// A receiver hears something at least this often.
const ALIVE_INTERVAL: Duration = Duration::from_millis(500);
/// Interests that may wait at the source for tokens, a tree and port.
const WAITING_MAX: u32 = 1 << 14;

/// How packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullSettings {
    /// Bytes of payload in a packet.
    pub payload_len: u16,
    /// w: how many packets a receiver may ask for at a time in each tree.
    pub credits: u32,
    /// The rate of the source's links, in bits a second: no tree is ever sent faster.
    pub link_bps: u64,
}

/// One receiver of the group.
#[derive(Clone, Debug)]
pub struct PullReceiver {
    /// Its name.
    pub name: String,
    /// Its way to the source in each tree.
    pub routes: Vec<Option<Route>>,
}

/// Everything the source of a pull transfer needs.
pub struct PullSpec {
    /// The object's name.
    pub object: ObjectId,
    /// File or directory name, without a path, that receivers may use.
    pub name: String,
    /// File or directory.
    pub kind: ObjectKind,
    /// The bytes.
    pub source: Arc<dyn ObjectSource>,
    /// The receivers.
    pub receivers: Vec<PullReceiver>,
    /// Address of the local interface where receivers reach the control channel.
    pub interface: Ipv4Addr,
    /// The node that the source is behind.
    pub node: NodeHandle,
    /// How packets go.
    pub settings: PullSettings,
    /// Settings of every transfer (deadline, join and stall time-outs are used).
    pub options: Options,
    /// Set to end the transfer early; receivers are told.
    pub cancel: Arc<AtomicBool>,
}

/// A way that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteChange {
    /// The receiver.
    pub receiver: String,
    /// The tree.
    pub tree: u8,
    /// The new way; `None` if the tree does not reach it any more.
    pub route: Option<Route>,
}

/// What came of a pull transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct PullOutcome {
    /// The report, as of any transfer.
    pub report: Report,
    /// What the source counted in each tree.
    pub trees: Vec<TreeStatus>,
}

/// The source's end of a pull transfer, before it runs.
pub struct PreparedPull {
    spec: PullSpec,
    listener: TcpListener,
    address: SocketAddr,
    handle: Handle,
}

/// Opens the control channel, so that its address and the handle can be told to receivers.
///
/// # Errors
/// No port can be had.
pub fn prepare_pull(spec: PullSpec) -> Result<PreparedPull, TransferError> {
    let listen = SocketAddr::from((spec.interface, 0));
    let listening = |source| TransferError::Listen { address: listen, source };
    let listener = TcpListener::bind(listen).map_err(listening)?;
    listener.set_nonblocking(true).map_err(listening)?;
    let address = listener.local_addr()?;
    // A handle only has to differ from those of other transfers: the hasher's keys are random.
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    Ok(PreparedPull { spec, listener, address, handle: Handle(hasher.finish().max(1)) })
}

impl PreparedPull {
    /// Where receivers connect to.
    #[must_use]
    pub fn control_address(&self) -> SocketAddr {
        self.address
    }

    /// The transfer's handle.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Delivers; blocks until each receiver is done or has failed. Ways that change meanwhile come from `changes`.
    ///
    /// # Errors
    /// No transfer was possible at all; receivers that failed are in the report.
    pub fn run(
        self,
        changes: &mpsc::Receiver<RouteChange>,
        on_event: &mut dyn FnMut(&Report),
    ) -> Result<PullOutcome, TransferError> {
        let node = self.spec.node.clone();
        let handle = self.handle;
        let mut run = Run::new(self)?;
        let result = run.deliver(changes, on_event);
        let goodbye = match &result {
            Ok(()) => Control::Finished,
            Err(TransferError::Cancelled) => Control::Refuse("the source was cancelled"),
            Err(_) => Control::Refuse("the source failed"),
        };
        for conn in &mut run.conns {
            if let Some(mut stream) = conn.stream.take() {
                // Whoever does not hear this notices that the connection ends.
                let _ = stream.send(&goodbye);
                stream.finish();
            }
        }
        let trees = node.trees(handle);
        node.end(handle);
        result.map(|()| PullOutcome { report: run.report(&trees), trees })
    }
}

/// What is known of the object before anybody may ask for it.
struct Sums {
    hashes: Vec<Hash>,
    root: Hash,
    digests: Arc<[Digest]>,
}

/// Reads the object once.
fn sums_of(source: &Arc<dyn ObjectSource>, geometry: Geometry) -> Result<Sums, TransferError> {
    let mut supply = Supply::new(Arc::clone(source), geometry);
    let mut digests = Vec::with_capacity(geometry.fragments() as usize);
    loop {
        let groups = supply.hash_more().map_err(TransferError::Read)?;
        // The packets that end within what was just read.
        let end = geometry.group_bytes(groups.end.saturating_sub(1)).end;
        while let Some(bytes) = Some(geometry.fragment_bytes(digests.len() as u64))
            && (digests.len() as u64) < geometry.fragments()
            && bytes.end <= end
        {
            digests.push(digest_of(supply.bytes(bytes).map_err(TransferError::Read)?));
        }
        if let Some(root) = supply.root() {
            return Ok(Sums { hashes: supply.hashes().to_vec(), root, digests: digests.into() });
        }
    }
}

/// A receiver's control connection.
struct Conn {
    name: String,
    routes: Vec<Option<Route>>,
    stream: Option<FrameStream>,
    /// How many hashes and digests have been queued.
    hashes: usize,
    digests: usize,
    /// It has said HAVE.
    ready: bool,
    verified_bytes: u64,
    progressed_at: Time,
    heard_of_us_at: Time,
    settled: Option<(f64, Option<String>)>,
}

struct Run {
    spec: PullSpec,
    clock: Clock,
    handle: Handle,
    geometry: Geometry,
    block_bytes: u64,
    sums: Sums,
    listener: TcpListener,
    strangers: Vec<(FrameStream, Time)>,
    conns: Vec<Conn>,
    trees: u8,
    started_at: Option<Time>,
}

impl Run {
    fn new(prepared: PreparedPull) -> Result<Self, TransferError> {
        let PreparedPull { spec, listener, handle, .. } = prepared;
        let PullSettings { payload_len, credits, .. } = spec.settings;
        let object_len = spec.source.len();
        let geometry = Geometry { object_len, fragment_len: payload_len.into(), group_len: GROUP_LEN };
        let sums = sums_of(&spec.source, geometry)?;
        let trees = spec.receivers.iter().map(|receiver| receiver.routes.len()).max().unwrap_or(0) as u8;
        if trees == 0 {
            return Err(TransferError::Refused("there is no tree to any receiver".into()));
        }
        let conn = |receiver: &PullReceiver| Conn {
            name: receiver.name.clone(),
            routes: receiver.routes.clone(),
            stream: None,
            hashes: 0,
            digests: 0,
            ready: false,
            verified_bytes: 0,
            progressed_at: Time::ZERO,
            heard_of_us_at: Time::ZERO,
            settled: None,
        };
        Ok(Run {
            clock: Clock::start(),
            handle,
            geometry,
            block_bytes: Blocks::bytes_for(object_len, payload_len, trees, credits),
            sums,
            listener,
            strangers: Vec::new(),
            conns: spec.receivers.iter().map(conn).collect(),
            trees,
            started_at: None,
            spec,
        })
    }

    fn deliver(
        &mut self,
        changes: &mpsc::Receiver<RouteChange>,
        on_event: &mut dyn FnMut(&Report),
    ) -> Result<(), TransferError> {
        let mut next_event = self.clock.now();
        while self.conns.iter().any(|conn| conn.settled.is_none()) {
            if self.spec.cancel.load(Ordering::Relaxed) {
                return Err(TransferError::Cancelled);
            }
            self.welcome_strangers()?;
            (0..self.conns.len()).for_each(|at| self.listen_to(at));
            (0..self.conns.len()).for_each(|at| self.set_up(at));
            self.start_when_ready()?;
            while let Ok(change) = changes.try_recv() {
                self.change(&change);
            }
            self.give_up_the_silent();
            let now = self.clock.now();
            if now >= next_event {
                next_event = now + Duration::from_millis(100);
                let trees = self.spec.node.trees(self.handle);
                on_event(&self.report(&trees));
            }
            self.wait(now)?;
        }
        Ok(())
    }

    fn wait(&self, now: Time) -> Result<(), TransferError> {
        let streams = self.conns.iter().filter_map(|conn| conn.stream.as_ref());
        let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
        for stream in streams.chain(self.strangers.iter().map(|(stream, _)| stream)) {
            let writing = if stream.queued() > 0 { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN | writing));
        }
        Ok(wait(&mut fds, now, None, Duration::from_millis(5))?)
    }

    /// Takes new connections; those that say HELLO with the name of a receiver join.
    fn welcome_strangers(&mut self) -> Result<(), TransferError> {
        let now = self.clock.now();
        while let Ok((stream, _)) = self.listener.accept() {
            if self.strangers.len() < STRANGERS_MAX {
                self.strangers.push((FrameStream::new(stream)?, now));
            }
        }
        let patience = self.spec.options.join_timeout;
        for (mut stream, since) in std::mem::take(&mut self.strangers) {
            let open = stream.fill();
            let name = match stream.next_frame() {
                Ok(Some(Control::Hello(hello))) if hello.handle == self.handle => {
                    Some(hello.name.to_string())
                }
                Ok(None) if open.is_ok() && now.since(since) < patience => {
                    self.strangers.push((stream, since));
                    continue;
                }
                _ => None,
            };
            let conn = self.conns.iter_mut().find(|conn| Some(&conn.name) == name.as_ref());
            match conn.filter(|conn| conn.stream.is_none() && conn.settled.is_none()) {
                Some(conn) => {
                    conn.stream = Some(stream);
                    self.say_welcome(&name.unwrap_or_default());
                }
                None => {
                    // It was told, or is gone.
                    let _ = stream
                        .send(&Control::Refuse("this transfer has no such receiver, or has it already"));
                    stream.finish();
                }
            }
        }
        Ok(())
    }

    fn say_welcome(&mut self, name: &str) {
        let Some(at) = self.conns.iter().position(|conn| conn.name == name) else { return };
        let (object, kind, text) = (self.spec.object, self.spec.kind, self.spec.name.clone());
        let welcome = Welcome {
            object,
            directory: kind == ObjectKind::Directory,
            name: &text,
            object_len: self.geometry.object_len,
            fragment_len: self.geometry.fragment_len,
            group_len: self.geometry.group_len,
            channel: ([0; 4], 0),
            outer_len: 0,
            stall_ns: self.spec.options.stall_timeout.0,
        };
        self.tell(at, &Control::Welcome(welcome));
        let (count, block_bytes) = (self.trees, self.block_bytes);
        self.tell(at, &Control::Trees { count, block_bytes, credits: self.spec.settings.credits });
        self.tell(at, &Control::Root(self.sums.root));
    }

    /// Sends hashes and digests as fast as they are taken.
    fn set_up(&mut self, at: usize) {
        loop {
            let conn = &mut self.conns[at];
            if conn.stream.as_ref().is_none_or(|stream| stream.queued() > SETUP_QUEUE_LEN) {
                return;
            }
            let (hashes, digests) = (conn.hashes, conn.digests);
            if hashes < self.sums.hashes.len() {
                let end = (hashes + HASHES_MAX).min(self.sums.hashes.len());
                conn.hashes = end;
                let batch = self.sums.hashes[hashes..end].to_vec();
                self.tell(at, &Control::Hashes { first: hashes as u64, hashes: batch });
            } else if digests < self.sums.digests.len() {
                let end = (digests + DIGESTS_MAX).min(self.sums.digests.len());
                conn.digests = end;
                let batch = self.sums.digests[digests..end].to_vec();
                self.tell(at, &Control::Digests { first: digests as u64, digests: batch });
            } else {
                return;
            }
        }
    }

    /// When all are ready, or the time to join is over: puts the source behind its node and tells the ways to it.
    fn start_when_ready(&mut self) -> Result<(), TransferError> {
        if self.started_at.is_some() {
            return Ok(());
        }
        let now = self.clock.now();
        let late = now.since(Time::ZERO) >= self.spec.options.join_timeout;
        let is_missing = |conn: &&mut Conn| conn.settled.is_none() && !conn.ready;
        if !late && self.conns.iter_mut().filter(is_missing).count() > 0 {
            return Ok(());
        }
        let seconds = self.clock.seconds();
        for conn in self.conns.iter_mut().filter(is_missing) {
            conn.settled = Some((seconds, Some("it did not join in time".into())));
            conn.stream = None;
        }
        if self.conns.iter().all(|conn| !conn.ready) {
            return Err(TransferError::NobodyJoined(self.spec.options.join_timeout.0 / 1_000_000_000));
        }
        let PullSettings { payload_len, credits, link_bps } = self.spec.settings;
        let packet = FRAME_HEADERS_LEN + HEADER_LEN;
        let config = SourceConfig {
            transfer: self.handle,
            blocks: Blocks::new(self.geometry.object_len, payload_len, self.block_bytes)
                .ok_or_else(|| TransferError::Refused("the object has too many blocks".into()))?,
            trees: self.trees,
            credits,
            rate: RateConfig::in_proportion(link_bps, packet as u32 + u32::from(payload_len)),
            header_bytes: packet as u16,
            decide_ahead: credits,
            waiting_max: WAITING_MAX,
        };
        let (source, digests) = (Arc::clone(&self.spec.source), Arc::clone(&self.sums.digests));
        self.spec.node.serve(SourceEnd::new(config, payload_len, source, digests));
        self.clock = Clock::start();
        let now = self.clock.now();
        self.started_at = Some(now);
        for at in 0..self.conns.len() {
            self.conns[at].progressed_at = now;
            for tree in 0..self.trees {
                self.tell_route(at, tree);
            }
        }
        Ok(())
    }

    fn tell_route(&mut self, at: usize, tree: u8) {
        let route = self.conns[at].routes.get(usize::from(tree)).copied().flatten();
        let hops = route.as_ref().map_or(&[][..], Route::bytes);
        self.tell(at, &Control::Route { tree, hops });
    }

    /// A tree has been repaired, or has lost a receiver.
    fn change(&mut self, change: &RouteChange) {
        let Some(at) = self.conns.iter().position(|conn| conn.name == change.receiver) else { return };
        if change.tree >= self.trees {
            return;
        }
        let conn = &mut self.conns[at];
        conn.routes.resize(usize::from(self.trees), None);
        conn.routes[usize::from(change.tree)] = change.route;
        if self.started_at.is_some() {
            self.tell_route(at, change.tree);
        }
        let cut_off = self.conns[at].routes.iter().all(Option::is_none);
        if cut_off && self.conns[at].settled.is_none() {
            self.settle(at, Some("failed links cut it off from the source".into()));
        }
        let goes_on = |conn: &Conn| {
            conn.settled.is_none() && conn.routes.get(usize::from(change.tree)).is_some_and(Option::is_some)
        };
        if !self.conns.iter().any(goes_on) {
            self.spec.node.tree_gone(self.handle, change.tree);
        }
    }

    fn tell(&mut self, at: usize, control: &Control<'_>) {
        let now = self.clock.now();
        let conn = &mut self.conns[at];
        conn.heard_of_us_at = now;
        let result = conn.stream.as_mut().map_or(Ok(()), |stream| stream.send(control));
        if let Err(error) = result {
            self.settle(at, Some(format!("its connection failed: {error}")));
        }
    }

    fn listen_to(&mut self, at: usize) {
        let now = self.clock.now();
        if self.conns[at].stream.is_some()
            && now.since(self.conns[at].heard_of_us_at) >= ALIVE_INTERVAL
            && self.conns[at].settled.is_none()
        {
            self.tell(at, &Control::Alive);
        }
        let conn = &mut self.conns[at];
        let Some(stream) = &mut conn.stream else { return };
        let mut ended = None;
        if let Err(error) = stream.flush().and_then(|()| stream.fill().map(drop)) {
            ended = Some(format!("it went away in mid-transfer: {error}"));
        }
        loop {
            match stream.next_frame() {
                Ok(Some(Control::Have(_))) => conn.ready = true,
                Ok(Some(Control::Progress { verified_bytes, .. })) => {
                    if verified_bytes > conn.verified_bytes {
                        conn.progressed_at = now;
                        conn.verified_bytes = verified_bytes.min(self.geometry.object_len);
                    }
                }
                Ok(Some(Control::DataRcvd { .. })) => {
                    conn.verified_bytes = self.geometry.object_len;
                    return self.settle(at, None);
                }
                Ok(Some(Control::Refuse(reason))) => {
                    let reason = reason.to_string();
                    return self.settle(at, Some(reason));
                }
                Ok(Some(Control::Stalled { tree })) => {
                    tracing::warn!(receiver = %conn.name, tree, "nothing comes in a tree any more");
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    ended = Some(format!("it does not speak our protocol: {error}"));
                    break;
                }
            }
        }
        if let Some(reason) = ended {
            conn.stream = None;
            self.settle(at, Some(reason));
        }
    }

    fn settle(&mut self, at: usize, failure: Option<String>) {
        let seconds = self.clock.seconds();
        let conn = &mut self.conns[at];
        if conn.settled.is_some() {
            return;
        }
        if let (Some(why), Some(stream)) = (&failure, &mut conn.stream) {
            // It may be unable to hear this.
            let _ = stream.send(&Control::Refuse(why));
        }
        conn.settled = Some((seconds, failure));
    }

    /// Receivers to whom nothing comes, and all others at the deadline.
    fn give_up_the_silent(&mut self) {
        let Some(started_at) = self.started_at else { return };
        let now = self.clock.now();
        let Options { stall_timeout, deadline, .. } = self.spec.options;
        let over = deadline.is_some_and(|deadline| now.since(started_at) >= deadline);
        for at in 0..self.conns.len() {
            if self.conns[at].settled.is_some() {
                continue;
            }
            if over {
                self.settle(at, Some("the deadline has passed".into()));
            } else if now.since(self.conns[at].progressed_at) >= stall_timeout {
                let seconds = stall_timeout.0 / 1_000_000_000;
                self.settle(at, Some(format!("nothing has reached it for {seconds} s")));
            }
        }
    }

    fn report(&self, trees: &[TreeStatus]) -> Report {
        let now = if self.started_at.is_some() { self.clock.seconds() } else { 0.0 };
        let receiver = |conn: &Conn| {
            let (seconds, error) = conn.settled.clone().unwrap_or((now, None));
            ReceiverReport {
                name: conn.name.clone(),
                verified: conn.settled.is_some() && error.is_none(),
                seconds,
                bytes: conn.verified_bytes,
                patched_bytes: 0,
                fabric: "datacast".to_string(),
                error,
            }
        };
        let receivers: Vec<_> = self.conns.iter().map(receiver).collect();
        let sent_bytes = trees.iter().map(|tree| tree.sent_bytes).sum();
        let first_bytes: u64 = trees.iter().map(|tree| tree.first_bytes).sum();
        Report {
            object: self.spec.object,
            bytes: self.geometry.object_len,
            root: Some(hex(&self.sums.root)),
            seconds: receivers.iter().map(|receiver| receiver.seconds).fold(0.0, f64::max),
            sent_bytes,
            patched_bytes: sent_bytes - first_bytes,
            fabric: "datacast".into(),
            path_lost: None,
            events: Vec::new(),
            control: Vec::new(),
            receivers,
        }
    }
}
