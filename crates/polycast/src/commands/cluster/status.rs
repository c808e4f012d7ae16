//! `polycast status`: the local agent, its peers and its transfers, once or again and again.

use super::transfers::{Row, Seen};
use super::{Ending, connect, describe_path, runtime};
use crate::args::cluster::LocalArgs;
use crate::exit::{Exit, Failure, without_numbers};
use crate::output::{self, Format};
use crate::screen;
use console::Term;
use polycast_api::agent::transfer::Direction;
use polycast_api::agent::{Rest, StatusResponse};
use polycast_types::{Printable, format_bytes};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// It is shown again so often.
const AGAIN: Duration = Duration::from_secs(1);

/// `polycast status --watch`: until the user ends it, on a terminal in the same place.
pub(super) fn watch(local: &LocalArgs, format: Format) -> Result<Exit, Failure> {
    if format == Format::Json {
        return Err(Failure::input("--watch is for people: a program asks again for polycast status --json"));
    }
    let terminal = Term::stdout();
    runtime()?.block_on(async {
        let (client, mut seen, mut shown) = (connect(local).await?, Seen::default(), 0);
        let mut ended = std::pin::pin!(Ending::watch()?.asked());
        loop {
            let (status, rows) = seen.look(&client).await?;
            let manager_error = without_numbers(status.manager_error.clone());
            let text = status_text(&status, &manager_error, &rows);
            if terminal.is_term() {
                // A terminal that is gone shows nothing.
                let _ = terminal.clear_last_lines(shown);
            }
            // No line may be wrapped by the terminal: it would not be cleared.
            let text = screen::fit_result(&text);
            let width = terminal.size_checked().map_or(usize::MAX, |(_, columns)| columns.into());
            let lines: Vec<_> = text.lines().map(|line| console::truncate_str(line, width, "..")).collect();
            shown = lines.len();
            output::result(Format::Text, &Value::Null, &lines.join("\n"))?;
            tokio::select! {
                () = tokio::time::sleep(AGAIN) => {}
                () = &mut ended => return Ok(Exit::Done),
            }
        }
    })
}

/// `polycast status`
pub(super) fn run(local: &LocalArgs, format: Format) -> Result<Exit, Failure> {
    let (status, seen) = runtime()?.block_on(async {
        let client = connect(local).await?;
        match format {
            // The document has no rates.
            Format::Json => Seen::default().look(&client).await,
            Format::Text => Seen::default().twice(&client).await,
        }
    })?;
    let manager_error = without_numbers(status.manager_error.clone());
    let peers: Vec<Value> = status
        .peers
        .iter()
        .map(|p| {
            let unreachable = (!p.unreachable_by.is_empty())
                .then(|| json!({ "by": p.unreachable_by, "since_ms": p.unreachable_ms }));
            json!({
                "name": p.name, "control_address": p.control_address, "silent_ms": p.silent_ms,
                "unreachable": unreachable,
            })
        })
        .collect();
    let lost: Vec<Value> =
        status.lost.iter().map(|peer| json!({ "name": peer.name, "silent_ms": peer.silent_ms })).collect();
    let transfers: Vec<Value> = status
        .transfers
        .iter()
        .map(|t| {
            let object = polycast_api::convert::object_id(&t.app_id, t.data_id);
            let direction = match t.direction() {
                Direction::Sending => "sending",
                Direction::Receiving => "receiving",
                Direction::Unspecified => "unknown",
            };
            json!({
                "object": object.map_or_else(|_| t.data_id.to_string(), |id| id.to_string()),
                "direction": direction, "bytes": t.length, "verified_bytes": t.bytes,
                "waiting": t.waiting.as_ref().map(|waiting| json!({
                    "before": waiting.before, "estimate_ms": waiting.estimate_ms,
                })),
                "path": t.granted.as_ref().map(describe_path),
            })
        })
        .collect();
    let rests: Vec<Value> = status.rests.iter().map(describe_rest).collect();
    let document = json!({
        "name": status.agent_name, "interface": status.interface_address,
        "control_address": status.control_address, "manager": status.manager_address,
        "manager_connected": status.manager_connected, "manager_error": manager_error,
        "store": status.store, "store_free_bytes": status.store_free_bytes,
        "store_used_bytes": status.store_used_bytes, "store_max_bytes": status.store_max_bytes,
        "descriptors_max": status.descriptors_max,
        "uptime_seconds": status.uptime_seconds, "processes": status.registered_processes,
        "transfers": transfers, "rests": rests, "peers": peers, "lost": lost,
    });
    output::result(format, &document, &status_text(&status, &manager_error, &seen))?;
    Ok(Exit::Done)
}

/// Describes the remains of a transfer that was cut off, as JSON.
fn describe_rest(rest: &Rest) -> Value {
    let object = polycast_api::convert::object_id(&rest.app_id, rest.data_id);
    let object = object.map_or_else(|_| rest.data_id.to_string(), |id| id.to_string());
    json!({ "object": object, "bytes": rest.length, "stored_bytes": rest.stored_bytes, "since_unix_ms": rest.since_unix_ms })
}

fn status_text(status: &StatusResponse, manager_error: &str, seen: &[Row]) -> String {
    let manager = if status.manager_connected {
        format!("connected to {}", status.manager_address)
    } else {
        format!("not connected to {}: {}", status.manager_address, Printable(manager_error))
    };
    let of = status.store_max_bytes.map_or_else(String::new, |most| format!(" of {}", format_bytes(most)));
    let mut text = format!(
        "agent {} on {}, up {} s\nmanager    {manager}\nstore      {}: {}{of} used, {} free\ntransfers  {}\n",
        status.agent_name,
        status.interface_address,
        status.uptime_seconds,
        status.store,
        format_bytes(status.store_used_bytes),
        format_bytes(status.store_free_bytes),
        status.transfers.len(),
    );
    for row in seen {
        let _ = writeln!(text, "{row}");
    }
    for rest in &status.rests {
        let (stored, all) = (format_bytes(rest.stored_bytes), format_bytes(rest.length));
        let _ = writeln!(
            text,
            "rest       object {}: {stored} of {all} are kept for its next transfer",
            rest.data_id
        );
    }
    for peer in status.peers.iter().filter(|peer| peer.name != status.agent_name) {
        let _ = write!(
            text,
            "peer       {} at {}, heard {} ms ago",
            Printable(&peer.name),
            Printable(&peer.control_address),
            peer.silent_ms
        );
        if !peer.unreachable_by.is_empty() {
            let (by, seconds) = (Printable(&peer.unreachable_by), peer.unreachable_ms / 1_000);
            let _ = write!(text, ", but {by} could not reach it there {seconds} s ago");
        }
        text.push('\n');
    }
    for peer in &status.lost {
        let _ =
            writeln!(text, "lost       {}, heard {} s ago", Printable(&peer.name), peer.silent_ms / 1_000);
    }
    text
}
