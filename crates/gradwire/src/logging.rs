//! Logs.

use tracing_subscriber::EnvFilter;

/// Sends the engine's logs to standard error as `GRADWIRE_LOG` asks (`error`, `warn`, `info`,
/// `debug`, `trace`, or a filter such as `gradwire_transport=debug`); warnings by default. Does
/// nothing if the program has set up `tracing` itself.
pub fn start_logging() {
    let filter = std::env::var("GRADWIRE_LOG").unwrap_or_else(|_| "warn".to_owned());
    let filter = EnvFilter::try_new(&filter).unwrap_or_else(|error| {
        eprintln!("gradwire: GRADWIRE_LOG='{filter}' is ignored: {error}");
        EnvFilter::new("warn")
    });
    // Fails where a subscriber is set, which is then the one to use.
    let _ =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}
