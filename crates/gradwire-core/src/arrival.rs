//! What becomes of an arriving frame.

use std::sync::Arc;

use gradwire_schedule::Collective;

use crate::core::{Arrival, Core, HoldToken, OperationId};
use crate::descriptor::describe;
use crate::failure::{Cause, Failure};
use crate::peer::Liveness;
use crate::{FrameKind, HEADER_BYTES, Header, Time};

/// What a collective's key has in place of a peer.
const WHOLE_GROUP: u32 = u32::MAX;

/// The identity by which frames find their operation, the same on every rank but for the two ends
/// of a point-to-point operation, which name each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub group: u64,
    pub sequence: u64,
    pub tag: u32,
    /// The other end's world rank; [`WHOLE_GROUP`] for collectives.
    pub peer: u32,
    /// This end sends.
    pub outgoing: bool,
}

impl Key {
    pub fn collective(group: u64, sequence: u64) -> Self {
        Key { group, sequence, tag: 0, peer: WHOLE_GROUP, outgoing: false }
    }

    fn of(peer: u32, header: &Header) -> Self {
        if !is_point_to_point(header) {
            return Key::collective(header.group, header.sequence);
        }
        Key {
            group: header.group,
            sequence: header.sequence,
            tag: header.tag,
            peer,
            outgoing: matches!(header.kind, FrameKind::Ready | FrameKind::Acknowledge),
        }
    }
}

fn is_point_to_point(header: &Header) -> bool {
    header.collective == Collective::SendReceive { from: 0, to: 0 }.code()
}

/// Frames about an operation that is not posted here yet, in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct Early {
    frames: Vec<(u32, Header, Option<HoldToken>)>,
}

/// A payload that the driver holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub target: HoldTarget,
    /// All of it has arrived.
    pub complete: bool,
}

/// What a held payload waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HoldTarget {
    /// Its operation is not posted.
    Early,
    /// Its turn.
    Tile { operation: OperationId, step: u32, tile: u32 },
    /// Nothing; it is dropped when complete.
    Nothing,
}

impl Core {
    /// A frame's header has arrived. An error is a violation of the protocol: the driver closes
    /// the lane and reports the peer as lost.
    pub fn on_frame(&mut self, now: Time, peer: u32, header: &Header) -> Result<Arrival, String> {
        self.now = now;
        let state = &mut self.peers[peer as usize];
        if let Liveness::Lost(why) = &state.liveness {
            // It was given up, and must learn of it: a closed lane says so.
            return Err(format!("a frame of a rank that was given up: {why}"));
        }
        state.last_heard = now;
        if state.take_credit(header.credit) {
            self.poll_starved(peer);
        }
        match header.kind {
            FrameKind::Ping => {
                self.peers[peer as usize].queue_pong();
                Ok(Arrival::Control)
            }
            FrameKind::Pong | FrameKind::Credit => Ok(Arrival::Control),
            FrameKind::Goodbye => Ok(Arrival::Goodbye),
            FrameKind::Abort => {
                self.check_member(peer, header.group)?;
                Ok(Arrival::Abort { group: header.group })
            }
            FrameKind::Data | FrameKind::Ready | FrameKind::Request | FrameKind::Acknowledge => {
                if header.kind != FrameKind::Data && header.payload_bytes != 0 {
                    return Err(format!("a {:?} frame carries a payload", header.kind));
                }
                self.on_operation_frame(peer, header)
            }
        }
    }

    /// There is budget for early data again.
    fn poll_starved(&mut self, peer: u32) {
        for (id, step) in std::mem::take(&mut self.peers[peer as usize].starved) {
            let operation = self.operations.get_mut(id).expect("one that ends leaves the list");
            operation.steps[step as usize].starved = false;
            self.poll(id, step);
        }
    }

    fn check_member(&self, peer: u32, group: u64) -> Result<(), String> {
        match self.groups.get(&group) {
            Some(group) if !group.members.contains(&peer) => {
                Err(format!("a frame about group '{}', of which it is no member", group.name))
            }
            _ => Ok(()),
        }
    }

    fn on_operation_frame(&mut self, peer: u32, header: &Header) -> Result<Arrival, String> {
        let key = Key::of(peer, header);
        if let Some(operation) = self.find_operation(peer, header, key)? {
            return self.deliver(operation, peer, header);
        }
        if self.is_stale(&key) {
            self.check_stale(peer, header);
            return Ok(self.discard(peer, header));
        }
        self.keep_early(peer, header, key)
    }

    fn find_operation(
        &mut self,
        peer: u32,
        header: &Header,
        key: Key,
    ) -> Result<Option<OperationId>, String> {
        if let Some(operation) = self.keys.get(&key) {
            return Ok(Some(*operation));
        }
        self.check_member(peer, key.group)?;
        if !is_point_to_point(header) || key.outgoing {
            return Ok(None);
        }
        let operation = self.bind_any_source(peer, key);
        if operation.is_some() {
            // Later messages of this sender may have overtaken this one.
            self.match_any_source(key.group, key.tag);
        }
        Ok(operation)
    }

    /// Matches the oldest receive from any source with a sender whose next message this is.
    fn bind_any_source(&mut self, peer: u32, key: Key) -> Option<OperationId> {
        let next = self.channels.get(&(key.group, peer, key.tag, false)).copied().unwrap_or(0);
        let waiting = self.any_source.get_mut(&(key.group, key.tag))?;
        if next != key.sequence {
            return None;
        }
        let operation = waiting.pop_front()?;
        if waiting.is_empty() {
            self.any_source.remove(&(key.group, key.tag));
        }
        let key = self.next_point_to_point(key.group, peer, key.tag, false);
        self.operations.get_mut(operation)?.peers[0].world = peer;
        self.start(operation, key);
        Some(operation)
    }

    /// A receive from any source was posted: perhaps its sender has been heard of already.
    pub(crate) fn match_any_source(&mut self, group: u64, tag: u32) {
        while self.any_source.contains_key(&(group, tag)) {
            let next =
                |key: &Key| self.channels.get(&(group, key.peer, tag, false)).copied().unwrap_or(0);
            let candidate = self
                .early
                .keys()
                .filter(|key| key.group == group && key.tag == tag && key.peer != WHOLE_GROUP)
                .filter(|key| !key.outgoing && key.sequence == next(key))
                .min_by_key(|key| key.peer)
                .copied();
            let Some(key) = candidate else { return };
            if self.bind_any_source(key.peer, key).is_none() {
                return;
            }
        }
    }

    /// Whether a frame is about an operation that has ended here, or will never be posted.
    fn is_stale(&self, key: &Key) -> bool {
        let Some(group) = self.groups.get(&key.group) else {
            let id = key.group;
            return self.removed.contains(id) || self.early_failures.contains_key(&id);
        };
        if group.failure.is_some() {
            return true;
        }
        if key.peer == WHOLE_GROUP {
            return key.sequence < group.next_sequence;
        }
        let channel = (key.group, key.peer, key.tag, key.outgoing);
        key.sequence < self.channels.get(&channel).copied().unwrap_or(0)
    }

    /// A rank may have asked for another operation than the one that ended here without its help.
    fn check_stale(&mut self, peer: u32, header: &Header) {
        if is_point_to_point(header) {
            // Messages are numbered for themselves, and both their ends take part.
            return;
        }
        let Some(group) = self.groups.get(&header.group) else { return };
        let finished = group.finished(header.sequence).copied();
        if let Some(descriptor) = finished.filter(|descriptor| !descriptor.matches(header)) {
            self.mismatch(header, peer, &descriptor.to_string());
        }
    }

    fn discard(&mut self, peer: u32, header: &Header) -> Arrival {
        self.consume(peer, header);
        if header.kind == FrameKind::Data { Arrival::Discard } else { Arrival::Control }
    }

    /// Early data has been dealt with: its sender gets its budget back.
    fn consume(&mut self, peer: u32, header: &Header) {
        if header.kind != FrameKind::Data || !header.early {
            return;
        }
        let half = self.config.early_budget_bytes / 2;
        let state = &mut self.peers[peer as usize];
        state.consumed = state.consumed.wrapping_add(header.payload_bytes + HEADER_BYTES as u32);
        if state.consumed.wrapping_sub(state.advertised) >= half {
            state.advertised = state.consumed;
            state.queue_credit();
        }
    }

    fn keep_early(&mut self, peer: u32, header: &Header, key: Key) -> Result<Arrival, String> {
        if header.kind == FrameKind::Acknowledge {
            return Err("an acknowledgement for an operation that was never posted".to_owned());
        }
        if header.kind == FrameKind::Data && !header.early {
            return Err("data for an operation that was never posted".to_owned());
        }
        // An operation in flight there has sent a Ready and a Request; one that is over a Request
        // and a tile at least, which is counted against the budget.
        let tiles = self.config.early_budget_bytes / HEADER_BYTES as u32;
        let operations = u32::try_from(self.config.max_operations).unwrap_or(u32::MAX);
        let limit = tiles.saturating_mul(2).saturating_add(operations.saturating_mul(2));
        let budget = self.config.early_budget_bytes;
        let state = &mut self.peers[peer as usize];
        let held = state.early_held.saturating_add(header.payload_bytes);
        if state.early_frames >= limit || held > budget {
            return Err("more early frames than any rank may send".to_owned());
        }
        state.early_frames += 1;
        state.early_held = held;
        let token = (header.kind == FrameKind::Data).then(|| self.new_hold(HoldTarget::Early));
        self.early.entry(key).or_default().frames.push((peer, *header, token));
        Ok(token.map_or(Arrival::Control, Arrival::Hold))
    }

    /// An operation was posted: deals with the frames that came before.
    pub(crate) fn replay_early(&mut self, id: OperationId, key: Key) {
        let Some(early) = self.early.remove(&key) else { return };
        for (peer, header, token) in early.frames {
            self.forget_early(peer, &header);
            // The peer's frame was checked when it came; what can still be wrong ends the group.
            match self.deliver_held(id, peer, &header, token) {
                Ok(()) => {}
                Err(violation) => self.fail_violation(key.group, peer, violation),
            }
        }
    }

    fn forget_early(&mut self, peer: u32, header: &Header) {
        let state = &mut self.peers[peer as usize];
        state.early_frames -= 1;
        if header.kind == FrameKind::Data {
            state.early_held -= header.payload_bytes;
        }
    }

    fn fail_violation(&mut self, group: u64, peer: u32, violation: String) {
        let text = format!("{} broke the protocol: {violation}", self.peers[peer as usize].label);
        self.fail_group(group, Cause::Violation, Some(peer), text);
    }

    /// Replays one frame whose payload, if any, lies in a hold.
    fn deliver_held(
        &mut self,
        id: OperationId,
        peer: u32,
        header: &Header,
        token: Option<HoldToken>,
    ) -> Result<(), String> {
        let Some(token) = token else {
            return self.deliver(id, peer, header).map(|_| ());
        };
        self.consume(peer, header);
        let tile =
            if self.operations.get(id).is_some() { self.admit(id, peer, header) } else { Ok(None) };
        let Ok(Some((step, tile))) = tile else {
            self.drop_hold(token);
            return tile.map(|_| ());
        };
        let hold = self.holds.get_mut(&token).expect("an early tile has a hold");
        hold.target = HoldTarget::Tile { operation: id, step, tile };
        if hold.complete {
            self.hold_is_complete(id, step, tile, token);
        }
        Ok(())
    }

    /// A frame for an operation in flight.
    fn deliver(&mut self, id: OperationId, peer: u32, header: &Header) -> Result<Arrival, String> {
        self.consume(peer, header);
        match header.kind {
            FrameKind::Data => {
                let Some((step, tile)) = self.admit(id, peer, header)? else {
                    return Ok(Arrival::Discard);
                };
                let operation = self.operations.get(id).expect("it was admitted");
                if operation.is_tile_runnable(step, tile, self.config.window_tiles) {
                    let placement = self.placement(id, step, tile).expect("it was admitted");
                    return Ok(Arrival::Apply(placement));
                }
                let target = HoldTarget::Tile { operation: id, step, tile };
                Ok(Arrival::Hold(self.new_hold(target)))
            }
            FrameKind::Acknowledge => self.on_acknowledge(id, peer, header),
            FrameKind::Request => {
                if let Some(index) = self.join(id, peer, header) {
                    self.queue_ready(id, index);
                }
                Ok(Arrival::Control)
            }
            _ => {
                self.join(id, peer, header);
                Ok(Arrival::Control)
            }
        }
    }

    /// Checks that a peer means the same operation and notes that it has posted it. `None` if it
    /// means another one; the group has failed then.
    fn join(&mut self, id: OperationId, peer: u32, header: &Header) -> Option<usize> {
        let operation = self.operations.get_mut(id)?;
        if !operation.plan.descriptor.matches(header) {
            let mine = operation.plan.descriptor.to_string();
            self.mismatch(header, peer, &mine);
            return None;
        }
        let Some(index) = operation.peer_index(peer) else {
            let mine = operation.plan.descriptor.to_string();
            self.mismatch(header, peer, &mine);
            return None;
        };
        if !std::mem::replace(&mut operation.peers[index].joined, true) {
            let plan = operation.plan.clone();
            for step in &plan.peers[index].sends {
                self.poll(id, *step);
            }
        }
        Some(index)
    }

    /// Checks a tile against the operation: the step and tile it is for, or `None` if the group
    /// has failed over it.
    fn admit(
        &mut self,
        id: OperationId,
        peer: u32,
        header: &Header,
    ) -> Result<Option<(u32, u32)>, String> {
        let Some(index) = self.join(id, peer, header) else { return Ok(None) };
        let window = self.config.window_tiles;
        let operation = self.operations.get_mut(id).expect("it was joined");
        let plan = operation.plan.clone();
        let Some(step) = operation.step_of_edge(index, header.edge, true) else {
            return Err(format!("{} has no receive number {}", plan.descriptor, header.edge));
        };
        let expected = plan.steps[step as usize].bytes;
        if header.chunk_bytes != expected {
            let (label, mine) = (&self.peers[peer as usize].label, self.config.rank);
            let sent = header.chunk_bytes;
            let text = format!(
                "ranks disagree on sizes in {} #{}: {label} sends {sent} bytes where rank {mine} expects {expected}",
                plan.descriptor, header.sequence
            );
            self.fail_group(header.group, Cause::Mismatch, Some(peer), text);
            return Ok(None);
        }
        if !operation.accepts(step, header.tile, window) {
            return Err(format!("tile {} of step {step} is not expected", header.tile));
        }
        if plan.wire_bytes(step, header.tile) != header.payload_bytes {
            return Err(format!(
                "a tile of {} bytes where {} were expected: all ranks need the same tile size",
                header.payload_bytes,
                plan.wire_bytes(step, header.tile)
            ));
        }
        let state = &mut operation.steps[step as usize];
        state.seen_mask |= 1 << (header.tile - state.done);
        Ok(Some((step, header.tile)))
    }

    fn mismatch(&mut self, header: &Header, peer: u32, mine: &str) {
        let Some(group) = self.groups.get(&header.group) else { return };
        let text = format!(
            "ranks ask for different operations at #{} of group '{}': {} asks for {}, rank {} for {mine}",
            header.sequence,
            group.name,
            self.peers[peer as usize].label,
            describe(header),
            self.config.rank,
        );
        self.fail_group(header.group, Cause::Mismatch, Some(peer), text);
    }

    fn on_acknowledge(
        &mut self,
        id: OperationId,
        peer: u32,
        header: &Header,
    ) -> Result<Arrival, String> {
        let Some(index) = self.join(id, peer, header) else { return Ok(Arrival::Control) };
        let operation = self.operations.get_mut(id).expect("it was joined");
        let Some(step) = operation.step_of_edge(index, header.edge, false) else {
            return Err(format!("acknowledges send number {}, there is none", header.edge));
        };
        let state = &mut operation.steps[step as usize];
        if header.tile > state.next {
            return Err(format!("acknowledges {} tiles of {} sent", header.tile, state.next));
        }
        state.acknowledged = state.acknowledged.max(header.tile);
        self.poll(id, step);
        Ok(Arrival::Control)
    }

    /// A held payload is complete.
    pub fn on_held(&mut self, token: HoldToken) {
        let Some(hold) = self.holds.get_mut(&token) else { return };
        hold.complete = true;
        match hold.target {
            HoldTarget::Early => {}
            HoldTarget::Tile { operation, step, tile } => {
                self.hold_is_complete(operation, step, tile, token);
            }
            HoldTarget::Nothing => {
                self.holds.remove(&token);
                self.queue_drop(token);
            }
        }
    }

    fn hold_is_complete(&mut self, id: OperationId, step: u32, tile: u32, token: HoldToken) {
        let Some(operation) = self.operations.get_mut(id) else {
            self.holds.remove(&token);
            self.queue_drop(token);
            return;
        };
        let state = &mut operation.steps[step as usize];
        state.held_mask |= 1 << (tile - state.done);
        operation.held.insert((step, tile), token);
        self.poll(id, step);
    }

    /// Nobody wants a held payload any more.
    fn drop_hold(&mut self, token: HoldToken) {
        let Some(hold) = self.holds.get_mut(&token) else { return };
        if hold.complete {
            self.holds.remove(&token);
            self.queue_drop(token);
        } else {
            hold.target = HoldTarget::Nothing;
        }
    }

    /// A group has failed: what came early for it is of no use.
    pub(crate) fn drop_early_of(&mut self, group: u64) {
        self.drop_early(|key, _| key.group == group);
    }

    /// A peer is lost: nobody will post what it sent early.
    pub(crate) fn drop_early_from(&mut self, lost: u32) {
        self.drop_early(|_, peer| peer == lost);
    }

    fn drop_early(&mut self, unwanted: impl Fn(&Key, u32) -> bool) {
        let mut dropped = Vec::new();
        self.early.retain(|key, early| {
            dropped.extend(early.frames.extract_if(.., |(peer, ..)| unwanted(key, *peer)));
            !early.frames.is_empty()
        });
        for (peer, header, token) in dropped {
            self.forget_early(peer, &header);
            self.consume(peer, &header);
            if let Some(token) = token {
                self.drop_hold(token);
            }
        }
    }

    /// The payload of an [`Arrival::Abort`] is here.
    pub fn on_abort(&mut self, now: Time, group: u64, payload: &[u8]) -> Result<(), String> {
        self.now = now;
        let failure = Failure::decode(payload).ok_or("an abort frame that says nothing")?;
        if self.groups.contains_key(&group) {
            self.spread_failure(group, Arc::new(failure));
        } else if !self.removed.contains(group)
            && self.early_failures.len() < self.config.max_operations
        {
            self.early_failures.entry(group).or_insert_with(|| Arc::new(failure));
            self.drop_early_of(group);
        }
        Ok(())
    }
}
