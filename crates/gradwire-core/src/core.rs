//! The state machine. Arriving frames are dealt with in `arrival.rs`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gradwire_schedule::{Slot, StepIndex, StepKind};
use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::arrival::{Early, Hold, HoldTarget, Key};
use crate::failure::{Cause, Failure};
use crate::group::{Group, Removed};
use crate::operation::{MAX_WINDOW, Operation, OperationPeer, Operations, StepState};
use crate::peer::{Control, Liveness, Order, Peer};
use crate::plan::{ANY_SOURCE, Plan};
use crate::{Header, Time};

/// Names an operation for as long as the core lives; never used twice.
pub type OperationId = u64;

/// Names a payload that the driver holds.
pub type HoldToken = u64;

/// The limits of a core. Ranks of one job must agree on all of them but the durations: a peer that
/// passes this rank's limits breaks the protocol.
#[derive(Clone, Debug)]
pub struct Config {
    /// This process's world rank.
    pub rank: u32,
    /// Number of ranks in the world.
    pub world_size: u32,
    /// Tiles of one step that may be unacknowledged, 1 to 64.
    pub window_tiles: u32,
    /// Bytes of one operation that may go to a peer before it has posted the operation.
    pub early_bytes: u32,
    /// Bytes of all operations together that may lie unposted at a peer.
    pub early_budget_bytes: u32,
    /// Operations that may be in flight.
    pub max_operations: usize,
    /// A peer of which something is expected and that has been silent for so long is given up.
    pub silence: Duration,
    /// A peer of which something is expected is asked for a sign of life this often.
    pub heartbeat: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            rank: 0,
            world_size: 1,
            window_tiles: 16,
            early_bytes: 64 << 10,
            early_budget_bytes: 1 << 20,
            max_operations: 1024,
            silence: Duration::from_secs(7),
            heartbeat: Duration::from_secs(1),
        }
    }
}

/// An operation to be started.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The group it belongs to.
    pub group: u64,
    /// What to do. A receive from any source names [`ANY_SOURCE`] as its sender.
    pub plan: Arc<Plan>,
    /// Tag of a point-to-point operation, otherwise 0.
    pub tag: u32,
    /// When to give up.
    pub deadline: Option<Time>,
    /// Its tiles overtake those of operations with a higher number. Each rank decides for itself.
    pub priority: u8,
}

/// Why an operation was not started.
#[derive(Clone, Debug, Error)]
pub enum SubmitError {
    /// The group has failed before.
    #[error("group '{group}' has failed before: {failure}")]
    Failed {
        /// Name of the group.
        group: String,
        /// What happened to it.
        failure: Arc<Failure>,
    },
    /// No such group.
    #[error("there is no group {0:#x}")]
    NoGroup(u64),
    /// As many operations as are allowed are in flight; try again when one has ended.
    #[error("{0} operations are in flight, that is the limit")]
    Full(usize),
}

/// The error that an operation ends with.
#[derive(Clone, Debug, Error)]
#[error("{operation} failed: {failure}")]
pub struct OperationError {
    /// The operation in words, with its number and group.
    pub operation: String,
    /// What happened.
    pub failure: Arc<Failure>,
}

/// An operation that has ended.
#[derive(Clone, Debug)]
pub struct Completion {
    /// Which.
    pub operation: OperationId,
    /// World rank of the sender, where it was a receive.
    pub source: Option<u32>,
    /// How.
    pub result: Result<(), OperationError>,
}

/// What becomes of a tile's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apply {
    /// `destination = bytes`
    Copy {
        /// What is overwritten.
        destination: Slot,
    },
    /// `destination = local ⊕ bytes`
    Reduce {
        /// The operand that is already here.
        local: Slot,
        /// What is overwritten.
        destination: Slot,
        /// This completes the reduction.
        last: bool,
    },
}

/// A tile and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The operation.
    pub operation: OperationId,
    /// The step.
    pub step: StepIndex,
    /// The tile of the step's chunk.
    pub tile: u32,
    /// Where the tile begins within its chunk, in bytes.
    pub offset: u64,
    /// Length of the tile in bytes.
    pub bytes: u32,
    /// What to do with it.
    pub apply: Apply,
}

/// Where an arriving frame's payload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// There is no payload and nothing to do.
    Control,
    /// Apply it, then call [`Core::on_applied`].
    Apply(Placement),
    /// Keep it, call [`Core::on_held`] when it is complete, and wait for [`Work`] that names it.
    Hold(HoldToken),
    /// Read and drop it.
    Discard,
    /// Hand the payload to [`Core::on_abort`].
    Abort {
        /// The group that has failed.
        group: u64,
    },
    /// The peer will send nothing more on this lane.
    Goodbye,
}

/// Something for the driver to do with bytes that are here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Apply the tile at `source` (same offset), then call [`Core::on_applied`].
    Local {
        /// The operand that is read.
        source: Slot,
        /// What to do with it.
        placement: Placement,
    },
    /// Apply a held payload, forget it, then call [`Core::on_applied`].
    ApplyHeld {
        /// The payload.
        token: HoldToken,
        /// What to do with it.
        placement: Placement,
    },
    /// Forget a held payload.
    DropHeld(HoldToken),
}

/// Where the payload of an outgoing frame comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// There is none.
    Empty,
    /// A tile of the operation's memory; call [`Core::on_sent`] when it may be overwritten.
    Tile {
        /// The operation.
        operation: OperationId,
        /// The step.
        step: StepIndex,
        /// The tile.
        tile: u32,
        /// The chunk.
        slot: Slot,
        /// Where the tile begins within it, in bytes.
        offset: u64,
    },
    /// These bytes.
    Bytes(Box<[u8]>),
}

/// A frame to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Its header.
    pub header: Header,
    /// Its payload.
    pub source: Source,
}

/// See the crate's documentation.
#[derive(Debug)]
pub struct Core {
    pub(crate) config: Config,
    pub(crate) now: Time,
    pub(crate) last_tick: Time,
    pub(crate) operations: Operations,
    pub(crate) groups: FxHashMap<u64, Group>,
    pub(crate) removed: Removed,
    pub(crate) peers: Vec<Peer>,
    pub(crate) keys: FxHashMap<Key, OperationId>,
    pub(crate) early: FxHashMap<Key, Early>,
    pub(crate) early_failures: FxHashMap<u64, Arc<Failure>>,
    pub(crate) any_source: FxHashMap<(u64, u32), VecDeque<OperationId>>,
    /// Next number of each point-to-point channel: group, world rank, tag, outgoing.
    pub(crate) channels: FxHashMap<(u64, u32, u32, bool), u64>,
    pub(crate) holds: FxHashMap<HoldToken, Hold>,
    pub(crate) next_hold: HoldToken,
    next_order: u64,
    pub(crate) orders: FxHashMap<OperationId, Order>,
    pub(crate) work: VecDeque<Queued>,
    pub(crate) completions: VecDeque<Completion>,
    /// Silent peers whose lanes the driver has not been told to close.
    pub(crate) given_up: VecDeque<u32>,
}

/// Work as it stands in the queue; what it means is looked up when it is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Queued {
    Local { operation: OperationId, step: StepIndex },
    Held { operation: OperationId, step: StepIndex, tile: u32, token: HoldToken },
    Drop(HoldToken),
}

impl Core {
    /// A core with no groups.
    ///
    /// # Panics
    /// If the window is not between 1 and 64.
    pub fn new(config: Config) -> Self {
        assert!((1..=MAX_WINDOW).contains(&config.window_tiles), "window of 1 to 64 tiles");
        let peers = (0..config.world_size).map(Peer::new).collect();
        Core {
            config,
            now: Time::ZERO,
            last_tick: Time::ZERO,
            operations: Operations::default(),
            groups: FxHashMap::default(),
            removed: Removed::default(),
            peers,
            keys: FxHashMap::default(),
            early: FxHashMap::default(),
            early_failures: FxHashMap::default(),
            any_source: FxHashMap::default(),
            channels: FxHashMap::default(),
            holds: FxHashMap::default(),
            next_hold: 0,
            next_order: 0,
            orders: FxHashMap::default(),
            work: VecDeque::new(),
            completions: VecDeque::new(),
            given_up: VecDeque::new(),
        }
    }

    /// Makes a group known. `id` and `members` (world ranks, in the order of their group ranks)
    /// must be the same on all members; the number must be new. A group that can't work, because a
    /// member is lost or has reported its failure already, fails at once, on all members.
    pub fn create_group(&mut self, id: u64, name: &str, members: &[u32]) {
        self.groups.insert(id, Group::new(name, members));
        let failure = self.early_failures.remove(&id).or_else(|| self.lost_member(members));
        if let Some(failure) = failure {
            self.spread_failure(id, failure);
        }
    }

    fn lost_member(&self, members: &[u32]) -> Option<Arc<Failure>> {
        members.iter().find_map(|member| match &self.peers[*member as usize].liveness {
            Liveness::Lost(text) => Some(Arc::new(Failure {
                cause: Cause::PeerLost,
                culprit: Some(*member),
                reporter: self.config.rank,
                text: text.clone(),
            })),
            _ => None,
        })
    }

    /// Forgets a group. What is in flight in it ends with an error.
    pub fn remove_group(&mut self, id: u64) {
        self.end_operations(id, &self.own_failure("the group was destroyed"));
        if self.groups.remove(&id).is_some() {
            self.removed.insert(id);
        }
        self.channels.retain(|(group, ..), _| *group != id);
    }

    /// Ends everything in flight on this rank, without telling the others.
    pub fn end_all(&mut self, reason: &str) {
        let failure = self.own_failure(reason);
        let mut groups: Vec<u64> = self.groups.keys().copied().collect();
        groups.sort_unstable();
        for group in groups {
            self.end_operations(group, &failure);
        }
    }

    fn own_failure(&self, text: &str) -> Arc<Failure> {
        Arc::new(Failure {
            cause: Cause::Aborted,
            culprit: Some(self.config.rank),
            reporter: self.config.rank,
            text: text.to_owned(),
        })
    }

    /// Tiles of a step that may be unacknowledged; scratch has room for as many.
    pub fn window_tiles(&self) -> u32 {
        self.config.window_tiles
    }

    /// How messages should call a peer: `rank 3 on host2 (10.0.0.3)`.
    pub fn set_label(&mut self, peer: u32, label: String) {
        self.peers[peer as usize].label = label;
    }

    /// Starts an operation.
    pub fn submit(
        &mut self,
        now: Time,
        submission: Submission,
    ) -> Result<OperationId, SubmitError> {
        self.now = now;
        if !self.has_room() {
            return Err(SubmitError::Full(self.config.max_operations));
        }
        let Submission { group: id, plan, tag, deadline, priority } = submission;
        let group = self.groups.get(&id).ok_or(SubmitError::NoGroup(id))?;
        if let Some(failure) = &group.failure {
            let (group, failure) = (group.name.clone(), failure.clone());
            return Err(SubmitError::Failed { group, failure });
        }
        let peers: Vec<OperationPeer> = plan
            .peers
            .iter()
            .map(|peer| OperationPeer {
                world: group.members.get(peer.rank as usize).copied().unwrap_or(ANY_SOURCE),
                joined: false,
                early_bytes: 0,
                requested: false,
                told: false,
                remaining: (peer.sends.len() + peer.receives.len()) as u32,
            })
            .collect();
        let key = self.key_of_submission(id, &plan, tag, &peers);
        let sequence = key.map_or(0, |key| key.sequence);
        let operation = self.operations.insert(Operation {
            group: id,
            sequence,
            tag,
            steps: vec![StepState::default(); plan.steps.len()],
            remaining: plan.steps.len() as u32,
            peers,
            held: FxHashMap::default(),
            submitted: now,
            deadline,
            plan,
        });
        let order = Order { priority, number: self.next_order };
        self.orders.insert(operation, order);
        self.next_order += 1;
        match key {
            Some(key) => self.start(operation, key),
            None => self.any_source.entry((id, tag)).or_default().push_back(operation),
        }
        if key.is_none() {
            self.match_any_source(id, tag);
        }
        Ok(operation)
    }

    /// The identity of a new operation; `None` for a receive that has no sender yet.
    fn key_of_submission(
        &mut self,
        group: u64,
        plan: &Plan,
        tag: u32,
        peers: &[OperationPeer],
    ) -> Option<Key> {
        if !plan.descriptor.is_point_to_point() {
            let group_state = self.groups.get_mut(&group).expect("looked up before");
            let sequence = group_state.next_sequence;
            group_state.next_sequence += 1;
            return Some(Key::collective(group, sequence));
        }
        let peer = peers.first().map_or(self.config.rank, |peer| peer.world);
        let outgoing = plan.peers.first().is_some_and(|peer| !peer.sends.is_empty());
        (peer != ANY_SOURCE).then(|| self.next_point_to_point(group, peer, tag, outgoing))
    }

    pub(crate) fn next_point_to_point(
        &mut self,
        group: u64,
        peer: u32,
        tag: u32,
        outgoing: bool,
    ) -> Key {
        let next = self.channels.entry((group, peer, tag, outgoing)).or_default();
        *next += 1;
        Key { group, sequence: *next - 1, tag, peer, outgoing }
    }

    /// Gives an operation its identity and lets it run.
    pub(crate) fn start(&mut self, id: OperationId, key: Key) {
        self.keys.insert(key, id);
        let operation = self.operations.get_mut(id).expect("just inserted");
        operation.sequence = key.sequence;
        let plan = operation.plan.clone();
        let worlds: Vec<u32> = operation.peers.iter().map(|peer| peer.world).collect();
        for (index, planned) in plan.peers.iter().enumerate() {
            self.watch(worlds[index]);
            if planned.receive_bytes > u64::from(self.config.early_bytes) {
                self.queue_ready(id, index);
            }
        }
        for (index, step) in plan.steps.iter().enumerate() {
            if step.after.is_empty() {
                self.poll(id, index as StepIndex);
            }
        }
        self.replay_early(id, key);
        for world in worlds {
            if self.has_departed(world) {
                self.fail_departed(id, world);
            }
        }
        self.complete_if_done(id);
    }

    /// Looks at a step again: does it have something to do now?
    pub(crate) fn poll(&mut self, id: OperationId, step: StepIndex) {
        let window = self.config.window_tiles;
        let Some(operation) = self.operations.get_mut(id) else { return };
        match operation.plan.steps[step as usize].kind {
            StepKind::Send { .. } => self.poll_send(id, step),
            StepKind::Receive { .. } | StepKind::ReceiveReduce { .. } => {
                while let Some((tile, token)) = operation.take_runnable_held(step, window) {
                    self.work.push_back(Queued::Held { operation: id, step, tile, token });
                }
            }
            StepKind::Reduce { .. } | StepKind::Copy { .. } => {
                let state = &operation.steps[step as usize];
                let runnable = !state.queued
                    && state.next < operation.plan.steps[step as usize].tiles
                    && state.next < state.done + MAX_WINDOW
                    && operation.is_tile_runnable(step, state.next, window);
                if runnable {
                    operation.steps[step as usize].queued = true;
                    self.work.push_back(Queued::Local { operation: id, step });
                }
            }
        }
    }

    /// A tile has left the operation's memory.
    pub fn on_sent(&mut self, operation: OperationId, step: StepIndex, tile: u32) {
        self.tile_done(operation, step, tile);
    }

    /// A tile has been applied ([`Arrival::Apply`], [`Work::Local`], [`Work::ApplyHeld`]).
    pub fn on_applied(&mut self, operation: OperationId, step: StepIndex, tile: u32) {
        self.tile_done(operation, step, tile);
    }

    fn tile_done(&mut self, id: OperationId, step: StepIndex, tile: u32) {
        let Some(operation) = self.operations.get_mut(id) else { return };
        let plan = operation.plan.clone();
        let planned = &plan.steps[step as usize];
        let complete = operation.mark_done(step, tile);
        if complete && let Some(peer) = operation.peers.get(planned.peer) {
            let (world, remaining) = (peer.world, peer.remaining);
            if remaining == 0 {
                self.unwatch(world);
            }
        }
        if planned.kind.receives_from().is_some() {
            self.acknowledge_if_due(id, step);
        } else {
            self.poll(id, step);
        }
        for later in &planned.before {
            self.poll(id, *later);
        }
        self.complete_if_done(id);
    }

    fn acknowledge_if_due(&mut self, id: OperationId, step: StepIndex) {
        let window = self.config.window_tiles;
        let operation = self.operations.get_mut(id).expect("looked up by the caller");
        let planned = &operation.plan.steps[step as usize];
        let state = &mut operation.steps[step as usize];
        let due = state.done - state.acknowledged >= window.div_ceil(2)
            && state.acknowledged + window < planned.tiles;
        if due && !state.queued {
            state.queued = true;
            let world = operation.peers[planned.peer].world as usize;
            self.peers[world].control.push_back(Control::Acknowledge { operation: id, step });
        }
    }

    fn complete_if_done(&mut self, id: OperationId) {
        if self.operations.get(id).is_some_and(|operation| operation.remaining == 0) {
            let operation = self.forget(id).expect("it is there");
            if let Some(group) = self.groups.get_mut(&operation.group)
                && !operation.plan.descriptor.is_point_to_point()
            {
                group.remember(operation.sequence, operation.plan.descriptor);
            }
            let source = operation.peers.first().map(|peer| peer.world);
            self.completions.push_back(Completion { operation: id, source, result: Ok(()) });
        }
    }

    /// Takes an operation out of all tables.
    fn forget(&mut self, id: OperationId) -> Option<Operation> {
        let operation = self.operations.remove(id)?;
        let order = self.orders.remove(&id).expect("an operation in flight has its order");
        let key = self.key_of(&operation);
        if self.keys.get(&key) == Some(&id) {
            self.keys.remove(&key);
        }
        for peer in operation.peers.iter().filter(|peer| peer.remaining > 0) {
            if peer.world != ANY_SOURCE {
                self.unwatch(peer.world);
            }
        }
        for peer in operation.peers.iter().filter(|peer| peer.world != ANY_SOURCE) {
            self.peers[peer.world as usize].forget(id, order);
        }
        for token in operation.held.values() {
            self.holds.remove(token);
            self.work.push_back(Queued::Drop(*token));
        }
        Some(operation)
    }

    fn key_of(&self, operation: &Operation) -> Key {
        let plan = &operation.plan;
        if !plan.descriptor.is_point_to_point() {
            return Key::collective(operation.group, operation.sequence);
        }
        Key {
            group: operation.group,
            sequence: operation.sequence,
            tag: operation.tag,
            peer: operation.peers.first().map_or(self.config.rank, |peer| peer.world),
            outgoing: plan.peers.first().is_some_and(|peer| !peer.sends.is_empty()),
        }
    }

    /// The next thing to do with bytes that are here.
    pub fn next_work(&mut self) -> Option<Work> {
        loop {
            match self.work.pop_front()? {
                Queued::Drop(token) => return Some(Work::DropHeld(token)),
                Queued::Held { operation, step, tile, token } => {
                    self.holds.remove(&token);
                    return Some(match self.placement(operation, step, tile) {
                        Some(placement) => Work::ApplyHeld { token, placement },
                        None => Work::DropHeld(token),
                    });
                }
                Queued::Local { operation: id, step } => {
                    let Some(operation) = self.operations.get_mut(id) else { continue };
                    let state = &mut operation.steps[step as usize];
                    state.queued = false;
                    let tile = state.next;
                    state.next += 1;
                    let kind = operation.plan.steps[step as usize].kind;
                    let (StepKind::Reduce { source, .. } | StepKind::Copy { source, .. }) = kind
                    else {
                        unreachable!("only local steps are queued as local work")
                    };
                    let placement = self.placement(id, step, tile).expect("it is there");
                    return Some(Work::Local { source, placement });
                }
            }
        }
    }

    pub(crate) fn placement(
        &self,
        id: OperationId,
        step: StepIndex,
        tile: u32,
    ) -> Option<Placement> {
        let plan = &self.operations.get(id)?.plan;
        let (offset, bytes) = plan.tile(step, tile);
        let apply = match plan.steps[step as usize].kind {
            StepKind::Receive { destination, .. } | StepKind::Copy { destination, .. } => {
                Apply::Copy { destination }
            }
            StepKind::ReceiveReduce { local, destination, last, .. }
            | StepKind::Reduce { local, destination, last, .. } => {
                Apply::Reduce { local, destination, last }
            }
            StepKind::Send { .. } => return None,
        };
        Some(Placement { operation: id, step, tile, offset, bytes, apply })
    }

    /// The next operation that has ended. Its memory is not touched any more once the driver has
    /// made its lanes abandon it and has dealt with the [`Work`] queued so far.
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Ends a group: all its operations in flight fail, and every member is told.
    pub fn abort(&mut self, now: Time, group: u64, reason: &str) {
        self.now = now;
        let rank = self.config.rank;
        let text = format!("rank {rank} aborted the group: {reason}");
        self.fail_group(group, Cause::Aborted, Some(rank), text);
    }

    pub(crate) fn fail_group(
        &mut self,
        group: u64,
        cause: Cause,
        culprit: Option<u32>,
        text: String,
    ) {
        let reporter = self.config.rank;
        self.spread_failure(group, Arc::new(Failure { cause, culprit, reporter, text }));
    }

    /// Takes over a failure and passes it on to every member, once.
    pub(crate) fn spread_failure(&mut self, id: u64, failure: Arc<Failure>) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        if group.failure.is_some() {
            return;
        }
        group.failure = Some(failure.clone());
        for member in group.members.iter().filter(|member| **member != self.config.rank) {
            let peer = &mut self.peers[*member as usize];
            if peer.liveness == Liveness::Alive {
                peer.control.push_back(Control::Abort { group: id, failure: failure.clone() });
            }
        }
        self.end_operations(id, &failure);
    }

    fn end_operations(&mut self, group: u64, failure: &Arc<Failure>) {
        let mut ended: Vec<OperationId> = self
            .operations
            .iter()
            .filter_map(|(id, operation)| (operation.group == group).then_some(id))
            .collect();
        ended.sort_unstable_by_key(|id| self.orders[id].number);
        for id in ended {
            let operation = self.forget(id).expect("just listed");
            let source = operation.peers.first().map(|peer| peer.world);
            let operation = self.describe(&operation);
            let result = Err(OperationError { operation, failure: failure.clone() });
            self.completions.push_back(Completion { operation: id, source, result });
        }
        self.any_source.retain(|(of, _), _| *of != group);
        self.drop_early_of(group);
    }

    pub(crate) fn queue_drop(&mut self, token: HoldToken) {
        self.work.push_back(Queued::Drop(token));
    }

    /// An operation in words: `all_reduce(f32, sum, 8 elements, ring) #3 of group 'world'`.
    pub(crate) fn describe(&self, operation: &Operation) -> String {
        let name = self.groups.get(&operation.group).map_or("?", |group| &group.name);
        format!("{} #{} of group '{name}'", operation.plan.descriptor, operation.sequence)
    }

    /// Whether one more operation may be in flight.
    pub fn has_room(&self) -> bool {
        self.operations.len() < self.config.max_operations
    }

    /// Number of operations in flight.
    pub fn operations_in_flight(&self) -> usize {
        self.operations.len()
    }

    /// What became of a group, if it has failed.
    pub fn failure_of(&self, group: u64) -> Option<Arc<Failure>> {
        self.groups.get(&group)?.failure.clone()
    }

    pub(crate) fn new_hold(&mut self, target: HoldTarget) -> HoldToken {
        self.next_hold += 1;
        self.holds.insert(self.next_hold, Hold { target, complete: false });
        self.next_hold
    }
}
