//! The fabric `datacast` in the settings (Datacast section 3.1): the manager is the Fabric Manager, which
//! knows the network and which links work, and the master of every group.

use super::{Health, Hosts, Named, Offer, Verdict, check_hosts, section, wrong};
use crate::config::ManagerConfig;
use crate::devices::{DeviceId, Forwarders};
use polycast_api::forwarder::Word;
use polycast_api::settings::SettingsError;
use polycast_net::tls::{Expected, Security};
use polycast_planning::datacast::{Datacast, DatacastConfig};
use polycast_planning::{Fabric, FabricName, Failure, Part, PullTuning, Pulling};
use polycast_protocol::pull::{HOPS_MAX, HOPS_USUAL, PORTS_MAX};
use polycast_topology::{Graph as _, Network};
use polycast_types::Rate;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

/// Settings of the fabric `datacast`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DatacastSettings {
    /// The network: `bcube:4,2`, `torus:4,2`, `fat-tree:4,3`.
    pub network: String,
    /// The hosts at its servers, in the order of the servers' numbers.
    pub hosts: Vec<String>,
    /// Addresses where the processes of forwarders, also those of the hosts' agents, report changes of links.
    pub forwarders: Vec<ForwarderAddress>,
    /// The rate of a link.
    #[serde(deserialize_with = "super::rate")]
    pub link_rate: Rate,
    /// Bytes of the object in a packet.
    #[serde(default = "payload_bytes")]
    pub payload_bytes: u16,
    /// Number of packets that a receiver may request at a time in each tree.
    #[serde(default = "credits")]
    pub credits: u32,
    /// The rate of a tree at first.
    #[serde(default, deserialize_with = "super::some_rate")]
    pub initial_rate: Option<Rate>,
    /// Amount that is added to a tree's rate after each interval without a duplicate interest (δ).
    #[serde(default, deserialize_with = "super::some_rate")]
    pub increase: Option<Rate>,
    /// Length of that interval, in microseconds (T).
    pub interval_us: Option<u32>,
    /// Number of bytes that may be sent at once after a pause (σ).
    pub burst_bytes: Option<u32>,
    /// Minimum number of bytes in a block (B).
    pub block_bytes: Option<u64>,
    /// Time after which a receiver requests again, in milliseconds (RTO).
    pub rto_ms: Option<u32>,
    /// Number of later requested packets that arrive before a packet counts as lost; 0: only time tells.
    pub overtaken: Option<u32>,
    /// True if sources take single losses for chance while they see no queue.
    pub chance: Option<bool>,
    /// The longest source route that the nodes take, in hops: theirs is called the same. The paper's is 8.
    #[serde(default = "hops_usual")]
    pub hops_max: usize,
    /// No group gets more trees than this.
    pub trees_max: Option<usize>,
    /// One tree of shortest ways with caches at every node, as content centric networking without Datacast
    /// has it: to compare with.
    #[serde(default)]
    pub single_tree: bool,
    /// Time to wait for further reports of links before trees are repaired, in milliseconds.
    #[serde(default = "gather_ms")]
    pub gather_ms: u64,
}

/// A process with forwarders: `HOST:PORT`, or where members show certificates `NAME@HOST:PORT`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct ForwarderAddress {
    /// Its name in its certificate.
    pub name: Option<String>,
    /// Address of the process.
    pub address: SocketAddr,
}

impl TryFrom<String> for ForwarderAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("'{text}' is neither HOST:PORT, such as 10.0.0.1:7403, nor NAME@HOST:PORT");
        let (name, address) = match text.rsplit_once('@') {
            Some(("", _)) => return Err(wrong()),
            Some((name, address)) => (Some(name.to_string()), address),
            None => (None, text.as_str()),
        };
        Ok(ForwarderAddress { name, address: address.parse().map_err(|_| wrong())? })
    }
}

impl ForwarderAddress {
    /// Returns the address of the process, and the end that has to be there.
    fn expected(&self, security: Option<&Security>) -> Result<(SocketAddr, Expected), SettingsError> {
        let address = self.address;
        match &self.name {
            Some(name) => Ok((address, Expected::Member(name.clone()))),
            None if security.is_some_and(Security::has_names) => {
                let reason = format!("with certificates say whose process is there: NAME@{address}");
                Err(wrong("datacast.forwarders", reason))
            }
            // Those that share a key have no names.
            None => Ok((address, Expected::Sharer)),
        }
    }
}

/// Fits into a frame of the usual MTU of 1500.
fn payload_bytes() -> u16 {
    polycast_wire::pull::payload_len_for_mtu(1_500)
}

/// The paper's (section 7).
fn credits() -> u32 {
    16
}

fn hops_usual() -> usize {
    HOPS_USUAL
}

fn gather_ms() -> u64 {
    10
}

impl DatacastSettings {
    fn tuning(&self) -> Result<PullTuning, SettingsError> {
        let tuning = PullTuning {
            credits: None,
            initial_rate: self.initial_rate,
            increase: self.increase,
            interval_us: self.interval_us,
            burst_bytes: self.burst_bytes,
            block_bytes: self.block_bytes,
            rto_ms: self.rto_ms,
            overtaken: self.overtaken,
            chance: self.chance,
        };
        tuning.check().map_err(|(key, why)| wrong("datacast", format!("{key}: {why}")))?;
        Ok(tuning)
    }
}

fn network(settings: &DatacastSettings) -> Result<Network, SettingsError> {
    settings.network.parse().map_err(|error| wrong("datacast.network", error))
}

pub(super) struct DatacastOffer;

impl Offer for DatacastOffer {
    fn name(&self) -> FabricName {
        Datacast::NAME
    }

    fn fabric(&self, config: &ManagerConfig, hosts: &Hosts) -> Result<Box<dyn Fabric>, SettingsError> {
        let settings = section("datacast", &config.datacast)?;
        let network = network(settings)?;
        check_hosts("datacast.hosts", &settings.hosts, network.server_count(), &format!("{network} has"))?;
        let positive = [
            ("datacast.link-rate", settings.link_rate.0),
            ("datacast.payload-bytes", settings.payload_bytes.into()),
            ("datacast.credits", settings.credits.into()),
            ("datacast.trees-max", settings.trees_max.unwrap_or(1) as u64),
        ];
        if let Some((setting, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
            return Err(wrong(setting, "it must not be 0"));
        }
        let hops_max = settings.hops_max;
        if !(1..=HOPS_MAX).contains(&hops_max) {
            let reason = format!("a source route has 1 to {HOPS_MAX} hops, not {hops_max}");
            return Err(wrong("datacast.hops-max", reason));
        }
        let limits = DatacastConfig {
            pulling: Pulling {
                payload_bytes: settings.payload_bytes,
                credits: settings.credits,
                link_rate: settings.link_rate,
                tuning: settings.tuning()?,
            },
            trees_max: settings.trees_max.unwrap_or(usize::MAX),
            hops_max,
            ports_max: PORTS_MAX,
            single_tree: settings.single_tree,
        };
        let places =
            settings.hosts.iter().zip(0..).filter_map(|(name, server)| Some((hosts.number(name)?, server)));
        let fabric = Datacast::new(network, limits, places).map_err(|error| wrong("datacast", error))?;
        let needed = fabric.whole_depth() as usize;
        if needed > hops_max && !settings.single_tree {
            let reason = match needed {
                ..=HOPS_MAX => format!(
                    "the trees of {network} have up to {needed} hops, and source routes at most {hops_max}: write {needed} \
                     here and at all nodes"
                ),
                _ => format!(
                    "the trees of {network} have up to {needed} hops, and packets have room for {HOPS_MAX}: take a \
                     network with fewer dimensions or levels"
                ),
            };
            return Err(wrong("datacast.hops-max", reason));
        }
        Ok(Box::new(fabric))
    }

    fn hosts<'a>(&self, config: &'a ManagerConfig) -> Vec<&'a str> {
        config.datacast.iter().flat_map(|settings| &settings.hosts).map(String::as_str).collect()
    }

    fn devices(
        &self,
        config: &ManagerConfig,
        _hosts: &Hosts,
        security: Option<&Security>,
    ) -> Result<Vec<Named>, SettingsError> {
        let settings = section("datacast", &config.datacast)?;
        let gather = Duration::from_millis(settings.gather_ms);
        let ends = settings.forwarders.iter().map(|process| process.expected(security));
        let device = Forwarders::new(ends.collect::<Result<_, _>>()?, gather, security.cloned());
        Ok(vec![(DeviceId::Forwarders, Box::new(device))])
    }

    fn health(&self, config: &ManagerConfig) -> Result<Option<Box<dyn Health>>, SettingsError> {
        Ok(Some(Box::new(OfLinks::new(network(section("datacast", &config.datacast)?)?))))
    }
}

/// Links between forwarders: one works if both of its ends say so.
#[derive(Debug)]
struct OfLinks {
    network: Network,
    names: BTreeMap<u32, String>,
    /// Node and port of every end that says that its link is down.
    down: BTreeSet<(u32, u32)>,
    /// The links that are taken to have failed, by their ends.
    failed: BTreeSet<(u32, u32)>,
    /// Number of reports of links that the network does not have, and the first few nodes that sent them.
    unknown: u64,
    named: BTreeSet<u32>,
}

/// Nodes that do not exist or lie of which the log speaks.
const NAMED_MAX: usize = 64;
/// Bytes of a node's name that are kept.
const NAME_LEN_MAX: usize = 64;

impl OfLinks {
    fn new(network: Network) -> Self {
        let (names, down, failed, named) = Default::default();
        OfLinks { network, names, down, failed, unknown: 0, named }
    }

    fn end(&mut self, number: u32, port: u32, up: bool) {
        if number >= self.network.node_count() || port >= self.network.port_count(number) {
            self.unknown += 1;
            if self.named.len() < NAMED_MAX && self.named.insert(number) {
                tracing::warn!(number, port, "a forwarder speaks of a link that the network does not have");
            }
        } else if up {
            self.down.remove(&(number, port));
        } else {
            self.down.insert((number, port));
        }
    }

    fn hear(&mut self, word: &Word) {
        match word {
            Word::Nodes(nodes) => {
                for node in nodes {
                    if node.number >= self.network.node_count() {
                        self.end(node.number, 0, true);
                        continue;
                    }
                    let shown = node.name.split_at(node.name.floor_char_boundary(NAME_LEN_MAX)).0;
                    self.names.insert(node.number, shown.to_string());
                    let own = (node.number, 0)..=(node.number, u32::MAX);
                    let before: Vec<(u32, u32)> = self.down.range(own).copied().collect();
                    for end in before {
                        self.down.remove(&end);
                    }
                    node.down.iter().for_each(|port| self.end(node.number, *port, false));
                }
            }
            Word::Link(change) => self.end(change.number, change.port, change.up),
        }
    }

    fn name(&self, node: u32) -> String {
        self.names.get(&node).cloned().unwrap_or_else(|| format!("node {node}"))
    }
}

impl Health for OfLinks {
    fn links(&mut self, words: &[Word]) -> Verdict {
        words.iter().for_each(|word| self.hear(word));
        let link = |&(node, port): &(u32, u32)| {
            let other = self.network.neighbor(node, port);
            (node.min(other), node.max(other))
        };
        let failed: BTreeSet<(u32, u32)> = self.down.iter().map(link).collect();
        let part = |&(one, other): &(u32, u32)| -> Part { Datacast::link(one, other) };
        let gone: Vec<(u32, u32)> = failed.difference(&self.failed).copied().collect();
        let back: Vec<(u32, u32)> = self.failed.difference(&failed).copied().collect();
        let words = |links: &[(u32, u32)], what: &str| {
            let link = |(one, other): &(u32, u32)| format!("{}-{}", self.name(*one), self.name(*other));
            let list: Vec<String> = links.iter().map(link).collect();
            (!list.is_empty()).then(|| format!("link {} {what}", list.join(" and ")))
        };
        let words: Vec<String> =
            [words(&gone, "down"), words(&back, "up again")].into_iter().flatten().collect();
        let verdict = Verdict {
            failed: gone.iter().map(|link| Failure::Part(part(link))).collect(),
            repaired: back.iter().map(|link| Failure::Part(part(link))).collect(),
            words: words.join("; "),
            ..Verdict::default()
        };
        self.failed = failed;
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::Authority;
    use polycast_api::forwarder::{LinkChange, NodeLinks};
    use polycast_net::seal::Secret;

    /// Members that show certificates have names, and the settings say whose process is where.
    #[test]
    fn processes_are_named_where_members_show_certificates() {
        let folder = tempfile::tempdir().unwrap();
        let files = Authority::open_or_new(folder.path()).unwrap().certify_manager().unwrap();
        let (certificates, key) = (Security::files(files).unwrap(), Security::shared(&Secret::fresh()));
        let address: SocketAddr = "10.0.0.1:7403".parse().unwrap();
        let expected =
            |text: &str, security| ForwarderAddress::try_from(text.to_string()).unwrap().expected(security);
        let named = (address, Expected::Member("h0".into()));
        assert_eq!(expected("h0@10.0.0.1:7403", Some(&certificates)).unwrap(), named);
        assert_eq!(expected("10.0.0.1:7403", Some(&key)).unwrap(), (address, Expected::Sharer));
        let said = expected("10.0.0.1:7403", Some(&certificates)).unwrap_err().to_string();
        assert!(said.contains("say whose process is there: NAME@10.0.0.1:7403"), "{said}");
    }

    fn said(number: u32, port: u32, up: bool) -> Word {
        Word::Link(LinkChange { name: format!("n{number}"), number, port, up })
    }

    #[test]
    fn a_link_is_down_until_both_ends_say_that_it_works() {
        let network: Network = "bcube:4,2".parse().unwrap();
        let mut health = OfLinks::new(network);
        // Server 1's port 0 leads to switch 16, where it is port 1.
        let other = network.neighbor(1, 0);
        let there = (0..4).find(|port| network.neighbor(other, *port) == 1).unwrap();
        let part = vec![Failure::Part(Datacast::link(1, other))];
        let verdict = health.links(&[said(1, 0, false), said(other, there, false)]);
        assert_eq!((verdict.failed, verdict.repaired), (part.clone(), vec![]));
        assert_eq!(health.links(&[said(1, 0, true)]), Verdict::default());
        let verdict = health.links(&[said(other, there, true)]);
        assert_eq!((verdict.failed, verdict.repaired), (vec![], part.clone()));
        // A process that begins anew tells all that it knows.
        health.links(&[said(1, 0, false)]);
        let anew = Word::Nodes(vec![NodeLinks { name: "h1".into(), number: 1, down: vec![] }]);
        let verdict = health.links(std::slice::from_ref(&anew));
        assert_eq!(verdict.repaired, part);
        assert!(verdict.words.starts_with("link h1-node 16 up again"), "{}", verdict.words);
        // Of a name that is too long the beginning is kept.
        let long = Word::Nodes(vec![NodeLinks { name: "ä".repeat(1_000), number: 1, down: vec![] }]);
        health.links(&[long]);
        assert_eq!(health.names[&1], "ä".repeat(32));
        // What there is not means nothing.
        assert_eq!(
            health.links(&[said(1, 7, false), said(900, 0, false), said(1, 7, true)]),
            Verdict::default()
        );
        assert_eq!((health.unknown, health.named.len()), (3, 2));
    }
}
