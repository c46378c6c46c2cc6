//! Blocks that are not all zero, as they are: lossless, and for free where a gradient has rows of
//! zeros (embeddings, experts that got no token, frozen parameters). After OmniReduce (SIGCOMM 2021).

use super::SparseError;

/// Which blocks of so many values hold anything but zeros: bit `i % 8` of byte `i / 8` says it of
/// block `i`. −0 counts as zero, NaN does not. The last block may be short.
///
/// # Panics
///
/// If `block` is 0.
pub fn non_zero_blocks(values: &[f32], block: usize) -> Vec<u8> {
    let mut bitmap = vec![0; values.len().div_ceil(block).div_ceil(8)];
    for (index, block) in values.chunks(block).enumerate() {
        bitmap[index / 8] |= u8::from(holds_anything(block)) << (index % 8);
    }
    bitmap
}

/// Whether any value is not zero.
fn holds_anything(block: &[f32]) -> bool {
    let (chunks, rest) = block.as_chunks::<32>();
    // A few at a time, so that a block that is not zero is soon done with.
    let any = |values: &[f32]| values.iter().fold(0, |any, value| any | value.to_bits() << 1) != 0;
    chunks.iter().any(|chunk| any(chunk)) || any(rest)
}

/// Ranges of the elements of the blocks that a bitmap names.
fn ranges(
    bitmap: &[u8],
    elements: usize,
    block: usize,
) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    (0..elements.div_ceil(block))
        .filter(|index| bitmap[index / 8] >> (index % 8) & 1 == 1)
        .map(move |index| index * block..elements.min((index + 1) * block))
}

/// Bytes of the blocks that a bitmap names, the bitmap included.
///
/// # Panics
///
/// If `block` is 0 or the bitmap is too short for so many elements.
pub fn packed_blocks_bytes(bitmap: &[u8], elements: usize, block: usize) -> usize {
    bitmap.len() + ranges(bitmap, elements, block).map(|range| 4 * range.len()).sum::<usize>()
}

/// Writes the bitmap and then the blocks that it names to `wire`.
///
/// # Panics
///
/// If `block` is 0, the bitmap is not one of so many blocks, or `wire` does not hold
/// [`packed_blocks_bytes`].
pub fn pack_blocks(values: &[f32], block: usize, bitmap: &[u8], wire: &mut [u8]) {
    let bytes = values.len().div_ceil(block).div_ceil(8);
    assert_eq!(bitmap.len(), bytes, "the bitmap of the blocks has {bytes} bytes");
    let needed = packed_blocks_bytes(bitmap, values.len(), block);
    assert_eq!(wire.len(), needed, "the blocks take {needed} bytes");
    let (head, stored) = wire.split_at_mut(bytes);
    head.copy_from_slice(bitmap);
    let chosen = ranges(bitmap, values.len(), block).flat_map(|range| &values[range]);
    for (stored, value) in stored.as_chunks_mut::<4>().0.iter_mut().zip(chosen) {
        *stored = value.to_le_bytes();
    }
}

/// Adds packed blocks to `target`. All is checked first: after an error the target is as it was.
///
/// # Errors
///
/// If the bytes are not what [`pack_blocks`] makes of as many values as the target has.
///
/// # Panics
///
/// If `block` is 0.
pub fn unpack_blocks_add(wire: &[u8], block: usize, target: &mut [f32]) -> Result<(), SparseError> {
    let (elements, given) = (target.len(), wire.len());
    let blocks = elements.div_ceil(block);
    let bytes = blocks.div_ceil(8);
    let (bitmap, stored) =
        wire.split_at_checked(bytes).ok_or(SparseError::Length { given, expected: bytes })?;
    if let Some(last) = bitmap.last()
        && blocks % 8 != 0
        && last >> (blocks % 8) != 0
    {
        let index = (8 * bytes - 1) * block;
        return Err(SparseError::Index { index, elements });
    }
    let expected = packed_blocks_bytes(bitmap, elements, block);
    if given != expected {
        return Err(SparseError::Length { given, expected });
    }
    let mut stored = stored.as_chunks::<4>().0;
    for range in ranges(bitmap, elements, block) {
        let (here, after) = stored.split_at(range.len());
        stored = after;
        for (sum, value) in target[range].iter_mut().zip(here) {
            *sum += f32::from_le_bytes(*value);
        }
    }
    Ok(())
}
