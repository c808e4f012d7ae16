//! `polycast forwarder`: nodes of a Datacast fabric.

use crate::args::ForwarderArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_agent::forwarder::{ForwarderConfig, daemon};
use serde_json::json;

/// Runs the nodes until the process is ended.
pub fn run(args: &ForwarderArgs, format: Format) -> Result<Exit, Failure> {
    let config = ForwarderConfig::read(&args.config).map_err(|error| Failure::input(error.to_string()))?;
    let socket = config.socket.display().to_string();
    let ready = |nodes: usize| {
        let document = json!({ "nodes": nodes, "socket": socket });
        // Whoever started the nodes may not read it.
        let _ = output::result(format, &document, &format!("{nodes} nodes run; ask at {socket}"));
    };
    daemon::run(&config, ready).map_err(|error| Failure::input(format!("the nodes cannot run: {error}")))?;
    Ok(Exit::Done)
}
