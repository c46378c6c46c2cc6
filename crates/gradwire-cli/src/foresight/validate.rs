//! `gradwire validate`: how wrong predictions are.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use gradwire_sim::validation::{Role, Validation, tables::Tables, validate};

use super::setting::usage;

/// Arguments of `gradwire validate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory with the tables; those that come with gradwire by default. Also as `DATA=dir`.
    #[arg(long, value_name = "DIRECTORY", env = "DATA")]
    data: Option<PathBuf>,
    /// `DATA=directory`, as make writes it.
    #[arg(value_name = "DATA=DIRECTORY", conflicts_with = "data")]
    assignment: Option<String>,
    /// Write the page `validation.md` and its plots into this directory.
    #[arg(long, value_name = "DIRECTORY")]
    write: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs `gradwire validate`.
///
/// # Errors
/// When a table can't be read or the page can't be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let data = match &args.assignment {
        None => args.data.clone(),
        Some(text) => {
            let path = text.strip_prefix("DATA=").ok_or_else(|| {
                usage("validate", format!("`{text}` is not understood; write DATA=directory"))
            })?;
            Some(PathBuf::from(path))
        }
    };
    if let Some(directory) = data.as_ref().filter(|it| !it.is_dir()) {
        let text = format!("{} is no directory", directory.display());
        return Err(usage("validate", text).into());
    }
    let validation = validate(&Tables::new(data.as_deref())).map_err(anyhow::Error::msg)?;
    if let Some(directory) = &args.write {
        write(&validation, directory)?;
    }
    if args.json {
        println!("{}", serde_json::to_string(&validation)?);
    } else {
        print(&validation);
    }
    Ok(ExitCode::SUCCESS)
}

fn write(validation: &Validation, directory: &std::path::Path) -> anyhow::Result<()> {
    let plots = directory.join("validation");
    fs::create_dir_all(&plots).with_context(|| plots.display().to_string())?;
    for (name, svg) in validation.plots() {
        let path = plots.join(name);
        fs::write(&path, svg).with_context(|| path.display().to_string())?;
    }
    let path = directory.join("validation.md");
    fs::write(&path, validation.page()).with_context(|| path.display().to_string())
}

fn print(validation: &Validation) {
    println!(
        "{:<36}{:<13}{:>6}{:>8}{:>8}{:>8}{:>8}{:>10}{:>9}",
        "table", "role", "rows", "MAPE %", "null %", "worst %", "bias %", "ordered %", "regret %"
    );
    for section in &validation.sections {
        let role = if section.role == Role::Judged { "judged" } else { "calibration" };
        let score = &section.score;
        println!(
            "{:<36}{role:<13}{:>6}{:>8.1}{:>8.1}{:>8.1}{:>+8.1}{:>10.1}{:>9.1}",
            section.name,
            score.points,
            score.mape_pct,
            score.null_mape_pct,
            score.worst_pct,
            score.bias_pct,
            score.ordered_pct,
            score.regret_pct
        );
    }
    let slope: Vec<String> = validation
        .zero3_slope
        .iter()
        .map(|(gigabits, rate)| format!("{gigabits:.0} Gbit/s {rate:.1}"))
        .collect();
    println!(
        "\nZeRO 3, 18B on 384 devices, TFLOP/s a device by rate of a host: {}",
        slope.join(", ")
    );
}
