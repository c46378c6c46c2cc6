//! `gradwire top`: what running jobs are doing.

mod read;
mod show;
mod view;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use view::{Sayings, View};

use crate::failure::Failure;

/// Moves the cursor to the top left and clears what is below.
const TO_THE_TOP: &str = "\x1b[H\x1b[J";

/// Arguments of `gradwire top`.
///
/// Every engine says once a second how it is doing, in a directory of its own user and host. To see
/// the ranks of all hosts, set GRADWIRE_STATUS to a directory that they share, for the job and here.
///
/// The share is that of time in which callers waited for operations; where nobody waits but futures
/// (as with DDP), that from the last submission of a burst of operations to the burst's end, marked
/// with "~".
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Where engines say how they are doing; the directory of this user on this host by default.
    #[arg(env = "GRADWIRE_STATUS", value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Look for one interval, print, and end.
    #[arg(long)]
    once: bool,
    /// Print one JSON object for each look.
    #[arg(long)]
    json: bool,
    /// Time between looks.
    #[arg(long, default_value = "1s", value_name = "TIME")]
    interval: humantime::Duration,
}

/// Runs `gradwire top`.
///
/// # Errors
/// When there is no job, or the directory can't be read.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let named =
        args.directory.as_ref().filter(|it| !["auto", "off"].map(Some).contains(&it.to_str()));
    let directory = named.cloned().unwrap_or_else(gradwire::status_directory);
    let interval = Duration::from(args.interval);
    if interval.is_zero() {
        return Err(Failure::usage("top: --interval must be above 0").into());
    }
    let refreshes = !args.json && !args.once && io::stdout().is_terminal();
    let mut sayings = Sayings::default();
    sayings.look(read::statuses(&directory)?);
    if sayings.is_empty() {
        return Err(Failure::new(1, nobody(&directory)).into());
    }
    loop {
        sleep(interval);
        sayings.look(read::statuses(&directory)?);
        if sayings.is_empty() {
            eprintln!("gradwire: top: all jobs have ended");
            return Ok(ExitCode::SUCCESS);
        }
        let view = View::of(&sayings);
        let text = if args.json {
            format!("{}\n", serde_json::to_string(&view)?)
        } else if refreshes {
            format!("{TO_THE_TOP}{}", show::text(&view))
        } else {
            show::text(&view)
        };
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            // Whoever read this has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            written => written?,
        }
        if args.once {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn nobody(directory: &std::path::Path) -> String {
    format!(
        "top: no job of this user is running on this host, or it has GRADWIRE_STATUS=off, or its \
         own GRADWIRE_STATUS is not {}",
        directory.display()
    )
}
