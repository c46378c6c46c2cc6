//! `gradwire lab`: real hosts on one machine.

mod change;
mod check;
mod exec;
mod list;
mod run;

use std::process::ExitCode;

use clap::Subcommand;
use gradwire_lab::LabError;

use crate::failure::Failure;

/// Arguments of `gradwire lab`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring hosts up and run a command on every rank, with torchrun's environment.
    Run(run::Args),
    /// Cut the links of a host: its packets vanish and nobody is told.
    Cut(change::LinkArgs),
    /// Restore the links of a host.
    Restore(change::LinkArgs),
    /// Set the rate of the links of a host, in both directions.
    Rate(change::RateArgs),
    /// Send a signal to a rank: kill it, freeze it, let it go on.
    Signal(change::SignalArgs),
    /// Run one more command on a host.
    Exec(exec::Args),
    /// List the labs that run.
    List(list::Args),
    /// Say whether labs are possible on this machine, and if not, why.
    Check(check::Args),
}

/// Runs `gradwire lab`.
///
/// # Errors
/// What went wrong, with the exit status for it.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Run(args) => run::run(args),
        Command::Cut(args) => change::cut(&args),
        Command::Restore(args) => change::restore(&args),
        Command::Rate(args) => change::rate(&args),
        Command::Signal(args) => change::signal(&args),
        Command::Exec(args) => exec::run(&args),
        Command::List(args) => list::run(&args),
        Command::Check(args) => check::run(&args),
    }
    .map_err(|error| match error.downcast::<LabError>() {
        Ok(error) => failure(&error).into(),
        Err(other) => other,
    })
}

/// The exit status of a lab's error; 126 and 127 are what shells use for a command that can't be
/// executed and one that isn't there.
fn failure(error: &LabError) -> Failure {
    let status = match error {
        LabError::Invalid(_) => 2,
        LabError::CommandNotFound(_) => 127,
        LabError::CommandNotExecutable { .. } => 126,
        _ => 1,
    };
    Failure::new(status, format!("lab: {error}"))
}
