//! The log store as the Raft library wants it.
//!
//! Purpose: adapt [`LogStore`] without adding state of its own.
//! Callers: the Raft library.
//! Invariants: order is that of the calls; nothing is acknowledged before the store says it is synced; reads are bounded
//! by bytes wherever the library allows (the whole-range read is cut for apply and replication).

use std::fmt::Debug;
use std::io;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use futures::{Stream, stream};
use openraft::OptionalSend;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};

use super::runtime::NodeRuntime;
use super::types::{
    EntryId, RaftEntryOf, RaftVoteOf, Types, from_position, from_record, from_vote, io_error,
    to_position, to_record, to_vote,
};
use crate::store::log::{LogStore, LogWrite};

/// Most bytes of entries in one read: bounds an append RPC and one step of apply.
pub(super) const READ_BYTES_MAX: u64 = 4 * 1024 * 1024 - 64 * 1024;

/// The adapter; clones share the store.
pub(super) struct LogAdapter<R> {
    store: Arc<dyn LogStore>,
    runtime: PhantomData<fn() -> R>,
}

impl<R> Clone for LogAdapter<R> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.store))
    }
}

impl<R> LogAdapter<R> {
    pub(super) fn new(store: Arc<dyn LogStore>) -> Self {
        Self {
            store,
            runtime: PhantomData,
        }
    }
}

impl<R: NodeRuntime> LogAdapter<R> {
    fn read(&self, from: u64, to: u64, max_bytes: u64) -> io::Result<Vec<RaftEntryOf>> {
        let records = self
            .store
            .read(from, to, max_bytes)
            .map_err(|f| io_error(&f))?;
        records
            .into_iter()
            .map(|record| from_record(record).map_err(|f| io_error(&f)))
            .collect()
    }

    async fn write_and_sync(&self, write: LogWrite) -> io::Result<()> {
        let (tx, rx) = tokio::sync::oneshot::channel();
        self.store
            .submit(
                write,
                Box::new(move |outcome| {
                    let _caller_gone = tx.send(outcome);
                }),
            )
            .map_err(|f| io_error(&f))?;
        match rx.await {
            Ok(outcome) => outcome.map_err(|f| io_error(&f)),
            Err(_) => Err(io::Error::other("the log was closed")),
        }
    }
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(index) => *index,
        Bound::Excluded(index) => index.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(index) => index.saturating_add(1),
        Bound::Excluded(index) => *index,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}

impl<R: NodeRuntime> RaftLogReader<Types<R>> for LogAdapter<R> {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<RaftEntryOf>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        self.read(from, to, u64::MAX)
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> io::Result<Vec<RaftEntryOf>> {
        self.read(start, end, READ_BYTES_MAX)
    }

    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = io::Result<RaftEntryOf>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        let adapter = self.clone();
        let chunks = stream::unfold(Some(from), move |at| {
            let adapter = adapter.clone();
            async move {
                let from = at.filter(|from| *from < to)?;
                match adapter.read(from, to, READ_BYTES_MAX) {
                    Ok(entries) => {
                        let next = entries.last().map(|e| e.log_id.index().saturating_add(1));
                        let items: Vec<_> = entries.into_iter().map(Ok).collect();
                        Some((stream::iter(items), next))
                    }
                    Err(error) => Some((stream::iter(vec![Err(error)]), None)),
                }
            }
        });
        Box::pin(futures::StreamExt::flatten(chunks))
    }

    async fn read_vote(&mut self) -> io::Result<Option<RaftVoteOf>> {
        let status = self.store.status().map_err(|f| io_error(&f))?;
        Ok(status.vote.map(|vote| from_vote(&vote)))
    }
}

impl<R: NodeRuntime> RaftLogStorage<Types<R>> for LogAdapter<R> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types<R>>> {
        let status = self.store.status().map_err(|f| io_error(&f))?;
        Ok(LogState {
            last_purged_log_id: status.purged.map(|p| from_position(&p)),
            last_log_id: status.last.map(|p| from_position(&p)),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &RaftVoteOf) -> io::Result<()> {
        self.write_and_sync(LogWrite::Vote(to_vote(vote))).await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types<R>>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftEntryOf> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let records = entries.into_iter().map(to_record).collect();
        self.store
            .submit(
                LogWrite::Append(records),
                Box::new(move |outcome| {
                    callback.io_completed(outcome.map_err(|f| io_error(&f)));
                }),
            )
            .map_err(|f| io_error(&f))
    }

    // Truncate and purge need no sync of their own: they stand before the next vote or append in the one stream, so
    // whatever is acknowledged later implies them.
    async fn truncate_after(&mut self, last: Option<EntryId>) -> io::Result<()> {
        let after = last.map(|id| id.index());
        self.store
            .submit(LogWrite::TruncateAfter(after), Box::new(|_| {}))
            .map_err(|f| io_error(&f))
    }

    async fn purge(&mut self, upto: EntryId) -> io::Result<()> {
        self.store
            .submit(LogWrite::Purge(to_position(&upto)), Box::new(|_| {}))
            .map_err(|f| io_error(&f))
    }
}
