//! `polycast fetch`: an object by its key, address or id, wherever it is.

mod several;

use super::away::Away;
use super::bytes;
use super::{Ending, in_session, place_at, runtime};
use crate::args::cluster::objects::{FetchArgs, FetchWhat, OriginArgs};
use crate::commands::destination::{Destination, Present};
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use crate::progress::{Arrived, Progress};
use polycast_api::agent::Object;
use polycast_api::agent::fetch_event::Event;
use polycast_api::client::{ClientError, Piece, Session, Wanted};
use polycast_gateway::origin::{Found, Headers, Origin, Part, Reader};
use polycast_types::{AppId, Duration, Printable, format_bytes, without_secrets};
use serde_json::json;
use std::fs;
use std::io::Read;
use std::path::Path;
use tokio::sync::mpsc;

/// Bytes of a piece.
const PIECE_LEN: usize = 1 << 20;
/// Pieces that are read ahead.
const PIECES_MAX: usize = 8;

/// `polycast fetch`
pub(super) fn run(args: &FetchArgs, format: Format) -> Result<Exit, Failure> {
    let destination = Destination::check(&args.place)?;
    output::check_alone(format, destination == Destination::Stdout)?;
    let origin = match found(args)? {
        Some((shown, Found::Several(name, parts))) if matches!(args.what, FetchWhat::Url(_)) => {
            return several::run(args, format, &shown, (&name, &parts));
        }
        Some((shown, Found::Several(..))) => {
            let message = format!("a key is that of one file, and {} stands for several", Printable(&shown));
            return Err(Failure::input(message));
        }
        Some((shown, Found::One(part))) => Some(Source { shown, part }),
        None => None,
    };
    let (app, key) = match &args.what {
        FetchWhat::Id(id) => (id.app, None),
        FetchWhat::Key(key) => (AppId::default(), Some(key.clone())),
        FetchWhat::Url(_) => (AppId::default(), origin.as_ref().map(|source| source.part.key.clone())),
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
            outcome = async {
                let away = Some(Away::watch(&args.local).await?);
                let asked = Asked { shown: &args.what, key: key.as_deref(), origin: origin.as_ref(), name: "", timeout: args.timeout };
                asked.follow(session, wanted, away, &progress).await
            } => outcome,
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

/// Files at the address that the command names, if it names one.
fn found(args: &FetchArgs) -> Result<Option<(String, Found)>, Failure> {
    let address = match (&args.from, &args.what) {
        (Some(_), FetchWhat::Id(id)) => {
            return Err(Failure::input(format!("object {id} has no origin: --from goes with a key")));
        }
        (Some(from), _) => Some(from),
        (None, FetchWhat::Url(url)) => Some(url),
        (None, _) => None,
    };
    if address.is_none() && (!args.origin.header.is_empty() || args.origin.token_env.is_some()) {
        return Err(Failure::input("--header and --token-env go with an address"));
    }
    address.map(|address| Source::at(address, &args.origin, false)).transpose()
}

/// Headers for the server of an address.
fn headers(args: &OriginArgs) -> Result<Headers, Failure> {
    let mut headers = Headers::default();
    let refused = |what: &str, why: String| Failure::input(format!("{what}: {}", Printable(&why)));
    for given in &args.header {
        let Some(path) = given.strip_prefix('@').map(Path::new) else {
            headers.add(given).map_err(|why| refused("--header", why))?;
            continue;
        };
        let text = fs::read_to_string(path).map_err(|error| Failure::path("read", path, &error))?;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let shown = format!("--header @{}", Printable(&path.display().to_string()));
            headers.add(line).map_err(|why| refused(&shown, why))?;
        }
    }
    if let Some(name) = &args.token_env {
        let token = std::env::var(name).ok().map(|token| token.trim().to_string());
        let token = token.filter(|token| !token.is_empty());
        let unset = || refused("--token-env", format!("the variable {name} is not set, or is no text"));
        let line = format!("Authorization: Bearer {}", token.ok_or_else(unset)?);
        headers.add(&line).map_err(|why| refused("--token-env", why))?;
    }
    Ok(headers)
}

/// A file at an origin.
pub(super) struct Source {
    /// The address, without what is secret.
    pub shown: String,
    pub part: Part,
}

impl Source {
    /// Finds what is at an address: refuses one that no agent could read. What is there `now` goes by another
    /// key than what any agent may have read there before.
    pub(super) fn at(address: &str, args: &OriginArgs, now: bool) -> Result<(String, Found), Failure> {
        let shown = without_secrets(address).into_owned();
        let refused = |why: String, hint| {
            let why = without_secrets(&why).into_owned();
            Failure::input(format!("cannot get {}: {}", Printable(&shown), Printable(&why))).hint(hint)
        };
        let hint = "write https://HOST/PATH, s3://BUCKET/KEY, hf://ORG/NAME, oci://REGISTRY/REPOSITORY:TAG or file:///PATH";
        let origin = Origin::parse(address).map_err(|why| refused(why, hint))?;
        let origin = origin.with(headers(args)?).map_err(|why| Failure::input(refused(why, "").message))?;
        let progress = Progress::start(&format!("asking what is at {}", Printable(&shown)));
        let found = if now { origin.find_now() } else { origin.find() };
        let found = found.map_err(|why| Failure::input(refused(why, "").message));
        progress.finish();
        Ok((shown, found?))
    }
}

/// An object that is asked for.
pub(super) struct Asked<'a> {
    pub shown: &'a FetchWhat,
    pub key: Option<&'a str>,
    pub origin: Option<&'a Source>,
    /// The name that it gets where it is read here; without one the end of its key.
    pub name: &'a str,
    pub timeout: Option<Duration>,
}

impl Asked<'_> {
    /// Waits for the object, and gets it from its origin where that is this process's turn; gives whether it
    /// was.
    pub(super) async fn follow(
        &self,
        session: &Session,
        wanted: Wanted,
        mut away: Option<Away>,
        progress: &Progress,
    ) -> Result<(Object, bool), Failure> {
        let named = |error: ClientError| in_the_users_words(error.into(), self.shown);
        let mut fetching = session.fetch(wanted, self.origin.is_some(), self.timeout).await.map_err(named)?;
        // What an origin without a length has is known at its end.
        let (mut filled, mut told, mut is_open) = (false, false, false);
        loop {
            let event = tokio::select! {
                event = fetching.next() => event.map_err(named)?,
                news = news(&mut away) => {
                    output::say(&news);
                    continue;
                }
            };
            let Some(event) = event else { break };
            match event {
                Event::Waiting(_) => {}
                Event::Progress(at) => {
                    if at.total > 0 && !filled && !std::mem::replace(&mut told, true) {
                        progress.quietly("it is on its way");
                    }
                    let total = if is_open { 0 } else { at.total };
                    let arrived = Arrived { bytes: at.bytes, spared_bytes: at.spared_bytes, total };
                    progress.reception(arrived, &format!("{} is on its way", self.shown), "being stored");
                }
                Event::Fill(_) => {
                    let (Some(origin), Some(key)) = (self.origin, self.key) else { continue };
                    output::say(&format!("no agent has it: getting it from {}", Printable(&origin.shown)));
                    filled = true;
                    let (length, pieces) = read(origin).await;
                    is_open = length.is_none();
                    let (session, key, name) = (session.clone(), key.to_string(), self.name.to_string());
                    // How it went comes as an event, too.
                    tokio::spawn(async move { session.fill(&key, length, &name, pieces).await });
                }
                Event::Object(object) => return Ok((object, filled)),
            }
        }
        Err(Failure::unexpected("the agent ended the call without an object"))
    }
}

async fn news(away: &mut Option<Away>) -> String {
    match away {
        Some(away) => away.news().await,
        None => std::future::pending().await,
    }
}

/// The agent names an object by its id, which the user has not seen who asked for a key or an address.
fn in_the_users_words(mut failure: Failure, what: &FetchWhat) -> Failure {
    let rest = failure.message.strip_prefix("object ").and_then(|rest| Some(&rest[rest.find([':', ' '])?..]));
    if let (FetchWhat::Key(_) | FetchWhat::Url(_), Some(rest)) = (what, rest) {
        failure.message = format!("{what}{rest}");
    }
    failure
}

/// Begins to read an origin in a thread of its own; gives its length where that is known, and its pieces.
async fn read(origin: &Source) -> (Option<u64>, mpsc::Receiver<Piece>) {
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    let (opened, length) = tokio::sync::oneshot::channel();
    let (part, shown) = (origin.part.clone(), origin.shown.clone());
    std::thread::spawn(move || match part.open() {
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
