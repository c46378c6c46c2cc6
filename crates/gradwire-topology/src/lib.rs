//! Where it moves: clusters as files and as graphs, and what their links cost.
//!
//! A [`Cluster`] says what there is: kinds of hosts with their devices and NICs, and the tiers of
//! switches above them. It is read from TOML that a person can write in ten lines
//! ([`Cluster::read`]); what is wrong with a file is said with its line ([`FileFault`]). [`Graph`] is
//! the same as vertices and directed links with bandwidth and latency, and finds the route between
//! any two devices. [`AlphaBetaGamma`] costs collectives on links in closed form and knows what no
//! algorithm can beat. This crate reads description files and does no other I/O.
//!
//! ```
//! use std::path::Path;
//! use gradwire_topology::{Cluster, Graph};
//!
//! let text = "[[hosts]]\ncount = 4\ndevice = \"rtx4090\"\ndevices = 2\nnic = \"10gbit\"\n";
//! let cluster = Cluster::parse(Path::new("four.toml"), text)?;
//! assert_eq!(cluster.device_count(), 8);
//!
//! let graph = Graph::of(&cluster);
//! let (latency, rate) = graph.speed(&graph.route(0, 7, 0));
//! assert!(latency > 20e-6 && rate < 1.25e9);
//! # Ok::<(), gradwire_topology::FileFault>(())
//! ```
#![forbid(unsafe_code)]

mod cluster;
mod cost;
mod device;
pub mod draw;
mod fault;
mod file;
mod graph;
mod units;

pub use cluster::{Cluster, HostKind, LinkSpeed, Tier, Wire};
pub use cost::{AlphaBetaGamma, Shape};
pub use device::Device;
pub use fault::FileFault;
pub use graph::{Graph, Link, LinkId, Vertex};
pub use units::{Bytes, Flops, Rate, Seconds};
