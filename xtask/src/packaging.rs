//! `cargo xtask packaging`: tests of the files below `packaging` that operators install: alert rules and the
//! dashboard with a real Prometheus, the Helm chart with Helm, the Ansible role with Ansible.

use crate::python::{cargo, is_built, must};
use crate::suite::{self, REQUIRE};
use crate::workspace;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Packages that the tests need, each in one version: a newer linter has other opinions.
const TOOLS: [&str; 8] = [
    "ansible-core==2.19.14",
    "ansible-lint==26.10.1",
    "cyclonedx-python-lib[json-validation]==11.12.0",
    "helm-python-sdk==0.2.2",
    "kubernetes-validate==1.37.0",
    "pytest==9.2.0",
    "pytest-xdist==3.8.0",
    "PyYAML==6.0.4",
];

/// Runs the task.
pub(crate) fn run() -> ExitCode {
    match test() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn test() -> Result<(), String> {
    let program = suite::program();
    if !is_built() || !program.exists() {
        must(cargo().args(["build", "--locked", "--package", "polycast", "--package", "polycast-research"]))?;
    }
    let environment = environment()?;
    let is_complete = fill(&environment).is_ok();
    let pytest = environment.join("bin/pytest");
    if !is_complete {
        println!("left out: tests that need a Python package which is not here, as the registry gives none");
    }
    if !pytest.exists() {
        return Ok(());
    }
    must(
        Command::new(pytest)
            .current_dir(workspace::root().join("packaging/tests"))
            .args(["-q", "-rs", "-p", "no:cacheprovider"])
            // Most of the time they wait.
            .args(if is_complete { &["-n", "3"][..] } else { &[] })
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("POLYCAST_PROGRAM", program)
            .env(REQUIRE, if suite::all_required() { suite::ALL } else { "" }),
    )
}

/// Fetches what the task needs. A registry that gives nothing is no fault of a change: tests that need more
/// are left out then, and counted.
pub(crate) fn prepare() -> Result<(), String> {
    fill(&environment()?).or_else(|error| {
        eprintln!("{error}");
        Ok(())
    })
}

/// The environment of the tests.
fn environment() -> Result<PathBuf, String> {
    let environment = workspace::target().join("packaging/environment");
    if !environment.join("bin/pip").exists() {
        must(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    }
    Ok(environment)
}

/// Installs the packages that are not there yet. Where all are, no registry is asked.
fn fill(environment: &Path) -> Result<(), String> {
    let python = environment.join("bin/python");
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    must(Command::new(python).args(install).args(TOOLS))
}
