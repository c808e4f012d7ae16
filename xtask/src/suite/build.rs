//! Test programs come out of `cargo test --no-run`, which says in JSON what it has built.

use crate::limit::{self, Cost, Running};
use crate::workspace;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// A build from nothing took 1,165 s on two cores, with tests beside it.
const LIMIT: Duration = Duration::from_secs(60 * 60);
/// Packages with the programs that are given away, which have the same names.
const GIVEN: [&str; 2] = ["polycast", "polycast-research"];
/// The package of other programs that tests run.
const EXAMPLES: &str = "polycast-examples";

/// Test programs that build networks.
pub(super) const NETWORKS: [&str; 18] = [
    "polycast-agent::rack",
    "polycast-lab",
    "polycast-lab::label_switches",
    "polycast-net::openvswitch",
    "polycast-net::orca",
    "polycast-research::cables",
    "polycast-research::choice",
    "polycast-research::deploy",
    "polycast-research::ipv6",
    "polycast-research::lab",
    "polycast-research::messages",
    "polycast-research::parts",
    "polycast::doctor",
    "polycast::firewall",
    "polycast::neighbour",
    "polycast::sealed",
    "polycast::users",
    "polycast::zones",
];

/// Packages whose tests are chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Packages {
    All,
    Named(Vec<String>),
}

impl Packages {
    /// Cargo's arguments.
    pub(crate) fn arguments(&self) -> Vec<String> {
        match self {
            Packages::All => vec!["--workspace".to_string()],
            Packages::Named(names) => {
                names.iter().flat_map(|name| ["--package".to_string(), name.clone()]).collect()
            }
        }
    }
}

/// A test program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Program {
    /// The package, and behind `::` the target where it is not the library.
    pub(crate) name: String,
    pub(crate) package: String,
    pub(crate) path: PathBuf,
    /// The package's folder, in which cargo starts tests.
    pub(crate) folder: PathBuf,
    /// Tests that it leaves out, in a network with IPv6 alone; none where it runs in the usual one.
    pub(crate) over_ipv6: Option<&'static [&'static str]>,
}

/// Programs that run once more in a network with IPv6 alone, and their tests that cannot: forwarders of
/// Datacast have ports of IPv4, and one test reads classes from the headers of IPv4.
const OVER_IPV6: [(&str, &[&str]); 5] = [
    ("polycast-agent::changed", &[]),
    (
        "polycast-agent::daemon",
        &[
            "classes::objects_and_messages_have_the_class_of_the_settings",
            "deltas::deltas_are_pulled_as_objects_are",
            "memory::groups_that_were_served_leave_nothing_in_memory",
            "real::another_fabric_takes_over_when_all_trees_are_lost",
            "real::over_trees",
        ],
    ),
    ("polycast-agent::mesh", &[]),
    ("polycast-agent::resume", &[]),
    ("polycast-agent::transfer", &[]),
];

impl Program {
    /// Returns true if its tests run a program of their package that may not be built yet.
    fn waits(&self, built: &BTreeSet<String>) -> bool {
        self.package == EXAMPLES || GIVEN.contains(&self.package.as_str()) && !built.contains(&self.package)
    }

    /// The same program in a network with IPv6 alone, if it is one of those.
    fn once_more(&self) -> Option<Program> {
        let (name, left_out) = OVER_IPV6.iter().find(|(name, _)| *name == self.name)?;
        Some(Program { name: format!("{name} over IPv6"), over_ipv6: Some(left_out), ..self.clone() })
    }

    /// Returns true if its tests build networks out of namespaces, switches and kernel programs, each of
    /// which takes all cores.
    pub(super) fn builds_networks(&self) -> bool {
        NETWORKS.contains(&self.name.as_str())
    }
}

/// Cargo, in the workspace.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace::root());
    command
}

/// Builds the tests of `packages`; each program goes to `to_run` once it is built, and `is_here` hears when
/// the programs that are given away are there. Gives whether all were built, and the cost.
pub(crate) fn build(
    packages: &Packages,
    to_run: &Sender<Program>,
    is_here: &(dyn Fn() + Sync),
) -> (bool, Cost) {
    let mut command = cargo();
    // Examples in documents are not among what is built here.
    command.args(["test", "--no-run", "--locked", "--message-format", "json-render-diagnostics"]);
    command.args(packages.arguments()).stdout(Stdio::piped());
    let ended = Running::start(&mut command).and_then(|mut running| {
        let messages = running.child.stdout.take();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Tests of a program may be built before it is, and run it.
                let (mut waiting, mut given) = (Vec::new(), BTreeSet::new());
                // Nothing is lost where the tests were ended: the other end has gone with them.
                let run = |program: Program| {
                    let once_more = program.once_more();
                    drop(to_run.send(program));
                    once_more.into_iter().for_each(|program| drop(to_run.send(program)));
                };
                let lines = messages.map(BufReader::new).into_iter().flat_map(BufRead::lines);
                for built in lines.map_while(Result::ok).filter_map(|line| built(&line)) {
                    match built {
                        Built::Test(program) if program.waits(&given) => waiting.push(program),
                        Built::Test(program) => run(program),
                        Built::Given(name) => {
                            given.insert(name);
                            if GIVEN.iter().all(|name| given.contains(*name)) {
                                is_here();
                            }
                            waiting.extract_if(.., |program| !program.waits(&given)).for_each(run);
                        }
                    }
                }
                // What has not come by now fails them, and they say so.
                waiting.into_iter().for_each(run);
            });
            running.end(LIMIT.mul_f64(limit::patience()))
        })
    });
    match ended {
        Ok((ended, cost)) => (ended.is_success(), cost),
        Err(error) => {
            println!("cargo cannot be run: {error}");
            (false, Cost::default())
        }
    }
}

/// Program that a message of cargo reports as built.
#[derive(PartialEq, Eq, Debug)]
enum Built {
    Test(Program),
    /// One of the programs that are given away.
    Given(String),
}

fn built(line: &str) -> Option<Built> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let package = package(message["package_id"].as_str()?)?;
    let (kind, target) = (message["target"]["kind"][0].as_str()?, message["target"]["name"].as_str()?);
    if message["profile"]["test"] != true {
        return (kind == "bin" && GIVEN.contains(&target)).then(|| Built::Given(target.to_string()));
    }
    let name = if kind == "lib" { package.clone() } else { format!("{package}::{target}") };
    Some(Built::Test(Program { name, package, path, folder, over_ipv6: None }))
}

/// A package's name out of its id: `path+file:///FOLDER#NAME@VERSION`, or `#VERSION` where the folder has the
/// name.
fn package(id: &str) -> Option<String> {
    let (place, last) = id.rsplit_once('#')?;
    let name = match last.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit_once('/')?.1,
    };
    Some(name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_messages() {
        let message = |kind: &str, test: bool, name: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///w/crates/net#polycast-net@0.1.0",
                "manifest_path":"/w/crates/net/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}"}},
                "profile":{{"test":{test}}},"executable":"/w/target/debug/deps/x-1"}}"#
            )
            .replace('\n', " ")
        };
        let test = |kind, name| match built(&message(kind, true, name)) {
            Some(Built::Test(program)) => program,
            other => panic!("{other:?}"),
        };
        let orca = test("test", "orca");
        assert_eq!((orca.name.as_str(), orca.package.as_str()), ("polycast-net::orca", "polycast-net"));
        assert_eq!(orca.folder, Path::new("/w/crates/net"));
        assert_eq!(test("lib", "polycast_net").name, "polycast-net");
        // What is no test program is left.
        assert_eq!(built(&message("bin", false, "polycast")), Some(Built::Given("polycast".into())));
        assert_eq!(built(&message("bin", false, "swarm")), None);
        assert_eq!(built(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(built("warning: not JSON"), None);
    }

    #[test]
    fn programs_that_build_networks_are_there() {
        for name in NETWORKS {
            let (package, target) =
                name.split_once("::").map_or((name, None), |(package, target)| (package, Some(target)));
            let folder = crate::arrows::folder_of(package).expect("a package of ours");
            let mut wings = workspace::WINGS.iter().map(|wing| workspace::root().join(wing).join(folder));
            let folder = wings.find(|folder| folder.exists()).expect("a package of this name");
            let file =
                target.map_or_else(|| folder.join("src"), |target| folder.join(format!("tests/{target}.rs")));
            assert!(file.exists(), "{name}");
        }
    }

    #[test]
    fn tests_that_run_a_program_wait_for_it() {
        let waits = |package: &str, built: &[&str]| {
            let name = package.to_string();
            Program {
                name: name.clone(),
                package: name,
                path: "/p".into(),
                folder: "/".into(),
                over_ipv6: None,
            }
            .waits(&built.iter().map(ToString::to_string).collect())
        };
        let [polycast, research] = GIVEN;
        assert!(waits(polycast, &[research]) && !waits(polycast, &[polycast]));
        assert!(waits(research, &[polycast]) && !waits(research, &[research]));
        assert!(waits(EXAMPLES, &[]) && waits(EXAMPLES, &GIVEN));
        assert!(!waits("polycast-net", &[]));
    }

    #[test]
    fn packages_have_names_in_their_ids() {
        assert_eq!(package("path+file:///w/crates/net#polycast-net@0.1.0").as_deref(), Some("polycast-net"));
        assert_eq!(package("path+file:///w/xtask#0.1.0").as_deref(), Some("xtask"));
        assert_eq!(package("xtask"), None);
    }
}
