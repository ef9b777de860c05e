//! Sending one request: the trait, and HTTP over reqwest.
//!
//! Callers: `client`; tests bring their own [`Transport`]. Invariant: an answer of any status is `Ok`.

use std::time::Duration;

use futures::future::BoxFuture;

use super::call::Method;
use super::error::Error;

/// Largest answer that is read.
const ANSWER_MAX: usize = 512 << 20;
/// Longest wait for a connection; loopback and local networks answer in milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A request to one server.
#[derive(Clone, Debug)]
pub struct Request {
    /// Method.
    pub method: Method,
    /// Whole URL.
    pub url: String,
    /// Headers beside `content-type`, names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// JSON body.
    pub body: Option<Vec<u8>>,
    /// Longest time until the whole answer is there.
    pub timeout: Duration,
}

/// An answer of any status.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
}

impl Response {
    /// The value of a header; `name` in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    /// `Retry-After` in seconds.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds: f64 = self.header("retry-after")?.trim().parse().ok()?;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

/// Why there is no answer. Whether the request arrived is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// Nothing came in time.
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The connection could not be made or broke.
    #[error("{0}")]
    Broken(String),
}

/// Sends requests.
pub trait Transport: Send + Sync + 'static {
    /// Sends one request and reads the whole answer.
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>>;
}

/// HTTP/1.1 with kept connections. It takes no proxy from the environment: nodes are addressed directly.
pub struct HttpTransport {
    http: reqwest::Client,
}

impl HttpTransport {
    /// A transport with its own pool of connections.
    ///
    /// # Errors
    /// [`Error::Settings`] when the HTTP library cannot start.
    pub fn new() -> Result<Self, Error> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(Duration::from_secs(30))
            .tcp_nodelay(true)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("punctual/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|e| Error::Settings(format!("the HTTP client cannot start: {}", chain(&e))))?;
        Ok(Self { http })
    }

    async fn exchange(&self, request: Request) -> Result<Response, reqwest::Error> {
        let method = match request.method {
            Method::Get => reqwest::Method::GET,
            Method::Put => reqwest::Method::PUT,
            Method::Post => reqwest::Method::POST,
            Method::Delete => reqwest::Method::DELETE,
        };
        let mut builder = self
            .http
            .request(method, &request.url)
            .timeout(request.timeout);
        for (name, value) in &request.headers {
            builder = builder.header(*name, value);
        }
        if let Some(body) = request.body {
            builder = builder
                .header("content-type", "application/json")
                .body(body);
        }
        let mut answer = builder.send().await?;
        let mut response = Response {
            status: answer.status().as_u16(),
            headers: Vec::new(),
            body: Vec::new(),
        };
        for (name, value) in answer.headers() {
            if let Ok(value) = value.to_str() {
                response
                    .headers
                    .push((name.as_str().to_owned(), value.to_owned()));
            }
        }
        while let Some(chunk) = answer.chunk().await? {
            if response.body.len() + chunk.len() > ANSWER_MAX {
                break;
            }
            response.body.extend_from_slice(&chunk);
        }
        Ok(response)
    }
}

impl Transport for HttpTransport {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        Box::pin(async move {
            let timeout = request.timeout;
            self.exchange(request).await.map_err(|e| {
                if e.is_timeout() {
                    TransportError::TimedOut(timeout)
                } else {
                    TransportError::Broken(chain(&e))
                }
            })
        })
    }
}

/// The innermost causes say more than "error sending request".
fn chain(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    if error.is_connect() {
        format!("cannot connect: {innermost}")
    } else {
        innermost.to_string()
    }
}
