//! The engine's core over modelled links, in modelled time.
//!
//! Every rank is a real [`gradwire_core::Core`] that executes real schedules; only the wires and the
//! clock are modelled. Frames are flows over the cluster's links, which share them max-min fairly in
//! each direction ([`fair`]); a rank's processor takes time for each frame and for each byte that it
//! reduces, encodes or decodes. What is symmetric can be folded: one part of the cluster stands for all ([`Fold`]).
//! A run is deterministic; noise and stragglers are drawn from a seed.

pub mod fair;
mod fold;
mod run;

use gradwire_codec::Codec;
use gradwire_reduce::DataType;
use gradwire_schedule::{Algorithm, Collective};
use gradwire_topology::{Cluster, Graph};
use thiserror::Error;

pub use fold::Fold;
pub use run::capacities;

/// What is run, and with which settings of the engine.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The collective.
    pub collective: Collective,
    /// How it is carried out.
    pub algorithm: Algorithm,
    /// Elements of the whole tensor.
    pub elements: u64,
    /// Their type.
    pub dtype: DataType,
    /// How values travel.
    pub codec: Option<Codec>,
    /// Bytes in memory that a rank's processor encodes, or decodes and reduces, in a second.
    pub codec_rate: f64,
    /// Bytes of a tile.
    pub tile_bytes: u32,
    /// Tiles of a step that may be unacknowledged.
    pub window_tiles: u32,
    /// Ranks, one on each of the first devices of the cluster.
    pub ranks: u32,
    /// What is not as it should be.
    pub disturbance: Disturbance,
}

impl Operation {
    /// An all-reduce of `bytes` in single precision with the engine's defaults.
    pub fn all_reduce(algorithm: Algorithm, ranks: u32, bytes: u64) -> Self {
        Self {
            collective: Collective::AllReduce,
            algorithm,
            elements: bytes / 4,
            dtype: DataType::F32,
            codec: None,
            codec_rate: f64::INFINITY,
            tile_bytes: 128 << 10,
            window_tiles: 16,
            ranks,
            disturbance: Disturbance::default(),
        }
    }
}

/// Noise and stragglers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Disturbance {
    /// Seed of the noise.
    pub seed: u64,
    /// Each frame is late by up to this many seconds.
    pub jitter: f64,
    /// Ranks that start late, with the seconds.
    pub late: Vec<(u32, f64)>,
    /// Hosts whose NICs are slower, with the factor by which.
    pub slow: Vec<(u32, f64)>,
}

impl Disturbance {
    /// Whether there is none, so that symmetric ranks behave alike.
    pub fn is_none(&self) -> bool {
        self.jitter == 0.0 && self.late.is_empty() && self.slow.is_empty()
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Seconds until the last rank is through.
    pub seconds: f64,
    /// Frames that were sent, of simulated ranks.
    pub frames: u64,
    /// The link that was busy longest (see [`Graph::links`]), and the bytes that it carried.
    pub busiest: (u32, f64),
    /// Bytes over each link that carried any; where the run was folded, of the part that stands for
    /// all.
    pub carried: Vec<(u32, f64)>,
    /// Ranks that were simulated.
    pub simulated: u32,
}

/// Why an operation can't be simulated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NetworkError {
    /// There are not that many devices.
    #[error("{ranks} ranks, {cluster} has {devices} devices; use fewer ranks or more hosts")]
    Ranks {
        /// Ranks that were asked for.
        ranks: u32,
        /// Name of the cluster.
        cluster: String,
        /// Devices that there are.
        devices: u32,
    },
    /// The algorithm doesn't do that.
    #[error("{0}")]
    Unsupported(String),
    /// The core reported an error.
    #[error("the operation failed: {0}")]
    Failed(String),
}

/// Most ranks that are simulated one by one.
const MAX_RANKS: u32 = 4096;

/// Simulates one operation; folds what is symmetric unless `unfolded` is asked for.
///
/// # Errors
/// When the operation can't run on the cluster.
pub fn simulate(
    cluster: &Cluster,
    operation: &Operation,
    unfolded: bool,
) -> Result<Outcome, NetworkError> {
    let devices = cluster.device_count();
    let ranks = operation.ranks;
    if ranks > devices || ranks == 0 {
        return Err(NetworkError::Ranks { ranks, cluster: cluster.name.clone(), devices });
    }
    let fold = match Fold::of(cluster, operation) {
        Some(fold) if !unfolded => fold,
        _ => Fold::none(cluster, ranks),
    };
    if fold.period > MAX_RANKS {
        return Err(NetworkError::Unsupported(format!(
            "{ranks} ranks that are not symmetric; the limit is {MAX_RANKS}. Ring and \
             direct all-reduces of equal chunks on equal hosts are symmetric"
        )));
    }
    run::Run::new(cluster, &Graph::of(cluster), operation, fold)?.finish()
}
