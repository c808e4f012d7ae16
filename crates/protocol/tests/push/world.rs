//! A small world in virtual time: one sender, its receivers, a lossy data channel, reliable control.
//!
//! Checkers live here, outside the machines: every receiver that lives must end with every fragment
//! kept and every hash group checked intact, and no `Keep` may name a fragment it holds already.

mod channel;

use crate::liar::Liar;
use crate::settings::{HANDLE, feedback, receiver};
use crate::stranger::{Strange, Stranger};
use crate::watch::Watch;
pub(crate) use channel::OwnPath;
use polycast_protocol::push::feedback::{Feedback, FeedbackInput, FeedbackOutput};
use polycast_protocol::push::{
    Geometry, PeerId, Receiver, ReceiverInput, ReceiverOutput, Sender, SenderConfig, SenderInput,
    SenderOutput,
};
use polycast_protocol::session::{
    Expected, Gone, Goodbye, Guest, GuestConfig, GuestId, GuestInput, GuestOutput, Roster, RosterConfig,
    RosterInput, RosterOutput, Verdicts,
};
use polycast_types::{Duration, Location, ObjectId, RangeSet, Time};
use polycast_wire::control::{Control, Form, Welcome};
use polycast_wire::data::{FLAG_ATTEMPT, FLAG_PATCH, FLAG_REPORT};
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, BTreeSet};

/// Faults of the data channel; parts of 1,000.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub loss: u64,
    pub duplication: u64,
    pub reordering: u64,
    /// Hash groups that arrive with wrong bytes the first time.
    pub corruption: u64,
}

#[derive(Clone, Debug)]
enum Event {
    Data { peer: u32, round: u32, sn: u64, flags: u8, arrived: Time, forged: bool },
    Coded { peer: u32, sns: Vec<u64> },
    ToReceiver { peer: u32, frame: Vec<u8> },
    ToSender { peer: u32, frame: Vec<u8> },
    ToSpeaker { speaker: u32, member: u32, frame: Vec<u8> },
    SpeakerGone { speaker: u32, member: u32 },
    PatchData { peer: u32, sns: std::ops::Range<u64> },
    Fetched { peer: u32, group: u64 },
    Join { peer: u32 },
    Crash { peer: u32 },
    NextSession,
    Lie { peer: u32 },
    Strange,
}

pub(crate) struct Node {
    /// Its end of the session; `None` once that is over.
    guest: Option<Guest>,
    pub machine: Receiver,
    pub kept: RangeSet,
    /// Fragments kept at any time.
    pub ever: RangeSet,
    /// Fragments that are kept with wrong bytes, and whether what is being kept has wrong bytes.
    pub wrong: RangeSet,
    forged: bool,
    /// Fragments that came by TCP.
    pub sent: RangeSet,
    pub intact: BTreeSet<u64>,
    pub spoiled: BTreeSet<u64>,
    pub done: bool,
    /// Set if it fetches over TCP.
    pub over_tcp: bool,
    /// Bytes of data-channel packets dropped because its socket was full.
    pub overflow: u64,
    pub reached_by_multicast: bool,
    /// The receiver that speaks for it.
    pub speaker: Option<u32>,
    /// Feedback machine, if it speaks for others.
    pub feedback: Option<Feedback>,
    busy_until: Time,
    queued: u64,
}

pub(crate) struct World {
    roster: Roster,
    pub sender: Sender,
    pub nodes: BTreeMap<u32, Node>,
    pub now: Time,
    pub settled: BTreeMap<u32, Option<String>>,
    pub finished_at: Option<Time>,
    pub data_packets: u64,
    /// The most packets of the stream that left in one go.
    pub longest_burst: u32,
    pub patch_packets: u64,
    pub unicast_fragments: u64,
    pub geometry: Geometry,
    pub faults: Faults,
    /// Time a receiver takes for one packet; its socket holds `window` packets.
    pub service: BTreeMap<u32, Duration>,
    pub window_packets: u64,
    joined: usize,
    events: BTreeMap<(Time, u64), Event>,
    /// Time when each machine asks to be polled again; the sender is `None`.
    wakes: BTreeMap<Option<u32>, Time>,
    sequence: u64,
    rng: Pcg64Mcg,
    channel_free_at: Time,
    /// Time that one packet takes on the channel.
    pub packet_time: Duration,
    /// The longest time that a packet has waited for the channel.
    pub longest_wait: Duration,
    /// Sessions that were followed by another one, how long that one was waited for, and its fragments.
    pub sessions: u64,
    pub between_sessions: Duration,
    pub session_fragments: u64,
    frozen: BTreeSet<u32>,
    held: BTreeMap<u32, BTreeSet<u64>>,
    /// PROGRESS and requests that the sender has heard.
    pub heard: u64,
    /// Receivers that share a rack: numbers one after the other.
    rack_size: u32,
    /// The paths of single receivers that are narrower than the channel.
    pub paths: BTreeMap<u32, OwnPath>,
    /// Receivers whose hosts do something else until then.
    pauses: BTreeMap<u32, Time>,
    /// Packets that the sockets of single receivers hold, where these are others than `window_packets`.
    pub windows: BTreeMap<u32, u64>,
    /// Time that a group takes on the connections of a receiver that fetches over TCP, if not a millisecond.
    pub group_time: BTreeMap<u32, Duration>,
    /// The sender's host does something else until then.
    pub busy_until: Time,
    /// Receivers that say anything instead of the truth.
    liars: BTreeMap<u32, Liar>,
    pub watch: Watch,
    /// The host that sends to the data channel without being asked.
    stranger: Option<Stranger>,
}

const DELAY: Duration = Duration::from_micros(50);
/// Stands for receivers that may still come.
const ABSENT: &str = "absent";

fn bytes(control: &Control<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    control.emit(&mut frame);
    frame
}

impl World {
    pub(crate) fn new(seed: u64, receivers: u32, config: SenderConfig, faults: Faults) -> Self {
        let geometry = config.geometry;
        let watch = Watch::new(geometry, config.rate);
        let expected = Expected::Named((0..receivers).map(|peer| peer.to_string()).collect());
        let roster = RosterConfig {
            join_timeout: Duration::from_secs(3_600),
            stall_timeout: config.stall_timeout,
            ..RosterConfig::new(config.handle, expected, geometry.object_len, Verdicts::Sender)
        };
        let mut world = World {
            roster: Roster::new(Time(1), roster),
            sender: Sender::new(config),
            nodes: BTreeMap::new(),
            now: Time(1),
            settled: BTreeMap::new(),
            finished_at: None,
            data_packets: 0,
            longest_burst: 0,
            patch_packets: 0,
            unicast_fragments: 0,
            geometry,
            faults,
            service: BTreeMap::new(),
            window_packets: 256,
            joined: 0,
            events: BTreeMap::new(),
            wakes: BTreeMap::new(),
            sequence: 0,
            rng: Pcg64Mcg::new(u128::from(seed) << 1 | 1),
            channel_free_at: Time::ZERO,
            packet_time: Duration::from_micros(8),
            longest_wait: Duration::ZERO,
            sessions: 0,
            between_sessions: Duration::from_millis(700),
            session_fragments: u64::MAX,
            frozen: BTreeSet::new(),
            held: BTreeMap::new(),
            heard: 0,
            rack_size: 1,
            windows: BTreeMap::new(),
            paths: BTreeMap::new(),
            pauses: BTreeMap::new(),
            group_time: BTreeMap::new(),
            busy_until: Time::ZERO,
            liars: BTreeMap::new(),
            watch,
            stranger: None,
        };
        for peer in 0..receivers {
            world.join_at(peer, Time(1));
        }
        world
    }

    /// So many receivers share a rack each, and the first of them speaks for the others.
    pub(crate) fn in_racks_of(mut self, size: u32) -> Self {
        self.rack_size = size;
        self
    }

    fn gather(&mut self) {
        let peers: Vec<u32> = self.nodes.keys().copied().collect();
        let size = self.rack_size;
        for rack in peers.chunk_by(|a, b| a / size == b / size) {
            let (&speaker, others) = rack.split_first().unwrap();
            if others.is_empty() {
                continue;
            }
            let members = others.iter().map(|member| PeerId(*member)).collect();
            self.sender.handle(self.now, SenderInput::Rack { speaker: PeerId(speaker), members });
            self.tell(speaker, &Control::Gather { own: speaker, members: others.to_vec() });
            for member in others {
                let port = speaker as u16 + 1;
                self.tell(
                    *member,
                    &Control::Speaker { member: *member, address: [0; 4].into(), port, name: None },
                );
            }
        }
    }

    fn tell(&mut self, peer: u32, control: &Control<'_>) {
        self.roster.handle(self.now, RosterInput::Told { guest: GuestId(peer) });
        self.schedule(self.now + DELAY, Event::ToReceiver { peer, frame: bytes(control) });
    }

    /// Does what the source's end of the session orders.
    fn drain_roster(&mut self) {
        while let Some(output) = self.roster.poll(self.now) {
            let now = self.now;
            match output {
                // They come by themselves.
                RosterOutput::Call(_) => {}
                RosterOutput::Welcome(guest) => self.welcome(guest.0),
                RosterOutput::Ready { guest, have, .. } => {
                    let (peer, window_bytes) = (PeerId(guest.0), self.window_bytes_of(guest.0));
                    self.sender.handle(
                        now,
                        SenderInput::Ready { peer, window_bytes, have, location: Location::default() },
                    );
                }
                RosterOutput::Start => {
                    self.gather();
                    self.sender.handle(now, SenderInput::Start);
                }
                RosterOutput::Open => self.sender.handle(now, SenderInput::Open),
                RosterOutput::Close => self.sender.handle(now, SenderInput::Close),
                RosterOutput::Left { guest, why } => {
                    self.sender.handle(now, SenderInput::Left { peer: PeerId(guest.0), why });
                }
                RosterOutput::Unawaited(guest) => {
                    self.sender.handle(now, SenderInput::Unawaited { peer: PeerId(guest.0) });
                }
                RosterOutput::Forget(guest) => {
                    self.sender.handle(now, SenderInput::Forget { peer: PeerId(guest.0) });
                }
                RosterOutput::Alive(guest) => self.tell(guest.0, &Control::Alive),
                RosterOutput::Goodbye(guest, Goodbye::Finished) => self.tell(guest.0, &Control::Finished),
                RosterOutput::Goodbye(guest, Goodbye::Refuse(why)) => {
                    self.tell(guest.0, &Control::Refuse(&why.to_string()));
                }
                RosterOutput::NoneCame | RosterOutput::Finished => unreachable!("{output:?}: some are named"),
            }
        }
    }

    /// The rest of the hand-shake: no time passes.
    fn welcome(&mut self, peer: u32) {
        let welcome = bytes(&Control::Welcome(Welcome {
            object: ObjectId::default(),
            form: Form::File,
            mode: 0o644,
            name: "object",
            object_len: self.geometry.object_len,
            fragment_len: self.geometry.fragment_len,
            group_len: self.geometry.group_len,
            channel: ([239, 0, 0, 1].into(), 1),
            outer_len: 0,
            stall_ns: u64::MAX,
            salt: [0; 32],
            modified: None,
            data_len: None,
        }));
        self.hear(peer, &Control::parse(&welcome).unwrap());
        let node = self.nodes.get_mut(&peer).expect("it has said HELLO");
        let Some(ReceiverOutput::Control(have @ Control::Have(_))) = node.machine.poll(self.now) else {
            panic!("one that begins says what it holds");
        };
        if let Control::Have(ranges) = &have {
            node.kept = ranges.iter().cloned().collect();
        }
        self.roster.handle(self.now, RosterInput::Frame { guest: GuestId(peer), control: &have });
    }

    /// A receiver's end of the session hears a frame, and what it orders is done.
    fn hear(&mut self, peer: u32, control: &Control<'_>) {
        let now = self.now;
        let Some(guest) = self.nodes.get_mut(&peer).and_then(|node| node.guest.as_mut()) else { return };
        guest.handle(now, GuestInput::Frame(control));
        self.drain_guest(peer);
    }

    fn drain_guest(&mut self, peer: u32) {
        let now = self.now;
        loop {
            let Some(node) = self.nodes.get_mut(&peer) else { return };
            let Some(output) = node.guest.as_mut().and_then(|guest| guest.poll(now)) else { return };
            let guest = node.guest.as_mut().expect("it has just spoken");
            match output {
                GuestOutput::Hello => {
                    let hello = bytes(&guest.hello());
                    let Control::Hello(hello) = Control::parse(&hello).unwrap() else { unreachable!() };
                    self.roster.handle(now, RosterInput::Hello { guest: GuestId(peer), hello: &hello });
                }
                GuestOutput::Offer(offer) => {
                    assert_eq!(offer.geometry, self.geometry);
                    guest.handle(now, GuestInput::Stored { resumes: !node.intact.is_empty() });
                    guest.handle(now, GuestInput::Verifiable);
                }
                GuestOutput::Resume => {
                    for &group in &node.intact {
                        node.machine.handle(now, ReceiverInput::Held { group });
                    }
                    guest.handle(now, GuestInput::Checked);
                }
                GuestOutput::Begin => node.machine.handle(now, ReceiverInput::Begin),
                GuestOutput::Speak { own, .. } => node.feedback = Some(Feedback::new(feedback(own))),
                GuestOutput::Follow { port, .. } => {
                    let speaker = u32::from(port) - 1;
                    self.leave_rack(peer);
                    self.nodes.get_mut(&peer).expect("it has just spoken").speaker = Some(speaker);
                }
                GuestOutput::Alone => self.leave_rack(peer),
                // The mesh is in short here: see `name_candidates`.
                GuestOutput::Candidates { .. } | GuestOutput::Channel { .. } => {}
                GuestOutput::Say(control) => {
                    self.schedule(now + DELAY, Event::ToSender { peer, frame: bytes(&control) });
                }
                GuestOutput::Refuse(reason) => panic!("{peer} refuses: {reason}"),
                GuestOutput::Ended(_) => node.guest = None,
            }
        }
    }

    /// One that leaves its rack, and those whom it spoke for, notice that connections end.
    fn leave_rack(&mut self, peer: u32) {
        let Some(node) = self.nodes.get_mut(&peer) else { return };
        let (speaker, spoke) = (node.speaker.take(), node.feedback.take().is_some());
        if spoke {
            let followers = self.nodes.iter().filter(|(_, node)| node.speaker == Some(peer));
            let followers: Vec<u32> = followers.map(|(member, _)| *member).collect();
            for member in followers {
                self.schedule(self.now + DELAY, Event::SpeakerGone { speaker: peer, member });
            }
        }
        let left = speaker.and_then(|speaker| self.nodes.get_mut(&speaker)?.feedback.as_mut());
        if let Some(feedback) = left {
            feedback.handle(self.now, FeedbackInput::Left { member: peer });
        }
    }

    /// Lets one more receiver join (or a crashed one come back) at a time.
    pub(crate) fn join_at(&mut self, peer: u32, at: Time) {
        self.roster.handle(self.now, RosterInput::Add(&peer.to_string()));
        self.schedule(at, Event::Join { peer });
    }

    pub(crate) fn crash_at(&mut self, peer: u32, at: Time) {
        self.schedule(at, Event::Crash { peer });
    }

    /// At this time another path takes the place of the one that there is.
    pub(crate) fn another_path_at(&mut self, at: Time) {
        self.schedule(at, Event::NextSession);
    }

    /// From now on the data channel reaches the receiver (again).
    pub(crate) fn mend_multicast(&mut self, peer: u32) {
        self.nodes.get_mut(&peer).expect("it is there").reached_by_multicast = true;
    }

    /// From now on the receiver neither takes nor says anything, but its connection stays.
    pub(crate) fn freeze(&mut self, peer: u32) {
        self.frozen.insert(peer);
    }

    /// From now on the data channel does not reach the receiver.
    pub(crate) fn cut_multicast(&mut self, peer: u32) {
        self.nodes.get_mut(&peer).unwrap().reached_by_multicast = false;
    }

    /// From now on the receiver takes nothing, and says whatever `liar` draws.
    pub(crate) fn lie(&mut self, peer: u32, liar: Liar) {
        self.freeze(peer);
        self.liars.insert(peer, liar);
        self.schedule(self.now, Event::Lie { peer });
    }

    /// Liars say nothing more.
    pub(crate) fn silence(&mut self) {
        self.liars.clear();
    }

    /// From now on a host sends to the data channel whatever `stranger` makes up.
    pub(crate) fn disturb(&mut self, stranger: Stranger) {
        self.schedule(stranger.begins_at, Event::Strange);
        self.stranger = Some(stranger);
    }

    /// A packet of the stranger's, to all: it takes no room that the stream's packets need.
    fn send_something_strange(&mut self) {
        let fragments = self.geometry.fragments();
        let Some((strange, next)) = self.stranger.as_mut().and_then(|s| s.next(self.now, fragments)) else {
            return;
        };
        for peer in self.nodes.keys().copied().collect::<Vec<_>>() {
            if self.frozen.contains(&peer) || !self.nodes[&peer].reached_by_multicast {
                continue;
            }
            let (Strange { round, sn, flags, forged }, arrived) = (strange, self.now);
            self.nodes.get_mut(&peer).expect("its key was just taken").queued += 1;
            self.schedule(arrived, Event::Data { peer, round, sn, flags, arrived, forged });
        }
        if let Some(next) = next {
            self.schedule(next, Event::Strange);
        }
    }

    /// A lie, and when the next one follows.
    fn tell_a_lie(&mut self, peer: u32) {
        let (peers, position) = (self.joined as u64, self.sender.pace().packets);
        let fragments = self.geometry.fragments();
        let Some(liar) = self.liars.get_mut(&peer) else { return };
        let near = if liar.below(2) == 0 { fragments } else { position };
        let (frame, pause) = (liar.word_to_source(near, peers), Duration(liar.below(2_000_000)));
        let control = &Control::parse(&frame).unwrap();
        self.say(peer, control);
        self.wakes.insert(None, self.now);
        self.schedule(self.now + pause, Event::Lie { peer });
    }

    /// Sets the groups that the receiver holds when it joins (again).
    pub(crate) fn hold(&mut self, peer: u32, groups: BTreeSet<u64>) {
        self.held.insert(peer, groups);
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), event);
    }

    fn chance(&mut self, thousandths: u64) -> bool {
        self.rng.next_u64() % 1_000 < thousandths
    }

    /// Runs until everything is settled, or `until`.
    pub(crate) fn run(&mut self, until: Time) {
        while self.finished_at.is_none() && self.now < until {
            let wake = self.wakes.iter().map(|(who, at)| (*at, *who)).min();
            let event = self.events.first_key_value().map(|(key, _)| *key);
            match (wake, event) {
                (Some((at, who)), event) if event.is_none_or(|(first, _)| at <= first) => {
                    self.now = self.now.max(at);
                    self.wakes.remove(&who);
                    match who {
                        None => self.drain_sender(),
                        Some(peer) => self.drain_receiver(peer),
                    }
                }
                (_, Some(key)) => {
                    self.now = self.now.max(key.0);
                    let event = self.events.remove(&key).unwrap();
                    self.apply(event);
                }
                _ => break,
            }
        }
    }

    fn apply(&mut self, event: Event) {
        let now = self.now;
        match &event {
            Event::Data { peer, .. }
            | Event::Coded { peer, .. }
            | Event::PatchData { peer, .. }
            | Event::Fetched { peer, .. }
            | Event::ToReceiver { peer, .. }
                if self.nodes.contains_key(peer) =>
            {
                self.wakes.insert(Some(*peer), now);
            }
            Event::ToSender { .. } => {
                self.wakes.insert(None, now);
            }
            Event::ToSpeaker { speaker: peer, .. } | Event::SpeakerGone { member: peer, .. }
                if self.nodes.contains_key(peer) =>
            {
                self.wakes.insert(Some(*peer), now);
            }
            _ => {}
        }
        match event {
            Event::Join { peer } => self.join(peer),
            Event::Lie { peer } => self.tell_a_lie(peer),
            Event::Strange => self.send_something_strange(),
            Event::NextSession => {
                self.watch.rate = None;
                let attempt_interval = Duration::from_micros(500).into();
                let allowance = Some(self.session_fragments);
                self.sender.handle(now, SenderInput::Path { rate: None, attempt_interval, allowance });
                self.wakes.insert(None, now);
            }
            Event::Crash { peer } => {
                self.nodes.remove(&peer);
                let followers = self.nodes.iter().filter(|(_, node)| node.speaker == Some(peer));
                let followers: Vec<u32> = followers.map(|(member, _)| *member).collect();
                for member in followers {
                    self.schedule(self.now + DELAY, Event::SpeakerGone { speaker: peer, member });
                }
                for node in self.nodes.values_mut().filter_map(|node| node.feedback.as_mut()) {
                    node.handle(now, FeedbackInput::Left { member: peer });
                }
                self.wakes.remove(&Some(peer));
                self.roster.handle(now, RosterInput::Gone { guest: GuestId(peer), how: Gone::Closed });
                self.wakes.insert(None, now);
            }
            Event::Data { peer, round, sn, flags, arrived, forged } => {
                if flags & FLAG_PATCH != 0 {
                    self.watch_patch(peer, sn..sn + 1);
                }
                if let Some(node) = self.nodes.get_mut(&peer) {
                    (node.queued, node.forged) = (node.queued - 1, forged);
                    node.machine.handle(now, ReceiverInput::Data { round, sn, count: 1, flags, arrived });
                    if node.queued == 0 {
                        node.machine.handle(now, ReceiverInput::NothingWaits);
                    }
                }
            }
            Event::Coded { peer, sns } => {
                let decoded = self.nodes.get(&peer).and_then(|node| node.machine.decodable(&sns));
                if let Some(sn) = decoded {
                    self.watch_patch(peer, sn..sn + 1);
                }
                if let Some(node) = self.nodes.get_mut(&peer)
                    && let Some(sn) = decoded
                {
                    // Out of wrong bytes come wrong bytes.
                    node.forged = sns.iter().any(|other| *other != sn && node.wrong.contains(*other));
                    node.machine.handle(now, ReceiverInput::Patched { sn, count: 1 });
                }
            }
            Event::PatchData { peer, sns } => {
                self.watch_patch(peer, sns.clone());
                if let Some(node) = self.nodes.get_mut(&peer) {
                    let count = (sns.end - sns.start) as u32;
                    node.sent.insert(sns.clone());
                    node.forged = false;
                    node.machine.handle(now, ReceiverInput::Sent { sn: sns.start, count });
                }
            }
            Event::Fetched { peer, group } => self.fetched(peer, group),
            Event::ToReceiver { peer, frame } => {
                let control = &Control::parse(&frame).unwrap();
                self.hear(peer, control);
                if let (Control::DataFnsd { .. }, Some(node)) = (control, self.nodes.get_mut(&peer)) {
                    node.machine.handle(now, ReceiverInput::Control(control));
                }
            }
            Event::ToSpeaker { speaker, member, frame } => {
                let frozen = self.frozen.contains(&speaker);
                let follows = self.nodes.get(&member).is_some_and(|node| node.speaker == Some(speaker));
                match self.nodes.get_mut(&speaker).and_then(|node| node.feedback.as_mut()) {
                    Some(feedback) if follows && !frozen => {
                        let control = &Control::parse(&frame).unwrap();
                        feedback.handle(now, FeedbackInput::Said { member, control });
                    }
                    _ => {}
                }
            }
            Event::SpeakerGone { speaker, member } => {
                if let Some(node) = self.nodes.get_mut(&member)
                    && node.speaker == Some(speaker)
                {
                    node.speaker = None;
                }
            }
            Event::ToSender { peer, frame } => {
                if !self.frozen.contains(&peer) {
                    let control = Control::parse(&frame).unwrap();
                    let counts = matches!(
                        control,
                        Control::Progress { .. }
                            | Control::PtchReq(_)
                            | Control::RackReq(_)
                            | Control::Rack(_)
                    );
                    self.heard += u64::from(counts);
                    self.say(peer, &control);
                }
            }
        }
    }

    /// The source hears a frame.
    fn say(&mut self, peer: u32, control: &Control<'_>) {
        let is_ready = self.roster.is_ready(GuestId(peer));
        self.roster.handle(self.now, RosterInput::Frame { guest: GuestId(peer), control });
        if is_ready {
            self.sender.handle(self.now, SenderInput::Control { peer: PeerId(peer), control });
        }
    }

    /// Notes what comes as a patch and was not there.
    fn watch_patch(&mut self, peer: u32, sns: std::ops::Range<u64>) {
        let Some(node) = self.nodes.get(&peer) else { return };
        for sn in sns.filter(|sn| node.machine.missing_of(&[*sn]) == 1) {
            self.watch.patch(peer, sn);
        }
    }

    fn join(&mut self, peer: u32) {
        let guest = GuestConfig {
            handle: HANDLE,
            name: peer.to_string(),
            window_bytes: self.window_bytes_of(peer),
            serve_port: 1,
            location: Location::default(),
            answer_timeout: Duration::from_secs(3_600),
            called: None,
        };
        let node = Node {
            guest: Some(Guest::new(self.now, guest)),
            machine: Receiver::new(receiver(self.geometry)),
            kept: RangeSet::new(),
            ever: RangeSet::new(),
            sent: RangeSet::new(),
            wrong: RangeSet::new(),
            forged: false,
            intact: self.held.remove(&peer).unwrap_or_default(),
            spoiled: BTreeSet::new(),
            done: false,
            over_tcp: false,
            overflow: 0,
            reached_by_multicast: true,
            speaker: None,
            feedback: None,
            busy_until: self.now,
            queued: 0,
        };
        self.nodes.insert(peer, node);
        self.drain_guest(peer);
        self.drain_roster();
        self.wakes.insert(None, self.now);
        self.joined += 1;
        self.wakes.insert(Some(peer), self.now);
    }

    fn window_bytes_of(&self, peer: u32) -> u64 {
        self.window_of(peer) * u64::from(self.geometry.fragment_len + 52)
    }

    fn window_of(&self, peer: u32) -> u64 {
        self.windows.get(&peer).copied().unwrap_or(self.window_packets)
    }

    pub(crate) fn start(&mut self) {
        while self.roster.started_at().is_none() {
            let (&key, _) = self.events.first_key_value().expect("receivers join first");
            let event = self.events.remove(&key).unwrap();
            self.now = self.now.max(key.0);
            self.apply(event);
            self.drain_roster();
        }
        // No receiver is called so: the transfer is open until it is taken out.
        self.roster.handle(self.now, RosterInput::Add(ABSENT));
        self.drain_roster();
        self.wakes.insert(None, self.now);
    }

    pub(crate) fn close(&mut self) {
        self.roster.handle(self.now, RosterInput::Remove(ABSENT));
        self.drain_roster();
        self.wakes.insert(None, self.now);
    }

    fn drain_sender(&mut self) {
        if self.now < self.busy_until {
            self.wakes.insert(None, self.busy_until);
            return;
        }
        loop {
            self.drain_roster();
            let Some(output) = self.sender.poll(self.now) else { break };
            match output {
                SenderOutput::Send { round, sn, count, flags } => {
                    self.longest_burst = self.longest_burst.max(count);
                    self.watch.stream(round, sn, count);
                    // Attempts have an interval of their own.
                    let attempt = flags & FLAG_ATTEMPT != 0;
                    self.watch.left(self.now, if attempt { 0 } else { u64::from(count) });
                    if flags & FLAG_REPORT != 0 && !attempt {
                        self.watch.reports.push(self.now);
                    }
                    for i in 0..u64::from(count) {
                        let last = i + 1 == u64::from(count);
                        self.multicast(round, sn + i, if last { flags } else { 0 });
                    }
                }
                SenderOutput::SendPatch(sns) => {
                    self.watch.left(self.now, 1);
                    self.multicast_patch(&sns);
                }
                SenderOutput::Patch { peer, sns } => {
                    self.watch.unicast(self.now, peer.0, sns.clone());
                    self.unicast_fragments += sns.end - sns.start;
                    self.schedule(self.now + DELAY * 2, Event::PatchData { peer: peer.0, sns });
                }
                SenderOutput::Control { peer, control } => {
                    if let Control::DataFnsd { .. } = control {
                        self.watch.finishes.entry(peer.0).or_default().push(self.now);
                    }
                    self.tell(peer.0, &control);
                }
                SenderOutput::Candidates(told) => {
                    self.watch.goes_over_tcp(told.peer.0);
                    self.name_candidates(told.peer.0, u64::from(told.takes));
                }
                SenderOutput::Settled { peer, failure } => {
                    let (guest, serves) =
                        (GuestId(peer.0), self.sender.status(peer).is_some_and(|s| s.chained));
                    let settled = RosterInput::Settled { guest, failure: failure.clone(), serves };
                    self.roster.handle(self.now, settled);
                    let known = self.settled.insert(peer.0, failure.map(|f| f.to_string()));
                    assert!(known.is_none(), "{peer:?} settled twice");
                }
                SenderOutput::AllowanceUsed { remaining_bytes } => self.grant_more(remaining_bytes),
                SenderOutput::Finished => {
                    self.finished_at = Some(self.now);
                    let open = self.roster.entries().find(|entry| !entry.is_settled());
                    assert!(open.is_none(), "the sender is done, and not with {open:?}");
                    self.roster.handle(self.now, RosterInput::Over(Goodbye::Finished));
                }
            }
        }
        if let Some(at) = self.sender.deadline().into_iter().chain(self.roster.deadline()).min() {
            assert!(at > self.now, "poll was drained at {:?}, yet the deadline is {at:?}", self.now);
            self.wakes.insert(None, at);
        }
    }

    /// The sender asks for a path for what is left.
    fn grant_more(&mut self, remaining_bytes: u64) {
        assert!((1..=self.geometry.object_len).contains(&remaining_bytes), "{remaining_bytes}");
        // Enough for the one that lacks most.
        let on_channel = self.nodes.values().filter(|node| !node.over_tcp && !node.done);
        let verified = on_channel.map(|node| node.machine.verified_bytes()).min();
        let rest = verified.map_or(0, |bytes| self.geometry.object_len - bytes);
        assert!(remaining_bytes >= rest, "{remaining_bytes} are asked for, one lacks {rest}");
        self.sessions += 1;
        self.schedule(self.now + self.between_sessions, Event::NextSession);
    }

    fn drain_receiver(&mut self, peer: u32) {
        if self.frozen.contains(&peer) {
            return;
        }
        if let Some(until) = self.pauses.get(&peer).copied().filter(|until| self.now < *until) {
            self.wakes.insert(Some(peer), until);
            return;
        }
        if self.pauses.remove(&peer).is_some() {
            self.comes_to(peer);
        }
        let mut frames = Vec::new();
        let corruption = self.faults.corruption;
        loop {
            let now = self.now;
            let draw = self.rng.next_u64() % 1_000;
            let geometry = self.geometry;
            let Some(node) = self.nodes.get_mut(&peer) else { return };
            let Some(output) = node.machine.poll(now) else { break };
            match output {
                ReceiverOutput::Keep { sn, count } => {
                    let run = sn..sn + u64::from(count);
                    node.ever.insert(run.clone());
                    // What the source itself sends takes the place of what came on the data channel.
                    if node.forged {
                        node.wrong.insert(run.clone());
                    } else {
                        node.wrong.remove(run.clone());
                    }
                    let news = node.kept.insert(run.clone());
                    let once = news == run.end - run.start || node.sent.covers(run.clone());
                    assert!(once, "{run:?} kept twice by {peer}");
                }
                ReceiverOutput::Check { group } => {
                    let sns = geometry.fragments_of_group(group);
                    // A fragment across two groups may be asked for again on behalf of the other one.
                    let across = |sn: &u64| geometry.groups_of_fragments(*sn..*sn + 1).count() > 1;
                    let whole = sns
                        .clone()
                        .all(|sn| node.kept.contains(sn) || (across(&sn) && node.ever.contains(sn)));
                    assert!(
                        whole,
                        "group {group} checked before it is whole: {sns:?}, {:?}",
                        node.kept.gaps(sns.clone())
                    );
                    let forged = sns.clone().any(|sn| node.wrong.contains(sn));
                    if forged {
                        node.spoiled.insert(group);
                    }
                    let intact = !forged && (draw >= corruption || !node.spoiled.insert(group));
                    if intact {
                        assert!(node.intact.insert(group), "group {group} checked twice");
                    } else {
                        // What the source itself has sent stays, unless nothing else is there.
                        let mut wrong = node.sent.gaps(sns.clone());
                        if wrong.is_empty() {
                            node.sent.remove(sns.clone());
                            wrong.push(sns);
                        }
                        for run in wrong {
                            node.kept.remove(run.clone());
                            node.wrong.remove(run);
                        }
                    }
                    node.machine.handle(now, ReceiverInput::Checked { group, intact });
                }
                ReceiverOutput::Control(control) => {
                    match &control {
                        Control::PtchReq(sns) => self.watch.request(now, peer, sns, false, &node.spoiled),
                        Control::Progress { received, lost, .. } => {
                            self.watch.lost = self.watch.lost.max(*lost);
                            self.watch.received = self.watch.received.max(*received);
                        }
                        Control::DataRcvd { patched_bytes, .. } => self.watch.done(peer, *patched_bytes),
                        _ => {}
                    }
                    let is_for_rack = matches!(control, Control::Progress { .. } | Control::PtchReq(_));
                    match (&mut node.feedback, node.speaker) {
                        (Some(feedback), _) if is_for_rack => {
                            feedback.handle(now, FeedbackInput::Said { member: peer, control: &control });
                        }
                        (None, Some(speaker)) if is_for_rack => frames.push((Some(speaker), control)),
                        _ => frames.push((None, control)),
                    }
                }
                ReceiverOutput::Repeat(control) => {
                    if let Control::PtchReq(sns) = &control {
                        self.watch.request(now, peer, sns, true, &node.spoiled);
                    }
                    frames.push((None, control));
                }
                ReceiverOutput::Complete => {
                    assert_eq!(node.intact.len() as u64, geometry.groups(), "complete without all groups");
                    assert!(!node.done, "complete twice");
                    node.done = true;
                    node.machine.handle(now, ReceiverInput::Committed { proof: [0; 32] });
                    if let Some(guest) = node.guest.as_mut() {
                        guest.handle(now, GuestInput::Committed);
                    }
                    // One that is done leaves its rack, and its followers notice that.
                    self.drain_guest(peer);
                }
            }
        }
        let mut put_out = Vec::new();
        if let Some(feedback) = self.nodes.get_mut(&peer).and_then(|node| node.feedback.as_mut()) {
            while let Some(output) = feedback.poll(self.now) {
                match output {
                    FeedbackOutput::ToSource(control) => frames.push((None, control)),
                    FeedbackOutput::PutOut { member } => put_out.push(member),
                }
            }
        }
        for member in put_out {
            self.schedule(self.now + DELAY, Event::SpeakerGone { speaker: peer, member });
        }
        for (speaker, control) in frames {
            let frame = bytes(&control);
            let event = match speaker {
                Some(speaker) => Event::ToSpeaker { speaker, member: peer, frame },
                None => Event::ToSender { peer, frame },
            };
            self.schedule(self.now + DELAY, event);
        }
        let node = self.nodes.get(&peer);
        let own = node.and_then(|node| node.machine.deadline());
        let of_rack = node.and_then(|node| node.feedback.as_ref()?.deadline());
        if let Some(at) = own.into_iter().chain(of_rack).min() {
            assert!(at > self.now, "receiver {peer} was drained, yet its deadline is {at:?}");
            self.wakes.insert(Some(peer), at);
        }
    }

    /// Every receiver that still lives has everything, and the sender knows.
    pub(crate) fn assert_all_done(&self) {
        assert!(self.finished_at.is_some(), "not finished at {:?}: settled {:?}", self.now, self.settled);
        for (peer, node) in &self.nodes {
            assert!(
                node.done || self.frozen.contains(peer),
                "receiver {peer} is not done: {:?}",
                self.settled.get(peer)
            );
        }
    }
}
