//! Counting errors.

use serde::Serialize;

/// A configuration, measured and predicted; in any unit where less is better.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Which.
    pub name: String,
    /// Configurations are only compared within one group (one model on one cluster).
    pub group: String,
    /// As measured.
    pub measured: f64,
    /// As predicted.
    pub predicted: f64,
    /// As the null model predicts.
    pub null: f64,
}

/// Errors over a number of points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// Points.
    pub points: usize,
    /// Mean absolute error in percent of the measured value.
    pub mape_pct: f64,
    /// The same of the null model.
    pub null_mape_pct: f64,
    /// Largest absolute error in percent.
    pub worst_pct: f64,
    /// Mean signed error in percent: positive where predictions are too slow.
    pub bias_pct: f64,
    /// Pairs of configurations of one group that are ordered rightly, in percent.
    pub ordered_pct: f64,
    /// How much slower than the best the configuration is that is predicted best, in percent, on
    /// average over groups.
    pub regret_pct: f64,
}

/// Counts the errors of points.
pub fn score(points: &[Point]) -> Score {
    if points.is_empty() {
        return Score::default();
    }
    let count = points.len() as f64;
    let error = |point: &Point, predicted: f64| 100.0 * (predicted / point.measured - 1.0);
    let errors: Vec<f64> = points.iter().map(|point| error(point, point.predicted)).collect();
    Score {
        points: points.len(),
        mape_pct: errors.iter().map(|it| it.abs()).sum::<f64>() / count,
        null_mape_pct: points.iter().map(|it| error(it, it.null).abs()).sum::<f64>() / count,
        worst_pct: errors.iter().map(|it| it.abs()).fold(0.0, f64::max),
        bias_pct: errors.iter().sum::<f64>() / count,
        ordered_pct: ordered(points),
        regret_pct: regret(points),
    }
}

fn groups(points: &[Point]) -> Vec<Vec<&Point>> {
    let mut names: Vec<&str> = points.iter().map(|point| point.group.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let of = |name: &str| points.iter().filter(|point| point.group == name).collect();
    names.into_iter().map(of).collect()
}

fn ordered(points: &[Point]) -> f64 {
    let (mut right, mut all) = (0, 0);
    for group in groups(points) {
        for (at, one) in group.iter().enumerate() {
            for other in &group[at + 1..] {
                if one.measured != other.measured {
                    all += 1;
                    right += usize::from(
                        (one.measured < other.measured) == (one.predicted < other.predicted),
                    );
                }
            }
        }
    }
    if all == 0 { 100.0 } else { 100.0 * right as f64 / all as f64 }
}

fn regret(points: &[Point]) -> f64 {
    let groups = groups(points);
    let of = |group: &Vec<&Point>| {
        let best = group.iter().map(|it| it.measured).fold(f64::INFINITY, f64::min);
        let chosen = group.iter().min_by(|a, b| a.predicted.total_cmp(&b.predicted));
        chosen.map_or(0.0, |it| 100.0 * (it.measured / best - 1.0))
    };
    groups.iter().map(of).sum::<f64>() / groups.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(group: &str, measured: f64, predicted: f64) -> Point {
        Point { name: String::new(), group: group.into(), measured, predicted, null: 1.0 }
    }

    #[test]
    fn errors_pairs_and_regret_are_what_they_are_called() {
        let points = [
            point("a", 1.0, 1.1),
            point("a", 2.0, 1.0),
            point("a", 4.0, 4.0),
            point("b", 1.0, 1.0),
        ];
        let score = score(&points);
        assert_eq!(score.points, 4);
        assert!((score.mape_pct - 15.0).abs() < 1e-9);
        assert!((score.ordered_pct - 200.0 / 3.0).abs() < 1e-9);
        assert!((score.regret_pct - 50.0).abs() < 1e-9);
        assert!((score.worst_pct - 50.0).abs() < 1e-9);
    }
}
