//! What a device must hold, and whether it can.
//!
//! Activations follow "Reducing Activation Recomputation in Large Transformer Models"
//! (arXiv:2205.05198); parameters, gradients and optimizer state follow ZeRO (arXiv:1910.02054) with
//! Adam in mixed precision.

use serde::Serialize;

use super::layout::{Attention, Layout, PipelineOrder, Practice, Recompute};
use super::model::Transformer;

/// Bytes on the fullest device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Memory {
    /// Parameters in 16 bits.
    pub parameters: f64,
    /// Gradients.
    pub gradients: f64,
    /// Optimizer state: master copy and two moments in 32 bits.
    pub optimizer: f64,
    /// Activations of all microbatches that are under way.
    pub activations: f64,
    /// What the driver, the library and fragmentation take.
    pub overhead: f64,
}

/// Bytes for the context of the device's driver and its collectives.
const CONTEXT: f64 = 1.5e9;
/// Share of what is allocated that fragmentation adds.
const FRAGMENTATION: f64 = 0.05;

impl Memory {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.parameters + self.gradients + self.optimizer + self.activations + self.overhead
    }

    /// What the first stage (which has most microbatches under way) holds.
    pub fn of(model: &Transformer, layout: &Layout, practice: &Practice) -> Self {
        let held = held_parameters(model, layout);
        let copies = f64::from(layout.data * layout.context);
        let shared = |from: u8, bytes: f64| {
            if layout.zero >= from { bytes / copies } else { bytes }
        };
        let parameters = 2.0 * held;
        // Under ZeRO 3 two layers are there in full at any time.
        let whole = 2.0 * parameters / f64::from(model.layers);
        let mut memory = Memory {
            parameters: shared(3, parameters) + if layout.zero == 3 { whole } else { 0.0 },
            gradients: shared(2, practice.gradient_bytes * held),
            optimizer: shared(1, 12.0 * held),
            activations: activations(model, layout, practice),
            overhead: 0.0,
        };
        memory.overhead = CONTEXT + FRAGMENTATION * memory.total();
        memory
    }
}

/// Parameters of the fullest stage on one device, before ZeRO.
pub fn held_parameters(model: &Transformer, layout: &Layout) -> f64 {
    let (dense, experts) = model.layer_parameters();
    let tensor = f64::from(layout.tensor);
    let layers = f64::from(model.layers.div_ceil(layout.pipeline));
    let layer = dense / tensor + experts / tensor / f64::from(layout.expert);
    let embeddings = if layout.pipeline == 1 && !model.tied { 2.0 } else { 1.0 };
    layers * layer + embeddings * model.embedding_parameters() / tensor
}

fn activations(model: &Transformer, layout: &Layout, practice: &Practice) -> f64 {
    let tokens = f64::from(layout.micro_batch) * model.sequence as f64 / f64::from(layout.context);
    let hidden = model.hidden as f64;
    let tensor = f64::from(layout.tensor);
    let spread = if layout.sequence_parallel { tensor } else { 1.0 };
    // Inputs of norms, residuals and dropout masks; then what the tensor group shares.
    let shared_out = 10.0 * tokens * hidden / spread;
    let wide = if model.gated { 3.0 } else { 2.0 };
    let active = model.experts.map_or(1.0, |it| (it.active + it.shared) as f64);
    let width = model.experts.map_or(model.feed_forward as f64, |it| it.width as f64);
    let network = 2.0 * wide * active * tokens * width / tensor;
    let keys = (model.heads + 2 * model.kv_heads) as f64 * model.head_width as f64;
    let attention = 2.0 * tokens * (keys + hidden) / tensor;
    let scores = match (practice.attention, layout.recompute) {
        (Attention::Unfused, Recompute::None) => {
            5.0 * model.heads as f64 * tokens * model.sequence as f64 / tensor
        }
        _ => 0.0,
    };
    let layer = shared_out + network + attention + scores;
    let input = 2.0 * tokens * hidden / spread;
    let layers = f64::from(model.layers.div_ceil(layout.pipeline));
    let under_way = under_way(layout);
    let kept = match layout.recompute {
        Recompute::Full => under_way * layers * input + layer,
        _ => under_way * layers * layer,
    };
    let logits = 6.0 * tokens * model.vocabulary as f64 / tensor;
    if layout.pipeline == 1 { kept + logits } else { kept.max(logits) }
}

/// Microbatches that the first stage holds activations of.
fn under_way(layout: &Layout) -> f64 {
    let stages = f64::from(layout.pipeline);
    let all = f64::from(layout.micro_batches());
    let extra = if layout.interleave > 1 && layout.order == PipelineOrder::OneForwardOneBackward {
        1.0 + (stages - 1.0) / (stages * f64::from(layout.interleave))
    } else {
        1.0
    };
    (stages * extra).min(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_shares_what_it_says() {
        let model = Transformer::named("llama3-8b").expect("known");
        let total = |zero| {
            let layout = Layout { data: 8, batch: 8, zero, ..Layout::default() };
            Memory::of(&model, &layout, &Practice::default())
        };
        let whole = total(0);
        assert!((whole.optimizer / total(1).optimizer - 8.0).abs() < 1e-9);
        assert_eq!(whole.gradients, total(1).gradients);
        assert!((whole.gradients / total(2).gradients - 8.0).abs() < 1e-9);
        assert!(total(3).parameters < total(2).parameters / 4.0);
        for zero in 1..4 {
            assert!(total(zero).total() < total(zero - 1).total());
        }
    }

    #[test]
    fn gpt3_on_1024_devices_fits_as_it_was_run() {
        let model = Transformer::named("gpt3-175b").expect("known");
        let layout = Layout {
            tensor: 8,
            pipeline: 16,
            data: 8,
            batch: 1536,
            micro_batch: 1,
            ..Layout::default()
        };
        let memory = Memory::of(&model, &layout, &Practice::megatron_2021());
        assert!((20e9..80e9).contains(&memory.total()), "{}", memory.total());
    }
}
