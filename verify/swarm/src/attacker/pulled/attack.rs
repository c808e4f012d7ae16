//! The attacker among the nodes of a pull transfer: it sees every packet and may drop, delay, repeat, change
//! and make some; it may have a receiver.
//!
//! It knows what the wire shows, names and digests too, and what its own receiver was told. It speaks to any
//! node by any of its ports. What the source and receivers say to each other is sealed: it can hold words up,
//! and end connections by words that it changes or puts in. It has connections of its own to the source.

use super::node::doubt;
use super::world::{Datagram, Later, World, keyring};
use crate::coverage as named;
use crate::{Coverage, Plant, Random};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use polycast_protocol::pull::{Digest, HOPS_MAX};
use polycast_simulator::packet::world::keys::Secret;
use polycast_simulator::packet::world::{Attack, keys};
use polycast_simulator::packet::{LinkId, Network, NodeId};
use polycast_types::{Duration, Handle, RangeSet, Time};
use polycast_wire::pull::{DIGEST_LEN, Follows, HEADER_LEN, Header, Hops, Kind, Packet};

/// Packets that it keeps, to send them again.
const KEPT_MAX: usize = 256;
/// One in this number of packets that the attacker sees is kept.
const KEEPS_ONE_IN: u64 = 4;
/// It holds something up for at most this long.
const DELAY_NS_MAX: u64 = 20_000_000;
/// One in this number of messages of the source and of receivers is disturbed.
const DISTURBS_ONE_IN: u64 = 8;
/// A segment that does not come is sent again after so long.
const SENT_AGAIN: Duration = Duration::from_millis(200);

/// Attacker with its knowledge and its tasks.
pub(in super::super) struct Attacker {
    pub(super) attack: Attack,
    pub(super) random: Random,
    kept: Vec<(NodeId, LinkId, Datagram)>,
    /// The secrets that its receiver was told, by transfer.
    pub(super) known: BTreeMap<Handle, Secret>,
    /// Packets that had been sent when its receiver was removed.
    sent_before: Option<RangeSet>,
}

impl Attacker {
    pub(in super::super) fn new(seed: u64, attack: Attack) -> Self {
        let random = Random::new(seed ^ 0xa77a_c4e5);
        Attacker { attack, random, kept: Vec::new(), known: BTreeMap::new(), sent_before: None }
    }

    /// Its receiver is taken out.
    pub(super) fn note_removed(&mut self, sent: &RangeSet) {
        self.sent_before = Some(sent.clone());
    }

    /// Returns the arrival time of a message on a connection; `None` where the attack ends the connection: a
    /// record that was changed does not open at the other end.
    pub(super) fn disturb(&mut self, at: Time, coverage: &mut Coverage) -> Option<Time> {
        if at >= self.attack.until || self.attack.acts == 0 || !self.random.one_in(DISTURBS_ONE_IN) {
            return Some(at);
        }
        let (name, at) = match self.random.below(8) {
            0 => (named::ATTACK_CHANGES_SEGMENT, None),
            1 => (named::ATTACK_DROPS_SEGMENT, Some(at + SENT_AGAIN)),
            // What comes twice, TCP takes once.
            2 => (named::ATTACK_REPEATS_SEGMENT, Some(at)),
            _ => {
                let held = Duration(self.random.magnitude(1_000..=DELAY_NS_MAX));
                (named::ATTACK_HOLDS_UP, Some(at + held))
            }
        };
        coverage.hit(name);
        at
    }

    fn keep(&mut self, packet: (NodeId, LinkId, Datagram)) {
        if self.kept.len() < KEPT_MAX {
            return self.kept.push(packet);
        }
        let at = self.random.below(KEPT_MAX as u64) as usize;
        self.kept[at] = packet;
    }

    fn seen(&mut self) -> Option<(NodeId, LinkId, Datagram)> {
        if self.kept.is_empty() {
            return None;
        }
        Some(self.random.pick(&self.kept).clone())
    }

    /// A packet that it has seen, with something else in it.
    fn changed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let Ok(Packet::Transfer(mut header, payload)) = Packet::parse(bytes) else { return bytes.to_vec() };
        let (mut payload, random) = (payload.to_vec(), &mut self.random);
        match random.below(8) {
            0 => {
                let mut hops = header.hops.bytes().to_vec();
                let at = random.below(hops.len() as u64) as usize;
                hops[at] = random.below(256) as u8;
                let position = random.below(hops.len() as u64 + 1) as u8;
                header.hops = Hops::new(&hops, position).unwrap_or(header.hops);
            }
            1 => header.sn = random.magnitude(0..=1 << 40),
            2 => garble(random, &mut payload),
            3 => match self.kept.first().and_then(|(_, _, other)| other.0.get(HEADER_LEN..)) {
                Some(other) if !payload.is_empty() => payload = other.to_vec(),
                _ => header.handle = Handle(random.below(4)),
            },
            4 => header.digest = Digest([random.below(256) as u8; DIGEST_LEN]),
            5 => {
                header.tree = header.tree.wrapping_add(random.below(3) as u8);
                header.kind = other_kind(random, header.kind);
            }
            // Bytes of its own under a name that fits them.
            6 if !payload.is_empty() => {
                garble(random, &mut payload);
                header.digest = fitting(&header, &payload);
            }
            _ => {
                let mut bytes = bytes.to_vec();
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
                return bytes;
            }
        }
        header.emit().into_iter().chain(payload).collect()
    }
}

fn garble(random: &mut Random, payload: &mut [u8]) {
    if !payload.is_empty() {
        let at = random.below(payload.len() as u64) as usize;
        payload[at] ^= random.within(1..=255) as u8;
    }
}

fn fitting(header: &Header, payload: &[u8]) -> Digest {
    Digest::of_hash(&keys::hash_of(header.handle, header.sn, payload), DIGEST_LEN)
}

/// An interest that is for the source alone, or is not; data that lead a tree elsewhere.
fn other_kind(random: &mut Random, kind: Kind) -> Kind {
    match kind {
        Kind::Interest { fresh } => Kind::Interest { fresh: !fresh },
        Kind::Data { again, .. } => {
            let next = Follows::Next(random.below(8) as u32);
            let place = Follows::At(random.magnitude(0..=u64::from(u32::MAX)) as u32);
            let follows = *random.pick(&[Follows::Open, next, Follows::End, place]);
            Kind::Data { again: again ^ random.one_in(2), follows }
        }
    }
}

impl World {
    /// The attacker begins.
    pub(in super::super) fn begin_attack(&mut self, net: &mut Network<Datagram>) {
        let Attacker { attack, random, .. } = &mut self.attacker;
        let times: Vec<Time> = (0..attack.acts).map(|_| random.time_below(attack.until)).collect();
        times.into_iter().for_each(|at| self.plan(net, at, Later::Act));
    }

    /// A packet is on its way to a node, and the attacker sees it; gives what comes there, if anything does.
    pub(super) fn tap(
        &mut self,
        net: &mut Network<Datagram>,
        node: NodeId,
        link: LinkId,
        packet: Datagram,
    ) -> Option<Datagram> {
        self.read_along(&packet.0);
        if net.now() >= self.attacker.attack.until {
            return Some(packet);
        }
        if self.attacker.random.one_in(KEEPS_ONE_IN) {
            self.attacker.keep((node, link, packet.clone()));
        }
        if self.attacker.attack.floods {
            self.flood(net, (node, link), &packet.0);
        }
        let [drop, delay, again, change] = self.attacker.attack.shares_ppm;
        let roll = self.attacker.random.below(1_000_000);
        if roll < drop {
            self.coverage.hit(named::ATTACK_DROPS);
            return None;
        }
        if roll < drop + delay + again {
            let repeats = roll >= drop + delay;
            self.coverage.hit(if repeats { named::ATTACK_REPEATS } else { named::ATTACK_DELAYS });
            let at = net.now() + Duration(self.attacker.random.magnitude(1_000..=DELAY_NS_MAX));
            self.plan(net, at, Later::Held { node, link, packet: packet.clone() });
            return repeats.then_some(packet);
        }
        if roll < drop + delay + again + change {
            let is_interest = packet.0.len() == HEADER_LEN;
            self.coverage.hit(if is_interest {
                named::ATTACK_CHANGES_INTEREST
            } else {
                named::ATTACK_CHANGES
            });
            return Some(Datagram(self.attacker.changed(&packet.0).into()));
        }
        Some(packet)
    }

    /// Checks whether a removed receiver can read packets that are sent for the first time since.
    fn read_along(&mut self, bytes: &[u8]) {
        let Some(before) = &self.attacker.sent_before else { return };
        let Ok(Packet::Transfer(header, payload)) = Packet::parse(bytes) else { return };
        let sn = header.sn;
        if payload.len() < 8 || sn >= self.group.blocks.packets() || before.contains(sn) {
            return;
        }
        let place = self.geometry.fragment_bytes(sn);
        let plain = &self.object[place.start as usize..place.end as usize];
        let reads = |secret: &Secret| {
            let keys = keyring(*secret, header.handle);
            let mut opened = payload.to_vec();
            keys.turn(sn, &mut opened);
            opened == plain
        };
        if self.attacker.known.values().any(reads) {
            self.breaches
                .push(format!("one who has left reads, and knows the key of packet {sn}, which is new"));
        }
    }

    /// Before data that a node looks into comes other data by the same port, where the attacker floods it.
    fn flood(&mut self, net: &mut Network<Datagram>, (node, link): (NodeId, LinkId), bytes: &[u8]) {
        if let Some(forged) = self.forged(bytes) {
            self.coverage.hit(named::ATTACK_FLOODS);
            self.come(net, node, link, Datagram(forged));
        }
    }

    /// Data that are at their end, with other bytes.
    fn forged(&mut self, bytes: &[u8]) -> Option<Arc<[u8]>> {
        let mut forged = bytes.to_vec();
        garble(&mut self.attacker.random, forged.get_mut(HEADER_LEN..)?);
        doubt(&forged).is_some().then(|| forged.into())
    }

    /// Its only packet.
    pub(super) fn forge_one(&mut self, net: &mut Network<Datagram>) {
        let kept = core::mem::take(&mut self.attacker.kept);
        let found =
            kept.iter().rev().find_map(|(node, link, seen)| Some((*node, *link, self.forged(&seen.0)?)));
        self.attacker.kept = kept;
        if let Some((node, link, forged)) = found {
            self.coverage.hit(named::ATTACK_FORGES_ONE);
            self.come(net, node, link, Datagram(forged));
        }
    }

    /// One thing that it may do at any time.
    pub(super) fn act(&mut self, net: &mut Network<Datagram>) {
        let is_inside = self.attacker.attack.insider.is_some();
        match self.attacker.random.below(10) {
            0..=2 => self.send_seen(net),
            3 => self.send_made(net),
            4 => self.call_without_permit(net),
            5 | 6 if is_inside => self.forge_as_member(net),
            7 if is_inside => self.claim(net),
            8 => self.ask_again(net),
            9 if is_inside && self.attacker.random.one_in(2) => self.speak_as(),
            9 if self.attacker.random.one_in(4) => self.cut_in(net),
            _ => self.send_seen(net),
        }
    }

    /// A connection of others gets its bytes in between, which do not open at the other end.
    fn cut_in(&mut self, net: &mut Network<Datagram>) {
        let to = self.attacker.random.below(self.hosts.len() as u64) as usize;
        self.coverage.hit(named::ATTACK_CUTS_IN);
        self.break_off(net, to);
    }

    /// It says HELLO on a connection of its own, in the name of a receiver that is another host. Its
    /// certificate has its own name.
    fn speak_as(&mut self) {
        let Some(insider) = self.attacker.attack.insider else { return };
        let victim = self.attacker.random.below(self.hosts.len() as u64) as usize;
        if victim == insider as usize {
            return;
        }
        self.coverage.hit(named::ATTACK_SPEAKS_AS);
        if self.plant == Some(Plant::SkipName) {
            self.breaches.push(format!("another host has the place of receiver {victim}"));
        }
    }

    /// A packet that it has seen comes again, as it was or changed, where it was or elsewhere.
    fn send_seen(&mut self, net: &mut Network<Datagram>) {
        let Some((mut node, mut link, mut packet)) = self.attacker.seen() else { return };
        let mut name = named::ATTACK_REPLAYS;
        let run = self.runs.last().map(|run| run.handle);
        if let Ok(Packet::Transfer(mut header, payload)) = Packet::parse(&packet.0)
            && let Some(handle) = run.filter(|handle| *handle != header.handle)
        {
            // As if it were of the transfer that runs.
            header.handle = handle;
            packet.0 = header.emit().iter().chain(payload).copied().collect();
            name = named::ATTACK_REPLAYS_EARLIER;
        } else if self.attacker.random.one_in(2) {
            packet.0 = self.attacker.changed(&packet.0).into();
            name = named::ATTACK_SENDS_CHANGED;
        }
        if self.attacker.random.one_in(3) {
            link = LinkId(self.attacker.random.below(net.link_count().into()) as u32);
            node = net.ends(link).1;
        }
        self.coverage.hit(name);
        self.come(net, node, link, packet);
    }

    /// Data that no source has sent, under a name that a node has asked for.
    fn send_made(&mut self, net: &mut Network<Datagram>) {
        let Some((node, link, seen)) = self.attacker.seen() else { return };
        let Ok(Packet::Transfer(header, _)) = Packet::parse(&seen.0) else { return };
        let random = &mut self.attacker.random;
        let len = random.below(u64::from(self.group.blocks.payload_bytes()) + 1);
        let payload: Vec<u8> = (0..len).map(|at| keys::mix(at, random.below(256)) as u8).collect();
        // At its end, so that the node looks into it.
        let hops = Hops::new(header.hops.bytes(), header.hops.bytes().len() as u8);
        let follows = Follows::Next(random.below(4) as u32);
        let kind = Kind::Data { again: random.one_in(2), follows };
        let header = Header { kind, hops: hops.unwrap_or(header.hops), ..header };
        self.coverage.hit(named::ATTACK_INJECTS);
        self.come(net, node, link, Datagram(header.emit().into_iter().chain(payload).collect()));
    }

    /// An interest for what was asked for already, or for anything.
    fn ask_again(&mut self, net: &mut Network<Datagram>) {
        let Some((node, link, seen)) = self.attacker.seen() else { return };
        let Ok(Packet::Transfer(header, _)) = Packet::parse(&seen.0) else { return };
        let random = &mut self.attacker.random;
        let mut header = Header { kind: Kind::Interest { fresh: random.one_in(2) }, ..header };
        if random.one_in(2) {
            header.sn = random.below(self.group.blocks.numbers() * 2);
            let hops: Vec<u8> =
                (0..random.within(1..=HOPS_MAX as u64)).map(|_| random.below(4) as u8).collect();
            header.hops = Hops::new(&hops, 0).unwrap_or(header.hops);
        }
        self.coverage.hit(named::ATTACK_ASKS_NODES);
        self.come(net, node, link, Datagram(header.emit()[..].into()));
    }

    /// A receiver is called by one whom the manager has not allowed it.
    fn call_without_permit(&mut self, net: &Network<Datagram>) {
        let to = self.attacker.random.below(self.hosts.len() as u64) as usize;
        let name = &self.hosts[to].name;
        let lets = self.manager.lets_attacker(&mut self.attacker.random, &self.allowed, net.now(), name);
        self.coverage.hit(named::ATTACK_CALLS);
        if lets || self.plant == Some(Plant::SkipPermit) {
            self.breaches.push(format!("receiver {to} takes part in what was not permitted"));
        }
    }

    /// A member with the keys seals other bytes, of the object or of a list, and names them as they are. It
    /// asks for them, so that nodes keep them.
    fn forge_as_member(&mut self, net: &mut Network<Datagram>) {
        let Some((node, link, seen)) = self.attacker.seen() else { return };
        let Ok(Packet::Transfer(header, _)) = Packet::parse(&seen.0) else { return };
        let Some(keys) =
            self.attacker.known.get(&header.handle).map(|secret| keyring(*secret, header.handle))
        else {
            return;
        };
        let (blocks, random) = (self.group.blocks, &mut self.attacker.random);
        let sn = random.below(blocks.numbers());
        let mut payload: Vec<u8> =
            (0..blocks.length_of(sn)).map(|at| keys::mix(at.into(), sn) as u8).collect();
        keys.turn(sn, &mut payload);
        let is_list = sn >= blocks.packets();
        let mut header = Header { sn, kind: Kind::Interest { fresh: false }, ..header };
        // In half of the cases it names what others ask for by that number, if it knows: then nothing fits.
        header.digest = fitting(&header, &payload);
        if let Some(digest) = self.runs.last().and_then(|run| run.digest(&blocks, sn))
            && random.one_in(2)
        {
            header.digest = digest;
        }
        self.coverage.hit(if is_list { named::ATTACK_MEMBER_LISTS } else { named::ATTACK_MEMBER_FORGES });
        let begins = Hops::new(header.hops.bytes(), header.hops.position().saturating_sub(1));
        header.hops = begins.unwrap_or(header.hops);
        self.come(net, node, link, Datagram(header.emit()[..].into()));
        let ends = Hops::new(header.hops.bytes(), header.hops.bytes().len() as u8);
        let kind = Kind::Data { again: false, follows: Follows::End };
        let header = Header { kind, hops: ends.unwrap_or(header.hops), ..header };
        let bytes: Vec<u8> = header.emit().into_iter().chain(payload).collect();
        self.come(net, node, link, Datagram(bytes.into()));
    }

    /// Its receiver says that it has the object, and proves nothing.
    fn claim(&mut self, net: &mut Network<Datagram>) {
        let (Some(insider), run) = (self.attacker.attack.insider, self.runs.len() - 1) else { return };
        let receiver = insider as usize;
        if self.hosts[receiver].removed || self.hosts[receiver].done_at.is_some() {
            return;
        }
        // None, or one of another time.
        let proof = if self.attacker.random.one_in(2) { [0; 32] } else { keys::salt_of(net.now().0) };
        self.coverage.hit(named::ATTACK_UNPROVEN);
        let (at, conn) = (net.now() + Duration(1), self.hosts[receiver].conn);
        self.plan(net, at, Later::Done { run, receiver, conn, proof });
    }
}
