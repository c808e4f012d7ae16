//! A pull transfer that is sealed: its source, the nodes with their stores, and receivers, with packets as
//! they are on the wire.
//!
//! A payload has all of its bytes. What nodes look at, how packets are named, how names get to receivers and
//! what permits allow is production's (`wire::pull::admit`, `protocol::pull::{NameList, Names}`,
//! `wire::permit`); ciphers and hashes are ideal (`world::keys`). What the source and receivers say on
//! connections comes whole, or the connection ends: a receiver keeps what it has verified, and is called
//! again.

use super::attack::Attacker;
use super::node::Node;
use super::receiver::{End, Host};
use crate::{Coverage, Plant, coverage};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use polycast_protocol::pull::{
    Blocks, Data, Digest, Groups, Interest, NameList, ReceiverInput, Source, SourceInput, SourceOutput,
};
use polycast_protocol::push::Geometry;
use polycast_simulator::packet::pull::{Group, port_of};
use polycast_simulator::packet::world::keys::{self, Keyring, Secret};
use polycast_simulator::packet::world::permits::{Allowed, Manager, unix_s};
use polycast_simulator::packet::{LinkId, Network, NodeId, Packet};
use polycast_types::{DataId, Duration, Handle, ObjectId, RangeSet, Time};
use polycast_wire::control::{Hash, Salt};
use polycast_wire::pull::{DIGEST_LEN, digest_len};

/// Bytes of a packet beside what is simulated of it: IP and UDP.
const BELOW_BYTES: u32 = 28;
/// Delay of a message on a connection.
const SAID_AFTER: Duration = Duration::from_micros(50);
/// A receiver whose connection has ended is called again after so long.
const CALLED_AGAIN: Duration = Duration::from_millis(5);

/// A packet as it is on the wire.
#[derive(Clone, Debug)]
pub(in super::super) struct Datagram(pub(super) Arc<[u8]>);

impl Packet for Datagram {
    fn digest(&self) -> u64 {
        keys::digest(0, &self.0)
    }

    /// Any bit flips, also of a header: nothing but the digest holds that off here.
    fn corrupt(&mut self, draw: u64) {
        let mut bytes = self.0.to_vec();
        let at = (draw / 8) as usize % bytes.len();
        bytes[at] ^= 1 << (draw % 8);
        self.0 = bytes.into();
    }
}

/// Event at a time of its own.
pub(super) enum Later {
    /// A message of the source reaches a receiver: `roots` sections have roots.
    Told { run: usize, receiver: usize, conn: u32, roots: u64 },
    /// A receiver's word that it has the object comes to the source.
    Done { run: usize, receiver: usize, conn: u32, proof: Hash },
    /// A receiver whose connection has ended is called again.
    Called { run: usize, receiver: usize },
    /// The source knows one more section.
    Listed { run: usize },
    /// A receiver is taken out.
    Remove { receiver: usize },
    /// A packet that was held back goes on.
    Held { node: NodeId, link: LinkId, packet: Datagram },
    /// The attacker does something of its own accord.
    Act,
    /// The attacker sends its only packet.
    One,
}

/// The keys of a transfer, of a member that was told its secret.
pub(super) fn keyring(secret: Secret, handle: Handle) -> Keyring {
    let mut keys = Keyring::default();
    keys.learn(Arc::new(core::iter::once(0..u64::MAX).collect()), Secret(keys::mix(secret.0, handle.0)));
    keys
}

/// One transfer of the object: when a receiver is taken out another one follows, under another secret.
pub(super) struct Run {
    pub(super) handle: Handle,
    /// Secret that receivers are sent; the keys follow from it and the handle.
    secret: Secret,
    keys: Keyring,
    salt: Salt,
    members: BTreeSet<usize>,
    lists: Vec<NameList>,
    digests: Vec<Digest>,
    /// Sections of which the source knows the roots.
    roots: u64,
    settled: BTreeSet<usize>,
}

impl Run {
    pub(super) fn digest(&self, blocks: &Blocks, sn: u64) -> Option<Digest> {
        match blocks.list_place(sn) {
            Some(place) => self.lists.get(place.section as usize)?.digest(place),
            None => self.digests.get(sn as usize).copied(),
        }
    }
}

/// True state, which no machine knows.
#[derive(Default)]
pub(super) struct Truth {
    /// Content that the source has sealed: one content for a secret and a nonce.
    sealed: BTreeMap<(Secret, [u8; 12]), u64>,
    /// Content that belongs under a name that the source has given.
    named: BTreeMap<(Handle, u64, Digest), u64>,
    /// The receivers that were told a secret.
    told: BTreeMap<Secret, BTreeSet<usize>>,
    /// Packets of the object that were ever sent.
    sent: RangeSet,
}

/// The whole of it.
pub(in super::super) struct World {
    pub(super) group: Group,
    pub(super) geometry: Geometry,
    pub(super) object: Vec<u8>,
    pub(super) nodes: Vec<Node>,
    pub(super) hosts: Vec<Host>,
    pub(super) host_at: BTreeMap<u32, usize>,
    pub(super) runs: Vec<Run>,
    source: Source,
    secrets: u64,
    pub(super) truth: Truth,
    pub(super) manager: Manager,
    pub(super) allowed: Allowed,
    pub(super) attacker: Attacker,
    later: BTreeMap<u64, Later>,
    laters: u64,
    pub(super) plant: Option<Plant>,
    pub(super) coverage: Coverage,
    pub(super) breaches: Vec<String>,
    /// Time that a node takes for a packet.
    pub(super) service: Duration,
    /// One in this number of packets that receivers store is damaged in memory; 0 for none.
    pub(super) damages_one_in: u64,
}

impl World {
    /// The nodes of a group, before anything has happened.
    pub(in super::super) fn new(
        (seed, group, geometry): (u64, Group, Geometry),
        nodes: Vec<Node>,
        attacker: Attacker,
        plant: Option<Plant>,
    ) -> Self {
        let words = (0..geometry.object_len.div_ceil(8)).flat_map(|at| keys::mix(seed, at).to_be_bytes());
        let object: Vec<u8> = words.take(geometry.object_len as usize).collect();
        let hosts: Vec<Host> = group.receivers.iter().map(|&node| Host::new(node, &geometry)).collect();
        let allowed = Allowed {
            source: String::from("an honest one"),
            address: [10, 0, 0, 1].into(),
            object: ObjectId { data: DataId(seed), ..ObjectId::default() },
            object_len: geometry.object_len,
            root: None,
            pulled: true,
            receivers: Vec::new(),
            from_unix_s: unix_s(Time::ZERO),
        };
        World {
            host_at: group.receivers.iter().copied().zip(0..).collect(),
            source: Source::new(group.source_config()),
            geometry,
            object,
            nodes,
            hosts,
            runs: Vec::new(),
            secrets: keys::mix(seed, 7),
            truth: Truth::default(),
            manager: Manager(keys::mix(seed, 5)),
            allowed,
            attacker,
            later: BTreeMap::new(),
            laters: 0,
            plant,
            coverage: Coverage::default(),
            breaches: Vec::new(),
            service: Duration::ZERO,
            damages_one_in: 0,
            group,
        }
    }

    /// Something happens at this time.
    pub(super) fn plan(&mut self, net: &mut Network<Datagram>, at: Time, what: Later) {
        self.laters += 1;
        self.later.insert(self.laters, what);
        net.set_timer(NodeId::CONTROL, at, self.laters);
    }

    /// Returns the first breach as an error, if there is one.
    pub(in super::super) fn breach(&self) -> Result<(), String> {
        self.breaches.first().cloned().map_or(Ok(()), Err)
    }

    /// The transfer begins: the source calls all that are not done and may take part, and knows so many roots
    /// at first.
    pub(in super::super) fn begin(&mut self, net: &mut Network<Datagram>, roots: u64) {
        let before = self.runs.last().map(|run| run.secret).filter(|_| self.plant == Some(Plant::KeepEpoch));
        self.secrets = keys::mix(self.secrets, 7);
        let secret = before.unwrap_or(Secret(self.secrets));
        let handle = Handle(self.runs.len() as u64 + 1);
        let mut keys = keyring(secret, handle);
        keys.reuses_nonces = self.plant == Some(Plant::ReuseNonce);
        // One that has the object, and whose word of that was lost, is called again: the source knows no
        // better.
        let lacks = |at: &usize| !self.is_settled(*at) && !self.hosts[*at].removed;
        let members: BTreeSet<usize> = (0..self.hosts.len()).filter(lacks).collect();
        self.allowed.receivers = members.iter().map(|&at| self.hosts[at].name.clone()).collect();
        let salt = keys::salt_of(self.secrets);
        let run = Run {
            handle,
            secret,
            keys,
            salt,
            members,
            lists: Vec::new(),
            digests: Vec::new(),
            roots: roots.min(self.group.blocks.sections()),
            settled: BTreeSet::new(),
        };
        self.runs.push(run);
        self.name_packets();
        self.group.transfer = handle;
        self.source = Source::new(self.group.source_config());
        self.call(net);
    }

    /// The source's calls, each with the permit; those that take part are told.
    fn call(&mut self, net: &mut Network<Datagram>) {
        let (run, now) = (self.runs.len() - 1, net.now());
        for at in 0..self.hosts.len() {
            let name = &self.hosts[at].name;
            let shown = self.manager.permit(&self.allowed, name);
            let caller = (self.allowed.source.as_str(), &self.allowed.call());
            let lets = self.manager.lets(caller, shown.as_ref(), now, name);
            let is_member = self.runs[run].members.contains(&at);
            if lets != is_member {
                self.breaches.push(format!("of the transfer's permit receiver {at} says {lets}"));
            }
            if is_member {
                self.hosts[at].stands = true;
                self.tell(net, at);
            }
        }
    }

    /// The source says to a receiver what it knows: secret and roots.
    fn tell(&mut self, net: &mut Network<Datagram>, receiver: usize) {
        let run = self.runs.len() - 1;
        let (secret, roots) = (self.runs[run].secret, self.runs[run].roots);
        self.truth.told.entry(secret).or_default().insert(receiver);
        let Some(at) = self.attacker.disturb(net.now() + SAID_AFTER, &mut self.coverage) else {
            return self.break_off(net, receiver);
        };
        let conn = self.hosts[receiver].conn;
        self.plan(net, at, Later::Told { run, receiver, conn, roots });
    }

    /// The connection between a receiver and the source ends; what is on its way there does not come.
    pub(super) fn break_off(&mut self, net: &mut Network<Datagram>, receiver: usize) {
        let (run, host) = (self.runs.len() - 1, &mut self.hosts[receiver]);
        (host.conn, host.stands) = (host.conn + 1, false);
        host.end = None;
        self.plan(net, net.now() + CALLED_AGAIN, Later::Called { run, receiver });
    }

    /// The source calls a receiver again that it has lost.
    fn call_again(&mut self, net: &mut Network<Datagram>, run: usize, receiver: usize) {
        let Run { members, settled, .. } = &self.runs[run];
        let is_lost = members.contains(&receiver) && !settled.contains(&receiver);
        let is_over = run + 1 != self.runs.len() || self.hosts[receiver].removed;
        if is_lost && !is_over && self.plant != Some(Plant::CallOnce) {
            self.hosts[receiver].stands = true;
            self.tell(net, receiver);
        }
    }

    /// Seals all packets, and makes the lists of their names.
    fn name_packets(&mut self) {
        let World { geometry, object, runs, truth, group, breaches, .. } = self;
        let blocks = group.blocks;
        let Some(run) = runs.last_mut() else { return };
        let (handle, keys) = (run.handle, &run.keys);
        let mut digest_of = |sn: u64, packet: &mut Vec<u8>, len: usize| {
            if let Err(breach) = truth.seal(keys, sn, packet) {
                breaches.push(breach);
            }
            let digest = Digest::of_hash(&keys::hash_of(handle, sn, packet), len);
            truth.named.insert((handle, sn, digest), keys::digest(0, packet));
            digest
        };
        let len = digest_len(blocks.payload_bytes());
        let plain = |sn| {
            let bytes = geometry.fragment_bytes(sn);
            object[bytes.start as usize..bytes.end as usize].to_vec()
        };
        run.digests = (0..blocks.packets()).map(|sn| digest_of(sn, &mut plain(sn), len)).collect();
        for section in 0..blocks.sections() {
            let groups = blocks.section_groups(section);
            let bytes = groups.map(|group| geometry.group_bytes(group));
            let hashes = bytes.map(|bytes| keys::hash(&object[bytes.start as usize..bytes.end as usize]));
            let mut list: Vec<u8> = hashes.flatten().collect();
            let packets = blocks.section_packets(section);
            packets.for_each(|sn| list.extend_from_slice(&run.digests[sn as usize].0[..len]));
            let made = NameList::new(&blocks, section, list, |sn, packet| digest_of(sn, packet, DIGEST_LEN));
            run.lists.push(made);
        }
    }

    /// Returns the content of a packet of the run before it is sealed.
    fn plain(&self, sn: u64) -> Vec<u8> {
        let Some(run) = self.runs.last() else { return Vec::new() };
        if let Some(place) = self.group.blocks.list_place(sn) {
            return run.lists[place.section as usize].packet(&self.group.blocks, place).to_vec();
        }
        let bytes = self.geometry.fragment_bytes(sn);
        self.object[bytes.start as usize..bytes.end as usize].to_vec()
    }

    /// An interest has come to the source.
    pub(super) fn serve(&mut self, now: Time, port: u8, interest: Interest) {
        let Some(run) = self.runs.last() else { return };
        let name = interest.name;
        let knows = run.digest(&self.group.blocks, name.sn) == Some(name.digest);
        if name.transfer == run.handle && knows {
            self.source.handle(now, SourceInput::Interest { port, interest });
        }
    }

    /// The source sends what it may.
    pub(super) fn drive_source(&mut self, net: &mut Network<Datagram>) {
        while let Some(SourceOutput::Send { port, data }) = self.source.poll(net.now()) {
            let sn = data.name.sn;
            let mut payload = self.plain(sn);
            let Some(run) = self.runs.last() else { return };
            if let Err(breach) = self.truth.seal(&run.keys, sn, &mut payload) {
                self.breaches.push(breach);
            }
            self.check_sent(sn);
            let digest = self.runs.last().and_then(|run| run.digest(&self.group.blocks, sn));
            let name = data.name.with_digest(digest.expect("only what is named is asked for"));
            let packet = polycast_protocol::pull::Packet::Data(Data { name, ..data });
            self.send(net, self.group.source, port, &packet, &payload);
        }
    }

    /// A packet of the object is sent: the first time, for no host that has left.
    fn check_sent(&mut self, sn: u64) {
        let Some(run) = self.runs.last() else { return };
        if sn >= self.group.blocks.packets() || self.truth.sent.insert(sn..sn + 1) == 0 {
            return;
        }
        let told = self.truth.told.get(&run.secret);
        let left = told.into_iter().flatten().find(|at| {
            let host = &self.hosts[**at];
            !run.members.contains(at) && host.done_at.is_none()
        });
        if let Some(at) = left {
            let what = format!("receiver {at} has left, and knows the key of packet {sn}, which is new");
            self.breaches.push(what);
        }
    }

    /// Sends a packet by a port of a node.
    pub(super) fn send(
        &mut self,
        net: &mut Network<Datagram>,
        node: u32,
        port: u8,
        packet: &polycast_protocol::pull::Packet,
        payload: &[u8],
    ) {
        let Some(&LinkId(first)) = net.links_from(NodeId(node)).first() else { return };
        let bytes: Vec<u8> = packet.to_wire().emit().iter().chain(payload).copied().collect();
        let len = bytes.len() as u32 + BELOW_BYTES;
        net.send(LinkId(first + u32::from(port)), Datagram(bytes.into()), len, 0);
    }

    /// Returns the time at which the source acts of its own accord.
    pub(super) fn source_deadline(&self) -> Option<Time> {
        self.source.deadline()
    }

    fn happen(&mut self, net: &mut Network<Datagram>, what: Later) {
        match what {
            Later::Told { receiver, conn, .. } | Later::Done { receiver, conn, .. }
                if self.hosts[receiver].conn != conn => {}
            Later::Told { run, receiver, roots, .. } => self.told(net, run, receiver, roots),
            Later::Done { run, receiver, proof, .. } => self.done(net, run, receiver, &proof),
            Later::Called { run, receiver } => self.call_again(net, run, receiver),
            Later::Listed { run } => self.listed(net, run),
            Later::Remove { receiver } => self.remove(net, receiver),
            Later::Held { node, link, packet } => self.come(net, node, link, packet),
            Later::Act => self.act(net),
            Later::One => self.forge_one(net),
        }
    }

    /// The source has read on, and knows more roots.
    fn listed(&mut self, net: &mut Network<Datagram>, run: usize) {
        if run + 1 != self.runs.len() {
            return;
        }
        self.runs[run].roots = (self.runs[run].roots + 1).min(self.group.blocks.sections());
        let members = self.runs[run].members.iter().copied();
        let members: Vec<usize> = members.filter(|at| self.hosts[*at].stands).collect();
        members.into_iter().for_each(|at| self.tell(net, at));
    }

    /// All that is to be known is known.
    pub(in super::super) fn know_all(&mut self, net: &mut Network<Datagram>) {
        let run = self.runs.len() - 1;
        self.runs[run].roots = self.group.blocks.sections();
        self.listed(net, run);
    }

    fn told(&mut self, net: &mut Network<Datagram>, run: usize, receiver: usize, roots: u64) {
        if run + 1 != self.runs.len() || self.hosts[receiver].removed {
            return;
        }
        let of = &self.runs[run];
        if self.attacker.attack.insider == Some(receiver as u32) {
            self.attacker.known.insert(of.handle, of.secret);
        }
        let known: Vec<Digest> = of.lists[..roots as usize].iter().map(NameList::root).collect();
        let host = &mut self.hosts[receiver];
        let is_new = host.end.as_ref().is_none_or(|end| end.handle != of.handle);
        if is_new {
            let config = self.group.receiver_config(receiver);
            let groups = Groups::new(self.geometry, host.verified.clone());
            let end = End::new(config, groups, of.keys.clone());
            host.begin(net.now(), &self.geometry, end);
        }
        let Some(end) = &mut host.end else { return };
        let until = end.learn(&known);
        end.machine.handle(net.now(), ReceiverInput::Roots { until });
        if is_new {
            end.machine.handle(net.now(), ReceiverInput::Begin);
        }
        self.drive(net, host_node(&self.hosts, receiver));
    }

    /// A receiver says that it has the object.
    pub(super) fn say_done(&mut self, net: &mut Network<Datagram>, receiver: usize) {
        let run = self.runs.len() - 1;
        let proof = self.proof(run, &self.hosts[receiver].bytes);
        let Some(at) = self.attacker.disturb(net.now() + SAID_AFTER, &mut self.coverage) else {
            return self.break_off(net, receiver);
        };
        let conn = self.hosts[receiver].conn;
        self.plan(net, at, Later::Done { run, receiver, conn, proof });
    }

    /// The proof that one has these bytes, for the salt of this run.
    fn proof(&self, run: usize, bytes: &[u8]) -> Hash {
        keys::proof_of(&self.runs[run].salt, core::iter::once(keys::digest(0, bytes)))
    }

    fn done(&mut self, net: &mut Network<Datagram>, run: usize, receiver: usize, proof: &Hash) {
        let right = self.proof(run, &self.object) == *proof || self.plant == Some(Plant::SkipProof);
        if !right {
            return;
        }
        if self.hosts[receiver].done_at.is_none() {
            self.breaches.push(format!("receiver {receiver} settled as done, but is not"));
        }
        self.runs[run].settled.insert(receiver);
        self.stop_when_done(net);
    }

    /// Returns true once every host that is to have the object has it, and the source knows.
    pub(in super::super) fn is_done(&self) -> bool {
        (0..self.hosts.len()).all(|at| self.hosts[at].removed || self.is_settled(at))
    }

    /// Returns true if the source knows that a receiver has the object.
    fn is_settled(&self, receiver: usize) -> bool {
        self.runs.iter().any(|run| run.settled.contains(&receiver))
    }

    fn stop_when_done(&self, net: &mut Network<Datagram>) {
        if self.is_done() {
            net.stop();
        }
    }

    /// A receiver is taken out: the others go on in another transfer.
    fn remove(&mut self, net: &mut Network<Datagram>, receiver: usize) {
        let host = &mut self.hosts[receiver];
        if host.done_at.is_some() {
            return;
        }
        host.removed = true;
        self.attacker.note_removed(&self.truth.sent);
        self.coverage.hit(coverage::ATTACK_REMOVED);
        let roots = self.runs.last().map_or(0, |run| run.roots);
        self.begin(net, roots);
        self.stop_when_done(net);
    }

    /// A packet has come to a node.
    pub(super) fn come(&mut self, net: &mut Network<Datagram>, node: NodeId, link: LinkId, packet: Datagram) {
        let port = port_of(net, node, link);
        self.take(net, node.0, port, packet.0);
    }

    /// The receivers that were not done in time.
    pub(in super::super) fn late(&self) -> Option<usize> {
        (0..self.hosts.len()).find(|at| !self.hosts[*at].removed && self.hosts[*at].done_at.is_none())
    }

    /// Describes the state of a receiver for a sentence: the groups and packets that it has, and its
    /// connection.
    pub(in super::super) fn state_of(&self, receiver: usize) -> String {
        let host = &self.hosts[receiver];
        let verified = host.verified.iter().filter(|verified| **verified).count();
        let connection = if host.stands { "stands" } else { "does not stand" };
        let packets = self.group.blocks.packets();
        let part = host.end.as_ref().map_or_else(
            || String::from("it takes no part"),
            |end| format!("its machine has {} of {packets} packets", end.machine.packets()),
        );
        format!(
            "{verified} of {} groups are verified, its connection {connection}, {part}",
            host.verified.len()
        )
    }

    /// Every host that is done has the object.
    pub(in super::super) fn check_objects(&self) -> Result<(), String> {
        let wrong = |host: &Host| host.done_at.is_some() && host.bytes != self.object;
        match self.hosts.iter().position(wrong) {
            Some(at) => Err(format!("receiver {at} has other content than its source has said")),
            None => Ok(()),
        }
    }

    /// Returns the time at which the last receiver had everything.
    pub(in super::super) fn finished_at(&self) -> Option<Time> {
        self.hosts.iter().map(|host| host.done_at).collect::<Option<Vec<_>>>()?.into_iter().max()
    }
}

fn host_node(hosts: &[Host], at: usize) -> u32 {
    hosts[at].node
}

impl Truth {
    /// Seals a packet; what was sealed with this secret and nonce before must have been the same.
    fn seal(&mut self, keys: &Keyring, sn: u64, packet: &mut [u8]) -> Result<(), String> {
        let Some(secret) = keys.secret_of(sn) else { return Ok(()) };
        let content = keys::digest(0, packet);
        let before = *self.sealed.entry((secret, keys.nonce_of(sn))).or_insert(content);
        keys.turn(sn, packet);
        if before == content {
            return Ok(());
        }
        Err(format!("packet {sn} is sealed with a nonce that has another content"))
    }

    /// Returns true if a payload belongs under this name. For a name that the source has not given, any
    /// payload that fits will do.
    pub(super) fn is_right(&self, name: &polycast_protocol::pull::Name, payload: &[u8]) -> bool {
        let hash = || keys::hash_of(name.transfer, name.sn, payload);
        match self.named.get(&(name.transfer, name.sn, name.digest)) {
            Some(right) => *right == keys::digest(0, payload),
            None => name.digest.fits(&hash()),
        }
    }

    /// Returns true if the source has given this name.
    pub(super) fn has_named(&self, name: &polycast_protocol::pull::Name) -> bool {
        self.named.contains_key(&(name.transfer, name.sn, name.digest))
    }
}

impl polycast_simulator::packet::World for World {
    type Packet = Datagram;

    fn arrive(&mut self, net: &mut Network<Datagram>, node: NodeId, link: LinkId, packet: Datagram) {
        if let Some(packet) = self.tap(net, node, link, packet) {
            self.come(net, node, link, packet);
        }
    }

    fn timer(&mut self, net: &mut Network<Datagram>, node: NodeId, token: u64) {
        if node == NodeId::CONTROL {
            if let Some(what) = self.later.remove(&token) {
                self.happen(net, what);
            }
            return;
        }
        self.wake(net, node.0, token);
    }
}
