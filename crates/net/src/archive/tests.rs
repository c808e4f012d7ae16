//! Trees make the round trip through the stream.

use super::{ArchiveError, Selection, TreeSource, unpack};
use crate::file_system::umask;
use crate::object::{ObjectSource, changed_in};
use proptest::prelude::*;
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Reads a source from beginning to end, in pieces of odd sizes.
struct Sequential<'a> {
    source: &'a TreeSource,
    offset: u64,
}

impl Read for Sequential<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.source.len() - self.offset;
        let n = left.min(buffer.len() as u64).min(1 + self.offset % 7_919) as usize;
        self.source.read_exact_at(&mut buffer[..n], self.offset)?;
        self.offset += n as u64;
        Ok(n)
    }
}

pub(super) fn stream_of(source: &TreeSource) -> Vec<u8> {
    let mut bytes = vec![0; source.len() as usize];
    source.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Everything about an entry that must survive.
#[derive(Debug, PartialEq)]
pub(super) struct Seen {
    mode: u32,
    modified: (i64, i64),
    contents: Contents,
}

#[derive(Debug, PartialEq)]
enum Contents {
    File(Vec<u8>),
    Directory,
    Symlink(PathBuf),
}

pub(super) fn look(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(name) = pending.pop() {
        let path = root.join(&name);
        let metadata = fs::symlink_metadata(&path).unwrap();
        let contents = if metadata.is_symlink() {
            Contents::Symlink(fs::read_link(&path).unwrap())
        } else if metadata.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|item| name.join(item.unwrap().file_name())));
            Contents::Directory
        } else {
            Contents::File(fs::read(&path).unwrap())
        };
        let mode = metadata.mode() & 0o7777;
        seen.insert(name, Seen { mode, modified: (metadata.mtime(), metadata.mtime_nsec()), contents });
    }
    seen
}

/// Packs `from`, unpacks it beside, and compares the two.
fn round_trip(from: &Path, to: &Path) {
    let source = TreeSource::open(from).unwrap();
    unpack(Sequential { source: &source, offset: 0 }, to, false).unwrap();
    let mut expected = look(from);
    for seen in expected.values_mut() {
        // Links have no permissions of their own.
        if !matches!(seen.contents, Contents::Symlink(_)) {
            seen.mode &= !umask();
        }
    }
    assert_eq!(expected, look(to));
    assert_eq!(leftovers(to), 0);
}

/// Counts the temporary directories beside `target`.
fn leftovers(target: &Path) -> usize {
    let listing = fs::read_dir(target.parent().unwrap()).unwrap();
    listing.filter(|item| item.as_ref().unwrap().file_name().as_bytes().ends_with(b".part")).count()
}

#[derive(Clone, Debug)]
enum Node {
    File { contents: Vec<u8>, mode: u32, modified: Duration },
    Directory { entries: BTreeMap<Vec<u8>, Node>, mode: u32, modified: Duration },
    Symlink { target: Vec<u8> },
}

fn any_name() -> impl Strategy<Value = Vec<u8>> {
    let short = proptest::collection::vec(any::<u8>(), 1..12);
    let long = proptest::collection::vec(any::<u8>(), 90..=255);
    prop_oneof![4 => short, 1 => long].prop_map(|mut name| {
        for byte in &mut name {
            if matches!(*byte, 0 | b'/') {
                *byte = b'_';
            }
        }
        if name == b"." || name == b".." { b"dots".to_vec() } else { name }
    })
}

fn any_node() -> impl Strategy<Value = Node> {
    let modified = || (0u64..3_000_000_000, 0u32..1_000_000_000).prop_map(|(s, n)| Duration::new(s, n));
    let contents = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        (500usize..1600).prop_map(|len| (0..len).map(|i| i as u8).collect()),
    ];
    let file = (contents, 0u32..0o1000, modified()).prop_map(|(contents, mode, modified)| Node::File {
        contents,
        mode: mode | 0o400,
        modified,
    });
    let link = proptest::collection::vec(1u8.., 1..300).prop_map(|target| Node::Symlink { target });
    prop_oneof![3 => file, 1 => link].prop_recursive(4, 40, 6, move |inner| {
        let entries = proptest::collection::btree_map(any_name(), inner, 0..6);
        (entries, 0u32..0o1000, modified()).prop_map(|(entries, mode, modified)| Node::Directory {
            entries,
            mode: mode | 0o700,
            modified,
        })
    })
}

fn build(path: &Path, node: &Node) {
    let set_time = |modified: &Duration| {
        File::open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH + *modified).unwrap();
    };
    let set_mode = |mode: &u32| fs::set_permissions(path, fs::Permissions::from_mode(*mode)).unwrap();
    match node {
        Node::File { contents, mode, modified } => {
            fs::write(path, contents).unwrap();
            set_mode(mode);
            set_time(modified);
        }
        Node::Symlink { target } => symlink(OsStr::from_bytes(target), path).unwrap(),
        Node::Directory { entries, mode, modified } => {
            fs::create_dir(path).unwrap();
            for (name, node) in entries {
                build(&path.join(OsStr::from_bytes(name)), node);
            }
            set_mode(mode);
            set_time(modified);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_tree_survives(entries in proptest::collection::btree_map(any_name(), any_node(), 0..8)) {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        build(&from, &Node::Directory { entries, mode: 0o750, modified: Duration::new(1_000_000_007, 5) });
        round_trip(&from, &to);
    }

    #[test]
    fn any_part_can_be_read(
        entries in proptest::collection::btree_map(any_name(), any_node(), 1..5),
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..3000), 1..20),
    ) {
        let place = tempfile::tempdir().unwrap();
        let from = place.path().join("from");
        build(&from, &Node::Directory { entries, mode: 0o755, modified: Duration::ZERO });
        let source = TreeSource::open(&from).unwrap();
        let whole = stream_of(&source);
        for (index, len) in cuts {
            let start = index.index(whole.len());
            let end = (start + len).min(whole.len());
            let mut part = vec![0xa5; end - start];
            source.read_exact_at(&mut part, start as u64).unwrap();
            prop_assert_eq!(&part, &whole[start..end]);
        }
    }
}

fn small_tree(place: &Path) -> PathBuf {
    let root = place.join("tree");
    fs::create_dir_all(root.join("sub/empty")).unwrap();
    fs::write(root.join("one"), b"1").unwrap();
    fs::write(root.join("sub/block"), [7; 512]).unwrap();
    fs::write(root.join("zero"), b"").unwrap();
    symlink("nowhere/at/all", root.join("dangling")).unwrap();
    root
}

#[test]
fn reading_at_every_offset_gives_the_sequential_stream() {
    let place = tempfile::tempdir().unwrap();
    let source = TreeSource::open(&small_tree(place.path())).unwrap();
    let mut whole = Vec::new();
    Sequential { source: &source, offset: 0 }.read_to_end(&mut whole).unwrap();
    assert_eq!(whole.len() as u64, source.len());
    for offset in 0..whole.len() {
        let mut part = vec![0; (whole.len() - offset).min(700)];
        source.read_exact_at(&mut part, offset as u64).unwrap();
        assert_eq!(part, &whole[offset..offset + part.len()], "at {offset}");
    }
    let mut beyond = [0; 2];
    assert!(source.read_exact_at(&mut beyond, source.len() - 1).is_err());
    assert!(source.read_exact_at(&mut beyond, u64::MAX).is_err());
}

#[test]
fn the_same_tree_makes_the_same_stream() {
    let place = tempfile::tempdir().unwrap();
    let root = small_tree(place.path());
    let (first, second) = (TreeSource::open(&root).unwrap(), TreeSource::open(&root).unwrap());
    assert_eq!(stream_of(&first), stream_of(&second));
    assert_eq!(first.file_count(), 3);
}

#[test]
fn other_tools_can_read_the_stream() {
    let place = tempfile::tempdir().unwrap();
    let root = small_tree(place.path());
    let long = "l".repeat(200);
    fs::write(root.join(&long), b"long").unwrap();
    let bytes = stream_of(&TreeSource::open(&root).unwrap());
    let mut names = Vec::new();
    for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut contents = Vec::new();
        entry.read_to_end(&mut contents).unwrap();
        names.push((entry.path().unwrap().into_owned(), contents.len()));
    }
    let expected = [
        ("./", 0),
        ("dangling", 0),
        (long.as_str(), 4),
        ("one", 1),
        ("sub/", 0),
        ("sub/block", 512),
        ("sub/empty/", 0),
        ("zero", 0),
    ];
    assert_eq!(names, expected.map(|(name, len)| (PathBuf::from(name), len)));
}

#[test]
fn an_empty_directory_survives() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    fs::create_dir(&from).unwrap();
    round_trip(&from, &to);
}

#[test]
fn links_stay_links() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    fs::create_dir(&from).unwrap();
    fs::write(place.path().join("secret"), b"not to be sent").unwrap();
    symlink("../secret", from.join("outside")).unwrap();
    symlink("/dev/null", from.join("absolute")).unwrap();
    symlink("gone", from.join("dangling")).unwrap();
    symlink("..", from.join("directory")).unwrap();
    let source = TreeSource::open(&from).unwrap();
    assert!(!stream_of(&source).windows(14).any(|w| w == b"not to be sent"));
    round_trip(&from, &to);
    // The tree itself may be named by a link.
    symlink(&from, place.path().join("alias")).unwrap();
    assert_eq!(TreeSource::open(&place.path().join("alias")).unwrap().len(), source.len());
}

#[test]
fn ten_thousand_small_files_survive() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    for directory in 0..100 {
        let path = from.join(format!("directory-{directory:03}"));
        fs::create_dir_all(&path).unwrap();
        for file in 0..100 {
            fs::write(path.join(format!("file-{file:03}")), format!("{directory}/{file}")).unwrap();
        }
    }
    assert_eq!(TreeSource::open(&from).unwrap().file_count(), 10_000);
    round_trip(&from, &to);
}

#[test]
fn few_files_are_open_at_a_time() {
    let place = tempfile::tempdir().unwrap();
    let from = place.path().join("from");
    fs::create_dir(&from).unwrap();
    for file in 0..500 {
        fs::write(from.join(file.to_string()), b"x").unwrap();
    }
    let source = TreeSource::open(&from).unwrap();
    stream_of(&source);
    let inside = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open =
        inside.filter_map(|fd| fs::read_link(fd.path()).ok()).filter(|to| to.starts_with(&from)).count();
    assert!((1..=32).contains(&open), "{open} files are open");
}

#[test]
fn deep_trees_survive() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    let mut path = from.clone();
    for _ in 0..300 {
        path.push("deeper/");
    }
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("bottom"), b"here").unwrap();
    round_trip(&from, &to);
}

#[test]
fn directories_that_are_read_only_survive() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    fs::create_dir_all(from.join("locked/inner")).unwrap();
    fs::write(from.join("locked/inner/file"), b"x").unwrap();
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for root in [&from, &to] {
        if root == &to {
            round_trip(&from, &to);
        }
        // The second time round this only proves that they are there to be unlocked.
        set(&root.join("locked/inner"), 0o555);
        set(&root.join("locked"), 0o555);
        set(root, 0o555);
    }
    for root in [&from, &to] {
        for name in ["", "locked", "locked/inner"] {
            set(&root.join(name), 0o755);
        }
    }
}

#[test]
fn special_bits_are_dropped() {
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    fs::create_dir_all(from.join("shared")).unwrap();
    fs::write(from.join("tool"), b"#!").unwrap();
    fs::set_permissions(from.join("tool"), fs::Permissions::from_mode(0o6755)).unwrap();
    fs::set_permissions(from.join("shared"), fs::Permissions::from_mode(0o3777)).unwrap();
    unpack(stream_of(&TreeSource::open(&from).unwrap()).as_slice(), &to, false).unwrap();
    assert_eq!(fs::metadata(to.join("tool")).unwrap().mode() & 0o7777, 0o755 & !umask());
    assert_eq!(fs::metadata(to.join("shared")).unwrap().mode() & 0o7777, 0o1777 & !umask());
}

#[test]
fn special_files_are_left_out_and_named() {
    let place = tempfile::tempdir().unwrap();
    let root = small_tree(place.path());
    let before = TreeSource::open(&root).unwrap();
    assert_eq!(before.skipped(), []);
    let _listener = std::os::unix::net::UnixListener::bind(root.join("sub/socket")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let source = TreeSource::open(&root).unwrap();
    assert_eq!(source.file_count(), before.file_count());
    let mut skipped: Vec<_> =
        source.skipped().iter().map(|skipped| (skipped.path.file_name().unwrap(), skipped.what)).collect();
    skipped.sort();
    assert_eq!(skipped, [("pipe".as_ref(), "a named pipe"), ("socket".as_ref(), "a socket")]);
}

#[test]
fn files_with_several_names_keep_them() {
    let place = tempfile::tempdir().unwrap();
    let from = place.path().join("from");
    fs::create_dir_all(from.join("a")).unwrap();
    fs::write(from.join("a/first"), vec![7; 100_000]).unwrap();
    // The other names come before and after the first in the order of the stream.
    for name in ["A", "z"] {
        fs::hard_link(from.join("a/first"), from.join(name)).unwrap();
    }
    let to = place.path().join("to");
    round_trip(&from, &to);
    assert!(TreeSource::open(&from).unwrap().len() < 110_000, "the bytes are in the stream once");
    let inodes = ["a/first", "A", "z"].map(|name| fs::metadata(to.join(name)).unwrap().ino());
    assert!(inodes.iter().all(|inode| *inode == inodes[0]), "{inodes:?}");
}

#[test]
fn holes_stay_holes() {
    let place = tempfile::tempdir().unwrap();
    let from = place.path().join("from");
    fs::create_dir(&from).unwrap();
    let file = fs::File::create(from.join("sparse")).unwrap();
    file.set_len(50_000_000).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"data", 20_000_000).unwrap();
    let to = place.path().join("to");
    round_trip(&from, &to);
    let written = fs::metadata(to.join("sparse")).unwrap().blocks() * 512;
    assert!(written < 1_000_000, "{written} bytes on the disk");
}

#[test]
fn some_of_a_tree_and_several_paths_make_one() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    for name in ["x/one", "x/two.tmp", "x/cache/three", "y/four"] {
        fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        fs::write(at(name), name).unwrap();
    }
    std::os::unix::fs::symlink("y/four", at("link")).unwrap();
    let exclude = ["*.tmp", "cache/"].map(|glob| glob.parse().unwrap()).to_vec();
    let selection = Selection { exclude, follow: false };
    let names = |source: &TreeSource| {
        let to = at("to");
        unpack(stream_of(source).as_slice(), &to, true).unwrap();
        look(&to).into_keys().map(|name| name.to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&TreeSource::open_some(&at("x"), &selection).unwrap()), ["", "one"]);
    let several = TreeSource::open_all(&[at("x"), at("link"), at("y/four")], &selection).unwrap();
    assert_eq!(names(&several), ["", "four", "link", "x", "x/one"]);
    assert_eq!(fs::read(at("to/link")).unwrap(), b"y/four", "what is named is meant, also as a link");
    fs::write(at("y/one"), b"another").unwrap();
    let twice = TreeSource::open_all(&[at("x/one"), at("y/one")], &Selection::default()).unwrap_err();
    assert!(twice.to_string().contains("called 'one'"), "{twice}");
}

#[test]
fn what_is_no_directory_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    fs::write(&file, b"x").unwrap();
    assert!(matches!(TreeSource::open(&file), Err(ArchiveError::NotADirectory { .. })));
    let said = TreeSource::open(&place.path().join("missing")).unwrap_err().to_string();
    assert!(said.contains("missing") && said.contains("No such file"), "{said}");
}

#[test]
fn changes_in_mid_transfer_are_named() {
    type Change = fn(&Path);
    let cases: [(Change, &str); 5] = [
        (|file| fs::write(file, b"short").unwrap(), "became shorter"),
        (|file| fs::remove_file(file).unwrap(), "vanished"),
        (
            |file| {
                fs::remove_file(file).unwrap();
                symlink("/etc/passwd", file).unwrap();
            },
            "was replaced by a symbolic link",
        ),
        (
            |file| {
                fs::remove_file(file).unwrap();
                fs::create_dir(file).unwrap();
            },
            "was replaced by something that is not a file",
        ),
        (
            |file| {
                fs::remove_file(file).unwrap();
                rustix::fs::mknodat(
                    rustix::fs::CWD,
                    file,
                    rustix::fs::FileType::Fifo,
                    rustix::fs::Mode::RWXU,
                    0,
                )
                .unwrap();
            },
            "was replaced by something that is not a file",
        ),
    ];
    for (change, how) in cases {
        let place = tempfile::tempdir().unwrap();
        let root = small_tree(place.path());
        let source = TreeSource::open(&root).unwrap();
        change(&root.join("sub/block"));
        let mut bytes = vec![0; source.len() as usize];
        let said = source.read_exact_at(&mut bytes, 0).unwrap_err().to_string();
        assert!(said.contains("sub/block") && said.contains(how), "{said}");
    }
}

#[test]
fn a_file_that_shrinks_while_open_is_named() {
    let place = tempfile::tempdir().unwrap();
    let root = small_tree(place.path());
    let source = TreeSource::open(&root).unwrap();
    let mut bytes = vec![0; source.len() as usize];
    source.read_exact_at(&mut bytes, 0).unwrap();
    fs::write(root.join("sub/block"), b"short").unwrap();
    let said = source.read_exact_at(&mut bytes, 0).unwrap_err().to_string();
    assert!(said.contains("sub/block became shorter"), "{said}");
}

/// Reads all, has something changed, and gives what is said of it then.
fn said_of(change: impl FnOnce(&Path)) -> String {
    let place = tempfile::tempdir().unwrap();
    let root = small_tree(place.path());
    let source = TreeSource::open(&root).unwrap();
    stream_of(&source);
    source.check().unwrap();
    change(&root);
    let error = source.check().unwrap_err();
    assert!(changed_in(&error).is_some(), "{error} is no change");
    error.to_string()
}

#[test]
fn a_file_that_changes_after_it_was_read_is_named() {
    let said = said_of(|root| fs::write(root.join("one"), b"1 and more").unwrap());
    assert!(said.contains("one became longer"), "{said}");
    let said = said_of(|root| {
        let block = root.join("sub/block");
        fs::write(&block, vec![9; fs::metadata(&block).unwrap().len() as usize]).unwrap();
    });
    assert!(said.contains("sub/block was changed"), "{said}");
    let said = said_of(|root| fs::remove_file(root.join("one")).unwrap());
    assert!(said.contains("one vanished"), "{said}");
    let said = said_of(|root| {
        fs::write(root.join("new"), fs::read(root.join("one")).unwrap()).unwrap();
        fs::rename(root.join("new"), root.join("one")).unwrap();
    });
    assert!(said.contains("one was replaced"), "{said}");
}

#[test]
fn what_is_added_or_gets_other_permissions_is_no_change() {
    let place = tempfile::tempdir().unwrap();
    let root = small_tree(place.path());
    let source = TreeSource::open(&root).unwrap();
    stream_of(&source);
    fs::write(root.join("new"), b"new").unwrap();
    fs::hard_link(root.join("one"), root.join("another")).unwrap();
    fs::set_permissions(root.join("sub/block"), fs::Permissions::from_mode(0o600)).unwrap();
    source.check().unwrap();
}

/// A folder as caches of model hubs have it: links to files that lie beside it.
fn hub(place: &Path) -> PathBuf {
    let snapshot = place.join("snapshots/1");
    fs::create_dir_all(place.join("blobs/more")).unwrap();
    fs::create_dir_all(snapshot.join("sub")).unwrap();
    fs::write(place.join("blobs/abc"), vec![5; 3_000]).unwrap();
    fs::write(place.join("blobs/more/def"), b"def").unwrap();
    fs::write(snapshot.join("config.json"), b"{}").unwrap();
    for (target, link) in [
        ("../../blobs/abc", "model"),
        ("../../../blobs/abc", "sub/model"),
        ("../../blobs/more", "more"),
        ("config.json", "same"),
        ("../config.json", "sub/above"),
        ("nothing", "none"),
        ("loop", "loop"),
    ] {
        symlink(target, snapshot.join(link)).unwrap();
    }
    symlink(place.join("snapshots/1/config.json"), snapshot.join("absolute")).unwrap();
    snapshot
}

#[test]
fn links_that_lead_out_are_named_with_their_number() {
    let place = tempfile::tempdir().unwrap();
    let source = TreeSource::open(&hub(place.path())).unwrap();
    let links = source.links_out();
    let named: Vec<_> = links.first.iter().map(|link| (link.path.to_str().unwrap(), link.dangles)).collect();
    let all = [
        ("absolute", false),
        ("loop", true),
        ("model", false),
        ("more", false),
        ("none", true),
        ("sub/model", false),
    ];
    assert_eq!((links.count, named.into_iter().collect::<std::collections::BTreeSet<_>>()), (6, all.into()));
    // Where it was unpacked they are looked at once more: what lies beside it here is nowhere there.
    let elsewhere = tempfile::tempdir().unwrap();
    let to = elsewhere.path().join("to");
    unpack(stream_of(&source).as_slice(), &to, false).unwrap();
    let there = super::links_out_of(&to);
    assert_eq!((there.count, there.first.iter().filter(|link| link.dangles).count()), (6, 5));
    let place = tempfile::tempdir().unwrap();
    let root = small_tree(place.path());
    fs::remove_file(root.join("dangling")).unwrap();
    symlink("sub/../one", root.join("within")).unwrap();
    assert!(TreeSource::open(&root).unwrap().links_out().is_empty());
}

#[test]
fn links_are_followed_where_that_is_asked_for() {
    let place = tempfile::tempdir().unwrap();
    let snapshot = hub(place.path());
    let follow = Selection { follow: true, ..Selection::default() };
    let source = TreeSource::open_some(&snapshot, &follow).unwrap();
    let to = place.path().join("to");
    unpack(stream_of(&source).as_slice(), &to, false).unwrap();
    source.check().unwrap();
    for name in ["model", "sub/model"] {
        assert_eq!(fs::read(to.join(name)).unwrap(), vec![5; 3_000], "{name}");
        assert!(fs::symlink_metadata(to.join(name)).unwrap().is_file(), "{name}");
    }
    assert_eq!(fs::read(to.join("more/def")).unwrap(), b"def");
    assert_eq!(fs::read(to.join("sub/above")).unwrap(), b"{}");
    // What leads to nothing stays, and is named.
    let links: Vec<_> = source.links_out().first.iter().map(|link| link.path.to_str().unwrap()).collect();
    assert_eq!(links.into_iter().collect::<std::collections::BTreeSet<_>>(), ["loop", "none"].into());
    assert!(fs::symlink_metadata(to.join("none")).unwrap().is_symlink());
    fs::write(place.path().join("blobs/abc"), vec![6; 3_000]).unwrap();
    let said = source.check().unwrap_err().to_string();
    assert!(said.contains("model was changed"), "{said}");
}

#[test]
fn links_that_lead_round_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let follow = Selection { follow: true, ..Selection::default() };
    let round = place.path().join("round");
    fs::create_dir_all(round.join("sub/deeper")).unwrap();
    symlink("../..", round.join("sub/deeper/up")).unwrap();
    let said = TreeSource::open_some(&round, &follow).unwrap_err().to_string();
    assert!(said.contains("sub/deeper/up: it leads to a directory that it lies in itself"), "{said}");
    // As it is named, too.
    let said = TreeSource::open_all(&[round], &follow).unwrap_err().to_string();
    assert!(said.contains("it leads to a directory that it lies in itself"), "{said}");
    let deep = place.path().join("deep");
    fs::create_dir_all(deep.join("d/".repeat(258))).unwrap();
    let said = TreeSource::open_some(&deep, &follow).unwrap_err().to_string();
    assert!(said.contains("256 directories"), "{said}");
    // Each leads to the next one, which has one that leads on.
    let long = place.path().join("long");
    for number in 0..=100 {
        fs::create_dir_all(long.join(number.to_string())).unwrap();
        symlink(format!("../{}", number + 1), long.join(number.to_string()).join("next")).unwrap();
    }
    let said = TreeSource::open_some(&long.join("0"), &follow).unwrap_err().to_string();
    assert!(said.contains("more links lead to it, one after the other, than the system follows"), "{said}");
}

#[test]
fn a_tree_deeper_than_a_path_is_refused_in_a_short_sentence() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("root");
    fs::create_dir(&root).unwrap();
    let mut at = std::fs::File::open(&root).unwrap();
    let name = "d".repeat(200);
    for _ in 0..30 {
        mkdirat(&at, &*name, Mode::RWXU).unwrap();
        at = openat(&at, &*name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap().into();
    }
    for tree in
        [TreeSource::open(&root), TreeSource::open_all(std::slice::from_ref(&root), &Selection::default())]
    {
        let said = tree.unwrap_err().to_string();
        assert!(said.contains("root is longer than the 4,095 bytes") && said.len() < 400, "{said}");
    }
}
