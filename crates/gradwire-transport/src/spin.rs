//! How long to look before sleeping.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Time after which spinning gives way to sleep, at most.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// Yields after which yielding gives way to sleep, at most.
const YIELDS: u32 = 200;
/// Processor hints between two looks.
const HINTS_PER_STEP: u32 = 8;
/// Steps between two looks at the clock.
const STEPS_PER_CLOCK: u32 = 8;
/// A run of long waits divides the limits by up to two to this power.
const MAX_IMPATIENCE: u32 = 4;

/// Cores that this process may use. Asking the system reads half a dozen files.
static CORES: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinStep {
    /// Look for work once more.
    Continue,
    /// Sleep in the poller.
    Sleep,
}

/// Decides between looking for work once more and sleeping.
///
/// Where each rank has a core to itself, it spins with processor hints; where ranks outnumber
/// cores, it yields the core between looks, to the rank that is being waited for. Both end after a
/// bounded time, and sooner after a run of waits that were long anyway.
#[derive(Debug)]
pub struct Spin {
    yields: bool,
    steps: u32,
    started: Option<Instant>,
    /// Whether this wait has come to sleeping.
    slept: bool,
    impatience: u32,
}

impl Spin {
    /// A policy for a process that shares this machine's cores with `local_ranks` ranks, itself
    /// among them.
    pub fn new(local_ranks: usize) -> Spin {
        Spin { yields: local_ranks > *CORES, steps: 0, started: None, slept: false, impatience: 0 }
    }

    /// To be called when a look has found no work.
    pub fn step(&mut self) -> SpinStep {
        let started = *self.started.get_or_insert_with(Instant::now);
        self.slept = self.slept || self.is_over(started);
        if self.slept {
            return SpinStep::Sleep;
        }
        self.steps += 1;
        if self.yields {
            rustix::thread::sched_yield();
        } else {
            (0..HINTS_PER_STEP).for_each(|_| std::hint::spin_loop());
        }
        SpinStep::Continue
    }

    fn is_over(&self, started: Instant) -> bool {
        if self.yields {
            return self.steps >= YIELDS >> self.impatience;
        }
        self.steps % STEPS_PER_CLOCK == STEPS_PER_CLOCK - 1
            && started.elapsed() >= SPIN_TIME / (1 << self.impatience)
    }

    /// To be called when a look has found work.
    pub fn progress(&mut self) {
        let Some(started) = self.started.take() else { return };
        let long = self.slept && started.elapsed() >= SPIN_TIME;
        self.impatience = if long { (self.impatience + 1).min(MAX_IMPATIENCE) } else { 0 };
        self.slept = false;
        self.steps = 0;
    }
}
