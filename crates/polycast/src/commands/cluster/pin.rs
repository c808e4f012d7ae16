//! `polycast pin` and `polycast unpin`: what stays in the store, whatever else needs its room.

use super::{connect, in_session, runtime};
use crate::args::cluster::objects::PinArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_types::Printable;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Pins objects, or lets them go like others.
pub(super) fn run(args: &PinArgs, pinned: bool, format: Format) -> Result<Exit, Failure> {
    let objects: Vec<Value> = runtime()?.block_on(async {
        let listed = connect(&args.local).await?.list(None).await?;
        let mut objects = Vec::new();
        for which in &args.which {
            for id in which.among(&listed)? {
                let pin = in_session(&args.local, id.app, async |session| Ok(session.pin(id.data, pinned).await?));
                let object = pin.await?;
                objects.push(json!({
                    "object": id.to_string(), "name": object.name, "bytes": object.length, "pinned": object.pinned,
                }));
            }
        }
        Ok::<_, Failure>(objects)
    })?;
    let what = if pinned { "stays" } else { "may go like others" };
    let mut text = String::new();
    for object in &objects {
        // A name is what people know an object by; not every object has one.
        let called = ["name", "object"].map(|key| object[key].as_str().unwrap_or_default());
        let called = called.into_iter().find(|called| !called.is_empty()).unwrap_or_default();
        let _ = writeln!(text, "{} {what}", Printable(called));
    }
    output::result(format, &json!({ "objects": objects }), &text)?;
    Ok(Exit::Done)
}
