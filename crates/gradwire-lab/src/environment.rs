//! The environment of each rank: what `torchrun` sets, and what names the lab.

use crate::plan::Lab;

/// Port of the rendezvous store on host 0. The host's namespace is new, so nothing else has it.
pub const MASTER_PORT: u16 = 29_500;

/// The variables of one rank, as `torchrun` sets them for its workers, with Gloo told which NIC to
/// use and `GRADWIRE_LAB` naming the lab. `OMP_NUM_THREADS` is left to the caller, which alone
/// knows whether it is set already.
pub fn rank_environment(lab: &Lab, ranks_per_host: usize, rank: usize) -> Vec<(String, String)> {
    let host = rank / ranks_per_host;
    let world_size = lab.hosts() * ranks_per_host;
    let pairs = [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", world_size.to_string()),
        ("LOCAL_RANK", (rank % ranks_per_host).to_string()),
        ("LOCAL_WORLD_SIZE", ranks_per_host.to_string()),
        ("GROUP_RANK", host.to_string()),
        ("GROUP_WORLD_SIZE", lab.hosts().to_string()),
        ("NODE_RANK", host.to_string()),
        ("ROLE_NAME", "default".into()),
        ("ROLE_RANK", rank.to_string()),
        ("ROLE_WORLD_SIZE", world_size.to_string()),
        ("MASTER_ADDR", Lab::address(0, 0).to_string()),
        ("MASTER_PORT", MASTER_PORT.to_string()),
        ("TORCHELASTIC_RUN_ID", lab.name().into()),
        ("TORCHELASTIC_RESTART_COUNT", "0".into()),
        ("TORCHELASTIC_MAX_RESTARTS", "0".into()),
        ("TORCHELASTIC_USE_AGENT_STORE", "False".into()),
        ("GLOO_SOCKET_IFNAME", "eth0".into()),
        ("GRADWIRE_LAB", lab.name().into()),
    ];
    pairs.into_iter().map(|(name, value)| (name.into(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_numbered_host_by_host() {
        let lab = Lab::builder().name("x").hosts(3).build().unwrap();
        let environment = rank_environment(&lab, 2, 3);
        let value = |name: &str| {
            &environment.iter().find(|(key, _)| key == name).unwrap_or_else(|| panic!("{name}")).1
        };
        for (name, expected) in [
            ("RANK", "3"),
            ("WORLD_SIZE", "6"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("GROUP_RANK", "1"),
            ("NODE_RANK", "1"),
            ("ROLE_RANK", "3"),
            ("ROLE_WORLD_SIZE", "6"),
            ("MASTER_ADDR", "10.77.0.1"),
            ("TORCHELASTIC_RUN_ID", "x"),
            ("GRADWIRE_LAB", "x"),
        ] {
            assert_eq!(value(name), expected, "{name}");
        }
    }
}
