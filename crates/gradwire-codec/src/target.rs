//! What happens to decoded values.

/// Where decoded values go.
pub(crate) enum Target<'a> {
    /// They are stored.
    Store(&'a mut [f32]),
    /// They are added.
    Add {
        /// What they are added to, unless `None`: then to the target's own values.
        local: Option<&'a [f32]>,
        /// Where the sums go.
        target: &'a mut [f32],
        /// What the sums are divided by.
        divisor: Option<f32>,
    },
}

/// Brings decoded values to the target, from element `start` of it on.
#[inline(always)]
pub(crate) fn combine(target: &mut Target<'_>, start: usize, decoded: &[f32]) {
    let range = start..start + decoded.len();
    match target {
        Target::Store(target) => target[range].copy_from_slice(decoded),
        Target::Add { local: None, target, divisor: None } => {
            for (sum, value) in target[range].iter_mut().zip(decoded) {
                *sum += value;
            }
        }
        Target::Add { local: None, target, divisor: Some(divisor) } => {
            for (sum, value) in target[range].iter_mut().zip(decoded) {
                *sum = (*sum + value) / *divisor;
            }
        }
        Target::Add { local: Some(local), target, divisor: None } => {
            let local = &local[range.clone()];
            for ((sum, value), local) in target[range].iter_mut().zip(decoded).zip(local) {
                *sum = local + value;
            }
        }
        Target::Add { local: Some(local), target, divisor: Some(divisor) } => {
            let local = &local[range.clone()];
            for ((sum, value), local) in target[range].iter_mut().zip(decoded).zip(local) {
                *sum = (local + value) / *divisor;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2 {
    use std::arch::x86_64::*;

    use super::Target;
    use crate::smoothing::avx2::{Vectors, load, store};

    /// Brings blocks of 32 decoded values to the target, from element `start` of it on, straight
    /// from registers: `block` decodes the one of a number, in order.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn deliver(
        target: &mut Target<'_>,
        start: usize,
        blocks: usize,
        mut block: impl FnMut(usize) -> Vectors,
    ) {
        let range = start..start + 32 * blocks;
        match target {
            Target::Store(target) => {
                for (index, place) in target[range].as_chunks_mut().0.iter_mut().enumerate() {
                    store(block(index), place);
                }
            }
            Target::Add { local: None, target, divisor } => {
                for (index, place) in target[range].as_chunks_mut().0.iter_mut().enumerate() {
                    store(sum(load(place), block(index), *divisor), place);
                }
            }
            Target::Add { local: Some(local), target, divisor } => {
                let local = local[range.clone()].as_chunks().0;
                for (index, place) in target[range].as_chunks_mut().0.iter_mut().enumerate() {
                    store(sum(load(&local[index]), block(index), *divisor), place);
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn sum(local: Vectors, decoded: Vectors, divisor: Option<f32>) -> Vectors {
        let (a, b) = (_mm256_add_ps(local.0, decoded.0), _mm256_add_ps(local.1, decoded.1));
        let (c, d) = (_mm256_add_ps(local.2, decoded.2), _mm256_add_ps(local.3, decoded.3));
        let Some(divisor) = divisor else { return (a, b, c, d) };
        let divisor = _mm256_set1_ps(divisor);
        (
            _mm256_div_ps(a, divisor),
            _mm256_div_ps(b, divisor),
            _mm256_div_ps(c, divisor),
            _mm256_div_ps(d, divisor),
        )
    }
}
