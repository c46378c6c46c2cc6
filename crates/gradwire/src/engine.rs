//! One process's end of a job, and who drives it when.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gradwire_core::{Config, Core, Descriptor, MAX_PAYLOAD_BYTES};
use gradwire_schedule::Hosts;
use gradwire_transport::{
    Directory, Doorbell, Endpoint, Interface, Lobby, LobbyConfig, Poller, Spin, SpinStep,
    TcpTuning, Waker, discover, prefer_short_turns, select,
};
use rustc_hash::FxHasher;

use crate::communicator::Group;
use crate::counters::{Counters, add};
use crate::driver::{Asking, Driver, Start};
use crate::status::Publisher;
use crate::trace::{Recorder, Session};
use crate::wait::{OperationState, Waits};
use crate::{Communicator, EngineConfig, Error, Store, TransportChoice};

/// How often the background thread looks after the peers while nothing is in flight.
const IDLE_LOOK: Duration = Duration::from_millis(50);
/// How long a waiter that someone else drives for stays asleep before it looks again.
const PARKED: Duration = Duration::from_millis(20);
/// How long a rank may take to publish where it listens.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(120);
/// How long to try to reach a peer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);
/// Frames that a TCP lane takes ahead of its socket.
const FRAMES_PER_LANE: usize = 32;

/// One process's end of a job. Clones are the same engine; it shuts down with the last of them.
#[derive(Clone)]
pub struct Engine {
    pub(crate) handle: Arc<EngineHandle>,
}

/// Joins the background thread when the last engine, communicator and handle are gone.
pub(crate) struct EngineHandle {
    pub shared: Arc<Shared>,
    /// The trace being recorded. Its communicator must not keep what the threads share alive.
    pub trace: Mutex<Session>,
    background: Mutex<Option<JoinHandle<()>>>,
}

/// What the threads share.
///
/// Who holds `poller` is the driver: it alone receives and sleeps. `driver` is locked for a round
/// at a time, so that others can submit meanwhile.
pub(crate) struct Shared {
    driver: Mutex<Driver>,
    poller: Mutex<Poller>,
    waker: Waker,
    pub counters: Arc<Counters>,
    pub recorder: Arc<Recorder>,
    pub waits: Waits,
    publisher: Option<Publisher>,
    /// Tells jobs apart.
    pub job: String,
    pub config: EngineConfig,
    /// The lobby has events.
    arrivals: Arc<AtomicBool>,
    /// Callers that want the driver's lock for a moment.
    submitting: AtomicUsize,
    /// Callers that want to drive.
    waiting: AtomicUsize,
    /// Waiters that others drive for.
    parked: AtomicUsize,
    changed: (Mutex<()>, Condvar),
    stopping: AtomicBool,
    directory: Arc<StoreDirectory>,
    /// How often each group name was used with the same members, so that groups made one after
    /// the other under one name differ.
    names: Mutex<HashMap<(String, Vec<u32>), u64>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("config", &self.config).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.handle.shared.fmt(f)
    }
}

/// In groups of up to so many ranks, each looks up all others as the group is made: the store often
/// lives with rank 0, and survivors of its death must still find each other. In larger ones on first
/// use.
const KNOWN_RANKS: usize = 64;

/// The store as the lobby sees it.
struct StoreDirectory {
    store: Arc<dyn Store>,
    known: Mutex<HashMap<u32, Vec<u8>>>,
}

impl StoreDirectory {
    /// Waits until the ranks have joined the job, and says on which hosts they are.
    fn learn(&self, ranks: &[u32], timeout: Duration) -> Result<Hosts, Error> {
        let identity = |rank: &u32| {
            let endpoint = self.find(*rank, timeout)?;
            let endpoint = Endpoint::decode(&endpoint).map_err(|error| error.to_string())?;
            Ok(endpoint.host_identity)
        };
        let identities = ranks.iter().map(|rank| {
            let failed = |error: String| format!("rank {rank} has not joined: {error}");
            identity(rank).map_err(|error| Error::Start(failed(error)))
        });
        Ok(Hosts::by_label(identities.collect::<Result<Vec<_>, _>>()?))
    }

    /// As [`StoreDirectory::learn`], for a group too large for each of its ranks to ask for all
    /// others: its first rank does, and leaves the answer in the store.
    fn learn_once(
        &self,
        group: u64,
        rank: usize,
        ranks: &[u32],
        timeout: Duration,
    ) -> Result<Hosts, Error> {
        let key = format!("gradwire/hosts/{group:016x}");
        let failed =
            |error: String| Error::Start(format!("hosts of {} ranks: {error}", ranks.len()));
        if rank == 0 {
            let hosts = self.learn(ranks, timeout)?;
            let numbers = (0..hosts.ranks()).flat_map(|rank| hosts.host_of(rank).to_le_bytes());
            self.store.set(&key, &numbers.collect::<Vec<u8>>()).map_err(failed)?;
            return Ok(hosts);
        }
        let answer = self.store.get(&key, timeout).map_err(failed)?;
        let (numbers, rest) = answer.as_chunks::<4>();
        if numbers.len() != ranks.len() || !rest.is_empty() {
            return Err(failed("the store's answer has the wrong length".to_owned()));
        }
        Ok(Hosts::by_label(numbers.iter().copied()))
    }

    fn find(&self, rank: u32, timeout: Duration) -> Result<Vec<u8>, String> {
        if let Some(endpoint) = lock(&self.known).get(&rank) {
            return Ok(endpoint.clone());
        }
        let endpoint = self.store.get(&endpoint_key(rank), timeout)?;
        lock(&self.known).insert(rank, endpoint.clone());
        Ok(endpoint)
    }
}

impl Directory for StoreDirectory {
    fn lookup(&self, rank: u32) -> Result<Vec<u8>, String> {
        self.find(rank, LOOKUP_TIMEOUT)
    }
}

fn endpoint_key(rank: u32) -> String {
    format!("gradwire/endpoint/{rank}")
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Joins the job: publishes where this rank listens. Connections are made on first use. With
    /// the setting `trace` it waits for all ranks, to compare clocks.
    ///
    /// # Errors
    /// [`Error::Config`] for settings that can't be, [`Error::Start`] if the store does not answer
    /// or there is no usable network.
    pub fn start(config: EngineConfig, store: Arc<dyn Store>) -> Result<Engine, Error> {
        crate::start_logging();
        config.validate()?;
        let failed = |error: String| Error::Start(error);
        let (doorbell, descriptor) =
            Doorbell::create().map_err(|error| failed(format!("shared memory: {error}")))?;
        let poller = Poller::new(Arc::new(doorbell)).map_err(|error| failed(error.to_string()))?;
        let waker = poller.waker();
        let arrivals = Arc::new(AtomicBool::new(false));
        let (secret, session) = share_secret(&config, &*store).map_err(failed)?;
        let interfaces = interfaces(&config)?;
        let interface_count = interfaces.len().max(1);
        let on_event = {
            let (arrivals, waker) = (arrivals.clone(), waker.clone());
            move || {
                arrivals.store(true, Ordering::SeqCst);
                waker.wake();
            }
        };
        let directory = Arc::new(StoreDirectory { store: store.clone(), known: Mutex::default() });
        let lobby = Lobby::start(LobbyConfig {
            rank: config.rank,
            world_size: config.world_size,
            secret,
            session,
            lanes: lanes(&config, &interfaces),
            interfaces,
            frames_per_lane: FRAMES_PER_LANE,
            host_id: config.host_id.clone(),
            shared_memory: config.transport != TransportChoice::Tcp,
            segment_bytes: config.shared_memory_bytes,
            max_frame_bytes: config.tile_bytes as usize,
            tuning: tuning(&config),
            doorbell: Some(descriptor),
            connect_timeout: CONNECT_TIMEOUT.min(config.silence),
            on_event: Arc::new(on_event),
            directory: directory.clone(),
        })
        .map_err(|error| failed(format!("cannot listen: {error}")))?;
        store.set(&endpoint_key(config.rank), &lobby.endpoint().encode()).map_err(failed)?;
        let core = Core::new(Config {
            rank: config.rank,
            world_size: config.world_size,
            window_tiles: config.window(),
            silence: config.silence,
            ..Config::default()
        });
        let counters = Arc::new(Counters::default());
        let recorder = Arc::new(Recorder::default());
        let place = (config.rank, config.world_size);
        let (tally, traces) = (counters.clone(), recorder.clone());
        let driver = Driver::new(core, lobby, place, interface_count, tally, traces);
        let job = job_of(session);
        let shared = Arc::new(Shared {
            driver: Mutex::new(driver),
            poller: Mutex::new(poller),
            waker,
            counters,
            recorder,
            waits: Waits::default(),
            publisher: Publisher::new(&config, &job),
            job,
            config,
            arrivals,
            submitting: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            parked: AtomicUsize::new(0),
            changed: (Mutex::new(()), Condvar::new()),
            stopping: AtomicBool::new(false),
            directory,
            names: Mutex::new(HashMap::new()),
        });
        let background = std::thread::Builder::new()
            .name("gradwire".to_owned())
            .spawn({
                let shared = shared.clone();
                move || shared.drive_in_background()
            })
            .map_err(|error| failed(format!("cannot start a thread: {error}")))?;
        let background = Mutex::new(Some(background));
        let handle = EngineHandle { shared, trace: Mutex::default(), background };
        let engine = Engine { handle: Arc::new(handle) };
        if engine.config().trace.is_some() {
            engine.start_trace()?;
        }
        Ok(engine)
    }

    /// A group of ranks. `members` are world ranks, in the order of their group ranks; all of them
    /// make it with the same name, and make groups of the same name and members in the same order.
    /// Waits until the members have joined the job.
    ///
    /// # Errors
    /// [`Error::Request`] if this rank is not among the members or they can't be,
    /// [`Error::Start`] if one of them does not join in time.
    pub fn communicator(&self, name: &str, members: &[u32]) -> Result<Communicator, Error> {
        let shared = &self.handle.shared;
        shared.check_running()?;
        Ok(Communicator { group: Group::create(shared, name, members)? })
    }

    /// The group of all ranks.
    pub fn world(&self) -> Result<Communicator, Error> {
        let members: Vec<u32> = (0..self.handle.shared.config.world_size).collect();
        self.communicator("world", &members)
    }

    /// Counters since the start, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.handle.shared.counters.read()
    }

    /// Counts bytes that the caller sends encoded by itself, before and after, with those of codecs.
    pub fn count_encoded(&self, before: u64, after: u64) {
        self.handle.shared.with_driver(|driver| {
            add(&driver.counters.bytes_before_codec, before);
            add(&driver.counters.bytes_after_codec, after);
        });
    }

    /// Keeps the bytes that are on their way to each peer over TCP to about so many, so that urgent
    /// operations overtake others soon: what the link moves in the time that an urgent one may be
    /// held up. `None`, the default, leaves it to the kernel, which fills the queues on the way.
    pub fn limit_in_flight(&self, bytes: Option<usize>) {
        self.handle.shared.with_driver(|driver| driver.limit_in_flight(bytes));
    }

    /// The settings in force.
    pub fn config(&self) -> &EngineConfig {
        &self.handle.shared.config
    }

    /// Leaves the job in good order: what is in flight ends with an error, peers are told, and
    /// what was sent before is given up to `grace` to arrive.
    pub fn shutdown(&self, grace: Duration) {
        self.handle.shutdown(grace);
    }
}

impl EngineHandle {
    fn shutdown(&self, grace: Duration) {
        let Some(background) = lock(&self.background).take() else { return };
        let traced = self.shared.config.trace.as_ref().filter(|_| self.shared.recorder.stop());
        if traced.is_some() {
            self.compare_clocks_at_parting();
        }
        // Its communicator must not outlive the engine.
        lock(&self.trace).end();
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.notify_always();
        self.shared.waker.wake();
        if background.join().is_err() {
            tracing::error!("the background thread has panicked");
        }
        self.shared.leave(grace);
        if let Some(publisher) = &self.shared.publisher {
            publisher.withdraw();
        }
        if let Some(directory) = traced
            && let Err(error) = self.write_trace(directory)
        {
            tracing::error!("{error}");
        }
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        self.shutdown(Duration::from_millis(500));
    }
}

impl Shared {
    pub fn check_running(&self) -> Result<(), Error> {
        if self.stopping.load(Ordering::Relaxed) { Err(Error::ShutDown) } else { Ok(()) }
    }

    /// Waits until the members of a group have joined the job, and says on which hosts they are.
    pub fn hosts_of(&self, group: u64, rank: usize, members: &[u32]) -> Result<Hosts, Error> {
        let timeout = self.config.timeout.min(LOOKUP_TIMEOUT);
        match members.len() <= KNOWN_RANKS {
            true => self.directory.learn(members, timeout),
            false => self.directory.learn_once(group, rank, members, timeout),
        }
    }

    /// Number of the next group of this name and members.
    pub fn next_generation(&self, name: &str, members: &[u32]) -> u64 {
        let mut names = lock(&self.names);
        let generation = names.entry((name.to_owned(), members.to_vec())).or_default();
        *generation += 1;
        *generation
    }

    /// Runs something on the driver between two rounds.
    pub fn with_driver<T>(&self, action: impl FnOnce(&mut Driver) -> T) -> T {
        self.submitting.fetch_add(1, Ordering::SeqCst);
        let mut driver = lock(&self.driver);
        self.submitting.fetch_sub(1, Ordering::SeqCst);
        action(&mut driver)
    }

    /// Starts an operation as soon as there is room for it.
    pub fn submit(&self, start: Start) -> Result<Arc<OperationState>, Error> {
        let (what, timeout) = (start.plan.descriptor, start.timeout);
        let mut start = Some(start);
        loop {
            let submitted = self.with_driver(|driver| {
                driver.has_room().then(|| driver.submit(start.take().expect("not started yet")))
            });
            match submitted {
                Some(result) => return result,
                None => self.wait_for_room(&what, timeout)?,
            }
        }
    }

    fn wait_for_room(&self, what: &Descriptor, timeout: Duration) -> Result<(), Error> {
        let has_room = || lock(&self.driver).has_room();
        self.wait_until(&has_room, Instant::now().checked_add(timeout));
        self.check_running()?;
        if has_room() {
            return Ok(());
        }
        let limit = self.with_driver(|driver| driver.operations_in_flight());
        let text = format!("{what} was not started: {limit} operations are in flight, the limit");
        Err(Error::Request(format!("{text}, and none ended within {timeout:?}")))
    }

    /// There is something new to drive and its caller will not wait for it at once.
    pub fn drive_soon(&self) {
        self.waker.wake();
        self.notify_always();
    }

    fn notify_always(&self) {
        drop(lock(&self.changed.0));
        self.changed.1.notify_all();
    }

    fn notify_parked(&self) {
        if self.parked.load(Ordering::SeqCst) > 0 {
            self.notify_always();
        }
    }

    /// Waits until `done`, driving if nobody else does.
    pub fn wait_until(&self, done: &dyn Fn() -> bool, deadline: Option<Instant>) {
        let is_over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if done() {
            return;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut drove = false;
        while !done() && !is_over() {
            match self.poller.try_lock() {
                Ok(mut poller) => {
                    drove = true;
                    self.drive(&mut poller, done, deadline);
                }
                Err(_) => self.park(done, deadline),
            }
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        if drove && lock(&self.driver).operations_in_flight() > 0 {
            self.notify_always();
        }
    }

    /// Sleeps until `done`, which others bring about.
    pub fn sleep_until(&self, done: &dyn Fn() -> bool, deadline: Option<Instant>) {
        self.parked.fetch_add(1, Ordering::SeqCst);
        let mut guard = lock(&self.changed.0);
        while !done() {
            let rest = deadline.map_or(PARKED, |it| it.saturating_duration_since(Instant::now()));
            if rest.is_zero() {
                break;
            }
            guard = self
                .changed
                .1
                .wait_timeout(guard, rest.min(PARKED))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        drop(guard);
        self.parked.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps while another thread drives, until something ends or that thread stops driving.
    fn park(&self, done: &dyn Fn() -> bool, deadline: Option<Instant>) {
        // The background thread gives way to a waiter as soon as it is awake.
        self.waker.wake();
        let rest = deadline.map_or(PARKED, |it| it.saturating_duration_since(Instant::now()));
        self.parked.fetch_add(1, Ordering::SeqCst);
        let guard = lock(&self.changed.0);
        let is_driven =
            || matches!(self.poller.try_lock(), Err(std::sync::TryLockError::WouldBlock));
        if !done() && is_driven() {
            let _ = self.changed.1.wait_timeout(guard, rest.min(PARKED));
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
    }

    fn drive(&self, poller: &mut Poller, done: &dyn Fn() -> bool, deadline: Option<Instant>) {
        // A launcher need not say how many ranks share this host.
        let neighbours = lock(&self.driver).shared_memory_lanes();
        let local_ranks = (neighbours + 1).max(self.config.local_world_size as usize);
        let mut spin = Spin::new(local_ranks);
        loop {
            if self.round(poller, Asking::All) {
                spin.progress();
                self.notify_parked();
                if done() {
                    return;
                }
                continue;
            }
            if done() {
                return;
            }
            if spin.step() == SpinStep::Sleep {
                self.sleep(poller, deadline);
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return;
                }
            }
        }
    }

    fn round(&self, poller: &mut Poller, asking: Asking) -> bool {
        while self.submitting.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        let arrivals =
            self.arrivals.load(Ordering::Relaxed) && self.arrivals.swap(false, Ordering::SeqCst);
        lock(&self.driver).pass(poller, asking, arrivals)
    }

    fn sleep(&self, poller: &mut Poller, deadline: Option<Instant>) {
        let tick = {
            let mut driver = lock(&self.driver);
            driver.prepare_to_sleep(poller);
            driver.time_to_tick().unwrap_or(IDLE_LOOK)
        };
        let rest = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = tick.min(rest.unwrap_or(tick));
        let mut any_ready =
            || self.arrivals.load(Ordering::SeqCst) || lock(&self.driver).is_actionable();
        match poller.sleep(timeout, &mut any_ready) {
            Ok(woken) => lock(&self.driver).note_ready(woken.ready),
            Err(error) => tracing::error!(%error, "the poller fails"),
        }
    }

    /// The background thread: drives while operations are in flight and nobody waits for them;
    /// otherwise has a look now and then, to answer peers and to see them go.
    fn drive_in_background(&self) {
        if let Err(error) = prefer_short_turns() {
            tracing::debug!(%error, "the background thread has no short turns");
        }
        while !self.stopping.load(Ordering::SeqCst) {
            self.publish();
            if let Ok(mut poller) = self.poller.try_lock() {
                let gives_way = || {
                    self.waiting.load(Ordering::SeqCst) > 0
                        || self.stopping.load(Ordering::SeqCst)
                        || lock(&self.driver).operations_in_flight() == 0
                };
                self.round(&mut poller, Asking::All);
                if !gives_way() {
                    self.drive_gently(&mut poller, &gives_way);
                }
            }
            self.notify_parked();
            let guard = lock(&self.changed.0);
            let idle = self.waiting.load(Ordering::SeqCst) > 0
                || lock(&self.driver).operations_in_flight() == 0;
            if idle && !self.stopping.load(Ordering::SeqCst) {
                let _ = self.changed.1.wait_timeout(guard, IDLE_LOOK);
            }
        }
    }

    /// Drives without spinning: the cores belong to the computation that goes on meanwhile.
    fn drive_gently(&self, poller: &mut Poller, gives_way: &dyn Fn() -> bool) {
        while !gives_way() {
            if self.round(poller, Asking::Ready) {
                self.notify_parked();
            } else {
                self.sleep(poller, None);
            }
            self.publish();
        }
    }

    /// Says how things stand, if it is time to.
    fn publish(&self) {
        if let Some(publisher) = &self.publisher
            && publisher.is_due()
        {
            let state = self.with_driver(|driver| driver.state());
            publisher.publish(state, &self.counters, &self.waits);
        }
    }

    fn leave(&self, grace: Duration) {
        let mut poller = lock(&self.poller);
        let mut driver = lock(&self.driver);
        let end = Instant::now() + grace;
        let pause = || std::thread::sleep(Duration::from_millis(1));
        driver.end_groups("the engine was shut down");
        driver.say_goodbye(&mut poller);
        while !driver.drain() && Instant::now() < end {
            pause();
        }
        while !driver.close(&mut poller) && Instant::now() < end {
            pause();
        }
        drop((driver, poller));
        self.notify_always();
    }
}

/// The job's secret and session number: rank 0 draws them, the store spreads them.
fn share_secret(config: &EngineConfig, store: &dyn Store) -> Result<([u8; 32], u64), String> {
    const KEY: &str = "gradwire/secret";
    if config.rank == 0 {
        let secret: [u8; 40] = rand::random();
        store.set(KEY, &secret)?;
    }
    let bytes = store.get(KEY, config.timeout.min(LOOKUP_TIMEOUT))?;
    let Ok(bytes) = <[u8; 40]>::try_from(bytes) else {
        return Err(
            "the secret in the store has the wrong length; is the store used twice?".to_owned()
        );
    };
    let (secret, session) = bytes.split_at(32);
    Ok((
        secret.try_into().expect("32 bytes"),
        u64::from_le_bytes(session.try_into().expect("8 bytes")),
    ))
}

/// Tells jobs apart, and tells nothing of what they agreed on.
fn job_of(session: u64) -> String {
    let hash = BuildHasherDefault::<FxHasher>::default().hash_one(session);
    format!("{:08x}", hash as u32)
}

fn interfaces(config: &EngineConfig) -> Result<Vec<Interface>, Error> {
    let available =
        discover().map_err(|error| Error::Start(format!("network interfaces: {error}")))?;
    select(config.interfaces.as_deref(), &available)
        .map_err(|error| Error::Config(error.to_string()))
}

/// One TCP stream rarely fills a fast NIC: one lane for each 5 Gbit/s that the NICs claim.
fn lanes(config: &EngineConfig, interfaces: &[Interface]) -> usize {
    if config.lanes > 0 {
        return config.lanes;
    }
    interfaces
        .iter()
        .map(|interface| (interface.speed_mbits as usize / 5_000).clamp(1, 8))
        .sum::<usize>()
        .clamp(1, 16)
}

fn tuning(config: &EngineConfig) -> TcpTuning {
    TcpTuning {
        congestion_control: config.congestion_control.clone(),
        send_buffer_bytes: config.socket_buffer_bytes,
        receive_buffer_bytes: config.socket_buffer_bytes,
        ..TcpTuning::default()
    }
}

const _: () = assert!(MAX_PAYLOAD_BYTES as usize >= 128 << 10, "a default tile fits a frame");
