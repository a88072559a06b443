//! What Redis has counted, in PostgreSQL.
//!
//! | file | what lives there |
//! |---|---|
//! | `store` | the PostgreSQL itself |
//! | `bond` | which Redis and which archive belong together |
//! | `migrations` | the tables, and how they come to be |
//! | `shards` | counters in stripes, and their totals |
//! | `bodies` | what counters have beyond their numbers, in a table of its own |
//! | `producers` | how far producers are |
//! | `change` | a change, as the streams tell it |
//! | `streams`, `watermark` | what the streams have, up to where it is in the tables, and whether something is missing |
//! | `flusher`, `rows` | brings changes from the streams to the tables, each once |
//! | `seed` | brings to the tables what no stream tells any more |
//! | `meter` | how far behind the tables are |
//! | `snapshot` | reads from the tables, while Redis cannot be asked |
//! | `recovery`, `restored` | brings back to Redis what it has lost |
//! | `told` | what is told about that |

mod bodies;
mod bond;
mod change;
mod flusher;
mod meter;
mod migrations;
mod producers;
mod recovery;
mod restored;
mod rows;
mod seed;
mod shards;
mod snapshot;
mod store;
mod streams;
#[cfg(test)]
mod tests;
mod told;
mod watermark;

use std::error::Error as _;

use tokio_postgres::error::SqlState;

pub(crate) use bond::{Claimed, FIELD as ARCHIVE_FIELD};
#[cfg(test)]
pub(crate) use change::Change;
pub(crate) use change::key_of;
pub(crate) use flusher::wall_ms;
pub use flusher::{Flusher, FlusherOptions, FlusherTasks};
pub(crate) use migrations::apply as apply_migrations;
pub use migrations::migrate;
pub(crate) use snapshot::{Seen, Snapshot};
pub use store::{Archive, ArchiveState};
pub use told::Recovery;

/// Why the archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// PostgreSQL cannot be reached, or refuses.
    #[error("PostgreSQL: {}", postgres_says(.0))]
    Postgres(#[from] tokio_postgres::Error),
    /// PostgreSQL says nothing.
    #[error("PostgreSQL does not answer within {} s", .0.as_secs())]
    Silent(std::time::Duration),
    /// Redis cannot be reached, or refuses.
    #[error("Redis: {0}")]
    Redis(#[from] redis::RedisError),
    /// The two do not belong together, or one of them is of a newer version.
    #[error("{0}")]
    Unfit(String),
    /// Nodes on another Redis use it just now.
    #[error("{0}")]
    InUse(String),
    /// Somebody else has written into a stream.
    #[error("{0}")]
    Foreign(String),
}

impl ArchiveError {
    /// Whether what stands in the way of one group does not concern others: those may lie with another master.
    fn is_of_one_group(&self) -> bool {
        matches!(self, ArchiveError::Foreign(_) | ArchiveError::Redis(_))
    }

    /// What to do about it, where that is not said.
    pub fn advice(&self) -> &'static str {
        let ArchiveError::Postgres(error) = self else {
            return match self {
                ArchiveError::Silent(_) => "; check that it is a PostgreSQL that listens there",
                _ => "",
            };
        };
        match error.code() {
            None => "; check that it is a PostgreSQL that listens there",
            Some(code) if *code == SqlState::INVALID_CATALOG_NAME => {
                "; create that database, or name another in --archive"
            }
            Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
                "; the user in --archive needs the right to make tables there (GRANT CREATE ON SCHEMA public)"
            }
            Some(code) if is_wrong_setting(code) => "; check user and password in --archive",
            Some(_) => "",
        }
    }

    /// Whether it may go by itself. What was configured wrongly does not.
    pub fn may_pass(&self) -> bool {
        match self {
            ArchiveError::Postgres(error) => match error.code() {
                Some(code) => !is_wrong_setting(code),
                // Without a code it is the connection that failed, or the URL that makes no sense.
                None => error.source().is_some_and(|source| source.is::<std::io::Error>()),
            },
            ArchiveError::Redis(_) | ArchiveError::InUse(_) | ArchiveError::Silent(_) => true,
            ArchiveError::Unfit(_) | ArchiveError::Foreign(_) => false,
        }
    }
}

fn is_wrong_setting(code: &SqlState) -> bool {
    [
        SqlState::INVALID_PASSWORD,
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        SqlState::INVALID_CATALOG_NAME,
        SqlState::INSUFFICIENT_PRIVILEGE,
    ]
    .contains(code)
}

/// The library says only what it did; why it failed is its source.
pub(crate) fn postgres_says(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(said), _) => said.to_string(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}
