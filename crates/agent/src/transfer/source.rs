//! Driver of the push sender: the object's bytes, the data channel and the clock around the machine.

mod account;
mod announcer;
mod mesh;
mod path;
mod racks;
mod zones;

use super::bell::Bell;
use super::channel::{Channel, ChannelError, Work, batch_of};
use super::clock::wait;
use super::control::{Event, Session};
use super::entrance::Entrance;
use super::error::TransferError;
use super::pacing::Pacing;
use super::receiver::form_of;
use super::serve::{Served, Supply as ServeSupply};
use super::supply::Supply;
use super::unchanged::Unchanged;
use super::{Path, PathNews, Receivers, Report, SourceSpec, discovery, trace};
use account::Account;
use announcer::Announcer;
pub use announcer::Seekers;
use mesh::Word;
use polycast_net::hash::GROUP_LEN;
use polycast_net::interface::{Interface, is_here, of_address};
use polycast_net::object::ObjectSource;
use polycast_net::seal::{Seal, Secret};
use polycast_net::udp::{Beacon, DataSender};
use polycast_protocol::push::{
    AttemptInterval, Geometry, Pace, PeerId, Sender, SenderConfig, SenderInput as Input,
    SenderOutput as Output,
};
use polycast_protocol::session::{Goodbye, GuestId, RosterInput, Stage, Verdicts, Why};
use polycast_types::{Duration, Handle, RangeSet, Time};
use polycast_wire::control::NOWHERE;
use polycast_wire::control::{Control, Fault, HASHES_MAX, Hash, SUMS_MAX, SealSecret, Welcome};
use polycast_wire::data::{FRAGMENT_TAGS_LEN, fragment_len_for_mtu};
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zones::Crossings;

/// Frames longer than this gain nothing with segmentation offload, and fewer fit the buffers.
const MTU_MAX: u32 = 9_000;
/// Sends between two looks at the control channel.
const SENDS_MAX: usize = 8;
/// Patches are queued to a connection while it has less than this to send. What is said to the receiver later
/// waits behind them, also that it is to fetch elsewhere, and its path may be slow.
const PATCH_QUEUE_LEN: usize = 32 << 10;
/// Fragments in one PTCH_DATA, and their bytes if it is more than one.
const PATCH_FRAGMENTS: u64 = 16;
const PATCH_LEN: u64 = 16 << 10;
/// Answer to an end that would fetch, and takes no part.
const NO_TICKET: &str = "what it asks for is of no transfer here, or it shows no ticket for it";
/// Holes are told of where they are so many bytes, four hash groups, and at least this part of the object:
/// below that, hashing ahead and looking at zeros take longer than they spare.
const HOLES_LEN_LEAST: u64 = 4 * GROUP_LEN as u64;
const HOLES_PART_LEAST: u64 = 8;
/// The caller hears of the transfer this often, and it is seen whether it was cancelled.
const EVENT_INTERVAL: Duration = Duration::from_millis(100);
/// The machine keeps its own rate, and what it does in bursts is paid so soon; connections that have a part
/// of the rate hold it longer.
const AHEAD_MAX: Duration = Duration::from_millis(20);
/// The longest time without a look at what the caller asks for.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Sends one object to its receivers; blocks until each is done or has failed.
///
/// # Errors
/// No transfer was possible at all; receivers that failed are in the report.
pub fn deliver(spec: SourceSpec, on_event: &mut dyn FnMut(&Report)) -> Result<Report, TransferError> {
    prepare(spec)?.run(on_event)
}

/// Opens the source's end of a transfer, so that its control address and handle can be told to receivers.
/// What needs multicast may fail: TCP does without.
///
/// # Errors
/// The interface or a port cannot be used.
pub fn prepare(spec: SourceSpec) -> Result<Prepared, TransferError> {
    let interface = of_address(spec.interface)?;
    let entrance = Entrance::open(spec.interface, &spec.options)?;
    let sender = match &spec.path {
        // Paths over trees are for the pull transport; here TCP does what can be done.
        Path::Chain | Path::Trees(_) => None,
        Path::Multicast { group, outer, .. } => Some(
            DataSender::open(spec.interface, *group)
                .and_then(|sender| sender.with_class(spec.options.dscp))
                .map(|sender| sender.with_outer(outer.clone()))
                .map_err(|source| TransferError::Multicast { interface: spec.interface, source }),
        ),
    };
    let beacon = match spec.receivers {
        Receivers::Count(_) | Receivers::AtLeast(_) => Some(discovery::beacon(spec.interface)),
        _ => None,
    };
    let (sender, mute) = apart(sender);
    let (beacon, unannounced) = apart(beacon);
    Ok(Prepared { spec, interface, entrance, sender, mute, beacon, unannounced, seekers: Arc::default() })
}

/// Splits a result into its value, and the reason why there is none where there was to be one.
fn apart<T>(wanted: Option<Result<T, TransferError>>) -> (Option<T>, Option<String>) {
    match wanted {
        Some(Ok(there)) => (Some(there), None),
        Some(Err(why)) => (None, Some(why.to_string())),
        None => (None, None),
    }
}

/// The source's end of a transfer, before it runs.
pub struct Prepared {
    spec: SourceSpec,
    interface: Interface,
    entrance: Entrance,
    sender: Option<DataSender>,
    /// Reason why there is no sender, where there was to be one.
    mute: Option<String>,
    beacon: Option<Beacon>,
    /// Reason why there is no beacon, where there was to be one.
    unannounced: Option<String>,
    seekers: Arc<Seekers>,
}

impl Prepared {
    /// Returns the reason why receivers do not find it by multicast, where they were to.
    #[must_use]
    pub fn unannounced(&self) -> Option<&str> {
        self.unannounced.as_deref()
    }

    /// Returns the hosts that ask for offers, from when it runs on.
    #[must_use]
    pub fn seekers(&self) -> Arc<Seekers> {
        Arc::clone(&self.seekers)
    }

    /// The interface that it sends from.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Returns the address that receivers connect to.
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
        let end = trace::Source::begin(self.handle(), &self.spec);
        let outcome = Run::new(self).and_then(|mut run| run.run(on_event));
        end.told(&outcome);
        outcome
    }
}

/// A transfer that is being sent.
struct Run {
    spec: SourceSpec,
    session: Session,
    handle: Handle,
    address: SocketAddr,
    geometry: Geometry,
    machine: Sender,
    channel: Option<Channel>,
    supply: Supply,
    /// Check which hashes may be sent.
    unchanged: Unchanged,
    /// Secret that the data channel is sealed with.
    secret: Option<Secret>,
    served: Arc<Served>,
    /// The rate of all that is sent, and when what was sent from here is paid.
    pacing: Arc<Pacing>,
    paid_at: Time,
    announcer: Option<Announcer>,
    /// Set while the session has started and the machine has not.
    start_waits: bool,
    /// Hash groups before the end of the fragment that the stream begins with, if it is not the first one.
    first_groups: u64,
    /// A run that the machine has ordered, while hashes of its groups are not known.
    unhashed: Option<Ordered>,
    /// Fragments to send as PTCH_DATA when connections have room.
    patches: BTreeMap<PeerId, RangeSet>,
    finished: bool,
    account: Account,
    /// The receivers that were on the path go on over TCP.
    without_path: bool,
    /// Receivers lost by an earlier path: the current one is not to blame.
    lost_before: BTreeSet<PeerId>,
    /// Receivers of which it has been noted that the path does not reach them.
    cut_off: BTreeSet<PeerId>,
    /// Candidates last named to each receiver that fetches over TCP, and their addresses.
    candidates: BTreeMap<PeerId, Vec<(SocketAddr, PeerId)>>,
    /// Faults that receivers have reported of others, and that have been noted.
    blamed: BTreeSet<(PeerId, Fault)>,
    /// Bytes between zones.
    crossings: Crossings,
}

/// A run of the stream, as the machine orders it.
#[derive(Clone, Copy)]
struct Ordered {
    round: u32,
    sn: u64,
    count: u32,
    flags: u8,
}

/// The receiver behind a connection: the machine knows it by the same number.
fn guest_of(peer: PeerId) -> GuestId {
    GuestId(peer.0)
}

/// The first packets of a stream only try whether the path is up, and may reach no receiver before the lap's
/// end: so many come before what is to come first.
const LEAD_FRAGMENTS: u64 = 512;
/// .. and no more than one part in so many of the object.
const LEAD_PART: u64 = 16;

/// The fragment that the stream begins with.
fn first_fragment(first_byte: u64, geometry: Geometry) -> u64 {
    let fragments = geometry.fragments();
    let wanted = (first_byte / u64::from(geometry.fragment_len)).min(fragments - 1);
    if wanted == 0 {
        return 0;
    }
    let lead = LEAD_FRAGMENTS.min(fragments / LEAD_PART);
    (wanted + fragments - lead) % fragments
}

/// The bytes that packets with an IPv4 header may have: one of IPv6 is 20 bytes longer.
fn mtu_of(interface: &Interface) -> u32 {
    let longer = if interface.address.is_ipv6() { 20 } else { 0 };
    interface.mtu.min(MTU_MAX).saturating_sub(longer)
}

impl Run {
    fn new(prepared: Prepared) -> Result<Self, TransferError> {
        let Prepared { spec, interface, entrance, sender, mute, beacon, seekers, .. } = prepared;
        let secret = entrance.security.as_ref().map(|_| Secret::fresh());
        let seal = secret.as_ref().map(|secret| Seal::new(secret, entrance.handle));
        let outer_len = sender.as_ref().map_or(0, DataSender::outer_len) as u32;
        let fragment_len = fragment_len_for_mtu(mtu_of(&interface).saturating_sub(outer_len));
        let geometry = Geometry { object_len: spec.source.len(), fragment_len, group_len: GROUP_LEN };
        let tags_len = seal.as_ref().map_or(0, |_| FRAGMENT_TAGS_LEN as u32);
        let (rate, attempts) = match &spec.path {
            Path::Multicast { rate, attempts, .. } => (*rate, *attempts),
            Path::Chain | Path::Trees(_) => (None, None),
        };
        let allowed = spec.steering.allowed();
        let first = first_fragment(spec.options.first_byte, geometry);
        let (handle, address) = (entrance.handle, entrance.address);
        let machine = Sender::new(SenderConfig {
            allowance: allowed.map(|bytes| bytes.div_ceil(u64::from(fragment_len)).max(1)),
            rate,
            multicast: sender.is_some(),
            attempt_interval: attempts.map_or(AttemptInterval::Adaptive, AttemptInterval::AdaptiveUpTo),
            path_timeout: spec.options.path_timeout,
            stall_timeout: spec.options.stall_timeout,
            deadline: spec.options.deadline,
            slow: spec.options.slow,
            sealed: seal.is_some(),
            first,
            location: spec.location.clone(),
            ..SenderConfig::new(handle, geometry, batch_of(outer_len + tags_len + fragment_len))
        });
        let (expected, addresses) = spec.receivers.expected();
        let bell = Bell::new()?;
        spec.steering.wake_by(bell.clone());
        let looks = bell.clone();
        let session = Session::begin(&spec, expected, addresses, entrance, false, Verdicts::Sender, bell);
        let now = session.clock.now();
        let pacing = Pacing::new(session.clock, rate);
        let object = ServeSupply::Object(Arc::clone(&spec.source));
        let keys = (secret.clone(), Some(Arc::clone(&pacing)));
        Ok(Run {
            unchanged: Unchanged::new(Arc::clone(&spec.source), geometry.groups(), looks, now),
            channel: sender.map(|sender| Channel::new(sender, handle, geometry, seal.clone())),
            supply: Supply::new(Arc::clone(&spec.source), geometry, seal),
            served: Served::new(handle, geometry, object, keys),
            secret,
            session,
            pacing,
            paid_at: Time::ZERO,
            announcer: beacon.map(|beacon| Announcer::new(beacon, seekers)),
            machine,
            handle,
            address,
            geometry,
            start_waits: false,
            first_groups: if first == 0 { 0 } else { geometry.groups_of_fragments(first..first + 1).end },
            unhashed: None,
            patches: BTreeMap::new(),
            finished: false,
            account: Account::new(spec.steering.fabric(), mute),
            without_path: false,
            lost_before: BTreeSet::new(),
            cut_off: BTreeSet::new(),
            candidates: BTreeMap::new(),
            blamed: BTreeSet::new(),
            crossings: Crossings::new(&spec.location.zone),
            spec,
        })
    }

    fn run(&mut self, on_event: &mut dyn FnMut(&Report)) -> Result<Report, TransferError> {
        let result = self.deliver(on_event);
        self.session.end(match &result {
            Ok(()) => Goodbye::Finished,
            Err(error) => error.goodbye(self.spec.options.again),
        });
        self.served.stop();
        self.note_cut_off();
        self.tell_fared();
        for change in self.spec.steering.take() {
            self.session.change(change);
        }
        result.map(|()| self.report())
    }

    fn deliver(&mut self, on_event: &mut dyn FnMut(&Report)) -> Result<(), TransferError> {
        let mut next_event = self.now();
        while !self.finished {
            if self.spec.cancel.load(Ordering::Relaxed) {
                // A source with `--serve` has done what it was to do, if it serves no receiver just now.
                if self.session.roster.is_idle() {
                    break;
                }
                return Err(TransferError::Cancelled);
            }
            self.steer();
            self.turn_session()?;
            self.start_when_hashed();
            self.tell_hashes()?;
            let busy = self.drain()? | self.hash_when_idle()? | self.sum_when_idle()?;
            self.patch_guests()?;
            self.wait(busy)?;
            let now = self.now();
            if now >= next_event {
                next_event = now + EVENT_INTERVAL;
                self.note_cut_off();
                on_event(&self.report());
                // Those who never say anything are sent away now and then.
                self.meet_strangers();
                let Pace { window, cuts, follows_loss, round_trip, queue, packets, slow } =
                    self.machine.pace();
                tracing::debug!(window, cuts, follows_loss, %round_trip, %queue, packets, slow, "under way");
            }
        }
        let Pace { window, cuts, round_trip, .. } = self.machine.pace();
        tracing::info!(window, cuts, %round_trip, "transfer over");
        on_event(&self.report());
        Ok(())
    }

    fn now(&self) -> Time {
        self.session.clock.now()
    }

    /// Takes in what has changed since the start.
    fn steer(&mut self) {
        let now = self.now();
        if !self.without_path
            && self.channel.is_some()
            && let Some(reason) = self.spec.steering.lost()
        {
            tracing::warn!(%reason, "going on without the path");
            self.account.note(now, reason.clone());
            self.go_without_path(now, reason);
        }
        if let Some(next) = self.spec.steering.next_path() {
            self.take_path(now, next);
        }
        if let Some(channel) = &mut self.channel
            && let Some(outer) = self.spec.steering.take_outer()
        {
            channel.set_outer(outer);
        }
        for name in self.spec.steering.take_cut_off() {
            self.session.handle(RosterInput::Fail { name: &name, why: Why::CutOff });
        }
        for PathNews { waits, event, steps } in self.spec.steering.take_news() {
            if let Some(waits) = waits {
                self.machine.handle(now, Input::PathWaits(waits));
            }
            if let Some(event) = event {
                self.account.note(now, event);
            }
            self.account.control.extend(steps);
        }
        if self.session.take_changes(&self.spec.steering, self.secret.is_some()) {
            self.account.note(now, Why::Rekeyed.to_string());
        }
    }

    /// Does what the session asks of the transport.
    fn turn_session(&mut self) -> Result<(), TransferError> {
        while let Some(event) = self.session.poll() {
            let now = self.now();
            match event {
                Event::Welcome(guest) => self.welcome(guest),
                Event::Ready { guest, have, .. } => {
                    let known = self.session.guest(guest);
                    let (window_bytes, location) =
                        known.map(|guest| (guest.window_bytes, guest.location)).unwrap_or_default();
                    let peer = PeerId(guest.0);
                    self.machine.handle(now, Input::Ready { peer, window_bytes, have, location });
                }
                Event::Start => {
                    self.gather_racks();
                    self.start_waits = true;
                    self.start_when_hashed();
                    self.start_when_hashed();
                }
                Event::Open(true) => self.machine.handle(now, Input::Open),
                Event::Open(false) => self.machine.handle(now, Input::Close),
                Event::Left { guest, why } => {
                    let peer = PeerId(guest.0);
                    self.patches.remove(&peer);
                    self.served.forget_taker(peer);
                    self.machine.handle(now, Input::Left { peer, why });
                }
                Event::Unawaited(guest) => {
                    self.machine.handle(now, Input::Unawaited { peer: PeerId(guest.0) });
                }
                Event::Forget(guest) => {
                    let peer = PeerId(guest.0);
                    self.account.forget(peer);
                    self.cut_off.remove(&peer);
                    self.patches.remove(&peer);
                    self.lost_before.remove(&peer);
                    self.served.forget_taker(peer);
                    self.candidates.remove(&peer);
                    self.machine.handle(now, Input::Forget { peer });
                }
                Event::NoneCame => {
                    let seconds = self.spec.options.join_timeout.0 / 1_000_000_000;
                    return Err(TransferError::NobodyJoined(seconds));
                }
                Event::Finished => self.finished = true,
            }
        }
        Ok(())
    }

    /// Starts the machine once the hashes are known that go ahead of the stream's first fragment. All before
    /// it is read for them, which may take long: the machine's patience with the path and with receivers
    /// begins when something can be sent. The deadline holds meanwhile, and as the session counts it.
    fn start_when_hashed(&mut self) {
        let Some(started_at) = self.session.roster.started_at() else { return };
        let now = self.now();
        if self.start_waits {
            let hashed = self.supply.hashes().len() as u64 >= self.first_groups;
            let streams = self.channel.is_some() && !self.without_path;
            // With none left to serve the machine has nothing to send.
            let serves = self.session.roster.entries().any(|entry| !entry.is_settled());
            if hashed || !streams || !serves {
                self.start_waits = false;
                self.machine.handle(now, Input::Start);
            }
        }
        let late = self.spec.options.deadline.is_some_and(|deadline| now.since(started_at) >= deadline);
        if late && self.first_groups > 0 {
            let open = self.session.roster.entries().filter(|entry| entry.stage == Stage::Ready);
            let names: Vec<String> = open.map(|entry| entry.name.clone()).collect();
            for name in names {
                self.session.handle(RosterInput::Fail { name: &name, why: Why::Deadline });
            }
        }
    }

    /// Does what the machine orders; gives whether there may be more at once.
    fn drain(&mut self) -> Result<bool, TransferError> {
        let mut sends = 0;
        if let Some(channel) = self.channel.as_mut().filter(|_| !self.without_path) {
            let limited = channel.limit_queue(self.machine.host_queue_bytes());
            self.note_sent(limited.map_err(ChannelError::Socket))?;
        }
        loop {
            if self.channel.as_ref().is_some_and(Channel::is_blocked) || sends >= SENDS_MAX {
                return Ok(sends >= SENDS_MAX);
            }
            if self.is_ahead() {
                return Ok(false);
            }
            // The machine goes on, and its timers, when the source has been heard between two reads.
            if let Some(run) = self.unhashed.take() {
                if !self.send_run(run)? {
                    return Ok(true);
                }
                continue;
            }
            let now = self.now();
            let Some(output) = self.machine.poll(now) else { return Ok(false) };
            match output {
                Output::Send { round, sn, count, flags } => {
                    sends += 1;
                    if !self.send_run(Ordered { round, sn, count, flags })? {
                        return Ok(true);
                    }
                }
                Output::SendPatch(sns) => {
                    sends += 1;
                    self.on_channel(Work::Patch(sns), 1)?;
                }
                Output::Patch { peer, sns } => {
                    self.patches.entry(peer).or_default().insert(sns);
                }
                Output::AllowanceUsed { remaining_bytes } => self.ask_for_more(now, remaining_bytes),
                Output::Control { peer, control } => self.session.tell(guest_of(peer), &control),
                Output::Candidates(told) => self.tell_candidates(&told),
                Output::Settled { peer, failure } => self.settled(peer, failure),
                Output::Finished => self.finished = true,
            }
        }
    }

    /// Sends a run, or keeps it where more than a turn's hashes are missing; gives whether it was sent.
    fn send_run(&mut self, run: Ordered) -> Result<bool, TransferError> {
        let Ordered { round, sn, count, flags } = run;
        // Receivers need a group's hash when the group is whole: it goes ahead of the bytes.
        let groups = self.geometry.groups_of_fragments(sn..sn + u64::from(count));
        let lacks = |source: &Self| (source.supply.hashes().len() as u64) < groups.end;
        if lacks(self) {
            self.hash_batch()?;
        }
        if lacks(self) {
            self.unhashed = Some(run);
            return Ok(false);
        }
        self.account.multicast_carries();
        self.on_channel(Work::Run { round, sn, count, flags }, u64::from(count))?;
        Ok(true)
    }

    /// Sends work of so many fragments.
    fn on_channel(&mut self, work: Work, fragments: u64) -> Result<(), TransferError> {
        let channel = self.channel.as_mut().expect("the machine sends only where there is a channel");
        let sent = channel.send(work, &mut self.supply);
        self.paid_at = self.pacing.spend(fragments * u64::from(self.geometry.fragment_len));
        self.note_sent(sent)
    }

    /// Returns true if the bytes sent from here use up the rate for longer than the machine knows of:
    /// connections have their part of it.
    fn is_ahead(&self) -> bool {
        self.now() < self.goes_on_at()
    }

    /// Returns the time at which the bytes sent from here are paid as far as they have to be.
    fn goes_on_at(&self) -> Time {
        Time(self.paid_at.0.saturating_sub(AHEAD_MAX.0))
    }

    /// The transfer ends where the object cannot be read, or this machine has another address by now. Where
    /// the channel takes nothing for another reason, as on a host that may not send multicast, TCP takes it.
    fn note_sent(&mut self, sent: Result<(), ChannelError>) -> Result<(), TransferError> {
        let source = match sent {
            Ok(()) => return Ok(()),
            Err(ChannelError::Read(source)) => return Err(TransferError::reading(source)),
            Err(ChannelError::Socket(source)) => source,
        };
        let interface = self.spec.interface;
        if !is_here(interface) {
            return Err(TransferError::AddressGone(interface));
        }
        let reason = TransferError::Multicast { interface, source }.to_string();
        tracing::warn!(%reason, "going on over TCP");
        if let Some(channel) = &mut self.channel {
            channel.clear();
        }
        let now = self.now();
        self.account.note(now, reason.clone());
        self.go_without_path(now, reason);
        Ok(())
    }

    /// Hashes ahead when there is nothing else to do; gives whether there was something to hash.
    fn hash_when_idle(&mut self) -> Result<bool, TransferError> {
        let whole = self.supply.hashes().len() as u64 == self.geometry.groups();
        let started = self.session.roster.started_at().is_some();
        let sending = started && !self.start_waits && self.channel.is_some() && !self.account.chain_used;
        // While the stream runs it hashes what it needs, just before it is sent and while it is warm.
        if whole || (sending && !self.session.roster.entries().any(|entry| entry.stage == Stage::Present)) {
            return Ok(false);
        }
        self.hash_batch()?;
        Ok(true)
    }

    /// Sums ahead for those who ask, until they are ready; gives whether there was something to sum.
    fn sum_when_idle(&mut self) -> Result<bool, TransferError> {
        let mut all_told = true;
        for (guest, told) in self.session.take_sums_told() {
            // Each is told what is known already, and then what becomes known.
            let known = self.supply.sums();
            let end = known.len().min(told + SUMS_MAX);
            if told < end {
                let sums = known[told..end].to_vec();
                self.session.tell(guest, &Control::Sums { first: told as u64, sums });
            }
            if (end as u64) < self.geometry.groups() {
                all_told = false;
                self.session.sums_told(guest, end);
            }
        }
        Ok(!all_told && !self.supply.sum_more().map_err(TransferError::reading)?.is_empty())
    }

    fn hash_batch(&mut self) -> Result<(), TransferError> {
        let groups = self.supply.hash_more().map_err(TransferError::reading)?;
        groups.clone().for_each(|group| self.served.mark(group));
        let now = self.now();
        self.unchanged.hashed(now, groups.end);
        self.tell_hashes()
    }

    /// Tells the hashes that may be told: the last one, and the root hash, when it was seen that all are of
    /// one state of the object.
    fn tell_hashes(&mut self) -> Result<(), TransferError> {
        let now = self.now();
        let groups = self.unchanged.turn(now)?;
        if groups.is_empty() {
            return Ok(());
        }
        let hashes = self.supply.hashes()[groups.start as usize..groups.end as usize].to_vec();
        let frame = Control::Hashes { first: groups.start, hashes };
        let root = self.root().map(Control::Root);
        for guest in self.session.connected() {
            self.session.tell(guest, &frame);
            if let Some(root) = &root {
                self.session.tell(guest, root);
            }
        }
        Ok(())
    }

    /// The root hash, when it may be told.
    fn root(&self) -> Option<Hash> {
        self.supply.root().filter(|_| self.unchanged.is_sure())
    }

    fn settled(&mut self, peer: PeerId, failure: Option<Why>) {
        let status = self.machine.status(peer);
        let chained = status.as_ref().is_some_and(|status| status.chained);
        self.patches.remove(&peer);
        if status.is_some() {
            self.account.settled(peer, chained);
        }
        if failure.is_some() {
            self.served.forget_taker(peer);
        }
        // One that fetched from others stays: they may fetch from it.
        let serves = chained && failure.is_none();
        self.session.handle(RosterInput::Settled { guest: guest_of(peer), failure, serves });
    }

    /// Turns queued patches into frames where connections have room.
    fn patch_guests(&mut self) -> Result<(), TransferError> {
        let waiting: Vec<PeerId> =
            self.patches.iter().filter(|(_, sns)| !sns.is_empty()).map(|(peer, _)| *peer).collect();
        let fragments_max = (PATCH_LEN / u64::from(self.geometry.fragment_len)).clamp(1, PATCH_FRAGMENTS);
        for peer in waiting {
            while !self.is_ahead()
                && self.session.queued(guest_of(peer)).is_some_and(|queued| queued < PATCH_QUEUE_LEN)
            {
                let Some(sns) = self.patches.get_mut(&peer) else { break };
                let Some(first) = sns.first() else { break };
                let run = sns.run_at(first).expect("its first fragment");
                let run = run.start..run.end.min(run.start + fragments_max);
                sns.remove(run.clone());
                let payload = self.supply.plain(run.clone()).map_err(TransferError::reading)?;
                self.account.unicast_bytes += payload.len() as u64;
                if let Some(guest) = self.session.guest(guest_of(peer)) {
                    self.crossings.patched(&guest.location.zone, payload.len() as u64);
                }
                self.paid_at = self.pacing.spend(payload.len() as u64);
                self.session.tell(guest_of(peer), &Control::PtchData { sn: run.start, payload });
            }
        }
        Ok(())
    }

    /// Waits for something to happen, and handles it.
    fn wait(&mut self, busy: bool) -> Result<(), TransferError> {
        let now = self.now();
        self.announce(now)?;
        let blocked = self.channel.as_ref().filter(|c| c.is_blocked());
        let mut fds = Vec::new();
        if let Some(announcer) = &self.announcer {
            fds.push(PollFd::from_borrowed_fd(announcer.as_fd(), PollFlags::IN));
        }
        if let Some(channel) = blocked {
            fds.push(PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::OUT));
        }
        let first = fds.len();
        self.session.descriptors(&mut fds);
        let paid = self.is_ahead().then(|| self.goes_on_at());
        let own = paid.or(self.machine.deadline()).filter(|_| blocked.is_none());
        let deadline = own.into_iter().chain(self.session.roster.deadline()).min();
        wait(&mut fds, now, if busy { Some(Time::ZERO) } else { deadline }, LOOK_INTERVAL)?;
        let woken = self.session.woken(&fds[first..]);
        drop(fds);
        if let Some(channel) = self.channel.as_mut().filter(|c| c.is_blocked()) {
            let flushed = channel.flush(&mut self.supply);
            self.note_sent(flushed)?;
        }
        if woken.bell {
            self.session.clear_bell();
        }
        for guest in woken.guests {
            // The machine has to know a receiver before it hears what that says in the same breath as HAVE.
            while self.hear(guest)? {
                self.turn_session()?;
            }
        }
        if woken.newcomers {
            self.meet_strangers();
        }
        Ok(())
    }

    /// Hears what a receiver has said. Returns true if it has become ready by that, with the rest unread.
    fn hear(&mut self, guest: GuestId) -> Result<bool, TransferError> {
        let (now, machine) = (self.session.clock.now(), &mut self.machine);
        let (peer, mut words) = (PeerId(guest.0), Vec::new());
        let heard = self.session.read(guest, |control| match Word::of(control) {
            Some(word) => words.push(word),
            None => machine.handle(now, Input::Control { peer, control }),
        });
        let is_new = heard.map_err(TransferError::reading)?;
        words.into_iter().for_each(|word| self.hear_of_mesh(peer, word));
        Ok(is_new)
    }

    /// Announces the offer where receivers look for one.
    fn announce(&mut self, now: Time) -> Result<(), TransferError> {
        let (Some(announcer), address) = (&mut self.announcer, self.address) else { return Ok(()) };
        let (places, code) = (self.session.roster.free_places(), self.session.sign());
        let said = announcer.turn(now, self.handle, address, places, self.session.shown(false), code);
        match said {
            Err(_) if !is_here(self.spec.interface) => Err(TransferError::AddressGone(self.spec.interface)),
            Err(error) if announcer.is_mute_anew() => {
                tracing::warn!(%error, "the offer cannot be announced: receivers have to say --from {address}");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Takes in new connections: receivers, and those that take what this end gives away.
    fn meet_strangers(&mut self) {
        for (mut stream, frame) in self.session.meet_strangers() {
            match self.served.wish(&frame, stream.binding()) {
                Some(wish) => self.served.take_in(stream, wish),
                // One that does not hear this notices that the connection ends.
                None => drop(stream.send(&Control::Refuse(NO_TICKET))),
            }
        }
    }

    /// Says WELCOME and what is known of the object.
    fn welcome(&mut self, guest: GuestId) {
        let (channel, outer_len) = match &self.spec.path {
            Path::Multicast { group, outer, .. } => {
                ((group.ip(), group.port()), outer.first().map_or(0, Vec::len) as u8)
            }
            Path::Chain | Path::Trees(_) => (NOWHERE, 0),
        };
        let welcome = Control::Welcome(Welcome {
            object: self.spec.object,
            form: form_of(self.spec.kind),
            mode: self.spec.source.mode(),
            name: &self.spec.name,
            object_len: self.geometry.object_len,
            fragment_len: self.geometry.fragment_len,
            group_len: self.geometry.group_len,
            channel,
            outer_len,
            stall_ns: self.spec.options.stall_timeout.0,
            salt: self.session.guest(guest).map_or([0; 32], |guest| guest.salt),
            modified: self.spec.source.modified(),
            data_len: data_len(&*self.spec.source),
        });
        self.session.tell(guest, &welcome);
        if let Some(secret) = &self.secret {
            self.session.tell(guest, &Control::Seal(SealSecret(*secret.reveal())));
        }
        let known = &self.supply.hashes()[..self.unchanged.may_tell() as usize];
        for (i, part) in known.chunks(HASHES_MAX).enumerate() {
            let first = (i * HASHES_MAX) as u64;
            self.session.tell(guest, &Control::Hashes { first, hashes: part.to_vec() });
        }
        if let Some(root) = self.root() {
            self.session.tell(guest, &Control::Root(root));
        }
    }
}

/// Returns the number of bytes of an object outside holes, where it is worth a message: a receiver that knows
/// of holes looks where they are, and its source hashes all of it first.
fn data_len(source: &dyn ObjectSource) -> Option<u64> {
    let (len, holes_len) = (source.len(), source.holes_len());
    (holes_len >= HOLES_LEN_LEAST && holes_len >= len / HOLES_PART_LEAST).then(|| len - holes_len.min(len))
}
