//! Random histories: commands that a leader and clients might propose in the present state of the model, right ones and
//! wrong ones.

use super::Model;
use crate::command::admin::{
    AdminCommand, AdvanceRetention, AdvanceWatermarks, DeleteQueue, PauseScope, PutKey, PutQueue,
    PutSettings, PutTenant, SetPause, TakeOffice,
};
use crate::command::{Actor, Batch, Command, Envelope, Expect, Idempotency};
use crate::ids::{Kind, QueueId, Revision, TenantId};
use crate::model::policy::{PauseInfo, RateLimit};
use crate::model::queue::{QueueOrder, QueueRetention, QueueSpec};
use crate::model::tenant::TenantSpec;
use crate::store::due::{DueEntry, Level};
use crate::time::{Millis, Timestamp};

mod schedules;
mod work;

/// A repeatable source of choices.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014).
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.roll() % (end.max(1) as u64)).expect("fits")
    }

    fn small(&mut self, end: usize) -> u32 {
        u32::try_from(self.below(end)).expect("fits")
    }

    /// Once in `n` times.
    fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    fn word(&mut self, words: &[&'static str]) -> &'static str {
        words[self.below(words.len())]
    }

    fn maybe<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.once_in(2).then(|| value(self))
    }
}

/// Every due entry of the model.
pub(super) fn due_entries(model: &Model) -> Vec<DueEntry> {
    super::observe::due_of_model(model)
}

/// The next entry of a history.
pub(super) fn batch(model: &Model, dice: &mut Dice) -> Batch {
    let passed = *dice.pick(&[
        0, 0, 0, 1, 50, 700, 1_000, 1_000, 5_000, 20_000, 61_000, 61_000, 900_000, 3_700_000,
    ]);
    let rare = *dice.pick(&[50_000_000, 180_000_000, 700_000_000, 6_000_000_000, -5_000]);
    let passed = if dice.once_in(25) { rare } else { passed };
    let start = if model.cluster.office_term == 0 {
        1_800_000_000_000
    } else {
        model.now.millis()
    };
    let term = match dice.below(60) {
        0 => model.cluster.office_term + 1,
        1 => model.cluster.office_term.saturating_sub(1),
        _ => model.cluster.office_term,
    };
    let proposed_at = Timestamp::from_millis(start + passed);
    let mut commands = Vec::new();
    if model.cluster.office_term == 0 {
        let office = AdminCommand::TakeOffice(TakeOffice { node: 1 });
        commands.push(Envelope::leader(Command::Admin(office)));
    }
    for _ in 0..=dice.below(4) {
        let command = command(model, dice);
        commands.push(envelope(command, proposed_at.max(model.now), dice));
    }
    Batch {
        proposed_at,
        term,
        commands,
    }
}

fn envelope(command: Command, now: Timestamp, dice: &mut Dice) -> Envelope {
    let actor = match dice.below(3) {
        0 => Actor::Leader,
        1 => Actor::Anonymous,
        _ => Actor::Named("ada".into()),
    };
    let late = Millis(*dice.pick(&[0, 10, 400, 9_000]));
    Envelope {
        actor,
        reason: dice.once_in(4).then(|| "because".to_owned()),
        request_id: dice.once_in(4).then(|| "r-1".to_owned()),
        received_at: match dice.below(4) {
            0 => Some(now.plus(late)),
            1 => None,
            _ => Some(now.minus(late)),
        },
        idempotency: dice.once_in(6).then(|| Idempotency {
            hash: [u8::try_from(dice.below(6)).expect("fits"); 16],
            fingerprint: dice.below(8).min(1) as u64,
        }),
        command,
    }
}

fn command(model: &Model, dice: &mut Dice) -> Command {
    match dice.below(100) {
        0..=13 => Command::Admin(admin(model, dice)),
        14..=44 => Command::Schedule(schedules::command(model, dice)),
        45..=66 => Command::Execution(work::execution(model, dice)),
        _ => Command::Lease(work::lease(model, dice)),
    }
}

fn tenant(dice: &mut Dice) -> TenantId {
    let name = dice.word(&["default", "default", "default", "a", "a", "b"]);
    let name = if dice.once_in(30) { "nobody" } else { name };
    TenantId::new(name).expect("a name")
}

fn queue(dice: &mut Dice) -> QueueId {
    QueueId::new(dice.word(&["default", "default", "q1", "q2"])).expect("a name")
}

fn kind(dice: &mut Dice) -> Kind {
    Kind::new(dice.word(&["mail", "report"])).expect("a kind")
}

fn key(dice: &mut Dice) -> String {
    dice.word(&["k1", "k2"]).to_owned()
}

/// Mostly without a condition, sometimes one that holds, sometimes one that does not.
fn expect(revision: Option<Revision>, dice: &mut Dice) -> Expect {
    match dice.below(12) {
        0 => Expect::Absent,
        1 => Expect::Present,
        2 => Expect::Revision(revision.unwrap_or(Revision::new(3, 0))),
        3 => Expect::Revision(Revision::new(1, 0)),
        _ => Expect::Any,
    }
}

fn rate(dice: &mut Dice) -> RateLimit {
    RateLimit {
        count: *dice.pick(&[1, 3, 7]),
        per: Millis(*dice.pick(&[10, 1_000, 60_000])),
        burst: *dice.pick(&[1, 2, 5]),
    }
}

fn admin(model: &Model, dice: &mut Dice) -> AdminCommand {
    match dice.below(20) {
        0 => AdminCommand::TakeOffice(TakeOffice { node: 2 }),
        1 | 2 => watermarks(model, dice),
        3 | 4 => retention(model, dice),
        5..=7 => put_tenant(model, dice),
        8..=10 => put_queue(model, dice),
        11 => {
            let queue = queue(dice);
            let row = model.queue(&queue).map(|no| model.queues[&no].revision);
            let expect = expect(row, dice);
            AdminCommand::DeleteQueue(DeleteQueue { queue, expect })
        }
        12..=15 => AdminCommand::PutKey(PutKey {
            tenant: tenant(dice),
            key: key(dice),
            max_leased: dice.maybe(|dice| *dice.pick(&[0, 1, 1, 2])),
            rate: dice.once_in(4).then(|| rate(dice)),
        }),
        16..=18 => set_pause(model, dice),
        _ => AdminCommand::PutSettings(PutSettings {
            zone_release: dice.maybe(|dice| dice.word(&["2026a", "2026b"]).to_owned()),
            index_base: dice
                .once_in(4)
                .then(|| *dice.pick(&[1 << 40, 5, 1 << 53, 3 << 40])),
        }),
    }
}

/// What a leader may raise: no live entry of the level is earlier.
fn watermarks(model: &Model, dice: &mut Dice) -> AdminCommand {
    let due = due_entries(model);
    let mut levels = Vec::new();
    for level in Level::ALL {
        let mine = due.iter().filter(|entry| entry.key.level == level);
        let first = mine.map(|entry| entry.key.at).min();
        let bound = first.unwrap_or(model.now).min(model.now);
        if dice.once_in(2) {
            levels.push((level, bound.minus(Millis(*dice.pick(&[0, 0, 1_000])))));
        }
    }
    AdminCommand::AdvanceWatermarks(AdvanceWatermarks { levels })
}

fn retention(model: &Model, dice: &mut Dice) -> AdminCommand {
    let classes = (0..4).map(|_| {
        let class = u8::try_from(dice.below(11)).expect("fits");
        let bucket = match class {
            10 => 7,
            _ if dice.once_in(5) => u32::MAX,
            _ => super::class_bucket(class, model.now).saturating_sub(32 - dice.small(4)),
        };
        (class, bucket)
    });
    let classes = classes.collect();
    let newest = super::half_days(model.now);
    AdminCommand::AdvanceRetention(AdvanceRetention {
        classes,
        idempotency_from: dice.maybe(|dice| newest.saturating_sub(dice.small(5))),
        forget: (0..3)
            .map(|_| (tenant(dice), work::chosen_id(dice).to_string()))
            .collect(),
    })
}

fn put_tenant(model: &Model, dice: &mut Dice) -> AdminCommand {
    let tenant = tenant(dice);
    let row = model.tenant(&tenant).ok().map(|no| &model.tenants[&no]);
    let mut spec = row.map_or_else(TenantSpec::default, |row| row.spec.clone());
    match dice.below(5) {
        0 => spec.weight = *dice.pick(&[1, 2]),
        1 => spec.max_leased = dice.maybe(|dice| dice.below(4) as u64),
        2 => spec.rate = dice.maybe(rate),
        3 => spec.schedules_max = dice.maybe(|dice| dice.below(4) as u64),
        _ => spec.open_executions_max = dice.maybe(|dice| 2 + dice.below(9) as u64),
    }
    let expect = expect(row.map(|row| row.revision), dice);
    AdminCommand::PutTenant(PutTenant {
        tenant,
        spec,
        expect,
    })
}

fn put_queue(model: &Model, dice: &mut Dice) -> AdminCommand {
    let queue = queue(dice);
    let row = model.queue(&queue).map(|no| &model.queues[&no]);
    let mut spec = row.map_or_else(QueueSpec::default, |row| row.spec.clone());
    match dice.below(6) {
        0 => spec.order = *dice.pick(&[QueueOrder::FairFirst, QueueOrder::PriorityFirst]),
        1 => spec.max_leased = dice.maybe(|dice| dice.below(4) as u64),
        2 => spec.rate = dice.maybe(rate),
        3 => spec.max_pending = dice.maybe(|dice| 1 + dice.below(6) as u64),
        4 => {
            let own = |dice: &mut Dice| Millis::hours(*dice.pick(&[1, 24, 100, 100_000]));
            spec.retention = QueueRetention {
                succeeded: dice.maybe(own),
                other: dice.maybe(own),
                dead_lettered: dice.maybe(own),
            };
        }
        _ => {
            spec.allowed_tenants = dice.once_in(3).then(|| [tenant(dice), tenant(dice)].into());
        }
    }
    let expect = expect(row.map(|row| row.revision), dice);
    AdminCommand::PutQueue(PutQueue {
        queue,
        spec,
        expect,
    })
}

fn set_pause(model: &Model, dice: &mut Dice) -> AdminCommand {
    let scope = match dice.below(4) {
        0 => PauseScope::Cluster,
        1 => PauseScope::Tenant(tenant(dice)),
        2 => PauseScope::Queue(queue(dice)),
        _ => PauseScope::Kind(kind(dice)),
    };
    let pause = dice.once_in(3).then(|| PauseInfo {
        by: "ops".into(),
        reason: dice.maybe(|_| "deploy".to_owned()),
        since: model.now,
        until: dice.maybe(|dice| model.now.plus(Millis(*dice.pick(&[0, 5_000, 70_000])))),
    });
    AdminCommand::SetPause(SetPause { scope, pause })
}
