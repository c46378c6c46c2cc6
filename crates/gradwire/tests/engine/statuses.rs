//! What engines say of themselves while they run.

use std::path::Path;
use std::time::{Duration, Instant};

use gradwire::{ReduceOp, Status};

use crate::job::job;

fn statuses(directory: &Path) -> Vec<Status> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.extension().is_some_and(|it| it == "json"));
    // A rank that leaves removes its file.
    let texts = files.filter_map(|path| std::fs::read(path).ok());
    texts.map(|text| serde_json::from_slice(&text).unwrap()).collect()
}

/// Looks until something is seen.
fn seen(directory: &Path, is_it: impl Fn(&[Status]) -> bool) -> Vec<Status> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let found = statuses(directory);
        if is_it(&found) {
            return found;
        }
        assert!(Instant::now() < end, "not seen: {found:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_engine_says_how_it_is_doing_and_whom_it_waits_for() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("statuses");
    let _ = std::fs::remove_dir_all(&directory);
    let settings = [("status", directory.to_str().unwrap()), ("transport", "tcp")];
    job(3, &settings, |_, world| {
        let mut tensor = vec![1f32; 100_000];
        world.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
        if world.rank() == 2 {
            let is_stuck = |it: &Status| {
                it.oldest.as_ref().is_some_and(|it| it.absent == [2] && it.age_s > 0.5)
            };
            let found =
                seen(&directory, |found| found.iter().filter(|it| is_stuck(it)).count() == 2);
            let stuck = found.iter().find(|it| it.rank == 0).unwrap();
            let oldest = stuck.oldest.as_ref().unwrap();
            assert!(oldest.operation.starts_with("barrier("), "{oldest:?}");
            assert!(stuck.waiting_s > 0.5 && stuck.waiting_s <= stuck.uptime_s);
            assert!(stuck.in_flight_s >= stuck.waiting_s * 0.9);
            let sent: u64 = stuck.links.iter().map(|link| link.sent_bytes).sum();
            assert_eq!(sent, stuck.counters["bytes_sent"]);
            assert!(stuck.links.iter().all(|link| link.wire == "tcp" && link.rank != 0));
            assert_eq!((stuck.world_size, stuck.pid), (3, std::process::id()));
            assert!(found.iter().all(|it| it.job == stuck.job));
        }
        world.barrier().unwrap();
    });
    assert_eq!(statuses(&directory), [], "who has left says nothing");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn an_engine_that_is_told_to_says_nothing() {
    let directory = gradwire::status_directory();
    job(1, &[("status", "off")], |engine, _| {
        assert_eq!(engine.config().status, gradwire::StatusChoice::Off);
        std::thread::sleep(Duration::from_millis(300));
        let mine = statuses(&directory).into_iter().filter(|it| it.world_size == 1);
        assert_eq!(mine.filter(|it| it.pid == std::process::id()).count(), 0);
    });
}
