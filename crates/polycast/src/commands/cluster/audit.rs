//! `polycast audit`: what a manager has written down.

use crate::args::cluster::AuditCommand;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_manager::audit::{Broken, Verified, verify};
use polycast_net::tls::Utc;
use serde_json::json;

/// Checks an audit log.
pub(super) fn run(command: &AuditCommand, format: Format) -> Result<Exit, Failure> {
    let AuditCommand::Verify { files, key } = command;
    match verify(files, key.as_deref()) {
        Ok(Verified { lines, first, last, is_whole, last_hash, head }) => {
            let signed = head
                .as_ref()
                .map(|head| json!({ "last": head.last, "at_unix_ms": head.at_unix_ms, "key": head.key }));
            let document = json!({
                "good": true, "lines": lines, "first": first, "last": last, "whole": is_whole, "last_hash": last_hash,
                "signed": signed,
            });
            let from = if is_whole { "" } else { ", which follow lines in other files" };
            let text = match lines {
                0 => "there is no line in it".to_string(),
                1 => format!("good: line {last}{from}; its hash is {last_hash}"),
                _ => format!(
                    "good: {lines} lines, {first} to {last}{from}; the hash of the last is {last_hash}"
                ),
            };
            let signed = match head {
                Some(head) => {
                    let at = Utc(head.at_unix_ms / 1_000);
                    format!("signed up to line {} at {at}, with the key {}", head.last, head.key)
                }
                None => "not signed: lines that are missing at its end do not show".to_string(),
            };
            output::result(format, &document, &format!("{text}\n{signed}"))?;
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
