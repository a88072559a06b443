//! One call to a server over HTTP/1.0, blocking: one connection, one request, one reply, closed by the server.
//!
//! HTTP/1.0, because then no server may answer in chunks, and the end of the body is the end of the connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use quipu_counting::audit::ACTOR_BYTES_MAX;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::failure::{Failure, system_words};
use super::terminal;

/// What may stand in a path as it is. The dot may not: `..` would be taken for a step up.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~').remove(b':');
/// How long to wait for a connection: a host that is there answers at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for the reply; longer than any wait on the server's side.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// The same where the server may have to look at every counter there is.
const WALK_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a stream may be silent: some heartbeats of the server.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// The longest line of a stream or of a head.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// The largest reply: a full batch of the longest keys stays below.
const REPLY_BYTES_MAX: u64 = 64 << 20;
/// Port of a server that is named without one.
const DEFAULT_PORT: u16 = 7070;

/// Where the server is, and how to print what it says.
#[derive(Clone, Debug, clap::Args)]
pub struct Client {
    /// The server's HTTP address
    #[arg(
        long,
        env = "QUIPU_SERVER",
        default_value = "http://127.0.0.1:7070",
        value_name = "URL",
        hide_env_values = true
    )]
    pub server: String,
    /// Who you are, for the trail of what you change, up to 128 bytes
    #[arg(long, env = "QUIPU_ACTOR", value_name = "NAME", hide_env_values = true)]
    pub actor: Option<String>,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
}

/// A request of the API.
pub struct Call<'a> {
    pub method: &'static str,
    /// Below `/api/v1/`, encoded.
    pub path: String,
    /// Under which a retry is recognized.
    pub id: Option<&'a str>,
    pub body: Option<Value>,
}

impl Call<'_> {
    /// A read.
    pub fn get(path: impl Into<String>) -> Call<'static> {
        Call { method: "GET", path: path.into(), id: None, body: None }
    }

    /// How long the reply may take.
    fn reply_timeout(&self) -> Duration {
        let path = self.path.split_once('?').map_or(&*self.path, |(path, _)| path);
        let walks = path == "counters" || path.ends_with("/aggregate");
        if walks { WALK_TIMEOUT } else { REPLY_TIMEOUT }
    }

    /// Whether nothing changes, however often it is sent.
    fn only_reads(&self) -> bool {
        self.method == "GET" || self.path == "counters/batch-get"
    }
}

/// `segment` as a part of a path or query.
pub fn encode(segment: &[u8]) -> String {
    percent_encode(segment, PLAIN).to_string()
}

impl Client {
    /// Makes the call. Prints the JSON of the reply where that was asked for, and returns it otherwise. A refusal is a
    /// reply too: its JSON is printed, and it is a failure.
    pub fn call<T: DeserializeOwned>(&self, call: &Call<'_>) -> Result<Option<T>, Failure> {
        let (status, body) = self.exchange(call)?;
        if self.json && serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok() {
            terminal::print(String::from_utf8_lossy(&body).trim_end())?;
        }
        let reply = self.read(call, status, &body)?;
        Ok(if self.json { None } else { Some(reply) })
    }

    /// Makes the call and prints nothing.
    pub fn fetch<T: DeserializeOwned>(&self, call: &Call<'_>) -> Result<T, Failure> {
        let (status, body) = self.exchange(call)?;
        self.read(call, status, &body)
    }

    /// The time by the server's clock, not later than now: it tells whole seconds.
    pub fn clock_ms(&self) -> Result<u64, Failure> {
        let call = Call::get("policies");
        let (_, head, _) = self.exchange_whole(&call)?;
        let date = head.split("\r\n").filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
            name.eq_ignore_ascii_case("date").then(|| jiff::fmt::rfc2822::parse(value.trim()).ok())?
        });
        let at_ms = date.and_then(|date| u64::try_from(date.timestamp().as_millisecond()).ok());
        at_ms.ok_or_else(|| Failure::general(format!("{} does not say what time it is there", self.server)))
    }

    fn read<T: DeserializeOwned>(&self, call: &Call<'_>, status: u16, body: &[u8]) -> Result<T, Failure> {
        if !(200..300).contains(&status) {
            return Err(self.refusal(call, status, body));
        }
        serde_json::from_slice(body).map_err(|_| self.foreign(call, status))
    }

    fn refusal(&self, call: &Call<'_>, status: u16, body: &[u8]) -> Failure {
        let problem: Value = serde_json::from_slice(body).unwrap_or_default();
        match problem["detail"].is_string() {
            true => Failure::from_problem(status, &problem),
            false => self.foreign(call, status),
        }
    }

    /// Begins to read a reply without an end; `last_event` is the last that was heard of one before.
    pub fn stream(&self, path: String, last_event: Option<&str>) -> Result<Lines, Failure> {
        let address = address(&self.server).map_err(Failure::malformed)?;
        let call = Call::get(path);
        let mut head = format!("GET /api/v1/{} HTTP/1.0\r\nHost: {address}\r\n", call.path);
        if let Some(id) = last_event {
            head.push_str(&format!("Last-Event-ID: {id}\r\n"));
        }
        let mut stream = connect(&address).map_err(|error| self.unreached(&error))?;
        let mut begin = || {
            stream.set_read_timeout(Some(SILENCE_MAX))?;
            stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
            stream.write_all(format!("{head}\r\n").as_bytes())
        };
        let begun = begin();
        let mut lines = Lines(BufReader::new(stream));
        let first = begun.and_then(|()| lines.next());
        let status = match &first {
            Ok(Some(line)) if line.starts_with("HTTP/") => {
                line.split(' ').nth(1).and_then(|it| it.parse().ok())
            }
            Ok(Some(_)) => return Err(self.not_http()),
            _ if speaks_resp(&address) => return Err(self.not_http()),
            _ => None,
        };
        let cut_off = || Failure::unreachable(format!("{}: the reply was cut off; try again", self.server));
        let status: u16 = status.ok_or_else(cut_off)?;
        while !lines.next().ok().flatten().ok_or_else(cut_off)?.is_empty() {}
        if status == 200 {
            return Ok(lines);
        }
        let mut body = Vec::new();
        let _ = lines.0.take(LINE_BYTES_MAX).read_to_end(&mut body);
        Err(self.refusal(&call, status, &body))
    }

    /// Somebody answered, but nobody we know. Behind a proxy that failed, a server may have done what was asked.
    fn foreign(&self, call: &Call<'_>, status: u16) -> Failure {
        let said =
            format!("{} answered with status {status}, but not as quipu does; is it a quipu", self.server);
        if status >= 500 && !call.only_reads() {
            Failure::unknown_outcome(format!("{said} server behind a proxy? {UNKNOWN}"))
        } else {
            Failure::unreachable(format!("{said} server? {ELSEWHERE}"))
        }
    }

    fn exchange(&self, call: &Call<'_>) -> Result<(u16, Vec<u8>), Failure> {
        self.exchange_whole(call).map(|(status, _, body)| (status, body))
    }

    /// The same, with the head.
    fn exchange_whole(&self, call: &Call<'_>) -> Result<(u16, String, Vec<u8>), Failure> {
        let address = address(&self.server).map_err(Failure::malformed)?;
        let request = request(&address, call, self.actor.as_deref())?;
        let mut stream = connect(&address).map_err(|error| self.unreached(&error))?;
        // From here on the server may have done what was asked, whatever happens to the reply.
        let reply = converse(&mut stream, &request, call.reply_timeout());
        match &reply {
            Ok(reply) if reply.starts_with(b"HTTP/") => {}
            Ok(reply) if !reply.is_empty() => return Err(self.not_http()),
            // The RESP port closes the connection when it sees HTTP; so does a server that dies.
            _ if speaks_resp(&address) => return Err(self.not_http()),
            _ => {}
        }
        let lost = |what: &str| match call.only_reads() {
            true => Failure::unreachable(format!("{}: {what}; try again", self.server)),
            false => Failure::unknown_outcome(format!("{}: {what}; {UNKNOWN}", self.server)),
        };
        parse(&reply.map_err(|error| lost(&system_words(&error)))?)
            .ok_or_else(|| lost("the reply was cut off"))
    }

    fn unreached(&self, error: &std::io::Error) -> Failure {
        let why = system_words(error);
        Failure::unreachable(format!(
            "cannot reach {}: {why}; is `quipu serve` running? {ELSEWHERE}",
            self.server
        ))
    }

    fn not_http(&self) -> Failure {
        Failure::unreachable(format!(
            "{} does not speak HTTP; is it the RESP port? HTTP listens on port {DEFAULT_PORT} unless --http says otherwise",
            self.server
        ))
    }
}

/// The lines of a reply without an end.
pub struct Lines(BufReader<TcpStream>);

impl Lines {
    /// The next one, without its end; `None` behind the last.
    pub fn next(&mut self) -> std::io::Result<Option<String>> {
        let mut line = Vec::new();
        (&mut self.0).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Ok(None);
        }
        line.pop_if(|last| *last == b'\r');
        Ok(Some(String::from_utf8_lossy(&line).into_owned()))
    }
}

const ELSEWHERE: &str = "(another address: --server URL or QUIPU_SERVER)";
const UNKNOWN: &str = "the outcome is unknown: with --id the same command can be repeated safely";

/// `host:port` of a server as people write it.
pub fn address(server: &str) -> Result<String, String> {
    let refuse = |why: &str| Err(format!("the server {server:?}: {why}; write http://host:{DEFAULT_PORT}"));
    let authority = match server.split_once("://") {
        None => server,
        Some(("http", rest)) => rest,
        Some(("resp" | "redis", _)) => {
            return refuse("this command speaks HTTP, which has a port of its own");
        }
        Some((scheme, _)) => return refuse(&format!("{scheme} is not spoken here")),
    };
    let authority = authority.trim_end_matches('/');
    if authority.is_empty()
        || authority.contains(['/', '?', '#', '@'])
        || authority.contains(char::is_whitespace)
    {
        return refuse("that is not a host and a port");
    }
    let host = authority.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
    match host {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => {
            Ok(authority.to_owned())
        }
        Some(_) => refuse("that is not a host and a port"),
        None if authority.contains(':') && !authority.starts_with('[') => {
            refuse("an IPv6 address stands in brackets")
        }
        None => Ok(format!("{authority}:{DEFAULT_PORT}")),
    }
}

fn request(address: &str, call: &Call<'_>, actor: Option<&str>) -> Result<Vec<u8>, Failure> {
    let mut head = format!("{} /api/v1/{} HTTP/1.0\r\nHost: {address}\r\n", call.method, call.path);
    if let Some(id) = call.id {
        if id.is_empty() || id.chars().any(char::is_control) {
            return Err(Failure::malformed("--id has 1 to 255 bytes and no control characters"));
        }
        head.push_str(&format!("Idempotency-Key: {id}\r\n"));
    }
    if let Some(actor) = actor.filter(|actor| !actor.is_empty()) {
        if actor.len() > ACTOR_BYTES_MAX || actor.chars().any(char::is_control) {
            return Err(Failure::malformed("--actor has up to 128 bytes and no control characters"));
        }
        head.push_str(&format!("X-Quipu-Actor: {actor}\r\n"));
    }
    let body = call.body.as_ref().map(Value::to_string).unwrap_or_default();
    head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len()));
    Ok([head.into_bytes(), body.into_bytes()].concat())
}

fn connect(address: &str) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn converse(stream: &mut TcpStream, request: &[u8], reply_timeout: Duration) -> std::io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(reply_timeout))?;
    stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
    stream.write_all(request)?;
    let mut reply = Vec::new();
    stream.take(REPLY_BYTES_MAX).read_to_end(&mut reply)?;
    Ok(reply)
}

/// Whether a server of the Redis protocol listens there.
fn speaks_resp(address: &str) -> bool {
    let ask = || {
        let mut stream = connect(address)?;
        stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
        stream.write_all(b"*1\r\n$4\r\nPING\r\n")?;
        let mut reply = [0; 5];
        stream.read_exact(&mut reply)?;
        std::io::Result::Ok(matches!(&reply, b"+PONG" | b"-NOAU"))
    };
    ask().unwrap_or(false)
}

/// Status, head and body, if the reply is whole.
fn parse(reply: &[u8]) -> Option<(u16, String, Vec<u8>)> {
    let end = reply.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, body) = (std::str::from_utf8(&reply[..end]).ok()?, &reply[end + 4..]);
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let length = lines.filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let whole = length.is_none_or(|length| body.len() == length);
    whole.then(|| (status, head.to_owned(), body.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::{address, encode, parse};

    #[test]
    fn servers() {
        for (server, expected) in [
            ("http://127.0.0.1:7070", Some("127.0.0.1:7070")),
            ("http://[::1]:7070/", Some("[::1]:7070")),
            ("localhost:8080", Some("localhost:8080")),
            ("localhost", Some("localhost:7070")),
            ("http://[::1]", Some("[::1]:7070")),
            ("::1", None),
            ("https://127.0.0.1:7070", None),
            ("resp://127.0.0.1:7071", None),
            ("http://", None),
            ("http://:7070", None),
            ("http://host:port", None),
            ("http://host:0", None),
            ("http://host:1/path", None),
            ("http://user@host:1", None),
            ("a b", None),
        ] {
            assert_eq!(address(server).ok().as_deref(), expected, "{server}");
        }
    }

    #[test]
    fn paths() {
        for (key, expected) in [
            (&b"likes:post:7"[..], "likes:post:7"),
            (b"a/b c", "a%2Fb%20c"),
            (b"..", "%2E%2E"),
            (&[0xff], "%FF"),
        ] {
            assert_eq!(encode(key), expected);
        }
    }

    #[test]
    fn replies() {
        for (reply, expected) in [
            ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}", Some((200, "{}"))),
            ("HTTP/1.0 409 Conflict\r\n\r\n{}", Some((409, "{}"))),
            ("HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n{}", None),
            ("HTTP/1.0 200 OK\r\ncontent-le", None),
            ("", None),
        ] {
            let expected = expected.map(|(status, body)| (status, body.as_bytes().to_vec()));
            let parsed = parse(reply.as_bytes()).map(|(status, _, body)| (status, body));
            assert_eq!(parsed, expected, "{reply:?}");
        }
    }
}
