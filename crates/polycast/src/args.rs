//! What can be typed.

#[cfg(feature = "research")]
pub(crate) mod bench;
pub(crate) mod help;
pub(crate) mod objects;
pub(crate) mod place;

use crate::commands::names::Which;
use crate::commands::network::{OFFER_PORT, Pool};
use crate::commands::stream::StreamArgs;
#[cfg(feature = "research")]
use crate::commands::{lab::LabArgs, plan::PlanArgs, reproduce::ReproduceArgs, simulate::SimulateArgs};
use crate::exit::Exit;
use crate::output::{self, Format};
use clap::error::ErrorKind;
use clap::{ArgAction, Args as Arguments, Parser, Subcommand, ValueEnum};
use objects::{FetchArgs, PinArgs, PublishArgs, SubscribeArgs};
use place::{ChoiceArgs, PlaceArgs};
use polycast_agent::transfer::Code;
use polycast_types::{Duration, Handle, ObjectId, Rate};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `cast` runs one thread or more a receiver: beyond this, one machine is no longer a useful stage.
const CAST_RECEIVERS_MAX: usize = 1_000;
const OFFER_RECEIVERS_MAX: usize = 100_000;

/// The command line.
#[derive(Parser, Debug)]
#[command(
    name = "polycast",
    version = help::version(),
    about = help::ABOUT,
    long_about = help::LONG_ABOUT,
    after_long_help = help::AFTER_HELP,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = false
)]
pub(crate) struct Args {
    /// Print one JSON document to standard output, and nothing else there
    #[arg(long, global = true, display_order = 100)]
    pub json: bool,
    #[command(flatten)]
    pub logging: LogOptions,
    #[command(subcommand)]
    pub command: Command,
}

/// What is logged.
#[derive(Arguments, Debug)]
pub(crate) struct LogOptions {
    /// What to log to standard error: error, warn, info, debug, trace, or by part
    /// (info,polycast_net=debug)
    #[arg(long, global = true, value_name = "LEVEL", env = "POLYCAST_LOG", default_value = "warn")]
    #[arg(display_order = 101)]
    pub log: String,
    /// Log more: -v for info, -vv for debug, -vvv for trace
    #[arg(long, short, global = true, action = ArgAction::Count, display_order = 103)]
    pub verbose: u8,
    /// Say nothing but results, errors and what others have to type: no progress, no notes
    #[arg(long, short, global = true, display_order = 104, conflicts_with = "verbose")]
    pub quiet: bool,
    /// How log lines are written
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text", display_order = 102)]
    pub log_format: LogFormat,
}

/// The form of log lines.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Deliver to receivers on this machine, to try things out (no root, no set-up)
    #[command(long_about = help::CAST, after_long_help = help::CAST_MORE)]
    Cast(CastArgs),
    /// Deliver to other machines that run `polycast accept`, without daemons
    #[command(long_about = help::OFFER, after_long_help = help::OFFER_MORE)]
    Offer(OfferArgs),
    /// Receive what another machine offers with `polycast offer`
    #[command(long_about = help::ACCEPT, after_long_help = help::ACCEPT_MORE)]
    Accept(AcceptArgs),
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
    /// Change a transfer that waits or runs: how long its path is lent, and to whom it goes
    #[command(long_about = help::EXTEND, after_long_help = help::EXTEND_MORE)]
    Extend(ExtendArgs),
    /// End the transfers of an object that wait or run
    Withdraw(WithdrawArgs),
    /// Send messages from this machine to all that have joined, and receive them
    #[command(long_about = help::STREAM, after_long_help = help::STREAM_MORE)]
    Stream(StreamArgs),
    /// Copy an object out of the local agent's store
    #[command(long_about = help::GET, after_long_help = help::GET_MORE)]
    Get(GetArgs),
    /// Get an object by its key, address or id from wherever it is; many that ask are served together
    #[command(long_about = help::FETCH, after_long_help = help::FETCH_MORE)]
    Fetch(FetchArgs),
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
    /// Take a part of the network out of use: a port or splitter of the circuit switch, the switch of a rack
    #[command(long_about = help::DRAIN, after_long_help = help::DRAIN_MORE)]
    Drain(DrainArgs),
    /// Use a part of the network again that was taken out, or that rests because it is suspected to be dead
    #[command(after_long_help = help::UNDRAIN_MORE)]
    Undrain(DrainArgs),
    /// Look at what keeps transfers from being fast: interface, multicast, packet lengths, buffers, ports
    #[command(long_about = help::DOCTOR, after_long_help = help::DOCTOR_MORE)]
    Doctor(DoctorArgs),
    /// Make the key of a cluster
    #[command(after_long_help = help::KEY_MORE)]
    Key(KeyArgs),
    /// Make, list and revoke tokens, which let agents in at a manager with an authority of its own
    #[command(after_long_help = help::TOKEN_MORE)]
    Token(TokenArgs),
    /// Check what a manager has written down of whom it has let in, and what it has allowed
    #[command(after_long_help = help::AUDIT_MORE)]
    Audit(AuditArgs),
    /// Print the completions for a shell
    #[command(after_long_help = help::COMPLETIONS_MORE)]
    Completions(CompletionsArgs),
    /// Print the manual page, or write one for every command
    #[command(after_long_help = help::MAN_MORE)]
    Man(ManArgs),
    #[cfg(feature = "research")]
    /// Ask a planner: relays, trees, labels, circuits, costs (no network needed)
    Plan(PlanArgs),
    #[cfg(feature = "research")]
    /// Compute the papers' figures and tables, ours beside theirs (no network needed)
    #[command(long_about = help::REPRODUCE, after_long_help = help::REPRODUCE_MORE)]
    Reproduce(ReproduceArgs),
    #[cfg(feature = "research")]
    /// Run a whole data center on this machine, in network namespaces (Linux, root)
    #[command(long_about = help::LAB, after_long_help = help::LAB_MORE)]
    Lab(LabArgs),
    #[cfg(feature = "research")]
    /// Measure parts of the service
    #[command(hide = true)]
    Bench(bench::BenchArgs),
    #[cfg(feature = "research")]
    /// Simulate transfers packet by packet, in virtual time (no network needed)
    #[command(long_about = help::SIMULATE, after_long_help = help::SIMULATE_MORE)]
    Simulate(SimulateArgs),
    /// What a build without the feature `research` lacks
    #[cfg(not(feature = "research"))]
    #[command(external_subcommand)]
    Absent(Vec<OsString>),
}

/// `polycast cast`
#[derive(Arguments, Debug)]
pub(crate) struct CastArgs {
    /// The file or directory to deliver; - is standard input
    #[arg(value_name = "FILE|DIR")]
    pub path: PathBuf,
    /// How many receivers
    #[arg(long, value_name = "N", default_value = "4", value_parser = cast_receivers)]
    pub receivers: usize,
    /// Keep the receivers' copies, in one folder each below this one
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Replace what has the copies' names already
    #[arg(long)]
    pub force: bool,
    /// Bring what has the copies' names already up to date: what is equal is not sent
    #[arg(long, conflicts_with = "force")]
    pub update: bool,
    /// Each receiver throws away this fraction of the data packets on arrival, such as 0.05
    #[arg(long, value_name = "FRACTION", default_value = "0", value_parser = loss)]
    pub loss: f64,
    /// Seed of the loss: the same seed loses the same packets
    #[arg(long, value_name = "S", default_value = "1")]
    pub seed: u64,
    /// Do not seal connections and packets: other users of this machine can read along, and it costs less
    #[arg(long)]
    pub plain: bool,
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

/// `polycast offer`
#[derive(Arguments, Debug)]
pub(crate) struct OfferArgs {
    #[command(flatten)]
    pub choice: ChoiceArgs,
    /// How many receivers to wait for [default with --serve: 1]
    #[arg(long, value_name = "N", value_parser = offer_receivers, required_unless_present = "serve")]
    pub receivers: Option<usize>,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Send at this fixed rate, on a network that is ours alone (1gbit, 10G); without it the rate adapts
    #[arg(long, value_name = "RATE")]
    pub rate: Option<Rate>,
    /// How long to wait for the receivers to appear (30s, 2m); those that did not are reported
    #[arg(long, value_name = "T", value_parser = duration, default_value = "30s")]
    pub timeout: Duration,
    /// What becomes of a receiver that is slower than the others
    #[arg(long, value_name = "POLICY", default_value = "catch-up")]
    pub slow: SlowChoice,
    #[command(flatten)]
    pub door: OfferDoor,
}

/// Which machines may take an offer, and where it is found.
#[derive(Arguments, Debug)]
pub(crate) struct OfferDoor {
    /// Any machine on the network may take it, and read along: nothing is sealed; without this, those with its code: polycast accept CODE
    #[arg(long)]
    pub open: bool,
    /// Seal nothing, although there is a code: every machine on the network can read along; receivers need --insecure too
    #[arg(long)]
    pub insecure: bool,
    /// In place of a code the key of a cluster, as `polycast key new FILE` writes it; receivers need it too
    #[arg(long, value_name = "FILE", conflicts_with_all = ["open", "insecure", "code"])]
    pub key_file: Option<PathBuf>,
    /// Stay until Ctrl-C and serve machines that come later; the beginning waits for --receivers
    #[arg(long)]
    pub serve: bool,
    /// The code, six letters or more [default: three words that are drawn]
    #[arg(long, value_name = "CODE", conflicts_with = "open")]
    pub code: Option<Code>,
    /// TCP port for everything that receivers ask of this machine [default: 18067, or where that is taken another one]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// UDP port of the data, which the source sends to a group address
    #[arg(long, value_name = "P", default_value_t = OFFER_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub udp_port: u16,
    /// Group addresses of which it takes one
    #[arg(long, value_name = "NET", default_value = "239.255.0.0/16")]
    pub pool: Pool,
}

/// What becomes of a receiver that is slower than the others.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlowChoice {
    /// All go as fast as the slowest
    Wait,
    /// It is given up, and the report says why
    Drop,
    /// The others go on, and it catches up at its own pace
    CatchUp,
}

/// `polycast accept`
#[derive(Arguments, Debug)]
pub(crate) struct AcceptArgs {
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Which offer to take, where there are several: the handle that `offer` prints
    #[arg(long, value_name = "HEX", value_parser = handle)]
    pub handle: Option<Handle>,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// The name in the source's report [default: the machine's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub search: SearchArgs,
}

/// Which offer is looked for, and where.
#[derive(Arguments, Debug)]
pub(crate) struct SearchArgs {
    /// The code that `offer` prints; without one, an offer is taken that any machine may take (`offer --open`)
    #[arg(value_name = "CODE")]
    pub code: Option<Code>,
    /// The machine that offers, where the network carries no multicast [default port: 18067]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub from: Option<String>,
    /// Take an offer that is not sealed: polycast offer --insecure
    #[arg(long, requires = "code")]
    pub insecure: bool,
    /// In place of a code the key of a cluster, where the offer has it: polycast offer --key-file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["code", "insecure"])]
    pub key_file: Option<PathBuf>,
    /// How long to look for the offer (30s, 10m) [default: until Ctrl-C]
    #[arg(long, value_name = "T", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// TCP port where this machine passes on what it has, should multicast not get through [default: 18068, or where that is
    /// taken another one]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
}

/// Which network.
#[derive(Arguments, Debug)]
pub(crate) struct NetworkArgs {
    /// Network interface, by name or IPv4 address [default: the one of the default route]
    #[arg(long, value_name = "IF")]
    pub interface: Option<String>,
}

/// `polycast manager`
#[derive(Arguments, Debug)]
pub(crate) struct ManagerArgs {
    /// Settings in TOML
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Do not run: look at everything that the settings name, log in everywhere, change nothing, and list what is wrong
    #[arg(long)]
    pub check: bool,
    /// With --check: make circuits between free ports and look where light comes out, to find fibres that are swapped, and
    /// take the circuits down again; no manager may run meanwhile
    #[arg(long, requires = "check")]
    pub probe: bool,
    /// Where agents reach the manager
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// etcd, where several managers agree on which one leads, and keep their state
    #[arg(long, value_name = "ADDR,..", value_delimiter = ',')]
    pub etcd: Vec<String>,
    /// Address that agents have for this manager, where there are several [default: that of --listen]
    #[arg(long, value_name = "ADDR")]
    pub advertise: Option<String>,
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// In place of a key or certificate: folder of an authority of the manager's own, which is made where there is none. It gives
    /// certificates to agents that come with a token (polycast token new)
    #[arg(long, value_name = "DIR", conflicts_with_all = ["key_file", "tls_ca"])]
    pub ca: Option<PathBuf>,
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
    /// The cluster's key, as `polycast key new FILE` writes it: what the machines of the cluster say to each other is sealed with it,
    /// and a machine without it takes part in nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tls_ca", "tls_cert", "tls_key"])]
    pub key_file: Option<PathBuf>,
    /// In place of a key: certificates (PEM) of the authorities whose members take part
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    pub tls_ca: Option<PathBuf>,
    /// This machine's certificate (PEM); an agent's has the agent's name as a DNS name, or as spiffe://DOMAIN/polycast/agent/NAME
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    pub tls_cert: Option<PathBuf>,
    /// The private key of this certificate (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_cert"])]
    pub tls_key: Option<PathBuf>,
    /// Lists of certificates that the authorities have revoked (PEM); it is read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    pub tls_crl: Option<PathBuf>,
    /// Listen to other machines with neither key nor certificate: every machine that reaches this one takes part, and nothing is sealed
    #[arg(long, conflicts_with_all = ["key_file", "tls_ca", "tls_cert", "tls_key"])]
    pub insecure: bool,
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
    #[command(flatten)]
    pub network: NetworkArgs,
    /// TCP port for everything that other agents ask of this one [default: 7401, or where that is taken another one]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// In place of a key or certificate: what `polycast token new` has printed at the manager. The agent gets a certificate for it,
    /// which it renews by itself; while one that holds is there, the token is not used again
    #[arg(long, value_name = "TOKEN", env = "POLYCAST_TOKEN", hide_env_values = true, conflicts_with_all = ["key_file", "tls_ca"])]
    pub token: Option<String>,
    /// Folder for this certificate [default: /var/lib/polycast/NAME, with --token]
    #[arg(long = "identity", value_name = "DIR", conflicts_with_all = ["key_file", "tls_ca"])]
    pub identity_folder: Option<PathBuf>,
    /// Folder of the object store [default: one in shared memory]
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Bytes that the store may hold: objects that were not asked for lately make room for new ones (8GiB) [default: half of the memory for
    /// a store in memory]
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
    /// Print a new token, which lets one agent in once
    New {
        /// The agent's name
        #[arg(long, value_name = "NAME")]
        name: String,
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
    },
}

/// `polycast key`
#[derive(Arguments, Debug)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub command: KeyCommand,
}

/// What is done with keys.
#[derive(Subcommand, Debug)]
pub(crate) enum KeyCommand {
    /// Write a new key to FILE, which only you can read, or to standard output
    New {
        /// A file that is not there yet
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

/// How to reach the local agent.
#[derive(Arguments, Debug)]
pub(crate) struct LocalArgs {
    /// The agent's Unix socket [default: in the user's run-time folder]
    #[arg(long, value_name = "PATH", env = "POLYCAST_SOCKET")]
    pub socket: Option<PathBuf>,
}

/// `polycast doctor`
#[derive(Arguments, Debug)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Answer the questions of other machines' doctors until Ctrl-C
    #[arg(long, conflicts_with_all = ["to", "querier"])]
    pub listen: bool,
    /// Look whether this machine answers, which runs an agent or `polycast doctor --listen`
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub to: Vec<String>,
    /// Wait so long for a switch or router that looks after multicast (root)
    #[arg(long, value_name = "T", value_parser = duration)]
    pub querier: Option<Duration>,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// `polycast completions`
#[derive(Arguments, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `polycast man`
#[derive(Arguments, Debug)]
pub(crate) struct ManArgs {
    /// Where a page for every command is written, such as /usr/local/share/man/man1
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// `polycast send`
#[derive(Arguments, Debug)]
pub(crate) struct SendArgs {
    #[command(flatten)]
    pub choice: ChoiceArgs,
    /// The receiving agents' names, or all
    #[arg(long, value_name = "NAME,NAME|all", value_parser = destinations)]
    pub to: Destinations,
    /// The object's id: a number, or UUID/NUMBER [default: one that stays as long as the file does not change]
    #[arg(long, value_name = "ID")]
    pub id: Option<ObjectId>,
    /// Each file of a directory is an object of its own: usable before the others are there, and not sent where it is already
    #[arg(long)]
    pub files: bool,
    /// Replace the object of this id, here and at the receivers, and then older ones of this name
    #[arg(long)]
    pub replace: bool,
    /// Other users of this machine do not see it; receivers and their users do
    #[arg(long)]
    pub private: bool,
    /// Receivers that are not done by then have failed (30s, 10m)
    #[arg(long, value_name = "T", value_parser = duration)]
    pub deadline: Option<Duration>,
    /// How long the path is wanted (30s, 10m); after that the transfer goes on over TCP [default: until it has ended]
    #[arg(long, value_name = "T", value_parser = duration)]
    pub lease: Option<Duration>,
    /// What becomes of a receiver that is slower than the others
    #[arg(long, value_name = "POLICY", default_value = "catch-up")]
    pub slow: SlowChoice,
    /// Send this part first (1MiB-2MiB, or from 64MiB on): receivers can use it before the rest is there
    #[arg(long, value_name = "RANGE", value_parser = first_byte)]
    pub first: Option<u64>,
    /// The fabric that is to carry it, if it can, by its name in the manager's settings, such as ocs [default: the best one]
    #[arg(long, value_name = "NAME")]
    pub fabric: Option<String>,
    /// Settings of a transfer over trees (fabric datacast), by the keys of the manager's section datacast: rto-ms=20,increase=5mbit
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
    #[command(flatten)]
    pub local: LocalArgs,
}

/// `polycast drain` and `polycast undrain`
#[derive(clap::Args, Debug)]
pub(crate) struct DrainArgs {
    /// port:4 (of the circuit switch, from 1), splitter:0, tor:3 (the switch of a rack, from 0), or ocs
    #[arg(value_name = "PART")]
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

/// Whom `send` sends to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Destinations {
    /// All agents that the manager knows.
    All,
    /// These.
    Named(Vec<String>),
}

/// Parses the command line; what clap says about a wrong one is printed here.
pub(crate) fn parse() -> Result<Args, Exit> {
    let typed: Vec<OsString> = std::env::args_os().collect();
    Args::try_parse_from(&typed).map_err(|error| {
        let wanted = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        // Fails only if its output is closed.
        let _ = error.print();
        if wanted {
            return Exit::Done;
        }
        if typed.iter().any(|argument| argument == "--json") {
            let text = error.to_string();
            // The first paragraph says what is wrong; usage and tips follow.
            let sentence: Vec<_> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
            let sentence = sentence.join(" ");
            let sentence = sentence.trim_start_matches("error: ");
            let _ = output::result(Format::Json, &serde_json::json!({ "error": sentence }), "");
        }
        Exit::Failed
    })
}

fn receivers(text: &str, most: usize) -> Result<usize, String> {
    let count: usize = text.parse().map_err(|_| "write a whole number, such as 4".to_string())?;
    if (1..=most).contains(&count) { Ok(count) } else { Err(format!("there must be 1 to {most} receivers")) }
}

fn cast_receivers(text: &str) -> Result<usize, String> {
    receivers(text, CAST_RECEIVERS_MAX)
}

fn offer_receivers(text: &str) -> Result<usize, String> {
    receivers(text, OFFER_RECEIVERS_MAX)
}

fn handle(text: &str) -> Result<Handle, String> {
    let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let handle = u64::from_str_radix(text, 16).ok().filter(|_| digits);
    handle.map(Handle).ok_or_else(|| "write 16 digits, such as 00c5f07a9d3b1e42".to_string())
}

fn loss(text: &str) -> Result<f64, String> {
    let fraction: f64 = text.parse().map_err(|_| "write a fraction, such as 0.05".to_string())?;
    if (0.0..1.0).contains(&fraction) {
        Ok(fraction)
    } else {
        Err("it must be at least 0 and below 1".into())
    }
}

/// Reads `500ms`, `30s`, `2m`, `1h`, or a number of seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "write a time, such as 500ms, 30s, 2m or 1h".to_string();
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: f64 = text[..end].parse().map_err(|_| wrong())?;
    let unit_nanos = match text[end..].trim() {
        "ms" => 1e6,
        "" | "s" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        _ => return Err(wrong()),
    };
    let nanos = number * unit_nanos;
    // A thousand years is no time that anyone means.
    if (1.0..3e19).contains(&nanos) && nanos < u64::MAX as f64 {
        Ok(Duration(nanos as u64))
    } else {
        Err("it must be more than nothing, and less than centuries".into())
    }
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

fn destinations(text: &str) -> Result<Destinations, String> {
    if text == "all" {
        return Ok(Destinations::All);
    }
    let mut names: Vec<String> = Vec::new();
    for name in text.split(',').map(str::trim) {
        if name.is_empty() {
            return Err("write names with commas between them, or all".into());
        }
        if names.iter().any(|known| known == name) {
            return Err(format!("'{name}' is named twice"));
        }
        names.push(name.to_string());
    }
    Ok(Destinations::Named(names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, nanos) in
            [("500ms", 500_000_000), ("30", 30_000_000_000), ("1.5s", 1_500_000_000), ("2m", 120_000_000_000)]
        {
            assert_eq!(duration(text), Ok(Duration(nanos)), "{text}");
        }
        for text in ["", "s", "0", "-1s", "1y", "1e99h", "99999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_range_begins_somewhere() {
        assert_eq!(first_byte("1MiB-2MiB"), Ok(1 << 20));
        assert_eq!((first_byte("64KiB"), first_byte("4096-")), (Ok(64 << 10), Ok(4_096)));
        assert!(first_byte("2MiB-1MiB").unwrap_err().contains("has no bytes"));
        for text in ["", "-5", "x", "1-x"] {
            assert!(first_byte(text).is_err(), "{text}");
        }
    }

    #[test]
    fn destinations_are_names_or_all() {
        assert_eq!(destinations("all"), Ok(Destinations::All));
        assert_eq!(destinations("a, b"), Ok(Destinations::Named(vec!["a".into(), "b".into()])));
        assert!(destinations("a,b,a").unwrap_err().contains("'a' is named twice"));
        assert!(destinations("a,,b").is_err());
    }

    #[test]
    fn counts_and_fractions_have_bounds() {
        assert_eq!(cast_receivers("4"), Ok(4));
        for text in ["0", "-1", "x", "1001"] {
            assert!(cast_receivers(text).is_err(), "{text}");
        }
        assert_eq!(handle("00c5f07a9d3b1e42"), Ok(Handle(0x00c5_f07a_9d3b_1e42)));
        for text in ["", "c5", "+0c5f07a9d3b1e42", "00c5f07a9d3b1e4200", "00c5f07a9d3b1e4ä"] {
            assert!(handle(text).is_err(), "{text}");
        }
        assert_eq!(loss("0.05"), Ok(0.05));
        for text in ["1", "-0.1", "NaN", "inf", "5%"] {
            assert!(loss(text).is_err(), "{text}");
        }
    }
}
