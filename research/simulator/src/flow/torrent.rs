//! A swarm of BitTorrent peers at flow level, to compare with (Datacast section 7).
//!
//! What is modelled: pieces, of which a peer fetches the rarest that the other has, with lots among equals;
//! one piece at a time over the connection of two peers; choking: a peer serves a few others, every ten
//! seconds those that gave it the most since, and one more drawn every thirty seconds; a peer that has
//! everything draws all of those that it serves. Connections share links by max-min fairness, as long-lived
//! TCP does in the mean.
//!
//! What is not: slow start, the requests of blocks within a piece, the end game, trackers, disks.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use polycast_types::{Duration, Time};
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;

use super::{Flow, FlowError, FlowId, Link, Run};

/// Settings of a swarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TorrentConfig {
    /// Peers; peer 0 has everything at first, the others nothing.
    pub peers: u32,
    /// Pieces of the object.
    pub pieces: u32,
    /// Bytes of a piece on the wire.
    pub piece_bytes: u64,
    /// Number of other peers that a peer serves, including the one that is drawn.
    pub slots: u32,
    /// Set for a peer to fetch the pieces that the fewest peers have; otherwise any piece that it lacks.
    pub rarest_first: bool,
    /// Interval at which a peer decides again which peers it serves.
    pub rechoke: Duration,
    /// Interval at which a peer draws another peer to serve.
    pub optimistic: Duration,
    /// Seed of everything that is drawn.
    pub seed: u64,
}

impl TorrentConfig {
    /// The usual settings: four slots, ten and thirty seconds.
    #[must_use]
    pub fn new(peers: u32, pieces: u32, piece_bytes: u64, seed: u64) -> Self {
        let (rechoke, optimistic) = (Duration::from_secs(10), Duration::from_secs(30));
        TorrentConfig { peers, pieces, piece_bytes, slots: 4, rarest_first: true, rechoke, optimistic, seed }
    }
}

/// Result of a swarm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torrent {
    /// Time at which each peer had everything; zero for peer 0.
    pub finished_at: Vec<Time>,
    /// Bytes that each peer has sent.
    pub sent_bytes: Vec<u64>,
    /// Bytes that each link has carried.
    pub link_bytes: Vec<u64>,
}

/// Lets a swarm run until all have everything. `path` gives the links from a peer to another.
///
/// # Errors
/// If a capacity or a path is not valid.
///
/// # Panics
/// If there are fewer than two peers, no pieces or no slots, or a path has a link without capacity.
pub fn download(
    capacities_bps: Vec<f64>,
    config: &TorrentConfig,
    mut path: impl FnMut(u32, u32) -> Vec<Link>,
) -> Result<Torrent, FlowError> {
    assert!(
        config.peers >= 2 && config.pieces > 0 && config.slots > 0,
        "a swarm needs two peers, pieces and slots"
    );
    let links = capacities_bps.len();
    let peers = config.peers as usize;
    let paths = (0..peers * peers)
        .map(|pair| {
            if pair / peers == pair % peers {
                Vec::new()
            } else {
                path((pair / peers) as u32, (pair % peers) as u32)
            }
        })
        .collect();
    let mut swarm = Swarm {
        config: *config,
        run: Run::new(capacities_bps)?,
        random: Pcg64Mcg::new(u128::from(config.seed) << 1 | 1),
        paths,
        has: vec![vec![false; config.pieces as usize]; peers],
        held: vec![0; peers],
        owners: vec![1; config.pieces as usize],
        fetching: vec![vec![false; config.pieces as usize]; peers],
        serves: vec![vec![false; peers]; peers],
        optimistic: vec![None; peers],
        given: vec![vec![0; peers]; peers],
        flows: BTreeMap::new(),
        busy: vec![vec![false; peers]; peers],
        result: Torrent {
            finished_at: vec![Time::ZERO; peers],
            sent_bytes: vec![0; peers],
            link_bytes: vec![0; links],
        },
    };
    swarm.has[0].fill(true);
    swarm.held[0] = config.pieces;
    swarm.go()?;
    Ok(swarm.result)
}

struct Swarm {
    config: TorrentConfig,
    run: Run,
    random: Pcg64Mcg,
    /// Links from a peer to another, by `from * peers + to`.
    paths: Vec<Vec<Link>>,
    /// By peer, then piece.
    has: Vec<Vec<bool>>,
    held: Vec<u32>,
    /// Number of peers that have each piece.
    owners: Vec<u32>,
    fetching: Vec<Vec<bool>>,
    /// By the peer that serves, then by the one that is served.
    serves: Vec<Vec<bool>>,
    optimistic: Vec<Option<usize>>,
    /// Bytes since the last decision, by the peer that gave, then by the one that got.
    given: Vec<Vec<u64>>,
    flows: BTreeMap<FlowId, (usize, usize, usize)>,
    busy: Vec<Vec<bool>>,
    result: Torrent,
}

impl Swarm {
    fn go(&mut self) -> Result<(), FlowError> {
        let mut next_rechoke = Time::ZERO;
        let mut next_optimistic = Time::ZERO;
        while self.held.iter().any(|&held| held < self.config.pieces) {
            if self.run.now() >= next_rechoke {
                let draw = self.run.now() >= next_optimistic;
                if draw {
                    next_optimistic = self.run.now() + self.config.optimistic;
                }
                next_rechoke = self.run.now() + self.config.rechoke;
                self.rechoke(draw);
            }
            self.request()?;
            if let Some(done) = self.run.advance(Some(next_rechoke)) {
                done.flows.into_iter().for_each(|flow| self.fetched(flow));
            }
        }
        Ok(())
    }

    /// The peers that lack something that this one has.
    fn interested(&self, from: usize) -> Vec<usize> {
        let lacks =
            |to: usize| (0..self.owners.len()).any(|piece| self.has[from][piece] && !self.has[to][piece]);
        (0..self.held.len()).filter(|&to| to != from && lacks(to)).collect()
    }

    /// A peer with a free slot gives it to one that has become interested.
    fn fill_slots(&mut self, from: usize) {
        let others = self.interested(from);
        let served = others.iter().filter(|&&to| self.serves[from][to]).count();
        if served < self.config.slots as usize {
            let free: Vec<usize> = others.into_iter().filter(|&to| !self.serves[from][to]).collect();
            if !free.is_empty() {
                let to = free[self.below(free.len())];
                self.serves[from][to] = true;
            }
        }
    }

    /// Every peer decides whom it serves.
    fn rechoke(&mut self, draw: bool) {
        for from in 0..self.held.len() {
            let mut others = self.interested(from);
            self.shuffle(&mut others);
            if draw || !self.optimistic[from].is_some_and(|drawn| others.contains(&drawn)) {
                self.optimistic[from] = others.first().copied();
            }
            let drawn = self.optimistic[from];
            if self.held[from] < self.config.pieces {
                // Tit for tat: first those that gave the most.
                others.sort_by_key(|&to| core::cmp::Reverse(self.given[to][from]));
            }
            others.retain(|&to| Some(to) != drawn);
            self.serves[from].fill(false);
            let chosen = drawn.into_iter().chain(others).take(self.config.slots as usize);
            for to in chosen {
                self.serves[from][to] = true;
            }
        }
        self.given.iter_mut().for_each(|given| given.fill(0));
    }

    /// Every peer asks all that serve it, and from whom nothing is on the way, for a piece.
    fn request(&mut self) -> Result<(), FlowError> {
        for from in 0..self.held.len() {
            for to in 0..self.held.len() {
                if !self.serves[from][to] || self.busy[from][to] {
                    continue;
                }
                let Some(piece) = self.choose(from, to) else { continue };
                let links = self.paths[from * self.held.len() + to].iter().copied();
                let flow = self.run.start(Flow::over(links), self.config.piece_bytes * 8)?;
                self.flows.insert(flow, (from, to, piece));
                self.busy[from][to] = true;
                self.fetching[to][piece] = true;
            }
        }
        Ok(())
    }

    /// Selects a piece that `from` has and that `to` lacks and does not fetch: a rarest one, or any.
    fn choose(&mut self, from: usize, to: usize) -> Option<usize> {
        let candidate =
            |&piece: &usize| self.has[from][piece] && !self.has[to][piece] && !self.fetching[to][piece];
        let mut candidates: Vec<usize> = (0..self.owners.len()).filter(candidate).collect();
        if !self.config.rarest_first && !candidates.is_empty() {
            return Some(candidates.swap_remove(self.below(candidates.len())));
        }
        let fewest = candidates.iter().map(|&piece| self.owners[piece]).min()?;
        let rarest: Vec<usize> =
            candidates.into_iter().filter(|&piece| self.owners[piece] == fewest).collect();
        Some(rarest[self.below(rarest.len())])
    }

    fn fetched(&mut self, flow: FlowId) {
        let (from, to, piece) = self.flows.remove(&flow).expect("only pieces are flows");
        let bytes = self.config.piece_bytes;
        self.busy[from][to] = false;
        self.fetching[to][piece] = false;
        self.has[to][piece] = true;
        self.held[to] += 1;
        self.owners[piece] += 1;
        self.given[from][to] += bytes;
        self.result.sent_bytes[from] += bytes;
        for &link in &self.paths[from * self.held.len() + to] {
            self.result.link_bytes[link as usize] += bytes;
        }
        if self.held[to] == self.config.pieces {
            self.result.finished_at[to] = self.run.now();
        }
        self.fill_slots(to);
        self.fill_slots(from);
    }

    fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.random.next_u64()) * limit as u128) >> 64) as usize
    }

    fn shuffle(&mut self, list: &mut [usize]) {
        for at in (1..list.len()).rev() {
            let other = self.below(at + 1);
            list.swap(at, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Peers at one switch: link `2 p` leads from peer p, link `2 p + 1` to it.
    fn star(peers: u32, pieces: u32, seed: u64) -> Torrent {
        let config = TorrentConfig::new(peers, pieces, 1_000_000, seed);
        let capacities = vec![1e9; 2 * peers as usize];
        download(capacities, &config, |from, to| vec![2 * from, 2 * to + 1]).unwrap()
    }

    #[test]
    fn two_peers_take_the_time_of_the_link() {
        let torrent = star(2, 100, 1);
        // 100 MB at 1 Gb/s; each piece may end a nanosecond late.
        assert!((800_000_000..800_000_200).contains(&torrent.finished_at[1].0), "{:?}", torrent.finished_at);
        assert_eq!(torrent.sent_bytes, [100_000_000, 0]);
        assert_eq!(torrent.link_bytes, [100_000_000, 0, 0, 100_000_000]);
    }

    #[test]
    fn everybody_gets_every_piece_once_and_peers_serve_each_other() {
        for seed in 0..10 {
            let torrent = star(8, 200, seed);
            assert_eq!(torrent.sent_bytes.iter().sum::<u64>(), 7 * 200_000_000);
            assert!(torrent.finished_at[1..].iter().all(|at| at.0 >= 1_600_000_000));
            assert!(
                torrent.sent_bytes[0] < 7 * 200_000_000 / 2,
                "the source sends {}",
                torrent.sent_bytes[0]
            );
        }
    }

    #[test]
    fn rare_pieces_first_spare_the_source() {
        let source_sends = |rarest_first| {
            let config = TorrentConfig { rarest_first, ..TorrentConfig::new(8, 200, 1_000_000, 2) };
            download(vec![1e9; 16], &config, |from, to| vec![2 * from, 2 * to + 1]).unwrap().sent_bytes[0]
        };
        assert!(source_sends(true) < source_sends(false));
    }

    #[test]
    fn the_same_seed_gives_the_same_swarm() {
        assert_eq!(star(5, 50, 3), star(5, 50, 3));
        assert_ne!(star(5, 50, 3), star(5, 50, 4));
    }
}
