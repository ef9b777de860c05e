//! Idempotency keys: the same request twice has one effect and one answer.
//!
//! Purpose: scope and hash a key, refuse a repeat while the first is under way, and find the stored answer before
//! anything is planned. Callers: `api::actions`.
//! Invariants:
//! 1. Effect and answer are stored in one log entry (apply does that); what is here only saves work.
//! 2. Scope: tenant (in the path), method and path. Content: the canonical JSON of the body.
//! 3. An item of a batch has a key of its own, made from the batch's key and its position.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::api::Api;
use crate::api::body::canonical;
use crate::api::call::Call;
use crate::api::problem::{Code, Error};
use crate::command::Idempotency;
use crate::command::outcome::{Outcome, Refusal};
use crate::ids::TenantNo;
use crate::leader::Answer;
use crate::model::history::IdempotencyRecord;
use crate::state::reader::Reader;
use crate::state::resident::read;
use crate::store::{Family, keys};
use crate::wire::limits;

/// Answers are found in this many twelve-hour buckets back, as apply does it.
const BUCKETS: u32 = 3;

/// Keys of requests that this node is carrying out.
#[derive(Clone, Debug, Default)]
pub struct UnderWay(Arc<Mutex<BTreeSet<[u8; 16]>>>);

/// A request's key while it is carried out.
#[derive(Debug)]
pub struct Keyed {
    key: Option<Idempotency>,
    under_way: UnderWay,
}

impl Keyed {
    /// For the one command of the request.
    #[must_use]
    pub const fn command(&self) -> Option<Idempotency> {
        self.key
    }

    /// For item `index` of a batch.
    #[must_use]
    pub fn item(&self, index: usize) -> Option<Idempotency> {
        let key = self.key?;
        let position = u64::try_from(index).unwrap_or(u64::MAX).to_be_bytes();
        Some(Idempotency {
            hash: first_sixteen(&[&key.hash, &position]),
            fingerprint: key.fingerprint,
        })
    }
}

impl Drop for Keyed {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.under_way.0.lock().remove(&key.hash);
        }
    }
}

impl Api {
    /// Reads the `Idempotency-Key` of a call, if it has one, and marks it as under way until the result is dropped.
    ///
    /// # Errors
    /// `invalid_parameter` for a key that is none; `idempotency_in_progress`.
    pub fn keyed(&self, call: &Call) -> Result<Keyed, Error> {
        let Some(text) = call.request.header("idempotency-key")? else {
            return Ok(Keyed {
                key: None,
                under_way: self.under_way.clone(),
            });
        };
        let bound = limits::KEY_BYTES;
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
        if !(bound.min..=bound.max).contains(&length) || !text.bytes().all(|b| b.is_ascii_graphic())
        {
            return Err(Error::parameter(
                "header:idempotency-key",
                format!(
                    "must be 1 to {} printable ASCII characters without blanks",
                    bound.max
                ),
            ));
        }
        let key = Idempotency {
            hash: scope_hash(call, text),
            fingerprint: fingerprint(&canonical(&call.request.body)),
        };
        if !self.under_way.0.lock().insert(key.hash) {
            return Err(Error::new(
                Code::IdempotencyInProgress,
                "a request with this Idempotency-Key is under way; ask again in a moment",
            ));
        }
        Ok(Keyed {
            key: Some(key),
            under_way: self.under_way.clone(),
        })
    }

    /// Refuses a batch whose key was used with another batch, before anything of it is carried out.
    ///
    /// # Errors
    /// `idempotency_conflict`, and any fault of reading.
    pub fn check_batch(&self, keyed: &Keyed, tenant: &str, count: usize) -> Result<(), Error> {
        if keyed.key.is_none() {
            return Ok(());
        }
        // One more than it has: a shorter batch under the same key is another batch too.
        for index in 0..=count {
            self.recall(keyed.item(index), tenant)?;
        }
        Ok(())
    }

    /// The stored answer under a key, if there is one. `tenant`: the one that the command names.
    ///
    /// # Errors
    /// `idempotency_conflict`, and any fault of reading.
    pub fn recall(&self, key: Option<Idempotency>, tenant: &str) -> Result<Option<Answer>, Error> {
        let Some(key) = key else { return Ok(None) };
        let reader = self.replica.read();
        // What apply does with a tenant that is none.
        let tenant = reader
            .tenant_numbers
            .get(tenant)
            .copied()
            .unwrap_or(TenantNo(0));
        let Some(record) = find(&reader, tenant, &key.hash)? else {
            return Ok(None);
        };
        if record.fingerprint != key.fingerprint {
            return Err(Refusal::IdempotencyConflict.into());
        }
        Ok(Some(Answer {
            index: record.index,
            outcome: Outcome::Replayed(Box::new(record.outcome)),
        }))
    }
}

fn find(
    reader: &Reader<'_>,
    tenant: TenantNo,
    hash: &[u8; 16],
) -> Result<Option<IdempotencyRecord>, Error> {
    let newest = keys::idempotency_bucket(reader.now());
    for back in 0..BUCKETS {
        let bucket = newest.saturating_sub(back);
        if bucket < reader.cluster.idempotency_from {
            break;
        }
        let row = keys::idempotency(bucket, tenant, hash);
        let found = read(reader.store(), Family::Keys, &row)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn scope_hash(call: &Call, key: &str) -> [u8; 16] {
    let request = &call.request;
    let scope = [
        b"punctual idempotency 1\n" as &[u8],
        request.method.as_bytes(),
        b"\n",
        request.path.as_bytes(),
        b"\n",
        key.as_bytes(),
    ];
    first_sixteen(&scope)
}

fn first_sixteen(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    let mut out = [0; 16];
    for (to, from) in out.iter_mut().zip(hash.finalize()) {
        *to = from;
    }
    out
}

/// First eight bytes of SHA-256: what a repeat is compared by.
#[must_use]
pub fn fingerprint(bytes: &[u8]) -> u64 {
    let hash = Sha256::digest(bytes);
    let mut first = [0; 8];
    for (to, from) in first.iter_mut().zip(hash) {
        *to = from;
    }
    u64::from_be_bytes(first)
}
