//! redis-rs: blocking, and on tokio with its two kinds of shared connections.

use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{AsyncTypedCommands, Client, Connection, ErrorKind, ServerErrorKind, TypedCommands, cmd, pipe};

use super::host::Host;

const PROTOCOLS: [&str; 2] = ["resp2", "resp3"];

fn client(host: &Host, protocol: &str) -> Client {
    Client::open(format!("redis://{}/?protocol={protocol}", host.address)).unwrap()
}

#[test]
fn blocking() {
    let mut host = Host::start();
    for protocol in PROTOCOLS {
        let client = client(&host, protocol);
        let (mut connection, mut other) =
            (client.get_connection().unwrap(), client.get_connection().unwrap());
        connection.flushall().unwrap();
        counters(&mut connection);
        expiry(&mut connection);
        pipelines(&mut connection);
        transactions(&mut connection, &mut other);
        walks(&mut connection);
        refusals(&mut connection, &host);
        assert_eq!(connection.incr("kept", 1).unwrap(), 1);
        host.restart();
        assert!(connection.incr("kept", 1).unwrap_err().is_unrecoverable_error());
        assert_eq!(client.get_connection().unwrap().incr("kept", 1).unwrap(), 2);
    }
}

fn counters(connection: &mut Connection) {
    assert_eq!(connection.incr("a", 1).unwrap(), 1);
    assert_eq!(connection.incr("a", 9).unwrap(), 10);
    assert_eq!(connection.decr("a", 3).unwrap(), 7);
    assert_eq!(connection.get_int("a").unwrap(), Some(7));
    assert_eq!(connection.get("nosuch").unwrap(), None);
    assert!(connection.set_nx("b", 5).unwrap());
    assert!(!connection.set_nx("b", 6).unwrap());
    connection.mset(&[("c", 1), ("{c}d", 2)]).unwrap();
    assert_eq!(connection.mget(&["c", "{c}d"]).unwrap(), ["1", "2"].map(|text| Some(text.to_owned())));
    assert_eq!(connection.del(&["c", "{c}d"]).unwrap(), 2);
    assert_eq!(connection.get_del("b").unwrap().as_deref(), Some("5"));
    // Ids are remembered longer than what they counted, so each run has its own.
    let id: u64 = cmd("CLIENT").arg("ID").query(connection).unwrap();
    let added: Vec<i64> = cmd("Q.ADD").arg("q").arg(5).arg("ID").arg(id).query(connection).unwrap();
    assert_eq!(added, [5, 5, 1, 0]);
}

fn expiry(connection: &mut Connection) {
    connection.set_ex("t", 5, 100).unwrap();
    assert!(matches!(connection.ttl("t").unwrap(), redis::IntegerReplyOrNoOp::IntegerReply(1..=100)));
    assert!(connection.persist("t").unwrap());
    assert_eq!(connection.ttl("t").unwrap(), redis::IntegerReplyOrNoOp::ExistsButNotRelevant);
    assert!(connection.expire_at("t", 1).unwrap());
    assert_eq!(connection.ttl("t").unwrap(), redis::IntegerReplyOrNoOp::NotExists);
}

fn pipelines(connection: &mut Connection) {
    let mut pipeline = pipe();
    for _ in 0..1000 {
        pipeline.incr("p", 1);
    }
    let replies: Vec<i64> = pipeline.query(connection).unwrap();
    assert!(replies.iter().copied().eq(1..=1000));
}

fn transactions(connection: &mut Connection, other: &mut Connection) {
    let replies: (i64, i64) = pipe().atomic().incr("m", 1).incr("m", 1).query(connection).unwrap();
    assert_eq!(replies, (1, 2));
    // Read, modify, write: once more if somebody came in between.
    let mut tries = 0;
    let doubled: (i64,) = redis::transaction(connection, &["m"], |connection, pipeline| {
        tries += 1;
        let value = connection.get_int("m")?.unwrap_or(0);
        if tries == 1 {
            other.incr("m", 1)?;
        }
        pipeline.incr("m", value).query(connection)
    })
    .unwrap();
    assert_eq!((tries, doubled), (2, (6,)));
}

fn walks(connection: &mut Connection) {
    let pairs: Vec<(String, i64)> = (0..500).map(|number| (format!("user:{{u}}:{number}"), number)).collect();
    connection.mset(&pairs).unwrap();
    let options = redis::ScanOptions::default().with_pattern("user:*").with_count(7);
    let found = connection.scan_options::<String>(options).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(found.len(), 500);
}

fn refusals(connection: &mut Connection, host: &Host) {
    let error = connection.set("word", "hello").unwrap_err();
    assert!(error.to_string().contains("not an integer"), "{error}");
    let error = connection.lpush("list", 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server(ServerErrorKind::ResponseError), "{error}");
    let locked = Client::open(format!("redis://nobody:secret@{}", host.address)).unwrap();
    assert_eq!(locked.get_connection().err().unwrap().kind(), ErrorKind::AuthenticationFailed);
}

#[tokio::test]
async fn on_tokio() {
    let mut host = Host::start();
    for protocol in PROTOCOLS {
        let client = client(&host, protocol);
        let mut shared = client.get_multiplexed_async_connection().await.unwrap();
        shared.flushall().await.unwrap();
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let mut shared = shared.clone();
                tokio::spawn(async move {
                    for _ in 0..100 {
                        shared.incr("many", 1).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(shared.get_int("many").await.unwrap(), Some(5000));
        let replies: (i64, i64) =
            pipe().atomic().incr("m", 1).incr("m", 1).query_async(&mut shared).await.unwrap();
        assert_eq!(replies, (1, 2));

        let settings = ConnectionManagerConfig::new()
            .set_number_of_retries(100)
            .set_max_delay(Duration::from_millis(100));
        let mut manager = ConnectionManager::new_with_config(client.clone(), settings).await.unwrap();
        assert_eq!(manager.incr("kept", 1).await.unwrap(), 1);
        host.restart();
        // One command finds that the connection is gone, the next one has another.
        while manager.ping().await.is_err() {}
        assert_eq!(manager.incr("kept", 1).await.unwrap(), 2);
    }
}
