//! `gradwire lab list`.

use std::process::ExitCode;

use gradwire_lab::control::{self, Description};

/// Arguments of `gradwire lab list`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs `gradwire lab list`.
///
/// # Errors
/// When the directory of the control sockets can't be used.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let labs = control::list()?;
    if args.json {
        println!("{}", serde_json::json!({ "labs": labs }));
    } else {
        labs.iter().for_each(|lab| println!("{}", line(lab)));
    }
    Ok(ExitCode::SUCCESS)
}

fn line(lab: &Description) -> String {
    let mut text = format!(
        "{}  pid {}  {}  {} of {} ranks running  {}",
        lab.name,
        lab.pid,
        lab.summary,
        lab.running.len(),
        lab.ranks,
        lab.command
    );
    for (host, nic, rate) in &lab.changed_rates {
        text += &format!("  [host {host} NIC {nic}: {rate}]");
    }
    for (host, nic) in &lab.cut {
        text += &format!("  [host {host} NIC {nic}: cut]");
    }
    text
}
