//! What a codec is made of, which combinations exist, and how many bytes they take.

use thiserror::Error;

use crate::layout::Layout;
use crate::smoothing::MAX_BLOCK;

/// A codec for `f32` values whose wire size depends on their number alone.
///
/// Every call encodes its values by themselves: nothing is kept between calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// The upper half of an `f32`, rounded to nearest even: 8 bits of significand. Finite values
    /// above 3.3953e38 round to infinity.
    Bf16,
    /// IEEE binary16, rounded to nearest even: 11 bits of significand. Magnitudes of 65,520 and
    /// more become infinite, nothing saturates: where sums are sent on, divide before the sum.
    F16,
    /// Blocks of values that share a scale.
    Block(BlockCodec),
}

/// A block quantizer. Not all combinations exist: see [`BlockCodec::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockCodec {
    /// How one value is stored.
    pub format: Format,
    /// Elements that share a scale: a power of two from 32 to 512.
    pub block: u16,
    /// How scales are stored.
    pub scale: Scale,
    /// How a value between two levels becomes one of them.
    pub rounding: Rounding,
    /// Whether a randomized Hadamard transform spreads outliers over their block first.
    pub smoothing: bool,
}

/// How a quantizer stores one value, relative to the scale of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Symmetric integers of `bits` (2, 4, 5, 6 or 8): −L to L with L = 2^(bits − 1) − 1; the
    /// largest magnitude of the block is L.
    Int {
        /// Bits of a value.
        bits: u8,
    },
    /// Integers of `bits` (2, 4, 5, 6 or 8) from the least value of the block to the greatest.
    IntMinMax {
        /// Bits of a value.
        bits: u8,
    },
    /// 4 bits on 16 unevenly spaced levels, 0 among them, fitted to Gaussian values in blocks of 32.
    /// The scale has a sign, so that the value of largest magnitude falls on the lowest level: one
    /// more level than [`Format::Int`] has. (After BOF4-S, arXiv 2505.06653.)
    Grid4,
    /// 2 bits: a sign, and one of two magnitudes, the best ones for Gaussian values (Max, 1960)
    /// relative to the mean magnitude of the block. Zero becomes the smaller one.
    Grid2,
    /// 8-bit floats with 4 exponent bits (OCP E4M3); the largest magnitude of the block is 448.
    Fp8E4M3,
    /// 8-bit floats with 5 exponent bits (OCP E5M2); the largest magnitude of the block is 57,344.
    Fp8E5M2,
    /// Signs, times the mean magnitude of the block. Zero counts as positive.
    Sign,
}

/// How a quantizer stores the scales of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scale {
    /// One bf16 for each block (min-max: the least value as f32, and a bf16).
    PerBlock,
    /// One bf16 for every 8 blocks, and for each block a multiple of it in 8 bits.
    SuperGroup,
}

/// How a quantizer rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// To the nearest level.
    Nearest,
    /// To one of the two levels around the value, at random such that the mean is the value.
    Stochastic,
}

/// Why a combination of options is no codec.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidCodec {
    /// The block size is not one.
    #[error("a block has 32, 64, 128, 256 or 512 elements, not {0}")]
    Block(u16),
    /// No integer format has this width.
    #[error("integers have 2, 4, 5, 6 or 8 bits, not {0}")]
    Bits(u8),
    /// The format has one scale layout only.
    #[error(
        "min-max, sign and 2-bit grid formats keep their scales per block: leave out \"supergroup\""
    )]
    SuperGroup,
    /// The format is not for stochastic rounding.
    #[error(
        "grids and signs have nearest rounding only: take \"int4+uniform+stochastic\", or another \
         integer or fp8 format"
    )]
    Stochastic,
}

impl BlockCodec {
    /// Whether the combination exists.
    ///
    /// # Errors
    ///
    /// Says which option is at fault and what there is instead.
    pub fn check(self) -> Result<(), InvalidCodec> {
        if !self.block.is_power_of_two() || !(32..=MAX_BLOCK as u16).contains(&self.block) {
            return Err(InvalidCodec::Block(self.block));
        }
        match self.format {
            Format::Int { bits } | Format::IntMinMax { bits }
                if !matches!(bits, 2 | 4 | 5 | 6 | 8) =>
            {
                return Err(InvalidCodec::Bits(bits));
            }
            Format::Grid4 | Format::Grid2 | Format::Sign
                if self.rounding == Rounding::Stochastic =>
            {
                return Err(InvalidCodec::Stochastic);
            }
            _ => {}
        }
        let per_block =
            matches!(self.format, Format::IntMinMax { .. } | Format::Grid2 | Format::Sign);
        if per_block && self.scale == Scale::SuperGroup {
            return Err(InvalidCodec::SuperGroup);
        }
        Ok(())
    }
}

impl Format {
    /// Bits of one stored value.
    pub fn bits(self) -> u8 {
        match self {
            Format::Int { bits } | Format::IntMinMax { bits } => bits,
            Format::Grid4 => 4,
            Format::Grid2 => 2,
            Format::Fp8E4M3 | Format::Fp8E5M2 => 8,
            Format::Sign => 1,
        }
    }

    fn number(self) -> u32 {
        match self {
            Format::Int { .. } => 0,
            Format::IntMinMax { .. } => 1,
            Format::Grid4 => 2,
            Format::Fp8E4M3 => 3,
            Format::Fp8E5M2 => 4,
            Format::Sign => 5,
            Format::Grid2 => 6,
        }
    }

    fn from_number(number: u32, bits: u8) -> Option<Self> {
        Some(match number {
            0 => Format::Int { bits },
            1 => Format::IntMinMax { bits },
            2 => Format::Grid4,
            3 => Format::Fp8E4M3,
            4 => Format::Fp8E5M2,
            5 => Format::Sign,
            6 => Format::Grid2,
            _ => return None,
        })
    }
}

impl Codec {
    /// Its identity on the wire. 0 is no codec; 1 and 2 are bf16 and f16; block codecs have, from
    /// the low bits up, 2 bits with 3, 4 bits of format, 4 bits of width, 4 bits of log₂ of the
    /// block, and a bit each for super-groups, stochastic rounding and smoothing.
    pub fn code(self) -> u32 {
        let block = match self {
            Codec::Bf16 => return 1,
            Codec::F16 => return 2,
            Codec::Block(block) => block,
        };
        3 | block.format.number() << 2
            | u32::from(block.format.bits() & 15) << 6
            | (block.block.trailing_zeros() & 15) << 10
            | u32::from(block.scale == Scale::SuperGroup) << 14
            | u32::from(block.rounding == Rounding::Stochastic) << 15
            | u32::from(block.smoothing) << 16
    }

    /// The codec with this identity, if there is one.
    pub fn from_code(code: u32) -> Option<Codec> {
        match code {
            1 => return Some(Codec::Bf16),
            2 => return Some(Codec::F16),
            _ => {}
        }
        let bit = |position: u32| code >> position & 1 == 1;
        let block = BlockCodec {
            format: Format::from_number(code >> 2 & 15, (code >> 6 & 15) as u8)?,
            block: 1 << (code >> 10 & 15),
            scale: if bit(14) { Scale::SuperGroup } else { Scale::PerBlock },
            rounding: if bit(15) { Rounding::Stochastic } else { Rounding::Nearest },
            smoothing: bit(16),
        };
        let codec = Codec::Block(block);
        (block.check().is_ok() && codec.code() == code).then_some(codec)
    }

    /// Bytes on the wire of so many values: exact, and monotone in `elements`.
    ///
    /// # Panics
    ///
    /// If the codec is a combination that [`BlockCodec::check`] denies.
    pub fn encoded_bytes(self, elements: usize) -> usize {
        match self {
            Codec::Bf16 | Codec::F16 => 2 * elements,
            Codec::Block(block) => Layout::new(block, elements).total_bytes(),
        }
    }

    /// Bits on the wire of a value, scales included, when whole (super-groups of) blocks are sent.
    ///
    /// # Panics
    ///
    /// If the codec is a combination that [`BlockCodec::check`] denies.
    pub fn bits_per_element(self) -> f64 {
        const WHOLE: usize = MAX_BLOCK * 8;
        self.encoded_bytes(WHOLE) as f64 * 8.0 / WHOLE as f64
    }

    /// Whether rounding decoded values again changes nothing: such a codec may be re-encoded at
    /// every hop, and so rides on any algorithm.
    pub fn is_linear(self) -> bool {
        matches!(self, Codec::Bf16 | Codec::F16)
    }

    /// Whether two encodings of the same values may differ, by the seed.
    pub fn is_stochastic(self) -> bool {
        matches!(self, Codec::Block(BlockCodec { rounding: Rounding::Stochastic, .. }))
    }
}
