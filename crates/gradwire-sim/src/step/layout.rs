//! How a model is spread over devices, and how its training is run.

use gradwire_schedule::Algorithm;
use gradwire_topology::Cluster;
use serde::{Serialize, Serializer};

use super::model::Transformer;

/// What a backward pass computes again instead of keeping it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing: all activations are kept.
    None,
    /// Attention scores and their softmax (arXiv:2205.05198).
    Selective,
    /// Whole layers: only their inputs are kept.
    Full,
}

/// In which order a pipeline stage does its forward and backward passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PipelineOrder {
    /// One forward, one backward (PipeDream-Flush); interleaved if there are several chunks.
    OneForwardOneBackward,
    /// ZB-H1 of "Zero Bubble Pipeline Parallelism" (arXiv:2401.10241): the gradients of weights are
    /// computed when there is nothing else to do.
    ZeroBubble,
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Attention {
    /// Scores, softmax and dropout as kernels of their own, through memory.
    Unfused,
    /// One kernel (FlashAttention).
    Flash,
}

/// How many devices share what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Layout {
    /// Devices that share each matrix.
    pub tensor: u32,
    /// Devices that share each sequence.
    pub context: u32,
    /// Stages.
    pub pipeline: u32,
    /// Copies.
    pub data: u32,
    /// Devices (of those that hold copies) that share the experts of a layer.
    pub expert: u32,
    /// Chunks of layers on each stage: more than one is the interleaved schedule.
    pub interleave: u32,
    /// Sequences of a microbatch.
    pub micro_batch: u32,
    /// Sequences of a step, of all devices together.
    pub batch: u32,
    /// What copies share: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too.
    pub zero: u8,
    /// Whether norms and dropout are shared by the tensor group (sequence parallelism).
    pub sequence_parallel: bool,
    /// What is computed again.
    pub recompute: Recompute,
    /// The order of passes.
    pub order: PipelineOrder,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            tensor: 1,
            context: 1,
            pipeline: 1,
            data: 1,
            expert: 1,
            interleave: 1,
            micro_batch: 1,
            batch: 1,
            zero: 0,
            sequence_parallel: false,
            recompute: Recompute::Full,
            order: PipelineOrder::OneForwardOneBackward,
        }
    }
}

impl Layout {
    /// Devices that it takes.
    pub fn devices(&self) -> u32 {
        self.tensor * self.context * self.pipeline * self.data
    }

    /// Microbatches that each copy works through in a step.
    pub fn micro_batches(&self) -> u32 {
        self.batch / (self.data * self.micro_batch)
    }

    /// As people write it: `tp8 pp12 dp4`.
    pub fn name(&self) -> String {
        let mut name = format!("tp{} pp{} dp{}", self.tensor, self.pipeline, self.data);
        if self.context > 1 {
            name.push_str(&format!(" cp{}", self.context));
        }
        if self.expert > 1 {
            name.push_str(&format!(" ep{}", self.expert));
        }
        if self.interleave > 1 {
            name.push_str(&format!(" x{}", self.interleave));
        }
        if self.zero > 0 {
            name.push_str(&format!(" zero{}", self.zero));
        }
        name
    }

    /// Whether the model can be laid out so on the cluster.
    ///
    /// # Errors
    /// One line that says what doesn't fit and what would.
    pub fn check(&self, model: &Transformer, cluster: &Cluster) -> Result<(), String> {
        self.check_sizes()?;
        self.check_model(model)?;
        let (wanted, there) = (self.devices(), cluster.device_count());
        if wanted > there {
            return Err(format!(
                "{} takes {wanted} devices, {} has {there}; use fewer copies or stages, or more hosts",
                self.name(),
                cluster.name
            ));
        }
        if !cluster.is_uniform() {
            return Err(format!(
                "{} has {} kinds of hosts; a training step is modelled on one kind",
                cluster.name,
                cluster.hosts.len()
            ));
        }
        Ok(())
    }

    fn check_sizes(&self) -> Result<(), String> {
        let sizes = [
            ("tp", self.tensor),
            ("cp", self.context),
            ("pp", self.pipeline),
            ("dp", self.data),
            ("ep", self.expert),
            ("interleave", self.interleave),
            ("micro batch", self.micro_batch),
            ("batch", self.batch),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(format!("{name} is 0, must be at least 1"));
        }
        if sizes.iter().any(|(_, size)| *size > 1 << 20) {
            return Err("sizes of a layout go up to 1048576".to_owned());
        }
        let product = [self.tensor, self.context, self.pipeline, self.data];
        if product.iter().map(|size| u64::from(*size)).product::<u64>() > 1 << 20 {
            return Err("the layout takes more than 1048576 devices".to_owned());
        }
        if self.zero > 3 {
            return Err(format!("zero is {}, must be 0 to 3", self.zero));
        }
        let per_round = u64::from(self.data) * u64::from(self.micro_batch);
        if !u64::from(self.batch).is_multiple_of(per_round) {
            let near = u64::from(self.batch).div_ceil(per_round) * per_round;
            return Err(format!(
                "a batch of {} can't be divided over dp {} in microbatches of {}; use {near}",
                self.batch, self.data, self.micro_batch
            ));
        }
        Ok(())
    }

    fn check_model(&self, model: &Transformer) -> Result<(), String> {
        let tensor = u64::from(self.tensor);
        if !model.heads.is_multiple_of(tensor) {
            let fits: Vec<String> = divisors(model.heads).map(|it| it.to_string()).collect();
            return Err(format!(
                "tp {tensor} does not divide the {} heads of {}; use one of {}",
                model.heads,
                model.name,
                fits.join(", ")
            ));
        }
        if !model.sequence.is_multiple_of(u64::from(self.context)) {
            return Err(format!(
                "cp {} does not divide sequences of {} tokens",
                self.context, model.sequence
            ));
        }
        let chunks = self.pipeline * self.interleave;
        if chunks > model.layers {
            return Err(format!(
                "pp {} in {} chunks needs {chunks} layers, {} has {}",
                self.pipeline, self.interleave, model.name, model.layers
            ));
        }
        if self.interleave > 1 && self.pipeline < 2 {
            return Err("interleaving needs a pipeline; use pp of at least 2".to_owned());
        }
        if self.interleave > 1 && !self.micro_batches().is_multiple_of(self.pipeline) {
            return Err(format!(
                "interleaving needs microbatches in multiples of pp {}, there are {}",
                self.pipeline,
                self.micro_batches()
            ));
        }
        if self.interleave > 1 && self.order == PipelineOrder::ZeroBubble {
            return Err("zero-bubble works on one chunk a stage; use interleave 1".to_owned());
        }
        match model.experts {
            None if self.expert > 1 => {
                Err(format!("ep {}: {} has no experts; use ep 1", self.expert, model.name))
            }
            Some(experts) if !experts.count.is_multiple_of(u64::from(self.expert)) => Err(format!(
                "ep {} does not divide the {} experts of {}",
                self.expert, experts.count, model.name
            )),
            _ if !(self.data * self.context).is_multiple_of(self.expert) => Err(format!(
                "ep {} does not divide dp {} x cp {}",
                self.expert, self.data, self.context
            )),
            _ => Ok(()),
        }
    }
}

/// The divisors of a number, ascending.
pub fn divisors(number: u64) -> impl Iterator<Item = u64> {
    (1..=number).filter(move |it| number.is_multiple_of(*it))
}

/// How gradients are made smaller on their way between copies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compression {
    /// As the planner calls it.
    pub name: String,
    /// Bits on the wire for each element.
    pub bits: f64,
    /// Bytes of gradient that one rank encodes (or decodes) in a second.
    pub rate: f64,
    /// By how many percent the final loss is higher: the upper end of what was measured.
    pub loss_pct: f64,
    /// Pairs of training runs in which it was measured.
    pub pairs: u32,
}

/// How a training framework runs a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Practice {
    /// How attention is computed.
    pub attention: Attention,
    /// Bytes of one element of a gradient between copies.
    pub gradient_bytes: f64,
    /// Bytes that the optimizer reads and writes for each parameter.
    pub optimizer_bytes: f64,
    /// Whether gradients travel while the last microbatch is still computed.
    pub overlap_gradients: bool,
    /// Whether parameters (ZeRO 3, or those of ZeRO 1 and 2 after a step) travel under the forward
    /// pass.
    pub overlap_parameters: bool,
    /// Whether tensor-parallel collectives travel under independent matrix products.
    pub overlap_tensor: bool,
    /// Whether those of the backward pass travel under the products of weights' gradients, which do
    /// not need their results.
    pub overlap_weights: bool,
    /// Whether matrix products add to the gradients of earlier microbatches themselves; otherwise
    /// kernels of their own do.
    pub fused_accumulation: bool,
    /// Whether each rank of a tensor group sends only its part to the next stage.
    pub scatter_gather: bool,
    /// Whether all-reduced gradients that are not there by the end of the backward pass travel under
    /// the next forward pass, each needed by its own layer only (ZeRO has parameters do that).
    pub overlap_next_forward: bool,
    /// Bytes of gradients that are fused.
    pub bucket_bytes: f64,
    /// Bytes of the first gradients that are fused, those of the last layers.
    pub first_bucket_bytes: f64,
    /// Steps between two exchanges of gradients (1 is every step; more are local updates).
    pub local_steps: u32,
    /// How gradients are compressed between hosts.
    pub compression: Option<Compression>,
    /// What carries collectives.
    pub carrier: Carrier,
    /// How gradwire's ranks exchange what their hosts have reduced: direct (`hierarchical`) or around
    /// a ring (`hierarchical-ring`); the engine's choice if `None`. Codecs are always direct.
    #[serde(serialize_with = "by_name")]
    pub between_hosts: Option<Algorithm>,
}

fn by_name<S: Serializer>(algorithm: &Option<Algorithm>, to: S) -> Result<S::Ok, S::Error> {
    algorithm.map_or("automatic", Algorithm::name).serialize(to)
}

/// The library that carries collectives between copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// NCCL: kernels on the device, rings and trees.
    Nccl,
    /// gradwire: ranks of one host reduce first, hosts then exchange over all their NICs.
    Gradwire,
    /// Each parameter by itself through the one NIC of its rank: DeepSpeed's ZeRO 3 of 2021.
    PerParameter,
}

impl Default for Practice {
    /// What Megatron-Core and PyTorch do today.
    fn default() -> Self {
        Self {
            attention: Attention::Flash,
            gradient_bytes: 2.0,
            // Master copy and two moments both ways in 32 bits, the gradient (again for its norm),
            // the parameter in 16 bits.
            optimizer_bytes: 32.0,
            overlap_gradients: true,
            overlap_parameters: true,
            overlap_tensor: false,
            overlap_weights: true,
            fused_accumulation: true,
            scatter_gather: true,
            overlap_next_forward: false,
            bucket_bytes: 40e6 * 2.0,
            first_bucket_bytes: 40e6 * 2.0,
            local_steps: 1,
            compression: None,
            carrier: Carrier::Nccl,
            between_hosts: None,
        }
    }
}

/// PyTorch's first bucket and the others, `DistributedDataParallel`'s defaults.
const DDP_BUCKETS: (f64, f64) = (1_048_576.0, 25.0 * 1_048_576.0);
/// As far as `gradwire.parallelize` merges small gradients.
const MERGED: f64 = 4.0 * 1_048_576.0;
/// Most buckets that are told apart.
const MOST_BUCKETS: f64 = 4096.0;

impl Practice {
    /// Bytes of each bucket, in the order in which gradients become ready.
    pub fn buckets(&self, bytes: f64) -> Vec<f64> {
        let full = self.bucket_bytes.max(bytes / MOST_BUCKETS);
        let first = self.first_bucket_bytes.min(full).min(bytes);
        let mut left = bytes - first;
        let mut buckets = vec![first];
        while left > 0.0 {
            buckets.push(left.min(full));
            left -= full;
        }
        buckets
    }

    /// PyTorch's DDP over NCCL, gradients in 32 bits.
    pub fn ddp() -> Self {
        Self {
            gradient_bytes: 4.0,
            first_bucket_bytes: DDP_BUCKETS.0,
            bucket_bytes: DDP_BUCKETS.1,
            ..Self::default()
        }
    }

    /// PyTorch's DDP on gradwire.
    pub fn gradwire_ddp() -> Self {
        Self { carrier: Carrier::Gradwire, ..Self::ddp() }
    }

    /// `gradwire.parallelize`.
    pub fn parallelize() -> Self {
        Self {
            carrier: Carrier::Gradwire,
            overlap_next_forward: true,
            first_bucket_bytes: MERGED,
            bucket_bytes: MERGED,
            ..Self::default()
        }
    }

    /// Megatron-LM as it was in 2021, and Megatron-DeepSpeed: unfused attention, gradients
    /// exchanged after the last backward pass.
    pub fn megatron_2021() -> Self {
        Self {
            attention: Attention::Unfused,
            overlap_gradients: false,
            overlap_parameters: false,
            overlap_weights: false,
            fused_accumulation: false,
            ..Self::default()
        }
    }

    /// Megatron-LM since 2022: collectives under the products of weights'
    /// gradients, which add to earlier ones themselves.
    pub fn megatron_2022() -> Self {
        Self { overlap_weights: true, fused_accumulation: true, ..Self::megatron_2021() }
    }

    /// DeepSpeed's ZeRO 3 of 2021.
    pub fn deepspeed_2021() -> Self {
        Self {
            overlap_gradients: true,
            overlap_parameters: true,
            carrier: Carrier::PerParameter,
            ..Self::megatron_2021()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buckets_hold_all_bytes_in_as_few_as_can_be(
            bytes in 1f64..1e12, bucket_bytes in 1e3f64..1e9, first_bucket_bytes in 1e3f64..1e9,
        ) {
            let practice = Practice { bucket_bytes, first_bucket_bytes, ..Practice::default() };
            let buckets = practice.buckets(bytes);
            let all: f64 = buckets.iter().sum();
            prop_assert!((all - bytes).abs() <= 1e-9 * bytes);
            prop_assert!(buckets.iter().all(|it| *it > 0.0));
            prop_assert!(buckets.len() as f64 <= (bytes / bucket_bytes).min(MOST_BUCKETS) + 2.0);
        }
    }
}
