//! Held resources that differ by a number alone, such as the places of a spine's table: the next free one is
//! found without a check of each of those that are held, however many they are.

use crate::plan::Resource;
use alloc::collections::BTreeMap;
use core::net::{IpAddr, Ipv4Addr};
use polycast_types::RangeSet;

/// Addresses that differ in their last four bytes alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Network {
    /// All of IPv4.
    V4,
    /// The addresses of IPv6 that begin with these bytes.
    V6([u8; 12]),
}

impl Network {
    /// The network of an address, and its number there.
    pub(crate) fn of(address: IpAddr) -> (Self, u32) {
        match address {
            IpAddr::V4(address) => (Network::V4, address.to_bits()),
            IpAddr::V6(address) => {
                let octets = address.octets();
                let (first, last) = octets.split_first_chunk::<12>().expect("an address has 16 bytes");
                let last = last.try_into().expect("an address has 16 bytes");
                (Network::V6(*first), u32::from_be_bytes(last))
            }
        }
    }

    /// The address of this number.
    pub(crate) fn address(self, number: u32) -> IpAddr {
        match self {
            Network::V4 => Ipv4Addr::from(number).into(),
            Network::V6(first) => {
                let mut octets = [0; 16];
                octets[..12].copy_from_slice(&first);
                octets[12..].copy_from_slice(&number.to_be_bytes());
                IpAddr::from(octets)
            }
        }
    }
}

/// Resources that differ by a number alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Row {
    /// The multicast addresses of one network with this UDP port, each by the number of its last four bytes.
    Addresses(Network, u16),
    /// The places of the table of this spine.
    Entries(u32),
}

impl Row {
    /// The row of a resource, and its number there; many kinds have few of a kind, and no row.
    fn of(resource: &Resource) -> Option<(Row, u64)> {
        match *resource {
            Resource::MulticastAddress { address, port } => {
                let (network, number) = Network::of(address);
                Some((Row::Addresses(network, port), number.into()))
            }
            Resource::SpineEntry { spine, slot } => Some((Row::Entries(spine), slot.into())),
            Resource::CircuitPort { .. } | Resource::Splitter { .. } | Resource::RelayPartition { .. } => {
                None
            }
        }
    }

    /// The resource of this number.
    pub(crate) fn at(self, number: u32) -> Resource {
        match self {
            Row::Addresses(network, port) => {
                Resource::MulticastAddress { address: network.address(number), port }
            }
            Row::Entries(spine) => Resource::SpineEntry { spine, slot: number },
        }
    }
}

/// The numbers that are held, row by row; none is empty.
#[derive(Clone, Default, Debug)]
pub(crate) struct Held(BTreeMap<Row, RangeSet>);

impl Held {
    /// A resource is held from now on.
    pub(crate) fn insert(&mut self, resource: &Resource) {
        if let Some((row, number)) = Row::of(resource) {
            self.0.entry(row).or_default().insert(number..number + 1);
        }
    }

    /// A resource is held no more.
    pub(crate) fn remove(&mut self, resource: &Resource) {
        let Some((row, number)) = Row::of(resource) else { return };
        let Some(held) = self.0.get_mut(&row) else { return };
        held.remove(number..number + 1);
        if held.is_empty() {
            self.0.remove(&row);
        }
    }

    /// The numbers from `first` to `end` that are not held, in rising order.
    pub(crate) fn free(&self, row: Row, first: u32, end: u32) -> impl Iterator<Item = u32> + use<'_> {
        let held = self.0.get(&row);
        let mut next = u64::from(first);
        core::iter::from_fn(move || {
            next = held.map_or(next, |held| held.first_missing(next));
            let found = u32::try_from(next).ok().filter(|number| *number < end)?;
            next += 1;
            Some(found)
        })
    }

    /// Counts the places of each spine's table that are held.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u32, u64)> + use<'_> {
        let spines = self.0.range(Row::Entries(0)..=Row::Entries(u32::MAX));
        spines.filter_map(|(row, held)| match row {
            Row::Entries(spine) => Some((*spine, held.len())),
            Row::Addresses(..) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network_state::NetworkState;
    use crate::plan::{Channel, Group, HostId, Plan, PlanId};
    use crate::tcp_chain::TcpChain;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const NUMBERS: u32 = 12;
    const ROWS: [Row; 3] = [Row::Addresses(Network::V4, 7410), Row::Entries(0), Row::Entries(9)];

    #[derive(Clone, Debug)]
    enum Step {
        Hold(u64, Vec<(usize, u32)>),
        Release(u64),
        Fail(usize, u32),
        Repair(usize, u32),
        Reserve(usize, u32),
        EndReservations,
    }

    fn step() -> impl Strategy<Value = Step> {
        let one = || (0..ROWS.len(), 0..NUMBERS);
        prop_oneof![
            4 => (0..20_u64, proptest::collection::vec(one(), 0..5)).prop_map(|(id, what)| Step::Hold(id, what)),
            3 => (0..20_u64).prop_map(Step::Release),
            1 => one().prop_map(|(row, number)| Step::Fail(row, number)),
            1 => one().prop_map(|(row, number)| Step::Repair(row, number)),
            1 => one().prop_map(|(row, number)| Step::Reserve(row, number)),
            1 => Just(Step::EndReservations),
        ]
    }

    fn take(network: &mut NetworkState, step: Step) {
        let group = || Group::of_one(HostId(0), [HostId(1)].into());
        match step {
            Step::Hold(id, what) => {
                let resources = what.into_iter().map(|(row, number)| ROWS[row].at(number)).collect();
                let channel = Channel::Chain { order: Vec::new() };
                let (uses, commands) = Default::default();
                let plan = Plan { fabric: TcpChain::NAME, resources, uses, commands, channel };
                let _ = network.hold(PlanId(id), group(), plan);
            }
            Step::Release(id) => drop(network.release(PlanId(id))),
            Step::Fail(row, number) => network.fail(ROWS[row].at(number)),
            Step::Repair(row, number) => network.repair(&ROWS[row].at(number)),
            Step::Reserve(row, number) => network.reserve([ROWS[row].at(number)]),
            Step::EndReservations => network.end_reservations(),
        }
    }

    proptest! {
        /// Numbers that are found without a check of each are those that a check of each finds.
        #[test]
        fn free_numbers_are_those_that_a_look_at_each_finds(
            steps in proptest::collection::vec(step(), 0..60), first in 0..NUMBERS, end in 0..=NUMBERS
        ) {
            let mut network = NetworkState::default();
            for step in steps {
                take(&mut network, step);
                for row in ROWS {
                    let found: Vec<Resource> = network.free_of(row, first, end).collect();
                    let each: Vec<Resource> =
                        (first..end).map(|number| row.at(number)).filter(|one| network.is_free(one)).collect();
                    prop_assert_eq!(found, each);
                }
                let count = |spine| {
                    let held = |number: &u32| network.holder(&Row::Entries(spine).at(*number)).is_some();
                    (spine, (0..NUMBERS).filter(held).count() as u64)
                };
                let each: Vec<(u32, u64)> = [0, 9].map(count).into_iter().filter(|(_, held)| *held > 0).collect();
                prop_assert_eq!(network.entries_held().collect::<Vec<_>>(), each);
            }
        }
    }

    /// The last numbers that there are.
    #[test]
    fn a_row_ends_where_numbers_do() {
        let mut held = Held::default();
        held.insert(&Row::Entries(1).at(u32::MAX - 1));
        let free: Vec<u32> = held.free(Row::Entries(1), u32::MAX - 3, u32::MAX).collect();
        assert_eq!(free, vec![u32::MAX - 3, u32::MAX - 2]);
        held.insert(&Row::Entries(1).at(u32::MAX));
        assert_eq!(held.free(Row::Entries(1), u32::MAX - 1, u32::MAX).next(), None);
        assert_eq!(held.entries().collect::<Vec<_>>(), [(1, 2)]);
    }
}
