//! What of a series of collectives computation hides.

/// A collective that becomes ready while computation goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Awaited {
    /// After which share of the window it is ready.
    pub ready: f64,
    /// Seconds that it takes alone.
    pub seconds: f64,
}

/// Collectives that become ready one by one, carried out one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Seconds of computation during which they become ready.
    pub window: f64,
    /// Seconds of computation after that, which need the last of them first and hide the others.
    pub after: f64,
    /// The collectives, in the order in which they become ready.
    pub collectives: Vec<Awaited>,
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
    /// Plays the series through.
    pub fn play(&self) -> Outcome {
        let Some(last) = self.collectives.last() else { return Outcome::default() };
        let computing = self.window + self.after;
        let alone: f64 = self.collectives.iter().map(|it| it.seconds).sum();
        // Collectives run from the first that is ready to the last; while they do, compute is slower.
        let first = self.window * self.collectives[0].ready;
        let busy = (alone * self.interference).min((computing - first).max(0.0));
        let slowdown = busy * self.charge;
        let slower = if computing > 0.0 { 1.0 + slowdown / computing } else { 1.0 };
        let end = computing * slower;
        let mut free = 0.0f64;
        let mut total = 0.0;
        for collective in &self.collectives {
            let start = free.max(self.window * slower * collective.ready);
            // Alone once computation is through.
            let stretched = collective.seconds * self.interference;
            let hidden = (end - start).clamp(0.0, stretched) / self.interference;
            let seconds = hidden * self.interference + (collective.seconds - hidden);
            free = start + seconds;
            total += seconds;
        }
        let exposed = (free - end).max(0.0);
        // The last is needed as soon as it is ready; it overtakes the others.
        let exposed = if alone > 0.0 { exposed.max(last.seconds) } else { 0.0 };
        Outcome { total, exposed, slowdown }
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

    fn even(count: u32, each: f64) -> Vec<Awaited> {
        let ready = |at: u32| f64::from(at) / f64::from(count);
        (1..=count).map(|at| Awaited { ready: ready(at), seconds: each }).collect()
    }

    proptest! {
        #[test]
        fn what_is_exposed_is_at_least_the_last_bucket_and_at_most_all(
            window in 0f64..10.0, after in 0f64..10.0, count in 1u32..50, each in 0f64..1.0,
            interference in 1f64..2.0,
        ) {
            let collectives = even(count, each);
            let series = Series { window, after, collectives, interference, charge: 0.1 };
            let outcome = series.play();
            prop_assert!(outcome.exposed >= each - 1e-9);
            prop_assert!(outcome.exposed <= outcome.total + 1e-9);
            prop_assert!(outcome.total <= f64::from(count) * each * interference + 1e-9);
            let without = Series { after: 0.0, ..series };
            prop_assert!(outcome.exposed <= without.play().exposed + 1e-9);
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
        let collectives = even(10, 0.1);
        let series =
            Series { window: 10.0, after: 0.0, collectives, interference: 1.0, charge: 0.0 };
        assert!((series.play().exposed - 0.1).abs() < 1e-9);
    }
}
