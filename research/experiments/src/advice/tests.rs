use polycast_planning::economics::Catalogue;
use polycast_simulator::overlay::{GROUP_LEN, Host, Mood, World};
use polycast_types::{Duration, Time};

use super::{Advice, Site, SiteError, WAYS};
use crate::scenario;

/// Time that the object takes on a path of its own.
const PATH_S: f64 = 11.2 * 1_500.0 / 1_448.0;

/// The question that docs/planning.md answers.
fn site() -> Site {
    Site {
        hosts: 512,
        hosts_per_rack: 32,
        gbps: 100,
        mtu_bytes: 1_500,
        oversubscription: 1.0,
        groups: 1,
        object_bytes: 140_000_000_000,
        times_a_day: 50.0,
    }
}

fn advise(site: &Site, without: &[&str]) -> Advice {
    site.advise(&Catalogue::default(), without).expect("the site can be")
}

fn seconds(advice: &Advice, name: &str) -> f64 {
    advice.way(name).and_then(super::Way::seconds).unwrap_or_else(|| panic!("{name} is refused: {advice:?}"))
}

/// By hand: 140 GB at 100 Gbit/s are 11.2 s, with headers of 52 bytes in 1,500 they are 11.602 s
/// ([`PATH_S`]); 511 receivers meet their source in 4 ms and 1 ms each.
#[test]
fn times_are_those_of_the_page() {
    let advice = advise(&site(), &[]);
    let near = |name: &str, expected: f64| {
        let got = seconds(&advice, name);
        assert!((got - expected).abs() < 0.002, "{name}: {got}");
    };
    assert!((advice.ideal_s - 11.2).abs() < 1e-9);
    near("ip-multicast", PATH_S + 0.515);
    near("shufflecast", PATH_S + 0.515);
    near("ocs", PATH_S + 0.515);
    near("tcp-chain", 1.06 * PATH_S + 0.09 + 0.515);
    near("orca", 11.2 * 1_500.0 / 1_420.0 + 0.515);
    // The rate grows for 1.99 s from 0.5 to 100 Gbit/s, which carries half as much.
    near("datacast", 11.2 * 1_500.0 / 1_428.0 + 1.99 - 1.99 * 0.5025 + 0.515);
    near("file-server", 511.0 * PATH_S);
    let copies = |name: &str| advice.way(name).expect("it is there").core_copies;
    assert_eq!((copies("ip-multicast"), copies("ocs"), copies("file-server")), (1.0, 0.0, 511.0));
    assert!((copies("tcp-chain") - 480.0).abs() < 1e-9);
    assert!((advice.saved_core_bytes_a_day - 510.0 * 140e9 * 50.0).abs() < 1.0);
    let saved_h = 50.0 * (511.0 * PATH_S - 12.117) / 3_600.0;
    assert!((advice.saved_hours_a_day - saved_h).abs() < 0.01, "{}", advice.saved_hours_a_day);
}

#[test]
fn groups_share_what_is_narrow() {
    let four = Site { groups: 4, ..site() };
    let advice = advise(&four, &[]);
    assert_eq!(advice.receivers, 127);
    // A 3,2-Shufflecast has three trees that are free of each other.
    assert!((seconds(&advice, "shufflecast") - (PATH_S * 4.0 / 3.0 + 0.131)).abs() < 0.002);
    assert!((seconds(&advice, "ip-multicast") - (PATH_S + 0.131)).abs() < 0.002);
    assert!((seconds(&advice, "file-server") - 508.0 * PATH_S).abs() < 0.1);
    // 128 groups, two fibres' worth of uplinks a rack: all of them come into each rack.
    let narrow = Site { groups: 32, oversubscription: 16.0, ..site() };
    let advice = advise(&narrow, &[]);
    assert!((seconds(&advice, "ip-multicast") - (16.0 * PATH_S + 0.019)).abs() < 0.002);
    let turns = (seconds(&advice, "ocs") / PATH_S).round();
    assert!(
        (2.0..=16.0).contains(&turns) && advice.way("ocs").expect("ocs").needs.contains("turns"),
        "{advice:?}"
    );
}

/// One winner each: what is free, what needs no multicast, what has its own fibres, and today's way.
#[test]
fn the_recommendation_depends_on_the_site() {
    assert_eq!(advise(&site(), &[]).recommended, "ip-multicast");
    assert_eq!(advise(&site(), &["ip-multicast"]).recommended, "tcp-chain");
    assert_eq!(advise(&site(), &["ip-multicast", "tcp-chain"]).recommended, "orca");
    let narrow = Site { groups: 6, oversubscription: 100.0, ..site() };
    let advice = advise(&narrow, &[]);
    assert!(matches!(advice.recommended, "ocs" | "shufflecast"), "{advice:?}");
    assert!(advice.why.contains("USD"), "{}", advice.why);
    let pair = Site { hosts: 2, ..site() };
    let advice = advise(&pair, &[]);
    assert_eq!(advice.recommended, "file-server");
    assert!(advice.why.starts_with("No other way"), "{}", advice.why);
    let tiny = Site { object_bytes: 1_000, ..site() };
    assert_eq!(advise(&tiny, &[]).recommended, "file-server");
    assert_eq!(site().advise(&Catalogue::default(), &WAYS), Err(SiteError::NoWay));
}

#[test]
fn what_cannot_be_built_says_why() {
    let one_rack = advise(&Site { hosts: 20, ..site() }, &[]);
    for name in ["ocs", "shufflecast"] {
        let way = one_rack.way(name).expect("it is listed");
        assert!(way.span.is_none() && way.refused.as_deref().is_some_and(|why| why.contains("one rack")));
    }
    assert_eq!(one_rack.way("ip-multicast").map(|way| way.core_copies), Some(0.0));
    let many = advise(&Site { hosts: 20_000, ..site() }, &[]);
    let why = many.way("ocs").and_then(|way| way.refused.clone()).expect("625 racks are too many");
    assert!(why.contains("a circuit switch has 320"), "{why}");
    // Times and loads are known without prices.
    for gbps in [400, 800] {
        let fast = advise(&Site { gbps, ..site() }, &[]);
        assert!(!fast.is_priced);
        let way = fast.way("shufflecast").expect("it is listed");
        assert_eq!((way.extra_cost_usd, way.power_w), (None, None));
        assert!(way.seconds().is_some() && way.needs.contains("--parts FILE"), "{way:?}");
        assert_eq!(fast.way("ip-multicast").and_then(|way| way.extra_cost_usd), Some(0.0));
    }
}

#[test]
fn sites_that_cannot_be_are_refused() {
    type Change = fn(&mut Site);
    let wrong: [(Change, &str); 9] = [
        (|site| site.hosts = 1, "1 hosts make no group"),
        (|site| site.hosts = u32::MAX, "write 2 to 1048576"),
        (|site| site.hosts_per_rack = 0, "--rack 32"),
        (|site| site.gbps = 0, "no line rate"),
        (|site| site.mtu_bytes = 60, "1500 or 9000"),
        (|site| site.groups = 257, "write 1 to 256"),
        (|site| site.oversubscription = 0.5, "oversubscription of 0.5"),
        (|site| site.times_a_day = f64::NAN, "NaN times a day"),
        (|site| site.object_bytes = 0, "no bytes"),
    ];
    for (change, words) in wrong {
        let mut site = site();
        change(&mut site);
        let why = site.advise(&Catalogue::default(), &[]).expect_err(words).to_string();
        assert!(why.contains(words), "{why}");
    }
}

/// More bytes, more hosts and less rate never make a way faster.
#[test]
fn times_are_monotonic() {
    for hosts in [2, 3, 31, 32, 33, 100, 511, 2_000] {
        for groups in [1, 2, 5].into_iter().filter(|groups| groups * 2 <= hosts) {
            let at = |object_bytes, gbps, hosts| {
                advise(&Site { hosts, groups, object_bytes, gbps, ..site() }, &[])
            };
            let (base, larger) = (at(1 << 30, 100, hosts), at(1 << 33, 100, hosts));
            let (slower, faster) = (at(1 << 30, 25, hosts), at(1 << 30, 400, hosts));
            for way in base.ways.iter().filter(|way| way.span.is_some()) {
                let of = |advice: &Advice| seconds(advice, way.name);
                assert!(
                    of(&base) <= of(&larger) && of(&base) <= of(&slower) && of(&faster) <= of(&base),
                    "{way:?}"
                );
            }
        }
    }
}

/// A leaf-spine network of 16 hosts in four racks, or what `topology` says, in the simulator: seconds to the
/// last receiver.
fn simulated_s(topology: &str, transport: &str, mib: u64) -> f64 {
    let text = format!(
        "[network]\ntopology = \"{topology}\"\n[links]\nrate = \"10gbit\"\n[transfer]\ntransport = \"{transport}\"\n\
         source = 0\nreceivers = \"all\"\nbytes = \"{mib}M\"\n"
    );
    let scenario = scenario::parse(&text).expect("a scenario");
    let report = scenario.run(1).expect("it can run");
    report.finished_at.expect("all have it").since(Time::ZERO).as_secs_f64()
}

/// Checks that the time of the bytes by the formulas is their time packet by packet, within 3 %. Set-up is
/// the time of hosts' processors, which the simulator does not have.
#[test]
fn the_packet_simulator_agrees() {
    for (way, topology, transport) in [
        ("ip-multicast", "leaf-spine:4,2,4", "push"),
        ("file-server", "leaf-spine:4,2,4", "tcp"),
        ("datacast", "leaf-spine:4,2,4", "pull"),
        ("shufflecast", "shufflecast:2,2,2", "push"),
        ("ocs", "blast:racks=4,hosts=4", "push"),
    ] {
        for mib in [8, 24] {
            let hosts_per_rack = if way == "shufflecast" { 2 } else { 4 };
            let site = Site { hosts: 16, hosts_per_rack, gbps: 10, object_bytes: mib << 20, ..site() };
            let advice = advise(&site, &[]);
            let span = advice.way(way).and_then(|way| way.span).expect("it can be built");
            let ratio = span.carrying_s / simulated_s(topology, transport, mib);
            println!("{way}, {mib} MiB: the formula says {ratio:.4} of the simulated time");
            assert!((0.97..=1.03).contains(&ratio), "{way}, {mib} MiB: {ratio:.4} of the simulated time");
        }
    }
}

/// Four groups with a member in each of four racks, whose hosts are four times as fast as their uplinks: the
/// formula divides the uplinks evenly and without loss, so that the simulated groups take longer, and at most
/// a quarter.
#[test]
fn the_packet_simulator_agrees_about_a_narrow_core() {
    let mib = 32;
    let transfer = |group: u32| {
        let members: Vec<u32> = (0..4).filter(|rack| *rack != group).map(|rack| 4 * rack + group).collect();
        format!(
            "[[transfer]]\ntransport = \"push\"\nsource = {}\nreceivers = {members:?}\nbytes = \"{mib}M\"\n",
            5 * group
        )
    };
    let network = "[network]\ntopology = \"leaf-spine:4,1,4\"\n[links]\nrate = \"10gbit\"\n";
    let text = (0..4).fold(network.to_string(), |text, group| text + &transfer(group));
    let report = scenario::parse(&text).expect("a scenario").run(1).expect("it can run");
    let simulated_s = report.finished_at.expect("all have it").since(Time::ZERO).as_secs_f64();
    let site = Site {
        hosts: 16,
        hosts_per_rack: 4,
        gbps: 10,
        groups: 4,
        oversubscription: 4.0,
        object_bytes: mib << 20,
        ..site()
    };
    let span = advise(&site, &[]).way("ip-multicast").and_then(|way| way.span).expect("it is free");
    let ratio = span.carrying_s / simulated_s;
    println!("the formula says {ratio:.4} of the simulated time");
    assert!((0.8..=1.03).contains(&ratio), "{ratio:.4} of the simulated time");
}

/// The mesh of receivers, whose model counts no headers: the formula is an upper bound, and at most an eighth
/// above.
#[test]
fn the_overlay_simulator_agrees() {
    for (hosts, groups, gbps) in [(16, 512, 1), (32, 512, 1), (16, 1_024, 10), (64, 1_024, 10)] {
        let rate = u64::from(gbps) * 125_000_000;
        let receivers = vec![Host { up: rate, down: rate, mood: Mood::Honest }; hosts as usize - 1];
        let outcome = World::new(1, groups, rate, &receivers).run(Time::ZERO + Duration::from_secs(600));
        let last =
            outcome.done[1..].iter().map(|done| done.expect("all have it")).max().expect("there are some");
        let headers = 1_500.0 / (1_500.0 - super::TCP_HEADER);
        let object_bytes = (groups * GROUP_LEN) as f64 / headers;
        let site = Site { hosts, hosts_per_rack: hosts, gbps, object_bytes: object_bytes as u64, ..site() };
        let span = advise(&site, &[]).way("tcp-chain").and_then(|way| way.span).expect("it is free");
        let ratio = span.carrying_s / last.since(Time::ZERO).as_secs_f64();
        println!(
            "{hosts} hosts, {groups} groups, {gbps} Gbit/s: the formula says {ratio:.4} of the simulated time"
        );
        assert!(
            (0.97..=1.13).contains(&ratio),
            "{hosts} hosts, {groups} groups: {ratio:.4} of the simulated time"
        );
    }
}
