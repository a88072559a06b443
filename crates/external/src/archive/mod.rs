//! What Redis has counted, in PostgreSQL.
//!
//! | file | what lives there |
//! |---|---|
//! | `migrations` | the tables, and how they come to be |
//! | `change` | a change, as the streams tell it |
//! | `flusher` | brings changes from the streams to the tables, each once |

mod change;
mod flusher;
mod migrations;

pub use flusher::{Flusher, FlusherOptions};
pub use migrations::migrate;

/// Why the archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// PostgreSQL cannot be reached, or refuses.
    #[error("PostgreSQL: {0}")]
    Postgres(#[from] tokio_postgres::Error),
    /// Redis cannot be reached, or refuses.
    #[error("Redis: {0}")]
    Redis(#[from] redis::RedisError),
    /// The two do not belong together, or one of them is of a newer version.
    #[error("{0}")]
    Unfit(String),
}
