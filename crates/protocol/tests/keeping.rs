//! A store's order of steps against a disk that loses what is not synced: at a crash each change of a name
//! that is not synced may or may not have happened, in any combination, and bytes that are not synced are the
//! old ones, the new ones or neither.

use polycast_protocol::keeping::{Described, Place, Step, Verdict, steps, verdict};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// All versions of all objects are as long as that, so that no length tells them apart.
const LEN: u64 = 7;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Bytes,
    Part,
    Passing,
    Description,
}

/// A kind of file, and whose it is.
type Name = (Kind, u8);

/// Content of a file: nothing, all bytes of a version, or some of them. A description names the version that
/// it is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Empty,
    Version(u32),
    Torn,
}

#[derive(Clone, Copy, Debug)]
struct File {
    now: Content,
    lasting: Content,
}

/// A change of a name. A rename is one change in every file system that stores are on.
#[derive(Clone, Copy, Debug)]
enum Change {
    Make(Name, usize),
    Remove(Name),
    Rename(Name, Name, usize),
}

type Names = BTreeMap<Name, usize>;

fn apply(names: &mut Names, change: Change) {
    match change {
        Change::Make(name, file) => drop(names.insert(name, file)),
        Change::Remove(name) => drop(names.remove(&name)),
        Change::Rename(from, to, file) => {
            if names.get(&from) == Some(&file) {
                names.remove(&from);
            }
            names.insert(to, file);
        }
    }
}

/// A folder on a disk.
#[derive(Clone, Default, Debug)]
struct Disk {
    files: Vec<File>,
    names: Names,
    lasting: Names,
    /// Changes since the names were synced.
    pending: Vec<Change>,
}

impl Disk {
    fn change(&mut self, change: Change) {
        apply(&mut self.names, change);
        self.pending.push(change);
    }

    fn write(&mut self, name: Name, content: Content) {
        let file = self.files.len();
        self.files.push(File { now: content, lasting: Content::Empty });
        self.change(Change::Make(name, file));
    }

    fn remove(&mut self, name: Name) {
        if self.names.contains_key(&name) {
            self.change(Change::Remove(name));
        }
    }

    fn rename(&mut self, from: Name, to: Name) {
        if let Some(file) = self.names.get(&from).copied() {
            self.change(Change::Rename(from, to, file));
        }
    }

    fn sync(&mut self, name: Name) {
        if let Some(file) = self.names.get(&name) {
            self.files[*file].lasting = self.files[*file].now;
        }
    }

    fn sync_names(&mut self) {
        self.lasting = self.names.clone();
        self.pending.clear();
    }

    fn content(&self, name: Name) -> Option<Content> {
        self.names.get(&name).map(|file| self.files[*file].now)
    }

    /// Returns the number of ways to lose power now.
    fn losses(&self) -> u64 {
        let files = self.files.iter().filter(|file| file.now != file.lasting).count();
        (1 << self.pending.len()) * 3u64.pow(files as u32)
    }

    /// Loses its power; what has become of each change and file that is not synced is chosen.
    fn lose_power(&mut self, mut choose: impl FnMut(u64) -> u64) {
        let mut names = std::mem::take(&mut self.lasting);
        for change in std::mem::take(&mut self.pending) {
            if choose(2) == 1 {
                apply(&mut names, change);
            }
        }
        for file in self.files.iter_mut().filter(|file| file.now != file.lasting) {
            file.now = [file.lasting, file.now, Content::Torn][choose(3) as usize];
            file.lasting = file.now;
        }
        (self.names, self.lasting) = (names.clone(), names);
    }
}

/// End of an agent.
#[derive(Clone, Copy, Debug)]
enum Crash {
    Killed,
    /// With the machine's power, in the way of this number.
    Power(u64),
    /// The same, in a way that this number draws.
    AnyPower(u64),
}

impl Crash {
    fn lose(self, disk: &mut Disk) {
        match self {
            Crash::Killed => {}
            Crash::Power(mut way) => disk.lose_power(|of| {
                let chosen = way % of;
                way /= of;
                chosen
            }),
            Crash::AnyPower(mut state) => disk.lose_power(|of| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % of
            }),
        }
    }
}

/// One thing that an agent does at a time.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// The last byte of a version is verified and written to the part file.
    Arrive(u8, u32),
    Keep(u8, u32, Step),
    RemoveBytes(u8),
    RemoveDescription(u8),
    RemovePart(u8),
}

/// Order that a caller or source gives an agent.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// An object is received, in the next version.
    Receive(u8),
    /// The same where what has its names cannot be read: the agent does not know it.
    ReceiveOver(u8),
    Remove(u8),
}

/// Rules by which objects get their places, and a start treats the files that it finds.
#[derive(Clone)]
struct Rules {
    steps: fn(Place) -> Vec<Step>,
    left_out: Option<Step>,
    /// As earlier versions did: bytes that no description vouches for are removed.
    removes_rests: bool,
    /// A start makes lasting what it finds whole.
    syncs_at_start: bool,
}

impl Rules {
    fn shipped() -> Self {
        let steps = |place| steps(place).collect();
        Rules { steps, left_out: None, removes_rests: false, syncs_at_start: true }
    }

    /// The order of versions up to November 2026.
    fn before() -> Self {
        let order = |place: Place| {
            let all = [
                Step::SyncBytes,
                Step::NameBytes,
                Step::SyncRemovals,
                Step::Report,
                Step::Describe,
                Step::SyncDescription,
                Step::NameDescription,
                Step::SyncNames,
            ];
            let syncs = [Step::SyncBytes, Step::SyncRemovals, Step::SyncDescription, Step::SyncNames];
            all.into_iter().filter(|step| place.lasts || !syncs.contains(step)).collect()
        };
        Rules { steps: order, left_out: None, removes_rests: true, syncs_at_start: false }
    }
}

/// An agent with its store, and what it has told.
#[derive(Clone)]
struct Agent {
    rules: Rules,
    lasts: bool,
    disk: Disk,
    is_settled: bool,
    version: u32,
    /// Versions of objects that were reported to be here.
    told: BTreeMap<u8, u32>,
    /// Object and version that had arrived whole and were not reported yet.
    arrived: Option<(u8, u32)>,
}

impl Agent {
    fn new(rules: Rules, lasts: bool) -> Self {
        let disk = Disk::default();
        // What an earlier run has taken away may not have lasted.
        let (told, is_settled) = (BTreeMap::new(), false);
        Agent { rules, lasts, disk, is_settled, version: 0, told, arrived: None }
    }

    /// Returns the acts that an order leads to now.
    fn acts(&mut self, order: Order) -> Vec<Act> {
        match order {
            Order::Receive(object) if self.told.contains_key(&object) => Vec::new(),
            Order::Receive(object) | Order::ReceiveOver(object) => {
                self.told.remove(&object);
                self.version += 1;
                let version = self.version;
                let has = |kind| self.disk.names.contains_key(&(kind, object));
                let is_free = !has(Kind::Bytes) && !has(Kind::Description);
                let place = Place { lasts: self.lasts, is_free, is_settled: self.is_settled };
                let steps = (self.rules.steps)(place).into_iter();
                let steps = steps.filter(|step| Some(*step) != self.rules.left_out);
                let keeps = steps.map(|step| Act::Keep(object, version, step));
                [Act::Arrive(object, version)].into_iter().chain(keeps).collect()
            }
            Order::Remove(object) => {
                self.told.remove(&object);
                vec![Act::RemoveBytes(object), Act::RemovePart(object), Act::RemoveDescription(object)]
            }
        }
    }

    fn take_away(&mut self, name: Name) {
        self.disk.remove(name);
        self.is_settled = false;
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Arrive(object, version) => {
                self.disk.write((Kind::Part, object), Content::Version(version));
                self.arrived = Some((object, version));
            }
            Act::RemoveBytes(object) => self.take_away((Kind::Bytes, object)),
            Act::RemoveDescription(object) => self.take_away((Kind::Description, object)),
            Act::RemovePart(object) => self.take_away((Kind::Part, object)),
            Act::Keep(object, version, step) => self.step(object, version, step),
        }
    }

    fn step(&mut self, object: u8, version: u32, step: Step) {
        let disk = &mut self.disk;
        match step {
            Step::Vacate => {
                disk.remove((Kind::Bytes, object));
                disk.remove((Kind::Description, object));
            }
            Step::SyncRemovals | Step::SyncNames => {
                disk.sync_names();
                self.is_settled = true;
            }
            Step::SyncBytes => disk.sync((Kind::Part, object)),
            Step::Describe => disk.write((Kind::Passing, object), Content::Version(version)),
            Step::SyncDescription => disk.sync((Kind::Passing, object)),
            Step::NameBytes => disk.rename((Kind::Part, object), (Kind::Bytes, object)),
            Step::NameDescription => disk.rename((Kind::Passing, object), (Kind::Description, object)),
            Step::Report => {
                self.told.insert(object, version);
                self.arrived = None;
            }
        }
    }

    fn verdict(&self, object: u8) -> Verdict {
        let bytes = self.disk.content((Kind::Bytes, object)).map(|_| LEN);
        let described = match self.disk.content((Kind::Description, object)) {
            None => Described::Nothing,
            Some(Content::Version(_)) => Described::Of { length_bytes: LEN, is_of_these: true },
            Some(_) => Described::Unreadable,
        };
        verdict(bytes, described)
    }

    /// Starts again, with what is there.
    fn start(&mut self, objects: u8) {
        self.is_settled = false;
        for object in 0..objects {
            self.disk.remove((Kind::Passing, object));
            match self.verdict(object) {
                Verdict::Rest if self.rules.removes_rests => self.disk.remove((Kind::Bytes, object)),
                Verdict::Rest => {
                    self.disk.remove((Kind::Description, object));
                    self.disk.rename((Kind::Bytes, object), (Kind::Part, object));
                }
                Verdict::Stray => self.disk.remove((Kind::Description, object)),
                Verdict::Nothing | Verdict::Whole | Verdict::Unread => {}
            }
        }
        // What counts from now on was perhaps not said to be here before.
        if self.rules.syncs_at_start && (0..objects).any(|object| self.verdict(object) == Verdict::Whole) {
            self.disk.sync_names();
            self.is_settled = true;
        }
    }

    /// Checks the state after a start; `killed` says that no power was lost.
    fn wrong(&mut self, objects: u8, killed: bool) -> Result<(), String> {
        let arrived = self.arrived.take();
        for object in 0..objects {
            let (bytes, described) =
                (self.disk.content((Kind::Bytes, object)), self.disk.content((Kind::Description, object)));
            let told = self.told.get(&object).map(|version| Content::Version(*version));
            if told.is_some() && (bytes, described) != (told, told) {
                return Err(format!("object {object} was said to be here: {bytes:?}, {described:?}"));
            }
            match self.verdict(object) {
                Verdict::Whole if bytes != described => {
                    return Err(format!(
                        "object {object} has the bytes {bytes:?}, not those of {described:?}"
                    ));
                }
                Verdict::Unread => return Err(format!("the description of object {object} is torn")),
                Verdict::Rest | Verdict::Stray => return Err(format!("object {object} has half a name")),
                Verdict::Whole | Verdict::Nothing => {}
            }
            if let Some((_, version)) = arrived.filter(|(arrived, _)| killed && *arrived == object) {
                let is_there = [bytes, self.disk.content((Kind::Part, object))];
                if !is_there.contains(&Some(Content::Version(version))) {
                    return Err(format!("all of object {object} had come, and nothing of it is left"));
                }
            }
            // What is whole and was not said to be here is an object from now on.
            if let (Verdict::Whole, Some(Content::Version(version))) = (self.verdict(object), bytes) {
                self.told.insert(object, version);
            }
        }
        Ok(())
    }

    fn crash(&mut self, objects: u8, crash: Crash) -> Result<(), String> {
        let is_killed = matches!(crash, Crash::Killed);
        if self.lasts || is_killed {
            crash.lose(&mut self.disk);
        } else {
            // Nothing is left in memory.
            (self.disk, self.arrived) = Default::default();
            self.told.clear();
        }
        self.start(objects);
        self.wrong(objects, is_killed)
    }
}

/// Outcome of crashes.
#[derive(Default)]
struct Outcome {
    tried: u64,
    failures: Vec<String>,
}

/// Carries out orders, and crashes in every way between any two acts of them, and in every way once more
/// after the start.
fn every_crash(rules: &Rules, lasts: bool, orders: &[Order]) -> Outcome {
    let mut agent = Agent::new(rules.clone(), lasts);
    let mut outcome = Outcome::default();
    for order in orders {
        let acts = agent.acts(*order);
        for act in acts.into_iter().map(Some).chain([None]) {
            for first in ways(&agent) {
                let mut crashed = agent.clone();
                let mut tried = crashed.crash(2, first).map_err(|why| (why, None));
                outcome.tried += 1;
                for second in ways(&crashed) {
                    outcome.tried += 1;
                    tried = tried
                        .and_then(|()| crashed.clone().crash(2, second).map_err(|why| (why, Some(second))));
                }
                if let Err((why, second)) = tried {
                    outcome
                        .failures
                        .push(format!("{why}, {first:?} before {act:?} of {order:?}, then {second:?}"));
                }
            }
            act.into_iter().for_each(|act| agent.act(act));
        }
    }
    outcome
}

fn ways(agent: &Agent) -> impl Iterator<Item = Crash> + use<> {
    let ways = if agent.lasts { agent.disk.losses() } else { 0 };
    (0..ways).map(Crash::Power).chain([Crash::Killed])
}

/// Histories in which each step of the order counts.
const HISTORIES: [&[Order]; 4] = [
    &[Order::Receive(0)],
    &[Order::Receive(0), Order::Receive(1)],
    &[Order::Receive(0), Order::Remove(0), Order::Receive(0)],
    &[Order::Receive(0), Order::ReceiveOver(0)],
];

fn failures(rules: &Rules, lasts: bool) -> Vec<String> {
    HISTORIES.iter().flat_map(|orders| every_crash(rules, lasts, orders).failures).collect()
}

#[test]
fn what_was_said_to_be_here_is_here_after_every_crash() {
    for lasts in [false, true] {
        assert_eq!(failures(&Rules::shipped(), lasts), Vec::<String>::new(), "on a disk: {lasts}");
    }
    let tried: u64 = HISTORIES.iter().map(|orders| every_crash(&Rules::shipped(), true, orders).tried).sum();
    assert!(tried > 500, "{tried} crashes are not many");
}

/// The order that there was loses what it had said to be here, and what had come: on a disk and in memory.
#[test]
fn the_order_before_lost_what_it_had_said_to_be_here() {
    let is_lost = |failure: &String| failure.starts_with("object 0 was said to be here: None, None, Killed");
    for lasts in [false, true] {
        assert!(failures(&Rules::before(), lasts).iter().any(is_lost), "on a disk: {lasts}");
    }
    // To keep what lies without a description is not enough: it is not the object.
    let keeping = Rules { removes_rests: false, ..Rules::before() };
    assert!(failures(&keeping, true).iter().any(is_lost));
}

/// No step can be left out.
#[test]
fn every_step_counts() {
    let needed = [Step::SyncRemovals, Step::SyncBytes, Step::SyncDescription, Step::SyncNames, Step::Vacate];
    for step in needed {
        let rules = Rules { left_out: Some(step), ..Rules::shipped() };
        assert!(!failures(&rules, true).is_empty(), "nothing is lost without {step:?}");
    }
    let rules = Rules { left_out: Some(Step::Vacate), ..Rules::shipped() };
    assert!(!failures(&rules, false).is_empty(), "in memory too");
    // An agent that was killed before it had said so says after its start what it has: that has to last.
    let rules = Rules { syncs_at_start: false, ..Rules::shipped() };
    assert!(!failures(&rules, true).is_empty(), "nothing is lost without a sync at the start");
}

fn order() -> impl Strategy<Value = Order> {
    let object = 0u8..3;
    prop_oneof![
        4 => object.clone().prop_map(Order::Receive),
        1 => object.clone().prop_map(Order::ReceiveOver),
        2 => object.prop_map(Order::Remove),
    ]
}

fn crash() -> impl Strategy<Value = Crash> {
    prop_oneof![Just(Crash::Killed), any::<u64>().prop_map(Crash::AnyPower)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Long histories with several crashes, of either kind, after each of which the agent goes on with what
    /// it finds.
    #[test]
    fn histories_of_crashes_lose_nothing(
        lasts in any::<bool>(),
        orders in proptest::collection::vec(order(), 1..24),
        crashes in proptest::collection::vec((1usize..30, crash()), 0..8),
        last in crash(),
    ) {
        let mut agent = Agent::new(Rules::shipped(), lasts);
        let mut crashes = crashes.into_iter();
        let mut next = crashes.next();
        for order in orders {
            for act in agent.acts(order) {
                if let Some((left, crash)) = &mut next {
                    *left -= 1;
                    if *left == 0 {
                        let crash = *crash;
                        next = crashes.next();
                        prop_assert_eq!(agent.crash(3, crash), Ok(()));
                        break;
                    }
                }
                agent.act(act);
            }
        }
        prop_assert_eq!(agent.crash(3, last), Ok(()));
    }
}
