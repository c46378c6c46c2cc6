//! Two binary trees, each carrying half of the tensor.
//!
//! A rank that is an inner node of one tree is a leaf of the other (but for one rank where their
//! number is odd), so that both halves together load every link alike: Sanders, Speck and Träff,
//! "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009. The trees are
//! those of NCCL since version 2.4. Gather and scatter use a binomial tree, barrier the first of
//! the two binary trees.

use super::Place;
use super::partials::Partials;
use crate::{Buffer, Collective, Program, ProgramBuilder, Rank, Slot};

/// The trees carry one chunk each.
const TREES: u32 = 2;

pub(super) fn program(collective: Collective, place: Place) -> Program {
    match collective {
        Collective::AllReduce => all_reduce(place),
        Collective::Reduce { root } => reduce(place, root),
        Collective::Broadcast { root } => broadcast(place, root),
        Collective::Gather { root } => gather(place, root),
        Collective::Scatter { root } => scatter(place, root),
        Collective::Barrier => barrier(place),
        _ => unreachable!("checked by Algorithm::supports"),
    }
}

/// A rank's neighbours in a tree.
#[derive(Debug)]
struct Node {
    parent: Option<Rank>,
    children: Vec<Rank>,
}

impl Node {
    fn map(self, rename: impl Fn(Rank) -> Rank) -> Node {
        Node {
            parent: self.parent.map(&rename),
            children: self.children.into_iter().map(rename).collect(),
        }
    }
}

/// The binary tree over `0..ranks` rooted at 0 in which odd ranks are leaves and a rank whose
/// lowest set bit is 2^k has its children at ± 2^(k-1).
fn binary_node(rank: Rank, ranks: Rank) -> Node {
    if rank == 0 {
        let child = (ranks > 1).then(|| ranks.next_power_of_two() / 2);
        return Node { parent: None, children: child.into_iter().collect() };
    }
    let lowest = rank & rank.wrapping_neg();
    let above = (rank ^ lowest) | (lowest << 1);
    let parent = if above < ranks { above } else { rank ^ lowest };
    let mut halves = (0..lowest.ilog2()).rev().map(|bit| 1 << bit);
    let left = (lowest > 1).then(|| rank - lowest / 2);
    // Where the tree is cut off, the right child is the nearest that is left of it.
    let right = halves.find(|half| rank + half < ranks).map(|half| rank + half);
    Node { parent: Some(parent), children: left.into_iter().chain(right).collect() }
}

/// The tree of that index: the first as it is, the second mirrored (if the number of ranks is
/// even) or shifted by one (if it is odd).
fn node(tree: u32, rank: Rank, ranks: Rank) -> Node {
    match tree {
        0 => binary_node(rank, ranks),
        _ if ranks.is_multiple_of(2) => {
            binary_node(ranks - 1 - rank, ranks).map(|rank| ranks - 1 - rank)
        }
        _ => {
            let shifted = (rank + ranks - 1) % ranks;
            binary_node(shifted, ranks).map(|rank| (rank + 1) % ranks)
        }
    }
}

/// The tree of that index with `root` on top: both trees span the other ranks, and their roots
/// are the children of `root`.
fn node_below(tree: u32, place: Place, root: Rank) -> Node {
    let others = place.ranks - 1;
    let name = |index: Rank| (root + 1 + index) % place.ranks;
    if place.rank == root {
        let top = (0..others).find(|&index| node(tree, index, others).parent.is_none());
        return Node { parent: None, children: top.map(name).into_iter().collect() };
    }
    let mut node = node(tree, place.behind(root) - 1, others).map(name);
    node.parent = node.parent.or(Some(root));
    node
}

fn all_reduce(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, TREES);
    let nodes = [0, 1].map(|tree| node(tree, place.rank, place.ranks));
    let mut partials = Partials::in_place();
    for (tree, node) in (0..).zip(&nodes) {
        reduce_up(&mut builder, &mut partials, node, tree);
    }
    for (tree, node) in (0..).zip(&nodes) {
        broadcast_down(&mut builder, node, tree);
    }
    builder.finish()
}

fn reduce(place: Place, root: Rank) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, TREES);
    let mut partials = match place.rank == root {
        true => Partials::in_place(),
        false => Partials::apart(Buffer::Output, None),
    };
    for tree in 0..TREES {
        reduce_up(&mut builder, &mut partials, &node_below(tree, place, root), tree);
    }
    builder.finish()
}

fn broadcast(place: Place, root: Rank) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, TREES);
    for tree in 0..TREES {
        broadcast_down(&mut builder, &node_below(tree, place, root), tree);
    }
    builder.finish()
}

fn reduce_up(builder: &mut ProgramBuilder, partials: &mut Partials, node: &Node, chunk: u32) {
    for (index, &child) in node.children.iter().enumerate() {
        let last = node.parent.is_none() && index + 1 == node.children.len();
        partials.receive(builder, child, chunk, last);
    }
    if let Some(parent) = node.parent {
        builder.send(parent, partials.slot(chunk));
    }
}

fn broadcast_down(builder: &mut ProgramBuilder, node: &Node, chunk: u32) {
    if let Some(parent) = node.parent {
        builder.receive(parent, Slot::output(chunk));
    }
    for &child in &node.children {
        builder.send(child, Slot::output(chunk));
    }
}

/// The word that all have arrived goes up, the word to pass comes down.
fn barrier(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, 1);
    let node = node(0, place.rank, place.ranks);
    for &child in &node.children {
        builder.receive(child, Slot::output(0));
    }
    if let Some(parent) = node.parent {
        builder.send(parent, Slot::output(0));
    }
    broadcast_down(&mut builder, &node, 0);
    builder.finish()
}

/// A rank in the binomial tree below a root. Ranks are counted from the root here: the subtree of
/// v is `v..v + size`, and its children are v + 1, v + 2, v + 4 and so on below v + size.
struct Binomial {
    place: Place,
    root: Rank,
    own: Rank,
    end: Rank,
}

impl Binomial {
    fn new(place: Place, root: Rank) -> Self {
        let own = place.behind(root);
        let size = if own == 0 { place.ranks } else { own & own.wrapping_neg() };
        Self { place, root, own, end: place.ranks.min(own + size) }
    }

    fn name(&self, index: Rank) -> Rank {
        (self.root + index) % self.place.ranks
    }

    fn parent(&self) -> Option<Rank> {
        (self.own != 0).then(|| self.name(self.own & (self.own - 1)))
    }

    /// Each child's name and the ranks of its subtree, smallest first.
    fn children(&self) -> impl DoubleEndedIterator<Item = (Rank, Vec<Rank>)> {
        let reach = self.end - self.own;
        let count = reach.next_power_of_two().ilog2();
        (0..count).map(move |bit| {
            let child = self.own + (1 << bit);
            let members = child..self.end.min(child + (1 << bit));
            (self.name(child), members.map(|index| self.name(index)).collect())
        })
    }
}

fn gather(place: Place, root: Rank) -> Program {
    let tree = Binomial::new(place, root);
    let output_chunks = if place.rank == root { place.ranks } else { 0 };
    let mut builder = ProgramBuilder::new(place.rank, 1, output_chunks);
    match tree.parent() {
        None => builder.copy(Slot::input(0), Slot::output(root)),
        Some(parent) => builder.send(parent, Slot::input(0)),
    }
    for (child, members) in tree.children() {
        for member in members {
            match tree.parent() {
                None => builder.receive(child, Slot::output(member)),
                Some(parent) => {
                    let passing = builder.scratch(Slot::input(0));
                    builder.receive(child, passing);
                    builder.send(parent, passing);
                }
            }
        }
    }
    builder.finish()
}

/// The largest subtrees are served first: theirs is the longest way.
fn scatter(place: Place, root: Rank) -> Program {
    let tree = Binomial::new(place, root);
    let input_chunks = if place.rank == root { place.ranks } else { 0 };
    let mut builder = ProgramBuilder::new(place.rank, input_chunks, 1);
    if tree.parent().is_none() {
        builder.copy(Slot::input(root), Slot::output(0));
        for (child, members) in tree.children().rev() {
            members.into_iter().for_each(|member| builder.send(child, Slot::input(member)));
        }
        return builder.finish();
    }
    let parent = tree.parent().unwrap_or(root);
    builder.receive(parent, Slot::output(0));
    for (child, members) in tree.children() {
        for _ in members {
            let passing = builder.scratch(Slot::output(0));
            builder.receive(parent, passing);
            builder.send(child, passing);
        }
    }
    builder.finish()
}
