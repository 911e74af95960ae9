//! An outage is not the worker's fault (S12).
//!
//! The nodes note when they were last seen. When nobody was, for longer than a heartbeat explains, every lease that was
//! alive then gets a full new term before anything is judged: nothing can have been reclaimed meanwhile.

use std::time::Duration;

use sea_orm::{ConnectionTrait as _, SqliteTransactionMode, TransactionOptions, TransactionTrait as _};

use crate::domain::time::Moment;

use super::{
    database::Database,
    error::{Fault, Inconsistency},
};

/// How long leases last.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTerms {
    /// A granted or renewed lease, in milliseconds.
    pub lease_ms: u32,
    /// An unstarted lease, in milliseconds.
    pub start_window_ms: u32,
}

/// What a heartbeat found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastSeen {
    /// The nodes had been seen a moment ago.
    Recent,
    /// Nobody had been seen for too long: so many leases got a new term.
    Extended(u64),
}

impl LeaseTerms {
    /// The longest gap that is no outage: min(3 s, lease / 4), in milliseconds.
    pub const fn gap_ms_max(self) -> u32 {
        let quarter = self.lease_ms / 4;
        if quarter < 3_000 { quarter } else { 3_000 }
    }

    /// How often to note that the nodes are here.
    pub fn heartbeat(self) -> Duration {
        Duration::from_millis(u64::from(self.gap_ms_max() / 5).clamp(20, 300))
    }

    /// Whether nobody was seen for too long.
    pub fn is_outage(self, last_seen: Moment, now: Moment) -> bool {
        now > last_seen.plus_ms(self.gap_ms_max())
    }
}

impl Database {
    /// Notes that the nodes are here; extends leases first if nobody was for too long.
    pub async fn heartbeat(&self, terms: LeaseTerms) -> Result<LastSeen, Fault> {
        let dialect = self.dialect();
        let now = dialect.now();
        let gap_us = i64::from(terms.gap_ms_max()) * 1_000;
        let sql = format!(
            "UPDATE cluster SET last_seen = {} WHERE id = 1 AND last_seen >= {now} - ?",
            dialect.greatest("last_seen", now)
        );
        let noted = self.write(dialect.statement(sql, vec![gap_us.into()])).await?;
        if noted == 1 {
            return Ok(LastSeen::Recent);
        }
        let sql = "SELECT last_seen FROM cluster WHERE id = 1";
        let row = self.reads_connection().query_one_raw(dialect.statement(sql, vec![])).await?;
        let row = row.ok_or_else(|| Inconsistency::new("cluster", "id", 1, "is missing"))?;
        let last_seen = row.try_get("", "last_seen").map_err(Fault::Permanent)?;
        self.extend_leases(terms, Moment::from_micros(last_seen)).await.map(LastSeen::Extended)
    }

    /// Ends all leases that there are, as of when the nodes were last seen: no outage that is noticed later revives them.
    /// Answers how many.
    #[cfg(feature = "testing")]
    pub(crate) async fn expire_leases(&self) -> Result<u64, Fault> {
        let sql = "UPDATE leases SET lease_until = (SELECT last_seen FROM cluster WHERE id = 1)";
        self.write(self.dialect().statement(sql, vec![])).await
    }

    /// Gives every lease that was alive at `last_seen` a full new term, in one transaction that only one node wins. The
    /// attempt's time and the deadline still cap it. Answers how many leases that were.
    pub(super) async fn extend_leases(&self, terms: LeaseTerms, last_seen: Moment) -> Result<u64, Fault> {
        let dialect = self.dialect();
        let now = dialect.now();
        let _turn = self.writers_turn().await;
        let options = TransactionOptions {
            sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
            ..TransactionOptions::default()
        };
        let tx = self.writes_connection().begin_with_options(options).await?;
        let claim = format!("UPDATE cluster SET last_seen = {now} WHERE id = 1 AND last_seen = ?");
        let won = tx.execute_raw(dialect.statement(claim, vec![last_seen.micros().into()])).await?;
        if won.rows_affected() != 1 {
            tx.rollback().await?;
            return Ok(0);
        }
        let term = "(CASE WHEN started_at IS NULL THEN ? ELSE ? END)";
        let until = dialect.least("cap_at", &format!("({now} + {term})"));
        let sql = format!(
            "UPDATE leases SET lease_until = {} WHERE lease_until > ?",
            dialect.greatest("lease_until", &until)
        );
        let us = |ms: u32| i64::from(ms) * 1_000;
        let values =
            vec![us(terms.start_window_ms).into(), us(terms.lease_ms).into(), last_seen.micros().into()];
        let extended = tx.execute_raw(dialect.statement(sql, values)).await?.rows_affected();
        tx.commit().await?;
        if extended > 0 {
            tracing::warn!(
                leases = extended,
                "no node had been seen for a while: running work keeps its leases for another term"
            );
        }
        Ok(extended)
    }
}
