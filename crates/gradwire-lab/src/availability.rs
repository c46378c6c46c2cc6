//! Whether labs are possible on this machine, and if not, why.

use std::fs;
use std::io;
use std::process::Stdio;

use thiserror::Error;

use crate::namespaces;
use crate::tools::Tools;

/// Why this machine can't make labs, and what would change that.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// A program of iproute2 is missing.
    #[error("`{tool}` was not found; install iproute2")]
    NoTool {
        /// The missing program.
        tool: &'static str,
    },
    /// The kernel refuses to make namespaces.
    #[error("the kernel refuses new namespaces to this user ({refusal}){hint}")]
    NamespacesRefused {
        /// What the kernel said.
        refusal: String,
        /// A setting found to forbid it, with what to do; empty where none was found.
        hint: String,
    },
    /// Namespaces are there, but something that a lab makes in them is refused.
    #[error("{step} is not possible here ({detail}){hint}")]
    StepRefused {
        /// What was tried.
        step: &'static str,
        /// What the tool said.
        detail: String,
        /// A setting found to forbid it, with what to do; empty where none was found.
        hint: String,
    },
}

/// What a lab needs, tried in this order inside new namespaces.
const STEPS: [(&str, &str); 4] = [
    ("making a bridge", "\"$IP\" link add name sw0 type bridge"),
    ("making a veth pair", "\"$IP\" link add name h0n0 type veth peer name eth0"),
    (
        "shaping with a token bucket (CONFIG_NET_SCH_TBF)",
        "\"$TC\" qdisc add dev h0n0 root tbf rate 1gbit burst 128k limit 1m",
    ),
    ("mounting /proc for a PID namespace", "mount -t proc proc /proc"),
];
const FIRST_STEP_STATUS: usize = 100;

/// Checks that labs are possible here, by making and dropping a tiny one. Takes some milliseconds.
///
/// Unlike [`Lab::start`](crate::Lab::start) it doesn't need [`init`](crate::init) in `main`, so
/// tests can ask it.
///
/// # Errors
/// The first thing found missing.
pub fn availability() -> Result<(), Unavailable> {
    let tools = Tools::find()?;
    let script: String = STEPS
        .iter()
        .enumerate()
        .map(|(index, (_, step))| format!("{step} || exit {}\n", FIRST_STEP_STATUS + index))
        .collect();
    let (status, complaint) = probe(&tools, &script).map_err(refused)?;
    let step = match status {
        Some(0) => return Ok(()),
        Some(status) => usize::try_from(status).ok().and_then(|s| s.checked_sub(FIRST_STEP_STATUS)),
        None => None,
    };
    let step = step.and_then(|step| STEPS.get(step)).map_or("running `sh`", |(step, _)| step);
    Err(Unavailable::StepRefused { step, detail: complaint, hint: hint() })
}

/// Whether the kernel has netem, which delay and loss need.
pub fn has_netem() -> bool {
    let Ok(tools) = Tools::find() else { return false };
    let script = "\"$TC\" qdisc add dev lo root netem delay 1ms";
    matches!(probe(&tools, script), Ok((Some(0), _)))
}

/// Runs a script in new namespaces: its status and the first line of what it complained about.
///
/// The outer shell is still in the machine's PID namespace; the inner one is process 1 of the new
/// one, which lives as long as that process.
fn probe(tools: &Tools, script: &str) -> io::Result<(Option<i32>, String)> {
    let output = namespaces::command_apart("/bin/sh")
        .args(["-c", "/bin/sh -c \"$SCRIPT\"; exit $?"])
        .env("SCRIPT", script)
        .env("IP", &tools.ip)
        .env("TC", &tools.tc)
        .stdin(Stdio::null())
        .output()?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    Ok((output.status.code(), complaint.lines().next().unwrap_or("no reason given").into()))
}

/// The error for namespaces that the kernel refused, with the setting behind it where one is known.
pub(crate) fn refused(error: io::Error) -> Unavailable {
    Unavailable::NamespacesRefused { refusal: error.to_string(), hint: hint() }
}

/// A setting that forbids namespaces, its meaning and its remedy.
struct Switch {
    path: &'static str,
    forbids: &'static str,
    meaning: &'static str,
}

const SWITCHES: [Switch; 4] = [
    Switch {
        path: "/proc/sys/user/max_user_namespaces",
        forbids: "0",
        meaning: "user.max_user_namespaces is 0; as root: sysctl user.max_user_namespaces=10000",
    },
    Switch {
        path: "/proc/sys/user/max_net_namespaces",
        forbids: "0",
        meaning: "user.max_net_namespaces is 0; as root: sysctl user.max_net_namespaces=10000",
    },
    Switch {
        path: "/proc/sys/kernel/unprivileged_userns_clone",
        forbids: "0",
        meaning: "kernel.unprivileged_userns_clone is 0; as root: \
                  sysctl kernel.unprivileged_userns_clone=1",
    },
    Switch {
        path: "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        forbids: "1",
        meaning: "AppArmor restricts user namespaces; as root: \
                  sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    },
];

fn hint() -> String {
    hint_from(|path| fs::read_to_string(path).ok())
}

fn hint_from(read: impl Fn(&str) -> Option<String>) -> String {
    SWITCHES
        .iter()
        .find(|switch| read(switch.path).is_some_and(|value| value.trim() == switch.forbids))
        .map_or_else(String::new, |switch| format!(": {}", switch.meaning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forbidding_setting_is_named() {
        let apparmor = |path: &str| path.contains("apparmor").then(|| "1\n".to_owned());
        assert!(hint_from(apparmor).contains("apparmor_restrict_unprivileged_userns=0"));
        let none_left = |path: &str| path.contains("max_user").then(|| "0\n".to_owned());
        assert!(hint_from(none_left).starts_with(": user.max_user_namespaces is 0"));
        assert_eq!(hint_from(|_| None), "");
        assert_eq!(hint_from(|_| Some("96364\n".into())), "");
    }
}
