//! HTTP/1.1 on connections that stay open: requests as bytes ready to send, where responses end, and a blocking session
//! for the few requests around a run.
//!
//! ```text
//! before the key              | key         | after the key                               | id      | after the id
//! POST /api/v1/counters/      | counter:7   | /increment HTTP/1.1 .. Idempotency-Key:     | <run>-<n> | .. {"delta":1}
//! GET /api/v1/counters/       | counter:7   |  HTTP/1.1 ..                                |         |
//! POST .../batch-increment .. | {"items":[{"key":"counter:7","delta":1}, ...]}
//! ```
//!
//! It knows as much of HTTP as a run needs and no more: a server that answers in chunks is refused, not misread. A
//! library would cost the generator more than many servers cost it.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde_json::{Value, json};

use super::workload::{Command, KeyFormat, Keys, Workload};

/// What may stand in a path as it is.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~').remove(b':');

/// A head longer than this is none.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// A body longer than this is a broken server.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Headers of every request; servers look at them, so they belong into the measurement.
const COMMON_HEADERS: &str = "Host: quipu\r\nUser-Agent: quipu-bench\r\nAccept: */*\r\n";

/// Makes requests out of prebuilt parts.
pub struct Writer {
    form: Form,
}

enum Form {
    One(OneCounter),
    Batch(BatchOfCounters),
}

/// A request about one counter, named in the path.
struct OneCounter {
    before_key: Vec<u8>,
    after_key: Vec<u8>,
    /// Start of every request id; `None` for loads without ids.
    id_prefix: Option<String>,
    after_id: Vec<u8>,
}

/// A request about many counters, named in the body.
struct BatchOfCounters {
    items: u32,
    before_number: String,
    after_number: String,
    /// Built first, because its length stands in the head.
    body: Vec<u8>,
}

impl Writer {
    /// The parts of the load's requests.
    pub fn new(workload: &Workload) -> Writer {
        let form = match workload.command {
            Command::Batch => Form::Batch(BatchOfCounters::new(workload)),
            _ => Form::One(OneCounter::new(workload)),
        };
        Writer { form }
    }

    /// Appends the next request.
    pub fn append(&mut self, output: &mut Vec<u8>, keys: &mut Keys) {
        match &mut self.form {
            Form::One(one) => one.append(output, keys),
            Form::Batch(batch) => batch.append(output, keys),
        }
    }
}

impl OneCounter {
    fn new(workload: &Workload) -> OneCounter {
        let KeyFormat { before, after } = &workload.key_format;
        let [before, after] = [before, after].map(|part| percent_encode(part.as_bytes(), PLAIN).to_string());
        if workload.command == Command::Get {
            return OneCounter {
                before_key: format!("GET /api/v1/counters/{before}").into(),
                after_key: format!("{after} HTTP/1.1\r\n{COMMON_HEADERS}\r\n").into(),
                id_prefix: None,
                after_id: Vec::new(),
            };
        }
        let delta = if workload.command == Command::Load { workload.value } else { 1 };
        let body = format!("{{\"delta\":{delta}}}");
        let headers =
            format!("{COMMON_HEADERS}Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        let mut one = OneCounter {
            before_key: format!("POST /api/v1/counters/{before}").into(),
            after_key: format!("{after}/increment HTTP/1.1\r\n{headers}").into(),
            id_prefix: None,
            after_id: format!("\r\n{body}").into(),
        };
        if workload.command == Command::AddId {
            one.after_key.extend_from_slice(b"Idempotency-Key: ");
            one.id_prefix = Some(format!("{:016x}-", workload.seed));
            one.after_id = format!("\r\n\r\n{body}").into();
        }
        one
    }

    fn append(&self, output: &mut Vec<u8>, keys: &mut Keys) {
        output.extend_from_slice(&self.before_key);
        append_number(output, keys.draw());
        output.extend_from_slice(&self.after_key);
        if let Some(prefix) = &self.id_prefix {
            output.extend_from_slice(prefix.as_bytes());
            append_number(output, keys.next_operation);
        }
        output.extend_from_slice(&self.after_id);
    }
}

impl BatchOfCounters {
    fn new(workload: &Workload) -> BatchOfCounters {
        let KeyFormat { before, after } = &workload.key_format;
        BatchOfCounters {
            items: workload.batch,
            before_number: format!("{{\"key\":\"{}", inside_json(before)),
            after_number: format!("{}\",\"delta\":1}}", inside_json(after)),
            body: Vec::new(),
        }
    }

    fn append(&mut self, output: &mut Vec<u8>, keys: &mut Keys) {
        self.body.clear();
        self.body.extend_from_slice(b"{\"items\":[");
        for item in 0..self.items {
            if item > 0 {
                self.body.push(b',');
            }
            self.body.extend_from_slice(self.before_number.as_bytes());
            append_number(&mut self.body, keys.draw());
            self.body.extend_from_slice(self.after_number.as_bytes());
        }
        self.body.extend_from_slice(b"]}");
        output.extend_from_slice(b"POST /api/v1/counters/batch-increment HTTP/1.1\r\n");
        output.extend_from_slice(COMMON_HEADERS.as_bytes());
        output.extend_from_slice(b"Content-Type: application/json\r\nContent-Length: ");
        append_number(output, self.body.len() as u64);
        output.extend_from_slice(b"\r\n\r\n");
        output.extend_from_slice(&self.body);
    }
}

/// `text` as it stands between the quotes of a JSON string.
fn inside_json(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_string()
}

fn append_number(output: &mut Vec<u8>, n: u64) {
    output.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

/// A response that is all there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response {
    /// Head and body together, in bytes.
    pub length: usize,
    /// Where the body begins.
    pub body_at: usize,
    /// The status code.
    pub status: u16,
}

/// Finds where the response at the head of the input ends, and remembers its head while the body arrives.
#[derive(Debug, Default)]
pub struct ResponseScanner {
    found: Option<Response>,
}

impl ResponseScanner {
    /// The response at the start of `input`, if it is all there.
    pub fn scan(&mut self, input: &[u8]) -> Result<Option<Response>> {
        let response = match self.found {
            Some(response) => response,
            None => {
                let Some(head_end) = input.windows(4).position(|window| window == b"\r\n\r\n") else {
                    ensure!(input.len() <= HEAD_BYTES_MAX, "a response without an end of its head");
                    return Ok(None);
                };
                *self.found.insert(read_head(&input[..head_end])?)
            }
        };
        if input.len() < response.length {
            return Ok(None);
        }
        self.found = None;
        Ok(Some(response))
    }
}

fn read_head(head: &[u8]) -> Result<Response> {
    let text = std::str::from_utf8(head).context("a response with a head that is no text")?;
    let mut lines = text.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let status: u16 = status_line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1)?.parse().ok())
        .with_context(|| format!("a response that begins with {status_line:?}"))?;
    let mut content_length = None;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            let length: usize = value.trim().parse().context("a Content-Length that is no number")?;
            ensure!(length <= BODY_BYTES_MAX, "a response of {length} bytes");
            content_length = Some(length);
        }
        ensure!(
            !name.eq_ignore_ascii_case("transfer-encoding"),
            "a response in chunks, which this generator does not read"
        );
    }
    let body = content_length.context("a response without Content-Length")?;
    let body_at = head.len() + 4;
    Ok(Response { length: body_at + body, body_at, status })
}

/// A connection on which one request is sent and its response awaited.
pub struct Session {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Session {
    /// Takes over a connected stream.
    pub fn new(stream: TcpStream) -> Session {
        Session { stream, input: Vec::new() }
    }

    /// Gives the stream back.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Sends a request and returns status and body.
    fn exchange(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, Vec<u8>)> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{COMMON_HEADERS}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.write_all(request.as_bytes()).context("cannot write to the server")?;
        let mut scanner = ResponseScanner::default();
        loop {
            if let Some(Response { length, body_at, status }) = scanner.scan(&self.input)? {
                let rest = self.input.split_off(length);
                let whole = std::mem::replace(&mut self.input, rest);
                return Ok((status, whole[body_at..].to_vec()));
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk).context("cannot read from the server")? {
                0 => bail!("the server closed the connection"),
                count => self.input.extend_from_slice(&chunk[..count]),
            }
        }
    }

    /// A number from `/metrics`; `None` if the server does not tell it.
    pub fn metric(&mut self, name: &str) -> Result<Option<u64>> {
        let (status, body) = self.exchange("GET", "/metrics", "")?;
        let text = String::from_utf8_lossy(&body);
        Ok(if status == 200 { metric(&text, name) } else { None })
    }

    /// The sum of the keys `from..to`; a missing key counts nothing.
    pub fn sum_of_range(&mut self, key_format: &KeyFormat, from: u64, to: u64) -> Result<i128> {
        let names: Vec<String> = (from..to).map(|n| key_format.name(n)).collect();
        let body = json!({ "keys": names }).to_string();
        let (status, body) = self.exchange("POST", "/api/v1/counters/batch-get", &body)?;
        ensure!(status == 200, "batch-get answered {status}: {}", String::from_utf8_lossy(&body));
        let body: Value = serde_json::from_slice(&body).context("batch-get answered no JSON")?;
        let results = body["results"].as_array().context("batch-get answered no results")?;
        Ok(results.iter().filter_map(|result| result["value"].as_i64()).map(i128::from).sum())
    }
}

/// A metric without labels, by its name without the prefix of quipu; counters end in `_total`.
fn metric(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (shown, value) = line.strip_prefix("quipu_")?.split_once(' ')?;
        (shown.strip_suffix("_total").unwrap_or(shown) == name).then(|| value.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::super::target::Protocol;
    use super::super::workload::tests::{first_commands, workload};
    use super::*;

    #[test]
    fn requests_are_the_bytes_of_the_protocol() {
        let common = "Host: quipu\r\nUser-Agent: quipu-bench\r\nAccept: */*\r\n";
        let json = "Content-Type: application/json\r\nContent-Length: ";
        let path = "/api/v1/counters/counter:0";
        let cases = [
            (
                Command::Incr,
                format!("POST {path}/increment HTTP/1.1\r\n{common}{json}11\r\n\r\n{{\"delta\":1}}"),
            ),
            (
                Command::Load,
                format!("POST {path}/increment HTTP/1.1\r\n{common}{json}15\r\n\r\n{{\"delta\":70000}}"),
            ),
            (Command::Get, format!("GET {path} HTTP/1.1\r\n{common}\r\n")),
            (
                Command::AddId,
                format!(
                    "POST {path}/increment HTTP/1.1\r\n{common}{json}11\r\n\
                     Idempotency-Key: 0000000000000abc-12\r\n\r\n{{\"delta\":1}}"
                ),
            ),
            (
                Command::Batch,
                format!(
                    "POST /api/v1/counters/batch-increment HTTP/1.1\r\n{common}{json}71\r\n\r\n\
                     {{\"items\":[{{\"key\":\"counter:0\",\"delta\":1}},{{\"key\":\"counter:0\",\"delta\":1}}]}}"
                ),
            ),
        ];
        for (command, expected) in cases {
            let found = first_commands(&workload(command, Protocol::Http, 1), 12, 1);
            assert_eq!(found, expected, "{}", command.name());
            let (head, body) = found.split_once("\r\n\r\n").unwrap();
            assert!(body.is_empty() || head.contains(&format!("Content-Length: {}", body.len())), "{found}");
        }
    }

    #[test]
    fn names_are_encoded_where_they_stand() {
        let format = KeyFormat::parse("a/\"{n} b").unwrap();
        let load = |command| Workload {
            key_format: format.clone(),
            batch: 1,
            ..workload(command, Protocol::Http, 1)
        };
        assert!(
            first_commands(&load(Command::Get), 0, 1).starts_with("GET /api/v1/counters/a%2F%220%20b HTTP")
        );
        let batch = first_commands(&load(Command::Batch), 0, 1);
        assert!(batch.ends_with("{\"items\":[{\"key\":\"a/\\\"0 b\",\"delta\":1}]}"), "{batch}");
    }

    #[test]
    fn responses_end_where_their_head_says_however_they_arrive() {
        let first = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nContent-Length: 4\r\n\r\n{\r\n}";
        let second = "HTTP/1.1 503 Service Unavailable\r\ncontent-length:0\r\n\r\n";
        let both = format!("{first}{second}");
        for piece in [1, 7, both.len()] {
            let (mut scanner, mut input, mut found) = (ResponseScanner::default(), Vec::new(), Vec::new());
            for chunk in both.as_bytes().chunks(piece) {
                input.extend_from_slice(chunk);
                while let Some(Response { length, status, .. }) = scanner.scan(&input).unwrap() {
                    found.push((status, length));
                    input.drain(..length);
                }
            }
            assert_eq!(found, [(200, first.len()), (503, second.len())], "in pieces of {piece}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for bad in [
            "+PONG\r\n\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        ] {
            assert!(ResponseScanner::default().scan(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(ResponseScanner::default().scan(&vec![b'x'; HEAD_BYTES_MAX + 1]).is_err());
        assert_eq!(ResponseScanner::default().scan(b"HTTP/1.1 200 OK\r\nConte").unwrap(), None);
    }

    #[test]
    fn metrics_are_read_by_whole_names() {
        let text = "# TYPE quipu_checkpoints counter\nquipu_checkpoints_total 3\nquipu_process_id 77\n";
        assert_eq!(metric(text, "checkpoints"), Some(3));
        assert_eq!(metric(text, "process_id"), Some(77));
        assert_eq!(metric(text, "process"), None);
    }
}
