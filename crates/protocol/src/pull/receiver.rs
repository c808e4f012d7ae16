//! A receiver of a pull transfer: it asks for every packet until it has it (Datacast, section 5).

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use polycast_types::{Duration, Handle, RangeSet, Time};

use super::Route;
use super::blocks::{Bits, Blocks};
use super::lists::{ListPlace, Lists};
use super::packet::{Data, Decision, Interest, Name};

/// Time that a receiver waits for a packet before it requests it again (RTO).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryTime {
    /// Always as long; the paper's is 20 ms.
    Fixed(Duration),
    /// From the round trips that were seen, as TCP does (RFC 6298).
    Adaptive {
        /// Before the first round trip.
        initial: Duration,
        /// Never shorter than this.
        least: Duration,
    },
}

/// A tree that stays silent is asked ever more seldom, but at least this often.
const RETRY_MOST: Duration = Duration::from_secs(1);

/// The time to wait is doubled at most so often.
const DOUBLED_MOST: u32 = 6;

/// One in so many that a tree asks for is a packet of a list, while there are any: lists stay well ahead of
/// what they name.
const LIST_TURNS: u32 = 8;

/// In every tree a receiver may wait for so many times its credits, lost packets counted.
const OPEN_PER_CREDIT: usize = 8;

/// A tree is cut off where its oldest interest was repeated so often and nothing at all came meanwhile. A
/// loss by chance, however often, is no cut: other packets come.
const CUT_OFF_TRIES: u32 = 2;

/// Number of answers that any store may have given after which one that was cut off goes on where it was: a
/// node of an older version drops the source's word. Every other request is such a one.
const PLAIN_ANSWERS: u32 = 2;

/// Settings of a receiver.
#[derive(Clone, Debug)]
pub struct ReceiverConfig {
    /// The transfer.
    pub transfer: Handle,
    /// The division of the object.
    pub blocks: Blocks,
    /// The way to the source in each tree; `None` for a tree that does not reach this receiver.
    pub routes: Vec<Option<Route>>,
    /// Number of packets that may be requested at a time in each tree (w).
    pub credits: u32,
    /// Time before a packet is requested again.
    pub retry: RetryTime,
    /// A packet counts as lost when so many that were asked for after it, in the same tree, have come before
    /// it, and its round trip is over: it holds no credit any more, and is asked for again after half of the
    /// time. The paper's receivers wait for the time alone (`None`), so that some losses by chance hold all
    /// of their credits.
    pub overtaken: Option<u32>,
    /// A tree from which nothing has come for so long is reported.
    pub stalled_after: Duration,
}

/// Events that a receiver handles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// These packets are there already, from an earlier try.
    Held {
        /// Their numbers.
        sns: Range<u64>,
    },
    /// All that is held has been said: begin.
    Begin,
    /// The roots of the lists of the first sections are known. It never sinks. Where names travel in lists,
    /// only packets may be asked for whose section's list is there.
    Roots {
        /// Number of sections.
        until: u64,
    },
    /// A packet came.
    Data(Data),
    /// These packets were corrupt: they are to come again, and from the source. Of a packet of a list this
    /// has to be said before the next `poll` after its `Keep`, which reads what it names.
    Corrupt {
        /// Their numbers.
        sns: Range<u64>,
    },
    /// The way to the source has changed in a tree, or there is none any more.
    Rerouted {
        /// The tree.
        tree: u8,
        /// The new way.
        route: Option<Route>,
    },
    /// A tree that had no way is there again.
    Regained {
        /// The tree.
        tree: u8,
        /// The way.
        route: Route,
        /// The block that it carries.
        block: u32,
    },
}

/// Actions for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Give an interest to the node's forwarder.
    Ask(Interest),
    /// Keep the payload of the last `Data`: of the object, or of a list. What a list's packet names is asked
    /// for next.
    Keep {
        /// Its number.
        sn: u64,
        /// Time since it was requested; `None` if it was requested more than once.
        round_trip: Option<Duration>,
    },
    /// The list of a section is there whole: its packets are asked for from now on. Sections come in their
    /// order.
    Listed {
        /// The section.
        section: u64,
    },
    /// Every packet is there. Said again if some were corrupt and have come again.
    Complete,
    /// Nothing comes in a tree any more: a planner should look after it.
    Stalled {
        /// The tree.
        tree: u8,
    },
}

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Interests sent.
    pub interests: u64,
    /// Repeated interests among them.
    pub repeated: u64,
    /// Packets that were there already.
    pub duplicates: u64,
    /// Packets that do not belong to the transfer.
    pub refused: u64,
}

/// An interest that is not answered.
#[derive(Clone, Copy, Debug)]
struct Open {
    sn: u64,
    sent_at: Time,
    tries: u32,
    /// Number of packets requested after it that have arrived.
    overtaken: u32,
    /// It counts as lost.
    lost: bool,
}

impl Open {
    fn new(sn: u64, now: Time, tries: u32) -> Self {
        Open { sn, sent_at: now, tries, overtaken: 0, lost: false }
    }
}

#[derive(Clone, Debug)]
struct Tree {
    route: Option<Route>,
    /// In the order in which they were sent.
    open: VecDeque<Open>,
    /// Number of open interests that count as lost.
    lost: usize,
    block: Option<u32>,
    /// The next packet of the block to ask for.
    cursor: u64,
    end: u64,
    decision: Decision,
    /// Number of blocks that it has gone through, so that decisions that lead in a circle end.
    moves: u32,
    asked_last: bool,
    /// Nothing has come for a while, or the way is another: the others may be far ahead. One packet is asked
    /// for past all stores, and the source's answer says where the tree is. What was missed is a gap until
    /// the end, where it holds up no other receiver.
    cut_off: bool,
    /// Number of answers since then that did not have to come from the source.
    plain: u32,
    last_data: Time,
    stalled: bool,
    timer: RoundTrips,
    /// Packets of lists to ask for in this tree.
    lists: VecDeque<u64>,
    /// Number of choices it has made.
    turns: u32,
}

/// The receiver's machine: `handle` what happens, then `poll` until `None`, and again at `deadline`.
#[derive(Clone, Debug)]
pub struct Receiver {
    config: ReceiverConfig,
    trees: Vec<Tree>,
    have: Bits,
    /// Packets to ask for before all others, in any tree.
    redo: RangeSet,
    /// Packets that only the source may answer for.
    fresh: RangeSet,
    /// Position of the search for missing packets when no tree has a block left.
    sweep: u64,
    lists: Lists,
    /// Packets of lists that are there, and of which their driver may still find that they are corrupt.
    unread: VecDeque<ListPlace>,
    /// Packets of the object below this number have names.
    known: u64,
    begun: bool,
    outputs: VecDeque<Output>,
    counters: Counters,
}

impl Receiver {
    /// A receiver that holds nothing yet.
    #[must_use]
    pub fn new(config: ReceiverConfig) -> Self {
        assert!(config.credits > 0, "without credit nothing can be asked for");
        let blocks = config.blocks;
        let tree = |(number, route): (usize, &Option<Route>)| {
            let block = (number < blocks.count() as usize && route.is_some()).then_some(number as u32);
            let packets = block.map_or(0..0, |block| blocks.packets_of(block));
            Tree {
                route: *route,
                open: VecDeque::new(),
                lost: 0,
                block,
                cursor: packets.start,
                end: packets.end,
                decision: Decision::Open,
                moves: 0,
                asked_last: false,
                cut_off: false,
                plain: 0,
                last_data: Time::ZERO,
                stalled: false,
                timer: RoundTrips::default(),
                lists: VecDeque::new(),
                turns: 0,
            }
        };
        Receiver {
            trees: config.routes.iter().enumerate().map(tree).collect(),
            have: Bits::new(blocks.numbers()),
            redo: RangeSet::new(),
            fresh: RangeSet::new(),
            sweep: 0,
            lists: Lists::default(),
            unread: VecDeque::new(),
            known: if blocks.sections() == 0 { blocks.packets() } else { 0 },
            begun: false,
            outputs: VecDeque::new(),
            counters: Counters::default(),
            config,
        }
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the number of packets of the object that it has.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.have.count() - self.lists.packets() - self.unread.len() as u64
    }

    /// Returns true if it has packet `sn`; false for a packet that does not exist.
    #[must_use]
    pub fn has(&self, sn: u64) -> bool {
        sn < self.config.blocks.numbers() && self.have.has(sn)
    }

    /// Returns true once it has all packets of the object.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.packets() == self.config.blocks.packets()
    }

    /// Returns true once there is nothing left to request.
    fn is_over(&self) -> bool {
        self.is_complete() && !self.lists.waits_for_hashes(&self.config.blocks)
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Held { sns } => {
                for sn in sns.start..sns.end.min(self.config.blocks.packets()) {
                    self.have.insert(sn);
                    self.fresh.remove(sn..sn + 1);
                }
            }
            Input::Begin => {
                self.begun = true;
                self.trees.iter_mut().for_each(|tree| tree.last_data = now);
                if self.is_complete() {
                    self.outputs.push_back(Output::Complete);
                }
            }
            Input::Roots { until } => {
                self.lists.told(&self.config.blocks, until);
                self.begin_lists();
            }
            Input::Data(data) => self.data(now, &data),
            Input::Corrupt { sns } => {
                for sn in sns.start..sns.end.min(self.config.blocks.packets()) {
                    self.lose(sn);
                }
                self.lose_unread(&sns);
            }
            Input::Rerouted { tree, route } => self.rerouted(now, tree, route),
            Input::Regained { tree, route, block } => {
                self.rerouted(now, tree, Some(route));
                self.begin_block(tree, block);
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
        let blocks = self.config.blocks;
        assert!(self.packets() <= blocks.packets(), "it has more packets than there are");
        self.lists.check(&blocks);
        assert!(
            self.unread.iter().all(|place| self.have.has(blocks.list_sn(*place))),
            "what is read is there"
        );
        for (number, tree) in self.trees.iter().enumerate() {
            let most = self.config.credits as usize * self.config.overtaken.map_or(1, |_| OPEN_PER_CREDIT);
            assert!(tree.open.len() <= most, "tree {number} has more open than credits");
            assert_eq!(
                tree.open.iter().filter(|open| open.lost).count(),
                tree.lost,
                "what tree {number} lost"
            );
            let sent = tree.open.iter().map(|open| open.sent_at);
            assert!(sent.is_sorted(), "what tree {number} has open is in the order of asking");
            let mut asked = tree.open.iter().map(|open| open.sn).chain(tree.lists.iter().copied());
            assert!(asked.all(|sn| blocks.exists(sn)), "tree {number} asks for packets that there are not");
            let Some(block) = tree.block else { continue };
            let packets = blocks.packets_of(block);
            assert!(block < blocks.count() && tree.end == packets.end, "tree {number} carries no such block");
            assert!((packets.start..=packets.end).contains(&tree.cursor), "tree {number} has left its block");
            assert!(tree.moves <= blocks.count(), "tree {number} goes in a circle");
        }
        let mut fresh = self.fresh.iter().flatten();
        assert!(
            fresh.all(|sn| blocks.exists(sn) && !self.have.has(sn)),
            "what it has is to come from the source"
        );
        assert!(
            self.redo.iter().next_back().is_none_or(|last| last.end <= blocks.numbers()),
            "no such packet"
        );
        assert!(self.sweep <= blocks.packets(), "it looks for packets that there are not");
    }

    /// Returns the next action, or `None` until `deadline` or the next input.
    pub fn poll(&mut self, now: Time) -> Option<Output> {
        if self.outputs.is_empty() {
            self.read_lists();
        }
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        if !self.begun || self.is_over() {
            return None;
        }
        for number in 0..self.trees.len() {
            let Some(route) = self.trees[number].route else { continue };
            while let Some((at, early)) = self.trees[number].due(now, self.config.retry) {
                if let Some(sn) = self.again(now, number, at, early) {
                    return Some(self.ask(number, route, sn));
                }
            }
            if self.has_credit(number)
                && let Some(sn) = self.choose(number)
            {
                let tree = &mut self.trees[number];
                tree.open.push_back(Open::new(sn, now, 0));
                if tree.cut_off && !self.have.has(sn) {
                    self.fresh.insert(sn..sn + 1);
                }
                return Some(self.ask(number, route, sn));
            }
        }
        None
    }

    /// Takes up an interest that is due; the packet to ask for again, unless it has come by another tree.
    fn again(&mut self, now: Time, number: usize, at: usize, early: bool) -> Option<u64> {
        let tree = &mut self.trees[number];
        let open = tree.take(at);
        let sn = open.sn;
        if self.have.has(sn) && !(tree.asked_last && sn + 1 == tree.end) {
            return None;
        }
        let is_silent = tree.last_data < open.sent_at;
        if !tree.stalled && now.since(tree.last_data) >= self.config.stalled_after {
            tree.stalled = true;
            self.outputs.push_back(Output::Stalled { tree: number as u8 });
        }
        if is_silent && open.tries >= CUT_OFF_TRIES && !tree.cut_off {
            tree.open.push_back(open);
            self.cut_off(number);
            return None;
        }
        if !early {
            tree.timer.expired(now, self.config.retry);
        }
        if tree.cut_off && open.tries.is_multiple_of(2) {
            self.fresh.remove(sn..sn + 1);
        } else if tree.cut_off && !self.have.has(sn) {
            self.fresh.insert(sn..sn + 1);
        }
        tree.open.push_back(Open::new(sn, now, open.tries.saturating_add(1)));
        self.counters.repeated += 1;
        Some(sn)
    }

    fn has_credit(&self, number: usize) -> bool {
        let tree = &self.trees[number];
        let credits = if tree.cut_off { 1 } else { self.config.credits as usize };
        tree.open.len() - tree.lost < credits && tree.open.len() < credits * OPEN_PER_CREDIT
    }

    /// A tree may have gone on without this receiver. What it was asked for is a part of the gap: nodes still
    /// wait for it by the way that has failed, and it would hold credits for a while.
    fn cut_off(&mut self, number: usize) {
        let tree = &mut self.trees[number];
        (tree.cut_off, tree.plain) = (true, 0);
        tree.lost = 0;
        for Open { sn, .. } in core::mem::take(&mut tree.open) {
            // Its answer would say where the tree goes on.
            tree.asked_last &= sn + 1 != tree.end;
            let is_found_later = self.sweep == 0 && sn < self.config.blocks.packets();
            if !is_found_later && !self.have.has(sn) {
                self.redo.insert(sn..sn + 1);
            }
        }
    }

    /// Returns the time to request a packet again.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        if !self.begun || self.is_over() {
            return None;
        }
        let again = |tree: &Tree| {
            tree.route?;
            tree.next_due(self.config.retry)
        };
        self.trees.iter().filter_map(again).min()
    }

    fn ask(&mut self, number: usize, route: Route, sn: u64) -> Output {
        self.counters.interests += 1;
        let name = Name::new(self.config.transfer, sn);
        let fresh = !self.fresh.is_empty() && self.fresh.contains(sn);
        Output::Ask(Interest { name, route, tree: number as u8, fresh })
    }

    fn data(&mut self, now: Time, data: &Data) {
        let Name { transfer, sn, .. } = data.name;
        let blocks = self.config.blocks;
        let number = usize::from(data.tree);
        let place = blocks.list_place(sn);
        let is_known = sn < blocks.packets() || place.is_some_and(|place| self.is_named(place));
        if transfer != self.config.transfer || !is_known || number >= self.trees.len() {
            self.counters.refused += 1;
            return;
        }
        if data.length != blocks.length_of(sn) {
            self.counters.refused += 1;
            self.forged(number, sn);
            return;
        }
        let block = place.is_none().then(|| blocks.block_of(sn));
        let tree = &mut self.trees[number];
        tree.last_data = now;
        tree.stalled = false;
        let mut round_trip = None;
        let mut is_word = false;
        if let Some(at) = tree.open.iter().position(|open| open.sn == sn) {
            is_word = core::mem::take(&mut tree.cut_off);
            let open = tree.take(at);
            tree.overtake(now, at, self.config.overtaken);
            if open.tries == 0 {
                round_trip = Some(now.since(open.sent_at));
                tree.timer.seen(now.since(open.sent_at));
            }
        }
        if block.is_some() && tree.block == block {
            match data.decision {
                Decision::Open | Decision::At(_) if sn + 1 == tree.end => tree.decision = Decision::End,
                Decision::Open | Decision::At(_) => {}
                Decision::Next(next) if next >= blocks.count() => tree.decision = Decision::End,
                decision => tree.decision = decision,
            }
        }
        if is_word {
            let is_plain = !self.fresh.contains(sn);
            tree.leap(&blocks, data.decision, tree.block == block, is_plain);
        }
        if !self.have.insert(sn) {
            self.counters.duplicates += 1;
            return;
        }
        if !self.fresh.is_empty() {
            self.fresh.remove(sn..sn + 1);
        }
        self.outputs.push_back(Output::Keep { sn, round_trip });
        if let Some(place) = place {
            self.unread.push_back(place);
        } else if self.is_complete() {
            self.outputs.push_back(Output::Complete);
        }
    }

    /// Returns true if it could request this packet of a list: the packet that names it is there.
    fn is_named(&self, place: ListPlace) -> bool {
        let blocks = self.config.blocks;
        let ListPlace { section, level, index } = place;
        let named_by = |above| {
            let at = ListPlace { section, level: above, index: index / blocks.list_fan_out() };
            self.have.has(blocks.list_sn(at))
        };
        let is_root = level + 1 == blocks.list_levels(section);
        let had = self.have.has(blocks.list_sn(place));
        had || (self.lists.has_begun(section) && (is_root || named_by(level + 1)))
    }

    /// Packets of lists have come, and their driver had nothing to say against them.
    fn read_lists(&mut self) {
        let blocks = self.config.blocks;
        while let Some(place) = self.unread.pop_front() {
            self.lists.keep(place);
            blocks.list_children(place).for_each(|sn| self.queue_list(sn));
            while let Some(section) = self.lists.complete() {
                self.outputs.push_back(Output::Listed { section });
            }
            self.known = self.lists.known(&blocks);
            self.begin_lists();
        }
    }

    /// A packet that was there was corrupt.
    fn lose(&mut self, sn: u64) {
        if self.have.remove(sn) {
            self.redo.insert(sn..sn + 1);
            self.fresh.insert(sn..sn + 1);
        }
    }

    /// Packets of lists that were corrupt, as far as they were not read.
    fn lose_unread(&mut self, sns: &Range<u64>) {
        let blocks = self.config.blocks;
        let is_corrupt = |place: &ListPlace| sns.contains(&blocks.list_sn(*place));
        while let Some(at) = self.unread.iter().position(is_corrupt) {
            let place = self.unread.remove(at).expect("it was just found there");
            self.lose(blocks.list_sn(place));
        }
    }

    fn begin_lists(&mut self) {
        while let Some(root) = self.lists.begin(&self.config.blocks) {
            self.queue_list(root);
        }
    }

    /// All receivers ask for a packet of a list in the same tree, so that it passes each link once.
    fn queue_list(&mut self, sn: u64) {
        let trees = self.trees.len();
        let home = (0..trees).map(|turn| (sn as usize).wrapping_add(turn) % trees);
        match home.into_iter().find(|tree| self.trees[*tree].route.is_some()) {
            Some(tree) => self.trees[tree].lists.push_back(sn),
            None => {
                self.redo.insert(sn..sn + 1);
            }
        }
    }

    /// A packet that was asked for has come with an impossible length. Stores on the way may hold it, so that
    /// only the source can help.
    fn forged(&mut self, number: usize, sn: u64) {
        let tree = &mut self.trees[number];
        if let Some(at) = tree.open.iter().position(|open| open.sn == sn)
            && !self.have.has(sn)
        {
            tree.take(at);
            // Another tree may ask for it now. Where this one goes on, only its own answer tells.
            tree.asked_last &= sn + 1 != tree.end;
            self.redo.insert(sn..sn + 1);
            self.fresh.insert(sn..sn + 1);
        }
    }

    /// The next packet to ask for in a tree that has credit.
    fn choose(&mut self, number: usize) -> Option<u64> {
        // The source's word on a packet of another block tells nothing of this tree, and the node's forwarder
        // gives one answer to what two trees ask for: that of the other tree may come first.
        if self.trees[number].cut_off && self.trees[number].block.is_some() {
            while let Some(sn) = self.choose_of_object(number) {
                if !self.is_open(sn) {
                    return Some(sn);
                }
                // The last packet of the block tells where the tree goes on: it is asked for all the same.
                if sn + 1 == self.trees[number].end {
                    self.trees[number].asked_last = false;
                    break;
                }
            }
        }
        while let Some(sn) = self.redo.first() {
            self.redo.remove(sn..sn + 1);
            if !self.have.has(sn) && !self.is_open(sn) {
                return Some(sn);
            }
        }
        // Lists go before what they name, and leave the rest of the way to what is named already.
        self.trees[number].turns = self.trees[number].turns.wrapping_add(1);
        if self.trees[number].turns.is_multiple_of(LIST_TURNS)
            && let Some(sn) = self.choose_list(number)
        {
            return Some(sn);
        }
        self.choose_of_object(number).or_else(|| self.choose_list(number))
    }

    fn choose_list(&mut self, number: usize) -> Option<u64> {
        while let Some(sn) = self.trees[number].lists.pop_front() {
            if !self.have.has(sn) && !self.is_open(sn) {
                return Some(sn);
            }
        }
        None
    }

    fn choose_of_object(&mut self, number: usize) -> Option<u64> {
        let (blocks, known) = (self.config.blocks, self.known);
        let tree = &mut self.trees[number];
        while tree.block.is_some() {
            if let Some(sn) = self.have.first_missing(tree.cursor..tree.end) {
                if sn >= known {
                    return None;
                }
                tree.cursor = sn + 1;
                tree.asked_last |= tree.cursor == tree.end;
                return Some(sn);
            }
            tree.cursor = tree.end;
            match tree.decision {
                Decision::Open if tree.asked_last || tree.end > known => return None,
                Decision::Open => {
                    // All of the block was there before. Its last packet tells where the tree goes on.
                    tree.asked_last = true;
                    let last = tree.end - 1;
                    return (!tree.open.iter().any(|open| open.sn == last)).then_some(last);
                }
                Decision::Next(next) if tree.moves < blocks.count() => {
                    let packets = blocks.packets_of(next);
                    tree.block = Some(next);
                    (tree.cursor, tree.end) = (packets.start, packets.end);
                    tree.decision = Decision::Open;
                    tree.asked_last = false;
                    tree.moves += 1;
                }
                Decision::Next(_) | Decision::End | Decision::At(_) => tree.block = None,
            }
        }
        self.sweep()
    }

    /// Returns a missing packet that was not requested, when no tree has a block left. One from which nothing
    /// comes is not waited for.
    fn sweep(&mut self) -> Option<u64> {
        if self.trees.iter().any(|tree| tree.block.is_some() && !tree.cut_off) {
            return None;
        }
        let packets = self.config.blocks.packets();
        while let Some(sn) = self.have.first_missing(self.sweep..packets) {
            if sn >= self.known {
                return None;
            }
            self.sweep = sn + 1;
            if !self.is_open(sn) {
                return Some(sn);
            }
        }
        self.sweep = packets;
        None
    }

    fn is_open(&self, sn: u64) -> bool {
        self.trees.iter().any(|tree| tree.open.iter().any(|open| open.sn == sn))
    }

    /// A tree goes on with this block.
    fn begin_block(&mut self, number: u8, block: u32) {
        let blocks = self.config.blocks;
        let Some(tree) = self.trees.get_mut(usize::from(number)).filter(|_| block < blocks.count()) else {
            return;
        };
        let packets = blocks.packets_of(block);
        (tree.block, tree.cursor, tree.end) = (Some(block), packets.start, packets.end);
        (tree.decision, tree.asked_last) = (Decision::Open, false);
    }

    fn rerouted(&mut self, now: Time, number: u8, route: Option<Route>) {
        let Some(tree) = self.trees.get_mut(usize::from(number)) else { return };
        tree.route = route;
        tree.last_data = now;
        tree.stalled = false;
        tree.timer.doubled = 0;
        if route.is_some() {
            // The old way may never answer, and whose answer comes by the new one cannot be told.
            return self.cut_off(usize::from(number));
        }
        let open = core::mem::take(&mut tree.open);
        let lists = core::mem::take(&mut tree.lists);
        tree.lost = 0;
        tree.block = None;
        for sn in lists {
            self.redo.insert(sn..sn + 1);
        }
        for Open { sn, .. } in open {
            if !self.have.has(sn) {
                self.redo.insert(sn..sn + 1);
            }
        }
    }
}

impl Tree {
    /// The source has answered one that was cut off. Where it says that the tree is far ahead, the tree is
    /// asked there; what lies between is a gap that is filled when no tree has a block left.
    fn leap(&mut self, blocks: &Blocks, decision: Decision, is_of_block: bool, is_plain: bool) {
        match decision {
            Decision::Open if is_plain => {
                self.plain += 1;
                self.cut_off = self.plain < PLAIN_ANSWERS;
            }
            Decision::Open => {}
            Decision::At(packet) => {
                let (packet, block) = (u64::from(packet), blocks.block_of(packet.into()));
                let is_ahead = self.block != Some(block) || self.cursor < packet;
                if packet < blocks.packets() && is_ahead && self.moves < blocks.count() {
                    self.moves += u32::from(self.block != Some(block));
                    (self.block, self.cursor, self.end) = (Some(block), packet, blocks.packets_of(block).end);
                    (self.decision, self.asked_last) = (Decision::Open, false);
                }
            }
            // A block that the tree has left. How far it has come since then, the next answer says.
            Decision::Next(_) | Decision::End if is_of_block => {
                self.cursor = self.end;
                self.cut_off = self.block.is_some() && self.decision != Decision::End;
            }
            Decision::Next(_) | Decision::End => self.cut_off = self.block.is_some(),
        }
    }

    /// Takes out what was asked for, by its place.
    fn take(&mut self, at: usize) -> Open {
        let open = self.open.remove(at).expect("the caller has found it there");
        self.lost -= usize::from(open.lost);
        open
    }

    /// Notes that interests sent before the one at place `at` have been overtaken by it.
    fn overtake(&mut self, now: Time, at: usize, enough: Option<u32>) {
        let Some(enough) = enough else { return };
        let round_trip = Duration(self.timer.smoothed_ns + 4 * self.timer.deviation_ns);
        for open in self.open.iter_mut().take(at) {
            open.overtaken = open.overtaken.saturating_add(1);
            if !open.lost && open.overtaken >= enough && now.since(open.sent_at) > round_trip {
                open.lost = true;
                self.lost += 1;
            }
        }
    }

    /// The place of what is to be asked for again, and whether it is early: what counts as lost, after half
    /// of the time.
    fn due(&self, now: Time, retry: RetryTime) -> Option<(usize, bool)> {
        let first = self.open.front()?;
        if now >= self.again_at(first.sent_at, retry) {
            return Some((0, false));
        }
        let lost = self.first_lost()?;
        (now >= self.early_at(&self.open[lost], retry)).then_some((lost, true))
    }

    /// Returns the time when `due` will return something, if nothing arrives.
    fn next_due(&self, retry: RetryTime) -> Option<Time> {
        let again = self.again_at(self.open.front()?.sent_at, retry);
        let early = self.first_lost().map(|at| self.early_at(&self.open[at], retry));
        Some(early.map_or(again, |early| early.min(again)))
    }

    fn first_lost(&self) -> Option<usize> {
        if self.lost == 0 {
            return None;
        }
        self.open.iter().position(|open| open.lost)
    }

    fn early_at(&self, open: &Open, retry: RetryTime) -> Time {
        open.sent_at + Duration(self.timer.retry_time(retry).0 / 2)
    }

    /// Returns the time to repeat an interest sent at `sent_at`. The longer a tree is silent, the longer the
    /// wait.
    fn again_at(&self, sent_at: Time, retry: RetryTime) -> Time {
        let silent = Duration(sent_at.since(self.last_data).0 / 4).min(RETRY_MOST);
        sent_at + self.timer.retry_time(retry).max(silent)
    }
}

/// Round-trip times, smoothed as in RFC 6298.
#[derive(Clone, Copy, Debug, Default)]
struct RoundTrips {
    smoothed_ns: u64,
    deviation_ns: u64,
    /// Number of times that the retry time was doubled since the last round trip that was seen.
    doubled: u32,
    doubled_at: Time,
}

impl RoundTrips {
    fn seen(&mut self, sample: Duration) {
        self.doubled = 0;
        if self.smoothed_ns == 0 {
            self.smoothed_ns = sample.0.max(1);
            self.deviation_ns = sample.0 / 2;
        } else {
            self.deviation_ns = (3 * self.deviation_ns + self.smoothed_ns.abs_diff(sample.0)) / 4;
            self.smoothed_ns = ((7 * self.smoothed_ns + sample.0) / 8).max(1);
        }
    }

    /// A packet has to be asked for again. Whose answer comes then cannot be told, so that the round trip
    /// stays unknown: the time doubles, once for all that were asked for together, until a packet comes that
    /// was asked for once.
    fn expired(&mut self, now: Time, retry: RetryTime) {
        if now.since(self.doubled_at) >= self.retry_time(retry) {
            self.doubled = (self.doubled + 1).min(DOUBLED_MOST);
            self.doubled_at = now;
        }
    }

    fn retry_time(&self, retry: RetryTime) -> Duration {
        let time = match retry {
            RetryTime::Fixed(time) => return time,
            RetryTime::Adaptive { initial, .. } if self.smoothed_ns == 0 => initial,
            RetryTime::Adaptive { least, .. } => {
                Duration(self.smoothed_ns + 4 * self.deviation_ns).clamp(least, RETRY_MOST)
            }
        };
        Duration(time.0 << self.doubled).min(RETRY_MOST.max(time))
    }
}

#[cfg(test)]
mod tests;
