//! A table in PostgreSQL with a row for every counter, written behind, so that applications can join on them.
//!
//! Everything is written by one transaction that first takes a lock, then has the counters read, then writes what they are
//! ([`MirrorTable::turn`], [`Turn::write`]). Reads show everything acknowledged before; so whoever has the lock later has seen at least
//! as much, and however many write, and in whatever state they come back, an old value never takes the place of a newer one. That
//! holds for deleted counters too, of which no row is left that could be compared.
//!
//! | table | |
//! |---|---|
//! | `quipu_counters` | the counters |
//! | `quipu_mirror` | for every writer, as of when all its counters are in the table |

use tokio_postgres::{Client, Config, NoTls, Transaction};

use crate::archive::{ArchiveError, apply_migrations};

/// A counter, as a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorRow {
    /// Its key.
    pub key: Vec<u8>,
    /// How much was counted.
    pub value: i64,
    /// How many changes there were.
    pub version: u64,
    /// What it counts.
    pub kind: &'static str,
    /// When it last changed.
    pub updated_at_ms: u64,
    /// When it ceases to exist, if ever.
    pub expires_at_ms: Option<u64>,
}

/// What a turn did to the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Rows that were made, or became others.
    pub rows: u64,
    /// Rows that went.
    pub gone: u64,
}

/// Numbered from 1. What has been released never changes: add at the end.
const MIGRATIONS: &[&str] = &["
    CREATE TABLE quipu_counters (
        key_bytes BYTEA PRIMARY KEY,
        key TEXT COLLATE \"C\",               -- the same as text; none where it is no UTF-8
        value BIGINT NOT NULL,
        version BIGINT NOT NULL,
        kind TEXT NOT NULL,
        updated_at TIMESTAMPTZ NOT NULL,
        expires_at TIMESTAMPTZ,             -- none: never
        mirrored_at TIMESTAMPTZ NOT NULL DEFAULT now()
    );
    CREATE INDEX quipu_counters_key ON quipu_counters (key);
    CREATE TABLE quipu_mirror (
        writer TEXT PRIMARY KEY,
        as_of TIMESTAMPTZ NOT NULL,         -- what was acknowledged before this is in the table
        swept_at TIMESTAMPTZ,               -- when all counters were last compared
        updated_at TIMESTAMPTZ NOT NULL DEFAULT now()
    );
"];

/// Where it is noted which of them have been made.
const MIGRATIONS_TABLE: &str = "quipu_mirror_migrations";
/// Of the lock while the tables are made.
const MIGRATIONS_LOCK: i64 = 0x71_75_69_70_76;

/// A writer that is stopped in the middle must not keep others from writing; a table that somebody has locked must not hold us for
/// ever.
const SESSION: &str = "SET idle_in_transaction_session_timeout = '20s'; SET lock_timeout = '20s';
    SET statement_timeout = '60s'; SET client_min_messages = warning";

/// The lock of this table, whatever schema it lies in.
const LOCK: &str = "SELECT pg_advisory_xact_lock(1903520112, 'quipu_counters'::regclass::oid::int)";

/// The latest time that a row can say; counters that expire later do not expire for anybody who looks at it.
const TIME_MS_MAX: u64 = 253_402_300_799_000;

/// A connection to the table.
pub struct MirrorTable {
    client: Client,
}

impl MirrorTable {
    /// Connects, and makes the tables or brings them up to date.
    pub async fn open(url: &str) -> Result<MirrorTable, ArchiveError> {
        let mut config: Config = url.parse()?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(std::time::Duration::from_secs(5));
        }
        if config.get_application_name().is_none() {
            config.application_name("quipu mirror");
        }
        let (mut client, connection) = config.connect(NoTls).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to PostgreSQL ended");
            }
        });
        client.batch_execute(SESSION).await?;
        apply_migrations(&mut client, MIGRATIONS_TABLE, MIGRATIONS_LOCK, MIGRATIONS).await?;
        Ok(MirrorTable { client })
    }

    /// Waits until nobody else writes. Counters that are to be written have to be read after this.
    pub async fn turn(&mut self) -> Result<Turn<'_>, ArchiveError> {
        let transaction = self.client.transaction().await?;
        transaction.batch_execute(LOCK).await?;
        Ok(Turn { transaction })
    }

    /// Keys of the table in their order, after one of them.
    pub async fn keys_after(&self, key: &[u8], count: usize) -> Result<Vec<Vec<u8>>, ArchiveError> {
        let page = "SELECT key_bytes FROM quipu_counters WHERE key_bytes > $1 ORDER BY key_bytes LIMIT $2";
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let rows = self.client.query(page, &[&key, &count]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Everything of this writer that was acknowledged before `as_of_ms` is in the table.
    pub async fn note(
        &self,
        writer: &str,
        as_of_ms: u64,
        swept_at_ms: Option<u64>,
    ) -> Result<(), ArchiveError> {
        let note = "INSERT INTO quipu_mirror (writer, as_of, swept_at)
            VALUES ($1, to_timestamp($2::float8 / 1000), to_timestamp($3::float8 / 1000))
            ON CONFLICT (writer) DO UPDATE SET as_of = excluded.as_of,
                swept_at = coalesce(excluded.swept_at, quipu_mirror.swept_at), updated_at = now()";
        let (as_of, swept_at) = (as_of_ms as f64, swept_at_ms.map(|ms| ms as f64));
        self.client.execute(note, &[&writer, &as_of, &swept_at]).await?;
        Ok(())
    }
}

/// The lock is held.
pub struct Turn<'a> {
    transaction: Transaction<'a>,
}

impl Turn<'_> {
    /// Writes counters as they are, and removes the rows of those that are not. All or nothing.
    pub async fn write(self, rows: &[MirrorRow], gone: &[&[u8]]) -> Result<Written, ArchiveError> {
        let mut written = Written::default();
        if !rows.is_empty() {
            written.rows = self.put(rows).await?;
        }
        if !gone.is_empty() {
            let remove = "DELETE FROM quipu_counters WHERE key_bytes = ANY($1)";
            written.gone = self.transaction.execute(remove, &[&gone]).await?;
        }
        self.transaction.commit().await?;
        Ok(written)
    }

    async fn put(&self, rows: &[MirrorRow]) -> Result<u64, ArchiveError> {
        let put = "INSERT INTO quipu_counters AS known (key_bytes, key, value, version, kind, updated_at, expires_at)
            SELECT bytes, name, value, version, kind, to_timestamp(updated / 1000), to_timestamp(expires / 1000)
            FROM unnest($1::bytea[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::float8[], $7::float8[])
                AS given (bytes, name, value, version, kind, updated, expires)
            ON CONFLICT (key_bytes) DO UPDATE SET value = excluded.value, version = excluded.version,
                kind = excluded.kind, updated_at = excluded.updated_at, expires_at = excluded.expires_at,
                mirrored_at = now()
            WHERE (known.value, known.version, known.kind, known.updated_at, known.expires_at) IS DISTINCT FROM
                (excluded.value, excluded.version, excluded.kind, excluded.updated_at, excluded.expires_at)";
        let bytes: Vec<&[u8]> = rows.iter().map(|row| row.key.as_slice()).collect();
        let names: Vec<Option<&str>> = rows.iter().map(|row| name(&row.key)).collect();
        let values: Vec<i64> = rows.iter().map(|row| row.value).collect();
        let versions: Vec<i64> =
            rows.iter().map(|row| i64::try_from(row.version).unwrap_or(i64::MAX)).collect();
        let kinds: Vec<&str> = rows.iter().map(|row| row.kind).collect();
        let updated: Vec<f64> = rows.iter().map(|row| row.updated_at_ms.min(TIME_MS_MAX) as f64).collect();
        let expires: Vec<Option<f64>> = rows
            .iter()
            .map(|row| row.expires_at_ms.filter(|ms| *ms <= TIME_MS_MAX).map(|ms| ms as f64))
            .collect();
        let given: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
            [&bytes, &names, &values, &versions, &kinds, &updated, &expires];
        Ok(self.transaction.execute(put, &given).await?)
    }
}

/// A key as PostgreSQL's text, which cannot hold a zero byte.
fn name(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok().filter(|text| !text.contains('\0'))
}
