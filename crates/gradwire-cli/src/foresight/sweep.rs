//! Sweeps: one key over several values, as CSV and as a plot.

use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::Context;
use gradwire_sim::plot::{Axes, Series, plot};
use gradwire_topology::Rate;
use serde_json::{Value, json};

/// Arguments of a sweep.
#[derive(Clone, Debug, clap::Args)]
pub struct SweepArgs {
    /// Sweep one key over values: nic=10gbit,100gbit straggler=1,1.1 failures=0,5 ranks=256,512
    /// batch=512,1024.
    #[arg(long, value_name = "KEY=VALUES")]
    pub sweep: Option<String>,
    /// Write the sweep as CSV.
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub csv: Option<PathBuf>,
    /// Plot the sweep as SVG.
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub svg: Option<PathBuf>,
}

/// What is swept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value1 {
    /// Rate of NICs.
    Nic(Rate),
    /// Factor of the slowest device.
    Straggler(f64),
    /// Failures of a device in a year.
    Failures(f64),
    /// Devices.
    Ranks(u32),
    /// Sequences of a step.
    Batch(u32),
}

/// Reads `KEY=VALUE,VALUE`.
pub fn parse(text: &str) -> Result<(String, Vec<(String, Value1)>), String> {
    let wrong = || {
        format!(
            "`{text}` is no sweep; write nic=10gbit,100gbit, straggler=1,1.2, failures=0,5, \
             ranks=256,512 or batch=512,1024"
        )
    };
    let (key, values) = text.split_once('=').ok_or_else(wrong)?;
    let value = |text: &str| -> Result<(String, Value1), String> {
        let number = || text.parse::<f64>().map_err(|_| wrong());
        let whole = || text.parse::<u32>().map_err(|_| wrong());
        let value = match key {
            "nic" => Value1::Nic(text.parse()?),
            "straggler" => Value1::Straggler(number()?),
            "failures" => Value1::Failures(number()?),
            "ranks" => Value1::Ranks(whole()?),
            "batch" => Value1::Batch(whole()?),
            _ => return Err(wrong()),
        };
        Ok((text.to_owned(), value))
    };
    let values: Result<Vec<_>, String> = values.split(',').map(|it| value(it.trim())).collect();
    Ok((key.to_owned(), values?))
}

/// One row: the value's text, its number for the axis, then columns.
pub struct Row {
    /// As it was written.
    pub text: String,
    /// On the axis.
    pub number: f64,
    /// As many as there are column names.
    pub columns: Vec<f64>,
}

impl Value1 {
    /// On the axis of a plot.
    pub fn number(self) -> f64 {
        match self {
            Value1::Nic(rate) => rate.0 * 8.0 / 1e9,
            Value1::Straggler(number) | Value1::Failures(number) => number,
            Value1::Ranks(number) | Value1::Batch(number) => f64::from(number),
        }
    }
}

/// Prints, writes and plots a sweep. The plot shows the columns named in `plotted`.
pub fn finish(
    args: &SweepArgs,
    key: &str,
    names: &[&str],
    plotted: &[usize],
    rows: &[Row],
    as_json: bool,
) -> anyhow::Result<()> {
    if let Some(path) = &args.csv {
        let mut text = format!("{key},{}\n", names.join(","));
        for row in rows {
            let columns: Vec<String> = row.columns.iter().map(|it| format!("{it:.6}")).collect();
            text.push_str(&format!("{},{}\n", row.text, columns.join(",")));
        }
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    if let Some(path) = &args.svg {
        fs::write(path, draw(key, names, plotted, rows))
            .with_context(|| path.display().to_string())?;
    }
    if as_json {
        println!("{}", document(key, names, rows));
        return Ok(());
    }
    print!("{key:>12}");
    names.iter().for_each(|name| print!("{name:>22}"));
    println!();
    for row in rows {
        print!("{:>12}", row.text);
        row.columns.iter().for_each(|it| print!("{it:>22.4}"));
        println!();
    }
    Ok(())
}

fn document(key: &str, names: &[&str], rows: &[Row]) -> Value {
    let row = |row: &Row| {
        let mut object = serde_json::Map::new();
        object.insert(key.to_owned(), json!(row.text));
        for (name, value) in names.iter().zip(&row.columns) {
            object.insert((*name).to_owned(), json!(value));
        }
        Value::Object(object)
    };
    json!({ "sweep": key, "rows": rows.iter().map(row).collect::<Vec<_>>() })
}

fn draw(key: &str, names: &[&str], plotted: &[usize], rows: &[Row]) -> String {
    let unit = if key == "nic" { "nic, Gbit/s" } else { key };
    let axes = Axes {
        title: "sweep",
        x: unit,
        y: "",
        logarithmic: rows
            .iter()
            .all(|row| row.number > 0.0 && plotted.iter().all(|at| row.columns[*at] > 0.0)),
        lines: true,
        diagonal: false,
    };
    let series: Vec<Series> = plotted
        .iter()
        .map(|at| Series {
            name: names[*at].to_owned(),
            points: rows.iter().map(|row| (row.number, row.columns[*at])).collect(),
        })
        .collect();
    plot(&axes, &series)
}

/// Shows how far a long search is, on a terminal only.
pub fn progress(what: &str, done: usize, all: usize) {
    let counts = all <= 100 || done.is_multiple_of(50) || done == all;
    if std::io::stderr().is_terminal() && counts {
        eprint!("\r{what}: {done} of {all}");
        if done == all {
            eprintln!();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_is_read_or_refused_with_an_example() {
        let (key, values) = parse("nic=10gbit,100gbit").expect("good");
        assert_eq!(key, "nic");
        assert_eq!(values[1].1.number(), 100.0);
        for wrong in ["", "nic", "colour=red", "nic=fast", "ranks=1.5"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
