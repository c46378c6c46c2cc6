//! The caller's side of a running lab.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::availability::{self, Unavailable};
use crate::plan::{MAX_RANKS_PER_HOST, check_count};
use crate::tools::Tools;
use crate::wire::{self, Event, FrontMessage, LabMessage, Outcome, Spec};
use crate::{Lab, LabError, control, init, namespaces};

/// What to run on every rank, and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The command and its arguments; the same on every rank.
    pub command: Vec<OsString>,
    /// Ranks on each host, 1 to [`MAX_RANKS_PER_HOST`].
    pub ranks_per_host: usize,
    /// Variables on top of the caller's own and of torchrun's; they win over both.
    pub environment: BTreeMap<String, String>,
    /// Whether each line of output gets its rank in front.
    pub prefix: bool,
    /// Whether that rank is coloured.
    pub colour: bool,
    /// Whether ranks go on when another one has failed.
    pub keep_going: bool,
    /// How long the ranks may take.
    pub timeout: Option<Duration>,
    /// How long a rank may take to end after SIGTERM, before SIGKILL.
    pub grace: Duration,
}

impl Job {
    /// One rank on each host, output prefixed and not coloured, the first failure ends the run, no
    /// time limit, 5 s of grace.
    pub fn new(command: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            ranks_per_host: 1,
            environment: BTreeMap::new(),
            prefix: true,
            colour: false,
            keep_going: false,
            timeout: None,
            grace: Duration::from_secs(5),
        }
    }

    fn check(&self) -> Result<(), LabError> {
        check_count("number of ranks per host", self.ranks_per_host, MAX_RANKS_PER_HOST)?;
        if self.command.is_empty() {
            return Err(LabError::Invalid("there is no command to run".into()));
        }
        match self.environment.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            Some(name) => Err(LabError::Invalid(format!("{name:?} can't name a variable"))),
            None => Ok(()),
        }
    }
}

impl Lab {
    /// Brings the lab up and runs a job on it. The program's `main` must have called
    /// [`init`](crate::init).
    ///
    /// # Errors
    /// [`LabError::Invalid`] for a job that can't be or a name that another running lab has,
    /// [`LabError::Unavailable`] where namespaces are refused. What goes wrong later is reported
    /// by [`RunningLab::next_event`].
    pub fn start(&self, job: &Job) -> Result<RunningLab, LabError> {
        job.check()?;
        Tools::find()?;
        let control = control::claim(self.name())?;
        let (lifeline, inner) = UnixStream::pair().map_err(LabError::io("making a socket pair"))?;
        let gate = namespaces::command_apart("/proc/self/exe")
            .arg0(init::GATE)
            .stdin(Stdio::from(OwnedFd::from(inner)))
            // Signals of the terminal are for the front, which tells the supervisor.
            .process_group(0)
            .spawn()
            .map_err(|error| LabError::Unavailable(availability::refused(error)))?;
        let spec = Box::new(Spec {
            lab: self.clone(),
            job: job.clone(),
            control: control.clone(),
            front: std::process::id(),
        });
        wire::send(&lifeline, &FrontMessage::Run(spec))
            .map_err(LabError::io("telling the lab what to do"))?;
        Ok(RunningLab {
            name: self.name().into(),
            lifeline: Arc::new(lifeline),
            received: None,
            gate,
            socket_to_remove: None,
            control,
        })
    }
}

/// A lab that was started. Dropping it ends it and everything in it.
#[derive(Debug)]
pub struct RunningLab {
    name: String,
    lifeline: Arc<UnixStream>,
    received: Option<BufReader<UnixStream>>,
    gate: Child,
    control: PathBuf,
    /// Set while a supervisor that would remove its control socket may die before it does.
    socket_to_remove: Option<PathBuf>,
}

impl RunningLab {
    /// What can stop it from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper { lifeline: Arc::clone(&self.lifeline) }
    }

    /// Waits for the next event. After [`Event::Ended`] the lab is gone, and so is all it made.
    ///
    /// # Errors
    /// Why the lab could not be set up or its command not be started, or [`LabError::Killed`].
    pub fn next_event(&mut self) -> Result<Event, LabError> {
        match self.receive()? {
            LabMessage::Event(event) => {
                match event {
                    Event::Up => self.socket_to_remove = Some(self.control.clone()),
                    Event::Ended(_) => self.wait_for_gate(),
                    Event::RankFailed(_) => {}
                }
                Ok(event)
            }
            LabMessage::Failed(failure) => {
                self.wait_for_gate();
                Err(self.explain(failure.into()))
            }
        }
    }

    /// Waits until all ranks have ended.
    ///
    /// # Errors
    /// As [`Self::next_event`].
    pub fn wait(&mut self) -> Result<Outcome, LabError> {
        loop {
            if let Event::Ended(outcome) = self.next_event()? {
                return Ok(outcome);
            }
        }
    }

    fn receive(&mut self) -> Result<LabMessage, LabError> {
        let reader = match &mut self.received {
            Some(reader) => reader,
            none => none.insert(BufReader::new(
                self.lifeline.try_clone().map_err(LabError::io("copying the lifeline"))?,
            )),
        };
        let mut line = String::new();
        // A supervisor that was killed may leave its socket reset instead of closed.
        let read = reader.read_line(&mut line).unwrap_or(0);
        if read == 0 {
            self.wait_for_gate();
            return Err(LabError::Killed(self.name.clone()));
        }
        serde_json::from_str(&line).map_err(LabError::io("understanding the lab"))
    }

    /// A network that can't be set up is more often a machine that can't have one.
    fn explain(&self, error: LabError) -> LabError {
        let LabError::Network(_) = &error else { return error };
        match availability::availability() {
            Err(reason @ Unavailable::StepRefused { .. }) => LabError::Unavailable(reason),
            _ => error,
        }
    }

    fn wait_for_gate(&mut self) {
        // Closes the lifeline for both sides, so that a supervisor that still runs ends now.
        let _ = self.lifeline.shutdown(std::net::Shutdown::Both);
        // Fails only if the gate was waited for already.
        let _ = self.gate.wait();
        if let Some(path) = self.socket_to_remove.take() {
            // Mostly gone already: the supervisor removes it.
            let _ = fs::remove_file(path);
        }
    }
}

impl Drop for RunningLab {
    fn drop(&mut self) {
        self.wait_for_gate();
    }
}

/// Ends a running lab from another thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    lifeline: Arc<UnixStream>,
}

impl Stopper {
    /// Terminates the ranks, and kills those that are left after the grace; called again, kills at
    /// once. Does nothing when the lab has ended.
    pub fn stop(&self) {
        // Fails only when the supervisor is gone, and its end is what was wanted.
        let _ = wire::send(&self.lifeline, &FrontMessage::Stop);
    }
}
