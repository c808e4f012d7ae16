//! `cargo xtask dist`: what is given away. A stripped program with its manual pages, completions and systemd units, as an
//! archive and, where `dpkg-deb` is, as a Debian package.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
Usage: cargo xtask dist [DIR]

Builds polycast with the profile `dist` and writes polycast-VERSION-ARCH.tar.gz, and a .deb where dpkg-deb is, into DIR
[default: dist].";

/// Where completions belong, by shell.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/polycast"),
    ("zsh", "usr/share/zsh/vendor-completions/_polycast"),
    ("fish", "usr/share/fish/vendor_completions.d/polycast.fish"),
];

/// Files that are taken as they are.
const FILES: [(&str, &str); 7] = [
    ("packaging/polycast-agent.service", "usr/lib/systemd/system/polycast-agent.service"),
    ("packaging/polycast-manager.service", "usr/lib/systemd/system/polycast-manager.service"),
    ("docs/agent.sample.toml", "usr/share/doc/polycast/agent.sample.toml"),
    ("docs/policy.sample.toml", "usr/share/doc/polycast/policy.sample.toml"),
    ("docs/manager.sample.toml", "usr/share/doc/polycast/manager.sample.toml"),
    ("README.md", "usr/share/doc/polycast/README.md"),
    ("CHANGELOG.md", "usr/share/doc/polycast/CHANGELOG.md"),
    ("LICENSE", "usr/share/doc/polycast/copyright"),
];

/// Runs the task.
pub fn run(arguments: &[String]) -> ExitCode {
    let out = match arguments {
        [] => PathBuf::from("dist"),
        [folder] if !folder.starts_with('-') => PathBuf::from(folder),
        [help] if help == "--help" || help == "-h" => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    match make(&out) {
        Ok(made) => {
            made.iter().for_each(|path| println!("{}", path.display()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn make(out: &Path) -> Result<Vec<PathBuf>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    must(Command::new(cargo).args(["build", "--locked", "--profile", "dist", "--package", "polycast"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let program = target.join("dist/polycast");
    let version = words(Command::new(&program).arg("--version"))?;
    let version = version.split_whitespace().last().ok_or("the program has no version")?.to_string();
    let name = format!("polycast-{version}-{}", std::env::consts::ARCH);
    let stage = tempfile::tempdir().map_err(|error| format!("cannot make a folder: {error}"))?;
    let root = stage.path().join(&name);
    fill(&root, &program).map_err(|error| format!("cannot put it together: {error}"))?;
    pages(&root, &program)?;
    fs::create_dir_all(out).map_err(|error| format!("cannot make {}: {error}", out.display()))?;
    let archive = out.join(format!("{name}.tar.gz"));
    must(
        Command::new("tar")
            .args(["--owner=0", "--group=0", "--numeric-owner", "-czf"])
            .arg(&archive)
            .arg("-C")
            .arg(stage.path())
            .arg(&name),
    )?;
    let mut made = vec![archive];
    match Command::new("dpkg").arg("--print-architecture").output() {
        Ok(output) if output.status.success() => {
            let architecture = String::from_utf8_lossy(&output.stdout).trim().to_string();
            made.push(package(&root, out, &version, &architecture, &program)?);
        }
        _ => eprintln!("no dpkg here: there is no Debian package"),
    }
    Ok(made)
}

/// Copies what is there.
fn fill(root: &Path, program: &Path) -> io::Result<()> {
    let put = |from: &Path, to: &str| {
        let to = root.join(to);
        to.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::copy(from, to).map(drop)
    };
    put(program, "usr/bin/polycast")?;
    FILES.iter().try_for_each(|(from, to)| put(Path::new(from), to))
}

/// Lets the program write its pages and completions.
fn pages(root: &Path, program: &Path) -> Result<(), String> {
    let man = root.join("usr/share/man/man1");
    must(Command::new(program).arg("man").arg(&man).stdout(std::process::Stdio::null()))?;
    let all = fs::read_dir(&man).map_err(|error| error.to_string())?;
    let all: Vec<PathBuf> = all.filter_map(|entry| Some(entry.ok()?.path())).collect();
    must(Command::new("gzip").arg("-9n").args(&all))?;
    for (shell, to) in COMPLETIONS {
        let script = words(Command::new(program).args(["completions", shell]))?;
        let to = root.join(to);
        let written = to.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&to, script));
        written.map_err(|error| format!("cannot write {}: {error}", to.display()))?;
    }
    Ok(())
}

/// Makes the Debian package.
fn package(
    root: &Path,
    out: &Path,
    version: &str,
    architecture: &str,
    program: &Path,
) -> Result<PathBuf, String> {
    let bytes = fs::read(program).map_err(|error| format!("cannot read {}: {error}", program.display()))?;
    let glibc = newest_glibc(&bytes).ok_or("the program names no version of glibc")?;
    let control = format!(
        "Package: polycast\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: The Polycast authors\n\
         Section: net\nPriority: optional\nDepends: libc6 (>= {glibc}), libgcc-s1\n\
         Description: deliver one object to many machines\n \
         Every byte is sent once and reaches all receivers, by IP multicast where it\n \
         gets through and over a chain of TCP connections where it does not.\n"
    );
    let debian = root.join("DEBIAN");
    let file = out.join(format!("polycast_{version}_{architecture}.deb"));
    fs::create_dir_all(&debian)
        .and_then(|()| fs::write(debian.join("control"), control))
        .map_err(|error| format!("cannot write the package's description: {error}"))?;
    must(
        Command::new("dpkg-deb")
            .args(["--build", "--root-owner-group"])
            .arg(root)
            .arg(&file)
            .stdout(std::process::Stdio::null()),
    )?;
    Ok(file)
}

/// The newest version of glibc that a program asks for, which is in it as text: `GLIBC_2.34`.
fn newest_glibc(program: &[u8]) -> Option<String> {
    const MARK: &[u8] = b"GLIBC_2.";
    let versions = program.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK).filter_map(
        |(at, _)| {
            let digits: String = program[at + MARK.len()..]
                .iter()
                .take_while(|b| b.is_ascii_digit())
                .map(|b| *b as char)
                .collect();
            digits.parse::<u32>().ok()
        },
    );
    versions.max().map(|minor| format!("2.{minor}"))
}

fn must(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} failed: {status}")),
        Err(error) => Err(format!("cannot run {name}: {error}")),
    }
}

fn words(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run {name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name} failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{name} writes no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_counts_as_a_number() {
        assert_eq!(
            newest_glibc(b"..GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.5.1\0GLIBC_PRIVATE").as_deref(),
            Some("2.34")
        );
        assert_eq!(newest_glibc(b"nothing"), None);
    }

    #[test]
    fn everything_that_is_taken_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (from, _) in FILES {
            assert!(root.join(from).is_file(), "{from}");
        }
    }
}
