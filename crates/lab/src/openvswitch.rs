//! ToR switches: one Open vSwitch in user space with a bridge for each ToR, which speaks OpenFlow 1.3 to
//! its controller.

use crate::daemons::{Daemons, Places};
use crate::error::LabError;
use crate::layout::{CONTROL_ADDRESS, OPENFLOW_PORT};
use crate::system::run;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const READY_WITHIN: Duration = Duration::from_secs(20);

/// One ToR: its bridge, and its ports with their OpenFlow numbers.
pub(crate) struct Bridge {
    pub(crate) name: String,
    pub(crate) ports: Vec<(String, u32)>,
}

/// Where the controller reaches the bridge of this number.
pub(crate) fn endpoint(number: u32) -> SocketAddr {
    SocketAddr::from((CONTROL_ADDRESS, OPENFLOW_PORT + number as u16))
}

/// Starts Open vSwitch in the lab's own namespace and makes the bridges. They forward nothing until a
/// controller says so.
pub(crate) fn start(bridges: &[Bridge], places: &Places, daemons: &mut Daemons) -> Result<(), LabError> {
    let folder = places.inside.join("ovs");
    fs::create_dir_all(&folder).map_err(|error| LabError::path("make", &folder, &error))?;
    let command = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).env("OVS_RUNDIR", &folder).env("OVS_LOGDIR", &folder);
        command
    };
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let (file, socket) = (text(folder.join("conf.db")), folder.join("db.sock"));
    run(&mut command("ovsdb-tool", &["create", &file, SCHEMA]), None)?;
    let remote = format!("--remote=punix:{}", socket.display());
    let control = |name: &str| format!("--unixctl={}", text(folder.join(name)));
    let server = command("ovsdb-server", &[&file, &remote, &control("ovsdb.ctl")]);
    daemons.start_silent("ovsdb-server", server, places)?;
    await_file(&socket)?;
    let database = format!("unix:{}", socket.display());
    let db = format!("--db={database}");
    run(&mut command("ovs-vsctl", &[&db, "--no-wait", "init"]), None)?;
    // One thread each: a lab has few cores, and all bridges share the threads.
    let threads = ["other_config:n-handler-threads=1", "other_config:n-revalidator-threads=1"];
    run(
        &mut command("ovs-vsctl", &[&[&db, "--no-wait", "set", "Open_vSwitch", "."], &threads[..]].concat()),
        None,
    )?;
    // A real switch forwards whatever the hosts are busy with; and its sockets hold but a few packets.
    let daemon = command("nice", &["-n", "-15", "ovs-vswitchd", &database, &control("ovs-vswitchd.ctl")]);
    daemons.start_silent("ovs-vswitchd", daemon, places)?;
    // All bridges in one transaction; it ends when the switches have them.
    let mut arguments: Vec<String> = vec![db, format!("--timeout={}", READY_WITHIN.as_secs())];
    for (number, Bridge { name, ports }) in bridges.iter().enumerate() {
        let address = endpoint(number as u32);
        let words = format!(
            "-- add-br {name} -- set bridge {name} datapath_type=netdev protocols=OpenFlow13 fail_mode=secure \
             other-config:disable-in-band=true -- set-controller {name} ptcp:{}:{}",
            address.port(),
            address.ip()
        );
        arguments.extend(words.split(' ').map(str::to_string));
        for (port, number) in ports {
            let words = format!("-- add-port {name} {port} -- set interface {port} ofport_request={number}");
            arguments.extend(words.split(' ').map(str::to_string));
        }
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    run(&mut command("ovs-vsctl", &arguments), None).map(drop)
}

fn await_file(path: &Path) -> Result<(), LabError> {
    let begun = Instant::now();
    while !path.exists() {
        if begun.elapsed() > READY_WITHIN {
            return Err(LabError::system("start Open vSwitch", format!("there is no {}", path.display())));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
