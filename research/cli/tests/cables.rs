//! `polycast manager --check --probe` in labs whose cables are as the settings say, or are not. Skipped
//! without root or the programs that labs need.

#[path = "../../../crates/polycast/tests/common/mod.rs"]
mod common;

use common::{Ran, polycast};
use polycast_testing::{Need, needs, until, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const PROGRAM: &str = common::PROGRAM;

fn can() -> bool {
    let tools = ["ip", "tc", "ovs-vswitchd", "ethtool", "bash"].into_iter().map(Need::Tool);
    needs(&[Need::Root, Need::Namespaces].into_iter().chain(tools).collect::<Vec<_>>())
}

/// A lab that is up until this is dropped.
struct Lab(String);

impl Lab {
    fn up(kind: &str, spec: &str) -> Self {
        let name = format!("{kind}-{}", std::process::id());
        let made = polycast(&["lab", "up", spec, "--name", &name]);
        assert_eq!(made.status, 0, "{}", made.stderr);
        Lab(name)
    }

    fn run(&self, command: &[&str]) -> Ran {
        polycast(&[&["lab", "exec", &self.0, "manager", "--"], command].concat())
    }

    /// Ends the lab's manager, as a probe asks for.
    fn end_manager(&self) {
        let script = "for at in /proc/[0-9]*; do if tr '\\0' ' ' < $at/cmdline | grep -q 'polycast [m]anager '; then \
                      kill -9 ${at#/proc/}; fi; done";
        let ran = self.run(&["bash", "-c", script]);
        assert_eq!(ran.status, 0, "{}", ran.stderr);
    }

    fn settings(&self) -> String {
        format!("/run/polycast-lab/{}/inside/manager.toml", self.0)
    }

    /// The status and the document of a check, with more arguments.
    fn check(&self, more: &[&str]) -> (i32, Value) {
        let settings = self.settings();
        let ran =
            self.run(&[&[PROGRAM, "manager", "--check", "--json", "--config", &settings], more].concat());
        let document = serde_json::from_str(&ran.stdout);
        (ran.status, document.unwrap_or_else(|error| panic!("{error}: {} {}", ran.stdout, ran.stderr)))
    }

    /// The circuits that the switch lists.
    fn circuits(&self) -> Value {
        self.check(&[]).1["circuit_switch"]["circuits"].clone()
    }

    /// No circuit is there.
    fn is_dark(&self) {
        assert_eq!(self.circuits(), json!([]));
    }

    /// The process of a probe, once there is one.
    fn probe(&self) -> Pid {
        let (settings, words) = (self.settings(), format!("{PROGRAM}\0manager\0"));
        let is_probe =
            |line: &str| line.starts_with(&words) && line.contains(&settings) && line.contains("--probe");
        wait_for("a probe", || {
            let mut processes = std::fs::read_dir("/proc").unwrap().flatten();
            processes.find_map(|entry| {
                let pid = entry.file_name().to_str()?.parse().ok()?;
                let line = std::fs::read(entry.path().join("cmdline")).ok()?;
                is_probe(&String::from_utf8_lossy(&line)).then(|| Pid::from_raw(pid))?
            })
        })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        polycast(&["lab", "down", &self.0]);
    }
}

/// Three racks at the ports 1 to 3, a splitter at 4 with its outputs at 5 and 6.
const SITE: &str = "blast:racks=3,hosts=1,splitters=1,fanout=2";

#[test]
fn right_cables_have_no_fault_and_nothing_stays_behind() {
    if !can() {
        return;
    }
    let lab = Lab::up("cables", &format!("{SITE},circuit-ms=400"));
    let (status, found) = lab.check(&["--probe"]);
    let fault = found["faults"][0].as_str().unwrap();
    assert!(status == 1 && fault.contains("a manager listens at"), "{found}");
    lab.end_manager();
    // It is interrupted when it has made a circuit: more are to come.
    let (status, found) = std::thread::scope(|scope| {
        let probing = scope.spawn(|| lab.check(&["--probe"]));
        let probe = lab.probe();
        // It is held while it is asked for circuits, as that may take longer than all of its work.
        let tell = |signal| kill_process(probe, signal);
        until("a circuit is made", || {
            let _ = tell(Signal::STOP);
            let is_made = lab.circuits() != json!([]);
            let _ = is_made.then(|| tell(Signal::INT));
            let _ = tell(Signal::CONT);
            is_made || probing.is_finished()
        });
        probing.join().unwrap()
    });
    let fault = found["faults"][0].as_str().unwrap();
    assert_eq!(status, 1, "{found}");
    assert!(fault.starts_with("the probe was interrupted"), "{found}");
    lab.is_dark();
    let (status, found) = lab.check(&["--probe"]);
    assert_eq!((status, &found["faults"]), (0, &json!([])), "{found}");
    let led =
        |rack: u32| json!({ "port": (rack + 1).to_string(), "named": place(rack), "found": place(rack) });
    assert_eq!(found["probe"]["ports"], json!([led(0), led(1), led(2)]));
    let lit = |port: &str| json!({ "splitter": 0, "input": "4", "output": port, "lit": true });
    assert_eq!(found["probe"]["outputs"], json!([lit("5"), lit("6")]));
    lab.is_dark();
}

fn place(rack: u32) -> String {
    format!("rack {rack}'s port 2000")
}

#[test]
fn swapped_cables_are_named() {
    if !can() {
        return;
    }
    let racks = |port: u32, found: u32, said: u32| {
        format!(
            "port {port} of the circuit switch leads to {}, and ocs.rack-ports says {}: swap the cables, or mend the setting",
            place(found),
            place(said)
        )
    };
    let lab = Lab::up("swapped", &format!("{SITE},swapped=2:3"));
    lab.end_manager();
    let (status, found) = lab.check(&["--probe"]);
    assert_eq!((status, &found["faults"]), (1, &json!([racks(2, 2, 1), racks(3, 1, 2)])), "{found}");
    lab.is_dark();
    drop(lab);
    // A rack's cable and that of a splitter's output.
    let lab = Lab::up("mixed", &format!("{SITE},swapped=3:5"));
    lab.end_manager();
    let (status, found) = lab.check(&["--probe"]);
    let faults: Vec<&str> =
        found["faults"].as_array().unwrap().iter().map(|fault| fault.as_str().unwrap()).collect();
    let leads = "port 5 of the circuit switch leads to rack 2's port 2000, and ocs.splitters says output 0 of splitter 0";
    let dark = "no light comes from port 3 of the circuit switch to any rack, and ocs.rack-ports says rack 2's port 2000";
    assert!(status == 1 && faults.iter().any(|fault| fault.starts_with(leads)), "{found}");
    assert!(faults.iter().any(|fault| fault.starts_with(dark)), "{found}");
    lab.is_dark();
}
