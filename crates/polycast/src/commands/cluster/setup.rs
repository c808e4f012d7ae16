//! `polycast setup`: makes this machine one of a cluster. It writes settings, key and systemd unit, makes the
//! account, and starts the daemon. What it writes is what the packages' units and the Ansible role use.

use super::{connect, runtime};
use crate::args::cluster::{LocalArgs, SetupAgentArgs, SetupCommand, SetupManagerArgs, SetupPlace};
use crate::exit::{Exit, Failure, plain};
use crate::output::{self, Format};
use polycast_agent::daemon::AgentConfig;
use polycast_manager::ManagerConfig;
use polycast_net::seal::Secret;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Account of the daemons.
const ACCOUNT: &str = "polycast";
/// Folder of the settings, and the key in it.
const SETTINGS: &str = "etc/polycast";
const KEY: &str = "etc/polycast/cluster.key";
/// Places of units: those of packages, and the one for those that are written here.
const UNITS_OF_PACKAGES: [&str; 2] = ["usr/lib/systemd/system", "lib/systemd/system"];
const UNITS: &str = "etc/systemd/system";
/// The program in the units, and where this one goes if it is at no place for all.
const PROGRAM: &str = "/usr/bin/polycast";
const OWN_PROGRAM: &str = "usr/local/bin/polycast";
/// An agent that was started is at its manager within this, or says why not.
const JOINS_WITHIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A daemon that is set up.
struct Daemon {
    /// `agent` or `manager`.
    kind: &'static str,
    unit: &'static str,
    settings: String,
    /// The settings name a secret that only the account may read.
    is_secret: bool,
}

/// Sets up what was asked for.
pub(super) fn run(command: &SetupCommand, format: Format) -> Result<Exit, Failure> {
    let (daemon, place, key) = match command {
        SetupCommand::Agent(args) => (agent(args)?, &args.place, args.key_file.as_deref()),
        SetupCommand::Manager(args) => (manager(args)?, &args.place, args.key_file.as_deref()),
    };
    let root = Root::of(place)?;
    let mut done = Vec::new();
    root.settle(&daemon, place.force, key, &mut done)?;
    let account = root.account(&mut done)?;
    root.give(account, &daemon)?;
    root.unit(&daemon, &mut done)?;
    root.state(&daemon, &mut done)?;
    let starts = place.root.is_none() && !place.no_start;
    let mut joined = None;
    if starts {
        start(daemon.kind, &mut done)?;
        if daemon.kind == "agent" {
            joined = Some(joins()?);
        }
    }
    let document = json!({
        "unit": format!("polycast-{}.service", daemon.kind), "done": done, "started": starts,
        "joined": joined.as_ref().map(Result::is_ok),
    });
    let mut text = done.join("\n");
    match &joined {
        Some(Ok(manager)) => text += &format!("\nthe agent is at its manager, {manager}"),
        Some(Err(why)) => text += &format!("\nthe agent runs, and is not at its manager yet: {why}"),
        None => {}
    }
    output::result(format, &document, &text)?;
    Ok(Exit::Done)
}

/// A text in settings.
fn quoted(text: &str) -> String {
    // The escapes of JSON are those of TOML.
    Value::from(text).to_string()
}

fn line(settings: &mut String, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        let _ = writeln!(settings, "{name} = {}", quoted(value));
    }
}

fn agent(args: &SetupAgentArgs) -> Result<Daemon, Failure> {
    let mut settings = "# Written by polycast setup; docs/agent.sample.toml has all settings.\n".to_string();
    line(&mut settings, "manager", Some(&args.manager));
    line(&mut settings, "name", args.name.as_deref());
    line(&mut settings, "interface", args.interface.as_deref());
    line(&mut settings, "socket", Some("/run/polycast/agent.sock"));
    line(&mut settings, "store", Some(args.store.as_deref().unwrap_or("/dev/shm/polycast")));
    line(&mut settings, "store-max", args.store_max.as_deref());
    line(&mut settings, "socket-group", args.socket_group.as_deref());
    line(&mut settings, "http", args.place.http.as_deref());
    match &args.token {
        Some(token) => {
            line(&mut settings, "token", Some(token));
            line(&mut settings, "identity", Some("/var/lib/polycast/identity"));
        }
        None => line(&mut settings, "key-file", Some(&format!("/{KEY}"))),
    }
    let wrong = |error: &dyn std::fmt::Display| Failure::input(error.to_string());
    let config = AgentConfig::from_toml(&settings).map_err(|error| wrong(&error))?;
    config.check().map_err(|error| wrong(&error))?;
    if args.token.is_none() && args.key_file.is_none() {
        return Err(Failure::input("an agent needs --key-file, a copy of the manager's key, or --token"));
    }
    let unit = include_str!("../../../../../packaging/polycast-agent.service");
    Ok(Daemon { kind: "agent", unit, settings, is_secret: args.token.is_some() })
}

fn manager(args: &SetupManagerArgs) -> Result<Daemon, Failure> {
    let mut settings =
        "# Written by polycast setup; docs/manager.sample.toml has all settings.\n".to_string();
    line(&mut settings, "listen", Some(&args.listen));
    line(&mut settings, "http", args.place.http.as_deref());
    match &args.ca {
        true => line(&mut settings, "ca", Some("/var/lib/polycast/ca")),
        false => line(&mut settings, "key-file", Some(&format!("/{KEY}"))),
    }
    if !args.etcd.is_empty() {
        let endpoints: Vec<String> = args.etcd.iter().map(|endpoint| quoted(endpoint)).collect();
        let _ = writeln!(settings, "\n[etcd]\nendpoints = [{}]", endpoints.join(", "));
        line(&mut settings, "advertise", args.advertise.as_deref());
    }
    ManagerConfig::from_toml(&settings).map_err(|error| Failure::input(error.to_string()))?;
    let unit = include_str!("../../../../../packaging/polycast-manager.service");
    Ok(Daemon { kind: "manager", unit, settings, is_secret: false })
}

/// The file system that is written to.
struct Root {
    folder: PathBuf,
    /// It is that of the running machine.
    is_own: bool,
}

impl Root {
    fn of(place: &SetupPlace) -> Result<Self, Failure> {
        if let Some(folder) = &place.root {
            if !folder.is_dir() {
                return Err(Failure::input(format!("{} is no folder", folder.display())));
            }
            return Ok(Root { folder: folder.clone(), is_own: false });
        }
        if !rustix::process::geteuid().is_root() {
            let failure = Failure::input("setup writes to /etc and starts a service, which only root may");
            return Err(failure.hint("run it with sudo; or say --root DIR to see what it writes"));
        }
        if !place.no_start && !Path::new("/run/systemd/system").is_dir() {
            let failure = Failure::input("systemd does not run here, so nothing can be started");
            return Err(failure.hint("--no-start writes all files, and you start the daemon your way"));
        }
        Ok(Root { folder: "/".into(), is_own: true })
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    /// Path as the machine itself has it.
    fn shown(&self, path: &Path) -> String {
        format!("/{}", path.strip_prefix(&self.folder).unwrap_or(path).display())
    }

    /// Writes settings and key. Other settings that are there stay, unless they are to be replaced.
    fn settle(
        &self,
        daemon: &Daemon,
        force: bool,
        key: Option<&Path>,
        done: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let path = self.at(&format!("{SETTINGS}/{}.toml", daemon.kind));
        let before = fs::read_to_string(&path).ok();
        if before.as_ref().is_some_and(|before| *before != daemon.settings) && !force {
            let message = format!("{} is there already, with other settings", self.shown(&path));
            return Err(Failure::place(message).hint("--force replaces it, and keeps it beside as .old"));
        }
        let key = key.map(|path| self.read_key(path)).transpose()?;
        make_folder(&self.at(SETTINGS))?;
        self.key(daemon, key, done)?;
        if before.as_ref() == Some(&daemon.settings) {
            done.push(format!("{} is as it has to be", self.shown(&path)));
            return Ok(());
        }
        if before.is_some() {
            let old = path.with_extension("toml.old");
            fs::rename(&path, &old).map_err(|error| Failure::path("move", &path, &error))?;
        }
        let mode = if daemon.is_secret { 0o600 } else { 0o644 };
        write(&path, daemon.settings.as_bytes(), mode)?;
        done.push(format!("wrote {}", self.shown(&path)));
        Ok(())
    }

    /// Reads a key, which an earlier call may have given to the account.
    fn read_key(&self, path: &Path) -> Result<Secret, Failure> {
        let account = self.known_account().map(|(user, _)| user);
        Secret::read_of(path, account).map_err(|error| Failure::input(error.to_string()))
    }

    /// Puts the given key in its place; a manager without one gets a new one.
    fn key(&self, daemon: &Daemon, key: Option<Secret>, done: &mut Vec<String>) -> Result<(), Failure> {
        if !daemon.settings.contains("key-file") {
            return Ok(());
        }
        let path = self.at(KEY);
        let known = path.exists().then(|| self.read_key(&path)).transpose()?;
        match (key, known) {
            (None, Some(_)) => {}
            (Some(key), Some(known)) if key.reveal() == known.reveal() => {}
            (Some(_), Some(_)) => {
                let message = format!("{} is there already, and is another key", self.shown(&path));
                return Err(Failure::place(message).hint("remove it, if this machine changes its cluster"));
            }
            (Some(key), None) => {
                write(&path, key.to_line().as_bytes(), 0o600)?;
                done.push(format!("wrote {}", self.shown(&path)));
            }
            (None, None) => {
                write(&path, Secret::fresh().to_line().as_bytes(), 0o600)?;
                let shown = self.shown(&path);
                done.push(format!("wrote {shown}, a new key: copy it to the machines of the agents"));
            }
        }
        Ok(())
    }

    /// The account's number, and that of its group; made where it is not there.
    fn account(&self, done: &mut Vec<String>) -> Result<Option<(u32, u32)>, Failure> {
        let known = self.known_account();
        if known.is_some() || !self.is_own {
            if known.is_none() {
                done.push(format!("the account {ACCOUNT} is still to be made"));
            }
            return Ok(known);
        }
        let arguments = [
            "--system",
            "--user-group",
            "--no-create-home",
            "--home-dir",
            "/nonexistent",
            "--shell",
            "/usr/sbin/nologin",
            ACCOUNT,
        ];
        must("useradd", &arguments)?;
        done.push(format!("made the account {ACCOUNT}"));
        let known = self.known_account();
        known.map(Some).ok_or_else(|| Failure::unexpected(format!("useradd has made no account {ACCOUNT}")))
    }

    fn known_account(&self) -> Option<(u32, u32)> {
        let accounts = fs::read_to_string(self.at("etc/passwd")).ok()?;
        let fields = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let own = fields.into_iter().find(|fields| fields[0] == ACCOUNT && fields.len() > 3)?;
        Some((own[2].parse().ok()?, own[3].parse().ok()?))
    }

    /// Gives the account what only it may read.
    fn give(&self, account: Option<(u32, u32)>, daemon: &Daemon) -> Result<(), Failure> {
        let Some((user, group)) = account else { return Ok(()) };
        let settings = format!("{SETTINGS}/{}.toml", daemon.kind);
        let own = [Some(KEY), daemon.is_secret.then_some(settings.as_str())];
        for path in own.into_iter().flatten().map(|path| self.at(path)).filter(|path| path.exists()) {
            std::os::unix::fs::chown(&path, Some(user), Some(group))
                .map_err(|error| Failure::path("give away", &path, &error))?;
        }
        Ok(())
    }

    /// Writes the unit where no package has brought it, and the program where not all may run it.
    fn unit(&self, daemon: &Daemon, done: &mut Vec<String>) -> Result<(), Failure> {
        let name = format!("polycast-{}.service", daemon.kind);
        if UNITS_OF_PACKAGES.iter().any(|folder| self.at(folder).join(&name).exists()) {
            return Ok(());
        }
        let program = self.program(done)?;
        let text = daemon.unit.replace(PROGRAM, &program);
        let path = self.at(UNITS).join(&name);
        if fs::read_to_string(&path).is_ok_and(|before| before == text) {
            return Ok(());
        }
        make_folder(&self.at(UNITS))?;
        write(&path, text.as_bytes(), 0o644)?;
        done.push(format!("wrote {}", self.shown(&path)));
        Ok(())
    }

    /// Gives a manager with an authority a folder of its own: the unit has none without one.
    fn state(&self, daemon: &Daemon, done: &mut Vec<String>) -> Result<(), Failure> {
        if !daemon.settings.contains("\nca = ") {
            return Ok(());
        }
        let folder = self.at(UNITS).join(format!("polycast-{}.service.d", daemon.kind));
        let path = folder.join("state.conf");
        let text = "[Service]\nStateDirectory=polycast\n";
        if fs::read_to_string(&path).is_ok_and(|before| before == text) {
            return Ok(());
        }
        make_folder(&folder)?;
        write(&path, text.as_bytes(), 0o644)?;
        done.push(format!("wrote {}", self.shown(&path)));
        Ok(())
    }

    /// The program for the unit: this one, or a copy of it.
    fn program(&self, done: &mut Vec<String>) -> Result<String, Failure> {
        if self.at(&PROGRAM[1..]).exists() {
            return Ok(PROGRAM.into());
        }
        let own = std::env::current_exe().map_err(|error| {
            Failure::unexpected(format!("this program cannot be found: {}", plain(&error)))
        })?;
        if self.is_own && (own.starts_with("/usr") || own.starts_with("/opt")) {
            return Ok(own.display().to_string());
        }
        let path = self.at(OWN_PROGRAM);
        let shown = self.shown(&path);
        let bytes = fs::read(&own).map_err(|error| Failure::path("read", &own, &error))?;
        if fs::read(&path).is_ok_and(|before| before == bytes) {
            return Ok(shown);
        }
        if let Some(folder) = path.parent() {
            make_folder(folder)?;
        }
        write(&path, &bytes, 0o755)?;
        done.push(format!("copied this program to {shown}"));
        Ok(shown)
    }
}

fn make_folder(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path).map_err(|error| Failure::path("make", path, &error))
}

/// Writes a file at once: it is there with all its bytes, or as before.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    let new = path.with_extension("polycast-new");
    let written = || -> io::Result<()> {
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        // The user's mask is for other files.
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    written().map_err(|error| {
        let _ = fs::remove_file(&new);
        Failure::path("write", path, &error)
    })
}

/// Runs a program of the system.
fn must(program: &str, arguments: &[&str]) -> Result<(), Failure> {
    let ran = Command::new(program).args(arguments).output();
    let ran = ran.map_err(|error| Failure::input(format!("cannot run {program}: {}", plain(&error))))?;
    if ran.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ran.stderr);
    Err(Failure::input(format!("{program} {} has failed: {}", arguments.join(" "), said.trim())))
}

/// Has systemd start the unit, now and with the machine.
fn start(kind: &str, done: &mut Vec<String>) -> Result<(), Failure> {
    let unit = format!("polycast-{kind}.service");
    must("systemctl", &["daemon-reload"])?;
    must("systemctl", &["enable", &unit])?;
    must("systemctl", &["restart", &unit])
        .map_err(|failure| failure.hint(format!("its log says why: journalctl -u {unit} -n 20")))?;
    done.push(format!("started {unit}, now and with the machine"));
    Ok(())
}

/// Waits until the agent is at its manager; gives that one's address, or why it is not there yet.
fn joins() -> Result<Result<String, String>, Failure> {
    let local = LocalArgs { socket: Some("/run/polycast/agent.sock".into()) };
    runtime()?.block_on(async {
        let client = connect(&local).await?;
        let begun = Instant::now();
        loop {
            let status = client.status().await?;
            if status.manager_connected {
                return Ok(Ok(status.manager_address));
            }
            if begun.elapsed() > JOINS_WITHIN {
                return Ok(Err(crate::exit::without_numbers(status.manager_error)));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    })
}
