//! The wires that frames travel on: TCP and shared memory.
//!
//! A [`Lane`] is one stream of frames to one peer. The engine pulls frames from the core when a
//! lane has room ([`Lane::ready_to_send`]), and is shown each arriving frame's header before its
//! payload, so that it can say where the payload lands ([`Landing`]).

mod doorbell;
mod endpoint;
pub mod handshake;
mod interfaces;
mod lane;
mod lobby;
mod poller;
mod promptness;
mod shared_memory;
mod spin;
mod tcp;

pub use doorbell::Doorbell;
pub use endpoint::{Address, Endpoint, EndpointError, host_identity};
pub use interfaces::{Interface, InterfaceError, discover, select};
pub use lane::{Frame, Landing, Lane, LaneError, Payload, Receiver, Sent, Wire};
pub use lobby::{Directory, FailureKind, Lobby, LobbyConfig, LobbyEvent, MAX_LANES};
pub use poller::{Poller, Readiness, Waker, Woken};
pub use promptness::prefer_short_turns;
pub use shared_memory::{Segment, SharedMemoryLane};
pub use spin::{Spin, SpinStep};
pub use tcp::{TcpLane, TcpTuning, tune};
