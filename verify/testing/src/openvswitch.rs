//! A real Open vSwitch: its own database and daemon, and ports without devices, so that it needs no root and
//! touches nothing else on the machine.

use crate::{HANG, Need, folder_in_memory, needs, until};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// A switch that ends with the test, even if the test is killed.
#[derive(Debug)]
pub struct OpenVswitch {
    place: tempfile::TempDir,
    daemons: Vec<Child>,
}

impl OpenVswitch {
    /// One bridge with ports 1, 2 and 3, or `None` where Open vSwitch is not installed.
    ///
    /// # Panics
    /// It is installed and does not come up.
    #[must_use]
    pub fn start() -> Option<Self> {
        if !needs(&[Need::File(SCHEMA), Need::Tool("ovs-vswitchd"), Need::Tool("setpriv")]) {
            return None;
        }
        let mut switch = OpenVswitch { place: folder_in_memory(), daemons: Vec::new() };
        let _said = switch.run("ovsdb-tool", &["create", &switch.path("conf.db"), SCHEMA]);
        let socket = switch.path("db.sock");
        let (file, remote) = (switch.path("conf.db"), format!("--remote=punix:{socket}"));
        switch.daemon("ovsdb-server", &[&file, &remote]);
        switch.await_file("db.sock");
        switch.control(&["--no-wait", "init"]);
        switch.daemon("ovs-vswitchd", &[&format!("unix:{socket}"), "--enable-dummy", "--disable-system"]);
        switch.control(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy"]);
        switch.control(&["set", "bridge", "br0", "protocols=OpenFlow13", "fail_mode=secure"]);
        for number in 1..=3 {
            let (name, request) = (format!("p{number}"), format!("ofport_request={number}"));
            switch.control(&[
                "add-port",
                "br0",
                &name,
                "--",
                "set",
                "interface",
                &name,
                "type=dummy",
                &request,
            ]);
        }
        Some(switch)
    }

    /// A file of the switch's own.
    ///
    /// # Panics
    /// The folder's name is no text.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        self.place.path().join(name).to_str().unwrap().to_string()
    }

    /// Returns the path of its control socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        PathBuf::from(self.path("br0.mgmt"))
    }

    /// The folder of its files.
    #[must_use]
    pub fn place(&self) -> &Path {
        self.place.path()
    }

    /// Ends it.
    pub fn stop(&mut self) {
        for daemon in &mut self.daemons {
            // It may have ended by itself.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("OVS_RUNDIR", self.place.path()).env("OVS_LOGDIR", self.place.path());
        command
    }

    /// Runs a program that must work, and gives what it prints.
    ///
    /// # Panics
    /// It does not work.
    #[must_use]
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program, arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{program} {arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn daemon(&mut self, program: &str, arguments: &[&str]) {
        let control = format!("--unixctl={}", self.path(&format!("{program}.ctl")));
        let all = [&["--pdeathsig", "KILL", program, &control], arguments].concat();
        let child = self.command("setpriv", &all).stderr(Stdio::null()).spawn().unwrap();
        self.daemons.push(child);
    }

    fn await_file(&self, name: &str) {
        until(name, || Path::new(&self.path(name)).exists());
    }

    /// Changes the switch's configuration and waits until it is in force.
    pub fn control(&self, arguments: &[&str]) {
        let database = format!("--db=unix:{}", self.path("db.sock"));
        let within = format!("--timeout={}", HANG.as_secs());
        let _said = self.run("ovs-vsctl", &[&[within.as_str(), &database], arguments].concat());
    }

    /// Returns the output of the switch's own tool.
    #[must_use]
    pub fn ofctl(&self, command: &str, more: &[&str]) -> String {
        let bridge = format!("unix:{}", self.path("br0.mgmt"));
        self.run("ovs-ofctl", &[&["-O", "OpenFlow13", command, &bridge], more].concat())
    }
}

impl Drop for OpenVswitch {
    fn drop(&mut self) {
        self.stop();
    }
}
