//! A small optical switch.

use polycast_planning::ocs::OcsConfig;
use polycast_topology::Hybrid;
use polycast_topology::optics::{PowerBudget, splitter_loss_db};
use polycast_types::{Duration, Rate};

/// Racks of one host and one fibre each, and a splitter.
pub(crate) fn circuits(racks: u32) -> OcsConfig {
    let hybrid = Hybrid { racks, servers_per_rack: 1, ports_per_rack: 1, splitters: 1, splitter_fanout: 2 };
    let (switch_loss_db, splitter_loss_db) = (1.0, splitter_loss_db(2));
    let budget = PowerBudget { budget_db: 14.0, switch_loss_db, splitter_loss_db, amplifier_gain_db: 0.0 };
    let attempt_interval = Duration::from_millis(1);
    OcsConfig { hybrid, cascade_max: 1, budget, rate: Rate(1_000_000_000), attempt_interval }
}
