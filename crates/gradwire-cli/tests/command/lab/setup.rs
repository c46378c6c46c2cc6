//! Starting labs and looking at what they leave.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::Pid;

/// Marks every process of one test's lab, so that those left behind can be found.
const MARK: &str = "GRADWIRE_TEST_MARK";

/// Whether labs are possible here; says why not on standard error, past the test's capture.
pub fn possible() -> bool {
    match gradwire_lab::availability() {
        Ok(()) => true,
        Err(reason) => skip(&reason.to_string()),
    }
}

/// Whether labs are possible here and Python is there to be run in them.
pub fn possible_with_python() -> bool {
    let python = Command::new("python3").arg("--version").output();
    possible()
        && (python.is_ok_and(|it| it.status.success())
            || skip("there is no python3 on this machine"))
}

/// Says why a test is skipped; false.
pub fn skip(reason: &str) -> bool {
    // Not `eprintln`, which the test harness keeps for failures.
    let line = format!("skipped: {reason}\n");
    rustix::io::write(rustix::stdio::stderr(), line.as_bytes()).unwrap();
    false
}

/// A lab that doesn't meet those of other tests.
pub struct Setup {
    pub name: String,
    directory: PathBuf,
}

impl Setup {
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{}-{count}", std::process::id());
        Self { directory: PathBuf::from(format!("/tmp/gradwire-{name}")), name }
    }

    /// `gradwire` with this test's directory, as any lab command.
    pub fn gradwire(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire"));
        command
            .env("GRADWIRE_LAB_DIR", &self.directory)
            .env("GRADWIRE", env!("CARGO_BIN_EXE_gradwire"))
            .env(MARK, &self.name)
            .env_remove("GRADWIRE_LAB");
        command
    }

    /// `gradwire lab run` with options and a command, words separated by spaces; the last word is
    /// given apart since it is a script.
    pub fn lab_run(&self, words: &str, script: &str) -> Command {
        let mut command = self.gradwire();
        command
            .args(["lab", "run", "--name", &self.name])
            .args(words.split_whitespace())
            .arg(script);
        command
    }

    /// Another lab command, run to its end.
    pub fn lab(&self, words: &str) -> Output {
        self.gradwire().arg("lab").args(words.split_whitespace()).output().unwrap()
    }

    /// Fails if a process of the lab or its socket is still there after a while.
    pub fn assert_nothing_left(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let left = self.left_behind();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "left behind: {left:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the lab has at the moment: processes by their command lines, and its socket.
    pub fn left_behind(&self) -> Vec<String> {
        let sockets = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        self.processes()
            .into_iter()
            .map(|(_, line)| line)
            .chain(sockets.map(|entry| entry.path().display().to_string()))
            .collect()
    }

    /// The lab's processes with their command lines, in which each word ends with a zero byte.
    pub fn processes(&self) -> Vec<(Pid, String)> {
        let mark = format!("{MARK}={}\0", self.name);
        let marked = |directory: &Path| {
            let environment = fs::read(directory.join("environ")).unwrap_or_default();
            environment.windows(mark.len()).any(|part| part == mark.as_bytes())
        };
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter(|entry| marked(&entry.path()))
            .filter_map(|entry| {
                let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
                Some((pid, fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default()))
            })
            .collect()
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        // There is none if nothing was started.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A lab in the background.
pub struct Background {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Background {
    /// Starts it and waits for a line that ends with the given text, from each of its ranks.
    pub fn start(command: &mut Command, ready: &str, ranks: usize) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut background = Self { child, lines };
        for _ in 0..ranks {
            background.wait_for_line(ready);
        }
        background
    }

    pub fn wait_for_line(&mut self, end: &str) {
        let found = self.lines.by_ref().map(Result::unwrap).any(|line| line.ends_with(end));
        assert!(found, "no line ends with {end:?}");
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end: the status and the rest of its output.
    pub fn finish(mut self) -> (ExitStatus, Vec<String>) {
        let rest = self.lines.by_ref().map(Result::unwrap).collect();
        (self.child.wait().unwrap(), rest)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Ended already unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The output's lines in order, since ranks write in any.
pub fn sorted_lines(output: &Output) -> Vec<String> {
    let mut lines: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Fails with what was said unless the status is the expected one.
pub fn assert_status(output: &Output, expected: i32) {
    assert_eq!(
        output.status.code(),
        Some(expected),
        "signal {:?}\nstdout: {}\nstderr: {}",
        output.status.signal(),
        text(&output.stdout),
        text(&output.stderr)
    );
}
