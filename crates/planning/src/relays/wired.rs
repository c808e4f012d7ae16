//! The light of a source among physical ToRs of which some stand for several logical ones (Shufflecast,
//! section III-A1).
//!
//! Every logical ToR gets a copy, so a ToR that stands for two gets two. It takes those of the fibre over
//! which the light has the shortest way, and of one that may be dark only where it has no other; it sends
//! them into all of its splitters that relay for the source, and drops the others: nothing is delivered
//! twice, and nothing circles. The lit splitters are those of the logical network.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use core::iter::successors;

use polycast_topology::Wiring;

/// Way by which the light comes to a ToR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The splitter that it comes from, which is its logical ToR's number.
    pub splitter: u32,
    /// Number of the fibre that it comes in by, among the ToR's fibres from splitters.
    pub fibre: u32,
}

/// Finds the way by which the light of a ToR's hosts comes to each of the others while these splitters relay
/// it; nothing at those that it does not reach, and at the source. A logical ToR that has failed may be one
/// whose fibre is dark, so its copy is taken only where the light comes to no other logical one of its ToR.
pub fn entries(
    wiring: &Wiring,
    source: u32,
    failed: &BTreeSet<u32>,
    relays: impl Fn(u32) -> bool,
) -> Vec<Option<Entry>> {
    let network = wiring.logical();
    let mut entries: Vec<Option<Entry>> = vec![None; wiring.tors() as usize];
    let (mut queue, mut doubtful) = (VecDeque::from([source]), VecDeque::new());
    loop {
        while let Some(tor) = queue.pop_front() {
            for splitter in wiring.logical_of(tor).into_iter().filter(|splitter| relays(*splitter)) {
                for child in network.children(splitter) {
                    let (to, fibre) = (wiring.physical(child), wiring.fibre(splitter, child));
                    let entry = Entry { splitter, fibre };
                    if to == source || entries[to as usize].is_some() {
                        continue;
                    }
                    if failed.contains(&child) {
                        doubtful.push_back((to, entry));
                    } else {
                        entries[to as usize] = Some(entry);
                        queue.push_back(to);
                    }
                }
            }
        }
        let Some((to, entry)) = doubtful.pop_front() else { return entries };
        if entries[to as usize].is_none() {
            entries[to as usize] = Some(entry);
            queue.push_back(to);
        }
    }
}

/// The splitters on the light's way to a ToR, the last one first.
#[must_use]
pub fn way(wiring: &Wiring, entries: &[Option<Entry>], tor: u32) -> Vec<u32> {
    let entry = |tor: u32| entries.get(tor as usize).copied().flatten();
    let steps = successors(entry(tor), |last| entry(wiring.physical(last.splitter)));
    steps.map(|entry| entry.splitter).collect()
}
