//! Where ranks find each other: a small key-value store.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// A key-value store that all ranks of a job can reach.
pub trait Store: Send + Sync {
    /// Sets a key.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), String>;

    /// Waits until a key is set and returns its value.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, String>;
}

/// A store in a directory that all ranks see: one file for each key.
#[derive(Clone, Debug)]
pub struct FileStore {
    directory: PathBuf,
}

impl FileStore {
    /// A store in an existing directory, which should be empty and the user's own.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        FileStore { directory: directory.into() }
    }

    fn path(&self, key: &str) -> PathBuf {
        let name: String =
            key.bytes().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
        self.directory.join(name)
    }
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), String> {
        // Written aside and renamed, so that nobody reads half a value.
        let aside = self.directory.join(format!(
            ".{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::write(&aside, value)
            .and_then(|()| std::fs::rename(&aside, self.path(key)))
            .map_err(|error| format!("store in {}: {error}", self.directory.display()))
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, String> {
        let start = Instant::now();
        loop {
            match std::fs::read(self.path(key)) {
                Ok(value) => return Ok(value),
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(format!("store in {}: {error}", self.directory.display()));
                }
                Err(_) if start.elapsed() > timeout => {
                    return Err(format!("key '{key}' was not set within {timeout:?}"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }
}

const MAX_KEY_BYTES: u32 = 1 << 10;
const MAX_VALUE_BYTES: u32 = 1 << 20;
const MAX_CLIENTS: usize = 8192;
const SET: u8 = b'S';
const GET: u8 = b'G';

type Entries = Arc<(Mutex<HashMap<String, Vec<u8>>>, Condvar)>;

/// Serves [`TcpStore`]s, one thread for each client. When it is dropped, no new ones are taken.
#[derive(Debug)]
pub struct StoreServer {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Ends the wait in accept; a failure means that nobody waits there.
        let port = self.address.port();
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    }
}

impl StoreServer {
    /// Starts to serve on an address; port 0 picks a free one.
    pub fn start(address: impl ToSocketAddrs) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let entries = Entries::default();
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = stopping.clone();
        std::thread::Builder::new().name("gradwire-store".to_owned()).spawn(move || {
            let clients = Arc::new(());
            for stream in listener.incoming().flatten() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                if Arc::strong_count(&clients) > MAX_CLIENTS {
                    continue;
                }
                let (entries, client) = (entries.clone(), clients.clone());
                let serve = move || {
                    let _client = client;
                    // A client that goes away, or talks nonsense, is no concern of the others.
                    let _ = serve(stream, &entries);
                };
                let _ = std::thread::Builder::new().stack_size(128 << 10).spawn(serve);
            }
        })?;
        Ok(StoreServer { address, stopping })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn serve(mut stream: TcpStream, entries: &Entries) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let mut kind = [0];
        stream.read_exact(&mut kind)?;
        let key = String::from_utf8(read_field(&mut stream, MAX_KEY_BYTES)?)
            .map_err(|_| io::ErrorKind::InvalidData)?;
        let (values, changed) = &**entries;
        match kind[0] {
            SET => {
                let value = read_field(&mut stream, MAX_VALUE_BYTES)?;
                values.lock().expect("no thread panics with it").insert(key, value);
                changed.notify_all();
                stream.write_all(&[SET])?;
            }
            GET => {
                let mut milliseconds = [0; 4];
                stream.read_exact(&mut milliseconds)?;
                let timeout = Duration::from_millis(u32::from_le_bytes(milliseconds).into());
                let values = values.lock().expect("no thread panics with it");
                let (values, _) = changed
                    .wait_timeout_while(values, timeout, |values| !values.contains_key(&key))
                    .expect("no thread panics with it");
                let value = values.get(&key).cloned();
                drop(values);
                stream.write_all(&[if value.is_some() { GET } else { 0 }])?;
                write_field(&mut stream, &value.unwrap_or_default())?;
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn read_field(stream: &mut TcpStream, limit: u32) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > limit {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut field = vec![0; length as usize];
    stream.read_exact(&mut field)?;
    Ok(field)
}

fn write_field(stream: &mut TcpStream, field: &[u8]) -> io::Result<()> {
    stream.write_all(&(field.len() as u32).to_le_bytes())?;
    stream.write_all(field)
}

/// A client of a [`StoreServer`].
#[derive(Debug)]
pub struct TcpStore {
    stream: Mutex<TcpStream>,
    address: String,
}

impl TcpStore {
    /// Connects to a server that may be about to start.
    pub fn connect(address: &str, timeout: Duration) -> Result<Self, String> {
        let start = Instant::now();
        loop {
            match TcpStream::connect(address) {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(|error| error.to_string())?;
                    return Ok(TcpStore {
                        stream: Mutex::new(stream),
                        address: address.to_owned(),
                    });
                }
                Err(error) if start.elapsed() > timeout => {
                    return Err(format!("cannot reach the store at {address}: {error}"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn ask(&self, request: &[u8]) -> io::Result<(u8, Vec<u8>)> {
        let mut stream = self.stream.lock().expect("no thread panics with it");
        stream.write_all(request)?;
        let mut kind = [0];
        stream.read_exact(&mut kind)?;
        let value =
            if kind[0] == SET { Vec::new() } else { read_field(&mut stream, MAX_VALUE_BYTES)? };
        Ok((kind[0], value))
    }

    fn lost(&self, error: &io::Error) -> String {
        format!("the store at {} does not answer: {error}", self.address)
    }
}

fn request(kind: u8, key: &str) -> Vec<u8> {
    let mut request = vec![kind];
    request.extend((key.len() as u32).to_le_bytes());
    request.extend(key.as_bytes());
    request
}

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), String> {
        let mut request = request(SET, key);
        request.extend((value.len() as u32).to_le_bytes());
        request.extend(value);
        self.ask(&request).map(|_| ()).map_err(|error| self.lost(&error))
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, String> {
        let milliseconds = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let mut request = request(GET, key);
        request.extend(milliseconds.to_le_bytes());
        match self.ask(&request) {
            Ok((GET, value)) => Ok(value),
            Ok(_) => Err(format!("key '{key}' was not set within {timeout:?}")),
            Err(error) => Err(self.lost(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits_for_keys(one: &dyn Store, other: &(dyn Store + Sync)) {
        assert!(one.get("missing", Duration::from_millis(10)).is_err());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                other.set("late/key", b"value").unwrap();
            });
            assert_eq!(one.get("late/key", Duration::from_secs(5)).unwrap(), b"value");
        });
    }

    #[test]
    fn tcp_store_waits_for_keys() {
        let server = StoreServer::start("127.0.0.1:0").unwrap();
        let address = server.address().to_string();
        let connect = || TcpStore::connect(&address, Duration::from_secs(1)).unwrap();
        waits_for_keys(&connect(), &connect());
    }

    #[test]
    fn file_store_waits_for_keys() {
        let directory = std::env::temp_dir().join(format!("gradwire-store-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let store = FileStore::new(&directory);
        waits_for_keys(&store, &store.clone());
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn garbage_does_not_disturb_the_others() {
        let server = StoreServer::start("127.0.0.1:0").unwrap();
        let mut stranger = TcpStream::connect(server.address()).unwrap();
        stranger.write_all(&[0xff; 64]).unwrap();
        let store =
            TcpStore::connect(&server.address().to_string(), Duration::from_secs(1)).unwrap();
        store.set("key", b"value").unwrap();
        assert_eq!(store.get("key", Duration::from_secs(1)).unwrap(), b"value");
    }
}
