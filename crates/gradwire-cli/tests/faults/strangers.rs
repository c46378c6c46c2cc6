//! Ten thousand connections of strangers to the ports of a job at work.

use std::collections::VecDeque;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use gradwire::{Store, TcpStore};
use gradwire_transport::Endpoint;

use crate::job::{Job, Place};
use crate::rank::{Role, Said};
use crate::turn;

const STRANGERS: usize = 10_000;
/// Strangers that keep their connection open at once.
const HELD: usize = 300;
const RANKS: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(60);

/// They come, and nothing happens to the job.
pub fn come() {
    let turn = turn::take();
    let all: Vec<u32> = (0..RANKS).collect();
    let end = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("end-{}", std::process::id()));
    let role = Role { bytes: 4 << 10, lost: vec![], store: None, until: Some(end.clone()) };
    let mut job = Job::start(Place::Local("tcp"), RANKS, role, &[]);
    job.each_says(&all, "are ready", PATIENCE, |said| matches!(said, Said::Ready));
    let ports = ports(&job);
    let mut held = VecDeque::new();
    for number in 0..STRANGERS {
        if let Ok(mut stream) = TcpStream::connect(ports[number % ports.len()]) {
            babble(&mut stream, number);
            held.push_back(stream);
        }
        if held.len() > HELD {
            held.pop_front();
        }
    }
    fs::write(&end, "").unwrap();
    job.each_says(&all, "finish", PATIENCE, |said| matches!(said, Said::Finished));
    fs::remove_file(&end).unwrap();
    drop(turn);
}

fn ports(job: &Job) -> Vec<SocketAddr> {
    let address = job.store().address().to_string();
    let store = TcpStore::connect(&address, PATIENCE).unwrap();
    (0..RANKS)
        .flat_map(|rank| {
            let published = store.get(&format!("gradwire/endpoint/{rank}"), PATIENCE).unwrap();
            Endpoint::decode(&published).unwrap().addresses
        })
        .map(|address| SocketAddr::new(address.ip, address.port))
        .collect()
}

/// Says something that is no handshake. Errors only tell that the rank has hung up already.
fn babble(stream: &mut TcpStream, number: usize) {
    let noise: Vec<u8> = (0..200).map(|at| (number * 31 + at * at * 7) as u8).collect();
    let _ = match number % 5 {
        0 => stream.write_all(&noise),
        1 => stream.write_all(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"),
        // Half a greeting, or a single byte, and then nothing.
        2 => stream.write_all(&[b"GWIRE\x01", &noise[..20]].concat()),
        3 => stream.write_all(b"g"),
        _ => Ok(()),
    };
}
