//! Plans: which hosts are served, what a path holds of the network, what its devices keep, and how the
//! transport reaches the receivers (Republic section III-B, Table II).
//!
//! All of it is data, which managers write down and hand on to each other. Where a kind is added to
//! [`Resource`], [`DeviceCommand`] or [`Channel`], the compiler names the places that have to know it:
//! nothing here is matched by `_`.

use crate::fabric_name::FabricName;
use crate::kept_address;
use crate::labels::Encoding;
use crate::part::Part;
use crate::shared::{Shared, Uses};
use crate::trees::{SteinerTree, TreeHop};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use polycast_types::{Duration, PullTuning, Rate};
use serde::{Deserialize, Serialize};

/// A host that can send and receive, by a number that the manager gave it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct HostId(pub u32);

/// One source and its receivers, or several sources that send to the same ones.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// The host that sends.
    pub source: HostId,
    /// Further hosts that send to the same address; none but for packets of applications. Manager and agents
    /// that know of one source alone write nothing here.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub further_sources: BTreeSet<HostId>,
    /// The hosts that receive; never empty, and never the source of a group that has no other one.
    pub receivers: BTreeSet<HostId>,
}

impl Group {
    /// A group with one source.
    #[must_use]
    pub fn of_one(source: HostId, receivers: BTreeSet<HostId>) -> Self {
        Group { source, further_sources: BTreeSet::new(), receivers }
    }

    /// The hosts that send, each once.
    pub fn sources(&self) -> impl Iterator<Item = HostId> + '_ {
        core::iter::once(self.source).chain(self.further_sources.iter().copied())
    }

    /// All hosts of the group, each once: receivers first.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> + '_ {
        let send_only = self.sources().filter(|source| !self.receivers.contains(source));
        self.receivers.iter().copied().chain(send_only)
    }
}

/// A plan that is in force (Republic's `responseID`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PlanId(pub u64);

/// Something of the network that only one plan can hold at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Resource {
    /// An IP multicast group with its UDP port.
    MulticastAddress {
        /// Group address.
        #[serde(with = "kept_address")]
        address: IpAddr,
        /// UDP port.
        port: u16,
    },
    /// A port of the optical circuit switch that leads to a rack, in both directions.
    CircuitPort {
        /// Its number at the switch.
        port: u32,
    },
    /// An optical splitter.
    Splitter {
        /// Its number.
        splitter: u32,
    },
    /// A share of the relays of one partition of a Shufflecast.
    RelayPartition {
        /// The column.
        column: u32,
        /// The partition of this column.
        partition: u32,
        /// Number of the share of the relays' rate.
        share: u32,
    },
    /// A place in the table of a spine switch.
    SpineEntry {
        /// The switch, by its number in the network.
        spine: u32,
        /// The place.
        slot: u32,
    },
}

impl Resource {
    /// Returns true if it belongs to the optical circuit switch.
    pub(crate) fn is_of_circuits(&self) -> bool {
        matches!(self, Resource::CircuitPort { .. } | Resource::Splitter { .. })
    }

    /// Returns the name of its kind, as far as it tells that itself: which rack a port leads to it does not.
    pub(crate) fn kind(&self) -> String {
        match self {
            Resource::MulticastAddress { .. } => "addresses".into(),
            Resource::CircuitPort { .. } => "ports of the circuit switch".into(),
            Resource::Splitter { .. } => "splitters".into(),
            Resource::RelayPartition { column, partition, .. } => {
                format!("shares of partition {partition} of column {column}")
            }
            Resource::SpineEntry { spine, .. } => format!("entries of spine {spine}"),
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::MulticastAddress { address, port } => SocketAddr::new(*address, *port).fmt(f),
            Resource::CircuitPort { port } => write!(f, "port {port} of the circuit switch"),
            Resource::Splitter { splitter } => write!(f, "splitter {splitter}"),
            Resource::RelayPartition { column, partition, share } => {
                write!(f, "share {share} of partition {partition} of column {column}")
            }
            Resource::SpineEntry { spine, slot } => write!(f, "entry {slot} of spine {spine}"),
        }
    }
}

/// State that a device keeps while a plan is in force: set before the path is used, and removed after it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum DeviceCommand {
    /// The optical circuit switch leads light that enters at one port to another.
    CrossConnect {
        /// Port at which it enters.
        from: u32,
        /// Port at which it leaves.
        to: u32,
    },
    /// The switch of a rack copies the packets of a multicast group.
    RackRule {
        /// The rack.
        rack: u32,
        /// The group address.
        #[serde(with = "kept_address")]
        group: IpAddr,
        /// The port that they come from.
        from: RackPort,
        /// The ports that they go to.
        to: Vec<RackPort>,
    },
    /// The switch of a rack relays what comes from the servers of a source rack into its splitter. At the
    /// source itself the rule matches only packets from its servers, or they would circle without end.
    RelayRule {
        /// The switch that relays.
        rack: u32,
        /// The rack of the source.
        source: u32,
        /// Fibre whose copies are taken, where the rack has several splitters and so several copies come in:
        /// its number among the rack's fibres from splitters. The others' are dropped. Without it there is
        /// one copy, whatever fibre it comes in by.
        from: Option<u32>,
        /// Splitters of the rack that they go into, by their numbers; there may be none.
        to: Vec<u32>,
    },
    /// A spine switch leaves a link out for a session, although the label's filter says yes to it.
    SpineEntry {
        /// The switch.
        spine: u32,
        /// The session.
        session: u32,
        /// The leaf at the other end of the link.
        leaf: u32,
    },
    /// The agents of a rack put these labels in for a session.
    LeafLabel {
        /// The leaf switch of the rack.
        leaf: u32,
        /// The session.
        session: u32,
        /// The leaf label, all zero where the rack has no receivers; behind it the front of the pod's spine
        /// label where the pod's spine asks this rack ([`crate::labels::pod_labels::SPINE_LABEL_LEN_MAX`]).
        label: Vec<u8>,
    },
    /// A leaf switch puts a label before packets that programs of hosts below it send to a session's address,
    /// and hands such packets to hosts without the label.
    LeafDoor {
        /// The switch.
        leaf: u32,
        /// The session.
        session: u32,
        /// The ports of the hosts that may send, in rising order.
        ports: Vec<u32>,
        /// Way in which the label names leafs.
        encoding: Encoding,
        /// The source label; empty where no host may send.
        label: Vec<u8>,
    },
}

/// A port of a rack's switch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum RackPort {
    /// To a server.
    Host(HostId),
    /// To the optical circuit switch: which of the rack's fibres.
    Circuit(u32),
    /// Into a splitter of the rack: which of them.
    Splitter(u32),
    /// From whichever splitter feeds the rack.
    FromSplitters,
}

/// Way in which the transport reaches the receivers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Channel {
    /// One send reaches all of them.
    Multicast {
        /// Group address and UDP port of the data channel.
        #[serde(with = "kept_address::with_port")]
        group: (IpAddr, u16),
        /// The rate of a dedicated path; `None` on a shared network, where the sender adapts.
        rate: Option<Rate>,
        /// The longest interval of attempt sending (Republic's `i_a`); zero where it follows from the time
        /// waited alone.
        attempt_interval: Duration,
    },
    /// One send reaches all of them; the label before every packet says where it goes (Orca).
    Label {
        /// Group address and UDP port of the data channel.
        #[serde(with = "kept_address::with_port")]
        group: (IpAddr, u16),
        /// The session that switches and agents look up; it travels beside the label.
        session: u32,
        /// Way in which the labels name leafs.
        #[serde(default)]
        encoding: Encoding,
        /// The source label.
        label: Vec<u8>,
        /// Source labels of further trees of the same receivers, as long as the first: packets take turns
        /// among all.
        further: Vec<Vec<u8>>,
        /// The racks of receivers: where several share one, the source need hear only one of them. None where
        /// it is to hear all.
        #[serde(default)]
        racks: Vec<(HostId, u32)>,
        /// Receivers that no label leads to, since failures have cut them off: a source need not wait for
        /// them.
        #[serde(default)]
        left_out: Vec<HostId>,
        /// The rate of a dedicated path; `None` on a shared network, where the sender adapts.
        rate: Option<Rate>,
    },
    /// Receivers pull over several trees that share no arc (Datacast).
    SourceRoutes {
        /// Number of trees when nothing has failed; trees are numbered below that.
        tree_count: u32,
        /// Settings with which receivers pull.
        pulling: Pulling,
        /// The trees in use.
        trees: Vec<TreeRoutes>,
    },
    /// Over TCP from the source to the first, from there to the second, and so on.
    Chain {
        /// The receivers in this order.
        order: Vec<HostId>,
    },
}

impl Channel {
    /// The rate of a path that no other transfer uses.
    #[must_use]
    pub fn own_rate(&self) -> Option<Rate> {
        match self {
            Channel::Multicast { rate, .. } | Channel::Label { rate, .. } => *rate,
            Channel::SourceRoutes { .. } | Channel::Chain { .. } => None,
        }
    }

    /// Returns true if receivers of one channel receive the other too: the same, but for labels, and for ways
    /// over trees, of which receivers are notified.
    #[must_use]
    pub fn is_heard_like(&self, other: &Channel) -> bool {
        match (self, other) {
            (
                Channel::Label { group, session, label, .. },
                Channel::Label { group: other_group, session: other_session, label: other_label, .. },
            ) => (group, session, label.len()) == (other_group, other_session, other_label.len()),
            (
                Channel::SourceRoutes { tree_count, pulling, .. },
                Channel::SourceRoutes { tree_count: other_count, pulling: other_pulling, .. },
            ) => (tree_count, pulling) == (other_count, other_pulling),
            _ => self == other,
        }
    }
}

/// One tree as interests travel it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TreeRoutes {
    /// The tree; its number stays the same however it is repaired.
    pub tree: SteinerTree,
    /// For each receiver the way of its interests to the source.
    pub routes: Vec<(HostId, Vec<TreeHop>)>,
}

/// Settings with which receivers pull, the same for all transfers of a fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pulling {
    /// Bytes of the object in a packet.
    pub payload_bytes: u16,
    /// Number of packets that a receiver may request at a time in each tree (w of Datacast, section 5.1).
    pub credits: u32,
    /// The rate of a link: no tree is ever sent faster.
    pub link_rate: Rate,
    /// Settings that differ from those that follow from the link.
    #[serde(default)]
    pub tuning: PullTuning,
}

/// Plan by which one group is served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the fabric that made it.
    pub fabric: FabricName,
    /// Resources that it holds while it is in force.
    pub resources: Vec<Resource>,
    /// Parts that it uses beside others, in rising order: when one of them fails the plan is touched.
    pub uses: Uses,
    /// Commands for devices to set it up.
    pub commands: Shared<DeviceCommand>,
    /// Channel by which the transport uses it.
    pub channel: Channel,
}

impl Plan {
    /// Returns true if a failure touches this plan, which serves `group`. A receiver that is down does not:
    /// the others go on without it.
    #[must_use]
    pub fn is_touched(&self, group: &Group, failure: &Failure) -> bool {
        match failure {
            Failure::Host(host) => group.source == *host,
            Failure::Resource(resource) => self.resources.contains(resource),
            Failure::Part(part) => self.uses.contains(part),
        }
    }
}

impl Plan {
    /// Returns true if the devices do with packets of applications, or with those of a transfer, what they
    /// need.
    pub(crate) fn suits(&self, any_packets: bool) -> bool {
        let is_door = |command: &DeviceCommand| matches!(command, DeviceCommand::LeafDoor { .. });
        match any_packets {
            true => matches!(self.channel, Channel::Multicast { .. }),
            false => !self.commands.iter().any(is_door),
        }
    }
}

/// Reason why there is no plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Not now: what it needs is held by others.
    #[error("{0}")]
    Busy(String),
    /// Not ever, as this network is.
    #[error("{0}")]
    Impossible(String),
    /// Not ever, for the settings do not say where one of the group is. The caller that knows the host's name
    /// should say that.
    #[error("the settings of the fabric {fabric} do not say where host {} is", host.0)]
    NoPlace {
        /// The host.
        host: HostId,
        /// The fabric.
        fabric: String,
    },
}

/// Something that broke.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Failure {
    /// A host is down.
    Host(HostId),
    /// A resource can no longer be used.
    Resource(Resource),
    /// A part of a network has failed.
    Part(Part),
}
