//! Sets of time, as intervals in nanoseconds.

/// Intervals in order that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals(Vec<(i64, i64)>);

impl Intervals {
    /// The union of intervals in any order.
    pub fn union(intervals: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let mut sorted: Vec<(i64, i64)> =
            intervals.into_iter().filter(|(start, end)| start < end).collect();
        sorted.sort_unstable();
        let mut merged: Vec<(i64, i64)> = Vec::new();
        for (start, end) in sorted {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        Intervals(merged)
    }

    /// The time in both.
    pub fn intersect(&self, other: &Intervals) -> Intervals {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Vec::new();
        while let (Some(one), Some(two)) = (a.peek(), b.peek()) {
            let (start, end) = (one.0.max(two.0), one.1.min(two.1));
            if start < end {
                both.push((start, end));
            }
            if one.1 <= two.1 {
                a.next()
            } else {
                b.next()
            };
        }
        Intervals(both)
    }

    /// Its length.
    pub fn total(&self) -> i64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// The intervals.
    pub fn iter(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.0.iter().copied()
    }

    /// How much of an interval is in it.
    pub fn overlap(&self, start: i64, end: i64) -> i64 {
        let first = self.0.partition_point(|interval| interval.1 <= start);
        self.0[first..]
            .iter()
            .take_while(|interval| interval.0 < end)
            .map(|interval| interval.1.min(end) - interval.0.max(start))
            .sum()
    }

    /// Whether a moment is in it.
    pub fn contains(&self, at: i64) -> bool {
        let first = self.0.partition_point(|interval| interval.1 <= at);
        self.0.get(first).is_some_and(|interval| interval.0 <= at)
    }

    /// The last interval that begins before a moment.
    pub fn last_before(&self, at: i64) -> Option<(i64, i64)> {
        self.0[..self.0.partition_point(|interval| interval.0 < at)].last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_time_add_up() {
        let a = Intervals::union([(5, 9), (0, 2), (1, 3), (3, 4), (7, 7)]);
        assert_eq!(a, Intervals(vec![(0, 4), (5, 9)]));
        let b = Intervals::union([(2, 6), (8, 20)]);
        let both = a.intersect(&b);
        assert_eq!(both, Intervals(vec![(2, 4), (5, 6), (8, 9)]));
        assert_eq!((a.total(), both.total()), (8, 4));
        assert_eq!([a.overlap(3, 6), a.overlap(4, 5), a.overlap(-5, 100)], [2, 0, 8]);
        assert_eq!([3, 4, 5, 9].map(|at| a.contains(at)), [true, false, true, false]);
        assert_eq!(
            [0, 1, 5, 6].map(|at| a.last_before(at)),
            [None, Some((0, 4)), Some((0, 4)), Some((5, 9))]
        );
    }
}
