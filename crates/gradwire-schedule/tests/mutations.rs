//! The verifier refuses schedules that have been broken in one place.

mod cases;

use gradwire_schedule::{
    Algorithm, Buffer, Collective, Program, ProgramBuilder, Rank, Schedule, ScheduleFault, Slot,
    StepIndex, StepKind, verify,
};
use proptest::prelude::*;
use proptest::sample::Index;

/// A schedule of 2 to 12 ranks, and places in it.
#[derive(Debug)]
struct Victim {
    schedule: Schedule,
    places: (Index, Index),
}

impl Victim {
    /// A step of any rank that satisfies the condition.
    fn pick(&self, wanted: impl Fn(&StepKind) -> bool) -> Option<(usize, usize)> {
        let programs = self.schedule.programs.iter().enumerate();
        let found: Vec<_> = programs
            .flat_map(|(rank, program)| {
                program.steps.iter().enumerate().map(move |(step, body)| (rank, step, body))
            })
            .filter(|(_, _, body)| wanted(&body.kind))
            .map(|(rank, step, _)| (rank, step))
            .collect();
        (!found.is_empty()).then(|| found[self.places.0.index(found.len())])
    }

    fn kind(&mut self, (rank, step): (usize, usize)) -> &mut StepKind {
        &mut self.schedule.programs[rank].steps[step].kind
    }
}

fn victim() -> impl Strategy<Value = Victim> {
    (2..=12u32, any::<Index>(), any::<(Index, Index)>()).prop_map(|(ranks, pair, places)| {
        let pairs = cases::pairs(&[0, ranks - 1]);
        let (algorithm, collective) = pairs[pair.index(pairs.len())];
        let schedule = Schedule::build(collective, algorithm, ranks).unwrap();
        Victim { schedule, places }
    })
}

fn waits_for(program: &Program, step: StepIndex, earlier: StepIndex) -> bool {
    let after = &program.steps[step as usize].after;
    after.iter().any(|&after| after == earlier || waits_for(program, after, earlier))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_dropped_dependency_is_a_race(mut victim in victim()) {
        let programs = victim.schedule.programs.clone();
        let waiting: Vec<_> = programs
            .iter()
            .flat_map(|program| {
                let steps = (0..).zip(&program.steps);
                steps.flat_map(|(step, body)| body.after.iter().map(move |&after| (step, after)))
                    .map(|(step, after)| (program.rank, step, after))
            })
            .collect();
        prop_assume!(!waiting.is_empty());
        let (rank, step, after) = waiting[victim.places.0.index(waiting.len())];
        let program = &mut victim.schedule.programs[rank as usize];
        program.steps[step as usize].after.retain(|&other| other != after);
        prop_assume!(!waits_for(program, step, after));
        let fault = verify(&victim.schedule).unwrap_err();
        let race = matches!(
            fault,
            ScheduleFault::Race { rank: r, step: s, .. } if (r, s) == (rank, step)
        );
        prop_assert!(race, "{fault}");
    }

    #[test]
    fn a_wrong_peer_is_found(mut victim in victim()) {
        let Some(place) = victim.pick(|kind| kind.sends_to().is_some()) else { return Ok(()) };
        let offset = 1 + victim.places.1.index(victim.schedule.programs.len() - 1) as Rank;
        let ranks = victim.schedule.ranks();
        if let StepKind::Send { to, .. } = victim.kind(place) {
            *to = (*to + offset) % ranks;
        }
        let fault = verify(&victim.schedule).unwrap_err();
        let named = matches!(
            fault,
            ScheduleFault::Peer { .. }
                | ScheduleFault::Unmatched { .. }
                | ScheduleFault::MessageLength { .. }
        );
        prop_assert!(named, "{fault}");
    }

    #[test]
    fn swapped_sends_are_found(mut victim in victim()) {
        prop_assume!(victim.schedule.collective != Collective::Barrier);
        let Some((rank, step)) = victim.pick(|kind| kind.sends_to().is_some()) else {
            return Ok(());
        };
        let first = victim.schedule.programs[rank].steps[step].kind;
        let later = victim.schedule.programs[rank].steps[step + 1..].iter();
        let same_stream = later.map(|step| step.kind).enumerate();
        let other = same_stream
            .filter(|(_, kind)| kind.sends_to() == first.sends_to() && *kind != first)
            .map(|(offset, kind)| (step + 1 + offset, kind))
            .next();
        let Some((other, second)) = other else { return Ok(()) };
        *victim.kind((rank, step)) = second;
        *victim.kind((rank, other)) = first;
        prop_assert!(verify(&victim.schedule).is_err());
    }

    #[test]
    fn a_dropped_step_is_found(mut victim in victim()) {
        let Some((rank, step)) = victim.pick(|_| true) else { return Ok(()) };
        let program = &mut victim.schedule.programs[rank];
        program.steps.remove(step);
        for body in &mut program.steps {
            body.after.retain(|&after| after as usize != step);
            body.after.iter_mut().filter(|after| **after as usize > step).for_each(|after| {
                *after -= 1;
            });
        }
        prop_assert!(verify(&victim.schedule).is_err());
    }

    #[test]
    fn a_wrong_last_is_found(mut victim in victim()) {
        let reduces = |kind: &StepKind| {
            matches!(kind, StepKind::ReceiveReduce { .. } | StepKind::Reduce { .. })
        };
        let Some(place) = victim.pick(reduces) else { return Ok(()) };
        let (rank, step) = (place.0 as Rank, place.1 as StepIndex);
        if let StepKind::ReceiveReduce { last, .. } | StepKind::Reduce { last, .. } =
            victim.kind(place)
        {
            *last = !*last;
        }
        let fault = verify(&victim.schedule).unwrap_err();
        let named = matches!(
            fault,
            ScheduleFault::Last { rank: r, step: s, .. } if (r, s) == (rank, step)
        );
        prop_assert!(named, "{fault}");
    }

    #[test]
    fn nonsense_is_refused_without_panic(
        mut victim in victim(),
        rank in any::<u32>(),
        chunk in any::<u32>(),
        after in any::<Vec<u32>>(),
    ) {
        let Some((owner, step)) = victim.pick(|_| true) else { return Ok(()) };
        let source = Slot { buffer: Buffer::Scratch, chunk };
        let body = &mut victim.schedule.programs[owner].steps[step];
        body.kind = StepKind::Send { to: rank, source };
        body.after = after;
        prop_assert!(verify(&victim.schedule).is_err());
        let drawing = gradwire_schedule::draw::svg(&victim.schedule);
        prop_assert!(drawing.ends_with("</svg>\n"));
    }
}

/// A schedule whose programs are built by hand.
fn by_hand(
    collective: Collective,
    ranks: Rank,
    (input, output): (u32, u32),
    steps: impl Fn(&mut ProgramBuilder, Rank),
) -> Schedule {
    let program = |rank| {
        let mut builder = ProgramBuilder::new(rank, input, output);
        steps(&mut builder, rank);
        builder.finish()
    };
    Schedule {
        collective,
        algorithm: Algorithm::Direct,
        programs: (0..ranks).map(program).collect(),
    }
}

fn output_reduce(from: Rank, last: bool) -> StepKind {
    StepKind::ReceiveReduce { from, local: Slot::output(0), destination: Slot::output(0), last }
}

#[test]
fn a_circle_of_receives_is_a_deadlock() {
    let schedule = by_hand(Collective::AllReduce, 2, (0, 1), |builder, rank| {
        let received = builder.scratch(Slot::output(0));
        builder.push(StepKind::Receive { from: 1 - rank, destination: received });
        builder.push(StepKind::Send { to: 1 - rank, source: received });
    });
    let fault = verify(&schedule).unwrap_err();
    assert!(matches!(&fault, ScheduleFault::Deadlock { cycle } if cycle.len() == 4), "{fault}");
    assert!(fault.to_string().starts_with("deadlock: rank "), "{fault}");
}

#[test]
fn a_different_order_on_one_rank_is_found() {
    let schedule = by_hand(Collective::AllReduce, 3, (0, 1), |builder, rank| {
        let others = [(rank + 1) % 3, (rank + 2) % 3];
        for to in others {
            builder.push(StepKind::Send { to, source: Slot::output(0) });
        }
        builder.push(output_reduce(others[0], false));
        builder.push(output_reduce(others[1], true));
    });
    let slot = Slot::output(0);
    assert_eq!(verify(&schedule), Err(ScheduleFault::Order { rank: 1, slot }));
}

#[test]
fn a_contribution_that_comes_twice_is_found() {
    let schedule = by_hand(Collective::AllReduce, 3, (0, 1), |builder, rank| {
        let to = if rank == 0 { 1 } else { 0 };
        for _ in 0..2 {
            builder.push(StepKind::Send { to, source: Slot::output(0) });
        }
        if rank == 0 {
            builder.push(output_reduce(1, false));
            builder.push(output_reduce(1, false));
        }
    });
    let fault = verify(&schedule).unwrap_err();
    assert!(matches!(fault, ScheduleFault::Unmatched { rank: 0, step: 0, peer: 1 }), "{fault}");
    let schedule = by_hand(Collective::Reduce { root: 0 }, 3, (0, 1), |builder, rank| {
        for _ in 0..2 {
            match rank {
                0 => builder.push(output_reduce(1, false)),
                1 => builder.push(StepKind::Send { to: 0, source: Slot::output(0) }),
                _ => break,
            };
        }
    });
    let slot = Slot::output(0);
    let fault = ScheduleFault::Twice { rank: 0, step: 1, slot, contribution: 1 };
    assert_eq!(verify(&schedule), Err(fault));
}

#[test]
fn input_and_others_output_are_read_only() {
    let collective = Collective::Reduce { root: 0 };
    let schedule = by_hand(collective, 2, (0, 1), |builder, rank| {
        if rank == 1 {
            builder.push(StepKind::Send { to: 0, source: Slot::output(0) });
            builder.push(StepKind::Receive { from: 0, destination: Slot::output(0) });
        } else {
            builder.push(output_reduce(1, true));
            builder.push(StepKind::Send { to: 1, source: Slot::output(0) });
        }
    });
    let slot = Slot::output(0);
    assert_eq!(verify(&schedule), Err(ScheduleFault::ReadOnly { rank: 1, step: 1, slot }));
    let schedule = by_hand(Collective::AllToAll, 1, (1, 1), |builder, _| {
        builder.push(StepKind::Copy { source: Slot::output(0), destination: Slot::input(0) });
    });
    let slot = Slot::input(0);
    assert_eq!(verify(&schedule), Err(ScheduleFault::ReadOnly { rank: 0, step: 0, slot }));
}

#[test]
fn scratch_is_filled_once() {
    let schedule = by_hand(Collective::AllGather, 1, (1, 1), |builder, _| {
        let scratch = builder.scratch(Slot::input(0));
        for _ in 0..2 {
            builder.push(StepKind::Copy { source: Slot::input(0), destination: scratch });
        }
    });
    let slot = Slot { buffer: Buffer::Scratch, chunk: 0 };
    assert_eq!(verify(&schedule), Err(ScheduleFault::Refilled { rank: 0, step: 1, slot }));
}

#[test]
fn one_sided_neighbors_are_found() {
    let schedule = by_hand(Collective::Barrier, 2, (0, 1), |builder, rank| {
        if rank == 0 {
            builder.same_host(vec![1]);
        }
        builder.push(StepKind::Send { to: 1 - rank, source: Slot::output(0) });
        builder.push(StepKind::Receive { from: 1 - rank, destination: Slot::output(0) });
    });
    let fault = verify(&schedule).unwrap_err();
    assert!(matches!(fault, ScheduleFault::HostsDiffer { .. }), "{fault}");
}

#[test]
fn a_barrier_with_a_round_too_few_is_found() {
    let schedule = by_hand(Collective::Barrier, 4, (0, 1), |builder, rank| {
        builder.push(StepKind::Send { to: (rank + 1) % 4, source: Slot::output(0) });
        let from = (rank + 3) % 4;
        builder.push(StepKind::Receive { from, destination: Slot::output(0) });
    });
    assert_eq!(verify(&schedule), Err(ScheduleFault::Barrier { rank: 0, unheard: 1 }));
}

#[test]
fn chunks_of_different_lengths_do_not_mix() {
    let schedule = by_hand(Collective::AllToAll, 2, (2, 2), |builder, rank| {
        let own = Slot::output(rank);
        builder.push(StepKind::Copy { source: Slot::input(1 - rank), destination: own });
    });
    let (slot, other) = (Slot::input(1), Slot::output(0));
    assert_eq!(verify(&schedule), Err(ScheduleFault::Lengths { rank: 0, step: 0, slot, other }));
}
