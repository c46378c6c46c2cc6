//! What moves between ranks, in which order: collectives as data.
//!
//! An algorithm is a pure function from (collective, ranks, hosts) to one [`Program`] for each rank: a
//! list of [`Step`]s over chunks with their dependencies. Nothing here performs I/O, knows a clock
//! or touches a tensor. [`Schedule`] is the programs of all ranks together; [`verify()`] proves one
//! right by symbolic execution, [`draw`] prints and draws it. A new algorithm is therefore a
//! builder and nothing else: whatever runs, costs or draws programs knows nothing of algorithms.
//!
//! ```
//! use gradwire_schedule::{Algorithm, Collective, Schedule, draw, verify};
//!
//! // What an engine needs: the program of its own rank, in time proportional to its own steps.
//! let program = Algorithm::Ring.program(Collective::AllReduce, 17, 1024)?;
//! assert_eq!(program.steps.len(), 4 * 1023);
//!
//! // All ranks together, to be checked, summed up and shown.
//! let schedule = Schedule::build(Collective::AllReduce, Algorithm::Ring, 8)?;
//! verify(&schedule).expect("every builder is right at every number of ranks");
//! assert_eq!(schedule.summary().rounds, 14);
//! println!("{}", draw::print(&schedule));
//! # Ok::<(), gradwire_schedule::Unsupported>(())
//! ```
//!
//! # The algorithms
//!
//! n is the number of ranks; "sends" is the share of the tensor that the busiest rank sends.
//!
//! | [`Algorithm`] | all-reduce in chunks | rounds | sends | other collectives |
//! |---|---|---|---|---|
//! | `Ring` | n | 2(n-1) | 2(n-1)/n | reduce, broadcast, reduce-scatter, all-gather |
//! | `Tree` | 2 | about 4 log2 n | 2 or less | reduce, broadcast, gather, scatter, barrier |
//! | `HalvingDoubling` | n | 2 ceil(log2 n) | 2(n-1)/n | reduce-scatter, all-gather, barrier |
//! | `Direct` | n | 2 | 2(n-1)/n | all |
//! | `Star` | 1 | 2 | n-1 | all but all-to-all and send/receive |
//! | `OneShot` | 1 | 1 | n-1 | all-gather, barrier |
//! | `Hierarchical` | n | 4 | between hosts 2(h-1)/n | reduce-scatter, all-gather |
//! | `HierarchicalRing` | n | 2h | between hosts 2(h-1)/n | reduce-scatter, all-gather |
//!
//! The last two are for ranks that share hosts ([`Hosts`]; h is their number, each with n/h ranks
//! here): what a host sends to others, 2(h-1)/h of the tensor, does not grow with its ranks.
//!
//! # Where each collective finds and leaves its chunks
//!
//! | collective | [`Buffer::Input`] | [`Buffer::Output`] |
//! |---|---|---|
//! | all-reduce | | contribution, then result; as many chunks as the algorithm wants |
//! | reduce | | contribution, then (root only) result; other ranks never write it |
//! | broadcast | | root's tensor, then everybody's |
//! | reduce-scatter | n chunks | chunk r of the result |
//! | all-gather | 1 chunk | n chunks |
//! | gather | 1 chunk | n chunks at the root, none elsewhere; all of one length |
//! | scatter | n chunks at the root, none elsewhere; all of one length | 1 chunk |
//! | all-to-all | n chunks | n chunks; any lengths, zero too |
//! | barrier | | 1 chunk without bytes |
//! | send/receive | 1 chunk at the sender | 1 chunk at the receiver |
//!
//! In reduce-scatter and all-gather chunk lengths may differ from rank to rank.
//!
//! # What an executor must grant
//!
//! - Tile *t* of a step runs once tile *t* of every step in its `after` is done. Steps of one
//!   stream (from a to b) start in program order, but tiles of a later step may pass those of an
//!   earlier one that is held up: scratch is shorter than a chunk, and in a ring reduce-scatter
//!   every rank's scratch drains only through its next send.
//! - A send is done once the wire has taken it. At least one message must fit in each stream
//!   (an exchange in place sends before it receives).
//!
//! # Bits
//!
//! Each chunk is reduced in one fixed order: at one place, or in the same order everywhere. All
//! ranks therefore end with the same bits, and so does every repetition. [`verify()`] proves it.
#![forbid(unsafe_code)]

mod build;
mod choice;
mod collective;
pub mod draw;
mod flow;
mod hosts;
mod program;
mod rounds;
mod schedule;
mod verify;

pub use collective::{Algorithm, Collective, UnknownName};
pub use hosts::Hosts;
pub use program::{Buffer, Program, ProgramBuilder, Rank, Slot, Step, StepIndex, StepKind};
pub use schedule::{RankSummary, Schedule, Summary, Unsupported};
pub use verify::{ScheduleFault, verify};
