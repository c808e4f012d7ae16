//! Rules after relays have failed: the paper's algorithm and our own (Shufflecast, section III-C).
//!
//! The p mirrors of a ToR feed the same ToRs, so whichever of them relays, the same part of the next
//! column is served. A source therefore needs one live, reached relay in every mirror class, and it does
//! not matter for the reach which one: [`recover`] finds them whenever there are any, whatever has failed.
//! [`algorithm_2`] looks at each failure alone; several failures together can leave someone out.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use polycast_topology::Shufflecast;

use super::{Reach, UNREACHED, is_relay, relay_set, relaying_partition, walk};

/// Changes of the rules, as (relay, source).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The ToRs that cannot relay.
    pub failed: BTreeSet<u32>,
    /// Rules to install.
    pub activated: BTreeSet<(u32, u32)>,
    /// Rules to remove.
    pub deactivated: BTreeSet<(u32, u32)>,
}

impl Recovery {
    /// Returns true if `relay` relays for `source` after the changes.
    #[must_use]
    pub fn is_relay(&self, network: &Shufflecast, relay: u32, source: u32) -> bool {
        if self.failed.contains(&relay) || self.deactivated.contains(&(relay, source)) {
            return false;
        }
        is_relay(network, relay, source) || self.activated.contains(&(relay, source))
    }

    /// The relay set of a source after the changes, in rising order.
    #[must_use]
    pub fn relay_set(&self, network: &Shufflecast, source: u32) -> Vec<u32> {
        (0..network.tors()).filter(|&tor| self.is_relay(network, tor, source)).collect()
    }

    /// Computes which ToRs the packets of a source reach after the changes.
    #[must_use]
    pub fn reach(&self, network: &Shufflecast, source: u32) -> Reach {
        walk(network, source, |tor| self.is_relay(network, tor, source))
    }

    /// Returns the number of rules of the ToR with the most of them after the changes.
    #[must_use]
    pub fn rules_per_tor_max(&self, network: &Shufflecast) -> u32 {
        let mut rules = vec![network.columns() * network.partition_size(); network.tors() as usize];
        for &(relay, _) in &self.activated {
            rules[relay as usize] += 1;
        }
        for &(relay, _) in &self.deactivated {
            rules[relay as usize] -= 1;
        }
        rules.into_iter().max().unwrap_or(0)
    }

    fn deactivate_all_of(&mut self, network: &Shufflecast, relay: u32) {
        let sources = (0..network.tors()).filter(|&source| is_relay(network, relay, source));
        self.deactivated.extend(sources.map(|source| (relay, source)));
    }
}

/// The paper's recovery from the failure of one relay, to the letter (Algorithm 2).
///
/// The next mirror takes over all rules of the failed relay; for k - 1 sources the relay before it changes
/// too, because the mirror would otherwise not be reached.
#[must_use]
pub fn algorithm_2(network: &Shufflecast, failed: u32) -> Recovery {
    let (p, k, size) = (network.fanout(), network.columns(), network.partition_size());
    let (column, row) = (network.column(failed), network.row(failed));
    let next_mirror = (network.partition(failed) + 1) % p;
    let mirror_row = next_mirror * size + row % size;
    let mirror = network.tor(column, mirror_row);
    let mut recovery = Recovery { failed: BTreeSet::from([failed]), ..Recovery::default() };
    recovery.deactivate_all_of(network, failed);
    recovery.activated.extend(recovery.deactivated.iter().map(|&(_, source)| (mirror, source)));

    let column_before = (column + k - 1) % k;
    let last_digit = row % p;
    let precedent = network.tor(column_before, last_digit * size + mirror_row / p);
    let mirror_precedent = network.tor(column_before, (last_digit + 1) % p * size + mirror_row / p);
    let mut rotated = row;
    for i in 1..k {
        // Circular right shift of the failed relay's row by one more digit.
        rotated = rotated % p * size + rotated / p;
        let source = network.tor((column + k - i) % k, rotated);
        recovery.deactivated.insert((precedent, source));
        recovery.activated.insert((mirror_precedent, source));
    }
    recovery
}

/// Recovery from any set of failures: every ToR that some relays could reach is reached.
///
/// Changes as few rules as it finds to change, and gives the failed relay's sources to its mirrors in turn.
/// After one failure no ToR is farther away than 3k - 1 hops then. After several that would not hold, so
/// that more rules change: until the farthest ToR is as near as any rules of this reach can make it.
#[must_use]
pub fn recover(network: &Shufflecast, failed: &BTreeSet<u32>) -> Recovery {
    let mut recovery = Recovery { failed: failed.clone(), ..Recovery::default() };
    for &relay in failed {
        recovery.deactivate_all_of(network, relay);
    }
    let affected: BTreeSet<u32> = recovery.deactivated.iter().map(|&(_, source)| source).collect();
    for source in affected {
        // Nothing can be done for the servers of a failed ToR: their packets have no way out.
        if !failed.contains(&source) {
            Repair::new(network, failed, source).run(&mut recovery);
        }
    }
    recovery
}

/// The part of [`recover`] that is about one source.
#[must_use]
pub fn recover_source(network: &Shufflecast, failed: &BTreeSet<u32>, source: u32) -> Recovery {
    let mut recovery = Recovery { failed: failed.clone(), ..Recovery::default() };
    let dead = failed.iter().filter(|&&relay| is_relay(network, relay, source));
    recovery.deactivated.extend(dead.map(|&relay| (relay, source)));
    if !recovery.deactivated.is_empty() && !failed.contains(&source) {
        Repair::new(network, failed, source).run(&mut recovery);
    }
    recovery
}

/// The relays of one source while they are being chosen: one for every mirror class.
struct Repair<'a> {
    network: &'a Shufflecast,
    failed: &'a BTreeSet<u32>,
    source: u32,
    /// The relay of every class that differs from the static one.
    changed: BTreeMap<u32, u32>,
    /// The ToRs that relay now.
    active: Vec<bool>,
    reached: Vec<bool>,
}

impl<'a> Repair<'a> {
    fn new(network: &'a Shufflecast, failed: &'a BTreeSet<u32>, source: u32) -> Self {
        let mut active = vec![false; network.tors() as usize];
        relay_set(network, source).into_iter().for_each(|relay| active[relay as usize] = true);
        failed.iter().for_each(|&relay| active[relay as usize] = false);
        Repair { network, failed, source, changed: BTreeMap::new(), active, reached: Vec::new() }
    }

    fn run(mut self, recovery: &mut Recovery) {
        loop {
            let reach = walk(self.network, self.source, |tor| self.relays(tor));
            if !reach.hops.contains(&UNREACHED) {
                break;
            }
            self.reached = reach.hops.iter().map(|&hops| hops != UNREACHED).collect();
            if !self.extend() {
                break;
            }
        }
        if self.failed.len() > 1 {
            self.shorten();
        }
        for (&class, &relay) in &self.changed {
            let before = self.static_relay(class);
            recovery.activated.insert((relay, self.source));
            recovery.deactivated.insert((before, self.source));
        }
    }

    /// A mirror class's name: its member of partition 0.
    fn class(&self, tor: u32) -> u32 {
        let row = self.network.row(tor) % self.network.partition_size();
        self.network.tor(self.network.column(tor), row)
    }

    fn static_relay(&self, class: u32) -> u32 {
        let column = self.network.column(class);
        class + relaying_partition(self.network, self.source, column) * self.network.partition_size()
    }

    fn relay_of(&self, class: u32) -> u32 {
        self.changed.get(&class).copied().unwrap_or_else(|| self.static_relay(class))
    }

    fn relays(&self, tor: u32) -> bool {
        self.active[tor as usize]
    }

    /// Switches relays until no ToR is farther away than the farthest has to be.
    ///
    /// Every class may take any live relay, whatever the others do, so one plan gives each ToR the fewest
    /// hops that any rules do: those over all live relays. Switches here lead over such shortest ways only.
    /// They move no ToR farther away, and so end.
    fn shorten(&mut self) {
        let mut shortest = Shortest::new(self);
        loop {
            let hops = walk(self.network, self.source, |tor| self.relays(tor)).hops;
            let is_far = |tor: &u32| hops[*tor as usize] > shortest.limit;
            let mut far: Vec<u32> = shortest.outwards.iter().copied().filter(is_far).collect();
            if far.is_empty() {
                break;
            }
            far.sort_by_key(|tor| core::cmp::Reverse(hops[*tor as usize]));
            shortest.find_ways(self, &hops);
            let mut switched = BTreeSet::new();
            for tor in far {
                let Some(mut hop) = shortest.nearer(self, tor, &switched) else { continue };
                while shortest.switches[hop as usize] > 0 {
                    hop = shortest.from[hop as usize];
                    switched.insert(self.class(hop));
                    self.switch(hop);
                }
            }
        }
    }

    /// Makes a ToR the relay of its class.
    fn switch(&mut self, relay: u32) {
        let class = self.class(relay);
        let before = self.relay_of(class);
        self.active[before as usize] = false;
        self.active[relay as usize] = true;
        if relay == self.static_relay(class) {
            self.changed.remove(&class);
        } else {
            self.changed.insert(class, relay);
        }
    }

    /// Switches the fewest classes that let packets get one class further than now; false if none can.
    ///
    /// Looks first for a class whose relay has failed: the others follow by themselves once it is served.
    fn extend(&mut self) -> bool {
        let (switches, from) = self.search();
        let Some((_, _, mirror)) =
            self.next_class(&switches, true).or_else(|| self.next_class(&switches, false))
        else {
            return false;
        };
        // Switch the classes on the way, from the mirror back to what is reached already.
        let mut hop = mirror;
        self.switch(mirror);
        while !self.reached[hop as usize] {
            hop = from[hop as usize];
            self.switch(hop);
        }
        debug_assert!(self.relays(self.source), "the source relays for itself");
        true
    }

    /// The class that does not serve its part of the next column and needs the fewest switches to do so, as
    /// (switches, class, its new relay).
    fn next_class(&self, switches: &[u32], only_failed: bool) -> Option<(u32, u32, u32)> {
        let best = |class: u32| self.best_mirror(class, switches);
        let is_dead = |class: &u32| self.failed.contains(&self.relay_of(*class));
        if only_failed {
            return self.failed.iter().map(|relay| self.class(*relay)).filter(is_dead).filter_map(best).min();
        }
        let classes = (0..self.network.tors()).filter(|&tor| self.network.partition(tor) == 0);
        let is_stuck = |class: &u32| is_dead(class) || !self.reached[self.relay_of(*class) as usize];
        classes.filter(is_stuck).filter_map(best).min()
    }

    /// The live mirror of a class that needs the fewest switches, as (switches, class, mirror). Mirrors that
    /// need the same are taken in turn by the sources.
    fn best_mirror(&self, class: u32, switches: &[u32]) -> Option<(u32, u32, u32)> {
        self.mirrors_in_turn(class)
            .filter(|mirror| !self.failed.contains(mirror) && switches[*mirror as usize] != UNREACHED)
            .min_by_key(|&mirror| switches[mirror as usize])
            .map(|mirror| (switches[mirror as usize], class, mirror))
    }

    /// The mirrors of a class, beginning with the one whose turn it is for this source.
    fn mirrors_in_turn(&self, class: u32) -> impl Iterator<Item = u32> + use<> {
        let (p, size) = (self.network.fanout(), self.network.partition_size());
        let first = self.static_relay(class);
        let (turn, partition) = (self.turn(first), self.network.partition(first));
        (0..p).map(move |offset| class + (partition + 1 + (turn + offset) % p) % p * size)
    }

    /// The place of the source among the sources of a relay, within the p - 1 other mirrors.
    fn turn(&self, relay: u32) -> u32 {
        let (p, k) = (self.network.fanout(), self.network.columns());
        let gone = (self.network.column(relay) + k - self.network.column(self.source)) % k;
        let weight = p.pow(k - 1 - gone);
        let row = self.network.row(self.source);
        let rank = row / (weight * p) * weight + row % weight;
        (rank + gone) % (p - 1)
    }

    /// The fewest switches of classes after which each ToR is reached, and the relay it is reached by.
    fn search(&self) -> (Vec<u32>, Vec<u32>) {
        let tors = self.network.tors() as usize;
        let mut switches = vec![UNREACHED; tors];
        let mut from = vec![UNREACHED; tors];
        let mut queue: VecDeque<u32> = VecDeque::new();
        for tor in 0..tors as u32 {
            if self.reached[tor as usize] {
                switches[tor as usize] = 0;
                queue.push_back(tor);
            }
        }
        let mut done = vec![false; tors];
        while let Some(tor) = queue.pop_front() {
            if core::mem::replace(&mut done[tor as usize], true) || self.failed.contains(&tor) {
                continue;
            }
            let cost = switches[tor as usize] + u32::from(!self.relays(tor));
            for child in self.network.children(tor) {
                if cost < switches[child as usize] {
                    switches[child as usize] = cost;
                    from[child as usize] = tor;
                    if cost == switches[tor as usize] {
                        queue.push_front(child)
                    } else {
                        queue.push_back(child)
                    }
                }
            }
        }
        (switches, from)
    }
}

/// The shortest ways from a source over all live relays.
struct Shortest {
    /// The hops to every ToR.
    nearest: Vec<u32>,
    /// The hops to the farthest ToR that can be reached.
    limit: u32,
    /// The ToRs that can be reached, nearest first.
    outwards: Vec<u32>,
    /// The fewest switches after which each ToR is as near as it can be.
    switches: Vec<u32>,
    /// The relay before each ToR then.
    from: Vec<u32>,
}

impl Shortest {
    fn new(repair: &Repair) -> Self {
        let nearest = walk(repair.network, repair.source, |tor| !repair.failed.contains(&tor)).hops;
        let mut outwards: Vec<u32> = (0..repair.network.tors()).collect();
        outwards.retain(|tor| nearest[*tor as usize] != UNREACHED);
        outwards.sort_by_key(|tor| nearest[*tor as usize]);
        let limit = outwards.last().map_or(0, |tor| nearest[*tor as usize]);
        let unknown = vec![UNREACHED; nearest.len()];
        Shortest { nearest, limit, outwards, switches: unknown.clone(), from: unknown }
    }

    /// Finds the ways that need the fewest switches, where the ToRs are so many hops away now.
    fn find_ways(&mut self, repair: &Repair, hops: &[u32]) {
        for &tor in &self.outwards {
            let nearest = self.nearest[tor as usize];
            if hops[tor as usize] == nearest {
                self.switches[tor as usize] = 0;
                continue;
            }
            let switches = |relay: u32| self.switches[relay as usize] + u32::from(!repair.relays(relay));
            let leads_here = |relay: &u32| {
                self.nearest[*relay as usize].checked_add(1) == Some(nearest)
                    && !repair.failed.contains(relay)
            };
            let relays = repair.mirrors_in_turn(repair.network.parent(tor, 0)).filter(leads_here);
            if let Some((switches, relay)) =
                relays.map(|relay| (switches(relay), relay)).min_by_key(|way| way.0)
            {
                (self.switches[tor as usize], self.from[tor as usize]) = (switches, relay);
            }
        }
    }

    /// The ToR on the way to `tor` that has to be as near as it can be for `tor` to be within the limit, and
    /// needs the fewest switches for it; nothing if the way has been switched already.
    fn nearer(&self, repair: &Repair, tor: u32, switched: &BTreeSet<u32>) -> Option<u32> {
        let (mut at, mut behind) = (tor, 0);
        let mut best = (self.switches[tor as usize], tor);
        while at != repair.source {
            let class = repair.network.parent(at, 0);
            if switched.contains(&class) {
                return None;
            }
            // Of ways with as many switches, the one that brings most ToRs nearer: nearest to the source.
            if self.nearest[at as usize] + behind <= self.limit && self.switches[at as usize] <= best.0 {
                best = (self.switches[at as usize], at);
            }
            at = repair.relay_of(class);
            behind += 1;
        }
        Some(best.1)
    }
}
