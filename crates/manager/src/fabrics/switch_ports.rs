//! Settings of the circuit switch itself: its dialect, the user for it, and the uses of its ports.

use super::ocs::OcsSettings;
use super::{section, wrong};
use crate::config::ManagerConfig;
use polycast_api::settings::SettingsError;
use polycast_net::devices::circuits::{self, CircuitOptions, Dialect, Login};
use polycast_net::tls::{Security, TlsFiles};
use polycast_topology::optics::{SPLITTER_EXCESS_DB, splitter_loss_db};
use polycast_topology::{Hybrid, PortTable, SplitterPorts};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A longer file holds no password.
const PASSWORD_LEN_MAX: u64 = 1 << 10;

/// Certificates for connections with devices.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DeviceTls {
    /// Certificates of the authorities that have issued the devices' certificates.
    pub ca: PathBuf,
    /// The manager's own.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl DeviceTls {
    /// Returns the security of connections with devices.
    ///
    /// # Errors
    /// The setting that asks for it has no certificates, or they cannot be used.
    pub(crate) fn security(
        config: &ManagerConfig,
        asked_by: &'static str,
    ) -> Result<Security, SettingsError> {
        let Some(DeviceTls { ca, cert, key }) = config.device_tls.clone() else {
            return Err(wrong(asked_by, "it needs a section [device-tls] with ca, cert and key"));
        };
        Security::files(TlsFiles { ca, cert, key, crl: None }).map_err(|error| wrong("device-tls", error))
    }
}

/// A port by the switch's own name: `17`, or `"1.2.3"`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortName(pub String);

impl<'de> Deserialize<'de> for PortName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = PortName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port, such as 17 or \"1.2.3\"")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<PortName, E> {
                Ok(PortName(number.to_string()))
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<PortName, E> {
                Ok(PortName(name.into()))
            }
        }
        deserializer.deserialize_any(Name)
    }
}

/// The ports of a rack's fibres: one, or a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RackPorts(pub Vec<PortName>);

impl<'de> Deserialize<'de> for RackPorts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Ports;
        impl<'de> Visitor<'de> for Ports {
            type Value = RackPorts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rack's port on the circuit switch, or a list of them")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<RackPorts, E> {
                Ok(RackPorts(vec![PortName(number.to_string())]))
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<RackPorts, E> {
                Ok(RackPorts(vec![PortName(name.into())]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<RackPorts, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(list)).map(RackPorts)
            }
        }
        deserializer.deserialize_any(Ports)
    }
}

/// A splitter on the circuit switch.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SplitterSettings {
    /// The port that leads into it.
    pub input: PortName,
    /// The ports where its outputs come in.
    #[serde(default)]
    pub outputs: Vec<PortName>,
    /// Number of its outputs, to check the list by.
    pub fan_out: Option<u32>,
    /// Loss of light in it, in dB.
    pub loss_db: Option<f64>,
    /// Gain of the amplifier before it, in dB.
    pub amplifier_db: Option<f64>,
}

/// The splitters: how many there are, or each with its ports.
#[derive(Clone, PartialEq, Debug)]
pub enum Splitters {
    /// So many, cabled in the program's own order.
    Count(u32),
    /// These.
    Table(Vec<SplitterSettings>),
}

impl<'de> Deserialize<'de> for Splitters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Splitters;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of splitters, or a list such as [{ input = 9, outputs = [10, 11] }]")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Splitters, E> {
                let count =
                    u32::try_from(number).map_err(|_| E::custom("there cannot be so many splitters"))?;
                Ok(Splitters::Count(count))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Splitters, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(list)).map(Splitters::Table)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// The circuit switch as the planner has it.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) hybrid: Hybrid,
    pub(crate) ports: PortTable,
    pub(crate) dialect: Arc<dyn Dialect>,
}

/// Reads the section `[ocs]` as far as it is about the switch.
pub(crate) fn layout(config: &ManagerConfig) -> Result<Layout, SettingsError> {
    let settings = section("ocs", &config.ocs)?;
    let dialect = circuits::dialect(&settings.dialect, settings.ports);
    let dialect = dialect.map_err(|error| wrong("ocs.dialect", error))?;
    let fibres: Vec<u32> = config.tor.iter().map(|tor| tor.fibre_ports.len() as u32).collect();
    if fibres.first().is_none_or(|fibres| *fibres == 0) {
        return Err(wrong("tor", "circuits need racks with fibre-ports: name one [[tor]] a rack"));
    }
    let hybrid = Hybrid {
        racks: config.tor.len() as u32,
        servers_per_rack: super::tors::servers_per_rack(config),
        ports_per_rack: fibres[0],
        splitters: 0,
        splitter_fanout: 2,
    };
    match (&settings.rack_ports, &settings.splitters) {
        (None, Splitters::Count(splitters)) => {
            if let Some(rack) = fibres.iter().position(|count| *count != fibres[0]) {
                let reason = format!(
                    "rack {rack} has {} of them and rack 0 has {}: give all racks as many, or name their ports in ocs.rack-ports",
                    fibres[rack], fibres[0]
                );
                return Err(wrong("tor.fibre-ports", reason));
            }
            let fanout = settings.splitter_fanout;
            let fanout = match (fanout, splitters) {
                (Some(fanout), _) => fanout,
                (None, 0) => 2,
                (None, _) => {
                    return Err(wrong("ocs.splitter-fanout", "say how many outputs each splitter has"));
                }
            };
            let hybrid = Hybrid { splitters: *splitters, splitter_fanout: fanout, ..hybrid };
            let hybrid = hybrid.checked(settings.ports).map_err(|error| wrong("ocs", error))?;
            Ok(Layout { hybrid, ports: in_order(&hybrid, &*dialect), dialect })
        }
        (Some(racks), Splitters::Table(splitters)) => {
            let ports = table(config, settings, &*dialect, racks, splitters, &fibres)?;
            let fanout = ports.splitters().iter().map(SplitterPorts::fanout).max().unwrap_or(2);
            let hybrid = Hybrid { splitters: splitters.len() as u32, splitter_fanout: fanout, ..hybrid };
            Ok(Layout { hybrid, ports, dialect })
        }
        (Some(_), Splitters::Count(_)) => Err(wrong(
            "ocs.splitters",
            "with rack-ports name each splitter's ports too, such as [{ input = 9, outputs = [10, 11] }]",
        )),
        (None, Splitters::Table(_)) => Err(wrong(
            "ocs.rack-ports",
            "with a list of splitters name each rack's port too, such as [1, 2, 3]",
        )),
    }
}

/// The program's own order, in the switch's names.
fn in_order(hybrid: &Hybrid, dialect: &dyn Dialect) -> PortTable {
    let plain = PortTable::of(hybrid);
    let name = |ports: &[u32]| ports.iter().map(|port| dialect.nth_port(*port)).collect::<Vec<u32>>();
    let racks = (0..hybrid.racks).map(|rack| name(plain.of_rack(rack))).collect();
    let splitter = |splitter: &SplitterPorts| SplitterPorts {
        input: dialect.nth_port(splitter.input),
        outputs: name(&splitter.outputs),
        ..*splitter
    };
    let splitters = plain.splitters().iter().map(splitter).collect();
    // Names of different places differ.
    PortTable::new(racks, splitters).unwrap_or(plain)
}

fn table(
    config: &ManagerConfig,
    settings: &OcsSettings,
    dialect: &dyn Dialect,
    racks: &[RackPorts],
    splitters: &[SplitterSettings],
    fibres: &[u32],
) -> Result<PortTable, SettingsError> {
    if racks.len() != config.tor.len() {
        let (named, racks) = (racks.len(), config.tor.len());
        return Err(wrong("ocs.rack-ports", format!("it names {named} racks and there are {racks} [[tor]]")));
    }
    let mut seen: BTreeMap<u32, String> = BTreeMap::new();
    let mut port = |setting, owner: String, name: &PortName| {
        let number = dialect.port(&name.0).filter(|port| {
            // Only where ports are counted.
            dialect.nth_port(0) != 0 || *port < settings.ports
        });
        let number = number.ok_or_else(|| {
            let first = dialect.port_name(dialect.nth_port(0));
            let last = dialect.port_name(dialect.nth_port(settings.ports.saturating_sub(1)));
            let dialect = dialect.name();
            wrong(
                setting,
                format!(
                    "{owner}: '{}' is no port of a {dialect} switch, which are such as {first} to {last}",
                    name.0
                ),
            )
        })?;
        match seen.insert(number, owner.clone()) {
            None => Ok(number),
            Some(other) => {
                let reason = format!("port {} is {other}'s and {owner}'s: a port is in one place", name.0);
                Err(wrong(setting, reason))
            }
        }
    };
    let mut of_racks = Vec::with_capacity(racks.len());
    for (rack, (ports, fibres)) in racks.iter().zip(fibres).enumerate() {
        if ports.0.len() != *fibres as usize {
            let reason = format!(
                "rack {rack} has {} ports on the circuit switch and {fibres} fibre-ports: name as many of both",
                ports.0.len()
            );
            return Err(wrong("ocs.rack-ports", reason));
        }
        let owner = format!("rack {rack}");
        let ports = ports.0.iter().map(|name| port("ocs.rack-ports", owner.clone(), name));
        of_racks.push(ports.collect::<Result<_, _>>()?);
    }
    let mut of_splitters = Vec::with_capacity(splitters.len());
    for (number, splitter) in splitters.iter().enumerate() {
        check_splitter(number, splitter)?;
        let owner = format!("splitter {number}");
        let mut port = |name: &PortName| port("ocs.splitters", owner.clone(), name);
        let (input, outputs) =
            (port(&splitter.input)?, splitter.outputs.iter().map(&mut port).collect::<Result<_, _>>()?);
        let (loss_db, gain_db) = (splitter.loss_db, splitter.amplifier_db);
        let usual =
            settings.splitter_loss_db.unwrap_or_else(|| splitter_loss_db(splitter.outputs.len() as u32));
        of_splitters.push(SplitterPorts { input, outputs, loss_db: Some(loss_db.unwrap_or(usual)), gain_db });
    }
    PortTable::new(of_racks, of_splitters).map_err(|error| wrong("ocs.splitters", error))
}

fn check_splitter(number: usize, splitter: &SplitterSettings) -> Result<(), SettingsError> {
    let wrong = |reason: String| Err(wrong("ocs.splitters", format!("splitter {number} {reason}")));
    let outputs = splitter.outputs.len();
    match (outputs, splitter.fan_out) {
        (0, _) => return wrong("has no outputs: list the ports where they come in".into()),
        (1, _) => return wrong("has one output: a splitter has at least 2".into()),
        (_, Some(fan_out)) if fan_out as usize != outputs => {
            return wrong(format!("has the fan-out {fan_out} and {outputs} outputs: list as many outputs"));
        }
        _ => {}
    }
    let even = splitter_loss_db(outputs as u32) - SPLITTER_EXCESS_DB;
    match (splitter.loss_db, splitter.amplifier_db) {
        (Some(loss), _) if !loss.is_finite() || loss < even => {
            wrong(format!("loses {loss} dB, and one of {outputs} outputs loses at least {even:.1}"))
        }
        (_, Some(gain)) if !gain.is_finite() || gain < 0.0 => {
            wrong(format!("has an amplifier of {gain} dB: write 0 or more"))
        }
        _ => Ok(()),
    }
}

/// Returns the options of the connection to the switch.
pub(crate) fn options(config: &ManagerConfig) -> Result<CircuitOptions, SettingsError> {
    let settings = section("ocs", &config.ocs)?;
    let dialect = layout(config)?.dialect;
    let login = match (&settings.user, &settings.password_file) {
        (None, None) => None,
        (Some(_), _) | (_, Some(_)) if !dialect.has_login() => {
            let reason =
                format!("the dialect {} has no login: leave user and password-file out", dialect.name());
            return Err(wrong("ocs.user", reason));
        }
        (Some(user), Some(path)) => {
            let is_word = |letter: char| letter.is_ascii_graphic() && !";:,\"\\".contains(letter);
            if user.is_empty() || !user.chars().all(is_word) {
                return Err(wrong("ocs.user", "it must be a word without any of ; : , \" and \\"));
            }
            Some(Login { user: user.clone(), password: password(path)? })
        }
        (Some(_), None) => {
            return Err(wrong("ocs.password-file", "name the file that holds the password of ocs.user"));
        }
        (None, Some(_)) => return Err(wrong("ocs.user", "say whose password is in ocs.password-file")),
    };
    let security = settings.tls.then(|| DeviceTls::security(config, "ocs.tls")).transpose()?;
    let within = Duration::from_millis(config.device_timeout_ms);
    let (connect_timeout, command_timeout) = (within, within);
    Ok(CircuitOptions { login, security, connect_timeout, command_timeout, ..CircuitOptions::new(dialect) })
}

/// The first line of a file that only its owner can read.
fn password(path: &Path) -> Result<String, SettingsError> {
    let wrong = |reason: String| wrong("ocs.password-file", reason);
    let unreadable = |error: std::io::Error| wrong(format!("{} cannot be read: {error}", path.display()));
    let metadata: Metadata = std::fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(wrong(format!("{} is no regular file", path.display())));
    }
    if metadata.mode() & 0o077 != 0 {
        let (path, mode) = (path.display(), metadata.mode() & 0o777);
        return Err(wrong(format!("others can read {path} (its mode is {mode:o}): chmod 600 {path}")));
    }
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(PASSWORD_LEN_MAX).read_to_string(&mut text))
        .map_err(unreadable)?;
    let password = text.lines().next().unwrap_or_default();
    if password.is_empty() || !password.chars().all(|letter| letter.is_ascii_graphic() && letter != ';') {
        let path = path.display();
        return Err(wrong(format!(
            "the first line of {path} is no password: write letters, digits and signs but no ;"
        )));
    }
    Ok(password.into())
}
