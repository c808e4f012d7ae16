//! What can be typed.

mod absent;
pub(crate) mod bcast;
#[cfg(feature = "cluster")]
pub(crate) mod cluster;
pub(crate) mod elsewhere;
mod groups;
pub(crate) mod help;
pub(crate) mod log;
#[cfg(feature = "pages")]
pub(crate) mod pages;
pub(crate) mod place;
pub(crate) mod values;

use crate::Added;
use crate::commands::code::{self, CodeArg};
use crate::commands::network::{OFFER_PORT, Pool};
use crate::exit::Exit;
use crate::output::{self, Format};
use crate::screen;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args as Arguments, CommandFactory, FromArgMatches, Parser, Subcommand};
use log::LogOptions;
use place::{ChoiceArgs, PlaceArgs, ReadArgs};
use polycast_net::archive::Glob;
use polycast_types::{Duration, Handle, Rate};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
pub(crate) use values::{NetworkArgs, SlowChoice, duration, rate_with_unit};

/// `cast` runs one thread or more a receiver: beyond this, one machine is no longer a useful stage.
const CAST_RECEIVERS_MAX: usize = 1_000;
const OFFER_RECEIVERS_MAX: usize = 100_000;
/// Shells that one push opens at the same time; each is a process and a thread.
const PUSH_JOBS_MAX: usize = 1_000;

/// The program's name, also in the pages of one that is called otherwise.
const PROGRAM: &str = "polycast";
/// Called by this name, the program is `polycast bcast`.
const AS_SBCAST: &str = "sbcast";

/// The command line.
#[derive(Parser, Debug)]
#[command(
    name = "polycast",
    version = help::version(),
    about = help::ABOUT,
    long_about = help::LONG_ABOUT,
    help_template = groups::template(),
    after_help = help::note(),
    after_long_help = help::after_help(),
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = false
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub told: Told,
    #[command(subcommand)]
    pub command: Command,
}

/// Options of all commands.
#[derive(Arguments, Debug)]
pub(crate) struct Told {
    /// Print one JSON document to standard output, and nothing else there
    #[arg(long, global = true, display_order = 100)]
    pub json: bool,
    #[command(flatten)]
    pub logging: LogOptions,
}

impl Told {
    /// The form of what is printed.
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { Format::Text }
    }
}

/// The commands. Those that not every build has are in the table of `absent` too.
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
    /// Deliver to machines over ssh, where nothing of Polycast is installed
    #[command(long_about = help::PUSH, after_long_help = help::PUSH_MORE)]
    Push(PushArgs),
    /// Deliver to the nodes of a Slurm job, with the options of sbcast
    #[command(long_about = help::BCAST, after_long_help = help::BCAST_MORE, version = help::version())]
    Bcast(Box<bcast::BcastArgs>),
    /// The daemons of a cluster, and what they are asked for
    #[cfg(feature = "cluster")]
    #[command(flatten)]
    Cluster(cluster::Command),
    /// Look at what keeps transfers from being fast: interface, multicast, packet lengths, buffers, ports
    #[command(long_about = help::DOCTOR, after_long_help = help::DOCTOR_MORE)]
    Doctor(DoctorArgs),
    /// Make the key of a cluster
    #[command(after_long_help = help::KEY_MORE)]
    Key(KeyArgs),
    /// The tokens of a manager, and what it has written down
    #[cfg(feature = "cluster")]
    #[command(flatten)]
    Admission(cluster::Admission),
    /// What is written from the command line's own definition
    #[cfg(feature = "pages")]
    #[command(flatten)]
    Pages(pages::Command),
    /// What another program runs
    #[command(flatten)]
    Elsewhere(elsewhere::Command),
}

impl Command {
    /// Whether it runs until it is ended, and logs for an operator.
    pub(crate) fn is_daemon(&self) -> bool {
        #[cfg(feature = "cluster")]
        {
            use cluster::Command::{Agent, Forwarder, LabelSwitch, Manager, RackAgent};
            matches!(
                self,
                Command::Cluster(Manager(_) | Agent(_) | Forwarder(_) | LabelSwitch(_) | RackAgent(_))
            )
        }
        #[cfg(not(feature = "cluster"))]
        false
    }
}

/// `polycast cast`
#[derive(Arguments, Debug)]
pub(crate) struct CastArgs {
    /// The file or directory to deliver; - is standard input
    #[arg(value_name = "FILE|DIR")]
    pub path: PathBuf,
    #[command(flatten)]
    pub read: ReadArgs,
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

/// `polycast offer`
#[derive(Arguments, Debug)]
pub(crate) struct OfferArgs {
    #[command(flatten)]
    pub choice: ChoiceArgs,
    /// How many receivers to wait for; ends when they have it [default: serve all that come, until Ctrl-C]
    #[arg(long, value_name = "N", value_parser = offer_receivers)]
    pub receivers: Option<usize>,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// The zone that this machine is in, such as a room or a site: over TCP the object enters each zone once;
    /// an empty name is none
    #[arg(long, value_name = "NAME", env = "POLYCAST_ZONE")]
    pub zone: Option<String>,
    /// Send at this fixed rate, on a network that is ours alone (1gbit, 10G); without it the rate adapts
    #[arg(long, value_name = "RATE", value_parser = rate_with_unit)]
    pub rate: Option<Rate>,
    /// How long to wait for the receivers to appear (30s, 2m); those of --receivers that did not are reported
    /// [default: 30s]
    #[arg(long, value_name = "T", value_parser = duration, requires = "receivers")]
    pub timeout: Option<Duration>,
    /// What becomes of a receiver that is slower than the others
    #[arg(long, value_name = "POLICY", default_value = "catch-up")]
    pub slow: SlowChoice,
    #[command(flatten)]
    pub door: OfferDoor,
}

/// Which machines may take an offer, and where it is found.
#[derive(Arguments, Debug)]
pub(crate) struct OfferDoor {
    /// Any machine on the network may take it, and read along: nothing is sealed; without this, those with
    /// its code: polycast accept CODE
    #[arg(long)]
    pub open: bool,
    /// Seal nothing, although there is a code: every machine on the network can read along; receivers need
    /// --insecure too
    #[arg(long)]
    pub insecure: bool,
    /// In place of a code the key of a cluster, as `polycast key new FILE` writes it; receivers need it too
    #[arg(long, value_name = "FILE", conflicts_with_all = ["open", "insecure", "code"])]
    pub key_file: Option<PathBuf>,
    /// Stay until Ctrl-C and serve machines that come later, also with --receivers: the beginning waits for
    /// these
    #[arg(long)]
    pub serve: bool,
    /// A code of your own, four words or more, or one that you have drawn before; - reads it from standard
    /// input. Other users of this machine can read arguments, and neither that nor POLYCAST_CODE [default:
    /// four words that are drawn, and say that the offer is yours]
    #[arg(long, value_name = "CODE", env = code::VARIABLE, hide_env_values = true, conflicts_with = "open")]
    pub code: Option<CodeArg>,
    /// Take a code of your own that can be guessed while an offer stands
    #[arg(long, requires = "code")]
    pub weak_code: bool,
    /// TCP port for everything that receivers ask of this machine [default: 18067, or where that is taken
    /// another one]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// UDP port of the data, which the source sends to a group address
    #[arg(long, value_name = "P", default_value_t = OFFER_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub udp_port: u16,
    /// Group addresses of which it takes one [default: 239.255.0.0/16; of a machine with IPv6 alone
    /// ff15::8000:0/112]
    #[arg(long, value_name = "NET")]
    pub pool: Option<Pool>,
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
    /// The zone that this machine is in, such as a room or a site: over TCP the object enters each zone once;
    /// an empty name is none
    #[arg(long, value_name = "NAME", env = "POLYCAST_ZONE")]
    pub zone: Option<String>,
    /// This machine's name in the source's report [default: the machine's own]
    #[arg(long, value_name = "NAME", alias = "name")]
    pub host: Option<String>,
    #[command(flatten)]
    pub search: SearchArgs,
}

/// `polycast push`
#[derive(Arguments, Debug)]
pub(crate) struct PushArgs {
    /// The file or directory; several become one directory. The last word is where to: hosts as
    /// gpu[01-32],login, and a path on each of them; a directory that is there gets the object under its
    /// name. Without hosts those of the Slurm job
    #[arg(value_name = "FILE|DIR.. [USER@]HOSTS:[PATH]", required = true, num_args = 1..)]
    pub words: Vec<PathBuf>,
    /// Leave out what this pattern matches, such as '*.tmp', 'cache/' or '/build'; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<Glob>,
    #[command(flatten)]
    pub read: ReadArgs,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Send at this fixed rate, on a network that is ours alone (1gbit, 10G); without it the rate adapts
    #[arg(long, value_name = "RATE", value_parser = rate_with_unit)]
    pub rate: Option<Rate>,
    /// Replace what is there
    #[arg(long, conflicts_with = "update")]
    pub force: bool,
    /// Bring what is there up to date: what is equal is not sent
    #[arg(long)]
    pub update: bool,
    /// The command that opens a shell on a host, with its options; HOST and a script are put behind it
    #[arg(long, short = 'e', value_name = "COMMAND", default_value = "ssh", allow_hyphen_values = true)]
    pub ssh: String,
    /// Hosts that are reached at the same time
    #[arg(long, value_name = "N", default_value = "32", value_parser = push_jobs)]
    pub jobs: usize,
    /// The program for these hosts, such as a static one, or one for another processor [default:
    /// polycast-MACHINE, for the machine that `uname -m` names there, beside this program or in
    /// ../lib/polycast; or this one]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Leave no program there; without this it stays in ~/.cache/polycast for the next time
    #[arg(long)]
    pub clean: bool,
    /// TCP port for everything that receivers ask of this machine [default: 18067, or where that is taken
    /// another one]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
}

/// Which offer is looked for, and where.
#[derive(Arguments, Debug)]
pub(crate) struct SearchArgs {
    /// The code that `offer` prints, with hyphens or spaces; - reads it from standard input. Other users of
    /// this machine can read arguments, and neither that nor POLYCAST_CODE. Without a code, an offer is taken
    /// that any machine may take (`offer --open`)
    #[arg(value_name = "CODE", env = code::VARIABLE, hide_env_values = true, num_args = 1..)]
    pub code: Vec<String>,
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
    /// TCP port where this machine passes on what it has, should multicast not get through [default: 18068,
    /// or where that is taken another one]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
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
    #[cfg(feature = "cluster")]
    #[command(flatten)]
    pub local: cluster::local::LocalArgs,
}

/// What was typed.
pub(crate) enum Typed {
    /// A command of this library.
    Own(Box<Args>),
    /// One that the program has added.
    Added(Told, ArgMatches),
}

/// The definition of the command line.
pub(crate) fn tree(added: Option<&Added>) -> clap::Command {
    let more: Vec<clap::Command> = match added {
        Some(added) => (added.tree)().get_subcommands().cloned().collect(),
        None => Vec::new(),
    };
    more.into_iter().fold(Args::command().bin_name(PROGRAM), |tree, command| {
        let name = command.get_name().to_string();
        tree.mut_subcommand(name, |_| command)
    })
}

/// Parses the command line; what clap says about a wrong one is printed here.
pub(crate) fn parse(added: Option<&Added>) -> Result<Typed, Exit> {
    let mut typed: Vec<OsString> = std::env::args_os().collect();
    if typed.first().is_some_and(|name| Path::new(name).file_name().is_some_and(|name| name == AS_SBCAST)) {
        typed.insert(1, "bcast".into());
    }
    let wants_json = typed.iter().any(|argument| argument == "--json");
    // A page of the other program's: clap would print that of the words here.
    if let (None, [_, help, of, ..]) = (added, typed.as_slice())
        && help == "help"
        && let Some(command) = of.to_str().and_then(elsewhere::Command::of)
    {
        let format = if wants_json { Format::Json } else { Format::Text };
        let outcome = crate::commands::elsewhere::run(command.name());
        return Err(outcome.unwrap_or_else(|failure| output::failure(format, &failure)));
    }
    read(&typed, added).map_err(|error| {
        if let Some(failure) = absent::explain(&error) {
            return output::failure(if wants_json { Format::Json } else { Format::Text }, &failure);
        }
        let wanted = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        screen::page(&error.render(), error.use_stderr());
        if wanted {
            return Exit::Done;
        }
        if wants_json {
            let text = error.to_string();
            // The first paragraph says what is wrong; usage and tips follow.
            let sentence: Vec<_> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
            let sentence = sentence.join(" ");
            let sentence = sentence.trim_start_matches("error: ");
            let _ = output::result(
                Format::Json,
                &serde_json::json!({ "error": sentence, "kind": "invalid" }),
                "",
            );
        }
        Exit::Failed
    })
}

fn read(typed: &[OsString], added: Option<&Added>) -> Result<Typed, clap::Error> {
    let tree = tree(added);
    let tree = match added {
        Some(added) => tree.display_name(added.name),
        None => tree,
    };
    let mut matches = tree.try_get_matches_from(typed)?;
    match matches.subcommand_name() {
        Some(name) if added.is_some() && elsewhere::Command::of(name).is_some() => {
            Ok(Typed::Added(Told::from_arg_matches_mut(&mut matches)?, matches))
        }
        _ => Args::from_arg_matches_mut(&mut matches).map(|args| Typed::Own(Box::new(args))),
    }
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

fn push_jobs(text: &str) -> Result<usize, String> {
    let count: usize = text.parse().map_err(|_| "write a whole number, such as 32".to_string())?;
    if (1..=PUSH_JOBS_MAX).contains(&count) { Ok(count) } else { Err(format!("write 1 to {PUSH_JOBS_MAX}")) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
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
