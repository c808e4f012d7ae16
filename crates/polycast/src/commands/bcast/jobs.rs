//! Facts that Slurm gives of a job, in the environment or through its commands.

use super::super::network;
use super::super::push::JOB_HOSTS;
use crate::args::bcast::BcastArgs;
use crate::exit::{Failure, plain};
use crate::hostlist;
use polycast_net::interface::Interface;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::Command;

/// Folders whose libraries are on every node, where slurm.conf names no others.
const EVERYWHERE: &str = "/lib,/usr/lib,/lib64,/usr/lib64";
const IN_NO_JOB: &str =
    "run it in a job, or name the job with --jobid, or write -Z -w NODES for nodes without a job";

/// The job, and the nodes that get the file.
pub(super) struct Job {
    pub(super) id: String,
    pub(super) nodes: Vec<String>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Runs in the Prolog of a node, where no step can be started.
pub(super) fn in_prolog() -> bool {
    variable("SLURM_SCRIPT_CONTEXT").is_some_and(|context| context == "prolog_slurmd")
}

/// Another task of this step does it for this one.
pub(super) fn is_other_task() -> bool {
    let is_step = variable("SLURM_STEP_ID").is_some();
    is_step && variable("SLURM_PROCID").is_some_and(|task| task != "0")
}

/// The answer of a command of Slurm's.
fn ask(program: &str, words: &[&str]) -> Result<String, Failure> {
    let ran = Command::new(program)
        .args(words)
        .output()
        .map_err(|error| Failure::input(format!("cannot run {program}: {}", plain(&error))))?;
    if ran.status.success() {
        return Ok(String::from_utf8_lossy(&ran.stdout).trim().to_string());
    }
    let said = String::from_utf8_lossy(&ran.stderr);
    Err(Failure::input(format!("{program} says: {}", said.lines().next().unwrap_or("nothing").trim())))
}

impl Job {
    /// The one that was named, or the one around us.
    pub(super) fn find(args: &BcastArgs) -> Result<Self, Failure> {
        let (id, list) = match &args.jobid {
            Some(id) => {
                let which = if id.contains('.') { "--step" } else { "--job" };
                let (job, _) = id.split_once('.').unwrap_or((id, ""));
                let list = ask("squeue", &["--noheader", which, id, "--format=%N"])?;
                if list.is_empty() {
                    return Err(Failure::input(format!("job {id} runs on no node")));
                }
                (job.to_string(), list)
            }
            None => match (variable("SLURM_JOB_ID"), variable(JOB_HOSTS)) {
                (Some(id), Some(list)) => (id, list),
                _ => return Err(Failure::input("this is in no Slurm job").hint(IN_NO_JOB)),
            },
        };
        let mut nodes = hostlist::expand(&list).map_err(Failure::input)?;
        if let Some(chosen) = &args.nodelist {
            let chosen = hostlist::expand(chosen).map_err(Failure::input)?;
            if let Some(other) = chosen.iter().find(|node| !nodes.contains(node)) {
                return Err(Failure::input(format!("'{other}' is no node of job {id}, which has {list}")));
            }
            nodes = chosen;
        }
        Ok(Job { id, nodes })
    }

    /// The interface that leads to the job's nodes: on the network that `BcastAddr` names, or on Slurm's own.
    pub(super) fn interface(&self, args: &BcastArgs) -> Result<Interface, Failure> {
        if args.network.interface.is_some() {
            return network::interface(&args.network);
        }
        let own = variable("SLURMD_NODENAME");
        let other = self.nodes.iter().find(|node| Some(*node) != own.as_ref());
        let said = other.and_then(|node| ask("scontrol", &["--oneliner", "show", "node", node]).ok());
        let address = said.as_deref().and_then(address_of).and_then(|address| resolved(&address));
        network::interface_towards(&args.network, address.as_ref())
    }
}

fn resolved(host: &str) -> Option<SocketAddr> {
    (host, network::OFFER_PORT).to_socket_addrs().ok()?.next()
}

/// The address of a node, as `scontrol show node` has it.
fn address_of(said: &str) -> Option<String> {
    let field =
        |name: &str| said.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    field("BcastAddr").or_else(|| field("NodeAddr")).map(str::to_string)
}

/// A setting of slurm.conf: `(null)` where there is none, `None` where Slurm does not say.
fn set(name: &str) -> Option<String> {
    let config = ask("scontrol", &["show", "config"]).ok()?;
    config.lines().find_map(|line| {
        let (set, value) = line.split_once('=')?;
        (set.trim() == name).then(|| value.trim().to_string())
    })
}

/// `BcastParameters` of slurm.conf, as far as they say something here: how bytes are compressed does not.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Parameters {
    /// Folder of a DEST that is not absolute.
    pub(super) folder: Option<PathBuf>,
    /// Libraries come along without being asked for.
    pub(super) send_libs: bool,
}

impl Parameters {
    pub(super) fn read() -> Self {
        set("BcastParameters").map_or_else(Parameters::default, |text| Parameters::of(&text))
    }

    fn of(text: &str) -> Self {
        let mut parameters = Parameters::default();
        for word in text.split(',').map(str::trim) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            // As Slurm reads them.
            match name.to_ascii_lowercase().as_str() {
                "destdir" if !value.is_empty() => parameters.folder = Some(value.into()),
                "send_libs" => parameters.send_libs = true,
                _ => {}
            }
        }
        parameters
    }
}

/// Folders whose libraries are not brought.
pub(super) fn excluded(given: Option<&[String]>) -> Vec<String> {
    let folders = match given {
        Some(given) => given.to_vec(),
        None => set("BcastExclude").as_deref().unwrap_or(EVERYWHERE).split(',').map(str::to_string).collect(),
    };
    folders.into_iter().filter(|folder| !folder.eq_ignore_ascii_case("none") && folder != "(null)").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_for_broadcasts_comes_first() {
        let node =
            "NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=n1 BcastAddr=10.1.0.1 Version=22.05.8";
        assert_eq!(address_of(node).unwrap(), "10.1.0.1");
        assert_eq!(address_of("NodeName=n1 NodeAddr=n1 NodeHostName=n1").unwrap(), "n1");
        assert_eq!(address_of("Node n7 not found"), None);
    }

    #[test]
    fn parameters_are_those_of_the_settings() {
        let of = Parameters::of("Compression=lz4, DestDir=/local/tmp,send_libs");
        assert_eq!(of, Parameters { folder: Some("/local/tmp".into()), send_libs: true });
        for text in ["destdir=,Compression=none", "(null)"] {
            assert_eq!(Parameters::of(text), Parameters::default());
        }
    }

    #[test]
    fn folders_are_excluded_as_given() {
        let given = |text: &str| excluded(Some(&text.split(',').map(str::to_string).collect::<Vec<_>>()));
        assert_eq!(given("NONE"), [""; 0]);
        assert_eq!(given("/lib,/opt"), ["/lib", "/opt"]);
    }
}
