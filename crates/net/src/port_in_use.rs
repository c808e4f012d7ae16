//! UDP ports that other programs have for themselves, and which programs these are.

use polycast_types::Printable;
use std::fmt;
use std::fs;
use std::io;

/// A UDP port that another program has for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInUse {
    /// The port.
    pub port: u16,
    /// The program, where the kernel tells: root hears of all, others of their own.
    pub holder: Option<Holder>,
}

/// A program that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub name: String,
    /// Its process number.
    pub process: u32,
}

impl fmt::Display for PortInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UDP port {} is in use by ", self.port)?;
        match &self.holder {
            Some(Holder { name, process }) => write!(f, "{} (process {process})", Printable(name)),
            None => write!(f, "another program (`ss -ulpn sport = {}`, as root, names it)", self.port),
        }
    }
}

impl PortInUse {
    /// Interprets an error of binding to this port; `None` unless it means that another program has the port.
    #[must_use]
    pub fn of(port: u16, error: &io::Error) -> Option<Self> {
        (error.kind() == io::ErrorKind::AddrInUse).then(|| PortInUse { port, holder: holder(port) })
    }
}

/// The first program that is found to have a socket at this port, in the calling thread's network namespace.
fn holder(port: u16) -> Option<Holder> {
    let tables = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"];
    let sockets: Vec<String> = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| sockets_at(&table, port))
        .collect();
    if sockets.is_empty() {
        return None;
    }
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let process = numbers.find(|process| has_one_of(*process, &sockets))?;
    let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    Some(Holder { name: name.trim_end().to_string(), process })
}

/// Names of the sockets at this port, as the files of processes have them, from a text such as that of
/// `/proc/net/udp`.
fn sockets_at(table: &str, port: u16) -> Vec<String> {
    let of_line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let is_there = u16::from_str_radix(local, 16) == Ok(port);
        is_there.then(|| format!("socket:[{}]", fields.get(9).unwrap_or(&"")))
    };
    table.lines().skip(1).filter_map(of_line).collect()
}

/// Returns true if a process has one of these sockets open; not known for processes of other users.
fn has_one_of(process: u32, sockets: &[String]) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    let mut targets = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    targets.any(|target| target.to_str().is_some_and(|target| sockets.iter().any(|socket| socket == target)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::Beacon;
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

    #[test]
    fn the_program_that_has_a_port_is_named() {
        let taken = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let group = SocketAddr::from(([239, 255, 1, 9], port));
        let error = Beacon::open(Ipv4Addr::LOCALHOST.into(), group).expect_err("another one has it");
        let in_use = PortInUse::of(port, &error).expect("it says so");
        let holder = in_use.holder.as_ref().expect("it is this process");
        assert_eq!(holder.process, std::process::id());
        let said = in_use.to_string();
        assert!(
            said.starts_with(&format!("UDP port {port} is in use by {} (process ", holder.name)),
            "{said}"
        );
        assert_eq!(PortInUse::of(port, &io::ErrorKind::PermissionDenied.into()), None);
    }

    #[test]
    fn sockets_are_found_by_their_port() {
        let table = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
            77: 00000000:4693 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 31337 2 0000000000000000 0\n\
            78: 0100007F:0035 00000000:4693 07 00000000:00000000 00:00000000 00000000   101        0 31338 2 0000000000000000 0\n\
            broken\n";
        assert_eq!(sockets_at(table, 18_067), ["socket:[31337]"]);
        assert_eq!(sockets_at(table, 53), ["socket:[31338]"]);
        assert!(sockets_at(table, 54).is_empty() && sockets_at("", 53).is_empty());
    }
}
