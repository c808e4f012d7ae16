//! `polycast fetch`: an object by its key, address or id, wherever it is.

use super::away::Away;
use super::bytes;
use super::{Ending, in_session, place_at, runtime};
use crate::args::cluster::objects::{FetchArgs, FetchWhat};
use crate::commands::destination::{Destination, Present};
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use crate::progress::Progress;
use polycast_api::agent::Object;
use polycast_api::agent::fetch_event::Event;
use polycast_api::client::{ClientError, Piece, Session, Wanted};
use polycast_gateway::origin::{self, Reader};
use polycast_types::{AppId, Printable, format_bytes, without_secrets};
use serde_json::json;
use std::io::Read;
use tokio::sync::mpsc;

/// Bytes of a piece.
const PIECE_LEN: usize = 1 << 20;
/// Pieces that are read ahead.
const PIECES_MAX: usize = 8;

/// `polycast fetch`
pub(super) fn run(args: &FetchArgs, format: Format) -> Result<Exit, Failure> {
    let destination = Destination::check(&args.place)?;
    output::check_alone(format, destination == Destination::Stdout)?;
    let origin = match (&args.from, &args.what) {
        (Some(from), _) => Some(from.clone()),
        (None, FetchWhat::Url(url)) => Some(url.clone()),
        (None, _) => None,
    };
    if let Some(origin) = &origin {
        check_origin(origin)?;
    }
    let (app, key) = match &args.what {
        FetchWhat::Id(id) if origin.is_some() => {
            return Err(Failure::input(format!("object {id} has no origin: --from goes with a key")));
        }
        FetchWhat::Id(id) => (id.app, None),
        FetchWhat::Key(key) => (AppId::default(), Some(key.clone())),
        FetchWhat::Url(url) => (AppId::default(), Some(format!("url:{url}"))),
    };
    let wanted = match (&args.what, &key) {
        (FetchWhat::Id(id), _) => Wanted::Id(id.data),
        (_, key) => Wanted::Key(key.clone().unwrap_or_default()),
    };
    // What comes over the socket comes while it runs.
    let runtime = runtime()?;
    let (object, filled, taken, len) = runtime.block_on(in_session(&args.local, app, async |session| {
        let ending = Ending::watch()?;
        let progress = Progress::start(&format!("asking for {}", args.what));
        let outcome = tokio::select! {
            outcome = follow(session, args, wanted, key.as_deref(), origin.as_deref(), &progress) => outcome,
            () = ending.asked() => Err(Failure::cancelled()),
        };
        progress.finish();
        let (object, filled) = outcome?;
        let taken = bytes::take(session, &object).await?;
        let len = bytes::len_of(session, &object).await?;
        Ok((object, filled, taken, len))
    }))?;
    let present = Present::of(&args.place);
    let Some((target, unchanged)) = place_at(&object, taken, &destination, present)? else {
        return Ok(Exit::Done);
    };
    let id = object.id().map_err(ClientError::from)?.to_string();
    let document = json!({
        "object": id, "key": key.as_deref().map(without_secrets), "name": object.name, "bytes": len, "root": object.root,
        "path": target.display().to_string(), "unchanged": unchanged, "filled": filled,
    });
    let name = Printable(&object.name);
    let how = match (unchanged, filled) {
        (true, _) => " is up to date",
        (false, true) => ", got from its origin",
        (false, false) => "",
    };
    let target = target.display().to_string();
    let text = format!("{name} ({}){how}: {}", format_bytes(len), Printable(&target));
    output::result(format, &document, &text)?;
    Ok(Exit::Done)
}

/// Waits for the object, and gets it from its origin where that is this process's turn; gives whether it was.
async fn follow(
    session: &Session,
    args: &FetchArgs,
    wanted: Wanted,
    key: Option<&str>,
    origin: Option<&str>,
    progress: &Progress,
) -> Result<(Object, bool), Failure> {
    let named = |error: ClientError| in_the_users_words(error.into(), &args.what);
    let mut fetching = session.fetch(wanted, origin.is_some(), args.timeout).await.map_err(named)?;
    // What an origin without a length has is known at its end.
    let (mut filled, mut shown, mut is_open) = (false, false, false);
    let mut away = Away::watch(&args.local).await?;
    loop {
        let event = tokio::select! {
            event = fetching.next() => event.map_err(named)?,
            news = away.news() => {
                output::say(&news);
                continue;
            }
        };
        let Some(event) = event else { break };
        match event {
            Event::Waiting(_) => {}
            Event::Progress(at) => {
                if at.total > 0 && !filled && !std::mem::replace(&mut shown, true) {
                    progress.quietly("it is on its way");
                }
                let total = if is_open { 0 } else { at.total };
                progress.reception(at.bytes, total, &format!("{} is on its way", args.what));
            }
            Event::Fill(_) => {
                let (Some(origin), Some(key)) = (origin, key) else { continue };
                output::say(&format!("no agent has it: getting it from {}", without_secrets(origin)));
                filled = true;
                let (length, pieces) = read(origin).await;
                is_open = length.is_none();
                let (session, key) = (session.clone(), key.to_string());
                // How it went comes as an event, too.
                tokio::spawn(async move { session.fill(&key, length, "", pieces).await });
            }
            Event::Object(object) => return Ok((object, filled)),
        }
    }
    Err(Failure::unexpected("the agent ended the call without an object"))
}

/// The agent names an object by its id, which the user has not seen who asked for a key or an address.
fn in_the_users_words(mut failure: Failure, what: &FetchWhat) -> Failure {
    let rest = failure.message.strip_prefix("object ").and_then(|rest| Some(&rest[rest.find([':', ' '])?..]));
    if let (FetchWhat::Key(_) | FetchWhat::Url(_), Some(rest)) = (what, rest) {
        failure.message = format!("{what}{rest}");
    }
    failure
}

/// Refuses an origin that no agent could get.
fn check_origin(origin: &str) -> Result<(), Failure> {
    let known = ["http://", "https://", "file:///"].iter().any(|scheme| origin.starts_with(scheme));
    if known {
        return Ok(());
    }
    let shown = without_secrets(origin);
    let message = format!("cannot get {}: it is no address of http, https or a file", Printable(&shown));
    Err(Failure::input(message).hint("write https://HOST/PATH, or file:///PATH"))
}

/// Begins to read an origin in a thread of its own; gives its length where that is known, and its pieces.
async fn read(origin: &str) -> (Option<u64>, mpsc::Receiver<Piece>) {
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    let (opened, length) = tokio::sync::oneshot::channel();
    let (origin, shown) = (origin.to_string(), without_secrets(origin).into_owned());
    std::thread::spawn(move || match origin::open(&origin) {
        Ok((length, reader)) => {
            let _ = opened.send(length);
            copy(&shown, reader, length, &sender);
        }
        Err(error) => {
            let _ = opened.send(None);
            // What a library says may name the address once more.
            let _ = sender.blocking_send(Err(format!("cannot get {shown}: {}", without_secrets(&error))));
        }
    });
    (length.await.unwrap_or(None), pieces)
}

/// Reads to the end, or until the agent takes no more; `origin` is what is shown of the address.
fn copy(origin: &str, mut reader: Reader, length: Option<u64>, pieces: &mpsc::Sender<Piece>) {
    let mut total = 0u64;
    loop {
        let mut piece = Vec::with_capacity(PIECE_LEN);
        match reader.by_ref().take(PIECE_LEN as u64).read_to_end(&mut piece) {
            Ok(0) if length.is_some_and(|length| total < length) => {
                let _ = pieces.blocking_send(Err(format!("{origin} ended after {total} bytes")));
                return;
            }
            Ok(0) => {
                // These were all.
                let _ = pieces.blocking_send(Ok(Vec::new()));
                return;
            }
            Ok(len) => {
                total += len as u64;
                if pieces.blocking_send(Ok(piece)).is_err() {
                    return;
                }
            }
            Err(error) => {
                let _ = pieces.blocking_send(Err(format!(
                    "cannot get {origin}: {}",
                    without_secrets(&error.to_string())
                )));
                return;
            }
        }
    }
}
