//! Compiled rules, and the zone data releases to compile them with.
//!
//! Purpose: plan with the replicated release only, without compiling a rule at each firing. Callers: the office's plan
//! jobs. Invariants: a compiled rule belongs to one definition (incarnation, generation) and one release; the cache is
//! bounded ([`CACHE_MAX`]), what was used lately stays.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::calendar::{Compiled, ZoneData};
use crate::ids::{ScheduleId, TenantId, TenantNo};
use crate::leader::planner;
use crate::model::schedule::Schedule;

/// Compiled rules kept.
pub const CACHE_MAX: usize = 20_000;

/// Zone data releases that this node can load.
#[derive(Clone, Debug)]
pub struct ZoneReleases {
    bundled: ZoneData,
    others: BTreeMap<String, ZoneData>,
}

impl ZoneReleases {
    /// Only the release in the binary.
    #[must_use]
    pub fn bundled() -> Self {
        Self {
            bundled: ZoneData::bundled(),
            others: BTreeMap::new(),
        }
    }

    /// With one more.
    #[must_use]
    pub fn with(mut self, release: ZoneData) -> Self {
        self.others.insert(release.release().to_owned(), release);
        self
    }

    /// The release of this name; an empty name is the bundled one (a cluster that never chose). `None`: this node
    /// does not have it and must not plan.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<ZoneData> {
        if name.is_empty() || name == self.bundled.release() {
            return Some(self.bundled.clone());
        }
        self.others.get(name).cloned()
    }
}

type Name = (TenantNo, ScheduleId);

#[derive(Debug)]
struct Cached {
    incarnation: u64,
    generation: u64,
    rule: Arc<Compiled>,
}

/// Two generations: what is used moves to the young one; when that is full, the old one goes.
#[derive(Debug, Default)]
struct Cache {
    release: String,
    young: BTreeMap<Name, Cached>,
    old: BTreeMap<Name, Cached>,
}

/// See the module.
#[derive(Debug)]
pub struct Rules {
    zones: ZoneReleases,
    cache: Mutex<Cache>,
}

impl Rules {
    /// An empty cache.
    #[must_use]
    pub fn new(zones: ZoneReleases) -> Self {
        Self {
            zones,
            cache: Mutex::new(Cache::default()),
        }
    }

    /// Whether this node can plan with `release`.
    #[must_use]
    pub fn can_load(&self, release: &str) -> bool {
        self.zones.get(release).is_some()
    }

    /// The compiled rule of a schedule.
    ///
    /// # Errors
    /// In words, when the rule does not compile with `release` (or the release is unknown).
    pub fn compiled(
        &self,
        release: &str,
        tenant: &TenantId,
        schedule: &Schedule,
    ) -> Result<Arc<Compiled>, String> {
        let name = (schedule.tenant, schedule.id.clone());
        if let Some(rule) = self.cache.lock().get(release, &name, schedule) {
            return Ok(rule);
        }
        let zones = self.zones.get(release);
        let zones = zones.ok_or_else(|| format!("zone data {release} is not on this node"))?;
        let identity = planner::identity(tenant, &schedule.id);
        let rule = Compiled::new(&schedule.spec.rule, &zones, &identity).map_err(|errors| {
            let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
            all.join("; ")
        })?;
        let rule = Arc::new(rule);
        self.cache.lock().put(name, schedule, Arc::clone(&rule));
        Ok(rule)
    }
}

impl Cache {
    fn get(&mut self, release: &str, name: &Name, schedule: &Schedule) -> Option<Arc<Compiled>> {
        if self.release != release {
            *self = Self {
                release: release.to_owned(),
                ..Self::default()
            };
            return None;
        }
        if let Some(found) = self.old.remove(name) {
            self.insert(name.clone(), found);
        }
        let found = self.young.get(name)?;
        let is_same =
            found.incarnation == schedule.incarnation && found.generation == schedule.generation;
        is_same.then(|| Arc::clone(&found.rule))
    }

    fn put(&mut self, name: Name, schedule: &Schedule, rule: Arc<Compiled>) {
        let cached = Cached {
            incarnation: schedule.incarnation,
            generation: schedule.generation,
            rule,
        };
        self.insert(name, cached);
    }

    fn insert(&mut self, name: Name, cached: Cached) {
        if self.young.len() >= CACHE_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name, cached);
    }
}
