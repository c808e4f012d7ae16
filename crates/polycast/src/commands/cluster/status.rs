//! `polycast status`: the local agent, its peers and its transfers, once or again and again.

use super::transfers::{Row, Seen};
use super::{Ending, connect, group, runtime, why};
use crate::args::cluster::LocalArgs;
use crate::exit::{Exit, Failure, without_numbers};
use crate::output::{self, Format};
use crate::report::seconds;
use crate::screen;
use console::Term;
use polycast_api::agent::StatusResponse;
use polycast_api::documents::status_of_agent;
use polycast_types::{Printable, format_bytes};
use serde_json::Value;
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
    let document = status_of_agent(&status, &manager_error);
    output::result(format, &document, &status_text(&status, &manager_error, &seen))?;
    Ok(Exit::Done)
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
    for one in &status.groups {
        let _ = writeln!(text, "group      {}", group::line(one, 0));
    }
    for one in &status.uses {
        let _ = writeln!(text, "{:<10} {}", one.kind, why::line(one));
    }
    for peer in status.peers.iter().filter(|peer| peer.name != status.agent_name) {
        let _ = write!(
            text,
            "peer       {} at {}, heard {} ago",
            Printable(&peer.name),
            Printable(&peer.control_address),
            seconds(peer.silent_ms as f64 / 1e3)
        );
        if !peer.unreachable_by.is_empty() {
            let (by, ago) = (Printable(&peer.unreachable_by), seconds(peer.unreachable_ms as f64 / 1e3));
            let _ = write!(text, ", but {by} could not reach it there {ago} ago");
        }
        text.push('\n');
    }
    for peer in &status.lost {
        let _ = writeln!(
            text,
            "lost       {}, heard {} ago",
            Printable(&peer.name),
            seconds(peer.silent_ms as f64 / 1e3)
        );
    }
    text
}
