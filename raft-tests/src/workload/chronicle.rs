//! A small workload for Raft alone: clients write, every node keeps a chain over what it applied.
//!
//! Purpose: find lost, doubled, reordered or diverging entries, with a state machine small enough to be right.
//! Callers: `main`.
//! Invariants checked besides those of [`crate::sim::observe`]: chains are equal on all nodes in the end; a linearizable
//! read sees every write acknowledged before it began.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use punctual::fault::Fault;
use punctual::raft::{Consensus, ForwardHandler, ProposeError, Role};
use punctual::state::machine::{Applied, CommittedEntry, EntryAnswer, Machine, Payload, Position};
use punctual::store::{Checkpoint, Family, MemStore, Staging, StateStore, View, WriteBatch};
use rand::RngExt;
use rand::rngs::SmallRng;
use tokio::time::{sleep, timeout};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::sim::observe::entry_hash;
use crate::sim::{NodeContext, Workload, World};

/// A run goes on until this many writes were acknowledged.
const ACKED_MIN: u64 = 220;
/// Rows kept, so that images have some size and deletions happen.
const ROWS: u64 = 200;
/// Writes between two flushes.
const FLUSH_EVERY: u64 = 40;

const HEAD: &[u8] = b"head";
const MEMBERS: &[u8] = b"members";

/// How far the chain goes and its value.
#[derive(Clone, Copy, Default)]
struct Head {
    position: Option<Position>,
    chain: u64,
}

/// The state machine: a chain of hashes over a memory store.
pub struct Chronicle {
    store: Arc<MemStore>,
    head: Mutex<Head>,
    durable: AtomicU64,
    since_flush: AtomicU64,
}

fn encode_head(head: &Head) -> Vec<u8> {
    let position = head.position.unwrap_or(Position {
        term: 0,
        leader: 0,
        index: u64::MAX,
    });
    [position.term, position.leader, position.index, head.chain]
        .iter()
        .flat_map(|n| n.to_le_bytes())
        .collect()
}

fn decode_head(bytes: &[u8]) -> Result<Head, Fault> {
    let numbers: Vec<u64> = bytes
        .chunks_exact(8)
        .filter_map(|c| c.try_into().ok().map(u64::from_le_bytes))
        .collect();
    let [term, leader, index, chain] = numbers[..] else {
        return Err(Fault::corrupt("head of the chronicle"));
    };
    let position = (index != u64::MAX).then_some(Position {
        term,
        leader,
        index,
    });
    Ok(Head { position, chain })
}

fn read_head(view: &dyn View) -> Result<Head, Fault> {
    match view.get(Family::Meta, HEAD)? {
        Some(bytes) => decode_head(&bytes),
        None => Ok(Head::default()),
    }
}

fn read_applied(view: &dyn View) -> Result<Applied, Fault> {
    let head = read_head(view)?;
    let membership = match view.get(Family::Meta, MEMBERS)? {
        None => None,
        Some(bytes) => {
            let (at, set) = bytes.split_at(32.min(bytes.len()));
            let position = decode_head(at)?.position;
            position.map(|p| (p, Bytes::copy_from_slice(set)))
        }
    };
    Ok(Applied {
        position: head.position,
        membership,
    })
}

impl Chronicle {
    fn open(store: Arc<MemStore>) -> Result<Self, Fault> {
        let head = read_head(store.as_ref())?;
        Ok(Self {
            durable: AtomicU64::new(head.position.map_or(0, |p| p.index)),
            head: Mutex::new(head),
            since_flush: AtomicU64::new(0),
            store,
        })
    }

    fn apply_one(&self, entry: &CommittedEntry) -> Result<EntryAnswer, Fault> {
        let mut head = *self.head.lock();
        let hash = entry_hash(&entry.position, &entry.payload);
        head.chain = xxh3_64_with_seed(&hash.to_le_bytes(), head.chain);
        head.position = Some(entry.position);
        let mut batch = WriteBatch::default();
        batch.put(Family::Meta, HEAD.to_vec(), encode_head(&head));
        let index = entry.position.index;
        let answer: EntryAnswer = match &entry.payload {
            Payload::Blank => None,
            Payload::Membership(bytes) => {
                let mut value = encode_head(&Head {
                    position: Some(entry.position),
                    chain: 0,
                });
                value.extend_from_slice(bytes);
                batch.put(Family::Meta, MEMBERS.to_vec(), value);
                None
            }
            Payload::Batch(bytes) => {
                batch.put(Family::Live, index.to_be_bytes().to_vec(), bytes.to_vec());
                Some(Arc::new(head.chain))
            }
        };
        if let Some(old) = index.checked_sub(ROWS) {
            batch.delete(Family::Live, old.to_be_bytes().to_vec());
        }
        self.store.write(batch)?;
        *self.head.lock() = head;
        if self.since_flush.fetch_add(1, Ordering::Relaxed) + 1 >= FLUSH_EVERY {
            self.flush()?;
        }
        Ok(answer)
    }
}

impl Machine for Chronicle {
    fn applied(&self) -> Applied {
        read_applied(self.store.as_ref()).unwrap_or_default()
    }

    fn durable_index(&self) -> u64 {
        self.durable.load(Ordering::Relaxed)
    }

    fn apply(&self, entries: Vec<CommittedEntry>) -> Result<Vec<EntryAnswer>, Fault> {
        entries.iter().map(|entry| self.apply_one(entry)).collect()
    }

    fn flush(&self) -> Result<u64, Fault> {
        let index = self.head.lock().position.map_or(0, |p| p.index);
        self.store.flush()?;
        self.since_flush.store(0, Ordering::Relaxed);
        self.durable.store(index, Ordering::Relaxed);
        Ok(index)
    }

    fn checkpoint(&self) -> Result<(Applied, Arc<dyn Checkpoint>), Fault> {
        let checkpoint = self.store.checkpoint()?;
        let applied = read_applied(checkpoint.view()?.as_ref())?;
        Ok((applied, checkpoint))
    }

    fn stage(&self) -> Result<Box<dyn Staging>, Fault> {
        self.store.stage()
    }

    fn install(&self, staged: Box<dyn Staging>) -> Result<Applied, Fault> {
        self.store.install(staged)?;
        let head = read_head(self.store.as_ref())?;
        *self.head.lock() = head;
        self.durable
            .store(head.position.map_or(0, |p| p.index), Ordering::Relaxed);
        read_applied(self.store.as_ref())
    }
}

/// The workload.
#[derive(Default)]
pub struct ChronicleWorkload {
    stores: Mutex<BTreeMap<u64, Arc<MemStore>>>,
}

impl Workload for ChronicleWorkload {
    fn open(&self, node: &NodeContext) -> Result<Arc<dyn Machine>, Fault> {
        let store = Arc::clone(self.stores.lock().entry(node.scope.node).or_default());
        Ok(Arc::new(Chronicle::open(store)?))
    }

    fn crash(&self, node: u64, rng: &mut SmallRng) {
        if let Some(store) = self.stores.lock().get_mut(&node) {
            let keep = rng.random_range(0..=store.unflushed());
            *store = Arc::new(store.crash(keep));
        }
    }

    fn wipe(&self, node: u64) {
        self.stores.lock().remove(&node);
    }

    fn node_task(&self, _node: NodeContext) -> Option<BoxFuture<'static, ()>> {
        None
    }

    fn forwards(&self, _node: &NodeContext) -> Option<Arc<dyn ForwardHandler>> {
        None
    }

    fn clients(&self, world: World) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let clients: Vec<_> = (0..world.options().clients)
                .map(|n| write_on(world.clone(), n))
                .collect();
            let reader = read_on(world.clone());
            futures::future::join(futures::future::join_all(clients), reader).await;
        })
    }

    fn check(&self, world: World) -> BoxFuture<'static, Vec<String>> {
        let chains: Vec<(u64, Result<Head, Fault>)> = {
            let stores = self.stores.lock();
            let running = world.running();
            let living = stores.iter().filter(|(id, _)| running.contains(id));
            living
                .map(|(id, store)| (*id, read_head(store.as_ref())))
                .collect()
        };
        Box::pin(async move { compare(&chains) })
    }
}

fn compare(chains: &[(u64, Result<Head, Fault>)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut by_index: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (node, head) in chains {
        match head {
            Err(fault) => wrong.push(format!("node {node}: {fault}")),
            Ok(head) => {
                let index = head.position.map_or(0, |p| p.index);
                let (first, chain) = *by_index.entry(index).or_insert((*node, head.chain));
                if chain != head.chain {
                    wrong.push(format!("nodes {first} and {node} differ at {index}"));
                }
            }
        }
    }
    wrong
}

/// One client: writes to whoever leads, one after another.
async fn write_on(world: World, client: u64) {
    let mut rng = world.rng("client", client);
    let mut number = 0u64;
    while !world.is_chaos_over() || world.observer().acked() < ACKED_MIN {
        number += 1;
        let mut payload = Vec::from(client.to_le_bytes());
        payload.extend_from_slice(&number.to_le_bytes());
        payload.resize(16 + rng.random_range(0..120usize), 7);
        write(&world, Bytes::from(payload)).await;
        let pause = rng.random_range(5..60);
        sleep(Duration::from_millis(pause)).await;
    }
}

async fn write(world: &World, payload: Bytes) {
    let Some(raft) = world.leader().and_then(|id| world.raft(id)) else {
        return;
    };
    let status = raft.status();
    if status.role != Role::Leader {
        return;
    }
    let proposal = raft.propose(status.term, payload.clone());
    match timeout(Duration::from_secs(3), proposal).await {
        Ok(Ok(committed)) => {
            let observer = world.observer();
            if committed.answer.is_none() {
                observer.violation(format!("no answer at {}", committed.position.index));
            }
            observer.acknowledged(&committed.position, &payload);
        }
        Ok(Err(ProposeError::NotLeader { .. })) => world.counters().add("not_leader", 1),
        Ok(Err(ProposeError::Overloaded)) => world.counters().add("overloaded", 1),
        Ok(Err(ProposeError::Unknown | ProposeError::Stopped)) | Err(_) => {
            world.counters().add("unknown", 1);
        }
    }
}

/// Reads through a barrier on changing nodes: the barrier must cover what was acknowledged before.
async fn read_on(world: World) {
    let mut rng = world.rng("reader", 0);
    while !world.is_chaos_over() {
        sleep(Duration::from_millis(rng.random_range(20..150))).await;
        let running = world.running();
        if running.is_empty() {
            continue;
        }
        let node = running[rng.random_range(0..running.len())];
        let (Some(raft), Some(machine)) = (world.raft(node), world.machine(node)) else {
            continue;
        };
        let floor = world.observer().last_acked();
        let passed = timeout(Duration::from_secs(3), raft.read_barrier()).await;
        let Ok(Ok(index)) = passed else {
            world.counters().add("barriers_failed", 1);
            continue;
        };
        world.counters().add("barriers", 1);
        world.trace().event("barrier", node, &[index]);
        // Crashed meanwhile: the reader of a dead process gets no answer.
        let same = |now: Arc<dyn Machine>| Arc::ptr_eq(&now, &machine);
        if !world.machine(node).is_some_and(same) {
            continue;
        }
        let applied = machine.applied().position.map_or(0, |p| p.index);
        if index < floor || applied < floor {
            world.observer().violation(format!(
                "a read on node {node} at {index} (applied {applied}) misses {floor}"
            ));
        }
    }
}
