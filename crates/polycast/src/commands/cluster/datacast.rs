//! `polycast datacast`: a file of one host to others, asked for at any of them.
//!
//! No agent reads a file because another host asks for it: shells are opened on the hosts, and the accounts
//! that they lead to send there, and copy out of the store there. What those may not do is not done.

use super::super::push::{last_words, quoted};
use super::{connect, runtime};
use crate::args::cluster::datacast::DatacastArgs;
use crate::args::cluster::local::{Destinations, LocalArgs};
use crate::exit::{Exit, Failure, plain};
use crate::output::{self, Format};
use polycast_api::error::Kind;
use polycast_types::Printable;
use serde_json::{Value, json};
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::thread;

/// Shells that are open at the same time.
const SHELLS_MAX: usize = 32;
/// A host that is slower to answer is not reached.
const CONNECT_WITHIN_S: u32 = 10;
/// Bytes of a document that a far end may print.
const DOCUMENT_MAX: u64 = 64 << 20;

/// Runs it.
pub(super) fn run(args: &DatacastArgs, format: Format) -> Result<Exit, Failure> {
    let (user, host, path) = read_source(&args.source)?;
    let ends = Ends { args, user, own: own_name(&args.local)? };
    let mut report = ends.ask(host, &send_words(args, path))?;
    if report["receivers"].is_array() && args.out.is_some() {
        ends.copy_out(&mut report)?;
    }
    let Some(document) = report.as_object_mut().filter(|report| report.contains_key("receivers")) else {
        return Err(Failure::unexpected(format!("'{}' has not said who received it", Printable(host))));
    };
    document.insert("source".into(), json!(host));
    output::result(format, &report, &lines(host, &report))?;
    let has_all = |receiver: &Value| receiver["verified"] == true && !receiver["error"].is_string();
    let all = report["receivers"].as_array().is_some_and(|receivers| receivers.iter().all(has_all));
    Ok(if all { Exit::Done } else { Exit::Failed })
}

/// Reads `[USER@]HOST:PATH`.
fn read_source(text: &str) -> Result<(Option<&str>, &str, &str), Failure> {
    let hint = "write HOST:PATH, such as host3:/data/model.bin";
    let (place, path) = text.split_once(':').filter(|(_, path)| !path.is_empty()).ok_or_else(|| {
        Failure::input(format!("'{}' does not say which file of which host", Printable(text))).hint(hint)
    })?;
    let (user, host) = match place.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, place),
    };
    match [Some(host), user].into_iter().flatten().find(|name| !is_host(name)) {
        Some(odd) => {
            let message = format!("'{}' is not the name of a host or a user", Printable(odd));
            Err(Failure::input(message).hint(hint))
        }
        None => Ok((user, host, path)),
    }
}

/// Returns true for a name that a shell's command takes for no option.
fn is_host(name: &str) -> bool {
    let odd = |letter: char| letter.is_whitespace() || letter.is_control();
    !name.is_empty() && !name.starts_with('-') && !name.contains(odd)
}

/// The name of this machine's agent; without an agent all is done by shells.
fn own_name(local: &LocalArgs) -> Result<Option<String>, Failure> {
    runtime()?.block_on(async {
        match connect(local).await {
            Ok(client) => Ok(Some(client.status().await?.agent_name)),
            Err(_) if local.socket.is_none() => Ok(None),
            Err(failure) => Err(failure),
        }
    })
}

fn send_words(args: &DatacastArgs, path: &str) -> Vec<String> {
    let to = match &args.to {
        Destinations::All => "all".to_string(),
        Destinations::Named(names) => names.join(","),
    };
    // A path that begins with a dash is no option.
    let path = if path.starts_with('-') { format!("./{path}") } else { path.to_string() };
    let mut words = vec!["send".into(), path, format!("--to={to}"), format!("--fabric={}", args.fabric)];
    words.extend(args.or_fail.then(|| "--or-fail".into()));
    if let Some(timeout) = args.timeout {
        words.push(format!("--timeout={}ms", timeout.as_millis()));
    }
    words
}

/// The hosts, and the way to them.
struct Ends<'a> {
    args: &'a DatacastArgs,
    user: Option<&'a str>,
    own: Option<String>,
}

impl Ends<'_> {
    fn command(&self, host: &str, words: &[String]) -> Result<Command, Failure> {
        if self.own.as_deref() == Some(host) {
            let program = std::env::current_exe();
            let program = program.map_err(|error| Failure::unexpected(plain(&error)))?;
            let mut command = Command::new(program);
            command.args(words).args(["--json", "--quiet"]);
            if let Some(socket) = &self.args.local.socket {
                command.arg("--socket").arg(socket);
            }
            return Ok(command);
        }
        let mut ssh = self.args.ssh.split_whitespace();
        let first = ssh.next();
        let first = first.ok_or_else(|| Failure::input("--ssh needs a command, such as 'ssh -p 2222'"))?;
        let login = self.user.map_or_else(|| host.to_string(), |user| format!("{user}@{host}"));
        let said: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let script = format!("exec {} {} --json --quiet", quoted(&self.args.program), said.join(" "));
        let mut command = Command::new(first);
        // A question for each of many hosts would wait for its answer.
        command.args(ssh).args(["-o", "BatchMode=yes", "-o", &format!("ConnectTimeout={CONNECT_WITHIN_S}")]);
        // The user's shell may be another one.
        command.arg(login).arg(format!("exec sh -c {}", quoted(&script)));
        Ok(command)
    }

    /// Runs this program with these words on a host; gives the document that it prints.
    fn ask(&self, host: &str, words: &[String]) -> Result<Value, Failure> {
        let mut command = self.command(host, words)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let shown = Printable(host).to_string();
        let mut child = command.spawn().map_err(|error| {
            let program = command.get_program().to_string_lossy().into_owned();
            Failure::input(format!("cannot run '{}': {}", Printable(&program), plain(&error)))
        })?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let errors = stderr.map(|stderr| thread::spawn(move || last_words(stderr)));
        let mut text = String::new();
        // Where that fails, the document is not whole.
        let _ = stdout.map(|stdout| stdout.take(DOCUMENT_MAX).read_to_string(&mut text));
        let status = child.wait().map_err(|error| Failure::unexpected(plain(&error)))?;
        let said = errors.and_then(|errors| errors.join().ok()).unwrap_or_default();
        // A login may print other things before.
        let at = if text.starts_with('{') { Some(0) } else { text.find("\n{").map(|at| at + 1) };
        let document: Value = at.and_then(|at| serde_json::from_str(&text[at..]).ok()).unwrap_or_default();
        match document["error"].as_str() {
            Some(error) => {
                let kind = document["kind"].as_str().and_then(Kind::from_name).unwrap_or(Kind::Internal);
                Err(Failure::of(kind, format!("{shown}: {}", Printable(error))))
            }
            None if document.is_object() => Ok(document),
            None => {
                let why = if said.is_empty() { format!("its shell has ended: {status}") } else { said };
                Err(Failure::of(Kind::ReceiverUnknown, format!("{shown}: {}", Printable(&why))))
            }
        }
    }

    /// Copies the object out of the store of each receiver that has it; notes where, or why not.
    fn copy_out(&self, report: &mut Value) -> Result<(), Failure> {
        let Some(object) = report["object"].as_str().map(str::to_string) else {
            return Err(Failure::unexpected("the source has not said which object it has sent"));
        };
        let out = self.args.out.clone().unwrap_or_default();
        let mut words = vec!["get".into(), object, format!("--into={out}")];
        words.extend(self.args.force.then(|| "--force".into()));
        words.extend(self.args.update.then(|| "--update".into()));
        let mut receivers: Vec<&mut Value> = match report["receivers"].as_array_mut() {
            Some(receivers) => receivers.iter_mut().filter(|receiver| receiver["verified"] == true).collect(),
            None => Vec::new(),
        };
        for some in receivers.chunks_mut(SHELLS_MAX) {
            thread::scope(|scope| {
                for receiver in some {
                    scope.spawn(|| self.copy_at(receiver, &words));
                }
            });
        }
        Ok(())
    }

    fn copy_at(&self, receiver: &mut Value, words: &[String]) {
        let name = receiver["name"].as_str().unwrap_or_default().to_string();
        // The source's words are not believed where a shell would take them for its own.
        let asked = match &self.args.to {
            Destinations::All => true,
            Destinations::Named(names) => names.contains(&name),
        };
        let copied = match asked && is_host(&name) {
            true => self.ask(&name, words),
            false => Err(Failure::input("it was not asked for, and nothing is copied there")),
        };
        match copied {
            Ok(document) => receiver["path"] = document["path"].clone(),
            Err(Failure { message, kind, .. }) => {
                (receiver["error"], receiver["kind"]) = (json!(message), json!(kind));
            }
        }
    }
}

/// A line for each receiver, and one for all.
fn lines(host: &str, report: &Value) -> String {
    let receivers = report["receivers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| Printable(value.as_str().unwrap_or_default()).to_string();
    let mut lines: Vec<String> = receivers
        .iter()
        .map(|receiver| {
            let why = ["error", "reason"].map(|field| &receiver[field]);
            let what = match why.into_iter().find(|why| why.is_string()) {
                _ if receiver["path"].is_string() => text(&receiver["path"]),
                Some(why) if receiver["verified"] != true || *why == receiver["error"] => {
                    format!("failed: {}", text(why))
                }
                _ if receiver["verified"] == true => "verified".to_string(),
                _ => "failed".to_string(),
            };
            format!("{:24}  {what}", text(&receiver["name"]))
        })
        .collect();
    let verified = receivers.iter().filter(|receiver| receiver["verified"] == true).count();
    let of = output::counted(receivers.len(), "receiver");
    let from = Printable(host);
    lines.push(format!("from {from} over {}: {verified} of {of} verified", text(&report["fabric"])));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_host_and_a_path() {
        assert_eq!(read_source("host3:/data/x").unwrap(), (None, "host3", "/data/x"));
        assert_eq!(read_source("me@host3:a:b").unwrap(), (Some("me"), "host3", "a:b"));
        for wrong in ["host3", "host3:", ":/data", "-oProxyCommand=x:/data", "a b:/data", "-x@host:/data"] {
            assert!(read_source(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_receiver_has_a_line() {
        let receivers = json!([
            { "name": "b", "verified": true, "path": "/data/x" }, { "name": "c", "verified": true },
            { "name": "d", "verified": false, "reason": "it is cut off" },
        ]);
        let text = lines("a", &json!({ "fabric": "datacast", "receivers": receivers }));
        let rest: Vec<&str> = text.lines().map(|line| line.trim_end()).collect();
        assert!(rest[0].ends_with("  /data/x") && rest[1].ends_with("  verified"), "{text}");
        assert!(rest[2].ends_with("  failed: it is cut off"), "{text}");
        assert_eq!(rest[3], "from a over datacast: 2 of 3 receivers verified");
    }
}
