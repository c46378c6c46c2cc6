//! Engines of several ranks in one process, over real wires.

use std::sync::Arc;
use std::time::Duration;

use gradwire::{Communicator, Engine, EngineConfig, ReduceOp, StoreServer, TcpStore};

/// Runs `body` on every rank, each with an engine of its own.
fn job(ranks: u32, settings: &[(&str, &str)], body: impl Fn(&Engine, &Communicator) + Sync) {
    let server = StoreServer::start("127.0.0.1:0").unwrap();
    let address = server.address().to_string();
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let (address, body) = (&address, &body);
            scope.spawn(move || {
                let mut config = EngineConfig {
                    rank,
                    world_size: ranks,
                    local_world_size: ranks,
                    timeout: Duration::from_secs(20),
                    ..EngineConfig::default()
                };
                for (name, value) in settings {
                    config.set(name, value).unwrap();
                }
                let store = TcpStore::connect(address, Duration::from_secs(5)).unwrap();
                let engine = Engine::start(config, Arc::new(store)).unwrap();
                let world = engine.world().unwrap();
                body(&engine, &world);
                world.barrier().unwrap();
                drop(world);
                engine.shutdown(Duration::from_secs(1));
            });
        }
    });
}

fn contribution(rank: u32, index: usize) -> f32 {
    ((index * 7 + rank as usize * 13) % 101) as f32
}

fn check_all_reduce(world: &Communicator, elements: usize) {
    let mut tensor: Vec<f32> = (0..elements).map(|i| contribution(world.rank(), i)).collect();
    world.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
    for (index, value) in tensor.iter().enumerate() {
        let expected: f32 = (0..world.size()).map(|rank| contribution(rank, index)).sum();
        assert_eq!(*value, expected, "element {index} of {elements}");
    }
}

#[test]
fn all_reduce_over_each_wire_with_each_algorithm() {
    for transport in ["tcp", "shm"] {
        for algorithm in ["auto", "ring", "tree", "halving-doubling", "direct", "star", "one-shot"]
        {
            for ranks in [1, 2, 3, 4] {
                let settings = [
                    ("transport", transport),
                    ("algorithm", algorithm),
                    ("tile_bytes", "4096"),
                    ("socket_ifname", "lo"),
                ];
                job(ranks, &settings, |_, world| {
                    for elements in [0, 1, 3, 1000, 100_000] {
                        check_all_reduce(world, elements);
                    }
                });
            }
        }
    }
}
