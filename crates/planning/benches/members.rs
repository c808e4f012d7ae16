//! Memory and set-up a member of a group over labels in which every member sends: 8, 64 and 512 members,
//! drawn from all hosts of fat-tree(48, 3), with labels of 19 bytes.
//!
//! `cargo bench -p polycast-planning --bench members`; it prints one line of JSON for each size. All is in
//! one thread and without a network: what the planner can. Memory is what the process has resident (`VmRSS`)
//! with the groups and their plans, less what it had without; times are by the clock. A message is what a
//! switch, or the agents of a rack, have to be told.

use polycast_planning::ip_multicast::AddressPool;
use polycast_planning::labels::Encoding;
use polycast_planning::labels::LabelOptions;
use polycast_planning::orca::{Orca, OrcaConfig};
use polycast_planning::{DeviceCommand, Fabric as _, Group, HostId, NetworkState, PlanId};
use polycast_topology::Network;
use std::collections::BTreeSet;
use std::time::Instant;

/// Numbers that look as if they were drawn (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % u64::from(end)) as u32
    }
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it says VmRSS");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

fn messages(before: &[DeviceCommand], after: &[DeviceCommand]) -> usize {
    let old: BTreeSet<_> = before.iter().collect();
    after.iter().filter(|command| !old.contains(command)).count()
}

/// A group of so many hosts, all of which send.
fn group(random: &mut Random, members: usize, hosts: u32) -> Group {
    let mut receivers = BTreeSet::new();
    while receivers.len() < members {
        receivers.insert(HostId(random.below(hosts)));
    }
    let mut further_sources = receivers.clone();
    let source = further_sources.pop_first().expect("it has members");
    Group { source, further_sources, receivers }
}

fn main() {
    let clos = "fat-tree:48,3".parse::<Network>().expect("a network").as_clos().expect("a Clos network");
    let config = OrcaConfig {
        clos,
        labels: LabelOptions::new(69),
        encoding: Some(Encoding::Filter),
        entries_max: 65_536,
        trees: 1,
        rack_feedback: false,
        rate: None,
    };
    let hosts = clos.hosts();
    let pool = AddressPool::new([239, 0, 0, 0].into(), 1 << 20, 7474).expect("a pool");
    let fabric = Orca::new(config, (0..hosts).map(|host| (HostId(host), host)), pool).expect("a network");
    // What one size has had is not free for the next one, or the next would seem to need nothing.
    let mut kept = Vec::new();
    for members in [8usize, 64, 512] {
        let mut random = Random(members as u64 + 1);
        let mut network = NetworkState::default();
        let count = 16_384 / members;
        let groups: Vec<Group> = (0..count).map(|_| group(&mut random, members, hosts)).collect();
        let (before, begun) = (resident_bytes(), Instant::now());
        let mut told = 0;
        for (at, group) in groups.iter().enumerate() {
            let plan = fabric.plan_packets(&network, group).expect("tables have room");
            told += plan.commands.len();
            assert!(network.hold(PlanId(at as u64), group.clone(), plan), "it is free");
        }
        let took = begun.elapsed();
        let bytes = resident_bytes().saturating_sub(before);
        // One member more in each.
        let (mut joins, mut join_told, mut join_us) = (0, 0, 0);
        for (at, group) in groups.iter().enumerate().take(64) {
            let one = (0..hosts).map(HostId).find(|host| !group.receivers.contains(host) && host.0 % 97 == 5);
            let mut more = group.clone();
            more.receivers.extend(one);
            more.further_sources.extend(one);
            let plan = network.get(PlanId(at as u64)).expect("it is held").plan.clone();
            let lifted = network.lift(PlanId(at as u64)).expect("it is held");
            let begun = Instant::now();
            let now = fabric.regroup(&network, &plan, &more).expect("tables have room");
            join_us += begun.elapsed().as_micros();
            network.put_back(lifted);
            (joins, join_told) = (joins + 1, join_told + messages(&plan.commands, &now.commands));
        }
        let all = (count * members) as f64;
        println!(
            "{{\"members\": {members}, \"groups\": {count}, \"bytes_a_member\": {:.0}, \"set_up_us_a_member\": {:.1}, \
             \"messages_a_member\": {:.2}, \"join_us\": {:.0}, \"join_messages\": {:.0}}}",
            bytes as f64 / all,
            took.as_secs_f64() * 1e6 / all,
            told as f64 / all,
            join_us as f64 / f64::from(joins),
            join_told as f64 / f64::from(joins),
        );
        kept.push((network, groups));
    }
}
