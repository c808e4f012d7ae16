//! Cases of one delivery at its source's agent (`protocol::delivery`): a manager that grants paths for a part
//! of the object or of the time, late or not at all, paths that are lost or do not reach all, receivers that
//! come, are taken out, and fail, and carriers that break down. Some sources have a delta, and of their
//! receivers some have the version that it is against, some had it, and some have other bytes in its place.
//!
//! One path is lent at a time, all together no longer than was asked for; a receiver that was taken out gets
//! nothing of a carrier that begins later; and in the end every path is back, and every receiver has the
//! object, or there is a reason why it has not.

use super::coverage::{self, Coverage};
use super::draw::Random;
use super::{Plant, Verdict};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_protocol::delivery::{
    CARRIERS_AGAIN_MAX, Delivery, DeliveryConfig, Ended, Form, Input, Outcome, Output, To, Wanted,
};
use polycast_types::{Duration, Time};

const TICK: Duration = Duration::from_millis(100);
/// Bytes that are delivered, and bytes that a path and TCP bring to each receiver in a tick.
const LEN: u64 = 1_000;
const PATH_BYTES: u64 = 40;
const TCP_BYTES: u64 = 15;
/// A receiver that a path does not reach for so long is left.
const LEFT_AFTER: Duration = Duration::from_secs(2);
/// After healing it is over within this time.
const LIVENESS: Duration = Duration::from_secs(120);

/// Data that a receiver has of the version that a delta is against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Base {
    /// It refuses a delta.
    #[default]
    None,
    Right,
    /// It takes the delta, and makes other bytes of it.
    Wrong,
}

/// A receiver.
#[derive(Clone, Debug, Default)]
struct Receiver {
    bytes: u64,
    base: Base,
    /// Bytes of the delta.
    delta_bytes: u64,
    is_dead: bool,
    /// It counts bytes that are not the object's.
    is_wrong: bool,
    /// It was taken out.
    is_out: bool,
    /// Number of carriers that had begun when it was added, until a carrier is notified of it.
    untold_since: Option<usize>,
}

/// Request that the source has made.
#[derive(Clone, Debug)]
struct Request {
    wanted: Wanted,
    answer_at: Time,
}

/// A path that is lent.
#[derive(Clone, Copy, Debug)]
struct Path {
    since: Time,
    ends_at: Option<Time>,
    is_lost: bool,
}

/// The manager, as far as it knows of this delivery.
#[derive(Clone, Debug, Default)]
struct Manager {
    request: Option<Request>,
    /// Receivers that the last path was requested for.
    granted_to: Vec<String>,
    path: Option<Path>,
    /// Time at which the last path was to be given back.
    last_end: Option<Time>,
    /// Total time for which returned paths were leased.
    lent: Duration,
    /// By how much the manager has made it longer.
    extended: Duration,
}

/// Carrier that sends the object or a delta.
#[derive(Clone, Debug)]
struct Carrier {
    form: Form,
    to: BTreeSet<u32>,
    /// Bytes of the path that are left; `None` for all, and where there is no path.
    allowed: Option<u64>,
    has_path: bool,
    awaits_next: bool,
    unreached: BTreeSet<u32>,
    since: Time,
    stops: bool,
    rekeys: bool,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Add(u32),
    Remove(u32),
}

impl Receiver {
    /// Bytes that are still to be sent to it, of a delta or of the object.
    fn lacks(&self, form: Form, delta_len: Option<u64>) -> u64 {
        match form {
            Form::Object => LEN - self.bytes,
            Form::Delta if self.base == Base::None || self.bytes == LEN => 0,
            Form::Delta => delta_len.map_or(0, |len| len - self.delta_bytes),
        }
    }

    /// Takes so many bytes. A delta makes the object with its last one, where the version before is the right
    /// one.
    fn take(&mut self, form: Form, delta_len: Option<u64>, bytes: u64, plant: Option<Plant>) {
        match form {
            Form::Object => self.bytes = LEN.min(self.bytes + bytes),
            Form::Delta => {
                let len = delta_len.unwrap_or(LEN);
                self.delta_bytes = len.min(self.delta_bytes + bytes);
                let is_made = self.base == Base::Right || plant == Some(Plant::BelieveBase);
                if self.delta_bytes == len && is_made {
                    self.bytes = LEN;
                    self.is_wrong = self.base == Base::Wrong;
                }
            }
        }
    }
}

struct World<'r> {
    random: &'r mut Random,
    plant: Option<Plant>,
    now: Time,
    heals_at: Time,
    machine: Delivery,
    lease: Option<Duration>,
    delta_len: Option<u64>,
    receivers: BTreeMap<u32, Receiver>,
    manager: Manager,
    carrier: Option<Carrier>,
    /// Number of carriers that have begun, and number of those that have ended and may have left some
    /// receivers.
    begun: usize,
    ended: usize,
    changes: Vec<Change>,
    outcome: Option<Outcome>,
    is_cancelled: bool,
    /// Set once receivers that are left cannot be helped.
    no_help: bool,
    hash: u64,
    events: u64,
    coverage: Coverage,
}

fn name(receiver: u32) -> String {
    format!("host-{receiver}")
}

fn number(name: &str) -> u32 {
    name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
}

pub(super) fn run(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    let count = random.within(1..=6) as u32;
    let lease = random.one_in(3).then(|| Duration(random.magnitude(500_000_000..=30_000_000_000)));
    // Some are over before a manager has lent a path.
    let least_ns = if random.one_in(8) { 10_000_000 } else { 500_000_000 };
    let deadline = random.one_in(3).then(|| Time(random.magnitude(least_ns..=60_000_000_000)));
    let heals_at = Time(random.magnitude(1_000_000_000..=60_000_000_000));
    let to = To::Named((0..count).map(name).collect());
    let delta_len = random.one_in(4).then(|| random.within(1..=LEN));
    let mut base = |_| match random.below(4) {
        0 => Base::None,
        1 => Base::Wrong,
        _ => Base::Right,
    };
    let bases: Vec<Base> = (0..count).map(&mut base).collect();
    let config = DeliveryConfig { object_len: LEN, to, lease, deadline };
    let mut world = World {
        random,
        plant,
        now: Time(1),
        heals_at,
        machine: Delivery::new(config),
        lease,
        delta_len,
        receivers: (0..)
            .zip(bases)
            .map(|(at, base)| (at, Receiver { base, ..Receiver::default() }))
            .collect(),
        manager: Manager::default(),
        carrier: None,
        begun: 0,
        ended: 0,
        changes: Vec::new(),
        outcome: None,
        is_cancelled: false,
        no_help: false,
        hash: seed | 1,
        events: 0,
        coverage: Coverage::default(),
    };
    let failure = world.live(deadline).err();
    let limits = match (lease, deadline) {
        (Some(lease), _) => format!(", all paths for {lease}"),
        (None, Some(deadline)) => format!(", by {deadline:?}"),
        (None, None) => String::new(),
    };
    let delta = delta_len.map_or_else(String::new, |len| format!(", a delta of {len} bytes"));
    let case = format!("delivery to {count} receivers{limits}{delta}");
    Verdict { seed, case, failure, trace_hash: world.hash, events: world.events, coverage: world.coverage }
}

impl World<'_> {
    fn live(&mut self, deadline: Option<Time>) -> Result<(), String> {
        self.hear(Input::Start { delta_len: self.delta_len })?;
        let end = self.heals_at + LIVENESS;
        while self.now < end && !(self.outcome.is_some() && self.manager.path.is_none()) {
            if self.now < self.heals_at {
                self.fail_something()?;
            }
            self.answer()?;
            self.end_path();
            self.carry()?;
            if self.machine.deadline().is_some_and(|at| self.now >= at) {
                self.hear(Input::Tick)?;
            }
            let waits = self.carrier.is_none() && self.outcome.is_none();
            let is_late = deadline.is_some_and(|deadline| self.now >= deadline);
            self.no_help |= is_late;
            if waits && is_late {
                return Err("it waits for a path when its deadline is over".into());
            }
            self.check_time()?;
            self.now += TICK;
        }
        self.check_end()
    }

    /// All paths together are lent for no longer than was asked for.
    fn check_time(&self) -> Result<(), String> {
        let Some(lease) = self.lease else { return Ok(()) };
        let held = self.manager.path.map_or(Duration::ZERO, |path| self.now.since(path.since));
        let (all, most) = (self.manager.lent + held, lease + self.manager.extended + TICK * 2);
        if all > most {
            Err(format!("paths are lent for {all}, and were wanted for {lease}"))
        } else {
            Ok(())
        }
    }

    fn check_end(&self) -> Result<(), String> {
        if let Some((at, _)) = self.receivers.iter().find(|(_, receiver)| receiver.is_wrong) {
            return Err(format!("{} counts bytes as the object's that are not", name(*at)));
        }
        let Some(outcome) = &self.outcome else {
            return Err(format!("it is not over within {LIVENESS} of healing"));
        };
        if self.manager.path.is_some() || self.manager.request.is_some() {
            return Err("it is over, and its path does not come back".into());
        }
        if *outcome != Outcome::Carried || self.no_help || self.ended > CARRIERS_AGAIN_MAX {
            return Ok(());
        }
        for (at, receiver) in &self.receivers {
            let has_no_carrier = receiver.untold_since == Some(self.begun);
            if receiver.bytes < LEN && !receiver.is_dead && !receiver.is_out && !has_no_carrier {
                return Err(format!(
                    "{} has {} of {LEN} bytes, and nothing says why",
                    name(*at),
                    receiver.bytes
                ));
            }
        }
        Ok(())
    }

    fn fail_something(&mut self) -> Result<(), String> {
        if !self.random.one_in(15) {
            return Ok(());
        }
        let at = self.random.below(self.receivers.len() as u64 + 1) as u32;
        match self.random.below(9) {
            0 => {
                self.coverage.hit(coverage::DELIVERY_PATH_LOST);
                if let Some(path) = &mut self.manager.path {
                    path.is_lost = true;
                }
            }
            1 => {
                if let Some(receiver) = self.receivers.get_mut(&at) {
                    receiver.is_dead = true;
                }
            }
            2 => self.change(Change::Remove(at))?,
            3 => self.change(Change::Add(self.receivers.len() as u32))?,
            4 => self.extend()?,
            5 if self.random.one_in(4) => {
                self.is_cancelled = true;
                self.hear(Input::Cancel)?;
            }
            6 if self.carrier.is_some() && self.random.one_in(4) => {
                self.coverage.hit(coverage::CARRIER_BREAKS);
                // Behind a delta comes the object.
                self.no_help |= self.carrier.take().is_some_and(|carrier| carrier.form == Form::Object);
                self.tell_end()?;
                self.hear(Input::Ended(Ended::Failed))?;
            }
            7 => {
                // The version before makes room for others.
                if let Some(receiver) = self.receivers.get_mut(&at).filter(|one| one.base == Base::Right) {
                    receiver.base = Base::None;
                }
            }
            _ => {
                if let Some(carrier) = &mut self.carrier {
                    carrier.unreached.insert(at);
                }
            }
        }
        Ok(())
    }

    /// The manager makes the time of the path longer or shorter.
    fn extend(&mut self) -> Result<(), String> {
        let more = Duration(self.random.magnitude(100_000_000..=10_000_000_000));
        let Some(path) = self.manager.path.as_mut().filter(|path| path.ends_at.is_some()) else {
            return Ok(());
        };
        let before = path.ends_at.map_or(Duration::ZERO, |at| at.since(self.now));
        path.ends_at = Some(self.now + more);
        self.manager.extended = self.manager.extended + (more - before);
        Ok(())
    }

    fn change(&mut self, change: Change) -> Result<(), String> {
        if self.outcome.is_some() || self.is_cancelled {
            return Ok(());
        }
        match change {
            Change::Add(at) => {
                self.receivers.insert(at, Receiver { untold_since: Some(self.begun), ..Receiver::default() });
            }
            Change::Remove(at) => {
                let Some(receiver) = self.receivers.get_mut(&at).filter(|receiver| !receiver.is_out) else {
                    return Ok(());
                };
                receiver.is_out = true;
            }
        }
        self.changes.push(change);
        self.hear(Input::Change(self.changes.len() as u64 - 1))
    }

    /// The manager answers what it was asked.
    fn answer(&mut self) -> Result<(), String> {
        let Some(request) = self.manager.request.take_if(|request| self.now >= request.answer_at) else {
            return Ok(());
        };
        if self.now < self.heals_at && self.random.one_in(8) {
            self.coverage.hit(coverage::DELIVERY_DENIED);
            self.no_help |= !request.wanted.goes_on;
            return self.hear(Input::Denied("no path is free".into()));
        }
        if self.manager.path.is_some() {
            return Err("a second path is lent to one delivery".into());
        }
        let lease = match self.plant {
            Some(Plant::FreshTime) => self.lease,
            _ => request.wanted.lease,
        };
        let ends_at = lease.map(|lease| self.now + lease);
        let part = self.random.one_in(3).then(|| self.random.within(1..=LEN));
        let bytes = part.filter(|part| *part < request.wanted.remaining);
        if bytes.is_some() {
            self.coverage.hit(coverage::DELIVERY_PART);
        }
        self.manager.path = Some(Path { since: self.now, ends_at, is_lost: false });
        if let To::Named(names) = request.wanted.to {
            self.manager.granted_to = names;
        }
        self.hear(Input::Granted { bytes, ends_at })
    }

    /// A path that is lost, or whose time is over, is taken back by the manager.
    fn end_path(&mut self) {
        let is_over = |path: Path| path.is_lost || path.ends_at.is_some_and(|at| self.now >= at);
        if !self.manager.path.is_some_and(is_over) {
            return;
        }
        if let Some(carrier) = &mut self.carrier {
            (carrier.has_path, carrier.allowed) = (false, None);
        }
        self.path_is_back();
    }

    fn path_is_back(&mut self) {
        if let Some(path) = self.manager.path.take() {
            let end = path.ends_at.map_or(self.now, |at| at.min(self.now));
            self.manager.last_end = path.ends_at;
            self.manager.lent = self.manager.lent + end.since(path.since);
        }
    }

    /// The carrier sends for a tick.
    fn carry(&mut self) -> Result<(), String> {
        let Some(mut carrier) = self.carrier.take() else { return Ok(()) };
        if carrier.stops {
            return self.hear(Input::Ended(Ended::Failed));
        }
        let sends =
            if carrier.has_path { carrier.allowed.unwrap_or(u64::MAX).min(PATH_BYTES) } else { TCP_BYTES };
        let sends = if carrier.awaits_next { 0 } else { sends };
        let mut lacking = 0;
        for at in &carrier.to {
            let receiver =
                self.receivers.get_mut(at).ok_or_else(|| format!("{} is no receiver", name(*at)))?;
            let reached = !(carrier.has_path && carrier.unreached.contains(at));
            if sends > 0 && reached && receiver.lacks(carrier.form, self.delta_len) > 0 && !receiver.is_dead {
                if receiver.is_out {
                    return Err(format!("{} was taken out, and gets what is sent later", name(*at)));
                }
                receiver.take(carrier.form, self.delta_len, sends, self.plant);
            }
            if !receiver.is_dead && !receiver.is_out {
                lacking = lacking.max(receiver.lacks(carrier.form, self.delta_len));
            }
        }
        carrier.allowed = carrier.allowed.map(|allowed| allowed - sends.min(allowed));
        let ended = self.end_of(&carrier, lacking);
        let used_up = carrier.has_path && carrier.allowed == Some(0) && !carrier.awaits_next && lacking > 0;
        carrier.awaits_next |= used_up;
        let (receivers, form) = (self.not_done(&carrier), carrier.form);
        self.carrier = Some(carrier);
        if let Some(ended) = ended {
            self.carrier = None;
            let counts = form == Form::Object && matches!(ended, Ended::Finished { rekeyed: false, .. });
            self.ended += usize::from(counts);
            self.tell_end()?;
            return self.hear(Input::Ended(ended));
        }
        if used_up {
            self.tell_end()?;
            return self.hear(Input::UsedUp { bytes: lacking, receivers });
        }
        Ok(())
    }

    fn not_done(&self, carrier: &Carrier) -> Vec<String> {
        let lacks = |at: &&u32| {
            let receiver = &self.receivers[*at];
            !receiver.is_dead && !receiver.is_out && receiver.lacks(carrier.form, self.delta_len) > 0
        };
        carrier.to.iter().filter(lacks).map(|at| name(*at)).collect()
    }

    /// Returns the way in which a carrier ends now, if it does.
    fn end_of(&mut self, carrier: &Carrier, lacking: u64) -> Option<Ended> {
        let left = self.not_done(carrier);
        // Of a delta's receivers those are left that have made nothing of it.
        let without = |carrier: &Carrier| {
            let lacks = |at: &&u32| !self.receivers[*at].is_out && self.receivers[*at].bytes < LEN;
            carrier.to.iter().filter(lacks).map(|at| name(*at)).collect::<Vec<String>>()
        };
        let all_left = match carrier.form {
            Form::Delta if self.plant != Some(Plant::DeltaForAll) => without(carrier),
            Form::Object | Form::Delta => left.clone(),
        };
        if carrier.rekeys {
            self.coverage.hit(coverage::DELIVERY_REKEYED);
            return Some(Ended::Finished { left: all_left, rekeyed: true });
        }
        if lacking == 0 {
            let left = if carrier.form == Form::Delta { all_left } else { Vec::new() };
            if !left.is_empty() {
                self.coverage.hit(coverage::DELTA_LEAVES);
            }
            return Some(Ended::Finished { left, rekeyed: false });
        }
        let reported = all_left;
        let all_left = left.iter().all(|left| carrier.unreached.contains(&number(left)));
        let gives_up = carrier.has_path && all_left && self.now.since(carrier.since) >= LEFT_AFTER;
        gives_up.then_some(Ended::Finished { left: reported, rekeyed: false })
    }

    /// The driver tells when the path has to be back, as it is known now.
    fn tell_end(&mut self) -> Result<(), String> {
        let ends_at = self.manager.path.map_or(self.manager.last_end, |path| path.ends_at);
        self.no_help |= ends_at.is_some_and(|at| self.now >= at);
        self.hear(Input::EndsAt(ends_at))
    }

    fn hear(&mut self, input: Input) -> Result<(), String> {
        self.events += 1;
        self.coverage.hit(coverage::of_delivery(&input));
        let text = format!("{:?}{input:?}", self.now);
        self.note(&text);
        self.machine.handle(self.now, input);
        let mut begun = false;
        while let Some(output) = self.machine.poll() {
            let text = format!("{output:?}");
            self.note(&text);
            begun |= matches!(output, Output::Begin { .. });
            self.obey(output, begun)?;
        }
        Ok(())
    }

    fn note(&mut self, text: &str) {
        for byte in text.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn obey(&mut self, output: Output, just_begun: bool) -> Result<(), String> {
        if self.outcome.is_some() && output != Output::GiveBack {
            return Err(format!("{output:?} comes after the end"));
        }
        match output {
            Output::Ask(wanted) => {
                if self.manager.request.is_some() || self.manager.path.is_some() {
                    return Err("a path is asked for beside another one".into());
                }
                let longest = if self.now < self.heals_at { 5_000_000_000 } else { 500_000_000 };
                let answer_at = self.now + Duration(self.random.magnitude(1_000_000..=longest));
                self.manager.request = Some(Request { wanted, answer_at });
            }
            Output::Unask => self.manager.request = None,
            Output::Begin { form, bytes } => self.begin(form, bytes)?,
            Output::Switch { bytes } => {
                let carrier = self.carrier.as_mut().ok_or("a carrier goes on that does not run")?;
                (carrier.allowed, carrier.has_path, carrier.awaits_next) = (bytes, true, false);
            }
            Output::GiveBack if self.plant == Some(Plant::KeepPath) => {}
            Output::GiveBack => self.path_is_back(),
            Output::LosePath(_) => {
                let carrier = self.carrier.as_mut().ok_or("a carrier loses its path that does not run")?;
                (carrier.allowed, carrier.has_path, carrier.awaits_next) = (None, false, false);
            }
            Output::Change(_) if just_begun && self.plant == Some(Plant::ForgetChanges) => {}
            Output::Change(number) => {
                let change = self.changes[number as usize];
                let carrier = self.carrier.as_mut().ok_or("a carrier hears of a change that does not run")?;
                match change {
                    Change::Add(at) => {
                        carrier.to.insert(at);
                        self.receivers.get_mut(&at).expect("it has come").untold_since = None;
                    }
                    Change::Remove(at) => {
                        let had_key = carrier.to.remove(&at) && !just_begun;
                        carrier.rekeys |= had_key;
                    }
                }
            }
            Output::Stop => {
                self.carrier.as_mut().ok_or("a carrier is to end that does not run")?.stops = true
            }
            Output::Done(outcome) => self.outcome = Some(outcome),
        }
        Ok(())
    }

    fn begin(&mut self, form: Form, bytes: Option<u64>) -> Result<(), String> {
        if self.carrier.is_some() {
            return Err("a second carrier begins beside the first".into());
        }
        self.begun += 1;
        let unreached: BTreeSet<u32> = match self.now < self.heals_at && self.random.one_in(3) {
            true => self.receivers.keys().copied().filter(|at| at % 2 == 0).collect(),
            false => BTreeSet::new(),
        };
        self.carrier = Some(Carrier {
            form,
            to: self.manager.granted_to.iter().map(|name| number(name)).collect(),
            allowed: bytes,
            has_path: self.manager.path.is_some(),
            awaits_next: false,
            unreached,
            since: self.now,
            stops: false,
            rekeys: false,
        });
        Ok(())
    }
}
