//! The fixed families of keys.
//!
//! Purpose: name the ten column families once, and hold one thing for each of them without hashing.
//! Callers: everything that touches the store.
//! Invariant: the numbers run from 0 without a gap, in the order of [`Family::ALL`] (a test says
//! so).

/// The fixed families (column families in RocksDB). Created once, never added or dropped while
/// running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Family {
    /// Singletons: applied position, membership, cluster settings, watermarks, tenants, queues,
    /// counters.
    Meta = 0,
    /// Hot records: schedules, open executions, live leases.
    Live = 1,
    /// Payloads over the inline bound.
    Body = 2,
    /// Ready lines and keyed (parked) lines.
    Lines = 3,
    /// Due within the hour at insert; bucket = one minute.
    DueMinute = 4,
    /// Due within two days at insert; bucket = one hour.
    DueHour = 5,
    /// Due within two months at insert; bucket = one day.
    DueDay = 6,
    /// Everything later; bucket = thirty days.
    DueFar = 7,
    /// Final executions and ledgers, by retention class and day.
    History = 8,
    /// Idempotency answers, chosen-id pointers, unique keys.
    Keys = 9,
}

impl Family {
    /// How many families there are.
    pub const COUNT: usize = 10;

    /// Every family, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Meta,
        Self::Live,
        Self::Body,
        Self::Lines,
        Self::DueMinute,
        Self::DueHour,
        Self::DueDay,
        Self::DueFar,
        Self::History,
        Self::Keys,
    ];

    /// The name on disk.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Live => "live",
            Self::Body => "body",
            Self::Lines => "lines",
            Self::DueMinute => "due_minute",
            Self::DueHour => "due_hour",
            Self::DueDay => "due_day",
            Self::DueFar => "due_far",
            Self::History => "history",
            Self::Keys => "keys",
        }
    }
}

/// One `T` for each family; iterated in family order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerFamily<T>([T; Family::COUNT]);

impl<T> PerFamily<T> {
    /// Builds each part from its family.
    ///
    /// # Errors
    /// The first error of `build`.
    pub fn try_build<E>(mut build: impl FnMut(Family) -> Result<T, E>) -> Result<Self, E> {
        let [a, b, c, d, e, f, g, h, i, j] = Family::ALL;
        Ok(Self([
            build(a)?,
            build(b)?,
            build(c)?,
            build(d)?,
            build(e)?,
            build(f)?,
            build(g)?,
            build(h)?,
            build(i)?,
            build(j)?,
        ]))
    }

    /// The part of `family`.
    #[must_use]
    pub const fn get(&self, family: Family) -> &T {
        // In bounds: the numbers of the families are 0..COUNT.
        &self.0[family as usize]
    }

    /// The part of `family`, to change.
    #[must_use]
    pub const fn get_mut(&mut self, family: Family) -> &mut T {
        &mut self.0[family as usize]
    }

    /// Each family with its part.
    pub fn iter(&self) -> impl Iterator<Item = (Family, &T)> {
        Family::ALL.into_iter().zip(&self.0)
    }
}

impl<T> IntoIterator for PerFamily<T> {
    type Item = (Family, T);
    type IntoIter = std::iter::Zip<
        std::array::IntoIter<Family, { Family::COUNT }>,
        std::array::IntoIter<T, { Family::COUNT }>,
    >;

    fn into_iter(self) -> Self::IntoIter {
        Family::ALL.into_iter().zip(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_run_from_zero_without_a_gap() {
        for (place, family) in Family::ALL.into_iter().enumerate() {
            assert_eq!(family as usize, place);
        }
    }

    #[test]
    fn names_are_distinct() {
        let names: std::collections::BTreeSet<_> = Family::ALL.map(Family::name).into();
        assert_eq!(names.len(), Family::COUNT);
    }

    #[test]
    fn parts_are_built_found_and_iterated_by_family() {
        let names = PerFamily::try_build(|f| Ok::<_, ()>(f.name())).unwrap();
        assert_eq!(*names.get(Family::DueFar), "due_far");
        assert!(names.iter().all(|(family, name)| family.name() == *name));
        assert!(
            names
                .into_iter()
                .all(|(family, name)| family.name() == name)
        );
    }
}
