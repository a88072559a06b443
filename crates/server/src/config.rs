//! Settings, where they come from, and which one holds: a flag over the environment over the file over the default.
//!
//! Settings are a table ([`settings`]): the flags of `quipu serve`, the names in `quipu.toml`, the `QUIPU_*` variables,
//! the help and `quipu config show` all come from it. A layer holds text; only what wins is read as a number, a
//! size or an address, and an error names the layer it stands in.

mod external;
mod file;
mod flags;
mod http;
pub mod secret;
pub(crate) mod units;

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use anyhow::bail;
pub use flags::Flags;
use quipu_cluster::meta::ADDRESS_BYTES_MAX;
use quipu_counting::slot::PARTITIONS_MAX;
use quipu_engine::{ID_WINDOW_MS_MIN, MEMORY_BYTES_MIN, memory_bytes_min};
use quipu_store::Durability;

use crate::cluster::map::host_and_port;
use crate::http::Limits;
use secret::{SecretUrl, masked};

/// What holds.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data folder.
    pub data: PathBuf,
    /// Where HTTP listens.
    pub http_listen: SocketAddr,
    /// Whether `X-Request-Id` is a request id where `Idempotency-Key` is absent.
    pub http_x_request_id: bool,
    /// What HTTP takes on at a time.
    pub http: Limits,
    /// Where RESP listens.
    pub resp_listen: SocketAddr,
    /// Where a node of a cluster listens for those who speak the Redis Cluster protocol.
    pub resp_cluster_listen: SocketAddr,
    /// Where they reach it, if that is not where it listens.
    pub resp_cluster_address: Option<String>,
    /// Threads that serve RESP; 0 for the front's own choice.
    pub resp_threads: usize,
    /// A RESP connection without a command for so long is closed; 0 for never.
    pub resp_idle_ms: u64,
    /// Replies a RESP connection may leave untaken before it is no longer served.
    pub resp_output_bytes_max: usize,
    /// What all RESP connections together may have in memory.
    pub resp_buffer_bytes_max: usize,
    /// Requests for counters on disk that may wait to be read.
    pub queue_requests_max: usize,
    /// How long one of them may wait for its turn.
    pub queue_wait_ms: u64,
    /// When a change is acknowledged.
    pub durability: Durability,
    /// What counters may take in memory.
    pub memory_bytes: u64,
    /// Partitions of a new data folder.
    pub partitions: u16,
    /// How long request ids are remembered.
    pub id_window_ms: u64,
    /// Whether hot keys are found.
    pub finds_hot_keys: bool,
    /// The most connections of each front.
    pub connections_max: usize,
    /// Serve machines other than this one although nobody has to authenticate.
    pub insecure: bool,
    /// Where counters are written behind to.
    pub mirror: Option<SecretUrl>,
    /// How often.
    pub mirror_interval_ms: u64,
    /// What is logged, in the language of `RUST_LOG`.
    pub log: String,
    /// The Redis that keeps the counters, instead of the data folder.
    pub backend: Option<SecretUrl>,
    /// The PostgreSQL behind it.
    pub archive: Option<SecretUrl>,
    /// Whether the archive gets a row for every change.
    pub archive_log: bool,
    /// How many replicas in Redis a change waits for.
    pub wait_replicas: usize,
}

/// One thing that can be set.
pub struct Setting {
    /// Its name in the file; a dot stands for a table.
    pub name: &'static str,
    /// Its flag, without the dashes.
    pub flag: &'static str,
    /// Its environment variable.
    pub variable: &'static str,
    /// What holds where nobody says anything.
    pub default: &'static str,
    /// What the value looks like.
    pub value_name: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
    /// Reads the text into the configuration, or says what was expected.
    read: fn(&mut Config, &str) -> Result<(), String>,
}

/// Everything that can be set.
pub fn settings() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().chain(http::SETTINGS).chain(external::SETTINGS)
}

const SETTINGS: &[Setting] = &[
    Setting {
        name: "data",
        flag: "data",
        variable: "QUIPU_DATA",
        default: "./quipu-data",
        value_name: "FOLDER",
        help: "Data folder, created if it does not exist",
        read: |config, text| read_into(&mut config.data, text, units::folder),
    },
    Setting {
        name: "http.listen",
        flag: "http",
        variable: "QUIPU_HTTP",
        default: "127.0.0.1:7070",
        value_name: "ADDRESS",
        help: "Where HTTP listens; port 0 takes a free one",
        read: |config, text| read_into(&mut config.http_listen, text, address),
    },
    Setting {
        name: "http.x_request_id",
        flag: "http-x-request-id",
        variable: "QUIPU_HTTP_X_REQUEST_ID",
        default: "use",
        value_name: "use|ignore",
        help: "Whether X-Request-Id names a request for retries where Idempotency-Key is absent",
        read: |config, text| read_into(&mut config.http_x_request_id, text, use_or_ignore),
    },
    Setting {
        name: "resp.listen",
        flag: "resp",
        variable: "QUIPU_RESP",
        default: "127.0.0.1:7071",
        value_name: "ADDRESS",
        help: "Where RESP (the Redis protocol) listens; port 0 takes a free one",
        read: |config, text| read_into(&mut config.resp_listen, text, address),
    },
    Setting {
        name: "resp.cluster_listen",
        flag: "resp-cluster",
        variable: "QUIPU_RESP_CLUSTER",
        default: "127.0.0.1:7073",
        value_name: "ADDRESS",
        help: "Where a node of a cluster listens for clients of the Redis Cluster protocol; port 0 takes a free one",
        read: |config, text| read_into(&mut config.resp_cluster_listen, text, address),
    },
    Setting {
        name: "resp.cluster_address",
        flag: "resp-cluster-address",
        variable: "QUIPU_RESP_CLUSTER_ADDRESS",
        default: "same",
        value_name: "HOST:PORT|same",
        help: "Where clients of the Redis Cluster protocol reach it, if that is not where it listens",
        read: |config, text| read_into(&mut config.resp_cluster_address, text, address_or_same),
    },
    Setting {
        name: "resp.threads",
        flag: "resp-threads",
        variable: "QUIPU_RESP_THREADS",
        default: "0",
        value_name: "NUMBER",
        help: "Threads that serve RESP; 0 chooses by the number of cores",
        read: |config, text| read_into(&mut config.resp_threads, text, threads),
    },
    Setting {
        name: "resp.idle_timeout",
        flag: "resp-idle-timeout",
        variable: "QUIPU_RESP_IDLE_TIMEOUT",
        default: "never",
        value_name: "DURATION|never",
        help: "A RESP connection without a command for so long is closed",
        read: |config, text| read_into(&mut config.resp_idle_ms, text, duration_or_never),
    },
    Setting {
        name: "resp.output_limit",
        flag: "resp-output-limit",
        variable: "QUIPU_RESP_OUTPUT_LIMIT",
        default: "32MiB",
        value_name: "SIZE",
        help: "Replies a RESP connection may leave untaken; with more it is not served until it takes them",
        read: |config, text| read_into(&mut config.resp_output_bytes_max, text, buffer),
    },
    Setting {
        name: "resp.buffer_limit",
        flag: "resp-buffer-limit",
        variable: "QUIPU_RESP_BUFFER_LIMIT",
        default: "256MiB",
        value_name: "SIZE",
        help: "Commands and replies of all RESP connections in memory; with more, those that hold most are closed",
        read: |config, text| read_into(&mut config.resp_buffer_bytes_max, text, buffer),
    },
    Setting {
        name: "queue.requests",
        flag: "queue-requests",
        variable: "QUIPU_QUEUE_REQUESTS",
        default: "200000",
        value_name: "NUMBER",
        help: "Requests for counters on disk that may wait to be read; more are refused as busy (for what is in memory, TCP slows clients down instead)",
        read: |config, text| read_into(&mut config.queue_requests_max, text, queued),
    },
    Setting {
        name: "queue.wait",
        flag: "queue-wait",
        variable: "QUIPU_QUEUE_WAIT",
        default: "1s",
        value_name: "DURATION",
        help: "How long a request for counters on disk may wait for its turn before it is refused as busy",
        read: |config, text| read_into(&mut config.queue_wait_ms, text, units::duration_ms),
    },
    Setting {
        name: "durability",
        flag: "durability",
        variable: "QUIPU_DURABILITY",
        default: "sync",
        value_name: "sync|interval:MS|none",
        help: "When a change is acknowledged: once it is on disk, or at once and synced every so often or never",
        read: |config, text| {
            read_into(&mut config.durability, text, |text| {
                text.parse().map_err(|_| "sync, interval:<ms> or none")
            })
        },
    },
    Setting {
        name: "memory",
        flag: "memory",
        variable: "QUIPU_MEMORY",
        default: "1GiB",
        value_name: "SIZE",
        help: "What counters may take in memory; more of them lie on disk",
        read: |config, text| read_into(&mut config.memory_bytes, text, memory),
    },
    Setting {
        name: "partitions",
        flag: "partitions",
        variable: "QUIPU_PARTITIONS",
        default: "16",
        value_name: "NUMBER",
        help: "Partitions of a new data folder, a power of two up to 256; an existing folder keeps its own",
        read: |config, text| read_into(&mut config.partitions, text, partitions),
    },
    Setting {
        name: "id_window",
        flag: "id-window",
        variable: "QUIPU_ID_WINDOW",
        default: "24h",
        value_name: "DURATION",
        help: "How long request ids are remembered",
        read: |config, text| read_into(&mut config.id_window_ms, text, id_window),
    },
    Setting {
        name: "hot_keys",
        flag: "hot-keys",
        variable: "QUIPU_HOT_KEYS",
        default: "true",
        value_name: "true|false",
        help: "Find the keys that are asked for most (quipu hot); costs so little that false is for measuring it",
        read: |config, text| {
            read_into(&mut config.finds_hot_keys, text, |text| text.parse().map_err(|_| "true or false"))
        },
    },
    Setting {
        name: "max_connections",
        flag: "max-connections",
        variable: "QUIPU_MAX_CONNECTIONS",
        default: "10000",
        value_name: "NUMBER",
        help: "The most connections of each front; fewer if the limit on open files (ulimit -n) is too low for them",
        read: |config, text| read_into(&mut config.connections_max, text, connections),
    },
    Setting {
        name: "insecure",
        flag: "insecure",
        variable: "QUIPU_INSECURE",
        default: "false",
        value_name: "true|false",
        help: "Listen on addresses that other machines reach, although nobody has to authenticate",
        read: |config, text| {
            read_into(&mut config.insecure, text, |text| text.parse().map_err(|_| "true or false"))
        },
    },
    Setting {
        name: "mirror.url",
        flag: "mirror",
        variable: "QUIPU_MIRROR",
        default: "none",
        value_name: "URL|none",
        help: "A PostgreSQL that gets a row for every counter, written behind: postgres://user:password@host/database",
        read: |config, text| external::read_postgres(&mut config.mirror, text),
    },
    Setting {
        name: "mirror.interval",
        flag: "mirror-interval",
        variable: "QUIPU_MIRROR_INTERVAL",
        default: "1s",
        value_name: "DURATION",
        help: "How often what changed is written to the mirror",
        read: |config, text| read_into(&mut config.mirror_interval_ms, text, units::duration_ms),
    },
    Setting {
        name: "log",
        flag: "log",
        variable: "QUIPU_LOG",
        default: "info",
        value_name: "FILTER",
        help: "What is logged on stderr: error, warn, info, debug, trace, or target=level,...",
        read: |config, text| read_into(&mut config.log, text, log_filter),
    },
];

fn read_into<T>(
    place: &mut T,
    text: &str,
    read: impl FnOnce(&str) -> Result<T, &'static str>,
) -> Result<(), String> {
    *place = read(text).map_err(|expected| format!("{:?} is not {expected}", masked(text)))?;
    Ok(())
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    let expected = "an address like 127.0.0.1:7070";
    text.to_socket_addrs().map_err(|_| expected)?.next().ok_or(expected)
}

/// A name is not looked up here: it is for clients.
fn address_or_same(text: &str) -> Result<Option<String>, &'static str> {
    let is_plain = !text.contains(|letter: char| letter.is_whitespace() || letter.is_control());
    match host_and_port(text) {
        _ if text == "same" => Ok(None),
        Some((_, 1..)) if is_plain && text.len() <= ADDRESS_BYTES_MAX => Ok(Some(text.to_owned())),
        _ => Err("an address like 10.0.0.1:7073 or node-1.example:7073, or same"),
    }
}

fn use_or_ignore(text: &str) -> Result<bool, &'static str> {
    match text {
        "use" => Ok(true),
        "ignore" => Ok(false),
        _ => Err("use or ignore"),
    }
}

/// More threads than this only take turns on the same partitions' locks.
const RESP_THREADS_MAX: usize = 256;

fn threads(text: &str) -> Result<usize, &'static str> {
    match text.parse() {
        Ok(threads) if threads <= RESP_THREADS_MAX => Ok(threads),
        _ => Err("a number from 0 to 256"),
    }
}

fn duration_or_never(text: &str) -> Result<u64, &'static str> {
    match text {
        "never" => Ok(0),
        text => units::duration_ms(text).map_err(|_| "a duration like 90s, 15m or 24h, or never"),
    }
}

/// Less than this and ordinary pipelines would be interrupted.
const BUFFER_BYTES_MIN: u64 = 1 << 20;

fn buffer(text: &str) -> Result<usize, &'static str> {
    let bytes = units::size(text).ok().filter(|bytes| *bytes >= BUFFER_BYTES_MIN);
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or("a size of at least 1MiB")
}

/// More requests than this take more memory than anybody wants to give to waiting.
const QUEUE_REQUESTS_MAX: usize = 100_000_000;

fn queued(text: &str) -> Result<usize, &'static str> {
    text.parse()
        .ok()
        .filter(|number| (1..=QUEUE_REQUESTS_MAX).contains(number))
        .ok_or("a number from 1 to 100000000")
}

fn memory(text: &str) -> Result<u64, &'static str> {
    const _: () = assert!(MEMORY_BYTES_MIN == 32 << 20);
    units::size(text)
        .ok()
        .filter(|bytes| *bytes >= MEMORY_BYTES_MIN)
        .ok_or("a size of at least 32MiB, like 512MiB or 2GB")
}

/// How long request ids are remembered.
pub fn id_window(text: &str) -> Result<u64, &'static str> {
    const _: () = assert!(ID_WINDOW_MS_MIN == 1_000);
    let window = units::duration_ms(text).ok().filter(|ms| *ms >= ID_WINDOW_MS_MIN);
    window.ok_or("a duration of at least 1s, like 90s, 15m, 24h or 7d")
}

fn partitions(text: &str) -> Result<u16, &'static str> {
    let partitions: Option<u16> = text.parse().ok();
    partitions
        .filter(|partitions| partitions.is_power_of_two() && *partitions <= PARTITIONS_MAX)
        .ok_or("a power of two from 1 to 256")
}

/// Each connection takes a file descriptor, and a process has at most about a million.
const CONNECTIONS_MAX: usize = 1_000_000;

fn connections(text: &str) -> Result<usize, &'static str> {
    text.parse()
        .ok()
        .filter(|number| (1..=CONNECTIONS_MAX).contains(number))
        .ok_or("a number from 1 to 1000000")
}

fn log_filter(text: &str) -> Result<String, &'static str> {
    match tracing_subscriber::EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("a log filter like info or quipu_engine=debug"),
    }
}

/// Where a setting comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// The configuration file.
    File {
        /// Which file.
        path: PathBuf,
        /// Where it stands there, counted from 1.
        line: usize,
    },
    /// An environment variable.
    Environment(&'static str),
    /// A flag.
    Flag(&'static str),
}

impl Source {
    /// Which layer, in one word.
    pub fn layer(&self) -> &'static str {
        match self {
            Source::Default => "default",
            Source::File { .. } => "file",
            Source::Environment(_) => "environment",
            Source::Flag(_) => "flag",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => out.write_str("default"),
            Source::File { path, line } => write!(out, "{}:{line}", path.display()),
            Source::Environment(variable) => write!(out, "environment {variable}"),
            Source::Flag(flag) => write!(out, "flag --{flag}"),
        }
    }
}

/// A setting with the text that holds.
pub struct Resolved {
    /// Which setting.
    pub setting: &'static Setting,
    /// The text that won.
    pub text: String,
    /// The layer it stands in.
    pub source: Source,
}

impl Resolved {
    /// The text as people may see it: without passwords.
    pub fn shown(&self) -> String {
        masked(&self.text)
    }
}

/// Finds the text that holds for every setting, and reads them all.
pub fn load(
    flags: &Flags,
    environment: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<(Config, Vec<Resolved>)> {
    let path = flags.config.clone().or_else(|| environment(CONFIG_VARIABLE).map(PathBuf::from));
    let file = match &path {
        Some(path) => file::read(path)?,
        None => Vec::new(),
    };
    let resolve = |setting: &'static Setting| {
        let flag = flags.given.iter().find(|(name, _)| *name == setting.name);
        let in_file = file.iter().find(|given| given.name == setting.name);
        let (text, source) = if let Some((_, text)) = flag {
            (text.clone(), Source::Flag(setting.flag))
        } else if let Some(text) = environment(setting.variable) {
            (text, Source::Environment(setting.variable))
        } else if let (Some(given), Some(path)) = (in_file, &path) {
            (given.text.clone(), Source::File { path: path.clone(), line: given.line })
        } else {
            (setting.default.to_owned(), Source::Default)
        };
        Resolved { setting, text, source }
    };
    let resolved: Vec<Resolved> = settings().map(resolve).collect();
    let mut config = blank();
    for Resolved { setting, text, source } in &resolved {
        (setting.read)(&mut config, text)
            .map_err(|error| anyhow::anyhow!("{source}: {}: {error}", setting.name))?;
    }
    config.http.connections_max = config.connections_max;
    check_memory(&config)?;
    check_exposure(&config)?;
    external::check(&config, &resolved)?;
    Ok((config, resolved))
}

/// The variable that names the configuration file.
const CONFIG_VARIABLE: &str = "QUIPU_CONFIG";

/// Every field is overwritten, because every setting has a default.
fn blank() -> Config {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    Config {
        data: PathBuf::new(),
        http_listen: nowhere,
        http_x_request_id: true,
        http: Limits::default(),
        resp_listen: nowhere,
        resp_cluster_listen: nowhere,
        resp_cluster_address: None,
        resp_threads: 0,
        resp_idle_ms: 0,
        resp_output_bytes_max: 0,
        resp_buffer_bytes_max: 0,
        queue_requests_max: 0,
        queue_wait_ms: 0,
        durability: Durability::Sync,
        memory_bytes: 0,
        partitions: 0,
        id_window_ms: 0,
        finds_hot_keys: true,
        connections_max: 0,
        insecure: false,
        mirror: None,
        mirror_interval_ms: 0,
        log: String::new(),
        backend: None,
        archive: None,
        archive_log: false,
        wait_replicas: 0,
    }
}

/// What each partition needs, all of them need.
fn check_memory(config: &Config) -> anyhow::Result<()> {
    let (partitions, least) = (config.partitions, memory_bytes_min(config.partitions));
    if config.memory_bytes < least {
        bail!(
            "memory: {partitions} partitions need at least {}MiB; allow more memory, or fewer partitions",
            least >> 20
        );
    }
    Ok(())
}

/// Until callers authenticate, whoever reaches a port may change every counter: that must be wanted.
fn check_exposure(config: &Config) -> anyhow::Result<()> {
    for (name, address) in [
        ("http.listen", config.http_listen),
        ("resp.listen", config.resp_listen),
        ("resp.cluster_listen", config.resp_cluster_listen),
    ] {
        if !config.insecure && !address.ip().is_loopback() {
            bail!(
                "{name}: {address} can be reached from other machines, and quipu does not ask callers who they are. \
                 Listen on 127.0.0.1, or, if something in front of it keeps strangers out, say --insecure"
            );
        }
    }
    Ok(())
}

/// Below this, two names have little to do with each other (1 is equality).
const LIKENESS_MIN: f64 = 0.8;

/// The setting somebody who wrote `name` may have meant, by any of its names.
fn nearest<const NAMES: usize>(
    name: &str,
    names: impl Fn(&'static Setting) -> [&'static str; NAMES],
) -> Option<&'static Setting> {
    let likeness = |setting: &'static Setting| {
        names(setting).iter().map(|known| strsim::jaro_winkler(name, known)).fold(0.0, f64::max)
    };
    let best = settings().map(|setting| (likeness(setting), setting));
    best.filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, setting)| setting)
}

/// Variables that look like settings and are none, with what was probably meant. They are no error: container
/// platforms put variables of their own under the name of a service.
pub fn misspelled_variables(names: impl Iterator<Item = String>) -> Vec<(String, &'static str)> {
    let known =
        |name: &str| OTHER_VARIABLES.contains(&name) || settings().any(|setting| setting.variable == name);
    names
        .filter(|name| name.starts_with("QUIPU_") && !known(name))
        .filter_map(|name| {
            let meant = nearest(&name["QUIPU_".len()..], |setting| [&setting.variable["QUIPU_".len()..]])?;
            Some((name, meant.variable))
        })
        .collect()
}

/// Variables of the command line that are no settings of a server.
const OTHER_VARIABLES: &[&str] = &[CONFIG_VARIABLE, "QUIPU_SERVER", "QUIPU_TARGET"];

/// Whether a file holds settings that make sense, whatever the other layers say; how many it holds.
pub fn check_file(path: &Path) -> anyhow::Result<usize> {
    let flags = Flags { config: Some(path.to_owned()), given: Vec::new() };
    let (_, resolved) = load(&flags, |_| None)?;
    Ok(resolved.iter().filter(|resolved| resolved.source != Source::Default).count())
}

#[cfg(test)]
mod tests;
