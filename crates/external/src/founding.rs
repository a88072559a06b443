//! What a node finds in Redis when it starts: counters of an epoch, what a loss has left of them, or nothing, where new ones begin.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::archive::{Archive, Claimed};
use crate::epoch;
use crate::external::{OpenError, nobody};
use crate::groups::{self, GROUPS, POLICIES};
use crate::masters::{Links, Map};

/// A stream without entries can only be made with a consumer group. Nobody reads by it: see `archive/flusher.rs`.
const CONSUMERS: &str = "quipu";

/// The epoch of what lies there, or of what should lie there. Where nothing does and nothing should, one is drawn, and every
/// group gets its marker and its stream.
pub(crate) async fn found_epoch(
    links: &Links,
    map: &Map,
    archive: Option<&Archive>,
) -> Result<String, OpenError> {
    let address = map.of_policies().ok_or_else(nobody)?;
    let ask = redis::cmd("HMGET").arg(POLICIES).arg("epoch").arg("complete").to_owned();
    let mut found: (Option<String>, Option<u8>) = links.ask_for(address, &ask).await?;
    let looked = match archive {
        None => None,
        Some(archive) => match (archive.look(links, map).await, &found.0) {
            // What is there can be counted on without it; what is flushed later waits in the streams.
            (Err(error), Some(_)) if error.may_pass() => {
                tracing::warn!(%error, "the archive cannot be reached; changes wait in the streams in Redis");
                None
            }
            (looked, _) => Some(looked?),
        },
    };
    if let Some(looked) = &looked {
        if let Some(why) = looked.refuses(&Claimed::ask(links, map).await?) {
            return Err(why.into());
        }
        // Redis is empty, or somebody is rebuilding it, or should.
        let is_behind =
            |archived: &String| found.0.as_ref().is_none_or(|epoch| epoch::is_newer(archived, epoch));
        if let Some(archived) = looked.epoch.as_ref().filter(|archived| is_behind(archived)) {
            archive.inspect(|archive| archive.note_bound());
            return Ok(archived.clone());
        }
    }
    let remains = if found.0.is_none() { remains(links, map).await? } else { None };
    if let Some(lost) = remains {
        // Another node may have begun, while this one was looking at PostgreSQL.
        found = links.ask_for(address, &ask).await?;
        if found.0.is_none() {
            return Err(lost);
        }
    }
    if found.0.is_none() {
        let drawn = format!("{:016x}", SmallRng::from_os_rng().random::<u64>());
        let set = redis::cmd("HSETNX").arg(POLICIES).arg("epoch").arg(drawn).to_owned();
        links.ask(address, &set).await?;
        // Another node may have been faster.
        found = links.ask_for(address, &ask).await?;
    }
    let (Some(epoch), complete) = found else {
        return Err(OpenError::Lost("the epoch cannot be kept".into()));
    };
    if complete.is_none() {
        complete_groups(links, map, &epoch).await?;
    }
    if let (Some(archive), Some(_)) = (archive, looked) {
        archive.bind(links, map, &epoch).await?;
    }
    Ok(epoch)
}

/// A marker and a stream for every group of new counters.
async fn complete_groups(links: &Links, map: &Map, epoch: &str) -> Result<(), OpenError> {
    for group in 0..GROUPS {
        let address = map.of_group(group).ok_or_else(nobody)?;
        let mark = redis::cmd("HSETNX").arg(groups::marker(group)).arg("epoch").arg(epoch).to_owned();
        links.ask(address, &mark).await?;
        let mut begin = redis::cmd("XGROUP");
        begin.arg("CREATE").arg(groups::stream(group)).arg(CONSUMERS).arg("0").arg("MKSTREAM");
        match links.ask(address, &begin).await {
            Err(error) if error.code() != Some("BUSYGROUP") => return Err(error.into()),
            _ => {}
        }
    }
    let address = map.of_policies().ok_or_else(nobody)?;
    let complete = redis::cmd("HSET").arg(POLICIES).arg("complete").arg(1).to_owned();
    links.ask(address, &complete).await?;
    Ok(())
}

/// Markers without the hash of policies are what a loss has left: to begin anew beside them would hide it.
async fn remains(links: &Links, map: &Map) -> Result<Option<OpenError>, OpenError> {
    for group in 0..GROUPS {
        let address = map.of_group(group).ok_or_else(nobody)?;
        let look = redis::cmd("HGET").arg(groups::marker(group)).arg("epoch").to_owned();
        let epoch: Option<String> = links.ask_for(address, &look).await?;
        if let Some(epoch) = epoch {
            return Ok(Some(OpenError::Lost(format!(
                "Redis has lost {POLICIES}, with the policies and the epoch, but group {group} is still there and of \
                 epoch {epoch}; restore it, or set its field epoch to that by hand, or flush everything"
            ))));
        }
    }
    Ok(None)
}
