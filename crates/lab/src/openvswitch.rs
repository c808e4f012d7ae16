//! ToR switches: each an Open vSwitch in user space with its own database and daemon in its own namespace, which speaks
//! OpenFlow 1.3 to its controller. (One daemon for all ToRs would ask every port of the lab for packets whenever one
//! comes.)

use crate::daemons::{Daemons, Places};
use crate::error::LabError;
use crate::system::{Space, run};
use polycast_net::devices::openflow::Endpoint;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const READY_WITHIN: Duration = Duration::from_secs(20);
/// How many bytes that it does not need now a daemon keeps. It asks for room for 32 packets whenever one comes: with jumbo
/// packets that is more than the C library would keep for it, and fresh pages for every packet cost more than the packet.
const KEPT_BYTES: &str = "268435456";

/// One ToR: its name, which its bridge and its namespace have too, and its ports with their OpenFlow numbers.
pub(crate) struct Bridge {
    pub(crate) name: String,
    pub(crate) ports: Vec<(String, u32)>,
}

fn folder(places: &Places, bridge: &str) -> PathBuf {
    places.inside.join("ovs").join(bridge)
}

/// Where the controller reaches a bridge.
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
        // A real switch forwards whatever the hosts are busy with; and its sockets hold but a few packets.
        let mut daemon = command(&Space::named(&bridge.name), "nice", &folder);
        daemon.args(["-n", "-15", "ovs-vswitchd"]).arg(format!("unix:{}", socket(&folder)));
        daemon.env("MALLOC_TRIM_THRESHOLD_", KEPT_BYTES);
        daemon.arg(format!("--unixctl={}", folder.join("ovs-vswitchd.ctl").display()));
        daemons.start_silent(&format!("{}-ovs-vswitchd", bridge.name), daemon, places)?;
    }
    Ok(())
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
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
