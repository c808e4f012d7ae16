//! The agent's settings, as TOML. `docs/agent.sample.toml` explains each.

use super::local::Access;
use crate::forwarder::ForwarderConfig;
use crate::label_switch::RackAgentConfig;
use polycast_api::client::{default_folder, default_socket};
use polycast_api::settings::{self, HubConfig, OciConfig, SettingsError};
use polycast_net::priority::{Dscp, NoClass};
use polycast_net::tls::{IdentityFiles, JoinToken, MANAGER};
use polycast_types::{Location, check_location_name, parse_bytes};
use serde::Deserialize;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Sizes that a store may have.
const STORE_MAX: RangeInclusive<u64> = 1 << 20..=1 << 50;
/// Times that an object may stay in a store.
const STORE_TTL_S: RangeInclusive<u64> = 1..=3_650 * 86_400;

/// Time that the command has that names the zone, and the most bytes of its answer that are read.
const ZONE_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_MAX: u64 = 1 << 10;

/// TCP port of an agent whose settings name none.
pub const CONTROL_PORT: u16 = 7_401;

/// Settings of an agent; what is left out has the value of `Default`, only the manager must be named.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct AgentConfig {
    /// The manager's address, such as `10.0.0.1:7400` or `manager.example:7400`; of several managers all,
    /// with commas between them.
    pub manager: String,
    /// The DNS name in the certificates of managers, where agents show certificates.
    pub manager_name: String,
    /// This host's name in the cluster; without one the host's own.
    pub name: Option<String>,
    /// The rack that this host is in, in the operator's words. Where racks or zones are named, each object
    /// enters each of them once over TCP.
    pub rack: Option<String>,
    /// The zone that it is in, such as a room or a site; the same name of a rack in two zones is two racks.
    pub zone: Option<String>,
    /// A command and its arguments: the first line that it prints when the agent starts names the zone,
    /// unless `zone` does.
    pub zone_command: Option<Vec<String>>,
    /// The interface that carries the transfers, by name or address; without one that of the default
    /// route.
    pub interface: Option<String>,
    /// Folder for received objects; without one a folder in shared memory.
    pub store: Option<PathBuf>,
    /// Bytes that the store may hold, such as `8GiB`; without it half of the machine's memory where the store
    /// is in memory, and what fits where it is not.
    pub store_max: Option<String>,
    /// Time that a received object stays, such as `12h` or `7d`; without it until a user removes it.
    pub store_ttl: Option<String>,
    /// Unix socket for applications; without one a socket in the user's run-time folder.
    pub socket: Option<PathBuf>,
    /// Users who may use the socket: `600` the agent's own, `660` the members of a group, `666` all users of
    /// this machine.
    pub socket_mode: Option<String>,
    /// Name or number of that group.
    pub socket_group: Option<String>,
    /// The class of service (DSCP), 0 to 63, that the data packets of what it sends are marked with; without
    /// one they are not.
    pub dscp: Option<i64>,
    /// TCP port where other agents reach this one, for all that they ask of it; 0 lets the system choose.
    /// Without one it is [`CONTROL_PORT`], or where that is taken one that the system chooses.
    pub control_port: Option<u16>,
    /// File with the cluster's key, as `polycast key new FILE` writes it: with it all that agents say to each
    /// other is sealed, and an agent without the key takes part in nothing.
    pub key_file: Option<PathBuf>,
    /// Certificates (PEM) of the authorities that are trusted, in place of a key.
    pub tls_ca: Option<PathBuf>,
    /// The agent's own certificate, which has the agent's name, with those between it and its authority.
    pub tls_cert: Option<PathBuf>,
    /// Private key of that certificate. Files that change are read again.
    pub tls_key: Option<PathBuf>,
    /// Lists (PEM) of certificates that the authorities have revoked.
    pub tls_crl: Option<PathBuf>,
    /// In place of all these: a word of the manager's own authority (`polycast token new`), which lets this
    /// agent in once.
    pub token: Option<String>,
    /// Folder for the certificate that it gets then; where one that holds is in it, no token is needed.
    pub identity: Option<PathBuf>,
    /// Allows it to listen to other machines with neither key nor certificate.
    pub insecure: bool,
    /// Set if it ends with the program that has started it, which then removes its store. No setting controls
    /// this.
    #[serde(skip)]
    pub is_passing: bool,
    /// Address of the agent's monitoring page: `/view`, `/metrics`, `/healthz` and `/readyz`; without it
    /// there is none.
    pub http: Option<SocketAddr>,
    /// File with the token that `/view` asks for; without one only this machine sees the view.
    pub view_token_file: Option<PathBuf>,
    /// The hub endpoint on this host, if it has one. The program that runs the agent serves it.
    pub hub: Option<HubConfig>,
    /// The mirror of container registries on this host, if it has one; served in the same way.
    pub oci: Option<OciConfig>,
    /// Largest number of objects that the agent knows.
    pub objects_max: usize,
    /// Largest number of objects that it sends at the same time.
    pub sends_max: usize,
    /// Largest number of objects that it receives at the same time.
    pub receives_max: usize,
    /// Largest number of registered processes.
    pub processes_max: usize,
    /// Largest number of message streams that applications here may send and receive.
    pub streams_max: usize,
    /// The host's node of a Datacast fabric, if it is in one.
    pub forwarder: Option<ForwarderConfig>,
    /// The agent of its rack in an Orca fabric that the host runs, if it runs one.
    pub rack_agent: Option<RackAgentConfig>,
}

impl Default for AgentConfig {
    fn default() -> Self {
        AgentConfig {
            manager: String::new(),
            manager_name: MANAGER.into(),
            name: None,
            rack: None,
            zone: None,
            zone_command: None,
            interface: None,
            store: None,
            store_max: None,
            store_ttl: None,
            socket: None,
            socket_mode: None,
            socket_group: None,
            dscp: None,
            control_port: None,
            key_file: None,
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
            tls_crl: None,
            token: None,
            identity: None,
            insecure: false,
            is_passing: false,
            http: None,
            view_token_file: None,
            hub: None,
            oci: None,
            objects_max: 65_536,
            sends_max: 64,
            receives_max: 64,
            processes_max: 4_096,
            streams_max: 64,
            forwarder: None,
            rack_agent: None,
        }
    }
}

impl AgentConfig {
    /// Reads the settings in a file.
    ///
    /// # Errors
    /// It cannot be read, or the settings in it are wrong.
    pub fn load(path: &Path) -> Result<Self, SettingsError> {
        Self::from_toml(&settings::read(path)?)
    }

    /// Reads settings; what the command line adds is checked when the agent starts.
    ///
    /// # Errors
    /// They are not TOML, or not an agent's settings.
    pub fn from_toml(text: &str) -> Result<Self, SettingsError> {
        settings::parse(text)
    }

    /// Checks what types alone don't.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn check(&self) -> Result<(), SettingsError> {
        let wrong = |setting, reason: String| Err(SettingsError::Value { setting, reason });
        for manager in self.manager.split(',').map(str::trim) {
            let (host, port) = manager.rsplit_once(':').unwrap_or((manager, ""));
            if host.contains(':') && !host.starts_with('[') {
                let reason = format!("'{manager}': an IPv6 address needs brackets, as in [fd00::1]:7400");
                return wrong("manager", reason);
            }
            if host.is_empty() || !port.parse::<u16>().is_ok_and(|port| port > 0) {
                let reason = format!("'{manager}' is not HOST:PORT, such as 10.0.0.1:7400");
                return wrong("manager", reason);
            }
            let address = host.trim_matches(['[', ']']).split('%').next().unwrap_or_default();
            if address.parse::<Ipv6Addr>().is_ok_and(|address| address.is_unicast_link_local()) {
                let reason =
                    format!("{address} is an address of one link: take another one of the manager's host");
                return wrong("manager", reason);
            }
        }
        let name = self.resolved_name();
        self.check_name(&name)?;
        self.location()?;
        if let Some(token) = &self.token
            && let Err(error) = token.parse::<JoinToken>()
        {
            return wrong("token", error.to_string());
        }
        if self.resolved_identity(&name).is_some() && self.identity_files() != IdentityFiles::default() {
            let reason = "there is a key or a certificate besides: an agent has one identity".into();
            return wrong(if self.token.is_some() { "token" } else { "identity" }, reason);
        }
        self.store_max_bytes()?;
        self.store_ttl_span()?;
        self.socket_access()?;
        self.class()?;
        if let Some(forwarder) = &self.forwarder {
            if let Err(error) = forwarder.check() {
                return wrong("forwarder", error.to_string());
            }
            if forwarder.nodes.len() != 1 {
                let reason = format!("an agent has one node, not {}", forwarder.nodes.len());
                return wrong("forwarder.node", reason);
            }
        }
        if let Some(rack_agent) = &self.rack_agent {
            rack_agent.check()?;
        }
        if let Some(hub) = &self.hub {
            hub.check()?;
        }
        if let Some(oci) = &self.oci {
            oci.check()?;
        }
        let limits = [
            ("objects-max", self.objects_max, 1 << 24),
            // A transfer has a thread of its own.
            ("sends-max", self.sends_max, 200),
            ("receives-max", self.receives_max, 200),
            // A stream that is heard has a thread of its own.
            ("streams-max", self.streams_max, 1_024),
            ("processes-max", self.processes_max, 1 << 20),
        ];
        for (setting, value, most) in limits {
            if !(1..=most).contains(&value) {
                return wrong(setting, format!("it must be 1 to {most}"));
            }
        }
        Ok(())
    }

    /// Checks that an agent can have this name.
    fn check_name(&self, name: &str) -> Result<(), SettingsError> {
        let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ',' | '/');
        let shows_certificate = self.tls_cert.is_some() || self.resolved_identity(name).is_some();
        let reason = if name.is_empty()
            || name.len() > 255
            || name == "all"
            || name.starts_with('.')
            || name.contains(odd)
        {
            format!(
                "'{name}' cannot be an agent's name: take letters without spaces, commas or slashes, and not 'all'"
            )
        } else if shows_certificate && name == self.manager_name {
            format!("'{name}' is what certificates call managers: give the agent another name (--name)")
        } else {
            return Ok(());
        };
        Err(SettingsError::Value { setting: "name", reason })
    }

    /// Returns the files with which the agent proves its name.
    #[must_use]
    pub fn identity_files(&self) -> IdentityFiles {
        IdentityFiles {
            key_file: self.key_file.clone(),
            tls_ca: self.tls_ca.clone(),
            tls_cert: self.tls_cert.clone(),
            tls_key: self.tls_key.clone(),
            tls_crl: self.tls_crl.clone(),
        }
    }

    /// Sets how the agent proves its name, where that is said.
    pub fn set_identity(&mut self, files: IdentityFiles) {
        let IdentityFiles { key_file, tls_ca, tls_cert, tls_key, tls_crl } = files.or(self.identity_files());
        (self.key_file, self.tls_crl) = (key_file, tls_crl);
        (self.tls_ca, self.tls_cert, self.tls_key) = (tls_ca, tls_cert, tls_key);
    }

    /// The folder for the certificate of the agent with this name, if it has one from the manager's
    /// authority.
    #[must_use]
    pub fn resolved_identity(&self, name: &str) -> Option<PathBuf> {
        let usual = || match std::env::var_os("XDG_STATE_HOME") {
            Some(folder) if !folder.is_empty() => PathBuf::from(folder).join("polycast").join(name),
            _ => PathBuf::from("/var/lib/polycast").join(name),
        };
        self.identity.clone().or_else(|| self.token.is_some().then(usual))
    }

    /// `store-max` in bytes.
    ///
    /// # Errors
    /// It is no size, or none that a store can have.
    pub fn store_max_bytes(&self) -> Result<Option<u64>, SettingsError> {
        let Some(text) = &self.store_max else { return Ok(None) };
        let bytes = parse_bytes(text).ok().filter(|bytes| STORE_MAX.contains(bytes));
        let reason = || format!("'{text}' is no size from 1MiB to 1024TiB, such as 8GiB");
        bytes.map(Some).ok_or_else(|| SettingsError::Value { setting: "store-max", reason: reason() })
    }

    /// `store-ttl` as a span.
    ///
    /// # Errors
    /// It is no time, or none that an object can stay.
    pub fn store_ttl_span(&self) -> Result<Option<Duration>, SettingsError> {
        let Some(text) = &self.store_ttl else { return Ok(None) };
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let unit = match &text[end..] {
            "s" | "" => Some(1),
            "m" => Some(60),
            "h" => Some(3_600),
            "d" => Some(86_400),
            _ => None,
        };
        let seconds = unit.and_then(|unit: u64| text[..end].parse::<u64>().ok()?.checked_mul(unit));
        let seconds = seconds.filter(|seconds| STORE_TTL_S.contains(seconds));
        let reason = || format!("'{text}' is no time from 1s to 3650d, such as 30m, 12h or 7d");
        let span = seconds.map(Duration::from_secs);
        span.map(Some).ok_or_else(|| SettingsError::Value { setting: "store-ttl", reason: reason() })
    }

    /// Asks the command for the zone, if there is one and no zone is named.
    ///
    /// # Errors
    /// The command fails, or names none.
    pub(super) fn ask_zone(&mut self) -> Result<(), SettingsError> {
        if let (None, Some(command)) = (&self.zone, &self.zone_command) {
            let wrong = |reason| SettingsError::Value { setting: "zone-command", reason };
            self.zone = Some(first_line(command, ZONE_WITHIN).map_err(wrong)?);
            check_label("zone-command", self.zone.as_deref())?;
        }
        Ok(())
    }

    /// Zone and rack of this host.
    ///
    /// # Errors
    /// One cannot have this name.
    pub fn location(&self) -> Result<Location, SettingsError> {
        check_label("rack", self.rack.as_deref())?;
        check_label("zone", self.zone.as_deref())?;
        let [zone, rack] = [&self.zone, &self.rack].map(|name| name.clone().unwrap_or_default());
        Ok(Location { zone, rack })
    }

    /// `dscp` as a class.
    ///
    /// # Errors
    /// There is no such class.
    pub(super) fn class(&self) -> Result<Option<Dscp>, SettingsError> {
        let wrong = |error: NoClass| SettingsError::Value { setting: "dscp", reason: error.to_string() };
        self.dscp.map(|class| Dscp::try_from(class).map_err(wrong)).transpose()
    }

    /// Returns the users who may use the socket.
    ///
    /// # Errors
    /// There is no such mode or group.
    pub(super) fn socket_access(&self) -> Result<Access, SettingsError> {
        let access = Access::of(self.socket_mode.as_deref(), self.socket_group.as_deref());
        access.map_err(|(setting, reason)| SettingsError::Value { setting, reason })
    }

    /// The agent's name.
    #[must_use]
    pub fn resolved_name(&self) -> String {
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        self.name.clone().unwrap_or_else(host)
    }

    /// The folder for received objects of the agent with this name.
    #[must_use]
    pub fn resolved_store(&self, name: &str) -> PathBuf {
        self.store.clone().unwrap_or_else(|| default_folder().join(name))
    }

    /// The Unix socket.
    #[must_use]
    pub fn resolved_socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(default_socket)
    }
}

/// Returns the first line that a command prints, without the spaces around it.
fn first_line(command: &[String], within: Duration) -> Result<String, String> {
    let Some((program, arguments)) = command.split_first() else { return Err("it is empty".into()) };
    let named = |what: &dyn std::fmt::Display| format!("'{}': {what}", command.join(" "));
    let mut asked = Command::new(program);
    asked.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut asked = asked.spawn().map_err(|error| named(&error))?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = asked.try_wait().map_err(|error| named(&error))? {
            break status;
        }
        if begun.elapsed() >= within {
            // It may have ended meanwhile.
            let _ = asked.kill();
            let _ = asked.wait();
            return Err(named(&format!("no end in {} s", within.as_secs_f64())));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    if !status.success() {
        return Err(named(&status));
    }
    let mut line = String::new();
    let answer = asked.stdout.take().expect("it is piped");
    BufReader::new(answer.take(ANSWER_MAX)).read_line(&mut line).map_err(|error| named(&error))?;
    Ok(line.trim().to_string())
}

/// Checks the name of the rack or zone of a host.
fn check_label(setting: &'static str, label: Option<&str>) -> Result<(), SettingsError> {
    let wrong = |reason| SettingsError::Value { setting, reason };
    label.map_or(Ok(()), |label| check_location_name(label).map_err(wrong))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_read() {
        let sample = include_str!("../../../../docs/agent.sample.toml");
        let config = AgentConfig::from_toml(sample).unwrap();
        config.check().unwrap();
        let default = AgentConfig { manager: config.manager.clone(), ..AgentConfig::default() };
        assert_eq!(format!("{config:?}"), format!("{default:?}"));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("manger = 'a:1'", "manger"),
            ("\n\ncontrol-port = 70000", "line 3"),
            ("", "'manager' is wrong"),
            ("manager = 'host'", "'host' is not HOST:PORT"),
            ("manager = 'host:0'", "'host:0'"),
            ("manager = 'a:1,b'", "'b' is not HOST:PORT"),
            ("manager = 'fd00::1'", "'fd00::1': an IPv6 address needs brackets"),
            ("manager = 'fd00::1:7400'", "brackets, as in [fd00::1]:7400"),
            ("manager = '[fe80::1]:7400'", "fe80::1 is an address of one link"),
            ("manager = '[fe80::1%eth0]:7400'", "fe80::1 is an address of one link"),
            ("manager = 'a:1'\nname = 'a b'", "'a b'"),
            ("manager = 'a:1'\nname = '../x'", "'../x'"),
            ("manager = 'a:1'\nname = 'all'", "not 'all'"),
            (
                "manager = 'a:1'\nname = 'manager'\ntls-cert = 'c'",
                "'manager' is what certificates call managers",
            ),
            (
                "manager = 'a:1'\nname = 'manager'\nidentity = 'd'",
                "'manager' is what certificates call managers",
            ),
            (
                "manager = 'a:1'\nname = 'm'\nmanager-name = 'm'\ntls-cert = 'c'",
                "give the agent another name",
            ),
            ("manager = 'a:1'\nrack = 'r 1'", "'r 1'"),
            ("manager = 'a:1'\nzone = ''", "'zone'"),
            ("manager = 'a:1'\nzone-command = 'hostname'", "line 2"),
            ("manager = 'a:1'\nsends-max = 0", "'sends-max'"),
            ("manager = 'a:1'\nstore-max = '8 apples'", "'8 apples' is no size"),
            ("manager = 'a:1'\nstore-max = '1'", "from 1MiB"),
            ("manager = 'a:1'\nsocket-mode = '640'", "'640' is none of 600"),
            ("manager = 'a:1'\nsocket-group = 'nogroupofthisname'", "'nogroupofthisname'"),
            ("manager = 'a:1'\nsocket-group = '4294967295'", "4294967295 is no group's number"),
            ("manager = 'a:1'\nstore = ''", "'store' is empty"),
            ("manager = 'a:1'\ndscp = 64", "the setting 'dscp' is wrong: 64 is no class: write 0 to 63"),
            ("manager = 'a:1'\ndscp = -1", "-1 is no class"),
            ("manager = 'a:1'\ndscp = 'ef'", "line 2"),
            ("manager = 'a:1'\n[oci]\nlisten = '0.0.0.0:7482'", "'oci.listen' is wrong"),
            ("manager = 'a:1'\n[hub]\nlisten = '0.0.0.0:7481'", "'hub.listen' is wrong"),
            ("manager = 'a:1'\n[hub]\nlisten = '127.0.0.1:7481'\nupsteam = 'x'", "line 4"),
            ("manager = 'a:1'\nstore-ttl = '7w'", "'7w' is no time"),
            ("manager = 'a:1'\nstore-ttl = '99999d'", "to 3650d"),
            ("manager = 'a:1'\n[forwarder]\nnode = []", "'forwarder'"),
            (
                "manager = 'a:1'\n[rack-agent]\ninterface = 'e'\ntopology = 'leaf-spine:2,1,3'\nserver = 6\n\
                 listen = '10.0.0.1:1'\nleaf-controller = '10.0.0.2:1'",
                "the servers 0 to 5, and no 6",
            ),
            ("manager = 'a:1'\n[[forwarder.node]]\nname = 'a'\nport = []", "1 to 128 ports, not 0"),
        ] {
            let checked = AgentConfig::from_toml(text).and_then(|config| config.check());
            let message = checked.unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn a_command_names_the_zone() {
        let ask = |command: &[&str], zone: Option<&str>| {
            let command = command.iter().map(ToString::to_string).collect();
            let zone = zone.map(Into::into);
            let mut config = AgentConfig { zone, zone_command: Some(command), ..AgentConfig::default() };
            config.ask_zone().and_then(|()| Ok(config.location()?.zone)).map_err(|error| error.to_string())
        };
        assert_eq!(ask(&["echo", " use1-az4"], None).as_deref(), Ok("use1-az4"));
        assert_eq!(ask(&["false"], Some("hall")).as_deref(), Ok("hall"), "it is not asked");
        for (command, part) in [
            (&[][..], "it is empty"),
            (&["false"], "'false': exit status: 1"),
            (&["no-such-program"], "'no-such-program': No such file"),
            (&["true"], "'' cannot be one"),
            (&["echo", "a b"], "'a b' cannot be one"),
        ] {
            let said = ask(command, None).unwrap_err();
            assert!(said.contains("'zone-command' is wrong") && said.contains(part), "{said}");
        }
        let sleep = ["sleep", "60"].map(String::from);
        let said = first_line(&sleep, Duration::from_millis(50));
        assert_eq!(said, Err("'sleep 60': no end in 0.05 s".into()));
    }
}
