//! Exit codes: one table for the program, its help and its documentation.

use std::process::ExitCode;

macro_rules! codes {
    ($($name:ident = $number:literal, $about:literal;)*) => {
        /// How a command ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code { $(#[doc = $about] $name = $number,)* }

        /// Number and meaning of every code.
        pub const TABLE: &[(u8, &str)] = &[$(($number, $about),)*];

        impl Code {
            /// The number.
            #[must_use]
            pub const fn number(self) -> u8 {
                self as u8
            }
        }
    };
}

codes! {
    Ok = 0, "Done.";
    Failed = 1, "Refused, or failed in a way that has no code of its own.";
    Usage = 2, "The command line, a configuration file or an input file is wrong; nothing was sent.";
    NotFound = 3, "What was named does not exist.";
    Conflict = 4, "It exists already, was changed meanwhile, or is in a state that forbids this.";
    Unavailable = 5, "No server answered in time, or none could serve; the same command may work later.";
    Unsuccessful = 6, "The execution waited for ended, but not as succeeded; or lines of a crontab were refused.";
    StillOpen = 7, "The execution waited for was still open when the wait was over.";
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code.number())
    }
}

/// The table as text, for `--help`.
#[must_use]
pub fn table() -> String {
    let mut text = String::from("Exit codes:\n");
    for (number, about) in TABLE {
        text.push_str(&format!("  {number}  {about}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_in_order() {
        let numbers: Vec<_> = TABLE.iter().map(|(n, _)| *n).collect();
        assert_eq!(numbers, (0..8).collect::<Vec<u8>>());
        assert_eq!(Code::StillOpen.number(), 7);
    }

    #[test]
    fn the_table_in_the_documentation_is_this_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cli.md");
        let text = std::fs::read_to_string(path).unwrap();
        for (number, about) in TABLE {
            let row = format!("| {number} | {about} |");
            assert!(text.contains(&row), "docs/cli.md lacks: {row}");
        }
    }
}
