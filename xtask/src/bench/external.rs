//! `cargo xtask bench external`: quipu on a Redis Cluster beside the usual script on the same cluster, and how fast changes get
//! into PostgreSQL.
//!
//! Both sides count with request ids, so that a retry is safe. The usual way is a client that knows the slots and sends a script
//! with SET NX and INCRBY to the master, one call for each request. The same threads with the same connections then
//! send the same increments to a quipu on that cluster, which puts together what meets.
//!
//! Two more say what that is made of. A service by hand stands where quipu stands, and sends the script for each request: as many hops, nothing put
//! together. And a quipu on its own store that syncs nothing shows what the clients and one hop cost on this machine: no service, whatever it has behind it, is faster.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quipu_counting::slot::slot;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde::{Deserialize, Serialize};

use super::Bench;
use super::cluster::cpu_seconds;
use super::load::Load;
use super::page::Findings;
use super::statistics::{median, ratios};
use super::svg::Chart;
use super::table::{Table, figure, grouped, times};
use crate::drill::stage::{Master, Postgres, Redis, RedisCluster};
use crate::drill::talk::{Reply, Talk};
use crate::packages;
use crate::servers::Server;
use crate::workspace::Scratch;

/// Clients that each wait for their answer.
const CLIENTS: usize = 64;
const KEYS: u64 = 100_000;
/// Length of a run.
const SECONDS: u64 = 8;
/// Counters that change before anything is flushed.
const BACKLOG: u64 = 1_000_000;
/// How long the flush may take altogether.
const FLUSH_MAX: Duration = Duration::from_secs(300);

/// Goals: how many times the increments of the usual way, and counters flushed per second.
const GOAL_RATIO: f64 = 2.0;
const GOAL_FLUSHED: f64 = 50_000.0;

/// What people write by hand.
const SCRIPT: &str = "if redis.call('SET', KEYS[2], 1, 'NX', 'PX', 86400000) then return redis.call('INCRBY', KEYS[1], \
                      ARGV[1]) else return redis.call('GET', KEYS[1]) end";

/// The same for those who also have to bring every change to a database.
const SCRIPT_WITH_STREAM: &str = "if redis.call('SET', KEYS[2], 1, 'NX', 'PX', 86400000) then redis.call('XADD', KEYS[3], \
                                  'MAXLEN', '~', 100000, '*', KEYS[1], ARGV[1]) return redis.call('INCRBY', KEYS[1], ARGV[1]) \
                                  else return redis.call('GET', KEYS[1]) end";

/// What was found.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OnRedis {
    rounds: usize,
    /// Of each round.
    by_hand: Vec<Figures>,
    by_hand_with_stream: Vec<Figures>,
    service: Vec<Figures>,
    quipu: Vec<Figures>,
    hop: Vec<Figures>,
    flushed_counters: u64,
    /// Seconds that it took, of each round.
    flush_seconds: Vec<f64>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    throughput: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Of the six servers of Redis.
    redis_cpu_seconds_per_million: f64,
    quipu_cpu_seconds_per_million: f64,
}

/// Measures everything.
pub fn measure(bench: &Bench) -> Result<OnRedis> {
    packages::require(packages::OF_EXTERNAL_BENCH)?;
    let rounds = bench.rounds(3);
    let mut runs: [Vec<Figures>; Way::ALL.len()] = Default::default();
    for round in 1..=rounds {
        let mut ways = Way::ALL;
        if round % 2 == 0 {
            ways.reverse();
        }
        for way in ways {
            // Nobody pays for what another has left in Redis.
            let folder = Scratch::new("external")?;
            let figures = run(bench, &Stage::set(bench, folder.path())?, way, round)?;
            bench.say(&format!("round {round}: {way:?} {:.0}/s", figures.throughput));
            runs[way as usize].push(figures);
        }
    }
    let [by_hand, by_hand_with_stream, service, quipu, hop] = runs;
    let counters = bench.scaled(BACKLOG);
    let mut flush_seconds = Vec::new();
    for round in 1..=rounds {
        let seconds = flush(bench, counters)?;
        bench.say(&format!("round {round}: {counters} counters flushed in {seconds:.1} s"));
        flush_seconds.push(seconds);
    }
    Ok(OnRedis {
        rounds,
        by_hand,
        by_hand_with_stream,
        service,
        quipu,
        hop,
        flushed_counters: counters,
        flush_seconds,
    })
}

fn node(bench: &Bench, folder: &Path, arguments: &[&str]) -> Result<Server> {
    let mut command = std::process::Command::new(&bench.binary);
    command.args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]).args(arguments);
    Server::announced(command, &folder.join("quipu.log"))
}

/// Everything that is measured.
struct Stage {
    cluster: RedisCluster,
    /// The service by hand.
    service: SocketAddr,
    quipu: Server,
    /// On its own store.
    alone: Server,
}

impl Stage {
    fn set(bench: &Bench, folder: &Path) -> Result<Stage> {
        let cluster = RedisCluster::start(folder)?;
        let quipu = node(bench, folder, &["--backend", &cluster.url()])?;
        let data = folder.join("alone").display().to_string();
        let alone = node(bench, folder, &["--durability", "none", "--data", &data])?;
        Ok(Stage { service: serve_by_hand(cluster.slots()?)?, cluster, quipu, alone })
    }
}

#[derive(Clone, Copy, Debug)]
enum Way {
    ByHand,
    ByHandWithStream,
    Service,
    Quipu,
    Hop,
}

impl Way {
    const ALL: [Way; 5] = [Way::ByHand, Way::ByHandWithStream, Way::Service, Way::Quipu, Way::Hop];
}

/// What people write where programs are not to speak to Redis: a thread for each connection, which sends the script for each request. It ends
/// with this process.
fn serve_by_hand(slots: Vec<Master>) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming() {
            let slots = slots.clone();
            thread::spawn(move || -> Result<()> {
                let (mut talk, mut redis) = (Talk::over(stream?)?, Client::by_hand(&slots, false)?);
                // Ends when the client goes.
                while let Reply::Array(words) = talk.hear()? {
                    let [_, Reply::Text(key), _, _, Reply::Text(id)] = &words[..] else { bail!("{words:?}") };
                    talk.send(&[&redis.increment(key, id)?])?;
                }
                Ok(())
            });
        }
    });
    Ok(address)
}

fn run(bench: &Bench, stage: &Stage, way: Way, round: usize) -> Result<Figures> {
    let Stage { cluster, service, quipu, alone } = stage;
    let redis: Vec<u32> = cluster.servers.iter().filter_map(|one| Some(one.process.as_ref()?.id())).collect();
    let nodes = [quipu.process_id(), alone.process_id()];
    let before = (cpu_seconds(&redis)?, cpu_seconds(&nodes)?);
    let until = Duration::from_secs(if bench.is_quick() { 1 } else { SECONDS });
    let slots = cluster.slots()?;
    let (began, service, quipu, alone) = (Instant::now(), *service, quipu.resp, alone.resp);
    let client = |number: usize| {
        let slots = slots.clone();
        thread::spawn(move || -> Result<Vec<Duration>> {
            let mut client = match way {
                Way::ByHand => Client::by_hand(&slots, false)?,
                Way::ByHandWithStream => Client::by_hand(&slots, true)?,
                Way::Service => Client::Quipu(Talk::open(service)?),
                Way::Quipu => Client::Quipu(Talk::open(quipu)?),
                Way::Hop => Client::Quipu(Talk::open(alone)?),
            };
            let mut draw = SmallRng::seed_from_u64((round * CLIENTS + number) as u64);
            let mut waits = Vec::new();
            while began.elapsed() < until {
                let key = format!("counter:{}", draw.random_range(0..KEYS));
                let id = format!("{way:?}-{round}-{number}-{}", waits.len());
                let asked = Instant::now();
                client.increment(&key, &id)?;
                waits.push(asked.elapsed());
            }
            Ok(waits)
        })
    };
    let clients: Vec<_> = (0..CLIENTS).map(client).collect();
    let mut waits = Vec::new();
    for client in clients {
        let Ok(done) = client.join() else { bail!("a client has panicked") };
        waits.extend(done?);
    }
    let throughput = waits.len() as f64 / began.elapsed().as_secs_f64();
    waits.sort_unstable();
    let wait_ms =
        |part: usize| waits.get(waits.len() * part / 100).map_or(0.0, |wait| wait.as_secs_f64() * 1e3);
    let per_million = |used: f64| used * 1e6 / waits.len().max(1) as f64;
    Ok(Figures {
        throughput,
        p50_ms: wait_ms(50),
        p99_ms: wait_ms(99),
        redis_cpu_seconds_per_million: per_million(cpu_seconds(&redis)? - before.0),
        quipu_cpu_seconds_per_million: per_million(cpu_seconds(&nodes)? - before.1),
    })
}

/// One who increments and waits for the answer.
enum Client {
    ByHand { masters: Vec<Talk>, owners: Vec<u8>, script: String, has_stream: bool },
    Quipu(Talk),
}

impl Client {
    fn by_hand(slots: &[Master], has_stream: bool) -> Result<Client> {
        let (mut masters, mut owners, mut script) = (Vec::new(), vec![0; 16_384], String::new());
        for (place, (address, ranges)) in slots.iter().enumerate() {
            let mut talk = Talk::open(*address)?;
            script = talk.text(&["SCRIPT", "LOAD", if has_stream { SCRIPT_WITH_STREAM } else { SCRIPT }])?;
            masters.push(talk);
            for (from, to) in ranges {
                owners[usize::from(*from)..=usize::from(*to)].fill(place as u8);
            }
        }
        Ok(Client::ByHand { masters, owners, script, has_stream })
    }

    fn increment(&mut self, key: &str, id: &str) -> Result<String> {
        let reply = match self {
            Client::ByHand { masters, owners, script, has_stream } => {
                let slot = slot(key.as_bytes());
                let master = &mut masters[usize::from(owners[usize::from(slot)])];
                let (remembered, stream) = (format!("{{{key}}}:{id}"), format!("{{{key}}}:changes"));
                match has_stream {
                    true => master.ask(&["EVALSHA", script, "3", key, &remembered, &stream, "1"])?,
                    false => master.ask(&["EVALSHA", script, "2", key, &remembered, "1"])?,
                }
            }
            Client::Quipu(talk) => talk.ask(&["Q.ADD", key, "1", "ID", id])?,
        };
        ensure!(!matches!(reply, Reply::Error(_) | Reply::Nothing), "{reply:?}");
        Ok(if let Reply::Integer(value) = reply { value.to_string() } else { String::new() })
    }
}

/// How long it takes until all of a backlog is in PostgreSQL.
fn flush(bench: &Bench, counters: u64) -> Result<f64> {
    let folder = Scratch::new("external")?;
    let (redis, postgres) = (Redis::start(folder.path())?, Postgres::start(folder.path())?);
    {
        let filling = node(bench, folder.path(), &["--backend", &redis.url()])?;
        Load::of_keys(counters).offer(&bench.binary, &filling)?;
    }
    let begun = Instant::now();
    let _flushing = node(bench, folder.path(), &["--backend", &redis.url(), "--archive", &postgres.url()])?;
    let wanted = counters.to_string();
    loop {
        let there =
            postgres.ask("SELECT coalesce(sum(events), 0) FROM counter_watermark").unwrap_or_default();
        if there == wanted {
            break;
        }
        ensure!(begun.elapsed() < FLUSH_MAX, "{there} of {wanted} changes are in PostgreSQL");
        thread::sleep(Duration::from_millis(50));
    }
    let seconds = begun.elapsed().as_secs_f64();
    let rows = postgres.ask("SELECT count(*) FROM counter_total_snapshot").context("counting the rows")?;
    ensure!(rows == wanted, "{rows} rows of {wanted} counters");
    Ok(seconds)
}

fn of(runs: &[Figures], figure: fn(&Figures) -> f64) -> Vec<f64> {
    runs.iter().map(figure).collect()
}

impl OnRedis {
    fn ratio(&self, runs: &[Figures]) -> f64 {
        median(&ratios(&of(runs, |run| run.throughput), &of(&self.by_hand, |run| run.throughput)))
    }

    fn flushed_per_second(&self) -> f64 {
        self.flushed_counters as f64 / median(&self.flush_seconds)
    }
}

impl Findings for OnRedis {
    const NAME: &'static str = "external";

    fn tables(&self) -> Vec<Table> {
        let columns = [
            "way",
            "increments/s",
            "of the usual way",
            "p50 / p99 ms",
            "CPU s per M, Redis",
            "CPU s per M, quipu",
        ];
        let mut counting = Table::new(
            format!("Increments with ids on a Redis Cluster, {CLIENTS} clients that wait"),
            columns,
        );
        for (name, runs) in [
            ("SET NX + INCRBY in a script", &self.by_hand),
            ("the same + XADD", &self.by_hand_with_stream),
            ("a service that sends the script", &self.service),
            ("quipu on the same cluster", &self.quipu),
            ("quipu without Redis, nothing synced", &self.hop),
        ] {
            let median_of = |figure: fn(&Figures) -> f64| median(&of(runs, figure));
            counting.push(vec![
                name.into(),
                grouped(median_of(|run| run.throughput) as i64),
                times(self.ratio(runs)),
                format!("{} / {}", figure(median_of(|run| run.p50_ms)), figure(median_of(|run| run.p99_ms))),
                figure(median_of(|run| run.redis_cpu_seconds_per_million)),
                figure(median_of(|run| run.quipu_cpu_seconds_per_million)),
            ]);
        }
        let mut flushing =
            Table::new("From Redis to PostgreSQL", ["changed counters", "seconds", "counters/s", "goal"]);
        flushing.push(vec![
            grouped(self.flushed_counters as i64),
            figure(median(&self.flush_seconds)),
            grouped(self.flushed_per_second() as i64),
            grouped(GOAL_FLUSHED as i64),
        ]);
        vec![counting, flushing]
    }

    fn notes(&self) -> Vec<String> {
        vec![
            format!(
                "Medians of {} rounds; ratios within a round; goal {GOAL_RATIO}x. Three masters with a replica each, append-only \
                 files with `everysec`, new and empty for each run; all of it, quipu and the clients share this machine.",
                self.rounds
            ),
            "Clients are threads with blocking connections: by hand one to each master, with the slots known; to quipu and to the service one. CPU is that of \
             all six servers of Redis. The service has a thread for each client, which sends the first row's script."
                .into(),
            "Flushed: each counter once, with its version, total and place in the stream; one node, one Redis, PostgreSQL 15 \
             with its usual `fsync` and `synchronous_commit`. The seconds begin with the start of the node."
                .into(),
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
    fn ratios_and_rates_are_told() {
        let figures = |throughput| Figures { throughput, ..Figures::default() };
        let found = OnRedis {
            rounds: 1,
            by_hand: vec![figures(20_000.0)],
            by_hand_with_stream: vec![figures(15_000.0)],
            service: vec![figures(18_000.0)],
            quipu: vec![figures(50_000.0)],
            hop: vec![figures(60_000.0)],
            flushed_counters: 1_000_000,
            flush_seconds: vec![10.0],
        };
        let tables = found.tables();
        assert!(tables[0].markdown().contains("| quipu on the same cluster | 50,000 | 2.50x |"));
        assert!(tables[1].markdown().contains("| 1,000,000 | 10.0 | 100,000 | 50,000 |"));
        assert_page_has_a_place_for(OnRedis::NAME);
    }
}
