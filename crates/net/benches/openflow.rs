//! Time that a rack's switch takes for a path's rules when nothing else happens: a real Open vSwitch with a
//! database and a daemon of its own and ports without devices (Shufflecast gives 0.6 ms for a ToR, Blast's
//! Table II 8.711 ms for all). It needs no root. `cargo bench -p polycast-net --bench openflow`

use polycast_net::devices::openflow::{
    Action, Endpoint, Field, FlowMod, GroupMod, Instruction, Match, Message, Switch, SwitchError,
    SwitchOptions,
};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const RUNS: usize = 500;
/// Groups that the switch keeps meanwhile.
const GROUPS: u32 = 16;

/// A switch that ends with the bench, even if that is killed.
struct OpenVswitch {
    place: tempfile::TempDir,
    daemons: Vec<Child>,
}

impl OpenVswitch {
    fn start() -> Result<Self, Box<dyn Error>> {
        let place = tempfile::tempdir()?;
        let mut switch = OpenVswitch { place, daemons: Vec::new() };
        switch.run("ovsdb-tool", &["create", &switch.path("conf.db"), SCHEMA])?;
        let (file, socket) = (switch.path("conf.db"), switch.path("db.sock"));
        switch.daemon("ovsdb-server", &[&file, &format!("--remote=punix:{socket}")])?;
        switch.await_file("db.sock")?;
        let words = "--no-wait init -- set Open_vSwitch . other_config:n-handler-threads=1 \
            other_config:n-revalidator-threads=1 -- add-br br0 -- set bridge br0 datapath_type=dummy \
            protocols=OpenFlow13 fail_mode=secure";
        switch.control(words)?;
        switch.daemon("ovs-vswitchd", &[&format!("unix:{socket}"), "--enable-dummy", "--disable-system"])?;
        for number in 1..=4 {
            switch.control(&format!(
                "add-port br0 p{number} -- set interface p{number} type=dummy ofport_request={number}"
            ))?;
        }
        Ok(switch)
    }

    fn path(&self, name: &str) -> String {
        self.place.path().join(name).to_string_lossy().into_owned()
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("OVS_RUNDIR", self.place.path()).env("OVS_LOGDIR", self.place.path());
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<(), Box<dyn Error>> {
        let output = self.command(program, arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(format!("{program} {arguments:?}: {said}").into()) }
    }

    fn control(&self, words: &str) -> Result<(), Box<dyn Error>> {
        let database = format!("--db=unix:{}", self.path("db.sock"));
        let words: Vec<&str> = words.split_whitespace().collect();
        self.run("ovs-vsctl", &[&["--timeout=20", &database], &words[..]].concat())
    }

    fn daemon(&mut self, program: &str, arguments: &[&str]) -> Result<(), Box<dyn Error>> {
        let control = format!("--unixctl={}", self.path(&format!("{program}.ctl")));
        let all = [&["--pdeathsig", "KILL", program, &control], arguments].concat();
        self.daemons.push(self.command("setpriv", &all).stderr(Stdio::null()).spawn()?);
        Ok(())
    }

    fn await_file(&self, name: &str) -> Result<(), Box<dyn Error>> {
        for _ in 0..1_000 {
            if Path::new(&self.path(name)).exists() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!("there is no {name}").into())
    }

    /// Returns the time that the daemon has run, and the time that it has waited for a processor.
    fn used(&self) -> Option<(Duration, Duration)> {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.daemons.last()?.id())).ok()?;
        let mut nanos = text.split_whitespace().map_while(|word| word.parse().ok());
        Some((Duration::from_nanos(nanos.next()?), Duration::from_nanos(nanos.next()?)))
    }
}

impl Drop for OpenVswitch {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            // They may have ended.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Builds the messages that a rack with a source and two receivers is sent for a group, as
/// `polycast_manager::devices::tor` does.
fn rules(group: u32) -> Vec<Message> {
    let to_group =
        || Match::any().and(Field::EthType(0x0800)).and(Field::ipv4_dst([239, 255, 64, group as u8]));
    let flow = |table, matching, instructions| {
        Message::FlowMod(FlowMod { table, instructions, ..FlowMod::add(10_120, matching, Vec::new()) })
    };
    let out = Instruction::ApplyActions(vec![Action::Output(4)]);
    let deliver = Instruction::ApplyActions(vec![Action::Group(group)]);
    vec![
        Message::GroupMod(GroupMod::to_ports(group, [2, 3])),
        flow(0, to_group().and(Field::InPort(1)), vec![out, Instruction::GotoTable(1)]),
        flow(1, to_group(), vec![deliver]),
    ]
}

/// Builds the messages that remove them again.
fn clear(group: u32) -> Vec<Message> {
    let entering = Match::any()
        .and(Field::EthType(0x0800))
        .and(Field::ipv4_dst([239, 255, 64, group as u8]))
        .and(Field::InPort(1));
    vec![Message::GroupMod(GroupMod::delete(group)), Message::FlowMod(FlowMod::delete(10_120, entering))]
}

/// Prints the least, the median, 99 of 100 and the most, in microseconds.
fn tell(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    println!("{what:50} {:8.0} {:8.0} {:8.0} {:8.0}", at(0.0), at(0.5), at(0.99), at(1.0));
}

async fn measure(ovs: &OpenVswitch, pause: Duration) -> Result<(), Box<dyn Error>> {
    let endpoint = Endpoint::Unix(PathBuf::from(ovs.path("br0.mgmt")));
    let switch = Switch::connect(&endpoint, SwitchOptions::default()).await?;
    let timed = async |messages: Vec<Message>| -> Result<Duration, SwitchError> {
        tokio::time::sleep(pause).await;
        let begun = Instant::now();
        switch.send(messages).await?;
        Ok(begun.elapsed())
    };
    for group in 100..100 + GROUPS {
        timed(rules(group)).await?;
    }
    let (mut barriers, mut set, mut cleared) = (Vec::new(), Vec::new(), Vec::new());
    let before = ovs.used();
    for _ in 0..RUNS {
        barriers.push(timed(Vec::new()).await?);
    }
    let between = ovs.used();
    for run in 0..RUNS {
        let group = 1 + run as u32 % 64;
        set.push(timed(rules(group)).await?);
        cleared.push(timed(clear(group)).await?);
    }
    println!("us, {} ms apart: least, median, 99 of 100, most", pause.as_millis());
    tell("a barrier", barriers);
    tell("the rules of a group, and a barrier", set);
    tell("their end, and a barrier", cleared);
    if let (Some(before), Some(between), Some(after)) = (before, between, ovs.used()) {
        let each = |from: Duration, to: Duration, runs: usize| (to - from).as_secs_f64() * 1e6 / runs as f64;
        println!(
            "the switch's main thread: {:.0} us a barrier, {:.0} us for rules or their end, and waits {:.0} us for a \
             processor",
            each(before.0, between.0, RUNS),
            each(between.0, after.0, 2 * RUNS),
            each(between.1, after.1, 2 * RUNS)
        );
    }
    Ok(())
}

fn run() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for pause in [0, 5] {
        // Nothing is there from before.
        let ovs = OpenVswitch::start()?;
        runtime.block_on(measure(&ovs, Duration::from_millis(pause)))?;
    }
    Ok(())
}

fn main() {
    if let Err(error) = run() {
        println!("not measured: {error} (Debian: openvswitch-switch)");
    }
}
