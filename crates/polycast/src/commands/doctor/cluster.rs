//! Checks that a machine of a cluster needs besides.

use super::{Check, checks};
use crate::args::cluster::LocalArgs;
use crate::commands::cluster;
use crate::exit::without_numbers;
use crate::output;
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
    let asked = cluster::runtime()
        .and_then(|runtime| runtime.block_on(async { Ok(cluster::connect(local).await?.status().await?) }));
    let status = match asked {
        Ok(status) => status,
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
}

/// Returns the remedy for a manager that is away, by the error that an agent reports.
fn mend(manager_error: &str) -> &'static str {
    // A manager that answers, and cannot lead: it says why.
    if manager_error.contains("etcd") {
        "make etcd answer and take changes, as it says (polycast manager --check, with the manager's own settings, asks each server)"
    } else {
        "start it (polycast manager), and let its TCP port through"
    }
}

#[cfg(test)]
mod tests {
    use super::mend;

    #[test]
    fn a_manager_that_cannot_lead_is_not_to_be_started() {
        assert!(mend("no manager leads now: etcd's database is full: 9 of 9").starts_with("make etcd"));
        assert!(mend("Connection refused (os error 111)").starts_with("start it"));
    }
}
