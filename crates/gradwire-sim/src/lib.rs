//! Rehearse it: what communication will cost on a cluster that you may not have yet.
//!
//! - [`network`] drives the engine's own core and schedules over modelled links in modelled time.
//! - [`step`] predicts a training step: [`step::simulate`] takes a model, a layout and a cluster
//!   ([`gradwire_topology::Cluster`]) and says what computation, bubbles and each group's
//!   communication take, what of it is exposed, and whether memory suffices.
//! - [`planner`] searches layouts and settings for the least time to the same loss.
//! - [`validation`] holds the predictions against published measurements.
//! - [`timeline`] and [`plot`] show the results.
//!
//! ```
//! use std::path::Path;
//! use gradwire_sim::step::{Calibration, Job, Layout, Practice, Transformer, simulate};
//! use gradwire_topology::Cluster;
//!
//! let text = "[[hosts]]\ncount = 2\ndevice = \"a100-80g\"\ndevices = 8\nnvlink = \"300GB/s\"\nnic = \"100gbit\"\n";
//! let cluster = Cluster::parse(Path::new("two.toml"), text)?;
//! let model = Transformer::named("gpt3-1.3b").expect("it is known");
//! let layout = Layout { data: 16, batch: 64, ..Layout::default() };
//! let job = Job { model, layout, practice: Practice::default() };
//! let report = simulate(&job, &cluster, &Calibration::default())?;
//! assert!(report.step_s > 0.0 && report.fits);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! No I/O but reading the files that are named, no clock but the modelled one; the same input gives
//! the same output.
#![forbid(unsafe_code)]

pub mod network;
pub mod planner;
pub mod plot;
pub mod step;
pub mod timeline;
pub mod validation;
