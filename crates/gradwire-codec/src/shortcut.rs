//! The codecs that have kernels of their own for AVX2.

use crate::layout::Layout;
use crate::target::Target;
use crate::{smooth_groups, smooth_integers};

/// Such a codec.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shortcut {
    /// `int4`.
    Grid4,
    /// `int5`.
    Integers5,
    /// `int6`.
    Integers6,
}

impl Shortcut {
    /// The one for so many values, if they are a whole group of one of the codecs.
    #[inline(always)]
    pub(crate) fn of(layout: &Layout, count: usize) -> Option<Self> {
        match smooth_groups::bits(layout, count) {
            Some(4) => Some(Shortcut::Grid4),
            Some(_) => Some(Shortcut::Integers5),
            None => smooth_integers::applies(layout, count).then_some(Shortcut::Integers6),
        }
    }

    /// Encodes a group.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn encode(self, layout: &Layout, group: usize, values: &[f32], wire: &mut [u8]) {
        match self {
            Shortcut::Grid4 => smooth_groups::encode::<4>(layout, group, values, wire),
            Shortcut::Integers5 => smooth_groups::encode::<5>(layout, group, values, wire),
            Shortcut::Integers6 => smooth_integers::encode(layout, group, values, wire),
        }
    }

    /// Decodes a group to where its values go: element `start` of the target and the following.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn decode(
        self,
        layout: &Layout,
        group: usize,
        wire: &[u8],
        target: &mut Target<'_>,
        start: usize,
    ) {
        match self {
            Shortcut::Grid4 => smooth_groups::decode::<4>(layout, group, wire, target, start),
            Shortcut::Integers5 => smooth_groups::decode::<5>(layout, group, wire, target, start),
            Shortcut::Integers6 => smooth_integers::decode(layout, group, wire, target, start),
        }
    }
}
