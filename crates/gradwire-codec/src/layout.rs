//! Where things are in the encoded form of a call's values: all scales, then all payloads.

use crate::format::{BlockCodec, Format, Scale};
use crate::smoothing::MAX_BLOCK;

/// Blocks of a super-group.
pub(crate) const SUPER_GROUP: usize = 8;
/// Elements of the largest group of blocks that are encoded together.
pub(crate) const MAX_GROUP: usize = SUPER_GROUP * MAX_BLOCK;
/// The last block is padded with zeros to a multiple of so many elements.
pub(crate) const PADDING: usize = 32;

/// The layout of one call's values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) codec: BlockCodec,
    pub(crate) elements: usize,
    pub(crate) block: usize,
    pub(crate) blocks: usize,
}

impl Layout {
    /// Panics if the codec is not one.
    pub(crate) fn new(codec: BlockCodec, elements: usize) -> Self {
        if let Err(error) = codec.check() {
            panic!("{codec:?} is no codec: {error}");
        }
        let block = usize::from(codec.block);
        Layout { codec, elements, block, blocks: elements.div_ceil(block) }
    }

    /// Blocks of a group: those that share a super-group scale, else one.
    #[inline(always)]
    pub(crate) fn group_blocks(&self) -> usize {
        match self.codec.scale {
            Scale::PerBlock => 1,
            Scale::SuperGroup => SUPER_GROUP,
        }
    }

    #[inline(always)]
    pub(crate) fn group_elements(&self) -> usize {
        self.group_blocks() * self.block
    }

    #[inline(always)]
    pub(crate) fn groups(&self) -> usize {
        self.blocks.div_ceil(self.group_blocks())
    }

    /// Bytes of the scale of one group, before the fractions of its blocks.
    #[inline(always)]
    pub(crate) fn group_scale_bytes(&self) -> usize {
        match self.codec.format {
            Format::IntMinMax { .. } => 6,
            _ => 2,
        }
    }

    /// Where the 8-bit fractions of the blocks begin (super-groups only).
    #[inline(always)]
    pub(crate) fn fractions_start(&self) -> usize {
        self.groups() * self.group_scale_bytes()
    }

    #[inline(always)]
    pub(crate) fn payload_start(&self) -> usize {
        match self.codec.scale {
            Scale::PerBlock => self.fractions_start(),
            Scale::SuperGroup => self.fractions_start() + self.blocks,
        }
    }

    /// Bytes of so many codes, a multiple of 32.
    #[inline(always)]
    pub(crate) fn payload_bytes(&self, codes: usize) -> usize {
        codes * usize::from(self.codec.format.bits()) / 8
    }

    /// The payload of one block of so many codes.
    #[inline(always)]
    pub(crate) fn payload(&self, block: usize, codes: usize) -> std::ops::Range<usize> {
        let start = self.payload_start() + block * self.payload_bytes(self.block);
        start..start + self.payload_bytes(codes)
    }

    pub(crate) fn total_bytes(&self) -> usize {
        let Some(whole) = self.blocks.checked_sub(1) else { return 0 };
        let last = (self.elements - whole * self.block).next_multiple_of(PADDING);
        self.payload(whole, last).end
    }
}
