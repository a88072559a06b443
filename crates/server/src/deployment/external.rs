//! Counters in Redis, with PostgreSQL behind it: opened with some patience, flushed while they are served.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use quipu_external::archive::{Archive, Flusher, FlusherOptions, FlusherTasks};
use quipu_external::{External, OpenError, Options};
use tokio::runtime::Runtime;

use crate::config::Config;
use crate::config::secret::SecretUrl;

/// How long a node waits at its start for a Redis or a PostgreSQL that is not there yet: those who start everything together
/// do not say what comes first. After that it ends, and says why; whoever supervises it starts it again.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks.
const START_PAUSE: Duration = Duration::from_millis(250);

/// What INFO calls the durability: Redis decides when a change is on a disk.
pub(super) const DURABILITY: &str = "backend";

/// A node whose counters lie in Redis.
pub struct Backed {
    external: Arc<External>,
    flushing: Option<FlusherTasks>,
    backend: SecretUrl,
    archive: Option<SecretUrl>,
}

impl Backed {
    /// Opens the counters, and begins to flush them where there is an archive.
    pub(super) fn open(runtime: &Runtime, config: &Config) -> anyhow::Result<Backed> {
        let Some(backend) = config.backend.clone() else { bail!("no backend is named") };
        let archive = match &config.archive {
            Some(url) => {
                let archive =
                    Archive::new(url.reveal()).map_err(|error| anyhow!("archive {url}: {error}"))?;
                Some(Arc::new(archive))
            }
            None => None,
        };
        let external = runtime.block_on(open_patiently(&backend, archive.clone(), config))?;
        let flushing = archive.map(|archive| {
            let options = FlusherOptions {
                keeps_log: config.archive_log,
                id_window: Duration::from_millis(config.id_window_ms),
                ..FlusherOptions::default()
            };
            let _inside = runtime.enter();
            Arc::new(Flusher::over(Arc::clone(&external), archive, options)).start()
        });
        Ok(Backed { external, flushing, backend, archive: config.archive.clone() })
    }

    /// The counters.
    pub fn external(&self) -> &Arc<External> {
        &self.external
    }

    pub(super) fn described(&self) -> String {
        let archive = self.archive.as_ref().map(|url| format!(", archive {url}")).unwrap_or_default();
        format!("backend {}{archive}", self.backend)
    }

    /// Ends flushing. What is not flushed yet waits in the streams for the next one.
    pub(super) fn stop(self, runtime: &Runtime) {
        let _inside = runtime.enter();
        drop(self.flushing);
    }
}

async fn open_patiently(
    backend: &SecretUrl,
    archive: Option<Arc<Archive>>,
    config: &Config,
) -> anyhow::Result<Arc<External>> {
    let options = || Options {
        id_window_ms: config.id_window_ms,
        queue: config.queue_requests_max,
        wait_replicas: config.wait_replicas,
        ..Options::default()
    };
    let (began, mut has_complained) = (Instant::now(), false);
    loop {
        let error = match External::open_before(backend.reveal(), archive.clone(), options()).await {
            Ok(external) => return Ok(external),
            Err(error) => error,
        };
        if !error.may_pass() || began.elapsed() > START_PATIENCE {
            return Err(explained(error, config)).context("the counters in Redis cannot be opened");
        }
        if !std::mem::replace(&mut has_complained, true) {
            tracing::warn!(
                "{}; waiting up to {} s for it",
                explained(error, config),
                START_PATIENCE.as_secs()
            );
        }
        tokio::time::sleep(START_PAUSE).await;
    }
}

/// What is wrong, with whom, and what to do. URLs are shown without passwords.
fn explained(error: OpenError, config: &Config) -> anyhow::Error {
    let shown = |url: &Option<SecretUrl>| url.as_ref().map(SecretUrl::to_string).unwrap_or_default();
    match &error {
        OpenError::Redis(_) => {
            let backend = shown(&config.backend);
            anyhow!(
                "backend {backend}: {error}; check that it is a Redis that listens there, and user and password in --backend"
            )
        }
        OpenError::Archive(archive) => {
            anyhow!("archive {}: {error}{}", shown(&config.archive), archive.advice())
        }
        OpenError::Lost(_) | OpenError::Denied(_) => anyhow!("backend {}: {error}", shown(&config.backend)),
    }
}
