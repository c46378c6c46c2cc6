//! A lane over memory that two processes of one host share.

mod lane;
mod mapping;
mod ring;
mod segment;

pub use lane::SharedMemoryLane;
pub(crate) use mapping::Mapping;
pub use segment::Segment;
