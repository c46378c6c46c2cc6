//! Which send belongs to which receive, and an order in which all steps can run.

use crate::{Rank, Schedule, Step, StepIndex};

/// A step of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Node {
    pub(crate) rank: Rank,
    pub(crate) step: StepIndex,
}

/// A send and its receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) send: Node,
    pub(crate) receive: Node,
}

/// The messages of a schedule and an order of its steps.
pub(crate) struct Flow {
    /// Grouped by stream (sender, receiver), in the order of the stream.
    pub(crate) messages: Vec<Message>,
    /// Sends without a receive and receives without a send.
    pub(crate) unmatched: Vec<Node>,
    /// Every step that can run, each after all that it waits for.
    pub(crate) order: Vec<Node>,
    /// Steps that wait for each other in a circle, if there are any.
    pub(crate) cycle: Vec<Node>,
}

impl Flow {
    /// Pairs the k-th send from a to b with b's k-th receive from a, and orders the steps.
    ///
    /// A stream carries its messages in order and holds one at a time: a send waits until the
    /// message before it in the same stream has been received.
    pub(crate) fn of(schedule: &Schedule) -> Self {
        let (messages, unmatched) = pair(schedule);
        let graph = Graph::new(schedule, &messages);
        let (order, cycle) = graph.sort();
        Self { messages, unmatched, order, cycle }
    }
}

/// The number of each step when all steps are counted rank by rank.
pub(crate) struct Numbering {
    first: Vec<usize>,
}

impl Numbering {
    pub(crate) fn new(schedule: &Schedule) -> Self {
        let mut first = vec![0];
        for program in &schedule.programs {
            first.push(first[first.len() - 1] + program.steps.len());
        }
        Self { first }
    }

    /// The number of steps of all ranks together.
    pub(crate) fn len(&self) -> usize {
        self.first[self.first.len() - 1]
    }

    pub(crate) fn number(&self, node: Node) -> usize {
        self.first[node.rank as usize] + node.step as usize
    }

    fn node(&self, number: usize) -> Node {
        let rank = self.first.partition_point(|&first| first <= number) - 1;
        Node { rank: rank as Rank, step: (number - self.first[rank]) as StepIndex }
    }
}

/// All steps of all programs, with the position of the program as their rank.
pub(crate) fn nodes(schedule: &Schedule) -> impl Iterator<Item = (Node, &Step)> {
    (0..).zip(&schedule.programs).flat_map(|(rank, program)| {
        (0..).zip(&program.steps).map(move |(step, body)| (Node { rank, step }, body))
    })
}

fn pair(schedule: &Schedule) -> (Vec<Message>, Vec<Node>) {
    let mut sends = Vec::new();
    let mut receives = Vec::new();
    for (node, step) in nodes(schedule) {
        if let Some(to) = step.kind.sends_to() {
            sends.push(((node.rank, to), node));
        }
        if let Some(from) = step.kind.receives_from() {
            receives.push(((from, node.rank), node));
        }
    }
    // Stable: within a stream the order of the program stays.
    sends.sort_by_key(|(stream, _)| *stream);
    receives.sort_by_key(|(stream, _)| *stream);
    let (mut messages, mut unmatched) = (Vec::new(), Vec::new());
    let (mut sends, mut receives) = (sends.into_iter().peekable(), receives.into_iter().peekable());
    while let (Some(&(sending, send)), Some(&(receiving, receive))) =
        (sends.peek(), receives.peek())
    {
        match sending.cmp(&receiving) {
            std::cmp::Ordering::Equal => messages.push(Message { send, receive }),
            std::cmp::Ordering::Less => unmatched.push(send),
            std::cmp::Ordering::Greater => unmatched.push(receive),
        }
        sends.next_if(|_| sending <= receiving);
        receives.next_if(|_| receiving <= sending);
    }
    unmatched.extend(sends.chain(receives).map(|(_, node)| node));
    (messages, unmatched)
}

/// What waits for what, as edges between numbered steps.
struct Graph {
    numbering: Numbering,
    edges: Vec<(usize, usize)>,
}

impl Graph {
    fn new(schedule: &Schedule, messages: &[Message]) -> Self {
        let numbering = Numbering::new(schedule);
        let mut edges = Vec::with_capacity(2 * numbering.len());
        for (node, step) in nodes(schedule) {
            let steps = schedule.programs[node.rank as usize].steps.len();
            for &earlier in step.after.iter().filter(|&&earlier| (earlier as usize) < steps) {
                let before = Node { step: earlier, ..node };
                edges.push((numbering.number(before), numbering.number(node)));
            }
        }
        let mut previous: Option<Message> = None;
        for &message in messages {
            let stream = |message: Message| (message.send.rank, message.receive.rank);
            if let Some(taken) = previous.filter(|&taken| stream(taken) == stream(message)) {
                edges.push((numbering.number(taken.receive), numbering.number(message.send)));
            }
            edges.push((numbering.number(message.send), numbering.number(message.receive)));
            previous = Some(message);
        }
        Self { numbering, edges }
    }

    /// Kahn's algorithm; what is left over holds a cycle.
    fn sort(self) -> (Vec<Node>, Vec<Node>) {
        let steps = self.numbering.len();
        let mut waiting = vec![0u32; steps];
        let mut first = vec![0usize; steps + 1];
        for &(before, after) in &self.edges {
            waiting[after] += 1;
            first[before + 1] += 1;
        }
        for index in 0..steps {
            first[index + 1] += first[index];
        }
        let mut successors = vec![0usize; self.edges.len()];
        let mut next = first.clone();
        for &(before, after) in &self.edges {
            successors[next[before]] = after;
            next[before] += 1;
        }
        let mut order: Vec<usize> = (0..steps).filter(|&step| waiting[step] == 0).collect();
        let mut done = 0;
        while done < order.len() {
            let step = order[done];
            done += 1;
            for &successor in &successors[first[step]..first[step + 1]] {
                waiting[successor] -= 1;
                if waiting[successor] == 0 {
                    order.push(successor);
                }
            }
        }
        let cycle = self.cycle(&waiting);
        (order.into_iter().map(|step| self.numbering.node(step)).collect(), cycle)
    }

    /// Goes back from a step that never runs, along what it waits for, until a step comes twice.
    fn cycle(&self, waiting: &[u32]) -> Vec<Node> {
        let mut blocker = vec![None; waiting.len()];
        for &(before, after) in self.edges.iter().filter(|(before, _)| waiting[*before] > 0) {
            blocker[after] = Some(before);
        }
        let Some(start) = waiting.iter().position(|&count| count > 0) else { return Vec::new() };
        let mut path = vec![start];
        while let Some(step) = blocker[path[path.len() - 1]] {
            if let Some(first) = path.iter().position(|&seen| seen == step) {
                let cycle = path[first..].iter();
                return cycle.map(|&step| self.numbering.node(step)).collect();
            }
            path.push(step);
        }
        Vec::new()
    }
}
