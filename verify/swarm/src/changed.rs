//! Cases of a source whose object a program writes to while it is hashed and told: no receiver is told all
//! hashes of what never was one state of it, and a change ends the transfer, however late it comes.

use super::draw::Random;
use super::{Coverage, Plant, Verdict, coverage};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use polycast_protocol::session::{Telling, TellingInput as Input, TellingOutput as Output};
use polycast_simulator::packet::world::keys::mix;
use polycast_types::{Duration, Time};

/// Nothing takes longer: a look of three seconds is followed by another one within a minute.
const LIVENESS: Duration = Duration::from_secs(300);

/// A look at the object's times that is under way.
struct Look {
    /// Time at which it reads the object's times.
    sees_at: Time,
    ends_at: Time,
    same: bool,
}

struct World<'a> {
    random: &'a mut Random,
    plant: Option<Plant>,
    now: Time,
    machine: Telling,
    /// Number of times that a program has written to each group.
    versions: Vec<u64>,
    /// The same of those that are hashed, as they were then.
    hashed: Vec<u64>,
    /// Time at which the next group is hashed.
    hashes_at: Time,
    writes: Vec<Time>,
    written: u64,
    look: Option<Look>,
    /// Times at which receivers come, and hashes that receivers already here have been sent.
    joins: Vec<Time>,
    told: Vec<Vec<u64>>,
    ended: bool,
    hash: u64,
    events: u64,
    coverage: Coverage,
}

pub(super) fn run(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    let groups = random.magnitude(1..=200);
    let span = Time(random.magnitude(1_000_000..=20_000_000_000));
    let times = |random: &mut Random, count: u64| {
        let mut times: Vec<Time> = (0..count).map(|_| random.time_below(span)).collect();
        times.sort_unstable_by_key(|time| core::cmp::Reverse(*time));
        times
    };
    let writes = if random.one_in(3) { 0 } else { random.within(1..=4) };
    let (joins, writes) = (random.within(1..=5), times(random, writes));
    let case = format!("an object of {groups} groups that is written to {} times", writes.len());
    let mut world = World {
        machine: Telling::new(Time::ZERO, groups),
        joins: times(random, joins),
        random,
        plant,
        now: Time::ZERO,
        versions: vec![0; groups as usize],
        hashed: Vec::new(),
        hashes_at: Time::ZERO,
        writes,
        written: 0,
        look: None,
        told: Vec::new(),
        ended: false,
        hash: seed,
        events: 0,
        coverage: Coverage::default(),
    };
    let failure = world.live(span).err();
    let World { hash, events, coverage, .. } = world;
    Verdict { seed, case, failure, trace_hash: hash, events, coverage }
}

impl World<'_> {
    fn live(&mut self, span: Time) -> Result<(), String> {
        let end = span + LIVENESS;
        while !self.ended && self.now < end {
            self.turn();
            if let Some(told) = self.told.iter().find(|told| told.len() == self.versions.len())
                && let Some(version) = told.iter().find(|version| **version > 0)
            {
                return Err(format!(
                    "a receiver is told all hashes, one of them of what was written {version} times"
                ));
            }
            let next = self.next().unwrap_or(end);
            self.now = self.now.max(next).min(end);
            self.step();
        }
        if self.ended != (self.written > 0) {
            let what =
                if self.ended { "ends for no reason" } else { "goes on with an object that has changed" };
            return Err(format!("the source {what}"));
        }
        let waits = self.told.iter().any(|told| told.len() < self.versions.len());
        if waits && !self.ended { Err("a receiver is not told all hashes".into()) } else { Ok(()) }
    }

    /// Returns the time of the next event.
    fn next(&self) -> Option<Time> {
        let hashes = (self.hashed.len() < self.versions.len()).then_some(self.hashes_at);
        let look =
            self.look.as_ref().map(|look| if self.now < look.sees_at { look.sees_at } else { look.ends_at });
        let due =
            [hashes, look, self.writes.last().copied(), self.joins.last().copied(), self.machine.deadline()];
        due.into_iter().flatten().min()
    }

    /// Processes everything that is due.
    fn step(&mut self) {
        self.events += 1;
        while self.writes.pop_if(|at| *at <= self.now).is_some() {
            let group = self.random.below(self.versions.len() as u64) as usize;
            self.versions[group] += 1;
            self.written += 1;
        }
        while self.joins.pop_if(|at| *at <= self.now).is_some() {
            let known = self.machine.may_tell() as usize;
            self.told.push(self.hashed[..known].to_vec());
        }
        if self.now >= self.hashes_at && self.hashed.len() < self.versions.len() {
            self.hashed.push(self.versions[self.hashed.len()]);
            self.hashes_at = self.now + Duration(self.random.magnitude(1_000..=300_000_000));
            self.input(Input::Hashed(self.hashed.len() as u64));
        }
        let changed = self.written > 0;
        if let Some(look) = &mut self.look {
            if self.now <= look.sees_at {
                look.same = !changed;
            }
            if self.now >= look.ends_at {
                let same = look.same;
                self.look = None;
                self.input(Input::Looked { same });
            }
        }
        self.hash = mix(mix(self.hash, self.now.0), self.written << 32 | self.hashed.len() as u64);
    }

    fn input(&mut self, input: Input) {
        self.coverage.hit(coverage::of_telling(&input));
        self.machine.handle(self.now, input);
    }

    /// Does what the machine says.
    fn turn(&mut self) {
        while let Some(output) = self.machine.poll(self.now) {
            match output {
                Output::Look => {
                    let took = self.random.magnitude(1_000..=3_000_000_000);
                    let sees_at = self.now + Duration(self.random.below(took));
                    self.look =
                        Some(Look { sees_at, ends_at: self.now + Duration(took), same: self.written == 0 });
                    if self.plant == Some(Plant::TellUnseen) {
                        self.tell(0..self.hashed.len());
                    }
                }
                Output::Tell(groups) => self.tell(groups.start as usize..groups.end as usize),
                Output::Changed => self.ended = true,
            }
        }
    }

    fn tell(&mut self, groups: core::ops::Range<usize>) {
        for told in &mut self.told {
            let from = told.len().clamp(groups.start, groups.end);
            told.extend_from_slice(&self.hashed[from..groups.end]);
        }
    }
}
