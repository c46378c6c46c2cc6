//! Reductions as callers see them: resolved once, applied often.

use thiserror::Error;

use crate::kernel::{
    CombineKernel, DivideKernel, InstructionSet, Kernels, combine_kernels, divide_kernel,
};
use crate::types::{DataType, ReduceOp, list};

/// Why a reduction was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReduceError {
    /// The operator cannot combine elements of the type.
    #[error("operator {op} does not apply to {dtype}; use one of {known}", known = supported(*dtype))]
    Unsupported {
        /// The type asked for.
        dtype: DataType,
        /// The operator asked for.
        op: ReduceOp,
    },
    /// This processor lacks the instruction set.
    #[error(
        "this processor has no {0} instructions; use portable, or let the fastest set be chosen"
    )]
    InstructionSet(InstructionSet),
    /// Two buffers of one reduction differ in length.
    #[error("{buffer} buffer has {found} bytes, destination has {expected}; they must be equal")]
    Length {
        /// Which buffer: `received` or `local`.
        buffer: &'static str,
        /// Its length in bytes.
        found: usize,
        /// Length of the destination in bytes.
        expected: usize,
    },
    /// A buffer ends within an element.
    #[error("buffer of {bytes} bytes holds no whole number of {dtype} ({size} bytes each)", size = dtype.size_bytes())]
    PartialElement {
        /// Length of the buffer in bytes.
        bytes: usize,
        /// Type of the elements.
        dtype: DataType,
    },
    /// An average over no ranks.
    #[error("cannot average over 0 ranks; give the number of ranks that contributed")]
    NoRanks,
}

fn supported(dtype: DataType) -> String {
    list(ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)).map(ReduceOp::name))
}

/// An operator for a data type, with the kernels that suit this processor.
#[derive(Clone, Copy, Debug)]
pub struct Reduction {
    dtype: DataType,
    op: ReduceOp,
    /// Chosen for an instruction set that is available.
    kernels: Kernels,
}

impl Reduction {
    /// The reduction with the fastest kernels that this processor can run.
    ///
    /// # Errors
    /// [`ReduceError::Unsupported`] when the operator does not apply to the type.
    pub fn new(dtype: DataType, op: ReduceOp) -> Result<Self, ReduceError> {
        Self::with_instruction_set(dtype, op, InstructionSet::best())
    }

    /// The reduction with kernels for the given instruction set, to compare and to test.
    ///
    /// # Errors
    /// [`ReduceError::Unsupported`] when the operator does not apply to the type,
    /// [`ReduceError::InstructionSet`] when this processor lacks the instructions.
    pub fn with_instruction_set(
        dtype: DataType,
        op: ReduceOp,
        set: InstructionSet,
    ) -> Result<Self, ReduceError> {
        if !set.is_available() {
            return Err(ReduceError::InstructionSet(set));
        }
        let kernels =
            combine_kernels(dtype, op, set).ok_or(ReduceError::Unsupported { dtype, op })?;
        Ok(Reduction { dtype, op, kernels })
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DataType {
        self.dtype
    }

    /// The operator.
    pub fn op(&self) -> ReduceOp {
        self.op
    }

    /// `destination = destination ⊕ received`.
    ///
    /// Both buffers have the same length, a whole number of elements; where they have not, only
    /// the elements that both hold are combined (debug builds panic; [`reduce`] checks).
    ///
    /// `finish` is the number of ranks when this is the last reduction of the elements, at least
    /// 1 (0 counts as 1). [`ReduceOp::Average`] then divides the sum by it in the same pass:
    /// floats by IEEE division, narrow ones before the sum is rounded; integers truncate. Without
    /// it an average only sums. Other operators take no notice of it.
    pub fn apply(&self, destination: &mut [u8], received: &[u8], finish: Option<u32>) {
        self.run(destination, None, received, finish);
    }

    /// `destination = local ⊕ received`; otherwise as [`Reduction::apply`].
    pub fn apply_into(
        &self,
        destination: &mut [u8],
        local: &[u8],
        received: &[u8],
        finish: Option<u32>,
    ) {
        self.run(destination, Some(local), received, finish);
    }

    fn run(
        &self,
        destination: &mut [u8],
        local: Option<&[u8]>,
        received: &[u8],
        finish: Option<u32>,
    ) {
        debug_assert_eq!(self.check(destination, local, received, finish), Ok(()));
        let kernel: CombineKernel =
            if finish.is_some() { self.kernels.last } else { self.kernels.partial };
        let shortest =
            destination.len().min(received.len()).min(local.map_or(usize::MAX, <[u8]>::len));
        let bytes = shortest - shortest % self.dtype.size_bytes();
        let (destination, received) = (&mut destination[..bytes], &received[..bytes]);
        let local = local.map(|local| &local[..bytes]);
        // SAFETY: the kernels were chosen for an instruction set that this processor has.
        unsafe { kernel(destination, local, received, finish.unwrap_or(1).max(1)) }
    }

    fn check(
        &self,
        destination: &[u8],
        local: Option<&[u8]>,
        received: &[u8],
        finish: Option<u32>,
    ) -> Result<(), ReduceError> {
        check_whole(destination, self.dtype)?;
        check_length("received", received, destination)?;
        check_length("local", local.unwrap_or(destination), destination)?;
        if finish == Some(0) { Err(ReduceError::NoRanks) } else { Ok(()) }
    }
}

/// Division of the elements of a type by a number of ranks: the second half of
/// [`ReduceOp::Average`], for sums that are already finished.
#[derive(Clone, Copy, Debug)]
pub struct Scaling {
    dtype: DataType,
    /// Chosen for an instruction set that is available.
    kernel: DivideKernel,
}

impl Scaling {
    /// The division with the fastest kernel that this processor can run.
    ///
    /// # Errors
    /// [`ReduceError::Unsupported`] when elements of the type have no average.
    pub fn new(dtype: DataType) -> Result<Self, ReduceError> {
        Self::with_instruction_set(dtype, InstructionSet::best())
    }

    /// The division with the kernel for the given instruction set, to compare and to test.
    ///
    /// # Errors
    /// [`ReduceError::Unsupported`] when elements of the type have no average,
    /// [`ReduceError::InstructionSet`] when this processor lacks the instructions.
    pub fn with_instruction_set(dtype: DataType, set: InstructionSet) -> Result<Self, ReduceError> {
        if !set.is_available() {
            return Err(ReduceError::InstructionSet(set));
        }
        let unsupported = ReduceError::Unsupported { dtype, op: ReduceOp::Average };
        let kernel = divide_kernel(dtype, set).ok_or(unsupported)?;
        Ok(Scaling { dtype, kernel })
    }

    /// Divides every element by `ranks`, at least 1 (0 counts as 1): floats by IEEE division in
    /// single precision or wider, integers truncate towards zero. A partial element at the end is
    /// left as it is (debug builds panic; [`scale`] checks).
    pub fn apply(&self, buffer: &mut [u8], ranks: u32) {
        debug_assert_eq!(self.check(buffer, ranks), Ok(()));
        let bytes = buffer.len() - buffer.len() % self.dtype.size_bytes();
        // SAFETY: the kernel was chosen for an instruction set that this processor has.
        unsafe { (self.kernel)(&mut buffer[..bytes], ranks.max(1)) }
    }

    fn check(&self, buffer: &[u8], ranks: u32) -> Result<(), ReduceError> {
        check_whole(buffer, self.dtype)?;
        if ranks == 0 { Err(ReduceError::NoRanks) } else { Ok(()) }
    }
}

/// `destination = destination ⊕ received`, with every argument checked; [`Reduction::apply`] says
/// what `finish` does.
///
/// # Errors
/// Any [`ReduceError`] but [`ReduceError::InstructionSet`]; the destination is then as it was.
pub fn reduce(
    dtype: DataType,
    op: ReduceOp,
    destination: &mut [u8],
    received: &[u8],
    finish: Option<u32>,
) -> Result<(), ReduceError> {
    let reduction = Reduction::new(dtype, op)?;
    reduction.check(destination, None, received, finish)?;
    reduction.apply(destination, received, finish);
    Ok(())
}

/// `destination = local ⊕ received`, with every argument checked; [`Reduction::apply`] says what
/// `finish` does.
///
/// # Errors
/// Any [`ReduceError`] but [`ReduceError::InstructionSet`]; the destination is then as it was.
pub fn reduce_into(
    dtype: DataType,
    op: ReduceOp,
    destination: &mut [u8],
    local: &[u8],
    received: &[u8],
    finish: Option<u32>,
) -> Result<(), ReduceError> {
    let reduction = Reduction::new(dtype, op)?;
    reduction.check(destination, Some(local), received, finish)?;
    reduction.apply_into(destination, local, received, finish);
    Ok(())
}

/// Divides every element by the number of ranks, with every argument checked; see
/// [`Scaling::apply`].
///
/// # Errors
/// [`ReduceError::Unsupported`], [`ReduceError::PartialElement`] or [`ReduceError::NoRanks`]; the
/// buffer is then as it was.
pub fn scale(dtype: DataType, buffer: &mut [u8], ranks: u32) -> Result<(), ReduceError> {
    let scaling = Scaling::new(dtype)?;
    scaling.check(buffer, ranks)?;
    scaling.apply(buffer, ranks);
    Ok(())
}

fn check_whole(buffer: &[u8], dtype: DataType) -> Result<(), ReduceError> {
    if buffer.len().is_multiple_of(dtype.size_bytes()) {
        Ok(())
    } else {
        Err(ReduceError::PartialElement { bytes: buffer.len(), dtype })
    }
}

fn check_length(buffer: &'static str, bytes: &[u8], destination: &[u8]) -> Result<(), ReduceError> {
    if bytes.len() == destination.len() {
        Ok(())
    } else {
        Err(ReduceError::Length { buffer, found: bytes.len(), expected: destination.len() })
    }
}
