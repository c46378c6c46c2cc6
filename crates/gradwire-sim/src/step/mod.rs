//! A training step: how long it takes and what it waits for.
//!
//! [`simulate`] takes a [`Job`] (a model, a layout, a practice) on a cluster and gives a [`Report`].
//! Compute comes from kernels on a roofline (`compute`), collectives from the cluster's links
//! (`groups`), the bubble from playing the pipeline through (`pipeline`); what of communication is
//! hidden is computed from when gradients are ready and when links are free (`overlap`).

pub mod compute;
mod exchange;
pub mod groups;
pub mod layer;
pub mod layout;
pub mod memory;
pub mod model;
mod overlap;
pub mod pipeline;
mod report;
mod simulate;

pub use compute::Efficiency;
pub use groups::Fabric;
pub use layout::{Attention, Carrier, Compression, Layout, PipelineOrder, Practice, Recompute};
pub use memory::Memory;
pub use model::{Experts, Transformer};
pub use report::{Communication, Report};
pub use simulate::{Calibration, Job, simulate};
