//! What engines say, read from their files.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use gradwire::Status;
use rustix::process::{Pid, test_kill_process};

/// More ranks than any job has.
const MOST_RANKS: u32 = 1 << 20;
/// An engine writes every second; one that has not for so long and whose process is gone has died.
const DEAD_AFTER_S: f64 = 3.0;
/// Where the process can't be asked for, as it is on another host.
const DEAD_ELSEWHERE_AFTER_S: f64 = 60.0;

/// What each engine of a directory said last, and how many seconds ago. Files of this host's dead processes are removed.
///
/// # Errors
/// When the directory can't be read; one that does not exist is empty.
pub fn statuses(directory: &Path) -> anyhow::Result<Vec<(Status, f64)>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("top: {}", directory.display()))?,
    };
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |it| it.as_secs_f64());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("top: {}", directory.display()))?.path();
        if path.extension().is_none_or(|it| it != "json") {
            continue;
        }
        // It may be gone by now, and somebody else may keep files here too.
        let Ok(text) = fs::read(&path) else { continue };
        let Ok(status) = serde_json::from_slice::<Status>(&text) else { continue };
        if !is_sound(&status) {
            continue;
        }
        let age_s = (now_s - status.written_s).max(0.0);
        let is_here = status.host == host;
        let is_dead = if is_here {
            age_s > DEAD_AFTER_S && !is_running(status.pid)
        } else {
            age_s > DEAD_ELSEWHERE_AFTER_S
        };
        match (is_dead, is_here) {
            (false, _) => found.push((status, age_s)),
            // Another `top` may have been faster.
            (true, true) => drop(fs::remove_file(&path)),
            (true, false) => {}
        }
    }
    Ok(found)
}

/// Whether an engine can have written it: what is shown of it is text, and no job is that large.
fn is_sound(status: &Status) -> bool {
    let texts =
        [Some(&status.job), Some(&status.host), status.oldest.as_ref().map(|it| &it.operation)];
    let is_plain = |text: &String| !text.contains(char::is_control);
    texts.into_iter().flatten().all(is_plain)
        && status.rank < status.world_size
        && status.world_size <= MOST_RANKS
}

fn is_running(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // Somebody else's process runs as well.
    pid.is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}
