//! Writes the drawing of a schedule: `draw COLLECTIVE ALGORITHM RANKS > schedule.svg`.

use std::error::Error;

use gradwire_schedule::{Schedule, draw};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [collective, algorithm, ranks] = arguments.as_slice() else {
        return Err("usage: draw COLLECTIVE ALGORITHM RANKS".into());
    };
    let schedule = Schedule::build(collective.parse()?, algorithm.parse()?, ranks.parse()?)?;
    print!("{}", draw::svg(&schedule));
    Ok(())
}
