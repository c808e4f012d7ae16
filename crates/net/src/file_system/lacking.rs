//! A part of a test for which the system lacks calls, as file systems do: they fail with the error that is
//! named.

use rustix::io::Errno;

/// The call by which files are opened that are not in a folder that is open.
#[cfg(target_arch = "x86_64")]
pub(crate) const OPEN: libc::c_long = libc::SYS_open;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const OPEN: libc::c_long = libc::SYS_openat;

/// Runs a part of a test in which each of these system calls fails so. It runs on a thread of its own, since
/// a filter of the kernel stays with its thread. Nothing where the kernel takes no filters: the test is noted
/// as skipped.
pub(crate) fn without<T: Send>(
    calls: &[(libc::c_long, Errno)],
    test: impl FnOnce() -> T + Send,
) -> Option<T> {
    let outcome = std::thread::scope(|scope| {
        let within = || filter(calls).then(test);
        scope.spawn(within).join()
    });
    let outcome = outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    if outcome.is_none() {
        polycast_testing::skip("the kernel takes no filter of system calls");
    }
    outcome
}

/// Has the kernel refuse these calls to this thread from now on.
fn filter(calls: &[(libc::c_long, Errno)]) -> bool {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // The call's number comes first.
    let mut program = vec![step(LOAD, 0, 0, 0)];
    for (call, errno) in calls {
        program.push(step(IS, 0, 1, u32::try_from(*call).expect("a system call has a number")));
        program.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno.raw_os_error().cast_unsigned()));
    }
    program.push(step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    let len = u16::try_from(program.len()).expect("a filter of a test is short");
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    let (yes, no) = (libc::c_ulong::from(1u8), libc::c_ulong::from(0u8));
    // SAFETY: it takes numbers only, and changes this thread alone.
    #[allow(unsafe_code)]
    let bound = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, yes, no, no, no) };
    let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: the kernel reads the program, which lives longer than the call, and keeps a copy of its own.
    #[allow(unsafe_code)]
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program, no, no) };
    bound == 0 && set == 0
}
