//! An attacker in the network: it sees every packet and may drop, delay, repeat, change and make some; it may
//! have a receiver.
//!
//! It knows what the wire shows and what its own receiver was told, and nothing else: without the secret of a
//! fragment it can neither read nor make one ([`super::keys`]). What connections say is sealed for their two
//! ends, which are told apart as by certificates: it can hold them up and end them, and speaks on those of
//! its own receiver only.

use super::keys::{self, CONTENT_LEN, Keyring, Secret};
use super::lies::Lie;
use super::streams::StreamId;
use super::{Cluster, Datagram, Fragment, Token};
use crate::packet::Random;
use crate::packet::hooks::{Act, Event};
use crate::packet::{LinkId, Network, NodeId};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use polycast_types::{Duration, Handle, Time};
use polycast_wire::data::{EXTENSION_LEN_MAX, FRAGMENT_TAGS_LEN, FragmentHeader, HEADER_LEN, Header};

/// Packets that it keeps, to send them again.
const KEPT_MAX: usize = 256;
/// One in this number of packets that the attacker sees is kept.
const KEEPS_ONE_IN: u64 = 8;
/// It holds a packet back for at most this long.
const DELAY_NS_MAX: u64 = 20_000_000;
/// The number of the first timer of a packet that is held back; those before are of its acts.
const HELD_FROM: u32 = 1 << 30;
/// The timer of the only packet that it makes.
const ONE: u32 = HELD_FROM - 1;

/// The author of a packet: what really is, which no machine is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// The source of its transfer.
    Source,
    /// A member: it has the keys.
    Member,
    /// A host without them, or a fault.
    Stranger,
}

/// Settings of an attacker.
#[derive(Clone, Debug)]
pub struct Attack {
    /// Until when.
    pub until: Time,
    /// The receiver of the first transfer that is its own.
    pub insider: Option<u32>,
    /// Shares of passing packets, in parts of a million: dropped, held back, sent again later, changed.
    pub shares_ppm: [u64; 4],
    /// Number of acts of its own.
    pub acts: u32,
    /// For every packet of the data channel that comes to a receiver it makes another one that comes just
    /// before.
    pub floods: bool,
}

/// State that only the checks know, and the attacker.
pub(super) struct Guard {
    /// Content that sources have sealed: one content for a secret and a nonce.
    sealed: BTreeMap<(Secret, [u8; 12]), u64>,
    secrets: u64,
    /// Digests of the packets that members with the keys have made: one that is changed twice may be as it
    /// was.
    made_with_keys: BTreeSet<u64>,
    /// The receivers that were told a secret.
    told: BTreeMap<Secret, BTreeSet<u32>>,
    /// Connections on which the attacker speaks in the name of a receiver.
    pub(super) impostors: BTreeSet<StreamId>,
    /// False statements that the source sends to receivers next.
    pub(super) lies: BTreeMap<u32, Lie>,
    pub(super) attack: Attack,
    pub(super) random: Random,
    kept: Vec<(NodeId, LinkId, Datagram)>,
    held: BTreeMap<u32, (NodeId, LinkId, Datagram)>,
    holds: u32,
    /// The keys that its receiver was told, by the transfer's name on the wire.
    pub(super) known: BTreeMap<u32, Keyring>,
}

/// Fate of a packet that the attacker examines.
enum Fate {
    Passes,
    Stays,
    Becomes(Datagram),
}

impl Cluster {
    /// Packets are sealed from now on, and there is an attacker.
    pub fn set_attack(&mut self, net: &mut Network<Datagram>, seed: u64, attack: Attack) {
        let mut random = Random::new(seed ^ 0xa77a_c4e5);
        for act in 0..attack.acts {
            let at = random.time_below(attack.until);
            net.set_timer(NodeId::CONTROL, at, Token::Attack(act).pack());
        }
        self.guard = Some(Box::new(Guard {
            sealed: BTreeMap::new(),
            secrets: seed,
            made_with_keys: BTreeSet::new(),
            told: BTreeMap::new(),
            impostors: BTreeSet::new(),
            lies: BTreeMap::new(),
            attack,
            random,
            kept: Vec::new(),
            held: BTreeMap::new(),
            holds: 0,
            known: BTreeMap::new(),
        }));
    }

    /// One packet of a stranger will come to the first receiver after so long, and no more.
    pub fn forge_one(&mut self, net: &mut Network<Datagram>, after: Duration) {
        net.set_timer(NodeId::CONTROL, Time::ZERO + after, Token::Attack(ONE).pack());
    }

    /// A packet is on its way to a node, and the attacker sees it; gives what comes there, if anything does.
    pub(super) fn tap(
        &mut self,
        net: &mut Network<Datagram>,
        (node, link): (NodeId, LinkId),
        packet: Datagram,
    ) -> Option<Datagram> {
        let Some(guard) = self.guard.as_deref_mut().filter(|guard| net.now() < guard.attack.until) else {
            return Some(packet);
        };
        if guard.random.one_in(KEEPS_ONE_IN) {
            guard.keep((node, link, packet.clone()));
        }
        let (fate, act) = guard.judge(net, (node, link), &packet);
        act.into_iter().for_each(|act| self.hooks.see(Event::Attack(act)));
        match (fate, packet) {
            (Fate::Passes, packet) => Some(packet),
            (Fate::Stays, _) => None,
            // Its record does not open at the other end, which ends the connection.
            (Fate::Becomes(_), Datagram::Segment(segment)) => {
                self.break_both(net, segment.stream());
                None
            }
            (Fate::Becomes(changed), Datagram::Fragment(_) | Datagram::Probe(_)) => Some(changed),
        }
    }

    /// A packet that was held back goes on, or the attacker does something of its own.
    pub(super) fn attack(&mut self, net: &mut Network<Datagram>, number: u32) {
        let Some(guard) = self.guard.as_deref_mut() else { return };
        match number {
            ONE => return self.send_one(net),
            act if act < HELD_FROM => return self.act(net),
            _ => {}
        }
        if let Some((node, link, packet)) = guard.held.remove(&number) {
            self.deliver(net, node, link, packet);
        }
    }

    /// Before a packet of the data channel another one comes to the same socket, where the attacker floods
    /// it.
    pub(super) fn flood(&mut self, net: &mut Network<Datagram>, to: (u32, u32), fragment: &Fragment) {
        let Some(guard) = self.guard.as_deref_mut() else { return };
        if !guard.attack.floods || fragment.author != Author::Source || net.now() >= guard.attack.until {
            return;
        }
        let forged = guard.changed(fragment);
        self.hooks.see(Event::Attack(Act::Floods));
        self.take_in(net, to, forged);
    }

    /// A member with the keys has made a packet.
    pub(super) fn note_made(&mut self, datagram: &[u8]) {
        let guard = self.guard.as_deref_mut().expect("only sealed transfers have keys");
        guard.made_with_keys.insert(keys::digest(0, datagram));
    }

    /// A receiver has taken a packet for the source's: a member with the keys has made it.
    pub(super) fn check_suspect(&mut self, transfer: u32, receiver: u32) {
        let host = &mut self.push_mut(transfer).receivers[receiver as usize];
        let Some(datagram) = host.suspect.take() else { return };
        let digest = keys::digest(0, &datagram);
        if self.guard.as_deref().is_some_and(|guard| !guard.made_with_keys.contains(&digest)) {
            let header = Header::parse(&datagram).map(|(header, _)| header);
            self.breaches
                .push(format!("a packet that a stranger has made is taken for the source's: {header:?}"));
        }
    }

    /// A secret that was never there before.
    pub(super) fn fresh_secret(&mut self) -> Secret {
        let guard = self.guard.as_deref_mut().expect("only sealed transfers have secrets");
        guard.secrets = keys::mix(guard.secrets, 7);
        Secret(guard.secrets)
    }

    /// A receiver is told a secret.
    pub(super) fn note_told(&mut self, secret: Secret, receiver: u32) {
        let guard = self.guard.as_deref_mut().expect("only sealed transfers have secrets");
        guard.told.entry(secret).or_default().insert(receiver);
    }

    /// Returns true if a secret was given to a receiver.
    pub(super) fn was_told(&self, secret: Secret, receiver: u32) -> bool {
        let guard = self.guard.as_deref().expect("only sealed transfers have secrets");
        guard.told.get(&secret).is_some_and(|told| told.contains(&receiver))
    }

    /// A source seals a fragment: never two contents with one secret and nonce, nor, the first time, for one
    /// that was taken out.
    pub(super) fn check_sealed(&mut self, transfer: u32, sn: u64, content: u64) {
        let Some(run) = self.push_mut(transfer).source.run.as_deref_mut() else { return };
        let Some(secret) = run.keys.secret_of(sn) else { return };
        let (nonce, is_first) = (run.keys.nonce_of(sn), run.ever_sent.insert(sn..sn + 1) > 0);
        let members: BTreeSet<u32> =
            run.members.iter().filter_map(|stream| run.conns.get(stream)).map(|conn| conn.receiver).collect();
        let guard = self.guard.as_deref_mut().expect("only sealed transfers have secrets");
        let before = *guard.sealed.entry((secret, nonce)).or_insert(content);
        let told = guard.told.get(&secret).into_iter().flatten().copied();
        let outside: Vec<u32> = told.filter(|receiver| is_first && !members.contains(receiver)).collect();
        if before != content {
            self.breaches.push(format!("fragment {sn} is sealed with a nonce that has another content"));
        }
        let receivers = &self.push(transfer).receivers;
        let has_left = |receiver: &&u32| !receivers[**receiver as usize].is_done();
        if let Some(receiver) = outside.iter().find(has_left) {
            let what =
                format!("receiver {receiver} has left, and knows the key of fragment {sn}, which is new");
            self.breaches.push(what);
        }
    }
}

impl Guard {
    /// Decides the fate of a packet that passes.
    fn judge(
        &mut self,
        net: &mut Network<Datagram>,
        place: (NodeId, LinkId),
        packet: &Datagram,
    ) -> (Fate, Option<Act>) {
        let [drop, delay, again, change] = self.attack.shares_ppm;
        let roll = self.random.below(1_000_000);
        let of_data = matches!(packet, Datagram::Fragment(_));
        let name = |data, segment| Some(if of_data { data } else { segment });
        if roll < drop {
            (Fate::Stays, name(Act::Drops, Act::DropsSegment))
        } else if roll < drop + delay {
            self.hold(net, place, packet.clone());
            (Fate::Stays, name(Act::Delays, Act::DelaysSegment))
        } else if roll < drop + delay + again {
            self.hold(net, place, packet.clone());
            (Fate::Passes, name(Act::Repeats, Act::RepeatsSegment))
        } else if roll < drop + delay + again + change {
            match packet {
                Datagram::Fragment(fragment) => {
                    (Fate::Becomes(Datagram::Fragment(self.changed(fragment))), Some(Act::Changes))
                }
                // A connection that breaks costs more than a packet.
                segment if self.random.one_in(20) => {
                    (Fate::Becomes(segment.clone()), Some(Act::ChangesSegment))
                }
                Datagram::Segment(_) | Datagram::Probe(_) => (Fate::Passes, None),
            }
        } else {
            (Fate::Passes, None)
        }
    }

    fn keep(&mut self, packet: (NodeId, LinkId, Datagram)) {
        if self.kept.len() < KEPT_MAX {
            return self.kept.push(packet);
        }
        let at = self.random.below(KEPT_MAX as u64) as usize;
        self.kept[at] = packet;
    }

    fn hold(&mut self, net: &mut Network<Datagram>, (node, link): (NodeId, LinkId), packet: Datagram) {
        let number = HELD_FROM + self.holds;
        self.holds += 1;
        assert!(number < 1 << 31, "it holds fewer packets back");
        self.held.insert(number, (node, link, packet));
        let at = net.now() + Duration(self.random.magnitude(1_000..=DELAY_NS_MAX));
        net.set_timer(NodeId::CONTROL, at, Token::Attack(number).pack());
    }

    /// A fragment that it has seen, at any place.
    pub(super) fn seen(&mut self) -> Option<Fragment> {
        let start = self.random.below(KEPT_MAX as u64) as usize;
        let around = (0..self.kept.len()).map(|at| (at + start) % self.kept.len());
        let mut fragments = around.filter_map(|at| match &self.kept[at].2 {
            Datagram::Fragment(fragment) if fragment.datagram.is_some() => Some(fragment.clone()),
            _ => None,
        });
        fragments.next()
    }

    /// The packet with something else in it, by a host without keys. One that comes out as it was is still
    /// its source's.
    pub(super) fn changed(&mut self, fragment: &Fragment) -> Fragment {
        let Some(datagram) = &fragment.datagram else { return fragment.clone() };
        let mut bytes = datagram.to_vec();
        let header_len = bytes.len() - CONTENT_LEN;
        let other = self.seen();
        match self.random.below(6) {
            // The round, so that its position is far ahead.
            0 => {
                let round = *self.random.pick(&[1, 2, 1 << 16, u32::MAX]);
                bytes[4..8].copy_from_slice(&round.to_be_bytes());
            }
            // The number.
            1 => {
                let sn = self.random.below(1 << 12);
                bytes[16..24].copy_from_slice(&sn.to_be_bytes());
            }
            // What it carries.
            2 => bytes[header_len..].copy_from_slice(&self.random.below(u64::MAX).to_be_bytes()),
            // The bytes of another packet behind this header, or this packet for another transfer.
            3 => match other.and_then(|other| other.datagram) {
                Some(other) => bytes[header_len..].copy_from_slice(&other[other.len() - CONTENT_LEN..]),
                None => bytes[8..16].copy_from_slice(&self.random.below(64).to_be_bytes()),
            },
            // Tags of a key of its own.
            4 => {
                let mut own = Keyring::default();
                own.learn(
                    Arc::new(core::iter::once(0..u64::MAX).collect()),
                    Secret(self.random.below(u64::MAX)),
                );
                if let Some(packet) = retagged(&own, &bytes, |_| {}, 0) {
                    bytes = packet.to_vec();
                }
            }
            _ => {
                let at = self.random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.random.below(8);
            }
        }
        self.made(fragment, bytes)
    }

    /// A packet of these bytes on the way of another one, by a host without keys.
    pub(super) fn made(&self, like: &Fragment, bytes: Vec<u8>) -> Fragment {
        let same = like.datagram.as_deref() == Some(&bytes[..]);
        let author = if same { like.author } else { Author::Stranger };
        Fragment { author, datagram: Some(bytes.into()), ..like.clone() }
    }
}

/// A packet of a fragment with a header that is changed so, and this content, with tags of these keys; `None`
/// where it is none of a fragment, or the keys are not known.
pub(super) fn retagged(
    keys: &Keyring,
    bytes: &[u8],
    change: impl FnOnce(&mut FragmentHeader),
    content: u64,
) -> Option<Arc<[u8]>> {
    let Ok((Header::Fragment(mut header), _)) = Header::parse(bytes) else { return None };
    change(&mut header);
    if header.sn > 0 {
        header.object_len = None;
    }
    keys.packet(&Header::Fragment(header), &[header.sn], content)
}

/// A packet that no source has sent, with tags that mean nothing.
pub(super) fn from_nothing(handle: u32, round: u32, sn: u64, content: u64) -> Vec<u8> {
    let handle = Handle(handle.into());
    let header = FragmentHeader { handle, round, sn, flags: 0, object_len: None, sealed: true };
    let mut buffer = [0; HEADER_LEN + EXTENSION_LEN_MAX];
    let len = Header::Fragment(header).emit(&mut buffer);
    assert!(len == HEADER_LEN + FRAGMENT_TAGS_LEN, "a fragment's header with its tags");
    buffer[..len].iter().copied().chain(content.to_be_bytes()).collect()
}
