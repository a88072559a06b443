//! One call to a server over HTTP/1.0, blocking: one connection, one request, one reply, closed by the server.
//!
//! HTTP/1.0, because then no server may answer in chunks, and the end of the body is the end of the connection.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde_json::Value;

use super::failure::Failure;

/// What may stand in a path as it is. The dot may not: `..` would be taken for a step up.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~').remove(b':');
/// How long to wait for a connection, and then for the reply; longer than any wait on the server's side.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The largest reply: a full batch of the longest keys stays below.
const REPLY_BYTES_MAX: u64 = 64 << 20;

/// Where the server is, and how to print what it says.
#[derive(Clone, Debug, clap::Args)]
pub struct Client {
    /// The server's HTTP address
    #[arg(long, env = "QUIPU_SERVER", default_value = "http://127.0.0.1:7070", value_name = "URL")]
    server: String,
    /// Print the API's JSON
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

/// `segment` as a part of a path.
pub fn encode(segment: &[u8]) -> String {
    percent_encode(segment, PLAIN).to_string()
}

impl Client {
    /// Makes the call. Prints the JSON of the reply, also of a problem, where that was asked for; returns it otherwise.
    pub fn call(&self, call: &Call<'_>) -> Result<Option<Value>, Failure> {
        let (status, body) = self.exchange(call)?;
        let parsed: Value = serde_json::from_slice(&body).map_err(|_| {
            Failure::general(format!(
                "{} answered {status}, but not as quipu does; is it a quipu server?",
                self.server
            ))
        })?;
        if self.json {
            println!("{}", String::from_utf8_lossy(&body).trim_end());
        }
        if !(200..300).contains(&status) {
            return Err(Failure::from_problem(status, &parsed));
        }
        Ok(if self.json { None } else { Some(parsed) })
    }

    fn exchange(&self, call: &Call<'_>) -> Result<(u16, Vec<u8>), Failure> {
        let authority = authority(&self.server).map_err(Failure::general)?;
        let request = request(authority, call)?;
        let mut stream = connect(authority).map_err(|error| {
            let hint = "is `quipu serve` running? Another address: --server or QUIPU_SERVER";
            Failure::general(format!("cannot reach {}: {error}; {hint}", self.server))
        })?;
        // From here on the server may have done what was asked, whatever happens to the reply.
        let reply = converse(&mut stream, &request);
        let lost = |what: String| match call.method {
            "GET" => Failure::general(format!("{}: {what}; try again", self.server)),
            _ => {
                let hint = "the outcome is unknown: with --id the same command can be repeated safely";
                Failure::unknown_outcome(format!("{}: {what}; {hint}", self.server))
            }
        };
        parse(&reply.map_err(|error| lost(error.to_string()))?)
            .ok_or_else(|| lost("the reply was cut off".to_owned()))
    }
}

fn authority(server: &str) -> Result<&str, String> {
    let authority = match server.split_once("://") {
        None => server,
        Some(("http", rest)) => rest,
        Some((scheme, _)) => return Err(format!("--server {server}: {scheme} is not spoken here, http is")),
    };
    let authority = authority.trim_end_matches('/');
    if authority.is_empty() || authority.contains('/') {
        return Err(format!("--server {server}: expected http://host:port"));
    }
    Ok(authority)
}

fn request(authority: &str, call: &Call<'_>) -> Result<Vec<u8>, Failure> {
    let mut head = format!("{} /api/v1/{} HTTP/1.0\r\nHost: {authority}\r\n", call.method, call.path);
    if let Some(id) = call.id {
        if id.chars().any(char::is_control) {
            return Err(Failure::usage(anyhow::anyhow!("--id must not contain control characters")));
        }
        head.push_str(&format!("Idempotency-Key: {id}\r\n"));
    }
    let body = call.body.as_ref().map(Value::to_string).unwrap_or_default();
    head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len()));
    Ok([head.into_bytes(), body.into_bytes()].concat())
}

fn connect(authority: &str) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("the name has no address");
    for address in authority.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn converse(stream: &mut TcpStream, request: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(request)?;
    let mut reply = Vec::new();
    stream.take(REPLY_BYTES_MAX).read_to_end(&mut reply)?;
    Ok(reply)
}

/// Status and body, if the reply is whole.
fn parse(reply: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = reply.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, body) = (std::str::from_utf8(&reply[..end]).ok()?, &reply[end + 4..]);
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let length = lines.filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let whole = length.is_none_or(|length| body.len() == length);
    whole.then(|| (status, body.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::{authority, encode, parse};

    #[test]
    fn servers() {
        for (server, expected) in [
            ("http://127.0.0.1:7070", Some("127.0.0.1:7070")),
            ("http://[::1]:7070/", Some("[::1]:7070")),
            ("localhost:7070", Some("localhost:7070")),
            ("https://127.0.0.1:7070", None),
            ("http://", None),
            ("http://host:1/path", None),
        ] {
            assert_eq!(authority(server).ok(), expected, "{server}");
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
            assert_eq!(parse(reply.as_bytes()), expected, "{reply:?}");
        }
    }
}
