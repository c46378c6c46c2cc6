//! What a job of real processes survives. The test program starts itself once more for each rank.
//!
//! Cases that only wait for silence to be noticed do so side by side; what is busy runs alone, so
//! that times mean something on a machine with few cores.

mod case;
mod job;
mod rank;
mod strangers;
mod turn;

use libtest_mimic::{Arguments, Trial};

/// Cases in progress at once; most of them sleep.
const SIDE_BY_SIDE: usize = 12;

fn main() {
    if std::env::var_os(rank::ROLE).is_some() {
        rank::run();
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(SIDE_BY_SIDE);
    let mut trials: Vec<Trial> = case::all().into_iter().map(case::Case::into_trial).collect();
    trials.push(Trial::test("ten_thousand_strangers", || {
        strangers::come();
        Ok(())
    }));
    libtest_mimic::run(&arguments, trials).exit();
}
