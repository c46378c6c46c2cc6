//! How wrong the predictions are, against measured tables.
//!
//! [`tables`] reads the tables, [`score`] counts errors, [`calibrate`] fits the few constants that
//! are not on a data sheet, [`fit`] does so for a few steps of one's own. Calibration uses single-node steps, all-reduces within a node and
//! published bandwidths between nodes; everything else is judged and never fitted to.

pub mod calibrate;
pub mod fit;
mod lab;
mod nccl_log;
pub mod networks;
mod run;
pub mod score;
pub mod tables;

pub use lab::{AllReduce, Lab, Training};
pub use nccl_log::NcclLog;
pub use run::{Role, Section, Validation, validate};
