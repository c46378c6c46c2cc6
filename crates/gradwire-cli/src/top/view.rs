//! What engines said last, compared with what they said before.

use std::collections::{BTreeMap, BTreeSet};

use gradwire::Status;
use serde::Serialize;

/// An operation that is older than this holds its rank up.
const STUCK_S: f64 = 1.0;
/// A rank that has said nothing for so long, though it should every second.
const SILENT_S: f64 = 4.0;
/// Below this share waits of callers do not explain how a job communicates.
const SOME: f64 = 0.01;
/// How much less than all others a rank must wait to be called the straggler.
const LESS: f64 = 0.1;

/// What an engine says.
#[derive(Clone, Debug)]
pub struct Said {
    pub last: Status,
    /// How long ago.
    pub age_s: f64,
    /// What it said before that, if it was seen.
    pub before: Option<Status>,
}

/// What the engines of all jobs say, by job and rank.
#[derive(Clone, Debug, Default)]
pub struct Sayings(BTreeMap<(String, u32), Said>);

impl Sayings {
    /// Takes over a look at all engines: statuses with their ages. Who is not there is forgotten.
    pub fn look(&mut self, found: Vec<(Status, f64)>) {
        let mut earlier = std::mem::take(&mut self.0);
        for (last, age_s) in found {
            let key = (last.job.clone(), last.rank);
            let before = earlier.remove(&key).and_then(|known| {
                // An engine may write less often than is looked.
                let is_new = known.last.written_s != last.written_s;
                if is_new { Some(known.last) } else { known.before }
            });
            self.0.insert(key, Said { last, age_s, before });
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What is shown.
#[derive(Debug, Serialize)]
pub struct View {
    pub jobs: Vec<Job>,
}

/// A job.
#[derive(Debug, Serialize)]
pub struct Job {
    pub job: String,
    pub world_size: u32,
    pub ranks: Vec<Rank>,
    /// Ranks that say nothing here.
    pub unseen: Vec<u32>,
    /// By traffic, the busiest first.
    pub links: Vec<Traffic>,
    pub straggler: Option<Straggler>,
}

/// A rank.
#[derive(Debug, Serialize)]
pub struct Rank {
    pub rank: u32,
    pub host: String,
    pub pid: u32,
    pub uptime_s: f64,
    /// Seconds that the figures are about.
    pub over_s: f64,
    /// Exposed communication by time.
    pub share: f64,
    /// The share is that of bursts' ends, since nobody waits but futures.
    pub share_of_bursts: bool,
    /// Time with an operation in flight by time.
    pub in_flight_share: f64,
    pub sent_bytes_per_s: f64,
    pub received_bytes_per_s: f64,
    /// Bytes before a codec by bytes after; none where no codec is used.
    pub compression: Option<f64>,
    /// What it is doing, if anything.
    pub operation: Option<String>,
    pub operation_age_s: Option<f64>,
    pub operations_in_flight: usize,
    /// The ranks that its oldest operation waits for.
    pub waits_for: Vec<u32>,
    /// Seconds since it last said anything, if that is too long.
    pub silent_s: Option<f64>,
}

/// A link.
#[derive(Debug, Serialize)]
pub struct Traffic {
    pub from: u32,
    pub to: u32,
    pub wire: String,
    pub bytes_per_s: f64,
}

/// The rank that holds up the others, as far as can be told.
#[derive(Debug, Serialize)]
pub struct Straggler {
    pub rank: u32,
    pub reason: String,
}

impl View {
    pub fn of(sayings: &Sayings) -> Self {
        let mut jobs: BTreeMap<&str, Vec<&Said>> = BTreeMap::new();
        for ((job, _), said) in &sayings.0 {
            jobs.entry(job).or_default().push(said);
        }
        View { jobs: jobs.into_values().map(|ranks| job(&ranks)).collect() }
    }
}

fn job(sayings: &[&Said]) -> Job {
    let first = &sayings[0].last;
    let ranks: Vec<Rank> = sayings.iter().map(|said| rank(said)).collect();
    let seen: BTreeSet<u32> = ranks.iter().map(|it| it.rank).collect();
    let mut links: Vec<Traffic> = sayings.iter().flat_map(|said| traffic(said)).collect();
    links.sort_by(|a, b| b.bytes_per_s.total_cmp(&a.bytes_per_s));
    Job {
        job: first.job.clone(),
        world_size: first.world_size,
        unseen: (0..first.world_size).filter(|rank| !seen.contains(rank)).collect(),
        straggler: stuck(&ranks).or_else(|| least_waiting(&ranks)),
        ranks,
        links,
    }
}

/// Of the time between what it said last and before; since its start if it said nothing before.
fn rank(Said { last: new, age_s, before }: &Said) -> Rank {
    let (old, age_s) = (before.as_ref(), *age_s);
    let since = |figure: &dyn Fn(&Status) -> f64| figure(new) - old.map_or(0.0, figure);
    let over_s = since(&|it| it.uptime_s).max(1e-3);
    let counter = |name: &str| {
        let value = |it: &Status| it.counters.get(name).copied().unwrap_or(0) as f64;
        let recent = since(&value);
        if recent > 0.0 { recent } else { value(new) }
    };
    let waits = since(&|it| it.waiting_s) / over_s;
    let tails = since(&|it| it.tails_s) / over_s;
    let encoded = counter("bytes_after_codec");
    let links = |bytes: &dyn Fn(&gradwire::Link) -> u64| {
        since(&|it| it.links.iter().map(bytes).sum::<u64>() as f64) / over_s
    };
    let silent_s = (age_s > SILENT_S).then_some(age_s);
    Rank {
        rank: new.rank,
        host: new.host.clone(),
        pid: new.pid,
        uptime_s: new.uptime_s,
        over_s,
        share: if waits < SOME { tails } else { waits },
        share_of_bursts: waits < SOME && tails >= SOME,
        in_flight_share: since(&|it| it.in_flight_s) / over_s,
        sent_bytes_per_s: links(&|it| it.sent_bytes),
        received_bytes_per_s: links(&|it| it.received_bytes),
        compression: (encoded > 0.0).then(|| counter("bytes_before_codec") / encoded),
        operation: new.oldest.as_ref().map(|it| it.operation.clone()),
        operation_age_s: new.oldest.as_ref().map(|it| it.age_s),
        operations_in_flight: new.operations_in_flight,
        waits_for: new.oldest.as_ref().map_or_else(Vec::new, |it| {
            let is_known = it.age_s >= STUCK_S && !it.absent.is_empty();
            if is_known { it.absent.clone() } else { it.waits_for.clone() }
        }),
        silent_s,
    }
}

fn traffic(Said { last: new, before, .. }: &Said) -> impl Iterator<Item = Traffic> {
    let old = before.as_ref();
    let over_s = (new.uptime_s - old.map_or(0.0, |old| old.uptime_s)).max(1e-3);
    new.links.iter().map(move |link| {
        let before = old.and_then(|old| old.links.iter().find(|it| it.rank == link.rank));
        let bytes = link.sent_bytes - before.map_or(0, |it| it.sent_bytes).min(link.sent_bytes);
        Traffic {
            from: new.rank,
            to: link.rank,
            wire: link.wire.clone(),
            bytes_per_s: bytes as f64 / over_s,
        }
    })
}

/// The rank that most others wait for and that itself waits for nobody.
fn stuck(ranks: &[Rank]) -> Option<Straggler> {
    let is_stuck = |it: &Rank| {
        it.silent_s.is_none() && it.operation_age_s.is_some_and(|age_s| age_s >= STUCK_S)
    };
    let mut waiting: BTreeMap<u32, usize> = BTreeMap::new();
    for it in ranks.iter().filter(|it| is_stuck(it)) {
        it.waits_for.iter().for_each(|rank| *waiting.entry(*rank).or_default() += 1);
    }
    let is_free = |rank: &u32| !ranks.iter().any(|it| it.rank == *rank && is_stuck(it));
    let free = waiting.into_iter().filter(|(rank, _)| is_free(rank));
    // Of equals the lowest rank.
    let (rank, count) = free.max_by_key(|(rank, count)| (*count, std::cmp::Reverse(*rank)))?;
    let plural = if count == 1 { "rank waits" } else { "ranks wait" };
    let silent = ranks.iter().find(|it| it.rank == rank).and_then(|it| it.silent_s);
    let reason = match silent {
        Some(silent_s) => {
            format!("{count} {plural} for it, and it has given no sign of life for {silent_s:.0} s")
        }
        None => format!("{count} {plural} for it, and it waits for nobody"),
    };
    Some(Straggler { rank, reason })
}

/// The rank that waits clearly less than all others, since they wait for it.
fn least_waiting(ranks: &[Rank]) -> Option<Straggler> {
    let mut order: Vec<&Rank> = ranks.iter().collect();
    order.sort_by(|a, b| a.share.total_cmp(&b.share));
    let [least, next, ..] = order[..] else { return None };
    (next.share - least.share > LESS).then(|| Straggler {
        rank: least.rank,
        reason: format!(
            "it waits {:.0} % of the time, all others {:.0} % or more",
            100.0 * least.share,
            100.0 * next.share
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank_of(rank: u32, share: f64, waits_for: &[u32], age_s: Option<f64>) -> Rank {
        Rank {
            rank,
            host: "host".to_owned(),
            pid: 1,
            uptime_s: 10.0,
            over_s: 1.0,
            share,
            share_of_bursts: false,
            in_flight_share: share,
            sent_bytes_per_s: 0.0,
            received_bytes_per_s: 0.0,
            compression: None,
            operation: age_s.map(|_| "barrier".to_owned()),
            operation_age_s: age_s,
            operations_in_flight: usize::from(age_s.is_some()),
            waits_for: waits_for.to_vec(),
            silent_s: None,
        }
    }

    #[test]
    fn who_is_waited_for_and_waits_for_nobody_is_the_straggler() {
        let ring = [
            rank_of(0, 1.0, &[3], Some(5.0)),
            rank_of(1, 1.0, &[0, 2], Some(5.0)),
            rank_of(2, 1.0, &[3], Some(5.0)),
            rank_of(3, 0.0, &[], None),
        ];
        let straggler = stuck(&ring).unwrap();
        assert_eq!((straggler.rank, straggler.reason.contains("2 ranks wait")), (3, true));
        // One that is not seen at all is waited for too.
        assert_eq!(stuck(&ring[..3]).unwrap().rank, 3);
        assert!(stuck(&[rank_of(0, 0.0, &[1], Some(0.01)), rank_of(1, 0.0, &[], None)]).is_none());
    }

    #[test]
    fn who_never_waits_is_the_straggler_of_a_job_that_moves() {
        let shares = [0.4, 0.02, 0.5].iter().zip(0..);
        let ranks: Vec<Rank> =
            shares.map(|(share, rank)| rank_of(rank, *share, &[], None)).collect();
        assert_eq!(least_waiting(&ranks).unwrap().rank, 1);
        assert!(least_waiting(&ranks[..1]).is_none());
        assert!(
            least_waiting(&[rank_of(0, 0.3, &[], None), rank_of(1, 0.32, &[], None)]).is_none()
        );
    }
}
