//! The arguments that `simulate` and `plan` share: which cluster, which model, how it is run.

use std::fs;
use std::path::{Path, PathBuf};

use gradwire_sim::step::{
    Attention, Calibration, Carrier, Job, Layout, PipelineOrder, Practice, Recompute, Transformer,
};
use gradwire_sim::validation::NcclLog;
use gradwire_topology::{Cluster, Rate};

use crate::failure::Failure;

/// Which cluster and model.
#[derive(Clone, Debug, clap::Args)]
pub struct Setting {
    /// The cluster file.
    #[arg(long, value_name = "FILE")]
    pub cluster: PathBuf,
    /// A model's name (gpt3-175b, llama3-70b, ...), a Hugging Face config.json, or a TOML file.
    #[arg(long, value_name = "NAME|FILE")]
    pub model: Option<String>,
    /// Devices to use, all of the cluster's by default; a cluster of one kind of host is enlarged.
    #[arg(long, value_name = "N")]
    pub ranks: Option<u32>,
    /// Rate of each NIC, instead of the file's.
    #[arg(long, value_name = "RATE")]
    pub nic: Option<Rate>,
    /// Sequences of a step, of all devices together; about 4 million tokens by default.
    #[arg(long, value_name = "N")]
    pub batch: Option<u32>,
    /// Tokens of a sequence, instead of the model's.
    #[arg(long, value_name = "N")]
    pub sequence: Option<u64>,
    /// A log of nccl-tests' all_reduce_perf on this cluster: bandwidths are taken from it.
    #[arg(long, value_name = "FILE")]
    pub nccl_log: Option<PathBuf>,
    /// Constants instead of the built-in ones, as `gradwire calibrate --out` writes them.
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// Seconds of a step without communication, if you have measured it: computation is made as
    /// fast as that.
    #[arg(long, value_name = "SECONDS")]
    pub step_seconds: Option<f64>,
    /// How the framework runs a step.
    #[arg(long, value_enum, default_value_t = Framework::Today)]
    pub framework: Framework,
    /// Bits of an element of a gradient, instead of the framework's: 16 or 32.
    #[arg(long, value_name = "BITS", value_parser = ["16", "32"])]
    pub gradient_bits: Option<String>,
}

/// A framework's practice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Framework {
    /// Fused attention, gradients and parameters travel under computation.
    Today,
    /// PyTorch's DDP or FSDP over NCCL, gradients in 32 bits.
    Ddp,
    /// Megatron-LM of 2021: unfused attention, nothing overlaps.
    Megatron2021,
    /// DeepSpeed's ZeRO 3 of 2021.
    Deepspeed2021,
    /// gradwire between hosts: `gradwire.parallelize`, or ZeRO.
    Gradwire,
    /// PyTorch's DDP on gradwire, gradients in 32 bits.
    GradwireDdp,
}

impl Framework {
    /// Its practice.
    pub fn practice(self) -> Practice {
        match self {
            Framework::Today => Practice::default(),
            Framework::Ddp => Practice::ddp(),
            Framework::GradwireDdp => Practice::gradwire_ddp(),
            Framework::Megatron2021 => Practice::megatron_2021(),
            Framework::Deepspeed2021 => Practice::deepspeed_2021(),
            Framework::Gradwire => Practice::parallelize(),
        }
    }
}

impl Setting {
    /// How a step is run.
    pub fn practice(&self) -> Practice {
        let mut practice = self.framework.practice();
        if let Some(bits) = &self.gradient_bits {
            practice.gradient_bytes = if bits == "16" { 2.0 } else { 4.0 };
        }
        practice
    }

    /// Changes the constants so that computing a step takes as long as was measured.
    pub fn keep_pace(
        &self,
        job: &Job,
        cluster: &Cluster,
        calibration: &mut Calibration,
    ) -> Result<(), String> {
        match self.step_seconds {
            None => Ok(()),
            Some(seconds) if seconds > 0.0 && seconds.is_finite() => {
                calibration.keep_pace(job, cluster, seconds)
            }
            Some(seconds) => Err(format!("--step-seconds {seconds} must be above 0")),
        }
    }
}

/// A usage error of a subcommand.
pub fn usage(command: &str, text: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("{command}: {text}"))
}

impl Setting {
    /// The cluster, with as many hosts as the ranks need.
    pub fn cluster(&self) -> Result<Cluster, Failure> {
        let mut cluster =
            Cluster::read(&self.cluster).map_err(|fault| Failure::usage(fault.to_string()))?;
        if let Some(ranks) = self.ranks {
            let devices = cluster.device_count();
            if ranks == 0 || ranks > 1 << 20 {
                return Err(Failure::usage(format!("--ranks {ranks} must be 1 to 1048576")));
            }
            if ranks > devices && !cluster.is_uniform() {
                return Err(Failure::usage(format!(
                    "--ranks {ranks}: {} has {devices} devices on several kinds of hosts; use up to \
                     {devices}",
                    cluster.name
                )));
            }
            if cluster.is_uniform() {
                cluster = cluster.resized(ranks.div_ceil(cluster.host().devices));
            }
        }
        if let Some(rate) = self.nic {
            if rate.0 <= 0.0 {
                return Err(Failure::usage("--nic must be above 0, such as 100gbit"));
            }
            cluster = cluster.with_nic_rate(rate);
        }
        Ok(cluster)
    }

    /// The model.
    pub fn model(&self) -> Result<Transformer, Failure> {
        let Some(name) = &self.model else {
            return Err(Failure::usage("--model is missing: a name, a config.json or a TOML file"));
        };
        let mut model = find_model(name)?;
        if let Some(sequence) = self.sequence {
            if !(1..=1 << 24).contains(&sequence) {
                return Err(Failure::usage("--sequence must be 1 to 16777216"));
            }
            model.sequence = sequence;
        }
        Ok(model)
    }

    /// Devices to use.
    pub fn devices(&self, cluster: &Cluster) -> u32 {
        self.ranks.unwrap_or(cluster.device_count())
    }

    /// Sequences of a step.
    pub fn batch(&self, model: &Transformer, devices: u32) -> u32 {
        self.batch.unwrap_or_else(|| {
            let sequences = (4_194_304 / model.sequence).max(1) as u32;
            sequences.div_ceil(devices) * devices
        })
    }

    /// The constants.
    pub fn calibration(&self, cluster: &Cluster) -> Result<Calibration, Failure> {
        let mut calibration = match &self.calibration {
            None => Calibration::default(),
            Some(path) => serde_json::from_str(&read(path)?)
                .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?,
        };
        if let Some(path) = &self.nccl_log {
            NcclLog::parse(&read(path)?)
                .and_then(|log| log.apply(cluster, &mut calibration.fabric))
                .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        }
        Ok(calibration)
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

fn find_model(name: &str) -> Result<Transformer, Failure> {
    if let Some(model) = Transformer::named(name) {
        return Ok(model);
    }
    let path = Path::new(name);
    if path.exists() || path.extension().is_some_and(|it| it == "json" || it == "toml") {
        return Transformer::read(path).map_err(|fault| Failure::usage(fault.to_string()));
    }
    Err(Failure::usage(format!(
        "unknown model `{name}`; known are {}, or name a config.json or TOML file",
        Transformer::names().join(", ")
    )))
}

/// A layout as arguments; what is not given is chosen by the planner.
#[derive(Clone, Debug, clap::Args)]
pub struct LayoutArgs {
    /// Devices that share each matrix.
    #[arg(long, value_name = "N")]
    pub tp: Option<u32>,
    /// Pipeline stages.
    #[arg(long, value_name = "N")]
    pub pp: Option<u32>,
    /// Devices that share each sequence.
    #[arg(long, value_name = "N")]
    pub cp: Option<u32>,
    /// Devices that share experts.
    #[arg(long, value_name = "N")]
    pub ep: Option<u32>,
    /// Chunks of layers on each stage.
    #[arg(long, value_name = "N")]
    pub interleave: Option<u32>,
    /// Sequences of a microbatch.
    #[arg(long, value_name = "N")]
    pub micro_batch: Option<u32>,
    /// ZeRO stage: 0 to 3.
    #[arg(long, value_name = "STAGE")]
    pub zero: Option<u8>,
    /// What is computed again.
    #[arg(long, value_enum)]
    pub recompute: Option<RecomputeArg>,
    /// Zero-bubble pipeline.
    #[arg(long)]
    pub zero_bubble: bool,
    /// Norms and dropout are shared by the tensor group.
    #[arg(long)]
    pub sequence_parallel: bool,
    /// Attention as kernels of its own, through memory.
    #[arg(long)]
    pub unfused_attention: bool,
    /// Steps between two exchanges of gradients.
    #[arg(long, value_name = "N")]
    pub local_steps: Option<u32>,
    /// Compress gradients between hosts: fp16, int8, int6, adaptive, int4, one-bit, top-1%.
    #[arg(long, value_name = "NAME")]
    pub compress: Option<String>,
}

/// See [`Recompute`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecomputeArg {
    /// Nothing.
    None,
    /// Attention scores.
    Selective,
    /// Whole layers.
    Full,
}

impl LayoutArgs {
    /// Whether a layout is given, as opposed to one that the planner should choose.
    pub fn is_given(&self) -> bool {
        self.tp.is_some()
            || self.pp.is_some()
            || self.cp.is_some()
            || self.micro_batch.is_some()
            || self.zero.is_some()
    }

    /// The layout on so many devices.
    pub fn layout(&self, devices: u32, batch: u32) -> Result<Layout, String> {
        let (tensor, pipeline) = (self.tp.unwrap_or(1), self.pp.unwrap_or(1));
        let context = self.cp.unwrap_or(1);
        let each = u64::from(tensor) * u64::from(pipeline) * u64::from(context);
        if each == 0 || !u64::from(devices).is_multiple_of(each) {
            return Err(format!(
                "tp {tensor} x pp {pipeline} x cp {context} does not divide {devices} devices; use \
                 sizes whose product does"
            ));
        }
        Ok(Layout {
            tensor,
            pipeline,
            context,
            data: devices / each as u32,
            expert: self.ep.unwrap_or(1),
            interleave: self.interleave.unwrap_or(1),
            micro_batch: self.micro_batch.unwrap_or(1),
            batch,
            zero: self.zero.unwrap_or(1),
            sequence_parallel: self.sequence_parallel,
            recompute: match self.recompute.unwrap_or(RecomputeArg::Full) {
                RecomputeArg::None => Recompute::None,
                RecomputeArg::Selective => Recompute::Selective,
                RecomputeArg::Full => Recompute::Full,
            },
            order: if self.zero_bubble {
                PipelineOrder::ZeroBubble
            } else {
                PipelineOrder::OneForwardOneBackward
            },
        })
    }

    /// Changes the practice where arguments say so.
    pub fn adjust(&self, practice: &mut Practice) -> Result<(), String> {
        if self.unfused_attention {
            practice.attention = Attention::Unfused;
        }
        if let Some(steps) = self.local_steps {
            practice.local_steps = steps.max(1);
        }
        if let Some(name) = &self.compress {
            let all = gradwire_sim::planner::compressions(practice.gradient_bytes);
            let known: Vec<String> = all.iter().map(|it| it.name.clone()).collect();
            let found = all.into_iter().find(|it| it.name == *name);
            let found = found.ok_or_else(|| {
                format!("there is no compression `{name}`; there are {}", known.join(", "))
            })?;
            practice.compression = Some(found);
            practice.carrier = Carrier::Gradwire;
        }
        Ok(())
    }
}
