//! Small files that are replaced as a whole.
//!
//! Purpose: write a file so that a crash at any moment leaves the old or the new content.
//! Callers: [`super::witness`], [`super::identity`], [`super::births`].

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

use crate::fault::Fault;

/// The content of `path`; `None` if there is no such file.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>, Fault> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Fault::storage(format!("read {}", path.display()), error)),
    }
}

/// Makes `bytes` the content of `path`, durable on return. The directory must exist.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Fault> {
    let step = |what: &str| format!("{what} {}", path.display());
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary).map_err(|e| Fault::storage(step("create"), e))?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(|e| Fault::storage(step("write"), e))?;
    fs::rename(&temporary, path).map_err(|e| Fault::storage(step("rename"), e))?;
    let parent = path.parent().unwrap_or(Path::new("."));
    File::open(parent)
        .and_then(|directory| directory.sync_all())
        .map_err(|e| Fault::storage(step("sync the directory of"), e))
}
