//! Names of codecs: `int8`, `int4/64+stochastic`, …

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::format::{BlockCodec, Codec, Format, InvalidCodec, Rounding, Scale};

/// Why a text names no codec.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseCodecError {
    /// No codec has this name.
    #[error("there is no codec {0:?}; there are {names}", names = Codec::NAMES.join(", "))]
    Name(String),
    /// The block size is no number.
    #[error("{0:?} is no block size: after \"/\" stands 32, 64, 128, 256 or 512")]
    Block(String),
    /// There is no such option.
    #[error("codecs have no option {0:?}; there are {names}", names = OPTIONS.join(", "))]
    Option(String),
    /// The option is not for this codec.
    #[error("\"{option}\" is not for {name}: {advice}")]
    NotForThis {
        /// The option.
        option: &'static str,
        /// The codec's name.
        name: String,
        /// What to do.
        advice: &'static str,
    },
    /// The options do not go together.
    #[error("{text:?} is no codec: {reason}")]
    Combination {
        /// The whole text.
        text: String,
        /// Which option is at fault.
        reason: InvalidCodec,
    },
}

/// What may follow a name, each after a `+`.
const OPTIONS: [&str; 9] = [
    "hadamard",
    "no-hadamard",
    "stochastic",
    "nearest",
    "supergroup",
    "perblock",
    "minmax",
    "uniform",
    "grid",
];

impl Codec {
    /// The names that [`Codec::from_str`] knows. Block codecs (all but the first two) may be
    /// followed by a block size and by options: `int4/64+stochastic`.
    ///
    /// Options are `hadamard` and `no-hadamard`, `stochastic` and `nearest`, `supergroup` and
    /// `perblock`; for integers also `minmax`; for `int4` and `int2` also `grid`, which is their
    /// default, and `uniform`, which is implied by `stochastic`.
    pub const NAMES: [&'static str; 10] =
        ["bf16", "fp16", "int8", "int6", "int5", "int4", "int2", "fp8_e4m3", "fp8_e5m2", "sign1"];
}

/// The options of a name, where given.
#[derive(Default)]
struct Options {
    block: Option<u16>,
    scale: Option<Scale>,
    rounding: Option<Rounding>,
    smoothing: Option<bool>,
    range: bool,
    uniform: Option<bool>,
}

impl Options {
    fn parse(rest: &str) -> Result<Self, ParseCodecError> {
        let mut options = Options::default();
        let mut parts = rest.split('+');
        if let Some(size) = parts.next().and_then(|first| first.strip_prefix('/')) {
            let parsed = size.parse().map_err(|_| ParseCodecError::Block(size.to_owned()))?;
            options.block = Some(parsed);
        }
        for option in parts {
            match option {
                "hadamard" => options.smoothing = Some(true),
                "no-hadamard" => options.smoothing = Some(false),
                "stochastic" => options.rounding = Some(Rounding::Stochastic),
                "nearest" => options.rounding = Some(Rounding::Nearest),
                "supergroup" => options.scale = Some(Scale::SuperGroup),
                "perblock" => options.scale = Some(Scale::PerBlock),
                "minmax" => options.range = true,
                "uniform" => options.uniform = Some(true),
                "grid" => options.uniform = Some(false),
                unknown => return Err(ParseCodecError::Option(unknown.to_owned())),
            }
        }
        Ok(options)
    }

    /// The format that a name and its options ask for.
    fn format(&self, name: &str) -> Result<Format, ParseCodecError> {
        let deny = |option, advice| {
            Err(ParseCodecError::NotForThis { option, name: name.to_owned(), advice })
        };
        let named = match name {
            "int8" => Format::Int { bits: 8 },
            "int6" => Format::Int { bits: 6 },
            "int5" => Format::Int { bits: 5 },
            "int4" => Format::Int { bits: 4 },
            "int2" => Format::Int { bits: 2 },
            "fp8_e4m3" => Format::Fp8E4M3,
            "fp8_e5m2" => Format::Fp8E5M2,
            "sign1" => Format::Sign,
            _ => return Err(ParseCodecError::Name(name.to_owned())),
        };
        let grid = match named {
            Format::Int { bits: 4 } => Some(Format::Grid4),
            Format::Int { bits: 2 } => Some(Format::Grid2),
            _ => None,
        };
        if self.range {
            return match (named, self.uniform) {
                (Format::Int { bits }, None) => Ok(Format::IntMinMax { bits }),
                (Format::Int { .. }, Some(_)) => {
                    deny("minmax", "it is uniform by itself: leave out \"uniform\" or \"grid\"")
                }
                _ => deny("minmax", "take int8, int6, int5, int4 or int2"),
            };
        }
        let stochastic = self.rounding == Some(Rounding::Stochastic);
        match (grid, self.uniform) {
            (None, Some(false)) => deny("grid", "only int4 and int2 have an uneven grid"),
            (None, Some(true)) => deny("uniform", "only int4 and int2 have an uneven grid"),
            (Some(grid), uniform) if uniform == Some(false) || !stochastic && uniform.is_none() => {
                Ok(grid)
            }
            _ => Ok(named),
        }
    }
}

/// The options that a format has when none are given.
fn defaults(format: Format) -> BlockCodec {
    let (block, scale, smoothing) = match format {
        Format::Int { bits: 8 } => (256, Scale::PerBlock, false),
        Format::Int { bits: 6 } => (128, Scale::PerBlock, true),
        Format::Int { .. } | Format::Grid4 => (32, Scale::SuperGroup, true),
        Format::IntMinMax { bits: 8 } => (256, Scale::PerBlock, false),
        Format::IntMinMax { .. } => (128, Scale::PerBlock, false),
        Format::Fp8E4M3 | Format::Fp8E5M2 => (128, Scale::PerBlock, false),
        Format::Grid2 => (128, Scale::PerBlock, true),
        Format::Sign => (128, Scale::PerBlock, false),
    };
    BlockCodec { format, block, scale, rounding: Rounding::Nearest, smoothing }
}

impl FromStr for Codec {
    type Err = ParseCodecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "bf16" => return Ok(Codec::Bf16),
            "fp16" | "f16" => return Ok(Codec::F16),
            _ => {}
        }
        let (name, rest) = text.split_at(text.find(['/', '+']).unwrap_or(text.len()));
        if let "bf16" | "fp16" | "f16" = name {
            let advice = "it has no block size and no options";
            return Err(ParseCodecError::NotForThis {
                option: if rest.starts_with('/') { "/" } else { "+" },
                name: name.to_owned(),
                advice,
            });
        }
        // An unknown name is the more useful complaint than its options.
        Options::default().format(name)?;
        let options = Options::parse(rest)?;
        let defaults = defaults(options.format(name)?);
        let block = BlockCodec {
            format: defaults.format,
            block: options.block.unwrap_or(defaults.block),
            scale: options.scale.unwrap_or(defaults.scale),
            rounding: options.rounding.unwrap_or(defaults.rounding),
            smoothing: options.smoothing.unwrap_or(defaults.smoothing),
        };
        block
            .check()
            .map_err(|reason| ParseCodecError::Combination { text: text.to_owned(), reason })?;
        Ok(Codec::Block(block))
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&match self {
            Codec::Bf16 => "bf16".to_owned(),
            Codec::F16 => "fp16".to_owned(),
            Codec::Block(block) => block_name(*block),
        })
    }
}

/// The name that [`Codec::from_str`] takes back to this codec, with no option that is its default.
fn block_name(codec: BlockCodec) -> String {
    let mut name = match codec.format {
        Format::Int { bits } | Format::IntMinMax { bits } => format!("int{bits}"),
        Format::Grid4 => "int4".to_owned(),
        Format::Grid2 => "int2".to_owned(),
        Format::Fp8E4M3 => "fp8_e4m3".to_owned(),
        Format::Fp8E5M2 => "fp8_e5m2".to_owned(),
        Format::Sign => "sign1".to_owned(),
    };
    let defaults = defaults(codec.format);
    if codec.block != defaults.block {
        name += &format!("/{}", codec.block);
    }
    if let Format::IntMinMax { .. } = codec.format {
        name += "+minmax";
    }
    if codec.smoothing != defaults.smoothing {
        name += if codec.smoothing { "+hadamard" } else { "+no-hadamard" };
    }
    if codec.scale != defaults.scale {
        name += if codec.scale == Scale::SuperGroup { "+supergroup" } else { "+perblock" };
    }
    let stochastic = codec.rounding == Rounding::Stochastic;
    if matches!(codec.format, Format::Int { bits: 4 | 2 }) && !stochastic {
        name += "+uniform";
    }
    if stochastic {
        name += "+stochastic";
    }
    name
}
