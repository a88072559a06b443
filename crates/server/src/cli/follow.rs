//! The changes of counters as a server tells them (`GET /api/v1/watch`), followed on a thread of its own.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use serde::Deserialize;

use super::client::{Client, Lines, encode};
use super::counter::Counter;
use super::failure::{Failure, system_words};

/// Keys that one stream is asked for.
const KEYS_MAX: usize = 256;
/// Bytes of an address: half of what a server takes by default.
const PATH_BYTES_MAX: usize = 16 << 10;
/// News that nobody has taken yet. With more of them we do not read, and the server waits with what is newer.
pub const NEWS_MAX: usize = 1_024;
/// Before a server that is gone is tried again.
const PAUSE: Duration = Duration::from_millis(250);

/// What a server says.
pub enum News {
    /// A counter is so now.
    Change(Box<Counter>),
    /// All counters were deleted.
    Clear,
    /// What is known may be wrong; what there is follows.
    Reset,
    /// What there is was said; whether that was everything.
    Ready(bool),
    /// There is no server. It is tried again if that may help.
    Lost(Failure),
}

/// Which stream says it, and what.
pub type Heard = (usize, News);

#[derive(Deserialize)]
struct Ready {
    complete: bool,
}

/// Follows these counters, and those that begin with `prefix`. Returns how many streams that takes, and what they say.
pub fn follow(
    client: &Client,
    keys: &[&[u8]],
    prefix: Option<&[u8]>,
    interval_ms: u64,
) -> (usize, Receiver<Heard>) {
    let (tell, told) = sync_channel(NEWS_MAX);
    let paths = paths(keys, prefix, interval_ms);
    for (stream, path) in paths.iter().cloned().enumerate() {
        let (client, tell) = (client.clone(), tell.clone());
        // Ends when nobody listens any more, at the latest with the process.
        thread::spawn(move || {
            let mut last_event = None;
            loop {
                let lost = match client.stream(path.clone(), last_event.as_deref()) {
                    Ok(lines) => {
                        listen(&client, lines, &mut last_event, |news| tell.send((stream, news)).is_ok())
                    }
                    Err(failure) => Some(failure),
                };
                let Some(lost) = lost else { return };
                let is_final = !lost.is_passing();
                if tell.send((stream, News::Lost(lost))).is_err() || is_final {
                    return;
                }
                thread::sleep(PAUSE);
            }
        });
    }
    (paths.len(), told)
}

fn paths(keys: &[&[u8]], prefix: Option<&[u8]>, interval_ms: u64) -> Vec<String> {
    let begin = format!("watch?initial=true&intervalMs={interval_ms}");
    let mut paths: Vec<String> = Vec::new();
    if let Some(prefix) = prefix {
        paths.push(format!("{begin}&prefix={}", encode(prefix)));
    }
    let mut keys_left = 0;
    for key in keys {
        let key = format!("&key={}", encode(key));
        match paths.last_mut().filter(|path| keys_left > 0 && path.len() + key.len() <= PATH_BYTES_MAX) {
            Some(path) => {
                path.push_str(&key);
                keys_left -= 1;
            }
            None => {
                paths.push(format!("{begin}{key}"));
                keys_left = KEYS_MAX - 1;
            }
        }
    }
    paths
}

/// Passes on what a stream says until it ends, and why it did; `None` if nobody listens.
fn listen(
    client: &Client,
    mut lines: Lines,
    last_event: &mut Option<String>,
    tell: impl Fn(News) -> bool,
) -> Option<Failure> {
    let lost = |why: &str| Some(Failure::unreachable(format!("{}: {why}; try again", client.server)));
    let (mut name, mut id, mut data) = (String::new(), None, String::new());
    loop {
        let line = match lines.next() {
            Ok(Some(line)) => line,
            Ok(None) => return lost("the server has ended the stream"),
            Err(error) => return lost(&system_words(&error)),
        };
        match line.split_once(": ") {
            Some(("event", value)) => name = value.to_owned(),
            Some(("id", value)) => id = Some(value.to_owned()),
            Some(("data", value)) => data = value.to_owned(),
            None if line.is_empty() => {
                let event = read(&name, &data);
                if id.is_some() {
                    *last_event = id.take();
                }
                (name, data) = (String::new(), String::new());
                if let Some(news) = event
                    && !tell(news)
                {
                    return None;
                }
            }
            // How long to wait, and heartbeats.
            _ => {}
        }
    }
}

/// What an event says; what this version does not know is passed over.
fn read(name: &str, data: &str) -> Option<News> {
    match name {
        "change" => serde_json::from_str(data).ok().map(|counter| News::Change(Box::new(counter))),
        "clear" => Some(News::Clear),
        "reset" => Some(News::Reset),
        "ready" => serde_json::from_str::<Ready>(data).ok().map(|ready| News::Ready(ready.complete)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_streams_as_it_takes() {
        let names: Vec<String> = (0..600).map(|number| format!("k{number}")).collect();
        let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        let of = |keys: &[&[u8]], prefix| paths(keys, prefix, 100);
        assert_eq!(of(&[b"a/b", b"c"], None), ["watch?initial=true&intervalMs=100&key=a%2Fb&key=c"]);
        assert_eq!(of(&[], Some(b"")), ["watch?initial=true&intervalMs=100&prefix="]);
        assert_eq!(of(&keys, None).len(), 3);
        assert_eq!(of(&keys[..1], Some(b"p")).len(), 2);
        let long = [b'%'; 512];
        let paths = of(&[&long[..]; 256], None);
        assert!(paths.len() > 1 && paths.iter().all(|path| path.len() <= PATH_BYTES_MAX), "{}", paths.len());
        assert_eq!(paths.iter().map(|path| path.matches("&key=").count()).sum::<usize>(), 256);
    }
}
