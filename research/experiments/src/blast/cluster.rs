//! The racks of one multicast group in Blast's simulated cluster, and the traffic around them (section VI-A).
//!
//! Groups have racks of their own, so that they meet only in the background traffic; one of them stands for
//! all. Its racks are there link by link. Background flows end in racks that are not: there they get what
//! they would among background traffic alone.

use polycast_simulator::flow::{Completion, Flow, FlowError, FlowId, Link, Run};
use polycast_types::Time;

use crate::report::ItemError;

impl From<FlowError> for ItemError {
    fn from(error: FlowError) -> Self {
        ItemError::Refused(error.to_string())
    }
}

/// Sizes and rates of the cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cluster {
    /// Racks in the cluster.
    pub racks: u32,
    /// Servers in a rack.
    pub servers: u32,
    /// Racks of a group; the first server of the first one is the source.
    pub group_racks: u32,
    /// Rate of a server's link in bit/s.
    pub server_bps: f64,
    /// Rate of a rack's link to the packet core in bit/s.
    pub core_bps: f64,
    /// Rate of a rack's link to the circuit switch in bit/s.
    pub optical_bps: f64,
    /// Length of the object.
    pub bytes: u64,
    /// Length of a block in HDFS.
    pub block_bytes: u64,
}

/// The two packet cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Core {
    /// 40 Gbit/s a rack.
    Oversubscribed,
    /// 400 Gbit/s a rack.
    NonBlocking,
}

impl Core {
    /// Both.
    pub const ALL: [Core; 2] = [Core::Oversubscribed, Core::NonBlocking];

    /// Returns the name of the core.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Core::Oversubscribed => "10:1",
            Core::NonBlocking => "non-blocking",
        }
    }
}

/// Number of racks on each side that every server talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// None.
    No,
    /// Three.
    Light,
    /// Forty.
    Heavy,
}

impl Background {
    /// All three.
    pub const ALL: [Background; 3] = [Background::No, Background::Light, Background::Heavy];

    /// Returns the name of the background.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Background::No => "no",
            Background::Light => "light",
            Background::Heavy => "heavy",
        }
    }

    /// The farthest rack, in steps from the rack that a round points at.
    #[must_use]
    pub fn reach(self) -> u32 {
        match self {
            Background::No => 0,
            Background::Light => 3,
            Background::Heavy => 40,
        }
    }
}

impl Cluster {
    /// The paper's, with one of the two cores.
    #[must_use]
    pub fn papers(core: Core) -> Self {
        let core_bps = match core {
            Core::Oversubscribed => 40e9,
            Core::NonBlocking => 400e9,
        };
        Cluster {
            racks: 120,
            servers: 40,
            group_racks: 3,
            server_bps: 10e9,
            core_bps,
            optical_bps: 10e9,
            bytes: 300_000_000,
            block_bytes: 64_000_000,
        }
    }

    /// The racks that a server of rack 0 talks to in a round, as steps from its own; itself is left out.
    pub fn destinations(&self, background: Background, round: u64) -> impl Iterator<Item = u32> + use<> {
        let (racks, reach) = (i64::from(self.racks), i64::from(background.reach()));
        let shift = (round % u64::from(self.racks)) as i64;
        (-reach..=reach)
            .filter(|&step| step != 0)
            .map(move |step| (shift + step).rem_euclid(racks) as u32)
            .filter(|&step| step != 0)
    }

    /// The receivers of a group: all of its servers but the source.
    #[must_use]
    pub fn receivers(&self) -> u32 {
        self.group_racks * self.servers - 1
    }
}

/// A server of the modelled racks: rack and place in it.
pub type Server = (u32, u32);

/// The source of the group.
pub const SOURCE: Server = (0, 0);

/// The modelled racks in virtual time.
#[derive(Clone, Debug)]
pub struct World {
    cluster: Cluster,
    background: Background,
    racks: u32,
    run: Run,
    around: Vec<FlowId>,
    round: u64,
}

impl World {
    /// The group's racks and one more outside of it, with the background of the first round.
    ///
    /// # Errors
    /// If the cluster's rates are not valid.
    pub fn new(cluster: Cluster, background: Background) -> Result<Self, FlowError> {
        let racks = cluster.group_racks + 1;
        let run = Run::new(capacities_bps(&cluster, racks))?;
        let mut world = World { cluster, background, racks, run, around: Vec::new(), round: 0 };
        world.begin_round()?;
        Ok(world)
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The time in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.run.now().since(Time::ZERO).as_secs_f64()
    }

    /// Starts a flow of so many bytes.
    ///
    /// # Errors
    /// If the flow is not valid.
    pub fn start(&mut self, flow: Flow, bytes: u64) -> Result<FlowId, FlowError> {
        self.run.start(flow, 8 * bytes)
    }

    /// Starts a flow from one server to another.
    ///
    /// # Errors
    /// If there is no such server.
    pub fn unicast(&mut self, from: Server, to: Server, bytes: u64) -> Result<FlowId, FlowError> {
        let flow = Flow::over(path(&self.cluster, self.racks, from, to));
        self.start(flow, bytes)
    }

    /// The links from one server to another.
    #[must_use]
    pub fn path(&self, from: Server, to: Server) -> Vec<Link> {
        path(&self.cluster, self.racks, from, to)
    }

    /// The links of a multicast tree to the whole group over the packet core, or over circuits.
    #[must_use]
    pub fn tree(&self, optical: bool) -> Vec<Link> {
        let (up, down) = if optical { (2, 3) } else { (0, 1) };
        let racks = 1..self.cluster.group_racks;
        let mut links = vec![server_link(&self.cluster, SOURCE), self.rack_link(SOURCE.0, up)];
        links.extend(racks.map(|rack| self.rack_link(rack, down)));
        links.extend(self.members().skip(1).map(|server| server_link(&self.cluster, server) + 1));
        links
    }

    /// The group, the source first.
    pub fn members(&self) -> impl Iterator<Item = Server> + use<> {
        let servers = self.cluster.servers;
        (0..self.cluster.group_racks).flat_map(move |rack| (0..servers).map(move |at| (rack, at)))
    }

    /// Lets time pass until a flow ends, with the background shifting every second.
    ///
    /// # Errors
    /// If nothing can end any more.
    pub fn next_end(&mut self) -> Result<Completion, ItemError> {
        if self.background == Background::No {
            let stuck = || ItemError::Refused("no flow of the group can make progress".into());
            return self.run.advance(None).ok_or_else(stuck);
        }
        for _ in 0..100_000 {
            let until = Time((self.round + 1) * 1_000_000_000);
            if let Some(completion) = self.run.advance(Some(until)) {
                return Ok(completion);
            }
            self.round += 1;
            self.begin_round()?;
        }
        Err(ItemError::Refused("no flow of the group has ended within a day".into()))
    }

    /// Lets time pass until all of these have ended.
    ///
    /// # Errors
    /// If they cannot.
    pub fn finish(&mut self, flows: &[FlowId]) -> Result<(), ItemError> {
        let mut open = flows.len();
        while open > 0 {
            open -= self.next_end()?.flows.iter().filter(|&id| flows.contains(id)).count();
        }
        Ok(())
    }

    /// Lets time pass while no flow of the group is under way.
    pub fn wait(&mut self, seconds: f64) {
        let until = Time(self.run.now().0 + (seconds * 1e9) as u64);
        let ended = self.run.advance(Some(until));
        assert!(ended.is_none(), "nothing is under way");
    }

    /// Returns the time that naive unicast would take if the rates of the first round stayed.
    ///
    /// # Errors
    /// If a flow is not valid.
    pub fn first_round_seconds(&mut self) -> Result<f64, FlowError> {
        let receivers: Vec<Server> = self.members().skip(1).collect();
        let bytes = self.cluster.bytes;
        let mut slowest = f64::INFINITY;
        let flows: Result<Vec<_>, _> =
            receivers.into_iter().map(|to| self.unicast(SOURCE, to, bytes)).collect();
        for id in flows? {
            slowest = slowest.min(self.run.rate_bps(id).unwrap_or(f64::INFINITY));
        }
        Ok(8.0 * bytes as f64 / slowest)
    }

    fn begin_round(&mut self) -> Result<(), FlowError> {
        std::mem::take(&mut self.around).into_iter().for_each(|id| self.run.stop(id));
        let count = self.cluster.destinations(self.background, self.round).count() as u32;
        if count == 0 {
            return Ok(());
        }
        let (n, servers) = (f64::from(count), f64::from(self.cluster.servers));
        let elsewhere = (self.cluster.server_bps / n).min(self.cluster.core_bps / (n * servers));
        for rack in 0..self.racks {
            for at in 0..self.cluster.servers {
                let link = server_link(&self.cluster, (rack, at));
                for links in [[link, self.rack_link(rack, 0)], [link + 1, self.rack_link(rack, 1)]] {
                    let flow = Flow::over(links).times(count).cap(elsewhere);
                    self.around.push(self.run.background(flow)?);
                }
            }
        }
        Ok(())
    }

    fn rack_link(&self, rack: u32, which: u32) -> Link {
        rack_link(&self.cluster, self.racks, rack, which)
    }
}

/// The rates of all links: each server's up and down, then each rack's up and down to the core and to the
/// circuit switch.
fn capacities_bps(cluster: &Cluster, racks: u32) -> Vec<f64> {
    let mut rates = vec![cluster.server_bps; (racks * cluster.servers * 2) as usize];
    for _ in 0..racks {
        rates.extend([cluster.core_bps, cluster.core_bps, cluster.optical_bps, cluster.optical_bps]);
    }
    rates
}

/// A server's link up; its link down is the next one.
fn server_link(cluster: &Cluster, (rack, at): Server) -> Link {
    2 * (rack * cluster.servers + at)
}

fn rack_link(cluster: &Cluster, racks: u32, rack: u32, which: u32) -> Link {
    2 * racks * cluster.servers + 4 * rack + which
}

fn path(cluster: &Cluster, racks: u32, from: Server, to: Server) -> Vec<Link> {
    let mut links = vec![server_link(cluster, from), server_link(cluster, to) + 1];
    if from.0 != to.0 {
        links.extend([rack_link(cluster, racks, from.0, 0), rack_link(cluster, racks, to.0, 1)]);
    }
    links
}

/// The whole cluster at one moment, every background flow by itself: links, background, and for each group
/// the flows of naive unicast. Tells how far [`World`]'s shortcut is from the truth.
#[must_use]
pub fn whole_cluster(cluster: &Cluster, background: Background, groups: &[Vec<u32>]) -> Whole {
    let racks = cluster.racks;
    let mut flows = Vec::new();
    for group in groups {
        for (place, &rack) in group.iter().enumerate() {
            for at in 0..cluster.servers {
                if (place, at) != (0, 0) {
                    flows.push(Flow::over(path(cluster, racks, (group[0], 0), (rack, at))));
                }
            }
        }
    }
    let of_groups = flows.len();
    let steps: Vec<u32> = cluster.destinations(background, 0).collect();
    for rack in 0..racks {
        for at in 0..cluster.servers {
            let to = steps.iter().map(|step| ((rack + step) % racks, at));
            flows.extend(to.map(|to| Flow::over(path(cluster, racks, (rack, at), to))));
        }
    }
    Whole { capacities_bps: capacities_bps(cluster, racks), flows, of_groups }
}

/// Result of [`whole_cluster`].
#[derive(Clone, Debug)]
pub struct Whole {
    /// The rates of all links.
    pub capacities_bps: Vec<f64>,
    /// The groups' flows, group by group, then the background.
    pub flows: Vec<Flow>,
    /// Number of the flows that belong to the groups.
    pub of_groups: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_shift_the_background_and_servers_do_not_talk_to_themselves() {
        let cluster = Cluster::papers(Core::NonBlocking);
        let light = |round| cluster.destinations(Background::Light, round).collect::<Vec<_>>();
        assert_eq!(light(0), [117, 118, 119, 1, 2, 3]);
        assert_eq!(light(1), [118, 119, 2, 3, 4]);
        assert_eq!(light(120), light(0));
        assert_eq!(cluster.destinations(Background::Heavy, 0).count(), 80);
        assert_eq!(cluster.destinations(Background::No, 7).count(), 0);
    }

    #[test]
    fn a_server_keeps_what_a_congested_core_leaves() {
        for (core, multicast_bps) in [(Core::Oversubscribed, 9e9), (Core::NonBlocking, 10e9 / 81.0)] {
            let mut world = World::new(Cluster::papers(core), Background::Heavy).unwrap();
            let flow = world.start(Flow::over(world.tree(true)), 1).unwrap();
            let rate = world.run.rate_bps(flow).unwrap();
            assert!((rate - multicast_bps).abs() < 1.0, "{rate}");
        }
    }

    #[test]
    fn one_group_stands_for_all() {
        // A small cluster, in which every flow can be looked at.
        for core in Core::ALL {
            let cluster = Cluster { racks: 12, servers: 4, core_bps: 4e9, ..Cluster::papers(core) };
            let groups = [vec![3, 9, 5], vec![0, 7, 1]];
            let whole = whole_cluster(&cluster, Background::Light, &groups);
            let rates = polycast_simulator::flow::max_min(&whole.capacities_bps, &whole.flows).unwrap();
            let slowest = rates[..whole.of_groups].iter().copied().fold(f64::INFINITY, f64::min);
            let mut world = World::new(cluster, Background::Light).unwrap();
            let flows: Vec<_> =
                world.members().skip(1).map(|to| world.unicast(SOURCE, to, 1).unwrap()).collect();
            let alone = flows.iter().map(|&id| world.run.rate_bps(id).unwrap()).fold(f64::INFINITY, f64::min);
            assert!((alone / slowest - 1.0).abs() < 0.05, "{alone} and {slowest}");
        }
    }
}
