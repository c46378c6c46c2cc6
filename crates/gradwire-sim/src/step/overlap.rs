//! What of a series of collectives computation hides.

/// Collectives that become ready one by one while computation goes on, carried out one after the
/// other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Series {
    /// Seconds of computation during which they become ready, evenly spread.
    pub window: f64,
    /// How many there are.
    pub count: f64,
    /// Seconds that each takes alone.
    pub each: f64,
    /// How much longer a collective takes while the device computes.
    pub interference: f64,
    /// Share of computation that is lost while a collective runs.
    pub charge: f64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Seconds of the collectives.
    pub total: f64,
    /// Seconds after the end of the (slowed) computation.
    pub exposed: f64,
    /// Seconds by which computation is slowed.
    pub slowdown: f64,
}

impl Series {
    /// Plays the series through: bucket i is ready when (i+1)/count of the window has passed.
    pub fn play(&self) -> Outcome {
        if self.count < 1.0 || self.each <= 0.0 {
            return Outcome::default();
        }
        let stretched = self.each * self.interference;
        // Collectives run from the first that is ready to the last; while they do, compute is slower.
        let first = self.window / self.count;
        let busy = (self.count * stretched).min((self.window - first).max(0.0));
        let slowdown = busy * self.charge;
        let window = self.window + slowdown;
        let step = window / self.count;
        let mut free = 0.0f64;
        let mut total = 0.0;
        for bucket in 1..=self.count as u64 {
            let ready = step * bucket as f64;
            let start = free.max(ready);
            // Alone once computation is through.
            let hidden = (window - start).clamp(0.0, stretched) / self.interference;
            let seconds = hidden * self.interference + (self.each - hidden);
            free = start + seconds;
            total += seconds;
        }
        Outcome { total, exposed: (free - window).max(0.0), slowdown }
    }
}

/// Collectives of a layer each, of which the next is carried out under this layer's computation.
pub fn prefetched(layers: f64, compute: f64, each: f64, interference: f64, charge: f64) -> Outcome {
    if each <= 0.0 || layers < 1.0 {
        return Outcome::default();
    }
    // While both run, the collective is stretched and computation slowed.
    let hidden = (each * interference).min(compute);
    let slowed = compute + hidden * charge;
    let collective = hidden + (each - hidden / interference);
    let layer = slowed.max(collective);
    let exposed = each + (layers - 1.0) * (layer - slowed).max(0.0);
    Outcome { total: layers * collective, exposed, slowdown: layers * (slowed - compute) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_exposed_is_at_least_the_last_bucket_and_at_most_all(
            window in 0f64..10.0, count in 1u32..50, each in 0f64..1.0, interference in 1f64..2.0,
        ) {
            let series =
                Series { window, count: count.into(), each, interference, charge: 0.1 };
            let outcome = series.play();
            prop_assert!(outcome.exposed >= each - 1e-9);
            prop_assert!(outcome.exposed <= outcome.total + 1e-9);
            prop_assert!(outcome.total <= f64::from(count) * each * interference + 1e-9);
        }

        #[test]
        fn prefetching_hides_no_more_than_there_is_computation(
            layers in 1u32..100, compute in 0f64..1.0, each in 0f64..1.0,
        ) {
            let outcome = prefetched(layers.into(), compute, each, 1.3, 0.0);
            let layers = f64::from(layers);
            prop_assert!(outcome.exposed >= layers * (each - compute) - 1e-9);
            prop_assert!(outcome.exposed <= layers * each * 1.3 + 1e-9);
        }
    }

    #[test]
    fn fast_collectives_hide_but_for_the_last() {
        let series =
            Series { window: 10.0, count: 10.0, each: 0.1, interference: 1.0, charge: 0.0 };
        assert!((series.play().exposed - 0.1).abs() < 1e-9);
    }
}
