//! A kernel that refuses each system call of a received object in turn, with the errors that its manual page
//! names: of a part file on its way to its name, and of a directory that is unpacked, where nothing is and
//! where something is replaced.
//!
//! strace runs this same program as a child that does one of these things. A first child shows which calls it
//! makes in its folder; of each, and of each error, another child is refused it. Then nothing that is wrong
//! has the final name, what was there before stays or is replaced as a whole, and the next try needs no one
//! to clear up.

use polycast_net::archive::{TreeSource, unpack};
use polycast_net::object::ObjectSource;
use polycast_net::store::{PartFile, Placing, StoreError};
use polycast_testing::{Need, folder_in_memory, needs};
use polycast_types::ModificationTime;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Variable with the child's task, and with its folder.
const TASK: &str = "POLYCAST_FAULTS_TASK";
/// Pairs beside the usual ones, where this variable is set: every error, of every call of a kind.
const ALL: &str = "POLYCAST_FAULTS_ALL";
/// The main thread of a test program makes fewer calls of a kind. The child makes as many first, so that the
/// numbers of those that are refused are of its own thread alone.
const CALLS_BEFORE: usize = 60;
/// The child says so when it could do what it was to.
const DONE: &str = "the task is done";
const REFUSED: &str = "the task is refused: ";

/// System calls that files are made with, and errors of their manual pages. Without [`ALL`] the first two of
/// each are tried.
const CALLS: &[(&str, &[&str])] = &[
    ("openat", &["ENOSPC", "EACCES", "EMFILE", "EROFS", "EIO", "EDQUOT", "ENFILE", "EINTR", "ENOMEM"]),
    ("mkdir", &["ENOSPC", "EACCES", "EDQUOT", "EROFS", "EIO", "EMLINK"]),
    ("mkdirat", &["ENOSPC", "EACCES", "EDQUOT", "EROFS", "EIO", "EMLINK"]),
    ("write", &["ENOSPC", "EIO", "EDQUOT", "EFBIG"]),
    ("pwrite64", &["ENOSPC", "EIO", "EDQUOT", "EFBIG"]),
    ("pread64", &["EIO", "EISDIR"]),
    ("read", &["EIO"]),
    ("ftruncate", &["EIO", "EPERM", "EFBIG", "EINVAL"]),
    ("fallocate", &["EOPNOTSUPP", "ENOSPC", "EIO", "EPERM", "EFBIG", "ENOSYS"]),
    ("lseek", &["EINVAL", "ENXIO"]),
    ("fchmod", &["EPERM", "EROFS", "EIO"]),
    ("fchmodat", &["EPERM", "EROFS", "EIO", "EOPNOTSUPP"]),
    ("fchownat", &["EPERM", "EROFS"]),
    ("fchown", &["EPERM", "EROFS"]),
    ("utimensat", &["EPERM", "EROFS", "EACCES", "EINVAL"]),
    ("flock", &["ENOSYS", "ENOLCK", "EINVAL"]),
    ("fsync", &["EIO", "EINVAL", "ENOSPC", "EDQUOT"]),
    ("fdatasync", &["EIO", "EINVAL", "ENOSPC", "EDQUOT"]),
    ("rename", &["EACCES", "ENOSPC", "EBUSY", "EROFS", "EIO", "EDQUOT"]),
    ("renameat", &["EACCES", "ENOSPC", "EBUSY", "EROFS", "EIO", "EDQUOT"]),
    ("renameat2", &["EINVAL", "ENOSYS", "EACCES", "EBUSY", "EROFS", "ENOSPC", "EIO"]),
    ("link", &["EPERM", "EMLINK", "EOPNOTSUPP"]),
    ("linkat", &["EPERM", "EMLINK", "EOPNOTSUPP"]),
    ("symlinkat", &["EPERM", "ENOSPC", "EIO", "EROFS"]),
    ("symlink", &["EPERM", "ENOSPC", "EIO", "EROFS"]),
    ("unlink", &["EACCES", "EBUSY", "EIO", "EROFS"]),
    ("unlinkat", &["EACCES", "EBUSY", "EIO", "EROFS"]),
    ("rmdir", &["EBUSY", "EACCES", "EIO"]),
    ("getdents64", &["EIO", "ENOENT"]),
    ("newfstatat", &["EACCES", "EIO", "ENOMEM"]),
    ("fstat", &["EIO"]),
    ("statx", &["EACCES", "ENOSYS", "EIO", "ENOMEM"]),
    ("fstatfs", &["ENOSYS", "EIO"]),
    ("statfs", &["EACCES", "EIO", "ENOSYS"]),
    ("flistxattr", &["EOPNOTSUPP", "EIO"]),
    ("getxattr", &["EOPNOTSUPP", "EIO"]),
    ("lgetxattr", &["EOPNOTSUPP", "EIO"]),
    ("fgetxattr", &["EOPNOTSUPP", "EIO"]),
    ("fadvise64", &["EINVAL"]),
    ("sync_file_range", &["EIO", "EINVAL"]),
    ("copy_file_range", &["EXDEV", "EIO", "ENOSPC"]),
];

/// Something that is done with what has come.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Task {
    File,
    FileOverOld,
    FileResumed,
    /// A stream that is there as a whole is unpacked.
    Directory,
    /// A stream is unpacked as it comes, out of order.
    DirectoryComing,
    DirectoryOverOld,
    DirectoryResumed,
}

const TASKS: [Task; 7] = [
    Task::File,
    Task::FileOverOld,
    Task::FileResumed,
    Task::Directory,
    Task::DirectoryComing,
    Task::DirectoryOverOld,
    Task::DirectoryResumed,
];

/// The pieces in which a stream comes.
const PIECE_LEN: usize = 9_000;

/// The order of their coming: of three the last comes before the second.
fn pieces(stream: &[u8]) -> Vec<usize> {
    let all: Vec<usize> = (0..stream.len().div_ceil(PIECE_LEN)).collect();
    all.chunks(3).flat_map(|three| three.iter().take(1).chain(three[1..].iter().rev())).copied().collect()
}

const NEW_LEN: usize = 70_000;

fn new_bytes() -> Vec<u8> {
    (0..NEW_LEN).map(|at| (at / 7) as u8).collect()
}

/// A tree, as names and contents.
type Tree = BTreeMap<PathBuf, Vec<u8>>;

fn tree_of(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_path_buf();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            let content = if kind.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if kind.is_dir() {
                folders.push(path);
                b"a directory".to_vec()
            } else {
                fs::read(&path).unwrap()
            };
            tree.insert(name, content);
        }
    }
    tree
}

impl Task {
    fn is_of_directory(self) -> bool {
        !matches!(self, Task::File | Task::FileOverOld | Task::FileResumed)
    }

    /// Puts pieces of a stream into the directory that it becomes.
    fn put(part: &PartFile, stream: &[u8], pieces: &[usize]) -> Result<(), StoreError> {
        let mut put = BTreeSet::new();
        for piece in pieces {
            put.insert(*piece);
            let row = (0..).take_while(|piece| put.contains(piece)).count();
            let range = piece * PIECE_LEN..stream.len().min((piece + 1) * PIECE_LEN);
            let verified_to = stream.len().min(row * PIECE_LEN) as u64;
            part.put(&stream[range.clone()], range.start as u64, verified_to, false)?;
        }
        Ok(())
    }

    fn target(self, folder: &Path) -> PathBuf {
        folder.join("target")
    }

    /// Lays out the folder, with what is there before.
    fn prepare(self, folder: &Path, stream: &[u8]) {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir(folder).unwrap();
        let target = self.target(folder);
        match self {
            Task::File | Task::Directory | Task::DirectoryComing => {}
            Task::DirectoryResumed => {
                let placing = Placing { replace: false, unpacked: true };
                let mut part = PartFile::open(&target, stream.len() as u64, placing).unwrap();
                Task::put(&part, stream, &pieces(stream)[..6]).unwrap();
                part.keep_for_later();
            }
            Task::FileOverOld => fs::write(target, b"the old one").unwrap(),
            Task::FileResumed => {
                let mut part = PartFile::open(&target, NEW_LEN as u64, Placing::default()).unwrap();
                part.write(&new_bytes()[..NEW_LEN / 2], 0).unwrap();
                part.keep_for_later();
            }
            Task::DirectoryOverOld => {
                fs::create_dir_all(target.join("sub")).unwrap();
                fs::write(target.join("sub/old"), b"an old one").unwrap();
                fs::write(target.join("a"), b"another old one").unwrap();
            }
        }
    }

    /// Performs the task in the child.
    fn perform(self, folder: &Path, stream: &[u8]) -> Result<(), String> {
        let target = self.target(folder);
        let replace = matches!(self, Task::FileOverOld | Task::DirectoryOverOld);
        let said = |error: StoreError| error.to_string();
        if self == Task::Directory {
            return unpack(stream, &target, replace).map(drop).map_err(|error| error.to_string());
        } else if self.is_of_directory() {
            let placing = Placing { replace, unpacked: true };
            let part = PartFile::open(&target, stream.len() as u64, placing).map_err(said)?;
            Task::put(&part, stream, &pieces(stream)).map_err(said)?;
            let mut there = vec![0; stream.len()];
            part.read(&mut there, 0).map_err(said)?;
            assert!(there == stream, "what was put can be read");
            return part.unpack().map(drop).map_err(|error| error.to_string());
        }
        let bytes = new_bytes();
        let part =
            PartFile::open(&target, NEW_LEN as u64, Placing { replace, unpacked: false }).map_err(said)?;
        for (number, piece) in bytes.chunks(40_000).enumerate() {
            part.write(piece, number as u64 * 40_000).map_err(said)?;
        }
        let mut there = vec![0; NEW_LEN];
        part.read(&mut there, 0).map_err(said)?;
        assert!(there == bytes, "what was written can be read");
        part.commit(0o640, ModificationTime::new(1_000_000_000, 5)).map(drop).map_err(said)
    }

    /// Returns true if the target is what it was to become.
    fn is_new(self, folder: &Path, expected: &Tree) -> bool {
        let target = self.target(folder);
        if self.is_of_directory() {
            return target.is_dir() && tree_of(&target) == *expected;
        }
        fs::read(target).is_ok_and(|bytes| bytes == new_bytes())
    }

    /// Returns true if the target is what it was before.
    fn is_old(self, folder: &Path) -> bool {
        let target = self.target(folder);
        match self {
            Task::FileOverOld => fs::read(target).is_ok_and(|bytes| bytes == b"the old one"),
            Task::DirectoryOverOld => {
                let names: Vec<PathBuf> = tree_of(&target).into_keys().collect();
                names == ["a", "sub", "sub/old"].map(PathBuf::from)
            }
            _ => fs::symlink_metadata(target).is_err(),
        }
    }
}

/// The directory that is unpacked, and its stream.
fn stream_of_tree(place: &Path) -> (Vec<u8>, Tree) {
    let root = place.join("from");
    fs::create_dir_all(root.join("sub/empty")).unwrap();
    fs::write(root.join("a"), new_bytes()).unwrap();
    fs::write(root.join("sub/b"), b"short").unwrap();
    fs::set_permissions(root.join("sub/b"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("../a", root.join("sub/link")).unwrap();
    let source = TreeSource::open(&root).unwrap();
    let mut stream = vec![0; source.len() as usize];
    source.read_exact_at(&mut stream, 0).unwrap();
    (stream, tree_of(&root))
}

/// Runs a task where the variable says which; the program itself is the child.
#[test]
fn child() {
    let Ok(words) = std::env::var(TASK) else { return };
    let mut words = words.splitn(3, ' ');
    let number: usize = words.next().unwrap().parse().unwrap();
    let (folder, stream) = (words.next().unwrap(), words.next().unwrap());
    let stream = fs::read(stream).unwrap();
    for _ in 0..CALLS_BEFORE {
        let _ = fs::File::open("/dev/null").unwrap().metadata().unwrap();
        let _ = (fs::metadata("/dev/null").unwrap(), fs::read("/dev/null").unwrap());
        fs::write("/dev/null", b"x").unwrap();
        fs::File::open("/dev/null").unwrap().read_at(&mut [0], 0).unwrap();
        rustix::fs::stat("/dev/null").unwrap();
    }
    match TASKS[number].perform(Path::new(folder), &stream) {
        Ok(()) => println!("{DONE}"),
        Err(reason) => println!("{REFUSED}{reason}"),
    }
}

/// One call of a task, by its number among those of its kind.
type Call = (&'static str, usize);

/// The child under strace; what it has printed.
fn run(task: usize, (folder, stream): (&Path, &Path), words: &[&str]) -> String {
    let mut child = Command::new("strace");
    child.args(["-f", "-qq"]).args(words).arg(std::env::current_exe().unwrap());
    child.args(["--exact", "child", "--nocapture", "--test-threads", "1"]);
    child.env(TASK, format!("{task} {} {}", folder.display(), stream.display()));
    let output = child.output().unwrap();
    let (said, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{said}{complaint}")
}

/// The calls of a task that concern its folder.
fn calls_of(task: usize, places: (&Path, &Path), log: &Path) -> BTreeSet<Call> {
    let said = run(task, places, &["-y", "-o", log.to_str().unwrap()]);
    assert!(said.contains(DONE), "{said}");
    let (folder, text) = (places.0.to_str().unwrap(), fs::read_to_string(log).unwrap());
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut calls = BTreeSet::new();
    for line in text.lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let Some((name, _)) = rest.trim_start().split_once('(') else { continue };
        let Some((name, _)) = CALLS.iter().find(|(call, _)| *call == name) else { continue };
        let count = counts.entry((thread, name)).or_default();
        *count += 1;
        if rest.contains(folder) {
            calls.insert((*name, *count));
        }
    }
    calls
}

#[test]
fn a_call_that_is_refused_leaves_nothing_wrong() {
    if !needs(&[Need::Tool("strace")]) {
        return;
    }
    let place = folder_in_memory();
    let (stream, expected) = stream_of_tree(place.path());
    let (stream_at, folder, log) =
        (place.path().join("stream"), place.path().join("work"), place.path().join("log"));
    fs::write(&stream_at, &stream).unwrap();
    let errors_max = if std::env::var_os(ALL).is_some() { usize::MAX } else { 2 };
    let (mut pairs, mut refused) = (BTreeSet::new(), 0);
    for (number, task) in TASKS.into_iter().enumerate() {
        task.prepare(&folder, &stream);
        let calls = calls_of(number, (&folder, &stream_at), &log);
        assert!(calls.len() > 8, "{task:?}: {calls:?}");
        assert!(task.is_new(&folder, &expected), "{task:?} works where nothing is refused");
        for (call, at) in calls {
            let (_, errors) = CALLS.iter().find(|(name, _)| *name == call).unwrap();
            for error in errors.iter().take(errors_max) {
                task.prepare(&folder, &stream);
                let inject = format!("inject={call}:error={error}:when={at}");
                let said = run(
                    number,
                    (&folder, &stream_at),
                    &["-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &inject],
                );
                let what = format!("{task:?}, {error} at {call} {at}: {said}");
                assert!(!said.contains("panicked"), "{what}");
                let is_new = task.is_new(&folder, &expected);
                if said.contains(DONE) {
                    assert!(is_new, "it is not what it is said to be: {what}");
                } else {
                    let (_, reason) =
                        said.split_once(REFUSED).unwrap_or_else(|| panic!("nothing was said: {what}"));
                    assert!(!reason.trim().is_empty(), "{what}");
                    // Of one that is replaced the last step may have been done, and what follows have failed.
                    assert!(is_new || task.is_old(&folder), "something else is there: {what}");
                    refused += 1;
                }
                if !is_new {
                    task.perform(&folder, &stream)
                        .unwrap_or_else(|again| panic!("the next try: {again}: {what}"));
                    assert!(task.is_new(&folder, &expected), "{what}");
                }
                // What it has left goes with the next one that has the name.
                let left: Vec<_> =
                    fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
                assert!(left == ["target"] || is_new, "{left:?} is left: {what}");
                pairs.insert((call, *error));
            }
        }
    }
    eprintln!("{} pairs of a call and an error, {refused} times refused", pairs.len());
    assert!(pairs.len() > 30, "{pairs:?}");
}
