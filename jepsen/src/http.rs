//! A small HTTP client that tries several nodes.

use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Client, Method, StatusCode};
use serde_json::Value;

/// An answer: status and JSON body (`Null` when there is none).
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Value,
}

impl Answer {
    /// Whether it is a success.
    #[must_use]
    pub fn ok(&self) -> bool {
        self.status.is_success()
    }

    /// A header as a number, if it is there and one.
    #[must_use]
    pub fn number(&self, header: &str) -> Option<u64> {
        self.headers.get(header)?.to_str().ok()?.parse().ok()
    }

    /// The body of a success.
    ///
    /// # Errors
    /// Status and body of anything else.
    pub fn success(self) -> Result<Value, String> {
        if self.ok() {
            Ok(self.body)
        } else {
            Err(format!("{}: {}", self.status, self.body))
        }
    }
}

/// Talks to the nodes at `urls`.
#[derive(Clone, Debug)]
pub struct Api {
    client: Client,
    urls: Vec<String>,
    patience: Duration,
}

impl Api {
    /// For these base URLs.
    ///
    /// # Errors
    /// When the HTTP client cannot be made.
    pub fn new(urls: Vec<String>) -> Result<Self, String> {
        let client = Client::builder()
            .connect_timeout(Duration::from_secs(2))
            .pool_max_idle_per_host(256)
            .tcp_nodelay(true)
            .no_proxy()
            .build()
            .map_err(|e| e.to_string())?;
        Ok(Self {
            client,
            urls,
            patience: Duration::from_secs(70),
        })
    }

    /// The same, giving a call up after `patience` without an answer.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// One call to node `node` (position in the list); `Err` when no answer came (its fate is unknown).
    ///
    /// # Errors
    /// Transport errors in words.
    pub async fn at(
        &self,
        node: usize,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, String> {
        self.at_with(node, method, path, body, &[]).await
    }

    /// The same with further headers.
    ///
    /// # Errors
    /// Transport errors in words.
    pub async fn at_with(
        &self,
        node: usize,
        method: Method,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Result<Answer, String> {
        let base = self
            .urls
            .get(node % self.urls.len().max(1))
            .ok_or("no node to talk to")?;
        let mut request = self
            .client
            .request(method, format!("{base}{path}"))
            .timeout(self.patience);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request
            .send()
            .await
            .map_err(|e| format!("{base}{path}: {e}"))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = response
            .bytes()
            .await
            .map_err(|e| format!("{base}{path}: {e}"))?;
        Ok(Answer {
            status,
            headers,
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        })
    }

    /// A call that is safe to repeat: tries node after node until one gives an answer other than 429 or 503.
    ///
    /// # Errors
    /// The last error when `deadline` passes.
    pub async fn retry(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        deadline: Duration,
    ) -> Result<Answer, String> {
        let end = tokio::time::Instant::now() + deadline;
        let mut node = 0;
        loop {
            let last = match self.at(node, method.clone(), path, body).await {
                Ok(answer) if !matches!(answer.status.as_u16(), 429 | 503) => return Ok(answer),
                Ok(answer) => format!("{}: {}", answer.status, answer.body),
                Err(error) => error,
            };
            if tokio::time::Instant::now() > end {
                return Err(format!("no answer within {deadline:?}; last: {last}"));
            }
            node += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// GET from the first node.
    ///
    /// # Errors
    /// Transport errors in words.
    pub async fn get(&self, path: &str) -> Result<Answer, String> {
        self.at(0, Method::GET, path, None).await
    }

    /// POST to the first node.
    ///
    /// # Errors
    /// Transport errors in words.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer, String> {
        self.at(0, Method::POST, path, Some(body)).await
    }

    /// PUT to the first node.
    ///
    /// # Errors
    /// Transport errors in words.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Answer, String> {
        self.at(0, Method::PUT, path, Some(body)).await
    }

    /// How many nodes it knows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.urls.len()
    }
}
