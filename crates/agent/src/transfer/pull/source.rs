//! The source's end of a pull transfer: it sets the group up and hears how receivers fare.

use super::super::clock::{Clock, wait};
use super::super::entrance::{Calls, Entrance};
use super::super::error::TransferError;
use super::super::{
    Change, ControlStep, Options, Path, PathNews, ReceiverReport, Receivers, Report, RouteChange, SourceSpec,
    TreePath,
};
use super::sums::Sums;
use crate::forwarder::{FRAME_HEADERS_LEN, NodeHandle, SourceEnd, TreeStatus};
use polycast_net::frames::FrameStream;
use polycast_net::hash::{GROUP_LEN, hex};
use polycast_net::object::ObjectKind;
use polycast_protocol::pull::{Blocks, RateConfig, Route, SourceConfig};
use polycast_protocol::push::Geometry;
use polycast_types::{Duration, Handle, Time};
use polycast_wire::control::{Control, DIGESTS_MAX, Welcome};
use polycast_wire::pull::HEADER_LEN;
use rustix::event::{PollFd, PollFlags};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What may wait to be sent to one receiver before more hashes and digests are queued.
const SETUP_QUEUE_LEN: usize = 1 << 20;
/// Connections that have not said HELLO yet.
const STRANGERS_MAX: usize = 256;
/// A receiver hears something at least this often.
const ALIVE_INTERVAL: Duration = Duration::from_millis(500);
/// Receivers that are ready wait so long for the others, who then join while the transfer runs.
const LATE_AFTER: Duration = Duration::from_millis(500);
/// Receivers whose ways are told before they are named.
const EARLY_MAX: usize = 1_024;
/// Interests that may wait at the source for tokens, a tree and port.
const WAITING_MAX: u32 = 1 << 14;

/// The name of the fabric in reports.
const DATACAST: &str = "datacast";

/// The source's end of a pull transfer, before it runs.
pub struct PreparedPull {
    spec: SourceSpec,
    path: TreePath,
    node: NodeHandle,
    entrance: Entrance,
}

/// Sends one object to its receivers, by way of the node that the source is behind; blocks until each is done or has
/// failed.
///
/// # Errors
/// No transfer was possible at all; receivers that failed are in the report.
pub fn deliver_pull(
    spec: SourceSpec,
    node: &NodeHandle,
    on_event: &mut dyn FnMut(&Report),
) -> Result<Report, TransferError> {
    prepare_pull(spec, node)?.run(on_event)
}

/// Opens the control channel, so that its address and the handle can be told to receivers.
///
/// # Errors
/// The path is not one over trees, or no port can be had.
pub fn prepare_pull(spec: SourceSpec, node: &NodeHandle) -> Result<PreparedPull, TransferError> {
    let Path::Trees(path) = &spec.path else {
        return Err(TransferError::Refused("only paths over trees can be pulled over".into()));
    };
    if path.payload_len == 0 || path.credits == 0 || path.link_bps == 0 || path.trees == 0 {
        return Err(TransferError::Refused("a path over trees of which nothing can be pulled".into()));
    }
    let (path, entrance) = (path.clone(), Entrance::open(spec.interface)?);
    Ok(PreparedPull { spec, path, node: node.clone(), entrance })
}

impl PreparedPull {
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
        let node = self.node.clone();
        let handle = self.entrance.handle;
        let mut run = Run::new(self)?;
        let result = run.deliver(on_event);
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
        run.name_the_late();
        result.map(|()| run.report(trees))
    }
}

/// A receiver's control connection.
struct Conn {
    name: String,
    routes: Vec<Option<Route>>,
    stream: Option<FrameStream>,
    /// How many parts of the hashes and digests have been queued, and whether the root hash has.
    parts: usize,
    root_told: bool,
    called_at: Time,
    /// It has said HAVE.
    ready: bool,
    verified_bytes: u64,
    progressed_at: Time,
    heard_of_us_at: Time,
    settled: Option<(f64, Option<String>)>,
}

impl Conn {
    fn new(routes: Vec<Option<Route>>, name: String, now: Time) -> Self {
        Conn {
            name,
            routes,
            stream: None,
            parts: 0,
            root_told: false,
            called_at: now,
            ready: false,
            verified_bytes: 0,
            progressed_at: Time::ZERO,
            heard_of_us_at: Time::ZERO,
            settled: None,
        }
    }

    fn is_awaited(&self) -> bool {
        self.settled.is_none() && !self.ready
    }
}

struct Run {
    spec: SourceSpec,
    path: TreePath,
    node: NodeHandle,
    calls: Calls,
    clock: Clock,
    handle: Handle,
    geometry: Geometry,
    block_bytes: u64,
    sums: Arc<Sums>,
    listener: TcpListener,
    strangers: Vec<(FrameStream, Time)>,
    conns: Vec<Conn>,
    trees: u8,
    /// Trees that no receiver has a way in.
    gone: Vec<bool>,
    first_ready_at: Option<Time>,
    started_at: Option<Time>,
    /// Ways of receivers that are not known yet: their names come by another message.
    early: BTreeMap<String, Vec<Option<Route>>>,
    path_lost: Option<String>,
    /// Receivers that failed because of the path.
    left: Vec<String>,
    events: Vec<(f64, String)>,
    control: Vec<ControlStep>,
}

impl Run {
    fn new(prepared: PreparedPull) -> Result<Self, TransferError> {
        let PreparedPull { spec, path, node, entrance } = prepared;
        // The agents come while the object is read.
        let calls = Calls::start(entrance.invitation(spec.object, true), &spec.receivers);
        let Entrance { listener, handle, .. } = entrance;
        let TreePath { payload_len, credits, trees, .. } = path;
        let object_len = spec.source.len();
        let geometry = Geometry { object_len, fragment_len: payload_len.into(), group_len: GROUP_LEN };
        let sums = Sums::start(&spec.source, geometry)?;
        let in_use = (0..usize::from(trees))
            .filter(|tree| path.routes.values().any(|routes| routes.get(*tree).is_some_and(Option::is_some)));
        let in_use = in_use.count() as u8;
        if in_use == 0 {
            return Err(TransferError::Refused("there is no tree to any receiver".into()));
        }
        let names: Vec<String> = match &spec.receivers {
            Receivers::Named(named) => named.iter().map(|(name, _)| name.clone()).collect(),
            Receivers::Count(_) | Receivers::Told(_) => path.routes.keys().cloned().collect(),
        };
        let clock = Clock::start();
        let now = clock.now();
        let conn = |name: String| Conn::new(path.routes.get(&name).cloned().unwrap_or_default(), name, now);
        let conns = names.into_iter().map(conn).collect();
        let mut run = Run {
            clock,
            handle,
            geometry,
            block_bytes: Blocks::bytes_for(object_len, payload_len, in_use, credits),
            sums,
            listener,
            strangers: Vec::new(),
            conns,
            trees,
            gone: vec![false; trees.into()],
            first_ready_at: None,
            started_at: None,
            early: BTreeMap::new(),
            path_lost: None,
            left: Vec::new(),
            events: Vec::new(),
            control: Vec::new(),
            spec,
            path,
            node,
            calls,
        };
        (0..run.conns.len()).for_each(|at| run.settle_if_cut_off(at));
        Ok(run)
    }

    fn deliver(&mut self, on_event: &mut dyn FnMut(&Report)) -> Result<(), TransferError> {
        let mut next_event = self.clock.now();
        while self.conns.iter().any(|conn| conn.settled.is_none()) {
            if self.spec.cancel.load(Ordering::Relaxed) {
                return Err(TransferError::Cancelled);
            }
            self.hear_refusals();
            self.welcome_strangers()?;
            (0..self.conns.len()).for_each(|at| self.listen_to(at));
            (0..self.conns.len()).for_each(|at| self.set_up(at));
            self.sums.check()?;
            self.start_when_ready()?;
            self.steer();
            self.give_up_the_absent();
            self.give_up_the_silent();
            let now = self.clock.now();
            if now >= next_event {
                next_event = now + Duration::from_millis(100);
                let trees = self.node.trees(self.handle);
                on_event(&self.report(trees));
            }
            self.wait(now)?;
        }
        Ok(())
    }

    /// Agents that do not join.
    fn hear_refusals(&mut self) {
        while let Some((name, why)) = self.calls.refused() {
            if let Some(at) = self.conns.iter().position(|conn| conn.name == name) {
                self.settle(at, Some(why));
            }
        }
    }

    /// Takes in what has changed since the start.
    fn steer(&mut self) {
        let seconds = self.seconds();
        for PathNews { event, steps, .. } in self.spec.steering.take_news() {
            self.events.extend(event.map(|event| (seconds, event)));
            self.control.extend(steps);
        }
        for change in self.spec.steering.take() {
            match change {
                Change::Add(name, address) => self.add(name, address),
                Change::Remove(name) => {
                    if let Some(at) = self.conns.iter().position(|conn| conn.name == name) {
                        self.settle(at, Some("taken out of the transfer".into()));
                    }
                }
            }
        }
        let changes = self.spec.steering.take_routes();
        self.reroute(&changes);
        // What is not over trees is for another transfer, which the rest of the receivers get.
        let next = self.spec.steering.next_path();
        let elsewhere = next.map(|next| next.lost.unwrap_or_else(|| format!("{} took over", next.fabric)));
        if self.path_lost.is_none()
            && let Some(reason) = self.spec.steering.lost().or(elsewhere)
        {
            tracing::warn!(%reason, "the trees are lost");
            self.events.push((seconds, reason.clone()));
            let why = format!("the trees are lost: {reason}");
            self.path_lost = Some(reason);
            (0..self.conns.len()).for_each(|at| self.leave(at, why.clone()));
        }
    }

    /// A receiver that comes late. Its ways may have come before it, or follow.
    fn add(&mut self, name: String, address: SocketAddr) {
        if self.conns.iter().any(|conn| conn.name == name && !matches!(conn.settled, Some((_, Some(_))))) {
            return;
        }
        self.conns.retain(|conn| conn.name != name);
        let routes = self.early.remove(&name).unwrap_or_default();
        self.conns.push(Conn::new(routes, name.clone(), self.clock.now()));
        self.calls.call(vec![(name, address)]);
    }

    /// Those who were added when it was over already.
    fn name_the_late(&mut self) {
        let (now, seconds) = (self.clock.now(), self.seconds());
        for change in self.spec.steering.take() {
            if let Change::Add(name, _) = change
                && !self.conns.iter().any(|conn| conn.name == name)
            {
                let why = Some("the transfer had ended when it was added".to_string());
                self.conns.push(Conn { settled: Some((seconds, why)), ..Conn::new(Vec::new(), name, now) });
            }
        }
    }

    /// Since the start; nothing before it.
    fn seconds(&self) -> f64 {
        self.started_at.map_or(0.0, |at| self.clock.now().since(at).as_secs_f64())
    }

    /// A receiver fails because of the path.
    fn leave(&mut self, at: usize, why: String) {
        if self.conns[at].settled.is_none() {
            self.left.push(self.conns[at].name.clone());
            self.settle(at, Some(why));
        }
    }

    fn settle_if_cut_off(&mut self, at: usize) {
        if self.conns[at].routes.iter().all(Option::is_none) {
            self.leave(at, "failed links cut it off from the source".into());
        }
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
        self.tell(at, &Control::Trees { count, block_bytes, credits: self.path.credits });
    }

    /// Sends hashes and digests as they become known, and as fast as they are taken.
    fn set_up(&mut self, at: usize) {
        let sums = Arc::clone(&self.sums);
        loop {
            let conn = &mut self.conns[at];
            if conn.stream.as_ref().is_none_or(|stream| stream.queued() > SETUP_QUEUE_LEN) {
                return;
            }
            if let Some(part) = sums.part(conn.parts) {
                let (first, mut packet) = sums.first_of(conn.parts);
                conn.parts += 1;
                self.tell(at, &Control::Hashes { first, hashes: part.hashes.clone() });
                for digests in part.digests.chunks(DIGESTS_MAX) {
                    self.tell(at, &Control::Digests { first: packet, digests: digests.to_vec() });
                    packet += digests.len() as u64;
                }
                continue;
            }
            if let Some(root) = sums.root().filter(|_| !conn.root_told) {
                conn.root_told = true;
                self.tell(at, &Control::Root(root));
            }
            return;
        }
    }

    /// When all are ready, or some are and the others let them wait: puts the source behind its node and tells the ways
    /// to it.
    fn start_when_ready(&mut self) -> Result<(), TransferError> {
        if self.started_at.is_some() {
            return Ok(());
        }
        let now = self.clock.now();
        if !self.conns.iter().any(|conn| conn.ready && conn.settled.is_none()) {
            return Ok(());
        }
        let first = *self.first_ready_at.get_or_insert(now);
        if now.since(first) < LATE_AFTER && self.conns.iter().any(Conn::is_awaited) {
            return Ok(());
        }
        let TreePath { payload_len, credits, link_bps, .. } = self.path;
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
        let (source, sums) = (Arc::clone(&self.spec.source), Arc::clone(&self.sums));
        self.node.serve(SourceEnd::new(config, payload_len, source, sums));
        self.started_at = Some(now);
        (0..self.trees).filter(|tree| !self.goes_on(*tree)).collect::<Vec<_>>().into_iter().for_each(
            |tree| {
                self.gone[usize::from(tree)] = true;
                self.node.tree_gone(self.handle, tree);
            },
        );
        let ready: Vec<usize> = (0..self.conns.len()).filter(|at| self.conns[*at].ready).collect();
        for at in ready {
            self.conns[at].progressed_at = now;
            for tree in 0..self.trees {
                self.tell_route(at, tree, None);
            }
        }
        Ok(())
    }

    /// Somebody is ready after the start: it begins with the blocks that travel now, which caches hold.
    fn join_late(&mut self, at: usize) {
        let now = self.clock.now();
        self.conns[at].progressed_at = now;
        // Trees that led to nobody may be needed again.
        self.keep_trees();
        let blocks = self.node.blocks(self.handle);
        tracing::info!(receiver = %self.conns[at].name, ?blocks, "joins a transfer that runs");
        for tree in 0..self.trees {
            self.tell_route(at, tree, blocks.get(usize::from(tree)).copied().flatten());
        }
    }

    /// Those who have been called and are not ready in time.
    fn give_up_the_absent(&mut self) {
        let (now, patience) = (self.clock.now(), self.spec.options.join_timeout);
        for at in 0..self.conns.len() {
            let conn = &mut self.conns[at];
            if conn.is_awaited() && now.since(conn.called_at) >= patience {
                self.settle(at, Some("it did not join in time".into()));
                self.conns[at].stream = None;
            }
        }
    }

    fn tell_route(&mut self, at: usize, tree: u8, begins: Option<u32>) {
        let route = self.conns[at].routes.get(usize::from(tree)).copied().flatten();
        let hops = route.as_ref().map_or(&[][..], Route::bytes);
        self.tell(at, &Control::Route { tree, begins, hops });
    }

    /// Whether a tree still leads to somebody who needs it.
    fn goes_on(&self, tree: u8) -> bool {
        let has_way = |conn: &Conn| conn.routes.get(usize::from(tree)).is_some_and(Option::is_some);
        self.conns.iter().any(|conn| conn.settled.is_none() && has_way(conn))
    }

    /// Trees have been repaired or are back, or have lost receivers. Only those hear of it whose way has changed.
    fn reroute(&mut self, changes: &[RouteChange]) {
        let mut changed = Vec::new();
        for change in changes.iter().filter(|change| change.tree < self.trees) {
            let at = self.conns.iter().position(|conn| conn.name == change.receiver);
            let routes = match at {
                Some(at) => &mut self.conns[at].routes,
                None if self.early.len() < EARLY_MAX => {
                    self.early.entry(change.receiver.clone()).or_default()
                }
                None => continue,
            };
            routes.resize(usize::from(self.trees), None);
            let had = std::mem::replace(&mut routes[usize::from(change.tree)], change.route);
            changed.extend(at.map(|at| (at, change.tree, had.is_some())));
        }
        if changed.is_empty() {
            return;
        }
        changed.iter().for_each(|(at, ..)| self.settle_if_cut_off(*at));
        if self.started_at.is_none() {
            return;
        }
        let begins = self.keep_trees();
        let blocks = self.node.blocks(self.handle);
        for (at, tree, had) in
            changed.into_iter().filter(|(at, ..)| self.conns[*at].ready).collect::<Vec<_>>()
        {
            let number = usize::from(tree);
            // Who had no way in a tree begins with what it carries now.
            let now = blocks.get(number).copied().flatten().filter(|_| !had);
            self.tell_route(at, tree, begins[number].or(now));
        }
    }

    /// Gives up trees that lead to nobody, and takes up those that do again; gives the blocks that these begin with.
    fn keep_trees(&mut self) -> Vec<Option<u32>> {
        let mut begins = vec![None; usize::from(self.trees)];
        for tree in 0..self.trees {
            let at = usize::from(tree);
            let gone = !self.goes_on(tree);
            if gone && !self.gone[at] {
                self.node.tree_gone(self.handle, tree);
            } else if !gone && self.gone[at] {
                begins[at] = self.node.tree_back(self.handle, tree);
            }
            self.gone[at] = gone;
        }
        begins
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
        let (conn, started) = (&mut self.conns[at], self.started_at.is_some());
        let was_ready = conn.ready;
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
        let joins = started && conn.ready && !was_ready && conn.settled.is_none();
        if let Some(reason) = ended {
            conn.stream = None;
            self.settle(at, Some(reason));
        } else if joins {
            self.join_late(at);
        }
    }

    fn settle(&mut self, at: usize, failure: Option<String>) {
        let seconds = self.seconds();
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
            // Who is still called has its own time.
            let silent = self.conns[at].ready && now.since(self.conns[at].progressed_at) >= stall_timeout;
            if over {
                self.settle(at, Some("the deadline has passed".into()));
            } else if silent {
                let seconds = stall_timeout.0 / 1_000_000_000;
                self.leave(at, format!("nothing has reached it for {seconds} s"));
            }
        }
    }

    fn report(&self, mut trees: Vec<TreeStatus>) -> Report {
        let now = self.seconds();
        let receiver = |conn: &Conn| {
            let (seconds, error) = conn.settled.clone().unwrap_or((now, None));
            ReceiverReport {
                name: conn.name.clone(),
                verified: conn.settled.is_some() && error.is_none(),
                seconds,
                bytes: conn.verified_bytes,
                patched_bytes: 0,
                fabric: DATACAST.to_string(),
                error,
            }
        };
        let receivers: Vec<_> = self.conns.iter().map(receiver).collect();
        let sent_bytes = trees.iter().map(|tree| tree.sent_bytes).sum();
        let first_bytes: u64 = trees.iter().map(|tree| tree.first_bytes).sum();
        // Those that were never asked for anything are no trees of this transfer.
        trees.retain(|tree| tree.interests > 0);
        Report {
            object: self.spec.object,
            bytes: self.geometry.object_len,
            root: self.sums.root().map(|root| hex(&root)),
            seconds: receivers.iter().map(|receiver| receiver.seconds).fold(0.0, f64::max),
            sent_bytes,
            patched_bytes: sent_bytes - first_bytes,
            heard: 0,
            fabric: DATACAST.into(),
            path_lost: self.path_lost.clone(),
            events: self.events.clone(),
            control: self.control.clone(),
            receivers,
            trees,
            left: self.left.clone(),
        }
    }
}
