//! Drives cores over a hostile modelled network, one run for each seed.
//!
//! Each run draws ranks, limits, lanes, groups, programs and at most one fault from its seed, and
//! checks: every operation ends with the right result or with an error that names the culprit, on
//! every rank, before its deadline; groups that the fault does not touch know nothing of it; the
//! survivors can make a new group; nothing is left over; no bound is passed.
//!
//! `GRADWIRE_SEEDS=n` runs so many seeds; `GRADWIRE_SEED=n` runs that one alone and shows all that
//! happens.

mod delivery;
mod faults;
mod judge;
mod network;
mod rank;
mod request;
mod scenario;
mod simulation;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use scenario::Scenario;
use simulation::Simulation;

/// Seeds of a test run where nothing else is said.
const SEEDS: u64 = 3000;

/// Failing seeds that are shown.
const SHOWN: usize = 12;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is '{text}', must be a number")))
}

fn run(seed: u64, tracing: bool) -> u64 {
    Simulation::new(Scenario::new(seed), tracing).run()
}

/// Why a seed fails, if it does.
fn failure_of(seed: u64) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(|| run(seed, false))).err()?;
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words");
    Some(format!(
        "seed {seed}: {text}\n    replay it with GRADWIRE_SEED={seed} \
         cargo test -p gradwire-core --test adversary -- --nocapture right_or"
    ))
}

#[test]
fn right_or_an_error_that_names_the_culprit() {
    if let Some(seed) = number("GRADWIRE_SEED") {
        run(seed, true);
        return;
    }
    let seeds = number("GRADWIRE_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    if let Some(failure) = failure_of(seed) {
                        eprintln!("{failure}");
                        failures.lock().expect("no one panics with it").push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no one panicked with it");
    assert!(
        failures.is_empty(),
        "{} of {seeds} seeds fail:\n{}",
        failures.len(),
        failures[..failures.len().min(SHOWN)].join("\n")
    );
}

#[test]
fn a_seed_replays_to_the_same_events() {
    let mut digests: Vec<u64> = (0..40).map(|seed| run(seed, false)).collect();
    for (seed, digest) in digests.iter().enumerate() {
        assert_eq!(run(seed as u64, false), *digest, "seed {seed} is not the same twice");
    }
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), 40, "different seeds are different runs");
}
