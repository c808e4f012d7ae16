//! Orca, section 6, and Elmo's own evaluation: state of switches, labels and updates for a million sessions.

mod agent;
pub mod data_set;
pub mod elmo;
mod elmo_failures;
mod fig_7;
mod joins;
pub(crate) mod kills;
pub(crate) mod leaf;
mod sender;
pub mod updates;

use std::time::Instant;

use polycast_planning::labels::LabelOptions;
use polycast_topology::{Clos, FatTree};

use self::data_set::{DataSet, ROOM, plan_data_set, quantile_of};
use crate::random::Random;
use crate::report::{Item, Load, Options};
use crate::tenants::{self, Placement, Sizes};
use crate::{Kind, Row, lab, side_by_side};

/// The items of this paper.
pub const ITEMS: &[Item] = &[
    Item {
        paper: "orca",
        name: "switch-state",
        title: "Section 6.2: state in switches, links and time of labels for a million sessions",
        place: "section 6.2, Fig. 7a",
        kind: Kind::Computed,
        differs: "the paper leaves open which network, hashes and paths it took: see readings",
        load: Load::Alone,
        run: |options| Ok(compared(switch_state(sessions(options), options), options).into()),
    },
    Item {
        paper: "orca",
        name: "readings",
        title: "Section 6.2: readings of what the paper leaves open",
        place: "section 6.2, Fig. 7a",
        kind: Kind::Computed,
        differs: "the paper leaves open which network, hashes and paths it took; each row is one reading",
        load: Load::Alone,
        run: |options| Ok(compared(readings(sessions(options), options), options).into()),
    },
    Item {
        paper: "orca",
        name: "updates",
        title: "Messages for joins, leaves and failed switches",
        place: "section 6.3",
        kind: Kind::Computed,
        differs: "which path a session goes to after a failure is open in the paper; ours takes the one that changes the fewest switches",
        load: Load::Alone,
        run: |options| {
            let sessions = sessions(options);
            let (fewer, seed) = (sessions / 10, options.seed);
            let ours = [updates::dynamics(fewer, sessions, seed), updates::failures(fewer, seed)].concat();
            Ok(compared([ours, elmo_failures::rows(fewer, options)].concat(), options).into())
        },
    },
    Item {
        paper: "orca",
        name: "elmo",
        title: "The baseline Elmo beside its own published logs",
        place: "Elmo's published logs",
        kind: Kind::Computed,
        differs: "other draws; the logs are means of three seeds",
        load: Load::Alone,
        run: |options| Ok(compared(elmo::elmo(sessions(options) / 10, options.seed), options).into()),
    },
    Item {
        paper: "orca",
        name: "fig-7",
        title: "Figure 7: state in switches, state by session size, label sizes and updates, beside Elmo",
        place: "section 6.2, Fig. 7",
        kind: Kind::Computed,
        differs: "Elmo runs on the network of its own program, and the paper does not say on which ports it ran it",
        load: Load::Alone,
        run: |options| Ok(fig_7::figure_7(sessions(options), options)),
    },
    Item {
        paper: "orca",
        name: "a-5",
        title: "Appendix A.5: time to plan a session, Orca and Elmo",
        place: "appendix A.5",
        kind: Kind::Measured,
        differs: "another processor and other programming languages; Elmo's own logs say 0.1 ms where the paper says 5.5 to 7.3",
        load: Load::Alone,
        run: |options| Ok(compared(fig_7::running_times(sessions(options) / 10, options), options).into()),
    },
    Item {
        paper: "orca",
        name: "fig-5b",
        title: "Figure 5b: packets that an agent relabels by cores, without the network",
        place: "section 5.2, Fig. 5b",
        kind: Kind::Measured,
        differs: "another processor; ours is without receiving and sending",
        load: Load::Alone,
        run: |options| Ok(agent::figure_5b(options)),
    },
    Item {
        paper: "orca",
        name: "sender",
        title: "Section 5.1: bytes that leave the sender, in one session and by unicast, and the label's part",
        place: "section 5.1",
        kind: Kind::Simulated,
        differs: "packets of 1,500 bytes",
        load: Load::Shared,
        run: sender::traffic,
    },
    Item {
        paper: "orca",
        name: "fig-6a",
        title: "Figures 6a and 6b: what a killed agent costs, in a lab (Linux, root)",
        place: "section 5.3, Fig. 6a",
        kind: Kind::Measured,
        differs: "agents, controllers and switches share one machine's processors; the paper's have their own",
        load: Load::Lab,
        run: |_| Ok(kills::without_a_lab(lab::NOT_HERE)),
    },
    Item {
        paper: "orca",
        name: "fig-6c",
        title: "Figure 6c: how soon a receiver that joins gets a packet, by how far controllers are",
        place: "section 5.3, Fig. 6c",
        kind: Kind::Simulated,
        differs: "delays of the network and timers of our controllers alone: the paper's programs take time too",
        load: Load::Shared,
        run: |options| Ok(joins::figure_6c(options)),
    },
    Item {
        paper: "orca",
        name: "fig-5d",
        title: "Figure 5d: latency and jitter of a leaf with its agent, by the kernel's programs (Linux, root)",
        place: "section 5.2, Fig. 5d",
        kind: Kind::Measured,
        differs: "the paper's switch is hardware on links of 10 Gbit/s; ours is the kernel of one machine, without a link",
        load: Load::Lab,
        run: |_| Ok(leaf::figure_5d(&Err(lab::NOT_HERE.into()))),
    },
    Item {
        paper: "orca",
        name: "fig-5c",
        title: "Figure 5c: what an agent does to a packet, without the network",
        place: "section 5.2, Fig. 5c",
        kind: Kind::Measured,
        differs: "another processor; ours is without receiving and sending",
        load: Load::Alone,
        run: |options| Ok(agent::figure_5c(options)),
    },
];

/// The sessions of the paper's data sets.
const PAPERS_SESSIONS: u32 = 1_000_000;

/// Returns the number of sessions of a data set.
fn sessions(options: &Options) -> u32 {
    if options.quick { 20_000 } else { PAPERS_SESSIONS }
}

/// The rows of a data set, beside the paper's numbers only where they are of its million sessions.
fn compared(rows: Vec<Row>, options: &Options) -> Vec<Row> {
    let drawn = sessions(options);
    let why = format!("of {drawn} sessions or fewer, where the paper has a million: not compared");
    let of_another_size = |row: Row| match row.paper {
        Some(_) if drawn < PAPERS_SESSIONS => row.of_another_size(&why),
        _ => row,
    };
    rows.into_iter().map(of_another_size).collect()
}

/// The network of Orca's evaluation that 19 bytes fit: fat-tree(48, 3), 27,648 hosts.
///
/// # Panics
/// Never: the network exists.
#[must_use]
pub fn papers_network() -> Clos {
    FatTree::new(48, 3).ok().and_then(|tree| tree.as_clos()).expect("fat-tree(48, 3) is a Clos network")
}

/// A data set of section 6.1: its name, placement, sizes and what the paper says of it.
type NamedSet = (&'static str, Placement, Sizes, Option<(f64, f64)>);

/// The four data sets, as they were run and as the papers describe them.
const DATA_SETS: [NamedSet; 8] = [
    ("Uni-S as run", Placement::ScatteredAsRun, Sizes::Uniform, Some((253.0, 437.0))),
    ("Uni-C as run", Placement::ClusteredAsRun, Sizes::Uniform, None),
    ("WVE-S as run", Placement::ScatteredAsRun, Sizes::Wve, None),
    ("WVE-C as run", Placement::ClusteredAsRun, Sizes::Wve, None),
    ("Uni-S strict", Placement::Strict(1), Sizes::Uniform, None),
    ("Uni-C strict", Placement::Strict(12), Sizes::Uniform, None),
    ("WVE-S strict", Placement::Strict(1), Sizes::Wve, None),
    ("WVE-C strict", Placement::Strict(12), Sizes::Wve, None),
];

/// Section 6.2 for the four data sets: a plain Bloom filter, and the labels that we make.
#[must_use]
pub fn switch_state(sessions: u32, options: &Options) -> Vec<Row> {
    let clos = papers_network();
    let labels = [("plain filter", LabelOptions::plain(69)), ("ours", LabelOptions::new(69))];
    let rows = side_by_side::each(2 * DATA_SETS.len(), options.threads, |at| {
        let (name, placement, sizes, paper) = DATA_SETS[at / 2];
        let (how, labels) = labels[at % 2];
        let tenants = tenants::tenants(&clos, placement, sessions, &mut Random::new(options.seed));
        let start = Instant::now();
        let set = plan_data_set(&clos, &tenants, sizes, labels, options.seed, 100);
        rows_of(&format!("{name}, {how}"), &set, paper, start.elapsed().as_secs_f64(), sessions)
    });
    rows.concat()
}

/// Section 6.2, Uni-S as run, in each reading of what the paper leaves open.
///
/// # Panics
/// Never: the networks exist.
#[must_use]
pub fn readings(sessions: u32, options: &Options) -> Vec<Row> {
    let small_pods =
        |spines| Clos::new(48, 12, spines, 48, 12).expect("48 pods of 12 leafs are a Clos network");
    let (million, scaled) = to_a_million(sessions);
    let (plain, row) = (LabelOptions::plain(69), LabelOptions::new(69));
    let readings = [
        ("plain filter", papers_network(), plain),
        ("plain filter, pods of 12 leafs and 12 spines", small_pods(12), plain),
        ("plain filter, pods of 12 leafs and 24 spines", small_pods(24), plain),
        ("plain filter, pods of 12 leafs and 48 spines", small_pods(48), plain),
        ("plain filter, best path", papers_network(), LabelOptions { paths_tried: u32::MAX, ..plain }),
        ("links in a row", papers_network(), LabelOptions { paths_tried: 1, ..row }),
        ("links in a row, best path", papers_network(), row),
    ];
    let rows = side_by_side::each(readings.len(), options.threads, |at| {
        let (name, clos, labels) = &readings[at];
        let tenants =
            tenants::tenants(clos, Placement::ScatteredAsRun, sessions, &mut Random::new(options.seed));
        let set = plan_data_set(clos, &tenants, Sizes::Uniform, *labels, options.seed, u64::MAX);
        let row = |(what, paper, value): (&str, Option<f64>, f64)| {
            let name = format!("Uni-S as run, {name}: entries a spine, {what}");
            Row::new(name, paper, million * value, "entries").note(scaled)
        };
        [
            ("mean", None, set.mean()),
            ("mean, links counted one by one", None, set.links as f64 / set.entries.len() as f64),
            ("99 %", Some(253.0), set.quantile(0.99).into()),
            ("most", Some(437.0), set.quantile(1.0).into()),
        ]
        .map(row)
    });
    rows.concat()
}

fn rows_of(name: &str, set: &DataSet, paper: Option<(f64, f64)>, seconds: f64, sessions: u32) -> Vec<Row> {
    let (million, scaled) = to_a_million(sessions);
    let each = |sum: u64| sum as f64 / set.sessions as f64;
    let walked = |sum: u64| sum as f64 / set.walked.max(1) as f64;
    let row = |what: &str, paper: Option<f64>, ours: f64, unit: &str| {
        Row::new(format!("{name}: {what}"), paper, ours, unit)
    };
    let state: f64 = set.entries.iter().map(|&count| f64::from(count)).sum();
    let mut rows = vec![
        row("sessions", None, set.sessions as f64, "sessions"),
        row("leafs a session", None, each(set.leafs), "leafs"),
        row("pods a session", None, each(set.pods), "pods"),
        row("median entries a spine", None, million * f64::from(set.quantile(0.5)), "entries").note(scaled),
        row(
            "99 % of spines, entries",
            paper.map(|p| p.0),
            million * f64::from(set.quantile(0.99)),
            "entries",
        )
        .note(scaled),
        row("most entries of a spine", paper.map(|p| p.1), million * f64::from(set.quantile(1.0)), "entries")
            .note(scaled),
        row("entries a session", None, state / set.sessions as f64, "entries"),
        row("redundant hosts, walked sessions", None, set.redundant as f64, "hosts")
            .at_most(0.0)
            .note(format!("{} sessions, both encodings; the paper: no redundant traffic", set.walked)),
        row("receivers missed, walked sessions", None, set.missed as f64, "hosts").at_most(0.0),
        row("links a packet crosses, Orca", None, walked(set.links_orca), "links"),
        row("links a packet crosses, pod labels", None, walked(set.links_pods), "links")
            .note(format!("{:.2} pods a session ask an agent", walked(set.asking_pods))),
        row("time to plan one label", Some(340.0), 1e6 * set.planning_s / set.sessions as f64, "us")
            .kind(Kind::Measured)
            .place("appendix A.5")
            .at_most(340.0),
        row("time for the whole set", None, seconds, "s")
            .kind(Kind::Measured)
            .note("one thread, drawing and walks included"),
    ];
    rows.extend(kept_rows(name, set, million, scaled));
    rows
}

/// Returns the rows of what spines keep in the other encodings, and of what agents keep in all.
fn kept_rows(name: &str, set: &DataSet, million: f64, scaled: &str) -> Vec<Row> {
    let auto = format!("encoding auto with room for {ROOM}");
    let kept = [
        ("entries of a spine, pod labels".to_string(), &set.pod_entries, "entries"),
        (format!("entries of a spine, {auto}"), &set.auto_entries, "entries"),
        ("leaf labels of a rack's agent, all encodings".into(), &set.leaf_labels, "labels"),
        ("spine labels of a rack's agent, pod labels".into(), &set.spine_labels, "labels"),
        (format!("spine labels of a rack's agent, {auto}"), &set.auto_spine_labels, "labels"),
    ];
    let row = |(what, counts, unit): &(String, &Vec<u32>, &'static str)| {
        [("99 %", 0.99), ("most", 1.0)].map(|(of, fraction)| {
            let value = million * f64::from(quantile_of(counts, fraction));
            Row::new(format!("{name}: {what}, {of}"), None, value, unit).note(scaled)
        })
    };
    kept.iter().flat_map(row).collect()
}

/// Returns the factor for entries where fewer sessions than a million were planned, and the note for their
/// rows.
fn to_a_million(sessions: u32) -> (f64, &'static str) {
    let note = if sessions < 1_000_000 { "in proportion to a million sessions" } else { "" };
    (1e6 / f64::from(sessions), note)
}
