//! The `gradwire` command. Each subcommand is one module with its `Args` and its `run`.
//!
//! Exit status: 0 for success, 1 for a failed run, 2 for bad usage.

mod amount;
mod bench;
mod failure;
mod foresight;
mod lab;
mod schedule;
mod top;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Move gradients between training workers over slow networks.
#[derive(Debug, Parser)]
#[command(name = "gradwire", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure how fast collectives are, in nccl-tests' terms.
    Bench(bench::Args),
    /// Find the layout and settings with the least time to the same loss.
    Plan(foresight::plan::Args),
    /// Predict a training step, or one collective, on a cluster that you describe.
    Simulate(foresight::simulate::Args),
    /// Show what a cluster file describes.
    Topo(foresight::topo::Args),
    /// Make predictions fit steps that you have measured.
    Calibrate(foresight::calibrate::Args),
    /// Hold predictions against published measurements.
    Validate(foresight::validate::Args),
    /// Run commands on real hosts made of network namespaces, behind shaped links.
    Lab(lab::Args),
    /// Show what a collective moves between ranks, in which order.
    Schedule(schedule::Args),
    /// Explain and merge the timelines that a job has recorded.
    Trace(trace::Args),
    /// Show what running jobs are doing.
    Top(top::Args),
}

fn main() -> ExitCode {
    gradwire_lab::init();
    let result = match Cli::parse().command {
        Command::Bench(args) => bench::run(args),
        Command::Calibrate(args) => foresight::calibrate::run(args),
        Command::Lab(args) => lab::run(args),
        Command::Plan(args) => foresight::plan::run(args),
        Command::Simulate(args) => foresight::simulate::run(args),
        Command::Topo(args) => foresight::topo::run(args),
        Command::Validate(args) => foresight::validate::run(args),
        Command::Schedule(args) => schedule::run(args),
        Command::Trace(args) => trace::run(args),
        Command::Top(args) => top::run(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("gradwire: {error:#}");
        failure::status(&error)
    })
}
