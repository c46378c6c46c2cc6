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
