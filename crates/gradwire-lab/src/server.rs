//! The supervisor's end of the control socket.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Signal, kill_process_group};

use crate::LabError;
use crate::control::{Answer, Description, RankSignal, Request, read_request};
use crate::namespaces;
use crate::network::Network;
use crate::supervisor::Groups;

/// How long a client may take to send its request or take its answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a description says beside the network.
pub(crate) struct About {
    pub front: u32,
    pub command: String,
    pub ranks: usize,
}

struct Server {
    network: Arc<Network>,
    groups: Groups,
    about: About,
}

/// How long a lab that ends waits for clients to get their answers.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Requests that are being answered: each holds a clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answering(Arc<()>);

impl Answering {
    /// Waits until clients have their answers: a request may be what ends the lab.
    pub(crate) fn finish(&self) {
        let end = Instant::now() + LAST_ANSWERS;
        // The listening thread holds one too.
        while Arc::strong_count(&self.0) > 2 && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Serves the control socket on threads of its own, for as long as the supervisor lives.
pub(crate) fn serve(
    path: &Path,
    network: Arc<Network>,
    groups: Groups,
    about: About,
) -> Result<Answering, LabError> {
    let listener = UnixListener::bind(path).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            LabError::Invalid(format!("a lab named {} is running already", network.lab().name()))
        }
        _ => LabError::io(format!("serving {}", path.display()))(error),
    })?;
    let server = Arc::new(Server { network, groups, about });
    let answering = Answering::default();
    let of_each = answering.clone();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (server, of_this) = (Arc::clone(&server), of_each.clone());
            thread::spawn(move || {
                // A client that went away before its answer has no one to tell.
                drop(server.answer(&client));
                drop(of_this);
            });
        }
    });
    Ok(answering)
}

impl Server {
    fn answer(&self, client: &UnixStream) -> io::Result<()> {
        client.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let request = read_request(client)?;
        let descriptors = match request {
            Request::Namespaces { host } if host < self.network.lab().hosts() => {
                self.network.host(host).namespaces().iter().map(AsFd::as_fd).collect()
            }
            _ => Vec::new(),
        };
        let answer = match self.carry_out(request) {
            Ok(answer) => answer,
            Err(LabError::Invalid(text)) => Answer::Invalid(text),
            Err(error) => Answer::Failed(error.to_string()),
        };
        send(client, &answer, &descriptors)
    }

    fn carry_out(&self, request: Request) -> Result<Answer, LabError> {
        match request {
            Request::Describe => return Ok(Answer::Description(Box::new(self.describe()))),
            Request::Cut { host, nic } => self.network.cut(host, nic),
            Request::Restore { host, nic } => self.network.restore(host, nic),
            Request::SetRate { host, nic, rate } => self.network.set_rate(host, nic, rate),
            Request::Signal { rank, signal } => self.signal(rank, signal),
            Request::Namespaces { host } => self.network.lab().check_link(host, None),
        }
        .map(|()| Answer::Done)
    }

    fn describe(&self) -> Description {
        let lab = self.network.lab();
        let groups = self.groups.lock().expect("no holder panics");
        Description {
            name: lab.name().into(),
            pid: self.about.front,
            hosts: lab.hosts(),
            nics: lab.nics(),
            ranks: self.about.ranks,
            running: (0..groups.len()).filter(|&rank| groups[rank].is_some()).collect(),
            summary: lab.summary(),
            cut: self.network.cut_links(),
            changed_rates: self.network.changed_rates(),
            command: self.about.command.clone(),
        }
    }

    fn signal(&self, rank: usize, signal: RankSignal) -> Result<(), LabError> {
        let groups = self.groups.lock().expect("no holder panics");
        let group = groups.get(rank).ok_or_else(|| {
            LabError::Invalid(format!("there is no rank {rank} (0 to {})", groups.len() - 1))
        })?;
        let group = group
            .ok_or_else(|| LabError::Invalid(format!("rank {rank} does not run (any more)")))?;
        let signal = match signal {
            RankSignal::Terminate => Signal::TERM,
            RankSignal::Kill => Signal::KILL,
            RankSignal::Freeze => Signal::STOP,
            RankSignal::Continue => Signal::CONT,
        };
        kill_process_group(group, signal).map_err(LabError::io(format!("signalling rank {rank}")))
    }
}

/// Sends an answer as one line, with descriptors beside it.
fn send(client: &UnixStream, answer: &Answer, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(namespaces::COUNT))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let sent = sendmsg(client, &[IoSlice::new(&line)], &mut ancillary, SendFlags::NOSIGNAL)?;
    io::Write::write_all(&mut &*client, &line[sent..])
}
