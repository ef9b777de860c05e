//! The form of a result: one JSON object a line.

use serde_json::{Map, Value, json};

use crate::procfs;

/// Where and on what a run was measured.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Nodes of the cluster.
    pub nodes: usize,
    /// Version of the binary, as it says itself.
    pub version: String,
    /// What differs from the defaults.
    pub config: &'static str,
}

/// One result line.
#[must_use]
pub fn line(setting: &Setting, workload: &str, figures: Value) -> String {
    let mut out = Map::new();
    out.insert("workload".into(), json!(workload));
    out.insert("nodes".into(), json!(setting.nodes));
    out.insert("version".into(), json!(setting.version));
    out.insert("settings".into(), json!(setting.config));
    out.insert("machine".into(), json!(procfs::machine()));
    out.insert("load_average".into(), json!(procfs::load_average()));
    if let Value::Object(figures) = figures {
        out.extend(figures);
    }
    Value::Object(out).to_string()
}

/// Percentiles of `values` (sorted here): p50, p95, p99 and max.
#[must_use]
pub fn percentiles(mut values: Vec<u64>) -> Value {
    values.sort_unstable();
    let at = |permille: usize| {
        let place = (values.len() * permille / 1_000).min(values.len().saturating_sub(1));
        values.get(place).copied().unwrap_or(0)
    };
    json!({"count": values.len(), "p50": at(500), "p95": at(950), "p99": at(990), "max": at(1_000)})
}

/// `total` per item, rounded to a tenth.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
pub fn per_item(total: u64, items: u64) -> f64 {
    (total as f64 / items.max(1) as f64 * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let p = percentiles((1..=1_000).rev().collect());
        assert_eq!(
            p,
            json!({"count": 1000, "p50": 501, "p95": 951, "p99": 991, "max": 1000})
        );
        assert_eq!(percentiles(Vec::new())["max"], 0);
    }
}
