//! Leaving the machine's namespaces, and joining a host's.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::{env, io};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::process::{getegid, geteuid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::LabError;

/// What a lab as a whole has of its own, besides a user namespace where one is needed.
const LAB: UnshareFlags =
    UnshareFlags::NEWNS.union(UnshareFlags::NEWNET).union(UnshareFlags::NEWPID);
/// What each host has of its own.
const HOST: UnshareFlags = UnshareFlags::NEWNS
    .union(UnshareFlags::NEWNET)
    .union(UnshareFlags::NEWUTS)
    .union(UnshareFlags::NEWIPC);

/// A command that runs apart from the machine: as root of a new user namespace (or as the root it
/// is, where that root may make namespaces), in new mount and network namespaces. The processes
/// it starts are in a new PID namespace.
///
/// Spawning it fails with the error of the step that was refused.
pub(crate) fn command_apart(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let user_map = format!("0 {} 1", geteuid().as_raw());
    let group_map = format!("0 {} 1", getegid().as_raw());
    let mut command = Command::new(program);
    let leave = move || leave_machine(user_map.as_bytes(), group_map.as_bytes());
    // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are
    // allowed: it makes plain system calls on strings prepared before the fork and allocates
    // nothing.
    unsafe { command.pre_exec(leave) };
    command
}

fn leave_machine(user_map: &[u8], group_map: &[u8]) -> io::Result<()> {
    if !(geteuid().is_root() && unshare(LAB).is_ok()) {
        unshare(LAB | UnshareFlags::NEWUSER)?;
        // Kernels before 3.19 have no such file and need none.
        match write_file(c"/proc/self/setgroups", b"deny") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
        write_file(c"/proc/self/uid_map", user_map)?;
        write_file(c"/proc/self/gid_map", group_map)?;
    }
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change(c"/", private)?)
}

fn write_file(path: &CStr, text: &[u8]) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text)?;
    Ok(())
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: the flags used here make new namespaces and a private view of the current directory;
    // none of them (CLONE_FILES) gives the thread its own table of file descriptors, which is what
    // makes this call unsafe.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

/// Mounts the `/proc` of the PID namespace that the calling process is in.
pub(crate) fn mount_proc() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(rustix::mount::mount("proc", "/proc", "proc", flags, None::<&CStr>)?)
}

/// Gives the calling thread the namespaces of a host and makes them look like one.
pub(crate) fn become_host(hostname: &str) -> Result<(), LabError> {
    unshare(HOST).map_err(LabError::io("making a host's namespaces"))?;
    rustix::system::sethostname(hostname.as_bytes()).map_err(LabError::io("setting a hostname"))?;
    // Hosts do not share memory. Where a container's policy forbids this mount they do, which
    // harms only a program that finds its peers by names in /dev/shm.
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let _ = rustix::mount::mount("tmpfs", "/dev/shm", "tmpfs", flags, Some(c"mode=1777"));
    // Likewise: without it, /sys/class/net lists the machine's interfaces.
    let _ = show_own_interfaces();
    // Link-local IPv6 addresses would be a second way between hosts, with a second's delay while
    // they are probed. Kernels without IPv6 have no such file.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1");
    Ok(())
}

/// Shows the namespace's interfaces in `/sys/class/net`, leaving the rest of `/sys` (cgroups,
/// NUMA nodes) as it is. The new sysfs is mounted over `/tmp` for the moment: a directory that is
/// always there, in a mount namespace that nobody else sees yet.
fn show_own_interfaces() -> io::Result<()> {
    let stage = Path::new("/tmp");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("sysfs", stage, "sysfs", flags, None::<&CStr>)?;
    let shown = ["class/net", "devices/virtual/net"].iter().try_for_each(|part| {
        rustix::mount::mount_bind(stage.join(part), Path::new("/sys").join(part))
    });
    rustix::mount::unmount(stage, UnmountFlags::DETACH)?;
    Ok(shown?)
}

/// The namespaces that make a host, in the order in which another process can join them.
const KINDS: [(&str, LinkNameSpaceType); 6] = [
    ("user", LinkNameSpaceType::User),
    ("pid", LinkNameSpaceType::ProcessID),
    ("ipc", LinkNameSpaceType::InterProcessCommunication),
    ("uts", LinkNameSpaceType::HostNameAndNISDomainName),
    ("net", LinkNameSpaceType::Network),
    ("mnt", LinkNameSpaceType::Mount),
];

/// How many descriptors [`of_this_thread`] gives and [`join`] takes.
pub(crate) const COUNT: usize = KINDS.len();

/// Descriptors of the calling thread's namespaces.
pub(crate) fn of_this_thread() -> io::Result<Vec<OwnedFd>> {
    KINDS.iter().map(|(kind, _)| own(kind).map(OwnedFd::from)).collect()
}

fn own(kind: &str) -> io::Result<File> {
    File::open(format!("/proc/thread-self/ns/{kind}"))
}

/// Moves the calling process, which must have one thread only, into the namespaces that
/// [`of_this_thread`] described. The PID namespace holds for the processes that it starts.
pub(crate) fn join(namespaces: &[OwnedFd]) -> io::Result<()> {
    let directory = env::current_dir();
    // Read before moving: afterwards /proc may be another PID namespace's, where this process
    // has no entry.
    let own: Vec<_> = of_this_thread()?;
    for ((theirs, ours), (_, kind)) in namespaces.iter().zip(&own).zip(KINDS) {
        if !same_file(theirs, ours)? {
            rustix::thread::move_into_link_name_space(theirs.as_fd(), Some(kind))?;
        }
    }
    // Joining a mount namespace moves to its root directory.
    directory.and_then(env::set_current_dir)
}

fn same_file(one: &OwnedFd, other: &OwnedFd) -> io::Result<bool> {
    let (one, other) = (rustix::fs::fstat(one)?, rustix::fs::fstat(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}
