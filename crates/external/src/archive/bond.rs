//! Which Redis and which archive belong together.
//!
//! Tables have an identity of their own, and Redis says by which it is archived: so nobody trims streams after bringing them to other
//! tables. Tables know under which addresses their Redis was seen: so one that is empty somewhere else is not taken for it. And nodes
//! say each second that they see all counters, on which processes of Redis: so one that is empty, or another with the same counters, is
//! not used beside the right one under the same address.

use tokio_postgres::Client;

use super::store::{START_MAX, epoch_in, in_time};
use super::streams::{self, Place};
use super::watermark::{self, Judged};
use super::{Archive, ArchiveError, migrate};
use crate::epoch;
use crate::groups::POLICIES;
use crate::masters::{Links, Map};
use crate::policies::{self, PoliciesError};

/// The field of the hash of policies that names the archive.
pub(crate) const FIELD: &str = "archive";

/// Who has not said anything for so long is gone.
const SILENCE: &str = "3 seconds";
/// Nodes that are gone for so long are forgotten.
const FORGOTTEN: &str = "1 hour";

/// What an archive says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Looked {
    identity: String,
    /// The epoch of the counters in it, if there are any.
    pub(crate) epoch: Option<String>,
    homes: Vec<String>,
    /// The processes of Redis that each node is on which saw all counters a moment ago.
    in_use_on: Vec<Vec<String>>,
}

/// What a Redis says of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claimed {
    pub(crate) epoch: Option<String>,
    /// By which archive it is archived.
    pub(crate) archive: Option<String>,
    /// Where it is.
    pub(crate) addresses: Vec<String>,
    /// Its processes, if it tells.
    pub(crate) servers: Vec<String>,
}

impl Claimed {
    pub(crate) async fn ask(links: &Links, map: &Map) -> Result<Claimed, ArchiveError> {
        let address = map.of_policies().ok_or_else(crate::external::nobody)?;
        let ask = redis::cmd("HMGET").arg(POLICIES).arg("epoch").arg(FIELD).to_owned();
        let (epoch, archive) = links.ask_for(address, &ask).await?;
        let (addresses, servers) = (links.addresses(map), servers(links, map).await);
        Ok(Claimed { epoch, archive, addresses, servers })
    }
}

/// The processes that hold the counters: after a restart they are others. Of who may not be asked nothing is known.
pub(super) async fn servers(links: &Links, map: &Map) -> Vec<String> {
    let mut servers = Vec::new();
    for address in map.masters() {
        let info = redis::cmd("INFO").arg("server").to_owned();
        let told: Option<String> = links.ask_for(&address, &info).await.ok();
        let run = told.as_ref().and_then(|told| told.lines().find_map(|line| line.strip_prefix("run_id:")));
        servers.extend(run.map(|run| format!("{}/{}", run.trim(), links.database())));
    }
    servers
}

fn are_apart(one: &[String], other: &[String]) -> bool {
    !one.is_empty() && !other.is_empty() && !one.iter().any(|server| other.contains(server))
}

impl Looked {
    /// Why the two are not to be used together, if they are not.
    pub(crate) fn refuses(&self, redis: &Claimed) -> Option<ArchiveError> {
        let Looked { identity, homes, .. } = self;
        let unfit = |why: String| Some(ArchiveError::Unfit(why));
        match (&redis.archive, &redis.epoch, &self.epoch) {
            (Some(other), _, _) if other != identity => unfit(bound_to_another(other, identity)),
            (_, Some(epoch), Some(known)) if !epoch::is_related(known, epoch) => unfit(format!(
                "the archive has the counters of epoch {known}, and Redis has those of epoch {epoch}: they do not belong \
                 together. Name another database in --archive, or the Redis that it was filled from"
            )),
            (_, None, Some(_))
                if !homes.is_empty() && !homes.iter().any(|home| redis.addresses.contains(home)) =>
            {
                let first = redis.addresses.first().map_or("", |address| address);
                unfit(format!(
                    "the archive has the counters of the Redis at {}, and the one at {} is empty: that may be another one, so \
                     nothing is brought back there. Name the right one in --backend. If the counters shall move there, tell \
                     the archive: INSERT INTO counter_home (address) VALUES ('{first}')",
                    homes.join(", "),
                    redis.addresses.join(", ")
                ))
            }
            _ if self.in_use_on.iter().any(|servers| are_apart(servers, &redis.servers)) => {
                Some(ArchiveError::InUse(in_use()))
            }
            _ => None,
        }
    }
}

fn bound_to_another(other: &str, identity: &str) -> String {
    format!(
        "this Redis is archived in another database of PostgreSQL ({other}; this one is {identity}), and each of two would get a \
         part of the changes. Name that one in --archive. To give it up for this one, stop all nodes, then: \
         redis-cli HDEL {POLICIES} {FIELD}"
    )
}

pub(super) fn in_use() -> String {
    "the archive is in use by nodes that are on another Redis, which has all counters: check --backend; if that one is to be \
     given up, stop its nodes"
        .to_owned()
}

impl Archive {
    /// What it says of itself. In one that is not that of this Redis no tables are made.
    pub(crate) async fn look(&self, links: &Links, map: &Map) -> Result<Looked, ArchiveError> {
        let mut client = self.connect().await?;
        in_time(START_MAX, async {
            refuse_other(&client, links, map).await?;
            migrate(&mut client).await?;
            looked(&client).await
        })
        .await
    }

    /// Binds it to this Redis, which has this epoch and is not bound to another.
    pub(crate) async fn bind(&self, links: &Links, map: &Map, epoch: &str) -> Result<(), ArchiveError> {
        let client = self.connect().await?;
        in_time(START_MAX, async {
            bind(&client, links, map, epoch).await?;
            self.note_bound();
            doubt_what_is_behind(&client, links, map, epoch).await
        })
        .await
    }
}

pub(super) async fn identity(client: &Client) -> Result<String, ArchiveError> {
    Ok(client.query_one("SELECT identity FROM counter_archive", &[]).await?.get(0))
}

async fn looked(client: &Client) -> Result<Looked, ArchiveError> {
    let homes = client.query("SELECT address FROM counter_home ORDER BY seen_at, address", &[]).await?;
    let nodes = format!("SELECT servers FROM counter_node WHERE whole_at > now() - interval '{SILENCE}'");
    let nodes = client.query(&nodes, &[]).await?;
    Ok(Looked {
        identity: identity(client).await?,
        epoch: epoch_in(client).await?,
        homes: homes.iter().map(|row| row.get(0)).collect(),
        in_use_on: nodes.iter().map(|row| row.get(0)).collect(),
    })
}

/// Binds the two, if they may be: Redis first, where only one of several can be the first.
pub(super) async fn bind(client: &Client, links: &Links, map: &Map, epoch: &str) -> Result<(), ArchiveError> {
    let (looked, claimed) = (looked(client).await?, Claimed::ask(links, map).await?);
    if let Some(why) = looked.refuses(&claimed) {
        return Err(why);
    }
    let address = map.of_policies().ok_or_else(crate::external::nobody)?;
    if claimed.archive.is_none() {
        refuse_without_rows(client, links, address).await?;
    }
    let set = redis::cmd("HSETNX").arg(POLICIES).arg(FIELD).arg(&looked.identity).to_owned();
    links.ask(address, &set).await?;
    check(client, links, map).await?;
    let begin = "UPDATE counter_watermark SET epoch = $1 WHERE epoch = ''";
    client.execute(begin, &[&epoch]).await?;
    let home = "INSERT INTO counter_home (address) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING";
    client.execute(home, &[&claimed.addresses]).await?;
    Ok(())
}

/// Policies that want strong counters are older than this bond: those counters lie in the archive of before, and in no stream. Tables for
/// them that are here already were brought from there.
async fn refuse_without_rows(client: &Client, links: &Links, address: &str) -> Result<(), ArchiveError> {
    let stored = policies::all(&links.ask(address, &policies::all_command()).await?);
    let stored = stored.map_err(|error| match error {
        PoliciesError::Redis(error) => ArchiveError::Redis(error),
        other => ArchiveError::Unfit(other.to_string()),
    })?;
    let strong = stored.policies.iter().filter(|(_, policy)| policy.strong);
    let strong: Vec<String> =
        strong.map(|(pattern, _)| String::from_utf8_lossy(pattern).into_owned()).collect();
    let Some(first) = strong.first() else { return Ok(()) };
    let has_rows = client.query_one("SELECT to_regclass('counter_strong') IS NOT NULL", &[]).await?;
    if has_rows.get(0) {
        return Ok(());
    }
    Err(ArchiveError::Unfit(format!(
        "policies want strong counters ({}), whose rows lie in the archive of before and nowhere else, and this database has none. \
         Stop all nodes first, also those that run without this archive. Then copy the rows here: \
         pg_dump -t 'counter_strong*' -t quipu_strong_migrations OLD | psql NEW. If none were ever counted, or they are to be given \
         up, remove the policies instead, while all nodes are stopped: redis-cli HDEL {POLICIES} '={first}'",
        strong.join(", ")
    )))
}

/// Has nobody count in groups that have come back older than they were.
pub(super) async fn doubt_what_is_behind(
    client: &Client,
    links: &Links,
    map: &Map,
    epoch: &str,
) -> Result<(), ArchiveError> {
    // The watermarks first: what a stream has had by then only grows.
    let known = watermark::all(client).await?;
    let places: Vec<Place> = known.iter().map(|known| known.place).collect();
    let found = streams::positions(links, map, &places).await?;
    for (known, found) in known.iter().zip(found) {
        if let Some(found) = found
            && known.epoch == epoch
            && known.judge(&found) == Judged::RedisIsBehind
            && streams::doubt(links, map, known.group, epoch).await?
        {
            known.log_behind(&found);
        }
    }
    Ok(())
}

/// Makes sure that the two are bound to each other. Not so while Redis has lost what says so.
pub(super) async fn check(client: &Client, links: &Links, map: &Map) -> Result<bool, ArchiveError> {
    let address = map.of_policies().ok_or_else(crate::external::nobody)?;
    let ask = redis::cmd("HMGET").arg(POLICIES).arg("epoch").arg(FIELD).to_owned();
    let named: (Option<String>, Option<String>) = links.ask_for(address, &ask).await?;
    match (identity(client).await?, named) {
        (_, (None, _)) => Ok(false),
        (ours, (_, Some(named))) if named == ours => Ok(true),
        (ours, (_, Some(named))) => Err(ArchiveError::Unfit(bound_to_another(&named, &ours))),
        (_, (_, None)) => Err(ArchiveError::Unfit(format!(
            "Redis does not say any more by which archive it is archived (field {FIELD} of {POLICIES}): start a node with the right \
             --archive, and stop the others"
        ))),
    }
}

/// What is left of a Redis that is archived elsewhere is not brought back from here.
pub(super) async fn refuse_other(client: &Client, links: &Links, map: &Map) -> Result<(), ArchiveError> {
    let Some(named) = Claimed::ask(links, map).await?.archive else { return Ok(()) };
    let is_new = client.query_one("SELECT to_regclass('counter_archive') IS NULL", &[]).await?;
    let ours = if is_new.get(0) { "new".to_owned() } else { identity(client).await? };
    match named == ours {
        true => Ok(()),
        false => Err(ArchiveError::Unfit(bound_to_another(&named, &ours))),
    }
}

/// This node sees all counters, on these processes.
pub(super) async fn say_whole(client: &Client, node: &str, servers: &[String]) -> Result<(), ArchiveError> {
    let say = "INSERT INTO counter_node (node, servers, whole_at) VALUES ($1, $2, now())
        ON CONFLICT (node) DO UPDATE SET servers = excluded.servers, whole_at = excluded.whole_at";
    client.execute(say, &[&node, &servers]).await?;
    let forget = format!("DELETE FROM counter_node WHERE whole_at < now() - interval '{FORGOTTEN}'");
    client.execute(&forget, &[]).await?;
    Ok(())
}

/// This node does not.
pub(super) async fn take_back(client: &Client, node: &str) -> Result<(), ArchiveError> {
    client.execute("DELETE FROM counter_node WHERE node = $1", &[&node]).await?;
    Ok(())
}

/// Whether other nodes see all counters just now; if processes are given, on others than these.
pub(super) async fn others_see_all(
    client: &Client,
    node: &str,
    apart_from: Option<&[String]>,
) -> Result<bool, ArchiveError> {
    let others = format!(
        "SELECT servers FROM counter_node WHERE node <> $1 AND whole_at > now() - interval '{SILENCE}'"
    );
    let others = client.query(&others, &[&node]).await?;
    let is_other = |servers: Vec<String>| apart_from.is_none_or(|ours| are_apart(&servers, ours));
    Ok(others.iter().any(|row| is_other(row.get(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(epoch: Option<&str>) -> Looked {
        Looked {
            identity: "archive".into(),
            epoch: epoch.map(str::to_owned),
            homes: vec!["redis:6379/0".into()],
            in_use_on: Vec::new(),
        }
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let redis = |epoch: Option<&str>, archive: Option<&str>, address: &str| Claimed {
            epoch: epoch.map(str::to_owned),
            archive: archive.map(str::to_owned),
            addresses: vec![address.to_owned()],
            servers: vec!["run/0".into()],
        };
        let said = |archive: &Looked, redis: &Claimed| archive.refuses(redis).map(|why| why.to_string());
        let (home, away) = ("redis:6379/0", "redis:6379/1");
        let ours = archive(Some("4f1c.1"));
        assert_eq!(said(&ours, &redis(Some("4f1c.1"), Some("archive"), home)), None);
        assert_eq!(said(&ours, &redis(Some("4f1c"), None, away)), None, "it has the counters");
        assert_eq!(said(&ours, &redis(None, None, home)), None, "it has lost them");
        assert_eq!(said(&archive(None), &redis(None, None, away)), None, "both are new");
        for (redis, part) in [
            (redis(Some("4f1c.1"), Some("other"), home), "HDEL {q-policies}:p archive"),
            (redis(Some("77aa"), None, home), "do not belong together"),
            (redis(None, None, away), "INSERT INTO counter_home (address) VALUES ('redis:6379/1')"),
        ] {
            let said = said(&ours, &redis);
            assert!(said.as_ref().is_some_and(|said| said.contains(part)), "{said:?}");
        }
        let used = Looked { in_use_on: vec![vec!["run/1".into()]], ..ours.clone() };
        assert!(said(&used, &redis(Some("4f1c.1"), Some("archive"), home)).is_some());
        let used = Looked { in_use_on: vec![vec!["run/0".into(), "run/1".into()]], ..ours };
        assert_eq!(said(&used, &redis(Some("4f1c.1"), Some("archive"), home)), None);
    }
}
