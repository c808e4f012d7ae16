//! A source whose bytes are written to while it is hashed: in no order of events are all hashes told of what
//! never was one file.

use polycast_protocol::session::{Telling, TellingInput as Input, TellingOutput as Output};
use polycast_types::{Duration, Time};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// The next groups are read and hashed.
    Hash(u64),
    /// A program writes to this group.
    Write(prop::sample::Index),
    /// The look that is under way sees what is there, and is over.
    Look,
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (1u64..6).prop_map(Step::Hash),
        1 => any::<prop::sample::Index>().prop_map(Step::Write),
        4 => Just(Step::Look),
        2 => (1u64..3_000).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..60)
}

/// The object's groups, of each the version of its bytes.
struct File {
    now: Vec<u64>,
    writes: u64,
    hashed: Vec<u64>,
    told: Vec<u64>,
    /// Looks that see another state than the first one.
    looking: bool,
    ended: bool,
}

impl File {
    fn turn(&mut self, now: Time, machine: &mut Telling) {
        while let Some(output) = machine.poll(now) {
            assert!(!self.ended, "{output:?} after the end");
            match output {
                Output::Look => {
                    assert!(!self.looking, "two looks at a time");
                    self.looking = true;
                }
                Output::Tell(groups) => {
                    assert_eq!(groups.start, self.told.len() as u64, "told in their order, once");
                    self.told.extend(&self.hashed[groups.start as usize..groups.end as usize]);
                }
                Output::Changed => {
                    assert!(self.writes > 0, "it ends for no reason");
                    self.ended = true;
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn all_hashes_that_are_told_are_of_one_state(groups in 1u64..20, steps in steps()) {
        let mut now = Time::ZERO;
        let mut machine = Telling::new(now, groups);
        let mut file = File {
            now: vec![0; groups as usize], writes: 0, hashed: Vec::new(), told: Vec::new(), looking: false, ended: false,
        };
        for step in steps {
            match step {
                Step::Hash(count) => {
                    let known = file.hashed.len();
                    let until = (known + count as usize).min(groups as usize);
                    file.hashed.extend_from_slice(&file.now[known..until]);
                    machine.handle(now, Input::Hashed(until as u64));
                }
                Step::Write(at) => {
                    file.writes += 1;
                    let at = at.index(groups as usize);
                    file.now[at] = file.writes;
                }
                Step::Look if file.looking => {
                    file.looking = false;
                    machine.handle(now, Input::Looked { same: file.writes == 0 });
                }
                Step::Look => {}
                Step::Wait(ms) => now += Duration::from_millis(ms),
            }
            file.turn(now, &mut machine);
            // The first state is the only one that is ever told as a whole: a receiver that has that many has
            // one file.
            prop_assert!(file.told.len() < groups as usize || file.told.iter().all(|version| *version == 0));
        }
        // Left alone, it comes to an end: all is told, or it says that it has changed.
        machine.handle(now, Input::Hashed(groups));
        file.hashed.extend_from_slice(&file.now[file.hashed.len()..]);
        for _ in 0..4 {
            file.turn(now, &mut machine);
            if std::mem::take(&mut file.looking) {
                machine.handle(now, Input::Looked { same: file.writes == 0 });
            }
            now = machine.deadline().map_or(now, |at| now.max(at));
        }
        prop_assert_eq!(file.ended, file.writes > 0);
        prop_assert!(file.ended || file.told.len() == groups as usize);
    }
}

#[test]
fn a_look_that_began_before_the_last_hash_does_not_count() {
    let mut machine = Telling::new(Time::ZERO, 2);
    machine.handle(Time::ZERO, Input::Hashed(1));
    assert_eq!(machine.poll(Time::ZERO), Some(Output::Tell(0..1)));
    let later = machine.deadline().unwrap();
    assert_eq!(machine.poll(later), Some(Output::Look));
    machine.handle(later, Input::Hashed(2));
    machine.handle(later, Input::Looked { same: true });
    assert_eq!((machine.is_sure(), machine.may_tell()), (false, 1));
    assert_eq!(machine.poll(later), Some(Output::Look), "at once");
    machine.handle(later, Input::Looked { same: true });
    assert_eq!(machine.poll(later), Some(Output::Tell(1..2)));
    assert!(machine.is_sure() && machine.poll(later).is_none());
}
