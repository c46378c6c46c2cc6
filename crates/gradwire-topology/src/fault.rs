//! Errors that point at the line.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A cluster or model file that can't be used: what is wrong, where, and what would work.
///
/// Printed as one line (`cluster.toml:3: ...`), then the line of the file with the place marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFault {
    path: PathBuf,
    message: String,
    place: Option<Place>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    line: usize,
    text: String,
    column: usize,
    length: usize,
}

impl FileFault {
    /// A fault of the whole file.
    pub fn whole(path: &Path, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), message: message.into(), place: None }
    }

    /// A fault of a part of the file's text, `span` in bytes.
    pub fn at(path: &Path, text: &str, span: Range<usize>, message: impl Into<String>) -> Self {
        let mut start = span.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let before = &text[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = text[line_start..].lines().next().unwrap_or("");
        let column = text[line_start..start].chars().count();
        let shown = line.chars().count();
        let length =
            span.end.saturating_sub(span.start).clamp(1, shown.saturating_sub(column).max(1));
        let place =
            Place { line: before.matches('\n').count() + 1, text: line.to_owned(), column, length };
        Self { path: path.to_owned(), message: message.into(), place: Some(place) }
    }

    /// A fault that the TOML reader found.
    pub fn toml(path: &Path, text: &str, error: &toml::de::Error) -> Self {
        let message = error.message().trim().replace('\n', "; ");
        match error.span() {
            Some(span) => Self::at(path, text, span, message),
            None => Self::whole(path, message),
        }
    }

    /// Line number, counted from 1, if the fault has a place.
    pub fn line(&self) -> Option<usize> {
        self.place.as_ref().map(|place| place.line)
    }

    /// What is wrong, without the place.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for FileFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        let Some(place) = &self.place else { return write!(out, "{path}: {}", self.message) };
        writeln!(out, "{path}:{}: {}", place.line, self.message)?;
        let margin = place.line.to_string();
        writeln!(out, "  {margin} | {}", place.text)?;
        let indent = " ".repeat(margin.len());
        write!(out, "  {indent} | {}{}", " ".repeat(place.column), "^".repeat(place.length))
    }
}

impl std::error::Error for FileFault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_marked() {
        let text = "a = 1\nbad = 2\n";
        let fault = FileFault::at(Path::new("x.toml"), text, 12..13, "no");
        assert_eq!(fault.line(), Some(2));
        assert_eq!(fault.to_string(), "x.toml:2: no\n  2 | bad = 2\n    |       ^");
    }

    #[test]
    fn any_span_is_shown_without_a_panic() {
        let text = "größe = 1\n";
        for start in 0..20 {
            for end in 0..20 {
                let _ = FileFault::at(Path::new("x"), text, start..end, "no").to_string();
            }
        }
    }
}
