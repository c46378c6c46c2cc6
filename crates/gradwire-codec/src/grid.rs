//! The levels of the uneven grids.
//!
//! The 16 levels of [`Format::Grid4`](crate::Format::Grid4), and codes of 8-bit integers on them.
//!
//! A value is first rounded to an integer of −127 to 127, the value of largest magnitude of its
//! block being −127, and then to the nearest level. The levels have the least mean squared error
//! (Lloyd's algorithm, with −127 and 0 held) for Gaussian values in blocks of 32.

/// The magnitudes of [`Format::Grid2`](crate::Format::Grid2) in mean magnitudes: 0.4528 and 1.510
/// standard deviations of a Gaussian.
pub(crate) const MAGNITUDES: [f32; 2] = [0.5675, 1.8925];
/// Halfway between them.
pub(crate) const BETWEEN: f32 = 1.23;

/// The levels of the 4-bit grid, ascending.
pub(crate) const LEVELS: [i8; 16] =
    [-127, -98, -76, -58, -42, -27, -13, 0, 11, 23, 34, 47, 60, 75, 92, 113];

/// Integers above threshold `k` are nearer to level `k + 1` than to level `k`.
pub(crate) const THRESHOLDS: [i8; 15] = {
    let mut thresholds = [0; 15];
    let mut index = 0;
    while index < thresholds.len() {
        thresholds[index] = ((LEVELS[index] as i16 + LEVELS[index + 1] as i16) >> 1) as i8;
        index += 1;
    }
    thresholds
};

/// The thresholds by the upper four bits of an integer, so that three table look-ups take the place
/// of fifteen comparisons: the code is `base`, plus one for each of two thresholds below it.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Buckets {
    /// Thresholds below all integers with these upper bits.
    pub(crate) base: [i8; 16],
    /// The thresholds among them; 127, which nothing is above, where there are fewer.
    pub(crate) thresholds: [[i8; 16]; 2],
}

#[cfg(target_arch = "x86_64")]
pub(crate) static BUCKETS: Buckets = {
    let mut buckets = Buckets { base: [0; 16], thresholds: [[127; 16]; 2] };
    let mut upper = 0;
    while upper < 16 {
        let least = ((upper << 4) as u8 as i8) as i16;
        let (mut index, mut found) = (0, 0);
        while index < THRESHOLDS.len() {
            let threshold = THRESHOLDS[index] as i16;
            if threshold < least {
                buckets.base[upper] += 1;
            } else if threshold < least + 15 {
                // Out of bounds, and so an error of compilation, if there are more than two.
                buckets.thresholds[found][upper] = threshold as i8;
                found += 1;
            }
            index += 1;
        }
        upper += 1;
    }
    buckets
};
