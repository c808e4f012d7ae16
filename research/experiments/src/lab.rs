//! Measurements in a lab, by real daemons, sockets and programs of the kernel. There is no lab at this layer:
//! the command line measures, and passes its results to the functions that make rows of them. Where nothing
//! was measured the paper's numbers stand alone, with the reason in a sentence.

pub use crate::blast::control::{ControlSeen, table_2};
pub use crate::orca::kills::{KillsSeen, figure_6a};
pub use crate::orca::leaf::{LeafSeen, figure_5d};
pub use crate::republic::sockets::{self, ManagerSeen, manager_response};
pub use crate::shufflecast::replication::{ReplicationLab, ReplicationSeen, figure_8d};
pub use crate::shufflecast::rules::rule_update;

/// Measurement, or the reason why there is none.
pub type Seen<T> = Result<T, String>;

/// Reason why these items have nothing of ours where no command line runs them.
pub const NOT_HERE: &str = "it is measured in a lab, which only the command line starts";

/// The value that is not below so many of all; `None` of none.
pub(crate) fn quantile(values: &[f64], part: f64) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some(values[((values.len() as f64 * part).ceil() as usize).clamp(1, last + 1) - 1])
}
