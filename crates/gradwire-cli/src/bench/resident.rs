//! How much memory this process takes.

use std::fs;

/// Resident memory of this process, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Now.
    pub now: u64,
    /// At most so far.
    pub peak: u64,
}

impl Resident {
    /// Asks the kernel; zeros where it does not tell.
    pub fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    fn parse(status: &str) -> Self {
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kilobytes =
                line.and_then(|rest| rest.trim_end_matches("kB").trim().parse::<u64>().ok());
            kilobytes.unwrap_or(0) * 1024
        };
        Resident { now: bytes("VmRSS:"), peak: bytes("VmHWM:") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_understood() {
        let status = "Name:\tbench\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(Resident::parse(status), Resident { now: 1 << 20, peak: 2 << 20 });
        assert_eq!(Resident::parse(""), Resident { now: 0, peak: 0 });
    }
}
