//! Memory for the tensors that are moved.

use std::ops::Range;

use gradwire::Memory;

const PAGE: usize = 4096;

/// Bytes that start on a page.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    range: Range<usize>,
}

impl Buffer {
    /// `length` bytes, all of them written once so that the memory is there.
    pub fn new(length: usize) -> Self {
        let mut bytes = vec![0; length + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        bytes[start..start + length].fill(1);
        Buffer { bytes, range: start..start + length }
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.range.clone()]
    }

    /// The first `length` bytes as the engine takes them.
    pub fn memory(&mut self, length: usize) -> Memory {
        Memory::of(&mut self.bytes()[..length])
    }
}
