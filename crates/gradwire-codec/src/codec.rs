//! The methods that encode and decode, and the same for a chosen instruction set.

use crate::block;
use crate::format::Codec;
use crate::instructions::InstructionSet;
use crate::layout::Layout;
use crate::linear;
use crate::target::Target;

/// A codec bound to an instruction set, which must be available; [`Codec`]'s own methods take the
/// best one. All of them give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundCodec {
    codec: Codec,
    set: InstructionSet,
}

impl Codec {
    /// The codec's kernels for one instruction set.
    ///
    /// # Panics
    ///
    /// If this processor lacks it.
    pub fn with_instruction_set(self, set: InstructionSet) -> BoundCodec {
        assert!(set.is_available(), "this processor does not have the instructions of {set}");
        BoundCodec { codec: self, set }
    }

    fn bound(self) -> BoundCodec {
        self.with_instruction_set(InstructionSet::best())
    }

    /// Encodes `values` into `wire`, which holds [`Codec::encoded_bytes`] of them. What stochastic
    /// rounding does depends on `seed` and the index of a value alone.
    ///
    /// A block with a NaN or an infinity becomes all NaN; one whose values are below about 1e-30
    /// becomes all zero.
    ///
    /// # Panics
    ///
    /// If `wire` has another length, or the codec is a combination that
    /// [`BlockCodec::check`](crate::BlockCodec::check) denies.
    pub fn encode(self, values: &[f32], seed: u64, wire: &mut [u8]) {
        self.bound().encode(values, seed, wire);
    }

    /// As [`Codec::encode`], and writes `values − decoded` to `error`: not finite where a value or
    /// what it is decoded to is not.
    ///
    /// # Panics
    ///
    /// As [`Codec::encode`], and if `error` is not as long as `values`.
    pub fn encode_with_error(self, values: &[f32], seed: u64, wire: &mut [u8], error: &mut [f32]) {
        self.bound().encode_with_error(values, seed, wire, error);
    }

    /// As [`Codec::encode`], and replaces `values` by what decoding gives: an owner's copy, the
    /// same bits as on all who decode.
    ///
    /// # Panics
    ///
    /// As [`Codec::encode`].
    pub fn encode_in_place(self, values: &mut [f32], seed: u64, wire: &mut [u8]) {
        self.bound().encode_in_place(values, seed, wire);
    }

    /// Decodes `wire` to `values`. Bytes that no encoder made give values without meaning.
    ///
    /// # Panics
    ///
    /// If `wire` does not hold [`Codec::encoded_bytes`] of the values, or the codec is a
    /// combination that [`BlockCodec::check`](crate::BlockCodec::check) denies.
    pub fn decode(self, wire: &[u8], values: &mut [f32]) {
        self.bound().decode(wire, values);
    }

    /// Decodes and adds: `target = local + decoded`, or `target + decoded` without `local`; divided
    /// by `finish` afterwards if that is given.
    ///
    /// # Panics
    ///
    /// As [`Codec::decode`], and if `local` is not as long as `target`.
    pub fn decode_add(
        self,
        wire: &[u8],
        local: Option<&[f32]>,
        target: &mut [f32],
        finish: Option<u32>,
    ) {
        self.bound().decode_add(wire, local, target, finish);
    }
}

impl BoundCodec {
    /// As [`Codec::encode`].
    ///
    /// # Panics
    ///
    /// As [`Codec::encode`].
    pub fn encode(self, values: &[f32], seed: u64, wire: &mut [u8]) {
        self.check_wire(values.len(), wire);
        // SAFETY: the instruction set was found to be available.
        unsafe {
            match self.layout(values.len()) {
                Some(layout) => block::encode(self.set, &layout, values, seed, wire),
                None => linear::encode(self.set, self.codec, values, wire),
            }
        }
    }

    /// As [`Codec::encode_with_error`].
    ///
    /// # Panics
    ///
    /// As [`Codec::encode_with_error`].
    pub fn encode_with_error(self, values: &[f32], seed: u64, wire: &mut [u8], error: &mut [f32]) {
        self.check_wire(values.len(), wire);
        let (count, errors) = (values.len(), error.len());
        assert_eq!(errors, count, "{count} values have as many errors, not {errors}");
        // SAFETY: the instruction set was found to be available.
        unsafe {
            match self.layout(count) {
                Some(layout) => {
                    block::encode_with_error(self.set, &layout, values, seed, wire, error);
                }
                None => {
                    linear::encode(self.set, self.codec, values, wire);
                    linear::subtract(self.set, self.codec, values, wire, error);
                }
            }
        }
    }

    /// As [`Codec::encode_in_place`].
    ///
    /// # Panics
    ///
    /// As [`Codec::encode`].
    pub fn encode_in_place(self, values: &mut [f32], seed: u64, wire: &mut [u8]) {
        self.check_wire(values.len(), wire);
        // SAFETY: the instruction set was found to be available.
        unsafe {
            match self.layout(values.len()) {
                Some(layout) => block::encode_in_place(self.set, &layout, values, seed, wire),
                None => {
                    linear::encode(self.set, self.codec, values, wire);
                    linear::decode(self.set, self.codec, wire, Target::Store(values));
                }
            }
        }
    }

    /// As [`Codec::decode`].
    ///
    /// # Panics
    ///
    /// As [`Codec::decode`].
    pub fn decode(self, wire: &[u8], values: &mut [f32]) {
        self.check_wire(values.len(), wire);
        self.decode_to(wire, values.len(), Target::Store(values));
    }

    /// As [`Codec::decode_add`].
    ///
    /// # Panics
    ///
    /// As [`Codec::decode_add`].
    pub fn decode_add(
        self,
        wire: &[u8],
        local: Option<&[f32]>,
        target: &mut [f32],
        finish: Option<u32>,
    ) {
        let count = target.len();
        self.check_wire(count, wire);
        let locals = local.map_or(count, <[f32]>::len);
        assert_eq!(locals, count, "{count} sums need as many local values, not {locals}");
        let divisor = finish.map(|ranks| ranks as f32);
        self.decode_to(wire, count, Target::Add { local, target, divisor });
    }

    fn decode_to(self, wire: &[u8], count: usize, target: Target<'_>) {
        // SAFETY: the instruction set was found to be available.
        unsafe {
            match self.layout(count) {
                Some(layout) => block::decode(self.set, &layout, wire, target),
                None => linear::decode(self.set, self.codec, wire, target),
            }
        }
    }

    fn layout(self, elements: usize) -> Option<Layout> {
        match self.codec {
            Codec::Bf16 | Codec::F16 => None,
            Codec::Block(block) => Some(Layout::new(block, elements)),
        }
    }

    fn check_wire(self, elements: usize, wire: &[u8]) {
        let (needed, given) = (self.codec.encoded_bytes(elements), wire.len());
        assert_eq!(
            given, needed,
            "{elements} values in {} take {needed} bytes, not {given}",
            self.codec
        );
    }
}
