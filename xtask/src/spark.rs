//! `cargo xtask spark`: builds Spark's jar and runs its unit tests, and then jobs of an unchanged Spark with
//! real agents.

use crate::python::{cargo, is_built, must};
use crate::suite;
use crate::workspace;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Versions of Spark that the jar is for, newest first; the first one is tested where none is named.
const VERSIONS: [&str; 2] = ["4", "3.5"];
/// Packages that the jobs need beside Spark.
const TOOLS: [&str; 3] = ["numpy", "pytest", "setuptools"];

/// Leaves out the jobs that take long.
pub(crate) const SHORT: &str = "--short";

/// Runs the task, for the versions of Spark that are named.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let (short, versions): (Vec<String>, Vec<String>) =
        arguments.iter().cloned().partition(|argument| argument == SHORT);
    if let Some(unknown) = versions.iter().find(|named| !VERSIONS.contains(&named.as_str())) {
        eprintln!(
            "error: there is no test for Spark '{unknown}': choose from {}, or say {SHORT}",
            VERSIONS.join(", ")
        );
        return ExitCode::FAILURE;
    }
    match test(&versions, !short.is_empty()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn test(versions: &[String], short: bool) -> Result<(), String> {
    let program = suite::program();
    let is_prepared = is_built();
    // As for the Python package: what the tests have just built is not built again, nor is the jar.
    if !is_prepared || !program.exists() {
        must(cargo().args(["build", "--locked", "--package", "polycast"]))?;
    }
    if !is_prepared {
        jar()?;
    }
    let tested = VERSIONS.iter().filter(|version| match versions {
        [] => **version == VERSIONS[0],
        named => named.iter().any(|one| one == *version),
    });
    for version in tested {
        let environment = match is_prepared && *version == VERSIONS[0] {
            true => environment_folder(version),
            false => environment(version)?,
        };
        must(
            suite::alone(&environment.join("bin/python"))
                .current_dir(folder().join("tests"))
                .args([
                    "-m",
                    "pytest",
                    "-q",
                    "-rs",
                    "-p",
                    "no:cacheprovider",
                    "-m",
                    if short { "not long" } else { "" },
                ])
                .env("PYTHONDONTWRITEBYTECODE", "1")
                // The machine's own address is not in that network.
                .env("SPARK_LOCAL_IP", "127.0.0.1")
                .env("POLYCAST_PROGRAM", &program),
        )?;
    }
    Ok(())
}

/// Fetches and builds what the task needs, as far as it does not wait for the program.
pub(crate) fn prepare() -> Result<(), String> {
    jar()?;
    environment(VERSIONS[0]).map(|_| ())
}

fn folder() -> PathBuf {
    workspace::root().join("spark")
}

fn jar() -> Result<(), String> {
    let maven = ["--batch-mode", "--quiet", "--no-transfer-progress", "package"];
    // A run of some seconds: to compile much of Maven takes as long as all the rest of it.
    let quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC";
    must(Command::new("mvn").current_dir(folder()).env("MAVEN_OPTS", quick).args(maven))
}

fn environment_folder(version: &str) -> PathBuf {
    workspace::target().join("spark").join(version)
}

/// The environment with one version of Spark, and with what its jobs need.
fn environment(version: &str) -> Result<PathBuf, String> {
    let environment = environment_folder(version);
    if !environment.join("bin/pip").exists() {
        must(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    }
    let install = ["-m", "pip", "install", "--quiet"];
    let spark = format!("pyspark=={version}.*");
    must(Command::new(environment.join("bin/python")).args(install).arg(spark).args(TOOLS))?;
    Ok(environment)
}
