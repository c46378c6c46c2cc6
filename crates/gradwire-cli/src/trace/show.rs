//! The summary as tables.

use std::fmt::Write;

use super::exposure::Method;
use super::operations::Row;
use super::path::{Contribution, Piece};
use super::summary::Summary;
use crate::amount::{rate, size};

/// Contributors to the critical path, and links, that are listed.
const LISTED: usize = 10;

/// The whole summary.
pub fn text(summary: &Summary, list: usize) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_all(&mut out, summary, list);
    out
}

fn write_all(out: &mut String, summary: &Summary, list: usize) -> std::fmt::Result {
    let count = summary.ranks.len();
    writeln!(out, "job {}: traces of {count} of {} ranks", summary.job, summary.world_size)?;
    for warning in &summary.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    ranks(out, summary)?;
    operations(out, &summary.operations, list)?;
    path(out, summary)?;
    slowest(out, summary)
}

fn ranks(out: &mut String, summary: &Summary) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:>5}  {:<16}{:>7}{:>11}{:>15}{:>11}{:>11}{:>9}  exposed by",
        "rank", "host", "steps", "seconds", "communication", "hidden", "exposed", "share %"
    )?;
    for it in &summary.ranks {
        let method = match it.method {
            Method::Waits => "waits",
            Method::Bursts => "ends of bursts (waited for by futures)",
            Method::WaitsAndBursts => "waits, and ends of bursts (waited for by futures)",
        };
        writeln!(
            out,
            "{:>5}  {:<16}{:>7}{:>11.4}{:>15.4}{:>11.4}{:>11.4}{:>9.1}  {method}",
            it.rank,
            it.host,
            it.steps,
            it.window_s,
            it.communication_s,
            it.hidden_s,
            it.exposed_s,
            100.0 * it.share
        )?;
    }
    let uncertain = summary.ranks.iter().filter_map(|it| it.clock_uncertainty_us);
    let worst = uncertain.fold(0.0, f64::max);
    if worst > 0.0 {
        writeln!(out, "clocks of different hosts agree to {worst:.0} us")?;
    }
    Ok(())
}

fn operations(out: &mut String, rows: &[Row], list: usize) -> std::fmt::Result {
    if rows.is_empty() {
        return writeln!(out, "\nno operation was recorded");
    }
    writeln!(
        out,
        "\nmilliseconds an operation, means over ranks and steps, the most exposed first\n\
         {:<48}{:>8}{:>10}{:>9}{:>9}{:>9}{:>9}{:>9}",
        "layer, bucket or operation",
        "count",
        "bytes",
        "queue",
        "wire",
        "reduce",
        "hidden",
        "exposed"
    )?;
    for row in rows.iter().take(list) {
        let mean = |seconds: f64| 1e3 * seconds / row.operations as f64;
        writeln!(
            out,
            "{:<48}{:>8}{:>10}{:>9.3}{:>9.3}{:>9.3}{:>9.3}{:>9.3}{}",
            shortened(&row.name, 47),
            row.operations,
            size(row.bytes as f64 / row.operations as f64),
            mean(row.queue_s),
            mean(row.wire_s),
            mean(row.reduce_s),
            mean(row.hidden_s),
            mean(row.exposed_s),
            if row.failed > 0 { format!("  {} FAILED", row.failed) } else { String::new() }
        )?;
    }
    if rows.len() > list {
        writeln!(out, "... and {} more (--list)", rows.len() - list)?;
    }
    Ok(())
}

fn path(out: &mut String, summary: &Summary) -> std::fmt::Result {
    let path = &summary.critical_path;
    if path.contributions.is_empty() {
        return Ok(());
    }
    let of = match path.steps {
        0 => "the trace".to_owned(),
        1 => "1 step".to_owned(),
        steps => format!("{steps} steps"),
    };
    write!(out, "\ncritical path of {of}, {:.4} s:", path.seconds)?;
    for (at, (kind, seconds)) in path.by_kind.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        write!(out, "{comma} {kind} {:.1} %", 100.0 * seconds / path.seconds)?;
    }
    writeln!(out)?;
    for it in path.contributions.iter().take(LISTED) {
        let share = 100.0 * it.seconds / path.seconds;
        writeln!(out, "{:>11.4} s{share:>7.1} %  {}", it.seconds, piece(it))?;
    }
    Ok(())
}

fn piece(contribution: &Contribution) -> String {
    match &contribution.piece {
        Piece::Compute { rank, phase } if phase.is_empty() => format!("rank {rank} computes"),
        Piece::Compute { rank, phase } => format!("rank {rank} computes: {phase}"),
        Piece::Wire { from, to } => format!("wire from rank {from} to rank {to}"),
        Piece::Reduce { rank } => format!("rank {rank} reduces, encodes or decodes"),
        Piece::Queue { rank } => format!("rank {rank}: nothing of the operation moves"),
        Piece::Wait { rank } => format!("rank {rank} waits for what the trace does not show"),
    }
}

fn slowest(out: &mut String, summary: &Summary) -> std::fmt::Result {
    let slowest = summary.arrivals.iter().find(|it| Some(it.rank) == summary.slowest_rank);
    if let Some(it) = slowest {
        writeln!(
            out,
            "\nslowest rank: {}, the last to come to {} of {} collectives, {:.3} ms late on average",
            it.rank,
            it.last,
            it.collectives,
            1e3 * it.late_s / it.last as f64
        )?;
    }
    if let Some(it) = &summary.slowest_link {
        writeln!(
            out,
            "slowest link: rank {} to rank {}, {}",
            it.from,
            it.to,
            rate(it.bytes_per_s)
        )?;
        for it in summary.links.iter().take(LISTED) {
            writeln!(
                out,
                "{:>6} > {:<6}{:>10} in {:>9.4} s{:>16}",
                it.from,
                it.to,
                size(it.bytes as f64),
                it.busy_s,
                rate(it.bytes_per_s)
            )?;
        }
        if summary.links.len() > LISTED {
            writeln!(out, "... and {} faster ones", summary.links.len() - LISTED)?;
        }
    }
    Ok(())
}

fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 3).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_shortened() {
        assert_eq!(shortened("abcdefgh", 6), "abc...");
        assert_eq!(shortened("abcdef", 6), "abcdef");
    }
}
