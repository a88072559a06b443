//! `cargo xtask bench aggregate`: the sum of some counters among many, beside Redis's usual way, SCAN MATCH and MGET.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::Bench;
use super::load::Load;
use super::page::Findings;
use super::stage::{Durability, QUIPU, REDIS, Settings};
use super::statistics::median;
use super::svg::Chart;
use super::table::{Table, figure, grouped, times};
use crate::servers::Server;
use crate::workspace::Scratch;

/// How many counters there are, unless somebody asks for another number.
pub const KEYS: u64 = 10_000_000;
/// How many of them are added up.
const SELECTED: u64 = 10_000;
/// What those begin with, and what the others are called.
const PREFIX: &str = "likes:post:";
const OTHERS_FORMAT: &str = "views:page:{n}:2026-02-23";
/// What each of them holds.
const VALUE: i64 = 7;

/// How long a server is left alone between loading and the rounds.
const REST: Duration = Duration::from_secs(15);
/// Keys that Redis looks at in one SCAN: with fewer it answers others in between, and takes longer.
const SCAN_COUNT: &str = "10000";
/// Values that it is asked for at once.
const GET_COUNT: usize = 1_000;
/// How long one answer may take; walks over everything take long.
const ANSWER_MAX: Duration = Duration::from_secs(300);

/// The goal for quipu.
const GOAL_MS: f64 = 10.0;

/// What was found.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sums {
    keys: u64,
    selected: u64,
    durability: Settings,
    /// They create the counters.
    commands: [String; 2],
    rows: Vec<Way>,
}

/// A way to the sum.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Way {
    server: String,
    /// What is sent.
    how: String,
    /// Right after the last counter was created.
    at_once_ms: f64,
    /// After the server was left alone.
    rounds_ms: Vec<f64>,
}

/// Measures one server after the other.
pub fn measure(bench: &Bench, keys: u64) -> Result<Sums> {
    let keys = bench.scaled(keys);
    ensure!(keys > SELECTED, "--keys must be above {SELECTED}, which are added up");
    let mut rows = Vec::new();
    for name in [REDIS, QUIPU] {
        bench.say(&format!("{} of {} counters in {name}", grouped(SELECTED as i64), grouped(keys as i64)));
        rows.extend(measure_server(bench, name, keys).with_context(|| name.to_string())?);
    }
    Ok(Sums {
        keys,
        selected: SELECTED,
        durability: Durability::EverySecond.into(),
        commands: [selected().shown(), others(keys).shown()],
        rows,
    })
}

fn measure_server(bench: &Bench, name: &str, keys: u64) -> Result<Vec<Way>> {
    let folder = Scratch::new("aggregate")?;
    let data = folder.path().join("data");
    let durability = Durability::EverySecond;
    let (server, ways) = match bench.peers.iter().find(|peer| peer.name == name) {
        Some(peer) => (Server::redis_like(&peer.program, &data, durability.of_peers())?, &REDIS_WAYS[..]),
        None => {
            (Server::quipu(&bench.binary, &data, &["--durability", durability.of_quipu()])?, &QUIPU_WAYS[..])
        }
    };
    // The wanted ones first, so that they lie among the others and not apart as the newest.
    selected().offer(&bench.binary, &server)?;
    others(keys).offer(&bench.binary, &server)?;
    let mut client = Client::connect(server.resp)?;
    let mut measured = Vec::new();
    for (how, sum) in ways {
        let at_once_ms = timed(&mut client, *sum)?;
        measured.push(Way { server: name.into(), how: (*how).into(), at_once_ms, rounds_ms: Vec::new() });
    }
    thread::sleep(REST);
    for _ in 0..bench.rounds(9) {
        for (way, (_, sum)) in measured.iter_mut().zip(ways) {
            way.rounds_ms.push(timed(&mut client, *sum)?);
        }
    }
    Ok(measured)
}

fn selected() -> Load {
    Load::of_keys(SELECTED).with("--key-format", format!("{PREFIX}{{n}}")).with("--value", VALUE)
}

fn others(keys: u64) -> Load {
    Load::of_keys(keys - SELECTED).with("--key-format", OTHERS_FORMAT)
}

type Sum = fn(&mut Client) -> Result<i64>;

const REDIS_WAYS: [(&str, Sum); 1] = [("SCAN MATCH, MGET", by_scanning)];
const QUIPU_WAYS: [(&str, Sum); 3] =
    [("Q.SUM likes:post:*", by_prefix), ("Q.SUM *:post:*", by_pattern), ("SCAN MATCH, MGET", by_scanning)];

fn timed(client: &mut Client, sum: Sum) -> Result<f64> {
    let begun = Instant::now();
    let found = sum(client)?;
    let took = begun.elapsed().as_secs_f64() * 1e3;
    let expected = SELECTED as i64 * VALUE;
    ensure!(found == expected, "the sum is {found}, not {expected}");
    Ok(took)
}

fn by_prefix(client: &mut Client) -> Result<i64> {
    client.integer(&["Q.SUM", "likes:post:*"])
}

fn by_pattern(client: &mut Client) -> Result<i64> {
    client.integer(&["Q.SUM", "*:post:*"])
}

fn by_scanning(client: &mut Client) -> Result<i64> {
    let (mut cursor, mut sum) = ("0".to_string(), 0);
    let mut found: std::collections::BTreeSet<String> = std::collections::BTreeSet::new();
    loop {
        let reply = client.ask(&["SCAN", &cursor, "MATCH", &format!("{PREFIX}*"), "COUNT", SCAN_COUNT])?;
        let Reply::Array(mut page) = reply else { bail!("SCAN answered {reply:?}") };
        let (Some(Reply::Array(keys)), Some(Reply::Text(next))) = (page.pop(), page.pop()) else {
            bail!("SCAN answered {page:?}")
        };
        // A key may come twice, so whoever adds up must know which ones have come.
        found.extend(keys.into_iter().filter_map(|key| match key {
            Reply::Text(key) => Some(key),
            _ => None,
        }));
        cursor = next;
        if cursor == "0" {
            break;
        }
    }
    let found: Vec<&str> = found.iter().map(String::as_str).collect();
    for keys in found.chunks(GET_COUNT) {
        let reply = client.ask(&[&["MGET"], keys].concat())?;
        let Reply::Array(values) = reply else { bail!("MGET answered {reply:?}") };
        for value in values {
            let Reply::Text(value) = value else { bail!("MGET answered {value:?}") };
            sum += value.parse::<i64>()?;
        }
    }
    Ok(sum)
}

/// A connection that speaks just enough RESP.
struct Client {
    stream: BufReader<TcpStream>,
}

#[derive(Debug)]
enum Reply {
    Integer(i64),
    Text(String),
    Nothing,
    Array(Vec<Reply>),
}

impl Client {
    fn connect(address: SocketAddr) -> Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(Client { stream: BufReader::with_capacity(1 << 16, stream) })
    }

    fn ask(&mut self, words: &[&str]) -> Result<Reply> {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(command.as_bytes())?;
        read(&mut self.stream)
    }

    fn integer(&mut self, words: &[&str]) -> Result<i64> {
        match self.ask(words)? {
            Reply::Integer(number) => Ok(number),
            other => bail!("{words:?} answered {other:?}"),
        }
    }
}

fn read(stream: &mut impl BufRead) -> Result<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let Some((kind, rest)) = line.trim_end().split_at_checked(1) else { bail!("the connection ended") };
    match kind {
        ":" => Ok(Reply::Integer(rest.parse()?)),
        "+" => Ok(Reply::Text(rest.to_string())),
        "$" if rest == "-1" => Ok(Reply::Nothing),
        "$" => {
            let mut bytes = vec![0; rest.parse::<usize>()? + 2];
            stream.read_exact(&mut bytes)?;
            bytes.truncate(bytes.len() - 2);
            Ok(Reply::Text(String::from_utf8(bytes)?))
        }
        "*" => Ok(Reply::Array((0..rest.parse::<usize>()?).map(|_| read(stream)).collect::<Result<_>>()?)),
        _ => bail!("it answered {line:?}"),
    }
}

impl Sums {
    /// How many times longer Redis takes, or as long.
    fn ratio(&self, way: &Way) -> f64 {
        let redis = self.rows.iter().find(|row| row.server == REDIS);
        redis.map_or(f64::NAN, |redis| median(&redis.rounds_ms) / median(&way.rounds_ms))
    }
}

impl Findings for Sums {
    const NAME: &'static str = "aggregate";

    fn tables(&self) -> Vec<Table> {
        let title =
            format!("The sum of {} of {} counters", grouped(self.selected as i64), grouped(self.keys as i64));
        let columns = ["way", "ms", "ms, right after loading", "faster than Redis"];
        let mut table = Table::new(title, columns);
        for way in &self.rows {
            table.push(vec![
                format!("{}: {}", way.server, way.how),
                figure(median(&way.rounds_ms)),
                figure(way.at_once_ms),
                times(self.ratio(way)),
            ]);
        }
        vec![table]
    }

    fn notes(&self) -> Vec<String> {
        vec![
            format!(
                "One client on the same machine; medians. SCAN with COUNT {SCAN_COUNT}, MGET of {GET_COUNT} keys at once, added up \
                 by the client, which also must leave out keys that came twice."
            ),
            format!(
                "Goal: below {GOAL_MS} ms for a pattern that begins with what keys begin with. The other pattern of quipu \
                 looks at every counter."
            ),
        ]
    }

    fn chart(&self) -> Option<Chart> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::tests::assert_page_has_a_place_for;
    use super::*;

    #[test]
    fn replies_are_read() {
        let mut bytes = &b"*4\r\n:-7\r\n$2\r\nab\r\n$-1\r\n*1\r\n+x\r\n-ERR no\r\n"[..];
        let Reply::Array(items) = read(&mut bytes).unwrap() else { panic!("no array") };
        assert!(matches!(
            &items[..],
            [Reply::Integer(-7), Reply::Text(text), Reply::Nothing, Reply::Array(inner)]
                if text == "ab" && matches!(&inner[..], [Reply::Text(text)] if text == "x")
        ));
        assert!(read(&mut bytes).is_err(), "an error");
        assert!(read(&mut bytes).is_err(), "the end");
    }

    #[test]
    fn ratios_are_told() {
        let way = |server: &str, how: &str, ms| Way {
            server: server.into(),
            how: how.into(),
            at_once_ms: ms * 2.0,
            rounds_ms: vec![ms],
        };
        let sums = Sums {
            keys: 10_000_000,
            selected: SELECTED,
            durability: Durability::EverySecond.into(),
            commands: ["one".into(), "other".into()],
            rows: vec![way(REDIS, "SCAN", 5_000.0), way(QUIPU, "Q.SUM", 5.0)],
        };
        let text = sums.tables()[0].markdown();
        assert!(text.contains("| quipu: Q.SUM | 5.00 | 10.0 | 1000.00x |"), "{text}");
        assert!(text.contains("| redis: SCAN | 5,000 | 10,000 | 1.00x |"), "{text}");
        assert_page_has_a_place_for(Sums::NAME);
    }
}
