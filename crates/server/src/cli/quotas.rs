//! Commands about windows and quotas: window, acquire.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::client::{Call, Client, encode};
use super::counters::{Target, insert, key_body, key_parser, note_replay};
use super::failure::Failure;
use super::terminal::{self, Screen, print_note};
use crate::config::units;

/// window
#[derive(Debug, clap::Args)]
pub struct Window {
    /// The counter
    #[arg(value_parser = key_parser())]
    key: OsString,
    /// Of the last so long, like 15m or 1h; without it, of the counter's own window
    #[arg(long, value_name = "DURATION", value_parser = units::duration_ms)]
    last: Option<u64>,
    /// From this time on: RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "TIME", conflicts_with = "last")]
    from: Option<String>,
    /// Up to this time
    #[arg(long, value_name = "TIME", conflicts_with = "last")]
    to: Option<String>,
    /// Print each bucket in which something was counted; on a terminal they are always shown
    #[arg(long)]
    buckets: bool,
    #[command(flatten)]
    client: Client,
}

/// acquire
#[derive(Debug, clap::Args)]
pub struct Acquire {
    #[command(flatten)]
    target: Target,
    /// The most there may be in the window; without it, what the policy says
    #[arg(long, value_name = "N")]
    limit: Option<i64>,
    /// The window, like 1m or 1h; without it, the counter's own, or all time
    #[arg(long, value_name = "DURATION", value_parser = units::duration_ms)]
    window: Option<u64>,
    /// Windows one behind the other instead of the last so long
    #[arg(long, requires = "window")]
    fixed: bool,
    /// How much
    #[arg(long, value_name = "N", default_value_t = 1)]
    amount: i64,
    /// Count it also beyond the limit
    #[arg(long)]
    soft: bool,
    /// Count it in another counter too, whose limit must leave room as well: all or nothing; may be repeated
    #[arg(long, num_args = 3, value_names = ["KEY", "LIMIT", "WINDOW"], conflicts_with = "soft")]
    and: Vec<OsString>,
    #[command(flatten)]
    client: Client,
}

/// Of several limits.
#[derive(Debug, Deserialize)]
struct Grants {
    results: Vec<Grant>,
}

#[derive(Debug, Deserialize)]
struct Span {
    #[serde(flatten)]
    counted: Counted,
    from: String,
    to: String,
    #[serde(default = "all")]
    complete: bool,
    since: Option<String>,
    buckets: Vec<Bucket>,
}

/// Of a server that does not say so.
fn all() -> bool {
    true
}

#[derive(Debug, Deserialize)]
struct Bucket {
    start: String,
    #[serde(flatten)]
    counted: Counted,
}

/// A sum, or a number of different items.
#[derive(Debug, Deserialize)]
struct Counted {
    sum: Option<serde_json::Number>,
    estimate: Option<u64>,
}

impl Counted {
    fn number(&self) -> i128 {
        let sum = self.sum.as_ref().and_then(|sum| sum.to_string().parse().ok());
        sum.or(self.estimate.map(i128::from)).unwrap_or(0)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Grant {
    limit: i64,
    used: i64,
    remaining: i64,
    reset_ms: u64,
    over_limit: bool,
    #[serde(default)]
    duplicate: bool,
}

impl Window {
    /// Prints the sum, and the buckets.
    pub fn run(&self) -> Result<(), Failure> {
        let mut path = format!("counters/{}/window", encode(self.key.as_bytes()));
        let last = self.last.map(|ms| format!("{ms}ms"));
        let parameters = [("last", &last), ("from", &self.from), ("to", &self.to)];
        for (name, value) in parameters {
            if let Some(value) = value {
                let sign = if path.contains('?') { '&' } else { '?' };
                path.push_str(&format!("{sign}{name}={}", encode(value.as_bytes())));
            }
        }
        let Some(span) = self.client.call::<Span>(&Call::get(path))? else { return Ok(()) };
        if let (false, Some(since)) = (span.complete, &span.since) {
            print_note(&format!(
                "what was counted before {since} is no longer kept by its time: there may have been more"
            ));
        }
        let screen = Screen::stdout();
        let number = screen.number(span.counted.number());
        if screen.is_terminal {
            let row = |bucket: &Bucket| vec![bucket.start.clone(), screen.number(bucket.counted.number())];
            if !span.buckets.is_empty() {
                terminal::print(screen.table(&["BEGIN", "COUNTED "], span.buckets.iter().map(row)))?;
            }
            let range = screen.dim(&format!("({} to {})", span.from, span.to));
            return terminal::print(format!("{number}  {range}"));
        }
        if !self.buckets {
            return terminal::print(number);
        }
        let line = |bucket: &Bucket| format!("{}\t{}", bucket.start, bucket.counted.number());
        match span.buckets.is_empty() {
            true => Ok(()),
            false => terminal::print(span.buckets.iter().map(line).collect::<Vec<_>>().join("\n")),
        }
    }
}

impl Acquire {
    /// Prints what is left of the limit. Over it, the exit code says so.
    pub fn run(&self) -> Result<(), Failure> {
        let mut body = Map::from_iter([("amount".to_owned(), json!(self.amount))]);
        insert(&mut body, "limit", self.limit);
        insert(&mut body, "soft", self.soft.then_some(true));
        insert(
            &mut body,
            "window",
            self.window.map(|span_ms| match self.fixed {
                true => json!({"type": "fixed", "spanMs": span_ms}),
                false => json!(span_ms),
            }),
        );
        if !self.and.is_empty() {
            return self.run_all(body);
        }
        let call = self.target.call("POST", "/acquire", Some(Value::Object(body)));
        let Some(grant) = self.client.call::<Grant>(&call)?.filter(|_| !self.target.quiet) else {
            return Ok(());
        };
        let screen = Screen::stdout();
        let left = screen.number(grant.remaining);
        let reset = match grant.reset_ms {
            0 => String::new(),
            ms => format!("; more in {}", terminal::duration(ms)),
        };
        let details = format!("(left of {}{reset})", screen.number(grant.limit));
        terminal::print(match screen.is_terminal {
            true => format!("{left}  {}", screen.dim(&details)),
            false => left,
        })?;
        if grant.over_limit {
            print_note(&format!("over the limit: {} of {} are used", grant.used, grant.limit));
        }
        note_replay(grant.duplicate);
        Ok(())
    }

    /// Several limits: prints what is left of each, in their order.
    fn run_all(&self, first: Map<String, Value>) -> Result<(), Failure> {
        let item = |key: &OsString, mut body: Map<String, Value>| {
            match key_body(key.as_bytes()) {
                Value::Object(base64) => body.extend(base64),
                text => _ = body.insert("key".to_owned(), text),
            }
            Value::Object(body)
        };
        let mut items = vec![item(&self.target.key, first)];
        for words in self.and.chunks_exact(3) {
            let text = |word: &OsString| word.to_string_lossy().into_owned();
            let limit = text(&words[1]);
            let limit: i64 = limit.parse().map_err(|_| {
                Failure::usage(anyhow::anyhow!("--and: the limit {limit:?} is not a whole number"))
            })?;
            let window = units::duration_ms(&text(&words[2]))
                .map_err(|error| Failure::usage(anyhow::anyhow!("--and: the window: {error}")))?;
            let body = json!({ "amount": self.amount, "limit": limit, "window": window });
            items.push(item(&words[0], body.as_object().cloned().unwrap_or_default()));
        }
        let body = Some(json!({ "items": items }));
        let call = Call { method: "POST", path: "acquire".to_owned(), id: self.target.id.as_deref(), body };
        let Some(grants) = self.client.call::<Grants>(&call)?.filter(|_| !self.target.quiet) else {
            return Ok(());
        };
        let screen = Screen::stdout();
        let lines: Vec<String> = grants.results.iter().map(|grant| screen.number(grant.remaining)).collect();
        terminal::print(lines.join("\n"))?;
        note_replay(grants.results.iter().any(|grant| grant.duplicate));
        Ok(())
    }
}
