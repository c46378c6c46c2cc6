//! A rank: all-reduces until something happens, says what, and goes on with the ranks that remain.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gradwire::{
    Communicator, Engine, EngineConfig, Error, JobEnvironment, ReduceOp, Store, StoreServer,
    TcpStore,
};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Set for a rank: what is going to happen, as JSON.
pub const ROLE: &str = "GRADWIRE_TEST_ROLE";

/// Rounds before a rank says that it is ready.
const ROUNDS_TO_BE_READY: usize = 3;
/// Rounds between two looks at whether it is time to leave.
const ROUNDS_BETWEEN_LOOKS: usize = 20;

/// What a rank is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Role {
    /// Bytes of the tensor.
    pub bytes: usize,
    /// Ranks that will not be part of the new group.
    pub lost: Vec<u32>,
    /// Where the store is, if no rank serves it.
    pub store: Option<String>,
    /// Leave in good order once there is such a file.
    pub until: Option<PathBuf>,
}

/// What a rank says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Said {
    /// It goes round and round.
    Ready,
    /// An operation has failed, after rounds of which the last took so long.
    Failed { culprit: Option<u32>, cause: Option<String>, text: String, round: Duration },
    /// The group of those that remain works.
    Survived,
    /// All rounds were right.
    Finished,
    /// Something that must not be.
    Wrong(String),
}

/// What a rank said, and when on the machine's monotonic clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    pub rank: u32,
    pub at: Duration,
    pub said: Said,
}

/// The machine's monotonic clock, which all hosts of a lab share.
pub fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Is a rank, to the end.
pub fn run() -> ! {
    let place = JobEnvironment::find().unwrap();
    let role: Role = serde_json::from_str(&std::env::var(ROLE).unwrap()).unwrap();
    let say = |said| {
        let event = Event { rank: place.rank, at: now(), said };
        println!("{}", serde_json::to_string(&event).unwrap());
    };
    if let Err(wrong) = work(&place, &role, &say) {
        say(Said::Wrong(wrong));
        std::process::exit(1);
    }
    std::process::exit(0);
}

fn work(place: &JobEnvironment, role: &Role, say: &dyn Fn(Said)) -> Result<(), String> {
    let (store, _server) = store(place, role)?;
    let mut config = EngineConfig::from_env().map_err(|error| error.to_string())?;
    config.rank = place.rank;
    config.world_size = place.world_size;
    config.local_world_size = place.local_world_size;
    let engine = Engine::start(config, store).map_err(|error| error.to_string())?;
    let world = engine.world().map_err(|error| error.to_string())?;
    match rounds(&world, role, say)? {
        None => {
            world.barrier().map_err(|error| error.to_string())?;
            say(Said::Finished);
        }
        Some((error, round)) => {
            say(Said::Failed {
                round,
                culprit: error.culprit(),
                cause: error.cause().map(|cause| format!("{cause:?}")),
                text: error.to_string(),
            });
            if !role.lost.contains(&place.rank) {
                go_on(&engine, role)?;
                say(Said::Survived);
            }
        }
    }
    drop(world);
    engine.shutdown(Duration::from_secs(2));
    Ok(())
}

type Served = (Arc<dyn Store>, Option<StoreServer>);

fn store(place: &JobEnvironment, role: &Role) -> Result<Served, String> {
    let Some(address) = &role.store else { return place.store() };
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| error.to_string())?;
    Ok((Arc::new(TcpStore::connect(address, Duration::from_secs(10))?), None))
}

/// An error, and how long the last round before it took.
type Failed = (Error, Duration);

/// All-reduces until one fails; `None` if it is time to leave.
fn rounds(world: &Communicator, role: &Role, say: &dyn Fn(Said)) -> Result<Option<Failed>, String> {
    let mut tensor = vec![0f32; role.bytes / 4];
    let mut took = Duration::ZERO;
    for round in 0.. {
        let began = now();
        if let Err(error) = round_of(world, &mut tensor, round)? {
            return Ok(Some((error, took)));
        }
        took = now() - began;
        if round + 1 == ROUNDS_TO_BE_READY {
            say(Said::Ready);
        }
        let Some(end) = role.until.as_deref().filter(|_| round % ROUNDS_BETWEEN_LOOKS == 0) else {
            continue;
        };
        if is_time_to_leave(world, end).map_err(|error| error.to_string())? {
            break;
        }
    }
    Ok(None)
}

/// Whether any rank sees the file: all leave after the same round.
fn is_time_to_leave(world: &Communicator, end: &Path) -> Result<bool, Error> {
    let mut seen = [u8::from(end.exists())];
    world.all_reduce(&mut seen, ReduceOp::Max)?;
    Ok(seen[0] > 0)
}

fn go_on(engine: &Engine, role: &Role) -> Result<(), String> {
    let world_size = engine.config().world_size;
    let members: Vec<u32> = (0..world_size).filter(|rank| !role.lost.contains(rank)).collect();
    let group = engine.communicator("survivors", &members).map_err(|error| error.to_string())?;
    let mut tensor = vec![0f32; role.bytes / 4];
    for round in 0..3 {
        round_of(&group, &mut tensor, round)?.map_err(|error| error.to_string())?;
    }
    group.barrier().map_err(|error| error.to_string())
}

/// One all-reduce of values that differ by rank, element and round. The outer error is a wrong sum.
fn round_of(
    group: &Communicator,
    tensor: &mut [f32],
    round: usize,
) -> Result<Result<(), Error>, String> {
    let value = |rank: u32, index: usize| (rank as usize + (index + round) % 7) as f32;
    for (index, element) in tensor.iter_mut().enumerate() {
        *element = value(group.rank(), index);
    }
    if let Err(error) = group.all_reduce(tensor, ReduceOp::Sum) {
        return Ok(Err(error));
    }
    let sums: Vec<f32> =
        (0..7).map(|index| (0..group.size()).map(|rank| value(rank, index)).sum()).collect();
    match tensor.iter().enumerate().find(|(index, sum)| **sum != sums[index % 7]) {
        None => Ok(Ok(())),
        Some((index, sum)) => {
            Err(format!("round {round}, element {index}: {sum} instead of {}", sums[index % 7]))
        }
    }
}
