use super::*;
use alloc::collections::BTreeMap;
use proptest::prelude::*;

/// Two ends over a link with a delay, a rate and a queue; `lost` says which segments are lost.
struct Pipe {
    sender: TcpSender,
    receiver: TcpReceiver,
    now: Time,
    free_at: Time,
    queue: Duration,
    segment_time: Duration,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    sent: u64,
    dropped: u64,
}

enum Event {
    Segment(Range<u64>),
    Acknowledgement(u64),
}

const DELAY: Duration = Duration::from_micros(100);

impl Pipe {
    fn new(config: TcpConfig, queue_segments: u64) -> Self {
        let segment_time = Duration::from_micros(1);
        Pipe {
            sender: TcpSender::new(config),
            receiver: TcpReceiver::default(),
            now: Time::ZERO,
            free_at: Time::ZERO,
            queue: segment_time * queue_segments,
            segment_time,
            events: BTreeMap::new(),
            sequence: 0,
            sent: 0,
            dropped: 0,
        }
    }

    fn run(&mut self, until: Time, mut lost: impl FnMut(u64) -> bool) {
        loop {
            while let Some(range) = self.sender.poll(self.now) {
                self.sent += 1;
                let end = self.free_at.max(self.now) + self.segment_time;
                if end.since(self.now) > self.queue || lost(self.sent) {
                    self.dropped += 1;
                    continue;
                }
                self.free_at = end;
                self.sequence += 1;
                self.events.insert(((end + DELAY).0, self.sequence), Event::Segment(range));
            }
            let event = self.events.first_key_value().map(|(key, _)| *key);
            let next = event.map_or(u64::MAX, |key| key.0);
            let wake = self.sender.deadline().map_or(u64::MAX, |at| at.0);
            if next.min(wake) > until.0 {
                return;
            }
            self.now = Time(next.min(wake));
            if next <= wake {
                match self.events.remove(&event.unwrap()).unwrap() {
                    Event::Segment(range) => {
                        self.receiver.segment(range);
                        self.sequence += 1;
                        let at = self.now + DELAY;
                        let said = Event::Acknowledgement(self.receiver.next());
                        self.events.insert((at.0, self.sequence), said);
                    }
                    Event::Acknowledgement(next) => self.sender.acknowledge(self.now, next),
                }
            }
        }
    }
}

fn config(growth: Growth) -> TcpConfig {
    TcpConfig { growth, ..TcpConfig::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_byte_gets_there(bytes in 1u64..2_000_000, loss in 0u64..200, seed in any::<u64>(), reno in any::<bool>()) {
        let mut pipe = Pipe::new(config(if reno { Growth::Reno } else { Growth::Cubic }), 100);
        pipe.sender.write(bytes);
        let mut random = seed;
        pipe.run(Time(600_000_000_000), |_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % 1_000 < loss
        });
        prop_assert_eq!(pipe.receiver.next(), bytes);
        prop_assert_eq!(pipe.sender.acknowledged(), bytes);
        prop_assert_eq!(pipe.sender.deadline(), None);
        prop_assert_eq!(pipe.sent, bytes.div_ceil(1_448) + pipe.sender.retransmissions());
    }
}

#[test]
fn a_flow_fills_its_link() {
    for growth in [Growth::Reno, Growth::Cubic] {
        let mut pipe = Pipe::new(config(growth), 300);
        pipe.sender.write(u64::MAX);
        pipe.run(Time(1_000_000_000), |_| false);
        let before = pipe.receiver.next();
        pipe.run(Time(2_000_000_000), |_| false);
        // A segment a microsecond: a million in the second.
        let used = (pipe.receiver.next() - before) / 1_448;
        assert!(used > 900_000, "{growth:?} sent {used} segments");
        assert!(pipe.dropped > 0, "without losses the window would never be found");
    }
}

#[test]
fn one_loss_is_repaired_without_a_time_out() {
    for growth in [Growth::Reno, Growth::Cubic] {
        let mut pipe = Pipe::new(config(growth), 10_000);
        pipe.sender.write(1_448 * 200);
        pipe.run(Time(5_000_000), |segment| segment == 50);
        assert_eq!(pipe.receiver.next(), 1_448 * 200, "{growth:?}");
        assert_eq!(pipe.sender.retransmissions(), 1);
    }
}

#[test]
fn a_silent_peer_is_asked_ever_less_often() {
    let mut pipe = Pipe::new(config(Growth::Reno), 100);
    pipe.sender.write(1);
    pipe.run(Time(10_000_000_000), |_| true);
    // At 0, 0.2, 0.6 and 1.4 s, then every second.
    assert_eq!(pipe.sent, 12);
}
