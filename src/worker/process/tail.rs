//! The end of a child's output, bounded.

use std::collections::VecDeque;

/// Bytes of output that are kept.
pub const TAIL_MAX: usize = 16 << 10;
/// Bytes that the kept text may take as JSON, so that an error with it stays within the bound of an error (16 KiB).
const JSON_MAX: usize = 14 << 10;

/// Takes output as it comes and keeps the end.
#[derive(Debug, Default)]
pub(super) struct Tail {
    bytes: VecDeque<u8>,
    truncated: bool,
}

/// Output as it is kept with an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Text; bytes that are no UTF-8 are replaced.
    pub text: String,
    /// Something in front of it was cut.
    pub truncated: bool,
}

impl Output {
    /// The last line that is not blank, shortened; for a one-line reason.
    pub(super) fn last_line(&self) -> String {
        let line = self.text.lines().rev().find(|l| !l.trim().is_empty());
        line.unwrap_or_default().trim().chars().take(200).collect()
    }
}

impl Tail {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let keep = bytes.len().min(TAIL_MAX);
        let (dropped, kept) = bytes.split_at(bytes.len() - keep);
        self.bytes.extend(kept);
        let over = self.bytes.len().saturating_sub(TAIL_MAX);
        self.bytes.drain(..over);
        self.truncated |= over > 0 || !dropped.is_empty();
    }

    /// The text; it begins at a letter and fits as JSON.
    pub(super) fn output(&self) -> Output {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        // A cut may have gone through a letter: its rest (at most three bytes) is no letter of the output.
        let broken = bytes
            .iter()
            .take(3)
            .take_while(|b| (**b & 0xC0) == 0x80)
            .count();
        let start = if self.truncated { broken } else { 0 };
        let text = String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).into_owned();
        let mut budget = JSON_MAX;
        let mut from = text.len();
        for (at, c) in text.char_indices().rev() {
            let Some(left) = budget.checked_sub(json_len(c)) else {
                break;
            };
            budget = left;
            from = at;
        }
        Output {
            truncated: self.truncated || from > 0,
            text: text.get(from..).unwrap_or_default().to_owned(),
        }
    }
}

/// Bytes of a letter inside a JSON string.
const fn json_len(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        c => c.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(pieces: &[&[u8]]) -> Output {
        let mut tail = Tail::default();
        for piece in pieces {
            tail.push(piece);
        }
        tail.output()
    }

    #[test]
    fn short_output_is_kept_whole() {
        let out = tail(&[b"one\n", b"two\n\n"]);
        assert_eq!(out.text, "one\ntwo\n\n");
        assert!(!out.truncated);
        assert_eq!(out.last_line(), "two");
    }

    #[test]
    fn of_long_output_the_end_is_kept_and_marked() {
        let long = vec![b'a'; 3 * TAIL_MAX];
        let out = tail(&[&long, b"END"]);
        assert!(out.truncated && out.text.ends_with("aEND"));
        assert_eq!(out.text.len(), JSON_MAX);
        assert!(tail(&[&vec![b'x'; TAIL_MAX + 1]]).truncated);
    }

    #[test]
    fn text_fits_as_json_whatever_it_holds() {
        for byte in [0u8, b'"', b'\n', 0xff, b'z'] {
            let out = tail(&[&vec![byte; TAIL_MAX]]);
            let json = serde_json::to_string(&out.text).unwrap();
            assert!(json.len() <= JSON_MAX + 2, "{byte}: {}", json.len());
            assert!(json.len() > JSON_MAX - 8, "{byte}: {}", json.len());
        }
    }

    #[test]
    fn a_cut_letter_leaves_no_debris() {
        let mut text = "é".repeat(TAIL_MAX / 2 + 5).into_bytes();
        text.push(b'!');
        let out = tail(&[&text]);
        assert!(
            out.text.starts_with('é') && out.text.ends_with('!'),
            "{:?}",
            &out.text[..9]
        );
        assert!(tail(&[b"a\xffb"]).text == "a\u{fffd}b");
    }
}
