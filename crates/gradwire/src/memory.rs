//! The caller's memory, and how it is divided into chunks.

use gradwire_reduce::DataType;

/// A range of the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// First byte; any value where there are no bytes.
    pub pointer: *mut u8,
    /// Number of bytes.
    pub bytes: usize,
}

// SAFETY: a range is an address and a length; who reads or writes through it (the driver) does so
// under the promise made to `Communicator::submit`.
unsafe impl Send for Memory {}

impl Memory {
    /// No memory.
    pub const EMPTY: Memory = Memory { pointer: std::ptr::null_mut(), bytes: 0 };

    /// The memory of a slice that is only read.
    pub fn read_only<T: Element>(slice: &[T]) -> Memory {
        Memory { pointer: slice.as_ptr().cast_mut().cast(), bytes: size_of_val(slice) }
    }

    /// The memory of a slice.
    pub fn of<T: Element>(slice: &mut [T]) -> Memory {
        Memory { pointer: slice.as_mut_ptr().cast(), bytes: size_of_val(slice) }
    }

    /// Divides into `chunks` of near-equal length, each a multiple of the element; boundaries lie
    /// on multiples of 64 bytes where there is enough to share out.
    pub fn divide(self, chunks: usize, element: usize) -> Vec<Memory> {
        self.split(&chunk_lengths(self.bytes, chunks, element))
    }

    /// Divides into pieces of the given lengths, which make up the whole.
    pub fn split(self, lengths: &[usize]) -> Vec<Memory> {
        lengths
            .iter()
            .scan(0, |offset, &bytes| {
                let at = *offset;
                *offset += bytes;
                Some(Memory { pointer: self.pointer.wrapping_add(at), bytes })
            })
            .collect()
    }

    /// Divides into `chunks` of equal length; `None` if that leaves a rest.
    pub fn divide_evenly(self, chunks: usize, element: usize) -> Option<Vec<Memory>> {
        let bytes = self.bytes / chunks;
        (self.bytes.is_multiple_of(chunks) && bytes.is_multiple_of(element)).then(|| {
            (0..chunks)
                .map(|chunk| Memory { pointer: self.pointer.wrapping_add(chunk * bytes), bytes })
                .collect()
        })
    }
}

/// Lengths of the chunks of [`Memory::divide`].
fn chunk_lengths(bytes: usize, chunks: usize, element: usize) -> Vec<usize> {
    let grain = if bytes >= chunks * 64 { 64.max(element) } else { element };
    let grains = bytes / grain;
    let mut lengths: Vec<usize> = (0..chunks)
        .map(|chunk| (grains / chunks + usize::from(chunk < grains % chunks)) * grain)
        .collect();
    lengths[chunks - 1] += bytes % grain;
    lengths
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that tensors may be made of.
pub trait Element: Copy + sealed::Sealed {
    /// Its data type.
    const DTYPE: DataType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DataType = DataType::$dtype;
        }
    )*};
}

elements!(f32 => F32, f64 => F64, i8 => I8, u8 => U8, i16 => I16, i32 => I32, i64 => I64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_everything_in_order() {
        for bytes in [0, 4, 60, 64, 1000, 4096, 1 << 20] {
            for chunks in 1..=9 {
                let lengths = chunk_lengths(bytes, chunks, 4);
                assert_eq!(lengths.iter().sum::<usize>(), bytes, "{bytes} bytes, {chunks} chunks");
                assert!(lengths.iter().all(|length| length % 4 == 0));
                let longest = lengths.iter().max().unwrap();
                let shortest = lengths.iter().min().unwrap();
                assert!(longest - shortest <= 128, "{bytes} bytes, {chunks} chunks: {lengths:?}");
            }
        }
    }
}
