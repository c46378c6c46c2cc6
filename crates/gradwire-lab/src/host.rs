//! A host: one thread that lives in the host's namespaces and starts its processes.
//!
//! A process inherits the namespaces of the thread that starts it. So the thread is the host: no
//! names in the file system, nothing to unmount, and the namespaces end with the supervisor.

use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread;

use rustix::thread::gettid;

use crate::LabError;
use crate::namespaces;
use crate::plan::Lab;

type Task = Box<dyn FnOnce() + Send>;

/// A running host thread.
#[derive(Debug)]
pub(crate) struct Host {
    tasks: mpsc::Sender<Task>,
    thread: i32,
    namespaces: Vec<OwnedFd>,
}

impl Host {
    /// Starts a host with nothing but its namespaces and its name.
    pub(crate) fn start(index: usize) -> Result<Self, LabError> {
        let (tasks, inbox) = mpsc::channel::<Task>();
        let (made, outcome) = mpsc::channel();
        let hostname = Lab::hostname(index);
        thread::Builder::new()
            .name(hostname.clone())
            .spawn(move || {
                let started = namespaces::become_host(&hostname).and_then(|()| {
                    let own = namespaces::of_this_thread()
                        .map_err(LabError::io("opening a host's namespaces"))?;
                    Ok((gettid().as_raw_nonzero().get(), own))
                });
                // The receiver waits below for exactly this message.
                let _ = made.send(started);
                inbox.iter().for_each(|task| task());
            })
            .map_err(LabError::io("starting a host's thread"))?;
        let (thread, namespaces) = outcome.recv().expect("the host's thread reports once")?;
        Ok(Self { tasks, thread, namespaces })
    }

    /// The id of the thread, by which its network namespace can be named.
    pub(crate) fn thread(&self) -> i32 {
        self.thread
    }

    /// Descriptors of its namespaces, for a process that wants to join.
    pub(crate) fn namespaces(&self) -> &[OwnedFd] {
        &self.namespaces
    }

    /// Runs a task on the host and waits for its result.
    pub(crate) fn run<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let task = Box::new(move || {
            // The receiver waits below for exactly this message.
            let _ = done.send(task());
        });
        self.tasks.send(task).expect("the host's thread ends with its Host");
        result.recv().expect("tasks do not panic")
    }
}
