//! Takes frames from a lane to where the core says.

use gradwire_core::Apply;
use gradwire_core::{Arrival, Core, Header, HoldToken, OperationId, Placement, Time};
use gradwire_transport::{Landing, Receiver, Wire};
use rustc_hash::FxHashMap;

use super::apply::{Running, hold};
use super::pool::Pool;
use super::timeline::{Arriving, record_applied, record_received};
use crate::counters::{Counters, add};
use crate::trace::Recorder;

/// What becomes of the payload that a lane is receiving.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Current {
    Nothing,
    Apply(Placement),
    Hold(HoldToken),
    Abort { group: u64 },
}

impl Current {
    /// An operation has ended: nothing is applied to it any more.
    pub fn abandon(&mut self, operation: OperationId) {
        if matches!(self, Current::Apply(placement) if placement.operation == operation) {
            *self = Current::Nothing;
        }
    }
}

/// Receives from one lane.
pub(crate) struct Sink<'a> {
    pub core: &'a mut Core,
    pub operations: &'a mut FxHashMap<OperationId, Running>,
    pub holds: &'a mut FxHashMap<HoldToken, Box<[u8]>>,
    pub pool: &'a mut Pool,
    pub counters: &'a Counters,
    pub now: Time,
    pub peer: u32,
    pub current: &'a mut Current,
    pub goodbye: &'a mut Option<u32>,
    /// Bytes of tiles received from the peer.
    pub received: &'a mut u64,
    pub recorder: &'a Recorder,
    pub rank: u32,
    pub lane: usize,
    pub wire: Wire,
    pub arriving: &'a mut Option<Arriving>,
}

impl Sink<'_> {
    fn begin(&mut self) {
        let (lane, wire) = (self.lane as u32, self.wire);
        *self.arriving = self.recorder.begin().map(|since| Arriving { since, lane, wire });
    }

    /// A tile is complete.
    fn count(&mut self, header: &Header, operation: Option<OperationId>) {
        *self.received += u64::from(header.payload_bytes);
        if let Some(arriving) = self.arriving.take() {
            let running = operation.and_then(|operation| self.operations.get_mut(&operation));
            record_received(self.recorder, (self.rank, self.peer), header, arriving, running);
        }
    }

    fn land(&mut self, placement: Placement) -> Landing {
        *self.current = Current::Apply(placement);
        let Placement { operation, offset, tile, .. } = placement;
        let running = self.operations.get_mut(&operation).expect("it is in flight");
        match placement.apply {
            Apply::Reduce { .. } => Landing::Borrow,
            Apply::Copy { .. } if running.is_encoded(placement.step) => Landing::Borrow,
            Apply::Copy { destination } => {
                let pointer = running.address(destination, offset, tile, self.pool, self.counters);
                Landing::Direct { pointer, operation }
            }
        }
    }

    fn keep(&mut self, token: HoldToken, bytes: usize) -> Landing {
        *self.current = Current::Hold(token);
        let mut buffer = hold(bytes, self.pool, self.counters);
        let pointer = buffer.as_mut_ptr();
        self.holds.insert(token, buffer);
        // Operation 0 does not exist, so the landing is never abandoned; the buffer stays until
        // the core drops it, which it does only when it is complete.
        Landing::Direct { pointer, operation: 0 }
    }
}

impl Receiver for Sink<'_> {
    fn arriving(&mut self, header: &Header) -> Result<Landing, String> {
        add(&self.counters.frames_received, 1);
        *self.current = Current::Nothing;
        match self.core.on_frame(self.now, self.peer, header)? {
            Arrival::Control | Arrival::Discard => Ok(Landing::Discard),
            Arrival::Goodbye => {
                *self.goodbye = Some(header.tile);
                Ok(Landing::Discard)
            }
            Arrival::Abort { group } => {
                *self.current = Current::Abort { group };
                Ok(Landing::Borrow)
            }
            Arrival::Apply(placement) => {
                self.begin();
                Ok(self.land(placement))
            }
            Arrival::Hold(token) => {
                self.begin();
                Ok(self.keep(token, header.payload_bytes as usize))
            }
        }
    }

    fn landed(&mut self, header: &Header, payload: &[u8]) {
        match std::mem::replace(self.current, Current::Nothing) {
            Current::Nothing => {}
            Current::Apply(placement) => {
                add(&self.counters.bytes_received, header.payload_bytes.into());
                self.count(header, Some(placement.operation));
                // The operation may have ended since the header came.
                if let Some(running) = self.operations.get_mut(&placement.operation) {
                    let is_encoded = running.is_encoded(placement.step);
                    if is_encoded || matches!(placement.apply, Apply::Reduce { .. }) {
                        let start = self.recorder.begin();
                        running.apply(&placement, payload.as_ptr(), self.pool, self.counters);
                        if let Some(start) = start {
                            record_applied(self.recorder, running, &placement, start);
                        }
                    }
                    self.core.on_applied(placement.operation, placement.step, placement.tile);
                }
            }
            Current::Hold(token) => {
                self.count(header, None);
                self.core.on_held(token);
            }
            Current::Abort { group } => {
                if let Err(error) = self.core.on_abort(self.now, group, payload) {
                    tracing::warn!(peer = self.peer, error, "ignored");
                }
            }
        }
    }
}
