//! `polycast group`: paths for packets that applications send themselves.

use super::{connect, runtime};
use crate::args::cluster::group::{ChangeArgs, CreateArgs, GroupArgs, GroupCommand};
use crate::args::cluster::{Destinations, LocalArgs};
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_api::agent::Group;
use polycast_api::documents;
use polycast_types::{Printable, Rate};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Runs a command of groups.
pub(crate) fn run(args: &GroupArgs, format: Format) -> Result<Exit, Failure> {
    runtime()?.block_on(async {
        match &args.command {
            GroupCommand::Create(args) => create(args, format).await,
            GroupCommand::Change(args) => change(args, format).await,
            GroupCommand::Ls(local) => list(local, format).await,
            GroupCommand::Rm(args) => {
                connect(&args.local).await?.remove_group(&args.name).await?;
                let document = json!({ "name": args.name, "removed": true });
                output::result(format, &document, &format!("{} removed", Printable(&args.name)))?;
                Ok(Exit::Done)
            }
        }
    })
}

fn names(of: &Destinations) -> Vec<String> {
    match of {
        Destinations::Named(names) => names.clone(),
        Destinations::All => Vec::new(),
    }
}

async fn change(args: &ChangeArgs, format: Format) -> Result<Exit, Failure> {
    let all = |of: &Option<Destinations>| of.as_ref().map(names).unwrap_or_default();
    let sources = args.sources.iter().flat_map(names).collect();
    let client = connect(&args.local).await?;
    let group = client.change_group(&args.name, all(&args.add), sources, all(&args.remove)).await?;
    output::result(format, &documents::group(&group), &line(&group, 0))?;
    Ok(Exit::Done)
}

async fn create(args: &CreateArgs, format: Format) -> Result<Exit, Failure> {
    let (members, sources) = (names(&args.to), args.sources.iter().flat_map(names).collect());
    let fabric = args.fabric.as_deref().unwrap_or_default();
    let client = connect(&args.local).await?;
    let group = client.create_group(&args.name, members, sources, fabric, args.rate).await?;
    output::result(format, &documents::group(&group), &line(&group, 0))?;
    Ok(Exit::Done)
}

async fn list(local: &LocalArgs, format: Format) -> Result<Exit, Failure> {
    let groups = connect(local).await?.groups().await?;
    let document: Vec<Value> = groups.iter().map(documents::group).collect();
    let widest = groups.iter().map(|group| Printable(&group.name).to_string().chars().count()).max();
    let lines: Vec<String> = groups.iter().map(|group| line(group, widest.unwrap_or_default())).collect();
    let text = if lines.is_empty() { "no groups".to_string() } else { lines.join("\n") };
    output::result(format, &document, &text)?;
    Ok(Exit::Done)
}

/// A group on a line, its name in so many columns.
pub(super) fn line(group: &Group, width: usize) -> String {
    let address = match group.address.parse() {
        Ok(address) => std::net::SocketAddr::new(address, group.port as u16).to_string(),
        Err(_) => "no path".to_string(),
    };
    let mut text = format!("{:width$}  {address}", Printable(&group.name).to_string());
    if !group.fabric.is_empty() {
        let _ = write!(text, " over {}", Printable(&group.fabric));
    }
    if let Some(rate) = group.rate_bps {
        let _ = write!(text, " at {}", Rate(rate));
    }
    let members = output::counted(group.members.len(), "member");
    // An agent of an older version names the one source alone.
    let several: Vec<String> = group.sources.iter().map(name_of).collect();
    let from = if several.is_empty() { Printable(&group.source).to_string() } else { several.join(", ") };
    let _ = write!(text, ", from {from} to {members}");
    let away = group.members.iter().chain(&group.sources).filter(|member| member.away).map(name_of);
    let away: BTreeSet<String> = away.collect();
    if !away.is_empty() {
        let _ = write!(text, ", away: {}", Vec::from_iter(away).join(", "));
    }
    if !group.trouble.is_empty() {
        let _ = write!(text, ": {}", Printable(&group.trouble));
    }
    text
}

fn name_of(member: &polycast_api::agent::Member) -> String {
    Printable(&member.name).to_string()
}
