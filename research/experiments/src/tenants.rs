//! Tenants, their placement and their groups, as Elmo's and Orca's evaluations draw them (Orca, section 6.1).
//!
//! The published numbers come from a program whose placement differs from the papers' words: the limit of
//! virtual machines a rack was never applied. [`Placement`] has both readings.

use polycast_topology::{Clos, Node};

use crate::random::Random;

/// The most virtual machines of all tenants on one host.
const MACHINES_PER_HOST_MAX: u8 = 20;
/// The tenants.
const TENANTS: usize = 3000;

/// Distribution of group sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Any size from 5 to the tenant's, equally likely.
    Uniform,
    /// IBM WebSphere Virtual Enterprise: mostly small.
    Wve,
}

/// Placement of a tenant's machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// "Scattered" as it was run: distinct hosts of one pod after the other, any number a rack.
    ScatteredAsRun,
    /// "Clustered" as it was run: rack after rack of one pod, up to a machine a host.
    ClusteredAsRun,
    /// At most this many of a tenant's machines a rack, pod after pod, as the papers say.
    Strict(u32),
}

/// A tenant: the host of each of its machines, and how many groups it has.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// The hosts; a host appears once for each machine on it.
    pub hosts: Vec<Node>,
    /// Its groups.
    pub groups: u32,
}

/// The groups of Elmo's and Orca's evaluations.
const ALL_GROUPS: u64 = 1_000_000;

/// Returns the number of `groups` that each tenant gets, in proportion to its machines. Of a million each
/// gets what Elmo's program gives it, rounded down; fewer are a sample of that million, in which no kind of
/// tenant is missing.
fn share_out(groups: u32, sizes: &[u32]) -> Vec<u32> {
    let total: u64 = sizes.iter().map(|&size| u64::from(size)).sum();
    let (all, mut before) = (ALL_GROUPS.max(groups.into()), 0);
    let sampled = |below: u64| below * u64::from(groups) / all;
    let share = |&size: &u32| {
        let below = before + u64::from(size) * all / total;
        let share = sampled(below) - sampled(before);
        before = below;
        share as u32
    };
    sizes.iter().map(share).collect()
}

/// Draws all tenants and places them; `groups` are shared out in proportion to their machines.
#[must_use]
pub fn tenants(clos: &Clos, placement: Placement, groups: u32, random: &mut Random) -> Vec<Tenant> {
    let sizes: Vec<u32> = (0..TENANTS).map(|_| tenant_size(random)).collect();
    let shares = share_out(groups, &sizes);
    let mut cluster = Cluster { clos: *clos, machines: vec![0; clos.hosts() as usize] };
    sizes
        .into_iter()
        .zip(shares)
        .map(|(size, groups)| Tenant { hosts: cluster.place(placement, size, random), groups })
        .collect()
}

fn tenant_size(random: &mut Random) -> u32 {
    if random.fraction() < 0.02 {
        return 10 + random.below(4991);
    }
    (random.exponential(4.05) / 10.0 * 4990.0) as u32 % 4990 + 10
}

/// The size of one group of a tenant with `machines` machines.
pub fn group_size(sizes: Sizes, machines: u32, random: &mut Random) -> u32 {
    let v = f64::from(machines);
    let size = match sizes {
        Sizes::Uniform => 5 + random.below(machines - 4),
        Sizes::Wve if random.fraction() < 0.02 => {
            machines - (random.gamma_of_shape_2(0.1) * v / 15.0) as u32 % machines
        }
        Sizes::Wve => (random.gamma_of_shape_2(0.2) * v / 15.0 + 4.0) as u32 % machines + 1,
    };
    size.clamp(5, machines)
}

struct Cluster {
    clos: Clos,
    machines: Vec<u8>,
}

impl Cluster {
    fn hosts_per_pod(&self) -> u32 {
        self.clos.leafs_per_pod() * self.clos.hosts_per_leaf()
    }

    fn free_hosts(&self, first: Node, count: u32) -> Vec<Node> {
        (first..first + count).filter(|&host| self.machines[host as usize] < MACHINES_PER_HOST_MAX).collect()
    }

    fn put(&mut self, host: Node, placed: &mut Vec<Node>) {
        self.machines[host as usize] += 1;
        placed.push(host);
    }

    fn place(&mut self, placement: Placement, size: u32, random: &mut Random) -> Vec<Node> {
        let mut placed = Vec::with_capacity(size as usize);
        match placement {
            Placement::Strict(limit) => self.place_strictly(limit, size as usize, &mut placed, random),
            _ => {
                while placed.len() < size as usize {
                    let pod = random.below(self.clos.pods()) * self.hosts_per_pod();
                    match placement {
                        Placement::ScatteredAsRun => self.scatter(pod, size as usize, &mut placed, random),
                        _ => self.cluster(pod, size as usize, &mut placed, random),
                    }
                }
            }
        }
        placed
    }

    fn scatter(&mut self, pod: Node, size: usize, placed: &mut Vec<Node>, random: &mut Random) {
        let mut free = self.free_hosts(pod, self.hosts_per_pod());
        let count = free.len().min(size - placed.len());
        random.choose_first(&mut free, count);
        free[..count].iter().for_each(|&host| self.put(host, placed));
    }

    fn cluster(&mut self, pod: Node, size: usize, placed: &mut Vec<Node>, random: &mut Random) {
        let per_leaf = self.clos.hosts_per_leaf();
        while placed.len() < size && !self.free_hosts(pod, self.hosts_per_pod()).is_empty() {
            let leaf = pod + random.below(self.clos.leafs_per_pod()) * per_leaf;
            let mut free = self.free_hosts(leaf, per_leaf);
            let count = free.len().min(size - placed.len());
            random.choose_first(&mut free, count);
            free[..count].iter().for_each(|&host| self.put(host, placed));
        }
    }

    /// Pods in random order, their racks in random order; once every rack is at its limit, another round.
    fn place_strictly(&mut self, limit: u32, size: usize, placed: &mut Vec<Node>, random: &mut Random) {
        let per_leaf = self.clos.hosts_per_leaf();
        while placed.len() < size {
            let before = placed.len();
            let mut pods: Vec<u32> = (0..self.clos.pods()).collect();
            random.choose_first(&mut pods, self.clos.pods() as usize);
            for pod in pods {
                let mut leafs: Vec<u32> = (0..self.clos.leafs_per_pod()).collect();
                random.choose_first(&mut leafs, self.clos.leafs_per_pod() as usize);
                for leaf in leafs {
                    let first = (pod * self.clos.leafs_per_pod() + leaf) * per_leaf;
                    let mut free = self.free_hosts(first, per_leaf);
                    let count = free.len().min(limit as usize).min(size - placed.len());
                    random.choose_first(&mut free, count);
                    free[..count].iter().for_each(|&host| self.put(host, placed));
                }
                if placed.len() == size {
                    return;
                }
            }
            assert!(placed.len() > before, "the cluster has room for all tenants");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_groups_are_a_sample_of_all_tenants() {
        let mut random = Random::new(5);
        let sizes: Vec<u32> = (0..TENANTS).map(|_| tenant_size(&mut random)).collect();
        let total: u64 = sizes.iter().map(|&size| u64::from(size)).sum();
        let all = share_out(1_000_000, &sizes);
        let as_run = |&size: &u32| (u64::from(size) * 1_000_000 / total) as u32;
        assert_eq!(
            all,
            sizes.iter().map(as_run).collect::<Vec<_>>(),
            "of a million, what Elmo's program gives"
        );
        for groups in [2_000u32, 20_000, 100_000] {
            let few = share_out(groups, &sizes);
            let sum: u32 = few.iter().sum();
            assert!(sum <= groups && f64::from(sum) > 0.99 * f64::from(groups), "{sum} of {groups}");
            // Groups of tenants below the median size.
            let small = |shares: &[u32]| {
                let of_small =
                    sizes.iter().zip(shares).filter(|(size, _)| **size < 97).map(|(_, share)| share);
                f64::from(of_small.sum::<u32>()) / f64::from(shares.iter().sum::<u32>())
            };
            assert!((small(&few) / small(&all) - 1.0).abs() < 0.2, "{} of {groups}", small(&few));
        }
    }
}
