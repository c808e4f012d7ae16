//! The fabric `tcp-chain`: the overlay that works wherever hosts reach each other.
//!
//! The source sends to the first receiver over TCP, which passes on what it has verified to the second,
//! and so on. It holds nothing of the network, so there is always a plan: the last resort.

use crate::fabric::{Fabric, Replan, replan_each};
use crate::fabric_name::FabricName;
use crate::network_state::NetworkState;
use crate::plan::{Channel, Failure, Group, Plan, Refusal};
use crate::shared::{Shared, Uses};
use alloc::vec::Vec;

/// The fabric.
#[derive(Clone, Copy, Default, Debug)]
pub struct TcpChain;

impl TcpChain {
    /// Its name.
    pub const NAME: FabricName = FabricName::new("tcp-chain");
}

impl Fabric for TcpChain {
    fn name(&self) -> FabricName {
        Self::NAME
    }

    fn plan(&self, _network: &NetworkState, group: &Group) -> Result<Plan, Refusal> {
        if group.receivers.is_empty() {
            return Err(Refusal::Impossible("there is no receiver".into()));
        }
        Ok(with(Channel::Chain { order: group.receivers.iter().copied().collect() }))
    }

    /// The transport itself closes the gap that a receiver leaves; only without its source a chain is lost.
    fn replan(&self, network: &NetworkState, failure: &Failure) -> Vec<Replan> {
        replan_each(Self::NAME, network, failure, |network, old| self.plan(network, &old.group))
    }

    /// A chain that runs holds nothing, and its order does not matter any more.
    fn adopt(&self, _network: &NetworkState, _group: &Group, channel: &Channel) -> Option<Plan> {
        matches!(channel, Channel::Chain { .. }).then(|| with(channel.clone()))
    }
}

fn with(channel: Channel) -> Plan {
    Plan {
        fabric: TcpChain::NAME,
        resources: Vec::new(),
        uses: Uses::default(),
        commands: Shared::default(),
        channel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{HostId, PlanId};

    #[test]
    fn the_chain_holds_nothing_and_has_one_order() {
        let group = Group::of_one(HostId(9), [HostId(5), HostId(2), HostId(7)].into());
        let mut network = NetworkState::default();
        let plan = TcpChain.plan(&network, &group).unwrap();
        assert_eq!(plan.channel, Channel::Chain { order: [HostId(2), HostId(5), HostId(7)].into() });
        assert!(network.hold(PlanId(1), group.clone(), plan.clone()));
        assert!(network.hold(PlanId(2), group, plan));
        assert_eq!(TcpChain.replan(&network, &Failure::Host(HostId(2))), []);
        assert_eq!(TcpChain.replan(&network, &Failure::Host(HostId(9))).len(), 2);
    }
}
