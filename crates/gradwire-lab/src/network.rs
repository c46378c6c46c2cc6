//! The network of a running lab: hosts, switches, links, and changes to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::thread;

use crate::LabError;
use crate::host::Host;
use crate::links;
use crate::plan::Lab;
use crate::rate::Rate;
use crate::tools::Tools;

/// A running network. Lives in the supervisor, whose own network namespace holds the switches.
#[derive(Debug)]
pub(crate) struct Network {
    lab: Lab,
    tools: Tools,
    hosts: Vec<Host>,
    state: Mutex<LinkState>,
}

/// What was changed since the lab came up. The lock is held while links are changed, so that
/// state and links agree.
#[derive(Debug, Default)]
struct LinkState {
    cut: BTreeSet<(usize, usize)>,
    rates: BTreeMap<(usize, usize), Rate>,
}

impl Network {
    /// Makes the hosts and joins them.
    pub(crate) fn bring_up(lab: Lab) -> Result<Self, LabError> {
        let tools = Tools::find()?;
        // Making a namespace waits for the kernel, so the hosts are made at the same time.
        let starting: Vec<_> =
            (0..lab.hosts()).map(|index| thread::spawn(move || Host::start(index))).collect();
        let hosts = starting
            .into_iter()
            .map(|start| start.join().expect("starting a host does not panic"))
            .collect::<Result<Vec<_>, _>>()?;
        let threads: Vec<_> = hosts.iter().map(Host::thread).collect();
        tools.ip(&links::wire_up(&lab, &threads))?;
        tools.tc(&links::shape_ports(&lab))?;
        for (index, host) in hosts.iter().enumerate() {
            let (addresses, shape) =
                (links::address_host(&lab, index), links::shape_host(&lab, index));
            let tools = tools.clone();
            host.run(move || tools.ip(&addresses).and_then(|()| tools.tc(&shape)))?;
        }
        Ok(Self { lab, tools, hosts, state: Mutex::default() })
    }

    pub(crate) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// A host that is known to exist.
    pub(crate) fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    /// Links that are cut, as (host, NIC).
    pub(crate) fn cut_links(&self) -> Vec<(usize, usize)> {
        self.lock().cut.iter().copied().collect()
    }

    /// Rates set since the lab came up, as (host, NIC, rate).
    pub(crate) fn changed_rates(&self) -> Vec<(usize, usize, Rate)> {
        self.lock().rates.iter().map(|(&(host, nic), &rate)| (host, nic, rate)).collect()
    }

    /// Cuts the links of a host, or one of them. Links that are cut already stay so.
    pub(crate) fn cut(&self, host: usize, nic: Option<usize>) -> Result<(), LabError> {
        self.change(host, nic, |state, nic| {
            self.tools.ip(&links::cut(host, nic))?;
            state.cut.insert((host, nic));
            Ok(())
        })
    }

    /// Restores the links of a host, or one of them. Links that are whole stay so.
    pub(crate) fn restore(&self, host: usize, nic: Option<usize>) -> Result<(), LabError> {
        self.change(host, nic, |state, nic| {
            self.tools.ip(&links::restore(host, nic))?;
            state.cut.remove(&(host, nic));
            Ok(())
        })
    }

    /// Sets the rate of the links of a host, or of one of them, in both directions.
    pub(crate) fn set_rate(
        &self,
        host: usize,
        nic: Option<usize>,
        rate: Rate,
    ) -> Result<(), LabError> {
        self.change(host, nic, |state, nic| {
            self.tools.tc(&links::shape(&links::port(host, nic), rate))?;
            let (tools, line) = (self.tools.clone(), links::shape(&links::interface(nic), rate));
            self.hosts[host].run(move || tools.tc(&line))?;
            state.rates.insert((host, nic), rate);
            Ok(())
        })
    }

    fn change(
        &self,
        host: usize,
        nic: Option<usize>,
        change: impl Fn(&mut LinkState, usize) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        self.lab.check_link(host, nic)?;
        let mut state = self.lock();
        match nic {
            Some(nic) => change(&mut state, nic),
            None => (0..self.lab.nics()).try_for_each(|nic| change(&mut state, nic)),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LinkState> {
        self.state.lock().expect("no change panics while it holds the lock")
    }
}
