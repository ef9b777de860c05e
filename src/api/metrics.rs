//! Figures in Prometheus text form.
//!
//! Callers: `dispatch` counts, `/metrics` writes. Invariant: the number of series is bounded: routes, queues and what
//! the leader tells; no id of a schedule or execution is ever a label.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use parking_lot::Mutex;

use crate::time::Millis;

/// Upper bounds of the latency buckets, in milliseconds.
const BUCKETS: [u64; 10] = [1, 2, 5, 10, 25, 50, 100, 500, 2_500, 20_000];

#[derive(Clone, Debug, Default)]
struct Latency {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum_ms: u64,
}

/// Counts of answers.
#[derive(Debug, Default)]
pub struct Metrics {
    answers: Mutex<BTreeMap<(&'static str, u16), u64>>,
    latency: Mutex<BTreeMap<&'static str, Latency>>,
}

impl Metrics {
    /// Counts one answer.
    pub fn count(&self, route: &'static str, status: u16, took: Millis) {
        *self.answers.lock().entry((route, status)).or_default() += 1;
        let mut latency = self.latency.lock();
        let entry = latency.entry(route).or_default();
        entry.count += 1;
        entry.sum_ms = entry.sum_ms.saturating_add(took.0);
        for (bucket, bound) in entry.buckets.iter_mut().zip(BUCKETS) {
            if took.0 <= bound {
                *bucket += 1;
            }
        }
    }

    /// Writes what was counted.
    pub fn write(&self, page: &mut Page) {
        page.family(
            "http_requests_total",
            "counter",
            "Answers by route and status.",
        );
        for ((route, status), n) in self.answers.lock().iter() {
            let labels = [
                ("route", (*route).to_owned()),
                ("status", status.to_string()),
            ];
            page.whole("http_requests_total", &labels, *n);
        }
        let name = "http_request_duration_seconds";
        page.family(
            name,
            "histogram",
            "Time to answer by route, waiting included.",
        );
        for (route, latency) in self.latency.lock().iter() {
            let route = ("route", (*route).to_owned());
            let total = latency.count.to_string();
            let bounds = BUCKETS.iter().map(|ms| seconds(*ms));
            let counts = latency.buckets.iter().map(ToString::to_string);
            for (bound, n) in bounds.chain(["+Inf".to_owned()]).zip(counts.chain([total])) {
                let labels = [route.clone(), ("le", bound)];
                page.line(&format!("{name}_bucket"), &labels, &n);
            }
            let sum = seconds(latency.sum_ms);
            page.line(&format!("{name}_sum"), std::slice::from_ref(&route), &sum);
            page.whole(&format!("{name}_count"), &[route], latency.count);
        }
    }
}

/// Milliseconds as decimal seconds.
fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1_000, ms % 1_000)
}

/// A page of figures being written.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// Begins a family of figures; `kind` is `counter`, `gauge` or `histogram`.
    pub fn family(&mut self, name: &str, kind: &str, about: &str) {
        let _infallible = write!(
            self.text,
            "# HELP punctual_{name} {about}\n# TYPE punctual_{name} {kind}\n"
        );
    }

    /// One whole number.
    pub fn whole(&mut self, name: &str, labels: &[(&str, String)], value: u64) {
        self.line(name, labels, &value.to_string());
    }

    /// One figure.
    pub fn line(&mut self, name: &str, labels: &[(&str, String)], value: &str) {
        self.text.push_str("punctual_");
        self.text.push_str(name);
        if !labels.is_empty() {
            let list: Vec<String> = labels
                .iter()
                .map(|(label, value)| format!("{label}=\"{}\"", escape(value)))
                .collect();
            let _infallible = write!(self.text, "{{{}}}", list.join(","));
        }
        let _infallible = writeln!(self.text, " {value}");
    }

    /// A family with one figure.
    pub fn single(&mut self, name: &str, kind: &str, about: &str, value: u64) {
        self.family(name, kind, about);
        self.whole(name, &[], value);
    }

    /// The text.
    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_route_and_status_and_buckets_accumulate() {
        let metrics = Metrics::default();
        metrics.count("getQueue", 200, Millis(3));
        metrics.count("getQueue", 200, Millis(30_000));
        let mut page = Page::default();
        metrics.write(&mut page);
        let text = page.finish();
        for line in [
            "punctual_http_requests_total{route=\"getQueue\",status=\"200\"} 2",
            "punctual_http_request_duration_seconds_bucket{route=\"getQueue\",le=\"0.002\"} 0",
            "punctual_http_request_duration_seconds_bucket{route=\"getQueue\",le=\"0.005\"} 1",
            "punctual_http_request_duration_seconds_bucket{route=\"getQueue\",le=\"+Inf\"} 2",
            "punctual_http_request_duration_seconds_sum{route=\"getQueue\"} 30.003",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
