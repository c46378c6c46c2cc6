//! What people see of a schedule.

mod cases;

use gradwire_schedule::{Algorithm, Collective, Schedule, draw};

#[test]
fn a_printed_schedule_reads_like_a_program() {
    let schedule = Schedule::build(Collective::AllReduce, Algorithm::Ring, 2).unwrap();
    let expected = "\
all_reduce by ring: 2 ranks, 2 chunks, 2 rounds, 4 messages; the busiest rank sends 1.0000 of the tensor

rank 0  (chunks: input 0, output 2, scratch 0)
  step  round  after  what
     0      1  -      send output[1] to 1
     1      1  -      receive from 1, output[0] = output[0] + received (last)
     2      2  1      send output[0] to 1
     3      2  0      receive from 1, output[1] = received

rank 1  (chunks: input 0, output 2, scratch 0)
  step  round  after  what
     0      1  -      send output[0] to 0
     1      1  -      receive from 0, output[1] = output[1] + received (last)
     2      2  1      send output[1] to 0
     3      2  0      receive from 0, output[0] = received
";
    assert_eq!(draw::print(&schedule), expected);
}

#[test]
fn a_drawing_has_an_arrow_for_each_message() {
    let schedule = Schedule::build(Collective::AllReduce, Algorithm::Ring, 8).unwrap();
    let drawing = draw::svg(&schedule);
    let count = |part: &str| drawing.matches(part).count();
    assert_eq!(count(">round "), 14);
    // One dashed stroke for each message that is kept, and one in the legend.
    assert_eq!(count("stroke-dasharray"), 56 + 1);
    // Each arrow has a tip, which ends its path with z.
    assert_eq!(count("z\" fill="), 112);
}

#[test]
fn every_schedule_can_be_shown() {
    for ranks in [1, 2, 7, 16] {
        for (algorithm, collective) in cases::pairs(&[0, ranks - 1]) {
            let schedule = Schedule::build(collective, algorithm, ranks).unwrap();
            let drawing = draw::svg(&schedule);
            assert!(!drawing.contains("NaN") && !drawing.contains("inf"), "{collective}");
            let steps = schedule.programs.iter().map(|program| program.steps.len()).sum::<usize>();
            // The headline, and for each rank an empty line, its name and the table's head.
            let lines = draw::print(&schedule).lines().count();
            assert_eq!(lines, 1 + 3 * ranks as usize + steps, "{collective} by {algorithm}");
        }
    }
}
