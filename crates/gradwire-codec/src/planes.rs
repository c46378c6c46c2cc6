//! Codes of a few bits, packed in planes: with `b` bits to a code and `8 / b` codes to a byte,
//! byte `i` of a plane holds codes `i`, `i + bytes`, `i + 2 bytes`, … from its low bits up. Then
//! packing and unpacking are whole-vector shifts. Widths that do not divide 8 take two planes: the
//! low 4 bits of all codes, then the rest.
//!
//! All lengths are multiples of 32 codes.

/// Packs codes below 2^`bits` into `packed`, which holds `codes.len() * bits / 8` bytes.
#[inline(always)]
pub(crate) fn pack(bits: u8, codes: &[u8], packed: &mut [u8]) {
    match bits {
        8 => packed.copy_from_slice(codes),
        4 => pack_nibbles(codes, packed),
        2 => pack_plane::<2>(codes, 0, packed),
        1 => pack_plane::<1>(codes, 0, packed),
        _ => {
            let (low, high) = packed.split_at_mut(codes.len() / 2);
            pack_nibbles(codes, low);
            if bits == 5 {
                pack_plane::<1>(codes, 4, high);
            } else {
                pack_plane::<2>(codes, 4, high);
            }
        }
    }
}

/// Undoes [`pack`].
#[inline(always)]
pub(crate) fn unpack(bits: u8, packed: &[u8], codes: &mut [u8]) {
    match bits {
        8 => codes.copy_from_slice(packed),
        4 => unpack_nibbles(packed, codes),
        2 => unpack_plane::<2>(packed, 0, codes),
        1 => unpack_plane::<1>(packed, 0, codes),
        _ => {
            let (low, high) = packed.split_at(codes.len() / 2);
            unpack_nibbles(low, codes);
            if bits == 5 {
                unpack_plane::<1>(high, 4, codes);
            } else {
                unpack_plane::<2>(high, 4, codes);
            }
        }
    }
}

#[inline(always)]
fn pack_nibbles(codes: &[u8], packed: &mut [u8]) {
    let (low, high) = codes.split_at(packed.len());
    let (low, high) = (low.as_chunks::<16>().0, high.as_chunks::<16>().0);
    for ((bytes, low), high) in packed.as_chunks_mut::<16>().0.iter_mut().zip(low).zip(high) {
        let (low, high, mut packed) = (*low, *high, [0; 16]);
        for index in 0..16 {
            packed[index] = (low[index] & 15) | (high[index] << 4);
        }
        *bytes = packed;
    }
}

#[inline(always)]
fn unpack_nibbles(packed: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(packed.len());
    let (low, high) = (low.as_chunks_mut::<16>().0, high.as_chunks_mut::<16>().0);
    for ((bytes, low), high) in packed.as_chunks::<16>().0.iter().zip(low).zip(high) {
        let bytes = *bytes;
        *low = bytes.map(|byte| byte & 15);
        *high = bytes.map(|byte| byte >> 4);
    }
}

/// Packs bits `shift` to `shift + BITS` of the codes, four bytes at once in a word: no bit crosses
/// from one byte of the word to the next.
#[inline(always)]
fn pack_plane<const BITS: usize>(codes: &[u8], shift: u32, packed: &mut [u8]) {
    let codes = codes.as_chunks::<4>().0;
    let stride = packed.len() / 4;
    let mask = (u32::from(u8::MAX) >> (8 - BITS)) * 0x0101_0101;
    for (word, bytes) in packed.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let mut plane = 0;
        for slot in 0..8 / BITS {
            let four = u32::from_le_bytes(codes[slot * stride + word]);
            plane |= ((four >> shift) & mask) << (slot * BITS);
        }
        *bytes = plane.to_le_bytes();
    }
}

/// Sets (for `shift` 0) or adds bits `shift` to `shift + BITS` of the codes.
#[inline(always)]
fn unpack_plane<const BITS: usize>(packed: &[u8], shift: u32, codes: &mut [u8]) {
    let codes = codes.as_chunks_mut::<4>().0;
    let stride = packed.len() / 4;
    let mask = (u32::from(u8::MAX) >> (8 - BITS)) * 0x0101_0101;
    for (word, bytes) in packed.as_chunks::<4>().0.iter().enumerate() {
        let plane = u32::from_le_bytes(*bytes);
        for slot in 0..8 / BITS {
            let four = &mut codes[slot * stride + word];
            let bits = ((plane >> (slot * BITS)) & mask) << shift;
            let others = if shift == 0 { 0 } else { u32::from_le_bytes(*four) };
            *four = (others | bits).to_le_bytes();
        }
    }
}
