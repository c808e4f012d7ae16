//! The thread of a node: packets in, packets out, and orders from its process.

use super::digest::hash_of;
use super::ends::{ReceiverEnd, SourceEnd};
use super::port::Port;
use super::{NodeConfig, NodeStatus, TreeStatus, tree_status};
use crate::transfer::TransferError;
use crate::transfer::clock::{Clock, wait};
use polycast_net::bpf::datacast::KernelNode;
use polycast_net::bpf::in_namespace;
use polycast_net::link_watch::Carriers;
use polycast_net::words::WordsKey;
use polycast_protocol::pull::{
    Data, Digest, Face, Forwarder, ForwarderConfig, ForwarderInput, ForwarderOutput, Interest, Packet,
    Payload, Route, SourceInput,
};
use polycast_types::{Duration, Handle, Time};
use polycast_wire::pull as wire;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

/// Receives from one port before the others have their turn.
const RECEIVES_MAX: usize = 8;
/// Bytes that one receive may bring.
const RECEIVE_LEN: usize = 64 << 10;
/// The node looks around at least this often.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// Interests that were not answered or repeated for so long, or four of their lifetimes, are forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(3);
/// Transfers behind the local face.
const TRANSFERS_MAX: usize = 1_024;

/// A link has changed, and stayed so as long as the settings say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkEvent {
    /// The node that says so.
    pub node: Arc<str>,
    /// Its port.
    pub port: u8,
    /// Set if the neighbour is there and receives the node's greetings.
    pub up: bool,
}

/// Command to a node.
enum Command {
    Serve(Box<SourceEnd>),
    Fetch(Box<ReceiverEnd>),
    Learn { transfer: Handle, roots: Vec<Digest> },
    Reroute { transfer: Handle, tree: u8, route: Option<Route>, begins: Option<u32> },
    TreeGone { transfer: Handle, tree: u8 },
    TreeBack { transfer: Handle, tree: u8, reply: mpsc::Sender<Option<u32>> },
    Blocks(Handle, mpsc::Sender<Vec<Option<u32>>>),
    End { transfer: Handle, keep: bool, done: mpsc::Sender<()> },
    Status(mpsc::Sender<NodeStatus>),
    Trees(Handle, mpsc::Sender<Vec<TreeStatus>>),
    Watch(mpsc::Sender<LinkEvent>),
    Stop,
}

/// Speaks with a running node; when the last handle is gone, the node ends.
#[derive(Clone)]
pub struct NodeHandle {
    name: Arc<str>,
    rate_bps: Option<u64>,
    commands: Arc<Commands>,
}

struct Commands {
    sender: mpsc::Sender<Command>,
    waker: Arc<OwnedFd>,
    /// Transfers that have a place at the node.
    places: Mutex<BTreeSet<Handle>>,
}

/// The one place of a transfer behind a node's local face, as long as this lives.
///
/// A source chooses its handle, and each packet shows it: one that took the handle of another one's transfer
/// would put its own in that one's place at every node where both have a receiver.
pub(crate) struct Place {
    commands: Arc<Commands>,
    transfer: Handle,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.commands.places().remove(&self.transfer);
    }
}

impl Commands {
    fn places(&self) -> MutexGuard<'_, BTreeSet<Handle>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, command: Command) {
        // A node that has ended needs no orders.
        let _ = self.sender.send(command);
        let _ = rustix::io::write(&*self.waker, &1u64.to_ne_bytes());
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        self.send(Command::Stop);
    }
}

impl NodeHandle {
    /// The node's name.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The rate of its slowest port in bits a second, if the settings tell.
    #[must_use]
    pub fn rate_bps(&self) -> Option<u64> {
        self.rate_bps
    }

    /// The place of a transfer, whose source or receiver is to be put behind the local face.
    ///
    /// # Errors
    /// Another one with this handle has it.
    pub(crate) fn place(&self, transfer: Handle) -> Result<Place, TransferError> {
        if !self.commands.places().insert(transfer) {
            return Err(TransferError::Unusable(
                "another transfer at this agent's node has the same handle: its source has to send it again, which \
                 draws another one"
                    .into(),
            ));
        }
        Ok(Place { commands: Arc::clone(&self.commands), transfer })
    }

    /// Puts a source behind the local face.
    pub fn serve(&self, source: SourceEnd) {
        self.commands.send(Command::Serve(Box::new(source)));
    }

    /// Puts a receiver behind the local face; it begins at once.
    pub fn fetch(&self, receiver: ReceiverEnd) {
        self.commands.send(Command::Fetch(Box::new(receiver)));
    }

    /// A receiver may ask for more: the roots of the lists of further sections have become known.
    pub(crate) fn learn(&self, transfer: Handle, roots: Vec<Digest>) {
        self.commands.send(Command::Learn { transfer, roots });
    }

    /// The block that each tree of a source carries now; none for a tree that has no more.
    #[must_use]
    pub fn blocks(&self, transfer: Handle) -> Vec<Option<u32>> {
        let (reply, answer) = mpsc::channel();
        self.commands.send(Command::Blocks(transfer, reply));
        answer.recv().unwrap_or_default()
    }

    /// A receiver's way to the source has changed in a tree, or there is none any more. A tree that is back
    /// goes on with the block that it `begins` with.
    pub fn reroute(&self, transfer: Handle, tree: u8, route: Option<Route>, begins: Option<u32>) {
        self.commands.send(Command::Reroute { transfer, tree, route, begins });
    }

    /// A tree of a source is gone for good.
    pub fn tree_gone(&self, transfer: Handle, tree: u8) {
        self.commands.send(Command::TreeGone { transfer, tree });
    }

    /// A tree of a source that was gone is back; gives the block that it carries now, if any is left for it.
    #[must_use]
    pub fn tree_back(&self, transfer: Handle, tree: u8) -> Option<u32> {
        let (reply, answer) = mpsc::channel();
        self.commands.send(Command::TreeBack { transfer, tree, reply });
        answer.recv().ok().flatten()
    }

    /// Takes a source or receiver away.
    pub fn end(&self, transfer: Handle) {
        self.end_keeping(transfer, false);
    }

    /// The same; with `keep`, what a receiver has verified stays for another try. It has let go of its part
    /// file afterwards: the next try may come at once.
    pub fn end_keeping(&self, transfer: Handle, keep: bool) {
        let (done, ended) = mpsc::channel();
        self.commands.send(Command::End { transfer, keep, done });
        // A node that has ended holds nothing.
        let _ = ended.recv();
    }

    /// Returns the node's counters; `None` if it has ended.
    #[must_use]
    pub fn status(&self) -> Option<NodeStatus> {
        let (reply, answer) = mpsc::channel();
        self.commands.send(Command::Status(reply));
        answer.recv().ok()
    }

    /// Returns the counters of the source of a transfer, one entry for each tree; none if there is no such
    /// source.
    #[must_use]
    pub fn trees(&self, transfer: Handle) -> Vec<TreeStatus> {
        let (reply, answer) = mpsc::channel();
        self.commands.send(Command::Trees(transfer, reply));
        answer.recv().unwrap_or_default()
    }

    /// Hears of every link that changes from now on, and of those that are down.
    pub fn watch(&self, watcher: mpsc::Sender<LinkEvent>) {
        self.commands.send(Command::Watch(watcher));
    }
}

/// Starts a node in a thread of its own, whose greetings are sealed with this.
///
/// # Errors
/// An address is not there or taken, or the namespace is not there.
pub fn start(config: &NodeConfig, key: &WordsKey) -> io::Result<NodeHandle> {
    let clock = Clock::start();
    let millis = |ms: u32| Duration::from_millis(ms.into());
    let class = config.class().map_err(io::Error::other)?;
    let open = |port| {
        let (greeting, damping) = (millis(config.greeting_ms), millis(config.damping_ms));
        Port::open(port, config.namespace.as_deref(), greeting, damping, clock.now(), key)?.with_class(class)
    };
    let ports: Vec<Port> = config.ports.iter().map(open).collect::<io::Result<_>>()?;
    let rate_bps = ports.iter().filter_map(|port| port.rate_bps).min();
    let waker = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
    let (sender, commands) = mpsc::channel();
    let name: Arc<str> = config.name.as_str().into();
    let forwarder = Forwarder::new(ForwarderConfig {
        store_packets: config.store_packets,
        replacement: config.replacement.into(),
        pending_interests: config.pending_interests,
        interest_lifetime: millis(config.interest_ms),
        // The hasher's keys are random.
        secret: std::collections::hash_map::RandomState::new().build_hasher().finish(),
        ..ForwarderConfig::for_ports(ports.len() as u8)
    });
    let node = Node {
        name: Arc::clone(&name),
        clock,
        ports,
        forwarder,
        slots: Vec::new(),
        sources: BTreeMap::new(),
        turn: Handle::default(),
        receivers: BTreeMap::new(),
        asks: VecDeque::new(),
        watchers: Vec::new(),
        commands,
        waker: Arc::clone(&waker),
        kept_bytes: 0,
        hops_max: config.hops_max as usize,
        malformed: 0,
        too_far: 0,
        poisoned: 0,
        poisoners: 0,
        unknown: 0,
        forget_after: FORGET_AFTER.max(millis(config.interest_ms.saturating_mul(4))),
        forget_at: Time::ZERO,
        stopped: false,
        kernel: fast_path(config),
        carriers: carriers(config),
    };
    let thread = std::thread::Builder::new().name(format!("node {name}"));
    thread.spawn(move || node.run())?;
    let commands = Commands { sender, waker, places: Mutex::default() };
    Ok(NodeHandle { name, rate_bps, commands: Arc::new(commands) })
}

struct Node {
    name: Arc<str>,
    clock: Clock,
    ports: Vec<Port>,
    forwarder: Forwarder,
    /// The payloads of the content store.
    slots: Vec<Vec<u8>>,
    /// Bytes of memory that they take.
    kept_bytes: u64,
    /// The longest route that is taken.
    hops_max: usize,
    sources: BTreeMap<Handle, SourceEnd>,
    /// The one that was first at its turn.
    turn: Handle,
    receivers: BTreeMap<Handle, ReceiverEnd>,
    /// Interests of receivers here that the forwarder has not seen.
    asks: VecDeque<Interest>,
    watchers: Vec<mpsc::Sender<LinkEvent>>,
    commands: mpsc::Receiver<Command>,
    waker: Arc<OwnedFd>,
    malformed: u64,
    too_far: u64,
    poisoned: u64,
    /// A bit for each port by which such packets have come.
    poisoners: u128,
    unknown: u64,
    forget_after: Duration,
    forget_at: Time,
    stopped: bool,
    /// Passes on in the kernel what is not kept here; `None` where that cannot be.
    kernel: Option<KernelNode>,
    /// Carriers of the ports' interfaces, as the kernel reports them; without it a broken link shows by
    /// missing greetings alone.
    carriers: Option<Carriers>,
}

fn carriers(config: &NodeConfig) -> Option<Carriers> {
    let open = || Carriers::open(config.ports.iter().map(|port| port.local.ip().to_owned().into()));
    let opened = match &config.namespace {
        Some(path) => in_namespace(path, open).and_then(|opened| opened),
        None => open(),
    };
    opened.inspect_err(|error| tracing::info!(node = %config.name, %error, "no word of carriers")).ok()
}

/// The fast path of a node. Without it everything comes to the sockets: slower, not wrong.
fn fast_path(config: &NodeConfig) -> Option<KernelNode> {
    let links: Vec<_> = config.ports.iter().map(|port| (port.local, port.peer)).collect();
    if !config.kernel || !rustix::process::geteuid().is_root() {
        return None;
    }
    let attached = match &config.namespace {
        Some(path) => in_namespace(path, || KernelNode::attach(&links, config.hops_max)),
        None => Ok(KernelNode::attach(&links, config.hops_max)),
    };
    match attached {
        Ok(Ok(node)) => node,
        Ok(Err(error)) => {
            tracing::info!(node = %config.name, %error, "no fast path");
            None
        }
        Err(error) => {
            tracing::info!(node = %config.name, %error, "no fast path");
            None
        }
    }
}

impl Node {
    fn run(mut self) {
        if let Err(error) = self.serve() {
            tracing::error!(node = %self.name, %error, "a node has ended");
        }
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; RECEIVE_LEN];
        loop {
            while let Ok(command) = self.commands.try_recv() {
                self.command(command);
            }
            if self.stopped {
                return Ok(());
            }
            self.receive(&mut buffer)?;
            self.look_at_carriers()?;
            self.drive()?;
            self.tick();
            for port in &mut self.ports {
                port.flush()?;
            }
            self.wait()?;
        }
    }

    fn command(&mut self, command: Command) {
        let now = self.clock.now();
        match command {
            Command::Serve(source) => {
                if self.sources.len() < TRANSFERS_MAX {
                    self.sources.insert(source.transfer(), *source);
                }
            }
            Command::Fetch(mut receiver) => {
                if self.receivers.len() < TRANSFERS_MAX {
                    receiver.begin(now);
                    self.receivers.insert(receiver.transfer(), *receiver);
                }
            }
            Command::Learn { transfer, roots } => {
                if let Some(receiver) = self.receivers.get_mut(&transfer) {
                    receiver.learn(now, &roots);
                }
            }
            Command::Blocks(transfer, reply) => {
                let machine = self.sources.get(&transfer).map(SourceEnd::machine);
                let blocks =
                    machine.map(|source| (0..source.trees()).map(|tree| source.block(tree)).collect());
                // The caller may have gone.
                let _ = reply.send(blocks.unwrap_or_default());
            }
            Command::Reroute { transfer, tree, route, begins } => {
                if let Some(receiver) = self.receivers.get_mut(&transfer) {
                    receiver.reroute(now, tree, route, begins);
                }
            }
            Command::TreeBack { transfer, tree, reply } => {
                let block = self.sources.get_mut(&transfer).and_then(|source| {
                    source.handle(now, SourceInput::TreeBack { tree });
                    source.machine().block(tree)
                });
                // The caller may have gone.
                let _ = reply.send(block);
            }
            Command::TreeGone { transfer, tree } => {
                if let Some(source) = self.sources.get_mut(&transfer) {
                    source.handle(now, SourceInput::TreeGone { tree });
                }
            }
            Command::End { transfer, keep, done } => {
                self.sources.remove(&transfer);
                if let Some(mut receiver) = self.receivers.remove(&transfer)
                    && keep
                {
                    receiver.keep_for_later();
                }
                // The caller may have gone.
                let _ = done.send(());
            }
            // The caller may have gone.
            Command::Status(reply) => {
                let status = self.status();
                drop(reply.send(status));
            }
            Command::Trees(transfer, reply) => drop(reply.send(self.trees(transfer))),
            Command::Watch(watcher) => {
                let down = (0u8..).zip(&self.ports).filter(|(_, port)| port.is_down());
                down.for_each(|(port, _)| drop(watcher.send(self.event(port, false))));
                self.watchers.push(watcher);
            }
            Command::Stop => self.stopped = true,
        }
    }

    fn event(&self, port: u8, up: bool) -> LinkEvent {
        LinkEvent { node: Arc::clone(&self.name), port, up }
    }

    /// Takes what has come by the ports.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        for number in 0..self.ports.len() {
            for _ in 0..RECEIVES_MAX {
                let port = &mut self.ports[number];
                let Some(arrival) = port.socket.receive(buffer)? else { break };
                port.heard(self.clock.now(), arrival.len.div_ceil(arrival.segment_len) as u64);
                for packet in buffer[..arrival.len].chunks(arrival.segment_len) {
                    self.packet(number as u8, packet);
                }
                self.ports.iter_mut().try_for_each(Port::flush)?;
            }
        }
        Ok(())
    }

    fn packet(&mut self, port: u8, bytes: &[u8]) {
        let (header, payload) = match wire::Packet::parse(bytes) {
            Ok(wire::Packet::Transfer(header, payload)) => (header, payload),
            Ok(wire::Packet::Greeting { .. }) | Err(_) if wire::is_greeting(bytes) => {
                return self.ports[usize::from(port)].greeted(bytes);
            }
            Ok(wire::Packet::Greeting { .. }) | Err(_) => {
                self.malformed += 1;
                return;
            }
        };
        let hash = || hash_of(header.handle, header.sn, payload);
        match wire::admit(&header, self.hops_max, hash) {
            Ok(()) => {}
            Err(wire::Doubt::TooFar) => {
                self.too_far += 1;
                return;
            }
            Err(wire::Doubt::Poisoned) => {
                self.poisoned += 1;
                self.name_poisoner(port);
                return;
            }
        }
        let packet = Packet::from_wire(&header, payload.len() as u16);
        self.forward(Face::Port(port), packet, payload);
        self.ask();
    }

    /// Says once of a neighbour that what came from it is not what was asked for.
    fn name_poisoner(&mut self, port: u8) {
        let bit = 1u128 << (port & 127);
        if self.poisoners & bit == 0 {
            self.poisoners |= bit;
            let peer = self.ports[usize::from(port)].peer;
            tracing::warn!(
                node = %self.name, port, %peer,
                "a neighbour sends other bytes than a packet's name says: they are dropped and counted, now and later"
            );
        }
    }

    /// Gives receivers' interests to the forwarder; packets in its store lead to further ones.
    fn ask(&mut self) {
        while let Some(interest) = self.asks.pop_front() {
            self.forward(Face::Local, Packet::Interest(interest), &[]);
        }
    }

    fn forward(&mut self, from: Face, packet: Packet, arrived: &[u8]) {
        let now = self.clock.now();
        self.forwarder.handle(now, ForwarderInput::Packet { from, packet });
        while let Some(output) = self.forwarder.poll(now) {
            match output {
                ForwarderOutput::Send { port, packet, payload } => {
                    let payload = payload_of(&self.slots, payload, arrived);
                    self.ports[usize::from(port)].push(&packet.to_wire().emit(), payload);
                }
                ForwarderOutput::Keep { slot } => self.keep(slot as usize, arrived),
                ForwarderOutput::Deliver { data, payload } => {
                    let payload = payload_of(&self.slots, payload, arrived);
                    deliver(&mut self.receivers, now, data, payload, &mut self.asks);
                }
                ForwarderOutput::Serve { port, interest } => self.interest(now, port, interest),
            }
        }
    }

    fn keep(&mut self, slot: usize, payload: &[u8]) {
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, Vec::new);
        }
        let room = &mut self.slots[slot];
        self.kept_bytes -= room.capacity() as u64;
        room.clear();
        // Not more than it needs: a store of short packets stays small.
        room.reserve_exact(payload.len());
        room.extend_from_slice(payload);
        self.kept_bytes += room.capacity() as u64;
    }

    fn interest(&mut self, now: Time, port: u8, interest: Interest) {
        match self.sources.get_mut(&interest.name.transfer) {
            Some(source) if source.knows(&interest) => {
                source.handle(now, SourceInput::Interest { port, interest });
            }
            _ => self.unknown += 1,
        }
    }

    /// Lets sources and receivers do what is to be done now.
    fn drive(&mut self) -> io::Result<()> {
        let now = self.clock.now();
        for receiver in self.receivers.values_mut() {
            receiver.poll(now, &[], &mut self.asks);
        }
        self.ask();
        self.receivers.retain(|_, receiver| !receiver.is_over());
        let mut failed = None;
        for transfer in turns(&self.sources, &mut self.turn) {
            let Some(source) = self.sources.get_mut(&transfer) else { continue };
            for (number, port) in (0u8..).zip(&self.ports) {
                source.handle(now, SourceInput::Port { port: number, open: port.has_room() });
            }
            loop {
                match source.poll(now) {
                    Ok(Some((number, data, payload))) => {
                        let port = &mut self.ports[usize::from(number)];
                        port.push(&Packet::Data(data).to_wire().emit(), payload);
                        if !port.has_room() {
                            port.flush()?;
                        }
                        if !port.has_room() {
                            source.handle(now, SourceInput::Port { port: number, open: false });
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        tracing::error!(node = %self.name, %error, "the object cannot be read any more");
                        failed = Some(transfer);
                        break;
                    }
                }
            }
        }
        if let Some(transfer) = failed {
            self.sources.remove(&transfer);
        }
        Ok(())
    }

    fn look_at_carriers(&mut self) -> io::Result<()> {
        for (port, has_carrier) in self.carriers.as_mut().map_or(Ok(Vec::new()), Carriers::changes)? {
            self.ports[port].set_carrier(has_carrier);
        }
        Ok(())
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        if now >= self.forget_at {
            self.forget_at = now + self.forget_after;
            self.forwarder.forget_pending_before(Time(now.0.saturating_sub(self.forget_after.0)));
        }
        for number in 0..self.ports.len() {
            if let Some(up) = self.ports[number].tick(now) {
                tracing::info!(node = %self.name, port = number, up, "a link has changed");
                let event = self.event(number as u8, up);
                self.watchers.retain(|watcher| watcher.send(event.clone()).is_ok());
            }
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        let now = self.clock.now();
        let ends = self.receivers.values().filter_map(ReceiverEnd::deadline);
        let sources = self.sources.values().filter_map(|source| source.machine().deadline());
        let deadline = ends.chain(sources).chain(self.ports.iter().map(Port::deadline)).min();
        let mut fds = Vec::with_capacity(self.ports.len() + 1);
        for port in &self.ports {
            let writing = if port.is_blocked() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(&port.socket, PollFlags::IN | writing));
        }
        fds.extend(self.carriers.as_ref().map(|carriers| PollFd::new(carriers, PollFlags::IN)));
        fds.push(PollFd::new(&self.waker, PollFlags::IN));
        wait(&mut fds, now, deadline, LOOK_AROUND)?;
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        for (port, ready) in self.ports.iter_mut().zip(&ready) {
            if ready.contains(PollFlags::OUT) {
                port.unblock();
            }
        }
        if ready.last().is_some_and(|ready| ready.contains(PollFlags::IN)) {
            // It counts; what matters is that it is below what was written.
            let _ = rustix::io::read(&*self.waker, &mut [0; 8]);
        }
        Ok(())
    }

    fn status(&mut self) -> NodeStatus {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let mut status = NodeStatus {
            name: self.name.to_string(),
            cpu_s: used.tv_sec as f64 + used.tv_nsec as f64 / 1e9,
            kept: self.forwarder.kept(),
            kept_bytes: self.kept_bytes,
            pending: self.forwarder.pending(),
            transfers: (self.sources.len() + self.receivers.len()) as u32,
            malformed: self.malformed + self.ports.iter().map(Port::malformed).sum::<u64>(),
            too_far: self.too_far,
            poisoned: self.poisoned,
            unknown: self.unknown,
            ports: self.ports.iter().map(Port::status).collect(),
            passed_in_kernel: self.kernel.as_mut().and_then(|kernel| kernel.passed().ok()).unwrap_or(0),
            ..NodeStatus::default()
        };
        status.add(self.forwarder.counters());
        status
    }

    fn trees(&self, transfer: Handle) -> Vec<TreeStatus> {
        let Some(source) = self.sources.get(&transfer) else { return Vec::new() };
        let machine = source.machine();
        (0..machine.trees())
            .map(|tree| tree_status(tree, machine.counters(tree), machine.rate_bps(tree)))
            .collect()
    }
}

/// The order in which sources send now. Each is the first in its turn: one that always has more to send would
/// leave no room at a port to those that come behind it.
fn turns<T>(sources: &BTreeMap<Handle, T>, last: &mut Handle) -> Vec<Handle> {
    let behind = sources.range((Bound::Excluded(*last), Bound::Unbounded));
    let order: Vec<Handle> = behind.chain(sources.range(..=*last)).map(|(transfer, _)| *transfer).collect();
    if let Some(first) = order.first() {
        *last = *first;
    }
    order
}

fn payload_of<'a>(slots: &'a [Vec<u8>], payload: Payload, arrived: &'a [u8]) -> &'a [u8] {
    match payload {
        Payload::None => &[],
        Payload::Arrived => arrived,
        Payload::Slot(slot) => &slots[slot as usize],
    }
}

fn deliver(
    receivers: &mut BTreeMap<Handle, ReceiverEnd>,
    now: Time,
    data: Data,
    payload: &[u8],
    asks: &mut VecDeque<Interest>,
) {
    if let Some(receiver) = receivers.get_mut(&data.name.transfer) {
        receiver.data(now, data, payload, asks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_is_the_first_in_its_turn() {
        let mut sources: BTreeMap<Handle, ()> = [3, 7, 9].map(|transfer| (Handle(transfer), ())).into();
        let mut last = Handle::default();
        let mut order = |sources: &BTreeMap<Handle, ()>| {
            turns(sources, &mut last).into_iter().map(|transfer| transfer.0).collect::<Vec<u64>>()
        };
        assert_eq!([(); 4].map(|()| order(&sources)), [[3, 7, 9], [7, 9, 3], [9, 3, 7], [3, 7, 9]]);
        sources.remove(&Handle(3));
        assert_eq!(
            [(); 3].map(|()| order(&sources)),
            [[7, 9], [9, 7], [7, 9]],
            "one that has ended has none"
        );
        sources.clear();
        assert!(order(&sources).is_empty());
    }
}
