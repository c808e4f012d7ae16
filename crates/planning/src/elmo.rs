//! Elmo's encoder, the baseline of Orca's evaluation: every switch of a tree finds a rule for its ports in
//! the packet (p-rule), in its table (s-rule), or takes the default (Elmo, SIGCOMM'19).
//!
//! One call encodes one layer of one group: the pods' logical spines or the leafs, each with a bitmap of
//! its ports. Switches share a p-rule if that makes them send to few enough wrong ports.

use alloc::vec::Vec;

/// The sizes that an encoding must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElmoLimits {
    /// The most p-rules of a header (H).
    pub rules_max: u32,
    /// The most switches that share a p-rule (K).
    pub switches_per_rule_max: u32,
    /// The most wrong ports of a shared p-rule, summed over its switches (R).
    pub redundancy_max: u32,
    /// The s-rules that a switch has room for (F).
    pub table_size: u32,
}

/// One switch of a group's tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchPorts {
    /// The switch.
    pub switch: u32,
    /// Its ports in the tree.
    pub ports: u128,
}

/// A rule in the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketRule {
    /// The ports of all its switches together.
    pub ports: u128,
    /// The switches that follow it.
    pub switches: Vec<u32>,
}

/// Encoding of one layer of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElmoLayer {
    /// The rules in the packet.
    pub packet_rules: Vec<PacketRule>,
    /// The switches that got an entry in their tables.
    pub switch_rules: Vec<u32>,
    /// The ports of the default rule.
    pub default_ports: u128,
    /// The switches that follow the default rule.
    pub default_switches: Vec<u32>,
    /// The wrong ports that all switches together send to.
    pub redundant_ports: u32,
}

impl ElmoLayer {
    /// The bits of this layer's rules in the header: (ports + 1) and (id + 1) for each switch, a rule, and
    /// the default's ports.
    #[must_use]
    pub fn header_bits(&self, ports: u32, id_bits: u32) -> u32 {
        let rules = self.packet_rules.iter();
        let bits: u32 = rules.map(|rule| ports + 1 + rule.switches.len() as u32 * (id_bits + 1)).sum();
        bits + if self.default_switches.is_empty() { 0 } else { ports }
    }
}

/// The encoder's own random numbers: it passes over a good candidate one time in three.
#[derive(Clone, Debug)]
pub struct ElmoRandom(u64);

impl ElmoRandom {
    /// A generator that gives the same numbers for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        ElmoRandom(seed)
    }

    /// Draws the number of candidates that are passed over: none with probability 2/3, each more with 1/3 of
    /// the rest.
    fn passed_over(&mut self) -> usize {
        let mut count = 0;
        loop {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if (self.0 >> 33) % 3 < 2 || count == 64 {
                return count;
            }
            count += 1;
        }
    }
}

/// Encodes one layer of one group. `table_used` counts the s-rules of every switch and is updated.
pub fn encode_layer(
    switches: &[SwitchPorts],
    limits: &ElmoLimits,
    table_used: &mut [u32],
    random: &mut ElmoRandom,
) -> ElmoLayer {
    let mut layer = ElmoLayer::default();
    let mut unassigned: Vec<SwitchPorts> = switches.to_vec();
    if unassigned.len() as u32 <= limits.rules_max {
        let own = |entry: &SwitchPorts| PacketRule { ports: entry.ports, switches: [entry.switch].into() };
        layer.packet_rules = unassigned.iter().map(own).collect();
        return layer;
    }
    for rule in 0..limits.rules_max {
        if unassigned.is_empty() {
            break;
        }
        let remaining = limits.rules_max - rule;
        let share = (unassigned.len() as u32).div_ceil(remaining);
        let size = limits.switches_per_rule_max.min(share).max(1);
        layer.packet_rules.push(shared_rule(
            &mut unassigned,
            size,
            limits,
            random,
            &mut layer.redundant_ports,
        ));
    }
    for entry in unassigned {
        match table_used.get_mut(entry.switch as usize) {
            Some(used) if *used < limits.table_size => {
                *used += 1;
                layer.switch_rules.push(entry.switch);
            }
            _ => {
                layer.default_ports |= entry.ports;
                layer.default_switches.push(entry.switch);
            }
        }
    }
    layer.redundant_ports += switches
        .iter()
        .filter(|entry| layer.default_switches.contains(&entry.switch))
        .map(|entry| (layer.default_ports & !entry.ports).count_ones())
        .sum::<u32>();
    layer
}

/// Takes up to `size` switches that can share a rule out of the unassigned ones.
fn shared_rule(
    unassigned: &mut Vec<SwitchPorts>,
    size: u32,
    limits: &ElmoLimits,
    random: &mut ElmoRandom,
    redundant_ports: &mut u32,
) -> PacketRule {
    let mut order: Vec<(u32, u32)> = Vec::with_capacity(unassigned.len());
    for size in (1..=size as usize).rev() {
        let mut union = 0u128;
        let mut chosen: Vec<SwitchPorts> = Vec::with_capacity(size);
        while chosen.len() < size && !unassigned.is_empty() {
            order.clear();
            let costs = unassigned.iter().map(|entry| (union | entry.ports).count_ones());
            order.extend(costs.zip(0u32..));
            let pick = random.passed_over().min(order.len() - 1);
            let at = order.select_nth_unstable(pick).1.1;
            let entry = unassigned.remove(at as usize);
            union |= entry.ports;
            chosen.push(entry);
        }
        let wrong: u32 = chosen.iter().map(|entry| (union & !entry.ports).count_ones()).sum();
        if wrong <= limits.redundancy_max || size == 1 {
            *redundant_ports += wrong;
            return PacketRule { ports: union, switches: chosen.iter().map(|entry| entry.switch).collect() };
        }
        // Those that do not fit together go to the end of the list.
        unassigned.extend(chosen);
    }
    PacketRule { ports: 0, switches: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    proptest! {
        /// Every switch has exactly one rule, which has all of its ports and not too many others.
        #[test]
        fn every_switch_has_one_rule(
            ports in proptest::collection::vec(1u64..1 << 48, 1..80),
            rules_max in 1u32..31,
            per_rule in 1u32..5,
            redundancy_max in 0u32..25,
            table_size in 0u32..4,
            seed in any::<u64>(),
        ) {
            let switches: Vec<SwitchPorts> =
                ports.iter().zip(0..).map(|(&ports, switch)| SwitchPorts { switch, ports: ports.into() }).collect();
            let limits = ElmoLimits { rules_max, switches_per_rule_max: per_rule, redundancy_max, table_size };
            // Some tables hold a rule of another group already.
            let held: Vec<u32> = switches.iter().map(|entry| (entry.ports as u32 ^ seed as u32) & 1).collect();
            let mut table = held.clone();
            let layer = encode_layer(&switches, &limits, &mut table, &mut ElmoRandom::new(seed));
            prop_assert!(layer.packet_rules.len() as u32 <= rules_max);
            let mut wrong = 0;
            for entry in &switches {
                let rules: Vec<_> =
                    layer.packet_rules.iter().filter(|rule| rule.switches.contains(&entry.switch)).collect();
                let by_table = layer.switch_rules.contains(&entry.switch);
                let by_default = layer.default_switches.contains(&entry.switch);
                prop_assert_eq!(rules.len() + usize::from(by_table) + usize::from(by_default), 1);
                let sent = match rules.first() {
                    Some(rule) => rule.ports,
                    None if by_table => entry.ports,
                    None => layer.default_ports,
                };
                prop_assert_eq!(sent & entry.ports, entry.ports);
                wrong += (sent & !entry.ports).count_ones();
            }
            prop_assert_eq!(wrong, layer.redundant_ports);
            for rule in &layer.packet_rules {
                let own = rule.switches.iter().map(|&s| (rule.ports & !switches[s as usize].ports).count_ones());
                prop_assert!(own.sum::<u32>() <= redundancy_max);
                prop_assert!(rule.switches.len() as u32 <= per_rule || switches.len() as u32 <= rules_max);
            }
            for entry in &switches {
                let (at, by_table) = (entry.switch as usize, layer.switch_rules.contains(&entry.switch));
                prop_assert_eq!(table[at], held[at] + u32::from(by_table));
                prop_assert!(!by_table || table[at] <= table_size);
                prop_assert!(!layer.default_switches.contains(&entry.switch) || held[at] >= table_size);
            }
        }
    }

    #[test]
    fn headers_count_rules_and_the_default() {
        let rule = |switches: &[u32]| PacketRule { ports: 1, switches: switches.to_vec() };
        let mut layer = ElmoLayer { packet_rules: vec![rule(&[1]), rule(&[2, 3])], ..ElmoLayer::default() };
        // Two rules of 8 ports and a bit, three switches of 5 bits and one.
        assert_eq!(layer.header_bits(8, 5), 2 * 9 + 3 * 6);
        layer.default_switches.push(4);
        assert_eq!(layer.header_bits(8, 5), 2 * 9 + 3 * 6 + 8);
    }

    /// Three switches in one rule send to each other's ports: it is made only where that is allowed.
    #[test]
    fn rules_are_shared_up_to_their_redundancy() {
        let switches: Vec<SwitchPorts> =
            (0..3).map(|switch| SwitchPorts { switch, ports: 1 << switch }).collect();
        let encode = |redundancy_max, table_size| {
            let limits = ElmoLimits { rules_max: 1, switches_per_rule_max: 3, redundancy_max, table_size };
            encode_layer(&switches, &limits, &mut [0; 3], &mut ElmoRandom::new(1))
        };
        // Each of the three sends to two ports that are not its own.
        let shared = encode(6, 0);
        assert_eq!(
            (shared.packet_rules.len(), shared.packet_rules[0].ports, shared.redundant_ports),
            (1, 7, 6)
        );
        // With less, two share: two wrong ports, and one is left for the default.
        let two = encode(5, 0);
        assert_eq!(
            (two.packet_rules[0].switches.len(), two.default_switches.len(), two.redundant_ports),
            (2, 1, 2)
        );
        let one = encode(1, 0);
        assert_eq!(
            (one.packet_rules[0].switches.len(), one.default_switches.len(), one.redundant_ports),
            (1, 2, 2)
        );
        let tables = encode(1, 1);
        assert_eq!(
            (tables.switch_rules.len(), tables.default_switches.len(), tables.redundant_ports),
            (2, 0, 0)
        );
    }

    /// Geometric with 1/3: 2/3 of the draws pass over none, 2/9 over one, 2/27 over two.
    #[test]
    fn a_third_of_the_candidates_is_passed_over() {
        let mut random = ElmoRandom::new(5);
        let mut counts = [0u32; 65];
        (0..27_000).for_each(|_| counts[random.passed_over()] += 1);
        for (count, expected) in counts.into_iter().zip([18_000u32, 6_000, 2_000, 667, 222]) {
            assert!(count.abs_diff(expected) < expected / 10 + 50, "{count} instead of {expected}");
        }
    }

    #[test]
    fn few_switches_share_nothing() {
        let switches: Vec<SwitchPorts> =
            (0..10).map(|switch| SwitchPorts { switch, ports: 1 << switch }).collect();
        let limits =
            ElmoLimits { rules_max: 10, switches_per_rule_max: 3, redundancy_max: 99, table_size: 0 };
        let layer = encode_layer(&switches, &limits, &mut [0; 10], &mut ElmoRandom::new(1));
        assert_eq!((layer.packet_rules.len(), layer.redundant_ports), (10, 0));
        assert_eq!(layer.header_bits(48, 10), 10 * (48 + 1 + 11));
    }
}
