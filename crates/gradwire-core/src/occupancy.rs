//! What the core holds at a moment, so that bounds can be watched and leaks seen.

use crate::core::Core;

/// Entries of the core's tables. All zero when nothing is in flight anywhere in the job, but for
/// operations that other ranks have posted and this one has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Operations in flight.
    pub operations: usize,
    /// Identities of operations in flight.
    pub keys: usize,
    /// Receives that wait for any sender.
    pub any_source: usize,
    /// Payloads that the driver holds or is receiving into a hold.
    pub holds: usize,
    /// Frames about operations that are not posted here.
    pub early_frames: usize,
    /// Work that [`Core::next_work`] has not handed out.
    pub work: usize,
    /// Ends that [`Core::next_completion`] has not handed out.
    pub completions: usize,
    /// Send steps that wait for budget for early data.
    pub starved: usize,
    /// What operations in flight expect of peers, one for each operation and peer.
    pub expectations: usize,
}

/// The account of early data with one peer, in bytes (headers included) modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyAccount {
    /// Sent to the peer.
    pub sent: u32,
    /// Of these, known to have been dealt with there.
    pub credited: u32,
    /// Of what the peer sent, dealt with here.
    pub consumed: u32,
    /// Payload bytes of the peer's that wait here for an operation to be posted; at most
    /// [`crate::Config::early_budget_bytes`].
    pub held: u32,
}

impl Core {
    /// How full the core's tables are.
    pub fn occupancy(&self) -> Occupancy {
        Occupancy {
            operations: self.operations.len(),
            keys: self.keys.len(),
            any_source: self.any_source.values().map(|waiting| waiting.len()).sum(),
            holds: self.holds.len(),
            early_frames: self.peers.iter().map(|peer| peer.early_frames as usize).sum(),
            work: self.work.len(),
            completions: self.completions.len(),
            starved: self.peers.iter().map(|peer| peer.starved.len()).sum(),
            expectations: self.peers.iter().map(|peer| peer.interest as usize).sum(),
        }
    }

    /// The account of early data with a peer.
    pub fn early_account(&self, peer: u32) -> EarlyAccount {
        let peer = &self.peers[peer as usize];
        EarlyAccount {
            sent: peer.early_sent,
            credited: peer.early_credited,
            consumed: peer.consumed,
            held: peer.early_held,
        }
    }
}
