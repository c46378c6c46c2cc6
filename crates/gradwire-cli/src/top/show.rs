//! A view as text.

use std::fmt::Write;

use super::view::{Job, Rank, View};
use crate::amount::rate;

/// Links that are listed, the busiest ones.
const LISTED: usize = 8;

/// All jobs.
pub fn text(view: &View) -> String {
    let mut out = String::new();
    for job in &view.jobs {
        // Writing to a string does not fail.
        let _ = write_job(&mut out, job);
    }
    out
}

fn write_job(out: &mut String, job: &Job) -> std::fmt::Result {
    writeln!(out, "job {}: {} of {} ranks", job.job, job.ranks.len(), job.world_size)?;
    writeln!(
        out,
        "{:>5}  {:<16}{:>8}{:>10}{:>16}{:>16}{:>7}  operation",
        "rank", "host", "share %", "flight %", "send", "receive", "ratio"
    )?;
    for it in &job.ranks {
        let mark = if it.share_of_bursts { "~" } else { "" };
        writeln!(
            out,
            "{:>5}  {:<16}{:>8}{:>10.1}{:>16}{:>16}{:>7}  {}",
            it.rank,
            it.host,
            format!("{mark}{:.1}", 100.0 * it.share),
            100.0 * it.in_flight_share,
            rate(it.sent_bytes_per_s),
            rate(it.received_bytes_per_s),
            it.compression.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.1}")),
            doing(it)
        )?;
    }
    for it in job.links.iter().take(LISTED).filter(|it| it.bytes_per_s > 0.0) {
        writeln!(out, "{:>5} > {:<5}{:>5}{:>16}", it.from, it.to, it.wire, rate(it.bytes_per_s))?;
    }
    if let Some(straggler) = &job.straggler {
        writeln!(out, "straggler: rank {}, {}", straggler.rank, straggler.reason)?;
    }
    if !job.unseen.is_empty() {
        let hint = "on other hosts, gone, or GRADWIRE_STATUS=off";
        writeln!(out, "not seen here: ranks {:?} ({hint})", job.unseen)?;
    }
    writeln!(out)
}

fn doing(rank: &Rank) -> String {
    if let Some(silent_s) = rank.silent_s {
        return format!("no sign of life for {silent_s:.0} s");
    }
    let (Some(operation), Some(age_s)) = (&rank.operation, rank.operation_age_s) else {
        return "-".to_owned();
    };
    format!("{operation}, {age_s:.1} s, waits for ranks {:?}", rank.waits_for)
}
