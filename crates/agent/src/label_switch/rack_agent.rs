//! The agent of a rack at a server: the kernel relabels what the leaf hands it, and the leaf controller tells
//! it how.

use super::{LabelSwitchError, RackAgentConfig};
use crate::rack::{Controller, ControllerOptions, RackAgent, RackOptions};
use polycast_net::bpf::orca::Packets;
use polycast_net::words::WordsKey;
use polycast_types::Duration;
use std::net::SocketAddrV4;
use std::sync::atomic::AtomicBool;

/// The agent of a rack that is set up.
pub struct RackAgentProcess {
    controller: Controller<RackAgent>,
    rack: u32,
    listening: SocketAddrV4,
}

impl RackAgentProcess {
    /// Attaches the program to the interface and opens the controller's socket; its words are sealed with
    /// this.
    ///
    /// # Errors
    /// The settings cannot be, the kernel refuses the program, or the address is taken: there may be another
    /// agent of the rack at this server.
    pub fn start(config: &RackAgentConfig, key: &WordsKey) -> Result<Self, LabelSwitchError> {
        let failed = |error: &dyn std::fmt::Display| LabelSwitchError::new("run the agent of a rack", error);
        config.check().map_err(|error| failed(&error))?;
        let planner = config.planner().map_err(|error| failed(&error))?;
        let options = RackOptions {
            packets: Packets { udp_port: config.port, label_len: planner.format().bytes() },
            sessions_max: config.sessions_max as usize,
            active_max: config.sessions_active_max,
        };
        let (mut agent, mut slow) =
            RackAgent::attach(options, &config.interface).map_err(|error| failed(&error))?;
        agent.set_active(true).map_err(|error| failed(&error))?;
        let per_leaf = planner.clos().hosts_per_leaf();
        let options = ControllerOptions {
            rack: config.server / per_leaf,
            port: config.server % per_leaf,
            listen: config.listen,
            leaf: config.leaf_controller,
            period: Duration::from_nanos(u64::from(config.heartbeat_us) * 1_000),
            labels_max: config.sessions_max as usize,
            key: key.clone(),
        };
        let rack = options.rack;
        let controller = Controller::open(options, agent).map_err(|error| failed(&error))?;
        std::thread::spawn(move || {
            let ended = slow.run(&AtomicBool::new(false));
            tracing::error!(?ended, "packets of new sessions are not relabelled any more");
        });
        Ok(RackAgentProcess { controller, rack, listening: config.listen })
    }

    /// The number of its leaf.
    #[must_use]
    pub fn rack(&self) -> u32 {
        self.rack
    }

    /// From where it speaks to the leaf controller.
    #[must_use]
    pub fn listening(&self) -> SocketAddrV4 {
        self.listening
    }

    /// Runs until the process ends.
    ///
    /// # Errors
    /// The kernel refuses a label.
    pub fn run(mut self) -> Result<(), LabelSwitchError> {
        let ended = self.controller.run(&AtomicBool::new(false));
        ended.map_err(|error| LabelSwitchError::new("go on as the agent of a rack", error))
    }
}
