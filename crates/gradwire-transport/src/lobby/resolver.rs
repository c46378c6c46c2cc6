//! The thread that looks endpoints up, because a lookup may block.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Command, Directory, Shared};

/// How long the end of a lobby waits for a lookup that is going on.
const PATIENCE: Duration = Duration::from_millis(200);

pub(super) struct Resolver {
    requests: Option<Sender<u32>>,
    thread: Option<JoinHandle<()>>,
}

impl Resolver {
    pub(super) fn start(
        directory: Arc<dyn Directory>,
        commands: Sender<Command>,
        shared: Arc<Shared>,
    ) -> io::Result<Resolver> {
        let (requests, received) = channel();
        let work = move || {
            for peer in received {
                let endpoint = directory.lookup(peer);
                if commands.send(Command::Resolved { peer, endpoint }).is_err() {
                    return;
                }
                shared.wake();
            }
        };
        let thread = thread::Builder::new().name("gradwire-resolver".into()).spawn(work)?;
        Ok(Resolver { requests: Some(requests), thread: Some(thread) })
    }

    /// Where to ask for lookups.
    pub(super) fn requests(&self) -> Sender<u32> {
        self.requests.clone().expect("the resolver has not been stopped")
    }

    /// Ends the thread. One that sits in a lookup is left to end by itself: whoever shuts a lobby
    /// down must not hang on a store that does not answer.
    pub(super) fn stop(&mut self) {
        self.requests = None;
        let Some(thread) = self.thread.take() else { return };
        let deadline = Instant::now() + PATIENCE;
        while !thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() && thread.join().is_err() {
            tracing::error!("the lookup of an endpoint has panicked");
        }
    }
}
