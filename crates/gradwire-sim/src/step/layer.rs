//! The kernels of one layer, of the embedding and of the output, on one device.

use super::compute::{Kernel, Pass};
use super::layout::{Attention, Layout, Practice, Recompute};
use super::model::Transformer;

/// Bytes of an activation.
const ACTIVATION: f64 = 2.0;

/// What one device does for one microbatch in one layer.
#[derive(Clone, Debug)]
pub struct LayerWork {
    /// Forward.
    pub forward: Pass,
    /// Backward, gradients of activations.
    pub inputs: Pass,
    /// Backward, gradients of weights.
    pub weights: Pass,
    /// What is computed again before the backward pass.
    pub again: Pass,
}

/// The sizes that the kernels of a layer depend on.
struct Sizes<'a> {
    model: &'a Transformer,
    practice: &'a Practice,
    layout: &'a Layout,
    /// Tokens of the microbatch on this device.
    tokens: f64,
    /// Tokens that norms and dropout see.
    spread: f64,
    tensor: f64,
}

impl LayerWork {
    /// The work of one layer.
    pub fn of(model: &Transformer, layout: &Layout, practice: &Practice) -> Self {
        let sequence = model.sequence as f64 / f64::from(layout.context);
        let tokens = f64::from(layout.micro_batch) * sequence;
        let tensor = f64::from(layout.tensor);
        let spread = if layout.sequence_parallel { tokens / tensor } else { tokens };
        let sizes = Sizes { model, practice, layout, tokens, spread, tensor };
        let mut forward = Pass::default();
        sizes.attention_in(&mut forward);
        let mut scores = Pass::default();
        sizes.scores(&mut scores);
        forward.kernels.extend_from_slice(&scores.kernels);
        sizes.attention_out(&mut forward);
        sizes.feed_forward(&mut forward);
        let (inputs, mut weights) = forward.backward();
        sizes.accumulate(&mut weights);
        let again = match layout.recompute {
            Recompute::None => Pass::default(),
            Recompute::Selective if practice.attention == Attention::Unfused => scores,
            Recompute::Selective => Pass::default(),
            Recompute::Full => forward.clone(),
        };
        Self { forward, inputs, weights, again }
    }
}

impl Sizes<'_> {
    fn hidden(&self) -> f64 {
        self.model.hidden as f64
    }

    /// Width of this device's query heads, and of its heads of keys and values.
    fn widths(&self) -> (f64, f64) {
        let width = self.model.head_width as f64;
        let keys = (self.model.kv_heads as f64 / self.tensor).max(1.0);
        (self.model.heads as f64 / self.tensor * width, keys * width)
    }

    /// Backward reads input and gradient and writes the input's gradient, then reads both again for
    /// the gradients of weight and bias.
    fn norm(&self, pass: &mut Pass) {
        let moved = ACTIVATION * self.spread * self.hidden();
        pass.push(Kernel::Stream { bytes: 2.0 * moved, backward: 5.0 * moved });
    }

    /// Gradients of weights are added to those of earlier microbatches: two reads and a write. The
    /// first microbatch has nothing to add to.
    fn accumulate(&self, weights: &mut Pass) {
        let micro = f64::from(self.layout.micro_batches());
        let (dense, experts) = self.model.layer_parameters();
        let here = dense / self.tensor + experts / self.tensor / f64::from(self.layout.expert);
        if micro > 1.0 && !self.practice.fused_accumulation {
            weights.push(Kernel::stream(3.0 * ACTIVATION * here * (micro - 1.0) / micro));
        }
    }

    fn attention_in(&self, pass: &mut Pass) {
        let (queries, keys) = self.widths();
        self.norm(pass);
        pass.push(Kernel::product(self.tokens, queries + 2.0 * keys, self.hidden()));
        // The bias is added in place; backward sums its gradient and joins three into one.
        let split = ACTIVATION * self.tokens * (queries + 2.0 * keys);
        pass.push(Kernel::Stream { bytes: 2.0 * split, backward: 3.0 * split });
    }

    fn scores(&self, pass: &mut Pass) {
        let (queries, _) = self.widths();
        let sequence = self.model.sequence as f64;
        let rows = sequence / f64::from(self.layout.context);
        let width = self.model.head_width as f64;
        let heads = f64::from(self.layout.micro_batch) * queries / width;
        match self.practice.attention {
            Attention::Unfused => {
                let scores = heads * rows * sequence;
                pass.push(Kernel::Product { m: rows, n: sequence, k: width, count: heads });
                // Megatron-LM's fused causal softmax takes four matrices at a time and reads half of
                // each (backward: half of the softmax and of its gradient); otherwise PyTorch
                // converts, scales, masks, normalises and converts back.
                if heads % 4.0 == 0.0 {
                    let moved = ACTIVATION * scores;
                    pass.push(Kernel::Stream { bytes: 1.5 * moved, backward: 2.0 * moved });
                } else {
                    for bytes in [6.0, 8.0, 8.0, 8.0, 6.0] {
                        pass.push(Kernel::stream(bytes * scores));
                    }
                }
                // Dropout reads and writes, and writes its mask; backward reads that.
                pass.push(Kernel::stream((2.0 * ACTIVATION + 1.0) * scores));
                pass.push(Kernel::Product { m: rows, n: width, k: sequence, count: heads });
            }
            Attention::Flash => {
                // Half of the scores are masked and not computed.
                let operations = 4.0 * heads * rows * sequence * width / 2.0;
                pass.push(Kernel::Fused { operations });
            }
        }
    }

    fn attention_out(&self, pass: &mut Pass) {
        let (queries, _) = self.widths();
        pass.push(Kernel::stream(2.0 * ACTIVATION * self.tokens * queries));
        pass.push(Kernel::product(self.tokens, self.hidden(), queries));
        self.add(pass);
    }

    /// Bias, dropout and residual: two inputs, one output, and a mask of one byte. Backward: dropout
    /// reads gradient and mask and writes, the bias' gradient is summed, the residual's is added.
    fn add(&self, pass: &mut Pass) {
        let elements = self.spread * self.hidden();
        let bytes = (3.0 * ACTIVATION + 1.0) * elements;
        pass.push(Kernel::Stream { bytes, backward: (6.0 * ACTIVATION + 1.0) * elements });
    }

    fn feed_forward(&self, pass: &mut Pass) {
        self.norm(pass);
        let dense = |pass: &mut Pass, tokens: f64, width: f64| {
            let wide = if self.model.gated { 2.0 } else { 1.0 };
            pass.push(Kernel::product(tokens, wide * width, self.hidden()));
            let bytes = (1.0 + wide) * ACTIVATION * tokens * width;
            pass.push(Kernel::Stream { bytes, backward: 2.0 * bytes });
            pass.push(Kernel::product(tokens, self.hidden(), width));
        };
        match self.model.experts {
            None => dense(pass, self.tokens, self.model.feed_forward as f64 / self.tensor),
            Some(experts) => {
                pass.push(Kernel::product(self.tokens, experts.count as f64, self.hidden()));
                let width = experts.width as f64 / self.tensor;
                let sent = self.tokens * experts.active as f64;
                // Tokens are put in the order of their experts, and back.
                pass.push(Kernel::stream(4.0 * ACTIVATION * sent * self.hidden()));
                let here = experts.count as f64 / f64::from(self.layout.expert);
                for _ in 0..here.min(16.0) as u32 {
                    dense(pass, sent / here.min(16.0), width);
                }
                if experts.shared > 0 {
                    dense(pass, self.tokens, experts.shared as f64 * width);
                }
            }
        }
        self.add(pass);
    }
}

/// The output layer with its loss, for one microbatch on one device of the last stage.
pub fn output_work(model: &Transformer, layout: &Layout) -> LayerWork {
    let tokens = f64::from(layout.micro_batch) * model.sequence as f64 / f64::from(layout.context);
    let columns = (model.vocabulary / u64::from(layout.tensor)) as f64;
    let mut forward = Pass::default();
    let moved = ACTIVATION * tokens * model.hidden as f64;
    forward.push(Kernel::Stream { bytes: 2.0 * moved, backward: 5.0 * moved });
    forward.push(Kernel::product(tokens, columns, model.hidden as f64));
    // In single precision: convert, maximum, subtract it, exponentials, their sum, divide by it; back:
    // multiply by the gradient, convert.
    let logits = tokens * columns;
    forward.push(Kernel::Stream { bytes: 38.0 * logits, backward: 14.0 * logits });
    let (inputs, mut weights) = forward.backward();
    weights.push(Kernel::stream(3.0 * ACTIVATION * columns * model.hidden as f64));
    LayerWork { forward, inputs, weights, again: Pass::default() }
}

/// The input embedding of the first stage.
pub fn embedding_work(model: &Transformer, layout: &Layout) -> LayerWork {
    let tokens = f64::from(layout.micro_batch) * model.sequence as f64 / f64::from(layout.context);
    let rows = model.vocabulary as f64 / f64::from(layout.tensor);
    let mut forward = Pass::default();
    forward.push(Kernel::stream(4.0 * ACTIVATION * tokens * model.hidden as f64));
    let mut inputs = Pass::default();
    // The gradient is as large as the embedding and is accumulated.
    inputs.push(Kernel::stream(3.0 * ACTIVATION * rows * model.hidden as f64));
    LayerWork { forward, inputs, weights: Pass::default(), again: Pass::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layers_of_a_model_add_up_to_its_operations() {
        let model = Transformer::named("gpt3-175b").expect("known");
        let layout = Layout { micro_batch: 2, tensor: 8, ..Layout::default() };
        let work = LayerWork::of(&model, &layout, &Practice::megatron_2021());
        let output = output_work(&model, &layout);
        let all = |work: &LayerWork| {
            work.forward.operations() + work.inputs.operations() + work.weights.operations()
        };
        let total = 8.0 * (96.0 * all(&work) + all(&output));
        assert!((total / model.step_operations(2.0) - 1.0).abs() < 1e-3);
    }

    #[test]
    fn what_is_computed_again_is_no_more_than_the_forward_pass() {
        let model = Transformer::named("llama3-8b").expect("known");
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
            let layout = Layout { recompute, ..Layout::default() };
            let work = LayerWork::of(&model, &layout, &Practice::megatron_2021());
            assert!(work.again.operations() <= work.forward.operations(), "{recompute:?}");
        }
    }
}
