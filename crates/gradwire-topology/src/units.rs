//! Quantities as people write them: `100gbit`, `300GB/s`, `5us`, `80GB`, `312T`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _};

/// Bytes per second.
///
/// Written with a unit: `200mbit`, `1gbit`, `100gbit` count bits; `25GB/s`, `300GB/s`, `2TB/s` count
/// bytes. Prefixes are powers of 1000.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

/// Seconds. Written `300ns`, `5us`, `20ms`, `1s`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Seconds(pub f64);

/// Bytes. Written `80GB`, `512MB` (powers of 1000) or `80GiB`, `512MiB` (powers of 1024).
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Bytes(pub f64);

/// Floating-point operations per second. Written `312T`, `989T`, `1.2P`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Flops(pub f64);

const RATE_UNITS: &[(&str, f64)] = &[
    ("tbit", 1e12 / 8.0),
    ("gbit", 1e9 / 8.0),
    ("mbit", 1e6 / 8.0),
    ("kbit", 1e3 / 8.0),
    ("tb/s", 1e12),
    ("gb/s", 1e9),
    ("mb/s", 1e6),
];
const TIME_UNITS: &[(&str, f64)] = &[("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
const BYTE_UNITS: &[(&str, f64)] = &[
    ("tib", 1_099_511_627_776.0),
    ("gib", 1_073_741_824.0),
    ("mib", 1_048_576.0),
    ("tb", 1e12),
    ("gb", 1e9),
    ("mb", 1e6),
];
const FLOPS_UNITS: &[(&str, f64)] = &[("p", 1e15), ("t", 1e12), ("g", 1e9)];

/// Reads a positive number with one of the units.
fn read(text: &str, units: &[(&str, f64)], example: &str) -> Result<f64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let wrong = || format!("`{text}` is not understood; write it like {example}");
    let &(unit, factor) = units.iter().find(|(unit, _)| lower.ends_with(unit)).ok_or_else(wrong)?;
    let number: f64 = lower[..lower.len() - unit.len()].trim().parse().map_err(|_| wrong())?;
    if number.is_finite() && number >= 0.0 { Ok(number * factor) } else { Err(wrong()) }
}

macro_rules! quantity {
    ($name:ident, $units:ident, $example:literal) => {
        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                read(text, $units, $example).map($name)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    };
}

quantity!(Rate, RATE_UNITS, "`100gbit`, `200mbit` or `300GB/s`");
quantity!(Seconds, TIME_UNITS, "`5us`, `300ns` or `20ms`");
quantity!(Bytes, BYTE_UNITS, "`80GB` or `512MiB`");
quantity!(Flops, FLOPS_UNITS, "`312T` or `1.2P`");

impl fmt::Display for Rate {
    /// Bits per second below 1 Tbit/s, bytes per second above.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0 * 8.0;
        match bits {
            _ if bits >= 1e12 => write!(out, "{} GB/s", round(self.0 / 1e9)),
            _ if bits >= 1e9 => write!(out, "{} Gbit/s", round(bits / 1e9)),
            _ => write!(out, "{} Mbit/s", round(bits / 1e6)),
        }
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            seconds if seconds >= 1.0 => write!(out, "{} s", round(seconds)),
            seconds if seconds >= 1e-3 => write!(out, "{} ms", round(seconds * 1e3)),
            seconds => write!(out, "{} us", round(seconds * 1e6)),
        }
    }
}

/// Three significant decimals, without trailing zeros.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_mean_what_they_say() {
        assert_eq!("100gbit".parse(), Ok(Rate(12.5e9)));
        assert_eq!("300GB/s".parse(), Ok(Rate(300e9)));
        assert_eq!("2.5 us".parse(), Ok(Seconds(2.5 * 1e-6)));
        assert_eq!("80GiB".parse(), Ok(Bytes(80.0 * 1_073_741_824.0)));
        assert_eq!("312T".parse(), Ok(Flops(312e12)));
    }

    #[test]
    fn what_is_no_quantity_is_refused_with_an_example() {
        for wrong in ["", "fast", "100", "-1gbit", "nangbit", "100gbps"] {
            let error = wrong.parse::<Rate>().expect_err(wrong);
            assert!(error.contains("100gbit"), "{error}");
        }
    }

    #[test]
    fn rates_are_shown_in_the_unit_of_their_size() {
        assert_eq!(Rate(12.5e9).to_string(), "100 Gbit/s");
        assert_eq!(Rate(25e6).to_string(), "200 Mbit/s");
        assert_eq!(Rate(300e9).to_string(), "300 GB/s");
    }
}
