//! Fabric that a request gets, as a case expects it: the choice by estimated time (`planning::choice`) once
//! more, from the leases and from the table of docs/planning.md, by an arithmetic of its own.

use super::office::Settings;
use crate::coverage::{self, Coverage};
use crate::draw::Random;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use polycast_planning::estimate::Learned;
use polycast_planning::{Failure, PlanId, Resource};
use polycast_protocol::leases::{Grant, LeaseView, Leases, RequestKey};
use polycast_types::{Duration, Time};

/// Criterion for the choice between fabrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choose {
    /// Their order.
    Order,
    /// Duration of the transfer; with the wait for one that is in use, or without.
    Time { waits: bool },
}

impl Choose {
    /// Most managers have the default, and none of the other draws of a seed depends on which one this is.
    pub(super) fn draw(seed: u64) -> Self {
        match Random::new(!seed).below(8) {
            0..3 => Choose::Order,
            3 => Choose::Time { waits: false },
            _ => Choose::Time { waits: true },
        }
    }

    pub(super) fn is_by_time(self) -> bool {
        matches!(self, Choose::Time { .. })
    }
}

const LINK_BPS: u64 = 1_000_000_000;
const CIRCUITS_BPS: u64 = 1_000_000_000;
const MILLI: u64 = 1_000_000;
/// A chain's receivers pass on so many bytes at a time.
const CHAIN_BYTES: u64 = 262_144;
/// Factors are in parts of this, and nothing is known of a fabric that was heard of longer ago.
const ONE: u64 = 65_536;
const FORGOTTEN: Duration = Duration::from_secs(3_600);
/// Rounding.
const NEAR_NS: u64 = 1_000;

/// A transfer that is about to begin.
struct Transfer {
    receivers: u64,
    /// Transfers that share the link of one of its hosts.
    company: u64,
}

fn nanos(bytes: u64, bps: u64) -> u64 {
    (u128::from(bytes) * 8 * 1_000_000_000 / u128::from(bps.max(1))) as u64
}

impl Transfer {
    /// Set-up and carrying, as assumed. Circuits that are kept ready take no time.
    fn assumed(&self, fabric: &str, bytes: u64, is_ready: bool) -> Option<(u64, u64)> {
        let session = (4 + self.receivers) * MILLI;
        let share = LINK_BPS / (self.company + 1);
        Some(match fabric {
            "ocs" if is_ready => (session, nanos(bytes, CIRCUITS_BPS)),
            "ocs" => (session.max(25 * MILLI), nanos(bytes, CIRCUITS_BPS)),
            "ip-multicast" => (session, nanos(bytes, share)),
            "tcp-chain" => {
                let hop = MILLI + nanos(bytes.min(CHAIN_BYTES), share);
                (session, nanos(bytes, share) + hop * (self.receivers - 1))
            }
            _ => return None,
        })
    }

    /// The same with what was learned of the fabric.
    fn expected(&self, fabric: &str, bytes: u64, is_ready: bool, learned: &Factors) -> Option<u64> {
        let (set_up, carrying) = self.assumed(fabric, bytes, is_ready)?;
        let (first, second) = learned.get(fabric).copied().unwrap_or((ONE, ONE));
        let times =
            |nanos: u64, factor: u64| (u128::from(nanos) * u128::from(factor) / u128::from(ONE)) as u64;
        Some(times(set_up, first) + times(carrying, second))
    }
}

type Factors = BTreeMap<String, (u64, u64)>;

/// Checks that the learned factors of fabrics stay within a quarter and four times of the assumed values.
pub(super) fn check_factors(manager: &Leases) -> Result<(), String> {
    let is_far = |factor: u64| !(ONE / 4..=ONE * 4).contains(&factor);
    match manager.learned().find(|learned| is_far(learned.set_up) || is_far(learned.carrying)) {
        Some(wrong) => Err(format!("a factor has left its bounds: {wrong:?}")),
        None => Ok(()),
    }
}

/// Looks at a path that a manager has just granted: no other fabric that was free would have been clearly
/// faster.
pub(super) fn check_grant(
    manager: &Leases,
    settings: &Settings,
    now: Time,
    granted: PlanId,
    asked: &BTreeMap<RequestKey, u64>,
    coverage: &mut Coverage,
) -> Result<(), String> {
    let Some(lease) = manager.leases().find(|lease| lease.grant.plan_id == granted) else { return Ok(()) };
    let Some(object_bytes) = asked.get(lease.key).copied().filter(|_| settings.choose.is_by_time()) else {
        return Ok(());
    };
    let grant = lease.grant;
    let own: &str = &grant.plan.fabric;
    let transfer = transfer(manager, &lease);
    let is_fresh = |learned: &&Learned| now.since(learned.at) < FORGOTTEN;
    let known = manager.learned().filter(is_fresh);
    let learned: Factors = known.map(|one| (one.fabric.into(), (one.set_up, one.carrying))).collect();
    let told = grant.estimate.map_or(u64::MAX, |estimate| estimate.0);
    let is_told = |is_ready: &bool| {
        let expected = transfer.expected(own, grant.accepted_bytes, *is_ready, &learned);
        expected.is_some_and(|expected| expected.abs_diff(told) <= NEAR_NS)
    };
    let Some(is_ready) = [true, false].into_iter().find(is_told) else {
        let each = [true, false].map(|ready| transfer.expected(own, grant.accepted_bytes, ready, &learned));
        return Err(format!("{granted:?} over {own} is estimated {told} ns, and should be one of {each:?}"));
    };
    coverage.hit(coverage::CHOSEN_BY_TIME);
    if !learned.is_empty() {
        coverage.hit(coverage::CHOSEN_AS_LEARNED);
    }
    if grant.passed_over.iter().any(|passed| passed.why.contains("estimated ")) {
        coverage.hit(coverage::SLOWER_PASSED);
    }
    let takes = transfer.expected(own, object_bytes, is_ready, &learned).unwrap_or_default();
    for other in ["ip-multicast", "tcp-chain"].into_iter().filter(|other| *other != own) {
        if !is_free(manager, settings, grant, other) {
            continue;
        }
        let others = transfer.expected(other, object_bytes, true, &learned).unwrap_or_default();
        if takes > others + (10 * MILLI).max(others / 8) {
            return Err(format!(
                "{granted:?} for {object_bytes} bytes went over {own}, {takes} ns, and {other} was free, {others} ns"
            ));
        }
    }
    Ok(())
}

/// Returns the transfer that the estimate of a path goes by: paths that were leased before it share its
/// hosts' links.
fn transfer(manager: &Leases, lease: &LeaseView<'_>) -> Transfer {
    let own = lease.grant.plan_id;
    let hosts = |lease: &LeaseView<'_>| {
        let receivers = lease.grant.receiver_names().cloned();
        receivers.chain([lease.key.agent.name.clone()]).collect::<alloc::vec::Vec<String>>()
    };
    let mut company: BTreeMap<String, u64> = BTreeMap::new();
    let before =
        |lease: &LeaseView<'_>| lease.grant.plan_id < own && lease.grant.plan.channel.own_rate().is_none();
    for host in manager.leases().filter(before).flat_map(|other| hosts(&other)) {
        *company.entry(host).or_default() += 1;
    }
    let of = hosts(lease);
    let most = of.iter().filter_map(|host| company.get(host)).max().copied().unwrap_or(0);
    Transfer { receivers: of.len() as u64 - 1, company: most }
}

/// Returns true if a fabric could have carried it just then, as far as that can be seen afterwards.
fn is_free(manager: &Leases, settings: &Settings, grant: &Grant, fabric: &str) -> bool {
    let is_refused = |why: &str| !why.contains("estimated ");
    if grant.passed_over.iter().any(|passed| &*passed.fabric == fabric && is_refused(&passed.why)) {
        return false;
    }
    match fabric {
        // A chain holds nothing.
        "tcp-chain" => settings.chain,
        "ip-multicast" => (0..settings.addresses).any(|number| {
            let address =
                Resource::MulticastAddress { address: [239, 255, 64, number as u8].into(), port: 7410 };
            let is_out = manager.out_of_use().any(|(what, _)| what == Failure::Resource(address));
            !is_out && !manager.leases().any(|lease| lease.grant.plan.resources.contains(&address))
        }),
        _ => false,
    }
}
