//! Ports of a ToR switch that stay unused (Shufflecast, appendix B).
//!
//! For every rack size, server port and oversubscription ratio the switch with the least unused bandwidth is
//! chosen; a splitter network could use the ports that it then has left over for nothing.

use alloc::vec::Vec;

/// Ports of one speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortBank {
    /// Number of ports.
    pub count: u32,
    /// The speed of each.
    pub gbps: u32,
}

/// A ToR switch: its banks of ports, slowest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TorSwitch {
    /// The banks.
    pub banks: Vec<PortBank>,
}

impl TorSwitch {
    /// A switch with these (count, Gbit/s) banks.
    #[must_use]
    pub fn new(banks: &[(u32, u32)]) -> Self {
        let mut banks: Vec<PortBank> = banks.iter().map(|&(count, gbps)| PortBank { count, gbps }).collect();
        banks.sort_by_key(|bank| bank.gbps);
        TorSwitch { banks }
    }
}

/// One rack to find a switch for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rack {
    /// Servers of one unit each.
    pub servers: u32,
    /// Network ports of a server.
    pub ports_per_server: u32,
    /// The speed of each.
    pub port_gbps: u32,
    /// Server bandwidth in proportion to uplink bandwidth.
    pub oversubscription: f64,
}

/// Ports that stay unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unused {
    /// Free ports.
    pub ports: u32,
    /// Their speeds together.
    pub gbps: u32,
}

/// Choices about the ports of a switch that the paper leaves open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// True if the faster ports are for uplinks alone, where a switch has ports of two speeds.
    pub uplinks_apart: bool,
    /// A free port of 40 Gbit/s or more counts as the four that a breakout cable makes of it.
    pub counts_split: bool,
}

/// Returns the ports that a switch has left in a rack; `None` if it is too small for it.
///
/// Servers take the slowest ports that are fast enough; a faster port may be split into four, as breakout
/// cables do. Uplinks then take the fastest ports left until the ratio is met.
#[must_use]
pub fn left_over(switch: &TorSwitch, rack: &Rack, reading: Reading) -> Option<Unused> {
    let fastest = switch.banks.last()?.gbps;
    let is_apart = |bank: &PortBank| reading.uplinks_apart && switch.banks.len() > 1 && bank.gbps == fastest;
    let mut free: Vec<PortBank> = switch.banks.clone();
    let mut servers_left = rack.servers.checked_mul(rack.ports_per_server)?;
    let demand = f64::from(servers_left) * f64::from(rack.port_gbps) / rack.oversubscription;
    for bank in free.iter_mut().filter(|bank| bank.gbps >= rack.port_gbps && !is_apart(bank)) {
        let per_port = if bank.gbps / 4 >= rack.port_gbps { 4 } else { 1 };
        let used = servers_left.div_ceil(per_port).min(bank.count);
        bank.count -= used;
        servers_left = servers_left.saturating_sub(used * per_port);
    }
    if servers_left > 0 {
        return None;
    }
    let mut uplink = 0.0;
    for bank in free.iter_mut().rev().filter(|bank| !reading.uplinks_apart || bank.gbps == fastest) {
        while uplink < demand && bank.count > 0 {
            bank.count -= 1;
            uplink += f64::from(bank.gbps);
        }
    }
    let unused = |unused: Unused, bank: &PortBank| Unused {
        ports: unused.ports + bank.count * if reading.counts_split && bank.gbps >= 40 { 4 } else { 1 },
        gbps: unused.gbps + bank.count * bank.gbps,
    };
    (uplink >= demand).then(|| free.iter().fold(Unused { ports: 0, gbps: 0 }, unused))
}

/// Returns the ports that the best of several switches has left in a rack; `None` if all are too small.
#[must_use]
pub fn best_left_over(switches: &[TorSwitch], rack: &Rack, reading: Reading) -> Option<Unused> {
    switches
        .iter()
        .filter_map(|switch| left_over(switch, rack, reading))
        .min_by_key(|unused| (unused.gbps, unused.ports))
}

/// Switches like those that the paper names: the models between its first and last of a maker are filled
/// in with common ones.
#[must_use]
pub fn papers_switches() -> Vec<TorSwitch> {
    let banks: [&[(u32, u32)]; 14] = [
        &[(24, 10)],
        &[(48, 10), (4, 40)],
        &[(32, 10)],
        &[(48, 10), (4, 100)],
        &[(32, 10), (4, 40)],
        &[(64, 10), (4, 40)],
        &[(96, 10), (8, 40)],
        &[(32, 40)],
        &[(48, 10), (6, 40)],
        &[(48, 25), (6, 100)],
        &[(96, 10), (6, 100)],
        &[(96, 25), (12, 100)],
        &[(36, 100)],
        &[(64, 100)],
    ];
    banks.map(TorSwitch::new).into()
}

/// The racks of the study: 18 to 48 units, five server ports, the oversubscription ratios of the paper.
#[must_use]
pub fn papers_racks() -> Vec<Rack> {
    let ratios = (1..=10).map(f64::from).chain([1.5, 20.0]);
    let server_ports = [(1, 10), (2, 10), (1, 25), (1, 40), (2, 25)];
    let units = (18..=48).step_by(2).chain([45, 47]);
    let mut racks = Vec::new();
    for servers in units {
        for (ports_per_server, port_gbps) in server_ports {
            for oversubscription in ratios.clone() {
                racks.push(Rack { servers, ports_per_server, port_gbps, oversubscription });
            }
        }
    }
    racks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_rack_by_hand() {
        let switch = TorSwitch::new(&[(48, 10), (4, 40)]);
        let rack = Rack { servers: 40, ports_per_server: 1, port_gbps: 10, oversubscription: 4.0 };
        // 40 ports for servers, 100 Gbit/s up over three 40s: eight 10s and one 40 stay.
        let plain = Reading::default();
        assert_eq!(left_over(&switch, &rack, plain), Some(Unused { ports: 9, gbps: 120 }));
        let split = Reading { counts_split: true, ..plain };
        assert_eq!(left_over(&switch, &rack, split), Some(Unused { ports: 12, gbps: 120 }));
        // Twelve of 52 servers need a split port, which then is none for uplinks.
        let large = Rack { servers: 52, oversubscription: 5.0, ..rack };
        assert_eq!(left_over(&switch, &large, plain), Some(Unused { ports: 0, gbps: 0 }));
        assert_eq!(left_over(&switch, &large, Reading { uplinks_apart: true, ..plain }), None);
        assert_eq!(left_over(&switch, &Rack { servers: 70, ..rack }, plain), None);
        assert_eq!(left_over(&switch, &Rack { oversubscription: 1.0, ..rack }, plain), None);
    }

    /// The same by a list of single ports: servers take the slowest that are fast enough, four of them one
    /// that can be split; uplinks take the fastest.
    fn port_by_port(switch: &TorSwitch, rack: &Rack, reading: Reading) -> Option<Unused> {
        let mut ports: Vec<u32> = switch
            .banks
            .iter()
            .flat_map(|bank| core::iter::repeat_n(bank.gbps, bank.count as usize))
            .collect();
        ports.sort_unstable();
        let fastest = switch.banks.iter().map(|bank| bank.gbps).max()?;
        let two_speeds = switch.banks.iter().any(|bank| bank.gbps != fastest);
        let mut servers = rack.servers * rack.ports_per_server;
        let demand = f64::from(servers * rack.port_gbps) / rack.oversubscription;
        while servers > 0 {
            let fits = |gbps: &u32| {
                *gbps >= rack.port_gbps && !(reading.uplinks_apart && two_speeds && *gbps == fastest)
            };
            let at = ports.iter().position(fits)?;
            let of_port = if ports.remove(at) >= 4 * rack.port_gbps { 4 } else { 1 };
            servers = servers.saturating_sub(of_port);
        }
        let mut up = 0.0;
        while up < demand {
            let gbps = ports.last().copied().filter(|gbps| !reading.uplinks_apart || *gbps == fastest)?;
            ports.pop();
            up += f64::from(gbps);
        }
        let split = |gbps: &u32| if reading.counts_split && *gbps >= 40 { 4 } else { 1 };
        Some(Unused { ports: ports.iter().map(split).sum(), gbps: ports.iter().sum() })
    }

    #[test]
    fn counts_of_banks_are_those_of_single_ports() {
        let (switches, racks) = (papers_switches(), papers_racks());
        assert_eq!((switches.len(), racks.len()), (14, 18 * 5 * 12));
        for uplinks_apart in [false, true] {
            for counts_split in [false, true] {
                let reading = Reading { uplinks_apart, counts_split };
                for rack in racks.iter().step_by(7) {
                    let all: Vec<Option<Unused>> =
                        switches.iter().map(|switch| port_by_port(switch, rack, reading)).collect();
                    for (switch, expected) in switches.iter().zip(&all) {
                        assert_eq!(
                            left_over(switch, rack, reading),
                            *expected,
                            "{switch:?} {rack:?} {reading:?}"
                        );
                    }
                    let best = all.into_iter().flatten().min_by_key(|unused| (unused.gbps, unused.ports));
                    assert_eq!(best_left_over(&switches, rack, reading), best);
                }
            }
        }
        let empty = TorSwitch::new(&[]);
        assert_eq!(left_over(&empty, &racks[0], Reading::default()), None);
    }

    #[test]
    fn unused_ports_often_exist() {
        let (switches, racks) = (papers_switches(), papers_racks());
        let best = |rack| best_left_over(&switches, rack, Reading::default());
        let unused: Vec<Unused> = racks.iter().filter_map(best).collect();
        let some = unused.iter().filter(|unused| unused.ports >= 2).count();
        assert!(2 * some > unused.len(), "{some} of {}", unused.len());
    }
}
