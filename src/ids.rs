//! Names and numbers that identify things.
//!
//! Purpose: newtypes, so that a tenant is never passed for a queue. Callers: everything.
//! Invariants:
//! 1. A value of a name type satisfies its alphabet and length; only validating constructors make one from text.
//! 2. Numbers ([`TenantNo`], [`QueueNo`]) are given by apply, from 1 upwards, and never used again.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Longest name of a tenant, queue, schedule or execution, in bytes.
pub const NAME_MAX: usize = 128;
/// Longest kind, in bytes.
pub const KIND_MAX: usize = 128;
/// Longest worker or request id, in bytes.
pub const WORKER_ID_MAX: usize = 200;
/// Longest concurrency, unique or idempotency key, in bytes.
pub const KEY_MAX: usize = 256;

/// Why a text is not a name of the wanted type: what is wrong and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidName(pub String);

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the alphabet and the length.
            ///
            /// # Errors
            /// [`InvalidName`] that says what is wrong.
            pub fn new(text: &str) -> Result<Self, InvalidName> {
                $check(text)?;
                Ok(Self(Arc::from(text)))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name_type!(
    /// A tenant's name.
    TenantId,
    check_name
);
name_type!(
    /// A queue's name.
    QueueId,
    check_name
);
name_type!(
    /// A schedule's name, unique in its tenant.
    ScheduleId,
    check_name
);
name_type!(
    /// An execution's name, unique in its tenant; minted ones are unique in the cluster ([`ExecutionId::mint`]).
    ExecutionId,
    check_name
);
name_type!(
    /// The name of the handler that a worker must have.
    Kind,
    check_kind
);
name_type!(
    /// A worker's name, unique per process start.
    WorkerId,
    check_token
);

impl TenantId {
    /// The tenant that always exists.
    #[must_use]
    pub fn default_tenant() -> Self {
        Self(Arc::from("default"))
    }
}

impl QueueId {
    /// The queue that always exists.
    #[must_use]
    pub fn default_queue() -> Self {
        Self(Arc::from("default"))
    }
}

fn check_name(text: &str) -> Result<(), InvalidName> {
    let first = text.bytes().next();
    if !first.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
        return Err(InvalidName("must begin with a-z or 0-9".into()));
    }
    check_length(text, NAME_MAX)?;
    check_chars(text, "a-z, 0-9, '.', '_' and '-'", |c| {
        c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-')
    })
}

fn check_kind(text: &str) -> Result<(), InvalidName> {
    if !text
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric())
    {
        return Err(InvalidName("must begin with a letter or a digit".into()));
    }
    check_length(text, KIND_MAX)?;
    check_chars(text, "letters, digits, '.', '_', '-', ':' and '/'", |c| {
        c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '/')
    })
}

fn check_token(text: &str) -> Result<(), InvalidName> {
    if text.is_empty() {
        return Err(InvalidName("must not be empty".into()));
    }
    check_length(text, WORKER_ID_MAX)?;
    check_chars(text, "printable ASCII without blanks", |c| {
        c.is_ascii_graphic()
    })
}

fn check_length(text: &str, max: usize) -> Result<(), InvalidName> {
    if text.len() > max {
        return Err(InvalidName(format!(
            "has {} bytes; the maximum is {max}",
            text.len()
        )));
    }
    Ok(())
}

fn check_chars(text: &str, allowed: &str, ok: fn(char) -> bool) -> Result<(), InvalidName> {
    match text.char_indices().find(|(_, c)| !ok(*c)) {
        Some((at, c)) => Err(InvalidName(format!(
            "has {c:?} at byte {at}; allowed are {allowed}"
        ))),
        None => Ok(()),
    }
}

/// A tenant's number: the first part of every stored key of the tenant.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
#[serde(transparent)]
pub struct TenantNo(pub u32);

impl TenantNo {
    /// The tenant `default`.
    pub const DEFAULT: Self = Self(1);
}

/// A queue's number.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
#[serde(transparent)]
pub struct QueueNo(pub u32);

impl QueueNo {
    /// The queue `default`.
    pub const DEFAULT: Self = Self(1);
}

/// Where in the log a person last changed an object: the entry's token (index and base) and the place of the command in
/// it. So two changes never share one, even in one entry, and it only grows. Opaque to callers; shown as `8123.0`. The
/// default stands for "never" or "does not exist".
///
/// Stored and logged as one u64: token × 2,048 + place.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(u64);

/// Text that is no revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a revision that this API gave out")]
pub struct NotARevision;

impl Revision {
    /// Commands of one entry that have revisions of their own: the most that an entry may hold.
    pub const PLACES: u32 = 1 << Self::PLACE_BITS;
    const PLACE_BITS: u32 = u64::BITS - INDEX_BITS;

    /// Of the command at `place` (below [`Revision::PLACES`]) of the entry with `token` (below 2^53); higher bits are cut.
    #[must_use]
    pub const fn new(token: u64, place: u32) -> Self {
        Self((token << Self::PLACE_BITS) | (place & (Self::PLACES - 1)) as u64)
    }

    /// Whether it stands for "never" or "does not exist".
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.0 & u64::from(Self::PLACES - 1);
        write!(f, "{}.{place}", self.0 >> Self::PLACE_BITS)
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl std::str::FromStr for Revision {
    type Err = NotARevision;

    fn from_str(text: &str) -> Result<Self, NotARevision> {
        let (token, place) = text.split_once('.').ok_or(NotARevision)?;
        let (Ok(token), Ok(place)) = (token.parse(), place.parse()) else {
            return Err(NotARevision);
        };
        let revision = Self::new(token, place);
        // Only the one way to write it: no sign, no leading zero, nothing cut.
        (revision.to_string() == text)
            .then_some(revision)
            .ok_or(NotARevision)
    }
}

/// Digits of a minted id: Crockford's base 32 in lower case, which sorts as the bytes do.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Bits of the log index in a minted id (integers in answers stay below 2^53).
const INDEX_BITS: u32 = 53;
/// Bits of the position inside an entry.
const SLOT_BITS: u32 = 20;
/// Bits of the tenant's number.
const TENANT_BITS: u32 = 32;
/// Letters of a minted id: 105 bits in groups of five.
const MINTED_LEN: usize = ((INDEX_BITS + SLOT_BITS + TENANT_BITS) / 5) as usize;

impl ExecutionId {
    /// The id of the `slot`-th execution created by the entry at `index` (index base included) for `tenant`.
    ///
    /// 21 letters that sort by (index, slot). `index` must be below 2^53 and `slot` below 2^20; higher bits are cut.
    #[must_use]
    pub fn mint(index: u64, slot: u32, tenant: TenantNo) -> Self {
        let mut bits = u128::from(index & ((1 << INDEX_BITS) - 1));
        bits = (bits << SLOT_BITS) | u128::from(slot & ((1 << SLOT_BITS) - 1));
        bits = (bits << TENANT_BITS) | u128::from(tenant.0);
        let mut text = String::with_capacity(MINTED_LEN);
        for place in (0..MINTED_LEN).rev() {
            let digit = (bits >> (place * 5)) as usize & 31;
            text.push(char::from(DIGITS.get(digit).copied().unwrap_or(b'0')));
        }
        Self(Arc::from(text))
    }

    /// The tenant in a minted id; `None` when the text cannot be one. A caller-chosen id may look minted: whoever
    /// relies on the tenant looks the execution up under it.
    #[must_use]
    pub fn minted_tenant(&self) -> Option<TenantNo> {
        if self.0.len() != MINTED_LEN {
            return None;
        }
        let mut bits: u128 = 0;
        for byte in self.0.bytes() {
            let digit = DIGITS.iter().position(|d| *d == byte)?;
            bits = (bits << 5) | digit as u128;
        }
        u32::try_from(bits & u128::from(u32::MAX))
            .ok()
            .map(TenantNo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["a", "0", "daily-report_1.x"] {
            assert!(TenantId::new(good).is_ok(), "{good}");
        }
        for bad in ["", "A", "-a", "a b", "a/b", "é", &"a".repeat(129)] {
            assert!(TenantId::new(bad).is_err(), "{bad}");
        }
        let err = ScheduleId::new("ab/c").expect_err("a slash is refused");
        assert!(err.to_string().contains("byte 2"), "{err}");
        assert!(Kind::new("Mail:send/v2").is_ok());
        assert!(WorkerId::new("host 1").is_err());
    }

    #[test]
    fn minted_ids_sort_by_log_position_and_name_their_tenant() {
        let a = ExecutionId::mint(7, 9, TenantNo(3));
        let b = ExecutionId::mint(7, 10, TenantNo(1));
        let c = ExecutionId::mint(8, 0, TenantNo(2));
        assert!(a < b && b < c);
        assert_eq!(a.as_str().len(), 21);
        assert_eq!(a.minted_tenant(), Some(TenantNo(3)));
        assert!(ExecutionId::new(a.as_str()).is_ok());
        let top = ExecutionId::mint((1 << 53) - 1, (1 << 20) - 1, TenantNo(u32::MAX));
        assert_eq!(top.minted_tenant(), Some(TenantNo(u32::MAX)));
        assert_eq!(
            ExecutionId::new("order-77").map(|id| id.minted_tenant()),
            Ok(None)
        );
    }

    #[test]
    fn revisions_sort_by_the_log_and_read_back_in_one_form_only() {
        let last = Revision::PLACES - 1;
        let sorted = [
            Revision::default(),
            Revision::new(0, 1),
            Revision::new(1, 0),
            Revision::new(1, last),
            Revision::new(2, 0),
            Revision::new((1 << INDEX_BITS) - 1, last),
        ];
        assert!(sorted.is_sorted() && sorted[1] != sorted[2]);
        for revision in sorted {
            assert_eq!(revision.to_string().parse(), Ok(revision));
        }
        assert_eq!(Revision::new(8_123, 4).to_string(), "8123.4");
        for text in [
            "",
            "7",
            "7.",
            ".7",
            "+7.0",
            "07.0",
            "7.00",
            "7.2048",
            "7.0.0",
            "9007199254740992.0",
            "a.b",
        ] {
            assert_eq!(text.parse::<Revision>(), Err(NotARevision), "{text}");
        }
    }
}
