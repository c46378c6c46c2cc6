//! Changing a lab while it runs, from any process of the same user, inside the lab or outside.
//!
//! The supervisor serves a Unix socket in a directory of the user's own; requests and answers are
//! one JSON object a line.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, ffi::OsStr};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::{Deserialize, Serialize};

use crate::plan::check_name;
use crate::rate::Rate;
use crate::{LabError, namespaces, wire};

/// Names the lab that a process runs in.
pub const NAME_VARIABLE: &str = "GRADWIRE_LAB";
/// Names the directory of the control sockets, for processes inside a lab: they see another user
/// id there and so could not find it.
pub const DIRECTORY_VARIABLE: &str = "GRADWIRE_LAB_DIR";

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const SUFFIX: &str = "sock";
/// Longest request or answer, in bytes.
pub(crate) const LONGEST_MESSAGE: usize = 64 << 10;

/// A running lab as it describes itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Description {
    /// Its name.
    pub name: String,
    /// Process id of `gradwire lab run`.
    pub pid: u32,
    /// Number of hosts.
    pub hosts: usize,
    /// Number of NICs of each host.
    pub nics: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Ranks that still run.
    pub running: Vec<usize>,
    /// Hosts, NICs, rates in words.
    pub summary: String,
    /// Links that are cut, as (host, NIC).
    pub cut: Vec<(usize, usize)>,
    /// Rates changed since it came up, as (host, NIC, rate in bit/s).
    pub changed_rates: Vec<(usize, usize, Rate)>,
    /// What the ranks run.
    pub command: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Describe,
    Cut {
        host: usize,
        nic: Option<usize>,
    },
    Restore {
        host: usize,
        nic: Option<usize>,
    },
    SetRate {
        host: usize,
        nic: Option<usize>,
        rate: Rate,
    },
    Signal {
        rank: usize,
        signal: RankSignal,
    },
    /// Answered with the descriptors of the host's namespaces beside the text.
    Namespaces {
        host: usize,
    },
}

/// A signal for a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankSignal {
    /// SIGTERM.
    Terminate,
    /// SIGKILL: a crash.
    Kill,
    /// SIGSTOP: a process that hangs.
    Freeze,
    /// SIGCONT: ends [`Self::Freeze`].
    Continue,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    Description(Box<Description>),
    /// The request can't be: a host, NIC or rank that isn't there.
    Invalid(String),
    Failed(String),
}

/// A running lab, to be changed.
#[derive(Debug)]
pub struct Control {
    name: String,
    path: PathBuf,
}

impl Control {
    /// Finds a lab by its name, or else by `GRADWIRE_LAB`, or else the only one that runs.
    ///
    /// # Errors
    /// [`LabError::NotRunning`] for a name that no lab has, [`LabError::Invalid`] where no name is
    /// given and the choice isn't clear.
    pub fn find(name: Option<&str>) -> Result<Self, LabError> {
        let own = env::var(NAME_VARIABLE).ok();
        let name = match name.map(str::to_owned).or(own) {
            Some(name) => name,
            None => the_only_one()?,
        };
        check_name(&name)?;
        let path = socket_path(&directory()?, &name);
        match UnixStream::connect(&path) {
            Ok(_) => Ok(Self { name, path }),
            Err(_) => Err(LabError::NotRunning(name)),
        }
    }

    /// The lab's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is and what state it is in.
    ///
    /// # Errors
    /// [`LabError::NotRunning`] when it has ended meanwhile.
    pub fn describe(&self) -> Result<Description, LabError> {
        match self.ask(&Request::Describe)?.0 {
            Answer::Description(description) => Ok(*description),
            other => Err(unexpected(&other)),
        }
    }

    /// Cuts the links of a host, or one of them: from now on its packets vanish, in both
    /// directions, and nobody is told.
    ///
    /// # Errors
    /// [`LabError::Invalid`] for a host or NIC that isn't there.
    pub fn cut(&self, host: usize, nic: Option<usize>) -> Result<(), LabError> {
        self.order(&Request::Cut { host, nic })
    }

    /// Restores the links of a host, or one of them.
    ///
    /// # Errors
    /// [`LabError::Invalid`] for a host or NIC that isn't there.
    pub fn restore(&self, host: usize, nic: Option<usize>) -> Result<(), LabError> {
        self.order(&Request::Restore { host, nic })
    }

    /// Sets the rate of the links of a host, or of one of them, in both directions.
    ///
    /// # Errors
    /// [`LabError::Invalid`] for a host or NIC that isn't there.
    pub fn set_rate(&self, host: usize, nic: Option<usize>, rate: Rate) -> Result<(), LabError> {
        self.order(&Request::SetRate { host, nic, rate })
    }

    /// Sends a signal to a rank and the processes that it started.
    ///
    /// # Errors
    /// [`LabError::Invalid`] for a rank that isn't there or doesn't run any more.
    pub fn signal(&self, rank: usize, signal: RankSignal) -> Result<(), LabError> {
        self.order(&Request::Signal { rank, signal })
    }

    /// A command that runs on a host. **Moves the calling process into the host's namespaces**, so
    /// it must have one thread only and is good for nothing else afterwards.
    ///
    /// # Errors
    /// [`LabError::Invalid`] for a host that isn't there, [`LabError::Io`] if this process may not
    /// join.
    pub fn command_on(&self, host: usize, program: &OsStr) -> Result<Command, LabError> {
        let (answer, descriptors) = self.ask(&Request::Namespaces { host })?;
        done(answer)?;
        namespaces::join(&descriptors).map_err(LabError::io("joining the host's namespaces"))?;
        let mut command = Command::new(program);
        command.env(NAME_VARIABLE, &self.name).envs(environment(&self.path));
        Ok(command)
    }

    fn order(&self, request: &Request) -> Result<(), LabError> {
        done(self.ask(request)?.0)
    }

    fn ask(&self, request: &Request) -> Result<(Answer, Vec<OwnedFd>), LabError> {
        let gone = |_| LabError::NotRunning(self.name.clone());
        let stream = UnixStream::connect(&self.path).map_err(gone)?;
        let failed = || LabError::io(format!("asking the lab {}", self.name));
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed())?;
        wire::send(&stream, request).map_err(failed())?;
        receive(&stream).map_err(failed())
    }
}

fn done(answer: Answer) -> Result<(), LabError> {
    match answer {
        Answer::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(answer: &Answer) -> LabError {
    match answer {
        Answer::Invalid(text) => LabError::Invalid(text.clone()),
        Answer::Failed(text) => LabError::Network(text.clone()),
        other => {
            LabError::Network(format!("the lab gave an answer to another question: {other:?}"))
        }
    }
}

/// Reads an answer, and the descriptors that come with it.
fn receive(stream: &UnixStream) -> io::Result<(Answer, Vec<OwnedFd>)> {
    let (mut line, mut descriptors) = (Vec::new(), Vec::new());
    let mut bytes = vec![0; LONGEST_MESSAGE];
    while !line.ends_with(b"\n") {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(namespaces::COUNT))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(stream, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        if received.bytes == 0 || line.len() > LONGEST_MESSAGE {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                descriptors.extend(more);
            }
        }
        line.extend_from_slice(&bytes[..received.bytes]);
    }
    Ok((serde_json::from_slice(&line)?, descriptors))
}

/// The labs of this user that run, by name. Sockets that a killed lab left behind are removed.
///
/// # Errors
/// [`LabError::Io`] or [`LabError::Invalid`] when the directory can't be used.
pub fn list() -> Result<Vec<Description>, LabError> {
    let mut labs = Vec::new();
    for name in names()? {
        // One that ends meanwhile is no error, it is one less.
        if let Ok(lab) = Control::find(Some(&name)).and_then(|control| control.describe()) {
            labs.push(lab);
        }
    }
    labs.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(labs)
}

fn the_only_one() -> Result<String, LabError> {
    let mut names = names()?;
    match names.len() {
        0 => Err(LabError::Invalid("no lab is running".into())),
        1 => Ok(names.remove(0)),
        _ => Err(LabError::Invalid(format!(
            "several labs are running ({}); choose one with --name",
            names.join(", ")
        ))),
    }
}

/// Names of the labs that answer.
fn names() -> Result<Vec<String>, LabError> {
    let directory = directory()?;
    let entries =
        fs::read_dir(&directory).map_err(LabError::io(directory.display().to_string()))?;
    let mut names = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(name) = path.file_stem().and_then(OsStr::to_str) else { continue };
        if path.extension() == Some(OsStr::new(SUFFIX)) && answers_or_remove(&path) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Whether somebody serves a socket; removes it when it was left behind.
fn answers_or_remove(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(error) => {
            if error.kind() == io::ErrorKind::ConnectionRefused {
                // Somebody else may have removed it.
                let _ = fs::remove_file(path);
            }
            false
        }
    }
}

/// The path of the socket for a new lab, whose name must be free.
pub(crate) fn claim(name: &str) -> Result<PathBuf, LabError> {
    let path = socket_path(&directory()?, name);
    if answers_or_remove(&path) {
        return Err(LabError::Invalid(format!("a lab named {name} is running already")));
    }
    Ok(path)
}

fn socket_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.{SUFFIX}"))
}

/// The variables by which processes in a lab find its control socket.
pub(crate) fn environment(socket: &Path) -> Option<(&'static str, &Path)> {
    socket.parent().map(|directory| (DIRECTORY_VARIABLE, directory))
}

/// The directory of the sockets: `GRADWIRE_LAB_DIR`, or `gradwire-lab` in `XDG_RUNTIME_DIR`, or
/// `/tmp/gradwire-lab-UID`. It is made if it isn't there, and nobody else may enter it.
fn directory() -> Result<PathBuf, LabError> {
    let user = rustix::process::geteuid().as_raw();
    let path = chosen_directory(user, |name| env::var_os(name).map(PathBuf::from));
    let failed = || LabError::io(path.display().to_string());
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed()(error)),
        _ => {}
    }
    let metadata = fs::symlink_metadata(&path).map_err(failed())?;
    if metadata.is_dir() && metadata.uid() == user && metadata.mode() & 0o077 == 0 {
        return Ok(path);
    }
    Err(LabError::Invalid(format!(
        "{} must be a directory of this user that nobody else can enter (mode 0700); set {} to \
         another one",
        path.display(),
        DIRECTORY_VARIABLE
    )))
}

fn chosen_directory(user: u32, variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    let own = |path: &PathBuf| fs::metadata(path).is_ok_and(|it| it.is_dir() && it.uid() == user);
    variable(DIRECTORY_VARIABLE)
        .or_else(|| Some(variable("XDG_RUNTIME_DIR").filter(own)?.join("gradwire-lab")))
        .unwrap_or_else(|| PathBuf::from(format!("/tmp/gradwire-lab-{user}")))
}

/// Reads one request line of bounded length.
pub(crate) fn read_request(stream: &UnixStream) -> io::Result<Request> {
    let mut line = Vec::new();
    io::BufReader::new(io::Read::take(stream, LONGEST_MESSAGE as u64))
        .read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_the_users_own() {
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(
            chosen_directory(user, |_| None),
            PathBuf::from(format!("/tmp/gradwire-lab-{user}"))
        );
        let lab = |name: &str| (name == DIRECTORY_VARIABLE).then(|| PathBuf::from("/run/x"));
        assert_eq!(chosen_directory(user, lab), PathBuf::from("/run/x"));
        // A directory that isn't there, as `sudo` leaves it in the environment.
        let stale = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| PathBuf::from("/nowhere"));
        assert_eq!(chosen_directory(7, stale), PathBuf::from("/tmp/gradwire-lab-7"));
    }
}
