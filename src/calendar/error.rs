//! Why a rule is refused, in a closed set of codes.
//!
//! Callers: everything in `calendar` builds them; HTTP, CLI and crontab import show them as they
//! are.
//! Invariant: a detail names the field, the character where there is one, and the fix.

use std::fmt;

/// One thing wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// JSON pointer below the rule, such as `/cron`.
    pub pointer: String,
    /// One of [`CODES`].
    pub code: &'static str,
    /// For people: what is wrong, where, and what to write instead.
    pub detail: String,
}

impl RuleError {
    /// An error at `pointer`.
    pub(crate) fn new(pointer: impl Into<String>, code: Code, detail: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            code: code.as_str(),
            detail: detail.into(),
        }
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.pointer, self.detail)
    }
}

impl std::error::Error for RuleError {}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        /// The codes, as an enum so that none is misspelt.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            /// The code as shown to clients.
            pub(crate) const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }

        /// Every code that a [`RuleError`] can carry.
        pub const CODES: &[&str] = &[$($text,)*];
    };
}

codes! {
    /// Text that is not an expression of the dialect.
    Syntax => "cron_syntax",
    /// A character that no dialect knows.
    Character => "cron_character",
    /// Too many or too few fields for the dialect.
    FieldCount => "cron_field_count",
    /// A value outside its field.
    OutOfRange => "cron_out_of_range",
    /// A step larger than its field.
    StepTooLarge => "cron_step_too_large",
    /// Text longer than the bound.
    TooLong => "rule_too_long",
    /// An expression that two dialects read differently.
    AmbiguousDialect => "dialect_ambiguous",
    /// The rule has no occurrence at any time.
    NoFutureOccurrence => "no_future_occurrence",
    /// A zone name that the release does not hold.
    UnknownZone => "time_zone_unknown",
    /// Two different zones for one rule.
    ZoneConflict => "time_zone_conflict",
    /// A zone whose data cannot be read.
    BrokenZone => "time_zone_unreadable",
    /// A known notation that this build does not read.
    Unsupported => "rule_unsupported",
    /// An interval or another length outside its bounds.
    Length => "duration_out_of_range",
    /// Text that is no instant or local time.
    InstantSyntax => "instant_syntax",
    /// An instant or year outside 1970 to 2199.
    Horizon => "instant_out_of_range",
    /// Text that is no ISO 8601 repeating interval.
    RepeatSyntax => "iso8601_syntax",
    /// Text that is no RFC 5545 recurrence.
    RruleSyntax => "rrule_syntax",
    /// More list entries than allowed.
    TooMany => "rule_too_many",
    /// A calendar name that the tenant does not have.
    UnknownCalendar => "calendar_unknown",
}
