//! A blocking connection to a server of the Redis protocol.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use quipu_wire::resp::{ReplyDecoder, ReplyError, Value, encode_command};

use crate::cli::failure::{Failure, system_words};

/// Port of a target that names none.
const DEFAULT_PORT: u16 = 7071;
/// How long to wait for a connection: a host that is there answers at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for a reply; longer than any wait on the server's side.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// What is read at once: the replies to a package.
const READ_BYTES: usize = 64 * 1024;

/// Where the server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// `host:port`.
    address: String,
    /// Arguments of `AUTH`: nothing, a password, or a user and a password.
    credentials: Vec<String>,
}

impl Target {
    /// Reads `resp://[user:password@]host[:port]`; `redis://` means the same.
    pub fn parse(text: &str) -> Result<Target, Failure> {
        let refuse = |why: &str| {
            // Not the text itself: it may hold a password.
            Err(Failure::malformed(format!(
                "the target: {why}; write resp://[user:password@]host:{DEFAULT_PORT}"
            )))
        };
        let rest = match text.split_once("://") {
            None => text,
            Some(("resp" | "redis", rest)) => rest,
            Some((scheme, _)) => {
                return refuse(&format!("this command speaks the Redis protocol, not {scheme}"));
            }
        };
        let rest = rest.trim_end_matches('/');
        let (credentials, place) = match rest.rsplit_once('@') {
            Some((credentials, place)) => (parse_credentials(credentials), place),
            None => (Vec::new(), rest),
        };
        let is_bare_ipv6 = place.matches(':').count() > 1 && !place.starts_with('[');
        if place.is_empty() || is_bare_ipv6 || place.contains(['/', ' ']) {
            return refuse("that is not a host and a port");
        }
        let port = place.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
        match port {
            None => Ok(Target { address: format!("{place}:{DEFAULT_PORT}"), credentials }),
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => {
                Ok(Target { address: place.to_owned(), credentials })
            }
            Some(_) => refuse("that is not a host and a port"),
        }
    }

    /// The address without credentials.
    pub fn shown(&self) -> String {
        format!("resp://{}", self.address)
    }
}

/// `user:password`, `:password` or `password`.
fn parse_credentials(text: &str) -> Vec<String> {
    match text.split_once(':') {
        Some(("", password)) => vec![password.to_owned()],
        Some((user, password)) => vec![user.to_owned(), password.to_owned()],
        None => vec![text.to_owned()],
    }
}

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The system says no, or nobody answers in time.
    #[error("{}", system_words(.0))]
    System(#[from] std::io::Error),
    /// The other side closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// What came is no reply.
    #[error("{0}")]
    Reply(#[from] ReplyError),
}

/// One connection; commands go out in any number, replies come back in their order.
pub struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    /// Bytes of `input` that were decoded.
    taken: usize,
    decoder: ReplyDecoder,
}

impl Connection {
    /// Connects, logs in and sees that somebody answers.
    pub fn open(target: &Target) -> Result<Connection, Failure> {
        let shown = target.shown();
        let unreachable = |broken: Broken| {
            let why = match broken {
                Broken::Reply(ReplyError::UnknownType(b'H')) => {
                    format!(
                        "it speaks HTTP; RESP listens on port {DEFAULT_PORT} unless --resp says otherwise"
                    )
                }
                other => format!("{other}; is `quipu serve` running there?"),
            };
            Failure::unreachable(format!(
                "cannot reach {shown}: {why} (another address: --target or QUIPU_TARGET)"
            ))
        };
        let mut connection =
            Connection::connect(&target.address).map_err(|error| unreachable(error.into()))?;
        let login: Vec<&[u8]> =
            [&b"AUTH"[..]].into_iter().chain(target.credentials.iter().map(|word| word.as_bytes())).collect();
        let greetings = [&login[..], &[b"PING"]];
        for words in &greetings[usize::from(target.credentials.is_empty())..] {
            match connection.ask(words).map_err(unreachable)? {
                Value::Error(text) => {
                    let said = String::from_utf8_lossy(&text).into_owned();
                    let hint = "credentials stand in the target, as resp://user:password@host:port";
                    return Err(Failure::general(format!("{shown} refuses: {said}; {hint}")));
                }
                _ => continue,
            }
        }
        Ok(connection)
    }

    fn ask(&mut self, words: &[&[u8]]) -> Result<Value, Broken> {
        let mut command = Vec::new();
        encode_command(&mut command, words);
        self.send(&command)?;
        self.receive()
    }

    fn connect(address: &str) -> std::io::Result<Connection> {
        let mut last = std::io::Error::other("the name has no address");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
                    stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
                    return Ok(Connection {
                        stream,
                        input: Vec::new(),
                        taken: 0,
                        decoder: ReplyDecoder::new(),
                    });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends commands that are already encoded.
    pub fn send(&mut self, commands: &[u8]) -> Result<(), Broken> {
        Ok(self.stream.write_all(commands)?)
    }

    /// The next reply.
    pub fn receive(&mut self) -> Result<Value, Broken> {
        loop {
            if let Some((value, length)) = self.decoder.decode(&self.input[self.taken..])? {
                self.taken += length;
                return Ok(value);
            }
            self.input.drain(..self.taken);
            self.taken = 0;
            let length = self.input.len();
            self.input.resize(length + READ_BYTES, 0);
            let count = self.stream.read(&mut self.input[length..]);
            self.input.truncate(length + count.as_ref().copied().unwrap_or(0));
            match count {
                Ok(0) => return Err(Broken::Closed),
                // A signal that another thread takes care of.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                count => drop(count?),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Target;

    #[test]
    fn targets() {
        for (text, address, credentials) in [
            ("resp://127.0.0.1:6379", "127.0.0.1:6379", &[][..]),
            ("redis://localhost/", "localhost:7071", &[]),
            ("[::1]", "[::1]:7071", &[]),
            ("resp://:secret@[::1]:1", "[::1]:1", &["secret"]),
            ("resp://me:p@ss@host:1", "host:1", &["me", "p@ss"]),
        ] {
            let target = Target::parse(text).unwrap();
            assert_eq!(
                (target.address.as_str(), &target.credentials[..]),
                (address, &credentials.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()[..])
            );
            assert!(!target.shown().contains('@'), "{text}");
        }
        for text in ["http://127.0.0.1:7070", "resp://", "::1", "host:port", "host:0", ":1", "host/1"] {
            let refused = Target::parse(text).unwrap_err();
            assert_eq!(refused.exit_code, 2, "{text}: {refused}");
        }
    }
}
