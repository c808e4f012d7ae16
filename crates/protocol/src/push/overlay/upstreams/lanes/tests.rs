use super::*;
use crate::push::overlay::upstreams::{Candidate, Input, UpstreamsConfig};
use alloc::collections::BTreeMap;
use alloc::collections::BTreeSet;
use polycast_wire::control::Share;

/// Bytes a second of the path, a gigabit.
const LINK: u64 = 125_000_000;
const STEP: Duration = Duration::from_millis(10);

/// A source that gives by as many connections as a receiver opens.
struct Source {
    machine: Upstreams,
    now: Time,
    /// Connections, and whether each is to end.
    lanes: BTreeMap<UpstreamId, bool>,
    most: usize,
    noise: u64,
    percent: u64,
}

impl Source {
    fn new(seed: u64, percent: u64) -> Self {
        let config = UpstreamsConfig { groups: 1 << 10, group_len: 1 << 28, seed };
        let mut machine = Upstreams::new(config);
        let candidate = Candidate {
            address: [10, 0, 0, 1].into(),
            port: 7,
            name: None,
            is_source: true,
            share: Share::ALL,
        };
        machine.handle(Time(1), Input::Candidates { all: &[candidate], is_behind_head: false });
        Source { machine, now: Time(1), lanes: BTreeMap::new(), most: 0, noise: seed, percent }
    }

    /// Gives by each connection what the path gives to it, where so many are open.
    fn run(&mut self, seconds: u64, rate_of: impl Fn(u64) -> u64) {
        self.run_for(seconds * 100, rate_of);
    }

    fn run_for(&mut self, steps: u64, rate_of: impl Fn(u64) -> u64) {
        for step in 0..steps {
            self.now += STEP;
            let open: Vec<UpstreamId> = self.lanes.keys().copied().collect();
            for id in &open {
                self.noise = mix(self.noise, 5, 5);
                let percent = 100 - self.percent + self.noise % (2 * self.percent + 1);
                let bytes = rate_of(open.len() as u64) / 100 * percent / 100;
                self.machine.handle(self.now, Input::Heard(*id, bytes));
            }
            if step % 5 == 0 {
                self.machine.handle(self.now, Input::Tick);
            }
            let ended: Vec<UpstreamId> =
                self.lanes.iter().filter(|(_, ends)| **ends).map(|(id, _)| *id).collect();
            for id in ended {
                self.lanes.remove(&id);
                self.machine.handle(self.now, Input::Closed(id, Fault::Ended));
            }
            self.obey();
        }
    }

    fn obey(&mut self) {
        while let Some(output) = self.machine.poll() {
            match output {
                Output::Open(id, _) => {
                    self.lanes.insert(id, false);
                    self.machine.handle(self.now, Input::Opened(id));
                }
                Output::Finish(id) => {
                    self.lanes.insert(id, true);
                }
                Output::Close(id) => drop(self.lanes.remove(&id)),
                Output::Lacks(_) => {}
                Output::Ask(..) | Output::Lost(..) => panic!("{output:?} at a source that gives"),
            }
            self.most = self.most.max(self.lanes.len());
        }
    }
}

/// Seeds, each with the number of percent by which rates differ from one moment to the next.
fn seeds() -> impl Iterator<Item = (u64, u64)> {
    (0..24).map(|seed| (mix(seed, 9, 9), seed % 4))
}

/// As many flows as fill the path are opened if each is limited, and no more are kept.
#[test]
fn limited_flows_fill_the_path() {
    for (seed, percent) in seeds() {
        for part in [2, 3, 4, 5, 7, 10, 12] {
            let mut source = Source::new(seed, percent);
            source.run(8, |lanes| (LINK / part).min(LINK / lanes));
            // One more may be on trial.
            let lanes = source.lanes.len() as u64;
            assert!((part..=part + 1).contains(&lanes), "seed {seed}: {lanes} lanes of a {part}th each");
        }
    }
}

/// One flow is there nearly all the time if it fills the path.
#[test]
fn one_lane_stays_on_a_path_that_it_fills() {
    for (seed, percent) in seeds() {
        let (mut source, mut more) = (Source::new(seed, percent), 0);
        for _ in 0..60 {
            source.run(1, |lanes| LINK / lanes);
            more += u64::from(source.lanes.len() > 1);
        }
        assert!(source.most <= 2, "seed {seed}: {} lanes", source.most);
        assert!(more <= 8, "seed {seed}: in {more} of 60 looks there is another one");
    }
}

/// Flows of others that share the path lose a tenth at most, and more for a moment.
#[test]
fn flows_beside_it_keep_their_share() {
    for (seed, percent) in seeds() {
        for others in [1, 2, 4, 8, 16, 40] {
            let mut source = Source::new(seed, percent);
            source.run(20, |lanes| LINK / (lanes + others));
            let kept = |lanes: u64| (1 + others) as f64 / (lanes + others) as f64;
            let (lanes, most) = (source.lanes.len() as u64, source.most as u64);
            assert!(kept(most) >= 0.65, "seed {seed}: {most} lanes beside {others}");
            // One of them may be on trial.
            assert!(kept(lanes.max(2) - 1) >= 0.88, "seed {seed}: {lanes} lanes beside {others}");
        }
    }
}

/// Lanes that bring too little are given up as soon as others come.
#[test]
fn lanes_are_given_up_when_others_come() {
    for (seed, _) in seeds() {
        for others in [4, 8, 16] {
            let mut source = Source::new(seed, 2);
            source.run(6, |lanes| (LINK / 4).min(LINK / lanes));
            assert!(source.lanes.len() >= 4);
            source.run(10, |lanes| (LINK / 4).min(LINK / (lanes + others)));
            let lanes = source.lanes.len();
            assert!(lanes <= 4, "seed {seed}: {lanes} lanes beside {others} others");
        }
    }
}

/// A limit that drops what is too much makes a flow stand still every now and then.
#[test]
fn flows_that_stand_still_now_and_then_are_told_apart() {
    for (seed, percent) in seeds() {
        for part in 3..=6 {
            let (mut source, mut fewest) = (Source::new(seed, percent), u64::MAX);
            for turn in 0..80 {
                // Twice as much for a while as in the mean, and then nothing.
                for rate in [2, 0] {
                    source.run_for(12, |lanes| rate * (LINK / part).min(LINK / lanes));
                }
                if turn >= 60 {
                    fewest = fewest.min(source.lanes.len() as u64);
                }
            }
            // More than the fewest are trials.
            assert!(
                (part - 1..=part + 2).contains(&fewest),
                "seed {seed}: {fewest} lanes of a {part}th each"
            );
        }
    }
}

#[test]
fn the_lanes_of_a_candidate_end_with_it() {
    let mut source = Source::new(3, 0);
    source.run(4, |lanes| (LINK / 4).min(LINK / lanes));
    assert!(source.lanes.len() >= 4);
    let first = *source.lanes.keys().next().unwrap();
    source.machine.handle(source.now, Input::Candidates { all: &[], is_behind_head: false });
    source.obey();
    assert!(source.lanes.is_empty(), "{:?} of {first:?}", source.lanes);
}

/// A further lane that breaks is no fault of the candidate, and the others stay.
#[test]
fn a_lane_that_breaks_costs_itself() {
    let mut source = Source::new(4, 0);
    source.run(4, |lanes| (LINK / 4).min(LINK / lanes));
    let last = *source.lanes.keys().last().unwrap();
    let before = source.lanes.len();
    source.lanes.remove(&last);
    source.machine.handle(source.now, Input::Closed(last, Fault::Ended));
    source.obey();
    assert_eq!(source.lanes.len(), before - 1, "none is lost, and nothing said");
    source.run(4, |lanes| (LINK / 4).min(LINK / lanes));
    assert!(source.lanes.len() >= 4, "{} lanes", source.lanes.len());
}

/// Misbehaviour of a member on the lanes that a receiver opens to it, but for the first one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trick {
    None,
    /// It takes a connection, and says nothing.
    Silent,
    /// It takes none, and refuses none.
    Deaf,
    /// It ends a connection when half of a group has come by it.
    Ends,
    /// It gives each group by the lane that was asked, and by the next one.
    Twice,
}

/// A connection to one of two members, and what it was asked for.
#[derive(Debug, Default)]
struct Line {
    of: u8,
    number: usize,
    asked: Vec<u64>,
    bytes: u64,
}

const GROUP: u64 = 1 << 18;

fn member(last: u8) -> Candidate {
    Candidate { address: [10, 0, 0, last].into(), port: 7, name: None, is_source: false, share: Share::ALL }
}

/// Fetches from two members, each flow limited to an eighth of the path, of which the first one plays a
/// trick; the time until all is here, the most lanes to one, and the faults that are said of the first one.
fn fetch_from_two(trick: Trick) -> (f64, usize, BTreeSet<Fault>) {
    let groups = 8 * LINK / GROUP;
    let mut machine = Upstreams::new(UpstreamsConfig { groups, group_len: GROUP as u32, seed: 11 });
    machine.handle(Time(1), Input::Candidates { all: &[member(1), member(2)], is_behind_head: false });
    let all: Vec<core::ops::Range<u64>> = core::iter::once(0..groups).collect();
    let (mut lines, mut opened): (BTreeMap<UpstreamId, Line>, [usize; 3]) = Default::default();
    let (mut now, mut here, mut most, mut faults) = (Time(1), BTreeSet::new(), 0, BTreeSet::new());
    while (here.len() as u64) < groups {
        assert!(now < Time(120_000_000_000), "{trick:?}: {} of {groups} groups", here.len());
        while let Some(output) = machine.poll() {
            match output {
                Output::Open(id, candidate) => {
                    let of = if candidate.address == member(1).address { 1 } else { 2 };
                    opened[usize::from(of)] += 1;
                    let line = Line { of, number: opened[usize::from(of)], ..Line::default() };
                    let tricks = of == 1 && line.number > 1;
                    lines.insert(id, line);
                    if !tricks || trick != Trick::Deaf {
                        machine.handle(now, Input::Opened(id));
                    }
                    if !tricks || !matches!(trick, Trick::Deaf | Trick::Silent) {
                        machine.handle(now, Input::Has(id, &all));
                    }
                }
                Output::Ask(id, groups) => {
                    lines.get_mut(&id).expect("it is open").asked.extend(groups);
                }
                Output::Close(id) => drop(lines.remove(&id)),
                Output::Lost(candidate, fault) => {
                    assert_eq!(candidate.address, member(1).address, "{fault}: the other one is honest");
                    faults.insert(fault);
                }
                Output::Finish(_) | Output::Lacks(_) => {}
            }
        }
        most = most.max((1..3).map(|of| lines.values().filter(|line| line.of == of).count()).max().unwrap());
        now += STEP;
        let ids: Vec<UpstreamId> = lines.keys().copied().collect();
        for id in &ids {
            let Some(line) = lines.get_mut(id).filter(|line| !line.asked.is_empty()) else { continue };
            line.bytes += LINK / 8 / 100;
            machine.handle(now, Input::Heard(*id, LINK / 8 / 100));
            let tricks = line.of == 1 && line.number > 1;
            if tricks && trick == Trick::Ends && line.bytes >= GROUP / 2 {
                lines.remove(id);
                machine.handle(now, Input::Closed(*id, Fault::Ended));
                continue;
            }
            if line.bytes < GROUP {
                continue;
            }
            line.bytes -= GROUP;
            let group = line.asked.remove(0);
            let next = ids.iter().find(|other| *other > id).filter(|_| tricks && trick == Trick::Twice);
            for id in [id].into_iter().chain(next) {
                machine.handle(now, Input::Came(*id, group));
            }
            machine.handle(now, Input::Verified(group));
            here.insert(group);
        }
        machine.handle(now, Input::Tick);
    }
    (now.0 as f64 / 1e9, most, faults)
}

/// A member that plays tricks on further lanes costs what it does not give: all comes from it and another
/// one, by no more lanes than there may be.
#[test]
fn tricks_on_lanes_cost_what_they_keep_back() {
    let (alone, most, faults) = fetch_from_two(Trick::None);
    assert!(most > 2 && faults.is_empty(), "{most} lanes, {faults:?}");
    for trick in [Trick::Silent, Trick::Deaf, Trick::Ends, Trick::Twice] {
        let (took, most, faults) = fetch_from_two(trick);
        assert!(most <= LANES_MAX, "{trick:?}: {most} lanes");
        assert!(took <= 3.0 * alone, "{trick:?}: {took:.2} s instead of {alone:.2} s");
        let expected = if trick == Trick::Twice { vec![Fault::Foreign] } else { vec![] };
        assert_eq!(faults.into_iter().collect::<Vec<_>>(), expected, "{trick:?}");
    }
}
