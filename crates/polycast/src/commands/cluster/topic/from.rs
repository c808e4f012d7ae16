//! `polycast publish --from`: what is at an address becomes a version. Each of its files is got as `fetch`
//! gets it, and the object is made in the agent's store from these.

use super::super::fetch::{Asked, Source};
use super::super::names::{self, Whose};
use super::super::{Ending, bytes, in_session, runtime};
use super::{deliver, tell};
use crate::args::cluster::objects::{FetchWhat, PublishArgs};
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use crate::progress::Progress;
use futures_util::stream::{self, StreamExt as _};
use polycast_api::client::Wanted;
use polycast_api::client::{ClientError, Session};
use polycast_gateway::origin::{Found, Part};
use polycast_net::object::ObjectKind;
use polycast_types::{AppId, ObjectId, Printable, without_secrets};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Files on their way at a time.
const ON_THEIR_WAY_MAX: usize = 8;
/// Files of an address at most: the agent is told of all at once.
const FILES_MAX: usize = 20_000;

/// A file that is in the agent's store.
struct Got {
    path: String,
    /// `None` of one that has no bytes.
    object: Option<ObjectId>,
    /// Said of it.
    document: Value,
}

/// Publishes what is at an address.
pub(super) fn run(args: &PublishArgs, address: &str, format: Format) -> Result<Exit, Failure> {
    let (shown, found) = Source::at(address, &args.origin, true)?;
    let (name, parts, is_set) = match found {
        Found::One(part) => (part.name().to_string(), vec![part], false),
        Found::Several(name, parts) => (name, parts, true),
    };
    if args.files && !is_set {
        bytes::check_set(ObjectKind::File)?;
    }
    if parts.len() > FILES_MAX {
        let why =
            format!("{} stands for {} files, and {FILES_MAX} are the most", Printable(&shown), parts.len());
        return Err(Failure::input(why));
    }
    let (done, files) = runtime()?.block_on(in_session(&args.local, AppId::default(), async |session| {
        let (ending, later) = (Ending::watch()?, Ending::watch()?);
        if session.is_other_user() {
            let why =
                "--from puts objects together in the agent's store, which is for the agent's own user alone";
            return Err(Failure::input(why).hint("polycast fetch the address, and publish the copy"));
        }
        let progress = Progress::start(&format!("getting {name}"));
        let getting = async {
            let one = |part| get(session, &shown, part, &progress);
            let mut gets = stream::iter(parts.iter().map(one).collect::<Vec<_>>()).buffered(ON_THEIR_WAY_MAX);
            let mut files: Vec<Got> = Vec::new();
            while let Some(file) = gets.next().await {
                files.push(file?);
            }
            Ok(files)
        };
        let files = tokio::select! {
            files = getting => files,
            () = ending.asked() => Err(Failure::cancelled()),
        };
        progress.finish();
        let files = files?;
        let data = names::id_of(&Whose::of(session), &[PathBuf::from(&shown)], &name, stamp(&parts, is_set));
        let object = match (&files[..], is_set) {
            ([Got { object: Some(object), .. }], false) => session.assemble(data, &name, *object).await?,
            (_, false) => return Err(Failure::input(format!("{} has no bytes", Printable(&shown)))),
            (files, true) => {
                let files = files.iter().map(|file| (file.path.clone(), file.object)).collect();
                session.assemble_set(data, &name, files).await?
            }
        };
        let done = deliver(session, args, object, (data, &name), later).await?;
        Ok((done, files))
    }))?;
    let documents: Vec<Value> = files.into_iter().map(|file| file.document).collect();
    let filled = documents.iter().filter(|file| file["filled"] == true).count();
    let count = output::counted(documents.len(), "file");
    output::say(&format!("{}: {count}, {filled} got from there", Printable(&shown)));
    tell(&args.topic, &done, json!({ "from": shown, "files": documents }), format)
}

/// The state of what is at an address: that of each of its files.
fn stamp(parts: &[Part], is_set: bool) -> [u8; 32] {
    let mut words = Vec::new();
    for text in parts.iter().flat_map(|part| [&part.path, &part.key]) {
        words.extend_from_slice(&(text.len() as u64).to_be_bytes());
        words.extend_from_slice(text.as_bytes());
    }
    names::stamp_of(polycast_net::hash::bytes_hash(&words), is_set)
}

/// Gets a file into the agent's store.
async fn get(session: &Session, shown: &str, part: &Part, progress: &Progress) -> Result<Got, Failure> {
    let (path, key) = (part.path.clone(), without_secrets(&part.key).into_owned());
    if part.bytes == Some(0) {
        let document = json!({ "path": path, "bytes": 0, "key": key, "filled": false });
        return Ok(Got { path, object: None, document });
    }
    let what =
        if path.is_empty() { FetchWhat::Url(shown.to_string()) } else { FetchWhat::Key(part.key.clone()) };
    let shown = if path.is_empty() { shown.to_string() } else { format!("{shown} {path}") };
    let source = Source { shown, part: part.clone() };
    // The time limit is for subscribers.
    let asked =
        Asked { shown: &what, key: Some(&part.key), origin: Some(&source), name: part.name(), timeout: None };
    let (object, filled) = asked.follow(session, Wanted::Key(part.key.clone()), None, progress).await?;
    let id = object.id().map_err(ClientError::from)?;
    let path_said = if path.is_empty() { part.name() } else { &path };
    let document = json!({ "path": path_said, "bytes": object.length, "key": key, "filled": filled });
    Ok(Got { path, object: Some(id), document })
}
