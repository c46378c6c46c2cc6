//! One fault in one job: who must report what, and by when.

use std::sync::OnceLock;
use std::time::Duration;

use libtest_mimic::Trial;

use crate::job::{Fault, Job, Place};
use crate::rank::{Event, Role, Said, now};
use crate::turn;

/// How long ranks may be silent in most cases, and by default, in seconds.
const SHORT_SILENCE_S: u64 = 3;
const DEFAULT_SILENCE_S: u64 = 7;
/// How much later than the limit of silence everybody must know.
const MARGIN: Duration = Duration::from_secs(3);
const AFTER_DEATH: Duration = Duration::from_secs(1);
/// For what has no limit of its own; jobs take their turns in starting.
const PATIENCE: Duration = Duration::from_secs(30);

/// What happens to whom.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    place: Place,
    ranks: u32,
    bytes: usize,
    fault: Fault,
    victim: u32,
    silence_s: u64,
}

/// Every rank in turn, on every wire.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let lab = |ranks_per_host| Place::Lab { ranks_per_host };
    for (place, ranks) in [
        (Place::Local("shm"), 4),
        (Place::Local("tcp"), 4),
        (lab(1), 4),
        (Place::Local("shm"), 8),
        (Place::Local("tcp"), 8),
        (lab(2), 8),
    ] {
        for victim in 0..ranks {
            for fault in [Fault::Stop, Fault::Cut, Fault::Kill] {
                let ranks_per_cut = match place {
                    Place::Local(_) => u32::MAX,
                    Place::Lab { ranks_per_host } => ranks_per_host,
                };
                if fault == Fault::Cut && victim % ranks_per_cut != 0 {
                    continue;
                }
                if fault == Fault::Cut && ranks_per_cut == u32::MAX {
                    continue;
                }
                // Both sizes with few ranks, in alternation with many.
                let sizes: &[usize] = match (ranks, victim % 2) {
                    (4, _) => &[1 << 10, 8 << 20],
                    (_, 0) => &[1 << 10],
                    _ => &[8 << 20],
                };
                cases.extend(sizes.iter().map(|&bytes| Case {
                    place,
                    ranks,
                    bytes,
                    fault,
                    victim,
                    silence_s: SHORT_SILENCE_S,
                }));
            }
        }
    }
    cases.push(Case { silence_s: DEFAULT_SILENCE_S, ..cases[0] });
    cases
}

impl Case {
    pub fn into_trial(self) -> Trial {
        let place = match self.place {
            Place::Local(wire) => wire.to_owned(),
            Place::Lab { ranks_per_host } => format!("lab_{ranks_per_host}_per_host"),
        };
        let size = if self.bytes < 1 << 20 { "1K" } else { "8M" };
        let fault = format!("{:?}", self.fault).to_lowercase();
        let silence = if self.silence_s == DEFAULT_SILENCE_S { "/default_silence" } else { "" };
        let name =
            format!("{place}/{}_ranks/{fault}/rank_{}/{size}{silence}", self.ranks, self.victim);
        Trial::test(name, move || {
            match obstacle(self.place) {
                Some(reason) => eprintln!("skipped: {reason}"),
                None => self.check(),
            }
            Ok(())
        })
    }

    fn check(self) {
        let lost = self.lost();
        let survivors: Vec<u32> = (0..self.ranks).filter(|rank| !lost.contains(rank)).collect();
        let all: Vec<u32> = (0..self.ranks).collect();
        let role = Role { bytes: self.bytes, lost: lost.clone(), store: None, until: None };
        let settings = [
            ("GRADWIRE_SILENCE_S", self.silence_s.to_string()),
            ("GRADWIRE_TIMEOUT_S", "60".to_owned()),
        ];
        let turn = turn::take();
        let mut job = Job::start(self.place, self.ranks, role, &settings);
        job.each_says(&all, "are ready", PATIENCE, |said| matches!(said, Said::Ready));
        std::thread::sleep(Duration::from_millis(20 + 7 * u64::from(self.victim)));
        let began = now();
        job.inflict(self.fault, self.victim);
        let limit = self.limit();
        let busy = (self.fault == Fault::Kill).then_some(turn);
        let reports = job.each_says(&survivors, "report", limit + PATIENCE, is_failure);
        for report in &reports {
            self.judge(&job, report, &lost, began, limit);
        }
        drop(busy);
        if self.fault == Fault::Stop {
            job.wake(self.victim);
        }
        if self.fault != Fault::Kill {
            job.each_says(&lost, "learn of it", limit, is_failure);
        }
        job.each_says(&survivors, "survive", PATIENCE, |it| matches!(it, Said::Survived));
    }

    /// The ranks that the others lose.
    fn lost(self) -> Vec<u32> {
        match (self.place, self.fault) {
            (Place::Lab { ranks_per_host }, Fault::Cut) => {
                let host = self.victim / ranks_per_host;
                (host * ranks_per_host..(host + 1) * ranks_per_host).collect()
            }
            _ => vec![self.victim],
        }
    }

    fn limit(self) -> Duration {
        match self.fault {
            Fault::Kill => AFTER_DEATH,
            Fault::Stop | Fault::Cut => Duration::from_secs(self.silence_s) + MARGIN,
        }
    }

    /// Whether a survivor's report names culprit, host and operation, and came in time.
    fn judge(self, job: &Job, report: &Event, lost: &[u32], began: Duration, limit: Duration) {
        let Said::Failed { culprit, cause, text, round } = &report.said else {
            unreachable!("only failures were asked for")
        };
        let expected = if self.fault == Fault::Kill { "PeerLost" } else { "PeerSilent" };
        let after = report.at.saturating_sub(began);
        // Where ranks outnumber cores each waits for its turn, and a round says how long.
        let limit = limit + *round;
        let named = lost.iter().find(|rank| Some(**rank) == *culprit);
        let problem = if after > limit {
            format!("after {after:?} instead of {limit:?}")
        } else if cause.as_deref() != Some(expected) {
            format!("{cause:?} instead of {expected}")
        } else if !named.is_some_and(|rank| text.contains(&format!("rank {rank} on "))) {
            format!("blames {culprit:?} instead of one of {lost:?}")
        } else if !text.contains(&format!("all_reduce(float32, sum, {} elements", self.bytes / 4)) {
            "does not name the operation".to_owned()
        } else {
            return;
        };
        job.fail(&format!("rank {}'s report: {problem}", report.rank));
    }
}

/// Why there can be no job in such a place on this machine.
fn obstacle(place: Place) -> Option<&'static str> {
    static LAB: OnceLock<Option<String>> = OnceLock::new();
    let ask = || gradwire_lab::availability().err().map(|reason| reason.to_string());
    match place {
        Place::Local(_) => None,
        Place::Lab { .. } => LAB.get_or_init(ask).as_deref(),
    }
}

fn is_failure(said: &Said) -> bool {
    matches!(said, Said::Failed { .. })
}
