//! A data center at packet level: hosts that drive the push machines, switches, TCP, and planned failures.
//!
//! [`Cluster`] is the [`World`] of the packet engine for everything but pull. It holds transfers by push
//! (Republic section III-A: [`PushSource`], [`PushReceiver`]; their session is the one that production runs,
//! with the bytes of its frames), transfers and background flows by TCP ([`streams`]), the networks'
//! forwarding ([`forward`]), optical switches that lose packets while they turn (Blast section IV), and a
//! plan of what happens when ([`Happening`]).

mod acts;
mod attacker;
mod ends;
pub mod forward;
mod frames;
pub mod keys;
mod lies;
mod mesh;
mod pages;
pub mod permits;
mod plan;
mod racks;
mod receiver;
mod receiving;
pub mod routes;
mod sending;
mod serving;
mod source;
pub mod streams;
mod watch;

pub use attacker::{Attack, Author};
pub use pages::{OPENS_WITHIN, Reader, Taking};
pub use plan::Happening;
pub use receiver::{Mood, Phase, PushReceiver, content_of};
pub use source::{PushConfig, PushSource};
pub use watch::SwitchNews;

use super::scenario::ReceiverSample;
use super::tcp::TcpConfig;
use super::{LinkId, Network, NodeId, Packet, World};
use crate::packet::hooks::{Hooks, Step};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use forward::{FRESH, Forwarding, Tree};
use pages::Pages;
use polycast_types::{Duration, Time};
use polycast_wire::label::Probe;
use receiver::Waiting;
use routes::Distances;
use streams::{Arrival, End, Segment, StreamId, Streams};

/// A packet of the data channel.
#[derive(Clone, Debug)]
pub struct Fragment {
    /// Transfer that the packet belongs to.
    pub(crate) transfer: u32,
    /// The transfer's name on the wire: a source that restarts uses another one.
    pub(crate) handle: u32,
    /// The data channel that it is on.
    pub(crate) channel: u32,
    /// Stage of the changes to the label; see [`forward`].
    pub(crate) stage: u8,
    pub(crate) flags: u8,
    /// The plan of its session when it was sent.
    pub(crate) plan: u32,
    pub(crate) round: u32,
    pub(crate) sn: u64,
    /// Content id, of a coded patch the XOR of its fragments'.
    pub(crate) content: u64,
    /// The fragments of a coded patch.
    pub(crate) coded: Option<Arc<[u64]>>,
    /// The packet's bytes where it is sealed: then only they count, with what is needed to bring them to
    /// their place.
    pub(crate) datagram: Option<Arc<[u8]>>,
    /// Its author, for checks outside the machines.
    pub(crate) author: Author,
}

/// Datagram in a [`Cluster`].
#[derive(Clone, Debug)]
pub enum Datagram {
    /// A fragment or a patch on a data channel.
    Fragment(Fragment),
    /// A segment of a connection.
    Segment(Segment),
    /// A probe of a switch, or its answer.
    Probe(Probe),
}

impl Packet for Datagram {
    fn digest(&self) -> u64 {
        match self {
            Datagram::Fragment(f) => {
                let place = u64::from(f.transfer) << 40 | u64::from(f.handle) << 16 | u64::from(f.round);
                let coded = f.coded.iter().flat_map(|sns| sns.iter());
                let sns = coded.fold(f.sn, |sum, sn| sum.wrapping_mul(31).wrapping_add(*sn));
                let bytes = f.datagram.iter().flat_map(|bytes| bytes.chunks(8));
                let sealed = bytes.fold(0, |sum, chunk| keys::mix(sum, keys::number(chunk)));
                f.content
                    ^ sns.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    ^ place
                    ^ u64::from(f.flags) << 56
                    ^ sealed
            }
            Datagram::Segment(segment) => segment.digest(),
            Datagram::Probe(probe) => 5 << 60 | u64::from(probe.number) << 1 | u64::from(probe.is_answer),
        }
    }

    fn corrupt(&mut self, draw: u64) {
        match self {
            Datagram::Fragment(fragment) => {
                fragment.content ^= draw | 1;
                if let Some(datagram) = &fragment.datagram {
                    let mut bytes = datagram.to_vec();
                    let at = draw as usize % bytes.len();
                    bytes[at] ^= 1 << (draw >> 61);
                    (fragment.datagram, fragment.author) = (Some(bytes.into()), Author::Stranger);
                }
            }
            Datagram::Segment(segment) => segment.corrupt = true,
            // Another number is an answer to nothing.
            Datagram::Probe(probe) => probe.number ^= draw as u32 | 1,
        }
    }
}

/// Purpose of a timer, packed into its token.
#[derive(Clone, Copy, Debug)]
enum Token {
    Source(u32),
    Receiver(u32, u32),
    Socket(u32, u32),
    Stream(StreamId, End),
    Plan(u32),
    Attack(u32),
    Watch(u32),
}

impl Token {
    fn pack(self) -> u64 {
        let (kind, a, b) = match self {
            Token::Source(t) => (0, t, 0),
            Token::Receiver(t, r) => (1, t, r),
            Token::Socket(t, r) => (2, t, r),
            Token::Stream(id, end) => (3 + u64::from(end), 0, id.0),
            Token::Plan(i) => (5, 0, i),
            Token::Attack(i) => (6, 0, i),
            Token::Watch(node) => (7, 0, node),
        };
        kind << 60 | u64::from(a) << 32 | u64::from(b)
    }

    fn unpack(token: u64) -> Token {
        let (a, b) = ((token >> 32 & 0x0fff_ffff) as u32, token as u32);
        match token >> 60 {
            0 => Token::Source(a),
            1 => Token::Receiver(a, b),
            2 => Token::Socket(a, b),
            3 => Token::Stream(StreamId(b), 0),
            4 => Token::Stream(StreamId(b), 1),
            5 => Token::Plan(b),
            6 => Token::Attack(b),
            7 => Token::Watch(b),
            kind => unreachable!("no token has kind {kind}"),
        }
    }
}

/// A machine's timer: at most one event is waited for, others are ignored.
#[derive(Clone, Copy, Debug)]
struct Alarm {
    at: Time,
}

impl Default for Alarm {
    fn default() -> Self {
        Alarm { at: Time(u64::MAX) }
    }
}

impl Alarm {
    /// Makes sure that the timer comes at the deadline or before; a machine may be polled too early.
    fn set(&mut self, net: &mut Network<Datagram>, node: NodeId, token: Token, deadline: Option<Time>) {
        let Some(deadline) = deadline else { return };
        let at = deadline.max(net.now());
        if at < self.at {
            self.at = at;
            net.set_timer(node, at, token.pack());
        }
    }

    /// Returns true if this is the event that the alarm waits for.
    fn rings(&mut self, now: Time) -> bool {
        let rings = self.at == now;
        if rings {
            self.at = Time(u64::MAX);
        }
        rings
    }
}

/// Owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// Opened by a receiver (end 0) to its source (end 1).
    Control { transfer: u32, receiver: u32 },
    /// Opened by a receiver (end 0) to a candidate (end 1): a receiver, or the source if `None`.
    Mesh { transfer: u32, receiver: u32, upstream: Option<u32> },
    /// Opened by a receiver (end 0) to the one that speaks for its rack (end 1).
    Rack { transfer: u32, member: u32, speaker: u32 },
    /// A transfer over TCP from the source (end 0) to a receiver (end 1).
    Bulk { transfer: u32, receiver: u32 },
    /// A background flow.
    Flow { flow: u32 },
}

/// A transfer by push.
pub struct PushTransfer {
    pub(crate) source: PushSource,
    pub(crate) receivers: Vec<PushReceiver>,
    pub(crate) config: PushConfig,
    pub(crate) object: u64,
    pub(crate) object_len: u64,
    pub(crate) forwarding: Arc<Forwarding>,
    /// Hosts that labels may reach; not checked if `None`.
    members: Option<BTreeSet<NodeId>>,
    /// Number of times that the session was planned.
    plans: u32,
    /// Set if the tree is computed again when the network changes.
    pub(crate) reroutes: bool,
    /// Number of data channels so far, and whether the one in use carries nothing while it is set up.
    channels: u32,
    dark: bool,
    /// Receiver by node, and by name.
    at_node: BTreeMap<NodeId, u32>,
    by_name: BTreeMap<String, u32>,
}

impl PushTransfer {
    /// The source.
    #[must_use]
    pub fn source(&self) -> &PushSource {
        &self.source
    }

    /// The receivers.
    #[must_use]
    pub fn receivers(&self) -> &[PushReceiver] {
        &self.receivers
    }

    /// Bytes on a link of one of its packets.
    fn bytes_of(&self, fragment: &Fragment) -> u32 {
        self.config.packet_bytes() + fragment.coded.as_ref().map_or(0, |sns| 2 * sns.len() as u32)
    }

    /// Returns the forwarding of its packets.
    #[must_use]
    pub fn forwarding(&self) -> &Forwarding {
        &self.forwarding
    }

    /// Returns true if a link leads only to a receiver that has left the data channel: its switch has been
    /// notified.
    fn has_left(&self, net: &Network<Datagram>, link: LinkId) -> bool {
        let (_, node) = net.ends(link);
        let left = |number: &u32| {
            let host = &self.receivers[*number as usize];
            host.begun && host.channel == 0
        };
        net.links_from(node).len() == 1 && self.at_node.get(&node).is_some_and(left)
    }

    /// The receivers that are to have the object and do not have it, by number.
    pub fn lacking(&self) -> impl Iterator<Item = u32> + '_ {
        let lacks = |host: &PushReceiver| host.wanted && host.phase != Phase::Done;
        self.receivers.iter().zip(0..).filter(move |(host, _)| lacks(host)).map(|(_, number)| number)
    }
}

/// A transfer over one TCP connection a receiver.
pub struct TcpTransfer {
    pub(crate) source: NodeId,
    pub(crate) receivers: Vec<(NodeId, Option<Time>)>,
    pub(crate) bytes: u64,
}

impl TcpTransfer {
    /// The receivers' hosts and when each had all bytes.
    #[must_use]
    pub fn receivers(&self) -> &[(NodeId, Option<Time>)] {
        &self.receivers
    }
}

/// A background flow over TCP.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// Number of bytes; `u64::MAX` is without an end.
    pub bytes: u64,
    /// Time at which the receiver had all bytes.
    pub finished_at: Option<Time>,
    stream: Option<StreamId>,
}

impl Flow {
    /// A flow that has not begun.
    #[must_use]
    pub fn new(from: NodeId, to: NodeId, bytes: u64) -> Self {
        Flow { from, to, bytes, finished_at: None, stream: None }
    }
}

/// A transfer of any kind.
pub enum Transfer {
    /// By push.
    Push(Box<PushTransfer>),
    /// Over TCP.
    Tcp(TcpTransfer),
}

/// An optical switch that is turning: until it is ready, packets are lost in it.
#[derive(Clone, Copy, Debug)]
struct Turning {
    ready_at: Time,
    loss_ppm: u32,
}

/// Time that one end of a broken connection needs to learn of it.
const BROKEN_AFTER: Duration = Duration::from_millis(3);

/// The world; see the [module](self).
pub struct Cluster {
    seed: u64,
    transfers: Vec<Transfer>,
    flows: Vec<Flow>,
    streams: Streams,
    owners: Vec<Owner>,
    plan: Vec<(Time, Happening)>,
    optical: BTreeMap<NodeId, Turning>,
    optical_drops: u64,
    next_handle: u32,
    /// Stop the run when all transfers are finished.
    stop_when_done: bool,
    out: Vec<(LinkId, u8)>,
    breaches: Vec<String>,
    hooks: Hooks,
    /// Set if the machines are checked against themselves after every input.
    checks: bool,
    /// Guard, where packets are sealed and there is an attacker.
    guard: Option<Box<attacker::Guard>>,
    /// State of links as switches see it, where they check.
    watch: Option<watch::Watch>,
    /// Transfer that is polled first when a link has room again.
    turn: u32,
}

impl Cluster {
    /// A world without transfers; `seed` chooses among equal paths.
    #[must_use]
    pub fn new(seed: u64, tcp: TcpConfig) -> Self {
        Cluster {
            seed,
            transfers: Vec::new(),
            flows: Vec::new(),
            streams: Streams::new(tcp),
            owners: Vec::new(),
            plan: Vec::new(),
            optical: BTreeMap::new(),
            optical_drops: 0,
            next_handle: 0,
            stop_when_done: true,
            out: Vec::new(),
            breaches: Vec::new(),
            hooks: Hooks::default(),
            checks: false,
            guard: None,
            watch: None,
            turn: 0,
        }
    }

    /// Sets the world up for a check from outside: machines are held against themselves, and the hooks are
    /// told of events and may have steps left out.
    pub fn set_hooks(&mut self, hooks: Hooks) {
        for transfer in &mut self.transfers {
            if let Transfer::Push(push) = transfer {
                push.receivers.iter_mut().for_each(|host| host.hooks = hooks.clone());
            }
        }
        (self.hooks, self.checks) = (hooks, true);
    }

    /// Sets whether a transfer that begins has a data channel.
    pub fn set_way(&mut self, transfer: u32, multicast: bool) {
        self.push_mut(transfer).config.multicast = multicast;
    }

    /// A receiver is not among those that a transfer begins with; [`Happening::AddReceiver`] adds it.
    pub fn leave_out(&mut self, transfer: u32, receiver: u32) {
        self.push_mut(transfer).receivers[receiver as usize].wanted = false;
    }

    /// A receiver has an older version of the object; the function says which groups of it are others.
    pub fn give_older(&mut self, transfer: u32, receiver: u32, differs: impl FnMut(&u64) -> bool) {
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        host.older = Some((0..host.geometry.groups()).filter(differs).collect());
    }

    /// Its agent lets the object take that version's pages where it may; these processes read the version.
    pub fn give_readers(&mut self, transfer: u32, receiver: u32, readers: Vec<Reader>) {
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        host.pages = Some(Pages::read_by(readers));
    }

    /// Requires that packets sent from now on reach these hosts only.
    pub fn set_members(&mut self, transfer: u32, members: &[NodeId]) {
        let push = self.push_mut(transfer);
        push.members = Some(members.iter().copied().collect());
        push.plans += 1;
    }

    /// A host keeps a packet: was it in the session when the packet was sent?
    fn check_member(&mut self, fragment: &Fragment, node: NodeId) {
        let push = self.push_mut(fragment.transfer);
        if let Some(members) = &push.members
            && fragment.plan == push.plans
            && !members.contains(&node)
        {
            push.members = None;
            self.breaches.push(format!("a packet reached host {}, which has left the session", node.0));
        }
    }

    /// Adds a transfer by push of an object of so many bytes. Its packets follow `forwarding`, or a tree of
    /// shortest paths that is computed anew when the network changes.
    pub fn add_push(
        &mut self,
        net: &Network<Datagram>,
        source: NodeId,
        receivers: &[NodeId],
        object_len: u64,
        config: PushConfig,
        forwarding: Option<Forwarding>,
    ) -> u32 {
        let transfer = self.transfers.len() as u32;
        let object = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(transfer);
        let reroutes = forwarding.is_none();
        let forwarding = forwarding.unwrap_or_else(|| {
            let links = Distances::from(net, source).tree(net, receivers, self.seed);
            Forwarding::Tree(Tree::new(net, &links))
        });
        let geometry = config.geometry(object_len);
        let host = |&node: &NodeId| {
            let name = format!("host-{}", node.0);
            let mut host =
                PushReceiver::new(node, name, object, geometry, (config.window_bytes, config.service));
            host.hooks = self.hooks.clone();
            host
        };
        let hosts: Vec<PushReceiver> = receivers.iter().map(host).collect();
        let by_name = hosts.iter().map(|host| host.name.clone()).zip(0..).collect();
        self.transfers.push(Transfer::Push(Box::new(PushTransfer {
            source: PushSource::new(source),
            receivers: hosts,
            config,
            object,
            object_len,
            forwarding: Arc::new(forwarding),
            members: None,
            plans: 0,
            reroutes,
            channels: 0,
            dark: false,
            at_node: receivers.iter().zip(0..).map(|(&node, index)| (node, index)).collect(),
            by_name,
        })));
        transfer
    }

    /// Adds a transfer over one TCP connection a receiver.
    pub fn add_tcp(&mut self, source: NodeId, receivers: &[NodeId], bytes: u64) -> u32 {
        let receivers = receivers.iter().map(|&node| (node, None)).collect();
        self.transfers.push(Transfer::Tcp(TcpTransfer { source, receivers, bytes }));
        self.transfers.len() as u32 - 1
    }

    /// Adds a background flow; [`Happening::StartFlow`] starts it.
    pub fn add_flow(&mut self, flow: Flow) -> u32 {
        self.flows.push(flow);
        self.flows.len() as u32 - 1
    }

    /// Makes a node an optical switch that loses this share of packets until it is ready.
    pub fn set_turning(&mut self, node: NodeId, ready_at: Time, loss_ppm: u32) {
        self.optical.insert(node, Turning { ready_at, loss_ppm });
    }

    /// Plans something.
    pub fn plan(&mut self, net: &mut Network<Datagram>, at: Time, happening: Happening) {
        let token = Token::Plan(self.plan.len() as u32);
        self.plan.push((at, happening));
        net.set_timer(NodeId::CONTROL, at, token.pack());
    }

    /// Sets whether the run stops when all transfers are over.
    pub fn set_stop_when_done(&mut self, stop: bool) {
        self.stop_when_done = stop;
    }

    /// The transfers.
    #[must_use]
    pub fn transfers(&self) -> &[Transfer] {
        &self.transfers
    }

    /// The push transfer of this number.
    ///
    /// # Panics
    /// If it is another kind of transfer.
    #[must_use]
    pub fn push(&self, transfer: u32) -> &PushTransfer {
        match &self.transfers[transfer as usize] {
            Transfer::Push(push) => push,
            Transfer::Tcp(_) => panic!("transfer {transfer} is not by push"),
        }
    }

    fn push_mut(&mut self, transfer: u32) -> &mut PushTransfer {
        match &mut self.transfers[transfer as usize] {
            Transfer::Push(push) => push,
            Transfer::Tcp(_) => panic!("transfer {transfer} is not by push"),
        }
    }

    /// Returns the part of the object that each receiver of each transfer has now.
    #[must_use]
    pub fn delivered(&self) -> Vec<ReceiverSample> {
        let mut samples = Vec::new();
        for (kind, number) in self.transfers.iter().zip(0u32..) {
            let sample = |node: NodeId, bytes| ReceiverSample { transfer: number, id: node.0, bytes };
            match kind {
                Transfer::Push(push) => samples.extend(push.receivers.iter().map(|receiver| {
                    let whole = receiver.intact.len() as u64 * u64::from(push.config.group_bytes);
                    sample(receiver.node, whole.min(push.object_len))
                })),
                Transfer::Tcp(tcp) => {
                    let first = samples.len();
                    samples.extend(tcp.receivers.iter().map(|(node, _)| sample(*node, 0)));
                    for (owner, id) in self.owners.iter().zip(0u32..) {
                        if let Owner::Bulk { transfer, receiver } = *owner
                            && transfer == number
                        {
                            samples[first + receiver as usize].bytes =
                                self.streams.delivered(StreamId(id), 0);
                        }
                    }
                }
            }
        }
        samples
    }

    /// The background flows.
    #[must_use]
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Packets lost in optical switches that were turning.
    #[must_use]
    pub fn optical_drops(&self) -> u64 {
        self.optical_drops
    }

    /// Breaches of what must always hold, one sentence each.
    #[must_use]
    pub fn breaches(&self) -> Vec<String> {
        let mut breaches = self.breaches.clone();
        for transfer in &self.transfers {
            if let Transfer::Push(push) = transfer {
                breaches.extend(push.receivers.iter().flat_map(|r| r.breaches.iter().cloned()));
            }
        }
        breaches
    }

    /// Returns true once every transfer is over: all receivers of each are done or given up.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.transfers.iter().all(|transfer| match transfer {
            Transfer::Push(push) => push.source.finished_at.is_some(),
            Transfer::Tcp(tcp) => tcp.receivers.iter().all(|(_, at)| at.is_some()),
        })
    }

    fn check_done(&mut self, net: &mut Network<Datagram>) {
        if self.stop_when_done && self.is_done() {
            net.stop();
        }
    }

    fn open(&mut self, net: &Network<Datagram>, from: NodeId, to: NodeId, owner: Owner) -> StreamId {
        let hash = self.seed ^ u64::from(self.streams.count()) << 20;
        let id = self.streams.open(from, to, hash);
        self.owners.push(owner);
        self.route(net, id, &mut BTreeMap::new());
        id
    }

    /// Gives a connection its paths; `known` keeps searches for the next one.
    fn route(&mut self, net: &Network<Datagram>, id: StreamId, known: &mut BTreeMap<NodeId, Distances>) {
        let Some((ends, hash)) = self.streams.wants_path(id) else { return };
        for from in 0..2 {
            let root = ends[usize::from(from)];
            let distances = known.entry(root).or_insert_with(|| Distances::from(net, root));
            let path = distances.path(net, ends[usize::from(1 - from)], hash);
            self.streams.set_path(id, from, path);
        }
    }

    fn reroute(&mut self, net: &Network<Datagram>) {
        let mut known = BTreeMap::new();
        for id in 0..self.streams.count() {
            self.route(net, StreamId(id), &mut known);
        }
        for transfer in &mut self.transfers {
            if let Transfer::Push(push) = transfer
                && push.reroutes
            {
                let members: Vec<NodeId> = push.receivers.iter().map(|r| r.node).collect();
                let links = Distances::from(net, push.source.node).tree(net, &members, self.seed);
                push.forwarding = Arc::new(Forwarding::Tree(Tree::new(net, &links)));
            }
        }
    }

    /// Sends a packet on from `node`; true if the node may keep a copy.
    fn forward(
        &mut self,
        net: &mut Network<Datagram>,
        node: NodeId,
        from: Option<LinkId>,
        fragment: &Fragment,
    ) -> bool {
        let mut out = core::mem::take(&mut self.out);
        out.clear();
        let push = self.push(fragment.transfer);
        let keeps = push.forwarding.next(net, node, from, fragment.stage, &mut out);
        let bytes = push.bytes_of(fragment);
        for &(link, stage) in &out {
            if push.has_left(net, link) {
                continue;
            }
            // Where a link has several priorities, connections come before data channels.
            let priority = net.last_priority(link);
            let packet = Datagram::Fragment(Fragment { stage, ..fragment.clone() });
            // The source asks before each batch whether its link has enough to send, and loses nothing of its
            // own.
            match from {
                Some(_) => net.send(link, packet, bytes, priority),
                None => net.send_own(link, packet, bytes, priority),
            };
        }
        self.out = out;
        keeps
    }

    fn fragment(&mut self, net: &mut Network<Datagram>, node: NodeId, link: LinkId, fragment: Fragment) {
        if let Some(&turning) = self.optical.get(&node)
            && net.now() < turning.ready_at
            && net.chance(turning.loss_ppm)
        {
            self.optical_drops += 1;
            return;
        }
        let keeps = self.forward(net, node, Some(link), &fragment);
        if keeps {
            self.check_member(&fragment, node);
        }
        let transfer = fragment.transfer;
        if keeps && let Some(&receiver) = self.push(transfer).at_node.get(&node) {
            let push = self.push_mut(transfer);
            let bytes = push.bytes_of(&fragment);
            push.receivers[receiver as usize].carried_bytes += u64::from(bytes);
            self.enter_socket(net, transfer, receiver, fragment);
        }
    }

    fn enter_socket(
        &mut self,
        net: &mut Network<Datagram>,
        transfer: u32,
        receiver: u32,
        fragment: Fragment,
    ) {
        if self.guard.is_some() {
            self.flood(net, (transfer, receiver), &fragment);
        }
        self.take_in(net, (transfer, receiver), fragment);
    }

    /// A packet comes to the socket of a receiver.
    fn take_in(&mut self, net: &mut Network<Datagram>, (transfer, receiver): (u32, u32), fragment: Fragment) {
        self.release(net, transfer, receiver);
        let push = self.push_mut(transfer);
        let bytes = u64::from(push.config.packet_bytes());
        let host = &mut push.receivers[receiver as usize];
        // Before WELCOME it does not listen, and packets of other channels and transfers are not for it.
        let listens = host.machine.is_some() && host.channel == fragment.channel;
        if !listens || host.handle != fragment.handle {
            return;
        }
        let waiting = Waiting { arrived: net.now(), fragment, bytes };
        if host.service == Duration::ZERO && host.socket.is_empty() && !host.is_held {
            let is_ours = host.fragment(net.now(), &waiting);
            if is_ours {
                self.check_suspect(transfer, receiver);
                self.drive_receiver(net, transfer, receiver);
            }
            return;
        }
        if host.socket_bytes + bytes > host.window_bytes {
            host.overflows += 1;
            return;
        }
        host.socket_bytes += bytes;
        host.socket.push_back(waiting);
        if host.socket.len() == 1 {
            let at = net.now().max(host.held_until) + host.service;
            net.set_timer(host.node, at, Token::Socket(transfer, receiver).pack());
        }
    }

    /// The receiver has taken one packet out of its socket.
    fn leave_socket(&mut self, net: &mut Network<Datagram>, transfer: u32, receiver: u32) {
        let is_dear = self.hooks.leaves_out(Step::DropForgery);
        self.release(net, transfer, receiver);
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        if host.is_held {
            let at = host.held_until + host.service;
            net.set_timer(host.node, at, Token::Socket(transfer, receiver).pack());
            return;
        }
        let Some(waiting) = host.socket.pop_front() else { return };
        host.socket_bytes -= waiting.bytes;
        let is_ours = host.fragment(net.now(), &waiting);
        if host.socket.is_empty() {
            host.handle(net.now(), polycast_protocol::push::ReceiverInput::NothingWaits);
        } else {
            let dear = !is_ours && is_dear;
            let at = net.now() + host.service * if dear { 30 } else { 1 };
            net.set_timer(host.node, at, Token::Socket(transfer, receiver).pack());
        }
        if is_ours {
            self.check_suspect(transfer, receiver);
            self.drive_receiver(net, transfer, receiver);
        }
    }

    fn new_fragment(&self, transfer: u32) -> Fragment {
        let push = self.push(transfer);
        let handle = push.source.run.as_ref().map_or(0, |run| run.handle);
        Fragment {
            transfer,
            handle,
            channel: push.source.channel(),
            stage: FRESH,
            flags: 0,
            plan: push.plans,
            round: 0,
            sn: 0,
            content: 0,
            coded: None,
            datagram: None,
            author: Author::Source,
        }
    }
}

impl Cluster {
    /// A packet has come to a node.
    fn deliver(&mut self, net: &mut Network<Datagram>, node: NodeId, link: LinkId, packet: Datagram) {
        match packet {
            Datagram::Fragment(fragment) => self.fragment(net, node, link, fragment),
            Datagram::Probe(probe) => self.probed(net, node, link, probe),
            Datagram::Segment(segment) => match self.streams.arrive(net, node, segment) {
                Arrival::Nothing => {}
                Arrival::Data => self.take_frames(net, segment.stream, segment.to),
                Arrival::Room => self.has_room(net, segment.stream, segment.to),
            },
        }
    }
}

impl World for Cluster {
    type Packet = Datagram;

    fn arrive(&mut self, net: &mut Network<Datagram>, node: NodeId, link: LinkId, packet: Datagram) {
        let packet = if self.guard.is_some() { self.tap(net, (node, link), packet) } else { Some(packet) };
        if let Some(packet) = packet {
            self.deliver(net, node, link, packet);
        }
    }

    fn timer(&mut self, net: &mut Network<Datagram>, _: NodeId, token: u64) {
        let now = net.now();
        match Token::unpack(token) {
            Token::Source(transfer) => {
                if self.push_mut(transfer).source.alarm.rings(now) {
                    self.drive_source(net, transfer);
                }
            }
            Token::Receiver(transfer, receiver) => {
                if self.push_mut(transfer).receivers[receiver as usize].alarm.rings(now) {
                    self.drive_receiver(net, transfer, receiver);
                }
            }
            Token::Socket(transfer, receiver) => self.leave_socket(net, transfer, receiver),
            Token::Stream(id, end) => self.streams.wake(net, id, end),
            Token::Plan(index) => {
                let happening = self.plan[index as usize].1.clone();
                self.happen(net, happening);
            }
            Token::Attack(number) => self.attack(net, number),
            Token::Watch(node) => self.watch_timer(net, NodeId(node)),
        }
    }

    fn idle(&mut self, net: &mut Network<Datagram>, _: NodeId, link: LinkId) {
        // Transfers from one host take turns at its link.
        let count = self.transfers.len() as u32;
        self.turn = if self.turn + 1 < count { self.turn + 1 } else { 0 };
        for transfer in (self.turn..count).chain(0..self.turn) {
            if let Transfer::Push(push) = &mut self.transfers[transfer as usize]
                && let Some(run) = push.source.run.as_deref_mut()
                && run.waits_for == Some(link)
            {
                run.waits_for = None;
                self.drive_source(net, transfer);
            }
        }
        self.streams.serve(net, link);
    }
}

#[cfg(test)]
mod slow_tests;
#[cfg(test)]
mod tests;
