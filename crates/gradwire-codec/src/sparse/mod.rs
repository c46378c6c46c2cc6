//! Sparse forms: the largest values with their places, and blocks that are not all zero.
//!
//! Unlike a [`Codec`](crate::Codec), these leave values out. What is left out must be kept and added
//! next time (error feedback) after [`top_k`]; [`pack_blocks`] leaves out nothing but zeros.

mod blocks;
mod packed;
mod top_k;

pub use blocks::{non_zero_blocks, pack_blocks, packed_blocks_bytes, unpack_blocks_add};
pub use packed::{SparseValue, decode_sparse_add, encode_sparse, sparse_bytes};
pub use top_k::top_k;

use thiserror::Error;

/// Why received bytes are no sparse form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SparseError {
    /// The length is not the one that the header or the receiver asks for.
    #[error("the sparse form has {given} bytes, but {expected} are needed")]
    Length {
        /// Bytes given.
        given: usize,
        /// Bytes that it should have.
        expected: usize,
    },
    /// The counts of the pages do not add up.
    #[error("the pages of the sparse form hold {given} values, but it has {expected}")]
    Count {
        /// The sum of the counts.
        given: usize,
        /// How many values there are.
        expected: usize,
    },
    /// An index lies outside of the target.
    #[error("the sparse form has index {index}, but the target has {elements} elements")]
    Index {
        /// The index.
        index: usize,
        /// Elements of the target.
        elements: usize,
    },
    /// Indices of a page must ascend.
    #[error("index {0} of the sparse form is not above the one before it")]
    Order(usize),
}
