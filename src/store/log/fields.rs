//! Little-endian fields one after another: the frame of every log record and peer message.
//!
//! Purpose: a writer and a reader that never panic and never allocate more than the input holds.
//! Callers: `store::log`, `raft`.
//! Invariants: [`Reader`] answers [`Fault::Corrupt`] for anything short, long or out of range.

use bytes::Bytes;

use crate::fault::Fault;

/// Appends fields to a buffer.
#[derive(Debug, Default)]
pub struct Writer {
    buffer: Vec<u8>,
}

impl Writer {
    /// An empty buffer with room for `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            buffer: Vec::with_capacity(capacity),
        }
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.buffer.push(value);
    }

    /// Zero or one.
    pub fn bool(&mut self, value: bool) {
        self.buffer.push(u8::from(value));
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) {
        self.buffer.extend_from_slice(&value.to_le_bytes());
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.buffer.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.buffer.extend_from_slice(&value.to_le_bytes());
    }

    /// A count, as four bytes; saturates, so that the reader refuses what does not fit.
    pub fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Length and bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.buffer.extend_from_slice(bytes);
    }

    /// Length and UTF-8 bytes.
    pub fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// What was written so far.
    #[must_use]
    pub fn written(&self) -> &[u8] {
        &self.buffer
    }

    /// The finished buffer.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.buffer
    }
}

/// Takes fields from a buffer without copying what they carry.
#[derive(Clone, Debug)]
pub struct Reader {
    rest: Bytes,
    what: &'static str,
}

impl Reader {
    /// Reads `input`; `what` names it in errors.
    #[must_use]
    pub fn new(input: Bytes, what: &'static str) -> Self {
        Self { rest: input, what }
    }

    fn short(&self) -> Fault {
        Fault::corrupt(format!("{}: ends too early", self.what))
    }

    /// An error that names the input.
    #[must_use]
    pub fn bad(&self, why: &str) -> Fault {
        Fault::corrupt(format!("{}: {why}", self.what))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let head = self
            .rest
            .first_chunk::<N>()
            .copied()
            .ok_or_else(|| self.short())?;
        self.rest = self.rest.slice(N..);
        Ok(head)
    }

    /// One byte.
    ///
    /// # Errors
    /// [`Fault::Corrupt`], as every method here.
    pub fn u8(&mut self) -> Result<u8, Fault> {
        self.take::<1>().map(u8::from_le_bytes)
    }

    /// Zero or one, nothing else.
    ///
    /// # Errors
    /// [`Fault::Corrupt`].
    pub fn bool(&mut self) -> Result<bool, Fault> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.bad("a flag is neither 0 nor 1")),
        }
    }

    /// Two bytes.
    ///
    /// # Errors
    /// [`Fault::Corrupt`].
    pub fn u16(&mut self) -> Result<u16, Fault> {
        self.take::<2>().map(u16::from_le_bytes)
    }

    /// Four bytes.
    ///
    /// # Errors
    /// [`Fault::Corrupt`].
    pub fn u32(&mut self) -> Result<u32, Fault> {
        self.take::<4>().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// [`Fault::Corrupt`].
    pub fn u64(&mut self) -> Result<u64, Fault> {
        self.take::<8>().map(u64::from_le_bytes)
    }

    /// A count of items that take at least `item_min` bytes each, so that a lie cannot reserve memory.
    ///
    /// # Errors
    /// [`Fault::Corrupt`].
    pub fn count(&mut self, item_min: usize) -> Result<usize, Fault> {
        let count = self.u32()? as usize;
        if count.saturating_mul(item_min) > self.rest.len() {
            return Err(self.short());
        }
        Ok(count)
    }

    /// Length and bytes, sharing the input's memory.
    ///
    /// # Errors
    /// [`Fault::Corrupt`].
    pub fn bytes(&mut self) -> Result<Bytes, Fault> {
        let len = self.count(1)?;
        let bytes = self.rest.slice(..len);
        self.rest = self.rest.slice(len..);
        Ok(bytes)
    }

    /// Length and UTF-8 bytes.
    ///
    /// # Errors
    /// [`Fault::Corrupt`].
    pub fn text(&mut self) -> Result<String, Fault> {
        let bytes = self.bytes()?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.bad("text is not UTF-8"))
    }

    /// Bytes not read yet.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Everything not read yet.
    #[must_use]
    pub fn into_rest(self) -> Bytes {
        self.rest
    }

    /// Refuses trailing bytes.
    ///
    /// # Errors
    /// [`Fault::Corrupt`].
    pub fn end(self) -> Result<(), Fault> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(self.bad("has trailing bytes"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_as_written() -> Result<(), Fault> {
        let mut w = Writer::default();
        w.u8(7);
        w.bool(true);
        w.u16(300);
        w.u32(70_000);
        w.u64(u64::MAX);
        w.bytes(b"abc");
        w.text("é");
        let mut r = Reader::new(Bytes::from(w.finish()), "test");
        assert_eq!(r.u8()?, 7);
        assert!(r.bool()?);
        assert_eq!(r.u16()?, 300);
        assert_eq!(r.u32()?, 70_000);
        assert_eq!(r.u64()?, u64::MAX);
        assert_eq!(r.bytes()?, Bytes::from_static(b"abc"));
        assert_eq!(r.text()?, "é");
        r.end()
    }

    #[test]
    fn short_and_lying_input_is_refused() {
        let mut r = Reader::new(Bytes::from_static(&[1, 0, 0]), "test");
        assert!(r.u32().is_err());
        let mut r = Reader::new(Bytes::from_static(&[255, 255, 255, 255, 1]), "test");
        assert!(r.bytes().is_err());
        let mut r = Reader::new(Bytes::from_static(&[2]), "test");
        assert!(r.bool().is_err());
        assert!(Reader::new(Bytes::from_static(&[0]), "test").end().is_err());
    }
}
