//! `polycast forwarder`: nodes of a Datacast fabric.

use crate::args::cluster::ForwarderArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_agent::forwarder::{ForwarderConfig, daemon};
use serde_json::json;

/// Runs the nodes until the process is ended.
pub(super) fn run(args: &ForwarderArgs, format: Format) -> Result<Exit, Failure> {
    let config = ForwarderConfig::read(&args.config).map_err(|error| Failure::input(error.to_string()))?;
    let security = args.identity.files().security().map_err(|error| Failure::input(error.to_string()))?;
    let nodes = daemon::Nodes::start(&config, security.as_ref())
        .map_err(|error| Failure::input(format!("the nodes cannot run: {error}")))?;
    let (count, control) = (nodes.count(), nodes.control().map(|address| address.to_string()));
    let document = json!({ "nodes": count, "socket": config.socket, "control": control });
    // The program that started the nodes may not read it.
    let _ = output::result(format, &document, &format!("{count} nodes run"));
    loop {
        std::thread::park();
    }
}
