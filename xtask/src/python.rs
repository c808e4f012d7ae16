//! `cargo xtask python`: builds the Python package, installs it into an environment of its own, and runs its
//! tests there. With `--torch` also those that need torch, which is 5 GB with CUDA's libraries: the registry
//! has no build without them.

use crate::suite::{self, REQUIRE};
use crate::workspace;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Set where the program is built already.
pub(crate) const BUILT: &str = "POLYCAST_BUILT";
/// Packages that the tests need beside ours.
const TOOLS: [&str; 18] = [
    "boto3",
    "distributed",
    "fsspec",
    "grpcio",
    "grpcio-tools",
    "huggingface_hub",
    "maturin>=1.16,<2",
    "moto[server]",
    "ml_dtypes",
    "modelscope",
    "mypy",
    "numpy",
    "pandas",
    "pytest",
    "pytest-xdist",
    "ray",
    "safetensors",
    "typing_extensions",
];
/// Packages that the tests with torch need besides.
const TORCH_TOOLS: [&str; 3] = ["msgspec", "requests", "torch"];

/// Folder of the environment, below that of all that is built for Python.
const ENVIRONMENT: &str = "environment";
/// Number of tests of which the time is said: the slowest.
const SLOWEST: &str = "15";
/// Number of processes that run the tests.
const PROCESSES: &str = "3";

/// Argument that installs torch, too.
const WITH_TORCH: &str = "--torch";

/// Runs the task.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    if let Some(unknown) = arguments.iter().find(|argument| *argument != WITH_TORCH) {
        eprintln!(
            "error: '{unknown}' is nothing that `cargo xtask python` knows: it takes {WITH_TORCH} or nothing"
        );
        return ExitCode::FAILURE;
    }
    match test(!arguments.is_empty()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn test(torch: bool) -> Result<(), String> {
    let (root, target) = (workspace::root(), workspace::target());
    let folder = target.join("python");
    let program = suite::program();
    // Where the tests of the workspace have just built it, it is not built again: for itself it has other
    // features.
    if !is_built() || !program.exists() {
        must(cargo().args(["build", "--locked", "--package", "polycast"]))?;
    }
    let environment = match is_built() && !torch {
        true => folder.join(ENVIRONMENT),
        false => environment(&folder, torch)?,
    };
    let python = environment.join("bin/python");
    let wheels = folder.join("wheels");
    let _ = std::fs::remove_dir_all(&wheels);
    must(
        Command::new(environment.join("bin/maturin"))
            .current_dir(root.join("python"))
            .args(["build", "--locked", "--quiet", "--out"])
            .arg(&wheels)
            .env("CARGO_TARGET_DIR", folder.join("build"))
            .env("POLYCAST_PROGRAM", program),
    )?;
    let wheel = only_file(&wheels)?;
    let install = ["-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps"];
    must(Command::new(&python).args(install).arg(&wheel))?;
    let tests = root.join("python");
    must(
        suite::alone(&python)
            .current_dir(&tests)
            .args(["-m", "pytest", "-q", "-rs", "--durations", SLOWEST])
            // They wait far more than they compute. What a file has set up once is for its own tests.
            .args(["-n", PROCESSES, "--dist", "loadfile"])
            // What is imported is compiled once, here and not where all was installed.
            .env_remove("PYTHONDONTWRITEBYTECODE")
            .env("POLYCAST_TORCH", if torch { "1" } else { "" })
            .env(REQUIRE, if suite::all_required() { suite::ALL } else { "" }),
    )?;
    must(Command::new(&python).current_dir(&tests).args(["-m", "mypy", "package/polycast"]))?;
    must(Command::new(&python).current_dir(&folder).args(["-m", "mypy.stubtest", "polycast._native"]))
}

/// Returns true where a check of all runs this task: the program is built, and what the task fetches is
/// there.
pub(crate) fn is_built() -> bool {
    std::env::var_os(BUILT).is_some()
}

/// Fetches what the task needs, as far as it does not wait for the program.
pub(crate) fn prepare() -> Result<(), String> {
    environment(&workspace::target().join("python"), false).map(|_| ())
}

/// The environment with what the tests need beside the package.
fn environment(folder: &Path, torch: bool) -> Result<PathBuf, String> {
    let environment = folder.join(ENVIRONMENT);
    if !environment.join("bin/pip").exists() {
        must(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
    }
    let tools = TOOLS.into_iter().chain(TORCH_TOOLS.into_iter().filter(|_| torch));
    let install = ["-m", "pip", "install", "--quiet", "--no-compile", "--upgrade"];
    must(Command::new(environment.join("bin/python")).args(install).args(tools))?;
    Ok(environment)
}

/// Cargo, in the workspace.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace::root());
    command
}

/// The one file in a folder.
fn only_file(folder: &Path) -> Result<PathBuf, String> {
    let files = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let files: Vec<PathBuf> = files.filter_map(|entry| Some(entry.ok()?.path())).collect();
    match files.as_slice() {
        [one] => Ok(one.clone()),
        _ => Err(format!("{} has {} files, and one wheel was to be there", folder.display(), files.len())),
    }
}

/// Runs a command to its good end.
pub(crate) fn must(command: &mut Command) -> Result<(), String> {
    let line = format!("{command:?}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{line}: {status}")),
        Err(error) => Err(format!("{line}: {error}")),
    }
}
