//! The data directory, held by one process.
//!
//! Purpose: two processes on one directory would corrupt it; the lock dies with its process, however that ends.
//! Callers: `node` at start. The lock file is `<data_dir>/LOCK`; its content (a process id) is for people only.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

/// A locked data directory; unlocked when dropped.
pub struct DataDir {
    path: PathBuf,
    _lock: Flock<File>,
}

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// It cannot be made or opened.
    #[error("data directory {path}: {source}; check that it exists and belongs to this user")]
    Unusable {
        /// Which.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// Another process has it.
    #[error(
        "data directory {path} is in use by another process (pid {holder}); stop it first, or use another --data-dir"
    )]
    InUse {
        /// Which.
        path: PathBuf,
        /// Who, as far as its lock file says.
        holder: String,
    },
}

impl DataDir {
    /// Makes the directory if it does not exist (readable by this user only) and locks it.
    ///
    /// # Errors
    /// [`DataDirError`].
    pub fn lock(path: &Path) -> Result<Self, DataDirError> {
        let unusable = |source| DataDirError::Unusable {
            path: path.to_owned(),
            source,
        };
        let fresh = !path.exists();
        fs::create_dir_all(path).map_err(unusable)?;
        if fresh {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(unusable)?;
        }
        let name = path.join("LOCK");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&name);
        let mut lock = match Flock::lock(file.map_err(unusable)?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                let holder = fs::read_to_string(&name).unwrap_or_default();
                let holder = holder.trim().to_owned();
                return Err(DataDirError::InUse {
                    path: path.to_owned(),
                    holder,
                });
            }
            Err((_, errno)) => return Err(unusable(errno.into())),
        };
        lock.set_len(0).map_err(unusable)?;
        writeln!(lock, "{}", std::process::id()).map_err(unusable)?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_refused_until_the_first_is_gone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("data");
        let first = DataDir::lock(&path).expect("the first");
        let second = DataDir::lock(&path).err().expect("refused").to_string();
        assert!(second.contains(&std::process::id().to_string()), "{second}");
        drop(first);
        assert!(DataDir::lock(&path).is_ok());
    }

    #[test]
    fn a_file_in_its_place_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("data");
        fs::write(&path, "x").expect("a file");
        let error = DataDir::lock(&path).err().expect("refused").to_string();
        assert!(error.contains("data"), "{error}");
    }
}
