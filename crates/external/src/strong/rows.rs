//! The tables of counters in rows, and one connection to them.
//!
//! A transaction takes three ways there and back: everything that is read, everything that is written, the commit.
//!
//! A counter that was deleted keeps its row, marked as gone: a row that is not there cannot be locked.

use std::collections::{BTreeMap, HashMap};

use quipu_counting::{Cell, NEVER, Outcome, Refusal, Remembered, Unavailable};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row, Statement};

use super::Failed;
use super::held::{Held, RequestName, name};
use crate::archive::{Archive, ArchiveError, apply_migrations, postgres_says};
use crate::units::{REQUESTS_PER_CALL_MAX, Unit};

/// Births that one transaction may use.
const BIRTHS: u64 = 1024;
const _: () = assert!(BIRTHS >= REQUESTS_PER_CALL_MAX as u64 && BIRTHS >= super::REQUESTS_MAX as u64);

/// Numbered from 1. What has been released never changes: add at the end.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE counter_strong (
        counter_key BYTEA PRIMARY KEY CHECK (octet_length(counter_key) BETWEEN 1 AND 512),
        is_there BOOLEAN NOT NULL,
        value BIGINT NOT NULL,
        version BIGINT NOT NULL,
        birth BIGINT NOT NULL,
        updated_at_ms BIGINT NOT NULL,
        expires_at_ms BIGINT                            -- none: never
    );
    CREATE TABLE counter_strong_request (
        counter_key BYTEA NOT NULL,
        request_id BYTEA NOT NULL CHECK (octet_length(request_id) BETWEEN 1 AND 255),
        request_index BIGINT NOT NULL,
        fingerprint BIGINT NOT NULL,
        at_ms BIGINT NOT NULL,
        refusal SMALLINT NOT NULL,                      -- 0: none
        existed BOOLEAN NOT NULL,
        is_there BOOLEAN NOT NULL,
        previous BIGINT NOT NULL,
        value BIGINT NOT NULL,
        version BIGINT NOT NULL,
        birth BIGINT NOT NULL,
        PRIMARY KEY (counter_key, request_id, request_index)
    );
    CREATE INDEX counter_strong_request_at ON counter_strong_request (at_ms);
    CREATE SEQUENCE counter_strong_birth INCREMENT BY 1024 START 1024;
",
    "
    -- In which order they are walked: a counter that is there keeps its birth, and no two have the same.
    CREATE INDEX counter_strong_by_birth ON counter_strong (birth) WHERE is_there;
",
];

const MIGRATIONS_TABLE: &str = "quipu_strong_migrations";
const MIGRATIONS_LOCK: i64 = 0x71_75_69_70_77;

/// A node that is stopped in the middle must not keep its locks.
const SESSION: &str = "SET idle_in_transaction_session_timeout = '5s'; SET statement_timeout = '5s';
    SET lock_timeout = '4s'; SET synchronous_commit = on; SET client_min_messages = warning";

/// What is locked has to be there.
const SEED: &str = "INSERT INTO counter_strong (counter_key, is_there, value, version, birth, updated_at_ms)
    SELECT key, false, 0, 0, 0, 0 FROM unnest($1::bytea[]) AS key ON CONFLICT DO NOTHING";
pub(super) const COLUMNS: &str = "counter_key, is_there, value, version, birth, updated_at_ms, expires_at_ms";
const IDS: &str = "SELECT known.counter_key, known.request_index, known.request_id, fingerprint, at_ms, refusal, existed,
        is_there, previous, value, version, birth
    FROM counter_strong_request AS known
    JOIN unnest($1::bytea[], $2::bigint[], $3::bytea[]) AS asked (key, place, id)
        ON known.counter_key = asked.key AND known.request_index = asked.place AND known.request_id = asked.id";
const PUT: &str = "UPDATE counter_strong AS known SET is_there = given.is_there, value = given.value,
        version = given.version, birth = given.birth, updated_at_ms = given.updated, expires_at_ms = given.expires
    FROM unnest($1::bytea[], $2::boolean[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
        AS given (key, is_there, value, version, birth, updated, expires)
    WHERE known.counter_key = given.key";
const REMEMBER: &str =
    "INSERT INTO counter_strong_request (counter_key, request_index, request_id, fingerprint, at_ms,
        refusal, existed, is_there, previous, value, version, birth)
    SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::smallint[],
        $7::boolean[], $8::boolean[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[])
    ON CONFLICT (counter_key, request_id, request_index) DO UPDATE SET fingerprint = excluded.fingerprint,
        at_ms = excluded.at_ms, refusal = excluded.refusal, existed = excluded.existed,
        is_there = excluded.is_there, previous = excluded.previous, value = excluded.value,
        version = excluded.version, birth = excluded.birth";
/// Waits for nobody, since it holds much.
const PURGE: &str = "DELETE FROM counter_strong_request WHERE ctid IN (
    SELECT ctid FROM counter_strong_request WHERE at_ms < $1 LIMIT $2 FOR UPDATE SKIP LOCKED)";
/// So many at a time, and again at once while there are as many.
pub(super) const PURGE_ROWS: u64 = 10_000;

/// Counters and ids that a transaction holds, and its births.
pub(super) type Read = (BTreeMap<Vec<u8>, Option<Cell>>, HashMap<RequestName, Remembered>, u64);

/// A connection with everything prepared.
pub(super) struct Session {
    client: Client,
    seed: Statement,
    lock: Statement,
    look: Statement,
    ids: Statement,
    births: Statement,
    put: Statement,
    remember: Statement,
    /// COMMIT was sent, and has not been answered.
    is_committing: bool,
}

impl Session {
    /// Connects, and makes the tables or brings them up to date.
    pub(super) async fn open(archive: &Archive) -> Result<Session, Failed> {
        let open = async {
            let client = connect(archive).await?;
            let rows = format!("SELECT {COLUMNS} FROM counter_strong WHERE counter_key = ANY($1)");
            Ok(Session {
                seed: client.prepare(SEED).await?,
                lock: client.prepare(&format!("{rows} ORDER BY counter_key FOR UPDATE")).await?,
                look: client.prepare(&rows).await?,
                ids: client.prepare(IDS).await?,
                births: client.prepare("SELECT nextval('counter_strong_birth')").await?,
                put: client.prepare(PUT).await?,
                remember: client.prepare(REMEMBER).await?,
                client,
                is_committing: false,
            })
        };
        let opened: Result<Session, ArchiveError> = open.await;
        opened.map_err(|error| match error {
            ArchiveError::Postgres(error) => not_done(error),
            ArchiveError::Unfit(why) if !archive.is_bound() => Failed::NotDone(why),
            other => Failed::Refused(Unavailable::NoLeader(other.to_string())),
        })
    }

    pub(super) fn is_committing(&self) -> bool {
        self.is_committing
    }

    /// Locks what these may change, and reads it, what they look at, and what is remembered of them.
    pub(super) async fn begin(&mut self, units: &[Unit]) -> Result<Read, Failed> {
        let (mut written, mut looked_at): (Vec<&[u8]>, Vec<&[u8]>) = Default::default();
        let mut names = Vec::new();
        for unit in units {
            let keys = unit.range().map(|index| unit.batch().key(index));
            if unit.writes() {
                written.extend(keys)
            } else {
                looked_at.extend(keys)
            }
            names.extend(unit.range().filter_map(|index| name(unit.batch(), index)));
        }
        // In one order, so that no two wait for each other.
        written.sort_unstable();
        written.dedup();
        let keys: Vec<&[u8]> = names.iter().map(|name| name.0.as_slice()).collect();
        let places: Vec<i64> = names.iter().map(|name| name.1.into()).collect();
        let ids: Vec<&[u8]> = names.iter().map(|name| name.2.as_slice()).collect();
        type Given<'a> = &'a [&'a (dyn tokio_postgres::types::ToSql + Sync)];
        let (of_written, of_seen): (Given<'_>, Given<'_>) = (&[&written], &[&looked_at]);
        let of_ids: Given<'_> = &[&keys, &places, &ids];
        // Sent together, answered one after the other: what follows a lock is read when it is held. Where one fails, those behind it say only
        // that one before them did.
        let (_, _, locked, seen, known, births) = tokio::try_join!(
            biased;
            self.client.batch_execute("BEGIN"),
            self.client.execute(&self.seed, of_written),
            self.client.query(&self.lock, of_written),
            self.client.query(&self.look, of_seen),
            self.client.query(&self.ids, of_ids),
            self.client.query_one(&self.births, &[]),
        )
        .map_err(not_done)?;
        if locked.len() != written.len() {
            return Err(Failed::NotDone("a row went while it was being locked".to_owned()));
        }
        // Of what is looked at and changed in one transaction, what is locked counts.
        let cells = seen.iter().chain(&locked).map(cell).collect();
        let ids = known.iter().map(remembered).collect::<Option<_>>();
        let ids = ids.ok_or_else(|| Failed::NotDone("a remembered request cannot be read".to_owned()))?;
        Ok((cells, ids, births.get::<_, i64>(0) as u64 + BIRTHS))
    }

    /// Writes what became of it, and commits.
    pub(super) async fn commit(&mut self, held: &Held) -> Result<(), Failed> {
        self.write(held).await.map_err(not_done)?;
        self.is_committing = true;
        self.client.batch_execute("COMMIT").await.map_err(|error| Failed::Unknown(postgres_says(&error)))?;
        self.is_committing = false;
        Ok(())
    }

    async fn write(&self, held: &Held) -> Result<(), tokio_postgres::Error> {
        if !held.changed.is_empty() {
            let keys: Vec<&[u8]> = held.changed.keys().map(Vec::as_slice).collect();
            let there: Vec<bool> = held.changed.values().map(Option::is_some).collect();
            let of = |number: fn(&Cell) -> i64| -> Vec<i64> {
                held.changed.values().map(|cell| cell.as_ref().map_or(0, number)).collect()
            };
            let (values, versions) = (of(|cell| cell.value), of(|cell| cell.version as i64));
            let (births, updated) = (of(|cell| cell.birth as i64), of(|cell| cell.updated_at_ms as i64));
            let expires: Vec<Option<i64>> = held.changed.values().map(|cell| expiry(cell.as_ref())).collect();
            let given: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
                [&keys, &there, &values, &versions, &births, &updated, &expires];
            self.client.execute(&self.put, &given).await?;
        }
        if held.remembered.is_empty() {
            return Ok(());
        }
        let all: Vec<(&RequestName, &Remembered)> = held.remembered.iter().collect();
        let keys: Vec<&[u8]> = all.iter().map(|(name, _)| name.0.as_slice()).collect();
        let places: Vec<i64> = all.iter().map(|(name, _)| name.1.into()).collect();
        let ids: Vec<&[u8]> = all.iter().map(|(name, _)| name.2.as_slice()).collect();
        let of = |number: fn(&Remembered) -> i64| -> Vec<i64> {
            all.iter().map(|(_, known)| number(known)).collect()
        };
        let is = |so: fn(&Outcome) -> bool| -> Vec<bool> {
            all.iter().map(|(_, known)| so(&known.outcome)).collect()
        };
        let refusals: Vec<i16> = all
            .iter()
            .map(|(_, known)| known.outcome.refusal.map_or(0, |refusal| refusal.number().into()))
            .collect();
        let (prints, times) = (of(|known| known.fingerprint as i64), of(|known| known.at_ms as i64));
        let (existed, exists) = (is(|outcome| outcome.existed), is(|outcome| outcome.exists));
        let (previous, values) = (of(|known| known.outcome.previous), of(|known| known.outcome.value));
        let (versions, births) =
            (of(|known| known.outcome.version as i64), of(|known| known.outcome.birth as i64));
        let given: [&(dyn tokio_postgres::types::ToSql + Sync); 12] = [
            &keys, &places, &ids, &prints, &times, &refusals, &existed, &exists, &previous, &values,
            &versions, &births,
        ];
        self.client.execute(&self.remember, &given).await.map(drop)
    }
}

/// A connection to tables that are up to date.
pub(super) async fn connect(archive: &Archive) -> Result<Client, ArchiveError> {
    let mut client = archive.connect().await?;
    if !archive.is_bound() {
        return Err(ArchiveError::Unfit(
            "it is not known yet whether the archive belongs to this Redis".into(),
        ));
    }
    client.batch_execute(SESSION).await?;
    apply_migrations(&mut client, MIGRATIONS_TABLE, MIGRATIONS_LOCK, MIGRATIONS).await?;
    Ok(client)
}

/// Forgets ids of before this, some at a time. Returns how many those were.
pub(super) async fn purge(archive: &Archive, before_ms: u64) -> Result<u64, ArchiveError> {
    let client = connect(archive).await?;
    Ok(client.execute(PURGE, &[&(before_ms as i64), &(PURGE_ROWS as i64)]).await?)
}

/// How many counters there are whose keys are so.
pub(super) async fn count(
    archive: &Archive,
    now_ms: u64,
    is_so: impl Fn(&[u8]) -> bool,
) -> Result<u64, Unavailable> {
    let failed = |error: ArchiveError| Unavailable::NoLeader(error.to_string());
    let session = Session::open(archive).await.map_err(|failed| match failed {
        Failed::Refused(why) => why,
        Failed::NotDone(why) | Failed::Unknown(why) => Unavailable::NoLeader(format!("PostgreSQL: {why}")),
    })?;
    let all = "SELECT counter_key FROM counter_strong WHERE counter_key > $1 AND is_there
        AND (expires_at_ms IS NULL OR expires_at_ms > $2::bigint) ORDER BY counter_key LIMIT 10000";
    let (mut count, mut after) = (0, Vec::<u8>::new());
    loop {
        let rows = session.client.query(all, &[&after, &(now_ms as i64)]).await;
        let rows = rows.map_err(|error| failed(error.into()))?;
        let Some(last) = rows.last() else { return Ok(count) };
        after = last.get(0);
        count += rows.iter().filter(|row| is_so(row.get(0))).count() as u64;
    }
}

/// `None` for never. A time that the column cannot hold is one that nobody lives to see.
fn expiry(cell: Option<&Cell>) -> Option<i64> {
    let at_ms = cell.map(|cell| cell.expires_at_ms).filter(|at_ms| *at_ms != NEVER)?;
    Some(i64::try_from(at_ms).unwrap_or(i64::MAX))
}

pub(super) fn cell(row: &Row) -> (Vec<u8>, Option<Cell>) {
    let number = |place: usize| row.get::<_, i64>(place);
    let cell = Cell {
        value: number(2),
        version: number(3) as u64,
        birth: number(4) as u64,
        updated_at_ms: number(5) as u64,
        expires_at_ms: row.get::<_, Option<i64>>(6).map_or(NEVER, |at_ms| at_ms as u64),
    };
    (row.get(0), row.get::<_, bool>(1).then_some(cell))
}

fn remembered(row: &Row) -> Option<(RequestName, Remembered)> {
    let number = |place: usize| row.get::<_, i64>(place);
    let refusal = match u8::try_from(row.get::<_, i16>(5)).ok()? {
        0 => None,
        number => Some(Refusal::from_number(number)?),
    };
    let outcome = Outcome {
        refusal,
        existed: row.get(6),
        exists: row.get(7),
        previous: number(8),
        value: number(9),
        version: number(10) as u64,
        birth: number(11) as u64,
    };
    let name = (row.get(0), u32::try_from(number(1)).ok()?, row.get(2));
    Some((name, Remembered { identity: 0, fingerprint: number(3) as u64, at_ms: number(4) as u64, outcome }))
}

/// Before COMMIT was sent nothing is done, whatever went wrong. Some of it will go wrong again.
fn not_done(error: tokio_postgres::Error) -> Failed {
    let why = postgres_says(&error);
    match error.code() {
        Some(code) if *code == SqlState::DISK_FULL || *code == SqlState::OUT_OF_MEMORY => {
            Failed::Refused(Unavailable::Full(format!("PostgreSQL: {why}")))
        }
        // What is wrong with the tables or with rights does not pass by itself: classes 42 (no such table, no rights), 28
        // (no such user), 25 (it only reads), 3D (no such database).
        Some(code)
            if ["42", "28", "25", "3D"].contains(&&code.code()[..2])
                && *code != SqlState::IN_FAILED_SQL_TRANSACTION =>
        {
            Failed::Refused(Unavailable::NoLeader(format!("PostgreSQL: {why}")))
        }
        _ => Failed::NotDone(why),
    }
}
