//! The list of servers and which of them is used now.
//!
//! Callers: `client`, `cli`. Invariant: the list is never empty.

use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::error::Error;

/// Base URLs of the nodes of one cluster; any of them takes any call.
#[derive(Debug)]
pub struct ServerList {
    urls: Vec<String>,
    current: AtomicUsize,
}

impl ServerList {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.urls.len()
    }

    /// Never; a list has at least one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.urls.is_empty()
    }

    /// The server to use now and its place in the list.
    #[must_use]
    pub fn current(&self) -> (usize, &str) {
        let at = self.current.load(Ordering::Relaxed) % self.urls.len().max(1);
        (at, self.urls.get(at).map_or("", String::as_str))
    }

    /// Moves on from the server at `at`, unless another task has done so.
    pub fn leave(&self, at: usize) {
        let next = (at + 1) % self.urls.len().max(1);
        // Failing here means that somebody else moved on: their choice stands.
        let _moved = self
            .current
            .compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl FromStr for ServerList {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let urls = text
            .split(',')
            .map(str::trim)
            .filter(|t| !t.is_empty())
            .map(base_url)
            .collect::<Result<Vec<_>, _>>()
            .map_err(Error::Settings)?;
        if urls.is_empty() {
            return Err(Error::Settings(
                "no server given; write --server http://127.0.0.1:7070 or set PUNCTUAL_SERVER"
                    .into(),
            ));
        }
        Ok(Self {
            urls,
            current: AtomicUsize::new(0),
        })
    }
}

fn base_url(text: &str) -> Result<String, String> {
    if text.starts_with("https://") {
        return Err(format!(
            "{text}: only http is spoken; use the http address of a node, or of a proxy on this machine"
        ));
    }
    let rest = text
        .strip_prefix("http://")
        .unwrap_or(text)
        .trim_end_matches('/');
    let host_and_port = !rest.is_empty() && !rest.contains(['/', '?', '#', '@', ' ']);
    let url = format!("http://{rest}");
    if host_and_port && !rest.contains("://") && reqwest::Url::parse(&url).is_ok() {
        Ok(url)
    } else {
        Err(format!(
            "{text:?} is no address of a server; write http://host:port"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>, String> {
        text.parse::<ServerList>()
            .map(|l| l.urls)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn a_list_is_read_with_or_without_scheme() {
        assert_eq!(
            read("http://a:1/, b:2 ,http://[::1]:3"),
            Ok(vec![
                "http://a:1".into(),
                "http://b:2".into(),
                "http://[::1]:3".into()
            ])
        );
    }

    #[test]
    fn what_is_no_server_is_refused_with_the_fix() {
        assert!(read("").unwrap_err().contains("PUNCTUAL_SERVER"));
        assert!(read("https://a").unwrap_err().contains("only http"));
        for bad in [
            "http://",
            "ftp://a",
            "http://a/b",
            "a b",
            "http://a:999999",
            "u@h",
        ] {
            assert!(read(bad).unwrap_err().contains("http://host:port"), "{bad}");
        }
    }

    #[test]
    fn leaving_moves_on_once_however_many_leave() {
        let list: ServerList = "a:1,b:1,c:1".parse().unwrap();
        assert_eq!(list.current(), (0, "http://a:1"));
        list.leave(0);
        list.leave(0);
        assert_eq!(list.current().0, 1);
        list.leave(1);
        list.leave(2);
        assert_eq!(list.current().0, 0);
    }
}
