//! ToR switches: each an Open vSwitch in user space with its own database and daemon in its own namespace,
//! which speaks OpenFlow 1.3 to its controller. (One daemon for all ToRs would ask every port of the lab for
//! packets whenever one comes.)

use crate::daemons::{Daemons, Places};
use crate::error::LabError;
use crate::system::{Space, run};
use polycast_net::devices::openflow::Endpoint;
use rustix::net::{AddressFamily, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const READY_WITHIN: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Number of free bytes that a daemon keeps. It allocates room for 32 packets whenever one comes: with jumbo
/// packets that is more than the C library would keep for it, and fresh pages for every packet cost more than
/// the packet.
const KEPT_BYTES: &str = "268435456";

/// Number of bytes that may wait at a port for the daemon, and of those that it has passed on for the links
/// behind all its ports. The system's 208 KiB are ten large packets, fewer than come while eight switches
/// take turns on two cores; packets that a receiving socket cannot hold are lost, and so are those that the
/// sending one cannot.
const SOCKET_BYTES: usize = 16 << 20;

/// One ToR: its name, which its bridge and its namespace have too, and its ports with their OpenFlow numbers.
pub(crate) struct Bridge {
    pub(crate) name: String,
    pub(crate) ports: Vec<(String, u32)>,
}

fn folder(places: &Places, bridge: &str) -> PathBuf {
    places.inside.join("ovs").join(bridge)
}

/// Returns the endpoint at which the controller reaches a bridge.
pub(crate) fn endpoint(places: &Places, bridge: &str) -> Endpoint {
    Endpoint::Unix(folder(places, bridge).join(format!("{bridge}.mgmt")))
}

/// Starts the switches. They forward nothing until a controller says so, and may not have come up yet.
pub(crate) fn start(bridges: &[Bridge], places: &Places, daemons: &mut Daemons) -> Result<(), LabError> {
    let root = places.inside.join("ovs");
    let made =
        |folder: &Path| fs::create_dir_all(folder).map_err(|error| LabError::path("make", folder, &error));
    made(&root)?;
    let empty = root.join("empty.db");
    run(Command::new("ovsdb-tool").arg("create").arg(&empty).arg(SCHEMA), None)?;
    for Bridge { name, .. } in bridges {
        let folder = folder(places, name);
        made(&folder)?;
        let file = folder.join("conf.db");
        fs::copy(&empty, &file).map_err(|error| LabError::path("write", &file, &error))?;
        let mut server = command(&Space::Network, "ovsdb-server", &folder);
        server.arg(&file).arg(format!("--remote=punix:{}", socket(&folder)));
        server.arg(format!("--unixctl={}", folder.join("ovsdb.ctl").display()));
        daemons.start_silent(&format!("{name}-ovsdb-server"), server, places)?;
    }
    for bridge in bridges {
        let folder = folder(places, &bridge.name);
        await_file(&folder.join("db.sock"))?;
        configure(bridge, &folder)?;
        // A real switch forwards whatever the hosts are busy with.
        let mut daemon = command(&Space::named(&bridge.name), "nice", &folder);
        daemon.args(["-n", "-15", "ovs-vswitchd"]).arg(format!("unix:{}", socket(&folder)));
        daemon.env("MALLOC_TRIM_THRESHOLD_", KEPT_BYTES);
        daemon.arg(format!("--unixctl={}", folder.join("ovs-vswitchd.ctl").display()));
        daemons.start_silent(&daemon_name(&bridge.name), daemon, places)?;
    }
    Ok(())
}

/// The name of a switch's daemon among those of the lab.
pub(crate) fn daemon_name(bridge: &str) -> String {
    format!("{bridge}-ovs-vswitchd")
}

/// Gives a switch that has passed packets on room for more of them. It has no setting for that and its
/// sockets are its own, but root may have another process's sockets too.
pub(crate) fn widen(bridge: &Bridge, daemons: &Daemons) -> Result<(), LabError> {
    let failed =
        |reason: String| LabError::system(format!("make room at the ports of {}", bridge.name), reason);
    let pid =
        daemons.pid(&daemon_name(&bridge.name)).ok_or_else(|| failed("its daemon does not run".into()))?;
    // A socket for what comes to each port, and one for all that leaves.
    let expected = bridge.ports.len() + 1;
    let begun = Instant::now();
    loop {
        match widen_sockets(pid, SOCKET_BYTES) {
            Ok(sockets) if sockets >= expected => return Ok(()),
            // One that is closed meanwhile counts for nothing.
            Ok(_) | Err(rustix::io::Errno::BADF) if begun.elapsed() < READY_WITHIN => {
                std::thread::sleep(LOOK_AGAIN);
            }
            Ok(sockets) => {
                return Err(failed(format!("it has {sockets} sockets for packets, not {expected}")));
            }
            Err(error) => return Err(failed(error.to_string())),
        }
    }
}

/// Gives all packet sockets of a process room for so many bytes; gives how many there are.
fn widen_sockets(pid: Pid, bytes: usize) -> rustix::io::Result<usize> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let folder = format!("/proc/{}/fd", pid.as_raw_pid());
    let entries = fs::read_dir(folder).map_err(|_| rustix::io::Errno::SRCH)?;
    let mut sockets = 0;
    for entry in entries.flatten() {
        let is_socket =
            fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(number) = number.filter(|_| is_socket) else { continue };
        let socket = pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?;
        if sockopt::socket_domain(&socket)? == AddressFamily::PACKET {
            sockopt::set_socket_recv_buffer_size_force(&socket, bytes)?;
            sockopt::set_socket_send_buffer_size_force(&socket, bytes)?;
            sockets += 1;
        }
    }
    Ok(sockets)
}

fn socket(folder: &Path) -> String {
    folder.join("db.sock").to_string_lossy().into_owned()
}

fn command(space: &Space, program: &str, folder: &Path) -> Command {
    let mut command = space.command(program);
    command.env("OVS_RUNDIR", folder).env("OVS_LOGDIR", folder);
    command
}

/// Notes in the database what the switch is; its daemon makes it so when it comes up.
fn configure(Bridge { name, ports }: &Bridge, folder: &Path) -> Result<(), LabError> {
    // One thread each: a lab has few cores.
    let mut words = format!(
        "init -- set Open_vSwitch . other_config:n-handler-threads=1 other_config:n-revalidator-threads=1 \
         -- add-br {name} -- set bridge {name} datapath_type=netdev protocols=OpenFlow13 fail_mode=secure"
    );
    for (port, number) in ports {
        words
            .push_str(&format!(" -- add-port {name} {port} -- set interface {port} ofport_request={number}"));
    }
    let mut control = command(&Space::Network, "ovs-vsctl", folder);
    control
        .arg(format!("--db=unix:{}", socket(folder)))
        .args(["--no-wait", "--"])
        .args(words.split_whitespace());
    run(&mut control, None).map(drop)
}

fn await_file(path: &Path) -> Result<(), LabError> {
    let begun = Instant::now();
    while !path.exists() {
        if begun.elapsed() > READY_WITHIN {
            return Err(LabError::system("start Open vSwitch", format!("there is no {}", path.display())));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use polycast_testing::{Need, needs};
    use rustix::net::{SocketType, socket};

    #[test]
    fn packet_sockets_of_a_process_get_room_and_others_do_not() {
        // Packet sockets are root's.
        if !needs(&[Need::Root]) {
            return;
        }
        let packets = [(); 2].map(|()| socket(AddressFamily::PACKET, SocketType::RAW, None).unwrap());
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let room = |socket: &dyn std::os::fd::AsFd| sockopt::socket_recv_buffer_size(socket.as_fd()).unwrap();
        let (before, bytes) = (room(&other), SOCKET_BYTES);
        assert!(widen_sockets(rustix::process::getpid(), bytes).unwrap() >= packets.len());
        // The system counts its own records of packets too, and doubles what is asked for.
        packets.iter().for_each(|packet| assert_eq!(room(packet), 2 * bytes));
        packets.iter().for_each(|packet| assert_eq!(sockopt::socket_send_buffer_size(packet), Ok(2 * bytes)));
        assert_eq!(room(&other), before);
    }
}
