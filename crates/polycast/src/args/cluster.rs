//! What can be typed for a cluster: its daemons, and what they are asked for.

pub(crate) mod datacast;
pub(crate) mod group;
pub(crate) mod hf;
pub(crate) mod image;
pub(crate) mod local;
pub(crate) mod objects;
pub(crate) mod stream;
pub(crate) mod warm;
pub(crate) mod why;

use super::help;
use super::place::{ChoiceArgs, PlaceArgs};
use super::values::{NetworkArgs, SlowChoice, duration};
use crate::commands::cluster::names::Which;
use clap::{Args as Arguments, Subcommand};
use datacast::DatacastArgs;
use group::GroupArgs;
use hf::HfArgs;
use image::ImageArgs;
pub(crate) use local::{Destinations, LocalArgs, destinations};
use objects::{FetchArgs, PinArgs, PublishArgs, SubscribeArgs};
use polycast_types::{Duration, ObjectId};
use std::net::SocketAddr;
use std::path::PathBuf;
use stream::StreamArgs;
use warm::WarmArgs;
use why::WhyArgs;

/// The daemons, and what the local agent is asked for.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run the manager, which lends network paths to transfers (one in a cluster)
    #[command(long_about = help::MANAGER, after_long_help = help::MANAGER_MORE)]
    Manager(ManagerArgs),
    /// Run the agent, which sends and receives for its machine (one a machine)
    #[command(long_about = help::AGENT, after_long_help = help::AGENT_MORE)]
    Agent(AgentArgs),
    /// Run nodes of a Datacast fabric: caching forwarders between neighbours (one a server or switch)
    #[command(long_about = help::FORWARDER, after_long_help = help::FORWARDER_MORE)]
    Forwarder(ForwarderArgs),
    /// Run label switches of an Orca fabric on the interfaces of this machine (Linux, root)
    #[command(long_about = help::LABEL_SWITCH, after_long_help = help::LABEL_SWITCH_MORE)]
    LabelSwitch(ForwarderArgs),
    /// Run the agent of a rack of an Orca fabric in a process of its own (Linux, root)
    #[command(long_about = help::RACK_AGENT, after_long_help = help::RACK_AGENT_MORE)]
    RackAgent(ForwarderArgs),
    /// Send a file or directory to other agents
    #[command(long_about = help::SEND, after_long_help = help::SEND_MORE)]
    Send(SendArgs),
    /// Send a file of any host to others, over the trees of Datacast where there are some
    #[command(long_about = help::DATACAST, after_long_help = help::DATACAST_MORE)]
    Datacast(DatacastArgs),
    /// Change a transfer that waits or runs: how long its path is lent, and to whom it goes
    #[command(long_about = help::EXTEND, after_long_help = help::EXTEND_MORE)]
    Extend(ExtendArgs),
    /// End the transfers of an object that wait or run
    Withdraw(WithdrawArgs),
    /// Send messages from this machine to all that have joined, and receive them
    #[command(long_about = help::STREAM, after_long_help = help::STREAM_MORE)]
    Stream(StreamArgs),
    /// Lease a path for packets that programs send themselves, such as by IP multicast
    #[command(long_about = help::GROUP, after_long_help = help::GROUP_MORE)]
    Group(GroupArgs),
    /// Copy an object out of the local agent's store
    #[command(long_about = help::GET, after_long_help = help::GET_MORE)]
    Get(GetArgs),
    /// Get an object by its key, address or id from wherever it is; many that ask are served together
    #[command(long_about = help::FETCH, after_long_help = help::FETCH_MORE)]
    Fetch(FetchArgs),
    /// Get the files of a repository of the Hugging Face Hub, once for all machines, into its clients' cache
    #[command(long_about = help::HF, after_long_help = help::HF_MORE)]
    Hf(HfArgs),
    /// Get the layers of a container image, once for all machines, into the stores of agents
    #[command(long_about = help::IMAGE, after_long_help = help::IMAGE_MORE)]
    Image(ImageArgs),
    /// Give compile caches (vLLM, torch.compile, Triton) to machines that would compile the same
    #[command(long_about = help::WARM, after_long_help = help::WARM_MORE)]
    Warm(WarmArgs),
    /// Give all subscribers of a topic a new version
    #[command(long_about = help::PUBLISH, after_long_help = help::PUBLISH_MORE, disable_version_flag = true)]
    Publish(PublishArgs),
    /// Get every version of a topic
    #[command(long_about = help::SUBSCRIBE, after_long_help = help::SUBSCRIBE_MORE)]
    Subscribe(SubscribeArgs),
    /// List the objects in the local agent's store
    Ls(LocalArgs),
    /// Remove an object from the local agent's store
    Rm(RmArgs),
    /// Keep an object in the local agent's store, whatever else needs its room
    #[command(long_about = help::PIN, after_long_help = help::PIN_MORE)]
    Pin(PinArgs),
    /// Let a pinned object go like others when its room is needed
    #[command(long_about = help::UNPIN, after_long_help = help::PIN_MORE)]
    Unpin(PinArgs),
    /// Show the local agent, its peers and its transfers; or the manager, its paths, devices and circuits
    #[command(after_long_help = help::STATUS_MORE)]
    Status(StatusArgs),
    /// Tell why the local agent's endpoints have read a file from its origin
    #[command(long_about = help::WHY)]
    Why(WhyArgs),
    /// List what the local agent sends and receives now: how far, how fast, and whom it waits for
    #[command(after_long_help = help::TRANSFERS_MORE)]
    Transfers(LocalArgs),
    /// List the machines of the cluster: state, version, store, objects and transfers
    #[command(after_long_help = help::NODES_MORE)]
    Nodes(LocalArgs),
    /// Take a host out of use, or a part of the network: a port or splitter of the circuit switch, a rack's
    /// switch
    #[command(long_about = help::DRAIN, after_long_help = help::DRAIN_MORE)]
    Drain(DrainArgs),
    /// Use a host or a part of the network again that was taken out, or a part that is suspected to be dead
    #[command(after_long_help = help::UNDRAIN_MORE)]
    Undrain(UndrainArgs),
}

/// The tokens of a manager, and what it has written down.
#[derive(Subcommand, Debug)]
pub(crate) enum Admission {
    /// Make, list and revoke tokens, which let agents in at a manager with an authority of its own
    #[command(after_long_help = help::TOKEN_MORE)]
    Token(TokenArgs),
    /// Check what a manager has written down of whom it has let in, and what it has allowed
    #[command(after_long_help = help::AUDIT_MORE)]
    Audit(AuditArgs),
    /// Make this machine one of a cluster: account, key, settings and unit, and start it (root)
    #[command(long_about = help::SETUP, after_long_help = help::SETUP_MORE)]
    Setup(SetupArgs),
}

/// `polycast setup`
#[derive(Arguments, Debug)]
pub(crate) struct SetupArgs {
    #[command(subcommand)]
    pub command: SetupCommand,
}

/// What a machine becomes.
#[derive(Subcommand, Debug)]
pub(crate) enum SetupCommand {
    /// Let it send and receive (one agent a machine)
    Agent(SetupAgentArgs),
    /// Let it lend paths to transfers (one manager a cluster, or several with etcd)
    Manager(SetupManagerArgs),
}

/// Where a daemon is set up, and whether it is started.
#[derive(Arguments, Debug)]
pub(crate) struct SetupPlace {
    /// Address and port of the page with metrics
    #[arg(long, value_name = "ADDR")]
    pub http: Option<String>,
    /// Replace other settings that are there; they stay beside as .old
    #[arg(long)]
    pub force: bool,
    /// Write all, and start nothing
    #[arg(long)]
    pub no_start: bool,
    /// Write below this folder, as for an image of a machine, and start nothing
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

/// `polycast setup agent`
#[derive(Arguments, Debug)]
pub(crate) struct SetupAgentArgs {
    /// The manager's address; of several managers all, with commas between them
    #[arg(long, value_name = "ADDR,..", required = true)]
    pub manager: String,
    /// The cluster's key, a copy of the manager's /etc/polycast/cluster.key
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub key_file: Option<PathBuf>,
    /// In place of a key: what `polycast token new` has printed at the manager
    #[arg(long, value_name = "TOKEN", env = "POLYCAST_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// This machine's name in the cluster [default: the machine's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Network interface, by name or address [default: the one of the default route]
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
    /// Folder of the object store, below /dev/shm or /var/lib/polycast [default: /dev/shm/polycast]
    #[arg(long, value_name = "DIR")]
    pub store: Option<String>,
    /// Bytes that the store may hold (200GB)
    #[arg(long, value_name = "SIZE")]
    pub store_max: Option<String>,
    /// Members of this group may use the agent, besides root
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,
    #[command(flatten)]
    pub place: SetupPlace,
}

/// `polycast setup manager`
#[derive(Arguments, Debug)]
pub(crate) struct SetupManagerArgs {
    /// Address and port that agents reach
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:7400")]
    pub listen: String,
    /// The cluster's key [default: the one that is there, or a new one]
    #[arg(long, value_name = "FILE", conflicts_with = "ca")]
    pub key_file: Option<PathBuf>,
    /// In place of a key: an authority of its own, which lets agents in by tokens
    #[arg(long)]
    pub ca: bool,
    /// Where etcd is reached, if there are several managers
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// Address that agents have for this manager, where there are several
    #[arg(long, value_name = "ADDR", requires = "etcd")]
    pub advertise: Option<String>,
    #[command(flatten)]
    pub place: SetupPlace,
}

/// `polycast forwarder`, `polycast label-switch`, `polycast rack-agent`
#[derive(Arguments, Debug)]
pub(crate) struct ForwarderArgs {
    /// The settings
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    #[command(flatten)]
    pub identity: IdentityArgs,
}

/// `polycast manager`
#[derive(Arguments, Debug)]
pub(crate) struct ManagerArgs {
    /// Settings in TOML
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Do not run: look at everything that the settings name, log in everywhere, change nothing, and list
    /// what is wrong
    #[arg(long)]
    pub check: bool,
    /// With --check: make circuits between free ports and look where light comes out, to find fibres that are
    /// swapped, and take the circuits down again; no manager may run meanwhile
    #[arg(long, requires = "check")]
    pub probe: bool,
    /// Where agents reach the manager
    #[arg(long, value_name = "ADDR", value_parser = listened_at)]
    pub listen: Option<SocketAddr>,
    /// etcd, where several managers agree on which one leads, and keep their state
    #[arg(long, value_name = "ADDR,..", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// Address that agents have for this manager, where there are several [default: that of --listen]
    #[arg(long, value_name = "ADDR")]
    pub advertise: Option<String>,
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// In place of a key or certificate: folder of an authority of the manager's own, which is made where
    /// there is none. It gives certificates to agents that come with a token (polycast token new)
    #[arg(long, value_name = "DIR", conflicts_with_all = ["key_file", "tls_ca"])]
    pub ca: Option<PathBuf>,
    /// The DNS name in the certificate of each manager, by which agents know them; no agent's certificate has
    /// it [default: manager]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["key_file", "ca"])]
    pub manager_name: Option<String>,
    #[command(flatten)]
    pub life: LifeArgs,
}

/// How long a daemon runs.
#[derive(Arguments, Debug)]
pub(crate) struct LifeArgs {
    /// End also when standard input ends, as it does when the program that has started this one is killed
    #[arg(long)]
    pub until_input_ends: bool,
}

/// How a daemon proves its name.
#[derive(Arguments, Debug)]
pub(crate) struct IdentityArgs {
    /// The cluster's key, as `polycast key new FILE` writes it: what the machines of the cluster say to each
    /// other is sealed with it, and a machine without it takes part in nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tls_ca", "tls_cert", "tls_key"])]
    pub key_file: Option<PathBuf>,
    /// In place of a key: certificates (PEM) of the authorities whose members take part
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    pub tls_ca: Option<PathBuf>,
    /// This machine's certificate (PEM); an agent's has the agent's name as a DNS name, or as
    /// spiffe://DOMAIN/polycast/agent/NAME
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    pub tls_cert: Option<PathBuf>,
    /// The private key of this certificate (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_cert"])]
    pub tls_key: Option<PathBuf>,
    /// Lists of certificates that the authorities have revoked (PEM); it is read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    pub tls_crl: Option<PathBuf>,
    /// Listen to other machines with neither key nor certificate: every machine that reaches this one takes
    /// part, and nothing is sealed
    #[arg(long, conflicts_with_all = ["key_file", "tls_ca", "tls_cert", "tls_key"])]
    pub insecure: bool,
}

/// Address and port to listen at.
fn listened_at(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "it is not ADDRESS:PORT, such as 0.0.0.0:7400 or [::]:7400".into())
}

/// `polycast agent`
#[derive(Arguments, Debug)]
pub(crate) struct AgentArgs {
    /// The manager's address; of several managers all, with commas between them
    #[arg(long, value_name = "ADDR,..", required_unless_present = "config")]
    pub manager: Option<String>,
    /// The agent's settings, as TOML; the options here override them
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// This machine's name in the cluster [default: the machine's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The rack that this machine is in: over TCP each object enters it once
    #[arg(long, value_name = "NAME")]
    pub rack: Option<String>,
    /// The zone that it is in, such as a room or a site: over TCP each object enters it once, and reports say
    /// what crosses between zones; an empty name is none
    #[arg(long, value_name = "NAME", env = "POLYCAST_ZONE")]
    pub zone: Option<String>,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// TCP port for everything that other agents ask of this one; 0 lets the system choose [default: 7401, or
    /// where that is taken another one]
    #[arg(long, value_name = "P")]
    pub port: Option<u16>,
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// In place of a key or certificate: what `polycast token new` has printed at the manager. The agent gets
    /// a certificate for it, which it renews by itself; while one that holds is there, the token is not used
    /// again
    #[arg(long, value_name = "TOKEN", env = "POLYCAST_TOKEN", hide_env_values = true, conflicts_with_all = ["key_file", "tls_ca"])]
    pub token: Option<String>,
    /// Folder for this certificate [default: /var/lib/polycast/NAME, with --token]
    #[arg(long = "identity", value_name = "DIR", conflicts_with_all = ["key_file", "tls_ca"])]
    pub identity_folder: Option<PathBuf>,
    /// The DNS name that a manager's certificate has to have; this agent's must not have it [default:
    /// manager]
    #[arg(long, value_name = "NAME", conflicts_with = "key_file")]
    pub manager_name: Option<String>,
    /// Folder of the object store [default: one in shared memory]
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Bytes that the store may hold: objects that were not asked for lately make room for new ones (8GiB)
    /// [default: half of the memory for a store in memory]
    #[arg(long, value_name = "SIZE")]
    pub store_max: Option<String>,
    /// How long a received object stays (12h, 7d) [default: until a user removes it]
    #[arg(long, value_name = "T")]
    pub store_ttl: Option<String>,
    #[command(flatten)]
    pub local: LocalArgs,
    #[command(flatten)]
    pub life: LifeArgs,
}

/// `polycast token`
#[derive(Arguments, Debug)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// Where a manager's own authority is.
#[derive(Arguments, Debug)]
pub(crate) struct AuthorityArgs {
    /// Folder of the authority, as it was named to `polycast manager --ca`
    #[arg(long, value_name = "DIR", default_value = "/var/lib/polycast/ca")]
    pub ca: PathBuf,
}

/// What is done with tokens.
#[derive(Subcommand, Debug)]
pub(crate) enum TokenCommand {
    /// Print a new token, which lets one agent in once; or one for each of several, or one for all of them
    New {
        /// The agent's name; several with commas between them, or gpu-[1-20,31]
        #[arg(long, value_name = "NAME", required = true)]
        name: Vec<String>,
        /// One token for all these names, which lets in so many of them, each once: for machines that are
        /// set up with the same settings
        #[arg(long, value_name = "N")]
        uses: Option<usize>,
        /// How long it can be used (30m, 1h)
        #[arg(long = "for", value_name = "T", value_parser = duration, default_value = "1h")]
        span: Duration,
        #[command(flatten)]
        authority: AuthorityArgs,
    },
    /// List the tokens: whose they are, and whether they can be used
    Ls(AuthorityArgs),
    /// Make a token of no use
    Revoke {
        /// Which, as `polycast token ls` shows it
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        authority: AuthorityArgs,
    },
}

/// `polycast audit`
#[derive(Arguments, Debug)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    pub command: AuditCommand,
}

/// What is done with audit logs.
#[derive(Subcommand, Debug)]
pub(crate) enum AuditCommand {
    /// Look whether each line still is as it was written, and none is missing
    Verify {
        /// The log, and full files of it, in any order
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// The key that has to have signed how far it goes, as an earlier check has printed it
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
    },
}

/// `polycast send`
#[derive(Arguments, Debug)]
pub(crate) struct SendArgs {
    #[command(flatten)]
    pub choice: ChoiceArgs,
    /// The receiving agents' names, or all
    #[arg(long, value_name = "NAME,NAME|all", value_parser = destinations)]
    pub to: Destinations,
    /// The object's id: a number, or UUID/NUMBER [default: one that stays as long as the file does not
    /// change]
    #[arg(long, value_name = "ID")]
    pub id: Option<ObjectId>,
    /// Each file of a directory is an object of its own: usable before the others are there, and not sent
    /// where it is already
    #[arg(long)]
    pub files: bool,
    /// Replace the object of this id, here and at the receivers, and then older ones of this name
    #[arg(long)]
    pub replace: bool,
    /// Other users of this machine do not see it; receivers and their users do
    #[arg(long)]
    pub private: bool,
    /// Receivers that are not done by then have failed (30s, 10m)
    #[arg(long, value_name = "T", alias = "deadline", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// How long the path is wanted (30s, 10m); after that the transfer goes on over TCP [default: until it
    /// has ended]
    #[arg(long, value_name = "T", value_parser = duration)]
    pub lease: Option<Duration>,
    /// What becomes of a receiver that is slower than the others
    #[arg(long, value_name = "POLICY", default_value = "catch-up")]
    pub slow: SlowChoice,
    /// Send this part first (1MiB-2MiB, or from 64MiB on): receivers can use it before the rest is there
    #[arg(long, value_name = "RANGE", value_parser = first_byte)]
    pub first: Option<u64>,
    /// The fabric that is to carry it, if it can, by its name in the manager's settings, such as ocs
    /// [default: the best one]
    #[arg(long, value_name = "NAME")]
    pub fabric: Option<String>,
    /// Settings of a transfer over trees (fabric datacast), by the keys of the manager's section datacast:
    /// rto-ms=20,increase=5mbit
    #[arg(long, value_name = "KEY=VALUE,..", default_value = "", hide_default_value = true)]
    pub pull: String,
    /// No other fabric is to carry it: without it the command fails
    #[arg(long, requires = "fabric")]
    pub or_fail: bool,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// `polycast status`
#[derive(clap::Args, Debug)]
pub(crate) struct StatusArgs {
    /// Show the manager: leases, queue, circuits, splitters, devices, dark fibres, drained parts
    #[arg(long)]
    pub manager: bool,
    /// Show it again every second, until Ctrl-C
    #[arg(long, conflicts_with = "manager")]
    pub watch: bool,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// `polycast drain`
#[derive(clap::Args, Debug)]
pub(crate) struct DrainArgs {
    /// A host, by its agent's name, or port:4 (of the circuit switch, from 1), splitter:0, tor:3 (the switch
    /// of a rack, from 0), or ocs
    #[arg(value_name = "HOST|PART")]
    pub part: String,
    /// Bring it back, like 'polycast undrain'
    #[arg(long, conflicts_with = "wait")]
    pub undo: bool,
    /// Wait until no transfer of the host waits or runs
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// `polycast undrain`
#[derive(clap::Args, Debug)]
pub(crate) struct UndrainArgs {
    /// A host, by its agent's name, or port:4 (of the circuit switch, from 1), splitter:0, tor:3 (the switch
    /// of a rack, from 0), or ocs
    #[arg(value_name = "HOST|PART")]
    pub part: String,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// `polycast extend`
#[derive(Arguments, Debug)]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub(crate) struct ExtendArgs {
    /// The object's id
    #[arg(value_name = "ID")]
    pub id: ObjectId,
    /// The path is wanted for this long from now on (30s, 10m)
    #[arg(long, value_name = "T", value_parser = duration, group = "change")]
    pub time: Option<Duration>,
    /// Further receivers
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', group = "change")]
    pub add: Vec<String>,
    /// Receivers that need nothing any more
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', group = "change")]
    pub remove: Vec<String>,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// `polycast withdraw`
#[derive(Arguments, Debug)]
pub(crate) struct WithdrawArgs {
    /// The object's id
    #[arg(value_name = "ID")]
    pub id: ObjectId,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// `polycast get`
#[derive(Arguments, Debug)]
pub(crate) struct GetArgs {
    /// The object's id, or its name; of several of a name the newest
    #[arg(value_name = "NAME|ID")]
    pub which: Which,
    #[command(flatten)]
    pub place: PlaceArgs,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// `polycast rm`
#[derive(Arguments, Debug)]
pub(crate) struct RmArgs {
    /// The objects' ids, or their names; all of a name
    #[arg(value_name = "NAME|ID", required = true)]
    pub which: Vec<Which>,
    /// Remove them at these agents, or at all (this one too), instead of here
    #[arg(long, value_name = "NAME,NAME|all", value_parser = destinations)]
    pub to: Option<Destinations>,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// Where a range begins: `1MiB-2MiB`, `1MiB-`, or `1MiB`.
fn first_byte(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no range of bytes, such as 1MiB-2MiB or 64MiB");
    let size = |text: &str| polycast_types::parse_bytes(text).map_err(|_| wrong());
    let (from, to) = text.split_once('-').unwrap_or((text, ""));
    let from = size(from)?;
    if !to.is_empty() && size(to)? <= from {
        return Err(format!("'{text}' has no bytes: it ends where it begins, or before"));
    }
    Ok(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_begins_somewhere() {
        assert_eq!(first_byte("1MiB-2MiB"), Ok(1 << 20));
        assert_eq!((first_byte("64KiB"), first_byte("4096-")), (Ok(64 << 10), Ok(4_096)));
        assert!(first_byte("2MiB-1MiB").unwrap_err().contains("has no bytes"));
        for text in ["", "-5", "x", "1-x"] {
            assert!(first_byte(text).is_err(), "{text}");
        }
    }
}
