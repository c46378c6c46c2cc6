//! The ranks' output, line by line, with the rank in front.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::thread;

/// Longest piece that is held back while its line is not complete, in bytes.
const LONGEST_LINE: u64 = 64 << 10;
/// Colours that are readable on dark and light terminals (ANSI foregrounds).
const COLOURS: [u8; 6] = [36, 33, 35, 32, 34, 31];

/// Where a line goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sink {
    Stdout,
    Stderr,
}

impl Sink {
    fn write(self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => write_flushed(io::stdout().lock(), line),
            Self::Stderr => write_flushed(io::stderr().lock(), line),
        }
    }
}

fn write_flushed(mut out: impl Write, line: &[u8]) -> io::Result<()> {
    out.write_all(line)?;
    out.flush()
}

/// What stands in front of a rank's lines.
pub(crate) fn prefix(rank: usize, colour: bool) -> String {
    if !colour {
        return format!("[{rank}] ");
    }
    format!("\x1b[{}m[{rank}]\x1b[0m ", COLOURS[rank % COLOURS.len()])
}

/// Copies lines on a thread of its own until the source ends, then calls `ended` with whether all
/// of it could be written.
pub(crate) fn pump(
    source: impl Read + Send + 'static,
    prefix: String,
    sink: Sink,
    ended: impl FnOnce(bool) + Send + 'static,
) -> io::Result<()> {
    thread::Builder::new()
        .name("output".into())
        .spawn(move || ended(copy_lines(source, prefix.as_bytes(), |line| sink.write(line))))?;
    Ok(())
}

/// Copies lines, each with the prefix and a line end; false if the other side stopped taking them.
fn copy_lines(
    source: impl Read,
    prefix: &[u8],
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) -> bool {
    let mut source = BufReader::new(source);
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend_from_slice(prefix);
        // A source that fails has ended: its process is gone.
        let read = source.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line).unwrap_or(0);
        if read == 0 {
            return true;
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        if write(&line).is_err() {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(source: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(copy_lines(source, b"[0] ", |line| {
            out.extend_from_slice(line);
            Ok(())
        }));
        out
    }

    #[test]
    fn each_line_gets_the_prefix_and_a_line_end() {
        assert_eq!(copied(b"one\n\ntwo"), b"[0] one\n[0] \n[0] two\n");
        assert_eq!(copied(b""), b"");
        assert_eq!(copied(b"\xff\n"), b"[0] \xff\n");
    }

    #[test]
    fn a_line_without_end_is_cut_in_pieces() {
        let endless = vec![b'x'; LONGEST_LINE as usize + 1];
        assert_eq!(copied(&endless).len(), endless.len() + 2 * "[0] \n".len());
    }

    #[test]
    fn a_closed_sink_is_told() {
        assert!(!copy_lines(&b"x\n"[..], b"", |_| Err(io::ErrorKind::BrokenPipe.into())));
    }

    #[test]
    fn only_the_rank_is_coloured() {
        assert_eq!(prefix(7, false), "[7] ");
        assert_eq!(prefix(7, true), "\x1b[33m[7]\x1b[0m ");
    }
}
