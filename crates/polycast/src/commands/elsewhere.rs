//! The commands that `polycast-research` runs: it lies beside this program, or in one of the folders of
//! `PATH`.

use crate::commit::COMMIT;
use crate::exit::{Exit, Failure};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program.
const PROGRAM: &str = "polycast-research";
/// Variable that tells it which `polycast` has started it.
const STARTED_BY: &str = "POLYCAST_STARTED_BY";
/// Ways to get it.
const GET_IT: &str = "packages have both; from a checkout: cargo install --locked --path research/cli";

/// Runs the command by the other program, which takes this one's place and reads the same words.
pub(crate) fn run(name: &str) -> Result<Exit, Failure> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(Path::to_path_buf);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program =
        beside.into_iter().chain(std::env::split_paths(&path)).find_map(in_folder).ok_or_else(|| {
            let said = format!(
                "'polycast {name}' needs the program {PROGRAM}, which is neither beside polycast nor in PATH"
            );
            Failure::input(said).hint(GET_IT)
        })?;
    Err(start(&program))
}

/// The program in a folder.
fn in_folder(folder: PathBuf) -> Option<PathBuf> {
    let program = folder.join(PROGRAM);
    program.is_file().then_some(program)
}

/// Returns only where the program cannot be started.
fn start(program: &Path) -> Failure {
    let error = Command::new(program).args(std::env::args_os().skip(1)).env(STARTED_BY, build()).exec();
    Failure::path("start", program, &error)
}

/// Starts the program, if it lies beside this one, for what is written from the definition of all commands.
#[cfg(feature = "pages")]
pub(super) fn run_if_beside() -> Result<(), Failure> {
    let own = std::env::current_exe().ok();
    match own.as_deref().and_then(Path::parent).map(Path::to_path_buf).and_then(in_folder) {
        Some(program) => Err(start(&program)),
        None => Ok(()),
    }
}

/// Checks, in the program that was started, that both are of one build.
pub(super) fn check_version() -> Result<(), Failure> {
    match std::env::var(STARTED_BY) {
        Ok(other) if other != build() => {
            let said = format!("{PROGRAM} is {}, and the polycast that started it is {other}", build());
            Err(Failure::input(said).hint(format!("install both from one build: {GET_IT}")))
        }
        _ => Ok(()),
    }
}

/// The version, and the commit where it is known.
fn build() -> String {
    let commit = COMMIT.map(|commit| format!(" (commit {commit})")).unwrap_or_default();
    format!("version {}{commit}", env!("CARGO_PKG_VERSION"))
}
