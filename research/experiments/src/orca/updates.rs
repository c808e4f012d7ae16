//! Orca, section 6.3: messages for joins, leaves and failed switches.

use std::time::Instant;

use polycast_planning::labels::pod_labels::PodLabelFormat;
use polycast_planning::labels::{LabelPlanner, Session};
use polycast_topology::{Failures, Node};

use super::data_set::members;
use super::papers_network;
use crate::random::Random;
use crate::tenants::{self, Placement, Sizes, Tenant};
use crate::{Kind, Row};

/// Number of failures that are averaged.
const FAILED_SWITCHES: u32 = 20;

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
    let pods = PodLabelFormat::new(&clos, planner.format().bytes()).expect("pod labels for this network");
    let scale = 1e6 / f64::from(sessions);
    let mut rows = Vec::new();
    for (what, paper) in [("core", 3900.0), ("spine", 4890.0)] {
        let (mut messages, mut urgent, mut by_pods, mut touched, mut seconds) = (0u64, 0u64, 0u64, 0u32, 0.0);
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
                // The source, and where the way is through other spines, the agents that keep spine labels.
                let new = &session.plan().tree;
                let moves = new.path.plane != plane;
                by_pods += 1 + if moves { pods.beyond(new).count() as u64 } else { 0 };
            }
        }
        let each = scale * messages as f64 / f64::from(FAILED_SWITCHES);
        let note = format!(
            "mean of {FAILED_SWITCHES}; {:.0} sessions each, {:.1} us a session",
            scale * f64::from(touched) / f64::from(FAILED_SWITCHES),
            1e6 * seconds / f64::from(touched.max(1))
        );
        let name = format!("messages for the failure of a {what}, WVE-S");
        rows.push(Row::new(name.clone(), Some(paper), each, "messages").note(note));
        let urgent = scale * urgent as f64 / f64::from(FAILED_SWITCHES);
        rows.push(
            Row::new(format!("{name}, that packets wait for"), Some(paper), urgent, "messages")
                .note("without those that only remove entries of sessions that have moved away"),
        );
        let by_pods = scale * by_pods as f64 / f64::from(FAILED_SWITCHES);
        rows.push(Row::new(format!("{name}, pod labels"), None, by_pods, "messages"));
    }
    rows
}

/// Section 6.3: joins and leaves of running WVE-S sessions.
#[must_use]
pub fn dynamics(sessions: u32, events: u32, seed: u64) -> Vec<Row> {
    let wve = (Placement::ScatteredAsRun, Sizes::Wve);
    let (per_second, microseconds) = events_of(wve, sessions, events, seed);
    vec![
        Row::new("time of one join or leave", None, microseconds, "us").kind(Kind::Measured),
        Row::new("share of a core for 1,000 events a second", None, microseconds / 10.0, "%")
            .kind(Kind::Measured),
        Row::new("messages a second at 1,000 events, WVE-S", Some(1889.0), per_second, "messages"),
    ]
}

/// The messages a second for 1,000 joins and leaves a second, and the microseconds of one.
///
/// # Panics
/// If a planner refuses a drawn event, which would be a fault of its own.
pub(super) fn events_of(
    (placement, sizes): (Placement, Sizes),
    sessions: u32,
    events: u32,
    seed: u64,
) -> (f64, f64) {
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

/// A join of a host that is no receiver yet, or the leave of a receiver, one as likely as the other where
/// both can be: the session, the host, and whether it joins.
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
        // A few draws find a host of the wanted kind. There may be none: in a session of all its tenant's
        // hosts no host can join.
        for _ in 0..32 {
            let host = hosts[random.below(hosts.len() as u32) as usize];
            if host != session.source() && session.is_receiver(planner, host) != join {
                return (at, host, join);
            }
        }
    }
}
