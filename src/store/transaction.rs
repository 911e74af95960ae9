//! One transaction of a lane: re-run while that is safe, settled when nobody knows how it ended.
//!
//! The first statement moves the lane's own row from one number to the next. If COMMIT's answer is lost, the same
//! guarded statement on a new connection tells: it waits behind a COMMIT still in flight, and then finds the old number
//! (not committed) or not (committed). No later transaction of the lane begins before that is settled.

use std::{sync::Arc, time::Duration};

use sea_orm::{
    ConnectionTrait as _, DatabaseConnection, DatabaseTransaction, DbErr, SqliteTransactionMode,
    TransactionOptions, TransactionTrait as _,
};
use tokio::time::{Instant, sleep, timeout};

use crate::{domain::time::Moment, metric};

use super::{
    database::Database,
    error::{CommitFault, Fault},
    load::{Loader, Needs},
    outage::LeaseTerms,
    save::Saver,
    working_set::{Wakes, WorkingSet},
};

/// How long one transaction may take before its connection is given up.
const TRANSACTION_LIMIT: Duration = Duration::from_secs(5);
/// How long a transaction is re-run before its callers are told that the database is away.
const RERUN_LIMIT: Duration = Duration::from_secs(4);
/// Re-runs at most, for faults that come back at once.
const RERUNS_MAX: u32 = 20;
/// A connection that did nothing for so long is given up: half of what the server allows.
const IDLE_LIMIT: Duration = Duration::from_secs(5);
/// How often one that has nothing to do says that it is there.
pub const KEEP_EVERY: Duration = Duration::from_secs(2);
/// How long the answer may take.
const KEEP_LIMIT: Duration = Duration::from_secs(1);
/// How long callers wait for an unknown commit to be settled.
const SETTLE_LIMIT: Duration = Duration::from_secs(4);

/// Why a transaction has no outcome.
#[derive(Debug)]
pub enum BatchError {
    /// The database is away. Nothing was written.
    Unavailable,
    /// It may or may not have been written. [`LaneConnection::settled`] must answer before the next.
    OutcomeUnknown,
    /// Nothing was written, and it would fail again.
    Failed(Fault),
}

/// A lane's own connection and its row.
pub struct LaneConnection {
    database: Database,
    node_id: Arc<str>,
    terms: LeaseTerms,
    lane: String,
    seq: i64,
    connection: Option<DatabaseConnection>,
    used_at: Instant,
    committing: bool,
    unsettled: bool,
}

enum Settled {
    Committed,
    NotCommitted,
    /// The lane's row is not where this lane ever left it: the database is not the one that was written to, such as a
    /// replica that took over without the last commits. What became of the commit cannot be known.
    Lost,
}

enum Attempt<T> {
    Done(T, Wakes),
    Fault(Fault),
    /// The nodes were away since then: running leases get a new term first (S12).
    Outage(Moment),
    /// The lane's row is not where it was left, though no commit is in doubt: see [`Settled::Lost`].
    LaneLost,
    CommitUnknown(T, Wakes),
    CommitTimedOut,
}

impl LaneConnection {
    /// A lane with a row of its own. `lane` is unique to this process.
    pub async fn open(
        database: Database,
        node_id: Arc<str>,
        terms: LeaseTerms,
        lane: String,
    ) -> Result<Self, Fault> {
        let mut this = Self {
            database,
            node_id,
            terms,
            lane,
            seq: 0,
            connection: None,
            used_at: Instant::now(),
            committing: false,
            unsettled: false,
        };
        this.register().await?;
        Ok(this)
    }

    async fn register(&mut self) -> Result<(), Fault> {
        let dialect = self.database.dialect();
        let sql =
            format!("INSERT INTO lane_commits (lane, seq, updated_at) VALUES (?, ?, {})", dialect.now());
        let values = vec![self.lane.as_str().into(), self.seq.into()];
        self.database.write(dialect.statement(sql, values)).await?;
        Ok(())
    }

    /// Removes the lane's row, at a clean end.
    pub async fn close(self) {
        if !self.unsettled {
            let dialect = self.database.dialect();
            let statement =
                dialect.statement("DELETE FROM lane_commits WHERE lane = ?", vec![self.lane.as_str().into()]);
            if let Err(error) = self.database.write(statement).await {
                tracing::debug!(%error, lane = self.lane, "lane row not removed");
            }
        }
        if let Some(connection) = self.connection {
            let _ = timeout(Duration::from_secs(1), connection.close()).await;
        }
    }

    /// Runs one transaction: locks and loads `needs`, lets `apply` decide, saves, commits. `apply` runs anew with each
    /// re-run; what the last run returned is what was committed.
    pub async fn run<T>(
        &mut self,
        needs: &Needs,
        mut apply: impl FnMut(&mut WorkingSet) -> T,
    ) -> Result<(T, Wakes), BatchError> {
        let began = Instant::now();
        for rerun in 0..=RERUNS_MAX {
            let attempt = match timeout(TRANSACTION_LIMIT, self.attempt(needs, &mut apply)).await {
                Ok(attempt) => attempt,
                // Its answers are gone with the future.
                Err(_) if self.committing => Attempt::CommitTimedOut,
                Err(_) => Attempt::Fault(Fault::Away(DbErr::Custom("time-out".to_owned()))),
            };
            let fault = match attempt {
                Attempt::Done(answers, wakes) => {
                    metric::took(metric::TRANSACTION, began.elapsed());
                    self.database.refusals().written();
                    return Ok((answers, wakes));
                }
                Attempt::CommitUnknown(answers, wakes) => match self.settle().await {
                    Some(Settled::Committed) => {
                        self.database.refusals().written();
                        return Ok((answers, wakes));
                    }
                    Some(Settled::NotCommitted) => Fault::Away(DbErr::Custom("the commit failed".to_owned())),
                    Some(Settled::Lost) | None => return Err(BatchError::OutcomeUnknown),
                },
                Attempt::LaneLost => match self.take_new_row().await {
                    Ok(()) => continue,
                    Err(fault) => fault,
                },
                Attempt::CommitTimedOut => {
                    self.give_up_connection();
                    match self.settle().await {
                        Some(Settled::NotCommitted) => continue,
                        Some(Settled::Committed | Settled::Lost) | None => {
                            return Err(BatchError::OutcomeUnknown);
                        }
                    }
                }
                Attempt::Outage(last_seen) => {
                    match self.database.extend_leases(self.terms, last_seen).await {
                        Ok(_) => continue,
                        Err(fault) => fault,
                    }
                }
                Attempt::Fault(fault) => fault,
            };
            match &fault {
                Fault::Inconsistent(_) | Fault::Permanent(_) => return Err(BatchError::Failed(fault)),
                Fault::Away(_) => {
                    self.database.refusals().refused();
                    self.give_up_connection();
                }
                Fault::Transient(_) | Fault::Duplicate(_) => {}
            }
            if rerun == RERUNS_MAX || began.elapsed() > RERUN_LIMIT {
                return match fault {
                    Fault::Duplicate(_) => Err(BatchError::Failed(fault)),
                    _ => Err(BatchError::Unavailable),
                };
            }
            tracing::debug!(lane = self.lane, rerun, %fault, "transaction is run again");
            sleep(pause(rerun, &fault)).await;
        }
        Err(BatchError::Unavailable)
    }

    /// Waits until an unknown commit is settled. Returns at once if there is none.
    pub async fn settled(&mut self) {
        while self.unsettled {
            if self.settle().await.is_none() {
                sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// Keeps the server from closing the connection of a lane that has nothing to do: a new one prepares all its
    /// statements anew.
    pub async fn keep(&mut self) {
        let Some(connection) = &self.connection else { return };
        if self.used_at.elapsed() < KEEP_EVERY {
            return;
        }
        match timeout(KEEP_LIMIT, connection.ping()).await {
            Ok(Ok(())) => self.used_at = Instant::now(),
            Ok(Err(_)) | Err(_) => self.give_up_connection(),
        }
    }

    async fn attempt<T>(
        &mut self,
        needs: &Needs,
        apply: &mut impl FnMut(&mut WorkingSet) -> T,
    ) -> Attempt<T> {
        self.committing = false;
        // On SQLite, where one writes at a time: wait here, in order, and not in the database, by polling.
        let database = self.database.clone();
        let _turn = database.writers_turn().await;
        let tx = match self.begin().await {
            Ok(tx) => tx,
            Err(fault) => return Attempt::Fault(fault),
        };
        match self.prepare(&tx, needs, apply).await {
            Ok(Prepared::Ready(answers, wakes)) => {
                self.committing = true;
                let began = Instant::now();
                match tx.commit().await.map_err(CommitFault::from) {
                    Ok(()) => {
                        metric::took(metric::COMMIT, began.elapsed());
                        self.committing = false;
                        self.seq += 1;
                        Attempt::Done(answers, wakes)
                    }
                    Err(CommitFault::NotCommitted(fault)) => {
                        self.committing = false;
                        self.give_up_connection();
                        Attempt::Fault(fault)
                    }
                    Err(CommitFault::Unknown(error)) => {
                        if let Some(commits) = self.database.refusals().tell() {
                            tracing::warn!(lane = self.lane, %error, commits, "the outcome of a commit is unknown");
                        }
                        self.give_up_connection();
                        Attempt::CommitUnknown(answers, wakes)
                    }
                }
            }
            Ok(Prepared::Outage(last_seen)) => {
                self.rollback(tx).await;
                Attempt::Outage(last_seen)
            }
            Ok(Prepared::LaneLost) => {
                self.rollback(tx).await;
                Attempt::LaneLost
            }
            Err(fault) => {
                self.rollback(tx).await;
                Attempt::Fault(fault)
            }
        }
    }

    async fn prepare<T>(
        &self,
        tx: &DatabaseTransaction,
        needs: &Needs,
        apply: &mut impl FnMut(&mut WorkingSet) -> T,
    ) -> Result<Prepared<T>, Fault> {
        let dialect = self.database.dialect();
        if self.advance(tx).await? != 1 {
            return Ok(Prepared::LaneLost);
        }
        let mut ws = WorkingSet::new(self.node_id.clone());
        let loader = Loader { tx, dialect, routes: self.database.routes() };
        let last_seen = loader.load(needs, &mut ws).await?;
        if needs.judges_leases && self.terms.is_outage(last_seen, ws.now()) {
            return Ok(Prepared::Outage(last_seen));
        }
        let answers = apply(&mut ws);
        Saver { tx, dialect }.save(&ws).await?;
        Ok(Prepared::Ready(answers, ws.wakes()))
    }

    /// Moves the lane's row to the next number, if it is where it was left. Answers how many rows that was.
    async fn advance(&self, tx: &DatabaseTransaction) -> Result<u64, Fault> {
        let dialect = self.database.dialect();
        let sql = format!(
            "UPDATE lane_commits SET seq = ?, updated_at = {} WHERE lane = ? AND seq = ?",
            dialect.now()
        );
        let values = vec![(self.seq + 1).into(), self.lane.as_str().into(), self.seq.into()];
        Ok(tx.execute_raw(dialect.statement(sql, values)).await?.rows_affected())
    }

    /// Finds out how the last commit ended; none if that cannot be found out now.
    async fn settle(&mut self) -> Option<Settled> {
        self.unsettled = true;
        let deadline = Instant::now() + SETTLE_LIMIT;
        while Instant::now() < deadline {
            let looked = timeout(TRANSACTION_LIMIT, self.look()).await;
            if let Ok(Ok(settled)) = looked {
                self.unsettled = false;
                if matches!(settled, Settled::Committed) {
                    self.seq += 1;
                }
                return Some(settled);
            }
            self.give_up_connection();
            sleep(Duration::from_millis(50)).await;
        }
        None
    }

    async fn look(&mut self) -> Result<Settled, Fault> {
        let database = self.database.clone();
        let _turn = database.writers_turn().await;
        let tx = self.begin().await?;
        let found = self.found(&tx).await;
        self.rollback(tx).await;
        found
    }

    async fn found(&self, tx: &DatabaseTransaction) -> Result<Settled, Fault> {
        if self.advance(tx).await? == 1 {
            return Ok(Settled::NotCommitted);
        }
        let sql = "SELECT seq FROM lane_commits WHERE lane = ?";
        let statement = self.database.dialect().statement(sql, vec![self.lane.as_str().into()]);
        let row = tx.query_one_raw(statement).await?;
        let seq: Option<i64> = row.map(|r| r.try_get("", "seq")).transpose()?;
        Ok(if seq == Some(self.seq + 1) { Settled::Committed } else { Settled::Lost })
    }

    /// Goes on with another row, since its own is lost. No commit is in doubt then: what was told is beyond mending.
    async fn take_new_row(&mut self) -> Result<(), Fault> {
        tracing::error!(
            lane = self.lane,
            "the database is not the one that was written to last: commits may have been lost in a fail-over or a restore"
        );
        self.lane =
            format!("{}/{}", self.lane.split('/').next().unwrap_or_default(), uuid::Uuid::new_v4().simple());
        self.seq = 0;
        self.register().await
    }

    async fn begin(&mut self) -> Result<DatabaseTransaction, Fault> {
        // The server has closed it, as after this process stood still; to find that out would cost a failed transaction.
        if self.used_at.elapsed() > IDLE_LIMIT {
            self.give_up_connection();
        }
        self.used_at = Instant::now();
        let connection = match &self.connection {
            Some(connection) => connection,
            None => self.connection.insert(self.database.lane_connection().await?),
        };
        let options = TransactionOptions {
            sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
            ..TransactionOptions::default()
        };
        Ok(connection.begin_with_options(options).await?)
    }

    async fn rollback(&mut self, tx: DatabaseTransaction) {
        if tx.rollback().await.is_err() {
            self.give_up_connection();
        }
    }

    /// The server rolls back what a closed connection left open.
    fn give_up_connection(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.database.close_later(connection);
        }
    }
}

enum Prepared<T> {
    Ready(T, Wakes),
    Outage(Moment),
    LaneLost,
}

/// A short, growing, jittered pause, so that two lanes do not meet again.
fn pause(rerun: u32, fault: &Fault) -> Duration {
    let base_ms = match fault {
        Fault::Duplicate(_) => return Duration::ZERO,
        Fault::Transient(_) => 2_u64 << rerun.min(6),
        _ => 25_u64 << rerun.min(4),
    };
    let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
    Duration::from_millis(base_ms / 2 + random % (base_ms / 2 + 1))
}
