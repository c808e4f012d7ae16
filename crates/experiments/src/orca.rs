//! Orca, section 6, and Elmo's own evaluation: state of switches, labels and updates for a million sessions.

mod agent;
mod fig_7;

use std::time::Instant;

use polycast_planning::elmo::{ElmoLimits, ElmoRandom, SwitchPorts, encode_layer};
use polycast_planning::labels::pod_labels::{self, PodLabelFormat};
use polycast_planning::labels::{LabelOptions, LabelPlanner, Session, switches};
use polycast_topology::{Clos, Failures, FatTree, Node};

use crate::Row;
use crate::random::Random;
use crate::report::{Item, Load, Options};
use crate::tenants::{self, Placement, Sizes, Tenant};

/// The items of this paper.
pub const ITEMS: &[Item] = &[
    Item {
        paper: "orca",
        name: "switch-state",
        title: "Section 6.2: state in switches, links and time of labels for a million sessions",
        load: Load::Alone,
        run: |options| Ok(switch_state(sessions(options), options).into()),
    },
    Item {
        paper: "orca",
        name: "readings",
        title: "Section 6.2: readings of what the paper leaves open",
        load: Load::Alone,
        run: |options| Ok(readings(sessions(options), options).into()),
    },
    Item {
        paper: "orca",
        name: "updates",
        title: "Messages for joins, leaves and failed switches",
        load: Load::Alone,
        run: |options| {
            let sessions = sessions(options);
            let (fewer, seed) = (sessions / 10, options.seed);
            Ok([dynamics(fewer, sessions, seed), failures(fewer, seed)].concat().into())
        },
    },
    Item {
        paper: "orca",
        name: "elmo",
        title: "The baseline Elmo beside its own published logs",
        load: Load::Alone,
        run: |options| Ok(elmo(sessions(options) / 10, options.seed).into()),
    },
    Item {
        paper: "orca",
        name: "fig-7",
        title: "Figure 7: state in switches, state by session size, label sizes and updates, beside Elmo",
        load: Load::Alone,
        run: |options| Ok(fig_7::figure_7(sessions(options), options)),
    },
    Item {
        paper: "orca",
        name: "a-5",
        title: "Appendix A.5: time to plan a session, Orca and Elmo",
        load: Load::Alone,
        run: |options| Ok(fig_7::running_times(sessions(options) / 10, options).into()),
    },
    Item {
        paper: "orca",
        name: "fig-5c",
        title: "Figure 5c: what an agent does to a packet, without the network; and what needs a test bed",
        load: Load::Alone,
        run: |options| Ok(agent::figure_5c(options)),
    },
];

/// How many sessions a data set has.
fn sessions(options: &Options) -> u32 {
    if options.quick { 20_000 } else { 1_000_000 }
}

/// The network of Orca's evaluation that 19 bytes fit: fat-tree(48, 3), 27,648 hosts.
///
/// # Panics
/// Never: the network exists.
#[must_use]
pub fn papers_network() -> Clos {
    FatTree::new(48, 3).ok().and_then(|tree| tree.as_clos()).expect("fat-tree(48, 3) is a Clos network")
}

/// How many failures are averaged.
const FAILED_SWITCHES: u32 = 20;

/// Receivers in a bin of sizes.
pub const SIZE_STEP: usize = 250;

/// Sessions of about one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeBin {
    /// How many.
    pub sessions: u64,
    /// Switches with entries, over all of them.
    pub switches: u64,
    /// Switches with entries, at most.
    pub most: u32,
}

/// Counts a session's switches with entries.
fn count_size(bins: &mut Vec<SizeBin>, receivers: usize, switches: u32) {
    let at = receivers / SIZE_STEP;
    if bins.len() <= at {
        bins.resize(at + 1, SizeBin::default());
    }
    let bin = &mut bins[at];
    bin.sessions += 1;
    bin.switches += u64::from(switches);
    bin.most = bin.most.max(switches);
}

/// What one data set comes to.
#[derive(Clone, Debug, Default)]
pub struct DataSet {
    /// Sessions planned.
    pub sessions: u64,
    /// Spines with an entry for a session, by spine.
    pub entries: Vec<u32>,
    /// Spines with entries, by the session's receivers: [`SIZE_STEP`] in each bin.
    pub by_size: Vec<SizeBin>,
    /// Entries counted by link: a spine may leave out several for one session.
    pub links: u64,
    /// Seconds that planning labels took, over all threads.
    pub planning_s: f64,
    /// Leafs over all sessions.
    pub leafs: u64,
    /// Pods over all sessions, the source's included.
    pub pods: u64,
    /// Sessions whose delivery was followed through the switches.
    pub walked: u64,
    /// Hosts that got something they should not, over all walked sessions and both encodings.
    pub redundant: u64,
    /// Receivers that got nothing or twice, likewise.
    pub missed: u64,
    /// Links crossed by one packet of every walked session, with Orca's labels.
    pub links_orca: u64,
    /// The same with pod labels.
    pub links_pods: u64,
    /// Pods of walked sessions that had to ask an agent for a spine label.
    pub asking_pods: u64,
}

impl DataSet {
    fn add(&mut self, other: &DataSet) {
        if self.entries.is_empty() {
            self.entries = vec![0; other.entries.len()];
        }
        self.entries.iter_mut().zip(&other.entries).for_each(|(sum, more)| *sum += more);
        self.sessions += other.sessions;
        self.links += other.links;
        if self.by_size.len() < other.by_size.len() {
            self.by_size.resize(other.by_size.len(), SizeBin::default());
        }
        for (sum, more) in self.by_size.iter_mut().zip(&other.by_size) {
            sum.sessions += more.sessions;
            sum.switches += more.switches;
            sum.most = sum.most.max(more.most);
        }
        self.planning_s += other.planning_s;
        self.leafs += other.leafs;
        self.pods += other.pods;
        self.walked += other.walked;
        self.redundant += other.redundant;
        self.missed += other.missed;
        self.links_orca += other.links_orca;
        self.links_pods += other.links_pods;
        self.asking_pods += other.asking_pods;
    }

    /// The mean over all spines.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.entries.iter().map(|&count| f64::from(count)).sum::<f64>() / self.entries.len().max(1) as f64
    }

    /// The entries of the spine at this fraction of all spines, in rising order.
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> u32 {
        let mut sorted = self.entries.clone();
        sorted.sort_unstable();
        let at = (fraction * sorted.len() as f64).ceil() as usize;
        sorted.get(at.clamp(1, sorted.len()) - 1).copied().unwrap_or(0)
    }
}

/// Plans all sessions of the tenants on the options' threads; every `walk_every`-th is followed through the
/// switches.
///
/// # Panics
/// If a planner refuses a session, which would be a fault of its own.
#[must_use]
pub fn plan_data_set(
    clos: &Clos,
    tenants: &[Tenant],
    sizes: Sizes,
    labels: LabelOptions,
    options: &Options,
    walk_every: u64,
) -> DataSet {
    let (threads, seed) = (options.threads, options.seed);
    let mut total = DataSet::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut worker = Worker::new(clos, labels, walk_every, seed);
                    for (index, tenant) in tenants.iter().enumerate().skip(thread).step_by(threads) {
                        worker.tenant(tenant, sizes, index as u64);
                    }
                    worker.result
                })
            })
            .collect();
        for worker in workers {
            total.add(&worker.join().expect("planning does not panic"));
        }
    });
    total
}

struct Worker {
    planner: LabelPlanner,
    pod_format: PodLabelFormat,
    walk_every: u64,
    seed: u64,
    result: DataSet,
}

impl Worker {
    fn new(clos: &Clos, options: LabelOptions, walk_every: u64, seed: u64) -> Self {
        let planner = LabelPlanner::with_options(*clos, options).expect("labels for this network");
        let pod_format =
            PodLabelFormat::new(clos, planner.format().bytes()).expect("pod labels for this network");
        let result = DataSet { entries: vec![0; clos.spines() as usize], ..DataSet::default() };
        Worker { planner, pod_format, walk_every, seed, result }
    }

    fn tenant(&mut self, tenant: &Tenant, sizes: Sizes, index: u64) {
        let mut random = Random::new(self.seed ^ (index + 1) << 20);
        let mut hosts = tenant.hosts.clone();
        for group in 0..u64::from(tenant.groups) {
            let Some((source, receivers)) = members(&mut hosts, sizes, &mut random) else { continue };
            self.session(index << 32 | group, source, &receivers);
        }
    }

    fn session(&mut self, id: u64, source: Node, receivers: &[Node]) {
        let start = Instant::now();
        let plan = self.planner.plan(id, source, receivers, &Failures::none()).expect("members are hosts");
        self.result.planning_s += start.elapsed().as_secs_f64();
        self.planner.count_in(&plan.spine_state);
        self.result.links += plan.spine_state.len() as u64;
        let clos = *self.planner.clos();
        let first_spine = clos.spine(0, 0);
        let mut last = None;
        let mut spines = 0;
        for entry in &plan.spine_state {
            if last != Some(entry.spine) {
                self.result.entries[(entry.spine - first_spine) as usize] += 1;
                last = Some(entry.spine);
                spines += 1;
            }
        }
        count_size(&mut self.result.by_size, receivers.len(), spines);
        self.result.leafs += plan.leaf_hosts.len() as u64;
        self.result.pods += plan.tree.pods.len() as u64;
        self.result.sessions += 1;
        if self.result.sessions.is_multiple_of(self.walk_every) {
            let receivers = receivers.iter().copied().collect();
            let pods = pod_labels::encode(&self.pod_format, &plan);
            let by_filter =
                switches::deliver(&clos, self.planner.format(), self.planner.filter(), source, &plan);
            let by_pods = pod_labels::deliver(&clos, &self.pod_format, id, source, &plan, &pods);
            for delivery in [&by_filter, &by_pods] {
                self.result.redundant += delivery.redundant(&clos, &receivers).len() as u64;
                let got = receivers.iter().filter(|host| delivery.hosts.get(host) == Some(&1)).count();
                self.result.missed += (receivers.len() - got) as u64;
            }
            self.result.walked += 1;
            self.result.links_orca += u64::from(by_filter.links);
            self.result.links_pods += u64::from(by_pods.links);
            self.result.asking_pods += pods.spine_labels.len() as u64;
        }
    }
}

/// A drawn group: its source and its receivers; `None` if all of its machines are on one host.
fn members(hosts: &mut [Node], sizes: Sizes, random: &mut Random) -> Option<(Node, Vec<Node>)> {
    let size = tenants::group_size(sizes, hosts.len() as u32, random) as usize;
    random.choose_first(hosts, size);
    let source = hosts[0];
    let receivers: Vec<Node> = hosts[1..size].iter().copied().filter(|&host| host != source).collect();
    (!receivers.is_empty()).then_some((source, receivers))
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
    let mut rows = Vec::new();
    for (name, placement, sizes, paper) in DATA_SETS {
        let tenants = tenants::tenants(&clos, placement, sessions, &mut Random::new(options.seed));
        for (how, labels) in [(", plain filter", LabelOptions::plain(69)), ("", LabelOptions::new(69))] {
            let start = Instant::now();
            let set = plan_data_set(&clos, &tenants, sizes, labels, options, 100);
            let name = format!("{name}{how}");
            rows.extend(rows_of(
                &name,
                &set,
                paper,
                start.elapsed().as_secs_f64(),
                (sessions, options.threads),
            ));
        }
    }
    rows
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
    let mut rows = Vec::new();
    for (name, clos, labels) in readings {
        let tenants =
            tenants::tenants(&clos, Placement::ScatteredAsRun, sessions, &mut Random::new(options.seed));
        let set = plan_data_set(&clos, &tenants, Sizes::Uniform, labels, options, u64::MAX);
        for (what, paper, value) in [
            ("mean", None, set.mean()),
            ("mean, links counted one by one", None, set.links as f64 / set.entries.len() as f64),
            ("99 %", Some(253.0), set.quantile(0.99).into()),
            ("most", Some(437.0), set.quantile(1.0).into()),
        ] {
            let name = format!("Uni-S as run, {name}: entries a spine, {what}");
            rows.push(Row::new("orca 6.2", name, paper, million * value, "entries").note(scaled));
        }
    }
    rows
}

fn rows_of(
    name: &str,
    set: &DataSet,
    paper: Option<(f64, f64)>,
    seconds: f64,
    (sessions, threads): (u32, usize),
) -> Vec<Row> {
    let item = "orca 6.2";
    let (million, scaled) = to_a_million(sessions);
    let each = |sum: u64| sum as f64 / set.sessions as f64;
    let walked = |sum: u64| sum as f64 / set.walked.max(1) as f64;
    let row = |what: &str, paper: Option<f64>, ours: f64, unit: &str| {
        Row::new(item, format!("{name}: {what}"), paper, ours, unit)
    };
    let state: f64 = set.entries.iter().map(|&count| f64::from(count)).sum();
    vec![
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
        row("entries of a switch with pod labels", None, 0.0, "entries"),
        row("redundant hosts, walked sessions", Some(0.0), set.redundant as f64, "hosts")
            .note(format!("{} sessions, both encodings", set.walked)),
        row("receivers missed, walked sessions", Some(0.0), set.missed as f64, "hosts"),
        row("links a packet crosses, Orca", None, walked(set.links_orca), "links"),
        row("links a packet crosses, pod labels", None, walked(set.links_pods), "links")
            .note(format!("{:.2} pods a session ask an agent", walked(set.asking_pods))),
        row("time to plan one label", Some(340.0), 1e6 * set.planning_s / set.sessions as f64, "us"),
        row("time for the whole set", None, seconds, "s")
            .note(format!("{threads} threads, drawing and walks included")),
    ]
}

/// What entries are multiplied with where fewer sessions than a million were planned, and how a row says so.
fn to_a_million(sessions: u32) -> (f64, &'static str) {
    let note = if sessions < 1_000_000 { "in proportion to a million sessions" } else { "" };
    (1e6 / f64::from(sessions), note)
}

/// Running sessions with the tenant of each.
fn running_sessions(
    planner: &mut LabelPlanner,
    tenants: &[Tenant],
    sizes: Sizes,
    random: &mut Random,
) -> Vec<(usize, Session)> {
    let mut running = Vec::new();
    for (index, tenant) in tenants.iter().enumerate() {
        let mut hosts = tenant.hosts.clone();
        for _ in 0..tenant.groups {
            let Some((source, receivers)) = members(&mut hosts, sizes, random) else { continue };
            let plan = planner.plan(running.len() as u64, source, &receivers, &Failures::none());
            running.push((index, Session::new(source, plan.expect("members are hosts"))));
        }
    }
    running
}

/// Section 6.3: what the failure of a core and of a spine costs, in proportion to a million sessions.
///
/// # Panics
/// If a planner refuses a session, which would be a fault of its own.
#[must_use]
pub fn failures(sessions: u32, seed: u64) -> Vec<Row> {
    let clos = papers_network();
    let mut random = Random::new(seed);
    let tenants = tenants::tenants(&clos, Placement::ScatteredAsRun, sessions, &mut random);
    let mut planner = LabelPlanner::new(clos, 69).expect("labels for this network");
    let running = running_sessions(&mut planner, &tenants, Sizes::Wve, &mut random);
    let scale = 1e6 / f64::from(sessions);
    let mut rows = Vec::new();
    for (what, paper) in [("core", 3900.0), ("spine", 4890.0)] {
        let (mut messages, mut urgent, mut touched, mut seconds) = (0u64, 0u64, 0u32, 0.0);
        for _ in 0..FAILED_SWITCHES {
            let plane = random.below(clos.spines_per_pod());
            let (core, pod) = (random.below(clos.cores_per_spine()), random.below(clos.pods()));
            let mut failures = Failures::none();
            failures.fail_node(if what == "core" { clos.core(plane, core) } else { clos.spine(pod, plane) });
            for (at, (_, session)) in running.iter().enumerate() {
                let tree = &session.plan().tree;
                let through = if what == "core" {
                    tree.path.core == core
                } else {
                    tree.pods.iter().any(|entry| entry.pod == pod)
                };
                if tree.path.plane != plane || !through {
                    continue;
                }
                let mut session = session.clone();
                let start = Instant::now();
                let update = session.replan(&mut planner, at as u64, &failures);
                seconds += start.elapsed().as_secs_f64();
                let update = update.expect("other spines are left");
                messages += u64::from(update.messages());
                urgent += u64::from(update.urgent_messages());
                touched += 1;
            }
        }
        let each = scale * messages as f64 / f64::from(FAILED_SWITCHES);
        let note = format!(
            "mean of {FAILED_SWITCHES}; {:.0} sessions each, {:.1} us a session",
            scale * f64::from(touched) / f64::from(FAILED_SWITCHES),
            1e6 * seconds / f64::from(touched.max(1))
        );
        let name = format!("messages for the failure of a {what}, WVE-S");
        rows.push(Row::new("orca 6.3", name.clone(), Some(paper), each, "messages").note(note));
        let urgent = scale * urgent as f64 / f64::from(FAILED_SWITCHES);
        rows.push(
            Row::new("orca 6.3", format!("{name}, that packets wait for"), Some(paper), urgent, "messages")
                .note("without those that only remove entries of sessions that have moved away"),
        );
        // Spine labels name leafs, not spines: only the source has to be told.
        let sources = scale * f64::from(touched) / f64::from(FAILED_SWITCHES);
        rows.push(Row::new("orca 6.3", format!("{name}, pod labels"), None, sources, "messages"));
    }
    rows
}

/// Section 6.3: joins and leaves of running WVE-S sessions.
#[must_use]
pub fn dynamics(sessions: u32, events: u32, seed: u64) -> Vec<Row> {
    let wve = (Placement::ScatteredAsRun, Sizes::Wve);
    let (per_second, microseconds) = events_of(wve, sessions, events, seed);
    let item = "orca 6.3";
    vec![
        Row::new(item, "time of one join or leave", None, microseconds, "us"),
        Row::new(item, "share of a core for 1,000 events a second", None, microseconds / 10.0, "%"),
        Row::new(item, "messages a second at 1,000 events, WVE-S", Some(1889.0), per_second, "messages"),
    ]
}

/// The messages a second for 1,000 joins and leaves a second, and the microseconds of one.
///
/// # Panics
/// If a planner refuses a drawn event, which would be a fault of its own.
fn events_of((placement, sizes): (Placement, Sizes), sessions: u32, events: u32, seed: u64) -> (f64, f64) {
    let clos = papers_network();
    let mut random = Random::new(seed);
    let tenants = tenants::tenants(&clos, placement, sessions, &mut random);
    let mut planner = LabelPlanner::new(clos, 69).expect("labels for this network");
    let mut running = running_sessions(&mut planner, &tenants, sizes, &mut random);
    let (mut messages, mut seconds) = (0u64, 0.0);
    for _ in 0..events {
        let (at, host, join) = event(&planner, &running, &tenants, &mut random);
        let session = &mut running[at].1;
        let start = Instant::now();
        let update = if join { session.join(&planner, host) } else { session.leave(&planner, host) };
        seconds += start.elapsed().as_secs_f64();
        messages += u64::from(update.expect("hosts of the network").messages());
    }
    (1000.0 * messages as f64 / f64::from(events), seconds * 1e6 / f64::from(events))
}

/// A join of a host that is no receiver yet, or the leave of a receiver, one as likely as the other where both
/// can be: the session, the host, and whether it joins.
fn event(
    planner: &LabelPlanner,
    running: &[(usize, Session)],
    tenants: &[Tenant],
    random: &mut Random,
) -> (usize, Node, bool) {
    loop {
        let at = random.below(running.len() as u32) as usize;
        let (tenant, session) = &running[at];
        let join = random.next() & 1 == 0;
        let hosts = &tenants[*tenant].hosts;
        // A few draws find a host of the wanted kind; in a session of all its tenant's hosts nobody can join.
        for _ in 0..32 {
            let host = hosts[random.below(hosts.len() as u32) as usize];
            if host != session.source() && session.is_receiver(planner, host) != join {
                return (at, host, join);
            }
        }
    }
}

/// One Elmo run to be compared with its logs.
#[derive(Clone, Copy, Debug)]
pub struct ElmoRun {
    /// The data set.
    pub placement: Placement,
    /// The sizes.
    pub sizes: Sizes,
    /// Rules of the leaf layer.
    pub rules_max: u32,
    /// Redundancy limit of the leaf layer.
    pub redundancy_max: u32,
    /// Entries that a leaf's table holds; without it 10,000 for a million groups.
    pub table_size: Option<u32>,
}

/// What a run of Elmo comes to.
#[derive(Clone, Debug, Default)]
pub struct ElmoResult {
    /// Groups.
    pub groups: u64,
    /// Groups that need neither default rules nor table entries in leafs.
    pub covered: u64,
    /// Links, in proportion to the least.
    pub traffic: f64,
    /// Entries of every leaf, and of the spines of every pod.
    pub leaf_entries: Vec<u32>,
    /// Entries of each spine of a pod, by pod.
    pub pod_entries: Vec<u32>,
    /// Switches with entries, by the group's size.
    pub by_size: Vec<SizeBin>,
    /// Bytes of all headers.
    pub header_bytes: u64,
    /// Bytes of the longest header.
    pub header_most: u32,
    /// Seconds of encoding.
    pub seconds: f64,
}

/// Bits of a header that do not depend on the group: the ports up of leaf and spine, and the core's pods.
const ELMO_FIXED_BITS: u32 = (48 + 4) + (48 + 4) + 12;
/// Spines of a pod of Elmo's network.
const ELMO_SPINES: u32 = 4;

/// Encodes all groups of a data set.
///
/// # Panics
/// Never: the network exists.
#[must_use]
pub fn elmo_run(run: &ElmoRun, sessions: u32, seed: u64) -> ElmoResult {
    let clos = Clos::new(12, 48, ELMO_SPINES, 48, 1).expect("Elmo's network exists");
    let mut random = Random::new(seed);
    let tenants = tenants::tenants(&clos, run.placement, sessions, &mut random);
    // The table of a switch is as full as the groups of the whole run make it.
    let table_size = (10_000 * u64::from(sessions) / 1_000_000) as u32;
    let pods_limits =
        ElmoLimits { rules_max: 2, switches_per_rule_max: 3, redundancy_max: 6, table_size: 64_000 };
    let leaf_limits = ElmoLimits {
        rules_max: run.rules_max,
        switches_per_rule_max: 3,
        redundancy_max: run.redundancy_max,
        table_size: run.table_size.unwrap_or(table_size),
    };
    let mut coin = ElmoRandom::new(seed);
    let (mut ideal, mut sent) = (0u64, 0u64);
    let mut result =
        ElmoResult { leaf_entries: vec![0; 576], pod_entries: vec![0; 12], ..ElmoResult::default() };
    for tenant in &tenants {
        let mut hosts = tenant.hosts.clone();
        for _ in 0..tenant.groups {
            let size = tenants::group_size(run.sizes, hosts.len() as u32, &mut random) as usize;
            random.choose_first(&mut hosts, size);
            let (pods, leafs, members) = bitmaps(&hosts[..size]);
            let start = Instant::now();
            let pod_layer = encode_layer(&pods, &pods_limits, &mut result.pod_entries, &mut coin);
            let leaf_layer = encode_layer(&leafs, &leaf_limits, &mut result.leaf_entries, &mut coin);
            result.seconds += start.elapsed().as_secs_f64();
            result.groups += 1;
            result.covered +=
                u64::from(leaf_layer.switch_rules.is_empty() && leaf_layer.default_switches.is_empty());
            let bits = ELMO_FIXED_BITS + pod_layer.header_bits(48, 4) + leaf_layer.header_bits(48, 10);
            result.header_bytes += u64::from(bits.div_ceil(8));
            result.header_most = result.header_most.max(bits.div_ceil(8));
            let spines = ELMO_SPINES * pod_layer.switch_rules.len() as u32;
            count_size(&mut result.by_size, size - 1, spines + leaf_layer.switch_rules.len() as u32);
            let least = 3 + pods.len() as u64 + leafs.len() as u64 + members;
            let wrong_leafs = u64::from(pod_layer.redundant_ports);
            ideal += least;
            sent += least
                + u64::from(leaf_layer.redundant_ports)
                + wrong_leafs * (1 + u64::from(leaf_layer.default_ports.count_ones()));
        }
    }
    result.traffic = sent as f64 / ideal as f64;
    result
}

/// A group's bitmaps of leafs by pod and of hosts by leaf, and how many hosts it has.
fn bitmaps(hosts: &[Node]) -> (Vec<SwitchPorts>, Vec<SwitchPorts>, u64) {
    let mut by_leaf = std::collections::BTreeMap::<u32, u128>::new();
    for &host in hosts {
        *by_leaf.entry(host / 48).or_default() |= 1 << (host % 48);
    }
    let mut by_pod = std::collections::BTreeMap::<u32, u128>::new();
    for &leaf in by_leaf.keys() {
        *by_pod.entry(leaf / 48).or_default() |= 1 << (leaf % 48);
    }
    let count = by_leaf.values().map(|ports| u64::from(ports.count_ones())).sum();
    let list = |map: std::collections::BTreeMap<u32, u128>| {
        map.into_iter().map(|(switch, ports)| SwitchPorts { switch, ports }).collect()
    };
    (list(by_pod), list(by_leaf), count)
}

/// Elmo's logs beside our encoder: covered groups and traffic.
#[must_use]
pub fn elmo(sessions: u32, seed: u64) -> Vec<Row> {
    let anchors = [
        (
            "uniform P12",
            Placement::ClusteredAsRun,
            Sizes::Uniform,
            [
                (10, 0, 666_430, 1.086),
                (10, 12, 701_513, 1.064),
                (30, 0, 814_195, 1.0),
                (30, 12, 922_015, 1.023),
            ],
        ),
        (
            "uniform P1",
            Placement::ScatteredAsRun,
            Sizes::Uniform,
            [
                (10, 0, 47_007, 2.917),
                (10, 12, 207_110, 2.224),
                (30, 0, 238_909, 1.865),
                (30, 12, 716_924, 1.395),
            ],
        ),
        (
            "WVE P12",
            Placement::ClusteredAsRun,
            Sizes::Wve,
            [
                (10, 0, 713_214, 1.272),
                (10, 12, 829_311, 1.248),
                (30, 0, 891_670, 1.0),
                (30, 12, 997_843, 1.036),
            ],
        ),
        (
            "WVE P1",
            Placement::ScatteredAsRun,
            Sizes::Wve,
            [
                (10, 0, 513_227, 3.608),
                (10, 12, 763_032, 1.762),
                (30, 0, 778_057, 1.316),
                (30, 12, 959_825, 1.212),
            ],
        ),
    ];
    let mut rows = Vec::new();
    for (name, placement, sizes, runs) in anchors {
        for (rules_max, redundancy_max, covered, traffic) in runs {
            let run = ElmoRun { placement, sizes, rules_max, redundancy_max, table_size: None };
            let (our_covered, our_traffic) = mean_of_seeds(&run, sessions, seed);
            let label = format!("{name} H{rules_max} R{redundancy_max}");
            let paper = f64::from(covered) / 998_500.0;
            rows.push(Row::new(
                "elmo 1.7",
                format!("{label}: covered by p-rules"),
                Some(100.0 * paper),
                100.0 * our_covered,
                "%",
            ));
            rows.push(Row::new(
                "elmo 1.7",
                format!("{label}: traffic to ideal"),
                Some(traffic),
                our_traffic,
                "x",
            ));
        }
    }
    rows
}

/// The mean over three seeds from this one on, as the logs have it.
fn mean_of_seeds(run: &ElmoRun, sessions: u32, first: u64) -> (f64, f64) {
    let results: Vec<(f64, f64)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|more| first.wrapping_add(more))
            .map(|seed| scope.spawn(move || elmo_run(run, sessions, seed)))
            .collect();
        let results = workers.into_iter().map(|worker| worker.join().expect("encoding does not panic"));
        results.map(|result| (result.covered as f64 / result.groups as f64, result.traffic)).collect()
    });
    let sum = results.iter().fold((0.0, 0.0), |sum, result| (sum.0 + result.0, sum.1 + result.1));
    (sum.0 / 3.0, sum.1 / 3.0)
}
