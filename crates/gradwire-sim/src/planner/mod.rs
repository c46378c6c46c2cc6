//! Which layout and settings are best for a model on a cluster.
//!
//! [`plan`] looks at every layout that fits, then, for the best of them, at each setting of
//! communication by itself and all together: what each brings, in step time and in time to the same
//! loss. It never chooses a compression that gains nothing, none whose measured loss is beyond the
//! tolerance, and nothing whose loss was not measured.

mod convergence;
mod search;

pub use convergence::{Convergence, compressions, tokens_to_same_loss};
pub use search::{Candidate, Change, Limits, Plan, Wish, plan};
