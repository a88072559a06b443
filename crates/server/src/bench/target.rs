//! The server under load: its address, and a blocking connection for the few commands around a run.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quipu_wire::resp::{ReplyDecoder, Value, encode_command};

/// Port of a target that names none: quipu's RESP port.
const DEFAULT_PORT: u16 = 7071;

/// How long to wait for a connection, and for each reply around a run.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Where the load goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    address: SocketAddr,
    /// Arguments of `AUTH`: nothing, a password, or a user and a password.
    credentials: Vec<String>,
}

impl Target {
    /// Reads `resp://[user:password@]host[:port]`; `redis://` means the same.
    pub fn parse(text: &str) -> Result<Target> {
        let rest =
            ["resp://", "redis://"].iter().find_map(|scheme| text.strip_prefix(scheme)).unwrap_or(text);
        if rest.contains("://") {
            bail!("{text:?} is no Redis-protocol address; write resp://127.0.0.1:{DEFAULT_PORT}");
        }
        let (credentials, place) = match rest.trim_end_matches('/').rsplit_once('@') {
            Some((credentials, place)) => (parse_credentials(credentials), place),
            None => (Vec::new(), rest.trim_end_matches('/')),
        };
        let has_port = place.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let place = if has_port { place.to_string() } else { format!("{place}:{DEFAULT_PORT}") };
        let address = place
            .to_socket_addrs()
            .with_context(|| format!("cannot resolve {place:?}; write resp://host:port"))?
            .next()
            .with_context(|| format!("{place:?} has no address"))?;
        Ok(Target { address, credentials })
    }

    /// Whether the server runs on this machine, so that its process can be watched.
    pub fn is_local(&self) -> bool {
        self.address.ip().is_loopback()
    }

    /// The address without credentials.
    pub fn shown(&self) -> String {
        format!("resp://{}", self.address)
    }

    /// Connects and logs in.
    pub fn connect(&self) -> Result<Session> {
        let stream = TcpStream::connect_timeout(&self.address, WAIT_MAX)
            .with_context(|| format!("cannot connect to {}: is the server running?", self.shown()))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        stream.set_write_timeout(Some(WAIT_MAX))?;
        let mut session = Session { stream, input: Vec::new(), decoder: ReplyDecoder::new() };
        if !self.credentials.is_empty() {
            let words: Vec<&str> =
                ["AUTH"].into_iter().chain(self.credentials.iter().map(String::as_str)).collect();
            session.command(&words).context("the server refused the credentials")?;
        }
        Ok(session)
    }
}

/// `user:password`, `:password` or `password`.
fn parse_credentials(text: &str) -> Vec<String> {
    match text.split_once(':') {
        Some(("", password)) => vec![password.to_string()],
        Some((user, password)) => vec![user.to_string(), password.to_string()],
        None => vec![text.to_string()],
    }
}

/// A connection on which one command is sent and its reply awaited.
pub struct Session {
    stream: TcpStream,
    input: Vec<u8>,
    decoder: ReplyDecoder,
}

impl Session {
    /// Sends a command of words; an error reply is an error.
    pub fn command(&mut self, words: &[&str]) -> Result<Value> {
        let mut bytes = Vec::new();
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        encode_command(&mut bytes, &words);
        self.exchange(&bytes)
    }

    /// Sends one command that is already encoded; an error reply is an error.
    pub fn exchange(&mut self, command: &[u8]) -> Result<Value> {
        self.stream.write_all(command).context("cannot write to the server")?;
        let value = self.read_reply()?;
        if let Some(text) = value.as_error() {
            bail!("the server answered: {}", String::from_utf8_lossy(text));
        }
        Ok(value)
    }

    fn read_reply(&mut self) -> Result<Value> {
        loop {
            if let Some((value, length)) = self.decoder.decode(&self.input)? {
                self.input.drain(..length);
                return Ok(value);
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk).context("cannot read from the server")? {
                0 => bail!("the server closed the connection"),
                count => self.input.extend_from_slice(&chunk[..count]),
            }
        }
    }

    /// A number from `INFO`, such as `process_id`; `None` if the server does not tell it.
    pub fn info_number(&mut self, field: &str) -> Result<Option<u64>> {
        let value = self.command(&["INFO"])?;
        let text = String::from_utf8_lossy(value.as_bytes().unwrap_or_default()).into_owned();
        Ok(info_field(&text, field).and_then(|number| number.parse().ok()))
    }

    /// Gives the connection to an event loop.
    pub fn into_nonblocking(self) -> Result<mio::net::TcpStream> {
        self.stream.set_nonblocking(true)?;
        Ok(mio::net::TcpStream::from_std(self.stream))
    }
}

fn info_field<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_addresses_with_optional_credentials() {
        let cases: &[(&str, &str, &[&str])] = &[
            ("resp://127.0.0.1:6379", "127.0.0.1:6379", &[]),
            ("redis://127.0.0.1:6379/", "127.0.0.1:6379", &[]),
            ("127.0.0.1", "127.0.0.1:7071", &[]),
            ("resp://[::1]:7071", "[::1]:7071", &[]),
            ("resp://:secret@127.0.0.1:1", "127.0.0.1:1", &["secret"]),
            ("resp://me:p@ss@127.0.0.1:1", "127.0.0.1:1", &["me", "p@ss"]),
        ];
        for (text, address, credentials) in cases {
            let target = Target::parse(text).unwrap();
            assert_eq!(target.address, address.parse().unwrap(), "{text}");
            assert_eq!(target.credentials, *credentials, "{text}");
            assert!(!target.shown().contains('@'), "{text}");
        }
        for bad in ["http://127.0.0.1:7070", "resp://", "resp://no such host:1"] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn info_is_read_by_whole_field_names() {
        let info = "# Server\r\nprocess_id:77\r\nprocess_id_other:1\r\ncheckpoints:3\r\n";
        assert_eq!(info_field(info, "process_id"), Some("77"));
        assert_eq!(info_field(info, "checkpoints"), Some("3"));
        assert_eq!(info_field(info, "process"), None);
    }
}
