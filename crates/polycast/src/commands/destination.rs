//! Places for objects that the user names: one rule for files and directories, and for every command.
//!
//! `--out PATH` is the object, `--into DIR` gets it under its own name, and `-` is standard output. A path
//! that is a symbolic link means its target; devices are no user's files. All of it is checked before other
//! machines are contacted.

use crate::args::place::PlaceArgs;
use crate::exit::{Failure, plain};
use polycast_net::archive::is_free;
use polycast_net::store::{check_name, check_target, waiting_folder};
use polycast_types::Printable;
use rustix::fs::Access;
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Links that are followed one after the other, as Linux does.
const LINKS_MAX: usize = 40;
/// Folders of the system, in which nothing is a file of the user's, except below the second.
const SYSTEM: [(&str, Option<&str>); 3] = [("/dev", Some("/dev/shm")), ("/proc", None), ("/sys", None)];
/// Permissions of a folder by which its group, or every user, can write to it.
const SHARED: u32 = 0o022;

/// A place that can be written to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Destination {
    /// This path becomes the object.
    Out(PathBuf),
    /// This directory gets the object under its own name.
    Into(PathBuf),
    /// The program that reads standard output.
    Stdout,
}

/// Treatment of a file or directory that is there already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Present {
    /// It stays, and the command fails.
    Stays,
    /// It is replaced.
    Replaced,
    /// It is replaced, and what of it is right is not sent.
    Updated,
}

impl Present {
    /// Returns the user's choice.
    pub(super) fn of(args: &PlaceArgs) -> Self {
        match (args.force, args.update) {
            (_, true) => Present::Updated,
            (true, false) => Present::Replaced,
            (false, false) => Present::Stays,
        }
    }

    /// Returns true if the existing one may be replaced.
    pub(super) fn goes(self) -> bool {
        self != Present::Stays
    }
}

impl Destination {
    /// Says at once what would otherwise be said when all bytes have come: that the object cannot be put
    /// there.
    pub(super) fn check(args: &PlaceArgs) -> Result<Self, Failure> {
        let present = Present::of(args);
        match (&args.out, &args.into) {
            (Some(out), _) if out.as_os_str() == "-" => {
                if present.goes() {
                    return Err(Failure::place(
                        "standard output has nothing that --force or --update could replace",
                    ));
                }
                Ok(Destination::Stdout)
            }
            (Some(out), _) => out_at(out, present).map(Destination::Out),
            (None, Some(into)) => into_dir(into).map(Destination::Into),
            (None, None) => into_dir(Path::new(".")).map(Destination::Into),
        }
    }

    /// Looks at what is where an object of another machine's choice of name goes, as is done at once for a
    /// path that the user names.
    pub(super) fn check_present(&self, target: &Path, present: Present) -> Result<(), Failure> {
        match (self, fs::symlink_metadata(target)) {
            (Destination::Into(_), Ok(there)) if there.is_dir() => directory_at(target, target, present),
            _ => Ok(()),
        }
    }

    /// The path that an object of this name gets; nothing where it goes to standard output.
    pub(super) fn path_of(&self, name: &str) -> Result<Option<PathBuf>, Failure> {
        match self {
            Destination::Stdout => Ok(None),
            Destination::Out(path) => Ok(Some(path.clone())),
            // The name comes from another machine.
            Destination::Into(folder) => match check_name(name) {
                Ok(()) => Ok(Some(folder.join(name))),
                Err(why) => {
                    let message = format!("the object's name '{}' {why}", Printable(name));
                    Err(Failure::place(message).hint("say with --out what to call it"))
                }
            },
        }
    }
}

/// Looks at a path that becomes the object, and gives it with links resolved.
fn out_at(out: &Path, present: Present) -> Result<PathBuf, Failure> {
    not_the_systems(out)?;
    no_foreign_links(out)?;
    let path = resolve(out)?;
    not_the_systems(&path)?;
    match fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => directory_at(&path, out, present)?,
        Ok(metadata) if metadata.is_file() => {
            check_target(&path, present.goes()).map_err(|error| Failure::writing(&error))?;
        }
        Ok(_) => {
            return Err(Failure::place(format!("cannot write to {}: it is a special file", out.display())));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if out.as_os_str().as_encoded_bytes().ends_with(b"/") {
                let message = format!("the directory {} does not exist", out.display());
                return Err(
                    Failure::place(message).hint("--out names the object itself, --into a directory for it")
                );
            }
        }
        Err(error) => return Err(Failure::path("write to", out, &error)),
    }
    writable(&waiting_folder(&path), out)?;
    Ok(path)
}

/// A directory that is there, at a path that is to become the object.
fn directory_at(path: &Path, out: &Path, present: Present) -> Result<(), Failure> {
    if is_free(path).map_err(|error| Failure::path("read", out, &error))? {
        return Ok(());
    }
    let shown = out.display();
    if !present.goes() {
        let message = format!(
            "{shown} is there already, a directory that is not empty: say --into {shown} to put the object inside, \
            --update to bring it up to date, or --force to replace it"
        );
        return Err(Failure::place(message));
    }
    let same = |other: Option<PathBuf>| {
        other.and_then(|other| other.canonicalize().ok()).zip(path.canonicalize().ok())
    };
    let home =
        same(std::env::var_os("HOME").map(PathBuf::from)).is_some_and(|(home, path)| home.starts_with(path));
    let around = same(std::env::current_dir().ok()).is_some_and(|(here, path)| here.starts_with(&path));
    if home || around {
        let what = if home { "your home directory" } else { "the directory that you are in" };
        let message = format!("{shown} is or contains {what}, and would be replaced as a whole");
        return Err(Failure::place(message).hint(format!("say --into {shown} to put the object inside")));
    }
    Ok(())
}

/// Looks at a directory that gets the object; one that is not there is made when the object comes.
fn into_dir(into: &Path) -> Result<PathBuf, Failure> {
    not_the_systems(into)?;
    no_foreign_links(into)?;
    match fs::metadata(into) {
        Ok(metadata) if metadata.is_dir() => writable(into, into)?,
        Ok(_) => {
            let message = format!("{} is no directory", into.display());
            return Err(
                Failure::place(message).hint("--out names the object itself, --into a directory for it")
            );
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(into).is_err() => {
            writable(parent_of(into), into)?;
        }
        Err(error) => return Err(Failure::path("write to", into, &error)),
    }
    not_the_systems(&into.canonicalize().unwrap_or_else(|_| into.to_path_buf()))?;
    Ok(into.to_path_buf())
}

/// Resolves a path: its last name is followed while it is a symbolic link. The kernel resolves those before
/// it.
fn resolve(out: &Path) -> Result<PathBuf, Failure> {
    let mut path = out.to_path_buf();
    for _ in 0..LINKS_MAX {
        match fs::symlink_metadata(&path) {
            Ok(link) if link.is_symlink() => {
                let target = fs::read_link(&path).map_err(|error| Failure::path("read", &path, &error))?;
                path = parent_of(&path).join(target);
                // Below /proc there are links to anything.
                not_the_systems(&path)?;
            }
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound && path != out => {
                let message =
                    format!("{} is a link to {}, which does not exist", out.display(), path.display());
                return Err(Failure::place(message));
            }
            // The code that looks at the path itself says what is wrong.
            Err(_) => return Ok(path),
        }
    }
    Err(Failure::place(format!("{} leads through more than {LINKS_MAX} links", out.display())))
}

/// Refuses a path that leads through another user's link in a folder that others can write to, at any of its
/// names and at those that links lead to. The kernel minds only sticky folders of all users.
fn no_foreign_links(path: &Path) -> Result<(), Failure> {
    let Ok(whole) = std::path::absolute(path) else { return Ok(()) };
    let mut names: Vec<OsString> = names_of(&whole);
    let (mut folder, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = names.pop() {
        if name == ".." {
            folder.pop();
            continue;
        }
        let at = folder.join(&name);
        // The code that looks at the path itself says what is wrong, also with a circle of links.
        let Ok(there) = fs::symlink_metadata(&at) else { return Ok(()) };
        if !there.is_symlink() {
            folder = at;
            continue;
        }
        links += 1;
        let (Ok(target), true) = (fs::read_link(&at), links <= LINKS_MAX) else { return Ok(()) };
        if is_foreign(&there, &folder) {
            let message =
                format!("{} is another user's link in a directory that others can write to", at.display());
            return Err(Failure::place(message).hint("name what it leads to, if that is what you mean"));
        }
        if target.is_absolute() {
            folder = PathBuf::from("/");
        }
        names.extend(names_of(&target));
    }
    Ok(())
}

/// The names that a path leads through, the last one first.
fn names_of(path: &Path) -> Vec<OsString> {
    let is_name = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(is_name).map(|part| part.as_os_str().to_os_string()).rev().collect()
}

/// Returns true if another user may have put a link into this folder to mislead us.
fn is_foreign(link: &Metadata, folder: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    // The user that is root can do all that we can.
    let is_ours = |metadata: &Metadata| [own, 0].contains(&metadata.uid());
    let is_shared = |folder: &Metadata| folder.mode() & SHARED != 0 || !is_ours(folder);
    !is_ours(link) && fs::metadata(folder).is_ok_and(|folder| is_shared(&folder))
}

/// Refuses paths below folders whose files are the system's, under whatever name.
fn not_the_systems(path: &Path) -> Result<(), Failure> {
    let literal = std::path::absolute(path).map_err(|error| Failure::path("write to", path, &error))?;
    let folder = parent_of(&literal).canonicalize().unwrap_or_else(|_| parent_of(&literal).to_path_buf());
    let resolved = literal.file_name().map_or_else(|| folder.clone(), |name| folder.join(name));
    for (system, except) in SYSTEM {
        let below =
            |path: &Path| path.starts_with(system) && !except.is_some_and(|except| path.starts_with(except));
        if below(&literal) || below(&resolved) {
            let message = format!("cannot write to {}: {system} holds no files of users", path.display());
            return Err(Failure::place(message).hint("standard output is --out -"));
        }
    }
    Ok(())
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

fn writable(directory: &Path, out: &Path) -> Result<(), Failure> {
    rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).map_err(|errno| {
        let error = errno.into();
        if directory == out || errno == Errno::NOENT {
            return Failure::path("write to", out, &error);
        }
        // What is wrong is wrong with the folder, and not with what is to be in it.
        let (out, directory) = (out.display(), directory.display());
        Failure::place(format!("cannot make {out} in {directory}: {}", plain(&error)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    fn out(path: &Path) -> PlaceArgs {
        PlaceArgs { out: Some(path.to_path_buf()), ..PlaceArgs::default() }
    }

    fn into(path: &Path) -> PlaceArgs {
        PlaceArgs { into: Some(path.to_path_buf()), ..PlaceArgs::default() }
    }

    #[test]
    fn out_is_the_object_and_into_gets_it_inside() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::write(at("file"), b"x").unwrap();
        fs::create_dir(at("empty")).unwrap();
        assert_eq!(Destination::check(&out(&at("new"))).unwrap(), Destination::Out(at("new")));
        assert_eq!(Destination::check(&out(&at("empty"))).unwrap(), Destination::Out(at("empty")));
        for flags in [(true, false), (false, true)] {
            let args = PlaceArgs { force: flags.0, update: flags.1, ..out(&at("file")) };
            assert_eq!(Destination::check(&args).unwrap(), Destination::Out(at("file")));
        }
        let inside = Destination::check(&into(place.path())).unwrap();
        assert_eq!(inside.path_of("name").unwrap(), Some(at("name")));
        assert!(inside.path_of(".bashrc").unwrap_err().message.contains("begins with a dot"));
        assert_eq!(Destination::check(&into(&at("new"))).unwrap(), Destination::Into(at("new")));
        assert_eq!(Destination::check(&out(Path::new("-"))).unwrap(), Destination::Stdout);
        assert_eq!(
            Destination::check(&PlaceArgs::default()).unwrap(),
            Destination::Into(".".into()),
            "without a word it is the directory that one is in"
        );
    }

    #[test]
    fn a_link_means_what_it_leads_to() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::write(at("target"), b"x").unwrap();
        symlink("target", at("link")).unwrap();
        symlink("link", at("second")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        symlink("round", at("round")).unwrap();
        let args = PlaceArgs { force: true, ..out(&at("second")) };
        assert_eq!(Destination::check(&args).unwrap(), Destination::Out(at("target")));
        for (name, part) in [
            ("second", "there already"),
            ("dangling", "which does not exist"),
            ("round", "more than 40 links"),
        ] {
            let failure = Destination::check(&out(&at(name))).unwrap_err();
            assert!(failure.message.contains(part), "{name}: {}", failure.message);
        }
    }

    /// Others' links lead astray wherever others can put one: the kernel follows those in folders that are
    /// not sticky.
    #[test]
    fn others_links_in_folders_that_others_can_write_to_are_refused() {
        if !polycast_testing::needs(&[polycast_testing::Need::Root]) {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::write(at("victim"), b"x").unwrap();
        fs::create_dir(at("inside")).unwrap();
        let folder = |name: &str, mode, owner| {
            fs::create_dir(at(name)).unwrap();
            fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
            chown(at(name), Some(owner), None).unwrap();
        };
        let link = |name: &str, to: &str, owner| {
            symlink(at(to), at(name)).unwrap();
            lchown(at(name), Some(owner), None).unwrap();
        };
        for (name, mode, owner) in
            [("all", 0o777, 0), ("sticky", 0o1777, 0), ("group", 0o775, 0), ("theirs", 0o755, 1_000)]
        {
            folder(name, mode, owner);
            link(&format!("{name}/x"), "victim", 1_000);
            link(&format!("{name}/y"), "inside", 1_000);
            link(&format!("{name}/own"), &format!("{name}/x"), 0);
            link(&format!("{name}/good"), "victim", 0);
            let force = |path: &str| PlaceArgs { force: true, ..out(&at(&format!("{name}/{path}"))) };
            let update = PlaceArgs { force: false, update: true, ..force("x") };
            for args in [force("x"), update, force("own"), force("y/new"), into(&at(&format!("{name}/y")))] {
                let failure = Destination::check(&args).unwrap_err();
                let says = "another user's link in a directory that others can write to";
                assert!(failure.message.contains(says), "{name}: {}", failure.message);
            }
            assert_eq!(Destination::check(&force("good")).unwrap(), Destination::Out(at("victim")));
        }
        // Where others can put none, what is there was put there by us.
        folder("ours", 0o755, 0);
        link("ours/x", "victim", 1_000);
        let ours = PlaceArgs { force: true, ..out(&at("ours/x")) };
        assert_eq!(Destination::check(&ours).unwrap(), Destination::Out(at("victim")));
    }

    #[test]
    fn other_paths_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::write(at("file"), b"x").unwrap();
        fs::create_dir(at("full")).unwrap();
        fs::write(at("full/file"), b"x").unwrap();
        for path in ["missing/new", "missing/", "file/new", "file", "full"] {
            let failure = Destination::check(&out(&at(path))).unwrap_err();
            assert!(failure.message.contains(path), "{}", failure.message);
        }
        for path in ["missing/new", "file"] {
            Destination::check(&into(&at(path))).unwrap_err();
        }
        let link = at("stdout");
        symlink("/dev/stdout", &link).unwrap();
        for path in [Path::new("/dev/stdout"), Path::new("/dev/null"), Path::new("/proc/x"), &link] {
            let args = PlaceArgs { force: true, ..out(path) };
            let failure = Destination::check(&args).unwrap_err();
            assert!(failure.message.contains("holds no files of users"), "{}", failure.message);
        }
        Destination::check(&into(Path::new("/proc/self"))).unwrap_err();
        Destination::check(&into(Path::new("/dev"))).unwrap_err();
        let here = PlaceArgs { force: true, ..out(Path::new(".")) };
        assert!(Destination::check(&here).unwrap_err().message.contains("the directory that you are in"));
    }
}
