//! `gradwire lab check`.

use std::process::ExitCode;

/// Arguments of `gradwire lab check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs `gradwire lab check`: exit status 0 where labs are possible, 1 where they aren't.
///
/// # Errors
/// None; the signature is that of all subcommands.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let reason = gradwire_lab::availability().err().map(|reason| reason.to_string());
    let netem = reason.is_none() && gradwire_lab::has_netem();
    let available = reason.is_none();
    match (args.json, &reason) {
        (true, _) => println!(
            "{}",
            serde_json::json!({ "available": available, "reason": reason, "netem": netem })
        ),
        (false, Some(reason)) => println!("labs are not possible here: {reason}"),
        (false, None) if netem => println!("labs are possible here, with delay and loss"),
        (false, None) => println!(
            "labs are possible here; delay and loss are not: the kernel has no netem \
             (CONFIG_NET_SCH_NETEM)"
        ),
    }
    Ok(if available { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
