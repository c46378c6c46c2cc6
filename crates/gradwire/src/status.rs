//! How an engine is doing, said once a second in a file of its own for `gradwire top`.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gradwire_transport::Wire;
use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::driver::{DriverState, PeerState};
use crate::engine::lock;
use crate::wait::Waits;
use crate::{EngineConfig, StatusChoice};

/// How often the file is written.
const INTERVAL: Duration = Duration::from_secs(1);
/// The first one comes sooner, so that who looks finds it.
const FIRST: Duration = Duration::from_millis(100);

/// What an engine says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The same for all ranks of a job, and for no other job.
    pub job: String,
    /// The rank.
    pub rank: u32,
    /// Number of ranks of the job.
    pub world_size: u32,
    /// Where it runs.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// When this was written, in Unix time.
    pub written_s: f64,
    /// Seconds since the engine started.
    pub uptime_s: f64,
    /// Seconds with a caller waiting for an operation.
    pub waiting_s: f64,
    /// Seconds with an operation in flight.
    pub in_flight_s: f64,
    /// Seconds between the last submission of a burst of operations and the burst's end: what a
    /// caller waits for that waits for all of it by futures, as DDP does.
    pub tails_s: f64,
    /// Operations in flight.
    pub operations_in_flight: usize,
    /// The oldest of them.
    pub oldest: Option<Oldest>,
    /// Traffic by peer.
    pub links: Vec<Link>,
    /// The engine's counters, by name.
    pub counters: BTreeMap<String, u64>,
}

/// The operation that has been in flight for the longest time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Oldest {
    /// In words.
    pub operation: String,
    /// Seconds since its submission.
    pub age_s: f64,
    /// Ranks that have not shown that they posted it; means something after a second or two.
    pub absent: Vec<u32>,
    /// Ranks with which data is still to be exchanged.
    pub waits_for: Vec<u32>,
}

/// Bytes of tiles exchanged with a peer since the start, as they are on the wire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The peer.
    pub rank: u32,
    /// `tcp`, `shm`, or `none` while there is no connection.
    pub wire: String,
    /// Connections.
    pub lanes: usize,
    /// Bytes sent to it.
    pub sent_bytes: u64,
    /// Bytes received from it.
    pub received_bytes: u64,
}

impl From<PeerState> for Link {
    fn from(peer: PeerState) -> Self {
        let wire = match peer.wire {
            Some(Wire::Tcp) => "tcp",
            Some(Wire::SharedMemory) => "shm",
            None => "none",
        };
        Link {
            rank: peer.rank,
            wire: wire.to_owned(),
            lanes: peer.lanes,
            sent_bytes: peer.sent,
            received_bytes: peer.received,
        }
    }
}

/// Where engines of this user on this host say how they are doing, unless they are told otherwise:
/// `/dev/shm/gradwire-<uid>`, or the same in the directory for temporary files.
pub fn status_directory() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    parent.join(format!("gradwire-{}", rustix::process::geteuid().as_raw()))
}

/// Makes a directory that is this user's alone, or says why it is not.
fn make_own(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = std::fs::symlink_metadata(directory)?;
    let is_own = found.is_dir()
        && found.uid() == rustix::process::geteuid().as_raw()
        && found.mode() & 0o077 == 0;
    if is_own { Ok(()) } else { Err(io::Error::other("it is open to other users")) }
}

/// Writes the file.
#[derive(Debug)]
pub(crate) struct Publisher {
    path: PathBuf,
    aside: PathBuf,
    started: Instant,
    /// Milliseconds from the start until it is written next.
    due_ms: AtomicU64,
    status: Mutex<Status>,
}

impl Publisher {
    /// `None` if it is not to be written, or can't be.
    pub fn new(config: &EngineConfig, job: &str) -> Option<Self> {
        let (directory, made) = match &config.status {
            StatusChoice::Off => return None,
            StatusChoice::Automatic => {
                let directory = status_directory();
                let made = make_own(&directory);
                (directory, made)
            }
            StatusChoice::Directory(directory) => {
                (directory.clone(), std::fs::create_dir_all(directory))
            }
        };
        if let Err(error) = made {
            let (directory, text) = (directory.display(), "`gradwire top` will not show this rank");
            if config.status == StatusChoice::Automatic {
                tracing::debug!(%directory, %error, text);
            } else {
                tracing::warn!(%directory, %error, text);
            }
            return None;
        }
        let (rank, pid) = (config.rank, std::process::id());
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = format!("{job}-rank{rank}-{host}-{pid}.json");
        Some(Publisher {
            aside: directory.join(format!(".{name}")),
            path: directory.join(name),
            started: Instant::now(),
            due_ms: AtomicU64::new(FIRST.as_millis() as u64),
            status: Mutex::new(Status {
                job: job.to_owned(),
                rank,
                world_size: config.world_size,
                host,
                pid,
                written_s: 0.0,
                uptime_s: 0.0,
                waiting_s: 0.0,
                in_flight_s: 0.0,
                tails_s: 0.0,
                operations_in_flight: 0,
                oldest: None,
                links: Vec::new(),
                counters: BTreeMap::new(),
            }),
        })
    }

    /// Whether it is time to write; if so, sets the next time.
    pub fn is_due(&self) -> bool {
        let now = self.started.elapsed().as_millis() as u64;
        let is_due = now >= self.due_ms.load(Ordering::Relaxed);
        if is_due {
            self.due_ms.store(now + INTERVAL.as_millis() as u64, Ordering::Relaxed);
        }
        is_due
    }

    /// Writes how things stand.
    pub fn publish(&self, state: DriverState, counters: &Counters, waits: &Waits) {
        let mut status = lock(&self.status);
        status.written_s =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |it| it.as_secs_f64());
        status.uptime_s = self.started.elapsed().as_secs_f64();
        status.waiting_s = waits.total().as_secs_f64();
        status.in_flight_s = state.in_flight.as_secs_f64();
        status.tails_s = state.tails.as_secs_f64();
        status.operations_in_flight = state.operations_in_flight;
        status.oldest = state.oldest.map(|oldest| Oldest {
            operation: oldest.operation,
            age_s: oldest.age.as_secs_f64(),
            absent: oldest.absent,
            waits_for: oldest.waits_for,
        });
        status.links = state.peers.into_iter().map(Link::from).collect();
        status.counters =
            counters.read().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        if let Err(error) = self.write(&status) {
            tracing::debug!(path = %self.path.display(), %error, "the status was not written");
        }
    }

    /// Writes all of it or nothing.
    fn write(&self, status: &Status) -> io::Result<()> {
        let text = serde_json::to_vec(status)?;
        File::create(&self.aside)?.write_all(&text)?;
        std::fs::rename(&self.aside, &self.path)
    }

    /// Removes the file: the engine has left.
    pub fn withdraw(&self) {
        // There is none yet if the engine was short-lived.
        let _ = std::fs::remove_file(&self.path);
    }
}
