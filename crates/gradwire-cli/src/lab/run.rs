//! `gradwire lab run`.

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use gradwire_lab::{Ending, Event, Job, Lab, Loss, Outcome, Rate, Stopper};
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

/// Arguments of `gradwire lab run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of hosts.
    #[arg(long, default_value_t = 2)]
    hosts: usize,
    /// Rate of every link in each direction, as 100mbit or 1gbit; not shaped without it.
    #[arg(long)]
    rate: Option<Rate>,
    /// Rate of one host's links, as 2=100mbit; may be repeated.
    #[arg(long, value_name = "HOST=RATE", value_parser = pair::<usize, Rate>)]
    rate_of: Vec<(usize, Rate)>,
    /// Number of NICs of each host.
    #[arg(long, default_value_t = 1)]
    nics: usize,
    /// Ranks on each host.
    #[arg(long, default_value_t = 1)]
    ranks_per_host: usize,
    /// Delay of what leaves each host, one way, as 10ms; needs netem in the kernel.
    #[arg(long, value_parser = humantime::parse_duration)]
    delay: Option<Duration>,
    /// Share of the packets leaving each host that are lost, as 0.1%; needs netem in the kernel.
    #[arg(long)]
    loss: Option<Loss>,
    /// Name for the other lab commands [default: lab-PID].
    #[arg(long)]
    name: Option<String>,
    /// End the run when it takes longer than this, as 300s or 5m.
    #[arg(long, value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// How long ranks may take to end after SIGTERM, before SIGKILL.
    #[arg(long, default_value = "5s", value_parser = humantime::parse_duration)]
    grace: Duration,
    /// Let the other ranks go on when one has failed.
    #[arg(long)]
    keep_going: bool,
    /// Leave the output as it is, without ranks in front of lines.
    #[arg(long)]
    no_prefix: bool,
    /// One more variable for every rank; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair::<String, String>)]
    env: Vec<(String, String)>,
    /// The command to run on every rank.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Reads `KEY=VALUE`.
fn pair<K, V>(text: &str) -> Result<(K, V), String>
where
    K: FromStr<Err: ToString>,
    V: FromStr<Err: ToString>,
{
    let (key, value) = text.split_once('=').ok_or("there is no '=' in it")?;
    let key = key.parse().map_err(|error: K::Err| format!("{key:?}: {}", error.to_string()))?;
    Ok((key, value.parse().map_err(|error: V::Err| error.to_string())?))
}

impl Args {
    fn lab(&self) -> Result<Lab, gradwire_lab::LabError> {
        let mut lab = Lab::builder().hosts(self.hosts).nics(self.nics);
        if let Some(name) = &self.name {
            lab = lab.name(name);
        }
        if let Some(rate) = self.rate {
            lab = lab.rate(rate);
        }
        for &(host, rate) in &self.rate_of {
            lab = lab.rate_of(host, rate);
        }
        if let Some(delay) = self.delay {
            lab = lab.delay(delay);
        }
        if let Some(loss) = self.loss {
            lab = lab.loss(loss);
        }
        lab.build()
    }

    fn job(self) -> Job {
        let no_colour = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Job {
            ranks_per_host: self.ranks_per_host,
            environment: self.env.into_iter().collect(),
            prefix: !self.no_prefix,
            colour: io::stdout().is_terminal() && io::stderr().is_terminal() && !no_colour,
            keep_going: self.keep_going,
            timeout: self.timeout,
            grace: self.grace,
            ..Job::new(self.command)
        }
    }
}

/// Runs `gradwire lab run`.
///
/// # Errors
/// When the lab can't be brought up or the command can't be started.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let lab = args.lab()?;
    let timeout = args.timeout;
    let job = args.job();
    let ranks = lab.hosts() * job.ranks_per_host;
    // From here on a signal is kept until there is something to stop.
    let signals = Signals::new([SIGINT, SIGTERM, SIGQUIT]).context("catching signals")?;
    let mut running = lab.start(&job)?;
    let stopped_by = stop_on_signals(signals, running.stopper());
    loop {
        match running.next_event()? {
            Event::Up => say(&format!(
                "{}: {}; {ranks} rank{}",
                lab.name(),
                lab.summary(),
                if ranks == 1 { "" } else { "s" }
            )),
            Event::RankFailed(failure) => say(&failure.to_string()),
            Event::Ended(outcome) => {
                return Ok(conclude(&outcome, timeout, stopped_by.load(Ordering::Relaxed)));
            }
        }
    }
}

fn say(text: &str) {
    eprintln!("gradwire lab: {text}");
}

/// Stops the lab at the first signal, at once at the second; where the first one will be noted.
fn stop_on_signals(mut signals: Signals, stopper: Stopper) -> Arc<AtomicI32> {
    let first = Arc::new(AtomicI32::new(0));
    let noted = Arc::clone(&first);
    thread::spawn(move || {
        for signal in signals.forever() {
            if noted.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                say("stopping; once more to kill");
            }
            stopper.stop();
        }
    });
    first
}

/// Says how the run ended, where that isn't said yet, and gives the exit status.
fn conclude(outcome: &Outcome, timeout: Option<Duration>, signal: i32) -> ExitCode {
    if let Some(line) = explanation(outcome, timeout) {
        say(&line);
    }
    match outcome.ending {
        Ending::Stopped => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
        _ if outcome.is_success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn explanation(outcome: &Outcome, timeout: Option<Duration>) -> Option<String> {
    let ranks = names(&outcome.unfinished);
    match outcome.ending {
        Ending::TimedOut => Some(format!(
            "timed out after {}; terminated {ranks}",
            humantime::format_duration(timeout.unwrap_or_default())
        )),
        Ending::RankFailed if !outcome.unfinished.is_empty() => {
            let failure = outcome.failures.first()?;
            Some(format!("terminated {ranks} because rank {} failed", failure.rank))
        }
        Ending::AllEnded if outcome.failures.len() > 1 => {
            let failed: Vec<_> = outcome.failures.iter().map(|failure| failure.rank).collect();
            Some(format!("{} failed", names(&failed)))
        }
        _ => None,
    }
}

/// `rank 1`, `ranks 1, 2 and 5`; more than 8 are counted.
fn names(ranks: &[usize]) -> String {
    let all: Vec<_> = ranks.iter().map(ToString::to_string).collect();
    match all.as_slice() {
        [] => "no rank".into(),
        [one] => format!("rank {one}"),
        [first @ .., last] if ranks.len() <= 8 => format!("ranks {} and {last}", first.join(", ")),
        many => format!("{} ranks", many.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradwire_lab::{RankFailure, RankStatus};

    #[test]
    fn pairs_are_split_at_the_first_equals_sign() {
        assert_eq!(pair::<String, String>("A=b=c"), Ok(("A".into(), "b=c".into())));
        let (host, rate) = pair::<usize, Rate>("2=100mbit").unwrap();
        assert_eq!((host, rate.bits_per_second()), (2, 100_000_000));
        assert!(pair::<usize, Rate>("x=100mbit").unwrap_err().contains("\"x\""));
        assert!(pair::<usize, Rate>("100mbit").unwrap_err().contains('='));
    }

    #[test]
    fn the_last_line_names_culprit_and_victims() {
        let failure = RankFailure { rank: 2, host: 1, status: RankStatus::Exited(3) };
        let mut outcome = Outcome {
            ending: Ending::RankFailed,
            unfinished: vec![0, 1, 3],
            failures: vec![failure],
        };
        assert_eq!(
            explanation(&outcome, None).unwrap(),
            "terminated ranks 0, 1 and 3 because rank 2 failed"
        );
        outcome.ending = Ending::TimedOut;
        outcome.unfinished = (0..20).collect();
        assert_eq!(
            explanation(&outcome, Some(Duration::from_secs(300))).unwrap(),
            "timed out after 5m; terminated 20 ranks"
        );
    }
}
