//! What to do when a rank ends, a limit passes or the user wants out. No processes here: events
//! in, orders out.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How a rank's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankStatus {
    /// It exited with this status.
    Exited(i32),
    /// This signal ended it.
    Signaled(i32),
}

impl RankStatus {
    /// Whether it exited with status 0.
    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }
}

impl fmt::Display for RankStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(out, "exited with status {status}"),
            Self::Signaled(signal) => match signal_name(*signal) {
                Some(name) => write!(out, "was ended by {name}"),
                None => write!(out, "was ended by signal {signal}"),
            },
        }
    }
}

fn signal_name(number: i32) -> Option<&'static str> {
    Some(match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return None,
    })
}

/// A rank that ended otherwise than with status 0, by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFailure {
    /// The rank.
    pub rank: usize,
    /// Its host.
    pub host: usize,
    /// How it ended.
    pub status: RankStatus,
}

impl fmt::Display for RankFailure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "rank {} on host {} {}", self.rank, self.host, self.status)
    }
}

/// Why a run came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// All ranks ended by themselves.
    AllEnded,
    /// A rank failed, so the others were terminated.
    RankFailed,
    /// The caller wanted it to stop.
    Stopped,
    /// The time limit passed.
    TimedOut,
    /// Nobody reads the output any more.
    OutputClosed,
}

/// What the supervisor has to do to its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Nothing,
    Terminate(Vec<usize>),
    Kill(Vec<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Terminating { kill_at: Instant },
    Killed,
}

/// The state of a run.
#[derive(Debug)]
pub(crate) struct Supervision {
    ranks_per_host: usize,
    keep_going: bool,
    grace: Duration,
    time_limit: Option<Instant>,
    phase: Phase,
    running: BTreeSet<usize>,
    ending: Ending,
    unfinished: Vec<usize>,
    failures: Vec<RankFailure>,
}

impl Supervision {
    pub(crate) fn new(
        ranks: usize,
        ranks_per_host: usize,
        keep_going: bool,
        grace: Duration,
        time_limit: Option<Instant>,
    ) -> Self {
        Self {
            ranks_per_host,
            keep_going,
            grace,
            time_limit,
            phase: Phase::Running,
            running: (0..ranks).collect(),
            ending: Ending::AllEnded,
            unfinished: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// A rank ended: the failure, if it is one that the user should hear of, and what to do.
    pub(crate) fn ended(
        &mut self,
        rank: usize,
        status: RankStatus,
        now: Instant,
    ) -> (Option<RankFailure>, Order) {
        self.running.remove(&rank);
        if status.is_success() || self.phase != Phase::Running {
            return (None, Order::Nothing);
        }
        let failure = RankFailure { rank, host: rank / self.ranks_per_host, status };
        self.failures.push(failure);
        let order =
            if self.keep_going { Order::Nothing } else { self.stop(Ending::RankFailed, now) };
        (Some(failure), order)
    }

    /// Ends the run for a reason: gently the first time, at once the second time.
    pub(crate) fn stop(&mut self, reason: Ending, now: Instant) -> Order {
        if self.running.is_empty() {
            return Order::Nothing;
        }
        match self.phase {
            Phase::Running => {
                self.phase = Phase::Terminating { kill_at: now + self.grace };
                self.ending = reason;
                self.unfinished = self.running.iter().copied().collect();
                Order::Terminate(self.unfinished.clone())
            }
            Phase::Terminating { .. } => self.kill(),
            Phase::Killed => Order::Nothing,
        }
    }

    /// Time passed.
    pub(crate) fn tick(&mut self, now: Instant) -> Order {
        match self.phase {
            Phase::Running if self.time_limit.is_some_and(|limit| now >= limit) => {
                self.stop(Ending::TimedOut, now)
            }
            Phase::Terminating { kill_at } if now >= kill_at => self.kill(),
            _ => Order::Nothing,
        }
    }

    /// When [`Self::tick`] is due.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running => self.time_limit,
            Phase::Terminating { kill_at } => Some(kill_at),
            Phase::Killed => None,
        }
    }

    /// Whether no rank runs any more.
    pub(crate) fn is_over(&self) -> bool {
        self.running.is_empty()
    }

    /// Why it ended, which ranks had to be ended, and which failed.
    pub(crate) fn into_result(self) -> (Ending, Vec<usize>, Vec<RankFailure>) {
        (self.ending, self.unfinished, self.failures)
    }

    fn kill(&mut self) -> Order {
        self.phase = Phase::Killed;
        Order::Kill(self.running.iter().copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(5);

    fn run_of(ranks: usize, keep_going: bool, now: Instant) -> Supervision {
        Supervision::new(ranks, 2, keep_going, GRACE, Some(now + Duration::from_secs(60)))
    }

    #[test]
    fn the_first_failure_ends_the_others_gently_then_by_force() {
        let now = Instant::now();
        let mut run = run_of(4, false, now);
        assert_eq!(run.ended(0, RankStatus::Exited(0), now), (None, Order::Nothing));
        let failure = RankFailure { rank: 3, host: 1, status: RankStatus::Exited(7) };
        assert_eq!(
            run.ended(3, RankStatus::Exited(7), now),
            (Some(failure), Order::Terminate(vec![1, 2]))
        );
        // What the termination itself causes is not the user's concern.
        assert_eq!(run.ended(1, RankStatus::Signaled(15), now), (None, Order::Nothing));
        assert_eq!(run.next_tick(), Some(now + GRACE));
        assert_eq!(run.tick(now + GRACE / 2), Order::Nothing);
        assert_eq!(run.tick(now + GRACE), Order::Kill(vec![2]));
        assert_eq!(run.tick(now + 2 * GRACE), Order::Nothing);
        run.ended(2, RankStatus::Signaled(9), now);
        assert!(run.is_over());
        assert_eq!(run.into_result(), (Ending::RankFailed, vec![1, 2], vec![failure]));
    }

    #[test]
    fn keep_going_lets_the_others_end_by_themselves() {
        let now = Instant::now();
        let mut run = run_of(2, true, now);
        let (failure, order) = run.ended(0, RankStatus::Signaled(9), now);
        assert_eq!(failure.unwrap().to_string(), "rank 0 on host 0 was ended by SIGKILL");
        assert_eq!(order, Order::Nothing);
        run.ended(1, RankStatus::Exited(0), now);
        let (ending, unfinished, failures) = run.into_result();
        assert_eq!((ending, unfinished.len(), failures.len()), (Ending::AllEnded, 0, 1));
    }

    #[test]
    fn the_time_limit_ends_the_run() {
        let now = Instant::now();
        let mut run = run_of(1, true, now);
        assert_eq!(run.tick(now), Order::Nothing);
        assert_eq!(run.tick(run.next_tick().unwrap()), Order::Terminate(vec![0]));
        assert_eq!(run.ending, Ending::TimedOut);
    }

    #[test]
    fn stopping_twice_does_not_wait_for_the_grace() {
        let now = Instant::now();
        let mut run = run_of(2, false, now);
        assert_eq!(run.stop(Ending::Stopped, now), Order::Terminate(vec![0, 1]));
        assert_eq!(run.stop(Ending::Stopped, now), Order::Kill(vec![0, 1]));
        assert_eq!(run.stop(Ending::Stopped, now), Order::Nothing);
    }
}
