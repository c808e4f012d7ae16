//! Compiles the kernel programs of `bpf/` with clang. Where that cannot be done the crate still builds: whoever wants to
//! use a program then hears why there is none.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: [&str; 3] = ["orca_switch", "orca_agent", "datacast"];

fn main() {
    let folder =
        Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo names the crate's folder")).join("../../bpf");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo names a folder for what is built"));
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut text = String::new();
    for name in PROGRAMS {
        let object = out.join(format!("{name}.o"));
        let value = match compile(&folder.join(format!("{name}.c")), &object) {
            Ok(()) => format!("Ok(aya::include_bytes_aligned!({:?}))", object.display().to_string()),
            Err(reason) => {
                println!("cargo::warning=without the kernel program {name}: {reason}");
                format!("Err({reason:?})")
            }
        };
        let upper = name.to_uppercase();
        text.push_str(&format!("pub(super) static {upper}: Result<&[u8], &str> = {value};\n"));
    }
    fs::write(out.join("programs.rs"), text).expect("the build's folder can be written");
}

/// Gives in words why there is no program.
fn compile(source: &Path, object: &Path) -> Result<(), String> {
    let machine = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let output = Command::new("clang")
        .args(["-O2", "-g", "-Wall", "-Werror", "-mcpu=v3", "-target", "bpf"])
        // Where Debian keeps the headers that depend on the machine.
        .arg(format!("-I/usr/include/{machine}-linux-gnu"))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|error| {
            format!("clang cannot be run ({error}): install clang and libbpf-dev, and build again")
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().find(|line| line.contains("error")).unwrap_or("clang failed");
    Err(format!("{first}: install libbpf-dev and the kernel's headers (linux-libc-dev), and build again"))
}
