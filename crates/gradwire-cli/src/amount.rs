//! Amounts of data for people.

/// Bytes with a binary unit.
pub fn size(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = units[1..].iter().scan(bytes, |rest, _| {
        *rest /= 1024.0;
        (*rest >= 1.0).then_some(())
    });
    let power = at.count();
    let value = bytes / 1024f64.powi(power as i32);
    if power == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", units[power]) }
}

/// Bytes a second as bits a second, in which networks are sold.
pub fn rate(bytes_per_s: f64) -> String {
    let bits = 8.0 * bytes_per_s;
    match bits {
        _ if bits >= 1e9 => format!("{:.2} Gbit/s", bits / 1e9),
        _ if bits >= 1e6 => format!("{:.1} Mbit/s", bits / 1e6),
        _ => format!("{:.1} kbit/s", bits / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_rates_have_units() {
        assert_eq!([0.0, 1023.0, 1024.0, 5e6].map(size), ["0 B", "1023 B", "1.0 KiB", "4.8 MiB"]);
        assert_eq!([1e3, 1e6, 1.25e9].map(rate), ["8.0 kbit/s", "8.0 Mbit/s", "10.00 Gbit/s"]);
    }
}
