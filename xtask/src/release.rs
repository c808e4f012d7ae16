//! `cargo xtask release`: everything of a tag that is given away, with checksums, a list of what is in it,
//! and a statement of where it comes from.

mod bill;
mod statement;

use crate::dist;
use crate::workspace;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
Usage: cargo xtask release [--tag vVERSION] [--key FILE] [--program FILE] [DIR]

Makes what `cargo xtask dist` makes, and where musl's compiler and target are also what `dist --static` makes, of the tag that the
checkout is at, into DIR [default: release]. Beside them, where ARCH is this processor's:

  polycast-VERSION-ARCH.cdx.json      all crates in the program, with licences and checksums (CycloneDX 1.6)
  polycast-VERSION-ARCH.intoto.json   which files came from which commit, and how (SLSA provenance 1 in an in-toto statement)
  polycast-VERSION-ARCH.sha256        checksums of all files in DIR, also of those that were there

  --tag v..       the tag; without it the one that HEAD has. It is the version of the workspace, and the checkout has no changes
  --key FILE      sign the statement with this private key of Ed25519 (PEM): it becomes polycast-VERSION-ARCH.intoto.jsonl, in an
                  envelope of DSSE
  --program FILE  pack this program, and build none";

/// The command line.
#[derive(Default)]
struct Options {
    tag: Option<String>,
    key: Option<PathBuf>,
    program: Option<PathBuf>,
    out: Option<PathBuf>,
}

impl Options {
    fn read(arguments: &[String]) -> Option<Self> {
        let mut options = Options::default();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--tag" => options.tag = Some(words.next()?.clone()),
                "--key" => options.key = Some(words.next()?.into()),
                "--program" => options.program = Some(words.next()?.into()),
                folder if !folder.starts_with('-') && options.out.is_none() => {
                    options.out = Some(folder.into())
                }
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Runs the task.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    if matches!(arguments, [help] if help == "--help" || help == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let Some(options) = Options::read(arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    match make(&options) {
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

/// A tag, and the commit that it names.
struct Tagged {
    tag: String,
    commit: String,
    /// Time of the commit, as RFC 3339 has it.
    time: String,
}

/// Finds the tag, and checks that the checkout is what it names.
fn tagged(root: &Path, given: Option<&str>, version: &str) -> Result<Tagged, String> {
    let git = |arguments: &[&str]| dist::words(Command::new("git").current_dir(root).args(arguments));
    let commit = git(&["rev-parse", "HEAD"])?.trim().to_string();
    let tag = match given {
        Some(tag) => tag.to_string(),
        None => git(&["describe", "--exact-match", "--tags", "HEAD"])
            .map_err(|_| format!("this commit has no tag: git tag v{version}"))?
            .trim()
            .to_string(),
    };
    if tag != format!("v{version}") {
        return Err(format!("the tag is {tag}, and the version in Cargo.toml {version}: make them equal"));
    }
    let at =
        git(&["rev-parse", &format!("{tag}^{{commit}}")]).map_err(|_| format!("there is no tag {tag}"))?;
    if at.trim() != commit {
        return Err(format!("the checkout is not at {tag}: git checkout {tag}"));
    }
    if !git(&["status", "--porcelain", "--untracked-files=no"])?.trim().is_empty() {
        return Err(format!("files have been changed since {tag}"));
    }
    let time = git(&["log", "-1", "--format=%cI"])?.trim().to_string();
    Ok(Tagged { tag, commit, time })
}

/// The version of the workspace.
fn version(root: &Path) -> Result<String, String> {
    let text = fs::read_to_string(root.join("Cargo.toml")).map_err(|error| error.to_string())?;
    let table: toml::Table = text.parse().map_err(|error| format!("Cargo.toml: {error}"))?;
    let version = table["workspace"]["package"]["version"].as_str();
    version.map(str::to_string).ok_or_else(|| "the workspace has no version".into())
}

fn make(options: &Options) -> Result<Vec<PathBuf>, String> {
    let root = workspace::root();
    let tagged = tagged(&root, options.tag.as_deref(), &version(&root)?)?;
    let out = options.out.clone().unwrap_or_else(|| "release".into());
    let begun = statement::now()?;
    let mut made = dist::make(&out, false, options.program.as_deref())?;
    if options.program.is_none() {
        match dist::make(&out, true, None) {
            Ok(fixed) => made.extend(fixed),
            Err(why) if why.starts_with(dist::LACKS) => eprintln!("no static program: {why}"),
            Err(why) => return Err(why),
        }
    }
    let name = format!("polycast-{}-{}", tagged.tag.trim_start_matches('v'), std::env::consts::ARCH);
    let bill = out.join(format!("{name}.cdx.json"));
    write(&bill, &bill::of(&root, &tagged)?)?;
    made.push(bill);
    let (statement_path, text) =
        (out.join(format!("{name}.intoto.json")), statement::of(&root, &tagged, &made, &begun)?);
    made.push(match &options.key {
        None => {
            write(&statement_path, &text)?;
            statement_path
        }
        Some(key) => {
            let path = out.join(format!("{name}.intoto.jsonl"));
            write(&path, &statement::signed(&text, key)?)?;
            path
        }
    });
    made.push(sums(&out, &name)?);
    Ok(made)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Writes the checksums of all files in a folder.
fn sums(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let ending = ".sha256";
    let entries =
        fs::read_dir(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    let mut files: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|file| !file.ends_with(ending))
        .collect();
    files.sort();
    let text = dist::words(Command::new("sha256sum").current_dir(folder).arg("--").args(&files))?;
    let path = folder.join(format!("{name}{ending}"));
    write(&path, &text)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_of_a_tag_that_is_the_version_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| {
            let who = ["-c", "user.name=n", "-c", "user.email=n@localhost", "-c", "commit.gpgsign=false"];
            let mut command = Command::new("git");
            command.current_dir(folder.path()).args(who).args(arguments);
            assert!(command.output().is_ok_and(|output| output.status.success()), "{arguments:?}");
        };
        git(&["init", "-q"]);
        fs::write(folder.path().join("a"), "1").unwrap();
        git(&["add", "a"]);
        git(&["commit", "-qm", "a"]);
        let find = |tag: Option<&str>| tagged(folder.path(), tag, "1.2.3").map(|tagged| tagged.tag);
        assert!(find(None).unwrap_err().contains("git tag v1.2.3"));
        assert!(find(Some("v1.2.3")).unwrap_err().contains("no tag v1.2.3"));
        git(&["tag", "v1.2.3"]);
        assert_eq!(find(None).as_deref(), Ok("v1.2.3"));
        assert!(find(Some("v1.2.4")).unwrap_err().contains("Cargo.toml 1.2.3"));
        fs::write(folder.path().join("a"), "2").unwrap();
        assert!(find(None).unwrap_err().contains("changed since"));
        git(&["commit", "-qam", "b"]);
        assert!(find(None).unwrap_err().contains("no tag"));
        assert!(find(Some("v1.2.3")).unwrap_err().contains("git checkout v1.2.3"));
    }
}
