//! The control connections of a source, for push and pull alike: the listener, those who have not said HELLO,
//! a stream of frames to every receiver, and the roster that decides (`protocol::session`).

use super::bell::Bell;
use super::clock::Clock;
use super::entrance::{Calls, Entrance, host_name};
use super::error::kind_of;
use super::fresh::fresh_salt;
use super::gone::gone;
use super::pairing::{Host, challenge, same};
use super::strangers::Strangers;
use super::{Change, Receivers, SourceSpec, Steering};
use polycast_api::error::Kind;
use polycast_net::frames::{FrameError, FrameStream};
use polycast_net::hash::{GROUP_LEN, keyed_hash};
use polycast_net::object::ObjectSource;
use polycast_net::tls::Security;
use polycast_protocol::push::Geometry;
use polycast_protocol::session::{
    Entry, Expected, Goodbye, GuestId, Roster, RosterConfig, RosterInput as Input, RosterOutput as Output,
    Verdicts, Why,
};
use polycast_types::{Handle, Location, RangeSet};
use polycast_wire::control::{Control, Hash, Hello, Offered, Overlay, Salt, proven_group};
use polycast_wire::discovery::CodeSign;
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Time for receivers to learn why a session has ended. They close their connections at once when they have
/// learned it.
const PART_WITHIN: std::time::Duration = std::time::Duration::from_secs(1);

/// Details of a receiver from its HELLO.
#[derive(Clone, Debug)]
pub(super) struct Guest {
    /// Address at which it serves others.
    pub(super) serve: Option<SocketAddr>,
    /// Bytes of datagrams that its socket holds.
    pub(super) window_bytes: u64,
    /// Its zone and rack.
    pub(super) location: Location,
    /// Salt that it was sent in WELCOME: it chooses the bytes that this receiver shows in the end.
    pub(super) salt: Salt,
}

/// Request of the session to the transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Say WELCOME, and what is known of the object.
    Welcome(GuestId),
    /// A receiver is ready.
    Ready { guest: GuestId, have: RangeSet, late: bool },
    /// Begin.
    Start,
    /// Receivers may still join, or none any more.
    Open(bool),
    /// A receiver needs nothing any more.
    Left { guest: GuestId, why: Why },
    /// The others are not to wait for a receiver.
    Unawaited(GuestId),
    /// Nothing of a connection is needed any more: its receiver has come by another one.
    Forget(GuestId),
    /// Counted receivers did not come.
    NoneCame,
    /// It is over.
    Finished,
}

/// A connection that is not a receiver's: one that fetches groups, and its ENTER.
pub(super) type Fetcher = (FrameStream, Control<'static>);

impl Receivers {
    /// Returns the receivers that the roster expects, and the addresses at which the agents of named
    /// receivers are called.
    pub(super) fn expected(&self) -> (Expected, BTreeMap<String, SocketAddr>) {
        match self {
            Receivers::Count(count) | Receivers::Told(count) => {
                (Expected::Count(u32::try_from(*count).unwrap_or(u32::MAX)), BTreeMap::new())
            }
            Receivers::AtLeast(count) => {
                (Expected::AtLeast(u32::try_from(*count).unwrap_or(u32::MAX)), BTreeMap::new())
            }
            Receivers::Named(named) => {
                let names = named.iter().map(|(name, _)| name.clone()).collect();
                (Expected::Named(names), named.iter().cloned().collect())
            }
        }
    }
}

/// A source's end of its session: sockets around a [`Roster`].
pub(super) struct Session {
    pub(super) roster: Roster,
    pub(super) clock: Clock,
    strangers: Strangers,
    /// Object that the receivers are to have in the end.
    object: Arc<dyn ObjectSource>,
    streams: BTreeMap<GuestId, FrameStream>,
    /// Connections that have been welcomed: others must hear nothing before.
    welcomed: BTreeSet<GuestId>,
    /// Names of those that have heard the transfer's keys.
    told: BTreeSet<String>,
    /// Connections that take nothing any more. What came before their end is still to be read.
    broken: BTreeSet<GuestId>,
    /// The session is over.
    ends: bool,
    /// Connections that have been told why they are of no use any more, and may not have heard it.
    parting: Vec<FrameStream>,
    guests: BTreeMap<GuestId, Guest>,
    /// Receivers that ask for hashes before they begin to pull.
    ask_hashes: BTreeSet<GuestId>,
    /// Receivers that have asked for sums: once each.
    asked_sums: BTreeSet<GuestId>,
    /// Receivers among them that are to be sent more, and the number of sums that each has been sent.
    ask_sums: BTreeMap<GuestId, usize>,
    /// Packets that receivers have got and that were not of this source.
    forged: BTreeMap<GuestId, u64>,
    /// The same by connections that are forgotten.
    forged_before: u64,
    /// Reasons why ends were turned away that came under the names of receivers and have others.
    misnamed: BTreeMap<String, String>,
    next_guest: u32,
    calls: Calls,
    /// Addresses at which the agents of named receivers are called.
    addresses: BTreeMap<String, SocketAddr>,
    bell: Bell,
    /// Answer to those who ask; none where receivers are called.
    offer: Option<OfferWords>,
    /// The host of those who know the offer's code, where it has one.
    host: Option<Host>,
    /// Security of the connections, if they are sealed.
    security: Option<Security>,
    /// Secret that challenges are made of.
    secret: Salt,
}

/// Description of an offer by its source.
struct OfferWords {
    name: String,
    host: String,
    object_len: u64,
}

impl Session {
    /// Begins a session: named receivers are called by the first [`Session::poll`].
    pub(super) fn begin(
        spec: &SourceSpec,
        expected: Expected,
        addresses: BTreeMap<String, SocketAddr>,
        entrance: Entrance,
        pulled: bool,
        verdicts: Verdicts,
        bell: Bell,
    ) -> Self {
        let calls = Calls::new(
            entrance.invitation(spec, pulled),
            entrance.security.clone(),
            Arc::clone(&spec.steering),
            bell.clone(),
        );
        let clock = Clock::start();
        let config = RosterConfig {
            join_timeout: spec.options.join_timeout,
            have_timeout: spec.options.have_timeout,
            stall_timeout: spec.options.stall_timeout,
            ..RosterConfig::new(entrance.handle, expected, spec.source.len(), verdicts)
        };
        Session {
            roster: Roster::new(clock.now(), config),
            clock,
            strangers: entrance.strangers,
            object: Arc::clone(&spec.source),
            streams: BTreeMap::new(),
            welcomed: BTreeSet::new(),
            told: BTreeSet::new(),
            broken: BTreeSet::new(),
            ends: false,
            parting: Vec::new(),
            guests: BTreeMap::new(),
            ask_hashes: BTreeSet::new(),
            asked_sums: BTreeSet::new(),
            ask_sums: BTreeMap::new(),
            forged: BTreeMap::new(),
            forged_before: 0,
            misnamed: BTreeMap::new(),
            next_guest: 0,
            calls,
            addresses,
            bell,
            offer: matches!(spec.receivers, Receivers::Count(_) | Receivers::AtLeast(_)).then(|| {
                OfferWords { name: spec.name.clone(), host: host_name(), object_len: spec.source.len() }
            }),
            host: entrance.host,
            security: entrance.security,
            secret: fresh_salt(),
        }
    }

    /// Returns the sign that the offer shows of its code.
    pub(super) fn sign(&self) -> Option<CodeSign> {
        self.host.as_ref().map(Host::sign)
    }

    pub(super) fn handle(&mut self, input: Input<'_>) {
        self.roster.handle(self.clock.now(), input);
    }

    /// A change of the group.
    pub(super) fn change(&mut self, change: Change) {
        match change {
            Change::Add(name, address) => {
                self.addresses.insert(name.clone(), address);
                self.handle(Input::Add(&name));
            }
            Change::Remove(name) => self.handle(Input::Remove(&name)),
            Change::Fewer(name) => self.handle(Input::Fewer(&name)),
        }
    }

    /// Takes in changes of the group; gives whether the transfer is over for that. Where it is `sealed` and
    /// one is taken out that has heard its keys and not the whole object, those who are not done either go on
    /// in another transfer: its keys are others, and what they hold stays.
    pub(super) fn take_changes(&mut self, steering: &Steering, sealed: bool) -> bool {
        let mut rekeys = false;
        for change in steering.take() {
            if let Change::Remove(name) = &change {
                // One that has failed or left by itself knows them as well.
                let has_all = |entry: &Entry| entry.is_settled() && entry.failure().is_none();
                let known = self.roster.entries().any(|entry| entry.name == *name && !has_all(entry));
                // It is taken out once.
                rekeys |= sealed && known && self.told.remove(name);
            }
            self.change(change);
        }
        let open = self.roster.entries().filter(|entry| !entry.is_settled());
        let names: Vec<String> = open.map(|entry| entry.name.clone()).collect();
        // Where no receiver is left there is nothing to go on with.
        if !rekeys || names.is_empty() {
            return false;
        }
        steering.rekey();
        for name in names {
            self.handle(Input::Fail { name: &name, why: Why::Rekeyed });
        }
        true
    }

    /// The receivers whose agents could not be reached, and those whose agents have answered.
    pub(super) fn reached(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        self.calls.reached()
    }

    /// Returns the next task of the transport; everything else is done here.
    pub(super) fn poll(&mut self) -> Option<Event> {
        while let Some((name, why)) = self.calls.refused() {
            self.handle(Input::NotComing { name: &name, why });
        }
        let mut called = Vec::new();
        let event = loop {
            let Some(output) = self.roster.poll(self.clock.now()) else { break None };
            match output {
                Output::Call(name) => {
                    // The others are told some other way.
                    if let Some(address) = self.addresses.get(&name) {
                        called.push((name, *address));
                    }
                }
                Output::Alive(guest) => self.tell(guest, &Control::Alive),
                Output::Goodbye(guest, word) => self.dismiss(guest, &word),
                Output::Welcome(guest) => {
                    self.welcomed.insert(guest);
                    let mut entries = self.roster.entries();
                    self.told.extend(
                        entries.find(|entry| entry.guest == Some(guest)).map(|entry| entry.name.clone()),
                    );
                    break Some(Event::Welcome(guest));
                }
                Output::Ready { guest, have, late } => break Some(Event::Ready { guest, have, late }),
                Output::Start => break Some(Event::Start),
                Output::Open => break Some(Event::Open(true)),
                Output::Close => break Some(Event::Open(false)),
                Output::Left { guest, why } => break Some(Event::Left { guest, why }),
                Output::Unawaited(guest) => break Some(Event::Unawaited(guest)),
                Output::Forget(guest) => {
                    self.forget_guest(guest);
                    break Some(Event::Forget(guest));
                }
                Output::NoneCame => break Some(Event::NoneCame),
                Output::Finished => break Some(Event::Finished),
            }
        };
        if !called.is_empty() {
            self.calls.call(called);
        }
        event
    }

    /// A connection whose receiver has come by another one.
    fn forget_guest(&mut self, guest: GuestId) {
        self.forget(guest);
        self.guests.remove(&guest);
        let forged = self.forged.remove(&guest).unwrap_or(0);
        self.forged_before = self.forged_before.saturating_add(forged);
    }

    /// Returns true if a receiver asks for hashes before it begins to pull.
    pub(super) fn asks_hashes(&self, guest: GuestId) -> bool {
        self.ask_hashes.contains(&guest)
    }

    /// Takes out the receivers that ask for sums and are not ready yet, with how many each has been told.
    pub(super) fn take_sums_told(&mut self) -> BTreeMap<GuestId, usize> {
        let mut asking = std::mem::take(&mut self.ask_sums);
        asking.retain(|guest, _| self.streams.contains_key(guest) && !self.roster.is_ready(*guest));
        asking
    }

    /// A receiver has been told so many sums, and is to be told more.
    pub(super) fn sums_told(&mut self, guest: GuestId, sums: usize) {
        self.ask_sums.insert(guest, sums);
    }

    /// Returns the details of a receiver from its HELLO.
    pub(super) fn guest(&self, guest: GuestId) -> Option<Guest> {
        self.guests.get(&guest).cloned()
    }

    /// The name of a receiver for others that connect to it: where ends show certificates, they look whether
    /// it is the one.
    pub(super) fn name_to_tell(&self, guest: GuestId) -> Option<String> {
        self.security.as_ref().filter(|security| security.has_names())?;
        self.roster.entry(guest).map(|entry| entry.name.clone())
    }

    /// Connections that stand and have been welcomed.
    pub(super) fn connected(&self) -> Vec<GuestId> {
        self.streams.keys().copied().filter(|guest| self.welcomed.contains(guest)).collect()
    }

    /// Bytes that wait to be sent to a receiver; `None` where it is not connected.
    pub(super) fn queued(&self, guest: GuestId) -> Option<usize> {
        self.streams.get(&guest).filter(|_| !self.broken.contains(&guest)).map(FrameStream::queued)
    }

    /// Sends a frame. One that does not get through ends the connection when what came before has been read:
    /// the other end may have said why it left.
    pub(super) fn tell(&mut self, guest: GuestId, control: &Control<'_>) {
        let Some(stream) = self.streams.get_mut(&guest).filter(|_| !self.broken.contains(&guest)) else {
            return;
        };
        match stream.send(control) {
            Ok(()) => self.handle(Input::Told { guest }),
            Err(_) => drop(self.broken.insert(guest)),
        }
        // The root hash follows all others.
        if let Control::Root(_) = control {
            self.handle(Input::Informed { guest });
        }
    }

    fn lose(&mut self, guest: GuestId, error: FrameError) {
        self.forget(guest);
        self.handle(Input::Gone { guest, how: gone(error) });
    }

    fn forget(&mut self, guest: GuestId) -> Option<FrameStream> {
        self.welcomed.remove(&guest);
        self.ask_hashes.remove(&guest);
        self.asked_sums.remove(&guest);
        self.ask_sums.remove(&guest);
        self.broken.remove(&guest);
        self.streams.remove(&guest)
    }

    /// Says the last word on a connection.
    fn dismiss(&mut self, guest: GuestId, word: &Goodbye) {
        if let Goodbye::Refuse(why) = word {
            match self.roster.entry(guest) {
                Some(entry) => tracing::warn!("{} is not a receiver any more: {why}", entry.name),
                None => tracing::warn!("a machine was turned away: {why}"),
            }
        }
        if let Some(mut stream) = self.forget(guest) {
            // One that does not hear this notices that the connection ends.
            let told = match word {
                Goodbye::Finished => stream.send(&Control::Finished),
                Goodbye::Refuse(why) => stream.send(&Control::Refuse(&why.to_string())),
            };
            if told.is_ok() && matches!(word, Goodbye::Refuse(_)) && self.ends {
                return self.parting.push(stream);
            }
            stream.finish();
        }
    }

    /// Ends the session: everyone hears how.
    pub(super) fn end(&mut self, word: Goodbye) {
        self.ends = true;
        self.handle(Input::Over(word));
        while self.poll().is_some() {}
        // To close them with something unread would take the word from those that have not read it yet.
        let until = std::time::Instant::now() + PART_WITHIN;
        for mut stream in self.parting.drain(..) {
            stream.part(until.saturating_duration_since(std::time::Instant::now()));
        }
    }

    /// Adds the descriptors to wait on: the bell, every connection, and those on which no name has been sent.
    pub(super) fn descriptors<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        fds.push(self.bell.descriptor());
        for stream in self.streams.values() {
            let out = if stream.queued() > 0 { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN | out));
        }
        self.strangers.descriptors(fds);
    }

    /// Finds the descriptors from [`Session::descriptors`] that have something.
    pub(super) fn woken(&self, fds: &[PollFd<'_>]) -> Woken {
        let is = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let guests = self.streams.keys().enumerate().filter(|(at, _)| is(at + 1)).map(|(_, guest)| *guest);
        Woken {
            bell: is(0),
            newcomers: (1 + self.streams.len()..fds.len()).any(is),
            guests: guests.collect(),
        }
    }

    /// Takes new connections and reads their first frame: HELLO is for the roster, ENTER is given back.
    pub(super) fn meet_strangers(&mut self) -> Vec<Fetcher> {
        let heard = self.strangers.meet(|control, _| match control {
            Control::Hello(hello) => Some(First::hello(hello, None)),
            Control::Join { proof, hello } => Some(First::hello(hello, Some(*proof))),
            Control::Ask { handle, nonce } => Some(First::Ask { handle: *handle, nonce: *nonce }),
            Control::Pair { handle, share } => Some(First::Pair { handle: *handle, share: *share }),
            Control::Prove { share, proof } => Some(First::Prove { share: *share, proof: *proof }),
            Control::Overlay(Overlay::Enter { handle, ticket, entry, have }) => {
                let (handle, ticket, entry, have) = (*handle, *ticket, *entry, have.clone());
                Some(First::Enter(Control::Overlay(Overlay::Enter { handle, ticket, entry, have })))
            }
            _ => None,
        });
        let mut fetchers = Vec::new();
        for (stream, first) in heard {
            match first {
                First::Hello { name, words, location, proof } => {
                    let hello = Hello { name: &name, location: location.names(), ..words };
                    if let Err(error) = stream.peer_names().check(hello.name) {
                        let why = error.to_string();
                        // There are only so many receivers, and each is spoken of once: any member can come
                        // often.
                        let is_new = self.roster.named(hello.name).is_some()
                            && self.misnamed.insert(hello.name.to_string(), why.clone()).is_none();
                        if is_new {
                            tracing::warn!(peer = ?stream.peer(), %why, "is not the receiver that it says to be");
                        }
                        turn_away(stream, &why);
                        continue;
                    }
                    match self.admit(&stream, &hello, proof) {
                        Ok(()) => self.hello(stream, hello),
                        Err(why) => turn_away(stream, &why.to_string()),
                    }
                }
                First::Ask { handle, nonce } => self.tell_offer(stream, handle, &nonce),
                First::Pair { handle, share } => self.tell_share(stream, handle, &share),
                First::Prove { share, proof } => self.tell_secret(stream, &share, &proof),
                First::Enter(frame) => fetchers.push((stream, frame)),
            }
        }
        fetchers
    }

    /// Returns the reason for a receiver's failure: for one that never joined also that an agent with another
    /// name came under its name.
    pub(super) fn failure_of(&self, entry: &Entry) -> Option<(Kind, String)> {
        let why = entry.failure()?;
        let misnamed = self.misnamed.get(&entry.name).filter(|_| *why == Why::NeverJoined);
        Some(match misnamed {
            Some(words) => {
                (Kind::NotAllowed, format!("one that came as '{}' was turned away: {words}", entry.name))
            }
            None => (kind_of(why), why.to_string()),
        })
    }

    /// The object's name and length for those who are to know them.
    pub(super) fn shown(&self, to_member: bool) -> (&str, u64) {
        let is_secret = self.security.is_some() && !to_member;
        let words = self.offer.as_ref().filter(|_| !is_secret);
        words.map_or(("", 0), |words| (&words.name, words.object_len))
    }

    /// Says what is offered to one that asks; it may join then.
    fn tell_offer(&mut self, mut stream: FrameStream, handle: Handle, nonce: &Hash) {
        let own = self.roster.transfer();
        let (code, places) = (self.sign(), self.roster.free_places());
        let Some(OfferWords { host, .. }) =
            self.offer.as_ref().filter(|_| handle == own || handle == Handle(0))
        else {
            return turn_away(stream, &Why::UnknownHandle.to_string());
        };
        let (name, object_len) = self.shown(stream.is_sealed());
        let proof = self.host.as_ref().map_or([0; 32], |host| host.pairing().of_source(own, nonce));
        let challenge = challenge(&self.secret, &stream);
        let handle = own;
        let offered = Offered { handle, places, object_len, name, host, code, challenge, proof };
        if stream.send(&Control::Offered(offered)).is_ok() {
            self.strangers.again(stream);
        }
    }

    /// Says this end's share to one that would pair; it may prove that it knows the code then.
    fn tell_share(&mut self, mut stream: FrameStream, handle: Handle, theirs: &Hash) {
        let (now, from) = (self.clock.now(), stream.peer().map(|peer| peer.ip()));
        let known = handle == self.roster.transfer();
        let Some(host) = self.host.as_mut().filter(|_| known) else {
            return turn_away(stream, &Why::UnknownHandle.to_string());
        };
        match host.share(now, from, (handle, &challenge(&self.secret, &stream)), theirs) {
            Ok(share) if stream.send(&Control::Share(share)).is_ok() => self.strangers.again(stream),
            Ok(_) => {}
            Err(why) => turn_away(stream, &why.to_string()),
        }
    }

    /// Tells one that knows the code what it needs to take the offer. It comes by another connection then.
    fn tell_secret(&mut self, mut stream: FrameStream, theirs: &Hash, proof: &Hash) {
        let (now, from) = (self.clock.now(), stream.peer().map(|peer| peer.ip()));
        let Some(host) = &mut self.host else {
            return turn_away(stream, &Why::UnknownHandle.to_string());
        };
        let meeting = (self.roster.transfer(), &challenge(&self.secret, &stream));
        match host.pair(now, from, meeting, (theirs, proof)) {
            Ok(sealed) => {
                // One that does not hear this notices that the connection ends.
                let _ = stream.send(&Control::Paired(sealed));
                stream.finish();
            }
            Err(why) => turn_away(stream, &why.to_string()),
        }
    }

    /// Checks that an end has the offer's secret, where there is a code. One that comes over a connection
    /// that the secret seals has shown it.
    fn admit(&self, stream: &FrameStream, hello: &Hello<'_>, proof: Option<Hash>) -> Result<(), Why> {
        let Some(host) = self.host.as_ref().filter(|_| !stream.is_sealed()) else { return Ok(()) };
        let challenge = challenge(&self.secret, stream);
        let right = host.pairing().of_receiver(self.roster.transfer(), &challenge, hello.name);
        match proof {
            Some(proof) if same(&proof, &right) => Ok(()),
            None => Err(Why::NeedsCode),
            Some(_) => Err(Why::WrongCode),
        }
    }

    fn hello(&mut self, stream: FrameStream, hello: Hello<'_>) {
        let guest = GuestId(self.next_guest);
        self.next_guest += 1;
        let serve = stream.peer().map(|peer| SocketAddr::from((peer.ip(), hello.serve_port)));
        self.streams.insert(guest, stream);
        self.handle(Input::Hello { guest, hello: &hello });
        // Those who are turned away leave nothing behind.
        if self.roster.entry(guest).is_some() {
            let window_bytes = hello.window_bytes;
            let location = Location::of(hello.location);
            self.guests.insert(guest, Guest { serve, window_bytes, location, salt: fresh_salt() });
            let stream = self.streams.get_mut(&guest).expect("it has just been put there");
            stream.trust();
            stream.keep_queue_short();
        }
    }

    /// Returns true if this is the proof of a receiver that has the bytes which its salt chooses.
    fn is_proven(&self, guest: GuestId, proof: &Hash) -> io::Result<bool> {
        let Some(Guest { salt, .. }) = self.guests.get(&guest) else { return Ok(false) };
        let geometry = Geometry { object_len: self.object.len(), fragment_len: 1, group_len: GROUP_LEN };
        let range = geometry.group_bytes(proven_group(salt, geometry.groups()));
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.object.read_exact_at(&mut bytes, range.start)?;
        Ok(keyed_hash(salt, &bytes) == *proof)
    }

    /// Reads what a receiver has said: the roster hears every frame, and `transport` after it those of
    /// receivers that are ready. DATA_RCVD is only passed on with a right proof.
    ///
    /// Returns true behind the frame that has made it ready, with the rest unread: the caller has to tell the
    /// transport of the receiver, by [`Session::poll`], before that hears what came in the same breath.
    ///
    /// # Errors
    /// The object cannot be read to compare a proof with it.
    pub(super) fn read(
        &mut self,
        guest: GuestId,
        mut transport: impl FnMut(&Control<'_>),
    ) -> io::Result<bool> {
        let Some(mut stream) = self.streams.remove(&guest) else { return Ok(false) };
        let flushed = stream.flush();
        let filled = stream.fill();
        let mut is_new = false;
        let end = loop {
            match stream.next_frame() {
                Ok(Some(control)) => {
                    let ready = self.roster.is_ready(guest);
                    if let Control::DataRcvd { proof, .. } = &control
                        && ready
                        && !self.is_proven(guest, proof)?
                    {
                        // Its proof is right where the object here is not what it was.
                        self.object.check()?;
                        self.roster.handle(self.clock.now(), Input::Unproven { guest });
                        continue;
                    }
                    if let Control::AskHashes = control {
                        self.ask_hashes.insert(guest);
                    }
                    if let Control::AskSums = control
                        && self.asked_sums.insert(guest)
                    {
                        self.ask_sums.insert(guest, 0);
                    }
                    if let Control::Forged { packets } = control {
                        self.forged.insert(guest, packets);
                    }
                    self.roster.handle(self.clock.now(), Input::Frame { guest, control: &control });
                    if ready {
                        transport(&control);
                    }
                    is_new = !ready && self.roster.is_ready(guest);
                    if is_new {
                        // An end of the connection is seen with the rest.
                        break Ok(());
                    }
                }
                Ok(None) => break filled.map(drop).and(flushed),
                Err(error) => break Err(error),
            }
        };
        match end {
            Ok(()) => drop(self.streams.insert(guest, stream)),
            Err(error) => self.lose(guest, error),
        }
        Ok(is_new)
    }

    /// Packets that receivers have got and that were not of this source.
    pub(super) fn forged_packets(&self) -> u64 {
        self.forged.values().fold(self.forged_before, |sum, packets| sum.saturating_add(*packets))
    }

    /// The bell was heard.
    pub(super) fn clear_bell(&self) {
        self.bell.clear();
    }
}

/// Ends that have something to read, or room to write.
pub(super) struct Woken {
    pub(super) bell: bool,
    pub(super) newcomers: bool,
    pub(super) guests: Vec<GuestId>,
}

/// The first frame of a connection.
enum First {
    /// HELLO, its name apart.
    Hello {
        name: String,
        words: Hello<'static>,
        location: Location,
        /// Proof that it has the offer's secret.
        proof: Option<Hash>,
    },
    Ask {
        handle: Handle,
        nonce: Hash,
    },
    Pair {
        handle: Handle,
        share: Hash,
    },
    Prove {
        share: Hash,
        proof: Hash,
    },
    Enter(Control<'static>),
}

impl First {
    fn hello(hello: &Hello<'_>, proof: Option<Hash>) -> Self {
        let Hello { handle, name, window_bytes, serve_port, location } = *hello;
        First::Hello {
            name: name.to_string(),
            words: Hello { handle, name: "", window_bytes, serve_port, location: [""; 2] },
            location: Location::of(location),
            proof,
        }
    }
}

fn turn_away(mut stream: FrameStream, why: &str) {
    // One that does not hear this notices that the connection ends.
    let _ = stream.send(&Control::Refuse(why));
    stream.finish();
}
