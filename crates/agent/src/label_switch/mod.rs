//! Orca's daemons (sections 3.4 and 3.5): label switches with the controllers of their leafs, `polycast
//! label-switch`, and the agent of a rack at a server, `[rack-agent]` in an agent's settings or `polycast
//! rack-agent`.
//!
//! - [`LabelSwitchConfig`]: the settings of a process with one or more switches; [`RackAgentConfig`]: those
//!   of a rack's agent.
//! - [`LabelSwitches`] are the switches of a process: programs in the kernel, which this process tells what
//!   they need to know.
//! - [`RackAgentProcess`] is the agent of a rack.

mod config;
mod links;
mod orders;
mod rack_agent;
mod space;
mod switches;

pub use config::{LabelSwitchConfig, Layer, LeafSettings, RackAgentConfig, SwitchConfig};
pub use orders::{Order, SwitchStatus};
pub use rack_agent::RackAgentProcess;
pub use switches::{LabelSwitchError, LabelSwitches, load, settings};
