//! The table, the JSON object and the comma-separated values.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use anyhow::anyhow;
use gradwire::{EngineConfig, TransportChoice};
use serde::Serialize;

use super::Args;
use super::measure::Measurement;
use super::shape::Shape;

const MICRO: f64 = 1e6;
const GIGA: f64 = 1e9;

/// Where a rank runs.
#[derive(Debug)]
pub struct Place {
    /// Process number.
    pub pid: String,
    /// Host name.
    pub host: String,
}

/// The most that any rank took beside the tensors, in bytes.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// Tiles held by the engine because they came before their turn.
    pub bytes_held_peak: u64,
    /// Scratch of the engine.
    pub bytes_scratch_peak: u64,
    /// Growth of the process's resident memory while it measured.
    pub resident_growth_bytes: u64,
}

/// One size, as it is printed.
#[derive(Debug, Serialize)]
struct Row {
    size_bytes: usize,
    count: usize,
    time_us: f64,
    time_us_p99: f64,
    algbw_gbytes_per_s: f64,
    busbw_gbytes_per_s: f64,
    /// Null where it was not counted.
    wrong: Option<u64>,
}

/// The whole run, as it is printed.
#[derive(Debug, Serialize)]
struct Document<'a> {
    ranks: usize,
    transport: &'static str,
    collective: &'static str,
    algorithm: &'static str,
    dtype: &'static str,
    /// Null where the collective does not reduce.
    op: Option<&'static str>,
    /// Null where the collective has no root.
    root: Option<u32>,
    tile_bytes: u32,
    window_tiles: u32,
    busbw_gbytes_per_s_average: f64,
    memory: &'a Memory,
    results: &'a [Row],
}

/// What rank 0 says.
pub struct Report<'a> {
    args: &'a Args,
    shape: Shape,
    transport: &'static str,
    algorithm: &'static str,
    tile_bytes: u32,
    window_tiles: u32,
    rows: Vec<Row>,
    csv: Option<BufWriter<File>>,
}

impl<'a> Report<'a> {
    /// A report on a run with these settings.
    pub fn new(args: &'a Args, config: &EngineConfig, shape: Shape) -> Self {
        let chosen = args.algorithm.0.or(config.algorithm);
        let algorithm =
            chosen.filter(|it| it.supports(args.collective)).map_or("auto", |it| it.name());
        let transport = match config.transport {
            TransportChoice::Automatic => "auto",
            TransportChoice::Tcp => "tcp",
            TransportChoice::SharedMemory => "shm",
        };
        Report {
            args,
            shape,
            transport,
            algorithm,
            tile_bytes: config.tile_bytes,
            window_tiles: config.window(),
            rows: Vec::new(),
            csv: None,
        }
    }

    /// Prints what comes before the first size.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn begin(&mut self, places: &[Place]) -> anyhow::Result<()> {
        if let Some(path) = &self.args.csv {
            let file =
                File::create(path).map_err(|error| anyhow!("{}: {error}", path.display()))?;
            let mut file = BufWriter::new(file);
            writeln!(
                file,
                "ranks,transport,collective,algorithm,dtype,op,root,size_bytes,count,time_us,\
                 time_us_p99,algbw_gbytes_per_s,busbw_gbytes_per_s,wrong"
            )?;
            self.csv = Some(file);
        }
        if !self.args.json {
            self.print_head(places)?;
        }
        Ok(())
    }

    fn print_head(&self, places: &[Place]) -> io::Result<()> {
        let args = self.args;
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "# gradwire {}: {} ranks {} transport {} algorithm {}",
            env!("CARGO_PKG_VERSION"),
            args.collective.name(),
            self.shape.ranks,
            self.transport,
            self.algorithm
        )?;
        let iterations = args.iterations.map_or("adaptive".to_owned(), |it| it.to_string());
        writeln!(
            out,
            "# {} warmup iters: {} iters: {iterations} validation: {}",
            self.sizes_in_words(),
            args.warm_up,
            args.check
        )?;
        writeln!(out, "#")?;
        writeln!(out, "# Using ranks")?;
        for (rank, place) in places.iter().enumerate() {
            writeln!(out, "#  Rank {rank:3} Pid {:>7} on {}", place.pid, place.host)?;
        }
        writeln!(out, "#")?;
        writeln!(out, "{}", line(TITLES))?;
        writeln!(out, "{}", line(UNITS))
    }

    fn sizes_in_words(&self) -> String {
        let args = self.args;
        match args.sizes.as_slice() {
            [] => format!(
                "minBytes {} maxBytes {} step: {}(factor)",
                args.min_bytes, args.max_bytes, args.factor
            ),
            sizes => format!("sizes {sizes:?}"),
        }
    }

    /// Adds one size.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn add(&mut self, measurement: Measurement) -> anyhow::Result<()> {
        let Measurement { size, count, median, p99, wrong } = measurement;
        let bandwidth = size as f64 / median / GIGA;
        let row = Row {
            size_bytes: size,
            count,
            time_us: median * MICRO,
            time_us_p99: p99 * MICRO,
            algbw_gbytes_per_s: bandwidth,
            busbw_gbytes_per_s: bandwidth * self.shape.bus_factor(),
            wrong,
        };
        if !self.args.json {
            let mut out = io::stdout().lock();
            writeln!(out, "{}", self.table_line(&row))?;
            out.flush()?;
        }
        self.write_csv(&row)?;
        self.rows.push(row);
        Ok(())
    }

    fn table_line(&self, row: &Row) -> String {
        let op = self.op().unwrap_or("none");
        let root = self.args.collective.root().map_or("-1".to_owned(), |root| root.to_string());
        let wrong = row.wrong.map_or("N/A".to_owned(), |wrong| wrong.to_string());
        line([
            &row.size_bytes.to_string(),
            &row.count.to_string(),
            self.args.dtype.name(),
            op,
            &root,
            &time(row.time_us),
            &time(row.time_us_p99),
            &format!("{:.2}", row.algbw_gbytes_per_s),
            &format!("{:.2}", row.busbw_gbytes_per_s),
            &wrong,
        ])
    }

    fn write_csv(&mut self, row: &Row) -> io::Result<()> {
        let op = self.op().unwrap_or_default();
        let root = self.args.collective.root().map_or(String::new(), |root| root.to_string());
        let wrong = row.wrong.map_or(String::new(), |wrong| wrong.to_string());
        let Some(file) = &mut self.csv else { return Ok(()) };
        writeln!(
            file,
            "{},{},{},{},{},{op},{root},{},{},{:.3},{:.3},{:.6},{:.6},{wrong}",
            self.shape.ranks,
            self.transport,
            self.args.collective.name(),
            self.algorithm,
            self.args.dtype,
            row.size_bytes,
            row.count,
            row.time_us,
            row.time_us_p99,
            row.algbw_gbytes_per_s,
            row.busbw_gbytes_per_s,
        )?;
        file.flush()
    }

    /// Prints what comes after the last size.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn end(&self, memory: &Memory) -> anyhow::Result<()> {
        let busbw: f64 = self.rows.iter().map(|row| row.busbw_gbytes_per_s).sum();
        let average = busbw / self.rows.len().max(1) as f64;
        let mut out = io::stdout().lock();
        if self.args.json {
            let document = self.document(average, memory);
            serde_json::to_writer(&mut out, &document)?;
            writeln!(out)?;
            return Ok(());
        }
        let wrong: u64 = self.rows.iter().filter_map(|row| row.wrong).sum();
        let verdict = match self.args.check {
            0 => "not checked".to_owned(),
            _ if wrong == 0 => "0 OK".to_owned(),
            _ => format!("{wrong} FAILED"),
        };
        writeln!(out, "# Out of bounds values : {verdict}")?;
        writeln!(out, "# Avg bus bandwidth    : {average:.5}")?;
        Ok(())
    }

    fn document<'b>(&'b self, average: f64, memory: &'b Memory) -> Document<'b> {
        Document {
            ranks: self.shape.ranks,
            transport: self.transport,
            collective: self.args.collective.name(),
            algorithm: self.algorithm,
            dtype: self.args.dtype.name(),
            op: self.op(),
            root: self.args.collective.root(),
            tile_bytes: self.tile_bytes,
            window_tiles: self.window_tiles,
            busbw_gbytes_per_s_average: average,
            memory,
            results: &self.rows,
        }
    }

    fn op(&self) -> Option<&'static str> {
        self.args.collective.reduces().then(|| self.args.op.name())
    }
}

const TITLES: [&str; 10] =
    ["size", "count", "type", "redop", "root", "time", "p99", "algbw", "busbw", "#wrong"];
const UNITS: [&str; 10] = ["(B)", "(elements)", "", "", "", "(us)", "(us)", "(GB/s)", "(GB/s)", ""];
const WIDTHS: [usize; 10] = [12, 13, 14, 8, 6, 10, 10, 8, 8, 7];

/// Columns, right-aligned; comments start where nccl-tests starts them.
fn line(columns: [&str; 10]) -> String {
    let head = if columns[0].starts_with(|first: char| first.is_ascii_digit()) { " " } else { "#" };
    columns
        .iter()
        .zip(WIDTHS)
        .fold(head.to_owned(), |line, (column, width)| format!("{line}{column:>width$}"))
}

/// Microseconds with four figures, as nccl-tests prints them.
fn time(us: f64) -> String {
    match us {
        us if us >= 10_000.0 => format!("{us:.0}"),
        us if us >= 100.0 => format!("{us:.1}"),
        us => format!("{us:.2}"),
    }
}
