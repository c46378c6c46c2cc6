//! Where the engine's driver sleeps until a lane has something for it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll};

use crate::doorbell::{Doorbell, Sleep};
use crate::lane::{Lane, Wire};

/// How long a sleeper that waits for shared memory alone leaves its peers' control sockets alone.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Events taken in one call; the rest are reported by the next.
const EVENTS: usize = 64;
/// The key of the waker's descriptor.
const WAKER_KEY: u64 = u64::MAX;

/// What a lane's descriptor is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// The key that the lane was added under.
    pub key: u64,
    /// There is something to receive, or the connection has ended or failed.
    pub readable: bool,
    /// There is room to send.
    pub writable: bool,
}

/// Why the driver is awake again.
#[derive(Debug)]
pub struct Woken<'a> {
    /// Lanes whose descriptors are ready. Lanes in shared memory may have frames without being
    /// listed here.
    pub ready: &'a [Readiness],
    /// Whether a [`Waker`] was used since the last sleep.
    pub by_waker: bool,
}

/// Wakes a [`Poller`] from another thread of the process.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<WakerState>,
}

#[derive(Debug)]
struct WakerState {
    pending: AtomicBool,
    doorbell: Arc<Doorbell>,
    descriptor: OwnedFd,
}

impl Waker {
    /// Ends the poller's current sleep, or its next one if it is awake. One atomic exchange if it
    /// has been called since the last sleep; no system call unless the poller sleeps.
    pub fn wake(&self) {
        // The flag is what has been published, in the sense of the doorbell's argument. Who finds
        // it set can leave: the one who set it rings, or the sleeper has yet to look at it.
        if !self.shared.pending.swap(true, Ordering::SeqCst) {
            self.shared.doorbell.ring_or(|| {
                // Fails only when the counter is full, and then it is readable.
                let _ = rustix::io::write(&self.shared.descriptor, &1u64.to_ne_bytes());
            });
        }
    }
}

/// Watches lanes on behalf of one driver.
///
/// It sleeps on the process's [`Doorbell`] where all lanes are shared memory, and in `epoll_wait`
/// where there are sockets as well; neighbours wake it in either case.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    waker: Arc<WakerState>,
    /// Whether each watched descriptor is watched for room to send.
    wants_write: HashMap<RawFd, bool>,
    /// Lanes whose traffic shows on their descriptors.
    sockets: usize,
    last_look: Instant,
    ready: Vec<Readiness>,
}

impl Poller {
    /// A poller that sleeps behind `doorbell`, of which it must be the only user.
    ///
    /// # Errors
    ///
    /// What the system says when it has no descriptors left.
    pub fn new(doorbell: Arc<Doorbell>) -> io::Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = rustix::event::eventfd(0, flags)?;
        let key = epoll::EventData::new_u64(WAKER_KEY);
        epoll::add(&epoll, &descriptor, key, epoll::EventFlags::IN)?;
        Ok(Poller {
            epoll,
            waker: Arc::new(WakerState { pending: AtomicBool::new(false), doorbell, descriptor }),
            wants_write: HashMap::new(),
            sockets: 0,
            last_look: Instant::now(),
            ready: Vec::with_capacity(EVENTS),
        })
    }

    /// Starts to watch a lane, which is reported under `key` (`u64::MAX` is taken).
    ///
    /// # Errors
    ///
    /// What the system says, for instance that the lane is being watched.
    pub fn add(&mut self, lane: &dyn Lane, key: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(key);
        epoll::add(&self.epoll, lane.descriptor(), data, epoll::EventFlags::IN)?;
        self.wants_write.insert(lane.descriptor().as_raw_fd(), false);
        self.sockets += usize::from(lane.wire() == Wire::Tcp);
        Ok(())
    }

    /// Stops watching a lane. To be called before the lane is dropped.
    ///
    /// # Errors
    ///
    /// What the system says, for instance that the lane isn't being watched.
    pub fn remove(&mut self, lane: &dyn Lane) -> io::Result<()> {
        epoll::delete(&self.epoll, lane.descriptor())?;
        self.wants_write.remove(&lane.descriptor().as_raw_fd());
        self.sockets -= usize::from(lane.wire() == Wire::Tcp);
        Ok(())
    }

    /// Whether the lane is to be reported when it has room to send: as long as it holds unsent
    /// frames. Cheap when nothing changes. Shared memory needs no watching for that.
    ///
    /// # Errors
    ///
    /// What the system says, for instance that the lane isn't being watched.
    pub fn want_write(&mut self, lane: &dyn Lane, key: u64, wanted: bool) -> io::Result<()> {
        if lane.wire() == Wire::SharedMemory {
            return Ok(());
        }
        let current = self.wants_write.entry(lane.descriptor().as_raw_fd()).or_insert(false);
        if *current == wanted {
            return Ok(());
        }
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, wanted);
        let data = epoll::EventData::new_u64(key);
        epoll::modify(&self.epoll, lane.descriptor(), data, flags)?;
        *current = wanted;
        Ok(())
    }

    /// A handle by which other threads end a sleep.
    pub fn waker(&self) -> Waker {
        Waker { shared: self.waker.clone() }
    }

    /// Looks at all descriptors without sleeping: one system call for all lanes.
    ///
    /// # Errors
    ///
    /// What `epoll_wait` says.
    pub fn look(&mut self) -> io::Result<Woken<'_>> {
        self.wait_in_epoll(Duration::ZERO)?;
        Ok(self.woken())
    }

    /// Sleeps until a lane has something, a waker is used, or the time is over; may return early.
    ///
    /// `any_ready` is called once, after the sleep has been announced to the neighbours: it must
    /// say whether any lane is [`Lane::actionable`].
    ///
    /// # Errors
    ///
    /// What `epoll_wait` says.
    pub fn sleep(
        &mut self,
        timeout: Duration,
        any_ready: &mut dyn FnMut() -> bool,
    ) -> io::Result<Woken<'_>> {
        self.ready.clear();
        let sleep = if self.sockets == 0 { Sleep::OnWord } else { Sleep::InEpoll };
        self.waker.doorbell.announce(sleep);
        let result = if self.waker.pending.load(Ordering::SeqCst) || any_ready() {
            Ok(())
        } else if sleep == Sleep::OnWord {
            self.wait_on_word(timeout)
        } else {
            self.wait_in_epoll(timeout)
        };
        self.waker.doorbell.awake();
        result?;
        Ok(self.woken())
    }

    fn woken(&mut self) -> Woken<'_> {
        let by_waker = self.waker.pending.swap(false, Ordering::SeqCst);
        Woken { ready: &self.ready, by_waker }
    }

    /// Waits for the doorbell in slices, with a look at the control sockets when one is due.
    fn wait_on_word(&mut self, timeout: Duration) -> io::Result<()> {
        let start = Instant::now();
        loop {
            if self.last_look.elapsed() >= LOOK_INTERVAL {
                self.last_look = Instant::now();
                self.wait_in_epoll(Duration::ZERO)?;
                if !self.ready.is_empty() {
                    return Ok(());
                }
            }
            let rest = timeout.saturating_sub(start.elapsed());
            if rest.is_zero() || !self.waker.doorbell.announced() {
                return Ok(());
            }
            self.waker.doorbell.wait(rest.min(LOOK_INTERVAL));
        }
    }

    fn wait_in_epoll(&mut self, timeout: Duration) -> io::Result<()> {
        self.ready.clear();
        let timeout = Timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut events = [std::mem::MaybeUninit::uninit(); EVENTS];
        let events = match epoll::wait(&self.epoll, &mut events[..], Some(&timeout)) {
            Ok((events, _)) => events,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for event in events {
            let (key, flags) = (event.data.u64(), event.flags);
            if key == WAKER_KEY {
                // Fails only when another look has emptied it.
                let _ = rustix::io::read(&self.waker.descriptor, &mut [0u8; 8]);
                continue;
            }
            let writable = flags.contains(epoll::EventFlags::OUT);
            let readable = !flags.difference(epoll::EventFlags::OUT).is_empty();
            self.ready.push(Readiness { key, readable, writable });
        }
        Ok(())
    }
}
