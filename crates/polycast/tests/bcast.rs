//! `polycast bcast` over a stand-in for srun: what goes wrong, and the ways around a job. packaging/tests has
//! it in a real Slurm.

mod common;

use common::{Place, Ran, command, end, noise, signal};
use polycast_testing::until;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Offers of one machine find each other's receivers: one test at a time.
static NETWORK: Mutex<()> = Mutex::new(());

/// Runs the script once a node, each with a folder for a home; what comes in goes to all. A node without a
/// folder does not answer.
const SRUN: &str = r#"#!/bin/sh
exec 3<&0
for word; do case $word in --nodelist=*) list=${word#*=};; esac; done
home=$(dirname "$0")/home; echo $$ > "$home/../srun.pid"
[ ! -e "$home/../refused" ] || { echo 'srun: error: Unable to create step: Job/step already completing' >&2; exit 1; }
pipes=
for node in $(echo "$list" | tr , ' '); do
    [ -d "$home/$node" ] || continue
    mkfifo "$home/$node.in"; pipes="$pipes $home/$node.in"
    script=$(printf %s "$word" | sed "s/@/$node/g")
    (cd "$home/$node" && unset XDG_CACHE_HOME && HOME=$PWD SLURMD_NODENAME=$node exec sh -c "$script" < "$home/$node.in") &
done
trap 'kill $(jobs -p); exit 143' TERM
tee $pipes > /dev/null <&3 3<&- &
wait
"#;

/// A job of these nodes, of which some are there.
fn job(place: &Place, nodes: &[&str]) {
    fs::create_dir_all(place.path("home")).unwrap();
    for node in nodes {
        fs::create_dir_all(place.path(&format!("home/{node}"))).unwrap();
    }
    let ssh = format!(
        "#!/bin/sh\nwhile [ \"$1\" = -o ]; do shift 2; done\ncd {}/\"$1\" || exit 1\nHOME=\"$PWD\" exec sh -c \"$2\"\n",
        place.path("home")
    );
    for (name, text) in [("srun", SRUN), ("ssh", ssh.as_str())] {
        let path = place.file(name, text.as_bytes());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// The command in a job of nodes a, b and c. A place of each node has its name in it.
fn bcast(place: &Place, words: &[&str]) -> Command {
    let mut command = command(&[&["bcast", "--interface", "lo"], words].concat());
    command.env("SLURM_JOB_ID", "7").env("SLURM_JOB_NODELIST", "a,b,c");
    command.env("PATH", format!("{}:{}", place.path("."), std::env::var("PATH").unwrap()));
    for name in ["SLURM_STEP_ID", "SLURM_SCRIPT_CONTEXT", "SBCAST_FORCE", "SBCAST_TIMEOUT"] {
        command.env_remove(name);
    }
    command
}

fn run(mut command: Command) -> Ran {
    command.output().unwrap().into()
}

#[test]
fn a_node_that_does_not_begin_is_named_and_the_others_get_it() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    job(&place, &["a", "c"]);
    let bytes = noise(3_000_000);
    let file = place.file("file", &bytes);
    let ran = run(bcast(&place, &["-t", "3", &file, &place.path("home/@/it's"), "--json"]));
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    let report = ran.json();
    for receiver in report["receivers"].as_array().unwrap() {
        let is_there = receiver["name"] != "b";
        assert_eq!(receiver["verified"], is_there, "{receiver}");
        let why = receiver["error"].as_str().unwrap_or_default();
        assert!(is_there || why.contains("did not begin within 3 s"), "{receiver}");
    }
    for node in ["a", "c"] {
        assert!(fs::read(place.path(&format!("home/{node}/it's"))).unwrap() == bytes, "{node}");
    }
}

#[test]
fn a_step_that_cannot_be_is_said_in_the_words_of_slurm() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    job(&place, &[]);
    let file = place.file("file", b"bytes");
    place.file("refused", b"");
    let ran = run(bcast(&place, &[&file, "/tmp/@"]));
    assert!(ran.status == 1 && ran.stderr.contains("none of 3 nodes began"), "{}", ran.stderr);
    assert!(ran.stderr.contains("Unable to create step"), "{}", ran.stderr);
    let ran = run(bcast(&place, &["-w", "a,d", &file, "/tmp/@"]));
    assert!(ran.status == 1 && ran.stderr.contains("'d' is no node of job 7"), "{}", ran.stderr);
    let mut outside = bcast(&place, &[&file, "/tmp/@"]);
    outside.env_remove("SLURM_JOB_ID");
    let ran = run(outside);
    assert!(ran.status == 1 && ran.stderr.contains("in no Slurm job"), "{}", ran.stderr);
    let mut without = bcast(&place, &[&file, "/tmp/@"]);
    without.env("PATH", "/nonexistent");
    let ran = run(without);
    assert!(ran.status == 1 && ran.stderr.contains("cannot run srun"), "{}", ran.stderr);
    // Another task of a step leaves it to the first one.
    let mut other = bcast(&place, &[&file, "/tmp/@"]);
    other.env("SLURM_STEP_ID", "0").env("SLURM_PROCID", "1");
    let ran = run(other);
    assert!(ran.status == 0 && ran.stderr.contains("task 0"), "{}", ran.stderr);
}

#[test]
fn a_cancelled_one_ends_its_step() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    job(&place, &["a"]);
    let file = place.file("file", &noise(1_000_000));
    let begun = bcast(&place, &[&file, &place.path("home/@/f")]).spawn().unwrap();
    let step = || fs::read_to_string(place.path("srun.pid")).ok().filter(|text| text.ends_with('\n'));
    until("the step has begun", || step().is_some());
    let at = Instant::now();
    signal(&begun, Signal::INT);
    let ran = end(begun);
    assert!(ran.status == 130 && at.elapsed() < Duration::from_secs(20), "{} {}", ran.status, ran.stderr);
    let srun = format!("/proc/{}", step().unwrap().trim());
    assert!(!fs::exists(srun).unwrap(), "its srun runs on");
    assert!(!fs::exists(place.path("home/a/f")).unwrap());
}

#[test]
fn without_a_job_it_goes_over_ssh() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    job(&place, &["a", "b"]);
    let bytes = noise(1_000_000);
    let file = place.file("file", &bytes);
    // Both hosts are this one: the file comes once, and is there already for the other.
    let target = place.path("copy");
    let ran = run(bcast(&place, &["-Z", "-w", "a", &file, &target]));
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(fs::read(&target).unwrap() == bytes);
    let ran = run(bcast(&place, &["-Z", "-w", "b", &file, &target]));
    assert!(ran.status == 1 && ran.stderr.contains("is there already"), "{}", ran.stderr);
    let ran = run(bcast(&place, &["-Z", "-f", "-w", "b", &file, &target]));
    assert_eq!(ran.status, 0, "{}", ran.stderr);
}
