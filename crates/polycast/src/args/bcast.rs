//! The options of `polycast bcast`: those of Slurm's sbcast, so that it can take that one's place in scripts.

use super::values::NetworkArgs;
use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use clap::{ArgAction, Args as Arguments, ValueEnum};
use std::path::PathBuf;

/// `polycast bcast`
#[derive(Arguments, Debug)]
pub(crate) struct BcastArgs {
    /// The file
    #[arg(value_name = "SOURCE")]
    pub source: PathBuf,
    /// Its path on each node; a directory that is there gets the file under its name
    #[arg(value_name = "DEST")]
    pub dest: PathBuf,
    /// Replace what is there
    #[arg(long, short, env = "SBCAST_FORCE", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub force: bool,
    /// Keep the file's times too; its mode is kept always
    #[arg(long, short, env = "SBCAST_PRESERVE", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub preserve: bool,
    /// Bring also the shared libraries of the program that SOURCE is, into DEST_libs
    #[arg(long, value_name = "yes|no", env = "SBCAST_SEND_LIBS", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "yes")]
    pub send_libs: Option<Consent>,
    /// Libraries below these folders are not brought; NONE brings all [default: BcastExclude of slurm.conf]
    #[arg(long, value_name = "NONE|PATH,PATH", env = "SBCAST_EXCLUDE", value_delimiter = ',')]
    pub exclude: Option<Vec<String>>,
    /// The job, where this is not in one: ID or ID.STEP
    #[arg(long, short, value_name = "ID[.STEP]", value_parser = NonEmptyStringValueParser::new())]
    pub jobid: Option<String>,
    /// These nodes of the job, such as n[1-4] [default: all]
    #[arg(long, short = 'w', value_name = "NODES")]
    pub nodelist: Option<String>,
    /// To the nodes of --nodelist without a job, over ssh, as `polycast push` does
    #[arg(long, short = 'Z', requires = "nodelist")]
    pub no_allocation: bool,
    /// How long nodes may take to begin, in seconds [default: 60]
    #[arg(long, short, value_name = "S", env = "SBCAST_TIMEOUT", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub timeout: Option<u32>,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// The program for the nodes, such as a static one [default: this one]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    #[command(flatten)]
    pub ignored: IgnoredArgs,
    #[cfg(feature = "cluster")]
    #[command(flatten)]
    pub local: super::cluster::local::LocalArgs,
}

/// Options of sbcast that change nothing here, and are taken with a note.
#[derive(Arguments, Debug)]
pub(crate) struct IgnoredArgs {
    /// Changes nothing: what is sent is not compressed
    #[arg(long, short = 'C', value_name = "lz4|none", env = "SBCAST_COMPRESS", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "lz4")]
    pub compress: Option<String>,
    /// Changes nothing: there is no tree of messages
    #[arg(long, short = 'F', alias = "fanout", value_name = "N", env = "SBCAST_FANOUT")]
    pub treewidth: Option<u32>,
    /// Changes nothing: the network decides on the length of packets
    #[arg(long, short, value_name = "SIZE", env = "SBCAST_SIZE")]
    pub size: Option<String>,
}

impl IgnoredArgs {
    /// What a user should know of them.
    pub(crate) fn note(&self) -> Option<String> {
        let compress = self.compress.as_deref().is_some_and(|library| library != "none");
        let given = [(self.treewidth.is_some(), "-F"), (self.size.is_some(), "-s"), (compress, "-C")];
        let given: Vec<&str> =
            given.iter().filter(|(is_given, _)| *is_given).map(|(_, name)| *name).collect();
        match given[..] {
            [] => None,
            [one] => Some(format!("{one} changes nothing here")),
            _ => Some(format!(
                "{} change nothing here",
                given.join(" and ").replacen(" and ", ", ", given.len() - 2)
            )),
        }
    }
}

/// An answer as sbcast has it.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Consent {
    /// It is done
    Yes,
    /// It is not done
    No,
}

#[cfg(test)]
mod tests {
    use crate::args::{Args, Command};
    use clap::Parser;

    fn read(words: &str) -> Result<super::BcastArgs, clap::Error> {
        let words = ["polycast", "bcast"].into_iter().chain(words.split_whitespace());
        match Args::try_parse_from(words)?.command {
            Command::Bcast(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_are_those_of_sbcast() {
        let all = "-C -F 4 -fp -j 7.0 --send-libs -s 8m -t 30 -w n[1-2] -Z --exclude=/lib,/usr/lib a /tmp/b";
        let args = read(all).unwrap();
        assert!(args.force && args.preserve && args.no_allocation);
        assert_eq!(args.exclude.as_ref().unwrap().len(), 2);
        assert_eq!(args.ignored.note().unwrap(), "-F, -s and -C change nothing here");
        assert_eq!(read("--fanout=8 a b").unwrap().ignored.note().unwrap(), "-F changes nothing here");
        assert_eq!(
            read("--treewidth=8 -s 1k a b").unwrap().ignored.note().unwrap(),
            "-F and -s change nothing here"
        );
        assert_eq!(read("--compress=none a b").unwrap().ignored.note(), None);
        assert_eq!(read("--send-libs=no a b").unwrap().send_libs, Some(super::Consent::No));
        for wrong in ["a", "-Z a b", "--send-libs=maybe a b", "-t 0 a b"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
