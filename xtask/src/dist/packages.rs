//! Packages of the systems' own formats, made of a folder that looks like the root of a machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::must;

/// Description of the packages, two lines.
const LONG: &str = "Every byte is sent once and reaches all receivers, by IP multicast where it\n \
     gets through and from receiver to receiver over TCP where it does not.";

/// Scripts of the Debian package.
pub(super) const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
/// Folder of these scripts.
pub(super) const SCRIPTS_IN: &str = "packaging/debian";
/// Units that a package removes with the program.
const UNITS: &str =
    "polycast-agent polycast-manager polycast-forwarder polycast-label-switch polycast-rack-agent";

/// Makes the RPM of what is at `root`, where rpmbuild is.
///
/// # Errors
/// A tool fails, in a sentence.
pub(super) fn rpm(root: &Path, out: &Path, version: &str) -> Result<Option<PathBuf>, String> {
    if !Command::new("rpmbuild").arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("no rpmbuild here: there is no RPM");
        return Ok(None);
    }
    let top = tempfile::tempdir().map_err(|error| format!("cannot make a folder: {error}"))?;
    let files = [
        "/usr/bin",
        "/usr/lib/systemd/system",
        "/usr/share/man/man1",
        "/usr/share/doc/polycast",
        "/usr/share/polycast",
    ];
    let completions = super::COMPLETIONS.map(|(_, file)| format!("/{file}"));
    // rpmbuild takes no pattern that nothing matches.
    let for_hosts =
        Some(format!("/{}/*", super::FOR_HOSTS_IN)).filter(|_| root.join(super::FOR_HOSTS_IN).is_dir());
    let files: Vec<String> =
        files.iter().map(|folder| format!("{folder}/*")).chain(completions).chain(for_hosts).collect();
    let specification = format!(
        "Name: polycast\nVersion: {version}\nRelease: 1\nLicense: Apache-2.0\nSummary: Deliver one object to many machines\n\
         %define debug_package %{{nil}}\n%define __strip /bin/true\n%define _build_id_links none\n\
         %description\n{LONG}\n\
         %preun\n[ $1 -gt 0 ] || [ ! -d /run/systemd/system ] || systemctl disable --now {UNITS} || :\n\
         %postun\n[ ! -d /run/systemd/system ] || systemctl daemon-reload || :\n\
         %install\ncp -a '{}'/. '%{{buildroot}}'/\n%files\n%defattr(-,root,root)\n{}\n",
        root.display(),
        files.join("\n"),
    );
    let file = top.path().join("polycast.spec");
    fs::write(&file, specification)
        .map_err(|error| format!("cannot write the RPM's description: {error}"))?;
    let built = top.path().join("built");
    must(
        Command::new("rpmbuild")
            .args(["-bb", "--quiet", "--nodeps", "--define"])
            .arg(format!("_topdir {}", top.path().display()))
            .arg("--define")
            .arg(format!("_rpmdir {}", built.display()))
            .arg("--define")
            .arg("_rpmfilename %{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm")
            .arg(&file),
    )?;
    let made = fs::read_dir(&built).ok().and_then(|mut all| all.next()).and_then(Result::ok);
    let made = made.ok_or("rpmbuild made no package")?;
    let to = out.join(made.file_name());
    fs::copy(made.path(), &to).map_err(|error| format!("cannot copy the RPM: {error}"))?;
    Ok(Some(to))
}

/// Makes the Debian package of what is at `root`, where dpkg is. It leaves its description at `root`.
///
/// # Errors
/// A tool fails, in a sentence.
pub(super) fn deb(root: &Path, out: &Path, version: &str, program: &Path) -> Result<Option<PathBuf>, String> {
    let architecture = match Command::new("dpkg").arg("--print-architecture").output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_string(),
        _ => {
            eprintln!("no dpkg here: there is no Debian package");
            return Ok(None);
        }
    };
    let bytes = fs::read(program).map_err(|error| format!("cannot read {}: {error}", program.display()))?;
    let glibc = newest_glibc(&bytes).ok_or("the program names no version of glibc")?;
    let control = format!(
        "Package: polycast\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: The Polycast authors\n\
         Section: net\nPriority: optional\nDepends: libc6 (>= {glibc}), libgcc-s1\n\
         Description: deliver one object to many machines\n \
         {LONG}\n"
    );
    let debian = root.join("DEBIAN");
    let file = out.join(format!("polycast_{version}_{architecture}.deb"));
    fs::create_dir_all(&debian)
        .and_then(|()| fs::write(debian.join("control"), control))
        .and_then(|()| {
            // Their modes come with them.
            SCRIPTS
                .iter()
                .try_for_each(|name| fs::copy(Path::new(SCRIPTS_IN).join(name), debian.join(name)).map(drop))
        })
        .map_err(|error| format!("cannot write the package's description: {error}"))?;
    must(
        Command::new("dpkg-deb")
            .args(["--build", "--root-owner-group"])
            .arg(root)
            .arg(&file)
            .stdout(std::process::Stdio::null()),
    )?;
    Ok(Some(file))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_rpm_has_what_is_at_the_root() {
        let Ok(rpm_is_here) = Command::new("rpmbuild").arg("--version").output() else {
            eprintln!("skipped: rpmbuild is not here");
            return;
        };
        assert!(rpm_is_here.status.success());
        let (root, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let completions = super::super::COMPLETIONS.map(|(_, file)| file);
        let files = [
            "usr/bin/polycast",
            "usr/lib/systemd/system/polycast-agent.service",
            "usr/lib/polycast/polycast-m68k",
        ];
        let pages = [
            "usr/share/man/man1/polycast.1.gz",
            "usr/share/doc/polycast/README.md",
            "usr/share/polycast/proto/polycast/agent/v1/agent.proto",
        ];
        let all: Vec<&str> = files.into_iter().chain(pages).chain(completions).collect();
        for file in &all {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "content").unwrap();
        }
        let made = rpm(root.path(), out.path(), "1.2.3").unwrap().unwrap();
        assert!(made.file_name().unwrap().to_string_lossy().starts_with("polycast-1.2.3-1."));
        let listed = Command::new("rpm").args(["-qlp"]).arg(&made).output().unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        for file in all {
            assert!(listed.contains(&format!("/{file}\n")), "{file} is missing in {listed}");
        }
        let scripts = Command::new("rpm").args(["-qp", "--scripts"]).arg(&made).output().unwrap();
        let scripts = String::from_utf8_lossy(&scripts.stdout).into_owned();
        assert!(scripts.contains("disable --now polycast-agent"), "{scripts}");
    }

    /// Each unit that a package brings ends with it, in both kinds of packages.
    #[test]
    fn packages_end_their_units() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let script = fs::read_to_string(root.join(SCRIPTS_IN).join("prerm")).unwrap();
        assert!(script.contains(UNITS), "{script}");
        for (from, _) in super::super::FILES.iter().filter(|(from, _)| from.ends_with(".service")) {
            let unit = Path::new(from).file_stem().unwrap().to_string_lossy().into_owned();
            assert!(UNITS.split(' ').any(|one| one == unit), "{unit}");
        }
    }

    #[test]
    fn the_newest_version_counts_as_a_number() {
        assert_eq!(
            newest_glibc(b"..GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.5.1\0GLIBC_PRIVATE").as_deref(),
            Some("2.34")
        );
        assert_eq!(newest_glibc(b"nothing"), None);
    }
}
