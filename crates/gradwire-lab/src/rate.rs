//! Rates and loss as people write them: `100mbit`, `2.5gbit`, `0.1%`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A rate or a loss that can't be read; the message says which text and what is expected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is not {expected}")]
pub struct ParseUnitError {
    text: String,
    expected: &'static str,
}

/// How fast a link carries bits, in bits per second; counted as the kernel's shaper counts, with
/// Ethernet headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rate(u64);

/// Slowest rate accepted: below it one full frame takes over a second.
const SLOWEST: u64 = 8_000;
/// Fastest rate accepted: what the shaper's arithmetic is known to hold.
const FASTEST: u64 = 400_000_000_000;
const RATE_UNITS: [(&str, f64); 4] = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];

impl Rate {
    /// A rate of so many bits per second, or `None` outside 8 kbit/s to 400 Gbit/s.
    pub fn from_bits_per_second(bits: u64) -> Option<Self> {
        (SLOWEST..=FASTEST).contains(&bits).then_some(Self(bits))
    }

    /// Bits per second.
    pub fn bits_per_second(self) -> u64 {
        self.0
    }

    /// Bytes per second.
    pub fn bytes_per_second(self) -> u64 {
        self.0 / 8
    }
}

impl FromStr for Rate {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseUnitError {
            text: text.into(),
            expected: "a rate between 8kbit and 400gbit (write 200mbit, 1gbit, 2.5gbit)",
        };
        let lower = text.trim().to_ascii_lowercase();
        let (number, factor) = RATE_UNITS
            .iter()
            .find_map(|&(unit, factor)| Some((lower.strip_suffix(unit)?, factor)))
            .ok_or_else(error)?;
        let bits = plain_number(number).ok_or_else(error)? * factor;
        Self::from_bits_per_second(bits.round() as u64).ok_or_else(error)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0 as f64;
        let (unit, factor) =
            RATE_UNITS.iter().find(|(_, factor)| bits >= *factor).expect("a rate is over 1 bit");
        write!(out, "{}{unit}", bits / factor)
    }
}

/// The share of packets that a link loses, in percent.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Loss(f64);

impl Loss {
    /// Lost packets per hundred, 0 to 100.
    pub fn percent(self) -> f64 {
        self.0
    }
}

impl FromStr for Loss {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.trim()
            .strip_suffix('%')
            .and_then(plain_number)
            .filter(|percent| *percent <= 100.0)
            .map(Self)
            .ok_or_else(|| ParseUnitError {
                text: text.into(),
                expected: "a loss in percent between 0% and 100% (write 0.1%)",
            })
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}%", self.0)
    }
}

/// Digits with at most one point. `f64::from_str` alone would take `inf`, `1e9` and `-3` too.
fn plain_number(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_are_read_as_written() {
        for (text, bits) in [
            ("1gbit", 1_000_000_000),
            ("100mbit", 100_000_000),
            ("2.5Gbit", 2_500_000_000),
            ("64kbit", 64_000),
            ("8000bit", 8_000),
            ("400gbit", 400_000_000_000),
        ] {
            assert_eq!(text.parse::<Rate>().unwrap().bits_per_second(), bits, "{text}");
        }
    }

    #[test]
    fn wrong_rates_are_refused_with_the_text_in_the_message() {
        for text in ["", "gbit", "1", "1gb", "-1gbit", "infgbit", "1e3gbit", "0gbit", "401gbit"] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn losses_are_read_as_written() {
        assert_eq!("0.1%".parse::<Loss>().unwrap().percent(), 0.1);
        for text in ["", "%", "0.1", "101%", "-1%", "nan%"] {
            assert!(text.parse::<Loss>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_rate_reads_back(bits in SLOWEST..=FASTEST) {
            let rate = Rate::from_bits_per_second(bits).unwrap();
            prop_assert_eq!(rate.to_string().parse::<Rate>().unwrap(), rate);
        }
    }
}
