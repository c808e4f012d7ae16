//! `polycast why`: the reason why a file was read from its origin.

use super::{connect, runtime};
use crate::args::cluster::why::WhyArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_api::agent::{EndpointUse, OriginRead};
use polycast_api::documents::endpoint_use;
use polycast_types::{Printable, format_bytes};
use serde_json::{Value, json};

/// Counts of a repository's or an image's files by where their bytes were, for people.
pub(super) fn line(one: &EndpointUse) -> String {
    let EndpointUse { name, store, peers, origin, failed, .. } = one;
    let failed = if *failed > 0 { format!(", failed {failed}") } else { String::new() };
    format!("{}: store {store}, peers {peers}, origin {origin}{failed}", Printable(name))
}

/// Runs `polycast why`.
pub(super) fn run(args: &WhyArgs, format: Format) -> Result<Exit, Failure> {
    let status =
        runtime()?.block_on(async { Ok::<_, Failure>(connect(&args.local).await?.status().await?) })?;
    let is_asked =
        |one: &&EndpointUse| one.name == args.what || one.reads.iter().any(|read| read.key == args.what);
    let found: Vec<&EndpointUse> = status.uses.iter().filter(is_asked).collect();
    if found.is_empty() {
        let why = format!(
            "this agent's endpoints have read nothing of that name or key: {}",
            Printable(&args.what)
        );
        return Err(
            Failure::input(why).hint("polycast status lists what they were asked for since the agent began")
        );
    }
    let is_read = |read: &&OriginRead| {
        args.what.contains("sha256:").then_some(&args.what).is_none_or(|key| read.key == *key)
    };
    let (mut lines, mut reads) = (Vec::new(), Vec::new());
    for one in &found {
        lines.push(line(one));
        for read in one.reads.iter().filter(is_read) {
            let OriginRead { key, file, bytes, at_unix_ms, reason } = read;
            let (file_shown, reason_shown) = (Printable(file), Printable(reason));
            lines.push(format!("  origin: {file_shown} ({}): {reason_shown}", format_bytes(*bytes)));
            reads.push(json!({
                "key": key, "file": file, "bytes": bytes, "at_unix_ms": at_unix_ms, "reason": reason,
            }));
        }
    }
    let uses: Vec<Value> = found.iter().map(|one| endpoint_use(one)).collect();
    output::result(format, &json!({ "endpoints": uses, "reads": reads }), &lines.join("\n"))?;
    Ok(Exit::Done)
}
