//! The PostgreSQL in which the tables lie: how one gets there, and what is known of how it goes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_postgres::{Client, Config, NoTls};

use super::{ArchiveError, Recovery};
use crate::epoch;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A machine that is silent for so long is gone: the system's own patience is hours.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A PostgreSQL that has the tables, or will have them.
pub struct Archive {
    config: Config,
    pub(crate) facts: ArchiveFacts,
    /// The last recoveries, the newest first.
    recoveries: Mutex<Vec<Recovery>>,
    /// Why changes wait, if they do.
    problem: Mutex<Option<String>>,
    /// Whether it is known to belong to the Redis that is used.
    is_bound: AtomicBool,
}

/// How it goes, for people.
#[derive(Clone, Debug)]
pub struct ArchiveState {
    /// Whether the last attempt to flush went well.
    pub is_up: bool,
    /// How long ago the oldest change was that is not in the tables yet.
    pub lag_ms: u64,
    /// Entries that wait in the streams.
    pub stream_entries: u64,
    /// Events that this node has flushed.
    pub flushed: u64,
    /// Groups of which the archive has not got everything yet: they cannot be rebuilt from it.
    pub unseeded_groups: u64,
    /// Why changes wait, if they do.
    pub problem: Option<String>,
    /// The last recoveries, the newest first.
    pub recoveries: Vec<Recovery>,
}

/// How it goes.
#[derive(Default)]
pub(crate) struct ArchiveFacts {
    /// Events that this node has flushed.
    pub(crate) flushed: AtomicU64,
    /// How often flushing failed.
    pub(crate) failures: AtomicU64,
    /// Whether the last attempt to flush went well.
    pub(crate) is_up: AtomicBool,
    /// How long ago the oldest change was that is not in the tables yet.
    pub(crate) lag_ms: AtomicU64,
    /// Entries that lie in the streams.
    pub(crate) stream_entries: AtomicU64,
    /// Groups of which the tables have not got everything.
    pub(crate) unseeded_groups: AtomicU64,
    /// How often Redis was rebuilt, by whomever.
    recoveries: AtomicU64,
    /// How long the last gap was.
    gap_ms: AtomicU64,
}

impl ArchiveFacts {
    pub(crate) fn all(&self) -> Vec<(&'static str, u64)> {
        let read = |fact: &AtomicU64| fact.load(Ordering::Relaxed);
        vec![
            ("archive_up", u64::from(self.is_up.load(Ordering::Relaxed))),
            ("archive_lag_ms", read(&self.lag_ms)),
            ("archive_stream_entries", read(&self.stream_entries)),
            ("archive_flushed_events", read(&self.flushed)),
            ("archive_failures", read(&self.failures)),
            ("archive_unseeded_groups", read(&self.unseeded_groups)),
            ("archive_recoveries", read(&self.recoveries)),
            ("archive_gap_ms", read(&self.gap_ms)),
        ]
    }
}

/// How long PostgreSQL may take to let somebody in.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// What a node asks at its start may take so long, tables that have to be made included: others wait for that.
pub(super) const START_MAX: Duration = Duration::from_secs(60);
/// A node that hangs in the middle of a transaction must not keep others from what it has locked. Between two statements a node waits for
/// Redis at most, which is given up sooner.
const IDLE_MAX: &str = "SET idle_in_transaction_session_timeout = '20s'";

impl Archive {
    /// The one that a URL names. Nobody is asked yet.
    pub fn new(url: &str) -> Result<Archive, ArchiveError> {
        let mut config: Config = url.parse()?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config.keepalives_idle(SILENCE_MAX).tcp_user_timeout(SILENCE_MAX);
        if config.get_application_name().is_none() {
            config.application_name("quipu");
        }
        Ok(Archive {
            config,
            facts: ArchiveFacts::default(),
            recoveries: Mutex::default(),
            problem: Mutex::default(),
            is_bound: AtomicBool::new(false),
        })
    }

    /// It belongs to the Redis that is used.
    pub(crate) fn note_bound(&self) {
        self.is_bound.store(true, Ordering::Relaxed);
    }

    /// Whether it is known to belong to the Redis that is used. Until then nothing is counted in it.
    pub(crate) fn is_bound(&self) -> bool {
        self.is_bound.load(Ordering::Relaxed)
    }

    /// How it goes.
    pub fn state(&self) -> ArchiveState {
        let read = |fact: &AtomicU64| fact.load(Ordering::Relaxed);
        ArchiveState {
            is_up: self.facts.is_up.load(Ordering::Relaxed),
            lag_ms: read(&self.facts.lag_ms),
            stream_entries: read(&self.facts.stream_entries),
            flushed: read(&self.facts.flushed),
            unseeded_groups: read(&self.facts.unseeded_groups),
            problem: self.problem.lock().clone(),
            recoveries: self.recoveries.lock().clone(),
        }
    }

    /// Why changes wait, if they do.
    pub(super) fn note_problem(&self, problem: Option<String>) {
        *self.problem.lock() = problem;
    }

    /// What the tables tell about recoveries.
    pub(super) fn note_recoveries(&self, count: u64, last: Vec<Recovery>) {
        let gap = last.iter().find_map(|recovery| recovery.gap_ms);
        let gap_ms = gap.map_or(0, |(from, to)| u64::try_from(to.saturating_sub(from)).unwrap_or(0));
        self.facts.recoveries.store(count, Ordering::Relaxed);
        self.facts.gap_ms.store(gap_ms, Ordering::Relaxed);
        *self.recoveries.lock() = last;
    }

    /// The fields of the hash of policies, as they were last flushed.
    pub(crate) async fn policies(&self) -> Result<Vec<Vec<u8>>, ArchiveError> {
        let stored = self.connect().await?.query_opt("SELECT fields FROM counter_policies", &[]).await?;
        Ok(stored.map(|row| row.get(0)).unwrap_or_default())
    }

    /// A connection of one's own. It ends with the client.
    pub(crate) async fn connect(&self) -> Result<Client, ArchiveError> {
        let opened = tokio::time::timeout(CONNECT_MAX, self.config.connect(NoTls)).await;
        let (client, connection) = opened.map_err(|_| ArchiveError::Silent(CONNECT_MAX))??;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to PostgreSQL ended");
            }
        });
        in_time(CONNECT_MAX, async { Ok(client.batch_execute(IDLE_MAX).await?) }).await?;
        Ok(client)
    }
}

/// No longer than this.
pub(super) async fn in_time<T>(
    longest: Duration,
    asked: impl Future<Output = Result<T, ArchiveError>>,
) -> Result<T, ArchiveError> {
    tokio::time::timeout(longest, asked).await.unwrap_or(Err(ArchiveError::Silent(longest)))
}

/// The epoch of the counters in the tables, the newest if there are several; nothing before there are any.
pub(super) async fn epoch_in(client: &Client) -> Result<Option<String>, ArchiveError> {
    let rows = client.query("SELECT DISTINCT epoch FROM counter_watermark WHERE epoch <> ''", &[]).await?;
    let epochs = rows.iter().map(|row| row.get::<_, String>(0));
    Ok(epochs.reduce(|one, other| if epoch::is_newer(&other, &one) { other } else { one }))
}
