//! The loops over buffers, compiled once per instruction set, and the choice among them.

use std::fmt;

use crate::element::{Arithmetic, Bitwise, Element, Ordered};
#[cfg(target_arch = "x86_64")]
use crate::f16c;
use crate::narrow::{Bf16, E4M3, E5M2, F16};
use crate::operator::{And, Average, Maximum, Minimum, Operator, Or, Product, Sum, Xor};
use crate::types::{DataType, ReduceOp};

/// The instructions that a kernel may use. All of them give the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstructionSet {
    /// What every processor of the target has (SSE2 on x86-64, NEON on AArch64).
    Portable,
    /// AVX2, with F16C for half precision (x86-64 only).
    Avx2,
}

impl InstructionSet {
    /// Every instruction set, the fastest last.
    pub const ALL: [InstructionSet; 2] = [InstructionSet::Portable, InstructionSet::Avx2];

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            InstructionSet::Portable => true,
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
            }
            #[cfg(not(target_arch = "x86_64"))]
            InstructionSet::Avx2 => false,
        }
    }

    /// The fastest that this processor has.
    pub fn best() -> Self {
        let available = Self::ALL.into_iter().rev().find(|set| set.is_available());
        available.unwrap_or(InstructionSet::Portable)
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            InstructionSet::Portable => "portable",
            InstructionSet::Avx2 => "avx2",
        })
    }
}

/// `destination = (local, or else destination) ⊕ received`, given the number of ranks.
/// Buffers hold equally many elements, and only whole ones.
///
/// Unsafe to call where the instruction set that it was chosen for is not available.
pub(crate) type CombineKernel = unsafe fn(&mut [u8], Option<&[u8]>, &[u8], u32);

/// Divides each element by a number of ranks. Unsafe as [`CombineKernel`] is.
pub(crate) type DivideKernel = unsafe fn(&mut [u8], u32);

/// The kernels of one reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernels {
    /// For all reductions but the last.
    pub(crate) partial: CombineKernel,
    /// For the last reduction, which finishes an average.
    pub(crate) last: CombineKernel,
}

impl Kernels {
    fn same(kernel: CombineKernel) -> Self {
        Kernels { partial: kernel, last: kernel }
    }
}

/// The kernels for a data type and operator; `None` when [`ReduceOp::supports`] denies them.
pub(crate) fn combine_kernels(
    dtype: DataType,
    op: ReduceOp,
    set: InstructionSet,
) -> Option<Kernels> {
    match dtype {
        DataType::F32 => of_number::<f32>(op, set),
        DataType::F64 => of_number::<f64>(op, set),
        DataType::F16 => of_half(op, set),
        DataType::Bf16 => of_number::<Bf16>(op, set),
        DataType::F8E4M3 => of_number::<E4M3>(op, set),
        DataType::F8E5M2 => of_number::<E5M2>(op, set),
        DataType::I8 => of_integer::<i8>(op, set),
        DataType::U8 => of_integer::<u8>(op, set),
        DataType::I16 => of_integer::<i16>(op, set),
        DataType::I32 => of_integer::<i32>(op, set),
        DataType::I64 => of_integer::<i64>(op, set),
        DataType::Bool => of_bool(op, set),
    }
}

/// The kernel that divides elements of a type; `None` when they have no average.
pub(crate) fn divide_kernel(dtype: DataType, set: InstructionSet) -> Option<DivideKernel> {
    Some(match dtype {
        DataType::F32 => divide_with::<f32>(set),
        DataType::F64 => divide_with::<f64>(set),
        DataType::F16 => divide_half(set),
        DataType::Bf16 => divide_with::<Bf16>(set),
        DataType::F8E4M3 => divide_with::<E4M3>(set),
        DataType::F8E5M2 => divide_with::<E5M2>(set),
        DataType::I8 => divide_with::<i8>(set),
        DataType::U8 => divide_with::<u8>(set),
        DataType::I16 => divide_with::<i16>(set),
        DataType::I32 => divide_with::<i32>(set),
        DataType::I64 => divide_with::<i64>(set),
        DataType::Bool => return None,
    })
}

fn of_number<E: Arithmetic + Ordered>(op: ReduceOp, set: InstructionSet) -> Option<Kernels> {
    Some(match op {
        ReduceOp::Sum => Kernels::same(combine_with::<E, Sum>(set)),
        ReduceOp::Average => {
            Kernels { partial: combine_with::<E, Sum>(set), last: combine_with::<E, Average>(set) }
        }
        ReduceOp::Min => Kernels::same(combine_with::<E, Minimum>(set)),
        ReduceOp::Max => Kernels::same(combine_with::<E, Maximum>(set)),
        ReduceOp::Product => Kernels::same(combine_with::<E, Product>(set)),
        ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => return None,
    })
}

fn of_integer<E: Arithmetic + Ordered + Bitwise>(
    op: ReduceOp,
    set: InstructionSet,
) -> Option<Kernels> {
    match op {
        ReduceOp::BitAnd => Some(Kernels::same(combine_with::<E, And>(set))),
        ReduceOp::BitOr => Some(Kernels::same(combine_with::<E, Or>(set))),
        ReduceOp::BitXor => Some(Kernels::same(combine_with::<E, Xor>(set))),
        _ => of_number::<E>(op, set),
    }
}

fn of_bool(op: ReduceOp, set: InstructionSet) -> Option<Kernels> {
    Some(Kernels::same(match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => combine_with::<bool, Or>(set),
        ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd => combine_with::<bool, And>(set),
        ReduceOp::BitXor => combine_with::<bool, Xor>(set),
        ReduceOp::Average => return None,
    }))
}

fn of_half(op: ReduceOp, set: InstructionSet) -> Option<Kernels> {
    #[cfg(target_arch = "x86_64")]
    if set == InstructionSet::Avx2 {
        match op {
            ReduceOp::Sum => return Some(Kernels::same(f16c::sum)),
            ReduceOp::Average => {
                return Some(Kernels { partial: f16c::sum, last: f16c::average });
            }
            ReduceOp::Product => return Some(Kernels::same(f16c::product)),
            _ => {}
        }
    }
    of_number::<F16>(op, set)
}

fn divide_half(set: InstructionSet) -> DivideKernel {
    match set {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => f16c::divide,
        _ => divide::<F16>,
    }
}

fn combine_with<E: Element, O: Operator<E>>(set: InstructionSet) -> CombineKernel {
    match set {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => combine_avx2::<E, O>,
        _ => combine::<E, O>,
    }
}

fn divide_with<E: Arithmetic>(set: InstructionSet) -> DivideKernel {
    match set {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => divide_avx2::<E>,
        _ => divide::<E>,
    }
}

/// The same loop, vectorised for AVX2 once it is inlined here.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn combine_avx2<E: Element, O: Operator<E>>(
    destination: &mut [u8],
    local: Option<&[u8]>,
    received: &[u8],
    ranks: u32,
) {
    combine::<E, O>(destination, local, received, ranks);
}

/// The same loop, vectorised for AVX2 once it is inlined here.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn divide_avx2<E: Arithmetic>(buffer: &mut [u8], ranks: u32) {
    divide::<E>(buffer, ranks);
}

#[inline(always)]
fn combine<E: Element, O: Operator<E>>(
    destination: &mut [u8],
    local: Option<&[u8]>,
    received: &[u8],
    ranks: u32,
) {
    let apply = |ours: E::Bytes, theirs: E::Bytes| {
        O::apply(E::from_bytes(ours), E::from_bytes(theirs), ranks).to_bytes()
    };
    let (destination, received) = (E::split_mut(destination), E::split(received));
    match local {
        None => {
            for (element, theirs) in destination.iter_mut().zip(received) {
                *element = apply(*element, *theirs);
            }
        }
        Some(local) => {
            for ((element, ours), theirs) in
                destination.iter_mut().zip(E::split(local)).zip(received)
            {
                *element = apply(*ours, *theirs);
            }
        }
    }
}

#[inline(always)]
fn divide<E: Arithmetic>(buffer: &mut [u8], ranks: u32) {
    for element in E::split_mut(buffer) {
        *element = E::from_bytes(*element).divided_by(ranks).to_bytes();
    }
}
