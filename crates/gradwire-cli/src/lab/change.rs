//! `gradwire lab cut`, `restore`, `rate` and `signal`: changing a lab while it runs.

use std::process::ExitCode;

use gradwire_lab::Rate;
use gradwire_lab::control::{Control, RankSignal};

/// Which lab.
#[derive(Debug, clap::Args)]
pub struct LabArgs {
    /// Name of the lab [default: $GRADWIRE_LAB, or the only one that runs].
    #[arg(long)]
    name: Option<String>,
}

impl LabArgs {
    /// The lab that is meant.
    ///
    /// # Errors
    /// When it isn't running, or no name is given and the choice isn't clear.
    pub fn find(&self) -> anyhow::Result<Control> {
        Ok(Control::find(self.name.as_deref())?)
    }
}

/// Which links.
#[derive(Debug, clap::Args)]
pub struct LinkArgs {
    #[command(flatten)]
    lab: LabArgs,
    /// The host.
    #[arg(long)]
    host: usize,
    /// One NIC of it [default: all].
    #[arg(long)]
    nic: Option<usize>,
}

/// Arguments of `gradwire lab rate`.
#[derive(Debug, clap::Args)]
pub struct RateArgs {
    #[command(flatten)]
    link: LinkArgs,
    /// The new rate, as 100mbit.
    rate: Rate,
}

/// Arguments of `gradwire lab signal`.
#[derive(Debug, clap::Args)]
pub struct SignalArgs {
    #[command(flatten)]
    lab: LabArgs,
    /// The rank.
    #[arg(long)]
    rank: usize,
    /// What to do to it and the processes it started.
    signal: SignalName,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SignalName {
    /// Ask it to end (SIGTERM).
    Term,
    /// End it (SIGKILL).
    Kill,
    /// Freeze it (SIGSTOP).
    Stop,
    /// Let a frozen one go on (SIGCONT).
    Cont,
}

/// Runs `gradwire lab cut`.
///
/// # Errors
/// When there is no such lab, host or NIC.
pub fn cut(args: &LinkArgs) -> anyhow::Result<ExitCode> {
    args.lab.find()?.cut(args.host, args.nic)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `gradwire lab restore`.
///
/// # Errors
/// When there is no such lab, host or NIC.
pub fn restore(args: &LinkArgs) -> anyhow::Result<ExitCode> {
    args.lab.find()?.restore(args.host, args.nic)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `gradwire lab rate`.
///
/// # Errors
/// When there is no such lab, host or NIC.
pub fn rate(args: &RateArgs) -> anyhow::Result<ExitCode> {
    args.link.lab.find()?.set_rate(args.link.host, args.link.nic, args.rate)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `gradwire lab signal`.
///
/// # Errors
/// When there is no such lab or rank.
pub fn signal(args: &SignalArgs) -> anyhow::Result<ExitCode> {
    let signal = match args.signal {
        SignalName::Term => RankSignal::Terminate,
        SignalName::Kill => RankSignal::Kill,
        SignalName::Stop => RankSignal::Freeze,
        SignalName::Cont => RankSignal::Continue,
    };
    args.lab.find()?.signal(args.rank, signal)?;
    Ok(ExitCode::SUCCESS)
}
