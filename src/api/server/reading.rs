//! From a hyper request to a [`Request`]: checked, bounded, read whole.

use std::net::IpAddr;
use std::time::Duration;

use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::api::Api;
use crate::api::call::{HEADERS, Request};
use crate::api::problem::{Code, Error, LimitMet};
use crate::wire::limits;

type Head<'a> = &'a axum::extract::Request;

/// The caller's own id of the request when it is usable, else a new one.
pub(super) fn request_id(api: &Api, request: Head<'_>) -> String {
    let given = request.headers().get("x-request-id");
    let usable =
        |text: &&str| (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    match given.and_then(|v| v.to_str().ok()).filter(usable) {
        Some(text) => text.to_owned(),
        None => format!(
            "{:016x}{:016x}",
            api.runtime.random_u64(),
            api.runtime.random_u64()
        ),
    }
}

/// Whether a request may wait for work or for a result.
pub(super) fn may_wait(request: Head<'_>) -> bool {
    let uri = request.uri();
    uri.path().ends_with("/leases:claim") || uri.query().is_some_and(|q| q.contains("wait_ms="))
}

/// What is refused before the body is read.
///
/// # Errors
/// `auth_not_configured`, `origin_refused`, `malformed_request`, `unsupported_media_type`, `body_too_large`.
pub(super) fn check(api: &Api, request: Head<'_>) -> Result<(), Error> {
    let headers = request.headers();
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    if headers.contains_key("authorization") {
        return Err(Error::new(
            Code::AuthNotConfigured,
            "this cluster has no authentication: send no Authorization header, so that nobody mistakes it for one",
        ));
    }
    let host = text("host").or_else(|| request.uri().authority().map(|a| a.as_str()));
    let Some(host) = host else {
        return Err(Error::new(
            Code::MalformedRequest,
            "the Host header is required",
        ));
    };
    if api.config.loopback_only && !is_this_machine(host) {
        let detail = format!(
            "{host:?} is not a name of this machine, and this node listens on loopback only"
        );
        return Err(Error::new(Code::OriginRefused, detail));
    }
    if let Some(origin) = text("origin") {
        let same = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        if same != Some(host) {
            let detail = format!("a page of {origin} may not call this node");
            return Err(Error::new(Code::OriginRefused, detail));
        }
    }
    if text("content-encoding").is_some_and(|coding| coding != "identity") {
        return Err(Error::new(
            Code::UnsupportedMediaType,
            "send the body without Content-Encoding",
        ));
    }
    let length = text("content-length").and_then(|v| v.parse::<u64>().ok());
    match length {
        Some(length) if length > limits::BODY_BYTES.max => Err(too_large(length)),
        _ => Ok(()),
    }
}

fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

fn too_large(length: u64) -> Error {
    let max = limits::BODY_BYTES.max;
    Error {
        limit: Some(LimitMet {
            name: "body_bytes".to_owned(),
            limit: max,
            current: length,
            scope: "request",
        }),
        ..Error::new(
            Code::BodyTooLarge,
            format!("the body may have {max} bytes at most; send less at a time"),
        )
    }
}

/// Reads the body, within `deadline`.
///
/// # Errors
/// `request_timeout`, `body_too_large`, `malformed_request`.
pub(super) async fn read(
    api: &Api,
    request: axum::extract::Request,
    request_id: String,
    deadline: Duration,
) -> Result<Request, Error> {
    let began = api.runtime.clock().wall();
    let (head, body) = request.into_parts();
    let max = usize::try_from(limits::BODY_BYTES.max).unwrap_or(usize::MAX);
    let collected = tokio::time::timeout(deadline, Limited::new(body, max).collect()).await;
    let body = match collected {
        Err(_) => {
            let detail = format!("the body did not arrive within {} s", deadline.as_secs());
            return Err(Error::new(Code::RequestTimeout, detail));
        }
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return Err(too_large(limits::BODY_BYTES.max.saturating_add(1)));
        }
        Ok(Err(error)) => {
            let detail = format!("the body cannot be read: {error}");
            return Err(Error::new(Code::MalformedRequest, detail));
        }
        Ok(Ok(collected)) => collected.to_bytes(),
    };
    let mut headers = Vec::new();
    for (name, value) in &head.headers {
        if HEADERS.contains(&name.as_str()) {
            let text = value
                .to_str()
                .map_err(|_| Error::parameter(format!("header:{name}"), "must be visible ASCII"))?;
            headers.push((name.as_str().to_owned(), text.to_owned()));
        }
    }
    Ok(Request {
        method: head.method.as_str().to_owned(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers,
        body,
        request_id,
        began,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_this_machine() {
        for host in [
            "localhost",
            "LOCALHOST:7070",
            "127.0.0.1:7070",
            "[::1]:7070",
            "10.0.0.1",
        ] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:7070",
            "localhost.evil.example",
            "",
        ] {
            assert!(!is_this_machine(host), "{host}");
        }
    }
}
