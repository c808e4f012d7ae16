//! `polycast drain` and `polycast undrain`: hosts and parts of the network that are taken out of use, through
//! the local agent.

use super::{connect, runtime};
use crate::args::cluster::{DrainArgs, LocalArgs, UndrainArgs};
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_api::agent::DrainResponse;
use polycast_api::documents;
use polycast_api::error::Kind;
use polycast_api::manager::DrainedHost;
use polycast_types::Printable;
use serde_json::json;
use std::fmt::Write as _;
use std::time::Duration;

/// Interval at which the manager is asked whether something still runs at a host: heartbeats come every
/// second or two.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// So many objects and topics are named to people.
const NAMED_MAX: usize = 10;

/// `polycast drain`
pub(super) fn drain(args: &DrainArgs, format: Format) -> Result<Exit, Failure> {
    change(&args.part, args.undo, args.wait, &args.local, format)
}

/// `polycast undrain`
pub(super) fn undrain(args: &UndrainArgs, format: Format) -> Result<Exit, Failure> {
    change(&args.part, true, false, &args.local, format)
}

fn change(part: &str, back: bool, waits: bool, local: &LocalArgs, format: Format) -> Result<Exit, Failure> {
    let (done, host) = runtime()?.block_on(async {
        let client = connect(local).await?;
        let done = client.drain(part, back).await?;
        let mut status = client.manager_status().await?.1;
        while waits && documents::drain(&status, part) == Some("draining") {
            tokio::time::sleep(LOOK_AGAIN).await;
            status = client.manager_status().await?.1;
        }
        let host = documents::drained(&status, part).cloned();
        let is_part = status.drained.contains(&done.part);
        if waits && host.is_none() && !is_part {
            let message = format!("'{}' was brought back meanwhile", Printable(part));
            return Err(Failure::of(Kind::Cancelled, message));
        }
        Ok::<_, Failure>((done, host))
    })?;
    let document = json!({
        "part": done.part, "drained": !back, "changed": done.changed, "moved": done.moved, "ended": done.ended,
        "host": host.as_ref().map(documents::drained_host),
    });
    let text = match &host {
        Some(host) => host_text(host),
        None => part_text(&done, back),
    };
    output::result(format, &document, &text)?;
    Ok(Exit::Done)
}

fn host_text(host: &DrainedHost) -> String {
    let name = Printable(&host.name);
    let mut text = match host.transfers {
        0 => format!("{name} is drained: nothing waits or runs there"),
        1 => format!("{name} is draining: 1 transfer waits or runs there"),
        many => format!("{name} is draining: {many} transfers wait or run there"),
    };
    let listed = |mut names: Vec<String>, all: u64| {
        names.truncate(NAMED_MAX);
        let more = all.saturating_sub(names.len() as u64);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        format!("{}{more}", names.join(", "))
    };
    if host.objects_count > 0 {
        let _ = write!(
            text,
            "\nonly there, and lost with it: {}",
            listed(documents::objects_only_at(host).collect(), host.objects_count)
        );
    }
    if !host.topics.is_empty() {
        let names: Vec<String> = host.topics.iter().map(|topic| Printable(topic).to_string()).collect();
        let all = names.len() as u64;
        let _ = write!(text, "\nlast versions of these topics are among them: {}", listed(names, all));
    }
    text
}

fn part_text(done: &DrainResponse, back: bool) -> String {
    let part = Printable(&done.part);
    match (back, done.changed) {
        (true, true) => format!("{part} can be used again"),
        (true, false) => format!("{part} was not taken out"),
        (false, false) => format!("{part} was taken out already"),
        (false, true) if done.moved + done.ended == 0 => {
            format!("{part} is taken out; no transfer needed it")
        }
        (false, true) => {
            let (moved, ended) = (done.moved, done.ended);
            format!("{part} is taken out; {moved} paths have moved, {ended} have ended")
        }
    }
}
