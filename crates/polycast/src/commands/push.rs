//! `polycast push`: an object to machines that have nothing of Polycast but a secure shell.
//!
//! A program goes to each of them once and is kept there under its hash. Then all run `polycast accept`,
//! and get the object as from `polycast offer`.

mod program;
mod remote;

use super::ends::{self, Ends, Offer};
use super::network;
use crate::args::PushArgs;
use crate::args::place::ChoiceArgs;
use crate::cancel;
use crate::exit::{Exit, Failure};
use crate::hostlist;
use crate::object::{self, Reading};
use crate::output::{self, Format};
use crate::progress::Progress;
use polycast_agent::transfer::{Change, OfferCode, Steering};
use polycast_api::error::Kind;
use polycast_types::Printable;
use program::Programs;
pub(super) use program::{Program, check_machine};
pub(super) use remote::{MARK, last_words, quoted};
use remote::{Session, Shell};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Variable in which Slurm says which hosts a job has.
pub(super) const JOB_HOSTS: &str = "SLURM_JOB_NODELIST";

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
    let programs = Programs::open(args.program.as_deref())?;
    let shell = Shell::of(args)?;
    let mut object = Some(object::open_chosen(&choice, Reading::AsItIs)?);
    let cancelled = cancel::on_signals()?;
    let (mut sessions, failures) = reach(args, &target, (&shell, &programs))?;
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
    let (code, mut port) = (OfferCode::drawn(), None);
    let interface = network::interface(&args.network)?;
    object::deliver_unchanged(
        args.read.retry_changed,
        || object.take().map_or_else(|| object::open_chosen(&choice, Reading::AsItIs), Ok),
        |object, left| {
            let offer = Offer {
                interface: &interface,
                rate: args.rate,
                port: args.port,
                again: left > 0,
                code: &code,
            };
            ends::deliver(&offer, object, &target.hosts, (&mut sessions, &failures), &mut port)?
                .conclude(format)
        },
    )
}

/// Opens a shell on each of them, some at a time, and brings the program where it is not.
fn reach(
    args: &PushArgs,
    target: &Target,
    (shell, programs): (&Shell, &Programs),
) -> Result<Reached, Failure> {
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
                        false => Session::open(shell, programs, (host, &target.login(host), &target.path)),
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

impl Ends for Vec<Session> {
    fn hosts(&self) -> Vec<String> {
        self.iter().map(|session| session.host.clone()).collect()
    }

    fn begin(&mut self, address: SocketAddr, code: &str, steering: &Arc<Steering>) {
        for session in self.iter_mut() {
            // One that has ended without having come is not waited for.
            let (steering, host) = (Arc::clone(steering), session.host.clone());
            session.begin(address, code, move || steering.change(Change::Fewer(host)));
        }
    }

    fn end(&mut self, host: &str) -> Result<PathBuf, String> {
        let session = self.iter_mut().find(|session| session.host == host);
        session.map_or_else(|| Err("it was not reached".into()), Session::end)
    }
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
