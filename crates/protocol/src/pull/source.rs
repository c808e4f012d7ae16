//! The source of a pull transfer: it answers interests at the rate that the slowest receiver follows, and
//! decides which tree carries which block (Datacast, section 5).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use polycast_types::{Handle, Time};

use super::blocks::{Bits, Blocks};
use super::bucket::{Bucket, RateConfig, TreeRate};
use super::packet::{Data, Decision, Interest, Name};
use super::turns::{Share, Turns};
use super::{PORTS_MAX, Route};

/// So many packets are sent again before one that was not sent yet, where both wait: one that asks for the
/// same without an end would starve all others. Fewer would cost time where a receiver is far behind.
const REPEATS_MAX: u32 = 256;

/// Settings of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceConfig {
    /// The transfer.
    pub transfer: Handle,
    /// The division of the object.
    pub blocks: Blocks,
    /// Number of trees.
    pub trees: u8,
    /// Credits of a receiver in one tree (w); duplicates nearer to each other are one congestion signal.
    pub credits: u32,
    /// Settings for the rate of each tree.
    pub rate: RateConfig,
    /// Bytes of a packet beside its payload, which count for the rate.
    pub header_bytes: u16,
    /// Number of packets before a block's end at which the next block is decided. The paper decides with the
    /// last packet, 1 here, and so leaves a tree idle for a round trip. With w it never is.
    pub decide_ahead: u32,
    /// The most interests that wait for tokens, a tree and port; more are dropped.
    pub waiting_max: u32,
    /// A single loss while no queue is seen is taken for chance, and does not lower the rate. The paper's
    /// source takes every loss for congestion.
    pub chance: bool,
}

/// Events that a source handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// An interest came to the end of its route.
    Interest {
        /// The port it came by.
        port: u8,
        /// The interest; its route is the way back.
        interest: Interest,
    },
    /// A tree is gone for good: another one is to carry its block.
    TreeGone {
        /// The tree.
        tree: u8,
    },
    /// A tree that was gone is there again: it is to carry a block.
    TreeBack {
        /// The tree.
        tree: u8,
    },
    /// A port of the node has no room for more, or has again. Nothing is sent by it meanwhile.
    Port {
        /// The port.
        port: u8,
        /// Set if it has room.
        open: bool,
    },
}

/// Actions for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a packet of the object.
    Send {
        /// The port to send it by.
        port: u8,
        /// The packet.
        data: Data,
    },
}

/// Counters of a source in one tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Interests that named a packet of the object.
    pub interests: u64,
    /// Interests among them for packets that the same port had sent already.
    pub duplicates: u64,
    /// Congestion signals: the rate was halved as often.
    pub signals: u64,
    /// Packets sent.
    pub packets: u64,
    /// Bytes of payload sent.
    pub sent_bytes: u64,
    /// Bytes of payload sent for the first time by their port.
    pub first_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    sn: u64,
    back: Route,
    again: bool,
    /// It was asked for past all stores.
    fresh: bool,
}

/// Packets that wait to leave by one port in one tree.
#[derive(Clone, Debug)]
struct Lane {
    port: u8,
    bucket: Bucket,
    /// Packets that were asked for by this port.
    asked: Bits,
    first: VecDeque<Waiting>,
    /// The furthest packet of the tree's block that was asked for.
    front: u64,
    /// Retransmissions go first: a receiver that needs them is behind all others.
    again: VecDeque<Waiting>,
    /// Number of retransmissions that have left in a row.
    repeated: u32,
    turns: Turns,
}

#[derive(Clone, Debug)]
struct Tree {
    rate: TreeRate,
    /// Share of the sent packets that are sent again.
    repeats: Share,
    lanes: Vec<Lane>,
    block: Option<u32>,
    gone: bool,
    /// The duplicate from which the gap to the next ones is counted.
    signal_sn: Option<u64>,
    /// A packet has been sent for the first time since.
    advanced: bool,
    counters: Counters,
}

/// The source's machine: `handle` interests, then `poll` until `None`, and again at `deadline`.
#[derive(Clone, Debug)]
pub struct Source {
    config: SourceConfig,
    trees: Vec<Tree>,
    /// Blocks that no tree has carried.
    unassigned: VecDeque<u32>,
    /// Decision on the block after each block.
    decisions: Vec<Decision>,
    /// A bit for each port that has no room.
    full_ports: u128,
    refused: u64,
}

impl Source {
    /// A source that has sent nothing.
    #[must_use]
    pub fn new(config: SourceConfig) -> Self {
        assert!(config.trees > 0 && config.credits > 0, "a transfer needs a tree and a credit");
        let mut unassigned: VecDeque<u32> = (0..config.blocks.count()).collect();
        let trees = (0..config.trees)
            .map(|_| Tree {
                rate: TreeRate::new(config.rate),
                repeats: Share::default(),
                lanes: Vec::new(),
                block: unassigned.pop_front(),
                gone: false,
                signal_sn: None,
                advanced: false,
                counters: Counters::default(),
            })
            .collect();
        let decisions = alloc::vec![Decision::Open; config.blocks.count() as usize];
        Source { config, trees, unassigned, decisions, full_ports: 0, refused: 0 }
    }

    /// Returns the number of trees.
    #[must_use]
    pub fn trees(&self) -> u8 {
        self.config.trees
    }

    /// Returns the counters of a tree.
    #[must_use]
    pub fn counters(&self, tree: u8) -> Counters {
        self.trees[usize::from(tree)].counters
    }

    /// The block that a tree carries, if it has one: where receivers begin in a tree that is back.
    #[must_use]
    pub fn block(&self, tree: u8) -> Option<u32> {
        self.trees.get(usize::from(tree))?.block
    }

    /// The rate of a tree at present, in bits a second.
    #[must_use]
    pub fn rate_bps(&self, tree: u8) -> u64 {
        self.trees[usize::from(tree)].rate.bps()
    }

    /// Interests refused: for another transfer, a packet or a tree that there is not, or too many at once.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Interest { port, interest } => self.interest(now, port, &interest),
            Input::TreeGone { tree } => self.tree_gone(tree),
            Input::TreeBack { tree } => self.tree_back(tree),
            Input::Port { port, open } => {
                let bit = 1u128 << (u32::from(port) % PORTS_MAX);
                self.full_ports = if open { self.full_ports & !bit } else { self.full_ports | bit };
            }
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// Panics if the machine contradicts itself: that is a bug of ours, never a peer's fault. Called after
    /// every input in debug builds.
    ///
    /// # Panics
    /// If something that always holds does not.
    pub fn check(&self) {
        let undecided = |block: u32| self.decisions[block as usize] == Decision::Open;
        for (number, tree) in self.trees.iter().enumerate() {
            assert!(!tree.gone || tree.block.is_none(), "tree {number} is gone, and carries a block");
            let others = self.trees[..number].iter().filter_map(|other| other.block);
            if let Some(block) = tree.block {
                let twice = others.chain(self.unassigned.iter().copied()).any(|other| other == block);
                assert!(
                    !twice && undecided(block),
                    "block {block} is carried by tree {number} and not by it alone"
                );
            }
            tree.lanes.iter().for_each(|lane| lane.check(self.config.waiting_max));
            let counts = &tree.counters;
            assert!(
                counts.duplicates <= counts.interests && counts.signals <= counts.duplicates,
                "{counts:?}"
            );
            assert!(
                counts.packets <= counts.interests && counts.first_bytes <= counts.sent_bytes,
                "{counts:?}"
            );
        }
        assert!(self.unassigned.len() <= self.decisions.len(), "there are not so many blocks");
        assert!(
            self.unassigned.front().is_none_or(|block| undecided(*block)),
            "what follows is decided already"
        );
    }

    /// Returns the next action, or `None` until `deadline` or the next input.
    pub fn poll(&mut self, now: Time) -> Option<Output> {
        let header = u32::from(self.config.header_bytes);
        for number in 0..self.trees.len() {
            let tree = &mut self.trees[number];
            tree.rate.advance(now);
            for at in 0..tree.lanes.len() {
                let lane = &mut tree.lanes[at];
                if is_full(self.full_ports, lane.port) {
                    continue;
                }
                let Some(next) = lane.next() else { continue };
                let (bps, depth) = (tree.rate.bps(), tree.rate.depth_bytes());
                lane.bucket.fill(now, bps, depth);
                let length = self.config.blocks.length_of(next.sn);
                if !lane.bucket.take(u32::from(length) + header, depth) {
                    tree.rate.limits();
                    continue;
                }
                let (port, front) = (lane.port, lane.front);
                lane.repeated = if next.again { lane.repeated.saturating_add(1) } else { 0 };
                if next.again {
                    lane.again.pop_front()
                } else {
                    lane.first.pop_front()
                };
                tree.counters.packets += 1;
                tree.counters.sent_bytes += u64::from(length);
                if !next.again {
                    lane.turns.sent(now);
                    tree.repeats.first();
                    tree.advanced = true;
                    tree.counters.first_bytes += u64::from(length);
                }
                return Some(Output::Send { port, data: self.data(number, next, length, front) });
            }
        }
        None
    }

    /// Returns the time when a packet may be sent, or the rate will rise while packets wait.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let header = u32::from(self.config.header_bytes);
        let mut earliest: Option<Time> = None;
        for tree in &self.trees {
            for lane in tree.lanes.iter().filter(|lane| !is_full(self.full_ports, lane.port)) {
                let Some(next) = lane.next() else { continue };
                let bytes = u32::from(self.config.blocks.length_of(next.sn)) + header;
                let tokens = lane.bucket.time_for(bytes, tree.rate.depth_bytes(), tree.rate.bps());
                let at = tokens.min(tree.rate.next_advance());
                earliest = Some(earliest.map_or(at, |other| other.min(at)));
            }
        }
        earliest
    }

    fn interest(&mut self, now: Time, port: u8, interest: &Interest) {
        let Name { transfer, sn, .. } = interest.name;
        let number = usize::from(interest.tree);
        if transfer != self.config.transfer || !self.config.blocks.exists(sn) || number >= self.trees.len() {
            self.refused += 1;
            return;
        }
        let (packets, depth) = (self.config.blocks.numbers(), self.config.rate.depth_bytes);
        let tree = &mut self.trees[number];
        let at = tree.lanes.iter().position(|lane| lane.port == port).unwrap_or_else(|| {
            let bucket = Bucket::new(now, depth);
            let (first, again) = (VecDeque::new(), VecDeque::new());
            let turns = Turns::new(self.config.credits);
            let asked = Bits::new(packets);
            tree.lanes.push(Lane { port, bucket, asked, first, front: 0, again, repeated: 0, turns });
            tree.lanes.len() - 1
        });
        let lane = &mut tree.lanes[at];
        let waiting_max = self.config.waiting_max as usize;
        if lane.first.len() + lane.again.len() >= waiting_max {
            self.refused += 1;
            return;
        }
        tree.rate.advance(now);
        tree.counters.interests += 1;
        let waiting = Waiting { sn, back: interest.route, again: true, fresh: interest.fresh };
        if lane.asked.insert(sn) {
            lane.advance(&self.config.blocks, tree.block, sn);
            lane.turns.asked(now);
            lane.first.push_back(Waiting { again: false, ..waiting });
            return;
        }
        let mut queued = lane.first.iter_mut().chain(&mut lane.again);
        if let Some(same) = queued.find(|other| other.sn == sn) {
            // It still waits for tokens: nothing has been lost. The way may have changed.
            same.back = interest.route;
            return;
        }
        // What is asked for again takes half of the places at most.
        if lane.again.len() >= (waiting_max / 2).max(1) {
            self.refused += 1;
            return;
        }
        lane.again.push_back(waiting);
        tree.counters.duplicates += 1;
        tree.repeats.again();
        // Credits that lost packets hold make a round trip seem longer, by a packet each.
        let packet = self.config.blocks.length_of(sn).saturating_add(self.config.header_bytes);
        let slack = self.config.rate.time_of(packet) * u64::from(self.config.credits / 2);
        let chance = self.config.chance && tree.repeats.is_small() && lane.turns.are_quick(slack);
        // A packet that was corrupt on its way is no sign of congestion.
        if !interest.fresh && !chance {
            tree.duplicate(now, sn, self.config.credits);
        }
    }

    /// The packet for an interest, with the decision if it is one of the block's last. One that was asked for
    /// past all stores, and that was sent before, says where the tree is.
    fn data(&mut self, number: usize, waiting: Waiting, length: u16, front: u64) -> Data {
        let blocks = self.config.blocks;
        let ahead = u64::from(self.config.decide_ahead.max(1));
        let block = (waiting.sn < blocks.packets()).then(|| blocks.block_of(waiting.sn));
        let ends = block.filter(|block| waiting.sn + ahead >= blocks.packets_of(*block).end);
        let decision = match ends {
            Some(block) => self.decide(number, block),
            None if waiting.fresh && waiting.again => self.place(number, front),
            None => Decision::Open,
        };
        Data {
            name: Name::new(self.config.transfer, waiting.sn),
            route: waiting.back.stepped(),
            decision,
            length,
            tree: number as u8,
            again: waiting.again,
        }
    }

    /// Returns the place of a tree, for one that was cut off: the furthest packet that others asked for.
    fn place(&self, number: usize, front: u64) -> Decision {
        let blocks = self.config.blocks;
        let Some(block) = self.trees[number].block else { return Decision::End };
        let first = blocks.packets_of(block).start;
        let packet = if blocks.block_of(front) == block { front } else { first };
        u32::try_from(packet).map_or(Decision::Open, Decision::At)
    }

    /// Decides which block follows a block. The first tree that comes to its end and carries it decides.
    fn decide(&mut self, number: usize, block: u32) -> Decision {
        let decided = self.decisions[block as usize];
        if decided != Decision::Open {
            return decided;
        }
        // Late interests in a tree that is gone give it no block: another tree is to carry that.
        if self.trees[number].gone {
            return Decision::Open;
        }
        if self.trees[number].block != Some(block) {
            // After a restart receivers go on where they were: the tree takes up the block it is asked for.
            let Some(at) = self.unassigned.iter().position(|&other| other == block) else {
                return Decision::Open;
            };
            self.unassigned.remove(at);
        }
        let next = self.unassigned.pop_front();
        self.trees[number].block = next;
        let decision = next.map_or(Decision::End, Decision::Next);
        self.decisions[block as usize] = decision;
        decision
    }

    fn tree_gone(&mut self, number: u8) {
        let Some(tree) = self.trees.get_mut(usize::from(number)).filter(|tree| !tree.gone) else { return };
        tree.gone = true;
        tree.lanes.clear();
        if let Some(block) = tree.block.take() {
            self.unassigned.push_front(block);
        }
    }

    /// Its rate is as it was: if that is too high now, duplicates tell.
    fn tree_back(&mut self, number: u8) {
        let Some(tree) = self.trees.get_mut(usize::from(number)).filter(|tree| tree.gone) else { return };
        tree.gone = false;
        tree.block = self.unassigned.pop_front();
    }
}

fn is_full(ports: u128, port: u8) -> bool {
    ports >> (u32::from(port) % PORTS_MAX) & 1 == 1
}

impl Lane {
    /// A packet of the object was asked for, for the first time.
    fn advance(&mut self, blocks: &Blocks, carried: Option<u32>, sn: u64) {
        let block = (sn < blocks.packets()).then(|| blocks.block_of(sn));
        if block.is_some() && block == carried {
            let is_further = blocks.block_of(self.front) != blocks.block_of(sn) || sn > self.front;
            self.front = if is_further { sn } else { self.front };
        }
    }

    /// Returns the packet that leaves next.
    fn next(&self) -> Option<Waiting> {
        let (first, again) = (self.first.front(), self.again.front());
        let next = if self.repeated >= REPEATS_MAX { first.or(again) } else { again.or(first) };
        next.copied()
    }

    fn check(&self, waiting_max: u32) {
        let waiting = self.first.len() + self.again.len();
        assert!(waiting <= waiting_max as usize, "{waiting} wait at port {}", self.port);
        assert!(self.first.len() as u64 <= self.asked.count(), "what waits was asked for");
        let mut front = self.first.front().into_iter().chain(self.again.front());
        assert!(front.all(|next| self.asked.has(next.sn)), "what waits was asked for");
    }
}

impl Tree {
    /// A duplicate interest for something that was sent: a congestion signal, unless it is within w of the
    /// last one. One round trip brings up to w duplicates, and they are to halve the rate once.
    ///
    /// Where only retransmissions have been sent since then, all of the rate serves the receivers that lag
    /// behind. They do not lag because it is too high, and a lower one would only keep them behind for
    /// longer: after a failure, a receiver that has missed seconds asks for all of them again.
    fn duplicate(&mut self, now: Time, sn: u64, credits: u32) {
        let gap = self.signal_sn.is_none_or(|last| last.abs_diff(sn) >= u64::from(credits));
        if self.advanced {
            self.rate.duplicate(now);
        }
        if !gap {
            return;
        }
        self.signal_sn = Some(sn);
        if core::mem::take(&mut self.advanced) {
            self.counters.signals += 1;
            self.rate.halve();
        }
    }
}

#[cfg(test)]
mod tests;
