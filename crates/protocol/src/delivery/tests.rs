use super::*;
use alloc::vec;
use proptest::prelude::*;

const LEN: u64 = 1_000;

fn at(s: u64) -> Time {
    Time(s * 1_000_000_000)
}

fn named(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).into()).collect()
}

fn delivery(lease_s: Option<u64>, deadline_s: Option<u64>) -> Delivery {
    let mut delivery = Delivery::new(DeliveryConfig {
        object_len: LEN,
        to: To::All,
        lease: lease_s.map(Duration::from_secs),
        deadline: deadline_s.map(at),
    });
    delivery.handle(at(0), Input::Start { delta_len: None });
    let wanted = Wanted {
        to: To::All,
        form: Form::Object,
        remaining: LEN,
        lease: lease_s.map(Duration::from_secs),
        goes_on: false,
    };
    assert_eq!(outputs(&mut delivery), [Output::Ask(wanted)]);
    delivery
}

fn outputs(delivery: &mut Delivery) -> Vec<Output> {
    core::iter::from_fn(|| delivery.poll()).collect()
}

fn after(delivery: &mut Delivery, s: u64, input: Input) -> Vec<Output> {
    delivery.handle(at(s), input);
    outputs(delivery)
}

fn granted(ends_at_s: Option<u64>) -> Input {
    Input::Granted { bytes: None, ends_at: ends_at_s.map(at) }
}

fn finished(left: &[&str], rekeyed: bool) -> Input {
    Input::Ended(Ended::Finished { left: named(left), rekeyed })
}

fn ask(to: &[&str], remaining: u64, lease_s: Option<u64>, goes_on: bool) -> Output {
    let lease = lease_s.map(Duration::from_secs);
    Output::Ask(Wanted { to: To::Named(named(to)), form: Form::Object, remaining, lease, goes_on })
}

#[test]
fn one_path_carries_all() {
    let mut d = delivery(None, None);
    assert_eq!(after(&mut d, 1, granted(None)), [Output::Begin { form: Form::Object, bytes: None }]);
    assert_eq!(after(&mut d, 2, finished(&[], false)), [Output::GiveBack, Output::Done(Outcome::Carried)]);
    assert!(d.is_over());
}

#[test]
fn a_path_for_a_part_is_given_back_before_the_next_one_is_asked_for() {
    let mut d = delivery(Some(60), None);
    let part = Input::Granted { bytes: Some(400), ends_at: Some(at(61)) };
    assert_eq!(after(&mut d, 1, part), [Output::Begin { form: Form::Object, bytes: Some(400) }]);
    let used = Input::UsedUp { bytes: 600, receivers: named(&["b", "c"]) };
    assert_eq!(after(&mut d, 21, used.clone()), [Output::GiveBack, ask(&["b", "c"], 600, Some(40), true)]);
    assert_eq!(after(&mut d, 22, used.clone()), [], "it is asked for already");
    let rest = Input::Granted { bytes: Some(5_000), ends_at: Some(at(65)) };
    assert_eq!(after(&mut d, 25, rest), [Output::Switch { bytes: None }], "more than there is are all");
    // The manager makes it shorter, and the time is over when it is used up.
    assert_eq!(after(&mut d, 26, Input::EndsAt(Some(at(30)))), []);
    assert_eq!(after(&mut d, 30, used), [Output::GiveBack, Output::LosePath(OVER_TIME.into())]);
    // Those that are left get no other path either.
    assert_eq!(after(&mut d, 31, finished(&["c"], false)), [Output::Done(Outcome::Carried)]);
}

#[test]
fn where_there_is_no_next_path_the_carrier_goes_on_without() {
    let mut d = delivery(None, None);
    after(&mut d, 1, granted(None));
    after(&mut d, 2, Input::UsedUp { bytes: 2_000, receivers: named(&["b"]) });
    assert_eq!(after(&mut d, 3, Input::Denied("full".into())), [Output::LosePath("full".into())]);
    assert_eq!(after(&mut d, 4, finished(&[], false)), [Output::Done(Outcome::Carried)]);
}

#[test]
fn those_that_are_left_get_three_more_carriers_and_new_keys_do_not_count() {
    let mut d = delivery(None, None);
    after(&mut d, 1, granted(None));
    for carrier in 0..10 {
        let rekeyed = carrier < 7;
        let told = after(&mut d, 2, finished(&["b"], rekeyed));
        assert_eq!(told, [Output::GiveBack, ask(&["b"], LEN, None, false)], "carrier {carrier}");
        assert_eq!(after(&mut d, 3, granted(None)), [Output::Begin { form: Form::Object, bytes: None }]);
    }
    assert_eq!(after(&mut d, 4, finished(&["b"], false)), [Output::GiveBack, Output::Done(Outcome::Carried)]);
}

#[test]
fn a_change_between_two_carriers_is_for_the_second_one() {
    let mut d = delivery(None, None);
    assert_eq!(after(&mut d, 0, Input::Change(1)), []);
    let begun = [Output::Begin { form: Form::Object, bytes: None }, Output::Change(1)];
    assert_eq!(after(&mut d, 1, granted(None)), begun);
    assert_eq!(after(&mut d, 2, Input::Change(2)), [Output::Change(2)]);
    after(&mut d, 3, finished(&["b"], true));
    assert_eq!(after(&mut d, 3, Input::Change(3)), []);
    assert_eq!(
        after(&mut d, 4, granted(None)),
        [Output::Begin { form: Form::Object, bytes: None }, Output::Change(3)]
    );
}

#[test]
fn a_deadline_ends_what_waits_for_a_path() {
    let mut d = delivery(None, Some(10));
    assert_eq!(d.deadline(), Some(at(10)));
    let done = [Output::Unask, Output::Done(Outcome::TooLate)];
    assert_eq!(after(&mut d, 10, Input::Tick), done);
    // What was brought before counts, and those that are left wait no longer than that.
    let mut d = delivery(None, Some(10));
    after(&mut d, 1, granted(None));
    assert_eq!(d.deadline(), None, "a carrier looks at the clock itself");
    after(&mut d, 9, finished(&["b"], false));
    assert_eq!(d.deadline(), Some(at(10)));
    assert_eq!(after(&mut d, 10, Input::Tick), [Output::Unask, Output::Done(Outcome::Carried)]);
}

#[test]
fn one_that_is_cancelled_ends_when_its_carrier_has() {
    let mut d = delivery(None, None);
    let done = [Output::Unask, Output::Done(Outcome::Cancelled)];
    assert_eq!(after(&mut d, 1, Input::Cancel), done);
    assert_eq!(after(&mut d, 2, granted(None)), [Output::GiveBack], "it came too late");
    let mut d = delivery(None, None);
    after(&mut d, 1, granted(None));
    assert_eq!(after(&mut d, 2, Input::Cancel), [Output::Stop]);
    assert_eq!(after(&mut d, 2, Input::Cancel), []);
    assert_eq!(after(&mut d, 3, Input::UsedUp { bytes: 1, receivers: vec![] }), []);
    let done = [Output::GiveBack, Output::Done(Outcome::Cancelled)];
    assert_eq!(after(&mut d, 3, Input::Ended(Ended::Failed)), done);
    // One that was done just then is done.
    for (left, outcome) in [(&[][..], Outcome::Carried), (&["b"][..], Outcome::Cancelled)] {
        let mut d = delivery(None, None);
        after(&mut d, 1, granted(None));
        after(&mut d, 2, Input::Cancel);
        assert_eq!(after(&mut d, 3, finished(left, false)), [Output::GiveBack, Output::Done(outcome)]);
    }
}

#[test]
fn a_carrier_that_fails_ends_it_and_what_came_before_counts() {
    let mut d = delivery(None, None);
    assert_eq!(after(&mut d, 1, Input::Denied("no".into())), [Output::Done(Outcome::Denied("no".into()))]);
    let mut d = delivery(None, None);
    after(&mut d, 1, granted(None));
    let failed = [Output::GiveBack, Output::Done(Outcome::Failed)];
    assert_eq!(after(&mut d, 2, Input::Ended(Ended::Failed)), failed);
    let mut d = delivery(None, None);
    after(&mut d, 1, granted(None));
    after(&mut d, 2, finished(&["b"], false));
    assert_eq!(after(&mut d, 3, Input::Denied("no".into())), [Output::Done(Outcome::Carried)]);
}

fn of_a_delta(lease_s: Option<u64>) -> Delivery {
    let to = To::Named(named(&["b", "c"]));
    let lease = lease_s.map(Duration::from_secs);
    let mut d = Delivery::new(DeliveryConfig { object_len: LEN, to, lease, deadline: None });
    d.handle(at(0), Input::Start { delta_len: Some(30) });
    let to = To::Named(named(&["b", "c"]));
    let wanted = Wanted { to, form: Form::Delta, remaining: 30, lease, goes_on: false };
    assert_eq!(outputs(&mut d), [Output::Ask(wanted)]);
    d
}

#[test]
fn those_that_a_delta_does_not_help_get_the_object() {
    let begun = Output::Begin { form: Form::Delta, bytes: None };
    let mut d = of_a_delta(Some(60));
    assert_eq!(after(&mut d, 1, granted(Some(61))), core::slice::from_ref(&begun));
    let whole = ask(&["c"], LEN, Some(58), false);
    assert_eq!(after(&mut d, 3, finished(&["c"], false)), [Output::GiveBack, whole]);
    assert_eq!(after(&mut d, 4, granted(Some(62))), [Output::Begin { form: Form::Object, bytes: None }]);
    // And three more tries, as ever.
    for _ in 0..3 {
        assert_eq!(after(&mut d, 5, finished(&["c"], false)).len(), 2);
        after(&mut d, 5, granted(Some(62)));
    }
    assert_eq!(after(&mut d, 6, finished(&["c"], false)), [Output::GiveBack, Output::Done(Outcome::Carried)]);
    // One that helps all is all.
    let mut d = of_a_delta(None);
    assert_eq!(after(&mut d, 1, granted(None)), core::slice::from_ref(&begun));
    assert_eq!(after(&mut d, 3, finished(&[], false)), [Output::GiveBack, Output::Done(Outcome::Carried)]);
    // Where no transfer of it was possible the object is for all, as if there had been no delta.
    let mut d = of_a_delta(None);
    assert_eq!(after(&mut d, 0, Input::Change(7)), []);
    assert_eq!(after(&mut d, 1, granted(None)), [begun, Output::Change(7)]);
    assert_eq!(after(&mut d, 1, Input::Change(8)), [Output::Change(8)]);
    let whole = ask(&["b", "c"], LEN, None, false);
    assert_eq!(after(&mut d, 2, Input::Ended(Ended::Failed)), [Output::GiveBack, whole]);
    let mut other = d.clone();
    let begun = Output::Begin { form: Form::Object, bytes: None };
    assert_eq!(after(&mut other, 3, granted(None)), [begun, Output::Change(7), Output::Change(8)]);
    assert_eq!(after(&mut d, 3, Input::Denied("no".into())), [Output::Done(Outcome::Denied("no".into()))]);
}

#[test]
fn a_delta_that_is_cancelled_or_denied_is_followed_by_nothing() {
    let mut d = of_a_delta(None);
    assert_eq!(after(&mut d, 1, Input::Denied("no".into())), [Output::Done(Outcome::Denied("no".into()))]);
    let mut d = of_a_delta(None);
    after(&mut d, 1, granted(None));
    assert_eq!(after(&mut d, 2, Input::Cancel), [Output::Stop]);
    let done = [Output::GiveBack, Output::Done(Outcome::Cancelled)];
    assert_eq!(after(&mut d, 3, finished(&["b"], false)), done);
    // All of the time is used up.
    let mut d = of_a_delta(Some(10));
    after(&mut d, 1, granted(Some(11)));
    let done = [Output::GiveBack, Output::Done(Outcome::Carried)];
    assert_eq!(after(&mut d, 11, finished(&["b"], false)), done);
    // What saves nothing is no delta.
    let mut d = Delivery::new(DeliveryConfig { object_len: LEN, to: To::All, lease: None, deadline: None });
    let told = after(&mut d, 0, Input::Start { delta_len: Some(LEN) });
    assert!(matches!(&told[..], [Output::Ask(Wanted { form: Form::Object, remaining: LEN, .. })]));
}

fn input() -> impl Strategy<Value = Input> {
    let time = || proptest::option::of((0u64..200).prop_map(at));
    prop_oneof![
        proptest::option::of(1u64..LEN + 9).prop_map(|delta_len| Input::Start { delta_len }),
        (proptest::option::of(0u64..2_000), time())
            .prop_map(|(bytes, ends_at)| Input::Granted { bytes, ends_at }),
        Just(Input::Denied("full".into())),
        time().prop_map(Input::EndsAt),
        (0u64..2_000).prop_map(|bytes| Input::UsedUp { bytes, receivers: named(&["b"]) }),
        (any::<bool>(), any::<bool>())
            .prop_map(|(left, rekeyed)| finished(if left { &["b"] } else { &[] }, rekeyed)),
        Just(Input::Ended(Ended::Failed)),
        (0u64..9).prop_map(Input::Change),
        Just(Input::Cancel),
        Just(Input::Tick),
    ]
}

proptest! {
    /// Whatever happens, in any order: at most one path is held and one is asked for, what was granted is
    /// given back, carriers run one after the other, each change goes to one carrier at most, and it ends
    /// once.
    #[test]
    fn paths_are_held_one_at_a_time_and_go_back(
        inputs in proptest::collection::vec((input(), 0u64..20), 0..60),
        lease in proptest::option::of(0u64..100),
        deadline in proptest::option::of(0u64..200),
    ) {
        let mut d = Delivery::new(DeliveryConfig {
            object_len: LEN, to: To::All, lease: lease.map(Duration::from_secs), deadline: deadline.map(at),
        });
        let (mut now, mut asked, mut held, mut carries, mut done) = (0, false, false, false, false);
        let mut was_whole = false;
        let mut changes: Vec<u64> = vec![];
        for (input, later) in inputs {
            now += later;
            // The driver's part: it hears of a path that it has asked for, and of a carrier that runs.
            let fits = match &input {
                Input::Granted { .. } | Input::Denied(_) => asked,
                Input::UsedUp { .. } | Input::Ended(_) => carries,
                _ => true,
            };
            if !fits {
                continue;
            }
            match &input {
                Input::Granted { .. } => (asked, held) = (false, true),
                Input::Denied(_) => asked = false,
                Input::Ended(_) => carries = false,
                Input::Change(number) => changes.push(*number),
                _ => {}
            }
            for output in after(&mut d, now, input) {
                prop_assert!(!done || output == Output::GiveBack, "{output:?} after the end");
                match output {
                    Output::Ask(wanted) => {
                        prop_assert!(!asked && !held, "asked for beside another one");
                        prop_assert!(wanted.remaining <= LEN && wanted.goes_on == carries);
                        prop_assert!(wanted.form == Form::Object || !was_whole, "a delta behind the object");
                        asked = true;
                    }
                    Output::Unask => {
                        prop_assert!(asked);
                        asked = false;
                    }
                    Output::Begin { form, .. } => {
                        prop_assert!(held && !carries);
                        was_whole |= form == Form::Object;
                        carries = true;
                    }
                    Output::Switch { .. } => prop_assert!(held && carries),
                    Output::GiveBack => {
                        prop_assert!(held);
                        held = false;
                    }
                    Output::LosePath(_) | Output::Stop => prop_assert!(carries),
                    Output::Change(number) => {
                        prop_assert!(carries);
                        let position = changes.iter().position(|change| *change == number);
                        let position = position.expect("it was said");
                        // What a delta's carrier was told of may be for the next one.
                        if was_whole {
                            changes.remove(position);
                        }
                    }
                    Output::Done(_) => done = true,
                }
            }
            prop_assert_eq!(d.is_over(), done);
            prop_assert!(!(held && done), "a path is kept");
        }
    }
}
