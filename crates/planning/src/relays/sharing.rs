//! Several sources at the same time (Shufflecast, lemmas 3 and 4 and section IV-C).

use alloc::vec;
use alloc::vec::Vec;

use polycast_topology::Shufflecast;

use super::relaying_partition;

/// The max-min fair rate of each active source, as a fraction of the line rate.
///
/// All relays of a partition carry the same sources, so a source has one share in one partition of each
/// column.
#[must_use]
pub fn fair_shares(network: &Shufflecast, active: &[u32]) -> Vec<f64> {
    let uses: Vec<Vec<u32>> = active.iter().map(|&source| partitions_of(network, source)).collect();
    max_min(&uses, network.columns() * network.fanout())
}

/// The partitions that relay for a source, numbered column by column.
fn partitions_of(network: &Shufflecast, source: u32) -> Vec<u32> {
    (0..network.columns())
        .map(|column| column * network.fanout() + relaying_partition(network, source, column))
        .collect()
}

/// Max-min fair rates of flows over resources of capacity 1, each flow over a set of them.
fn max_min(uses: &[Vec<u32>], resources: u32) -> Vec<f64> {
    let mut left = vec![1.0f64; resources as usize];
    let mut flows = vec![0u32; resources as usize];
    for &resource in uses.iter().flatten() {
        flows[resource as usize] += 1;
    }
    let mut rates = vec![f64::NAN; uses.len()];
    let share = |left: &[f64], flows: &[u32], r: usize| left[r] / f64::from(flows[r]);
    while let Some(tightest) = (0..left.len())
        .filter(|&r| flows[r] > 0)
        .min_by(|&a, &b| share(&left, &flows, a).total_cmp(&share(&left, &flows, b)))
    {
        let rate = share(&left, &flows, tightest);
        for (flow, used) in uses.iter().enumerate() {
            if rates[flow].is_nan() && used.contains(&(tightest as u32)) {
                rates[flow] = rate;
                for &resource in used {
                    left[resource as usize] -= rate;
                    flows[resource as usize] -= 1;
                }
            }
        }
    }
    rates
}

/// Partitions that are in use, for sources that wait for each other rather than share.
///
/// Two sources whose partitions differ in every column do not touch each other; first come, first served.
#[derive(Clone, Debug)]
pub struct PartitionTable {
    network: Shufflecast,
    busy: Vec<bool>,
}

impl PartitionTable {
    /// A network without transfers.
    #[must_use]
    pub fn new(network: Shufflecast) -> Self {
        let partitions = network.columns() * network.fanout();
        PartitionTable { network, busy: vec![false; partitions as usize] }
    }

    /// Takes the partitions of a source if all of them are free; true if it did.
    pub fn admit(&mut self, source: u32) -> bool {
        let partitions = partitions_of(&self.network, source);
        let free = partitions.iter().all(|&partition| !self.busy[partition as usize]);
        if free {
            partitions.iter().for_each(|&partition| self.busy[partition as usize] = true);
        }
        free
    }

    /// Gives the partitions of an admitted source back.
    pub fn release(&mut self, source: u32) {
        for partition in partitions_of(&self.network, source) {
            debug_assert!(self.busy[partition as usize], "only admitted sources are released");
            self.busy[partition as usize] = false;
        }
    }
}
