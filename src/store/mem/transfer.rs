//! Images as files: what a checkpoint in memory hands out and a staging takes in.
//!
//! Purpose: give snapshot transfer in tests and simulation real files (several, of different sizes,
//! checked when read back), so that a torn or mixed-up transfer is seen.
//! Callers: `store::mem` only.
//! Format of a file `<family>.rows`: rows as key length (u32), value length (u32), key, value; then
//! the number of rows (u64) and the XXH3 sum of everything before the sum (u64). Integers are
//! little-endian.

use std::collections::BTreeMap;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::image::{Bytes, Image, Rows};
use crate::fault::Fault;
use crate::store::{Checkpoint, CheckpointFile, Family, PerFamily, View};

/// A checkpoint of a [`MemStore`](super::MemStore): one file for each family, encoded when it is
/// taken.
pub(super) struct MemCheckpoint {
    image: Image,
    files: Vec<CheckpointFile>,
    contents: BTreeMap<String, Vec<u8>>,
}

impl MemCheckpoint {
    pub(super) fn new(image: Image) -> Result<Self, Fault> {
        let mut contents = BTreeMap::new();
        for family in Family::ALL {
            contents.insert(file_name(family), encode(image.rows(family))?);
        }
        let files = contents
            .iter()
            .map(|(name, bytes)| CheckpointFile {
                name: name.clone(),
                len: bytes.len() as u64,
            })
            .collect();
        Ok(Self {
            image,
            files,
            contents,
        })
    }
}

impl Checkpoint for MemCheckpoint {
    fn files(&self) -> &[CheckpointFile] {
        &self.files
    }

    fn read(&self, name: &str, offset: u64, len: usize) -> Result<Vec<u8>, Fault> {
        let bytes = self.contents.get(name).ok_or_else(|| {
            let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
            Fault::storage(format!("read checkpoint file {name}"), missing)
        })?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = bytes.get(start..).unwrap_or_default();
        Ok(rest.get(..len).unwrap_or(rest).to_vec())
    }

    fn view(&self) -> Result<Arc<dyn View>, Fault> {
        Ok(Arc::new(self.image.clone()))
    }
}

/// The image that `files` hold: every family's file, each whole, and nothing else.
pub(super) fn decode_all(files: &BTreeMap<String, Vec<u8>>) -> Result<Image, Fault> {
    if files.len() != Family::COUNT {
        let count = files.len();
        return Err(Fault::corrupt(format!("staging holds {count} files")));
    }
    let rows = PerFamily::try_build(|family| {
        let name = file_name(family);
        let bytes = files
            .get(&name)
            .ok_or_else(|| Fault::corrupt(format!("staging lacks {name}")))?;
        decode(bytes).ok_or_else(|| Fault::corrupt(format!("staged file {name} is damaged")))
    })?;
    let mut image = Image::default();
    for (family, rows) in rows {
        *image.rows_mut(family) = rows;
    }
    Ok(image)
}

fn file_name(family: Family) -> String {
    format!("{}.rows", family.name())
}

fn encode(rows: &Rows) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    for (key, value) in rows {
        for part in [key, value] {
            let len = u32::try_from(part.len())
                .map_err(|_| Fault::invariant("a stored key or value is under 4 GiB"))?;
            bytes.extend(len.to_le_bytes());
        }
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
    }
    bytes.extend((rows.len() as u64).to_le_bytes());
    bytes.extend(xxh3_64(&bytes).to_le_bytes());
    Ok(bytes)
}

fn decode(bytes: &[u8]) -> Option<Rows> {
    let (bytes, sum) = bytes.split_last_chunk()?;
    if xxh3_64(bytes) != u64::from_le_bytes(*sum) {
        return None;
    }
    let (mut bytes, count) = bytes.split_last_chunk()?;
    let mut rows = Rows::new();
    while !bytes.is_empty() {
        let (key_len, rest) = bytes.split_first_chunk()?;
        let (value_len, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_at_checked(u32::from_le_bytes(*key_len) as usize)?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value_len) as usize)?;
        rows.insert(Bytes::from(key), Bytes::from(value));
        bytes = rest;
    }
    (rows.len() as u64 == u64::from_le_bytes(*count)).then_some(rows)
}
