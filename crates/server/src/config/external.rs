//! The settings of a node whose counters lie in Redis, with PostgreSQL behind it.

use anyhow::bail;

use super::secret::{SecretUrl, masked};
use super::{Config, Resolved, Setting, Source, read_into};

pub(super) const SETTINGS: &[Setting] = &[
    Setting {
        name: "backend",
        flag: "backend",
        variable: "QUIPU_BACKEND",
        default: "none",
        value_name: "URL|none",
        help: "Redis or Valkey that keeps the counters, instead of a data folder: redis://..., of a cluster any of its nodes, or several with commas",
        read: |config, text| read_url(&mut config.backend, text, &["redis"], "redis://host:6379"),
    },
    Setting {
        name: "archive",
        flag: "archive",
        variable: "QUIPU_ARCHIVE",
        default: "none",
        value_name: "URL|none",
        help: "PostgreSQL behind the backend, to which changes are written and from which a Redis that lost its data is rebuilt: postgres://...",
        read: |config, text| read_postgres(&mut config.archive, text),
    },
    Setting {
        name: "archive_log",
        flag: "archive-log",
        variable: "QUIPU_ARCHIVE_LOG",
        default: "false",
        value_name: "true|false",
        help: "Also write every single change to the archive, to the table counter_delta_log, which nobody purges",
        read: |config, text| {
            read_into(&mut config.archive_log, text, |text| text.parse().map_err(|_| "true or false"))
        },
    },
    Setting {
        name: "wait_replicas",
        flag: "wait-replicas",
        variable: "QUIPU_WAIT_REPLICAS",
        default: "0",
        value_name: "NUMBER",
        help: "Acknowledge a change once so many replicas of its Redis master have it; with too few its outcome is unknown",
        read: |config, text| read_into(&mut config.wait_replicas, text, replicas),
    },
];

/// The address of a PostgreSQL, or none.
pub(super) fn read_postgres(place: &mut Option<SecretUrl>, text: &str) -> Result<(), String> {
    read_url(place, text, &["postgres", "postgresql"], "postgres://user@host:5432/database")
}

/// Nobody runs more replicas of one master.
const REPLICAS_MAX: usize = 16;

fn replicas(text: &str) -> Result<usize, &'static str> {
    text.parse().ok().filter(|number| *number <= REPLICAS_MAX).ok_or("a number from 0 to 16")
}

fn read_url(
    place: &mut Option<SecretUrl>,
    text: &str,
    schemes: &[&str],
    example: &str,
) -> Result<(), String> {
    let is_known = |text: &str| {
        text.trim()
            .split_once("://")
            .is_some_and(|(scheme, rest)| schemes.contains(&scheme) && !rest.is_empty())
    };
    *place = match text {
        "none" => None,
        // TLS is not built in, and whoever asks for it must not go without.
        text if text.starts_with("rediss://") => {
            return Err("TLS to Redis (rediss://) is not built in; put a tunnel in front of it".into());
        }
        text if is_known(text) => Some(SecretUrl::new(text.trim())),
        text => return Err(format!("{:?} is not a URL like {example}, or none", masked(text))),
    };
    Ok(())
}

/// What only a data folder has.
const OF_A_FOLDER: &[&str] =
    &["data", "durability", "memory", "partitions", "queue.wait", "hot_keys", "mirror.url"];

/// Settings that cannot both be meant.
pub(super) fn check(config: &Config, resolved: &[Resolved]) -> anyhow::Result<()> {
    let Some(backend) = &config.backend else {
        if config.archive.is_some() {
            bail!(
                "archive: PostgreSQL stands behind a backend, and there is none; say --backend redis://... as well"
            );
        }
        if config.wait_replicas > 0 {
            bail!("wait_replicas: speaks of the replicas of a Redis; say --backend redis://... as well");
        }
        return Ok(());
    };
    let is_given = |resolved: &&Resolved| {
        resolved.source != Source::Default && OF_A_FOLDER.contains(&resolved.setting.name)
    };
    if let Some(Resolved { setting, source, .. }) = resolved.iter().find(is_given) {
        bail!(
            "{source}: {} is a setting of a data folder, and the counters lie in {backend}; leave one of the two out",
            setting.name
        );
    }
    if config.archive_log && config.archive.is_none() {
        bail!("archive_log: there is no archive to write to; say --archive postgres://... as well");
    }
    Ok(())
}
