//! `polycast stream`: messages from one host to many, beside objects (Orca section 4).

use super::{Ending, connect, in_session, runtime};
use crate::args::cluster::local::LocalArgs;
use crate::args::cluster::stream::{RecvArgs, StreamArgs, StreamCommand};
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use polycast_api::agent::Message;
use polycast_api::client::{ClientError, Received, Session};
use polycast_types::{AppId, format_bytes};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{self, BufRead as _, Write as _};
use tokio::sync::mpsc;

/// Lines that are read ahead.
const LINES_MAX: usize = 4_096;
/// Messages, and bytes of them, that go to the agent at a time.
const BATCH_MAX: usize = 256;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Messages that `recv --json` keeps for its document.
const KEPT_MAX: u64 = 1 << 20;

/// Runs a command of streams.
pub(crate) fn run(args: &StreamArgs, format: Format) -> Result<Exit, Failure> {
    let app = AppId::default();
    runtime()?.block_on(async {
        match &args.command {
            StreamCommand::Create(args) => {
                in_session(&args.local, app, async |session| {
                    Ok(session.create_stream(&args.name, args.shared).await?)
                })
                .await?;
                done(format, &args.name, "created")
            }
            StreamCommand::Send(args) => {
                in_session(&args.local, app, async |session| send(session, &args.name, format).await).await
            }
            StreamCommand::Recv(args) => {
                in_session(&args.local, app, async |session| recv(session, args, format).await).await
            }
            StreamCommand::Leave(args) => {
                in_session(&args.local, app, async |session| Ok(session.leave_stream(&args.name).await?))
                    .await?;
                done(format, &args.name, "left")
            }
            StreamCommand::End(args) => {
                in_session(&args.local, app, async |session| Ok(session.end_stream(&args.name).await?))
                    .await?;
                done(format, &args.name, "ended")
            }
            StreamCommand::Ls(local) => list(local, format).await,
        }
    })
}

fn done(format: Format, name: &str, what: &str) -> Result<Exit, Failure> {
    output::result(format, &json!({ "stream": name, what: true }), &format!("{name} {what}"))?;
    Ok(Exit::Done)
}

/// Reads lines in a thread of its own: the standard input cannot be waited for in any other way.
fn lines() -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, lines) = mpsc::channel(LINES_MAX);
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        loop {
            let mut line = Vec::new();
            match input.read_until(b'\n', &mut line) {
                Ok(0) => return,
                Ok(_) => {
                    line.truncate(line.len() - usize::from(line.last() == Some(&b'\n')));
                    if sender.blocking_send(Ok(line)).is_err() {
                        return;
                    }
                }
                Err(error) => return drop(sender.blocking_send(Err(error))),
            }
        }
    });
    lines
}

async fn send(session: &Session, name: &str, format: Format) -> Result<Exit, Failure> {
    let ending = Ending::watch()?;
    let mut ending = std::pin::pin!(ending.asked());
    let (mut lines, mut sender) = (lines(), session.send_messages(name));
    loop {
        let line = tokio::select! {
            line = lines.recv() => line,
            () = &mut ending => None,
        };
        let Some(line) = line else { break };
        let read = |error: io::Error| Failure::input(format!("cannot read the messages: {error}"));
        let mut batch = vec![line.map_err(read)?];
        let mut bytes = batch[0].len();
        while batch.len() < BATCH_MAX
            && bytes < BATCH_BYTES_MAX
            && let Ok(line) = lines.try_recv()
        {
            batch.push(line.map_err(read)?);
            bytes += batch.last().map_or(0, Vec::len);
        }
        if !sender.send(batch).await {
            break;
        }
    }
    let sent = sender.finish().await?;
    let document = json!({
        "stream": name, "messages": sent.messages, "bytes": sent.bytes, "unheard": sent.unheard, "failed": sent.failed,
    });
    let messages = output::counted(sent.messages as usize, "message");
    let mut text = format!("{messages} sent, {}", format_bytes(sent.bytes));
    if sent.unheard > 0 {
        let _ = write!(text, "; {} went out while no receiver listened", sent.unheard);
    }
    if sent.failed > 0 {
        let _ = write!(text, "; the network would not take {}", sent.failed);
    }
    output::result(format, &document, &text)?;
    Ok(if sent.failed == 0 { Exit::Done } else { Exit::Failed })
}

/// Messages that `recv` has received, and their counts.
#[derive(Default)]
struct Seen {
    fabric: String,
    source: String,
    messages: u64,
    lost: u64,
    kept: Vec<Value>,
}

async fn recv(session: &Session, args: &RecvArgs, format: Format) -> Result<Exit, Failure> {
    if format == Format::Json && args.count.is_none_or(|count| count > KEPT_MAX) {
        let what =
            format!("--json prints one document: say with --count how many messages, at most {KEPT_MAX}");
        return Err(Failure::input(what));
    }
    let ending = Ending::watch()?;
    let mut ending = std::pin::pin!(ending.asked());
    let mut receiver = session.receive_messages(&args.name, args.hold).await?;
    let mut seen = Seen::default();
    while args.count.is_none_or(|count| seen.messages < count) {
        let received = tokio::select! {
            received = receiver.next() => received,
            () = &mut ending => break,
        };
        match received {
            Ok(Some(Received::Joined(joined))) => {
                output::say(&format!("{} from {} over {}", args.name, joined.source, joined.fabric));
                (seen.fabric, seen.source) = (joined.fabric, joined.source);
            }
            Ok(Some(Received::Messages(messages))) => {
                let left = args.count.map_or(usize::MAX, |count| (count - seen.messages) as usize);
                if !print(&mut seen, messages.into_iter().take(left), args.names, format)? {
                    break;
                }
            }
            // One that has ended has brought all that there was.
            Err(ClientError::Refused(refusal)) if !seen.source.is_empty() => {
                output::say(&refusal.message);
                break;
            }
            Ok(None) => break,
            Err(error) => return Err(error.into()),
        }
    }
    if format == Format::Json {
        let document = json!({
            "stream": args.name, "source": seen.source, "fabric": seen.fabric, "lost": seen.lost, "messages": seen.kept,
        });
        output::result(format, &document, "")?;
    }
    Ok(Exit::Done)
}

/// Prints messages, or keeps them for the document; gives whether a program still reads them.
fn print(
    seen: &mut Seen,
    messages: impl Iterator<Item = Message>,
    names: bool,
    format: Format,
) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    for message in messages {
        seen.messages += 1;
        seen.lost += message.lost;
        if format == Format::Json {
            let text = String::from_utf8_lossy(&message.payload);
            seen.kept.push(json!({
                "sender": message.sender, "number": message.number, "lost": message.lost, "text": text,
            }));
            continue;
        }
        if message.lost > 0 {
            let lost = output::counted(message.lost as usize, "message");
            output::say(&format!("{lost} before number {} of {} lost", message.number, message.sender));
        }
        let mut line = if names { format!("{}\t", message.sender).into_bytes() } else { Vec::new() };
        line.extend(message.payload);
        line.push(b'\n');
        match stdout.write_all(&line) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(false),
            written => written.map_err(|error| Failure::unexpected(format!("cannot write: {error}")))?,
        }
    }
    match stdout.flush() {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        _ => Ok(true),
    }
}

async fn list(local: &LocalArgs, format: Format) -> Result<Exit, Failure> {
    let streams = connect(local).await?.streams().await?;
    let mut text = String::new();
    let document: Vec<Value> = streams
        .iter()
        .map(|stream| {
            let fabric = if stream.fabric.is_empty() { "no path" } else { &stream.fabric };
            let receivers = output::counted(stream.receivers.len(), "receiver");
            let shared = if stream.shared { " and all members" } else { "" };
            let _ = writeln!(text, "{:24}  from {}{shared}, {receivers}, {fabric}", stream.name, stream.source);
            let mut document = json!({
                "name": stream.name, "source": stream.source, "receivers": stream.receivers, "fabric": stream.fabric,
                "shared": stream.shared,
            });
            if let Some(sent) = &stream.sent {
                document["sent"] = json!({
                    "messages": sent.messages, "unheard": sent.unheard, "failed": sent.failed,
                });
            }
            if let Some(heard) = &stream.heard {
                document["heard"] = json!({
                    "messages": heard.messages, "lost": heard.lost, "late": heard.late, "refused": heard.refused,
                });
            }
            document
        })
        .collect();
    output::result(format, &document, if text.is_empty() { "no streams" } else { &text })?;
    Ok(Exit::Done)
}
