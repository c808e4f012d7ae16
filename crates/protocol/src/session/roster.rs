//! The source's end of a session: the list of receivers, and what has become of each.

mod away;

use super::{ALIVE_INTERVAL, CHECKED_PER_SECOND, Gone, HAVE_WITHIN, QUIET_AFTER, Why};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use away::Away;
use polycast_types::{Duration, Handle, Printable, RangeSet, Rate, Time};
use polycast_wire::control::{Control, Hello};

/// A named receiver is called so often, if connections that come under its name do not become ready.
const CALLS_MAX: u32 = 8;
/// A source that serves all that come serves at most so many.
const SERVED_MAX: u32 = 100_000;
/// For one that has come more often than that the others do not wait any more: each time it would have all
/// the patience anew.
const AWAITED_MAX: u32 = 4;
/// A named one that has come so often comes no more, unless it has verified one part in so many of the object
/// since. Where receivers are only counted any host may come under its name, and under others.
const JOINS_MAX: u32 = 100;
const JOINS_PARTS: u64 = 64;

/// A connection to the source. The driver counts them; a number is never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GuestId(pub u32);

/// Receivers that a transfer is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Receivers that are called by name.
    Named(Vec<String>),
    /// So many, whatever their names.
    Count(u32),
    /// So many, whatever their names, are waited for at the beginning, and others may come for as long as it
    /// runs. It ends when it is told to.
    AtLeast(u32),
}

/// Part that notices that a receiver is done, silent or late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdicts {
    /// The transport's sender does, and says so by [`Input::Settled`] (push).
    Sender,
    /// The roster does: a receiver is done when it says DATA_RCVD, and starves when its verified bytes do not
    /// grow (pull). Those that are done stay connected until all are.
    Roster {
        /// Receivers that are not done this long after the start have failed.
        deadline: Option<Duration>,
    },
}

/// Settings of a roster.
#[derive(Clone, Debug)]
pub struct RosterConfig {
    /// The transfer.
    pub handle: Handle,
    /// Its receivers.
    pub expected: Expected,
    /// The object's length in bytes: no receiver has verified more.
    pub object_len: u64,
    /// Time that receivers may take to join.
    pub join_timeout: Duration,
    /// One that has said HELLO and is not ready loses its place after so long without a sign of life.
    pub have_timeout: Duration,
    /// One that is served without any sign of life for this long has failed.
    pub stall_timeout: Duration,
    /// Part that judges receivers that are ready.
    pub verdicts: Verdicts,
}

impl RosterConfig {
    /// Returns the shipped settings: the times that daemons and simulations use.
    #[must_use]
    pub fn new(handle: Handle, expected: Expected, object_len: u64, verdicts: Verdicts) -> Self {
        RosterConfig {
            handle,
            expected,
            object_len,
            join_timeout: Duration::from_secs(30),
            have_timeout: HAVE_WITHIN,
            stall_timeout: Duration::from_secs(10),
            verdicts,
        }
    }

    /// Returns the time that a receiver may take to check what an earlier try has left, from when it knows
    /// all hashes.
    fn check_timeout(&self) -> Duration {
        self.join_timeout + Rate(CHECKED_PER_SECOND * 8).time_for(self.object_len)
    }
}

/// Events that a roster handles.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// A connection has said HELLO.
    Hello {
        /// The connection.
        guest: GuestId,
        /// Contents of HELLO.
        hello: &'a Hello<'a>,
    },
    /// A connection that was welcomed has said something else.
    Frame {
        /// The connection.
        guest: GuestId,
        /// Frame that it sent.
        control: &'a Control<'a>,
    },
    /// A connection has ended, or cannot be used any more.
    Gone {
        /// The connection.
        guest: GuestId,
        /// Way in which it ended.
        how: Gone,
    },
    /// Something was sent to a connection.
    Told {
        /// The connection.
        guest: GuestId,
    },
    /// A connection has been told all hashes: what an earlier try has left there can be checked.
    Informed {
        /// The connection.
        guest: GuestId,
    },
    /// A receiver has said DATA_RCVD with a wrong proof.
    Unproven {
        /// The connection.
        guest: GuestId,
    },
    /// A receiver was called and does not come.
    NotComing {
        /// Its name.
        name: &'a str,
        /// Reason, in its agent's words.
        why: String,
    },
    /// A further receiver, by name; one that has failed is called again.
    Add(&'a str),
    /// A receiver, by name, that needs nothing any more.
    Remove(&'a str),
    /// One of those that are only counted will not come, by the name that it would have come under.
    Fewer(&'a str),
    /// The path cannot serve a receiver, for this reason.
    Fail {
        /// Its name.
        name: &'a str,
        /// The reason.
        why: Why,
    },
    /// The transport's sender has settled a receiver.
    Settled {
        /// Its connection.
        guest: GuestId,
        /// Reason for the failure, if it failed.
        failure: Option<Why>,
        /// Set if it stays because others fetch from it.
        serves: bool,
    },
    /// The transfer has ended.
    Over(Goodbye),
}

/// The last word to a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goodbye {
    /// FINISHED.
    Finished,
    /// REFUSE with this sentence.
    Refuse(Why),
}

/// Actions for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Call a receiver: its agent is to join.
    Call(String),
    /// Answer HELLO with WELCOME and what is known of the object.
    Welcome(GuestId),
    /// A receiver is ready: tell the transport.
    Ready {
        /// Its connection.
        guest: GuestId,
        /// The fragments that it holds already.
        have: RangeSet,
        /// Set if the transfer runs already.
        late: bool,
    },
    /// Begin; each receiver that is ready has been named before.
    Start,
    /// Receivers may still join.
    Open,
    /// No receiver is waited for any more: the transfer ends when those that are ready are settled.
    Close,
    /// A receiver that was ready has failed, or one that was done serves others no more: tell the transport.
    Left {
        /// Its connection.
        guest: GuestId,
        /// The reason.
        why: Why,
    },
    /// Send ALIVE: the connection has heard nothing for a while.
    Alive(GuestId),
    /// Say this to a connection and end it.
    Goodbye(GuestId, Goodbye),
    /// One that is ready has come again and again: the others are not to wait for it.
    Unawaited(GuestId),
    /// Its receiver has come by another connection, or another receiver has its place: nothing of this one is
    /// needed any more.
    Forget(GuestId),
    /// Counted receivers did not come in time: there is no transfer.
    NoneCame,
    /// Every receiver is settled, and the transport will not say so: it has not begun, or leaves that to the
    /// roster.
    Finished,
}

/// Progress of a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Called; it has not come, or came and did not become ready.
    Called,
    /// It has said HELLO, and not yet what it holds.
    Present,
    /// It has said HAVE.
    Ready,
    /// It has the object.
    Done,
    /// It was given up.
    Failed(Why),
}

/// State of one receiver, as the roster knows it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name, different from all others'.
    pub name: String,
    /// Its connection, the last one if there were several.
    pub guest: Option<GuestId>,
    /// Stage that it has reached.
    pub stage: Stage,
    /// Bytes that it has verified, as far as frames that the roster hears have said: the most of all its
    /// connections.
    pub verified_bytes: u64,
    /// The same of this connection: it may have lost what it had.
    own_bytes: u64,
    /// Time when it was settled.
    pub settled_at: Option<Time>,
    connected: bool,
    called_at: Time,
    heard_at: Time,
    told_at: Time,
    progressed_at: Time,
    /// Number of times that it was called, and that it has become ready.
    calls: u32,
    joins: u32,
    /// Bytes that it had verified when that was last counted from 0.
    joins_from_bytes: u64,
    /// Time when it had been notified of all hashes.
    informed_at: Option<Time>,
    /// Set if it had something of the object when it became ready.
    resumes: bool,
    away: Option<Away>,
}

impl Entry {
    fn new(name: String, now: Time) -> Self {
        Entry {
            name,
            guest: None,
            stage: Stage::Called,
            verified_bytes: 0,
            own_bytes: 0,
            settled_at: None,
            connected: false,
            called_at: now,
            heard_at: now,
            told_at: now,
            progressed_at: now,
            calls: 1,
            joins: 0,
            joins_from_bytes: 0,
            informed_at: None,
            resumes: false,
            away: None,
        }
    }

    /// Returns the number of times that it has become ready since it last made progress.
    fn joins_in_vain(&self, object_len: u64) -> u32 {
        let gets_on = self.joins_from_bytes.saturating_add(object_len / JOINS_PARTS + 1);
        if self.verified_bytes >= gets_on { 0 } else { self.joins }
    }

    /// Returns true once it is done or was given up.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        matches!(self.stage, Stage::Done | Stage::Failed(_))
    }

    /// Returns true while it is not ready yet and may still become so.
    fn is_awaited(&self) -> bool {
        matches!(self.stage, Stage::Called | Stage::Present)
    }

    /// Returns true if it takes a place where receivers are counted.
    fn takes_place(&self) -> bool {
        !matches!(self.stage, Stage::Failed(_))
    }

    /// Returns the reason why it was given up, if it was.
    #[must_use]
    pub fn failure(&self) -> Option<&Why> {
        match &self.stage {
            Stage::Failed(why) => Some(why),
            _ => None,
        }
    }
}

/// The source's end of a session; see the [module](super).
#[derive(Debug)]
pub struct Roster {
    config: RosterConfig,
    entries: Vec<Entry>,
    by_guest: BTreeMap<GuestId, usize>,
    /// Names of counted receivers that are not expected any more, and whether each has given up its place.
    not_coming: BTreeMap<String, bool>,
    outputs: VecDeque<Output>,
    born_at: Time,
    started_at: Option<Time>,
    /// Time when a receiver last became ready.
    ready_at: Option<Time>,
    /// Set while the transport has been notified that receivers may still join.
    open: bool,
    over: bool,
    finished: bool,
    heard: u64,
    /// Time when something may be due.
    next_check: Option<Time>,
}

impl Roster {
    /// A roster whose named receivers are called at once.
    #[must_use]
    pub fn new(now: Time, config: RosterConfig) -> Self {
        let mut roster = Roster {
            entries: Vec::new(),
            by_guest: BTreeMap::new(),
            not_coming: BTreeMap::new(),
            outputs: VecDeque::new(),
            born_at: now,
            started_at: None,
            ready_at: None,
            open: true,
            over: false,
            finished: false,
            heard: 0,
            next_check: Some(now),
            config,
        };
        if let Expected::Named(names) = &roster.config.expected {
            for name in names.clone() {
                if roster.position(&name).is_none() {
                    roster.entries.push(Entry::new(name.clone(), now));
                    roster.outputs.push_back(Output::Call(name));
                }
            }
        }
        roster
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::Told { guest } => {
                if let Some(&at) = self.by_guest.get(&guest) {
                    self.entries[at].told_at = now;
                }
                return;
            }
            Input::Frame { guest, control } => self.frame(now, guest, control),
            Input::Hello { guest, hello } => self.hello(now, guest, hello),
            Input::Gone { guest, how } => self.gone(now, guest, how),
            Input::Informed { guest } => {
                if let Some(&at) = self.by_guest.get(&guest) {
                    self.entries[at].informed_at.get_or_insert(now);
                    self.next_check = Some(now);
                }
            }
            Input::Unproven { guest } => {
                if let Some(&at) = self.by_guest.get(&guest).filter(|at| !self.entries[**at].is_settled()) {
                    self.fail(now, at, Why::Unproven);
                }
            }
            Input::NotComing { name, why } => self.not_coming(now, name, why),
            Input::Add(name) => self.add(now, name),
            Input::Remove(name) => self.take_out(now, name),
            Input::Fewer(name) => self.expect_fewer(now, name),
            Input::Fail { name, why } => self.give_up(now, name, why),
            Input::Settled { guest, failure, serves } => {
                self.settled(now, guest, failure, serves);
            }
            Input::Over(word) => self.end(now, &word),
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// Returns the next action, or `None` until `deadline` or the next input.
    pub fn poll(&mut self, now: Time) -> Option<Output> {
        if self.outputs.is_empty() && self.next_check.is_some_and(|at| now >= at) && !self.over {
            self.look(now);
        }
        self.outputs.pop_front()
    }

    /// Returns the time when `poll` is to be called again if nothing happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        if !self.outputs.is_empty() {
            return Some(Time::ZERO);
        }
        self.next_check.filter(|_| !self.over)
    }

    /// All receivers: named ones in the order of their list, counted ones as they came.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The receiver behind a connection; `None` if it was turned away, or another connection took its place.
    #[must_use]
    pub fn entry(&self, guest: GuestId) -> Option<&Entry> {
        self.by_guest.get(&guest).map(|&at| &self.entries[at])
    }

    /// The receiver of this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Entry> {
        self.position(name).map(|at| &self.entries[at])
    }

    /// Returns true if a connection is that of a receiver which is ready and not settled: its frames are for
    /// the transport.
    #[must_use]
    pub fn is_ready(&self, guest: GuestId) -> bool {
        self.entry(guest).is_some_and(|entry| entry.stage == Stage::Ready)
    }

    /// The transfer.
    #[must_use]
    pub fn transfer(&self) -> Handle {
        self.config.handle
    }

    /// Returns the time when the transfer started.
    #[must_use]
    pub fn started_at(&self) -> Option<Time> {
        self.started_at
    }

    /// Frames heard of receivers since the start.
    #[must_use]
    pub fn heard(&self) -> u64 {
        self.heard
    }

    /// Places for receivers that are counted; none where they are named.
    fn places(&self) -> u32 {
        match self.config.expected {
            Expected::Named(_) => 0,
            Expected::Count(count) => count,
            Expected::AtLeast(_) => SERVED_MAX,
        }
    }

    /// Returns true if all receivers that came are settled, and the transfer goes on because others may come.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.serves() && self.entries.iter().all(Entry::is_settled)
    }

    /// Counted receivers that never came; named ones have entries of their own. Where others may come at any
    /// time, none is missing.
    #[must_use]
    pub fn missing(&self) -> u32 {
        let Expected::Count(count) = self.config.expected else { return 0 };
        count.saturating_sub(self.entries.len() as u32)
    }

    /// Places that a counted receiver may take: one that has failed makes room.
    #[must_use]
    pub fn free_places(&self) -> u32 {
        let taken = self.entries.iter().filter(|entry| entry.takes_place()).count();
        self.places().saturating_sub(taken as u32)
    }

    /// Places of counted receivers for which one is waited: none has come for them, or one that was lost, or
    /// that left though it was ready, as when its user ends it. One that has said that it cannot receive is
    /// not waited for.
    fn vacant(&self) -> u32 {
        let (Expected::Count(count) | Expected::AtLeast(count)) = self.config.expected else { return 0 };
        let is_lost =
            |why: &Why| matches!(why, Why::WentAway | Why::Broken(_) | Why::NotReady(_) | Why::Unproven);
        let has_left = |entry: &Entry, why: &Why| matches!(why, Why::Said(_)) && entry.joins > 0;
        let may_come = |entry: &Entry| !self.not_coming.contains_key(&entry.name);
        let lost = |entry: &&Entry| {
            may_come(entry) && entry.failure().is_some_and(|why| is_lost(why) || has_left(entry, why))
        };
        count.saturating_sub((self.entries.len() - self.entries.iter().filter(lost).count()) as u32)
    }

    /// Returns true if a receiver that only claimed to have the object has taken the place of a counted one
    /// that may come yet: the roster waits for the latter as long as if the former had not come.
    fn is_cheated(&self, now: Time) -> bool {
        let Expected::Count(_) = self.config.expected else { return false };
        let lied = |entry: &Entry| entry.failure() == Some(&Why::Unproven);
        now < self.born_at + self.config.join_timeout && self.entries.iter().any(lied)
    }

    /// From the start to when a receiver was settled, or to `now`; nothing before the start.
    #[must_use]
    pub fn time_of(&self, entry: &Entry, now: Time) -> Duration {
        let Some(started_at) = self.started_at else { return Duration::ZERO };
        entry.settled_at.unwrap_or(now).since(started_at)
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.name == name)
    }

    fn hello(&mut self, now: Time, guest: GuestId, hello: &Hello<'_>) {
        assert!(
            !self.by_guest.contains_key(&guest),
            "{guest:?} says HELLO twice: connections are numbered once"
        );
        match self.place(now, hello) {
            Ok(at) => {
                let entry = &mut self.entries[at];
                let before = entry.guest.replace(guest);
                self.forget(before);
                let entry = &mut self.entries[at];
                (entry.stage, entry.settled_at, entry.connected) = (Stage::Present, None, true);
                (entry.heard_at, entry.told_at, entry.informed_at) = (now, now, None);
                self.by_guest.insert(guest, at);
                self.outputs.push_back(Output::Welcome(guest));
                self.next_check = Some(now);
            }
            Err(why) => self.outputs.push_back(Output::Goodbye(guest, Goodbye::Refuse(why))),
        }
    }

    /// The entry for one that says HELLO.
    fn place(&mut self, now: Time, hello: &Hello<'_>) -> Result<usize, Why> {
        if hello.handle != self.config.handle {
            return Err(Why::UnknownHandle);
        }
        if self.over || self.finished {
            return Err(Why::Over);
        }
        if let Expected::Named(_) = self.config.expected {
            let at = self.position(hello.name).ok_or(Why::NotListed)?;
            return match &self.entries[at].stage {
                Stage::Called => Ok(at),
                Stage::Present | Stage::Ready | Stage::Done => Err(Why::Twice),
                Stage::Failed(why) if why.is_final() => Err(why.clone()),
                Stage::Failed(_) if self.entries[at].joins_in_vain(self.config.object_len) >= JOINS_MAX => {
                    Err(Why::TooOften(JOINS_MAX))
                }
                Stage::Failed(_) => {
                    self.entries[at].called_at = now;
                    Ok(at)
                }
            };
        }
        // Anyone may come, under any name: the report shows it.
        let called = Printable(hello.name).to_string();
        self.expect_again(&called);
        if self.free_places() == 0 {
            return Err(Why::Full);
        }
        // One that comes again has its own place, and otherwise one that failed makes room.
        let failed = |entry: &Entry| !entry.takes_place();
        let own = self.entries.iter().position(|entry| failed(entry) && entry.name == called);
        if own.is_some_and(|at| self.entries[at].failure() == Some(&Why::Unproven)) {
            return Err(Why::Unproven);
        }
        let full = self.entries.len() >= self.places() as usize;
        let (joins, joins_from_bytes) =
            own.map_or((0, 0), |at| (self.entries[at].joins, self.entries[at].joins_from_bytes));
        let at = own.or_else(|| full.then(|| self.entries.iter().position(failed)).flatten());
        let name = match own {
            Some(at) => self.entries[at].name.clone(),
            None => self.unused_name(&called),
        };
        let verified_bytes = own.map_or(0, |at| self.entries[at].verified_bytes);
        let entry = Entry { joins, joins_from_bytes, verified_bytes, ..Entry::new(name, now) };
        match at {
            Some(at) => {
                let before = core::mem::replace(&mut self.entries[at], entry);
                self.forget(before.guest);
                Ok(at)
            }
            None => {
                self.entries.push(entry);
                Ok(self.entries.len() - 1)
            }
        }
    }

    /// Several receivers of one host call themselves alike: the report tells them apart.
    fn unused_name(&self, name: &str) -> String {
        let mut unused = name.to_string();
        let mut number = 2;
        while self.position(&unused).is_some() {
            unused = format!("{name}#{number}");
            number += 1;
        }
        unused
    }

    fn frame(&mut self, now: Time, guest: GuestId, control: &Control<'_>) {
        let Some(&at) = self.by_guest.get(&guest) else { return };
        let (late, judges, object_len) = (self.started_at.is_some(), self.judges(), self.config.object_len);
        self.heard += u64::from(late);
        let entry = &mut self.entries[at];
        entry.heard_at = now;
        if entry.is_settled() {
            return;
        }
        match control {
            Control::Have(ranges) if entry.stage == Stage::Present => {
                (entry.stage, entry.progressed_at, entry.own_bytes) = (Stage::Ready, now, 0);
                entry.resumes = !ranges.is_empty();
                // One that has got on meanwhile may come as often again.
                if entry.joins > 0 && entry.joins_in_vain(object_len) == 0 {
                    (entry.joins, entry.joins_from_bytes) = (0, entry.verified_bytes);
                }
                entry.joins = entry.joins.saturating_add(1);
                entry.away = None;
                let have = ranges.iter().cloned().collect();
                self.outputs.push_back(Output::Ready { guest, have, late });
                if entry.joins > AWAITED_MAX {
                    self.outputs.push_back(Output::Unawaited(guest));
                }
                (self.ready_at, self.next_check) = (Some(now), Some(now));
            }
            Control::Refuse(words) => self.fail(now, at, Why::Said((*words).to_string())),
            Control::Progress { verified_bytes, .. } if *verified_bytes > entry.own_bytes => {
                entry.own_bytes = (*verified_bytes).min(self.config.object_len);
                entry.verified_bytes = entry.verified_bytes.max(entry.own_bytes);
                entry.progressed_at = now;
            }
            Control::DataRcvd { .. } if judges && entry.stage == Stage::Ready => {
                entry.verified_bytes = self.config.object_len;
                self.settled(now, guest, None, true);
            }
            _ => {}
        }
    }

    fn judges(&self) -> bool {
        matches!(self.config.verdicts, Verdicts::Roster { .. })
    }

    fn gone(&mut self, now: Time, guest: GuestId, how: Gone) {
        let Some(&at) = self.by_guest.get(&guest) else { return };
        let was_connected = core::mem::replace(&mut self.entries[at].connected, false);
        if self.calls_again(&how) && matches!(self.entries[at].stage, Stage::Present | Stage::Ready) {
            self.entries[at].leave(now);
            self.next_check = Some(now);
        }
        match self.entries[at].stage {
            Stage::Present => self.lose_place(now, at, how.into()),
            Stage::Called | Stage::Ready => self.fail(now, at, how.into()),
            // It has the object, but others may have been sent to fetch from it.
            Stage::Done if was_connected => self.outputs.push_back(Output::Left { guest, why: how.into() }),
            Stage::Done | Stage::Failed(_) => {}
        }
    }

    fn add(&mut self, now: Time, name: &str) {
        if !matches!(self.config.expected, Expected::Named(_)) {
            return;
        }
        let at = match self.position(name) {
            Some(at) if self.entries[at].takes_place() => return,
            Some(at) => {
                let before = core::mem::replace(&mut self.entries[at], Entry::new(name.into(), now));
                self.forget(before.guest);
                at
            }
            None => {
                self.entries.push(Entry::new(name.into(), now));
                self.entries.len() - 1
            }
        };
        if self.over || self.finished {
            self.fail(now, at, Why::AddedLate);
            return;
        }
        self.outputs.push_back(Output::Call(name.into()));
        self.next_check = Some(now);
    }

    fn give_up(&mut self, now: Time, name: &str, why: Why) {
        if let Some(at) = self.position(name).filter(|at| !self.entries[*at].is_settled()) {
            self.fail(now, at, why);
        }
    }

    fn settled(&mut self, now: Time, guest: GuestId, failure: Option<Why>, serves: bool) {
        let Some(&at) = self.by_guest.get(&guest) else { return };
        // What the roster has given up itself, the sender settles after it.
        if self.entries[at].is_settled() {
            return;
        }
        let Some(why) = failure else {
            let entry = &mut self.entries[at];
            (entry.stage, entry.settled_at) = (Stage::Done, Some(now));
            self.next_check = Some(now);
            if !serves {
                self.say_goodbye(at, Goodbye::Finished);
            }
            return;
        };
        self.settle_failed(now, at, why);
    }

    /// Gives up a receiver that is not settled, and tells the transport.
    fn fail(&mut self, now: Time, at: usize, why: Why) {
        if let (Stage::Ready, Some(guest)) = (&self.entries[at].stage, self.entries[at].guest) {
            self.outputs.push_back(Output::Left { guest, why: why.clone() });
        }
        self.settle_failed(now, at, why);
    }

    fn settle_failed(&mut self, now: Time, at: usize, why: Why) {
        let entry = &mut self.entries[at];
        assert!(!entry.is_settled(), "'{}' ends a second time", entry.name);
        (entry.stage, entry.settled_at) = (Stage::Failed(why.clone()), Some(now));
        self.next_check = Some(now);
        self.say_goodbye(at, Goodbye::Refuse(why));
    }

    /// Ends a receiver's connection, if there is one.
    fn say_goodbye(&mut self, at: usize, word: Goodbye) {
        let entry = &mut self.entries[at];
        if let Some(guest) = entry.guest.filter(|_| core::mem::replace(&mut entry.connected, false)) {
            self.outputs.push_back(Output::Goodbye(guest, word));
        }
    }

    fn end(&mut self, now: Time, word: &Goodbye) {
        if core::mem::replace(&mut self.over, true) {
            return;
        }
        for at in 0..self.entries.len() {
            if self.entries[at].is_settled() {
                self.say_goodbye(at, Goodbye::Finished);
                continue;
            }
            let why = match word {
                Goodbye::Refuse(why) => why.clone(),
                Goodbye::Finished => Why::NeverJoined,
            };
            self.fail(now, at, why);
        }
        self.next_check = None;
    }

    /// Does what is due, and notes when something will be again.
    fn look(&mut self, now: Time) {
        self.give_up_late(now);
        self.call_again(now);
        self.keep_alive(now);
        self.begin(now);
        self.tell_open(now);
        self.finish(now);
        self.next_check = self.next_due(now);
    }

    /// Returns the time when a receiver that is awaited, or starves, is given up. One that is here may check
    /// what it has for as long as a slow disk takes, provided that it shows that it lives.
    fn patience(&self, entry: &Entry) -> Option<Time> {
        match entry.stage {
            Stage::Called => Some(entry.called_at + self.config.join_timeout),
            Stage::Present => {
                let silent = entry.heard_at + self.config.have_timeout;
                let checked = entry.informed_at.map(|at| at + self.config.check_timeout());
                Some(checked.map_or(silent, |at| at.min(silent)))
            }
            Stage::Ready if self.judges() && self.started_at.is_some() => {
                let since = self.started_at.map_or(entry.progressed_at, |at| at.max(entry.progressed_at));
                // One that has all of it waits for the last word, which comes after a look at the object:
                // until then it only has to live.
                let has_all = entry.own_bytes >= self.config.object_len;
                let heard = has_all.then_some(entry.informed_at.unwrap_or(entry.heard_at));
                Some(since.max(heard.unwrap_or(since)) + self.config.stall_timeout)
            }
            Stage::Ready | Stage::Done | Stage::Failed(_) => None,
        }
    }

    /// Returns the time when a roster that judges gives up all receivers that are not done.
    fn end_of_all(&self) -> Option<Time> {
        match self.config.verdicts {
            Verdicts::Roster { deadline: Some(deadline) } => Some(self.started_at? + deadline),
            _ => None,
        }
    }

    fn give_up_late(&mut self, now: Time) {
        let over = self.end_of_all().is_some_and(|at| now >= at);
        for at in 0..self.entries.len() {
            let entry = &self.entries[at];
            if over && !entry.is_settled() {
                self.fail(now, at, Why::Deadline);
            } else if self.patience(entry).is_some_and(|until| now >= until) {
                match entry.stage {
                    Stage::Present => self.lose_place(now, at, Why::NotReady(self.config.have_timeout)),
                    Stage::Ready => self.fail(now, at, Why::Starved(self.config.stall_timeout)),
                    _ => self.fail(now, at, Why::NeverJoined),
                }
            }
        }
    }

    /// One has said HELLO and does not become ready. Where the receivers are named, the host that came under
    /// this name need not be the one that was called: that one is called again.
    fn lose_place(&mut self, now: Time, at: usize, why: Why) {
        let entry = &self.entries[at];
        let late = now >= entry.called_at + self.config.join_timeout || entry.calls >= CALLS_MAX;
        if !matches!(self.config.expected, Expected::Named(_)) || late {
            self.fail(now, at, why);
            return;
        }
        self.say_goodbye(at, Goodbye::Refuse(why));
        let entry = &mut self.entries[at];
        (entry.stage, entry.calls) = (Stage::Called, entry.calls + 1);
        let before = entry.guest.take();
        self.outputs.push_back(Output::Call(entry.name.clone()));
        self.forget(before);
    }

    /// A connection is no receiver's any more. One may come again and again: what is known of it would be
    /// more each time.
    fn forget(&mut self, guest: Option<GuestId>) {
        let Some(guest) = guest else { return };
        self.by_guest.remove(&guest);
        self.outputs.push_back(Output::Forget(guest));
    }

    fn keep_alive(&mut self, now: Time) {
        for entry in self.entries.iter_mut().filter(|entry| entry.connected) {
            if now.since(entry.told_at) >= ALIVE_INTERVAL {
                entry.told_at = now;
                self.outputs.extend(entry.guest.map(Output::Alive));
            }
        }
    }

    /// Returns the time when the transfer starts without those that are awaited.
    fn starts_without(&self) -> Option<Time> {
        match self.config.expected {
            Expected::Named(_) => {
                let ready_at = self.ready_at?;
                Some(self.checked_by().map_or(ready_at + QUIET_AFTER, |at| at.max(ready_at + QUIET_AFTER)))
            }
            Expected::Count(_) | Expected::AtLeast(_) => Some(self.born_at + self.config.join_timeout),
        }
    }

    /// Until when receivers that still check what they have are waited for: where all who are ready had
    /// something to check, as long again as that took them. They lack little, which is sent once if they
    /// begin together. Receivers that have nothing do not wait.
    fn checked_by(&self) -> Option<Time> {
        let checks = |entry: &Entry| entry.stage == Stage::Present && entry.informed_at.is_some();
        let ready = self.entries.iter().filter(|entry| entry.stage == Stage::Ready);
        if !self.entries.iter().any(checks) || ready.clone().any(|entry| !entry.resumes) {
            return None;
        }
        let took = ready.filter_map(|entry| Some(entry.progressed_at.since(entry.informed_at?))).max()?;
        self.ready_at.map(|at| at + took)
    }

    fn begin(&mut self, now: Time) {
        if self.started_at.is_some() || self.finished {
            return;
        }
        // One that an earlier try has left everything may be done before the start.
        let ready = self.entries.iter().any(|entry| matches!(entry.stage, Stage::Ready | Stage::Done));
        let waits = self.entries.iter().any(Entry::is_awaited) || self.vacant() > 0;
        let late = self.starts_without().is_some_and(|at| now >= at);
        if ready && (!waits || late) {
            self.started_at = Some(now);
            self.outputs.push_back(Output::Start);
        } else if self.serves() {
            // The next receiver that comes is the first.
        } else if !ready && late && !self.entries.iter().any(Entry::is_awaited) && self.vacant() > 0 {
            self.finished = true;
            self.outputs.push_back(Output::NoneCame);
        }
    }

    /// Returns true if others may come until the transfer is ended.
    fn serves(&self) -> bool {
        matches!(self.config.expected, Expected::AtLeast(_))
    }

    fn tell_open(&mut self, now: Time) {
        let awaited = self.entries.iter().any(Entry::is_awaited) || self.awaits_return(now);
        let open = self.serves() || self.is_cheated(now) || awaited;
        if self.started_at.is_some() && core::mem::replace(&mut self.open, open) != open {
            self.outputs.push_back(if open { Output::Open } else { Output::Close });
        }
    }

    fn finish(&mut self, now: Time) {
        let settled = self.entries.iter().all(Entry::is_settled);
        let cheated = self.started_at.is_some() && self.is_cheated(now);
        let waits = self.serves() || cheated || self.awaits_return(now);
        if settled && waits {
            self.let_go();
        }
        let over = settled && !waits && (self.started_at.is_some() || self.vacant() == 0);
        let ours = self.judges() || self.started_at.is_none();
        if ours && over && !self.serves() && !core::mem::replace(&mut self.finished, true) {
            self.outputs.push_back(Output::Finished);
        }
    }

    /// No receiver fetches from those that are done and stayed for the others' sake: they need not wait for
    /// one that may come some day.
    fn let_go(&mut self) {
        for at in 0..self.entries.len() {
            if let Some(guest) = self.entries[at].guest.filter(|_| self.entries[at].connected) {
                self.outputs.push_back(Output::Left { guest, why: Why::WentAway });
                self.say_goodbye(at, Goodbye::Finished);
            }
        }
    }

    fn next_due(&self, now: Time) -> Option<Time> {
        let alive = self.entries.iter().filter(|entry| entry.connected);
        let alive = alive.map(|entry| entry.told_at + ALIVE_INTERVAL);
        let patience = self.entries.iter().filter_map(|entry| self.patience(entry));
        let start = self.starts_without().filter(|at| self.started_at.is_none() && *at > now);
        let all = self.end_of_all();
        let cheated = self.is_cheated(now).then(|| self.born_at + self.config.join_timeout);
        alive.chain(patience).chain(start).chain(all).chain(cheated).chain(self.return_due(now)).min()
    }

    /// Holds the roster against itself.
    ///
    /// # Panics
    /// Two of its own records contradict each other: a bug here.
    pub fn check(&self) {
        for (guest, &at) in &self.by_guest {
            assert_eq!(self.entries[at].guest, Some(*guest), "a connection leads to another's entry");
        }
        let mut names = BTreeSet::new();
        for entry in &self.entries {
            let name = &entry.name;
            assert!(names.insert(name), "two receivers are called '{name}'");
            assert_eq!(entry.is_settled(), entry.settled_at.is_some(), "'{name}' is settled or is not");
            assert!(!entry.connected || entry.guest.is_some(), "'{name}' is connected by nothing");
            assert!(entry.stage != Stage::Called || !entry.connected, "'{name}' is called and here");
            assert!(entry.failure().is_none() || !entry.connected, "'{name}' has failed and stays");
            assert!(entry.verified_bytes <= self.config.object_len, "'{name}' has more than all");
        }
        if !matches!(self.config.expected, Expected::Named(_)) {
            assert!(self.entries.len() <= self.places() as usize, "more receivers than places");
        }
        self.check_away();
    }
}

#[cfg(test)]
mod tests;
