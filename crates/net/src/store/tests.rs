use super::is_full;
use super::*;
use crate::file_system::umask;
use polycast_testing::{Need, needs};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

const PLAIN: Placing = Placing { replace: false, unpacked: false };
const REPLACING: Placing = Placing { replace: true, ..PLAIN };

fn permissions(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_permissions(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn nothing_is_visible_before_the_commit() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("sub/object");
    let part = PartFile::open(&target, 10, PLAIN).unwrap();
    part.write(b"0123456789", 0).unwrap();
    assert!(!target.exists());
    assert_eq!(part.commit(0o644, None).unwrap(), target);
    assert_eq!(fs::read(&target).unwrap(), b"0123456789");
    assert_eq!(fs::read_dir(target.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn a_part_file_is_removed_or_kept_and_taken_up_again() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("object");
    let mut part = PartFile::open(&target, 4, PLAIN).unwrap();
    assert!(!part.is_resumed());
    part.write(b"ab", 0).unwrap();
    part.keep_for_later();
    drop(part);
    let part = PartFile::open(&target, 4, PLAIN).unwrap();
    assert!(part.is_resumed());
    let mut bytes = [0; 2];
    part.read(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"ab");
    drop(part);
    // What an earlier try left stays until this one has looked at it and discards it.
    let mut part = PartFile::open(&target, 4, PLAIN).unwrap();
    assert!(part.is_resumed());
    part.discard();
    drop(part);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn what_a_process_reads_of_an_earlier_try_is_not_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("object");
    let len = 3 << 20;
    let mut part = PartFile::open(&target, len, PLAIN).unwrap();
    part.write(&[7; 1000], 2 << 20).unwrap();
    part.keep_for_later();
    let reader = File::open(part.path()).unwrap();
    drop(part);
    // Where it cannot be copied, it stays.
    let aside = folder_of(&target).join(hidden_name("object".as_ref(), COPY_SUFFIX));
    fs::create_dir(&aside).unwrap();
    PartFile::open(&target, len, PLAIN).unwrap_err();
    assert_eq!(fs::metadata(part_path(&target)).unwrap().ino(), reader.metadata().unwrap().ino());
    fs::remove_dir(&aside).unwrap();
    // Another object of the same name comes.
    let part = PartFile::open(&target, len, PLAIN).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert!(part.is_resumed());
    let mut bytes = [0; 1000];
    part.read(&mut bytes, 2 << 20).unwrap();
    assert_eq!(bytes, [7; 1000], "what is there need not come again");
    assert!(part.file().metadata().unwrap().blocks() * 512 < len / 2, "holes stay holes");
    part.write(&[8; 1000], 2 << 20).unwrap();
    reader.read_exact_at(&mut bytes, 2 << 20).unwrap();
    assert_eq!(bytes, [7; 1000], "written over under a reader");
    drop(part);
    // No process reads: no copy.
    drop(reader);
    let before = fs::metadata(part_path(&target)).unwrap().ino();
    let part = PartFile::open(&target, len, PLAIN).unwrap();
    assert_eq!(part.file().metadata().unwrap().ino(), before);
}

#[test]
fn two_receivers_do_not_write_to_one_place() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("object");
    let _first = PartFile::open(&target, 4, PLAIN).unwrap();
    assert!(matches!(PartFile::open(&target, 4, PLAIN), Err(StoreError::Busy(_))));
}

#[test]
fn an_object_larger_than_the_room_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("object");
    let error = PartFile::open(&target, 1 << 49, PLAIN).unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    // What an earlier try has left is still there for a later one.
    let part = part_path(&target);
    fs::write(&part, b"ab").unwrap();
    set_permissions(&part, 0o600);
    PartFile::open(&target, 1 << 49, PLAIN).unwrap_err();
    assert_eq!(fs::read(&part).unwrap(), b"ab");
}

#[test]
fn objects_on_their_way_are_not_promised_the_same_room() {
    let dir = tempfile::tempdir().unwrap();
    let space = rustix::fs::statvfs(dir.path()).unwrap();
    let most = space.f_bavail * space.f_frsize / 10 * 6;
    let open = |name: &str, placing| PartFile::open(&dir.path().join(name), most, placing);
    let first = open("a", PLAIN).unwrap();
    let full = open("b", PLAIN).unwrap_err();
    assert!(matches!(full, StoreError::Full { .. }), "{full}");
    assert!(is_full(&full) && !is_full(&StoreError::Busy("b".into())));
    let here = StoreError::Full { place: ".".into(), needed: 2, free: 1 };
    let folder = std::env::current_dir().unwrap();
    assert_eq!(here.to_string(), format!("{} is full: the object needs 2 B, 1 B are free", folder.display()));
    drop(first);
    drop(open("b", PLAIN).unwrap());
    // A directory needs its room once, since it is unpacked as it comes.
    drop(open("directory", Placing { unpacked: true, ..PLAIN }).unwrap());
    // Holes need none.
    let sparse = Size { len: most * 3, data_len: 4_096 };
    drop(PartFile::open_with(&dir.path().join("sparse"), sparse, PLAIN, None).unwrap());
}

#[test]
fn what_is_there_stays_unless_it_is_to_be_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("object");
    let late = PartFile::open(&target, 3, PLAIN).unwrap();
    late.write(b"new", 0).unwrap();
    fs::write(&target, b"mine").unwrap();
    let refused = late.commit(0o644, None).unwrap_err();
    assert!(matches!(refused, StoreError::Exists(_)), "{refused}");
    let refused = PartFile::open(&target, 3, PLAIN).unwrap_err().to_string();
    assert!(
        refused.ends_with(
            "object is there already: say --update to bring it up to date, or --force to replace it"
        ),
        "{refused}"
    );
    assert_eq!(fs::read(&target).unwrap(), b"mine");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "all of it is here for another try");
    // A link that leads nowhere has the name, too.
    symlink("/nowhere", dir.path().join("link")).unwrap();
    PartFile::open(&dir.path().join("link"), 3, PLAIN).unwrap_err();
    let wanted = PartFile::open(&target, 3, REPLACING).unwrap();
    wanted.write(b"new", 0).unwrap();
    wanted.commit(0o644, None).unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"new");
}

#[test]
fn a_part_file_that_was_planted_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, b"precious").unwrap();
    set_permissions(&victim, 0o600);
    let target = dir.path().join("object");
    let part = part_path(&target);
    let refused = |plant: &dyn Fn(), why: &str| {
        plant();
        let error = PartFile::open(&target, 8, PLAIN).unwrap_err();
        assert!(matches!(&error, StoreError::Planted { .. }) && error.to_string().contains(why), "{error}");
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert!(!target.exists());
        fs::remove_file(&part).or_else(|_| fs::remove_dir(&part)).unwrap();
    };
    refused(&|| symlink(&victim, &part).unwrap(), "is a symbolic link");
    refused(&|| symlink(dir.path().join("nothing"), &part).unwrap(), "is a symbolic link");
    refused(&|| fs::hard_link(&victim, &part).unwrap(), "has another name too");
    refused(&|| fs::create_dir(&part).unwrap(), "is not a file");
    let pipe = || {
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, &part, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    };
    refused(&pipe, "is not a file");
    let shared = || {
        fs::write(&part, b"12345678").unwrap();
        set_permissions(&part, 0o666);
    };
    refused(&shared, "can be changed by other users");
}

#[test]
fn a_part_file_of_another_user_is_refused() {
    if !needs(&[Need::Root]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("object");
    let part = part_path(&target);
    fs::write(&part, b"12345678").unwrap();
    set_permissions(&part, 0o600);
    std::os::unix::fs::chown(&part, Some(12_345), None).unwrap();
    let error = PartFile::open(&target, 8, PLAIN).unwrap_err().to_string();
    assert!(error.contains("belongs to another user"), "{error}");
}

#[test]
fn permissions_come_with_the_object_and_not_before_it() {
    let dir = tempfile::tempdir().unwrap();
    for (mode, most) in [(0o640, 0o640), (0o755, 0o755), (0o600, 0o600), (0o6777, 0o777)] {
        let target = dir.path().join(format!("{mode:o}"));
        let part = PartFile::open(&target, 3, PLAIN).unwrap();
        assert_eq!(permissions(part.path()), 0o600);
        part.commit(mode, None).unwrap();
        assert_eq!(permissions(&target), most & !umask(), "{mode:o}");
    }
}

#[test]
fn a_name_may_be_as_long_as_the_file_system_takes() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["x".repeat(241), "x".repeat(255), "ä".repeat(127)];
    for name in &names {
        let target = dir.path().join(name);
        let mut part = PartFile::open(&target, 3, PLAIN).unwrap();
        part.keep_for_later();
        drop(part);
        let part = PartFile::open(&target, 3, PLAIN).unwrap();
        assert!(part.is_resumed() && is_part_name(part.path().file_name().unwrap()));
        part.commit(0o600, None).unwrap();
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), names.len());
}

#[test]
fn parts_are_removed_when_no_process_is_at_work_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("object");
    let mut part = PartFile::open(&target, 3, PLAIN).unwrap();
    let path = part.path().to_path_buf();
    let remove = |younger| remove_stale_part(&path, std::time::Duration::from_secs(younger)).unwrap();
    assert!(!remove(0), "a try writes to it");
    part.keep_for_later();
    drop(part);
    assert!(!remove(3_600), "it is young");
    assert!(remove(0));
    assert!(!remove(0), "it is gone");
}

#[test]
fn names_of_other_machines_lead_nowhere_else() {
    for name in ["a", "model.tar.gz", "ä b", "a..", &"x".repeat(255)] {
        assert_eq!(check_name(name), Ok(()), "{name}");
    }
    let long = "x".repeat(256);
    for name in ["", ".", "..", ".bashrc", "a/b", "/etc/passwd", "a\0b", "\u{1b}]0;x\u{7}", "a\nb", &long] {
        assert!(check_name(name).is_err(), "{name:?}");
    }
}

#[test]
fn what_nothing_vouches_for_becomes_a_part_again() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("object");
    let part = part_path(&target);
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(1_000_000);
    let age = |path: &Path| File::open(path).unwrap().set_modified(old).unwrap();
    fs::write(&target, b"whole").unwrap();
    set_permissions(&target, 0o666);
    age(&target);
    set_back(&target).unwrap();
    assert!(!target.exists());
    assert!(
        !remove_stale_part(&part, std::time::Duration::from_secs(500_000)).unwrap(),
        "it waits from now on"
    );
    let resumed = PartFile::open(&target, 5, PLAIN).unwrap();
    let mut bytes = [0; 5];
    resumed.read(&mut bytes, 0).unwrap();
    assert!(resumed.is_resumed() && bytes == *b"whole");
    resumed.commit(0o600, None).unwrap();
    // Of two the newer one stays.
    for (older, stays) in [(&target, b"part."), (&part, b"whole")] {
        fs::write(&target, b"whole").unwrap();
        fs::write(&part, b"part.").unwrap();
        age(older);
        set_back(&target).unwrap();
        assert!(!target.exists() && fs::read(&part).unwrap() == stays);
    }
    // Another name of it is a user's: no transfer may write there.
    fs::remove_file(&part).unwrap();
    fs::write(&target, b"whole").unwrap();
    fs::hard_link(&target, dir.path().join("kept")).unwrap();
    set_back(&target).unwrap();
    assert!(!target.exists() && !part.exists() && dir.path().join("kept").exists());
    fs::write(&target, b"").unwrap();
    set_back(&target).unwrap();
    assert!(!target.exists() && !part.exists(), "nothing is left of nothing");
    assert!(set_back(&target).is_err());
}

#[test]
fn a_copy_leaves_holes() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let file = File::create_new(&from).unwrap();
    file.set_len(40 << 20).unwrap();
    file.write_all_at(&[7; 5_000], 10 << 20).unwrap();
    file.write_all_at(&[8; 3], (40 << 20) - 3).unwrap();
    let copy = File::create_new(&to).unwrap();
    copy_sparse(&File::open(&from).unwrap(), &copy).unwrap();
    assert!(fs::read(&to).unwrap() == fs::read(&from).unwrap());
    assert!(
        copy.metadata().unwrap().blocks() * 512 < 4 << 20,
        "it has {} blocks",
        copy.metadata().unwrap().blocks()
    );
    // One that is shorter meanwhile is an error, and no shorter copy.
    let grown = File::create_new(dir.path().join("grown")).unwrap();
    let source = File::open("/proc/self/status").unwrap();
    assert!(
        copy_sparse(&source, &grown).is_ok() && grown.metadata().unwrap().len() == 0,
        "as long as it says it is"
    );
}

/// More room is made once where there is too little for an object, and what is made counts.
#[test]
fn more_room_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counts = Arc::clone(&asked);
    let more = MoreRoom::by(move || counts.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 0);
    let open =
        |len: u64| PartFile::open_with(&dir.path().join("object"), len.into(), PLAIN, Some(more.clone()));
    for times in 1..=2 {
        assert!(matches!(open(u64::MAX / 2).unwrap_err(), StoreError::Full { .. }));
        assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), times);
    }
    open(10).unwrap().write(b"0123456789", 0).unwrap();
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 2, "there was room");
}
