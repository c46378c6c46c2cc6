//! Engines of several ranks in one process, over real wires.

use std::sync::Arc;
use std::time::Duration;

use gradwire::{Communicator, Engine, EngineConfig, StoreServer, TcpStore};

/// Both wires.
pub const WIRES: [&str; 2] = ["shm", "tcp"];

/// Runs `body` on every rank, each a thread with an engine of its own; they leave together.
pub fn job(ranks: u32, settings: &[(&str, &str)], body: impl Fn(&Engine, &Communicator) + Sync) {
    job_on_hosts(ranks, ranks, settings, body);
}

/// As [`job`], with so many ranks on each host.
pub fn job_on_hosts(
    ranks: u32,
    ranks_per_host: u32,
    settings: &[(&str, &str)],
    body: impl Fn(&Engine, &Communicator) + Sync,
) {
    let server = StoreServer::start("127.0.0.1:0").unwrap();
    let address = server.address().to_string();
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let (address, body) = (&address, &body);
            scope.spawn(move || {
                let engine = start((rank, ranks, ranks_per_host), address, settings);
                let world = engine.world().unwrap();
                body(&engine, &world);
                // Fails where this rank or another has left already, as it may.
                let _ = engine.communicator("leaving", world.members()).and_then(|it| it.barrier());
                drop(world);
                engine.shutdown(Duration::from_secs(1));
            });
        }
    });
}

/// The engine of a rank, one of so many, of which so many are on each host.
fn start(
    (rank, ranks, ranks_per_host): (u32, u32, u32),
    store: &str,
    settings: &[(&str, &str)],
) -> Engine {
    let mut config = EngineConfig {
        rank,
        world_size: ranks,
        local_world_size: ranks_per_host,
        host_id: (rank / ranks_per_host).to_string(),
        timeout: Duration::from_secs(30),
        interfaces: Some("lo".to_owned()),
        ..EngineConfig::default()
    };
    for (name, value) in settings {
        config.set(name, value).unwrap();
    }
    let store = TcpStore::connect(store, Duration::from_secs(5)).unwrap();
    Engine::start(config, Arc::new(store)).unwrap()
}
