//! Buffers for tiles that wait and for scratch, used again and again.

use rustc_hash::FxHashMap;

/// What the pool keeps for later, at most.
const MAX_KEPT_BYTES: usize = 64 << 20;

/// Free buffers by length.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: FxHashMap<usize, Vec<Box<[u8]>>>,
    kept_bytes: usize,
}

impl Pool {
    /// A buffer of exactly `bytes` bytes with unspecified contents.
    pub fn take(&mut self, bytes: usize) -> Box<[u8]> {
        match self.free.get_mut(&bytes).and_then(Vec::pop) {
            Some(buffer) => {
                self.kept_bytes -= bytes;
                buffer
            }
            None => vec![0; bytes].into_boxed_slice(),
        }
    }

    /// Takes a buffer back.
    pub fn put(&mut self, buffer: Box<[u8]>) {
        if self.kept_bytes + buffer.len() <= MAX_KEPT_BYTES {
            self.kept_bytes += buffer.len();
            self.free.entry(buffer.len()).or_default().push(buffer);
        }
    }
}
