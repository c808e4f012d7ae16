//! Cases of receivers that bring an object to each other (`protocol::push::overlay`): hosts of different
//! rates, some of which stop, die, boast, give wrong bytes, or cannot be reached by the others.
//!
//! No receiver keeps a wrong group or asks for what it must not; each honest one has the object in the end;
//! and the source gives no more than one object, and what receivers have said that they lack.

use super::coverage::{self, Coverage};
use super::draw::Random;
use super::{Plant, Verdict};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_simulator::overlay::{GROUP_LEN, Host, Mood, Spots, Tamper, World};
use polycast_types::{Duration, Time};

/// Rates of hosts, in bytes a second.
const RATES: core::ops::RangeInclusive<u64> = 1_000_000..=125_000_000;
/// Beside what the slowest path takes for the object, for each receiver once: connections that are lost and
/// found again, and groups that lack.
const LIVENESS: Duration = Duration::from_secs(60);

pub(super) fn run(seed: u64, random: &mut Random, plant: Option<Plant>) -> Verdict {
    let count = random.within(1..=16) as usize;
    let groups = random.magnitude(1..=64);
    let is_uniform = random.one_in(2);
    let usual = random.magnitude(RATES);
    let mut coverage = Coverage::default();
    let mut hosts = Vec::new();
    for _ in 0..count {
        let rate = if is_uniform { usual } else { random.magnitude(RATES) };
        let mood = mood(random, &mut coverage);
        hosts.push(Host {
            up: rate,
            down: if random.one_in(4) { random.magnitude(RATES) } else { rate },
            mood,
        });
    }
    let tamper = match plant {
        Some(Plant::DropLacks) => Some(Tamper::DropLacks),
        Some(Plant::DropCandidates) => Some(Tamper::DropCandidates),
        Some(Plant::SkipHash) => Some(Tamper::SkipHash),
        _ => None,
    };
    let flow_rate = flow_rate(seed, usual, &mut coverage);
    let slowest = hosts.iter().map(|host| host.up.min(host.down)).chain([usual]).chain(flow_rate);
    let slowest = slowest.min().unwrap_or(usual);
    let each = Duration(groups * GROUP_LEN * 1_000_000_000 / slowest);
    let until = Time::ZERO + each * (2 * count as u64 + 2) + LIVENESS;
    let spots = spots(seed, count, &mut coverage);
    let world = World::with_spots(seed, groups, (usual, &hosts), spots);
    let outcome = world.policed(flow_rate).with(tamper).run(until);
    if outcome.most_lanes.0 > 1 {
        coverage.hit(coverage::MEMBER_HAS_LANES);
    }
    let failure = outcome.breach.clone().or_else(|| {
        let lacks = |at: &usize| hosts[*at].mood.is_served() && outcome.done[*at + 1].is_none();
        (0..count).find(lacks).map(|at| format!("receiver {} did not get the object", at + 1))
    });
    let failure = failure.or_else(|| {
        // Each may get the object once more for what it says that it lacks, and then a group now and then.
        let trickle = 1.0 + Duration(until.0).as_secs_f64() * 2.0 / groups as f64;
        let most = 1.0 + if outcome.lacking == 0 { 0.0 } else { count as f64 * trickle };
        let shared = outcome.objects - outcome.objects_apart;
        (shared > most).then(|| format!("the source gives {shared:.2} objects to those that share them"))
    });
    let failure = failure.or_else(|| blamed(&hosts, &outcome.named));
    let case = format!("overlay of {count} receivers, {groups} groups");
    Verdict { seed, case, failure, trace_hash: outcome.hash, events: outcome.events, coverage }
}

/// The limit of each connection, in every fourth case.
fn flow_rate(seed: u64, usual: u64, coverage: &mut Coverage) -> Option<u64> {
    let mut random = Random::new(seed.rotate_left(17) ^ 0x10_5e);
    random.one_in(4).then(|| {
        coverage.hit(coverage::FLOWS_ARE_LIMITED);
        (usual / random.within(2..=12)).max(1)
    })
}

/// Zones and racks of the hosts, in every third case.
fn spots(seed: u64, count: usize, coverage: &mut Coverage) -> Spots {
    let mut random = Random::new(!seed);
    if !random.one_in(3) {
        return Spots::default();
    }
    coverage.hit(coverage::MEMBERS_IN_ZONES);
    let mut spot = || (random.below(3) as u8, random.below(3) as u8);
    Spots {
        source: spot(),
        receivers: (0..count).map(|_| spot()).collect(),
        zone_rate: None,
        rack_rate: None,
    }
}

/// None but those that give wrong bytes are said to.
fn blamed(hosts: &[Host], named: &polycast_simulator::overlay::Named) -> Option<String> {
    let is_wrong = |(at, faults): &(&usize, &alloc::collections::BTreeSet<&str>)| {
        let spoils = **at > 0 && matches!(hosts[**at - 1].mood, Mood::Spoils | Mood::Drips);
        !spoils && (faults.contains("wrong bytes") || faults.contains("foreign"))
    };
    named
        .iter()
        .find(is_wrong)
        .map(|(at, faults)| format!("receiver {at} is honest, and is named for {faults:?}"))
}

fn mood(random: &mut Random, coverage: &mut Coverage) -> Mood {
    let from = Time(random.magnitude(1_000_000..=10_000_000_000));
    match random.below(16) {
        0 => {
            coverage.hit(coverage::MEMBER_STOPS);
            Mood::Stops(from, from + Duration(random.magnitude(10_000_000..=20_000_000_000)))
        }
        1 => {
            coverage.hit(coverage::MEMBER_DIES);
            Mood::Dies(from)
        }
        2 => {
            coverage.hit(coverage::MEMBER_BOASTS);
            Mood::Boasts
        }
        3 => {
            coverage.hit(coverage::MEMBER_SPOILS);
            Mood::Spoils
        }
        4 => {
            coverage.hit(coverage::MEMBER_HIDDEN);
            Mood::Hidden
        }
        5 => {
            coverage.hit(coverage::MEMBER_COMES);
            Mood::Comes(from)
        }
        6 => {
            coverage.hit(coverage::MEMBER_DRIPS);
            Mood::Drips
        }
        _ => Mood::Honest,
    }
}
