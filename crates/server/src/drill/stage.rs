//! Redis, Redis Cluster and PostgreSQL of one's own: from the programs that are installed, on free ports, in a folder that goes
//! with them. Drills and measurements happen on such a stage, never on anybody's data.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::ending::{self, Pending};
use super::talk::Talk;

/// How long anything may take to start.
const START_MAX: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Masters of a cluster; each has a replica.
pub const MASTERS: usize = 3;
/// The bus of a Redis Cluster is this far above the port of clients.
const BUS_OFFSET: u16 = 10_000;

/// A process that ends with this.
pub struct Process {
    child: Child,
    /// How it is asked to end where SIGKILL would leave children.
    ends_by: &'static str,
    _pending: Pending,
}

impl Process {
    fn start(command: &mut Command, ends_by: &'static str) -> Result<Process> {
        let program = command.get_program().to_string_lossy().into_owned();
        let (child, pending) = ending::start(command.stdin(Stdio::null()), ends_by)
            .with_context(|| format!("cannot start {program}; is it installed?"))?;
        Ok(Process { child, ends_by, _pending: pending })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it and waits for that.
    pub fn kill(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // There is nothing to learn from a failure here.
        let _ = Command::new("kill").args([self.ends_by, &self.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Looks until there is something.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let until = Instant::now() + START_MAX;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(Instant::now() < until, "waited {} s until {what}", START_MAX.as_secs());
        thread::sleep(LOOK_INTERVAL);
    }
}

/// A redis-server with an append-only file.
pub struct Redis {
    /// `None` once it was killed.
    pub process: Option<Process>,
    pub address: SocketAddr,
    home: PathBuf,
    arguments: &'static [&'static str],
}

impl Redis {
    /// One server alone.
    pub fn start(folder: &Path) -> Result<Redis> {
        Redis::start_with(folder, &[])
    }

    fn start_with(folder: &Path, arguments: &'static [&'static str]) -> Result<Redis> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let home = folder.join(format!("redis-{}", address.port()));
        std::fs::create_dir_all(&home)?;
        let mut redis = Redis { process: None, address, home, arguments };
        redis.restart()?;
        Ok(redis)
    }

    /// Starts it, also again, with what it had.
    pub fn restart(&mut self) -> Result<()> {
        self.process = None;
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &self.address.port().to_string(), "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "everysec", "--dir"]).arg(&self.home);
        command.args(self.arguments).stdout(File::create(self.home.join("log"))?);
        self.process = Some(Process::start(&mut command, "-KILL")?);
        wait_for("redis-server answers", || Ok(Talk::open(self.address).ok()))?;
        Ok(())
    }

    /// What `--backend` takes.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

const OF_A_CLUSTER: &[&str] =
    &["--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--cluster-require-full-coverage", "no"];

/// A master, and the ranges of slots that it has.
pub type Master = (SocketAddr, Vec<(u16, u16)>);

/// Three masters with a replica each.
pub struct RedisCluster {
    pub servers: Vec<Redis>,
}

impl RedisCluster {
    /// Starts the six and waits until they are one.
    pub fn start(folder: &Path) -> Result<RedisCluster> {
        let mut servers = Vec::new();
        for _ in 0..2 * MASTERS {
            servers.push(Redis::start_with(folder, OF_A_CLUSTER)?);
        }
        let addresses: Vec<String> = servers.iter().map(|server| server.address.to_string()).collect();
        let created = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(&addresses)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .stdin(Stdio::null())
            .output()
            .context("cannot start redis-cli; is it installed?")?;
        let said = String::from_utf8_lossy(&created.stdout).into_owned();
        ensure!(created.status.success(), "redis-cli --cluster create: {said}");
        let cluster = RedisCluster { servers };
        for place in 0..cluster.servers.len() {
            wait_for("all replicas have what their masters have", || {
                Ok(cluster.is_ready(place).unwrap_or(false).then_some(()))
            })?;
        }
        Ok(cluster)
    }

    fn is_ready(&self, place: usize) -> Result<bool> {
        let mut talk = Talk::open(self.servers[place].address)?;
        let cluster = talk.text(&["CLUSTER", "INFO"])?;
        let replication = talk.text(&["INFO", "replication"])?;
        let is_linked = replication.contains("master_link_status:up") || replication.contains("state=online");
        Ok(is_linked && cluster.contains("cluster_state:ok") && cluster.contains("cluster_known_nodes:6"))
    }

    /// What `--backend` takes: all of them, because any may be gone.
    pub fn url(&self) -> String {
        let urls: Vec<String> = self.servers.iter().map(Redis::url).collect();
        urls.join(",")
    }

    /// The masters with the slots they have.
    pub fn slots(&self) -> Result<Vec<Master>> {
        let alive = self.servers.iter().find(|server| server.process.is_some());
        let alive = alive.context("all servers of the cluster are gone")?;
        let nodes = Talk::open(alive.address)?.text(&["CLUSTER", "NODES"])?;
        let mut masters = Vec::new();
        for line in nodes.lines().filter(|line| line.contains("master") && !line.contains("fail")) {
            let mut words = line.split_whitespace();
            let address = words.nth(1).and_then(|word| word.split('@').next()).unwrap_or_default();
            let range = |word: &str| {
                let (from, to) = word.split_once('-').unwrap_or((word, word));
                Some((from.parse().ok()?, to.parse().ok()?))
            };
            masters.push((address.parse()?, words.skip(6).filter_map(range).collect()));
        }
        Ok(masters)
    }
}

/// A PostgreSQL. It refuses to run as root, so then it runs as the user `postgres`.
pub struct Postgres {
    process: Process,
    folder: PathBuf,
    port: u16,
}

impl Postgres {
    /// A new one with nothing in it.
    pub fn start(folder: &Path) -> Result<Postgres> {
        let home = folder.join("postgres");
        std::fs::create_dir_all(&home)?;
        if let Some((user, group)) = other_user()? {
            chown(&home, Some(user), Some(group))?;
        }
        let made = postgres_program("initdb")?
            .args(["-A", "trust", "-U", "quipu", "-E", "UTF8", "--no-sync", "-D"])
            .arg(home.join("data"))
            .current_dir(&home)
            .output()
            .context("cannot start initdb; is PostgreSQL installed?")?;
        ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let port = free_port()?;
        let postgres = Postgres { process: serve(&home, port)?, folder: home, port };
        postgres.wait()?;
        Ok(postgres)
    }

    /// Ends it at once, as a crash would, and starts it again.
    pub fn restart(&mut self) -> Result<()> {
        self.process.kill();
        self.process = serve(&self.folder, self.port)?;
        self.wait()
    }

    fn wait(&self) -> Result<()> {
        wait_for("PostgreSQL answers", || {
            let port = self.port.to_string();
            let ready = postgres_program("pg_isready")?.args(["-h", "127.0.0.1", "-p", &port]).output()?;
            Ok(ready.status.success().then_some(()))
        })
    }

    /// What `--archive` takes.
    pub fn url(&self) -> String {
        format!("postgres://quipu@127.0.0.1:{}/postgres", self.port)
    }

    /// What one query says, in one line.
    pub fn ask(&self, query: &str) -> Result<String> {
        let output = Command::new("psql").args(["-qAt", "-d", &self.url(), "-c", query]).output()?;
        ensure!(output.status.success(), "psql: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
    }
}

fn serve(home: &Path, port: u16) -> Result<Process> {
    let mut command = postgres_program("postgres")?;
    command.arg("-D").arg(home.join("data")).args(["-p", &port.to_string()]);
    command.args(["-c", "listen_addresses=127.0.0.1", "-c", "max_wal_size=4GB", "-c"]);
    command.arg(format!("unix_socket_directories={}", home.display()));
    command.current_dir(home).stdout(Stdio::null()).stderr(Stdio::null());
    // SIGQUIT is the end without any tidying up, of its children too.
    Process::start(&mut command, "-QUIT")
}

/// Debian keeps its programs beside the path.
fn postgres_program(name: &str) -> Result<Command> {
    let debian = PathBuf::from("/usr/lib/postgresql/15/bin").join(name);
    let mut command = Command::new(if debian.exists() { debian } else { name.into() });
    if let Some((user, group)) = other_user()? {
        command.uid(user).gid(group);
    }
    Ok(command)
}

/// The user `postgres`, if we are root.
fn other_user() -> Result<Option<(u32, u32)>> {
    let id = Command::new("id").arg("-u").output()?;
    if String::from_utf8_lossy(&id.stdout).trim() != "0" {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd")?;
    let user = users.lines().find(|line| line.starts_with("postgres:"));
    let user = user.context("PostgreSQL does not run as root, and there is no user postgres")?;
    let mut numbers = user.split(':').skip(2).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(user)), Some(Ok(group))) => Ok(Some((user, group))),
        _ => bail!("/etc/passwd says of postgres: {user}"),
    }
}

/// A port that was free a moment ago, and so was that of a cluster's bus. Below those that the system gives out by itself.
fn free_port() -> Result<u16> {
    let first = 12_000 + (std::process::id() % 8_000) as u16;
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let taken = TAKEN.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let ports = (0..8_000).map(|step| 12_000 + (first - 12_000 + taken * 7 + step) % 8_000);
    let free = ports.into_iter().find(|port| is_free(*port) && is_free(port + BUS_OFFSET));
    free.context("no port between 12000 and 20000 is free")
}

/// How many ports were given out.
static TAKEN: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
