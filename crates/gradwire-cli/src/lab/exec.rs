//! `gradwire lab exec`.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use gradwire_lab::LabError;
use signal_hook::consts::{SIGINT, SIGQUIT};

use super::change::LabArgs;

/// Arguments of `gradwire lab exec`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    lab: LabArgs,
    /// The host.
    #[arg(long, default_value_t = 0)]
    host: usize,
    /// The command to run there.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs `gradwire lab exec`: the command has this process's terminal and environment, and its exit
/// status becomes this one's.
///
/// # Errors
/// When there is no such lab or host, or the command can't be started.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (program, arguments) = args.command.split_first().context("there is no command")?;
    let mut command = args.lab.find()?.command_on(args.host, program)?;
    // The terminal's signals are for the command, which decides what they mean.
    for signal in [SIGINT, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let name = || program.to_string_lossy().into_owned();
    match command.args(arguments).status() {
        Ok(status) => Ok(exit_code(status)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(LabError::CommandNotFound(name()).into())
        }
        Err(source) => Err(LabError::CommandNotExecutable { command: name(), source }.into()),
    }
}

/// As shells do: 128 and the signal for a command that a signal ended.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
