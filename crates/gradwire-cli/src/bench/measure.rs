//! Times and checks of one collective at one size, the same on all ranks.

use std::time::Instant;

use gradwire::{Communicator, DataType, Error, ReduceOp, Request};

use super::Args;
use super::buffer::Buffer;
use super::shape::{Segment, Shape};
use super::values::Values;

/// Up to this size operations are timed in batches: a barrier before each would leave ranks
/// further apart than an operation takes.
const BATCHED_BYTES: usize = 64 << 10;
const BATCH: usize = 20;
/// How long a size is measured if nobody says how often, in seconds.
const ENOUGH_SECONDS: f64 = 0.3;
const FEWEST_ITERATIONS: f64 = 5.0;
const MOST_ITERATIONS: f64 = 2000.0;

/// What was measured at one size.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Bytes of the largest tensor.
    pub size: usize,
    /// Elements of a part of it (of all of it where it has no parts), as nccl-tests counts.
    pub count: usize,
    /// Seconds of one operation, median.
    pub median: f64,
    /// Seconds of one operation, 99th percentile.
    pub p99: f64,
    /// Wrong elements on all ranks, if they were counted.
    pub wrong: Option<u64>,
}

/// One rank's bench.
pub struct Bench<'a> {
    args: &'a Args,
    world: &'a Communicator,
    shape: Shape,
    values: Values,
    input: Buffer,
    output: Buffer,
}

impl<'a> Bench<'a> {
    /// Takes memory for sizes up to `largest` bytes.
    pub fn new(args: &'a Args, world: &'a Communicator, shape: Shape, largest: usize) -> Self {
        let op = args.collective.reduces().then_some(args.op);
        let element = args.dtype.size_bytes();
        let count = largest / element / shape.parts();
        Bench {
            args,
            world,
            shape,
            values: Values::new(args.dtype, op, shape.ranks),
            input: Buffer::new(elements(&shape.input(count)) * element),
            output: Buffer::new(shape.output_elements(count) * element),
        }
    }

    /// Measures one size.
    ///
    /// # Errors
    /// An operation's.
    pub fn measure(&mut self, size: usize) -> Result<Measurement, Error> {
        let count = size / self.args.dtype.size_bytes() / self.shape.parts();
        let wrong = (self.args.check == 1).then(|| self.check(count)).transpose()?;
        // Zeros stay zeros however often they are reduced in place.
        self.output.bytes().fill(0);
        let request = self.request(count);
        let quickest = self.warm_up(&request)?;
        let batch = if size <= BATCHED_BYTES { BATCH } else { 1 };
        let samples = self.iterations(quickest)?.div_ceil(batch);
        let mut times = self.slowest(&self.time(&request, batch, samples)?)?;
        times.sort_by(f64::total_cmp);
        let median = (times[(samples - 1) / 2] + times[samples / 2]) / 2.0;
        let p99 = times[(samples * 99).div_ceil(100) - 1];
        Ok(Measurement { size, count, median, p99, wrong })
    }

    fn request(&mut self, count: usize) -> Request {
        let element = self.args.dtype.size_bytes();
        let input = elements(&self.shape.input(count)) * element;
        let output = self.shape.output_elements(count) * element;
        let some = |memory, bytes| if bytes > 0 { vec![memory] } else { Vec::new() };
        let mut request = Request::new(self.shape.collective, self.args.dtype, self.args.op);
        request.input = some(self.input.memory(input), input);
        request.output = some(self.output.memory(output), output);
        request.algorithm = self.args.algorithm.0;
        request.codec = self.args.codec;
        request.waits_at_once = true;
        request
    }

    fn run(&self, request: &Request) -> Result<(), Error> {
        if !self.shape.takes_part() {
            return Ok(());
        }
        // SAFETY: input and output are buffers of their own, which live as long as this bench and
        // which nobody touches until the operation is done, for which is waited here.
        let handle = unsafe { self.world.submit(request.clone())? };
        handle.wait(None)
    }

    /// Runs it once on known values; wrong elements on all ranks.
    fn check(&mut self, count: usize) -> Result<u64, Error> {
        let before = self.shape.output_before(count);
        let after = self.shape.output_after(count);
        self.values.fill(self.input.bytes(), &self.shape.input(count));
        self.output.bytes().fill(0xff);
        self.values.fill(self.output.bytes(), &before);
        let request = self.request(count);
        self.run(&request)?;
        let wrong = self.values.count_wrong(self.output.bytes(), &after);
        let mut total = [wrong as i64];
        self.world.all_reduce(&mut total, ReduceOp::Sum)?;
        Ok(total[0] as u64)
    }

    /// Seconds of the quickest of the first operations.
    fn warm_up(&self, request: &Request) -> Result<f64, Error> {
        let mut quickest = f64::INFINITY;
        for _ in 0..self.args.warm_up.max(1) {
            let start = Instant::now();
            self.run(request)?;
            quickest = quickest.min(start.elapsed().as_secs_f64());
        }
        Ok(quickest)
    }

    fn iterations(&self, quickest: f64) -> Result<usize, Error> {
        if let Some(iterations) = self.args.iterations {
            return Ok(iterations.get() as usize);
        }
        let mut seconds = [quickest];
        self.world.all_reduce(&mut seconds, ReduceOp::Max)?;
        let iterations = ENOUGH_SECONDS / seconds[0].max(1e-9);
        Ok(iterations.clamp(FEWEST_ITERATIONS, MOST_ITERATIONS) as usize)
    }

    /// Seconds of one operation in each batch, on this rank.
    fn time(&self, request: &Request, batch: usize, samples: usize) -> Result<Vec<f64>, Error> {
        let mut times = Vec::with_capacity(samples);
        for _ in 0..samples {
            self.world.barrier()?;
            let start = Instant::now();
            for _ in 0..batch {
                self.run(request)?;
            }
            times.push(start.elapsed().as_secs_f64() / batch as f64);
        }
        Ok(times)
    }

    /// The slowest rank's time of each batch.
    fn slowest(&self, times: &[f64]) -> Result<Vec<f64>, Error> {
        let mut slowest = times.to_vec();
        self.world.all_reduce(&mut slowest, ReduceOp::Max)?;
        Ok(slowest)
    }
}

/// Sizes are multiples of this: an element for each part.
pub fn grain(dtype: DataType, shape: &Shape) -> usize {
    dtype.size_bytes() * shape.parts()
}

fn elements(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| segment.elements).sum()
}
