//! A host that receives by push: its end of the session, `protocol::push::Receiver`, and what it has
//! received.
//!
//! In place of bytes there are content ids: a number a fragment, which a fault of a link changes and which a
//! coded patch carries as the XOR of its fragments'. So wrong and stale bytes are seen here as a hash would
//! see them. The checks of this file stand outside the machine: a breach is kept as a sentence.

use super::attacker::Author;
use super::keys::{CONTENT_LEN, Keyring, Secret, number, proof_of};
use super::mesh::Exchange;
use super::pages::Pages;
use super::racks::Rack;
use super::streams::{self, StreamId};
use super::{Alarm, Fragment};
use crate::packet::NodeId;
use crate::packet::hooks::{Event, Hooks, Step};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use polycast_protocol::push::coded::{Coded, Decodable};
use polycast_protocol::push::overlay::{Requests, UpstreamsInput};
use polycast_protocol::push::{Geometry, PeerId, Receiver, ReceiverConfig, ReceiverInput, ReceiverOutput};
use polycast_protocol::reuse::{Act, Input as ReuseInput, Reuse, Version};
use polycast_protocol::session::{End, Guest};
use polycast_types::{Duration, RangeSet, Time};
use polycast_wire::control::{Control, Hash, Salt, proven_group};
use polycast_wire::data::Header;
use polycast_wire::seal::{self, PacketKeys};

/// The content id of a fragment of an object.
#[must_use]
pub fn content_of(object: u64, sn: u64) -> u64 {
    let mixed = (object ^ sn.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 29
}

/// Phase of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has not joined, or has crashed.
    Absent,
    /// It has said HELLO.
    Joining,
    /// Its machine runs.
    Running,
    /// It has the whole object.
    Done,
    /// The transfer gave it up, or it lost the source.
    Failed,
}

/// Packet that came in by the data channel and waits in the socket.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) arrived: Time,
    pub(super) fragment: Fragment,
    pub(super) bytes: u64,
}

/// A peer that fetches from this host.
pub(super) struct Serving {
    pub(super) stream: StreamId,
    /// The secret of its ticket, where it needed one.
    pub(super) secret: Option<Secret>,
    pub(super) part: Part,
}

/// Groups that a fetching peer gets.
#[derive(Clone, Debug)]
pub(super) enum Part {
    /// Groups that the peer requests.
    Asked(Requests),
    /// Groups that its source gives it.
    Given(PeerId),
}

/// Problem of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Its agent does not let it join.
    Unwilling,
    /// It has no room for the object.
    Full,
    /// It speaks another version of the protocol.
    Foreign,
    /// It says that it has the object as soon as it has joined.
    Lying,
}

/// One receiver of a push transfer.
pub struct PushReceiver {
    pub(super) node: NodeId,
    pub(super) name: String,
    pub(super) object: u64,
    pub(super) geometry: Geometry,
    pub(super) phase: Phase,
    /// Set if the transfer is for the receiver.
    pub(super) wanted: bool,
    /// Set while its host is down after a crash.
    pub(super) down: bool,
    pub(super) mood: Option<Mood>,
    /// Its end of the session, and how earlier ones have ended.
    pub(super) guest: Option<Guest>,
    pub(super) ends: Vec<End>,
    pub(super) machine: Option<Receiver>,
    /// Set once it has reported the groups that it holds, and takes packets.
    pub(super) begun: bool,
    /// The transfer that it takes packets of, and the data channel.
    pub(super) handle: u32,
    pub(super) channel: u32,
    pub(super) rack: Rack,
    pub(super) hooks: Hooks,
    pub(super) control: Option<StreamId>,
    /// The candidates among which it chooses.
    pub(super) exchange: Option<Exchange>,
    pub(super) serving: Vec<Serving>,
    pub(super) alarm: Alarm,
    /// The socket: what waits, its bytes and room, and the time that one packet takes.
    pub(super) socket: VecDeque<Waiting>,
    pub(super) socket_bytes: u64,
    pub(super) window_bytes: u64,
    pub(super) service: Duration,
    /// It does nothing until then.
    pub(super) held_until: Time,
    pub(super) is_held: bool,
    /// Ends of connections on which something has come meanwhile.
    pub(super) unread: Vec<(StreamId, streams::End)>,
    pub(super) overflows: u64,
    /// Bytes of the data channel that the link to its host has brought.
    pub(super) carried_bytes: u64,
    pub(super) finished_at: Option<Time>,
    /// Packets of the stream that held nothing new.
    pub(super) duplicates: u64,
    /// Groups that are stored: groups that were verified survive a crash.
    pub(super) intact: BTreeSet<u64>,
    /// The same in the order in which they came.
    pub(super) order: Vec<u64>,
    pub(super) verified_bytes: u64,
    kept: RangeSet,
    /// Fragments that came over TCP.
    sent: RangeSet,
    /// Kept once, also if taken back since.
    ever: RangeSet,
    /// Content that differs from the object's, by (group, fragment).
    wrong: BTreeMap<(u64, u64), u64>,
    /// The fragments that were handed to the machine last, and their content where it is one.
    last: Option<(u64, u64)>,
    coded: Coded<u64>,
    /// An older version that is here: its groups that are not the object's.
    pub(super) older: Option<BTreeSet<u64>>,
    /// The pages of that version, where an object that comes may take them.
    pub(super) pages: Option<Pages>,
    looking: Option<Reuse>,
    /// Set if an earlier attempt has left data that is checked.
    rest: bool,
    pub(super) breaches: Vec<String>,
    /// Keys that packets are sealed with, and the number of packets that were not.
    pub(super) keys: Keyring,
    forged: u64,
    /// Salt from WELCOME: it selects the bytes that are shown in the end.
    pub(super) salt: Salt,
    /// A packet that was taken for the source's, and that a stranger has made or changed.
    pub(super) suspect: Option<Arc<[u8]>>,
}

/// Action that the host is to perform for its machine.
pub(super) enum Wish {
    /// Send a frame to the source; some may go by way of the rack's speaker.
    Say(Control<'static>),
    /// Send a frame to the source itself.
    Repeat(Control<'static>),
    /// A group was verified: serve it to those who fetch.
    Verified,
    /// The object is whole.
    Completed,
}

impl PushReceiver {
    pub(super) fn new(
        node: NodeId,
        name: String,
        object: u64,
        geometry: Geometry,
        (window_bytes, service): (u64, Duration),
    ) -> Self {
        PushReceiver {
            node,
            name,
            object,
            geometry,
            phase: Phase::Absent,
            wanted: true,
            down: false,
            mood: None,
            guest: None,
            ends: Vec::new(),
            machine: None,
            begun: false,
            handle: 0,
            channel: 0,
            rack: Rack::Alone,
            hooks: Hooks::default(),
            control: None,
            exchange: None,
            serving: Vec::new(),
            alarm: Alarm::default(),
            socket: VecDeque::new(),
            socket_bytes: 0,
            window_bytes,
            service,
            held_until: Time::ZERO,
            is_held: false,
            unread: Vec::new(),
            overflows: 0,
            carried_bytes: 0,
            finished_at: None,
            duplicates: 0,
            intact: BTreeSet::new(),
            order: Vec::new(),
            verified_bytes: 0,
            kept: RangeSet::new(),
            sent: RangeSet::new(),
            ever: RangeSet::new(),
            wrong: BTreeMap::new(),
            last: None,
            coded: Coded::default(),
            older: None,
            pages: None,
            looking: None,
            rest: false,
            breaches: Vec::new(),
            keys: Keyring::default(),
            forged: 0,
            salt: [0; 32],
            suspect: None,
        }
    }

    /// Its host.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the phase of the receiver.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns true if the transfer is for it: it was neither left out nor removed.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Returns the problem of its host, if any.
    #[must_use]
    pub fn mood(&self) -> Option<Mood> {
        self.mood
    }

    /// Returns how its finished sessions have ended, without those that a crash has ended.
    #[must_use]
    pub fn ends(&self) -> &[End] {
        &self.ends
    }

    /// Returns the time at which it had the whole object.
    #[must_use]
    pub fn finished_at(&self) -> Option<Time> {
        self.finished_at
    }

    /// Packets of the data channel that its socket had no room for.
    #[must_use]
    pub fn overflows(&self) -> u64 {
        self.overflows
    }

    /// Bytes of the transfer's data channel that the link to its host has brought, whatever came of them:
    /// what several transfers have of one link is never more than the link carries.
    #[must_use]
    pub fn carried_bytes(&self) -> u64 {
        self.carried_bytes
    }

    /// Packets of the data channel that held nothing new.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Breaches of what must always hold, one sentence each.
    #[must_use]
    pub fn breaches(&self) -> &[String] {
        &self.breaches
    }

    /// Checks that a receiver that is done has the exact object.
    ///
    /// # Errors
    /// The content that it has in its place.
    pub fn check_object(&self) -> Result<(), String> {
        let wrong = self.wrong.keys().find(|(group, _)| self.intact.contains(group));
        if let Some((group, sn)) = wrong {
            let node = self.node.0;
            return Err(format!("receiver at node {node}: group {group} has other content in fragment {sn}"));
        }
        let groups = self.intact.len() as u64;
        if self.phase == Phase::Done && groups != self.geometry.groups() {
            return Err(format!("receiver at node {} is done with {groups} groups", self.node.0));
        }
        Ok(())
    }

    /// There is room for the object: a machine that waits until what is stored has been checked.
    pub(super) fn prepare(&mut self, now: Time, outer_len: u32) {
        self.machine = Some(Receiver::new(ReceiverConfig::new(self.geometry, self.window_bytes, outer_len)));
        let len = self.geometry.object_len;
        let taken_earlier = self.pages.as_ref().is_some_and(Pages::are_taken);
        self.rest = taken_earlier || !self.intact.is_empty();
        let rest = self.rest.then_some(Version { len, whole: true, shifts: false });
        if !self.rest {
            self.take_pages(now);
        }
        let older = self.has_older().then_some(Version { len, whole: false, shifts: false });
        let versions: Vec<Version> = rest.into_iter().chain(older).collect();
        self.looking = (!versions.is_empty()).then(|| Reuse::new(self.geometry, &versions));
        self.kept.clear();
        self.sent.clear();
        self.ever.clear();
        self.wrong.clear();
    }

    /// Lets the object that comes take the pages of the older version, where no process has it open.
    fn take_pages(&mut self, now: Time) {
        let Some(pages) = self.pages.as_mut().filter(|pages| pages.have_a_name()) else { return };
        self.hooks.see(Event::Pages(pages.take(now, &self.hooks)));
    }

    /// Returns true if the older version can be checked: it has its name, or the part file begins with it.
    fn has_older(&self) -> bool {
        let begins_there = |pages: &Pages| pages.have_a_name() || (pages.are_taken() && !self.rest);
        self.older.is_some() && self.pages.as_ref().is_none_or(begins_there)
    }

    /// Notes that a group's place in the part file is written over.
    fn write(&mut self, now: Time, group: u64) {
        if self.pages.as_mut().is_some_and(|pages| pages.write(now, group)) {
            self.breach(&format!(
                "group {group} of an older version is written over that a process has open"
            ));
        }
    }

    /// Returns true if something here has to be checked first.
    pub(super) fn looks(&self) -> bool {
        self.looking.is_some()
    }

    /// So many hashes are known: looks at what an earlier try has left and at the older version; gives
    /// whether that is all.
    pub(super) fn look(&mut self, now: Time, known: u64) -> bool {
        let Some(mut looking) = self.looking.take() else { return false };
        looking.handle(ReuseInput::Known(known));
        // A rest comes first, where there is one.
        let rest = usize::from(self.rest);
        while let Some(act) = looking.poll() {
            let Act::Look(look) = act else { unreachable!("versions here do not shift") };
            let group = look.group;
            let differs = self.older.as_ref().is_some_and(|older| older.contains(&group));
            let same = match look.version < rest {
                true => {
                    let still = self.pages.as_ref().is_some_and(|pages| pages.still_have(group));
                    self.intact.contains(&group) || (still && !differs)
                }
                false => !differs || self.hooks.leaves_out(Step::CheckOlder),
            };
            looking.handle(ReuseInput::Looked { look, same });
            if same {
                if look.version >= rest && differs {
                    for sn in self.geometry.fragments_of_group(group) {
                        self.wrong.insert((group, sn), !content_of(self.object, sn));
                    }
                }
                self.verify(now, group);
                self.handle(now, ReceiverInput::Held { group });
                self.hold(group);
            }
        }
        let done = looking.is_done();
        self.looking = (!done).then_some(looking);
        done
    }

    /// Tells the machine something, if there is one.
    pub(super) fn handle(&mut self, now: Time, input: ReceiverInput<'_>) {
        let Some(machine) = self.machine.as_mut() else { return };
        self.hooks.see(Event::Receiver(&input));
        machine.handle(now, input);
    }

    /// The machines and all that is not stored are lost.
    pub(super) fn forget(&mut self, phase: Phase) {
        (self.machine, self.guest, self.begun) = (None, None, false);
        self.looking = None;
        (self.control, self.rack) = (None, Rack::Alone);
        self.exchange = None;
        self.keys = Keyring::default();
        self.coded.clear();
        self.socket.clear();
        self.socket_bytes = 0;
        self.serving.clear();
        if self.phase != Phase::Done {
            self.phase = phase;
        }
    }

    /// Returns true if it takes packets of the data channel.
    pub(super) fn takes_packets(&self) -> bool {
        self.begun && self.phase == Phase::Running
    }

    /// Returns true once it is done with the object.
    pub(super) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Returns the number of packets that were not the source's.
    #[must_use]
    pub fn forged(&self) -> u64 {
        self.forged
    }

    /// A packet of the data channel is taken out of the socket; gives whether it is the source's.
    pub(super) fn fragment(&mut self, now: Time, waiting: &Waiting) -> bool {
        if self.machine.is_none() || !self.takes_packets() {
            return true;
        }
        if waiting.fragment.datagram.is_none() {
            self.take(now, waiting.arrived, &waiting.fragment);
            return true;
        }
        let opened = self.opened(&waiting.fragment);
        match &opened {
            Some(fragment) => self.take(now, waiting.arrived, fragment),
            None => self.forged += 1,
        }
        opened.is_some()
    }

    /// A sealed packet as it says to be, if a member with the keys says so.
    fn opened(&mut self, fragment: &Fragment) -> Option<Fragment> {
        let mut bytes = fragment.datagram.as_deref()?.to_vec();
        let (header, len) = Header::parse(&bytes).ok()?;
        let is_ours = match (&header, header.content_tag_in(&bytes, len)) {
            (Header::Fragment(header), Some(tag)) if self.hooks.leaves_out(Step::CheckHeader) => {
                self.keys.open(header.sn, &mut bytes[len..], &tag)
            }
            _ => seal::admit(&self.keys, &header, &mut bytes, len),
        };
        if !is_ours || bytes.len() != len + CONTENT_LEN {
            return None;
        }
        if fragment.author == Author::Stranger {
            self.suspect = fragment.datagram.clone();
        }
        let content = number(&bytes[len..]);
        let fragments = self.geometry.fragments();
        match header {
            Header::Fragment(header)
                if u64::from(self.handle) == header.handle.0 && header.sn < fragments =>
            {
                let (round, sn, flags) = (header.round, header.sn, header.flags);
                Some(Fragment { round, sn, flags, content, coded: None, ..fragment.clone() })
            }
            Header::Coded(header) if u64::from(self.handle) == header.handle.0 => {
                // What is here is open, and the patch is of fragments as they are sent.
                let mut open = content;
                for sn in header.sns() {
                    open ^= self.keys.stream(*sn)?;
                }
                Some(Fragment { content: open, coded: Some(header.sns().into()), ..fragment.clone() })
            }
            _ => None,
        }
    }

    fn take(&mut self, now: Time, arrived: Time, fragment: &Fragment) {
        let Some(machine) = self.machine.as_ref() else { return };
        let Fragment { round, sn, flags, content, ref coded, .. } = *fragment;
        let Some(sns) = coded else {
            self.last = Some((sn, content));
            self.duplicates += u64::from(sn < self.geometry.fragments() && machine.missing_of(&[sn]) == 0);
            self.handle(now, ReceiverInput::Data { round, sn, count: 1, flags, arrived });
            return;
        };
        self.duplicates += u64::from(machine.missing_of(sns) == 0);
        if let Some(sn) = self.coded.came(machine, sns, || content) {
            self.decode(now, sn, sns, content);
        }
    }

    /// Returns the proof that the object is here.
    fn proof(&self) -> Hash {
        let group = proven_group(&self.salt, self.geometry.groups());
        proof_of(&self.salt, self.geometry.fragments_of_group(group).map(|sn| self.stored(sn)))
    }

    /// Takes the missing fragment out of a coded patch.
    fn decode(&mut self, now: Time, missing: u64, sns: &[u64], content: u64) {
        let others = sns.iter().filter(|sn| **sn != missing);
        let content = others.fold(content, |content, sn| content ^ self.stored(*sn));
        self.last = Some((missing, content));
        self.handle(now, ReceiverInput::Patched { sn: missing, count: 1 });
    }

    /// Tries an earlier coded patch again that lacked too much then; false if none can be of use now.
    pub(super) fn decode_earlier(&mut self, now: Time) -> bool {
        let Some(machine) = &self.machine else { return false };
        let Some(Decodable { sn, sns, payload }) = self.coded.next_decodable(machine) else { return false };
        self.decode(now, sn, &sns, payload);
        true
    }

    /// Content of a fragment that is kept.
    fn stored(&self, sn: u64) -> u64 {
        let mut groups = self.geometry.groups_of_fragments(sn..sn + 1);
        let wrong = groups.find_map(|group| self.wrong.get(&(group, sn)));
        wrong.copied().unwrap_or_else(|| content_of(self.object, sn))
    }

    /// Fragments came over TCP, so they are as the source has them.
    pub(super) fn patch_data(&mut self, now: Time, sns: core::ops::Range<u64>) {
        self.last = None;
        let count = (sns.end - sns.start) as u32;
        if self.takes_packets() {
            self.sent.insert(sns.clone());
            self.handle(now, ReceiverInput::Sent { sn: sns.start, count });
        }
    }

    /// A group came from a candidate.
    pub(super) fn fetched(&mut self, now: Time, group: u64) {
        let lacks = self.machine.as_ref().is_some_and(|machine| !machine.is_verified(group));
        if lacks && self.takes_packets() {
            self.handle(now, ReceiverInput::Fetched { group });
            self.write(now, group);
            self.verify(now, group);
            self.hold(group);
            // The verified group is stored in place of what came before.
            for sn in self.geometry.fragments_of_group(group) {
                self.wrong.remove(&(group, sn));
            }
        }
    }

    /// A group is stored for good; whether it was not before.
    fn verify(&mut self, now: Time, group: u64) -> bool {
        let new = self.intact.insert(group);
        if new {
            self.order.push(group);
        }
        self.tell_upstreams(now, UpstreamsInput::Verified(group));
        let bytes = self.geometry.group_bytes(group);
        self.verified_bytes += if new { bytes.end - bytes.start } else { 0 };
        new
    }

    /// A stored group's fragments are there, as far as they lie in stored groups entirely.
    fn hold(&mut self, group: u64) {
        for sn in self.geometry.fragments_of_group(group) {
            let mut groups = self.geometry.groups_of_fragments(sn..sn + 1);
            if groups.all(|group| self.intact.contains(&group)) {
                self.kept.insert(sn..sn + 1);
                self.ever.insert(sn..sn + 1);
            }
        }
    }

    /// Polls the machine once and does what concerns the store; the rest is for the host to do.
    pub(super) fn poll(&mut self, now: Time) -> Option<Option<Wish>> {
        let output = self.machine.as_mut()?.poll(now)?;
        Some(match output {
            ReceiverOutput::Keep { sn, count } => {
                self.keep(now, sn..sn + u64::from(count));
                None
            }
            ReceiverOutput::Check { group } => {
                let intact = self.check(now, group);
                self.handle(now, ReceiverInput::Checked { group, intact });
                intact.then_some(Wish::Verified)
            }
            ReceiverOutput::Control(control) => Some(Wish::Say(control)),
            ReceiverOutput::Repeat(control) => Some(Wish::Repeat(control)),
            ReceiverOutput::Complete => {
                if self.intact.len() as u64 != self.geometry.groups() || self.phase == Phase::Done {
                    self.breach("completed without all groups, or twice");
                }
                self.phase = Phase::Done;
                self.finished_at = Some(now);
                let proof = self.proof();
                self.handle(now, ReceiverInput::Committed { proof });
                Some(Wish::Completed)
            }
        })
    }

    fn keep(&mut self, now: Time, run: core::ops::Range<u64>) {
        self.ever.insert(run.clone());
        // What the source itself sends takes the place of what came on the data channel.
        if self.kept.insert(run.clone()) != run.end - run.start && !self.sent.covers(run.clone()) {
            self.breach(&format!("kept fragments {run:?}, some of them for the second time"));
        }
        for sn in run {
            let right = content_of(self.object, sn);
            let content = match self.last {
                Some((last, content)) if last == sn => content,
                Some(_) => {
                    self.breach(&format!("kept fragment {sn}, which was not what came last"));
                    right
                }
                None => right,
            };
            for group in self.geometry.groups_of_fragments(sn..sn + 1) {
                // A verified group is never written again.
                if self.intact.contains(&group) {
                    continue;
                }
                self.write(now, group);
                if content == right {
                    self.wrong.remove(&(group, sn));
                } else {
                    self.wrong.insert((group, sn), content);
                }
            }
        }
    }

    /// Checks a group against its hash.
    fn check(&mut self, now: Time, group: u64) -> bool {
        let sns = self.geometry.fragments_of_group(group);
        // A fragment across two groups may have been asked for again on behalf of the other one.
        let across = |sn: u64| self.geometry.groups_of_fragments(sn..sn + 1).count() > 1;
        let there = |sn: u64| self.kept.contains(sn) || (across(sn) && self.ever.contains(sn));
        if !sns.clone().all(there) {
            self.breach(&format!("group {group} was checked before it was whole"));
        }
        if !self.hooks.leaves_out(Step::CheckGroup)
            && sns.clone().any(|sn| self.wrong.contains_key(&(group, sn)))
        {
            // What came from the source itself is right, and stays.
            for sn in sns.filter(|sn| !self.sent.contains(*sn)) {
                self.kept.remove(sn..sn + 1);
                self.wrong.remove(&(group, sn));
            }
            return false;
        }
        if !self.verify(now, group) {
            self.breach(&format!("group {group} was verified twice"));
        }
        true
    }

    pub(super) fn breach(&mut self, what: &str) {
        self.breaches.push(format!("receiver at node {}: {what}", self.node.0));
    }
}
