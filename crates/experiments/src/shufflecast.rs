//! Shufflecast, sections II, III and VI: relays, failures, power and cost.

use std::collections::BTreeSet;
use std::time::Instant;

use polycast_planning::economics::unused_ports::{best_left_over, papers_racks, papers_switches};
use polycast_planning::economics::{self, Catalogue};
use polycast_planning::relays;
use polycast_topology::Shufflecast;

use crate::Row;
use crate::report::{Item, Load};

/// The items of this paper.
pub const ITEMS: &[Item] = &[
    Item {
        paper: "shufflecast",
        name: "relaying",
        title: "Section III: routes, rules and their speed",
        load: Load::Alone,
        run: |_| Ok(relaying().into()),
    },
    Item {
        paper: "shufflecast",
        name: "fig-6",
        title: "Figures 1 and 6 and section VI-A: excess resources, power and cost",
        load: Load::Shared,
        run: |_| Ok(economics().into()),
    },
    Item {
        paper: "shufflecast",
        name: "fig-7",
        title: "Figure 7: what one failed relay does before and after recovery",
        load: Load::Shared,
        run: |_| Ok(failures().into()),
    },
    Item {
        paper: "shufflecast",
        name: "fig-10",
        title: "Figure 10: ports and bandwidth that ToR switches have left",
        load: Load::Shared,
        run: |_| Ok(unused().into()),
    },
];

fn network(p: u32, k: u32) -> Shufflecast {
    Shufflecast::new(p, k).expect("the papers' networks exist")
}

/// Section III: routes, rules and their speed.
#[must_use]
pub fn relaying() -> Vec<Row> {
    let item = "shufflecast III";
    let small = network(2, 2);
    let routes: usize = [0, 3]
        .into_iter()
        .map(|source| {
            (0..8).filter(|&d| d != source).map(|d| relays::route(&small, source, d).len() - 1).sum::<usize>()
        })
        .sum();
    let start = Instant::now();
    let large = network(4, 4);
    let rules = relays::StaticRules::new(&large);
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    vec![
        Row::new(item, "hops of the 14 routes of figure 3", Some(28.0), routes as f64, "hops"),
        Row::new(item, "rules a ToR, 4,4-Shufflecast", Some(256.0), rules.rules_per_tor().into(), "rules"),
        Row::new(item, "time for all rules of a 4,4-Shufflecast", None, milliseconds, "ms"),
    ]
}

/// Section VI-C: what one failed relay does before and after recovery.
#[must_use]
pub fn failures() -> Vec<Row> {
    let item = "shufflecast VI-C";
    let mut rows = Vec::new();
    for (p, paper) in [(4, 75.0), (6, 83.0), (8, 88.0)] {
        let small = network(p, 2);
        let unaffected = relays::loss_distribution(&small)[0].1;
        let share = 100.0 * f64::from(unaffected) / f64::from(small.tors());
        rows.push(Row::new(item, format!("sources that lose nothing, p = {p}"), Some(paper), share, "%"));
    }
    for (p, k) in [(4, 2), (4, 3), (6, 2), (6, 3), (8, 2)] {
        rows.extend(after_recovery(p, k));
    }
    rows
}

fn after_recovery(p: u32, k: u32) -> Vec<Row> {
    let item = "shufflecast VI-C";
    let network = network(p, k);
    let failed = 0;
    let paper = relays::algorithm_2(&network, failed);
    let ours = relays::recover(&network, &BTreeSet::from([failed]));
    let mut rows = Vec::new();
    for (whose, recovery) in [("Algorithm 2", &paper), ("our recovery", &ours)] {
        let reaches: Vec<_> =
            (0..network.tors()).filter(|&s| s != failed).map(|s| recovery.reach(&network, s)).collect();
        let lost: usize = reaches.iter().map(|reach| reach.unreachable().len()).sum();
        let farthest = reaches.iter().map(relays::Reach::max_hops).max().unwrap_or(0);
        let normal = 2 * k - 1;
        let unchanged = reaches.iter().filter(|reach| reach.max_hops() == normal).count();
        let name = |what: &str| format!("{p},{k}, {whose}: {what}");
        let bound = f64::from(3 * k - 1);
        let share = 100.0 * unchanged as f64 / f64::from(network.tors());
        rows.push(Row::new(item, name("unreached ToRs, all sources"), Some(0.0), lost as f64, "ToRs"));
        rows.push(Row::new(
            item,
            name("farthest ToR, paper's bound 3k-1"),
            Some(bound),
            farthest.into(),
            "hops",
        ));
        rows.push(Row::new(item, name("sources with unchanged hops"), None, share, "%"));
        let rules = f64::from(recovery.rules_per_tor_max(&network));
        let more = rules / f64::from(k * network.partition_size());
        rows.push(Row::new(item, name("rules of the busiest relay, in proportion"), None, more, "x"));
    }
    rows
}

/// Figure 1, figure 6 (b) and (c), and section VI-A: excess resources, power, cost.
///
/// # Panics
/// If the paper's catalogue lacked a part, which it does not.
#[must_use]
pub fn economics() -> Vec<Row> {
    let catalogue = Catalogue::default();
    let usage = |tors, ports| 100.0 * economics::excess_usage(tors, ports).expect("switches have ports");
    let mut rows = vec![
        Row::new(
            "shufflecast fig. 1",
            "excess resources, 8 ToRs, 4-port switches",
            Some(175.0),
            usage(8, 4),
            "%",
        ),
        Row::new(
            "shufflecast II-B",
            "excess resources, 192 ToRs, 32-port switches",
            Some(107.0),
            usage(192, 32),
            "%",
        ),
    ];
    let ratios = |of: &dyn Fn(&economics::Bill) -> f64, baseline: usize, gbps: u32| -> (f64, f64) {
        let each = economics::papers_instances().into_iter().map(|network| {
            let bills = economics::compare(&catalogue, network.tors(), gbps).expect("the catalogue is whole");
            of(&bills[baseline]) / of(&bills[0])
        });
        each.fold((f64::MAX, f64::MIN), |(low, high), ratio| (low.min(ratio), high.max(ratio)))
    };
    let mut range = |item, name: &str, paper: (f64, f64), ours: (f64, f64), note: &str| {
        rows.push(Row::new(item, format!("{name}, least"), Some(paper.0), ours.0, "x").note(note));
        rows.push(Row::new(item, format!("{name}, most"), Some(paper.1), ours.1, "x").note(note));
    };
    let power = |bill: &economics::Bill| bill.power_w;
    range("shufflecast fig. 6b", "power, chain of peers", (1.5, 1.77), ratios(&power, 2, 10), "");
    range("shufflecast fig. 6b", "power, IP multicast", (1.55, 1.85), ratios(&power, 1, 10), "");
    let over_rates = |of: &dyn Fn(&economics::Bill) -> f64| {
        [10, 25, 100]
            .into_iter()
            .map(|gbps| ratios(of, 1, gbps))
            .fold((f64::MAX, f64::MIN), |a, b| (a.0.min(b.0), a.1.max(b.1)))
    };
    let cost = |bill: &economics::Bill| bill.cost_usd;
    let splitter_price = |bill: &economics::Bill| match bill.splitters {
        0 => 0.0,
        count => f64::from(count) * price_of(&catalogue, bill),
    };
    let without = |bill: &economics::Bill| bill.cost_usd - splitter_price(bill);
    range("shufflecast fig. 6c", "cost, IP multicast", (1.57, 1.89), over_rates(&cost), "with splitters");
    range(
        "shufflecast fig. 6c",
        "cost, IP multicast",
        (1.57, 1.89),
        over_rates(&without),
        "without splitters",
    );
    for (gbps, paper) in [(10, 487.0), (100, 1867.0)] {
        let cost = economics::deployment_cost_per_tor_usd(&catalogue, &network(4, 4), gbps);
        let name = format!("cost of a 4,4-Shufflecast a ToR, {gbps} Gbit/s");
        let row =
            Row::new("shufflecast VI-A", name, Some(paper), cost.expect("the catalogue is whole"), "USD");
        rows.push(row.note("the paper's figures come out with the price of a 1:2 and of a 1:8 splitter"));
    }
    rows
}

fn price_of(catalogue: &Catalogue, bill: &economics::Bill) -> f64 {
    let fanout = bill.instance.split(',').next().and_then(|text| text.parse().ok()).unwrap_or(2);
    catalogue.splitter(fanout).map_or(0.0, |part| part.cost_usd)
}

/// Figure 10: ports that ToR switches have left.
fn unused() -> Vec<Row> {
    let item = "shufflecast fig. 10";
    let note = "the paper names 14 switch types only in part; the others are common ones";
    let switches = papers_switches();
    let share = |ratio: Option<f64>, test: &dyn Fn(u32, u32) -> bool| {
        let racks =
            papers_racks().into_iter().filter(|rack| ratio.is_none_or(|r| rack.oversubscription == r));
        let unused: Vec<_> = racks.filter_map(|rack| best_left_over(&switches, &rack)).collect();
        100.0 * unused.iter().filter(|u| test(u.ports, u.gbps)).count() as f64 / unused.len() as f64
    };
    vec![
        Row::new(item, "cases with 2 unused ports or more", Some(79.0), share(None, &|p, _| p >= 2), "%")
            .note(note),
        Row::new(
            item,
            "cases with 100 Gbit/s unused or more",
            Some(73.0),
            share(None, &|_, g| g >= 100),
            "%",
        )
        .note(note),
        Row::new(
            item,
            "1:1, 10 ports and 500 Gbit/s or more",
            Some(54.0),
            share(Some(1.0), &|p, g| p >= 10 && g >= 500),
            "%",
        )
        .note(note),
    ]
}
