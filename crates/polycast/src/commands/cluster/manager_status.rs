//! `polycast status --manager`: the manager, through the local agent.

use super::{connect, runtime};
use crate::args::cluster::LocalArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, Format};
use crate::report::seconds;
use polycast_api::documents::status_of_manager;
use polycast_api::manager::{EtcdServer, ExternalScheduler, Standby, StatusResponse};
use polycast_types::{Printable, format_bytes};
use std::fmt::Write as _;

/// `polycast status --manager`
pub(super) fn run(local: &LocalArgs, format: Format) -> Result<Exit, Failure> {
    let (address, status) = runtime()?.block_on(async {
        let asked: Result<_, Failure> = Ok(connect(local).await?.manager_status().await?);
        asked
    })?;
    output::result(format, &status_of_manager(&address, &status), &text(&address, &status))?;
    Ok(Exit::Done)
}

/// Names of the agents, for people.
fn names(status: &StatusResponse) -> String {
    const SHOWN_MAX: usize = 48;
    let names = status.agents.iter().take(SHOWN_MAX).map(|agent| Printable(&agent.name).to_string());
    let names: Vec<String> = names.collect();
    match status.agents.len() {
        0 => String::new(),
        all if all > SHOWN_MAX => format!(": {} and {} more", names.join(", "), all - SHOWN_MAX),
        _ => format!(": {}", names.join(", ")),
    }
}

/// Line about the external scheduler.
fn external_scheduler(external: &ExternalScheduler) -> String {
    let address = Printable(&external.address);
    match external.trouble.as_str() {
        "" => format!("scheduler  {address} decides before it\n"),
        why => format!("scheduler  {address} is not followed: {}\n", Printable(why)),
    }
}

/// Lines about the managers that stand by, and about etcd's servers.
fn standing(status: &StatusResponse) -> String {
    let mut text = String::new();
    if status.standbys.is_empty() && !status.etcd.is_empty() {
        text += "standby    none: if this manager ends, no new path is lent until a manager is back\n";
    }
    for Standby { address, program_version } in &status.standbys {
        let _ = writeln!(text, "standby    {}, version {}", Printable(address), Printable(program_version));
    }
    for EtcdServer { address, version, trouble } in &status.etcd {
        let address = Printable(address);
        let _ = match trouble.as_str() {
            "" => writeln!(text, "etcd       {address} answers, version {}", Printable(version)),
            why => writeln!(text, "etcd       {address} does not answer: {}", Printable(why)),
        };
    }
    text
}

fn text(address: &str, status: &StatusResponse) -> String {
    let mut text = format!(
        "manager    {}, up {} s, scheduler {}\nfabrics    {}\nagents     {}{}\n",
        Printable(address),
        status.uptime_seconds,
        Printable(&status.scheduler),
        status.fabrics.join(", "),
        status.agents.len(),
        names(status),
    );
    text += &status.external_scheduler.as_ref().map(external_scheduler).unwrap_or_default();
    if !status.leader.is_empty() {
        let _ = writeln!(text, "leader     {}", Printable(&status.leader));
    }
    text += &standing(status);
    for lease in &status.leases {
        let (id, source, fabric) = (lease.response_id, Printable(&lease.source), Printable(&lease.fabric));
        let receivers = output::counted(lease.receivers.len(), "receiver");
        let _ = writeln!(text, "lease      {id}: {source} to {receivers} over {fabric}");
        for passed in &lease.passed_over {
            let _ = writeln!(
                text,
                "           not over {}: {}",
                Printable(&passed.fabric),
                Printable(&passed.why)
            );
        }
    }
    for pending in &status.pending {
        let (source, size) = (Printable(&pending.source), format_bytes(pending.size));
        let waited = seconds(pending.waited_ms as f64 / 1e3);
        let _ = writeln!(
            text,
            "queue      {source} to {}, {size}, for {waited}",
            output::counted(pending.receivers as usize, "receiver")
        );
    }
    for device in &status.devices {
        let error =
            if device.error.is_empty() { String::new() } else { format!(": {}", Printable(&device.error)) };
        let _ = writeln!(text, "device     {}: {}{error}", Printable(&device.name), Printable(&device.state));
    }
    for circuit in &status.circuits {
        let whose = circuit.response_id.map_or("kept ready".to_string(), |lease| format!("lease {lease}"));
        let _ = writeln!(text, "circuit    port {} to port {}, {whose}", circuit.from, circuit.to);
    }
    for splitter in &status.splitters {
        let whose = splitter.response_id.map_or(String::new(), |lease| format!(", lease {lease}"));
        let _ = writeln!(text, "splitter   {}: {}{whose}", splitter.number, Printable(&splitter.state));
    }
    for fibre in &status.dark {
        let _ = writeln!(text, "dark       {}", Printable(fibre));
    }
    for part in &status.drained {
        let _ = writeln!(text, "drained    {}", Printable(part));
    }
    for host in &status.drained_hosts {
        let _ = writeln!(text, "drained    {}", Printable(&host.name));
    }
    for suspect in &status.suspected {
        let rest = match suspect.rests_ms {
            0 => "taken where nothing else is free".to_string(),
            rests => format!("rests for {}", seconds(rests as f64 / 1e3)),
        };
        let _ =
            writeln!(text, "suspected  {}, {rest}: {}", Printable(&suspect.part), Printable(&suspect.why));
    }
    text
}
