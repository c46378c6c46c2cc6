//! Operators as types, so that a kernel is compiled for each operator and element.

use crate::element::{Arithmetic, Bitwise, Ordered};

/// Combines two elements.
pub(crate) trait Operator<E> {
    /// `ranks` is used by [`Average`] alone.
    fn apply(a: E, b: E, ranks: u32) -> E;
}

pub(crate) struct Sum;
pub(crate) struct Average;
pub(crate) struct Product;
pub(crate) struct Minimum;
pub(crate) struct Maximum;
pub(crate) struct And;
pub(crate) struct Or;
pub(crate) struct Xor;

macro_rules! operator {
    ($operator:ty, $bound:path, $method:ident $(, $ranks:ident)?) => {
        impl<E: $bound> Operator<E> for $operator {
            #[inline(always)]
            fn apply(a: E, b: E, _ranks: u32) -> E {
                operator!(@call a, b, _ranks, $method $(, $ranks)?)
            }
        }
    };
    (@call $a:ident, $b:ident, $count:ident, $method:ident) => { $a.$method($b) };
    (@call $a:ident, $b:ident, $count:ident, $method:ident, ranks) => { $a.$method($b, $count) };
}

operator!(Sum, Arithmetic, sum);
operator!(Average, Arithmetic, average, ranks);
operator!(Product, Arithmetic, product);
operator!(Minimum, Ordered, minimum);
operator!(Maximum, Ordered, maximum);
operator!(And, Bitwise, and);
operator!(Or, Bitwise, or);
operator!(Xor, Bitwise, xor);
