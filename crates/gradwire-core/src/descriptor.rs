//! What an operation is, as every rank of its group must agree on.

use std::fmt;

use gradwire_codec::Codec;
use gradwire_reduce::{DataType, ReduceOp};
use gradwire_schedule::{Algorithm, Collective};

use crate::Header;

/// The part of an operation that all ranks of a group must ask for alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// The collective, with its root or its two ends.
    pub collective: Collective,
    /// How it is carried out.
    pub algorithm: Algorithm,
    /// Type of the elements.
    pub dtype: DataType,
    /// Operator, where the collective reduces.
    pub op: ReduceOp,
    /// How values travel, if not as they are.
    pub codec: Option<Codec>,
    /// Elements of the whole operation; 0 where ranks may rightly differ (uneven splits), since
    /// then each chunk's length is checked by itself.
    pub count: u64,
}

impl Descriptor {
    /// The root or the codec as it stands in a header (0 for operations that have neither).
    fn argument(&self) -> u32 {
        match self.collective {
            Collective::Reduce { root }
            | Collective::Broadcast { root }
            | Collective::Gather { root }
            | Collective::Scatter { root } => root,
            _ => self.codec.map_or(0, Codec::code),
        }
    }

    /// Whether it is a send or receive rather than a collective of the whole group.
    pub fn is_point_to_point(&self) -> bool {
        matches!(self.collective, Collective::SendReceive { .. })
    }

    /// Writes itself into a header.
    pub fn put(&self, header: &mut Header) {
        header.collective = self.collective.code();
        header.algorithm = self.algorithm as u8;
        header.dtype = self.dtype as u8;
        header.op = self.op as u8;
        header.argument = self.argument();
        header.count = self.count;
    }

    /// Whether a header describes the same operation.
    pub fn matches(&self, header: &Header) -> bool {
        header.collective == self.collective.code()
            && header.dtype == self.dtype as u8
            && header.op == self.op as u8
            && header.argument == self.argument()
            && header.count == self.count
            && header.algorithm == self.algorithm as u8
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut header = Header::new(crate::FrameKind::Data);
        self.put(&mut header);
        f.write_str(&describe(&header))
    }
}

/// Says in words what a header asks for: `all_reduce(f32, sum, 1024 elements, ring)`.
pub fn describe(header: &Header) -> String {
    let collective = Collective::name_of(header.collective).unwrap_or("unknown collective");
    let dtype = DataType::from_code(header.dtype).map_or("unknown dtype", |dtype| dtype.name());
    let mut parts = vec![dtype.to_owned()];
    if matches!(collective, "all_reduce" | "reduce" | "reduce_scatter") {
        parts.push(ReduceOp::from_code(header.op).map_or("unknown op", |op| op.name()).to_owned());
    }
    if header.count > 0 {
        let plural = if header.count == 1 { "" } else { "s" };
        parts.push(format!("{} element{plural}", header.count));
    }
    if matches!(collective, "reduce" | "broadcast" | "gather" | "scatter") {
        parts.push(format!("root {}", header.argument));
    } else if let Some(codec) = Codec::from_code(header.argument) {
        parts.push(codec.to_string());
    }
    if let Some(algorithm) = Algorithm::from_code(header.algorithm) {
        parts.push(algorithm.to_string());
    }
    format!("{collective}({})", parts.join(", "))
}
