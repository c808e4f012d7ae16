//! The paper's test bed in virtual time: BCube(4, 2), server 00 to servers 02, 10, 21, 23, 31 and 33.

use std::time::Instant;

use polycast_planning::trees::TreePlanner;
use polycast_protocol::pull::{Blocks, ForwarderConfig, RateConfig, Replacement, RetryTime, SourceCounters};
use polycast_simulator::packet::pull::{Datagram, Group, PullWorld};
use polycast_simulator::packet::{Builder, Faults, LinkConfig, LinkId, Network, NodeId, Outcome};
use polycast_topology::Node;
use polycast_types::{Duration, Rate, Time};

use crate::report::ItemError;

/// The servers 02, 10, 21, 23, 31, 33.
pub const RECEIVERS: [Node; 6] = [2, 4, 9, 11, 13, 15];
/// Switch <1,3> and server 23: the link between them is the one that the paper slows down or makes lossy.
const SLOW_LINK: (NodeId, NodeId) = (NodeId(23), NodeId(11));
/// Each of the two trees has 13 links.
pub const TREE_LINKS: u64 = 13;

/// Packet loss on the link from <1,3> to 23 by its place, in parts of a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nowhere.
    None,
    /// Data before it comes to the queue, as ns-2's error models do: it takes no time of the link.
    BeforeQueue(u32),
    /// Data on the wire, after it has taken its time of the link.
    OnWire(u32),
}

/// Parameters of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Bytes of the object.
    pub bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes of payload in a packet.
    pub payload: u16,
    /// Bytes of an interest, and of a data packet beside its payload.
    pub header: u16,
    /// The links' rate.
    pub link_bps: u64,
    /// The links' delay.
    pub delay: Duration,
    /// Bytes that a link's queue holds.
    pub queue_bytes: u64,
    /// The rate of the link from <1,3> to 23 where it differs.
    pub slow_bps: Option<u64>,
    /// Packet loss on that link.
    pub loss: Loss,
    /// Packets in a content store.
    pub store: u32,
    /// Rule for the packet that a full store forgets.
    pub replacement: Replacement,
    /// Tree A alone, or both.
    pub trees: u8,
    /// Credits of a receiver in each tree (w).
    pub credits: u32,
    /// Number of packets before a block's end at which its successor is decided.
    pub decide_ahead: u32,
    /// Time after which receivers request again.
    pub retry: RetryTime,
    /// Settings for changes of the rates.
    pub rate: RateConfig,
    /// Set if round trips are logged.
    pub round_trips: bool,
    /// The run's seed.
    pub seed: u64,
}

impl Setting {
    /// Appendix B: 1 GB in packets of 1500 bytes with 72 bytes of header, links of 10 Gb/s and 10 us, stores
    /// of 2048 packets, T = 1 ms, δ = 50 Mb/s. The paper does not say w; it is 32 here. The object, its
    /// blocks and the stores shrink to a tenth in a quick run.
    #[must_use]
    pub fn appendix_b(quick: bool, seed: u64) -> Self {
        let scale = if quick { 10 } else { 1 };
        let link_bps = 10_000_000_000;
        Setting {
            bytes: 1_000_000_000 / scale,
            block_bytes: 100_000_000 / scale,
            payload: 1428,
            header: 72,
            link_bps,
            delay: Duration::from_micros(10),
            queue_bytes: 256 << 10,
            slow_bps: None,
            loss: Loss::None,
            store: stored(2048, quick),
            replacement: Replacement::default(),
            trees: 1,
            credits: 32,
            decide_ahead: 32,
            retry: RetryTime::Fixed(Duration::from_millis(20)),
            rate: RateConfig::for_link(link_bps),
            round_trips: false,
            seed,
        }
    }

    /// Appendix B with the link from <1,3> to 23 at 200 Mb/s.
    #[must_use]
    pub fn slow_receiver(quick: bool, seed: u64) -> Self {
        Setting { slow_bps: Some(200_000_000), ..Setting::appendix_b(quick, seed) }
    }

    /// Appendix B.2, B.3: links of 1 Gb/s.
    #[must_use]
    pub fn gigabit(self) -> Self {
        let link_bps = 1_000_000_000;
        Setting { link_bps, rate: RateConfig { most_bps: link_bps, ..self.rate }, ..self }
    }

    /// Section 7: 4 GB in jumbo frames of 8000 bytes of payload over both trees, w = 16, δ = 5 Mb/s.
    ///
    /// 4 GB in 500,000 packets agree with the 512,129 interests that the paper's source counted, of which 2.4
    /// % are duplicates.
    #[must_use]
    pub fn testbed(quick: bool, seed: u64) -> Self {
        let setting = Setting::appendix_b(false, seed).gigabit();
        let scale = if quick { 10 } else { 1 };
        Setting {
            bytes: 4_000_000_000 / scale,
            block_bytes: 100_000_000 / scale,
            payload: 8000,
            store: stored(2048, quick),
            trees: 2,
            credits: 16,
            rate: RateConfig { increase_bps: 5_000_000, depth_bytes: 4 * 8072, ..setting.rate },
            ..setting
        }
    }

    /// Bytes on the wire of a full data packet.
    #[must_use]
    pub fn packet_bytes(&self) -> u64 {
        u64::from(self.payload) + u64::from(self.header)
    }

    /// The least time that the object takes at this rate, in seconds.
    #[must_use]
    pub fn ideal_s(&self, bps: f64) -> f64 {
        self.bytes as f64 * 8.0 * self.packet_bytes() as f64 / f64::from(self.payload) / bps
    }

    /// The least bytes on all links, in GB: every packet and its interest once on every link of a tree.
    #[must_use]
    pub fn ideal_gb(&self) -> f64 {
        let on_wire = self.packet_bytes() + u64::from(self.header);
        (TREE_LINKS * self.bytes * on_wire) as f64 / f64::from(self.payload) / 1e9
    }

    fn forwarder(&self, ports: u8) -> ForwarderConfig {
        ForwarderConfig {
            store_packets: self.store,
            replacement: self.replacement,
            ..ForwarderConfig::for_ports(ports)
        }
    }

    /// The bed, ready to run.
    ///
    /// # Errors
    /// If the sizes make no blocks.
    pub fn bed(&self) -> Result<Bed, ItemError> {
        let refused = |what: &dyn std::fmt::Display| ItemError::Refused(what.to_string());
        let topology: polycast_topology::Network = "bcube:4,2".parse().map_err(|error| refused(&error))?;
        let blocks = Blocks::new(self.bytes, self.payload, self.block_bytes)
            .ok_or_else(|| refused(&"the object has no blocks: sizes must be above zero"))?;
        let mut planner = TreePlanner::new(topology);
        let mut group = Group::plan(&mut planner, 0, &RECEIVERS, blocks, self.link_bps)
            .map_err(|error| refused(&error))?;
        if self.trees == 1 {
            group = group.with_tree(0);
        }
        group.credits = self.credits;
        group.decide_ahead = self.decide_ahead;
        group.retry = self.retry;
        group.rate = self.rate;
        group.header_bytes = self.header;
        let link =
            LinkConfig { queue_bytes: self.queue_bytes, ..LinkConfig::new(Rate(self.link_bps), self.delay) };
        let mut net: Network<Datagram> = Builder::from_graph(&topology, |_, _| link).build(self.seed);
        let mut world = PullWorld::new(&topology, self.header, |_, ports| self.forwarder(ports));
        self.spoil_link(&mut net, &mut world);
        Ok(Bed { setting: *self, planner, net, world, group })
    }

    fn spoil_link(&self, net: &mut Network<Datagram>, world: &mut PullWorld) {
        let (switch, server) = SLOW_LINK;
        let slow = net.link_between(switch, server).expect("BCube(4, 2) has that link");
        if let Some(bps) = self.slow_bps {
            net.set_rate(slow, Rate(bps));
        }
        match self.loss {
            Loss::None => {}
            Loss::BeforeQueue(ppm) => {
                let port = slow.0 - net.links_from(switch)[0].0;
                world.node_mut(switch.0).set_entry_loss(port as u8, ppm);
            }
            Loss::OnWire(ppm) => {
                net.set_faults(slow, Faults { loss_ppm: ppm, ..Faults::NONE });
            }
        }
    }

    /// Runs a transfer to its end.
    ///
    /// # Errors
    /// If it does not end within an hour of virtual time.
    pub fn run(&self) -> Result<Measured, ItemError> {
        let mut bed = self.bed()?;
        bed.start();
        bed.finish()
    }
}

/// Packets of a store of the paper's, which shrinks with the object: one that is not smaller beside a smaller
/// object forgets nothing that a slow receiver will ask for.
#[must_use]
pub fn stored(packets: u32, quick: bool) -> u32 {
    if quick { (packets / 10).max(1) } else { packets }
}

/// Results of a run.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Time when the last receiver had everything.
    pub finish_s: f64,
    /// Bytes that all links have carried, in GB.
    pub gb: f64,
    /// Counters of the source in each tree.
    pub trees: Vec<SourceCounters>,
    /// Packets times links, of the part that was run at last.
    pub packet_hops: u64,
    /// Seconds on this machine for that part.
    pub wall_s: f64,
}

impl Measured {
    /// Duplicates among a tree's interests, in percent.
    #[must_use]
    pub fn duplicates_percent(&self, tree: usize) -> f64 {
        let counted = self.trees[tree];
        100.0 * counted.duplicates as f64 / counted.interests.max(1) as f64
    }
}

/// The test bed.
pub struct Bed {
    /// Setting that it was made from.
    pub setting: Setting,
    /// The planner of its trees.
    pub planner: TreePlanner,
    /// The network.
    pub net: Network<Datagram>,
    /// Its nodes.
    pub world: PullWorld,
    /// The group.
    pub group: Group,
}

impl Bed {
    /// Lets the receivers begin.
    pub fn start(&mut self) {
        self.world.start(&mut self.net, &self.group);
        if self.setting.round_trips {
            for &receiver in &RECEIVERS {
                self.world.node_mut(receiver).log_round_trips(self.group.transfer);
            }
        }
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// If it does not end within an hour of virtual time.
    pub fn finish(&mut self) -> Result<Measured, ItemError> {
        let start = Instant::now();
        let hops_before = self.net.packet_hops();
        if self.world.missing() > 0 && self.until(Time(3_600_000_000_000)) != Outcome::Stopped {
            let missing = self.world.missing();
            return Err(ItemError::Refused(format!("{missing} receivers never had everything")));
        }
        Ok(Measured {
            finish_s: self.net.now().0 as f64 / 1e9,
            gb: self.bytes_on_links() as f64 / 1e9,
            trees: (0..self.group.trees()).map(|tree| self.source(tree)).collect(),
            packet_hops: self.net.packet_hops() - hops_before,
            wall_s: start.elapsed().as_secs_f64(),
        })
    }

    /// Runs until then, or until every receiver has everything.
    pub fn until(&mut self, time: Time) -> Outcome {
        self.net.run(&mut self.world, time)
    }

    /// Returns the source's counters in a tree.
    #[must_use]
    pub fn source(&self, tree: usize) -> SourceCounters {
        let source = self.world.node(self.group.source).source(self.group.transfer);
        source.expect("the group's source is there").counters(tree as u8)
    }

    /// Bytes that all links have carried.
    #[must_use]
    pub fn bytes_on_links(&self) -> u64 {
        (0..self.net.link_count()).map(|link| self.net.counters(LinkId(link)).bytes).sum()
    }
}
