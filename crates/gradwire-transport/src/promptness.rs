//! How soon a thread runs after something woke it.

use std::io;

/// The kernel's smallest slice.
const SLICE_NANOSECONDS: u64 = 100_000;

/// Asks the scheduler for short turns of the calling thread: it runs no longer in all, but sooner
/// after each wake-up, also where computations keep all cores busy. For threads that have little to
/// do and wires that wait for it. (Earliest eligible virtual deadline first, Stoica and Abdel-Wahab
/// 1995; Linux takes the slice from `sched_setattr` since 6.12 and ignores it before.)
///
/// # Errors
/// What the system says when it refuses, as sandboxes may.
pub fn prefer_short_turns() -> io::Result<()> {
    // SAFETY: an all-zero sched_attr is valid: the usual policy, no flags, nice 0.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    attributes.size = size_of::<libc::sched_attr>() as u32;
    attributes.sched_policy = libc::SCHED_OTHER as u32;
    attributes.sched_nice = nice();
    attributes.sched_runtime = SLICE_NANOSECONDS;
    // SAFETY: the structure is as long as it says and only read; 0 is the calling thread.
    let status = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The calling thread's niceness, which stays what it is.
fn nice() -> i32 {
    // SAFETY: takes no memory; 0 is the calling thread on Linux.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_ask_for_short_turns_and_stays_as_nice() {
        std::thread::spawn(|| {
            let before = nice();
            prefer_short_turns().unwrap();
            assert_eq!(nice(), before);
        })
        .join()
        .unwrap();
    }
}
