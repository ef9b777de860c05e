//! Who a data directory belongs to.
//!
//! Purpose: keep a node from starting with another node's data or in another cluster.
//! Callers: `node`, at start.
//! Invariants: written once, before anything else in the directory; never changed.

use std::fmt::Write as _;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::durable;
use crate::fault::Fault;

/// The name of a cluster and of a node in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's id: letters, digits, `-` and `_`, at most 64.
    pub cluster: String,
    /// The node's id, from 1.
    pub node: u64,
}

const HEAD: &str = "punctual identity 1";

fn render(identity: &Identity) -> String {
    let mut text = format!(
        "{HEAD}\ncluster {}\nnode {}\n",
        identity.cluster, identity.node
    );
    let sum = xxh3_64(text.as_bytes());
    // Writing to a string cannot fail.
    let _infallible = writeln!(text, "checksum {sum:016x}");
    text
}

impl Identity {
    /// Whether the names are of the form that this file and the peer protocol carry.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        self.node > 0 && (1..=64).contains(&self.cluster.len()) && self.cluster.chars().all(plain)
    }

    /// Reads the identity of `directory`; `None` if it has none yet.
    ///
    /// # Errors
    /// [`Fault::Corrupt`], [`Fault::UnknownFormat`], [`Fault::Storage`].
    pub fn read(directory: &Path) -> Result<Option<Self>, Fault> {
        let path = directory.join("identity");
        let Some(bytes) = durable::read(&path)? else {
            return Ok(None);
        };
        let corrupt = || Fault::corrupt(format!("{} is damaged", path.display()));
        let text = String::from_utf8(bytes).map_err(|_| corrupt())?;
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return Err(Fault::UnknownFormat(path.display().to_string()));
        }
        let cluster = lines.next().and_then(|l| l.strip_prefix("cluster "));
        let node = lines.next().and_then(|l| l.strip_prefix("node "));
        let node = node.and_then(|n| n.parse().ok());
        let (Some(cluster), Some(node)) = (cluster, node) else {
            return Err(corrupt());
        };
        let identity = Self {
            cluster: cluster.to_owned(),
            node,
        };
        if render(&identity) != text {
            return Err(corrupt());
        }
        Ok(Some(identity))
    }

    /// Writes this identity into `directory`, or confirms that it is already there.
    ///
    /// # Errors
    /// [`Fault::Invariant`] when the directory belongs to somebody else, naming both.
    pub fn claim(&self, directory: &Path) -> Result<(), Fault> {
        if !self.is_plain() {
            return Err(Fault::invariant(format!("unusable identity {self:?}")));
        }
        match Self::read(directory)? {
            Some(present) if present == *self => Ok(()),
            Some(present) => Err(Fault::invariant(format!(
                "{} belongs to node {} of cluster {}, not to node {} of cluster {}",
                directory.display(),
                present.node,
                present.cluster,
                self.node,
                self.cluster
            ))),
            None => durable::replace(&directory.join("identity"), render(self).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(error: std::io::Error) -> Fault {
        Fault::storage("test directory", error)
    }

    fn identity(node: u64) -> Identity {
        Identity {
            cluster: "demo".into(),
            node,
        }
    }

    #[test]
    fn directory_is_claimed_once() -> Result<(), Fault> {
        let dir = tempfile::tempdir().map_err(fault)?;
        assert_eq!(Identity::read(dir.path())?, None);
        identity(2).claim(dir.path())?;
        identity(2).claim(dir.path())?;
        assert_eq!(Identity::read(dir.path())?, Some(identity(2)));
        let other = identity(3).claim(dir.path());
        assert!(other.is_err_and(|f| f.to_string().contains("belongs to node 2")));
        Ok(())
    }

    #[test]
    fn edited_file_and_odd_names_are_refused() -> Result<(), Fault> {
        let dir = tempfile::tempdir().map_err(fault)?;
        identity(2).claim(dir.path())?;
        let path = dir.path().join("identity");
        let text = std::fs::read_to_string(&path).map_err(fault)?;
        std::fs::write(&path, text.replace("node 2", "node 3")).map_err(fault)?;
        assert!(Identity::read(dir.path()).is_err());
        assert!(identity(0).claim(dir.path()).is_err());
        let spaced = Identity {
            cluster: "a b".into(),
            node: 1,
        };
        assert!(!spaced.is_plain());
        Ok(())
    }
}
