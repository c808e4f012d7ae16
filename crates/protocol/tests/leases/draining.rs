//! Hosts that operators drain: nothing new goes to them, what runs there goes on, and the next manager knows.

use super::*;
use polycast_protocol::leases::Drained;

fn drained(manager: &mut Leases, name: &str, is_out: bool) -> Result<bool, String> {
    let outputs = apply(manager, Time(1), Input::DrainHost { name: name.into(), is_out });
    let results = outputs.into_iter().filter_map(|output| match output {
        Output::DrainedHost { name: answered, result } => {
            assert_eq!(answered, name);
            Some(result)
        }
        _ => None,
    });
    let results: Vec<_> = results.collect();
    assert_eq!(results.len(), 1);
    results[0].clone().map(|Drained { is_new, moved, ended }| {
        assert_eq!((moved, ended), (0, 0));
        is_new
    })
}

fn names(grant: &Grant) -> Vec<&str> {
    grant.receivers.iter().map(|(name, _)| name.as_str()).collect()
}

fn to_all(source: AgentKey, number: u64) -> PathRequest {
    PathRequest { receivers: Receivers::All, ..request(source, number, &[]) }
}

#[test]
fn a_drained_host_gets_nothing_new() {
    let mut manager = with_three_agents(manager(8, false));
    assert_eq!(drained(&mut manager, "host-9", true), Err("there is no agent 'host-9'".into()));
    assert_eq!(drained(&mut manager, "host-2", true), Ok(true));
    assert_eq!(drained(&mut manager, "host-2", true), Ok(false), "it is already");
    let named = ask(&mut manager, Time(2), request(agent(0, 1), 1, &["host-1", "host-2"]));
    let denial = named.unwrap_err();
    assert_eq!(denial, Denial::Draining("host-2".into()));
    assert_eq!(denial.to_string(), "host-2 is being drained: polycast drain host-2 --undo brings it back");
    let all = ask(&mut manager, Time(2), to_all(agent(0, 1), 2)).unwrap();
    assert_eq!((names(&all), all.missed.len()), (vec!["host-1"], 0), "it is left out, and not missed");
    let extend = Input::Extend {
        request: agent(0, 1).request(2),
        time: None,
        add: vec!["host-2".into()],
        remove: Vec::new(),
        sources: Vec::new(),
    };
    let outputs = apply(&mut manager, Time(2), extend);
    let [Output::Extended { result: Err(Denial::Draining(_)), .. }] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    assert!(ask(&mut manager, Time(2), to_all(agent(2, 1), 3)).is_ok(), "it may send what it has");
    // Where all others are drained there is no receiver.
    assert_eq!(drained(&mut manager, "host-1", true), Ok(true));
    assert_eq!(ask(&mut manager, Time(2), to_all(agent(0, 1), 4)), Err(Denial::NobodyElse));
    for host in ["host-1", "host-2"] {
        assert_eq!(drained(&mut manager, host, false), Ok(true));
    }
    let again = ask(&mut manager, Time(3), to_all(agent(0, 1), 5)).unwrap();
    assert_eq!(names(&again), ["host-1", "host-2"]);
    assert!(manager.drained_hosts().is_empty());
}

/// Transfers from before the drain run to their ends, and are counted until then: the path in use, the
/// request that waits, and the rest of an object of which a part was sent.
#[test]
fn what_runs_at_a_drained_host_goes_on() {
    let mut manager = with_three_agents(manager(1, false));
    let running = ask(&mut manager, Time(0), request(agent(0, 1), 1, &["host-1", "host-2"])).unwrap();
    assert!(
        !apply(&mut manager, Time(0), Input::Request(request(agent(1, 1), 2, &["host-2"])))
            .iter()
            .any(|output| matches!(output, Output::Response { .. })),
        "there is one address"
    );
    assert_eq!(drained(&mut manager, "host-2", true), Ok(true));
    assert_eq!(manager.drained_hosts(), [("host-2", 2)]);
    let release = |manager: &mut Leases, from, number, plan| {
        apply(manager, Time(2), Input::Release { request: agent(from, 1).request(number), plan })
    };
    let outputs = release(&mut manager, 0, 1, running.plan_id);
    let waited = response(&outputs).unwrap();
    assert_eq!((names(&waited), manager.drained_hosts()), (vec!["host-2"], vec![("host-2", 1)]));
    release(&mut manager, 1, 2, waited.plan_id);
    let rest = PathRequest { remaining_bytes: 400, ..request(agent(0, 1), 3, &["host-2"]) };
    let rest = ask(&mut manager, Time(3), rest).unwrap();
    assert_eq!(manager.drained_hosts(), [("host-2", 1)]);
    release(&mut manager, 0, 3, rest.plan_id);
    // Its own transfers count as well.
    let own = ask(&mut manager, Time(3), request(agent(2, 1), 4, &["host-1"])).unwrap();
    assert_eq!(manager.drained_hosts(), [("host-2", 1)]);
    release(&mut manager, 2, 4, own.plan_id);
    assert_eq!(manager.drained_hosts(), [("host-2", 0)]);
}

/// It stays drained when its agent begins anew, when that has gone, and at the next manager.
#[test]
fn the_next_manager_and_the_next_run_know_that_a_host_is_drained() {
    let mut before = with_three_agents(manager(8, false));
    assert_eq!(drained(&mut before, "host-2", true), Ok(true));
    let changed = before.changes();
    assert!(changed.iter().any(|(key, _)| key.to_string() == "parts"), "{changed:?}");
    apply(&mut before, Time(2), Input::Leave { agent: agent(2, 1), keeps: true });
    assert_eq!(before.drained_hosts(), [("host-2", 0)], "though its agent is not here");
    let mut manager = manager(8, false);
    assert_eq!(manager.restore(Time(3), before.records()), []);
    apply(&mut manager, Time(4), join(0, 1));
    apply(&mut manager, Time(4), join(2, 2));
    let named = ask(&mut manager, Time(5), request(agent(0, 1), 1, &["host-2"]));
    assert_eq!(named, Err(Denial::Draining("host-2".into())));
    assert_eq!(drained(&mut manager, "host-2", false), Ok(true));
    assert_eq!(manager.records().len(), before.records().len(), "one member more, and no record of parts");
}

/// Records of a manager that knew of no such hosts are read as before.
#[test]
fn records_without_hosts_are_read() {
    let text = r#"{"Parts":{"drained":[],"suspects":[]}}"#;
    let record: Record = serde_json::from_str(text).unwrap();
    assert_eq!(
        serde_json::to_string(&record).unwrap(),
        r#"{"Parts":{"drained":[],"suspects":[],"hosts":[]}}"#
    );
}
