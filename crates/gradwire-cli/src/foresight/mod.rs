//! Foresight: `gradwire topo`, `simulate`, `plan`, `calibrate` and `validate`.

pub mod calibrate;
mod collective;
mod conditions;
pub mod plan;
mod setting;
mod show;
pub mod simulate;
mod sweep;
pub mod topo;
pub mod validate;
