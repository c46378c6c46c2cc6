//! Judges the tables and writes the page about it.

use std::fmt::Write;
use std::path::Path;

use gradwire_topology::Cluster;
use serde::Serialize;

use super::calibrate::calibrate;
use super::lab::{self, Lab};
use super::networks::{self, NetworkRow};
use super::score::{Point, Score, score};
use super::tables::{Measured, Tables, with_rate};
use crate::plot::{Axes, Series, plot};
use crate::step::{
    Attention, Calibration, Fabric, Job, Layout, Practice, Recompute, Transformer, simulate,
};

/// Whether constants were fitted to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// They were.
    Calibration,
    /// They were not: the table judges.
    Judged,
}

/// One table.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// As the page calls it.
    pub name: String,
    /// A name for files.
    pub key: String,
    /// Whether it judges.
    pub role: Role,
    /// Errors.
    pub score: Score,
    /// Every configuration.
    pub points: Vec<Point>,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct Validation {
    /// What was fitted.
    pub calibration: Calibration,
    /// Table by table.
    pub sections: Vec<Section>,
    /// ZeRO 3 over the network's rate: Gbit/s of each of the eight NICs of a host, TFLOP/s a
    /// device.
    pub zero3_slope: Vec<(f64, f64)>,
    /// GPT-3 175B on 1,024 devices over networks.
    pub networks: Vec<NetworkRow>,
    /// What was measured in the lab.
    pub lab: Lab,
}

/// Rounds of the fit.
const ROUNDS: u32 = 160;

/// Calibrates on the calibration tables and judges the others.
///
/// # Errors
/// When a table can't be read.
pub fn validate(tables: &Tables) -> Result<Validation, String> {
    let single = tables.vtrain_single()?;
    let calibration = calibrate(&single, &tables.all_reduces()?, &tables.points()?, ROUNDS);
    let alone = Calibration {
        fabric: Fabric { interference: 1.0, ..calibration.fabric.clone() },
        ..calibration.clone()
    };
    let mut sections = Vec::new();
    let mut add = |name: &str, key: &str, role, rows: &[Measured], with: &Calibration| {
        let points = predict(rows, with)?;
        let score = score(&points);
        sections.push(Section { name: name.into(), key: key.into(), role, score, points });
        Ok::<(), String>(())
    };
    add("vTrain, one node", "vtrain-single", Role::Calibration, &single, &alone)?;
    let (small, large): (Vec<Measured>, Vec<Measured>) =
        tables.vtrain_multi()?.into_iter().partition(|row| row.job.layout.tensor <= 8);
    add("vTrain, several nodes, tp up to 8", "vtrain-multi", Role::Judged, &small, &calibration)?;
    if !large.is_empty() {
        add("vTrain, several nodes, tp over 8", "vtrain-wide", Role::Judged, &large, &calibration)?;
    }
    let rows = tables.sc21_table1()?;
    add("SC'21 Table 1", "sc21-table1", Role::Judged, &rows, &calibration)?;
    let rows = tables.sc21_table2()?;
    for (scheme, key) in [("PTD-P", "sc21-ptdp"), ("ZeRO-3", "sc21-zero3")] {
        let rows: Vec<Measured> = rows.iter().filter(|it| it.scheme == scheme).cloned().collect();
        add(&format!("SC'21 Table 2, {scheme}"), key, Role::Judged, &rows, &calibration)?;
    }
    let rows = tables.selective()?;
    add("Selective recomputation, Table 5", "selective", Role::Judged, &rows, &calibration)?;
    let zero3_slope = zero3_slope(&calibration)?;
    let networks = networks::networks(&calibration)?;
    Ok(Validation { calibration, sections, zero3_slope, networks, lab: lab::lab()? })
}

/// The null model gives every device of a table the same rate: the one that suits the table best.
fn predict(rows: &[Measured], calibration: &Calibration) -> Result<Vec<Point>, String> {
    let operations = |row: &Measured| {
        let layout = &row.job.layout;
        row.job.model.step_operations(f64::from(layout.batch)) / f64::from(layout.devices())
    };
    let mut rates: Vec<f64> = rows.iter().map(|row| operations(row) / row.seconds).collect();
    rates.sort_by(f64::total_cmp);
    let rate = rates.get(rates.len() / 2).copied().unwrap_or(1.0);
    let point = |row: &Measured| {
        let report = simulate(&row.job, &row.cluster, calibration)?;
        let layout = &row.job.layout;
        let billions = row.job.model.parameters() / 1e9;
        Ok(Point {
            name: format!(
                "{billions:.1}B {} mb{} b{} {}",
                layout.name(),
                layout.micro_batch,
                layout.batch,
                row.scheme
            )
            .trim_end()
            .to_owned(),
            group: row.group.clone(),
            measured: row.seconds,
            predicted: report.step_s,
            null: operations(row) / rate,
        })
    };
    rows.iter().map(point).collect()
}

/// Hosts as those of the ZeRO++ study (arXiv:2306.10209): 16 V100, 1 to 8 NICs of 100 Gbit/s.
const SIXTEEN_V100: &str = "[[hosts]]\ncount = 24\ndevice = \"v100\"\ndevices = 16\n\
    nvlink = \"150GB/s\"\nnics = 8\nnic = \"100gbit\"\nwire = \"infiniband\"\n";

/// 18B parameters under ZeRO 3 on 384 devices, a microbatch of 1, over hosts with 100 to 800 Gbit/s.
fn zero3_slope(calibration: &Calibration) -> Result<Vec<(f64, f64)>, String> {
    let model = Transformer::gpt("18b", 40, 6144, 48, 51200, 1024);
    let layout =
        Layout { data: 384, batch: 384, zero: 3, recompute: Recompute::Full, ..Layout::default() };
    let practice = Practice { attention: Attention::Unfused, ..Practice::default() };
    let job = Job { model, layout, practice };
    let hosts = Cluster::parse(Path::new("cluster.toml"), SIXTEEN_V100)
        .map_err(|fault| fault.to_string())?;
    let point = |gigabits: f64| {
        let cluster = with_rate(&hosts, gigabits / 8.0);
        let report = simulate(&job, &cluster, calibration)?;
        Ok((gigabits, report.flops_per_device / 1e12))
    };
    [100.0, 200.0, 400.0, 800.0].into_iter().map(point).collect()
}

impl Validation {
    /// A section by its key.
    pub fn section(&self, key: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.key == key)
    }

    /// The page, in Markdown; plots are referred to as `validation/KEY.svg`.
    pub fn page(&self) -> String {
        let mut page = String::from(PREFACE);
        page.push_str("\n## Errors\n\n");
        page.push_str(
            "| table | role | rows | MAPE | null | worst | bias | pairs ordered | regret |\n\
             |---|---|---|---|---|---|---|---|---|\n",
        );
        for Section { name, role, score, .. } in &self.sections {
            let role = if *role == Role::Judged { "judged" } else { "calibration" };
            let _ = writeln!(
                page,
                "| {name} | {role} | {} | {:.1} % | {:.1} % | {:.1} % | {:+.1} % | {:.1} % | {:.1} % |",
                score.points,
                score.mape_pct,
                score.null_mape_pct,
                score.worst_pct,
                score.bias_pct,
                score.ordered_pct,
                score.regret_pct
            );
        }
        self.fitted(&mut page);
        self.details(&mut page);
        page
    }

    fn fitted(&self, page: &mut String) {
        let it = &self.calibration.efficiency;
        let _ = write!(
            page,
            "\n## What was fitted\n\n\
             | constant | value |\n|---|---|\n\
             | share of peak of an endless matrix product | {:.3} |\n\
             | share of peak in attention's products | {:.3} |\n\
             | cost of a tile, in steps of the inner dimension | {:.0} |\n\
             | share of memory bandwidth | {:.3} |\n\
             | launch of a kernel | {:.1} us |\n\
             | beginning and end of a kernel | {:.1} us |\n\
             | share of the NICs' payload rate | {:.2} |\n",
            it.product,
            it.attention,
            it.depth,
            it.memory,
            it.launch * 1e6,
            it.kernel * 1e6,
            self.calibration.fabric.network
        );
        for (devices, latency, share) in &self.calibration.fabric.within_host {
            let _ = writeln!(
                page,
                "| all-reduce among {devices} devices of a host | {:.0} us, {share:.2} of the link |",
                latency * 1e6
            );
        }
    }

    fn details(&self, page: &mut String) {
        for section in self.sections.iter().filter(|section| section.role == Role::Judged) {
            let _ = write!(
                page,
                "\n## {}\n\n![{}](validation/{}.svg)\n\n\
                 | configuration | measured | predicted | error |\n|---|---|---|---|\n",
                section.name, section.name, section.key
            );
            for point in &section.points {
                let _ = writeln!(
                    page,
                    "| {} | {:.2} s | {:.2} s | {:+.1} % |",
                    point.name,
                    point.measured,
                    point.predicted,
                    100.0 * (point.predicted / point.measured - 1.0)
                );
            }
        }
        page.push_str(
            "\n## ZeRO 3 over the network\n\nAn 18B model on 24 hosts of 16 V100, one sequence of \
             1024 tokens a device, over the rate of a host, as in the ZeRO++ study (arXiv:2306.10209).\n\n| Gbit/s a host | TFLOP/s a device |\n|---|---|\n",
        );
        for (gigabits, rate) in &self.zero3_slope {
            let _ = writeln!(page, "| {gigabits:.0} | {rate:.1} |");
        }
        page.push_str(&networks::section(&self.networks));
        page.push_str(&lab::section(&self.lab));
    }

    /// The plots: name of the file and its text.
    pub fn plots(&self) -> Vec<(String, String)> {
        let draw = |section: &Section| {
            let axes = Axes {
                title: &section.name,
                x: "measured, seconds of a step",
                y: "predicted",
                logarithmic: true,
                lines: false,
                diagonal: true,
            };
            let of = |value: fn(&Point) -> f64| {
                section.points.iter().map(|point| (point.measured, value(point))).collect()
            };
            let series = [
                Series { name: "gradwire".into(), points: of(|point| point.predicted) },
                Series { name: "null model".into(), points: of(|point| point.null) },
            ];
            (format!("{}.svg", section.key), plot(&axes, &series))
        };
        let networks = ("networks.svg".to_owned(), networks::plot(&self.networks));
        let lab = ("lab.svg".to_owned(), lab::plot(&self.lab));
        self.sections.iter().map(draw).chain([networks, lab]).collect()
    }
}

const PREFACE: &str = include_str!("preface.md");
