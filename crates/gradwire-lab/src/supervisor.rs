//! The process that owns a lab: brings the network up, runs the ranks, answers `gradwire lab`.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio, exit};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::environment::rank_environment;
use crate::front::Job;
use crate::init::lifeline;
use crate::network::Network;
use crate::output::{self, Sink};
use crate::server;
use crate::supervision::{Ending, Order, RankStatus, Supervision};
use crate::wire::{self, Event, FrontMessage, LabMessage, Outcome, Spec};
use crate::{LabError, control};

/// How long output is waited for after the last rank has ended: a process that it left behind may
/// hold its output open.
const LAST_OUTPUT: Duration = Duration::from_millis(500);

/// Process groups of the ranks that run, by rank.
pub(crate) type Groups = Arc<Mutex<Vec<Option<Pid>>>>;

/// What the supervisor waits for.
enum Notice {
    RankEnded(usize, ExitStatus),
    OutputEnded { whole: bool },
    Stop,
}

/// Does the supervisor's work and exits.
pub(crate) fn run() -> ! {
    let Ok(lifeline) = lifeline() else { exit(1) };
    let message = match supervise(&lifeline) {
        Ok(outcome) => LabMessage::Event(Event::Ended(outcome)),
        Err(error) => LabMessage::Failed(error.into()),
    };
    // A front that is gone needs no answer.
    let _ = wire::send(&lifeline, &message);
    exit(0)
}

fn supervise(lifeline: &UnixStream) -> Result<Outcome, LabError> {
    let mut messages =
        BufReader::new(lifeline.try_clone().map_err(LabError::io("copying the lifeline"))?);
    let Some(FrontMessage::Run(spec)) = next_message(&mut messages) else { exit(1) };
    let Spec { lab, job, control, front } = *spec;
    let ranks = lab.hosts() * job.ranks_per_host;
    let groups: Groups = Arc::new(Mutex::new(vec![None; ranks]));
    let (notify, notices) = mpsc::channel();
    listen_to_front(messages, control.clone(), notify.clone());
    let network = Arc::new(Network::bring_up(lab)?);
    let about = server::About { front, command: command_line(&job), ranks };
    let answering = server::serve(&control, Arc::clone(&network), Arc::clone(&groups), about)?;
    // A front that is gone is noticed by the lifeline's own thread.
    let _ = wire::send(lifeline, &LabMessage::Event(Event::Up));
    let started = Ranks { network: &network, job: &job, groups: &groups, control: &control };
    let result = started
        .start(&notify)
        .map(|outputs| watch(lifeline, &job, ranks, outputs, &groups, &notices));
    // Gone already if somebody cleaned up the directory.
    let _ = fs::remove_file(&control);
    answering.finish();
    result
}

fn next_message(messages: &mut impl BufRead) -> Option<FrontMessage> {
    let mut line = String::new();
    messages.read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

/// Passes on what the front says. When the front is gone the lab ends at once, with all in it.
fn listen_to_front(
    mut messages: BufReader<UnixStream>,
    control: std::path::PathBuf,
    notify: Sender<Notice>,
) {
    thread::spawn(move || {
        while let Some(FrontMessage::Stop) = next_message(&mut messages) {
            // The main thread may be in its last lines.
            let _ = notify.send(Notice::Stop);
        }
        let _ = fs::remove_file(&control);
        exit(1)
    });
}

fn command_line(job: &Job) -> String {
    job.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// What starting the ranks takes.
struct Ranks<'a> {
    network: &'a Network,
    job: &'a Job,
    groups: &'a Groups,
    control: &'a Path,
}

impl Ranks<'_> {
    /// Starts every rank on its host; the number of outputs to wait for.
    fn start(&self, notify: &Sender<Notice>) -> Result<usize, LabError> {
        let mut outputs = 0;
        for rank in 0..self.network.lab().hosts() * self.job.ranks_per_host {
            let mut command = self.command(rank);
            let host = self.network.host(rank / self.job.ranks_per_host);
            let mut child = host
                .run(move || command.spawn())
                .map_err(|error| not_started(&self.job.command[0].to_string_lossy(), error))?;
            outputs += self.take_output(rank, &mut child, notify)?;
            let group = Pid::from_child(&child);
            self.groups.lock().expect("no holder panics")[rank] = Some(group);
            let notify = notify.clone();
            thread::spawn(move || {
                if let Ok(status) = child.wait() {
                    // The main thread may be in its last lines.
                    let _ = notify.send(Notice::RankEnded(rank, status));
                }
            });
        }
        Ok(outputs)
    }

    fn command(&self, rank: usize) -> Command {
        let mut command = Command::new(&self.job.command[0]);
        command
            .args(&self.job.command[1..])
            .envs(rank_environment(self.network.lab(), self.job.ranks_per_host, rank))
            .envs(control::environment(self.control))
            .stdin(Stdio::null())
            .process_group(0);
        if env::var_os("OMP_NUM_THREADS").is_none() {
            command.env("OMP_NUM_THREADS", "1");
        }
        command.envs(&self.job.environment);
        if self.job.prefix {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        command
    }

    fn take_output(
        &self,
        rank: usize,
        child: &mut Child,
        notify: &Sender<Notice>,
    ) -> Result<usize, LabError> {
        let ended = || {
            let notify = notify.clone();
            // The main thread may be in its last lines.
            move |whole| drop(notify.send(Notice::OutputEnded { whole }))
        };
        let prefix = output::prefix(rank, self.job.colour);
        let mut outputs = 0;
        let failed = |error: io::Error| LabError::io("starting a thread for output")(error);
        if let Some(stdout) = child.stdout.take() {
            output::pump(stdout, prefix.clone(), Sink::Stdout, ended()).map_err(failed)?;
            outputs += 1;
        }
        if let Some(stderr) = child.stderr.take() {
            output::pump(stderr, prefix, Sink::Stderr, ended()).map_err(failed)?;
            outputs += 1;
        }
        Ok(outputs)
    }
}

fn not_started(command: &str, error: io::Error) -> LabError {
    match error.kind() {
        io::ErrorKind::NotFound => LabError::CommandNotFound(command.into()),
        _ => LabError::CommandNotExecutable { command: command.into(), source: error },
    }
}

/// Waits until no rank runs and what they wrote is written.
fn watch(
    lifeline: &UnixStream,
    job: &Job,
    ranks: usize,
    mut outputs: usize,
    groups: &Groups,
    notices: &Receiver<Notice>,
) -> Outcome {
    let limit = job.timeout.map(|timeout| Instant::now() + timeout);
    let mut run = Supervision::new(ranks, job.ranks_per_host, job.keep_going, job.grace, limit);
    let mut last_output = None;
    while !(run.is_over() && outputs == 0) {
        if run.is_over() && last_output.is_none() {
            last_output = Some(Instant::now() + LAST_OUTPUT);
        }
        let order = match receive_until(notices, last_output.or(run.next_tick())) {
            Ok(Notice::RankEnded(rank, status)) => {
                groups.lock().expect("no holder panics")[rank] = None;
                let (failure, order) = run.ended(rank, rank_status(status), Instant::now());
                if let Some(failure) = failure {
                    // A front that is gone is noticed by the lifeline's own thread.
                    let _ = wire::send(lifeline, &LabMessage::Event(Event::RankFailed(failure)));
                }
                order
            }
            Ok(Notice::OutputEnded { whole }) => {
                outputs -= 1;
                if whole { Order::Nothing } else { run.stop(Ending::OutputClosed, Instant::now()) }
            }
            Ok(Notice::Stop) => run.stop(Ending::Stopped, Instant::now()),
            Err(_) if run.is_over() => break,
            Err(_) => run.tick(Instant::now()),
        };
        carry_out(order, groups);
    }
    let (ending, unfinished, failures) = run.into_result();
    Outcome { ending, unfinished, failures }
}

fn receive_until(
    notices: &Receiver<Notice>,
    due: Option<Instant>,
) -> Result<Notice, RecvTimeoutError> {
    match due {
        Some(due) => notices.recv_timeout(due.saturating_duration_since(Instant::now())),
        None => notices.recv().map_err(RecvTimeoutError::from),
    }
}

fn rank_status(status: ExitStatus) -> RankStatus {
    match status.signal() {
        Some(signal) => RankStatus::Signaled(signal),
        None => RankStatus::Exited(status.code().unwrap_or(1)),
    }
}

fn carry_out(order: Order, groups: &Groups) {
    let (ranks, signal) = match order {
        Order::Nothing => return,
        Order::Terminate(ranks) => (ranks, Signal::TERM),
        Order::Kill(ranks) => (ranks, Signal::KILL),
    };
    let groups = groups.lock().expect("no holder panics");
    for group in ranks.into_iter().filter_map(|rank| groups[rank]) {
        // Fails only for a group that has just ended.
        let _ = kill_process_group(group, signal);
    }
}
