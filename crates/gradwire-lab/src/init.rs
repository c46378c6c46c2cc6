//! The processes between front and supervisor.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, exit};

use rustix::process::{Signal, WaitOptions, set_parent_process_death_signal, wait};

use crate::wire::{self, Failure, LabMessage};
use crate::{namespaces, supervisor};

/// First argument of the process that waits outside the PID namespace.
pub(crate) const GATE: &str = "gradwire-lab-gate";
/// First argument of process 1 of the PID namespace.
const INIT: &str = "gradwire-lab-init";
/// First argument of the process that owns hosts and ranks.
const SUPERVISOR: &str = "gradwire-lab-supervisor";

/// Must be the first call of `main` in a program that starts labs: in the processes that
/// [`Lab::start`](crate::Lab::start) makes out of the program, it does their work and never
/// returns; otherwise it does nothing.
pub fn init() {
    match std::env::args_os().next().as_deref().and_then(|name| name.to_str()) {
        Some(GATE) => gate(),
        Some(INIT) => process_one(),
        Some(SUPERVISOR) => supervisor::run(),
        _ => {}
    }
}

/// The lifeline, which all three inherit as standard input.
pub(crate) fn lifeline() -> io::Result<UnixStream> {
    Ok(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// Starts process 1 and waits for it. Its own PID namespace is still the machine's: a process
/// can't move, only its children can be born elsewhere.
fn gate() -> ! {
    let status = itself(INIT).status();
    exit(match status {
        Ok(status) => status.code().unwrap_or(1),
        Err(error) => fail(format!("starting a PID namespace: {error}")),
    })
}

/// Mounts `/proc`, starts the supervisor and reaps whatever is orphaned. When it exits, the kernel
/// kills all that is left in the namespace.
fn process_one() -> ! {
    // The gate's end is how the front knows that all is over, so the lab must not outlive it.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        exit(fail(format!("tying the lab to its caller: {error}")));
    }
    if let Err(error) = namespaces::mount_proc() {
        exit(fail(format!("mounting /proc for a PID namespace: {error}")));
    }
    let supervisor = match itself(SUPERVISOR).spawn() {
        Ok(child) => child.id(),
        Err(error) => exit(fail(format!("starting the supervisor: {error}"))),
    };
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get().cast_unsigned() == supervisor => {
                exit(status.exit_status().unwrap_or(1))
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => exit(1),
        }
    }
}

fn itself(name: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(name);
    command
}

/// Tells the front what failed; the status to exit with.
fn fail(what: String) -> i32 {
    if let Ok(lifeline) = lifeline() {
        // A front that is gone needs no explanation.
        let _ = wire::send(&lifeline, &LabMessage::Failed(Failure::Network(what)));
    }
    1
}
