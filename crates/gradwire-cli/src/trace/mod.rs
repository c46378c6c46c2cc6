//! `gradwire trace`: timelines that engines have recorded, merged and explained.

mod exposure;
mod intervals;
mod merge;
mod operations;
mod path;
mod read;
mod show;
mod summary;
mod wires;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

/// Arguments of `gradwire trace`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say where the time went: communication hidden and exposed, by layer, on the critical path.
    ///
    /// Communication is the time with an operation in flight. It is exposed while the computation
    /// waits for it: in waits that the program has recorded or that its computing threads made in
    /// the engine; where operations are waited for by futures instead (as DDP does), from the last
    /// submission of a burst of operations to the burst's end. The rest is hidden. Of an operation,
    /// "wire" is the time in which a tile of it was on a wire, "reduce" that of reductions and
    /// codecs, and "queue" the rest: behind other operations, or waiting for other ranks.
    Summary(SummaryArgs),
    /// Put the files of all ranks into one, for Perfetto or chrome://tracing.
    Merge(MergeArgs),
}

/// Arguments of `gradwire trace summary`.
#[derive(Debug, clap::Args)]
struct SummaryArgs {
    /// Where rank0.json, rank1.json ... are (GRADWIRE_TRACE, or gradwire.profile's directory).
    directory: PathBuf,
    /// Layers, buckets or operations to list.
    #[arg(long, default_value_t = 20, value_name = "N")]
    list: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Arguments of `gradwire trace merge`.
#[derive(Debug, clap::Args)]
struct MergeArgs {
    /// Where rank0.json, rank1.json ... are (GRADWIRE_TRACE, or gradwire.profile's directory).
    directory: PathBuf,
    /// The file to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Add what torch.profiler's `export_chrome_trace` wrote; may be given several times.
    #[arg(long, value_name = "FILE")]
    with: Vec<PathBuf>,
}

/// Runs `gradwire trace`.
///
/// # Errors
/// When there are no traces, or one of them can't be read.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Summary(args) => {
            let traces = read::directory(&args.directory)?;
            let summary = summary::Summary::of(&traces);
            if args.json {
                println!("{}", serde_json::to_string(&summary)?);
            } else {
                print!("{}", show::text(&summary, args.list));
            }
        }
        Command::Merge(args) => merge::merge(&args.directory, &args.with, &args.output)?,
    }
    Ok(ExitCode::SUCCESS)
}
