//! What a run has shown.

use crate::packet::world::{Cluster, Datagram, Phase, Transfer};
use crate::packet::{LinkId, Network, Packet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use polycast_types::Time;

/// One receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverReport {
    /// Its host.
    pub id: u32,
    /// When it had the whole object; `None` if it never did.
    pub finished_at: Option<Time>,
    /// Why it was given up, if it was.
    pub failure: Option<String>,
}

/// One direction of a link that carried something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkBytes {
    /// Where it begins.
    pub from: u32,
    /// Where it ends.
    pub to: u32,
    /// Bytes that its queue took.
    pub bytes: u64,
}

/// What a run has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// When the last receiver had the whole object; `None` if one never did.
    pub finished_at: Option<Time>,
    /// The receivers in the order given.
    pub receivers: Vec<ReceiverReport>,
    /// Bytes on all links together.
    pub bytes_on_links: u64,
    /// The links that carried something.
    pub links: Vec<LinkBytes>,
    /// Packets lost in queues, by loss, on links that were down, in sockets and in optical switches.
    pub drops: u64,
    /// Packets of the data channel that held nothing new for who got them; with pull, duplicate interests at
    /// the source.
    pub duplicates: u64,
    /// Events of the run.
    pub events: u64,
    /// Arrivals: packets times links.
    pub packet_hops: u64,
    /// A hash of every event in order.
    pub trace_hash: u64,
    /// When the run ended.
    pub ended_at: Time,
    /// Breaches of what must always hold.
    pub breaches: Vec<String>,
}

impl Report {
    pub(super) fn new(net: &Network<Datagram>, cluster: &Cluster) -> Self {
        let mut receivers = Vec::new();
        let (mut drops, mut duplicates) = (cluster.optical_drops(), 0);
        for transfer in cluster.transfers() {
            match transfer {
                Transfer::Push(push) => {
                    for (receiver, number) in push.receivers().iter().zip(0u32..) {
                        drops += receiver.overflows();
                        duplicates += receiver.duplicates();
                        let failed = || push.failure_of(number);
                        let lacks = || Some("not done when the run ended".to_string());
                        let done = receiver.phase() == Phase::Done;
                        receivers.push(ReceiverReport {
                            id: receiver.node().0,
                            finished_at: receiver.finished_at(),
                            failure: if done { None } else { failed().or_else(lacks) },
                        });
                    }
                }
                Transfer::Tcp(tcp) => receivers.extend(tcp.receivers().iter().map(|&(node, finished_at)| {
                    let failure = finished_at.is_none().then(|| "not done when the run ended".to_string());
                    ReceiverReport { id: node.0, finished_at, failure }
                })),
            }
        }
        drops += (0..net.link_count()).map(|link| net.counters(LinkId(link)).drops()).sum::<u64>();
        let links = links(net);
        let times: Option<Vec<Time>> = receivers.iter().map(|receiver| receiver.finished_at).collect();
        Report {
            finished_at: times.and_then(|times| times.into_iter().max()),
            receivers,
            bytes_on_links: links.iter().map(|link| link.bytes).sum(),
            links,
            drops,
            duplicates,
            events: net.events(),
            packet_hops: net.packet_hops(),
            trace_hash: net.trace_hash(),
            ended_at: net.now(),
            breaches: cluster.breaches(),
        }
    }
}

/// The links that carried something.
pub(super) fn links<P: Packet>(net: &Network<P>) -> Vec<LinkBytes> {
    let all = (0..net.link_count()).map(LinkId);
    all.filter_map(|link| {
        let bytes = net.counters(link).bytes;
        let (from, to) = net.ends(link);
        (bytes > 0).then_some(LinkBytes { from: from.0, to: to.0, bytes })
    })
    .collect()
}
