//! What the driver records while a trace is on.

use gradwire_core::{Header, Identity, OperationError, OperationId, Placement};
use gradwire_schedule::Collective;
use gradwire_transport::Wire;

use super::apply::Running;
use super::{Driver, InFlight, Start};
use crate::trace::{
    CLOCK_GROUP, Direction, Event, OperationKey, OperationTrace, Recorder, TileTrace, Work,
    WorkTrace, now,
};

/// What of an operation is recorded before it is handed over.
pub(super) struct Introduction {
    pub priority: u8,
    pub label: Option<String>,
}

impl Introduction {
    pub fn of(start: &mut Start) -> Self {
        Introduction { priority: start.priority, label: start.label.take() }
    }
}

impl Driver {
    /// Begins to record an operation that has just been submitted.
    pub(super) fn introduce(
        &mut self,
        id: OperationId,
        introduction: Introduction,
        running: &mut Running,
    ) {
        let Some(submitted) = self.recorder.begin() else { return };
        // One that has ended already has moved nothing.
        let Some(identity) = self.core.identity(id) else { return };
        if let Some(name) = self.core.group_name(identity.group) {
            self.recorder.name_group(identity.group, name);
        }
        let plan = &running.plan;
        let message = plan.descriptor.is_point_to_point().then(|| {
            let sends = plan.peers.first().is_some_and(|peer| !peer.sends.is_empty());
            let peer = running.peers.first().copied();
            if sends { (Some(self.rank), peer.unwrap_or(self.rank)) } else { (peer, self.rank) }
        });
        let whole = |lengths: &[u64]| lengths.iter().sum::<u64>();
        running.trace = Some(Box::new(OperationTrace {
            id,
            key: OperationKey { identity, message },
            what: plan.descriptor,
            label: introduction.label,
            priority: introduction.priority,
            bytes: whole(&plan.input_bytes).max(whole(&plan.output_bytes)),
            submitted,
            first: None,
            sent: 0,
            received: 0,
        }));
    }

    /// Records that an operation has ended.
    pub(super) fn record_ended(
        &mut self,
        running: &mut Running,
        result: &Result<(), OperationError>,
    ) {
        if let Some(trace) = running.trace.take() {
            let error = result.as_ref().err().map(|error| error.to_string().into());
            self.recorder.push(Event::Operation { trace, ended: now(), error });
        }
    }

    /// Whether it is one of those with which ranks compare their clocks, and that may fail as ranks
    /// leave.
    pub(super) fn compares_clocks(&self, running: &Running) -> bool {
        self.core.group_name(running.group) == Some(CLOCK_GROUP)
    }

    /// Notes that a lane was given a tile.
    pub(super) fn record_handed(&mut self, operation: OperationId) -> Option<u64> {
        let handed = self.recorder.begin()?;
        let trace = self.operations.get_mut(&operation)?.trace.as_mut()?;
        trace.moves(handed);
        Some(handed)
    }

    /// Records a tile that a lane is through with.
    pub(super) fn record_sent(&mut self, sent: &InFlight, handed: u64) {
        let end = now();
        let Some(entry) = self.lanes[sent.lane].as_mut() else { return };
        let Some(running) = self.operations.get_mut(&sent.operation) else { return };
        let bytes = running.plan.wire_bytes(sent.step, sent.tile);
        let edge = running.plan.steps[sent.step as usize].edge;
        let Some(trace) = &mut running.trace else { return };
        trace.sent += u64::from(bytes);
        let start = handed.max(entry.sent_until).min(end);
        entry.sent_until = end;
        self.recorder.push(Event::Tile(TileTrace {
            direction: Direction::Sent,
            key: trace.key,
            peer: entry.peer,
            lane: sent.lane as u32,
            wire: entry.lane.wire(),
            edge,
            tile: sent.tile,
            bytes,
            handed,
            start,
            end,
        }));
    }
}

/// A tile that is arriving, where a trace is being recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arriving {
    pub since: u64,
    pub lane: u32,
    pub wire: Wire,
}

/// The operation that a frame from a peer belongs to, whether it is known here or not.
fn key_of(rank: u32, peer: u32, header: &Header) -> OperationKey {
    let Header { group, sequence, tag, .. } = *header;
    let is_message = header.collective == Collective::SendReceive { from: 0, to: 0 }.code();
    OperationKey {
        identity: Identity { group, sequence, tag: if is_message { tag } else { 0 } },
        message: is_message.then_some((Some(peer), rank)),
    }
}

/// Records a tile whose payload is complete, and which message it was that a receive from any
/// source has found.
pub(super) fn record_received(
    recorder: &Recorder,
    (rank, peer): (u32, u32),
    header: &Header,
    arriving: Arriving,
    running: Option<&mut Running>,
) {
    let key = key_of(rank, peer, header);
    if let Some(trace) = running.and_then(|running| running.trace.as_mut()) {
        trace.key = key;
        trace.moves(arriving.since);
        trace.received += u64::from(header.payload_bytes);
    }
    recorder.push(Event::Tile(TileTrace {
        direction: Direction::Received,
        key,
        peer,
        lane: arriving.lane,
        wire: arriving.wire,
        edge: header.edge,
        tile: header.tile,
        bytes: header.payload_bytes,
        handed: arriving.since,
        start: arriving.since,
        end: now(),
    }));
}

/// Records what was done with a tile from `start` until now.
pub(super) fn record_work(
    recorder: &Recorder,
    running: &Running,
    work: Work,
    (tile, bytes): (u32, u32),
    start: u64,
) {
    if let Some(trace) = &running.trace {
        let key = trace.key;
        recorder.push(Event::Work(WorkTrace { work, key, tile, bytes, start, end: now() }));
    }
}

/// Records that a tile was applied.
pub(super) fn record_applied(
    recorder: &Recorder,
    running: &Running,
    placement: &Placement,
    start: u64,
) {
    let tile = (placement.tile, placement.bytes);
    record_work(recorder, running, running.work_of(placement), tile, start);
}
