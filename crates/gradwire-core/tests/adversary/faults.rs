//! What goes wrong, and how the others notice.

use gradwire_core::{FrameKind, Header, Outgoing, Source, Time};
use rand::Rng;

use crate::network::{Landing, LaneState};
use crate::rank::Condition;
use crate::scenario::{Fault, KEEPALIVE, MILLISECOND};
use crate::simulation::{Event, Simulation};

impl Simulation {
    pub fn strike(&mut self) {
        self.trace(|| format!("{:?}", self.scenario.fault));
        let now = self.now;
        match self.scenario.fault.clone() {
            Fault::Kill { rank, .. } => {
                self.ranks[rank as usize].condition = Condition::Stopped;
                for peer in (0..self.ranks.len() as u32).filter(|peer| *peer != rank) {
                    self.hang_up(rank, peer);
                }
            }
            Fault::Freeze { rank, until, .. } => {
                self.ranks[rank as usize].condition = Condition::Frozen(until.unwrap_or(u64::MAX));
                self.wake_at(rank, until.unwrap_or(now + 1));
            }
            Fault::CutHost { rank, .. } => {
                for lane in &mut self.wires.lanes {
                    if (lane.from == rank || lane.to == rank) && lane.state == LaneState::Open {
                        lane.state = LaneState::Silent;
                    }
                }
                // Where nobody expects anything, only the kernel's keepalive notices.
                for peer in (0..self.ranks.len() as u32).filter(|peer| *peer != rank) {
                    self.schedule(now + KEEPALIVE, Event::Notice { rank, peer });
                    self.schedule(now + KEEPALIVE, Event::Notice { rank: peer, peer: rank });
                }
            }
            Fault::CutLink { ranks: [a, b], .. } => {
                self.hang_up(a, b);
                self.hang_up(b, a);
            }
            Fault::Abort { rank, group, .. } => {
                let id = self.scenario.groups[group].id;
                let me = &mut self.ranks[rank as usize];
                let thread = me.threads.iter().find(|thread| thread.group == group);
                if thread.is_some_and(|thread| !thread.has_created) {
                    self.schedule(now + MILLISECOND, Event::Fault);
                } else {
                    me.core.abort(Time(now), id, "no reason");
                    self.wake_soon(rank);
                }
            }
            Fault::DepartEarly { rank, .. } => {
                self.ranks[rank as usize].core.end_all("shut down");
                self.say_goodbye(rank);
            }
            _ => unreachable!("other faults have no moment"),
        }
    }

    /// Closes the lanes between two ranks; the second notices some time later.
    pub fn hang_up(&mut self, rank: u32, peer: u32) {
        let first = self.wires.between(rank, peer).start;
        let is_heard = self.wires.lanes[first].state != LaneState::Silent;
        self.wires.close(rank, peer);
        if !is_heard {
            return;
        }
        let delay = self.rng.random_range(1..=10 * self.scenario.network.delay);
        self.schedule(self.now + delay, Event::Notice { rank: peer, peer: rank });
    }

    pub fn notice(&mut self, rank: u32, peer: u32) {
        let me = &mut self.ranks[rank as usize];
        self.wires.close(rank, peer);
        me.core.on_peer_lost(Time(self.now), peer, "connection reset by peer");
        self.drop_landings(rank, peer);
        self.wake_soon(rank);
    }

    /// What a peer was sending will not be complete.
    pub fn drop_landings(&mut self, rank: u32, peer: u32) {
        let me = &mut self.ranks[rank as usize];
        for lane in self.wires.between(peer, rank) {
            let landing = &mut self.wires.lanes[lane].landing;
            if let Landing::Hold(token) = std::mem::replace(landing, Landing::Nothing) {
                me.core.on_held(token);
            }
        }
    }

    /// A rank that is through says goodbye once all it has to say is said.
    pub fn leave_if_through(&mut self, rank: u32) {
        let leaves = matches!(self.scenario.fault, Fault::Depart { rank: who } if who == rank);
        let n = self.ranks.len() as u32;
        let me = &self.ranks[rank as usize];
        if leaves
            && me.is_through()
            && !(0..n).any(|peer| me.core.has_something_to_send(peer))
            && self.wires.has_delivered_all_of(rank)
        {
            self.say_goodbye(rank);
        }
    }

    pub fn say_goodbye(&mut self, rank: u32) {
        for peer in (0..self.ranks.len() as u32).filter(|peer| *peer != rank) {
            for lane in self.wires.between(rank, peer) {
                let header = Header::new(FrameKind::Goodbye);
                self.put_on(lane, Outgoing { header, source: Source::Empty });
            }
        }
        while self.ranks[rank as usize].work() {}
        while let Some(completion) = self.ranks[rank as usize].core.next_completion() {
            self.abandon(rank, completion.operation, completion.result.is_ok());
            self.ranks[rank as usize].running.remove(&completion.operation);
        }
        self.ranks[rank as usize].condition = Condition::Stopped;
    }
}
