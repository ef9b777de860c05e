//! Images as files: RocksDB checkpoints out, stagings in.
//!
//! Purpose: send a consistent image while writes go on, and put one together until it may replace
//! the content.
//! Callers: `store::rocks` only.
//! Invariant: a checkpoint costs hard links, not copies, and is gone with its last user; a staging
//! is a complete, synced, opened instance before it can be installed.

use std::any::Any;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use super::directory::{Directory, io_fault, sync_dir};
use super::instance::{Instance, fault};
use super::listing;
use super::options::RocksMemory;
use crate::fault::Fault;
use crate::store::{Checkpoint, CheckpointFile, Staging, View, is_plain_file_name};

/// Files that describe the sender's options; the receiver has its own.
const SETTINGS: &str = "OPTIONS-";

/// Hard links to the files of one moment.
pub(super) struct RocksCheckpoint {
    directory: Arc<Directory>,
    files: Vec<CheckpointFile>,
    memory: RocksMemory,
}

impl RocksCheckpoint {
    /// Links `instance` as it is now into `directory`, which must not exist. Flushes first: without
    /// a write-ahead log only flushed rows are in files.
    pub(super) fn take(
        instance: &Instance,
        directory: Arc<Directory>,
        memory: &RocksMemory,
    ) -> Result<Self, Fault> {
        let path = directory.path();
        rocksdb::checkpoint::Checkpoint::new(instance.db())
            .and_then(|engine| engine.create_checkpoint(path))
            .map_err(|e| fault(format!("checkpoint to {}", path.display()), e))?;
        remove_settings(path).map_err(|e| io_fault("clean", path, e))?;
        listing::write(path)?;
        let files = list(&directory)?;
        Ok(Self {
            directory,
            files,
            memory: memory.clone(),
        })
    }
}

fn remove_settings(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(SETTINGS) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn list(directory: &Directory) -> Result<Vec<CheckpointFile>, Fault> {
    let path = directory.path();
    let list = || {
        let mut files = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let name = entry.file_name().into_string();
            let name = name.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
            let len = entry.metadata()?.len();
            files.push(CheckpointFile { name, len });
        }
        Ok(files)
    };
    let mut files = list().map_err(|e| io_fault("list", path, e))?;
    files.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

impl Checkpoint for RocksCheckpoint {
    fn files(&self) -> &[CheckpointFile] {
        &self.files
    }

    fn read(&self, name: &str, offset: u64, len: usize) -> Result<Vec<u8>, Fault> {
        let path = self.directory.path().join(name);
        let file = self
            .files
            .binary_search_by(|file| file.name.as_str().cmp(name));
        let Some(file) = file.ok().and_then(|place| self.files.get(place)) else {
            let missing = io::Error::from(io::ErrorKind::NotFound);
            return Err(io_fault("read", &path, missing));
        };
        let left = usize::try_from(file.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; len.min(left)];
        let mut read = || {
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(offset))?;
            file.read_exact(&mut bytes)
        };
        read().map_err(|e| io_fault("read", &path, e))?;
        Ok(bytes)
    }

    fn view(&self) -> Result<Arc<dyn View>, Fault> {
        let directory = Arc::clone(&self.directory);
        Ok(Arc::new(Instance::open_read_only(directory, &self.memory)?))
    }
}

/// Received files in the directory of the next generation.
pub(super) struct RocksStaging {
    /// The generation it becomes.
    pub(super) number: u64,
    /// The instance, once sealed.
    pub(super) sealed: Option<Arc<Instance>>,
    /// The file being appended to.
    open: Option<(String, File)>,
    directory: Arc<Directory>,
    memory: RocksMemory,
}

impl RocksStaging {
    /// An empty staging in `directory`, which must not exist and goes with the staging.
    pub(super) fn new(
        number: u64,
        directory: Arc<Directory>,
        memory: &RocksMemory,
    ) -> Result<Self, Fault> {
        let path = directory.path();
        fs::create_dir(path).map_err(|e| io_fault("create", path, e))?;
        Ok(Self {
            number,
            sealed: None,
            open: None,
            directory,
            memory: memory.clone(),
        })
    }

    /// Syncs and closes the file being appended to.
    fn close_file(&mut self) -> Result<(), Fault> {
        if let Some((name, file)) = self.open.take() {
            let path = self.directory.path().join(name);
            file.sync_all().map_err(|e| io_fault("sync", &path, e))?;
        }
        Ok(())
    }
}

impl Staging for RocksStaging {
    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), Fault> {
        if !is_plain_file_name(name) {
            return Err(Fault::corrupt(format!("{name:?} is no plain file name")));
        }
        if self.sealed.is_some() {
            return Err(Fault::invariant("nothing is appended to a sealed staging"));
        }
        if self.open.as_ref().is_none_or(|(open, _)| open != name) {
            self.close_file()?;
        }
        let path = self.directory.path().join(name);
        let doing = |e| io_fault("append to", &path, e);
        let mut file = match self.open.take() {
            Some((_, file)) => file,
            None => OpenOptions::new()
                .create(true)
                .append(true)
                .open(&path)
                .map_err(doing)?,
        };
        file.write_all(bytes).map_err(doing)?;
        self.open = Some((name.to_owned(), file));
        Ok(())
    }

    fn seal(&mut self) -> Result<Arc<dyn View>, Fault> {
        self.close_file()?;
        listing::verify_and_remove(self.directory.path())?;
        sync_dir(self.directory.path())?;
        let directory = Arc::clone(&self.directory);
        let instance = Arc::new(Instance::open(directory, &self.memory)?);
        self.sealed = Some(Arc::clone(&instance));
        Ok(instance)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
