//! `polycast key`: the key that the machines of a cluster share.

use crate::args::KeyCommand;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_net::seal::Secret;
use std::io::ErrorKind;

/// Makes a key.
pub(super) fn run(command: &KeyCommand, format: Format) -> Result<Exit, Failure> {
    let KeyCommand::New { file } = command;
    let key = Secret::fresh();
    let Some(path) = file else {
        let line = key.to_line();
        output::result(format, &serde_json::json!({ "key": line.trim() }), line.trim())?;
        return Ok(Exit::Done);
    };
    key.write_new(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            Failure::place(format!("{} is there already: name a new file", path.display()))
        }
        _ => Failure::path("write to", path, &error),
    })?;
    let text = format!("wrote a new key to {}; copy it to each machine of the cluster", path.display());
    output::result(format, &serde_json::json!({ "file": path }), &text)?;
    Ok(Exit::Done)
}
