//! SIGKILL at random moments, under load, also while recovering: every increment counts exactly once.
//!
//! `QUIPU_KILL_ROUNDS` sets how many kills; `cargo xtask torture kill` runs a hundred on the release binary.
//! `QUIPU_KILL_SEED` repeats the choices of a run that failed.

mod exactly_once;
mod support;

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use exactly_once::{Clients, Place, prove};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::{Server, run, serve_command};

/// Kills in an ordinary test run; enough to hit the moments that matter, few enough to wait for.
const ROUNDS: u32 = 8;

/// Clients at the same time.
const CLIENTS: u64 = 8;

/// Answers between a start and the next kill, at most.
const ANSWERS_PER_ROUND_MAX: u64 = 3_000;

/// A kill that shall hit recovery comes within this time after the start.
const RECOVERY_KILL_WITHIN: Duration = Duration::from_millis(60);

/// Many partitions, because a checkpoint comes with every such share of the log: kills shall hit checkpoints too.
const ARGUMENTS: &[&str] = &["--durability", "sync", "--memory", "512MiB", "--partitions", "256"];

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

#[test]
fn kills_lose_nothing_and_double_nothing() {
    let rounds = setting("QUIPU_KILL_ROUNDS", ROUNDS.into());
    let seed = setting("QUIPU_KILL_SEED", StdRng::from_os_rng().random());
    println!("{rounds} rounds with QUIPU_KILL_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");

    let mut server = Server::start_with(&data, ARGUMENTS);
    let place = Place::new(server.resp);
    let clients = Clients::start(&place, CLIENTS, "kill", seed);
    for round in 1..=rounds {
        clients.wait_for_more(random.random_range(1..=ANSWERS_PER_ROUND_MAX)).unwrap();
        // The moment within a batch is left to chance too.
        thread::sleep(Duration::from_micros(random.random_range(0..2_000)));
        server.kill();
        if random.random_ratio(1, 3) {
            let mut recovering = serve_command(&data)
                .args(ARGUMENTS)
                .stderr(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            thread::sleep(random.random_range(Duration::ZERO..RECOVERY_KILL_WITHIN));
            recovering.kill().unwrap();
            recovering.wait().unwrap();
        }
        server = Server::start_with(&data, ARGUMENTS);
        place.set(server.resp);
        if round % 10 == 0 {
            println!("{round} kills, {} ids answered", clients.acknowledged());
        }
    }
    clients.wait_for_more(1).unwrap();
    let (acknowledged, retries) = clients.finish().unwrap();
    assert!(retries >= rounds, "the kills were not felt: {retries} retries");

    let proof = prove(server.resp, &acknowledged).unwrap();
    println!("{rounds} kills, {retries} retries: {proof}");
    server.kill();
    let check = run(&["check", data.to_str().unwrap()], &[]);
    assert!(
        check.status.success(),
        "{}{}",
        String::from_utf8_lossy(&check.stdout),
        String::from_utf8_lossy(&check.stderr)
    );

    // What a kill left behind also passes through a clean stop.
    let server = Server::start_with(&data, ARGUMENTS);
    prove(server.resp, &acknowledged).unwrap();
    let (status, log) = server.terminate();
    assert!(status.success(), "{log:?}");
}
