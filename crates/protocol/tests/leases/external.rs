//! An external scheduler: what it is asked, what is done with its answers, and what becomes of requests when
//! it answers late, wrongly or not at all.

use super::*;
use polycast_planning::{RequestId, Ruling};
use polycast_protocol::leases::{Advice, Asked, ExternalConfig, NoAdvice, Question};

const DEADLINE: Duration = Duration::from_millis(200);
/// As long as the built-in scheduler decides alone after a fault.
const REST: Duration = Duration::from_millis(1_800);
const ALL: Ruling = Ruling::Accept { bytes: None, fabric: None, if_free: false };
const IF_FREE: Ruling = Ruling::Accept { bytes: None, fabric: None, if_free: true };

fn millis(millis: u64) -> Time {
    Time(millis * 1_000_000)
}

/// A manager with one address and three agents that has been asked once, and an answer to that.
fn asking() -> Leases {
    let mut manager = manager(1, false).asking(Time(0), ExternalConfig { deadline: DEADLINE });
    assert_eq!(manager.deadline(), Some(Time(0)), "it is asked before anything waits");
    let question = asked(&drain(&mut manager, Time(0))).expect("it is asked");
    assert_eq!((question.number, question.requests.len()), (1, 0));
    assert_eq!(manager.external().unwrap().1, Some("it has not answered yet"));
    let outputs = advise(&mut manager, Time(0), question.number, &[]);
    assert_eq!(outputs, [Output::External { trouble: None }]);
    with_three_agents(manager)
}

fn asked(outputs: &[Output]) -> Option<Question> {
    let mut questions = outputs.iter().filter_map(|output| match output {
        Output::Ask { question } => Some(question.clone()),
        _ => None,
    });
    let first = questions.next();
    assert!(questions.next().is_none(), "one question at a time: {outputs:?}");
    first
}

fn trouble(outputs: &[Output]) -> Option<String> {
    outputs.iter().find_map(|output| match output {
        Output::External { trouble } => trouble.clone(),
        _ => None,
    })
}

fn granted(outputs: &[Output]) -> Vec<RequestKey> {
    let granted = outputs.iter().filter_map(|output| match output {
        Output::Response { request, response: Ok(_) } => Some(request.clone()),
        _ => None,
    });
    granted.collect()
}

/// The answer with these rulings about the first request of all, the second, and so on.
fn advise(manager: &mut Leases, now: Time, number: u64, rulings: &[(u64, Ruling)]) -> Vec<Output> {
    let rulings = rulings.iter().map(|(nth, ruling)| (RequestId(nth - 1), ruling.clone())).collect();
    let advice = Ok(Advice { rulings, ask_again: None });
    apply(manager, now, Input::Advised { number, advice })
}

/// Two requests wait: of a large object by host-0, and of a small one by host-1; gives the open question.
fn with_two(manager: &mut Leases, now: Time) -> Question {
    let mut large = request(agent(0, 1), 1, &["host-2"]);
    (large.object_bytes, large.remaining_bytes, large.divisible) = (1 << 30, 1 << 30, true);
    manager.handle(now, Input::Request(large));
    let outputs = apply(manager, now, Input::Request(request(agent(1, 1), 1, &["host-0", "host-2"])));
    asked(&outputs).expect("both are asked about at once")
}

#[test]
fn it_is_told_what_waits_what_is_lent_and_what_is_free() {
    let mut manager = asking();
    let question = with_two(&mut manager, millis(1));
    assert_eq!(question.free, [("addresses".into(), 1)]);
    let [large, small] = &question.requests[..] else { panic!("{question:?}") };
    assert_eq!(
        (&*large.source, &large.receivers[..], large.divisible),
        ("host-0", &["host-2".into()][..], true)
    );
    assert_eq!((small.id, small.remaining_bytes), (RequestId(1), 1_000));
    assert_eq!(small.needs.as_ref().unwrap().takes, [("addresses".into(), 1)]);
    let outputs = advise(&mut manager, millis(2), question.number, &[(2, ALL)]);
    assert_eq!(granted(&outputs), [agent(1, 1).request(1)], "the younger one goes first");
    assert!(outputs.iter().any(|output| matches!(output, Output::Waiting { .. })), "{outputs:?}");
    // Nothing has changed: it is not asked again.
    assert_eq!((drain(&mut manager, millis(3)), manager.pending().len()), (vec![], 1));
    let outputs = apply(&mut manager, millis(5), Input::Request(request(agent(2, 1), 1, &["host-0"])));
    let question = asked(&outputs).unwrap();
    let [lease] = &question.leases[..] else { panic!("{question:?}") };
    assert_eq!(
        (&*lease.source, lease.held, &lease.holds[..]),
        ("host-1", Duration::from_millis(3), &[("addresses".into(), 1)][..])
    );
    assert_eq!(question.free, [("addresses".into(), 0)]);
    assert_eq!(question.requests[0].waited, Duration::from_millis(4));
}

#[test]
fn it_may_accept_a_part_and_reject() {
    let mut manager = asking();
    let question = with_two(&mut manager, millis(1));
    let part = Ruling::Accept { bytes: Some(4_096), fabric: None, if_free: false };
    let no = Ruling::Reject { reason: "host-1 has had its share today".into() };
    let outputs = advise(&mut manager, millis(1), question.number, &[(1, part), (2, no)]);
    let responses: Vec<_> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::Response { response, .. } => Some(response.clone().map(|grant| grant.accepted_bytes)),
            _ => None,
        })
        .collect();
    assert_eq!(responses, [Ok(4_096), Err(Denial::Rejected("host-1 has had its share today".into()))]);
}

#[test]
fn where_it_does_not_answer_in_time_the_built_in_one_decides() {
    let mut manager = asking();
    let question = with_two(&mut manager, millis(1));
    assert_eq!(manager.deadline(), Some(millis(201)));
    assert_eq!(drain(&mut manager, millis(200)), []);
    let outputs = drain(&mut manager, millis(201));
    assert_eq!(trouble(&outputs).unwrap(), "it has not answered within 200 ms");
    assert_eq!(granted(&outputs), [agent(0, 1).request(1)], "the oldest first");
    // What comes now is not needed any more.
    assert_eq!(advise(&mut manager, millis(202), question.number, &[(2, ALL)]), []);
    // While it rests nothing waits for it.
    let release = Input::Release {
        request: agent(0, 1).request(1),
        plan: manager.leases().next().unwrap().grant.plan_id,
    };
    assert_eq!(granted(&apply(&mut manager, millis(300), release)), [agent(1, 1).request(1)]);
    // Then it is asked again, though nothing has happened and nothing waits.
    let over = millis(201) + REST;
    assert_eq!(manager.deadline(), Some(over));
    let question = asked(&drain(&mut manager, over)).unwrap();
    assert_eq!(
        manager.external(),
        Some((Asked { followed: 1, late: 1, ..Asked::default() }, Some("it has not answered within 200 ms")))
    );
    assert_eq!(advise(&mut manager, over, question.number, &[]), [Output::External { trouble: None }]);
    assert_eq!(manager.external().unwrap().1, None);
}

#[test]
fn one_that_cannot_be_asked_delays_nothing() {
    let mut manager = asking();
    let question = with_two(&mut manager, millis(1));
    let advice = Err(NoAdvice::Unreached("there is no way to it".into()));
    let outputs =
        apply(&mut manager, millis(1), Input::Advised { number: question.number, advice: advice.clone() });
    assert_eq!(trouble(&outputs).unwrap(), "there is no way to it");
    assert_eq!(granted(&outputs), [agent(0, 1).request(1)]);
    // It is said once, and not after each rest.
    let over = millis(1) + REST;
    let question = asked(&drain(&mut manager, over)).unwrap();
    let outputs = apply(&mut manager, over, Input::Advised { number: question.number, advice });
    assert_eq!(trouble(&outputs), None);
    assert_eq!(manager.external().unwrap().0.unreached, 2);
}

#[test]
fn nonsense_is_not_carried_out_in_part_either() {
    let again = Ruling::Reject { reason: "no".into() };
    let cases: [(&[(u64, Ruling)], &str); 4] = [
        (&[(2, ALL), (99, ALL)], "it decides about request 98, which was not in the question"),
        (&[(2, ALL), (2, again)], "it decides twice about request 1"),
        (&[(2, ALL), (1, ALL)], "it accepts request 0, and nothing is free for that"),
        (&[], "it leaves 2 requests waiting while nothing is lent, and does not say when to ask again"),
    ];
    for (rulings, why) in cases {
        let mut manager = asking();
        let question = with_two(&mut manager, millis(1));
        let outputs = advise(&mut manager, millis(1), question.number, rulings);
        assert_eq!(trouble(&outputs).as_deref(), Some(why));
        assert_eq!(granted(&outputs), [agent(0, 1).request(1)], "{why}");
        assert_eq!(manager.external().unwrap().0.wrong, 1);
    }
}

#[test]
fn an_answer_counts_once_and_only_for_its_question() {
    let mut manager = asking();
    let question = with_two(&mut manager, millis(1));
    for other in [0, 1, question.number + 1, u64::MAX] {
        assert_eq!(advise(&mut manager, millis(1), other, &[(2, ALL)]), []);
    }
    assert_eq!(granted(&advise(&mut manager, millis(1), question.number, &[(2, ALL)])).len(), 1);
    assert_eq!(advise(&mut manager, millis(1), question.number, &[(1, ALL)]), []);
    assert_eq!((manager.pending().len(), manager.external().unwrap().1), (1, None));
}

/// Changes since the question are no mistake of the scheduler that was asked.
#[test]
fn what_has_changed_since_is_asked_about_anew() {
    let mut manager = asking();
    let question = with_two(&mut manager, millis(1));
    let outputs = apply(&mut manager, millis(2), Input::Withdraw { request: agent(0, 1).request(1) });
    assert_eq!(asked(&outputs), None, "one question at a time");
    let outputs = advise(&mut manager, millis(3), question.number, &[(1, ALL), (2, IF_FREE)]);
    assert_eq!((granted(&outputs), trouble(&outputs)), (vec![agent(1, 1).request(1)], None));
    // A stream takes the only address before the answer comes.
    let grant = manager.leases().next().unwrap().grant.plan_id;
    let mut outputs = apply(&mut manager, millis(4), Input::Request(request(agent(0, 1), 2, &["host-1"])));
    outputs.extend(apply(
        &mut manager,
        millis(4),
        Input::Release { request: agent(1, 1).request(1), plan: grant },
    ));
    let question = asked(&outputs).unwrap();
    let outputs = advise(&mut manager, millis(5), question.number, &[(3, IF_FREE)]);
    assert_eq!(granted(&outputs), [agent(0, 1).request(2)]);
}

#[test]
fn it_can_wait_and_say_when_it_wants_to_be_asked_again() {
    let mut manager = asking();
    let question = with_two(&mut manager, millis(1));
    let advice = Ok(Advice { rulings: Vec::new(), ask_again: Some(Duration::from_millis(50)) });
    let outputs = apply(&mut manager, millis(2), Input::Advised { number: question.number, advice });
    assert_eq!((granted(&outputs), trouble(&outputs)), (vec![], None));
    assert_eq!(manager.deadline(), Some(millis(52)));
    assert_eq!(asked(&drain(&mut manager, millis(52))).unwrap().requests.len(), 2);
}

#[test]
fn what_can_never_be_is_denied_without_a_question() {
    let mut manager = asking();
    let mut never = request(agent(0, 1), 1, &["host-1"]);
    never.divisible = true;
    let outputs =
        apply(&mut manager, millis(1), Input::Drain { part: "port:1".parse().unwrap(), is_out: true });
    assert_eq!(outputs.len(), 1);
    let none = Fabrics::new(Vec::new());
    let mut manager =
        Leases::new(config(), none, Box::new(Fcfs)).asking(Time(0), ExternalConfig { deadline: DEADLINE });
    assert!(asked(&drain(&mut manager, Time(0))).is_some());
    advise(&mut manager, Time(0), 1, &[]);
    let mut manager = with_three_agents(manager);
    let outputs = apply(&mut manager, millis(1), Input::Request(never));
    assert!(response(&outputs).is_err());
    assert_eq!(asked(&outputs), None);
}

/// However much waits, a question is no longer than its readers take.
#[test]
fn a_question_has_a_limit() {
    let (agents, requests) = (200, 80);
    let config =
        LeasesConfig { agents_max: agents, pending_max: 1_000, receiver_leases_max: 1_000, ..config() };
    let mut manager =
        with_config(config, 1, false, Box::new(Fcfs)).asking(Time(0), ExternalConfig { deadline: DEADLINE });
    let name = |number: usize| format!("{number:0>200}");
    let key = |number: usize| AgentKey { name: name(number), incarnation: 1 };
    for number in 0..agents {
        let address = ([10, 0, 1, number as u8].into(), 7401);
        let join = Join { agent: key(number), address, from: address.0, leases: Vec::new() };
        manager.handle(Time(0), Input::Join(join));
    }
    drain(&mut manager, Time(0));
    advise(&mut manager, Time(0), 1, &[]);
    let receivers: Vec<String> = (100..agents).map(name).collect();
    for number in 0..requests {
        let names: Vec<&str> = receivers.iter().map(String::as_str).collect();
        manager.handle(Time(1), Input::Request(request(key(number), 1, &names)));
    }
    let question = asked(&drain(&mut manager, Time(1))).unwrap();
    let letters: usize =
        question.requests.iter().flat_map(|request| &request.receivers).map(String::len).sum();
    assert!((900_000..1 << 20).contains(&letters), "{letters}");
    assert_eq!(question.requests.len() + question.requests_left_out, requests);
}
