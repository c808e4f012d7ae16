//! What can be typed for `polycast warm`.

use super::local::{Destinations, LocalArgs, destinations};
use crate::args::values::duration;
use clap::{Args as Arguments, Subcommand, ValueEnum};
use polycast_types::Duration;
use std::path::PathBuf;

/// Parts besides the versions of packages.
const PARTS: [&str; 5] = ["gpu", "driver", "processor", "python", "model"];
/// Packages whose versions are parts.
const PACKAGES: [&str; 5] = ["torch", "vllm", "triton", "flashinfer-python", "deep-gemm"];

/// `polycast warm`
#[derive(Arguments, Debug)]
pub(crate) struct WarmArgs {
    #[command(subcommand)]
    pub command: WarmCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum WarmCommand {
    /// Give the cache of this machine to others
    Push(PushArgs),
    /// Get a cache that a machine with the same key has pushed
    Pull(PullArgs),
}

/// Programs that compile, and keep what they have compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Engine {
    /// The folder `torch_compile_cache` of vLLM
    Vllm,
    /// The cache of torch.compile
    Inductor,
    /// The cache of Triton
    Triton,
    /// The cache of `FlashInfer`
    Flashinfer,
    /// The cache of `DeepGEMM`
    Deepgemm,
}

/// Options of both.
#[derive(Arguments, Debug)]
pub(crate) struct CacheArgs {
    /// The program whose cache it is
    #[arg(value_name = "ENGINE", value_enum)]
    pub engine: Engine,
    /// Its key: any text, or auto: GPU, driver, processor, Python, torch, the engine's version and the model
    #[arg(long, value_name = "auto|TEXT", default_value = "auto")]
    pub key: String,
    /// The model that it was compiled for
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// A part of the automatic key, in place of what is found; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = part)]
    pub part: Vec<(String, String)>,
    /// The folder of the cache [default: the engine's own, by its environment variables]
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
    /// The Python that the engine runs in
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub python: PathBuf,
    #[command(flatten)]
    pub local: LocalArgs,
}

/// `polycast warm push`
#[derive(Arguments, Debug)]
pub(crate) struct PushArgs {
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Put it into the stores of these agents, too: their names, or all
    #[arg(long, value_name = "NAME,NAME|all", value_parser = destinations)]
    pub to: Option<Destinations>,
}

/// `polycast warm pull`
#[derive(Arguments, Debug)]
pub(crate) struct PullArgs {
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Replace a cache that is there
    #[arg(long)]
    pub replace: bool,
    /// Do not wait longer until one begins to come (500ms, 30s) [default: 10s]
    #[arg(long, value_name = "T", value_parser = duration)]
    pub timeout: Option<Duration>,
}

fn part(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    if !is_part(name) || value.is_empty() || value.contains('\n') {
        return Err(format!("no part of a key is called '{name}', or it has no value"));
    }
    Ok((name.to_string(), value.to_string()))
}

/// Returns true if a key can have a part of this name.
fn is_part(name: &str) -> bool {
    PARTS.contains(&name) || PACKAGES.contains(&name)
}
