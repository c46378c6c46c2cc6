//! What the engine counts, readable while it runs.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters since the engine started. Written by the driver alone.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// All counters by name.
            pub fn read(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed))),*]
            }
        }
    };
}

counters! {
    /// Operations that ended well.
    operations_completed,
    /// Operations that ended with an error.
    operations_failed,
    /// Bytes of tensors sent as they are on the wire, headers not counted.
    bytes_sent,
    /// Bytes of tensors received.
    bytes_received,
    /// Bytes of tensors in memory that were sent with a codec.
    bytes_before_codec,
    /// What the codecs made of them.
    bytes_after_codec,
    /// Frames sent.
    frames_sent,
    /// Frames received.
    frames_received,
    /// Tiles that came before their turn and were held.
    tiles_held,
    /// Bytes held at this moment.
    bytes_held,
    /// Most bytes held at any moment.
    bytes_held_peak,
    /// Bytes of scratch at this moment.
    bytes_scratch,
    /// Most bytes of scratch at any moment.
    bytes_scratch_peak,
    /// Times that a driver went to sleep.
    sleeps,
    /// Lanes that are open.
    lanes_open,
}

/// Adds to a counter that only one thread writes: no locked instruction.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

/// Adds to a gauge and keeps its peak.
pub(crate) fn raise(gauge: &AtomicU64, peak: &AtomicU64, amount: u64) {
    let value = gauge.load(Ordering::Relaxed) + amount;
    gauge.store(value, Ordering::Relaxed);
    peak.store(peak.load(Ordering::Relaxed).max(value), Ordering::Relaxed);
}

/// Takes from a gauge.
pub(crate) fn lower(gauge: &AtomicU64, amount: u64) {
    gauge.store(gauge.load(Ordering::Relaxed) - amount, Ordering::Relaxed);
}
