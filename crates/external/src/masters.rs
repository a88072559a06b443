//! Where the groups are, and connections to there.
//!
//! The client library's own cluster connection is not used: it repeats what failed by its own judgement, and a call whose
//! answer was lost may only be repeated if everything in it has an id. A multiplexed connection repeats nothing.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue};
use redis::{ErrorKind, IntoConnectionInfo, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};

use crate::call::{FUNCTION, LIBRARY};
use crate::epoch;
use crate::groups::{self, GROUPS, POLICIES};

/// Which master holds which slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Map {
    /// Ranges of slots, and the address of their master. A single server has them all.
    ranges: Vec<(u16, u16, String)>,
}

impl Map {
    pub(crate) fn single(address: String) -> Map {
        Map { ranges: vec![(0, u16::MAX, address)] }
    }

    fn of_slot(&self, slot: u16) -> Option<&str> {
        let holds = |(first, last, _): &&(u16, u16, String)| (*first..=*last).contains(&slot);
        self.ranges.iter().find(holds).map(|(_, _, address)| address.as_str())
    }

    /// The master of a group, unless nobody has its slot.
    pub(crate) fn of_group(&self, group: u16) -> Option<&str> {
        self.of_slot(groups::home(group))
    }

    /// The master that has the policies.
    pub(crate) fn of_policies(&self) -> Option<&str> {
        self.of_slot(quipu_counting::slot::slot(POLICIES.as_bytes()))
    }

    /// All masters, always in the same order.
    pub(crate) fn masters(&self) -> Vec<String> {
        let all: BTreeSet<&String> = self.ranges.iter().map(|(_, _, address)| address).collect();
        all.into_iter().cloned().collect()
    }

    /// The groups of a master.
    pub(crate) fn groups_of(&self, address: &str) -> impl Iterator<Item = u16> {
        (0..GROUPS).filter(move |group| self.of_group(*group) == Some(address))
    }
}

/// Connections, one to each server, made when they are needed.
pub(crate) struct Links {
    /// The servers that were named, and how one gets in.
    seeds: Vec<ConnectionInfo>,
    timeout: Duration,
    open: Mutex<HashMap<String, MultiplexedConnection>>,
}

impl Links {
    /// `url` names one server, or several of a cluster with commas in between. One gets into those that are named by host and
    /// port alone as into the first.
    pub(crate) fn new(url: &str, timeout: Duration) -> RedisResult<Links> {
        let mut seeds: Vec<ConnectionInfo> = Vec::new();
        for url in url.split(',').map(str::trim) {
            let seed = match (seeds.first(), url.contains("://"), split_address(url)) {
                (Some(first), false, Some((host, port))) => {
                    first.clone().set_addr(ConnectionAddr::Tcp(host.to_owned(), port))
                }
                _ => url.into_connection_info()?,
            };
            seeds.push(seed);
        }
        Ok(Links { seeds, timeout, open: Mutex::new(HashMap::new()) })
    }

    /// The number of the database that is used.
    pub(crate) fn database(&self) -> i64 {
        self.seeds.first().map_or(0, |seed| seed.redis_settings().db())
    }

    /// What the servers are called that were named, and those that hold the slots, with the database.
    pub(crate) fn addresses(&self, map: &Map) -> Vec<String> {
        let named: Vec<String> = self.seeds.iter().map(|seed| seed.addr().to_string()).collect();
        let others = map.masters().into_iter().filter(|address| !named.contains(address));
        let all: Vec<String> = named.iter().cloned().chain(others).collect();
        all.into_iter().map(|address| format!("{address}/{}", self.database())).collect()
    }

    /// A connection to this server: the one there is, or a new one. Whoever fails here has sent nothing.
    pub(crate) async fn get(&self, address: &str) -> RedisResult<MultiplexedConnection> {
        if let Some(known) = self.open.lock().get(address) {
            return Ok(known.clone());
        }
        let seed = self.seeds.iter().find(|seed| seed.addr().to_string() == address);
        let info = match (seed, self.seeds.first(), split_address(address)) {
            (Some(seed), _, _) => seed.clone(),
            (None, Some(first), Some((host, port))) => {
                first.clone().set_addr(ConnectionAddr::Tcp(host.to_owned(), port))
            }
            _ => return Err((ErrorKind::InvalidClientConfig, "an address without a port").into()),
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout));
        let client = Client::open(info)?;
        // The library bounds the connection itself; greetings are part of it.
        let opened = client.get_multiplexed_async_connection_with_config(&config);
        let opened = within(self.timeout * 2, opened).await?;
        self.open.lock().insert(address.to_owned(), opened.clone());
        Ok(opened)
    }

    /// This one has failed: the next who asks gets a new one.
    pub(crate) fn forget(&self, address: &str) {
        self.open.lock().remove(address);
    }

    /// One command, in time.
    pub(crate) async fn ask(&self, address: &str, command: &Cmd) -> RedisResult<Value> {
        let mut link = self.get(address).await?;
        let asked = within(self.timeout, link.send_packed_command(command)).await;
        if asked.as_ref().is_err_and(|error| !is_said_by_server(error)) {
            self.forget(address);
        }
        asked.and_then(Value::extract_error)
    }

    /// The same, for an answer of this form.
    pub(crate) async fn ask_for<T: FromRedisValue>(&self, address: &str, command: &Cmd) -> RedisResult<T> {
        Ok(redis::from_redis_value(self.ask(address, command).await?)?)
    }

    /// Several commands at once, in time. Each answer may be an error of its own.
    pub(crate) async fn ask_all(
        &self,
        address: &str,
        pipeline: &Pipeline,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let mut link = self.get(address).await?;
        let asked = within(self.timeout, link.send_packed_commands(pipeline, 0, count)).await;
        if asked.as_ref().is_err_and(|error| !is_said_by_server(error)) {
            self.forget(address);
        }
        asked
    }

    /// Asks those that are named where the slots are.
    pub(crate) async fn map(&self) -> RedisResult<Map> {
        let (mut failed, mut alone): (Option<RedisError>, Option<String>) = (None, None);
        for address in self.named() {
            match self.look_from(&address).await {
                Ok(Seen::Cluster(map)) => return Ok(map),
                Ok(Seen::Master) => match alone.replace(address.clone()) {
                    None => {}
                    Some(other) => {
                        let why = format!(
                            "{other} and {address} are servers of their own; name one of them, or those of a cluster"
                        );
                        return Err((ErrorKind::InvalidClientConfig, "several servers", why).into());
                    }
                },
                Ok(Seen::Replica) => {
                    failed = failed.or_else(|| {
                        Some((ErrorKind::Io, "is a replica, and its master cannot be asked", address).into())
                    });
                }
                Err(error) => failed = Some(error),
            }
        }
        match alone {
            Some(address) => Ok(Map::single(address)),
            None => {
                Err(failed.unwrap_or_else(|| (ErrorKind::InvalidClientConfig, "no server is named").into()))
            }
        }
    }

    /// The same while counters of an epoch are being counted: whoever is known is asked first, and a server without a cluster is another's place only if it
    /// is a master that has those counters.
    pub(crate) async fn map_again(&self, known: &Map, epoch: &str) -> RedisResult<Map> {
        let mut failed: Option<RedisError> = None;
        let masters = known.masters();
        for address in masters.iter().cloned().chain(self.named()) {
            match self.look_from(&address).await {
                Ok(Seen::Cluster(map)) => return Ok(map),
                Ok(Seen::Master)
                    if masters.contains(&address)
                        || self.has_epoch(&address, epoch).await.unwrap_or(false) =>
                {
                    return Ok(Map::single(address));
                }
                Ok(Seen::Master | Seen::Replica) => {}
                Err(error) => failed = Some(error),
            }
        }
        Err(failed
            .unwrap_or_else(|| (ErrorKind::Io, "nobody named is a master that has the counters").into()))
    }

    fn named(&self) -> impl Iterator<Item = String> {
        self.seeds.iter().map(|seed| seed.addr().to_string())
    }

    async fn look_from(&self, address: &str) -> RedisResult<Seen> {
        match self.ask(address, redis::cmd("CLUSTER").arg("SLOTS")).await {
            Ok(slots) => match map_of(&slots, address) {
                Some(map) if !map.ranges.is_empty() => Ok(Seen::Cluster(map)),
                _ => Err((ErrorKind::Client, "nobody has any slots").into()),
            },
            Err(error) if error.to_string().contains("cluster support disabled") => {
                let role = self.ask(address, &redis::cmd("ROLE")).await;
                // Who may not ask takes it for what it was named as.
                Ok(if matches!(role, Ok(role) if is_replica(&role)) { Seen::Replica } else { Seen::Master })
            }
            Err(error) => Err(error),
        }
    }

    async fn has_epoch(&self, address: &str, epoch: &str) -> RedisResult<bool> {
        let ask = redis::cmd("HGET").arg(POLICIES).arg("epoch").to_owned();
        let found: Option<String> = self.ask_for(address, &ask).await?;
        Ok(found.is_some_and(|found| found == epoch || epoch::is_newer(&found, epoch)))
    }

    /// Brings the function to a master.
    pub(crate) async fn load(&self, address: &str) -> RedisResult<()> {
        let load = redis::cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(LIBRARY).clone();
        self.ask(address, &load).await?;
        tracing::info!(address, library = FUNCTION, "the function library was loaded");
        Ok(())
    }
}

/// No call lasts longer.
pub(crate) async fn within<T>(
    timeout: Duration,
    asked: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    match tokio::time::timeout(timeout, asked).await {
        Ok(answered) => answered,
        Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
    }
}

/// Whether the error is an answer, so that the connection is as good as before.
pub(crate) fn is_said_by_server(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// What an error of a server means for who sent a call to it. Nothing was done, unless it says so.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// Somebody else has the slot.
    Elsewhere,
    /// The slot is being moved, the server is starting, or nobody has been elected yet: the same again in a moment.
    Wait,
    /// It does not know the function.
    NoFunction,
    /// There is no memory for it.
    Full,
    /// The function has failed after it had written something.
    HalfDone,
    /// Nothing of that: it will be the same next time.
    Other,
}

/// From the error's first word and what follows.
pub(crate) fn said(kind: Option<ServerErrorKind>, code: &str, text: &str) -> Said {
    match (kind, code) {
        (Some(ServerErrorKind::Moved | ServerErrorKind::ReadOnly), _) => Said::Elsewhere,
        (
            Some(
                // While a slot moves, a call whose ids are new finds its keys neither here nor there: Redis says ASK here
                // and TRYAGAIN there, until all of the slot is there.
                ServerErrorKind::Ask
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::BusyLoading,
            ),
            _,
        )
        | (_, "BUSY" | "NOREPLICAS") => Said::Wait,
        (_, "OOM") => Said::Full,
        (_, "HALFDONE") => Said::HalfDone,
        _ if text.contains("Function not found") => Said::NoFunction,
        _ => Said::Other,
    }
}

/// What somebody who was asked turned out to be.
enum Seen {
    /// One of a cluster, which has these masters.
    Cluster(Map),
    /// A server of its own.
    Master,
    /// A copy of one.
    Replica,
}

/// From the answer to ROLE.
fn is_replica(role: &Value) -> bool {
    matches!(role, Value::Array(role) if matches!(role.first(), Some(Value::BulkString(word)) if word == b"slave"))
}

fn split_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

/// From the answer to CLUSTER SLOTS.
fn map_of(slots: &Value, asked: &str) -> Option<Map> {
    let Value::Array(rows) = slots else { return None };
    let mut ranges = Vec::with_capacity(rows.len());
    for row in rows {
        let Value::Array(row) = row else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &row[..] else { return None };
        let [host, Value::Int(port), ..] = &master[..] else { return None };
        let host = match host {
            Value::BulkString(host) if !host.is_empty() && host != b"?" => std::str::from_utf8(host).ok()?,
            // Who does not know its own address is where it was asked.
            _ => split_address(asked)?.0,
        };
        ranges.push((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, format!("{host}:{port}")));
    }
    ranges.sort();
    Some(Map { ranges })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_by_slot() {
        let node = |host: &str, port| {
            Value::Array(vec![
                Value::BulkString(host.into()),
                Value::Int(port),
                Value::BulkString("id".into()),
            ])
        };
        let row = |first, last, nodes: Vec<Value>| {
            let mut row = vec![Value::Int(first), Value::Int(last)];
            row.extend(nodes);
            Value::Array(row)
        };
        let slots = Value::Array(vec![
            row(8192, 16000, vec![node("", 7001)]),
            row(0, 8191, vec![node("10.0.0.7", 7000), node("10.0.0.8", 7000)]),
        ]);
        let map = map_of(&slots, "127.0.0.1:7001").expect("a map");
        assert_eq!(map.masters(), ["10.0.0.7:7000", "127.0.0.1:7001"]);
        assert_eq!(map.of_group(0), Some("10.0.0.7:7000"));
        assert_eq!(map.of_group(31), Some("10.0.0.7:7000"));
        assert_eq!(map.of_group(32), Some("127.0.0.1:7001"));
        assert_eq!(map.of_group(63), None, "nobody has these slots");
        assert_eq!(map.groups_of("10.0.0.7:7000").collect::<Vec<_>>(), (0..32).collect::<Vec<_>>());
        assert_eq!(map_of(&Value::Okay, "127.0.0.1:7001"), None);
    }

    #[test]
    fn what_servers_say() {
        for (kind, code, text, expected) in [
            (Some(ServerErrorKind::Moved), "MOVED", "3999 127.0.0.1:6381", Said::Elsewhere),
            (Some(ServerErrorKind::ReadOnly), "READONLY", "", Said::Elsewhere),
            (Some(ServerErrorKind::Ask), "ASK", "", Said::Wait),
            (Some(ServerErrorKind::TryAgain), "TRYAGAIN", "", Said::Wait),
            (None, "NOREPLICAS", "", Said::Wait),
            (None, "OOM", "", Said::Full),
            (None, "HALFDONE", "NOPERM no permissions", Said::HalfDone),
            (Some(ServerErrorKind::ResponseError), "ERR", "Function not found", Said::NoFunction),
            (Some(ServerErrorKind::NoPerm), "NOPERM", "", Said::Other),
        ] {
            assert_eq!(said(kind, code, text), expected, "{code}");
        }
    }
}
