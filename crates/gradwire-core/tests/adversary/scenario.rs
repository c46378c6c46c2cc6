//! From a seed to everything that one run is made of: ranks, limits, network, programs, fault.

use gradwire_core::Config;
use gradwire_reduce::{DataType, ReduceOp};
use gradwire_schedule::{Algorithm, Collective};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

pub const MILLISECOND: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MILLISECOND;
/// After so long the kernel gives up a connection on which nothing answers.
pub const KEEPALIVE: u64 = 60 * SECOND;

/// All that is drawn from a seed before the run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub config: Config,
    pub tile_bytes: u32,
    pub network: Network,
    pub groups: Vec<GroupPlan>,
    /// Operations that a rank has in flight in one group.
    pub depth: usize,
    /// Longest pause before a rank submits its next operation.
    pub pace: u64,
    /// Longest time until a rank makes a group known and begins with it.
    pub stagger: u64,
    /// From submission to deadline.
    pub timeout: u64,
    pub fault: Fault,
    /// Ranks remove a group as soon as they are through with it.
    pub removes_groups: bool,
}

/// The shape of the network.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    pub lanes: usize,
    /// Frames that a lane takes before its first has arrived.
    pub capacity: usize,
    /// Longest time from one end to the other.
    pub delay: u64,
    /// Longest time before a rank looks at what has happened.
    pub reaction: u64,
}

#[derive(Clone, Debug)]
pub struct GroupPlan {
    pub id: u64,
    pub name: String,
    /// World ranks.
    pub members: Vec<u32>,
    pub items: Vec<Item>,
}

/// What the ranks of a group do together. All ranks are ranks of the group.
#[derive(Clone, Debug)]
pub enum Item {
    Collective(Call),
    /// One message.
    Transfer {
        from: u32,
        to: u32,
        tag: u32,
        dtype: DataType,
        elements: u64,
    },
    /// Messages of these senders (some more than once), received from any source.
    Collect {
        to: u32,
        senders: Vec<u32>,
        tag: u32,
        dtype: DataType,
        elements: u64,
    },
}

/// A collective with its sizes in elements: of the whole tensor, of each rank's chunk, or of the
/// chunk from each rank to each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub collective: Collective,
    pub algorithm: Algorithm,
    pub dtype: DataType,
    pub op: ReduceOp,
    pub sizes: Vec<u64>,
    /// For algorithms that tell hosts apart.
    pub ranks_per_host: u32,
}

/// What goes wrong. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub enum Fault {
    None,
    /// The rank's process ends; the others see their connections end.
    Kill {
        rank: u32,
        at: u64,
    },
    /// The rank stands still; `until` is for ever if it does not say.
    Freeze {
        rank: u32,
        at: u64,
        until: Option<u64>,
    },
    /// Nothing reaches the rank or leaves it any more.
    CutHost {
        rank: u32,
        at: u64,
    },
    /// The connections between two ranks end.
    CutLink {
        ranks: [u32; 2],
        at: u64,
    },
    /// The rank starts late.
    Late {
        rank: u32,
        by: u64,
    },
    /// The rank posts nothing in a group from this item on.
    NeverPosts {
        rank: u32,
        group: usize,
        item: usize,
    },
    /// The rank asks for something else.
    Mismatch {
        rank: u32,
        group: usize,
        item: usize,
        instead: Item,
    },
    /// The rank calls abort.
    Abort {
        rank: u32,
        group: usize,
        at: u64,
    },
    /// The rank leaves once it is through.
    Depart {
        rank: u32,
    },
    /// The rank leaves in good order, but others may need it.
    DepartEarly {
        rank: u32,
        at: u64,
    },
}

impl Fault {
    /// Whether every operation must succeed all the same.
    pub fn is_harmless(&self) -> bool {
        match self {
            Fault::None | Fault::Late { .. } | Fault::Depart { .. } => true,
            Fault::Freeze { at, until, .. } => until.is_some_and(|until| until - at < 5 * SECOND),
            _ => false,
        }
    }
}

impl Scenario {
    pub fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let rng = &mut rng;
        let ranks = match rng.random_range(0..20) {
            0 => 1,
            1 => rng.random_range(9..=16),
            _ => rng.random_range(2..=8),
        };
        let delay = *[20_000, MILLISECOND, 10 * MILLISECOND].choose(rng).expect("not empty");
        let mut scenario = Scenario {
            seed,
            config: config(ranks, rng),
            tile_bytes: *[16, 32, 64].choose(rng).expect("not empty"),
            network: Network {
                lanes: rng.random_range(1..=4),
                capacity: rng.random_range(1..=4),
                delay,
                reaction: delay / *[1, 10, 100].choose(rng).expect("not empty"),
            },
            groups: Vec::new(),
            depth: *[1, 2, 4, 100].choose(rng).expect("not empty"),
            pace: delay * *[0, 1, 5].choose(rng).expect("not empty"),
            stagger: delay * *[1, 1, 50].choose(rng).expect("not empty"),
            timeout: 100 * SECOND,
            fault: Fault::None,
            removes_groups: rng.random_bool(0.3),
        };
        let transfers = rng.random_bool(0.6);
        for index in 0..rng.random_range(1..=3) {
            let group = scenario.draw_group(index, ranks, transfers, rng);
            scenario.groups.push(group);
        }
        if scenario.groups.len() == 1 && rng.random_bool(0.5) {
            scenario.config.max_operations = rng.random_range(1..=4);
        }
        if ranks > 1 && rng.random_bool(0.65) {
            scenario.draw_fault(rng);
        }
        scenario
    }

    fn draw_group(&self, index: u64, ranks: u32, transfers: bool, rng: &mut StdRng) -> GroupPlan {
        let mut members: Vec<u32> = (0..ranks).collect();
        if index > 0 {
            members.shuffle(rng);
            members.truncate(rng.random_range(1..=ranks as usize));
        }
        let n = members.len() as u32;
        let items = (0..rng.random_range(1..=6))
            .map(|item| {
                if transfers && n > 1 && rng.random_bool(0.3) {
                    draw_messages(item, n, self.tile_bytes, rng)
                } else {
                    Item::Collective(draw_call(n, self.tile_bytes, rng))
                }
            })
            .collect();
        GroupPlan { id: 0x1000 + index, name: format!("group-{index}"), members, items }
    }

    fn draw_fault(&mut self, rng: &mut StdRng) {
        let rank = rng.random_range(0..self.config.world_size);
        // Runs last from some delays to some hundred.
        let longest = 1 << rng.random_range(1..8);
        let at = self.network.delay * rng.random_range(1..=longest);
        let group = rng.random_range(0..self.groups.len());
        self.fault = match rng.random_range(0..13) {
            0 | 1 => Fault::Kill { rank, at },
            2 => Fault::Freeze { rank, at, until: None },
            3 => Fault::Freeze { rank, at, until: Some(at + rng.random_range(0..4 * SECOND)) },
            4 => Fault::Freeze { rank, at, until: Some(at + 20 * SECOND) },
            5 => Fault::CutHost { rank, at },
            6 => {
                let other =
                    (rank + rng.random_range(1..self.config.world_size)) % self.config.world_size;
                Fault::CutLink { ranks: [rank, other], at }
            }
            7 => Fault::Late { rank, by: rng.random_range(0..15 * SECOND) },
            8 => self.draw_missing(group, rng),
            9 => self.draw_mismatch(group, rng),
            10 => {
                let rank = *self.groups[group].members.choose(rng).expect("a group has members");
                Fault::Abort { rank, group, at }
            }
            11 => Fault::Depart { rank },
            _ => Fault::DepartEarly { rank, at },
        };
    }

    fn draw_missing(&mut self, group: usize, rng: &mut StdRng) -> Fault {
        let rank = *self.groups[group].members.choose(rng).expect("a group has members");
        let item = rng.random_range(0..self.groups[group].items.len());
        self.timeout = rng.random_range(5 * SECOND..15 * SECOND);
        // Everybody else has posted everything long before the deadline, so that only the one
        // that has not can be to blame.
        self.depth = 100;
        self.config.max_operations = 1024;
        self.pace = self.pace.min(MILLISECOND);
        self.stagger = self.stagger.min(MILLISECOND);
        self.network.delay = self.network.delay.min(MILLISECOND);
        self.network.reaction = self.network.reaction.min(MILLISECOND);
        Fault::NeverPosts { rank, group, item }
    }

    fn draw_mismatch(&mut self, group: usize, rng: &mut StdRng) -> Fault {
        let members = &self.groups[group].members;
        let n = members.len() as u32;
        if n == 1 {
            return Fault::None;
        }
        let item = rng.random_range(0..self.groups[group].items.len());
        let me = rng.random_range(0..n);
        let rank = members[me as usize];
        self.removes_groups = false;
        let instead = match &self.groups[group].items[item] {
            Item::Collective(call) => Item::Collective(alter(call, me, n, rng)),
            _ => {
                // A message that one end thinks longer than the other.
                let (from, to) = (me, (me + 1) % n);
                let (tag, dtype) = (77, DataType::I32);
                let elements = rng.random_range(1..40);
                self.groups[group].items[item] = Item::Transfer { from, to, tag, dtype, elements };
                Item::Transfer {
                    from,
                    to,
                    tag,
                    dtype,
                    elements: elements + rng.random_range(1..40),
                }
            }
        };
        Fault::Mismatch { rank, group, item, instead }
    }
}

fn config(world_size: u32, rng: &mut StdRng) -> Config {
    Config {
        world_size,
        window_tiles: *[1, 2, 3, 4, 8, 16].choose(rng).expect("not empty"),
        early_bytes: *[0, 16, 64, 200, 1000].choose(rng).expect("not empty"),
        early_budget_bytes: *[0, 100, 200, 500, 4000].choose(rng).expect("not empty"),
        ..Config::default()
    }
}

fn draw_dtype(rng: &mut StdRng) -> DataType {
    *[DataType::I64, DataType::I32, DataType::F32, DataType::U8].choose(rng).expect("not empty")
}

/// A length in elements, often tiny, at times of many tiles.
fn draw_elements(tiles: u64, tile_bytes: u32, dtype: DataType, rng: &mut StdRng) -> u64 {
    let tile = u64::from(tile_bytes) / dtype.size_bytes() as u64;
    match rng.random_range(0..8) {
        0 => 0,
        1 => 1,
        2..=4 => rng.random_range(0..=2 * tile),
        _ => rng.random_range(0..=tiles * tile),
    }
}

fn draw_call(n: u32, tile_bytes: u32, rng: &mut StdRng) -> Call {
    use Collective::*;
    let root = rng.random_range(0..n);
    let collective = *[
        AllReduce,
        AllReduce,
        AllReduce,
        Reduce { root },
        Broadcast { root },
        ReduceScatter,
        AllGather,
        Gather { root },
        Scatter { root },
        AllToAll,
        Barrier,
    ]
    .choose(rng)
    .expect("not empty");
    let fitting: Vec<Algorithm> =
        Algorithm::ALL.into_iter().filter(|algorithm| algorithm.supports(collective)).collect();
    let dtype = draw_dtype(rng);
    let op = match rng.random_range(0..3) {
        _ if !collective.reduces() => ReduceOp::Sum,
        0 => ReduceOp::Max,
        1 => ReduceOp::Min,
        _ => ReduceOp::Sum,
    };
    let each = 40 / u64::from(n) + 2;
    let ranks_per_host = rng.random_range(1..=n);
    let n = n as usize;
    let mut draw = |tiles| draw_elements(tiles, tile_bytes, dtype, rng);
    let sizes = match collective {
        AllReduce | Reduce { .. } | Broadcast { .. } => vec![draw(40)],
        Barrier => vec![],
        Gather { .. } | Scatter { .. } => vec![draw(each)],
        AllToAll => (0..n * n).map(|_| draw(each / 2 + 1)).collect(),
        _ => {
            let first = draw(each);
            if draw(1) > 1 { vec![first; n] } else { (0..n).map(|_| draw(each)).collect() }
        }
    };
    let algorithm = *fitting.choose(rng).expect("one fits");
    Call { collective, algorithm, dtype, op, sizes, ranks_per_host }
}

fn draw_messages(item: u32, n: u32, tile_bytes: u32, rng: &mut StdRng) -> Item {
    let to = rng.random_range(0..n);
    let other = |rng: &mut StdRng| (to + rng.random_range(1..n)) % n;
    let dtype = draw_dtype(rng);
    let elements = draw_elements(20, tile_bytes, dtype, rng);
    if rng.random_bool(0.5) {
        let from = other(rng);
        return Item::Transfer { from, to, tag: rng.random_range(0..2), dtype, elements };
    }
    let senders = (0..rng.random_range(1..=5)).map(|_| other(rng)).collect();
    Item::Collect { to, senders, tag: 100 + item, dtype, elements }
}

/// Another call than the given one, as rank `me` of `n` would make it.
fn alter(call: &Call, me: u32, n: u32, rng: &mut StdRng) -> Call {
    loop {
        let mut other = call.clone();
        match rng.random_range(0..6) {
            0 => {
                other.dtype =
                    if call.dtype == DataType::I32 { DataType::F32 } else { DataType::I32 };
            }
            1 if call.collective.reduces() => {
                other.op = if call.op == ReduceOp::Sum { ReduceOp::Max } else { ReduceOp::Sum };
            }
            2 => other.collective = with_root(call.collective, rng.random_range(0..n)),
            3 => {
                other = Call {
                    collective: Collective::Barrier,
                    algorithm: Algorithm::Direct,
                    dtype: DataType::U8,
                    op: ReduceOp::Sum,
                    sizes: vec![],
                    ranks_per_host: 1,
                };
            }
            4 => {
                let algorithm = *Algorithm::ALL.choose(rng).expect("not empty");
                if algorithm.supports(call.collective) {
                    other.algorithm = algorithm;
                }
            }
            _ if call.collective == Collective::AllToAll => {
                let peer = (me + rng.random_range(1..n)) % n;
                let at = if rng.random_bool(0.5) { me * n + peer } else { peer * n + me };
                other.sizes[at as usize] += rng.random_range(1..30);
            }
            _ if !call.sizes.is_empty() => {
                let at = rng.random_range(0..call.sizes.len());
                other.sizes[at] += rng.random_range(1..30);
            }
            _ => {}
        }
        if other != *call {
            return other;
        }
    }
}

fn with_root(collective: Collective, root: u32) -> Collective {
    match collective {
        Collective::Reduce { .. } => Collective::Reduce { root },
        Collective::Broadcast { .. } => Collective::Broadcast { root },
        Collective::Gather { .. } => Collective::Gather { root },
        Collective::Scatter { .. } => Collective::Scatter { root },
        other => other,
    }
}
