//! Sizes as people write them, and the series of sizes that is measured.

/// Reads `8`, `64K`, `1M`, `1G`; units are powers of 1024.
///
/// # Errors
/// A message that says what a size looks like.
pub fn parse(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    digits
        .parse::<usize>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| format!("'{text}' is no size; write 8, 64K, 1M or 1G"))
}

/// `from`, `from·factor`, ... up to `to`, in whole grains.
pub fn series(from: usize, to: usize, factor: usize, grain: usize) -> Vec<usize> {
    let next = |size: &usize| size.checked_mul(factor).filter(|next| *next <= to && next > size);
    whole_grains(std::iter::successors(Some(from), next), grain)
}

/// Each size rounded down to whole grains but at least one grain; none twice in a row.
pub fn whole_grains(sizes: impl Iterator<Item = usize>, grain: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = sizes.map(|size| (size / grain).max(1) * grain).collect();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        assert_eq!(parse("8"), Ok(8));
        assert_eq!(parse("64K"), Ok(65_536));
        assert_eq!(parse("1m"), Ok(1 << 20));
        assert_eq!(parse("2G"), Ok(2 << 30));
        for wrong in ["", "K", "-1", "1.5M", "1T", "99999999999999999999", "17179869184G"] {
            assert!(parse(wrong).unwrap_err().contains("64K"), "{wrong}");
        }
    }

    #[test]
    fn a_series_has_whole_grains_and_nothing_twice() {
        assert_eq!(series(8, 64, 2, 4), [8, 16, 32, 64]);
        assert_eq!(series(8, 100, 4, 12), [12, 24]);
        assert_eq!(series(1 << 20, 1 << 20, 1, 4), [1 << 20]);
        assert_eq!(series(1, usize::MAX, 1 << 40, 1), [1, 1 << 40]);
    }
}
