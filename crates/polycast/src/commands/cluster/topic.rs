//! `polycast publish` and `polycast subscribe`: versions of something, to all that subscribe.

mod from;

use super::away::Away;
use super::bytes::{self, Bytes};
use super::coming;
use super::names;
use super::{Ending, in_session, place_at, runtime};
use crate::args::cluster::LocalArgs;
use crate::args::cluster::objects::{PublishArgs, SubscribeArgs};
use crate::commands::destination::{Destination, Present};
use crate::exit::{Exit, Failure};
use crate::object::{self, Named, Reading};
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::report;
use crate::screen;
use polycast_api::agent::{MissingSubscriber, Object, PublishResponse, TopicEvent};
use polycast_api::client::{ClientError, Selected, Session};
use polycast_types::{AppId, DataId, ObjectId, Printable, format_bytes};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

/// `polycast publish`
pub(super) fn publish(args: &PublishArgs, format: Format) -> Result<Exit, Failure> {
    let (read, origin) = (&args.read, &args.origin);
    let path = match (&args.path, &args.from) {
        (Some(path), _) => path,
        (None, Some(address)) => return from::run(args, address, format),
        (None, None) => return Err(Failure::input("name a file, a directory, or an address with --from")),
    };
    if !origin.header.is_empty() || origin.token_env.is_some() {
        return Err(Failure::input("--header and --token-env go with --from URL"));
    }
    object::deliver_unchanged(
        read.retry_changed,
        || object::open(path, read.follow, Reading::InPlace),
        |object, left| publish_once(args, path, object, left > 0, format),
    )
}

/// Publishes an object once; where it may be published `again`, that it was changed is an error whatever
/// subscribers say.
fn publish_once(
    args: &PublishArgs,
    path: &Path,
    object: Named,
    again: bool,
    format: Format,
) -> Result<Exit, Failure> {
    if object.spool.is_some() {
        return Err(Failure::input("standard input cannot be published: write it to a file first"));
    }
    let (name, stamp) = (object.name, object.source.stamp());
    if args.files {
        bytes::check_set(object.kind)?;
    }
    let bytes = Bytes { kind: object.kind, source: object.source };
    let app = AppId::default();
    let paths = [path.to_path_buf()];
    let done = runtime()?.block_on(in_session(&args.local, app, async |session| {
        let ending = Ending::watch()?;
        if args.files {
            bytes::check_paths(session)?;
        }
        let stamp = names::stamp_of(stamp, args.files);
        let data = names::id_of(&names::Whose::of(session), &paths, &name, stamp);
        let selected = Selected { follow: args.read.follow, ..Selected::default() };
        let object = if args.files {
            session.add_set(data, &paths, &name, &selected).await?
        } else if session.is_other_user() {
            bytes.put(session, data, &name, false, false).await?
        } else {
            session.add_all(data, &paths, &name, &selected).await?
        };
        let done = deliver(session, args, object, (data, &name), ending).await?;
        if again
            && !done.published.missing.is_empty()
            && let Some(failure) = object::changed(&*bytes.source)
        {
            return Err(failure);
        }
        Ok(done)
    }))?;
    tell(&args.topic, &done, Value::Null, format)
}

/// Publishes an object that is here, and waits until the version is committed.
async fn deliver(
    session: &Session,
    args: &PublishArgs,
    object: Object,
    (data, name): (DataId, &str),
    ending: Ending,
) -> Result<Done, Failure> {
    let progress = Progress::start(&format!("publishing {name}"));
    let begun = Instant::now();
    let publishing = session.publish(&args.topic, args.version, data, args.timeout);
    let id = ObjectId { app: AppId::default(), data };
    let outcome = tokio::select! {
        published = coming::shown(&args.local, (id, name), &progress, publishing) => {
            published.map_err(Failure::from)
        }
        () = ending.asked() => Err(Failure::cancelled()),
    };
    progress.finish();
    let (published, seconds) = (outcome?, begun.elapsed().as_secs_f64());
    let len = bytes::len_of(session, &object).await?;
    Ok(Done { object, published, seconds, len })
}

/// Result of publishing a version.
struct Done {
    object: Object,
    published: PublishResponse,
    seconds: f64,
    /// Bytes of the object.
    len: u64,
}

/// Says which subscribers have a version, and which have not; and `more` where it is from.
fn tell(topic: &str, done: &Done, more: Value, format: Format) -> Result<Exit, Failure> {
    let Done { object, published, seconds, len } = done;
    let id = object.id().map_err(ClientError::from)?.to_string();
    let have = published
        .have
        .iter()
        .map(|name| json!({ "name": name, "verified": true, "reason": null, "kind": null }));
    let missing = published.missing.iter();
    // An earlier manager names no kind.
    let kind = |one: &MissingSubscriber| Some(one.kind.clone()).filter(|kind| !kind.is_empty());
    let missing = missing
        .map(|one| json!({ "name": one.name, "verified": false, "reason": one.reason, "kind": kind(one) }));
    let subscribers: Vec<Value> = have.chain(missing).collect();
    let subscriber_count = subscribers.len();
    let mut document = json!({
        "topic": topic, "version": published.version, "object": id, "name": object.name, "bytes": len,
        "seconds": seconds, "sent_bytes": published.sent_bytes,
        "spared_bytes": published.spared_bytes, "coded_bytes": published.coded_bytes,
        "subscribers": subscribers,
    });
    if let (Some(document), Value::Object(more)) = (document.as_object_mut(), more) {
        document.extend(more);
    }
    let name = Printable(&object.name);
    let subscribers = output::counted(published.have.len(), "subscriber");
    let (version, bytes) = (published.version, format_bytes(*len));
    let took = report::seconds(*seconds);
    let mut text = format!("{topic} version {version}: {name} ({bytes}) at {subscribers} in {took}");
    if subscriber_count == 0 {
        text = format!("{topic} version {version}: {name} ({bytes}); it has no subscriber yet");
    }
    if published.spared_bytes > 0 {
        let (sent, spared) = (format_bytes(published.sent_bytes), format_bytes(published.spared_bytes));
        let how = if published.coded_bytes > 0 { " as a delta" } else { "" };
        text += &format!("\nsent {sent}{how}; subscribers had {spared}");
    }
    for one in &published.missing {
        text += &format!("\n{} does not have it: {}", Printable(&one.name), Printable(&one.reason));
    }
    output::result(format, &document, &text)?;
    Ok(if published.missing.is_empty() { Exit::Done } else { Exit::Failed })
}

/// `polycast subscribe`
pub(super) fn subscribe(args: &SubscribeArgs, format: Format) -> Result<Exit, Failure> {
    let destination = Destination::check(&args.place)?;
    let to_stdout = destination == Destination::Stdout;
    output::check_alone(format, to_stdout)?;
    let mut versions = Vec::new();
    let app = AppId::default();
    let ended = runtime()?.block_on(in_session(&args.local, app, async |session| {
        let ending = Ending::watch()?;
        tokio::select! {
            ended = follow(session, args, &destination, format, &mut versions) => ended,
            // One that waits for a single version has none; one that follows them has what there was.
            () = ending.asked() => if args.once { Err(Failure::cancelled()) } else { Ok(()) },
        }
    }));
    ended?;
    let text = match versions.last() {
        Some(last) => {
            format!(
                "{} version {}: {}",
                args.topic,
                last["number"],
                Printable(last["path"].as_str().unwrap_or_default())
            )
        }
        None => format!("{}: no version", args.topic),
    };
    if to_stdout {
        // What was written there is the objects'.
        output::beside(&text);
        return Ok(Exit::Done);
    }
    // At a terminal each version was said as it came.
    let was_said = !versions.is_empty() && screen::shows_both() && !output::is_quiet();
    if format == Format::Json || !was_said {
        output::result(format, &json!({ "topic": args.topic, "versions": versions }), &text)?;
    }
    Ok(Exit::Done)
}

/// Versions that the document of a long run names: the last ones.
const VERSIONS_MAX: usize = 1_024;

async fn follow(
    session: &Session,
    args: &SubscribeArgs,
    destination: &Destination,
    format: Format,
    versions: &mut Vec<Value>,
) -> Result<(), Failure> {
    let mut events = session.subscribe(&args.topic).await?;
    // Where this run has put versions. What else is there is the user's: the publisher chooses the name.
    let mut ours = BTreeSet::new();
    let mut away = Away::watch(&args.local).await?;
    // The version that is on its way.
    let mut coming = None;
    loop {
        let progress = Progress::start(&format!("waiting for a version of {}", args.topic));
        let event = tokio::select! {
            event = events.next() => event?,
            news = away.news() => {
                output::say(&news);
                continue;
            }
            () = show(&args.local, coming.as_ref(), &progress) => continue,
        };
        let Some(TopicEvent { version, committed, object }) = event else { break };
        let Some(object) = object else { continue };
        if !committed {
            coming =
                Some((object.id().map_err(ClientError::from)?, format!("{} version {version}", args.topic)));
            continue;
        }
        coming = None;
        // What is run for a version may write to the terminal, too.
        progress.finish();
        let present = match destination.path_of(&object.name)? {
            // A new version takes the place of the one before.
            Some(target) if ours.contains(&target) => Present::Updated,
            _ => Present::of(&args.place),
        };
        let taken = bytes::take(session, &object).await?;
        // What is taken comes while this waits for it.
        let len = bytes::len_of(session, &object).await?;
        let placed = tokio::task::block_in_place(|| place_at(&object, taken, destination, present))?;
        let target = placed.map(|(target, _)| target);
        let id: ObjectId = object.id().map_err(ClientError::from)?;
        let path = target.as_ref().map(|target| target.display().to_string()).unwrap_or_default();
        ours.extend(target.filter(|_| ours.len() < VERSIONS_MAX));
        let entry = json!({
            "number": version, "object": id.to_string(), "name": object.name, "bytes": len,
            "root": object.root, "path": path,
        });
        let mut told = entry.clone();
        (told["event"], told["topic"]) = ("version".into(), args.topic.clone().into());
        output::event(format, &told, || {
            let name = Printable(&object.name);
            let at = if path.is_empty() { String::new() } else { format!(" at {}", Printable(&path)) };
            output::say(&format!("{} version {version}: {name}{at}", args.topic));
        });
        if versions.len() == VERSIONS_MAX {
            versions.remove(0);
        }
        versions.push(entry);
        if let Some(command) = &args.exec {
            execute(command, &args.topic, version, &path).await?;
        }
        if args.once {
            return Ok(());
        }
    }
    Err(Failure::unexpected("the agent ended the subscription"))
}

/// Shows how far a version is that is on its way; does not end.
async fn show(local: &LocalArgs, coming: Option<&(ObjectId, String)>, progress: &Progress) {
    match coming {
        Some((id, name)) => coming::ask(local, *id, name, progress).await,
        None => std::future::pending().await,
    }
}

/// Runs the command that a version is for; standard output stays ours.
async fn execute(command: &str, topic: &str, version: u64, path: &str) -> Result<(), Failure> {
    let mut shell = std::process::Command::new("/bin/sh");
    shell.arg("-c").arg(command).env("POLYCAST_TOPIC", topic);
    shell.env("POLYCAST_VERSION", version.to_string()).env("POLYCAST_PATH", path);
    shell.stdout(std::io::stderr());
    let status = tokio::task::spawn_blocking(move || shell.status()).await;
    let status = status.map_err(|error| Failure::unexpected(error.to_string()))?;
    let status = status.map_err(|error| Failure::input(format!("cannot run '{command}': {error}")))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::input(format!("'{command}' failed for version {version}: {status}")))
}
