//! Tiles from the sender's lane to the receiver's memory, put together from both ranks' traces.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::intervals::Intervals;
use super::read::{Key, Tile, Traces};

/// Names a tile on its way: operation, sender, receiver, edge, number.
type Way = (Key, u32, u32, u32, u32);

/// When tiles were given to the sender's lane, by the ways that they went.
#[derive(Debug)]
pub struct Sends(HashMap<Way, i64>);

impl Sends {
    pub fn of(traces: &Traces) -> Self {
        let mut sends = HashMap::new();
        for trace in &traces.ranks {
            for tile in trace.tiles.iter().filter(|tile| tile.sent) {
                let way = (tile.key, trace.about.rank, tile.peer, tile.edge, tile.tile);
                sends.insert(way, tile.handed);
            }
        }
        Sends(sends)
    }

    /// When a tile that `rank` has received was given to its sender's lane, if the sender has noted that.
    pub fn start_of(&self, rank: u32, received: &Tile) -> Option<i64> {
        let way = (received.key, received.peer, rank, received.edge, received.tile);
        self.0.get(&way).copied().filter(|start| *start < received.end)
    }
}

/// Traffic from one rank to another.
#[derive(Clone, Debug, Serialize)]
pub struct LinkUse {
    pub from: u32,
    pub to: u32,
    pub bytes: u64,
    /// Seconds with a tile on the wire.
    pub busy_s: f64,
    pub bytes_per_s: f64,
}

/// What a link has carried, and when.
#[derive(Debug, Default)]
struct Carried {
    bytes: u64,
    busy: Vec<(i64, i64)>,
}

/// All links by speed, the slowest first.
pub fn links(traces: &Traces, sends: &Sends) -> Vec<LinkUse> {
    let mut tiles: BTreeMap<(u32, u32), Carried> = BTreeMap::new();
    for trace in &traces.ranks {
        let rank = trace.about.rank;
        for tile in trace.tiles.iter().filter(|tile| !tile.sent) {
            let link = tiles.entry((tile.peer, rank)).or_default();
            link.bytes += tile.bytes;
            let start = sends.start_of(rank, tile).unwrap_or(tile.start);
            link.busy.push((start.min(tile.start), tile.end));
        }
    }
    let mut links: Vec<LinkUse> = tiles
        .into_iter()
        .filter(|(_, carried)| carried.bytes > 0)
        .map(|((from, to), Carried { bytes, busy })| {
            let busy_s = Intervals::union(busy).total().max(1) as f64 / 1e9;
            LinkUse { from, to, bytes, busy_s, bytes_per_s: bytes as f64 / busy_s }
        })
        .collect();
    links.sort_by(|a, b| a.bytes_per_s.total_cmp(&b.bytes_per_s));
    links
}

/// The slowest link of those that carry a tenth of what the busiest does at least: the speed of
/// others is that of small messages, which says little about the link.
pub fn slowest(links: &[LinkUse]) -> Option<&LinkUse> {
    let most = links.iter().map(|link| link.bytes).max()?;
    links.iter().find(|link| 10 * link.bytes >= most)
}
