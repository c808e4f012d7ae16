//! Shufflecast, sections II, III and VI: relays, failures, power and cost.

mod bed;
mod fig_6;
mod fig_7;
mod fig_8;
pub(crate) mod replication;
pub(crate) mod rules;

use std::collections::BTreeSet;
use std::time::Instant;

use polycast_planning::economics::unused_ports::{
    Reading, Unused, best_left_over, papers_racks, papers_switches,
};
use polycast_planning::economics::{self, Bill, Catalogue};
use polycast_planning::relays;
use polycast_topology::Shufflecast;

use crate::report::{Axis, Figure, Item, Load, Mark, Outcome, Plot, Series};
use crate::{Kind, Row, lab};

/// The paper rounds its percentages to whole ones.
const ROUNDED: f64 = 0.01;

/// The items of this paper.
pub const ITEMS: &[Item] = &[
    Item {
        paper: "shufflecast",
        name: "relaying",
        title: "Section III: routes, rules and their speed",
        place: "sections III-A and III-B",
        kind: Kind::Computed,
        differs: "",
        load: Load::Alone,
        run: |_| Ok(relaying().into()),
    },
    Item {
        paper: "shufflecast",
        name: "fig-1",
        title: "Figure 1 and section II-B: excess resources of a packet-switched core",
        place: "section II-B",
        kind: Kind::Computed,
        differs: "",
        load: Load::Shared,
        run: |_| Ok(excess().into()),
    },
    Item {
        paper: "shufflecast",
        name: "fig-6a",
        title: "Figure 6 (a): throughput of ways to multicast over the size of the data",
        place: "section VI-A, Fig. 6(a)",
        kind: Kind::Simulated,
        differs: "the paper's MPI and Cornet are held back by software, ours by links alone",
        load: Load::Shared,
        run: fig_6::fig_6a,
    },
    Item {
        paper: "shufflecast",
        name: "fig-6b",
        title: "Figure 6 (b) and section VI-A: power and latency",
        place: "section VI-A, Fig. 6(b)",
        kind: Kind::Computed,
        differs: "the paper does not list the networks between its ends",
        load: Load::Shared,
        run: |_| Ok(power()),
    },
    Item {
        paper: "shufflecast",
        name: "fig-6c",
        title: "Figure 6 (c) and section VI-A: cost",
        place: "section VI-A, Fig. 6(c)",
        kind: Kind::Computed,
        differs: "the paper comes out where splitters are left out of the bill",
        load: Load::Shared,
        run: |_| Ok(cost()),
    },
    Item {
        paper: "shufflecast",
        name: "fig-6d",
        title: "Figure 6 (d): throughput of concurrent groups",
        place: "section VI-B, Fig. 6(d)",
        kind: Kind::Simulated,
        differs: "",
        load: Load::Shared,
        run: fig_6::fig_6d,
    },
    Item {
        paper: "shufflecast",
        name: "fig-6e",
        title: "Figure 6 (e): flows that start one after the other",
        place: "section VI-B, Fig. 6(e)",
        kind: Kind::Simulated,
        differs: "",
        load: Load::Shared,
        run: fig_6::fig_6e,
    },
    Item {
        paper: "shufflecast",
        name: "fig-7a",
        title: "Figure 7 (a): reach that one failed relay takes",
        place: "section VI-C, Fig. 7(a)",
        kind: Kind::Computed,
        differs: "",
        load: Load::Shared,
        run: fig_7::fig_7a,
    },
    Item {
        paper: "shufflecast",
        name: "fig-7b",
        title: "Figure 7 (b): hops after recovery",
        place: "section VI-C, Fig. 7(b)",
        kind: Kind::Computed,
        differs: "the paper rounds, and says neither of which p",
        load: Load::Shared,
        run: fig_7::fig_7b,
    },
    Item {
        paper: "shufflecast",
        name: "fig-7c",
        title: "Figure 7 (c): throughput after recovery",
        place: "section VI-C, Fig. 7(c)",
        kind: Kind::Computed,
        differs: "Algorithm 2 also moves k - 1 rules to another relay, which the paper's bound leaves out",
        load: Load::Shared,
        run: fig_7::fig_7c,
    },
    Item {
        paper: "shufflecast",
        name: "fig-8a",
        title: "Figure 8 (a): how long LDA's executors wait, beside other ways",
        place: "section VI-D, Fig. 8(a)",
        kind: Kind::Simulated,
        differs: "a model without software; the paper's has deserialization in both",
        load: Load::Shared,
        run: fig_8::fig_8a,
    },
    Item {
        paper: "shufflecast",
        name: "fig-8b",
        title: "Figure 8 (b): how long TPC-H's executors wait, beside other ways",
        place: "section VI-D, Fig. 8(b)",
        kind: Kind::Simulated,
        differs: "a model without software; the paper's has deserialization in both",
        load: Load::Shared,
        run: fig_8::fig_8b,
    },
    Item {
        paper: "shufflecast",
        name: "fig-8d",
        title: "Figure 8 (d): Paxos by unicast and over a group, in a lab (Linux, root)",
        place: "section VI-B, Fig. 8(d)",
        kind: Kind::Measured,
        differs: "switches in user space and all hosts on one machine; a Paxos of our own, the same by both ways, where the paper compares two libraries",
        load: Load::Lab,
        run: |_| {
            let lab = replication::ReplicationLab { differs: String::new(), seen: Err(lab::NOT_HERE.into()) };
            Ok(replication::figure_8d(&[lab]))
        },
    },
    Item {
        paper: "shufflecast",
        name: "rules",
        title: "Section VI-B: how soon a ToR has the rules of a group, in a lab (Linux, root)",
        place: "section VI-B",
        kind: Kind::Measured,
        differs: "eight switches in user space, all hosts and the manager share one machine's processors",
        load: Load::Lab,
        run: |_| Ok(rules::rule_update(&Err(lab::NOT_HERE.into()))),
    },
    Item {
        paper: "shufflecast",
        name: "fig-10",
        title: "Figure 10: ports and bandwidth that ToR switches have left",
        place: "appendix B, Fig. 10",
        kind: Kind::Computed,
        differs: "the paper names its 14 switches only in part, and not how it counts ports that can be split",
        load: Load::Shared,
        run: |_| Ok(unused()),
    },
];

fn network(p: u32, k: u32) -> Shufflecast {
    Shufflecast::new(p, k).expect("the papers' networks exist")
}

/// Section III: routes, rules and their speed.
#[must_use]
pub fn relaying() -> Vec<Row> {
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
        Row::new("hops of the 14 routes of figure 3", None, routes as f64, "hops")
            .note("the figure draws them and prints no sum; counted there they are 28")
            .between(28.0, 28.0),
        Row::new("rules a ToR, 4,4-Shufflecast", Some(256.0), rules.rules_per_tor().into(), "rules")
            .within(0.0),
        Row::new("time for all rules of a 4,4-Shufflecast", None, milliseconds, "ms").kind(Kind::Measured),
    ]
    .into_iter()
    .chain(unrecoverable())
    .collect()
}

/// The paper's probability that p failed relays of all cut off what no rules bring back, k p^(k-1) / C(k p^k,
/// p): they have to be the mirrors of each other.
fn unrecoverable_part(network: &Shufflecast) -> f64 {
    let (p, classes) = (network.fanout(), network.columns() * network.partition_size());
    let tors = f64::from(network.tors());
    let sets = (0..p).fold(1.0, |sets, at| sets * (tors - f64::from(at)) / f64::from(at + 1));
    f64::from(classes) / sets
}

/// Sets of failed relays that nothing recovers, of all sets of so many.
#[derive(Default)]
struct Tried {
    sets: u32,
    /// Sets after which some ToR gets nothing from any other.
    unfed: u32,
    /// Sets after which some source misses some ToR.
    cut: u32,
}

/// Tries every set of p relays, by the best rules that there are without them.
fn try_all(network: &Shufflecast) -> Tried {
    let (tors, p) = (network.tors(), network.fanout() as usize);
    let mut set: Vec<u32> = (0..p as u32).collect();
    let mut tried = Tried::default();
    loop {
        let failed: BTreeSet<u32> = set.iter().copied().collect();
        let recovery = relays::recover(network, &failed);
        let sources: Vec<u32> = (0..tors).filter(|source| !failed.contains(source)).collect();
        let missed: Vec<Vec<u32>> =
            sources.iter().map(|&source| recovery.reach(network, source).unreachable()).collect();
        let misses = |tor: u32| {
            sources.iter().zip(&missed).all(|(&source, missed)| source == tor || missed.contains(&tor))
        };
        tried.sets += 1;
        tried.cut += u32::from(missed.iter().any(|missed| !missed.is_empty()));
        tried.unfed += u32::from((0..tors).any(misses));
        // The next set in order: the last relay that can move on does, and those behind it follow it.
        let Some(at) = (0..p).rev().find(|&at| set[at] < tors - (p - at) as u32) else { return tried };
        let first = set[at] + 1;
        (at..p).for_each(|place| set[place] = first + (place - at) as u32);
    }
}

/// Section III-C: how likely p failed relays cannot be recovered from, as the paper counts and by trying all
/// sets of small networks.
fn unrecoverable() -> Vec<Row> {
    let mut rows = Vec::new();
    for (p, k) in [(2, 2), (2, 3), (3, 2)] {
        let network = network(p, k);
        let (tried, formula) = (try_all(&network), 100.0 * unrecoverable_part(&network));
        let row = |what: &str, sets: u32| {
            let name =
                format!("{p},{k}-Shufflecast, failures of {p} relays {what}, all {} sets tried", tried.sets);
            Row::new(name, None, 100.0 * f64::from(sets) / f64::from(tried.sets), "%")
        };
        let said = format!("the paper's formula has {formula:.4} %");
        let unfed = row("after which no source reaches some ToR", tried.unfed);
        rows.push(unfed.note(said.clone()).between(0.9999 * formula, 1.0001 * formula));
        let cut = row("after which some source misses a ToR", tried.cut).at_most(1.0001 * formula);
        rows.push(cut.note(format!(
            "{said}: it counts relays that feed the same ToRs, and not the p that follow a source"
        )));
    }
    for (p, k) in [(4, 4), (8, 3)] {
        let name =
            format!("{p},{k}-Shufflecast, failures of {p} relays after which no source reaches some ToR");
        let part = unrecoverable_part(&network(p, k));
        rows.push(Row::new(name, None, 100.0 * part, "%").note("by the paper's formula"));
    }
    rows
}

/// Reach and rules after one failure, by the paper's recovery and by ours.
fn after_recovery(p: u32, k: u32) -> Vec<Row> {
    let network = network(p, k);
    let failed = 0;
    let paper = relays::algorithm_2(&network, failed);
    let ours = relays::recover(&network, &BTreeSet::from([failed]));
    let mut rows = Vec::new();
    for (whose, recovery) in [("Algorithm 2", &paper), ("ours", &ours)] {
        let sources = (0..network.tors()).filter(|&source| source != failed);
        let lost: usize = sources.map(|source| recovery.reach(&network, source).unreachable().len()).sum();
        let name = |what: &str| format!("{p},{k}, {whose}: {what}");
        let row = Row::new(name("unreached ToRs, all sources"), None, lost as f64, "ToRs").at_most(0.0);
        rows.push(row.note("the paper: reach is completely restored"));
        let rules = f64::from(recovery.rules_per_tor_max(&network));
        let more = rules / f64::from(k * network.partition_size());
        rows.push(Row::new(name("rules of the busiest relay, in proportion"), None, more, "x"));
    }
    rows
}

/// Figure 1: ports that a packet-switched core takes beyond those of the ToRs.
fn excess() -> Vec<Row> {
    let usage = |tors, ports| 100.0 * economics::excess_usage(tors, ports).expect("switches have ports");
    let name = |tors, ports| format!("excess resources, {tors} ToRs, {ports}-port switches");
    vec![
        Row::new(name(8, 4), Some(175.0), usage(8, 4), "%").within(ROUNDED),
        Row::new(name(192, 32), Some(107.0), usage(192, 32), "%").within(ROUNDED),
    ]
}

/// The networks that the paper compares, and those of p = 2 in the same range that its words allow too.
fn networks(with_two: bool) -> Vec<Shufflecast> {
    let mut networks = economics::papers_instances();
    if with_two {
        let (least, most) = (50, 1024);
        networks.extend(
            (2..=4).map(|k| network(2, k)).filter(|network| (least..=most).contains(&network.tors())),
        );
    }
    networks.sort_by_key(Shufflecast::tors);
    networks
}

/// Something of a baseline in proportion to Shufflecast, for each network by its ToRs.
///
/// The bills of a network are Shufflecast's, IP multicast's and the chain's.
fn ratios(
    networks: &[Shufflecast],
    of: impl Fn(&Bill) -> f64,
    baseline: usize,
    gbps: u32,
) -> Vec<(f64, f64)> {
    let catalogue = Catalogue::default();
    let each = networks.iter().map(|network| {
        let bills = economics::compare(&catalogue, network.tors(), gbps).expect("the catalogue is whole");
        (f64::from(network.tors()), of(&bills[baseline]) / of(&bills[0]))
    });
    each.collect()
}

/// The least and the most of ratios as two rows.
fn range(name: &str, paper: (f64, f64), ratios: &[(f64, f64)], note: &str) -> [Row; 2] {
    let (low, high) =
        ratios.iter().fold((f64::MAX, f64::MIN), |(a, b), point| (a.min(point.1), b.max(point.1)));
    [
        Row::new(format!("{name}, least"), Some(paper.0), low, "x").note(note).within(ROUNDED),
        Row::new(format!("{name}, most"), Some(paper.1), high, "x").note(note).within(ROUNDED),
    ]
}

/// The paper's words on mean latency: below that of IP multicast up to three columns, slightly above with
/// four.
fn latencies(networks: &[Shufflecast]) -> Vec<Row> {
    let ratios = ratios(networks, |bill| bill.latency_ns, 1, 100);
    let each = networks.iter().zip(ratios).map(|(network, (_, ratio))| {
        let (p, k, tors) = (network.fanout(), network.columns(), network.tors());
        let name = format!("mean latency of IP multicast, {p},{k}-Shufflecast, {tors} ToRs");
        let row = Row::new(name, None, ratio, "x");
        if k <= 3 {
            row.at_least(1.0).note("the paper: Shufflecast's is smaller for k up to 3, so more than 1")
        } else {
            row.at_most(1.0).note("the paper: Shufflecast's is slightly higher for k = 4, so less than 1")
        }
    });
    each.collect()
}

/// Figure 6 (b): power of one tree to all ToRs; and the mean latency.
fn power() -> Outcome {
    let papers = networks(false);
    let (ip, chain) =
        (ratios(&papers, |bill| bill.power_w, 1, 10), ratios(&papers, |bill| bill.power_w, 2, 10));
    let mut rows = range("power, chain of peers", (1.5, 1.77), &chain, "").to_vec();
    rows.extend(range("power, IP multicast", (1.55, 1.85), &ip, ""));
    let all = networks(true);
    let note = "2,4-Shufflecast has 64 ToRs and four columns, and the paper's words allow it; its least leaves it out";
    rows.extend(range(
        "power, chain of peers, p = 2 too",
        (1.5, 1.77),
        &ratios(&all, |bill| bill.power_w, 2, 10),
        note,
    ));
    rows.extend(range(
        "power, IP multicast, p = 2 too",
        (1.55, 1.85),
        &ratios(&all, |bill| bill.power_w, 1, 10),
        note,
    ));
    rows.extend(latencies(&all));
    let latency = ratios(&all, |bill| bill.latency_ns, 1, 100);
    let below = Figure::lines(
        "fig-6b",
        "Power of a tree to all ToRs, in proportion to Shufflecast",
        Axis::log("ToRs", ""),
        Axis::linear("power", "x").range(1.0, 2.0),
        [("chain of peers", chain, (1.5, 1.77)), ("IP multicast", ip, (1.55, 1.85))]
            .into_iter()
            .flat_map(|(name, ours, paper)| {
                let limits = limits(name, &ours, paper);
                [sizes(name, ours)].into_iter().chain(limits)
            })
            .collect(),
    );
    let mean = Figure::lines(
        "latency",
        "Mean latency of IP multicast, in proportion to Shufflecast",
        Axis::log("ToRs", ""),
        Axis::linear("latency", "x").range(0.5, 2.0),
        vec![sizes("IP multicast", latency)],
    );
    Outcome::from(rows).figure(below).figure(mean).note(
        "The paper's text gives the least and the most of each ratio, not at how many ToRs: broken lines in the figure. Latency is \
        hops times 1.505 us, the mean over all pairs of ToRs.",
    )
}

/// A point for each size of a Shufflecast: there is none between two of them.
fn sizes(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series::ours(name, points).mark(Mark::Points)
}

/// Returns the least and the most that the paper prints, as two lines from the smallest network that is drawn
/// to the largest: the paper does not say at which sizes they are.
fn limits(name: &str, drawn: &[(f64, f64)], (low, high): (f64, f64)) -> [Series; 2] {
    let sizes = || drawn.iter().map(|point| point.0);
    let (least, most) = (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max));
    [low, high].map(|ratio| Series::paper(name, vec![(least, ratio), (most, ratio)]).mark(Mark::Line))
}

/// Figure 6 (c): cost of one tree to all ToRs, and what a Shufflecast costs a ToR.
fn cost() -> Outcome {
    let (catalogue, papers) = (Catalogue::default(), networks(false));
    let splitters = |bill: &Bill| match bill.splitters {
        0 => 0.0,
        count => f64::from(count) * price_of(&catalogue, bill),
    };
    let rates = [10, 25, 100];
    let over_rates = |of: &dyn Fn(&Bill) -> f64| -> Vec<(f64, f64)> {
        rates.into_iter().flat_map(|gbps| ratios(&papers, of, 1, gbps)).collect()
    };
    let (with, without) =
        (over_rates(&|bill| bill.cost_usd), over_rates(&|bill| bill.cost_usd - splitters(bill)));
    let mut rows = range("cost, IP multicast", (1.57, 1.89), &with, "with splitters").to_vec();
    rows.extend(range("cost without splitters, IP multicast", (1.57, 1.89), &without, "without splitters"));
    for (gbps, paper) in [(10, 487.0), (100, 1867.0)] {
        let cost = economics::deployment_cost_per_tor_usd(&catalogue, &network(4, 4), gbps);
        let name = format!("cost of a 4,4-Shufflecast a ToR, {gbps} Gbit/s");
        let row = Row::new(name, Some(paper), cost.expect("the catalogue is whole"), "USD").within(ROUNDED);
        rows.push(row.note("the paper's figures come out with the price of a 1:2 and of a 1:8 splitter"));
    }
    let mut series: Vec<Series> = rates
        .map(|gbps| sizes(&format!("{gbps} Gbit/s"), ratios(&papers, |bill| bill.cost_usd, 1, gbps)))
        .to_vec();
    series.extend(limits("least and most", &with, (1.57, 1.89)));
    let figure = Figure::lines(
        "fig-6c",
        "Cost of IP multicast to all ToRs, in proportion to Shufflecast",
        Axis::log("ToRs", ""),
        Axis::linear("cost", "x").range(1.0, 2.0),
        series,
    );
    Outcome::from(rows).figure(figure)
}

fn price_of(catalogue: &Catalogue, bill: &Bill) -> f64 {
    let fanout = bill.instance.split(',').next().and_then(|text| text.parse().ok()).unwrap_or(2);
    catalogue.splitter(fanout).map_or(0.0, |part| part.cost_usd)
}

/// Figure 10: ports that ToR switches have left.
fn unused() -> Outcome {
    let note = "the paper names 14 switch types only in part; the others are common ones";
    let switches = papers_switches();
    let left = |ratio: Option<f64>, reading: Reading| -> Vec<Unused> {
        let racks = papers_racks();
        let chosen = racks.iter().filter(|rack| ratio.is_none_or(|r| rack.oversubscription == r));
        chosen.filter_map(|rack| best_left_over(&switches, rack, reading)).collect()
    };
    let plain = Reading::default();
    let (all, equal) = (left(None, plain), left(Some(1.0), plain));
    let share = |unused: &[Unused], test: &dyn Fn(&Unused) -> bool| {
        100.0 * unused.iter().filter(|unused| test(unused)).count() as f64 / unused.len() as f64
    };
    let rows_of = |name: &str, all: &[Unused], equal: &[Unused]| {
        let row = |what: &str, paper, ours| {
            Row::new(format!("{name}{what}"), Some(paper), ours, "%").note(note).within(ROUNDED)
        };
        [
            row("cases with 2 unused ports or more", 79.0, share(all, &|u| u.ports >= 2)),
            row("cases with 100 Gbit/s unused or more", 73.0, share(all, &|u| u.gbps >= 100)),
            row(
                "1:1, 10 ports and 500 Gbit/s or more",
                54.0,
                share(equal, &|u| u.ports >= 10 && u.gbps >= 500),
            ),
        ]
    };
    let mut rows = rows_of("", &all, &equal).to_vec();
    let split = Reading { counts_split: true, ..plain };
    for (name, reading) in [
        ("ports counted as split: ", split),
        ("fastest ports for uplinks alone: ", Reading { uplinks_apart: true, ..plain }),
        ("both: ", Reading { uplinks_apart: true, ..split }),
    ] {
        rows.extend(rows_of(name, &left(None, reading), &left(Some(1.0), reading)));
    }
    // The paper says how many cases have so much or more.
    let cdf = |name: &str, title: &str, axis: Axis, paper: (f64, f64), of: &dyn Fn(&Unused) -> u32| {
        let samples = |unused: &[Unused]| unused.iter().map(|unused| of(unused).into()).collect();
        let both = vec![("all configurations".into(), samples(&all)), ("1:1".into(), samples(&equal))];
        let mut figure = Figure::cdf(name, title, axis, "part of the cases", both);
        if let Plot::Lines(series) = &mut figure.plot {
            series.push(Series::paper("all configurations", vec![paper]));
        }
        figure
    };
    let axis = Axis::linear("unused ports", "").whole();
    let ports = cdf("fig-10-ports", "Unused ports of ToR switches", axis, (2.0, 0.21), &|u| u.ports);
    let bandwidth = cdf(
        "fig-10-bandwidth",
        "Unused bandwidth of ToR switches",
        Axis::linear("unused bandwidth", "Gbit/s"),
        (100.0, 0.27),
        &|u| u.gbps,
    );
    Outcome::from(rows).figure(ports).figure(bandwidth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Whose;

    /// The formula against every set of a small network, by the rules' own walk: it counts the sets that
    /// leave a ToR without anything, and not those that leave a source without relays, which are as many
    /// again.
    #[test]
    fn as_many_failures_cannot_be_recovered_as_the_paper_counts() {
        assert!((unrecoverable_part(&network(2, 2)) - 4.0 / 28.0).abs() < 1e-12);
        let tried = try_all(&network(2, 2));
        assert_eq!((tried.sets, tried.unfed), (28, 4));
        let tried = try_all(&network(3, 2));
        assert_eq!((tried.sets, tried.unfed, tried.cut), (816, 6, 12));
        // Those that follow a source: it has no other way, and ToRs lack nothing of others.
        let network = network(3, 2);
        let failed: BTreeSet<u32> = network.children(0).collect();
        let reach = |source| relays::recover(&network, &failed).reach(&network, source).unreachable();
        assert!(!failed.contains(&0) && !reach(0).is_empty());
        let others = (0..network.tors()).filter(|&tor| !failed.contains(&tor) && !reach(tor).is_empty());
        assert!(
            others.clone().all(|tor| network.children(tor) == network.children(0)),
            "{:?}",
            others.count()
        );
        let rows = unrecoverable();
        let holds: Vec<bool> = rows.iter().filter_map(Row::is_within).collect();
        assert_eq!(holds, [true, false, true, false, true, false], "{rows:?}");
    }

    /// A value that the paper prints without a size is drawn as far as there are networks, and no farther.
    #[test]
    fn the_papers_limits_end_where_the_networks_do() {
        for figure in [power().figures.swap_remove(0), cost().figures.swap_remove(0)] {
            let Plot::Lines(series) = figure.plot else { panic!("lines are drawn") };
            let ends = |whose: Whose| {
                let points = series.iter().filter(|one| one.whose == whose).flat_map(|one| &one.points);
                points.fold((f64::MAX, 0.0f64), |(least, most), (x, _)| (least.min(*x), most.max(*x)))
            };
            assert_eq!(ends(Whose::Paper), ends(Whose::Ours), "{}", figure.name);
            let paper = series.iter().filter(|one| one.whose == Whose::Paper);
            assert!(paper.clone().count() >= 2 && paper.clone().all(|one| one.points.len() == 2));
            assert!(series.iter().filter(|one| one.whose == Whose::Ours).all(|one| one.mark == Mark::Points));
        }
    }
}
