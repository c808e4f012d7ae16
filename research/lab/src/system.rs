//! Programs of the system: `ip`, `tc` and others, run with many commands at a time.

use crate::error::LabError;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The lab's own network namespace, or one of those that have names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Space {
    /// Namespace of the switches.
    Network,
    /// The namespace of a host or device.
    Named(String),
}

impl Space {
    /// One with a name.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Space::Named(name.into())
    }

    /// A program that will run in it.
    pub(crate) fn command(&self, program: &str) -> Command {
        match self {
            Space::Network => Command::new(program),
            Space::Named(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name, program]);
                command
            }
        }
    }

    /// Runs `ip` or `tc` in it with one command a line.
    pub(crate) fn batch(&self, program: &'static str, lines: &[String]) -> Result<(), LabError> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut command = Command::new(program);
        if let Space::Named(name) = self {
            command.args(["-n", name]);
        }
        let mut text = lines.join("\n");
        text.push('\n');
        run(command.args(["-batch", "-"]), Some(&text)).map(drop)
    }
}

/// Runs a program to its end and gives what it printed.
pub(crate) fn run(command: &mut Command, input: Option<&str>) -> Result<String, LabError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |reason: String| LabError::System { action: format!("run '{program}'"), reason };
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let spawned = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| failed(error.to_string()))?;
    // A pipe takes 64 KiB: what is longer must be written while the answer is read.
    let writer = input.zip(child.stdin.take()).map(|(input, mut stdin)| {
        let input = input.to_string();
        // A program that ends early says why; that it read no more does not matter.
        std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())))
    });
    let output = child.wait_with_output();
    if let Some(writer) = writer {
        // It only writes, and cannot panic.
        let _ = writer.join();
    }
    let Output { status, stdout, stderr } = output.map_err(|error| failed(error.to_string()))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&stderr);
    let said = said.lines().map(str::trim).filter(|line| !line.is_empty()).take(3).collect::<Vec<_>>();
    Err(failed(if said.is_empty() { status.to_string() } else { said.join("; ") }))
}

/// Says if a program is missing, before anything is begun.
pub(crate) fn require(programs: &[(&'static str, &'static str)]) -> Result<(), LabError> {
    match programs.iter().find(|(name, _)| program(name).is_none()) {
        Some(&(program, package)) => Err(LabError::Missing { program, package }),
        None => Ok(()),
    }
}

/// Returns the path of a program, if it is installed.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    // Root's programs may be outside the caller's path.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    path.split(':').map(|folder| Path::new(folder).join(name)).find(|path| path.is_file())
}
