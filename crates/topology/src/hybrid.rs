//! A packet core beside an optical circuit switch (OCS) whose ports are shared by racks and splitters
//! (Blast, sections II and V; Republic, section II).
//!
//! Ports of the OCS: first the racks' uplinks, rack by rack, then the splitters, each with its input
//! first and then its outputs.

use crate::error::TopologyError;

/// A packet-switched core beside circuits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hybrid {
    /// The racks.
    pub racks: u32,
    /// The servers of a rack.
    pub servers_per_rack: u32,
    /// The fibres from a rack to the OCS: b of the scheduler.
    pub ports_per_rack: u32,
    /// The splitters on the OCS.
    pub splitters: u32,
    /// The outputs of a splitter.
    pub splitter_fanout: u32,
}

impl Hybrid {
    /// Returns the number of ports of the OCS that the racks and splitters take.
    #[must_use]
    pub fn ports_needed(&self) -> u64 {
        u64::from(self.racks) * u64::from(self.ports_per_rack)
            + u64::from(self.splitters) * (1 + u64::from(self.splitter_fanout))
    }

    /// The network, if an OCS of `ocs_ports` ports holds it.
    ///
    /// # Errors
    /// If there are too few ports on the OCS, no racks, or a splitter with fewer than two outputs.
    pub fn checked(self, ocs_ports: u32) -> Result<Self, TopologyError> {
        let network = "hybrid network";
        if self.racks == 0 || self.ports_per_rack == 0 {
            let what = if self.racks == 0 { "racks" } else { "ports a rack" };
            return Err(TopologyError::Size { network, what, value: 0, range: "at least 1" });
        }
        if self.splitters > 0 && self.splitter_fanout < 2 {
            let value = self.splitter_fanout.into();
            let range = "at least 2 outputs";
            return Err(TopologyError::Size { network, what: "splitter fanout", value, range });
        }
        if self.ports_needed() > ocs_ports.into() {
            let value = self.ports_needed();
            let range = "no more than the circuit switch has";
            return Err(TopologyError::Size { network, what: "circuit switch ports", value, range });
        }
        Ok(self)
    }

    /// The OCS port of a rack's uplink.
    #[must_use]
    pub fn rack_port(&self, rack: u32, uplink: u32) -> u32 {
        rack * self.ports_per_rack + uplink
    }

    /// The OCS port that leads into a splitter.
    #[must_use]
    pub fn splitter_input(&self, splitter: u32) -> u32 {
        self.racks * self.ports_per_rack + splitter * (1 + self.splitter_fanout)
    }

    /// The OCS port of a splitter's output.
    #[must_use]
    pub fn splitter_output(&self, splitter: u32, output: u32) -> u32 {
        self.splitter_input(splitter) + 1 + output
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_network_fills_the_switch() {
        let hybrid =
            Hybrid { racks: 120, servers_per_rack: 40, ports_per_rack: 1, splitters: 40, splitter_fanout: 4 };
        assert_eq!(hybrid.ports_needed(), 320);
        assert!(hybrid.checked(320).is_ok());
        assert!(hybrid.checked(319).is_err());
        assert_eq!(hybrid.splitter_output(39, 3), 319);
    }
}
