//! quipu and its peers, running beside each other on one machine, loaded in turn.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};

use super::Bench;
use super::load::{Load, Run};
use super::machine::{said, version_in};
use crate::servers::{Server, find_program};
use crate::workspace::Scratch;

/// The name of our own.
pub const QUIPU: &str = "quipu";

/// The peer that goals speak of, and that is always there.
pub const REDIS: &str = "redis";

/// Other servers that take redis-server's arguments: compared with wherever they are installed.
const OTHERS: [(&str, &str); 3] =
    [("valkey", "valkey-server"), ("redict", "redict-server"), ("keydb", "keydb-server")];

/// A server to compare with.
#[derive(Debug, Clone, PartialEq)]
pub struct Peer {
    /// As it is called in tables.
    pub name: String,
    /// Takes the arguments of redis-server.
    pub program: PathBuf,
}

impl Peer {
    /// From `name=/path/to/server`.
    pub fn parse(text: &str) -> Result<Peer, String> {
        let (name, program) =
            text.split_once('=').ok_or("expected name=FILE, as in valkey=/usr/bin/valkey-server")?;
        if name.is_empty() || name == QUIPU || name == REDIS {
            return Err(format!("a peer cannot be called {name:?}"));
        }
        let program = PathBuf::from(program);
        if !program.is_file() {
            return Err(format!("{} is no file", program.display()));
        }
        Ok(Peer { name: name.to_string(), program })
    }

    /// redis-server, and those given, or else those that are installed.
    pub fn all(given: &[Peer]) -> Result<Vec<Peer>> {
        let redis = find_program("redis-server").context("redis-server is not installed")?;
        let mut peers = vec![Peer { name: REDIS.to_string(), program: redis }];
        if given.is_empty() {
            peers.extend(OTHERS.iter().filter_map(|(name, program)| {
                Some(Peer { name: name.to_string(), program: find_program(program)? })
            }));
        }
        peers.extend_from_slice(given);
        Ok(peers)
    }

    /// What it says of itself.
    pub fn version(&self) -> Result<String> {
        let text = said(Command::new(&self.program).arg("--version"))?;
        Ok(version_in(&text).unwrap_or("unknown").to_string())
    }
}

/// When a reply may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// At once; synced every second.
    EverySecond,
    /// When it is on disk.
    EveryReply,
}

impl Durability {
    /// What redis-server calls it.
    pub fn of_peers(self) -> &'static str {
        match self {
            Durability::EverySecond => "everysec",
            Durability::EveryReply => "always",
        }
    }

    /// What quipu calls it.
    pub fn of_quipu(self) -> &'static str {
        match self {
            Durability::EverySecond => "interval:1000",
            Durability::EveryReply => "sync",
        }
    }
}

/// A durability in the words of both, for results.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// `--durability`
    quipu: String,
    /// `--appendfsync`
    peers: String,
}

impl From<Durability> for Settings {
    fn from(durability: Durability) -> Settings {
        Settings { quipu: durability.of_quipu().into(), peers: durability.of_peers().into() }
    }
}

/// Runs of every server, by its name.
pub type Runs = BTreeMap<String, Vec<Run>>;

/// Fresh servers with empty folders, all running. What is measured on one stage inherits nothing from another.
pub struct Stage<'a> {
    bench: &'a Bench,
    /// quipu is the last.
    servers: Vec<(String, Server)>,
    folder: Scratch,
}

impl<'a> Stage<'a> {
    /// Starts quipu and all peers.
    pub fn start(bench: &'a Bench, durability: Durability) -> Result<Stage<'a>> {
        let mut stage = Stage { bench, servers: Vec::new(), folder: Scratch::new("bench")? };
        for peer in &bench.peers {
            let folder = stage.folder.path().join(&peer.name);
            let server = Server::redis_like(&peer.program, &folder, durability.of_peers())?;
            stage.servers.push((peer.name.clone(), server));
        }
        stage.start_quipu(&["--durability", durability.of_quipu()])?;
        Ok(stage)
    }

    /// Starts quipu alone.
    pub fn quipu_alone(bench: &'a Bench, arguments: &[&str]) -> Result<Stage<'a>> {
        let mut stage = Stage { bench, servers: Vec::new(), folder: Scratch::new("bench")? };
        stage.start_quipu(arguments)?;
        Ok(stage)
    }

    /// Starts quipu, over whatever its folder holds.
    pub fn start_quipu(&mut self, arguments: &[&str]) -> Result<()> {
        let folder = self.folder.path().join(QUIPU);
        self.servers.push((QUIPU.to_string(), Server::quipu(&self.bench.binary, &folder, arguments)?));
        Ok(())
    }

    /// Ends quipu with SIGKILL.
    pub fn stop_quipu(&mut self) -> Result<()> {
        match self.servers.pop_if(|(name, _)| name == QUIPU) {
            Some((_, quipu)) => quipu.kill(),
            None => Ok(()),
        }
    }

    /// Where quipu has its data.
    pub fn quipu_data(&self) -> PathBuf {
        self.folder.path().join(QUIPU).join("data")
    }

    /// A server by its name.
    pub fn server(&self, name: &str) -> Result<&Server> {
        let found = self.servers.iter().find(|(other, _)| other == name);
        found.map(|(_, server)| server).ok_or_else(|| anyhow!("{name} does not run here"))
    }

    /// Adds a server of another kind; it comes before quipu.
    pub fn add(&mut self, name: &str, server: Server) {
        self.servers.insert(0, (name.to_string(), server));
    }

    /// A file or folder beside the servers' own.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates keys on all servers.
    pub fn load_keys(&self, keys: u64) -> Result<()> {
        for (name, server) in &self.servers {
            let load = Load::of_keys(keys);
            load.offer(&self.bench.binary, server).with_context(|| format!("loading keys into {name}"))?;
        }
        Ok(())
    }

    /// Offers a load to one server.
    pub fn offer(&self, name: &str, load: &Load) -> Result<Run> {
        load.offer(&self.bench.binary, self.server(name)?).with_context(|| name.to_string())
    }

    /// Offers each server its load, in turn, round after round; every other round in reverse, so that nobody always
    /// comes first. `load_of` gets the server's name and the number of the round, from 1.
    pub fn rounds(&self, rounds: usize, load_of: impl Fn(&str, usize) -> Load) -> Result<Runs> {
        let mut runs = Runs::new();
        for round in 1..=rounds {
            let mut order: Vec<&str> = self.servers.iter().map(|(name, _)| name.as_str()).collect();
            if round % 2 == 0 {
                order.reverse();
            }
            for name in order {
                let run = self.offer(name, &load_of(name, round))?;
                runs.entry(name.to_string()).or_default().push(run);
            }
        }
        Ok(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_named_programs() {
        let peer = Peer::parse("other=/bin/sh").unwrap();
        assert_eq!((peer.name.as_str(), peer.program.to_str()), ("other", Some("/bin/sh")));
        for bad in ["/bin/sh", "=/bin/sh", "quipu=/bin/sh", "redis=/bin/sh", "valkey=/no/such/file"] {
            assert!(Peer::parse(bad).is_err(), "{bad}");
        }
    }
}
