//! A group of ranks: who is in it, which operation is its next, and whether it has failed.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::Descriptor;
use crate::failure::Failure;

/// How many finished operations a group remembers, to notice that a rank asked for another one.
const REMEMBERED: usize = 32;

/// How many removed groups are remembered, to tell their late frames from nonsense.
const REMEMBERED_GROUPS: usize = 4096;

/// Groups that were removed here.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    known: FxHashSet<u64>,
    order: VecDeque<u64>,
}

impl Removed {
    pub fn insert(&mut self, group: u64) {
        if !self.known.insert(group) {
            return;
        }
        if self.order.len() == REMEMBERED_GROUPS {
            let oldest = self.order.pop_front().expect("it is full");
            self.known.remove(&oldest);
        }
        self.order.push_back(group);
    }

    pub fn contains(&self, group: u64) -> bool {
        self.known.contains(&group)
    }
}

#[derive(Debug)]
pub(crate) struct Group {
    pub name: String,
    /// World ranks, by rank in the group.
    pub members: Vec<u32>,
    pub next_sequence: u64,
    pub failure: Option<Arc<Failure>>,
    recent: VecDeque<(u64, Descriptor)>,
}

impl Group {
    pub fn new(name: &str, members: &[u32]) -> Self {
        Group {
            name: name.to_owned(),
            members: members.to_vec(),
            next_sequence: 0,
            failure: None,
            recent: VecDeque::new(),
        }
    }

    pub fn remember(&mut self, sequence: u64, descriptor: Descriptor) {
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back((sequence, descriptor));
    }

    /// The descriptor of a recently finished operation.
    pub fn finished(&self, sequence: u64) -> Option<&Descriptor> {
        self.recent.iter().find(|(number, _)| *number == sequence).map(|(_, it)| it)
    }
}
