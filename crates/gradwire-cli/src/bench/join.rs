//! One rank of the bench: joins the job, measures size after size, says what came out.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use gradwire::{Communicator, Engine, EngineConfig, JobEnvironment, ReduceOp, Store, TcpStore};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::Args;
use super::measure::{Bench, grain};
use super::report::{Memory, Place, Report};
use super::resident::Resident;
use super::shape::Shape;
use crate::failure::Failure;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long what was sent last may take to arrive before this rank leaves.
const GRACE: Duration = Duration::from_secs(2);
/// Bytes for a rank's process number and host.
const PLACE_BYTES: usize = 128;

/// A rank that the parent process started.
///
/// # Errors
/// What ended the run.
pub fn own_rank(args: &Args, store: &str) -> anyhow::Result<ExitCode> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("bench: tying to the parent")?;
    let place = JobEnvironment::find().map_err(|error| anyhow!("bench: {error}"))?;
    let store =
        TcpStore::connect(store, CONNECT_TIMEOUT).map_err(|error| anyhow!("bench: {error}"))?;
    run(args, &place, Arc::new(store))
}

/// A rank of the job in the environment.
///
/// # Errors
/// Bad usage where there is no job; otherwise what ended the run.
pub fn job(args: &Args) -> anyhow::Result<ExitCode> {
    let place = JobEnvironment::find().map_err(|error| {
        Failure::usage(format!(
            "bench: {error}; give --ranks N to start N ranks on this machine, or start `gradwire \
             bench` on every rank with one of these"
        ))
    })?;
    args.check_ranks(place.world_size)?;
    let (store, _server) = place.store().map_err(|error| anyhow!("bench: {error}"))?;
    run(args, &place, store)
}

fn run(args: &Args, place: &JobEnvironment, store: Arc<dyn Store>) -> anyhow::Result<ExitCode> {
    let config = config(args, place)?;
    // The engine's errors say it all by themselves; their causes would say it again.
    let wrong = measure_in(args, config, store)
        .map_err(|error| anyhow!("bench: rank {}: {error}", place.rank))?;
    if wrong > 0 && place.rank == 0 {
        bail!("bench: {wrong} wrong elements");
    }
    Ok(ExitCode::from(u8::from(wrong > 0)))
}

fn measure_in(args: &Args, config: EngineConfig, store: Arc<dyn Store>) -> anyhow::Result<u64> {
    let engine = Engine::start(config, store)?;
    let world = engine.world()?;
    let wrong = measure_all(args, &engine, &world)?;
    world.barrier()?;
    drop(world);
    engine.shutdown(GRACE);
    Ok(wrong)
}

fn config(args: &Args, place: &JobEnvironment) -> anyhow::Result<EngineConfig> {
    let mut config =
        EngineConfig::from_env().map_err(|error| Failure::usage(format!("bench: {error}")))?;
    config.rank = place.rank;
    config.world_size = place.world_size;
    config.local_world_size = place.local_world_size;
    if let Some(transport) = args.transport {
        config.transport = transport;
    }
    Ok(config)
}

/// Measures and reports; wrong elements in all.
fn measure_all(args: &Args, engine: &Engine, world: &Communicator) -> anyhow::Result<u64> {
    let shape = Shape {
        collective: args.collective,
        ranks: world.size() as usize,
        rank: world.rank() as usize,
    };
    let sizes = args.sizes(grain(args.dtype, &shape));
    let mut report = (shape.rank == 0).then(|| Report::new(args, engine.config(), shape));
    let places = places(world)?;
    if let Some(report) = &mut report {
        report.begin(&places)?;
    }
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let mut bench = Bench::new(args, world, shape, largest);
    let before = Resident::read();
    let mut wrong = 0;
    for size in sizes {
        let measurement = bench.measure(size)?;
        wrong += measurement.wrong.unwrap_or(0);
        if let Some(report) = &mut report {
            report.add(measurement)?;
        }
    }
    let memory = memory(engine, world, before)?;
    if let Some(report) = &mut report {
        report.end(&memory)?;
    }
    Ok(wrong)
}

/// Where each rank runs.
fn places(world: &Communicator) -> anyhow::Result<Vec<Place>> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut mine = format!("{} {host}", std::process::id()).into_bytes();
    mine.resize(PLACE_BYTES, 0);
    let mut all = vec![0u8; PLACE_BYTES * world.size() as usize];
    world.all_gather(&mine, &mut all)?;
    let read = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let (pid, host) = text.trim_end_matches('\0').split_once(' ').unwrap_or_default();
        Place { pid: pid.to_owned(), host: host.to_owned() }
    };
    Ok(all.chunks_exact(PLACE_BYTES).map(read).collect())
}

/// The most that any rank's engine and process took beside the tensors.
fn memory(engine: &Engine, world: &Communicator, before: Resident) -> anyhow::Result<Memory> {
    let counters = engine.counters();
    let counter = |name: &str| {
        counters.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value as i64)
    };
    let growth = Resident::read().peak.saturating_sub(before.now) as i64;
    let mut most = [counter("bytes_held_peak"), counter("bytes_scratch_peak"), growth];
    world.all_reduce(&mut most, ReduceOp::Max)?;
    let [held, scratch, growth] = most.map(|bytes| bytes as u64);
    Ok(Memory { bytes_held_peak: held, bytes_scratch_peak: scratch, resident_growth_bytes: growth })
}
