//! Commands for objects that are asked for, and topics.

use super::local::LocalArgs;
use crate::args::place::{PlaceArgs, ReadArgs};
use crate::args::values::duration;
use crate::commands::cluster::names::Which;
use clap::Args as Arguments;
use polycast_types::{Duration, ObjectId, Printable, without_secrets};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FetchWhat {
    /// By what it is.
    Key(String),
    /// By where it is from.
    Url(String),
    /// By its id.
    Id(ObjectId),
}

impl FromStr for FetchWhat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if ["http://", "https://", "s3://", "hf://", "oci://", "file:"]
            .iter()
            .any(|scheme| text.starts_with(scheme))
        {
            return Ok(FetchWhat::Url(text.to_string()));
        }
        if let Some((scheme, _)) = text.split_once("://") {
            let said = "polycast reads https, http, s3, hf, oci and file";
            return Err(format!("{said}, and not {scheme}: write https://HOST/PATH, or file:///PATH"));
        }
        if text.contains(':') {
            return Ok(FetchWhat::Key(text.to_string()));
        }
        let id: Result<ObjectId, _> = text.parse();
        id.map(FetchWhat::Id).map_err(|_| {
            "write a key (sha256:HEX, git:HEX, name:TEXT), an address (https://..), or an object's id".into()
        })
    }
}

impl fmt::Display for FetchWhat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchWhat::Key(text) | FetchWhat::Url(text) => {
                write!(f, "{}", Printable(&without_secrets(text)))
            }
            FetchWhat::Id(id) => write!(f, "object {id}"),
        }
    }
}

/// Manner in which the server of an address is asked.
#[derive(Arguments, Clone, Debug, Default)]
pub(crate) struct OriginArgs {
    /// Send this header to the server of an https or http address, and to no other one; @FILE has lines of
    /// headers; may be repeated
    #[arg(long, value_name = "NAME: VALUE|@FILE")]
    pub header: Vec<String>,
    /// Send this variable of the environment as the token (Authorization: Bearer ..), in the same way
    #[arg(long, value_name = "VARIABLE")]
    pub token_env: Option<String>,
}

/// `polycast fetch`
#[derive(Arguments, Debug)]
pub(crate) struct FetchArgs {
    /// A key such as sha256:HEX, git:HEX or name:TEXT; an address of https, http, s3, hf, oci or a file; or
    /// an object's id
    #[arg(value_name = "KEY|URL|ID")]
    pub what: FetchWhat,
    /// Where to get it if no agent has it [default: the URL]; one of the agents that ask does
    #[arg(long, value_name = "URL")]
    pub from: Option<String>,
    #[command(flatten)]
    pub origin: OriginArgs,
    /// Wait for so long, also until an agent has it (500ms, 30s) [default: fail at once where none can have
    /// it]
    #[arg(long, value_name = "T", value_parser = duration)]
    pub timeout: Option<Duration>,
    #[command(flatten)]
    pub place: PlaceArgs,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// `polycast pin` and `polycast unpin`
#[derive(Arguments, Debug)]
pub(crate) struct PinArgs {
    /// The objects' ids, or their names; all of a name
    #[arg(value_name = "NAME|ID", required = true)]
    pub which: Vec<Which>,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// `polycast publish`
#[derive(Arguments, Debug)]
pub(crate) struct PublishArgs {
    /// The topic's name
    #[arg(value_name = "TOPIC")]
    pub topic: String,
    /// The file or directory that is the new version; it must not change while others get it
    #[arg(value_name = "FILE|DIR", required_unless_present = "from")]
    pub path: Option<PathBuf>,
    /// Publish what is at this address (https, http, s3, hf, oci, file): this host reads it there unless an
    /// agent has it, and a folder becomes a set of files
    #[arg(long, value_name = "URL", conflicts_with_all = ["path", "follow", "retry_changed"])]
    pub from: Option<String>,
    #[command(flatten)]
    pub origin: OriginArgs,
    #[command(flatten)]
    pub read: ReadArgs,
    /// Each file of a directory is an object of its own: usable before the others are there, and not sent
    /// where it is already
    #[arg(long)]
    pub files: bool,
    /// Its number, above the last one's [default: one more than the last]
    #[arg(long = "version", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub version: Option<u64>,
    /// Do not wait longer for subscribers (500ms, 30s) [default: until each has it or has failed]
    #[arg(long, value_name = "T", value_parser = duration)]
    pub timeout: Option<Duration>,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// `polycast subscribe`
#[derive(Arguments, Debug)]
pub(crate) struct SubscribeArgs {
    /// The topic's name
    #[arg(value_name = "TOPIC")]
    pub topic: String,
    /// End after the first version
    #[arg(long)]
    pub once: bool,
    /// Run this with /bin/sh for each version; POLYCAST_TOPIC, POLYCAST_VERSION and POLYCAST_PATH say which
    #[arg(long, value_name = "CMD")]
    pub exec: Option<String>,
    #[command(flatten)]
    pub place: PlaceArgs,
    #[command(flatten)]
    pub local: LocalArgs,
}
