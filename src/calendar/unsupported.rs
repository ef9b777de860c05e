//! The one list of notations that are known and refused.
//!
//! Purpose: a reader of another scheduler's documentation gets told what to write here, instead of
//! a syntax error. Callers: `cron::parse`, `compiled`, `instant`.
//! Invariant: nothing is refused as `rule_unsupported` that is not in [`Feature::ALL`].

use super::error::{Code, RuleError};

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident: $what:literal, $instead:literal;)*) => {
        /// A notation that is recognised but not read.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Feature { $($(#[$doc])* $name,)* }

        impl Feature {
            /// Every refused notation.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// What it is, for people.
            #[must_use]
            pub const fn what(self) -> &'static str {
                match self { $(Self::$name => $what,)* }
            }

            /// What to write instead.
            #[must_use]
            pub const fn instead(self) -> &'static str {
                match self { $(Self::$name => $instead,)* }
            }
        }
    };
}

features! {
    /// `@reboot`.
    Reboot: "@reboot is not a time", "start such work from the machine's own init system";
    /// `@every 10m`.
    EveryAlias: "@every is an interval, not a cron expression", "write \"every\": \"10m\" in the rule";
    /// `rate(5 minutes)`.
    Rate: "rate(…) is an interval, not a cron expression", "write \"every\": \"5m\" in the rule";
    /// `0~30`.
    RandomRange: "a range with ~ draws a random value",
        "write H(0-30), which picks one stable value from the schedule's id";
    /// `Mon *-*-* 09:00`, `hourly`.
    OnCalendar: "this is a systemd OnCalendar expression",
        "write the same times as cron fields, for hourly @hourly or 0 * * * *";
    /// `L-3W`.
    NearestToLast: "the weekday nearest to a day before the last is not supported",
        "write LW for the last weekday, or nW for a fixed day";
    /// `EXRULE`.
    ExRule: "EXRULE was dropped from RFC 5545", "list the dates in EXDATE or exclude_dates";
    /// `BYEASTER`, `RSCALE`, `SKIP`.
    RruleExtension: "BYEASTER, RSCALE and SKIP are extensions of RFC 5545",
        "use the rule parts of RFC 5545 itself";
    /// `FREQ=HOURLY;BYSETPOS=1`.
    ShortSetPos: "BYSETPOS with a FREQ below DAILY is not supported",
        "name the minutes and seconds with BYMINUTE and BYSECOND";
    /// A named calendar where none can be resolved.
    NamedCalendars: "named calendars are not supported here",
        "list the dates in exclude_dates";
}

impl Feature {
    /// The refusal, at a pointer below the rule.
    pub(crate) fn refuse(self, pointer: &str) -> RuleError {
        let detail = format!("{}: {}", self.what(), self.instead());
        RuleError::new(pointer, Code::Unsupported, detail)
    }
}
