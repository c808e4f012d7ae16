//! `polycast label-switch` and `polycast rack-agent`: the daemons of an Orca fabric.

use crate::args::ForwarderArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_agent::daemon::AgentConfig;
use polycast_agent::label_switch::{LabelSwitchConfig, LabelSwitches, RackAgentProcess};
use serde_json::json;

/// Runs the switches until the process is ended.
pub fn switch(args: &ForwarderArgs, format: Format) -> Result<Exit, Failure> {
    let config = LabelSwitchConfig::read(&args.config).map_err(|error| Failure::input(error.to_string()))?;
    let switches = LabelSwitches::start(&config).map_err(|error| Failure::input(error.to_string()))?;
    let listening = switches.listening().unwrap_or(config.listen);
    let count = config.switches.len();
    let document = json!({ "switches": count, "listening": listening.to_string(), "socket": config.socket });
    // Whoever started the switches may not read it.
    let _ = output::result(format, &document, &format!("{count} label switches run; changes at {listening}"));
    switches.run();
    Ok(Exit::Done)
}

/// Runs the agent of a rack until the process is ended.
pub fn rack_agent(args: &ForwarderArgs, format: Format) -> Result<Exit, Failure> {
    let config = AgentConfig::load(&args.config).map_err(|error| Failure::input(error.to_string()))?;
    let config = config.rack_agent.ok_or_else(|| {
        Failure::input(format!("{} has no section [rack-agent]: add one", args.config.display()))
    })?;
    let agent = RackAgentProcess::start(&config).map_err(|error| Failure::input(error.to_string()))?;
    let (rack, listening) = (agent.rack(), agent.listening().to_string());
    let document = json!({ "rack": rack, "listening": listening });
    // Whoever started the agent may not read it.
    let _ = output::result(format, &document, &format!("agent of rack {rack} at {listening}"));
    agent.run().map_err(|error| Failure::unexpected(error.to_string()))?;
    Ok(Exit::Done)
}
