//! `gradwire bench`: how fast collectives are, in nccl-tests' terms.

mod buffer;
mod join;
mod launch;
mod measure;
mod report;
mod resident;
pub mod shape;
pub mod size;
mod values;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;

use gradwire::{Algorithm, Codec, Collective, DataType, ReduceOp, TransportChoice};

use crate::failure::Failure;
use crate::schedule::with_root;

/// Most ranks that are started on one machine.
const MAX_OWN_RANKS: u32 = 256;

/// Arguments of `gradwire bench`.
///
/// How time is measured: sizes up to 64 KiB in batches of 20 operations back to back, as
/// nccl-tests does, larger ones one by one; before each batch all ranks meet in a barrier; the
/// slowest rank's time counts. The table shows median and 99th percentile over the batches, and
/// bandwidths of the median. Collectives with an input and an output of their own work out of
/// place, all_reduce, reduce and broadcast in place. The size is that of the largest tensor.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Start this many ranks on this machine; without it, join the job in the environment
    /// (torchrun's variables, an MPI launcher's, Slurm's, `gradwire lab run`'s).
    #[arg(long)]
    ranks: Option<NonZeroU32>,
    /// Wires: auto, shm or tcp [default: GRADWIRE_TRANSPORT, or auto].
    #[arg(long)]
    transport: Option<TransportChoice>,
    /// What: all_reduce, reduce, broadcast, reduce_scatter, all_gather, gather, scatter,
    /// all_to_all, barrier or send_receive (also with ranks: reduce:3, send_receive:0:1).
    #[arg(long, default_value = "all_reduce")]
    collective: Collective,
    /// Type of the elements, by PyTorch's names.
    #[arg(long, default_value = "float32")]
    dtype: DataType,
    /// Operator of collectives that reduce: sum, avg, min, max, product, band, bor or bxor.
    #[arg(long, default_value = "sum")]
    op: ReduceOp,
    /// How: auto, ring, tree, halving-doubling, direct, star, one-shot, hierarchical or
    /// hierarchical-ring.
    #[arg(long, default_value = "auto", value_parser = algorithm)]
    algorithm: Choice,
    /// How float32 values travel: bf16, fp16, int8, int6, int5, int4, int2, fp8_e4m3, fp8_e5m2 or
    /// sign1, with options as in int4/64. Results are not checked then.
    #[arg(long)]
    codec: Option<Codec>,
    /// Smallest size: 8, 64K, 1M, 1G.
    #[arg(short = 'b', long, default_value = "8", value_name = "SIZE", value_parser = size::parse)]
    min_bytes: usize,
    /// Largest size.
    #[arg(short = 'e', long, default_value = "64M", value_name = "SIZE", value_parser = size::parse)]
    max_bytes: usize,
    /// From one size to the next.
    #[arg(short = 'f', long, default_value_t = 2)]
    factor: usize,
    /// These sizes instead of a series, separated by commas: 8,1K,64M.
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        value_parser = size::parse,
        conflicts_with_all = ["min_bytes", "max_bytes", "factor"]
    )]
    sizes: Vec<usize>,
    /// Operations measured at each size [default: as many as take 0.3 s, from 5 to 2000].
    #[arg(short = 'n', long)]
    iterations: Option<NonZeroU32>,
    /// Operations before the measured ones.
    #[arg(short = 'w', long, default_value_t = 5)]
    warm_up: u32,
    /// Whether each size's result is checked: 1 or 0.
    #[arg(short = 'c', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    check: u8,
    /// The root of reduce, broadcast, gather and scatter.
    #[arg(long)]
    root: Option<u32>,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
    /// Also write the table as comma-separated values.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// An algorithm, or the engine's own choice.
#[derive(Clone, Copy, Debug)]
struct Choice(Option<Algorithm>);

fn algorithm(text: &str) -> Result<Choice, String> {
    match text {
        "auto" => Ok(Choice(None)),
        name => {
            name.parse().map(|it| Choice(Some(it))).map_err(|error| format!("{error}, or auto"))
        }
    }
}

/// Runs `gradwire bench`.
///
/// # Errors
/// Bad usage, a job that can't be joined, or an operation that fails.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let args = args.checked().map_err(|error| Failure::usage(format!("bench: {error}")))?;
    match (launch::parents_store(), args.ranks) {
        (Some(store), _) => join::own_rank(&args, &store),
        (None, Some(ranks)) => {
            args.check_ranks(ranks.get())?;
            launch::run(ranks.get(), args.transport)
        }
        (None, None) => join::job(&args),
    }
}

impl Args {
    /// The arguments with the root where it belongs, if they can be.
    fn checked(mut self) -> Result<Self, String> {
        self.collective = with_root(self.collective, self.root)?;
        if self.factor < 2 && self.min_bytes < self.max_bytes {
            return Err(format!("a factor (-f) of {} leads nowhere; use 2 or more", self.factor));
        }
        if self.min_bytes > self.max_bytes {
            return Err("the smallest size (-b) is larger than the largest (-e)".to_owned());
        }
        if self.collective.reduces() && !self.op.supports(self.dtype) {
            return Err(format!("{} is not defined for {}", self.op, self.dtype));
        }
        if let Some(algorithm) = self.algorithm.0
            && !algorithm.supports(self.collective)
        {
            return Err(format!("{algorithm} does not carry out {}", self.collective.name()));
        }
        if let Some(codec) = self.codec {
            if self.dtype != DataType::F32 {
                return Err(format!("codec {codec} works on float32, not on {}", self.dtype));
            }
            self.check = 0;
        }
        if let Some(ranks) = self.ranks
            && ranks.get() > MAX_OWN_RANKS
        {
            return Err(format!("{ranks} ranks on one machine; the limit is {MAX_OWN_RANKS}"));
        }
        Ok(self)
    }

    /// The sizes to measure, in multiples of `grain` bytes.
    fn sizes(&self, grain: usize) -> Vec<usize> {
        if self.collective == Collective::Barrier {
            vec![0]
        } else if self.sizes.is_empty() {
            size::series(self.min_bytes, self.max_bytes, self.factor, grain)
        } else {
            size::whole_grains(self.sizes.iter().copied(), grain)
        }
    }

    /// Checks that the ranks which the collective names are there.
    fn check_ranks(&self, ranks: u32) -> Result<(), Failure> {
        let named = match self.collective {
            Collective::SendReceive { from, to } if from == to => {
                return Err(Failure::usage("bench: send_receive needs two different ranks"));
            }
            Collective::SendReceive { from, to } => from.max(to),
            other => other.root().unwrap_or(0),
        };
        if named >= ranks {
            let text = format!("bench: {} names rank {named}, there are {ranks}", self.collective);
            return Err(Failure::usage(text));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn checked(arguments: &str) -> Result<Args, String> {
        let line = std::iter::once("bench").chain(arguments.split_whitespace());
        Line::try_parse_from(line).map_err(|error| error.to_string())?.args.checked()
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (arguments, reason) in [
            ("-f 1", "leads nowhere"),
            ("-b 2M -e 1M", "larger than"),
            ("-b 1T", "64K"),
            ("--sizes 8,x", "'x' is no size"),
            ("--sizes 8 -b 8", "cannot be used with"),
            ("--op band", "band is not defined for float32"),
            ("--collective all_to_all --algorithm ring", "ring does not carry out all_to_all"),
            ("--algorithm fast", "or auto"),
            ("--root 1", "all_reduce has no root"),
            ("--ranks 1000", "the limit is 256"),
        ] {
            let error = checked(arguments).unwrap_err();
            assert!(error.contains(reason), "{arguments}: {error}");
        }
    }

    #[test]
    fn named_ranks_must_be_there() {
        let args = checked("--collective reduce --root 2").unwrap();
        assert!(args.check_ranks(3).is_ok());
        assert!(args.check_ranks(2).unwrap_err().to_string().contains("names rank 2, there are 2"));
        let alone = checked("--collective send_receive").unwrap();
        assert!(alone.check_ranks(1).is_err());
    }
}
