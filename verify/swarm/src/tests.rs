use super::*;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

#[cfg(test)]
extern crate std;

/// Runs a seed; one that fails, or in which a machine panics, is shown with the command that runs it alone.
fn sound(seed: u64) -> Verdict {
    let verdict = std::panic::catch_unwind(|| run(seed, None));
    let verdict = verdict.unwrap_or_else(|_| panic!("a machine panics: {}", command(seed)));
    assert_eq!(verdict.failure, None, "{}: {}", verdict.case, command(seed));
    verdict
}

#[test]
fn seeds_run_without_a_failure() {
    (0..200).for_each(|seed| drop(sound(seed)));
}

/// Seeds that have failed once. A path was kept ready and lent again to the agent that had held it; a path of
/// a stream kept receivers that had not come back to a manager without records, or was named again by a
/// source that had not heard of its end; a path was named without the receiver that its manager did not see.
/// The checks were wrong where a manager without records had lent an address to another one in the same step,
/// which is a reason for a loss, where an agent was told late of a path whose time it had changed while it
/// waited, and where the record of a path was lost and its address had failed. An agent that came back asked
/// for its path again, and got it with what was left of its time. A member of an overlay that boasts came
/// back again and again. After healing a write still took longer than a leader waits for it. In a mesh one
/// whose connections had broken too often got its last group never, and one whose source was its only
/// candidate asked too rarely. A receiver that was refused kept what it knew of a shared stream's members.
const ONCE_FAILED: [u64; 31] = [
    7_340, 9_152, 20_485, 20_973, 22_961, 30_517, 30_659, 31_793, 31_971, 32_347, 32_592, 32_905, 34_761,
    104_165, 108_854, 113_896, 117_095, 118_371, 125_539, 130_507, 135_995, 137_019, 138_910, 218_760,
    407_406, 6_009_169, 6_116_814, 6_232_427, 6_247_284, 6_339_258, 7_324_843,
];

#[test]
fn seeds_that_have_failed_once_do_not_fail() {
    ONCE_FAILED.into_iter().for_each(|seed| drop(sound(seed)));
}

/// Cases that are never drawn are not tested: every fault and every input of every machine that the swarm
/// names happens.
#[test]
fn everything_is_drawn() {
    let mut coverage = Coverage::default();
    let mut missing = Vec::new();
    for seed in 20_000..22_500 {
        coverage.merge(&sound(seed).coverage);
        if seed % 100 == 0 {
            missing = coverage.table().into_iter().filter(|(_, count)| *count == 0).collect();
            if missing.is_empty() {
                return;
            }
        }
    }
    panic!("never drawn: {missing:?}");
}

#[test]
fn one_seed_gives_one_run() {
    for seed in 1_000..1_012 {
        assert_eq!(run(seed, None), run(seed, None));
    }
    let traces: BTreeSet<u64> = (0..12).map(|seed| run(seed, None).trace_hash).collect();
    assert_eq!(traces.len(), 12);
}

/// Seeds from which the search for bugs begins that few cases show: shortly before the first of them, when
/// this was written. It goes on behind them, and from the first one.
const RARE: [(Plant, u64); 6] = [
    (Plant::StaleLabel, 310),
    (Plant::RecycleOpen, 470),
    (Plant::RecycleAtOnce, 610),
    (Plant::TakeRefused, 480),
    (Plant::MissReplan, 340),
    (Plant::NoSettling, 830),
];

/// As many seeds, in the order in which a bug is searched for.
fn seeds(plant: Plant, count: u64) -> impl Iterator<Item = u64> {
    let from = RARE.iter().find(|(rare, _)| *rare == plant).map_or(0, |(_, from)| *from);
    (from..count).chain(0..from)
}

/// The first seed that finds a planted bug.
fn found_within(plant: Plant, count: u64) -> String {
    let found = seeds(plant, count).map(|seed| run(seed, Some(plant))).find_map(|verdict| verdict.failure);
    found.unwrap_or_else(|| panic!("{plant:?} was not found within {count} seeds"))
}

#[test]
fn planted_bugs_are_found() {
    let dropped = found_within(Plant::DropPatch, 100);
    // With a manager, an agent that waits for the path of a transfer that does not end may be the first to
    // show it.
    let shows = ["not over", "did not get an object", "was not answered"];
    assert!(shows.iter().any(|words| dropped.contains(words)), "{dropped}");
    assert!(found_within(Plant::SkipCredit, 100).contains("did not get the object"));
    assert!(found_within(Plant::StaleLabel, 400).contains("has left"));
    assert!(found_within(Plant::SkipCheck, 100).contains("content"));
    assert!(found_within(Plant::OldGroup, 100).contains("other content"));
    for plant in [Plant::RecycleOpen, Plant::RecycleAtOnce] {
        assert!(found_within(plant, 2_000).contains("is written over that a process has open"));
    }
    assert!(found_within(Plant::StaleRelays, 400).contains("gets 0 copies"));
    assert!(found_within(Plant::ForgetSource, 200).contains("did not get the object"));
}

/// The same among the first 2,000 seeds, of which only those of some kinds are run.
fn found_among(kinds: core::ops::Range<u64>, plant: Plant) -> String {
    let seeds = seeds(plant, 2_000).filter(|seed| kinds.contains(&Random::new(*seed).below(KINDS)));
    let found = seeds.map(|seed| run(seed, Some(plant))).find_map(|verdict| verdict.failure);
    found.unwrap_or_else(|| panic!("{plant:?} was not found within 2,000 seeds"))
}

#[test]
fn bugs_of_managers_are_found() {
    for (plant, words) in [
        (Plant::ForgetLease, &["though no other"][..]),
        (Plant::LoseGrant, &["was not answered"]),
        // The manager after the one that forgets sees both, or takes the path from its holder.
        (Plant::ForgetLent, &["is lent twice", "is held already", "though no other"]),
        (Plant::LendInDoubt, &["is lent twice", "though no other"]),
        (Plant::WordsFirst, &["which is not written"]),
        (Plant::TakeRefused, &["which is not written"]),
        (Plant::ForgetWaiting, &["a manager that goes on from"]),
        (Plant::ReuseNumbers, &["was given twice"]),
        (Plant::MissReplan, &["goes on with", "is lent twice"]),
        (Plant::TakeSlower, &["was free"]),
        (Plant::ForgetLearned, &["a manager that goes on from"]),
        (Plant::HideMissed, &["does not hear what became of it"]),
    ] {
        let found = found_among(MANAGERS, plant);
        assert!(words.iter().any(|words| found.contains(words)), "{plant:?}: {found}");
    }
}

#[test]
fn bugs_of_racks_and_streams_are_found() {
    for (kinds, plant, words) in [
        (RACKS, Plant::OldConfirmation, "of rack"),
        (RACKS, Plant::OldLabels, "of rack"),
        (FEEDBACK, Plant::SpeakerForAll, "the rack says that it has"),
        (STREAMS, Plant::HideGap, "are missing, and 0 are said"),
        (STREAMS, Plant::LosePiece, "was delivered with"),
        (STREAMS, Plant::TakeRecorded, "was sent before"),
    ] {
        let found = found_among(kinds, plant);
        assert!(found.contains(words), "{plant:?}: {found}");
    }
}

#[test]
fn bugs_of_the_directory_are_found() {
    (0..300).for_each(|seed| {
        let verdict = objects::run(seed, &mut Random::new(seed), None);
        assert_eq!(verdict.failure, None, "seed {seed}");
    });
    for (plant, words) in [
        (Plant::ForgetHave, &["is read twice"][..]),
        (Plant::NoSettling, &["is read twice"]),
        (Plant::KeepGhosts, &["are named twice", "was not answered", "is read twice", "and is not"]),
        (Plant::EarlyHave, &["is committed before"]),
        (Plant::NoPlaces, &["more transfers at once"]),
        (Plant::NoAges, &["is to send edition"]),
    ] {
        let found = found_among(OBJECTS..OBJECTS + 1, plant);
        assert!(words.iter().any(|words| found.contains(words)), "{plant:?}: {found}");
    }
    // A session has to break in the moments between a request and its answer.
    let seeds = (0..2_000).map(|seed| objects::run(seed, &mut Random::new(seed), Some(Plant::AskOnce)));
    let found = seeds.filter_map(|verdict| verdict.failure).next();
    assert!(found.is_some_and(|found| found.contains("was not answered")));
}

#[test]
fn an_object_that_changes_is_never_told_as_one() {
    for seed in 0..2_000 {
        let verdict = changed::run(seed, &mut Random::new(seed), None);
        assert_eq!(verdict.failure, None, "seed {seed}: {}", verdict.case);
    }
    assert!(found_among(CHANGED..CHANGED + 1, Plant::TellUnseen).contains("is told all hashes, one of them"));
}

#[test]
fn a_delivery_holds_one_path_at_a_time_and_forgets_none() {
    for seed in 0..3_000 {
        let verdict = deliveries::run(seed, &mut Random::new(seed), None);
        assert_eq!(verdict.failure, None, "seed {seed}: {}", verdict.case);
    }
    for (plant, words) in [
        (Plant::FreshTime, &["and were wanted for"][..]),
        (Plant::KeepPath, &["beside another one"]),
        // One that was taken out gets something, or one that was added gets nothing.
        (Plant::ForgetChanges, &["gets what is sent later", "and nothing says why"]),
        (Plant::DeltaForAll, &["and nothing says why"]),
        (Plant::BelieveBase, &["counts bytes as the object's that are not"]),
    ] {
        let found = found_among(CHANGED..CHANGED + 1, plant);
        assert!(words.iter().any(|words| found.contains(words)), "{plant:?}: {found}");
    }
}

#[test]
fn receivers_that_serve_each_other_all_get_the_object() {
    for seed in 0..400 {
        let verdict = overlay::run(seed, &mut Random::new(seed), None);
        assert_eq!(verdict.failure, None, "seed {seed}: {}", verdict.case);
    }
    for (plant, words) in [
        (Plant::DropLacks, "did not get the object"),
        (Plant::DropCandidates, "did not get the object"),
        (Plant::SkipHash, "keeps a wrong group"),
    ] {
        let found = found_among(CHANGED..CHANGED + 1, plant);
        assert!(found.contains(words), "{plant:?}: {found}");
    }
}

/// Few seeds are about a slow receiver, since these take long: here are some by themselves.
#[test]
fn a_slow_receiver_does_not_hold_the_others() {
    for seed in 0..6 {
        let alone = |plant| slow::run(seed, &mut Random::new(seed), plant);
        assert_eq!(alone(None).failure, None, "seed {seed}");
        let held = alone(Some(Plant::WaitForAll)).failure;
        assert!(held.is_some_and(|text| text.contains("beside a slow one")), "seed {seed}");
    }
    assert!(found_among(SLOW..SLOW + 1, Plant::WaitForAll).contains("beside a slow one"));
}

/// In seeds with a manager and transfers over its paths, bugs of both are found.
#[test]
fn a_manager_with_transfers_finds_bugs_of_both() {
    let mut missing = Vec::from([
        (Plant::DropPatch, "not"),
        (Plant::SkipCheck, "content"),
        (Plant::LoseGrant, "not answered"),
    ]);
    let with_transfers = |seed: &u64| run(*seed, None).case.contains("transfers over the paths");
    for seed in (0..1_000).filter(with_transfers).take(120) {
        missing.retain(|(plant, words)| {
            !run(seed, Some(*plant)).failure.is_some_and(|text| text.contains(words))
        });
        if missing.is_empty() {
            return;
        }
    }
    panic!("not found where a manager lends paths to transfers: {missing:?}");
}

/// Trouble that only some cases have is drawn, and a bug shows in such cases too.
#[test]
fn every_kind_of_trouble_is_drawn() {
    let cases: Vec<String> = (0..200).map(|seed| run(seed, None).case).collect();
    for word in [
        "a switch turns",
        "beside TCP",
        "a relay fails",
        "shufflecast",
        "by labels",
        "manager of",
        "with records",
        "circuits",
        "chosen by time",
        "streams among",
        "controllers of",
        "feedback of",
        "objects asked for",
        "an older version",
        "delivery to",
        "overlay of",
        "whose pages may be taken",
    ] {
        assert!(cases.iter().any(|case| case.contains(word)), "{word} is never drawn");
    }
    let mut words = BTreeSet::from(["a switch turns", "beside TCP", "a relay fails"]);
    for seed in 0..600 {
        let verdict = run(seed, Some(Plant::DropPatch));
        words.retain(|word| verdict.failure.is_none() || !verdict.case.contains(word));
        if words.is_empty() {
            return;
        }
    }
    panic!("a patch that is never sent is not found where {words:?}");
}
