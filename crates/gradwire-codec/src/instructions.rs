//! The choice of instruction set, and the macro that compiles one kernel for each.

use std::fmt;

/// The instructions that a kernel may use. All of them give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstructionSet {
    /// What every processor of the target has (SSE2 on x86-64, NEON on AArch64).
    Portable,
    /// AVX2 with FMA and F16C (x86-64 only).
    Avx2,
    /// AVX-512 F, BW, VL and DQ, beside what [`InstructionSet::Avx2`] has (x86-64 only).
    Avx512,
}

impl InstructionSet {
    /// Every instruction set, the fastest last.
    pub const ALL: [InstructionSet; 3] =
        [InstructionSet::Portable, InstructionSet::Avx2, InstructionSet::Avx512];

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            InstructionSet::Portable => true,
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => {
                InstructionSet::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
            #[cfg(not(target_arch = "x86_64"))]
            InstructionSet::Avx2 | InstructionSet::Avx512 => false,
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
            InstructionSet::Avx512 => "avx512",
        })
    }
}

/// Defines `$name(set, arguments…)`, which runs `$generic::<AVX2>(arguments…)` compiled for `set`.
/// The generic function and all that it calls must be inlined into it, hence `inline(always)`
/// there; its parameter says whether AVX2 intrinsics may be called.
///
/// Unsafe to call with an instruction set that this processor lacks.
macro_rules! multiversion {
    ($(#[$attribute:meta])* $name:ident($($argument:ident: $type:ty),* $(,)?) = $generic:ident) => {
        $(#[$attribute])*
        pub(crate) unsafe fn $name(
            set: $crate::instructions::InstructionSet,
            $($argument: $type),*
        ) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($argument: $type),*) {
                $generic::<true>($($argument),*);
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
            fn avx512($($argument: $type),*) {
                $generic::<true>($($argument),*);
            }
            match set {
                // SAFETY: the caller says that this processor has these instructions.
                #[cfg(target_arch = "x86_64")]
                $crate::instructions::InstructionSet::Avx2 => unsafe { avx2($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::instructions::InstructionSet::Avx512 => unsafe { avx512($($argument),*) },
                _ => $generic::<false>($($argument),*),
            }
        }
    };
}
pub(crate) use multiversion;
