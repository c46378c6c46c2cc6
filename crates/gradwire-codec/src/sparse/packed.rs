//! Values with their places, packed by pages of 65,536 elements, so that an index takes two bytes:
//! the count of each page (u32), then all indices (u16, ascending within a page), then all values.
//! The size depends on the numbers of elements and values alone.

use super::SparseError;

/// Elements that one page covers.
const PAGE: usize = 1 << 16;
const COUNT_BYTES: usize = 4;
const INDEX_BYTES: usize = 2;

/// How the values of a sparse form are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SparseValue {
    /// As they are.
    F32,
    /// Rounded to bf16, to nearest even.
    Bf16,
}

impl SparseValue {
    fn bytes(self) -> usize {
        match self {
            SparseValue::F32 => 4,
            SparseValue::Bf16 => 2,
        }
    }
}

/// Bytes of `k` of `elements` values.
pub fn sparse_bytes(elements: usize, k: usize, value: SparseValue) -> usize {
    elements.div_ceil(PAGE) * COUNT_BYTES + k * (INDEX_BYTES + value.bytes())
}

/// Writes the values at `indices` (ascending, as [`top_k`](super::top_k) gives them) to `wire`.
///
/// # Panics
///
/// If `wire` does not hold [`sparse_bytes`] of them, or the indices do not ascend or lie outside of
/// the values.
pub fn encode_sparse(values: &[f32], indices: &[u32], value: SparseValue, wire: &mut [u8]) {
    let needed = sparse_bytes(values.len(), indices.len(), value);
    assert_eq!(wire.len(), needed, "{} sparse values take {needed} bytes", indices.len());
    assert!(indices.is_sorted_by(|a, b| a < b), "the indices of sparse values must ascend");
    let pages = values.len().div_ceil(PAGE);
    let (counts, rest) = wire.split_at_mut(pages * COUNT_BYTES);
    let (places, stored) = rest.split_at_mut(indices.len() * INDEX_BYTES);
    let mut remaining = indices;
    for (page, count) in counts.as_chunks_mut::<COUNT_BYTES>().0.iter_mut().enumerate() {
        let here = remaining.partition_point(|index| *index as usize / PAGE <= page);
        *count = (here as u32).to_le_bytes();
        remaining = &remaining[here..];
    }
    for (place, index) in places.as_chunks_mut::<INDEX_BYTES>().0.iter_mut().zip(indices) {
        *place = (*index as u16).to_le_bytes();
    }
    let chosen = indices.iter().map(|index| values[*index as usize]);
    match value {
        SparseValue::F32 => {
            for (stored, value) in stored.as_chunks_mut::<4>().0.iter_mut().zip(chosen) {
                *stored = value.to_le_bytes();
            }
        }
        SparseValue::Bf16 => {
            for (stored, value) in stored.as_chunks_mut::<2>().0.iter_mut().zip(chosen) {
                *stored = crate::linear::to_bf16(value).to_le_bytes();
            }
        }
    }
}

/// Adds the values of a sparse form to the elements of `target` that they belong to. How many they
/// are follows from the length. All is checked first: after an error the target is as it was.
///
/// # Errors
///
/// If the bytes are not what [`encode_sparse`] makes of as many values as the target has.
pub fn decode_sparse_add(
    wire: &[u8],
    value: SparseValue,
    target: &mut [f32],
) -> Result<(), SparseError> {
    let (elements, given) = (target.len(), wire.len());
    let pages = elements.div_ceil(PAGE);
    let k = given.saturating_sub(pages * COUNT_BYTES) / (INDEX_BYTES + value.bytes());
    let expected = sparse_bytes(elements, k, value);
    if given != expected {
        return Err(SparseError::Length { given, expected });
    }
    let (counts, rest) = wire.split_at(pages * COUNT_BYTES);
    let (places, stored) = rest.split_at(k * INDEX_BYTES);
    let counts = counts.as_chunks::<COUNT_BYTES>().0;
    let places = places.as_chunks::<INDEX_BYTES>().0;
    check(counts, places, elements)?;
    let mut first = 0;
    for (count, target) in counts.iter().zip(target.chunks_mut(PAGE)) {
        let count = u32::from_le_bytes(*count) as usize;
        for (offset, place) in places[first..first + count].iter().enumerate() {
            target[usize::from(u16::from_le_bytes(*place))] += load(stored, first + offset, value);
        }
        first += count;
    }
    Ok(())
}

/// Whether counts add up, and indices ascend and lie inside of the target.
fn check(counts: &[[u8; 4]], places: &[[u8; 2]], elements: usize) -> Result<(), SparseError> {
    let given = counts.iter().map(|count| u64::from(u32::from_le_bytes(*count))).sum::<u64>();
    if given != places.len() as u64 {
        let given = usize::try_from(given).unwrap_or(usize::MAX);
        return Err(SparseError::Count { given, expected: places.len() });
    }
    let mut rest = places;
    for (page, count) in counts.iter().enumerate() {
        let (here, after) = rest.split_at(u32::from_le_bytes(*count) as usize);
        rest = after;
        let mut least = 0;
        for place in here {
            let place = usize::from(u16::from_le_bytes(*place));
            let index = page * PAGE + place;
            if index >= elements {
                return Err(SparseError::Index { index, elements });
            }
            if place < least {
                return Err(SparseError::Order(index));
            }
            least = place + 1;
        }
    }
    Ok(())
}

fn load(stored: &[u8], index: usize, value: SparseValue) -> f32 {
    match value {
        SparseValue::F32 => f32::from_le_bytes(stored.as_chunks::<4>().0[index]),
        SparseValue::Bf16 => {
            let bits = u16::from_le_bytes(stored.as_chunks::<2>().0[index]);
            f32::from_bits(u32::from(bits) << 16)
        }
    }
}
