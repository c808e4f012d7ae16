//! A receiver by itself: when it speaks, and what it still waits for.

use crate::geometry;
use crate::settings::receiver;
use polycast_protocol::push::{Receiver, ReceiverInput, ReceiverOutput};
use polycast_types::{Duration, Time};
use polycast_wire::control::Control;

fn at(millis: u64) -> Time {
    Time(1) + Duration::from_millis(millis)
}

/// What it says at a time; groups that it checks are intact.
fn said(machine: &mut Receiver, now: Time) -> Vec<ReceiverOutput> {
    let mut said = Vec::new();
    while let Some(output) = machine.poll(now) {
        if let ReceiverOutput::Check { group } = output {
            machine.handle(now, ReceiverInput::Checked { group, intact: true });
        }
        said.push(output);
    }
    said
}

fn stream(machine: &mut Receiver, now: Time, round: u32, sns: std::ops::Range<u64>) {
    let (sn, count) = (sns.start, (sns.end - sns.start) as u32);
    machine.handle(now, ReceiverInput::Data { round, sn, count, flags: 0, arrived: now });
}

fn reports(outputs: &[ReceiverOutput]) -> usize {
    let is_report =
        |output: &&ReceiverOutput| matches!(output, ReceiverOutput::Control(Control::Progress { .. }));
    outputs.iter().filter(is_report).count()
}

#[test]
fn a_receiver_speaks_from_the_beginning_to_its_last_word() {
    let mut machine = Receiver::new(receiver(geometry(20)));
    assert_eq!((said(&mut machine, at(1_000)), machine.deadline()), (vec![], None), "it has not begun");
    machine.handle(at(1_000), ReceiverInput::Begin);
    said(&mut machine, at(1_000));
    stream(&mut machine, at(1_000), 0, 0..10);
    said(&mut machine, at(1_000));
    for _ in 0..3 {
        let due = machine.deadline().expect("it says that it lives");
        assert_eq!(said(&mut machine, Time(due.0 - 1)), [], "before {due:?}");
        assert!(reports(&said(&mut machine, due)) <= 1, "at {due:?}");
    }
    stream(&mut machine, at(2_000), 0, 10..20);
    assert!(said(&mut machine, at(2_000)).contains(&ReceiverOutput::Complete));
    machine.handle(at(2_000), ReceiverInput::Committed { proof: [7; 32] });
    let last = said(&mut machine, at(2_000));
    assert!(matches!(last[..], [ReceiverOutput::Control(Control::DataRcvd { .. })]), "{last:?}");
    assert_eq!((said(&mut machine, at(9_000)), machine.deadline()), (vec![], None), "that was all");
}

#[test]
fn more_is_expected_until_a_lap_is_over_or_nothing_is_missing() {
    let mut machine = Receiver::new(receiver(geometry(200)));
    machine.handle(at(0), ReceiverInput::Begin);
    // The lap begins at 150: it wraps round.
    stream(&mut machine, at(1), 0, 150..200);
    assert!(machine.expects_more(149) && !machine.expects_more(150));
    stream(&mut machine, at(1), 1, 0..20);
    assert!(machine.expects_more(129) && !machine.expects_more(130));
    // What comes as a patch does not come again, but the stream goes on.
    machine.handle(at(1), ReceiverInput::Patched { sn: 20, count: 129 });
    said(&mut machine, at(1));
    assert!(machine.expects_more(0));
    machine.handle(at(1), ReceiverInput::Patched { sn: 149, count: 1 });
    said(&mut machine, at(1));
    assert!(!machine.expects_more(0), "it has everything");
}
