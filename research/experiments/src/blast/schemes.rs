//! The ways of delivering that Blast is compared with, at flow level (section VI-A3).

use polycast_simulator::flow::{Flow, FlowId};

use super::cluster::{SOURCE, Server, World};
use crate::random::Random;
use crate::report::ItemError;

/// Time to set up circuits, in seconds (section V-B).
pub const RECONFIGURATION_S: f64 = 0.025;

/// A way of delivering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// A flow from the source to each receiver, all at once.
    Naive,
    /// Into HDFS, block by block, and out again.
    Hdfs {
        /// Set if the replica in another rack is in a rack of the group.
        in_group: bool,
    },
    /// SplitStream among the leaders of the racks, then within each rack.
    Overlay,
    /// One tree over circuits, after they are set up.
    Blast {
        /// Set if the servers' links serve it before other traffic.
        priority: bool,
    },
    /// One tree over the packet core, without set-up and with no protocol: the best that could be.
    IpMulticast {
        /// Set if all links serve it before other traffic.
        priority: bool,
    },
}

impl Scheme {
    /// Returns the note that this is a model of another project's program, and of which; empty where it is no
    /// program.
    #[must_use]
    pub fn model(self) -> &'static str {
        match self {
            Scheme::Hdfs { .. } => "a model of HDFS's pipeline of replicas, with fair shares and no software",
            Scheme::Overlay => "a model of SplitStream, a fluid without software",
            Scheme::Naive | Scheme::Blast { .. } | Scheme::IpMulticast { .. } => "",
        }
    }

    /// Seconds until all receivers have the object. `compute_s` is what the scheduler takes.
    ///
    /// # Errors
    /// If something can make no progress.
    pub fn seconds(self, mut world: World, compute_s: f64, random: &mut Random) -> Result<f64, ItemError> {
        let bytes = world.cluster().bytes;
        match self {
            Scheme::Naive => naive(&mut world)?,
            Scheme::Hdfs { in_group } => hdfs(&mut world, in_group, random)?,
            Scheme::Overlay => overlay(&mut world)?,
            Scheme::Blast { priority } => {
                world.wait(RECONFIGURATION_S + compute_s);
                let tree = Flow::over(world.tree(true)).priority(priority.into());
                let flow = world.start(tree, bytes)?;
                world.finish(&[flow])?;
            }
            Scheme::IpMulticast { priority } => {
                let tree = Flow::over(world.tree(false)).priority(priority.into());
                let flow = world.start(tree, bytes)?;
                world.finish(&[flow])?;
            }
        }
        Ok(world.seconds())
    }
}

fn naive(world: &mut World) -> Result<(), ItemError> {
    let bytes = world.cluster().bytes;
    let receivers: Vec<Server> = world.members().skip(1).collect();
    let flows: Result<Vec<_>, _> = receivers.into_iter().map(|to| world.unicast(SOURCE, to, bytes)).collect();
    world.finish(&flows?)
}

/// The source hands each of n receivers an n-th, and each hands its part to the others as it comes: n trees
/// in which every peer is an inner node once (SplitStream as a fluid). A hop is a TCP flow of its own.
fn swarm(world: &mut World, from: Server, to: &[Server]) -> Result<Vec<FlowId>, ItemError> {
    let stripe = world.cluster().bytes.div_ceil(to.len().max(1) as u64);
    let mut flows = Vec::new();
    for &inner in to {
        let hops = to.iter().filter(|&&leaf| leaf != inner).map(|&leaf| world.path(inner, leaf));
        let mut links: Vec<_> = std::iter::once(world.path(from, inner)).chain(hops).flatten().collect();
        links.sort_unstable();
        let links = links.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u32)).collect();
        flows.push(world.start(Flow { links, ..Flow::over([]) }, stripe)?);
    }
    Ok(flows)
}

/// The source's rack at once; a leader of each other rack, and when those have everything, their racks.
fn overlay(world: &mut World) -> Result<(), ItemError> {
    let (racks, servers) = (world.cluster().group_racks, world.cluster().servers);
    let others = |rack| (1..servers).map(|at| (rack, at)).collect::<Vec<Server>>();
    let leaders: Vec<Server> = (1..racks).map(|rack| (rack, 0)).collect();
    let mut across = swarm(world, SOURCE, &leaders)?;
    let mut within = swarm(world, SOURCE, &others(SOURCE.0))?;
    let mut led = false;
    while !(across.is_empty() && within.is_empty()) {
        let ended = world.next_end()?.flows;
        across.retain(|id| !ended.contains(id));
        within.retain(|id| !ended.contains(id));
        if across.is_empty() && !std::mem::replace(&mut led, true) {
            for leader in leaders.iter().copied() {
                within.extend(swarm(world, leader, &others(leader.0))?);
            }
        }
    }
    Ok(())
}

/// Servers with the replicas of a block.
type Replicas = [Server; 3];

/// Writes one block after the other through its pipeline; then every host reads all blocks at once.
fn hdfs(world: &mut World, in_group: bool, random: &mut Random) -> Result<(), ItemError> {
    let cluster = *world.cluster();
    let mut blocks: Vec<(Replicas, u64)> = Vec::new();
    let mut left = cluster.bytes;
    while left > 0 {
        let bytes = left.min(cluster.block_bytes);
        left -= bytes;
        let replicas = place(world, in_group, random);
        let [source, near, far] = replicas;
        let links = [world.path(source, near), world.path(near, far)].concat();
        let flow = world.start(Flow::over(links), bytes)?;
        world.finish(&[flow])?;
        blocks.push((replicas, bytes));
    }
    let mut reads = Vec::new();
    let members: Vec<Server> = world.members().skip(1).collect();
    for reader in members {
        for &(replicas, bytes) in &blocks {
            if let Some(from) = closest(reader, &replicas, random) {
                reads.push(world.unicast(from, reader, bytes)?);
            }
        }
    }
    world.finish(&reads)
}

/// At the source, on another server of its rack, and in another rack.
fn place(world: &World, in_group: bool, random: &mut Random) -> Replicas {
    let cluster = world.cluster();
    let near = (SOURCE.0, 1 + random.below(cluster.servers - 1));
    let inside = cluster.group_racks - 1;
    let drawn = if in_group { random.below(inside) } else { random.below(cluster.racks - 1) };
    // All racks outside of the group are alike, and one of them is modelled.
    let rack = 1 + drawn.min(inside);
    [SOURCE, near, (rack, random.below(cluster.servers))]
}

/// The replica to read from: none if the reader has one itself, else one in its rack, else any.
fn closest(reader: Server, replicas: &Replicas, random: &mut Random) -> Option<Server> {
    if replicas.contains(&reader) {
        return None;
    }
    let near: Vec<Server> = replicas.iter().copied().filter(|replica| replica.0 == reader.0).collect();
    let choice = if near.is_empty() { replicas.as_slice() } else { &near };
    Some(choice[random.below(choice.len() as u32) as usize])
}

#[cfg(test)]
mod tests {
    use super::super::cluster::{Background, Cluster, Core};
    use super::*;

    fn seconds(scheme: Scheme, core: Core, background: Background) -> f64 {
        let world = World::new(Cluster::papers(core), background).unwrap();
        scheme.seconds(world, 0.0, &mut Random::new(1)).unwrap()
    }

    #[test]
    fn an_idle_network_gives_what_arithmetic_says() {
        let naive = seconds(Scheme::Naive, Core::NonBlocking, Background::No);
        assert!((naive - 119.0 * 0.24).abs() < 1e-6, "{naive}");
        let blast = seconds(Scheme::Blast { priority: false }, Core::Oversubscribed, Background::No);
        assert!((blast - 0.265).abs() < 1e-6, "{blast}");
        let ip = seconds(Scheme::IpMulticast { priority: true }, Core::NonBlocking, Background::Heavy);
        assert!((ip - 0.24).abs() < 1e-6, "{ip}");
        // The source's link carries 39 + 2 stripes; from the leaders' racks' start it takes another 0.24 s.
        let overlay = seconds(Scheme::Overlay, Core::NonBlocking, Background::No);
        assert!((0.48..0.721).contains(&overlay), "{overlay}");
    }

    #[test]
    fn readers_take_the_closest_replica() {
        let replicas = [(0, 0), (0, 5), (2, 7)];
        let mut random = Random::new(1);
        for _ in 0..50 {
            assert_eq!(closest((2, 1), &replicas, &mut random), Some((2, 7)));
            assert_eq!(closest((0, 5), &replicas, &mut random), None);
            assert_eq!(closest((0, 9), &replicas, &mut random).unwrap().0, 0);
            assert!(replicas.contains(&closest((1, 9), &replicas, &mut random).unwrap()));
        }
    }
}
