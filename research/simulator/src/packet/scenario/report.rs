//! Results of a run.

use super::{Scenario, TransferPlan};
use crate::packet::world::{Cluster, Datagram, Phase, Transfer};
use crate::packet::{LinkId, Network, Outcome, Packet, World};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use polycast_types::{Duration, Rate, Time};

/// The trees over which the receivers of a transfer pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trees {
    /// Number of trees.
    pub count: u32,
    /// Rate of all together: that of the slowest link of each. No two of them have a direction of a link in
    /// common.
    pub rate: Rate,
}

/// One transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferReport {
    /// The source's host.
    pub source: u32,
    /// Time at which the transfer began.
    pub started_at: Time,
    /// Time at which the last of its receivers had the whole object; `None` if one never did.
    pub finished_at: Option<Time>,
    /// Its trees, with pull.
    pub trees: Option<Trees>,
}

/// One receiver of one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverReport {
    /// Its transfer's number; the first is 0.
    pub transfer: u32,
    /// Its host.
    pub id: u32,
    /// Time at which the receiver had the whole object; `None` if it never did.
    pub finished_at: Option<Time>,
    /// Reason that the receiver was given up, if it was.
    pub failure: Option<String>,
}

/// One direction of a link that carried or lost something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkReport {
    /// Node at which the link begins.
    pub from: u32,
    /// Node at which the link ends.
    pub to: u32,
    /// Bytes that its queue took.
    pub bytes: u64,
    /// Packets that its queue had no room for.
    pub queue_drops: u64,
    /// Packets that its loss took.
    pub losses: u64,
    /// Packets that were lost because it was down.
    pub down_drops: u64,
    /// The most bytes that waited on it or were being sent.
    pub queue_peak_bytes: u64,
}

impl LinkReport {
    /// Packets lost for any reason.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.queue_drops + self.losses + self.down_drops
    }
}

/// A receiver at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverSample {
    /// Its transfer's number.
    pub transfer: u32,
    /// Its host.
    pub id: u32,
    /// Bytes of the object that it has: with push in verified groups, with TCP without a gap.
    pub bytes: u64,
}

/// A link at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSample {
    /// Node at which the link begins.
    pub from: u32,
    /// Node at which the link ends.
    pub to: u32,
    /// Bytes that its queue has taken so far.
    pub bytes: u64,
    /// Bytes that wait on it or are being sent.
    pub queue_bytes: u64,
    /// Packets that were lost on it so far.
    pub drops: u64,
}

/// A run at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Time of the sample.
    pub at: Time,
    /// The receivers in the order given, transfer by transfer.
    pub receivers: Vec<ReceiverSample>,
    /// The links that have carried or lost something.
    pub links: Vec<LinkSample>,
}

/// Looks at a run while it goes on.
pub struct Probe<'a> {
    interval: Duration,
    next: Time,
    look: &'a mut dyn FnMut(&Sample),
}

impl<'a> Probe<'a> {
    /// Has `look` see the run at each multiple of the interval, which is above zero, and at its end.
    ///
    /// # Panics
    /// If the interval is zero.
    pub fn new(interval: Duration, look: &'a mut dyn FnMut(&Sample)) -> Self {
        assert!(interval > Duration::ZERO, "samples have time between them");
        Probe { interval, next: Time::ZERO + interval, look }
    }

    /// Runs a world as [`Network::run`] does, with samples on the way.
    pub(super) fn run<W: World>(
        &mut self,
        net: &mut Network<W::Packet>,
        world: &mut W,
        until: Time,
        receivers: impl Fn(&W) -> Vec<ReceiverSample>,
    ) -> Outcome {
        while self.next < until {
            match net.run(world, self.next) {
                Outcome::Until => self.take(net, self.next, receivers(world)),
                over => return over,
            }
            self.next += self.interval;
        }
        net.run(world, until)
    }

    /// The last sample, of how it ended.
    pub(super) fn end<P: Packet>(&mut self, net: &Network<P>, receivers: Vec<ReceiverSample>) {
        self.take(net, net.now(), receivers);
    }

    fn take<P: Packet>(&mut self, net: &Network<P>, at: Time, receivers: Vec<ReceiverSample>) {
        let links = (0..net.link_count()).map(LinkId).filter_map(|link| {
            let (counters, (from, to)) = (net.counters(link), net.ends(link));
            let (bytes, drops) = (counters.bytes, counters.drops());
            let queue_bytes = net.queued_bytes(link);
            let sample = LinkSample { from: from.0, to: to.0, bytes, queue_bytes, drops };
            (bytes > 0 || drops > 0).then_some(sample)
        });
        (self.look)(&Sample { at, receivers, links: links.collect() });
    }
}

/// Results of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Time at which the last receiver had the whole object; `None` if one never did.
    pub finished_at: Option<Time>,
    /// The transfers in the order given.
    pub transfers: Vec<TransferReport>,
    /// The receivers in the order given, transfer by transfer.
    pub receivers: Vec<ReceiverReport>,
    /// Bytes on all links together.
    pub bytes_on_links: u64,
    /// The links that carried or lost something.
    pub links: Vec<LinkReport>,
    /// Packets lost in queues, by loss, on links that were down, in sockets and in optical switches.
    pub drops: u64,
    /// Packets of the data channel that held nothing new for the hosts that got them; with pull, duplicate
    /// interests at the source.
    pub duplicates: u64,
    /// Events of the run.
    pub events: u64,
    /// Arrivals: packets times links.
    pub packet_hops: u64,
    /// A hash of every event in order.
    pub trace_hash: u64,
    /// Time at which the run ended.
    pub ended_at: Time,
    /// Breaches of what must always hold.
    pub breaches: Vec<String>,
}

impl Report {
    pub(super) fn new(scenario: &Scenario, net: &Network<Datagram>, cluster: &Cluster) -> Self {
        let mut receivers = Vec::new();
        let (mut drops, mut duplicates) = (cluster.optical_drops(), 0);
        for (kind, transfer) in cluster.transfers().iter().zip(0u32..) {
            match kind {
                Transfer::Push(push) => {
                    for (receiver, number) in push.receivers().iter().zip(0u32..) {
                        drops += receiver.overflows();
                        duplicates += receiver.duplicates();
                        let failed = || push.failure_of(number);
                        let lacks = || Some("not done when the run ended".to_string());
                        let done = receiver.phase() == Phase::Done;
                        receivers.push(ReceiverReport {
                            transfer,
                            id: receiver.node().0,
                            finished_at: receiver.finished_at(),
                            failure: if done { None } else { failed().or_else(lacks) },
                        });
                    }
                }
                Transfer::Tcp(tcp) => receivers.extend(tcp.receivers().iter().map(|&(node, finished_at)| {
                    let failure = finished_at.is_none().then(|| "not done when the run ended".to_string());
                    ReceiverReport { transfer, id: node.0, finished_at, failure }
                })),
            }
        }
        drops += (0..net.link_count()).map(|link| net.counters(LinkId(link)).drops()).sum::<u64>();
        let links = links(net);
        let transfers = transfers(scenario, &receivers);
        Report {
            finished_at: last_of(&receivers),
            transfers,
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

/// Returns the time at which the last receiver was done.
pub(super) fn last_of<'a>(receivers: impl IntoIterator<Item = &'a ReceiverReport>) -> Option<Time> {
    let times: Option<Vec<Time>> = receivers.into_iter().map(|receiver| receiver.finished_at).collect();
    times.and_then(|times| times.into_iter().max())
}

/// The transfers, by what their receivers have.
pub(super) fn transfers(scenario: &Scenario, receivers: &[ReceiverReport]) -> Vec<TransferReport> {
    let of = |(plan, transfer): (&TransferPlan, u32)| TransferReport {
        source: plan.source,
        started_at: plan.start,
        finished_at: last_of(receivers.iter().filter(|receiver| receiver.transfer == transfer)),
        trees: None,
    };
    scenario.transfers.iter().zip(0..).map(of).collect()
}

/// The links that carried or lost something.
pub(super) fn links<P: Packet>(net: &Network<P>) -> Vec<LinkReport> {
    let all = (0..net.link_count()).map(LinkId);
    all.filter_map(|link| {
        let counters = net.counters(link);
        let (from, to) = net.ends(link);
        let report = LinkReport {
            from: from.0,
            to: to.0,
            bytes: counters.bytes,
            queue_drops: counters.queue_drops,
            losses: counters.losses,
            down_drops: counters.down_drops,
            queue_peak_bytes: net.queue_peak_bytes(link),
        };
        (counters.bytes > 0 || counters.drops() > 0).then_some(report)
    })
    .collect()
}
