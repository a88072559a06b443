//! The settings of HTTP: what it takes on at a time, and for how long it waits.

use std::time::Duration;

use quipu_engine::REQUESTS_PER_BATCH_MAX;

use super::{Setting, read_into, units};

pub(super) const SETTINGS: &[Setting] = &[
    Setting {
        name: "http.max_in_flight",
        flag: "http-max-in-flight",
        variable: "QUIPU_HTTP_MAX_IN_FLIGHT",
        default: "4096",
        value_name: "NUMBER",
        help: "The most HTTP requests in flight; above it they are told to come again",
        read: |config, text| read_into(&mut config.http.in_flight_max, text, in_flight),
    },
    Setting {
        name: "http.max_body",
        flag: "http-max-body",
        variable: "QUIPU_HTTP_MAX_BODY",
        default: "1MiB",
        value_name: "SIZE",
        help: "The largest body of an HTTP request, also after it was unpacked",
        read: |config, text| read_into(&mut config.http.body_bytes_max, text, body_bytes),
    },
    Setting {
        name: "http.body_memory",
        flag: "http-body-memory",
        variable: "QUIPU_HTTP_BODY_MEMORY",
        default: "64MiB",
        value_name: "SIZE",
        help: "What large bodies of HTTP requests and replies may take in memory together",
        read: |config, text| read_into(&mut config.http.body_memory_bytes, text, body_memory),
    },
    Setting {
        name: "http.max_head",
        flag: "http-max-head",
        variable: "QUIPU_HTTP_MAX_HEAD",
        default: "32KiB",
        value_name: "SIZE",
        help: "The largest head of an HTTP request: its address and headers",
        read: |config, text| read_into(&mut config.http.head_bytes_max, text, head_bytes),
    },
    Setting {
        name: "http.max_batch",
        flag: "http-max-batch",
        variable: "QUIPU_HTTP_MAX_BATCH",
        default: "10000",
        value_name: "NUMBER",
        help: "The most items of one batch",
        read: |config, text| read_into(&mut config.http.batch_items_max, text, batch_items),
    },
    Setting {
        name: "http.head_timeout",
        flag: "http-head-timeout",
        variable: "QUIPU_HTTP_HEAD_TIMEOUT",
        default: "10s",
        value_name: "DURATION",
        help: "How long the head of an HTTP request may take to arrive",
        read: |config, text| read_into(&mut config.http.head_timeout, text, timeout),
    },
    Setting {
        name: "http.body_timeout",
        flag: "http-body-timeout",
        variable: "QUIPU_HTTP_BODY_TIMEOUT",
        default: "20s",
        value_name: "DURATION",
        help: "How long the body of an HTTP request may take to arrive",
        read: |config, text| read_into(&mut config.http.body_timeout, text, timeout),
    },
    Setting {
        name: "http.idle_timeout",
        flag: "http-idle-timeout",
        variable: "QUIPU_HTTP_IDLE_TIMEOUT",
        default: "60s",
        value_name: "DURATION",
        help: "How long an HTTP connection may be idle between two requests",
        read: |config, text| read_into(&mut config.http.idle_timeout, text, timeout),
    },
    Setting {
        name: "http.write_timeout",
        flag: "http-write-timeout",
        variable: "QUIPU_HTTP_WRITE_TIMEOUT",
        default: "20s",
        value_name: "DURATION",
        help: "How long a client may take nothing of an HTTP reply",
        read: |config, text| read_into(&mut config.http.write_timeout, text, timeout),
    },
];

fn in_flight(text: &str) -> Result<usize, &'static str> {
    text.parse().ok().filter(|number| (1..=1_000_000).contains(number)).ok_or("a number from 1 to 1000000")
}

/// A batch is one record of the log, and the engine's limit on it stands.
fn batch_items(text: &str) -> Result<usize, &'static str> {
    const _: () = assert!(REQUESTS_PER_BATCH_MAX == 65_536);
    let items = text.parse().ok().filter(|number| (1..=REQUESTS_PER_BATCH_MAX).contains(number));
    items.ok_or("a number from 1 to 65536")
}

fn body_bytes(text: &str) -> Result<usize, &'static str> {
    between(text, 4 << 10, 64 << 20).ok_or("a size from 4KiB to 64MiB")
}

fn body_memory(text: &str) -> Result<usize, &'static str> {
    between(text, 4 << 20, 64 << 30).ok_or("a size from 4MiB to 64GiB")
}

/// The least is what hyper needs; a key of 512 bytes, all of them percent-encoded, fits it.
fn head_bytes(text: &str) -> Result<usize, &'static str> {
    between(text, 8 << 10, 1 << 20).ok_or("a size from 8KiB to 1MiB")
}

fn between(text: &str, least: usize, most: usize) -> Option<usize> {
    let bytes = usize::try_from(units::size(text).ok()?).ok()?;
    (least..=most).contains(&bytes).then_some(bytes)
}

fn timeout(text: &str) -> Result<Duration, &'static str> {
    let expected = "a duration from 1s to 1h";
    let ms = units::duration_ms(text).map_err(|_| expected)?;
    if (1_000..=3_600_000).contains(&ms) { Ok(Duration::from_millis(ms)) } else { Err(expected) }
}
