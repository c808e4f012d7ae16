//! Parts that ways that led nowhere have in common.

use crate::plan::Failure;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// Returns the parts on all the ways in `dark`, and on none of those that led to a receiver, in the order of
/// the first way. Where they have none in common, returns for each way the part nearest to its end that no
/// way to a receiver has.
pub(crate) fn in_common(dark: &[Vec<Failure>], lit: &[Vec<Failure>]) -> Vec<Failure> {
    let innocent: BTreeSet<Failure> = lit.iter().flatten().copied().collect();
    let Some((first, others)) = dark.split_first() else { return Vec::new() };
    let is_shared = |what: &&Failure| others.iter().all(|way| way.contains(what)) && !innocent.contains(what);
    let shared: Vec<Failure> = first.iter().filter(is_shared).copied().collect();
    if !shared.is_empty() {
        return shared;
    }
    let mut alone: Vec<Failure> = Vec::new();
    for way in dark {
        // What is nearest to the end of a way is the likeliest: more of what lies before it leads to others.
        let nearest = way.iter().rev().find(|what| !innocent.contains(what));
        alone.extend(nearest.filter(|what| !alone.contains(what)).copied().into_iter().collect::<Vec<_>>());
    }
    alone
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Resource;
    use alloc::vec;

    fn port(port: u32) -> Failure {
        Failure::Resource(Resource::CircuitPort { port })
    }

    fn splitter(splitter: u32) -> Failure {
        Failure::Resource(Resource::Splitter { splitter })
    }

    #[test]
    fn the_part_in_common_is_suspected_and_not_what_led_to_a_receiver() {
        let way = |end: u32, through: &[u32]| {
            let mut way: Vec<Failure> = through.iter().map(|number| splitter(*number)).collect();
            way.extend([port(0), port(end)]);
            way
        };
        // The second splitter of a cascade.
        let dark = [way(4, &[0, 1]), way(5, &[0, 1])];
        let lit = [way(1, &[0]), way(2, &[0])];
        assert_eq!(in_common(&dark, &lit), vec![splitter(1)]);
        // No receiver at all: the splitter, and after it the source's own fibre.
        assert_eq!(in_common(&[way(1, &[0]), way(2, &[0])], &[]), vec![splitter(0), port(0)]);
        // Two fibres that have nothing to do with each other.
        assert_eq!(in_common(&[way(1, &[0]), way(2, &[0])], &[way(3, &[0])]), vec![port(1), port(2)]);
        assert_eq!(in_common(&[], &[way(3, &[0])]), vec![]);
    }
}
