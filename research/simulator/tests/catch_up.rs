//! A receiver of a pull transfer that was cut off for a while holds no other, and has all soon after them.
//!
//! The network, the link that fails and the settings are those of Datacast's Figure 6: BCube(4, 2), w = 16,
//! packets of 8,000 bytes, links of 1 Gb/s. Tree B leads to server 02 over the link that fails.

use polycast_simulator::packet::LinkConfig;
use polycast_simulator::packet::scenario::{
    Failed, FailurePlan, Layout, PullConfig, Report, Routing, Scenario, TransferPlan, Transport,
};
use polycast_simulator::packet::tcp::TcpConfig;
use polycast_types::{Duration, Rate, Time};

const RECEIVERS: [u32; 6] = [2, 4, 9, 11, 13, 15];
/// The link from server 03 to switch <1,3>.
const CUT: Failed = Failed::Link { from: 19, to: 14, one_way: false };

/// A run of this test.
#[derive(Clone, Copy, Debug)]
struct Case {
    bytes: u64,
    block_bytes: u64,
    increase_bps: u64,
    store_packets: u32,
    /// Time from the failure until receivers have other ways; `None` without the failure.
    rerouted_after: Option<Duration>,
}

impl Case {
    fn run(&self, seed: u64) -> Report {
        let pull = PullConfig {
            payload_bytes: 8_000,
            block_bytes: self.block_bytes,
            credits: 16,
            store_packets: self.store_packets,
            initial_rate: Some(Rate(500_000_000)),
            increase: Some(Rate(self.increase_bps)),
            interval: Some(Duration::from_millis(1)),
            ..PullConfig::default()
        };
        let failure =
            |after| FailurePlan { at: self.fails_at(), what: CUT, until: None, reroute_after: Some(after) };
        let receivers = Some(RECEIVERS.to_vec());
        let failures = self.rerouted_after.map(failure).into_iter().collect();
        let plan = scenario("bcube:4,2", pull, self.bytes, receivers, seed);
        Scenario { failures, ..plan }.run(seed).unwrap()
    }

    /// After a third of what two links need for the object.
    fn fails_at(&self) -> Time {
        Time(self.bytes * 8 / 2 / 3)
    }
}

/// One transfer from host 0 over links of 1 Gb/s.
fn scenario(
    topology: &str,
    pull: PullConfig,
    bytes: u64,
    receivers: Option<Vec<u32>>,
    seed: u64,
) -> Scenario {
    Scenario {
        seed,
        layout: Layout::Topology(topology.parse().unwrap()),
        links: LinkConfig::new(Rate(1_000_000_000), Duration::from_micros(10)),
        changes: Vec::new(),
        transfers: vec![TransferPlan {
            transport: Transport::Pull(pull),
            routing: Routing::Natural,
            source: 0,
            receivers,
            bytes,
            start: Time::ZERO,
        }],
        tcp: TcpConfig::default(),
        flows: Vec::new(),
        failures: Vec::new(),
        detection: None,
        receivers: Vec::new(),
        optical: Vec::new(),
        time_limit: Time(60_000_000_000),
    }
}

/// Times at which the receivers have all, the earliest first, in seconds.
fn times(report: &Report) -> Vec<f64> {
    let of = |receiver: &polycast_simulator::packet::scenario::ReceiverReport| {
        receiver.finished_at.expect("all are done").0 as f64 / 1e9
    };
    let mut times: Vec<f64> = report.receivers.iter().map(of).collect();
    times.sort_by(f64::total_cmp);
    times
}

#[test]
fn one_that_was_cut_off_holds_no_other() {
    let ms = Duration::from_millis;
    let mut lines = Vec::new();
    for (bytes, block_bytes) in [(150_000_000, 2_400_000), (300_000_000, 100_000_000)] {
        for (increase_bps, store_packets) in [(5_000_000, 2_048), (50_000_000, 256)] {
            let case = Case { bytes, block_bytes, increase_bps, store_packets, rerouted_after: None };
            let whole = *times(&case.run(1)).last().unwrap();
            for after in [ms(35), ms(235), ms(435)] {
                let cut = Case { rerouted_after: Some(after), ..case };
                let times = times(&cut.run(1));
                let (others, last) = (times[4] / whole, times[5]);
                // What it has missed comes over both trees when the others are done, or when it has a way.
                let (fails_s, after_s) = (cut.fails_at().0 as f64 / 1e9, after.as_secs_f64());
                let missed_s = after_s.min(whole - fails_s);
                let late_s = last - whole.max(fails_s + after_s) - missed_s / 2.0;
                lines.push((cut, others, last, late_s));
            }
        }
    }
    for (case, others, last, late_s) in &lines {
        println!("{case:?}: others {others:.3} x, the last {last:.3} s, {late_s:.3} s late");
    }
    for (case, others, last, late_s) in lines {
        assert!(others <= 1.05, "{case:?}: others need {others:.3} times as long");
        assert!(late_s <= 0.05 * last, "{case:?}: the one that was cut off is {late_s:.3} s late");
    }
}

/// A host of a fat-tree whose link is down for a while: no way changes, and nothing tells the receiver. The
/// time that it misses is more than the stores hold, or less.
#[test]
fn one_whose_link_comes_back_holds_no_other() {
    for (seed, down_ms, store_packets, block_bytes) in [
        (1, 80, 256, 100_000_000),
        (2, 200, 2_048, 2_000_000),
        (3, 300, 64, 8_000_000),
        (4, 600, 256, 4_000_000),
    ] {
        let pull = PullConfig {
            payload_bytes: 8_000,
            credits: 16,
            block_bytes,
            store_packets,
            ..PullConfig::default()
        };
        let plan = |failures| Scenario { failures, ..scenario("fat-tree:4,3", pull, 60_000_000, None, seed) };
        let at = Time(100_000_000 + 10_000_000 * seed);
        let until = at + Duration::from_millis(down_ms);
        // The last host, and the switch that it is at.
        let what = Failed::Link { from: 15, to: 23, one_way: false };
        let failure = FailurePlan { at, what, until: Some(until), reroute_after: None };
        let whole = *times(&plan(Vec::new()).run(seed).unwrap()).last().unwrap();
        let times = times(&plan(vec![failure]).run(seed).unwrap());
        let others = times[times.len() - 2] / whole;
        let (at_s, until_s) = (at.0 as f64 / 1e9, until.0 as f64 / 1e9);
        let ideal = whole.max(until_s) + (until_s.min(whole) - at_s);
        let last = *times.last().unwrap();
        println!("down for {down_ms} ms: others {others:.3} x, the last {last:.3} s, at best {ideal:.3} s");
        assert!(others <= 1.05, "down for {down_ms} ms: others need {others:.3} times as long");
        assert!(
            last <= ideal + 0.15,
            "down for {down_ms} ms: the last after {last:.3} s, at best {ideal:.3} s"
        );
    }
}
