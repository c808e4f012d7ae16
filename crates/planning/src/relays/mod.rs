//! Assignment of relays to sources in a Shufflecast (Shufflecast, sections III-A3 to III-C and appendix A).
//!
//! A rule (relay, source) makes a ToR send the packets of that source into its splitter. The rules are
//! static: for source (c, r) all ToRs of partition `r_{k-1-j}` of column c + j relay, for j = 0 .. k-1. After
//! failures a [`Recovery`] switches some rules; the rest of the table stays as it was installed.
//!
//! The relays of a source form a tree and one arc back to the source, which gets its own packet once after k
//! hops. Its own rule must therefore match only packets from its servers, or they circle without an end.

mod recovery;
mod sharing;
mod wired;

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use polycast_topology::Shufflecast;

pub use recovery::{Recovery, algorithm_2, recover, recover_source};
pub use sharing::{PartitionTable, fair_shares};
pub use wired::{Entry, entries, way};

/// Stands for "not reached" among hop counts.
pub const UNREACHED: u32 = u32::MAX;

/// A ToR that the network does not have, or too many failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// The ToR's number is too high.
    #[error("ToR {tor} is out of range: this Shufflecast has ToRs 0 to {last}")]
    TorRange {
        /// The refused ToR.
        tor: u64,
        /// The last ToR.
        last: u32,
    },
}

/// A ToR's number, if the network has it.
///
/// # Errors
/// If the number is too high.
pub fn checked_tor(network: &Shufflecast, tor: u64) -> Result<u32, RelayError> {
    if tor < network.tors().into() {
        Ok(tor as u32)
    } else {
        Err(RelayError::TorRange { tor, last: network.tors() - 1 })
    }
}

/// The next relay on the way from `source` to `destination`, seen from `current` (Algorithm 1).
///
/// With X hops to go within this cycle, the X-th digit of the destination's row is appended if the rest
/// already matches; else a digit of the source's row, so that the relays stay in the source's partitions.
#[must_use]
pub fn next_hop(network: &Shufflecast, source: u32, destination: u32, current: u32) -> u32 {
    let (p, k) = (network.fanout(), network.columns());
    let hops_to_go = match (network.column(destination) + k - network.column(current)) % k {
        0 => k,
        difference => difference,
    };
    let high_digits = network.row(destination) / p.pow(hops_to_go);
    let low_digits = network.row(current) % p.pow(k - hops_to_go);
    let digit = if hops_to_go == k || high_digits == low_digits {
        network.digit(network.row(destination), hops_to_go - 1)
    } else {
        let gone = (network.column(current) + k - network.column(source)) % k;
        network.digit(network.row(source), k - 1 - gone)
    };
    network.first_child(current) + digit
}

/// The ToRs on the way from a source to a destination, both included (Algorithm 1).
#[must_use]
pub fn route(network: &Shufflecast, source: u32, destination: u32) -> Vec<u32> {
    let mut route = vec![source];
    let mut current = source;
    while current != destination {
        current = next_hop(network, source, destination, current);
        route.push(current);
        debug_assert!(route.len() as u32 <= 2 * network.columns(), "at most 2k - 1 hops");
    }
    route
}

/// The partition that relays for `source` in `column` (Lemma 2).
#[must_use]
#[inline]
pub fn relaying_partition(network: &Shufflecast, source: u32, column: u32) -> u32 {
    let k = network.columns();
    let gone = (column + k - network.column(source)) % k;
    network.digit(network.row(source), k - 1 - gone)
}

/// Returns true if the static rules make `relay` relay for `source`.
#[must_use]
#[inline]
pub fn is_relay(network: &Shufflecast, relay: u32, source: u32) -> bool {
    relaying_partition(network, source, network.column(relay)) == network.partition(relay)
}

/// The relay set of a source by the static rules, in rising order: one partition of every column.
#[must_use]
pub fn relay_set(network: &Shufflecast, source: u32) -> Vec<u32> {
    let size = network.partition_size();
    (0..network.columns())
        .flat_map(|column| {
            let first = network.tor(column, relaying_partition(network, source, column) * size);
            first..first + size
        })
        .collect()
}

/// The static rules of every ToR: the sources that it relays for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticRules {
    sources: Vec<u32>,
    rules_per_tor: u32,
}

impl StaticRules {
    /// Computes the rules of all ToRs.
    #[must_use]
    pub fn new(network: &Shufflecast) -> Self {
        let (p, k, size) = (network.fanout(), network.columns(), network.partition_size());
        let rules_per_tor = k * size;
        let mut sources = Vec::with_capacity(network.tors() as usize * rules_per_tor as usize);
        for relay in 0..network.tors() {
            let partition = network.partition(relay);
            for column in 0..k {
                // The sources of this column whose digit for the relay's column is the relay's partition.
                let place = k - 1 - (network.column(relay) + k - column) % k;
                let weight = p.pow(place);
                let first = network.tor(column, partition * weight);
                for high in 0..size / weight {
                    let start = first + high * weight * p;
                    sources.extend(start..start + weight);
                }
            }
        }
        StaticRules { sources, rules_per_tor }
    }

    /// Returns the number of rules of every ToR: k p^(k-1).
    #[must_use]
    pub fn rules_per_tor(&self) -> u32 {
        self.rules_per_tor
    }

    /// The sources that a ToR relays for, in rising order.
    #[must_use]
    pub fn sources(&self, relay: u32) -> &[u32] {
        let start = relay as usize * self.rules_per_tor as usize;
        &self.sources[start..start + self.rules_per_tor as usize]
    }
}

/// ToRs that the packets of one source reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Hops from the source, by ToR; [`UNREACHED`] where no packet arrives.
    pub hops: Vec<u32>,
    /// Number of copies of a packet that arrive, by ToR.
    pub copies: Vec<u32>,
}

impl Reach {
    /// The ToRs that get nothing, in rising order.
    #[must_use]
    pub fn unreachable(&self) -> Vec<u32> {
        (0..self.hops.len() as u32).filter(|&tor| self.hops[tor as usize] == UNREACHED).collect()
    }

    /// The hops to the farthest ToR that is reached.
    #[must_use]
    pub fn max_hops(&self) -> u32 {
        self.hops.iter().copied().filter(|&hops| hops != UNREACHED).max().unwrap_or(0)
    }

    /// The mean of the hops to all ToRs that are reached but the source.
    #[must_use]
    pub fn mean_hops(&self) -> f64 {
        let reached = self.hops.iter().filter(|&&hops| hops != UNREACHED && hops != 0);
        let (sum, count) = reached.fold((0u64, 0u64), |(sum, n), &hops| (sum + u64::from(hops), n + 1));
        if count == 0 { 0.0 } else { sum as f64 / count as f64 }
    }
}

/// Follows the packets of `source` over the relays for which `relays` holds.
pub fn walk(network: &Shufflecast, source: u32, relays: impl Fn(u32) -> bool) -> Reach {
    let mut hops = vec![UNREACHED; network.tors() as usize];
    let mut copies = vec![0; network.tors() as usize];
    hops[source as usize] = 0;
    let mut queue = vec![source];
    let mut head = 0;
    while head < queue.len() {
        let tor = queue[head];
        head += 1;
        if !relays(tor) {
            continue;
        }
        for child in network.children(tor) {
            copies[child as usize] += 1;
            if hops[child as usize] == UNREACHED {
                hops[child as usize] = hops[tor as usize] + 1;
                queue.push(child);
            }
        }
    }
    Reach { hops, copies }
}

/// Computes which ToRs the packets of a source reach by the static rules while some ToRs cannot relay.
///
/// A failed ToR still receives: only its way into its splitter has failed.
#[must_use]
pub fn reach_before_recovery(network: &Shufflecast, source: u32, failed: &BTreeSet<u32>) -> Reach {
    walk(network, source, |tor| !failed.contains(&tor) && is_relay(network, tor, source))
}

/// For how many sources a single failure leaves how many ToRs unreached, as (unreached, sources).
///
/// All ToRs are alike in this, so ToR 0 fails; the failed ToR counts as a source too.
#[must_use]
pub fn loss_distribution(network: &Shufflecast) -> Vec<(u32, u32)> {
    let failed = BTreeSet::from([0]);
    let mut losses: Vec<u32> = (0..network.tors())
        .map(|source| reach_before_recovery(network, source, &failed).unreachable().len() as u32)
        .collect();
    losses.sort_unstable();
    losses.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u32)).collect()
}

#[cfg(test)]
mod tests;
