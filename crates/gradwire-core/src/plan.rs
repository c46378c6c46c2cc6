//! A program bound to the sizes of one operation: everything about it that can be known before it
//! runs. Plans are immutable and shared by all operations of the same shape.

use std::sync::Arc;

use gradwire_schedule::{Buffer, Collective, Program, Slot, StepIndex, StepKind};
use thiserror::Error;

use crate::Descriptor;

/// The rank that a receive from any source names until a sender is found.
pub const ANY_SOURCE: u32 = u32::MAX;

/// A step with what its operation's sizes make of it.
#[derive(Clone, Debug)]
pub struct PlannedStep {
    /// What it does.
    pub kind: StepKind,
    /// Steps that must have done tile t before this one may.
    pub after: Vec<StepIndex>,
    /// Steps to look at again when this one has done a tile.
    pub before: Vec<StepIndex>,
    /// Length of the chunk in bytes.
    pub bytes: u64,
    /// Number of tiles, at least 1.
    pub tiles: u32,
    /// Index into [`Plan::peers`] for sends and receives.
    pub peer: usize,
    /// The how-manieth send to (or receive from) that peer it is.
    pub edge: u32,
    /// For a send or receive: whether its tiles travel encoded. What stays within a host does not.
    pub is_encoded: bool,
    /// For a step that spreads a chunk of the result, and not a part of a sum: how many steps of
    /// this rank encode that chunk. All of them must find the same values, so that with a codec all
    /// ranks end with the same bits. Otherwise 0.
    pub spreads: u32,
}

/// A rank that this plan exchanges data with.
#[derive(Clone, Debug, Default)]
pub struct PlannedPeer {
    /// Its rank within the group.
    pub rank: u32,
    /// Sends to it, in program order.
    pub sends: Vec<StepIndex>,
    /// Receives from it, in program order.
    pub receives: Vec<StepIndex>,
    /// Bytes sent to it.
    pub send_bytes: u64,
    /// Bytes received from it.
    pub receive_bytes: u64,
}

/// A chunk of scratch: its length and who touches it.
#[derive(Clone, Debug)]
pub struct PlannedScratch {
    /// The chunk of the caller's whose partial results it holds.
    pub like: Slot,
    /// Length in bytes.
    pub bytes: u64,
    /// Steps that read or write it.
    pub touched_by: Vec<StepIndex>,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the operation is.
    pub descriptor: Descriptor,
    /// Bytes of a tile (the last of a chunk may be shorter).
    pub tile_bytes: u32,
    /// The steps of this rank.
    pub steps: Vec<PlannedStep>,
    /// The ranks it deals with, by rank.
    pub peers: Vec<PlannedPeer>,
    /// The scratch chunks.
    pub scratch: Vec<PlannedScratch>,
    /// Length of each input chunk in bytes.
    pub input_bytes: Vec<u64>,
    /// Length of each output chunk in bytes.
    pub output_bytes: Vec<u64>,
    /// With a codec, for each chunk that the rank contributes, whether it is rounded here, itself
    /// or in a sum.
    pub is_rounded: Vec<bool>,
}

/// A program and sizes that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The number of chunks is not the program's.
    #[error("{buffer:?} has {given} chunks, the schedule of {descriptor} wants {wanted}")]
    Chunks {
        /// Which buffer.
        buffer: Buffer,
        /// How many the caller gave.
        given: usize,
        /// How many the program wants.
        wanted: u32,
        /// The operation, in words.
        descriptor: String,
    },
    /// Chunks that one step combines have different lengths.
    #[error("{descriptor}: chunks that belong together have {first} and {second} bytes")]
    Lengths {
        /// One of the lengths.
        first: u64,
        /// The other.
        second: u64,
        /// The operation, in words.
        descriptor: String,
    },
}

impl Plan {
    /// Binds a program to the lengths of its chunks.
    pub fn new(
        descriptor: Descriptor,
        program: &Program,
        input_bytes: Vec<u64>,
        output_bytes: Vec<u64>,
        tile_bytes: u32,
    ) -> Result<Arc<Plan>, PlanError> {
        assert!(tile_bytes > 0, "a tile has at least one byte");
        check_chunks(Buffer::Input, &input_bytes, program.input_chunks, &descriptor)?;
        check_chunks(Buffer::Output, &output_bytes, program.output_chunks, &descriptor)?;
        let bytes_of = |slot: Slot| match slot.buffer {
            Buffer::Input => input_bytes[slot.chunk as usize],
            Buffer::Output => output_bytes[slot.chunk as usize],
            Buffer::Scratch => match program.scratch[slot.chunk as usize] {
                Slot { buffer: Buffer::Input, chunk } => input_bytes[chunk as usize],
                Slot { chunk, .. } => output_bytes[chunk as usize],
            },
        };
        let mut plan = Plan {
            descriptor,
            tile_bytes,
            steps: Vec::with_capacity(program.steps.len()),
            peers: peers_of(program),
            scratch: program
                .scratch
                .iter()
                .map(|like| PlannedScratch {
                    like: *like,
                    bytes: bytes_of(*like),
                    touched_by: Vec::new(),
                })
                .collect(),
            input_bytes: input_bytes.clone(),
            output_bytes: output_bytes.clone(),
            is_rounded: Vec::new(),
        };
        for (index, step) in program.steps.iter().enumerate() {
            let mut lengths = step.kind.reads().chain(step.kind.writes()).map(bytes_of);
            let bytes = lengths.next().expect("a step touches at least one slot");
            if let Some(second) = lengths.find(|other| *other != bytes) {
                let descriptor = descriptor.to_string();
                return Err(PlanError::Lengths { first: bytes, second, descriptor });
            }
            plan.add(index as StepIndex, step.kind, step.after.clone(), bytes);
        }
        plan.link();
        if descriptor.codec.is_some() {
            plan.find_encoded(&program.same_host);
            plan.find_spreading();
            plan.find_rounded();
        }
        Ok(Arc::new(plan))
    }

    fn add(&mut self, index: StepIndex, kind: StepKind, after: Vec<StepIndex>, bytes: u64) {
        let (mut peer, mut edge) = (usize::MAX, 0);
        if let Some(rank) = kind.sends_to().or(kind.receives_from()) {
            peer = self.peers.partition_point(|peer| peer.rank < rank);
            let planned = &mut self.peers[peer];
            let (list, total) = if kind.sends_to().is_some() {
                (&mut planned.sends, &mut planned.send_bytes)
            } else {
                (&mut planned.receives, &mut planned.receive_bytes)
            };
            edge = list.len() as u32;
            list.push(index);
            *total += bytes;
        }
        for slot in kind.reads().chain(kind.writes()) {
            if slot.buffer == Buffer::Scratch {
                let touched_by = &mut self.scratch[slot.chunk as usize].touched_by;
                if touched_by.last() != Some(&index) {
                    touched_by.push(index);
                }
            }
        }
        let tiles = bytes.div_ceil(u64::from(self.tile_bytes)).max(1) as u32;
        self.steps.push(PlannedStep {
            kind,
            after,
            before: Vec::new(),
            bytes,
            tiles,
            peer,
            edge,
            is_encoded: false,
            spreads: 0,
        });
    }

    /// Fills in `is_encoded`.
    fn find_encoded(&mut self, same_host: &[u32]) {
        for step in &mut self.steps {
            let other = step.kind.sends_to().or(step.kind.receives_from());
            step.is_encoded = other.is_some_and(|rank| !same_host.contains(&rank));
        }
    }

    /// Fills in `before`: the reverse of `after`, and for scratch, where a later tile takes the
    /// room of an earlier one, the writers of every chunk that a step touches.
    fn link(&mut self) {
        for index in 0..self.steps.len() as StepIndex {
            for earlier in self.steps[index as usize].after.clone() {
                self.steps[earlier as usize].before.push(index);
            }
        }
        for scratch in &self.scratch {
            for &writer in &scratch.touched_by {
                let is_writer = self.steps[writer as usize]
                    .kind
                    .writes()
                    .is_some_and(|slot| slot.buffer == Buffer::Scratch);
                for &toucher in scratch.touched_by.iter().filter(|_| is_writer) {
                    if toucher != writer {
                        self.steps[toucher as usize].before.push(writer);
                    }
                }
            }
        }
        for step in &mut self.steps {
            step.before.sort_unstable();
            step.before.dedup();
        }
    }

    /// Fills in `spreads`: a step spreads what was reduced for the last time, or was received, and
    /// in collectives that do not reduce whatever it reads.
    fn find_spreading(&mut self) {
        let reduces = matches!(
            self.descriptor.collective,
            Collective::AllReduce | Collective::Reduce { .. } | Collective::ReduceScatter
        );
        let mut results: Vec<Slot> = Vec::new();
        let mut readers: Vec<(usize, Slot)> = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            match step.kind {
                StepKind::Send { .. } if !step.is_encoded => {}
                StepKind::Send { source, .. } | StepKind::Copy { source, .. }
                    if !reduces || results.contains(&source) =>
                {
                    readers.push((index, source));
                }
                StepKind::Receive { destination, .. }
                | StepKind::ReceiveReduce { destination, last: true, .. }
                | StepKind::Reduce { destination, last: true, .. } => results.push(destination),
                _ => {}
            }
        }
        for &(index, slot) in &readers {
            self.steps[index].spreads =
                readers.iter().filter(|(_, other)| *other == slot).count() as u32;
        }
    }

    /// Fills in `is_rounded`.
    fn find_rounded(&mut self) {
        let contributed = match self.descriptor.collective.works_in_place() {
            true => self.output_bytes.len(),
            false => self.input_bytes.len(),
        };
        let mut is_rounded = vec![false; contributed];
        for step in &self.steps {
            let encoded = match step.kind {
                StepKind::Send { source, .. } if step.is_encoded => self.contribution(source),
                StepKind::Copy { source, .. } if step.spreads > 0 => self.contribution(source),
                _ => None,
            };
            if let Some(chunk) = encoded {
                is_rounded[chunk as usize] = true;
            }
        }
        self.is_rounded = is_rounded;
    }

    /// The chunk of the rank's contribution that a slot holds, or a sum with which it holds.
    pub fn contribution(&self, slot: Slot) -> Option<u32> {
        let contributed = match self.descriptor.collective.works_in_place() {
            true => Buffer::Output,
            false => Buffer::Input,
        };
        let slot = match slot.buffer {
            Buffer::Scratch => self.scratch[slot.chunk as usize].like,
            _ => slot,
        };
        (slot.buffer == contributed).then_some(slot.chunk)
    }

    /// Bytes that a tile of a send or receive has on the wire.
    pub fn wire_bytes(&self, step: StepIndex, tile: u32) -> u32 {
        let (_, bytes) = self.tile(step, tile);
        let element = self.descriptor.dtype.size_bytes();
        let codec = self.descriptor.codec.filter(|_| self.steps[step as usize].is_encoded);
        codec.map_or(bytes, |codec| codec.encoded_bytes(bytes as usize / element) as u32)
    }

    /// Offset and length in bytes of a tile within its chunk, in memory.
    pub fn tile(&self, step: StepIndex, tile: u32) -> (u64, u32) {
        let offset = u64::from(tile) * u64::from(self.tile_bytes);
        let bytes = self.steps[step as usize].bytes.saturating_sub(offset);
        (offset, bytes.min(u64::from(self.tile_bytes)) as u32)
    }
}

fn check_chunks(
    buffer: Buffer,
    given: &[u64],
    wanted: u32,
    descriptor: &Descriptor,
) -> Result<(), PlanError> {
    if given.len() == wanted as usize {
        return Ok(());
    }
    let descriptor = descriptor.to_string();
    Err(PlanError::Chunks { buffer, given: given.len(), wanted, descriptor })
}

fn peers_of(program: &Program) -> Vec<PlannedPeer> {
    let mut ranks: Vec<u32> = program
        .steps
        .iter()
        .filter_map(|step| step.kind.sends_to().or(step.kind.receives_from()))
        .collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks.into_iter().map(|rank| PlannedPeer { rank, ..Default::default() }).collect()
}
