//! Random bits that depend on a seed and an index alone, so that kernels of any width, and any
//! order of evaluation, round the same value the same way.

/// What a seed becomes, once per call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    first: u32,
    second: u32,
}

impl Key {
    /// Two rounds of splitmix64 (Steele, Lea and Flood, 2014), so that neighbouring seeds share
    /// nothing.
    pub(crate) fn new(seed: u64) -> Self {
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        Key { first: mixed as u32, second: (mixed >> 32) as u32 }
    }

    /// 32 random bits for an index: Wellons' `lowbias32`, keyed before each multiplication.
    #[inline(always)]
    pub(crate) fn bits(self, index: u32) -> u32 {
        let mut hash = index ^ self.first;
        hash = (hash ^ (hash >> 16)).wrapping_mul(0x7feb_352d);
        hash = (hash ^ (hash >> 15)).wrapping_add(self.second).wrapping_mul(0x846c_a68b);
        hash ^ (hash >> 16)
    }

    /// What stochastic rounding adds before it rounds to nearest: uniform on the odd multiples of
    /// 2⁻²⁴ in (−½, ½), so symmetric around 0 and never a tie.
    #[inline(always)]
    pub(crate) fn dither(self, index: u32) -> f32 {
        (self.bits(index) >> 9) as f32 * f32::EPSILON - (0.5 - f32::EPSILON / 2.0)
    }
}

/// Sign `index` of the fixed random signs of the Hadamard transform: 0, or the sign bit.
pub(crate) const fn sign_bit(index: usize) -> u32 {
    let mut hash = index as u32 ^ 0x9e37_79b9;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x7feb_352d);
    hash = (hash ^ (hash >> 15)).wrapping_mul(0x846c_a68b);
    (hash ^ (hash >> 16)) & 0x8000_0000
}
