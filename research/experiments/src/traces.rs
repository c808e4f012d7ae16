//! Broadcasts of Spark's jobs, replayed with the papers' sizes (Republic section VI-A, Shufflecast section
//! VI-D): how long every reader waits, by ours and by what it is compared with.
//!
//! Ours is a transfer of our machines in virtual time, packet by packet. The others are models at flow level,
//! with max-min fair links and no software at all: a reader's time here is the network's alone, where the
//! papers' has serializing in it.

use std::collections::BTreeMap;

use polycast_simulator::flow::{Flow, FlowError, FlowId, Link, Run};
use polycast_types::Time;

use crate::random::Random;

/// Bytes of what Word2Vec and LDA broadcast in each iteration.
pub const WORD2VEC_BYTES: u64 = 504_000_000;
/// See [`WORD2VEC_BYTES`].
pub const LDA_BYTES: u64 = 735_000_000;
/// Objects that the queries of TPC-H broadcast: their number, the smallest, the largest and all together.
const TPC_H_OBJECTS: u32 = 58;
const TPC_H_LEAST: f64 = 4.0e6;
const TPC_H_MOST: f64 = 6.2e9;
const TPC_H_SUM: f64 = 48.3e9;
/// Torrent's blocks.
const BLOCK_BYTES: u64 = 4 << 20;
/// A packet of ours on the wire, for each byte of its payload: 8,692 bytes and 52 of headers.
pub const OVERHEAD: f64 = 8_744.0 / 8_692.0;
/// Largest loss of NORM that Shufflecast's paper has seen; NORM sends that much again.
const NORM_LOSS: f64 = 0.0028;
/// Between processes of one host.
const LOOPBACK_BPS: f64 = 100e9;

/// The sizes of TPC-H's objects. The papers print their number, the least, the most and the sum: the others
/// lie on a curve that rises from the least to the most and gives the sum.
#[must_use]
pub fn tpc_h_bytes() -> Vec<u64> {
    let size = |at: u32, bend: f64| {
        let place = f64::from(at) / f64::from(TPC_H_OBJECTS - 1);
        TPC_H_LEAST * (TPC_H_MOST / TPC_H_LEAST).powf(place.powf(bend))
    };
    let sum = |bend: f64| (0..TPC_H_OBJECTS).map(|at| size(at, bend)).sum::<f64>();
    // The more the curve bends, the less is the sum.
    let (mut low, mut high) = (0.01, 100.0);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if sum(middle) > TPC_H_SUM { low = middle } else { high = middle }
    }
    (0..TPC_H_OBJECTS).map(|at| size(at, low).round() as u64).collect()
}

/// Servers below racks, and a packet core that carries so much for a rack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    /// Racks.
    pub racks: u32,
    /// Servers of a rack.
    pub servers: u32,
    /// A server's link, in bit/s.
    pub server_bps: f64,
    /// A rack's link to the core, in bit/s.
    pub core_bps: f64,
}

impl Site {
    /// The same with a core that carries this part of what the servers can send.
    #[must_use]
    pub fn oversubscribed(self, times: f64) -> Self {
        Site { core_bps: f64::from(self.servers) * self.server_bps / times, ..self }
    }

    fn capacities_bps(&self) -> Vec<f64> {
        let servers = vec![self.server_bps; (2 * self.racks * self.servers) as usize];
        servers.into_iter().chain(vec![self.core_bps; 2 * self.racks as usize]).collect()
    }

    fn up(server: u32) -> Link {
        2 * server
    }

    fn down(server: u32) -> Link {
        2 * server + 1
    }

    fn core_up(&self, server: u32) -> Link {
        2 * self.racks * self.servers + 2 * (server / self.servers)
    }

    fn core_down(&self, server: u32) -> Link {
        self.core_up(server) + 1
    }

    fn flow(&self, from: u32, to: u32) -> Flow {
        if from == to {
            return Flow::over([]).cap(LOOPBACK_BPS);
        }
        let ends = [Self::up(from), Self::down(to)];
        if from / self.servers == to / self.servers {
            return Flow::over(ends);
        }
        Flow::over(ends.into_iter().chain([self.core_up(from), self.core_down(to)]))
    }
}

/// Reason why neither HTTP nor TPC-H has a factor of ours beside the paper's.
pub(crate) const NOT_MEASURED: &str = "ours would be arithmetic: with HTTP the number of executors times our part of the line rate, with \
     TPC-H one transfer and the sum of 58 sizes; what a job really waits is measured by spark/bench/lab.py";

/// A way of handing an object to every reader that ours is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The source sends to every reader at once.
    Http,
    /// Every reader fetches the blocks in an order of its own, each from one that has it, one at a time.
    Torrent,
    /// From each reader to the next, while it comes: HDFS' pipeline over all, or a chain of TCP.
    Pipeline,
    /// A scatter by halves, then every server's part round a ring.
    Mpi,
    /// A tree over the packet core that sends what is lost again.
    Norm,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 5] = [Way::Http, Way::Torrent, Way::Pipeline, Way::Mpi, Way::Norm];

    /// Returns the name of the way.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Way::Http => "HTTP",
            Way::Torrent => "Torrent",
            Way::Pipeline => "pipeline",
            Way::Mpi => "MPI_Bcast",
            Way::Norm => "NORM",
        }
    }

    /// Returns the time when each reader has the object, in seconds. `hosts` are the servers of the source
    /// and of each reader.
    ///
    /// # Errors
    /// If a rate is not valid.
    pub fn seconds(
        self,
        site: &Site,
        hosts: &[u32],
        bytes: u64,
        random: &mut Random,
    ) -> Result<Vec<f64>, FlowError> {
        let readers = hosts.len() - 1;
        let mut run = Run::new(site.capacities_bps())?;
        let all_at = |seconds: f64| vec![seconds; readers];
        Ok(match self {
            Way::Http => {
                let flows = hosts[1..].iter().map(|&to| run.start(site.flow(hosts[0], to), 8 * bytes));
                let flows = flows.collect::<Result<Vec<_>, _>>()?;
                let ends = ends(&mut run);
                flows.iter().map(|flow| ends[flow]).collect()
            }
            Way::Torrent => torrent(site, hosts, bytes, random)?,
            Way::Pipeline => {
                let hops = hosts.windows(2).map(|pair| site.flow(pair[0], pair[1]));
                let links = hops.flat_map(|hop| hop.links).map(|(link, _)| link);
                run.start(together(links.collect()), 8 * bytes)?;
                all_at(last(&mut run))
            }
            Way::Mpi => {
                scatter_gather(&mut run, site, hosts, bytes)?;
                all_at(last(&mut run))
            }
            Way::Norm => {
                let mut links = vec![Site::up(hosts[0])];
                for &host in &hosts[1..] {
                    links.push(Site::down(host));
                    if host / site.servers != hosts[0] / site.servers {
                        links.extend([site.core_up(hosts[0]), site.core_down(host)]);
                    }
                }
                links.sort_unstable();
                links.dedup();
                run.start(Flow::over(links), (8.0 * bytes as f64 * (1.0 + NORM_LOSS)) as u64)?;
                all_at(last(&mut run))
            }
        })
    }
}

/// A flow that crosses some links several times.
fn together(mut links: Vec<Link>) -> Flow {
    links.sort_unstable();
    let links = links.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u32)).collect();
    Flow { links, ..Flow::over([]) }.cap(LOOPBACK_BPS)
}

/// Lets all flows end, and gives when each did, in seconds.
fn ends(run: &mut Run) -> BTreeMap<FlowId, f64> {
    let mut ends = BTreeMap::new();
    while let Some(completion) = run.advance(None) {
        let at_s = completion.at.since(Time::ZERO).as_secs_f64();
        ends.extend(completion.flows.into_iter().map(|flow| (flow, at_s)));
    }
    ends
}

fn last(run: &mut Run) -> f64 {
    ends(run);
    run.now().since(Time::ZERO).as_secs_f64()
}

fn scatter_gather(run: &mut Run, site: &Site, hosts: &[u32], bytes: u64) -> Result<(), FlowError> {
    let part = bytes.div_ceil(hosts.len() as u64);
    let mut span = hosts.len().next_power_of_two();
    while span > 1 {
        let half = span / 2;
        for from in (0..hosts.len()).step_by(span).filter(|from| from + half < hosts.len()) {
            let parts = half.min(hosts.len() - from - half) as u64;
            run.start(site.flow(hosts[from], hosts[from + half]), 8 * parts * part)?;
        }
        ends(run);
        span = half;
    }
    for _ in 1..hosts.len() {
        for (at, &from) in hosts.iter().enumerate() {
            run.start(site.flow(from, hosts[(at + 1) % hosts.len()]), 8 * part)?;
        }
        ends(run);
    }
    Ok(())
}

fn torrent(site: &Site, hosts: &[u32], bytes: u64, random: &mut Random) -> Result<Vec<f64>, FlowError> {
    let blocks = bytes.div_ceil(BLOCK_BYTES) as usize;
    let bits = |block: usize| 8 * (bytes - block as u64 * BLOCK_BYTES).min(BLOCK_BYTES);
    let mut run = Run::new(site.capacities_bps())?;
    let mut holders: Vec<Vec<u32>> = vec![vec![hosts[0]]; blocks];
    let mut wanted: Vec<Vec<usize>> = Vec::new();
    for _ in 1..hosts.len() {
        let mut order: Vec<usize> = (0..blocks).collect();
        random.choose_first(&mut order, blocks);
        wanted.push(order);
    }
    let mut fetching: BTreeMap<FlowId, (usize, usize)> = BTreeMap::new();
    let mut finished = vec![0.0; hosts.len() - 1];
    let mut free: Vec<usize> = (0..hosts.len() - 1).collect();
    loop {
        for reader in free.drain(..) {
            let Some(block) = wanted[reader].pop() else {
                finished[reader] = run.now().since(Time::ZERO).as_secs_f64();
                continue;
            };
            let from = holders[block][random.below(holders[block].len() as u32) as usize];
            fetching.insert(run.start(site.flow(from, hosts[reader + 1]), bits(block))?, (reader, block));
        }
        let Some(completion) = run.advance(None) else { return Ok(finished) };
        for flow in completion.flows {
            if let Some((reader, block)) = fetching.remove(&flow) {
                holders[block].push(hosts[reader + 1]);
                free.push(reader);
            }
        }
    }
}

/// The value that this share of all is not above.
#[must_use]
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(at.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: Site = Site { racks: 4, servers: 2, server_bps: 10e9, core_bps: 20e9 };

    fn longest(way: Way, site: &Site, hosts: &[u32], bytes: u64) -> f64 {
        way.seconds(site, hosts, bytes, &mut Random::new(1)).unwrap().into_iter().fold(0.0, f64::max)
    }

    #[test]
    fn the_queries_broadcast_what_the_paper_prints() {
        let sizes = tpc_h_bytes();
        assert_eq!((sizes.len(), sizes[0], sizes[57]), (58, 4_000_000, 6_200_000_000));
        let sum: u64 = sizes.iter().sum();
        assert!((sum as f64 / TPC_H_SUM - 1.0).abs() < 1e-6, "{sum}");
        assert!(sizes.is_sorted());
    }

    #[test]
    fn ways_take_what_arithmetic_says() {
        let (hosts, second) = ([0, 2, 4, 6, 1], 1_250_000_000);
        assert!((longest(Way::Http, &SITE, &hosts, second) - 4.0).abs() < 1e-6);
        assert!((longest(Way::Pipeline, &SITE, &hosts, second) - 1.0).abs() < 1e-6);
        assert!((longest(Way::Norm, &SITE, &hosts, second) - 1.0028).abs() < 1e-6);
        let torrent = longest(Way::Torrent, &SITE, &hosts, second);
        assert!((1.0..4.0).contains(&torrent), "{torrent}");
        assert!((1.0..4.0).contains(&longest(Way::Mpi, &SITE, &hosts, second)));
        // Ten times less core: three readers are in other racks, behind one link of 2 Gbit/s.
        let narrow = SITE.oversubscribed(10.0);
        assert!((longest(Way::Http, &narrow, &hosts, second) - 15.0).abs() < 1e-6);
        assert!(longest(Way::Torrent, &narrow, &hosts, second) > torrent);
    }

    #[test]
    fn readers_on_one_host_share_its_link() {
        let seconds = Way::Http.seconds(&SITE, &[0, 2, 2], 1_250_000_000, &mut Random::new(1)).unwrap();
        assert!(seconds.iter().all(|seconds| (seconds - 2.0).abs() < 1e-6), "{seconds:?}");
    }
}
