//! The programs of all ranks together.

use thiserror::Error;

use crate::build;
use crate::rounds::Rounds;
use crate::{Algorithm, Collective, Hosts, Program, Rank, StepKind};

/// Why there is no program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unsupported {
    /// The algorithm doesn't carry out the collective.
    #[error("algorithm {algorithm} does not do {}", collective.name())]
    Collective {
        /// The algorithm.
        algorithm: Algorithm,
        /// The collective.
        collective: Collective,
    },
    /// A group has at least one rank.
    #[error("a group has at least one rank, not 0")]
    NoRanks,
    /// The number of ranks is beyond [`Schedule::MAX_RANKS`].
    #[error("{ranks} ranks; the limit is {}", Schedule::MAX_RANKS)]
    TooManyRanks {
        /// The number asked for.
        ranks: Rank,
    },
    /// The program's own rank, the root or a peer is not in the group.
    #[error("rank {rank} is not in a group of {ranks}")]
    NoSuchRank {
        /// The rank that was named.
        rank: Rank,
        /// The number of ranks.
        ranks: Rank,
    },
}

impl Algorithm {
    /// The program of one rank, built in time proportional to its own number of steps (times the
    /// logarithm of the number of ranks).
    ///
    /// # Errors
    /// When the algorithm doesn't support the collective or a rank is not in the group.
    pub fn program(
        self,
        collective: Collective,
        rank: Rank,
        ranks: Rank,
    ) -> Result<Program, Unsupported> {
        if !self.supports(collective) {
            return Err(Unsupported::Collective { algorithm: self, collective });
        }
        check_ranks(collective, rank, ranks)?;
        Ok(build::program(self, collective, rank, ranks, None))
    }

    /// As [`Algorithm::program`], for algorithms that tell hosts apart; the others build what they
    /// always do.
    ///
    /// # Errors
    /// As [`Algorithm::program`].
    pub fn program_on(
        self,
        collective: Collective,
        rank: Rank,
        hosts: &Hosts,
    ) -> Result<Program, Unsupported> {
        if !self.supports(collective) {
            return Err(Unsupported::Collective { algorithm: self, collective });
        }
        check_ranks(collective, rank, hosts.ranks())?;
        Ok(build::program(self, collective, rank, hosts.ranks(), Some(hosts)))
    }
}

fn check_ranks(collective: Collective, rank: Rank, ranks: Rank) -> Result<(), Unsupported> {
    if ranks == 0 {
        return Err(Unsupported::NoRanks);
    }
    if ranks > Schedule::MAX_RANKS {
        return Err(Unsupported::TooManyRanks { ranks });
    }
    let (first, second) = match collective {
        Collective::SendReceive { from, to } => (Some(from), Some(to)),
        _ => (collective.root(), None),
    };
    match [Some(rank), first, second].into_iter().flatten().find(|&rank| rank >= ranks) {
        Some(rank) => Err(Unsupported::NoSuchRank { rank, ranks }),
        None => Ok(()),
    }
}

/// The programs of all ranks of one collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// What the programs do.
    pub collective: Collective,
    /// How they do it.
    pub algorithm: Algorithm,
    /// One program for each rank, in the order of ranks.
    pub programs: Vec<Program>,
}

impl Schedule {
    /// The largest group.
    pub const MAX_RANKS: Rank = 1 << 20;

    /// Builds the programs of all ranks.
    ///
    /// # Errors
    /// When the algorithm doesn't support the collective or a rank is not in the group.
    pub fn build(
        collective: Collective,
        algorithm: Algorithm,
        ranks: Rank,
    ) -> Result<Self, Unsupported> {
        check_ranks(collective, 0, ranks)?;
        Self::build_on(collective, algorithm, &Hosts::apart(ranks))
    }

    /// Builds the programs of all ranks on these hosts.
    ///
    /// # Errors
    /// As [`Schedule::build`].
    pub fn build_on(
        collective: Collective,
        algorithm: Algorithm,
        hosts: &Hosts,
    ) -> Result<Self, Unsupported> {
        check_ranks(collective, 0, hosts.ranks())?;
        let programs = (0..hosts.ranks())
            .map(|rank| algorithm.program_on(collective, rank, hosts))
            .collect::<Result<_, _>>()?;
        Ok(Self { collective, algorithm, programs })
    }

    /// The number of ranks.
    pub fn ranks(&self) -> Rank {
        self.programs.len() as Rank
    }

    /// How many chunks the whole tensor has: what all-reduce, reduce and broadcast work on, what
    /// reduce-scatter and scatter divide, what all-gather and gather put together, one rank's
    /// input of all-to-all.
    pub fn tensor_chunks(&self) -> u32 {
        match self.collective {
            Collective::AllReduce | Collective::Reduce { .. } | Collective::Broadcast { .. } => {
                self.programs.first().map_or(1, |program| program.output_chunks)
            }
            Collective::Barrier | Collective::SendReceive { .. } => 1,
            _ => self.ranks(),
        }
    }

    /// What the schedule costs, in rounds, messages and shares of the tensor.
    pub fn summary(&self) -> Summary {
        let ranks = self.programs.iter().map(|program| self.summary_of(program)).collect();
        let rounds = Rounds::of(self).count;
        let messages = self.programs.iter().flat_map(|program| &program.steps);
        let messages = messages.filter(|step| step.kind.sends_to().is_some()).count();
        Summary { rounds, messages, ranks }
    }

    fn summary_of(&self, program: &Program) -> RankSummary {
        let mut summary = RankSummary::default();
        // A barrier's messages are empty.
        let whole = f64::from(self.tensor_chunks());
        let share = if self.collective == Collective::Barrier { 0.0 } else { 1.0 / whole };
        for step in &program.steps {
            match step.kind {
                StepKind::Send { .. } => {
                    summary.messages_sent += 1;
                    summary.sent += share;
                }
                StepKind::Receive { .. } => summary.received += share,
                StepKind::ReceiveReduce { .. } => {
                    summary.received += share;
                    summary.reduced += share;
                }
                StepKind::Reduce { .. } => summary.reduced += share,
                StepKind::Copy { .. } => {}
            }
        }
        summary
    }
}

/// What a schedule costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The longest chain of messages, each waiting for the one before.
    pub rounds: u32,
    /// Messages of all ranks together.
    pub messages: usize,
    /// What each rank does, in the order of ranks.
    pub ranks: Vec<RankSummary>,
}

impl Summary {
    /// The share of the tensor that the busiest sender sends.
    pub fn most_sent(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.sent).fold(0.0, f64::max)
    }
}

/// What a schedule costs one rank. Shares are in units of the whole tensor (see
/// [`Schedule::tensor_chunks`]), with all chunks taken to be of one length.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankSummary {
    /// Share of the tensor that it sends.
    pub sent: f64,
    /// Share of the tensor that it receives.
    pub received: f64,
    /// Share of the tensor that it reduces.
    pub reduced: f64,
    /// Messages that it sends.
    pub messages_sent: u32,
}
