//! One step of training, put together.

use gradwire_topology::{Cluster, Device};
use serde::{Deserialize, Serialize};

use super::compute::{Efficiency, Pass};
use super::groups::{Fabric, Group, Network};
use super::layer::{LayerWork, embedding_work, output_work};
use super::layout::{Carrier, Layout, PipelineOrder, Practice, Recompute};
use super::memory::{Memory, held_parameters};
use super::model::Transformer;
use super::overlap::{Awaited, Outcome, Series, prefetched};
use super::pipeline::{ChunkTimes, Pipeline, Run};
use super::report::{Communication, Report};

/// What measured points say about devices and links.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Of devices.
    pub efficiency: Efficiency,
    /// Of links.
    pub fabric: Fabric,
}

impl Calibration {
    /// Changes the pace so that a step of `job` without communication takes so many seconds.
    ///
    /// # Errors
    /// As [`simulate`].
    pub fn keep_pace(&mut self, job: &Job, cluster: &Cluster, seconds: f64) -> Result<(), String> {
        let report = simulate(job, cluster, self)?;
        let computing = report.compute_s + report.bubble_s + report.optimizer_s;
        self.efficiency.pace *= seconds / computing;
        Ok(())
    }
}

/// A model that is trained in a certain way.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The model.
    pub model: Transformer,
    /// How it is spread.
    pub layout: Layout,
    /// How the framework runs it.
    pub practice: Practice,
}

/// Bytes of an activation or a parameter on a wire.
const HALF: f64 = 2.0;
/// Kernels that the host launches for a collective.
const LAUNCHES: f64 = 2.0;

/// Simulates one step.
///
/// # Errors
/// When the layout does not fit the model or the cluster ([`Layout::check`]).
pub fn simulate(job: &Job, cluster: &Cluster, calibration: &Calibration) -> Result<Report, String> {
    job.layout.check(&job.model, cluster)?;
    Ok(Step::new(job, cluster, calibration).report())
}

struct Step<'a> {
    job: &'a Job,
    layout: &'a Layout,
    device: &'a Device,
    calibration: &'a Calibration,
    network: Network<'a>,
    cluster: &'a Cluster,
}

/// Seconds of a layer's passes, with what its groups communicate.
#[derive(Clone, Copy, Debug, Default)]
struct LayerTimes {
    times: ChunkTimes,
    /// Seconds of tensor, expert and context collectives in both passes: total and exposed.
    tensor: (f64, f64),
    expert: (f64, f64),
    context: (f64, f64),
}

/// Seconds of a layer's context group: total and exposed.
#[derive(Clone, Copy, Debug, Default)]
struct ContextTimes {
    forward: (f64, f64),
    backward: (f64, f64),
}

impl<'a> Step<'a> {
    fn new(job: &'a Job, cluster: &'a Cluster, calibration: &'a Calibration) -> Self {
        Self {
            job,
            layout: &job.layout,
            device: &cluster.host().device,
            calibration,
            network: Network { cluster, fabric: &calibration.fabric },
            cluster,
        }
    }

    /// Seconds of a pass during which the host launches `extra` kernels besides.
    fn pass(&self, pass: &Pass, extra: f64) -> f64 {
        let efficiency = &self.calibration.efficiency;
        let (device, host) = pass.seconds(self.device, efficiency);
        let host = host + extra * efficiency.launch;
        // The host runs ahead under long kernels and falls behind under short ones: near parity
        // each waits for the other now and then.
        efficiency.pace * (device.powi(4) + host.powi(4)).powf(0.25)
    }

    /// Bytes of the activations of one microbatch on one device, before tensor parallelism.
    fn activation_bytes(&self) -> f64 {
        let tokens = self.job.model.sequence as f64 / f64::from(self.layout.context);
        HALF * f64::from(self.layout.micro_batch) * tokens * self.job.model.hidden as f64
    }

    fn layer(&self) -> LayerTimes {
        let work = LayerWork::of(&self.job.model, self.layout, &self.job.practice);
        let whole_again = self.layout.recompute == Recompute::Full;
        // Two collectives forward, two backward; two more where the whole layer is computed again.
        let tensor = Group::of(self.cluster, self.layout.tensor, 1);
        // They run by themselves: nothing disturbs them.
        let one = self.network.all_reduce(&tensor, self.activation_bytes());
        let launches = if tensor.ranks > 1 { 2.0 * LAUNCHES } else { 0.0 };
        let (expert, context) = (self.expert_seconds(), self.context_times(&work));
        let hidden = if self.job.practice.overlap_tensor { 0.5 } else { 0.0 };
        let shown = one * (1.0 - hidden);
        let forward = self.pass(&work.forward, launches);
        let backward = self.pass(&work.inputs, launches);
        let weights = self.pass(&work.weights, 0.0);
        let repeated =
            if work.again.kernels.is_empty() { 0.0 } else { self.pass(&work.again, launches) };
        let passes = if whole_again { 3.0 } else { 2.0 };
        let under = self.under_weights(2.0 * shown, weights);
        let again = passes - 2.0;
        let times = ChunkTimes {
            forward: forward + 2.0 * shown + expert + context.forward.1,
            backward: backward
                + repeated
                + under.exposed
                + expert
                + context.backward.1
                + again * (2.0 * shown + expert + context.forward.1),
            weights: weights + under.slowdown,
        };
        LayerTimes {
            times,
            tensor: (2.0 * passes * one, 2.0 * (passes - 1.0) * shown + under.exposed),
            expert: (passes * expert, passes * expert),
            context: (
                (1.0 + again) * context.forward.0 + context.backward.0,
                (1.0 + again) * context.forward.1 + context.backward.1,
            ),
        }
    }

    /// What products of weights' gradients hide of a layer's tensor collectives in the backward pass.
    fn under_weights(&self, seconds: f64, weights: f64) -> Outcome {
        let later = self.layout.order == PipelineOrder::ZeroBubble;
        if !self.job.practice.overlap_weights || later || seconds == 0.0 {
            return Outcome { total: seconds, exposed: seconds, slowdown: 0.0 };
        }
        let stretched = seconds * self.calibration.fabric.interference;
        let hidden = stretched.min(weights);
        let taken = self.calibration.fabric.multiprocessors;
        let charge = (taken / f64::from(self.device.multiprocessors)).min(0.5);
        let left = seconds * (1.0 - hidden / stretched);
        Outcome { total: hidden + left, exposed: left, slowdown: hidden * charge }
    }

    /// Two all-to-alls: tokens to their experts and back.
    fn expert_seconds(&self) -> f64 {
        let Some(experts) = self.job.model.experts else { return 0.0 };
        if self.layout.expert < 2 {
            return 0.0;
        }
        let group = Group::of(self.cluster, self.layout.expert, self.layout.tensor);
        let spread =
            if self.layout.sequence_parallel { f64::from(self.layout.tensor) } else { 1.0 };
        let bytes = self.activation_bytes() * experts.active as f64 / spread;
        2.0 * self.network.all_to_all(&group, bytes)
    }

    /// Keys and values go once around the context group under attention; backward their gradients go
    /// with them (ring attention, arXiv:2310.01889).
    fn context_times(&self, work: &LayerWork) -> ContextTimes {
        if self.layout.context < 2 {
            return ContextTimes::default();
        }
        let group = Group::of(self.cluster, self.layout.context, self.layout.tensor);
        let trips = f64::from(self.layout.context - 1);
        let bytes = self.keys_bytes();
        let attention = |pass: &Pass| -> f64 {
            let kernels = pass.kernels.iter().filter(|kernel| kernel.is_attention());
            kernels.map(|it| it.seconds(self.device, &self.calibration.efficiency)).sum()
        };
        let part = |bytes: f64, hides: f64| {
            let seconds = trips * self.network.turn(&group, bytes);
            (seconds, (seconds - hides).max(0.0))
        };
        ContextTimes {
            forward: part(bytes, attention(&work.forward)),
            backward: part(2.0 * bytes, attention(&work.inputs)),
        }
    }

    /// Bytes of the keys and values that a device of a context group hands on.
    fn keys_bytes(&self) -> f64 {
        let model = &self.job.model;
        let keys = (2 * model.kv_heads * model.head_width) as f64 / model.hidden as f64;
        let shared = f64::from(self.layout.tensor).min(model.kv_heads as f64);
        self.activation_bytes() * keys / shared
    }

    /// Layers of a chunk: as even as can be, what is left over goes to the first ones.
    fn layers_of(&self, position: u32) -> f64 {
        let chunks = self.layout.pipeline * self.layout.interleave;
        let (even, left) = (self.job.model.layers / chunks, self.job.model.layers % chunks);
        f64::from(even + u32::from(position < left))
    }

    /// Times of every chunk of every stage.
    fn chunk_times(&self) -> Vec<Vec<ChunkTimes>> {
        let Layout { pipeline: stages, interleave: chunks, .. } = *self.layout;
        let layer = self.layer();
        let embedding = self.plain(&embedding_work(&self.job.model, self.layout));
        let output = self.plain(&output_work(&self.job.model, self.layout));
        let chunk = |stage: u32, chunk: u32| {
            let position = chunk * stages + stage;
            let mut times = scaled(&layer.times, self.layers_of(position));
            if position == 0 {
                times = sum(&times, &embedding);
            }
            if position + 1 == stages * chunks {
                times = sum(&times, &output);
            }
            times
        };
        (0..stages).map(|stage| (0..chunks).map(|it| chunk(stage, it)).collect()).collect()
    }

    fn plain(&self, work: &LayerWork) -> ChunkTimes {
        ChunkTimes {
            forward: self.pass(&work.forward, 0.0),
            backward: self.pass(&work.inputs, 0.0),
            weights: self.pass(&work.weights, 0.0),
        }
    }

    /// Seconds of handing one microbatch's activations to the next stage.
    fn hand_over(&self) -> f64 {
        if self.layout.pipeline < 2 {
            return 0.0;
        }
        let tensor = f64::from(self.layout.tensor);
        let parts = if self.job.practice.scatter_gather || self.layout.sequence_parallel {
            tensor
        } else {
            1.0
        };
        let stride = self.layout.tensor * self.layout.context * self.layout.data;
        let bytes = self.activation_bytes() / parts;
        let gather = if parts > 1.0 && !self.layout.sequence_parallel {
            let group = Group::of(self.cluster, self.layout.tensor, 1);
            self.network.gather(&group, self.activation_bytes())
        } else {
            0.0
        };
        self.network.shift(stride, bytes) + gather
    }

    /// The group of copies.
    fn copies(&self) -> Group {
        Group::of(self.cluster, self.layout.data * self.layout.context, self.layout.tensor)
    }

    /// Bytes of a stage's gradients on one device.
    fn gradient_bytes(&self) -> f64 {
        self.job.practice.gradient_bytes * held_parameters(&self.job.model, self.layout)
    }

    fn report(&self) -> Report {
        let times = self.chunk_times();
        let pipeline = Pipeline {
            times,
            micro_batches: self.layout.micro_batches(),
            hand_over: self.hand_over(),
            order: self.layout.order,
        };
        let run = pipeline.run();
        let copies = self.exchange(&pipeline);
        self.assemble(&pipeline, run, &copies)
    }

    /// What copies exchange: seconds, what is exposed, and what it costs computation.
    fn exchange(&self, pipeline: &Pipeline) -> Outcome {
        if self.layout.zero == 3 {
            return self.exchange_everything(pipeline);
        }
        let group = self.copies();
        if group.ranks < 2 {
            return Outcome::default();
        }
        let mut outcome = self.exchange_gradients(pipeline, &group);
        let sparing = f64::from(self.job.practice.local_steps.max(1));
        for part in [&mut outcome.total, &mut outcome.exposed, &mut outcome.slowdown] {
            *part /= sparing;
        }
        if self.layout.zero > 0 {
            let parameters = HALF * held_parameters(&self.job.model, self.layout);
            let practice = &self.job.practice;
            let seconds = self.network.parameters(&group, parameters, practice) / sparing;
            outcome.total += seconds;
            let forward: f64 = pipeline.times[0].iter().map(|it| it.forward).sum();
            let hides = if self.job.practice.overlap_parameters { forward } else { 0.0 };
            outcome.exposed += (seconds - hides).max(0.0);
        }
        outcome
    }

    fn exchange_gradients(&self, pipeline: &Pipeline, group: &Group) -> Outcome {
        let practice = &self.job.practice;
        let bytes = self.gradient_bytes();
        let halves = if self.layout.zero > 0 { 1.0 } else { 2.0 };
        let seconds = |bytes| self.network.gradients(group, bytes, practice, halves);
        if !practice.overlap_gradients {
            let total = seconds(bytes);
            return Outcome { total, exposed: total, slowdown: 0.0 };
        }
        let stage = &pipeline.times[0];
        let forward: f64 = stage.iter().map(|it| it.forward).sum();
        // The last layer waits for its gradients before it computes.
        let layers = f64::from(self.job.model.layers / self.layout.pipeline).max(1.0);
        let hides = forward * (1.0 - 1.0 / layers);
        let mut ready = 0.0;
        let collectives = practice.buckets(bytes).into_iter().map(|size| {
            ready += size / bytes;
            Awaited { ready, seconds: seconds(size) }
        });
        let collectives: Vec<Awaited> = collectives.collect();
        let alone: f64 = collectives.iter().map(|it| it.seconds).sum();
        let sent = self.shrunk() * self.copied_bytes();
        let delay = sent * self.cluster.host().delay_per_byte.0;
        Series {
            window: stage.iter().map(|it| it.backward + it.weights).sum(),
            after: if practice.overlap_next_forward && halves == 2.0 { hides } else { 0.0 },
            collectives,
            interference: self.interference(),
            charge: self.charge() + if alone > 0.0 { delay / alone } else { 0.0 },
        }
        .play()
    }

    /// Share of its bytes that a codec leaves of a gradient.
    fn shrunk(&self) -> f64 {
        let practice = &self.job.practice;
        practice.compression.as_ref().map_or(1.0, |it| it.bits / (8.0 * practice.gradient_bytes))
    }

    /// How much longer a collective takes while the device computes: NCCL's kernels share it.
    /// gradwire's bytes are moved by processors.
    fn interference(&self) -> f64 {
        match self.job.practice.carrier {
            Carrier::Gradwire => 1.0,
            _ => self.calibration.fabric.interference,
        }
    }

    /// Share of computation that a collective takes while it runs: its kernels sit on
    /// multiprocessors. gradwire's do not.
    fn charge(&self) -> f64 {
        match self.job.practice.carrier {
            Carrier::Gradwire => 0.01,
            _ => {
                let taken = self.calibration.fabric.multiprocessors;
                (taken / f64::from(self.device.multiprocessors)).min(0.5)
            }
        }
    }

    /// ZeRO 3: parameters are gathered for each layer's passes, gradients scattered, for every
    /// microbatch. Where whole layers are computed again by hooks of the framework, each of the
    /// three passes gathers for itself (`Carrier::PerParameter`); otherwise the second and third
    /// share one.
    fn exchange_everything(&self, pipeline: &Pipeline) -> Outcome {
        let group = self.copies();
        let alone = self.job.practice.carrier == Carrier::PerParameter;
        let layers: f64 =
            (0..self.layout.interleave).map(|it| self.layers_of(it * self.layout.pipeline)).sum();
        let layers = layers.max(1.0);
        let parameters = HALF * held_parameters(&self.job.model, self.layout) / layers;
        let gradients = self.gradient_bytes() / layers;
        let gather = |bytes: f64| {
            if alone {
                self.network.gather_alone(&group, bytes)
            } else {
                self.network.gather(&group, bytes)
            }
        };
        let again = alone && self.layout.recompute == Recompute::Full;
        let backward_gathers = if again { 2.0 } else { 1.0 };
        let passes = &pipeline.times[0];
        let forward: f64 = passes.iter().map(|it| it.forward).sum::<f64>() / layers;
        let backward: f64 = passes.iter().map(|it| it.backward + it.weights).sum::<f64>() / layers;
        let interference = self.interference();
        let hidden =
            |compute: f64| if self.job.practice.overlap_parameters { compute } else { 0.0 };
        let play = |compute: f64, each: f64| {
            prefetched(layers, hidden(compute), each, interference, self.charge())
        };
        let first = play(forward, gather(parameters));
        let second = play(backward, backward_gathers * gather(parameters) + gather(gradients));
        let times = f64::from(self.layout.micro_batches());
        Outcome {
            total: times * (first.total + second.total),
            exposed: times * (first.exposed + second.exposed),
            slowdown: times * (first.slowdown + second.slowdown),
        }
    }

    /// Seconds of the optimizer.
    fn optimizer(&self) -> f64 {
        let held = held_parameters(&self.job.model, self.layout);
        let copies = f64::from(self.layout.data * self.layout.context);
        let own = if self.layout.zero > 0 { held / copies } else { held };
        let rate = self.device.bandwidth.0 * self.calibration.efficiency.memory;
        self.calibration.efficiency.pace * self.job.practice.optimizer_bytes * own / rate
    }

    /// Where input and output embedding share weights but not devices, their gradients are added.
    fn shared_embedding(&self) -> f64 {
        if self.layout.pipeline < 2 || !self.job.model.tied {
            return 0.0;
        }
        let bytes = self.job.practice.gradient_bytes * self.job.model.embedding_parameters()
            / f64::from(self.layout.tensor);
        let stride = self.layout.tensor * self.layout.data * self.layout.context;
        2.0 * self.network.shift(stride, bytes / 2.0)
    }

    fn assemble(&self, pipeline: &Pipeline, run: Run, copies: &Outcome) -> Report {
        let (stage, _) = run
            .busy
            .iter()
            .enumerate()
            .fold((0, 0.0), |best, (at, busy)| if *busy > best.1 { (at, *busy) } else { best });
        let layer = self.layer();
        let micro = f64::from(self.layout.micro_batches());
        let layers: f64 = (0..self.layout.interleave)
            .map(|it| self.layers_of(it * self.layout.pipeline + stage as u32))
            .sum();
        let passes = micro * layers;
        let part = |(total, shown): (f64, f64), bytes: f64| Communication {
            total_s: passes * total,
            exposed_s: passes * shown,
            bytes: passes * bytes,
        };
        let tensor = part(layer.tensor, self.tensor_bytes());
        let expert = part(layer.expert, self.expert_bytes());
        let context = part(layer.context, self.context_bytes());
        let beside = tensor.exposed_s + expert.exposed_s + context.exposed_s;
        let optimizer = self.optimizer();
        let shared = self.shared_embedding();
        let step = run.end() + copies.exposed + copies.slowdown + optimizer + shared;
        let handing = Communication {
            total_s: run.handing[stage] + shared,
            exposed_s: run.handing[stage] + shared,
            bytes: self.hand_over_bytes() * micro * f64::from(self.layout.interleave),
        };
        let compute = run.busy[stage] - beside;
        let data = Communication {
            total_s: copies.total,
            exposed_s: copies.exposed,
            bytes: self.copied_bytes(),
        };
        let bubble = (run.end() - run.busy[stage] - run.handing[stage]).max(0.0);
        let exposed = beside + handing.exposed_s + data.exposed_s;
        let operations = self.job.model.step_operations(f64::from(self.layout.batch));
        let devices = f64::from(self.layout.devices());
        let peak = self.device.peak.0;
        let again = match self.layout.recompute {
            Recompute::Full => 4.0 / 3.0,
            _ => 1.0,
        };
        let memory = Memory::of(&self.job.model, self.layout, &self.job.practice);
        let tokens = f64::from(self.layout.batch) * self.job.model.sequence as f64;
        let spans = if pipeline.times.len() > 1 || micro > 0.0 { run.spans } else { Vec::new() };
        Report {
            step_s: step,
            compute_s: compute,
            bubble_s: bubble,
            optimizer_s: optimizer,
            slowdown_s: copies.slowdown,
            tensor,
            pipeline: handing,
            data,
            expert,
            context,
            communication_share: exposed / step,
            mfu: operations / devices / step / peak,
            hfu: again * operations / devices / step / peak,
            flops_per_device: operations / devices / step,
            tokens_per_second: tokens / step,
            nic_bytes: self.nic_bytes(&data),
            link_bytes: tensor.bytes + expert.bytes,
            memory,
            fits: memory.total() <= self.device.memory.0,
            spans,
        }
    }

    fn tensor_bytes(&self) -> f64 {
        let n = f64::from(self.layout.tensor);
        let passes = if self.layout.recompute == Recompute::Full { 6.0 } else { 4.0 };
        passes * 2.0 * (n - 1.0) / n * self.activation_bytes()
    }

    fn context_bytes(&self) -> f64 {
        let passes = if self.layout.recompute == Recompute::Full { 4.0 } else { 3.0 };
        passes * f64::from(self.layout.context - 1) * self.keys_bytes()
    }

    fn expert_bytes(&self) -> f64 {
        let Some(experts) = self.job.model.experts else { return 0.0 };
        let n = f64::from(self.layout.expert);
        4.0 * (n - 1.0) / n * self.activation_bytes() * experts.active as f64
    }

    fn hand_over_bytes(&self) -> f64 {
        let tensor = f64::from(self.layout.tensor);
        let shared = self.job.practice.scatter_gather || self.layout.sequence_parallel;
        let parts = if shared { tensor } else { 1.0 };
        if self.layout.pipeline > 1 { 2.0 * self.activation_bytes() / parts } else { 0.0 }
    }

    /// Bytes that each device sends to other copies.
    fn copied_bytes(&self) -> f64 {
        let n = f64::from(self.copies().ranks);
        let share = (n - 1.0) / n;
        let parameters = HALF * held_parameters(&self.job.model, self.layout);
        let micro = f64::from(self.layout.micro_batches());
        let sparing = f64::from(self.job.practice.local_steps.max(1));
        match self.layout.zero {
            0 => 2.0 * share * self.gradient_bytes() / sparing,
            3 => micro * share * (2.0 * parameters + self.gradient_bytes()),
            _ => share * (self.gradient_bytes() + parameters) / sparing,
        }
    }

    fn nic_bytes(&self, data: &Communication) -> f64 {
        let group = self.copies();
        let n = f64::from(group.ranks.max(2));
        let halves = data.bytes / ((n - 1.0) / n);
        let exchanged = self.network.network_bytes(&group, halves, 1.0, self.shrunk());
        let host = self.cluster.host();
        let stride = self.layout.tensor * self.layout.context * self.layout.data;
        let handed = if stride >= host.devices && self.layout.pipeline > 1 {
            let micro = f64::from(self.layout.micro_batches() * self.layout.interleave);
            self.hand_over_bytes() * micro * f64::from(host.devices) / f64::from(host.nics)
        } else {
            0.0
        };
        exchanged + handed
    }
}

fn scaled(times: &ChunkTimes, by: f64) -> ChunkTimes {
    ChunkTimes {
        forward: times.forward * by,
        backward: times.backward * by,
        weights: times.weights * by,
    }
}

fn sum(one: &ChunkTimes, other: &ChunkTimes) -> ChunkTimes {
    ChunkTimes {
        forward: one.forward + other.forward,
        backward: one.backward + other.backward,
        weights: one.weights + other.weights,
    }
}
