//! The tables. Each migration runs once, in order, and all under a lock, so that nodes may start together.

use tokio_postgres::Client;

use super::ArchiveError;

/// Of the lock: any number that nobody else uses.
const LOCK: i64 = 0x71_75_69_70_75;

/// Numbered from 1. What has been released never changes: add at the end.
const MIGRATIONS: &[&str] = &[
    // Keys and ids are bytes, as everywhere in quipu: a literal such as 'likes' compares with them.
    "
    CREATE TABLE counter_meta (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        counter_key BYTEA NOT NULL CHECK (octet_length(counter_key) BETWEEN 1 AND 512),
        biz_type TEXT NOT NULL DEFAULT '',
        consistency_mode SMALLINT NOT NULL DEFAULT 1,   -- 0 eventual, 1 strong
        shard_count INT NOT NULL DEFAULT 1,
        status SMALLINT NOT NULL DEFAULT 1,             -- 0 gone, 1 there
        created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
        updated_at TIMESTAMPTZ NOT NULL DEFAULT now(),
        CONSTRAINT uk_counter_key UNIQUE (counter_key)
    );
    CREATE TABLE counter_shard_snapshot (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        counter_key BYTEA NOT NULL,
        shard_id INT NOT NULL,
        value BIGINT NOT NULL,
        version BIGINT NOT NULL,
        birth BIGINT NOT NULL,
        expires_at_ms NUMERIC(20),                      -- none: never
        updated_at TIMESTAMPTZ NOT NULL,
        CONSTRAINT uk_counter_shard UNIQUE (counter_key, shard_id)
    );
    CREATE TABLE counter_total_snapshot (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        counter_key BYTEA NOT NULL,
        total_value BIGINT NOT NULL,
        watermark_event_id BIGINT NOT NULL,
        updated_at TIMESTAMPTZ NOT NULL,
        CONSTRAINT uk_counter_total UNIQUE (counter_key)
    );
    CREATE TABLE counter_idempotency (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        counter_key BYTEA NOT NULL,
        request_id BYTEA NOT NULL CHECK (octet_length(request_id) BETWEEN 1 AND 255),
        request_index BIGINT NOT NULL,
        fingerprint NUMERIC(20) NOT NULL,
        delta NUMERIC(20) NOT NULL,
        value BIGINT NOT NULL,
        version BIGINT NOT NULL,
        birth BIGINT NOT NULL,
        created_at TIMESTAMPTZ NOT NULL,
        CONSTRAINT uk_counter_req UNIQUE (counter_key, request_id, request_index)
    );
    CREATE INDEX idx_created_at ON counter_idempotency (created_at);
    CREATE TABLE counter_delta_log (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        counter_key BYTEA NOT NULL,
        shard_id INT NOT NULL,
        delta NUMERIC(20) NOT NULL,
        request_id BYTEA,
        event_time TIMESTAMPTZ NOT NULL,
        created_at TIMESTAMPTZ NOT NULL DEFAULT now()
    );
    CREATE INDEX idx_counter_time ON counter_delta_log (counter_key, event_time);
    CREATE INDEX idx_shard_time ON counter_delta_log (counter_key, shard_id, event_time);
    -- Up to where each stream is in the tables, of which epoch.
    CREATE TABLE counter_watermark (
        stream_group INT PRIMARY KEY,
        epoch TEXT NOT NULL DEFAULT '',
        event_ms BIGINT NOT NULL DEFAULT 0,
        event_sequence BIGINT NOT NULL DEFAULT 0,
        events BIGINT NOT NULL DEFAULT 0,
        updated_at TIMESTAMPTZ NOT NULL DEFAULT now()
    );
    INSERT INTO counter_watermark (stream_group) SELECT generate_series(0, 63);
    ",
    // What a Redis that has lost its data is rebuilt from, beside the snapshots, and what is told about that.
    "
    ALTER TABLE counter_watermark
        ADD COLUMN drained_at_ms BIGINT NOT NULL DEFAULT 0, -- everything before is in the tables
        ADD COLUMN births BIGINT NOT NULL DEFAULT 0;        -- the newest birth in the group
    CREATE TABLE counter_policies (
        only_row BOOLEAN PRIMARY KEY DEFAULT true CHECK (only_row),
        epoch TEXT NOT NULL,
        version BIGINT NOT NULL,
        fields BYTEA[] NOT NULL                             -- of the hash in Redis: name, value, name, value
    );
    CREATE TABLE counter_recovery (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        epoch_before TEXT NOT NULL,
        epoch_after TEXT NOT NULL,
        detected_at_ms BIGINT NOT NULL,
        finished_at_ms BIGINT NOT NULL,
        groups_lost INT NOT NULL,
        counters BIGINT NOT NULL,                           -- brought back
        request_ids BIGINT NOT NULL,
        replayed BIGINT NOT NULL,                           -- changes that the streams still had
        gap_from_ms BIGINT,                                 -- none: nothing is missing
        gap_to_ms BIGINT,
        watermark TEXT NOT NULL                             -- the last entry in the tables, of the group that is furthest behind
    );
    ",
    // Counters that are more than a number, as they were at some moment at or after the watermark: the numbers of that
    // moment stand beside the body.
    "
    CREATE TABLE counter_body_snapshot (
        counter_key BYTEA PRIMARY KEY,
        kind TEXT NOT NULL,                             -- sum, unique, window
        value BIGINT NOT NULL,
        version BIGINT NOT NULL,
        birth BIGINT NOT NULL,
        expires_at_ms NUMERIC(20),                      -- none: never
        changed_at_ms BIGINT NOT NULL,
        body BYTEA NOT NULL,
        updated_at TIMESTAMPTZ NOT NULL DEFAULT now()
    );
    ",
    // Counters in stripes whose totals are to be added up again, and the newest event of them.
    "
    CREATE TABLE counter_dirty (
        counter_key BYTEA PRIMARY KEY,
        event_id BIGINT NOT NULL
    );
    -- Ids lie with their stripe.
    ALTER TABLE counter_idempotency ADD COLUMN shard_id INT NOT NULL DEFAULT 0;
    ALTER TABLE counter_idempotency DROP CONSTRAINT uk_counter_req;
    ALTER TABLE counter_idempotency
        ADD CONSTRAINT uk_counter_req UNIQUE (counter_key, request_id, request_index, shard_id);
    ",
    // Which Redis the tables belong to, and whether they have everything of it.
    "
    CREATE TABLE counter_archive (
        only_row BOOLEAN PRIMARY KEY DEFAULT true CHECK (only_row),
        identity TEXT NOT NULL                              -- the Redis that is archived here, and nowhere else, says the same
    );
    INSERT INTO counter_archive (identity) VALUES (md5(random()::text || clock_timestamp() || pg_backend_pid()));
    CREATE TABLE counter_home (
        address TEXT PRIMARY KEY,                           -- under which that Redis was seen: host:port/database
        seen_at TIMESTAMPTZ NOT NULL DEFAULT now()
    );
    CREATE TABLE counter_node (
        node TEXT PRIMARY KEY,
        servers TEXT[] NOT NULL,                            -- the processes of Redis that it is on
        whole_at TIMESTAMPTZ NOT NULL                       -- when it last saw all counters there
    );
    CREATE TABLE counter_producer (
        stream_group INT NOT NULL,
        producer BYTEA NOT NULL,
        session TEXT NOT NULL,                              -- epoch, sequence, and the number of its refusal
        PRIMARY KEY (stream_group, producer)
    );
    ALTER TABLE counter_watermark
        ADD COLUMN entries_added BIGINT,                    -- entries that the stream ever had up to there; none: not known
        ADD COLUMN whole_from_ms BIGINT DEFAULT 0,          -- from this entry on the tables have all; none: they lack something
        ADD COLUMN whole_from_sequence BIGINT DEFAULT 0;
    UPDATE counter_watermark SET entries_added = 0 WHERE epoch = '' AND event_ms = 0;
    ",
];

/// Brings the tables up to date. Returns how many migrations that took.
pub async fn migrate(client: &mut Client) -> Result<usize, ArchiveError> {
    apply(client, "quipu_migrations", LOCK, MIGRATIONS).await
}

/// The same for any set of tables; `noted_in` is the table that says which migrations have run.
pub(crate) async fn apply(
    client: &mut Client,
    noted_in: &str,
    lock: i64,
    migrations: &[&str],
) -> Result<usize, ArchiveError> {
    let steps = client.transaction().await?;
    // That a table exists already is no news.
    steps.batch_execute("SET LOCAL client_min_messages TO warning").await?;
    steps.execute("SELECT pg_advisory_xact_lock($1)", &[&lock]).await?;
    steps
        .batch_execute(&format!(
            "CREATE TABLE IF NOT EXISTS {noted_in} (
                number INT PRIMARY KEY,
                applied_at TIMESTAMPTZ NOT NULL DEFAULT now()
            )"
        ))
        .await?;
    let newest = format!("SELECT coalesce(max(number), 0) FROM {noted_in}");
    let newest: i32 = steps.query_one(&newest, &[]).await?.get(0);
    let done = usize::try_from(newest).unwrap_or(0);
    if done > migrations.len() {
        return Err(ArchiveError::Unfit(format!(
            "the tables are those of a newer version: migration {done}, and this one knows {}",
            migrations.len()
        )));
    }
    for (number, migration) in (1i32..).zip(migrations).skip(done) {
        steps.batch_execute(migration).await?;
        steps.execute(&format!("INSERT INTO {noted_in} (number) VALUES ($1)"), &[&number]).await?;
    }
    steps.commit().await?;
    Ok(migrations.len() - done)
}
