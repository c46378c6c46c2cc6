//! The job that a process finds itself in: torchrun's variables, an MPI launcher's, or Slurm's.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::{Store, StoreServer, TcpStore};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
const DEFAULT_PORT: u16 = 29_400;

/// This process's place in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEnvironment {
    /// Rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// Rank among those of this host.
    pub local_rank: u32,
    /// Number of ranks on this host.
    pub local_world_size: u32,
    /// Where rank 0 serves the store.
    pub store_address: String,
}

/// Why no job was found.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoJob {
    /// No launcher's variables are set.
    #[error(
        "not started by torchrun, an MPI launcher, Slurm or `gradwire lab run`; RANK and WORLD_SIZE are not set"
    )]
    Absent,
    /// A launcher's variable can't be read.
    #[error("{name}='{value}' is not a number")]
    Malformed {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
    },
    /// Several hosts, and nothing says where rank 0 is.
    #[error("the job has several hosts: set MASTER_ADDR to the host of rank 0")]
    NoMaster,
}

/// Names of a launcher's variables: rank, ranks, local rank, ranks of this host.
const LAUNCHERS: [[&str; 4]; 4] = [
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"],
];

impl JobEnvironment {
    /// Looks for a job in the environment.
    pub fn find() -> Result<Self, NoJob> {
        Self::find_in(&|name| std::env::var(name).ok())
    }

    fn find_in(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, NoJob> {
        let number = |name: &str| -> Result<Option<u32>, NoJob> {
            let Some(value) = variable(name) else { return Ok(None) };
            value
                .parse()
                .map(Some)
                .map_err(|_| NoJob::Malformed { name: name.to_owned(), value: value.clone() })
        };
        for [rank, size, local_rank, local_size] in LAUNCHERS {
            let (Some(rank), Some(world_size)) = (number(rank)?, number(size)?) else { continue };
            let local_world_size = number(local_size)?.unwrap_or(world_size);
            let host = match variable("MASTER_ADDR") {
                Some(host) => host,
                None if local_world_size == world_size => "127.0.0.1".to_owned(),
                None => return Err(NoJob::NoMaster),
            };
            return Ok(JobEnvironment {
                rank,
                world_size,
                local_rank: number(local_rank)?.unwrap_or(rank % local_world_size.max(1)),
                local_world_size,
                store_address: format!("{host}:{}", store_port(variable)?),
            });
        }
        Err(NoJob::Absent)
    }

    /// Joins the job's store; rank 0 serves it for as long as the server is kept.
    ///
    /// # Errors
    /// A message that names the address.
    pub fn store(&self) -> Result<(Arc<dyn Store>, Option<StoreServer>), String> {
        let server = (self.rank == 0)
            .then(|| {
                let port = self.store_address.rsplit(':').next().unwrap_or_default();
                StoreServer::start(format!("0.0.0.0:{port}"))
                    .map_err(|error| format!("cannot serve the store on port {port}: {error}"))
            })
            .transpose()?;
        let store = TcpStore::connect(&self.store_address, CONNECT_TIMEOUT)?;
        Ok((Arc::new(store), server))
    }
}

/// torchrun's agent may have its own store on the master port: then the next one is ours.
fn store_port(variable: &dyn Fn(&str) -> Option<String>) -> Result<u16, NoJob> {
    let parse = |name: &str| -> Result<Option<u16>, NoJob> {
        let Some(value) = variable(name) else { return Ok(None) };
        value
            .parse()
            .map(Some)
            .map_err(|_| NoJob::Malformed { name: name.to_owned(), value: value.clone() })
    };
    if let Some(port) = parse("GRADWIRE_STORE_PORT")? {
        return Ok(port);
    }
    let taken = variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|it| it == "True");
    let port = parse("MASTER_PORT")?.unwrap_or(DEFAULT_PORT);
    Ok(if taken { port.wrapping_add(1) } else { port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)]) -> Result<JobEnvironment, NoJob> {
        JobEnvironment::find_in(&|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn torchrun_mpi_and_slurm_are_understood() {
        let torchrun = find(&[
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ]);
        let expected = JobEnvironment {
            rank: 3,
            world_size: 4,
            local_rank: 1,
            local_world_size: 2,
            store_address: "10.0.0.1:29501".to_owned(),
        };
        assert_eq!(torchrun, Ok(expected));
        let mpi = find(&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")]).unwrap();
        assert_eq!(
            (mpi.rank, mpi.local_rank, mpi.store_address.as_str()),
            (1, 1, "127.0.0.1:29400")
        );
        let slurm =
            find(&[("SLURM_PROCID", "5"), ("SLURM_NTASKS", "8"), ("SLURM_NTASKS_PER_NODE", "4")]);
        assert_eq!(slurm, Err(NoJob::NoMaster));
    }

    #[test]
    fn what_cannot_be_is_said() {
        assert_eq!(find(&[]), Err(NoJob::Absent));
        let error = find(&[("RANK", "one"), ("WORLD_SIZE", "2")]).unwrap_err();
        assert_eq!(error.to_string(), "RANK='one' is not a number");
    }
}
