//! The fabric `tcp-chain` in the settings: there is nothing to set.

use super::{Hosts, Offer};
use crate::config::ManagerConfig;
use polycast_api::settings::SettingsError;
use polycast_planning::tcp_chain::TcpChain;
use polycast_planning::{Fabric, FabricName};

pub(super) struct TcpChainOffer;

impl Offer for TcpChainOffer {
    fn name(&self) -> FabricName {
        TcpChain::NAME
    }

    fn fabric(&self, _config: &ManagerConfig, _hosts: &Hosts) -> Result<Box<dyn Fabric>, SettingsError> {
        Ok(Box::new(TcpChain))
    }
}
