//! `cargo xtask dist`: what is given away. The stripped programs with their manual pages, completions and
//! systemd units, as an archive and, where the tools for it are, as a Debian package and an RPM.

mod image;
mod packages;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
Usage: cargo xtask dist [--static | --program FILE | --image FILE] [DIR]

Builds polycast, polycast-research and the small program that `polycast push` brings to hosts with the profile `dist` and writes polycast-VERSION-ARCH.tar.gz, polycast-VERSION-protos.tar.gz, a .deb where
dpkg-deb is and an .rpm where rpmbuild is, into DIR [default: dist].

  --static  write polycast-VERSION-ARCH-static.tar.gz and, as a container image, polycast-VERSION-ARCH-image.tar only: a program that needs no library of the system and so runs on
            every Linux of this processor, without polycast-research. It takes musl's compiler
            (apt install musl-tools) and its target (rustup target add x86_64-unknown-linux-musl).
  --program FILE
            pack this program, and polycast-research and the program for hosts where those lie beside it, and build none
  --image FILE
            make the image only, of this program, which needs no library";

/// Beginning of the sentence that says what a static program lacks here.
pub(crate) const LACKS: &str = "--static lacks";

/// The services' protos, and where programs of other languages find them.
const PROTOS: (&str, &str) = ("crates/api/proto", "usr/share/polycast/proto");

/// Folders for operators, which are taken with all that is in them.
const FOLDERS: [&str; 6] = ["ansible", "cloud-init", "grafana", "helm", "kubernetes", "prometheus"];

/// The program that has planners, simulator and lab.
const RESEARCH: &str = "polycast-research";
/// Folder of programs for hosts in a package.
const FOR_HOSTS_IN: &str = "usr/lib/polycast";

/// Paths of completions, by shell.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/polycast"),
    ("zsh", "usr/share/zsh/vendor-completions/_polycast"),
    ("fish", "usr/share/fish/vendor_completions.d/polycast.fish"),
];

/// Files that are taken as they are.
const FILES: [(&str, &str); 21] = [
    ("packaging/polycast-agent.service", "usr/lib/systemd/system/polycast-agent.service"),
    ("packaging/polycast-manager.service", "usr/lib/systemd/system/polycast-manager.service"),
    ("packaging/polycast-label-switch.service", "usr/lib/systemd/system/polycast-label-switch.service"),
    ("packaging/polycast-rack-agent.service", "usr/lib/systemd/system/polycast-rack-agent.service"),
    ("packaging/polycast-forwarder.service", "usr/lib/systemd/system/polycast-forwarder.service"),
    ("docs/label-switch.sample.toml", "usr/share/doc/polycast/label-switch.sample.toml"),
    ("docs/agent.sample.toml", "usr/share/doc/polycast/agent.sample.toml"),
    ("docs/policy.sample.toml", "usr/share/doc/polycast/policy.sample.toml"),
    ("docs/manager.sample.toml", "usr/share/doc/polycast/manager.sample.toml"),
    ("README.md", "usr/share/doc/polycast/README.md"),
    ("CHANGELOG.md", "usr/share/doc/polycast/CHANGELOG.md"),
    ("LICENSE", "usr/share/doc/polycast/copyright"),
    ("docs/scenarios/bcube-pull.toml", "usr/share/doc/polycast/scenarios/bcube-pull.toml"),
    ("docs/scenarios/blast.toml", "usr/share/doc/polycast/scenarios/blast.toml"),
    ("docs/scenarios/circuits.toml", "usr/share/doc/polycast/scenarios/circuits.toml"),
    ("docs/scenarios/found-out.toml", "usr/share/doc/polycast/scenarios/found-out.toml"),
    ("docs/scenarios/pull-repaired.toml", "usr/share/doc/polycast/scenarios/pull-repaired.toml"),
    ("docs/scenarios/rack-push.toml", "usr/share/doc/polycast/scenarios/rack-push.toml"),
    ("docs/scenarios/spine-fails.toml", "usr/share/doc/polycast/scenarios/spine-fails.toml"),
    ("docs/scenarios/splitters.toml", "usr/share/doc/polycast/scenarios/splitters.toml"),
    ("docs/scenarios/transfers.toml", "usr/share/doc/polycast/scenarios/transfers.toml"),
];

/// Runs the task.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let (fixed, program, arguments) = match arguments {
        [first, rest @ ..] if first == "--static" => (true, None, rest),
        [first, program, rest @ ..] if first == "--program" => (false, Some(Path::new(program)), rest),
        [first, program, rest @ ..] if first == "--image" => (true, Some(Path::new(program)), rest),
        all => (false, None, all),
    };
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
    let made = match (fixed, program) {
        (true, Some(program)) => picture(&out, program).map(|image| vec![image]),
        _ => make(&out, fixed, program),
    };
    match made {
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

/// Packs the program, which it builds where none is given.
pub(crate) fn make(out: &Path, fixed: bool, program: Option<&Path>) -> Result<Vec<PathBuf>, String> {
    // All may read what a package installs, also where it is made by someone who keeps new files to himself.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let program = program.map_or_else(|| build(fixed), |program| Ok(program.to_path_buf()))?;
    let version = version_of(&program)?;
    let kind = if fixed { "-static" } else { "" };
    let name = format!("polycast-{version}-{}{kind}", std::env::consts::ARCH);
    let stage = tempfile::tempdir().map_err(|error| format!("cannot make a folder: {error}"))?;
    let root = stage.path().join(&name);
    put_together(Path::new("."), &root, &program, fixed)?;
    fs::create_dir_all(out).map_err(|error| format!("cannot make {}: {error}", out.display()))?;
    let mut made = vec![pack(out, &name, stage.path(), &name)?];
    if fixed {
        made.push(picture(out, &program)?);
    } else {
        made.push(pack(out, &format!("polycast-{version}-protos"), Path::new(PROTOS.0), "polycast")?);
        made.extend(packages::rpm(&root, out, &version)?);
        made.extend(packages::deb(&root, out, &version, &program)?);
    }
    Ok(made)
}

/// Puts a package's files together, of a checkout and of the program: with the program for hosts where that
/// lies beside it, and with `polycast-research` where that does and the package is not a `fixed` one.
fn put_together(checkout: &Path, root: &Path, program: &Path, fixed: bool) -> Result<(), String> {
    fill(checkout, root)
        .and_then(|()| fill_programs(root, program, fixed))
        .map_err(|error| format!("cannot put it together: {error}"))?;
    pages(root, program)
}

/// Copies the program and those beside it.
fn fill_programs(root: &Path, program: &Path, fixed: bool) -> io::Result<()> {
    put(program, &root.join("usr/bin/polycast"))?;
    let beside = |name: &str| Some(program.with_file_name(name)).filter(|path| path.is_file());
    if let Some(research) = beside(RESEARCH).filter(|_| !fixed) {
        put(&research, &root.join("usr/bin").join(RESEARCH))?;
    }
    let for_hosts = for_hosts();
    beside(&for_hosts).map_or(Ok(()), |small| put(&small, &root.join(FOR_HOSTS_IN).join(&for_hosts)))
}

/// Copies a file to where no folder has to be.
fn put(from: &Path, to: &Path) -> io::Result<()> {
    to.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::copy(from, to).map(drop)
}

/// The version that a program says it has.
fn version_of(program: &Path) -> Result<String, String> {
    let said = words(Command::new(program).arg("--version"))?;
    Ok(said.split_whitespace().nth(1).ok_or("the program has no version")?.to_string())
}

/// Makes the container image of a program.
fn picture(out: &Path, program: &Path) -> Result<PathBuf, String> {
    image::make(out, &version_of(program)?, program, Path::new("LICENSE"))
}

/// Makes an archive of what is called `what` in a folder.
fn pack(out: &Path, name: &str, folder: &Path, what: &str) -> Result<PathBuf, String> {
    let archive = out.join(format!("{name}.tar.gz"));
    // The same for the same files: the releases of both processors have the same protos.
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    must(tar.args(["--use-compress-program=gzip -n", "-cf"]).arg(&archive).arg("-C").arg(folder).arg(what))?;
    Ok(archive)
}

/// Builds what is given away, and returns the program `polycast`: for this system's own C library, or
/// `fixed`, with musl inside it.
fn build(fixed: bool) -> Result<PathBuf, String> {
    let mut command = cargo_build();
    let mut folder = target();
    if fixed {
        let triple = triple();
        check_musl(&triple)?;
        command.args(["--target", &triple]);
        folder.push(triple);
    } else {
        command.args(["--package", RESEARCH]);
    }
    must(&mut command)?;
    let program = folder.join("dist/polycast");
    build_for_hosts(&program)?;
    Ok(program)
}

/// Builds the program for hosts, and puts it beside this one: with musl inside it where that can be had.
fn build_for_hosts(program: &Path) -> Result<(), String> {
    // Crates with fewer features are others: the folder of its own keeps those of the whole program.
    let mut folder = target().join("for-hosts");
    let mut command = cargo_build();
    command.arg("--no-default-features").arg("--target-dir").arg(&folder);
    match check_musl(&triple()) {
        Ok(()) => {
            command.args(["--target", &triple()]);
            folder.push(triple());
        }
        Err(lacks) => eprintln!("the program for hosts needs a glibc as new as this system's: {lacks}"),
    }
    must(&mut command)?;
    let copied = fs::copy(folder.join("dist/polycast"), program.with_file_name(for_hosts()));
    copied.map(drop).map_err(|error| format!("cannot copy the program for hosts: {error}"))
}

/// The command that builds `polycast`.
fn cargo_build() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--locked", "--profile", "dist", "--package", "polycast"]);
    if let Some(commit) = commit(Path::new(".")) {
        command.env("POLYCAST_COMMIT", commit);
    }
    command
}

/// The folder that cargo builds into.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// Rust's name of this machine with musl.
fn triple() -> String {
    format!("{}-unknown-linux-musl", std::env::consts::ARCH)
}

/// The name of the program that `polycast push` brings to hosts like this one: it offers and accepts, and has
/// no daemons.
fn for_hosts() -> String {
    format!("polycast-{}", std::env::consts::ARCH)
}

/// The short name of the commit that a checkout is at, with `-changed` where files of it have been changed;
/// `None` outside of one.
fn commit(folder: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").current_dir(folder).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let name = git(&["rev-parse", "--short=10", "HEAD"])?;
    let is_changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(name + if is_changed { "-changed" } else { "" })
}

/// Looks for what a program with musl inside takes, before half of it is built without.
fn check_musl(triple: &str) -> Result<(), String> {
    let runs = |program: &str| {
        let mut command = Command::new(program);
        command.arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let libraries = words(Command::new(rustc).args(["--print", "target-libdir", "--target", triple]))?;
    match missing_for_musl(triple, Path::new(libraries.trim()).is_dir(), is_set, runs) {
        missing if missing.is_empty() => Ok(()),
        missing => Err(format!("{LACKS} {}", missing.join(" and "))),
    }
}

/// Parts that are missing, each with the command that brings it. A compiler is one that the crates' build
/// scripts find: by its usual name, or named by a variable.
fn missing_for_musl(
    triple: &str,
    has_target: bool,
    is_set: impl Fn(&str) -> bool,
    runs: impl Fn(&str) -> bool,
) -> Vec<String> {
    let variables =
        [format!("CC_{triple}"), format!("CC_{}", triple.replace('-', "_")), "TARGET_CC".into(), "CC".into()];
    let programs = ["musl-gcc".to_string(), format!("{}-linux-musl-gcc", std::env::consts::ARCH)];
    let mut missing = Vec::new();
    if !has_target {
        missing.push(format!("Rust's target for musl (rustup target add {triple})"));
    }
    if !variables.iter().any(|name| is_set(name)) && !programs.iter().any(|name| runs(name)) {
        missing.push("musl's C compiler (apt install musl-tools)".into());
    }
    missing
}

/// Copies what is there.
fn fill(checkout: &Path, root: &Path) -> io::Result<()> {
    let put = |from: &Path, to: &str| put(from, &root.join(to));
    FILES.iter().try_for_each(|(from, to)| put(&checkout.join(from), to))?;
    protos(&checkout.join(PROTOS.0))?.iter().try_for_each(|file| {
        let from = checkout.join(PROTOS.0).join(file);
        put(&from, &format!("{}/{}", PROTOS.1, file.display()))
    })?;
    for folder in FOLDERS {
        let from = checkout.join("packaging").join(folder);
        for file in files(&from)? {
            put(&from.join(&file), &format!("usr/share/polycast/{folder}/{}", file.display()))?;
        }
    }
    Ok(())
}

/// The protos of a folder and those below it, by their paths there.
fn protos(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let is_proto = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "proto");
    Ok(files(folder)?.into_iter().filter(is_proto).collect())
}

/// All files of a folder and those below it, by their paths there; a link to a file is a file.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(below) = folders.pop() {
        for entry in fs::read_dir(folder.join(&below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else {
                found.push(path);
            }
        }
    }
    Ok(found)
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

fn must(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} failed: {status}")),
        Err(error) => Err(format!("cannot run {name}: {error}")),
    }
}

/// The output of a command that has to succeed.
pub(crate) fn words(command: &mut Command) -> Result<String, String> {
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
    fn everything_that_is_taken_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (from, _) in FILES {
            assert!(root.join(from).is_file(), "{from}");
        }
        for folder in FOLDERS {
            let folder = root.join("packaging").join(folder);
            let found = files(&folder).unwrap();
            assert!(!found.is_empty() && found.iter().all(|file| folder.join(file).is_file()), "{found:?}");
        }
        let samples = fs::read_dir(root.join("docs/scenarios")).unwrap().count();
        assert_eq!(FILES.iter().filter(|(from, _)| from.starts_with("docs/scenarios/")).count(), samples);
    }

    /// Programs that write pages and completions as `polycast` does, each with its name in it.
    fn put_programs(folder: &Path, names: &[&str]) {
        use std::os::unix::fs::PermissionsExt as _;
        for name in names {
            let script = format!(
                "#!/bin/sh\n# {name}\ncase \"$1\" in man) mkdir -p \"$2\" && echo page > \"$2/polycast.1\";; *) echo \"$@\";; esac\n"
            );
            let file = folder.join(name);
            fs::write(&file, script).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn those_programs_are_packed_that_are_there() {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let (polycast, research) = ("p/usr/bin/polycast", "p/usr/bin/polycast-research");
        let (small, small_in) = (&*for_hosts(), &*format!("p/{FOR_HOSTS_IN}/{}", for_hosts()));
        for (programs, fixed, packed) in [
            (&["polycast", RESEARCH, small][..], false, &[polycast, research, small_in][..]),
            (&["polycast"], false, &[polycast]),
            (&["polycast", RESEARCH, small], true, &[polycast, small_in]),
        ] {
            let folder = tempfile::tempdir().unwrap();
            put_programs(folder.path(), programs);
            let root = folder.path().join("p");
            put_together(&checkout, &root, &folder.path().join("polycast"), fixed).unwrap();
            let archive = pack(folder.path(), "package", folder.path(), "p").unwrap();
            let listed = words(Command::new("tar").arg("-tzf").arg(&archive)).unwrap();
            let is_program = |path: &&str| {
                ["p/usr/bin/p", &format!("p/{FOR_HOSTS_IN}/p")].iter().any(|folder| path.starts_with(folder))
            };
            let found: Vec<&str> = listed.lines().filter(is_program).collect();
            assert_eq!(found, packed, "{programs:?}, fixed: {fixed}");
            assert!(listed.lines().any(|path| path == "p/usr/share/man/man1/polycast.1.gz"));
            for path in found {
                let name = path.rsplit('/').next().unwrap();
                let text = fs::read_to_string(folder.path().join(path)).unwrap();
                assert!(text.contains(&format!("# {name}\n")), "{name} is the other one");
            }
        }
    }

    #[test]
    fn a_program_is_of_a_commit_or_of_one_that_was_changed() {
        let folder = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| {
            let who = ["-c", "user.name=n", "-c", "user.email=n@localhost", "-c", "commit.gpgsign=false"];
            let mut command = Command::new("git");
            command.current_dir(folder.path()).args(who).args(arguments);
            assert!(command.output().is_ok_and(|output| output.status.success()), "{arguments:?}");
        };
        assert_eq!(commit(folder.path()), None);
        git(&["init", "-q"]);
        assert_eq!(commit(folder.path()), None, "without a commit");
        fs::write(folder.path().join("a"), "1").unwrap();
        git(&["add", "a"]);
        git(&["commit", "-qm", "a"]);
        let name = commit(folder.path()).unwrap();
        assert!(name.len() >= 10 && name.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
        fs::write(folder.path().join("b"), "not of it").unwrap();
        assert_eq!(commit(folder.path()).as_ref(), Some(&name));
        fs::write(folder.path().join("a"), "2").unwrap();
        assert_eq!(commit(folder.path()), Some(name + "-changed"));
    }

    #[test]
    fn what_a_static_program_takes_is_named_before_it_is_built() {
        let of = |has_target, variable: &str, program: &str| {
            missing_for_musl(
                "x86_64-unknown-linux-musl",
                has_target,
                |name| name == variable,
                |name| name == program,
            )
        };
        let both = of(false, "", "gcc");
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(both[0].contains("rustup target add x86_64-unknown-linux-musl"), "{both:?}");
        assert!(both[1].contains("apt install musl-tools"), "{both:?}");
        assert!(of(true, "", "musl-gcc").is_empty());
        assert!(of(true, "CC_x86_64_unknown_linux_musl", "").is_empty());
        assert_eq!(of(true, "", "").len(), 1);
    }

    #[test]
    fn protos_say_where_their_code_belongs() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(PROTOS.0);
        let found = protos(&folder).unwrap();
        for file in ["polycast/agent/v1/agent.proto", "polycast/manager/v1/status.proto"] {
            assert!(found.contains(&PathBuf::from(file)), "{found:?}");
        }
        for file in found {
            let text = fs::read_to_string(folder.join(&file)).unwrap();
            for option in ["go_package", "java_package"] {
                assert!(
                    text.contains(&format!("\noption {option} = ")),
                    "{} has no {option}",
                    file.display()
                );
            }
        }
    }
}
