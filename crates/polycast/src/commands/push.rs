//! `polycast push`: an object to machines that have nothing of Polycast but a secure shell.
//!
//! This program goes to each of them once and is kept there under its hash. Then all run `polycast accept`,
//! and get the object as from `polycast offer`.

mod remote;

use super::network::{self, OFFER_PORT};
use crate::args::PushArgs;
use crate::args::place::ChoiceArgs;
use crate::cancel;
use crate::exit::{Exit, Failure};
use crate::hostlist;
use crate::object::{self, Named, Reading};
use crate::output::{self, Format};
use crate::progress::Progress;
use crate::report::{self, Copies};
use polycast_agent::transfer::{
    self, Change, Listen, OfferCode, Options, Path, Receivers, Report, Sealing, SlowPolicy, SourceSpec,
    Steering,
};
use polycast_api::error::Kind;
use polycast_api::report::{Delivery, ReceiverReport};
use polycast_types::{Duration, Printable};
use remote::{Program, Session, Shell};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Time for machines that were reached to begin: they only have to find this one.
const BEGIN_WITHIN: Duration = Duration::from_secs(30);
/// Variable in which Slurm says which hosts a job has.
const JOB_HOSTS: &str = "SLURM_JOB_NODELIST";

/// Machines, and the place on each.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    /// User on all of them, where one is named.
    user: Option<String>,
    hosts: Vec<String>,
    /// Path on each of them; empty is the user's own folder.
    path: String,
}

impl Target {
    /// Reads `[USER@]HOSTS:[PATH]`.
    fn read(text: &str, job_hosts: Option<&str>) -> Result<Self, Failure> {
        let mut depth = 0_u32;
        let colon = text.char_indices().find(|(_, letter)| {
            match letter {
                '[' => depth += 1,
                ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            *letter == ':' && depth == 0
        });
        let Some((at, _)) = colon else {
            let message =
                format!("'{text}' does not say where to: write HOSTS:PATH, such as 'gpu[01-32]:/data/'");
            return Err(Failure::input(message));
        };
        let (place, path) = (&text[..at], &text[at + 1..]);
        let (user, list) = match place.rsplit_once('@') {
            Some((user, list)) => (Some(user), list),
            None => (None, place),
        };
        let list = match (list, job_hosts) {
            ("", Some(job)) => job,
            ("", None) => {
                let message = format!("'{text}' names no host, and {JOB_HOSTS} is not set");
                return Err(Failure::input(message).hint("write HOSTS:PATH, such as 'gpu[01-32]:/data/'"));
            }
            (list, _) => list,
        };
        let hosts = hostlist::expand(list).map_err(Failure::input)?;
        let odd =
            |name: &&str| name.is_empty() || name.starts_with('-') || name.chars().any(char::is_whitespace);
        if let Some(odd) = hosts.iter().map(String::as_str).chain(user).find(odd) {
            return Err(Failure::input(format!("'{odd}' is not the name of a host or a user")));
        }
        Ok(Target { user: user.map(str::to_string), hosts, path: path.to_string() })
    }

    /// The word that leads a secure shell there.
    fn login(&self, host: &str) -> String {
        self.user.as_ref().map_or_else(|| host.to_string(), |user| format!("{user}@{host}"))
    }
}

/// Splits the words into the object and the place for it.
fn split(args: &PushArgs) -> Result<(ChoiceArgs, String), Failure> {
    let wrong = |text: &str| {
        let hint = "polycast push FILE.. HOSTS:PATH, such as: polycast push model.bin 'gpu[01-32]:/data/'";
        Failure::input(text).hint(hint)
    };
    let (target, paths) = match args.words.split_last() {
        Some((target, paths)) if !paths.is_empty() => (target, paths),
        _ => return Err(wrong("what to deliver and where to are both needed")),
    };
    let target = target.to_str().ok_or_else(|| wrong("the hosts are not text"))?;
    let read = args.read.clone();
    let choice = ChoiceArgs { paths: paths.to_vec(), exclude: args.exclude.clone(), name: None, read };
    Ok((choice, target.to_string()))
}

/// Machines that were reached, and those that were not, with the reasons.
type Reached = (Vec<Session>, Vec<(String, String)>);

/// Reaches the machines and delivers to them.
pub(super) fn run(args: &PushArgs, format: Format) -> Result<Exit, Failure> {
    let job_hosts = std::env::var(JOB_HOSTS).ok();
    let (choice, target) = split(args)?;
    let target = Target::read(&target, job_hosts.as_deref())?;
    let program = Program::open(args.program.as_deref())?;
    let shell = Shell::of(args, &program)?;
    let mut object = Some(object::open_chosen(&choice, Reading::AsItIs)?);
    let cancelled = cancel::on_signals()?;
    let (mut sessions, failures) = reach(args, &target, (&shell, &program))?;
    if cancelled.load(Ordering::Relaxed) {
        return Err(Failure::cancelled());
    }
    if sessions.is_empty() {
        for (host, why) in &failures {
            output::say(&format!("error: {} failed: {}", Printable(host), Printable(why)));
        }
        let message = format!("none of {} was reached", output::counted(failures.len(), "host"));
        return Err(Failure::of(Kind::ReceiverUnknown, message));
    }
    let code = OfferCode::drawn();
    let mut port = None;
    object::deliver_unchanged(
        args.read.retry_changed,
        || object.take().map_or_else(|| object::open_chosen(&choice, Reading::AsItIs), Ok),
        |object, left| {
            let ends = (&target.hosts[..], &mut sessions[..], &failures[..]);
            deliver(args, object, ends, (&code, left > 0, &mut port), format)
        },
    )
}

/// Opens a shell on each of them, some at a time, and brings the program where it is not.
fn reach(args: &PushArgs, target: &Target, (shell, program): (&Shell, &Program)) -> Result<Reached, Failure> {
    let progress = Progress::start("reaching the hosts");
    let (next, (sender, answers)) = (AtomicUsize::new(0), std::sync::mpsc::channel());
    let (mut sessions, mut failures) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.min(target.hosts.len()) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some(host) = target.hosts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let reached = match cancel::is_asked() {
                        true => Err("cancelled".to_string()),
                        false => Session::open(shell, program, (host, &target.login(host), &target.path)),
                    };
                    // It is waited for below.
                    let _ = sender.send((host, reached));
                }
            });
        }
        drop(sender);
        for (host, reached) in answers {
            match reached {
                Ok(session) => sessions.push(session),
                Err(why) => failures.push((host.clone(), why)),
            }
            progress.state(&format!("reached {} of {} hosts", sessions.len(), target.hosts.len()));
        }
    });
    progress.finish();
    Ok((sessions, failures))
}

/// Delivers to the machines that were reached.
fn deliver(
    args: &PushArgs,
    object: Named,
    (hosts, sessions, failures): (&[String], &mut [Session], &[(String, String)]),
    (code, again, port): (&OfferCode, bool, &mut Option<u16>),
    format: Format,
) -> Result<Exit, Failure> {
    let name = object.name.clone();
    let mut report = offer(args, object, sessions, (code, again, port))?;
    let mut copies = Copies::new();
    for session in sessions.iter_mut() {
        let receiver = report.receivers.iter_mut().find(|receiver| receiver.name == session.host);
        match (session.end(), receiver) {
            (Ok(path), Some(receiver)) if receiver.verified => {
                drop(copies.insert(session.host.clone(), path))
            }
            // It knows why it has not come.
            (Err(why), Some(receiver)) if !receiver.verified => {
                receiver.kind.get_or_insert_with(|| Kind::TransferFailed.name().to_string());
                receiver.error = Some(why);
            }
            (Err(why), None) => report.receivers.push(failed(&session.host, why)),
            _ => {}
        }
    }
    // Those are the ones that were counted and did not come, under names of their own.
    report.receivers.retain(|receiver| sessions.iter().any(|session| session.host == receiver.name));
    report.receivers.extend(failures.iter().map(|(host, why)| failed(host, why.clone())));
    report.receivers.sort_by_key(|receiver| hosts.iter().position(|host| *host == receiver.name));
    let delivery = Delivery::new(&name, report);
    output::result(format, &report::document(&delivery, &copies)?, &report::text(&delivery, &copies))?;
    Ok(report::complain(&delivery.report))
}

fn failed(host: &str, why: String) -> ReceiverReport {
    ReceiverReport { name: host.to_string(), fabric: "none".into(), ..ReceiverReport::default() }
        .failing(Some((Kind::ReceiverUnknown, why)))
}

fn offer(
    args: &PushArgs,
    object: Named,
    sessions: &mut [Session],
    (code, again, port): (&OfferCode, bool, &mut Option<u16>),
) -> Result<Report, Failure> {
    let interface = network::interface(&args.network)?;
    let steering: Arc<Steering> = Arc::default();
    let options = Options {
        join_timeout: BEGIN_WITHIN,
        listen: args.port.map_or(Listen::Rather(port.unwrap_or(OFFER_PORT)), Listen::At),
        again,
        code: Some(code.clone()),
        sealing: Sealing::ByCode,
        slow: SlowPolicy::SHIPPED,
        ..Options::default()
    };
    let spec = SourceSpec {
        object: network::fresh_object(),
        name: object.name,
        kind: object.kind,
        source: object.source,
        root: None,
        receivers: Receivers::Count(sessions.len()),
        location: polycast_types::Location::default(),
        interface: interface.address,
        path: Path::Multicast {
            group: network::fresh_group(interface.address),
            rate: args.rate,
            attempts: None,
            outer: Vec::new(),
        },
        options,
        cancel: cancel::on_signals()?,
        steering: Arc::clone(&steering),
    };
    let source = transfer::prepare(spec)?;
    let address = source.control_address();
    if port.replace(address.port()).is_none() {
        for session in sessions.iter_mut() {
            // One that has ended without having come is not waited for.
            let (steering, host) = (Arc::clone(&steering), session.host.clone());
            session.begin(address, &code.code().to_string(), move || steering.change(Change::Fewer(host)));
        }
    }
    let progress = Progress::start(&format!("waiting for {}", output::counted(sessions.len(), "host")));
    let outcome = source.run(&mut |report| {
        if report.receivers.iter().any(|receiver| receiver.seconds > 0.0 || receiver.verified) {
            progress.delivery(report);
        }
    });
    progress.finish();
    Ok(outcome?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_names_hosts_and_a_path() {
        let read = |text: &str| Target::read(text, Some("node[1-2]"));
        let target = |user: Option<&str>, hosts: &[&str], path: &str| Target {
            user: user.map(str::to_string),
            hosts: hosts.iter().map(ToString::to_string).collect(),
            path: path.to_string(),
        };
        assert_eq!(read("gpu[01-02]:/data/").unwrap(), target(None, &["gpu01", "gpu02"], "/data/"));
        assert_eq!(read("root@a,b:").unwrap(), target(Some("root"), &["a", "b"], ""));
        assert_eq!(read("a:x:y").unwrap(), target(None, &["a"], "x:y"));
        assert_eq!(read(":/tmp").unwrap(), target(None, &["node1", "node2"], "/tmp"));
        assert_eq!(read("u@:/tmp").unwrap().login("node1"), "u@node1");
        for (wrong, words) in [
            ("gpu1", "HOSTS:PATH"),
            ("gpu[1-:x", "HOSTS:PATH"),
            ("-oProxyCommand=x:/y", "not the name"),
            ("a,-b:/y", "not the name"),
            ("@a:/y", "not the name"),
            ("a b:/y", "not the name"),
        ] {
            assert!(read(wrong).unwrap_err().message.contains(words), "{wrong}: {:?}", read(wrong));
        }
        assert!(Target::read(":/tmp", None).unwrap_err().message.contains(JOB_HOSTS));
    }
}
