//! Ports of an optical circuit switch and their fibres, of racks and splitters, in whatever order they were
//! cabled and whatever their fan-outs (Blast, section II-A). Other ports are other people's.

use crate::error::TopologyError;
use crate::hybrid::Hybrid;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// A splitter on the circuit switch.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitterPorts {
    /// The port that leads into it.
    pub input: u32,
    /// The ports where its outputs come in.
    pub outputs: Vec<u32>,
    /// Loss of the light in it, in dB; without it the usual loss of a network's splitters.
    pub loss_db: Option<f64>,
    /// Gain of the amplifier before it, in dB: 0 where there is none, what a network's amplifiers give
    /// usually without it.
    pub gain_db: Option<f64>,
}

impl SplitterPorts {
    /// Returns the number of outputs.
    #[must_use]
    pub fn fanout(&self) -> u32 {
        self.outputs.len() as u32
    }
}

/// Owner of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortOwner {
    /// A rack's.
    Rack(u32),
    /// A splitter's.
    Splitter(u32),
}

/// The ports of a circuit switch that are ours.
#[derive(Clone, Debug, PartialEq)]
pub struct PortTable {
    racks: Vec<Vec<u32>>,
    splitters: Vec<SplitterPorts>,
    owners: BTreeMap<u32, PortOwner>,
}

impl PortTable {
    /// The ports of every rack's fibres, and the splitters.
    ///
    /// # Errors
    /// A splitter has fewer than two outputs, or a port is in two places.
    pub fn new(racks: Vec<Vec<u32>>, splitters: Vec<SplitterPorts>) -> Result<Self, TopologyError> {
        let network = "circuit switch";
        let mut owners = BTreeMap::new();
        let mut own = |port: u32, owner| match owners.insert(port, owner) {
            None => Ok(()),
            Some(_) => {
                let (what, value) = ("port that is in two places", u64::from(port));
                Err(TopologyError::Size { network, what, value, range: "each port in one place" })
            }
        };
        for (rack, ports) in (0..).zip(&racks) {
            ports.iter().try_for_each(|port| own(*port, PortOwner::Rack(rack)))?;
        }
        for (number, splitter) in (0..).zip(&splitters) {
            if splitter.fanout() < 2 {
                let (what, value) = ("outputs of a splitter", u64::from(splitter.fanout()));
                return Err(TopologyError::Size { network, what, value, range: "at least 2" });
            }
            own(splitter.input, PortOwner::Splitter(number))?;
            splitter.outputs.iter().try_for_each(|port| own(*port, PortOwner::Splitter(number)))?;
        }
        Ok(PortTable { racks, splitters, owners })
    }

    /// The ports of a network that is cabled in the program's own order.
    #[must_use]
    pub fn of(hybrid: &Hybrid) -> Self {
        let fibres = |rack| (0..hybrid.ports_per_rack).map(|uplink| hybrid.rack_port(rack, uplink)).collect();
        let splitter = |splitter| SplitterPorts {
            input: hybrid.splitter_input(splitter),
            outputs: (0..hybrid.splitter_fanout)
                .map(|output| hybrid.splitter_output(splitter, output))
                .collect(),
            loss_db: None,
            gain_db: None,
        };
        let racks: Vec<Vec<u32>> = (0..hybrid.racks).map(fibres).collect();
        let splitters: Vec<SplitterPorts> = (0..hybrid.splitters).map(splitter).collect();
        let mut owners = BTreeMap::new();
        for (rack, ports) in (0..).zip(&racks) {
            owners.extend(ports.iter().map(|port| (*port, PortOwner::Rack(rack))));
        }
        for (number, splitter) in (0..).zip(&splitters) {
            let ports = splitter.outputs.iter().chain([&splitter.input]);
            owners.extend(ports.map(|port| (*port, PortOwner::Splitter(number))));
        }
        PortTable { racks, splitters, owners }
    }

    /// The ports of a rack's fibres.
    #[must_use]
    pub fn of_rack(&self, rack: u32) -> &[u32] {
        self.racks.get(rack as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of racks.
    #[must_use]
    pub fn racks(&self) -> u32 {
        self.racks.len() as u32
    }

    /// The splitters by their numbers.
    #[must_use]
    pub fn splitters(&self) -> &[SplitterPorts] {
        &self.splitters
    }

    /// Returns the owner of a port; `None` if it is not ours.
    #[must_use]
    pub fn owner(&self, port: u32) -> Option<PortOwner> {
        self.owners.get(&port).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn the_programs_own_order_is_a_table_too() {
        let hybrid =
            Hybrid { racks: 3, servers_per_rack: 1, ports_per_rack: 2, splitters: 2, splitter_fanout: 3 };
        let table = PortTable::of(&hybrid);
        assert_eq!(table.of_rack(1), [2, 3]);
        assert_eq!((table.splitters()[1].input, &table.splitters()[1].outputs[..]), (10, &[11, 12, 13][..]));
        assert_eq!(
            (table.owner(3), table.owner(13)),
            (Some(PortOwner::Rack(1)), Some(PortOwner::Splitter(1)))
        );
        assert_eq!((table.owner(14), table.of_rack(3)), (None, &[][..]));
        let again = PortTable::new(vec![vec![0, 1], vec![2, 3], vec![4, 5]], table.splitters().to_vec());
        assert_eq!(again, Ok(table));
    }

    #[test]
    fn a_port_is_in_one_place() {
        let splitter = |input, outputs| SplitterPorts { input, outputs, loss_db: None, gain_db: None };
        let refused = |racks, splitter| PortTable::new(racks, vec![splitter]).unwrap_err();
        let twice = refused(vec![vec![1], vec![2]], splitter(3, vec![4, 2]));
        assert!(matches!(twice, TopologyError::Size { value: 2, .. }), "{twice}");
        let none = refused(vec![vec![1]], splitter(3, vec![]));
        assert!(
            matches!(none, TopologyError::Size { what: "outputs of a splitter", value: 0, .. }),
            "{none}"
        );
    }
}
