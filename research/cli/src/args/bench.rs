//! What `polycast bench` can be told.

use clap::{Args as Arguments, Subcommand};
use polycast::duration;
use polycast_types::Duration;

/// `polycast bench`
#[derive(Arguments, Debug)]
pub(crate) struct BenchArgs {
    /// What to measure
    #[command(subcommand)]
    pub what: Bench,
}

const CONTROL_MORE: &str = "\
Examples:
  polycast bench control
  polycast bench control blast:racks=8,hosts=2,circuit-ms=14 --requests 50 --json
  polycast bench control shufflecast:2,2,hosts=2";

const OCS_RECORD_MORE: &str = "\
Examples:
  polycast bench ocs-record 10.0.0.9:3082 --dialect polatis-tl1 --user admin --password-file pw --out polatis.txt
  polycast bench ocs-record 10.0.0.9:5025 --dialect polatis-scpi --change 3:17 --out polatis-scpi.txt";

const REPLICATION_MORE: &str = "\
Examples:
  polycast bench replication
  polycast bench replication orca:4 --acceptors 3,7,15 --requests 5000 --json
  polycast bench replication shufflecast:2,2,hosts=1 --bytes 100";

/// What `polycast bench` measures.
#[derive(Subcommand, Debug)]
pub(crate) enum Bench {
    /// How fast a manager answers: agents' sessions that ask for paths and give them back
    Manager(BenchManagerArgs),
    /// How long messages stop when the active agent of a rack is killed, in a lab with labels (Linux, root)
    RackKill(BenchKillArgs),
    /// How long it takes until devices have a path: Blast's Table II, in a lab (Linux, root)
    #[command(after_help = CONTROL_MORE)]
    Control(BenchControlArgs),
    /// How soon a host that joins a stream under load hears it, in a lab (Linux, root)
    Join(BenchJoinArgs),
    /// How soon a majority of acceptors answers small requests, by unicast and over streams, in labs (Linux,
    /// root)
    #[command(after_help = REPLICATION_MORE)]
    Replication(BenchReplicationArgs),
    /// Record what a circuit switch answers, as a dialogue that tests play to the driver; it changes nothing
    #[command(after_help = OCS_RECORD_MORE)]
    OcsRecord(BenchOcsRecordArgs),
}

/// `polycast bench ocs-record`
#[derive(Arguments, Debug)]
pub(crate) struct BenchOcsRecordArgs {
    /// The switch's address and port
    #[arg(value_name = "ADDR")]
    pub switch: std::net::SocketAddr,
    /// What it speaks: glimmerglass, calient, polatis-tl1, polatis-scpi or plain
    #[arg(long, value_name = "NAME")]
    pub dialect: String,
    /// Number of its inputs [default: as it says itself]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub ports: Option<u32>,
    /// The user to log in as
    #[arg(long, value_name = "USER", requires = "password_file")]
    pub user: Option<String>,
    /// A file with the password in its first line; it is in no part of the recording
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password_file: Option<std::path::PathBuf>,
    /// Make this circuit between dark ports, and take it down again; without this nothing is changed
    #[arg(long, value_name = "IN:OUT", value_parser = parse_change)]
    pub change: Vec<(String, String)>,
    /// How long an answer may take
    #[arg(long, value_name = "T", default_value = "5s", value_parser = duration)]
    pub timeout: Duration,
    /// The file that the dialogue is written to, which must not be there
    #[arg(long, value_name = "FILE")]
    pub out: std::path::PathBuf,
}

fn parse_change(text: &str) -> Result<(String, String), String> {
    let ends = text.split_once(':').filter(|(from, to)| !from.is_empty() && !to.is_empty());
    let ends =
        ends.ok_or_else(|| "it must be two ports with a colon between them, such as 3:17".to_string())?;
    Ok((ends.0.to_string(), ends.1.to_string()))
}

/// A lab, and the stream in it.
#[derive(Arguments, Debug)]
pub(crate) struct BenchLabArgs {
    /// The lab, such as orca:4
    #[arg(value_name = "SPEC")]
    pub spec: polycast_lab::spec::Spec,
    /// Messages a second
    #[arg(long, value_name = "N", default_value = "20000")]
    pub rate: f64,
    /// Bytes of a message
    #[arg(long, value_name = "N", default_value = "1000")]
    pub bytes: usize,
}

/// `polycast bench rack-kill`
#[derive(Arguments, Debug)]
pub(crate) struct BenchKillArgs {
    #[command(flatten)]
    pub lab: BenchLabArgs,
    /// How often
    #[arg(long, value_name = "N", default_value = "50", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub kills: u32,
    /// Times T after which a silent agent is replaced, a lab each [default: that of SPEC]
    #[arg(long, value_name = "T,..", value_delimiter = ',', value_parser = duration)]
    pub timeout: Vec<Duration>,
}

/// `polycast bench control`
#[derive(Arguments, Debug)]
pub(crate) struct BenchControlArgs {
    /// A lab with a fabric of circuits or splitters. Its circuit switch takes circuit-ms for a circuit
    #[arg(value_name = "SPEC", default_value = "blast:racks=3,hosts=2,circuit-ms=0")]
    pub spec: polycast_lab::spec::Spec,
    /// How many paths are asked for, by one rack after the other
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub requests: u32,
}

/// `polycast bench join`
#[derive(Arguments, Debug)]
pub(crate) struct BenchJoinArgs {
    #[command(flatten)]
    pub lab: BenchLabArgs,
    /// How often
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub joins: u32,
}

/// `polycast bench replication`
#[derive(Arguments, Debug)]
pub(crate) struct BenchReplicationArgs {
    /// The labs, one after the other. Its first host is the leader
    #[arg(value_name = "SPEC", default_values = ["bridge:8", "shufflecast:2,2,hosts=1", "orca:4"])]
    pub specs: Vec<polycast_lab::spec::Spec>,
    /// How many acceptors, one number after the other
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values = ["3", "5", "7"], value_parser = clap::value_parser!(u32).range(1..=199))]
    pub acceptors: Vec<u32>,
    /// How many requests each way gets, one after the other
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub requests: u32,
    /// Bytes of a request's value, besides its number
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_value_bytes)]
    pub bytes: usize,
}

/// A request is one message of a stream.
fn parse_value_bytes(text: &str) -> Result<usize, String> {
    const MOST: usize = 65_536;
    let bytes = text.parse().ok().filter(|bytes| *bytes <= MOST);
    bytes.ok_or_else(|| format!("it must be a whole number of at most {MOST}"))
}

/// `polycast bench manager`
#[derive(Arguments, Debug)]
pub(crate) struct BenchManagerArgs {
    /// How many agents are joined, each over a connection of its own
    #[arg(long, value_name = "N", default_value = "64")]
    pub agents: usize,
    /// Receivers of each request
    #[arg(long, value_name = "N", default_value = "16")]
    pub receivers: usize,
    /// For how long
    #[arg(long, value_name = "S", default_value = "10")]
    pub seconds: f64,
    /// Requests a second, all agents together, at even times; without it every agent asks again at once
    #[arg(long, value_name = "N")]
    pub rate: Option<f64>,
    /// A manager that runs already [default: one is started, as a process of its own]
    #[arg(long, value_name = "ADDR")]
    pub manager: Option<String>,
}
