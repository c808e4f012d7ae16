//! Other ways to bring the same object to the same hosts in the same lab, and what each costs the network
//! (Datacast, section 7, the comparison study; Orca, section 5).
//!
//! A link's stress is what crossed it in proportion to the object, and a network's stress is what crossed all
//! of its links in proportion to an ideal multicast, which crosses every link of one tree once.

use crate::datacast;
use crate::error::LabError;
use crate::layout::{Layout, LinkBytes};
use crate::spec::{Network, Spec};
use crate::system::require;
use polycast_planning::trees::TreePlanner;
use polycast_topology::Failures;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::str::FromStr;

/// Way of bringing an object to its receivers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// By the lab's own fabric: what the lab is for.
    #[default]
    Polycast,
    /// A BitTorrent client at every host, all of them neighbours (aria2).
    Bittorrent,
    /// The source sends to every receiver over a TCP connection of its own, to all at the same time.
    Tcp,
    /// `scp` from the source to every receiver, all at the same time.
    Scp,
    /// `rsync` over ssh from the source to every receiver, all at the same time.
    Rsync,
    /// Every receiver copies from an NFS server at the source, all at the same time (NFS-Ganesha, libnfs).
    Nfs,
    /// In a Datacast fabric: one tree of shortest ways with caches at every node, as in content centric
    /// networking.
    SingleTree,
}

const WAYS: [(&str, Way); 7] = [
    ("polycast", Way::Polycast),
    ("bittorrent", Way::Bittorrent),
    ("tcp", Way::Tcp),
    ("scp", Way::Scp),
    ("rsync", Way::Rsync),
    ("nfs", Way::Nfs),
    ("single-tree", Way::SingleTree),
];

impl FromStr for Way {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let known = WAYS.iter().find(|(name, _)| *name == text).map(|(_, way)| *way);
        known.ok_or_else(|| LabError::Way {
            text: text.into(),
            reason: "write polycast, tcp, scp, rsync, nfs, bittorrent or single-tree".into(),
        })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = WAYS.iter().find(|(_, way)| way == self).map_or("polycast", |(name, _)| name);
        f.write_str(name)
    }
}

impl Way {
    /// Checks that a lab can deliver this way at all.
    ///
    /// # Errors
    /// The lab has no such way, or a program is missing.
    pub fn check(self, spec: &Spec) -> Result<(), LabError> {
        let wrong = |reason: &str| LabError::Way { text: self.to_string(), reason: reason.into() };
        let server = ("sshd", "openssh-server");
        match self {
            Way::Polycast | Way::Tcp => Ok(()),
            Way::Bittorrent => require(&[("aria2c", "aria2")]),
            Way::Scp => require(&[("scp", "openssh-client"), server]),
            Way::Rsync => require(&[("rsync", "rsync"), ("ssh", "openssh-client"), server]),
            Way::Nfs => require(&[("ganesha.nfsd", "nfs-ganesha-vfs"), ("nfs-cp", "libnfs-utils")]),
            Way::SingleTree if matches!(spec.network, Network::Datacast { .. }) => Ok(()),
            Way::SingleTree => {
                Err(wrong("only a lab such as datacast:bcube:4,2 has nodes that keep packets"))
            }
        }
    }
}

/// Load that a delivery put on the network.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Stress {
    /// Traffic on the busiest link, in proportion to the object.
    pub link: f64,
    /// Busiest link.
    pub busiest: LinkBytes,
    /// Traffic that left the source by all of its links, in proportion to the object.
    pub source: f64,
    /// Traffic on all links, in bytes.
    pub network_bytes: u64,
    /// The same in proportion to the ideal multicast.
    pub network: f64,
}

/// The links that an object passes on its way, without those for control alone.
fn carries_data(spec: &Spec, one: &str, other: &str) -> bool {
    // The packet network beside a Datacast fabric is for control.
    !matches!(spec.network, Network::Datacast { .. }) || (one != "core" && other != "core")
}

/// Works out what a delivery of so many bytes cost the network. `None` where nothing crossed it.
#[must_use]
pub fn stress(
    spec: &Spec,
    source: &str,
    ideal_links: u64,
    bytes: u64,
    links: &[LinkBytes],
) -> Option<Stress> {
    let links = links.iter().filter(|link| carries_data(spec, &link.from, &link.to));
    let links: Vec<&LinkBytes> = links.collect();
    let busiest = (*links.iter().max_by_key(|link| link.bytes)?).clone();
    if bytes == 0 || ideal_links == 0 {
        return None;
    }
    let times = |crossed: u64| crossed as f64 / bytes as f64;
    let left: u64 = links.iter().filter(|link| link.from == source).map(|link| link.bytes).sum();
    let network_bytes = links.iter().map(|link| link.bytes).sum();
    let network = times(network_bytes) / ideal_links as f64;
    Some(Stress { link: times(busiest.bytes), busiest, source: times(left), network_bytes, network })
}

/// A group of a lab, by the names of its hosts, and how many links an ideal multicast to it crosses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// The source.
    pub source: String,
    /// The receivers.
    pub receivers: Vec<String>,
    /// The links of one tree: in a Datacast fabric of the smallest that it plans, elsewhere of one of
    /// shortest ways.
    pub ideal_links: u64,
}

/// The group that is meant by these names or numbers of hosts; all other hosts receive without any.
///
/// # Errors
/// There is no such host, or no tree.
pub fn group_of(spec: &Spec, source: &str, receivers: Option<&[String]>) -> Result<Group, LabError> {
    let layout = Layout::new(spec);
    let number = |name: &str| {
        let at = layout.host(name).and_then(|host| layout.hosts.iter().position(|other| other == host));
        let last = layout.hosts.len() as u32 - 1;
        at.map(|at| at as u32).ok_or_else(|| LabError::Host { host: name.into(), last })
    };
    let source = number(source)?;
    let receivers = match receivers {
        None => (0..layout.hosts.len() as u32).filter(|host| *host != source).collect(),
        Some(names) => names.iter().map(|name| number(name)).collect::<Result<Vec<u32>, _>>()?,
    };
    let ideal_links = match datacast::network_of(spec) {
        Some(network) => {
            let planned = TreePlanner::new(network).plan(source, &receivers, &Failures::none());
            let planned = planned.map_err(|error| LabError::system("plan the ideal tree", error))?;
            planned.trees.iter().map(|tree| tree.nodes.len()).min().unwrap_or(0) as u64
        }
        None => shortest_tree_links(spec, &layout, source, &receivers),
    };
    let name = |host: u32| layout.hosts[host as usize].name.clone();
    Ok(Group { source: name(source), receivers: receivers.into_iter().map(name).collect(), ideal_links })
}

/// The links of a tree of shortest ways over the lab's cables.
fn shortest_tree_links(spec: &Spec, layout: &Layout, source: u32, receivers: &[u32]) -> u64 {
    let mut neighbours: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    // Labelled packets do not pass the packet core.
    let beside = |node: &str| matches!(spec.network, Network::Orca { .. }) && node == "core";
    for cable in &layout.cables {
        let (one, other) = (cable.a.node.as_str(), cable.b.node.as_str());
        if !beside(one) && !beside(other) {
            neighbours.entry(one).or_default().push(other);
            neighbours.entry(other).or_default().push(one);
        }
    }
    let source = layout.hosts[source as usize].name.as_str();
    let mut parents: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from([source]);
    while let Some(node) = queue.pop_front() {
        for &next in neighbours.get(node).into_iter().flatten() {
            if next != source && !parents.contains_key(next) {
                parents.insert(next, node);
                queue.push_back(next);
            }
        }
    }
    let mut fed: BTreeSet<&str> = BTreeSet::new();
    for &receiver in receivers {
        let mut node = layout.hosts[receiver as usize].name.as_str();
        while let Some(&parent) = parents.get(node)
            && fed.insert(node)
        {
            node = parent;
        }
    }
    fed.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(spec: &str, source: &str, receivers: &[&str]) -> Group {
        let names: Vec<String> = receivers.iter().map(ToString::to_string).collect();
        group_of(&spec.parse().unwrap(), source, Some(&names)).unwrap()
    }

    #[test]
    fn the_ideal_tree_of_the_papers_group_has_13_links() {
        let paper = group("datacast:bcube:4,2", "0", &["2", "4", "9", "11", "13", "15"]);
        assert_eq!((paper.ideal_links, paper.receivers[2].as_str()), (13, "h9"));
        // A switch between all hosts; and in a fat-tree the source's rack, the core and both racks of another
        // pod.
        assert_eq!(group("bridge:5", "h1", &["0", "4"]).ideal_links, 3);
        assert_eq!(group("orca:4", "0", &["1", "4", "6"]).ideal_links, 2 + 3 + 2 + 2);
        assert!(group_of(&"bridge:3".parse().unwrap(), "9", None).is_err());
    }

    #[test]
    fn stress_is_in_proportion_to_the_object_and_leaves_control_out() {
        let spec: Spec = "datacast:bcube:4,2".parse().unwrap();
        let link = |from: &str, to: &str, bytes| LinkBytes { from: from.into(), to: to.into(), bytes };
        let links = vec![
            link("h0", "core", 9_000),
            link("h0", "s16", 600),
            link("h0", "s20", 500),
            link("s16", "h0", 20),
            link("s16", "h2", 700),
        ];
        let found = stress(&spec, "h0", 2, 1_000, &links).unwrap();
        assert_eq!((found.link, found.source, found.network_bytes), (0.7, 1.1, 1_820));
        assert_eq!((found.busiest.to.as_str(), found.network), ("h2", 0.91));
        assert_eq!(stress(&spec, "h0", 2, 0, &links), None);
    }

    #[test]
    fn ways_are_read_and_written() {
        for (name, way) in WAYS {
            assert_eq!((name.parse(), way.to_string().as_str()), (Ok(way), name));
        }
        let message = "carrier-pigeon".parse::<Way>().unwrap_err().to_string();
        assert!(message.contains("bittorrent"), "{message}");
        let bridge: Spec = "bridge:3".parse().unwrap();
        assert!(Way::SingleTree.check(&bridge).unwrap_err().to_string().contains("datacast"));
    }
}
