//! What a process used, from `/proc`.

use std::fs;

/// CPU time and memory of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// User and system time since its start, in milliseconds.
    pub cpu_ms: u64,
    /// Resident memory in bytes.
    pub rss_bytes: u64,
}

/// Reads the usage of `pid`; zeros when it is gone.
#[must_use]
pub fn usage(pid: u32) -> Usage {
    Usage {
        cpu_ms: cpu_ms(pid).unwrap_or(0),
        rss_bytes: rss_bytes(pid).unwrap_or(0),
    }
}

fn cpu_ms(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold blanks: the numbered fields follow the last one.
    let rest = stat.rsplit_once(')')?.1;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    // Linux reports in hundredths of a second on every platform we build for.
    Some((user + system) * 10)
}

fn rss_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|l| l.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// Bytes of all files below `dir`.
#[must_use]
pub fn bytes_below(dir: &std::path::Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes_below(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

/// The load average of the last minute.
#[must_use]
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace()
        .next()
        .and_then(|w| w.parse().ok())
        .unwrap_or(0.0)
}

/// The processor's name and how many of it there are.
#[must_use]
pub fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|l| l.strip_prefix("model name"))
        .unwrap_or(": unknown");
    let count = info.lines().filter(|l| l.starts_with("processor")).count();
    format!("{count} x {}", name.trim_start_matches([' ', '\t', ':']))
}
