//! Shows a schedule to people: as text and as a drawing.

mod layout;
mod print;
mod svg;

pub use print::print;
pub use svg::svg;
