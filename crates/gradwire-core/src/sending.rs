//! What goes to a peer next.

use gradwire_schedule::{StepIndex, StepKind};

use crate::core::{Core, OperationId, Outgoing, Source};
use crate::operation::{MAX_WINDOW, Operation};
use crate::peer::{Control, Peer};
use crate::{FrameKind, HEADER_BYTES, Header};

/// Whether the next tile of a send step may go.
enum Gate {
    Go { early: bool },
    Wait,
    NotJoined,
    Starved,
}

impl Core {
    pub(crate) fn poll_send(&mut self, id: OperationId, step: StepIndex) {
        let operation = self.operations.get(id).expect("looked up by the caller");
        if operation.steps[step as usize].queued {
            return;
        }
        let peer = operation.plan.steps[step as usize].peer;
        let world = operation.peers[peer].world;
        match self.gate(operation, step) {
            Gate::Go { .. } => {
                let order = self.orders[&id];
                self.peers[world as usize].runnable.entry(order).or_default().push_back((id, step));
                self.operations.get_mut(id).expect("as above").steps[step as usize].queued = true;
            }
            Gate::Wait => {}
            Gate::NotJoined => {
                // A collective's receiver that expects more than the early bytes says Ready by
                // itself; a receive from any source can't, it does not know whom to tell. (If the
                // receiver expects less than is sent, `ask_who_has_joined` finds out.)
                let planned = &operation.plan.peers[peer];
                let unasked = planned.send_bytes > u64::from(self.config.early_bytes);
                if !unasked || operation.plan.descriptor.is_point_to_point() {
                    self.queue_request(id, peer);
                }
            }
            Gate::Starved => {
                let state =
                    &mut self.operations.get_mut(id).expect("as above").steps[step as usize];
                if !std::mem::replace(&mut state.starved, true) {
                    self.peers[world as usize].starved.push((id, step));
                }
                self.queue_request(id, peer);
            }
        }
    }

    fn gate(&self, operation: &Operation, step: StepIndex) -> Gate {
        let planned = &operation.plan.steps[step as usize];
        let state = &operation.steps[step as usize];
        let tile = state.next;
        let window = self.config.window_tiles;
        if tile >= planned.tiles
            || tile >= state.acknowledged + window
            || tile >= state.done + MAX_WINDOW
            || !operation.is_tile_runnable(step, tile, window)
        {
            return Gate::Wait;
        }
        let peer = &operation.peers[planned.peer];
        if peer.joined {
            return Gate::Go { early: false };
        }
        let bytes = operation.plan.wire_bytes(step, tile) + HEADER_BYTES as u32;
        if peer.early_bytes + bytes > self.config.early_bytes + HEADER_BYTES as u32 {
            return Gate::NotJoined;
        }
        let in_flight = self.peers[peer.world as usize].early_in_flight();
        if in_flight + bytes > self.config.early_budget_bytes {
            return Gate::Starved;
        }
        Gate::Go { early: true }
    }

    pub(crate) fn header_of(&self, kind: FrameKind, operation: &Operation) -> Header {
        let mut header = Header::new(kind);
        operation.plan.descriptor.put(&mut header);
        header.group = operation.group;
        header.sequence = operation.sequence;
        header.tag = operation.tag;
        header
    }

    /// Tells a peer that an operation is posted here, once.
    pub(crate) fn queue_ready(&mut self, id: OperationId, peer: usize) {
        let operation = self.operations.get_mut(id).expect("looked up by the caller");
        if std::mem::replace(&mut operation.peers[peer].told, true) {
            return;
        }
        let world = operation.peers[peer].world;
        let operation = self.operations.get(id).expect("as above");
        let header = self.header_of(FrameKind::Ready, operation);
        self.peers[world as usize].control.push_back(Control::Plain(header));
    }

    /// Asks a peer to say when it has posted an operation, once.
    pub(crate) fn queue_request(&mut self, id: OperationId, peer: usize) {
        let operation = self.operations.get_mut(id).expect("looked up by the caller");
        if std::mem::replace(&mut operation.peers[peer].requested, true) {
            return;
        }
        let world = operation.peers[peer].world;
        let operation = self.operations.get(id).expect("as above");
        let header = self.header_of(FrameKind::Request, operation);
        self.peers[world as usize].control.push_back(Control::Plain(header));
    }

    /// Whether [`Core::next_send`] might have a frame for a peer.
    pub fn has_something_to_send(&self, peer: u32) -> bool {
        self.peers[peer as usize].has_something_to_send()
    }

    /// The next frame for a peer. Call it when a lane has room, so that the order is decided late.
    pub fn next_send(&mut self, peer: u32) -> Option<Outgoing> {
        let outgoing = self.next_control(peer).or_else(|| self.next_tile(peer, Peer::pick))?;
        Some(self.with_credit(peer, outgoing))
    }

    /// The next tile for a peer that belongs to an operation whose priority is below `priority`: for
    /// a lane that is kept free of others.
    pub fn next_urgent_send(&mut self, peer: u32, priority: u8) -> Option<Outgoing> {
        let outgoing = self.next_tile(peer, |peer| peer.pick_below(priority))?;
        Some(self.with_credit(peer, outgoing))
    }

    fn with_credit(&mut self, peer: u32, mut outgoing: Outgoing) -> Outgoing {
        let peer = &mut self.peers[peer as usize];
        peer.advertised = peer.consumed;
        outgoing.header.credit = peer.consumed;
        outgoing
    }

    fn next_control(&mut self, peer: u32) -> Option<Outgoing> {
        loop {
            let state = &mut self.peers[peer as usize];
            let control = state.control.pop_front()?;
            let (mut header, source) = match control {
                Control::Plain(header) => {
                    state.has_left(header.kind);
                    (header, Source::Empty)
                }
                Control::Abort { group, failure } => {
                    let mut header = Header::new(FrameKind::Abort);
                    header.group = group;
                    (header, Source::Bytes(failure.encode()))
                }
                Control::Acknowledge { operation: id, step } => {
                    // An operation that has ended has received all: nobody waits for this.
                    let Some(operation) = self.operations.get_mut(id) else { continue };
                    let state = &mut operation.steps[step as usize];
                    state.queued = false;
                    state.acknowledged = state.done;
                    let operation = self.operations.get(id).expect("as above");
                    let mut header = self.header_of(FrameKind::Acknowledge, operation);
                    header.edge = operation.plan.steps[step as usize].edge;
                    header.tile = operation.steps[step as usize].done;
                    (header, Source::Empty)
                }
            };
            if let Source::Bytes(bytes) = &source {
                header.payload_bytes = bytes.len() as u32;
            }
            return Some(Outgoing { header, source });
        }
    }

    fn next_tile(
        &mut self,
        world: u32,
        pick: impl Fn(&mut Peer) -> Option<(OperationId, StepIndex)>,
    ) -> Option<Outgoing> {
        loop {
            let (id, step) = pick(&mut self.peers[world as usize])?;
            let Some(operation) = self.operations.get_mut(id) else { continue };
            operation.steps[step as usize].queued = false;
            let gate = self.gate(self.operations.get(id).expect("as above"), step);
            let Gate::Go { early } = gate else {
                self.poll_send(id, step);
                continue;
            };
            let outgoing = self.emit(id, step, early);
            self.poll_send(id, step);
            return Some(outgoing);
        }
    }

    fn emit(&mut self, id: OperationId, step: StepIndex, early: bool) -> Outgoing {
        let operation = self.operations.get_mut(id).expect("looked up by the caller");
        let tile = operation.steps[step as usize].next;
        operation.steps[step as usize].next += 1;
        let plan = operation.plan.clone();
        let planned = &plan.steps[step as usize];
        let (offset, _) = plan.tile(step, tile);
        let bytes = plan.wire_bytes(step, tile);
        if early {
            let cost = bytes + HEADER_BYTES as u32;
            let peer = &mut operation.peers[planned.peer];
            peer.early_bytes += bytes;
            let peer = &mut self.peers[peer.world as usize];
            peer.early_sent = peer.early_sent.wrapping_add(cost);
        }
        let operation = self.operations.get(id).expect("as above");
        let mut header = self.header_of(FrameKind::Data, operation);
        header.early = early;
        header.edge = planned.edge;
        header.tile = tile;
        header.chunk_bytes = planned.bytes;
        header.payload_bytes = bytes;
        let StepKind::Send { source: slot, .. } = planned.kind else {
            unreachable!("only sends stand in a peer's queue")
        };
        Outgoing { header, source: Source::Tile { operation: id, step, tile, slot, offset } }
    }
}
