//! Messages that Elmo's controller sends to switches when a core or a spine fails (Orca, section 6.3).
//!
//! The paper does not define a message. Its numbers for Orca are those of a million sessions over the 576
//! cores of a fat-tree of 48-port switches, so that is the network here, and not the one of Elmo's program,
//! which has four cores. Every group has one path; a failed switch moves the groups whose path leads through
//! it, and each switch that has an entry of such a group is notified once.

use polycast_planning::elmo::{ElmoLimits, ElmoRandom, encode_layer};
use polycast_topology::Clos;

use super::elmo::bitmaps;
use super::fig_7::ELMO;
use super::papers_network;
use crate::random::Random;
use crate::report::Options;
use crate::tenants::Placement::ScatteredAsRun;
use crate::tenants::Sizes::Wve;
use crate::{Row, side_by_side, tenants};

/// Numbers of the paper for a core and for a spine, in the order of [`ELMO`].
const PAPERS: [[f64; 2]; 4] =
    [[56_200.0, 34_700.0], [31_200.0, 20_600.0], [27_600.0, 18_000.0], [1_700.0, 1_200.0]];

/// The mean over all switches of a layer that may fail.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Failure {
    /// Groups whose path leads through the switch.
    groups: f64,
    /// Switches that have entries of these groups, each counted once a group.
    messages: f64,
}

/// Adds a group that has members in so many pods and entries at so many switches to the failures of a core
/// and of a spine. It goes through one spine of each pod, and through one core where it has several pods;
/// which one, all are as likely.
fn count(failures: &mut [Failure; 2], clos: &Clos, pods: u32, entries: u32) {
    let through =
        [f64::from(u8::from(pods > 1)) / f64::from(clos.cores()), f64::from(pods) / f64::from(clos.spines())];
    for (failure, share) in failures.iter_mut().zip(through) {
        failure.groups += share;
        failure.messages += share * f64::from(entries);
    }
}

/// The failure of a core and of a spine, on average, where so many WVE-S groups run. Tables have room for
/// all, as in figure 7d.
fn failures(clos: &Clos, (rules_max, redundancy_max): (u32, u32), sessions: u32, seed: u64) -> [Failure; 2] {
    let mut random = Random::new(seed);
    let tenants = tenants::tenants(clos, ScatteredAsRun, sessions, &mut random);
    let limits = |rules_max, redundancy_max| ElmoLimits {
        rules_max,
        switches_per_rule_max: 3,
        redundancy_max,
        table_size: u32::MAX,
    };
    let (of_pods, of_leafs) = (limits(2, 6), limits(rules_max, redundancy_max));
    let (mut pod_tables, mut leaf_tables) = (vec![0; clos.pods() as usize], vec![0; clos.leafs() as usize]);
    let mut coin = ElmoRandom::new(seed);
    let mut failures = [Failure::default(); 2];
    for tenant in &tenants {
        let mut hosts = tenant.hosts.clone();
        for _ in 0..tenant.groups {
            let size = tenants::group_size(Wve, hosts.len() as u32, &mut random) as usize;
            random.choose_first(&mut hosts, size);
            let ports = (clos.hosts_per_leaf(), clos.leafs_per_pod());
            let (pods, leafs, _) = bitmaps(&hosts[..size], ports);
            if leafs.len() < 2 {
                continue;
            }
            let pod_layer = encode_layer(&pods, &of_pods, &mut pod_tables, &mut coin);
            let leaf_layer = encode_layer(&leafs, &of_leafs, &mut leaf_tables, &mut coin);
            // An entry of a pod's logical spine is one at each of its spines.
            let spines = clos.spines_per_pod() * pod_layer.switch_rules.len() as u32;
            count(&mut failures, clos, pods.len() as u32, spines + leaf_layer.switch_rules.len() as u32);
        }
    }
    failures
}

/// Section 6.3 for the four settings of Elmo, in proportion to a million sessions.
#[must_use]
pub(super) fn rows(sessions: u32, options: &Options) -> Vec<Row> {
    let clos = papers_network();
    let scale = 1e6 / f64::from(sessions);
    let each = side_by_side::each(ELMO.len(), options.threads, |at| {
        failures(&clos, (ELMO[at].1, ELMO[at].2), sessions, options.seed)
    });
    let mut rows = Vec::new();
    for (at, what) in ["core", "spine"].into_iter().enumerate() {
        for ((setting, failures), papers) in ELMO.iter().zip(&each).zip(PAPERS) {
            let Failure { groups, messages } = failures[at];
            let name = format!("messages for the failure of a {what}, WVE-S, {}", setting.0);
            let note = format!(
                "a message for each switch that has an entry of a group through it, on Orca's network: {:.0} groups; the paper does not say \
                 what it counts",
                scale * groups
            );
            rows.push(Row::new(name, Some(papers[at]), scale * messages, "messages").note(note));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 2 pods with 2 spines each, and 4 cores. Three groups: one in both pods with entries at 6
    /// switches, one in one pod with 5, one in both with none.
    #[test]
    fn a_group_counts_at_the_switches_that_its_path_may_lead_through() {
        let clos = Clos::new(2, 2, 2, 2, 2).unwrap();
        assert_eq!((clos.cores(), clos.spines()), (4, 4));
        let mut failures = [Failure::default(); 2];
        for (pods, entries) in [(2, 6), (1, 5), (2, 0)] {
            count(&mut failures, &clos, pods, entries);
        }
        assert_eq!(failures[0], Failure { groups: 2.0 / 4.0, messages: 6.0 / 4.0 });
        assert_eq!(failures[1], Failure { groups: 5.0 / 4.0, messages: (2.0 * 6.0 + 5.0) / 4.0 });
    }

    /// More rules in packets and more redundancy leave fewer entries at switches, and so fewer messages: in
    /// the paper's order.
    #[test]
    fn fewer_entries_cost_fewer_messages() {
        let rows = rows(2_000, &Options { quick: true, seed: 1, threads: 2 });
        assert_eq!(rows.len(), 8);
        for of_layer in rows.chunks(4) {
            assert!(of_layer[3].ours > 0.0);
            assert!(of_layer.windows(2).all(|pair| pair[0].ours > pair[1].ours), "{of_layer:?}");
            assert!(of_layer.windows(2).all(|pair| pair[0].paper > pair[1].paper));
        }
    }
}
