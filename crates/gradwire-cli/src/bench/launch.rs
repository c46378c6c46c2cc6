//! Ranks of our own: this program once more for each, on this machine.

use std::env;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use gradwire::{StoreServer, TransportChoice};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Tells a rank that it was started here, and where its parent serves the store.
const PARENTS_STORE: &str = "GRADWIRE_BENCH_STORE";
/// The interfaces that may be used, in NCCL's syntax.
const INTERFACES: &str = "GRADWIRE_SOCKET_IFNAME";
/// Once a rank has failed, how long the others may take to say what they saw of it.
const GRACE: Duration = Duration::from_secs(12);

/// Where the parent serves the store, if this process was started by [`run`].
pub fn parents_store() -> Option<String> {
    env::var(PARENTS_STORE).ok()
}

/// Starts the ranks and waits for all of them.
///
/// # Errors
/// When a rank can't be started.
pub fn run(ranks: u32, transport: Option<TransportChoice>) -> anyhow::Result<ExitCode> {
    let store = StoreServer::start("127.0.0.1:0").context("bench: cannot serve the store")?;
    let signals = signals().context("bench: catching signals")?;
    let mut family = Family::default();
    for rank in 0..ranks {
        let child = command(rank, ranks, &store, transport)?
            .spawn()
            .with_context(|| format!("bench: starting rank {rank}"))?;
        family.children.push(Some(child));
    }
    let status = family.wait(&signals);
    drop(store);
    Ok(status)
}

fn command(
    rank: u32,
    ranks: u32,
    store: &StoreServer,
    transport: Option<TransportChoice>,
) -> anyhow::Result<Command> {
    let program = env::current_exe().context("bench: finding this program")?;
    let address = store.address();
    let mut command = Command::new(program);
    command
        .args(env::args_os().skip(1))
        .stdin(Stdio::null())
        .env(PARENTS_STORE, address.to_string())
        .env("RANK", rank.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("WORLD_SIZE", ranks.to_string())
        .env("LOCAL_WORLD_SIZE", ranks.to_string())
        .env("MASTER_ADDR", address.ip().to_string())
        .env("MASTER_PORT", address.port().to_string());
    // One machine's ranks need no NIC, and a machine may have none.
    if transport != Some(TransportChoice::SharedMemory) && env::var_os(INTERFACES).is_none() {
        command.env(INTERFACES, "lo");
    }
    Ok(command)
}

/// Signals as they come. SIGCHLD says that there is a rank to be reaped.
fn signals() -> std::io::Result<Receiver<i32>> {
    let mut signals = Signals::new([SIGCHLD, SIGINT, SIGTERM])?;
    let (sender, receiver) = channel();
    thread::spawn(move || signals.forever().all(|signal| sender.send(signal).is_ok()));
    Ok(receiver)
}

/// The ranks that run, by rank. None of them outlives it.
#[derive(Default)]
struct Family {
    children: Vec<Option<Child>>,
    has_failed: bool,
}

impl Family {
    fn wait(&mut self, signals: &Receiver<i32>) -> ExitCode {
        loop {
            self.reap();
            if self.children.iter().all(Option::is_none) {
                return ExitCode::from(u8::from(self.has_failed));
            }
            let grace = if self.has_failed { GRACE } else { Duration::MAX };
            match signals.recv_timeout(grace) {
                Ok(SIGCHLD) => {}
                Ok(signal) => {
                    self.kill();
                    return ExitCode::from(u8::try_from(128 + signal).unwrap_or(1));
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    eprintln!("gradwire: bench: the other ranks do not end; killing them");
                    self.kill();
                }
            }
        }
    }

    /// Takes leave of the ranks that have ended.
    fn reap(&mut self) {
        for (rank, place) in self.children.iter_mut().enumerate() {
            let Some(Ok(Some(status))) = place.as_mut().map(Child::try_wait) else { continue };
            *place = None;
            if !status.success() && !self.has_failed {
                self.has_failed = true;
                eprintln!("gradwire: bench: rank {rank} failed ({})", status);
            }
        }
    }

    fn kill(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // It may have ended in this moment, which is as well.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.children.clear();
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.kill();
    }
}
