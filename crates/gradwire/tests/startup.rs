//! Many ranks: starting is quick, and what each costs is bounded. A test program of its own, since
//! it counts what the whole process has.

#[path = "engine/job.rs"]
mod job;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use gradwire::{Collective, DataType, Memory, ReduceOp, Request};

const RANKS: u32 = 64;
/// An engine's listeners, epolls, wake-ups, doorbell and store connection (both ends are here), up
/// to two for each of its lanes: to two neighbours around the ring, and to some with which it
/// leaves.
const DESCRIPTORS_PER_RANK: usize = 32;
/// The engine's own, the lobby's, its look-ups', the store's, and the test's for the rank.
const THREADS_PER_RANK: usize = 5;

fn count(directory: &str) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

#[test]
fn sixty_four_ranks_start_in_seconds() {
    for wire in job::WIRES {
        let began = Instant::now();
        let most = Mutex::new((0, 0));
        job::job(RANKS, &[("transport", wire), ("lanes", "1")], |_, world| {
            let mut tensor =
                vec![world.rank(); 1000].into_iter().map(|it| it as i32).collect::<Vec<_>>();
            let mut request = Request::new(Collective::AllReduce, DataType::I32, ReduceOp::Sum);
            request.algorithm = Some(gradwire::Algorithm::Ring);
            request.output = vec![Memory::of(&mut tensor)];
            // SAFETY: the tensor is kept until the operation is done.
            unsafe { world.submit(request) }.unwrap().wait(None).unwrap();
            assert!(tensor == vec![(0..RANKS as i32).sum::<i32>(); 1000]);
            let mut most = most.lock().unwrap();
            most.0 = most.0.max(count("/proc/self/fd"));
            most.1 = most.1.max(count("/proc/self/task"));
        });
        let (descriptors, threads) = most.into_inner().unwrap();
        assert!(began.elapsed() < Duration::from_secs(20), "{wire}: {:?}", began.elapsed());
        let ranks = RANKS as usize;
        assert!(descriptors < ranks * DESCRIPTORS_PER_RANK, "{wire}: {descriptors} descriptors");
        assert!(threads < ranks * THREADS_PER_RANK + 8, "{wire}: {threads} threads");
    }
}
