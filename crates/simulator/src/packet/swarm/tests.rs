use super::*;

#[test]
fn seeds_run_without_a_failure() {
    for seed in 0..150 {
        let verdict = run(seed, None);
        assert_eq!(verdict.failure, None, "{verdict:?}");
    }
}

#[test]
fn one_seed_gives_one_run() {
    for seed in 1_000..1_012 {
        assert_eq!(run(seed, None), run(seed, None));
    }
    let traces: alloc::collections::BTreeSet<u64> = (0..12).map(|seed| run(seed, None).trace_hash).collect();
    assert_eq!(traces.len(), 12);
}

/// The first seed that finds a planted bug.
fn found_within(plant: Plant, seeds: u64) -> String {
    let found = (0..seeds).map(|seed| run(seed, Some(plant))).find_map(|verdict| verdict.failure);
    found.unwrap_or_else(|| panic!("{plant:?} was not found within {seeds} seeds"))
}

#[test]
fn planted_bugs_are_found() {
    let dropped = found_within(Plant::DropPatch, 60);
    // With a manager, whoever waits for the path of a transfer that never ends may be the first to show it.
    let shows = ["not over", "did not get an object", "was not answered"];
    assert!(shows.iter().any(|words| dropped.contains(words)), "{dropped}");
    assert!(found_within(Plant::SkipCredit, 60).contains("did not get the object"));
    assert!(found_within(Plant::StaleLabel, 200).contains("has left"));
    assert!(found_within(Plant::SkipCheck, 60).contains("content"));
    assert!(found_within(Plant::StaleRelays, 200).contains("gets 0 copies"));
    assert!(found_within(Plant::ForgetSource, 100).contains("did not get the object"));
    assert!(found_within(Plant::ForgetLease, 2_000).contains("though nobody else"));
    assert!(found_within(Plant::LoseGrant, 200).contains("was not answered"));
}

/// In seeds with a manager and transfers over its paths, bugs of both are found.
#[test]
fn a_manager_with_transfers_finds_bugs_of_both() {
    let with_transfers = |seed: &u64| run(*seed, None).case.contains("transfers over the paths");
    let seeds: alloc::vec::Vec<u64> = (0..1_000).filter(with_transfers).take(25).collect();
    for (plant, words) in
        [(Plant::DropPatch, "not"), (Plant::SkipCheck, "content"), (Plant::LoseGrant, "not answered")]
    {
        let found =
            seeds.iter().filter_map(|&seed| run(seed, Some(plant)).failure).any(|text| text.contains(words));
        assert!(found, "{plant:?} is not found where a manager lends paths to transfers");
    }
}

/// What is drawn in only some cases is drawn, and a bug shows in such cases too.
#[test]
fn every_kind_of_trouble_is_drawn() {
    for word in ["a switch turns", "beside TCP", "a relay fails", "shufflecast", "by labels", "manager of"] {
        assert!((0..80).any(|seed| run(seed, None).case.contains(word)), "{word} is never drawn");
    }
    for word in ["a switch turns", "beside TCP", "a relay fails"] {
        let found = (0..400)
            .map(|seed| run(seed, Some(Plant::DropPatch)))
            .any(|verdict| verdict.case.contains(word) && verdict.failure.is_some());
        assert!(found, "a patch that is never sent is not found where {word}");
    }
}
