//! A receiver by itself: when it speaks, what it still waits for, and whom it believes; and a sender that is
//! joined late.

use crate::geometry;
use crate::settings::{config, receiver};
use polycast_protocol::push::{
    PeerId, Receiver, ReceiverInput, ReceiverOutput, Sender, SenderConfig, SenderInput,
};
use polycast_types::{Duration, Location, RangeSet, Time};
use polycast_wire::control::Control;

fn at(millis: u64) -> Time {
    Time(1) + Duration::from_millis(millis)
}

/// Returns its outputs at a time; groups that it checks are intact.
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

/// The source's word that it is elsewhere counts where the receiver is further than what can be on its way.
#[test]
fn a_receiver_goes_back_only_if_it_is_further_than_what_can_be_on_its_way() {
    for (came, goes_back) in [(300, false), (301, true)] {
        let mut machine = Receiver::new(receiver(geometry(1_000)));
        machine.handle(at(0), ReceiverInput::Begin);
        (0..came).for_each(|sn| stream(&mut machine, at(1), 0, sn..sn + 1));
        assert_eq!(machine.next_sn(), came);
        let word = Control::DataFnsd { position: 0 };
        machine.handle(at(1), ReceiverInput::Control(&word));
        assert_eq!(machine.next_sn(), if goes_back { 0 } else { came }, "after {came}");
    }
}

/// A receiver that joins while packets flow takes them too, and fetches over TCP only where there is no data
/// channel.
#[test]
fn who_joins_late_takes_the_data_channel_if_there_is_one() {
    for multicast in [true, false] {
        let mut sender = Sender::new(SenderConfig { multicast, ..config(geometry(1_000)) });
        for peer in [1, 2] {
            let ready = SenderInput::Ready {
                peer: PeerId(peer),
                window_bytes: 1 << 20,
                have: RangeSet::new(),
                location: Location::default(),
            };
            sender.handle(at(peer.into()), ready);
            if peer == 1 {
                sender.handle(at(1), SenderInput::Start);
            }
        }
        for peer in [1, 2] {
            assert_eq!(sender.status(PeerId(peer)).unwrap().chained, !multicast, "{peer}");
        }
    }
}
