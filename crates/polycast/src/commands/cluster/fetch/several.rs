//! Files that are at one address: each is an object of its own, and together they become a directory.

use super::super::{Ending, bytes, in_session, place_at, runtime};
use super::{Asked, Source};
use crate::args::cluster::objects::{FetchArgs, FetchWhat};
use crate::args::place::PlaceArgs;
use crate::commands::destination::{Destination, Present};
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use crate::progress::Progress;
use futures_util::stream::{self, StreamExt as _};
use polycast_api::client::{ClientError, Session, Wanted};
use polycast_gateway::origin::Part;
use polycast_types::{AppId, Printable, format_bytes, without_secrets};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Files on their way at a time.
const FILES_MAX: usize = 8;

/// Gets the files, each from wherever it is, and puts them into a directory of that name.
pub(super) fn run(
    args: &FetchArgs,
    format: Format,
    shown: &str,
    (name, parts): (&str, &[Part]),
) -> Result<Exit, Failure> {
    let destination = Destination::check(&args.place)?;
    let Some(folder) = destination.path_of(name)? else {
        let message = format!("{} stands for several files", Printable(shown));
        return Err(Failure::place(message).hint("name a directory for them: --out DIR"));
    };
    destination.check_present(&folder, Present::of(&args.place))?;
    let files = runtime()?.block_on(in_session(&args.local, AppId::default(), async |session| {
        let ending = Ending::watch()?;
        let progress = Progress::start(&format!("getting {} files", parts.len()));
        let getting = async {
            let one = |part| file(session, args, shown, (&folder, part), &progress);
            // Those that are ahead of it are not asked for before it is written.
            let mut gets = stream::iter(parts.iter().map(one).collect::<Vec<_>>()).buffered(FILES_MAX);
            let mut files: Vec<Value> = Vec::new();
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
        files
    }))?;
    let sum = |name: &str| files.iter().filter_map(|file| file[name].as_u64()).sum::<u64>();
    let filled = files.iter().filter(|file| file["filled"] == true).count();
    let (len, path) = (sum("bytes"), folder.display().to_string());
    let how = format!("{} files ({}), {filled} got from their origin", files.len(), format_bytes(len));
    let document = json!({ "name": name, "bytes": len, "path": path, "files": files });
    output::result(format, &document, &format!("{how}: {}", Printable(&path)))?;
    Ok(Exit::Done)
}

/// Gets a file, and puts it into its place; gives what is said of it.
async fn file(
    session: &Session,
    args: &FetchArgs,
    shown: &str,
    (folder, part): (&Path, &Part),
    progress: &Progress,
) -> Result<Value, Failure> {
    let target = folder.join(&part.path);
    let parent = target.parent().unwrap_or(folder);
    fs::create_dir_all(parent).map_err(|error| Failure::path("make", parent, &error))?;
    let (force, update) = (args.place.force, args.place.update);
    let place = PlaceArgs { out: Some(target.clone()), into: None, force, update };
    let destination = Destination::check(&place)?;
    let key = without_secrets(&part.key);
    if part.bytes == Some(0) {
        // No object has no bytes.
        fs::write(&target, b"").map_err(|error| Failure::path("write", &target, &error))?;
        return Ok(json!({ "path": part.path, "bytes": 0, "key": key, "filled": false, "unchanged": false }));
    }
    let source = Source { shown: format!("{shown} {}", part.path), part: part.clone() };
    let what = FetchWhat::Key(part.key.clone());
    let asked =
        Asked { shown: &what, key: Some(&part.key), origin: Some(&source), name: "", timeout: args.timeout };
    let wanted = Wanted::Key(part.key.clone());
    let (object, filled) = asked.follow(session, wanted, None, progress).await?;
    let taken = bytes::take(session, &object).await?;
    let unchanged =
        place_at(&object, taken, &destination, Present::of(&place))?.is_some_and(|placed| placed.1);
    let id = object.id().map_err(ClientError::from)?.to_string();
    Ok(json!({
        "path": part.path, "bytes": object.length, "object": id, "key": key, "filled": filled, "unchanged": unchanged,
    }))
}
