//! Calls on the cluster.

use std::time::Duration;

use super::{Answer, Call, Client, Error, Method, segment};
use crate::wire::{AddMember, Cluster, Member, TransferLeadership, Transferred};

/// A new member first gets the whole log or a snapshot.
const MEMBER_WAIT: Duration = Duration::from_secs(300);

impl Client {
    /// The cluster as the answering node sees it, also when that node is cut off from all others: then it is needed
    /// most.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn cluster(&self) -> Result<Answer<Cluster>, Error> {
        let call = Call::new(Method::Get, "/v1/cluster");
        self.call(call.query("consistency", Some("stale"))).await
    }

    /// Adds an empty node that was started with `join`.
    ///
    /// # Errors
    /// [`Error::Problem`] when the node cannot be reached or its number was used before.
    pub async fn add_member(&self, body: &AddMember) -> Result<Answer<Member>, Error> {
        let call = Self::with_body(Method::Post, "/v1/cluster/members".into(), body)?;
        self.call(call.waiting(MEMBER_WAIT)).await
    }

    /// Removes a node, dead or alive.
    ///
    /// # Errors
    /// [`Error::Problem`] when it is no member or the rest would have no majority.
    pub async fn remove_member(&self, node: u64) -> Result<Answer<serde_json::Value>, Error> {
        let path = format!("/v1/cluster/members/{}:remove", segment(&node.to_string()));
        self.call(Call::new(Method::Post, path).waiting(MEMBER_WAIT))
            .await
    }

    /// Hands leadership to another node.
    ///
    /// # Errors
    /// [`Error::Problem`] when the target is no voter or too far behind.
    pub async fn transfer_leadership(
        &self,
        body: &TransferLeadership,
    ) -> Result<Answer<Transferred>, Error> {
        let path = "/v1/cluster:transfer-leadership".to_owned();
        self.call(Self::with_body(Method::Post, path, body)?).await
    }

    /// Takes a snapshot on the answering node.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn snapshot(&self) -> Result<Answer<serde_json::Value>, Error> {
        self.call(Call::new(Method::Post, "/v1/cluster:snapshot").waiting(MEMBER_WAIT))
            .await
    }
}
