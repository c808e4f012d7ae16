//! The fabric `ip-multicast`: an ordinary network that forwards IP multicast.
//!
//! All it lends is a group address from a pool of the operator's, one for each transfer that runs, so that
//! no host gets packets of a transfer that it has no part in.

use crate::fabric::{COUNTED_MAX, Fabric, Replan, replan_each};
use crate::fabric_name::FabricName;
use crate::held::{Network, Row};
use crate::network_state::NetworkState;
use crate::plan::{Channel, Failure, Group, HostId, Plan, Refusal, Resource};
use crate::shared::{Shared, Uses};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;
use polycast_types::{Duration, Rate};

/// Interval of attempt sending on a network where nothing has to be set up first.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(1);

/// A pool of IPv6, for sentences.
const EXAMPLE_V6: &str = "ff15::8000:0/112";

/// Returns true if a host may make up a group of this address.
fn is_usable(address: IpAddr) -> bool {
    const USABLE: core::ops::RangeInclusive<Ipv4Addr> =
        Ipv4Addr::new(224, 0, 1, 0)..=Ipv4Addr::new(239, 255, 255, 255);
    match address {
        IpAddr::V4(address) => USABLE.contains(&address),
        IpAddr::V6(address) => is_usable_v6(address),
    }
}

/// The same of IPv6 (RFC 4291, 2.7): the flags say that the group is not assigned, and the scope that packets
/// leave the host.
fn is_usable_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.octets();
    let (flags, scope) = (second >> 4, second & 15);
    first == 0xff && matches!(flags, 1 | 3) && (2..15).contains(&scope)
}

/// Group addresses that follow each other, with one UDP port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressPool {
    network: Network,
    /// Number of the first one in its network.
    first: u32,
    count: u32,
    port: u16,
}

/// Addresses that cannot be a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PoolError(String);

impl AddressPool {
    /// The pool of `count` addresses from `first` on.
    ///
    /// # Errors
    /// They are not all multicast addresses that hosts may use (224.0.1.0 to 239.255.255.255; of IPv6 those
    /// that are not assigned, ff10::/12 and ff30::/12, of the link's scope or a larger one), there are none,
    /// or the port is 0.
    pub fn new(first: IpAddr, count: u32, port: u16) -> Result<Self, PoolError> {
        let (network, number) = Network::of(first);
        let last = number.checked_add(count.saturating_sub(1));
        if count == 0 || !last.is_some_and(|last| is_usable(first) && is_usable(network.address(last))) {
            return Err(PoolError(format!(
                "{count} addresses from {first} are not a pool of multicast addresses: take some between 224.0.1.0 and 239.255.255.255, such as 239.255.64.0/24, or of IPv6 such as {EXAMPLE_V6}"
            )));
        }
        if port == 0 {
            return Err(PoolError("the port of a multicast pool cannot be 0".to_string()));
        }
        Ok(AddressPool { network, first: number, count, port })
    }

    /// Reads a pool written as `239.255.64.0/24`.
    ///
    /// # Errors
    /// Not of this form, or no pool of multicast addresses.
    pub fn parse(text: &str, port: u16) -> Result<Self, PoolError> {
        let wrong = || {
            PoolError(format!(
                "'{text}' is not a pool of addresses: write one such as 239.255.64.0/24, or of IPv6 such as {EXAMPLE_V6}"
            ))
        };
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address = IpAddr::from_str(address).map_err(|_| wrong())?;
        let prefix: u32 = prefix.parse().map_err(|_| wrong())?;
        // A pool of IPv6 lies within the last four bytes: it is as large as one of IPv4 can be.
        let (bits, shortest) = if address.is_ipv4() { (32, 4) } else { (128, 100) };
        if !(shortest..=bits).contains(&prefix) {
            return Err(wrong());
        }
        let count = 1u32 << (bits - prefix);
        if !Network::of(address).1.is_multiple_of(count) {
            return Err(PoolError(format!("'{text}' does not start at a multiple of its size")));
        }
        Self::new(address, count, port)
    }

    /// Returns true if its addresses are of IPv6.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.network != Network::V4
    }

    /// Returns the number of addresses.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The first free address from the network's turn on: the one that was released last comes last.
    pub(crate) fn lend(&self, network: &NetworkState) -> Result<(IpAddr, u16), Refusal> {
        let start = (network.turn() % u64::from(self.count)) as u32;
        let free = |from: u32, end: u32| {
            network
                .free_of(Row::Addresses(self.network, self.port), self.first + from, self.first + end)
                .next()
        };
        match free(start, self.count).or_else(|| free(0, start)) {
            Some(Resource::MulticastAddress { address, port }) => Ok((address, port)),
            _ => Err(Refusal::Busy(format!("all {} multicast addresses are in use", self.count))),
        }
    }

    /// The kind of its addresses, and how many are free.
    pub(crate) fn free(&self, network: &NetworkState) -> (String, u64) {
        let row = Row::Addresses(self.network, self.port);
        let free = network.free_of(row, self.first, self.first + self.count);
        let first = resource((self.network.address(self.first), self.port));
        (first.kind(), free.take(COUNTED_MAX as usize).count() as u64)
    }
}

impl fmt::Display for AddressPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.network.address(self.first);
        let last = self.network.address(self.first + (self.count - 1));
        write!(f, "{first} to {last}, port {}", self.port)
    }
}

/// The fabric.
#[derive(Clone, Debug)]
pub struct IpMulticast {
    pool: AddressPool,
    /// Addresses of the other family, where the network carries both.
    other: Option<AddressPool>,
    rate: Option<Rate>,
    attempt_interval: Duration,
}

impl IpMulticast {
    /// Its name.
    pub const NAME: FabricName = FabricName::new("ip-multicast");

    /// A shared network with these addresses.
    #[must_use]
    pub fn new(pool: AddressPool) -> Self {
        IpMulticast { pool, other: None, rate: None, attempt_interval: ATTEMPT_INTERVAL }
    }

    /// A network that carries a second family, too: each source is lent a group of its own one.
    #[must_use]
    pub fn with_other_family(mut self, other: Option<AddressPool>) -> Self {
        self.other = other;
        self
    }

    /// A network that is ours alone up to this rate, for each transfer.
    #[must_use]
    pub fn with_rate(mut self, rate: Option<Rate>) -> Self {
        self.rate = rate;
        self
    }

    /// With this interval of attempt sending.
    #[must_use]
    pub fn with_attempt_interval(mut self, interval: Duration) -> Self {
        self.attempt_interval = interval;
        self
    }

    /// The addresses that a host can send to, if there are such.
    fn pool_of(&self, network: &NetworkState, source: HostId) -> &AddressPool {
        let fits = |pool: &&AddressPool| pool.is_ipv6() == network.is_ipv6(source);
        self.other.as_ref().filter(fits).unwrap_or(&self.pool)
    }

    fn plan_with(&self, address: (IpAddr, u16)) -> Plan {
        Plan {
            fabric: Self::NAME,
            resources: vec![resource(address)],
            uses: Uses::default(),
            commands: Shared::default(),
            channel: Channel::Multicast {
                group: address,
                rate: self.rate,
                attempt_interval: self.attempt_interval,
            },
        }
    }
}

impl Fabric for IpMulticast {
    fn name(&self) -> FabricName {
        Self::NAME
    }

    fn plan(&self, network: &NetworkState, group: &Group) -> Result<Plan, Refusal> {
        if group.receivers.is_empty() {
            return Err(Refusal::Impossible("there is no receiver".into()));
        }
        Ok(self.plan_with(self.pool_of(network, group.source).lend(network)?))
    }

    fn carries_any_packets(&self) -> bool {
        true
    }

    fn free(&self, network: &NetworkState) -> Vec<(String, u64)> {
        let (kind, free) = self.pool.free(network);
        vec![(kind, free + self.other.map_or(0, |pool| pool.free(network).1))]
    }

    /// Addresses are all that paths hold.
    fn is_shared(&self) -> bool {
        true
    }

    /// An address that fails moves its transfer to another one. A host that fails touches only the plans
    /// that it is the source of: the other receivers go on without it.
    fn replan(&self, network: &NetworkState, failure: &Failure) -> Vec<Replan> {
        replan_each(Self::NAME, network, failure, |network, old| self.plan(network, &old.group))
    }

    /// The channel is all that there is: an address outside of the pool, lent before the settings changed, is
    /// taken over as well.
    fn adopt(&self, _network: &NetworkState, _group: &Group, channel: &Channel) -> Option<Plan> {
        let Channel::Multicast { group, .. } = channel else { return None };
        Some(Plan { channel: channel.clone(), ..self.plan_with(*group) })
    }
}

pub(crate) fn resource((address, port): (IpAddr, u16)) -> Resource {
    Resource::MulticastAddress { address, port }
}

/// The group address of a plan, if it could be held again.
pub(crate) fn address_of(network: &NetworkState, plan: &Plan) -> Option<(IpAddr, u16)> {
    let Channel::Multicast { group, .. } = plan.channel else { return None };
    network.is_free(&resource(group)).then_some(group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::ReplanOutcome;
    use crate::plan::{HostId, PlanId};

    fn group() -> Group {
        Group::of_one(HostId(0), [HostId(1)].into())
    }

    #[test]
    fn pools_are_read_and_checked() {
        let pool = AddressPool::parse("239.255.64.0/24", 7410).unwrap();
        assert_eq!(pool.count(), 256);
        assert_eq!(pool.to_string(), "239.255.64.0 to 239.255.64.255, port 7410");
        assert!(AddressPool::parse("224.0.0.0/4", 1).unwrap_err().to_string().contains("224.0.1.0"));
        for text in [
            "ff15::8000:1/112",
            "ff05::1:0/112",
            "ff15::/99",
            "ff11::8000:0/112",
            "fd00::/112",
            "",
            "239.255.64.0",
            "10.0.0.0/8",
            "239.255.64.1/24",
            "239.0.0.0/33",
            "x/8",
            "224.0.0.1/32",
        ] {
            assert!(AddressPool::parse(text, 7410).is_err(), "{text}");
        }
        assert!(AddressPool::parse("239.255.64.0/24", 0).is_err());
        let pool = AddressPool::parse(EXAMPLE_V6, 7410).unwrap();
        assert_eq!((pool.count(), pool.is_ipv6()), (65_536, true));
        assert_eq!(pool.to_string(), "ff15::8000:0 to ff15::8000:ffff, port 7410");
    }

    #[test]
    fn an_address_that_was_just_released_rests() {
        let fabric = IpMulticast::new(AddressPool::parse("239.255.64.0/30", 7410).unwrap());
        let mut network = NetworkState::new(6);
        let mut seen = Vec::new();
        for id in 0..5 {
            let plan = fabric.plan(&network, &group()).unwrap();
            seen.push(plan.resources[0]);
            assert!(network.hold(PlanId(id), group(), plan));
            network.release(PlanId(id)).unwrap();
        }
        let last_byte = |r: &Resource| match r {
            Resource::MulticastAddress { address, .. } => Network::of(*address).1 as u8,
            other => panic!("{other}"),
        };
        assert_eq!(seen.iter().map(last_byte).collect::<Vec<_>>(), [2, 3, 0, 1, 2]);
    }

    #[test]
    fn a_full_pool_is_busy_and_a_failed_address_is_not_lent() {
        let fabric = IpMulticast::new(AddressPool::parse("239.255.64.0/31", 7410).unwrap());
        let mut network = NetworkState::default();
        network.fail(resource(([239, 255, 64, 0].into(), 7410)));
        let plan = fabric.plan(&network, &group()).unwrap();
        assert_eq!(plan.resources, [resource(([239, 255, 64, 1].into(), 7410))]);
        assert!(network.hold(PlanId(1), group(), plan));
        let refusal = fabric.plan(&network, &group()).unwrap_err();
        assert_eq!(refusal, Refusal::Busy("all 2 multicast addresses are in use".into()));
    }

    #[test]
    fn each_source_is_lent_a_group_of_its_own_family() {
        let (v4, v6) = ("239.255.64.0/31", "ff15::8000:0/127");
        let pool = |text| AddressPool::parse(text, 7410).unwrap();
        for (one, other) in [(v4, v6), (v6, v4)] {
            let fabric = IpMulticast::new(pool(one)).with_other_family(Some(pool(other)));
            let mut network = NetworkState::default();
            network.set_ipv6(HostId(0), true);
            let group = |source| Group::of_one(HostId(source), [HostId(2)].into());
            let lent = |network: &NetworkState, source| match fabric.plan(network, &group(source))?.channel {
                Channel::Multicast { group, .. } => Ok(group.0),
                channel => panic!("{channel:?}"),
            };
            assert!(lent(&network, 0).unwrap().is_ipv6() && lent(&network, 1).unwrap().is_ipv4());
            assert_eq!(fabric.free(&network), [("addresses".to_string(), 4)]);
            for id in [1, 2] {
                let plan = fabric.plan(&network, &group(1)).unwrap();
                assert!(network.hold(PlanId(id), group(1), plan));
            }
            // Those of the other family are none for it.
            assert_eq!(lent(&network, 1), Err(Refusal::Busy("all 2 multicast addresses are in use".into())));
            assert!(lent(&network, 0).is_ok());
            network.set_ipv6(HostId(0), false);
            assert!(lent(&network, 0).is_err(), "it has come back at another address");
        }
        let fabric = IpMulticast::new(pool(v4));
        let mut network = NetworkState::default();
        network.set_ipv6(HostId(0), true);
        assert!(fabric.plan(&network, &group()).is_ok(), "an operator who names one pool knows why");
    }

    #[test]
    fn only_a_source_that_is_down_touches_a_plan() {
        let fabric = IpMulticast::new(AddressPool::parse("239.255.64.0/24", 7410).unwrap());
        let mut network = NetworkState::default();
        let plan = fabric.plan(&network, &group()).unwrap();
        assert!(network.hold(PlanId(1), group(), plan));
        assert_eq!(fabric.replan(&network, &Failure::Host(HostId(1))), []);
        let touched = fabric.replan(&network, &Failure::Host(HostId(0)));
        assert!(matches!(touched[..], [Replan { id: PlanId(1), outcome: ReplanOutcome::Lost(_) }]));
    }
}
