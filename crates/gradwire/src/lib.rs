//! Run collectives over real wires.
//!
//! An [`Engine`] is one process's end of a job: it listens, connects on first use, and drives the
//! state machine of `gradwire-core` over the lanes of `gradwire-transport`. A [`Communicator`] is a
//! group of ranks on it. Operations work on the caller's memory, in place and without copies, and
//! are asynchronous: [`Communicator::submit`] returns a [`Handle`].
//!
//! Threads: the thread that waits for an operation drives all of them; a background thread drives
//! while nobody waits, and answers peers while nothing is in flight. Nothing else runs.
//!
//! Memory: beside the caller's tensors the engine holds, for each receive step in flight, at most
//! `window` tiles that came before their turn, and as much scratch where a collective may not write
//! to its input; nothing grows with the size of a tensor. With a codec it also keeps what it spreads
//! of the result until the slowest receiver has it: at most one chunk, encoded.

mod communicator;
mod config;
mod counters;
mod driver;
mod engine;
mod environment;
mod error;
mod logging;
mod memory;
mod status;
mod store;
pub mod trace;
mod wait;

pub use communicator::{Communicator, Request};
pub use config::{EngineConfig, StatusChoice, TransportChoice};
pub use engine::Engine;
pub use environment::{JobEnvironment, NoJob};
pub use error::Error;
pub use gradwire_codec::Codec;
pub use gradwire_core::{Cause, Failure};
pub use gradwire_reduce::{DataType, ReduceOp};
pub use gradwire_schedule::{Algorithm, Collective};
pub use logging::start_logging;
pub use memory::{Element, Memory};
pub use status::{Link, Oldest, Status, status_directory};
pub use store::{FileStore, Store, StoreServer, TcpStore};
pub use wait::Handle;
