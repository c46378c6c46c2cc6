//! One clock for all ranks: rank 0's, to which the others measure their distance.

use std::hash::{BuildHasher, BuildHasherDefault};

use rustc_hash::FxHasher;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::now;
use crate::{Communicator, Error};

/// Round trips of which the shortest counts.
const ROUND_TRIPS: usize = 8;
/// Tags of questions and answers.
const QUESTION: u32 = 1;
const ANSWER: u32 = 2;

/// How far this rank's clock is from rank 0's, measured once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct ClockPoint {
    /// When, on this rank's clock.
    pub at_ns: u64,
    /// What is to be added to this rank's clock: 0 where both ranks read the same one.
    pub offset_ns: i64,
    /// What was measured.
    pub measured_offset_ns: i64,
    /// The truth is at most half of this away from the measurement.
    pub round_trip_ns: u64,
    /// Both ranks run on one kernel, and so on one clock.
    pub same_clock: bool,
    /// Rank 0's wall clock minus its monotonic one.
    pub wall_ns: i64,
}

impl ClockPoint {
    /// Measures, with the formula of NTP (RFC 5905, section 8). All ranks of the group take part.
    pub fn measure(group: &Communicator) -> Result<ClockPoint, Error> {
        if group.rank() == 0 {
            return answer(group);
        }
        let mine = clock_identity();
        let mut best: Option<ClockPoint> = None;
        for _ in 0..ROUND_TRIPS {
            let asked = now();
            group.send(&[mine], 0, QUESTION)?;
            let mut answer = [0i64; 4];
            group.receive(&mut answer, 0, ANSWER)?;
            let [received, answered, wall_ns, theirs] = answer;
            let (measured_offset_ns, round_trip_ns) =
                offset([asked as i64, received, answered, now() as i64]);
            if best.is_some_and(|best| best.round_trip_ns <= round_trip_ns) {
                continue;
            }
            let same_clock = mine != 0 && mine == theirs;
            best = Some(ClockPoint {
                at_ns: asked,
                offset_ns: if same_clock { 0 } else { measured_offset_ns },
                measured_offset_ns,
                round_trip_ns,
                same_clock,
                wall_ns,
            });
        }
        Ok(best.expect("there was a round trip"))
    }

    /// How far off the offset may be.
    fn uncertainty_ns(&self) -> u64 {
        if self.same_clock { 0 } else { self.round_trip_ns.div_ceil(2) }
    }
}

/// Rank 0's part: one rank after the other, so that no answer waits for another.
fn answer(group: &Communicator) -> Result<ClockPoint, Error> {
    let (mine, wall_ns) = (clock_identity(), wall_ns());
    for peer in 1..group.size() {
        for _ in 0..ROUND_TRIPS {
            group.receive(&mut [0i64], peer, QUESTION)?;
            let received = now() as i64;
            group.send(&[received, now() as i64, wall_ns, mine], peer, ANSWER)?;
        }
    }
    Ok(ClockPoint {
        at_ns: now(),
        offset_ns: 0,
        measured_offset_ns: 0,
        round_trip_ns: 0,
        same_clock: true,
        wall_ns,
    })
}

/// What is to be added to the asker's clock, and the round trip without the time that the answer
/// took, from the four times of a question: asked, received, answered, back.
fn offset([asked, received, answered, back]: [i64; 4]) -> (i64, u64) {
    let offset = ((received - asked) + (answered - back)) / 2;
    let round_trip = (back - asked) - (answered - received);
    (offset, round_trip.max(0) as u64)
}

fn wall_ns() -> i64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec - now() as i64
}

/// The same for processes that read the same clock: of one boot and one time namespace. 0 if that
/// can't be told.
fn clock_identity() -> i64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let Ok(boot) = boot else { return 0 };
    // Kernels without time namespaces have no such file, and one clock.
    let namespace = std::fs::read_link("/proc/self/ns/time").ok();
    BuildHasherDefault::<FxHasher>::default().hash_one((boot, namespace)) as i64
}

/// Turns this rank's times into rank 0's.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Clock {
    first: Option<ClockPoint>,
    last: Option<ClockPoint>,
}

impl Clock {
    pub fn starting(first: ClockPoint) -> Self {
        Clock { first: Some(first), last: None }
    }

    /// Adds the measurement at the end.
    pub fn end(&mut self, last: ClockPoint) {
        self.last = Some(last);
    }

    pub fn points(&self) -> Vec<ClockPoint> {
        self.first.into_iter().chain(self.last).collect()
    }

    /// How far off times may be; `None` if clocks were never compared.
    pub fn uncertainty_ns(&self) -> Option<u64> {
        self.points().iter().map(ClockPoint::uncertainty_ns).max()
    }

    /// A time of this rank on rank 0's clock. Between two measurements the drift is taken as even.
    pub fn on_rank_zero(&self, local: u64) -> i64 {
        let offset = match (self.first, self.last) {
            (Some(first), Some(last)) if last.at_ns > first.at_ns => {
                let passed = local as f64 - first.at_ns as f64;
                let share = passed / (last.at_ns - first.at_ns) as f64;
                first.offset_ns + ((last.offset_ns - first.offset_ns) as f64 * share) as i64
            }
            (Some(first), _) => first.offset_ns,
            (None, _) => 0,
        };
        local as i64 + offset
    }

    /// Rank 0's wall clock minus its monotonic one, or this rank's own if clocks were never compared.
    pub fn wall_ns(&self) -> i64 {
        self.first.map_or_else(wall_ns, |first| first.wall_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_exact_where_both_ways_take_as_long() {
        // Rank 0 is 1000 ahead, each way takes 30, the answer 5.
        assert_eq!(offset([100, 1130, 1135, 165]), (1000, 60));
        // With 50 there and 10 back it is off by 20, less than half of the round trip.
        assert_eq!(offset([100, 1150, 1155, 165]), (1020, 60));
    }

    fn point(at_ns: u64, offset_ns: i64) -> ClockPoint {
        ClockPoint {
            at_ns,
            offset_ns,
            measured_offset_ns: offset_ns,
            round_trip_ns: 7,
            same_clock: false,
            wall_ns: 5,
        }
    }

    #[test]
    fn drift_is_spread_evenly() {
        let mut clock = Clock::default();
        assert_eq!((clock.on_rank_zero(10), clock.uncertainty_ns()), (10, None));
        clock = Clock::starting(point(1_000, 100));
        assert_eq!(clock.on_rank_zero(5_000), 5_100);
        clock.end(point(2_000, 200));
        assert_eq!(
            [1_000, 1_500, 2_000, 3_000].map(|at| clock.on_rank_zero(at)),
            [1_100, 1_650, 2_200, 3_300]
        );
        assert_eq!((clock.uncertainty_ns(), clock.wall_ns()), (Some(4), 5));
    }
}
