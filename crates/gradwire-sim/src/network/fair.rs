//! Max-min fair sharing of links among flows, kept up to date as flows come and go.
//!
//! Rates follow progressive filling (Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2):
//! all flows grow at the same pace until a link is full; its flows stay as they are, the others go
//! on. Only flows that are joined by shared links are looked at again when one of them changes.

use gradwire_topology::LinkId;
use rustc_hash::FxHashSet;

/// Names a flow; used again once the flow has ended.
pub type FlowId = usize;

#[derive(Clone, Debug, Default)]
struct Flow {
    route: Vec<LinkId>,
    rate: f64,
    remaining: f64,
    /// When `remaining` was right.
    since: f64,
    active: bool,
    version: u32,
}

/// A flow whose rate has changed: when it will end at this rate, and which version of it that is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The flow.
    pub flow: FlowId,
    /// When its last byte will have entered the route.
    pub end: f64,
    /// An end is still right if [`Shares::is_current`] says so.
    pub version: u32,
}

/// Flows over links.
#[derive(Clone, Debug)]
pub struct Shares {
    capacity: Vec<f64>,
    on_link: Vec<Vec<FlowId>>,
    flows: Vec<Flow>,
    free: Vec<FlowId>,
    /// Bytes that each link has carried or will carry.
    pub carried: Vec<f64>,
}

impl Shares {
    /// Links of these capacities in bytes per second, without flows.
    pub fn new(capacity: Vec<f64>) -> Self {
        Self {
            on_link: vec![Vec::new(); capacity.len()],
            carried: vec![0.0; capacity.len()],
            capacity,
            flows: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Starts a flow of `bytes` over `route` (each link at most once).
    pub fn start(
        &mut self,
        now: f64,
        route: &[LinkId],
        bytes: f64,
        changes: &mut Vec<Change>,
    ) -> FlowId {
        let flow = self.free.pop().unwrap_or_else(|| {
            self.flows.push(Flow::default());
            self.flows.len() - 1
        });
        let entry = &mut self.flows[flow];
        entry.route.clear();
        entry.route.extend_from_slice(route);
        (entry.rate, entry.remaining, entry.since, entry.active) = (0.0, bytes, now, true);
        for &link in route {
            self.on_link[link as usize].push(flow);
            self.carried[link as usize] += bytes;
        }
        self.share(now, route.to_vec(), Some(flow), changes);
        flow
    }

    /// Ends a flow.
    pub fn end(&mut self, now: f64, flow: FlowId, changes: &mut Vec<Change>) {
        let entry = &mut self.flows[flow];
        entry.active = false;
        entry.version += 1;
        let route = std::mem::take(&mut entry.route);
        for &link in &route {
            self.on_link[link as usize].retain(|other| *other != flow);
        }
        self.free.push(flow);
        self.share(now, route, None, changes);
    }

    /// Whether an end that was announced still stands.
    pub fn is_current(&self, flow: FlowId, version: u32) -> bool {
        self.flows[flow].active && self.flows[flow].version == version
    }

    /// Bytes per second of a flow.
    pub fn rate(&self, flow: FlowId) -> f64 {
        self.flows[flow].rate
    }

    /// Shares anew among all flows that are joined with these links.
    fn share(
        &mut self,
        now: f64,
        links: Vec<LinkId>,
        new: Option<FlowId>,
        changes: &mut Vec<Change>,
    ) {
        // The usual case in a ring: a flow alone on all its links.
        if let Some(flow) = new
            && links.iter().all(|link| self.on_link[*link as usize].len() == 1)
        {
            let rate = links.iter().map(|link| self.capacity[*link as usize]);
            let rate = rate.fold(f64::INFINITY, f64::min);
            self.set(now, flow, rate, changes);
            return;
        }
        let (links, flows) = self.joined(links);
        let mut left: Vec<f64> = links.iter().map(|link| self.capacity[*link as usize]).collect();
        let place = |link: LinkId| links.binary_search(&link).expect("it is joined");
        let mut open: Vec<usize> =
            links.iter().map(|link| self.on_link[*link as usize].len()).collect();
        let mut waiting: Vec<FlowId> = flows;
        while !waiting.is_empty() {
            let narrowest = (0..links.len())
                .filter(|at| open[*at] > 0)
                .map(|at| left[at] / open[at] as f64)
                .fold(f64::INFINITY, f64::min);
            let limit = narrowest * (1.0 + 1e-12);
            let full: Vec<bool> = (0..links.len())
                .map(|at| open[at] > 0 && left[at] / open[at] as f64 <= limit)
                .collect();
            let (done, rest): (Vec<FlowId>, Vec<FlowId>) = waiting
                .into_iter()
                .partition(|flow| self.flows[*flow].route.iter().any(|link| full[place(*link)]));
            for flow in done {
                for at in 0..self.flows[flow].route.len() {
                    let link = place(self.flows[flow].route[at]);
                    left[link] = (left[link] - narrowest).max(0.0);
                    open[link] -= 1;
                }
                self.set(now, flow, narrowest, changes);
            }
            waiting = rest;
        }
    }

    fn set(&mut self, now: f64, flow: FlowId, rate: f64, changes: &mut Vec<Change>) {
        let entry = &mut self.flows[flow];
        if entry.rate == rate {
            return;
        }
        entry.remaining = (entry.remaining - entry.rate * (now - entry.since)).max(0.0);
        entry.since = now;
        entry.rate = rate;
        entry.version += 1;
        let end = now + entry.remaining / rate;
        changes.push(Change { flow, end, version: entry.version });
    }

    /// All links and flows that are joined with these links, sorted.
    fn joined(&self, start: Vec<LinkId>) -> (Vec<LinkId>, Vec<FlowId>) {
        let mut links: FxHashSet<LinkId> = start.iter().copied().collect();
        let mut flows: FxHashSet<FlowId> = FxHashSet::default();
        let mut next = start;
        while let Some(link) = next.pop() {
            for &flow in &self.on_link[link as usize] {
                if flows.insert(flow) {
                    let route = &self.flows[flow].route;
                    next.extend(route.iter().copied().filter(|link| links.insert(*link)));
                }
            }
        }
        let (mut links, mut flows): (Vec<_>, Vec<_>) =
            (links.into_iter().collect(), flows.into_iter().collect());
        links.sort_unstable();
        flows.sort_unstable();
        (links, flows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bandwidth_is_conserved_and_every_flow_is_held_up_somewhere(
            capacity in prop::collection::vec(1f64..100.0, 1..12),
            routes in prop::collection::vec(prop::collection::btree_set(0u32..12, 1..5), 1..20),
            ends in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let links = capacity.len() as u32;
            let mut shares = Shares::new(capacity.clone());
            let mut changes = Vec::new();
            let mut alive: Vec<(FlowId, Vec<LinkId>)> = Vec::new();
            for route in routes {
                let mut route: Vec<LinkId> = route.into_iter().map(|link| link % links).collect();
                route.sort_unstable();
                route.dedup();
                let flow = shares.start(0.0, &route, 1e6, &mut changes);
                alive.push((flow, route));
            }
            for end in ends {
                if alive.len() > 1 {
                    let (flow, _) = alive.swap_remove(end.index(alive.len()));
                    shares.end(0.0, flow, &mut changes);
                }
            }
            let used = |link: LinkId| -> f64 {
                let on = alive.iter().filter(|(_, route)| route.contains(&link));
                on.map(|(flow, _)| shares.rate(*flow)).sum()
            };
            for (link, capacity) in (0..).zip(&capacity) {
                prop_assert!(used(link) <= capacity * (1.0 + 1e-9));
            }
            for (flow, route) in &alive {
                // Max-min: on some link of its route that is full, no other flow has more.
                let rate = shares.rate(*flow);
                let held = route.iter().any(|link| {
                    let full = used(*link) >= capacity[*link as usize] * (1.0 - 1e-9);
                    let most = alive
                        .iter()
                        .filter(|(_, other)| other.contains(link))
                        .map(|(other, _)| shares.rate(*other))
                        .fold(0.0, f64::max);
                    full && most <= rate * (1.0 + 1e-9)
                });
                prop_assert!(held, "flow {flow} at {rate} could have more");
            }
        }
    }

    #[test]
    fn a_flow_that_is_slowed_down_ends_later() {
        let mut shares = Shares::new(vec![10.0]);
        let mut changes = Vec::new();
        let first = shares.start(0.0, &[0], 100.0, &mut changes);
        assert_eq!(changes.pop().map(|it| it.end), Some(10.0));
        shares.start(5.0, &[0], 100.0, &mut changes);
        let change = changes.iter().find(|it| it.flow == first).expect("it has changed");
        assert_eq!(change.end, 15.0);
    }
}
