//! Checks that one host can make of itself.

use super::{Check, others};
use crate::exit::plain;
use polycast_net::interface::{self, Interface, InterfaceError, Link};
use polycast_net::port_in_use::PortInUse;
use polycast_net::udp::{Beacon, DataReceiver, RECEIVE_BUFFER_LEN};
use polycast_types::format_bytes;
use polycast_wire::discovery;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// The interface that transfers would use.
pub(super) fn interface(
    devices: &[Link],
    wanted: Option<&str>,
    checks: &mut Vec<Check>,
) -> Option<Interface> {
    const NAME: &str = "interface";
    const COST: &str = "no other machine can be reached";
    let used = match interface::resolve(wanted) {
        Ok(used) => used,
        Err(error) => {
            let mend = match error {
                InterfaceError::OnlyLoopback { .. } => {
                    "give an interface an address (ip address add 10.0.0.2/24 dev eth0)"
                }
                _ => "name one of these with --interface",
            };
            checks.push(Check::failed(NAME, error.to_string(), COST, mend));
            return None;
        }
    };
    let others = others(devices, &used.name);
    let besides = if others.is_empty() { String::new() } else { format!("; there is also {others}") };
    let found = format!("{} ({}), MTU {}{besides}", used.name, used.address, used.mtu);
    let device = devices.iter().find(|device| device.name == used.name);
    let name = &used.name;
    checks.push(match device {
        Some(device) if !device.has_carrier => Check::failed(
            NAME,
            format!("{found}: no signal"),
            COST,
            format!("look at the cable and at the switch's port, or name another one with --interface; {name} is down"),
        ),
        Some(device) if !device.takes_multicast => Check::warning(
            NAME,
            format!("{found}: it does no multicast"),
            "everything goes from receiver to receiver over TCP",
            format!("`ip link set {name} multicast on`"),
        ),
        _ => Check::ok(NAME, found),
    });
    if used.mtu < 9_000 && device.is_some_and(|device| !device.is_loopback) {
        checks.push(Check::warning(
            "frames",
            format!("MTU {}", used.mtu),
            "more work for the processors per byte than with long frames",
            format!("where switches and all hosts allow it: `ip link set {name} mtu 9000`"),
        ));
    }
    Some(used)
}

/// Checks that the ports can be used.
pub(super) fn ports(address: IpAddr, checks: &mut Vec<Check>) {
    let group = SocketAddr::new(discovery::group_for(address), discovery::PORT);
    checks.push(match Beacon::open(address, group) {
        Ok(_) => Check::ok("ports", format!("UDP {} can be used", discovery::PORT)),
        Err(error) => Check::failed(
            "ports",
            match PortInUse::of(discovery::PORT, &error) {
                Some(in_use) => in_use.to_string(),
                None => format!("UDP {} cannot be used: {}", discovery::PORT, plain(&error)),
            },
            "`offer` and `accept` do not find each other by multicast, and data comes over TCP",
            "end that program, or say `accept --from HOST` and `offer --udp-port P`",
        ),
    });
}

/// Below this an agent, or a source of some hundred receivers, may run out of files.
const FILES_FEW: u64 = 1_024;

/// Checks the number of files and connections that a program may have open.
pub(super) fn files(checks: &mut Vec<Check>) {
    const NAME: &str = "files";
    checks.push(match rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        Some(files) if files < FILES_FEW => Check::warning(
            NAME,
            format!("a program may have {files} of them open, connections among them"),
            "a source takes no more receivers than that at a time; the others wait",
            format!("`ulimit -Hn {FILES_FEW}`; for a service: LimitNOFILE={FILES_FEW}"),
        ),
        Some(files) => Check::ok(NAME, format!("a program may have {files} open, connections among them")),
        None => Check::ok(NAME, "a program may have as many open as it needs"),
    });
}

/// The socket's buffer.
pub(super) fn buffers(checks: &mut Vec<Check>) {
    const NAME: &str = "buffers";
    let limit = std::fs::read_to_string("/proc/sys/net/core/rmem_max");
    let limit = limit.ok().and_then(|text| text.trim().parse::<usize>().ok());
    let window = match DataReceiver::open(std::net::Ipv4Addr::UNSPECIFIED.into()) {
        Ok(socket) => format!("a receiver can be behind by {}", format_bytes(socket.window_bytes())),
        Err(error) => format!("no socket can be opened: {error}"),
    };
    checks.push(match limit {
        Some(limit) if limit < RECEIVE_BUFFER_LEN => Check::warning(
            NAME,
            format!("net.core.rmem_max is {limit}: {window}"),
            "a receiver that is late for a moment loses packets, which are sent again",
            format!("`sysctl -w net.core.rmem_max={RECEIVE_BUFFER_LEN}`"),
        ),
        Some(limit) => Check::ok(NAME, format!("net.core.rmem_max is {limit}: {window}")),
        None => Check::skipped(NAME, format!("the kernel does not tell its limit: {window}")),
    });
}

/// Folder in which agents keep objects unless they are configured otherwise.
pub(super) const MEMORY: &str = "/dev/shm";
/// A folder of objects on a file system with less than this is small: containers have 64 MiB of shared memory
/// unless they are told otherwise.
const SMALL_BYTES: u64 = 256 << 20;

/// A folder in which agents keep objects.
pub(super) fn store(place: &Path, checks: &mut Vec<Check>) {
    let room = rustix::fs::statvfs(place).ok().filter(|stat| stat.f_blocks > 0);
    checks.push(match room {
        Some(stat) => room_of(place, stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize),
        None => Check::warning(
            STORE,
            format!("{} is not there", place.display()),
            "agents cannot start without a folder for objects",
            "give the agent one with --store DIR",
        ),
    });
}

const STORE: &str = "store";

fn room_of(place: &Path, free_bytes: u64, all_bytes: u64) -> Check {
    let (free, all) = (format_bytes(free_bytes), format_bytes(all_bytes));
    let found = format!("{}: {free} free of {all}", place.display());
    if all_bytes < SMALL_BYTES {
        return Check::warning(
            STORE,
            found,
            "objects that are larger are refused, and others make room for each other",
            "start the container with more shared memory (--shm-size=8g), or give the agent a folder with --store",
        );
    }
    if free_bytes < all_bytes / 10 {
        return Check::warning(
            STORE,
            found,
            "received objects make room for others, and what does not fit even so is refused",
            "remove what is not needed (`polycast ls`, `polycast rm ID`), or give the agent a folder with --store",
        );
    }
    Check::ok(STORE, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Verdict;

    #[test]
    fn a_small_store_and_a_full_one_are_named() {
        let verdict = |free: u64, all: u64| {
            let check = room_of(Path::new(MEMORY), free << 20, all << 20);
            (check.verdict, check.mend.contains("--shm-size"))
        };
        assert_eq!(verdict(64, 64), (Verdict::Warning, true), "what a container has");
        assert_eq!(verdict(255, 255), (Verdict::Warning, true));
        assert_eq!(verdict(256, 256), (Verdict::Ok, false));
        assert_eq!(verdict(99, 1_000), (Verdict::Warning, false));
        assert_eq!(verdict(100, 1_000), (Verdict::Ok, false));
        let mut checks = Vec::new();
        store(Path::new("/no/such/place"), &mut checks);
        assert!(checks[0].found.ends_with("is not there"), "{checks:?}");
    }
}
