//! iproute2: finding `ip` and `tc`, and running batches of their lines.

use std::env;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::LabError;
use crate::availability::Unavailable;

/// Where `ip` and `tc` are.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub ip: PathBuf,
    pub tc: PathBuf,
}

impl Tools {
    pub(crate) fn find() -> Result<Self, Unavailable> {
        Ok(Self { ip: find("ip")?, tc: find("tc")? })
    }

    /// Runs lines of `ip -batch` in the namespaces of the calling thread.
    pub(crate) fn ip(&self, lines: &str) -> Result<(), LabError> {
        batch("ip", &self.ip, lines)
    }

    /// Runs lines of `tc -batch` in the namespaces of the calling thread.
    pub(crate) fn tc(&self, lines: &str) -> Result<(), LabError> {
        batch("tc", &self.tc, lines)
    }
}

/// Looks in `PATH` and where distributions keep administrators' tools, which many keep out of an
/// ordinary user's `PATH`.
fn find(tool: &'static str) -> Result<PathBuf, Unavailable> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(tool))
        .find(|candidate| candidate.is_file())
        .ok_or(Unavailable::NoTool { tool })
}

fn batch(name: &str, program: &PathBuf, lines: &str) -> Result<(), LabError> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut child = Command::new(program)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(LabError::io(format!("starting {name}")))?;
    let mut input = child.stdin.take().expect("stdin is piped");
    // A tool that ends at a bad line closes the pipe; what it says of the line is the better error.
    let _ = input.write_all(lines.as_bytes()).and_then(|()| input.write_all(b"\n"));
    drop(input);
    let output = child.wait_with_output().map_err(LabError::io(format!("running {name}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(LabError::Network(explain(name, lines, &String::from_utf8_lossy(&output.stderr))))
}

/// One line out of a tool's complaint, with the batch line that it is about.
fn explain(name: &str, lines: &str, complaint: &str) -> String {
    let number = complaint
        .lines()
        .find_map(|line| line.trim().strip_prefix("Command failed -:"))
        .and_then(|number| number.parse::<usize>().ok());
    let line = number.and_then(|number| lines.lines().nth(number - 1)).unwrap_or("-batch");
    let said: Vec<_> = complaint
        .lines()
        .map(str::trim)
        .filter(|said| !said.is_empty() && !said.starts_with("Command failed"))
        .collect();
    if line.contains(" netem ") {
        return format!(
            "this kernel has no netem (CONFIG_NET_SCH_NETEM), so delay and loss are not possible \
             here ({name} said: {})",
            said.join("; ")
        );
    }
    format!("`{name} {line}` failed: {}", said.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_batch_names_its_line() {
        let complaint = "RTNETLINK answers: File exists\nCommand failed -:2\n";
        assert_eq!(
            explain("ip", "link set dev lo up\nlink add name sw0 type bridge", complaint),
            "`ip link add name sw0 type bridge` failed: RTNETLINK answers: File exists"
        );
    }

    #[test]
    fn a_kernel_without_netem_is_named_as_the_cause() {
        let complaint = "Error: Specified qdisc kind is unknown.\nCommand failed -:1\n";
        let text =
            explain("tc", "qdisc add dev eth0 parent 1:1 handle 10: netem limit 1", complaint);
        assert!(text.starts_with("this kernel has no netem"), "{text}");
    }
}
