//! Which node answers, and how.
//!
//! Purpose: route a request, check what every call has in common, pass it to the leader where only the leader can
//! answer, and wait for the read barrier where the answer must be linearizable. Callers: `server`, `forward`.
//! Invariants:
//! 1. A default read begins after a read barrier: it sees every write acknowledged before the request came.
//! 2. A forwarded request is answered or refused here, never forwarded again.
//! 3. Whatever goes wrong becomes a problem answer with the request's id.

use std::sync::Arc;
use std::time::Duration;

use crate::api::Api;
use crate::api::call::{Call, Request, parse_query};
use crate::api::forward;
use crate::api::problem::{Code, Error};
use crate::api::reply::Reply;
use crate::api::routes::{Access, Matched, Route};
use crate::command::Actor;
use crate::time::Millis;

/// How long a read waits for `min_index` to be applied.
const MIN_INDEX_WAIT: Duration = Duration::from_secs(10);

/// Where a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client of this node.
    Client,
    /// Another node, on behalf of a client of its own.
    Peer,
}

/// How fresh a read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consistency {
    Linearizable,
    Stale,
}

/// What a read asks of the state that it is answered from.
#[derive(Clone, Copy, Debug)]
struct Freshness {
    consistency: Consistency,
    min_index: Option<u64>,
}

impl Freshness {
    /// Of a call; the defaults where the route reads nothing.
    fn of(route: &Route, call: &Call) -> Result<Self, Error> {
        let consistency = match call.param("consistency")? {
            None | Some("linearizable") => Consistency::Linearizable,
            Some("stale") if route.access == Access::Read && call.wait()? > Millis::ZERO => {
                let detail =
                    "who waits for a result is told by the leader; leave stale or wait_ms out";
                return Err(Error::parameter("query:consistency", detail));
            }
            Some("stale") => Consistency::Stale,
            Some(other) => {
                let detail = format!("{other:?} is neither linearizable nor stale");
                return Err(Error::parameter("query:consistency", detail));
            }
        };
        let min_index = call.number("min_index", &crate::wire::limits::LIMIT_VALUE)?;
        Ok(Self {
            consistency,
            min_index,
        })
    }
}

/// Refuses headers that the call would ignore although they promise something.
fn check_headers(route: &Route, request: &Request) -> Result<(), Error> {
    if route.method == "GET" {
        return Ok(());
    }
    let refuse = |name: &'static str, detail: &str| match request.header(name)? {
        Some(_) => Err(Error::parameter(format!("header:{name}"), detail)),
        None => Ok(()),
    };
    if !route.conditional {
        refuse("if-match", "this call has no condition; leave it out")?;
        refuse("if-none-match", "this call has no condition; leave it out")?;
    } else if route.method != "PUT" {
        refuse("if-none-match", "only a PUT may create; leave it out")?;
    }
    if route.id.starts_with("claim") {
        let detail = "a claim is repeated under its request_id, so that its leases are still those of the first; \
                      leave the header out";
        refuse("idempotency-key", detail)?;
    }
    Ok(())
}

impl Api {
    /// Answers a request. The future may be dropped when the caller hangs up.
    pub async fn answer(self: &Arc<Self>, request: Request, origin: Origin) -> Reply {
        let began = self.runtime.clock().monotonic();
        let id = request.request_id.clone();
        let is_head = request.method == "HEAD";
        let (label, result) = match self.route(request) {
            Ok((route, call)) => (route.id, self.run(route, call, origin).await),
            Err(error) => ("none", Err(error)),
        };
        let mut reply = match result {
            Ok(reply) => reply,
            Err(error) => {
                if error.code == Code::Internal {
                    tracing::error!(request_id = %id, route = label, detail = %error.detail, "internal error");
                }
                Reply::problem(&error, &id)
            }
        };
        if is_head {
            reply.body = bytes::Bytes::new();
        }
        if origin == Origin::Client {
            let took = Millis(self.runtime.clock().monotonic().0.saturating_sub(began.0));
            self.metrics.count(label, reply.status, took);
            tracing::debug!(request_id = %id, route = label, status = reply.status, ms = took.0, "answered");
        }
        reply.with("x-request-id", id)
    }

    fn route(&self, request: Request) -> Result<(&Route, Call), Error> {
        let (route, path) = match self.routes.find(&request.method, &request.path) {
            Matched::Route(route, path) => (route, path),
            Matched::OtherMethods(methods) => {
                let list = methods.into_iter().collect::<Vec<_>>().join(", ");
                let detail = format!("{} is not known here; there is {list}", request.method);
                return Err(Error {
                    allow: Some(list),
                    ..Error::new(Code::MethodNotAllowed, detail)
                });
            }
            Matched::Later(what) => {
                return Err(Error::new(
                    Code::NotImplemented,
                    format!("this version does not have it yet: {what}"),
                ));
            }
            Matched::Nothing => {
                return Err(Error::new(
                    Code::RouteNotFound,
                    format!("there is no {} {}; see /docs", request.method, request.path),
                ));
            }
        };
        let query = parse_query(&request.query)?;
        for (name, _) in &query {
            if !route.params.iter().any(|p| p.name == name) {
                let known: Vec<_> = route.params.iter().map(|p| p.name).collect();
                let detail = match known.is_empty() {
                    true => "is not known here; this call has no parameters".to_owned(),
                    false => format!("is not known here; there is {}", known.join(", ")),
                };
                return Err(Error::parameter(format!("query:{name}"), detail));
            }
        }
        if route.body.is_none() && !request.body.is_empty() && route.method != "GET" {
            return Err(Error::new(
                Code::MalformedRequest,
                "this call takes no body",
            ));
        }
        check_headers(route, &request)?;
        let call = Call {
            request,
            path,
            query,
            actor: Actor::Anonymous,
        };
        Ok((route, call))
    }

    async fn run(
        self: &Arc<Self>,
        route: &Route,
        call: Call,
        origin: Origin,
    ) -> Result<Reply, Error> {
        let fresh = Freshness::of(route, &call)?;
        // Who waits for a result is told by the leader, which sees it first.
        let waits = route.access == Access::Read && call.wait()? > Millis::ZERO;
        match route.access {
            Access::Local => (route.handler)(Arc::clone(self), call).await,
            Access::Read if !waits => self.read(route, call, fresh).await,
            _ if self.scheduler.in_office() => {
                if let Some(index) = fresh.min_index {
                    self.reach(index).await?;
                }
                (route.handler)(Arc::clone(self), call).await
            }
            _ if origin == Origin::Peer => Err(self.no_leader()),
            _ => self.pass_on(route, &call).await,
        }
    }

    async fn read(
        self: &Arc<Self>,
        route: &Route,
        call: Call,
        fresh: Freshness,
    ) -> Result<Reply, Error> {
        if let Some(index) = fresh.min_index {
            self.reach(index).await?;
        }
        if fresh.consistency == Consistency::Linearizable {
            self.consensus.read_barrier().await?;
        }
        let reply = (route.handler)(Arc::clone(self), call).await?;
        if fresh.consistency == Consistency::Linearizable {
            return Ok(reply);
        }
        let reader = self.replica.read();
        let age = self.runtime.clock().wall().since(reader.now());
        Ok(reply
            .with("x-applied-index", reader.token().to_string())
            .with("x-applied-age-ms", age.0.to_string()))
    }

    /// Waits until this node has applied what a client calls `index`.
    async fn reach(&self, index: u64) -> Result<(), Error> {
        let raw = index.saturating_sub(self.replica.resident().cluster.index_base);
        match tokio::time::timeout(MIN_INDEX_WAIT, self.consensus.applied(raw)).await {
            Ok(reached) => reached.map(drop).map_err(Error::from),
            Err(_) => Err(Error::new(
                Code::IndexNotReached,
                format!("this node has not applied index {index} within 10 s"),
            )),
        }
    }

    async fn pass_on(&self, route: &Route, call: &Call) -> Result<Reply, Error> {
        let status = self.consensus.status();
        let Some(leader) = status.leader.filter(|leader| *leader != status.id) else {
            return Err(self.no_leader());
        };
        let may_wait = route.id.starts_with("claim") || call.wait()? > Millis::ZERO;
        let deadline = match may_wait {
            true => forward::WAITING_DEADLINE,
            // Joining waits until the new member has the log.
            false if route.id == "addMember" => forward::WAITING_DEADLINE,
            false => forward::DEADLINE,
        };
        let message = forward::encode_request(&call.request)?;
        let bytes = self.forward.forward(leader, message, deadline).await?;
        let mut reply = forward::decode_reply(&bytes)?;
        reply.headers.retain(|(name, _)| name != "x-request-id");
        let name = match status.leader_address().map(|a| a.api.as_str()) {
            Some(url) if !url.is_empty() => url.to_owned(),
            _ => leader.to_string(),
        };
        Ok(reply.with("x-leader", name))
    }

    fn no_leader(&self) -> Error {
        let status = self.consensus.status();
        let is_cut_off = status.quorum_ack_age_ms.is_some_and(|age| age > 1_000);
        let detail = match status.leader {
            Some(id) if id == status.id && is_cut_off => {
                "this node led, and no majority of the nodes answers it"
            }
            Some(id) if id == status.id => "this node is taking office",
            Some(_) => "the leader is just changing",
            None => "no leader is known now",
        };
        Error::new(Code::NoLeader, format!("{detail}; nothing was done"))
    }
}
