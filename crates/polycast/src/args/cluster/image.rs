//! What can be typed for `polycast image`.

use super::local::{Destinations, LocalArgs, destinations};
use clap::{Args as Arguments, Subcommand};
use std::path::PathBuf;

/// `polycast image`
#[derive(Arguments, Debug)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub command: ImageCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ImageCommand {
    /// Get an image's manifests and layers into the local agent's store, and those of others
    Pull(PullArgs),
    /// Tell containerd on this machine of the agent's mirror, in the hosts.toml of each registry
    Hosts(HostsArgs),
}

/// `polycast image pull`
#[derive(Arguments, Debug)]
pub(crate) struct PullArgs {
    /// The image as runtimes name it; http:// before a registry that has no TLS
    #[arg(value_name = "[REGISTRY/]NAME[:TAG|@DIGEST]")]
    pub image: String,
    /// Put it into the stores of these agents, too: their names, or all
    #[arg(long, value_name = "NAME,NAME|all", value_parser = destinations)]
    pub to: Option<Destinations>,
    /// The platform, of an image that there is for several [default: that of this machine]
    #[arg(long, value_name = "OS/ARCHITECTURE")]
    pub platform: Option<String>,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// `polycast image hosts`
#[derive(Arguments, Debug)]
pub(crate) struct HostsArgs {
    /// The agent's settings, whose section oci names the mirror and its registries
    #[arg(long, value_name = "FILE", required_unless_present = "undo")]
    pub config: Option<PathBuf>,
    /// The folder that containerd's config_path names
    #[arg(long, value_name = "DIR", default_value = "/etc/containerd/certs.d")]
    pub into: PathBuf,
    /// Take out what this command has written
    #[arg(long, conflicts_with = "config")]
    pub undo: bool,
}
