//! What gradwire's exchange between hosts takes, in closed form.
//!
//! The engine's choice of algorithm, its tiles and its processors as the driven network has them
//! ([`crate::network`]; `tests/closed_forms.rs` holds one against the other). Whichever of wire and
//! processor is slower is kept busy while a chunk takes longer than its first tile needs to get on;
//! otherwise each message waits for the one before.

use gradwire_schedule::Algorithm;

/// Bytes of a tile.
const TILE: f64 = 131_072.0;
/// Most ranks that exchange chunks each with each.
const DIRECT_RANKS: u32 = 8;
/// Smallest bytes a rank for which a few ranks use a ring instead.
const DIRECT_BYTES: f64 = 131_072.0;
/// Smallest bytes a rank for which many ranks use a ring instead of halving and doubling.
const RING_BYTES: f64 = 16_384.0;

/// A reduce-scatter and an all-gather among ranks, each on a host of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Exchange {
    /// Ranks.
    pub ranks: u32,
    /// Bytes of each rank's tensor.
    pub bytes: f64,
    /// Seconds for each byte of the tensor on a rank's share of the network.
    pub wire: f64,
    /// Seconds until the first byte is there.
    pub latency: f64,
    /// Seconds of a processor for each byte that it reduces.
    pub reduce: f64,
    /// Seconds of a processor for each frame.
    pub frame: f64,
    /// Direct or a ring; the engine's choice if `None`.
    pub algorithm: Option<Algorithm>,
}

impl Exchange {
    /// Seconds of both halves, one after the other.
    pub fn both(&self) -> f64 {
        if self.ranks < 2 {
            return 0.0;
        }
        let (scatter, gather) = (self.busy(true), self.busy(false));
        // Where the processor is the slower one, the wire carries what is gathered while the last
        // chunk is reduced, first by first tile. That it gains twice the time for which it is free,
        // but no more than a chunk's, was read off the driven network.
        let slower = self.slower(true);
        let ahead = (self.chunk() - 2.0 * self.tile()).max(0.0);
        let spare = (2.0 * (slower - self.wire)).clamp(0.0, slower) * ahead;
        let processor = self.moved() * (self.processor(true) + self.processor(false));
        let waits = (self.rounds() - 1.0) * (self.stall(true) + self.stall(false));
        (scatter + gather - spare).max(processor) + waits + self.gap() + self.tail(false)
    }

    /// Seconds of the half that reduces, or of the one that gathers, by itself.
    pub fn half(&self, reduces: bool) -> f64 {
        if self.ranks < 2 {
            return 0.0;
        }
        let waits = (self.rounds() - 1.0) * self.stall(reduces);
        self.busy(reduces) + waits + self.tail(reduces)
    }

    fn chunk(&self) -> f64 {
        self.bytes / f64::from(self.ranks)
    }

    fn tile(&self) -> f64 {
        self.chunk().min(TILE)
    }

    /// Bytes that a rank sends in a half.
    fn moved(&self) -> f64 {
        f64::from(self.ranks - 1) * self.chunk()
    }

    /// Seconds of a processor for each byte: frames hold a tile, or a chunk that is smaller.
    fn processor(&self, reduces: bool) -> f64 {
        let per_byte = if reduces { self.reduce } else { 0.0 };
        per_byte + self.frame / self.tile()
    }

    /// Seconds for each byte where it takes longest.
    fn slower(&self, reduces: bool) -> f64 {
        (self.crowding() * self.wire).max(self.processor(reduces))
    }

    fn busy(&self, reduces: bool) -> f64 {
        self.moved() * self.slower(reduces)
    }

    /// Seconds from a tile's last byte on the wire until it is applied. Where all send to all, tiles
    /// of all peers arrive together and are applied one by one.
    fn tail(&self, reduces: bool) -> f64 {
        let together = if self.is_direct() { f64::from(self.ranks - 1) } else { 1.0 };
        self.latency + together * self.tile() * self.processor(reduces)
    }

    /// Seconds that a message waits for the first tile of the one before.
    fn stall(&self, reduces: bool) -> f64 {
        (self.tile() * self.wire + self.tail(reduces) - self.chunk() * self.slower(reduces))
            .max(0.0)
    }

    /// Seconds between the halves in which nothing is under way: the first tile is not reduced yet.
    fn gap(&self) -> f64 {
        let first = self.moved() / self.chunk() * self.tile() * self.wire + self.tail(true);
        (first - self.busy(true)).max(0.0)
    }

    /// Messages that are waited for in sequence.
    fn rounds(&self) -> f64 {
        let ranks = f64::from(self.ranks);
        if self.is_direct() {
            1.0
        } else if self.is_ring() {
            ranks - 1.0
        } else {
            ranks.log2().ceil()
        }
    }

    fn is_direct(&self) -> bool {
        match self.algorithm {
            Some(algorithm) => algorithm == Algorithm::Direct,
            None => self.ranks == 2 || self.ranks <= DIRECT_RANKS && self.chunk() < DIRECT_BYTES,
        }
    }

    fn is_ring(&self) -> bool {
        self.algorithm.map_or(self.chunk() >= RING_BYTES, |it| it == Algorithm::Ring)
    }

    /// Rounds of halving and doubling have different partners: tiles of the next round share the
    /// link with those that the slowest partner still waits for. Read off the driven network.
    fn crowding(&self) -> f64 {
        if self.is_direct() || self.is_ring() { 1.0 } else { 1.45 }
    }
}
