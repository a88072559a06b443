//! `quipu serve`, from the first check to the last flush.
//!
//! Ports first, because a port in use is the commonest mistake and costs nothing to find; then what counts (`deployment`), and
//! a data folder may take a while to recover; then the fronts, and one line on stderr. From there the process waits for a signal or
//! for the log to fail.

use std::io::IsTerminal;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use parking_lot::Mutex;
use quipu_store::Durability;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::cli::terminal::print_aside;
use crate::clock::Clock;
use crate::config::Config;
use crate::deployment::{Addresses, Deployment, Ended, Plan, promise};
use crate::http::{self, App};
use crate::metrics::Metrics;
use crate::mirror::Mirror;
use crate::open_files::{self, Shares};
use crate::resp::{self, ClusterPort, RespServer};

/// How often to look whether the log has failed. Nothing is acknowledged after a failure, so this only decides how
/// soon the process says so, and how soon memory that was freed is given back.
const FAILURE_POLL: Duration = Duration::from_millis(100);
/// Handlers only wait, they never compute for long; more threads would take cores from RESP.
const HTTP_THREADS_MAX: usize = 4;

/// Whether requests will be served; what `/readyz` says.
#[derive(Debug, Default)]
pub struct Health {
    problem: Mutex<Option<String>>,
}

impl Health {
    /// Why not, if not.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// From now on not, and why.
    pub fn set(&self, problem: impl Into<String>) {
        *self.problem.lock() = Some(problem.into());
    }
}

/// Serves until a signal, a failure or the end of `parent` ends it. An error means a non-zero exit code. `announce` learns
/// where the fronts listen, once they do; `tidy_memory` is called now and then.
pub fn run(
    config: &Config,
    parent: Option<u32>,
    announce: impl FnOnce(Addresses),
    tidy_memory: fn(),
) -> anyhow::Result<()> {
    start_log(config);
    let files = share_open_files(config)?;
    let plan = Plan::of(config)?;
    let listeners = Listeners::open(config, &plan)?;
    let addresses = listeners.addresses()?;
    let clock = Arc::new(Clock::new());
    let runtime = http_runtime().context("cannot start the threads of HTTP")?;
    let deployment = Deployment::open(&plan, config, &files, &clock, &runtime, &addresses)?;
    let health = Arc::new(Health::default());
    // From here on a signal is an orderly end, also one that comes right after the line below.
    let signals = {
        let _inside = runtime.enter();
        Signals::new().context("cannot watch for signals")?
    };
    let fronts = Fronts::start(config, &files, listeners, &deployment, clock, &health, &runtime)?;
    let resp_cluster =
        addresses.resp_cluster.map(|address| format!(", resp-cluster {address}")).unwrap_or_default();
    print_aside(&format!(
        "quipu {} serves: http {}, resp {}{resp_cluster}, {}",
        env!("CARGO_PKG_VERSION"),
        addresses.http,
        addresses.resp,
        deployment.described(config)
    ));
    announce(addresses);

    let end = runtime.block_on(signals.wait_or_failure(|| {
        tidy_memory();
        if parent.is_some_and(|parent| parent != std::os::unix::process::parent_id()) {
            return Some(End::Signal("the end of the process that started it"));
        }
        deployment.ended().map(End::Ended)
    }));
    let why = match &end {
        End::Signal(name) => format!("draining after {name}"),
        End::Ended(Ended::Failed(reason) | Ended::Refused(reason)) => reason.clone(),
    };
    tracing::info!("{why}");
    health.set(why);
    deployment.step_aside(&runtime);
    fronts.stop(&runtime);
    let durability = if deployment.member().is_some() { Durability::Sync } else { config.durability };
    let closed = deployment.close(&runtime);
    if let End::Ended(Ended::Failed(reason)) = &end {
        let promise = promise(durability);
        bail!("{reason}. {promise}; nothing more was acknowledged. Check the disk, then start quipu again");
    }
    closed.context("the last flush failed")?;
    if let End::Ended(Ended::Refused(reason)) = end {
        bail!("the cluster does not want this node: {reason}");
    }
    tracing::info!("stopped");
    Ok(())
}

/// Where the fronts listen, before anybody serves there.
struct Listeners {
    http: TcpListener,
    resp: TcpListener,
    resp_cluster: Option<TcpListener>,
}

impl Listeners {
    fn open(config: &Config, plan: &Plan) -> anyhow::Result<Listeners> {
        Ok(Listeners {
            http: listen("http", config.http_listen)?,
            resp: listen("resp", config.resp_listen)?,
            resp_cluster: match plan.is_of_cluster() {
                true => Some(listen("resp-cluster", config.resp_cluster_listen)?),
                false => None,
            },
        })
    }

    fn addresses(&self) -> std::io::Result<Addresses> {
        Ok(Addresses {
            http: self.http.local_addr()?,
            resp: self.resp.local_addr()?,
            resp_cluster: self.resp_cluster.as_ref().map(TcpListener::local_addr).transpose()?,
        })
    }
}

/// RESP and HTTP over the same counters.
struct Fronts {
    resp: RespServer,
    http: http::Server,
}

impl Fronts {
    fn start(
        config: &Config,
        files: &Shares,
        listeners: Listeners,
        deployment: &Deployment,
        clock: Arc<Clock>,
        health: &Arc<Health>,
        runtime: &tokio::runtime::Runtime,
    ) -> anyhow::Result<Fronts> {
        let (counters, member) = (deployment.counters(), deployment.member());
        let resp = RespServer::start(
            resp_options(config, files, deployment.durability(config)),
            listeners.resp,
            listeners
                .resp_cluster
                .zip(member)
                .map(|(listener, member)| ClusterPort { listener, map: member.map() }),
            Arc::clone(&counters),
            Arc::clone(&clock),
        )
        .context("cannot serve RESP")?;
        let load = Arc::new(http::Load::new(http::Limits {
            connections_max: files.http_connections_max,
            ..config.http.clone()
        }));
        let mirror = Mirror::start(config, deployment, &clock, runtime);
        let metrics = Metrics::new(
            Arc::clone(&counters),
            Some(Arc::clone(resp.shared())),
            Some(Arc::clone(&load)),
            mirror.clone().map(|mirror| (mirror, Arc::clone(&clock))),
        );
        let app = Arc::new(App {
            hub: http::Hub::new(Arc::clone(&counters), Arc::clone(&clock)),
            counters,
            cluster: member.map(|member| Arc::clone(member.node())),
            external: deployment.external().cloned(),
            clock,
            metrics: Arc::new(metrics),
            health: Arc::clone(health),
            x_request_id: config.http_x_request_id,
            load,
            mirror,
            openapi: std::sync::OnceLock::new(),
        });
        let http = http::Server::start(runtime, listeners.http, http::Front::new(app))
            .context("cannot serve HTTP")?;
        Ok(Fronts { resp, http })
    }

    fn stop(self, runtime: &tokio::runtime::Runtime) {
        runtime.block_on(self.http.drain());
        self.resp.stop();
    }
}

fn resp_options(config: &Config, files: &Shares, durability: String) -> resp::Options {
    let defaults = resp::Options::default();
    resp::Options {
        event_loops: if config.resp_threads == 0 { defaults.event_loops } else { config.resp_threads },
        connections_max: files.resp_connections_max,
        connections_possible: files.resp_connections_possible,
        output_bytes_max: config.resp_output_bytes_max,
        buffer_bytes_max: config.resp_buffer_bytes_max,
        idle_ms: config.resp_idle_ms,
        durability,
        ..defaults
    }
}

fn start_log(config: &Config) {
    let started = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // The cold store's library reports every compaction, that of consensus every vote: news only when something is
        // wrong.
        .with_env_filter(EnvFilter::new(format!("lsm_tree=warn,openraft=error,{}", config.log)))
        // It would tell stderr that stderr cannot be written to, and panic: a full disk must not end the server so.
        .log_internal_errors(false)
        .try_init();
    if let Err(error) = started {
        print_aside(&format!("quipu: logging was started before: {error}"));
    }
}

/// Every connection is a file, and so is much of the store; the usual limit of 1024 is far below what we allow ourselves.
fn share_open_files(config: &Config) -> anyhow::Result<Shares> {
    let possible = open_files::raise_limit(u64::MAX);
    let Some(shares) = Shares::of(possible, config.connections_max) else {
        bail!(
            "the limit on open files is {possible}, and quipu needs at least {}; raise it (ulimit -n) and start again",
            Shares::FILES_MIN
        );
    };
    let (resp, http) = (shares.resp_connections_max, shares.http_connections_max);
    if resp.min(http) < config.connections_max {
        tracing::warn!(
            "the limit on open files is {possible}: at most {resp} connections of RESP and {http} of HTTP are served, not \
             {} of each (max_connections); raise the limit (ulimit -n) for more",
            config.connections_max
        );
    }
    Ok(shares)
}

/// Connections that may wait to be accepted: a fleet that comes back after a restart, not the 128 of the library.
const LISTEN_BACKLOG: i32 = 4096;

fn listen(front: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).with_context(|| {
        format!("cannot listen on {address}; is another process there? Choose another address with --{front}")
    })?;
    rustix::net::listen(&listener, LISTEN_BACKLOG).with_context(|| format!("cannot listen on {address}"))?;
    Ok(listener)
}

fn http_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.min(HTTP_THREADS_MAX))
        .thread_name("quipu-async")
        .enable_all()
        .build()
}

/// Why the server ends.
enum End {
    /// Somebody asked.
    Signal(&'static str),
    /// What stands behind the fronts cannot go on.
    Ended(Ended),
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// `None` under `nohup`, which asks to survive the end of the terminal.
    hang_up: Option<Signal>,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        let hang_up = (!ignores_hang_up()).then(|| signal(SignalKind::hangup())).transpose()?;
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up,
        })
    }

    async fn wait_or_failure(mut self, failed: impl Fn() -> Option<End>) -> End {
        let mut poll = tokio::time::interval(FAILURE_POLL);
        loop {
            let hung_up = async {
                match &mut self.hang_up {
                    Some(signal) => signal.recv().await,
                    None => std::future::pending().await,
                }
            };
            let name = tokio::select! {
                _ = self.terminate.recv() => "SIGTERM",
                _ = self.interrupt.recv() => "SIGINT",
                _ = hung_up => "SIGHUP",
                _ = poll.tick() => match failed() {
                    Some(end) => return end,
                    None => continue,
                },
            };
            tokio::spawn(self.wait_for_impatience(name == "SIGINT"));
            return End::Signal(name);
        }
    }

    /// Ends the process when somebody at a terminal does not want to wait for the drain: when Ctrl-C is pressed twice. More
    /// of the other signals change nothing, because supervisors send them to a process and to its group.
    async fn wait_for_impatience(mut self, is_interrupted: bool) {
        if !is_interrupted {
            self.interrupt.recv().await;
        }
        // The shell and whatever passes signals on may both tell us of one Ctrl-C.
        let same_until = tokio::time::Instant::now() + SAME_INTERRUPT;
        while tokio::time::timeout_at(same_until, self.interrupt.recv()).await.is_ok() {}
        self.interrupt.recv().await;
        print_aside("quipu: interrupted again; stopping at once");
        std::process::exit(130);
    }
}

/// Interrupts so close together are one.
const SAME_INTERRUPT: Duration = Duration::from_millis(300);

/// Whether whoever started this process made it ignore SIGHUP. A handler would undo that.
pub fn ignores_hang_up() -> bool {
    const SIGHUP_BIT: u64 = 1;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & SIGHUP_BIT != 0
}

#[cfg(test)]
mod tests {
    use super::{End, Ended, Signals};
    use std::cell::Cell;

    #[tokio::test(start_paused = true)]
    async fn a_failed_log_ends_the_server() {
        let looks = Cell::new(0);
        let failed = || {
            looks.set(looks.get() + 1);
            (looks.get() > 3).then(|| End::Ended(Ended::Failed("the disk is gone".to_owned())))
        };
        let end = Signals::new().unwrap().wait_or_failure(failed).await;
        assert!(matches!(end, End::Ended(Ended::Failed(reason)) if reason == "the disk is gone"));
    }
}
