//! Reasons why a network never has circuits for a group, and what would have to change.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use polycast_topology::optics::{racks_reachable, splitters_needed};

use super::Rejection;

/// Changes of the network of which each, by itself, would let a group have circuits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remedies {
    /// So many splitters in a cascade.
    pub cascade_max: Option<u32>,
    /// So many more splitters.
    pub more_splitters: Option<u32>,
    /// So many more splitters, if so many may be in a cascade.
    pub more_and_cascade_max: Option<(u32, u32)>,
    /// Splitters that all have so many outputs at least.
    pub fanout: Option<u32>,
    /// So many more fibres from the source's rack.
    pub more_fibres: Option<u32>,
}

impl fmt::Display for Remedies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let some =
            |count: u32, what: &str| format!("{count} more {what}{}", if count == 1 { "" } else { "s" });
        let mut ways = Vec::from([String::from("split the group")]);
        ways.extend(self.cascade_max.map(|most| format!("allow cascades of {most}")));
        ways.extend(self.more_splitters.map(|more| format!("add {}", some(more, "splitter"))));
        let both = self.more_and_cascade_max;
        ways.extend(
            both.map(|(more, most)| format!("add {} and allow cascades of {most}", some(more, "splitter"))),
        );
        ways.extend(self.fanout.map(|fanout| format!("use splitters of at least {fanout} outputs")));
        ways.extend(self.more_fibres.map(|more| format!("lay {} to its source's rack", some(more, "fibre"))));
        let last = ways.pop().unwrap_or_default();
        match ways.len() {
            0 => f.write_str(&last),
            1 => write!(f, "{} or {last}", ways[0]),
            _ => write!(f, "{}, or {last}", ways.join(", ")),
        }
    }
}

/// Means of an idle network for the circuits of one group.
#[derive(Clone, Debug)]
pub(crate) struct Means {
    /// Outputs of every working splitter.
    pub(crate) splitters: Vec<u32>,
    /// Outputs of those that one would add.
    pub(crate) fanout: u32,
    /// The most splitters in a cascade.
    pub(crate) cascade_max: u32,
    /// Fibres of the source's rack.
    pub(crate) fibres: u32,
}

impl Means {
    /// Reason why a group of so many racks never has circuits; nothing if it can have them.
    pub(crate) fn rejection(&self, racks: u32, splitters: u32, may_split: bool) -> Option<Rejection> {
        if racks < 2 {
            return Some(Rejection::OneRack { racks });
        }
        if self.suffice(racks) {
            return None;
        }
        let remedies = self.remedies(racks, may_split);
        let unbounded = Means { cascade_max: racks, ..self.clone() };
        if unbounded.suffice(racks) {
            let (cascade_max, fanout) = (self.cascade_max, self.fanout);
            let of_one = racks_reachable(cascade_max, fanout) - 1;
            let reachable = of_one.saturating_mul(self.fibres).saturating_add(1);
            return Some(Rejection::Cascade { racks, cascade_max, fanout, reachable, remedies });
        }
        // Where some splitters are small, more are needed than of the usual ones.
        let needed = splitters_needed(racks, self.fanout).max(splitters + 1);
        Some(Rejection::Splitters { needed, splitters, remedies })
    }

    /// The fewest cascades that could reach so many receivers' racks.
    fn cascades_for(&self, receivers: u32) -> u32 {
        receivers.div_ceil(racks_reachable(self.cascade_max, self.fanout) - 1).max(1)
    }

    /// Returns true if an idle network has circuits for a group of so many racks. Its receivers' racks are
    /// dealt out to cascades as `Ocs` does it: each takes the largest splitters that are left, and a last one
    /// no larger than it has to be.
    fn suffice(&self, racks: u32) -> bool {
        let receivers = racks - 1;
        let fibres = self.fibres.min(receivers);
        for cascades in self.cascades_for(receivers)..=fibres {
            let mut splitters = self.splitters.clone();
            splitters.sort_unstable();
            let size = receivers.div_ceil(cascades);
            let (mut left, mut longest) = (receivers, 0);
            while left > 0 {
                let Some(length) = take_cascade(&mut splitters, size.min(left)) else { return false };
                (left, longest) = (left - size.min(left), longest.max(length));
            }
            if longest <= self.cascade_max || cascades == fibres {
                return true;
            }
        }
        false
    }

    /// The least changes after which a group has circuits, each by itself.
    fn remedies(&self, racks: u32, may_split: bool) -> Remedies {
        let with = |cascade_max: u32, more: u32| {
            let mut means = Means { cascade_max, ..self.clone() };
            // A switch without splitters may have no usual number of outputs.
            means.fanout = self.fanout.max(if more > 0 { 2 } else { 0 });
            means.splitters.extend((0..more).map(|_| means.fanout));
            means.suffice(racks)
        };
        let cascade_max = least(self.cascade_max, racks, |most| with(most, 0));
        let more_splitters = least(0, racks, |more| with(self.cascade_max, more));
        // Longer cascades and more splitters together, where neither helps by itself.
        let both = || {
            let more = least(0, racks, |more| with(racks, more))?;
            Some((more, least(self.cascade_max, racks, |most| with(most, more))?))
        };
        let neither = cascade_max.is_none() && more_splitters.is_none();
        let larger = |outputs: u32| {
            let splitters = self.splitters.iter().map(|fanout| (*fanout).max(outputs)).collect();
            Means { splitters, fanout: self.fanout.max(outputs), ..self.clone() }.suffice(racks)
        };
        let fibres = |fibres: u32| Means { fibres, ..self.clone() }.suffice(racks);
        let more_fibres = if may_split { least(self.fibres, racks, fibres) } else { None };
        Remedies {
            cascade_max,
            more_splitters,
            more_and_cascade_max: if neither { both() } else { None },
            fanout: least(self.splitters.iter().copied().min().unwrap_or(self.fanout), racks, larger),
            more_fibres: more_fibres.map(|fibres| fibres - self.fibres),
        }
    }
}

/// Takes the splitters of a cascade to so many receivers out of these, which are in rising order, and returns
/// their number; nothing if they are too few.
fn take_cascade(splitters: &mut Vec<u32>, receivers: u32) -> Option<u32> {
    let (mut reached, mut length) = (1, 0);
    while reached < receivers {
        let most = reached + splitters.last()? - 1;
        length += 1;
        if most < receivers {
            splitters.pop();
        } else {
            let last = splitters.partition_point(|fanout| reached + fanout - 1 < receivers);
            splitters.remove(last);
        }
        reached = most;
    }
    Some(length)
}

/// The least number above `from` and up to `to` that suffices, found by halving; it does suffice, and where
/// more is never worse it is the least. Nothing if `to` does not.
fn least(from: u32, to: u32, suffices: impl Fn(u32) -> bool) -> Option<u32> {
    if to <= from || !suffices(to) {
        return None;
    }
    let (mut below, mut enough) = (from, to);
    while enough - below > 1 {
        let middle = below + (enough - below) / 2;
        if suffices(middle) { enough = middle } else { below = middle }
    }
    Some(enough)
}
