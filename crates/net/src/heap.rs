//! Behaviour of a daemon's memory allocator over months: what was freed is to be used again, or given back.

/// Number of separate heaps that a daemon's threads share.
#[cfg(target_env = "gnu")]
const HEAPS: libc::c_int = 2;

/// Lets all threads of the process share a few heaps. Called before there are threads.
///
/// The C library gives up to eight heaps a core to threads as they come, and each keeps what its busiest
/// moment took. A daemon that begins several threads for every transfer spreads what it allocates over all of
/// them in time: its memory would grow over thousands of transfers though nothing of them is left. A daemon
/// allocates little while packets flow, so that its threads hardly meet in the same heap.
pub fn share_heaps() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it sets a number of the allocator under the allocator's own lock.
        #[allow(unsafe_code)]
        let accepted = unsafe { libc::mallopt(libc::M_ARENA_MAX, HEAPS) };
        if accepted == 0 {
            tracing::info!("the memory allocator keeps its own number of heaps");
        }
    }
}

#[cfg(all(test, target_env = "gnu", target_pointer_width = "64"))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::process::Command;
    use std::sync::Barrier;

    const ALONE: &str = "POLYCAST_TEST_ALONE";
    /// Heaps of threads begin at multiples of this.
    const HEAP_STEP: u64 = 64 << 20;

    /// Counts the heaps of threads beside the process's first one, by the addresses of what threads allocate
    /// at the same time.
    fn heaps_of_threads() -> usize {
        let together = Barrier::new(32);
        let at = || {
            let kept = vec![1u8; 3_000];
            together.wait();
            kept.as_ptr() as u64 / HEAP_STEP
        };
        let own = vec![1u8; 3_000];
        let first = own.as_ptr() as u64 / HEAP_STEP;
        let heaps: BTreeSet<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..32).map(|_| scope.spawn(at)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        heaps.iter().filter(|heap| **heap != first).count()
    }

    /// In a process of its own: the setting holds for all threads that come after it.
    #[test]
    fn threads_share_a_few_heaps() {
        if std::env::var_os(ALONE).is_some() {
            share_heaps();
            let heaps = heaps_of_threads();
            assert!(heaps <= HEAPS as usize, "{heaps} heaps");
            return;
        }
        let test = ["--exact", "heap::tests::threads_share_a_few_heaps"];
        let ran = Command::new(std::env::current_exe().unwrap()).args(test).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }
}
