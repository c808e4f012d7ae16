//! Objects arrive on file systems that lack something, and as those of other programs do where a folder has
//! rules of its own.

use super::lacking::{OPEN, without};
use super::mounts::{bind, make_read_only, mount_memory, mount_uncounted, with_mounts};
use super::*;
use crate::archive::{self, TreeSource, is_free, unpack};
use crate::object::ObjectSource;
use crate::store::{PartFile, Placing, StoreError, check_target, follow, part_path, sync_folder};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};

/// Errors with which a call reports that the file system has no such thing.
const WORDS: [Errno; 5] = [Errno::PERM, Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL, Errno::ROFS];
const TIME: ModificationTime = ModificationTime { seconds: 981_158_400, nanos: 5 };
const PLAIN: Placing = Placing { replace: false, unpacked: false };
const UNPACKED: Placing = Placing { replace: false, unpacked: true };

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Bytes that end with a hole.
fn contents() -> Vec<u8> {
    [vec![7; 100_000], vec![0; 200_000]].concat()
}

/// A directory with a file of two names, a link, and a folder that is read-only, as a stream.
fn stream(place: &Path) -> Vec<u8> {
    let from = place.join("from");
    fs::create_dir_all(from.join("sub/deep")).unwrap();
    fs::write(from.join("sub/file"), contents()).unwrap();
    set(&from.join("sub/file"), 0o666);
    fs::hard_link(from.join("sub/file"), from.join("twin")).unwrap();
    symlink("sub/file", from.join("link")).unwrap();
    set(&from.join("sub/deep"), 0o777);
    set(&from.join("sub"), 0o555);
    set(&from, 0o777);
    let tree = TreeSource::open(&from).unwrap();
    let mut bytes = vec![0; tree.len() as usize];
    tree.read_exact_at(&mut bytes, 0).unwrap();
    set(&from.join("sub"), 0o755);
    fs::remove_dir_all(&from).unwrap();
    bytes
}

/// Removes a tree with folders that are read-only.
fn remove(path: &Path) {
    set(&path.join("sub"), 0o755);
    fs::remove_dir_all(path).unwrap();
}

#[test]
fn only_a_lock_that_another_process_has_is_busy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let file = File::create_new(&path).unwrap();
    for errno in [Errno::NOSYS, Errno::OPNOTSUPP, Errno::NOLCK, Errno::INVAL, Errno::BADF] {
        let Some(locked) = without(&[(libc::SYS_flock, errno)], || lock(&file, &path)) else { return };
        assert_eq!(locked, Lock::Lacking, "{errno}");
    }
    assert_eq!(lock(&file, &path), Lock::Held);
    assert_eq!(lock(&File::open(&path).unwrap(), &path), Lock::Busy);
    // As a process has it that was just begun; closing the file alone frees nothing.
    let copied = file.try_clone().unwrap();
    unlock(&file);
    drop(file);
    assert_eq!(lock(&File::open(&path).unwrap(), &path), Lock::Held);
    drop(copied);
}

#[test]
fn what_is_lacking_is_said_once_for_each_file_system() {
    assert!(is_news(u64::MAX, Lack::Locks));
    assert!(is_news(u64::MAX, Lack::Times));
    assert!(is_news(u64::MAX - 1, Lack::Locks));
    assert!(!is_news(u64::MAX, Lack::Locks));
}

/// All that a file system may lack, said in each way: the object arrives, and a try that was ended is taken
/// up again.
#[test]
fn a_file_arrives_whatever_its_file_system_lacks() {
    for errno in WORDS {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("object");
        let lacks = [
            (libc::SYS_flock, Errno::NOSYS),
            (libc::SYS_fchmod, errno),
            (libc::SYS_utimensat, errno),
            (libc::SYS_renameat2, Errno::INVAL),
            (libc::SYS_fallocate, Errno::OPNOTSUPP),
            (libc::SYS_ftruncate, errno),
        ];
        let arrived = without(&lacks, || {
            let mut part = PartFile::open(&target, 200_000, PLAIN).unwrap();
            part.write(&[7; 100_000], 0).unwrap();
            part.keep_for_later();
            drop(part);
            let part = PartFile::open(&target, 200_000, PLAIN).unwrap();
            assert!(part.is_resumed());
            part.write(&[0; 100_000], 100_000).unwrap();
            part.commit(0o640, Some(TIME)).unwrap();
            follow(&target, 0o600, Some(TIME)).unwrap();
        });
        let Some(()) = arrived else { return };
        assert!(fs::read(&target).unwrap() == [vec![7; 100_000], vec![0; 100_000]].concat());
        assert_eq!(names(folder.path()), ["object"], "{errno}");
        // The name is taken: nothing is lost of what is there.
        let again = without(&lacks, || PartFile::open(&target, 3, PLAIN).map(drop)).unwrap();
        assert!(matches!(again, Err(StoreError::Exists(_))), "{again:?}");
    }
}

#[test]
fn a_directory_arrives_whatever_its_file_system_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, target) = (stream(folder.path()), folder.path().join("to"));
    for errno in WORDS {
        let lacks = [
            (libc::SYS_flock, Errno::NOSYS),
            (libc::SYS_fchmod, errno),
            (libc::SYS_utimensat, errno),
            (libc::SYS_linkat, Errno::PERM),
            (libc::SYS_copy_file_range, Errno::XDEV),
            (libc::SYS_ftruncate, errno),
            (libc::SYS_renameat2, Errno::INVAL),
        ];
        // The second time what is there is replaced, which is done in one step where the file system can.
        for replace in [false, true] {
            let unpacked = without(&lacks, || unpack(bytes.as_slice(), &target, replace));
            let Some(unpacked) = unpacked else { return };
            assert_eq!(unpacked.unwrap().files, 2, "{errno}");
            assert!(fs::read(target.join("twin")).unwrap() == contents());
            assert_eq!(fs::read_link(target.join("link")).unwrap(), Path::new("sub/file"));
        }
        assert_eq!(names(folder.path()), ["to"], "{errno}");
        remove(&target);
    }
    let lacks = [(libc::SYS_symlinkat, Errno::PERM)];
    let error = without(&lacks, || unpack(bytes.as_slice(), &target, false)).unwrap().unwrap_err();
    let said = error.to_string();
    assert!(said.contains("to/link") && said.contains("has no symbolic links"), "{said}");
    // What the file system never takes need not wait for another try; what it has no room for does.
    assert!(!error.may_pass());
    for errno in [Errno::NOSPC, Errno::DQUOT, Errno::ACCESS, Errno::BUSY] {
        let lacks = [(libc::SYS_mkdirat, errno)];
        let error = without(&lacks, || unpack(bytes.as_slice(), &target, false)).unwrap().unwrap_err();
        assert!(error.may_pass(), "{error}");
    }
    assert_eq!(names(folder.path()).len(), 0);
}

#[test]
fn a_folder_that_cannot_be_synced_is_done_without() {
    let folder = tempfile::tempdir().unwrap();
    for (errno, is_lacking) in [(Errno::INVAL, true), (Errno::OPNOTSUPP, true), (Errno::IO, false)] {
        let synced = without(&[(libc::SYS_fsync, errno)], || sync_folder(folder.path()).is_ok());
        let Some(synced) = synced else { return };
        assert_eq!(synced, is_lacking, "{errno}");
    }
}

/// A disk that fails is not taken for one that lacks something.
#[test]
fn errors_of_the_disk_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("object");
    for call in [libc::SYS_fchmod, libc::SYS_utimensat, libc::SYS_renameat2] {
        let failed = without(&[(call, Errno::IO)], || {
            let part = PartFile::open(&target, 5, PLAIN).unwrap();
            part.write(b"whole", 0).unwrap();
            part.commit(0o666, Some(TIME)).unwrap_err().to_string()
        });
        let Some(said) = failed else { return };
        assert!(said.contains("object") && said.contains("Input/output error"), "{said}");
        // All of it has come: the next try needs no byte, and the part is no other user's meanwhile.
        assert_eq!(mode(&part_path(&target)), 0o600);
        let mut part = PartFile::open(&target, 5, PLAIN).unwrap();
        let mut bytes = [0; 5];
        part.read(&mut bytes, 0).unwrap();
        assert!(part.is_resumed() && bytes == *b"whole");
        part.discard();
    }
    assert_eq!(names(folder.path()).len(), 0);
}

#[test]
fn what_is_refused_leaves_nothing_and_is_said_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a:b");
    for (call, errno, says) in [
        (libc::SYS_ftruncate, Errno::FBIG, "takes no file as long as that"),
        (libc::SYS_ftruncate, Errno::DQUOT, "quota"),
        (OPEN, Errno::INVAL, "takes no such name"),
        (OPEN, Errno::NOENT, "takes no such name"),
        (OPEN, Errno::ILSEQ, "takes no such name"),
        (OPEN, Errno::NAMETOOLONG, "longer than its file system takes"),
    ] {
        let said =
            without(&[(call, errno)], || PartFile::open(&target, 9_000, PLAIN).unwrap_err().to_string());
        let Some(said) = said else { return };
        assert!(said.contains("a:b") && said.contains(says), "{said}");
        assert_eq!(names(folder.path()).len(), 0, "{said}");
    }
    let said = explained(io::Error::from_raw_os_error(5), folder.path()).to_string();
    assert!(said.starts_with("Input/output error"), "{said}");
    let full = explained(Errno::NOSPC.into(), folder.path());
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn whose_a_file_is_counts_as_far_as_the_file_system_tells() {
    let shown = |user, mode| Shown { user, mode };
    let private = shown(1000, 0o600);
    for (there, new, why) in [
        (shown(1000, 0o600), private, Ok(())),
        (shown(1000, 0o644), private, Ok(())),
        (shown(1001, 0o600), private, Err("belongs to another user")),
        (shown(0, 0o600), private, Err("belongs to another user")),
        (shown(1000, 0o666), private, Err("can be changed by other users")),
        (shown(1000, 0o620), private, Err("can be changed by other users")),
        // A share that shows all files as one user's, and as open to all.
        (shown(0, 0o777), shown(0, 0o777), Ok(())),
        (shown(1000, 0o777), shown(0, 0o777), Err("belongs to another user")),
        // One that keeps permissions for the group only.
        (shown(0, 0o664), shown(0, 0o660), Ok(())),
        (shown(0, 0o666), shown(0, 0o660), Err("can be changed by other users")),
    ] {
        assert_eq!(there.check_own(new), why, "{there:?} beside {new:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let new = Shown::of_new(&folder.path().join("object")).unwrap();
    assert_eq!(new, Shown { user: rustix::process::geteuid().as_raw(), mode: 0o600 & !umask() });
    assert_eq!(names(folder.path()).len(), 0);
}

/// An access list, as the kernel takes it: tags, permissions and users.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, user) in entries {
        list.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        list.extend(user.to_le_bytes());
    }
    list
}

const NO_USER: u32 = u32::MAX;

/// Access lists of folders: each shuts something, two let a user in that is none of the three.
fn lists() -> Vec<Vec<u8>> {
    let all = |owner, group, others| vec![(1, owner, NO_USER), (4, group, NO_USER), (32, others, NO_USER)];
    let named = |owner, user, group, mask, others| {
        vec![
            (1, owner, NO_USER),
            (2, user, 77),
            (4, group, NO_USER),
            (16, mask, NO_USER),
            (32, others, NO_USER),
        ]
    };
    [all(7, 5, 0), all(7, 7, 7), all(6, 0, 0), named(7, 7, 5, 7, 0), named(7, 6, 5, 5, 4)]
        .map(|entries| list(&entries))
        .to_vec()
}

#[test]
fn an_access_list_says_the_most() {
    let lists = lists();
    let most: Vec<_> = lists.iter().map(|list| permissions_of_list(list)).collect();
    assert_eq!(most, [Some(0o750), Some(0o777), Some(0o600), Some(0o770), Some(0o754)]);
    for damaged in [&[][..], &[2, 0, 0, 0], &lists[0][..20], &[&[3][..], &lists[0][1..]].concat()] {
        assert_eq!(permissions_of_list(damaged), None, "{damaged:?}");
    }
}

/// Returns the permissions that the kernel gives a file and a folder that are made here with the permissions
/// `wanted`.
fn made_by_the_kernel(folder: &Path, wanted: u32) -> [u32; 2] {
    let (file, inner) = (folder.join("kernel-file"), folder.join("kernel-folder"));
    fs::OpenOptions::new().write(true).create_new(true).mode(wanted).open(&file).unwrap();
    fs::DirBuilder::new().mode(wanted).create(&inner).unwrap();
    let modes = [mode(&file), mode(&inner)];
    fs::remove_file(file).unwrap();
    fs::remove_dir(inner).unwrap();
    modes
}

#[test]
fn what_arrives_has_the_permissions_that_the_kernel_gives() {
    let place = tempfile::tempdir().unwrap();
    let bytes = stream(place.path());
    let folder = place.path().join("shared");
    for rules in std::iter::once(None).chain(lists().into_iter().map(Some)) {
        fs::create_dir(&folder).unwrap();
        set(&folder, 0o2755);
        if let Some(list) = &rules
            && rustix::fs::setxattr(&folder, DEFAULT_LIST, list, rustix::fs::XattrFlags::empty()).is_err()
        {
            return polycast_testing::skip("the file system has no access lists");
        }
        for wanted in [0o666, 0o600, 0o777, 0o640] {
            let target = folder.join("object");
            let part = PartFile::open(&target, 3, PLAIN).unwrap();
            assert_eq!(mode(part.path()) & 0o077, 0, "a part is this user's alone");
            part.commit(wanted as u16, None).unwrap();
            assert_eq!(mode(&target), made_by_the_kernel(&folder, wanted)[0], "{wanted:o} {rules:?}");
            fs::remove_file(target).unwrap();
        }
        let target = folder.join("tree");
        unpack(bytes.as_slice(), &target, false).unwrap();
        let [file, inner] = [made_by_the_kernel(&folder, 0o666)[0], made_by_the_kernel(&folder, 0o777)[1]];
        assert_eq!(mode(&target), inner, "{rules:?}");
        assert_eq!(inner & SET_GROUP, SET_GROUP, "what is made in a shared folder is shared");
        assert_eq!(mode(&target.join("sub/deep")), inner, "{rules:?}");
        assert_eq!(mode(&target.join("sub/file")), file, "{rules:?}");
        let closed = made_by_the_kernel(&folder, 0o555)[1];
        assert_eq!(mode(&target.join("sub")), closed, "{rules:?}");
        remove(&target);
        fs::remove_dir(&folder).unwrap();
    }
}

#[test]
fn a_file_keeps_its_time() {
    let folder = tempfile::tempdir().unwrap();
    for time in [TIME, ModificationTime { seconds: -2, nanos: 999_999_999 }] {
        let target = folder.path().join("object");
        let part = PartFile::open(&target, 3, PLAIN).unwrap();
        part.write(b"old", 0).unwrap();
        part.commit(0o600, Some(time)).unwrap();
        assert_eq!(time_of(&fs::metadata(&target).unwrap()), time);
        follow(&target, 0o640, Some(TIME)).unwrap();
        assert_eq!(time_of(&fs::metadata(&target).unwrap()), TIME);
        assert_eq!(mode(&target), 0o640 & !umask());
        fs::remove_file(target).unwrap();
    }
}

/// A volume is mounted where the object is to be: it stays, and gets what is in the object.
#[test]
fn a_directory_arrives_at_a_mount_point() {
    let place = tempfile::tempdir().unwrap();
    let bytes = stream(place.path());
    let arrived = with_mounts(|| {
        let volume = place.path().join("volume");
        fs::create_dir(&volume).unwrap();
        mount_memory(&volume, "mode=750");
        fs::create_dir(volume.join("lost+found")).unwrap();
        assert!(is_mounted(&volume) && is_free(&volume).unwrap());
        // What was begun waits in the volume, also where nothing can be written beside it.
        bind(place.path(), place.path());
        make_read_only(place.path());
        bind_again(&place.path().join("volume"));
        let mut part = PartFile::open(&volume, 100, UNPACKED).unwrap();
        assert_eq!(part.path().parent(), Some(volume.as_path()));
        part.keep_for_later();
        archive::check_target(&volume, false).unwrap();
        unpack(bytes.as_slice(), &volume, false).unwrap();
        drop(part);
        PartFile::open(&volume, 100, UNPACKED).unwrap().discard();
        assert_eq!(names(&volume), ["link", "lost+found", "sub", "twin"]);
        assert_eq!((mode(&volume), mode(&volume.join("sub"))), (0o750, 0o555 & !umask()));
        assert!(fs::read(volume.join("sub/file")).unwrap() == contents());
        // What is there stays, unless it is to be replaced; then all of it goes.
        fs::write(volume.join("mine"), b"mine").unwrap();
        let refused = unpack(bytes.as_slice(), &volume, false).unwrap_err();
        assert!(matches!(refused, archive::ArchiveError::TargetExists { .. }), "{refused}");
        assert_eq!(names(&volume), ["link", "lost+found", "mine", "sub", "twin"]);
        unpack(bytes.as_slice(), &volume, true).unwrap();
        assert_eq!(names(&volume), ["link", "lost+found", "sub", "twin"]);
        // Where one of the old things cannot go, all are where they were.
        fs::remove_file(volume.join("twin")).unwrap();
        fs::write(volume.join("zzz"), b"mine").unwrap();
        bind(&volume.join("zzz"), &volume.join("zzz"));
        let said = unpack(bytes.as_slice(), &volume, true).unwrap_err().to_string();
        assert!(said.contains("mounted"), "{said}");
        assert_eq!(names(&volume), ["link", "lost+found", "sub", "zzz"]);
    });
    assert!(
        arrived.is_none_or(|()| names(&place.path().join("volume")).is_empty()),
        "it was mounted elsewhere"
    );
}

/// Mounts what was mounted below a folder at its place again, since a folder that is bound shows what lies
/// under it.
fn bind_again(volume: &Path) {
    mount_memory(volume, "mode=750");
    fs::create_dir(volume.join("lost+found")).unwrap();
}

#[test]
fn a_file_that_is_mounted_by_itself_is_refused_at_once() {
    let place = tempfile::tempdir().unwrap();
    let target = place.path().join("file");
    fs::write(&target, b"mine").unwrap();
    let said = with_mounts(|| {
        bind(&target, &target);
        let said = [
            check_target(&target, true).unwrap_err().to_string(),
            PartFile::open(&target, 3, Placing { replace: true, ..PLAIN }).unwrap_err().to_string(),
            archive::check_target(&target, true).unwrap_err().to_string(),
        ];
        assert_eq!(names(place.path()), ["file"]);
        said
    });
    for said in said.into_iter().flatten() {
        assert!(said.contains("mounted there by itself"), "{said}");
    }
}

#[test]
fn a_file_system_that_counts_no_bytes_is_not_full() {
    let place = tempfile::tempdir().unwrap();
    let arrived = with_mounts(|| {
        mount_uncounted(place.path());
        let target = place.path().join("object");
        PartFile::open(&target, 5, PLAIN).unwrap().commit(0o600, None).unwrap();
        fs::metadata(target).unwrap().len()
    });
    assert!(arrived.is_none_or(|len| len == 5));
}

#[test]
fn a_file_system_without_inodes_says_so() {
    let outside = tempfile::tempdir().unwrap();
    let (bytes, place) = (stream(outside.path()), outside.path().join("place"));
    fs::create_dir(&place).unwrap();
    let said = with_mounts(|| {
        mount_memory(&place, "size=50m,nr_inodes=6");
        for number in 0.. {
            if File::create_new(place.join(number.to_string())).is_err() {
                break;
            }
        }
        let file = PartFile::open(&place.join("object"), 3, PLAIN).unwrap_err().to_string();
        fs::remove_file(place.join("0")).unwrap();
        [file, unpack(bytes.as_slice(), &place.join("tree"), false).unwrap_err().to_string()]
    });
    for said in said.into_iter().flatten() {
        assert!(said.contains("no inodes"), "{said}");
    }
}
