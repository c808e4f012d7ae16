//! `polycast push`: over a stand-in for ssh that runs the script here, and over a real sshd.

mod common;

use common::{Place, noise, polycast};
use polycast_testing::until;
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Offers of one machine find each other's receivers: one test at a time.
static NETWORK: Mutex<()> = Mutex::new(());

/// A stand-in for ssh: each host is a folder, which is its user's home.
fn shell(place: &Place, hosts: &[&str]) -> String {
    for host in hosts {
        fs::create_dir_all(place.path(&format!("home/{host}"))).unwrap();
    }
    let text = format!(
        "#!/bin/sh\nwhile [ \"$1\" = -o ]; do shift 2; done\n\
         [ ! -d {0}/\"$1\"/bin ] || PATH={0}/\"$1\"/bin:\"$PATH\"\n\
         [ -d {0}/\"$1\" ] || {{ echo \"ssh: connect to host $1 port 22: No route to host\" >&2; exit 255; }}\n\
         cd {0}/\"$1\" || exit 1\necho 'Welcome to '\"$1\"\nunset XDG_CACHE_HOME\nHOME=\"$PWD\" exec sh -c \"$2\"\n",
        place.path("home")
    );
    let path = place.file("ssh", text.as_bytes());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn programs(place: &Place, host: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(place.path(&format!("home/{host}/.cache/polycast"))) else {
        return Vec::new();
    };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn hosts_that_have_nothing_get_the_program_and_the_object() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let ssh = shell(&place, &["gpu1", "gpu2", "gpu3"]);
    let bytes = noise(9_000_000);
    let file = place.file("it's a model.bin", &bytes);
    fs::create_dir(place.path("home/gpu2/data")).unwrap();
    let push = |more: &[&str]| {
        polycast(&[&["push", &file, "--interface", "lo", "-e", &ssh, "--json"], more].concat())
    };
    let alone = polycast(&["push", &file]);
    assert!(alone.status == 1 && alone.stderr.contains("where to are both needed"), "{}", alone.stderr);
    let first = push(&["gpu[1-2]:data"]);
    assert_eq!(first.status, 0, "{}", first.stderr);
    let report = first.json();
    let names: Vec<_> = report["receivers"].as_array().unwrap().iter().map(|r| r["name"].clone()).collect();
    assert_eq!(names, ["gpu1", "gpu2"]);
    // A directory that is there gets the object under its own name.
    assert!(fs::read(place.path("home/gpu1/data")).unwrap() == bytes);
    assert!(fs::read(place.path("home/gpu2/data/it's a model.bin")).unwrap() == bytes);
    let kept = programs(&place, "gpu1");
    assert!(kept.len() == 1 && kept == programs(&place, "gpu2"), "{kept:?}");

    // What is there stays, and the host says so.
    let second = push(&["gpu1:data"]);
    assert_eq!(second.status, 1, "{}", second.stderr);
    assert!(
        second.stderr.contains("gpu1 failed") && second.stderr.contains("is there already"),
        "{}",
        second.stderr
    );
    // It is brought up to date; the program is used again, and then taken away.
    let third = push(&["gpu[1,3]:./data", "--update", "--clean"]);
    assert_eq!(third.status, 0, "{}", third.stderr);
    assert!(fs::read(place.path("home/gpu3/data")).unwrap() == bytes);
    assert!(programs(&place, "gpu1").is_empty() && programs(&place, "gpu3").is_empty());
}

#[test]
fn a_host_that_cannot_be_reached_is_named_and_the_others_get_it() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let ssh = shell(&place, &["a", "b"]);
    let file = place.file("f", &noise(3_000_000));
    let ran = polycast(&["push", &file, "a,down,b:f", "--interface", "lo", "-e", &ssh, "--json"]);
    assert_eq!(ran.status, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("down failed: ssh: connect to host down port 22"), "{}", ran.stderr);
    for receiver in ran.json()["receivers"].as_array().unwrap() {
        assert_eq!(receiver["verified"], receiver["name"] != "down", "{receiver}");
    }
    let ran = polycast(&["push", &file, "down:f", "--interface", "lo", "-e", &ssh]);
    assert!(ran.status == 1 && ran.stderr.contains("none of 1 host was reached"), "{}", ran.stderr);
    let ran = polycast(&["push", &file, "a:f", "--interface", "lo", "-e", "/nonexistent/ssh"]);
    assert!(ran.status == 1 && ran.stderr.contains("cannot run '/nonexistent/ssh'"), "{}", ran.stderr);
    // A program for another machine is not kept as if it were good.
    let text = place.file("program", b"\x7fELF, but no program");
    let ran = polycast(&["push", &file, "b:g", "--interface", "lo", "-e", &ssh, "--program", &text]);
    assert!(ran.status == 1 && ran.stderr.contains("it cannot run the program"), "{}", ran.stderr);
    assert!(!Path::new(&place.path("home/b/g")).exists());
}

/// A host whose machine is of this kind: `uname` says so.
fn machine(place: &Place, host: &str, kind: &str) {
    let folder = place.path(&format!("home/{host}/bin"));
    fs::create_dir_all(&folder).unwrap();
    let uname = format!("{folder}/uname");
    fs::write(&uname, format!("#!/bin/sh\necho Linux {kind}\n")).unwrap();
    fs::set_permissions(&uname, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn each_host_gets_the_program_for_its_machine() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let own = std::env::consts::ARCH;
    let ssh = shell(&place, &["one", "other", "third"]);
    machine(&place, "other", "sparc64");
    machine(&place, "third", "m68k");
    // As packages lay them out. What hosts get tells the programs apart: each is a script of its own.
    for folder in ["usr/bin", "usr/lib/polycast"] {
        fs::create_dir_all(place.path(folder)).unwrap();
    }
    let program = place.path("usr/bin/polycast");
    fs::copy(env!("CARGO_BIN_EXE_polycast"), &program).unwrap();
    let small = |path: &str, kind: &str| {
        let text = format!("#!/bin/sh\n# {kind}\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_polycast"));
        place.file(path, text.as_bytes())
    };
    small(&format!("usr/lib/polycast/polycast-{own}"), own);
    small("usr/bin/polycast-sparc64", "sparc64");
    let file = place.file("f", &noise(2_000_000));
    let push = |hosts: &str| {
        let words = ["push", &file, hosts, "--interface", "lo", "-e", &ssh, "--json"];
        let ran = Command::new(&program).args(words).output().unwrap();
        (ran.status.code(), String::from_utf8(ran.stderr).unwrap())
    };
    let (status, stderr) = push("one,other,third:g");
    assert_eq!(status, Some(1), "{stderr}");
    assert!(stderr.contains("third failed: it is m68k") && stderr.contains("--program"), "{stderr}");
    for (host, kind) in [("one", own), ("other", "sparc64")] {
        let kept = programs(&place, host);
        assert_eq!(kept.len(), 1, "{host}: {kept:?}");
        let text = fs::read(place.path(&format!("home/{host}/.cache/polycast/{}", kept[0]))).unwrap();
        assert!(text.starts_with(format!("#!/bin/sh\n# {kind}\n").as_bytes()), "{host} has another one");
        assert!(fs::read(place.path(&format!("home/{host}/g"))).unwrap().len() == 2_000_000);
    }
    assert!(programs(&place, "third").is_empty());
    // Without one of its own a machine like this one gets the whole program.
    fs::remove_dir_all(place.path("usr/lib")).unwrap();
    let (status, stderr) = push("one:h");
    assert_eq!(status, Some(0), "{stderr}");
    assert_eq!(programs(&place, "one").len(), 2);
}

/// A real sshd for this user, until it is dropped.
struct Sshd(Child);

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Sshd {
    /// It, and the options that lead to it under any name; `None` where there is none.
    fn start(place: &Place) -> Option<(Self, String)> {
        let program =
            ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].into_iter().find(|at| Path::new(at).exists())?;
        let key = |name: &str| {
            let path = place.path(name);
            let made =
                Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path]).status();
            made.is_ok_and(|status| status.success()).then_some(path)
        };
        let (host_key, own) = (key("host_key")?, key("own_key")?);
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let cache = place.path("cache");
        let settings = place.file(
            "sshd_config",
            format!(
                "Port {port}\nListenAddress 127.0.0.1\nHostKey {host_key}\nAuthorizedKeysFile {own}.pub\n\
                 StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\nSetEnv XDG_CACHE_HOME={cache}\n"
            )
            .as_bytes(),
        );
        // As root it needs this folder.
        let _ = fs::create_dir_all("/run/sshd");
        let child = Command::new(program)
            .args(["-D", "-f", &settings])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let sshd = Sshd(child);
        until("sshd answers", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        let options = place.file(
            "ssh_config",
            format!(
                "Host gpu*\n HostName 127.0.0.1\n Port {port}\n IdentityFile {own}\n IdentitiesOnly yes\n\
                 StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
            )
            .as_bytes(),
        );
        Some((sshd, format!("ssh -F {options}")))
    }
}

#[test]
fn a_real_sshd_carries_it() {
    let _alone = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let Some((_sshd, ssh)) = Sshd::start(&place) else {
        return polycast_testing::skip("sshd and ssh-keygen are needed");
    };
    let tree = place.path("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(format!("{tree}/a"), noise(5_000_000)).unwrap();
    fs::write(format!("{tree}/b"), b"small").unwrap();
    // Both hosts are this one: each has a place of its own.
    for host in ["gpu1", "gpu2"] {
        let to = format!("{host}:{}", place.path(host));
        let ran = polycast(&["push", &tree, &to, "--interface", "lo", "-e", &ssh, "--json"]);
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        let copy = place.path(host);
        for name in ["a", "b"] {
            let read = |folder: &str| fs::read(format!("{folder}/{name}")).unwrap();
            assert!(read(&tree) == read(&copy), "{name}");
        }
    }
    assert_eq!(fs::read_dir(place.path("cache/polycast")).unwrap().count(), 1);
    // A key that is not known there.
    let other = place.path("other_key");
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &other]).status();
    assert!(made.unwrap().success());
    let wrong = fs::read_to_string(place.path("ssh_config")).unwrap().replace("own_key", "other_key");
    let options = place.file("wrong_config", wrong.as_bytes());
    let to = format!("gpu1:{}", place.path("never"));
    let ran = polycast(&["push", &tree, &to, "--interface", "lo", "-e", &format!("ssh -F {options}")]);
    assert!(ran.status == 1 && ran.stderr.contains("Permission denied"), "{}", ran.stderr);
    // A host that shows another key than the one that is known of it.
    let port = wrong.lines().find_map(|line| line.trim().strip_prefix("Port ")).unwrap();
    let other = fs::read_to_string(place.path("other_key.pub")).unwrap();
    let known = place.file("known", format!("[127.0.0.1]:{port} {other}").as_bytes());
    let strict = fs::read_to_string(place.path("ssh_config")).unwrap();
    let strict = strict.replace("StrictHostKeyChecking no", "StrictHostKeyChecking yes");
    let options = place.file("strict_config", strict.replace("/dev/null", &known).as_bytes());
    let ran = polycast(&["push", &tree, &to, "--interface", "lo", "-e", &format!("ssh -F {options}")]);
    assert!(ran.status == 1 && ran.stderr.contains("Host key verification failed"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("@@@"), "{}", ran.stderr);
}
