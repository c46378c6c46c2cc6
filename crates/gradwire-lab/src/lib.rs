//! Real hosts on one machine, out of network namespaces, without root.
//!
//! A [`Lab`] describes hosts joined by switches: each host has its own network namespace (and
//! hostname, `/dev/shm`, System V IPC), one veth pair per NIC to one bridge per NIC, and a rate at
//! which its links carry bytes in each direction. [`Lab::start`] brings it up and runs one command
//! on every rank with the environment that `torchrun` would give it; [`control`] cuts, restores
//! and reshapes the links of a lab that is running.
//!
//! # How a lab is built, and why nothing stays behind
//!
//! The program re-executes itself three times, one process inside the other:
//!
//! 1. the *front* is the caller's own process; it holds one end of a socket, the lifeline;
//! 2. the *gate* has left the machine's namespaces (user, mount, network, PID) and only waits;
//! 3. the *init* is process 1 of the new PID namespace: it mounts `/proc` and reaps orphans;
//! 4. the *supervisor* owns the switches, the host threads and the ranks.
//!
//! When the front dies, however it dies, the lifeline closes and the supervisor exits. When the
//! supervisor dies, so does the init, and with it the kernel kills every process of the PID
//! namespace; the network devices go with the last namespace. Nothing depends on a clean-up that
//! must get its turn.
//!
//! Since the program re-executes itself, **its `main` must begin with [`init`]**.
//!
//! # Requirements
//!
//! Linux with namespaces, bridge, veth and TBF, and iproute2 (`ip`, `tc`). [`availability`] says
//! what is missing. Delay and loss need netem in the kernel.

pub mod control;

mod availability;
mod environment;
mod error;
mod front;
mod host;
mod init;
mod links;
mod namespaces;
mod network;
mod output;
mod plan;
mod rate;
mod server;
mod supervision;
mod supervisor;
mod tools;
mod wire;

pub use availability::{Unavailable, availability, has_netem};
pub use environment::{MASTER_PORT, rank_environment};
pub use error::LabError;
pub use front::{Job, RunningLab, Stopper};
pub use init::init;
pub use plan::{Lab, LabBuilder, MAX_HOSTS, MAX_NICS, MAX_RANKS_PER_HOST};
pub use rate::{Loss, ParseUnitError, Rate};
pub use supervision::{Ending, RankFailure, RankStatus};
pub use wire::{Event, Outcome};
