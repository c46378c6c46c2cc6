//! What is in flight, for those who want to look: traces and live views.

use std::time::Duration;

use crate::Time;
use crate::core::{Core, OperationId};
use crate::plan::ANY_SOURCE;

/// What an operation is called on all its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The group.
    pub group: u64,
    /// Number of the operation within the group, or of a message within its channel (0 until a
    /// receive from any source has found its sender).
    pub sequence: u64,
    /// Tag of a message, otherwise 0.
    pub tag: u32,
}

/// An operation that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The operation in words.
    pub operation: String,
    /// How long it has been in flight.
    pub age: Duration,
    /// World ranks that have not shown that they posted it. Of an operation younger than a
    /// heartbeat that says little: they may not have had a reason to.
    pub absent: Vec<u32>,
    /// World ranks with which data is still to be exchanged.
    pub waits_for: Vec<u32>,
}

impl Core {
    /// The identity of an operation in flight.
    pub fn identity(&self, operation: OperationId) -> Option<Identity> {
        let operation = self.operations.get(operation)?;
        Some(Identity { group: operation.group, sequence: operation.sequence, tag: operation.tag })
    }

    /// The name that a group was made with.
    pub fn group_name(&self, group: u64) -> Option<&str> {
        self.groups.get(&group).map(|group| group.name.as_str())
    }

    /// The operation that has been in flight for the longest time.
    pub fn oldest(&self, now: Time) -> Option<Pending> {
        let (_, oldest) = self.operations.iter().min_by_key(|(id, _)| self.orders[id].number)?;
        let waiting = oldest.peers.iter().filter(|peer| peer.remaining > 0);
        let known = |world: &u32| *world != ANY_SOURCE;
        Some(Pending {
            operation: self.describe(oldest),
            age: now.since(oldest.submitted),
            absent: oldest.not_joined().into_iter().filter(known).collect(),
            waits_for: waiting.map(|peer| peer.world).filter(known).collect(),
        })
    }
}
