//! Data types, reduction operators, and the SIMD kernels that apply them.
//!
//! A collective that reduces (all-reduce, reduce, reduce-scatter) combines two buffers element by
//! element, again and again: `destination = destination ⊕ received`, or
//! `destination = local ⊕ received` when the first operand must be kept. [`Reduction`] resolves
//! the kernel for one data type, operator and processor once and then applies it as often as
//! needed; [`reduce`], [`reduce_into`] and [`scale`] do both in one call, with every argument
//! checked.
//!
//! ```
//! use gradwire_reduce::{DataType, ReduceOp, Reduction};
//!
//! let average = Reduction::new(DataType::F32, ReduceOp::Average)?;
//! let mut mine: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
//! let theirs: Vec<u8> = [3.0f32, 6.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
//! average.apply(&mut mine, &theirs, Some(2)); // the last reduction divides by the ranks
//! let means: Vec<u8> = [2.0f32, 4.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
//! assert_eq!(mine, means);
//! # Ok::<(), gradwire_reduce::ReduceError>(())
//! ```
//!
//! Kernels do no I/O and no allocation: they work on the byte slices they are given, of any
//! alignment and any whole number of elements, in the machine's byte order.
//!
//! # What is promised
//!
//! * **The same bits everywhere.** Every instruction set computes the same bits for the same
//!   operands; no step is fused or reordered.
//! * **Commutative to the bit.** `a ⊕ b` and `b ⊕ a` are the same bits, so ranks that combine the
//!   same two values in either order agree. (Floating-point sums are not associative: the order in
//!   which a schedule combines more than two values shows in the last bits.)
//! * **NaN stays NaN**, and whenever a floating-point result is NaN it is the canonical one: quiet,
//!   positive, with no payload (`0x7f` for both 8-bit types).
//! * **Narrow floats** (16 and 8 bits) are combined in single precision and rounded once, to
//!   nearest, ties to even. `F8E4M3` has no infinity: what is too large becomes ±448, as in
//!   PyTorch's own conversion. `F8E5M2` overflows to infinity.
//! * **Minimum and maximum** let NaN win and order −0 below +0.
//! * **Integers wrap.** Their average is truncated towards zero, like PyTorch's
//!   `div(n, rounding_mode="trunc")`.
//! * **Bool** bytes other than 0 count as true; results are 0 or 1. Sum and maximum are *or*,
//!   product and minimum are *and*; there is no average.

mod element;
#[cfg(target_arch = "x86_64")]
mod f16c;
mod kernel;
mod narrow;
mod operator;
mod reduction;
mod types;

pub use kernel::InstructionSet;
pub use reduction::{ReduceError, Reduction, Scaling, reduce, reduce_into, scale};
pub use types::{DataType, ReduceOp, UnknownDataType, UnknownReduceOp};
