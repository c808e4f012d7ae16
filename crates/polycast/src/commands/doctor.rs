//! `polycast doctor`: what of this host and its network keeps transfers from being fast, or from being at
//! all.

mod checks;
#[cfg(feature = "cluster")]
mod cluster;
mod igmp;
mod reach;

use super::network;
use crate::args::DoctorArgs;
use crate::cancel;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use crate::reference;
use crate::screen::Tone;
use polycast_net::interface::{self, Link};
use polycast_net::reach::Answerer;
use polycast_types::Printable;
use serde::Serialize;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Verdict of one check.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// As it should be.
    Ok,
    /// It works, and costs something.
    Warning,
    /// Something cannot work.
    Failed,
    /// It was not looked at.
    Skipped,
}

/// One thing that was looked at.
#[derive(Serialize, Debug)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    /// State that was found.
    found: String,
    /// Cost of this state; empty where there is none.
    #[serde(skip_serializing_if = "str::is_empty")]
    cost: &'static str,
    /// Remedy.
    #[serde(skip_serializing_if = "String::is_empty")]
    mend: String,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Check { name, verdict: Verdict::Ok, found: found.into(), cost: "", mend: String::new() }
    }

    fn skipped(name: &'static str, found: impl Into<String>) -> Self {
        Check { verdict: Verdict::Skipped, ..Check::ok(name, found) }
    }

    fn warning(
        name: &'static str,
        found: impl Into<String>,
        cost: &'static str,
        mend: impl Into<String>,
    ) -> Self {
        Check { verdict: Verdict::Warning, cost, mend: mend.into(), ..Check::ok(name, found) }
    }

    fn failed(
        name: &'static str,
        found: impl Into<String>,
        cost: &'static str,
        mend: impl Into<String>,
    ) -> Self {
        Check { verdict: Verdict::Failed, ..Check::warning(name, found, cost, mend) }
    }

    fn write(&self, text: &mut String) {
        let mark = match self.verdict {
            Verdict::Ok => Tone::Good.of_result("ok   "),
            Verdict::Warning => Tone::Poor.of_result("warn "),
            Verdict::Failed => Tone::Bad.of_result("FAIL "),
            Verdict::Skipped => "-    ".to_string(),
        };
        let _ = writeln!(text, "{mark}{:<11}{}", self.name, Printable(&self.found));
        for (word, line) in [("costs", self.cost), ("mend", &self.mend)] {
            if !line.is_empty() {
                let _ = writeln!(text, "{:16}{word}: {line}", "");
            }
        }
    }
}

/// Results of all checks.
#[derive(Serialize, Debug)]
struct Findings {
    version: &'static str,
    /// Version of the descriptions of documents: the name `version` was taken.
    document_version: u32,
    checks: Vec<Check>,
    /// The way that objects take in this network, in a sentence.
    way: Option<String>,
    /// Nothing has failed.
    ok: bool,
}

impl Findings {
    fn text(&self) -> String {
        let mut text = String::new();
        self.checks.iter().for_each(|check| check.write(&mut text));
        if let Some(way) = &self.way {
            let _ = writeln!(text, "{way}");
        }
        let count = |verdict| self.checks.iter().filter(|check| check.verdict == verdict).count();
        let (failed, warnings) = (count(Verdict::Failed), count(Verdict::Warning));
        let _ = match (failed, warnings) {
            (0, 0) => write!(text, "nothing is wrong here"),
            _ => write!(
                text,
                "{}, {}",
                output::counted(failed, "failure"),
                output::counted(warnings, "warning")
            ),
        };
        text
    }
}

/// Looks at everything, or answers hosts that do.
pub(super) fn run(args: &DoctorArgs, format: Format) -> Result<Exit, Failure> {
    args.to.iter().try_for_each(|text| network::refuse_without_brackets(text))?;
    let devices = interface::survey()
        .map_err(|error| Failure::unexpected(format!("cannot list the interfaces: {error}")))?;
    let mut checks = Vec::new();
    let used = checks::interface(&devices, args.network.interface.as_deref(), &mut checks);
    if args.listen {
        let used = used.ok_or_else(|| cannot_listen(&checks))?;
        return listen(used.address, &used.name);
    }
    let mut way = None;
    if let Some(used) = used {
        checks::ports(used.address, &mut checks);
        let (seen, querier) = reach::look(&used, args, &mut checks);
        igmp::look(&used, &seen, querier, &mut checks);
        way = Some(seen.text());
    } else {
        checks.push(Check::skipped("multicast", "there is no interface for it"));
    }
    checks::buffers(&mut checks);
    checks::files(&mut checks);
    checks::store(Path::new(checks::MEMORY), &mut checks);
    #[cfg(feature = "cluster")]
    cluster::look(&args.local, &mut checks);
    let ok = checks.iter().all(|check| check.verdict != Verdict::Failed);
    let (version, document_version) = (env!("CARGO_PKG_VERSION"), reference::VERSION);
    let findings = Findings { version, document_version, checks, way, ok };
    output::result(format, &findings, &findings.text())?;
    Ok(if findings.ok { Exit::Done } else { Exit::Failed })
}

fn cannot_listen(checks: &[Check]) -> Failure {
    let why = checks.iter().find(|check| check.verdict == Verdict::Failed);
    let why = why.map_or("there is no interface", |check| check.found.as_str());
    Failure::input(format!("cannot listen: {why}"))
}

/// Answers until the user ends it.
fn listen(address: IpAddr, name: &str) -> Result<Exit, Failure> {
    let cancel = cancel::on_signals()?;
    let answerer = Answerer::open(address, &network::machine_name())
        .map_err(|error| Failure::input(format!("cannot listen on {name} ({address}): {error}")))?;
    output::say(&format!(
        "{} answers on {name} ({address}) until Ctrl-C; now run `polycast doctor` on other machines",
        network::machine_name()
    ));
    let mut heard =
        |from: std::net::SocketAddr, len: usize| output::say(&format!("{from} asks with {len} bytes"));
    answerer.run(&|| cancel.load(Ordering::Relaxed), &mut heard);
    Ok(Exit::Done)
}

/// The other interfaces, for a sentence.
fn others(devices: &[Link], used: &str) -> String {
    let named =
        devices.iter().filter(|device| device.name != used && !device.is_loopback).map(|device| {
            match (device.addresses.is_empty(), device.is_up) {
                (_, false) => format!("{} (off)", device.name),
                (false, true) => format!("{} ({})", device.name, device.addresses_text()),
                (true, true) => format!("{} (no address)", device.name),
            }
        });
    named.collect::<Vec<_>>().join(", ")
}
