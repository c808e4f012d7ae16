//! `polycast audit`: what a manager has written down.

use crate::args::cluster::AuditCommand;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_manager::audit::{Broken, Verified, verify};
use serde_json::json;

/// Checks an audit log.
pub(super) fn run(command: &AuditCommand, format: Format) -> Result<Exit, Failure> {
    let AuditCommand::Verify { files } = command;
    match verify(files) {
        Ok(Verified { lines, first, last, is_whole, last_hash }) => {
            let document = json!({
                "good": true, "lines": lines, "first": first, "last": last, "whole": is_whole, "last_hash": last_hash,
            });
            let from = if is_whole { "" } else { ", which follow lines in other files" };
            let text = match lines {
                0 => "there is no line in it".to_string(),
                1 => format!("good: line {last}{from}; its hash is {last_hash}"),
                _ => format!(
                    "good: {lines} lines, {first} to {last}{from}; the hash of the last is {last_hash}"
                ),
            };
            output::result(format, &document, &text)?;
            Ok(Exit::Done)
        }
        Err(Broken { file, line: 0, reason }) => Err(Failure::input(format!("{}: {reason}", file.display()))),
        Err(broken) => {
            let document = json!({
                "good": false, "file": broken.file, "line": broken.line, "reason": broken.reason,
            });
            output::result(format, &document, &format!("broken: {broken}"))?;
            Ok(Exit::Failed)
        }
    }
}
