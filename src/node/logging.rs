//! Logging to standard error.
//!
//! Callers: `node` at start. Lines never carry payloads, results or keys.

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

/// Installs the process's logger. A second call changes nothing.
///
/// # Errors
/// Directives that cannot be read, in words.
pub(super) fn install(config: &LogConfig) -> Result<(), String> {
    // The Raft library tells every step at "info"; whoever wants that names it.
    let quiet = if config.level.contains("openraft") {
        ""
    } else {
        ",openraft=warn"
    };
    let filter = EnvFilter::try_new(format!("{}{quiet}", config.level)).map_err(|e| {
        format!(
            "log level {:?}: {e}; try \"info\" or \"info,punctual::raft=debug\"",
            config.level
        )
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(true);
    let installed = match config.format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    // Already installed: somebody embeds us, and their logger is the one that counts.
    let _already = installed;
    Ok(())
}
