//! The tests of the server on counters in Redis: first on a single redis-server, then on a Redis Cluster of six.
//!
//! What is left out stands in docs/external.md, in a table whose first column is a filter of nextest: the list that people
//! read is the list that holds.

use anyhow::{Context, Result, ensure};

use crate::drill::ending::Scratch;
use crate::drill::stage::{Redis, RedisCluster};
use crate::workspace::{cargo, top};

/// The page, and the heading before the table.
const PAGE: &str = "docs/external.md";
const HEADING: &str = "## Tests that do not run on Redis";
/// By this the tests know where the Redis is. They empty it, each for itself.
const VARIABLE: &str = "QUIPU_TEST_BACKEND";

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

/// What of it a change must pass: some of every front, on a cluster, in less than a minute.
const IN_TEST: &str = "binary(/^(aggregates|cli_client|increx|late|resp_commands|resp_kinds|resp_own|resp_watch|rollups|watch)$/) \
     or test(=stories_are_answered_as_by_redis)";

impl Arguments {
    /// As a part of `cargo xtask test`.
    pub fn in_test() -> Arguments {
        Arguments { single: false, cluster: true, filter: Some(IN_TEST.to_owned()) }
    }
}

/// Runs them.
pub fn run(arguments: &Arguments) -> Result<()> {
    let page = std::fs::read_to_string(top().join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let left_out = left_out(&page)?;
    // Of one package, but built with all of them: by itself it would have other features, and be built again.
    let mut filter = format!("package(quipu-server) and kind(test) and not ({})", left_out.join(" or "));
    if let Some(only) = &arguments.filter {
        filter = format!("({filter}) and ({only})");
    }
    let folder = Scratch::new()?;
    if !arguments.cluster {
        let redis = Redis::start(folder.path())?;
        test("a single redis-server", &redis.url(), &filter)?;
    }
    if !arguments.single {
        let cluster = RedisCluster::start(folder.path())?;
        test("a Redis Cluster of six", &cluster.url(), &filter)?;
    }
    Ok(())
}

/// One at a time: they share one Redis.
fn test(what: &str, urls: &str, filter: &str) -> Result<()> {
    println!("== the tests of the server, on {what}");
    let arguments =
        ["nextest", "run", "--workspace", "--no-fail-fast", "--profile", "on-redis", "-E", filter];
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
        // Within a table a bar has to be escaped.
        .map(|(filter, _)| format!("({})", filter.replace("\\|", "|")))
        .collect();
    ensure!(!filters.is_empty(), "{PAGE} lists nothing below {HEADING:?}");
    Ok(filters)
}

#[cfg(test)]
mod tests {
    use super::{left_out, top};

    #[test]
    fn the_page_lists_what_is_left_out() {
        let page = std::fs::read_to_string(top().join(super::PAGE)).unwrap();
        let filters = left_out(&page).unwrap();
        assert!(filters.iter().all(|filter| filter.starts_with("(binary(") || filter.starts_with("(test(")));
    }
}
