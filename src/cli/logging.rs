//! Logs to standard error.
//!
//! Callers: `serve`, `worker`. Invariant: installed once per process.

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use super::failure::Failure;
use crate::config::LogFormat;

/// Sends what `level` lets through to standard error.
pub(super) fn to_stderr(level: &str, format: LogFormat) -> Result<(), Failure> {
    let filter: Targets = level
        .parse()
        .map_err(|e| Failure::usage(format!("log level {level:?}: {e}; write info or debug")))?;
    let layer = fmt::layer().with_writer(std::io::stderr);
    let layer = match format {
        LogFormat::Text => layer
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .boxed(),
        LogFormat::Json => layer.json().boxed(),
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(filter))
        .try_init()
        .map_err(|e| Failure::other(format!("logging cannot start: {e}")))
}
