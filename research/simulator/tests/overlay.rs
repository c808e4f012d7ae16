//! Receivers that bring an object to each other, in virtual time: how long the honest ones take, what the
//! source sends, and whom they name.

use polycast_simulator::overlay::{GROUP_LEN, Host, Mood, Outcome, Spots, World};
use polycast_types::{Duration, Time};
use std::collections::BTreeSet;

/// A gigabit a second.
const GIGABIT: u64 = 125_000_000;
/// 256 MiB.
const GROUPS: u64 = 1_024;

fn at_s(seconds: f64) -> Time {
    Time((seconds * 1e9) as u64)
}

const HONEST: Host = Host { up: GIGABIT, down: GIGABIT, mood: Mood::Honest };

fn run(seed: u64, groups: u64, hosts: &[Host]) -> Outcome {
    let outcome = World::new(seed, groups, GIGABIT, hosts).run(at_s(120.0));
    println!(
        "{} receivers, seed {seed}: objects {:.3}, twice {}, lacking {}, named {:?}, keep back {:?}",
        hosts.len(),
        outcome.objects,
        outcome.twice,
        outcome.lacking,
        outcome.named,
        outcome.keepers
    );
    outcome
}

/// Returns the time at which the last of the given receivers was done, in seconds.
fn last(outcome: &Outcome, of: impl IntoIterator<Item = usize>) -> f64 {
    let done = |at: usize| outcome.done[at].unwrap_or_else(|| panic!("receiver {at} is not done"));
    Duration(of.into_iter().map(done).max().expect("there is one").0).as_secs_f64()
}

/// Returns the time that one path takes for the object.
fn ideal(groups: u64) -> f64 {
    Duration(groups * GROUP_LEN * 1_000_000_000 / GIGABIT).as_secs_f64()
}

#[test]
fn as_many_as_there_are_take_as_long_as_one() {
    for receivers in [1, 2, 3, 4, 8, 16, 33] {
        for seed in 0..2 {
            let outcome = run(seed, GROUPS, &vec![HONEST; receivers]);
            let took = last(&outcome, 1..=receivers) / ideal(GROUPS);
            println!("  {took:.3} of the ideal time");
            let most = if receivers <= 16 { 1.05 } else { 1.1 };
            assert!(took <= most, "{receivers} receivers, seed {seed}: {took:.3} of the ideal time");
            assert!(outcome.objects <= 1.1, "the source sends {:.3} objects", outcome.objects);
            assert!(outcome.named.is_empty(), "{:?}", outcome.named);
        }
    }
}

/// Returns the time of the honest receivers with this one among them, over their time without it.
fn beside(hosts: &[Host], faulty: &[Host], seed: u64) -> (f64, Outcome) {
    let without = last(&run(seed, GROUPS, hosts), 1..=hosts.len());
    let all: Vec<Host> = hosts.iter().chain(faulty).copied().collect();
    let outcome = run(seed, GROUPS, &all);
    let ratio = last(&outcome, 1..=hosts.len()) / without;
    println!("  {ratio:.3} of the time without");
    (ratio, outcome)
}

#[test]
fn one_at_a_tenth_of_the_rate_holds_none_of_the_others() {
    for seed in 0..4 {
        let slow = Host { up: GIGABIT / 10, down: GIGABIT / 10, mood: Mood::Honest };
        let (ratio, outcome) = beside(&[HONEST; 3], &[slow], seed);
        assert!(ratio <= 1.05, "seed {seed}: {ratio:.3} of the time without it");
        let own = last(&outcome, [4]) / (10.0 * ideal(GROUPS));
        assert!(own <= 1.05, "seed {seed}: it takes {own:.3} of what its path takes");
    }
}

#[test]
fn one_that_stops_holds_none_of_the_others() {
    for (seed, from) in [(0, 0.3), (1, 1.0), (2, 1.8)] {
        let stops = Host { mood: Mood::Stops(at_s(from), at_s(from + 5.0)), ..HONEST };
        let (ratio, _) = beside(&[HONEST; 7], &[stops], seed);
        assert!(ratio <= 1.05, "seed {seed}: {ratio:.3} of the time without it");
    }
}

#[test]
fn one_that_dies_holds_none_of_the_others() {
    for seed in 0..4 {
        let dies = Host { mood: Mood::Dies(at_s(1.1)), ..HONEST };
        let (ratio, outcome) = beside(&[HONEST; 7], &[dies], seed);
        assert!(ratio <= 1.05, "seed {seed}: {ratio:.3} of the time without it");
        assert!(outcome.objects <= 1.1, "the source sends {:.3} objects", outcome.objects);
    }
}

#[test]
fn two_that_boast_cost_the_others_what_they_take_and_are_named() {
    for seed in 0..4 {
        let boasts = Host { mood: Mood::Boasts, ..HONEST };
        let (ratio, outcome) = beside(&[HONEST; 6], &[boasts; 2], seed);
        // They take as the others do and give nothing: eight paths are to be filled by seven.
        let most = 8.0 / 7.0 * 1.05;
        assert!(ratio <= most, "seed {seed}: {ratio:.3} of the time without them");
        let named: Vec<usize> = outcome.named.keys().copied().collect();
        assert_eq!(named, [7, 8], "seed {seed}: {:?}", outcome.named);
    }
}

#[test]
fn one_that_gives_wrong_bytes_is_named_and_holds_none() {
    for seed in 0..4 {
        let spoils = Host { mood: Mood::Spoils, ..HONEST };
        let (ratio, outcome) = beside(&[HONEST; 7], &[spoils], seed);
        assert!(ratio <= 1.05, "seed {seed}: {ratio:.3} of the time without it");
        assert!(outcome.named.keys().all(|at| *at == 8), "seed {seed}: {:?}", outcome.named);
        assert!(outcome.named.get(&8).is_some_and(|faults| faults.contains("wrong bytes")));
        assert!(outcome.wrong <= 7 * 16, "each takes wrong bytes of it once: {}", outcome.wrong);
    }
}

#[test]
fn one_that_gives_next_to_nothing_holds_none_of_the_others() {
    let drips = Host { mood: Mood::Drips, ..HONEST };
    for seed in 0..3 {
        let (ratio, outcome) = beside(&[HONEST; 7], &[drips], seed);
        // It takes as the others do: eight paths are to be filled by seven.
        let most = 8.0 / 7.0 * 1.05;
        assert!(ratio <= most, "seed {seed}: {ratio:.3} of the time without it");
        assert!(outcome.named.keys().all(|at| *at == 8), "seed {seed}: {:?}", outcome.named);
        assert!(outcome.named.contains_key(&8), "seed {seed}: it is named");
        // A single other one gets from the source what this one keeps back.
        let (ratio, _) = beside(&[HONEST], &[drips], seed);
        assert!(ratio <= 2.2, "seed {seed}: {ratio:.3} of the time without it");
    }
}

#[test]
fn those_that_come_later_hold_none_of_the_others() {
    for seed in 0..3 {
        let comes = Host { mood: Mood::Comes(at_s(1.0)), ..HONEST };
        let (ratio, outcome) = beside(&[HONEST; 8], &[comes; 4], seed);
        assert!(ratio <= 1.15, "seed {seed}: {ratio:.3} of the time without them");
        let own = (last(&outcome, 9..=12) - 1.0) / ideal(GROUPS);
        assert!(own <= 1.2, "seed {seed}: they take {own:.3} of the ideal time");
        assert!(outcome.objects <= 1.1 && outcome.named.is_empty(), "{:.3} objects", outcome.objects);
    }
}

#[test]
fn a_slow_source_is_not_the_fault_of_its_receivers() {
    for (seed, part) in [(0, 4), (1, 10), (2, 40)] {
        let outcome = World::new(seed, 128, GIGABIT / part, &[HONEST; 8]).run(at_s(120.0));
        let took = last(&outcome, 1..=8) / (part as f64 * ideal(128));
        assert!(took <= 1.1, "seed {seed}: {took:.3} of what the source takes");
        assert!(outcome.named.is_empty(), "{:?}", outcome.named);
        assert!(outcome.objects <= 1.1, "the source sends {:.3} objects", outcome.objects);
    }
}

#[test]
fn many_slow_ones_get_what_their_paths_take_and_are_not_blamed() {
    for seed in 0..3 {
        let slow = Host { up: GIGABIT / 5, down: GIGABIT / 5, mood: Mood::Honest };
        let all: Vec<Host> = [HONEST; 4].into_iter().chain([slow; 4]).collect();
        let outcome = run(seed, GROUPS, &all);
        let own = last(&outcome, 5..=8) / (5.0 * ideal(GROUPS));
        assert!(own <= 1.1, "seed {seed}: they take {own:.3} of what their paths take");
        assert!(outcome.named.is_empty(), "{:?}", outcome.named);
    }
}

#[test]
fn one_whose_path_up_is_slow_gets_all_as_the_others_do() {
    for seed in 0..3 {
        let slow = Host { up: GIGABIT / 20, ..HONEST };
        let (ratio, outcome) = beside(&[HONEST; 7], &[slow], seed);
        // It takes as the others do and gives little: eight paths are to be filled by seven.
        let most = 8.0 / 7.0 * 1.05;
        assert!(ratio <= most, "seed {seed}: {ratio:.3} of the time without it");
        let own = last(&outcome, [8]) / ideal(GROUPS);
        assert!(own <= most * 1.05, "seed {seed}: it takes {own:.3} of the ideal time");
    }
}

#[test]
fn those_that_none_can_reach_get_the_object_too() {
    for seed in 0..3 {
        let hidden = Host { mood: Mood::Hidden, ..HONEST };
        let (ratio, outcome) = beside(&[HONEST; 6], &[hidden; 2], seed);
        let most = 8.0 / 6.0 * 1.05;
        assert!(ratio <= most, "seed {seed}: {ratio:.3} of the time without them");
        let own = last(&outcome, [7, 8]) / ideal(GROUPS);
        assert!(own <= most * 1.05, "seed {seed}: they take {own:.3} of the ideal time");
    }
}

/// As behind firewalls, where no member lets another one in: the source gives everything to each. It gives a
/// group to one at a time, and finds out after a while each that it has come to no other, so that this takes
/// several times as long as it takes the source.
#[test]
fn where_none_can_be_reached_all_fetch_from_the_source() {
    for seed in 0..3 {
        let outcome = run(seed, 128, &[Host { mood: Mood::Hidden, ..HONEST }; 9]);
        let took = last(&outcome, 1..=9) / (9.0 * ideal(128));
        println!("  {took:.3} of what the source takes for nine");
        assert!(took <= 4.5, "seed {seed}: {took:.3} of what the source takes for nine");
    }
}

/// However many come beside it, and however small the object is.
#[test]
fn one_that_gives_nothing_holds_none_of_many() {
    for groups in [1, 2, 8, 64] {
        for (seed, at) in [(0, 0), (1, 5), (2, 19)] {
            let mut hosts = [HONEST; 20];
            hosts[at].mood = Mood::Boasts;
            let outcome = run(seed, groups, &hosts);
            let took = last(&outcome, (1..=20).filter(|receiver| *receiver != at + 1));
            println!("  {groups} groups: {took:.3} s");
            assert!(took <= 3.0 + 1.2 * ideal(groups), "{groups} groups, {at}: {took:.3} s");
        }
    }
}

#[test]
fn a_thousand_have_their_first_group_after_a_few_trips() {
    let receivers = 1_000;
    let outcome = run(5, 64, &vec![HONEST; receivers]);
    let first = outcome.first[1..].iter().map(|at| at.expect("all have one")).max().expect("there are some");
    let group = Duration(GROUP_LEN * 1_000_000_000 / GIGABIT);
    let groups = first.0 as f64 / group.0 as f64;
    println!("  the last one has its first group after {groups:.1} times what a group takes");
    assert!(groups <= 60.0, "{groups:.1} times what a group takes, and not a thousand times");
    println!("  all after {:.3} of the ideal time", last(&outcome, 1..=receivers) / ideal(64));
}

/// Prints what many receivers take, of which some are slow or die: one line a case, in times of what one path
/// takes for the object.
#[test]
#[ignore = "a thousand receivers take two minutes; the tests above ask the same of fewer"]
fn many_receivers_in_a_table() {
    println!(
        "receivers | a hundredth slow and dying | p50 | p99 | last | objects of the source | lacks told"
    );
    for receivers in [8, 100, 1_000] {
        for faulty in BTreeSet::from([0, receivers / 100]) {
            let slow = Host { up: GIGABIT / 10, down: GIGABIT / 10, mood: Mood::Honest };
            let dies = Host { mood: Mood::Dies(at_s(ideal(GROUPS) / 2.0)), ..HONEST };
            let mut hosts = vec![HONEST; receivers];
            hosts[..faulty].fill(slow);
            hosts[faulty..2 * faulty].fill(dies);
            let outcome = World::new(7, GROUPS, GIGABIT, &hosts).run(at_s(120.0));
            let honest = 2 * faulty + 1..=receivers;
            let mut done: Vec<f64> = honest.map(|at| last(&outcome, [at]) / ideal(GROUPS)).collect();
            done.sort_unstable_by(f64::total_cmp);
            let part = |hundredths: usize| done[(done.len() - 1) * hundredths / 100];
            let (objects, lacking) = (outcome.objects, outcome.lacking);
            println!(
                "{receivers} | {faulty} each | {:.3} | {:.3} | {:.3} | {objects:.3} | {lacking}",
                part(50),
                part(99),
                part(100)
            );
            assert!(
                part(50) <= 1.2,
                "{receivers} receivers, {faulty} of each fault: half of them take {:.3}",
                part(50)
            );
            assert!(objects <= 1.1, "{receivers} receivers: the source sends {objects:.3} objects");
        }
    }
}

/// Returns the most bytes that went through a joint in a direction, in objects, and what each did.
fn crossings(outcome: &Outcome, groups: u64) -> f64 {
    let object = (groups * GROUP_LEN) as f64;
    for ((zone, rack, is_out), bytes) in &outcome.crossed {
        let rack = rack.map_or(String::new(), |rack| format!(", rack {rack}"));
        let way = if *is_out { "out" } else { "in" };
        println!("  zone {zone}{rack}, {way}: {:.3} objects", *bytes as f64 / object);
    }
    outcome.crossed.values().copied().max().unwrap_or(0) as f64 / object
}

/// Runs hosts in zones and racks; gives how long the last one took over what `rate` takes for the object, and
/// the most objects that went through a joint.
fn run_in(seed: u64, hosts: &[Host], spots: &Spots, rate: u64) -> (f64, f64) {
    let outcome = World::with_spots(seed, GROUPS, (GIGABIT, hosts), spots.clone()).run(at_s(400.0));
    let lives = |at: &usize| hosts[*at - 1].mood.is_served();
    let took = last(&outcome, (1..=hosts.len()).filter(lives));
    let took = took / Duration(GROUPS * GROUP_LEN * 1_000_000_000 / rate).as_secs_f64();
    let Outcome { lacking, objects, named, .. } = &outcome;
    println!(
        "seed {seed}: {took:.3} of the time, lacking {lacking}, objects {objects:.3}, named {named:?}, twice {}",
        outcome.twice
    );
    (took, crossings(&outcome, GROUPS))
}

/// Three zones of four hosts, the source among them, behind joints of a tenth of the rate: the object crosses
/// each joint once, and takes as long as that takes.
#[test]
fn zones_are_crossed_once() {
    for seed in 0..4 {
        let receivers = (1..12).map(|at| (at / 4, 0)).collect();
        let spots = Spots { receivers, zone_rate: Some(GIGABIT / 10), ..Spots::default() };
        let (took, crossed) = run_in(seed, &[HONEST; 11], &spots, GIGABIT / 10);
        assert!(crossed <= 1.02, "seed {seed}: {crossed:.3} objects went through a joint");
        assert!(took <= 1.05, "seed {seed}: {took:.3} of what a joint takes for the object");
    }
}

/// Racks of four hosts, with uplinks as fast as a host, or four times slower; zones beside them, or none; the
/// source with others in its rack, alone there, or in a zone of its own.
#[test]
fn racks_are_crossed_once_wherever_the_source_is() {
    let shapes =
        [(1, 8, (0, 0), 1), (3, 3, (1, 1), 4), (1, 12, (0, 50), 4), (2, 2, (9, 9), 1), (2, 2, (9, 9), 4)];
    for (seed, (zones, racks, source, slower)) in (0..).zip(shapes) {
        let in_zone = |zone| (0..racks).flat_map(move |rack| [(zone, rack); 4]);
        let receivers: Vec<(u8, u8)> = (0..zones).flat_map(in_zone).collect();
        let hosts = vec![HONEST; receivers.len()];
        let rate = GIGABIT / slower;
        let spots = Spots { source, receivers, zone_rate: Some(rate), rack_rate: Some(rate) };
        println!("{zones} zones of {racks} racks, 1/{slower}, source at {source:?}");
        let (took, crossed) = run_in(seed, &hosts, &spots, rate);
        // Where a joint is no faster than a host, the heads' own paths carry as much as the joint.
        let (most_took, most_crossed) = if slower == 1 { (1.4, 1.25) } else { (1.3, 1.25) };
        assert!(crossed <= most_crossed, "{crossed:.3} objects went through a joint");
        assert!(took <= most_took, "{took:.3} of what a joint takes for the object");
    }
}

/// Four zones of four hosts behind joints of a quarter of the rate, with one host that does this.
fn zones_with(seed: u64, at: usize, mood: Mood) -> (f64, f64) {
    let receivers = (1..16).map(|at| (at / 4, 0)).collect();
    let spots = Spots { receivers, zone_rate: Some(GIGABIT / 4), ..Spots::default() };
    let mut hosts = [HONEST; 15];
    hosts[at].mood = mood;
    run_in(seed, &hosts, &spots, GIGABIT / 4)
}

/// Whichever host fails, the others get the object, and what fails costs little.
#[test]
fn one_that_fails_holds_no_zone() {
    let moods = [Mood::Dies(at_s(2.0)), Mood::Hidden, Mood::Boasts, Mood::Spoils, Mood::Comes(at_s(3.0))];
    for mood in moods {
        for at in [0, 5, 14] {
            println!("{mood:?} at {at}");
            let (took, crossed) = zones_with(at as u64, at, mood);
            assert!(took <= 1.3, "{took:.3} of what a joint takes for the object");
            assert!(crossed <= 1.25, "{crossed:.3} objects went through a joint");
        }
    }
}

/// An object of few groups comes to all zones at once: its heads need all their candidates.
#[test]
fn a_short_object_comes_to_all_zones_at_once() {
    for (seed, groups) in [(0, 1), (1, 1), (2, 2), (3, 5)] {
        let receivers = (1..24).map(|at| (at / 8, at / 4 % 2)).collect();
        let spots = Spots { receivers, ..Spots::default() };
        let outcome = World::with_spots(seed, groups, (GIGABIT, &[HONEST; 23][..]), spots).run(at_s(60.0));
        let took = last(&outcome, 1..=23);
        println!("{groups} groups: {took:.3} s, lacking {}", outcome.lacking);
        assert!(took < 0.1 && outcome.lacking == 0, "{groups} groups took {took:.3} s");
    }
}

/// The network limits each flow to a part of what a host's path takes, and not their sum.
#[test]
fn lanes_fill_a_path_on_which_each_flow_is_limited() {
    let groups = 4 * GROUPS;
    for (receivers, part, most) in
        [(1, 4, 1.05), (1, 7, 1.07), (2, 4, 1.25), (2, 10, 1.25), (3, 4, 1.25), (3, 7, 1.3), (8, 4, 1.02)]
    {
        let world = World::new(part, groups, GIGABIT, &vec![HONEST; receivers]);
        let outcome = world.policed(Some(GIGABIT / part)).run(at_s(120.0));
        let took = last(&outcome, 1..=receivers) / ideal(groups);
        let Outcome { most_lanes, objects, .. } = outcome;
        println!("{receivers} receivers, a {part}th each: {took:.3} of the ideal time, {most_lanes:?} lanes");
        assert!(took <= most, "{receivers} receivers, a {part}th each: {took:.3} of the ideal time");
        assert!(objects <= 1.03, "the source sends {objects:.3} objects");
    }
}

#[test]
fn one_lane_stays_where_more_bring_nothing() {
    let groups = 4 * GROUPS;
    for receivers in [1, 2, 4, 8, 16] {
        let world = World::new(7, groups, GIGABIT, &vec![HONEST; receivers]);
        let outcome = world.run(at_s(120.0));
        let took = last(&outcome, 1..=receivers) / ideal(groups);
        let Outcome { most_lanes, objects, .. } = outcome;
        println!("{receivers} receivers: {took:.3} of the ideal time, {most_lanes:?} lanes");
        assert!(took <= 1.03, "{receivers} receivers: {took:.3} of the ideal time");
        assert!(objects <= 1.02, "the source sends {objects:.3} objects");
    }
}

/// A single receiver beside the source gets the object from there: nothing comes
/// back that has gone out.
#[test]
fn a_single_receiver_beside_the_source_brings_nothing_back() {
    let others = |count: usize, spot: (u8, u8)| vec![spot; count];
    let shapes = [
        ("zones", [others(1, (0, 0)), others(4, (1, 0)), others(4, (2, 0))].concat()),
        ("a zone of one", [others(1, (0, 0)), others(1, (1, 0))].concat()),
    ];
    for (seed, (name, receivers)) in (0..).zip(shapes) {
        let rate = GIGABIT / 4;
        let spots = Spots { receivers, zone_rate: Some(rate), rack_rate: Some(rate), ..Spots::default() };
        let hosts = vec![HONEST; spots.receivers.len()];
        let outcome = World::with_spots(seed, GROUPS, (GIGABIT, &hosts), spots).run(at_s(400.0));
        let took = last(&outcome, 1..=hosts.len()) / (4.0 * ideal(GROUPS));
        println!("{name}: {took:.3} of what a joint takes, objects {:.3}", outcome.objects);
        let most = crossings(&outcome, GROUPS);
        let back = outcome
            .crossed
            .iter()
            .filter(|((zone, rack, is_out), _)| !is_out && *zone == 0 && rack.is_none_or(|rack| rack == 0));
        let back: u64 = back.map(|(_, bytes)| *bytes).sum();
        assert_eq!(back, 0, "{name}: bytes come back to the source's place");
        assert!(most <= 1.05, "{name}: {most:.3} objects went through a joint");
        // The source's own path carries both copies.
        assert!(took <= 1.15, "{name}: {took:.3} of what a joint takes for the object");
        assert!(outcome.named.is_empty(), "{name}: {:?}", outcome.named);
    }
}
