//! Who goes next: the engine's state machine, without I/O.
//!
//! [`Core`] knows which operations are in flight, how far each step of each schedule has come, what
//! each peer has posted, and what may be sent to whom. It never touches a socket, a clock, a thread
//! or a byte of a tensor: a driver tells it what happened (an operation was submitted, a frame's
//! header arrived, a peer is gone, time has passed) and asks it what to do (the next frame for a
//! peer, the next piece of local work, the operations that ended). The engine drives it over real
//! wires; the simulator and the adversary in the tests drive it over modelled ones.
//!
//! The data flow of one tile, and what bounds it:
//!
//! 1. A send step whose tile is ready stands in its peer's queue until a lane has room
//!    ([`Core::next_send`]): one entry for each step, not for each tile.
//! 2. Until the receiver is known to have posted the operation, only [`Config::early_bytes`] of it
//!    may go, and only [`Config::early_budget_bytes`] of all operations together; the receiver
//!    returns the budget as credit in every header.
//! 3. The receiver says where the tile lands ([`Arrival`]): applied at once, or held while an
//!    earlier contribution is missing (reductions have one fixed order). At most
//!    [`Config::window_tiles`] tiles of a step are unacknowledged, so that is what can be held.
//!
//! Invariants: no I/O, no clock, no threads, no randomness; the same events give the same actions.
#![forbid(unsafe_code)]

mod arrival;
mod core;
mod descriptor;
mod failure;
mod group;
mod header;
mod inspect;
mod liveness;
mod occupancy;
mod operation;
mod peer;
mod plan;
mod sending;
mod time;

pub use crate::core::{
    Apply, Arrival, Completion, Config, Core, HoldToken, OperationError, OperationId, Outgoing,
    Placement, Source, Submission, SubmitError, Work,
};
pub use descriptor::{Descriptor, describe};
pub use failure::{Cause, Failure, MAX_FAILURE_TEXT};
pub use header::{FrameKind, HEADER_BYTES, Header, HeaderError, MAX_PAYLOAD_BYTES, WIRE_VERSION};
pub use inspect::{Identity, Pending};
pub use occupancy::{EarlyAccount, Occupancy};
pub use plan::{ANY_SOURCE, Plan, PlanError, PlannedPeer, PlannedScratch, PlannedStep};
pub use time::Time;
