//! The manager's settings, as TOML. `docs/manager.sample.toml` explains each.

use crate::audit::AuditSettings;
use crate::fabrics;
use crate::scheduling::SchedulerSettings;
use polycast_api::settings::{self, SettingsError};
use polycast_net::tls::{ForeignServer, IdentityFiles, MANAGER};
use polycast_planning::ip_multicast::IpMulticast;
use polycast_planning::tcp_chain::TcpChain;
use polycast_protocol::leases;
use polycast_types::Rate;
use polycast_wire::permit::PERMIT_LIFE_MAX_S;
use serde::Deserialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The shortest file of an audit log.
const AUDIT_LOG_MIN: u64 = 1 << 20;
/// So many full ones may be kept.
const AUDIT_LOGS_MAX: usize = 1_000;

/// Settings of a manager; what is left out has the value of `Default`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct ManagerConfig {
    /// Address where agents reach the manager; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// File with the cluster's key, as `polycast key new FILE` writes it: with it only agents that have the
    /// key reach the manager, and only they read what is said.
    pub key_file: Option<PathBuf>,
    /// Certificates (PEM) of the authorities that are trusted, in place of a key.
    pub tls_ca: Option<PathBuf>,
    /// The manager's own certificate, with those between it and its authority.
    pub tls_cert: Option<PathBuf>,
    /// Private key of that certificate. Agents join by the names in their certificates; files that change are
    /// read again.
    pub tls_key: Option<PathBuf>,
    /// Lists (PEM) of certificates that the authorities have revoked: agents that show one are let in no
    /// more, and taken out of what runs.
    pub tls_crl: Option<PathBuf>,
    /// The DNS name by which agents know managers: it is in the certificate of each manager, and in no
    /// agent's.
    pub manager_name: String,
    /// In place of all these: folder of an authority of its own, which is made where there is none. It gives
    /// certificates to agents that come with a token.
    pub ca: Option<PathBuf>,
    /// Allows the manager to listen to other machines with neither key nor certificate.
    pub insecure: bool,
    /// Address of the manager's monitoring page: `/view`, `/metrics`, `/healthz` and `/readyz`; without it
    /// there is none.
    pub http: Option<SocketAddr>,
    /// File with the token that `/view` asks for; without one only this machine sees the view.
    pub view_token_file: Option<PathBuf>,
    /// Lifetime of a transfer's permit, in seconds. A source gets another one when half of it is over.
    pub permit_s: u64,
    /// File that says which agents may send what to which, and how much at a time; read again when it
    /// changes.
    pub policy: Option<PathBuf>,
    /// File in which the manager writes down whom it has let in and what it has allowed and refused, a line
    /// each.
    pub audit_log: Option<PathBuf>,
    /// Maximum length of that file before the next one is begun.
    #[serde(deserialize_with = "bytes")]
    pub audit_log_max: u64,
    /// Number of full audit logs that are kept.
    pub audit_logs_kept: usize,
    /// The scheduler: its name, or a section where an external one decides before it.
    pub scheduler: SchedulerSettings,
    /// Names of the fabrics, best first; a name that there is not is refused with the list of all.
    pub fabrics: Vec<String>,
    /// Method that chooses a fabric for a request.
    pub choose: Choose,
    /// Rate of a host's link, for the estimates of fabrics that do not say a rate; without it that of
    /// `[ip-multicast]` or `[datacast]`, or 1 Gbit/s.
    #[serde(deserialize_with = "fabrics::some_rate")]
    pub link_rate: Option<Rate>,
    /// Handling of a request whose best fabric is in use.
    pub when_busy: Option<WhenBusy>,
    /// Handling of a path whose devices fail.
    pub on_device_failure: OnDeviceFailure,
    /// Number of released paths that devices keep, ready for the same hosts again.
    pub kept_paths_max: usize,
    /// Time that a device may take to answer, in milliseconds.
    pub device_timeout_ms: u64,
    /// Time that a rack's port may take to report light once its circuits are there, in milliseconds.
    pub light_grace_ms: u64,
    /// Interval between an agent's heartbeats, in milliseconds.
    pub heartbeat_ms: u64,
    /// An agent that has been silent for this long is gone, in milliseconds.
    pub silence_ms: u64,
    /// Lifetime of a lease without a heartbeat that names it, in milliseconds.
    pub lease_ms: u64,
    /// Time that an agent whose session has ended may take to come back before it is dead, in milliseconds.
    pub reconnect_ms: u64,
    /// Several managers, of which one leads.
    pub etcd: EtcdConfig,
    /// The most bytes of one grant; a transfer of more has several paths one after the other.
    #[serde(deserialize_with = "some_bytes")]
    pub grant_max: Option<u64>,
    /// Maximum number of agents.
    pub agents_max: usize,
    /// Maximum number of requests that wait for a path.
    pub pending_max: usize,
    /// Maximum number of paths that are leased at the same time.
    pub leases_max: usize,
    /// Maximum number of leased paths that one agent holds at the same time.
    pub agent_leases_max: usize,
    /// Maximum number of leased paths to one agent at the same time; other transfers to it wait.
    pub receiver_leases_max: usize,
    /// Maximum number of agents from one address.
    pub address_agents_max: usize,
    /// Objects that are asked for, and topics.
    pub objects: ObjectsConfig,
    /// The fabric `ip-multicast`.
    pub ip_multicast: fabrics::ip_multicast::IpMulticastSettings,
    /// The fabric `ocs`.
    pub ocs: Option<fabrics::ocs::OcsSettings>,
    /// The fabric `shufflecast`.
    pub shufflecast: Option<fabrics::shufflecast::ShufflecastSettings>,
    /// The fabric `orca`.
    pub orca: Option<fabrics::orca::OrcaSettings>,
    /// The fabric `datacast`.
    pub datacast: Option<fabrics::datacast::DatacastSettings>,
    /// Address for racks' switches that connect to their controller, and are known by their datapath ids.
    pub openflow_listen: Option<SocketAddr>,
    /// Certificates for connections with devices.
    pub device_tls: Option<fabrics::switch_ports::DeviceTls>,
    /// The switches of the racks, by the racks' numbers, for the fabrics that need to know them.
    pub tor: Vec<fabrics::tors::TorSettings>,
}

/// Method that chooses a fabric for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choose {
    /// The one by which the object is there earliest, as far as is estimated; of those that are about equal
    /// the first.
    #[default]
    Time,
    /// The first that can.
    Order,
}

/// Handling of a request whose best fabric is in use. Without the setting it takes the next if fabrics are
/// chosen by their order, and waits if they are chosen by time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenBusy {
    /// The next fabric that is free carries it.
    Next,
    /// It waits for the best fabric that could carry it; where fabrics are chosen by time only as long as
    /// that gains time.
    Wait,
}

/// Handling of a path whose devices fail to set it up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnDeviceFailure {
    /// The next fabric that has a path takes its place.
    #[default]
    Fallback,
    /// The transfer waits, and the devices are told again and again.
    Wait,
}

/// Several managers, of which one leads: they find each other and keep the leader's state in etcd.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct EtcdConfig {
    /// Addresses of etcd, `HOST:PORT` each; without one there is one manager, which keeps its state to
    /// itself.
    pub endpoints: Vec<String>,
    /// Certificates (PEM) of the authorities that may have issued the servers' certificates: with it etcd is
    /// reached over TLS.
    pub ca: Option<PathBuf>,
    /// The manager's own certificate, where etcd asks to see one.
    pub cert: Option<PathBuf>,
    /// Private key of that certificate.
    pub key: Option<PathBuf>,
    /// Prefix of the keys; managers with the same prefix belong together.
    pub prefix: String,
    /// Address at which agents reach this manager, as they have it in their settings; without one that of
    /// `listen`.
    pub advertise: Option<String>,
    /// Time between the leader's last sign of life and the takeover by another manager, in seconds.
    pub ttl_s: u64,
}

impl Default for EtcdConfig {
    fn default() -> Self {
        EtcdConfig {
            endpoints: Vec::new(),
            ca: None,
            cert: None,
            key: None,
            prefix: "/polycast".into(),
            advertise: None,
            ttl_s: 2,
        }
    }
}

impl EtcdConfig {
    /// Returns the TLS settings for connections to its servers, if they use TLS.
    ///
    /// # Errors
    /// The settings are wrong, or the files cannot be used.
    pub(crate) fn server(&self) -> Result<Option<ForeignServer>, SettingsError> {
        let wrong = |setting, reason: String| Err(SettingsError::Value { setting, reason });
        let own = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return wrong("etcd.key", "etcd.cert needs its private key".into()),
            (None, Some(_)) => return wrong("etcd.cert", "etcd.key needs its certificate".into()),
        };
        let Some(ca) = self.ca.clone() else {
            return match own {
                Some(_) => {
                    wrong("etcd.ca", "etcd.cert and etcd.key are for TLS: name etcd's authority here".into())
                }
                None => Ok(None),
            };
        };
        let server = ForeignServer { ca, own };
        match server.config() {
            Ok(_) => Ok(Some(server)),
            Err(error) => wrong("etcd.ca", error.to_string()),
        }
    }
}

/// Objects that are asked for, and topics.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct ObjectsConfig {
    /// Time during which requests for the same object are gathered before they are served together, in
    /// milliseconds.
    pub window_ms: u64,
    /// Time that a manager that has just begun waits for agents to report their objects, in milliseconds;
    /// absent: as long as they may take to come.
    pub settle_ms: Option<u64>,
    /// Maximum number of objects, of all agents together, that other agents can find.
    pub holds_max: usize,
}

impl Default for ObjectsConfig {
    fn default() -> Self {
        ObjectsConfig { window_ms: 50, settle_ms: None, holds_max: 1 << 18 }
    }
}

impl From<OnDeviceFailure> for leases::OnDeviceFailure {
    fn from(setting: OnDeviceFailure) -> Self {
        match setting {
            OnDeviceFailure::Fallback => Self::Fallback,
            OnDeviceFailure::Wait => Self::Wait,
        }
    }
}

impl Default for ManagerConfig {
    fn default() -> Self {
        ManagerConfig {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7400)),
            key_file: None,
            tls_ca: None,
            tls_cert: None,
            tls_key: None,
            tls_crl: None,
            manager_name: MANAGER.into(),
            ca: None,
            insecure: false,
            http: None,
            view_token_file: None,
            permit_s: 600,
            policy: None,
            audit_log: None,
            audit_log_max: 64 << 20,
            audit_logs_kept: 8,
            scheduler: SchedulerSettings::default(),
            fabrics: vec![IpMulticast::NAME.into(), TcpChain::NAME.into()],
            choose: Choose::default(),
            link_rate: None,
            when_busy: None,
            on_device_failure: OnDeviceFailure::default(),
            kept_paths_max: 16,
            device_timeout_ms: 2_000,
            light_grace_ms: 1_000,
            heartbeat_ms: 1_000,
            silence_ms: 4_000,
            lease_ms: 30_000,
            reconnect_ms: 2_000,
            etcd: EtcdConfig::default(),
            grant_max: None,
            agents_max: 10_000,
            pending_max: 1_024,
            leases_max: 10_000,
            agent_leases_max: 64,
            // An agent receives 16 objects of one source at a time, and a source gives its path back a moment
            // before it has.
            receiver_leases_max: 12,
            address_agents_max: 256,
            objects: ObjectsConfig::default(),
            ip_multicast: Default::default(),
            ocs: None,
            shufflecast: None,
            orca: None,
            datacast: None,
            openflow_listen: None,
            device_tls: None,
            tor: Vec::new(),
        }
    }
}

impl ManagerConfig {
    /// Reads and checks the settings in a file.
    ///
    /// # Errors
    /// It cannot be read, or the settings in it are wrong.
    pub fn load(path: &Path) -> Result<Self, SettingsError> {
        Self::from_toml(&settings::read(path)?)
    }

    /// Reads and checks settings.
    ///
    /// # Errors
    /// The settings are wrong.
    pub fn from_toml(text: &str) -> Result<Self, SettingsError> {
        let config: ManagerConfig = settings::parse(text)?;
        config.check()?;
        Ok(config)
    }

    /// Returns the time that agents may take to come to a manager that has just begun: they come back with
    /// growing pauses, and an agent that has not come by then is dead.
    pub(crate) fn patience(&self) -> std::time::Duration {
        std::time::Duration::from_millis(self.reconnect_ms.max(self.silence_ms))
    }

    /// Returns the settings of the audit log, if there is one.
    pub(crate) fn audit(&self) -> Option<AuditSettings> {
        let (bytes_max, kept) = (self.audit_log_max, self.audit_logs_kept);
        self.audit_log.clone().map(|path| AuditSettings::new(path, bytes_max, kept))
    }

    /// Returns the files with which the manager proves its name.
    #[must_use]
    pub fn identity(&self) -> IdentityFiles {
        IdentityFiles {
            key_file: self.key_file.clone(),
            tls_ca: self.tls_ca.clone(),
            tls_cert: self.tls_cert.clone(),
            tls_key: self.tls_key.clone(),
            tls_crl: self.tls_crl.clone(),
        }
    }

    /// Sets how the manager proves its name, where that is said.
    pub fn set_identity(&mut self, files: IdentityFiles) {
        let IdentityFiles { key_file, tls_ca, tls_cert, tls_key, tls_crl } = files.or(self.identity());
        (self.key_file, self.tls_crl) = (key_file, tls_crl);
        (self.tls_ca, self.tls_cert, self.tls_key) = (tls_ca, tls_cert, tls_key);
    }

    fn check_etcd(&self) -> Result<(), SettingsError> {
        let EtcdConfig { endpoints, advertise, ttl_s, prefix, .. } = &self.etcd;
        let wrong = |setting, reason: String| Err(SettingsError::Value { setting, reason });
        let is_address = |text: &String| {
            text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        if let Some(address) = endpoints.iter().find(|address| !is_address(address)) {
            return wrong("etcd.endpoints", format!("'{address}' is not HOST:PORT, such as 10.0.0.1:2379"));
        }
        if let Some(address) = advertise.as_ref().filter(|address| !is_address(address)) {
            return wrong("etcd.advertise", format!("'{address}' is not HOST:PORT, such as 10.0.0.1:7400"));
        }
        if !endpoints.is_empty() && advertise.is_none() && self.listen.ip().is_unspecified() {
            let reason = "say at which address agents reach this manager, because it listens on all".into();
            return wrong("etcd.advertise", reason);
        }
        self.etcd.server()?;
        if !(1..=3_600).contains(ttl_s) {
            return wrong("etcd.ttl-s", "it must be 1 to 3600".into());
        }
        if prefix.is_empty() {
            return wrong("etcd.prefix", "it must not be empty".into());
        }
        Ok(())
    }

    /// Checks what types alone don't.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn check(&self) -> Result<(), SettingsError> {
        fabrics::check(self)?;
        self.scheduler.external()?;
        let positive = [
            ("heartbeat-ms", self.heartbeat_ms),
            ("objects.holds-max", self.objects.holds_max as u64),
            ("device-timeout-ms", self.device_timeout_ms),
            ("reconnect-ms", self.reconnect_ms),
            ("grant-max", self.grant_max.unwrap_or(u64::MAX)),
            ("agents-max", self.agents_max as u64),
            ("pending-max", self.pending_max as u64),
            ("leases-max", self.leases_max as u64),
            ("agent-leases-max", self.agent_leases_max as u64),
            ("receiver-leases-max", self.receiver_leases_max as u64),
            ("address-agents-max", self.address_agents_max as u64),
        ];
        for (setting, value) in positive {
            if value == 0 {
                return Err(SettingsError::Value { setting, reason: "it must not be 0".into() });
            }
        }
        if self.ca.is_some() && self.manager_name != MANAGER {
            let reason =
                format!("managers with an authority of their own (ca) are called '{MANAGER}': leave it out");
            return Err(SettingsError::Value { setting: "manager-name", reason });
        }
        if !(60..=PERMIT_LIFE_MAX_S).contains(&self.permit_s) {
            let reason = format!("it must be 60 to {PERMIT_LIFE_MAX_S}");
            return Err(SettingsError::Value { setting: "permit-s", reason });
        }
        if self.audit_log_max < AUDIT_LOG_MIN {
            let reason = "it must be at least 1MiB".into();
            return Err(SettingsError::Value { setting: "audit-log-max", reason });
        }
        if self.audit_logs_kept > AUDIT_LOGS_MAX {
            let reason = format!("it must be 0 to {AUDIT_LOGS_MAX}");
            return Err(SettingsError::Value { setting: "audit-logs-kept", reason });
        }
        self.check_etcd()?;
        // With fewer, one lost heartbeat would end an agent's membership or a lease.
        let longer = self.heartbeat_ms.saturating_mul(2);
        for (setting, value) in [("silence-ms", self.silence_ms), ("lease-ms", self.lease_ms)] {
            if value < longer {
                let reason = format!("it must be at least twice heartbeat-ms, {longer}");
                return Err(SettingsError::Value { setting, reason });
            }
        }
        Ok(())
    }
}

fn bytes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    polycast_types::parse_bytes(&text).map_err(serde::de::Error::custom)
}

fn some_bytes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(deserializer)?;
    polycast_types::parse_bytes(&text).map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fabrics_of(config: &ManagerConfig) -> polycast_planning::Fabrics {
        fabrics::fabrics(config, &fabrics::Hosts::new(config, &[])).unwrap()
    }

    fn devices_of(
        config: &ManagerConfig,
    ) -> std::collections::BTreeMap<crate::devices::DeviceId, Box<dyn crate::devices::Device>> {
        fabrics::devices(config, &fabrics::Hosts::new(config, &[]), None).unwrap()
    }

    #[test]
    fn nothing_said_is_the_default() {
        let config = ManagerConfig::from_toml("").unwrap();
        assert_eq!(config.listen.port(), 7400);
        assert_eq!(fabrics_of(&config).names().collect::<Vec<_>>(), ["ip-multicast", "tcp-chain"]);
    }

    #[test]
    fn the_sample_says_what_is_the_default() {
        let sample = include_str!("../../../docs/manager.sample.toml");
        let config = ManagerConfig::from_toml(sample).unwrap();
        assert_eq!(format!("{config:?}"), format!("{:?}", ManagerConfig::default()));
    }

    #[test]
    fn all_of_it_can_be_set() {
        let text = "
            listen = '10.0.0.1:9000'
            fabrics = ['tcp-chain']
            lease-ms = 5000
            [ip-multicast]
            pool = '239.1.0.0/16'
            rate = '5gbit'
        ";
        let config = ManagerConfig::from_toml(text).unwrap();
        assert_eq!(config.ip_multicast.rate, Some(Rate(5_000_000_000)));
        assert_eq!(fabrics_of(&config).names().collect::<Vec<_>>(), ["tcp-chain"]);
    }

    /// Two racks of two hosts with a fibre each.
    fn racks(subnets: bool, splitter_ports: &str) -> String {
        let one = |rack: u32| {
            let subnet = if subnets { format!("subnet = '10.0.{rack}.0/24'\n") } else { String::new() };
            let (a, b) = (2 * rack, 2 * rack + 1);
            format!(
                "[[tor]]\nopenflow = '10.0.255.{rack}:6653'\n{subnet}fibre-ports = [9]\n{splitter_ports}\n\
                 hosts = [{{ name = 'h{a}', port = 1 }}, {{ name = 'h{b}', port = 2 }}]\n"
            )
        };
        (0..2).map(one).collect()
    }

    const OCS: &str = "[ocs]\ntl1 = '10.0.0.1:3083'\nsplitters = 1\nsplitter-fanout = 4\nrate = '10gbit'\n";

    #[test]
    fn optical_fabrics_have_their_sections() {
        let text = format!(
            "fabrics = ['ocs', 'tcp-chain']\nscheduler = 'greedy-matching'\n{OCS}{}",
            racks(false, "")
        );
        let config = ManagerConfig::from_toml(&text).unwrap();
        assert_eq!(fabrics_of(&config).names().collect::<Vec<_>>(), ["ocs", "tcp-chain"]);
        assert_eq!(devices_of(&config).len(), 3);
        assert_eq!(fabrics::host_names(&config).collect::<Vec<_>>(), ["h0", "h1", "h2", "h3"]);
        let racks = racks(true, "splitter-ports = [10, 11]");
        let text = format!(
            "fabrics = ['shufflecast']\nscheduler = 'partition-fcfs'\n[shufflecast]\np = 2\nk = 1\nrate = '1gbit'\n{racks}"
        );
        let config = ManagerConfig::from_toml(&text).unwrap();
        assert_eq!(devices_of(&config).len(), 2);
    }

    /// Two racks as a 2,2-Shufflecast of eight: each stands for four.
    #[test]
    fn racks_may_stand_for_several_logical_ones() {
        let (out, inward) =
            ("fibre-ports = [9, 20, 21, 22]", "splitter-ports = [10, 11, 12, 13, 14, 15, 16, 17]");
        let racks = racks(true, inward).replace("fibre-ports = [9]", out);
        let text = format!(
            "fabrics = ['shufflecast']\n[shufflecast]\np = 2\nk = 2\ntors = 2\nbudget-db = 4.1\nrate = '1gbit'\n{racks}"
        );
        let config = ManagerConfig::from_toml(&text).unwrap();
        assert_eq!((devices_of(&config).len(), fabrics::health(&config).unwrap().len()), (2, 1));
        let one_table = text.replace("fibre-ports", "tables = 1\nfibre-ports");
        let message = ManagerConfig::from_toml(&one_table).unwrap_err().to_string();
        assert!(message.contains("rack 0 stands for 4 logical ToRs and gets as many copies"), "{message}");
    }

    const ORCA: &str = "fabrics = ['orca', 'tcp-chain']\n[orca]\nswitches = '10.0.0.1:7475'\ncontroller = '127.0.0.1:7476'\n\
         leaf-controllers = ['10.0.0.2:7476', '10.0.0.3:7476', '10.0.0.4:7476', '10.0.0.5:7476']\npods = 2\nleafs = 2\n\
                        spines = 2\ncores = 1\nservers = 2\nhosts = ['a', 'b', 'c']\n";

    #[test]
    fn the_fabric_with_labels_has_its_section() {
        let config = ManagerConfig::from_toml(ORCA).unwrap();
        assert_eq!(fabrics_of(&config).names().collect::<Vec<_>>(), ["orca", "tcp-chain"]);
        assert_eq!(devices_of(&config).len(), 1);
        assert_eq!(fabrics::host_names(&config).collect::<Vec<_>>(), ["a", "b", "c"]);
        let nine = "hosts = ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i']";
        for (text, part) in [
            ("fabrics = ['orca']".to_string(), "the fabric orca needs a section [orca]"),
            (ORCA.replace("hosts = ['a', 'b', 'c']", nine), "9 hosts are named, and there are 8 servers"),
            (ORCA.replace("pods = 2", "pods = 0"), "'orca'"),
            (ORCA.replace("'c']", "'a']"), "the host 'a' is named twice"),
            (format!("{ORCA}filter-bits = 0\n"), "the filter cannot have 0 bits"),
            (format!("{ORCA}entries-max = 0\n"), "'orca.entries-max'"),
            (format!("{ORCA}pool = 'x'\n"), "'orca.pool'"),
            (format!("{ORCA}speed = 1\n"), "speed"),
        ] {
            let message = ManagerConfig::from_toml(&text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    const DATACAST: &str = "fabrics = ['datacast', 'tcp-chain']\n[datacast]\nnetwork = 'bcube:2,2'\nlink-rate = '1gbit'\n\
                            hosts = ['a', 'b', 'c']\nforwarders = ['10.0.0.1:7403', '10.0.0.2:7403']\n";

    #[test]
    fn the_fabric_with_caches_has_its_section() {
        let config = ManagerConfig::from_toml(DATACAST).unwrap();
        assert_eq!(fabrics_of(&config).names().collect::<Vec<_>>(), ["datacast", "tcp-chain"]);
        assert_eq!((devices_of(&config).len(), fabrics::health(&config).unwrap().len()), (1, 1));
        assert_eq!(fabrics::host_names(&config).collect::<Vec<_>>(), ["a", "b", "c"]);
        for (text, part) in [
            ("fabrics = ['datacast']".to_string(), "the fabric datacast needs a section [datacast]"),
            (DATACAST.replace("'c']", "'c', 'd', 'e']"), "5 hosts are named, and bcube:2,2 has 4 servers"),
            (DATACAST.replace("'c']", "'a']"), "the host 'a' is named twice"),
            (DATACAST.replace("bcube:2,2", "ring:5"), "'datacast.network'"),
            (DATACAST.replace("1gbit", "0"), "line"),
            (DATACAST.replace("10.0.0.2:7403", "there"), "'there' is neither HOST:PORT"),
            (DATACAST.replace("10.0.0.2:7403", "@10.0.0.2:7403"), "nor NAME@HOST:PORT"),
            (format!("{DATACAST}credits = 0\n"), "'datacast.credits'"),
            (format!("{DATACAST}payload-bytes = 0\n"), "'datacast.payload-bytes'"),
            (format!("{DATACAST}trees-max = 0\n"), "'datacast.trees-max'"),
            (format!("{DATACAST}caches = 1\n"), "caches"),
            (format!("{DATACAST}hops-max = 15\n"), "a source route has 1 to 14 hops, not 15"),
            (
                DATACAST.replace("bcube:2,2", "bcube:2,4"),
                "up to 10 hops, and source routes at most 8: write 10",
            ),
            (DATACAST.replace("bcube:2,2", "bcube:2,7"), "up to 16 hops, and packets have room for 14"),
        ] {
            let message = ManagerConfig::from_toml(&text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
        let deeper = format!("{}hops-max = 10\n", DATACAST.replace("bcube:2,2", "bcube:2,4"));
        assert!(ManagerConfig::from_toml(&deeper).is_ok());
    }

    /// Each of these settings is refused with a sentence that has its part.
    fn named(mistakes: &[(String, &str)]) {
        for (text, part) in mistakes {
            let message = ManagerConfig::from_toml(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn mistakes_in_optical_settings_are_named() {
        let racks_of = |port: &str| racks(true, "").replace("port = 2", port);
        let ocs = "fabrics = ['ocs']\n";
        let shufflecast = "fabrics = ['shufflecast']\n[shufflecast]\np = 2\nk = 1\nrate = '1gbit'\n";
        named(&[
            (ocs.to_string(), "the fabric ocs needs a section [ocs]"),
            (format!("{ocs}{OCS}"), "name one [[tor]] a rack"),
            (format!("{ocs}{OCS}budget-db = -1.0\n{}", racks(true, "")), "'ocs.budget-db'"),
            (format!("{ocs}{OCS}ports = 3\n{}", racks(true, "")), "circuit switch ports = 7"),
            (format!("{ocs}{OCS}{}", racks_of("port = 1")), "rack 0: port 1 is named twice"),
            (format!("{ocs}{OCS}{}", racks_of("port = 0")), "0 is no port"),
            (format!("{ocs}{OCS}{}", racks(true, "").replace("h3", "h0")), "the host 'h0' is named twice"),
            (format!("{shufflecast}{}", racks(true, "")), "rack 0 has 0 fibres from splitters"),
            (format!("{shufflecast}{}", racks(false, "splitter-ports = [10, 11]")), "a Shufflecast needs it"),
            (shufflecast.replace("k = 1", "k = 2"), "a 2,2-Shufflecast has 8 racks, not 0"),
            (
                format!(
                    "{}{}",
                    shufflecast.replace("k = 1", "k = 2"),
                    racks(true, "splitter-ports = [10, 11]")
                ),
                "a 2,2-Shufflecast has 8 racks, not 2: with fewer write tors = 2 there",
            ),
            (
                format!("{shufflecast}tors = 3\n{}", racks(true, "splitter-ports = [10, 11]")),
                "from 1 to k p^k of them",
            ),
            (
                format!(
                    "{}tors = 2\n{}",
                    shufflecast.replace("k = 1", "k = 2"),
                    racks(true, "splitter-ports = [10, 11]")
                ),
                "rack 0 has 1 fibres into its splitter; it stands for 4 logical ToRs and needs as many",
            ),
            (
                format!("{shufflecast}budget-db = 0.1\n{}", racks(true, "splitter-ports = [10, 11]")),
                "'shufflecast.budget-db' is wrong: it is 0.1 dB, and a splitter of 2 outputs loses 4.01 dB: no path has light enough; use \
                 transceivers of 4.1 dB",
            ),
            (
                format!("{shufflecast}splitter-loss-db = 2.0\n{}", racks(true, "splitter-ports = [10, 11]")),
                "it is 2 dB, and one of 2 outputs loses at least 3.0 dB",
            ),
            ("on-device-failure = 'hope'".into(), "hope"),
            ("device-timeout-ms = 0".into(), "'device-timeout-ms'"),
        ]);
    }

    #[test]
    fn mistakes_in_settings_of_switches_are_named() {
        let ocs = "fabrics = ['ocs']\n";
        named(&[
            (
                format!("{ocs}{OCS}{}", racks(true, "").replace("10.0.255.1:6653", "tor1")),
                "rack 1: 'tor1' is no",
            ),
            (format!("{ocs}{OCS}{}", racks(true, "").replace("0/24", "1/24")), "is no network"),
            (
                format!("{ocs}{OCS}{}", racks(true, "").replace("openflow = '10.0.255.0:6653'", "")),
                "rack 0: say where the switch listens, or the dpid of one that connects",
            ),
            (
                format!(
                    "{ocs}{OCS}{}",
                    racks(true, "").replace("openflow = '10.0.255.0:6653'", "dpid = '0x1'")
                ),
                "say where the switch of rack 0 connects, such as 0.0.0.0:6653",
            ),
            (
                format!("{ocs}{OCS}{}", racks(true, "").replace("openflow", "dpid = '7'\nopenflow")),
                "has the dpid 0x7 too",
            ),
            (
                format!("{ocs}{OCS}{}", racks(true, "").replace("openflow", "dpid = 'x'\nopenflow")),
                "'x' is no dpid",
            ),
            (
                format!("{ocs}{OCS}{}", racks(true, "").replace("openflow", "dscp = 64\nopenflow")),
                "64 is no class",
            ),
            (
                format!("{ocs}{OCS}{}", racks(true, "").replace("openflow", "tables = 3\nopenflow")),
                "write 1 or 2",
            ),
            (
                format!("{ocs}{OCS}{}", racks(true, "").replace("openflow", "tls = true\nopenflow")),
                "'tor.tls'",
            ),
            (
                format!("{ocs}{OCS}dialect = 'latin'\n{}", racks(true, "")),
                "no dialect 'latin', only glimmerglass",
            ),
            (
                format!("{ocs}{OCS}user = 'root'\n{}", racks(true, "")),
                "name the file that holds the password",
            ),
            (
                format!("{ocs}{OCS}user = 'root'\npassword-file = '/no/such'\n{}", racks(true, "")),
                "/no/such cannot be read",
            ),
            (
                format!("{ocs}{OCS}dialect = 'polatis-scpi'\nuser = 'root'\n{}", racks(true, "")),
                "the dialect polatis-scpi has no login: leave user and password-file out",
            ),
            (format!("{ocs}{OCS}tls = true\n{}", racks(true, "")), "'ocs.tls'"),
            (format!("{ocs}{OCS}budget-db = 8.5\n{}", racks(true, "")), "loses at least 10.0 dB through"),
        ]);
    }

    /// A table of ports for two racks.
    const TABLE: &str = "fabrics = ['ocs']\n[ocs]\naddress = '10.0.0.1:10033'\nrate = '10gbit'\nrack-ports = [17, [40]]\n\
                         splitters = [{ input = 1, outputs = [5, 9, 3], fan-out = 3, loss-db = 6.0 }, \
                         { input = 30, outputs = [31, 32] }]\n";

    #[test]
    fn ports_are_where_the_table_says() {
        let config = ManagerConfig::from_toml(&format!("{TABLE}{}", racks(false, ""))).unwrap();
        let layout = fabrics::switch_ports::layout(&config).unwrap();
        assert_eq!((layout.ports.of_rack(0), layout.ports.of_rack(1)), (&[16][..], &[39][..]));
        assert_eq!(layout.ports.splitters()[0].outputs, [4, 8, 2]);
        assert_eq!((layout.hybrid.splitters, layout.hybrid.splitter_fanout), (2, 3));
        assert_eq!((layout.dialect.name(), devices_of(&config).len()), ("glimmerglass", 3));
        let calient = TABLE
            .replace("[17, [40]]", "['1.1.1', '1.1.2']")
            .replace(
                "input = 1, outputs = [5, 9, 3]",
                "input = '1.2.1', outputs = ['1.2.2', '1.2.3', '2.1.1']",
            )
            .replace("input = 30, outputs = [31, 32]", "input = '3.1.1', outputs = ['3.1.2', '3.1.3']");
        let calient = format!("{calient}dialect = 'calient'\n{}", racks(false, ""));
        let layout = fabrics::switch_ports::layout(&ManagerConfig::from_toml(&calient).unwrap()).unwrap();
        assert_eq!(layout.dialect.port_name(layout.ports.splitters()[0].outputs[2]), "2.1.1");
        for (from, to, part) in [
            ("[17, [40]]", "[17, 9]", "port 9 is rack 1's and splitter 0's: a port is in one place"),
            ("[17, [40]]", "[17]", "it names 1 racks and there are 2 [[tor]]"),
            ("[17, [40]]", "[17, [40, 41]]", "rack 1 has 2 ports on the circuit switch and 1 fibre-ports"),
            (
                "[17, [40]]",
                "[17, 400]",
                "'400' is no port of a glimmerglass switch, which are such as 1 to 320",
            ),
            ("[17, [40]]", "[17, '1.2.3']", "'1.2.3' is no port of a glimmerglass switch"),
            ("[5, 9, 3]", "[]", "splitter 0 has no outputs: list the ports where they come in"),
            ("[5, 9, 3]", "[5]", "splitter 0 has one output"),
            (
                "fan-out = 3",
                "fan-out = 4",
                "splitter 0 has the fan-out 4 and 3 outputs: list as many outputs",
            ),
            ("loss-db = 6.0", "loss-db = 1.0", "loses 1 dB, and one of 3 outputs loses at least 4.8"),
            ("loss-db = 6.0", "amplifier-db = -1.0", "has an amplifier of -1 dB"),
            ("rack-ports = [17, [40]]\n", "", "name each rack's port too"),
            ("splitters = [{", "splitters = 2\nother = [{", "other"),
            ("input = 30,", "inlet = 30,", "inlet"),
        ] {
            let text = format!("{}{}", TABLE.replace(from, to), racks(false, ""));
            let message = ManagerConfig::from_toml(&text).unwrap_err().to_string();
            assert!(message.contains(part), "{to}: {message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn passwords_are_their_owners_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let settings = format!("{}user = 'admin'\npassword-file = {path:?}\n{}", TABLE, racks(false, ""));
        let write = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            ManagerConfig::from_toml(&settings).map_err(|error| error.to_string())
        };
        let config = write("secret\n", 0o600).unwrap();
        let login = fabrics::switch_ports::options(&config).unwrap().login.unwrap();
        assert_eq!((login.user.as_str(), login.password.as_str()), ("admin", "secret"));
        assert!(write("secret\n", 0o644).unwrap_err().contains("chmod 600"));
        assert!(write("\n", 0o600).unwrap_err().contains("is no password"));
        assert!(write("a;b\n", 0o600).unwrap_err().contains("is no password"));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("\nlisten = 5", "line 2"),
            ("listen = 'nowhere'", "line 1"),
            ("lissten = '0.0.0.0:1'", "lissten"),
            ("[ip-multicast]\nrate = 'fast'", "'fast'"),
            ("[ip-multicast]\npool = '10.0.0.0/8'", "ip-multicast.pool"),
            ("scheduler = 'lottery'", "no scheduler 'lottery', only fcfs, greedy-matching, "),
            ("fabrics = []", "name at least one"),
            ("fabrics = ['tcp-chain', 'tcp-chain']", "named twice"),
            ("fabrics = ['wormhole']", "no fabric 'wormhole'"),
            ("heartbeat-ms = 0", "'heartbeat-ms'"),
            ("lease-ms = 1", "'lease-ms'"),
            ("pending-max = 0", "'pending-max'"),
            ("agents-max = -1", "line 1"),
            (
                "ca = '/x'\nmanager-name = 'm'",
                "'manager-name' is wrong: managers with an authority of their own",
            ),
            ("permit-s = 59", "'permit-s' is wrong: it must be 60 to 900"),
            ("audit-log-max = '1kB'", "'audit-log-max'"),
            ("audit-logs-kept = 1001", "'audit-logs-kept'"),
            ("grant-max = '0'", "'grant-max'"),
            ("grant-max = 'much'", "'much'"),
            ("[etcd]\nendpoints = ['host']", "'host' is not HOST:PORT"),
            ("[etcd]\nendpoints = ['a:1']", "'etcd.advertise'"),
            ("[etcd]\nttl-s = 0", "'etcd.ttl-s'"),
            ("[etcd]\ncert = '/a'", "'etcd.key' is wrong: etcd.cert needs its private key"),
            ("[etcd]\nkey = '/a'\ncert = '/b'", "'etcd.ca' is wrong: etcd.cert and etcd.key are for TLS"),
            ("[etcd]\nca = '/no/such'", "the file /no/such cannot be read"),
        ] {
            let message = ManagerConfig::from_toml(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
            assert!(!message.contains('\n'), "{message}");
        }
        let missing = ManagerConfig::load("/no/such.toml".as_ref()).unwrap_err().to_string();
        assert!(missing.contains("/no/such.toml"), "{missing}");
    }
}
