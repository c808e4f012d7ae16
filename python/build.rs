//! Builds the program `polycast` beside the extension and puts it where maturin takes a wheel's scripts from:
//! the wheel has the program itself, not a Python script that starts one.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

const SCRIPTS: &str = "polycast.data/scripts";

fn main() -> Result<(), Box<dyn Error>> {
    for folder in ["../crates", "../bpf", "../Cargo.lock"] {
        println!("cargo:rerun-if-changed={folder}");
    }
    println!("cargo:rerun-if-env-changed=POLYCAST_PROGRAM");
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let program = match env::var_os("POLYCAST_PROGRAM") {
        Some(built) => {
            // It may have been built anew of the same sources, with other features.
            println!("cargo:rerun-if-changed={}", PathBuf::from(&built).display());
            PathBuf::from(built)
        }
        None => build(&root)?,
    };
    let scripts = root.join(SCRIPTS);
    fs::create_dir_all(&scripts)?;
    let to = scripts.join("polycast");
    // Another file under the name: one that is being run cannot be written to.
    let beside = scripts.join(".polycast-new");
    fs::copy(&program, &beside)
        .map_err(|error| format!("cannot copy the program {}: {error}", program.display()))?;
    // Older than this build, so that only its absence or a change makes another one necessary.
    fs::File::options().write(true).open(&beside)?.set_modified(UNIX_EPOCH + Duration::from_secs(86_400))?;
    fs::rename(&beside, &to)?;
    println!("cargo:rerun-if-changed={}", to.display());
    Ok(())
}

/// Builds the program, without what only plans and simulates, in a folder of its own: the one of this build
/// is locked.
fn build(root: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let (target, profile) = (env::var("TARGET")?, env::var("PROFILE")?);
    let folder =
        PathBuf::from(env::var("OUT_DIR")?).ancestors().nth(4).ok_or("OUT_DIR is too short")?.join("program");
    let (profile, named) = if profile == "release" { ("dist", "dist") } else { ("dev", "debug") };
    let mut command = Command::new(env::var_os("CARGO").ok_or("cargo did not name itself")?);
    command
        .current_dir(root.join(".."))
        .args(["build", "--locked", "--package", "polycast"])
        .args(["--no-default-features", "--features", "cluster,pages"])
        .args(["--profile", profile, "--target", &target])
        .arg("--target-dir")
        .arg(&folder);
    // What is meant for the extension is not meant for the program.
    for (name, _) in env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        name.starts_with("PYO3_")
            || name.starts_with("CARGO_FEATURE_")
            || name.starts_with("CARGO_CFG_")
            || name == "CARGO_ENCODED_RUSTFLAGS"
    }) {
        command.env_remove(name);
    }
    if !command.status()?.success() {
        return Err("the program polycast could not be built: its messages are above".into());
    }
    Ok(folder.join(&target).join(named).join("polycast"))
}
