//! Knows what must come out: right results, errors that name the culprit, in time, nothing left.

use std::collections::{BTreeMap, BTreeSet};

use gradwire_core::{Cause, EarlyAccount, Failure, Occupancy};
use gradwire_schedule::Collective;

use crate::network::{LaneState, Wires};
use crate::rank::{Condition, Rank, Running};
use crate::request::{Expected, ItemId, chunk_of, descriptor_of, is_close, reduced};
use crate::scenario::{Fault, Item, KEEPALIVE, SECOND, Scenario};

#[derive(Debug)]
pub struct Judge {
    /// Groups that the scenario began with; a later one is the survivors'.
    groups: usize,
    submitted: BTreeMap<ItemId, BTreeSet<u32>>,
    last_submission: BTreeMap<usize, u64>,
    /// The first rank's result of what must be the same on all.
    agreed: BTreeMap<ItemId, Vec<u8>>,
    /// Messages received from any source: item, sender, which.
    seen: BTreeSet<(ItemId, u32, u32)>,
}

impl Judge {
    pub fn new(scenario: &Scenario) -> Self {
        Judge {
            groups: scenario.groups.len(),
            submitted: BTreeMap::new(),
            last_submission: BTreeMap::new(),
            agreed: BTreeMap::new(),
            seen: BTreeSet::new(),
        }
    }

    /// The rank that a fault takes out of the job.
    pub fn lost_rank(fault: &Fault) -> Option<u32> {
        match *fault {
            Fault::Freeze { .. } if fault.is_harmless() => None,
            Fault::Kill { rank, .. }
            | Fault::Freeze { rank, .. }
            | Fault::CutHost { rank, .. }
            | Fault::CutLink { ranks: [rank, _], .. }
            | Fault::Depart { rank }
            | Fault::DepartEarly { rank, .. } => Some(rank),
            _ => None,
        }
    }

    pub fn submitted(&mut self, id: ItemId, rank: u32, now: u64) {
        self.submitted.entry(id).or_default().insert(rank);
        self.last_submission.insert(id.group, now);
    }

    pub fn check_result(
        &mut self,
        scenario: &Scenario,
        rank: u32,
        running: &Running,
        source: Option<u32>,
    ) {
        let request = &running.request;
        let id = request.id;
        let group = &scenario.groups[id.group];
        let found: Vec<u8> = request.output.concat();
        let n = group.members.len() as u32;
        let item = &group.items[id.item];
        match (&request.expected, item) {
            (Expected::Bytes(expected), _) => {
                assert_eq!(&found, expected, "rank {rank} has a wrong result of {item:?}");
            }
            (Expected::Reduced { chunk, elements, same }, Item::Collective(call)) => {
                if *same && let Some(agreed) = self.agreed.get(&id) {
                    assert_eq!(&found, agreed, "rank {rank} has other bits in {item:?}");
                    return;
                }
                let expected = reduced(id, call, n, *chunk, *elements);
                let right = is_close(call.dtype, call.op, &found, &expected);
                assert!(right, "rank {rank} has a wrong reduction of {item:?}");
                self.agreed.insert(id, found);
            }
            (Expected::AnyMessage { elements }, Item::Collect { senders, dtype, .. }) => {
                let source = source.expect("a receive has a source");
                let from = group.members.iter().position(|member| *member == source);
                let from = from.expect("the source is a member") as u32;
                let count = senders.iter().filter(|sender| **sender == from).count() as u32;
                let number = (0..count).find(|number| {
                    !self.seen.contains(&(id, from, *number))
                        && chunk_of(id, from, *number, *elements, *dtype) == found
                });
                let number = number.expect("what was received is a message of the source's");
                self.seen.insert((id, from, number));
            }
            (Expected::Anything, _) => {}
            other => unreachable!("{other:?} do not go together"),
        }
        if let Item::Collective(call) = item
            && call.collective == Collective::Barrier
            && !matches!(request.expected, Expected::Anything)
        {
            let arrived = self.submitted[&id].len();
            assert_eq!(arrived, n as usize, "rank {rank} passed a barrier before all had arrived");
        }
    }

    /// An operation has to end soon after its deadline, however it ends.
    pub fn check_time(&self, scenario: &Scenario, rank: u32, running: &Running, now: u64) {
        let stands_still = match scenario.fault {
            Fault::Freeze { rank: who, until: Some(_), .. } => who == rank,
            _ => false,
        };
        let limit = running.deadline + 2 * SECOND;
        assert!(stands_still || now <= limit, "rank {rank} ended an operation after its deadline");
    }

    /// Whether an error is one that the fault explains.
    pub fn check_failure(
        &self,
        scenario: &Scenario,
        rank: u32,
        group: usize,
        failure: &Failure,
        submitted_at: u64,
        now: u64,
    ) {
        let fault = &scenario.fault;
        assert!(!fault.is_harmless(), "rank {rank} fails without a fault: {failure:?}");
        assert!(group < self.groups, "the survivors' group fails: {failure:?}");
        let members = &scenario.groups[group].members;
        if let Some(culprit) = failure.culprit {
            let name = format!("rank {culprit}");
            assert!(failure.text.contains(&name), "the error does not name {name}: {failure:?}");
        }
        if failure.cause == Cause::Timeout && failure.text.contains("any rank") {
            // Nobody can say who should have sent what may come from anyone.
            assert!(Self::is_touched(scenario, group), "not touched: {failure:?}");
            return;
        }
        let blames = |cause: Cause, culprit: u32, touched: bool| {
            let right = failure.cause == cause && failure.culprit == Some(culprit);
            assert!(touched, "rank {rank} fails in a group that is not touched: {failure:?}");
            assert!(right, "rank {rank} blames the wrong one: {failure:?} for {fault:?}");
        };
        match *fault {
            Fault::Kill { rank: who, .. } | Fault::DepartEarly { rank: who, .. } => {
                blames(Cause::PeerLost, who, members.contains(&who));
            }
            // A rank that is cut off or was stopped can't know that it is to blame.
            Fault::Freeze { rank: who, .. } | Fault::CutHost { rank: who, .. } if who == rank => {}
            Fault::Freeze { rank: who, at, .. } | Fault::CutHost { rank: who, at } => {
                if failure.cause == Cause::PeerLost {
                    // It was lost before this group was made, or nobody expected anything of it
                    // (a receive from any source expects nothing of anyone in particular).
                    let is_late = now >= at + KEEPALIVE;
                    assert!(submitted_at == now || is_late, "known by silence: {failure:?}");
                    blames(Cause::PeerLost, who, members.contains(&who));
                    return;
                }
                blames(Cause::PeerSilent, who, members.contains(&who));
                let since = at.max(self.last_submission.get(&group).copied().unwrap_or(0));
                assert!(now <= since + 10 * SECOND, "rank {rank} learns of silence too late");
            }
            Fault::CutLink { ranks: [a, b], .. } => {
                let culprit = if failure.culprit == Some(a) { a } else { b };
                blames(Cause::PeerLost, culprit, members.contains(&a) && members.contains(&b));
            }
            Fault::NeverPosts { rank: who, group: of, .. } => {
                blames(Cause::Timeout, who, group == of);
            }
            Fault::Abort { rank: who, group: of, .. } => blames(Cause::Aborted, who, group == of),
            Fault::Mismatch { group: of, .. } => {
                assert_eq!(group, of, "rank {rank} fails in a group that is not touched");
                check_mismatch(scenario, failure);
            }
            _ => unreachable!("harmless faults are dealt with above"),
        }
    }

    fn is_touched(scenario: &Scenario, group: usize) -> bool {
        let has = |rank: &u32| scenario.groups[group].members.contains(rank);
        match &scenario.fault {
            Fault::NeverPosts { group: of, .. }
            | Fault::Mismatch { group: of, .. }
            | Fault::Abort { group: of, .. } => group == *of,
            Fault::CutLink { ranks: [a, b], .. } => has(a) && has(b),
            fault => Self::lost_rank(fault).is_some_and(|rank| has(&rank)),
        }
    }

    /// What must hold when all has come to rest.
    pub fn check_end(&self, scenario: &Scenario, ranks: &[Rank], wires: &Wires) {
        let is_up = |rank: u32| ranks[rank as usize].condition == Condition::Running;
        for rank in (0..ranks.len() as u32).filter(|rank| is_up(*rank)) {
            let me = &ranks[rank as usize];
            assert_eq!(me.core.occupancy(), Occupancy::default(), "rank {rank} keeps something");
            assert!(me.running.is_empty(), "rank {rank} has operations that never ended");
            assert!(me.holds.is_empty(), "rank {rank} holds {:?}", me.holds);
            for peer in (0..ranks.len() as u32).filter(|peer| *peer != rank && is_up(*peer)) {
                let open = wires
                    .between(rank, peer)
                    .chain(wires.between(peer, rank))
                    .all(|lane| wires.lanes[lane].state == LaneState::Open);
                if open {
                    check_pair(rank, me, peer, &ranks[peer as usize]);
                }
            }
        }
        self.check_everybody_knows(scenario, ranks);
    }

    fn check_everybody_knows(&self, scenario: &Scenario, ranks: &[Rank]) {
        let (Fault::Abort { group, .. } | Fault::Mismatch { group, .. }) = scenario.fault else {
            return;
        };
        let failed = |rank: &u32| {
            let me = &ranks[*rank as usize];
            let thread = me.threads.iter().find(|thread| thread.group == group);
            let removed = thread.is_some_and(|thread| thread.has_removed);
            removed || me.core.failure_of(scenario.groups[group].id).is_some()
        };
        let members = &scenario.groups[group].members;
        let removed = |rank: &u32| ranks[*rank as usize].threads.iter().any(|it| it.has_removed);
        if !members.iter().any(removed) {
            for rank in members {
                assert!(failed(rank), "rank {rank} never learns of {:?}", scenario.fault);
            }
        }
    }
}

fn check_pair(rank: u32, me: &Rank, peer: u32, other: &Rank) {
    assert!(!me.core.has_something_to_send(peer), "rank {rank} keeps frames for {peer}");
    let EarlyAccount { sent, .. } = me.core.early_account(peer);
    let EarlyAccount { consumed, held, .. } = other.core.early_account(rank);
    assert_eq!(sent, consumed, "early bytes that {rank} sent and {peer} dealt with");
    assert_eq!(held, 0, "early bytes of {rank}'s are kept by {peer}");
}

fn check_mismatch(scenario: &Scenario, failure: &Failure) {
    let Fault::Mismatch { group, item, instead, .. } = &scenario.fault else { return };
    assert_eq!(failure.cause, Cause::Mismatch, "{failure:?}");
    let describe = |item: &Item| match item {
        Item::Collective(call) => descriptor_of(call).to_string(),
        Item::Transfer { elements, .. } => {
            let plural = if *elements == 1 { "" } else { "s" };
            format!("send_receive(int32, {elements} element{plural}, direct)")
        }
        Item::Collect { .. } => unreachable!("no scenario alters it"),
    };
    let (wanted, given) = (describe(&scenario.groups[*group].items[*item]), describe(instead));
    let names_both = failure.text.contains(&wanted) && failure.text.contains(&given);
    let names_sizes = wanted == given && failure.text.contains("disagree on sizes");
    assert!(
        if wanted == given { names_sizes } else { names_both },
        "the error does not say who asked for {wanted} and {given}: {failure:?}"
    );
}
