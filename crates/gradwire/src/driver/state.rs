//! What a live view is told.

use std::time::Duration;

use gradwire_core::Pending;
use gradwire_transport::Wire;

use super::Driver;

/// Traffic with a peer so far.
#[derive(Clone, Debug)]
pub(crate) struct PeerState {
    pub rank: u32,
    /// The wire of its lanes; none while it has no lane.
    pub wire: Option<Wire>,
    pub lanes: usize,
    pub sent: u64,
    pub received: u64,
}

/// How things stand.
#[derive(Clone, Debug)]
pub(crate) struct DriverState {
    /// Peers with which anything was exchanged.
    pub peers: Vec<PeerState>,
    pub operations_in_flight: usize,
    pub oldest: Option<Pending>,
    pub in_flight: Duration,
    pub tails: Duration,
}

impl Driver {
    /// How things stand now.
    pub fn state(&self) -> DriverState {
        let now = self.now();
        let peers = self.peers.iter().enumerate().filter_map(|(rank, peer)| {
            let lane = peer.keys.first().and_then(|key| self.lanes[*key].as_ref());
            let any = lane.is_some() || peer.sent + peer.received > 0;
            any.then(|| PeerState {
                rank: rank as u32,
                wire: lane.map(|entry| entry.lane.wire()),
                lanes: peer.keys.len(),
                sent: peer.sent,
                received: peer.received,
            })
        });
        DriverState {
            peers: peers.collect(),
            operations_in_flight: self.core.operations_in_flight(),
            oldest: self.core.oldest(now),
            in_flight: self.bursts.in_flight(now),
            tails: self.bursts.tails(now),
        }
    }
}
