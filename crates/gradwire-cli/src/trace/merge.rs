//! All ranks in one file.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::read;

/// What gradwire and torch.profiler write.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    /// The Unix time from which it counts.
    base_time_nanoseconds: i64,
    #[serde(borrow)]
    trace_events: Vec<&'a RawValue>,
}

/// Writes the events of all ranks into one file, with those of other profilers that count from the
/// same time.
///
/// # Errors
/// When there are no traces, one of them is broken, or the file can't be written.
pub fn merge(directory: &Path, others: &[PathBuf], output: &Path) -> anyhow::Result<()> {
    // What the summary would warn of, a merged file hides.
    let traces = read::directory(directory)?;
    for warning in &traces.warnings {
        eprintln!("gradwire: trace: {warning}");
    }
    let files = read::files(directory)?;
    let of_job = files.into_iter().filter(|(rank, _)| traces.index_of(*rank).is_some());
    let paths: Vec<PathBuf> = of_job.map(|(_, path)| path).chain(others.iter().cloned()).collect();
    let events = write(&paths, output)
        .with_context(|| format!("trace: merging into {}", output.display()))?;
    eprintln!("{events} events in {}", output.display());
    Ok(())
}

/// Writes one file after the other, so that one at a time is in memory; how many events there were.
fn write(paths: &[PathBuf], output: &Path) -> anyhow::Result<usize> {
    let mut file = BufWriter::new(File::create(output)?);
    let (mut events, mut common_base) = (0, None);
    for path in paths {
        let name = path.display();
        let text = fs::read_to_string(path).with_context(|| name.to_string())?;
        let document: Document = serde_json::from_str(&text).map_err(|error| {
            anyhow!("{name} is no trace of gradwire or torch.profiler: {error}")
        })?;
        let base = document.base_time_nanoseconds;
        if common_base.is_none() {
            writeln!(
                file,
                "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":{base},\
                 \"traceEvents\":["
            )?;
        }
        if *common_base.get_or_insert(base) != base {
            bail!("{name} counts from another time (Unix time {base} ns) than the others");
        }
        for event in document.trace_events {
            let separator = if events == 0 { "" } else { ",\n" };
            write!(file, "{separator}{event}")?;
            events += 1;
        }
    }
    file.write_all(b"\n]}\n")?;
    file.flush()?;
    Ok(events)
}
