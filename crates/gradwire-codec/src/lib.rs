//! Codecs that shrink gradients on their way between workers.
//!
//! Over a slow network the bytes of a gradient cost more than anything that is done to them. A
//! [`Codec`] turns `f32` values into fewer bytes and back, fast enough to gain from 10 Gbit/s
//! links: [`Codec::encode`], [`Codec::decode`], and, fused with the reduction,
//! [`Codec::decode_add`]. The size on the wire follows from the number of values alone, so that a
//! schedule can be laid out before there are any. [`sparse`] has forms that leave values out.
//!
//! ```
//! use gradwire_codec::Codec;
//!
//! let codec: Codec = "int8".parse()?;
//! let gradient: Vec<f32> = (0..1000).map(|i| (i as f32).sin()).collect();
//! let mut wire = vec![0; codec.encoded_bytes(gradient.len())];
//! codec.encode(&gradient, 42, &mut wire);
//! assert!(wire.len() < gradient.len() * 4 / 3);
//!
//! let mut sum = vec![1.0; gradient.len()];
//! codec.decode_add(&wire, None, &mut sum, Some(2)); // (1 + decoded) / 2
//! assert!((sum[2] - (1.0 + 2f32.sin()) / 2.0).abs() < 0.01);
//! # Ok::<(), gradwire_codec::ParseCodecError>(())
//! ```
//!
//! Nothing here does I/O, starts threads, reads a clock or keeps state between calls.
//!
//! # Codecs
//!
//! Bits of an element include the scales. The error is |x − decoded|² / |x|², measured by the
//! example `relative_error` on half a million values whose rows differ in scale (a lognormal factor)
//! and whose elements are Gaussian, Student-t with 5 degrees of freedom, or Gaussian times lognormal.
//!
//! | name | block | bits | Gaussian | Student-t | lognormal |
//! |---|---|---|---|---|---|
//! | `bf16` | – | 16 | 0.00027 % | 0.00030 % | 0.00034 % |
//! | `fp16` | – | 16 | 0.000005 % | 0.000005 % | 0.000005 % |
//! | `int8` | 256 | 8.062 | 0.0050 % | 0.018 % | 0.043 % |
//! | `int6` | 128 | 6.125 | 0.070 % | 0.064 % | 0.056 % |
//! | `int5` | 32 | 5.312 | 0.207 % | 0.191 % | 0.140 % |
//! | `int4` | 32 | 4.312 | 0.649 % | 0.616 % | 0.542 % |
//! | `int2` | 128 | 2.125 | 11.7 % | 11.2 % | 10.9 % |
//! | `fp8_e4m3` | 128 | 8.125 | 0.067 % | 0.058 % | 0.042 % |
//! | `fp8_e5m2` | 128 | 8.125 | 0.265 % | 0.230 % | 0.171 % |
//! | `sign1` | 128 | 1.125 | 36.5 % | 48.2 % | 75.7 % |
//! | `int8+hadamard` | 256 | 8.062 | 0.0049 % | 0.0044 % | 0.0042 % |
//! | `int6+no-hadamard` | 128 | 6.125 | 0.072 % | 0.193 % | 0.431 % |
//!
//! Options follow the name: a block size of 32 to 512 (`int8/64`), `+hadamard` or `+no-hadamard`
//! (smoothing: a randomized Hadamard transform of each block before it is quantized), `+stochastic`
//! or `+nearest`, `+supergroup` or `+perblock` (how scales are stored), `+minmax` (from the least
//! value to the greatest), and for `int4` and `int2` `+uniform` or `+grid`.
//!
//! ## Why `int4` is what it is
//!
//! Uneven levels with a signed scale in smoothed blocks of 32, their scales in super-groups, have less
//! than half the error of plain `int4/128` on Gaussian values and a tenth of it on heavy-tailed ones.
//! Of the combinations within 4.5 bits only `int4+perblock` has less error, by 0.5 % of it at most,
//! for 0.19 bits more. Each other part earns its place:
//!
//! | int4 variant | bits | Gaussian | Student-t | lognormal |
//! |---|---|---|---|---|
//! | `int4` | 4.312 | 0.649 % | 0.616 % | 0.542 % |
//! | `int4+perblock` | 4.5 | 0.649 % | 0.614 % | 0.540 % |
//! | `int4/64` | 4.156 | 0.762 % | 0.744 % | 0.646 % |
//! | `int4/128` | 4.078 | 0.866 % | 0.802 % | 0.747 % |
//! | `int4+uniform` | 4.312 | 0.942 % | 0.866 % | 0.653 % |
//! | `int4+no-hadamard` | 4.312 | 0.671 % | 0.923 % | 1.24 % |
//! | `int4/128+uniform+perblock+no-hadamard` | 4.125 | 1.42 % | 3.90 % | 5.27 % |
//! | `int4+stochastic` | 4.312 | 1.89 % | 1.73 % | 1.32 % |
//! | `int4/128+minmax` | 4.375 | 1.02 % | 2.07 % | 3.87 % |
//!
//! # What is promised
//!
//! * **The same bits everywhere.** Every [`InstructionSet`] gives the bits of [`mod@reference`]; only
//!   the payload of a NaN in a sum is not defined. [`Codec::encode_in_place`] leaves what
//!   [`Codec::decode`] gives others.
//! * **Bounds.** Of integers, min-max and fp8, rounding to nearest errs by half a step at most and
//!   stochastic rounding by one; of smoothed blocks this holds for the transformed values. A step is
//!   the block's largest magnitude (range) over the number of levels, rounded up to what the wire
//!   form of scales can say: by 2⁻⁷ of it, or one 254th of the super-group's.
//! * **Unbiased** where stochastic: the mean over seeds is the value.
//! * **Zeros give zeros**; blocks below about 1e-28 give zeros or values as small, never NaN.
//! * **NaN and infinities** make their whole block NaN, never silently finite; bf16 and fp16 keep
//!   them as they are.
//! * **Large values** do not become infinite in block codecs, up to `f32::MAX` (smoothed: up to a
//!   16th of it, because smoothing mixes the errors of a block). fp16 does overflow, at 65,520, and
//!   bf16 at 3.3953e38; nothing saturates. Sums of decoded values are in `f32`; where they are
//!   encoded again, divide before the sum.
//! * **Any bytes decode** without a panic, to values without meaning if no encoder made them.

mod block;
mod codec;
mod format;
mod grid;
mod instructions;
mod layout;
mod linear;
mod name;
mod planes;
mod quantize;
mod random;
mod scale;
#[cfg(target_arch = "x86_64")]
mod shortcut;
#[cfg(target_arch = "x86_64")]
mod smooth_groups;
#[cfg(target_arch = "x86_64")]
mod smooth_integers;
mod smoothing;
mod target;

pub mod reference;
pub mod sparse;

pub use codec::BoundCodec;
pub use format::{BlockCodec, Codec, Format, InvalidCodec, Rounding, Scale};
pub use instructions::InstructionSet;
pub use name::ParseCodecError;
