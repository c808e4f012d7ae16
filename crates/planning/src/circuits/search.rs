//! Search for a choice of groups that is better than the greedy one, with a bound on its work.
//!
//! The greedy choice can be a whole large group worse than the best one, and no swap of one group for others
//! mends that: where three of ten groups fit in any order, four that fit together are found only by trying
//! them together. So the search tries the groups in a tree, those of most volume first, and leaves out what
//! cannot be clearly better than the best so far; then it lets single groups in, in place of those that are
//! in their way.

use alloc::vec;
use alloc::vec::Vec;

/// Work of a search, in racks and groups looked at. It stands for time, which a planner does not have: a
/// decision should not take more than 5 ms for it. On the machine of docs/planning.md a step takes 2 to 4 ns:
/// all of them take 0.4 to 1.4 ms with up to 1,000 racks and groups and 2.3 ms with 4,000, so that slower and
/// busy machines keep to it. With a tenth of the steps, groups of table I lose up to 12 % more.
pub const SEARCH_STEPS: u64 = 500_000;

/// The tree leaves out what is not better by more than one part in so many: the swaps find that sooner. Of
/// 240 draws of groups of 100 anywhere and of 20 to 80 side by side, with 1 to 4 fibres a rack, the worst is
/// at 95.6 % of the optimum with 100, at 93.7 % with 10, and at 83.8 % with 1,000, where unicast uses the
/// steps up.
const GAIN_PART: u128 = 100;

/// Room for claims: the free fibres and splitters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Free fibres of every rack.
    pub ports: Vec<u32>,
    /// Free splitters.
    pub splitters: u32,
}

/// Claim of a group: the room that it would take, and its worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Racks, each once, and how many fibres of each.
    pub racks: Vec<(u32, u32)>,
    /// Splitters.
    pub splitters: u32,
    /// The traffic that circuits would take over: bytes times receivers.
    pub volume: u128,
}

/// The claims that fit together, by place; nothing where none were found that are worth more than those of
/// the greedy choice in this order.
#[must_use]
pub fn search(room: Room, claims: &[Claim], order: &[usize], steps_max: u64) -> Option<Vec<bool>> {
    let mut by_volume = order.to_vec();
    by_volume.sort_by_key(|&claim| core::cmp::Reverse(claims[claim].volume));
    let racks = room.ports.len();
    let mut search = Search {
        claims,
        order,
        by_volume,
        room,
        is_held: vec![false; claims.len()],
        volume: 0,
        steps: 0,
        is_short: vec![false; racks],
    };
    search.fill(&mut Vec::new());
    let greedy = search.volume;
    if order.iter().all(|&claim| search.is_held[claim]) {
        return None;
    }
    let best = search.tree(steps_max / 2);
    search.hold(&best);
    search.fill(&mut Vec::new());
    search.swap(steps_max);
    (search.volume > greedy).then_some(search.is_held)
}

/// The claims that are held, and what is left.
struct Search<'a> {
    claims: &'a [Claim],
    /// The greedy order.
    order: &'a [usize],
    by_volume: Vec<usize>,
    room: Room,
    is_held: Vec<bool>,
    volume: u128,
    steps: u64,
    /// The racks in which a claim lacks fibres; all false between two looks.
    is_short: Vec<bool>,
}

impl Search<'_> {
    fn fits(&mut self, claim: usize) -> bool {
        let claim = &self.claims[claim];
        self.steps += 1;
        if claim.splitters > self.room.splitters {
            return false;
        }
        let lacking = claim.racks.iter().position(|&(rack, fibres)| self.room.ports[rack as usize] < fibres);
        self.steps += lacking.unwrap_or(claim.racks.len()) as u64;
        lacking.is_none()
    }

    fn put(&mut self, at: usize) {
        let claim = &self.claims[at];
        self.room.splitters -= claim.splitters;
        claim.racks.iter().for_each(|&(rack, fibres)| self.room.ports[rack as usize] -= fibres);
        self.is_held[at] = true;
        self.volume += claim.volume;
        self.steps += claim.racks.len() as u64;
    }

    fn take_out(&mut self, at: usize) {
        let claim = &self.claims[at];
        self.room.splitters += claim.splitters;
        claim.racks.iter().for_each(|&(rack, fibres)| self.room.ports[rack as usize] += fibres);
        self.is_held[at] = false;
        self.volume -= claim.volume;
        self.steps += claim.racks.len() as u64;
    }

    /// Holds exactly these.
    fn hold(&mut self, wanted: &[bool]) {
        for claim in (0..wanted.len()).filter(|&claim| !wanted[claim]) {
            if self.is_held[claim] {
                self.take_out(claim);
            }
        }
        for claim in (0..wanted.len()).filter(|&claim| wanted[claim]) {
            if !self.is_held[claim] {
                self.put(claim);
            }
        }
    }

    /// Puts in what fits, in greedy order, and adds it to `put`.
    fn fill(&mut self, put: &mut Vec<usize>) {
        for at in 0..self.order.len() {
            let claim = self.order[at];
            if !self.is_held[claim] && self.fits(claim) {
                self.put(claim);
                put.push(claim);
            }
        }
    }

    /// The best of what is held and of a tree of choices, of which each next claim is in or out.
    fn tree(&mut self, steps_max: u64) -> Vec<bool> {
        let mut best = (self.volume, self.is_held.clone());
        self.hold(&vec![false; self.claims.len()]);
        let candidates: Vec<usize> =
            self.by_volume.clone().into_iter().filter(|&claim| self.fits(claim)).collect();
        self.branch(&candidates, &mut best, steps_max);
        best.1
    }

    /// Tries the candidates, all of which fit, beside what is held. Each level of the recursion looks at all
    /// candidates that are left, so that the steps bound its depth.
    fn branch(&mut self, candidates: &[usize], best: &mut (u128, Vec<bool>), steps_max: u64) {
        if self.volume > best.0 {
            *best = (self.volume, self.is_held.clone());
        }
        let mut within_reach =
            self.volume + candidates.iter().map(|&claim| self.claims[claim].volume).sum::<u128>();
        for (at, &claim) in candidates.iter().enumerate() {
            if self.steps > steps_max || within_reach <= best.0 + best.0 / GAIN_PART {
                return;
            }
            self.put(claim);
            let rest: Vec<usize> =
                candidates[at + 1..].iter().copied().filter(|&other| self.fits(other)).collect();
            self.branch(&rest, best, steps_max);
            self.take_out(claim);
            within_reach -= self.claims[claim].volume;
        }
    }

    /// Lets in one claim after the other in place of those that are in its way, while that is worth it.
    fn swap(&mut self, steps_max: u64) {
        loop {
            let before = self.volume;
            for at in 0..self.by_volume.len() {
                let claim = self.by_volume[at];
                if self.steps > steps_max {
                    return;
                }
                if !self.is_held[claim] {
                    self.swap_in(claim);
                }
            }
            if self.volume == before {
                return;
            }
        }
    }

    /// Puts in this claim, without those that are in its way, and what fits then; if that is worth no more,
    /// all is as before.
    fn swap_in(&mut self, claim: usize) {
        let before = self.volume;
        let (mut out, mut put) = (Vec::new(), Vec::new());
        while !self.fits(claim) {
            let Some(other) = self.in_the_way(claim) else { break };
            self.take_out(other);
            out.push(other);
        }
        if self.fits(claim) {
            self.put(claim);
            put.push(claim);
            self.fill(&mut put);
        }
        if self.volume <= before {
            put.into_iter().for_each(|claim| self.take_out(claim));
            out.into_iter().for_each(|claim| self.put(claim));
        }
    }

    /// The claim whose volume is the least for what it holds of the things that another lacks.
    fn in_the_way(&mut self, wanted: usize) -> Option<usize> {
        let lacks = &self.claims[wanted];
        let lacks_splitters = lacks.splitters > self.room.splitters;
        for &(rack, fibres) in &lacks.racks {
            self.is_short[rack as usize] = self.room.ports[rack as usize] < fibres;
        }
        let mut least: Option<(u128, u128, usize)> = None;
        for (at, claim) in self.claims.iter().enumerate().filter(|(at, _)| self.is_held[*at]) {
            let racks = claim.racks.iter().filter(|(rack, _)| self.is_short[*rack as usize]).count();
            self.steps += 1 + claim.racks.len() as u64;
            let help = racks as u128 + if lacks_splitters { u128::from(claim.splitters) } else { 0 };
            if help > 0 && least.is_none_or(|(volume, of, _)| claim.volume * of < volume * help) {
                least = Some((claim.volume, help, at));
            }
        }
        lacks.racks.iter().for_each(|&(rack, _)| self.is_short[rack as usize] = false);
        least.map(|(_, _, at)| at)
    }
}
