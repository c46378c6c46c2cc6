//! What each rank holds for a collective of a given size, and what the size means.

use gradwire::Collective;

/// A collective among a number of ranks, as one of them sees it.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The collective.
    pub collective: Collective,
    /// Number of ranks.
    pub ranks: usize,
    /// This rank.
    pub rank: usize,
}

/// A run of elements of a buffer, by what is to be found in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Whose contribution it is; the reduction of all of them if `None`.
    pub from: Option<usize>,
    /// Which element of the contribution comes first.
    pub start: usize,
    /// Number of elements.
    pub elements: usize,
}

/// Bus bandwidth over algorithm bandwidth, as nccl-tests defines it.
pub fn bus_factor(collective: Collective, ranks: usize) -> f64 {
    let n = ranks as f64;
    match collective {
        Collective::AllReduce => 2.0 * (n - 1.0) / n,
        Collective::ReduceScatter
        | Collective::AllGather
        | Collective::Gather { .. }
        | Collective::Scatter { .. }
        | Collective::AllToAll => (n - 1.0) / n,
        _ => 1.0,
    }
}

impl Shape {
    /// Whether this rank has something to do at all: `send_receive` concerns two ranks.
    pub fn takes_part(&self) -> bool {
        match self.collective {
            Collective::SendReceive { from, to } => {
                [from, to].map(|end| end as usize).contains(&self.rank)
            }
            _ => true,
        }
    }

    /// Parts that a size is divided into: the size is that of the largest tensor, as in nccl-tests.
    pub fn parts(&self) -> usize {
        match self.collective {
            Collective::ReduceScatter
            | Collective::AllGather
            | Collective::Gather { .. }
            | Collective::Scatter { .. }
            | Collective::AllToAll => self.ranks,
            _ => 1,
        }
    }

    /// See [`bus_factor`].
    pub fn bus_factor(&self) -> f64 {
        bus_factor(self.collective, self.ranks)
    }

    /// What the input holds, for parts of `count` elements.
    pub fn input(&self, count: usize) -> Vec<Segment> {
        let own = |elements| vec![Segment { from: Some(self.rank), start: 0, elements }];
        match self.collective {
            Collective::ReduceScatter | Collective::AllToAll => own(count * self.ranks),
            Collective::AllGather | Collective::Gather { .. } => own(count),
            Collective::Scatter { root } if self.is(root) => own(count * self.ranks),
            Collective::SendReceive { from, .. } if self.is(from) => own(count),
            _ => Vec::new(),
        }
    }

    /// What the output holds at the start, where the collective works in place.
    pub fn output_before(&self, count: usize) -> Vec<Segment> {
        if self.collective.works_in_place() {
            vec![Segment { from: Some(self.rank), start: 0, elements: count }]
        } else {
            Vec::new()
        }
    }

    /// Elements of the output.
    pub fn output_elements(&self, count: usize) -> usize {
        match self.collective {
            Collective::AllGather | Collective::AllToAll => count * self.ranks,
            Collective::Gather { root } if self.is(root) => count * self.ranks,
            Collective::Gather { .. } | Collective::Barrier => 0,
            Collective::SendReceive { to, .. } if !self.is(to) => 0,
            _ => count,
        }
    }

    /// What the output must hold at the end; nothing where it is of no consequence.
    pub fn output_after(&self, count: usize) -> Vec<Segment> {
        let one = |from, start| vec![Segment { from, start, elements: count }];
        let every = |start| {
            let segment = |from| Segment { from: Some(from), start, elements: count };
            (0..self.ranks).map(segment).collect()
        };
        match self.collective {
            Collective::AllReduce => one(None, 0),
            Collective::Reduce { root } if self.is(root) => one(None, 0),
            Collective::Broadcast { root } => one(Some(root as usize), 0),
            Collective::ReduceScatter => one(None, self.rank * count),
            Collective::AllGather => every(0),
            Collective::Gather { root } if self.is(root) => every(0),
            Collective::Scatter { root } => one(Some(root as usize), self.rank * count),
            Collective::AllToAll => every(self.rank * count),
            Collective::SendReceive { from, to } if self.is(to) => one(Some(from as usize), 0),
            _ => Vec::new(),
        }
    }

    fn is(&self, rank: u32) -> bool {
        self.rank == rank as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(name: &str, ranks: usize, rank: usize) -> Shape {
        Shape { collective: name.parse().unwrap(), ranks, rank }
    }

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        for (name, factor) in [
            ("all_reduce", 1.5),
            ("reduce_scatter", 0.75),
            ("all_gather", 0.75),
            ("all_to_all", 0.75),
            ("broadcast", 1.0),
            ("reduce", 1.0),
            ("send_receive", 1.0),
        ] {
            assert_eq!(shape(name, 4, 0).bus_factor(), factor, "{name}");
        }
    }

    #[test]
    fn results_are_as_long_as_outputs() {
        for name in
            ["all_reduce", "broadcast", "reduce_scatter", "all_gather", "all_to_all", "scatter"]
        {
            for rank in 0..3 {
                let shape = shape(name, 3, rank);
                let expected: usize = shape.output_after(5).iter().map(|it| it.elements).sum();
                assert_eq!(expected, shape.output_elements(5), "{name}");
            }
        }
        assert_eq!(shape("gather:1", 3, 0).output_elements(5), 0);
        assert_eq!(shape("gather:1", 3, 1).output_elements(5), 15);
        assert!(!shape("send_receive:0:1", 3, 2).takes_part());
    }
}
