//! The tests of the server on counters in Redis: first on a single redis-server, then on a Redis Cluster of six.
//!
//! What is left out stands in docs/external.md, in a table whose first column is a filter of nextest: the list that people
//! read is the list that holds.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::servers::{Server, find_program};
use crate::workspace::{cargo, top};

/// The page, and the heading before the table.
const PAGE: &str = "docs/external.md";
const HEADING: &str = "## Tests that do not run on Redis";
/// By this the tests know where the Redis is. They empty it, each for itself.
const VARIABLE: &str = "QUIPU_TEST_BACKEND";
/// Three masters with a replica each.
const CLUSTER_SERVERS: usize = 6;
/// How long a cluster may take to agree.
const AGREE_MAX: Duration = Duration::from_secs(60);

/// Which of them, and which tests
#[derive(clap::Args)]
pub struct Arguments {
    /// Only on a single server
    #[arg(long, conflicts_with = "cluster")]
    single: bool,
    /// Only on a cluster
    #[arg(long)]
    cluster: bool,
    /// Only these tests: a filter of nextest
    #[arg(long, short = 'E', value_name = "FILTER")]
    filter: Option<String>,
}

/// Runs them.
pub fn run(arguments: &Arguments) -> Result<()> {
    let page = std::fs::read_to_string(top().join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let left_out = left_out(&page)?;
    let mut filter = format!("kind(test) and not ({})", left_out.join(" or "));
    if let Some(only) = &arguments.filter {
        filter = format!("({filter}) and ({only})");
    }
    let folder = tempfile::tempdir()?;
    if !arguments.cluster {
        let server = redis(&folder.path().join("single"), &[])?;
        test("a single redis-server", &format!("redis://{}", server.resp), &filter)?;
    }
    if !arguments.single {
        let servers = start_cluster(folder.path())?;
        let urls: Vec<String> = servers.iter().map(|server| format!("redis://{}", server.resp)).collect();
        test("a Redis Cluster of six", &urls.join(","), &filter)?;
    }
    Ok(())
}

/// One at a time: they share one Redis.
fn test(what: &str, urls: &str, filter: &str) -> Result<()> {
    println!("== the tests of the server, on {what}");
    let arguments = [
        "nextest",
        "run",
        "--package",
        "quipu-server",
        "--no-fail-fast",
        "--profile",
        "on-redis",
        "-E",
        filter,
    ];
    let status = cargo().args(arguments).env(VARIABLE, urls).status()?;
    ensure!(status.success(), "tests failed on {what}");
    Ok(())
}

/// The filters of what is left out, from the page.
fn left_out(page: &str) -> Result<Vec<String>> {
    let (_, section) = page.split_once(HEADING).with_context(|| format!("{PAGE} has no {HEADING:?}"))?;
    let section = section.split("\n## ").next().unwrap_or(section);
    let filters: Vec<String> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .map(|(filter, _)| filter.to_owned())
        .collect();
    ensure!(!filters.is_empty(), "{PAGE} lists nothing below {HEADING:?}");
    Ok(filters)
}

fn redis(folder: &Path, arguments: &[&str]) -> Result<Server> {
    let program = find_program("redis-server").context("redis-server is not installed")?;
    Server::redis_with(&program, folder, &[&["--appendonly", "no"], arguments].concat())
}

fn start_cluster(folder: &Path) -> Result<Vec<Server>> {
    let mut servers = Vec::new();
    for place in 0..CLUSTER_SERVERS {
        // Redis would add 10,000 to the other port, which may be too much.
        let bus = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port().to_string();
        let settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--cluster-port", &bus];
        servers.push(redis(&folder.join(place.to_string()), &settings)?);
    }
    let addresses: Vec<String> = servers.iter().map(|server| server.resp.to_string()).collect();
    let mut create = redis_cli(&["--cluster", "create"]);
    let created = create.args(&addresses).args(["--cluster-replicas", "1", "--cluster-yes"]).output()?;
    ensure!(created.status.success(), "{}", String::from_utf8_lossy(&created.stdout));
    let began = Instant::now();
    while !addresses.iter().all(|address| {
        redis_cli(&["--cluster", "check", address]).status().is_ok_and(|status| status.success())
    }) {
        if began.elapsed() > AGREE_MAX {
            bail!("the Redis Cluster does not agree on who has which slots");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(servers)
}

fn redis_cli(arguments: &[&str]) -> Command {
    let mut command = Command::new("redis-cli");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::{left_out, top};

    #[test]
    fn the_page_lists_what_is_left_out() {
        let page = std::fs::read_to_string(top().join(super::PAGE)).unwrap();
        let filters = left_out(&page).unwrap();
        assert!(filters.iter().all(|filter| filter.starts_with("binary(") || filter.starts_with("test(")));
    }
}
