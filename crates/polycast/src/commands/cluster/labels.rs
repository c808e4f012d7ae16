//! `polycast label-switch` and `polycast rack-agent`: the daemons of an Orca fabric.

use crate::args::cluster::ForwarderArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_agent::daemon::AgentConfig;
use polycast_agent::label_switch::{LabelSwitchConfig, LabelSwitches, RackAgentProcess};
use polycast_net::words::WordsKey;
use serde_json::json;

/// Returns the key that seals controllers' messages.
fn words_key(args: &ForwarderArgs) -> Result<WordsKey, Failure> {
    let security = args.identity.files().security().map_err(|error| Failure::input(error.to_string()))?;
    let key = WordsKey::of(security.as_ref());
    if security.is_some() && !key.is_there() {
        tracing::warn!(
            "controllers of racks share no key, as there is a certificate only: keep their network apart"
        );
    }
    Ok(key)
}

/// Runs the switches until the process is ended.
pub(super) fn switch(args: &ForwarderArgs, format: Format) -> Result<Exit, Failure> {
    let config = LabelSwitchConfig::read(&args.config).map_err(|error| Failure::input(error.to_string()))?;
    let switches = LabelSwitches::start(&config, &words_key(args)?)
        .map_err(|error| Failure::input(error.to_string()))?;
    let listening = switches.listening().unwrap_or(config.listen);
    let count = config.switches.len();
    let document = json!({ "switches": count, "listening": listening.to_string(), "socket": config.socket });
    // The program that started the switches may not read it.
    let _ = output::result(format, &document, &format!("{count} label switches run; changes at {listening}"));
    switches.run();
    Ok(Exit::Done)
}

/// Runs the agent of a rack until the process is ended.
pub(super) fn rack_agent(args: &ForwarderArgs, format: Format) -> Result<Exit, Failure> {
    let config = AgentConfig::load(&args.config).map_err(|error| Failure::input(error.to_string()))?;
    let config = config.rack_agent.ok_or_else(|| {
        Failure::input(format!("{} has no section [rack-agent]: add one", args.config.display()))
    })?;
    let agent = RackAgentProcess::start(&config, &words_key(args)?)
        .map_err(|error| Failure::input(error.to_string()))?;
    let (rack, listening) = (agent.rack(), agent.listening().to_string());
    let document = json!({ "rack": rack, "listening": listening });
    // The program that started the agent may not read it.
    let _ = output::result(format, &document, &format!("agent of rack {rack} at {listening}"));
    agent.run().map_err(|error| Failure::unexpected(error.to_string()))?;
    Ok(Exit::Done)
}
