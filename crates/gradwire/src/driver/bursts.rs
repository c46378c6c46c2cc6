//! Bursts of communication: from a submission while nothing is in flight until nothing is again.

use std::time::Duration;

use gradwire_core::Time;

/// How long communication took so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bursts {
    began: Option<Time>,
    last_submission: Time,
    in_flight: Duration,
    tails: Duration,
}

impl Bursts {
    /// An operation was submitted.
    pub fn submitted(&mut self, now: Time) {
        self.last_submission = now;
        self.began.get_or_insert(now);
    }

    /// The last operation in flight has ended.
    pub fn all_ended(&mut self, now: Time) {
        *self = Bursts { began: None, ..self.until(now) };
    }

    /// As it would be if all ended now.
    fn until(&self, now: Time) -> Self {
        let Some(began) = self.began else { return *self };
        Bursts {
            in_flight: self.in_flight + now.since(began),
            tails: self.tails + now.since(self.last_submission),
            ..*self
        }
    }

    /// Time with an operation in flight.
    pub fn in_flight(&self, now: Time) -> Duration {
        self.until(now).in_flight
    }

    /// Time between the last submission of a burst and its end: what a computation that waits for
    /// all of it at the end waits for, at most.
    pub fn tails(&self, now: Time) -> Duration {
        self.until(now).tails
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_operations_are_one_burst() {
        let mut bursts = Bursts::default();
        bursts.submitted(Time(10));
        bursts.submitted(Time(14));
        let at = |bursts: &Bursts, now| {
            let now = Time(now);
            (bursts.in_flight(now).as_nanos(), bursts.tails(now).as_nanos())
        };
        assert_eq!(at(&bursts, 16), (6, 2));
        bursts.all_ended(Time(20));
        bursts.submitted(Time(30));
        bursts.all_ended(Time(31));
        assert_eq!(at(&bursts, 50), (11, 7));
    }
}
