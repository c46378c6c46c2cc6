//! Bounds on connections that have not authenticated, and on what is logged about them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Unauthenticated connections at once.
pub(super) const MAX_STRANGERS: usize = 256;
/// How long an initiator with a valid hello may take for its confirmation when the place is
/// needed. A replayed hello gets no further than that.
const GRACE: Duration = Duration::from_secs(1);
/// Time between two log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Whether one more connection may be accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Yes.
    Free,
    /// Yes, once this one has been dropped.
    Evict(u64),
    /// Not now: all places are taken by peers that are about to authenticate.
    Full,
}

/// Unauthenticated connections by token; tokens grow, so the first is the oldest.
#[derive(Default)]
pub(super) struct Strangers {
    /// Have not sent a valid hello.
    silent: BTreeMap<u64, Instant>,
    /// Have sent a valid hello, which may still be a replay.
    introduced: BTreeMap<u64, Instant>,
    turned_away: u64,
    logged_at: Option<Instant>,
}

impl Strangers {
    pub(super) fn room(&self, now: Instant) -> Room {
        if self.silent.len() + self.introduced.len() < MAX_STRANGERS {
            return Room::Free;
        }
        if let Some((&token, _)) = self.silent.first_key_value() {
            return Room::Evict(token);
        }
        match self.introduced.first_key_value() {
            Some((&token, &since)) if now.duration_since(since) > GRACE => Room::Evict(token),
            _ => Room::Full,
        }
    }

    pub(super) fn oldest_silent(&self) -> Option<u64> {
        self.silent.first_key_value().map(|(&token, _)| token)
    }

    pub(super) fn arrived(&mut self, token: u64, now: Instant) {
        self.silent.insert(token, now);
    }

    pub(super) fn introduced(&mut self, token: u64, now: Instant) {
        self.silent.remove(&token);
        self.introduced.insert(token, now);
    }

    pub(super) fn remove(&mut self, token: u64) {
        self.silent.remove(&token);
        self.introduced.remove(&token);
    }

    /// Counts a connection that was turned away; logs the first at once and the others in sums.
    pub(super) fn turned_away(&mut self, remote: &str, reason: &str, now: Instant) {
        self.turned_away += 1;
        if self.logged_at.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL) {
            self.logged_at = Some(now);
            let count = std::mem::take(&mut self.turned_away);
            tracing::warn!(count, remote, reason, "turned connections away; the last one is named");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_silent_stranger_makes_room() {
        let now = Instant::now();
        let mut strangers = Strangers::default();
        for token in 0..MAX_STRANGERS as u64 {
            assert_eq!(strangers.room(now), Room::Free);
            strangers.arrived(token, now);
        }
        assert_eq!(strangers.room(now), Room::Evict(0));
        strangers.introduced(0, now);
        assert_eq!(strangers.room(now), Room::Evict(1));
    }

    #[test]
    fn introduced_peers_are_given_time() {
        let now = Instant::now();
        let mut strangers = Strangers::default();
        for token in 0..MAX_STRANGERS as u64 {
            strangers.introduced(token, now);
        }
        assert_eq!(strangers.room(now), Room::Full);
        assert_eq!(strangers.room(now + 2 * GRACE), Room::Evict(0));
        strangers.remove(7);
        assert_eq!(strangers.room(now), Room::Free);
    }
}
