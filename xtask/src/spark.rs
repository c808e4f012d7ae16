//! `cargo xtask spark`: builds Spark's jar and runs its unit tests, and then jobs of an unchanged Spark with real agents.

use crate::python::{BUILT, cargo, must};
use crate::workspace;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Versions of Spark that the jar is for, newest first; the first one is tested where none is named.
const VERSIONS: [&str; 2] = ["4", "3.5"];
/// What the jobs need beside Spark.
const TOOLS: [&str; 3] = ["numpy", "pytest", "setuptools"];

/// Runs the task, for the versions of Spark that are named.
pub(crate) fn run(versions: &[String]) -> ExitCode {
    if let Some(unknown) = versions.iter().find(|named| !VERSIONS.contains(&named.as_str())) {
        eprintln!("error: there is no test for Spark '{unknown}': choose from {}", VERSIONS.join(", "));
        return ExitCode::FAILURE;
    }
    match test(versions) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn test(versions: &[String]) -> Result<(), String> {
    let root = workspace::root();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let target = root.join(target);
    let program = target.join("debug/polycast");
    // As for the Python package: what the tests have just built is not built again.
    if std::env::var_os(BUILT).is_none() || !program.exists() {
        must(cargo().args(["build", "--locked", "--package", "polycast"]))?;
    }
    let spark = root.join("spark");
    let maven = ["--batch-mode", "--quiet", "--no-transfer-progress", "package"];
    must(Command::new("mvn").current_dir(&spark).args(maven))?;
    let tested = VERSIONS.iter().filter(|version| match versions {
        [] => **version == VERSIONS[0],
        named => named.iter().any(|one| one == *version),
    });
    for version in tested {
        let environment = target.join("spark").join(version);
        if !environment.join("bin/pip").exists() {
            must(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
        }
        let python = environment.join("bin/python");
        let install = ["-m", "pip", "install", "--quiet"];
        must(Command::new(&python).args(install).arg(format!("pyspark=={version}.*")).args(TOOLS))?;
        must(
            Command::new(&python)
                .current_dir(spark.join("tests"))
                .args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"])
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .env("POLYCAST_PROGRAM", &program),
        )?;
    }
    Ok(())
}
