//! Estimates of the time that a transfer will take over a plan, by which one of several fabrics is chosen
//! (Republic section III-B leaves the choice to the manager; Blast section IV-A estimates service times in
//! the same way).
//!
//! An estimate has two parts. *Set-up* is the time until all receivers can take the object: the session with
//! each of them, and beside it the work of the devices. *Carrying* is the time of the bytes: at the path's
//! own rate, or at that of the host's link, which transfers share, and for the way between source and
//! receivers. All times are whole nanoseconds, all rates bits a second; a time that does not fit is the
//! longest time that there is, so that no size and no setting can make it panic.
//!
//! The assumptions are coarse. Transfers that have gone well correct them: [`Estimator::learn`] has one
//! factor for either part of each fabric. A factor moves a quarter of the way to the observed one, and stays
//! within a quarter and four times the assumption: agents report how long transfers took, and one that lies
//! cannot steer far. The learned factors are a record of the manager's ([`Estimator::resume`]): its successor
//! goes on with them.

use crate::fabric_name::FabricName;
use crate::network_state::NetworkState;
use crate::plan::{Channel, DeviceCommand, Group, Plan, Resource, TreeRoutes};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_types::{Duration, Rate, Time};
use serde::{Deserialize, Serialize};

/// A session's beginning, and what each receiver adds to it: docs/measurements.md has 8 to 13 ms for 1 KiB to
/// 8 receivers.
const SESSION: Duration = Duration::from_millis(4);
const RECEIVER: Duration = Duration::from_millis(1);
/// A receiver of a chain passes on what it has verified, a group at a time.
const GROUP_BYTES: u64 = 256 << 10;
/// Time that a further host of a chain takes beside that: it has to reach the one before it.
const CHAIN_HOP: Duration = Duration::from_millis(1);
/// Time that a relay or a forwarder on the way adds. It makes of two equal ways the shorter one the better.
const HOP: Duration = Duration::from_micros(100);

/// Factors are in parts of this.
const ONE: u64 = 1 << 16;
/// The least and the largest factor.
const FACTORS: (u64, u64) = (ONE / 4, ONE * 4);
/// A factor moves by one of so many parts of the way to what was seen.
const INERTIA: i128 = 4;
/// Set-up is learned of transfers whose bytes take at most so many times as long, and the rate of those whose
/// bytes take at least so many times as long: what varies in one part is not taken for the other.
const SPLIT: (u64, u64) = (4, 8);
/// Time without confirmation after which factors no longer count.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);
/// Fabrics that something is known of: a network has fewer.
const LEARNED_MAX: usize = 64;

/// Assumptions about a network that its plans do not contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assumed {
    /// Rate of a host's link, where a path has none of its own.
    pub link_rate: Rate,
    /// Time that a circuit switch takes to make circuits.
    pub circuits: Duration,
    /// Time until switches and agents of racks hold rules or labels.
    pub rules: Duration,
}

impl Default for Assumed {
    /// A link of 1 Gbit/s; circuits as fast as Blast's (section IV-B); rules within the time of a session.
    fn default() -> Self {
        let (circuits, rules) = (Duration::from_millis(25), Duration::from_millis(5));
        Assumed { link_rate: Rate(1_000_000_000), circuits, rules }
    }
}

/// Time that a transfer takes over a plan, as far as is assumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Estimate {
    /// Until all receivers can take the object.
    pub set_up: Duration,
    /// From then on.
    pub carrying: Duration,
}

/// Corrections of the assumptions for one fabric: factors in parts of 65,536.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Learned {
    /// The fabric.
    pub fabric: FabricName,
    /// Time of set-up, relative to the assumption.
    pub set_up: u64,
    /// Time of the bytes, relative to the assumption.
    pub carrying: u64,
    /// Time of the last observation.
    pub at: Time,
}

impl Learned {
    /// Returns true if both factors are within a quarter and four times.
    #[must_use]
    pub fn is_within_bounds(&self) -> bool {
        [self.set_up, self.carrying].iter().all(|factor| (FACTORS.0..=FACTORS.1).contains(factor))
    }
}

/// Estimates transfers, and learns of those that have ended.
#[derive(Clone, Default, Debug)]
pub struct Estimator {
    assumed: Assumed,
    learned: BTreeMap<FabricName, Learned>,
}

impl Estimator {
    /// One that has seen nothing yet.
    #[must_use]
    pub fn new(assumed: Assumed) -> Self {
        Estimator { assumed, learned: BTreeMap::new() }
    }

    /// Returns the assumed time of `bytes` bytes over a plan that `network` does not hold yet. `is_ready`:
    /// devices hold it already.
    #[must_use]
    pub fn assume(
        &self,
        network: &NetworkState,
        plan: &Plan,
        group: &Group,
        bytes: u64,
        is_ready: bool,
    ) -> Estimate {
        let receivers = group.receivers.len() as u64;
        let session = session_of(group);
        let devices = if is_ready { Duration::ZERO } else { self.devices(&plan.commands) };
        let sharing = u64::from(network.company_of(group)).saturating_add(1);
        let share = |rate: Rate| Rate(rate.0 / sharing);
        let carrying = match &plan.channel {
            Channel::Multicast { rate, .. } | Channel::Label { rate, .. } => {
                let rate = rate.unwrap_or_else(|| share(self.assumed.link_rate));
                rate.time_for(bytes) + HOP * relaying_columns(plan)
            }
            Channel::SourceRoutes { pulling, trees, .. } => {
                let (trees, hops) = (trees_of_all(trees, group), longest_way(trees));
                let rate = Rate(pulling.link_rate.0.saturating_mul(trees));
                share(rate).time_for(bytes) + HOP * hops
            }
            Channel::Chain { .. } => {
                let rate = share(self.assumed.link_rate);
                let hop = CHAIN_HOP + rate.time_for(bytes.min(GROUP_BYTES));
                rate.time_for(bytes) + hop * receivers.saturating_sub(1)
            }
        };
        // The manager answers at once, and devices work while source and receivers meet.
        Estimate { set_up: session.max(devices), carrying }
    }

    /// Whatever its plan is, a fabric takes at least so long for a group: the session with all receivers.
    #[must_use]
    pub fn least(&self, now: Option<Time>, fabric: FabricName, group: &Group) -> Duration {
        scaled(session_of(group), self.factors(now, fabric).0)
    }

    /// Returns the time that the devices of a plan take; they are configured at the same time.
    fn devices(&self, commands: &[DeviceCommand]) -> Duration {
        let of = |command: &DeviceCommand| match command {
            DeviceCommand::CrossConnect { .. } => self.assumed.circuits,
            DeviceCommand::RackRule { .. }
            | DeviceCommand::RelayRule { .. }
            | DeviceCommand::SpineEntry { .. }
            | DeviceCommand::LeafDoor { .. }
            | DeviceCommand::LeafLabel { .. } => self.assumed.rules,
        };
        commands.iter().map(of).max().unwrap_or(Duration::ZERO)
    }

    /// The same with what is known of the fabric: when the transfer ends if it begins now. Without the time
    /// nothing is known.
    #[must_use]
    pub fn expect(&self, now: Option<Time>, fabric: FabricName, assumed: Estimate) -> Duration {
        let (set_up, carrying) = self.factors(now, fabric);
        scaled(assumed.set_up, set_up) + scaled(assumed.carrying, carrying)
    }

    fn factors(&self, now: Option<Time>, fabric: FabricName) -> (u64, u64) {
        let is_fresh = |learned: &&Learned| now.is_some_and(|now| now.since(learned.at) < FORGOTTEN_AFTER);
        let learned = self.learned.get(&fabric).filter(is_fresh);
        learned.map_or((ONE, ONE), |learned| (learned.set_up, learned.carrying))
    }

    /// A transfer of which `assumed` was assumed has taken so long from its grant to its end. Small objects
    /// teach how long set-up takes, large ones the rate, and those between nothing. Gives whether anything
    /// was learned.
    pub fn learn(&mut self, now: Time, fabric: FabricName, assumed: Estimate, took: Duration) -> bool {
        if !self.learned.contains_key(&fabric) && self.learned.len() >= LEARNED_MAX {
            return false;
        }
        let (mut set_up, mut carrying) = self.factors(Some(now), fabric);
        let parts = (scaled(assumed.set_up, set_up), scaled(assumed.carrying, carrying));
        if assumed.carrying <= assumed.set_up * SPLIT.0 {
            set_up = moved(set_up, assumed.set_up, took.0.saturating_sub(parts.1.0));
        } else if assumed.carrying >= assumed.set_up * SPLIT.1 {
            carrying = moved(carrying, assumed.carrying, took.0.saturating_sub(parts.0.0));
        } else {
            return false;
        }
        self.learned.insert(fabric, Learned { fabric, set_up, carrying, at: now });
        true
    }

    /// Returns the learned factors, fabric by fabric.
    pub fn learned(&self) -> impl Iterator<Item = &Learned> {
        self.learned.values()
    }

    /// Goes on with what an earlier manager has learned: with all of it, or with nothing.
    ///
    /// # Errors
    /// It cannot have been learned: in a sentence.
    pub fn resume(&mut self, now: Time, learned: Vec<Learned>) -> Result<(), String> {
        let count = learned.len();
        if count > LEARNED_MAX {
            return Err(format!("it is about {count} fabrics, and at most {LEARNED_MAX} are learned about"));
        }
        if let Some(wrong) = learned.iter().find(|learned| !learned.is_within_bounds()) {
            let times = |factor: u64| format!("{}.{:02}", factor / ONE, factor % ONE * 100 / ONE);
            return Err(format!(
                "it says that '{}' takes {} times what is assumed for its set-up and {} times for its bytes, and both can only be 0.25 to 4 times",
                wrong.fabric,
                times(wrong.set_up),
                times(wrong.carrying)
            ));
        }
        // Clocks of managers differ by a little, and nothing was seen later than now.
        let told = learned.into_iter().map(|one| (one.fabric, Learned { at: one.at.min(now), ..one }));
        let all: BTreeMap<FabricName, Learned> = told.collect();
        if all.len() < count {
            return Err(String::from("it says of one fabric twice how long it takes"));
        }
        self.learned = all;
        Ok(())
    }
}

/// A factor after `assumed` has been `seen`, in nanoseconds.
fn moved(factor: u64, assumed: Duration, seen: u64) -> u64 {
    if assumed.0 == 0 {
        return factor;
    }
    let (least, most) = FACTORS;
    let wanted = u128::from(seen) * u128::from(ONE) / u128::from(assumed.0);
    let wanted = u64::try_from(wanted).unwrap_or(most).clamp(least, most);
    let step = (i128::from(wanted) - i128::from(factor)) / INERTIA;
    u64::try_from(i128::from(factor) + step).unwrap_or(least).clamp(least, most)
}

/// Returns the time that it takes to meet all receivers.
fn session_of(group: &Group) -> Duration {
    SESSION + RECEIVER * group.receivers.len() as u64
}

/// Returns the least number of trees that lead to a receiver, at least one.
fn trees_of_all(trees: &[TreeRoutes], group: &Group) -> u64 {
    let mut ways: BTreeMap<_, u64> = group.receivers.iter().map(|host| (*host, 0)).collect();
    for (host, _) in trees.iter().flat_map(|tree| &tree.routes) {
        if let Some(count) = ways.get_mut(host) {
            *count += 1;
        }
    }
    ways.into_values().min().unwrap_or(1).max(1)
}

fn longest_way(trees: &[TreeRoutes]) -> u64 {
    trees.iter().flat_map(|tree| &tree.routes).map(|(_, way)| way.len() as u64).max().unwrap_or(0)
}

/// The columns of relays that a plan's packets pass one after the other.
fn relaying_columns(plan: &Plan) -> u64 {
    let column = |resource: &Resource| match resource {
        Resource::RelayPartition { column, .. } => Some(*column),
        _ => None,
    };
    plan.resources.iter().filter_map(column).collect::<BTreeSet<u32>>().len() as u64
}

fn scaled(span: Duration, factor: u64) -> Duration {
    let nanos = u128::from(span.0) * u128::from(factor) / u128::from(ONE);
    Duration(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// A span in words such as `2.4 s` or `12 ms`.
pub(crate) fn words(span: Duration) -> String {
    let micros = span.0 / 1_000;
    match micros {
        0..100_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        100_000..1_000_000 => format!("{} ms", micros / 1_000),
        1_000_000..100_000_000 => format!("{}.{:02} s", micros / 1_000_000, micros % 1_000_000 / 10_000),
        _ => format!("{} s", micros / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network_state::Running;
    use crate::plan::{HostId, PlanId, RackPort};
    use crate::shared::Uses;
    use crate::tcp_chain::TcpChain;
    use alloc::vec;

    const FABRIC: FabricName = TcpChain::NAME;

    fn group(receivers: u32) -> Group {
        Group::of_one(HostId(0), (1..=receivers).map(HostId).collect())
    }

    fn plan(channel: Channel, commands: Vec<DeviceCommand>) -> Plan {
        Plan {
            fabric: FABRIC,
            resources: Vec::new(),
            uses: Uses::default(),
            commands: commands.into(),
            channel,
        }
    }

    fn multicast(rate: Option<Rate>) -> Channel {
        Channel::Multicast { group: ([239, 1, 1, 1].into(), 7), rate, attempt_interval: Duration::ZERO }
    }

    fn chain() -> Channel {
        Channel::Chain { order: Vec::new() }
    }

    fn circuit() -> DeviceCommand {
        DeviceCommand::CrossConnect { from: 1, to: 2 }
    }

    fn rule() -> DeviceCommand {
        let (from, to) = (RackPort::Circuit(0), Vec::new());
        DeviceCommand::RackRule { rack: 0, group: [239, 1, 1, 1].into(), from, to }
    }

    fn total(estimate: Estimate) -> u64 {
        (estimate.set_up + estimate.carrying).0
    }

    /// By hand, in microseconds: set-up and carrying of 1 MB.
    #[test]
    fn parts_are_those_of_the_table() {
        let estimator = Estimator::new(Assumed {
            link_rate: Rate(1_000_000_000),
            circuits: Duration::from_millis(25),
            rules: Duration::from_millis(7),
        });
        let fast = Some(Rate(10_000_000_000));
        let table = [
            // 1 MB is 8 ms at 1 Gbit/s and 0.8 ms at 10.
            (multicast(None), vec![], 1, false, 5_000, 8_000),
            (multicast(None), vec![], 8, false, 12_000, 8_000),
            (multicast(fast), vec![circuit(), rule()], 1, false, 25_000, 800),
            (multicast(fast), vec![circuit(), rule()], 1, true, 5_000, 800),
            (multicast(fast), vec![circuit()], 40, false, 44_000, 800),
            (multicast(fast), vec![rule()], 1, false, 7_000, 800),
            (chain(), vec![], 1, false, 5_000, 8_000),
            // Two hops more, each 1 ms and 256 KiB at 1 Gbit/s, which is 2,097.152 microseconds.
            (chain(), vec![], 3, false, 7_000, 14_194),
        ];
        for (channel, commands, receivers, is_ready, set_up, carrying) in table {
            let plan = plan(channel, commands);
            let network = NetworkState::default();
            let estimate = estimator.assume(&network, &plan, &group(receivers), 1_000_000, is_ready);
            let micros = (estimate.set_up.0 / 1_000, estimate.carrying.0 / 1_000);
            assert_eq!(micros, (set_up, carrying), "{plan:?} {receivers}");
        }
    }

    #[test]
    fn more_bytes_and_more_receivers_never_take_less() {
        let estimator = Estimator::default();
        let rates = [None, Some(Rate(0)), Some(Rate(1)), Some(Rate(1_000_000)), Some(Rate(u64::MAX))];
        let channels = rates.into_iter().map(multicast).chain([chain()]);
        let sizes = [0, 1, 1_000, GROUP_BYTES, GROUP_BYTES + 1, 1 << 40, u64::MAX];
        for channel in channels {
            let plan = plan(channel, vec![circuit()]);
            let of = |receivers: u32, bytes: u64| {
                total(estimator.assume(&NetworkState::default(), &plan, &group(receivers), bytes, false))
            };
            for receivers in 1..40 {
                for pair in sizes.windows(2) {
                    assert!(
                        of(receivers, pair[0]) <= of(receivers, pair[1]),
                        "{plan:?} {receivers} {pair:?}"
                    );
                }
                for bytes in sizes {
                    assert!(of(receivers, bytes) <= of(receivers + 1, bytes), "{plan:?} {receivers} {bytes}");
                }
            }
        }
    }

    #[test]
    fn those_who_share_a_link_have_a_part_of_it() {
        let estimator = Estimator::default();
        let mut network = NetworkState::default();
        let carrying = |network: &NetworkState, channel: Channel, group: &Group| {
            estimator.assume(network, &plan(channel, Vec::new()), group, 1_000_000, true).carrying.as_millis()
        };
        assert!(network.hold(PlanId(1), group(1), plan(multicast(None), Vec::new())));
        let apart = Group::of_one(HostId(7), [HostId(8)].into());
        for channel in [chain(), multicast(None)] {
            assert_eq!(carrying(&network, channel.clone(), &group(1)), 16);
            assert_eq!(carrying(&network, channel, &apart), 8);
        }
        // Neither what has its own rate nor what carries next to nothing takes part of it.
        assert!(network.hold(PlanId(2), group(1), plan(multicast(Some(Rate(9))), Vec::new())));
        assert_eq!(carrying(&network, chain(), &group(1)), 16);
        network.set_quiet(PlanId(1));
        assert_eq!(carrying(&network, chain(), &group(1)), 8);
        assert!(network.release(PlanId(1)).is_some());
        assert!(network.hold(PlanId(1), group(1), plan(chain(), Vec::new())));
        assert_eq!(carrying(&network, chain(), &group(1)), 16);
        let Some(Running { .. }) = network.release(PlanId(1)) else { panic!("it is held") };
        assert_eq!(carrying(&network, chain(), &group(1)), 8);
    }

    const SMALL: Estimate =
        Estimate { set_up: Duration::from_millis(10), carrying: Duration::from_millis(1) };
    const LARGE: Estimate =
        Estimate { set_up: Duration::from_millis(10), carrying: Duration::from_millis(1_000) };

    #[test]
    fn small_objects_teach_set_up_and_large_ones_the_rate() {
        let mut estimator = Estimator::default();
        for second in 0..40 {
            estimator.learn(Time(second), FABRIC, SMALL, Duration::from_millis(21));
        }
        // Set-up is 20 ms now, and the rate as before.
        let expected = |estimator: &Estimator, of| estimator.expect(Some(Time(40)), FABRIC, of).as_millis();
        assert!((20..=21).contains(&expected(&estimator, SMALL)));
        assert!((1_019..=1_021).contains(&expected(&estimator, LARGE)), "{estimator:?}");
        for second in 0..40 {
            estimator.learn(Time(second), FABRIC, LARGE, Duration::from_millis(520));
        }
        assert!((519..=521).contains(&expected(&estimator, LARGE)), "{estimator:?}");
        assert!((20..=21).contains(&expected(&estimator, SMALL)));
        // One between the two tells nothing.
        let between = Estimate { set_up: Duration::from_millis(10), carrying: Duration::from_millis(60) };
        estimator.learn(Time(39), FABRIC, between, Duration::from_millis(4_000));
        assert!((519..=521).contains(&expected(&estimator, LARGE)), "{estimator:?}");
        // Of another fabric nothing is known, and after an hour of this one neither.
        assert_eq!(estimator.expect(Some(Time(40)), FabricName::new("other"), LARGE).as_millis(), 1_010);
        let later = Time(40) + FORGOTTEN_AFTER;
        assert_eq!(estimator.expect(Some(later), FABRIC, LARGE).as_millis(), 1_010);
        assert_eq!(estimator.expect(None, FABRIC, LARGE).as_millis(), 1_010);
    }

    #[test]
    fn a_lie_moves_an_estimate_by_a_quarter_at_a_time_and_four_times_at_most() {
        for (took, first, last) in [(0, 822, 260), (u64::MAX, 1_760, 4_010)] {
            let mut estimator = Estimator::default();
            estimator.learn(Time(0), FABRIC, LARGE, Duration(took));
            let after_one = estimator.expect(Some(Time(0)), FABRIC, LARGE).as_millis();
            for _ in 0..1_000 {
                for of in [LARGE, Estimate { set_up: Duration(0), carrying: Duration(0) }] {
                    estimator.learn(Time(0), FABRIC, of, Duration(took));
                }
            }
            let after_all = estimator.expect(Some(Time(0)), FABRIC, LARGE).as_millis();
            assert!((first - 2..=first + 2).contains(&after_one), "{took}: {after_one}");
            assert!((last - 2..=last + 10).contains(&after_all), "{took}: {after_all}");
            estimator.learn(
                Time(0),
                FABRIC,
                Estimate { set_up: Duration(u64::MAX), carrying: Duration(1) },
                Duration(1),
            );
            let most = Estimate { set_up: Duration(u64::MAX), carrying: Duration(u64::MAX) };
            assert!(estimator.expect(Some(Time(0)), FABRIC, most).0 >= u64::MAX / 4);
        }
    }

    #[test]
    fn what_is_learned_of_is_bounded() {
        let mut estimator = Estimator::default();
        for number in 0..1_000 {
            let name = format!("f{number}").parse().unwrap();
            estimator.learn(Time(0), name, LARGE, Duration(1));
        }
        assert_eq!(estimator.learned.len(), LEARNED_MAX);
    }

    #[test]
    fn spans_have_words() {
        let said = [(0, "0.0 ms"), (1_250_000, "1.2 ms"), (350_000_000, "350 ms"), (2_408_000_000, "2.40 s")];
        for (nanos, text) in said {
            assert_eq!(words(Duration(nanos)), text);
        }
        assert_eq!(words(Duration(600_000_000_000)), "600 s");
    }
}
