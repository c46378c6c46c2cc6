//! The names of collectives and algorithms.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::Rank;

/// What a group of ranks wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collective {
    /// Every rank ends with the reduction of all contributions.
    AllReduce,
    /// The root ends with the reduction of all contributions.
    Reduce {
        /// The rank that receives the result.
        root: Rank,
    },
    /// Every rank ends with the root's tensor.
    Broadcast {
        /// The rank whose tensor is sent.
        root: Rank,
    },
    /// Rank r ends with chunk r of the reduction.
    ReduceScatter,
    /// Every rank ends with the concatenation of all contributions.
    AllGather,
    /// The root ends with the concatenation of all contributions.
    Gather {
        /// The rank that receives the result.
        root: Rank,
    },
    /// Rank r ends with chunk r of the root's tensor.
    Scatter {
        /// The rank whose tensor is divided.
        root: Rank,
    },
    /// Chunk j of rank i becomes chunk i of rank j.
    AllToAll,
    /// No rank passes before all have arrived.
    Barrier,
    /// One rank's tensor goes to another.
    SendReceive {
        /// The sending rank.
        from: Rank,
        /// The receiving rank.
        to: Rank,
    },
}

/// How a collective is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Algorithm {
    /// Chunks travel around a ring.
    Ring = 0,
    /// Two binary trees, each carrying half, with complementary inner nodes.
    Tree = 1,
    /// Recursive halving, then recursive doubling.
    HalvingDoubling = 2,
    /// Full mesh: all-to-all reduce-scatter, then all-gather.
    Direct = 3,
    /// Everything goes through one rank.
    Star = 4,
    /// Full mesh in one hop: every rank sends all it has to all and reduces for itself.
    OneShot = 5,
    /// Within each host first; between hosts as [`Algorithm::Direct`].
    Hierarchical = 6,
    /// Within each host first; between hosts as [`Algorithm::Ring`].
    HierarchicalRing = 7,
}

/// A name or root that is none of a collective's or algorithm's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown {kind} `{given}`, expected {expected}")]
pub struct UnknownName {
    kind: &'static str,
    given: String,
    expected: String,
}

/// Names of the collectives in the order of their codes.
const COLLECTIVE_NAMES: [&str; 10] = [
    "all_reduce",
    "reduce",
    "broadcast",
    "reduce_scatter",
    "all_gather",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
    "send_receive",
];

impl Collective {
    /// The code that stands for the collective on the wire, 0 to 9 in order of declaration.
    pub const fn code(self) -> u8 {
        match self {
            Collective::AllReduce => 0,
            Collective::Reduce { .. } => 1,
            Collective::Broadcast { .. } => 2,
            Collective::ReduceScatter => 3,
            Collective::AllGather => 4,
            Collective::Gather { .. } => 5,
            Collective::Scatter { .. } => 6,
            Collective::AllToAll => 7,
            Collective::Barrier => 8,
            Collective::SendReceive { .. } => 9,
        }
    }

    /// The name that belongs to a code.
    pub fn name_of(code: u8) -> Option<&'static str> {
        COLLECTIVE_NAMES.get(usize::from(code)).copied()
    }

    /// The name, without any root: `all_reduce`, `send_receive`.
    pub const fn name(self) -> &'static str {
        COLLECTIVE_NAMES[self.code() as usize]
    }

    /// The rank that all data goes to or comes from, where there is one.
    pub const fn root(self) -> Option<Rank> {
        match self {
            Collective::Reduce { root }
            | Collective::Broadcast { root }
            | Collective::Gather { root }
            | Collective::Scatter { root } => Some(root),
            _ => None,
        }
    }

    /// Whether the contribution lies in the output buffer when the program starts.
    pub const fn works_in_place(self) -> bool {
        matches!(
            self,
            Collective::AllReduce | Collective::Reduce { .. } | Collective::Broadcast { .. }
        )
    }

    /// Whether contributions are combined with an operator.
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            Collective::AllReduce | Collective::Reduce { .. } | Collective::ReduceScatter
        )
    }
}

impl fmt::Display for Collective {
    /// The name, and the ranks it involves: `reduce:3`, `send_receive:0:1`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Collective::SendReceive { from, to } => {
                write!(formatter, "{}:{from}:{to}", self.name())
            }
            _ => match self.root() {
                Some(root) => write!(formatter, "{}:{root}", self.name()),
                None => formatter.write_str(self.name()),
            },
        }
    }
}

impl FromStr for Collective {
    type Err = UnknownName;

    /// Reads what `Display` writes. A root that is left out is rank 0 (`reduce`), and
    /// `send_receive` alone goes from rank 0 to rank 1.
    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let unknown = || UnknownName {
            kind: "collective",
            given: text.to_owned(),
            expected: format!(
                "one of {} (with a root where there is one: reduce:3, send_receive:0:1)",
                COLLECTIVE_NAMES.join(", ")
            ),
        };
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let ranks: Vec<Rank> =
            parts.map(str::parse).collect::<Result<_, _>>().map_err(|_| unknown())?;
        let root = ranks.first().copied().unwrap_or(0);
        let (collective, allowed): (_, &[usize]) = match name {
            "all_reduce" => (Collective::AllReduce, &[0]),
            "reduce" => (Collective::Reduce { root }, &[0, 1]),
            "broadcast" => (Collective::Broadcast { root }, &[0, 1]),
            "reduce_scatter" => (Collective::ReduceScatter, &[0]),
            "all_gather" => (Collective::AllGather, &[0]),
            "gather" => (Collective::Gather { root }, &[0, 1]),
            "scatter" => (Collective::Scatter { root }, &[0, 1]),
            "all_to_all" => (Collective::AllToAll, &[0]),
            "barrier" => (Collective::Barrier, &[0]),
            "send_receive" => {
                let to = ranks.get(1).copied().unwrap_or(1);
                (Collective::SendReceive { from: root, to }, &[0, 2])
            }
            _ => return Err(unknown()),
        };
        if allowed.contains(&ranks.len()) { Ok(collective) } else { Err(unknown()) }
    }
}

impl Algorithm {
    /// Every algorithm, in the order of their codes.
    pub const ALL: [Algorithm; 8] = [
        Algorithm::Ring,
        Algorithm::Tree,
        Algorithm::HalvingDoubling,
        Algorithm::Direct,
        Algorithm::Star,
        Algorithm::OneShot,
        Algorithm::Hierarchical,
        Algorithm::HierarchicalRing,
    ];

    /// The algorithm that a code on the wire stands for.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The code that stands for the algorithm on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The name: `ring`, `halving-doubling`.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Ring => "ring",
            Algorithm::Tree => "tree",
            Algorithm::HalvingDoubling => "halving-doubling",
            Algorithm::Direct => "direct",
            Algorithm::Star => "star",
            Algorithm::OneShot => "one-shot",
            Algorithm::Hierarchical => "hierarchical",
            Algorithm::HierarchicalRing => "hierarchical-ring",
        }
    }

    /// Whether the algorithm carries out the collective (at any number of ranks).
    pub const fn supports(self, collective: Collective) -> bool {
        use Collective::*;
        match self {
            Algorithm::Ring => matches!(
                collective,
                AllReduce | Reduce { .. } | Broadcast { .. } | ReduceScatter | AllGather
            ),
            Algorithm::Tree => matches!(
                collective,
                AllReduce
                    | Reduce { .. }
                    | Broadcast { .. }
                    | Gather { .. }
                    | Scatter { .. }
                    | Barrier
            ),
            Algorithm::HalvingDoubling => {
                matches!(collective, AllReduce | ReduceScatter | AllGather | Barrier)
            }
            Algorithm::Direct => true,
            Algorithm::Star => !matches!(collective, AllToAll | SendReceive { .. }),
            Algorithm::OneShot => matches!(collective, AllReduce | AllGather | Barrier),
            Algorithm::Hierarchical | Algorithm::HierarchicalRing => {
                matches!(collective, AllReduce | ReduceScatter | AllGather)
            }
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == text).ok_or_else(|| {
            UnknownName {
                kind: "algorithm",
                given: text.to_owned(),
                expected: format!("one of {}", Self::ALL.map(Algorithm::name).join(", ")),
            }
        })
    }
}
