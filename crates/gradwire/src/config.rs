//! Settings: each has a default that works and one `GRADWIRE_*` variable.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use gradwire_core::MAX_PAYLOAD_BYTES;
use gradwire_schedule::Algorithm;

use crate::Error;

/// Which wires may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Shared memory within a host, TCP between hosts.
    #[default]
    Automatic,
    /// TCP everywhere.
    Tcp,
    /// Shared memory only: all ranks must be on one host.
    SharedMemory,
}

impl FromStr for TransportChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(TransportChoice::Automatic),
            "tcp" => Ok(TransportChoice::Tcp),
            "shm" | "shared_memory" => Ok(TransportChoice::SharedMemory),
            _ => Err(format!("'{text}' is no transport; use auto, tcp or shm")),
        }
    }
}

/// Whether and where an engine says every second how it is doing, for `gradwire top`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StatusChoice {
    /// In [`status_directory`](crate::status_directory), which is this user's and this host's.
    #[default]
    Automatic,
    /// Nowhere.
    Off,
    /// In this directory, which is made if need be; one that all hosts share shows all ranks.
    Directory(PathBuf),
}

/// The settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// This process's rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// Ranks on this host (`LOCAL_WORLD_SIZE`): whether they outnumber the cores, and whether the
    /// job has other hosts.
    pub local_world_size: u32,
    /// How long an operation may take.
    pub timeout: Duration,
    /// Which wires may be used (`GRADWIRE_TRANSPORT`: auto, tcp, shm).
    pub transport: TransportChoice,
    /// Which NICs (`GRADWIRE_SOCKET_IFNAME`, in NCCL's syntax).
    pub interfaces: Option<String>,
    /// Ranks with different ids are taken to be on different hosts (`GRADWIRE_HOST_ID`), even if they
    /// are not: they use the network between them, and shared memory with those that have the same.
    /// Empty by default.
    pub host_id: String,
    /// TCP connections to each peer (`GRADWIRE_LANES`), 0 for the default.
    pub lanes: usize,
    /// Algorithm of all collectives that it can do (`GRADWIRE_ALGORITHM`).
    pub algorithm: Option<Algorithm>,
    /// Bytes of a tile (`GRADWIRE_TILE_BYTES`), the same on all ranks.
    pub tile_bytes: u32,
    /// Tiles of a step that may be unacknowledged (`GRADWIRE_WINDOW_TILES`), same on all ranks; 0
    /// for the default.
    pub window_tiles: u32,
    /// Congestion control of TCP (`GRADWIRE_CONGESTION_CONTROL`); by default `cubic` where
    /// the round trip is under 2 ms, else the system's.
    pub congestion_control: Option<String>,
    /// Bytes of a TCP socket's buffers (`GRADWIRE_SOCKET_BUFFER_BYTES`), the system's by default.
    pub socket_buffer_bytes: Option<usize>,
    /// Bytes of shared memory for each direction of a pair (`GRADWIRE_SHM_BYTES`).
    pub shared_memory_bytes: usize,
    /// How long a peer may be silent (`GRADWIRE_SILENCE_S`).
    pub silence: Duration,
    /// Where to write a timeline of the whole run (`GRADWIRE_TRACE`), the same for all ranks: with
    /// it the start of an engine waits for all ranks.
    pub trace: Option<PathBuf>,
    /// Events that a trace keeps, the latest ones (`GRADWIRE_TRACE_EVENTS`); some 90 bytes each.
    pub trace_events: usize,
    /// Where `gradwire top` finds this engine (`GRADWIRE_STATUS`: a directory, auto or off).
    pub status: StatusChoice,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            rank: 0,
            world_size: 1,
            local_world_size: 1,
            timeout: Duration::from_secs(30 * 60),
            transport: TransportChoice::default(),
            interfaces: None,
            host_id: String::new(),
            lanes: 0,
            algorithm: None,
            tile_bytes: 128 << 10,
            window_tiles: 0,
            congestion_control: None,
            socket_buffer_bytes: None,
            shared_memory_bytes: 1 << 20,
            silence: Duration::from_secs(7),
            trace: None,
            trace_events: 1 << 20,
            status: StatusChoice::default(),
        }
    }
}

/// Tiles under way in each receive step, unless all ranks share a host.
const WINDOW_TILES: u32 = 16;
/// Tiles that a rank has under way over TCP within a host: the kernel's copies of more would push
/// each other out of the cache.
const CACHED_TILES: u32 = 4;

impl EngineConfig {
    /// Tiles of a step that may be unacknowledged.
    pub fn window(&self) -> u32 {
        let peers = self.world_size.saturating_sub(1).max(1);
        let one_host = self.local_world_size >= self.world_size;
        match self.window_tiles {
            0 if one_host && self.transport == TransportChoice::Tcp => {
                (CACHED_TILES / peers).max(2)
            }
            0 => WINDOW_TILES,
            given => given,
        }
    }

    /// The defaults, overridden by the environment's `GRADWIRE_*` and `LOCAL_WORLD_SIZE`.
    pub fn from_env() -> Result<Self, Error> {
        let mut config = EngineConfig::default();
        for (name, _) in SETTINGS {
            let variable = format!("GRADWIRE_{}", name.to_uppercase());
            if let Ok(value) = std::env::var(&variable) {
                config
                    .set(name, &value)
                    .map_err(|error| Error::Config(format!("{variable}: {error}")))?;
            }
        }
        if let Some(ranks) = std::env::var("LOCAL_WORLD_SIZE").ok().and_then(|it| it.parse().ok()) {
            config.local_world_size = ranks;
        }
        Ok(config)
    }

    /// Changes one setting by name: the variable's, without `GRADWIRE_` and in lower case.
    ///
    /// # Errors
    /// A message that names the known settings, or says what the value should be.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let Some((_, apply)) = SETTINGS.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = SETTINGS.iter().map(|(known, _)| *known).collect();
            return Err(format!("there is no setting '{name}'; there are {}", known.join(", ")));
        };
        apply(self, value.trim())
    }

    /// Whether ranks may be reached over a network; all ranks of a job say the same.
    pub(crate) fn is_on_network(&self) -> bool {
        self.transport == TransportChoice::Tcp || self.local_world_size != self.world_size
    }

    /// Checks what the type system does not.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let fail = |text: String| Err(Error::Config(text));
        if self.world_size == 0 || self.rank >= self.world_size {
            return fail(format!("rank {} in a world of {} ranks", self.rank, self.world_size));
        }
        if self.tile_bytes == 0
            || self.tile_bytes > MAX_PAYLOAD_BYTES
            || !self.tile_bytes.is_multiple_of(64)
        {
            return fail(format!(
                "tile_bytes is {}, must be a multiple of 64 up to {MAX_PAYLOAD_BYTES}",
                self.tile_bytes
            ));
        }
        if !(1..=64).contains(&self.window()) {
            return fail(format!("window_tiles is {}, must be 1 to 64", self.window_tiles));
        }
        if self.shared_memory_bytes < 2 * self.tile_bytes as usize {
            return fail(format!(
                "shm_bytes is {}, must be at least two tiles of {} bytes",
                self.shared_memory_bytes, self.tile_bytes
            ));
        }
        if self.trace_events == 0 {
            return fail("trace_events is 0, must be at least 1".to_owned());
        }
        if self.lanes > 64 {
            return fail(format!("lanes is {}, must be 1 to 64 (0 for the default)", self.lanes));
        }
        Ok(())
    }
}

type Setting = fn(&mut EngineConfig, &str) -> Result<(), String>;

fn number<T: FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("'{value}' is not a number that fits here"))
}

/// A number of bytes: `65536`, `64K`, `1M`, `1G`.
fn bytes(value: &str) -> Result<usize, String> {
    let (digits, shift) = match value.char_indices().last() {
        Some((at, 'k' | 'K')) => (&value[..at], 10),
        Some((at, 'm' | 'M')) => (&value[..at], 20),
        Some((at, 'g' | 'G')) => (&value[..at], 30),
        _ => (value, 0),
    };
    number::<usize>(digits)?
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("'{value}' is too large"))
}

fn seconds(value: &str) -> Result<Duration, String> {
    let seconds: f64 = number(value)?;
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("'{value}' seconds: {error}"))
}

fn put<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

fn directory(value: &str) -> Result<PathBuf, String> {
    if value.is_empty() { Err("a directory has a name".to_owned()) } else { Ok(value.into()) }
}

fn status(value: &str) -> Result<StatusChoice, String> {
    Ok(match value {
        "auto" => StatusChoice::Automatic,
        "off" => StatusChoice::Off,
        name => StatusChoice::Directory(directory(name)?),
    })
}

fn text(value: &str) -> Result<Option<String>, String> {
    Ok(Some(value.to_owned()))
}

fn algorithm(value: &str) -> Result<Option<Algorithm>, String> {
    match value {
        "auto" => Ok(None),
        name => name.parse().map(Some).map_err(|error| format!("{error}")),
    }
}

fn tile(value: &str) -> Result<u32, String> {
    bytes(value)?.try_into().map_err(|_| format!("'{value}' is too large"))
}

const SETTINGS: &[(&str, Setting)] = &[
    ("transport", |config, value| put(&mut config.transport, value.parse())),
    ("socket_ifname", |config, value| put(&mut config.interfaces, text(value))),
    ("host_id", |config, value| put(&mut config.host_id, Ok(value.to_owned()))),
    ("lanes", |config, value| put(&mut config.lanes, number(value))),
    ("algorithm", |config, value| put(&mut config.algorithm, algorithm(value))),
    ("tile_bytes", |config, value| put(&mut config.tile_bytes, tile(value))),
    ("window_tiles", |config, value| put(&mut config.window_tiles, number(value))),
    ("congestion_control", |config, value| put(&mut config.congestion_control, text(value))),
    ("socket_buffer_bytes", |config, value| {
        put(&mut config.socket_buffer_bytes, bytes(value).map(Some))
    }),
    ("shm_bytes", |config, value| put(&mut config.shared_memory_bytes, bytes(value))),
    ("silence_s", |config, value| put(&mut config.silence, seconds(value))),
    ("trace", |config, value| put(&mut config.trace, directory(value).map(Some))),
    ("trace_events", |config, value| put(&mut config.trace_events, number(value))),
    ("status", |config, value| put(&mut config.status, status(value))),
    ("timeout_s", |config, value| put(&mut config.timeout, seconds(value))),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_host_keep_few_tiles_under_way_over_tcp() {
        let job = |world_size, local_world_size, transport| EngineConfig {
            world_size,
            local_world_size,
            transport,
            ..EngineConfig::default()
        };
        assert_eq!(job(2, 2, TransportChoice::Tcp).window(), 4);
        assert_eq!(job(4, 4, TransportChoice::Tcp).window(), 2);
        assert_eq!(job(64, 64, TransportChoice::Tcp).window(), 2);
        assert_eq!(job(8, 4, TransportChoice::Tcp).window(), WINDOW_TILES, "two hosts");
        assert_eq!(job(4, 4, TransportChoice::default()).window(), WINDOW_TILES, "shared memory");
        let told = EngineConfig { window_tiles: 7, ..job(4, 4, TransportChoice::Tcp) };
        assert_eq!(told.window(), 7);
    }
}
