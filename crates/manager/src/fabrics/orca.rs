//! The fabric `orca` in the settings (Orca section 3.3).

use super::health::OfLabels;
use super::{Health, Hosts, Named, Offer, check_hosts, pool_v4, section, wrong};
use crate::config::ManagerConfig;
use crate::devices::{DeviceId, LabelSwitches};
use polycast_api::settings::SettingsError;
use polycast_net::tls::Security;
use polycast_net::words::WordsKey;
use polycast_planning::labels::Encoding;
use polycast_planning::labels::LabelOptions;
use polycast_planning::orca::{Orca, OrcaConfig};
use polycast_planning::{Fabric, FabricName};
use polycast_topology::Clos;
use polycast_types::Rate;
use polycast_wire::switches::Network;
use serde::{Deserialize, Deserializer};
use std::net::SocketAddr;
use std::time::Duration;

/// Settings of the fabric `orca`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct OrcaSettings {
    /// Addresses where the processes of switches take entries, and report broken links: one address, or a
    /// list.
    #[serde(deserialize_with = "one_or_more")]
    pub switches: Vec<SocketAddr>,
    /// Address where leaf controllers reach this manager, by UDP.
    pub controller: SocketAddr,
    /// The leaf controllers, leaf by leaf.
    pub leaf_controllers: Vec<SocketAddr>,
    /// Number of pods.
    pub pods: u32,
    /// Leafs of a pod.
    pub leafs: u32,
    /// Spines of a pod.
    pub spines: u32,
    /// Cores above a spine; 0 in a network of one pod.
    pub cores: u32,
    /// Servers of a leaf.
    pub servers: u32,
    /// The hosts at these servers, leaf by leaf.
    pub hosts: Vec<String>,
    /// Encoding of leafs in labels.
    #[serde(default)]
    pub encoding: EncodingSetting,
    /// Bits of the label's filter.
    #[serde(default = "filter_bits")]
    pub filter_bits: u32,
    /// Entries that a spine has room for.
    #[serde(default = "entries_max")]
    pub entries_max: u32,
    /// Trees of a transfer through different cores, among which packets take turns.
    #[serde(default = "trees")]
    pub trees: u32,
    /// Rate of a transfer on a network that is ours alone; without it transfers share the network and adapt.
    #[serde(default, deserialize_with = "super::some_rate")]
    pub rate: Option<Rate>,
    /// Lets one receiver of a rack speak for the others, so that racks and not hosts answer a source.
    #[serde(default = "rack_feedback")]
    pub rack_feedback: bool,
    /// Group addresses to lend.
    #[serde(default = "super::shufflecast::addresses")]
    pub pool: String,
    /// UDP port of labelled packets.
    #[serde(default = "port")]
    pub port: u16,
}

/// Encoding of leafs in labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EncodingSetting {
    /// By the paper's filter, with entries at spines.
    #[default]
    Filter,
    /// By exact bitmaps, without entries: what a label has no room for waits at agents of the pods.
    Pods,
    /// For each session as it fits: spines have entries while there is room for them.
    Auto,
}

impl EncodingSetting {
    /// The only encoding, if there is one.
    fn only(self) -> Option<Encoding> {
        match self {
            EncodingSetting::Filter => Some(Encoding::Filter),
            EncodingSetting::Pods => Some(Encoding::Pods),
            EncodingSetting::Auto => None,
        }
    }

    /// The encodings that switches need, added.
    fn needed(self) -> u8 {
        match self.only() {
            Some(Encoding::Filter) => Network::FILTER,
            Some(Encoding::Pods) => Network::PODS,
            None => Network::FILTER | Network::PODS,
        }
    }
}

fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "an address such as \"10.0.0.11:7475\", or a list of them")]
    enum Addresses {
        One(SocketAddr),
        More(Vec<SocketAddr>),
    }
    match Addresses::deserialize(deserializer)? {
        Addresses::One(address) => Ok(vec![address]),
        Addresses::More(addresses) => Ok(addresses),
    }
}

/// The paper's (section 6.1).
fn filter_bits() -> u32 {
    69
}

fn entries_max() -> u32 {
    4_096
}

fn trees() -> u32 {
    1
}

fn rack_feedback() -> bool {
    true
}

fn port() -> u16 {
    7474
}

pub(super) struct OrcaOffer;

impl Offer for OrcaOffer {
    fn name(&self) -> FabricName {
        Orca::NAME
    }

    fn fabric(&self, config: &ManagerConfig, hosts: &Hosts) -> Result<Box<dyn Fabric>, SettingsError> {
        let settings = section("orca", &config.orca)?;
        let OrcaSettings { pods, leafs, spines, servers, cores, .. } = *settings;
        let clos = Clos::new(pods, leafs, spines, servers, cores).map_err(|error| wrong("orca", error))?;
        check_hosts("orca.hosts", &settings.hosts, clos.hosts(), "there are")?;
        if settings.trees == 0 {
            return Err(wrong("orca.trees", "a transfer needs at least one"));
        }
        if settings.trees > 1 && settings.encoding == EncodingSetting::Pods {
            let reason = "labels with encoding = \"pods\" have one tree: leave trees out, or set encoding = \"filter\"";
            return Err(wrong("orca.trees", reason));
        }
        if settings.entries_max == 0 {
            return Err(wrong("orca.entries-max", "it must not be 0"));
        }
        let fabric = OrcaConfig {
            clos,
            labels: LabelOptions::new(settings.filter_bits),
            encoding: settings.encoding.only(),
            entries_max: settings.entries_max,
            trees: settings.trees,
            rack_feedback: settings.rack_feedback,
            rate: settings.rate,
        };
        let pool = pool_v4("orca.pool", &settings.pool, settings.port)?;
        let places =
            settings.hosts.iter().zip(0..).filter_map(|(name, server)| Some((hosts.number(name)?, server)));
        Ok(Box::new(Orca::new(fabric, places, pool).map_err(|error| wrong("orca", error))?))
    }

    fn hosts<'a>(&self, config: &'a ManagerConfig) -> Vec<&'a str> {
        config.orca.iter().flat_map(|settings| &settings.hosts).map(String::as_str).collect()
    }

    fn health(&self, config: &ManagerConfig) -> Result<Option<Box<dyn Health>>, SettingsError> {
        let OrcaSettings { pods, leafs, spines, servers, cores, .. } = *section("orca", &config.orca)?;
        let clos = Clos::new(pods, leafs, spines, servers, cores).map_err(|error| wrong("orca", error))?;
        Ok(Some(Box::new(OfLabels::new(clos))))
    }

    fn devices(
        &self,
        config: &ManagerConfig,
        _hosts: &Hosts,
        security: Option<&Security>,
    ) -> Result<Vec<Named>, SettingsError> {
        let answers_within = Duration::from_millis(config.device_timeout_ms);
        let settings = section("orca", &config.orca)?;
        let OrcaSettings { pods, leafs, spines, servers, cores, .. } = *settings;
        let clos = Clos::new(pods, leafs, spines, servers, cores).map_err(|error| wrong("orca", error))?;
        let leafs = u64::from(settings.pods) * u64::from(settings.leafs);
        let leaf_controllers = settings.leaf_controllers.clone();
        if leaf_controllers.len() as u64 != leafs {
            let named = leaf_controllers.len();
            let reason = format!("{named} are named, and there are {leafs} leafs: name one for each");
            return Err(wrong("orca.leaf-controllers", reason));
        }
        let hosts = leafs * u64::from(settings.servers);
        let device = LabelSwitches {
            switches: settings.switches.clone(),
            network: Network {
                pods: settings.pods,
                leafs: settings.leafs,
                spines: settings.spines,
                servers: settings.servers,
                cores: settings.cores,
                filter_bits: settings.filter_bits,
            },
            clos,
            encodings: settings.encoding.needed(),
            listen: settings.controller,
            leaf_controllers,
            first_leaf: u32::try_from(hosts).map_err(|_| wrong("orca", "there are too many servers"))?,
            answers_within,
            key: WordsKey::of(security),
        };
        if security.is_some() && !device.key.is_there() {
            tracing::warn!(
                "controllers of racks share no key, as there are certificates only: keep their network apart"
            );
        }
        Ok(vec![(DeviceId::LabelSwitches, Box::new(device))])
    }
}
