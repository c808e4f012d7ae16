//! Many requests at one moment: they wait for their turn, and none is turned away because the ends have
//! enough to do.

use super::*;
use std::collections::BTreeMap;

const AT_ONCE: usize = 3;
const AGENTS: u8 = 6;

fn crowded() -> Leases {
    let config = LeasesConfig { receiver_leases_max: AT_ONCE, pending_max: 1_000, ..config() };
    let mut manager = with_config(config, 1, true, Box::new(Fcfs));
    for number in 0..AGENTS {
        apply(&mut manager, Time(0), join(number, 1));
    }
    manager
}

/// The most paths that lead to one agent.
fn most_to_one(manager: &Leases) -> usize {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for lease in manager.leases() {
        lease.grant.receiver_names().for_each(|name| *counts.entry(name.clone()).or_default() += 1);
    }
    counts.into_values().max().unwrap_or(0)
}

/// Ends one lease after the other until nothing waits; gives the requests in the order in which they got
/// their paths.
fn serve_all(manager: &mut Leases, mut granted: Vec<(RequestKey, PlanId)>) -> Vec<RequestKey> {
    let mut served = 0;
    while served < granted.len() {
        assert!(most_to_one(manager) <= AT_ONCE);
        let (request, plan) = granted[served].clone();
        served += 1;
        let outputs = apply(manager, Time(1), Input::Release { request, plan });
        granted.extend(grants(&outputs));
    }
    assert_eq!(manager.pending().len(), 0, "all have had their turn");
    granted.into_iter().map(|(request, _)| request).collect()
}

fn grants(outputs: &[Output]) -> Vec<(RequestKey, PlanId)> {
    let granted = outputs.iter().filter_map(|output| match output {
        Output::Response { request, response: Ok(grant) } => Some((request.clone(), grant.plan_id)),
        Output::Response { response: Err(denial), .. } => panic!("{denial}"),
        _ => None,
    });
    granted.collect()
}

#[test]
fn two_hundred_of_one_agent_have_their_turns_in_order() {
    let mut manager = crowded();
    let mut granted = Vec::new();
    for number in 0..200 {
        let ask = request(agent(0, 1), number, &["host-1", "host-2", "host-3"]);
        granted.extend(grants(&apply(&mut manager, Time(1), Input::Request(ask))));
    }
    assert_eq!((granted.len(), manager.pending().len()), (AT_ONCE, 200 - AT_ONCE));
    let order: Vec<u64> = serve_all(&mut manager, granted).iter().map(|key| key.request).collect();
    assert_eq!(order, (0..200).collect::<Vec<_>>());
}

#[test]
fn sources_have_their_turns_as_they_came() {
    let mut manager = crowded();
    let mut granted = Vec::new();
    for number in 0..25 {
        for source in 0..AGENTS {
            // Four of the others, other ones each time.
            let others: Vec<String> =
                (1..=4).map(|step| format!("host-{}", (source + step + number as u8 % 2) % AGENTS)).collect();
            let others: Vec<&str> =
                others.iter().map(String::as_str).filter(|name| *name != agent(source, 1).name).collect();
            let ask = request(agent(source, 1), number, &others);
            granted.extend(grants(&apply(&mut manager, Time(1), Input::Request(ask))));
        }
    }
    let order = serve_all(&mut manager, granted);
    assert_eq!(order.len(), 25 * usize::from(AGENTS));
    // No source is ever more than a few ahead of another one.
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for key in &order {
        *counts.entry(key.agent.name.as_str()).or_default() += 1;
        let (most, least) = (counts.values().max().unwrap(), counts.values().min().unwrap());
        assert!(most - least <= 4, "{counts:?}");
    }
}

/// One that needs a place at many agents is not passed for good by those that need a place at one.
#[test]
fn one_for_many_is_not_passed_for_good() {
    let mut manager = crowded();
    let mut granted = Vec::new();
    let mut ask = |manager: &mut Leases, source: u8, number: u64, to: &[&str]| {
        granted.extend(grants(&apply(
            manager,
            Time(1),
            Input::Request(request(agent(source, 1), number, to)),
        )));
    };
    let one = |number: u64| if number.is_multiple_of(2) { "host-1" } else { "host-2" };
    for number in 0..2 * AT_ONCE as u64 {
        ask(&mut manager, 0, number, &[one(number)]);
    }
    ask(&mut manager, 3, 100, &["host-1", "host-2"]);
    for number in 0..40 {
        ask(&mut manager, 4, number, &[one(number)]);
    }
    let order = serve_all(&mut manager, granted);
    let place = order.iter().position(|key| key.request == 100).unwrap();
    assert!(place <= 3 * AT_ONCE, "it had its turn after {place} others");
}
