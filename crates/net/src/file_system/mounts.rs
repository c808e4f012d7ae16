//! A part of a test that mounts file systems where no other process sees them.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// Runs a part of a test on a thread with mounts of its own, which end with it. Nothing where that cannot be
/// done: the test is noted as skipped.
pub(crate) fn with_mounts<T: Send>(test: impl FnOnce() -> T + Send) -> Option<T> {
    use polycast_testing::Need;
    if !polycast_testing::needs(&[Need::Root, Need::Namespaces]) {
        return None;
    }
    let within = || {
        // SAFETY: it takes a number, and changes this thread alone.
        #[allow(unsafe_code)]
        let left = unsafe { libc::unshare(libc::CLONE_NEWNS) };
        assert_eq!(left, 0, "root can make namespaces: {}", std::io::Error::last_os_error());
        mount("none", Path::new("/"), "", libc::MS_REC | libc::MS_PRIVATE, "");
        test()
    };
    let outcome = std::thread::scope(|scope| scope.spawn(within).join());
    Some(outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// A file system in memory at this folder, with these options.
pub(crate) fn mount_memory(at: &Path, options: &str) {
    mount("tmpfs", at, "tmpfs", 0, options);
}

/// One that does not say how much fits on it.
pub(crate) fn mount_uncounted(at: &Path) {
    mount("ramfs", at, "ramfs", 0, "");
}

/// Mounts what is at one path at another one too.
pub(crate) fn bind(from: &Path, at: &Path) {
    mount(from.to_str().expect("paths of tests are plain"), at, "", libc::MS_BIND, "");
}

/// Makes what is mounted at a path refuse writes from now on.
pub(crate) fn make_read_only(at: &Path) {
    mount("none", at, "", libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY, "");
}

fn mount(from: &str, at: &Path, kind: &str, flags: libc::c_ulong, options: &str) {
    let text = |text: &[u8]| CString::new(text).expect("it has no zeros");
    let (from, at, kind, options) = (
        text(from.as_bytes()),
        text(at.as_os_str().as_bytes()),
        text(kind.as_bytes()),
        text(options.as_bytes()),
    );
    let kind_at = if kind.is_empty() { ptr::null() } else { kind.as_ptr() };
    // SAFETY: the texts end with a zero and live longer than the call, which reads them only.
    #[allow(unsafe_code)]
    let done = unsafe { libc::mount(from.as_ptr(), at.as_ptr(), kind_at, flags, options.as_ptr().cast()) };
    assert_eq!(done, 0, "mount {at:?}: {}", std::io::Error::last_os_error());
}
