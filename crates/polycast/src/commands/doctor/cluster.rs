//! Checks that a machine of a cluster needs besides.

use super::{Check, checks};
use crate::args::cluster::LocalArgs;
use crate::commands::cluster;
use crate::exit::without_numbers;
use crate::output;
use polycast_api::error::Kind;
use polycast_types::Printable;
use std::path::Path;

/// Looks at the kernel, and at the agent and its manager.
pub(super) fn look(local: &LocalArgs, found: &mut Vec<Check>) {
    kernel(found);
    service(local, found);
}

/// Checks the capabilities of this build and the kernel.
fn kernel(found: &mut Vec<Check>) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let missing = polycast_net::bpf::missing();
    found.push(match missing.first() {
        None => {
            Check::ok("kernel", format!("Linux {release}; this build has the programs of label switches"))
        }
        Some((program, reason)) => Check::warning(
            "kernel",
            format!("Linux {release}; this build lacks {program}: {reason}"),
            "label switches and the kernel's caching nodes do not run here; everything else does",
            "run them on another machine",
        ),
    });
}

/// The agent and its manager, if there are any.
fn service(local: &LocalArgs, found: &mut Vec<Check>) {
    let asked = cluster::runtime().and_then(|runtime| {
        runtime.block_on(async {
            let agent = cluster::connect(local).await?;
            // Without a manager there is only the agent to look at.
            Ok((agent.status().await?, agent.manager_status().await.ok()))
        })
    });
    let (status, nodes) = match asked {
        Ok((status, manager)) => (status, manager.map_or_else(Vec::new, |(_, manager)| manager.agents)),
        Err(failure) if failure.kind == Kind::Version.name() => {
            const COST: &str = "no command gets an answer from it";
            found.push(Check::failed("agent", failure.message, COST, SAME_VERSION));
            return;
        }
        Err(failure) => {
            found.push(Check::skipped("agent", format!("{} (offer and accept need none)", failure.message)));
            return;
        }
    };
    let name = &status.agent_name;
    found.push(Check::ok("agent", format!("{name} on {}, store {}", status.interface_address, status.store)));
    if !status.store.starts_with(checks::MEMORY) {
        checks::store(Path::new(&status.store), found);
    }
    found.push(if status.manager_connected {
        let others = status.peers.iter().filter(|peer| peer.name != *name).count();
        let others = output::counted(others, "other agent");
        Check::ok("manager", format!("{}, {others}", status.manager_address))
    } else {
        Check::failed(
            "manager",
            format!(
                "{}: {}",
                status.manager_address,
                Printable(&without_numbers(status.manager_error.clone()))
            ),
            "nothing can be sent from here",
            mend(&status.manager_error),
        )
    });
    found.extend(status.clock_ahead_s.map(clock));
    found.extend(versions(nodes.into_iter().filter_map(|node| Some((node.name, node.node?.version)))));
}

const SAME_VERSION: &str = "install the same version on all machines, first on the manager's";
/// Clocks that differ by more are not kept right by anything: those that are differ by milliseconds, and a
/// question to the manager takes up to a second.
const CLOCKS_DIFFER_S: u64 = 5;

/// The machine's clock, beside the manager's.
fn clock(ahead_s: i64) -> Check {
    const NAME: &str = "clock";
    let by = ahead_s.unsigned_abs();
    if by <= CLOCKS_DIFFER_S {
        return Check::ok(NAME, "the manager has the same time");
    }
    let side = if ahead_s > 0 { "ahead of" } else { "behind" };
    Check::warning(
        NAME,
        format!("{by} s {side} the manager's"),
        "certificates count as expired or as not valid yet when it differs by more, and logs do not fit together",
        "set the clocks of both machines (`timedatectl set-ntp true`)",
    )
}

/// Programs of the machines, by their names; nothing where none is known.
fn versions(nodes: impl Iterator<Item = (String, String)>) -> Option<Check> {
    const NAME: &str = "versions";
    let own = env!("CARGO_PKG_VERSION");
    let (same, others): (Vec<_>, Vec<_>) = nodes.partition(|(_, version)| version == own);
    if others.is_empty() {
        return (!same.is_empty()).then(|| Check::ok(NAME, format!("all machines have {own}")));
    }
    let mut named: Vec<String> = others
        .iter()
        .take(NAMED_MAX)
        .map(|(name, version)| format!("{} has {}", Printable(name), Printable(version)))
        .collect();
    if others.len() > NAMED_MAX {
        named.push(format!("{} more", others.len() - NAMED_MAX));
    }
    Some(Check::warning(
        NAME,
        format!("this program has {own}, and {}", named.join(", ")),
        "what only the newer one can do fails, and says so",
        SAME_VERSION,
    ))
}

/// Machines that are named.
const NAMED_MAX: usize = 8;

/// Returns the remedy for a manager that is away, by the error that an agent reports.
fn mend(manager_error: &str) -> &'static str {
    // A manager that answers, and cannot lead: it says why.
    if manager_error.contains("etcd") {
        "make etcd answer and take changes, as it says (polycast manager --check, with the manager's own settings, asks each server)"
    } else if manager_error.contains("clock") {
        "set the clocks of both machines (`timedatectl set-ntp true`): a certificate is valid for a time"
    } else if manager_error.contains("version") {
        SAME_VERSION
    } else if manager_error.contains("certificate") || manager_error.contains(" key") {
        "do what it says: the manager answers, and does not let this agent in"
    } else {
        "start it (polycast manager), and let its TCP port through"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Verdict;

    #[test]
    fn a_manager_that_cannot_lead_is_not_to_be_started() {
        assert!(mend("no manager leads now: etcd's database is full: 9 of 9").starts_with("make etcd"));
        assert!(mend("Connection refused (os error 111)").starts_with("start it"));
        assert!(
            mend("it is valid from 1 on, and by the clock of this machine it is 0").starts_with("set the")
        );
        assert!(mend("the peer speaks protocol version 9").starts_with("install the same"));
        assert!(mend("the other end has another key or code").starts_with("do what it says"));
    }

    #[test]
    fn a_clock_that_differs_is_named_and_so_is_by_how_much() {
        assert_eq!(clock(-5).verdict, Verdict::Ok);
        for (ahead_s, words) in [(6, "6 s ahead of"), (-7_200, "7200 s behind")] {
            let check = clock(ahead_s);
            assert!(check.verdict == Verdict::Warning && check.found.contains(words), "{check:?}");
        }
    }

    #[test]
    fn machines_of_other_versions_are_named() {
        let of = |all: &[&str]| {
            let named = all.iter().enumerate();
            versions(named.map(|(at, version)| (format!("gpu{at}"), (*version).to_string())))
        };
        let own = env!("CARGO_PKG_VERSION");
        assert!(of(&[]).is_none());
        assert_eq!(of(&[own, own]).unwrap().verdict, Verdict::Ok);
        let check = of(&[own, "0.0.9"]).unwrap();
        assert!(
            check.verdict == Verdict::Warning && check.found.ends_with("and gpu1 has 0.0.9"),
            "{check:?}"
        );
        assert!(of(&["0.0.9"; 10]).unwrap().found.ends_with("gpu7 has 0.0.9, 2 more"));
    }
}
