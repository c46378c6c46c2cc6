//! Which peers are there: silence, departures, deadlines, and who is to blame.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::{Core, OperationId};
use crate::failure::Cause;
use crate::operation::{Operation, OperationPeer};
use crate::peer::{Control, Liveness};
use crate::plan::ANY_SOURCE;
use crate::{FrameKind, Header, Time};

/// How long after its deadline a rank that only waits for ranks that have joined gives up.
const DEADLINE_GRACE: Duration = Duration::from_secs(1);

impl Core {
    /// A peer can't be reached any more; `detail` says how that was noticed. All groups that it
    /// belongs to fail.
    pub fn on_peer_lost(&mut self, now: Time, peer: u32, detail: &str) {
        self.lose(now, peer, Cause::PeerLost, format!("is gone: {detail}"));
    }

    fn lose(&mut self, now: Time, peer: u32, cause: Cause, what: String) {
        self.now = now;
        let state = &mut self.peers[peer as usize];
        if matches!(state.liveness, Liveness::Lost(_)) {
            return;
        }
        let text = format!("{} {what}", state.label);
        state.liveness = Liveness::Lost(text.clone());
        state.control.clear();
        state.runnable.clear();
        self.drop_early_from(peer);
        let mut groups: Vec<u64> = self
            .groups
            .iter()
            .filter_map(|(id, group)| group.members.contains(&peer).then_some(*id))
            .collect();
        groups.sort_unstable();
        for group in groups {
            self.fail_group(group, cause, Some(peer), text.clone());
        }
    }

    /// A peer has said goodbye on all its lanes, or closed them after doing so. Only operations
    /// that still need it fail.
    pub fn on_peer_departed(&mut self, now: Time, peer: u32) {
        self.now = now;
        if self.peers[peer as usize].liveness != Liveness::Alive {
            return;
        }
        self.peers[peer as usize].liveness = Liveness::Departed;
        let mut needing: Vec<OperationId> = self
            .operations
            .iter()
            .filter_map(|(id, operation)| operation.needs(peer).then_some(id))
            .collect();
        needing.sort_unstable();
        for id in needing {
            self.fail_departed(id, peer);
        }
    }

    /// Whether a peer is known to be gone, for good or in bad order.
    pub fn is_gone(&self, peer: u32) -> bool {
        self.peers[peer as usize].liveness != Liveness::Alive
    }

    /// The next peer that was given up for its silence. The driver closes its lanes, so that the
    /// peer learns of it should it wake up, and calls [`Core::on_held`] for a payload that was on
    /// its way into a hold: the operation has failed, and the hold is dropped.
    pub fn next_given_up(&mut self) -> Option<u32> {
        self.given_up.pop_front()
    }

    /// When [`Core::on_tick`] should be called next; `None` while nothing is in flight.
    pub fn next_tick(&self) -> Option<Time> {
        (self.operations.len() > 0).then(|| self.last_tick + self.config.heartbeat / 2)
    }

    /// Looks for peers that have gone silent and for deadlines that have passed.
    pub fn on_tick(&mut self, now: Time) {
        let pause = now.since(self.last_tick);
        self.now = now;
        self.last_tick = now;
        if pause > 3 * self.config.heartbeat {
            // This process has not looked for a while (idle, or stopped itself): the silence of
            // the others is counted from now.
            for peer in self.peers.iter_mut().filter(|peer| peer.watched_since.is_some()) {
                peer.watched_since = Some(now);
            }
        }
        self.ask_who_has_joined();
        self.check_silence();
        self.check_deadlines();
    }

    /// Asks the peers of operations that have been in flight for a while and of which nothing was
    /// heard whether they have posted them. The answer tells who is late from who waits for
    /// another, and shows a mismatch between ranks that otherwise wait for each other (two that
    /// both take the other for the root, say).
    fn ask_who_has_joined(&mut self) {
        for id in self.oldest_collectives().into_values() {
            let operation = self.operations.get(id).expect("just listed");
            if self.now.since(operation.submitted) < self.config.heartbeat {
                continue;
            }
            let silent: Vec<usize> = (0..operation.peers.len())
                .filter(|peer| {
                    let OperationPeer { joined, remaining, .. } = operation.peers[*peer];
                    !joined && remaining > 0
                })
                .collect();
            for peer in silent {
                self.queue_request(id, peer);
            }
        }
    }

    /// The collective that each group is at: ranks post them in one order, so who has not posted
    /// this one has posted no later one.
    fn oldest_collectives(&self) -> BTreeMap<u64, OperationId> {
        let mut oldest: BTreeMap<u64, OperationId> = BTreeMap::new();
        for (id, operation) in self.operations.iter() {
            if !operation.plan.descriptor.is_point_to_point() {
                let first = oldest.entry(operation.group).or_insert(id);
                if self.orders[&id].number < self.orders[first].number {
                    *first = id;
                }
            }
        }
        oldest
    }

    fn check_silence(&mut self) {
        let (now, heartbeat) = (self.now, self.config.heartbeat);
        let mut silent = Vec::new();
        let mut watched = 0;
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            let Some(silence) = peer.silent_for(now) else { continue };
            if peer.liveness != Liveness::Alive {
                continue;
            }
            watched += 1;
            if silence >= self.config.silence {
                silent.push((rank as u32, silence));
            } else if silence >= heartbeat && now.since(peer.last_ping) >= heartbeat {
                peer.last_ping = now;
                peer.control.push_back(Control::Plain(Header::new(FrameKind::Ping)));
            }
        }
        let alone = silent.len() == watched && watched > 1;
        for (rank, silence) in silent {
            let mut what = format!(
                "has been silent for {:.1} s (frozen, or its network is cut)",
                silence.as_secs_f64()
            );
            if alone {
                what.push_str("; no peer answers, so it may be this rank's own network");
            }
            self.lose(now, rank, Cause::PeerSilent, what);
            self.given_up.push_back(rank);
        }
    }

    fn check_deadlines(&mut self) {
        while let Some(blocking) = self.overdue() {
            let operation = self.operations.get(blocking).expect("just found");
            let (culprit, text) = self.blame(operation);
            self.fail_group(operation.group, Cause::Timeout, culprit, text);
        }
    }

    /// The operation that holds up one whose deadline has passed: the group's oldest collective,
    /// or the message itself. A rank that waits for ranks that have joined lets those report first
    /// whom they wait for.
    fn overdue(&self) -> Option<OperationId> {
        let is_past = |deadline: Option<Time>| deadline.is_some_and(|it| it <= self.now);
        if !self.operations.iter().any(|(_, operation)| is_past(operation.deadline)) {
            return None;
        }
        let oldest = self.oldest_collectives();
        let overdue = self.operations.iter().filter_map(|(id, operation)| {
            let is_message = operation.plan.descriptor.is_point_to_point();
            let blocking = if is_message { id } else { oldest[&operation.group] };
            let anyone_missing = !self.operations.get(blocking)?.not_joined().is_empty();
            let grace = if anyone_missing { Duration::ZERO } else { DEADLINE_GRACE };
            is_past(operation.deadline.map(|it| it + grace)).then_some(blocking)
        });
        overdue.min_by_key(|id| self.orders[id].number)
    }

    /// Who is to blame for an operation that does not end, and the error in words.
    fn blame(&self, operation: &Operation) -> (Option<u32>, String) {
        let labels = |ranks: &[u32]| -> String {
            let label = |rank: &u32| self.peers.get(*rank as usize).map(|peer| &*peer.label);
            let labels: Vec<&str> =
                ranks.iter().map(|rank| label(rank).unwrap_or("any rank")).collect();
            labels.join(", ")
        };
        let missing = operation.not_joined();
        let what = if missing.is_empty() {
            let waiting = operation.peers.iter().filter(|peer| peer.remaining > 0);
            let slow: Vec<u32> = waiting.map(|peer| peer.world).collect();
            format!("timeout waiting for {} (joined, but not through)", labels(&slow))
        } else {
            format!("timeout because {} did not join", labels(&missing))
        };
        let culprit = missing.first().copied().filter(|rank| *rank != ANY_SOURCE);
        (culprit, format!("{what} in {}", self.describe(operation)))
    }

    pub(crate) fn has_departed(&self, world: u32) -> bool {
        self.peers[world as usize].liveness == Liveness::Departed
    }

    pub(crate) fn fail_departed(&mut self, id: OperationId, world: u32) {
        let Some(operation) = self.operations.get(id).filter(|it| it.needs(world)) else { return };
        let group = operation.group;
        let text = format!(
            "{} has left the job (it shut down in good order) before this operation was over",
            self.peers[world as usize].label
        );
        self.fail_group(group, Cause::PeerLost, Some(world), text);
    }

    pub(crate) fn watch(&mut self, world: u32) {
        let now = self.now;
        let peer = &mut self.peers[world as usize];
        peer.interest += 1;
        peer.watched_since.get_or_insert(now);
    }

    pub(crate) fn unwatch(&mut self, world: u32) {
        let Some(peer) = self.peers.get_mut(world as usize) else { return };
        peer.interest -= 1;
        if peer.interest == 0 {
            peer.watched_since = None;
        }
    }
}
