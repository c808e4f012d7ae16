//! Jobs on several threads whose results do not depend on how many there are.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns the results of `job` for 0 to below `count`, in this order, computed on `threads` threads.
pub(crate) fn each<T: Send>(count: usize, threads: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        break;
                    }
                    let result = job(at);
                    done.lock().expect("no job has panicked").push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no job has panicked");
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_are_in_order_on_any_number_of_threads() {
        for threads in [0, 1, 2, 7, 100] {
            assert_eq!(super::each(20, threads, |at| at * at), (0..20).map(|at| at * at).collect::<Vec<_>>());
        }
        assert!(super::each(0, 4, |at| at).is_empty());
    }
}
