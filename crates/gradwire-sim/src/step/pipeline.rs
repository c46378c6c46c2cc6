//! Pipeline schedules, played through pass by pass.
//!
//! Each stage has a list of passes in the order of its schedule; a pass starts when the stage is
//! free and what it needs has arrived. The bubble is what comes out, not a formula.

use super::layout::PipelineOrder;

/// What a stage does in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Forward.
    Forward,
    /// Backward (of activations only, where weights come later).
    Backward,
    /// Gradients of weights.
    Weights,
}

/// One pass of one microbatch through one chunk of one stage, with its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Stage.
    pub stage: u32,
    /// What.
    pub kind: Kind,
    /// Microbatch.
    pub micro_batch: u32,
    /// Chunk of the stage.
    pub chunk: u32,
    /// When it starts, in seconds.
    pub start: f64,
    /// When it ends.
    pub end: f64,
}

/// Seconds of a chunk's passes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChunkTimes {
    /// Forward.
    pub forward: f64,
    /// Backward without the gradients of weights, and what is computed again.
    pub backward: f64,
    /// Gradients of weights.
    pub weights: f64,
}

/// A pipeline to be played through.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// Times by stage, then chunk.
    pub times: Vec<Vec<ChunkTimes>>,
    /// Microbatches.
    pub micro_batches: u32,
    /// Seconds that handing activations to another stage takes both of them.
    pub hand_over: f64,
    /// The order of passes.
    pub order: PipelineOrder,
}

/// How it went.
#[derive(Clone, Debug)]
pub struct Run {
    /// All passes, stage by stage in order of time.
    pub spans: Vec<Span>,
    /// When each stage is through.
    pub ends: Vec<f64>,
    /// Seconds that each stage computes.
    pub busy: Vec<f64>,
    /// Seconds that each stage spends on handing over.
    pub handing: Vec<f64>,
}

impl Run {
    /// When all stages are through.
    pub fn end(&self) -> f64 {
        self.ends.iter().copied().fold(0.0, f64::max)
    }
}

#[derive(Clone, Copy)]
struct Pass {
    kind: Kind,
    micro_batch: u32,
    chunk: u32,
}

impl Pipeline {
    fn stages(&self) -> u32 {
        self.times.len() as u32
    }

    fn chunks(&self) -> u32 {
        self.times[0].len() as u32
    }

    /// The passes of a stage in the order of its schedule.
    fn passes(&self, stage: u32) -> Vec<Pass> {
        let (stages, chunks, micro) = (self.stages(), self.chunks(), self.micro_batches);
        let total = micro * chunks;
        let warm = if chunks == 1 {
            (stages - stage - 1).min(total)
        } else {
            // As Megatron-LM warms up (arXiv:2104.04473, section 2.2).
            ((stages - stage - 1) * 2 + (chunks - 1) * stages).min(total)
        };
        let pass = |kind, number: u32| {
            let chunk = number / stages % chunks;
            let (chunk, micro_batch) = if chunks == 1 {
                (0, number)
            } else {
                (chunk, number / (stages * chunks) * stages + number % stages)
            };
            let chunk = if kind == Kind::Forward { chunk } else { chunks - 1 - chunk };
            Pass { kind, micro_batch, chunk }
        };
        let mut passes: Vec<Pass> = (0..warm).map(|it| pass(Kind::Forward, it)).collect();
        for number in warm..total {
            passes.push(pass(Kind::Forward, number));
            passes.push(pass(Kind::Backward, number - warm));
        }
        passes.extend((total - warm..total).map(|it| pass(Kind::Backward, it)));
        passes
    }

    /// Plays it through.
    pub fn run(&self) -> Run {
        Player::new(self).play()
    }
}

struct Player<'a> {
    pipeline: &'a Pipeline,
    passes: Vec<Vec<Pass>>,
    next: Vec<usize>,
    free: Vec<f64>,
    busy: Vec<f64>,
    handing: Vec<f64>,
    /// End of each forward and backward pass, by position (stage and chunk) and microbatch.
    forward: Vec<f64>,
    backward: Vec<f64>,
    /// Gradients of weights that are yet to be computed, by stage.
    waiting: Vec<std::collections::VecDeque<Pass>>,
    spans: Vec<Vec<Span>>,
}

const NOT_YET: f64 = -1.0;

impl<'a> Player<'a> {
    fn new(pipeline: &'a Pipeline) -> Self {
        let stages = pipeline.stages() as usize;
        let all = stages * (pipeline.chunks() * pipeline.micro_batches) as usize;
        Self {
            pipeline,
            passes: (0..stages as u32).map(|stage| pipeline.passes(stage)).collect(),
            next: vec![0; stages],
            free: vec![0.0; stages],
            busy: vec![0.0; stages],
            handing: vec![0.0; stages],
            forward: vec![NOT_YET; all],
            backward: vec![NOT_YET; all],
            waiting: vec![Default::default(); stages],
            spans: vec![Vec::new(); stages],
        }
    }

    fn index(&self, stage: u32, chunk: u32, micro_batch: u32) -> usize {
        let position = chunk * self.pipeline.stages() + stage;
        (position * self.pipeline.micro_batches + micro_batch) as usize
    }

    /// When what a pass needs is there; `None` while that is not known.
    fn ready(&self, stage: u32, pass: Pass) -> Option<f64> {
        let stages = self.pipeline.stages();
        let last = stages * self.pipeline.chunks() - 1;
        let position = pass.chunk * stages + stage;
        let at = |ends: &[f64], position: u32| {
            let end = ends[self.index(position % stages, position / stages, pass.micro_batch)];
            (end != NOT_YET).then_some(end)
        };
        let moved = if stages > 1 { self.pipeline.hand_over } else { 0.0 };
        match pass.kind {
            Kind::Forward if position == 0 => Some(0.0),
            Kind::Forward => Some(at(&self.forward, position - 1)? + moved),
            _ if position == last => at(&self.forward, position),
            _ => Some(at(&self.backward, position + 1)? + moved),
        }
    }

    fn play(mut self) -> Run {
        let stages = self.pipeline.stages();
        let mut progress = true;
        while progress {
            progress = false;
            // Forward passes go down the stages, backward passes up: looking both ways finds long
            // runs of passes in one sweep.
            for stage in (0..stages).chain((0..stages).rev()) {
                while self.step(stage) {
                    progress = true;
                }
            }
        }
        for stage in 0..stages {
            while let Some(pass) = self.waiting[stage as usize].pop_front() {
                self.do_weights(stage, pass);
            }
        }
        Run {
            spans: self.spans.into_iter().flatten().collect(),
            ends: self.free,
            busy: self.busy,
            handing: self.handing,
        }
    }

    /// Does the next pass of a stage if it can be done.
    fn step(&mut self, stage: u32) -> bool {
        let at = stage as usize;
        let Some(&pass) = self.passes[at].get(self.next[at]) else { return false };
        let Some(ready) = self.ready(stage, pass) else { return false };
        self.next[at] += 1;
        self.fill(stage, ready);
        let times = self.pipeline.times[at][pass.chunk as usize];
        let later = self.pipeline.order == PipelineOrder::ZeroBubble;
        let seconds = match pass.kind {
            Kind::Forward => times.forward,
            _ => times.backward + if later { 0.0 } else { times.weights },
        };
        let start = self.free[at].max(ready);
        let end = self.record(stage, pass, start, seconds);
        let index = self.index(stage, pass.chunk, pass.micro_batch);
        if pass.kind == Kind::Forward {
            self.forward[index] = end;
        } else {
            self.backward[index] = end;
            if later {
                self.waiting[at].push_back(pass);
                // Later stages have fewer microbatches under way, and keep activations of so many
                // more: no stage keeps more than the first one does.
                if self.waiting[at].len() > at {
                    let pass = self.waiting[at].pop_front().expect("it is not empty");
                    self.do_weights(stage, pass);
                }
            }
        }
        self.hand_over(stage, pass);
        true
    }

    /// Computes gradients of weights while there is nothing else to do.
    fn fill(&mut self, stage: u32, until: f64) {
        let at = stage as usize;
        while let Some(&pass) = self.waiting[at].front() {
            let seconds = self.pipeline.times[at][pass.chunk as usize].weights;
            if self.free[at] + seconds > until + 1e-12 {
                return;
            }
            self.waiting[at].pop_front();
            self.do_weights(stage, pass);
        }
    }

    fn do_weights(&mut self, stage: u32, pass: Pass) {
        let seconds = self.pipeline.times[stage as usize][pass.chunk as usize].weights;
        let start = self.free[stage as usize];
        self.record(stage, Pass { kind: Kind::Weights, ..pass }, start, seconds);
    }

    /// A stage that sends is held up as long as one that receives: both wait for the NIC.
    fn hand_over(&mut self, stage: u32, pass: Pass) {
        let (stages, at) = (self.pipeline.stages(), stage as usize);
        let last = stages * self.pipeline.chunks() - 1;
        let position = pass.chunk * stages + stage;
        let sends = match pass.kind {
            Kind::Forward => position < last,
            _ => position > 0,
        };
        if sends && stages > 1 {
            self.free[at] += self.pipeline.hand_over;
            self.handing[at] += self.pipeline.hand_over;
        }
    }

    fn record(&mut self, stage: u32, pass: Pass, start: f64, seconds: f64) -> f64 {
        let at = stage as usize;
        let end = start + seconds;
        self.free[at] = end;
        self.busy[at] += seconds;
        let Pass { kind, micro_batch, chunk } = pass;
        self.spans[at].push(Span { stage, kind, micro_batch, chunk, start, end });
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn even(stages: usize, chunks: usize, micro: u32, order: PipelineOrder) -> Pipeline {
        let share = chunks as f64;
        let times =
            ChunkTimes { forward: 1.0 / share, backward: 1.0 / share, weights: 1.0 / share };
        Pipeline {
            times: vec![vec![times; chunks]; stages],
            micro_batches: micro,
            hand_over: 0.0,
            order,
        }
    }

    #[test]
    fn one_forward_one_backward_has_its_known_bubble() {
        for (stages, micro) in [(1, 1), (4, 4), (4, 16), (8, 3), (16, 64)] {
            let run = even(stages, 1, micro, PipelineOrder::OneForwardOneBackward).run();
            let expected = 3.0 * f64::from(micro) + 3.0 * (stages as f64 - 1.0);
            assert!((run.end() - expected).abs() < 1e-9, "{stages} {micro}: {}", run.end());
        }
    }

    #[test]
    fn interleaving_divides_the_bubble() {
        let order = PipelineOrder::OneForwardOneBackward;
        for chunks in [2, 4] {
            let run = even(4, chunks, 16, order).run();
            let bubble = run.end() - 48.0;
            assert!((bubble - 9.0 / chunks as f64).abs() < 1e-9, "{chunks}: {bubble}");
        }
    }

    #[test]
    fn zero_bubble_leaves_a_third() {
        let run = even(4, 1, 16, PipelineOrder::ZeroBubble).run();
        let bubble = run.end() - 48.0;
        // (p-1)(F+B-W), a third of the 9 that one forward, one backward has.
        assert!(bubble <= 3.0 + 1e-9, "{bubble}");
    }

    proptest! {
        #[test]
        fn every_pass_is_done_once_and_in_order(
            stages in 1usize..9, chunks in 1usize..4, rounds in 1u32..5, zero in any::<bool>(),
            hand_over in 0f64..0.5,
        ) {
            let chunks = if stages == 1 || zero { 1 } else { chunks };
            let order =
                if zero { PipelineOrder::ZeroBubble } else { PipelineOrder::OneForwardOneBackward };
            let micro = rounds * stages as u32;
            let mut pipeline = even(stages, chunks, micro, order);
            pipeline.hand_over = hand_over;
            let run = pipeline.run();
            let count = |kind| run.spans.iter().filter(|span| span.kind == kind).count();
            let all = stages * chunks * micro as usize;
            prop_assert_eq!(count(Kind::Forward), all);
            prop_assert_eq!(count(Kind::Backward), all);
            prop_assert_eq!(count(Kind::Weights), if zero { all } else { 0 });
            for pair in run.spans.windows(2).filter(|pair| pair[0].stage == pair[1].stage) {
                prop_assert!(pair[1].start >= pair[0].end - 1e-12);
            }
            let work = 3.0 * f64::from(micro);
            prop_assert!(run.end() >= work - 1e-9);
            prop_assert!(run.busy.iter().all(|busy| (busy - work).abs() < 1e-6));
        }
    }
}
