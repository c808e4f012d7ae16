use super::*;
use crate::daemon::limits::tests::spawn;
use polycast_testing::{Need, needs, skip};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

fn object(data: u64) -> ObjectId {
    ObjectId { app: AppId([7; 16]), data: DataId(data) }
}

fn description(length: u64) -> Description {
    Description {
        name: "a \"b\".bin".into(),
        kind: ObjectKind::Directory,
        length,
        mode: 0o750,
        modified: ModificationTime::new(-5, 999_999_999),
        root: "00ff".into(),
        holder: Some(Holder { uid: 1_000, private: true, in_place: false }),
        pinned: true,
    }
}

#[test]
fn what_is_whole_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (store, found) = Store::open(folder.path()).unwrap();
    assert!(found.is_empty());
    for data in 1..=4 {
        fs::write(store.path(object(data)), b"abc").unwrap();
    }
    fs::write(store.path(object(8)), b"").unwrap();
    store.describe(object(1), &description(3)).unwrap();
    store.describe(object(2), &description(4)).unwrap();
    store.describe(object(3), &description(3)).unwrap();
    store.describe(object(5), &description(3)).unwrap();
    fs::remove_file(store.path(object(3))).unwrap();
    let part = part_path(&store.path(object(6)));
    fs::write(&part, b"ab").unwrap();
    // A week without another try is enough.
    let old = part_path(&store.path(object(7)));
    fs::write(&old, b"ab").unwrap();
    let week = PART_AGE_MAX + Duration::from_secs(60);
    File::open(&old).unwrap().set_modified(SystemTime::now() - week).unwrap();
    drop(store);
    let (store, found) = Store::open(folder.path()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].id, &found[0].description), (object(1), &description(3)));
    // Bytes that no description vouches for may be right: the next transfer checks them.
    let mut parts: Vec<u64> = store.parts().unwrap().iter().map(|(id, ..)| id.data.0).collect();
    parts.sort_unstable();
    assert_eq!(parts, [2, 4, 6]);
    assert_eq!(fs::read(part_path(&store.path(object(4)))).unwrap(), b"abc");
    // The lock, the one object's two files, and the parts.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 6);
    for data in [2, 4, 6] {
        assert!(store.remove(object(data)).unwrap());
    }
    assert!(store.remove(object(1)).unwrap());
    assert!(!store.remove(object(1)).unwrap());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn what_cannot_be_read_now_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(folder.path()).unwrap();
    for data in 1..=2 {
        fs::write(store.path(object(data)), b"abc").unwrap();
        store.describe(object(data), &description(3)).unwrap();
    }
    let (newer, odd) = (store.file(object(1), DESCRIPTION), store.file(object(2), DESCRIPTION));
    let text = fs::read_to_string(&newer).unwrap();
    fs::write(&newer, format!("{text}colour = \"blue\"\n")).unwrap();
    fs::remove_file(&odd).unwrap();
    fs::create_dir(&odd).unwrap();
    drop(store);
    let (store, found) = Store::open(folder.path()).unwrap();
    assert!(found.is_empty());
    assert_eq!(fs::read(store.path(object(1))).unwrap(), b"abc");
    assert_eq!(fs::read(store.path(object(2))).unwrap(), b"abc");
    fs::write(&newer, text).unwrap();
    drop(store);
    let (_, found) = Store::open(folder.path()).unwrap();
    assert_eq!(found.iter().map(|one| one.id).collect::<Vec<_>>(), [object(1)], "it is of use again");
}

/// Another program, or an administrator, writes to the bytes of an object: it is the object no more, and
/// nothing of it is lost.
#[test]
fn bytes_that_were_changed_are_no_object() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(folder.path()).unwrap();
    for data in 1..=3 {
        keep(&store, data, b"abc").unwrap();
        check_bytes(&store.path(object(data))).unwrap();
    }
    let later = |path: &Path, by| {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.set_modified(file.metadata().unwrap().modified().unwrap() + by).unwrap();
    };
    fs::write(store.path(object(1)), b"abX").unwrap();
    later(&store.path(object(1)), Duration::from_millis(5));
    let why = check_bytes(&store.path(object(1))).unwrap_err().message;
    assert!(
        why.contains("was changed since its bytes were verified") && why.contains("polycast rm"),
        "{why}"
    );
    // To pin it does not make it right.
    store.describe(object(1), &description(3)).unwrap();
    assert!(check_bytes(&store.path(object(1))).is_err());
    // A description of an earlier version says nothing of the time; what is younger than it was changed.
    let path = store.file(object(2), DESCRIPTION);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("written_")).collect();
    fs::write(&path, lines.join("\n")).unwrap();
    check_bytes(&store.path(object(2))).unwrap();
    later(&store.path(object(2)), Duration::from_secs(60));
    assert!(check_bytes(&store.path(object(2))).is_err());
    drop(store);
    let (store, found) = Store::open(folder.path()).unwrap();
    assert_eq!(found.iter().map(|one| one.id).collect::<Vec<_>>(), [object(3)]);
    let mut parts: Vec<u64> = store.parts().unwrap().iter().map(|(id, ..)| id.data.0).collect();
    parts.sort_unstable();
    assert_eq!(parts, [1, 2], "the next transfer checks them");
}

#[test]
fn a_store_belongs_to_one_agent() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = Store::open(folder.path()).unwrap();
    let error = Store::open(folder.path()).err().unwrap().to_string();
    assert!(error.ends_with("another agent uses it"), "{error}");
    // As a program has it that is begun at this moment: all that is open, until it runs.
    let copied = first.lock.try_clone().unwrap();
    drop(first);
    Store::open(folder.path()).expect("the lock is free");
    drop(copied);
}

#[test]
fn a_folder_that_others_can_change_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let error = Store::open(&open).err().unwrap().to_string();
    assert!(error.contains("other users can change"), "{error}");
}

/// Reading a description is no use of its object: a start finds the times of the last requests, and so does
/// the start after it.
#[test]
fn a_start_leaves_the_times_of_use_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(folder.path()).unwrap();
    // Some file systems keep no parts of a second.
    let now =
        SystemTime::UNIX_EPOCH + Duration::from_secs(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs());
    let hours_ago = |hours: u64| now - Duration::from_secs(hours * 3_600);
    let used = [hours_ago(48), hours_ago(1)];
    for (data, used) in (1..).zip(used) {
        fs::write(store.path(object(data)), b"abc").unwrap();
        store.describe(object(data), &description(3)).unwrap();
        for extension in [BYTES, DESCRIPTION] {
            let file = OpenOptions::new().write(true).open(store.file(object(data), extension)).unwrap();
            file.set_modified(hours_ago(72)).unwrap();
        }
        store.note_use(object(data), used);
    }
    drop(store);
    for start in ["first", "second"] {
        let (_, found) = Store::open(folder.path()).unwrap();
        assert_eq!(found.iter().map(|one| one.used).collect::<Vec<_>>(), used, "{start}");
    }
}

/// Bytes that have come, in their part file.
fn arrived(store: &Store, data: u64, bytes: &[u8]) -> (PathBuf, File) {
    let part = part_path(&store.path(object(data)));
    fs::write(&part, bytes).unwrap();
    let file = File::open(&part).unwrap();
    (part, file)
}

fn keep(store: &Store, data: u64, bytes: &[u8]) -> io::Result<()> {
    let (part, file) = arrived(store, data, bytes);
    store.keep(object(data), &Arrived { part: &part, file: &file }, &description(bytes.len() as u64))
}

#[test]
fn what_is_kept_is_found_and_has_no_part_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(folder.path()).unwrap();
    keep(&store, 1, b"abc").unwrap();
    // In the place of what this version cannot read.
    fs::write(store.path(object(2)), b"of another version").unwrap();
    fs::write(store.file(object(2), DESCRIPTION), b"?").unwrap();
    keep(&store, 2, b"defg").unwrap();
    assert!(store.parts().unwrap().is_empty());
    drop(store);
    let (store, found) = Store::open(folder.path()).unwrap();
    let lengths: Vec<(u64, u64)> = found.iter().map(|one| (one.id.data.0, one.description.length)).collect();
    assert_eq!(lengths, [(1, 3), (2, 4)]);
    assert_eq!(fs::read(store.path(object(2))).unwrap(), b"defg");
    assert!(store.remove(object(1)).unwrap() && store.remove(object(2)).unwrap());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Whichever step fails: the bytes are a part as before, and nothing has a final name.
#[test]
fn what_cannot_be_kept_stays_a_part() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(folder.path()).unwrap();
    // The description cannot be written, and then cannot get its name.
    for blocked in [PASSING, DESCRIPTION] {
        let inside = store.file(object(1), blocked).join("inside");
        fs::create_dir_all(&inside).unwrap();
        keep(&store, 1, b"abc").unwrap_err();
        assert!(!store.path(object(1)).exists(), "{blocked}");
        assert_eq!(fs::read(part_path(&store.path(object(1)))).unwrap(), b"abc", "{blocked}");
        fs::remove_dir_all(store.file(object(1), blocked)).unwrap();
    }
    // What has got its names is taken back.
    let (part, file) = arrived(&store, 1, b"abc");
    let here = Arrived { part: &part, file: &file };
    for step in [Step::Describe, Step::NameBytes, Step::NameDescription] {
        store.step(step, object(1), &here, &description(3)).unwrap();
    }
    store.undo(&[Step::NameBytes, Step::NameDescription], object(1), &here);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "the lock and the part");
    assert!(part.exists() && !store.names.are_settled());
    keep(&store, 1, b"abc").unwrap();
}

/// Variable with the folder for objects of the test below when it runs once more, watched.
const WATCHED: &str = "POLYCAST_TEST_WATCHED";

/// On a disk, as the kernel sees it: bytes and description are synced before they have their names, the
/// folder after that, and nothing else is waited for; where something was taken away, the folder before that,
/// too.
#[test]
fn an_object_is_on_the_disk_before_it_counts() {
    if let Some(folder) = std::env::var_os(WATCHED) {
        let (store, _) = Store::open(Path::new(&folder)).unwrap();
        keep(&store, 1, b"abc").unwrap();
        keep(&store, 2, b"abc").unwrap();
        assert!(store.remove(object(1)).unwrap());
        keep(&store, 1, b"def").unwrap();
        return;
    }
    if !needs(&[Need::Tool("strace")]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    if is_in_memory(&File::open(folder.path()).unwrap()) {
        return skip("temporary files lie in memory here");
    }
    let (store, log) = (folder.path().join("store"), folder.path().join("log"));
    let mut watched = Command::new("strace");
    watched.args([
        "-f",
        "-y",
        "-qq",
        "-e",
        "trace=fdatasync,fsync,rename,renameat,renameat2,unlink,unlinkat",
        "-o",
    ]);
    watched.arg(&log).arg(std::env::current_exe().unwrap());
    watched.args(["--exact", "daemon::store::tests::an_object_is_on_the_disk_before_it_counts"]);
    let ended = spawn(watched.env(WATCHED, &store).stdout(Stdio::null())).wait().unwrap();
    let log = fs::read_to_string(&log).unwrap();
    assert!(ended.success() && store.join(".lock").exists(), "{log}");
    let call = |line: &str| {
        let is = |words: &[&str]| words.iter().all(|word| line.contains(word));
        let folder = format!("<{}>)", store.display());
        let calls: [(&[&str], char); 7] = [
            (&["fdatasync(", ".object.polycast-part>"], 'b'),
            (&["fdatasync(", ".new>"], 'd'),
            (&["rename", ".polycast-part\", "], 'B'),
            (&["rename", ".new\", "], 'D'),
            (&["fsync(", &folder], 'f'),
            (&["unlink", ".object\""], 'x'),
            (&["unlink", ".toml\""], 'x'),
        ];
        calls.iter().find(|(words, _)| is(words) && !line.contains("ENOENT")).map(|(_, letter)| *letter)
    };
    let calls: String = log.lines().filter(|line| !line.contains("resumed>")).filter_map(call).collect();
    // The first one of a run does not know what an earlier one has taken away.
    assert_eq!(calls, "fbdBDf bdBDf xx fbdBDf".replace(' ', ""), "{log}");
}
