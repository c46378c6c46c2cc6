//! The alpha-beta-gamma model: what a collective costs in closed form, and what it costs at least.
//!
//! alpha is the latency of one message, beta the seconds per byte on the wire, gamma the seconds per
//! byte for reducing (or for encoding and decoding). The closed forms are those of Thakur,
//! Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005; the
//! lower bounds those of Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication:
//! theory, practice, and experience", 2007.

/// The three constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlphaBetaGamma {
    /// Seconds for each message in sequence.
    pub alpha: f64,
    /// Seconds for each byte sent.
    pub beta: f64,
    /// Seconds for each byte reduced.
    pub gamma: f64,
}

/// How a collective is laid out, as far as its cost goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Around a ring: 2(n-1) messages of one n-th.
    Ring,
    /// Recursive halving and doubling: 2 log2 n messages.
    HalvingDoubling,
    /// Each with each: 2 messages in sequence.
    Direct,
    /// Two trees, pipelined in pieces.
    Tree,
    /// Through one rank, whose link carries everything.
    Star,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Shape; 5] =
        [Shape::Ring, Shape::HalvingDoubling, Shape::Direct, Shape::Tree, Shape::Star];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Ring => "ring",
            Shape::HalvingDoubling => "halving-doubling",
            Shape::Direct => "direct",
            Shape::Tree => "tree",
            Shape::Star => "star",
        }
    }
}

impl AlphaBetaGamma {
    /// Seconds of an all-reduce of `bytes` among `ranks` whose links do not share anything.
    pub fn all_reduce(&self, shape: Shape, ranks: u32, bytes: f64) -> f64 {
        if ranks < 2 {
            return 0.0;
        }
        let n = f64::from(ranks);
        let rounds = n.log2().ceil();
        let Self { alpha, beta, gamma } = *self;
        let share = (n - 1.0) / n * bytes;
        match shape {
            Shape::Ring => 2.0 * (n - 1.0) * alpha + share * (2.0 * beta + gamma),
            Shape::HalvingDoubling => 2.0 * rounds * alpha + share * (2.0 * beta + gamma),
            Shape::Direct => 2.0 * alpha + share * (2.0 * beta + gamma),
            Shape::Tree => {
                // The best number of pieces balances filling the pipeline against latency.
                let depth = 2.0 * rounds;
                let per_byte = 2.0 * beta + gamma;
                depth * alpha + per_byte * bytes + 2.0 * (depth * alpha * per_byte * bytes).sqrt()
            }
            Shape::Star => 2.0 * alpha + (n - 1.0) * bytes * (2.0 * beta + gamma),
        }
    }

    /// Seconds that no all-reduce of `bytes` among `ranks` with one port each can beat.
    pub fn all_reduce_at_least(&self, ranks: u32, bytes: f64) -> f64 {
        if ranks < 2 {
            return 0.0;
        }
        let n = f64::from(ranks);
        let share = (n - 1.0) / n * bytes;
        self.alpha + share * (2.0 * self.beta).max(self.gamma)
    }

    /// The shape that costs least, and its seconds.
    pub fn cheapest(&self, ranks: u32, bytes: f64) -> (Shape, f64) {
        let costs = Shape::ALL.map(|shape| (shape, self.all_reduce(shape, ranks, bytes)));
        costs.into_iter().fold(costs[0], |best, next| if next.1 < best.1 { next } else { best })
    }

    /// Fits alpha and beta to measured (bytes on the wire, seconds) by least squares of relative
    /// errors. `None` with fewer than two sizes.
    pub fn fit(points: &[(f64, f64)]) -> Option<(f64, f64)> {
        // Each equation alpha + beta b = t is divided by t.
        let mut sums = [0.0; 5];
        for &(bytes, seconds) in points {
            let (one, size) = (1.0 / seconds, bytes / seconds);
            let terms = [one * one, one * size, size * size, one, size];
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
        }
        let [aa, ab, bb, a1, b1] = sums;
        let determinant = aa * bb - ab * ab;
        if points.len() < 2 || determinant <= 1e-12 * aa * bb {
            return None;
        }
        let alpha = (a1 * bb - b1 * ab) / determinant;
        let beta = (aa * b1 - ab * a1) / determinant;
        if alpha >= 0.0 && beta > 0.0 { Some((alpha, beta)) } else { Some((0.0, b1 / bb)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_shape_beats_the_bound(
            ranks in 2u32..2000, bytes in 0f64..1e10, alpha in 0f64..1e-3, beta in 1e-12f64..1e-6,
            gamma in 0f64..1e-9,
        ) {
            let model = AlphaBetaGamma { alpha, beta, gamma };
            let bound = model.all_reduce_at_least(ranks, bytes);
            for shape in Shape::ALL {
                prop_assert!(model.all_reduce(shape, ranks, bytes) >= bound * (1.0 - 1e-12));
            }
            prop_assert!(model.cheapest(ranks, bytes).1 >= bound * (1.0 - 1e-12));
        }

        #[test]
        fn a_fit_finds_what_made_the_points(alpha in 1e-6f64..1e-2, beta in 1e-11f64..1e-7) {
            let points: Vec<(f64, f64)> =
                (10..30).map(|power| f64::from(1u32 << power)).map(|b| (b, alpha + beta * b)).collect();
            let (found_alpha, found_beta) = AlphaBetaGamma::fit(&points).expect("20 sizes");
            prop_assert!((found_alpha / alpha - 1.0).abs() < 1e-3, "{found_alpha}");
            prop_assert!((found_beta / beta - 1.0).abs() < 1e-3, "{found_beta}");
        }
    }

    #[test]
    fn one_rank_costs_nothing_and_one_size_fits_nothing() {
        let model = AlphaBetaGamma { alpha: 1.0, beta: 1.0, gamma: 1.0 };
        assert_eq!(model.all_reduce(Shape::Ring, 1, 5.0), 0.0);
        assert_eq!(AlphaBetaGamma::fit(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }
}
