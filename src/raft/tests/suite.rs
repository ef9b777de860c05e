//! The Raft library's own suite for storage, on our log stores and the machine adapter.

use std::sync::Arc;

use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use openraft_rt_tokio::TokioRuntime;

use super::machine::TestMachine;
use crate::raft::log::LogAdapter;
use crate::raft::machine::MachineAdapter;
use crate::raft::types::Types;
use crate::store::MemStore;
use crate::store::log::mem::{InstantSync, MemDisk, MemLog};

type C = Types<TokioRuntime>;
type Log = LogAdapter<TokioRuntime>;
type State = MachineAdapter<TokioRuntime>;

fn machine() -> State {
    MachineAdapter::new(TestMachine::open(Arc::new(MemStore::new())))
}

struct InMemory;

impl StoreBuilder<C, Log, State, ()> for InMemory {
    async fn build(&self) -> Result<((), Log, State), StorageError<C>> {
        let log = MemLog::open(&MemDisk::new(), Arc::new(InstantSync));
        Ok(((), LogAdapter::new(Arc::new(log)), machine()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_in_memory_passes_the_librarys_suite() -> Result<(), StorageError<C>> {
    Suite::test_all(InMemory).await
}

#[cfg(feature = "rocks")]
mod on_disk {
    use openraft::type_config::TypeConfigExt;

    use super::*;
    use crate::fault::Fault;
    use crate::store::log::rocks::RocksLog;

    struct OnDisk;

    impl StoreBuilder<C, Log, State, tempfile::TempDir> for OnDisk {
        async fn build(&self) -> Result<(tempfile::TempDir, Log, State), StorageError<C>> {
            let failed = |fault: Fault| StorageError::read(C::err_from_string(fault.to_string()));
            let dir = tempfile::tempdir().map_err(|e| failed(Fault::storage("test", e)))?;
            let log = RocksLog::open(dir.path(), false).map_err(failed)?;
            Ok((dir, LogAdapter::new(Arc::new(log)), machine()))
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn log_on_disk_passes_the_librarys_suite() -> Result<(), StorageError<C>> {
        Suite::test_all(OnDisk).await
    }
}
