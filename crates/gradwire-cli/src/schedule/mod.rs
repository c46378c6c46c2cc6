//! `gradwire schedule`: what moves between ranks, in which order.

mod json;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use gradwire_schedule::{Algorithm, Collective, Hosts, Rank, Schedule, draw, verify};

use crate::failure::Failure;

/// Most ranks that are shown: some algorithms have steps in proportion to the square of them.
const MAX_SHOWN_RANKS: Rank = 1024;

/// Arguments of `gradwire schedule`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the schedule of a collective, proven right, and draw it.
    Show(ShowArgs),
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// How: ring, tree, halving-doubling, direct, star, one-shot, hierarchical or
    /// hierarchical-ring.
    #[arg(long)]
    algorithm: Algorithm,
    /// Number of ranks.
    #[arg(long)]
    ranks: Rank,
    /// How many of them share a host, for the algorithms that tell hosts apart.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_host: Rank,
    /// What: all_reduce, reduce, broadcast, reduce_scatter, all_gather, gather, scatter,
    /// all_to_all, barrier or send_receive (also with ranks: reduce:3, send_receive:0:1).
    #[arg(long, default_value = "all_reduce")]
    collective: Collective,
    /// The root of reduce, broadcast, gather and scatter.
    #[arg(long)]
    root: Option<Rank>,
    /// Draw it into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs `gradwire schedule`.
///
/// # Errors
/// When there is no such schedule or the drawing can't be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Command::Show(args) = args.command;
    if args.ranks > MAX_SHOWN_RANKS {
        let text = format!("schedule: {} ranks; the limit is {MAX_SHOWN_RANKS}", args.ranks);
        return Err(Failure::usage(text).into());
    }
    let schedule = with_root(args.collective, args.root)
        .and_then(|collective| {
            let hosts = Hosts::blocks(args.ranks, args.ranks_per_host);
            Schedule::build_on(collective, args.algorithm, &hosts)
                .map_err(|error| error.to_string())
        })
        .map_err(|error| Failure::usage(format!("schedule: {error}")))?;
    verify(&schedule).context("schedule: the builder made a wrong one; this is a bug")?;
    if let Some(path) = &args.svg {
        fs::write(path, draw::svg(&schedule))
            .with_context(|| format!("schedule: {}", path.display()))?;
    }
    if args.json {
        println!("{}", json::document(&schedule));
    } else {
        print!("{}", draw::print(&schedule));
    }
    Ok(ExitCode::SUCCESS)
}

/// The collective with the root given beside it.
pub fn with_root(collective: Collective, root: Option<Rank>) -> Result<Collective, String> {
    let Some(root) = root else { return Ok(collective) };
    Ok(match collective {
        Collective::Reduce { .. } => Collective::Reduce { root },
        Collective::Broadcast { .. } => Collective::Broadcast { root },
        Collective::Gather { .. } => Collective::Gather { root },
        Collective::Scatter { .. } => Collective::Scatter { root },
        other => return Err(format!("{} has no root", other.name())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_for_collectives_that_have_one() {
        let reduce = Collective::Reduce { root: 0 };
        assert_eq!(with_root(reduce, Some(3)), Ok(Collective::Reduce { root: 3 }));
        assert_eq!(with_root(Collective::Barrier, None), Ok(Collective::Barrier));
        assert_eq!(
            with_root(Collective::AllReduce, Some(3)),
            Err("all_reduce has no root".to_owned())
        );
    }
}
