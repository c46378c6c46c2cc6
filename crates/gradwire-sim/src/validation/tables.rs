//! The measured tables, as jobs with what was measured.

use std::path::Path;

use gradwire_topology::{Cluster, Device, Rate};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::step::{Job, Layout, Practice, Recompute, Transformer};

/// A job that was measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The job.
    pub job: Job,
    /// Where it ran.
    pub cluster: Cluster,
    /// Seconds of a step.
    pub seconds: f64,
    /// Configurations that can be compared.
    pub group: String,
    /// A second label, such as the scheme.
    pub scheme: String,
}

/// The tables that stand in the source tree, each with its source in its first line.
pub const TABLES: [(&str, &str); 9] = [
    ("vtrain_single_node_a100.csv", include_str!("../../data/vtrain_single_node_a100.csv")),
    ("vtrain_multi_node_a100.csv", include_str!("../../data/vtrain_multi_node_a100.csv")),
    ("vtrain_allreduce_intranode.csv", include_str!("../../data/vtrain_allreduce_intranode.csv")),
    ("nccl_points_from_issues.csv", include_str!("../../data/nccl_points_from_issues.csv")),
    ("megatron_sc21_table1.csv", include_str!("../../data/megatron_sc21_table1.csv")),
    (
        "megatron_sc21_table2_ptd_vs_zero3.csv",
        include_str!("../../data/megatron_sc21_table2_ptd_vs_zero3.csv"),
    ),
    (
        "seqsel_table4_layer_time_22B.csv",
        include_str!("../../data/seqsel_table4_layer_time_22B.csv"),
    ),
    (
        "seqsel_table5_iteration_time.csv",
        include_str!("../../data/seqsel_table5_iteration_time.csv"),
    ),
    ("llama3_table4_mfu.csv", include_str!("../../data/llama3_table4_mfu.csv")),
];

/// Where tables come from.
#[derive(Clone, Debug)]
pub struct Tables<'a> {
    directory: Option<&'a Path>,
}

#[derive(Debug, Deserialize)]
struct VtrainRow {
    #[serde(rename = "Parameters (billion)")]
    billions: Option<f64>,
    num_gpus: u32,
    #[serde(rename = "global batch")]
    batch: u32,
    #[serde(rename = "micro batch")]
    micro_batch: u32,
    #[serde(rename = "hidden size")]
    hidden: u64,
    #[serde(rename = "attention heads")]
    heads: u64,
    num_layers: u32,
    #[serde(rename = "sequence length")]
    sequence: u64,
    #[serde(rename = "tensor parallelism")]
    tensor: u32,
    #[serde(rename = "data parallelism")]
    data: u32,
    #[serde(rename = "pipeline parallelism")]
    pipeline: u32,
    #[serde(rename = "iteration time (ms)")]
    milliseconds: f64,
}

/// A measured all-reduce.
#[derive(Clone, Debug, Deserialize)]
pub struct AllReduceRow {
    /// Kind of device.
    pub gpu: String,
    /// Devices.
    pub num_gpus: u32,
    /// Bytes.
    pub size_bytes: f64,
    /// Nanoseconds, out of place.
    pub time_oop_ns: f64,
}

/// A bandwidth that users reported.
#[derive(Clone, Debug, Deserialize)]
pub struct PointRow {
    /// Kind of device.
    pub gpu: String,
    /// Hosts.
    pub nodes: String,
    /// NICs of a host.
    pub nic_per_node: String,
    /// Algorithm.
    pub algo: String,
    /// Bus bandwidth in GB/s, or a range.
    #[serde(rename = "busbw_GBps")]
    pub bus: String,
    /// Whether it is as it should be.
    pub kind: String,
}

#[derive(Debug, Deserialize)]
struct Table1Row {
    heads: u64,
    hidden: u64,
    layers: u32,
    tp: u32,
    pp: u32,
    gpus: u32,
    batch: u32,
    tflops_per_gpu: f64,
    microbatch: u32,
    layers_per_virtual_stage: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Table2Row {
    scheme: String,
    params_b: f64,
    mp: u32,
    batch: String,
    gpus: u32,
    microbatch: u32,
    tflops_per_gpu: f64,
}

#[derive(Debug, Deserialize)]
struct Table5Row {
    heads: u64,
    hidden: u64,
    layers: u32,
    tp: u32,
    pp: u32,
    gpus: u32,
    batch: u32,
    microbatch: u32,
    iter_s_full_recompute: f64,
    iter_s_seqpar_selective: f64,
}

/// DGX A100 as in Selene: eight HDR NICs.
const SELENE: &str = include_str!("../../../../clusters/dgx-a100-infiniband.toml");
/// The hosts of vTrain's study: four HDR NICs.
const FOUR_NICS: &str = include_str!("../../../../clusters/a100-4-nics.toml");

fn cluster(text: &str, hosts: u32, device: &str) -> Cluster {
    let cluster = Cluster::parse(Path::new("cluster.toml"), text).expect("a file of this project");
    let mut cluster = Cluster { tiers: Vec::new(), ..cluster.resized(hosts) };
    cluster.hosts[0].device = Device::named(device).expect("a known device");
    cluster
}

/// Selene with so many devices.
pub fn selene(devices: u32) -> Cluster {
    cluster(SELENE, devices.div_ceil(8), "a100-80g")
}

impl<'a> Tables<'a> {
    /// Tables of a directory, or those of the source tree.
    pub fn new(directory: Option<&'a Path>) -> Self {
        Self { directory }
    }

    fn text(&self, name: &str) -> Result<String, String> {
        match self.directory {
            Some(directory) => {
                let path = directory.join(name);
                std::fs::read_to_string(&path)
                    .map_err(|error| format!("{}: {error}", path.display()))
            }
            None => {
                let table = TABLES.iter().find(|table| table.0 == name);
                table.map(|it| it.1.to_owned()).ok_or_else(|| format!("there is no table {name}"))
            }
        }
    }

    fn rows<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<T>, String> {
        let text = self.text(name)?;
        let reader = csv::ReaderBuilder::new()
            .comment(Some(b'#'))
            .flexible(true)
            .from_reader(text.as_bytes());
        let rows: Result<Vec<T>, csv::Error> = reader.into_deserialize().collect();
        rows.map_err(|error| format!("{name}: {error}"))
    }

    fn vtrain(&self, name: &str, judged: bool) -> Result<Vec<Measured>, String> {
        let rows: Vec<VtrainRow> = self.rows(name)?;
        // The single-node steps kept all activations: a stage with more layers to compute again is no
        // slower than one with fewer.
        let recompute = if judged { Recompute::Full } else { Recompute::None };
        // That study's Adam works on 16-bit parameters without a master copy: 22 bytes each. The 1.13
        // TB/s that its rows then show are those of the 40 GB device.
        let practice = if judged {
            Practice::megatron_2021()
        } else {
            Practice { optimizer_bytes: 22.0, ..Practice::megatron_2021() }
        };
        let device = if judged { "a100-80g" } else { "a100-40g" };
        let measured = |row: VtrainRow| {
            let model = Transformer::gpt(
                "gpt",
                row.num_layers,
                row.hidden,
                row.heads,
                // The single-node study left GPT-2's vocabulary as it is; Megatron-LM pads it.
                if judged { 51200 } else { 50257 },
                row.sequence,
            );
            let layout = Layout {
                tensor: row.tensor,
                data: row.data,
                pipeline: row.pipeline,
                micro_batch: row.micro_batch,
                batch: row.batch,
                recompute,
                ..Layout::default()
            };
            Measured {
                group: format!("{}B", row.billions.unwrap_or(0.0)),
                scheme: String::new(),
                job: Job { model, layout, practice: practice.clone() },
                cluster: cluster(FOUR_NICS, row.num_gpus.div_ceil(8), device),
                seconds: row.milliseconds / 1e3,
            }
        };
        Ok(rows.into_iter().map(measured).collect())
    }

    /// vTrain's steps on one node: calibration.
    pub fn vtrain_single(&self) -> Result<Vec<Measured>, String> {
        self.vtrain("vtrain_single_node_a100.csv", false)
    }

    /// vTrain's steps on several nodes: judged.
    pub fn vtrain_multi(&self) -> Result<Vec<Measured>, String> {
        self.vtrain("vtrain_multi_node_a100.csv", true)
    }

    /// All-reduces within a node: calibration.
    pub fn all_reduces(&self) -> Result<Vec<AllReduceRow>, String> {
        self.rows("vtrain_allreduce_intranode.csv")
    }

    /// Reported bandwidths: calibration, those between nodes only.
    pub fn points(&self) -> Result<Vec<PointRow>, String> {
        self.rows("nccl_points_from_issues.csv")
    }

    /// SC'21 Table 1: judged.
    pub fn sc21_table1(&self) -> Result<Vec<Measured>, String> {
        let rows: Vec<Table1Row> = self.rows("megatron_sc21_table1.csv")?;
        let measured = |row: Table1Row| {
            let model = Transformer::gpt("gpt", row.layers, row.hidden, row.heads, 51200, 2048);
            let per_stage = row.layers / row.pp;
            let interleave = row.layers_per_virtual_stage.map_or(1, |it| per_stage / it);
            let layout = Layout {
                tensor: row.tp,
                pipeline: row.pp,
                data: row.gpus / row.tp / row.pp,
                batch: row.batch,
                micro_batch: row.microbatch,
                interleave,
                ..Layout::default()
            };
            Measured {
                seconds: seconds_of(&model, row.batch, row.gpus, row.tflops_per_gpu),
                group: "all".to_owned(),
                scheme: format!("{:.1}B", model.parameters() / 1e9),
                job: Job { model, layout, practice: Practice::megatron_2021() },
                cluster: selene(row.gpus),
            }
        };
        Ok(rows.into_iter().map(measured).collect())
    }

    /// SC'21 Table 2: judged.
    pub fn sc21_table2(&self) -> Result<Vec<Measured>, String> {
        let rows: Vec<Table2Row> = self.rows("megatron_sc21_table2_ptd_vs_zero3.csv")?;
        let measured = |row: Table2Row| {
            let large = row.params_b > 300.0;
            let name = if large { "megatron-530b" } else { "gpt3-175b" };
            let model = Transformer::named(name).expect("a known model");
            let batch: u32 = row.batch.trim_end_matches('*').parse().unwrap_or(1);
            let zero = row.scheme.starts_with("ZeRO");
            let (tensor, pipeline) = if zero { (1, 1) } else { (8, row.mp / 8) };
            let layout = Layout {
                tensor,
                pipeline,
                data: row.gpus / tensor / pipeline,
                batch,
                micro_batch: row.microbatch,
                zero: if zero { 3 } else { 0 },
                ..Layout::default()
            };
            let practice =
                if zero { Practice::deepspeed_2021() } else { Practice::megatron_2021() };
            Measured {
                seconds: seconds_of(&model, batch, row.gpus, row.tflops_per_gpu),
                group: format!("{} {}B", row.scheme, row.params_b),
                scheme: row.scheme,
                job: Job { model, layout, practice },
                cluster: selene(row.gpus),
            }
        };
        Ok(rows.into_iter().map(measured).collect())
    }

    /// Table 5 of arXiv:2205.05198: judged. Each row gives two jobs.
    pub fn selective(&self) -> Result<Vec<Measured>, String> {
        let rows: Vec<Table5Row> = self.rows("seqsel_table5_iteration_time.csv")?;
        let both = |row: Table5Row| {
            let model = Transformer::gpt("gpt", row.layers, row.hidden, row.heads, 51200, 2048);
            let interleave = if row.pp == 8 || row.pp == 35 { 3 } else { 1 };
            let full = Layout {
                tensor: row.tp,
                pipeline: row.pp,
                data: row.gpus / row.tp / row.pp,
                batch: row.batch,
                micro_batch: row.microbatch,
                interleave: if row.layers.is_multiple_of(row.pp * interleave) {
                    interleave
                } else {
                    1
                },
                ..Layout::default()
            };
            let selective =
                Layout { recompute: Recompute::Selective, sequence_parallel: true, ..full };
            let make = |layout: Layout, seconds, scheme: &str| Measured {
                job: Job { model: model.clone(), layout, practice: Practice::megatron_2022() },
                cluster: selene(row.gpus),
                seconds,
                group: format!("{:.0}B", model.parameters() / 1e9),
                scheme: scheme.to_owned(),
            };
            [
                make(full, row.iter_s_full_recompute, "full"),
                make(selective, row.iter_s_seqpar_selective, "selective"),
            ]
        };
        Ok(rows.into_iter().flat_map(both).collect())
    }
}

/// Seconds of a step that reaches so many TFLOP/s a device, counted as SC'21 does: with the
/// forward pass twice (equation 3 of arXiv:2104.04473).
fn seconds_of(model: &Transformer, batch: u32, devices: u32, tflops: f64) -> f64 {
    let (b, s) = (f64::from(batch), model.sequence as f64);
    let (l, h, v) = (f64::from(model.layers), model.hidden as f64, model.vocabulary as f64);
    let operations = 96.0 * b * s * l * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h));
    operations / (tflops * 1e12 * f64::from(devices))
}

/// The same cluster with another rate of its NICs, for what-if questions.
pub fn with_rate(cluster: &Cluster, gigabits: f64) -> Cluster {
    cluster.with_nic_rate(Rate(gigabits * 1e9 / 8.0))
}
