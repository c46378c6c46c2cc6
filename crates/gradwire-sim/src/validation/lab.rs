//! The lab: what was measured between network namespaces, against what is predicted for them.
//!
//! Settings were chosen before they were measured, and no constant is fitted to them: the cost of a
//! byte comes from a profile of the lab (`clusters/lab-1gbit.toml`), the time of a step without
//! communication from the same run as the share that is judged.

use std::fmt::Write;
use std::path::Path;

use gradwire_schedule::Algorithm;
use gradwire_topology::{Cluster, Rate};
use serde::{Deserialize, Serialize};

use crate::network::{self, Operation};
use crate::plot::{Axes, Series, plot as draw};
use crate::step::{Calibration, Job, Layout, Practice, Recompute, Transformer, simulate};

const LAB: &str = include_str!("../../../../clusters/lab-1gbit.toml");
const MODEL: &str = include_str!("../../../../demo/model.toml");
const ALL_REDUCES: &str = include_str!("../../data/lab_all_reduce.csv");
const TRAININGS: &str = include_str!("../../data/lab_training.csv");

/// An all-reduce in the lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AllReduce {
    /// Hosts, a rank on each.
    pub hosts: u32,
    /// Rate of each link, such as `200mbit`.
    pub rate: String,
    /// The algorithm.
    pub algorithm: String,
    /// Bytes.
    pub bytes: u64,
    /// Milliseconds, the median.
    pub measured_ms: f64,
    /// Milliseconds.
    #[serde(skip_deserializing)]
    pub predicted_ms: f64,
}

/// A training of the demo's model in the lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Training {
    /// Rate of each link.
    pub rate: String,
    /// Windows of each of the four ranks in a step.
    pub batch: u32,
    /// `ddp` or `parallelize`, uncompressed, on gradwire.
    pub how: String,
    /// Seconds of a step without communication.
    pub computing_s: f64,
    /// Percent of a step in which communication was exposed.
    pub measured_pct: f64,
    /// Percent.
    #[serde(skip_deserializing)]
    pub predicted_pct: f64,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct Lab {
    /// All-reduces.
    pub all_reduces: Vec<AllReduce>,
    /// Trainings.
    pub trainings: Vec<Training>,
}

/// Predicts what was measured.
///
/// # Errors
/// When the data in the tree can't be read.
pub fn lab() -> Result<Lab, String> {
    let cluster = Cluster::parse(Path::new("lab.toml"), LAB).map_err(|fault| fault.to_string())?;
    let mut all_reduces: Vec<AllReduce> = rows(ALL_REDUCES)?;
    for row in &mut all_reduces {
        let links = cluster.resized(row.hosts).with_nic_rate(row.rate.parse::<Rate>()?);
        let algorithm: Algorithm = row.algorithm.parse().map_err(|_| row.algorithm.clone())?;
        let operation = Operation::all_reduce(algorithm, row.hosts, row.bytes);
        row.predicted_ms = 1e3
            * network::simulate(&links, &operation, false)
                .map_err(|fault| fault.to_string())?
                .seconds;
    }
    let mut trainings: Vec<Training> = rows(TRAININGS)?;
    let model = Transformer::parse(Path::new("model.toml"), MODEL);
    let model = model.map_err(|fault| fault.to_string())?;
    for row in &mut trainings {
        let links = cluster.with_nic_rate(row.rate.parse::<Rate>()?);
        row.predicted_pct = 100.0 * share(row, &model, &links)?;
    }
    Ok(Lab { all_reduces, trainings })
}

fn rows<Row: for<'a> Deserialize<'a>>(text: &str) -> Result<Vec<Row>, String> {
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
    reader.deserialize().map(|row| row.map_err(|error| error.to_string())).collect()
}

/// Ranks of the demo.
const RANKS: u32 = 4;

fn share(row: &Training, model: &Transformer, links: &Cluster) -> Result<f64, String> {
    let practice = match row.how.as_str() {
        "ddp" => Practice::gradwire_ddp(),
        "parallelize" => Practice { gradient_bytes: 4.0, ..Practice::parallelize() },
        other => return Err(format!("unknown way to train `{other}`")),
    };
    let job = Job {
        model: model.clone(),
        layout: Layout {
            data: RANKS,
            batch: RANKS * row.batch,
            micro_batch: row.batch,
            zero: 0,
            recompute: Recompute::None,
            ..Layout::default()
        },
        practice,
    };
    let mut calibration = Calibration::default();
    calibration.keep_pace(&job, links, row.computing_s)?;
    let report = simulate(&job, links, &calibration)?;
    // As the demo counts: all that a step takes longer than without communication.
    Ok((report.step_s - row.computing_s) / report.step_s)
}

/// The section of the page, in Markdown.
pub fn section(lab: &Lab) -> String {
    let errors: Vec<f64> =
        lab.all_reduces.iter().map(|it| 100.0 * (it.predicted_ms / it.measured_ms - 1.0)).collect();
    let (mean, near) = summary(&errors, 10.0);
    let mut page = format!(
        "\n## The lab, all-reduces\n\nEvery host a network namespace behind a shaped link, float32, \
         the median of fifteen operations. {near} of {} within 10 %, mean error {mean:.1} %.\n\n\
         ![lab](validation/lab.svg)\n\n\
         | hosts | link | algorithm | MiB | measured | predicted | error |\n\
         |---|---|---|---|---|---|---|\n",
        errors.len()
    );
    for (row, error) in lab.all_reduces.iter().zip(&errors) {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {:.1} ms | {:.1} ms | {error:+.1} % |",
            row.hosts,
            row.rate,
            row.algorithm,
            row.bytes >> 20,
            row.measured_ms,
            row.predicted_ms
        );
    }
    let errors: Vec<f64> =
        lab.trainings.iter().map(|it| it.predicted_pct - it.measured_pct).collect();
    let (mean, near) = summary(&errors, 3.0);
    let _ = write!(
        page,
        "\n## The lab, training\n\nThe demo's model on four hosts, float32, uncompressed: the share of \
         a step that communication is exposed. {near} of {} within 3 points, mean error {mean:.1} \
         points.\n\n\
         | link | windows a rank | | without communication | measured | predicted | error |\n\
         |---|---|---|---|---|---|---|\n",
        errors.len()
    );
    for (row, error) in lab.trainings.iter().zip(&errors) {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {:.2} s | {:.1} % | {:.1} % | {error:+.1} |",
            row.rate, row.batch, row.how, row.computing_s, row.measured_pct, row.predicted_pct
        );
    }
    page
}

/// The mean of absolute values, and how many are at most `limit`.
fn summary(errors: &[f64], limit: f64) -> (f64, usize) {
    let sum: f64 = errors.iter().map(|error| error.abs()).sum();
    let near = errors.iter().filter(|error| error.abs() <= limit).count();
    (sum / errors.len().max(1) as f64, near)
}

/// The plot beside it.
pub fn plot(lab: &Lab) -> String {
    let axes = Axes {
        title: "All-reduces in the lab",
        x: "measured, ms",
        y: "predicted",
        logarithmic: true,
        lines: false,
        diagonal: true,
    };
    let of = |name: &str| Series {
        name: name.to_owned(),
        points: lab
            .all_reduces
            .iter()
            .filter(|row| row.algorithm == name)
            .map(|row| (row.measured_ms, row.predicted_ms))
            .collect(),
    };
    draw(&axes, &[of("ring"), of("direct")])
}
