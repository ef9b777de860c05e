//! Workers that live in the virtual time of a test: they claim, take their time, and report.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::whole::{CLAIM, Nodes, reference};

/// One piece of work as its worker saw it; times in milliseconds since the crew was made.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) id: String,
    pub(super) attempt: u64,
    pub(super) tenant: String,
    pub(super) lateness_ms: u64,
    pub(super) began: u64,
}

/// How a crew works.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// Most leases of one worker.
    pub(super) slots: u32,
    /// Most leases asked for at once.
    pub(super) max: u32,
    /// Length of a lease.
    pub(super) lease_ms: u64,
    /// Renewals are this far apart; zero: none.
    pub(super) renew_ms: u64,
    /// How long a piece of this kind takes.
    pub(super) takes: fn(&str) -> u64,
}

impl Habits {
    /// One slot, leases of 10 s that are not renewed.
    pub(super) fn taking(takes: fn(&str) -> u64) -> Self {
        Self {
            slots: 1,
            max: 1,
            lease_ms: 10_000,
            renew_ms: 0,
            takes,
        }
    }
}

/// See the module.
pub(super) struct Crew {
    nodes: Arc<Nodes>,
    habits: Habits,
    begin: Instant,
    done: Mutex<Vec<Piece>>,
    /// Claims sent.
    pub(super) claims: AtomicUsize,
    running: AtomicU32,
    most: AtomicU32,
    refused: AtomicUsize,
}

impl Crew {
    pub(super) fn start(nodes: &Arc<Nodes>, workers: usize, habits: Habits) -> Arc<Self> {
        let crew = Arc::new(Self {
            nodes: Arc::clone(nodes),
            habits,
            begin: Instant::now(),
            done: Mutex::default(),
            claims: AtomicUsize::new(0),
            running: AtomicU32::new(0),
            most: AtomicU32::new(0),
            refused: AtomicUsize::new(0),
        });
        for n in 0..workers {
            let work = Arc::clone(&crew).worker(format!("crew-{n}"));
            tokio::runtime::Handle::current().spawn(work);
        }
        crew
    }

    async fn worker(self: Arc<Self>, name: String) {
        let held = Arc::new(AtomicU32::new(0));
        let freed = Arc::new(Notify::new());
        loop {
            let free = self.habits.slots - held.load(Ordering::SeqCst);
            if free == 0 {
                freed.notified().await;
                continue;
            }
            let body = json!({
                "worker_id": name, "max": free.min(self.habits.max), "slots": self.habits.slots,
                "wait_ms": 20_000.min(self.habits.lease_ms / 3), "lease_ms": self.habits.lease_ms,
            });
            self.claims.fetch_add(1, Ordering::SeqCst);
            let answer = self.nodes.ask(0, "POST", CLAIM, &body).await;
            if answer.status != 200 {
                // A change of leader: ask again.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            for lease in answer.body["leases"].as_array().expect("leases") {
                held.fetch_add(1, Ordering::SeqCst);
                let piece = Arc::clone(&self).piece(name.clone(), lease.clone());
                let (held, freed) = (Arc::clone(&held), Arc::clone(&freed));
                tokio::runtime::Handle::current().spawn(async move {
                    piece.await;
                    held.fetch_sub(1, Ordering::SeqCst);
                    freed.notify_one();
                });
            }
        }
    }

    async fn piece(self: Arc<Self>, worker: String, lease: Value) {
        let began = self.now();
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let kind = lease["kind"].as_str().expect("a kind").to_owned();
        let mut left = (self.habits.takes)(&kind);
        let item = json!({"worker_id": worker, "leases": [reference(&lease)]});
        while self.habits.renew_ms > 0 && left > self.habits.renew_ms {
            tokio::time::sleep(Duration::from_millis(self.habits.renew_ms)).await;
            left -= self.habits.renew_ms;
            self.report("renew", &item).await;
        }
        tokio::time::sleep(Duration::from_millis(left)).await;
        // What the worker does ends before it says so.
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.report("complete", &item).await;
        self.done.lock().push(Piece {
            id: lease["execution_id"].as_str().expect("an id").to_owned(),
            attempt: lease["attempt"].as_u64().expect("an attempt"),
            tenant: lease["tenant"].as_str().expect("a tenant").to_owned(),
            lateness_ms: lease["lateness_ms"].as_u64().expect("a number"),
            began,
        });
    }

    async fn report(&self, what: &str, item: &Value) {
        loop {
            let target = format!("/v1/leases:{what}");
            let answer = self.nodes.ask(0, "POST", &target, item).await;
            if answer.status == 200 {
                let is_ok = answer.body["results"][0]["status"] == "ok";
                self.refused
                    .fetch_add(usize::from(!is_ok), Ordering::SeqCst);
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Milliseconds since the crew was made.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).expect("a short run")
    }

    /// Waits until so many pieces are done, and answers them in the order in which they began.
    pub(super) async fn until_done(&self, count: usize, within_ms: u64) -> Vec<Piece> {
        let end = self.now() + within_ms;
        while self.done.lock().len() < count && self.now() < end {
            self.nodes.cluster.pass(10).await;
        }
        let mut done = self.done.lock().clone();
        assert_eq!(done.len(), count, "done within {within_ms} ms");
        assert_eq!(self.refused.load(Ordering::SeqCst), 0, "reports refused");
        done.sort_by_key(|p| (p.began, p.id.clone()));
        done
    }

    /// What is done of a tenant's.
    pub(super) fn pieces_of(&self, tenant: &str) -> impl Iterator<Item = Piece> + use<> {
        let mut done = self.done.lock().clone();
        done.retain(|p| p.tenant == tenant);
        done.into_iter()
    }

    /// Most pieces that ran at one moment since the last time this was asked.
    pub(super) fn most_at_once(&self) -> u32 {
        let now = self.running.load(Ordering::SeqCst);
        self.most.swap(now, Ordering::SeqCst)
    }
}
