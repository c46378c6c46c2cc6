//! Jobs of real processes, on this machine or in a lab, and what can be done to them.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use gradwire::StoreServer;
use rustix::process::{Pid, Signal, kill_process};

use crate::rank::{Event, ROLE, Role, Said};

/// Where the ranks are and what joins them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On this machine, over `shm` or `tcp`.
    Local(&'static str),
    /// Hosts of a lab with so many ranks each.
    Lab { ranks_per_host: u32 },
}

/// What is done to a rank or its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Kill,
    Stop,
    Cut,
}

/// The processes of a job. None of them outlives it.
pub struct Job {
    place: Place,
    ranks: u32,
    events: Receiver<Event>,
    said: Vec<Event>,
    children: Vec<Child>,
    /// What the ranks write to standard error.
    log: PathBuf,
    /// The lab's name and where its socket lies.
    lab: String,
    store: Option<StoreServer>,
}

impl Job {
    /// Starts the ranks; `settings` are the engine's, as environment variables.
    pub fn start(place: Place, ranks: u32, mut role: Role, settings: &[(&str, String)]) -> Job {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let lab = format!("faults-{}-{count}", std::process::id());
        let log = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{lab}.log"));
        let (sender, events) = channel();
        let mut job =
            Job { place, ranks, events, said: vec![], children: vec![], log, lab, store: None };
        let log = File::create(&job.log).unwrap();
        let commands = match place {
            Place::Local(wire) => {
                let store = StoreServer::start("127.0.0.1:0").unwrap();
                role.store = Some(store.address().to_string());
                job.store = Some(store);
                (0..ranks).map(|rank| local_rank(wire, rank, ranks)).collect()
            }
            Place::Lab { ranks_per_host } => vec![job.lab_run(ranks_per_host)],
        };
        for mut command in commands {
            command
                .env(ROLE, serde_json::to_string(&role).unwrap())
                .envs(settings.iter().map(|(name, value)| (name, value)))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(log.try_clone().unwrap());
            let mut child = command.spawn().unwrap();
            listen(&mut child, sender.clone());
            job.children.push(child);
        }
        job
    }

    fn gradwire(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire"));
        command
            .env("GRADWIRE_LAB_DIR", format!("/tmp/gradwire-{}", self.lab))
            .env_remove("GRADWIRE_LAB");
        command
    }

    fn lab_run(&self, ranks_per_host: u32) -> Command {
        let mut command = self.gradwire();
        command
            .args(["lab", "run", "--name", &self.lab, "--keep-going", "--no-prefix"])
            .args(["--rate", "1gbit", "--timeout", "90s"])
            .args(["--hosts", &(self.ranks / ranks_per_host).to_string()])
            .args(["--ranks-per-host", &ranks_per_host.to_string(), "--"])
            .arg(std::env::current_exe().unwrap());
        command
    }

    /// The store, where it is the test's own.
    pub fn store(&self) -> &StoreServer {
        self.store.as_ref().expect("a local job's store is served here")
    }

    /// Does it to a rank, or cuts off its host.
    pub fn inflict(&self, fault: Fault, rank: u32) {
        match (self.place, fault) {
            (Place::Local(_), Fault::Kill) => self.signal(rank, Signal::KILL),
            (Place::Local(_), Fault::Stop) => self.signal(rank, Signal::STOP),
            (Place::Local(_), Fault::Cut) => unreachable!("loopback can't be cut"),
            (Place::Lab { .. }, Fault::Kill) => self.lab(&["signal", "--rank"], rank, &["kill"]),
            (Place::Lab { .. }, Fault::Stop) => self.lab(&["signal", "--rank"], rank, &["stop"]),
            (Place::Lab { ranks_per_host }, Fault::Cut) => {
                self.lab(&["cut", "--host"], rank / ranks_per_host, &[]);
            }
        }
    }

    /// Lets a stopped rank go on.
    pub fn wake(&self, rank: u32) {
        match self.place {
            Place::Local(_) => self.signal(rank, Signal::CONT),
            Place::Lab { .. } => self.lab(&["signal", "--rank"], rank, &["cont"]),
        }
    }

    fn signal(&self, rank: u32, signal: Signal) {
        kill_process(Pid::from_child(&self.children[rank as usize]), signal).unwrap();
    }

    fn lab(&self, words: &[&str], number: u32, rest: &[&str]) {
        let (what, options) = words.split_first().unwrap();
        let output = self
            .gradwire()
            .args(["lab", what, "--name", &self.lab])
            .args(options)
            .arg(number.to_string())
            .args(rest)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "gradwire lab {words:?} {number} {rest:?}: {error}");
    }

    /// Waits until each of the ranks has said something of the kind, and returns it by rank.
    ///
    /// # Panics
    /// With all that was said if time is over, or a rank says that something is wrong.
    pub fn each_says(
        &mut self,
        ranks: &[u32],
        what: &str,
        patience: Duration,
        is_it: impl Fn(&Said) -> bool,
    ) -> Vec<Event> {
        let end = Instant::now() + patience;
        loop {
            let found: Vec<Event> = ranks
                .iter()
                .filter_map(|rank| {
                    self.said.iter().find(|it| it.rank == *rank && is_it(&it.said)).cloned()
                })
                .collect();
            if found.len() == ranks.len() {
                return found;
            }
            let rest = end.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(rest) {
                Ok(event) => {
                    let is_wrong = matches!(event.said, Said::Wrong(_));
                    self.said.push(event);
                    if is_wrong {
                        self.fail("something is wrong");
                    }
                }
                Err(error) => self.fail(&format!("not all of {ranks:?} {what}: {error}")),
            }
        }
    }

    /// Fails the test with all that is known.
    pub fn fail(&self, text: &str) -> ! {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        panic!("{text}; said so far: {:#?}\nstandard error:\n{log}", self.said);
    }
}

fn local_rank(wire: &str, rank: u32, ranks: u32) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", ranks.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("LOCAL_WORLD_SIZE", ranks.to_string())
        .env("GRADWIRE_TRANSPORT", wire)
        .env("GRADWIRE_SOCKET_IFNAME", "lo");
    command
}

/// Passes on what a child's ranks say.
fn listen(child: &mut Child, sender: Sender<Event>) {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let event = serde_json::from_str(&line).unwrap_or_else(|_| Event {
                rank: u32::MAX,
                at: Duration::ZERO,
                said: Said::Wrong(format!("unreadable: {line}")),
            });
            if sender.send(event).is_err() {
                return;
            }
        }
    });
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Ended already, mostly. A lab's front takes its lab with it.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_file(&self.log);
        let _ = std::fs::remove_dir_all(format!("/tmp/gradwire-{}", self.lab));
    }
}
